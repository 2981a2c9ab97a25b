package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

const hour = time.Hour

// keeps makes an agent whose finished runs are kept for so long.
func keeps(name string, d time.Duration) *fleet.Agent {
	return agentNamed(name, func(a *fleet.Agent) { a.Retain = fleet.Duration(d) })
}

// gone reports whether a run is removed, which it is with all that it owned or not at all.
func (h *house) gone(id string) bool {
	h.t.Helper()
	_, err := h.p.Get(h.t.Context(), id)
	switch {
	case err == nil:
		return false
	case !isNotFound(err):
		h.t.Fatal(err)
	}
	for kind := store.KindRun; kind <= store.KindMisc; kind++ {
		docs, err := h.store.Owned(h.t.Context(), kind, id, "", 100)
		if err != nil || len(docs) > 0 {
			h.t.Errorf("run %s is removed, and %d documents of kind %s are left, %v", id, len(docs), kind, err)
		}
	}
	return true
}

// finish runs one to its end.
func (h *house) finish(s Submission) *run.Record {
	h.t.Helper()
	r := h.submit(s)
	h.lease("w1", 5, s.Agent)
	h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1})
	return h.get(r.ID)
}

// put stores a run that is in a state, as another process would.
func (h *house) put(id, parent string, state run.State) {
	h.t.Helper()
	at := run.At(h.now)
	r := run.New(run.Spec{ID: id, Agent: "echo", Tenant: "default", CreatedAt: at, Parent: parent, RetainFor: hour.Milliseconds()},
		run.Event{Type: run.EvSubmitted, At: at})
	switch state {
	case run.Suspended:
		run.Evolve(r, run.Event{Type: run.EvSuspended, At: at})
	case run.Failed:
		run.Evolve(r, run.Event{Type: run.EvFailed, At: at, Reason: run.QueueTimeout, Due: at.Add(hour)})
	}
	if err := h.store.Commit(h.t.Context(), []store.Unit{{Token: id, Writes: []store.Write{Document(r, 0)}}})[0]; err != nil {
		h.t.Fatal(err)
	}
}

