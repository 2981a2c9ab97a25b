package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

func TestARunGoesFromSubmitToResult(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	r := h.submit(Submission{Agent: "echo", Input: json.RawMessage(`{"a":1}`)})
	wantState(t, h.get(r.ID), run.Unschedulable, run.NoEligibleTarget)
	leases := h.lease("w1", 5, "echo")
	if len(leases) != 1 || string(leases[0].Input) != `{"a":1}` || leases[0].N != 1 {
		t.Fatalf("leases = %+v", leases)
	}
	if g, err := h.p.Verify(leases[0].Token); err != nil || g.Run != r.ID || g.N != 1 {
		t.Fatalf("token grants %+v, %v", g, err)
	}
	res := h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Worker: "w1", Output: json.RawMessage(`{"b":2}`)})
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	got := h.get(r.ID)
	wantState(t, got, run.Succeeded, "")
	if string(got.Output.Inline) != `{"b":2}` || got.Spent != 1 {
		t.Fatalf("output %s, spent %d", got.Output.Inline, got.Spent)
	}
	if n := h.p.ix.world.Runs(); n != 0 {
		t.Fatalf("%d slots in use afterwards", n)
	}
}

func TestAResultThatIsToldAgainIsDone(t *testing.T) {
	large := json.RawMessage(`"` + strings.Repeat("x", run.MaxInline) + `"`)
	for name, tt := range map[string]struct {
		first, again json.RawMessage
		fenced       bool
	}{
		"the same output":       {first: json.RawMessage(`{"b":2}`), again: json.RawMessage(`{"b":2}`)},
		"the same large output": {first: large, again: large},
		"the same, of nothing":  {},
		"another output":        {first: json.RawMessage(`{"b":2}`), again: json.RawMessage(`{"b":3}`), fenced: true},
		"another large output":  {first: large, again: json.RawMessage(strings.ToUpper(string(large))), fenced: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("echo"))
			r := h.submit(Submission{Agent: "echo"})
			h.lease("w1", 5, "echo")
			if res := h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Output: tt.first}); res.Err != nil {
				t.Fatal(res.Err)
			}
			seq := h.get(r.ID).Seq
			if res := h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Output: tt.again}); errors.Is(res.Err, run.ErrFenced) != tt.fenced || !tt.fenced && res.Err != nil {
				t.Errorf("the second time: %v", res.Err)
			}
			if got := h.get(r.ID); got.Seq != seq {
				t.Errorf("%d events, want %d: it changes nothing", got.Seq, seq)
			}
			if res := h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 2, Output: tt.first}); !errors.Is(res.Err, run.ErrFenced) {
				t.Errorf("another attempt: %v", res.Err)
			}
		})
	}
}

func TestAFailedAttemptIsRetriedThenTheRunFails(t *testing.T) {
	h := newHouse(t, agentNamed("echo", func(a *fleet.Agent) { a.Retry.MaxAttempts = 2 }))
	r := h.submit(Submission{Agent: "echo"})
	h.lease("w1", 5, "echo")
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Message: "no"})
	wantState(t, h.get(r.ID), run.Backoff, run.AgentError)
	if res := h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1}); !errors.Is(res.Err, run.ErrFenced) {
		t.Fatalf("a report of an ended attempt gave %v, want fenced", res.Err)
	}
	h.pass(3 * time.Second)
	wantState(t, h.get(r.ID), run.Assigned, "")
	h.lease("w1", 5, "echo")
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 2, Message: "no again"})
	wantState(t, h.get(r.ID), run.Failed, run.BackoffLimitExceeded)
}

