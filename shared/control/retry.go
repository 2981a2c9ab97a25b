package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/retry"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Retry stage: an attempt failed; the written policy says what follows.

// failed adds what follows a failed attempt: another one later, or the end with a reason. sure says that nothing of the
// attempt can act any more.
func (p *Plane) failed(ctx context.Context, d *draft, rec *run.Record, f retry.Failure, usage *run.Usage, sure bool, now run.Instant) error {
	var policy fleet.Retry
	if a := p.agentOf(ctx, rec); a != nil {
		policy = a.Retry
	}
	if f.Code == string(run.StartFailed) && startFailures(rec) >= maxStartFailures-1 {
		return p.end(ctx, d, rec, run.Event{
			Type: run.EvFailed, At: now, Attempt: rec.Attempt, Reason: run.StartFailed, Class: f.Class, Code: f.Code,
			Message: fmt.Sprintf("its start failed %d times in a row: %s", maxStartFailures, f.Message), Sure: sure,
		})
	}
	// 1. The policy sees the attempt as started, if the draft starts it.
	seen := rec
	if len(d.events) > 0 {
		seen = rec.Clone()
		for _, e := range d.events {
			if err := run.Decide(seen, &e); err != nil {
				return err
			}
			run.Evolve(seen, e)
		}
	}
	v := retry.Decide(policy, seen, f, now, p.cfg.Random())
	e := run.Event{
		At: now, Attempt: rec.Attempt, Class: f.Class, Code: f.Code, Message: f.Message, Usage: usage,
		Unspent: v.Unspent, Sure: sure,
	}
	if v.Message != "" {
		e.Message = v.Message
	}
	// 2. Another attempt.
	if v.Action != retry.Fail {
		e.Type, e.Due, e.Reason = run.EvBackedOff, v.Due, v.Reason
		d.events = append(d.events, e)
		return nil
	}
	// 3. The end.
	e.Type, e.Reason = run.EvFailed, v.Reason
	return p.end(ctx, d, rec, e)
}

// maxStartFailures is how often in a row a start may be refused (a build that fails, a command that is not there) before
// the run fails. They spend no attempt, so the retry policy does not bound them.
const maxStartFailures = 5

// startFailures counts the newest attempts in a row that never started.
func startFailures(rec *run.Record) int {
	n := 0
	for i := len(rec.Attempts) - 1; i >= 0; i-- {
		switch a := &rec.Attempts[i]; {
		case a.Code == string(run.StartFailed):
			n++
		case a.EndedAt != 0:
			return n
		}
	}
	return n
}

// lost is the edit for an attempt whose executor is gone or no longer has it. unspent gives it back: it certainly did
// not run.
func (p *Plane) lost(id string, n int, why string, unspent bool) edit {
	return edit{id: id, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		var d draft
		if !rec.Live() || rec.Attempt != n {
			return d, nil
		}
		switch {
		case rec.State == run.Canceling:
			return d, p.end(ctx, &d, rec, run.Event{Type: run.EvCanceled, Attempt: n, At: now, Reason: rec.Reason, Class: run.ClassCanceled, Usage: p.usageSoFar(id, n)})
		case rec.State == run.Assigned && !p.wasHanded(id, n):
			return d, p.startFailed(ctx, &d, rec, why, now)
		case unspent && rec.Stop == nil:
			return d, p.released(ctx, &d, rec, why, nil, true, now)
		case rec.State == run.Assigned:
			d.events = append(d.events, p.startEvent(ctx, rec, "", now))
		}
		f := retry.Failure{Class: run.ClassLost, Message: why}
		if rec.Stop != nil {
			f = retry.Failure{Class: rec.Stop.Class, Message: fmt.Sprintf("%s; %s", rec.Stop.Reason, why)}
		}
		return d, p.failed(ctx, &d, rec, f, p.usageSoFar(id, n), false, now)
	}}
}

// wasHanded reports whether an executor may have taken the attempt: also one that took it from the process before this
// one and has not shown itself since.
func (p *Plane) wasHanded(id string, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.ix.runs[id]
	return t != nil && t.live != nil && t.live.n == n && (t.live.handed != 0 || t.live.unsure)
}

func (p *Plane) usageSoFar(id string, n int) *run.Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.ix.runs[id]
	if t == nil || t.live == nil || t.live.n != n || t.live.usage == (run.Usage{}) {
		return nil
	}
	u := t.live.usage
	return &u
}

