package placement

import (
	"math/bits"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Request is what is placed.
type Request struct {
	Run    *run.Record
	Agent  *fleet.Agent  // the revision that the run keeps
	Tenant *fleet.Tenant // nil for one never declared; its name is Run.Tenant either way

	explain bool
}

// ClassKey is equal for requests of equal needs, agent revision and tenant, which have the same outcome in the same
// World. It is meant for queue.Class.
func ClassKey(r *Request) uint64 {
	h := hash(14695981039346656037).text(r.Run.Agent).number(uint64(r.Run.Revision)).text(r.Run.Tenant)
	if a := r.Agent; a != nil {
		use := needs(r)
		h = h.number(uint64(use.Slots)).number(uint64(use.CPU)).number(uint64(use.Memory)).text(a.Needs.Accelerator)
	}
	return uint64(h)
}

// hash is FNV-1a over texts, and a multiplicative mix over numbers.
type hash uint64

func (h hash) text(s string) hash {
	for i := range len(s) {
		h = (h ^ hash(s[i])) * 1099511628211
	}
	return h.number(uint64(len(s)))
}

func (h hash) number(n uint64) hash {
	hi, lo := bits.Mul64(uint64(h)^n, 0x9e3779b97f4a7c15)
	return hash(hi ^ lo ^ n)
}

// Usage is an amount of what nodes offer.
type Usage struct {
	Slots  int
	CPU    fleet.CPU
	Memory fleet.Bytes
}

func (u Usage) plus(v Usage) Usage {
	return Usage{u.Slots + v.Slots, u.CPU + v.CPU, u.Memory + v.Memory}
}
func (u Usage) minus(v Usage) Usage {
	return Usage{u.Slots - v.Slots, u.CPU - v.CPU, u.Memory - v.Memory}
}

// needs is what the request takes of a node. An agent that is not known any more takes one slot.
func needs(r *Request) Usage {
	if r.Agent == nil {
		return Usage{Slots: 1}
	}
	n := &r.Agent.Needs
	return Usage{Slots: max(n.Slots, 1), CPU: max(n.CPU, 0), Memory: max(n.Memory, 0)}
}
