package run

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ReceiptState is what is known of an external effect.
type ReceiptState string

const (
	ReceiptIntent    ReceiptState = "intent"    // an attempt may be performing it
	ReceiptDone      ReceiptState = "done"      // it happened; final
	ReceiptUnknown   ReceiptState = "unknown"   // whoever performed it is gone, and nobody knows whether it happened
	ReceiptAbandoned ReceiptState = "abandoned" // it certainly did not happen
	// ReceiptCompensated: it happened and was undone. A later attempt may perform it anew.
	ReceiptCompensated ReceiptState = "compensated"
)

// UnknownPolicy is what follows when nobody knows whether an effect happened.
type UnknownPolicy string

const (
	UnknownAsk       UnknownPolicy = "ask"       // a person resolves it
	UnknownReconcile UnknownPolicy = "reconcile" // a hook of the agent finds out
	UnknownRepeat    UnknownPolicy = "repeat"    // declared idempotent: perform it again
	UnknownFail      UnknownPolicy = "fail"      // the run fails with OutcomeUnknown
)

// Limits of a receipt.
const (
	MaxReceiptName = 512 // bytes of a tenant, unit, step or effect
	MaxReceiptMark = 128 // bytes of a request hash, nonce, or the name of who resolved it
	MaxAskers      = 16  // calls that may be finding out about one unknown effect at a time
	MaxSettle      = 24 * time.Hour
)

// Receipt is the durable word on one external effect of one unit of work. Its document is the fence: it is written
// before the effect is performed, and whoever finds it asks it first.
type Receipt struct {
	ID     string `json:"id"` // see ReceiptID
	Tenant string `json:"t"`
	Unit   string `json:"u"`
	Step   string `json:"st,omitempty"`
	Effect string `json:"ef"`

	Version int64        `json:"v"` // rises by one with every change
	State   ReceiptState `json:"s"`
	// Run, Attempt and Nonce are the call that wrote the newest intent; Nonce is random per call.
	Run     string        `json:"r"`
	Attempt int           `json:"a"`
	Nonce   string        `json:"n"`
	Hash    string        `json:"h"` // of the request
	Policy  UnknownPolicy `json:"p"` // as of the newest intent
	BegunAt Instant       `json:"b"`
	Until   Instant       `json:"un"`           // the call performs nothing after this
	Settle  int64         `json:"se,omitempty"` // milliseconds that what it sent may still take effect
	// Askers are the nonces of the calls that were told "unknown" since the newest intent. Only they can know whether
	// that intent's effect happened: what a hook found before it is out of date.
	Askers []string `json:"as,omitempty"`

	DoneAt     Instant `json:"d,omitempty"`
	Result     Payload `json:"res"`
	ResolvedBy string  `json:"by,omitempty"` // who settled an unknown outcome: a person's name, or ByReconcile
	// Waiter is the run that was told "unknown" last, or parked last to wait for a person's word.
	Waiter string `json:"w,omitempty"`

	// Compensable: whoever performs it knows how to undo it.
	Compensable bool `json:"co,omitempty"`
	// Round is how often it was undone: what is performed after that is another effect to the outside.
	Round int `json:"ro,omitempty"`
	// Undoes is the receipt that this effect undoes; "" for an effect of its own.
	Undoes string `json:"und,omitempty"`
	// UndoFailed: it was to be undone, and that failed; people were asked. It is so until it is undone, or known not to
	// have happened.
	UndoFailed bool `json:"uf,omitempty"`
}

// Key is what the outside system is given as its idempotency key: the id, until the effect was undone.
func (r *Receipt) Key() string {
	if r.Round == 0 {
		return r.ID
	}
	return ReceiptID(r.Tenant, r.Unit, r.Step, fmt.Sprintf("%s\n%d", r.Effect, r.Round))
}

