package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Doors that only ask.

const (
	maxScan  = 2000                 // records looked at for one page of a filtered list
	scanTime = 8 * time.Millisecond // spent on that, but for the first scanPage of them
	scanPage = 100
	maxTree  = 1000
)

// Get returns a run.
func (p *Plane) Get(ctx context.Context, id string) (*run.Record, error) {
	records, errs := p.load(ctx, []string{id}, !p.store.Exclusive() || !p.leads())
	return records[0], errs[0]
}

// List returns a page of runs, newest first, without their Tail and Detail. Filters that no index serves are applied to
// the scan, which ends after 2,000 runs or 8 ms: a page may hold fewer than limit, none even, and still have a next one.
func (p *Plane) List(ctx context.Context, f Filter, limit int, pageToken string) (RunPage, error) {
	var out RunPage
	if f.Tenant == "" && len(f.Tenants) == 1 {
		f.Tenant, f.Tenants = f.Tenants[0], nil // which an index serves
	}
	q := store.Query{Since: int64(run.At(f.Since)), Until: int64(run.At(f.Until)), After: pageToken}
	switch {
	case f.Parent != "":
		q.By, q.Parent = store.ByParent, f.Parent
	case f.Tenant != "" && f.named() != "":
		q.By, q.Tenant, q.Agent = store.ByTenantAgent, f.Tenant, f.named()
	case f.Tenant != "":
		q.By, q.Tenant = store.ByTenant, f.Tenant
	default:
		q.By = store.ByCreated
	}
	began, scanned := p.cfg.Monotonic(), 0
	r := new(run.Record)
	for len(out.Runs) < limit && scanned < maxScan && (scanned < scanPage || p.cfg.Monotonic()-began < scanTime) {
		// A page of the store may not overshoot: its token is the only place where the next one can begin.
		q.Limit = min(limit-len(out.Runs), maxScan-scanned)
		if f.selective() {
			q.Limit = min(maxScan-scanned, scanPage)
		}
		page, err := p.store.List(ctx, q)
		switch {
		case errors.Is(err, store.ErrInvalid) && pageToken != "":
			return out, strayToken("the runs")
		case err != nil:
			return out, fmt.Errorf("list runs: %w", err)
		}
		for i, d := range page.Docs {
			if !f.admits(d.Index) {
				continue
			}
			if err := run.DecodeBrief(d.Body, r); err != nil {
				return out, err
			}
			if !f.matches(r) {
				continue
			}
			out.Runs = append(out.Runs, r)
			r = new(run.Record)
			if len(out.Runs) == limit && i < len(page.Docs)-1 {
				// Begin the next page right after this run.
				out.Next, err = p.tokenAfter(ctx, q, i+1)
				return out, err
			}
		}
		scanned += len(page.Docs)
		out.Next, q.After = page.Next, page.Next
		if page.Next == "" {
			return out, nil
		}
	}
	return out, nil
}

// tokenAfter is the page token behind the first n runs of a query.
func (p *Plane) tokenAfter(ctx context.Context, q store.Query, n int) (string, error) {
	q.Limit = n
	page, err := p.store.List(ctx, q)
	return page.Next, err
}

// selective reports whether a filter is applied that no index serves.
func (f *Filter) selective() bool {
	return len(f.States) > 0 || len(f.Labels) > 0 || f.Tenants != nil || f.Parent != "" && (f.Tenant != "" || f.named() != "") || f.named() != "" && f.Tenant == ""
}

// named is what the runs execute; "" for anything.
func (f *Filter) named() string { return f.Agent + f.Workflow }

// admits applies what a run's keys tell, which need no decoding.
func (f *Filter) admits(x *store.Index) bool {
	return (f.named() == "" || x.Agent == f.named()) &&
		(f.Tenant == "" || x.Tenant == f.Tenant) &&
		(f.Tenants == nil || slices.Contains(f.Tenants, x.Tenant)) &&
		(f.Parent == "" || x.Parent == f.Parent)
}

