package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/retry"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Observe stage: what executors report of their attempts. Every report is fenced by the attempt's number; one of an
// attempt that no longer holds its run changes nothing and is answered with run.ErrFenced.

// Report takes reports, in order, and returns when those that change a run are durable. A report of a step or a log is
// written beside the run; one of progress or usage is kept in memory until the attempt ends.
func (p *Plane) Report(ctx context.Context, reports []runtime.Report) []runtime.Result {
	results := make([]runtime.Result, len(reports))
	p.meetAll(ctx, reports)
	// 1. Writes beside the record: steps and logs, in one commit.
	var units []store.Unit
	var unitOf []int
	for i := range reports {
		r := &reports[i]
		if err := checkReport(r); err != nil {
			results[i].Err = err
			continue
		}
		u, err := p.beside(ctx, r)
		if err != nil {
			results[i].Err = err
		} else if u != nil {
			units, unitOf = append(units, *u), append(unitOf, i)
		}
	}
	if len(units) > 0 {
		for k, err := range p.store.Commit(ctx, units) {
			r := &reports[unitOf[k]]
			switch {
			case errors.Is(err, store.ErrFenced):
				err = fmt.Errorf("attempt %s: %w", runtime.AttemptID(r.Run, r.N), run.ErrFenced)
			case errors.Is(err, store.ErrExists) && r.Type == runtime.StepDone:
				err = nil // the step has ended before: its first record stands
			}
			results[unitOf[k]].Err = err
		}
	}
	// 2. Children that an attempt parks on.
	for i := range reports {
		if results[i].Err == nil && len(reports[i].Calls) > 0 {
			results[i].Err = p.parkedCalls(ctx, &reports[i])
		}
	}
	// 3. Changes of the record.
	var edits []edit
	var editOf []int
	for i := range reports {
		if results[i].Err == nil && changesRun(reports[i].Type) {
			edits, editOf = append(edits, p.reported(&reports[i])), append(editOf, i)
		}
	}
	outcomes := p.changeAll(ctx, edits)
	for k, o := range outcomes {
		results[editOf[k]] = o.result
		if o.err != nil {
			results[editOf[k]].Err = o.err
		}
	}
	// 4. What the attempt must know.
	asked := make([]*runtime.Result, len(results))
	written := make(map[int]*run.Record, len(outcomes))
	for i := range results {
		asked[i] = &results[i]
	}
	for k, o := range outcomes {
		written[editOf[k]] = o.rec
	}
	p.know(ctx, reports, asked, written)
	return results
}

func changesRun(t runtime.ReportType) bool {
	switch t {
	case runtime.Started, runtime.Completed, runtime.Failed, runtime.Released, runtime.Parked:
		return true
	}
	return false
}

