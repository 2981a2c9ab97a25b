package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store/memory"
)

// begin asks for an effect on behalf of an attempt.
func (h *house) begin(b EffectBegin) EffectAnswer {
	h.t.Helper()
	if b.RequestHash == "" {
		b.RequestHash = "h"
	}
	if b.Nonce == "" {
		b.Nonce = fmt.Sprintf("%s.%d/%s", b.Run, b.N, b.Effect)
	}
	a, err := h.p.BeginEffect(h.t.Context(), b)
	if err != nil {
		h.t.Fatalf("begin %s: %v", b.Effect, err)
	}
	return a
}

// does performs an effect that can be undone, a second after the one before.
func (h *house) does(id string, n int, effect string) {
	h.t.Helper()
	h.pass(time.Second)
	if a := h.begin(EffectBegin{Run: id, N: n, Effect: effect, Compensable: true}); a.Answer != "proceed" {
		h.t.Fatalf("begin %s: %+v", effect, a)
	}
	if _, err := h.p.EndEffect(h.t.Context(), EffectEnd{Run: id, N: n, Effect: effect, Value: json.RawMessage(`"` + effect + ` done"`)}); err != nil {
		h.t.Fatalf("commit %s: %v", effect, err)
	}
}

// undoes is an agent's part in undoing: it takes the attempt, undoes what it is handed in that order, and returns which
// effects that were. An effect that refuses fails the attempt.
func (h *house) undoes(worker, agent string, refuses func(effect string) bool) (undone []string, a runtime.Assignment) {
	h.t.Helper()
	leases := h.lease(worker, 1, agent)
	if len(leases) != 1 || leases[0].Mode != runtime.ModeCompensate {
		h.t.Fatalf("want an attempt of mode compensate, got %+v", leases)
	}
	a = leases[0]
	for _, r := range a.Receipts {
		if r.Undo == "" {
			continue
		}
		began := h.begin(EffectBegin{Run: a.Run, N: a.N, Step: r.Step, Effect: r.Undo, OnUnknown: "repeat"})
		if began.Answer != "proceed" {
			h.t.Fatalf("begin %s: %+v", r.Undo, began)
		}
		end := EffectEnd{Run: a.Run, N: a.N, Step: r.Step, Effect: r.Undo}
		if refuses != nil && refuses(r.Effect) {
			end.Abandon = true
			if _, err := h.p.EndEffect(h.t.Context(), end); err != nil {
				h.t.Fatal(err)
			}
			h.report(runtime.Report{Type: runtime.Failed, Run: a.Run, N: a.N, Worker: worker, Message: "no"})
			return undone, a
		}
		if _, err := h.p.EndEffect(h.t.Context(), end); err != nil {
			h.t.Fatalf("commit %s: %v", r.Undo, err)
		}
		undone = append(undone, r.Effect)
	}
	h.report(runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: worker})
	return undone, a
}

