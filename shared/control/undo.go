package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Undo stage: a run that ends without success, and has done what can be undone, is compensating until that is undone.
// What it and the runs below it did is undone one after another, what was done last first: the effects of a run by a
// child in mode compensate of the same agent, a stage of a workflow by the agent that the stage names for it. Each of
// these children is a run like any other, with attempts and retries of its own; what they have undone is on its receipt,
// so that whoever leads next goes on where it stands. See compensate.go.

// undoLook is how soon a look is taken again at runs below that are about to end.
const undoLook = time.Second

// undo takes the undoing of a run its next step.
func (p *Plane) undo(ctx context.Context, rec *run.Record) error {
	// 1. What there is to undo.
	u, later, err := p.undoingOf(ctx, rec)
	if errors.Is(err, errUndoLater) {
		if later != 0 {
			p.mu.Lock()
			p.ix.timers.set(rec.ID, later)
			p.ix.standing[rec.ID] = struct{}{} // in the store it is due since its last event
			p.mu.Unlock()
		}
		return nil
	}
	if err != nil {
		return err
	}
	// 2. One after another.
	for ; u.next < len(u.items); u.next++ {
		done, err := p.undoItem(ctx, rec, &u.items[u.next])
		if err != nil || !done {
			return err
		}
	}
	// 3. The end that it was to have.
	return p.change(ctx, edit{id: rec.ID, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		var d draft
		if r.State != run.Compensating {
			return d, nil
		}
		e := run.Event{Type: run.EvFailed, At: now, Reason: r.Reason, Message: r.Message}
		if asksToUndo(r) { // a person has said meanwhile that there is nothing left to undo
			first, err := p.firstUndoing(ctx, r.ID)
			if err != nil {
				return d, err
			}
			e.Reason, e.Message = first.Reason, first.Message
			if d.writes, err = p.closeGates(ctx, r.ID, now); err != nil {
				return d, err
			}
		}
		if e.Reason == run.CanceledByRequest || e.Reason == run.ParentEnded {
			e.Type = run.EvCanceled
		}
		return d, p.end(ctx, &d, r, e)
	}}).err
}

// firstUndoing is the event with which the undoing of a run began, which says why.
func (p *Plane) firstUndoing(ctx context.Context, id string) (run.Event, error) {
	history, _, err := p.history(ctx, id)
	if err != nil {
		return run.Event{}, err
	}
	first := slices.IndexFunc(history, func(e run.Event) bool { return e.Type == run.EvCompensating })
	if first < 0 {
		return run.Event{}, fmt.Errorf("the history of run %s does not say why it is undone: %w", id, run.ErrCorrupt)
	}
	return history[first], nil
}

// undoingOf is what is to be undone of a run, as it was planned when that began under this leader.
func (p *Plane) undoingOf(ctx context.Context, rec *run.Record) (*undoing, run.Instant, error) {
	p.mu.Lock()
	u := p.ix.undoings[rec.ID]
	p.mu.Unlock()
	if u != nil {
		return u, 0, nil
	}
	items, later, err := p.planUndo(ctx, rec, false)
	if err != nil {
		return nil, later, err
	}
	u = &undoing{items: items}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ix.undoings) >= maxUndoings { // those that are dropped are planned again
		clear(p.ix.undoings)
	}
	p.ix.undoings[rec.ID] = u
	return u, 0, nil
}

// planAnew forgets the plans by which a run, and those above it, are being undone: something is known that was not. A
// process other than the one that leads has none to forget. Where a run above cannot be read its plan stands, and people
// are asked what they would not be.
func (p *Plane) planAnew(ctx context.Context, id string) {
	for range run.MaxDepth {
		p.mu.Lock()
		planned := p.ix.undoings[id] != nil
		delete(p.ix.undoings, id)
		idle := len(p.ix.undoings) == 0
		p.mu.Unlock()
		if planned {
			p.lookAt(id)
		}
		if idle {
			return
		}
		rec, err := p.Get(ctx, id)
		if err != nil || rec.Parent == "" {
			return
		}
		id = rec.Parent
	}
}

// maxUndoings bounds the plans that are kept.
const maxUndoings = 1000

