package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// fakePlane is a control plane in memory that does what it is told: tests move its runs by hand.
type fakePlane struct {
	mu       sync.Mutex
	runs     map[string]*run.Record
	byKey    map[string]string
	order    []string
	logs     map[string][]runtime.LogLine
	receipts map[string]run.Receipt
	objects  map[string]control.Declared
	watchers map[chan control.Change]struct{}
	follows  map[chan struct{}]string // who follows one run
	changed  chan struct{}            // closed and replaced at each change

	// What was asked, for tests to look at.
	submitted []control.Submission
	reports   []runtime.Report
	begun     []control.EffectBegin
	ended     []control.EffectEnd
	leased    []control.LeaseRequest
	beats     []control.WorkerBeat
	claims    []control.Claim
	called    []control.ChildCalls
	resolved  []string // yes or no, by whom
	elsewhere string

	undelivered []string
	applied     []control.ApplyOptions
	cancels     []control.CancelRequest
	deleted     []int64
	awaiting    chan struct{} // receives when an Await begins; nil to ignore

	contexts []error // of each Submit and Report as it began
	refuse   error   // what Submit says
	panics   bool
	ready    error
	grants   map[string]control.Grant
	leases   chan runtime.Assignment
	reportTo func(runtime.Report) runtime.Result
	stats    control.Stats
	triggers fakeTriggers
	*fakeGates
	fakeState
}

const instant = run.Instant(1_767_225_600_000) // 2026-01-01T00:00:00Z

func newFake() *fakePlane {
	f := &fakePlane{
		runs: make(map[string]*run.Record), byKey: make(map[string]string), logs: make(map[string][]runtime.LogLine),
		receipts: make(map[string]run.Receipt), objects: make(map[string]control.Declared),
		watchers: make(map[chan control.Change]struct{}), follows: make(map[chan struct{}]string), changed: make(chan struct{}),
		grants: make(map[string]control.Grant), leases: make(chan runtime.Assignment, 10),
		fakeGates: &fakeGates{gates: make(map[string]*run.Gate)},
		triggers:  fakeTriggers{letters: make(map[string]control.DeadLetter)},
		reportTo:  func(runtime.Report) runtime.Result { return runtime.Result{Deadline: instant + 60_000} },
		stats:     control.Stats{At: instant, Window: time.Minute, States: map[run.State]int{run.Queued: 3}},
	}
	f.declare(&fleet.Agent{Meta: fleet.Meta{Name: "echo"}, Shape: fleet.Pool, Run: fleet.Run{Command: []string{"./echo"}}})
	return f
}

func (f *fakePlane) declare(o fleet.Object) {
	o.SetDefaults()
	f.objects[o.Kind()+"/"+o.Name()] = control.Declared{Object: o, Revision: 7, UpdatedAt: instant, Queued: 2, Running: 1}
}

// add puts a queued run in place.
func (f *fakePlane) add(id, tenant string) *run.Record {
	spec := run.Spec{ID: id, Agent: "echo", Tenant: tenant, Priority: 50, CreatedAt: instant, Input: run.Payload{Inline: json.RawMessage(`{"a":1}`)}}
	r := run.New(spec, run.Event{Type: run.EvSubmitted, At: instant, Actor: "test"})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs[id] = r
	f.order = append(f.order, id)
	return r
}

// move writes events to a run and tells the watchers.
func (f *fakePlane) move(id string, events ...run.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.runs[id].Clone()
	for i := range events {
		events[i].At = max(events[i].At, r.UpdatedAt+1000)
		if err := run.Decide(r, &events[i]); err != nil {
			panic(err)
		}
		events[i] = run.Evolve(r, events[i])
	}
	f.runs[id] = r
	close(f.changed)
	f.changed = make(chan struct{})
	for ch, followed := range f.follows {
		if followed == id {
			signal(ch)
		}
	}
	for ch := range f.watchers {
		select {
		case ch <- control.Change{Run: r, Events: events}:
		default:
			close(ch)
			delete(f.watchers, ch)
		}
	}
}

