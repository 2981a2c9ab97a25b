package control

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Families stage: the leader looks at parents of whose children, or of which themselves, something new is known. One
// that waits goes on when its group is decided, one that ended takes its children along, and a workflow or a run that is
// being undone goes its next step.

// Bounds of one pass.
const (
	maxLooks     = 200     // parents
	maxJoinBytes = 8 << 20 // of results that are written together
	lookAgainIn  = time.Second
)

// stepFamilies looks at parents and reports whether more are waiting.
func (p *Plane) stepFamilies(ctx context.Context, now run.Instant) (more bool) {
	var edits []edit
	bytes := 0
	flush := func() {
		for i, o := range p.changeAll(ctx, edits) {
			if o.err != nil {
				p.lookLater(ctx, edits[i].id, o.err, now)
			}
		}
		edits, bytes = nil, 0
	}
	// A round for each generation: the end of a parent ends its children, and theirs.
	for left, round := maxLooks, 0; left > 0 && round <= run.MaxDepth && ctx.Err() == nil; round++ {
		p.mu.Lock()
		ids := p.ix.kin.take(left)
		p.mu.Unlock()
		if len(ids) == 0 {
			break
		}
		left -= len(ids)
		records, errs := p.load(ctx, ids, false)
		for i, id := range ids {
			if errs[i] != nil {
				if isNotFound(errs[i]) {
					p.mu.Lock()
					delete(p.ix.kin.of, id)
					p.mu.Unlock()
					continue
				}
				p.lookLater(ctx, id, errs[i], now)
				continue
			}
			if r := p.records.get(id); r != nil && r.Seq > records[i].Seq { // the look at its parent has ended it, say
				records[i] = r
			}
			e, size, err := p.lookAtFamily(ctx, records[i])
			if err != nil {
				p.lookLater(ctx, id, err, now)
				continue
			}
			if e.decide != nil {
				edits, bytes = append(edits, e), bytes+size
			}
			if bytes > maxJoinBytes {
				flush()
			}
		}
		if len(edits) > 0 {
			flush()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ix.kin.look) > 0
}

// lookLater looks at a parent again in a moment.
func (p *Plane) lookLater(ctx context.Context, id string, err error, now run.Instant) {
	if ctx.Err() != nil {
		return
	}
	p.log.WarnContext(ctx, "look at a run with children; trying again in a second", "run", id, "error", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ix.kin.later = append(p.ix.kin.later, id)
	p.ix.timers.set(kinWakeKey, now.Add(lookAgainIn))
}

// lookAt lets the next pass look at a run that goes on by its children.
func (p *Plane) lookAt(id string) {
	p.mu.Lock()
	p.ix.kin.lookAt(id)
	p.mu.Unlock()
	p.wake()
}

// lookAtFamily does what a parent's state asks for. It returns the edit that wakes the parent, and about its bytes, if
// its group is decided.
func (p *Plane) lookAtFamily(ctx context.Context, rec *run.Record) (e edit, size int, err error) {
	p.mu.Lock()
	k := p.ix.kinOf(rec.ID)
	k.meet(rec)
	p.mu.Unlock()
	switch {
	case rec.State.Terminal():
		left, err := p.endSome(ctx, rec, "", fmt.Sprintf("run %s, which called it, is %s", rec.ID, rec.State))
		p.mu.Lock()
		switch k := p.ix.kin.of[rec.ID]; {
		case left:
			p.ix.kin.lookAt(rec.ID)
		case err == nil && k != nil && k.open == 0:
			delete(p.ix.kin.of, rec.ID)
		}
		p.mu.Unlock()
		return edit{}, 0, err
	case rec.State == run.Compensating:
		return edit{}, 0, p.undo(ctx, rec)
	case rec.State == run.Canceling:
		left, err := p.endSome(ctx, rec, "", fmt.Sprintf("run %s, which called it, is being canceled", rec.ID))
		if left {
			p.lookAt(rec.ID)
		}
		return edit{}, 0, err
	case rec.State == run.Suspended && rec.ForRuns != nil: // in the middle of a wait, whose place another one would take
		p.reckonLater(rec, p.now())
	case rec.Kind != run.KindAgent:
		return edit{}, 0, p.advance(ctx, rec)
	case rec.State == run.Waiting && rec.Park.On == run.OnChildren:
		return p.join(ctx, rec)
	}
	return edit{}, 0, nil
}

// join is the edit that wakes a parked run once its group is decided; none before.
func (p *Plane) join(ctx context.Context, rec *run.Record) (edit, int, error) {
	park := rec.Park
	// 1. How far the group is. What is not known is read once.
	f, err := p.groupOf(ctx, rec)
	if err != nil {
		return edit{}, 0, err
	}
	if f.spawned < park.Size {
		return p.childless(rec, f.spawned), 0, nil
	}
	if _, over := decided(park, f); !over {
		return edit{}, 0, nil
	}
	// 2. What is left of it is not needed.
	if f.ended < park.Size {
		left, err := p.endSome(ctx, rec, park.Step, fmt.Sprintf("the run that called it goes on without it: %d of %d have succeeded, %d failed", f.succeeded, park.Size, f.failed))
		if left {
			p.lookAt(rec.ID)
		}
		if left || err != nil {
			return edit{}, 0, err
		}
	}
	// 3. Its results end the step in which the run waited.
	m := meetingOf(rec, p.now())
	body, err := p.joined(ctx, rec, f, m)
	if err != nil {
		return edit{}, 0, err
	}
	forPeople, err := m.found(ctx, p)
	if err != nil {
		return edit{}, 0, err
	}
	w, err := stepWrite(rec.ID, runtime.Step{Name: park.Step, Seq: park.Seq, Result: body})
	if err != nil {
		return edit{}, 0, err
	}
	w.Expect = store.AnyVersion
	return edit{id: rec.ID, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		if r.State != run.Waiting || r.Park.On != run.OnChildren || r.Park.Step != park.Step || r.Attempt != rec.Attempt {
			return draft{}, nil
		}
		e := run.Event{Type: run.EvWoken, At: now, Due: p.queueEnd(ctx, r, now)}
		p.credit(ctx, r, forPeople, &e)
		return draft{writes: []store.Write{w}, events: []run.Event{e}}, nil
	}}, len(body), nil
}

// groupOf tells how far the children are that a parked run waits for.
func (p *Plane) groupOf(ctx context.Context, rec *run.Record) (family, error) {
	p.mu.Lock()
	b := p.ix.kinOf(rec.ID).stages[rec.Park.Step]
	f := b.family()
	read := b != nil && b.read
	p.mu.Unlock()
	if f.spawned >= rec.Park.Size || read {
		return f, nil
	}
	return p.countStage(ctx, rec.ID, rec.Park.Step, rec.Park.Size)
}

// childless is the edit for a run that waits for children that it never called.
func (p *Plane) childless(rec *run.Record, there int) edit {
	return edit{id: rec.ID, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		var d draft
		if r.State != run.Waiting || r.Park.On != run.OnChildren || r.Park.Step != rec.Park.Step || r.Attempt != rec.Attempt {
			return d, nil
		}
		return d, p.end(ctx, &d, r, run.Event{
			Type: run.EvFailed, At: now, Reason: run.NonRetryable, Class: run.ClassUser, Code: "ChildrenMissing",
			Message: fmt.Sprintf("it waits for %d children of step %s and has called %d: call all of them before it parks", rec.Park.Size, rec.Park.Step, there),
		})
	}}
}

