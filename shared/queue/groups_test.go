package queue

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/run"
)

// checkGroups fails the test unless lines, groups and what is called agree with each other.
func checkGroups(t interface{ Fatalf(string, ...any) }, q *Queue) {
	lined, inUse := 0, map[string]int{}
	for id, in := range q.occupied {
		for _, g := range in {
			inUse[g.tenant.name+"/"+g.key]++
			if _, ok := g.live[id]; !ok {
				t.Fatalf("run %s has no place in group %s", id, g.key)
			}
		}
	}
	for _, ten := range q.tenants {
		n := 0
		for _, l := range ten.lines {
			n += len(l.entries)
			if l.n < 1 || l.n < len(l.entries) || (l.stands == nil) != (len(l.entries) == 0) {
				t.Fatalf("line %q counts %d, %d wait, stands %v", l.key, l.n, len(l.entries), l.stands != nil)
			}
			for i, it := range l.entries {
				if int(it.at) != i+1 || it.class != nil || it.called || it.line != l || q.index[it.id] != it {
					t.Fatalf("entry %s is out of place in its line", it.id)
				}
			}
		}
		if n != ten.lined {
			t.Fatalf("tenant %s counts %d in line, has %d", ten.name, ten.lined, n)
		}
		lined += n
		for _, g := range ten.groups {
			if len(g.live) != inUse[ten.name+"/"+g.key] || len(g.live) == 0 && g.lines == 0 {
				t.Fatalf("group %s: %d places taken, %d runs say so, %d lines", g.key, len(g.live), inUse[ten.name+"/"+g.key], g.lines)
			}
			for c, w := range g.wait {
				for i, l := range *w {
					if int(l.at) != i+1 || l.stands != g || l.class != c || i > 0 && l.before((*w)[(i-1)/2]) {
						t.Fatalf("line %q is out of place", l.key)
					}
				}
				l := (*w)[0]
				if full := l.full(); full == nil && len(g.called[c]) < l.room(g) && !g.due {
					t.Fatalf("group %s has a place for line %q, of which nobody was called", g.key, l.key)
				}
			}
			for _, set := range g.called {
				for it := range set {
					if !it.called || it.class == nil {
						t.Fatalf("entry %s is not called", it.id)
					}
				}
			}
		}
	}
	entries := 0
	for _, ten := range q.tenants {
		entries += ten.n
	}
	if entries+lined != len(q.index) {
		t.Fatalf("%d in the queue and %d in line, index %d", entries, lined, len(q.index))
	}
}

// sound is check for a queue with lines.
func sound(t interface{ Fatalf(string, ...any) }, q *Queue) {
	rest := maps.Clone(q.index)
	for id, it := range rest {
		if it.class == nil {
			delete(q.index, id)
		}
	}
	check(t, q)
	q.index = rest
	checkGroups(t, q)
}

