package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// reporter executes attempts that come as documents, and carries what they record to the server.
type reporter struct {
	client *api.Client // nil where no server is known
	box    *outbox
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// newReporter makes a reporter to the server at url, or that of the environment. Without any, nothing is recorded.
func newReporter(env *environment, url string, log *slog.Logger) (*reporter, error) {
	if url == "" {
		url = env.url
	}
	p := &reporter{stop: func() {}}
	if url == "" {
		return p, nil
	}
	client, err := env.connect(url, "")
	if err != nil {
		return nil, err
	}
	p.client, p.box = client, newOutbox(client, log, nil)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.done.Go(func() { p.box.run(ctx) })
	return p, nil
}

// close sends what waits, within bounds, and ends.
func (p *reporter) close() {
	if p.box != nil {
		ctx, cancel := context.WithTimeout(context.Background(), flushTime)
		defer cancel()
		_ = p.box.flush(ctx) // progress and logs; what matters was waited for
	}
	p.stop()
	p.done.Wait()
	if p.client != nil {
		p.client.Close()
	}
}

// execute runs one attempt. Log lines go to logs when it is set, else to the server.
func (p *reporter) execute(ctx context.Context, doc *api.Document, token string, h handle, logs io.Writer) (result Result) {
	a := fromDocument(doc, token, p.box)
	a.local = logs
	a.open(ctx)
	defer a.close()
	defer func() {
		if v := recover(); v != nil {
			result = panicked(a, v, debug.Stack())
		}
		// The result ends the attempt: what it said before must be there by then.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
		defer cancel()
		a.settle(last)
	}()
	return h(a.ctx, p.client, a)
}

const (
	readHeaderTime = 10 * time.Second
	idleTime       = 2 * time.Minute
	settleTime     = 3 * time.Second // for logs and the like of an attempt that has ended
)

// server answers the http protocol.
type server struct {
	env       *environment
	log       *slog.Logger
	handle    handle
	snapshot  func(context.Context) (map[string]json.RawMessage, error)
	reporters reporters
	life      context.Context // of the handlers; ends when the process has to

	mu       sync.Mutex
	running  map[string]bool // attempts
	draining bool
}

// serve runs the http protocol until ctx ends.
func (p *process) serve(ctx context.Context, env *environment, log *slog.Logger, h handle) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(env.listen, strconv.Itoa(env.port)))
	if err != nil {
		return fmt.Errorf("listen for runs: %w", err)
	}
	return p.serveOn(ctx, listener, env, log, h)
}

// serveOn is serve on a listener, which it closes.
func (p *process) serveOn(ctx context.Context, listener net.Listener, env *environment, log *slog.Logger, h handle) error {
	// 1. Serve.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	s := &server{env: env, log: log, handle: h, snapshot: p.sessions(), life: life, running: make(map[string]bool)}
	s.reporters.env, s.reporters.log = env, log
	defer s.reporters.close()
	web := &http.Server{
		Handler: s.routes(), ReadHeaderTimeout: readHeaderTime, IdleTimeout: idleTime,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	log.Info("listening for runs", "address", listener.Addr().String(), "slots", env.slots)
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve runs: %w", err)
	case <-ctx.Done():
	}
	// 2. Drain: no more runs, those under way get their grace, then their contexts end and they are handed back.
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	graceCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), env.grace)
	defer cancel()
	if web.Shutdown(graceCtx) == nil {
		return nil
	}
	end(ErrDraining)
	lastCtx, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
	defer cancelLast()
	if web.Shutdown(lastCtx) != nil {
		_ = web.Close() // the caller sees the connection break and knows that the attempt is gone
	}
	return nil
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /run", s.run)
	mux.HandleFunc("POST /snapshot", s.takeSnapshot)
	mux.HandleFunc("GET /healthz", s.health)
	return mux
}