// receiptStates are the states of a run's effects by name.
func (h *house) receiptStates(id string) map[string]run.ReceiptState {
	h.t.Helper()
	list, err := h.p.Receipts(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	got := make(map[string]run.ReceiptState)
	for _, r := range list {
		got[r.Effect] = r.State
	}
	return got
}

func payer(change ...func(*fleet.Agent)) *fleet.Agent {
	return agentNamed("payer", append([]func(*fleet.Agent){func(a *fleet.Agent) { a.Retry.MaxAttempts = 3 }}, change...)...)
}

// started submits a run and lets a worker take it.
func (h *house) started(agent string) *run.Record {
	h.t.Helper()
	r := h.submit(Submission{Agent: agent, Input: json.RawMessage(`{"n":1}`)})
	if got := h.lease("w1", 1, agent); len(got) != 1 || got[0].Run != r.ID {
		h.t.Fatalf("leases %+v, want run %s", got, r.ID)
	}
	return r
}

func TestEndsWithoutSuccessUndoWhatWasDone(t *testing.T) {
	for name, x := range map[string]struct {
		end    func(h *house, id string)
		state  run.State
		reason run.Reason
	}{
		"a cancel": {func(h *house, id string) {
			if _, err := h.p.Cancel(h.t.Context(), id, CancelRequest{Reason: "no more", Actor: "ann"}); err != nil {
				h.t.Fatal(err)
			}
			h.report(runtime.Report{Type: runtime.Failed, Run: id, N: 1, Class: run.ClassCanceled})
		}, run.Canceled, run.CanceledByRequest},
		"a failure": {func(h *house, id string) {
			h.report(runtime.Report{Type: runtime.Failed, Run: id, N: 1, Final: true, Message: "broken"})
		}, run.Failed, run.NonRetryable},
		"the run's deadline": {func(h *house, id string) {
			h.report(runtime.Report{Type: runtime.Parked, Run: id, N: 1, Park: &run.Park{On: run.OnInput, Step: "s", Name: "never"}})
			h.pass(2 * time.Hour)
		}, run.Failed, run.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, payer(func(a *fleet.Agent) { a.Timeouts.Run = fleet.Duration(time.Hour) }))
			r := h.started("payer")
			for _, effect := range []string{"book", "charge", "mail"} {
				h.does(r.ID, 1, effect)
			}
			x.end(h, r.ID)
			wantState(t, h.get(r.ID), run.Compensating, x.reason)
			undone, a := h.undoes("w1", "payer", nil)
			if diff := cmp.Diff([]string{"mail", "charge", "book"}, undone); diff != "" {
				t.Errorf("undone (-want +got):\n%s", diff)
			}
			if string(a.Input) != `{"n":1}` || string(a.Receipts[0].Result) != `"mail done"` || a.Unit != r.WorkUnit() {
				t.Errorf("it was handed %+v", a)
			}
			h.settle()
			wantState(t, h.get(r.ID), x.state, x.reason)
			for effect, state := range h.receiptStates(r.ID) {
				if state != run.ReceiptCompensated {
					t.Errorf("effect %s is %s", effect, state)
				}
			}
			wantState(t, h.get(a.Run), run.Succeeded, "")
		})
	}
}

func TestEndsThatUndoNothing(t *testing.T) {
	fail := func(h *house, id string) {
		h.report(runtime.Report{Type: runtime.Failed, Run: id, N: 1, Final: true, Message: "broken"})
	}
	for name, x := range map[string]struct {
		did   func(h *house, id string)
		end   func(h *house, id string)
		state run.State
	}{
		"a success": {func(h *house, id string) { h.does(id, 1, "charge") }, func(h *house, id string) {
			h.report(runtime.Report{Type: runtime.Completed, Run: id, N: 1})
		}, run.Succeeded},
		"a failure of a run that did nothing": {func(*house, string) {}, fail, run.Failed},
		"one that did what cannot be undone": {func(h *house, id string) {
			h.begin(EffectBegin{Run: id, N: 1, Effect: "shout"})
			if _, err := h.p.EndEffect(h.t.Context(), EffectEnd{Run: id, N: 1, Effect: "shout"}); err != nil {
				h.t.Fatal(err)
			}
		}, fail, run.Failed},
		"one that certainly did not do what it began": {func(h *house, id string) {
			h.begin(EffectBegin{Run: id, N: 1, Effect: "charge", Compensable: true})
			if _, err := h.p.EndEffect(h.t.Context(), EffectEnd{Run: id, N: 1, Effect: "charge", Abandon: true}); err != nil {
				h.t.Fatal(err)
			}
		}, fail, run.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, payer())
			r := h.started("payer")
			x.did(h, r.ID)
			x.end(h, r.ID)
			h.settle()
			if got := h.get(r.ID); got.State != x.state {
				t.Fatalf("run is %s (%s)", got.State, got.Reason)
			}
			if leases := h.lease("w1", 1, "payer"); len(leases) != 0 {
				t.Fatalf("undone: %+v", leases)
			}
		})
	}
}

