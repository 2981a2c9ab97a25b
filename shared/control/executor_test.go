package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
)

// executor is a runtime that remembers what it was told.
type executor struct {
	mu      sync.Mutex
	started []runtime.Assignment
	stopped map[string]time.Duration // by attempt, the grace
	ended   map[string]bool
	refuse  error
}

func (x *executor) Start(_ context.Context, a runtime.Assignment) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.refuse != nil {
		return x.refuse
	}
	x.started = append(x.started, a)
	return nil
}

func (x *executor) Stop(_ context.Context, id string, n int, _ run.Reason, grace time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stopped[runtime.AttemptID(id, n)] = grace
}

func (x *executor) Ended(id string, n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended[runtime.AttemptID(id, n)] = true
}

func (x *executor) Lost(string) bool                           { return false }
func (x *executor) Forget(string)                              {}
func (x *executor) Close(context.Context, time.Duration) error { return nil }

// local is a house with a local target of some slots and an executor behind it.
func localHouse(t *testing.T, slots int, agents ...fleet.Object) (*house, *executor) {
	t.Helper()
	x := &executor{stopped: make(map[string]time.Duration), ended: make(map[string]bool)}
	h := &house{t: t, store: memory.Open(), now: began, runtimes: map[fleet.Runtime]runtime.Runtime{fleet.RuntimeLocal: x}}
	h.open()
	target := &fleet.Target{Meta: fleet.Meta{Name: "here"}, Runtime: fleet.RuntimeLocal, Shapes: fleet.Shapes(), Capacity: fleet.Capacity{Runs: slots}}
	if _, err := h.p.Apply(t.Context(), append(agents, target), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	return h, x
}

func withCommand(a *fleet.Agent) {
	a.Run = fleet.Run{Command: []string{"agent"}, Protocol: fleet.Stdio}
}

// The turn before was a worker's; this one is of a runtime that fetches nothing.
func TestASnapshotDoesNotUndoATurnThatNoWorkerFetched(t *testing.T) {
	h, x := localHouse(t, 1, agentNamed("book", withCommand, func(a *fleet.Agent) { a.Shape = fleet.Instance }))
	h.submit(Submission{Agent: "book", Session: "other"}) // takes the local slot
	h.lease("w1", 1, "book")
	first := h.submit(Submission{Agent: "book", Session: "s"})
	if got := h.lease("w1", 1, "book"); len(got) != 1 || got[0].Run != first.ID {
		t.Fatalf("the worker got %+v", got)
	}
	beat := WorkerBeat{Worker: "w1", Agents: []string{"book"}, Slots: 10, Draining: true, Attempts: []string{runtime.AttemptID(first.ID, 1)}}
	if _, err := h.p.Beat(t.Context(), beat); err != nil {
		t.Fatal(err)
	}
	h.report(runtime.Report{Type: runtime.Completed, Run: first.ID, N: 1, Worker: "w1", Session: json.RawMessage(`1`)})
	h.report(runtime.Report{Type: runtime.Completed, Run: x.started[0].Run, N: 1})
	second := h.submit(Submission{Agent: "book", Session: "s"})
	if h.report(runtime.Report{Type: runtime.Completed, Run: second.ID, N: 1, Session: json.RawMessage(`2`)}); len(x.started) != 2 {
		t.Fatalf("%d starts", len(x.started))
	}
	beat.Attempts, beat.Sessions = nil, map[string]json.RawMessage{"s": json.RawMessage(`1.5`)}
	if _, err := h.p.Beat(t.Context(), beat); err != nil {
		t.Fatal(err)
	}
	if got, _, err := h.p.session(t.Context(), "default/book/s"); err != nil || string(got) != `2` {
		t.Fatalf("session is %s, %v, want 2", got, err)
	}
}

func TestARefusedStartBacksOffAndSpendsNothing(t *testing.T) {
	h, x := localHouse(t, 2, agentNamed("echo", withCommand))
	x.refuse = fmt.Errorf("no such program: %w", runtime.ErrRefused)
	r := h.submit(Submission{Agent: "echo"})
	wantState(t, h.get(r.ID), run.Backoff, run.InfrastructureFailure)
	if got := h.get(r.ID); got.Spent != 0 || got.Returned != 1 {
		t.Fatalf("spent %d, returned %d", got.Spent, got.Returned)
	}
	x.refuse = nil
	h.pass(5 * time.Second)
	if len(x.started) != 1 || x.started[0].N != 2 || x.started[0].Token == "" {
		t.Fatalf("started %+v", x.started)
	}
}

func TestACancelReachesTheRuntimeWithItsGrace(t *testing.T) {
	h, x := localHouse(t, 2, agentNamed("echo", withCommand))
	r := h.submit(Submission{Agent: "echo"})
	h.report(runtime.Report{Type: runtime.Started, Run: r.ID, N: 1})
	if _, err := h.p.Cancel(t.Context(), r.ID, CancelRequest{Grace: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if grace, ok := x.stopped[r.ID+".1"]; !ok || grace != 3*time.Second {
		t.Fatalf("stopped %v", x.stopped)
	}
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Class: run.ClassCanceled, Ended: true})
	wantState(t, h.get(r.ID), run.Canceled, run.CanceledByRequest)
}

func TestAttemptsOfADeadLocalServerAreGivenBack(t *testing.T) {
	h, x := localHouse(t, 2, agentNamed("echo", withCommand))
	r := h.submit(Submission{Agent: "echo"})
	h.report(runtime.Report{Type: runtime.Started, Run: r.ID, N: 1})
	h.open() // kill -9
	got := h.get(r.ID)
	if got.State != run.Assigned || got.Attempt != 2 || got.Spent != 0 || !got.Attempts[0].Sure {
		t.Fatalf("run is %s in attempt %d, spent %d, %+v", got.State, got.Attempt, got.Spent, got.Attempts)
	}
	if len(x.started) != 2 || x.started[1].N != 2 {
		t.Fatalf("started %+v", x.started)
	}
}

func TestSuspendStopsAnAttemptAndResumeWaitsUntilItIsSurelyDead(t *testing.T) {
	h, x := localHouse(t, 2, agentNamed("echo", withCommand))
	r := h.submit(Submission{Agent: "echo"})
	h.report(runtime.Report{Type: runtime.Started, Run: r.ID, N: 1})
	if _, err := h.p.Suspend(t.Context(), r.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	wantState(t, h.get(r.ID), run.Suspended, run.SuspendedByRequest)
	if !x.ended[r.ID+".1"] {
		t.Fatal("the runtime was not told")
	}
	if _, err := h.p.Resume(t.Context(), r.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	h.settle()
	if got := h.get(r.ID); got.State != run.Held || got.Spent != 0 {
		t.Fatalf("run is %s, spent %d", got.State, got.Spent)
	}
	h.pass(26 * time.Second)
	wantState(t, h.get(r.ID), run.Assigned, "")
}

func TestAnEffectThatACrashLeftOpenIsNeverRepeatedBlindly(t *testing.T) { // case F24
	h, _ := localHouse(t, 2, agentNamed("mailer", withCommand, func(a *fleet.Agent) {
		a.Effects = fleet.Effects{OnUnknown: fleet.UnknownReconcile, Settle: fleet.Duration(5 * time.Second)}
	}))
	r := h.submit(Submission{Agent: "mailer"})
	h.report(runtime.Report{Type: runtime.Started, Run: r.ID, N: 1})
	begin := func(n int, nonce, found string) EffectAnswer {
		t.Helper()
		a, err := h.p.BeginEffect(t.Context(), EffectBegin{Run: r.ID, N: n, Effect: "mail", RequestHash: "h", Nonce: nonce, Reconciled: found})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := begin(1, "a", ""); a.Answer != "proceed" {
		t.Fatalf("first call: %+v", a)
	}
	h.open() // kill -9 between the action and its receipt
	h.report(runtime.Report{Type: runtime.Started, Run: r.ID, N: 2})
	if a := begin(2, "b", ""); a.Answer != "wait" || a.Until != run.At(h.now.Add(5*time.Second)) {
		t.Fatalf("while it may still take effect: %+v", a)
	}
	h.pass(6 * time.Second)
	a := begin(2, "b", "")
	if a.Answer != "unknown" || a.OnUnknown != "reconcile" {
		t.Fatalf("afterwards: %+v", a)
	}
	if open, _, err := h.p.UnknownReceipts(t.Context(), 10, ""); err != nil || len(open) != 1 || open[0].ID != a.ID {
		t.Fatalf("unknown receipts: %+v, %v", open, err)
	}
	if _, err := h.p.EndEffect(t.Context(), EffectEnd{Run: r.ID, N: 2, Effect: "mail", Value: json.RawMessage(`"sent"`), Reconciled: true}); err != nil {
		t.Fatal(err)
	}
	if a := begin(2, "c", ""); a.Answer != "done" || string(a.Value) != `"sent"` {
		t.Fatalf("after the hook found it: %+v", a)
	}
	if open, _, err := h.p.UnknownReceipts(t.Context(), 10, ""); err != nil || len(open) != 0 {
		t.Fatalf("unknown receipts: %+v, %v", open, err)
	}
}

func TestAPersonResolvesAnUnknownEffectAndTheRetryMeetsIt(t *testing.T) {
	h, _ := localHouse(t, 2, agentNamed("mailer", withCommand, func(a *fleet.Agent) {
		a.Effects = fleet.Effects{OnUnknown: fleet.UnknownFail, Settle: fleet.Duration(time.Second)}
	}))
	r := h.submit(Submission{Agent: "mailer"})
	h.report(runtime.Report{Type: runtime.Started, Run: r.ID, N: 1})
	a, err := h.p.BeginEffect(t.Context(), EffectBegin{Run: r.ID, N: 1, Effect: "mail", RequestHash: "h", Nonce: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.p.Resolve(t.Context(), a.ID, true, nil, "ann"); err == nil {
		t.Fatal("an effect that may be under way was resolved")
	}
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Ended: true})
	h.pass(2 * time.Second)
	if got, err := h.p.Resolve(t.Context(), a.ID, true, json.RawMessage(`"by hand"`), "ann"); err != nil || got.State != run.ReceiptDone || got.ResolvedBy != "ann" {
		t.Fatalf("resolve: %+v, %v", got, err)
	}
	again := await(h, func() *run.Record {
		x, err := h.p.Retry(t.Context(), r.ID, nil, "ann")
		if err != nil {
			t.Error(err)
		}
		return x
	})
	if again.RetryOf != r.ID || again.ID == r.ID {
		t.Fatalf("retry made %+v", again.Spec)
	}
	h.report(runtime.Report{Type: runtime.Started, Run: again.ID, N: 1})
	b, err := h.p.BeginEffect(t.Context(), EffectBegin{Run: again.ID, N: 1, Effect: "mail", RequestHash: "h", Nonce: "b"})
	if err != nil || b.ID != a.ID || b.Answer != "done" || string(b.Value) != `"by hand"` {
		t.Fatalf("the retry is told %+v, %v", b, err)
	}
}

func TestUnschedulableRunsWakeWhenATargetFits(t *testing.T) {
	h, x := localHouse(t, 2, agentNamed("gpu", withCommand, func(a *fleet.Agent) { a.Needs.Accelerator = "nvidia-l4" }))
	r := h.submit(Submission{Agent: "gpu"})
	wantState(t, h.get(r.ID), run.Unschedulable, run.NoEligibleTarget)
	before := h.get(r.ID).Seq
	h.pass(6 * time.Minute)
	if h.get(r.ID).Seq != before {
		t.Fatal("the same diagnosis was written again")
	}
	e, err := h.p.Explain(t.Context(), r.ID, "here")
	if err != nil || len(e.Candidates) != 1 || len(e.Candidates[0].Refusals) == 0 {
		t.Fatalf("why not here: %+v, %v", e.Candidates, err)
	}
	fit := &fleet.Target{Meta: fleet.Meta{Name: "gpus"}, Runtime: fleet.RuntimeLocal, Shapes: fleet.Shapes(), Accelerator: "nvidia-l4", Capacity: fleet.Capacity{Runs: 1}}
	if _, err := h.p.Apply(t.Context(), fleetOf(fit), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	if got := h.get(r.ID); got.State != run.Assigned || got.Target != "gpus" || len(x.started) != 1 {
		t.Fatalf("run is %s on %q", got.State, got.Target)
	}
}

func TestABatchOfReportsIsOneCommit(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	h.lease("w1", 1, "echo")
	var reports []runtime.Report
	for range 5 {
		r := h.submit(Submission{Agent: "echo"})
		reports = append(reports,
			runtime.Report{Type: runtime.Started, Run: r.ID, N: 1, Worker: "w1"},
			runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Worker: "w1"},
			runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Worker: "w1"})
	}
	h.lease("w1", 10, "echo")
	counted := &counting{Store: h.p.store}
	h.p.store = counted
	for i, res := range h.p.Report(t.Context(), reports) {
		if twice := i%3 == 2; twice != errors.Is(res.Err, run.ErrFenced) {
			t.Errorf("report %d: %v", i, res.Err)
		}
	}
	if counted.commits != 1 || counted.units != 5 {
		t.Errorf("%d commits of %d units, want 1 of 5", counted.commits, counted.units)
	}
	h.settle()
}

// counting counts commits.
type counting struct {
	store.Store
	commits, units int
}

func (c *counting) Commit(ctx context.Context, units []store.Unit) []error {
	c.commits++
	c.units += len(units)
	return c.Store.Commit(ctx, units)
}

func TestAFloodBeyondTheQueuesMemoryKeepsNoOtherTenantOutAndNoneOfItsOwnForEver(t *testing.T) {
	h := &house{t: t, store: memory.Open(), now: began, maxQueue: 10}
	h.open()
	if _, err := h.p.Apply(t.Context(), fleetOf(agentNamed("echo")), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	h.lease("w1", 1, "echo")
	end := func() (tenants []string) {
		for _, l := range h.lease("w1", 1, "echo") {
			h.pass(time.Second)
			h.report(runtime.Report{Type: runtime.Completed, Run: l.Run, N: l.N})
			tenants = append(tenants, l.Tenant)
		}
		h.settle()
		return tenants
	}
	early := make(map[string]bool)
	for range 40 {
		h.pass(time.Millisecond)
		early[h.submit(Submission{Agent: "echo", Tenant: "flood"}).ID] = true
	}
	h.submit(Submission{Agent: "echo", Tenant: "few"})
	// 1. The tenant with one run has its turn at once, although the memory is full.
	var seen []string
	for range 12 { // ten are placed already
		seen = append(seen, end()...)
	}
	if !slices.Contains(seen, "few") {
		t.Errorf("of the first turns %v none is of the tenant that has one run", seen)
	}
	// 2. The flood goes on, one for one: nobody of those that wait in the store is passed over by what comes later.
	for turn := 0; turn < 60; turn++ {
		h.pass(time.Millisecond)
		h.submit(Submission{Agent: "echo", Tenant: "flood"})
		end()
	}
	waiting := 0
	for id := range early {
		if !h.get(id).State.Terminal() {
			waiting++
		}
	}
	if waiting > 0 {
		t.Errorf("%d of the first 40 runs wait still after 72 turns", waiting)
	}
}

func TestRunsThatFindNoPlaceInTheQueuesMemoryAreReadAgainFromTheStore(t *testing.T) {
	h := &house{t: t, store: memory.Open(), now: began, maxQueue: 4}
	h.open()
	if _, err := h.p.Apply(t.Context(), fleetOf(agentNamed("echo")), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := h.p.PauseAgent(t.Context(), "echo", true, "test"); err != nil {
		t.Fatal(err)
	}
	h.lease("w1", 1, "echo")
	left := make(map[string]bool)
	for range 30 {
		left[h.submit(Submission{Agent: "echo"}).ID] = true
	}
	if n := h.p.ix.queue.Len(); n != 4 {
		t.Fatalf("the queue holds %d, want 4", n)
	}
	if err := h.p.PauseAgent(t.Context(), "echo", false, "test"); err != nil {
		t.Fatal(err)
	}
	for turn := 0; len(left) > 0; turn++ {
		if turn == 60 {
			t.Fatalf("%d runs never came back into the queue", len(left))
		}
		h.settle()
		for _, l := range h.lease("w1", 10, "echo") {
			h.report(runtime.Report{Type: runtime.Completed, Run: l.Run, N: l.N})
			delete(left, l.Run)
		}
	}
}

func TestAStartThatIsRefusedAgainAndAgainFailsTheRun(t *testing.T) {
	h, x := localHouse(t, 2, agentNamed("echo", withCommand))
	x.refuse = fmt.Errorf("no such program: %w", runtime.ErrRefused)
	r := h.submit(Submission{Agent: "echo"})
	for range 20 {
		h.pass(2 * time.Minute)
	}
	got := h.get(r.ID)
	wantState(t, got, run.Failed, run.StartFailed)
	if got.Attempt != maxStartFailures || got.Spent != 0 {
		t.Fatalf("%d attempts, %d spent", got.Attempt, got.Spent)
	}
}

func TestAnAttemptThatParksInAStepThatHasEndedFails(t *testing.T) {
	h := newHouse(t, agentNamed("loops"))
	r := h.submit(Submission{Agent: "loops"})
	for n := 1; n <= 2; n++ {
		h.lease("w1", 1, "loops")
		h.report(runtime.Report{Type: runtime.Parked, Run: r.ID, N: n, Park: &run.Park{On: run.OnTimer, Step: "a", Until: run.At(began.Add(-time.Hour))}})
	}
	if got := h.get(r.ID); got.State != run.Failed || got.Reason != run.NonRetryable || got.Attempt != 2 {
		t.Fatalf("run is %s (%s) in attempt %d", got.State, got.Reason, got.Attempt)
	}
}

func TestTheCacheIsBoundedInBytes(t *testing.T) {
	c := newCache(1000)
	big := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	for i := range 200 {
		c.put(&run.Record{Spec: run.Spec{ID: fmt.Sprint(i), Input: run.Payload{Inline: big}}, State: run.Queued, Seq: 1})
	}
	if c.size > maxCacheBytes || len(c.m) < 50 {
		t.Fatalf("%d records of %d bytes", len(c.m), c.size)
	}
	for id := range c.m {
		c.drop(id)
	}
	if c.size != 0 {
		t.Fatalf("%d bytes are left of nothing", c.size)
	}
	for i := range 2 * lastAtRest {
		c.put(&run.Record{Spec: run.Spec{ID: fmt.Sprint(i)}, State: run.Succeeded, Seq: 1})
	}
	if len(c.m) != lastAtRest {
		t.Fatalf("%d finished runs are kept, want %d", len(c.m), lastAtRest)
	}
}