func TestAFinishedRunStaysAsLongAsItIsNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		retain time.Duration
		change func(*Config)
		// prepare ends a run and returns its id; settle, if not nil, ends the need for it.
		prepare func(h *house) string
		settle  func(h *house, id string)
		stays   time.Duration // at least so long after its end
		goes    time.Duration // no longer than so long after its end, or after settle; 0: never
	}{
		"no longer than its agent says": {
			retain:  hour,
			prepare: func(h *house) string { return h.finish(Submission{Agent: "echo"}).ID },
			stays:   59 * time.Minute, goes: 61 * time.Minute,
		},
		"for ever where its agent says so": {
			retain:  time.Duration(fleet.Forever),
			prepare: func(h *house) string { return h.finish(Submission{Agent: "echo"}).ID },
			stays:   5 * 365 * 24 * hour,
		},
		"no longer than the server keeps any": {
			retain:  time.Duration(fleet.Forever),
			change:  func(c *Config) { c.RetainMax = 2 * hour },
			prepare: func(h *house) string { return h.finish(Submission{Agent: "echo"}).ID },
			stays:   hour, goes: 3 * hour,
		},
		"while a repeat of its submission may come": {
			retain:  hour,
			prepare: func(h *house) string { return h.finish(Submission{Agent: "echo", Key: "k"}).ID },
			stays:   23 * hour, goes: 25 * hour,
		},
		"while a retry of it is there": {
			retain: hour,
			prepare: func(h *house) string {
				id := h.finish(Submission{Agent: "echo"}).ID
				h.retry(id)
				return id
			},
			settle: func(h *house, id string) {
				again := h.lease("w1", 1, "echo")
				h.report(runtime.Report{Type: runtime.Completed, Run: again[0].Run, N: again[0].N})
			},
			stays: 10 * hour, goes: 2 * hour,
		},
		"while its parent has not ended": {
			retain: hour,
			prepare: func(h *house) string {
				h.put("parent", "", run.Suspended)
				h.put("child", "parent", run.Failed)
				return "child"
			},
			settle: func(h *house, _ string) {
				if _, err := h.p.Cancel(h.t.Context(), "parent", CancelRequest{}); err != nil {
					h.t.Fatal(err)
				}
			},
			stays: 10 * hour, goes: 2 * hour,
		},
		"while a child of it is there": {
			retain: hour,
			prepare: func(h *house) string {
				h.put("parent", "", run.Failed)
				h.put("child", "parent", run.Suspended)
				return "parent"
			},
			settle: func(h *house, _ string) {
				if _, err := h.p.Cancel(h.t.Context(), "child", CancelRequest{}); err != nil {
					h.t.Fatal(err)
				}
			},
			stays: 10 * hour, goes: 2 * hour,
		},
		"while nobody has settled what became of its effects": {
			retain: hour,
			prepare: func(h *house) string {
				r := h.submit(Submission{Agent: "echo"})
				h.lease("w1", 1, "echo")
				h.effect(r.ID, 1, "mail")
				h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Class: run.ClassUser, Final: true})
				return r.ID
			},
			settle: func(h *house, id string) {
				receipts, err := h.p.Receipts(h.t.Context(), id)
				if err != nil {
					h.t.Fatal(err)
				}
				if _, err := h.p.Resolve(h.t.Context(), receipts[0].ID, true, nil, "ann"); err != nil {
					h.t.Fatal(err)
				}
			},
			stays: 10 * hour, goes: hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, keeps("echo", c.retain))
			h.change = c.change
			h.open()
			id := c.prepare(h)
			h.open() // what was put is found by the next process
			h.pass(c.stays)
			for range 3 {
				h.pass(2 * time.Second)
			}
			if h.gone(id) {
				t.Fatalf("run %s is removed after %s", id, c.stays)
			}
			passed := c.stays
			if c.settle != nil {
				c.settle(h, id)
				passed = 0
			}
			if c.goes == 0 {
				return
			}
			h.pass(c.goes - passed)
			for range 10 {
				h.pass(30 * time.Second)
			}
			if !h.gone(id) {
				t.Fatalf("run %s is there still", id)
			}
		})
	}
}

func (h *house) retry(id string) *run.Record {
	h.t.Helper()
	out := await(h, func() Submitted {
		r, err := h.p.Retry(h.t.Context(), id, nil, "ann")
		return Submitted{Run: r, Err: err}
	})
	if out.Err != nil {
		h.t.Fatal(out.Err)
	}
	return out.Run
}

func (h *house) effect(id string, n int, name string) {
	h.t.Helper()
	a, err := h.p.BeginEffect(h.t.Context(), EffectBegin{Run: id, N: n, Effect: name, RequestHash: "h", Nonce: name})
	if err != nil || a.Answer != string(run.BeginProceed) {
		h.t.Fatalf("begin effect: %+v, %v", a, err)
	}
}

// spy sees what is read and written.
type spy struct {
	mu sync.Mutex
	store.Store
	due     func(part store.Part, limit int)
	commits func(units []store.Unit)
}

func (s *spy) Due(ctx context.Context, part store.Part, until, afterWake int64, afterID string, limit int) ([]store.Doc, error) {
	s.mu.Lock()
	s.due(part, limit)
	s.mu.Unlock()
	return s.Store.Due(ctx, part, until, afterWake, afterID, limit)
}

func (s *spy) Commit(ctx context.Context, units []store.Unit) []error {
	s.commits(units)
	return s.Store.Commit(ctx, units)
}