func TestTheSameKeyGivesTheSameRunAndAnotherBodyAConflict(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	a := h.submit(Submission{Agent: "echo", Key: "k", Input: json.RawMessage(`{"x":1,"y":2}`)})
	out := await(h, func() []Submitted {
		return h.p.Submit(t.Context(), []Submission{
			{Agent: "echo", Key: "k", Input: json.RawMessage(`{"y":2, "x":1}`)},
			{Agent: "echo", Key: "k", Input: json.RawMessage(`{"x":2}`)},
			{Agent: "echo", Key: "new"}, {Agent: "echo", Key: "new"},
		})
	})
	if out[0].Err != nil || !out[0].Existed || out[0].Run.ID != a.ID {
		t.Errorf("the same request gave %+v", out[0])
	}
	var refusal *Refusal
	if !errors.As(out[1].Err, &refusal) || refusal.Code != CodeConflict {
		t.Errorf("another body gave %v, want a conflict", out[1].Err)
	}
	if out[2].Err != nil || out[3].Err != nil || out[2].Run.ID != out[3].Run.ID || out[2].Existed == out[3].Existed {
		t.Errorf("twice in one call gave %+v and %+v", out[2], out[3])
	}
}

func TestAWorkerThatVanishesLosesItsRuns(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	r := h.submit(Submission{Agent: "echo"})
	h.lease("w1", 5, "echo")
	h.pass(200 * time.Millisecond)
	wantState(t, h.get(r.ID), run.Running, "")
	h.pass(14 * time.Second)
	wantState(t, h.get(r.ID), run.Running, "")
	h.pass(2 * time.Second)
	wantState(t, h.get(r.ID), run.Backoff, run.HeartbeatLost)
	h.pass(2 * time.Second)
	leases := h.lease("w2", 5, "echo")
	if len(leases) != 1 || leases[0].N != 2 {
		t.Fatalf("leases = %+v", leases)
	}
	if res := h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Output: json.RawMessage(`"late"`)}); !errors.Is(res.Err, run.ErrFenced) {
		t.Fatalf("the late report gave %v, want fenced", res.Err)
	}
	h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 2, Output: json.RawMessage(`"in time"`)})
	if got := h.get(r.ID); got.State != run.Succeeded || string(got.Output.Inline) != `"in time"` {
		t.Fatalf("run is %s with %s", got.State, got.Output.Inline)
	}
}

func TestATimedOutAttemptNeverRunsBesideItsSuccessor(t *testing.T) { // case F16
	h := newHouse(t, agentNamed("slow", func(a *fleet.Agent) { a.Timeouts.Attempt = fleet.Duration(5 * time.Second) }))
	r := h.submit(Submission{Agent: "slow"})
	h.lease("w1", 5, "slow")
	beat := func() WorkerStanding {
		s, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"slow"}, Slots: 10, Attempts: []string{r.ID + ".1"}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	h.pass(time.Second)
	if _, err := h.p.BeginEffect(t.Context(), EffectBegin{Run: r.ID, N: 1, Effect: "mail", RequestHash: "h", Nonce: "n"}); err != nil {
		t.Fatalf("begin in time: %v", err)
	}
	h.pass(5 * time.Second)
	if s := beat(); len(s.Attempts) != 1 || !s.Attempts[0].Cancel || s.Attempts[0].CancelReason != run.AttemptTimeout {
		t.Fatalf("the worker is told %+v, want cancel", s)
	}
	if _, err := h.p.EndEffect(t.Context(), EffectEnd{Run: r.ID, N: 1, Effect: "mail"}); !errors.Is(err, run.ErrFenced) {
		t.Fatalf("a commit after the time-out gave %v, want fenced", err)
	}
	for range 4 {
		h.pass(5 * time.Second)
		beat()
		wantState(t, h.get(r.ID), run.Running, "")
	}
	h.pass(6 * time.Second) // grace and lease are over
	wantState(t, h.get(r.ID), run.Backoff, run.AttemptTimeout)
	got := h.get(r.ID)
	if a := got.Current(); a.Class != run.ClassTimeout || a.Sure {
		t.Fatalf("attempt 1 is %+v", a)
	}
}

