package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Children of runs. A child is a run like any other, with an id that follows from its parent, the parent's stage that
// called it and its place there: to call again is to meet the same child. Nothing is written to the parent when a child
// ends. Whoever leads counts them in memory, see kin.go, and writes the parent once, when its group is decided.

// call asks for a child.
type call struct {
	Agent, Workflow string // one of them
	Input           json.RawMessage
	Mode, Of        string // see run.ModeCompensate
	Unit            string // of work; "" follows from the parent's
}

// childID is the id of a run's child.
func childID(parent, stage string, item int) string {
	sum := sha256.Sum256([]byte("child\x00" + parent + "\x00" + stage + "\x00" + strconv.Itoa(item)))
	return idEncoding.EncodeToString(sum[:])[:20]
}

// maxUnit bounds a derived unit of work; what would be longer is told by its hash.
const maxUnit = 256

// childUnit is the unit of work of a child: a parent that is tried anew has children that meet their receipts.
func childUnit(parent *run.Record, stage string, item int) string {
	unit := parent.WorkUnit() + "/" + stage + "/" + strconv.Itoa(item)
	if len(unit) <= maxUnit {
		return unit
	}
	sum := sha256.Sum256([]byte(unit))
	return "unit/" + hex.EncodeToString(sum[:])
}