var (
	assigned  = run.Event{Type: run.EvAssigned, Attempt: 1, Target: "local", Worker: "w1"}
	started   = run.Event{Type: run.EvStarted, Attempt: 1}
	succeeded = run.Event{Type: run.EvSucceeded, Attempt: 1, Output: &run.Payload{Inline: json.RawMessage(`{"ok":  true}`)}, Usage: &run.Usage{InputTokens: 5, OutputTokens: 2, USD: 0.01}}
)

func (f *fakePlane) finish(id string) { f.move(id, assigned, started, succeeded) }

// cutWatchers closes every watch, as for one that is too slow.
func (f *fakePlane) cutWatchers() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.watchers {
		close(ch)
		delete(f.watchers, ch)
	}
}

func (f *fakePlane) Ready() error          { return f.ready }
func (f *fakePlane) Health() (bool, int64) { return true, 3 }
func (f *fakePlane) Elsewhere() string     { return f.elsewhere }

func (f *fakePlane) Stats(window time.Duration, agent, tenant string) control.Stats {
	s := f.stats
	s.Window = window
	return s
}

func (f *fakePlane) Submit(ctx context.Context, asked []control.Submission) []control.Submitted {
	f.contexts = append(f.contexts, ctx.Err())
	if f.panics {
		panic("secret of the plane")
	}
	out := make([]control.Submitted, len(asked))
	for i, q := range asked {
		f.mu.Lock()
		f.submitted = append(f.submitted, q)
		id, known := f.byKey[q.Tenant+"/"+q.Key]
		n := len(f.runs)
		f.mu.Unlock()
		switch {
		case f.refuse != nil:
			out[i].Err = f.refuse
		case f.objects["Agent/"+q.Agent].Object == nil:
			out[i].Err = &control.Refusal{Code: control.CodeNotFound, Detail: "there is no agent " + q.Agent}
		case known && q.Key != "" && string(q.Input) != string(f.runs[id].Input.Inline):
			out[i].Err = &control.Refusal{Code: control.CodeConflict, Detail: "key " + q.Key + " was used with another body"}
		case known && q.Key != "":
			out[i] = control.Submitted{Run: f.runs[id], Existed: true}
		default:
			id := "run" + strconv.Itoa(n+1)
			r := f.add(id, q.Tenant)
			r.Input = run.Payload{Inline: q.Input}
			r.Key = q.Key
			f.mu.Lock()
			f.byKey[q.Tenant+"/"+q.Key] = id
			f.mu.Unlock()
			out[i].Run = r
		}
	}
	return out
}

func missing(what, id string) error {
	return &control.Refusal{Code: control.CodeNotFound, Detail: fmt.Sprintf("there is no %s %s", what, id)}
}

func (f *fakePlane) Get(_ context.Context, id string) (*run.Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r, ok := f.runs[id]; ok {
		return r, nil
	}
	return nil, missing("run", id)
}

func (f *fakePlane) Await(ctx context.Context, id string, timeout time.Duration) (*run.Record, error) {
	if f.awaiting != nil {
		f.awaiting <- struct{}{}
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		f.mu.Lock()
		r, changed := f.runs[id], f.changed
		f.mu.Unlock()
		if r.State.Terminal() {
			return r, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return r, nil
		case <-ctx.Done():
			return r, nil
		}
	}
}

func (f *fakePlane) List(_ context.Context, q control.Filter, limit int, token string) (control.RunPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var page control.RunPage
	skip := token != ""
	for _, id := range slices.Backward(f.order) {
		r := f.runs[id]
		if skip {
			skip = id != token
			continue
		}
		if q.Parent != "" && r.Parent != q.Parent || q.Workflow != "" && r.Kind != run.KindWorkflow || cmp.Or(q.Agent, q.Workflow, r.Agent) != r.Agent || q.Tenant != "" && r.Tenant != q.Tenant || q.Tenants != nil && !slices.Contains(q.Tenants, r.Tenant) ||
			len(q.States) > 0 && !slices.Contains(q.States, r.State) {
			continue
		}
		if len(page.Runs) == limit {
			page.Next = page.Runs[limit-1].ID
			return page, nil
		}
		page.Runs = append(page.Runs, r)
	}
	return page, nil
}

