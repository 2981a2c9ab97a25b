package control

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/workflow"
	"github.com/errand-run/errand/shared/workflow/cel"
)

// Workflows at the door: what is declared of them, their submission and admission, and how a finished run is repeated
// from one of its stages.

// compileFlow prepares a workflow.
func (x *declaration) compileFlow(w *fleet.Workflow) []Fault {
	var faults []Fault
	if len(w.Input) > 0 {
		var err error
		if x.input, err = compileSchema(w.Input); err != nil {
			faults = append(faults, Fault{"spec.input.schema", err.Error()})
		}
	}
	if problems := w.Validate(); len(problems) > 0 {
		return faults // told already, and a plan needs a good one
	}
	var problems []fleet.Problem
	x.plan, problems = cel.Compile(w)
	for _, p := range problems {
		faults = append(faults, Fault{p.Path, p.Message})
	}
	return faults
}

// shelf is what is declared once a set is applied.
type shelf map[objectKey]fleet.Object

// Agent is one of them, or nil.
func (s shelf) Agent(name string) *fleet.Agent {
	a, _ := s[objectKey{fleet.KindAgent, name}].(*fleet.Agent)
	return a
}

// Workflow is one of them, or nil.
func (s shelf) Workflow(name string) *fleet.Workflow {
	w, _ := s[objectKey{fleet.KindWorkflow, name}].(*fleet.Workflow)
	return w
}

// checkFlows checks the workflows of a set against all that is declared with it.
func (p *Plane) checkFlows(next []*declaration, prune bool) []Fault {
	if !slices.ContainsFunc(next, func(x *declaration) bool { return x.plan != nil }) {
		return nil
	}
	all := make(shelf)
	if !prune {
		for _, x := range p.declared.list("") {
			all[x.key()] = x.object
		}
	}
	for _, x := range next {
		all[x.key()] = x.object
	}
	var faults []Fault
	for _, x := range next {
		if x.plan == nil {
			continue
		}
		for _, problem := range x.plan.Check(all) {
			faults = append(faults, Fault{"Workflow " + x.object.Name() + ": " + problem.Path, problem.Message})
		}
	}
	return faults
}

// usedBy is a workflow that names an agent or a workflow and stays declared; "" for none.
func (p *Plane) usedBy(x *declaration, stay map[string]bool) string {
	for _, y := range p.declared.list(fleet.KindWorkflow) {
		w := y.object.(*fleet.Workflow)
		if y == x || stay != nil && !stay[y.id()] {
			continue
		}
		switch x.object.Kind() {
		case fleet.KindAgent:
			if slices.Contains(workflow.Agents(w), x.object.Name()) {
				return w.Name()
			}
		case fleet.KindWorkflow:
			if slices.Contains(workflow.Calls(w), x.object.Name()) {
				return w.Name()
			}
		}
	}
	return ""
}

