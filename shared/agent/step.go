package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/errand-run/errand/shared/api"
)

// stepKey carries the name of the step that a context belongs to.
type stepKey struct{}

// Step runs fn once for the run: its result is recorded before Step returns, and later attempts get the record instead
// of running fn. An error of fn is not recorded, so that the next attempt tries again, unless it is one of [Fail], which
// is final here as well. A step that was under way when its attempt ended is run again.
//
// The name is unique within the run, at most api.MaxName bytes; put an index into it where steps repeat. The result is
// at most api.MaxStepResult bytes of JSON. Steps may run concurrently.
func Step[T any](ctx context.Context, r *Run, name string, fn func(context.Context) (T, error)) (T, error) {
	var zero T
	// 1. The record, if there is one.
	recorded, found, err := r.enter(ctx, name)
	if err != nil {
		return zero, err
	}
	if found && r.undo != nil {
		if err := r.findWithin(ctx, name, func(ctx context.Context) error { _, err := fn(ctx); return err }); err != nil {
			return zero, err
		}
	}
	if found {
		if recorded.Error != nil {
			return zero, fmt.Errorf("step %q: %w", name, fromRecord(recorded.Error))
		}
		var result T
		if err := json.Unmarshal(orNull(recorded.Result), &result); err != nil {
			return zero, r.fault(failf(CodeNonDeterministic, "step %q: its record does not fit %s: %w; a step whose result changes needs a new name", name, typeName[T](), decoding(err)))
		}
		return result, nil
	}
	// 2. The work.
	result, err := fn(context.WithValue(ctx, stepKey{}, name))
	if r.undo != nil { // nothing is recorded any more
		return result, err
	}
	step := &api.Step{Name: name}
	if err != nil {
		var typed *Error
		if !errors.As(err, &typed) || !typed.Final || ctx.Err() != nil || r.isBroken() {
			return zero, fmt.Errorf("step %q: %w", name, err)
		}
		step.Error = describe(err, nil)
	} else {
		if step.Result, err = encode(result); err != nil {
			return zero, failf(CodeOutputInvalid, "step %q: result: %w", name, err)
		}
		if len(step.Result) > api.MaxStepResult {
			return zero, failf(CodeResultTooLarge, "step %q: result of %d bytes: at most %d; keep it elsewhere and return where", name, len(step.Result), api.MaxStepResult)
		}
	}
	// 3. The record is durable before anybody acts on the result.
	if err := r.record(ctx, step); err != nil {
		return zero, fmt.Errorf("record step %q: %w", name, err)
	}
	if step.Error != nil {
		return zero, fmt.Errorf("step %q: %w", name, err)
	}
	return result, nil
}

// enter claims a step's name for this attempt and returns its record.
func (r *Run) enter(ctx context.Context, name string) (step api.Step, found bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.broken != nil:
		return step, false, r.broken
	case r.parked != nil:
		return step, false, fmt.Errorf("step %q: %w", name, ErrParked)
	case ctx.Err() != nil:
		return step, false, fmt.Errorf("step %q: %w", name, context.Cause(ctx))
	case r.undo != nil && r.undo.over():
		return step, false, fmt.Errorf("step %q: %w", name, errReplayed)
	}
	if err := checkName("step", name); err != nil {
		return step, false, r.breakWith(err)
	}
	if strings.HasPrefix(name, askedStep) {
		return step, false, r.breakWith(failf(CodeNameInvalid, "step %q: names that begin with %s are of steps in which a person is asked", clip(name, 60), askedStep))
	}
	if r.asked[name] {
		return step, false, r.breakWith(failf(CodeDuplicateStep, "step %q was asked for twice: names are unique within a run; put an index into them", name))
	}
	if r.asked == nil {
		r.asked = make(map[string]bool)
	}
	r.asked[name] = true
	if step, found = r.steps[name]; found {
		if isWait(name) {
			if err := r.inOrder(name, step.Seq); err != nil {
				return step, false, err
			}
		}
		delete(r.steps, name)
		return step, true, nil
	}
	if r.undo != nil && r.undo.inStep(name) == 0 {
		return step, false, fmt.Errorf("step %q: %w", name, errReplayed)
	}
	if r.ended >= api.MaxSteps {
		return step, false, r.breakWith(failf(CodeTooManySteps, "step %q: the run has %d steps recorded, which is the most it can have", name, r.ended))
	}
	return step, false, nil
}

// record makes a step durable.
func (r *Run) record(ctx context.Context, step *api.Step) error {
	r.mu.Lock()
	r.ended++
	step.Seq = r.ended
	r.mu.Unlock()
	_, err := r.a.Report(ctx, api.Report{Type: api.ReportStep, Step: step})
	return err
}

// fault notes and returns what makes the attempt fail whatever the handler returns.
func (r *Run) fault(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.breakWith(err)
}

func (r *Run) isBroken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.broken != nil
}

// fromRecord is a recorded failure as the error it was.
func fromRecord(e *api.AgentError) error {
	return &Error{Class: e.Class, Code: e.Code, Final: true, Err: errors.New(e.Message)}
}

func checkName(what, name string) error {
	switch {
	case name == "":
		return failf(CodeNameInvalid, "%s: its name is empty", what)
	case len(name) > api.MaxName:
		return failf(CodeNameInvalid, "%s %q…: a name of %d bytes; at most %d", what, clip(name, 40), len(name), api.MaxName)
	case !utf8.ValidString(name):
		return failf(CodeNameInvalid, "%s %q: its name is not UTF-8", what, clip(name, 40))
	}
	for _, c := range name {
		if c < ' ' || c == 0x7f {
			return failf(CodeNameInvalid, "%s %q: its name has a control character", what, name)
		}
	}
	return nil
}
