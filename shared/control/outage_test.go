package control

import (
	goruntime "runtime"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// What was found by killing, hanging and stopping real processes, once more in small.

func TestAPlaneThatIsQuietPlacesNothingAndStillTakesRunsAndReports(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	first := h.submit(Submission{Agent: "echo"})
	h.lease("w1", 5, "echo")
	h.p.Quiesce()
	h.report(runtime.Report{Type: runtime.Released, Run: first.ID, N: 1, Message: "stopping"})
	second := h.submit(Submission{Agent: "echo"})
	h.pass(time.Second)
	for _, id := range []string{first.ID, second.ID} {
		if r := h.get(id); r.State != run.Queued {
			t.Errorf("run %s is %s, want queued for the next process", id, r.State)
		}
	}
}

func TestAnOpenRequestForRunsDoesNotBringALostWorkerBack(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	h.lease("hung", 5, "echo")
	answered := make(chan LeaseResponse, 1)
	go func() {
		resp, _ := h.p.Lease(t.Context(), LeaseRequest{Worker: "hung", Agents: []string{"echo"}, Max: 5, Slots: 10, Wait: 20 * time.Second})
		answered <- resp
	}()
	polls := func() int {
		h.p.mu.Lock()
		defer h.p.mu.Unlock()
		return len(h.p.ix.box(openTarget + "/hung").polls)
	}
	for polls() == 0 {
		goruntime.Gosched()
	}
	h.pass(16 * time.Second)
	if resp := <-answered; len(resp.Leases) != 0 {
		t.Errorf("the lost worker is handed %+v", resp.Leases)
	}
	r := h.submit(Submission{Agent: "echo"})
	if got := h.get(r.ID); got.State == run.Assigned {
		t.Errorf("the run is assigned to %s, and only the lost worker is known", got.Current().Node)
	}
}

func TestAWideRunThatWaitedHasRoomKeptForIt(t *testing.T) {
	wide := agentNamed("wide", func(a *fleet.Agent) { a.Needs.Slots = 10 })
	h := newHouse(t, agentNamed("small"), wide)
	held := make(map[string]int)
	fetch := func() {
		for _, l := range h.lease("w1", 10, "small", "wide") {
			held[l.Run] = l.N
		}
	}
	for range 10 {
		h.submit(Submission{Agent: "small"})
	}
	fetch()
	id := h.submit(Submission{Agent: "wide"}).ID
	// Every second one small run ends and another comes, until the wide one has waited long enough.
	for i := 0; len(held) > 0; i++ {
		if i == 60 {
			t.Fatalf("after a minute the wide run is %s and %d small ones run", h.get(id).State, len(held))
		}
		h.pass(time.Second)
		for run, n := range held {
			h.report(runtime.Report{Type: runtime.Completed, Run: run, N: n})
			delete(held, run)
			break
		}
		h.submit(Submission{Agent: "small"})
		fetch()
		if r := h.get(id); r.State == run.Assigned {
			return
		}
	}
}