// startFailed gives an attempt back whose start certainly did not come about, up to the limit for poison.
func (p *Plane) startFailed(ctx context.Context, d *draft, rec *run.Record, why string, now run.Instant) error {
	if rec.Returned >= run.MaxReturned {
		return p.end(ctx, d, rec, run.Event{
			Type: run.EvFailed, At: now, Attempt: rec.Attempt, Reason: run.StartFailed, Class: run.ClassInfrastructure,
			Message: fmt.Sprintf("gave up after %d failed starts: %s", rec.Returned, why), Sure: true,
		})
	}
	d.events = append(d.events, run.Event{
		Type: run.EvStartFailed, At: now, Attempt: rec.Attempt, Class: run.ClassInfrastructure, Message: why,
		Due: p.queueEnd(ctx, rec, now), Sure: true,
	})
	return nil
}

// due is the edit for a run whose wake-up has come. It looks at the record again: a late or doubled wake-up finds
// nothing to do.
func (p *Plane) due(id string) edit {
	return edit{id: id, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		var d draft
		if rec.State.Terminal() {
			return d, nil
		}
		// 1. The run's own deadline, whatever it is doing, unless it moves for time in which the run waited for people.
		if rec.Deadline != 0 && rec.Deadline <= now && rec.State != run.Canceling && rec.State != run.Compensating {
			if p.mayMove(ctx, rec, now) {
				p.reckonLater(rec, now)
				return d, nil
			}
			if rec.State != run.Running || rec.Kind != run.KindAgent {
				return p.overdue(ctx, rec, now)
			}
		}
		over := rec.Due != 0 && rec.Due <= now
		switch rec.State {
		case run.Queued:
			if over {
				return d, p.end(ctx, &d, rec, run.Event{Type: run.EvFailed, At: now, Reason: run.QueueTimeout,
					Message: "no slot came free in the time that timeouts.queue gives"})
			}
		case run.Held, run.Backoff:
			if over {
				d.events = append(d.events, run.Event{Type: run.EvRequeued, At: now, Due: p.queueEnd(ctx, rec, now)})
			}
		case run.Unschedulable:
			return d, p.unschedulableDue(ctx, &d, rec, now)
		case run.Waiting:
			if over && rec.Park != nil && rec.Park.On == run.OnGate {
				return d, p.gateDue(ctx, &d, rec, now)
			}
			if over && rec.Park != nil {
				return d, p.woken(ctx, &d, rec, rec.Park, nil, now)
			}
		case run.Compensating:
			p.lookAt(id)
		case run.Canceling:
			if over {
				return d, p.end(ctx, &d, rec, run.Event{Type: run.EvCanceled, At: now, Attempt: rec.Attempt, Reason: rec.Reason,
					Class: run.ClassCanceled, Message: "the attempt did not confirm its end", Usage: p.usageSoFar(id, rec.Attempt)})
			}
		case run.Assigned:
			if over {
				if p.wasHanded(id, rec.Attempt) {
					d.events = append(d.events, p.startEvent(ctx, rec, "", now))
					return d, nil
				}
				return d, p.startFailed(ctx, &d, rec, "its start was not confirmed in time", now)
			}
		case run.Running:
			if rec.Kind != run.KindAgent {
				return d, nil
			}
			p.runningDue(&d, rec, over, now)
			if rec.Stop != nil && over {
				f := retry.Failure{Class: rec.Stop.Class, Message: fmt.Sprintf("%s; the attempt did not confirm its end", rec.Stop.Reason)}
				return d, p.failed(ctx, &d, rec, f, p.usageSoFar(id, rec.Attempt), false, now)
			}
		}
		return d, nil
	}}
}

// runningDue tells an attempt to stop whose time is over or whose handler fell silent. Its successor starts when its
// end is confirmed, or when the grace and its worker's lease have passed.
func (p *Plane) runningDue(d *draft, rec *run.Record, over bool, now run.Instant) {
	if rec.Stop != nil {
		return
	}
	reason, silent := run.AttemptTimeout, false
	late := rec.Deadline != 0 && rec.Deadline <= now
	p.mu.Lock()
	if t := p.ix.runs[rec.ID]; t != nil && t.live != nil && t.live.silence > 0 {
		silent = max(t.live.beat, rec.UpdatedAt).Add(t.live.silence) <= now
	}
	p.mu.Unlock()
	switch {
	case late:
		reason = run.DeadlineExceeded
	case over:
	case silent:
		reason = run.HeartbeatLost
	default:
		return
	}
	d.events = append(d.events, run.Event{
		Type: run.EvStopRequested, At: now, Attempt: rec.Attempt, Reason: reason, Class: run.ClassTimeout,
		Due: now.Add(p.cfg.Grace + p.cfg.WorkerLease),
	})
}