// admitFlow checks a submission of a workflow and makes its record.
func (p *Plane) admitFlow(ctx context.Context, s *Submission, now run.Instant, queuedNow map[string]int) (arrival, error) {
	// 1. Form.
	x := p.declaredNamed(ctx, fleet.KindWorkflow, s.Workflow)
	switch {
	case s.Agent != "":
		return arrival{}, refuse(CodeInvalid, "the run names agent %.80q and workflow %.80q; name one of them", s.Agent, s.Workflow)
	case x == nil:
		return arrival{}, refuse(CodeNotFound, "there is no workflow %.80q; declare it with \"errand apply\", or see \"errand get workflows\"", s.Workflow)
	case s.Session != "":
		return arrival{}, refuse(CodeInvalid, "session %.80q: a workflow has none; the agents that it calls may", s.Session)
	}
	if err := checkSubmission(s, x, now); err != nil {
		return arrival{}, err
	}
	if err := x.takes(s.Input); err != nil {
		return arrival{}, err
	}
	// 2. Admission at the door: it waits for no slot, and counts among those that wait.
	tenant := p.tenantOf(s.Tenant)
	priority := admission.Priority(s.Priority, tenant)
	ofTenant, _ := p.loadOf(s.Tenant, "")
	v := admission.Submit(&fleet.Agent{Meta: fleet.Meta{Name: s.Workflow}}, tenant, admission.View{
		TenantQueued: ofTenant.queued + queuedNow[s.Tenant], TenantRunning: ofTenant.live, FreeSlots: true,
	}, priority)
	switch v.Action {
	case admission.Shed:
		return arrival{}, &Refusal{Code: CodeOverloaded, Detail: v.Message, RetryAfter: v.RetryAfter}
	case admission.Refuse:
		return arrival{}, refuse(CodeInvalid, "%s", v.Message)
	}
	queuedNow[s.Tenant]++
	// 3. The record.
	w := x.object.(*fleet.Workflow)
	spec := run.Spec{
		Tenant: s.Tenant, Priority: priority, Labels: s.Labels, Key: s.Key, CreatedAt: now, NotBefore: run.At(s.NotBefore),
		Deadline: run.At(s.Deadline), Trace: s.Trace, BudgetUSD: s.BudgetUSD, BudgetToken: s.Tokens,
	}
	x.asFlow(&spec)
	if spec.BudgetUSD == 0 && spec.BudgetToken == 0 {
		spec.BudgetUSD, spec.BudgetToken = w.Budget.USD, w.Budget.Tokens
	}
	p.identify(&spec, s)
	return p.arrivalOf(spec, s.Input, within(w), s.Actor, now)
}

// asFlow makes a run one of the workflow as it is declared.
func (x *declaration) asFlow(spec *run.Spec) {
	w := x.object.(*fleet.Workflow)
	spec.Kind, spec.Agent, spec.Version, spec.Revision, spec.RetainFor = run.KindWorkflow, w.Name(), w.Version, x.revision, retainFor(w.Retain)
}

// takes refuses an input that is not of the declared form.
func (x *declaration) takes(input json.RawMessage) error {
	if x.input == nil {
		return nil
	}
	faults := validate(x.input, input, "input")
	if len(faults) == 0 {
		return nil
	}
	return &Refusal{Code: CodeInvalid, Faults: faults,
		Detail: fmt.Sprintf("input does not match the schema of %s %s", strings.ToLower(x.object.Kind()), x.object.Name())}
}

func within(w *fleet.Workflow) *fleet.Timeouts {
	return &fleet.Timeouts{Queue: w.Timeouts.Queue, Run: w.Timeouts.Run}
}

// flowCountsWaiting reports whether waiting for a person counts towards the time of a workflow's run.
func (p *Plane) flowCountsWaiting(ctx context.Context, rec *run.Record) bool {
	x, err := p.declaredAt(ctx, fleet.KindWorkflow, rec.Agent, rec.Revision)
	if err != nil {
		return false
	}
	return x.object.(*fleet.Workflow).Timeouts.CountWaiting
}

// workflowChild makes the first record of a workflow that a run calls; spec is what it takes from its parent.
func (p *Plane) workflowChild(ctx context.Context, spec run.Spec, c *call, now run.Instant) (arrival, error) {
	x := p.declaredNamed(ctx, fleet.KindWorkflow, c.Workflow)
	if x == nil {
		return arrival{}, refuse(CodeNotFound, "there is no workflow %.80q; declare it with \"errand apply\"", c.Workflow)
	}
	if err := x.takes(c.Input); err != nil {
		return arrival{}, err
	}
	x.asFlow(&spec)
	return p.arrivalOf(spec, c.Input, within(x.object.(*fleet.Workflow)), "run:"+spec.Parent, now)
}

// flowStory says where a workflow's run stands.
func flowStory(rec *run.Record) string {
	switch {
	case rec.State == run.Queued:
		return "It begins as soon as fewer workflows of its tenant go on than its quota of running ones allows."
	case rec.State == run.Waiting && rec.Park != nil && rec.Park.On == run.OnGate:
		return fmt.Sprintf("It is at stage %s and waits until people have decided gate %s.", rec.Flow, rec.Park.Name)
	case rec.State.Terminal():
		return fmt.Sprintf("It ended at stage %s.", rec.Flow)
	}
	return fmt.Sprintf("It is at stage %s, where it waits for the runs that it called: \"errand tree %s\" shows them. It holds no slot.", rec.Flow, rec.ID)
}

