package api

import "encoding/json"

// LeaseRequest is the body of POST /v1/leases, a long poll by a worker for runs to execute.
type LeaseRequest struct {
	Worker string `json:"worker"` // chosen by the worker, unique while it lives
	// Target is the polled or local target that the worker belongs to; "" lets the server choose.
	Target string   `json:"target,omitempty"`
	Agents []string `json:"agents"`
	Slots  int      `json:"slots,omitempty"` // all of the worker's slots; Max when 0
	Max    int      `json:"max"`             // runs wanted now, at most the free slots
	Wait   Duration `json:"wait,omitempty"`  // how long to wait for one; 30s at most
}

// LeaseResponse answers a lease request.
type LeaseResponse struct {
	Leases []Lease `json:"leases"`
	// Drain asks the worker to finish what it has and to ask for no more.
	Drain bool `json:"drain,omitempty"`
}

// Lease hands one attempt to a worker.
type Lease struct {
	Attempt string          `json:"attempt"` // id: RUN.N
	N       int             `json:"n"`
	Run     string          `json:"run"`
	Agent   string          `json:"agent"`
	Tenant  string          `json:"tenant"`
	Mode    string          `json:"mode"` // run, settle or compensate
	Input   json.RawMessage `json:"input"`
	// Key is the unit of work that receipts belong to: the same for every attempt and retry.
	Key   string `json:"key"`
	Token string `json:"token"` // bearer token of this attempt
	// Deadline is when the attempt must have ended.
	Deadline Time `json:"deadline"`
	// HeartbeatEvery is how often the worker must send its heartbeat.
	HeartbeatEvery Duration `json:"heartbeatEvery"`
	// Silence is the longest that the handler itself may be silent; 0 for no limit.
	Silence     Duration `json:"silence,omitempty"`
	Traceparent string   `json:"traceparent,omitempty"`
	Steps       []Step   `json:"steps,omitempty"` // recorded by earlier attempts, in order
	// Receipts are, in mode compensate, the effects of the run to undo, newest first; Input and Steps are that run's.
	Receipts    []Undoing         `json:"receipts,omitempty"`
	Session     string            `json:"session,omitempty"`
	State       json.RawMessage   `json:"state,omitempty"` // of the session, as its last turn left it
	Labels      map[string]string `json:"labels,omitempty"`
	Index       *int              `json:"index,omitempty"`       // completion index of a job
	Completions *int              `json:"completions,omitempty"` // of a job
}

// Step is a durable step that ended.
type Step struct {
	Name   string          `json:"name"`
	Seq    int             `json:"seq"` // order in which steps ended, from 1
	Result json.RawMessage `json:"result,omitempty"`
	// Error is set where the step was recorded as failed for good.
	Error *AgentError `json:"error,omitempty"`
}

// Undoing is an effect as whoever undoes it sees it.
type Undoing struct {
	ID          string          `json:"id"` // of the receipt
	Step        string          `json:"step,omitempty"`
	Effect      string          `json:"effect"`
	Key         string          `json:"key"`   // idempotency key under which it was performed
	State       string          `json:"state"` // done, unknown, or compensated: undone already
	Compensable bool            `json:"compensable,omitempty"`
	Undo        string          `json:"undo,omitempty"` // name of the effect, in the same step, that undoes it
	Result      json.RawMessage `json:"result,omitempty"`
	// Omitted: there is a result, too large to be handed over; to begin the effect answers with it.
	Omitted bool `json:"omitted,omitempty"`
}

// AgentError is an error that an agent reports of itself.
type AgentError struct {
	Class      string    `json:"class,omitempty"` // user when empty
	Code       string    `json:"code,omitempty"`
	Message    string    `json:"message"`
	Retryable  *bool     `json:"retryable,omitempty"`
	RetryAfter *Duration `json:"retryAfter,omitempty"`
}

// Standing is part of every answer to a report: what the attempt must know.
type Standing struct {
	Deadline     Time   `json:"deadline"`
	Cancel       bool   `json:"cancel"`
	CancelReason string `json:"cancelReason,omitempty"`
}

// Report types.
const (
	ReportStart    = "start"
	ReportBeat     = "heartbeat"
	ReportComplete = "complete"
	ReportFail     = "fail"
	ReportRelease  = "release"
	ReportPark     = "park"
	ReportStep     = "step"
	ReportUsage    = "usage"
	ReportProgress = "progress"
	ReportLogs     = "logs"
)

