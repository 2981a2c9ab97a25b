package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Headers of a call.
const (
	headerKey    = "Idempotency-Key"
	headerTenant = "Errand-Tenant"
	headerRun    = "Errand-Run" // of the answer: the run's id
)

// elsewhereRetry is what a caller is asked to wait while another process executes the run of its key, in seconds.
const elsewhereRetry = 2

// direct begins the runs of calls that come past the control plane, and executes them as a worker.
type direct struct {
	client *api.Client
	agent  string
	worker string
	ready  chan struct{} // closed once execute is set
	take   Execute

	mu      sync.Mutex
	watches map[string]*watch // by attempt
}

// answerCalls makes the process answer calls, if it can: it has a server, and one agent. The returned function waits for
// its worker to be gone; ctx is what ends it.
func (s *server) answerCalls(ctx context.Context) (wait func(), err error) {
	if s.env.url == "" || len(s.env.agents) != 1 {
		return func() {}, nil
	}
	client, err := s.env.connect(s.env.control())
	if err != nil {
		return nil, err
	}
	d := &direct{
		client: client, agent: s.env.agents[0], worker: s.env.worker, ready: make(chan struct{}), watches: make(map[string]*watch),
	}
	host, err := NewHost(client, HostOptions{
		Worker: s.env.worker, Target: s.env.target, Agents: s.env.agents, Slots: s.env.slots, Grace: noneIfZero(s.env.grace),
		Log: s.log, Source: d, quietIdle: true, placeless: true,
		Handle: func(ctx context.Context, a *Attempt) Result {
			a.watch = d.watch(a.Attempt)
			return s.handle(ctx, client, a)
		},
	})
	if err != nil {
		return nil, err
	}
	s.direct = d
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := host.Run(ctx); err != nil {
			s.log.Error("calls cannot be answered any more", "error", err)
		}
		client.Close()
	}()
	return func() { <-done }, nil
}

// Feed implements Source: calls bring the attempts.
func (d *direct) Feed(ctx context.Context, _ int, execute Execute) error {
	d.take = execute
	close(d.ready)
	<-ctx.Done()
	return nil
}

func (d *direct) watch(attempt string) *watch {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.watches[attempt]
}

// execute runs the attempt of a lease, watched by w.
func (d *direct) execute(lease *api.Lease, w *watch) (Result, error) {
	<-d.ready
	if w != nil {
		d.mu.Lock()
		d.watches[lease.Attempt] = w
		d.mu.Unlock()
		defer func() {
			d.mu.Lock()
			delete(d.watches, lease.Attempt)
			d.mu.Unlock()
		}()
	}
	return d.take(*lease)
}

// call begins a run with the body as input, executes it and answers with its output. A caller that goes away loses the
// answer and not the run: a call with the same key finds it.
func (s *server) call(w http.ResponseWriter, req *http.Request, body []byte) {
	// 1. What is asked for.
	if len(body) == 0 {
		body = null
	}
	if err := checkInput(body); err != nil {
		problem(w, http.StatusBadRequest, api.CodeInvalid, err.Error())
		return
	}
	b := api.Begin{
		Agent: s.direct.agent, Input: json.RawMessage(body), Tenant: req.Header.Get(headerTenant), Key: unquote(req.Header.Get(headerKey)),
		Worker: s.direct.worker,
	}
	name := "call with key " + b.Tenant + "/" + b.Key
	if b.Key == "" {
		// A key of our own makes the beginning safe to repeat when its answer is lost.
		b.Key = "call/" + rand.Text()
		name = b.Key
	}
	// 2. A slot, once per key.
	if !s.enter(w, name) {
		return
	}
	defer s.leave(name)
	// 3. Begin.
	begun, err := s.direct.begin(req.Context(), b)
	if err != nil {
		writeProblem(w, refusedCall(err))
		return
	}
	if begun.Finished != nil {
		w.Header().Set(headerRun, begun.Finished.Run)
		answerFinished(w, begun.Finished)
		return
	}
	lease := begun.Lease
	w.Header().Set(headerRun, lease.Run)
	// 4. Do it, and tell.
	watch := watching(req, false)
	var result Result
	watch.during(w, func() { result, err = s.direct.execute(lease, watch) })
	s.answer(w, watch, lease, result, err)
}

// unquote takes a key as it is, or as the structured field that some clients write.
func unquote(key string) string {
	if len(key) > 1 && key[0] == '"' && key[len(key)-1] == '"' {
		return key[1 : len(key)-1]
	}
	return key
}

