package run

import (
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
	MaxGroups      = 2
	MaxDepth       = 16     // parents above a run
	MaxChildren    = 10_000 // of one stage or step
	MaxUSD         = 1e9    // of one report or budget
	MaxTokens      = 1e15   // of one report or budget
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
	ID       string
	Kind     Kind   // agent when empty
	Agent    string // name of the agent, workflow or job
	Version  string
	Revision int64 // the declaration that the run keeps for its life
	Tenant   string
	Priority int // 0..100, more is sooner within a tenant

	Labels map[string]string
	Key    string // idempotency key as submitted
	Hash   string // of the request, to tell a repeat from another request
	Unit   string // unit of work that receipts belong to; the ID when empty
	Input  Payload

	CreatedAt Instant
	NotBefore Instant
	// Deadline is when the run ends failed. It is the one thing here that moves: see Park.Left and Record.ForRuns.
	Deadline  Instant
	Latest    Instant // whoever submitted it wants it over by then, whatever it waits for; 0 for no such bound
	Requester string  // who asked for it, or for the run at the root of its tree
	RetainFor int64   // milliseconds that a finished run is kept; 0 for ever

	Parent string
	Root   string
	Stage  string // of the parent: the stage or step that called for this run
	Item   int    // among the runs of that stage, from 0
	Depth  int    // parents above it
	Groups []Group
	// Mode is what its attempts are for, Of the run that it is about: see ModeCompensate.
	Mode string
	Of   string

	RetryOf     string
	Session     string
	Trace       string // W3C traceparent of the submitter
	BudgetUSD   float64
	BudgetToken int64
}

// ModeCompensate is the mode of a run that undoes the committed effects of another one, under the same unit of work.
const ModeCompensate = "compensate"

// Group is a set of runs of which so many at most have an attempt at a time.
type Group struct {
	Key string // unique in the tenant
	Max int
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
	InputTokens  int64
	OutputTokens int64
	USD          float64
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
	N          int
	Target     string
	Node       string // what holds the slot, where that is not the target itself: a worker of it
	Worker     string
	AssignedAt Instant
	StartedAt  Instant
	EndedAt    Instant
	// Outcome says how it ended, Class how it failed: a time-out or a lost worker is a class of failed.
	Outcome Outcome
	Class   Class
	Code    string
	Message string
	Usage   *Usage
	// Sure: nothing of the attempt can act any more. Unset for one that is only presumed dead.
	Sure bool
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
	On    ParkOn
	Step  string  // durable step that the wake-up completes
	Name  string  // name of the signal, for input
	Until Instant // wakes at the latest then; 0 for no limit
	Seq   int     // of the step, in the order of the run's steps
	// Left is what is left of the run's time, in milliseconds, when it goes on: while it waits its deadline stands still.
	// 0 where waiting counts.
	Left int64
	// Of children: how many they are, how many may fail, and how many successes suffice, 0 for all.
	Size, Tolerate, Need int
}

// Stop is an order to a live attempt to end.
type Stop struct {
	Reason Reason
	Class  Class
	At     Instant
}

// Signal is a message to a run, kept until the run asks for it.
type Signal struct {
	Name    string
	Key     string
	Payload Payload
}

// Record is a run as it is now. It is what its history folds to, but for Tail, which holds the newest part of that
// history itself.
type Record struct {
	Spec
	Seq      int64 // number of events so far; the stored document's version
	State    State
	Reason   Reason
	Message  string
	Attempt  int // fencing number: highest attempt ever given
	Spent    int // attempts that count against the retry policy
	Returned int // attempts given back

	Attempts []Attempt
	Target   string          // of the live attempt
	Worker   string          // of the live attempt
	Detail   json.RawMessage // the stored decision or diagnosis

	QueuedAt  Instant
	StartedAt Instant // first start
	EndedAt   Instant
	UpdatedAt Instant
	// Due is when the present state must be looked at: queue expiry, start-by, attempt deadline, backoff end, next
	// look of a held or unschedulable run, park limit, kill-by, removal of a finished run.
	Due Instant

	// Undoable: an attempt, or a run that it called, may have performed effects that an end without success undoes.
	Undoable bool

	// ForPeople are stretches in which it waited for people alone, by itself or by way of runs that it called, in order:
	// the longest, MaxSpans at most. The last one may go on. Runs that wait for this one reckon with them.
	ForPeople Spans
	// ForRuns is its wait for runs that it called, until that is reckoned: nil for none.
	ForRuns *Wait
	// Moved is by how many milliseconds its deadline has moved because it waited for people alone.
	Moved int64

	Output  Payload
	Flow    string // of a workflow: the stage that it is in
	Park    *Park
	Stop    *Stop
	Signals []Signal
	SigKeys []string // keys of signals seen, newest last
	Usage   Usage
	Score   *float64

	Tail []Event
}

// Live reports whether an attempt exists that has not ended.
func (r *Record) Live() bool { return r.Target != "" }

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
// due since it was queued, so that whoever takes over the queue finds it by the same index as every timer; likewise a
// run that goes on when its children do, and one that its parent's end would end.
func (r *Record) WakeAt() Instant {
	if !r.executes() && (r.State == Running || r.State == Canceling) {
		return r.UpdatedAt
	}
	switch r.State {
	case Queued:
		return r.QueuedAt
	case Compensating:
		return r.UpdatedAt
	case Waiting:
		if r.Parent != "" || r.Park != nil && r.Park.On == OnChildren {
			return r.UpdatedAt
		}
	case Succeeded, Failed, Canceled:
		return r.Due
	case Suspended:
		if r.Parent != "" {
			return r.UpdatedAt
		}
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
func (r *Record) Clone() *Record { return r.CloneFor(0) }

// CloneFor is Clone with room for some more events.
func (r *Record) CloneFor(events int) *Record {
	c := *r
	c.Attempts = cloneFor(r.Attempts, min(events, 1))
	c.Signals = slices.Clone(r.Signals)
	c.SigKeys = slices.Clone(r.SigKeys)
	c.Tail = cloneFor(r.Tail, events)
	return &c
}

func cloneFor[E any](list []E, more int) []E {
	if list == nil {
		return nil
	}
	return append(make([]E, 0, len(list)+more), list...)
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
	case len(r.ForPeople) > MaxSpans || len(r.Attempts) > MaxAttempts || len(r.Signals) > MaxSignals || len(r.SigKeys) > MaxSignals:
		return "a list is longer than it gets"
	case cur != nil && cur.N != r.Attempt:
		return fmt.Sprintf("attempt %d is the newest, attempt %d is listed last", r.Attempt, cur.N)
	case r.Target != "" && (!holds || cur == nil || cur.EndedAt != 0):
		return "it names a target for no live attempt"
	case r.Target != "" && cur.StartedAt != 0 && r.Spent == 0:
		return "its attempt started and spent nothing"
	case r.Target == "" && (r.State == Assigned || r.State == Running && r.executes()):
		return "its attempt has no target"
	case r.Target != "" && !r.executes():
		return "a workflow has no attempt"
	case (r.State == Waiting) != (r.Park != nil):
		return "what it waits for and its state differ"
	}
	return ""
}
