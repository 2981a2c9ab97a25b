package control

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Ends of families in bad moments.

func TestAGateClosesWithTheRunAboveIt(t *testing.T) {
	asks := func(h *house, id string) {
		if res := h.report(runtime.Report{Type: runtime.Parked, Run: id, N: 1, Worker: "w1", Park: &run.Park{On: run.OnGate, Step: "pay"}, Gate: &pay}); res.Err != nil {
			h.t.Fatal(res.Err)
		}
	}
	for name, open := range map[string]func(h *house) (top string){
		"of a child": func(h *house) string {
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			h.parkOn(r, "s", callsOf("payer", 1))
			asks(h, h.lease("w1", 1, "payer")[0].Run)
			return r.ID
		},
		"of a child that nobody waits for": func(h *house) string {
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			h.calls(r, "s", callsOf("payer", 1))
			asks(h, h.lease("w1", 1, "payer")[0].Run)
			return r.ID
		},
		"of a child of a child": func(h *house) string {
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			h.parkOn(r, "s", callsOf("mid", 1))
			h.lease("w", 1, "mid")
			h.parkOn(&run.Record{Spec: run.Spec{ID: childID(r.ID, "s", 0)}}, "s", callsOf("payer", 1))
			asks(h, h.lease("w1", 1, "payer")[0].Run)
			return r.ID
		},
		"of a workflow that a workflow calls": func(h *house) string { return h.submit(Submission{Workflow: "outer"}).ID },
	} {
		for when, restart := range map[string]bool{"": false, ", under the next leader": true} {
			t.Run(name+when, func(t *testing.T) {
				h := newHouse(t, caller("boss", "mid", "payer"), caller("mid", "payer"), payer(),
					flowNamed("outer", fleet.Stage{Name: "s", Workflow: "inner"}),
					flowNamed("inner", fleet.Stage{Name: "ask", Gate: &fleet.Gate{Title: "Go on?", Action: `{"sum": 1}`, Approvers: pay.Approvers, Expires: fleet.Duration(48 * time.Hour)}}))
				top := open(h)
				gates, _, err := h.p.Gates(t.Context(), GateFilter{State: run.GateOpen}, 10, "")
				if err != nil || len(gates) != 1 {
					t.Fatalf("gates %+v, %v", gates, err)
				}
				if _, err := h.p.Cancel(t.Context(), top, CancelRequest{}); err != nil {
					t.Fatal(err)
				}
				if restart {
					h.open()
				}
				h.settle()
				h.pass(2 * time.Second)
				g, err := h.p.Gate(t.Context(), gates[0].ID)
				if err != nil || g.State != run.GateCanceled || g.EndedAt == 0 {
					t.Fatalf("the gate is %+v, %v", g, err)
				}
				if open, _, _ := h.p.Gates(t.Context(), GateFilter{State: run.GateOpen}, 10, ""); len(open) != 0 {
					t.Errorf("%d gates are still listed as open", len(open))
				}
				wantState(t, h.get(g.Run), run.Canceled, run.ParentEnded)
				if err := h.vote(gates[0], "ann", run.Approve, gates[0].ActionHash); err == nil {
					t.Error("a decision was taken")
				}
			})
		}
	}
}

