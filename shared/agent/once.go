package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// OnUnknown says what happens to an effect of which nobody knows whether it took place: [Default], [Ask], [Reconcile],
// [Repeat] or [FailRun]. nil is Default. With Ask it is left to a person: the run waits, without an attempt, until
// `errand resolve` tells what happened, and Once returns an error that wraps [ErrParked], which the handler must return.
type OnUnknown interface{ policy() unknown }

type unknown string

func (u unknown) policy() unknown { return u }

// What to do about an unknown effect, besides [Ask].
const (
	// Default is to reconcile where there is a hook for it, else what the agent's manifest says.
	Default unknown = ""
	// Reconcile asks the effect's own hook.
	Reconcile unknown = "reconcile"
	// Repeat performs it again: the outside system takes the key as its idempotency key, or it does not matter.
	Repeat unknown = "repeat"
	// FailRun ends the run with [CodeOutcomeUnknown].
	FailRun unknown = "fail"

	askPerson unknown = "ask"
)

func policyOf(o OnUnknown) unknown {
	if o == nil {
		return Default
	}
	return o.policy()
}

// Effect is something that is done to the outside world.
type Effect[T any] struct {
	// Request is what is asked of the outside world, as JSON. The same effect with another request is refused.
	Request any
	// Do performs the effect. The key is the same whenever this effect of this unit of work is tried: pass it on as the
	// outside system's own idempotency key. Do must not outlast its context.
	Do func(ctx context.Context, key string) (T, error)
	// Reconcile finds out whether an effect that was begun took place, and with which result.
	Reconcile func(ctx context.Context, key string) (result T, happened bool, err error)
	// Compensate undoes the effect when the run ends without success: fails, is canceled, or passes its deadline. It gets
	// the key and the result of Do, and is called for the effect that happened last first. It returns nil when nothing of
	// the effect is left. After an error it is called again, as the agent's retry policy says. When an attempt dies in
	// the middle of it, OnUnknown says what follows, as for Do: with Repeat it is called again, with FailRun whoever owns
	// the run is asked whether to try again, and with Reconcile the effect counts as undone if that hook finds that it did
	// not take place. Otherwise a person says whether it was undone.
	//
	// To find it, the handler is run again with the steps and effects on record, up to where the run got: what it does
	// outside of steps is done again, and so are steps that performed effects with a Compensate.
	Compensate func(ctx context.Context, key string, result T) error
	OnUnknown  OnUnknown
	// Timeout is how long Do may take; a minute when 0, and never past the attempt's deadline.
	Timeout time.Duration
}

const (
	defaultEffect = time.Minute
	maxRounds     = 100              // of begin, for one call of Once
	commitTime    = 15 * time.Second // to record what happened, even when the attempt is ending
)

// Once performs an effect at most once for the run's unit of work, over all attempts and retries, and returns its
// result whenever it is asked for again. Before Do is called, the server has noted the intent; when Do returns, its
// result is recorded before Once returns.
//
// An error of Do leaves the outcome unknown, unless it is one of [NotDone]: the request may have arrived and the answer
// been lost. The next attempt then goes by OnUnknown. An effect of which another attempt may still be busy is waited for.
//
// The name is unique within the step that the context belongs to, or within the run outside of steps.
func Once[T any](ctx context.Context, r *Run, name string, e Effect[T]) (T, error) {
	var zero T
	// 1. Check what was asked.
	if err := checkName("effect", name); err != nil {
		return zero, r.fault(err)
	}
	if e.Do == nil {
		return zero, r.fault(failf(CodeUnsupported, "effect %q: it has no Do", name))
	}
	if r.client == nil || r.a.box == nil {
		return zero, errNoServer
	}
	step, _ := ctx.Value(stepKey{}).(string)
	o, err := newOnce(r, name, step, e)
	if err != nil {
		return zero, err
	}
	// 2. Ask the server until it says do it, or here is the result.
	if r.undo != nil {
		o.ask = o.known
	}
	return o.rounds(ctx)
}

func newOnce[T any](r *Run, name, step string, e Effect[T]) (*once[T], error) {
	hash, err := requestHash(e.Request)
	if err != nil {
		return nil, r.fault(failf(CodeOutputInvalid, "effect %q: request: %w", name, err))
	}
	timeout := e.Timeout
	if timeout <= 0 {
		timeout = defaultEffect
	}
	if policyOf(e.OnUnknown) == Default && e.Reconcile != nil {
		e.OnUnknown = Reconcile
	}
	o := &once[T]{r: r, e: &e, name: name, step: step, begin: api.ReceiptBegin{
		Step: step, RequestHash: hash, Nonce: rand.Text(), Timeout: (*api.Duration)(&timeout), OnUnknown: string(policyOf(e.OnUnknown)),
		Compensable: e.Compensate != nil,
	}}
	o.ask = o.round
	return o, nil
}

