package queue

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/run"
)

// check fails the test unless every heap holds exactly what it should, in order, and every count is right.
func check(t interface{ Fatalf(string, ...any) }, q *Queue) {
	entries, active := 0, 0
	for name, ten := range q.tenants {
		n, cost, ready := 0, int64(0), 0
		for key, c := range ten.classes {
			n += c.n
			for i, it := range c.entries {
				cost += it.cost
				if int(it.at) != i+1 || it.class != c || q.index[it.id] != it {
					t.Fatalf("entry %s is out of place", it.id)
				}
				if i > 0 && it.before(c.entries[(i-1)/2]) {
					t.Fatalf("entry %s comes before its parent", it.id)
				}
			}
			offers := len(c.entries) > 0 && !c.out
			if offers {
				ready++
			}
			if c.key != key || c.n == 0 || offers != ten.ready.holds(c) {
				t.Fatalf("class %d of %s: %d entries, offers %v, in its heap %v", key, name, c.n, offers, ten.ready.holds(c))
			}
		}
		for i, c := range ten.ready {
			if int(c.at) != i+1 || i > 0 && c.before(ten.ready[(i-1)/2]) {
				t.Fatalf("class %d of %s is out of place", c.key, name)
			}
		}
		for _, it := range q.pass.skipped {
			if it.class != nil && it.class.tenant == ten && it.at == 0 {
				cost += it.cost
			}
		}
		if n != ten.n || cost != ten.cost || ready != len(ten.ready) {
			t.Fatalf("tenant %s counts %d of cost %d, has %d of %d", name, ten.n, ten.cost, n, cost)
		}
		if offers := ready > 0 && !ten.out; offers != q.ready.holds(ten) {
			t.Fatalf("tenant %s offers %v, in the heap %v", name, offers, q.ready.holds(ten))
		}
		entries += n
		if n > 0 {
			active++
		}
	}
	for i, ten := range q.ready {
		if int(ten.at) != i+1 || i > 0 && ten.before(q.ready[(i-1)/2]) {
			t.Fatalf("tenant %s is out of place", ten.name)
		}
	}
	if entries != len(q.index) || active != q.active {
		t.Fatalf("%d entries and %d active tenants, index %d, counted %d", entries, active, len(q.index), q.active)
	}
}

// drain takes up to limit entries in one pass and returns their IDs.
func drain(q *Queue, limit int) []string {
	var ids []string
	p := q.Begin()
	defer p.End()
	for e, ok := p.Next(); ok && len(ids) < limit; e, ok = p.Next() {
		p.Take(e)
		ids = append(ids, e.ID)
	}
	return ids
}

func push(t *testing.T, q *Queue, entries ...Entry) {
	t.Helper()
	for _, e := range entries {
		if !q.Push(e) {
			t.Fatalf("Push(%s) = false", e.ID)
		}
	}
}

