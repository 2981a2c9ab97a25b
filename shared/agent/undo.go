package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Undoing a run. The hooks that undo its effects are closures of the handler, so the handler is run once more to find
// them: with the input, the recorded steps and the receipts of the run, and nothing else. Steps return their records and
// Once returns what its receipt has, and takes note of the hook. Where the run got no further, or every hook is found,
// the call returns errReplayed, and in the latter case the handler's context ends. Then the hooks are called, that of what happened last first.
//
// A step that performed effects which are to be undone is executed again to find their hooks; its record stands.

// errReplayed ends the search for hooks. A handler returns it like any other error.
var errReplayed = errors.New("the run is being undone, and got no further than this")

// undoing is what an attempt of mode compensate is about. Safe for concurrent use.
type undoing struct {
	mu       sync.Mutex
	effects  []*undone // newest first
	left     int       // hooks that were not found yet
	recorded map[string]bool
	found    context.CancelCauseFunc // ends the handler when every hook is found
}

// undone is an effect of the run that is being undone.
type undone struct {
	api.Undoing
	hook    func(context.Context) error         // undoes it; nil until found
	isThere func(context.Context) (bool, error) // asks the outside world for it; nil where the effect has no Reconcile
	found   bool                                // whether the handler came by
	policy  OnUnknown
	timeout time.Duration
}

func newUndoing(list []api.Undoing) *undoing {
	u := &undoing{recorded: make(map[string]bool)}
	for _, x := range list {
		u.effects = append(u.effects, &undone{Undoing: x})
		if x.Undo != "" {
			u.left++
		}
	}
	return u
}

// over reports whether every hook is found.
func (u *undoing) over() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.left == 0
}

// inStep counts the hooks that are still to be found within a step.
func (u *undoing) inStep(step string) (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, x := range u.effects {
		if x.Step == step && x.Undo != "" && !x.found {
			n++
		}
	}
	return n
}

// isRecorded reports whether a step that is executed again has ended before.
func (u *undoing) isRecorded(step string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.recorded[step]
}

// of is the effect of that name; nil if the run did not perform it itself.
func (u *undoing) of(step, effect string) *undone {
	for _, x := range u.effects {
		if x.Step == step && x.Effect == effect {
			return x
		}
	}
	return nil
}

// take notes how an effect is undone; a nil hook says that there is nothing to undo.
func (u *undoing) take(x *undone, hook func(context.Context) error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if x.Undo == "" || x.found {
		return
	}
	x.found, x.hook = true, hook
	if u.left--; u.left == 0 && u.found != nil {
		u.found(errReplayed)
	}
}

// known answers Once for a run that is being undone: with the effect's result, and a note of how it is undone. It is not
// done when the server is to be asked again.
func (o *once[T]) known(ctx context.Context) (result T, done bool, err error) {
	u := o.r.undo
	if u.over() {
		return result, true, o.replayed()
	}
	x := u.of(o.step, o.name)
	// 1. Of what the run did not perform itself, or whose result was too large to come along, the server knows.
	if x == nil || x.Omitted {
		answer, err := patiently(ctx, o.r, func() (*api.ReceiptAnswer, error) {
			return o.r.client.BeginReceipt(ctx, o.r.a.Attempt, o.r.a.Token, o.name, o.begin)
		})
		if err != nil {
			return result, false, o.refused("look up", err)
		}
		switch {
		case answer.Answer == api.EffectWait:
			return result, false, o.wait(ctx, answer.Until)
		case answer.Answer != api.EffectDone:
			return result, true, o.replayed()
		case x == nil:
			result, err = o.decode(answer.Result)
			return result, true, err
		}
		u.mu.Lock()
		x.Result, x.Omitted = answer.Result, false
		u.mu.Unlock()
	}
	// 2. Whether it happened has to be known.
	if x.State == "unknown" {
		if x.Undo == "" { // nobody needs to know
			return result, true, o.replayed()
		}
		var happened bool
		if result, happened, err = o.findOut(ctx, x); err != nil {
			return result, true, err
		}
		if !happened {
			u.take(x, nil)
			return result, true, o.replayed()
		}
	} else if result, err = o.decode(x.Result); err != nil {
		return result, true, err
	}
	// 3. How it is undone.
	if x.Undo != "" {
		if o.e.Compensate == nil {
			return result, true, o.r.fault(failf(CodeNotUndone, "effect %q can be undone, says its receipt %s, but it has no Compensate any more", o.name, x.ID))
		}
		x.policy, x.timeout = o.e.OnUnknown, o.e.Timeout
		if o.e.Reconcile != nil {
			x.isThere = func(ctx context.Context) (bool, error) {
				_, there, err := o.e.Reconcile(ctx, x.Key)
				return there, err
			}
		}
		u.take(x, func(ctx context.Context) error { return o.e.Compensate(ctx, x.Key, result) })
	}
	if u.isRecorded(o.step) && u.inStep(o.step) == 0 { // what follows in the step is of no use
		return result, true, o.replayed()
	}
	return result, true, nil
}

// findOut settles whether an effect that is to be undone happened: by its hook, else a person is asked.
func (o *once[T]) findOut(ctx context.Context, x *undone) (result T, happened bool, err error) {
	if o.e.Reconcile == nil {
		return result, false, o.r.ask(o.name, x.ID)
	}
	if result, happened, err = o.e.Reconcile(ctx, x.Key); err != nil {
		return result, false, fmt.Errorf("effect %q: find out whether it happened: %w", o.name, err)
	}
	if happened {
		return result, true, o.commit(ctx, result, "happened")
	}
	return result, false, o.end(ctx, "abandon", func(ctx context.Context) (*api.Standing, error) {
		return o.r.client.AbandonReceipt(ctx, o.r.a.Attempt, o.r.a.Token, o.name, api.ReceiptCommit{Step: o.step, Reconciled: "didNotHappen"})
	})
}

