package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/run"
)

// TakeAhead leaves a queue as a walk does that refuses everything else, whatever was refused and corrected before.
func TestTakingAheadIsAWalkThatRefusesTheRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		options := Options{Credit: time.Duration(rapid.IntRange(1, 50).Draw(t, "credit")) * time.Millisecond}
		walked, jumped := New(options), New(options)
		both := func(do func(*Queue)) {
			do(walked)
			do(jumped)
		}
		tenants := rapid.IntRange(1, 6).Draw(t, "tenants")
		for i := range tenants {
			weight := rapid.IntRange(1, 3).Draw(t, "weight")
			both(func(q *Queue) { q.SetWeight(fmt.Sprint(i), weight) })
		}
		next := 0
		for range rapid.IntRange(1, 40).Draw(t, "passes") {
			// 1. Some come, and some turn out to have cost something else.
			for range rapid.IntRange(0, 4).Draw(t, "new") {
				next++
				tenant := rapid.IntRange(0, tenants-1).Draw(t, "tenant")
				e := Entry{
					ID: fmt.Sprintf("%04d", next), Tenant: fmt.Sprint(tenant), Class: Class(10*tenant + rapid.IntRange(0, 1).Draw(t, "class")),
					QueuedAt: run.Instant(next), Cost: rapid.Int64Range(1, 40).Draw(t, "cost"),
				}
				both(func(q *Queue) { q.Push(e) })
			}
			who, by := fmt.Sprint(rapid.IntRange(0, tenants-1).Draw(t, "corrected")), rapid.Int64Range(-20, 20).Draw(t, "by")
			both(func(q *Queue) { q.Correct(who, by) })
			// 2. Some of one class can be placed, and nothing else.
			tenant := rapid.IntRange(0, tenants-1).Draw(t, "placed tenant")
			class := Class(10*tenant + rapid.IntRange(0, 1).Draw(t, "placed class"))
			room := rapid.IntRange(1, 3).Draw(t, "room")
			p := walked.Begin()
			left := room
			for e, ok := p.Next(); ok; e, ok = p.Next() {
				if e.Class == class && left > 0 {
					p.Take(e)
					left--
				} else {
					p.BlockClass(e.Class)
				}
			}
			p.End()
			p = jumped.Begin()
			for left = room; left > 0; left-- {
				e, ok := jumped.First(fmt.Sprint(tenant), class)
				if !ok {
					break
				}
				p.TakeAhead(e)
			}
			p.End()
			if diff := cmp.Diff(walked.Shares(), jumped.Shares()); diff != "" {
				t.Fatalf("shares after a pass (-walked +jumped):\n%s", diff)
			}
		}
		// 3. What is left comes in the same order, and whoever comes new finds the same place.
		both(func(q *Queue) {
			q.Push(Entry{ID: "new", Tenant: "new", Class: 99, QueuedAt: run.Instant(next), Cost: 1})
		})
		order := func(q *Queue) (ids []string) {
			p := q.Begin()
			defer p.End()
			for e, ok := p.Next(); ok; e, ok = p.Next() {
				ids = append(ids, e.ID)
				p.Take(e)
			}
			return ids
		}
		if diff := cmp.Diff(order(walked), order(jumped)); diff != "" {
			t.Fatalf("order of the rest (-walked +jumped):\n%s", diff)
		}
	})
}
