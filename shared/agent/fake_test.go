package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// fake is a control plane in memory that speaks the worker protocol: leases, fencing, steps, parks, receipts. It knows
// no placement, no policy and no store: a failed attempt is tried again at once unless it says that this is useless.
type fake struct {
	decision string // of people, at once; "" for none
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when anything does
	runs     map[string]*fakeRun
	queue    []string
	workers  map[string]*fakeWorker
	drain    bool
	refuse   map[string]*api.Problem // answer to reports of a type
	ids      int
	states   map[string]json.RawMessage // of sessions
	shared   map[string]*fakeShared     // state by key

	// Knobs, set before use.
	attemptFor time.Duration
	beatEvery  time.Duration
	settle     time.Duration
	slow       time.Duration // of batches
	partial    bool          // heartbeats are answered without a look at the attempts
	beatLag    time.Duration // from when a heartbeat's answer is formed until it arrives

	// Faults: calls whose path ends so.
	down      bool
	loseAfter map[string]int          // the call is served, its answer lost
	fail      map[string]*api.Problem // the call is answered with this as a whole
	again     []*fakeRun              // offered once more, whatever became of them

	calls  map[string]int // by path
	sizes  []int          // reports in each batch
	begins []api.ReceiptBegin
}

type fakeRun struct {
	id, agent, tenant string
	input             json.RawMessage
	session           string
	state             string // queued, assigned, running, waiting, succeeded, failed, canceled
	n                 int
	worker            string
	deadline          time.Time
	cancel            string
	steps             []api.Step
	signals           map[string][]json.RawMessage
	park              *api.Park
	called            map[string][]api.Call // by step
	paged             bool                  // results are left out of the step
	receipts          map[string]*fakeReceipt
	question          *api.GateAsk // that was decided
	output            json.RawMessage
	failure           *api.Report
	released          []string
	usage             api.Usage
	progress          float64
	logs              []api.LogLine
	reports           []string // types, in order
	wait              chan struct{}

	ticket, key string
	restarts    int
	claimed     bool
	index       *int // of a job, and as its completions, too
	undoes      *fakeRun
}

type fakeReceipt struct {
	api.Receipt
	nonce string
	until time.Time
	asked []string // nonces of calls that were told "unknown"
	seq   int      // order in which effects were begun
}

type fakeWorker struct {
	beats []api.WorkerBeat
}

func newFake() *fake {
	return &fake{
		changed: make(chan struct{}), runs: map[string]*fakeRun{}, workers: map[string]*fakeWorker{}, refuse: map[string]*api.Problem{},
		loseAfter: map[string]int{}, fail: map[string]*api.Problem{}, calls: map[string]int{}, states: map[string]json.RawMessage{}, attemptFor: time.Hour, settle: 30 * time.Second,
	}
}

func (f *fake) touch() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fake) submit(agent, input string) *fakeRun {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.submitLocked(agent, input)
}

func (f *fake) submitLocked(agent, input string) *fakeRun {
	f.ids++
	r := &fakeRun{
		id: "r" + strconv.Itoa(f.ids), agent: agent, tenant: "default", input: json.RawMessage(input), state: "queued",
		signals: map[string][]json.RawMessage{}, receipts: map[string]*fakeReceipt{}, wait: make(chan struct{}),
	}
	f.runs[r.id] = r
	f.queue = append(f.queue, r.id)
	f.touch()
	return r
}

func (f *fake) requeue(r *fakeRun) {
	r.state = "queued"
	f.queue = append(f.queue, r.id)
	f.touch()
}

func (f *fake) end(r *fakeRun, state string) {
	r.state = state
	close(r.wait)
	f.touch()
}

// loseWorker is what happens when a worker was silent for its lease: its runs are given to others.
func (f *fake) loseWorker(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.runs {
		if r.worker == id && r.live() {
			f.requeue(r)
		}
	}
}

func (f *fake) cancelRun(r *fakeRun, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.cancel = reason
}

func (f *fake) signal(r *fakeRun, name, payload string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.signals[name] = append(r.signals[name], json.RawMessage(payload))
	f.wake(r)
}

// wake completes a park whose signal is there.
func (f *fake) wake(r *fakeRun) bool {
	if r.state != "waiting" || r.park.On != "input" || len(r.signals[r.park.Name]) == 0 {
		return false
	}
	payload := r.signals[r.park.Name][0]
	r.signals[r.park.Name] = r.signals[r.park.Name][1:]
	result, _ := json.Marshal(map[string]json.RawMessage{"signal": payload})
	f.wakeWith(r, result)
	return true
}

