package control

import (
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// What a run is charged in the end is what it held: each of its slots, for as long as it ran.
func TestARunIsChargedForWhatItHeld(t *testing.T) {
	for name, tc := range map[string]struct {
		slots int
		ran   time.Duration
		want  int64 // milliseconds of a slot
	}{
		"one slot, for less than was expected": {1, 4 * time.Second, 4000},
		"two slots":                            {2, 10 * time.Second, 20_000},
		"so short that its start was not even written by itself": {1, 20 * time.Millisecond, 20},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("a", func(a *fleet.Agent) {
				a.Needs.Slots = tc.slots
				a.Lifetime.Expected = fleet.Duration(10 * time.Second)
			}))
			h.submit(Submission{Agent: "a", Tenant: "acme"})
			held := h.lease("w1", 1, "a")
			if len(held) != 1 {
				t.Fatalf("%d leases, want 1", len(held))
			}
			h.pass(tc.ran)
			h.report(runtime.Report{Type: runtime.Completed, Run: held[0].Run, N: held[0].N, Worker: "w1"})
			h.p.mu.Lock()
			defer h.p.mu.Unlock()
			const scale = 1024 // of virtual time
			if got := h.p.ix.queue.Shares().Tenants["acme"] / scale; got != tc.want {
				t.Errorf("acme was charged %d ms of a slot, want %d", got, tc.want)
			}
		})
	}
}

// charged is what a tenant was charged, in milliseconds of a slot at weight 1.
func (h *house) charged(tenant string) int64 {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	return h.p.ix.queue.Shares().Tenants[tenant] / 1024
}

// The start of a short attempt is written together with its end.
func TestAShortRunIsChargedForWhatItTookAndNotForWhatWasExpected(t *testing.T) {
	h := newHouse(t, agentNamed("quick", func(a *fleet.Agent) { a.Lifetime.Expected = fleet.Duration(10 * time.Second) }))
	h.submit(Submission{Agent: "quick", Tenant: "acme"})
	held := h.lease("w1", 1, "quick")
	if got := h.charged("acme"); got != 10_000 {
		t.Fatalf("acme was charged %d ms in advance, want 10000", got)
	}
	h.report(runtime.Report{Type: runtime.Completed, Run: held[0].Run, N: held[0].N, Worker: "w1"})
	if got := h.charged("acme"); got != 0 {
		t.Errorf("acme was charged %d ms for a run that took none", got)
	}
}

// One of two waiting tenants is next in turn. Its only queued run is told something.
func TestATenantKeepsItsTurnWhenItsOnlyQueuedRunIsChanged(t *testing.T) {
	h := newHouse(t, agentNamed("long", func(a *fleet.Agent) { a.Lifetime.Expected = fleet.Duration(time.Minute) }))
	lease := func() []runtime.Assignment {
		resp, err := h.p.Lease(t.Context(), LeaseRequest{Worker: "w1", Agents: []string{"long"}, Max: 3, Slots: 3})
		if err != nil {
			t.Fatal(err)
		}
		h.settle()
		return resp.Leases
	}
	lease()
	for range 3 {
		h.submit(Submission{Agent: "long", Tenant: "other"})
	}
	for range 3 {
		h.submit(Submission{Agent: "long", Tenant: "ahead"})
	}
	first, next := h.submit(Submission{Agent: "long", Tenant: "behind"}), h.submit(Submission{Agent: "long", Tenant: "behind"})
	for _, a := range lease() { // their slots go to ahead, behind, and ahead; nobody learns how long one takes that failed
		h.report(runtime.Report{Type: runtime.Failed, Run: a.Run, N: a.N, Worker: "w1", Final: true})
	}
	if h.get(first.ID).State == run.Queued { // they came at the same moment
		next = first
	}
	before := h.charged("ahead") - h.charged("behind")
	if before != 60_000 || h.get(next.ID).State != run.Queued {
		t.Fatalf("the tenants are %d ms apart and the run is %s", before, h.get(next.ID).State)
	}
	if _, err := h.p.Score(t.Context(), next.ID, 1, "ann", ""); err != nil {
		t.Fatal(err)
	}
	h.settle()
	if after := h.charged("ahead") - h.charged("behind"); after != before {
		t.Errorf("the tenants were %d ms apart, and are %d", before, after)
	}
}

// What a run is expected to take counts when it is placed: a backlog is not priced by what nobody knew when it came.
func TestAQueuedRunIsChargedByWhatIsKnownWhenItIsPlaced(t *testing.T) {
	h := newHouse(t, agentNamed("long", func(a *fleet.Agent) { a.Lifetime.Expected, a.Concurrency.Max = fleet.Duration(time.Minute), 1 }))
	first := h.submit(Submission{Agent: "long", Tenant: "acme"})
	h.submit(Submission{Agent: "long", Tenant: "other"})
	held := h.lease("w1", 1, "long")
	if len(held) != 1 || held[0].Run != first.ID {
		t.Fatalf("the lease holds %v, want the first run", held)
	}
	h.pass(4 * time.Second)
	h.report(runtime.Report{Type: runtime.Completed, Run: first.ID, N: 1, Worker: "w1"})
	if h.lease("w1", 1, "long"); h.charged("other")-h.charged("acme") != 0 {
		t.Errorf("other is charged %d ms and acme %d, of which each takes 4000", h.charged("other"), h.charged("acme"))
	}
}

// A worker that did not hear that its run has ended goes on naming it.
func TestARunThatEndedBeforeIsNotCountedWhenAWorkerNamesIt(t *testing.T) {
	h := newHouse(t, agentNamed("quick"))
	r := h.submit(Submission{Agent: "quick"})
	for _, a := range h.lease("w1", 1, "quick") {
		h.report(runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: "w1"})
	}
	if n := h.p.Stats(time.Hour, "", "").Total.Succeeded; n != 1 {
		t.Fatalf("%d succeeded, want 1", n)
	}
	h.p.records.clear() // it ended long ago
	for range 2 {
		if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"quick"}, Slots: 1, Attempts: []string{runtime.AttemptID(r.ID, 1)}}); err != nil {
			t.Fatal(err)
		}
		h.settle()
	}
	if n := h.p.Stats(time.Hour, "", "").Total.Succeeded; n != 1 {
		t.Errorf("%d succeeded, want 1", n)
	}
}