// begin registers a call. It is seen through when the caller goes away, for the run would be missed only when its
// worker's lease runs out.
func (d *direct) begin(ctx context.Context, b api.Begin) (*api.Begun, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), 2*askTime, fmt.Errorf("%w: no answer within %s", api.ErrUnreachable, 2*askTime))
	defer cancel()
	return d.client.BeginRun(ctx, b)
}

// refusedCall is what a caller is told of a run that could not be begun.
func refusedCall(err error) *api.Problem {
	var p *api.Problem
	if !errors.As(err, &p) {
		return unavailable("the run could not be begun: the control plane cannot be reached")
	}
	out := &api.Problem{Type: p.Type, Title: p.Title, Status: p.Status, Detail: p.Detail, Errors: p.Errors, RetryAfter: p.RetryAfter}
	switch {
	case takenElsewhere(err):
		out.Detail = "the run of this key is executed elsewhere: " + p.Detail
		out.RetryAfter = max(p.RetryAfter, elsewhereRetry)
	case p.Status == http.StatusUnauthorized, p.Status == http.StatusForbidden, p.Status == http.StatusNotFound:
		// The caller has nothing to do with what this process may do.
		out.Status, out.Title = http.StatusBadGateway, http.StatusText(http.StatusBadGateway)
		out.Detail = "the control plane does not let this process begin the run: " + p.Detail
	case passing(p):
		out.Status, out.Title = http.StatusServiceUnavailable, http.StatusText(http.StatusServiceUnavailable)
		if p.Status == http.StatusTooManyRequests {
			out.Status, out.Title = p.Status, http.StatusText(p.Status)
		}
		out.RetryAfter = max(p.RetryAfter, 1)
	}
	return out
}

// answer tells a caller what became of its run. What the server did not take is not told as a result: nobody else would
// ever find it.
func (s *server) answer(w http.ResponseWriter, watch *watch, lease *api.Lease, result Result, err error) {
	switch {
	case errors.Is(err, ErrFenced), errors.Is(err, ErrHeld):
		watch.problem(w, &api.Problem{
			Type: api.ProblemBase + api.CodeFenced, Title: http.StatusText(http.StatusConflict), Status: http.StatusConflict,
			Detail: "run " + lease.Run + " is executed elsewhere", RetryAfter: elsewhereRetry,
		})
	case errors.Is(err, errUnsettled), err == nil && result.Release != "":
		watch.problem(w, unavailable("the process is ending: run "+lease.Run+" was handed back"))
	case err != nil:
		s.log.Error("the result of a call was not taken", "attempt", lease.Attempt, "error", err)
		watch.problem(w, &api.Problem{
			Type: api.ProblemBase + "failed", Title: CodeResultRefused, Status: http.StatusInternalServerError,
			Detail: clip("the control plane did not take the result: "+err.Error(), api.MaxMessage),
		})
	case result.Err != nil:
		watch.problem(w, failedCall(result.Err))
	case result.Park != nil && watch == nil:
		// Nobody can wait for that here: the run goes on elsewhere when it is woken.
		writeJSON(w, http.StatusAccepted, "application/json", map[string]string{"run": lease.Run, "state": "waiting", "on": result.Park.On})
	case result.Park != nil:
		watch.answer(w, map[string]any{"park": result.Park})
	default:
		watch.answer(w, orNull(result.Output))
	}
}

// failedCall is a failure of the agent as a caller sees it.
func failedCall(e *api.AgentError) *api.Problem {
	p := &api.Problem{Type: api.ProblemBase + "failed", Title: e.Code, Status: http.StatusInternalServerError, Detail: clip(e.Message, api.MaxMessage)}
	switch {
	case e.Class == ClassThrottled:
		p.Status = http.StatusTooManyRequests
	case e.Class == ClassInfrastructure:
		p.Status = http.StatusServiceUnavailable
	case e.Class == ClassTimeout:
		p.Status = http.StatusGatewayTimeout
	case e.Class == ClassCanceled:
		p.Status = http.StatusConflict
	case e.Retryable != nil && !*e.Retryable:
		p.Status = http.StatusUnprocessableEntity
	}
	if e.RetryAfter != nil {
		p.RetryAfter = int((e.RetryAfter.Std() + time.Second - 1) / time.Second)
	}
	if p.Title == "" {
		p.Title = "Failed"
	}
	return p
}

// answerFinished answers a call whose run was over before it came.
func answerFinished(w http.ResponseWriter, f *api.Finished) {
	if f.State == "succeeded" {
		writeJSON(w, http.StatusOK, "application/json", orNull(f.Output))
		return
	}
	e := &api.AgentError{Code: f.Code, Message: f.Message, Retryable: new(bool)}
	if e.Code == "" {
		e.Code = f.Reason
	}
	if f.State == "canceled" {
		e.Class = ClassCanceled
	}
	writeProblem(w, failedCall(e))
}