// run executes the attempt in the body and answers with its result. The caller ends it by going away.
func (s *server) run(w http.ResponseWriter, req *http.Request) {
	// 1. What to do.
	doc, err := api.ReadDocument(http.MaxBytesReader(w, req.Body, api.MaxDocument))
	if err != nil {
		problem(w, http.StatusBadRequest, api.CodeInvalid, err.Error())
		return
	}
	token, _ := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	// 2. A slot, once per attempt.
	if code, detail := s.enter(doc.Attempt); code != "" {
		status := http.StatusServiceUnavailable
		if code == api.CodeConflict {
			status = http.StatusConflict
		} else {
			w.Header().Set("Retry-After", "1")
		}
		problem(w, status, code, detail)
		return
	}
	// 3. Do it. The slot is free before the caller knows of the end: it may send the next attempt at once.
	result, cause, err := s.execute(req.Context(), doc, token)
	// 4. Tell. A handler that was cut short by the end of the process has not failed.
	switch {
	case err != nil:
		problem(w, http.StatusBadRequest, api.CodeInvalid, err.Error())
	case result.Err != nil && errors.Is(cause, ErrDraining):
		problem(w, http.StatusServiceUnavailable, api.CodeUnavailable, "the process is ending: the attempt was handed back")
	default:
		writeJSON(w, http.StatusOK, "application/json", result.document())
	}
}

// execute runs an attempt in the slot that it entered, and leaves it. cause is why the handler's context had ended, nil
// if it had not; the error is of the document.
func (s *server) execute(ctx context.Context, doc *api.Document, token string) (result Result, cause, err error) {
	defer s.leave(doc.Attempt)
	reporter, err := s.reporters.to(doc.URL)
	if err != nil {
		return result, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })()
	result = reporter.execute(ctx, doc, token, s.handle, nil)
	return result, context.Cause(ctx), nil
}

// enter takes a slot for an attempt, or says why not.
func (s *server) enter(attempt string) (code, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.running[attempt]:
		return api.CodeConflict, fmt.Sprintf("attempt %.80s is being executed already", attempt)
	case s.draining:
		return api.CodeUnavailable, "the process is ending"
	case len(s.running) >= s.env.slots:
		return api.CodeUnavailable, fmt.Sprintf("all %d slots are taken", s.env.slots)
	}
	s.running[attempt] = true
	return "", ""
}

func (s *server) leave(attempt string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, attempt)
}

func (s *server) takeSnapshot(w http.ResponseWriter, req *http.Request) {
	out := api.Snapshot{Sessions: map[string]json.RawMessage{}}
	if s.snapshot != nil {
		ctx, cancel := context.WithTimeout(req.Context(), snapshotTime)
		defer cancel()
		states, err := s.snapshot(ctx)
		if err != nil {
			problem(w, http.StatusInternalServerError, api.CodeInternal, "snapshot of sessions: "+err.Error())
			return
		}
		out.Sessions = states
	}
	writeJSON(w, http.StatusOK, "application/json", out)
}

func (s *server) health(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if draining {
		problem(w, http.StatusServiceUnavailable, api.CodeUnavailable, "the process is ending")
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n")
}

func problem(w http.ResponseWriter, status int, code, detail string) {
	writeJSON(w, status, "application/problem+json", &api.Problem{
		Type: api.ProblemBase + code, Title: http.StatusText(status), Status: status, Detail: clip(detail, api.MaxMessage),
	})
}

func writeJSON(w http.ResponseWriter, status int, media string, body any) {
	raw, err := encode(body)
	if err != nil {
		status, media = http.StatusOK, "application/json"
		raw, _ = encode(Failed(failf(CodeOutputInvalid, "result: %w", err)).document())
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, _ = w.Write(raw)
}

// reporters keeps one reporter per server that documents name: in practice one.
type reporters struct {
	env   *environment
	log   *slog.Logger
	mu    sync.Mutex
	byURL map[string]*reporter
}

// maxReporters bounds what documents with ever new addresses can make a process hold.
const maxReporters = 16

func (r *reporters) to(url string) (*reporter, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.byURL[url]; p != nil {
		return p, nil
	}
	if len(r.byURL) >= maxReporters {
		return nil, fmt.Errorf("url %.80q: this process reports to %d servers already", url, maxReporters)
	}
	p, err := newReporter(r.env, url, r.log)
	if err != nil {
		return nil, err
	}
	if r.byURL == nil {
		r.byURL = make(map[string]*reporter)
	}
	r.byURL[url] = p
	return p, nil
}

func (r *reporters) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.byURL {
		p.close()
	}
}
