package forecast

import (
	"fmt"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
)

// Workers are workers of a polled target that connect by themselves.
type Workers struct {
	Target string
	Agents []string // that they serve
	Slots  int      // of each
	Count  int
	From   time.Duration // after the start of the window
	Until  time.Duration // 0: to the end
}

// MaxWorkers bounds the workers of a forecast, and of the control plane.
const MaxWorkers = 10_000

// node is a place for runs.
type node struct {
	name   string
	number int
	target *place
	agents []int32 // runs by agent
	held   []int32 // slots by tenant, settled
	used   int     // slots, settled
	groups []*group
	leaves bool // its worker is gone when its runs have ended
	runs   int
}

// place is a target.
type place struct {
	*fleet.Target
	slots   level // in use
	size    level // that there are
	workers level // processes, or workers that are connected
}

// group is the nodes that fit some pairs of agent and tenant.
type group struct {
	nodes []*node
	used  int     // slots in use, settled
	by    []int32 // of them, by tenant
}

// maxGroups bounds them; pairs beyond share the group of all nodes.
const maxGroups = 256

// hold is a change of the slots that a tenant holds on a node, to be settled when the pass is over.
type hold struct {
	node   *node
	tenant int
	slots  int32
}

func grown(list []int32, i int) []int32 {
	for len(list) <= i {
		list = append(list, 0)
	}
	return list
}

// apply settles a hold.
func (h *hold) apply() {
	n := h.node
	n.held = grown(n.held, h.tenant)
	n.held[h.tenant] += h.slots
	n.used += int(h.slots)
	for _, g := range n.groups {
		g.by = grown(g.by, h.tenant)
		g.by[h.tenant] += h.slots
		g.used += int(h.slots)
	}
}

// newGroup counts what is held on its nodes.
func newGroup(nodes []*node) *group {
	g := &group{nodes: nodes}
	for _, n := range nodes {
		n.groups = append(n.groups, g)
		g.used += n.used
		for i, slots := range n.held {
			if slots != 0 {
				g.by = grown(g.by, i)
				g.by[i] += slots
			}
		}
	}
	return g
}

// regroup finds the nodes that fit the pair, if the fleet has changed since it was asked last.
func (e *engine) regroup(p *pair) {
	gen := e.world.Generation().Fleet
	if p.group != nil && p.fleet == gen {
		return
	}
	p.fleet = gen
	list := e.profile.Fitting(e.world, &p.plain.request)
	key := make([]byte, 0, 4*len(list))
	nodes := make([]*node, 0, len(list))
	for _, n := range list {
		if at := e.nodes[n.Name()]; at != nil {
			nodes = append(nodes, at)
			key = append(strconv.AppendInt(key, int64(at.number), 36), ' ')
		}
	}
	g := e.groups[string(key)]
	if g == nil && len(e.groups) >= maxGroups {
		key, nodes = []byte("*"), e.nodeList
		g = e.groups["*"]
	}
	if g == nil {
		g = newGroup(nodes)
		e.groups[string(key)] = g
	}
	g.by = grown(g.by, p.tenant.index)
	p.group = g
}

// join adds a node for the target itself or a worker of it.
func (e *engine) join(t *place, worker string, w *Workers) {
	placed := placement.Node{Target: t.Target, Worker: worker}
	if w != nil {
		placed.Slots = w.Slots
		placed.Agents = make(map[string]bool, len(w.Agents))
		for _, a := range w.Agents {
			placed.Agents[a] = true
		}
	}
	e.world.SetNode(placed)
	name := placement.NodeName(t.Name(), worker)
	if e.nodes[name] == nil {
		n := &node{name: name, target: t, agents: make([]int32, len(e.agentList)), number: len(e.nodeList)}
		e.nodes[name], e.nodeList = n, append(e.nodeList, n)
	}
}

func (e *engine) checkWorkers(list []Workers) error {
	total := 0
	for i, w := range list {
		t := e.places[w.Target]
		switch {
		case t == nil:
			return fmt.Errorf("workers[%d]: there is no target %q", i, w.Target)
		case t.Runtime != fleet.RuntimePoll:
			return fmt.Errorf("workers[%d]: target %s has runtime %s, to which no worker comes by itself", i, w.Target, t.Runtime)
		case w.Count < 1 || w.Slots < 1 || len(w.Agents) == 0:
			return fmt.Errorf("workers[%d]: want a count, slots and agents", i)
		}
		for _, a := range w.Agents {
			if e.agents[a] == nil {
				return fmt.Errorf("workers[%d]: the fleet does not declare agent %q", i, a)
			}
		}
		if total += w.Count; total > MaxWorkers {
			return fmt.Errorf("workers: %d, %d at most", total, MaxWorkers)
		}
	}
	return nil
}
