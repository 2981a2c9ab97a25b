package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/retry"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Doors for executors that were not handed their attempt by this process: those that a message or the overrides of a job
// told of one, and those that somebody started or called by other ways than ours. Any process answers them: each is a
// fact, written by compare-and-set, of which the leader hears.

// Claim gives an attempt to the executor that was told of it, once: the run counts as started. The same worker may ask
// again, for an answer can be lost. A *Refusal, or an error wrapping run.ErrFenced: the attempt is over, or somebody
// else's.
func (p *Plane) Claim(ctx context.Context, c Claim) (runtime.Assignment, error) {
	// 1. Who may.
	if !p.leads() && p.cfg.Bus == nil {
		return runtime.Assignment{}, notLeading("claim")
	}
	id, n, err := runtime.ParseAttemptID(c.Attempt)
	switch {
	case err != nil:
		return runtime.Assignment{}, refuse(CodeInvalid, "claim: %v", err)
	case !validName(c.Worker):
		return runtime.Assignment{}, refuse(CodeInvalid, "claim %s: want the name of a worker, 1 to %d bytes", c.Attempt, runtime.MaxName)
	}
	switch err := p.signs.checkTicket(c.Attempt, c.Ticket, p.cfg.Clock()); {
	case errors.Is(err, errTicketOver):
		return runtime.Assignment{}, fmt.Errorf("claim %s: its ticket has expired: %w", c.Attempt, run.ErrFenced)
	case err != nil:
		return runtime.Assignment{}, refuse(CodeForbidden, "claim %s: %v", c.Attempt, err)
	}
	// 2. The claim.
	o := p.change(ctx, edit{id: id, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		switch {
		case c.May != nil && !c.May(rec.Agent):
			return draft{}, refuse(CodeForbidden, "claim %s: this identity does not execute agent %s", c.Attempt, rec.Agent)
		case !rec.Live() || rec.Attempt != n || rec.Stop != nil:
			return draft{}, fmt.Errorf("claim %s: the run is %s in attempt %d: %w", c.Attempt, rec.State, rec.Attempt, run.ErrFenced)
		case rec.State == run.Running && rec.Worker == c.Worker:
			return draft{}, nil
		case rec.State != run.Assigned:
			return draft{}, fmt.Errorf("claim %s: worker %s has it: %w", c.Attempt, rec.Worker, run.ErrFenced)
		}
		// What was declared at another process a moment ago must be known here before the attempt counts as started.
		if p.targetNamed(rec.Target) == nil && !p.store.Exclusive() {
			if err := p.loadDeclarations(ctx); err != nil {
				return draft{}, err
			}
		}
		return draft{events: []run.Event{p.startEvent(ctx, rec, c.Worker, now)}}, nil
	}})
	if o.err != nil {
		return runtime.Assignment{}, o.err
	}
	// 3. What it is to do.
	agent, target := p.agentOf(ctx, o.rec), p.targetNamed(o.rec.Target)
	if target == nil && !p.store.Exclusive() { // whoever placed the run knows it; it may have been declared there a moment ago
		if err := p.loadDeclarations(ctx); err != nil {
			return runtime.Assignment{}, fmt.Errorf("claim %s: read what is declared: %w", c.Attempt, err)
		}
		target = p.targetNamed(o.rec.Target)
	}
	if agent == nil || target == nil {
		return runtime.Assignment{}, refuse(CodeConflict, "claim %s: agent %s or target %s is not declared any more", c.Attempt, o.rec.Agent, o.rec.Target)
	}
	a, err := p.assignment(ctx, o.rec, agent, target)
	if errors.Is(err, ErrValueGone) {
		p.change(ctx, p.unprepared(id, n, err, edit{}))
		return a, fmt.Errorf("claim %s: %v: %w", c.Attempt, err, run.ErrFenced)
	}
	return a, err
}

// Undelivered tells that an attempt's hand-over came to nobody and will not: it is given back, after a pause. An attempt that was
// claimed meanwhile goes on.
func (p *Plane) Undelivered(ctx context.Context, attempt, ticket, why string) error {
	id, n, err := runtime.ParseAttemptID(attempt)
	if err != nil {
		return refuse(CodeInvalid, "undelivered: %v", err)
	}
	if err := p.signs.checkTicket(attempt, ticket, p.cfg.Clock()); err != nil && !errors.Is(err, errTicketOver) {
		return refuse(CodeForbidden, "undelivered %s: %v", attempt, err)
	}
	o := p.change(ctx, edit{id: id, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		var d draft
		if rec.State != run.Assigned || rec.Attempt != n {
			return d, nil
		}
		// The next one may meet the same, so it waits like a start that was refused, and spends nothing either.
		return d, p.failed(ctx, &d, rec, startFailure(run.Clip("its hand-over was not taken: "+why, run.MaxMessage)), nil, true, now)
	}})
	return o.err
}

