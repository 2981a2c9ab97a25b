package control

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// putHeld stores runs that are due one after the other, spread over a span of time.
func (h *house) putHeld(n int, span time.Duration) {
	h.t.Helper()
	at := run.At(h.now)
	var units []store.Unit
	for i := range n {
		id := fmt.Sprintf("held-%05d", i)
		due := at.Add(time.Minute + time.Duration(i)*(span/time.Duration(n)))
		r := run.New(run.Spec{ID: id, Agent: "echo", Tenant: "default", CreatedAt: at}, run.Event{Type: run.EvSubmitted, At: at})
		run.Evolve(r, run.Event{Type: run.EvHeld, At: at, Reason: run.NotBefore, Due: due})
		units = append(units, store.Unit{Token: id, Writes: []store.Write{Document(r, 0)}})
	}
	for _, err := range h.store.Commit(h.t.Context(), units) {
		if err != nil {
			h.t.Fatal(err)
		}
	}
}

// held lists those that still wait, soonest first.
func (h *house) held() (waiting []*run.Record) {
	h.t.Helper()
	for token := ""; ; {
		page, err := h.p.List(h.t.Context(), Filter{States: []run.State{run.Held}}, 1000, token)
		if err != nil {
			h.t.Fatal(err)
		}
		waiting = append(waiting, page.Runs...)
		if token = page.Next; token == "" {
			slices.SortFunc(waiting, func(a, b *run.Record) int { return int(a.Due - b.Due) })
			return waiting
		}
	}
}

func TestWakeUpsInMemoryAreBoundedAndNoneIsLate(t *testing.T) {
	const most, n, page = 100, 2600, store.MaxPage
	for name, c := range map[string]struct {
		span  time.Duration
		later time.Duration // passes while no process is there
	}{
		"many are due soon":             {9 * time.Minute, 0},
		"all are due at one instant":    {0, 0},
		"all came due during an outage": {9 * time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("echo", func(a *fleet.Agent) { a.Timeouts.Queue = fleet.Duration(100 * time.Hour) }))
			h.putHeld(n, c.span)
			h.mu.Lock()
			h.now = h.now.Add(c.later)
			h.mu.Unlock()
			h.change = func(c *Config) { c.MaxTimers = most }
			h.open()
			bounded := func(when string) {
				if got := h.p.ix.asleep(); got > most+page && c.span > 0 {
					t.Errorf("%d wake-ups are in memory %s", got, when)
				}
			}
			bounded("after the start")
			for minute := range 11 {
				h.pass(time.Minute)
				bounded(fmt.Sprint("after ", minute, " minutes"))
				if c.span == 0 || c.later > 0 {
					continue
				}
				now := run.At(h.now)
				if left := h.held(); len(left) > 0 && left[0].Due <= now {
					t.Fatalf("after %d minutes %s, due %s ago, still waits", minute, left[0].ID, now.Sub(left[0].Due))
				}
			}
			if left := h.held(); len(left) > 0 {
				t.Errorf("%d runs still wait", len(left))
			}
		})
	}
}

func TestWakeUpsThatAreSetMeanwhileAreBoundedToo(t *testing.T) {
	const most = 100
	h := newHouse(t, agentNamed("echo"))
	h.change = func(c *Config) { c.MaxTimers = most }
	h.open()
	for i := range 3 * most {
		// The later ones are due sooner, so that those in memory must give way.
		h.submit(Submission{Agent: "echo", NotBefore: h.now.Add(9*time.Minute - time.Duration(i)*time.Second)})
		if got := h.p.ix.asleep(); got > most+1 {
			t.Fatalf("%d wake-ups are in memory", got)
		}
	}
	for range 10 {
		h.pass(time.Minute)
	}
	if left := h.held(); len(left) > 0 {
		t.Errorf("%d runs still wait", len(left))
	}
}

// A run that its parent's end would end is due in the store since its last change, so that a new leader finds it: the
// end of what it waits for must stay in memory.
func TestAChildIsWokenInTimeAlsoBeyondTheHorizon(t *testing.T) {
	for name, restart := range map[string]bool{"under the leader that parked it": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, caller("boss", "hand"), agentNamed("hand"), agentNamed("echo"))
			h.change = func(c *Config) { c.MaxTimers = 2 }
			h.open()
			boss := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			h.parkOn(boss, "all", callsOf("hand", 1))
			until := run.At(h.now).Add(3 * horizon)
			if n := h.work("w2", "hand", func(runtime.Assignment) runtime.Report {
				return runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnTimer, Step: "nap", Until: until}}
			}); n != 1 {
				t.Fatalf("%d children were leased", n)
			}
			for i := range 8 { // others that are due sooner fill the bound
				h.submit(Submission{Agent: "echo", NotBefore: h.now.Add(time.Duration(i+1) * time.Minute)})
			}
			if restart {
				h.open()
			}
			child := childID(boss.ID, "all", 0)
			for run.At(h.now) < until {
				wantState(t, h.get(child), run.Waiting, "")
				h.pass(2 * time.Minute)
			}
			if got := h.get(child); got.State == run.Waiting {
				t.Errorf("the child still waits, %s after its time", run.At(h.now).Sub(until))
			}
		})
	}
}

func TestMoreRunsThanOneReadGivesAreChangedAtOnce(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	n := store.MaxPage + 5
	h.putHeld(n, 0)
	edits := make([]edit, n)
	for i := range edits {
		edits[i] = h.p.due(fmt.Sprintf("held-%05d", i))
	}
	h.mu.Lock()
	h.now = h.now.Add(2 * time.Minute)
	h.mu.Unlock()
	for i, o := range h.p.changeAll(t.Context(), edits) {
		if o.err != nil || o.rec.State != run.Queued {
			t.Fatalf("run %d: %+v", i, o)
		}
	}
}
