package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Limits of a record. What is larger lives elsewhere: payloads by reference, old history in its own documents.
const (
	MaxInline      = 32 << 10 // bytes of an input or output kept in the record
	MaxPayload     = 10 << 20 // bytes of an input or output at all
	MaxMessage     = 2 << 10  // bytes of a message; what is longer is cut
	MaxDetail      = 2 << 10  // bytes of a stored decision
	MaxName        = 256      // bytes of an id, name, code, actor, worker and the like
	MaxKey         = 512      // bytes of an idempotency key or a trace parent
	MaxAttempts    = 8        // attempts listed in the record; history has them all
	MaxTail        = 48       // events kept in the record before the older ones spill
	MaxTailBytes   = 12 << 10 // bytes of the events kept in the record before the older ones spill
	MaxSignals     = 100      // signals that wait for a run to ask for them
	MaxSignalBytes = 8 << 10  // bytes of the signals kept in the record together: names, keys, payloads
	MaxKeyBytes    = 4 << 10  // bytes of the keys of signals that are remembered
	MaxReturned    = 50       // attempts given back before a run counts as poison
	MaxLabels      = 32
	MaxLabelBytes  = 4 << 10 // bytes of all keys and values of labels
	MaxUSD         = 1e9     // of one report or budget
	MaxTokens      = 1e15    // of one report or budget
	MaxPriority    = 100
	MaxRecord      = 64<<10 + 2*MaxInline // bytes of an encoded record, whatever happens to a run
)

// Payload is an input, output or other value given by an outside party: inline when small, by reference otherwise.
type Payload struct {
	Inline json.RawMessage `json:"v,omitempty"`
	Ref    string          `json:"r,omitempty"` // id of a payload document
	Size   int             `json:"n,omitempty"` // bytes
}

// Empty reports whether there is no value.
func (p Payload) Empty() bool { return p.Ref == "" && len(p.Inline) == 0 }

// Kind is what a run executes.
type Kind string

const (
	KindAgent    Kind = "agent"
	KindWorkflow Kind = "workflow"
	KindJob      Kind = "job"
)

// Spec is what was asked for. It is fixed at submission.
type Spec struct {
	ID       string `json:"id"`
	Kind     Kind   `json:"k,omitempty"` // agent when empty
	Agent    string `json:"a"`           // name of the agent, workflow or job
	Version  string `json:"ver,omitempty"`
	Revision int64  `json:"rev,omitempty"` // the declaration that the run keeps for its life
	Tenant   string `json:"t"`
	Priority int    `json:"p"` // 0..100, more is sooner within a tenant

	Labels map[string]string `json:"l,omitempty"`
	Key    string            `json:"key,omitempty"`  // idempotency key as submitted
	Hash   string            `json:"hash,omitempty"` // of the request, to tell a repeat from another request
	Unit   string            `json:"u,omitempty"`    // unit of work that receipts belong to; the ID when empty
	Input  Payload           `json:"in"`

	CreatedAt Instant `json:"c"`
	NotBefore Instant `json:"nb,omitempty"`
	Deadline  Instant `json:"d,omitempty"`   // the run ends failed at this instant
	RetainFor int64   `json:"ret,omitempty"` // milliseconds that a finished run is kept; 0 for ever

	Parent      string  `json:"par,omitempty"`
	Root        string  `json:"root,omitempty"`
	Stage       string  `json:"st,omitempty"`
	RetryOf     string  `json:"ro,omitempty"`
	Session     string  `json:"ses,omitempty"`
	Trace       string  `json:"tr,omitempty"` // W3C traceparent of the submitter
	BudgetUSD   float64 `json:"busd,omitempty"`
	BudgetToken int64   `json:"btok,omitempty"`
}

// WorkUnit is what receipts belong to: the unit, else the run itself.
func (s *Spec) WorkUnit() string {
	if s.Unit != "" {
		return s.Unit
	}
	return s.ID
}

// Usage is what was consumed.
type Usage struct {
	InputTokens  int64   `json:"i,omitempty"`
	OutputTokens int64   `json:"o,omitempty"`
	USD          float64 `json:"usd,omitempty"`
}

// Plus adds usages. Sums saturate.
func (u Usage) Plus(v Usage) Usage {
	return Usage{
		addClamped(u.InputTokens, v.InputTokens), addClamped(u.OutputTokens, v.OutputTokens),
		min(u.USD+v.USD, math.MaxFloat64),
	}
}