// Begun is the outcome of Begin.
type Begun struct {
	// Run is the run as it is now.
	Run *run.Record
	// Assignment is its attempt, to be executed; nil when the run has ended before.
	Assignment *runtime.Assignment
}

// Begin registers an execution that was not ours to start: a handler that is called directly, or a task of a job that was
// started by hand or by a schedule. The run is accepted, placed and running at once.
//
// The same key meets the same run. One that has ended is told as it is. One that runs under the same worker gives the
// same attempt again, for an answer can be lost; once the platform has restarted a task, its earlier attempt is dead and it
// gets another. Any other is a conflict.
func (p *Plane) Begin(ctx context.Context, b Beginning) (Begun, error) {
	now := p.now()
	// 1. What is asked.
	if !p.leads() && p.cfg.Bus == nil {
		return Begun{}, notLeading("begin") // who decides must hear of it
	}
	if !validName(b.Worker) {
		return Begun{}, refuse(CodeInvalid, "begin: want the name of a worker, 1 to %d bytes", runtime.MaxName)
	}
	if b.Execution != "" {
		if !validName(b.Execution) || b.Index < 0 {
			return Begun{}, refuse(CodeInvalid, "begin: execution %.80q, index %d: want the name of an execution and the index of a task", b.Execution, b.Index)
		}
		if b.Key == "" {
			b.Key = fmt.Sprintf("%s/%d", b.Execution, b.Index)
		}
	}
	x := p.agentNamed(ctx, b.Agent)
	if b.Tenant == "" {
		b.Tenant = fleet.DefaultTenant
	}
	if err := checkSubmission(&b.Submission, x, now); err != nil {
		return Begun{}, err
	}
	if x.input != nil {
		if faults := validate(x.input, b.Input, "input"); len(faults) > 0 {
			return Begun{}, &Refusal{Code: CodeInvalid, Detail: "input does not match the schema of agent " + b.Agent, Faults: faults}
		}
	}
	// 2. Its record, as that of a run which runs.
	agent := x.object.(*fleet.Agent)
	spec := run.Spec{
		Kind: run.KindAgent, Agent: b.Agent, Version: agent.Version, Revision: x.revision, Tenant: b.Tenant, Priority: admission.DefaultPriority,
		Labels: b.Labels, Key: b.Key, CreatedAt: now, RetainFor: retainFor(agent.Retain), Session: b.Session, Trace: b.Trace,
	}
	p.identify(&spec, &b.Submission)
	var err error
	if spec.Groups, err = x.groupsOf(ctx, &spec, b.Input); err != nil {
		return Begun{}, err
	}
	turn, err := p.placesFree(ctx, &spec)
	if err != nil {
		return Begun{}, err
	}
	a, err := p.arrivalOf(spec, b.Input, &agent.Timeouts, b.Actor, now)
	if err != nil {
		return Begun{}, err
	}
	for _, e := range p.begunEvents(ctx, a.rec, b.Worker, now) {
		run.Evolve(a.rec, e)
	}
	if p.leads() {
		p.mu.Lock()
		_, err = p.register(b.Worker, "", []string{b.Agent}, 0, now)
		p.mu.Unlock()
		if err != nil {
			return Begun{}, err
		}
	}
	// 3. It is a fact that it runs: nothing is placed, and nothing waits for a pass.
	out := p.commitBegun(ctx, a, turn)
	if out.Err != nil {
		return Begun{}, out.Err
	}
	if out.Existed {
		if out.Run, err = p.beginAgain(ctx, out.Run, &b); err != nil || out.Run.State.Terminal() {
			return Begun{Run: out.Run}, err
		}
	}
	p.mu.Lock()
	if w := p.ix.workers[b.Worker]; w != nil {
		w.holds[out.Run.ID] = out.Run.Attempt
	}
	p.mu.Unlock()
	if agent = p.agentOf(ctx, out.Run); agent == nil {
		return Begun{}, refuse(CodeConflict, "agent %s is not declared any more", out.Run.Agent)
	}
	next, err := p.assignment(ctx, out.Run, agent, p.open)
	if b.Execution != "" {
		next.Index, next.Completions = &b.Index, b.Completions
	}
	return Begun{Run: out.Run, Assignment: &next}, err
}

// commitBegun writes a run that runs. turn is what placesFree gave for it; once more where another process had that turn.
func (p *Plane) commitBegun(ctx context.Context, a arrival, turn []store.Write) (out Submitted) {
	payloads := a.writes
	for range conflictTries {
		var failure error
		a.done = func(_ arrival, err error) { failure = err }
		a.writes = append(slices.Clone(payloads), turn...)
		p.commitArrivals(ctx, []arrival{a})
		isNew := slices.ContainsFunc(turn, func(w store.Write) bool { return w.Expect == 0 })
		switch {
		case len(turn) > 0 && errors.Is(failure, store.ErrConflict):
		case isNew && errors.Is(failure, store.ErrExists): // the turn, or the run
			if _, err := p.Get(ctx, a.rec.ID); !isNotFound(err) {
				return p.settle(ctx, a, failure)
			}
		default:
			return p.settle(ctx, a, failure)
		}
		var err error
		if turn, err = p.placesFree(ctx, &a.rec.Spec); err != nil {
			return Submitted{Err: err}
		}
	}
	return Submitted{Err: &Refusal{Code: CodeOverloaded, Detail: fmt.Sprintf("begin run %s: many runs of its groups begin at the same time", a.rec.ID), RetryAfter: time.Second}}
}

