package control

import (
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

func large(a *fleet.Agent) { a.Needs.Slots = 10 } // all that a worker of the house has

// full submits a small run to a worker, and a large one behind it that waits until a node is kept for it.
func full(h *house) (small, waits *run.Record) {
	h.lease("w1", 3, "small", "large")
	small = h.submit(Submission{Agent: "small", Tenant: "acme"})
	if got := h.lease("w1", 3, "small", "large"); len(got) != 1 {
		h.t.Fatalf("%d leases, want that of the small run", len(got))
	}
	waits = h.submit(Submission{Agent: "large", Tenant: "acme"})
	for range 4 {
		h.pass(10 * time.Second)
		h.lease("w1", 3, "small", "large")
	}
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if kept := h.p.ix.world.Reservations(); len(kept) != 1 || kept[0].Run != waits.ID {
		h.t.Fatalf("reservations %v, want one for run %s", kept, waits.ID)
	}
	return small, waits
}

// A node that is kept for a large run stays empty for nobody: a run of the same class that goes before it takes the
// node. Otherwise each would wait for the other for ever.
func TestARunThatGoesBeforeTakesTheNodeThatIsKept(t *testing.T) {
	h := newHouse(t, agentNamed("small"), agentNamed("large", large))
	small, waits := full(h)
	first := h.submit(Submission{Agent: "large", Tenant: "acme", Priority: new(90)})
	h.report(runtime.Report{Type: runtime.Completed, Run: small.ID, N: 1, Worker: "w1"})
	wantState(t, h.get(first.ID), run.Assigned, "")
	h.lease("w1", 3, "small", "large")
	h.report(runtime.Report{Type: runtime.Completed, Run: first.ID, N: 1, Worker: "w1"})
	wantState(t, h.get(waits.ID), run.Assigned, "")
}

// A pause holds a large run back for as long as a person likes: no node stays empty for it.
func TestNoNodeIsKeptForAnAgentThatIsPaused(t *testing.T) {
	h := newHouse(t, agentNamed("small"), agentNamed("large", large))
	small, _ := full(h)
	if err := h.p.PauseAgent(t.Context(), "large", true, "ada"); err != nil {
		t.Fatal(err)
	}
	h.settle()
	next := h.submit(Submission{Agent: "small", Tenant: "beta"})
	h.report(runtime.Report{Type: runtime.Completed, Run: small.ID, N: 1, Worker: "w1"})
	wantState(t, h.get(next.ID), run.Assigned, "")
}