func (o *once[T]) replayed() error { return fmt.Errorf("effect %q: %w", o.name, errReplayed) }

// compensate undoes the effects of a run; replay runs its handler.
func (r *Run) compensate(ctx context.Context, replay func(context.Context) error) Result {
	// 1. Find the hooks.
	panicked, err := r.replay(ctx, replay)
	r.mu.Lock()
	broken, parked := r.broken, r.parked
	r.mu.Unlock()
	fail := func(err error) Result { return Result{Err: describe(err, context.Cause(ctx)), Usage: r.total()} }
	switch {
	case broken != nil:
		return fail(broken)
	case parked != nil:
		return Result{Park: parked, Usage: r.total()}
	case r.undo.over():
	case panicked != nil:
		panicked.Usage = r.total()
		return *panicked
	case err == nil || errors.Is(err, errReplayed):
		return fail(failf(CodeNotUndone, "%s: the handler did not come by it again, and so does not say how it is undone; it must take the same way on each attempt", r.undo.missing()))
	default:
		return fail(fmt.Errorf("find out how the run is undone: %w", err))
	}
	// 2. Call them, newest first. What one has undone is on its receipt: the next attempt leaves it out.
	list := []string{}
	for _, x := range r.undo.effects {
		if x.hook == nil {
			continue
		}
		if err := r.callHook(ctx, x); err != nil {
			if parked := r.isParked(); parked != nil {
				return Result{Park: parked, Usage: r.total()}
			}
			return fail(err)
		}
		list = append(list, x.Effect)
	}
	output, err := encode(map[string]any{"undone": list})
	if err != nil {
		return fail(failf(CodeOutputInvalid, "what was undone: %w", err))
	}
	return Result{Output: output, Usage: r.total()}
}

// replay runs the handler as far as the run got. A handler that is cut short may panic over what it did not get.
func (r *Run) replay(ctx context.Context, handler func(context.Context) error) (result *Result, err error) {
	if r.undo.over() {
		return nil, nil
	}
	ctx, r.undo.found = context.WithCancelCause(ctx)
	defer r.undo.found(nil)
	defer func() {
		if p := recover(); p != nil && !r.undo.over() {
			failed := panicked(r.a, p, debug.Stack())
			result = &failed
		}
	}()
	return nil, handler(ctx)
}

// errStillThere: the outside world has what was to be undone, so it was not, or it remembers what was.
var errStillThere = errors.New("what was to be undone is there")

// callHook undoes one effect, at most once. Where an attempt died in the middle of it, what follows is as the effect says
// for itself. Its own hook tells only that nothing is left of it: a payment that was paid back has taken place still.
func (r *Run) callHook(ctx context.Context, x *undone) error {
	e := Effect[struct{}]{OnUnknown: x.policy, Timeout: x.timeout, Do: func(ctx context.Context, _ string) (struct{}, error) {
		if err := x.hook(ctx); err != nil {
			return struct{}{}, NotDone(err) // whoever says so has it called again
		}
		return struct{}{}, nil
	}}
	if x.isThere != nil {
		e.Reconcile = func(ctx context.Context, _ string) (none struct{}, undone bool, err error) {
			there, err := x.isThere(ctx)
			if there && err == nil {
				err = errStillThere
			}
			return none, err == nil, err
		}
	}
	o, err := newOnce(r, x.Undo, x.Step, e)
	if err != nil {
		return err
	}
	if _, err = o.rounds(ctx); err != nil {
		return fmt.Errorf("undo effect %q: %w", x.Effect, err)
	}
	return nil
}

func (r *Run) isParked() *api.Park {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parked
}

// findWithin executes a step once more that has ended, to find the hooks of its effects.
func (r *Run) findWithin(ctx context.Context, step string, fn func(context.Context) error) error {
	u := r.undo
	if u.inStep(step) == 0 {
		return nil
	}
	u.mu.Lock()
	u.recorded[step] = true
	u.mu.Unlock()
	err := fn(context.WithValue(ctx, stepKey{}, step))
	switch {
	case r.isParked() != nil, err != nil && !errors.Is(err, errReplayed) && u.inStep(step) > 0:
		return fmt.Errorf("step %q: %w", step, err)
	}
	return nil
}

// missing names some of the effects of which no hook was found.
func (u *undoing) missing() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var names []string
	for _, x := range u.effects {
		if x.Undo != "" && !x.found {
			names = append(names, fmt.Sprintf("%q", clip(x.Effect, 60)))
		}
	}
	more := ""
	if n := len(names) - 5; n > 0 {
		names, more = names[:5], fmt.Sprintf(" and %d more", n)
	}
	return "effects " + strings.Join(names, ", ") + more
}

// askedStep begins the names of the steps in which a run waits for a person's word on a receipt.
const askedStep = "receipt:"

// ask ends the attempt until a person has said what became of an effect. The error must be returned by the handler.
func (r *Run) ask(effect, receipt string) error {
	step := r.next(askedStep + receipt)
	err := r.park(&api.Park{On: "input", Step: step, Name: askedStep + receipt})
	return fmt.Errorf("effect %q: whether it happened is unknown; a person has to find out and say so with `errand resolve %s`: %w", effect, receipt, err)
}

// withoutAsked takes the steps out in which the run has waited for a person's word, and counts them: what was said is
// on the receipts.
func withoutAsked(steps map[string]api.Step, counts map[string]int) {
	for name := range steps {
		if i := strings.LastIndexByte(name, '#'); strings.HasPrefix(name, askedStep) && i > 0 {
			counts[name[:i]]++
			delete(steps, name)
		}
	}
}