// undoItem undoes one thing, and reports whether that is done.
func (p *Plane) undoItem(ctx context.Context, rec *run.Record, it *undoItem) (done bool, err error) {
	for round := 1; round <= maxUndoRounds; round++ {
		stage := it.stage
		if round > 1 {
			stage = fmt.Sprintf("%s~%d", it.stage, round)
		}
		// 1. The child that undoes it.
		f, err := p.family(ctx, rec, stage)
		if err != nil {
			return false, err
		}
		step := fmt.Sprintf("%s%d", stage, round)
		var why string
		switch {
		case f.spawned == 0:
			if round > 1 {
				if err := p.undoAgain(ctx, rec, step); err != nil {
					return false, err
				}
			}
			err := p.spawn(ctx, rec, stage, 0, []call{it.call}, 0)
			var refusal *Refusal
			if !errors.As(err, &refusal) {
				return false, err
			}
			why = refusal.Error()
		case f.ended == 0:
			return false, nil
		case f.succeeded > 0:
			if it.of != nil {
				err = p.allUndone(ctx, it.of.ID)
			}
			return err == nil, err
		default:
			list, err := p.results(ctx, rec, stage)
			if err != nil {
				return false, err
			}
			why = fmt.Sprintf("run %s, which was to undo it, is %s (%s): %s", list[0].Run, list[0].State, list[0].Reason, list[0].Message)
		}
		// 2. It could not be undone: a person decides whether it is tried again.
		again, err := p.undoFailed(ctx, rec, it, step, why)
		if err != nil || !again {
			return false, err
		}
	}
	return false, p.giveUpUndo(ctx, rec, fmt.Sprintf("%s was tried %d times", it.what(), maxUndoRounds))
}

// maxUndoRounds is how often a person may have it tried again to undo something.
const maxUndoRounds = 100

// what names what is undone, for people.
func (it *undoItem) what() string {
	if it.of != nil {
		return fmt.Sprintf("undoing the effects of run %s (agent %s)", it.of.ID, it.of.Agent)
	}
	return fmt.Sprintf("undoing stage %s by agent %s", strings.TrimPrefix(it.stage, undoStage), it.call.Agent)
}

// undoStage begins the names of the stages of children that undo.
const undoStage = "undo/"

// mustUndo reports whether an end without success of a run has to undo something first.
func (p *Plane) mustUndo(ctx context.Context, rec *run.Record, reason run.Reason) (bool, error) {
	// 1. Whether it, or a run that it called, may have done something.
	switch {
	case rec.Mode != "" || rec.State == run.Compensating:
		return false, nil
	case rec.Undoable:
	case rec.Kind != run.KindAgent:
		if rec.StartedAt == 0 {
			return false, nil
		}
	default:
		if called, err := p.hasCalled(ctx, rec); err != nil || !called {
			return false, err
		}
	}
	// 2. And whether that is not undone from above.
	if reason != run.ParentEnded {
		return true, nil
	}
	above, err := p.undoneFromAbove(ctx, rec)
	return !above, err
}

// hasCalled reports whether a run of an agent has called others. Nothing is written to it for that until it waits for
// them, and it may end before.
func (p *Plane) hasCalled(ctx context.Context, rec *run.Record) (bool, error) {
	if p.callsNone(ctx, rec) {
		return false, nil
	}
	page, err := p.store.List(ctx, store.Query{By: store.ByParent, Parent: rec.ID, Limit: 1})
	if err != nil {
		return false, fmt.Errorf("look whether run %s has called others: %w", rec.ID, err)
	}
	return len(page.Docs) > 0, nil
}

// callsNone reports whether it is certain, without a look at the store, that a run has called no others.
func (p *Plane) callsNone(ctx context.Context, rec *run.Record) bool {
	switch {
	case rec.Kind != run.KindAgent || rec.Undoable:
		return false
	case rec.Attempt == 0:
		return true
	}
	a := p.agentOf(ctx, rec)
	return a != nil && len(a.Permissions.Call) == 0
}

// undoneFromAbove reports whether a run ends because one above it is being undone: that one undoes also what this one
// did, in the order that all of it happened.
func (p *Plane) undoneFromAbove(ctx context.Context, rec *run.Record) (bool, error) {
	for range run.MaxDepth {
		if rec.Parent == "" {
			return false, nil
		}
		above, err := p.Get(ctx, rec.Parent)
		switch {
		case isNotFound(err):
			return false, nil // then it undoes its own
		case err != nil:
			return false, fmt.Errorf("look whether run %s is undone from above: %w", rec.ID, err)
		case above.Mode != "": // what it does is not undone
			return false, nil
		case above.State == run.Compensating, above.State == run.Canceling: // it has called this one, and so undoes it
			return true, nil
		case !above.State.Terminal(), above.Reason != run.ParentEnded:
			return false, nil
		}
		rec = above
	}
	return false, nil
}

// undoItem is one thing to undo: the effects of a run, or a stage of a workflow.
type undoItem struct {
	stage string // of the children that undo it
	call  call
	at    run.Instant // when it was done
	of    *run.Record // whose effects; nil for a stage of a workflow
	// effects are those of the run, newest first; what may have happened is among them.
	effects []run.Receipt
}

// maxUndoTree bounds the runs below one that is undone which are looked at.
const maxUndoTree = 100_000