func TestADeadlineSurvivesARestart(t *testing.T) { // case F39
	for name, c := range map[string]struct{ confirms bool }{
		"an attempt that ends when it is told to": {true},
		"an attempt that does not":                {false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("quiet", func(a *fleet.Agent) { a.Timeouts.Attempt = fleet.Duration(10 * time.Minute) }))
			r := h.submit(Submission{Agent: "quiet", Deadline: h.now.Add(time.Minute)})
			h.lease("w1", 5, "quiet")
			beat := func() WorkerStanding {
				s, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"quiet"}, Slots: 10, Attempts: []string{r.ID + ".1"}})
				if err != nil {
					t.Fatal(err)
				}
				h.settle()
				return s
			}
			for i := range 5 {
				h.pass(10 * time.Second)
				beat()
				if i == 2 {
					h.open()
				}
			}
			h.pass(9 * time.Second)
			if got := h.get(r.ID); got.State.Terminal() {
				t.Fatalf("run is %s before its deadline", got.State)
			}
			h.pass(2 * time.Second)
			if s := beat(); len(s.Attempts) != 1 || !s.Attempts[0].Cancel || s.Attempts[0].CancelReason != run.DeadlineExceeded {
				t.Fatalf("at the deadline the worker is told %+v, want cancel", s)
			}
			if c.confirms {
				h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Class: run.ClassCanceled})
			} else {
				wantState(t, h.get(r.ID), run.Running, "") // it may be alive and holds its slot
				h.pass(26 * time.Second)
			}
			wantState(t, h.get(r.ID), run.Failed, run.DeadlineExceeded)
		})
	}
}

func TestAHeadThatCannotBePlacedDoesNotDelayThoseBehind(t *testing.T) { // case F26
	h := newHouse(t, agentNamed("big", func(a *fleet.Agent) { a.Needs.Slots = 20 }), agentNamed("small"))
	h.lease("w1", 1, "big", "small")
	head := h.submit(Submission{Agent: "big"})
	wantState(t, h.get(head.ID), run.Unschedulable, run.NoEligibleTarget)
	var small []*run.Record
	for range 3 {
		small = append(small, h.submit(Submission{Agent: "small"}))
	}
	for _, r := range small {
		wantState(t, h.get(r.ID), run.Assigned, "")
	}
}