// hash tells a repeat of a call from another one for the same place.
func (c *call) hash(maxAtOnce int) string {
	h := sha256.New()
	for _, part := range []string{c.Agent, c.Workflow, c.Mode, c.Of, c.Unit, strconv.Itoa(maxAtOnce)} {
		fmt.Fprintf(h, "%d:%s", len(part), part) // cannot fail
	}
	h.Write(compact(c.Input))
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// spawn makes children of a stage of the parent: items first, first+1, … They are durable when it returns nil. One that
// is there by the same call stays as it is; by another call it is a conflict. At most maxAtOnce of the stage execute at
// a time, 0 for any number. For stages of the loop; executors ask through Children.
func (p *Plane) spawn(ctx context.Context, parent *run.Record, stage string, first int, calls []call, maxAtOnce int) error {
	if err := checkSpawn(parent, stage, first, len(calls), maxAtOnce); err != nil {
		return err
	}
	for at := range slices.Chunk(indexes(len(calls)), maxPass) {
		written := make(chan error, 1)
		p.spawnPart(ctx, parent, stage, first, calls, at, maxAtOnce, p.commitArrivals, func(err error) { written <- err })
		if err := <-written; err != nil {
			return err
		}
	}
	return nil
}

// checkSpawn refuses children that cannot be.
func checkSpawn(parent *run.Record, stage string, first, n, maxAtOnce int) error {
	switch {
	case !validName(stage):
		return refuse(CodeInvalid, "call children of run %s: step %.80q is no name", parent.ID, stage)
	case first < 0 || n == 0 || first+n > run.MaxChildren:
		return refuse(CodeInvalid, "call children of run %s: items %d to %d of step %s; a step has items 0 to %d", parent.ID, first, first+n-1, stage, run.MaxChildren-1)
	case maxAtOnce < 0:
		return refuse(CodeInvalid, "call children of run %s: max %d of step %s, want 1 or more at a time, or 0 for any number", parent.ID, maxAtOnce, stage)
	case parent.State.Terminal() || parent.State == run.Canceling:
		return refuse(CodeState, "call children of run %s: it is %s", parent.ID, parent.State)
	}
	return nil
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// spawnedOf reports which items of a stage are known to be there.
func (p *Plane) spawnedOf(parent, stage string, first, n int) map[int]bool {
	there := make(map[int]bool)
	if !p.leads() {
		return there
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.ix.kin.of[parent]; k != nil && k.stages[stage] != nil {
		for i := range n {
			if k.stages[stage].known.has(first + i) {
				there[i] = true
			}
		}
	}
	return there
}

// spawnPart makes the children of some of the calls, by their places: those that are known to be there are compared, the
// others written. then is told when all are there, perhaps before spawnPart returns.
func (p *Plane) spawnPart(ctx context.Context, parent *run.Record, stage string, first int, calls []call, at []int, maxAtOnce int, enter func(context.Context, []arrival), then func(error)) {
	now, there := p.now(), p.spawnedOf(parent.ID, stage, first, len(calls))
	var list []arrival
	var met []int // that are there
	var mu sync.Mutex
	var failure error
	left := 0
	for _, i := range at {
		if there[i] {
			met = append(met, i)
			continue
		}
		a, err := p.childOf(ctx, parent, stage, first+i, &calls[i], maxAtOnce, now)
		if err != nil {
			then(err)
			return
		}
		left++
		a.done = func(_ arrival, err error) {
			mu.Lock()
			switch {
			case errors.Is(err, store.ErrExists):
				met = append(met, i)
			case err != nil && failure == nil:
				failure = fmt.Errorf("call child %d of step %s of run %s: %w", first+i, stage, parent.ID, err)
			}
			left--
			last := left == 0
			mu.Unlock()
			switch {
			case !last:
			case failure != nil:
				then(failure)
			default:
				then(p.compareCalls(ctx, parent, stage, first, calls, met, maxAtOnce))
			}
		}
		list = append(list, a)
	}
	if len(list) == 0 {
		then(p.compareCalls(ctx, parent, stage, first, calls, met, maxAtOnce))
		return
	}
	enter(ctx, list)
}

// compareCalls refuses calls for places that are taken by others.
func (p *Plane) compareCalls(ctx context.Context, parent *run.Record, stage string, first int, calls []call, met []int, maxAtOnce int) error {
	ids := make([]string, len(met))
	for k, i := range met {
		ids[k] = childID(parent.ID, stage, first+i)
	}
	if len(ids) == 0 {
		return nil
	}
	records, errs := p.load(ctx, ids, false)
	for k, i := range met {
		switch {
		case errs[k] != nil:
			return fmt.Errorf("call child %d of step %s of run %s: %w", first+i, stage, parent.ID, errs[k])
		case records[k].Hash != calls[i].hash(maxAtOnce):
			return refuse(CodeConflict, "child %d of step %s of run %s was called before with another agent, input or limit: run %s; "+
				"a step that is replayed must ask for the same", first+i, stage, parent.ID, ids[k])
		}
	}
	return nil
}

// childOf makes the first record of a child.
func (p *Plane) childOf(ctx context.Context, parent *run.Record, stage string, item int, c *call, maxAtOnce int, now run.Instant) (arrival, error) {
	where := fmt.Sprintf("child %d of step %s of run %s", item, stage, parent.ID)
	// 1. What it takes from its parent.
	spec := run.Spec{
		ID: childID(parent.ID, stage, item), Tenant: parent.Tenant, Priority: parent.Priority, Labels: parent.Labels, Hash: c.hash(maxAtOnce),
		Unit: c.Unit, CreatedAt: now, Deadline: parent.Latest, Parent: parent.ID, Root: parent.Root, Stage: stage, Item: item,
		Depth: parent.Depth + 1, Requester: parent.Requester, Latest: parent.Latest, Mode: c.Mode, Of: c.Of, Trace: parent.Trace, BudgetUSD: parent.BudgetUSD, BudgetToken: parent.BudgetToken,
	}
	if spec.Root == "" {
		spec.Root = parent.ID
	}
	if spec.Unit == "" {
		spec.Unit = childUnit(parent, stage, item)
	}
	if c.Mode != "" || strings.HasPrefix(stage, undoStage) { // what the run did is undone also when its time and its money are used up
		spec.Deadline, spec.BudgetUSD, spec.BudgetToken = 0, 0, 0
	}
	if maxAtOnce > 0 {
		spec.Groups = []run.Group{{Key: parent.ID + "/" + stage, Max: maxAtOnce}}
	}
	// 2. What it is.
	switch {
	case len(c.Input) > run.MaxPayload:
		return arrival{}, refuse(CodeTooLarge, "%s: the input has %d bytes, %d at most", where, len(c.Input), run.MaxPayload)
	case len(c.Input) > 0 && !json.Valid(c.Input):
		return arrival{}, refuse(CodeInvalid, "%s: the input is not JSON", where)
	case (c.Agent == "") == (c.Workflow == ""):
		return arrival{}, refuse(CodeInvalid, "%s: name an agent or a workflow", where)
	}
	if err := p.mayCall(ctx, parent, c); err != nil {
		return arrival{}, fmt.Errorf("%s: %w", where, err)
	}
	if c.Workflow != "" {
		return p.workflowChild(ctx, spec, c, now)
	}
	x, err := p.calledAgent(ctx, parent, c)
	if err != nil {
		return arrival{}, fmt.Errorf("%s: %w", where, err)
	}
	agent := x.object.(*fleet.Agent)
	if x.input != nil && c.Mode == "" {
		if faults := validate(x.input, c.Input, "input"); len(faults) > 0 {
			return arrival{}, &Refusal{Code: CodeInvalid, Detail: fmt.Sprintf("%s: input does not match the schema of agent %s", where, c.Agent), Faults: faults}
		}
	}
	spec.Kind, spec.Agent, spec.Version, spec.Revision, spec.RetainFor = run.KindAgent, c.Agent, agent.Version, x.revision, retainFor(agent.Retain)
	if agent.Shape == fleet.Instance {
		spec.Session = "default"
	}
	groups, err := x.groupsOf(ctx, &spec, c.Input)
	if err != nil && c.Mode == "" { // what is to be undone need not have the input of a run
		return arrival{}, fmt.Errorf("%s: %w", where, err)
	}
	spec.Groups = append(spec.Groups, groups...)
	return p.arrivalOf(spec, c.Input, &agent.Timeouts, "run:"+parent.ID, now)
}

// mayCall refuses what the parent's agent is not permitted. A workflow calls what it declares.
func (p *Plane) mayCall(ctx context.Context, parent *run.Record, c *call) error {
	if parent.Kind != run.KindAgent || c.Mode != "" {
		return nil
	}
	callee, kind := c.Agent, "agent"
	if callee == "" {
		callee, kind = c.Workflow, "workflow"
	}
	a := p.agentOf(ctx, parent)
	if a == nil || !slices.Contains(a.Permissions.Call, callee) {
		return refuse(CodeForbidden, "agent %s may not call %s %.80q: name it in spec.permissions.call of %s, which has %s", parent.Agent, kind, callee, parent.Agent, permitted(a))
	}
	return nil
}

func permitted(a *fleet.Agent) string {
	if a == nil || len(a.Permissions.Call) == 0 {
		return "none"
	}
	return run.Clip(strings.Join(a.Permissions.Call, ", "), 200)
}

// calledAgent is the agent as it is declared now; what undoes a run is executed as the run was.
func (p *Plane) calledAgent(ctx context.Context, parent *run.Record, c *call) (*declaration, error) {
	if c.Mode == run.ModeCompensate {
		of, err := p.Get(ctx, c.Of)
		if err != nil {
			return nil, err
		}
		return p.agentAt(ctx, of.Agent, of.Revision)
	}
	if x := p.agentNamed(ctx, c.Agent); x != nil {
		return x, nil
	}
	return nil, refuse(CodeNotFound, "there is no agent %.80q; declare it with \"errand apply\", or see \"errand get agents\"", c.Agent)
}

// family tells how far the children of a stage of the parent are.
func (p *Plane) family(ctx context.Context, parent *run.Record, stage string) (family, error) {
	if p.leads() {
		p.mu.Lock()
		k := p.ix.kin.of[parent.ID]
		if parent.CreatedAt > p.ix.kin.since || k != nil && (k.listed || k.stages[stage] != nil && k.stages[stage].read) {
			var b *brood
			if k != nil {
				b = k.stages[stage]
			}
			p.mu.Unlock()
			return b.family(), nil
		}
		p.mu.Unlock()
	}
	return p.countStage(ctx, parent.ID, stage, 0)
}

// countStage reads the children of a stage: size of them, or for 0 up to the first item that is not there.
func (p *Plane) countStage(ctx context.Context, parent, stage string, size int) (family, error) {
	count := kin{stages: make(map[string]*brood)}
	for first, n := 0, 64; first < run.MaxChildren && (size == 0 || first < size); first, n = first+n, min(4*n, store.MaxPage) {
		n = min(n, run.MaxChildren-first)
		if size > 0 {
			n = min(n, size-first)
		}
		ids := make([]string, n)
		for i := range ids {
			ids[i] = childID(parent, stage, first+i)
		}
		records, errs := p.load(ctx, ids, false)
		missing := false
		for i, r := range records {
			switch {
			case errs[i] == nil:
				count.add(stage, first+i, r.State)
			case isNotFound(errs[i]):
				missing = true
			default:
				return family{}, fmt.Errorf("count the children of run %s, step %s: %w", parent, stage, errs[i])
			}
		}
		if p.leads() {
			p.mu.Lock()
			for _, r := range records {
				if r != nil {
					p.ix.kinOf(parent).add(stage, r.Item, r.State)
				}
			}
			p.mu.Unlock()
		}
		if missing && size == 0 {
			break
		}
	}
	if !p.leads() {
		return count.stages[stage].family(), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.ix.kinOf(parent)
	if k.stages[stage] == nil {
		k.stages[stage] = new(brood)
	}
	k.stages[stage].read = true
	return k.stages[stage].family(), nil
}

// kinOf is what is known of a parent's children; with Plane.mu held.
func (ix *index) kinOf(parent string) *kin {
	if k := ix.kin.of[parent]; k != nil {
		return k
	}
	return ix.kin.enter(parent)
}

// childResult is how a child stands.
type childResult struct {
	Run     string          `json:"run"`
	State   run.State       `json:"state"`
	Reason  run.Reason      `json:"reason,omitempty"`
	Code    string          `json:"code,omitempty"`
	Message string          `json:"message,omitempty"`
	Output  json.RawMessage `json:"output,omitempty"`
}

// results are the children of a stage in the order of their items, with the outputs of those that succeeded.
func (p *Plane) results(ctx context.Context, parent *run.Record, stage string) ([]childResult, error) {
	f, err := p.family(ctx, parent, stage)
	if err != nil {
		return nil, err
	}
	list, err := p.resultsOf(ctx, parent.ID, stage, 0, f.spawned)
	if err != nil {
		return nil, err
	}
	return list.full(ctx, p)
}

// resultList is results whose outputs are not read yet.
type resultList struct {
	items   []childResult
	outputs []run.Payload
}

// size is the bytes of the outputs.
func (l *resultList) size() (n int) {
	for i := range l.outputs {
		n += l.outputs[i].Size
	}
	return n
}

// resultsOf reads n children from an item on.
func (p *Plane) resultsOf(ctx context.Context, parent, stage string, first, n int) (resultList, error) {
	return p.readResults(ctx, parent, stage, first, n, false, nil)
}

// resultsMet is resultsOf, and shows each child to a meeting.
func (p *Plane) resultsMet(ctx context.Context, parent, stage string, n int, m *meeting) (resultList, error) {
	return p.readResults(ctx, parent, stage, 0, n, false, m)
}

// resultsUpTo reads up to n children from an item on, as far as they are there.
func (p *Plane) resultsUpTo(ctx context.Context, parent, stage string, first, n int) (resultList, error) {
	return p.readResults(ctx, parent, stage, first, n, true, nil)
}

func (p *Plane) readResults(ctx context.Context, parent, stage string, first, n int, upTo bool, m *meeting) (resultList, error) {
	l := resultList{items: make([]childResult, n), outputs: make([]run.Payload, n)}
	for from := 0; from < n; from += store.MaxPage {
		ids := make([]string, min(n-from, store.MaxPage))
		for i := range ids {
			ids[i] = childID(parent, stage, first+from+i)
		}
		records, errs := p.load(ctx, ids, false)
		for i, r := range records {
			if isNotFound(errs[i]) && upTo {
				l.items, l.outputs = l.items[:from+i], l.outputs[:from+i]
				return l, nil
			}
			if errs[i] != nil {
				return l, fmt.Errorf("read child %d of step %s of run %s: %w", first+from+i, stage, parent, errs[i])
			}
			if m != nil {
				m.meet(r)
			}
			x := &l.items[from+i]
			x.Run, x.State = r.ID, r.State
			if r.State == run.Succeeded {
				l.outputs[from+i] = r.Output
				continue
			}
			x.Reason, x.Message = r.Reason, run.Clip(r.Message, maxChildMessage)
			if a := r.Current(); a != nil && r.State == run.Failed {
				x.Code = run.Clip(a.Code, maxChildCode)
			}
		}
	}
	return l, nil
}

// Bounds of what a result tells of a failure; the child's own record has the rest.
const (
	maxChildMessage = 500
	maxChildCode    = 64
)

// full reads the outputs.
func (l *resultList) full(ctx context.Context, p *Plane) ([]childResult, error) {
	var refs []string
	var at []int
	for i := range l.outputs {
		switch o := &l.outputs[i]; {
		case l.items[i].State != run.Succeeded:
		case o.Empty():
			l.items[i].Output = json.RawMessage("null")
		case o.Ref == "":
			l.items[i].Output = o.Inline
		default:
			refs, at = append(refs, o.Ref), append(at, i)
		}
	}
	for from := 0; from < len(refs); from += store.MaxPage {
		part := refs[from:min(from+store.MaxPage, len(refs))]
		docs, err := p.store.GetMany(ctx, store.KindPayload, part)
		if err != nil {
			return nil, fmt.Errorf("read the outputs of %d children: %w", len(part), err)
		}
		for k, d := range docs {
			if i := at[from+k]; d.Version == 0 {
				return nil, fmt.Errorf("read the output of child run %s: %w", l.items[i].Run, ErrValueGone)
			} else {
				l.items[i].Output = d.Body
			}
		}
	}
	return l.items, nil
}

// endFamily cancels the children of a stage, or of all stages for "", that have not ended. Their attempts have the grace
// that the cancel of the parent gave, where that is how it ends.
func (p *Plane) endFamily(ctx context.Context, parent *run.Record, stage, message string) error {
	for {
		left, err := p.endSome(ctx, parent, stage, message)
		if err != nil || !left {
			return err
		}
	}
}

// maxEnds bounds the children that one look cancels.
const maxEnds = 2000

// endSome cancels some of them and reports whether others are left. Children that are canceling already end by
// themselves.
func (p *Plane) endSome(ctx context.Context, parent *run.Record, stage, message string) (left bool, err error) {
	// 1. Which they are.
	parentID := parent.ID
	p.mu.Lock()
	k := p.ix.kin.of[parentID]
	known := p.leads() && k != nil && (k.listed || stage != "" && k.stages[stage] != nil && k.stages[stage].read)
	p.mu.Unlock()
	if !known {
		if err := p.listChildren(ctx, parentID); err != nil {
			return false, err
		}
	}
	p.mu.Lock()
	open := p.ix.kinOf(parentID).unended(stage, maxEnds)
	p.mu.Unlock()
	if left = len(open) > maxEnds; left {
		open = open[:maxEnds]
	}
	// 2. Each is told.
	c := CancelRequest{Reason: message, Grace: p.graceOf(parent), Actor: "run:" + parentID}
	edits := make([]edit, len(open))
	for i, at := range open {
		edits[i] = edit{id: childID(parentID, at.stage, at.item), decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
			return p.cancelation(ctx, r, c, run.ParentEnded, now)
		}}
	}
	outcomes := p.changeAll(ctx, edits)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range outcomes {
		switch {
		case o.err == nil:
			if k := p.ix.kin.of[parentID]; k != nil {
				k.add(open[i].stage, open[i].item, o.rec.State)
			}
		case !isNotFound(o.err):
			err = errors.Join(err, fmt.Errorf("cancel child run %s of %s: %w", edits[i].id, parentID, o.err))
		}
	}
	return left && err == nil, err
}

// graceOf is how long the attempts of runs below one have to end when it does: as long as its own, if it was canceled.
func (p *Plane) graceOf(rec *run.Record) time.Duration {
	for _, e := range slices.Backward(rec.Tail) { // the cancel is among the newest events, unless many came meanwhile
		if e.Type == run.EvCancelRequested && e.Due != 0 {
			return min(max(e.Due.Sub(e.At)-p.cfg.WorkerLease, 0), maxGrace)
		}
	}
	return p.cfg.Grace
}

// listChildren reads all children of a run into the index: once per leader and parent.
func (p *Plane) listChildren(ctx context.Context, parentID string) error {
	err := p.eachChild(ctx, parentID, func(r *run.Record) {
		p.mu.Lock()
		p.ix.kinOf(parentID).add(r.Stage, r.Item, r.State)
		p.mu.Unlock()
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.ix.kinOf(parentID).listed = true
	p.mu.Unlock()
	return nil
}

// eachChild shows the children of a run, without their tails; f must not keep them.
func (p *Plane) eachChild(ctx context.Context, parentID string, f func(*run.Record)) error {
	q := store.Query{By: store.ByParent, Parent: parentID, Oldest: true, Limit: store.MaxPage}
	for {
		page, err := p.store.List(ctx, q)
		if err != nil {
			return fmt.Errorf("list the children of run %s: %w", parentID, err)
		}
		var r run.Record
		for _, d := range page.Docs {
			if err := run.DecodeBrief(d.Body, &r); err != nil {
				return err
			}
			f(&r)
		}
		if page.Next == "" {
			return nil
		}
		q.After = page.Next
	}
}

// stageCount is how far a stage of a run is.
type stageCount struct {
	stage string
	family
}

// stagesOf tells how far the stages are that a run has called children for, by name.
func (p *Plane) stagesOf(ctx context.Context, rec *run.Record) ([]stageCount, error) {
	// 1. What is known here.
	var k *kin
	if p.leads() {
		p.mu.Lock()
		if known := p.ix.kin.of[rec.ID]; known != nil && (known.listed || rec.CreatedAt > p.ix.kin.since) {
			k = known.copy()
		}
		p.mu.Unlock()
	}
	// 2. Or what the store has.
	if k == nil {
		k = &kin{stages: make(map[string]*brood)}
		if err := p.eachChild(ctx, rec.ID, func(r *run.Record) { k.add(r.Stage, r.Item, r.State) }); err != nil {
			return nil, err
		}
	}
	var all []stageCount
	for _, name := range slices.Sorted(maps.Keys(k.stages)) {
		all = append(all, stageCount{name, k.stages[name].family()})
	}
	return all, nil
}

// familyStory tells of the children of a run that goes on, in sentences.
func (p *Plane) familyStory(ctx context.Context, rec *run.Record) ([]string, error) {
	p.mu.Lock()
	known := p.ix.kin.of[rec.ID] != nil
	p.mu.Unlock()
	if rec.State.Terminal() || !known && rec.Kind == run.KindAgent && !hasParked(rec) {
		return nil, nil
	}
	stages, err := p.stagesOf(ctx, rec)
	if err != nil {
		return nil, err
	}
	return storyOf(rec, stages), nil
}

func storyOf(rec *run.Record, stages []stageCount) []string {
	var s []string
	if p := rec.Park; rec.State == run.Waiting && p != nil && p.On == run.OnChildren {
		f := family{}
		for _, c := range stages {
			if c.stage == p.Step {
				f = c.family
			}
		}
		text := fmt.Sprintf("It waits for the %d children of step %s and holds no slot: %d have ended, %d of them failed.", p.Size, p.Step, f.ended, f.failed)
		switch {
		case p.Need > 0:
			text += fmt.Sprintf(" It goes on when %d have succeeded.", p.Need)
		case p.Tolerate > 0:
			text += fmt.Sprintf(" It goes on when all have ended, or %d have failed.", p.Tolerate+1)
		}
		s = append(s, text)
	}
	open, more := 0, 0
	for _, c := range stages {
		if c.ended == c.spawned || rec.Park != nil && c.stage == rec.Park.Step {
			continue
		}
		if open++; open > maxStoryStages {
			more++
			continue
		}
		s = append(s, fmt.Sprintf("Of the %d children of stage %s %d have ended, %d of them failed.", c.spawned, c.stage, c.ended, c.failed))
	}
	if more > 0 {
		s = append(s, fmt.Sprintf("Children of %d more stages are under way.", more))
	}
	return s
}

// maxStoryStages bounds the stages of which an explanation tells.
const maxStoryStages = 10
