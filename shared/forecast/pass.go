package forecast

import (
	"time"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/retry"
	"github.com/errand-run/errand/shared/run"
)

// pass walks the queue as the control plane does: in order, until nothing more can be placed. It reports whether it
// stopped at its limit.
func (e *engine) pass() (more bool) {
	// 1. What no target could take, when the fleet has changed since.
	if e.changed {
		e.changed = false
		e.unpark()
	}
	before := e.stamp()
	defer func() { e.fresh, e.over, e.looked = e.fresh[:0], e.over[:0], before }()
	// 2. A walk in which nothing is placed changes nothing, so one that would refuse everything is left out; and where a
	// single class can be looked at alone, there is no need to come by all the others.
	if list, known := e.candidates(); known && len(list) < 2 {
		e.freed = false
		for _, c := range list {
			e.placeAhead(c)
		}
		return false
	} else if !known && !e.worthwhile() {
		return false
	}
	// 3. In order.
	walk := e.queue.Begin()
	placed, complete := 0, true
	e.partial = false
	for entry, ok := walk.Next(); ok; entry, ok = walk.Next() {
		if placed >= maxPass {
			walk.Skip(entry)
			more, complete, e.partial = true, false, true
			break
		}
		if placed > 0 && e.profile.Saturated(e.world) { // nothing behind it can be placed either
			walk.Skip(entry)
			e.partial = true
			more = e.large > 0 // the next pass looks who has waited long enough for a reservation
			break
		}
		if e.decide(walk, entry) {
			placed++
		}
	}
	walk.End()
	// A node that was kept for a run and is not any more may take one that was refused before.
	more = more || e.stamp() != before
	e.freed = !complete || more
	return more
}

// maxCandidates is beyond how many classes a walk is as quick as a look at each.
const maxCandidates = 64

// candidates lists the classes of which a run may be placed, if that can be told without a walk.
func (e *engine) candidates() (list []*class, known bool) {
	if walkAlways || e.partial || e.large > 0 || e.atWorld > 0 && e.looked != e.stamp() {
		return nil, false
	}
	found := e.chosen[:0]
	defer func() {
		for _, c := range found {
			c.chosen = false
		}
		e.chosen = found[:0]
	}()
	add := func(c *class) bool {
		if c.queued > 0 && !c.chosen && !e.stillRefused(c) {
			c.chosen = true
			found = append(found, c)
		}
		return len(found) <= maxCandidates
	}
	addAll := func(pairs []*pair) bool {
		for _, p := range pairs {
			if p.queued == 0 {
				continue
			}
			if !add(p.plain) {
				return false
			}
			for _, c := range p.turns {
				if !add(c) {
					return false
				}
			}
		}
		return true
	}
	for _, c := range e.fresh {
		if !add(c) {
			return nil, false
		}
	}
	for _, c := range e.over {
		p := c.pair
		if !add(c) || p.agent.Concurrency.PerTenant > 0 && !addAll([]*pair{p}) || p.tenant.Quota.Running > 0 && !addAll(p.tenant.pairs) ||
			p.agent.Concurrency.Max > 0 && !addAll(p.agent.pairs) {
			return nil, false
		}
	}
	return found, true
}

// priced is the entry with what it is expected to take by now, which its task is charged with.
func (e *engine) priced(t *task, entry queue.Entry) queue.Entry {
	a := t.class.pair.agent.Agent
	entry.Cost = admission.Charge(a, e.durations.Expected(a))
	t.cost = entry.Cost
	return entry
}

// placeAhead places what can be placed of one class, when everything else would be refused.
func (e *engine) placeAhead(c *class) {
	walk := e.queue.Begin()
	defer walk.End()
	for {
		entry, ok := e.queue.First(c.pair.tenant.Name(), c.key)
		if !ok || e.held(c) {
			return
		}
		t := e.tasks.named(entry.ID)
		c.record.ID = entry.ID
		switch d := e.profile.Place(e.world, &c.request); d.Outcome {
		case placement.Placed:
			walk.TakeAhead(e.priced(t, entry))
			e.start(t, &d)
		case placement.Unschedulable:
			walk.Remove(entry)
			e.park(t, &d)
		default:
			e.noRoom(c, d.Outcome)
			return
		}
	}
}

