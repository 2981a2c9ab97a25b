package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Deliver stage: hands durable assignments to their executors. Runs of agents that pull leases wait in their node's
// outbox; the others are started by the target's runtime.

// stepDeliver hands over attempts that were just assigned.
func (p *Plane) stepDeliver(ctx context.Context, assigned []*run.Record) {
	pulled := make(map[string][]string)
	for _, r := range assigned {
		agent := p.agentOf(ctx, r)
		target := p.targetNamed(r.Target)
		if agent == nil || target == nil {
			p.change(ctx, p.lost(r.ID, r.Attempt, fmt.Sprintf("agent %s or target %s is not declared any more", r.Agent, r.Target), false))
			continue
		}
		pulls := target.Runtime == fleet.RuntimePoll || target.Runtime == fleet.RuntimeLocal && agent.Run.Protocol == fleet.Worker
		if pulls {
			node := nodeOf(r)
			pulled[node] = append(pulled[node], r.ID)
		}
		if rt := p.cfg.Runtimes[target.Runtime]; rt != nil {
			p.startOn(ctx, rt, r, agent, target, pulls, false)
		} else if !pulls {
			p.change(ctx, p.refusedStart(r.ID, r.Attempt, fmt.Sprintf("this server has no runtime %s", target.Runtime)))
		}
	}
	p.mu.Lock()
	for node, ids := range pulled {
		p.ix.offer(node, ids)
	}
	p.mu.Unlock()
}

// startOn lets a runtime start an attempt, or make sure that a worker comes to fetch it, without holding up the loop; again
// for an attempt that was handed over before.
func (p *Plane) startOn(ctx context.Context, rt runtime.Runtime, r *run.Record, agent *fleet.Agent, target *fleet.Target, pulls, again bool) {
	reminds := isHandOver(target, agent) && agent.Shape == fleet.Pool
	if reminds {
		p.remind(r.ID, r.Attempt, again, true)
	}
	p.starts.Add(1)
	p.cfg.Go(func() {
		defer p.starts.Done()
		if reminds {
			defer p.remind(r.ID, r.Attempt, false, false)
		}
		p.startCh <- struct{}{}
		defer func() { <-p.startCh }()
		a := runtime.Assignment{
			Run: r.ID, N: r.Attempt, Agent: agent, Target: target, Worker: r.Worker, Tenant: r.Tenant, Unit: r.WorkUnit(), Mode: modeOf(r),
		}
		if isHandOver(target, agent) {
			a.Deadline, a.Trace = r.Due, r.Trace
			a.Ticket = p.signs.Ticket(a.ID(), r.Due.Time())
		} else if !pulls {
			full, err := p.assignment(ctx, r, agent, target)
			if err != nil {
				p.log.WarnContext(ctx, "prepare an attempt", "run", r.ID, "error", err)
				p.change(ctx, p.unprepared(r.ID, r.Attempt, err, p.refusedStart(r.ID, r.Attempt, err.Error())))
				return
			}
			a = full
			p.markHanded(r.ID, r.Attempt)
		}
		err := rt.Start(ctx, a)
		switch {
		case err == nil && again:
			p.log.InfoContext(ctx, "nobody has claimed an attempt yet; it was handed over once more", "run", r.ID, "attempt", r.Attempt)
		case err == nil:
		case errors.Is(err, runtime.ErrRefused) && !again: // that of a copy says nothing of what was sent before it
			p.change(ctx, p.refusedStart(r.ID, r.Attempt, err.Error()))
		default:
			// Nobody knows whether it began: its start must be confirmed in time, or it counts as lost.
			p.log.WarnContext(ctx, "start an attempt", "run", r.ID, "attempt", r.Attempt, "error", err)
		}
	})
}

// remindAfter is how long a message that hands an attempt to a pool waits to be claimed before it is sent once more, by how
// often it was sent again. The broker may have given it to a worker that has died, and lets nobody else have it until that
// lease is over; whoever gets a second copy finds that the attempt is claimed.
var remindAfter = [...]time.Duration{2 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second}

// remind notes that an attempt is being handed over, or was, and when to do so again unless it is claimed.
func (p *Plane) remind(id string, n int, again, sending bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.ix.runs[id]
	if t == nil || t.live == nil || t.live.n != n || t.live.state != run.Assigned {
		return
	}
	l := t.live
	if l.sending = sending; again {
		l.reminded++
	}
	if l.reminded < len(remindAfter) {
		p.ix.reminders.set(id, p.now().Add(remindAfter[l.reminded]))
	}
}

