package control

import (
	"cmp"
	"maps"
	"slices"
)

// load is how much waits and runs, as the leader tells it in its lease: other processes hold submissions against quotas
// and backpressure with it. It is as old as a renewal, so bounds are kept within what comes in that time.
type load struct {
	Tenants map[string][2]int `json:"t,omitempty"` // queued, live
	Agents  map[string][2]int `json:"a,omitempty"`
}

// maxLoad bounds the names of each kind: those with the most.
const maxLoad = 200

// currentLoad is what the index holds.
func (p *Plane) currentLoad() *load {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &load{Tenants: most(p.ix.tenants), Agents: most(p.ix.agents)}
}

// most are the largest tallies.
func most(t tallies) map[string][2]int {
	names := slices.Collect(maps.Keys(t))
	if len(names) > maxLoad {
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Or(cmp.Compare(t[b].queued+t[b].live, t[a].queued+t[a].live), cmp.Compare(a, b))
		})
		names = names[:maxLoad]
	}
	out := make(map[string][2]int, len(names))
	for _, name := range names {
		out[name] = [2]int{t[name].queued, t[name].live}
	}
	return out
}

// loadOf is how much of a tenant and of an agent waits and runs, as well as this process knows.
func (p *Plane) loadOf(tenant, agent string) (ofTenant, ofAgent tally) {
	if p.store.Exclusive() || p.leads() {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.ix.tenants.of(tenant), p.ix.agents.of(agent)
	}
	told := p.led.Leader().Load
	if told == nil {
		return tally{}, tally{}
	}
	t, a := told.Tenants[tenant], told.Agents[agent]
	return tally{queued: t[0], live: t[1]}, tally{queued: a[0], live: a[1]}
}