// rounds asks until there is an answer.
func (o *once[T]) rounds(ctx context.Context) (T, error) {
	for range maxRounds {
		result, done, err := o.ask(ctx)
		if done || err != nil {
			return result, err
		}
	}
	var zero T
	return zero, fmt.Errorf("effect %q: no decision after %d rounds: %w", o.name, maxRounds, Retry(time.Minute))
}

// once is one call of Once.
type once[T any] struct {
	r     *Run
	e     *Effect[T]
	name  string
	step  string
	begin api.ReceiptBegin
	// ask is round, or known where the run is being undone.
	ask func(context.Context) (result T, done bool, err error)
}

// round asks once and does what the answer says. It is not done when the server is to be asked again.
func (o *once[T]) round(ctx context.Context) (result T, done bool, err error) {
	asked := time.Now()
	answer, err := patiently(ctx, o.r, func() (*api.ReceiptAnswer, error) {
		return o.r.client.BeginReceipt(ctx, o.r.a.Attempt, o.r.a.Token, o.name, o.begin)
	})
	if err != nil {
		return result, false, o.refused("begin", err)
	}
	o.r.heed(answer.Standing)
	switch answer.Answer {
	case api.EffectProceed:
		result, err = o.perform(ctx, answer, asked)
		return result, true, err
	case api.EffectDone:
		result, err = o.decode(answer.Result)
		return result, true, err
	case api.EffectWait:
		return result, false, o.wait(ctx, answer.Until)
	case api.EffectUnknown:
		return o.settle(ctx, answer)
	case api.EffectConflict:
		return result, false, o.r.fault(failf(CodeEffectConflict, "effect %q was begun before with another request: what it asks for must be the same "+
			"on each attempt; compute it in a step, or give the effect another name", o.name))
	}
	return result, false, failf(CodeUnsupported, "effect %q: the server answers %q, which this SDK does not know", o.name, answer.Answer)
}

// perform calls Do and records what became of it.
func (o *once[T]) perform(ctx context.Context, answer *api.ReceiptAnswer, asked time.Time) (T, error) {
	var zero T
	// 1. Do, cancelled when the server stops waiting for it. Our own clock bounds it too: the server's may differ.
	until := asked.Add(o.begin.Timeout.Std())
	if answer.Until != nil && answer.Until.Before(until) {
		until = answer.Until.Time
	}
	doCtx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	result, err := o.e.Do(doCtx, keyOf(answer))
	// 2. What happened is recorded even when the attempt is ending.
	var not *notDone
	if errors.As(err, &not) {
		if abandonErr := o.abandon(ctx); abandonErr != nil {
			return zero, fmt.Errorf("effect %q: %w; that it was not done could not be recorded: %w", o.name, err, abandonErr)
		}
		return zero, fmt.Errorf("effect %q: %w", o.name, err)
	}
	if err != nil {
		return zero, fmt.Errorf("effect %q: whether it happened is unknown: %w", o.name, err)
	}
	return result, o.commit(ctx, result, "")
}

// keyOf is what the outside system is given as its idempotency key.
func keyOf(answer *api.ReceiptAnswer) string {
	if answer.Key != "" {
		return answer.Key
	}
	return answer.ID
}

// settle deals with an effect of which the server does not know whether it happened.
func (o *once[T]) settle(ctx context.Context, answer *api.ReceiptAnswer) (result T, done bool, err error) {
	policy := unknown(answer.OnUnknown)
	if policy == Default {
		policy = policyOf(o.e.OnUnknown)
	}
	switch {
	case policy == Reconcile && o.e.Reconcile != nil:
	case policy == Repeat:
		return result, false, fmt.Errorf("effect %q: the server does not let it be repeated yet: %w", o.name, Retry(0))
	case policy == FailRun:
		return result, false, o.r.fault(failf(CodeOutcomeUnknown, "effect %q (receipt %s): whether it happened is unknown; find out, tell with `errand resolve %s`, and retry the run",
			o.name, answer.ID, answer.ID))
	default:
		return result, true, o.r.ask(o.name, answer.ID)
	}
	result, happened, err := o.e.Reconcile(ctx, keyOf(answer))
	switch {
	case errors.Is(err, errStillThere):
		return result, true, o.r.ask(o.name, answer.ID)
	case err != nil:
		return result, false, fmt.Errorf("effect %q: find out whether it happened: %w", o.name, err)
	case happened:
		return result, true, o.commit(ctx, result, "happened")
	}
	o.begin.Reconciled = "didNotHappen" // under the same nonce: the word of a call that was told "unknown"
	return result, false, nil
}