// undoing is what is to be undone of a run and those below it, in this order, and how far that is.
type undoing struct {
	items []undoItem
	next  int
}

// errUndoLater: not everything below the run has ended, or may still take effect.
var errUndoLater = errors.New("it is undone later")

// planUndo lists what is to be undone of a run that ends without success. For a preview, runs that have not ended are
// taken as if they ended now; otherwise they are ended, and the error is errUndoLater with the time of the next look, 0
// for whenever a child ends.
func (p *Plane) planUndo(ctx context.Context, rec *run.Record, preview bool) (items []undoItem, later run.Instant, err error) {
	open, busy, count := 0, false, 0
	level := []*run.Record{rec}
	for len(level) > 0 {
		var below []*run.Record
		for _, r := range level {
			// 1. What it called.
			children, err := p.childrenOf(ctx, r)
			if err != nil {
				return nil, 0, err
			}
			// 2. What it did itself, unless it has undone that already.
			if r == rec || !undidItself(r, children) {
				mine, until, err := p.undoOf(ctx, r, rec.ID, preview)
				if err != nil {
					return nil, 0, err
				}
				items, later = append(items, mine...), max(later, until)
			}
			for _, c := range children {
				if c.Mode != "" || strings.HasPrefix(c.Stage, undoStage) {
					busy = busy || r == rec && !c.State.Terminal()
					continue
				}
				if !c.State.Terminal() {
					open++
				}
				below = append(below, c)
			}
			if count += len(children); count > maxUndoTree {
				return nil, 0, refuse(CodeTooLarge, "there are more than %d runs below run %s: they cannot be undone together", maxUndoTree, rec.ID)
			}
		}
		level = below
	}
	// 3. Nothing is undone while something may still be done.
	switch {
	case preview:
	case open > 0:
		if err := p.endFamily(ctx, rec, "", fmt.Sprintf("run %s, which called it, is being undone", rec.ID)); err != nil {
			return nil, 0, err
		}
		return nil, p.now().Add(undoLook), errUndoLater
	case busy:
		return nil, 0, errUndoLater
	case later > p.now():
		return nil, later, errUndoLater
	}
	slices.SortStableFunc(items, func(a, b undoItem) int { return cmp.Compare(b.at, a.at) })
	return items, 0, nil
}

// undidItself reports whether a run below the one that is being undone has undone what it did, or a person gave that up.
// One that ended with the run above may have left it to that one; of an agent's run its receipts say which.
func undidItself(r *run.Record, children []*run.Record) bool {
	switch {
	case r.Reason == run.CompensationFailed:
		return true
	case r.Kind == run.KindAgent:
		return false
	case r.State == run.Failed, r.State == run.Canceled && r.Reason != run.ParentEnded:
		return true
	}
	return slices.ContainsFunc(children, func(c *run.Record) bool { return strings.HasPrefix(c.Stage, undoStage) })
}

// childrenOf lists the runs that a run called.
func (p *Plane) childrenOf(ctx context.Context, r *run.Record) ([]*run.Record, error) {
	if p.callsNone(ctx, r) {
		return nil, nil
	}
	var all []*run.Record
	q := store.Query{By: store.ByParent, Parent: r.ID, Oldest: true, Limit: store.MaxPage}
	for {
		page, err := p.store.List(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("read the children of run %s: %w", r.ID, err)
		}
		for _, d := range page.Docs {
			c := new(run.Record)
			if err := run.DecodeBrief(d.Body, c); err != nil {
				return nil, err
			}
			all = append(all, c)
		}
		if page.Next == "" {
			return all, nil
		}
		q.After = page.Next
	}
}

// undoOf is what is to be undone of one run itself.
func (p *Plane) undoOf(ctx context.Context, r *run.Record, root string, preview bool) (items []undoItem, until run.Instant, err error) {
	if r.Kind != run.KindAgent {
		items, err = p.undoOfFlow(ctx, r, root)
		return items, 0, err
	}
	if !r.Undoable {
		return nil, 0, nil
	}
	var effects []run.Receipt
	if preview {
		effects, err = p.effectsOf(ctx, r.ID)
	} else if r.ID == root || r.State.Terminal() {
		effects, until, err = p.settleIntents(ctx, r)
	}
	effects = slices.DeleteFunc(effects, func(x run.Receipt) bool { return !undoable(&x) })
	if err != nil || len(effects) == 0 {
		return nil, until, err
	}
	return []undoItem{{
		stage: undoStage + r.ID, at: happenedAt(&effects[0]), of: r, effects: effects,
		call: call{Agent: r.Agent, Mode: run.ModeCompensate, Of: r.ID, Unit: r.WorkUnit()},
	}}, until, nil
}