func TestWhatCannotBeUndoneAtOnceIsTriedAgain(t *testing.T) {
	h := newHouse(t, payer())
	r := h.started("payer")
	for _, effect := range []string{"book", "charge", "mail"} {
		h.does(r.ID, 1, effect)
	}
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Message: "broken"})
	var all []string
	failures := 0
	for range 3 {
		h.pass(time.Minute)
		undone, _ := h.undoes("w1", "payer", func(effect string) bool {
			if effect == "charge" && failures < 2 {
				failures++
				return true
			}
			return false
		})
		all = append(all, undone...)
		wantState(t, h.get(r.ID), map[bool]run.State{true: run.Compensating, false: run.Failed}[len(all) < 3], run.NonRetryable)
	}
	if diff := cmp.Diff([]string{"mail", "charge", "book"}, all); diff != "" || failures != 2 {
		t.Errorf("undone after %d failures (-want +got):\n%s", failures, diff)
	}
}

func TestUndoingGoesOnUnderTheNextLeader(t *testing.T) {
	h := newHouse(t, payer())
	r := h.started("payer")
	h.does(r.ID, 1, "book")
	h.does(r.ID, 1, "charge")
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Message: "broken"})
	// Restarted before anybody has begun to undo, in the middle, and after all is undone.
	h.open()
	beat := func(attempts ...string) {
		if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"payer"}, Slots: 10, Attempts: attempts}); err != nil {
			t.Fatal(err)
		}
	}
	beat()
	leases := h.lease("w1", 1, "payer")
	if len(leases) != 1 {
		t.Fatalf("leases %+v", leases)
	}
	a := leases[0]
	undo := func(i int) {
		h.begin(EffectBegin{Run: a.Run, N: a.N, Effect: a.Receipts[i].Undo})
		if _, err := h.p.EndEffect(t.Context(), EffectEnd{Run: a.Run, N: a.N, Effect: a.Receipts[i].Undo}); err != nil {
			t.Fatal(err)
		}
	}
	undo(0)
	h.open()
	beat(a.ID())
	undo(1)
	h.open()
	beat(a.ID())
	wantState(t, h.get(r.ID), run.Compensating, run.NonRetryable)
	h.report(runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: "w1"})
	h.open()
	wantState(t, h.get(r.ID), run.Failed, run.NonRetryable)
	if leases := h.lease("w1", 1, "payer"); len(leases) != 0 {
		t.Fatalf("undone twice: %+v", leases)
	}
}

func TestARetryDoesAnewWhatWasUndone(t *testing.T) {
	h := newHouse(t, payer())
	r := h.started("payer")
	h.does(r.ID, 1, "charge")
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Message: "broken"})
	_, first := h.undoes("w1", "payer", nil)
	h.settle()
	again := await(h, func() *run.Record {
		out, err := h.p.Retry(t.Context(), r.ID, nil, "ann")
		if err != nil {
			t.Error(err)
		}
		return out
	})
	h.lease("w1", 1, "payer")
	a := h.begin(EffectBegin{Run: again.ID, N: 1, Effect: "charge", Compensable: true})
	if a.Answer != "proceed" || a.Key == a.ID || a.Key == first.Receipts[0].Key {
		t.Fatalf("answer %+v, want to proceed under another key than %s", a, first.Receipts[0].Key)
	}
	if _, err := h.p.EndEffect(t.Context(), EffectEnd{Run: again.ID, N: 1, Effect: "charge"}); err != nil {
		t.Fatal(err)
	}
	h.report(runtime.Report{Type: runtime.Failed, Run: again.ID, N: 1, Final: true, Message: "broken again"})
	undone, second := h.undoes("w1", "payer", nil)
	if len(undone) != 1 || second.Receipts[0].Undo == first.Receipts[0].Undo || second.Receipts[0].Key != a.Key {
		t.Fatalf("undone %v, handed %+v", undone, second.Receipts)
	}
	wantState(t, h.get(again.ID), run.Failed, run.NonRetryable)
}