func (f *fake) wakeWith(r *fakeRun, result json.RawMessage) {
	r.steps = append(r.steps, api.Step{Name: r.park.Step, Seq: len(r.steps) + 1, Result: result})
	f.requeue(r)
}

func (r *fakeRun) live() bool { return r.state == "assigned" || r.state == "running" }

func (r *fakeRun) attempt() string { return r.id + "." + strconv.Itoa(r.n) }

func (r *fakeRun) standing() api.Standing {
	return api.Standing{Deadline: api.Time{Time: r.deadline}, Cancel: r.cancel != "", CancelReason: r.cancel}
}

func problemOf(status int, code, detail string) *api.Problem {
	return &api.Problem{Type: api.ProblemBase + code, Title: http.StatusText(status), Status: status, Detail: detail}
}

// find returns the run that an attempt holds.
func (f *fake) find(attempt, token string) (*fakeRun, *api.Problem) {
	id, _, _ := strings.Cut(attempt, ".")
	r := f.runs[id]
	switch {
	case r == nil:
		return nil, problemOf(404, api.CodeNotFound, "no such run")
	case token != "token-"+attempt:
		return nil, problemOf(401, api.CodeUnauthorized, "not the token of this attempt")
	case !r.live() || r.attempt() != attempt:
		return nil, problemOf(409, api.CodeFenced, "attempt no longer holds the run")
	}
	return r, nil
}

func (f *fake) report(p api.Report) api.ReportResult {
	r, refusal := f.find(p.Attempt, p.Token)
	if refusal != nil {
		return api.ReportResult{Error: refusal}
	}
	if refusal = f.refuse[p.Type]; refusal != nil {
		return api.ReportResult{Error: refusal}
	}
	out := api.ReportResult{Standing: r.standing()}
	r.reports = append(r.reports, p.Type)
	if p.Type == api.ReportUsage {
		r.usage.InputTokens += p.Usage.InputTokens
		r.usage.OutputTokens += p.Usage.OutputTokens
	} else if p.Usage != nil {
		r.usage = *p.Usage
	}
	if p.Session != nil {
		f.states[r.session] = p.Session
	}
	if r.state == "assigned" && p.Type != api.ReportRelease { // whatever it says, it has begun
		r.state = "running"
	}
	switch p.Type {
	case api.ReportStep:
		for _, s := range r.steps {
			if s.Name == p.Step.Name {
				return out // sent again: the answer was lost
			}
		}
		r.steps = append(r.steps, *p.Step)
	case api.ReportProgress:
		r.progress = *p.Progress
	case api.ReportLogs:
		r.logs = append(r.logs, p.Logs...)
	case api.ReportComplete:
		r.output = p.Output
		f.end(r, "succeeded")
	case api.ReportFail:
		r.failure = &p
		if p.Retryable != nil && !*p.Retryable || r.cancel != "" {
			f.end(r, "failed")
		} else {
			f.requeue(r)
		}
	case api.ReportRelease:
		r.released = append(r.released, p.Reason)
		f.requeue(r)
	case api.ReportPark:
		r.park, r.state = p.Park, "waiting"
		if p.Park.On == "children" {
			f.join(r)
			return out
		}
		if p.Park.On == "gate" && f.decision != "" {
			r.question = p.Park.Gate
			result, _ := json.Marshal(f.answerTo(r))
			f.wakeWith(r, result)
			out.Resumed = true
			return out
		}
		out.Resumed = f.wake(r)
		if r.state == "waiting" && p.Park.Until != nil {
			n := r.n
			time.AfterFunc(time.Until(p.Park.Until.Time), func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				if r.state != "waiting" || r.n != n {
					return
				}
				result := `{}`
				if p.Park.On == "input" {
					result = `{"timeout":true}`
				}
				f.wakeWith(r, json.RawMessage(result))
			})
		}
	}
	return out
}

// lease hands out what is queued, now.
func (f *fake) lease(q *api.LeaseRequest) []api.Lease {
	var out []api.Lease
	for _, r := range f.again {
		out = append(out, f.leaseOf(r))
	}
	f.again = nil
	var passed []string
	i := 0
	for ; i < len(f.queue) && len(out) < q.Max && !f.drain; i++ {
		id := f.queue[i]
		r := f.runs[id]
		if !slices.Contains(q.Agents, r.agent) {
			passed = append(passed, id)
			continue
		}
		r.n++
		r.state, r.worker, r.deadline = "assigned", q.Worker, time.Now().Add(f.attemptFor)
		out = append(out, f.leaseOf(r))
	}
	f.queue = f.queue[i:]
	if len(passed) > 0 {
		f.queue = append(passed, f.queue...)
	}
	return out
}

