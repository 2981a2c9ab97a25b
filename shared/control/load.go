package control

import (
	"cmp"
	"maps"
	"slices"

	"github.com/errand-run/errand/shared/run"
)

// load is how much waits and runs, as the leader tells it in its lease: other processes hold submissions against quotas
// and backpressure with it. It is as old as a renewal, so bounds are kept within what comes in that time.
type load struct {
	Tenants map[string][2]int `json:"t,omitempty"` // queued, live
	Agents  map[string][2]int `json:"a,omitempty"`
}

// maxLoad bounds the names of each kind: those with the most.
const maxLoad = 200

// maxStops bounds the attempts that the lease tells to end; the others hear of it when their process is asked.
const maxStops = 500

// tellInLease adds to the lease what processes that do not lead go by.
func (p *Plane) tellInLease(doc *leadDoc) {
	doc.Fleet = p.declared.fingerprint()
	p.mu.Lock()
	defer p.mu.Unlock()
	doc.Load = &load{Tenants: most(p.ix.tenants), Agents: most(p.ix.agents)}
	for id, reason := range p.ix.stops {
		if len(doc.Stops) == maxStops {
			break
		}
		if doc.Stops == nil {
			doc.Stops = make(map[string]run.Reason)
		}
		doc.Stops[id] = reason
	}
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