// Report is one report of an attempt; the fields follow its Type. POST /v1/attempts/{id}:complete and its kin take
// the same object without Type, Attempt and Token.
type Report struct {
	Type    string `json:"type,omitempty"`
	Attempt string `json:"attempt,omitempty"`
	Token   string `json:"token,omitempty"`

	Output  json.RawMessage `json:"output,omitempty"`  // complete
	Usage   *Usage          `json:"usage,omitempty"`   // complete, fail, park, release: all of the attempt; usage: one more
	Score   *float64        `json:"score,omitempty"`   // complete
	Session json.RawMessage `json:"session,omitempty"` // complete, park: the session's state after this turn

	Class      string    `json:"class,omitempty"` // fail: user when empty
	Code       string    `json:"code,omitempty"`  // fail
	Message    string    `json:"message,omitempty"`
	Retryable  *bool     `json:"retryable,omitempty"`  // fail: false ends the run
	RetryAfter *Duration `json:"retryAfter,omitempty"` // fail

	Reason string `json:"reason,omitempty"` // release

	Park *Park `json:"park,omitempty"` // park
	Step *Step `json:"step,omitempty"` // step

	Progress *float64  `json:"progress,omitempty"` // progress: 0..1
	Logs     []LogLine `json:"logs,omitempty"`
}

// Park asks to end the attempt and to wait without a slot.
type Park struct {
	On    string `json:"on"`             // timer, input, children or gate
	Step  string `json:"step"`           // name of the durable step that the wake-up completes
	Name  string `json:"name,omitempty"` // input: name of the signal
	Until *Time  `json:"until,omitempty"`
	// Gate is what people are asked; absent where the attempt has requested it before.
	Gate *GateAsk `json:"gate,omitempty"`

	// Of children: how many the step has. The group is decided when all of them ended, when Need of them succeeded (0
	// for all), or when more than Tolerate failed; what is left of it then is canceled.
	Size     int `json:"size,omitempty"`
	Tolerate int `json:"tolerate,omitempty"`
	Need     int `json:"need,omitempty"`
	// Children are called with the park; without them the step's children were called before. Max of them execute at a
	// time, 0 for any number.
	Children []Call `json:"children,omitempty"`
	Max      int    `json:"max,omitempty"`
}

// Call asks for a child of a run: another run, of an agent or of a workflow.
type Call struct {
	Agent    string          `json:"agent,omitempty"` // it or Workflow
	Workflow string          `json:"workflow,omitempty"`
	Input    json.RawMessage `json:"input,omitempty"`
}

// Children is the body of POST /v1/attempts/{id}/children: up to MaxCalls children of a step, which has up to
// MaxChildren. A call that was made before meets the same child; another call for its place is a conflict.
type Children struct {
	Step     string `json:"step"`
	First    int    `json:"first,omitempty"` // item of the first child in the step, from 0
	Size     int    `json:"size,omitempty"`  // how many children the step gets, where that is known
	Max      int    `json:"max,omitempty"`   // how many of the step execute at a time; 0 for any number
	Children []Call `json:"children"`
}

// Spawned answers Children, in order.
type Spawned struct {
	Children []Child `json:"children"`
}

// Child is a run that was called.
type Child struct {
	Run  string `json:"run"`
	Item int    `json:"item"`
}

// ChildResult is how a child stands: output where it succeeded, reason, code and message where it did not.
type ChildResult struct {
	Item    int             `json:"item"`
	Run     string          `json:"run"`
	State   string          `json:"state"`
	Reason  string          `json:"reason,omitempty"`
	Code    string          `json:"code,omitempty"`
	Message string          `json:"message,omitempty"`
	Output  json.RawMessage `json:"output,omitempty"`
}

