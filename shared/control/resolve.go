package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Effects of which nobody knows whether they happened: a person, or a hook of the agent, finds out and says so. A run
// may be parked until then.

// receiptSignal begins the name of the signal that a run waits for while it asks a person about a receipt.
const receiptSignal = "receipt:"

// askedReceipt is the receipt that a run asks a person about; "" for none.
func askedReceipt(park *run.Park) string {
	if park == nil || park.On != run.OnInput {
		return ""
	}
	id, _ := strings.CutPrefix(park.Name, receiptSignal)
	if id == park.Name {
		return ""
	}
	return id
}

// Resolve settles an unknown effect by a person's word. A run that waits for it goes on, by the same write.
func (p *Plane) Resolve(ctx context.Context, id string, happened bool, result json.RawMessage, by string) (run.Receipt, error) {
	for range conflictTries {
		existing, err := p.receipt(ctx, id)
		if err != nil {
			return run.Receipt{}, err
		}
		if existing == nil {
			return run.Receipt{}, refuse(CodeNotFound, "there is no receipt %.60q", id)
		}
		value, payload := stash(existing.Run, "effect/"+id, result, run.MaxInline)
		writes, err := p.settled(ctx, existing, happened, value, payload, by)
		if err != nil {
			return run.Receipt{}, err
		}
		if len(writes) > 0 {
			err = p.tellWaiter(ctx, existing, happened, by, writes)
			if overtaken(err) {
				continue
			}
			if err != nil {
				return run.Receipt{}, err
			}
			p.planAnew(ctx, existing.Run)
		}
		return p.Receipt(ctx, id)
	}
	return run.Receipt{}, refuse(CodeConflict, "receipt %s is contended; try again", id)
}

// settled is what the word on an unknown effect writes; nothing where it was said before. Refusals say why it cannot be
// taken.
func (p *Plane) settled(ctx context.Context, existing *run.Receipt, happened bool, value run.Payload, payload []store.Write, by string) ([]store.Write, error) {
	now := p.now()
	seen := existing
	// 1. What a dead attempt was about is unknown, whether or not somebody has noted that.
	if existing != nil && existing.State == run.ReceiptIntent {
		owner, err := p.Get(ctx, existing.Run)
		var refusal *Refusal
		if err != nil && !errors.As(err, &refusal) {
			return nil, err
		}
		if err == nil && owner.Holder() == existing.Attempt {
			return nil, refuse(CodeState, "attempt %s may still be performing effect %s", runtime.AttemptID(existing.Run, existing.Attempt), existing.Effect)
		}
		ended, err := p.ownerEnded(ctx, existing, &run.Record{})
		if err != nil {
			return nil, err
		}
		if seen = run.MarkUnknown(existing, ended, now); seen == nil {
			return nil, refuse(CodeState, "effect %s may still take effect until %s", existing.Effect, existing.SettledAt(ended).Time().Format(time.RFC3339))
		}
	}
	// 2. The word.
	next, err := run.ResolveReceipt(seen, happened, value, by, now)
	if err != nil {
		return nil, refuse(CodeState, "%v", err)
	}
	if next == nil {
		return nil, nil
	}
	w, err := receiptWrite(existing, next)
	if err != nil {
		return nil, err
	}
	if !happened {
		return []store.Write{w}, nil
	}
	return p.withUndone(ctx, next, append(payload, w))
}

// awaitWord reports whether nobody has said yet what became of the receipt's effect. The run that parks is then the one
// that is told, by the same write: who undoes a run waits for receipts of which another run was told that they are unknown.
func (p *Plane) awaitWord(ctx context.Context, d *draft, rec *run.Record, id string) (bool, error) {
	r, err := p.receipt(ctx, id)
	if err != nil || r == nil || r.State != run.ReceiptUnknown && r.State != run.ReceiptIntent {
		return false, err
	}
	next := r.Awaited(rec)
	if next == nil {
		return true, nil
	}
	w, err := receiptWrite(r, next)
	if err != nil {
		return false, err
	}
	d.writes = append(d.writes, w)
	return true, nil
}

// errNobody: no run waits, or will, for the word on a receipt.
var errNobody = errors.New("no run waits for it")

// tellWaiter writes the word on a receipt. The run that was told that it is unknown is woken by the same write, or keeps
// the word until it parks to wait for it.
func (p *Plane) tellWaiter(ctx context.Context, r *run.Receipt, happened bool, by string, writes []store.Write) error {
	if r.Waiter == "" {
		return p.putReceipts(ctx, "", 0, writes...)
	}
	name, tries := receiptSignal+r.ID, 0
	payload, err := json.Marshal(map[string]any{"receipt": r.ID, "happened": happened})
	if err != nil {
		return fmt.Errorf("word on receipt %s: %w", r.ID, err)
	}
	err = p.change(ctx, edit{id: r.Waiter, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		d := draft{writes: slices.Clone(writes)}
		if tries++; tries > 1 {
			return d, store.ErrConflict // the receipt may be another, too
		}
		s := run.Signal{Name: name, Payload: run.Payload{Inline: payload, Size: len(payload)}}
		e := run.Event{Type: run.EvSignaled, At: now, Actor: by, Signal: &s}
		if err := run.Decide(rec, &e); err != nil {
			return d, errNobody // it is over, or has no room
		}
		d.events = append(d.events, e)
		if rec.State == run.Waiting && rec.Park.On == run.OnInput && rec.Park.Name == name {
			return d, p.woken(ctx, &d, rec, rec.Park, &s, now)
		}
		return d, nil
	}}).err
	var refusal *Refusal
	if errors.Is(err, errNobody) || errors.As(err, &refusal) && refusal.Code == CodeNotFound {
		return p.putReceipts(ctx, "", 0, writes...)
	}
	return err
}
