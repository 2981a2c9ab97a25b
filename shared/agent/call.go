package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/errand-run/errand/shared/api"
)

// MaxCalled is the size in bytes of all outputs that one [Parallel] gives back. Larger ones are kept elsewhere, and the
// agents return where.
const MaxCalled = 256 << 20

// Request is what a child is called with; see [To] and [ToWorkflow].
type Request struct {
	agent, workflow string
	input           any
}

// To calls an agent with an input.
func To(agent string, input any) Request { return Request{agent: agent, input: input} }

// ToWorkflow calls a workflow with an input.
func ToWorkflow(workflow string, input any) Request { return Request{workflow: workflow, input: input} }

func (q Request) name() string { return q.agent + q.workflow }

// ChildError is how a child ended that did not succeed, or stood when it was not waited for any more.
type ChildError struct {
	Name    string // of the agent or workflow
	Run     string
	State   string // failed or canceled; another one where the child is still ending
	Reason  string
	Code    string // what its last attempt said
	Message string
}

func (e *ChildError) Error() string {
	text := fmt.Sprintf("child run %s of %s: %s", e.Run, e.Name, e.State)
	if e.Reason != "" && !strings.EqualFold(e.Reason, e.State) {
		text += " (" + e.Reason + ")"
	}
	if e.Code != "" && !strings.HasPrefix(e.Message, e.Code+":") { // a run's message begins with the code of its agent
		text += ": " + e.Code
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Outcome is what became of one child of a [Parallel].
type Outcome[T any] struct {
	Run   string
	Value T
	// Err is a *ChildError where the child did not succeed, and says what does not fit where its output is none of a T.
	Err error
}

// CallOption is a wish of a [Call] or a [Parallel].
type CallOption func(*group)

// group is children that are called together.
type group struct {
	step     string
	requests []Request
	max      int
	tolerate float64
	need     int
	err      error
}

// Max lets at most n of the children execute at a time.
func Max(n int) CallOption {
	return func(g *group) {
		if g.max = n; n < 1 {
			g.err = failf(CodeInputInvalid, "Max(%d): want 1 or more at a time", n)
		}
	}
}

// Tolerate bears failures of children: up to so many or, below 1, up to such a part of them, rounded down. Without it the
// first failure ends the group. To wait for all whatever they do, name their number.
func Tolerate(failures float64) CallOption {
	return func(g *group) {
		if g.tolerate = failures; !(failures >= 0) {
			g.err = failf(CodeInputInvalid, "Tolerate(%v): want 0 or more", failures)
		}
	}
}

// Need ends the group well once n of the children succeeded; the others are canceled. Failures are borne as long as n
// can still succeed.
func Need(n int) CallOption {
	return func(g *group) {
		if g.need = n; n < 1 {
			g.err = failf(CodeInputInvalid, "Need(%d): want 1 or more", n)
		}
	}
}

// First is Need(1).
func First() CallOption { return Need(1) }

// Call calls an agent as a child run and returns its output. The agent's permissions.call must name it. The attempt ends
// meanwhile and its slot is free: Call returns an error that wraps [ErrParked], which the handler must return, and the
// handler is run again when the child is over. Then Call returns the output, or a [*ChildError] of a child that did not
// succeed: it was tried as its own policy says, and is not called again.
//
// The child gets the run's tenant, labels, priority, deadline and budget. What the server refuses (an agent that may not
// be called, an input that does not fit) is an *Error at once.
func Call[T any](ctx context.Context, r *Run, agent string, input any, opts ...CallOption) (T, error) {
	return callOne[T](ctx, r, To(agent, input), opts)
}

// CallWorkflow is [Call] of a workflow.
func CallWorkflow[T any](ctx context.Context, r *Run, workflow string, input any, opts ...CallOption) (T, error) {
	return callOne[T](ctx, r, ToWorkflow(workflow, input), opts)
}

func callOne[T any](ctx context.Context, r *Run, q Request, opts []CallOption) (T, error) {
	var zero T
	g := &group{step: r.next("call:" + q.name()), requests: []Request{q}}
	out, err := together[T](ctx, r, g, opts)
	if err != nil && len(out) == 0 {
		return zero, err
	}
	return out[0].Value, out[0].Err
}

// Parallel calls children that execute side by side, up to api.MaxChildren, and returns what became of each, in the order
// of the requests. Like [Call] it parks the attempt and is asked again. Without options it waits for all, and the first
// failure cancels the others.
//
// The error is of the group: nil when as many succeeded as must. Else it wraps the [*ChildError] of the first that
// failed, and the outcomes are there nevertheless.
func Parallel[T any](ctx context.Context, r *Run, requests []Request, opts ...CallOption) ([]Outcome[T], error) {
	return together[T](ctx, r, &group{step: r.next("parallel"), requests: requests}, opts)
}

// together calls the children of a group, or tells what became of them.
func together[T any](ctx context.Context, r *Run, g *group, opts []CallOption) ([]Outcome[T], error) {
	// 1. What is asked.
	for _, o := range opts {
		o(g)
	}
	park, err := g.park()
	if err != nil {
		return nil, r.fault(err)
	}
	recorded, found, err := r.enter(ctx, g.step)
	if err != nil {
		return nil, err
	}
	// 2. The children are called, and the attempt waits for them.
	if !found {
		if err := r.call(ctx, g, park); err != nil {
			return nil, err
		}
		return nil, r.park(park)
	}
	// 3. Or they are over.
	results, joined, err := r.joined(ctx, g, recorded)
	if err != nil {
		return nil, err
	}
	out := make([]Outcome[T], len(results))
	var first error
	for i, c := range results {
		o := &out[i]
		o.Run = c.Run
		if c.State != "succeeded" {
			o.Err = &ChildError{Name: g.requests[i].name(), Run: c.Run, State: c.State, Reason: c.Reason, Code: c.Code, Message: c.Message}
			if first == nil && c.Reason != "ParentEnded" {
				first = o.Err
			}
			continue
		}
		if err := json.Unmarshal(orNull(c.Output), &o.Value); err != nil {
			o.Err = failf(CodeInputInvalid, "output of child run %s of %s does not fit %s: %w", c.Run, g.requests[i].name(), typeName[T](), decoding(err))
		}
	}
	need := park.Need
	if need == 0 {
		need = park.Size - park.Tolerate
	}
	if joined.Succeeded < need {
		if first == nil {
			first = errors.New("all of them were canceled")
		}
		return out, fmt.Errorf("%s: %d of %d children succeeded, %d failed: %w", g.step, joined.Succeeded, park.Size, joined.Failed, first)
	}
	return out, nil
}

// park is how the attempt waits for the group.
func (g *group) park() (*api.Park, error) {
	n := len(g.requests)
	borne := int(min(g.tolerate, float64(n)))
	if g.tolerate < 1 {
		borne = int(g.tolerate * float64(n))
	}
	switch {
	case g.err != nil:
		return nil, g.err
	case n > api.MaxChildren:
		return nil, failf(CodeInputInvalid, "%s: %d children; at most %d", g.step, n, api.MaxChildren)
	case g.need > n:
		return nil, failf(CodeInputInvalid, "%s: %d of %d children cannot succeed", g.step, g.need, n)
	}
	for i, q := range g.requests {
		if q.name() == "" {
			return nil, failf(CodeInputInvalid, "%s: child %d names no agent", g.step, i)
		}
	}
	if err := checkName("step", g.step); err != nil {
		return nil, err
	}
	return &api.Park{On: "children", Step: g.step, Size: n, Tolerate: borne, Need: g.need}, nil
}

// maxCallBytes bounds the inputs of one request to the server.
const maxCallBytes = 8 << 20

// call makes the group's children. Where no server is known, whoever takes the result makes them.
func (r *Run) call(ctx context.Context, g *group, park *api.Park) error {
	if err := r.mayPark(g.step); err != nil {
		return err
	}
	calls := make([]api.Call, len(g.requests))
	for i, q := range g.requests {
		input, err := encode(q.input)
		if err != nil {
			return r.fault(failf(CodeOutputInvalid, "%s: input of child %d: %w", g.step, i, err))
		}
		if len(input) > api.MaxPayload {
			return r.fault(tooLargeInput(g.step, i, len(input)))
		}
		calls[i] = api.Call{Agent: q.agent, Workflow: q.workflow, Input: input}
	}
	if r.client == nil || r.a.box == nil {
		park.Children, park.Max = calls, g.max
		return nil
	}
	for first := 0; first < len(calls); {
		n, size := 0, 0
		for first+n < len(calls) && n < api.MaxCalls {
			if size += len(calls[first+n].Input); n > 0 && size > maxCallBytes {
				break
			}
			n++
		}
		body := api.Children{Step: g.step, First: first, Size: len(calls), Max: g.max, Children: calls[first : first+n]}
		if _, err := patiently(ctx, r, func() (*api.Spawned, error) {
			return r.client.CallChildren(ctx, r.a.Attempt, r.a.Token, body)
		}); err != nil {
			return r.callRefused(g.step, err)
		}
		first += n
	}
	return nil
}

func tooLargeInput(step string, i, n int) error {
	return failf(CodeResultTooLarge, "%s: input of child %d has %d bytes: at most %d; keep it elsewhere and pass where", step, i, n, api.MaxPayload)
}

// callRefused says what an answer of the server means for the run.
func (r *Run) callRefused(step string, err error) error {
	err = fmt.Errorf("%s: %w", step, err)
	var p *api.Problem
	if !errors.As(err, &p) || passing(p) {
		return err
	}
	switch {
	case p.Code() == api.CodeFenced, p.Code() == api.CodeUnauthorized:
		return fmt.Errorf("%w: %w", ErrFenced, err)
	case p.Code() == api.CodeForbidden:
		return &Error{Code: CodePermissionDenied, Final: true, Err: err}
	case p.Code() == api.CodeConflict:
		return r.fault(&Error{Code: CodeNonDeterministic, Final: true, Err: err})
	case p.Status == http.StatusRequestEntityTooLarge:
		return &Error{Code: CodeResultTooLarge, Final: true, Err: err}
	case p.Status < http.StatusInternalServerError:
		return &Error{Code: CodeInputInvalid, Final: true, Err: err}
	}
	return err
}

// joined is what became of a group's children. What the record leaves out for its size is asked for.
func (r *Run) joined(ctx context.Context, g *group, step api.Step) ([]api.ChildResult, *api.Joined, error) {
	var j api.Joined
	if err := json.Unmarshal(orNull(step.Result), &j); err != nil || step.Error != nil {
		return nil, nil, r.fault(failf(CodeNonDeterministic, "step %q: its record is not one of children", g.step))
	}
	if j.Size != len(g.requests) {
		return nil, nil, r.fault(failf(CodeNonDeterministic, "step %q: %d children are asked for, and an earlier attempt called %d: compute what to call in a step", g.step, len(g.requests), j.Size))
	}
	if !j.Paged && len(j.Children) == j.Size {
		return j.Children, &j, nil
	}
	if r.client == nil || r.a.box == nil {
		return nil, nil, fmt.Errorf("step %q: read what became of its children: %w", g.step, errNoServer)
	}
	var all []api.ChildResult
	size := 0
	for token := ""; ; {
		page, err := patiently(ctx, r, func() (*api.List[api.ChildResult], error) {
			return r.client.ChildrenOf(ctx, r.a.Attempt, r.a.Token, g.step, token, api.MaxPage)
		})
		if err != nil {
			return nil, nil, fmt.Errorf("step %q: read what became of its children: %w", g.step, err)
		}
		for i := range page.Items {
			size += len(page.Items[i].Output)
		}
		if size > MaxCalled {
			return nil, nil, r.fault(failf(CodeResultTooLarge, "step %q: the outputs of its children have more than %d bytes; keep them elsewhere and return where", g.step, MaxCalled))
		}
		all = append(all, page.Items...)
		if token = page.NextPageToken; token == "" || len(all) >= j.Size {
			break
		}
	}
	if len(all) != j.Size {
		return nil, nil, fmt.Errorf("step %q: the server has %d of its %d children", g.step, len(all), j.Size)
	}
	return all, &j, nil
}