// An attempt ends as a success without a word about its effect. The run that repeats its work finds that it happened.
func TestWhatARetryFoundToHaveHappenedIsUndoneWithIt(t *testing.T) {
	for name, canceledBefore := range map[string]bool{
		"it is canceled afterwards":                   false,
		"it is being canceled when its hook finds it": true,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, payer())
			r := h.started("payer")
			h.begin(EffectBegin{Run: r.ID, N: 1, Effect: "charge", Compensable: true})
			h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Worker: "w1"})
			h.pass(time.Hour) // nothing of the effect can happen any more
			again := await(h, func() *run.Record {
				out, err := h.p.Retry(t.Context(), r.ID, nil, "ann")
				if err != nil {
					t.Error(err)
				}
				return out
			})
			h.lease("w1", 1, "payer")
			if a := h.begin(EffectBegin{Run: again.ID, N: 1, Effect: "charge", Compensable: true}); a.Answer != "unknown" {
				t.Fatalf("answer %+v, want that it is unknown", a)
			}
			cancel := func() {
				if _, err := h.p.Cancel(t.Context(), again.ID, CancelRequest{Actor: "ann"}); err != nil {
					t.Fatal(err)
				}
				h.settle()
			}
			if canceledBefore {
				cancel()
			}
			if _, err := h.p.EndEffect(t.Context(), EffectEnd{Run: again.ID, N: 1, Effect: "charge", Reconciled: true}); err != nil {
				t.Fatal(err)
			}
			if !canceledBefore {
				cancel()
			}
			h.report(runtime.Report{Type: runtime.Failed, Run: again.ID, N: 1, Worker: "w1", Class: run.ClassCanceled, Ended: true})
			if undone, _ := h.undoes("w1", "payer", nil); len(undone) != 1 {
				t.Fatalf("undone %v, want charge", undone)
			}
			wantState(t, h.get(again.ID), run.Canceled, run.CanceledByRequest)
		})
	}
}

func TestWhoeverUndoesPerformsNothingElse(t *testing.T) {
	h := newHouse(t, payer())
	r := h.started("payer")
	if _, err := h.p.BeginEffect(t.Context(), EffectBegin{Run: r.ID, N: 1, Effect: "undo:charge", RequestHash: "h", Nonce: "n"}); err == nil {
		t.Error("an effect of a run may be named as one that undoes")
	}
	h.does(r.ID, 1, "charge")
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Message: "broken"})
	a := h.lease("w1", 1, "payer")[0]
	if got := h.begin(EffectBegin{Run: a.Run, N: a.N, Effect: "mail"}); got.Answer != EffectNone {
		t.Errorf("of what was never done it is told %+v", got)
	}
	if got := h.begin(EffectBegin{Run: a.Run, N: a.N, Effect: "charge"}); got.Answer != "done" || string(got.Value) != `"charge done"` {
		t.Errorf("of what was done it is told %+v", got)
	}
	var refusal *Refusal
	if _, err := h.p.BeginEffect(t.Context(), EffectBegin{Run: a.Run, N: a.N, Effect: "undo:mail", RequestHash: "h", Nonce: "n"}); !errors.As(err, &refusal) || refusal.Code != CodeState {
		t.Errorf("what was never done is undone: %v", err)
	}
	if _, err := h.p.EndEffect(t.Context(), EffectEnd{Run: a.Run, N: a.N, Effect: "charge"}); !errors.As(err, &refusal) {
		t.Errorf("an effect is committed: %v", err)
	}
}

func TestWhatMayHaveHappenedIsSettledBeforeItIsUndone(t *testing.T) {
	for name, x := range map[string]struct {
		found func(h *house, a runtime.Assignment)
		want  run.ReceiptState
	}{
		"it happened": {func(h *house, a runtime.Assignment) {
			end := EffectEnd{Run: a.Run, N: a.N, Effect: "charge", Value: json.RawMessage(`"found"`), Reconciled: true}
			if _, err := h.p.EndEffect(h.t.Context(), end); err != nil {
				h.t.Fatal(err)
			}
			h.begin(EffectBegin{Run: a.Run, N: a.N, Effect: "undo:charge"})
			if _, err := h.p.EndEffect(h.t.Context(), EffectEnd{Run: a.Run, N: a.N, Effect: "undo:charge"}); err != nil {
				h.t.Fatal(err)
			}
		}, run.ReceiptCompensated},
		"it did not": {func(h *house, a runtime.Assignment) {
			if _, err := h.p.EndEffect(h.t.Context(), EffectEnd{Run: a.Run, N: a.N, Effect: "charge", Abandon: true}); err != nil {
				h.t.Fatal(err)
			}
		}, run.ReceiptAbandoned},
		"the program sees to it": {func(*house, runtime.Assignment) {}, run.ReceiptCompensated},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, payer(func(a *fleet.Agent) { a.Effects.Settle = fleet.Duration(5 * time.Second) }))
			r := h.started("payer")
			h.begin(EffectBegin{Run: r.ID, N: 1, Effect: "charge", Compensable: true, Timeout: 10 * time.Second})
			h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Class: run.ClassTimeout, Final: true, Message: "no answer"})
			wantState(t, h.get(r.ID), run.Compensating, run.NonRetryable)
			if leases := h.lease("w1", 1, "payer"); len(leases) != 0 {
				t.Fatalf("it is undone while it may still take effect: %+v", leases)
			}
			h.pass(16 * time.Second)
			leases := h.lease("w1", 1, "payer")
			if len(leases) != 1 || len(leases[0].Receipts) != 1 || leases[0].Receipts[0].State != "unknown" {
				t.Fatalf("leases %+v", leases)
			}
			x.found(h, leases[0])
			h.report(runtime.Report{Type: runtime.Completed, Run: leases[0].Run, N: leases[0].N, Worker: "w1"})
			wantState(t, h.get(r.ID), run.Failed, run.NonRetryable)
			if got := h.receiptStates(r.ID)["charge"]; got != x.want {
				t.Errorf("the receipt is %s, want %s", got, x.want)
			}
		})
	}
}

