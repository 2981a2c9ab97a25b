package placement

import (
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Generation tells whether a refusal may have become void.
type Generation struct {
	Fleet    uint64 // rises when a node is added, changed or removed
	Capacity uint64 // rises when something in use becomes free
}

// World is the nodes and the runs on them. What is in use is derived from the set of runs, so nothing can be given back
// twice or never.
type World struct {
	nodes    map[string]*Node // listed ones, and those that left with runs still on them
	order    []*Node          // listed ones by name
	sites    map[string]*site
	runs     map[string]*placed
	reserved map[string]*reservation   // by run
	kept     map[uint64][]*reservation // likewise, by class
	gen      Generation
	stamp    uint64   // rises with every change of any kind
	log      []change // the last changes of order; log[len-1] led to gen.Fleet
	cache    cache
}

// change is one step in the history of World.order.
type change struct {
	kind changeKind
	at   int
	node *Node
}

type changeKind uint8

const (
	inserted changeKind = iota
	deleted
	replaced
)

// maxLog bounds the history; who is further behind starts anew.
const maxLog = 4096

// maxWarm bounds how many agents a node is remembered to be warm for.
const maxWarm = 256

// NewWorld returns a World without nodes.
func NewWorld() *World {
	return &World{
		nodes: map[string]*Node{}, sites: map[string]*site{}, runs: map[string]*placed{}, reserved: map[string]*reservation{}, kept: map[uint64][]*reservation{},
		stamp: 1,
	}
}

// SetNode adds the node, or changes the one of that name; the runs on it stay. To give what is there already changes
// nothing, not even the generation.
func (w *World) SetNode(n Node) {
	// 1. Find the place in the order; a node that left with runs on it comes back with them.
	name := NodeName(n.Target.Name(), n.Worker)
	at, listed := w.find(name)
	node := w.nodes[name]
	switch {
	case listed:
		if node.Target == n.Target && node.Slots == n.Slots && node.Draining == n.Draining && sameAgents(node.Agents, n.Agents) {
			return
		}
	case node == nil:
		node = w.newNode(name, n.Target, n.Worker)
	}
	// 2. Take over the declaration. The newest declaration of a target counts for all its nodes.
	node.Target, node.Agents, node.Slots, node.Draining = n.Target, n.Agents, n.Slots, n.Draining
	node.site.target = n.Target
	node.site.full = node.site.isFull()
	// 3. List it.
	if listed {
		w.changed(replaced, at, node)
	} else {
		w.order = slices.Insert(w.order, at, node)
		w.renumber(at)
		w.changed(inserted, at, node)
	}
}

// RemoveNode takes the node out. Its runs count against its target until they are released: they may be alive.
func (w *World) RemoveNode(name string) {
	at, listed := w.find(name)
	if !listed {
		return
	}
	node := w.order[at]
	if node.reserved != nil {
		w.Unreserve(node.reserved.run)
	}
	w.order = slices.Delete(w.order, at, at+1)
	node.at = -1
	w.renumber(at)
	w.changed(deleted, at, node)
	w.forget(node)
}

// Assume puts a run on a node, because it was placed there or is known to be there. ends is when it is expected to end,
// 0 when nobody knows. A run is on one node: on another node before, it is moved. It never refuses: a fact that exceeds
// the capacity is still a fact.
func (w *World) Assume(node string, r *Request, ends run.Instant) {
	w.Unreserve(r.Run.ID)
	if known := w.runs[r.Run.ID]; known != nil {
		if known.node.name == node && known.use == needs(r) {
			known.ends = ends // what a pass assumed is so
			return
		}
		w.Release(r.Run.ID)
	}
	n := w.nodes[node]
	if n == nil {
		target, worker, _ := strings.Cut(node, "/")
		n = w.newNode(node, &fleet.Target{Meta: fleet.Meta{Name: target}}, worker)
	}
	if n.heldFor(r) { // for another run of its class, which waits on
		w.Unreserve(n.reserved.run)
	}
	p := &placed{id: r.Run.ID, agent: r.Run.Agent, tenant: r.Run.Tenant, use: needs(r), ends: ends, node: n, at: len(n.runs)}
	w.runs[p.id] = p
	n.runs = append(n.runs, p)
	n.used = n.used.plus(p.use)
	n.site.used = n.site.used.plus(p.use)
	if cooled := n.heat(p.agent); cooled != "" {
		w.refresh(n, cooled)
	}
	w.refresh(n, p.agent)
}

// Release takes runs from wherever they are and reports how many were anywhere. A run released before is not again.
func (w *World) Release(ids ...string) int {
	count := 0
	for _, id := range ids {
		p := w.runs[id]
		if p == nil {
			continue
		}
		count++
		delete(w.runs, id)
		n := p.node
		last := len(n.runs) - 1
		n.runs[p.at] = n.runs[last]
		n.runs[p.at].at = p.at
		n.runs[last] = nil
		n.runs = n.runs[:last]
		n.used = n.used.minus(p.use)
		n.site.used = n.site.used.minus(p.use)
		n.warm[p.agent]--
		w.gen.Capacity++
		w.refresh(n, p.agent)
		w.forget(n)
	}
	return count
}

// Cool forgets that a node is warm for an agent of which nothing runs there.
func (w *World) Cool(node, agent string) {
	if n := w.nodes[node]; n != nil {
		if live, ok := n.warm[agent]; ok && live == 0 {
			delete(n.warm, agent)
			w.refresh(n, agent)
		}
	}
}

// Generation is the present one.
func (w *World) Generation() Generation { return w.gen }

// Len is the number of nodes.
func (w *World) Len() int { return len(w.order) }

// Node returns a node, to read.
func (w *World) Node(name string) (*Node, bool) {
	if at, ok := w.find(name); ok {
		return w.order[at], true
	}
	return nil, false
}

// Nodes lists the nodes by name, to read.
func (w *World) Nodes() []*Node { return slices.Clone(w.order) }

// NodeOf is the name of the node that a run is on.
func (w *World) NodeOf(id string) (string, bool) {
	if p := w.runs[id]; p != nil {
		return p.node.name, true
	}
	return "", false
}

// RunsOn lists the runs on a node, one that left included, by id.
func (w *World) RunsOn(node string) []string {
	n := w.nodes[node]
	if n == nil {
		return nil
	}
	ids := make([]string, len(n.runs))
	for i, p := range n.runs {
		ids[i] = p.id
	}
	slices.Sort(ids)
	return ids
}

// Runs is how many runs are on nodes.
func (w *World) Runs() int { return len(w.runs) }

func (w *World) find(name string) (int, bool) {
	return slices.BinarySearchFunc(w.order, name, func(n *Node, name string) int { return strings.Compare(n.name, name) })
}

func (w *World) newNode(name string, t *fleet.Target, worker string) *Node {
	s := w.sites[t.Name()]
	if s == nil {
		s = &site{target: t}
		w.sites[t.Name()] = s
	}
	n := &Node{Target: t, Worker: worker, name: name, at: -1, site: s, warm: map[string]int{}}
	w.nodes[name] = n
	s.nodes = append(s.nodes, n)
	return n
}

// forget drops a node that is not listed and holds no run.
func (w *World) forget(n *Node) {
	if n.at >= 0 || len(n.runs) > 0 {
		return
	}
	delete(w.nodes, n.name)
	s := n.site
	if i := slices.Index(s.nodes, n); i >= 0 {
		s.nodes = slices.Delete(s.nodes, i, i+1)
	}
	if len(s.nodes) == 0 {
		delete(w.sites, s.target.Name())
	}
}

func (w *World) renumber(from int) {
	for i, n := range w.order[from:] {
		n.at = from + i
	}
}

func (w *World) changed(kind changeKind, at int, n *Node) {
	if len(w.log) == maxLog {
		w.log = append(w.log[:0], w.log[maxLog/2:]...)
	}
	w.log = append(w.log, change{kind, at, n})
	w.gen.Fleet++
	w.stamp++
	w.cache.stale = true
}

// since returns the changes after a fleet generation, false if they are not all known any more.
func (w *World) since(fleet uint64) ([]change, bool) {
	behind := w.gen.Fleet - fleet
	if behind > uint64(len(w.log)) {
		return nil, false
	}
	return w.log[uint64(len(w.log))-behind:], true
}

// refresh updates what depends on the use of the node after a run of the agent came or went.
func (w *World) refresh(n *Node, agent string) {
	w.stamp++
	if full := n.site.isFull(); full != n.site.full {
		n.site.full = full
		for _, sibling := range n.site.nodes {
			w.cache.reopen(sibling)
		}
	}
	w.cache.touch(w, n, agent)
}

func (s *site) isFull() bool {
	c := s.target.Capacity.Runs
	return c > 0 && c-s.used.Slots-s.held.Slots < 1
}

// heat counts a run of the agent. It forgets one cold agent when there are too many, and returns its name.
func (n *Node) heat(agent string) (cooled string) {
	if _, known := n.warm[agent]; !known && len(n.warm) >= maxWarm {
		for name, live := range n.warm {
			if live == 0 && (cooled == "" || name < cooled) {
				cooled = name
			}
		}
		if cooled != "" {
			delete(n.warm, cooled)
		}
	}
	n.warm[agent]++
	return cooled
}

func sameAgents(a, b map[string]bool) bool {
	if (a == nil) != (b == nil) || len(a) != len(b) {
		return false
	}
	for name, serves := range a {
		if other, ok := b[name]; !ok || other != serves {
			return false
		}
	}
	return true
}