// matches applies the rest.
func (f *Filter) matches(r *run.Record) bool {
	if len(f.States) > 0 && !slices.Contains(f.States, r.State) || f.Workflow != "" && r.Kind != run.KindWorkflow || f.Agent != "" && r.Kind != run.KindAgent {
		return false
	}
	for k, v := range f.Labels {
		if have, ok := r.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// History returns events of a run after a sequence number, oldest first.
func (p *Plane) History(ctx context.Context, id string, afterSeq int64, limit int) ([]HistoryEvent, error) {
	all, _, err := p.history(ctx, id)
	if err != nil {
		return nil, err
	}
	var out []HistoryEvent
	var state run.State
	for _, e := range all {
		if to := run.StateAfter(state, e.Type); to != "" {
			state = to
		}
		if e.Seq > afterSeq && len(out) < limit {
			out = append(out, HistoryEvent{Event: e, State: state})
		}
	}
	return out, nil
}

// history reads all events of a run, and the run.
func (p *Plane) history(ctx context.Context, id string) ([]run.Event, *run.Record, error) {
	rec, err := p.Get(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	var all []run.Event
	after := ""
	for first := int64(1); len(rec.Tail) > 0 && rec.Tail[0].Seq > first; {
		docs, err := p.store.Owned(ctx, store.KindHistory, id, after, store.MaxPage)
		if err != nil {
			return nil, nil, fmt.Errorf("read the history of run %s: %w", id, err)
		}
		for _, d := range docs {
			chunk, err := run.DecodeEvents(d.Body)
			if err != nil {
				return nil, nil, fmt.Errorf("history %s: %w", d.ID, err)
			}
			all = append(all, chunk...)
			after = d.ID
		}
		if len(docs) < store.MaxPage {
			break
		}
	}
	// A spill that happened between the two reads shows up in both.
	for _, e := range rec.Tail {
		if len(all) == 0 || e.Seq > all[len(all)-1].Seq {
			all = append(all, e)
		}
	}
	return all, rec, nil
}

// Attempts returns every attempt of a run: from its history where the record has only the newest.
func (p *Plane) Attempts(ctx context.Context, id string) ([]run.Attempt, error) {
	events, rec, err := p.history(ctx, id)
	if err != nil {
		return nil, err
	}
	if rec.Attempt <= len(rec.Attempts) {
		return rec.Attempts, nil
	}
	return run.AttemptsOf(rec.Spec, events), nil
}

// Verify that history and record agree is the audit job's work; Audit returns both.
func (p *Plane) Audit(ctx context.Context, id string) (*run.Record, []run.Event, error) {
	events, rec, err := p.history(ctx, id)
	return rec, events, err
}

// Tree returns a run with its descendants, breadth first up to 1,000 runs.
func (p *Plane) Tree(ctx context.Context, id string) (TreeNode, error) {
	root, err := p.Get(ctx, id)
	if err != nil {
		return TreeNode{}, err
	}
	tree := TreeNode{Run: root}
	left := maxTree - 1
	level := []*TreeNode{&tree}
	for len(level) > 0 {
		var next []*TreeNode
		for _, n := range level {
			page, err := p.store.List(ctx, store.Query{By: store.ByParent, Parent: n.Run.ID, Oldest: true, Limit: min(left+1, store.MaxPage)})
			if err != nil {
				return tree, fmt.Errorf("read the children of run %s: %w", n.Run.ID, err)
			}
			for _, d := range page.Docs {
				if left == 0 {
					n.More = true
					break
				}
				r := new(run.Record)
				if err := run.DecodeBrief(d.Body, r); err != nil {
					return tree, err
				}
				n.Children = append(n.Children, TreeNode{Run: r})
				left--
			}
			for i := range n.Children {
				next = append(next, &n.Children[i])
			}
		}
		level = next
	}
	return tree, nil
}

// Logs returns lines of a run's log after a position, and the position after them.
func (p *Plane) Logs(ctx context.Context, id, after string, limit int) ([]runtime.LogLine, string, error) {
	if _, err := p.Get(ctx, id); err != nil {
		return nil, "", err
	}
	var lines []runtime.LogLine
	for len(lines) < limit {
		docs, err := p.store.Owned(ctx, store.KindLog, id, after, 50)
		if err != nil {
			return nil, "", fmt.Errorf("read the log of run %s: %w", id, err)
		}
		for _, d := range docs {
			var chunk []runtime.LogLine
			if err := json.Unmarshal(d.Body, &chunk); err != nil {
				return nil, "", fmt.Errorf("decode log %s: %w", d.ID, err)
			}
			lines, after = append(lines, chunk...), d.ID
		}
		if len(docs) < 50 {
			break
		}
	}
	return lines, after, nil
}

// Explain answers where a run is or will be executed and why; target, if not empty, leaves out all others.
func (p *Plane) Explain(ctx context.Context, id, target string) (Explanation, error) {
	rec, err := p.Get(ctx, id)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{Run: rec}
	if target != "" && p.targetNamed(target) == nil {
		return e, refuse(CodeNotFound, "there is no target %s", target)
	}
	// 1. The decision as it was taken.
	if len(rec.Detail) > 0 {
		d, err := placement.DecodeDecision(rec.Detail)
		if err != nil {
			return e, fmt.Errorf("decode the stored decision of run %s: %w", id, err)
		}
		e.Stored = &d
		e.Chosen, e.Worker = d.Target, d.Worker
	}
	if a := rec.Current(); a != nil {
		e.DecidedAt = a.AssignedAt
		if rec.Live() {
			e.Chosen, e.Worker = rec.Target, rec.Worker
		}
	}
	// 2. Every target as it stands now.
	agent := p.agentOf(ctx, rec)
	family, err := p.familyStory(ctx, rec)
	if err != nil {
		return e, err
	}
	if e.Asks, err = p.asksOf(ctx, rec); err != nil {
		return e, err
	}
	for i := range e.Asks {
		family = append(family, e.Asks[i].Text())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var diagnosis placement.Diagnosis
	if agent != nil {
		req := p.request(rec, agent)
		x := p.ix.profile.Explain(p.ix.world, req)
		diagnosis = x.Diagnosis()
		e.Candidates = x.Candidates
		if target != "" {
			e.Candidates = p.ix.profile.WhyNot(p.ix.world, req, target)
		}
	}
	// 3. Its place in the queue.
	if rec.State == run.Queued {
		e.Queue = p.position(rec, diagnosis)
	}
	e.Story = append(append(p.story(rec, &e, diagnosis, agent, target), family...), p.clockStory(rec)...)
	return e, nil
}

// position is called with p.mu held.
func (p *Plane) position(rec *run.Record, d placement.Diagnosis) *QueuePosition {
	q := &QueuePosition{Total: p.ix.queue.Len(), NextLook: p.ix.timers.next()}
	pos, ok := p.ix.queue.Position(rec.ID)
	if ok {
		q.Position, q.Ahead = pos.TenantAhead+1, pos.Ahead
	}
	if t := p.ix.runs[rec.ID]; t != nil {
		if c := p.ix.classes[t.class]; c != nil {
			q.Limit = c.limit
		}
	}
	if w, waits := p.ix.queue.Waits(rec.ID); waits {
		q.Limit = waitText(&w)
	}
	if q.Limit == "" && len(d.Reasons) > 0 {
		q.Limit = d.Lines()[0]
	}
	if rate := p.stats.startRate(p.now()); rate > 0 && ok {
		q.Estimate = p.now().Add(time.Duration(float64(pos.Ahead+1) / rate * float64(time.Second)))
	}
	return q
}

// story tells all of this in sentences.
func (p *Plane) story(rec *run.Record, e *Explanation, d placement.Diagnosis, agent *fleet.Agent, target string) []string {
	at := func(i run.Instant) string { return i.Time().Format("15:04:05.000") }
	s := []string{fmt.Sprintf("Run %s of %s %s for tenant %s is %s since %s.", rec.ID, rec.Kind, rec.Agent, rec.Tenant, rec.State, at(rec.UpdatedAt))}
	if rec.Reason != "" {
		s[0] = strings.TrimSuffix(s[0], ".") + fmt.Sprintf(" (%s).", rec.Reason)
	}
	if rec.Message != "" && rec.State != run.Unschedulable {
		s = append(s, rec.Message)
	}
	switch {
	case asksToUndo(rec):
		s = append(s, "Not all that it did could be undone: it waits until people have decided whether that is tried again.")
	case rec.State == run.Compensating:
		s = append(s, fmt.Sprintf("What it did is undone now, what was done last first: \"errand tree %s\" shows by which runs.", rec.ID))
	case rec.Kind == run.KindWorkflow:
		s = append(s, flowStory(rec))
	case agent == nil:
		s = append(s, "Its agent is not declared any more.")
	case rec.State == run.Unschedulable:
		s = append(s, "No target could take it, even when empty:")
		s = append(s, d.Lines()...)
		s = append(s, "It is looked at again when a target or a worker is added or changed, and at "+at(p.now().Add(p.cfg.Flush))+" at the latest.")
	case rec.State == run.Queued:
		s = append(s, fmt.Sprintf("It is number %d of its tenant's runs, with %d of all tenants before it, in a queue of %d.", e.Queue.Position, e.Queue.Ahead, e.Queue.Total))
		if e.Queue.Limit != "" {
			s = append(s, "What binds: "+e.Queue.Limit+".")
		}
	case rec.Live():
		s = append(s, fmt.Sprintf("Attempt %d was placed on %s at %s.", rec.Attempt, nodeOf(rec), at(e.DecidedAt)))
	case rec.State == run.Backoff:
		s = append(s, fmt.Sprintf("Attempt %d failed (%s); the next may be queued at %s.", rec.Attempt, rec.Current().Class, at(rec.Due)))
	case rec.State == run.Waiting && len(e.Asks) > 0 && askedReceipt(rec.Park) != "":
		s = append(s, "It is parked and holds no slot until a person answers.")
	case rec.State == run.Waiting && rec.Park.On == run.OnChildren: // of them it is told below
	case rec.State == run.Waiting && rec.Park != nil:
		what := "the time " + at(rec.Park.Until)
		switch rec.Park.On {
		case run.OnInput:
			what = "the signal " + rec.Park.Name
		case run.OnGate:
			what = "people have decided gate " + rec.Park.Name
		}
		s = append(s, "It is parked and holds no slot until "+what+".")
	}
	if rec.State.Terminal() {
		s = append(s, kept(rec))
	}
	if e.Stored != nil && rec.State != run.Unschedulable {
		s = append(s, "The stored decision: "+e.Stored.Message()+".")
	}
	if target != "" {
		for _, c := range e.Candidates {
			s = append(s, c.Lines()...)
		}
	}
	return s
}

// PreviewCancel tells what a cancel would meet: what the run and those below it have done, in a tree of up to 1,000 runs,
// and what would be undone of that, in that order.
func (p *Plane) PreviewCancel(ctx context.Context, id string) (CancelPreview, error) {
	tree, err := p.Tree(ctx, id)
	if err != nil {
		return CancelPreview{}, err
	}
	// 1. What is there.
	preview := CancelPreview{Run: tree.Run, Spend: tree.Run.Usage}
	all := []*run.Record{tree.Run}
	var walk func(n TreeNode)
	walk = func(n TreeNode) {
		preview.More = preview.More || n.More
		for _, c := range n.Children {
			all = append(all, c.Run)
			preview.Spend = preview.Spend.Plus(c.Run.Usage)
			if !c.Run.State.Terminal() {
				preview.Children = append(preview.Children, c.Run)
			}
			walk(c)
		}
	}
	walk(tree)
	// 2. What it did.
	for _, r := range all {
		if r.Kind != run.KindAgent || r.Attempt == 0 {
			continue
		}
		receipts, err := p.Receipts(ctx, r.ID)
		if err != nil {
			return preview, err
		}
		for _, x := range receipts {
			switch x.State {
			case run.ReceiptDone:
				preview.Committed = append(preview.Committed, x)
			case run.ReceiptUnknown, run.ReceiptIntent:
				preview.Unknown = append(preview.Unknown, x)
			}
		}
	}
	// 3. What would be undone.
	if tree.Run.State.Terminal() {
		return preview, nil
	}
	items, _, err := p.planUndo(ctx, tree.Run, true)
	if err != nil {
		return preview, err
	}
	for _, it := range items {
		if it.of == nil {
			preview.Compensations = append(preview.Compensations, Compensation{Run: tree.Run.ID, Agent: it.call.Agent, Stage: strings.TrimPrefix(it.stage, undoStage)})
		}
		for i := range it.effects {
			preview.Compensations = append(preview.Compensations, Compensation{Run: it.of.ID, Agent: it.of.Agent, Receipt: &it.effects[i]})
		}
	}
	return preview, nil
}
