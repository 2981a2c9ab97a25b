package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// External effects: intent before the action, receipt after it. The rules are run.BeginReceipt and its kin; here they
// meet the store. A receipt's own document is the fence, and each write also requires that the attempt still holds its
// run.

const (
	effectTimeout = time.Minute  // how long an action may take that names no time
	tagUnknown    = "unknown"    // receipts that a person may have to resolve
	tagUndoFailed = "undofailed" // receipts of effects that could not be undone
)

// BeginEffect asks to perform an effect. The error is of the attempt (run.ErrFenced), of the request (*Refusal), or an
// outage; every other "no" is in the answer.
func (p *Plane) BeginEffect(ctx context.Context, b EffectBegin) (EffectAnswer, error) {
	var answer EffectAnswer
	for range conflictTries {
		rec, live, err := p.holder(ctx, b.Run, b.N)
		if err != nil {
			return answer, err
		}
		again, err := p.beginOnce(ctx, rec, live, b, &answer)
		if again {
			continue // another call about the same effect was faster
		}
		if err != nil {
			return answer, err
		}
		// What the attempt must know.
		p.know(ctx, []runtime.Report{{Type: runtime.Beat, Run: b.Run, N: b.N}}, []*runtime.Result{&answer.Result}, map[int]*run.Record{0: rec})
		return answer, answer.Err
	}
	return answer, &Refusal{Code: CodeUnavailable, Detail: fmt.Sprintf("effect %s is contended", b.Effect), RetryAfter: time.Second}
}

// beginOnce tries it once; again says that it has to be looked at anew.
func (p *Plane) beginOnce(ctx context.Context, rec *run.Record, live live, b EffectBegin, answer *EffectAnswer) (again bool, err error) {
	agent := p.agentOf(ctx, rec)
	if agent == nil {
		return false, refuse(CodeNotFound, "agent %s is not declared any more", rec.Agent)
	}
	if b.OnUnknown == "" {
		b.OnUnknown = string(agent.Effects.OnUnknown)
	}
	if b.Timeout <= 0 {
		b.Timeout = effectTimeout
	}
	// 1. What is known of the effect.
	now := p.now()
	id := run.ReceiptID(rec.Tenant, rec.WorkUnit(), b.Step, b.Effect)
	existing, err := p.receipt(ctx, id)
	if err != nil {
		return false, err
	}
	ownerEnded, err := p.ownerEnded(ctx, existing, rec)
	if err != nil {
		return false, err
	}
	req := run.BeginRequest{
		Tenant: rec.Tenant, Unit: rec.WorkUnit(), Step: b.Step, Effect: b.Effect, Run: rec.ID, Attempt: b.N,
		Nonce: b.Nonce, Hash: b.RequestHash, Policy: run.UnknownPolicy(b.OnUnknown), Now: now,
		Until: run.Earliest(live.deadline, now.Add(b.Timeout)), Settle: agent.Effects.Settle.Std(),
		OwnerEnded: ownerEnded, DidNotHappen: b.Reconciled == "didNotHappen", Compensable: b.Compensable,
	}
	*answer = EffectAnswer{ID: id, Key: id, OnUnknown: b.OnUnknown}
	// 2. Whoever undoes a run performs nothing but what undoes it.
	undone, undoes := run.Undone(b.Effect)
	switch {
	case rec.Mode != run.ModeCompensate && undoes:
		return false, refuse(CodeInvalid, "effect %.80q: names that begin with undo: are of effects that undo others, in runs of mode compensate", b.Effect)
	case rec.Mode == run.ModeCompensate && !undoes:
		return false, p.tellEffect(ctx, existing, ownerEnded, answer)
	case undoes:
		of, done, err := p.undoneBy(ctx, rec, b.Step, undone, b.Effect)
		if err != nil {
			return false, err
		}
		if done {
			answer.Answer = string(run.BeginDone)
			return false, nil
		}
		req.Undoes = of.ID
	}
	if err := req.Validate(); err != nil {
		return false, refuse(CodeInvalid, "%v", err)
	}
	// 3. What follows, and its write.
	next, said := run.BeginReceipt(existing, req)
	answer.Answer, answer.Until = string(said.Begin), said.Until
	if next != nil {
		answer.Key = next.Key()
	} else if existing != nil {
		answer.Key = existing.Key()
	}
	switch {
	case said.Begin == run.BeginDone:
		if answer.Value, err = p.Value(ctx, existing.Result); err != nil {
			return false, err
		}
	case said.Begin == run.BeginProceed && rec.State == run.Canceling:
		return false, refuse(CodeState, "effect %.80q: run %s is being canceled, and begins nothing new", b.Effect, rec.ID)
	case said.Begin == run.BeginFenced:
		return false, fmt.Errorf("effect %s of attempt %s: %w", b.Effect, runtime.AttemptID(b.Run, b.N), run.ErrFenced)
	}
	if next == nil {
		return false, nil
	}
	w, err := receiptWrite(existing, next)
	if err != nil {
		return false, err
	}
	err = p.putEffect(ctx, rec, b.N, next, w)
	return overtaken(err), err
}

