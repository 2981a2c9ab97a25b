package queue

import (
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/run"
)

// Shares is what must survive a restart, so that nobody's spent share is forgotten in its favour.
type Shares struct {
	// Tenants maps a tenant to its virtual time relative to that of the queue: more than 0 is ahead of it. One
	// that is missing is at 0.
	Tenants map[string]int64 `json:"tenants,omitempty"`
}

// Shares returns a snapshot of the virtual times of backlogged tenants and of idle ones that are ahead. Its size is
// that of the tenants that were busy of late.
func (q *Queue) Shares() Shares {
	s := Shares{Tenants: map[string]int64{}}
	for name, t := range q.tenants {
		if lead := t.virtual - q.virtual; lead > 0 || t.n > 0 {
			s.Tenants[name] = lead
		}
	}
	return s
}

// Restore gives a new queue the virtual times of an old one. It must precede the first Push.
func (q *Queue) Restore(s Shares) {
	for name, lead := range s.Tenants {
		t := q.tenant(name)
		t.virtual = q.virtual + min(max(lead, -rebaseAt), rebaseAt)
		t.restored = true
	}
	q.restored = q.virtual
	q.high = q.virtual // a lead is kept, and not lost to the lift of whoever comes first
}

// rebase moves all virtual times down together, long before they could overflow.
func (q *Queue) rebase() {
	by := q.virtual
	q.high = 0
	for _, t := range q.tenants {
		t.virtual = max(t.virtual-by, never)
		q.high = max(q.high, t.virtual)
	}
	q.virtual, q.restored = 0, q.restored-by
}

// sweep forgets tenants that are idle, of ordinary weight and not ahead, when they are the larger part: they would be
// lifted to the present virtual time anyway.
func (q *Queue) sweep() {
	if len(q.tenants) < 1024 || len(q.tenants) < q.kept {
		return
	}
	for name, t := range q.tenants {
		if t.n == 0 && len(t.groups) == 0 && t.weight == 1 && t.virtual <= q.virtual {
			delete(q.tenants, name)
		}
	}
	q.kept = 2 * len(q.tenants)
}

// TenantStat is a tenant as the queue sees it.
type TenantStat struct {
	Tenant   string
	Weight   int
	Queued   int
	Oldest   run.Instant // when its longest waiting entry was queued; 0 for none
	Slots    int64       // that its entries ask for together
	Cost     int64       // of its entries together
	Lead     int64       // virtual time ahead (or, negative, behind) of the queue's, in cost at weight 1
	TopEntry Entry       // that is next in its own order; zero for none
}

// Tenants lists the tenants that have entries or are ahead of their share, by name. It costs O(n).
func (q *Queue) Tenants() []TenantStat {
	var list []TenantStat
	for _, t := range q.tenants {
		if t.n+t.lined == 0 && t.virtual <= q.virtual {
			continue
		}
		s := TenantStat{
			Tenant: t.name, Weight: int(t.weight), Queued: t.n + t.lined, Cost: t.cost, Lead: (t.virtual - q.virtual) / scale,
		}
		var top *item
		see := func(it *item) {
			s.Oldest = run.Earliest(s.Oldest, it.queuedAt)
			s.Slots += int64(it.slots)
			if top == nil || it.before(top) {
				top = it
			}
		}
		q.each(t, see)
		for _, l := range t.lines {
			for _, it := range l.entries {
				s.Cost += it.cost
				see(it)
			}
		}
		if top != nil {
			s.TopEntry = top.entry()
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b TenantStat) int { return strings.Compare(a.Tenant, b.Tenant) })
	return list
}

// each visits a tenant's entries but for those in line, in no order, with those that the open pass skipped.
func (q *Queue) each(t *tenant, visit func(*item)) {
	for _, c := range t.classes {
		for _, it := range c.entries {
			visit(it)
		}
	}
	for _, it := range q.pass.skipped {
		if it.class != nil && it.class.tenant == t && it.at == 0 {
			visit(it)
		}
	}
}

// Heads returns, for each tenant and class, the entry that is next, in the order of tenants by virtual time and of
// a tenant's classes by rank.
func (q *Queue) Heads() []Entry {
	var heads []*item
	for _, t := range q.tenants {
		for _, c := range t.classes {
			if len(c.entries) > 0 {
				heads = append(heads, c.entries[0])
			}
		}
	}
	slices.SortFunc(heads, func(a, b *item) int {
		ta, tb := a.class.tenant, b.class.tenant
		if ta != tb && ta.before(tb) || ta == tb && a.before(b) {
			return -1
		}
		return 1
	})
	list := make([]Entry, len(heads))
	for i, it := range heads {
		list[i] = it.entry()
	}
	return list
}

// Position is where an entry stands.
type Position struct {
	Position    int // 1 is next
	Ahead       int // entries of all tenants that come before
	TenantAhead int // of them, the tenant's own
	Tenants     int // tenants that have an entry before it, its own included
}

// Position says what comes before the entry if all of it can be placed. It is exact while each tenant's runs cost the
// same, and takes their mean otherwise. Before an entry in line is what its line holds before it. It costs O(tenants +
// the tenant's own entries).
func (q *Queue) Position(id string) (Position, bool) {
	it, ok := q.index[id]
	if !ok {
		return Position{}, false
	}
	if it.class == nil {
		w, _ := q.Waits(id)
		return Position{Position: w.Ahead + 1, Ahead: w.Ahead, TenantAhead: w.Ahead, Tenants: min(w.Ahead, 1)}, true
	}
	// 1. The virtual time that its tenant has when its turn comes.
	own := it.class.tenant
	var p Position
	start := own.virtual
	q.each(own, func(other *item) {
		if other.before(it) {
			p.TenantAhead++
			start += max(own.charge(other.cost), 1)
		}
	})
	// 2. What the others start before that virtual time.
	p.Ahead = p.TenantAhead
	if p.TenantAhead > 0 {
		p.Tenants++
	}
	for _, t := range q.tenants {
		if t == own || t.n == 0 || t.virtual > start {
			continue
		}
		each := max(t.charge(t.cost/int64(t.n)), 1)
		ahead := (start - t.virtual) / each
		if (start-t.virtual)%each != 0 || t.name < own.name {
			ahead++
		}
		if ahead > 0 {
			p.Tenants++
			p.Ahead += int(min(ahead, int64(t.n)))
		}
	}
	p.Position = p.Ahead + 1
	return p, true
}
