package placement

import (
	"math"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Node is a place for runs: a target, or one worker of a polled target. The exported fields are what SetNode is given;
// what is in use is the World's.
//
// A polled target is a node without workers too. It holds nothing, but says that a worker may come, so that a run that
// needs one waits instead of being unschedulable.
type Node struct {
	Target   *fleet.Target
	Worker   string          // "" for the target itself
	Agents   map[string]bool // the agents that it serves; nil: any that it knows how to start
	Slots    int             // of a worker, for all its runs together; 0: no bound of its own
	Draining bool            // a worker that takes no new run

	name     string
	at       int // among the listed nodes; -1 when it left with runs still on it
	site     *site
	used     Usage
	runs     []*placed
	warm     map[string]int // runs here by agent; kept at 0 when the last one ended
	reserved *reservation
}

// site is what the nodes of one target share: its capacity.
type site struct {
	target *fleet.Target
	nodes  []*Node
	used   Usage
	held   Usage // for reservations on its nodes
	full   bool
}

// placed is a run on a node.
type placed struct {
	id, agent, tenant string
	use               Usage
	ends              run.Instant
	node              *Node
	at                int // in node.runs
}

type reservation struct {
	run   string
	class uint64 // of the run: any run of it may take the node
	use   Usage
	node  *Node
	free  run.Instant // when the node was expected to have room
}

// NodeName is the name of a target's worker, or of the target itself when worker is "".
func NodeName(target, worker string) string {
	if worker == "" {
		return target
	}
	return target + "/" + worker
}

// Name is unique in the World: TARGET or TARGET/WORKER.
func (n *Node) Name() string { return n.name }

// Used is what the runs on the node take together.
func (n *Node) Used() Usage { return n.used }

// Warm reports whether the node runs the agent or has run it.
func (n *Node) Warm(agent string) bool { _, ok := n.warm[agent]; return ok }

// AgentRuns is how many runs of the agent are on the node.
func (n *Node) AgentRuns(agent string) int { return n.warm[agent] }

// TenantRuns is how many runs of the tenant are on the node. It costs O(runs on it).
func (n *Node) TenantRuns(tenant string) int {
	count := 0
	for _, p := range n.runs {
		if p.tenant == tenant {
			count++
		}
	}
	return count
}

// Unbounded is the number of free slots of a node without a bound.
const Unbounded = math.MaxInt

// Size is how many slots the node has, or Unbounded.
func (n *Node) Size() int {
	size := Unbounded
	if n.Worker != "" && n.Slots > 0 {
		size = n.Slots
	}
	if c := n.Target.Capacity.Runs; c > 0 {
		size = min(size, c)
	}
	return size
}

// Free is how many of its slots are free, or Unbounded. It is negative when capacity was taken away under its runs.
func (n *Node) Free() int {
	free := Unbounded
	if n.Worker != "" && n.Slots > 0 {
		free = n.Slots - n.used.Slots
	}
	if c := n.site.target.Capacity.Runs; c > 0 {
		free = min(free, c-n.site.used.Slots-n.heldElsewhere().Slots)
	}
	return free
}

// heldElsewhere is what the node must leave of its site's capacity to reservations on other nodes.
func (n *Node) heldElsewhere() Usage {
	if n.reserved != nil {
		return n.site.held.minus(n.reserved.use)
	}
	return n.site.held
}

// closed says why a node takes nothing at all at the moment. It is what all requests have in common.
type closed uint8

const (
	open closed = iota
	noWorker
	isReserved
	full
	closedKinds
)

func (k closed) reason() Reason {
	return [closedKinds]Reason{full: NoFreeSlot, isReserved: Reserved, noWorker: NoWorker}[k]
}

func (n *Node) closed() closed {
	switch {
	case n.Worker == "" && n.Target.Runtime == fleet.RuntimePoll:
		return noWorker
	case n.reserved != nil:
		return isReserved
	case n.Free() < 1:
		return full
	}
	return open
}

// room says whether what is free at the moment is enough. holder is whether the request is the one that the node is
// reserved for, if it is.
func (n *Node) room(use Usage, holder bool) Reason {
	switch n.closed() {
	case noWorker:
		return NoWorker
	case isReserved:
		if !holder {
			return Reserved
		}
	case full:
		return NoFreeSlot
	}
	if use.Slots > n.Free() {
		return NoFreeSlot
	}
	c, taken := &n.site.target.Capacity, n.site.used.plus(n.heldElsewhere())
	if c.CPU > 0 && use.CPU > c.CPU-taken.CPU {
		return NoFreeCPU
	}
	if c.Memory > 0 && use.Memory > c.Memory-taken.Memory {
		return NoFreeMemory
	}
	return ""
}
