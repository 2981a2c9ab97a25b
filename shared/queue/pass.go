package queue

import "slices"

// Pass walks the queue once, in order. After each Next the caller says what becomes of the entry with exactly one of
// Take, Remove, Skip, BlockClass and BlockTenant; an entry it says nothing about is skipped. Entries may be pushed and
// removed meanwhile. Every answer costs O(log n).
//
//	p := q.Begin()
//	defer p.End()
//	for e, ok := p.Next(); ok; e, ok = p.Next() { … }
type Pass struct {
	q       *Queue
	open    bool
	current *item

	blocked  map[Class]struct{}
	classes  []*class  // left out
	skipped  []*item   // left out
	tenants  []*tenant // left out by BlockTenant
	parked   []*tenant // refused with entries left, in the order of their virtual times
	overtook int       // how many of parked were refused before the last Take
	lined    []string  // put into line
	level    int64     // highest virtual time at which a tenant took, never before the first
}

// Begin starts a pass and ends the one that is still open, if any.
func (q *Queue) Begin() *Pass {
	p := &q.pass
	p.End()
	if q.high > rebaseAt {
		q.rebase()
	}
	q.sweep()
	p.open, p.level = true, never
	return p
}

// Next offers the entry that is first in order among those not left out.
func (p *Pass) Next() (Entry, bool) {
	if !p.open {
		return Entry{}, false
	}
	if p.current != nil {
		p.skip(p.current)
	}
	q := p.q
	q.call()
	for len(q.ready) > 0 {
		c := q.ready[0].ready[0]
		if len(p.blocked) > 0 {
			if _, out := p.blocked[c.key]; out {
				c.out = true
				p.classes = append(p.classes, c)
				q.settle(c)
				continue
			}
		}
		it := c.entries[0]
		if g := it.line.full(); g != nil {
			q.detach(it)
			q.enline(it, g)
			p.lined = append(p.lined, it.id)
			q.call()
			continue
		}
		p.current = it
		return it.entry(), true
	}
	return Entry{}, false
}

// Take removes the entry, which was dispatched, and charges its tenant with e.Cost: what the caller expects of it by now,
// which may be something else than when it was pushed.
func (p *Pass) Take(e Entry) {
	it := p.find(e)
	if it == nil || it.class == nil { // in line: its group is full
		return
	}
	q, t := p.q, it.class.tenant
	charge := max(t.charge(e.Cost), 1)
	t.behind = t.behind && t.virtual < q.virtual
	if !t.behind {
		p.level = max(p.level, t.virtual)
		q.virtual = p.level
	}
	q.largest = max(q.largest, charge)
	t.virtual += charge
	q.high = max(q.high, t.virtual)
	p.overtook = len(p.parked)
	q.drop(it)
}

// TakeAhead takes an entry of whose turn it is not yet: the same as a walk in which everything before it is refused and
// stays refused, for a caller that knows that it is so. It costs O(tenants before it).
func (p *Pass) TakeAhead(e Entry) {
	if it := p.find(e); it != nil && it.class != nil {
		p.overtake(0, it.class.tenant)
		p.Take(e)
	}
}

// overtake counts the tenants in the heap below index i that come before t as refused.
func (p *Pass) overtake(i int, t *tenant) {
	q := p.q
	if i >= len(q.ready) || !q.ready[i].before(t) {
		return
	}
	if x := q.ready[i]; !x.parked {
		x.parked = true
		p.parked = append(p.parked, x)
	}
	p.overtake(2*i+1, t)
	p.overtake(2*i+2, t)
}

// Remove takes the entry out without a charge: it became unschedulable, was canceled or expired.
func (p *Pass) Remove(e Entry) {
	if it := p.find(e); it != nil {
		p.q.drop(it)
	}
}

// Skip leaves out this entry alone. A reason that holds for others too is better a class of its own, refused at once.
func (p *Pass) Skip(e Entry) {
	if it := p.find(e); it != nil && it.class != nil {
		p.skip(it)
	}
}

// BlockClass leaves out every entry of the class.
func (p *Pass) BlockClass(c Class) {
	if !p.open {
		return
	}
	if p.blocked == nil {
		p.blocked = map[Class]struct{}{}
	}
	p.blocked[c] = struct{}{}
	if p.current != nil && p.current.class.key == c {
		p.current = nil
	}
}

// BlockTenant leaves out every entry of the tenant.
func (p *Pass) BlockTenant(name string) {
	t := p.q.tenants[name]
	if !p.open || t == nil || t.out {
		return
	}
	t.out = true
	p.tenants = append(p.tenants, t)
	p.q.settleTenant(t)
	if p.current != nil && p.current.class.tenant == t {
		p.current = nil
	}
}

// Lined lists what the pass did not offer, and put into line because a group of it is full. It holds until End.
func (p *Pass) Lined() []string { return p.lined }

// End puts back all that was left out. It does nothing when the pass has ended.
func (p *Pass) End() {
	if !p.open {
		return
	}
	q := p.q
	p.current = nil
	p.compress()
	for _, t := range p.parked {
		t.parked = false
	}
	for _, t := range p.tenants {
		t.out = false
	}
	p.open = false // from here on nothing that settles counts as refused
	for _, it := range p.skipped {
		switch full := it.line.full(); {
		case it.class == nil || it.class.entries.holds(it):
		case full != nil:
			q.detach(it)
			q.enline(it, full)
		default:
			it.class.entries.push(it)
			q.settle(it.class)
		}
	}
	for _, c := range p.classes {
		c.out = false
		q.settle(c)
	}
	for _, t := range p.tenants {
		q.settleTenant(t)
	}
	clear(p.blocked)
	clear(p.classes)
	clear(p.skipped)
	clear(p.tenants)
	clear(p.parked)
	clear(p.lined)
	p.lined = p.lined[:0]
	p.classes, p.skipped, p.tenants, p.parked = p.classes[:0], p.skipped[:0], p.tenants[:0], p.parked[:0]
	p.overtook = 0
}

// compress bounds the claim of tenants that were refused and then overtaken: they could not use what was free. Only
// gaps wider than the lag shrink, each to the lag. Tenants that compete with each other for something scarce are
// closer together than that, so their order and their distances stay as they are.
func (p *Pass) compress() {
	q := p.q
	behind := p.parked[:p.overtook]
	lag, above, shift := q.lag(), p.level, int64(0)
	// Whoever is behind at all is within the lag: then so is every gap.
	least := above
	for _, t := range behind {
		if least = min(least, t.virtual); t.virtual < p.level {
			t.behind = t.n > 0
		}
	}
	if above-least <= lag {
		return
	}
	slices.SortFunc(behind, func(a, b *tenant) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	for _, t := range slices.Backward(behind) {
		if t.virtual >= p.level {
			continue
		}
		t.virtual += shift
		if gap := above - t.virtual - lag; gap > 0 {
			t.virtual += gap
			shift += gap
		}
		above = t.virtual
		if q.ready.holds(t) {
			q.ready.fix(t)
		}
	}
}

func (p *Pass) find(e Entry) *item {
	if !p.open {
		return nil
	}
	if it := p.current; it != nil && it.id == e.ID {
		p.current = nil
		return it
	}
	return p.q.index[e.ID]
}

func (p *Pass) skip(it *item) {
	p.current = nil
	if c := it.class; c.entries.holds(it) {
		c.entries.remove(it)
		p.skipped = append(p.skipped, it)
		p.q.settle(c)
	}
}