// checkReport bounds what an outside party gave.
func checkReport(r *runtime.Report) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("report %s of attempt %s: %s: %w", r.Type, runtime.AttemptID(r.Run, r.N), fmt.Sprintf(format, args...), runtime.ErrInvalid)
	}
	switch r.Type {
	case runtime.Started, runtime.Beat, runtime.Released, runtime.Used:
	case runtime.Completed:
		if len(r.Output) > 0 && !json.Valid(r.Output) {
			return bad("output is not JSON")
		}
		if r.Score != nil && !(*r.Score >= 0 && *r.Score <= 1) {
			return bad("score %v, want 0 to 1", *r.Score)
		}
	case runtime.Failed:
		if r.Class == "" {
			r.Class = run.ClassUser
		}
		if !r.Class.Valid() {
			return bad("class %.40q, want one of %v", r.Class, run.Classes)
		}
		r.Code = run.Clip(r.Code, run.MaxName)
	case runtime.Parked:
		switch {
		case r.Park == nil || !validName(r.Park.Step):
			return bad("park names no step")
		case r.Park.On != run.OnTimer && r.Park.On != run.OnInput && r.Park.On != run.OnChildren && r.Park.On != run.OnGate:
			return bad("park on %.40q, want timer, input, children or gate", r.Park.On)
		case r.Park.On == run.OnChildren && r.Park.Until != 0:
			return bad("park on children says a time; give the children a deadline")
		case r.Park.On == run.OnChildren && (r.Park.Size < 0 || r.Park.Size > run.MaxChildren || r.Park.Tolerate < 0 || r.Park.Need < 0 || r.Park.Need > r.Park.Size):
			return bad("park on %d children, %d to succeed, %d may fail; want up to %d children and no more than there are to succeed", r.Park.Size, r.Park.Need, r.Park.Tolerate, run.MaxChildren)
		case len(r.Calls) > 0 && (r.Park.On != run.OnChildren || len(r.Calls) != r.Park.Size):
			return bad("park on %s with %d calls and a size of %d; want as many children as are called", r.Park.On, len(r.Calls), r.Park.Size)
		case r.Gate != nil && r.Park.On != run.OnGate:
			return bad("park on %s has a gate", r.Park.On)
		case r.Park.On == run.OnInput && !validName(r.Park.Name):
			return bad("park on input names no signal")
		case r.Park.On == run.OnTimer && r.Park.Until == 0:
			return bad("park on a timer says no time")
		}
	case runtime.StepDone:
		switch {
		case r.Step == nil || !validName(r.Step.Name):
			return bad("step has no name, or one over %d bytes", runtime.MaxName)
		case len(r.Step.Result) > runtime.MaxStepResult:
			return bad("result of step %.60q has %d bytes, %d at most", r.Step.Name, len(r.Step.Result), runtime.MaxStepResult)
		case len(r.Step.Result) > 0 && !json.Valid(r.Step.Result):
			return bad("result of step %.60q is not JSON", r.Step.Name)
		}
	case runtime.Progress:
		if !(r.Fraction >= 0 && r.Fraction <= 1) {
			return bad("progress %v, want 0 to 1", r.Fraction)
		}
	case runtime.Logged:
		if len(r.Logs) > 10_000 {
			return bad("%d lines of log, 10000 at most", len(r.Logs))
		}
	default:
		return bad("there is no such report")
	}
	if r.Usage != nil && (r.Usage.InputTokens < 0 || r.Usage.OutputTokens < 0 || !(r.Usage.USD >= 0)) {
		return bad("usage below zero")
	}
	return nil
}

// beside prepares the write of a step or of logs, or takes note of progress and usage; nil if nothing is to be written.
func (p *Plane) beside(ctx context.Context, r *runtime.Report) (*store.Unit, error) {
	fence := []store.Fence{{Run: r.Run, Attempt: int64(r.N)}}
	switch r.Type {
	case runtime.StepDone:
		s := *r.Step
		if p.store.Exclusive() || s.Seq < 1 || s.Seq > runtime.MaxSteps {
			seq, err := p.nextStep(ctx, r.Run, r.N)
			if err != nil {
				return nil, err
			}
			s.Seq = seq
		} // else it comes by whichever process, and the attempt knows the order best
		w, err := stepWrite(r.Run, s)
		if err != nil {
			return nil, err
		}
		return &store.Unit{Token: p.newID(), Fences: fence, Writes: []store.Write{w}}, nil
	case runtime.Logged:
		return p.logUnit(r, fence)
	case runtime.Progress:
		at := p.now()
		return p.logUnit(&runtime.Report{Run: r.Run, N: r.N, Logs: []runtime.LogLine{{
			At: at, Stream: "progress", Text: fmt.Sprintf("%.0f%% %s", r.Fraction*100, r.Message)}}}, fence)
	case runtime.Used:
		p.mu.Lock()
		if t := p.ix.runs[r.Run]; t != nil && t.live != nil && t.live.n == r.N && r.Usage != nil {
			t.live.usage = t.live.usage.Plus(*r.Usage)
		}
		p.mu.Unlock()
	}
	return nil, nil
}

// nextStep numbers a run's steps in the order in which they end.
func (p *Plane) nextStep(ctx context.Context, id string, n int) (int, error) {
	if !p.leads() {
		steps, err := p.stepsOf(ctx, id)
		return len(steps) + 1, err
	}
	take := func() (seq int, known bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		t := p.ix.runs[id]
		if t == nil || t.live == nil || t.live.n != n {
			return 0, true // the fence will refuse it
		}
		if t.live.steps < 0 {
			return 0, false
		}
		t.live.steps++
		return t.live.steps, true
	}
	seq, known := take()
	if !known {
		steps, err := p.stepsOf(ctx, id)
		if err != nil {
			return 0, err
		}
		p.mu.Lock()
		if t := p.ix.runs[id]; t != nil && t.live != nil && t.live.steps < 0 {
			t.live.steps = len(steps)
		}
		p.mu.Unlock()
		seq, _ = take()
	}
	if seq > runtime.MaxSteps {
		return 0, fmt.Errorf("run %s has %d steps, which is the limit: %w", id, runtime.MaxSteps, runtime.ErrInvalid)
	}
	return seq, nil
}

