package queue

import (
	"math"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/run"
)

// Groups: of a tenant's runs that share a group, so many at most have an attempt at a time. Who has one is told by
// Occupy and Vacate, and kept as the set of those runs: there is no count that could be wrong.
//
// An entry whose group is full is in a line, and costs no pass anything. When a place is free, the first of the line is
// called back into the queue. Entries of one class and equal groups share a line, and a line stands at one of its groups
// that is full: what waits for two groups at once moves from one to the other together.

// maxCalled bounds the classes of which a group calls entries at a time. Of each class it calls as many as could start:
// so one that finds no slot does not keep another class of the group from its own.
const maxCalled = 32

// group is known while it has members that wait or run.
type group struct {
	tenant *tenant
	key    string
	live   map[string]struct{}          // those with an attempt
	wait   map[Class]*heap[*line]       // the lines that stand here
	called map[Class]map[*item]struct{} // entries called back that are in the queue still, none while it is full
	least  int                          // smallest Max that was asked for
	lines  int                          // that name it, wherever they stand
	due    bool                         // listed in Queue.due
}

// line holds entries of one class and equal groups. It is known while it has entries, in the queue or in line.
type line struct {
	key     string
	tenant  *tenant
	class   Class
	specs   []run.Group
	groups  []*group
	entries heap[*item] // that wait
	n       int         // with those in the queue
	stands  *group      // nil while nothing waits
	at      int32
}

func (l *line) place() *int32           { return &l.at }
func (l *line) before(other *line) bool { return l.entries[0].before(other.entries[0]) }

// room is how many more of the line's runs could start as far as a group of it is concerned.
func (l *line) room(g *group) int {
	for i := range l.groups {
		if l.groups[i] == g {
			return l.specs[i].Max - len(g.live)
		}
	}
	return 0
}

// full is a group of the line in which there is no place; nil if there is one in each.
func (l *line) full() *group {
	if l == nil {
		return nil
	}
	for _, g := range l.groups {
		if l.room(g) <= 0 {
			return g
		}
	}
	return nil
}

// Occupy tells that a run has an attempt, and takes a place in each of its groups. Telling it again changes nothing.
func (q *Queue) Occupy(id, tenant string, groups []run.Group) {
	if len(groups) == 0 || q.occupied[id] != nil {
		return
	}
	t := q.tenant(tenant)
	in := make([]*group, len(groups))
	for i := range groups {
		in[i] = t.group(groups[i].Key)
		in[i].live[id] = struct{}{}
		in[i].least = min(in[i].least, groups[i].Max)
	}
	q.occupied[id] = in
	for _, g := range in {
		q.hangUp(g)
	}
}

// Vacate tells that a run has no attempt any more. Whoever is first in line comes with the next pass.
func (q *Queue) Vacate(id string) {
	in := q.occupied[id]
	delete(q.occupied, id)
	for _, g := range in {
		delete(g.live, id)
		q.look(g)
		g.tidy()
	}
}

// Occupied is the number of runs that have places.
func (q *Queue) Occupied() int { return len(q.occupied) }

// Due reports whether a place became free that the next pass will offer to a line.
func (q *Queue) Due() bool { return len(q.due) > 0 }

// Wait is what keeps an entry in line.
type Wait struct {
	Group run.Group
	InUse int    // places taken
	By    string // one of the runs that have them; "" for none
	Ahead int    // entries of the same kind before it in line
}

// Waits says what an entry in line waits for. It costs O(its line + the places of its group).
func (q *Queue) Waits(id string) (Wait, bool) {
	it := q.index[id]
	if it == nil || it.line == nil {
		return Wait{}, false
	}
	l := it.line
	g := l.full()
	if g == nil && it.class == nil {
		g = l.stands
	}
	if g == nil {
		return Wait{}, false
	}
	w := g.taken()
	for i := range l.groups {
		if l.groups[i] == g {
			w.Group = l.specs[i]
		}
	}
	for _, other := range l.entries {
		if other.before(it) {
			w.Ahead++
		}
	}
	return w, true
}

// Full tells of a group in which there is no place for a run beside those of others.
func (q *Queue) Full(id, tenant string, groups []run.Group) (Wait, bool) {
	t := q.tenants[tenant]
	if t == nil {
		return Wait{}, false
	}
	for _, spec := range groups {
		g := t.groups[spec.Key]
		if g == nil || len(g.live) < spec.Max {
			continue
		}
		if _, own := g.live[id]; !own {
			w := g.taken()
			w.Group = spec
			return w, true
		}
	}
	return Wait{}, false
}

// taken tells how many places are taken, and names one run that has one.
func (g *group) taken() Wait {
	w := Wait{InUse: len(g.live)}
	for who := range g.live {
		if w.By == "" || who < w.By {
			w.By = who
		}
	}
	return w
}

// group returns the tenant's group, which it makes when there is none.
func (t *tenant) group(key string) *group {
	g := t.groups[key]
	if g == nil {
		g = &group{
			tenant: t, key: key, live: make(map[string]struct{}), wait: make(map[Class]*heap[*line]),
			called: make(map[Class]map[*item]struct{}), least: math.MaxInt,
		}
		if t.groups == nil {
			t.groups = make(map[string]*group)
		}
		t.groups[key] = g
	}
	return g
}