// putEffect writes the receipt that an attempt of the run has begun or ended, and what belongs to it.
func (p *Plane) putEffect(ctx context.Context, rec *run.Record, n int, next *run.Receipt, writes ...store.Write) error {
	if rec.Mode == "" && !rec.Undoable && next.Compensable && next.Run == rec.ID && next.State != run.ReceiptAbandoned && next.State != run.ReceiptUnknown {
		return p.act(ctx, rec.ID, n, writes)
	}
	return p.putReceipts(ctx, rec.ID, n, writes...)
}

// overtaken reports whether another writer was faster.
func overtaken(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists)
}

// act writes the first receipt of a run for what can be undone: an intent, or what an earlier run has begun and the hook of
// this one found to have happened. With it, the record says that there may be something to undo.
func (p *Plane) act(ctx context.Context, id string, n int, writes []store.Write) error {
	tries := 0
	return p.change(ctx, edit{id: id, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		var d draft
		if rec.Holder() != n {
			return d, fmt.Errorf("attempt %s: %w", runtime.AttemptID(id, n), run.ErrFenced)
		}
		// It is tried again where the record, or the receipt, is not what it was.
		if tries++; rec.Undoable || tries > 1 {
			return d, store.ErrConflict
		}
		if rec.State == run.Assigned {
			d.events = append(d.events, p.startEvent(ctx, rec, "", now))
		}
		d.events = append(d.events, run.Event{Type: run.EvActed, At: now, Attempt: n})
		d.writes = append(d.writes, writes...)
		return d, nil
	}}).err
}

// tellEffect answers whoever undoes a run what is known of one of its effects, and changes nothing.
func (p *Plane) tellEffect(ctx context.Context, r *run.Receipt, ownerEnded run.Instant, answer *EffectAnswer) (err error) {
	answer.Answer = EffectNone
	if r == nil {
		return nil
	}
	answer.Key = r.Key()
	switch r.State {
	case run.ReceiptDone, run.ReceiptCompensated:
		answer.Answer = string(run.BeginDone)
		answer.Value, err = p.Value(ctx, r.Result)
	case run.ReceiptUnknown:
		answer.Answer = string(run.BeginUnknown)
	case run.ReceiptIntent:
		if answer.Until = r.SettledAt(ownerEnded); answer.Until <= p.now() {
			answer.Answer = string(run.BeginUnknown)
		} else {
			answer.Answer = string(run.BeginWait)
		}
	}
	return err
}

// EffectNone is the answer to whoever undoes a run, about an effect that did not happen.
const EffectNone = "none"

