package agent

import (
	"bytes"
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
	o := api.Options{URL: url}
	if strings.TrimRight(url, "/") == strings.TrimRight(env.url, "/") {
		o = env.control()
	}
	// Who may send documents may name any server in them: no other than our own is shown who this process is.
	client, err := env.connect(o)
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

// attempt is the attempt that a document describes.
func (p *reporter) attempt(doc *api.Document, token string) *Attempt {
	return fromDocument(doc, token, p.box)
}

// execute runs one attempt, whose context was opened, and closes it.
func (p *reporter) execute(ctx context.Context, a *Attempt, h handle) (result Result) {
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
	// answerPatience is for what was cut short by the end of the process to be handed back, and its caller answered.
	answerPatience = stopPatience + stopPatience/2
)

// server answers the http protocol.
type server struct {
	env       *environment
	log       *slog.Logger
	handle    handle
	snapshot  func(context.Context) (map[string]json.RawMessage, error)
	reporters reporters
	life      context.Context // of the handlers; ends when the process has to
	direct    *direct         // nil where the process cannot begin runs by itself

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
	callCtx, endCalls := context.WithCancel(ctx)
	calls, err := s.answerCalls(callCtx)
	if err != nil {
		endCalls()
		return errors.Join(err, listener.Close())
	}
	defer calls()
	defer endCalls()
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
	lastCtx, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), answerPatience)
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
	if s.direct != nil {
		mux.HandleFunc("POST /", func(w http.ResponseWriter, req *http.Request) {
			if body, ok := readBody(w, req, api.MaxPayload); ok {
				s.call(w, req, body)
			}
		})
	}
	return mux
}

// readBody reads a request's body, or answers with what is wrong with it.
func readBody(w http.ResponseWriter, req *http.Request, limit int64) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, limit))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		problem(w, http.StatusRequestEntityTooLarge, api.CodeTooLarge, fmt.Sprintf("body over %d bytes", limit))
		return nil, false
	case err != nil:
		problem(w, http.StatusBadRequest, api.CodeInvalid, "read body: "+err.Error())
		return nil, false
	}
	return body, true
}

// headerToken carries the attempt's token where Authorization says who calls.
const headerToken = "X-Errand-Token"

// run executes the attempt in the body and answers with its result. A body that is no document is a call.
func (s *server) run(w http.ResponseWriter, req *http.Request) {
	// 1. What to do.
	body, ok := readBody(w, req, api.MaxDocument)
	if !ok {
		return
	}
	if s.direct != nil && !isDocument(body) {
		s.call(w, req, body)
		return
	}
	doc, err := api.ReadDocument(bytes.NewReader(body))
	if err != nil {
		problem(w, http.StatusBadRequest, api.CodeInvalid, err.Error())
		return
	}
	token := s.tokenOf(req)
	reporter, err := s.reporters.to(doc.URL)
	if err != nil {
		problem(w, http.StatusBadRequest, api.CodeInvalid, err.Error())
		return
	}
	if token == "" && reporter.box != nil {
		problem(w, http.StatusUnauthorized, api.CodeUnauthorized, fmt.Sprintf("the request carries no token of attempt %.80q, so nothing of it could be "+
			"recorded: attempts come from the control plane, with their token in %s; a call of one's own is a request whose body is the input", doc.Attempt, headerToken))
		return
	}
	// 2. A slot, once per attempt.
	if !s.enter(w, "attempt "+doc.Attempt) {
		return
	}
	// 3. Do it. The slot is free before the caller knows of the end: it may send the next attempt at once.
	a := reporter.attempt(doc, token)
	watch := watching(req, reporter.box == nil)
	var result Result
	var cause error
	watch.during(w, func() {
		defer s.leave("attempt " + doc.Attempt)
		a.watch = watch
		result, cause = s.execute(req.Context(), reporter, a)
	})
	// 4. Tell. A handler that was cut short by the end of the process has not failed.
	if result.Err != nil && errors.Is(cause, ErrDraining) {
		watch.problem(w, unavailable("the process is ending: the attempt was handed back"))
		return
	}
	watch.answer(w, result.document())
}

// tokenOf is the token of the attempt that a request brings. On a platform Authorization says who calls, and is none.
func (s *server) tokenOf(req *http.Request) string {
	token := req.Header.Get(headerToken)
	if token == "" && s.env.tokens == nil {
		token, _ = strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	}
	return token
}

// isDocument tells a document from the input of a call. What is neither is taken for a document, whose reader says what
// is wrong with it.
func isDocument(body []byte) bool {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return !json.Valid(body) && len(body) > 0
	}
	return fields["attempt"] != nil
}

// execute runs an attempt in the slot that it entered. cause is why the handler's context had ended, nil if it had not.
func (s *server) execute(ctx context.Context, reporter *reporter, a *Attempt) (result Result, cause error) {
	// 1. Where its end can be told by other means, the attempt outlives who sent it.
	work := ctx
	outlives := a.Token != "" && reporter.box != nil
	if outlives {
		work = context.WithoutCancel(ctx)
	}
	work, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })()
	a.open(work)
	var tended sync.WaitGroup
	over := make(chan struct{})
	if outlives {
		tended.Go(func() { tend(ctx, a, over) })
	}
	// 2. Run it.
	result = reporter.execute(work, a, s.handle)
	close(over)
	tended.Wait()
	cause = context.Cause(work)
	// 3. With nobody to answer to, the end is reported.
	if outlives && ctx.Err() != nil {
		s.conclude(a, result, cause)
	}
	return result, cause
}

func unavailable(detail string) *api.Problem {
	return &api.Problem{
		Type: api.ProblemBase + api.CodeUnavailable, Title: http.StatusText(http.StatusServiceUnavailable),
		Status: http.StatusServiceUnavailable, Detail: detail, RetryAfter: 1,
	}
}

// enter takes a slot for a piece of work, or answers why not.
func (s *server) enter(w http.ResponseWriter, what string) bool {
	p := s.tryEnter(what)
	if p != nil {
		writeProblem(w, p)
	}
	return p == nil
}

func (s *server) tryEnter(what string) *api.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.running[what]:
		return &api.Problem{
			Type: api.ProblemBase + api.CodeConflict, Title: http.StatusText(http.StatusConflict), Status: http.StatusConflict,
			Detail: fmt.Sprintf("%.80s is being executed already", what), RetryAfter: 1,
		}
	case s.draining:
		return unavailable("the process is ending")
	case len(s.running) >= s.env.slots:
		return unavailable(fmt.Sprintf("all %d slots are taken", s.env.slots))
	}
	s.running[what] = true
	return nil
}

func (s *server) leave(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, what)
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
	writeProblem(w, &api.Problem{
		Type: api.ProblemBase + code, Title: http.StatusText(status), Status: status, Detail: clip(detail, api.MaxMessage),
	})
}

func writeProblem(w http.ResponseWriter, p *api.Problem) {
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	writeJSON(w, p.Status, "application/problem+json", p)
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