// logUnit keeps lines of log up to the run's bound; what is over it is counted and dropped.
func (p *Plane) logUnit(r *runtime.Report, fence []store.Fence) (*store.Unit, error) {
	lines := make([]runtime.LogLine, 0, len(r.Logs))
	p.mu.Lock()
	l, err := p.logOf(r)
	if err != nil {
		p.mu.Unlock()
		return nil, err
	}
	for _, line := range r.Logs {
		if l.bytes > runtime.MaxLogBytes {
			break
		}
		line.N = r.N
		if len(line.Text) > runtime.MaxLogLine {
			line.Text = run.Clip(line.Text, runtime.MaxLogLine)
		}
		if l.bytes += len(line.Text) + 32; l.bytes > runtime.MaxLogBytes {
			line = runtime.LogLine{At: line.At, N: r.N, Stream: "errand", Text: fmt.Sprintf("log cut here: over %d bytes in one attempt", runtime.MaxLogBytes)}
		}
		lines = append(lines, line)
	}
	l.chunks++
	seq := l.chunks
	p.mu.Unlock()
	if len(lines) == 0 {
		return nil, nil
	}
	body, err := json.Marshal(lines)
	if err != nil {
		return nil, fmt.Errorf("encode log of run %s: %w", r.Run, err)
	}
	return &store.Unit{Token: p.newID(), Fences: fence, Writes: []store.Write{{Expect: store.AnyVersion, Doc: store.Doc{
		Kind: store.KindLog, Owner: r.Run, Version: 1, Body: body,
		// After a restart, and in another process, the count starts again: time and chance keep order and ids apart.
		ID: p.logID(r, seq),
	}}}}, nil
}

// logged counts what was kept of an attempt's log.
type logged struct {
	bytes, chunks int
}

// maxForeignLogs bounds the attempts whose logs a process that does not lead counts.
const maxForeignLogs = 10_000

// logOf is the count of an attempt's log: the leader has it with the attempt; other processes bound what comes by them.
// With p.mu held.
func (p *Plane) logOf(r *runtime.Report) (*logged, error) {
	if !p.leads() {
		id := runtime.AttemptID(r.Run, r.N)
		if p.logs == nil || len(p.logs) >= maxForeignLogs {
			p.logs = make(map[string]*logged)
		}
		if p.logs[id] == nil {
			p.logs[id] = new(logged)
		}
		return p.logs[id], nil
	}
	t := p.ix.runs[r.Run]
	if t == nil || t.live == nil || t.live.n != r.N {
		return nil, fmt.Errorf("attempt %s: %w", runtime.AttemptID(r.Run, r.N), run.ErrFenced)
	}
	t.live.beat = p.now()
	return &t.live.log, nil
}

func (p *Plane) logID(r *runtime.Report, seq int) string {
	id := fmt.Sprintf("%s/%06d/%014d/%06d", r.Run, r.N, p.now(), seq)
	if !p.store.Exclusive() {
		id += "/" + p.newID()[:8]
	}
	return id
}

// know adds what each attempt must know to the answer to its report. read are records that are known to be new, by the
// place of their report: a process that does not lead reads the others.
func (p *Plane) know(ctx context.Context, reports []runtime.Report, results []*runtime.Result, read map[int]*run.Record) {
	if p.leads() {
		p.mu.Lock()
		defer p.mu.Unlock()
		now := p.now()
		for i := range reports {
			p.standing(&reports[i], results[i], now)
		}
		return
	}
	// 1. Its index knows no attempts: the store tells.
	var ids []string
	at := make(map[string]int)
	for i := range reports {
		if _, asked := at[reports[i].Run]; results[i].Err == nil && read[i] == nil && !asked {
			at[reports[i].Run] = len(ids)
			ids = append(ids, reports[i].Run)
		}
	}
	records, errs := p.load(ctx, ids, true)
	// 2. The leader hears that the handler lives; the attempt hears what it must know.
	for i := range reports {
		r, res := &reports[i], results[i]
		if res.Err != nil {
			continue
		}
		rec := read[i]
		if rec == nil {
			k := at[r.Run]
			if rec = records[k]; rec == nil {
				res.Err = errs[k]
				continue
			}
		}
		switch {
		case rec.Live() && rec.Attempt == r.N:
			p.tellAlive(runtime.AttemptID(r.Run, r.N))
			res.Deadline = run.Earliest(rec.Due, rec.Deadline)
			if rec.Stop != nil {
				res.Cancel, res.CancelReason = true, rec.Stop.Reason
			}
		case !changesRun(r.Type):
			res.Err = fmt.Errorf("attempt %s: %w", runtime.AttemptID(r.Run, r.N), run.ErrFenced)
		}
	}
}

