package control

import (
	"slices"
	"time"

	"github.com/errand-run/errand/shared/run"
)

// What the leader knows of families: for each parent the states of its children, one bit per item, so that whatever is
// told twice counts once. It is built from the records that pass by (index.set), is complete for parents that were
// submitted under this leader, and is read from the store once for the others. See family.go.

// maxKin bounds the parents whose children are known; one that is dropped is read again when something happens to it.
const maxKin = 50_000

// kinMargin is by how much clocks of two processes may differ in what a new leader takes for older than itself.
const kinMargin = time.Minute

// kinWakeKey wakes the loop to look again at parents whose last look failed.
const kinWakeKey = "kin"

// kinship is guarded by Plane.mu.
type kinship struct {
	of    map[string]*kin // by parent
	since run.Instant     // of parents submitted before, not every child need be known

	look    []string // parents to look at, oldest first
	looking map[string]bool
	later   []string // those whose look failed
	sweep   []string // parents whose open children are read again, in turns
}

// kin is a parent with what is known of its children.
type kin struct {
	seen   bool      // the parent's record: what follows is of it
	state  run.State // of the parent
	flow   bool      // it goes on by its children alone
	parent string    // of the parent
	park   *run.Park
	stages map[string]*brood
	open   int  // children that are known and have not ended
	listed bool // all its children were read
}

// brood is the children of one stage.
type brood struct {
	known, over, won          bits
	told                      bits // those that are ending already
	spawned, ended, succeeded int
	read                      bool // from the store, once
}

// bits is a set of small numbers.
type bits []uint64

func (b bits) has(i int) bool { return i>>6 < len(b) && b[i>>6]&(1<<(i&63)) != 0 }

// add reports whether the number is new.
func (b *bits) add(i int) bool {
	if n := i>>6 + 1; n > len(*b) {
		*b = append(*b, make(bits, n-len(*b))...)
	}
	was := (*b)[i>>6]
	(*b)[i>>6] |= 1 << (i & 63)
	return was != (*b)[i>>6]
}

// family is how far the children of one stage are.
type family struct {
	spawned, ended, succeeded int
	failed                    int // ended otherwise than succeeded
}

func (b *brood) family() family {
	if b == nil {
		return family{}
	}
	return family{spawned: b.spawned, ended: b.ended, succeeded: b.succeeded, failed: b.ended - b.succeeded}
}

func newKinship() kinship {
	return kinship{of: make(map[string]*kin), looking: make(map[string]bool)}
}

// lookAt asks for a look at a parent.
func (ks *kinship) lookAt(id string) {
	if !ks.looking[id] {
		ks.looking[id] = true
		ks.look = append(ks.look, id)
	}
}

// take gives up to n parents to look at.
func (ks *kinship) take(n int) []string {
	ids, rest := cut(ks.look, n)
	if ks.look = rest; len(rest) == 0 {
		ks.look = nil
	}
	for _, id := range ids {
		delete(ks.looking, id)
	}
	return ids
}

// enter makes room for a parent.
func (ks *kinship) enter(id string) *kin {
	if len(ks.of) >= maxKin {
		ks.evict()
	}
	k := &kin{stages: make(map[string]*brood)}
	ks.of[id] = k
	return k
}

// evict drops a parent, one without open children if a few tries find it.
func (ks *kinship) evict() {
	tries, drop := 32, ""
	for id, k := range ks.of {
		if drop == "" || k.open == 0 {
			drop = id
		}
		if tries--; tries == 0 || k.open == 0 {
			break
		}
	}
	delete(ks.of, drop)
}

// meet takes over what a parent's record says.
func (k *kin) meet(r *run.Record) {
	k.seen, k.state, k.flow, k.parent, k.park = true, r.State, r.Kind != run.KindAgent, r.Parent, r.Park
}

// isOver reports whether the parent has ended, or is about to: its children are not needed any more.
func (k *kin) isOver() bool { return k.seen && (k.state.Terminal() || k.state == run.Canceling) }

// waitsFor reports whether the parent is parked on the children of a stage.
func (k *kin) waitsFor(stage string) bool {
	return k.state == run.Waiting && k.park != nil && k.park.On == run.OnChildren && k.park.Step == stage
}

// add notes the state of a child and reports whether that is news: it was not known, or has ended.
func (k *kin) add(stage string, item int, s run.State) (news bool) {
	b := k.stages[stage]
	if b == nil {
		b = new(brood)
		k.stages[stage] = b
	}
	if b.known.add(item) {
		b.spawned++
		k.open++
		news = true
	}
	if s == run.Canceling {
		b.told.add(item)
	}
	if s.Terminal() && b.over.add(item) {
		b.ended++
		k.open--
		news = true
		if s == run.Succeeded && b.won.add(item) {
			b.succeeded++
		}
	}
	return news
}

// place is where a child stands.
type place struct {
	stage string
	item  int
}

