package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/workflow"
)

// Flow stage: a workflow's run goes its next step. What that is, package workflow says, from the outcomes that are on
// record; here it is done. A run has no state but its record and its outcomes, and each unit writes both: a process that
// ends between two writes is followed by one that asks again and is told the same. Children of a stage have ids that
// follow from its name, so that calling them twice calls them once.

// flight is a workflow's run while children of it are at work, as far as whoever leads remembers it: it can be read again
// at any time. Nothing is read when one of many children ends.
type flight struct {
	plan     *workflow.Plan
	progress workflow.Progress
	action   workflow.Action // a call
	spawned  bool            // all of its children are there
	bytes    int

	forPeople run.Spans // of the wait for the children of the stage that was decided last
}

// flights is guarded by Plane.mu, and the loop's own otherwise.
type flights struct {
	of    map[string]*flight
	bytes int
}

// Bounds on what is remembered of flights.
const (
	maxFlights     = 5000
	maxFlightBytes = 64 << 20
)

func (fs *flights) put(id string, f *flight, bytes int) {
	fs.drop(id)
	f.bytes = bytes
	for other := range fs.of { // any: what is dropped is read again
		if len(fs.of) < maxFlights && fs.bytes+f.bytes <= maxFlightBytes {
			break
		}
		fs.drop(other)
	}
	if fs.of == nil {
		fs.of = make(map[string]*flight)
	}
	fs.of[id] = f
	fs.bytes += f.bytes
}

func (fs *flights) drop(id string) {
	if f := fs.of[id]; f != nil {
		fs.bytes -= f.bytes
		delete(fs.of, id)
	}
}

// named is an outcome and the name of its step.
type named struct {
	name string
	*workflow.Outcome
}

// errFlowMoved: the run is not where a step began any more.
var errFlowMoved = errors.New("the workflow's run has gone on meanwhile")

// maxLeap bounds the outcomes of one unit.
const maxLeap = 50

// advance takes a workflow's run its next step.
func (p *Plane) advance(ctx context.Context, rec *run.Record) error {
	begins := rec.State == run.Queued
	if !begins && rec.State != run.Running || begins && !p.mayBegin(rec) {
		p.land(rec.ID)
		return nil
	}
	f := p.flightOf(rec.ID)
	if f == nil || begins {
		// 1. From the record: where it stands.
		var err error
		if begins {
			err = p.inherit(ctx, rec)
		}
		if err == nil {
			f, err = p.board(ctx, rec)
		}
		if err != nil {
			return p.grounded(ctx, rec, err)
		}
		if goesOn, err := p.leap(ctx, rec, f, nil, begins); !goesOn || err != nil {
			p.land(rec.ID)
			return err
		}
	}
	// 2. As long as the children of a stage are decided, to the next one.
	for {
		o, err := p.tend(ctx, rec, f)
		if err != nil {
			p.land(rec.ID)
			return err
		}
		if o == nil {
			p.fly(rec.ID, f)
			return nil
		}
		if goesOn, err := p.leap(ctx, rec, f, &named{f.action.Step, o}, false); !goesOn || err != nil {
			p.land(rec.ID)
			return err
		}
	}
}

func (p *Plane) flightOf(id string) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ix.flights.of[id]
}

// fly remembers a flight, land forgets it.
func (p *Plane) fly(id string, f *flight) {
	bytes := 1<<10 + len(f.progress.Input)
	for _, o := range f.progress.Outcomes {
		bytes += 256 + len(o.Output) + len(o.Input)
	}
	for i := range f.action.Calls {
		bytes += 64 + len(f.action.Calls[i].Input)
	}
	p.mu.Lock()
	p.ix.flights.put(id, f, bytes)
	p.mu.Unlock()
}

func (p *Plane) land(id string) {
	p.mu.Lock()
	p.ix.flights.drop(id)
	p.mu.Unlock()
}

// board reads how far a run is.
func (p *Plane) board(ctx context.Context, rec *run.Record) (*flight, error) {
	plan, progress, err := p.progressOf(ctx, rec)
	if err != nil {
		return nil, err
	}
	return &flight{plan: plan, progress: progress}, nil
}

// grounded ends a run of which nobody can say how it goes on; an outage is told to whoever asked.
func (p *Plane) grounded(ctx context.Context, rec *run.Record, why error) error {
	if !hopeless(why) && !errors.Is(why, ErrValueGone) {
		return why
	}
	reason := run.NonRetryable
	if isNotFound(why) {
		reason = run.AgentDeleted
	}
	p.land(rec.ID)
	return p.change(ctx, edit{id: rec.ID, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		var d draft
		if r.State != rec.State {
			return d, nil
		}
		return d, p.end(ctx, &d, r, run.Event{Type: run.EvFailed, At: now, Reason: reason, Message: run.Clip(why.Error(), run.MaxMessage)})
	}}).err
}

