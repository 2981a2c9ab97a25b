// Package runtime is the port to whatever executes attempts, and the runtime protocol as values.
//
// A runtime is told to start an attempt whose assignment is already durable, and to stop it. What happens to the
// attempt comes back as [Report] values through a [Reporter], which the control plane implements; each carries the
// attempt's number, and one that no longer holds its run is answered with ErrFenced and changes nothing. Workers that
// pull their own leases send the same reports over HTTP.
//
// Drivers live below this folder (local) and pass the suite in runtimetest. Imports: run, fleet, standard library.
package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Assignment is one attempt as its executor sees it.
type Assignment struct {
	Run    string // id of the run
	N      int    // the attempt's fencing number
	Agent  *fleet.Agent
	Target *fleet.Target
	Worker string // of a polled target; "" lets the runtime choose
	Tenant string
	Unit   string // key of the unit of work: the same for every attempt and retry
	Mode   string // ModeRun or ModeCompensate
	Input  json.RawMessage
	Token  string // bearer token of this attempt
	// Ticket lets an executor that is told of the attempt by a message, or by the overrides of a job, claim it once; the
	// claim answers with the rest. It is there for such targets only, and then Input, Token, State and Steps are not.
	Ticket  string
	Labels  map[string]string
	Trace   string // W3C traceparent
	Session string
	State   json.RawMessage // of the session, as its last turn left it
	Steps   []Step          // recorded by earlier attempts, in order
	// Receipts are the effects of the run that an attempt of mode compensate undoes, newest first; Input and Steps are
	// that run's.
	Receipts []Receipt
	// Deadline is when the attempt must have ended.
	Deadline run.Instant
	// Silence is the longest that the handler may be silent; 0 for no limit.
	Silence     time.Duration
	Index       *int // completion index of a job
	Completions *int
}

// Modes of an attempt.
const (
	ModeRun        = "run"              // executes the handler
	ModeCompensate = run.ModeCompensate // undoes the effects of a run that ended without success
)

// Receipt is an effect as whoever undoes it sees it.
type Receipt struct {
	ID          string          `json:"id"`
	Step        string          `json:"step,omitempty"`
	Effect      string          `json:"effect"`
	Key         string          `json:"key"`   // idempotency key under which it was performed
	State       string          `json:"state"` // done, unknown, or compensated: undone already
	Compensable bool            `json:"compensable,omitempty"`
	Undo        string          `json:"undo,omitempty"` // name of the effect, in the same step, that undoes it
	Result      json.RawMessage `json:"result,omitempty"`
	// Omitted: there is a result, and it was too much to hand over; to begin the effect answers with it.
	Omitted bool `json:"omitted,omitempty"`
}

// ID is the attempt's id: the run's id, a dot, the number.
func (a *Assignment) ID() string { return AttemptID(a.Run, a.N) }

// AttemptID forms an attempt's id.
func AttemptID(runID string, n int) string { return runID + "." + strconv.Itoa(n) }

// ParseAttemptID takes an attempt's id apart.
func ParseAttemptID(id string) (runID string, n int, err error) {
	runID, number, ok := strings.Cut(id, ".")
	n, convErr := strconv.Atoi(number)
	if !ok || runID == "" || convErr != nil || n < 1 || strconv.Itoa(n) != number {
		return "", 0, fmt.Errorf("attempt id %.60q: want RUN.NUMBER", id)
	}
	return runID, n, nil
}

// Step is a durable step that ended.
type Step struct {
	Name   string          `json:"n"`
	Seq    int             `json:"q"`
	Result json.RawMessage `json:"r,omitempty"`
	Error  json.RawMessage `json:"e,omitempty"` // the wire's AgentError
}

// Limits on what an attempt may report.
const (
	MaxStepResult = 1 << 20 // bytes
	MaxSteps      = 10_000  // per run
	MaxLogBytes   = 1 << 20 // of log text kept per run; more is counted and dropped
	MaxLogLine    = 8 << 10
	MaxName       = 200 // bytes in the name of a step, effect, signal or session
	MaxResult     = run.MaxPayload
)

// ReportType says what a Report tells.
type ReportType string

