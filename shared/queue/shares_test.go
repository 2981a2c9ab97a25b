package queue

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/run"
)

func TestPositionIsThePlaceInTheOrderOfStarts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New(Options{})
		tenants := rapid.IntRange(1, 5).Draw(t, "tenants")
		for i := range tenants {
			name := fmt.Sprint(i)
			q.SetWeight(name, rapid.IntRange(1, 5).Draw(t, "weight"))
			cost := rapid.Int64Range(1, 50).Draw(t, "cost")
			for k := range rapid.IntRange(0, 15).Draw(t, "entries") {
				q.Push(Entry{
					ID: fmt.Sprintf("%d-%02d", i, k), Tenant: name, Class: Class(k % 2), Cost: cost,
					QueuedAt: run.Instant(rapid.IntRange(1, 100).Draw(t, "at")),
				})
			}
		}
		drain(q, rapid.IntRange(0, 10).Draw(t, "started"))
		got := map[string]int{}
		for id := range q.index {
			p, ok := q.Position(id)
			if !ok || p.Position != p.Ahead+1 || p.TenantAhead > p.Ahead {
				t.Fatalf("Position(%s) = %+v, %v", id, p, ok)
			}
			got[id] = p.Position
		}
		want := map[string]int{}
		for i, id := range drain(q, math.MaxInt) {
			want[id] = i + 1
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("positions (-want +got):\n%s", diff)
		}
	})
}

func TestPositionOfAnUnknownRun(t *testing.T) {
	if p, ok := New(Options{}).Position("none"); ok {
		t.Errorf("Position = %+v, true", p)
	}
}

func TestPositionCountsWhoIsAhead(t *testing.T) {
	q := New(Options{})
	for i := range 4 {
		push(t, q, Entry{ID: fmt.Sprint("a", i), Tenant: "a", QueuedAt: run.Instant(i + 1), Cost: 10})
		push(t, q, Entry{ID: fmt.Sprint("b", i), Tenant: "b", QueuedAt: run.Instant(i + 1), Cost: 10})
	}
	got, _ := q.Position("a2")
	if diff := cmp.Diff(Position{Position: 5, Ahead: 4, TenantAhead: 2, Tenants: 2}, got); diff != "" {
		t.Errorf("Position (-want +got):\n%s", diff)
	}
}

// A queue that is stored and restored between passes starts the same runs in the same order.
func TestSharesSurviveARestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := New(Options{}), New(Options{})
		entries := map[string]Entry{}
		weight := map[string]int{}
		for i := range 4 {
			name := fmt.Sprint(i)
			weight[name] = rapid.IntRange(1, 5).Draw(t, "weight")
			a.SetWeight(name, weight[name])
			for k := range rapid.IntRange(10, 30).Draw(t, "entries") {
				e := Entry{
					ID: fmt.Sprintf("%d-%02d", i, k), Tenant: name, QueuedAt: run.Instant(k + 1),
					Cost: rapid.Int64Range(1, 50).Draw(t, "cost"),
				}
				entries[e.ID] = e
				a.Push(e)
			}
		}
		for _, id := range drain(a, rapid.IntRange(1, 40).Draw(t, "started")) {
			delete(entries, id)
		}
		a.Correct("1", rapid.Int64Range(-200, 200).Draw(t, "delta"))

		stored, err := json.Marshal(a.Shares())
		if err != nil {
			t.Fatal(err)
		}
		var s Shares
		if err := json.Unmarshal(stored, &s); err != nil {
			t.Fatal(err)
		}
		b.Restore(s)
		for name, w := range weight {
			b.SetWeight(name, w)
		}
		for _, e := range entries {
			b.Push(e)
		}
		// The order of ties may depend on how far a tenant is from the queue's own virtual time, not on the restart.
		if diff := cmp.Diff(drain(a, math.MaxInt), drain(b, math.MaxInt)); diff != "" {
			t.Errorf("order after a restart (-without +with):\n%s", diff)
		}
	})
}