// Whatever happens: no run starts into a full group, what is offered is the first of its tenant that could start, and
// nothing that could start is left out.
func TestNoGroupIsOverfullAndNobodyIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New(Options{})
		waits, live, skipped, next := map[string]Entry{}, map[string]Entry{}, map[string]bool{}, 0
		keys := []string{"x", "y", "z"}
		most := map[string]int{"x": 1, "y": 2, "z": 3}
		mixed := rapid.Bool().Draw(t, "mixed") // runs of one group differ about its size: who asks for less stands before who comes later
		startable := func(e Entry) bool {
			for _, g := range e.Groups {
				n := 0
				for _, o := range live {
					if o.Tenant == e.Tenant && slices.ContainsFunc(o.Groups, func(h run.Group) bool { return h.Key == g.Key }) {
						n++
					}
				}
				if n >= g.Max {
					return false
				}
			}
			return true
		}
		// behind: a place of a group may be offered to one that was skipped, for this pass.
		behind := func(e Entry) bool {
			for _, g := range e.Groups {
				for id := range skipped {
					if o := waits[id]; o.Tenant == e.Tenant && slices.ContainsFunc(o.Groups, func(h run.Group) bool { return h.Key == g.Key }) {
						return true
					}
				}
			}
			return skipped[e.ID]
		}
		add := func() {
			next++
			e := Entry{
				ID: fmt.Sprint(next), Tenant: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant"), Class: Class(rapid.IntRange(0, 2).Draw(t, "class")),
				Priority: rapid.IntRange(0, 3).Draw(t, "priority"), QueuedAt: run.Instant(next), Slots: 1, Cost: 1,
			}
			for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 2, rapid.ID).Draw(t, "groups") {
				g := run.Group{Key: k, Max: most[k]}
				if mixed && rapid.IntRange(0, 3).Draw(t, "odd") == 0 {
					g.Max = rapid.IntRange(1, 4).Draw(t, "max")
				}
				e.Groups = append(e.Groups, g)
			}
			if len(waits) > 0 && rapid.IntRange(0, 9).Draw(t, "again") == 0 {
				e.ID = rapid.SampledFrom(sorted(waits)).Draw(t, "known")
			}
			if !q.Push(e) {
				t.Fatalf("refused")
			}
			waits[e.ID] = e
			delete(skipped, e.ID) // one that came again is new
		}
		drop := func(from map[string]Entry, then func(string)) {
			if len(from) > 0 {
				id := rapid.SampledFrom(sorted(from)).Draw(t, "which")
				then(id)
				delete(from, id)
			}
		}
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			for range rapid.IntRange(0, 8).Draw(t, "arrive") {
				add()
			}
			for range rapid.IntRange(0, 4).Draw(t, "end") {
				drop(live, q.Vacate)
			}
			if rapid.Bool().Draw(t, "cancel") {
				drop(waits, func(id string) {
					if e, ok := q.Remove(id); !ok || !cmp.Equal(e, waits[id]) {
						t.Fatalf("Remove(%s) = %v, %v; want %v", id, e, ok, waits[id])
					}
				})
			}
			p := q.Begin()
			blocked, complete := map[Class]bool{}, true
			clear(skipped)
			for e, ok := p.Next(); ok; e, ok = p.Next() {
				sound(t, q)
				if !startable(e) {
					t.Fatalf("%v is offered, and its group is full", e)
				}
				for _, o := range waits {
					if !mixed && o.Tenant == e.Tenant && rank(o) < rank(e) && !blocked[o.Class] && !behind(o) && startable(o) {
						t.Fatalf("%v is offered before %v", e, o)
					}
				}
				switch rapid.IntRange(0, 9).Draw(t, "answer") {
				default:
					p.Take(e)
					delete(waits, e.ID)
					q.Occupy(e.ID, e.Tenant, e.Groups)
					live[e.ID] = e
				case 0:
					p.BlockClass(e.Class)
					blocked[e.Class] = true
				case 1:
					p.Skip(e)
					skipped[e.ID] = true
				case 2: // nothing said is skipped
					skipped[e.ID] = true
					drop(live, q.Vacate)
				case 3:
					skipped[e.ID] = true
					add()
				}
				if rapid.IntRange(0, 30).Draw(t, "stop") == 0 {
					complete = false
					break
				}
			}
			if complete && !mixed {
				for _, o := range waits {
					if !blocked[o.Class] && !behind(o) && startable(o) {
						t.Fatalf("%v could start and was not offered", o)
					}
				}
			}
			p.End()
			sound(t, q)
		}
		// In the end everybody had their turn, and nothing of any group is left.
		for round := 0; len(waits)+len(live) > 0; round++ {
			if round > 400 {
				t.Fatalf("%d wait and %d run for ever", len(waits), len(live))
			}
			for id := range live {
				q.Vacate(id)
			}
			clear(live)
			p := q.Begin()
			for e, ok := p.Next(); ok; e, ok = p.Next() {
				p.Take(e)
				q.Occupy(e.ID, e.Tenant, e.Groups)
				live[e.ID] = e
				delete(waits, e.ID)
			}
			p.End()
		}
		for _, ten := range q.tenants {
			if len(ten.groups)+len(ten.lines)+ten.lined+len(q.occupied) > 0 {
				t.Fatalf("tenant %s keeps %d groups and %d lines", ten.name, len(ten.groups), len(ten.lines))
			}
		}
	})
}

// Ten thousand runs of one group cost a pass nothing while it is full, and one step when a place becomes free; so do
// thousands of groups.
func TestALineCostsNoPassAnything(t *testing.T) {
	for name, keys := range map[string]int{"10,000 runs of one group": 1, "10,000 runs of 5,000 groups": 5000} {
		t.Run(name, func(t *testing.T) {
			q := New(Options{})
			for i := range 10_000 {
				q.Push(Entry{
					ID: fmt.Sprintf("%05d", i), Tenant: "a", Class: 1, QueuedAt: run.Instant(i + 1), Slots: 1, Cost: 1000,
					Groups: []run.Group{{Key: fmt.Sprintf("k%04d", i%keys), Max: 1}},
				})
			}
			pass := func() (taken []Entry, steps int) {
				p := q.Begin()
				defer p.End()
				for e, ok := p.Next(); ok; e, ok = p.Next() {
					p.Take(e)
					q.Occupy(e.ID, e.Tenant, e.Groups)
					taken = append(taken, e)
				}
				return taken, len(taken) + len(p.Lined())
			}
			taken, _ := pass()
			if len(taken) != keys || taken[0].ID != "00000" {
				t.Fatalf("%d started, want one of each group", len(taken))
			}
			if again, steps := pass(); steps != 0 {
				t.Fatalf("a pass over full groups took %d steps and started %d", steps, len(again))
			}
			for _, e := range taken[:min(10, len(taken))] {
				q.Vacate(e.ID)
				next, steps := pass()
				if len(next) != 1 || steps != 1 || !cmp.Equal(next[0].Groups, e.Groups) {
					t.Fatalf("after %s ended, %d steps started %v", e.ID, steps, next)
				}
			}
			sound(t, q)
		})
	}
}

