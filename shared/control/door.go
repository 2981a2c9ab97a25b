package control

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Code is the kind of a refusal. The words are those of the problem types on the wire.
type Code string

// The closed set of refusals.
const (
	CodeInvalid     Code = "invalid"
	CodeNotFound    Code = "not-found"
	CodeConflict    Code = "conflict"
	CodeState       Code = "state"
	CodeForbidden   Code = "forbidden"
	CodeTooLarge    Code = "too-large"
	CodeOverloaded  Code = "overloaded"
	CodeUnsupported Code = "unsupported"
	CodeUnavailable Code = "unavailable"
	CodeStale       Code = "stale"
	// Of decisions at gates.
	CodeExpired      Code = "expired"
	CodeDecided      Code = "decided"
	CodeChanged      Code = "changed"
	CodeSelfApproval Code = "selfApproval"
)

// Refusal is an expected "no": what was asked, why not, and what would help. It is an error value, never an outage.
type Refusal struct {
	Code       Code
	Detail     string
	Faults     []Fault
	RetryAfter time.Duration // 0 where waiting does not help
	Current    string        // stale: the version that is there
	Cause      error         // unavailable: the outage behind it; nil otherwise
}

// Unwrap gives the outage behind the refusal.
func (r *Refusal) Unwrap() error { return r.Cause }

// Fault locates one error in what was asked: a path such as input.lines[2].amount.
type Fault struct{ Location, Message string }

func (r *Refusal) Error() string {
	s := r.Detail
	for _, f := range r.Faults {
		s += fmt.Sprintf("; %s: %s", f.Location, f.Message)
	}
	return s
}

func refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// strayToken refuses to go on with a list from a token that is not of it.
func strayToken(what string) *Refusal {
	return &Refusal{
		Code: CodeInvalid, Detail: what + " cannot be listed from there",
		Faults: []Fault{{Location: "pageToken", Message: "no token of this list; begin again without one"}},
	}
}

// Submission asks for one run.
type Submission struct {
	Agent     string
	Workflow  string // in place of Agent
	Input     json.RawMessage
	Tenant    string // "default" when empty
	Priority  *int   // 50 when nil
	Labels    map[string]string
	Key       string
	Deadline  time.Time // zero for the agent's own timeout
	NotBefore time.Time
	Session   string
	Trace     string
	BudgetUSD float64
	Tokens    int64
	Actor     string // who asked, for history
}

// Submitted is the outcome of one Submission.
type Submitted struct {
	Run     *run.Record
	Existed bool  // the key was known: Run is the earlier one, as it is with a conflict of keys
	Err     error // a *Refusal, or an outage
}

// Beginning registers an execution that was not ours to start.
type Beginning struct {
	Submission
	Worker string
	// Execution and Index name the task of a job; "" for a handler that was called.
	Execution   string
	Index       int
	Completions *int // tasks of the execution, where they are known
	Restarts    int  // how often the platform has restarted the task
}

// Claim asks for the attempt that a hand-over named.
type Claim struct {
	Attempt string
	Worker  string
	Ticket  string
	// May says whether whoever asks executes the agent; nil for every agent.
	May func(agent string) bool
}

// Filter selects runs. Zero fields select all.
type Filter struct {
	Agent        string
	Workflow     string
	Tenant       string   // "" is every tenant: for operators
	Tenants      []string // what the caller may see; nil for all
	States       []run.State
	Parent       string
	Labels       map[string]string
	Since, Until time.Time
}

// RunPage is a page of runs, newest first.
type RunPage struct {
	Runs []*run.Record
	Next string
}

// HistoryEvent is an event with the state after it.
type HistoryEvent struct {
	run.Event
	State run.State
}

// TreeNode is a run with its descendants, cut at 1,000 runs.
type TreeNode struct {
	Run      *run.Record
	Children []TreeNode
	More     bool
}

// Change tells that a run has a new record. One without a run says that other processes may have changed any.
type Change struct {
	Run *run.Record
	// Events are the new ones that this process has written; none for what it heard of.
	Events []run.Event
}

// CancelRequest ends a run.
type CancelRequest struct {
	Reason string        // free text, for history
	Grace  time.Duration // 10 s when 0
	Actor  string
}

