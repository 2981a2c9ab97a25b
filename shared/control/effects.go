package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// External effects: intent before the action, receipt after it. The rules are run.BeginReceipt and its kin; here they
// meet the store. A receipt's own document is the fence, and each write also requires that the attempt still holds its
// run.

const (
	effectTimeout = time.Minute // how long an action may take that names no time
	tagUnknown    = "unknown"   // receipts that a person may have to resolve
)

// BeginEffect asks to perform an effect. The error is of the attempt (run.ErrFenced), of the request (*Refusal), or an
// outage; every other "no" is in the answer.
func (p *Plane) BeginEffect(ctx context.Context, b EffectBegin) (EffectAnswer, error) {
	rec, live, err := p.holder(ctx, b.Run, b.N)
	if err != nil {
		return EffectAnswer{}, err
	}
	agent := p.agentOf(ctx, rec)
	if agent == nil {
		return EffectAnswer{}, refuse(CodeNotFound, "agent %s is not declared any more", rec.Agent)
	}
	if b.OnUnknown == "" {
		b.OnUnknown = string(agent.Effects.OnUnknown)
	}
	if b.Timeout <= 0 {
		b.Timeout = effectTimeout
	}
	var answer EffectAnswer
	for range conflictTries {
		// 1. What is known of the effect.
		now := p.now()
		id := run.ReceiptID(rec.Tenant, rec.WorkUnit(), b.Step, b.Effect)
		existing, err := p.receipt(ctx, id)
		if err != nil {
			return answer, err
		}
		ownerEnded, err := p.ownerEnded(ctx, existing, rec)
		if err != nil {
			return answer, err
		}
		req := run.BeginRequest{
			Tenant: rec.Tenant, Unit: rec.WorkUnit(), Step: b.Step, Effect: b.Effect, Run: rec.ID, Attempt: b.N,
			Nonce: b.Nonce, Hash: b.RequestHash, Policy: run.UnknownPolicy(b.OnUnknown), Now: now,
			Until: run.Earliest(live.deadline, now.Add(b.Timeout)), Settle: agent.Effects.Settle.Std(),
			OwnerEnded: ownerEnded, DidNotHappen: b.Reconciled == "didNotHappen",
		}
		if err := req.Validate(); err != nil {
			return answer, refuse(CodeInvalid, "%v", err)
		}
		// 2. What follows, and its write.
		next, said := run.BeginReceipt(existing, req)
		answer = EffectAnswer{ID: id, Answer: string(said.Begin), Until: said.Until, OnUnknown: b.OnUnknown}
		if existing != nil && existing.State == run.ReceiptDone {
			if answer.Value, err = p.Value(ctx, existing.Result); err != nil {
				return answer, err
			}
		}
		if next != nil {
			err = p.putReceipt(ctx, existing, next, nil, b.Run, b.N)
			if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists) {
				continue // another call about the same effect was faster
			}
			if err != nil {
				return answer, err
			}
		}
		if said.Begin == run.BeginFenced {
			return answer, fmt.Errorf("effect %s of attempt %s: %w", b.Effect, runtime.AttemptID(b.Run, b.N), run.ErrFenced)
		}
		// 3. What the attempt must know.
		p.know(ctx, []runtime.Report{{Type: runtime.Beat, Run: b.Run, N: b.N}}, []*runtime.Result{&answer.Result}, map[int]*run.Record{0: rec})
		return answer, answer.Err
	}
	return answer, &Refusal{Code: CodeUnavailable, Detail: fmt.Sprintf("effect %s is contended", b.Effect), RetryAfter: time.Second}
}