// stepRemind hands over once more what no worker of its pool has claimed.
func (p *Plane) stepRemind(ctx context.Context, now run.Instant) {
	var ids []string
	p.mu.Lock()
	for _, id := range p.ix.reminders.due(now, maxPass) {
		t := p.ix.runs[id]
		switch {
		case t == nil || t.live == nil || t.live.state != run.Assigned:
		case t.live.sending: // the bus is slow: what it has not taken yet needs no copy
			p.ix.reminders.set(id, now.Add(remindAfter[0]))
		default:
			ids = append(ids, id)
		}
	}
	p.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	records, errs := p.load(ctx, ids, false)
	for i, r := range records {
		if errs[i] != nil || r.State != run.Assigned {
			continue // it ends at its time, as one that nobody takes
		}
		agent, target := p.agentOf(ctx, r), p.targetNamed(r.Target)
		if agent == nil || target == nil || p.cfg.Runtimes[target.Runtime] == nil {
			continue
		}
		p.startOn(ctx, p.cfg.Runtimes[target.Runtime], r, agent, target, false, true)
	}
}

// refusedStart is the edit for a start that certainly did not come about.
func (p *Plane) refusedStart(id string, n int, why string) edit {
	return edit{id: id, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		var d draft
		if rec.State != run.Assigned || rec.Attempt != n {
			return d, nil
		}
		// It backs off like a failed attempt, for the next try would meet the same: but it spends nothing.
		return d, p.failed(ctx, &d, rec, startFailure(why), nil, true, now)
	}}
}

// unprepared is the edit for an attempt that could not be made ready for its executor. What is gone from the store does not
// come back, so the run ends; else it is as otherwise says.
func (p *Plane) unprepared(id string, n int, err error, otherwise edit) edit {
	if !errors.Is(err, ErrValueGone) {
		return otherwise
	}
	return edit{id: id, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		var d draft
		if !rec.Live() || rec.Attempt != n {
			return d, nil
		}
		e := run.Event{
			Type: run.EvFailed, At: now, Attempt: n, Reason: run.StartFailed, Class: run.ClassInfrastructure, Code: string(run.StartFailed),
			Message: run.Clip("its input: "+err.Error(), run.MaxMessage), Sure: true,
		}
		if rec.State == run.Canceling {
			e.Type, e.Reason, e.Class = run.EvCanceled, rec.Reason, run.ClassCanceled
		}
		return d, p.end(ctx, &d, rec, e)
	}}
}

func (p *Plane) markHanded(id string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.ix.runs[id]; t != nil && t.live != nil && t.live.n == n {
		t.live.handed = p.now()
	}
}

// stepConfirm writes the starts of attempts that were handed over a moment ago and go on. Shorter ones write their
// start together with their end.
func (p *Plane) stepConfirm(ctx context.Context, now run.Instant) {
	p.mu.Lock()
	var edits []edit
	n := 0
	for ; n < len(p.ix.confirms) && n < maxPass && p.ix.confirms[n].at <= now; n++ {
		c := p.ix.confirms[n]
		t := p.ix.runs[c.id]
		if t == nil || t.live == nil || t.live.n != c.n || t.live.state != run.Assigned {
			continue
		}
		edits = append(edits, edit{id: c.id, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
			if rec.State != run.Assigned || rec.Attempt != c.n {
				return draft{}, nil
			}
			return draft{events: []run.Event{p.startEvent(ctx, rec, "", now)}}, nil
		}})
	}
	p.ix.confirms = p.ix.confirms[n:]
	if len(p.ix.confirms) == 0 {
		p.ix.confirms = nil
	}
	p.mu.Unlock()
	for _, o := range p.changeAll(ctx, edits) {
		if o.err != nil {
			p.log.WarnContext(ctx, "confirm a start", "error", o.err)
		}
	}
}

// assignments prepares what a worker took.
func (p *Plane) assignments(ctx context.Context, ids []string) ([]runtime.Assignment, error) {
	records, errs := p.load(ctx, ids, false)
	out := make([]runtime.Assignment, 0, len(ids))
	for i, r := range records {
		err := errs[i]
		if err == nil && !r.Live() {
			continue
		}
		if err == nil {
			agent, target := p.agentOf(ctx, r), p.targetNamed(r.Target)
			if agent == nil || target == nil {
				err = fmt.Errorf("agent %s or target %s is not declared any more", r.Agent, r.Target)
			} else {
				var a runtime.Assignment
				if a, err = p.assignment(ctx, r, agent, target); err == nil {
					out = append(out, a)
					continue
				}
			}
		}
		// This one cannot be handed over; the others can.
		p.log.WarnContext(ctx, "prepare an attempt", "run", ids[i], "error", err)
		if r != nil {
			p.change(ctx, p.unprepared(r.ID, r.Attempt, err, p.lost(r.ID, r.Attempt, "it could not be handed over: "+err.Error(), true)))
		}
	}
	return out, nil
}