// The reports.
const (
	Started   ReportType = "start"
	Beat      ReportType = "heartbeat"
	Completed ReportType = "complete"
	Failed    ReportType = "fail"
	Released  ReportType = "release"
	Parked    ReportType = "park"
	StepDone  ReportType = "step"
	Used      ReportType = "usage"
	Progress  ReportType = "progress"
	Logged    ReportType = "logs"
)

// Call asks for a child of the run.
type Call struct {
	Agent    string          `json:"agent,omitempty"` // it or Workflow
	Workflow string          `json:"workflow,omitempty"`
	Input    json.RawMessage `json:"input,omitempty"`
}

// Report is what an executor says of its attempt. Fields follow the type.
type Report struct {
	Type   ReportType
	Run    string
	N      int
	Worker string

	Output   json.RawMessage // complete
	Usage    *run.Usage      // complete, fail, park, release: the attempt's total; usage: an increment
	Score    *float64        // complete
	Session  json.RawMessage // complete, park: state of the session after this turn
	Class    run.Class       // fail
	Code     string          // fail
	Message  string          // fail, release
	Final    bool            // fail: the agent says that retrying is useless
	RetryIn  time.Duration   // fail: the agent or a server asked for this wait
	Park     *run.Park       // park
	Calls    []Call          // park on children: those that are called with it
	Max      int             // how many of them execute at a time; 0 for any number
	Gate     *run.GateAsk    // park on a gate: the question; nil where it was requested before
	Step     *Step           // step
	Fraction float64         // progress, 0..1
	Logs     []LogLine       // logs
	// Ended is set by an executor that knows the attempt's process to be gone, so that nothing of it can act any more.
	Ended bool
}

// LogLine is one line of an attempt's log.
type LogLine struct {
	At     run.Instant `json:"at"`
	N      int         `json:"n,omitempty"` // attempt
	Stream string      `json:"s"`           // stderr, stdout or agent
	Text   string      `json:"t"`
}

// Result answers a Report.
type Result struct {
	Deadline run.Instant
	// Cancel tells the attempt to end; CancelReason is a run.Reason.
	Cancel       bool
	CancelReason run.Reason
	// Resumed: a park found what it waits for; the run goes back to the queue.
	Resumed bool
	// Err wraps run.ErrFenced for a stale attempt, *run.StateError, ErrInvalid, or is an outage of the store.
	Err error
}

// ErrInvalid is wrapped by errors that say what is wrong with a report.
var ErrInvalid = errors.New("invalid report")

// Reporter takes reports. Safe for concurrent use; it returns when the reports that change the run are durable.
type Reporter interface {
	Report(ctx context.Context, reports []Report) []Result
}

// ErrRefused is wrapped by Start when the attempt has certainly not begun and never will: the run is queued again and
// the attempt given back. Any other error of Start leaves it unknown whether the attempt began.
var ErrRefused = errors.New("start refused")

// Runtime executes attempts. Safe for concurrent use.
type Runtime interface {
	// Start begins an attempt and returns without waiting for its end. Starting one that is under way does nothing.
	// For agents that pull leases it makes sure that a worker will come.
	Start(ctx context.Context, a Assignment) error
	// Stop tells an attempt to end: ask, wait for grace, then kill. It returns at once; the end is reported through
	// the Reporter with Ended set. Stopping what is not there does nothing.
	Stop(ctx context.Context, runID string, n int, reason run.Reason, grace time.Duration)
	// Ended tells that an attempt is over for the control plane, whoever said so: a runtime that still executes it ends
	// it without a report. Ending what is not there does nothing.
	Ended(runID string, n int)
	// Lost tells that a worker was silent for its lease. A runtime that started it kills its process, reports what the
	// worker held as it does for any process that ends, and answers true; to others the worker is unknown.
	Lost(worker string) bool
	// Forget ends whatever the runtime keeps warm for an agent that is gone or replaced, once it is idle.
	Forget(agent string)
	// Close stops everything: attempts that can are handed back (released), the rest is killed after grace.
	Close(ctx context.Context, grace time.Duration) error
}

// Held names an attempt that a worker has taken.
type Held struct {
	Run string
	N   int
}
