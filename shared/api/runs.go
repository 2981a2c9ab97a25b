package api

import "encoding/json"

// Submit is the body of POST /v1/runs: exactly one of Agent, Workflow and Job, and what it is to work on.
type Submit struct {
	Agent    string `json:"agent,omitempty"`
	Workflow string `json:"workflow,omitempty"`
	Job      string `json:"job,omitempty"`

	Input    json.RawMessage   `json:"input,omitempty"`
	Tenant   string            `json:"tenant,omitempty"` // "default" when empty
	Priority *int              `json:"priority,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	// Deadline is when the run ends failed; the earlier of it and the agent's timeouts.run holds.
	Deadline  *Time `json:"deadline,omitempty"`
	NotBefore *Time `json:"notBefore,omitempty"`
	// Key makes the submission idempotent within the tenant: the same key and body give the same run.
	Key     string  `json:"key,omitempty"`
	Budget  *Budget `json:"budget,omitempty"`
	Session string  `json:"session,omitempty"` // shape instance: whose turn this is
}

// Budget is a ceiling for one run tree.
type Budget struct {
	USD    float64 `json:"usd,omitempty"`
	Tokens int64   `json:"tokens,omitempty"`
}

// Run is a run as the interface shows it. The fields without omitempty are always there.
type Run struct {
	ID       string            `json:"id"`
	Agent    string            `json:"agent,omitempty"`
	Workflow string            `json:"workflow,omitempty"`
	Job      string            `json:"job,omitempty"`
	Version  string            `json:"version,omitempty"` // of the agent, as declared when it was submitted
	Tenant   string            `json:"tenant"`
	State    string            `json:"state"`
	Reason   string            `json:"reason,omitempty"`
	Message  string            `json:"message,omitempty"`
	Priority int               `json:"priority"`
	Labels   map[string]string `json:"labels,omitempty"`
	Key      string            `json:"key,omitempty"`
	Session  string            `json:"session,omitempty"`
	Input    json.RawMessage   `json:"input,omitempty"`  // left out of lists
	Output   json.RawMessage   `json:"output,omitempty"` // left out of lists
	Attempt  int               `json:"attempt"`
	Attempts []Attempt         `json:"attempts,omitempty"` // the newest eight; /attempts has all
	Parent   string            `json:"parent,omitempty"`
	Root     string            `json:"root,omitempty"`
	// Stage is of the parent: the stage or step that called it. Of a workflow that nobody called it is CurrentStage.
	Stage string `json:"stage,omitempty"`
	// CurrentStage is that of a workflow: the one that it is at, or was at when it ended.
	CurrentStage string `json:"currentStage,omitempty"`
	Item         *int   `json:"item,omitempty"`  // of a child: its place in that stage, from 0
	Depth        int    `json:"depth,omitempty"` // runs above it
	RetryOf      string `json:"retryOf,omitempty"`
	CreatedAt    Time   `json:"createdAt"`
	StartedAt    *Time  `json:"startedAt,omitempty"`
	EndedAt      *Time  `json:"endedAt,omitempty"`
	WakeAt       *Time  `json:"wakeAt,omitempty"`
	Deadline     *Time  `json:"deadline,omitempty"`
	// ExpiresAt is when a finished run may be removed; absent where it is kept for ever. It stays while it is needed.
	ExpiresAt *Time `json:"expiresAt,omitempty"`
	Cost      Cost  `json:"cost"`
	// Family is the cost of the run and of all below it; where it was asked for.
	Family    *Family         `json:"family,omitempty"`
	Score     *float64        `json:"score,omitempty"`
	Placement *PlacementBrief `json:"placement,omitempty"`
	WaitsFor  *WaitsFor       `json:"waitsFor,omitempty"` // state waiting
	Etag      string          `json:"etag"`
}

// Terminal reports whether the run is over.
func (r *Run) Terminal() bool {
	return r.State == "succeeded" || r.State == "failed" || r.State == "canceled"
}

// Name is what the run executes: agent, workflow or job.
func (r *Run) Name() string { return r.Agent + r.Workflow + r.Job }

// Cost is what a run has consumed so far.
type Cost struct {
	USD    float64 `json:"usd"`
	Tokens int64   `json:"tokens"`
}

// Family is what a run and all that it called, at any depth, have consumed so far.
type Family struct {
	Cost Cost `json:"cost"`
	Runs int  `json:"runs"` // the run itself and those below it
	// Truncated is true where there are more runs than are counted: 100,000.
	Truncated bool `json:"truncated,omitempty"`
}

// PlacementBrief is where the run's live or last attempt was placed.
type PlacementBrief struct {
	Target string `json:"target,omitempty"`
	Worker string `json:"worker,omitempty"`
}

// WaitsFor says what a waiting run waits for.
type WaitsFor struct {
	On    string `json:"on"`             // children, gate, timer or input
	Name  string `json:"name,omitempty"` // of the signal, or id of the gate
	Until *Time  `json:"until,omitempty"`
	// Of children: the step that called them, how many they are, how many may fail, and how many must succeed, 0 for all.
	Step     string `json:"step,omitempty"`
	Size     int    `json:"size,omitempty"`
	Tolerate int    `json:"tolerate,omitempty"`
	Need     int    `json:"need,omitempty"`
}

// Attempt is one try.
type Attempt struct {
	ID        string `json:"id"`
	N         int    `json:"n"`
	Target    string `json:"target"`
	Worker    string `json:"worker,omitempty"`
	State     string `json:"state"` // assigned, running, succeeded, failed, parked, released, canceled, start-failed
	Class     string `json:"class,omitempty"`
	Code      string `json:"code,omitempty"`
	Message   string `json:"message,omitempty"`
	StartedAt *Time  `json:"startedAt,omitempty"`
	EndedAt   *Time  `json:"endedAt,omitempty"`
	Usage     *Usage `json:"usage,omitempty"`
}

// Usage is what an attempt consumed. USD is computed from the model's price unless given.
type Usage struct {
	InputTokens  int64   `json:"inputTokens,omitempty"`
	OutputTokens int64   `json:"outputTokens,omitempty"`
	USD          float64 `json:"usd,omitempty"`
	Model        string  `json:"model,omitempty"`
}

// List is a page of anything.
type List[T any] struct {
	Items         []T    `json:"items"`
	NextPageToken string `json:"nextPageToken,omitempty"`
}

// RunFilter selects runs in lists and bulk operations. Zero fields select all.
type RunFilter struct {
	Agent    string            `json:"agent,omitempty"`
	Workflow string            `json:"workflow,omitempty"`
	Job      string            `json:"job,omitempty"`
	State    []string          `json:"state,omitempty"` // any of
	Tenant   string            `json:"tenant,omitempty"`
	Parent   string            `json:"parent,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"` // all of
	Since    *Time             `json:"since,omitempty"`
	Until    *Time             `json:"until,omitempty"`
}

// BatchSubmit is the body of POST /v1/runs:batch.
type BatchSubmit struct {
	Runs []Submit `json:"runs"`
}

// BatchItem is the outcome of one item, in the order asked.
type BatchItem struct {
	Run *Run `json:"run,omitempty"`
	// Existed is true when the key was known and the run is the earlier one.
	Existed bool     `json:"existed,omitempty"`
	Error   *Problem `json:"error,omitempty"`
}

// Event is one entry of a run's history.
type Event struct {
	Seq     int64           `json:"seq"`
	Type    string          `json:"type"`
	At      Time            `json:"at"`
	State   string          `json:"state"` // after it
	Attempt int             `json:"attempt,omitempty"`
	Actor   string          `json:"actor,omitempty"`
	Target  string          `json:"target,omitempty"`
	Worker  string          `json:"worker,omitempty"`
	Stage   string          `json:"stage,omitempty"` // of a workflow: the one that began or ended
	Reason  string          `json:"reason,omitempty"`
	Class   string          `json:"class,omitempty"`
	Code    string          `json:"code,omitempty"`
	Message string          `json:"message,omitempty"`
	Due     *Time           `json:"due,omitempty"`
	Detail  json.RawMessage `json:"detail,omitempty"`
}

// TreeNode is a run with its descendants.
type TreeNode struct {
	Run      Run        `json:"run"`
	Children []TreeNode `json:"children,omitempty"`
	// More is true where the tree was cut at its limit of 1,000 runs.
	More bool `json:"more,omitempty"`
}

// LogLine is one line of an attempt's log.
type LogLine struct {
	At      Time   `json:"at"`
	Attempt int    `json:"attempt"`
	Stream  string `json:"stream"` // stderr, stdout or agent
	Text    string `json:"text"`
}

// Receipt is the record of an external effect.
type Receipt struct {
	ID          string          `json:"id"`
	Tenant      string          `json:"tenant"`
	Run         string          `json:"run"`
	Unit        string          `json:"unit"`
	Step        string          `json:"step,omitempty"`
	Effect      string          `json:"effect"`
	State       string          `json:"state"` // intent, done, unknown, abandoned, compensated
	Attempt     int             `json:"attempt"`
	OnUnknown   string          `json:"onUnknown"`
	BegunAt     Time            `json:"begunAt"`
	Until       *Time           `json:"until,omitempty"`
	DoneAt      *Time           `json:"doneAt,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"`
	ResolvedBy  string          `json:"resolvedBy,omitempty"`
	RequestHash string          `json:"requestHash,omitempty"`
	// Compensable: an end without success of the run undoes it. Undoes is the receipt that this effect undoes.
	Compensable bool   `json:"compensable,omitempty"`
	Undoes      string `json:"undoes,omitempty"`
	// UndoFailed: it was to be undone and could not be; people are asked whether to try again, or have given it up.
	UndoFailed bool `json:"undoFailed,omitempty"`
}

// States in which receipts are listed over all runs: what people must look at.
const (
	ReceiptsUnknown    = "unknown"    // nobody knows whether the effect happened
	ReceiptsUndoFailed = "undoFailed" // the effect happened, was to be undone, and could not be
)

// Resolve is the body of POST /v1/receipts/{id}:resolve.
type Resolve struct {
	Happened *bool           `json:"happened"`
	Result   json.RawMessage `json:"result,omitempty"`
}

// Cancel is the body of POST /v1/runs/{id}:cancel.
type Cancel struct {
	Reason string    `json:"reason,omitempty"`
	Grace  *Duration `json:"grace,omitempty"` // 10s when absent
	DryRun bool      `json:"dryRun,omitempty"`
}

// CancelPreview is the answer to a dry run of cancel.
type CancelPreview struct {
	Run       Run       `json:"run"`
	Committed []Receipt `json:"committed"` // effects that happened
	Unknown   []Receipt `json:"unknown"`   // effects of which nobody knows
	Children  []Run     `json:"children"`  // runs that end with it
	// Compensations are what would be undone, in this order.
	Compensations []Compensation `json:"compensations"`
	Spend         Cost           `json:"spend"`
	// Truncated: there are more than 1,000 runs below it, and not all were looked at.
	Truncated bool `json:"truncated,omitempty"`
}

// Compensation is something that is undone when a run ends without success: an effect, or a stage of a workflow.
type Compensation struct {
	Run     string `json:"run"`
	Agent   string `json:"agent"`             // that undoes it
	Stage   string `json:"stage,omitempty"`   // of a workflow
	Step    string `json:"step,omitempty"`    // of the effect
	Effect  string `json:"effect,omitempty"`  // as it was performed
	Receipt string `json:"receipt,omitempty"` // of the effect
	State   string `json:"state,omitempty"`   // of the receipt: done; unknown or intent is found out first
}

// Audit is a run's whole story in one document. The page after the first has the events that follow, alone.
type Audit struct {
	Run      Run       `json:"run"` // with input and output
	Attempts []Attempt `json:"attempts"`
	// Decisions are where its attempts were placed, and why.
	Decisions []AuditDecision `json:"decisions"`
	Approvals []Gate          `json:"approvals"` // what people were asked, and said
	// Events are the history: decisions of the control plane and of people, each with its actor.
	Events   []Event   `json:"events"`
	Receipts []Receipt `json:"receipts"` // effects, and what was undone
	Children []Run     `json:"children"` // all below it
	// Spend is that of the run and of all below it, as in Run.Family, which says of how many.
	Spend Cost `json:"spend"`
	// Truncated is true where there are more than 1,000 runs below it, or more than 2,000 effects.
	Truncated     bool   `json:"truncated,omitempty"`
	NextPageToken string `json:"nextPageToken,omitempty"` // of more events
}

// AuditDecision is a placement.
type AuditDecision struct {
	At      Time   `json:"at"`
	Attempt int    `json:"attempt"`
	Target  string `json:"target"`
	Worker  string `json:"worker,omitempty"`
	Why     string `json:"why,omitempty"`
}

// Retry is the body of POST /v1/runs/{id}:retry.
type Retry struct {
	From  string          `json:"from,omitempty"`  // stage of a workflow, STAGE or STAGE#VISIT; the outcomes before it are kept
	Input json.RawMessage `json:"input,omitempty"` // of the run, or with From of that stage
	// Key makes it idempotent for the run that is retried: the same key and body give the same new run.
	Key string `json:"key,omitempty"`
}

// SignalBody is the body of POST /v1/runs/{id}:signal.
type SignalBody struct {
	Name    string          `json:"name"`
	Payload json.RawMessage `json:"payload,omitempty"`
	Key     string          `json:"key,omitempty"` // delivered once per key
}

// Score is the body of POST /v1/runs/{id}:score.
type Score struct {
	Score   float64 `json:"score"` // 0..1
	By      string  `json:"by,omitempty"`
	Comment string  `json:"comment,omitempty"`
}

// Bulk is the body of POST /v1/runs:cancel and /v1/runs:retry.
type Bulk struct {
	Filter RunFilter `json:"filter"`
	Reason string    `json:"reason,omitempty"`
	DryRun bool      `json:"dryRun,omitempty"`
}

// BulkResult says what a bulk operation did, or in a dry run would do.
type BulkResult struct {
	Matched int        `json:"matched"`
	Done    int        `json:"done"`
	IDs     []string   `json:"ids"`              // the first 1,000
	Errors  []*Problem `json:"errors,omitempty"` // the first 100
}

// Placement answers "where, why, why not, and why is it waiting".
type Placement struct {
	Run   string `json:"run"`
	State string `json:"state"`
	// Chosen is the target of the live or last decision, "" if none was made.
	Chosen     string      `json:"chosen,omitempty"`
	Worker     string      `json:"worker,omitempty"`
	DecidedAt  *Time       `json:"decidedAt,omitempty"`
	Candidates []Candidate `json:"candidates"` // every target as it stands now, best first
	// Stored is the decision as it was taken, in its short form.
	Stored *StoredDecision `json:"stored,omitempty"`
	// Queue is there while the run waits.
	Queue *QueuePosition `json:"queue,omitempty"`
	// Asks is there while only people can say how it goes on: a run that is being undone may wait for them by those that
	// undo it. Ten at most.
	Asks []Ask `json:"asks,omitempty"`
	// Story is all of this in sentences, one a line, for people.
	Story []string `json:"story"`
}

// Ask is a question to people, about a receipt or at a gate.
type Ask struct {
	Run      string   `json:"run"`   // that asked: the run itself, or one below it that undoes what it did
	Owner    string   `json:"owner"` // who is asked: user:NAME, group:NAME or role:NAME; several with commas
	Receipt  string   `json:"receipt,omitempty"`
	Effect   string   `json:"effect,omitempty"`   // of the receipt: whether it happened is unknown
	EffectOf string   `json:"effectOf,omitempty"` // the run that performed it
	Gate     string   `json:"gate,omitempty"`
	Title    string   `json:"title,omitempty"` // of the gate
	Commands []string `json:"commands"`        // one answers it
}

// Candidate is one target in a decision.
type Candidate struct {
	Target   string    `json:"target"`
	Worker   string    `json:"worker,omitempty"`
	Feasible bool      `json:"feasible"`
	Score    int       `json:"score,omitempty"`
	Scores   []Scored  `json:"scores,omitempty"`
	Refusals []Refusal `json:"refusals,omitempty"`
}

// Scored is one scorer's part of a score.
type Scored struct {
	Scorer string `json:"scorer"`
	Score  int    `json:"score"`
	Weight int    `json:"weight"`
}

// Refusal is why a target was refused.
type Refusal struct {
	Filter  string `json:"filter"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Final   bool   `json:"final,omitempty"`
}