// flowLoad is the runs of workflows of one tenant that nobody called: those that go on, and those that wait until fewer do.
type flowLoad struct {
	running map[string]struct{}
	waiting []string
}

// maxWoken bounds the waiting runs that one change looks at.
const maxWoken = 100

// mayBegin reports whether a queued run of a workflow begins now. A tenant has as many at a time as its quota of running
// ones says, which are counted apart: they hold no slot. One that is called by another begins at once, or both would
// wait for ever.
func (p *Plane) mayBegin(rec *run.Record) bool {
	most := p.tenantOf(rec.Tenant).Quota.Running
	if rec.Parent != "" || most <= 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	load := p.ix.flowsOf(rec.Tenant)
	if len(load.running) < most {
		return true
	}
	if !slices.Contains(load.waiting, rec.ID) {
		load.waiting = append(load.waiting, rec.ID)
	}
	return false
}

func (ix *index) flowsOf(tenant string) *flowLoad {
	load := ix.flows[tenant]
	if load == nil {
		load = &flowLoad{running: make(map[string]struct{})}
		ix.flows[tenant] = load
	}
	return load
}

// flowing notes how a workflow's run stands, and has those looked at that may begin when it does not go on any more.
func (ix *index) flowing(r *run.Record, gone bool) {
	if r.Kind != run.KindWorkflow || r.Parent != "" {
		return
	}
	if r.State == run.Running && !gone {
		ix.flowsOf(r.Tenant).running[r.ID] = struct{}{}
		return
	}
	load := ix.flows[r.Tenant]
	if load == nil {
		return
	}
	if _, was := load.running[r.ID]; was {
		delete(load.running, r.ID)
		ix.wakeFlows(load)
	}
	if len(load.running)+len(load.waiting) == 0 {
		delete(ix.flows, r.Tenant)
	}
}

// wakeFlows has waiting runs looked at; those that may still not begin wait again.
func (ix *index) wakeFlows(load *flowLoad) {
	n := min(len(load.waiting), maxWoken)
	for _, id := range load.waiting[:n] {
		ix.kin.lookAt(id)
	}
	load.waiting = slices.Clone(load.waiting[n:])
}

// flowStep is the step document of an outcome.
func flowStep(name string, seq int, body json.RawMessage) runtime.Step {
	return runtime.Step{Name: name, Seq: seq, Result: body}
}

// retryOfFlow makes the record of a run that repeats a workflow's: from a stage on, with the outcomes of all before it;
// else from where it failed; else, with another input or after a success, from its beginning.
func (p *Plane) retryOfFlow(ctx context.Context, old *run.Record, q RetryRequest) (arrival, error) {
	var a arrival
	// 1. What it is a run of: the workflow as it is declared now, which the old run's way must fit.
	x := p.declaredNamed(ctx, fleet.KindWorkflow, old.Agent)
	if x == nil {
		return a, refuse(CodeNotFound, "workflow %s is not declared any more", old.Agent)
	}
	input, err := p.Value(ctx, old.Input)
	if err != nil {
		return a, err
	}
	whole := q.From == "" && (q.Input != nil || old.State == run.Succeeded)
	if whole && q.Input != nil {
		input = q.Input
	}
	if err := x.takes(input); err != nil {
		return a, err
	}
	now := p.now()
	w := x.object.(*fleet.Workflow)
	spec := run.Spec{
		ID: p.runID(now), Tenant: old.Tenant, Priority: old.Priority, Labels: old.Labels, Unit: old.WorkUnit(), CreatedAt: now,
		RetryOf: old.ID, Trace: old.Trace, BudgetUSD: old.BudgetUSD, BudgetToken: old.BudgetToken,
	}
	q.identify(&spec, old.ID)
	x.asFlow(&spec)
	if a, err = p.arrivalOf(spec, input, within(w), q.Actor, now); err != nil {
		return a, err
	}
	a.writes = append(a.writes, retryLink(old.ID, spec.ID))
	if whole {
		return a, nil
	}
	// 2. What it takes over: named now, and copied when it begins.
	kept, given, err := p.keptOf(ctx, old, x.plan, input, q)
	if err != nil {
		return a, err
	}
	if given != nil {
		writes, err := outcomeWrites(spec.ID, given.name, len(kept)+1, given.Outcome)
		if err != nil {
			return a, err
		}
		a.writes = append(a.writes, writes...)
	}
	if len(kept) > 0 {
		w, err := takeoverWrite(spec.ID, kept)
		if err != nil {
			return a, err
		}
		a.writes = append(a.writes, w)
	}
	return a, nil
}

