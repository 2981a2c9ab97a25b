package control

import (
	"context"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
)

// shared is a store that several processes have open, as those in the cloud do.
type shared struct{ store.Store }

func (shared) Exclusive() bool { return false }

// clocks give each process its own monotonic clock: only what passes is the same for all.
type clocks struct {
	t      *testing.T
	passed time.Duration
}

func (c *clocks) of(start time.Duration) time.Duration { return c.passed + start }

func (c *clocks) step(l *lead, skew time.Duration) {
	c.t.Helper()
	if err := l.Step(c.t.Context(), c.of(skew)); err != nil {
		c.t.Fatal(err)
	}
}

func newClocks(t *testing.T) *clocks {
	return &clocks{t: t}
}

func TestALiveLeaseIsNeverTakenAndADeadOneIsWithinItsPeriod(t *testing.T) { // case F50
	c := newClocks(t)
	st := shared{memory.Open()}
	a, b := newLead(st, "a"), newLead(st, "b")
	const early, late = time.Second, time.Hour // they booted at different times
	for range 600 {
		c.step(a, early)
		c.step(b, late)
		if !a.Leads(c.of(early)) {
			t.Fatalf("after %s the live holder does not lead", c.passed)
		}
		if b.Leads(c.of(late)) {
			t.Fatalf("after %s a live lease was taken", c.passed)
		}
		c.passed += time.Second
	}
	dead := c.passed
	for !b.Leads(c.of(late)) {
		if c.passed-dead > leadPeriod+2*time.Second {
			t.Fatal("a dead holder was not replaced within its period")
		}
		c.passed += time.Second
		c.step(b, late)
	}
	if a.Leads(c.of(early)) {
		t.Error("the dead holder would still decide")
	}
	if b.Epoch() != a.Epoch()+1 {
		t.Errorf("epochs are %d, then %d", a.Epoch(), b.Epoch())
	}
}

// looks counts the reads of a store.
type looks struct {
	store.Store
	n int
}

func (s *looks) Get(ctx context.Context, kind store.Kind, id string) (store.Doc, error) {
	s.n++
	return s.Store.Get(ctx, kind, id)
}

func TestALeaseOfAnotherIsLookedAtOnceASecondHoweverOftenTheLoopComesBy(t *testing.T) {
	c := newClocks(t)
	st := shared{memory.Open()}
	count := &looks{Store: st}
	a, b := newLead(st, "a"), newLead(count, "b")
	c.step(a, 0)
	for range 100 {
		c.step(b, 0)
		c.passed += 100 * time.Millisecond
		c.step(a, 0)
	}
	if count.n != 10 {
		t.Errorf("%d looks in ten seconds, want 10", count.n)
	}
}

func TestAHolderStopsDecidingBeforeItsLeaseMayBeTaken(t *testing.T) {
	c := newClocks(t)
	st := shared{memory.Open()}
	a, b := newLead(st, "a"), newLead(st, "b")
	c.step(a, 0)
	c.step(b, 0)
	for c.passed = 0; c.passed <= leadPeriod; c.passed += 100 * time.Millisecond {
		c.step(b, 0)
		if a.Leads(c.of(0)) && b.Leads(c.of(0)) {
			t.Fatalf("after %s of silence two lead", c.passed)
		}
	}
	if !b.Leads(c.of(0)) {
		t.Fatal("nobody took over")
	}
	c.step(a, 0) // it wakes up and finds that it was replaced
	if a.Leads(c.of(0)) {
		t.Fatal("the replaced holder leads")
	}
}

func TestTheLeaseIsHandedOverOnRequestAndOnResigning(t *testing.T) {
	for name, ask := range map[string]bool{"a successor asks": true, "the holder resigns": false} {
		t.Run(name, func(t *testing.T) {
			c := newClocks(t)
			st := shared{memory.Open()}
			a, b := newLead(st, "a"), newLead(st, "b")
			c.step(a, 0)
			c.step(b, 0)
			var err error
			if ask {
				err = b.Ask(t.Context(), c.of(0))
			} else {
				err = a.Resign(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			c.passed += leadRenew
			if ask {
				c.step(a, 0)
			}
			c.step(b, 0)
			if a.Leads(c.of(0)) || !b.Leads(c.of(0)) {
				t.Fatalf("a leads %t, b leads %t", a.Leads(c.of(0)), b.Leads(c.of(0)))
			}
		})
	}
}

func TestAnExclusiveStoreHasOneLeaderAtOnceAndRenewsNothing(t *testing.T) {
	c := newClocks(t)
	st := memory.Open()
	a := newLead(st, "a")
	c.step(a, 0)
	c.passed = time.Hour
	if !a.Leads(c.of(0)) || wants(a, c.of(0)) {
		t.Error("the only process does not lead for ever")
	}
	b := newLead(st, "b") // the process after a crash
	c.step(b, 0)
	if !b.Leads(c.of(0)) || b.Epoch() != 2 {
		t.Errorf("its successor leads %t in epoch %d", b.Leads(c.of(0)), b.Epoch())
	}
}

func wants(l *lead, mono time.Duration) bool { _, ok := l.Next(mono); return ok }

// slow is a store whose reads take until they are let go.
type slow struct {
	store.Store
	reading, letGo chan struct{}
}

func (s slow) Get(ctx context.Context, kind store.Kind, id string) (store.Doc, error) {
	s.reading <- struct{}{}
	<-s.letGo
	return s.Store.Get(ctx, kind, id)
}

func TestNobodyWhoAsksWhoLeadsWaitsForTheStore(t *testing.T) {
	c := newClocks(t)
	st := slow{shared{memory.Open()}, make(chan struct{}), make(chan struct{})}
	l := newLead(st, "a")
	done := make(chan error, 1)
	go func() { done <- l.Step(t.Context(), c.of(0)) }()
	<-st.reading
	if _, ok := l.Next(c.of(0)); l.Leads(c.of(0)) || l.Epoch() != 0 || !ok { // each would wait for ever
		t.Error("it leads before it has the lease")
	}
	close(st.letGo)
	if err := <-done; err != nil || !l.Leads(c.of(0)) {
		t.Errorf("got %v, and it leads: %t", err, l.Leads(c.of(0)))
	}
}
