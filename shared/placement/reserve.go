package placement

import (
	"slices"

	"github.com/errand-run/errand/shared/run"
)

// Reserve keeps a node free for one run until it is placed: a run that needs several slots and was passed over too long.
// It takes the node that fits the request and will have room first, as far as the ends of runs are known, and returns
// its name and when that will be (0: it has room now or nobody knows). Nothing else is placed on the node meanwhile.
//
// A run has one reservation: to ask again keeps it, as long as the node still fits. It ends with Assume of the run, with
// Unreserve, or when the node leaves. At most half of the nodes (but one in any case) are reserved at a time; beyond
// that, and when no node fits, the result is false.
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
			at, _ := own.node.roomAt(use)
			return own.node.name, at, true
		}
		w.Unreserve(r.Run.ID)
	}
	if len(w.reserved) >= max(len(w.order)/2, 1) {
		return "", 0, false
	}
	// 3. The one that has room first; one of which nobody knows comes last.
	var best *Node
	var known bool
	for _, n := range w.order {
		if !fit(n) || n.reserved != nil || n.closed() == noWorker {
			continue
		}
		at, certain := n.roomAt(use)
		if best == nil || certain && !known || certain == known && at < free {
			best, free, known = n, at, certain
		}
	}
	if best == nil {
		return "", 0, false
	}
	w.reserve(best, r.Run.ID, use)
	return best.name, free, true
}

// Unreserve gives up a run's reservation, if it has one.
func (w *World) Unreserve(id string) {
	own := w.reserved[id]
	if own == nil {
		return
	}
	delete(w.reserved, id)
	n := own.node
	n.reserved = nil
	n.site.held = n.site.held.minus(own.use)
	w.gen.Capacity++
	w.refresh(n, "")
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

func (w *World) reserve(n *Node, id string, use Usage) {
	n.reserved = &reservation{run: id, use: use, node: n}
	w.reserved[id] = n.reserved
	n.site.held = n.site.held.plus(use)
	w.refresh(n, "")
}

// roomAt is when the node has room for the use if nothing else comes: 0 for now. It is false when that depends on runs
// whose ends are not known.
func (n *Node) roomAt(use Usage) (run.Instant, bool) {
	if n.room(use, true) == "" {
		return 0, true
	}
	ending := slices.Clone(n.runs)
	slices.SortFunc(ending, func(a, b *placed) int {
		switch {
		case a.ends == b.ends:
			return 0
		case b.ends == 0 || a.ends != 0 && a.ends < b.ends:
			return -1
		}
		return 1
	})
	// The node as it will be: what ends is taken off and put back afterwards.
	var off Usage
	defer func() { n.used, n.site.used = n.used.plus(off), n.site.used.plus(off) }()
	for _, p := range ending {
		if p.ends == 0 {
			break
		}
		off = off.plus(p.use)
		n.used, n.site.used = n.used.minus(p.use), n.site.used.minus(p.use)
		if n.room(use, true) == "" {
			return p.ends, true
		}
	}
	return 0, false
}