// standing adds what the attempt must know: its deadline and whether it must end; with p.mu held.
func (p *Plane) standing(r *runtime.Report, res *runtime.Result, now run.Instant) {
	t := p.ix.runs[r.Run]
	if t == nil || t.live == nil || t.live.n != r.N {
		if res.Err == nil && !changesRun(r.Type) {
			res.Err = fmt.Errorf("attempt %s: %w", runtime.AttemptID(r.Run, r.N), run.ErrFenced)
		}
		return
	}
	l := t.live
	l.beat = now
	if w := p.ix.workers[l.worker]; w != nil {
		w.seen, w.alive = now, p.mono()
	}
	res.Deadline = l.deadline
	if l.stop != "" {
		res.Cancel, res.CancelReason = true, l.stop
	}
}

// reported is the edit that a report makes.
func (p *Plane) reported(r *runtime.Report) edit {
	return edit{id: r.Run, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		// 1. Fenced: of another attempt, or the run has moved on. What stands already is answered as done: the first answer
		//    was lost.
		if !rec.Live() || rec.Attempt != r.N {
			if stands, err := p.stands(ctx, rec, r); stands || err != nil {
				return draft{}, err
			}
			return draft{}, fmt.Errorf("attempt %s reports %s, but the run is %s in attempt %d: %w", runtime.AttemptID(r.Run, r.N), r.Type, rec.State, rec.Attempt, run.ErrFenced)
		}
		var d draft
		// 2. A worker that fetched the attempt has started it; the start is written with what follows.
		if rec.State == run.Assigned && r.Type != runtime.Released {
			d.events = append(d.events, p.startEvent(ctx, rec, r.Worker, now))
		}
		if r.Type == runtime.Started {
			return d, nil
		}
		usage := p.usageOf(rec.ID, r)
		// 3. An attempt that was told to stop has ended: whatever it says, its result is not taken.
		if rec.State == run.Canceling {
			return d, p.end(ctx, &d, rec, run.Event{Type: run.EvCanceled, Attempt: r.N, At: now, Reason: rec.Reason, Message: rec.Message, Class: run.ClassCanceled, Usage: usage, Sure: vouches(r)})
		}
		if rec.Stop != nil {
			f := retry.Failure{Class: rec.Stop.Class, Message: string(rec.Stop.Reason)}
			d.result.Err = fmt.Errorf("attempt %s was told to stop (%s) and its report comes too late: %w", runtime.AttemptID(r.Run, r.N), rec.Stop.Reason, run.ErrFenced)
			return d, p.failed(ctx, &d, rec, f, usage, vouches(r), now)
		}
		// 4. What it says.
		switch r.Type {
		case runtime.Completed:
			return d, p.completed(ctx, &d, rec, r, usage, now)
		case runtime.Failed:
			f := retry.Failure{Class: r.Class, Code: r.Code, Message: r.Message, RetryAfter: r.RetryIn, Final: r.Final}
			return d, p.failed(ctx, &d, rec, f, usage, vouches(r), now)
		case runtime.Released:
			return d, p.released(ctx, &d, rec, r.Message, usage, vouches(r), now)
		case runtime.Parked:
			return d, p.parked(ctx, &d, rec, r, usage, now)
		}
		return d, nil
	}}
}

// stands reports whether the result of a report is the one that its attempt has ended the run with.
func (p *Plane) stands(ctx context.Context, rec *run.Record, r *runtime.Report) (bool, error) {
	if r.Type != runtime.Completed || rec.State != run.Succeeded || rec.Attempt != r.N || len(r.Output) != rec.Output.Size {
		return false, nil
	}
	recorded, err := p.Value(ctx, rec.Output)
	if errors.Is(err, ErrValueGone) {
		return false, nil
	}
	return err == nil && (len(r.Output) == 0 || bytes.Equal(recorded, r.Output)), err
}