// keptOf names the outcomes that a retry takes over from the run that it repeats. given is another input of the stage from
// which it goes anew, nil for none.
func (p *Plane) keptOf(ctx context.Context, old *run.Record, plan *workflow.Plan, input json.RawMessage, q RetryRequest) (kept []string, given *named, err error) {
	// 1. What was undone is not taken over.
	undone, err := p.wasUndone(ctx, old)
	if err != nil {
		return nil, nil, err
	}
	if undone {
		if q.From != "" {
			return nil, nil, refuse(CodeState, "what run %s did was undone when it ended: it can be retried as a whole, not from stage %.80q", old.ID, q.From)
		}
		return nil, nil, nil
	}
	outcomes, err := p.outcomesOf(ctx, old.ID)
	if err != nil {
		return nil, nil, err
	}
	// 2. The stage from which it goes anew, on the way that the old run went.
	visits := plan.Visits(workflow.Progress{
		Input: input, Outcomes: outcomes,
		Run: workflow.Run{ID: old.ID, Workflow: old.Agent, Tenant: old.Tenant, Labels: old.Labels},
	})
	from := len(visits) - 1
	if q.From != "" {
		from = slices.IndexFunc(visits, func(v workflow.Visit) bool { return v.Stage == q.From || v.Name == q.From })
	}
	if from < 0 {
		names := make([]string, 0, len(visits))
		for _, v := range visits {
			names = append(names, v.Name)
		}
		return nil, nil, refuse(CodeInvalid, "run %s has not been at stage %.80q by the workflow as it is declared now; it was at %s", old.ID, q.From, run.Clip(strings.Join(names, ", "), 500))
	}
	// 3. All before it, and what is given to it.
	before := make(map[string]bool, from)
	for _, v := range visits[:from] {
		before[v.Name] = true
	}
	for name := range outcomes {
		if visit, _, _ := strings.Cut(name, "/"); before[visit] {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	if q.Input != nil {
		given = &named{visits[from].Name + "/input", &workflow.Outcome{State: workflow.Succeeded, Output: q.Input, At: p.now()}}
	}
	return kept, given, nil
}

// wasUndone reports whether something that a run did was undone at its end.
func (p *Plane) wasUndone(ctx context.Context, rec *run.Record) (bool, error) {
	if rec.State == run.Succeeded {
		return false, nil
	}
	children, err := p.childrenOf(ctx, rec)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(children, func(c *run.Record) bool { return strings.HasPrefix(c.Stage, undoStage) }), nil
}

// undoOfFlow is what is to be undone of the stages of a workflow, beside what the runs that it called undo themselves.
// The children that do it are those of root.
func (p *Plane) undoOfFlow(ctx context.Context, r *run.Record, root string) ([]undoItem, error) {
	plan, progress, err := p.progressOf(ctx, r)
	if err != nil {
		return nil, err
	}
	list := plan.Undo(progress)
	items := make([]undoItem, len(list))
	for i, u := range list {
		stage := undoStage + u.Step
		if r.ID != root {
			stage = undoStage + r.ID + "/" + u.Step
		}
		items[i] = undoItem{stage: stage, at: u.At, call: call{Agent: u.Agent, Input: u.Input, Unit: undoUnit(r, u.Step)}}
	}
	return items, nil
}

// undoUnit is the unit of work of what undoes a stage: the same, whichever run above has it undone.
func undoUnit(r *run.Record, step string) string { return childUnit(r, undoStage+step, 0) }