func TestAnIdleTenantIsForgottenByTheSnapshot(t *testing.T) {
	q := New(Options{})
	push(t, q, Entry{ID: "a1", Tenant: "a", QueuedAt: 1, Cost: 10})
	drain(q, 1)
	push(t, q, Entry{ID: "b1", Tenant: "b", QueuedAt: 2, Cost: 10}, Entry{ID: "b2", Tenant: "b", QueuedAt: 3, Cost: 10})
	drain(q, 2)
	if _, ok := q.Shares().Tenants["a"]; ok {
		t.Errorf("Shares = %v keeps a, which is idle and not ahead", q.Shares())
	}
	if lead := q.Shares().Tenants["b"]; lead <= 0 {
		t.Errorf("b's lead is %d after it ran last", lead)
	}
}

func TestMemoryOfIdleTenantsIsBounded(t *testing.T) {
	q := New(Options{})
	for i := range 20_000 {
		push(t, q, Entry{ID: fmt.Sprint(i), Tenant: fmt.Sprint("t", i), QueuedAt: 1, Cost: 10})
		drain(q, 1)
	}
	q.SetWeight("kept", 5)
	drain(q, 1)
	if len(q.tenants) > 4096 {
		t.Errorf("%d records of tenants that are idle", len(q.tenants))
	}
}

func TestVirtualTimeDoesNotOverflow(t *testing.T) {
	q := New(Options{})
	for i := range 10_000 {
		for _, name := range []string{"a", "b"} {
			push(t, q, Entry{ID: fmt.Sprint(name, i), Tenant: name, QueuedAt: run.Instant(i + 1), Cost: math.MaxInt64})
		}
	}
	last := ""
	for range 10_000 {
		ids := drain(q, 2)
		if len(ids) != 2 || ids[0][0] == ids[1][0] {
			t.Fatalf("a pass of two took %v after %s, want one of each tenant", ids, last)
		}
		last = ids[1]
		if v := q.tenants["a"].virtual; v < 0 {
			t.Fatalf("virtual time %d", v)
		}
	}
}

func TestTenantsAndHeads(t *testing.T) {
	q := New(Options{})
	q.SetWeight("b", 2)
	push(t, q,
		Entry{ID: "a1", Tenant: "a", Class: 1, QueuedAt: 5, Slots: 2, Cost: 10},
		Entry{ID: "a2", Tenant: "a", Class: 2, QueuedAt: 9, Slots: 1, Cost: 30, Priority: 1},
		Entry{ID: "a3", Tenant: "a", Class: 1, QueuedAt: 7, Slots: 1, Cost: 10},
		Entry{ID: "b1", Tenant: "b", Class: 1, QueuedAt: 8, Slots: 1, Cost: 100})
	p := q.Begin()
	e, _ := p.Next() // a2 is skipped and still counted
	p.Skip(e)
	want := []TenantStat{
		{Tenant: "a", Weight: 1, Queued: 3, Oldest: 5, Slots: 4, Cost: 50, TopEntry: Entry{ID: "a2", Tenant: "a", Class: 2, QueuedAt: 9, Slots: 1, Cost: 30, Priority: 1}},
		{Tenant: "b", Weight: 2, Queued: 1, Oldest: 8, Slots: 1, Cost: 100, TopEntry: Entry{ID: "b1", Tenant: "b", Class: 1, QueuedAt: 8, Slots: 1, Cost: 100}},
	}
	if diff := cmp.Diff(want, q.Tenants()); diff != "" {
		t.Errorf("Tenants (-want +got):\n%s", diff)
	}
	p.End()
	var heads []string
	for _, e := range q.Heads() {
		heads = append(heads, e.ID)
	}
	if diff := cmp.Diff([]string{"a2", "a1", "b1"}, heads); diff != "" {
		t.Errorf("Heads (-want +got):\n%s", diff)
	}
	drain(q, 2)
	if lead := q.Tenants()[0].Lead; lead <= 0 {
		t.Errorf("a leads by %d after two of its runs, want more than 0", lead)
	}
}