func TestLines(t *testing.T) {
	in := func(max int, keys ...string) (groups []run.Group) {
		for _, k := range keys {
			groups = append(groups, run.Group{Key: k, Max: max})
		}
		return groups
	}
	at := func(id, tenant string, class Class, priority int, queued time.Duration, groups []run.Group) Entry {
		return Entry{ID: id, Tenant: tenant, Class: class, Priority: priority, QueuedAt: run.Instant(1 + queued.Milliseconds()), Cost: 1, Groups: groups}
	}
	for name, c := range map[string]struct {
		busy    []Entry
		entries []Entry
		refuse  Class // that finds no slot
		ends    []string
		want    [][]string // started by the pass before each end, and after the last
	}{
		"a group of one runs them one after another, in the order of the queue": {
			entries: []Entry{at("1", "a", 1, 0, 0, in(1, "x")), at("2", "a", 1, 0, 1, in(1, "x")), at("3", "a", 1, 50, 2, in(1, "x"))},
			ends:    []string{"3", "1"}, want: [][]string{{"3"}, {"1"}, {"2"}},
		},
		"old age makes up for priority in line as in the queue": {
			busy:    []Entry{at("0", "a", 1, 0, 0, in(1, "x"))},
			entries: []Entry{at("old", "a", 1, 0, 0, in(1, "x")), at("new", "a", 1, 1, 31*time.Second, in(1, "x"))},
			ends:    []string{"0"}, want: [][]string{nil, {"old"}},
		},
		"the group of another tenant is another group": {
			entries: []Entry{at("1", "a", 1, 0, 0, in(1, "x")), at("2", "b", 1, 0, 0, in(1, "x"))},
			want:    [][]string{{"1", "2"}},
		},
		"a run of two groups waits for both": {
			busy:    []Entry{at("0", "a", 1, 0, 0, in(1, "x")), at("9", "a", 1, 0, 0, in(1, "y"))},
			entries: []Entry{at("1", "a", 1, 0, 0, in(1, "x", "y"))},
			ends:    []string{"0", "9"}, want: [][]string{nil, nil, {"1"}},
		},
		"one that finds no slot does not keep another class from the place": {
			busy:    []Entry{at("0", "a", 1, 0, 0, in(1, "x"))},
			entries: []Entry{at("1", "a", 7, 0, 0, in(1, "x")), at("2", "a", 7, 0, 1, in(1, "x")), at("3", "a", 2, 0, 2, in(1, "x"))},
			refuse:  7, ends: []string{"0"}, want: [][]string{nil, {"3"}},
		},
		"what has no group passes by": {
			busy:    []Entry{at("0", "a", 1, 0, 0, in(1, "x"))},
			entries: []Entry{at("1", "a", 1, 0, 0, in(1, "x")), at("2", "a", 1, 0, 1, nil)},
			want:    [][]string{{"2"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := New(Options{})
			for _, e := range c.busy {
				q.Occupy(e.ID, e.Tenant, e.Groups)
			}
			push(t, q, c.entries...)
			var got [][]string
			pass := func() {
				var ids []string
				p := q.Begin()
				for e, ok := p.Next(); ok; e, ok = p.Next() {
					if e.Class == c.refuse {
						p.BlockClass(e.Class)
						continue
					}
					p.Take(e)
					q.Occupy(e.ID, e.Tenant, e.Groups)
					ids = append(ids, e.ID)
				}
				p.End()
				sound(t, q)
				got = append(got, ids)
			}
			pass()
			for _, id := range c.ends {
				q.Vacate(id)
				pass()
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("started, -want +got:\n%s", d)
			}
		})
	}
}

// A tenant whose runs all stand in line saves up no claim, and one that uses its few places is not held back by it.
func TestALineSavesUpNoClaim(t *testing.T) {
	q := New(Options{})
	started := map[string]int{}
	busy := "" // of tenant a's group
	for i := range 2000 {
		push(t, q, Entry{ID: fmt.Sprint("a", i), Tenant: "a", Class: 1, QueuedAt: run.Instant(i + 1), Cost: 1000, Groups: []run.Group{{Key: "x", Max: 1}}})
		push(t, q, Entry{ID: fmt.Sprint("b", i), Tenant: "b", Class: 2, QueuedAt: run.Instant(i + 1), Cost: 1000})
	}
	step := func(slots int) {
		p := q.Begin()
		defer p.End()
		for e, ok := p.Next(); ok && slots > 0; e, ok = p.Next() {
			p.Take(e)
			slots--
			started[e.Tenant]++
			if e.Tenant == "a" {
				q.Occupy(e.ID, e.Tenant, e.Groups)
				busy = e.ID
			}
		}
	}
	step(1)
	step(1)
	for range 500 { // the run of tenant a is long: b has everything
		step(1)
	}
	q.Vacate(busy)
	before := started["b"]
	for range 100 { // from here on runs of both are short
		step(1)
		q.Vacate(busy)
	}
	if a, b := started["a"], started["b"]-before; a < 45 || a > 55 || b < 45 {
		t.Errorf("after 500 turns in line tenant a started %d of 100, b %d", a, b)
	}
}
