package placement

import (
	"cmp"
	"slices"

	"github.com/errand-run/errand/shared/run"
)

// Reserve keeps a node free for one run until it is placed: a run that needs several slots and was passed over too long.
// It takes the node that fits the request and will have room first, as far as the ends of runs are known, and returns
// its name and when that was expected to be (0: it had room or nobody knew). Nothing else is placed on the node
// meanwhile, save for runs of the same class: they come in an order of their own, and whichever is first must not wait
// for a node that is kept for one behind it.
//
// A run has one reservation: to ask again keeps it, as long as the node still fits. It ends with Assume of the run, or
// of another of its class on that node, with Unreserve or GiveUp, or when the node leaves. At most half of the nodes (but
// one in any case) are reserved at a time; beyond that, and when no node fits, the result is false.
func (p *Profile) Reserve(w *World, r *Request) (node string, free run.Instant, ok bool) {
	// 1. The nodes that fit.
	if _, refused := p.access(w, r); refused {
		w.Unreserve(r.Run.ID)
		return "", 0, false
	}
	w.cache.serve(p, w)
	v, m, use := w.cache.view(w, r), w.cache.mask(w, r), needs(r)
	fit := func(n *Node) bool { return v.feasible.has(n.at) && m.feasible.has(n.at) }
	// 2. What it has already.
	if own := w.reserved[r.Run.ID]; own != nil {
		if fit(own.node) {
			return own.node.name, own.free, true
		}
		w.Unreserve(r.Run.ID)
	}
	if len(w.reserved) >= max(len(w.order)/2, 1) {
		return "", 0, false
	}
	// 3. The one that has room first; one of which nobody knows comes last.
	var best *Node
	var known bool
	sites := map[*site]when{}
	for _, n := range w.order {
		if !fit(n) || n.reserved != nil || n.closed() == noWorker {
			continue
		}
		shared, done := sites[n.site]
		if !done {
			shared = n.site.roomAt(use)
			sites[n.site] = shared
		}
		own := n.slotsAt(use)
		at, certain := max(own.at, shared.at), own.known && shared.known
		if best == nil || certain && !known || certain == known && at < free {
			best, free, known = n, at, certain
		}
	}
	if best == nil {
		return "", 0, false
	}
	if !known {
		free = 0
	}
	w.reserve(best, &reservation{run: r.Run.ID, class: ClassKey(r), use: use, node: best, free: free})
	return best.name, free, true
}

// Unreserve gives up a run's reservation, if it has one.
func (w *World) Unreserve(id string) {
	own := w.reserved[id]
	if own == nil {
		return
	}
	delete(w.reserved, id)
	if list := w.kept[own.class]; len(list) == 1 {
		delete(w.kept, own.class)
	} else {
		i := slices.Index(list, own)
		w.kept[own.class] = slices.Delete(list, i, i+1)
	}
	n := own.node
	n.reserved = nil
	n.site.held = n.site.held.minus(own.use)
	w.gen.Capacity++
	w.refresh(n, "")
}

// GiveUp gives up the reservations of all runs of the request's class, because none of them may start now.
func (w *World) GiveUp(r *Request) {
	for list := w.keptFor(r); len(list) > 0; list = w.keptFor(r) {
		w.Unreserve(list[0].run)
	}
}

// keptFor lists the reservations of runs of the request's class.
func (w *World) keptFor(r *Request) []*reservation {
	if len(w.reserved) == 0 {
		return nil
	}
	return w.kept[ClassKey(r)]
}

// Reservation is a node that is kept free for a run.
type Reservation struct{ Node, Run string }

// Reservations lists the reservations by node.
func (w *World) Reservations() []Reservation {
	var list []Reservation
	for _, n := range w.order {
		if n.reserved != nil {
			list = append(list, Reservation{n.name, n.reserved.run})
		}
	}
	return list
}

func (w *World) reserve(n *Node, r *reservation) {
	n.reserved = r
	w.reserved[r.run] = r
	w.kept[r.class] = append(w.kept[r.class], r)
	n.site.held = n.site.held.plus(r.use)
	w.refresh(n, "")
}

// when is an instant, 0 for now, or not known.
type when struct {
	at    run.Instant
	known bool
}

// slotsAt is when the node itself has the slots free if nothing else comes.
func (n *Node) slotsAt(use Usage) when {
	return firstEnd(n.runs, func(freed Usage) bool {
		return n.Worker == "" || n.Slots <= 0 || use.Slots <= n.Slots-n.used.Slots+freed.Slots
	})
}

// roomAt is when all nodes of a target together leave it room for the use if nothing else comes.
func (s *site) roomAt(use Usage) when {
	var runs []*placed
	for _, n := range s.nodes {
		runs = append(runs, n.runs...)
	}
	c := &s.target.Capacity
	return firstEnd(runs, func(freed Usage) bool {
		taken := s.used.plus(s.held).plus(use).minus(freed)
		return (c.Runs <= 0 || taken.Slots <= c.Runs) && (c.CPU <= 0 || taken.CPU <= c.CPU) &&
			(c.Memory <= 0 || taken.Memory <= c.Memory)
	})
}

// firstEnd is the first end of a run after which what was freed is enough.
func firstEnd(runs []*placed, enough func(freed Usage) bool) when {
	var freed Usage
	if enough(freed) {
		return when{known: true}
	}
	ending := slices.Clone(runs)
	slices.SortFunc(ending, func(a, b *placed) int { return cmp.Compare(a.ends, b.ends) })
	for _, p := range ending {
		if p.ends == 0 {
			continue // nobody knows when
		}
		if freed = freed.plus(p.use); enough(freed) {
			return when{p.ends, true}
		}
	}
	return when{}
}