// unschedulableDue looks again at what no target could take: the queue gets it back if one can now, and its time in
// the queue may be over.
func (p *Plane) unschedulableDue(ctx context.Context, d *draft, rec *run.Record, now run.Instant) error {
	a := p.agentOf(ctx, rec)
	var waitsUntil run.Instant
	if a != nil && a.Timeouts.Queue > 0 {
		waitsUntil = rec.QueuedAt.Add(a.Timeouts.Queue.Std())
	}
	if waitsUntil != 0 && waitsUntil <= now {
		return p.end(ctx, d, rec, run.Event{Type: run.EvFailed, At: now, Reason: run.NoEligibleTarget,
			Message: "no target could take it in the time that timeouts.queue gives"})
	}
	if a != nil {
		p.mu.Lock()
		decision := p.ix.profile.Place(p.ix.world, p.request(rec, a))
		p.mu.Unlock()
		if decision.Outcome == placement.Unschedulable {
			// Nothing is written while the reasons stay: only the next look is arranged.
			p.mu.Lock()
			p.ix.timers.set(rec.ID, run.Earliest(now.Add(p.cfg.Flush), rec.Deadline, waitsUntil))
			p.mu.Unlock()
			return nil
		}
	}
	d.events = append(d.events, run.Event{Type: run.EvRequeued, At: now, Due: p.queueEnd(ctx, rec, rec.QueuedAt)})
	return nil
}

// stepDue handles what is due now: wake-ups of runs, and workers that fell silent.
func (p *Plane) stepDue(ctx context.Context, now run.Instant) (more bool) {
	p.mu.Lock()
	keys := p.ix.timers.due(now, maxPass)
	var edits, lost []edit
	for _, key := range keys {
		switch key {
		case patientKey:
			continue
		case backlogKey:
			p.ix.backlog = true
			continue
		case kinWakeKey:
			for _, id := range p.ix.kin.later {
				p.ix.kin.lookAt(id)
			}
			p.ix.kin.later = nil
			continue
		case lossesKey:
			lost, p.ix.losses = p.ix.losses, nil
			continue
		}
		edits = append(edits, p.due(key))
	}
	mono := p.mono()
	for _, id := range p.ix.leases.due(mono, maxPass) {
		lost = append(lost, p.workerDue(id, mono)...)
	}
	p.mu.Unlock()
	wakes := len(edits)
	edits = append(edits, lost...)
	for i, o := range p.changeAll(ctx, edits) {
		var refusal *Refusal
		switch {
		case o.err == nil:
			// A wake-up that came early, or changed nothing: arrange the next one.
			if o.rec != nil {
				p.mu.Lock()
				p.ix.rearm(o.rec, now)
				p.mu.Unlock()
			}
		case errors.As(o.err, &refusal) && refusal.Code == CodeNotFound:
		case errors.Is(o.err, store.ErrClosed), ctx.Err() != nil:
			return false
		default:
			p.log.WarnContext(ctx, "handle what is due; trying again in a second", "run", edits[i].id, "error", o.err)
			p.mu.Lock()
			if i < wakes {
				p.ix.timers.set(edits[i].id, now.Add(time.Second))
			} else {
				p.ix.loseAgain(edits[i], now)
			}
			p.mu.Unlock()
		}
	}
	return len(keys) == maxPass
}

// lossesKey wakes the loop to try again to take back attempts whose executors are gone.
const lossesKey = "losses"

// loseAgain keeps a loss that could not be written: nothing else would notice it, for the worker is forgotten and the
// attempt's own time may be hours away. With Plane.mu held.
func (ix *index) loseAgain(e edit, now run.Instant) {
	ix.losses = append(ix.losses, e)
	ix.timers.set(lossesKey, now.Add(time.Second))
}

// rearm sets the wake-up of a run that the last one left as it was.
func (ix *index) rearm(r *run.Record, now run.Instant) {
	if _, set := ix.timers.at[r.ID]; set || r.State.Terminal() || r.State == run.Unschedulable {
		return
	}
	if when := ix.wakeOf(r); when > now && (when <= ix.horizon || ix.runs[r.ID] != nil || stands(r)) {
		ix.timers.set(r.ID, when)
	}
}