// tend starts the children of the stage that is at work, and gives its outcome once they are decided; nil before.
func (p *Plane) tend(ctx context.Context, rec *run.Record, f *flight) (*workflow.Outcome, error) {
	a := &f.action
	n := len(a.Calls)
	// 1. They are there.
	if !f.spawned {
		calls := make([]call, n)
		for i, c := range a.Calls {
			calls[i] = call{Agent: c.Agent, Workflow: c.Workflow, Input: c.Input}
		}
		if err := p.spawn(ctx, rec, a.Group, 0, calls, a.Max); err != nil {
			if !hopeless(err) {
				return nil, err
			}
			return p.uncalled(ctx, rec, a, err)
		}
		f.spawned = true
		for i := range a.Calls {
			a.Calls[i].Input = nil // theirs now
		}
	}
	// 2. How far they are.
	fam, err := p.family(ctx, rec, a.Group)
	if err != nil {
		return nil, err
	}
	if fam.spawned < n {
		return nil, fmt.Errorf("workflow run %s: %d of %d children of %s are known", rec.ID, fam.spawned, n, a.Group)
	}
	if !a.Decided(fam.ended, fam.succeeded, fam.failed) {
		return nil, nil
	}
	// 3. Who is not needed any more.
	if fam.ended < n {
		why := fmt.Sprintf("stage %s goes on without it: %d of %d have succeeded, %d failed", a.Group, fam.succeeded, n, fam.failed)
		left, err := p.endSome(ctx, rec, a.Group, why)
		if err != nil {
			return nil, err
		}
		if left {
			p.lookAt(rec.ID)
			return nil, nil
		}
	}
	// 4. What they gave, read once.
	m := meetingOf(rec, p.now())
	list, err := p.resultsMet(ctx, rec.ID, a.Group, n, m)
	if err != nil {
		return nil, err
	}
	if f.forPeople, err = m.found(ctx, p); err != nil {
		return nil, err
	}
	if list.size() > workflow.MaxCallsBytes {
		return &workflow.Outcome{State: workflow.Failed, Reason: run.ResultTooLarge, Calls: n,
			Message: fmt.Sprintf("stage %s: the outputs of its %d calls have %d bytes together; the limit is %d", a.Stage, n, list.size(), workflow.MaxCallsBytes)}, nil
	}
	items, err := list.full(ctx, p)
	if err != nil {
		if errors.Is(err, ErrValueGone) {
			return &workflow.Outcome{State: workflow.Failed, Reason: run.NonRetryable, Message: run.Clip(err.Error(), run.MaxMessage)}, nil
		}
		return nil, err
	}
	results := make([]workflow.Result, n)
	for i := range items {
		x := &items[i]
		results[i] = workflow.Result{Run: x.Run, State: x.State, Reason: x.Reason, Code: x.Code, Message: x.Message, Output: x.Output}
	}
	return a.Settle(results), nil
}

// uncalled is the outcome of a stage whose children cannot be called: none of them, or not all.
func (p *Plane) uncalled(ctx context.Context, rec *run.Record, a *workflow.Action, why error) (*workflow.Outcome, error) {
	if err := p.endFamily(ctx, rec, a.Group, "another child of stage "+a.Group+" could not be called"); err != nil {
		return nil, err
	}
	reason := run.NonRetryable
	var refusal *Refusal
	if errors.As(why, &refusal) {
		switch refusal.Code {
		case CodeInvalid, CodeTooLarge:
			reason = run.InputInvalid
		case CodeNotFound:
			reason = run.AgentDeleted
		case CodeForbidden:
			reason = run.PermissionDenied
		}
	}
	return &workflow.Outcome{State: workflow.Failed, Reason: reason, Message: run.Clip(fmt.Sprintf("%s: %v", a.Step, why), run.MaxMessage)}, nil
}

// leap writes an outcome, if there is one, and goes on as far as nobody is needed, in one unit. It reports whether
// children are to be called now; otherwise the run has ended, or waits for people.
func (p *Plane) leap(ctx context.Context, rec *run.Record, f *flight, first *named, begins bool) (goesOn bool, err error) {
	for {
		var outcomes []named
		if first != nil {
			outcomes = append(outcomes, *first)
			f.progress.Outcomes[first.name] = first.Outcome
		}
		// 1. As far as rules alone lead.
		a := f.plan.Next(f.progress)
		for a.Do == workflow.DoRecord && len(outcomes) < maxLeap {
			outcomes = append(outcomes, named{a.Step, a.Outcome})
			f.progress.Outcomes[a.Step] = a.Outcome
			a = f.plan.Next(f.progress)
		}
		// 2. One unit.
		if begins || len(outcomes) > 0 || a.Do != workflow.DoCall {
			err := p.writeLeap(ctx, rec, &a, outcomes, len(f.progress.Outcomes), begins, f.forPeople)
			if errors.Is(err, errFlowMoved) {
				return false, nil // whoever moved it had the index told
			}
			if err != nil {
				return false, err
			}
		}
		// 3. What comes now.
		first, begins, f.forPeople = nil, false, nil
		switch a.Do {
		case workflow.DoRecord:
			continue
		case workflow.DoCall:
			f.action, f.spawned = a, false
			return true, nil
		}
		return false, nil
	}
}

