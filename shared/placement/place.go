package placement

import (
	"math/bits"
	"slices"
)

// Place chooses a node for the request, or none. It changes nothing: Assume does.
func (p *Profile) Place(w *World, r *Request) Decision {
	// 1. What the nodes have no part in.
	if d, refused := p.access(w, r); refused {
		return d
	}
	// 2. What is known about its agent and its tenant, and the best nodes that are open.
	c := &w.cache
	c.serve(p, w)
	v, m := c.view(w, r), c.mask(w, r)
	own := w.keptFor(r)
	common := len(own) == 0 && len(p.Room) == 0 && m.covers(v)
	if common && v.fullAt == w.stamp {
		return v.full
	}
	var best ranking
	fit, use := 0, needs(r)
	for b, feasible := range v.feasible {
		feasible &= m.feasible[b]
		fit += bits.OnesCount64(feasible)
		known := &v.bounds[b]
		if feasible&c.states[open][b] == 0 || known.rises == c.rises[b] && !best.admits(known.score) {
			continue
		}
		*known = bound{rises: c.rises[b]}
		for among := v.feasible[b] & c.states[open][b]; among != 0; among &= among - 1 {
			i := b*block + bits.TrailingZeros64(among)
			score := v.fixed[i] + v.own[i] + c.load[i]
			known.score = max(known.score, score)
			if best.admits(score) && feasible>>(i%block)&1 == 1 && p.hasRoom(w, r, w.order[i], use) {
				best.add(score, i)
			}
		}
	}
	// 3. The nodes that are kept free for runs of its class.
	for _, kept := range own {
		i := kept.node.at
		if v.feasible.has(i) && m.feasible.has(i) && p.hasRoom(w, r, kept.node, use) {
			best.add(v.fixed[i]+v.own[i]+c.load[i], i)
		}
	}
	// 4. The decision.
	switch {
	case fit == 0:
		return c.noway(p, w, r, v, m)
	case best.n == 0:
		d := p.noCapacity(w, r, v, m, fit)
		if common {
			v.full, v.fullAt = d, w.stamp
		}
		return d
	}
	chosen := w.order[best.list[0].at]
	d := Decision{
		Outcome: Placed, Node: chosen.name, Target: chosen.Target.Name(), Worker: chosen.Worker,
		Nodes: len(w.order), Fit: fit, Refused: c.tally(w, v, m), bests: best.n,
	}
	for i, ranked := range best.list[:best.n] {
		d.best[i] = Scored{w.order[ranked.at].name, int(ranked.score) / c.weight}
	}
	d.Score = d.best[0].Score
	return d
}

// Saturated reports whether no node takes anything at all at the moment, save for runs with a reservation. Then a pass
// can end.
func (p *Profile) Saturated(w *World) bool {
	w.cache.serve(p, w)
	return !slices.ContainsFunc(w.cache.states[open], func(word uint64) bool { return word != 0 })
}

// covers reports whether the tenant may use all nodes that fit the agent.
func (m *mask) covers(v *view) bool {
	for b, feasible := range v.feasible {
		if feasible&^m.feasible[b] != 0 {
			return false
		}
	}
	return true
}

// access asks the filters that do not depend on a node.
func (p *Profile) access(w *World, r *Request) (Decision, bool) {
	var v Verdict
	if r.Agent == nil {
		v = Verdict{Reason: AgentMissing, Message: "the agent " + r.Run.Agent + " is not declared any more", Final: true}
	} else if v = first(p.Access, w, r, nil); v.Feasible() {
		return Decision{}, false
	} else {
		asking := *r
		asking.explain = true
		v = first(p.Access, w, &asking, nil)
	}
	t := Tally{Reason: v.Reason, Count: len(w.order), Message: v.Message}
	return Decision{
		Outcome: Unschedulable, Nodes: len(w.order), Refused: []Tally{t}, Final: v.Final, RetryAt: v.RetryAt, WakeOn: v.WakeOn,
	}, true
}

// hasRoom asks what is free at the moment.
func (p *Profile) hasRoom(w *World, r *Request, n *Node, use Usage) bool {
	return n.room(use, n.heldFor(r)) == "" && (len(p.Room) == 0 || first(p.Room, w, r, n).Feasible())
}

func (n *Node) heldFor(r *Request) bool { return n.reserved != nil && n.reserved.class == ClassKey(r) }

// ranking keeps the best nodes, the higher score first and then the lower index, which is the smaller name.
type ranking struct {
	list [MaxBest]ranked
	n    int
}

type ranked struct {
	score int32
	at    int32
}

// admits reports whether a node with this score, and a higher index than all so far, belongs in.
func (k *ranking) admits(score int32) bool { return k.n < MaxBest || score > k.list[MaxBest-1].score }

func (k *ranking) add(score int32, at int) {
	x := ranked{score, int32(at)}
	if k.n < MaxBest {
		k.n++
	} else if !x.before(k.list[MaxBest-1]) {
		return
	}
	i := k.n - 1
	for ; i > 0 && x.before(k.list[i-1]); i-- {
		k.list[i] = k.list[i-1]
	}
	k.list[i] = x
}

func (x ranked) before(y ranked) bool { return x.score > y.score || x.score == y.score && x.at < y.at }