// UndoEffect names the effect that undoes this one, in the same step. It is another one after each time that it was
// undone: undo:NAME, undo2:NAME and so on.
func (r *Receipt) UndoEffect() string {
	if r.Round == 0 {
		return undoWord + ":" + r.Effect
	}
	return fmt.Sprintf("%s%d:%s", undoWord, r.Round+1, r.Effect)
}

const (
	undoWord = "undo"
	maxUndo  = 24 // bytes that it makes a name longer
)

// Undone is the name of the effect that an effect of this name undoes; ok is false for an effect of its own. An agent's
// own effects have no such names.
func Undone(effect string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(effect, undoWord)
	if !ok {
		return "", false
	}
	if name, ok = strings.CutPrefix(strings.TrimLeft(rest, "0123456789"), ":"); !ok {
		return "", false
	}
	return name, true
}

// ByReconcile is Receipt.ResolvedBy when the agent's own hook settled the outcome.
const ByReconcile = "reconcile"

// ReceiptID is the id of an effect's receipt, 26 letters and digits: the same for every attempt and retry of a unit of
// work, and different as soon as one of the four names is. The action passes it on as the outside system's own
// idempotency key.
func ReceiptID(tenant, unit, step, effect string) string { return hashedID(tenant, unit, step, effect) }

// hashedID is made of names, 26 letters and digits: different as soon as one of them is.
func hashedID(names ...string) string {
	h := sha256.New()
	for _, name := range names {
		var size [8]byte // keeps ("ab","c") apart from ("a","bc")
		binary.BigEndian.PutUint64(size[:], uint64(len(name)))
		h.Write(size[:])
		h.Write([]byte(name))
	}
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)[:16]))
}

// BeginRequest is the wish of a call to perform an effect.
type BeginRequest struct {
	Tenant, Unit, Step, Effect string
	Run                        string
	Attempt                    int
	// Nonce is random per call, and the same when that call asks again. A call that was told to proceed and has begun
	// to act never asks again.
	Nonce  string
	Hash   string // of the request
	Policy UnknownPolicy
	Now    Instant
	Until  Instant // the call will perform nothing after this
	Settle time.Duration
	// OwnerEnded is since when the attempt that holds the receipt is known to be dead; 0 if it is not. It matters when
	// that is another attempt than this one.
	OwnerEnded Instant
	// DidNotHappen: this call was told "unknown", and its hook found that the effect did not happen.
	DidNotHappen bool
	Compensable  bool   // the caller knows how to undo it
	Undoes       string // see Receipt.Undoes
}

// Validate says what is wrong with a request, or nil.
func (q *BeginRequest) Validate() error {
	for _, f := range []struct {
		name, value string
		most        int
		empty       bool
	}{
		{"tenant", q.Tenant, MaxReceiptName, false}, {"unit", q.Unit, MaxReceiptName, false},
		{"step", q.Step, MaxReceiptName, true}, {"effect", q.Effect, MaxReceiptName, false},
		{"run", q.Run, MaxReceiptName, false}, {"nonce", q.Nonce, MaxReceiptMark, false},
		{"requestHash", q.Hash, MaxReceiptMark, false}, {"undoes", q.Undoes, MaxReceiptMark, true},
	} {
		switch {
		case f.value == "" && !f.empty:
			return fmt.Errorf("begin effect %q: %s is missing", q.Effect, f.name)
		case len(f.value) > f.most:
			return fmt.Errorf("begin effect %q: %s has %d bytes, the limit is %d: %w", Clip(q.Effect, 64), f.name, len(f.value), f.most, ErrTooLarge)
		}
	}
	switch q.Policy {
	case UnknownAsk, UnknownReconcile, UnknownRepeat, UnknownFail:
	default:
		return fmt.Errorf("begin effect %q: onUnknown is %q; want ask, reconcile, repeat or fail", q.Effect, q.Policy)
	}
	switch {
	case q.Compensable && len(q.Effect) > MaxReceiptName-maxUndo:
		return fmt.Errorf("begin effect %q: its name has %d bytes; one that can be undone has %d at most: %w", Clip(q.Effect, 64), len(q.Effect), MaxReceiptName-maxUndo, ErrTooLarge)
	case q.Attempt < 1:
		return fmt.Errorf("begin effect %q: attempt %d; the first is 1", q.Effect, q.Attempt)
	case q.Now < 1 || q.Until < 1:
		return fmt.Errorf("begin effect %q: it has no time to act in", q.Effect)
	case q.Settle < 0 || q.Settle > MaxSettle:
		return fmt.Errorf("begin effect %q: settle is %s; want 0 to %s", q.Effect, q.Settle, MaxSettle)
	}
	return nil
}