// joinResult is the result of a step that waited for children.
type joinResult struct {
	Size      int `json:"size"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	// Paged: outputs, or all of the children, are left out for their size and are asked for in pages.
	Paged    bool          `json:"paged,omitempty"`
	Children []childResult `json:"children,omitempty"`
}

// joined encodes the results of a decided group, within the size of a step.
func (p *Plane) joined(ctx context.Context, rec *run.Record, f family, m *meeting) (json.RawMessage, error) {
	list, err := p.resultsMet(ctx, rec.ID, rec.Park.Step, rec.Park.Size, m)
	if err != nil {
		return nil, err
	}
	x := joinResult{Size: rec.Park.Size, Succeeded: f.succeeded, Failed: f.failed, Children: list.items}
	if list.size() <= runtime.MaxStepResult {
		if x.Children, err = list.full(ctx, p); err != nil {
			return nil, err
		}
		if body, err := json.Marshal(x); err != nil || len(body) <= runtime.MaxStepResult {
			return body, err
		}
	}
	x.Paged = true
	for i := range list.items {
		list.items[i].Output = nil
	}
	if body, err := json.Marshal(x); err != nil || len(body) <= runtime.MaxStepResult {
		return body, err
	}
	x.Children = nil
	return json.Marshal(x)
}

// maxSwept bounds the runs of families that one tick reads again.
const maxSwept = 500

// sweepFamilies reads runs of families again that nobody may have told of: the end of a child, or of a parent, is in no
// index of what is due. Each tick takes some, in turns.
func (p *Plane) sweepFamilies(ctx context.Context) {
	if p.store.Exclusive() {
		return // there is nobody to tell
	}
	// 1. Those whose turn it is.
	p.mu.Lock()
	ks := &p.ix.kin
	if len(ks.sweep) == 0 {
		for id, k := range ks.of {
			if k.open > 0 {
				ks.sweep = append(ks.sweep, id)
			}
		}
		slices.Sort(ks.sweep)
	}
	var ids []string
	for len(ks.sweep) > 0 && len(ids) < maxSwept {
		id := ks.sweep[0]
		ks.sweep = ks.sweep[1:]
		if k := ks.of[id]; k != nil && k.open > 0 {
			ids = append(ids, id)
			for _, at := range k.unended("", maxSwept) {
				ids = append(ids, childID(id, at.stage, at.item))
			}
		}
	}
	p.mu.Unlock()
	ids = ids[:min(len(ids), store.MaxPage)]
	if len(ids) == 0 {
		return
	}
	// 2. Those that have ended, or have been told to, are looked at.
	docs, err := p.store.GetMany(ctx, store.KindRun, ids)
	if err != nil {
		p.log.WarnContext(ctx, "look for children that have ended; a later tick does again", "error", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var r run.Record
	for i, d := range docs {
		if d.Version == 0 || run.DecodeBrief(d.Body, &r) != nil {
			continue
		}
		if known := p.ix.runs[ids[i]]; r.State.Terminal() || r.State == run.Canceling && (known == nil || known.seq < d.Version) {
			p.ix.left = append(p.ix.left, ids[i])
		}
	}
}