func TestOrderWithinATenant(t *testing.T) {
	const second = 1000
	tests := map[string]struct {
		entries []Entry
		want    []string
	}{
		"equal priorities: who waits longest is first": {
			entries: []Entry{{ID: "b", QueuedAt: 2}, {ID: "a", QueuedAt: 3}, {ID: "c", QueuedAt: 1}},
			want:    []string{"c", "b", "a"},
		},
		"same instant: the smaller ID is first": {
			entries: []Entry{{ID: "b", QueuedAt: 1}, {ID: "a", QueuedAt: 1}},
			want:    []string{"a", "b"},
		},
		"the higher priority is first": {
			entries: []Entry{{ID: "low", QueuedAt: 1, Priority: 10}, {ID: "high", QueuedAt: 2, Priority: 90}},
			want:    []string{"high", "low"},
		},
		"a run that waited longer than its missing points are worth is first": {
			entries: []Entry{
				{ID: "low", QueuedAt: 1, Priority: 50}, {ID: "high", QueuedAt: 1 + 61*second, Priority: 52},
				{ID: "higher", QueuedAt: 1 + 59*second, Priority: 52},
			},
			want: []string{"higher", "low", "high"},
		},
		"classes do not group": {
			entries: []Entry{
				{ID: "1", QueuedAt: 1, Class: 7}, {ID: "2", QueuedAt: 2, Class: 8}, {ID: "3", QueuedAt: 3, Class: 7},
			},
			want: []string{"1", "2", "3"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			q := New(Options{})
			push(t, q, tt.entries...)
			if diff := cmp.Diff(tt.want, drain(q, math.MaxInt)); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAHeadThatCannotBePlacedBlocksNobody(t *testing.T) {
	// F26: capacity 4, two free. A needs 8 and can never fit; B needs 3; then small ones; then C of high priority.
	q := New(Options{})
	push(t, q, Entry{ID: "A", Tenant: "t", Class: 8, Priority: 50, QueuedAt: 1, Slots: 8})
	push(t, q, Entry{ID: "B", Tenant: "t", Class: 3, Priority: 10, QueuedAt: 2, Slots: 3})
	for i := range 20 {
		push(t, q, Entry{ID: fmt.Sprintf("s%02d", i), Tenant: "t", Class: 1, Priority: 50, QueuedAt: run.Instant(3 + i), Slots: 1})
	}
	push(t, q, Entry{ID: "C", Tenant: "t", Class: 1, Priority: 90, QueuedAt: 30, Slots: 1})
	pass := func(free int) (started []string) {
		p := q.Begin()
		defer p.End()
		for e, ok := p.Next(); ok; e, ok = p.Next() {
			switch {
			case e.Slots > 4:
				p.Remove(e)
			case e.Slots > free:
				p.BlockClass(e.Class)
			default:
				p.Take(e)
				free -= e.Slots
				started = append(started, e.ID)
			}
		}
		return started
	}
	if diff := cmp.Diff([]string{"C", "s00"}, pass(2)); diff != "" {
		t.Errorf("first pass (-want +got):\n%s", diff)
	}
	if _, ok := q.Get("A"); ok {
		t.Error("A, which can never fit, is still in the line")
	}
	if diff := cmp.Diff([]string{"s01", "s02"}, pass(2)); diff != "" {
		t.Errorf("second pass (-want +got):\n%s", diff)
	}
	// With its reservation in effect the small ones are refused, and B starts as soon as three are free.
	if diff := cmp.Diff([]string{"s03", "s04", "s05", "s06"}, pass(4)); diff != "" {
		t.Errorf("third pass (-want +got):\n%s", diff)
	}
	p := q.Begin()
	for e, ok := p.Next(); ok; e, ok = p.Next() {
		if e.ID == "B" {
			p.Take(e)
			continue
		}
		p.BlockClass(e.Class)
	}
	p.End()
	if _, ok := q.Get("B"); ok {
		t.Error("B was not offered behind a blocked class of higher priority")
	}
}

// burst plays F27: ten slots, runs of one second, A with ten thousand, ten seconds later B and C with five each. It
// returns for each of B and C's runs the second at which it started. restart replaces the queue at that second.
func burst(t *testing.T, classes int, restart int) map[string]int {
	q := New(Options{})
	now := run.Instant(1_000_000)
	entries := map[string]Entry{}
	add := func(id, tenant string, class int) {
		e := Entry{ID: id, Tenant: tenant, Class: Class(class), QueuedAt: now, Slots: 1, Cost: 1000}
		entries[id] = e
		push(t, q, e)
	}
	for i := range 10_000 {
		add(fmt.Sprintf("a%05d", i), "A", i%classes)
	}
	started := map[string]int{}
	for second := range 20 {
		if second == 10 {
			for i := range 5 {
				add(fmt.Sprint("b", i), "B", 1)
				add(fmt.Sprint("c", i), "C", 1)
			}
		}
		if second == restart {
			saved := q.Shares()
			q = New(Options{})
			q.Restore(saved)
			for _, e := range entries {
				push(t, q, e)
			}
		}
		ids := drain(q, 10)
		if len(ids) != 10 {
			t.Fatalf("second %d: %d of 10 slots used", second, len(ids))
		}
		for _, id := range ids {
			if id[0] != 'a' {
				started[id] = second
			}
			delete(entries, id)
		}
	}
	return started
}

func TestABurstOfOneTenantStarvesNobody(t *testing.T) {
	tests := map[string]struct{ classes, restart int }{
		"one class":                             {1, -1},
		"a thousand classes buy no more":        {1000, -1},
		"a restart when the others come":        {1, 10},
		"a restart in the middle":               {1, 11},
		"a restart before, with a spent share":  {1, 9},
		"a restart amid classes in any sorting": {1000, 11},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			started := burst(t, tt.classes, tt.restart)
			if len(started) != 10 {
				t.Fatalf("%d of the others' 10 runs started", len(started))
			}
			for id, second := range started {
				if second > 12 {
					t.Errorf("%s started %d s after it came, want within 2 rounds", id, second-10)
				}
			}
		})
	}
}

func TestATenantThatWasIdleNeitherSavesUpNorOwes(t *testing.T) {
	fill := func(q *Queue, tenant string, n int) {
		for i := range n {
			push(t, q, Entry{ID: fmt.Sprintf("%s%03d", tenant, i), Tenant: tenant, QueuedAt: 1, Cost: 1000})
		}
	}
	count := func(ids []string, tenant byte) (n int) {
		for _, id := range ids {
			if id[0] == tenant {
				n++
			}
		}
		return n
	}
	tests := map[string]struct {
		prepare func(*Queue)
		want    int // of a's among the next twenty
	}{
		"both new": {func(*Queue) {}, 10},
		"a ran alone before b came": {func(q *Queue) {
			fill(q, "a", 300)
			drain(q, 200)
		}, 10},
		"a ran alone and went idle": {func(q *Queue) {
			fill(q, "a", 200)
			drain(q, 200)
		}, 10},
		"b was idle while a ran": {func(q *Queue) {
			fill(q, "b", 1)
			fill(q, "a", 200)
			drain(q, 201)
		}, 10},
		"a cost more than estimated while b was not there": {func(q *Queue) {
			fill(q, "a", 100)
			drain(q, 50)
			q.Correct("a", 1_000_000)
		}, 10},
		"a cost less than estimated while b was not there": {func(q *Queue) {
			fill(q, "a", 100)
			drain(q, 50)
			q.Correct("a", -45_000)
		}, 10},
		"a cost more than estimated while both waited": {func(q *Queue) {
			fill(q, "a", 100)
			fill(q, "b", 100)
			drain(q, 40)
			q.Correct("a", 4_000)
		}, 8},
		"a cost less than estimated while both waited": {func(q *Queue) {
			fill(q, "a", 100)
			fill(q, "b", 100)
			drain(q, 40)
			q.Correct("a", -4_000)
		}, 12},
		"a weighs three times as much": {func(q *Queue) { q.SetWeight("a", 3) }, 15},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			q := New(Options{})
			tt.prepare(q)
			fill(q, "a", 400)
			fill(q, "b", 400)
			check(t, q)
			if got := count(drain(q, 20), 'a'); got != tt.want {
				t.Errorf("%d of 20 were a's, want %d", got, tt.want)
			}
		})
	}
}