func (f *fakePlane) History(_ context.Context, id string, after int64, limit int) ([]control.HistoryEvent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []control.HistoryEvent
	var state run.State
	for _, e := range f.runs[id].Tail {
		if to := run.StateAfter(state, e.Type); to != "" {
			state = to
		}
		if e.Seq > after && len(out) < limit {
			out = append(out, control.HistoryEvent{Event: e, State: state})
		}
	}
	return out, nil
}

func (f *fakePlane) Follow(id string) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.follows[ch] = id
	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.follows, ch)
	}
}

func (f *fakePlane) Watch(_ context.Context, buffer int) (<-chan control.Change, func()) {
	ch := make(chan control.Change, buffer)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers[ch] = struct{}{}
	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, on := f.watchers[ch]; on {
			delete(f.watchers, ch)
			close(ch)
		}
	}
}

func (f *fakePlane) Value(_ context.Context, p run.Payload) (json.RawMessage, error) {
	if p.Ref != "" {
		return json.RawMessage(`"by reference ` + p.Ref + `"`), nil
	}
	return p.Inline, nil
}

func (f *fakePlane) Attempts(ctx context.Context, id string) ([]run.Attempt, error) {
	r, err := f.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return r.Attempts, nil
}

func (f *fakePlane) Tree(ctx context.Context, id string) (control.TreeNode, error) {
	r, err := f.Get(ctx, id)
	if err != nil {
		return control.TreeNode{}, err
	}
	n := control.TreeNode{Run: r}
	for _, c := range f.runs {
		if c.Parent == id {
			n.Children = append(n.Children, control.TreeNode{Run: c})
		}
	}
	return n, nil
}

func (f *fakePlane) Spend(ctx context.Context, id string) (control.FamilySpend, error) {
	r, err := f.Get(ctx, id)
	if err != nil {
		return control.FamilySpend{}, err
	}
	return control.FamilySpend{Usage: r.Usage.Plus(run.Usage{USD: 1, InputTokens: 100}), Runs: 3, More: true}, nil
}

func (f *fakePlane) Logs(_ context.Context, id, after string, limit int) ([]runtime.LogLine, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := 0
	if after != "" {
		var err error
		if from, err = strconv.Atoi(after); err != nil {
			return nil, "", &control.Refusal{Code: control.CodeInvalid, Detail: "no such position"}
		}
	}
	lines := f.logs[id][min(from, len(f.logs[id])):]
	lines = lines[:min(len(lines), limit)]
	return lines, strconv.Itoa(from + len(lines)), nil
}

func (f *fakePlane) log(id, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logs[id] = append(f.logs[id], runtime.LogLine{At: instant, N: 1, Stream: "stderr", Text: text})
}

func (f *fakePlane) Explain(ctx context.Context, id, target string) (control.Explanation, error) {
	r, err := f.Get(ctx, id)
	if err != nil {
		return control.Explanation{}, err
	}
	if target != "" && target != "local" {
		return control.Explanation{}, missing("target", target)
	}
	return control.Explanation{
		Run: r, Chosen: "local", DecidedAt: instant, Story: []string{"it <b>waits</b> for a slot"},
		Candidates: []placement.Candidate{{Target: "local", Refusals: []placement.Refusal{{Filter: "room", Verdict: placement.Verdict{Reason: placement.NoFreeSlot, Message: "all 4 slots are in use"}}}}},
		Queue:      &control.QueuePosition{Position: 2, Ahead: 1, Total: 5, Limit: "a slot"},
		Asks: []control.Ask{
			{Run: id, Owner: "group:finance", Receipt: &run.Receipt{ID: "rc1", Effect: "charge", Run: "other"}},
			{Run: id, Owner: "role:operator", Gate: &run.Gate{ID: "g1", Title: "Try again?"}},
		},
	}, nil
}