func (f *fake) leaseOf(r *fakeRun) api.Lease {
	l := api.Lease{
		Attempt: r.attempt(), N: r.n, Run: r.id, Agent: r.agent, Tenant: r.tenant, Mode: "run", Input: r.input, Key: "unit-" + r.id,
		Token: "token-" + r.attempt(), Deadline: api.Time{Time: r.deadline}, HeartbeatEvery: api.Duration(f.beatEvery),
		Steps: slices.Clone(r.steps), Session: r.session, Index: r.index, Completions: r.index,
	}
	if r.undoes != nil {
		l.Mode, l.Steps, l.Receipts = modeCompensate, append(slices.Clone(r.undoes.steps), r.steps...), r.undoes.undoings()
	}
	if r.session != "" {
		l.State = f.states[r.session]
	}
	return l
}

// offerAgain puts an attempt that was handed over before into the next answer.
func (f *fake) offerAgain(r *fakeRun) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.again = append(f.again, r)
	f.touch()
}

func (f *fake) poll(ctx context.Context, q *api.LeaseRequest) *api.LeaseResponse {
	deadline := time.NewTimer(q.Wait.Std())
	defer deadline.Stop()
	for {
		f.mu.Lock()
		out := &api.LeaseResponse{Leases: f.lease(q), Drain: f.drain}
		draining := false
		if w := f.workers[q.Worker]; w != nil && len(w.beats) > 0 {
			draining = w.beats[len(w.beats)-1].Draining
		}
		changed, down := f.changed, f.down
		f.mu.Unlock()
		if len(out.Leases) > 0 || out.Drain || draining || down {
			return out
		}
		select {
		case <-changed:
		case <-deadline.C:
			return out
		case <-ctx.Done():
			return out
		}
	}
}

func (f *fake) beat(worker string, b api.WorkerBeat) *api.WorkerStanding {
	w := f.workers[worker]
	if w == nil {
		w = new(fakeWorker)
		f.workers[worker] = w
	}
	w.beats = append(w.beats, b)
	f.touch()
	for name, state := range b.Sessions {
		f.states[name] = state
	}
	out := &api.WorkerStanding{Drain: f.drain, Partial: f.partial}
	if f.partial {
		return out
	}
	for _, id := range b.Attempts {
		if r, refusal := f.find(id, "token-"+id); refusal == nil && r.worker == worker {
			out.Attempts = append(out.Attempts, api.AttemptStanding{ID: id, Standing: r.standing()})
		}
	}
	return out
}

func (f *fake) begin(r *fakeRun, effect string, b api.ReceiptBegin) (*api.ReceiptAnswer, *api.Problem) {
	f.begins = append(f.begins, b)
	key := b.Step + "/" + effect
	now := time.Now()
	x := r.receipts[key]
	out := &api.ReceiptAnswer{Standing: r.standing(), ID: "receipt-" + r.id + "-" + key, OnUnknown: b.OnUnknown}
	if out.OnUnknown == "" {
		out.OnUnknown = "ask"
	}
	proceed := func() *api.ReceiptAnswer {
		until := now.Add(b.Timeout.Std())
		if until.After(r.deadline) {
			until = r.deadline
		}
		x = &fakeReceipt{nonce: b.Nonce, until: until, seq: len(f.begins)}
		x.State, x.Attempt, x.RequestHash, x.Step, x.Effect = "intent", r.n, b.RequestHash, b.Step, effect
		x.Compensable = b.Compensable
		r.receipts[key] = x
		out.Answer, out.Until = api.EffectProceed, &api.Time{Time: until}
		return out
	}
	switch {
	case r.undoes != nil && !strings.HasPrefix(effect, "undo:"):
		out.Answer = api.EffectNone
		if x = r.undoes.receipts[key]; x != nil && x.State == "done" {
			out.Answer, out.Result = api.EffectDone, x.Result
		}
	case x == nil || x.State == "abandoned":
		return proceed(), nil
	case x.RequestHash != b.RequestHash:
		out.Answer = api.EffectConflict
	case x.State == "done":
		out.Answer, out.Result = api.EffectDone, x.Result
	case x.State == "intent" && x.nonce == b.Nonce:
		out.Answer, out.Until = api.EffectProceed, &api.Time{Time: x.until}
	case x.Attempt < r.n && now.Before(x.until.Add(f.settle)):
		out.Answer, out.Until = api.EffectWait, &api.Time{Time: x.until.Add(f.settle)}
	case out.OnUnknown == "repeat", b.Reconciled == "didNotHappen" && slices.Contains(x.asked, b.Nonce):
		return proceed(), nil
	default:
		x.State = "unknown"
		x.asked = append(x.asked, b.Nonce)
		out.Answer = api.EffectUnknown
	}
	return out, nil
}