// Begin is what a call may do about its effect.
type Begin string

const (
	BeginProceed  Begin = "proceed"  // perform it, and give up at Until
	BeginDone     Begin = "done"     // it happened: take Result
	BeginWait     Begin = "wait"     // another call may be performing it: ask again at Until
	BeginUnknown  Begin = "unknown"  // nobody knows: the policy says what follows
	BeginConflict Begin = "conflict" // the receipt belongs to another request
	BeginFenced   Begin = "fenced"   // a later attempt holds it, or this one's time is over
)

// BeginAnswer is the answer to a [BeginRequest].
type BeginAnswer struct {
	Begin   Begin
	Until   Instant // with proceed and wait
	Result  Payload // with done
	Message string  // with unknown, conflict and fenced, for people
}

// BeginReceipt answers a valid request, given the stored receipt or nil. next is what must be stored before the answer
// is given, and is nil when nothing changes; it is written over the version of existing, or created.
//
// An effect is performed by one call at a time: to another it is a wait until the performing call's Until, or its
// known death, and the settling time are over. Then the outcome is unknown, and only the policy repeat, or a call
// that was told so and found out that it did not happen, performs it again.
func BeginReceipt(existing *Receipt, q BeginRequest) (next *Receipt, answer BeginAnswer) {
	// 1. Nothing is known to have been sent.
	if existing == nil {
		return intend(&Receipt{
			ID: ReceiptID(q.Tenant, q.Unit, q.Step, q.Effect), Tenant: q.Tenant, Unit: q.Unit, Step: q.Step, Effect: q.Effect,
		}, q)
	}
	if existing.fences(q.Run, q.Attempt) {
		return nil, BeginAnswer{Begin: BeginFenced, Message: existing.fencedMessage(q.Attempt)}
	}
	if existing.State == ReceiptAbandoned || existing.State == ReceiptCompensated {
		return intend(existing, q)
	}
	// 2. Something was sent, or may have been: it must be the same request.
	if existing.Hash != q.Hash {
		return nil, BeginAnswer{Begin: BeginConflict, Message: fmt.Sprintf(
			"effect %q of unit %s was begun by attempt %d of run %s with another request: give another request another effect name or key",
			existing.Effect, existing.Unit, existing.Attempt, existing.Run)}
	}
	if existing.State == ReceiptDone {
		return nil, BeginAnswer{Begin: BeginDone, Result: existing.Result}
	}
	// 3. Somebody may be performing it.
	if existing.State == ReceiptIntent {
		sameAttempt := existing.Run == q.Run && existing.Attempt == q.Attempt
		if sameAttempt && existing.Nonce == q.Nonce && q.Now < existing.Until {
			return nil, BeginAnswer{Begin: BeginProceed, Until: existing.Until} // the first answer was lost
		}
		ended := q.OwnerEnded
		if sameAttempt {
			ended = 0
		}
		if settled := existing.settled(ended); q.Now < settled {
			return nil, BeginAnswer{Begin: BeginWait, Until: settled}
		}
	}
	// 4. Nobody performs it, and whether it happened is unknown.
	asked := existing.State == ReceiptUnknown && slices.Contains(existing.Askers, q.Nonce)
	if q.Policy == UnknownRepeat || (q.DidNotHappen && asked) {
		return intend(existing, q)
	}
	answer = BeginAnswer{Begin: BeginUnknown, Message: fmt.Sprintf(
		"attempt %d of run %s began effect %q at %s and nobody knows whether it happened",
		existing.Attempt, existing.Run, existing.Effect, existing.BegunAt.Time().Format(time.RFC3339))}
	if asked {
		return nil, answer
	}
	next = existing.change(ReceiptUnknown)
	next.Waiter = q.Run
	next.Askers = append(next.Askers, q.Nonce)
	if n := len(next.Askers); n > MaxAskers {
		next.Askers = next.Askers[n-MaxAskers:]
	}
	return next, answer
}