func TestARunThatAsksGoesOnWhenAPersonSays(t *testing.T) {
	asks := func(a *fleet.Agent) { a.Effects.Settle = fleet.Duration(time.Second) }
	// unknown leaves a run in its second attempt, which is told that nobody knows.
	unknown := func(h *house) (r *run.Record, receipt string) {
		r = h.started("payer")
		h.begin(EffectBegin{Run: r.ID, N: 1, Effect: "charge", Timeout: 5 * time.Second})
		h.pass(200 * time.Millisecond)
		h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Class: run.ClassTimeout, Message: "no answer"})
		h.pass(time.Minute)
		h.lease("w1", 1, "payer")
		a := h.begin(EffectBegin{Run: r.ID, N: 2, Effect: "charge", OnUnknown: "ask", Nonce: "second"})
		if a.Answer != "unknown" {
			h.t.Fatalf("answer %+v", a)
		}
		return r, a.ID
	}
	park := func(h *house, r *run.Record, receipt string) {
		res := h.report(runtime.Report{Type: runtime.Parked, Run: r.ID, N: 2, Worker: "w1",
			Park: &run.Park{On: run.OnInput, Step: "receipt:" + receipt + "#1", Name: "receipt:" + receipt}})
		if res.Err != nil {
			h.t.Fatal(res.Err)
		}
	}
	resolve := func(h *house, receipt string, happened bool) {
		var result json.RawMessage
		if happened {
			result = json.RawMessage(`"by hand"`)
		}
		if got, err := h.p.Resolve(h.t.Context(), receipt, happened, result, "ann"); err != nil || got.ResolvedBy != "ann" {
			h.t.Fatalf("resolve: %+v, %v", got, err)
		}
		h.settle()
	}
	for name, x := range map[string]struct {
		order    string
		happened bool
		answer   string
	}{
		"it happened":                          {"park resolve", true, "done"},
		"it did not":                           {"park resolve", false, "proceed"},
		"the word comes before the run waits":  {"resolve park", true, "done"},
		"a restart lies in between":            {"park restart resolve", true, "done"},
		"the word comes before, and a restart": {"resolve park restart", false, "proceed"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, payer(asks))
			r, receipt := unknown(h)
			for _, what := range strings.Fields(x.order) {
				switch what {
				case "park":
					park(h, r, receipt)
				case "resolve":
					if h.get(r.ID).State == run.Waiting {
						if got := h.get(r.ID); !strings.Contains(got.Message, "errand resolve "+receipt) {
							t.Errorf("it waits and says %q", got.Message)
						}
						h.pass(24 * time.Hour)
						wantState(t, h.get(r.ID), run.Waiting, "")
					}
					resolve(h, receipt, x.happened)
				case "restart":
					h.open()
				}
			}
			if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"payer"}, Slots: 10}); err != nil {
				t.Fatal(err)
			}
			leases := h.lease("w1", 1, "payer")
			if len(leases) != 1 || leases[0].N != 3 || len(leases[0].Steps) != 1 {
				t.Fatalf("leases %+v", leases)
			}
			if a := h.begin(EffectBegin{Run: r.ID, N: 3, Effect: "charge", Nonce: "third"}); a.Answer != x.answer {
				t.Errorf("the next attempt is told %+v, want %s", a, x.answer)
			}
		})
	}
	for name, x := range map[string]struct {
		told, happened, restart bool
		want                    run.ReceiptState
	}{
		"whoever undoes it, and it happened":                     {false, true, false, run.ReceiptCompensated},
		"whoever undoes it, and it did not":                      {false, false, false, run.ReceiptAbandoned},
		"whoever undoes it, over a restart":                      {false, true, true, run.ReceiptCompensated},
		"whoever undoes it, where the run had been told as well": {true, true, false, run.ReceiptCompensated},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, payer(asks))
			r, n := h.started("payer"), 1
			h.begin(EffectBegin{Run: r.ID, N: 1, Effect: "charge", Compensable: true, Timeout: 5 * time.Second})
			if x.told {
				h.pass(200 * time.Millisecond)
				h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: n, Class: run.ClassTimeout})
				h.pass(time.Minute)
				h.lease("w1", 1, "payer")
				n++
				h.begin(EffectBegin{Run: r.ID, N: n, Effect: "charge", OnUnknown: "fail", Nonce: "second"})
			}
			h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: n, Final: true, Message: "no answer"})
			h.pass(time.Minute)
			leases := h.lease("w1", 1, "payer")
			if len(leases) != 1 || leases[0].Mode != runtime.ModeCompensate || len(leases[0].Receipts) != 1 {
				t.Fatalf("leases %+v", leases)
			}
			a, receipt := leases[0], leases[0].Receipts[0].ID
			h.report(runtime.Report{Type: runtime.Parked, Run: a.Run, N: a.N, Worker: "w1",
				Park: &run.Park{On: run.OnInput, Step: "receipt:" + receipt + "#1", Name: "receipt:" + receipt}})
			wantState(t, h.get(a.Run), run.Waiting, "")
			if x.restart {
				h.open()
			}
			resolve(h, receipt, x.happened)
			if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"payer"}, Slots: 10}); err != nil {
				t.Fatal(err)
			}
			h.undoes("w1", "payer", nil)
			h.settle()
			wantState(t, h.get(r.ID), run.Failed, run.NonRetryable)
			if got := h.receiptStates(r.ID)["charge"]; got != x.want {
				t.Errorf("the receipt is %s, want %s", got, x.want)
			}
		})
	}
	t.Run("a word for a run that is over is kept for its retry", func(t *testing.T) {
		h := newHouse(t, payer(asks))
		r, receipt := unknown(h)
		h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 2, Final: true, Code: string(run.OutcomeUnknown)})
		wantState(t, h.get(r.ID), run.Failed, run.OutcomeUnknown)
		resolve(h, receipt, true)
		if got := h.receiptStates(r.ID)["charge"]; got != run.ReceiptDone {
			t.Errorf("the receipt is %s", got)
		}
	})
}