func addClamped(a, b int64) int64 {
	switch sum := a + b; {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	default:
		return sum
	}
}

// Attempt is one try at executing a run.
type Attempt struct {
	N          int     `json:"n"`
	Target     string  `json:"t"`
	Node       string  `json:"nd,omitempty"` // what holds the slot, where that is not the target itself: a worker of it
	Worker     string  `json:"w,omitempty"`
	AssignedAt Instant `json:"as"`
	StartedAt  Instant `json:"s,omitempty"`
	EndedAt    Instant `json:"e,omitempty"`
	// Outcome says how it ended, Class how it failed: a time-out or a lost worker is a class of failed.
	Outcome Outcome `json:"o,omitempty"`
	Class   Class   `json:"cl,omitempty"`
	Code    string  `json:"co,omitempty"`
	Message string  `json:"m,omitempty"`
	Usage   *Usage  `json:"us,omitempty"`
	// Sure: nothing of the attempt can act any more. Unset for one that is only presumed dead.
	Sure bool `json:"su,omitempty"`
}

// Outcome is how an attempt ended.
type Outcome string

const (
	OutcomeSucceeded   Outcome = "succeeded"
	OutcomeFailed      Outcome = "failed"
	OutcomeParked      Outcome = "parked"
	OutcomeReleased    Outcome = "released"
	OutcomeCanceled    Outcome = "canceled"
	OutcomeStartFailed Outcome = "start-failed"
)

// ParkOn is what a parked run waits for.
type ParkOn string

const (
	OnTimer    ParkOn = "timer"
	OnInput    ParkOn = "input" // a signal by name
	OnChildren ParkOn = "children"
	OnGate     ParkOn = "gate"
)

// Park is why a run waits.
type Park struct {
	On    ParkOn  `json:"on"`
	Step  string  `json:"step"`           // durable step that the wake-up completes
	Name  string  `json:"name,omitempty"` // name of the signal, for input
	Until Instant `json:"u,omitempty"`    // wakes at the latest then; 0 for no limit
	Seq   int     `json:"q,omitempty"`    // of the step, in the order of the run's steps
}

// Stop is an order to a live attempt to end.
type Stop struct {
	Reason Reason  `json:"r"`
	Class  Class   `json:"c,omitempty"`
	At     Instant `json:"at"`
}

// Signal is a message to a run, kept until the run asks for it.
type Signal struct {
	Name    string  `json:"n"`
	Key     string  `json:"k,omitempty"`
	Payload Payload `json:"p"`
}

// Record is a run as it is now. It is what its history folds to, but for Tail, which holds the newest part of that
// history itself.
type Record struct {
	Spec
	Seq      int64  `json:"v"` // number of events so far; the stored document's version
	State    State  `json:"s"`
	Reason   Reason `json:"r,omitempty"`
	Message  string `json:"m,omitempty"`
	Attempt  int    `json:"at,omitempty"` // fencing number: highest attempt ever given
	Spent    int    `json:"sp,omitempty"` // attempts that count against the retry policy
	Returned int    `json:"rt,omitempty"` // attempts given back

	Attempts []Attempt       `json:"as,omitempty"`
	Target   string          `json:"tg,omitempty"` // of the live attempt
	Worker   string          `json:"w,omitempty"`  // of the live attempt
	Detail   json.RawMessage `json:"pl,omitempty"` // the stored decision or diagnosis

	QueuedAt  Instant `json:"q,omitempty"`
	StartedAt Instant `json:"sa,omitempty"` // first start
	EndedAt   Instant `json:"e,omitempty"`
	UpdatedAt Instant `json:"up"`
	// Due is when the present state must be looked at: queue expiry, start-by, attempt deadline, backoff end, next
	// look of a held or unschedulable run, park limit, kill-by, removal of a finished run.
	Due Instant `json:"du,omitempty"`

	Output  Payload  `json:"out"`
	Park    *Park    `json:"pk,omitempty"`
	Stop    *Stop    `json:"stop,omitempty"`
	Signals []Signal `json:"sig,omitempty"`
	SigKeys []string `json:"sgk,omitempty"` // keys of signals seen, newest last
	Usage   Usage    `json:"us"`
	Score   *float64 `json:"sc,omitempty"`

	Tail []Event `json:"h"`
}

// Live reports whether an attempt exists that has not ended.
func (r *Record) Live() bool {
	switch r.State {
	case Assigned, Running:
		return true
	case Canceling:
		return r.Target != ""
	}
	return false
}

