package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// A finished run once more, as a new run of the same unit of work.

// RetryRequest asks for another run of a finished one.
type RetryRequest struct {
	Input json.RawMessage // in place of the first one's; with From, of that stage
	From  string          // stage of a workflow (STAGE, or STAGE#VISIT) from which it goes anew
	// Key makes it idempotent for the run that it repeats: the same key with the same From and Input gives the same new run,
	// as long as that is kept. "" for another run each time.
	Key   string
	Actor string
}

// Retry makes a new run of a finished one. It belongs to the same unit of work, so that it meets the receipts of what
// the first one did. input, if given, replaces the first one's.
func (p *Plane) Retry(ctx context.Context, id string, input json.RawMessage, actor string) (*run.Record, error) {
	done := p.RetryFrom(ctx, id, RetryRequest{Input: input, Actor: actor})
	return done.Run, done.Err
}

// RetryFrom is Retry; that of a workflow can begin at a stage, and one under a key is made once.
func (p *Plane) RetryFrom(ctx context.Context, id string, q RetryRequest) Submitted {
	answer := make(chan Submitted, 1)
	p.enterRetry(ctx, id, q, func(s Submitted) { answer <- s })
	return <-answer
}

// EnterRetry is Retry without waiting: then is called once with the outcome, which may be before EnterRetry returns.
func (p *Plane) EnterRetry(ctx context.Context, id string, input json.RawMessage, actor string, then func(Submitted)) {
	p.enterRetry(ctx, id, RetryRequest{Input: input, Actor: actor}, then)
}

func (p *Plane) enterRetry(ctx context.Context, id string, q RetryRequest, then func(Submitted)) {
	if done, known := p.retriedBefore(ctx, id, &q); known {
		then(done)
		return
	}
	a, err := p.retryOf(ctx, id, q)
	if err != nil {
		then(Submitted{Err: err})
		return
	}
	a.done = func(x arrival, err error) { then(p.settle(ctx, x, err)) }
	p.enter(ctx, []arrival{a})
}

// retriedBefore answers a retry whose key was used before, whatever has become since of the run that it repeats and of
// what is declared. Where two come at once, the store lets one of them be the first.
func (p *Plane) retriedBefore(ctx context.Context, id string, q *RetryRequest) (done Submitted, known bool) {
	if q.Key == "" {
		return done, false
	}
	if len(q.Key) > maxKey || strings.ToValidUTF8(q.Key, "") != q.Key {
		return Submitted{Err: refuse(CodeInvalid, "retry run %s: key: want up to %d bytes of UTF-8 text", id, maxKey)}, true
	}
	var spec run.Spec
	q.identify(&spec, id)
	switch _, err := p.Get(ctx, spec.ID); {
	case isNotFound(err):
		return done, false
	case err != nil:
		return Submitted{Err: err}, true
	}
	return p.settle(ctx, arrival{rec: &run.Record{Spec: spec}}, store.ErrExists), true
}

// identify gives a retry under a key the id that every repeat of it has.
func (q *RetryRequest) identify(spec *run.Spec, of string) {
	if q.Key == "" {
		return
	}
	sum := sha256.Sum256([]byte("retry\x00" + of + "\x00" + q.Key))
	spec.ID = idEncoding.EncodeToString(sum[:])[:20]
	spec.Key = q.Key
	sum = sha256.Sum256(append([]byte(q.From+"\x00"), compact(q.Input)...))
	spec.Hash = hex.EncodeToString(sum[:16])
}

// retryOf makes the record of a retry.
func (p *Plane) retryOf(ctx context.Context, id string, q RetryRequest) (arrival, error) {
	var a arrival
	input, actor := q.Input, q.Actor
	old, err := p.Get(ctx, id)
	if err != nil {
		return a, err
	}
	if !old.State.Terminal() {
		return a, refuse(CodeState, "run %s is %s: only a finished run can be retried; cancel it first", id, old.State)
	}
	if old.Due != 0 && old.Due <= p.now().Add(retryMargin) {
		return a, refuse(CodeState, "run %s ended longer ago than its agent's retain keeps it, and is about to be removed with its receipts: submit a new run", id)
	}
	if len(input) > run.MaxPayload {
		return a, refuse(CodeTooLarge, "the input has %d bytes, %d at most", len(input), run.MaxPayload)
	}
	if old.Kind == run.KindWorkflow {
		return p.retryOfFlow(ctx, old, q)
	}
	if q.From != "" {
		return a, refuse(CodeInvalid, "run %s is of agent %s, which has no stages: retry it without from", id, old.Agent)
	}
	x := p.declared.get(fleet.KindAgent, old.Agent)
	if x == nil {
		return a, refuse(CodeNotFound, "agent %s is not declared any more", old.Agent)
	}
	if input == nil {
		if input, err = p.Value(ctx, old.Input); err != nil {
			return a, err
		}
	}
	if x.input != nil {
		if faults := validate(x.input, input, "input"); len(faults) > 0 {
			return a, &Refusal{Code: CodeInvalid, Detail: "input does not match the schema of agent " + old.Agent, Faults: faults}
		}
	}
	now := p.now()
	agent := x.object.(*fleet.Agent)
	spec := run.Spec{
		ID: p.runID(now), Kind: old.Kind, Agent: old.Agent, Version: agent.Version, Revision: x.revision, Tenant: old.Tenant,
		Priority: old.Priority, Labels: old.Labels, Unit: old.WorkUnit(), CreatedAt: now, RetainFor: retainFor(agent.Retain),
		RetryOf: old.ID, Session: old.Session, Trace: old.Trace, BudgetUSD: old.BudgetUSD, BudgetToken: old.BudgetToken,
	}
	q.identify(&spec, old.ID)
	if spec.Groups, err = x.groupsOf(ctx, &spec, input); err != nil {
		return a, err
	}
	a, err = p.arrivalOf(spec, input, &agent.Timeouts, actor, now)
	a.writes = append(a.writes, retryLink(old.ID, spec.ID))
	return a, err
}
