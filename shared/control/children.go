package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Doors through which an attempt calls children and reads what became of them.

// Bounds on children.
const (
	MaxCalls         = 1000     // of one request
	maxResultPage    = 1000     // children in a page of results
	maxResultOutputs = 16 << 20 // bytes of outputs in a page, but for the first
)

// ChildCalls asks for children of a run.
type ChildCalls struct {
	Run   string
	N     int // the attempt that asks
	Step  string
	First int // item of the first call
	Size  int // how many children the step gets; 0 if that is not said
	Max   int // how many of the step execute at a time; 0 for any number
	Calls []runtime.Call
}

// Child is a run that was called.
type Child struct {
	Run  string
	Item int
}

// ChildPage is a page of what became of children, in the order of their items.
type ChildPage struct {
	Children []ChildResult
	Next     string
}

// ChildResult is how a child stands.
type ChildResult struct {
	Item          int
	Run           string
	State         run.State
	Reason        run.Reason
	Code, Message string
	Output        json.RawMessage // of one that succeeded
}

// Children makes the children that an attempt asks for; they are durable when it returns. A call that was made before
// meets the same child; another one for its place is a conflict. The attempt must hold its run.
func (p *Plane) Children(ctx context.Context, c ChildCalls) ([]Child, error) {
	written := make(chan error, 1)
	out := p.EnterChildren(ctx, c, func(err error) { written <- err })
	if err := <-written; err != nil {
		return nil, err
	}
	return out, nil
}

// EnterChildren is Children without waiting: then is called once with the outcome, which may be before EnterChildren
// returns.
func (p *Plane) EnterChildren(ctx context.Context, c ChildCalls, then func(error)) []Child {
	return p.callChildren(ctx, &c, p.enter, then)
}

func (p *Plane) callChildren(ctx context.Context, c *ChildCalls, enter func(context.Context, []arrival), then func(error)) []Child {
	// 1. What is asked.
	parent, err := p.mayAskFor(ctx, c)
	if err != nil {
		then(err)
		return nil
	}
	// 2. The runs.
	calls, out := make([]call, len(c.Calls)), make([]Child, len(c.Calls))
	for i, x := range c.Calls {
		calls[i] = call{Agent: x.Agent, Workflow: x.Workflow, Input: x.Input}
		out[i] = Child{Run: childID(parent.ID, c.Step, c.First+i), Item: c.First + i}
	}
	p.spawnPart(ctx, parent, c.Step, c.First, calls, indexes(len(calls)), c.Max, enter, then)
	return out
}

// mayAskFor gives the run whose attempt asks for children that there may be.
func (p *Plane) mayAskFor(ctx context.Context, c *ChildCalls) (*run.Record, error) {
	if len(c.Calls) == 0 || len(c.Calls) > MaxCalls {
		return nil, refuse(CodeInvalid, "call children of run %s: %d calls in one request, want 1 to %d", c.Run, len(c.Calls), MaxCalls)
	}
	if c.Size < 0 || c.Size > run.MaxChildren || c.Size > 0 && c.First+len(c.Calls) > c.Size {
		return nil, refuse(CodeInvalid, "call children of run %s: items %d to %d of a step of %d; a step has %d at most", c.Run, c.First, c.First+len(c.Calls)-1, c.Size, run.MaxChildren)
	}
	parent, err := p.heldRun(ctx, c.Run, c.N)
	if err != nil {
		return nil, err
	}
	return parent, checkSpawn(parent, c.Step, c.First, len(c.Calls), c.Max)
}

// heldRun is the run that an attempt holds.
func (p *Plane) heldRun(ctx context.Context, id string, n int) (*run.Record, error) {
	rec, err := p.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if rec.Holder() != n {
		return nil, fmt.Errorf("attempt %s: the run is %s in attempt %d: %w", runtime.AttemptID(id, n), rec.State, rec.Attempt, run.ErrFenced)
	}
	return rec, nil
}

// ChildrenOf gives a page of what became of the children of a step, for the attempt that holds the run.
func (p *Plane) ChildrenOf(ctx context.Context, id string, n int, step, pageToken string, limit int) (ChildPage, error) {
	var page ChildPage
	// 1. What is asked.
	if _, err := p.heldRun(ctx, id, n); err != nil {
		return page, err
	}
	first := 0
	if pageToken != "" {
		item, err := strconv.Atoi(pageToken)
		if err != nil || item < 0 || item >= run.MaxChildren || strconv.Itoa(item) != pageToken {
			return page, strayToken("the children")
		}
		first = item
	}
	if limit < 1 || limit > maxResultPage {
		return page, refuse(CodeInvalid, "list children of step %s: limit %d, want 1 to %d", step, limit, maxResultPage)
	}
	// 2. Those that are there, within a bound of bytes.
	list, err := p.resultsUpTo(ctx, id, step, first, min(limit+1, run.MaxChildren-first))
	if err != nil {
		return page, err
	}
	keep, bytes := 0, 0
	for keep < min(len(list.items), limit) {
		if bytes += list.outputs[keep].Size; bytes > maxResultOutputs && keep > 0 {
			break
		}
		keep++
	}
	if keep < len(list.items) {
		page.Next = strconv.Itoa(first + keep)
		list.items, list.outputs = list.items[:keep], list.outputs[:keep]
	}
	items, err := list.full(ctx, p)
	if err != nil {
		return page, err
	}
	for i, x := range items {
		page.Children = append(page.Children, ChildResult{
			Item: first + i, Run: x.Run, State: x.State, Reason: x.Reason, Code: x.Code, Message: x.Message, Output: x.Output,
		})
	}
	return page, nil
}

// parkedCalls makes the children that a report parks on. What is refused fails the attempt, for asking again is of no use.
func (p *Plane) parkedCalls(ctx context.Context, r *runtime.Report) error {
	for first := 0; first < len(r.Calls); first += MaxCalls {
		part := r.Calls[first:min(first+MaxCalls, len(r.Calls))]
		written := make(chan error, 1)
		p.callChildren(ctx, &ChildCalls{Run: r.Run, N: r.N, Step: r.Park.Step, First: first, Size: len(r.Calls), Max: r.Max, Calls: part},
			p.commitArrivals, func(err error) { written <- err })
		err := <-written
		var refusal *Refusal
		switch {
		case err == nil:
		case errors.As(err, &refusal) && refusal.RetryAfter == 0 && refusal.Code != CodeUnavailable:
			*r = runtime.Report{
				Type: runtime.Failed, Run: r.Run, N: r.N, Worker: r.Worker, Usage: r.Usage, Class: run.ClassUser, Code: childrenRefused,
				Message: run.Clip(err.Error(), run.MaxMessage), Final: true, Ended: r.Ended,
			}
			return nil
		default:
			return err
		}
	}
	return nil
}

// childrenRefused is the code of an attempt that parked on children which it may not have.
const childrenRefused = "ChildrenRefused"
