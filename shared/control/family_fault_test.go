package control

import (
	"context"
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

// F43: whatever dies between a child's result and the join, the join comes once, with all results in order.
func TestAFanInSurvivesRestartsAndRepeats(t *testing.T) {
	const size = 100
	for seed := range uint64(20) {
		roll := seed*0x9e3779b97f4a7c15 + 1
		chance := func(n uint64) bool {
			roll ^= roll << 13
			roll ^= roll >> 7
			roll ^= roll << 17
			return roll%n == 0
		}
		h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
		r := h.submit(Submission{Agent: "boss"})
		h.lease("w", 1, "boss")
		// Some are called before the server dies; the attempt calls all of them when it parks.
		if seed%2 == 0 {
			await(h, func() error {
				_, err := h.p.Children(t.Context(), ChildCalls{Run: r.ID, N: 1, Step: "all", Calls: callsOf("hand", size/2)})
				return err
			})
			h.open()
		}
		h.parkOn(r, "all", callsOf("hand", size))
		failed := make(map[string]bool)
		for turn := 0; h.get(r.ID).State == run.Waiting; turn++ {
			if turn > 500 {
				t.Fatalf("seed %d: the join never came", seed)
			}
			for _, a := range h.lease("w2", 7, "hand") {
				rep := done(a)
				if !failed[a.Run] && chance(10) {
					failed[a.Run] = true
					rep = runtime.Report{Type: runtime.Failed, Message: "once"}
				}
				rep.Run, rep.N = a.Run, a.N
				// What was reported is durable; that the index heard of it is not.
				h.p.Report(t.Context(), []runtime.Report{rep})
				if chance(10) {
					h.p.Report(t.Context(), []runtime.Report{rep})
				}
			}
			if chance(3) {
				h.reopen("w2", "hand")
			}
			h.pass(100 * time.Millisecond)
		}
		x := h.joinedOf(r, "all")
		if x.Succeeded != size || len(x.Children) != size {
			t.Fatalf("seed %d: joined %d of %d", seed, x.Succeeded, size)
		}
		for i, c := range x.Children {
			if string(c.Output) != fmt.Sprint(i) {
				t.Fatalf("seed %d: child %d gave %s", seed, i, c.Output)
			}
		}
		woken := 0
		events, _, err := h.p.history(t.Context(), r.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Type == run.EvWoken {
				woken++
			}
		}
		if woken != 1 {
			t.Fatalf("seed %d: woken %d times", seed, woken)
		}
	}
}

// reopen restarts the server; the worker tells the new one that it holds nothing.
func (h *house) reopen(worker, agent string) {
	h.t.Helper()
	h.open()
	if _, err := h.p.Beat(h.t.Context(), WorkerBeat{Worker: worker, Agents: []string{agent}, Slots: 10, Attempts: []string{}}); err != nil {
		h.t.Fatal(err)
	}
	h.settle()
}

func TestAJoinThatCouldNotBeWrittenComesLater(t *testing.T) {
	h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
	faulty := &fullDisk{Store: h.store}
	h.store = faulty
	h.open()
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.parkOn(r, "s", callsOf("hand", 1))
	faulty.refuse = func(u store.Unit) bool { return u.Writes[len(u.Writes)-1].ID == r.ID }
	h.work("w2", "hand", done)
	wantState(t, h.get(r.ID), run.Waiting, "")
	faulty.refuse = nil
	h.pass(2 * time.Second)
	wantState(t, h.get(r.ID), run.Assigned, "")
}

// fullDisk refuses some units as a disk that is full does.
type fullDisk struct {
	store.Store
	refuse func(store.Unit) bool
}

var errFull = errors.New("disk full")

func (f *fullDisk) Commit(ctx context.Context, units []store.Unit) []error {
	errs := make([]error, len(units))
	for i, u := range units {
		if f.refuse != nil && len(u.Writes) > 0 && f.refuse(u) {
			errs[i] = errFull
			continue
		}
		errs[i] = f.Store.Commit(ctx, units[i:i+1])[0]
	}
	return errs
}

func TestASuspendedParentIsWokenWhenItIsResumed(t *testing.T) {
	h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.parkOn(r, "s", callsOf("hand", 2))
	if _, err := h.p.Suspend(t.Context(), r.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	if n := h.work("w2", "hand", done); n != 2 {
		t.Fatalf("%d children went on, want 2", n)
	}
	wantState(t, h.get(r.ID), run.Suspended, run.SuspendedByRequest)
	if _, err := h.p.Resume(t.Context(), r.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	h.settle()
	h.lease("w", 1, "boss")
	h.parkOn(r, "s", callsOf("hand", 2)) // the same calls meet the same children
	if x := h.joinedOf(r, "s"); x.Succeeded != 2 {
		t.Errorf("joined %+v", x)
	}
	wantState(t, h.get(r.ID), run.Assigned, "")
}

func TestADeadlineReachesDescendants(t *testing.T) {
	h := newHouse(t, caller("boss", "mid"), caller("mid", "leaf"), agentNamed("leaf"))
	r := h.submit(Submission{Agent: "boss", Deadline: h.now.Add(time.Minute)})
	h.lease("w", 1, "boss")
	h.parkOn(r, "s", callsOf("mid", 1))
	mid := h.lease("w", 1, "mid")[0]
	h.parkOn(&run.Record{Spec: run.Spec{ID: mid.Run}}, "s", callsOf("leaf", 2))
	leaf := h.lease("w", 1, "leaf")[0]
	for _, d := range h.descendants(r.ID) {
		if d.Deadline != run.At(began.Add(time.Minute)) {
			t.Errorf("the deadline of %s is %v", d.Agent, d.Deadline)
		}
	}
	h.pass(59 * time.Second)
	h.lease("w", 1, "nobody")
	h.pass(2 * time.Second)
	for range 4 {
		h.pass(7 * time.Second)
		h.lease("w", 1, "nobody")
	}
	wantState(t, h.get(r.ID), run.Failed, run.DeadlineExceeded)
	for _, d := range h.descendants(r.ID) {
		if !d.State.Terminal() || d.State == run.Succeeded {
			t.Errorf("%s %s is %s (%s)", d.Agent, d.ID, d.State, d.Reason)
		}
	}
	if res := h.report(runtime.Report{Type: runtime.Completed, Run: leaf.Run, N: 1}); !errors.Is(res.Err, run.ErrFenced) {
		t.Errorf("a late result gave %v", res.Err)
	}
}

// A parent that ended while nobody led takes its children along when somebody does.
func TestATakeoverEndsTheChildrenOfParentsThatEnded(t *testing.T) {
	for name, c := range map[string]struct{ soon bool }{
		"children that are known at once":                      {true},
		"a child that the new leader sees only when it is due": {false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, caller("boss", "hand"), agentNamed("hand", func(a *fleet.Agent) {
				a.Retry.MaxAttempts = 3
				a.Retry.Backoff = fleet.Backoff{Initial: fleet.Duration(time.Hour), Factor: 1, Max: fleet.Duration(time.Hour)}
			}))
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			h.parkOn(r, "s", callsOf("hand", 1), func(p *run.Park) { p.Tolerate = 1 })
			child := childID(r.ID, "s", 0)
			if !c.soon {
				h.lease("w2", 1, "hand")
				h.report(runtime.Report{Type: runtime.Failed, Run: child, N: 1})
				wantState(t, h.get(child), run.Backoff, run.AgentError)
			}
			if _, err := h.p.Cancel(t.Context(), r.ID, CancelRequest{}); err != nil {
				t.Fatal(err)
			}
			// The server dies before it looks.
			h.open()
			if !c.soon {
				h.pass(2 * time.Hour)
			}
			wantState(t, h.get(child), run.Canceled, run.ParentEnded)
		})
	}
}

// The leader knows what others have written as soon as it is told, or by a tick when it is not.
func TestAFamilyIsJoinedWhicheverProcessHeardOfIt(t *testing.T) {
	for name, find := range map[string]func(*district){
		"as soon as the leader hears of it": func(d *district) { d.deliver() },
		"by a tick, when the message is lost": func(d *district) {
			d.others()
			d.post.sent = nil
			d.p.Tick(d.t.Context())
			d.settle()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDistrict(t, caller("boss", "hand"), agentNamed("hand"))
			r := d.submit(Submission{Agent: "boss"})
			if got := d.lease("w", 1, "boss"); len(got) != 1 {
				t.Fatalf("%d leases", len(got))
			}
			res := d.b.Report(t.Context(), []runtime.Report{{
				Type: runtime.Parked, Run: r.ID, N: 1, Worker: "w", Calls: callsOf("hand", 2), Park: &run.Park{On: run.OnChildren, Step: "s", Size: 2},
			}})[0]
			if res.Err != nil {
				t.Fatal(res.Err)
			}
			find(d)
			wantState(t, d.get(r.ID), run.Waiting, "")
			leases := d.lease("w", 2, "hand")
			if len(leases) != 2 {
				t.Fatalf("%d children to execute", len(leases))
			}
			for i, a := range leases {
				p := []*Plane{d.b, d.c}[i]
				if res := p.Report(t.Context(), []runtime.Report{{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: "w", Output: a.Input}})[0]; res.Err != nil {
					t.Fatal(res.Err)
				}
			}
			find(d)
			if x := d.joinedOf(r, "s"); x.Succeeded != 2 {
				t.Errorf("joined %+v", x)
			}
		})
	}
}

