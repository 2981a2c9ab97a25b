package control

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// calls lets the run's live attempt call children without waiting for them.
func (h *house) calls(r *run.Record, step string, calls []runtime.Call) {
	h.t.Helper()
	err := await(h, func() error {
		_, err := h.p.Children(h.t.Context(), ChildCalls{Run: r.ID, N: h.get(r.ID).Attempt, Step: step, Calls: calls})
		return err
	})
	if err != nil {
		h.t.Fatalf("call children: %v", err)
	}
}

// pays lets one child of agent payer perform an effect and succeed.
func (h *house) pays(worker, effect string) (id string) {
	h.t.Helper()
	leases := h.lease(worker, 1, "payer")
	if len(leases) != 1 {
		h.t.Fatalf("leases %+v", leases)
	}
	a := leases[0]
	h.does(a.Run, a.N, effect)
	h.report(runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: worker})
	return a.Run
}

// unlisted is a store that lists no runs while it fails.
type unlisted struct {
	store.Store
	fails bool
}

func (s *unlisted) List(ctx context.Context, q store.Query) (store.Page, error) {
	if s.fails {
		return store.Page{}, errLine
	}
	return s.Store.List(ctx, q)
}

func TestWhatIsCalledWithoutWaitingIsUndoneToo(t *testing.T) {
	fails := func(h *house, id string) {
		h.report(runtime.Report{Type: runtime.Failed, Run: id, N: 1, Worker: "w", Final: true, Message: "broken"})
	}
	for name, x := range map[string]struct {
		end    func(h *house, id string)
		state  run.State
		reason run.Reason
	}{
		"when the caller fails": {fails, run.Failed, run.NonRetryable},
		"when the caller is canceled": {func(h *house, id string) {
			if _, err := h.p.Cancel(h.t.Context(), id, CancelRequest{}); err != nil {
				h.t.Fatal(err)
			}
			h.report(runtime.Report{Type: runtime.Failed, Run: id, N: 1, Worker: "w", Class: run.ClassCanceled})
		}, run.Canceled, run.CanceledByRequest},
		"when the caller fails under the next leader": {func(h *house, id string) {
			h.open()
			if _, err := h.p.Beat(h.t.Context(), WorkerBeat{Worker: "w", Agents: []string{"boss"}, Slots: 10, Attempts: []string{id + ".1"}}); err != nil {
				h.t.Fatal(err)
			}
			fails(h, id)
		}, run.Failed, run.NonRetryable},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, caller("boss", "payer"), payer())
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			h.calls(r, "pay", callsOf("payer", 1))
			child := h.pays("w1", "charge")
			x.end(h, r.ID)
			wantState(t, h.get(r.ID), run.Compensating, x.reason)
			undone, _ := h.undoes("w1", "payer", nil)
			if diff := cmp.Diff([]string{"charge"}, undone); diff != "" {
				t.Errorf("undone (-want +got):\n%s", diff)
			}
			h.settle()
			wantState(t, h.get(r.ID), x.state, x.reason)
			if got := h.receiptStates(child)["charge"]; got != run.ReceiptCompensated {
				t.Errorf("the effect of the child is %s", got)
			}
		})
	}
	t.Run("when the caller succeeded, and one above it fails", func(t *testing.T) {
		h := newHouse(t, caller("chief", "boss"), caller("boss", "payer"), payer())
		top := h.submit(Submission{Agent: "chief"})
		h.lease("w0", 1, "chief")
		h.parkOn(top, "all", callsOf("boss", 1))
		boss := &run.Record{Spec: run.Spec{ID: childID(top.ID, "all", 0)}}
		h.lease("w", 1, "boss")
		h.calls(boss, "pay", callsOf("payer", 1))
		child := h.pays("w1", "charge")
		h.report(runtime.Report{Type: runtime.Completed, Run: boss.ID, N: 1, Worker: "w"})
		h.lease("w0", 1, "chief")
		h.report(runtime.Report{Type: runtime.Failed, Run: top.ID, N: 2, Worker: "w0", Final: true, Message: "broken"})
		h.undoes("w1", "payer", nil)
		h.settle()
		wantState(t, h.get(top.ID), run.Failed, run.NonRetryable)
		if got := h.receiptStates(child)["charge"]; got != run.ReceiptCompensated {
			t.Errorf("the effect of the child is %s", got)
		}
	})
	t.Run("and one that called nobody ends at once", func(t *testing.T) {
		h := newHouse(t, caller("boss", "payer"), payer())
		r := h.submit(Submission{Agent: "boss"})
		h.lease("w", 1, "boss")
		fails(h, r.ID)
		wantState(t, h.get(r.ID), run.Failed, run.NonRetryable)
	})
	t.Run("and nothing is decided while the store cannot say", func(t *testing.T) {
		h := newHouse(t, caller("boss", "payer"), payer())
		s := &unlisted{Store: h.store}
		h.store = s
		h.open()
		r := h.submit(Submission{Agent: "boss"})
		h.lease("w", 1, "boss")
		h.calls(r, "pay", callsOf("payer", 1))
		h.pays("w1", "charge")
		s.fails = true
		report := runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Worker: "w", Final: true, Message: "broken"}
		if res := h.p.Report(t.Context(), []runtime.Report{report})[0]; res.Err == nil {
			t.Fatal("the report was taken")
		}
		if got := h.get(r.ID); got.State.Terminal() || got.State == run.Compensating {
			t.Fatalf("it is %s", got.State)
		}
		s.fails = false
		h.report(report)
		wantState(t, h.get(r.ID), run.Compensating, run.NonRetryable)
	})
}