func (g *group) tidy() {
	if len(g.live) == 0 && g.lines == 0 {
		delete(g.tenant.groups, g.key)
	}
}

// line returns the line of a class's entries with such groups; nil for no groups.
func (t *tenant) line(c Class, groups []run.Group) *line {
	if len(groups) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString(strconv.FormatUint(uint64(c), 36))
	for _, g := range groups {
		b.WriteByte(0)
		b.WriteString(strconv.Itoa(g.Max))
		b.WriteByte(' ')
		b.WriteString(g.Key)
	}
	l := t.lines[b.String()]
	if l == nil {
		l = &line{key: b.String(), tenant: t, class: c, specs: groups, groups: make([]*group, len(groups))}
		for i := range groups {
			l.groups[i] = t.group(groups[i].Key)
			l.groups[i].lines++
			l.groups[i].least = min(l.groups[i].least, groups[i].Max)
		}
		if t.lines == nil {
			t.lines = make(map[string]*line)
		}
		t.lines[l.key] = l
	}
	return l
}

// leave takes one of its entries off the line's count.
func (l *line) leave() {
	if l.n--; l.n > 0 {
		return
	}
	delete(l.tenant.lines, l.key)
	for _, g := range l.groups {
		g.lines--
		g.tidy()
	}
}

// stand puts a line at a group, or back into order there.
func (l *line) stand(g *group) {
	if l.stands == g {
		g.wait[l.class].fix(l)
		return
	}
	l.step()
	l.stands = g
	w := g.wait[l.class]
	if w == nil {
		w = new(heap[*line])
		g.wait[l.class] = w
	}
	w.push(l)
}

// step takes a line away from where it stands.
func (l *line) step() {
	if l.stands == nil {
		return
	}
	w := l.stands.wait[l.class]
	if w.remove(l); len(*w) == 0 {
		delete(l.stands.wait, l.class)
	}
	l.stands = nil
}

// look lists a group whose lines may have somebody to call.
func (q *Queue) look(g *group) {
	if !g.due && len(g.wait) > 0 {
		g.due = true
		q.due = append(q.due, g)
	}
}

// enline puts an entry that is nowhere into its line, because of a group that is full.
func (q *Queue) enline(it *item, g *group) {
	l := it.line
	l.entries.push(it)
	l.tenant.lined++
	if l.stands != nil {
		g = l.stands
	}
	l.stand(g)
}

// unline takes an entry out of its line; it is nowhere then.
func (q *Queue) unline(it *item) {
	l := it.line
	if len(l.entries) == 1 {
		l.step() // while it can still be compared with others
	}
	l.entries.remove(it)
	l.tenant.lined--
	if len(l.entries) > 0 {
		l.stand(l.stands)
	}
}

// uncall notes that an entry which was called back is not in the queue any more.
func (q *Queue) uncall(it *item) {
	if !it.called {
		return
	}
	it.called = false
	for _, g := range it.line.groups {
		set := g.called[it.line.class]
		if delete(set, it); len(set) == 0 {
			delete(g.called, it.line.class)
		}
		q.look(g)
	}
}

// hangUp sends whoever was called back into line when the group is full after all: what comes into line meanwhile may
// stand before it.
func (q *Queue) hangUp(g *group) {
	if len(g.live) < g.least {
		return
	}
	for _, set := range g.called {
		for it := range set {
			if full := it.line.full(); full != nil && it.class.entries.holds(it) { // else: skipped in this pass
				q.detach(it)
				q.enline(it, full)
			}
		}
	}
}

// call brings the first of every line for which there may be a place back into the queue.
func (q *Queue) call() {
	for i := 0; i < len(q.due); i++ {
		g := q.due[i]
		g.due = false
		for l := q.first(g); l != nil; l = q.first(g) {
			it := l.entries[0]
			q.unline(it)
			it.called = true
			for _, g := range l.groups {
				if g.called[l.class] == nil {
					g.called[l.class] = make(map[*item]struct{})
				}
				g.called[l.class][it] = struct{}{}
			}
			q.attach(l.tenant, it, l.class)
		}
	}
	clear(q.due)
	q.due = q.due[:0]
}

// first is the line of a group whose first entry is to be called next; nil if there is none. Lines that another group
// keeps as well go and stand there.
func (q *Queue) first(g *group) *line {
	var best *line
	for c, w := range g.wait {
		l := (*w)[0]
		for l != nil && l.room(g) > 0 {
			full := l.full()
			if full == nil {
				break
			}
			l.stand(full)
			if l = nil; len(*w) > 0 {
				l = (*w)[0]
			}
		}
		if l == nil || l.room(g) <= 0 || g.called[c] == nil && len(g.called) >= maxCalled {
			continue
		}
		if called := g.called[c]; len(called) >= l.room(g) && ahead(called, l.entries[0]) >= l.room(g) {
			continue
		}
		if best == nil || l.before(best) {
			best = l
		}
	}
	return best
}

// ahead counts those of a set that come before an item.
func ahead(set map[*item]struct{}, it *item) int {
	n := 0
	for other := range set {
		if other.before(it) {
			n++
		}
	}
	return n
}