func (f *fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	f.mu.Lock()
	f.calls[path]++
	var whole *api.Problem
	for suffix, p := range f.fail {
		if strings.HasSuffix(path, suffix) {
			whole = p
		}
	}
	f.mu.Unlock()
	body, _ := io.ReadAll(req.Body)
	if whole != nil {
		f.answer(w, nil, whole)
		return
	}
	token := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
	switch {
	case path == "/v1/leases":
		var q api.LeaseRequest
		_ = json.Unmarshal(body, &q)
		f.answer(w, f.poll(req.Context(), &q), nil)
	case path == "/v1/attempts:batch":
		var b api.ReportBatch
		_ = json.Unmarshal(body, &b)
		time.Sleep(f.slow)
		f.mu.Lock()
		out := &api.ReportBatchResult{Drain: f.drain}
		f.sizes = append(f.sizes, len(b.Reports))
		for _, p := range b.Reports {
			out.Results = append(out.Results, f.report(p))
		}
		if b.Lease != nil {
			out.Leases = f.lease(b.Lease)
		}
		f.mu.Unlock()
		f.answer(w, out, nil)
	case strings.HasPrefix(path, "/v1/workers/"):
		var b api.WorkerBeat
		_ = json.Unmarshal(body, &b)
		f.mu.Lock()
		out := f.beat(strings.TrimSuffix(strings.TrimPrefix(path, "/v1/workers/"), ":heartbeat"), b)
		f.mu.Unlock()
		time.Sleep(f.beatLag)
		f.answer(w, out, nil)
	case strings.HasSuffix(path, ":claim"):
		f.serveClaim(w, path, body)
	case path == "/v1/runs:begin":
		f.serveBegin(w, body)
	case strings.Contains(path, "/children"):
		f.children(w, req, path, token, body)
	case strings.HasSuffix(path, "/gates"):
		f.gate(w, path, token, body)
	case strings.HasPrefix(path, "/v1/state/"):
		f.state(w, req, strings.TrimPrefix(path, "/v1/state/"), token, body)
	case strings.Contains(path, "/receipts/"):
		f.receipt(w, path, token, body)
	default:
		f.answer(w, nil, problemOf(404, api.CodeNotFound, path))
	}
}

// answerTo is what people say to a question.
func (f *fake) answerTo(r *fakeRun) api.GateResult {
	out := api.GateResult{Gate: "g1", Decision: f.decision, By: []string{"ann"}, Comment: "because", ActionHash: "h", At: api.Time{Time: time.Now()}}
	if f.decision == "expired" {
		out.By = []string{}
	}
	return out
}

// gate holds a question against the one that was decided.
func (f *fake) gate(w http.ResponseWriter, path, token string, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, refusal := f.find(strings.TrimSuffix(strings.TrimPrefix(path, "/v1/attempts/"), "/gates"), token)
	var q api.GateRequest
	_ = json.Unmarshal(body, &q)
	if refusal == nil && (r.question == nil || string(q.Action) != string(r.question.Action)) {
		refusal = problemOf(409, api.CodeChanged, "another action was decided about")
	}
	f.answer(w, &api.GateRequested{}, refusal)
}

func (f *fake) receipt(w http.ResponseWriter, path, token string, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	attempt, rest, _ := strings.Cut(strings.TrimPrefix(path, "/v1/attempts/"), "/receipts/")
	cut := strings.LastIndexByte(rest, ':')
	effect, verb := rest[:cut], rest[cut+1:]
	r, refusal := f.find(attempt, token)
	if refusal == nil {
		refusal = f.refuse[verb]
	}
	if refusal != nil {
		f.answer(w, nil, refusal)
		return
	}
	if verb == "begin" {
		var b api.ReceiptBegin
		_ = json.Unmarshal(body, &b)
		out, refusal := f.begin(r, effect, b)
		f.answer(w, out, refusal)
		return
	}
	var c api.ReceiptCommit
	_ = json.Unmarshal(body, &c)
	x := r.receipts[c.Step+"/"+effect]
	if r.undoes != nil {
		name, undoes := strings.CutPrefix(effect, "undo:")
		of := r.undoes.receipts[c.Step+"/"+name]
		switch {
		case !undoes:
			x = of
		case verb == "commit":
			of.State = "compensated"
		}
	}
	if x == nil {
		f.answer(w, nil, problemOf(404, api.CodeNotFound, "no such receipt"))
		return
	}
	if verb == "commit" {
		x.State, x.Result = "done", c.Result
	} else {
		x.State = "abandoned"
	}
	s := r.standing()
	f.answer(w, &s, nil)
}