func TestWhatCannotBeUndoneAtAllIsAskedOfPeople(t *testing.T) {
	for name, x := range map[string]struct {
		verdict run.Verdict
		restart bool
		state   run.State
		reason  run.Reason
		receipt run.ReceiptState
	}{
		"they have it tried again":                         {run.Approve, false, run.Failed, run.NonRetryable, run.ReceiptCompensated},
		"they have it tried again, with a restart between": {run.Approve, true, run.Failed, run.NonRetryable, run.ReceiptCompensated},
		"they give up": {run.Reject, false, run.Failed, run.CompensationFailed, run.ReceiptDone},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, payer(func(a *fleet.Agent) {
				a.Retry.MaxAttempts = 1
				a.Meta.Labels = map[string]string{"owner": "finance"}
			}))
			r := h.started("payer")
			h.does(r.ID, 1, "charge")
			h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Message: "broken"})
			h.undoes("w1", "payer", func(string) bool { return true })
			h.settle()
			wantState(t, h.get(r.ID), run.Compensating, run.CompensationFailed)
			gates, _, err := h.p.Gates(t.Context(), GateFilter{State: run.GateOpen}, 10, "")
			if err != nil || len(gates) != 1 || gates[0].Run != r.ID || len(gates[0].Approvers) != 1 || gates[0].Approvers[0] != "group:finance" {
				t.Fatalf("gates %+v, %v", gates, err)
			}
			if e, err := h.p.Explain(t.Context(), r.ID, ""); err != nil || !strings.Contains(strings.Join(e.Story, " "), "waits until people have decided whether that is tried again") {
				t.Errorf("the story is %q, %v", e.Story, err)
			}
			listed := func(want ...string) {
				t.Helper()
				list, next, err := h.p.UndoFailedReceipts(t.Context(), 10, "")
				var got []string
				for _, r := range list {
					got = append(got, r.Effect+" "+string(r.State))
				}
				if diff := cmp.Diff(want, got); diff != "" || err != nil || next != "" {
					t.Errorf("listed as what could not be undone (-want +got), %v:\n%s", err, diff)
				}
			}
			listed("charge done")
			if x.restart {
				h.open()
			}
			out := h.p.DecideGates(t.Context(), []GateVote{{ID: gates[0].ID, GateVote: run.GateVote{
				Person: run.Person{Name: "ann", Groups: []string{"finance"}}, Decision: x.verdict, ActionHash: gates[0].ActionHash,
			}}})
			if out[0].Err != nil {
				t.Fatal(out[0].Err)
			}
			h.settle()
			if x.restart {
				h.open()
				if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"payer"}, Slots: 10}); err != nil {
					t.Fatal(err)
				}
			}
			if x.verdict == run.Approve {
				wantState(t, h.get(r.ID), run.Compensating, run.NonRetryable)
				h.undoes("w1", "payer", nil)
				h.settle()
			}
			wantState(t, h.get(r.ID), x.state, x.reason)
			if got := h.receiptStates(r.ID)["charge"]; got != x.receipt {
				t.Errorf("the effect is %s, want %s", got, x.receipt)
			}
			if x.verdict == run.Approve {
				listed()
			} else {
				listed("charge done") // given up, and somebody has to clear it up by hand
			}
		})
	}
}

