package placement

import (
	"reflect"
	"slices"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Bounds of the caches; a full one is emptied. A view takes about 9 B per node, a mask a bit.
const (
	maxViews  = 1 << 10
	maxMasks  = 1 << 14
	maxNoways = 1 << 12
)

// cache is what a World keeps ready for one profile. All its lists run parallel to World.order.
type cache struct {
	profile *Profile
	weight  int
	stale   bool // order or a declaration changed

	load   []int32  // by the Load scorers
	rises  []uint64 // per block, how often a node's load score rose or it opened
	states [closedKinds]bitset

	views  map[*fleet.Agent]*view
	byName map[string][]*view
	masks  map[string]*mask
	noways map[nowayKey]*noway
}

// view is what holds for one agent, whoever's run it is.
type view struct {
	agent    *fleet.Agent
	request  Request // without run and tenant
	fleet    uint64  // generation that it is at
	verdicts []uint8 // reason codes; 0: feasible
	feasible bitset
	refused  []Tally
	fixed    []int32 // by the Scorers, of feasible nodes
	own      []int32 // by the Agent scorers
	bounds   []bound // per block

	full   Decision // that there is no capacity, for tenants that may use all feasible nodes
	fullAt uint64   // World.stamp when it was made; 0 for never
}

// bound is the best score among the open and feasible nodes of a block when they were last looked at. Scores that fell
// since leave it an upper bound; it is void once a score rose.
type bound struct {
	score int32
	rises uint64 // cache.rises then; never for void
}

// mask is what holds for one tenant, whichever agent runs.
type mask struct {
	request  Request // without agent
	fleet    uint64
	feasible bitset
}

// noway is the decision for an agent and tenant whom no node could take.
type noway struct {
	fleet    uint64
	decision Decision
}

type nowayKey struct {
	view *view
	mask *mask
}

// never is a generation that no World reaches.
const never = 1<<64 - 1

// serve readies the cache for a profile and the present order.
func (c *cache) serve(p *Profile, w *World) {
	if c.profile != p {
		*c = cache{profile: p, weight: p.weight(), stale: true, masks: map[string]*mask{}, noways: map[nowayKey]*noway{}}
		c.dropViews()
	}
	if !c.stale {
		return
	}
	c.stale = false
	n := len(w.order)
	c.load, c.rises = resize(c.load, n), resize(c.rises, blocks(n))
	for k := range c.states {
		c.states[k] = c.states[k].empty(n)
	}
	for i, node := range w.order {
		c.load[i] = total(p.Load, w, nil, node)
		c.states[node.closed()].set(i, true)
	}
}

func (c *cache) dropViews() {
	c.views, c.byName = map[*fleet.Agent]*view{}, map[string][]*view{}
	clear(c.noways)
}

// touch follows a change of what is in use on the node by runs of the agent.
func (c *cache) touch(w *World, n *Node, agent string) {
	if c.stale || c.profile == nil || n.at < 0 {
		return
	}
	i, b := n.at, n.at/block
	was := c.load[i]
	if c.load[i] = total(c.profile.Load, w, nil, n); c.load[i] > was {
		c.rises[b]++
	}
	c.reopen(n)
	for _, v := range c.byName[agent] {
		if v.fleet != w.gen.Fleet {
			continue // it will be brought up to date as a whole
		}
		was := v.own[i]
		if v.own[i] = total(c.profile.Agent, w, &v.request, n); v.own[i] > was {
			v.bounds[b].rises = never
		}
	}
}

// reopen follows a change of whether the node takes anything.
func (c *cache) reopen(n *Node) {
	if c.stale || c.profile == nil || n.at < 0 {
		return
	}
	state := n.closed()
	if c.states[state].has(n.at) {
		return
	}
	for k := range c.states {
		c.states[k].set(n.at, closed(k) == state)
	}
	if state == open {
		c.rises[n.at/block]++
	}
}

// view returns what holds for the request's agent, up to date.
func (c *cache) view(w *World, r *Request) *view {
	v := c.views[r.Agent]
	if v == nil {
		if len(c.views) >= maxViews {
			c.dropViews()
		}
		// The same revision may have been decoded twice.
		name := r.Agent.Name()
		for _, other := range c.byName[name] {
			if reflect.DeepEqual(other.agent, r.Agent) {
				v = other
				break
			}
		}
		if v == nil {
			v = &view{agent: r.Agent, request: Request{Agent: r.Agent}, fleet: never}
			c.byName[name] = append(c.byName[name], v)
		}
		c.views[r.Agent] = v
	}
	if v.fleet != w.gen.Fleet {
		v.sync(c.profile, w)
	}
	return v
}

// sync brings a view up to date with the order of nodes: change by change, or anew.
func (v *view) sync(p *Profile, w *World) {
	// 1. Verdicts and fixed scores, of the nodes that changed.
	ask := func(i int, n *Node) {
		v.fixed[i] = 0
		v.verdicts[i] = first(p.Filters, w, &v.request, n).Reason.code()
		if v.verdicts[i] == 0 {
			v.fixed[i] = total(p.Scorers, w, &v.request, n)
		}
	}
	changes, known := w.since(v.fleet)
	if !known {
		v.verdicts, v.fixed = resize(v.verdicts, len(w.order)), resize(v.fixed, len(w.order))
		for i, n := range w.order {
			ask(i, n)
		}
	}
	for _, c := range changes {
		switch c.kind {
		case inserted:
			v.verdicts = slices.Insert(v.verdicts, c.at, 0)
			v.fixed = slices.Insert(v.fixed, c.at, 0)
			ask(c.at, c.node)
		case deleted:
			v.verdicts = slices.Delete(v.verdicts, c.at, c.at+1)
			v.fixed = slices.Delete(v.fixed, c.at, c.at+1)
		case replaced:
			ask(c.at, c.node)
		}
	}
	// 2. Who is feasible, and the use, which was not followed while the view was behind.
	v.feasible = v.feasible.empty(len(w.order))
	v.own = resize(v.own, len(w.order))
	var count tallies
	for i, n := range w.order {
		v.own[i] = total(p.Agent, w, &v.request, n)
		if code := v.verdicts[i]; code == 0 {
			v.feasible.set(i, true)
		} else {
			count.add(code, n.name)
		}
	}
	v.refused = count.list(nil)
	// 3. Bounds are found when they are looked for.
	v.bounds = resize(v.bounds, len(v.feasible))
	for b := range v.bounds {
		v.bounds[b].rises = never
	}
	v.fleet = w.gen.Fleet
}

// mask returns what holds for the request's tenant, up to date.
func (c *cache) mask(w *World, r *Request) *mask {
	m := c.masks[r.Run.Tenant]
	if m == nil {
		if len(c.masks) >= maxMasks {
			clear(c.masks)
			clear(c.noways)
		}
		m = &mask{fleet: never}
		m.request = Request{Run: &run.Record{Spec: run.Spec{Tenant: r.Run.Tenant}}, Tenant: r.Tenant}
		c.masks[r.Run.Tenant] = m
	}
	if m.request.Tenant != r.Tenant {
		if !reflect.DeepEqual(m.request.Tenant, r.Tenant) {
			m.fleet = never
		}
		m.request.Tenant = r.Tenant
	}
	if m.fleet != w.gen.Fleet {
		m.sync(c.profile, w)
	}
	return m
}

// sync brings a mask up to date like a view.
func (m *mask) sync(p *Profile, w *World) {
	ask := func(n *Node) bool { return first(p.Tenant, w, &m.request, n).Feasible() }
	changes, known := w.since(m.fleet)
	if !known {
		m.feasible = m.feasible.empty(len(w.order))
		for i, n := range w.order {
			m.feasible.set(i, ask(n))
		}
	}
	n := len(w.order)
	for _, c := range changes {
		switch c.kind {
		case inserted:
			n--
		case deleted:
			n++
		}
	}
	for _, c := range changes {
		switch c.kind {
		case inserted:
			m.feasible = m.feasible.insert(c.at, n, ask(c.node))
			n++
		case deleted:
			m.feasible = m.feasible.remove(c.at, n)
			n--
		case replaced:
			m.feasible.set(c.at, ask(c.node))
		}
	}
	m.fleet = w.gen.Fleet
}