// writeLeap writes outcomes with what follows for the run.
func (p *Plane) writeLeap(ctx context.Context, rec *run.Record, a *workflow.Action, outcomes []named, total int, begins bool, forPeople run.Spans) error {
	from, again := run.Running, false
	if begins {
		from = run.Queued
	}
	at := p.now()
	for i := range outcomes {
		outcomes[i].At = at
	}
	return p.change(ctx, edit{id: rec.ID, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		var d draft
		// 1. The run stands where the step began. A second try has met another writer: perhaps one who went this step.
		if r.State != from {
			return d, errFlowMoved
		}
		if again && len(outcomes) > 0 {
			if _, err := p.store.Get(ctx, store.KindStep, stepID(rec.ID, outcomes[0].name)); err == nil {
				return d, errFlowMoved
			} else if !errors.Is(err, store.ErrNotFound) {
				return d, err
			}
		}
		again = true
		// 2. The outcomes.
		for i, o := range outcomes {
			writes, err := outcomeWrites(rec.ID, o.name, total-len(outcomes)+i+1, o.Outcome)
			if err != nil {
				return d, err
			}
			d.writes = append(d.writes, writes...)
		}
		// 3. The run.
		if begins {
			d.events = append(d.events, run.Event{Type: run.EvBegan, At: now})
		}
		return d, p.moved(ctx, &d, r, a, outcomes, forPeople, now)
	}}).err
}

// moved are the events by which a run goes on to what is next.
func (p *Plane) moved(ctx context.Context, d *draft, r *run.Record, a *workflow.Action, outcomes []named, forPeople run.Spans, now run.Instant) error {
	stage := a.Stage
	if stage == "" && len(outcomes) > 0 {
		stage = workflow.StageOf(outcomes[len(outcomes)-1].name)
	}
	e := run.Event{Type: run.EvAdvanced, At: now, Stage: stage, Message: told(a, outcomes)}
	p.credit(ctx, r, forPeople, &e)
	d.events = append(d.events, e)
	switch a.Do {
	case workflow.DoAsk:
		park, w, err := p.gateDraft(ctx, atStage(r, stage, e.Deadline), askOf(a), a.Step, now)
		var refusal *Refusal
		switch {
		case errors.Is(err, run.ErrInvalid) || errors.Is(err, run.ErrTooLarge):
			return p.end(ctx, d, r, run.Event{Type: run.EvFailed, At: now, Reason: run.NonRetryable, Message: run.Clip(fmt.Sprintf("%s: %v", a.Step, err), run.MaxMessage)})
		case errors.As(err, &refusal):
			return errFlowMoved // it is decided: what is remembered of the run is old
		case err != nil:
			return err
		}
		d.writes = append(d.writes, w)
		d.events = append(d.events, run.Event{Type: run.EvParked, At: now, Park: &park, Due: park.Until})
	case workflow.DoFinish:
		output, writes := stash(r.ID, "out", a.Output, run.MaxInline)
		d.writes = append(d.writes, writes...)
		return p.end(ctx, d, r, run.Event{Type: run.EvSucceeded, At: now, Output: &output})
	case workflow.DoFail:
		return p.end(ctx, d, r, run.Event{Type: run.EvFailed, At: now, Reason: a.Reason, Message: a.Message})
	}
	return nil
}

// atStage is a record as it will be when the stage is at work: the gate tells of it.
func atStage(r *run.Record, stage string, moved run.Instant) *run.Record {
	c := *r
	if c.Flow = stage; moved != 0 {
		c.Deadline = moved
	}
	return &c
}

func askOf(a *workflow.Action) gateSpec {
	g := a.Gate
	q := gateSpec{
		Title: a.Title, Action: a.Value, Approvers: g.Approvers, Quorum: g.Quorum, NotRequester: g.NotRequester,
		Expires: g.Expires.Std(), OnExpiry: run.OnExpiry(g.OnExpiry), Remind: g.Remind.Std(),
	}
	if g.Escalate != nil {
		q.EscalateAfter, q.EscalateTo = g.Escalate.After.Std(), g.Escalate.To
	}
	return q
}