// undoneBy is the receipt that an effect of a run of mode compensate undoes; done says that it is undone already.
func (p *Plane) undoneBy(ctx context.Context, rec *run.Record, step, name, by string) (of *run.Receipt, done bool, err error) {
	of, err = p.receipt(ctx, run.ReceiptID(rec.Tenant, rec.WorkUnit(), step, name))
	switch {
	case err != nil:
		return nil, false, err
	case of == nil:
		return nil, false, refuse(CodeState, "effect %.80q undoes effect %.80q of step %.80q, which was never begun", by, name, step)
	case of.State == run.ReceiptCompensated:
		return of, true, nil
	case of.UndoEffect() != by:
		return nil, false, refuse(CodeState, "effect %.80q of step %.80q has been performed anew since it was undone: it is undone by %.80q now", name, step, of.UndoEffect())
	case of.State != run.ReceiptDone && of.State != run.ReceiptUnknown:
		return nil, false, refuse(CodeState, "effect %.80q of step %.80q is %s: there is nothing to undo", name, step, of.State)
	}
	return of, false, nil
}

// EndEffect commits an effect that happened, or abandons one that certainly did not. What undoes another effect is
// committed together with the word that the other is undone. A run of mode compensate tells of an unknown effect of the
// run that it undoes what its hook found.
func (p *Plane) EndEffect(ctx context.Context, e EffectEnd) (runtime.Result, error) {
	var result runtime.Result
	if len(e.Value) > run.MaxPayload {
		return result, refuse(CodeTooLarge, "the result of effect %s has %d bytes, %d at most", e.Effect, len(e.Value), run.MaxPayload)
	}
	for range conflictTries {
		rec, _, err := p.holder(ctx, e.Run, e.N)
		if err != nil {
			return result, err
		}
		existing, err := p.receipt(ctx, run.ReceiptID(rec.Tenant, rec.WorkUnit(), e.Step, e.Effect))
		if err != nil {
			return result, err
		}
		next, writes, err := p.endOf(ctx, rec, existing, &e)
		if errors.Is(err, run.ErrNoReceipt) {
			return result, refuse(CodeState, "%v", err)
		}
		if err != nil {
			return result, err
		}
		if len(writes) > 0 {
			err = p.putEffect(ctx, rec, e.N, next, writes...)
			if overtaken(err) {
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

// endOf is the receipt that the end of an effect leaves, and all that it writes; nothing where it changes nothing.
func (p *Plane) endOf(ctx context.Context, rec *run.Record, existing *run.Receipt, e *EffectEnd) (next *run.Receipt, writes []store.Write, err error) {
	_, undoes := run.Undone(e.Effect)
	value, payload := stash(e.Run, "effect/"+run.ReceiptID(rec.Tenant, rec.WorkUnit(), e.Step, e.Effect), e.Value, run.MaxInline)
	switch {
	case rec.Mode == run.ModeCompensate && !undoes:
		if !e.Abandon && !e.Reconciled {
			return nil, nil, refuse(CodeState, "effect %.80q: a run of mode compensate performs none; it tells what its hook found of an unknown one", e.Effect)
		}
		writes, err = p.settled(ctx, existing, !e.Abandon, value, payload, run.ByReconcile)
		return existing, writes, err
	case e.Abandon:
		next, err = run.AbandonReceipt(existing, run.AbandonRequest{Run: e.Run, Attempt: e.N, Nonce: e.Nonce})
	default:
		next, err = run.CommitReceipt(existing, run.CommitRequest{Run: e.Run, Attempt: e.N, Result: value, Now: p.now(), Reconciled: e.Reconciled})
		writes = payload
	}
	if err != nil || next == nil {
		return nil, nil, err
	}
	w, err := receiptWrite(existing, next)
	if err != nil {
		return nil, nil, err
	}
	writes, err = p.withUndone(ctx, next, append(writes, w))
	return next, writes, err
}

// withUndone adds to the writes of a receipt that became done the word that what it undoes is undone.
func (p *Plane) withUndone(ctx context.Context, r *run.Receipt, writes []store.Write) ([]store.Write, error) {
	if r.Undoes == "" || r.State != run.ReceiptDone {
		return writes, nil
	}
	of, err := p.receipt(ctx, r.Undoes)
	if err != nil {
		return nil, err
	}
	if of == nil || of.UndoEffect() != r.Effect {
		return writes, nil // removed with its run, or performed anew since
	}
	next, err := run.CompensateReceipt(of)
	if err != nil || next == nil {
		return writes, err
	}
	w, err := receiptWrite(of, next)
	return append(writes, w), err
}

// holder returns the run that an attempt holds, and a copy of the attempt as the index knows it.
func (p *Plane) holder(ctx context.Context, id string, n int) (*run.Record, live, error) {
	rec, err := p.heldRun(ctx, id, n)
	if err != nil {
		return nil, live{}, err
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

// receiptWrite is the write of a receipt over what is there.
func receiptWrite(existing, next *run.Receipt) (store.Write, error) {
	body, err := run.EncodeReceipt(next)
	if err != nil {
		return store.Write{}, err
	}
	var expect int64
	if existing != nil {
		expect = existing.Version
	}
	return store.Write{Expect: expect, Doc: store.Doc{
		Kind: store.KindReceipt, ID: next.ID, Version: next.Version, Owner: next.Run, Tag: receiptTag(next), Body: body,
	}}, nil
}

// putReceipts writes receipts and what goes with them; n > 0 requires that attempt to hold the run still.
func (p *Plane) putReceipts(ctx context.Context, id string, n int, writes ...store.Write) error {
	unit := store.Unit{Token: p.newID(), Writes: writes}
	if n > 0 {
		unit.Fences = []store.Fence{{Run: id, Attempt: int64(n)}}
	}
	err := p.store.Commit(ctx, []store.Unit{unit})[0]
	switch {
	case errors.Is(err, store.ErrFenced):
		return fmt.Errorf("attempt %s: %w", runtime.AttemptID(id, n), run.ErrFenced)
	case err != nil && !overtaken(err):
		return fmt.Errorf("write receipt %s: %w", writes[len(writes)-1].ID, err)
	}
	return err
}

// receiptTag lists open receipts: what is unknown, and intents, which become unknown when their attempt dies.
func receiptTag(r *run.Receipt) string {
	if r.State == run.ReceiptUnknown || r.State == run.ReceiptIntent {
		return tagUnknown
	}
	if r.UndoFailed {
		return tagUndoFailed
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

// UnknownReceipts lists effects of which nobody knows whether they happened. A page may be short.
func (p *Plane) UnknownReceipts(ctx context.Context, limit int, pageToken string) ([]run.Receipt, string, error) {
	return p.receiptsTagged(ctx, tagUnknown, limit, pageToken, func(r *run.Receipt) bool { return r.State == run.ReceiptUnknown })
}

// UndoFailedReceipts lists effects that happened and whose undoing has failed: people are asked whether to try it again, or
// have given it up. One of which it is unknown whether it happened is among the unknown ones.
func (p *Plane) UndoFailedReceipts(ctx context.Context, limit int, pageToken string) ([]run.Receipt, string, error) {
	return p.receiptsTagged(ctx, tagUndoFailed, limit, pageToken, func(r *run.Receipt) bool { return r.UndoFailed })
}

func (p *Plane) receiptsTagged(ctx context.Context, tag string, limit int, pageToken string, keep func(*run.Receipt) bool) ([]run.Receipt, string, error) {
	docs, err := p.store.Tagged(ctx, store.KindReceipt, tag, pageToken, limit)
	if err != nil {
		return nil, "", fmt.Errorf("read %s receipts: %w", tag, err)
	}
	next := ""
	if len(docs) == limit {
		next = docs[len(docs)-1].ID
	}
	all, err := p.asTheyAre(ctx, docs)
	return slices.DeleteFunc(all, func(r run.Receipt) bool { return !keep(&r) }), next, err
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
