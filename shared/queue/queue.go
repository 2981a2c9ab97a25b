// Package queue orders the runs that are eligible to start.
//
// Between tenants the order is start-time fair queueing: each tenant has a virtual time, its dispatched cost divided
// by its weight, and the tenant with the least of it is next. While two tenants stay backlogged and eligible for the
// same slots, their virtual times differ by at most one largest run each. A tenant that was idle is lifted to the
// present virtual time when it comes back: it neither saved up a claim nor owes for capacity that nobody else wanted.
//
// Within a tenant the order is a rank that never changes: the instant at which a run was queued, minus Ageing for each
// point of priority. So an old run overtakes a newer one of higher priority in the end, and nothing is ever re-sorted.
//
// A [Pass] walks the queue in that order. What cannot be placed is left out for the rest of the pass, so that it never
// stands in the way of what is behind it. What its group keeps from starting waits in a line of its own: see
// [Queue.Occupy].
//
// The package imports no clock, context or I/O. A Queue is for one goroutine.
package queue

import (
	"time"

	"github.com/errand-run/errand/shared/run"
)

// Class is a handle for runs with the same placement outcome: equal needs, agent revision and tenant, and whatever
// else the caller refuses as one, like a session or a concurrency key.
type Class uint64

// With narrows a class by another part that decides over its runs together, like a session.
func (c Class) With(part string) Class {
	h := uint64(c) ^ 0x9e3779b97f4a7c15
	for i := range len(part) {
		h = (h ^ uint64(part[i])) * 0x100000001b3
	}
	h ^= h >> 32
	return Class(h * 0xd6e8feb86659fd93)
}

// Entry is one run in the queue.
type Entry struct {
	ID       string
	Tenant   string
	Class    Class
	Priority int         // more is sooner, among the tenant's own runs
	QueuedAt run.Instant // since when it waits
	Slots    int
	Cost     int64       // what it is expected to take: slots × milliseconds
	Expires  run.Instant // end of its queue timeout; the queue keeps it and does not act on it
	Groups   []run.Group // the run's; not to be changed
}

// Options configure a Queue. The zero value is usable.
type Options struct {
	// Ageing is how long a run must wait to make up for one point of priority; 30 s when zero.
	Ageing time.Duration
	// MaxEntries bounds the queue; 1,000,000 when zero. A thousandth of it is each tenant's own beside, so that nobody's
	// flood keeps a tenant out that has few runs.
	MaxEntries int
	// Credit bounds how far a tenant that is backlogged, but eligible for nothing that is free, can fall behind the
	// others' virtual time, in milliseconds of one slot at weight 1; 10 minutes when zero. Without a bound, a tenant
	// that waited for a scarce accelerator for a day could then take every ordinary slot for a day.
	Credit time.Duration
}

const (
	defaultAgeing     = 30 * time.Second
	defaultMaxEntries = 1_000_000
	defaultCredit     = 10 * time.Minute

	// scale is how many units of virtual time one unit of cost is at weight 1. It keeps the rounding of a division by
	// the weight small.
	scale = 1 << 10
	// maxCost keeps virtual time far from overflow between two rebases: 35 years of one slot.
	maxCost  = 1 << 40
	rebaseAt = int64(1) << 60
	// never is the virtual time of a tenant that took nothing yet: whatever it is lifted to is more.
	never = -1 << 62
)

// Queue holds the eligible runs.
type Queue struct {
	ageing     int64
	maxEntries int
	own        int  // entries that a tenant may always have
	behind     bool // something was refused, and waits outside since
	credit     int64

	index   map[string]*item
	tenants map[string]*tenant
	ready   heap[*tenant] // the tenants with something to offer, by virtual time
	active  int           // tenants with at least one entry

	virtual  int64 // of the queue: that of the tenant that took last and was not behind
	high     int64 // highest that any tenant reached
	largest  int64 // largest charge so far, in virtual time
	kept     int   // tenants at which the next sweep is due
	restored int64 // virtual when shares were restored

	occupied map[string][]*group // by run that has an attempt
	due      []*group            // in which a place may be free, and somebody waits

	pass Pass
}

// New returns an empty queue.
func New(o Options) *Queue {
	if o.Ageing <= 0 {
		o.Ageing = defaultAgeing
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = defaultMaxEntries
	}
	if o.Credit <= 0 {
		o.Credit = defaultCredit
	}
	q := &Queue{
		ageing:     max(o.Ageing.Milliseconds(), 1),
		maxEntries: o.MaxEntries,
		own:        max(o.MaxEntries/1000, 1),
		credit:     min(o.Credit.Milliseconds(), maxCost) * scale,
		index:      map[string]*item{},
		tenants:    map[string]*tenant{},
		occupied:   map[string][]*group{},
	}
	q.pass.q = q
	return q
}