func (o *once[T]) commit(ctx context.Context, result T, reconciled string) error {
	raw, err := encode(result)
	if err != nil {
		return o.r.fault(failf(CodeOutputInvalid, "effect %q happened, but its result cannot be recorded: %w", o.name, err))
	}
	if len(raw) > api.MaxStepResult {
		return o.r.fault(failf(CodeResultTooLarge, "effect %q happened, but its result of %d bytes cannot be recorded: at most %d", o.name, len(raw), api.MaxStepResult))
	}
	body := api.ReceiptCommit{Step: o.step, Result: raw, Reconciled: reconciled}
	return o.end(ctx, "commit", func(ctx context.Context) (*api.Standing, error) {
		return o.r.client.CommitReceipt(ctx, o.r.a.Attempt, o.r.a.Token, o.name, body)
	})
}

func (o *once[T]) abandon(ctx context.Context) error {
	return o.end(ctx, "abandon", func(ctx context.Context) (*api.Standing, error) {
		return o.r.client.AbandonReceipt(ctx, o.r.a.Attempt, o.r.a.Token, o.name, api.ReceiptCommit{Step: o.step})
	})
}

func (o *once[T]) end(ctx context.Context, verb string, call func(context.Context) (*api.Standing, error)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTime)
	defer cancel()
	standing, err := patiently(ctx, o.r, func() (*api.Standing, error) { return call(ctx) })
	if err != nil {
		return o.refused(verb, err)
	}
	o.r.heed(*standing)
	return nil
}

func (o *once[T]) decode(raw json.RawMessage) (T, error) {
	var result T
	if err := json.Unmarshal(orNull(raw), &result); err != nil {
		return result, o.r.fault(failf(CodeNonDeterministic, "effect %q: its record does not fit %s: %w; an effect whose result changes needs a new name", o.name, typeName[T](), decoding(err)))
	}
	return result, nil
}

// wait sleeps until another attempt that may still be acting cannot be any more.
func (o *once[T]) wait(ctx context.Context, until *api.Time) error {
	delay := time.Second
	if until != nil {
		delay = max(time.Until(until.Time), firstBackoff)
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("effect %q: another attempt may still be performing it: %w", o.name, context.Cause(ctx))
	}
}

// refused says what an answer of the server means for the run.
func (o *once[T]) refused(verb string, err error) error {
	var p *api.Problem
	err = fmt.Errorf("effect %q: %s: %w", o.name, verb, err)
	if !errors.As(err, &p) || passing(p) {
		return err
	}
	switch {
	case p.Code() == api.CodeFenced, p.Code() == api.CodeUnauthorized:
		return fmt.Errorf("%w: %w", ErrFenced, err)
	case p.Code() == api.CodeForbidden:
		return &Error{Code: CodePermissionDenied, Final: true, Err: err}
	case p.Code() == api.CodeConflict:
		return o.r.fault(&Error{Code: CodeEffectConflict, Final: true, Err: err})
	case p.Status == http.StatusRequestEntityTooLarge:
		return &Error{Code: CodeResultTooLarge, Final: true, Err: err}
	}
	return err
}

// heed ends the attempt's context when the server says so.
func (r *Run) heed(s api.Standing) {
	if s.Cancel {
		r.a.stop(&CanceledError{Reason: s.CancelReason})
	}
}

// patiently repeats a call while the server is away, until it answers or ctx is done.
func patiently[T any](ctx context.Context, r *Run, call func() (*T, error)) (*T, error) {
	var b backoff
	for {
		out, err := call()
		var p *api.Problem
		if err == nil {
			return out, nil
		}
		if errors.As(err, &p) && p.Code() == api.CodeFenced {
			r.a.box.lost(r.a, fmt.Errorf("%w: %w", ErrFenced, p))
		}
		if !errors.Is(err, api.ErrUnreachable) && (p == nil || !passing(p)) {
			return nil, err
		}
		b.failed(time.Now(), err)
		t := time.NewTimer(time.Until(b.until))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// requestHash is the SHA-256 of a request's canonical JSON: keys sorted, no blanks, numbers as they were written.
func requestHash(request any) (string, error) {
	raw, err := encode(request)
	if err != nil {
		return "", err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	canonical, err := encode(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}
