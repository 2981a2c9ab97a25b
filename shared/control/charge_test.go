package control

import (
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/runtime"
)

// What a run is charged in the end is what it held: each of its slots, for as long as it ran.
func TestARunOfSeveralSlotsIsChargedForAllOfThem(t *testing.T) {
	big := agentNamed("big", func(a *fleet.Agent) {
		a.Needs.Slots = 2
		a.Lifetime.Expected = fleet.Duration(10 * time.Second)
	})
	h := newHouse(t, big)
	h.submit(Submission{Agent: "big", Tenant: "acme"})
	held := h.lease("w1", 1, "big")
	if len(held) != 1 {
		t.Fatalf("%d leases, want 1", len(held))
	}
	h.pass(time.Second) // its start is confirmed
	h.pass(9 * time.Second)
	h.report(runtime.Report{Type: runtime.Completed, Run: held[0].Run, N: held[0].N, Worker: "w1"})
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	const scale = 1024 // of virtual time
	if got, want := h.p.ix.queue.Shares().Tenants["acme"], int64(2*10_000*scale); got != want {
		t.Errorf("acme was charged %d ms of a slot, want %d", got/scale, want/scale)
	}
}
