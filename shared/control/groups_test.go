package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// writer is an agent of which one run per vendor is in progress at a time.
func writer(change ...func(*fleet.Agent)) *fleet.Agent {
	return agentNamed("writer", append([]func(*fleet.Agent){func(a *fleet.Agent) {
		a.Concurrency.PerKey = &fleet.PerKey{Key: `tenant + "/" + input.vendor`, Max: 1}
	}}, change...)...)
}

func vendor(name string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"vendor":%q}`, name))
}

func (h *house) runsOf(leases []runtime.Assignment) (ids []string) {
	for _, l := range leases {
		ids = append(ids, l.Run)
	}
	slices.Sort(ids)
	return ids
}

func sortedIDs(ids ...string) []string { slices.Sort(ids); return ids }

func TestOneRunPerKeyIsInProgressAtATime(t *testing.T) {
	h := newHouse(t, writer())
	h.lease("w1", 1, "writer")
	a1 := h.submit(Submission{Agent: "writer", Input: vendor("a")})
	a2 := h.submit(Submission{Agent: "writer", Input: vendor("a")})
	a3 := h.submit(Submission{Agent: "writer", Input: vendor("a")})
	b1 := h.submit(Submission{Agent: "writer", Input: vendor("b")})
	c1 := h.submit(Submission{Agent: "writer", Tenant: "other", Input: vendor("a")})
	if d := cmp.Diff(sortedIDs(a1.ID, b1.ID, c1.ID), h.runsOf(h.lease("w1", 9, "writer"))); d != "" {
		t.Fatalf("one run of each key and tenant, -want +got:\n%s", d)
	}
	for id, want := range map[string]string{
		a2.ID: "group writer/default/a: 1 of 1 in use by " + a1.ID,
		a3.ID: "group writer/default/a: 1 of 1 in use by " + a1.ID + "; 1 come before it",
	} {
		e, err := h.p.Explain(t.Context(), id, "")
		if err != nil || e.Queue == nil || e.Queue.Limit != want {
			t.Fatalf("explain %s: %+v, %v; want %q", id, e.Queue, err, want)
		}
		wantState(t, h.get(id), run.Queued, "")
	}
	h.open() // what is in line is found again
	if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"writer"}, Slots: 10, Attempts: []string{a1.ID + ".1", b1.ID + ".1", c1.ID + ".1"}}); err != nil {
		t.Fatal(err)
	}
	if more := h.lease("w1", 9, "writer"); len(more) != 0 {
		t.Fatalf("after a restart %v runs beside %s", h.runsOf(more), a1.ID)
	}
	h.report(runtime.Report{Type: runtime.Completed, Run: a1.ID, N: 1, Worker: "w1"})
	if d := cmp.Diff([]string{a2.ID}, h.runsOf(h.lease("w1", 9, "writer"))); d != "" {
		t.Fatalf("after the first of the key ended, -want +got:\n%s", d)
	}
}

// Whatever becomes of a run in line: it leaves it, nobody behind it waits for it, and the place goes to the next.
func TestALineGoesOnWithoutWhoeverLeavesIt(t *testing.T) {
	cancel := func(h *house, id string, _ func(time.Duration)) error {
		_, err := h.p.Cancel(h.t.Context(), id, CancelRequest{})
		return err
	}
	for name, c := range map[string]struct {
		second Submission
		leave  func(h *house, id string, wait func(time.Duration)) error
		state  run.State
		reason run.Reason
	}{
		"canceled": {leave: cancel, state: run.Canceled, reason: run.CanceledByRequest},
		"suspended": {leave: func(h *house, id string, _ func(time.Duration)) error {
			_, err := h.p.Suspend(h.t.Context(), id, "")
			return err
		}, state: run.Suspended, reason: run.SuspendedByRequest},
		"past its deadline": {second: Submission{Deadline: began.Add(time.Minute)}, leave: func(h *house, id string, wait func(time.Duration)) error {
			wait(time.Minute)
			return nil
		}, state: run.Failed, reason: run.DeadlineExceeded},
		"longer in the queue than it may be": {leave: func(h *house, id string, wait func(time.Duration)) error {
			wait(110 * time.Second)
			return nil
		}, state: run.Failed, reason: run.QueueTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, writer(func(a *fleet.Agent) { a.Timeouts.Queue = fleet.Duration(2 * time.Minute) }))
			h.lease("w1", 1, "writer")
			first := h.submit(Submission{Agent: "writer", Input: vendor("a")})
			h.lease("w1", 9, "writer")
			c.second.Agent, c.second.Input = "writer", vendor("a")
			second := h.submit(c.second)
			wait := func(d time.Duration) {
				for range d / (10 * time.Second) {
					h.pass(10 * time.Second)
					if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"writer"}, Slots: 10, Attempts: []string{first.ID + ".1"}}); err != nil {
						t.Fatal(err)
					}
				}
			}
			wait(10 * time.Second)
			third := h.submit(Submission{Agent: "writer", Input: vendor("a")})
			if err := c.leave(h, second.ID, wait); err != nil {
				t.Fatal(err)
			}
			wantState(t, h.get(second.ID), c.state, c.reason)
			h.report(runtime.Report{Type: runtime.Completed, Run: first.ID, N: 1, Worker: "w1"})
			if d := cmp.Diff([]string{third.ID}, h.runsOf(h.lease("w1", 9, "writer"))); d != "" {
				t.Fatalf("after the first ended, -want +got:\n%s", d)
			}
		})
	}
}

// Case F29 for groups: runs end in all ways, with restarts between, and no place is left in use.
func TestEveryPlaceInAGroupComesBack(t *testing.T) { // case F29
	h := newHouse(t, writer(func(a *fleet.Agent) {
		a.Concurrency.PerKey.Max = 2
		a.Retry.MaxAttempts = 2
		a.Timeouts.Attempt = fleet.Duration(20 * time.Second)
	}))
	h.lease("w1", 1, "writer")
	open := make(map[string]string) // vendor by run
	for i := range 1000 {
		v := fmt.Sprintf("v%d", i%7)
		open[h.submit(Submission{Agent: "writer", Input: vendor(v), Priority: new(i % 50)}).ID] = v
	}
	ends := []runtime.Report{{Type: runtime.Completed}, {Type: runtime.Failed, Final: true}, {Type: runtime.Released}, {Type: runtime.Failed, Class: run.ClassInfrastructure}, {Type: runtime.Parked, Park: &run.Park{On: run.OnTimer}}}
	for turn := 0; len(open) > 0; turn++ {
		if turn > 2000 {
			t.Fatalf("%d runs never ended", len(open))
		}
		h.pass(time.Second)
		if turn%40 == 39 {
			h.open()
		}
		if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"writer"}, Slots: 10}); err != nil {
			t.Fatal(err)
		}
		at := make(map[string]int)
		for i, l := range h.lease("w1", 10, "writer") {
			if at[open[l.Run]]++; at[open[l.Run]] > 2 {
				t.Fatalf("%d runs of %s at once", at[open[l.Run]], open[l.Run])
			}
			r := ends[(turn+i)%len(ends)]
			r.Run, r.N, r.Worker = l.Run, l.N, "w1"
			switch {
			case turn%11 == 3 && i == 1: // it is silent until its time is over
				continue
			case turn%7 == 2:
				if _, err := h.p.Cancel(t.Context(), l.Run, CancelRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			h.report(r)
		}
		if ids := slices.Sorted(maps.Keys(open)); turn%5 == 0 { // some that wait go too
			if _, err := h.p.Cancel(t.Context(), ids[len(ids)/2], CancelRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		for id := range open {
			if r := h.p.records.get(id); r == nil || r.State.Terminal() {
				if h.get(id).State.Terminal() {
					delete(open, id)
				}
			}
		}
	}
	h.pass(time.Minute)
	if n := h.p.ix.queue.Occupied(); n != 0 {
		t.Fatalf("%d places are in use", n)
	}
}

func TestAKeyThatIsNoneIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ key, input, want string }{
		"a field that the input has not": {`input.vendor`, `{}`, "no such key: vendor"},
		"no text":                        {`input.vendor`, `{"vendor":[1]}`, "a list"},
		"an empty text":                  {`input.vendor`, `{"vendor":""}`, "0 bytes"},
		"a text that is too long":        {`input.vendor`, `{"vendor":"` + strings.Repeat("x", 600) + `"}`, "600 bytes"},
		"an evaluation without end":      {`input.list.map(x, input.list.map(y, input.list.map(z, "a"))).size() > 0 ? "a" : "b"`, `{"list":[` + strings.Repeat("1,", 300) + `1]}`, "limit"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, writer(func(a *fleet.Agent) { a.Concurrency.PerKey.Key = c.key }))
			out := await(h, func() Submitted {
				return h.p.Submit(t.Context(), []Submission{{Agent: "writer", Input: json.RawMessage(c.input)}})[0]
			})
			var refusal *Refusal
			if !errors.As(out.Err, &refusal) || len(refusal.Faults) != 1 || refusal.Faults[0].Location != perKeyPath || !strings.Contains(refusal.Faults[0].Message, c.want) {
				t.Fatalf("submit: %v, want a refusal that names %s and says %q", out.Err, perKeyPath, c.want)
			}
		})
	}
	t.Run("an expression that is none is refused when it is applied", func(t *testing.T) {
		h := newHouse(t)
		_, err := h.p.Apply(t.Context(), fleetOf(writer(func(a *fleet.Agent) { a.Concurrency.PerKey.Key = "inputs.vendor" })), ApplyOptions{})
		var refusal *Refusal
		if !errors.As(err, &refusal) || len(refusal.Faults) != 1 || !strings.HasSuffix(refusal.Faults[0].Location, perKeyPath) {
			t.Fatalf("apply: %v, want a refusal that names %s", err, perKeyPath)
		}
	})
}

func TestARunThatIsBegunFromOutsideWaitsForItsGroupToo(t *testing.T) {
	h := newHouse(t, writer())
	begin := func(worker, key string) error {
		_, err := h.p.Begin(t.Context(), Beginning{Submission: Submission{Agent: "writer", Input: vendor("a"), Key: key}, Worker: worker})
		h.settle()
		return err
	}
	if err := begin("task-1", "k1"); err != nil {
		t.Fatal(err)
	}
	if err := begin("task-1", "k1"); err != nil {
		t.Fatalf("the same run again: %v", err)
	}
	var refusal *Refusal
	if err := begin("task-2", "k2"); !errors.As(err, &refusal) || refusal.Code != CodeOverloaded || !strings.Contains(refusal.Detail, "1 of 1 in use") {
		t.Fatalf("a second run of the key: %v, want a refusal", err)
	}
}

func TestAStageRunsSoManyChildrenAtATimeAndTheirKeysApart(t *testing.T) {
	h := newHouse(t, caller("boss", "writer"), writer(func(a *fleet.Agent) { a.Concurrency.PerKey.Key = "input.vendor" }))
	boss := h.submit(Submission{Agent: "boss"})
	h.lease("b", 1, "boss")
	var calls []call
	for i := range 12 { // two of each of six vendors
		calls = append(calls, call{Agent: "writer", Input: vendor(fmt.Sprintf("v%d", i/2))})
	}
	if err := h.p.spawn(t.Context(), h.get(boss.ID), "fan", 0, calls, 3); err != nil {
		t.Fatal(err)
	}
	h.settle()
	ended := 0
	for turn := 0; ended < len(calls); turn++ {
		if turn > len(calls) {
			t.Fatalf("%d of %d children ended", ended, len(calls))
		}
		at := make(map[string]bool)
		leases := h.lease("w1", 10, "writer")
		for _, l := range leases {
			if key := h.get(l.Run).Groups[1].Key; at[key] {
				t.Fatalf("two children of %s at a time", key)
			} else {
				at[key] = true
			}
		}
		if len(leases) > 3 || len(leases) < 2 && ended+len(leases) < len(calls) {
			t.Fatalf("%d children at a time, the stage takes 3, and %d are left", len(leases), len(calls)-ended)
		}
		for _, l := range leases {
			h.report(runtime.Report{Type: runtime.Completed, Run: l.Run, N: l.N, Worker: "w1"})
			ended++
		}
	}
	if n := h.p.ix.queue.Occupied(); n != 0 {
		t.Fatalf("%d places are in use", n)
	}
}

// crossing is a store during whose look at what is in progress, after some that it skips, something else happens.
type crossing struct {
	store.Store
	skip      int
	meanwhile func()
}

func (s *crossing) Held(ctx context.Context, each func(store.Doc) error) error {
	err := s.Store.Held(ctx, each)
	if f := s.meanwhile; f != nil && s.skip == 0 {
		s.meanwhile = nil
		f()
	}
	s.skip--
	return err
}

func TestARunThatIsBegunAtAnotherProcessWaitsForItsGroupToo(t *testing.T) {
	begin := func(t *testing.T, p *Plane, worker, of string) (*run.Record, error) {
		b, err := p.Begin(t.Context(), Beginning{Submission: Submission{Agent: "writer", Input: vendor(of), Key: worker}, Worker: worker})
		return b.Run, err
	}
	refused := func(t *testing.T, err error, by *run.Record) {
		t.Helper()
		var refusal *Refusal
		if want := "group writer/default/a: 1 of 1 in use by " + by.ID; !errors.As(err, &refusal) || refusal.Code != CodeOverloaded || refusal.Detail != want || refusal.RetryAfter == 0 {
			t.Fatalf("a second run of the key: %v, want a refusal that says %q", err, want)
		}
	}
	for name, at := range map[string]func(d *district) (first, second *Plane){
		"at a third":          func(d *district) (first, second *Plane) { return d.b, d.c },
		"at the leader":       func(d *district) (first, second *Plane) { return d.b, d.p },
		"begun at the leader": func(d *district) (first, second *Plane) { return d.p, d.b },
		"at the very same":    func(d *district) (first, second *Plane) { return d.b, d.b },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDistrict(t, writer())
			one, two := at(d)
			first, err := begin(t, one, "w1", "a")
			if err != nil {
				t.Fatal(err)
			}
			_, err = begin(t, two, "w2", "a")
			refused(t, err, first)
			if _, err := begin(t, two, "w3", "b"); err != nil {
				t.Fatalf("a run of another key: %v", err)
			}
			if again, err := begin(t, two, "w1", "a"); err != nil || again.ID != first.ID {
				t.Fatalf("the first again: %v", err)
			}
			if res := one.Report(t.Context(), []runtime.Report{{Type: runtime.Completed, Run: first.ID, N: 1, Worker: "w1"}})[0]; res.Err != nil {
				t.Fatal(res.Err)
			}
			d.deliver()
			if _, err := begin(t, two, "w2", "a"); err != nil {
				t.Fatalf("when the first has ended: %v", err)
			}
		})
	}
	t.Run("one that the leader has placed is seen", func(t *testing.T) {
		d := newDistrict(t, writer())
		first := d.submit(Submission{Agent: "writer", Input: vendor("a")})
		if n := len(d.lease("w1", 1, "writer")); n != 1 {
			t.Fatalf("%d leases", n)
		}
		_, err := begin(t, d.b, "w2", "a")
		refused(t, err, d.get(first.ID))
	})
	for name, before := range map[string]bool{"for the first time": false, "and before": true} {
		t.Run("of two that begin at the same time one does, "+name, func(t *testing.T) {
			d := newDistrict(t, writer())
			if before {
				r, err := begin(t, d.c, "w0", "a")
				if err != nil {
					t.Fatal(err)
				}
				d.c.Report(t.Context(), []runtime.Report{{Type: runtime.Completed, Run: r.ID, N: 1, Worker: "w0"}})
			}
			var first *run.Record
			d.b.store = &crossing{Store: d.b.store, meanwhile: func() {
				var err error
				if first, err = begin(t, d.c, "w1", "a"); err != nil {
					t.Fatal(err)
				}
			}}
			_, err := begin(t, d.b, "w2", "a")
			refused(t, err, first)
		})
	}
}

// A task whose attempt failed has left its place: when the platform starts it again, another run may be there.
func TestATaskThatIsStartedAgainWaitsForItsGroupToo(t *testing.T) {
	for name, other := range map[string]func(d *district) *Plane{
		"at the leader": func(d *district) *Plane { return d.p }, "at another process": func(d *district) *Plane { return d.b },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDistrict(t, writer(shaped(fleet.Job), func(a *fleet.Agent) { a.Retry.MaxAttempts = 5 }))
			p := other(d)
			begin := func(execution string, restarts int) (Begun, error) {
				defer d.deliver()
				return p.Begin(t.Context(), Beginning{Worker: execution + "-0", Execution: execution, Restarts: restarts, Submission: Submission{Agent: "writer", Input: vendor("a")}})
			}
			first, err := begin("one", 0)
			if err != nil {
				t.Fatal(err)
			}
			if res := p.Report(t.Context(), []runtime.Report{{Type: runtime.Failed, Run: first.Run.ID, N: 1, Worker: "one-0", Message: "no"}})[0]; res.Err != nil {
				t.Fatal(res.Err)
			}
			d.deliver()
			second, err := begin("two", 0)
			if err != nil {
				t.Fatal(err)
			}
			var refusal *Refusal
			if _, err := begin("one", 1); !errors.As(err, &refusal) || refusal.Code != CodeOverloaded {
				t.Fatalf("the first task, started again: %v, want a refusal", err)
			}
			if res := p.Report(t.Context(), []runtime.Report{{Type: runtime.Completed, Run: second.Run.ID, N: 1, Worker: "two-0"}})[0]; res.Err != nil {
				t.Fatal(res.Err)
			}
			d.deliver()
			if p != d.p { // another begins just before it does
				kept := p.store
				p.store = &crossing{Store: kept, skip: 1, meanwhile: func() {
					b := Beginning{Worker: "three-0", Execution: "three", Submission: Submission{Agent: "writer", Input: vendor("a")}}
					if second, err = d.c.Begin(t.Context(), b); err != nil {
						t.Fatal(err)
					}
				}}
				if _, err := begin("one", 1); !errors.As(err, &refusal) || refusal.Code != CodeOverloaded {
					t.Fatalf("the first task, started again beside a third: %v, want a refusal", err)
				}
				p.store = kept
				if res := p.Report(t.Context(), []runtime.Report{{Type: runtime.Completed, Run: second.Run.ID, N: 1, Worker: "three-0"}})[0]; res.Err != nil {
					t.Fatal(res.Err)
				}
				d.deliver()
			}
			if again, err := begin("one", 1); err != nil || again.Run.ID != first.Run.ID || again.Run.Attempt != 2 {
				t.Fatalf("when the second has ended: %+v, %v", again.Run, err)
			}
		})
	}
}
