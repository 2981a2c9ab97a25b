package sim

import (
	"maps"
	"time"

	"github.com/errand-run/errand/shared/run"
)

// shares is the reference for fair shares, kept in worlds where every queued run could take every slot. There, of two
// tenants that both wait, the one with less dispatched cost by weight is next. Where the two began is not known here,
// but it is one number: of all the differences at which the one was next, none may be above one at which the other was.
//
// That is more than what is promised, a difference of one largest run each, and follows from no clock of the product's.
type shares struct {
	usual  map[string]time.Duration // what a run of an agent takes, as the process has seen it since it started
	cost   map[string]int64         // by run: what it is charged with
	begun  map[string]run.Instant   // by run: when its attempt started
	level  map[string]int64         // by tenant: what it was charged with by weight, in parts of a millisecond
	pairs  map[[2]string]*pair
	most   int64 // that one run was charged with, at weight 1
	serial int
	saved  *shares // as of the last time that the process kept its shares
}

// pair is two tenants, by name, that both wait since some moment.
type pair struct {
	id         int
	first, has bool     // the first, and the other, was served
	open       [2]int64 // their levels then
	most       int64    // difference of levels at which the first was served: the highest
	least      int64    // at which the other was: the lowest
}

func newShares() *shares {
	return &shares{
		usual: map[string]time.Duration{}, cost: map[string]int64{}, begun: map[string]run.Instant{}, level: map[string]int64{},
		pairs: map[[2]string]*pair{},
	}
}

func (s *shares) clone() *shares {
	c := &shares{
		usual: maps.Clone(s.usual), cost: maps.Clone(s.cost), begun: maps.Clone(s.begun), level: maps.Clone(s.level),
		pairs: map[[2]string]*pair{}, serial: s.serial, most: s.most,
	}
	for k, p := range s.pairs {
		p := *p
		c.pairs[k] = &p
	}
	return c
}

// restarted: what the process kept of its shares is what it goes on with. What runs that it took over cost is not
// settled any more, and how long runs take it has to learn again.
func (l *ledger) restarted() {
	s, next := l.shares, newShares()
	if s.saved != nil {
		next.most, next.level, next.pairs, next.saved = s.most, maps.Clone(s.saved.level), s.saved.clone().pairs, s.saved
	}
	next.serial = s.serial
	for k, p := range next.pairs {
		if now := s.pairs[k]; now == nil || now.id != p.id { // one of them did not wait all the time
			delete(next.pairs, k)
		}
	}
	l.shares = next
}

const perMilli = 1 << 10

func (w *world) charge(tenant string, cost int64) int64 {
	return cost * perMilli / int64(max(w.fleet.tenants[tenant].Weight, 1))
}

// shared follows what a write means for shares. before is the state that the run was in.
func (l *ledger) shared(k *known, before run.State, events []run.Event) {
	s, w, r := l.shares, l.w, k.rec
	for i := range events {
		switch e := &events[i]; e.Type {
		case run.EvAssigned:
			l.served(r)
		case run.EvStarted:
			s.begun[r.ID] = e.At
		}
	}
	// 1. An attempt that ended cost what it took.
	if cost := s.cost[r.ID]; !r.Live() && cost > 0 {
		took := time.Duration(0) // it may never have started
		if started := s.begun[r.ID]; started != 0 {
			took = r.UpdatedAt.Sub(started)
		}
		s.level[r.Tenant] += w.charge(r.Tenant, took.Milliseconds()-cost)
		s.most = max(s.most, took.Milliseconds()*perMilli)
	}
	if !r.Live() {
		delete(s.begun, r.ID)
		delete(s.cost, r.ID)
	}
	if cur := r.Current(); r.State == run.Succeeded && before != run.Succeeded && cur != nil && cur.StartedAt != 0 {
		took := cur.EndedAt.Sub(cur.StartedAt)
		if old, known := s.usual[r.Agent]; known {
			took = old + (took-old)/8
		}
		s.usual[r.Agent] = took
	}
	// 2. Who waits.
	l.pairUp()
}

func (s *shares) expected(agent string) int64 {
	if d, known := s.usual[agent]; known {
		return max(d, time.Millisecond).Milliseconds()
	}
	return time.Second.Milliseconds()
}

// served checks that it was the tenant's turn.
func (l *ledger) served(r *run.Record) {
	s, w := l.shares, l.w
	for k, p := range s.pairs {
		d := s.level[k[0]] - s.level[k[1]]
		gain := d - (p.open[0] - p.open[1]) // of the first over the other, since both wait
		switch r.Tenant {
		case k[0]:
			// Whoever waits had at most what it was ever charged with to make up for.
			if !p.has && gain > p.open[1]+2*s.most {
				w.fail("nobody who waits is passed over for ever", "%s was served %d ms by weight, and %s nothing", k[0], gain/perMilli, k[1])
			}
			if !p.first || d > p.most {
				p.first, p.most = true, d
			}
		case k[1]:
			if !p.first && -gain > p.open[0]+2*s.most {
				w.fail("nobody who waits is passed over for ever", "%s was served %d ms by weight, and %s nothing", k[1], -gain/perMilli, k[0])
			}
			if !p.has || d < p.least {
				p.has, p.least = true, d
			}
		default:
			continue
		}
		if p.first && p.has {
			w.saw("turns of two waiting tenants compared")
			if p.most > p.least+2*perMilli { // charges are rounded
				w.fail("tenants that wait for the same slots get their shares", "%s was served when it had %d/1024 ms by weight more than %s, which was served when that was %d/1024 ms",
					k[0], p.most, k[1], p.least)
			}
		}
	}
	cost := s.expected(r.Agent)
	s.cost[r.ID] = cost
	s.level[r.Tenant] += max(w.charge(r.Tenant, cost), 1)
	s.most = max(s.most, cost*perMilli)
}

// pairUp notes which tenants wait side by side.
func (l *ledger) pairUp() {
	s := l.shares
	waits := map[string]bool{}
	for _, k := range l.runs {
		if k.rec != nil && k.rec.State == run.Queued && k.rec.Kind == run.KindAgent { // a workflow waits for no slot
			waits[k.rec.Tenant] = true
		}
	}
	for i, a := range tenants {
		for _, b := range tenants[i+1:] {
			k := [2]string{a, b}
			switch both, open := waits[a] && waits[b], s.pairs[k] != nil; {
			case both && !open:
				s.serial++
				s.pairs[k] = &pair{id: s.serial, open: [2]int64{s.level[a], s.level[b]}}
			case !both && open:
				delete(s.pairs, k)
			}
		}
	}
}