// Awaited is the receipt with by as the run that a person's word is told to; nil where it is already, or where by works on
// another unit.
func (r *Receipt) Awaited(by *Record) *Receipt {
	if r.Waiter == by.ID || r.Tenant != by.Tenant || r.Unit != by.WorkUnit() {
		return nil
	}
	next := r.change(r.State)
	next.Waiter = by.ID
	return next
}

// intend gives the receipt to the call of q, unless that call has no time left.
func intend(existing *Receipt, q BeginRequest) (*Receipt, BeginAnswer) {
	if q.Until <= q.Now {
		return nil, BeginAnswer{Begin: BeginFenced, Message: fmt.Sprintf("the time of attempt %d of run %s is over", q.Attempt, q.Run)}
	}
	next := existing.change(ReceiptIntent)
	next.Run, next.Attempt, next.Nonce, next.Hash, next.Policy = q.Run, q.Attempt, q.Nonce, q.Hash, q.Policy
	next.BegunAt, next.Until, next.Settle = q.Now, q.Until, q.Settle.Milliseconds()
	next.Askers, next.ResolvedBy, next.Waiter = nil, "", ""
	next.Compensable, next.Undoes = q.Compensable, q.Undoes
	return next, BeginAnswer{Begin: BeginProceed, Until: q.Until}
}

// Errors of the changes to a receipt that an attempt or a person asks for. A stale attempt gets one wrapping ErrFenced.
var (
	// ErrNoReceipt: there is no intent that could be committed.
	ErrNoReceipt = errors.New("effect was never begun")
	// ErrSettled: the outcome is known already, and is another.
	ErrSettled = errors.New("outcome of the effect is settled already")
	// ErrActing: the outcome cannot be settled by others while an attempt may still be acting.
	ErrActing = errors.New("an attempt may still be performing the effect")
)

// CommitRequest reports that an effect happened.
type CommitRequest struct {
	Run     string
	Attempt int
	Result  Payload
	Now     Instant
	// Reconciled: it is not this attempt that performed it; its hook found that it happened.
	Reconciled bool
}

// CommitReceipt records that an effect happened. The word of the attempt that holds the receipt is first-hand and is
// taken in every state, also when it is late; another attempt can only tell what its hook found. A commit of what is
// done already by the same attempt, or found again, changes nothing: next is nil.
func CommitReceipt(existing *Receipt, q CommitRequest) (next *Receipt, err error) {
	if existing == nil {
		return nil, fmt.Errorf("commit by attempt %d of run %s: %w: begin comes first", q.Attempt, q.Run, ErrNoReceipt)
	}
	if len(q.Result.Inline) > MaxInline {
		return nil, fmt.Errorf("commit effect %q: result has %d bytes inline, the limit is %d: %w", existing.Effect, len(q.Result.Inline), MaxInline, ErrTooLarge)
	}
	holds := existing.Run == q.Run && existing.Attempt == q.Attempt
	switch {
	case existing.fences(q.Run, q.Attempt), !holds && !q.Reconciled:
		return nil, fmt.Errorf("commit effect %q: %s: %w", existing.Effect, existing.fencedMessage(q.Attempt), ErrFenced)
	case existing.State == ReceiptDone:
		return nil, nil
	case existing.State == ReceiptCompensated:
		return nil, fmt.Errorf("commit effect %q: it was undone: %w", existing.Effect, ErrSettled)
	case existing.State == ReceiptAbandoned && !holds:
		return nil, fmt.Errorf("commit effect %q: it is abandoned by attempt %d of run %s: %w", existing.Effect, existing.Attempt, existing.Run, ErrSettled)
	}
	next = existing.change(ReceiptDone)
	next.DoneAt, next.Result, next.ResolvedBy = q.Now, q.Result, ""
	if q.Reconciled {
		next.Run, next.Attempt, next.ResolvedBy = q.Run, q.Attempt, ByReconcile
	}
	return next, nil
}