func TestALostAttemptCostsWhatItUsed(t *testing.T) { // case F16
	first := run.Usage{InputTokens: 300, OutputTokens: 20, USD: 0.5}
	for name, lose := range map[string]func(h *house, id string){
		"its worker vanished": func(h *house, id string) { h.pass(time.Minute) },
		"it was told to stop and never said that it did": func(h *house, id string) {
			for range 6 {
				h.pass(10 * time.Second)
				h.beatOf("w1", "slow", id)
			}
		},
		"it was told to stop and says so": func(h *house, id string) {
			h.pass(31 * time.Second)
			h.p.Report(h.t.Context(), []runtime.Report{{Type: runtime.Failed, Run: id, N: 1, Worker: "w1", Class: run.ClassTimeout}})
			h.settle()
		},
		"it handed the run back": func(h *house, id string) {
			h.report(runtime.Report{Type: runtime.Released, Run: id, N: 1, Worker: "w1"})
		},
		"it was canceled, and its worker vanished": func(h *house, id string) {
			h.cancel(id)
			h.pass(20 * time.Second) // its lease ends before its grace does
		},
		"it was canceled, and never said that it stopped": func(h *house, id string) {
			h.cancel(id)
			for range 4 {
				h.pass(7 * time.Second)
				h.beatOf("w1", "slow", id)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("slow", func(a *fleet.Agent) { a.Timeouts.Attempt = fleet.Duration(30 * time.Second); a.Retry.MaxAttempts = 3 }))
			r := h.submit(Submission{Agent: "slow"})
			h.lease("w1", 1, "slow")
			h.report(runtime.Report{Type: runtime.Started, Run: r.ID, N: 1, Worker: "w1"})
			for range 2 { // it says so in two parts
				half := run.Usage{InputTokens: first.InputTokens / 2, OutputTokens: first.OutputTokens / 2, USD: first.USD / 2}
				h.report(runtime.Report{Type: runtime.Used, Run: r.ID, N: 1, Worker: "w1", Usage: &half})
			}
			lose(h, r.ID)
			got := h.get(r.ID)
			if got.Current().Outcome == "" && got.Attempt == 1 {
				t.Fatalf("its attempt goes on: the run is %s (%s)", got.State, got.Reason)
			}
			if diff := cmp.Diff(first, got.Usage); diff != "" {
				t.Errorf("usage (-want +got):\n%s", diff)
			}
			if got.State.Terminal() {
				return
			}
			// The next one's comes on top, and each attempt keeps its own.
			h.pass(3 * time.Second)
			if n := len(h.lease("w1", 1, "slow")); n != 1 {
				t.Fatalf("%d leases", n)
			}
			second := run.Usage{InputTokens: 7}
			h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 2, Worker: "w1", Output: json.RawMessage(`1`), Usage: &second})
			got = h.get(r.ID)
			wantState(t, got, run.Succeeded, "")
			if diff := cmp.Diff(first.Plus(second), got.Usage); diff != "" {
				t.Errorf("usage of both (-want +got):\n%s", diff)
			}
			for i, want := range []run.Usage{first, second} {
				if u := got.Attempts[i].Usage; u == nil || *u != want {
					t.Errorf("attempt %d used %+v, want %+v", i+1, u, want)
				}
			}
		})
	}
}

func (h *house) cancel(id string) {
	h.t.Helper()
	if _, err := h.p.Cancel(h.t.Context(), id, CancelRequest{}); err != nil {
		h.t.Fatal(err)
	}
	h.settle()
}

// beatOf is a heartbeat of a worker that holds the first attempt of a run.
func (h *house) beatOf(worker, agent, id string) {
	h.t.Helper()
	if _, err := h.p.Beat(h.t.Context(), WorkerBeat{Worker: worker, Agents: []string{agent}, Slots: 10, Attempts: []string{id + ".1"}}); err != nil {
		h.t.Fatal(err)
	}
	h.settle()
}

func TestASuspendedChildEndsWithItsParent(t *testing.T) {
	for name, restart := range map[string]bool{"under the same leader": false, "when another leads since": true} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			h.calls(r, "s", callsOf("hand", 1))
			child := childID(r.ID, "s", 0)
			if _, err := h.p.Suspend(t.Context(), child, "ann"); err != nil {
				t.Fatal(err)
			}
			h.settle()
			report := runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Worker: "w", Output: json.RawMessage(`1`)}
			if res := h.p.Report(t.Context(), []runtime.Report{report})[0]; res.Err != nil {
				t.Fatal(res.Err)
			}
			if restart {
				h.open()
			}
			h.settle()
			wantState(t, h.get(r.ID), run.Succeeded, "")
			wantState(t, h.get(child), run.Canceled, run.ParentEnded)
		})
	}
	for name, restart := range map[string]bool{"under the same leader": false, "under the next": true} {
		t.Run("or at its deadline, "+name, func(t *testing.T) {
			h := newHouse(t, caller("boss", "hand"), agentNamed("hand", func(a *fleet.Agent) { a.Timeouts.Run = fleet.Duration(40 * time.Minute) }))
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			h.parkOn(r, "s", callsOf("hand", 1))
			child := h.lease("w1", 1, "hand")[0].Run // its last attempt counts as dead long before
			if _, err := h.p.Suspend(t.Context(), child, "ann"); err != nil {
				t.Fatal(err)
			}
			h.settle()
			if restart {
				h.open()
			}
			h.pass(39 * time.Minute)
			wantState(t, h.get(child), run.Suspended, run.SuspendedByRequest)
			h.pass(time.Minute)
			wantState(t, h.get(child), run.Failed, run.DeadlineExceeded)
		})
	}
}