func TestParkedRunsWakeBySignalAndByTimer(t *testing.T) {
	for name, c := range map[string]struct {
		early, late bool
		want        string
	}{
		"a signal that comes while the run waits": {late: true, want: `{"signal":{"ok":true}}`},
		"a signal that came before":               {early: true, want: `{"signal":{"ok":true}}`},
		"no signal within the limit":              {want: `{"timeout":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("waits"))
			r := h.submit(Submission{Agent: "waits"})
			h.lease("w1", 5, "waits")
			signal := func() {
				for range 2 { // the same key delivers once
					if _, err := h.p.Signal(t.Context(), r.ID, "go", "k1", json.RawMessage(`{"ok":true}`), "test"); err != nil {
						t.Fatal(err)
					}
				}
				h.settle()
			}
			if c.early {
				signal()
			}
			h.report(runtime.Report{Type: runtime.Parked, Run: r.ID, N: 1, Park: &run.Park{On: run.OnInput, Step: "wait:go#1", Name: "go", Until: run.At(h.now.Add(time.Hour))}})
			if !c.early {
				wantState(t, h.get(r.ID), run.Waiting, "")
				if n := h.p.ix.world.Runs() + len(h.p.ix.runs); n != 0 {
					t.Fatalf("a parked run holds %d places in memory", n)
				}
			}
			if c.late {
				signal()
			}
			if !c.early && !c.late {
				h.pass(59 * time.Minute)
				wantState(t, h.get(r.ID), run.Waiting, "")
				h.pass(2 * time.Minute)
			}
			leases := h.lease("w1", 5, "waits")
			if len(leases) != 1 || len(leases[0].Steps) != 1 || string(leases[0].Steps[0].Result) != c.want {
				t.Fatalf("leases = %+v, want step %s", leases, c.want)
			}
			if got := h.get(r.ID); got.Spent > 1 || got.Returned != 0 {
				t.Fatalf("parking spent: %d spent, %d returned", got.Spent, got.Returned)
			}
		})
	}
}

func TestStepsAreRecordedOnceAndHandedToTheNextAttempt(t *testing.T) {
	h := newHouse(t, agentNamed("steps"))
	r := h.submit(Submission{Agent: "steps"})
	h.lease("w1", 5, "steps")
	for _, v := range []string{`1`, `2`} {
		if res := h.report(runtime.Report{Type: runtime.StepDone, Run: r.ID, N: 1, Step: &runtime.Step{Name: "a", Result: json.RawMessage(v)}}); res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	h.report(runtime.Report{Type: runtime.StepDone, Run: r.ID, N: 1, Step: &runtime.Step{Name: "b", Result: json.RawMessage(`3`)}})
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1})
	if res := h.report(runtime.Report{Type: runtime.StepDone, Run: r.ID, N: 1, Step: &runtime.Step{Name: "c"}}); !errors.Is(res.Err, run.ErrFenced) {
		t.Fatalf("a step of an ended attempt gave %v, want fenced", res.Err)
	}
	h.pass(2 * time.Second)
	steps := h.lease("w1", 5, "steps")[0].Steps
	if fmt.Sprintf("%s %s", steps[0].Result, steps[1].Result) != "1 3" || len(steps) != 2 {
		t.Fatalf("steps = %+v", steps)
	}
}

// The attempt recorded a step with the server before this one, and its worker has dropped it since.
func TestAnAttemptThatIsHandedOverAgainAfterARestartGetsItsSteps(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	h.lease("w1", 1, "echo")
	r := h.submit(Submission{Agent: "echo"})
	h.lease("w1", 1, "echo")
	step := func(name string) {
		if res := h.p.Report(t.Context(), []runtime.Report{{Type: runtime.StepDone, Run: r.ID, N: 1, Step: &runtime.Step{Name: name}}})[0]; res.Err != nil {
			t.Fatalf("step %s: %v", name, res.Err)
		}
	}
	step("z")
	h.open()
	if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"echo"}, Slots: 10}); err != nil {
		t.Fatal(err)
	}
	again := h.lease("w1", 1, "echo")
	if len(again) != 1 || again[0].N != 1 || len(again[0].Steps) != 1 {
		t.Fatalf("handed over again: %+v", again)
	}
	step("a")
	if steps, err := h.p.stepsOf(t.Context(), r.ID); err != nil || len(steps) != 2 || steps[0].Name != "z" {
		t.Fatalf("steps are %+v, %v, want z before a", steps, err)
	}
}

func TestASessionHasOneTurnAtATimeAndKeepsItsState(t *testing.T) {
	h := newHouse(t, agentNamed("book", func(a *fleet.Agent) { a.Shape = fleet.Instance }))
	a := h.submit(Submission{Agent: "book"})
	b := h.submit(Submission{Agent: "book"})
	leases := h.lease("w1", 5, "book")
	if len(leases) != 1 || leases[0].Run != a.ID || leases[0].State != nil {
		t.Fatalf("first turn: %+v", leases)
	}
	h.report(runtime.Report{Type: runtime.Completed, Run: a.ID, N: 1, Session: json.RawMessage(`{"n":1}`)})
	h.open() // kill -9 between the turns
	if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"book"}, Slots: 10}); err != nil {
		t.Fatal(err)
	}
	leases = h.lease("w1", 5, "book")
	if len(leases) != 1 || leases[0].Run != b.ID || string(leases[0].State) != `{"n":1}` {
		t.Fatalf("second turn: %+v", leases)
	}
}

func TestCancelEndsWhatWaitsAtOnceAndWhatRunsAfterItsGrace(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	waits := h.submit(Submission{Agent: "echo", NotBefore: h.now.Add(time.Hour)})
	wantState(t, h.get(waits.ID), run.Held, run.NotBefore)
	if r, err := h.p.Cancel(t.Context(), waits.ID, CancelRequest{Reason: "enough"}); err != nil || r.State != run.Canceled {
		t.Fatalf("cancel gave %v, %v", r, err)
	}
	runs := h.submit(Submission{Agent: "echo"})
	h.lease("w1", 5, "echo")
	h.pass(time.Second)
	if r, err := h.p.Cancel(t.Context(), runs.ID, CancelRequest{}); err != nil || r.State != run.Canceling {
		t.Fatalf("cancel gave %v, %v", r, err)
	}
	h.report(runtime.Report{Type: runtime.Failed, Run: runs.ID, N: 1, Class: run.ClassCanceled})
	wantState(t, h.get(runs.ID), run.Canceled, run.CanceledByRequest)
	if n := h.p.ix.world.Runs(); n != 0 {
		t.Fatalf("%d slots in use afterwards", n)
	}
}

func TestAFinishedRunIsRemovedAfterItsTime(t *testing.T) {
	h := newHouse(t, agentNamed("echo", func(a *fleet.Agent) { a.Retain = fleet.Duration(time.Hour) }))
	r := h.submit(Submission{Agent: "echo"})
	h.lease("w1", 5, "echo")
	h.report(runtime.Report{Type: runtime.StepDone, Run: r.ID, N: 1, Step: &runtime.Step{Name: "a", Result: json.RawMessage(`1`)}})
	h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1})
	h.pass(59 * time.Minute)
	h.get(r.ID)
	h.pass(2 * time.Minute)
	var refusal *Refusal
	if _, err := h.p.Get(t.Context(), r.ID); !errors.As(err, &refusal) || refusal.Code != CodeNotFound {
		t.Fatalf("get gave %v, want not found", err)
	}
	if docs, err := h.store.Owned(t.Context(), store.KindStep, r.ID, "", 10); err != nil || len(docs) != 0 {
		t.Fatalf("%d steps are left, %v", len(docs), err)
	}
}

func TestPauseHoldsStartsAndResumeReleasesThem(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	h.lease("w1", 1, "echo")
	if err := h.p.PauseAgent(context.Background(), "echo", true, "test"); err != nil {
		t.Fatal(err)
	}
	r := h.submit(Submission{Agent: "echo"})
	wantState(t, h.get(r.ID), run.Queued, "")
	e, err := h.p.Explain(t.Context(), r.ID, "")
	if err != nil || e.Queue == nil || e.Queue.Limit == "" {
		t.Fatalf("explain gives %+v, %v", e.Queue, err)
	}
	if err := h.p.PauseAgent(context.Background(), "echo", false, "test"); err != nil {
		t.Fatal(err)
	}
	h.settle()
	if got := h.get(r.ID); got.State != run.Assigned {
		t.Fatalf("run is %s after resume", got.State)
	}
}

func TestATenantRunsUpToItsQuotaAndGetsEverySlotBack(t *testing.T) { // case F29
	h := newHouse(t, agentNamed("echo"), &fleet.Tenant{Meta: fleet.Meta{Name: "small"}, Weight: 1, Quota: fleet.Quota{Running: 3}})
	h.lease("w1", 1, "echo")
	ids := make(map[string]bool)
	for range 20 {
		ids[h.submit(Submission{Agent: "echo", Tenant: "small"}).ID] = true
	}
	ends := []runtime.Report{{Type: runtime.Completed}, {Type: runtime.Failed, Final: true}, {Type: runtime.Released}, {Type: runtime.Failed, Class: run.ClassInfrastructure}}
	for turn := 0; len(ids) > 0 && turn < 200; turn++ {
		h.pass(2 * time.Second)
		if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"echo"}, Slots: 10}); err != nil {
			t.Fatal(err)
		}
		leases := h.lease("w1", 10, "echo")
		if len(leases) > 3 {
			t.Fatalf("%d runs at once, the quota is 3", len(leases))
		}
		for i, l := range leases {
			r := ends[(turn+i)%len(ends)]
			r.Run, r.N = l.Run, l.N
			if i == 2 {
				if _, err := h.p.Cancel(t.Context(), l.Run, CancelRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			h.report(r)
			if h.get(l.Run).State.Terminal() {
				delete(ids, l.Run)
			}
		}
	}
	if len(ids) > 0 {
		t.Fatalf("%d runs never ended", len(ids))
	}
	if n := h.p.ix.tenants.of("small"); n != (tally{}) {
		t.Fatalf("the tenant is left with %+v", n)
	}
}

func TestASnapshotNeverUndoesALaterTurn(t *testing.T) {
	h := newHouse(t, agentNamed("book", func(a *fleet.Agent) { a.Shape = fleet.Instance }))
	turn := func(worker, state string) {
		r := h.submit(Submission{Agent: "book"})
		h.lease(worker, 1, "book")
		if res := h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Session: json.RawMessage(state)}); res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	stop := func(worker, state string) {
		if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: worker, Agents: []string{"book"}, Slots: 10, Draining: true,
			Sessions: map[string]json.RawMessage{"default": json.RawMessage(state)}}); err != nil {
			t.Fatal(err)
		}
	}
	wantSession := func(want string) {
		t.Helper()
		if got, _, err := h.p.session(t.Context(), "default/book/default"); err != nil || string(got) != want {
			t.Fatalf("session is %s, %v, want %s", got, err, want)
		}
	}
	turn("w1", `1`)
	stop("w1", `1.5`)
	wantSession(`1.5`)
	turn("w2", `2`)
	stop("w1", `1.7`)
	wantSession(`2`)
	stop("stranger", `9`)
	wantSession(`2`)
	// One that was handed a turn, and gave it back before it began, has nothing newer.
	stop("w2", `2`) // and takes no more
	r := h.submit(Submission{Agent: "book"})
	if got := h.lease("w3", 1, "book"); len(got) != 1 || got[0].Run != r.ID {
		t.Fatalf("w3 has %v, want the turn", got)
	}
	stop("w3", `0`) // while it has the turn
	if res := h.report(runtime.Report{Type: runtime.Released, Run: r.ID, N: 1, Worker: "w3"}); res.Err != nil {
		t.Fatal(res.Err)
	}
	stop("w3", `0`)
	wantSession(`2`)
}

func TestDeclaredObjectsShowTheirStatusWithAndWithoutRuns(t *testing.T) {
	h := newHouse(t, agentNamed("echo"), agentNamed("idle"))
	h.lease("w1", 1, "echo")
	h.submit(Submission{Agent: "echo"})
	all, err := h.p.Declared(t.Context(), fleet.KindAgent)
	if err != nil || len(all) != 2 || all[0].Running != 1 || len(all[0].Workers) != 1 || all[1].Running != 0 {
		t.Fatalf("agents: %+v, %v", all, err)
	}
}

func TestARunThatNeedsManySlotsIsNotPassedOverForEver(t *testing.T) { // case F26
	h := newHouse(t, agentNamed("wide", func(a *fleet.Agent) { a.Needs.Slots = 8 }), agentNamed("small"))
	var busy []runtime.Assignment
	beat := func() {
		b := WorkerBeat{Worker: "w1", Agents: []string{"small", "wide"}, Slots: 10}
		for _, a := range busy {
			b.Attempts = append(b.Attempts, a.ID())
		}
		if _, err := h.p.Beat(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	h.lease("w1", 10, "small", "wide")
	for range 10 {
		h.submit(Submission{Agent: "small"})
	}
	busy = h.lease("w1", 10, "small", "wide")
	wide := h.submit(Submission{Agent: "wide"})
	for turn := 0; ; turn++ {
		if turn == 60 {
			t.Fatal("after a minute of small runs the wide one has not started")
		}
		// A steady stream: each small run that ends is followed by another, and never are eight slots free at once.
		h.submit(Submission{Agent: "small"})
		if len(busy) > 0 {
			h.report(runtime.Report{Type: runtime.Completed, Run: busy[0].Run, N: busy[0].N})
			busy = busy[1:]
		}
		h.pass(time.Second)
		beat()
		resp, err := h.p.Lease(t.Context(), LeaseRequest{Worker: "w1", Agents: []string{"small", "wide"}, Max: 10, Slots: 10})
		if err != nil {
			t.Fatal(err)
		}
		busy = append(busy, resp.Leases...)
		if h.get(wide.ID).State != run.Queued {
			return
		}
	}
}

func TestASetClockTakesNoLiveWorkersRuns(t *testing.T) { // case F50
	for name, by := range map[string]time.Duration{"an hour ahead": time.Hour, "an hour back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("echo", func(a *fleet.Agent) {
				a.Timeouts.Attempt, a.Timeouts.Run = fleet.Duration(12*time.Hour), fleet.Duration(24*time.Hour)
			}))
			r := h.submit(Submission{Agent: "echo"})
			h.lease("w1", 1, "echo")
			h.pass(time.Second)
			h.mu.Lock()
			h.now, h.set = h.now.Add(by), h.set+by
			h.mu.Unlock()
			h.settle()
			h.pass(13 * time.Second)
			wantState(t, h.get(r.ID), run.Running, "")
			h.pass(3 * time.Second) // now it has been silent for its lease
			if got := h.get(r.ID); got.State != run.Backoff || got.Reason != run.HeartbeatLost {
				t.Fatalf("run is %s (%s)", got.State, got.Reason)
			}
			events, _, err := h.p.history(t.Context(), r.ID)
			if err != nil {
				t.Fatal(err)
			}
			for i := 1; i < len(events); i++ {
				if events[i].At < events[i-1].At {
					t.Fatalf("history runs backwards: %v then %v", events[i-1].At, events[i].At)
				}
			}
		})
	}
}

func TestAResultThatComesAfterTheTimeOutIsRefusedAndEndsTheAttempt(t *testing.T) { // case F16
	h := newHouse(t, agentNamed("slow", func(a *fleet.Agent) { a.Timeouts.Attempt = fleet.Duration(5 * time.Second) }))
	r := h.submit(Submission{Agent: "slow"})
	h.lease("w1", 5, "slow")
	h.pass(time.Second)
	h.pass(5 * time.Second)
	res := h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Output: json.RawMessage(`"late"`)})
	if !errors.Is(res.Err, run.ErrFenced) {
		t.Fatalf("the late result gave %v, want fenced", res.Err)
	}
	got := h.get(r.ID)
	wantState(t, got, run.Backoff, run.AttemptTimeout)
	if a := got.Current(); a.Class != run.ClassTimeout || !a.Sure || !got.Output.Empty() {
		t.Fatalf("attempt 1 is %+v", a)
	}
}

func TestAWorkerGetsNoMoreThanItAsksFor(t *testing.T) {
	h := newHouse(t, agentNamed("echo"), agentNamed("other"))
	h.lease("w1", 1, "echo", "other")
	for range 3 {
		h.submit(Submission{Agent: "echo"})
	}
	h.submit(Submission{Agent: "other"})
	for i, want := range []int{1, 2, 1} {
		limit, agents := want, []string{"echo"}
		if i == 2 {
			agents = []string{"other", "echo"}
		}
		resp, err := h.p.Lease(t.Context(), LeaseRequest{Worker: "w1", Agents: agents, Max: limit, Slots: 10})
		if err != nil || len(resp.Leases) != want {
			t.Fatalf("call %d: %d leases, %v, want %d", i+1, len(resp.Leases), err, want)
		}
	}
}

func TestARunThatItsWorkerNeverFetchedGoesBackUnspent(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	h.lease("w1", 1, "echo")
	r := h.submit(Submission{Agent: "echo"})
	wantState(t, h.get(r.ID), run.Assigned, "")
	h.pass(16 * time.Second) // w1 is gone
	got := h.get(r.ID)
	if got.Spent != 0 || got.Returned != 1 || got.Attempts[0].Outcome != run.OutcomeStartFailed {
		t.Fatalf("run is %s, spent %d, returned %d, %+v", got.State, got.Spent, got.Returned, got.Attempts)
	}
}