// assignment is an attempt as its executor sees it: with its input, what earlier attempts recorded, and its token.
func (p *Plane) assignment(ctx context.Context, r *run.Record, agent *fleet.Agent, target *fleet.Target) (runtime.Assignment, error) {
	now := p.cfg.Clock()
	a := runtime.Assignment{
		Run: r.ID, N: r.Attempt, Agent: agent, Target: target, Worker: r.Worker, Tenant: r.Tenant, Unit: r.WorkUnit(), Mode: modeOf(r),
		Labels: r.Labels, Trace: r.Trace, Session: r.Session, Silence: agent.Timeouts.Heartbeat.Std(),
		Deadline: run.Earliest(run.At(now).Add(p.attemptTimeout(ctx, r)), r.Deadline),
	}
	var err error
	if r.Mode == run.ModeCompensate {
		if err := p.handReceipts(ctx, r, &a); err != nil {
			return a, err
		}
		a.Token, err = p.signs.sign(grant(r, agent), now, p.tokenExpiry(a.Deadline))
		return a, err
	}
	if a.Input, err = p.Value(ctx, r.Input); err != nil {
		return a, err
	}
	if p.mayHaveSteps(r) {
		if a.Steps, err = p.stepsOf(ctx, r.ID); err != nil {
			return a, err
		}
	}
	if key := sessionKey(r); key != "" {
		if a.State, _, err = p.session(ctx, key); err != nil {
			return a, err
		}
	}
	a.Token, err = p.signs.sign(grant(r, agent), now, p.tokenExpiry(a.Deadline))
	return a, err
}

// mayHaveSteps reports whether steps of the run may be recorded: all but surely none are of a first attempt that this
// process has assigned. One that it took over may have recorded some, and be handed over again.
func (p *Plane) mayHaveSteps(r *run.Record) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.ix.runs[r.ID]
	return t == nil || t.live == nil || t.live.n != r.Attempt || t.live.steps != 0
}

// stepsOf reads a run's recorded steps in the order in which they ended.
func (p *Plane) stepsOf(ctx context.Context, id string) ([]runtime.Step, error) {
	var steps []runtime.Step
	after := ""
	for {
		docs, err := p.store.Owned(ctx, store.KindStep, id, after, store.MaxPage)
		if err != nil {
			return nil, fmt.Errorf("read the steps of run %s: %w", id, err)
		}
		for _, doc := range docs {
			var s runtime.Step
			if err := json.Unmarshal(doc.Body, &s); err != nil {
				return nil, fmt.Errorf("decode step %s: %w", doc.ID, err)
			}
			steps = append(steps, s)
			after = doc.ID
		}
		if len(docs) < store.MaxPage {
			sortSteps(steps)
			return steps, nil
		}
	}
}

// session reads a session's state and its document's version; version 0 for a new session.
func (p *Plane) session(ctx context.Context, key string) (json.RawMessage, int64, error) {
	doc, err := p.store.Get(ctx, store.KindSession, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read session %s: %w", key, err)
	}
	return doc.Body, doc.Version, nil
}

// keepSession adds the session's new state to the unit that ends its turn.
func (p *Plane) keepSession(ctx context.Context, d *draft, rec *run.Record, state json.RawMessage) error {
	key := sessionKey(rec)
	if key == "" || len(state) == 0 {
		return nil
	}
	limit := int64(1 << 20)
	if a := p.agentOf(ctx, rec); a != nil && a.Session.MaxBytes > 0 {
		limit = int64(a.Session.MaxBytes)
	}
	if int64(len(state)) > limit {
		return fmt.Errorf("the session's state has %d bytes, %d at most (session.maxBytes): %w", len(state), limit, runtime.ErrInvalid)
	}
	if !json.Valid(state) {
		return fmt.Errorf("the session's state is not JSON: %w", runtime.ErrInvalid)
	}
	_, version, err := p.session(ctx, key)
	if err != nil {
		return err
	}
	d.writes = append(d.writes, store.Write{Expect: version, Doc: store.Doc{Kind: store.KindSession, ID: key, Version: version + 1, Body: state}})
	return nil
}

// saveSession keeps a snapshot outside of a turn.
func (p *Plane) saveSession(ctx context.Context, key string, state json.RawMessage) error {
	if len(state) > runtime.MaxStepResult || !json.Valid(state) {
		return refuse(CodeInvalid, "snapshot of session %s: want JSON of up to %d bytes", key, runtime.MaxStepResult)
	}
	p.mu.Lock()
	busy := p.ix.sessions[key] != ""
	p.mu.Unlock()
	if busy {
		return nil // its turn will save a newer state than the snapshot
	}
	_, version, err := p.session(ctx, key)
	if err != nil {
		return err
	}
	unit := store.Unit{Token: p.newID(), Writes: []store.Write{{Expect: version, Doc: store.Doc{Kind: store.KindSession, ID: key, Version: version + 1, Body: state}}}}
	if err := p.store.Commit(ctx, []store.Unit{unit})[0]; err != nil && !errors.Is(err, store.ErrConflict) {
		return fmt.Errorf("save session %s: %w", key, err)
	}
	return nil
}

// SaveSession keeps a session's state that a runtime's stopping instance handed over. key is TENANT/AGENT/NAME.
func (p *Plane) SaveSession(ctx context.Context, key string, state json.RawMessage) error {
	if strings.Count(key, "/") != 2 {
		return refuse(CodeInvalid, "session %.80q: want TENANT/AGENT/NAME", key)
	}
	return p.saveSession(ctx, key, state)
}