// item is an entry as it is kept.
type item struct {
	id       string
	class    *class // nil while it is in line
	line     *line  // nil without groups
	queuedAt run.Instant
	expires  run.Instant
	cost     int64
	rank     int64
	slots    int32
	at       int32
	priority int32
	called   bool // back from its line
}

func (it *item) place() *int32 { return &it.at }
func (it *item) before(other *item) bool {
	if it.rank != other.rank {
		return it.rank < other.rank
	}
	return it.id < other.id
}

func (it *item) entry() Entry {
	e := Entry{
		ID: it.id, Priority: int(it.priority), QueuedAt: it.queuedAt, Slots: int(it.slots), Cost: it.cost, Expires: it.expires,
	}
	if it.line != nil {
		e.Tenant, e.Class, e.Groups = it.line.tenant.name, it.line.class, it.line.specs
	} else {
		e.Tenant, e.Class = it.class.tenant.name, it.class.key
	}
	return e
}

// class holds a tenant's entries of one class. It stands in its tenant's heap while it has an entry to offer.
type class struct {
	key     Class
	tenant  *tenant
	entries heap[*item] // without those skipped in this pass
	n       int         // with them
	at      int32
	out     bool // left out of this pass
}

func (c *class) place() *int32            { return &c.at }
func (c *class) before(other *class) bool { return c.entries[0].before(other.entries[0]) }

// tenant stands in the queue's heap while it has a class to offer.
type tenant struct {
	name    string
	weight  int64
	virtual int64 // dispatched cost × scale ÷ weight
	classes map[Class]*class
	ready   heap[*class]
	n       int   // entries, but for those in line
	cost    int64 // of all of them
	at      int32

	lined  int // entries in line
	groups map[string]*group
	lines  map[string]*line

	out      bool // left out of this pass
	parked   bool // listed in the pass as refused
	behind   bool // was refused and then overtaken, and has not caught up: it waits for something scarce
	restored bool // its virtual time comes from Restore and it has not been backlogged since
}

func (t *tenant) place() *int32 { return &t.at }
func (t *tenant) before(other *tenant) bool {
	if t.virtual != other.virtual {
		return t.virtual < other.virtual
	}
	return t.name < other.name
}

// charge converts a cost, which may be negative, to virtual time.
func (t *tenant) charge(cost int64) int64 {
	return min(max(cost, -maxCost), maxCost) * scale / t.weight
}

// Push adds an entry, or replaces the one with its ID. It returns false when the queue is full: the run then stays
// where it is stored until there is room. A cost below 1 counts as 1.
func (q *Queue) Push(e Entry) bool {
	old, known := q.index[e.ID]
	if !known && q.full(e.Tenant) {
		q.behind = true
		return false
	}
	t := q.tenant(e.Tenant)
	it := &item{
		id: e.ID, line: t.line(e.Class, e.Groups), queuedAt: e.QueuedAt, expires: e.Expires, cost: min(max(e.Cost, 1), maxCost),
		slots: int32(min(max(e.Slots, 1), 1<<30)), priority: int32(min(max(e.Priority, -1<<20), 1<<20)),
	}
	it.rank = int64(it.queuedAt) - int64(it.priority)*q.ageing
	if it.line != nil {
		it.line.n++
	}
	if g := it.line.full(); g != nil {
		q.enline(it, g)
	} else {
		q.attach(t, it, e.Class)
	}
	// The old entry goes last, so that a tenant that had only this one does not count as idle in between.
	if known {
		q.drop(old)
	}
	q.index[e.ID] = it
	return true
}

// attach puts an item that is nowhere into its class.
func (q *Queue) attach(t *tenant, it *item, key Class) {
	if t.n == 0 {
		q.lift(t)
	}
	c := t.classes[key]
	if c == nil {
		c = &class{key: key, tenant: t}
		t.classes[key] = c
	}
	it.class = c
	c.n++
	t.n++
	t.cost += it.cost
	if t.n == 1 {
		q.active++
	}
	c.entries.push(it)
	q.settle(c)
}

// full reports whether there is no room for another entry of a tenant. Where something was refused there is none before
// half of the queue is free: what waits outside came before what comes now, and is to be brought in first.
func (q *Queue) full(name string) bool {
	n := len(q.index)
	q.behind = q.behind && n > q.maxEntries/2
	if n < q.maxEntries && !q.behind {
		return false
	}
	t := q.tenants[name]
	return t != nil && t.n+t.lined >= q.own
}

// Remove takes an entry out without charging for it.
func (q *Queue) Remove(id string) (Entry, bool) {
	it, ok := q.index[id]
	if !ok {
		return Entry{}, false
	}
	e := it.entry()
	q.drop(it)
	return e, true
}

// Get returns the entry with the ID.
func (q *Queue) Get(id string) (Entry, bool) {
	it, ok := q.index[id]
	if !ok {
		return Entry{}, false
	}
	return it.entry(), true
}