// censusStore counts listings by parent, and writes of one run.
type censusStore struct {
	store.Store
	of       string
	listings int
	writes   int
}

func (c *censusStore) List(ctx context.Context, q store.Query) (store.Page, error) {
	if q.By == store.ByParent && q.After == "" {
		c.listings++
	}
	return c.Store.List(ctx, q)
}

func (c *censusStore) Commit(ctx context.Context, units []store.Unit) []error {
	for _, u := range units {
		for _, w := range u.Writes {
			if w.ID == c.of {
				c.writes++
			}
		}
	}
	return c.Store.Commit(ctx, units)
}

func TestAFanOutWritesItsParentAFewTimesAndListsItAtMostOnce(t *testing.T) {
	h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
	counts := &censusStore{Store: h.store}
	h.store = counts
	h.open()
	r := h.submit(Submission{Agent: "boss"})
	counts.of = r.ID
	h.lease("w", 1, "boss")
	h.parkOn(r, "s", callsOf("hand", 200))
	for n, turn := 0, 0; n < 200; turn++ {
		if turn == 10 {
			h.reopen("w2", "hand") // whoever leads next has to find out
		}
		n += h.work("w2", "hand", done)
		if turn > 100 {
			t.Fatalf("%d of 200 children have ended", n)
		}
	}
	if got := h.lease("w", 1, "boss"); len(got) != 1 || got[0].Run != r.ID {
		t.Fatalf("the parent does not go on: %+v", got)
	}
	h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 2})
	if counts.writes > 6 {
		t.Errorf("the parent was written %d times", counts.writes)
	}
	if counts.listings > 1 {
		t.Errorf("its children were listed %d times", counts.listings)
	}
	if n := len(h.p.ix.kin.of); n != 0 {
		t.Errorf("%d families are remembered after the end", n)
	}
}