// CancelPreview is what a cancel would meet.
type CancelPreview struct {
	Run                *run.Record
	Committed, Unknown []run.Receipt // of the run and those below it
	Children           []*run.Record // that end with it
	Compensations      []Compensation
	Spend              run.Usage
	More               bool // the tree is larger than what was looked at
}

// Compensation is something that would be undone: an effect of a run, or a stage of a workflow.
type Compensation struct {
	Run, Agent string
	Stage      string       // the workflow's outcome that the agent undoes; "" for an effect
	Receipt    *run.Receipt // the effect
}

// Explanation answers where, why, why not, and why is it waiting.
type Explanation struct {
	Run        *run.Record
	Chosen     string
	Worker     string
	DecidedAt  run.Instant
	Candidates []placement.Candidate
	Stored     *placement.Decision
	Queue      *QueuePosition
	Asks       []Ask // what people have to say first, 10 at most
	Story      []string
}

// QueuePosition says what stands before a waiting run.
type QueuePosition struct {
	Position, Ahead, Total int
	Limit                  string
	NextLook, Estimate     run.Instant
}

// ApplyOptions of Plane.Apply.
type ApplyOptions struct {
	DryRun bool
	Prune  bool // delete what is declared but not in the set
	Actor  string
}

// Applied is what happened to one object.
type Applied struct {
	Kind, Name string
	Action     string // created, configured, unchanged, deleted
	Warnings   []string
}

// Declared is an object with its revision and status.
type Declared struct {
	Object    fleet.Object
	Revision  int64
	UpdatedAt run.Instant
	Paused    bool // agents
	Queued    int
	Running   int
	Capacity  int
	Share     float64 // tenants: part of the dispatched cost, 0..1
	Workers   []WorkerStatus
}

// WorkerStatus is a worker that is known now.
type WorkerStatus struct {
	ID, Target     string
	Agents         []string
	Slots, Running int
	Draining       bool
	SeenAt         run.Instant
}

// LeaseRequest asks for runs to execute.
type LeaseRequest struct {
	Worker string
	Target string
	Agents []string
	Slots  int
	Max    int
	Wait   time.Duration
}

// LeaseResponse answers it.
type LeaseResponse struct {
	Leases []runtime.Assignment
	// BeatEvery is how often the worker must send its heartbeat.
	BeatEvery time.Duration
	Drain     bool
}

// WorkerBeat is a worker's sign of life with all that it holds.
type WorkerBeat struct {
	Worker   string
	Target   string
	Agents   []string
	Slots    int
	Draining bool
	Attempts []string
	Sessions map[string]json.RawMessage
}

// AttemptStanding is what a worker must know of an attempt that it holds.
type AttemptStanding struct {
	ID           string
	Deadline     run.Instant
	Cancel       bool
	CancelReason run.Reason
}

// WorkerStanding answers a beat. An attempt that is missing here is no longer the worker's.
type WorkerStanding struct {
	Drain    bool
	Attempts []AttemptStanding
	// Partial: an attempt that is missing goes on; it was not looked up.
	Partial bool
}

// EffectBegin asks to perform an external effect.
type EffectBegin struct {
	Run          string
	N            int
	Step, Effect string
	RequestHash  string
	Nonce        string
	Timeout      time.Duration // 60 s when 0
	OnUnknown    string        // the agent's default when empty
	Reconciled   string        // "didNotHappen", or empty
	Compensable  bool          // the caller knows how to undo it
}

// EffectAnswer answers it: see run.BeginReceipt for the words.
type EffectAnswer struct {
	runtime.Result
	Answer    string // a run.Begin, or EffectNone
	ID        string
	Key       string // what the outside system is given as idempotency key
	Until     run.Instant
	Value     json.RawMessage
	OnUnknown string
}

// EffectEnd commits or abandons an effect.
type EffectEnd struct {
	Run          string
	N            int
	Step, Effect string
	Value        json.RawMessage
	Abandon      bool
	Nonce        string // abandon: of the call that began it; "" for whichever call of the attempt holds the receipt
	Reconciled   bool   // commit: the reconcile hook found that it took place
}

// Grant is what an attempt's token allows.
type Grant struct {
	Run    string
	N      int
	Agent  string
	Tenant string
	Scopes []string
}