// refuse notes why a class stays where it is.
func (e *engine) refuse(c *class, r refusal) {
	if c.refused.scope == byWorld {
		e.atWorld--
	}
	if r.scope == byWorld {
		e.atWorld++
	}
	c.refused = r
}

// worthwhile reports whether a walk may place anything: something ended, or one of the runs that came can be placed.
func (e *engine) worthwhile() bool {
	if e.queue.Len() == 0 {
		return false
	}
	if e.freed || e.large > 0 { // a large run may have waited long enough for a reservation
		return true
	}
	for _, c := range e.fresh {
		if c.queued > 0 && !e.stillRefused(c) && !e.refuses(c) {
			return true
		}
	}
	return false
}

// stillRefused reports whether what the class was refused for stands.
func (e *engine) stillRefused(c *class) bool {
	p := c.pair
	switch r := c.refused; r.scope {
	case byTenant:
		return r.stamp == p.tenant.freed
	case byAgent:
		return r.stamp == p.agent.freed
	case byPair:
		return r.stamp == p.freed
	case bySession:
		return c.busy
	case byWorld:
		return r.stamp == e.stamp()
	}
	return false
}

// refuses asks for one class, without placing anything.
func (e *engine) refuses(c *class) bool {
	if e.held(c) {
		return true
	}
	c.record.ID = ""
	return e.noRoom(c, e.profile.Place(e.world, &c.request).Outcome)
}

func (e *engine) noRoom(c *class, o placement.Outcome) bool {
	if o == placement.NoCapacity {
		e.refuse(c, refusal{byWorld, e.stamp()})
		e.regroup(c.pair)
		return true
	}
	return false
}

// held asks for the session and for the limits of tenant and agent.
func (e *engine) held(c *class) bool {
	p := c.pair
	if c.busy {
		e.refuse(c, refusal{bySession, 0})
		return true
	}
	v := admission.Start(p.agent.Agent, p.tenant.Tenant, p.view(), &c.record, e.now)
	if v.Action != admission.Hold {
		return false
	}
	switch v.Scope {
	case admission.ScopeTenant:
		e.refuse(c, refusal{byTenant, p.tenant.freed})
	case admission.ScopeAgent:
		e.refuse(c, refusal{byAgent, p.agent.freed})
	default:
		e.refuse(c, refusal{byPair, p.freed})
	}
	return true
}

// decide says what becomes of the entry at the head, and reports whether it left the queue. One that stays blocks its
// class or tenant for this pass, never those behind it.
func (e *engine) decide(walk *queue.Pass, entry queue.Entry) bool {
	t := e.tasks.named(entry.ID)
	c := t.class
	// 1. Eligible at all.
	if e.stillRefused(c) && (c.refused.scope != byWorld || entry.Slots == 1) || e.held(c) {
		if c.refused.scope != bySession && c.refused.scope != byWorld {
			e.world.GiveUp(&c.request) // or a node would stay empty for what may not start
		}
		if c.refused.scope == byTenant {
			walk.BlockTenant(entry.Tenant)
		} else {
			walk.BlockClass(entry.Class)
		}
		return false
	}
	// 2. A target.
	c.record.ID = entry.ID
	d := e.profile.Place(e.world, &c.request)
	switch d.Outcome {
	case placement.Placed:
		walk.Take(e.priced(t, entry))
		e.start(t, &d)
		return true
	case placement.Unschedulable:
		walk.Remove(entry)
		e.park(t, &d)
		return true
	}
	if e.noRoom(c, d.Outcome) && entry.Slots > 1 && e.now.Sub(entry.QueuedAt) >= e.opts.Ageing {
		// What needs several slots finds them free at a time only if they are kept for it.
		e.profile.Reserve(e.world, &c.request)
	}
	walk.BlockClass(entry.Class)
	return false
}

// start begins an attempt on the node that was chosen.
func (e *engine) start(t *task, d *placement.Decision) {
	c := t.class
	p := c.pair
	a := p.agent
	e.leave(t)
	expected := e.durations.Expected(a.Agent)
	e.world.Assume(d.Node, &c.request, e.now.Add(expected))
	// 1. The run.
	t.state, t.since, t.node = running, e.now, e.nodes[d.Node]
	t.attempt++
	t.spent++
	if t.started == 0 {
		t.started = e.now
		p.started++
		e.waited(p, int64(e.now-t.arrival.At))
	} else {
		p.retries++
	}
	// 2. The counts.
	p.count(0, 1)
	if c.session != "" {
		c.busy = true
		p.meter.turn += c.queued
	}
	e.occupy(t, 1)
	p.tenant.gap.moved(e.now, p.tenant.queued > 0)
	// 3. Its end.
	took, _ := e.outcome(t)
	if at := e.now.Add(took); at < e.end {
		e.events.push(event{at: at, task: t, gen: t.gen, kind: attemptEnds})
	}
}