// AbandonRequest reports that an effect certainly did not happen.
type AbandonRequest struct {
	Run     string
	Attempt int
	Nonce   string // of the call that began it; empty speaks for whichever call of the attempt holds the receipt
}

// AbandonReceipt records that the effect certainly did not happen, so that the next call may perform it at once. Only
// the call that holds the receipt knows. Abandoning what was never begun, or is abandoned, changes nothing.
func AbandonReceipt(existing *Receipt, q AbandonRequest) (next *Receipt, err error) {
	if existing == nil {
		return nil, nil
	}
	holds := existing.Run == q.Run && existing.Attempt == q.Attempt && (q.Nonce == "" || q.Nonce == existing.Nonce)
	switch {
	case !holds:
		return nil, fmt.Errorf("abandon effect %q: %s: %w", existing.Effect, existing.fencedMessage(q.Attempt), ErrFenced)
	case existing.State == ReceiptDone:
		return nil, fmt.Errorf("abandon effect %q: it happened at %s: %w", existing.Effect, existing.DoneAt.Time().Format(time.RFC3339), ErrSettled)
	case existing.State == ReceiptAbandoned:
		return nil, nil
	case existing.State == ReceiptCompensated:
		return nil, fmt.Errorf("abandon effect %q: it was undone: %w", existing.Effect, ErrSettled)
	}
	return existing.change(ReceiptAbandoned), nil
}

// ResolveReceipt records a person's word on an unknown effect: it happened, with what result, or it did not. The same
// word again changes nothing.
func ResolveReceipt(existing *Receipt, happened bool, result Payload, by string, now Instant) (next *Receipt, err error) {
	to := ReceiptAbandoned
	if happened {
		to = ReceiptDone
	}
	switch {
	case existing == nil:
		return nil, fmt.Errorf("resolve: %w", ErrNoReceipt)
	case len(result.Inline) > MaxInline:
		return nil, fmt.Errorf("resolve effect %q: result has %d bytes inline, the limit is %d: %w", existing.Effect, len(result.Inline), MaxInline, ErrTooLarge)
	case by == "" || len(by) > MaxReceiptMark:
		return nil, fmt.Errorf("resolve effect %q: the name of who resolves it has %d bytes; want 1 to %d", existing.Effect, len(by), MaxReceiptMark)
	case existing.State == to:
		return nil, nil
	case existing.State == ReceiptIntent:
		return nil, fmt.Errorf("resolve effect %q: attempt %d of run %s may act until %s: %w", existing.Effect, existing.Attempt,
			existing.Run, existing.settled(0).Time().Format(time.RFC3339), ErrActing)
	case existing.State != ReceiptUnknown:
		return nil, fmt.Errorf("resolve effect %q: it is %s: %w", existing.Effect, existing.State, ErrSettled)
	}
	next = existing.change(to)
	next.ResolvedBy = by
	if happened {
		next.DoneAt, next.Result = now, result
	}
	return next, nil
}