// Holder is the number of the attempt that may still report, or 0. An attempt that was told to stop because its time
// is over holds nothing: its successor must not find anything of it later.
func (r *Record) Holder() int {
	if !r.Live() || (r.Stop != nil && r.State != Canceling) {
		return 0
	}
	return r.Attempt
}

// Current is the newest attempt, or nil.
func (r *Record) Current() *Attempt {
	if len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

// WakeAt is when the control plane must look at the run again even if nothing happens; 0 for never. A queued run is
// due since it was queued, so that whoever takes over the queue finds it by the same index as every timer.
func (r *Record) WakeAt() Instant {
	switch r.State {
	case Queued:
		return r.QueuedAt
	case Succeeded, Failed, Canceled:
		return r.Due
	case Suspended:
		return r.Deadline
	case Canceling:
		return r.Due // it ends anyway: a deadline that passes meanwhile must not stand before it
	case Running:
		if r.Stop != nil {
			return r.Due // likewise: its attempt has been told to end
		}
	}
	return Earliest(r.Due, r.Deadline)
}

// Clone returns a copy that shares nothing which Evolve changes.
func (r *Record) Clone() *Record {
	c := *r
	c.Attempts = slices.Clone(r.Attempts)
	c.Signals = slices.Clone(r.Signals)
	c.SigKeys = slices.Clone(r.SigKeys)
	c.Tail = slices.Clone(r.Tail)
	return &c
}

// Encode gives the stored form of a record.
func Encode(r *Record) ([]byte, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // it would make values of an outside party up to six times as long
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode run %s: %w", r.ID, err)
	}
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), nil
}

// Errors of what an outside party gave.
var (
	// ErrTooLarge: it is over a limit of the record.
	ErrTooLarge = errors.New("over a limit")
	// ErrInvalid: it is malformed.
	ErrInvalid = errors.New("malformed")
	// ErrSignalSeen: a signal with this key was delivered before.
	ErrSignalSeen = errors.New("a signal with this key was delivered already")
)

// ErrCorrupt is wrapped by DecodeRecord, DecodeReceipt and Fold when what was stored makes no record.
var ErrCorrupt = errors.New("stored run is corrupt")

// DecodeRecord reads the stored form. A record that it returns is coherent: every event either is refused by Decide or
// folds.
func DecodeRecord(body []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("decode run: %w: %v", ErrCorrupt, err)
	}
	if what := r.incoherent(); what != "" {
		return nil, fmt.Errorf("decode run %q in state %q at event %d: %s: %w", Clip(r.ID, MaxName), Clip(string(r.State), 64), r.Seq, what, ErrCorrupt)
	}
	return r, nil
}

// maxCount bounds the counts of a record far above what any run reaches, and below what would overflow.
const maxCount = 1 << 40

// incoherent says how a record contradicts itself; "" if it does not.
func (r *Record) incoherent() string {
	cur := r.Current()
	holds := r.State == Assigned || r.State == Running || r.State == Canceling
	switch {
	case r.ID == "":
		return "it has no id"
	case !r.State.Valid():
		return "there is no such state"
	case r.Seq < 1 || r.Seq > maxCount || r.UpdatedAt < 1:
		return "it has no first event, or too many"
	case r.Attempt < 0 || r.Spent < 0 || r.Returned < 0 || r.Spent > r.Attempt || r.Attempt > maxCount || r.Returned > maxCount:
		return fmt.Sprintf("its counts cannot be: attempt %d, spent %d, returned %d", r.Attempt, r.Spent, r.Returned)
	case len(r.Attempts) > MaxAttempts || len(r.Signals) > MaxSignals || len(r.SigKeys) > MaxSignals:
		return "a list is longer than it gets"
	case cur != nil && cur.N != r.Attempt:
		return fmt.Sprintf("attempt %d is the newest, attempt %d is listed last", r.Attempt, cur.N)
	case r.Target != "" && (!holds || cur == nil || cur.EndedAt != 0):
		return "it names a target for no live attempt"
	case r.Target != "" && cur.StartedAt != 0 && r.Spent == 0:
		return "its attempt started and spent nothing"
	case r.Target == "" && (r.State == Assigned || r.State == Running):
		return "its attempt has no target"
	case (r.State == Waiting) != (r.Park != nil):
		return "what it waits for and its state differ"
	}
	return ""
}