// occupy follows what is in use on the node of a run that starts (1) or ends (-1).
func (e *engine) occupy(t *task, by int) {
	n, p := t.node, t.class.pair
	a := p.agent
	slots := by * max(a.Needs.Slots, 1)
	n.runs += by
	n.target.slots.add(&e.scale, e.now, slots)
	p.tenant.running.add(&e.scale, e.now, by)
	e.running.add(&e.scale, e.now, by)
	before := n.agents[a.index]
	n.agents[a.index] += int32(by)
	if n.target.Runtime == fleet.RuntimeLocal {
		if delta := a.processes(int(before)+by) - a.processes(int(before)); delta != 0 {
			a.workers.add(&e.scale, e.now, delta)
			n.target.workers.add(&e.scale, e.now, delta)
		}
	}
	e.holds = append(e.holds, hold{n, p.tenant.index, int32(slots)})
}

// outcome is what the present attempt comes to and how long it takes, cut at its time-out and at the run's deadline.
func (e *engine) outcome(t *task) (time.Duration, outcome) {
	o := t.arrival.attempt(int(t.attempt))
	took := o.took
	cut := func(limit time.Duration, class run.Class, code run.Reason) {
		if took <= limit {
			return
		}
		if took > 0 {
			share := float64(limit) / float64(o.took)
			o.usage.InputTokens = int64(share * float64(o.usage.InputTokens))
			o.usage.OutputTokens = int64(share * float64(o.usage.OutputTokens))
			o.usage.USD *= share
		}
		took, o.class, o.code = limit, class, string(code)
	}
	if limit := t.class.pair.agent.Timeouts.Attempt.Std(); limit > 0 {
		cut(limit, run.ClassTimeout, "")
	}
	if t.deadline != 0 {
		cut(max(t.deadline.Sub(t.since), 0), run.ClassTimeout, run.DeadlineExceeded)
	}
	return took, o
}

// due handles an event, unless its task has moved on.
func (e *engine) due(x event) {
	t := x.task
	if t == nil {
		e.workersChange(int(x.n), x.kind == workersJoin)
		return
	}
	if t.gen != x.gen {
		return
	}
	switch x.kind {
	case attemptEnds:
		if t.state == running && e.now >= t.since {
			e.ended(t)
		}
	case backoffEnds:
		if t.state == backoff {
			t.class.pair.settle(e.now)
			t.class.pair.meter.backoff--
			e.enqueue(t)
		}
	case waitEnds:
		e.waitOver(t)
	}
}

// waitOver ends a run whose time in the queue, or whose deadline, is over.
func (e *engine) waitOver(t *task) {
	p := t.class.pair
	late := t.deadline != 0 && t.deadline <= e.now
	switch {
	case !late && (t.expires == 0 || t.expires > e.now):
		return // of an earlier wait
	case t.state == queued || t.state == stored:
		if t.state == queued {
			e.queue.Remove(t.id)
			e.world.Unreserve(t.id)
			e.freed = true // a reservation of its
		}
		e.leave(t)
		p.tenant.gap.moved(e.now, p.tenant.queued > 0)
	case t.state == parked:
		e.unparked(t)
	case t.state == backoff:
		p.settle(e.now)
		p.meter.backoff--
	default:
		return
	}
	if t.started == 0 {
		e.waited(p, int64(e.now-t.arrival.At))
	}
	if late {
		p.late++
	} else {
		p.expired++
	}
	p.failed++
	e.gone(t)
}