// told is a step of a run in words.
func told(a *workflow.Action, outcomes []named) string {
	var parts []string
	for _, o := range outcomes {
		text := o.name + " " + string(o.State)
		switch {
		case o.State == workflow.Failed:
			text += ": " + run.Clip(o.Message, 300)
		case o.Choice != "":
			text += fmt.Sprintf(" with %s for %q", o.Choice, run.Clip(o.Answer, 100))
		case o.Calls > 0:
			text += fmt.Sprintf(", %d calls, %d failed", o.Calls, o.Failed)
		}
		parts = append(parts, text)
	}
	switch a.Do {
	case workflow.DoCall:
		parts = append(parts, fmt.Sprintf("%s calls %s", a.Group, callees(a.Calls)))
	case workflow.DoAsk:
		parts = append(parts, a.Step+" asks: "+a.Title)
	}
	return run.Clip(strings.Join(parts, "; "), run.MaxMessage/4)
}

func callees(calls []workflow.Call) string {
	var names []string
	for _, c := range calls {
		if name := c.Agent + c.Workflow; !slices.Contains(names, name) && len(names) < 5 {
			names = append(names, name)
		}
	}
	text := strings.Join(names, ", ")
	if len(calls) > 1 {
		text += fmt.Sprintf(", %d times in all", len(calls))
	}
	return text
}

// progressOf reads how far a workflow's run is, by the declaration with which it began.
func (p *Plane) progressOf(ctx context.Context, rec *run.Record) (*workflow.Plan, workflow.Progress, error) {
	var s workflow.Progress
	x, err := p.declaredAt(ctx, fleet.KindWorkflow, rec.Agent, rec.Revision)
	if err != nil {
		return nil, s, err
	}
	s.Run = workflow.Run{ID: rec.ID, Workflow: rec.Agent, Tenant: rec.Tenant, Labels: rec.Labels}
	if s.Input, err = p.Value(ctx, rec.Input); err != nil {
		return nil, s, err
	}
	s.Outcomes, err = p.outcomesOf(ctx, rec.ID)
	return x.plan, s, err
}

// storedOutcome is an outcome as a step keeps it: what is large stands apart.
type storedOutcome struct {
	*workflow.Outcome
	OutputAt *run.Payload `json:"outputAt,omitempty"`
	InputAt  *run.Payload `json:"inputAt,omitempty"`
}

// outcomeWrites are the documents of an outcome, the step's first.
func outcomeWrites(id, name string, seq int, o *workflow.Outcome) ([]store.Write, error) {
	kept := *o
	x := storedOutcome{Outcome: &kept}
	var writes []store.Write
	apart := func(what string, value *json.RawMessage, at **run.Payload) {
		if len(*value) <= run.MaxInline {
			return
		}
		payload, w := stash(id, "step/"+name+"/"+what, *value, run.MaxInline)
		*value, *at, writes = nil, &payload, append(writes, w...)
	}
	apart("out", &kept.Output, &x.OutputAt)
	apart("in", &kept.Input, &x.InputAt)
	body, err := json.Marshal(x)
	if err != nil {
		return nil, fmt.Errorf("encode outcome %s of run %s: %w", name, id, err)
	}
	w, err := stepWrite(id, flowStep(name, seq, body))
	return append([]store.Write{w}, writes...), err
}

// outcomesOf reads the outcomes of a workflow's run, by name.
func (p *Plane) outcomesOf(ctx context.Context, id string) (map[string]*workflow.Outcome, error) {
	steps, err := p.stepsOf(ctx, id)
	if err != nil {
		return nil, err
	}
	outcomes := make(map[string]*workflow.Outcome, len(steps))
	for i := range steps {
		s := &steps[i]
		if !strings.Contains(s.Name, "#") {
			continue // of its undoing
		}
		o, err := workflow.ReadOutcome(s.Result)
		if err != nil {
			return nil, fmt.Errorf("step %s of run %s: %w", s.Name, id, err)
		}
		var apart struct{ OutputAt, InputAt *run.Payload }
		if err := json.Unmarshal(s.Result, &apart); err != nil {
			return nil, fmt.Errorf("step %s of run %s: %w", s.Name, id, err)
		}
		for _, part := range []struct {
			at   *run.Payload
			into *json.RawMessage
		}{{apart.OutputAt, &o.Output}, {apart.InputAt, &o.Input}} {
			if part.at == nil {
				continue
			}
			if *part.into, err = p.Value(ctx, *part.at); err != nil {
				return nil, err
			}
		}
		outcomes[s.Name] = o
	}
	return outcomes, nil
}