// EndEffect commits an effect that happened, or abandons one that certainly did not.
func (p *Plane) EndEffect(ctx context.Context, e EffectEnd) (runtime.Result, error) {
	var result runtime.Result
	rec, _, err := p.holder(ctx, e.Run, e.N)
	if err != nil {
		return result, err
	}
	if len(e.Value) > run.MaxPayload {
		return result, refuse(CodeTooLarge, "the result of effect %s has %d bytes, %d at most", e.Effect, len(e.Value), run.MaxPayload)
	}
	id := run.ReceiptID(rec.Tenant, rec.WorkUnit(), e.Step, e.Effect)
	for range conflictTries {
		existing, err := p.receipt(ctx, id)
		if err != nil {
			return result, err
		}
		var next *run.Receipt
		var writes []store.Write
		if e.Abandon {
			next, err = run.AbandonReceipt(existing, run.AbandonRequest{Run: e.Run, Attempt: e.N, Nonce: e.Nonce})
		} else {
			var value run.Payload
			value, writes = stash(e.Run, "effect/"+id, e.Value, run.MaxInline)
			next, err = run.CommitReceipt(existing, run.CommitRequest{Run: e.Run, Attempt: e.N, Result: value, Now: p.now(), Reconciled: e.Reconciled})
		}
		if errors.Is(err, run.ErrNoReceipt) {
			return result, refuse(CodeState, "%v", err)
		}
		if err != nil {
			return result, err
		}
		if next != nil {
			err = p.putReceipt(ctx, existing, next, writes, e.Run, e.N)
			if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists) {
				continue
			}
			if err != nil {
				return result, err
			}
		}
		p.know(ctx, []runtime.Report{{Type: runtime.Beat, Run: e.Run, N: e.N}}, []*runtime.Result{&result}, map[int]*run.Record{0: rec})
		return result, result.Err
	}
	return result, &Refusal{Code: CodeUnavailable, Detail: fmt.Sprintf("effect %s is contended", e.Effect), RetryAfter: time.Second}
}

// holder returns the run that an attempt holds, and a copy of the attempt as the index knows it.
func (p *Plane) holder(ctx context.Context, id string, n int) (*run.Record, live, error) {
	rec, err := p.Get(ctx, id)
	if err != nil {
		return nil, live{}, err
	}
	if rec.Holder() != n {
		return nil, live{}, fmt.Errorf("attempt %s: %w", runtime.AttemptID(id, n), run.ErrFenced)
	}
	p.meet(ctx, rec)
	l := live{deadline: run.Earliest(rec.Due, rec.Deadline)}
	p.mu.Lock()
	if t := p.ix.runs[id]; t != nil && t.live != nil {
		l = *t.live
	}
	p.mu.Unlock()
	if rec.State == run.Assigned {
		l.deadline = run.Earliest(p.now().Add(p.attemptTimeout(ctx, rec)), rec.Deadline)
	}
	return rec, l, nil
}

// ownerEnded is since when the attempt that holds the receipt is known to be dead; 0 if it is not.
func (p *Plane) ownerEnded(ctx context.Context, r *run.Receipt, asker *run.Record) (run.Instant, error) {
	if r == nil || r.Run == asker.ID && r.Attempt == asker.Attempt {
		return 0, nil
	}
	owner := asker
	if r.Run != asker.ID {
		var err error
		owner, err = p.Get(ctx, r.Run)
		var refusal *Refusal
		if errors.As(err, &refusal) {
			return 0, nil // removed long ago: its time to act is long over too
		}
		if err != nil {
			return 0, err
		}
	}
	for i := range owner.Attempts {
		if a := &owner.Attempts[i]; a.N == r.Attempt && a.Sure {
			return a.EndedAt, nil
		}
	}
	return 0, nil
}

func (p *Plane) receipt(ctx context.Context, id string) (*run.Receipt, error) {
	doc, err := p.store.Get(ctx, store.KindReceipt, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read receipt %s: %w", id, err)
	}
	return run.DecodeReceipt(doc.Body)
}

// putReceipt writes a receipt; n > 0 requires that attempt to hold the run still.
func (p *Plane) putReceipt(ctx context.Context, existing, next *run.Receipt, writes []store.Write, id string, n int) error {
	body, err := run.EncodeReceipt(next)
	if err != nil {
		return err
	}
	var expect int64
	if existing != nil {
		expect = existing.Version
	}
	unit := store.Unit{Token: p.newID(), Writes: append(writes, store.Write{Expect: expect, Doc: store.Doc{
		Kind: store.KindReceipt, ID: next.ID, Version: next.Version, Owner: next.Run, Tag: receiptTag(next), Body: body,
	}})}
	if n > 0 {
		unit.Fences = []store.Fence{{Run: id, Attempt: int64(n)}}
	}
	err = p.store.Commit(ctx, []store.Unit{unit})[0]
	if errors.Is(err, store.ErrFenced) {
		return fmt.Errorf("attempt %s: %w", runtime.AttemptID(id, n), run.ErrFenced)
	}
	if err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrExists) {
		return fmt.Errorf("write receipt %s: %w", next.ID, err)
	}
	return err
}

// receiptTag lists open receipts: what is unknown, and intents, which become unknown when their attempt dies.
func receiptTag(r *run.Receipt) string {
	if r.State == run.ReceiptUnknown || r.State == run.ReceiptIntent {
		return tagUnknown
	}
	return ""
}