func TestAnExplanationTellsHowFarTheChildrenAre(t *testing.T) {
	h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.parkOn(r, "checks", callsOf("hand", 3), func(p *run.Park) { p.Tolerate = 1 })
	h.lease("w2", 1, "hand")
	rep := failedFor("X")(runtime.Assignment{})
	rep.Run, rep.N = childID(r.ID, "checks", 0), 1
	h.report(rep)
	for _, restarted := range []bool{false, true} {
		if restarted {
			h.open()
		}
		e, err := h.p.Explain(t.Context(), r.ID, "")
		if err != nil {
			t.Fatal(err)
		}
		want := "It waits for the 3 children of step checks and holds no slot: 1 have ended, 1 of them failed. It goes on when all have ended, or 2 have failed."
		if got := strings.Join(e.Story, "\n"); !strings.Contains(got, want) {
			t.Errorf("story:\n%s\nwant: %s", got, want)
		}
	}
}

func TestUnitsOfChildrenFollowFromTheUnitOfTheParent(t *testing.T) {
	parent := &run.Record{Spec: run.Spec{ID: "p", Unit: "order-7"}}
	if got := childUnit(parent, "s", 3); got != "order-7/s/3" {
		t.Errorf("unit %q", got)
	}
	parent.Unit = strings.Repeat("x", run.MaxKey)
	long := childUnit(parent, "s", 3)
	if len(long) > maxUnit || long == childUnit(parent, "s", 4) || long != childUnit(parent, "s", 3) {
		t.Errorf("unit %q", long)
	}
}