func TestWhatCannotBeUndoneIsAskedOncePerRound(t *testing.T) {
	for name, restart := range map[string]bool{"under one leader": false, "with a restart after each answer": true} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, payer(func(a *fleet.Agent) { a.Retry.MaxAttempts = 1 }))
			r := h.started("payer")
			h.does(r.ID, 1, "charge")
			h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Message: "broken"})
			const rounds = 3
			for round := range rounds {
				h.undoes("w1", "payer", func(string) bool { return true })
				before := h.get(r.ID)
				wantState(t, before, run.Compensating, run.CompensationFailed)
				h.pass(time.Hour)
				if restart {
					h.open()
				}
				for range 20 {
					h.p.mu.Lock()
					h.p.ix.kin.lookAt(r.ID)
					h.p.mu.Unlock()
					h.settle()
				}
				if after := h.get(r.ID); after.Seq != before.Seq {
					t.Fatalf("round %d: while people are asked %d events were written", round, after.Seq-before.Seq)
				}
				gates, _, err := h.p.Gates(t.Context(), GateFilter{State: run.GateOpen}, 10, "")
				if err != nil || len(gates) != 1 {
					t.Fatalf("round %d: gates %+v, %v", round, gates, err)
				}
				out := h.p.DecideGates(t.Context(), []GateVote{{ID: gates[0].ID, GateVote: run.GateVote{
					Person: run.Person{Name: "ann", Roles: []string{"operator"}}, Decision: run.Approve, ActionHash: gates[0].ActionHash,
				}}})
				if out[0].Err != nil {
					t.Fatal(out[0].Err)
				}
				h.settle()
				if restart {
					h.open()
					if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"payer"}, Slots: 10}); err != nil {
						t.Fatal(err)
					}
				}
				wantState(t, h.get(r.ID), run.Compensating, run.NonRetryable)
			}
			h.undoes("w1", "payer", nil)
			h.settle()
			wantState(t, h.get(r.ID), run.Failed, run.NonRetryable)
		})
	}
}