// A child that ends with its parent leaves its undoing to the parent, if that is undone: which has to be known.
func TestAnEndWaitsUntilItIsKnownWhoUndoesIt(t *testing.T) {
	h := newHouse(t, caller("boss", "payer"), payer())
	s := doubt(h)
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.parkOn(r, "pay", callsOf("payer", 1))
	a := h.lease("w1", 1, "payer")[0]
	h.does(a.Run, a.N, "charge")
	if _, err := h.p.Cancel(t.Context(), r.ID, CancelRequest{}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	wantState(t, h.get(a.Run), run.Canceling, run.ParentEnded)
	// The parent cannot be read.
	h.p.records.drop(r.ID)
	s.reads = 1
	report := runtime.Report{Type: runtime.Failed, Run: a.Run, N: a.N, Worker: "w1", Class: run.ClassCanceled}
	if res := h.p.Report(t.Context(), []runtime.Report{report})[0]; res.Err == nil {
		t.Fatal("the end of the child was taken")
	}
	if s.reads != 0 {
		t.Fatal("nobody has read the parent")
	}
	wantState(t, h.get(a.Run), run.Canceling, run.ParentEnded)
	// It can again.
	h.report(report)
	wantState(t, h.get(a.Run), run.Canceled, run.ParentEnded)
	h.pass(2 * time.Second)
	_, undoing := h.undoes("w1", "payer", nil)
	if p := h.get(undoing.Run).Parent; p != r.ID {
		t.Errorf("it is undone by run %s, want %s", p, r.ID)
	}
	wantState(t, h.get(r.ID), run.Canceled, run.CanceledByRequest)
}

// What a decision reads it reads in the name of whoever asked, and for as long as they wait.
func TestNothingHereActsWithoutAContext(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		source, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range []string{"context.Background()", "context.TODO()"} {
			if strings.Contains(string(source), call) {
				t.Errorf("%s: %s: pass the context of whoever asks on", f.Name(), call)
			}
		}
	}
}

func TestTheGraceOfACancelReachesAllDescendants(t *testing.T) {
	const grace = 3 * time.Minute
	for name, waits := range map[string]bool{"of a run that executes": false, "of one that waits for them": true} {
		for when, restart := range map[string]bool{"": false, ", under the next leader": true} {
			t.Run(name+when, func(t *testing.T) {
				h := newHouse(t, caller("boss", "mid"), caller("mid", "leaf"), agentNamed("leaf"), flowNamed("flow", fleet.Stage{Name: "s", Agent: "boss"}))
				top := h.submit(Submission{Workflow: "flow"})
				boss := &run.Record{Spec: run.Spec{ID: h.childOf(top.ID)}}
				h.lease("w0", 1, "boss")
				call := h.calls
				if waits {
					call = func(r *run.Record, step string, calls []runtime.Call) { h.parkOn(r, step, calls) }
				}
				call(boss, "mids", callsOf("mid", 1))
				mid := &run.Record{Spec: run.Spec{ID: childID(boss.ID, "mids", 0)}}
				h.lease("w1", 1, "mid")
				call(mid, "leaves", callsOf("leaf", 1))
				leaf := childID(mid.ID, "leaves", 0)
				h.lease("w2", 1, "leaf")
				if _, err := h.p.Cancel(t.Context(), top.ID, CancelRequest{Grace: grace}); err != nil {
					t.Fatal(err)
				}
				if restart {
					h.open()
				}
				h.settle()
				h.pass(undoLook) // what is being undone ends what is below it
				told := 0
				for _, id := range []string{boss.ID, mid.ID, leaf} {
					r := h.get(id)
					if !r.Live() {
						continue
					}
					told++
					if got := r.Due.Sub(r.Stop.At) - h.p.cfg.WorkerLease; r.State != run.Canceling || got != grace {
						t.Errorf("run %s of %s is %s, and has %s to end", id, r.Agent, r.State, got)
					}
				}
				if want := map[bool]int{false: 3, true: 1}[waits]; told != want {
					t.Errorf("%d attempts are told to end, want %d", told, want)
				}
			})
		}
	}
	t.Run("and a stage that needs no more of them gives what is usual", func(t *testing.T) {
		h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
		r := h.submit(Submission{Agent: "boss"})
		h.lease("w", 1, "boss")
		h.parkOn(r, "s", callsOf("hand", 2), func(p *run.Park) { p.Need = 1 })
		h.lease("w2", 2, "hand")
		h.report(runtime.Report{Type: runtime.Completed, Run: childID(r.ID, "s", 0), N: 1, Output: json.RawMessage(`1`)})
		rest := h.get(childID(r.ID, "s", 1))
		if got := rest.Due.Sub(rest.Stop.At) - h.p.cfg.WorkerLease; got != h.p.cfg.Grace {
			t.Errorf("it has %s to end, want %s", got, h.p.cfg.Grace)
		}
	})
}

// childOf is the one run that another has called.
func (h *house) childOf(id string) string {
	h.t.Helper()
	page, err := h.store.List(h.t.Context(), store.Query{By: store.ByParent, Parent: id, Limit: 2})
	if err != nil || len(page.Docs) != 1 {
		h.t.Fatalf("children of run %s: %d, %v; want one", id, len(page.Docs), err)
	}
	return page.Docs[0].ID
}