// First returns the entry of a tenant's class that is next in the tenant's own order.
func (q *Queue) First(tenant string, c Class) (Entry, bool) {
	t := q.tenants[tenant]
	if t == nil || t.classes[c] == nil || len(t.classes[c].entries) == 0 {
		return Entry{}, false
	}
	return t.classes[c].entries[0].entry(), true
}

// Len is the number of entries.
func (q *Queue) Len() int { return len(q.index) }

// LenTenant is the number of the tenant's entries.
func (q *Queue) LenTenant(name string) int {
	if t := q.tenants[name]; t != nil {
		return t.n + t.lined
	}
	return 0
}

// SetWeight sets a tenant's share relative to the others'; below 1 counts as 1, which is also the weight of a tenant
// never named here. It counts for what is dispatched from now on.
func (q *Queue) SetWeight(name string, weight int) {
	q.tenant(name).weight = int64(max(weight, 1))
}

// Correct settles what a run cost against what Take charged for it: delta is actual minus estimate.
func (q *Queue) Correct(name string, delta int64) {
	t := q.tenants[name]
	if t == nil || t.virtual == never {
		if delta <= 0 {
			return // it would be lifted to the present virtual time anyway
		}
		t = q.tenant(name)
		t.virtual = q.virtual
	}
	t.virtual = min(max(t.virtual+t.charge(delta), never/2), -never)
	q.high = max(q.high, t.virtual)
	if q.ready.holds(t) {
		q.ready.fix(t)
	}
}

// tenant returns the tenant's record, which it makes when there is none.
func (q *Queue) tenant(name string) *tenant {
	t := q.tenants[name]
	if t == nil {
		t = &tenant{name: name, weight: 1, virtual: never, classes: map[Class]*class{}}
		q.tenants[name] = t
	}
	return t
}

// lift gives a tenant that was idle the present virtual time, unless it is ahead of it.
func (q *Queue) lift(t *tenant) {
	if t.restored {
		t.restored = false
		if q.virtual-q.restored <= q.lag() {
			return // it was not idle: the process was
		}
	}
	now, ok := q.least(0)
	switch {
	case ok:
	case q.active > 0:
		now = q.virtual
	default:
		// Nobody waits, so nobody was kept waiting by what the others used.
		now = max(q.virtual, q.high)
	}
	t.virtual = max(t.virtual, now)
	q.high = max(q.high, t.virtual)
}

// least is the least virtual time in the heap below index i of tenants that are not behind. Those that are behind do
// not count, or whoever comes would take everything until it has caught up with them.
func (q *Queue) least(i int) (int64, bool) {
	if i >= len(q.ready) {
		return 0, false
	}
	if t := q.ready[i]; !t.behind {
		return t.virtual, true
	}
	a, left := q.least(2*i + 1)
	b, right := q.least(2*i + 2)
	if !left || right && b < a {
		return b, right
	}
	return a, true
}

// lag is the most that an overtaken tenant may be behind. It exceeds the difference that two tenants can have who
// compete for the same slots, so it never touches that.
func (q *Queue) lag() int64 { return q.credit + 2*q.largest }

// drop removes an item from everything that holds it.
func (q *Queue) drop(it *item) {
	delete(q.index, it.id)
	if it.class != nil {
		q.detach(it)
	} else {
		q.unline(it)
	}
	if it.line != nil {
		it.line.leave()
	}
}

// detach takes an item out of its class; it is nowhere then.
func (q *Queue) detach(it *item) {
	c := it.class
	t := c.tenant
	if q.pass.current == it {
		q.pass.current = nil
	}
	if c.entries.holds(it) {
		c.entries.remove(it)
	}
	c.n--
	t.n--
	t.cost -= it.cost
	it.class = nil
	q.uncall(it)
	q.settle(c)
	if c.n == 0 {
		delete(t.classes, c.key)
	}
	if t.n == 0 {
		q.active--
		t.behind = false
	}
}

// settle puts a class and its tenant where they belong after the class changed.
func (q *Queue) settle(c *class) {
	t := c.tenant
	switch offers, in := len(c.entries) > 0 && !c.out, t.ready.holds(c); {
	case offers && in:
		t.ready.fix(c)
	case offers:
		t.ready.push(c)
	case in:
		t.ready.remove(c)
	}
	q.settleTenant(t)
}

func (q *Queue) settleTenant(t *tenant) {
	switch offers, in := len(t.ready) > 0 && !t.out, q.ready.holds(t); {
	case offers && in:
		q.ready.fix(t)
	case offers:
		q.ready.push(t)
	case in:
		q.ready.remove(t)
		if q.pass.open && t.n > 0 && !t.parked {
			t.parked = true
			q.pass.parked = append(q.pass.parked, t)
		}
	}
}