// Two tenants wait for scarce slots (class 1), others share ordinary ones (class 2).
func TestWaitingForSomethingScarce(t *testing.T) {
	q := New(Options{Credit: 10 * time.Second})
	q.SetWeight("g2", 3)
	next := 0
	add := func(tenant string, class Class, n int) {
		for range n {
			next++
			push(t, q, Entry{ID: fmt.Sprintf("%s-%06d", tenant, next), Tenant: tenant, Class: class, QueuedAt: 1, Cost: 1000})
		}
	}
	taken := map[string]int{}
	round := func(scarce, ordinary int) {
		p := q.Begin()
		defer p.End()
		free := map[Class]int{1: scarce, 2: ordinary}
		for e, ok := p.Next(); ok; e, ok = p.Next() {
			if free[e.Class] == 0 {
				p.BlockClass(e.Class)
				continue
			}
			free[e.Class]--
			p.Take(e)
			taken[e.Tenant]++
		}
	}
	add("g1", 1, 1000)
	add("g2", 1, 1000)
	add("ord", 2, 10_000)
	// 1. They share what is scarce by weight, however far the others run ahead.
	for i := range 400 {
		round(i%2, 10)
	}
	if g1, g2 := taken["g1"], taken["g2"]; g1 < 48 || g1 > 52 || g1+g2 != 200 {
		t.Errorf("the scarce slots went %d to %d, want 50 to 150", g1, g2)
	}
	check(t, q)
	// 2. Who comes anew does not get the claim of those who wait.
	clear(taken)
	add("new", 2, 1000)
	for range 20 {
		round(0, 10)
	}
	if taken["new"] < 95 || taken["new"] > 105 {
		t.Errorf("a newcomer got %d of 200 ordinary slots, want half", taken["new"])
	}
	// 3. One that waited for long and turns to ordinary slots takes them for no longer than its credit lasts.
	clear(taken)
	add("g1", 2, 1000)
	for range 60 {
		round(0, 10)
	}
	if taken["g1"] < 200 || taken["g1"] > 230 {
		t.Errorf("one that had waited got %d of 600 ordinary slots, want a third and at most 30 more", taken["g1"])
	}
}

func TestFairnessIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New(Options{})
		n := rapid.IntRange(2, 6).Draw(t, "tenants")
		weight := make([]int64, n)
		spent := make([]float64, n)
		largest := make([]float64, n)
		next := 0
		refill := func(i int) {
			for q.LenTenant(fmt.Sprint(i)) < 3 {
				next++
				q.Push(Entry{
					ID: fmt.Sprint(next), Tenant: fmt.Sprint(i), Class: Class(rapid.IntRange(0, 2).Draw(t, "class")),
					QueuedAt: run.Instant(next), Priority: rapid.IntRange(0, 100).Draw(t, "priority"),
					Cost: rapid.Int64Range(1, 10_000).Draw(t, "cost"),
				})
			}
		}
		for i := range n {
			weight[i] = rapid.Int64Range(1, 20).Draw(t, "weight")
			q.SetWeight(fmt.Sprint(i), int(weight[i]))
			refill(i)
		}
		for range rapid.IntRange(1, 30).Draw(t, "passes") {
			p := q.Begin()
			for range rapid.IntRange(0, 20).Draw(t, "slots") {
				e, ok := p.Next()
				if !ok {
					break
				}
				p.Take(e)
				i := int(e.Tenant[0] - '0')
				share := float64(e.Cost) / float64(weight[i])
				spent[i] += share
				largest[i] = max(largest[i], share)
				refill(i)
				for a := range n {
					for b := range a {
						if gap := math.Abs(spent[a] - spent[b]); gap > largest[a]+largest[b]+1 {
							t.Fatalf("tenants %d and %d differ by %.1f, at most %.1f is fair", a, b, gap, largest[a]+largest[b])
						}
					}
				}
			}
			p.End()
			check(t, q)
		}
	})
}

func TestNobodyWaitsForever(t *testing.T) {
	// Whatever keeps coming with higher priority, an old run is next once it waited for what the points are worth.
	q := New(Options{Ageing: time.Second})
	push(t, q, Entry{ID: "old", Tenant: "t", QueuedAt: 1, Priority: 0})
	for second := 1; ; second++ {
		if second > 101 {
			t.Fatal("the old run still waits after 101 s at 100 points of 1 s each")
		}
		push(t, q, Entry{ID: fmt.Sprint(second), Tenant: "t", QueuedAt: run.Instant(second * 1000), Priority: 100})
		if drain(q, 1)[0] == "old" {
			break
		}
	}
}

