package control

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// What a run waits for that only a person can say: whether an effect happened, or what is asked at a gate. A run that is
// being undone waits by the runs that undo it.

// Ask is a question to a person that keeps a run from going on.
type Ask struct {
	Run     string       // that asked: the run itself, or one below it by which it is being undone
	Owner   string       // who is asked, as approvers are named; several with commas, "" for everybody who may approve
	Receipt *run.Receipt // of the effect of which nobody knows whether it happened; nil for a gate
	Gate    *run.Gate    // nil for a receipt
}

// Commands are what a person says by the command line, one or the other.
func (a *Ask) Commands() []string {
	if a.Receipt != nil {
		return []string{"errand resolve " + a.Receipt.ID + " --happened", "errand resolve " + a.Receipt.ID + " --not"}
	}
	return []string{"errand approve " + a.Gate.ID, "errand reject " + a.Gate.ID}
}

// Text is the question in a sentence.
func (a *Ask) Text() string {
	says := strings.Join(a.Commands(), `" or "`)
	if r := a.Receipt; r != nil {
		return fmt.Sprintf("A person has to find out whether effect %s of run %s happened, which attempt %d began at %s: receipt %s, owner %s. Say so with \"%s\".",
			r.Effect, r.Run, r.Attempt, r.BegunAt.Time().Format(time.RFC3339), r.ID, a.Owner, says)
	}
	return fmt.Sprintf("Gate %s asks %s: %q. Decide with \"%s\".", a.Gate.ID, cmp.Or(a.Owner, "everybody who may approve"), a.Gate.Title, says)
}

const (
	maxAsks     = 10  // that an explanation tells
	maxAskers   = 100 // runs that are looked at for them
	askChildren = 100 // of each, the newest: those that undo it came last
)

// asksOf are the questions to people that a run waits for.
func (p *Plane) asksOf(ctx context.Context, rec *run.Record) ([]Ask, error) {
	var asks []Ask
	level := []*run.Record{rec}
	for looked := 0; len(level) > 0 && looked < maxAskers && len(asks) < maxAsks; looked++ {
		r := level[0]
		level = level[1:]
		// 1. What it asks itself.
		mine, err := p.asksItself(ctx, r)
		if err != nil {
			return nil, err
		}
		asks = append(asks, mine...)
		if r.State != run.Compensating {
			continue
		}
		// 2. What those ask by which it is being undone.
		page, err := p.store.List(ctx, store.Query{By: store.ByParent, Parent: r.ID, Limit: askChildren})
		if err != nil {
			return nil, fmt.Errorf("read the children of run %s: %w", r.ID, err)
		}
		for _, d := range page.Docs {
			c := new(run.Record)
			if err := run.DecodeBrief(d.Body, c); err != nil {
				return nil, err
			}
			if !c.State.Terminal() {
				level = append(level, c)
			}
		}
	}
	return asks[:min(len(asks), maxAsks)], nil
}

// asksItself are the questions of one run.
func (p *Plane) asksItself(ctx context.Context, r *run.Record) ([]Ask, error) {
	if id := askedReceipt(r.Park); r.State == run.Waiting && id != "" {
		x, err := p.receipt(ctx, id)
		if err != nil || x == nil || x.State != run.ReceiptUnknown && x.State != run.ReceiptIntent {
			return nil, err // said already, or none of this store's
		}
		return []Ask{{Run: r.ID, Owner: p.ownerOf(ctx, r), Receipt: x}}, nil
	}
	if !asksToUndo(r) && (r.State != run.Waiting || r.Park == nil || r.Park.On != run.OnGate) {
		return nil, nil
	}
	gates, err := p.GatesOf(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	var asks []Ask
	for _, g := range gates {
		if g.State == run.GateOpen {
			asks = append(asks, Ask{Run: r.ID, Owner: strings.Join(g.Approvers, ", "), Gate: g})
		}
	}
	return asks, nil
}