// ended is the end of an attempt: the run's, or a backoff.
func (e *engine) ended(t *task) {
	c := t.class
	p := c.pair
	a := p.agent
	took, o := e.outcome(t)
	// 1. Its slot is free.
	p.settle(e.now)
	e.touch(p)
	e.world.Release(t.id)
	e.freed = true
	e.over = append(e.over, c)
	p.count(0, -1)
	e.occupy(t, -1)
	if c.session != "" {
		c.busy = false
		p.meter.turn -= c.queued
	}
	e.queue.Correct(p.tenant.Name(), admission.Charge(a.Agent, took)-t.cost)
	cost := &t.node.target.Cost
	p.computeUSD += cost.PerRunUSD + cost.PerRunSecondUSD*took.Seconds()
	p.tokenUSD += o.usage.USD
	p.tokens = saturated(p.tokens, saturated(o.usage.InputTokens, o.usage.OutputTokens))
	p.busy += float64(took.Milliseconds())
	if n := t.node; n.leaves && n.runs == 0 {
		e.world.RemoveNode(n.name)
	}
	t.node = nil
	// 2. What follows.
	switch {
	case o.class == "":
		e.durations.Learn(a.Name(), took)
		p.succeeded++
	case o.code == string(run.DeadlineExceeded):
		p.late++
		p.failed++
	case e.retries(t, o):
		return
	default:
		p.failed++
	}
	e.gone(t)
}

// retries asks the policy about a failed attempt and reports whether the run goes on.
func (e *engine) retries(t *task, o outcome) bool {
	p := t.class.pair
	rec := run.Record{
		Spec: run.Spec{Deadline: t.deadline}, State: run.Running, Attempt: int(t.attempt), Spent: int(t.spent),
		Returned: int(t.returned), Attempts: []run.Attempt{{N: int(t.attempt), StartedAt: t.since}},
	}
	roll := mix(e.opts.Seed ^ mix(t.arrival.Seed+uint64(t.attempt)*draws+drawJitter))
	v := retry.Decide(p.agent.Retry, &rec, retry.Failure{Class: o.class, Code: o.code}, e.now, roll)
	if v.Action != retry.Retry {
		return false
	}
	if v.Unspent {
		t.spent--
		t.returned++
	}
	t.state = backoff
	p.meter.backoff++
	if v.Due < e.end {
		e.events.push(event{at: v.Due, task: t, gen: t.gen, kind: backoffEnds})
	}
	return true
}

// park takes a run out of the queue that no target could take.
func (e *engine) park(t *task, d *placement.Decision) {
	e.leave(t)
	p := t.class.pair
	t.state = parked
	p.meter.parked++
	p.unschedulable++
	p.meter.reason = d.Message()
	t.class.parked = append(t.class.parked, t)
	p.tenant.gap.moved(e.now, p.tenant.queued > 0)
}

// unparked takes a run out of those that are unschedulable.
func (e *engine) unparked(t *task) {
	c := t.class
	c.pair.settle(e.now)
	c.pair.meter.parked--
	for i, x := range c.parked {
		if x == t {
			c.parked = append(c.parked[:i], c.parked[i+1:]...)
			break
		}
	}
}

// unpark puts runs back into the queue that a changed fleet could take: one decision per class.
func (e *engine) unpark() {
	for _, p := range e.pairList {
		if p.meter.parked == 0 {
			continue
		}
		for _, c := range p.inOrder() {
			if len(c.parked) == 0 {
				continue
			}
			c.record.ID = ""
			if e.profile.Place(e.world, &c.request).Outcome == placement.Unschedulable {
				continue
			}
			p.settle(e.now)
			for _, t := range c.parked {
				p.meter.parked--
				e.enqueue(t)
			}
			c.parked = nil
		}
	}
}

// settle closes an instant: from now on, time passes with the counts as they are.
func (e *engine) settle() {
	for _, p := range e.touched {
		p.touched = false
		t, a := p.tenant, p.agent
		if full := t.Quota.Running > 0 && t.live >= t.Quota.Running; full != t.full {
			e.settleAll(t.pairs)
			t.full = full
		}
		if full := a.Concurrency.Max > 0 && a.live >= a.Concurrency.Max; full != a.full {
			e.settleAll(a.pairs)
			a.full = full
		}
		if full := a.Concurrency.PerTenant > 0 && p.live >= a.Concurrency.PerTenant; full != p.full {
			p.settle(e.now)
			p.full = full
		}
	}
	e.touched = e.touched[:0]
	for i := range e.holds {
		e.holds[i].apply()
	}
	e.holds = e.holds[:0]
}

func (e *engine) settleAll(list []*pair) {
	for _, p := range list {
		if p.queued > 0 {
			p.settle(e.now)
		}
	}
}
