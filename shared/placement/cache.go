package placement

import (
	"math/bits"
	"reflect"
	"slices"

	"github.com/errand-run/errand/shared/fleet"
)

// block is how many neighbouring nodes share an upper bound of their scores: the bits of a word.
const block = 64

// Bounds of the caches; a full one is emptied. A view takes about 9 B per node, a class 1 bit per node and 1 KiB.
const (
	maxViews   = 1 << 10
	maxClasses = 1 << 14
)

// cache is what a World keeps ready for one profile. All its lists run parallel to World.order.
type cache struct {
	profile *Profile
	weight  int
	stale   bool // order or a declaration changed

	load    []int32 // by the Load scorers
	loadMax []int32 // per block, over open nodes
	bits    [closedKinds][]uint64

	views   map[*fleet.Agent]*view
	byName  map[string][]*view
	classes map[classKey]*class
}

// view is what holds for one agent, whoever's run it is.
type view struct {
	agent    *fleet.Agent
	name     string
	request  Request // for the Agent scorers
	fleet    uint64  // generation that it is at
	verdicts []uint8 // reason codes; 0: feasible
	fixed    []int32 // by the Scorers, of feasible nodes
	fixedMax []int32 // per block
	own      []int32 // by the Agent scorers
	ownMax   []int32 // per block
}

type classKey struct {
	view   *view
	tenant string
}

// class is what holds for one agent and tenant.
type class struct {
	view     *view
	tenant   *fleet.Tenant
	fleet    uint64
	feasible []uint64 // bit set over nodes
	fit      int      // how many
	refused  []Tally

	no   *Decision // the last refusal, made at
	noAt Generation
}

// serve readies the cache for a profile and the present order.
func (c *cache) serve(p *Profile, w *World) {
	if c.profile != p {
		*c = cache{profile: p, weight: p.weight(), stale: true}
		c.flush()
	}
	if !c.stale {
		return
	}
	c.stale = false
	n, blocks := len(w.order), (len(w.order)+block-1)/block
	c.load = resize(c.load, n)
	c.loadMax = resize(c.loadMax, blocks)
	for k := range c.bits {
		c.bits[k] = resize(c.bits[k], blocks)
		clear(c.bits[k])
	}
	for i, node := range w.order {
		c.load[i] = total(p.Load, w, nil, node)
		c.bits[node.closed()][i/block] |= 1 << (i % block)
	}
	for b := range c.loadMax {
		c.bound(b)
	}
}

func (c *cache) flush() {
	c.views, c.byName, c.classes = map[*fleet.Agent]*view{}, map[string][]*view{}, map[classKey]*class{}
}

// touch follows a change of what is in use on the node by runs of the agent.
func (c *cache) touch(w *World, n *Node, agent string) {
	if c.stale || c.profile == nil || n.at < 0 {
		return
	}
	i, b := n.at, n.at/block
	c.load[i] = total(c.profile.Load, w, nil, n)
	c.mark(n)
	c.bound(b)
	for _, v := range c.byName[agent] {
		if v.fleet != w.gen.Fleet {
			continue // it will be brought up to date as a whole
		}
		was := v.own[i]
		v.own[i] = total(c.profile.Agent, w, &v.request, n)
		switch {
		case v.own[i] > v.ownMax[b]:
			v.ownMax[b] = v.own[i]
		case was == v.ownMax[b] && v.own[i] < was:
			v.ownMax[b] = slices.Max(v.own[b*block : min(b*block+block, len(v.own))])
		}
	}
}

// reopen follows a change of whether the node takes anything.
func (c *cache) reopen(n *Node) {
	if c.stale || c.profile == nil || n.at < 0 {
		return
	}
	c.mark(n)
	c.bound(n.at / block)
}

func (c *cache) mark(n *Node) {
	b, bit := n.at/block, uint64(1)<<(n.at%block)
	for k := range c.bits {
		c.bits[k][b] &^= bit
	}
	c.bits[n.closed()][b] |= bit
}

func (c *cache) bound(b int) {
	best := int32(0)
	for m := c.bits[open][b]; m != 0; m &= m - 1 {
		best = max(best, c.load[b*block+bits.TrailingZeros64(m)])
	}
	c.loadMax[b] = best
}

// class returns what holds for the request's agent and tenant, up to date.
func (c *cache) class(w *World, r *Request) *class {
	v := c.view(w, r)
	key := classKey{v, r.Run.Tenant}
	k := c.classes[key]
	if k == nil {
		if len(c.classes) >= maxClasses {
			clear(c.classes)
		}
		k = &class{view: v, tenant: r.Tenant, fleet: never}
		c.classes[key] = k
	}
	if k.tenant != r.Tenant {
		if !reflect.DeepEqual(k.tenant, r.Tenant) {
			k.fleet = never
		}
		k.tenant = r.Tenant
	}
	if k.fleet != w.gen.Fleet {
		k.sync(c, w, r)
	}
	return k
}

// never is a generation that no World reaches.
const never = 1<<64 - 1

func (c *cache) view(w *World, r *Request) *view {
	v := c.views[r.Agent]
	if v == nil {
		// The same revision may have been decoded twice.
		for _, other := range c.byName[r.Agent.Name()] {
			if reflect.DeepEqual(other.agent, r.Agent) {
				v = other
				break
			}
		}
		if len(c.views) >= maxViews {
			c.flush()
			v = nil
		}
		if v == nil {
			v = &view{agent: r.Agent, name: r.Agent.Name(), request: Request{Agent: r.Agent}, fleet: never}
			c.byName[v.name] = append(c.byName[v.name], v)
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
	if v.fleet == never || !known || len(changes) > len(w.order)/2+block {
		v.verdicts, v.fixed = resize(v.verdicts, len(w.order)), resize(v.fixed, len(w.order))
		for i, n := range w.order {
			ask(i, n)
		}
		changes = nil
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
	// Use was not followed while the view was behind.
	v.own = resize(v.own, len(w.order))
	for i, n := range w.order {
		v.own[i] = total(p.Agent, w, &v.request, n)
	}
	// 2. Bounds.
	blocks := (len(w.order) + block - 1) / block
	v.fixedMax, v.ownMax = resize(v.fixedMax, blocks), resize(v.ownMax, blocks)
	for b := range blocks {
		from, to := b*block, min(b*block+block, len(w.order))
		v.fixedMax[b], v.ownMax[b] = slices.Max(v.fixed[from:to]), slices.Max(v.own[from:to])
	}
	v.fleet = w.gen.Fleet
}

// sync asks the tenant filters and counts refusals.
func (k *class) sync(c *cache, w *World, r *Request) {
	k.feasible = resize(k.feasible, (len(w.order)+block-1)/block)
	clear(k.feasible)
	k.fit = 0
	var count tallies
	for i, n := range w.order {
		code := k.view.verdicts[i]
		if code == 0 {
			code = first(c.profile.Tenant, w, r, n).Reason.code()
		}
		if code == 0 {
			k.feasible[i/block] |= 1 << (i % block)
			k.fit++
			continue
		}
		count.add(code, n.name)
	}
	k.refused = count.list(nil)
	k.fleet, k.no = w.gen.Fleet, nil
}

// resize returns a slice of length n, of list's memory if it is enough. Its elements are undefined.
func resize[T any](list []T, n int) []T {
	if cap(list) >= n {
		return list[:n]
	}
	return make([]T, n, n+n/8)
}
