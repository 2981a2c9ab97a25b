package control

import (
	"context"
	"errors"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
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

// failing is a store that refuses the commits that its test chooses.
type failing struct {
	store.Store
	fails func(units []store.Unit) bool
}

func (s *failing) Commit(ctx context.Context, units []store.Unit) []error {
	if s.fails != nil && s.fails(units) {
		errs := make([]error, len(units))
		for i := range errs {
			errs[i] = errLine
		}
		return errs
	}
	return s.Store.Commit(ctx, units)
}

// unreadable is a store that finds no document.
type unreadable struct{ store.Store }

func (unreadable) Exclusive() bool { return false }
func (unreadable) Get(context.Context, store.Kind, string) (store.Doc, error) {
	return store.Doc{}, errLine
}

func TestWhatASilentWorkerHeldIsTakenBackAlsoWhenThatCannotBeWrittenAtOnce(t *testing.T) {
	h := newHouse(t, agentNamed("echo", func(a *fleet.Agent) { a.Timeouts.Attempt = fleet.Duration(time.Hour) }))
	h.lease("w1", 5, "echo")
	r := h.submit(Submission{Agent: "echo"})
	h.lease("w1", 5, "echo")
	doubt(h).failed = 1
	h.pass(16 * time.Second)
	h.pass(2 * time.Second)
	if got := h.get(r.ID); got.Live() {
		t.Fatalf("the run is %s in attempt %d, on a worker that is gone", got.State, got.Attempt)
	}
}

func TestAttemptsOfADeadServerAreTakenBackAlsoWhenThatCannotBeWrittenAtOnce(t *testing.T) {
	h, x := localHouse(t, 1, agentNamed("echo", withCommand))
	r := h.submit(Submission{Agent: "echo"})
	again := 1
	h.store = &failing{h.store, func(units []store.Unit) bool {
		if units[0].Writes[len(units[0].Writes)-1].Kind != store.KindRun || again == 0 {
			return false
		}
		again--
		return true
	}}
	h.open() // the next server
	h.pass(2 * time.Second)
	if got := h.get(r.ID); got.Attempt != 2 || len(x.started) != 2 {
		t.Fatalf("the run is %s in attempt %d, after %d starts", got.State, got.Attempt, len(x.started))
	}
}

func TestARunThatBeganUnderAnErrorIsNotForgotten(t *testing.T) {
	for name, late := range map[string]bool{"its worker ends": false, "its worker ended before the run was known": true} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("echo", func(a *fleet.Agent) { a.Timeouts.Attempt = fleet.Duration(time.Hour) }))
			doubt(h).applied = 1
			b := Beginning{Worker: "direct", Submission: Submission{Agent: "echo", Key: "k"}}
			if _, err := h.p.Begin(t.Context(), b); err == nil {
				t.Fatal("an outage was answered with an attempt")
			}
			if !late {
				h.settle()
			}
			h.pass(16 * time.Second)
			h.pass(16 * time.Second)
			out := h.submit(b.Submission)
			if got := h.get(out.ID); got.Live() {
				t.Fatalf("the run is %s on %s, whose worker is gone", got.State, got.Current().Node)
			}
		})
	}
}

func TestALoopThatMeetsAnOutageTriesAgainInAMoment(t *testing.T) {
	for name, meet := range map[string]func(*house, *doubtful){
		"what is in doubt cannot be read, and shares wait to be kept": func(h *house, s *doubtful) {
			h.submit(Submission{Agent: "echo"})
			s.applied, s.reads = 1, 1000
			await(h, func() Submitted { return h.p.Submit(h.t.Context(), []Submission{{Agent: "echo"}})[0] })
			h.pass(time.Minute)
		},
		"what is due next cannot be read": func(h *house, s *doubtful) {
			s.failDues(1000)
			h.pass(horizon)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := localHouse(t, 5, agentNamed("echo", withCommand))
			meet(h, doubt(h))
			if _, rest := h.p.Wait(); rest < time.Second/2 || rest > time.Second {
				t.Errorf("it looks again after %s", rest)
			}
		})
	}
}

func TestALeaseThatCannotBeRenewedIsTriedAgainInAMoment(t *testing.T) {
	c := newClocks(t)
	st := shared{memory.Open()}
	l := newLead(st, "a")
	c.step(l, 0)
	c.passed = leadRenew
	l.store = unreadable{st}
	if err := l.Step(t.Context(), c.of(0)); !errors.Is(err, errLine) {
		t.Fatalf("renew: %v", err)
	}
	if d, ok := l.Next(c.of(0)); !ok || d < time.Second/2 {
		t.Errorf("it tries again after %s, %t", d, ok)
	}
}

func TestAProcessThatLostTheLeadRests(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	h.store = &shareable{doubtful: doubtful{Store: h.store}}
	h.open()
	h.pass(leadPeriod)
	if _, err := h.p.Score(t.Context(), h.submit(Submission{Agent: "echo"}).ID, 1, "ann", ""); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.now = h.now.Add(time.Hour)
	h.mu.Unlock()
	other := newLead(h.store, "other")
	for _, mono := range []time.Duration{0, leadPeriod} {
		if err := other.Step(t.Context(), mono); err != nil {
			t.Fatal(err)
		}
	}
	h.p.Step(t.Context(), h.p.now())
	if _, rest := h.p.Wait(); h.p.leads() || rest < time.Second/2 {
		t.Errorf("it rests for %s, leads %t", rest, h.p.leads())
	}
}