// compensate makes the run that undoes another one, whose attempts are over.
func (f *fake) compensate(of *fakeRun) *fakeRun {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range of.receipts {
		if x.State == "intent" {
			x.State = "unknown"
		}
	}
	r := f.submitLocked(of.agent, string(of.input))
	r.undoes = of
	return r
}

// undoings are the effects of a run, newest first.
func (r *fakeRun) undoings() (all []api.Undoing) {
	list := slices.SortedFunc(maps.Values(r.receipts), func(a, b *fakeReceipt) int { return b.seq - a.seq })
	for _, x := range list {
		u := api.Undoing{ID: "id-" + x.Effect, Step: x.Step, Effect: x.Effect, Key: "key-" + x.Effect, State: x.State, Compensable: x.Compensable, Result: x.Result}
		if x.Compensable && x.State != "compensated" {
			u.Undo = "undo:" + x.Effect
		}
		if x.State != "abandoned" {
			all = append(all, u)
		}
	}
	return all
}

func (f *fake) answer(w http.ResponseWriter, body any, p *api.Problem) {
	w.Header().Set("Content-Type", "application/json")
	if p != nil {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(p.Status)
		body = p
	}
	_ = json.NewEncoder(w).Encode(body)
}

// RoundTrip serves without a socket, so that tests can run on synctest's clock, and with faults.
func (f *fake) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	if down {
		return nil, &netError{syscall.ECONNREFUSED}
	}
	if req.Body == nil {
		req.Body = http.NoBody
	}
	done := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, req)
		done <- w
	}()
	select {
	case w := <-done:
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.down {
			return nil, &netError{syscall.ECONNRESET}
		}
		for suffix, n := range f.loseAfter {
			if n > 0 && strings.HasSuffix(req.URL.Path, suffix) {
				f.loseAfter[suffix]--
				return nil, &netError{syscall.ECONNRESET}
			}
		}
		return w.Result(), nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

type netError struct{ err error }

func (e *netError) Error() string { return e.err.Error() }
func (e *netError) Unwrap() error { return e.err }

func (f *fake) client(t testing.TB) *api.Client {
	t.Helper()
	c, err := api.NewClient(api.Options{URL: "http://fake", HTTP: &http.Client{Transport: f}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// connect is what a process connects with.
func (f *fake) connect(t testing.TB) connect {
	return func(api.Options) (*api.Client, error) { return f.client(t), nil }
}

func (f *fake) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
	f.touch()
}

// setFailing answers calls whose path ends so with a problem; nil ends that.
func (f *fake) setFailing(suffix string, p *api.Problem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[suffix] = p
	if p == nil {
		delete(f.fail, suffix)
	}
}

func (f *fake) setDrain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drain = true
	f.touch()
}

// look reads a run under the lock.
func look[T any](f *fake, read func() T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return read()
}

// serveWith runs a host with a handler until the test ends, and waits for it to be gone.
func (f *fake) serveWith(t testing.TB, o HostOptions) (stop func() error) {
	t.Helper()
	if o.Agents == nil {
		o.Agents = []string{"a"}
	}
	if o.Worker == "" {
		o.Worker = "w1"
	}
	if o.Log == nil {
		o.Log = quiet
	}
	h, err := NewHost(f.client(t), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	return sync.OnceValue(func() error { cancel(); return <-done })
}

// handling is a typed handler as a Host takes it.
func handling[In, Out any](c *api.Client, h Handler[In, Out]) func(context.Context, *Attempt) Result {
	return func(ctx context.Context, a *Attempt) Result { return run(ctx, c, a, h) }
}

func (r *fakeRun) why() string {
	if r.failure == nil {
		return "no failure"
	}
	return fmt.Sprintf("%s/%s: %s", r.failure.Class, r.failure.Code, r.failure.Message)
}

var errBoom = errors.New("boom")

type refusingTransport struct{}

func (refusingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	newFake().answer(w, nil, problemOf(403, api.CodeForbidden, "this worker may not"))
	return w.Result(), nil
}

func refusedClient(t testing.TB) *api.Client {
	t.Helper()
	c, err := api.NewClient(api.Options{URL: "http://fake", HTTP: &http.Client{Transport: refusingTransport{}}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