// vouches reports whether a report means that nothing of its attempt can act any more. Whoever tells a result or a failure
// of the work itself is done with it. An attempt that was timed out, stopped, given back or not heard of may go on, be it a
// handler whose request was given up or one that does not listen: that it is gone, its executor has to say.
func vouches(r *runtime.Report) bool {
	switch {
	case r.Ended || r.Type == runtime.Completed || r.Type == runtime.Parked:
		return true
	case r.Type != runtime.Failed:
		return false
	}
	switch r.Class {
	case run.ClassLost, run.ClassTimeout, run.ClassCanceled, run.ClassInfrastructure, run.ClassBudget:
		return false
	}
	return true
}

// startEvent confirms an attempt's start, dated at its hand-over.
func (p *Plane) startEvent(ctx context.Context, rec *run.Record, worker string, now run.Instant) run.Event {
	at := now
	p.mu.Lock()
	if t := p.ix.runs[rec.ID]; t != nil && t.live != nil && t.live.n == rec.Attempt && t.live.handed != 0 {
		at = min(now, t.live.handed)
		if worker == "" {
			worker = t.live.worker
		}
	}
	p.mu.Unlock()
	deadline := at.Add(p.attemptTimeout(ctx, rec))
	return run.Event{Type: run.EvStarted, At: max(at, rec.UpdatedAt), Attempt: rec.Attempt, Worker: worker, Due: deadline}
}

func (p *Plane) attemptTimeout(ctx context.Context, rec *run.Record) time.Duration {
	if a := p.agentOf(ctx, rec); a != nil && a.Timeouts.Attempt > 0 {
		return a.Timeouts.Attempt.Std()
	}
	return 5 * time.Minute
}

// agentOf is the agent as declared for the run; nil if it is nowhere any more.
func (p *Plane) agentOf(ctx context.Context, rec *run.Record) *fleet.Agent {
	if rec.Kind != run.KindAgent {
		return nil
	}
	x, err := p.agentAt(ctx, rec.Agent, rec.Revision)
	if err != nil {
		return nil
	}
	a, _ := x.object.(*fleet.Agent)
	return a
}