// Joined is the result of a step that waited for children. Its children are in the order of their items, and carry none.
type Joined struct {
	Size      int `json:"size"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	// Paged: the outputs, or all of the children, are left out for their size; GET /v1/attempts/{id}/children/{step}
	// has them.
	Paged    bool          `json:"paged,omitempty"`
	Children []ChildResult `json:"children,omitempty"`
}

// ReportResult answers one report.
type ReportResult struct {
	Standing
	// Resumed is true when a park found its signal already there: the run goes back to the queue at once.
	Resumed bool     `json:"resumed,omitempty"`
	Error   *Problem `json:"error,omitempty"`
}

// ReportBatch is the body of POST /v1/attempts:batch. Lease, if set, is served in the same call, without waiting
// longer than the reports take; it saves a busy worker a round trip.
type ReportBatch struct {
	Reports []Report      `json:"reports"`
	Lease   *LeaseRequest `json:"lease,omitempty"`
}

// ReportBatchResult answers a batch, in order.
type ReportBatchResult struct {
	Results []ReportResult `json:"results"`
	Leases  []Lease        `json:"leases,omitempty"`
	Drain   bool           `json:"drain,omitempty"`
}

// Claim is the body of POST /v1/attempts/{id}:claim, which answers with the Lease.
type Claim struct {
	Worker string `json:"worker"`
	Ticket string `json:"ticket"`
}

// Undelivered is the body of POST /v1/attempts/{id}:undelivered: the hand-over that named the attempt came to nobody.
type Undelivered struct {
	Ticket string `json:"ticket"`
	Reason string `json:"reason,omitempty"`
}

// Ticked answers POST /v1/tick.
type Ticked struct {
	// Leader: the process that answered decides; else it has told the one that does.
	Leader bool `json:"leader"`
}

// Begin is the body of POST /v1/runs:begin: what was started by somebody else than the server registers itself, be it a
// handler that was called directly or a container of a job that was started by hand.
type Begin struct {
	Agent  string          `json:"agent"`
	Input  json.RawMessage `json:"input,omitempty"`
	Tenant string          `json:"tenant,omitempty"`
	// Key makes it idempotent within the tenant, as that of Submit does; EXECUTION/INDEX for a container of a job.
	Key string `json:"key,omitempty"`
	// Execution is the job's execution that the container belongs to, Index the task in it, and Completions its tasks.
	Execution   string `json:"execution,omitempty"`
	Index       *int   `json:"index,omitempty"`
	Completions *int   `json:"completions,omitempty"`
	// Restarts is how often the platform has restarted the task: when it has risen, the worker's earlier attempt is dead.
	Restarts int    `json:"restarts,omitempty"`
	Worker   string `json:"worker"`
	Session  string `json:"session,omitempty"`
}

// Begun answers Begin: with status 201 a Lease, with 200 a Finished. Exactly one of them is set.
type Begun struct {
	Lease    *Lease
	Finished *Finished
}

// Finished is the run of a key that is over already.
type Finished struct {
	Run    string          `json:"run"`
	State  string          `json:"state"`            // succeeded, failed or canceled
	Output json.RawMessage `json:"output,omitempty"` // succeeded
	// Reason and Message are those of the run; Code is what its last attempt said.
	Reason  string `json:"reason,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// WorkerBeat is the body of POST /v1/workers/{id}:heartbeat. A worker that is silent for the lease period loses its
// attempts.
type WorkerBeat struct {
	Target string   `json:"target,omitempty"`
	Agents []string `json:"agents"`
	// Slots are where the server may place runs; 0 for a worker that executes what it claimed or began and takes no other.
	Slots    int  `json:"slots"`
	Draining bool `json:"draining,omitempty"`
	// Attempts are those that the worker still executes; it starts none that is missing here.
	Attempts []string `json:"attempts"`
	// Sessions saves snapshots of sessions that a stopping instance holds, by attempt-independent name.
	Sessions map[string]json.RawMessage `json:"sessions,omitempty"`
}

// WorkerStanding answers a worker's heartbeat. An attempt that the worker named and that is missing in the answer is
// no longer its own: it must stop it.
type WorkerStanding struct {
	Drain    bool              `json:"drain"`
	Attempts []AttemptStanding `json:"attempts"`
	// Partial: an attempt that is missing in Attempts goes on; whoever answered did not look it up.
	Partial bool `json:"partial,omitempty"`
}

// AttemptStanding is one attempt in a WorkerStanding.
type AttemptStanding struct {
	ID string `json:"id"`
	Standing
}

// ReceiptBegin is the body of POST /v1/attempts/{id}/receipts/{effect}:begin.
type ReceiptBegin struct {
	Step        string `json:"step,omitempty"`
	RequestHash string `json:"requestHash"`
	Nonce       string `json:"nonce"` // random per call of Once; a repeat of the same call carries the same
	// Timeout is how long the action may take; 60s when absent, never past the attempt's deadline.
	Timeout   *Duration `json:"timeout,omitempty"`
	OnUnknown string    `json:"onUnknown,omitempty"` // ask, reconcile, repeat or fail; the agent's default when empty
	// Reconciled reports what the reconcile hook found of an unknown effect: "didNotHappen".
	Reconciled string `json:"reconciled,omitempty"`
	// Compensable: the caller knows how to undo the effect, so that an end without success of the run undoes it.
	Compensable bool `json:"compensable,omitempty"`
}

// Answers to ReceiptBegin.
const (
	EffectProceed  = "proceed"
	EffectDone     = "done"
	EffectWait     = "wait"
	EffectUnknown  = "unknown"
	EffectConflict = "conflict"
	EffectNone     = "none" // in mode compensate: it did not happen
)

// ReceiptAnswer answers ReceiptBegin.
type ReceiptAnswer struct {
	Standing
	Answer string `json:"answer"`
	ID     string `json:"id"` // of the receipt
	// Key is passed on by the action as the outside system's own idempotency key: the id, until the effect was undone.
	Key    string          `json:"key"`
	Until  *Time           `json:"until,omitempty"`  // proceed: the action is cancelled then; wait: ask again then
	Result json.RawMessage `json:"result,omitempty"` // done
	// OnUnknown is the policy in force.
	OnUnknown string `json:"onUnknown,omitempty"`
}

// ReceiptCommit is the body of :commit and, without Result, of :abandon.
type ReceiptCommit struct {
	Step   string          `json:"step,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	// Reconciled is "happened" when the reconcile hook found that an unknown effect took place. To abandon, in mode
	// compensate alone, "didNotHappen" says that it did not.
	Reconciled string `json:"reconciled,omitempty"`
}
