package placement

import (
	"math/bits"
	"slices"
)

// Place chooses a node for the request, or none. It changes nothing: Assume does.
func (p *Profile) Place(w *World, r *Request) Decision {
	if r.Agent == nil {
		return agentMissing(w)
	}
	// 1. What is known about requests of its class.
	c := &w.cache
	c.serve(p, w)
	k := c.class(w, r)
	own := w.reserved[r.Run.ID]
	switch {
	case k.fit == 0:
		if k.no == nil {
			d := unschedulable(p, w, r, k)
			k.no, k.noAt = &d, w.gen
		}
		return *k.no
	case k.no != nil && k.noAt == w.gen && own == nil:
		return *k.no
	}
	// 2. The best nodes that are open.
	var best ranking
	use := needs(r)
	v := k.view
	for b, feasible := range k.feasible {
		m := feasible & c.bits[open][b]
		if m == 0 || !best.admits(v.fixedMax[b]+v.ownMax[b]+c.loadMax[b]) {
			continue
		}
		for ; m != 0; m &= m - 1 {
			i := b*block + bits.TrailingZeros64(m)
			score := v.fixed[i] + v.own[i] + c.load[i]
			if best.admits(score) && refusal(p, w, r, w.order[i], use) == "" {
				best.add(score, i)
			}
		}
	}
	// 3. The node that is kept free for this run alone.
	if own != nil {
		if i := own.node.at; k.feasible[i/block]>>(i%block)&1 == 1 && refusal(p, w, r, own.node, use) == "" {
			best.add(v.fixed[i]+v.own[i]+c.load[i], i)
		}
	}
	// 4. The decision.
	if best.n == 0 {
		d := noCapacity(p, w, r, k, use, own != nil)
		if own == nil {
			k.no, k.noAt = &d, w.gen
		}
		return d
	}
	chosen := w.order[best.list[0].at]
	d := Decision{
		Outcome: Placed, Node: chosen.name, Target: chosen.Target.Name(), Worker: chosen.Worker,
		Nodes: len(w.order), Fit: k.fit, Refused: c.closedTallies(w, k), bests: best.n,
	}
	for i, ranked := range best.list[:best.n] {
		d.best[i] = Scored{w.order[ranked.at].name, int(ranked.score) / c.weight}
	}
	d.Score = d.best[0].Score
	return d
}

// refusal asks for what is free at the moment.
func refusal(p *Profile, w *World, r *Request, n *Node, use Usage) Reason {
	if reason := n.room(use, n.heldFor(r)); reason != "" || len(p.Room) == 0 {
		return reason
	}
	return first(p.Room, w, r, n).Reason
}

func (n *Node) heldFor(r *Request) bool { return n.reserved != nil && n.reserved.run == r.Run.ID }

// ranking keeps the best nodes, the higher score first and then the lower index, which is the smaller name.
type ranking struct {
	list [MaxBest]ranked
	n    int
}

type ranked struct {
	score int32
	at    int
}

// admits reports whether a node with this score, and a higher index than all so far, belongs in.
func (k *ranking) admits(score int32) bool { return k.n < MaxBest || score > k.list[MaxBest-1].score }

func (k *ranking) add(score int32, at int) {
	i := k.n
	if i == MaxBest {
		i--
		if last := k.list[i]; score < last.score || score == last.score && at > last.at {
			return
		}
	} else {
		k.n++
	}
	for ; i > 0; i-- {
		if before := k.list[i-1]; before.score > score || before.score == score && before.at < at {
			break
		}
		k.list[i] = k.list[i-1]
	}
	k.list[i] = ranked{score, at}
}

// closedTallies adds to a class's refusals how many nodes that fit take nothing at the moment.
func (c *cache) closedTallies(w *World, k *class) []Tally {
	list := k.refused
	for kind := full; kind < closedKinds; kind++ {
		if t := c.closedTally(w, k, kind); t.Count > 0 {
			list = append(slices.Clip(list), t) // the class's own stays as it is
		}
	}
	return list
}

func (c *cache) closedTally(w *World, k *class, kind closed) Tally {
	t := Tally{Reason: kind.reason()}
	for b, feasible := range k.feasible {
		m := feasible & c.bits[kind][b]
		t.Count += bits.OnesCount64(m)
		for ; m != 0 && t.Names[maxNames-1] == ""; m &= m - 1 {
			t.name(w.order[b*block+bits.TrailingZeros64(m)].name)
		}
	}
	return t
}

// noCapacity says what keeps the request from each node that it fits.
func noCapacity(p *Profile, w *World, r *Request, k *class, use Usage, own bool) Decision {
	var count tallies
	// 1. Nodes that take nothing refuse every request but the one that they are kept free for.
	if !own {
		for kind := full; kind < closedKinds; kind++ {
			count[kind.reason().code()] = w.cache.closedTally(w, k, kind)
		}
	}
	// 2. The others refuse this one.
	for b, feasible := range k.feasible {
		m := feasible
		if !own {
			m &= w.cache.bits[open][b]
		}
		for ; m != 0; m &= m - 1 {
			n := w.order[b*block+bits.TrailingZeros64(m)]
			count.add(refusal(p, w, r, n, use).code(), n.name)
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
	return Decision{
		Outcome: NoCapacity, Nodes: len(w.order), Fit: k.fit, Refused: count.list(k.refused), WakeOn: wakeOnSlot,
	}
}

// room is the verdict over what is free at the moment.
func room(p *Profile, w *World, r *Request, n *Node) Verdict {
	if v := roomVerdict(r, n, n.heldFor(r)); !v.Feasible() {
		return v
	}
	return first(p.Room, w, r, n)
}

// unschedulable says why no node can ever take the request as things are declared.
func unschedulable(p *Profile, w *World, r *Request, k *class) Decision {
	d := Decision{Outcome: Unschedulable, Nodes: len(w.order), Final: len(w.order) > 0, WakeOn: wakeOnWorker}
	var count tallies
	asking := *r
	for _, n := range w.order {
		asking.explain = false
		v := declared(p, w, &asking, n)
		code := v.Reason.code()
		if count[code].Count == 0 {
			asking.explain = true
			count[code].Message = declared(p, w, &asking, n).Message
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

// declared is the first refusal by what is declared.
func declared(p *Profile, w *World, r *Request, n *Node) Verdict {
	if v := first(p.Filters, w, r, n); !v.Feasible() {
		return v
	}
	return first(p.Tenant, w, r, n)
}

func agentMissing(w *World) Decision {
	var count tallies
	for _, n := range w.order {
		count.add(AgentMissing.code(), n.name)
	}
	return Decision{Outcome: Unschedulable, Nodes: len(w.order), Refused: count.list(nil)}
}