// A pass offers each entry at most once, and exactly those that nothing left out; afterwards all is back.
func TestAPassOffersWhatIsNotLeftOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New(Options{MaxEntries: 60})
		all := map[string]Entry{}
		next := 0
		add := func() {
			next++
			e := Entry{
				ID: fmt.Sprint(next), Tenant: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "tenant"),
				Class:    Class(rapid.IntRange(0, 3).Draw(t, "class")),
				Priority: rapid.IntRange(0, 3).Draw(t, "priority"), QueuedAt: run.Instant(rapid.IntRange(1, 9).Draw(t, "at")),
				Slots: 1, Cost: rapid.Int64Range(1, 9).Draw(t, "cost"), Expires: 77,
			}
			if rapid.IntRange(0, 9).Draw(t, "again") == 0 && len(all) > 0 {
				e.ID = rapid.SampledFrom(sorted(all)).Draw(t, "known")
			}
			_, known := all[e.ID]
			switch got := q.Push(e); {
			case got:
				all[e.ID] = e
			case known || len(all) <= 30:
				t.Fatalf("Push with %d entries was refused", len(all))
			}
		}
		remove := func() {
			if len(all) == 0 {
				return
			}
			id := rapid.SampledFrom(sorted(all)).Draw(t, "remove")
			if e, ok := q.Remove(id); !ok || !cmp.Equal(e, all[id]) {
				t.Fatalf("Remove(%s) = %v, %v; want %v", id, e, ok, all[id])
			}
			delete(all, id)
		}
		for range rapid.IntRange(0, 40).Draw(t, "entries") {
			add()
		}
		for range rapid.IntRange(1, 4).Draw(t, "passes") {
			p := q.Begin()
			classes, tenants, skipped := map[Class]bool{}, map[string]bool{}, map[string]bool{}
			left := func() (ids []string) {
				for id, e := range all {
					if !classes[e.Class] && !tenants[e.Tenant] && !skipped[id] {
						ids = append(ids, id)
					}
				}
				return ids
			}
			for {
				e, ok := p.Next()
				open := left()
				if !ok {
					if len(open) > 0 {
						t.Fatalf("nothing is offered, but %v are not left out", open)
					}
					break
				}
				if !cmp.Equal(e, all[e.ID]) || !slices.Contains(open, e.ID) {
					t.Fatalf("%v is offered, left are %v", e, open)
				}
				for _, id := range open {
					if o := all[id]; o.Tenant == e.Tenant && rank(o) < rank(e) {
						t.Fatalf("%v is offered before %v of the same tenant", e, o)
					}
				}
				switch rapid.IntRange(0, 7).Draw(t, "answer") {
				case 0, 1:
					p.Take(e)
					delete(all, e.ID)
				case 2:
					p.Remove(e)
					delete(all, e.ID)
				case 3:
					p.Skip(e)
					skipped[e.ID] = true
				case 4:
					p.BlockClass(e.Class)
					classes[e.Class] = true
				case 5:
					p.BlockTenant(e.Tenant)
					tenants[e.Tenant] = true
				case 6: // nothing said is skipped
					skipped[e.ID] = true
				case 7:
					p.Skip(e)
					skipped[e.ID] = true
					add()
					// An entry that came again is new, and offered.
					for id := range skipped {
						if q.index[id] != nil && q.index[id].at != 0 {
							delete(skipped, id)
						}
					}
					remove()
				}
				check(t, q)
				if stop := rapid.IntRange(0, 30).Draw(t, "stop") == 0; stop {
					break
				}
			}
			p.End()
			check(t, q)
			if q.Len() != len(all) {
				t.Fatalf("%d entries after the pass, want %d", q.Len(), len(all))
			}
			for id, e := range all {
				if got, ok := q.Get(id); !ok || !cmp.Equal(got, e) {
					t.Fatalf("Get(%s) = %v, %v; want %v", id, got, ok, e)
				}
			}
		}
	})
}

func rank(e Entry) int64 { return int64(e.QueuedAt) - int64(e.Priority)*defaultAgeing.Milliseconds() }

func sorted(m map[string]Entry) []string {
	var ids []string
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func TestAFullQueueTakesAFewRunsOfATenantThatHasNone(t *testing.T) {
	q := New(Options{MaxEntries: 5000})
	for i := range 6000 {
		if got := q.Push(Entry{ID: fmt.Sprint("flood", i), Tenant: "flood", QueuedAt: 1, Cost: 1}); got != (i < 5000) {
			t.Fatalf("the run %d of the flood was taken: %v", i, got)
		}
	}
	for i := range 10 {
		if got := q.Push(Entry{ID: fmt.Sprint("few", i), Tenant: "few", QueuedAt: 2, Cost: 1}); got != (i < 5) {
			t.Errorf("run %d of a tenant with few was taken: %v", i, got)
		}
	}
}

func TestWhatWasRefusedComesBeforeWhatComesLater(t *testing.T) {
	q := New(Options{MaxEntries: 10})
	taken := func(id string) bool { return q.Push(Entry{ID: id, Tenant: "t", QueuedAt: 1, Cost: 1}) }
	for i := range 10 {
		taken(fmt.Sprint(i))
	}
	if taken("outside") {
		t.Fatal("the queue takes more than its bound")
	}
	for i := range 4 {
		q.Remove(fmt.Sprint(i))
	}
	if taken("later") {
		t.Error("what comes later is taken while an earlier one waits outside, and nobody had the chance to bring it in")
	}
	q.Remove("4")
	if !taken("outside") || !taken("later") {
		t.Error("half of the queue is free, and it takes nothing")
	}
}