// The record of a child may be written when its parent has ended: whoever called it was checked before.
func TestAChildThatIsCalledWhileItsParentEndsEndsToo(t *testing.T) {
	for name, x := range map[string]struct {
		looked  bool // a look at the parent was due when its own parent's end ended it
		restart bool
	}{
		"after its parent has ended":                             {},
		"after another leads":                                    {restart: true},
		"after the look at its parent's parent ended its parent": {looked: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, caller("boss", "mid"), caller("mid", "leaf"), agentNamed("leaf"))
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			h.calls(r, "s", callsOf("mid", 1))
			mid := h.get(childID(r.ID, "s", 0)).Clone() // as whoever calls has read it
			report := runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Worker: "w", Output: json.RawMessage(`1`)}
			if res := h.p.Report(t.Context(), []runtime.Report{report})[0]; res.Err != nil {
				t.Fatal(res.Err)
			}
			if x.looked {
				h.p.mu.Lock()
				h.p.ix.kin.lookAt(mid.ID)
				h.p.mu.Unlock()
			}
			h.settle()
			wantState(t, h.get(mid.ID), run.Canceled, run.ParentEnded)
			if err := h.p.spawn(t.Context(), mid, "late", 0, []call{{Agent: "leaf"}}, 0); err != nil {
				t.Fatal(err)
			}
			if x.restart {
				h.open()
			}
			h.settle()
			wantState(t, h.get(childID(mid.ID, "late", 0)), run.Canceled, run.ParentEnded)
			if n := len(h.lease("w2", 1, "leaf")); n != 0 {
				t.Errorf("%d attempts of it were started", n)
			}
		})
	}
}

func TestTheQuestionOfAnUndoingThatIsNotNeededAnyMoreCloses(t *testing.T) {
	for name, restart := range map[string]bool{"under the same leader": false, "under the next": true} {
		for whose, below := range map[string]bool{"of the run itself": false, "of a run below": true} {
			t.Run(whose+", "+name, func(t *testing.T) {
				h := newHouse(t, caller("boss", "payer"), payer(func(a *fleet.Agent) {
					a.Retry.MaxAttempts = 1
					a.Effects.Settle = fleet.Duration(time.Second)
				}))
				// 1. Nobody knows whether it paid, and it cannot be undone.
				top := ""
				if below {
					r := h.submit(Submission{Agent: "boss"})
					h.lease("w", 1, "boss")
					h.parkOn(r, "s", callsOf("payer", 1))
					top = r.ID
				}
				a := h.firstAttempt(below)
				if top == "" {
					top = a.Run
				}
				began := h.begin(EffectBegin{Run: a.Run, N: 1, Effect: "charge", Compensable: true, Timeout: 5 * time.Second})
				if below { // the one above is canceled, and undoes it
					h.cancel(top)
				}
				h.report(runtime.Report{Type: runtime.Failed, Run: a.Run, N: 1, Worker: "w1", Final: true, Message: "no answer"})
				h.pass(time.Minute)
				h.undoes("w1", "payer", func(string) bool { return true })
				asking := h.get(top)
				wantState(t, asking, run.Compensating, run.CompensationFailed)
				gates, err := h.p.GatesOf(t.Context(), top)
				if err != nil || len(gates) != 1 || gates[0].State != run.GateOpen {
					t.Fatalf("gates %+v, %v", gates, err)
				}
				// 2. A person finds out that it did not.
				if _, err := h.p.Resolve(t.Context(), began.ID, false, nil, "ann"); err != nil {
					t.Fatal(err)
				}
				if restart {
					h.open()
				}
				h.settle()
				want, reason := run.Failed, run.NonRetryable
				if below {
					want, reason = run.Canceled, run.CanceledByRequest
				}
				wantState(t, h.get(top), want, reason)
				if gates, err = h.p.GatesOf(t.Context(), top); err != nil || gates[0].State != run.GateCanceled {
					t.Errorf("gates %+v, %v", gates, err)
				}
				if n := len(h.p.ix.undoings); n != 0 {
					t.Errorf("%d plans of what is over are kept", n)
				}
			})
		}
	}
}

// firstAttempt is the attempt of a payer: of a run of its own, or of one that another has called.
func (h *house) firstAttempt(called bool) runtime.Assignment {
	h.t.Helper()
	if !called {
		h.submit(Submission{Agent: "payer", Input: json.RawMessage(`{"n":1}`)})
	}
	leases := h.lease("w1", 1, "payer")
	if len(leases) != 1 {
		h.t.Fatalf("leases %+v", leases)
	}
	return leases[0]
}