// begunEvents place and start the next attempt of a queued run where it runs already.
func (p *Plane) begunEvents(ctx context.Context, r *run.Record, worker string, now run.Instant) []run.Event {
	n := r.Attempt + 1
	return []run.Event{
		{Type: run.EvAssigned, At: now, Attempt: n, Target: openTarget, Worker: worker, Node: openTarget + "/" + worker, Due: now.Add(startByPoll)},
		{Type: run.EvStarted, At: now, Attempt: n, Worker: worker, Due: now.Add(p.attemptTimeout(ctx, r))},
	}
}

// beginAgain is Begin of a run that is there.
func (p *Plane) beginAgain(ctx context.Context, r *run.Record, b *Beginning) (*run.Record, error) {
	o := p.change(ctx, edit{id: r.ID, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		var d draft
		taken := refuse(CodeConflict, "key %q was begun before: run %s is %s", b.Key, rec.ID, rec.State)
		taken.RetryAfter = p.cfg.BeatEvery
		switch {
		case rec.State.Terminal():
			return d, nil
		case rec.Live() && rec.Worker != b.Worker:
			return d, taken
		case rec.Live() && rec.Stop == nil && (b.Execution == "" || attemptsBy(rec, b.Worker) > b.Restarts):
			return d, nil
		case b.Execution == "":
			return d, taken
		}
		// The platform starts a task again when the last one of it is gone.
		const why = "the platform started its task again"
		seen := rec
		add := func(events ...run.Event) error {
			if seen == rec {
				seen = rec.Clone()
			}
			for _, e := range events {
				if err := run.Decide(seen, &e); err != nil {
					return err
				}
				run.Evolve(seen, e)
				d.events = append(d.events, e)
			}
			return nil
		}
		if rec.Live() {
			if err := p.failed(ctx, &d, rec, retry.Failure{Class: run.ClassLost, Message: why}, p.usageSoFar(rec.ID, rec.Attempt), true, now); err != nil {
				return d, err
			}
			events := d.events
			d.events = nil
			if err := add(events...); err != nil {
				return d, err
			}
		}
		switch seen.State {
		case run.Backoff, run.Held, run.Unschedulable:
			if err := add(run.Event{Type: run.EvRequeued, At: now, Due: p.queueEnd(ctx, rec, now)}); err != nil {
				return d, err
			}
		case run.Queued:
		default:
			if seen.State.Terminal() {
				return d, nil // the retry policy gives no further attempt
			}
			return draft{}, taken
		}
		turn, err := p.placesFree(ctx, &rec.Spec)
		if err != nil {
			return draft{}, err
		}
		d.writes = append(d.writes, turn...)
		return d, add(p.begunEvents(ctx, seen, b.Worker, now)...)
	}})
	if errors.Is(o.err, run.ErrFenced) {
		return nil, refuse(CodeConflict, "key %q: %v", b.Key, o.err)
	}
	return o.rec, stateRefusal(o.err)
}

// attemptsBy counts the attempts that a worker has had of a run.
func attemptsBy(r *run.Record, worker string) int {
	n := 0
	for i := range r.Attempts {
		if r.Attempts[i].Worker == worker {
			n++
		}
	}
	return n
}

// agentNamed is a declared agent.
func (p *Plane) agentNamed(ctx context.Context, name string) *declaration {
	return p.declaredNamed(ctx, fleet.KindAgent, name)
}

// declaredNamed is a declared object; one that this process does not know may have been declared at another. Whoever asks
// for what is not there costs one read of one document.
func (p *Plane) declaredNamed(ctx context.Context, kind, name string) *declaration {
	x := p.declared.get(kind, name)
	if x != nil || p.store.Exclusive() || !fleet.IsName(name) {
		return x
	}
	_, err := p.store.Get(ctx, store.KindFleet, declaredID(kind, name))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = p.loadDeclarations(ctx)
	}
	if err != nil {
		p.log.WarnContext(ctx, "read what is declared", "error", err)
	}
	return p.declared.get(kind, name)
}

// refresh reads what is declared before it is changed, where another process may have changed it a moment ago.
func (p *Plane) refresh(ctx context.Context) error {
	if p.store.Exclusive() {
		return nil
	}
	return p.loadDeclarations(ctx)
}