func TestARunGoesWithAllThatItOwnsInSmallWrites(t *testing.T) {
	h := newHouse(t, keeps("echo", hour))
	// 1. A run that owns much.
	big, err := json.Marshal(strings.Repeat("x", run.MaxInline+1))
	if err != nil {
		t.Fatal(err)
	}
	r := h.submit(Submission{Agent: "echo", Input: big})
	h.lease("w1", 1, "echo")
	for i := range 100 {
		h.report(runtime.Report{Type: runtime.StepDone, Run: r.ID, N: 1, Step: &runtime.Step{Name: fmt.Sprint(i), Result: json.RawMessage(`1`)}})
		h.report(runtime.Report{Type: runtime.Logged, Run: r.ID, N: 1, Logs: []runtime.LogLine{{Stream: "agent", Text: "x"}}})
	}
	for i := range 60 {
		if _, err := h.p.Signal(t.Context(), r.ID, "s", fmt.Sprint(i), big, "ann"); err != nil {
			t.Fatal(err)
		}
	}
	h.effect(r.ID, 1, "mail")
	if _, err := h.p.EndEffect(t.Context(), EffectEnd{Run: r.ID, N: 1, Effect: "mail", Value: big}); err != nil {
		t.Fatal(err)
	}
	h.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Output: big})
	for _, kind := range []store.Kind{store.KindHistory, store.KindStep, store.KindLog, store.KindPayload, store.KindReceipt} {
		if docs, err := h.store.Owned(t.Context(), kind, r.ID, "", 10); err != nil || len(docs) == 0 {
			t.Fatalf("it owns no %s: %v", kind, err)
		}
	}
	// 2. Its end.
	h.p.store = &spy{Store: h.store, due: func(store.Part, int) {}, commits: func(units []store.Unit) {
		for _, u := range units {
			if len(u.Writes) > 32 {
				t.Errorf("one write of %d documents", len(u.Writes))
			}
			for _, id := range u.Purge {
				left := 0
				for kind := store.KindHistory; kind <= store.KindMisc; kind++ {
					docs, err := h.store.Owned(t.Context(), kind, id, "", 1000)
					if err != nil {
						t.Fatal(err)
					}
					left += len(docs)
				}
				if left > 60 {
					t.Errorf("%d documents are left for the last write", left)
				}
			}
		}
	}}
	h.pass(2 * hour)
	if !h.gone(r.ID) {
		t.Fatal("it is there still")
	}
}

func TestRemovalIsDoneInBitesWithPauses(t *testing.T) {
	h := newHouse(t, keeps("echo", hour))
	for i := range 3*removeRuns + 5 {
		h.put(fmt.Sprint("r", i), "", run.Failed)
	}
	h.open()
	bites, most := 0, 0
	h.p.store = &spy{Store: h.store, due: func(_ store.Part, limit int) { most = max(most, limit) }, commits: func(units []store.Unit) {
		bites++
		if len(units) > removeRuns {
			t.Errorf("%d runs in a bite", len(units))
		}
	}}
	h.pass(2 * hour)
	if bites != 1 {
		t.Fatalf("%d bites at once", bites)
	}
	for range 4 {
		h.pass(removePause)
	}
	page, err := h.store.List(t.Context(), store.Query{By: store.ByCreated, Limit: 10})
	if err != nil || len(page.Docs) != 0 || most > store.MaxPage {
		t.Fatalf("%d runs are left after %d bites, %v", len(page.Docs), bites, err)
	}
	// Then nothing is looked at until something is due again.
	h.p.store.(*spy).due = func(store.Part, int) { t.Error("it looks for what is not there") }
	h.pass(4 * time.Minute)
}

func TestFinishedRunsAreNotReadWhenTheLeadIsTaken(t *testing.T) {
	h := newHouse(t, keeps("echo", hour))
	for i := range 50 {
		h.put(fmt.Sprint("r", i), "", run.Failed)
	}
	h.mu.Lock()
	h.now = h.now.Add(2 * hour) // all of them are overdue
	h.mu.Unlock()
	p, err := New(Config{Store: &spy{Store: h.store, commits: func([]store.Unit) {}, due: func(part store.Part, _ int) {
		if part == store.PartEnded {
			t.Error("the part of what has ended is read")
		}
	}}, Clock: h.p.cfg.Clock, Monotonic: h.p.cfg.Monotonic})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := p.ix.timers.Len(); n != 0 {
		t.Errorf("%d of them are in memory", n)
	}
}