func (f *fakePlane) Cancel(ctx context.Context, id string, q control.CancelRequest) (*run.Record, error) {
	f.cancels = append(f.cancels, q)
	r, err := f.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	e := run.Event{Type: run.EvCancelRequested, Actor: q.Actor}
	if err := run.Decide(r, &e); err != nil {
		return nil, err
	}
	f.move(id, e)
	return f.Get(ctx, id)
}

func (f *fakePlane) PreviewCancel(ctx context.Context, id string) (control.CancelPreview, error) {
	r, err := f.Get(ctx, id)
	return control.CancelPreview{Run: r, Unknown: []run.Receipt{f.receipts["rc1"]}}, err
}

func (f *fakePlane) RetryFrom(ctx context.Context, id string, q control.RetryRequest) control.Submitted {
	if q.From != "" && q.From != "check" {
		return control.Submitted{Err: &control.Refusal{Code: control.CodeInvalid, Detail: "has not been at stage " + q.From}}
	}
	f.mu.Lock()
	earlier := f.runs[f.byKey[id+"/"+q.Key]]
	f.mu.Unlock()
	if q.Key != "" && earlier != nil {
		return control.Submitted{Run: earlier, Existed: true}
	}
	r, err := f.Retry(ctx, id, q.Input, q.Actor)
	if err == nil && q.Key != "" {
		f.mu.Lock()
		f.byKey[id+"/"+q.Key] = r.ID
		f.mu.Unlock()
	}
	return control.Submitted{Run: r, Err: err}
}

func (f *fakePlane) Retry(ctx context.Context, id string, input json.RawMessage, actor string) (*run.Record, error) {
	r, err := f.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if !r.State.Terminal() {
		return nil, &run.StateError{Run: id, State: r.State, Event: "retried"}
	}
	again := f.add(id+"r", r.Tenant)
	again.RetryOf = id
	return again, nil
}

func (f *fakePlane) Suspend(ctx context.Context, id, actor string) (*run.Record, error) {
	f.move(id, run.Event{Type: run.EvSuspended, Actor: actor})
	return f.Get(ctx, id)
}

func (f *fakePlane) Resume(ctx context.Context, id, actor string) (*run.Record, error) {
	r, _ := f.Get(ctx, id)
	if r.State != run.Suspended {
		return nil, &run.StateError{Run: id, State: r.State, Event: run.EvResumed}
	}
	f.move(id, run.Event{Type: run.EvResumed, Actor: actor})
	return f.Get(ctx, id)
}

func (f *fakePlane) Signal(ctx context.Context, id, name, key string, payload json.RawMessage, actor string) (*run.Record, error) {
	f.move(id, run.Event{Type: run.EvSignaled, Actor: actor, Signal: &run.Signal{Name: name, Key: key, Payload: run.Payload{Inline: payload}}})
	return f.Get(ctx, id)
}

func (f *fakePlane) Score(ctx context.Context, id string, score float64, by, comment string) (*run.Record, error) {
	f.move(id, run.Event{Type: run.EvScored, Actor: by, Score: &score, Message: comment})
	return f.Get(ctx, id)
}

func (f *fakePlane) Receipts(_ context.Context, id string) ([]run.Receipt, error) {
	var out []run.Receipt
	for _, r := range f.receipts {
		if r.Run == id {
			out = append(out, r)
		}
	}
	return out, nil
}

func (f *fakePlane) UndoFailedReceipts(context.Context, int, string) ([]run.Receipt, string, error) {
	return []run.Receipt{{ID: "rc7", Tenant: "default", Run: "b", Effect: "charge", State: run.ReceiptDone, UndoFailed: true}}, "", nil
}