// tally adds to a view's refusals how many nodes the tenant may not use, and how many take nothing at the moment.
func (c *cache) tally(w *World, v *view, m *mask) []Tally {
	var extra [1 + closedKinds]Tally
	n := 0
	for kind := open; kind < closedKinds; kind++ {
		// The state open stands for the tenant here.
		t := Tally{Reason: TenantExcluded}
		if kind != open {
			t = c.closedTally(w, v, m, kind)
		} else {
			for b, feasible := range v.feasible {
				t.addAll(w, b, feasible&^m.feasible[b])
			}
		}
		if t.Count > 0 {
			extra[n] = t
			n++
		}
	}
	if n == 0 {
		return v.refused
	}
	list := make([]Tally, 0, len(v.refused)+n)
	return append(append(list, v.refused...), extra[:n]...)
}

// closedTally counts the nodes that fit and take nothing, for one reason.
func (c *cache) closedTally(w *World, v *view, m *mask, kind closed) Tally {
	t := Tally{Reason: kind.reason()}
	for b, feasible := range v.feasible {
		t.addAll(w, b, feasible&m.feasible[b]&c.states[kind][b])
	}
	return t
}

// addAll counts the nodes of one word.
func (t *Tally) addAll(w *World, b int, nodes uint64) {
	for rest := nodes; rest != 0 && t.Names[maxNames-1] == ""; rest &= rest - 1 {
		t.name(w.order[b*block+bits.TrailingZeros64(rest)].name)
	}
	t.Count += bits.OnesCount64(nodes)
}

// noCapacity says what keeps the request from each node that it fits.
func (p *Profile) noCapacity(w *World, r *Request, v *view, m *mask, fit int) Decision {
	// 1. Nodes that take nothing are counted without asking, unless others are refused for the same reasons too: then
	// asking them in order gives the first names.
	c, use := &w.cache, needs(r)
	var count tallies
	asked := v.feasible
	if use.Slots == 1 && len(w.keptFor(r)) == 0 && len(p.Room) == 0 {
		for kind := open + 1; kind < closedKinds; kind++ {
			count[kind.reason().code()] = c.closedTally(w, v, m, kind)
		}
		asked = c.states[open]
	}
	// 2. The others.
	for b, feasible := range v.feasible {
		for rest := feasible & m.feasible[b] & asked[b]; rest != 0; rest &= rest - 1 {
			n := w.order[b*block+bits.TrailingZeros64(rest)]
			reason := n.room(use, n.heldFor(r))
			if reason == "" {
				reason = first(p.Room, w, r, n).Reason
			}
			count.add(reason.code(), n.name)
		}
	}
	// 3. One message for each reason.
	asking := *r
	asking.explain = true
	for i := range count {
		if t := &count[i]; t.Count > 0 {
			t.Message = room(p, w, &asking, w.nodes[t.Names[0]]).Message
		}
	}
	head := v.refused
	if excluded := c.tally(w, v, m); len(excluded) > len(head) && excluded[len(head)].Reason == TenantExcluded {
		head = excluded[:len(head)+1]
	}
	return Decision{Outcome: NoCapacity, Nodes: len(w.order), Fit: fit, Refused: count.list(head), WakeOn: wakeOnSlot}
}

// room is the verdict over what is free at the moment.
func room(p *Profile, w *World, r *Request, n *Node) Verdict {
	if v := roomVerdict(r, n, n.heldFor(r)); !v.Feasible() {
		return v
	}
	return first(p.Room, w, r, n)
}

// noway is the decision when no node can ever take the request as things are declared. It is made once for an agent and
// a tenant.
func (c *cache) noway(p *Profile, w *World, r *Request, v *view, m *mask) Decision {
	key := nowayKey{v, m}
	known := c.noways[key]
	if known == nil {
		if len(c.noways) >= maxNoways {
			clear(c.noways)
		}
		known = &noway{fleet: never}
		c.noways[key] = known
	}
	if known.fleet != w.gen.Fleet {
		*known = noway{w.gen.Fleet, p.unschedulable(w, r)}
	}
	return known.decision
}

func (p *Profile) unschedulable(w *World, r *Request) Decision {
	d := Decision{Outcome: Unschedulable, Nodes: len(w.order), Final: len(w.order) > 0, WakeOn: wakeOnWorker}
	asking := *r
	var count tallies
	for _, n := range w.order {
		asking.explain = false
		v, code := p.declared(w, &asking, n)
		if count[code].Count == 0 {
			asking.explain = true
			explained, _ := p.declared(w, &asking, n)
			count[code].Message = explained.Message
		}
		count.add(code, n.name)
		d.Final = d.Final && v.Final
		if v.RetryAt != 0 && (d.RetryAt == 0 || v.RetryAt < d.RetryAt) {
			d.RetryAt = v.RetryAt
		}
	}
	d.Refused = count.list(nil)
	if d.Final {
		d.WakeOn = nil
	}
	return d
}

// declared is the first refusal by what is declared, and the code that it counts under.
func (p *Profile) declared(w *World, r *Request, n *Node) (Verdict, uint8) {
	if v := first(p.Filters, w, r, n); !v.Feasible() {
		return v, v.Reason.code()
	}
	return first(p.Tenant, w, r, n), TenantExcluded.code()
}

// Fitting lists the nodes that could take the request if they were empty, by name, to read. A polled target without
// its workers is among them: a worker may come.
func (p *Profile) Fitting(w *World, r *Request) []*Node {
	if _, refused := p.access(w, r); refused {
		return nil
	}
	c := &w.cache
	c.serve(p, w)
	v, m := c.view(w, r), c.mask(w, r)
	var list []*Node
	for b, feasible := range v.feasible {
		for rest := feasible & m.feasible[b]; rest != 0; rest &= rest - 1 {
			list = append(list, w.order[b*block+bits.TrailingZeros64(rest)])
		}
	}
	return list
}
