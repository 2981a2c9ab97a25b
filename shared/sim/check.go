package sim

import (
	"bytes"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// wroteRun checks a written record against the one before it and against its own history.
func (l *ledger) wroteRun(p *process, d *store.Write) {
	w := l.w
	rec, err := run.DecodeRecord(d.Body)
	if err != nil {
		w.fail("records can be read", "%v", err)
	}
	k := l.runs[d.ID]
	if k == nil {
		k = &known{}
		l.runs[d.ID] = k
		l.order = append(l.order, d.ID)
	}
	before := k.rec
	if before == nil && rec.Parent != "" {
		l.called(rec)
	}
	// 1. Its new events, one by one.
	events := rec.Tail
	for len(events) > 0 && before != nil && events[0].Seq <= before.Seq {
		events = events[1:]
	}
	if len(events) == 0 {
		w.fail("every write has an event", "run %s", d.ID)
	}
	for i := range events {
		e := &events[i]
		l.happened(k, d.ID, e, rec)
		if e.Type == run.EvAssigned {
			k.rec = k.folded
			l.placed(p, k, len(events) > 2 && events[0].Type == run.EvSubmitted && events[len(events)-1].Type == run.EvStarted)
		}
	}
	// 2. The history folds to the record.
	folded := *k.folded
	folded.Tail = rec.Tail
	if a := run.Encode(&folded); !bytes.Equal(a, d.Body) && !bytes.Equal(a, run.Encode(rec)) {
		w.fail("a history folds to its record", "run %s:\n%+v\n%+v", d.ID, &folded, rec)
	}
	k.rec = rec
	if w.temper.fair {
		state := run.State("")
		if before != nil {
			state = before.State
		}
		l.shared(k, state, events)
	}
	// 3. What it is found by.
	x := d.Index
	switch {
	case d.Version != rec.Seq, x == nil, x.Tenant != rec.Tenant, x.Agent != rec.Agent, x.CreatedAt != int64(rec.CreatedAt), x.WakeAt != int64(rec.WakeAt()):
		w.fail("a run is found by what it is", "run %s, version %d, %+v", d.ID, d.Version, x)
	case x.Attempt != int64(holderOf(rec)), (x.Worker != "") != rec.Live():
		w.fail("the fence is the attempt that holds the run", "run %s in state %s, attempt %d: %+v", d.ID, rec.State, rec.Attempt, x)
	}
	w.say("  %s -> %s %s", rec.ID, rec.State, rec.Reason)
}

// holderOf is the attempt that may still report, in plain words; 0 for none.
func holderOf(r *run.Record) int {
	switch {
	case r.State == run.Assigned, r.State == run.Running:
		if r.Stop != nil {
			return 0
		}
		return r.Attempt
	case r.State == run.Canceling && r.Target != "":
		return r.Attempt
	}
	return 0
}

// happened checks one event against the run as it was before it.
func (l *ledger) happened(k *known, id string, e *run.Event, rec *run.Record) {
	w := l.w
	if e.Seq != int64(len(k.events))+1 {
		w.fail("a history has no gap", "run %s: event %d after %d", id, e.Seq, len(k.events))
	}
	if n := len(k.events); n > 0 && e.At < k.events[n-1].At {
		w.fail("time never runs backwards in a history", "run %s: %s at %d after %d", id, e.Type, e.At, k.events[n-1].At)
	}
	k.events = append(k.events, *e)
	w.saw("event " + string(e.Type))
	if e.Type == run.EvFailed {
		w.saw("run failed with " + string(e.Reason))
	}
	if k.folded == nil {
		k.folded = run.New(rec.Spec, *e)
		k.folded.Tail = nil
		return
	}
	before := k.folded
	switch {
	case before.State.Terminal() && e.Type != run.EvScored:
		w.fail("what is terminal is final", "run %s was %s, then %s", id, before.State, e.Type)
	case e.Type == run.EvAssigned && (e.Attempt != before.Attempt+1 || before.State != run.Queued):
		w.fail("attempt numbers rise by one", "run %s in state %s: attempt %d after %d", id, before.State, e.Attempt, before.Attempt)
	}
	if err := run.Decide(before, e); err != nil {
		w.fail("every transition is in the table", "run %s: %v", id, err)
	}
	if e.Type == run.EvWoken && before.Park != nil && before.Park.On == run.OnChildren {
		l.joined(before)
	}
	l.timeIsOver(k, before, e)
	if e.Usage != nil {
		k.usage = k.usage.Plus(*e.Usage)
	}
	next := before.Clone()
	run.Evolve(next, *e)
	next.Tail = nil
	k.folded = next
	if e.Type == run.EvFailed || e.Type == run.EvCanceled {
		l.endedUndone(next)
	}
	if next.Usage != k.usage {
		w.fail("spend is the sum over attempts", "run %s: %+v, its attempts %+v", id, next.Usage, k.usage)
	}
}

// placed checks an assignment as it is written: to a target that could take it, within every bound.
// One that began by itself is not placed, but a fact.
func (l *ledger) placed(p *process, k *known, begun bool) {
	w, r := l.w, k.rec
	k.placedBy, k.placedAt, k.boot, k.liveAt = p.name, l.writes, p.boots, w.passed
	if begun {
		k.unheard = w.temper.two && l.stray(p)
		return
	}
	cur := r.Current()
	agent := w.fleet.agents[revisionOf(r)]
	if agent == nil {
		w.fail("a run keeps its agent", "run %s: there is no %s", r.ID, revisionOf(r))
	}
	target, workerID := targetOfNode(cur.Node)
	if target == "" {
		target = cur.Target
	}
	// 1. The target, as it is or, where another process may have changed it unheard, as it ever was.
	versions := w.fleet.targets[target]
	if target == "workers" {
		versions = []*fleet.Target{openTarget}
	}
	if !w.temper.two && len(versions) > 0 {
		versions = versions[len(versions)-1:]
	}
	why, capacity := "is not declared", 0
	for _, t := range versions {
		if why = fits(agent, r.Tenant, t); why == "" {
			break
		}
	}
	if why != "" {
		w.fail("a run is assigned to a target that fits", "run %s of %s to %s, which %s", r.ID, r.Agent, target, why)
	}
	for _, t := range versions {
		if t != nil {
			capacity = max(capacity, t.Capacity.Runs)
		}
	}
	if workerID != "" {
		h, heard := p.heard[workerID]
		switch {
		case !heard, h.target != target && !(h.target == "" && target == "workers"):
			w.fail("a run is assigned to a worker that is there", "run %s to %s", r.ID, cur.Node)
		case !contains(h.agents, r.Agent):
			w.fail("a run is assigned to a worker that serves it", "run %s of %s to %s", r.ID, r.Agent, cur.Node)
		case h.draining && !w.temper.two: // who takes over hears of it with the next heartbeat
			w.fail("a draining worker gets no run", "run %s to %s", r.ID, cur.Node)
		}
		capacity = h.slots
	}
	// 2. Bounds, over all that is live. The runs of one agent's session take turns.
	if w.temper.two && l.stray(p) {
		return // a process that lost the lead while it hung may still place what it had decided
	}
	slots, ofTenant, ofAgent, turns := 0, 0, 0, 0
	ofGroup := make(map[string]int)
	for _, other := range l.runs {
		o := other.rec
		if !o.Live() {
			continue
		}
		if node := o.Current(); (node.Node == cur.Node && node.Target == cur.Target) && w.fleet.agents[revisionOf(o)] != nil {
			slots += max(w.fleet.agents[revisionOf(o)].Needs.Slots, 1)
		}
		if o.Tenant == r.Tenant {
			ofTenant++
			for _, g := range o.Groups {
				ofGroup[g.Key]++
			}
		}
		if o.Agent == r.Agent {
			ofAgent++
			if r.Session != "" && o.Tenant == r.Tenant && o.Session == r.Session {
				turns++
			}
		}
	}
	switch {
	case slots > capacity:
		w.fail("no target is above its capacity", "run %s makes %d slots of %d on %s%s", r.ID, slots, capacity, cur.Target, cur.Node)
	case turns > 1:
		w.fail("the turns of a session come one by one", "run %s of session %s", r.ID, r.Session)
	}
	for _, g := range r.Groups {
		if w.saw("run of a group placed"); ofGroup[g.Key] > g.Max {
			w.fail("no group is above its limit", "run %s makes %d of %d of group %s", r.ID, ofGroup[g.Key], g.Max, g.Key)
		}
	}
	if most := w.fleet.quota(r.Tenant, l.led, w.temper.two); most > 0 && ofTenant > most {
		w.fail("no tenant is above its quota", "run %s makes %d of %d for %s", r.ID, ofTenant, most, r.Tenant)
	}
	if agent.Concurrency.Max > 0 && ofAgent > agent.Concurrency.Max {
		w.fail("no agent is above its concurrency", "run %s makes %d of %s", r.ID, ofAgent, r.Agent)
	}
	if w.temper.two {
		return // what the other process has declared may not be known here
	}
	if w.fleet.paused[r.Agent] {
		w.fail("a paused agent starts nothing", "run %s of %s", r.ID, r.Agent)
	}
}

// stray reports whether the process is not, or not alone, the one that decides: it lost the lease, or another process
// placed a run since it took it.
func (l *ledger) stray(p *process) bool {
	if l.leader != p.name {
		return true
	}
	for _, k := range l.runs {
		if k.rec.Live() && k.placedBy != p.name && k.placedAt > l.led {
			return true
		}
	}
	return false
}

var openTarget = func() *fleet.Target {
	t := targetOf("workers", nil)
	t.SetDefaults()
	return t
}()

// settled checks a process that has nothing more to do at this instant and is alone with the store.
func (l *ledger) settled(p *process) {
	w := l.w
	if w.temper.two || !p.leads() {
		return
	}
	// 1. Its counts are what the records say, looked at now and then: what is wrong there stays wrong.
	if l.looks++; l.looks%4 == 0 || w.healing {
		l.derived(p)
	}
	l.silent(p)
	// 2. Nothing is overdue, unless a fault has made the process try again in a moment.
	if p.set || w.passed-p.store.met < 5*time.Second && p.store.met > 0 {
		return
	}
	now := p.now()
	for _, id := range l.order {
		k := l.runs[id]
		if k == nil {
			continue
		}
		due := dueOf(k.rec)
		if k.rec.Deadline != 0 && due == k.rec.Deadline && k.clock.stoodBy(w.passed) > 0 {
			if due = l.endsAt(k); w.seen["clock set"] > 0 {
				continue // in true time it is another one
			}
		}
		switch k.rec.State {
		case run.Unschedulable:
			due = k.rec.Deadline
		case run.Succeeded, run.Failed, run.Canceled:
			due = 0 // removal is nobody's hurry, and waits for what came of the run
		}
		if due != 0 && due.Add(2*time.Second) < now {
			w.fail("what is due is done", "run %s is %s, due %s ago", id, k.rec.State, now.Sub(due))
		}
	}
	l.families()
	l.flows()
}

// dueOf is when a run must be looked at though nothing happens to it; 0 for never.
func dueOf(r *run.Record) run.Instant {
	switch {
	case r.State == run.Compensating: // its time is over; what undoes it has its own
		return 0
	case r.State == run.Queued, r.State == run.Waiting, r.Kind != run.KindAgent && !r.State.Terminal():
		return run.Earliest(r.Due, r.Deadline)
	}
	if r.State == run.Suspended {
		return r.Deadline
	}
	return r.WakeAt()
}

// derived: slots are derived, nothing is counted twice or left behind.
func (l *ledger) derived(p *process) {
	w := l.w
	queued, live := map[string]int{}, map[string]int{}
	onTarget, onNode := map[string]int{}, map[string]int{}
	for _, k := range l.runs {
		switch r := k.rec; {
		case r.State == run.Queued:
			queued[r.Agent]++
		case r.Live():
			if r.Target == localTarget && k.boot != p.boots {
				w.fail("no attempt of a dead server is left", "run %s, attempt %d", r.ID, r.Attempt)
			}
			live[r.Agent]++
			onTarget[r.Target]++
			node := r.Current().Node
			if node == "" {
				node = r.Target
			}
			onNode[node] += max(w.fleet.agents[revisionOf(r)].Needs.Slots, 1)
		}
	}
	agents, err := p.plane.Declared(w.ctx, fleet.KindAgent)
	targets, err2 := p.plane.Declared(w.ctx, fleet.KindTarget)
	if err != nil || err2 != nil {
		w.fail("the fleet is listed", "%v, %v", err, err2)
	}
	for _, a := range agents {
		if name := a.Object.Name(); a.Queued != queued[name] || a.Running != live[name] {
			w.fail("the index says what the records say", "agent %s: %d queued and %d live, records say %d and %d", name, a.Queued, a.Running, queued[name], live[name])
		}
	}
	for _, t := range targets {
		if name := t.Object.Name(); t.Running != onTarget[name] {
			w.fail("the index says what the records say", "target %s: %d live, records say %d", name, t.Running, onTarget[name])
		}
	}
	for _, n := range p.plane.Stats(time.Second, "", "").Targets {
		if n.Used != onNode[n.Name] {
			w.fail("a slot in use is a live run's", "%s: %d in use, records say %d", n.Name, n.Used, onNode[n.Name])
		}
	}
}

// silent: a worker that says nothing for its lease has lost its runs. With a renewal every third of it, that is within
// 20 seconds of its end.
func (l *ledger) silent(p *process) {
	w := l.w
	for _, k := range l.runs {
		if !k.rec.Live() {
			continue
		}
		cur := k.rec.Current()
		_, id := targetOfNode(cur.Node)
		if id == "" || cur.Worker == "" {
			continue
		}
		last := max(p.heard[id].at, p.lastWord[id], p.upAt, p.calmAt, k.liveAt)
		if w.passed-last > workerLease+time.Second {
			w.fail("a worker that vanished loses its runs", "run %s is %s on %s, which said its last word %s ago", k.rec.ID, k.rec.State, cur.Node, w.passed-last)
		}
	}
}

func revisionOf(r *run.Record) string {
	return r.Agent + "@" + itoa(r.Revision)
}