func (f *fakePlane) UnknownReceipts(context.Context, int, string) ([]run.Receipt, string, error) {
	var out []run.Receipt
	for _, r := range f.receipts {
		out = append(out, r)
	}
	return out, "next", nil
}

func (f *fakePlane) Receipt(_ context.Context, id string) (run.Receipt, error) {
	if r, ok := f.receipts[id]; ok {
		return r, nil
	}
	return run.Receipt{}, missing("receipt", id)
}

func (f *fakePlane) Resolve(_ context.Context, id string, happened bool, result json.RawMessage, by string) (run.Receipt, error) {
	f.resolved = append(f.resolved, map[bool]string{true: "yes", false: "no"}[happened]+" by "+by)
	r := f.receipts[id]
	r.State, r.ResolvedBy, r.Result = run.ReceiptDone, by, run.Payload{Inline: result}
	if !happened {
		r.State = run.ReceiptAbandoned
	}
	return r, nil
}

func (f *fakePlane) Apply(_ context.Context, objects []fleet.Object, o control.ApplyOptions) ([]control.Applied, error) {
	f.applied = append(f.applied, o)
	var out []control.Applied
	for _, x := range objects {
		out = append(out, control.Applied{Kind: x.Kind(), Name: x.Name(), Action: "created"})
	}
	return out, nil
}

func (f *fakePlane) Declared(_ context.Context, kind string) ([]control.Declared, error) {
	var out []control.Declared
	for id, d := range f.objects {
		if strings.HasPrefix(id, kind+"/") {
			out = append(out, d)
		}
	}
	return out, nil
}

func (f *fakePlane) DeclaredOne(_ context.Context, kind, name string) (control.Declared, error) {
	if d, ok := f.objects[kind+"/"+name]; ok {
		return d, nil
	}
	return control.Declared{}, missing(strings.ToLower(kind), name)
}

func (f *fakePlane) Delete(ctx context.Context, kind, name string, revision int64, _ string) error {
	f.deleted = append(f.deleted, revision)
	d, err := f.DeclaredOne(ctx, kind, name)
	if err == nil && revision != 0 && revision != d.Revision {
		return &control.Refusal{Code: control.CodeStale, Detail: "it has changed", Current: strconv.FormatInt(d.Revision, 10)}
	}
	return err
}

func (f *fakePlane) PauseAgent(_ context.Context, name string, paused bool, _ string) error {
	d := f.objects["Agent/"+name]
	d.Paused = paused
	f.objects["Agent/"+name] = d
	return nil
}

func (f *fakePlane) Begin(_ context.Context, b control.Beginning) (control.Begun, error) {
	if r := f.runs[b.Key]; r != nil && r.State.Terminal() {
		return control.Begun{Run: r}, nil
	}
	a := f.assignment("begun1", 1)
	if b.Execution != "" {
		a.Index, a.Completions = &b.Index, b.Completions
	}
	return control.Begun{Assignment: &a}, nil
}

func (f *fakePlane) Claim(_ context.Context, c control.Claim) (runtime.Assignment, error) {
	f.claims = append(f.claims, c)
	switch {
	case c.Ticket != "good":
		return runtime.Assignment{}, &control.Refusal{Code: control.CodeForbidden, Detail: "ticket is not valid"}
	case c.May != nil && !c.May("echo"):
		return runtime.Assignment{}, &control.Refusal{Code: control.CodeForbidden, Detail: "not of this agent"}
	case c.Attempt != "claimed1.1":
		return runtime.Assignment{}, fmt.Errorf("claim: %w", run.ErrFenced)
	}
	return f.assignment("claimed1", 1), nil
}

func (f *fakePlane) Undelivered(_ context.Context, attempt, ticket, why string) error {
	f.undelivered = append(f.undelivered, attempt+" "+why)
	return nil
}

func (f *fakePlane) Tick(context.Context) bool { return true }