// The middle of a fan-out, canceled: two children have ended, one is at work, one has not begun.
func TestACancelDoesWhatItsPreviewSays(t *testing.T) {
	h := newHouse(t, caller("boss", "payer"), payer(func(a *fleet.Agent) { a.Concurrency.Max = 1 }))
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w1", 1, "boss")
	h.parkOn(r, "pay", callsOf("payer", 4))
	var effects []string
	for i := range 3 {
		a := h.lease("w1", 1, "payer")[0]
		effects = append([]string{fmt.Sprintf("charge %s", a.Input)}, effects...)
		h.does(a.Run, a.N, effects[0])
		if i < 2 {
			h.report(runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: "w1", Output: a.Input})
		}
	}
	preview, err := h.p.PreviewCancel(t.Context(), r.ID)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, c := range preview.Compensations {
		told = append(told, c.Receipt.Effect)
	}
	if diff := cmp.Diff(effects, told); diff != "" || len(preview.Children) != 2 || len(preview.Committed) != 3 {
		t.Fatalf("%d children, %d effects; would undo (-want +got):\n%s", len(preview.Children), len(preview.Committed), diff)
	}
	// The child at work ends when it is told to; then everything is undone, one after another.
	if _, err := h.p.Cancel(t.Context(), r.ID, CancelRequest{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	wantState(t, h.get(r.ID), run.Compensating, run.CanceledByRequest)
	for _, c := range preview.Children {
		if got := h.get(c.ID); got.State == run.Canceling {
			h.report(runtime.Report{Type: runtime.Failed, Run: c.ID, N: got.Attempt, Class: run.ClassCanceled})
		}
	}
	var undone []string
	failures := 0
	for len(undone) < 3 {
		h.pass(time.Minute)
		some, _ := h.undoes("w1", "payer", func(effect string) bool {
			if effect == effects[1] && failures < 2 {
				failures++
				return true
			}
			return false
		})
		undone = append(undone, some...)
	}
	if diff := cmp.Diff(told, undone); diff != "" {
		t.Errorf("what was undone, against the preview (-told +undone):\n%s", diff)
	}
	h.settle()
	wantState(t, h.get(r.ID), run.Canceled, run.CanceledByRequest)
	for _, c := range preview.Children {
		wantState(t, h.get(c.ID), run.Canceled, run.ParentEnded)
	}
	if leases := h.lease("w1", 5, "payer"); len(leases) != 0 {
		t.Errorf("more is undone: %+v", leases)
	}
}

// F22: what is due later than any lease lasts waits in the store, and is executed once when its time has come.
func TestDelayedRunsAreExecutedOnce(t *testing.T) {
	h := &house{t: t, store: memory.Open(), now: began, change: func(c *Config) { c.WorkerLease = 10 * time.Second }}
	h.open()
	if _, err := h.p.Apply(t.Context(), fleetOf(agentNamed("hand")), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	due := h.now.Add(35 * time.Second)
	for range 20 {
		r := h.submit(Submission{Agent: "hand", NotBefore: due})
		wantState(t, h.get(r.ID), run.Held, run.NotBefore)
	}
	workers := []string{"w1", "w2", "w3", "w4", "w5"}
	executed := make(map[string]int)
	for second := 1; second <= 40; second++ {
		h.pass(time.Second)
		if second == 20 { // one restarts
			workers[2] = "w3-again"
		}
		for _, w := range workers {
			if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: w, Agents: []string{"hand"}, Slots: 4}); err != nil {
				t.Fatal(err)
			}
			for _, a := range h.lease(w, 4, "hand") {
				executed[a.Run]++
				if h.now.Before(due) {
					t.Errorf("run %s is executed at second %d", a.Run, second)
				}
				h.report(runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: w})
			}
		}
		if second == 34 {
			h.open() // and the server
		}
		if n := h.p.ix.world.Runs(); n != 0 && second < 35 {
			t.Fatalf("%d slots are in use at second %d", n, second)
		}
	}
	if len(executed) != 20 {
		t.Errorf("%d runs were executed", len(executed))
	}
	for id, n := range executed {
		if n != 1 {
			t.Errorf("run %s was executed %d times", id, n)
		}
	}
}