// CompensateReceipt records that an effect was undone. It may be one of which it is unknown whether it happened: whoever
// undid it made sure that nothing of it is left. Once more, or of what did not happen, it changes nothing.
func CompensateReceipt(existing *Receipt) (next *Receipt, err error) {
	switch {
	case existing == nil:
		return nil, fmt.Errorf("undo: %w", ErrNoReceipt)
	case existing.State == ReceiptCompensated || existing.State == ReceiptAbandoned:
		return nil, nil
	case existing.State == ReceiptIntent:
		return nil, fmt.Errorf("undo effect %q: attempt %d of run %s: %w", existing.Effect, existing.Attempt, existing.Run, ErrActing)
	}
	next = existing.change(ReceiptCompensated)
	next.Round++
	return next, nil
}

// FailUndo is the receipt of an effect that was to be undone and could not be, so that people find it; nil where that is
// noted, or nothing of the effect is left.
func FailUndo(existing *Receipt) (next *Receipt) {
	if existing == nil || existing.UndoFailed || existing.State != ReceiptDone && existing.State != ReceiptUnknown {
		return nil
	}
	next = existing.change(existing.State)
	next.UndoFailed = true
	return next
}

// SettledAt is from when on nothing of an intent can take effect any more; 0 for a receipt that is no intent. ownerEnded
// is since when its attempt is known to be dead, 0 if it is not.
func (r *Receipt) SettledAt(ownerEnded Instant) Instant {
	if r.State != ReceiptIntent {
		return 0
	}
	return r.settled(ownerEnded)
}

// MarkUnknown is the receipt of an intent whose attempt can act no more, so that people find it; nil when there is
// nothing to mark, or not yet. ownerEnded is since when that attempt is known to be dead, 0 if it is not.
func MarkUnknown(existing *Receipt, ownerEnded, now Instant) (next *Receipt) {
	if existing == nil || existing.State != ReceiptIntent || now < existing.settled(ownerEnded) {
		return nil
	}
	return existing.change(ReceiptUnknown)
}

// settled is from when on nothing of the newest intent can take effect any more.
func (r *Receipt) settled(ownerEnded Instant) Instant {
	return Earliest(r.Until, ownerEnded).Add(time.Duration(r.Settle) * time.Millisecond)
}

// fences reports whether an attempt is an older one of the run that holds the receipt.
func (r *Receipt) fences(run string, attempt int) bool { return r.Run == run && attempt < r.Attempt }

func (r *Receipt) fencedMessage(attempt int) string {
	return fmt.Sprintf("attempt %d of run %s holds the receipt, not attempt %d", r.Attempt, r.Run, attempt)
}

// change is a copy of the receipt, one version on.
func (r *Receipt) change(to ReceiptState) *Receipt {
	next := *r
	next.Askers = slices.Clone(r.Askers)
	next.Version++
	next.State = to
	next.UndoFailed = r.UndoFailed && (to == ReceiptDone || to == ReceiptUnknown)
	return &next
}

// EncodeReceipt gives the stored form of a receipt.
func EncodeReceipt(r *Receipt) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode receipt %s: %w", r.ID, err)
	}
	return body, nil
}

// DecodeReceipt reads the stored form. Bytes that make no receipt give an error wrapping ErrCorrupt.
func DecodeReceipt(body []byte) (*Receipt, error) {
	r := new(Receipt)
	if err := json.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("decode receipt: %w: %v", ErrCorrupt, err)
	}
	switch r.State {
	case ReceiptIntent, ReceiptDone, ReceiptUnknown, ReceiptAbandoned, ReceiptCompensated:
	default:
		return nil, fmt.Errorf("decode receipt %q in state %q: %w", r.ID, r.State, ErrCorrupt)
	}
	if r.ID == "" || r.Version < 1 || r.Run == "" || r.Attempt < 1 || r.Settle < 0 || r.Settle > MaxSettle.Milliseconds() || r.Round < 0 {
		return nil, fmt.Errorf("decode receipt %q, version %d of attempt %d: %w", r.ID, r.Version, r.Attempt, ErrCorrupt)
	}
	return r, nil
}