func (f *fakePlane) assignment(id string, n int) runtime.Assignment {
	d := f.objects["Agent/echo"]
	return runtime.Assignment{
		Run: id, N: n, Agent: d.Object.(*fleet.Agent), Tenant: "default", Unit: id, Mode: runtime.ModeRun, Token: "token-" + id,
		Input: json.RawMessage(`{"a":1}`), Deadline: instant + 60_000,
		Steps: []runtime.Step{{Name: "parse", Seq: 1, Result: json.RawMessage(`3`)}, {Name: "send", Seq: 2, Error: json.RawMessage(`{"message":"no"}`)}},
	}
}

func (f *fakePlane) Lease(ctx context.Context, q control.LeaseRequest) (control.LeaseResponse, error) {
	f.mu.Lock()
	f.leased = append(f.leased, q)
	f.mu.Unlock()
	out := control.LeaseResponse{BeatEvery: 5 * time.Second}
	var timeout <-chan time.Time
	if q.Wait > 0 {
		timer := time.NewTimer(q.Wait)
		defer timer.Stop()
		timeout = timer.C
	} else {
		closed := make(chan time.Time)
		close(closed)
		timeout = closed
	}
	select {
	case a := <-f.leases:
		out.Leases = append(out.Leases, a)
		return out, nil
	default:
	}
	select {
	case a := <-f.leases:
		out.Leases = append(out.Leases, a)
	case <-timeout:
	case <-ctx.Done():
		return out, ctx.Err()
	}
	return out, nil
}

func (f *fakePlane) Beat(_ context.Context, b control.WorkerBeat) (control.WorkerStanding, error) {
	f.beats = append(f.beats, b)
	return control.WorkerStanding{Attempts: []control.AttemptStanding{{ID: "run1.1", Deadline: instant, Cancel: true, CancelReason: run.CanceledByRequest}}}, nil
}

func (f *fakePlane) Verify(token string) (control.Grant, error) {
	if g, ok := f.grants[token]; ok {
		return g, nil
	}
	if token == "expired" {
		return control.Grant{}, errors.New("attempt token is not valid: it has expired")
	}
	return control.Grant{}, errors.New("attempt token is not valid: not signed by this control plane")
}

func (f *fakePlane) Report(ctx context.Context, reports []runtime.Report) []runtime.Result {
	f.contexts = append(f.contexts, ctx.Err())
	f.reports = append(f.reports, reports...)
	out := make([]runtime.Result, len(reports))
	for i, r := range reports {
		out[i] = f.reportTo(r)
	}
	return out
}

func (f *fakePlane) Children(_ context.Context, c control.ChildCalls) ([]control.Child, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called = append(f.called, c)
	var out []control.Child
	for i := range c.Calls {
		out = append(out, control.Child{Run: "child" + strconv.Itoa(c.First+i), Item: c.First + i})
	}
	return out, nil
}

func (f *fakePlane) ChildrenOf(_ context.Context, id string, n int, step, pageToken string, limit int) (control.ChildPage, error) {
	return control.ChildPage{Next: "2", Children: []control.ChildResult{
		{Item: 0, Run: id + "x", State: run.Succeeded, Output: json.RawMessage(`{"a":1}`)},
		{Item: 1, Run: step, State: run.Failed, Reason: run.NonRetryable, Code: "C", Message: pageToken + "/" + strconv.Itoa(limit)},
	}}, nil
}

func (f *fakePlane) BeginEffect(_ context.Context, b control.EffectBegin) (control.EffectAnswer, error) {
	f.begun = append(f.begun, b)
	return control.EffectAnswer{Answer: "proceed", ID: "rc9", Until: instant + 1000, OnUnknown: "ask"}, nil
}

func (f *fakePlane) EndEffect(_ context.Context, e control.EffectEnd) (runtime.Result, error) {
	f.ended = append(f.ended, e)
	return runtime.Result{Deadline: instant}, nil
}