func TestARunThatIsAboutToGoIsNotRetried(t *testing.T) {
	h := newHouse(t, keeps("echo", hour))
	r := h.finish(Submission{Agent: "echo"})
	h.mu.Lock()
	h.now = h.now.Add(hour - retryMargin/2)
	h.mu.Unlock()
	var refusal *Refusal
	if _, err := h.p.Retry(t.Context(), r.ID, nil, "ann"); !errors.As(err, &refusal) || refusal.Code != CodeState {
		t.Fatalf("retry gave %v", err)
	}
}

func TestARemovedRunIsToldApartFromNothing(t *testing.T) {
	h := newHouse(t, keeps("echo", hour))
	r := h.finish(Submission{Agent: "echo"})
	h.pass(2 * hour)
	_, err := h.p.Get(t.Context(), r.ID)
	if !isNotFound(err) || !strings.Contains(err.Error(), "retain") {
		t.Fatalf("get gave %v", err)
	}
}

func TestRunsAtRestHoldNoMemory(t *testing.T) {
	c := newCache(1_000_000)
	for _, state := range []run.State{run.Waiting, run.Backoff, run.Suspended, run.Held, run.Succeeded} {
		for i := range 2 * lastAtRest {
			c.put(&run.Record{Spec: run.Spec{ID: fmt.Sprint(state, i)}, State: state, Seq: 1})
		}
	}
	if len(c.m) != lastAtRest {
		t.Errorf("%d records are kept, want %d", len(c.m), lastAtRest)
	}
	c.put(&run.Record{Spec: run.Spec{ID: "live"}, State: run.Running, Seq: 1})
	for i := range 2 * lastAtRest {
		c.put(&run.Record{Spec: run.Spec{ID: fmt.Sprint(i)}, State: run.Waiting, Seq: 1})
	}
	if c.get("live") == nil {
		t.Error("a live run gave way to runs at rest")
	}
}

func TestWhatWasReadBeforeARemovalIsNotRemembered(t *testing.T) {
	c := newCache(10)
	mark := c.forgotten()
	old := &run.Record{Spec: run.Spec{ID: "a"}, State: run.Failed, Seq: 7}
	c.put(old)
	c.forget("a")
	c.read(old, mark)
	if c.get("a") != nil {
		t.Error("a removed run is remembered")
	}
	c.read(old, c.forgotten())
	if c.get("a") == nil {
		t.Error("what was read afterwards is not")
	}
}

func TestRemovalLeavesTimeToOthers(t *testing.T) {
	for name, c := range map[string]struct{ took, behind, want time.Duration }{
		"a quarter of the time is its own": {10 * time.Millisecond, time.Minute, 30 * time.Millisecond},
		"half of it when it is behind":     {10 * time.Millisecond, 2 * hour, 10 * time.Millisecond},
		"and a little at least":            {0, 2 * hour, removePause},
	} {
		if got := pauseAfter(c.took, c.behind); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestWhatIsNeededStillIsLookedAtNowAndThen(t *testing.T) {
	h := newHouse(t, keeps("echo", hour))
	h.put("parent", "", run.Failed)
	h.put("child", "parent", run.Suspended)
	h.open()
	h.pass(2 * hour)
	looks := 0
	h.p.store = &spy{Store: h.store, commits: func([]store.Unit) {}, due: func(part store.Part, _ int) {
		if part == store.PartEnded {
			looks++
		}
	}}
	for range 300 {
		h.pass(time.Second)
	}
	if looks < 4 || looks > 2*6 { // what is due, and what is due next, in each round
		t.Errorf("%d looks in five minutes", looks)
	}
}
