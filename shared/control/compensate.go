package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Receipts as whoever undoes them sees them: what a run of mode compensate is handed, and what is left of the effects of
// a run that ended without success.

const (
	maxUndone = 10_000  // effects of one run that are undone
	maxHanded = 4 << 20 // bytes of the results that are handed over with them
)

// modeOf is the mode of a run's attempts.
func modeOf(r *run.Record) string {
	if r.Mode == "" {
		return runtime.ModeRun
	}
	return r.Mode
}

// handReceipts gives an attempt of mode compensate what it undoes: the input, steps and effects of the run that it is
// about, and the steps of its own run, in which it may have asked a person.
func (p *Plane) handReceipts(ctx context.Context, r *run.Record, a *runtime.Assignment) error {
	of, err := p.Get(ctx, r.Of)
	if err != nil {
		return fmt.Errorf("undo run %s: %w", r.Of, err)
	}
	if a.Input, err = p.Value(ctx, of.Input); err != nil {
		return err
	}
	for _, id := range []string{of.ID, r.ID} {
		steps, err := p.stepsOf(ctx, id)
		if err != nil {
			return err
		}
		a.Steps = append(a.Steps, steps...)
	}
	receipts, err := p.effectsOf(ctx, of.ID)
	if err != nil {
		return err
	}
	left := maxHanded
	for i := range receipts {
		x := &receipts[i]
		if x.State != run.ReceiptDone && x.State != run.ReceiptUnknown && x.State != run.ReceiptCompensated {
			continue
		}
		item := runtime.Receipt{ID: x.ID, Step: x.Step, Effect: x.Effect, Key: x.Key(), State: string(x.State), Compensable: x.Compensable}
		if x.Compensable && x.State != run.ReceiptCompensated {
			item.Undo = x.UndoEffect()
		}
		if left -= x.Result.Size; left < 0 {
			item.Omitted = true
		} else if item.Result, err = p.Value(ctx, x.Result); err != nil {
			return err
		}
		a.Receipts = append(a.Receipts, item)
	}
	return nil
}

// effectsOf lists the effects that a run performed itself, newest first, without those that undid others.
func (p *Plane) effectsOf(ctx context.Context, id string) ([]run.Receipt, error) {
	var all []run.Receipt
	after := ""
	for {
		docs, err := p.store.Owned(ctx, store.KindReceipt, id, after, store.MaxPage)
		if err != nil {
			return nil, fmt.Errorf("read the receipts of run %s: %w", id, err)
		}
		for _, doc := range docs {
			after = doc.ID
			r, err := run.DecodeReceipt(doc.Body)
			if err != nil {
				return nil, err
			}
			if r.Undoes == "" {
				all = append(all, *r)
			}
		}
		if len(all) > maxUndone {
			return nil, refuse(CodeTooLarge, "run %s has performed more than %d effects: they cannot be undone together", id, maxUndone)
		}
		if len(docs) < store.MaxPage {
			slices.SortFunc(all, newestFirst)
			return all, nil
		}
	}
}

// newestFirst orders effects by when they happened; one of which that is unknown, by when it was begun.
func newestFirst(a, b run.Receipt) int {
	return cmp.Or(cmp.Compare(happenedAt(&b), happenedAt(&a)), cmp.Compare(b.BegunAt, a.BegunAt), cmp.Compare(a.ID, b.ID))
}

func happenedAt(r *run.Receipt) run.Instant {
	if r.DoneAt != 0 && r.DoneAt >= r.BegunAt {
		return r.DoneAt
	}
	return r.BegunAt
}

// undoable reports whether there is something of an effect that an end without success undoes.
func undoable(r *run.Receipt) bool {
	return r.Compensable && (r.State == run.ReceiptDone || r.State == run.ReceiptUnknown || r.State == run.ReceiptIntent)
}

// settleIntents notes of the effects of a run, none of whose attempts is alive, that they are unknown where they may have
// happened. It returns them as they are then, and from when on the last of them can take effect no more: 0 if that is now.
func (p *Plane) settleIntents(ctx context.Context, rec *run.Record) (effects []run.Receipt, until run.Instant, err error) {
	effects, err = p.effectsOf(ctx, rec.ID)
	if err != nil {
		return nil, 0, err
	}
	now := p.now()
	for i := range effects {
		x := &effects[i]
		if x.State != run.ReceiptIntent {
			continue
		}
		ended, err := p.ownerEnded(ctx, x, &run.Record{})
		if err != nil {
			return nil, 0, err
		}
		next := run.MarkUnknown(x, ended, now)
		if next == nil {
			until = max(until, x.SettledAt(ended))
			continue
		}
		w, err := receiptWrite(x, next)
		if err != nil {
			return nil, 0, err
		}
		if err = p.putReceipts(ctx, "", 0, w); err != nil {
			return nil, 0, err // also where somebody was faster: the next look sees what is there
		}
		*x = *next
	}
	return effects, until, nil
}

// allUndone notes that everything of a run that could be undone is: its agent said so by its success.
func (p *Plane) allUndone(ctx context.Context, id string) error {
	return p.noteUndoing(ctx, id, run.CompensateReceipt)
}

// noteUndoFailed notes of what is left of a run's effects that undoing them has failed.
func (p *Plane) noteUndoFailed(ctx context.Context, id string) error {
	return p.noteUndoing(ctx, id, func(r *run.Receipt) (*run.Receipt, error) { return run.FailUndo(r), nil })
}

// noteUndoing changes what is left to undo of a run's effects, in parts: a part that is written before the others stands.
func (p *Plane) noteUndoing(ctx context.Context, id string, change func(*run.Receipt) (*run.Receipt, error)) error {
	effects, err := p.effectsOf(ctx, id)
	if err != nil {
		return err
	}
	var writes []store.Write
	for i := range effects {
		if !undoable(&effects[i]) {
			continue
		}
		next, err := change(&effects[i])
		if err != nil {
			return err
		}
		if next == nil {
			continue
		}
		w, err := receiptWrite(&effects[i], next)
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	for part := range slices.Chunk(writes, store.MaxWrites) {
		if err := p.putReceipts(ctx, "", 0, part...); err != nil {
			return err
		}
	}
	return nil
}