// usageOf is the attempt's total: what it says at its end, or the sum of what it said on the way.
func (p *Plane) usageOf(id string, r *runtime.Report) *run.Usage {
	if r.Usage != nil {
		return r.Usage
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.ix.runs[id]; t != nil && t.live != nil && t.live.n == r.N && t.live.usage != (run.Usage{}) {
		u := t.live.usage
		return &u
	}
	return nil
}

// end adds the end of a run, and when its record is removed. An end without success of one that has something to undo
// becomes the beginning of that, which the same end follows. Where it cannot be found out whether it has, nothing is added.
func (p *Plane) end(ctx context.Context, d *draft, rec *run.Record, e run.Event) error {
	undoes := false
	if e.Type != run.EvSucceeded {
		var err error
		if undoes, err = p.mustUndo(ctx, rec, e.Reason); err != nil {
			return err
		}
	}
	if undoes {
		e.Type = run.EvCompensating
	} else {
		e.Due = p.removeAt(rec, max(e.At, rec.UpdatedAt))
	}
	d.events = append(d.events, e)
	return nil
}

// completed takes an output: it must be of the declared form and size.
func (p *Plane) completed(ctx context.Context, d *draft, rec *run.Record, r *runtime.Report, usage *run.Usage, now run.Instant) error {
	if len(r.Output) > runtime.MaxResult {
		f := retry.Failure{Class: run.ClassUser, Code: string(run.ResultTooLarge), Final: true,
			Message: fmt.Sprintf("the output has %d bytes, %d at most", len(r.Output), runtime.MaxResult)}
		return p.failed(ctx, d, rec, f, usage, true, now)
	}
	if x, err := p.agentAt(ctx, rec.Agent, rec.Revision); err == nil && x.output != nil && rec.Mode == "" {
		if faults := validate(x.output, r.Output, "output"); len(faults) > 0 {
			f := retry.Failure{Class: run.ClassUser, Code: string(run.OutputInvalid),
				Message: fmt.Sprintf("the output is not what the agent declares: %s: %s", faults[0].Location, faults[0].Message)}
			return p.failed(ctx, d, rec, f, usage, true, now)
		}
	}
	output, writes := stash(rec.ID, fmt.Sprintf("out/%d", rec.Attempt), r.Output, run.MaxInline)
	d.writes = append(d.writes, writes...)
	if err := p.keepSession(ctx, d, rec, r.Session); err != nil {
		return err
	}
	return p.end(ctx, d, rec, run.Event{
		Type: run.EvSucceeded, At: now, Attempt: rec.Attempt, Output: &output, Usage: usage, Score: r.Score, Sure: true,
	})
}

// released puts the run back into the queue and gives the attempt back.
func (p *Plane) released(ctx context.Context, d *draft, rec *run.Record, why string, usage *run.Usage, sure bool, now run.Instant) error {
	if rec.Returned >= run.MaxReturned {
		f := retry.Failure{Class: run.ClassInfrastructure, Message: why}
		return p.failed(ctx, d, rec, f, usage, sure, now)
	}
	d.events = append(d.events, run.Event{Type: run.EvReleased, At: now, Attempt: rec.Attempt, Message: why, Usage: usage, Due: p.queueEnd(ctx, rec, now), Sure: sure})
	return nil
}

// queueEnd is when a run that enters the queue now has waited too long.
func (p *Plane) queueEnd(ctx context.Context, rec *run.Record, now run.Instant) run.Instant {
	if a := p.agentOf(ctx, rec); a != nil && a.Timeouts.Queue > 0 {
		return now.Add(a.Timeouts.Queue.Std())
	}
	return 0
}

// parked ends the attempt until what it waits for comes. If it is there already, the run goes back to the queue.
func (p *Plane) parked(ctx context.Context, d *draft, rec *run.Record, r *runtime.Report, usage *run.Usage, now run.Instant) error {
	park := *r.Park
	// A step ends once: an attempt that waits again in one that has ended does not look at what it was given, and would
	// go round for ever without spending anything.
	switch _, err := p.store.Get(ctx, store.KindStep, stepID(rec.ID, park.Step)); {
	case err == nil:
		f := retry.Failure{Class: run.ClassUser, Code: "StepEnded", Final: true,
			Message: fmt.Sprintf("it parked in step %.80q, which has ended before: its result is among the steps that the attempt was given", park.Step)}
		return p.failed(ctx, d, rec, f, usage, true, now)
	case !errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("read step %s of run %s: %w", park.Step, rec.ID, err)
	}
	seq, err := p.nextStep(ctx, rec.ID, rec.Attempt)
	if err != nil {
		return err
	}
	park.Seq = seq
	if err := p.keepSession(ctx, d, rec, r.Session); err != nil {
		return err
	}
	if park.On == run.OnGate {
		if err := p.parkedAtGate(ctx, d, rec, r, &park, now); err != nil {
			return err
		}
	}
	e := run.Event{Type: run.EvParked, At: now, Attempt: rec.Attempt, Park: &park, Due: park.Until, Usage: usage, Sure: true}
	asked := askedReceipt(&park)
	if asked != "" {
		e.Message = fmt.Sprintf("whether an effect happened is unknown: find out, and say so with \"errand resolve %s\"", asked)
		park.Left = p.timeLeft(ctx, rec, now)
	}
	d.events = append(d.events, e)
	var came *run.Signal
	for i := range rec.Signals {
		if park.On == run.OnInput && rec.Signals[i].Name == park.Name {
			came = &rec.Signals[i]
			break
		}
	}
	if came == nil && (park.On == run.OnGate || park.Until == 0 || park.Until > now) {
		if asked == "" {
			return nil
		}
		if open, err := p.awaitWord(ctx, d, rec, asked); err != nil || open {
			return err
		}
	}
	d.result.Resumed = true
	return p.woken(ctx, d, rec, &park, came, now)
}

// woken resumes a parked run: the step that it waited in ends with the signal's value, or with the time being over.
func (p *Plane) woken(ctx context.Context, d *draft, rec *run.Record, park *run.Park, came *run.Signal, now run.Instant) error {
	result := json.RawMessage(`{}`)
	switch {
	case came != nil:
		value, err := p.Value(ctx, came.Payload)
		if err != nil {
			return err
		}
		result = append(append([]byte(`{"signal":`), value...), '}')
	case park.On == run.OnInput:
		result = json.RawMessage(`{"timeout":true}`)
	}
	w, err := stepWrite(rec.ID, runtime.Step{Name: park.Step, Seq: park.Seq, Result: result})
	if err != nil {
		return err
	}
	w.Expect = store.AnyVersion
	d.writes = append(d.writes, w)
	d.events = append(d.events, run.Event{Type: run.EvWoken, At: now, Signal: came, Due: p.queueEnd(ctx, rec, now)})
	return nil
}