// StoredDecision is a decision as it is kept with the run.
type StoredDecision struct {
	Chosen   string           `json:"chosen,omitempty"`
	Best     []ScoredTarget   `json:"best,omitempty"` // five at most
	Refused  []RefusedTargets `json:"refused,omitempty"`
	Examined int              `json:"examined"`
}

// ScoredTarget is a target with its score.
type ScoredTarget struct {
	Target string `json:"target"`
	Score  int    `json:"score"`
}

// RefusedTargets counts refusals by reason.
type RefusedTargets struct {
	Reason string   `json:"reason"`
	Count  int      `json:"count"`
	Names  []string `json:"names"` // three at most
}

// QueuePosition says what stands before a waiting run.
type QueuePosition struct {
	Position int `json:"position"` // 1 is next among its tenant's runs
	Ahead    int `json:"ahead"`    // its tenant's runs before it
	// Total is the length of the whole queue.
	Total int `json:"total"`
	// Limit is what binds: a slot, a quota, a pause, a time, or a target that is missing.
	Limit string `json:"limit"`
	// NextLook is when it is looked at again even if nothing changes.
	NextLook *Time `json:"nextLook,omitempty"`
	// Estimate is when it is likely to start, from the rate at which slots came free lately.
	Estimate *Time `json:"estimate,omitempty"`
}