// Receipts lists the receipts that a run touched last.
func (p *Plane) Receipts(ctx context.Context, id string) ([]run.Receipt, error) {
	rec, err := p.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	docs, err := p.store.Owned(ctx, store.KindReceipt, rec.ID, "", store.MaxPage)
	if err != nil {
		return nil, fmt.Errorf("read the receipts of run %s: %w", id, err)
	}
	return p.asTheyAre(ctx, docs)
}

// UnknownReceipts lists effects of which nobody knows whether they happened.
func (p *Plane) UnknownReceipts(ctx context.Context, limit int, pageToken string) ([]run.Receipt, string, error) {
	docs, err := p.store.Tagged(ctx, store.KindReceipt, tagUnknown, pageToken, limit)
	if err != nil {
		return nil, "", fmt.Errorf("read unknown receipts: %w", err)
	}
	next := ""
	if len(docs) == limit {
		next = docs[len(docs)-1].ID
	}
	all, err := p.asTheyAre(ctx, docs)
	unknown := all[:0]
	for _, r := range all {
		if r.State == run.ReceiptUnknown {
			unknown = append(unknown, r)
		}
	}
	return unknown, next, err
}

// asTheyAre decodes receipts and shows an intent whose attempt is over as what it is: unknown.
func (p *Plane) asTheyAre(ctx context.Context, docs []store.Doc) ([]run.Receipt, error) {
	out := make([]run.Receipt, 0, len(docs))
	for _, doc := range docs {
		r, err := run.DecodeReceipt(doc.Body)
		if err != nil {
			return out, err
		}
		if r.State == run.ReceiptIntent {
			owner, err := p.Get(ctx, r.Run)
			if err == nil && owner.Holder() != r.Attempt {
				r.State = run.ReceiptUnknown
			}
		}
		out = append(out, *r)
	}
	return out, nil
}

// Receipt returns one receipt.
func (p *Plane) Receipt(ctx context.Context, id string) (run.Receipt, error) {
	doc, err := p.store.Get(ctx, store.KindReceipt, id)
	if errors.Is(err, store.ErrNotFound) {
		return run.Receipt{}, refuse(CodeNotFound, "there is no receipt %.60q", id)
	}
	if err != nil {
		return run.Receipt{}, fmt.Errorf("read receipt %s: %w", id, err)
	}
	all, err := p.asTheyAre(ctx, []store.Doc{doc})
	if err != nil {
		return run.Receipt{}, err
	}
	return all[0], nil
}

// Resolve settles an unknown effect by a person's word.
func (p *Plane) Resolve(ctx context.Context, id string, happened bool, result json.RawMessage, by string) (run.Receipt, error) {
	for range conflictTries {
		existing, err := p.receipt(ctx, id)
		if err != nil {
			return run.Receipt{}, err
		}
		if existing == nil {
			return run.Receipt{}, refuse(CodeNotFound, "there is no receipt %.60q", id)
		}
		now := p.now()
		if existing.State == run.ReceiptIntent {
			owner, err := p.Get(ctx, existing.Run)
			if err != nil {
				return run.Receipt{}, err
			}
			if owner.Holder() == existing.Attempt {
				return run.Receipt{}, refuse(CodeState, "attempt %s may still be performing effect %s", runtime.AttemptID(existing.Run, existing.Attempt), existing.Effect)
			}
			var ended run.Instant
			if ended, err = p.ownerEnded(ctx, existing, &run.Record{}); err != nil {
				return run.Receipt{}, err
			}
			marked := run.MarkUnknown(existing, ended, now)
			if marked == nil {
				return run.Receipt{}, refuse(CodeState, "effect %s may still take effect until %s", existing.Effect, existing.Until.Time().Format(time.RFC3339))
			}
			if err := p.putReceipt(ctx, existing, marked, nil, "", 0); errors.Is(err, store.ErrConflict) {
				continue
			} else if err != nil {
				return run.Receipt{}, err
			}
			existing = marked
		}
		value, writes := stash(existing.Run, "effect/"+id, result, run.MaxInline)
		next, err := run.ResolveReceipt(existing, happened, value, by, now)
		if err != nil {
			return run.Receipt{}, refuse(CodeState, "%v", err)
		}
		if next == nil {
			return *existing, nil
		}
		err = p.putReceipt(ctx, existing, next, writes, "", 0)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		return *next, err
	}
	return run.Receipt{}, refuse(CodeConflict, "receipt %s is contended; try again", id)
}