// copy is the counts of each stage, for whoever does not hold Plane.mu.
func (k *kin) copy() *kin {
	c := &kin{stages: make(map[string]*brood, len(k.stages))}
	for name, b := range k.stages {
		c.stages[name] = &brood{spawned: b.spawned, ended: b.ended, succeeded: b.succeeded}
	}
	return c
}

// unended are known children of a stage, of all stages for "", that have not ended and are not about to; one more than
// the limit at most.
func (k *kin) unended(stage string, limit int) (all []place) {
	names := []string{stage}
	if stage == "" {
		names = names[:0]
		for name, b := range k.stages {
			if b.ended < b.spawned {
				names = append(names, name)
			}
		}
		slices.Sort(names)
	}
	for _, name := range names {
		b := k.stages[name]
		if b == nil || b.ended == b.spawned {
			continue
		}
		for item := range len(b.known) << 6 {
			if b.known.has(item) && !b.over.has(item) && !b.told.has(item) {
				if all = append(all, place{name, item}); len(all) > limit {
					return all
				}
			}
		}
	}
	return all
}

// related brings what is known of families in line with a record. With Plane.mu held, by the process that leads.
func (ix *index) related(p *Plane, r *run.Record) (turn bool) {
	waiting := len(ix.kin.look)
	ix.stirred(p, r)
	if r.Parent != "" {
		ix.ofParent(p, r)
	}
	ix.asParent(r)
	return len(ix.kin.look) > waiting
}

// ofParent notes a child.
func (ix *index) ofParent(p *Plane, r *run.Record) {
	ks := &ix.kin
	k := ks.of[r.Parent]
	if k == nil {
		k = ks.enter(r.Parent)
		if parent := p.records.get(r.Parent); parent != nil {
			k.meet(parent)
		}
	}
	if !k.add(r.Stage, r.Item, r.State) {
		return
	}
	b := k.stages[r.Stage]
	switch {
	case !k.seen:
		ks.lookAt(r.Parent)
	case k.isOver():
		if k.open > 0 {
			ks.lookAt(r.Parent)
		} else if k.state.Terminal() {
			delete(ks.of, r.Parent)
		}
	case k.flow, k.state == run.Compensating:
		ks.lookAt(r.Parent)
	case k.waitsFor(r.Stage):
		if _, over := decided(k.park, b.family()); over || b.spawned < k.park.Size && !b.read {
			ks.lookAt(r.Parent)
		}
	}
}

// asParent notes a run that has children, or goes on without an attempt of its own.
func (ix *index) asParent(r *run.Record) {
	ks := &ix.kin
	k := ks.of[r.ID]
	waits := r.State == run.Waiting && r.Park.On == run.OnChildren
	partial := r.CreatedAt <= ks.since && (r.Kind != run.KindAgent || hasParked(r))
	if k == nil {
		goesOn := waits || r.State == run.Compensating || r.Kind != run.KindAgent && !r.State.Terminal()
		if !goesOn && !(partial && r.State.Terminal()) {
			return
		}
		k = ks.enter(r.ID)
	}
	k.meet(r)
	switch {
	case k.isOver() && k.open == 0 && (k.listed || !partial):
		if r.State.Terminal() {
			delete(ks.of, r.ID)
		} else if k.flow {
			ks.lookAt(r.ID)
		}
	case k.isOver(), waits, k.flow, r.State == run.Compensating, r.State == run.Suspended && r.ForRuns != nil:
		ks.lookAt(r.ID)
	}
}

// hasParked reports whether an attempt of the run ended by parking, as one does that waits for children.
func hasParked(r *run.Record) bool {
	return slices.ContainsFunc(r.Attempts, func(a run.Attempt) bool { return a.Outcome == run.OutcomeParked })
}

// orphaned reports whether a run above has ended, or is about to: one that it called must not start any more. With Plane.mu
// held. A call may come in together with the end of whoever calls, so that its family is not known yet.
func (p *Plane) orphaned(parent string) bool {
	for range run.MaxDepth {
		k := p.ix.kin.of[parent]
		if parent != "" && (k == nil || !k.seen) {
			r := p.records.get(parent)
			if r == nil {
				return false
			}
			k = new(kin)
			k.meet(r)
		}
		switch {
		case parent == "":
			return false
		case k.isOver():
			return true
		case k.state == run.Compensating: // it ends by itself, and undoes by its children
			return false
		}
		parent = k.parent
	}
	return false
}

// decided reports whether it is settled how a group of children ends for the run that waits for it, and whether it did
// well. It is when all of them ended, when as many succeeded as are needed, or when more failed than may.
func decided(park *run.Park, f family) (well, over bool) {
	borne := park.Tolerate
	if park.Need > 0 {
		borne = max(borne, park.Size-park.Need)
	}
	switch {
	case f.failed > borne:
		return false, true
	case park.Need > 0 && f.succeeded >= park.Need:
		return true, true
	case f.ended >= park.Size:
		return park.Need == 0 || f.succeeded >= park.Need, true
	}
	return false, false
}