// undoFailed asks people whether to try again what could not be undone; meanwhile the run stays where they see it. The
// answer is a step of the run, like that of any gate.
func (p *Plane) undoFailed(ctx context.Context, rec *run.Record, it *undoItem, step, why string) (again bool, err error) {
	// 1. What they said.
	switch doc, err := p.store.Get(ctx, store.KindStep, stepID(rec.ID, step)); {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return false, fmt.Errorf("read step %s of run %s: %w", step, rec.ID, err)
	default:
		var s runtime.Step
		var said struct {
			Decision string `json:"decision"`
		}
		if err := json.Unmarshal(doc.Body, &s); err != nil {
			return false, fmt.Errorf("decode step %s of run %s: %w", step, rec.ID, err)
		}
		if err := json.Unmarshal(s.Result, &said); err != nil {
			return false, fmt.Errorf("decode the result of step %s of run %s: %w", step, rec.ID, err)
		}
		if said.Decision != "approved" {
			return false, p.giveUpUndo(ctx, rec, fmt.Sprintf("%s failed, and was given up (%s): %s", it.what(), said.Decision, why))
		}
		return true, nil
	}
	// 2. What is left is found without the run, as long as it is there.
	if it.of != nil && !asksToUndo(rec) {
		if err := p.noteUndoFailed(ctx, it.of.ID); err != nil {
			return false, err
		}
	}
	// 3. Ask them, once.
	return false, p.change(ctx, edit{id: rec.ID, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		var d draft
		if r.State != run.Compensating || r.Reason == run.CompensationFailed {
			return d, nil
		}
		action, err := json.Marshal(map[string]string{"undo": it.what(), "run": r.ID, "failed": run.Clip(why, run.MaxMessage)})
		if err != nil {
			return d, fmt.Errorf("ask about undoing run %s: %w", r.ID, err)
		}
		_, w, err := p.gateDraft(ctx, r, run.GateAsk{
			Title:     fmt.Sprintf("Run %s could not be undone: approve to try again, reject to give up", r.ID),
			Action:    action,
			Approvers: []string{p.ownerOf(ctx, r)}, Expires: run.MaxGateWait,
		}, step, now)
		if err != nil {
			return d, err
		}
		d.writes = append(d.writes, w)
		d.events = append(d.events, run.Event{Type: run.EvCompensating, At: now, Reason: run.CompensationFailed, Message: run.Clip(it.what()+" failed: "+why, run.MaxMessage)})
		return d, nil
	}}).err
}

// asksToUndo reports whether a run asks people whether to try again what could not be undone.
func asksToUndo(rec *run.Record) bool {
	return rec.State == run.Compensating && rec.Reason == run.CompensationFailed
}

// undoAgain takes a run that could not be undone back to its undoing, for the round that step is the question of. Where
// people are asked about that round already, it stands as it is.
func (p *Plane) undoAgain(ctx context.Context, rec *run.Record, step string) error {
	if rec.Reason != run.CompensationFailed {
		return nil
	}
	switch _, err := p.gate(ctx, run.GateID(rec.ID, step)); {
	case err == nil:
		return nil
	case !isNotFound(err):
		return err
	}
	first, err := p.firstUndoing(ctx, rec.ID)
	if err != nil {
		return err
	}
	o := p.change(ctx, edit{id: rec.ID, decide: func(_ context.Context, r *run.Record, now run.Instant) (draft, error) {
		if !asksToUndo(r) {
			return draft{}, nil
		}
		return draft{events: []run.Event{{Type: run.EvCompensating, At: now, Reason: first.Reason, Message: first.Message}}}, nil
	}})
	if o.err == nil {
		*rec = *o.rec.Clone() // what follows is decided over it
	}
	return o.err
}

// ownerOf is who is asked about a run, as approvers are named: its label owner, or that of its agent, as a group unless
// it says otherwise; operators without one.
func (p *Plane) ownerOf(ctx context.Context, rec *run.Record) string {
	owner := rec.Labels["owner"]
	if a := p.agentOf(ctx, rec); owner == "" && a != nil {
		owner = a.Meta.Labels["owner"]
	}
	switch {
	case owner == "":
		return "role:operator"
	case strings.HasPrefix(owner, "user:"), strings.HasPrefix(owner, "group:"), strings.HasPrefix(owner, "role:"):
		return owner
	}
	return "group:" + owner
}

// giveUpUndo ends a run that could not be undone.
func (p *Plane) giveUpUndo(ctx context.Context, rec *run.Record, why string) error {
	return p.change(ctx, edit{id: rec.ID, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		var d draft
		if r.State != run.Compensating {
			return d, nil
		}
		return d, p.end(ctx, &d, r, run.Event{Type: run.EvFailed, At: now, Reason: run.CompensationFailed, Message: run.Clip(why, run.MaxMessage)})
	}}).err
}
