package sim

import (
	"fmt"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Undoing: what a run did that ends without success is undone, what was done last first, each once.

func (a *attempt) isUndoing() bool { return a.Mode == run.ModeCompensate }

// nextEffect names the effect that the attempt is about next; "" for none.
func (a *attempt) nextEffect() string {
	if !a.isUndoing() {
		return fmt.Sprint("mail", a.calls%2)
	}
	n := 0
	for i := range a.Receipts {
		if a.Receipts[i].Undo == "" {
			continue
		}
		if n++; n > a.calls {
			return a.Receipts[i].Undo
		}
	}
	return ""
}

// undoesMore reports whether the attempt is to undo something, and has not yet.
func (a *attempt) undoesMore() bool { return a.isUndoing() && a.nextEffect() != "" }

// compensated: a receipt is said to be undone. r is as it was before.
func (l *ledger) compensated(r *run.Receipt) {
	l.w.saw("effect undone")
	id := run.ReceiptID(r.Tenant, r.Unit, r.Step, r.UndoEffect())
	if happened, _ := l.w.outside.happened(id); !happened {
		l.w.fail("what is said to be undone was undone", "receipt %s of run %s, by %s", r.ID, r.Run, r.UndoEffect())
	}
}

// mayNeedUndo reports whether an effect can be undone and is not.
func mayNeedUndo(r *run.Receipt) bool {
	return r.Compensable && r.Undoes == "" && (r.State == run.ReceiptDone || r.State == run.ReceiptUnknown || r.State == run.ReceiptIntent)
}

// endedUndone: a run that ends without success has undone what it did; one that ends with its parent may be undone by
// that one.
func (l *ledger) endedUndone(r *run.Record) {
	if r.Mode != "" || r.Reason == run.CompensationFailed || r.Reason == run.ParentEnded {
		return
	}
	for _, x := range l.receipts {
		if x.Run == r.ID && mayNeedUndo(x) {
			l.w.fail("what a run did that ends without success is undone", "run %s is %s (%s), receipt %s is %s", r.ID, r.State, r.Reason, x.ID, x.State)
		}
	}
}

// undone checks at the end what runs did that ended without success, or that was called by such a run.
func (l *ledger) undone() {
	for _, x := range l.receipts {
		if !mayNeedUndo(x) {
			continue
		}
		why, given := "", false
		for k := l.runs[x.Run]; k != nil; k = l.runs[k.rec.Parent] {
			r := k.rec
			given = given || r.Reason == run.CompensationFailed
			if r.State != run.Succeeded {
				why = fmt.Sprintf("run %s is %s (%s)", r.ID, r.State, r.Reason)
			}
		}
		if why != "" && !given {
			l.w.fail("what a run did that ends without success is undone", "%s, receipt %s of run %s is %s", why, x.ID, x.Run, x.State)
		}
	}
}

// calledToUndo: what is undone is undone one after another.
func (l *ledger) calledToUndo(c *run.Record) {
	if c.Mode != run.ModeCompensate {
		return
	}
	l.w.saw("run called to undo another")
	for _, id := range l.family.of[c.Parent] {
		if other := l.runs[id]; other != nil && id != c.ID && other.rec.Mode == run.ModeCompensate && !other.rec.State.Terminal() {
			l.w.fail("what is undone is undone one after another", "run %s, while %s is %s", c.ID, id, other.rec.State)
		}
	}
}

// handedToUndo: whoever undoes a run gets its effects, newest first.
func (l *ledger) handedToUndo(a *runtime.Assignment) {
	if a.Mode != run.ModeCompensate {
		return
	}
	var last run.Instant
	for i, x := range a.Receipts {
		r := l.receipts[x.ID]
		if r == nil {
			continue
		}
		at := r.DoneAt
		if at < r.BegunAt {
			at = r.BegunAt
		}
		if i > 0 && at > last {
			l.w.fail("what was done last is undone first", "attempt %s gets %s after what was done later", a.ID(), x.ID)
		}
		last = at
	}
}
