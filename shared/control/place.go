package control

import (
	"context"
	"errors"
	"slices"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Queue and place stages: one pass takes what arrived, walks the queue in order, and places over one World, assuming
// each placement before the next decision. Nothing is started or written here: the outcome is a list of bindings.

// binding is what a pass decided about one run.
type binding struct {
	id       string
	entry    queue.Entry
	arrival  *arrival // of a run that has no record yet
	decision placement.Decision
	assign   bool // else: unschedulable, or an arrival that stays queued
	park     bool
	locked   bool // the run's key is held
}

// stepPlace makes one pass. It returns the instant of its decisions, which is not before the end of any run whose slot
// it gives away, and whether it stopped at its limit.
func (p *Plane) stepPlace(ctx context.Context, now run.Instant) (bindings []binding, at run.Instant, more bool) {
	arrived := p.arrive.take(maxPass)
	p.unpark(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	now = max(now, p.now())
	ix := p.ix
	// 1. Arrivals enter the fair queue like everyone else; those with a time to come are only written.
	bindings = make([]binding, 0, len(arrived))
	fresh := make(map[string]*arrival, len(arrived))
	var again []arrival
	written := make(map[string]bool) // those that are only written
	for i := range arrived {
		a := &arrived[i]
		if fresh[a.rec.ID] != nil || written[a.rec.ID] { // the next pass finds the first of that key written
			again = append(again, *a)
			continue
		}
		if ix.runs[a.rec.ID] != nil || a.rec.State != run.Queued || a.rec.Kind != run.KindAgent {
			bindings = append(bindings, binding{id: a.rec.ID, arrival: a})
			written[a.rec.ID] = true
			continue
		}
		fresh[a.rec.ID] = a
		ix.enqueue(p, a.rec)
		if ix.runs[a.rec.ID] == nil { // the queue's memory is full: it waits in the store
			bindings = append(bindings, binding{id: a.rec.ID, arrival: a})
			written[a.rec.ID] = true
			delete(fresh, a.rec.ID)
		}
	}
	// 2. The queue in order, until nothing more can be placed.
	walk := ix.queue.Begin()
	placed, room := 0, ix.world.Generation().Capacity
	for e, ok := walk.Next(); ok; e, ok = walk.Next() {
		if quiet := p.quiet.Load(); quiet || placed >= maxPass {
			walk.Skip(e)
			more = !quiet
			break
		}
		if placed > 0 && ix.profile.Saturated(ix.world) { // nothing behind it can be placed either
			walk.Skip(e)
			break
		}
		b, outcome := p.placeOne(walk, e, fresh, now)
		if outcome {
			bindings = append(bindings, b)
			delete(fresh, e.ID)
			placed++
		}
	}
	for _, id := range walk.Lined() {
		ix.world.Unreserve(id) // or a node would stay empty for what may not start
	}
	walk.End()
	// A node that was kept for a run and is not any more may take one that was refused before.
	more = more || ix.world.Generation().Capacity != room || ix.queue.Due()
	// 3. Arrivals that were not placed are written as queued, in the order in which they came.
	for i := range arrived {
		if a := &arrived[i]; fresh[a.rec.ID] == a {
			e, _ := ix.queue.Get(a.rec.ID)
			bindings = append(bindings, binding{id: a.rec.ID, entry: e, arrival: a})
		}
	}
	p.arrive.putBack(again)
	return bindings, now, more
}

// placeOne decides about the entry at the head and reports whether something is to be written. A head that cannot be
// placed blocks its class or tenant for this pass, never those behind it.
func (p *Plane) placeOne(walk *queue.Pass, e queue.Entry, fresh map[string]*arrival, now run.Instant) (binding, bool) {
	ix := p.ix
	b := binding{id: e.ID, entry: e, arrival: fresh[e.ID]}
	c := ix.classes[e.Class]
	// 1. Eligible at all: the session is free, and no limit of the agent or the tenant binds.
	if c == nil || c.agent == nil {
		walk.Remove(e)
		ix.left = append(ix.left, e.ID) // the agent's declaration must be read first
		return b, false
	}
	if t := ix.runs[e.ID]; t != nil && t.parent != "" && p.orphaned(t.parent) {
		walk.Skip(e) // it is about to be canceled
		return b, false
	}
	agent := c.agent.object.(*fleet.Agent)
	if c.session != "" && ix.sessions[c.session] != "" {
		c.limit = "its session is busy with run " + ix.sessions[c.session]
		walk.BlockClass(e.Class)
		return b, false
	}
	rec := &ix.asked // what a decision may depend on
	rec.ID, rec.Agent, rec.Revision, rec.Tenant = e.ID, agent.Name(), c.agent.revision, e.Tenant
	v := admission.Start(agent, p.tenantOf(e.Tenant), admission.View{
		TenantRunning: ix.tenants.of(e.Tenant).live, AgentRunning: ix.agents.of(agent.Name()).live,
		AgentTenantRunning: ix.agentTenant[[2]string{agent.Name(), e.Tenant}], Paused: p.paused(agent.Name()),
	}, rec, now)
	req := p.request(rec, agent)
	if v.Action == admission.Hold {
		c.limit = v.Message
		ix.world.GiveUp(req) // or a node would stay empty for what may not start
		if v.Scope == admission.ScopeTenant {
			walk.BlockTenant(e.Tenant)
		} else {
			walk.BlockClass(e.Class)
		}
		return b, false
	}
	// 2. Someone is changing this very run: it comes again.
	if b.arrival == nil {
		if !p.busy.tryLock(e.ID) {
			walk.Skip(e)
			return b, false
		}
		b.locked = true
	}
	// 3. A target.
	b.decision = ix.profile.Place(ix.world, req)
	switch b.decision.Outcome {
	case placement.Placed:
		b.assign = true
		takes := p.stats.expected(agent) // as is known now, and not when it was queued
		b.entry.Cost = admission.Charge(agent, takes)
		walk.Take(b.entry)
		ix.world.Assume(b.decision.Node, req, now.Add(takes))
		// The tallies count it at once, so that the next decision of this pass sees it.
		t := ix.runs[e.ID]
		ix.count(t, -1, 1, 0)
		ix.queue.Occupy(e.ID, e.Tenant, e.Groups)
		t.state = run.Assigned
		if c.session != "" {
			ix.sessions[c.session] = e.ID
		}
		c.limit = ""
		p.sharesDirty = true
		return b, true
	case placement.Unschedulable:
		if now < ix.patient { // after a takeover, workers need a moment to show themselves
			break
		}
		b.park = true
		walk.Remove(e)
		return b, true
	case placement.NoCapacity:
		// What needs several slots finds them free at a time only if they are kept for it.
		if e.Slots > 1 && now.Sub(e.QueuedAt) >= p.cfg.Ageing {
			ix.profile.Reserve(ix.world, req)
		}
	}
	c.limit = b.decision.Message()
	walk.BlockClass(e.Class)
	if b.locked {
		p.busy.unlock(e.ID)
	}
	return b, false
}

// paused reports whether the agent, as it is declared now, may not start.
func (p *Plane) paused(agent string) bool {
	x := p.declared.get(fleet.KindAgent, agent)
	return x != nil && x.paused
}

// unassume takes back what a pass assumed for a run that was not written; with p.mu held.
func (ix *index) unassume(b *binding) {
	t := ix.runs[b.id]
	if t == nil {
		return
	}
	if b.assign && t.live == nil {
		ix.world.Release(b.id)
		ix.count(t, 1, -1, 0)
		ix.queue.Vacate(b.id)
		t.state = run.Queued
		if c := ix.classes[t.class]; c != nil && c.session != "" && ix.sessions[c.session] == b.id {
			delete(ix.sessions, c.session)
		}
		ix.queue.Correct(t.tenant, -b.entry.Cost)
	}
	ix.forget(b.id, t, nil)
}

// stepBind writes what a pass decided, in one commit, and answers arrivals. It returns the runs that are assigned now.
func (p *Plane) stepBind(ctx context.Context, bindings []binding, now run.Instant) []*run.Record {
	if len(bindings) == 0 {
		return nil
	}
	defer func() {
		for i := range bindings {
			if bindings[i].locked {
				p.busy.unlock(bindings[i].id)
			}
		}
	}()
	// 1. The records as they are.
	var ids []string
	for i := range bindings {
		if bindings[i].arrival == nil {
			ids = append(ids, bindings[i].id)
		}
	}
	records, errs := p.load(ctx, ids, false)
	// 2. The records as they will be.
	work := make([]*pending, len(bindings))
	units := make([]store.Unit, 0, len(bindings))
	unitOf := make([]int, 0, len(bindings))
	failures := make([]error, len(bindings))
	next := 0
	for i := range bindings {
		b := &bindings[i]
		pd := &pending{id: b.id}
		if b.arrival != nil {
			pd.rec = b.arrival.rec
			pd.events = pd.rec.Tail
			pd.unit.Writes = b.arrival.writes
		} else {
			if failures[i] = errs[next]; failures[i] == nil {
				pd.rec = records[next]
				pd.was = pd.rec.Seq
			}
			next++
		}
		if failures[i] == nil {
			failures[i] = p.bindEvents(pd, b, now)
		}
		if failures[i] != nil {
			continue
		}
		pd.write()
		pd.unit.Token = p.newID()
		work[i] = pd
		units, unitOf = append(units, pd.unit), append(unitOf, i)
	}
	// 3. Commit before start.
	for k, err := range p.store.Commit(ctx, units) {
		failures[unitOf[k]] = err
	}
	// 4. What was written is so; what was not is taken back.
	var assigned []*run.Record
	for i := range bindings {
		b := &bindings[i]
		if failures[i] != nil {
			p.unbind(ctx, b, failures[i])
			continue
		}
		pd := work[i]
		p.noted(ctx, pd.rec, pd.events)
		if b.arrival != nil {
			b.arrival.rec = pd.rec
			b.arrival.done(*b.arrival, nil)
		}
		if b.assign {
			assigned = append(assigned, pd.rec)
			p.mu.Lock()
			if t := p.ix.runs[b.id]; t != nil && t.live != nil {
				t.live.cost = b.entry.Cost
			}
			p.mu.Unlock()
		}
	}
	return assigned
}

// bindEvents folds what was decided.
func (p *Plane) bindEvents(pd *pending, b *binding, now run.Instant) error {
	switch {
	case b.assign:
		startBy := startByPoll
		if t := p.targetNamed(b.decision.Target); t != nil {
			switch t.Runtime {
			case fleet.RuntimeLocal, fleet.RuntimeHTTP:
				startBy = startByLocal
			case fleet.RuntimeCloudRun:
				startBy = startByCloud
			}
		}
		node := ""
		if b.decision.Node != b.decision.Target {
			node = b.decision.Node
		}
		return pd.fold([]run.Event{{
			Type: run.EvAssigned, At: now, Attempt: pd.rec.Attempt + 1, Target: b.decision.Target, Worker: b.decision.Worker, Node: node,
			Detail: b.decision.Encode(), Due: now.Add(startBy),
		}}, now)
	case b.park:
		return pd.fold([]run.Event{{
			Type: run.EvUnschedulable, At: now, Reason: run.NoEligibleTarget, Message: b.decision.Message(),
			Detail: b.decision.Encode(), Due: now.Add(p.cfg.Flush),
		}}, now)
	}
	return nil
}

// unbind handles a binding that was not written: its slot is free again and the run, if it is still in the queue, comes
// with the next pass.
func (p *Plane) unbind(ctx context.Context, b *binding, err error) {
	p.mu.Lock()
	if b.entry.ID != "" {
		p.ix.unassume(b)
	}
	p.mu.Unlock()
	p.records.drop(b.id)
	var state *run.StateError
	switch {
	case b.arrival != nil:
		b.arrival.done(*b.arrival, err)
	case !errors.Is(err, store.ErrConflict) && !errors.As(err, &state):
		p.log.WarnContext(ctx, "write a placement", "run", b.id, "error", err)
	}
	// It is read again: what it is now decides where it belongs. Also of an arrival nobody knows, after an outage,
	// whether it was written.
	p.doubt(b.id)
}

// doubt lets the leader's next pass read a run again of which the index may know less than the store.
func (p *Plane) doubt(id string) {
	if !p.leads() {
		p.tellRun(id)
		return
	}
	p.mu.Lock()
	p.ix.left = append(p.ix.left, id)
	p.mu.Unlock()
	p.wake()
}

// unpark puts unschedulable runs back into the queue that a changed fleet could take: one decision per class.
func (p *Plane) unpark(ctx context.Context) {
	p.mu.Lock()
	ix := p.ix
	if !ix.fleetChanged {
		p.mu.Unlock()
		return
	}
	ix.fleetChanged = false
	var edits []edit
	for k, ids := range ix.parked {
		c := ix.classes[k]
		if c == nil || c.agent == nil {
			continue
		}
		agent := c.agent.object.(*fleet.Agent)
		req := &placement.Request{Run: &run.Record{Spec: run.Spec{Agent: agent.Name(), Revision: c.agent.revision, Tenant: c.tenant}}, Agent: agent, Tenant: p.tenantOf(c.tenant)}
		if ix.profile.Place(ix.world, req).Outcome == placement.Unschedulable {
			continue
		}
		for id := range ids {
			edits = append(edits, edit{id: id, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
				if rec.State != run.Unschedulable {
					return draft{}, nil
				}
				return draft{events: []run.Event{{Type: run.EvRequeued, At: now, Due: p.queueEnd(ctx, rec, now)}}}, nil
			}})
		}
	}
	p.mu.Unlock()
	for _, o := range p.changeAll(ctx, edits) {
		if o.err != nil {
			p.log.WarnContext(ctx, "wake an unschedulable run", "error", o.err)
		}
	}
}

// knownOf is how much of each run's history this process knows; nothing of a run that it has not seen lately.
func (p *Plane) knownOf(ids []string) map[string]int64 {
	known := make(map[string]int64, len(ids))
	for _, id := range ids {
		if r := p.records.get(id); r != nil {
			known[id] = r.Seq
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if t := p.ix.runs[id]; t != nil {
			known[id] = max(known[id], t.seq)
		}
	}
	return known
}

// heard tells who looks here of what others have written: whoever wrote an event has counted it for outsiders.
func (p *Plane) heard(r *run.Record, known int64) {
	if r.Seq <= known {
		return
	}
	fresh := r.Tail
	for len(fresh) > 0 && fresh[0].Seq <= known {
		fresh = fresh[1:]
	}
	// A run that has ended here, and is not known any more, was counted when it ended.
	if known > 0 || !r.State.Terminal() || !p.store.Exclusive() {
		p.stats.observe(r, fresh)
	}
	p.watch.tell(Change{Run: r})
}

// reread brings runs back into the index that it could not hold or that changed under a pass. It reports whether all of
// them could be read.
func (p *Plane) reread(ctx context.Context, now run.Instant) (all bool) {
	p.mu.Lock()
	ids := p.ix.left
	p.ix.left = nil
	p.mu.Unlock()
	all = true
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var assigned []*run.Record
	for len(ids) > 0 {
		n := min(len(ids), store.MaxPage)
		known := p.knownOf(ids[:n])
		records, errs := p.load(ctx, ids[:n], true)
		for i, r := range records {
			var refusal *Refusal
			err := errs[i]
			if err == nil && r.Kind == run.KindAgent {
				// The declaration that the run keeps must be in memory before the run is queued.
				_, err = p.agentAt(ctx, r.Agent, r.Revision)
			}
			switch {
			case errors.As(err, &refusal) && r == nil: // it was never written, or is removed
				p.mu.Lock()
				p.ix.set(p, &run.Record{Spec: run.Spec{ID: ids[i]}, UpdatedAt: now}, true)
				p.mu.Unlock()
				continue
			case err != nil && refusal == nil: // an outage: again when the loop comes by, in a second at the latest
				all = false
				p.mu.Lock()
				p.ix.left = append(p.ix.left, ids[i])
				p.mu.Unlock()
				continue
			case refusal != nil && !r.State.Terminal():
				p.change(ctx, edit{id: r.ID, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
					var d draft
					return d, p.end(ctx, &d, rec, run.Event{Type: run.EvFailed, At: now, Attempt: rec.Attempt, Reason: run.AgentDeleted, Message: refusal.Detail})
				}})
				continue
			}
			p.mu.Lock()
			t := p.ix.runs[r.ID]
			if r.State == run.Assigned && (t == nil || t.live == nil) { // its placement was written after all
				assigned = append(assigned, r)
			}
			_, next := p.ix.set(p, r, false)
			p.mu.Unlock()
			p.follow(ctx, r.ID, next)
			p.heard(r, known[r.ID])
		}
		ids = ids[n:]
	}
	p.stepDeliver(ctx, assigned)
	return all
}
