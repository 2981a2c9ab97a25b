package server

import (
	"context"
	"encoding/json"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Plane is what the doors ask of the control plane. *control.Plane is one. Safe for concurrent use. Expected refusals
// are *control.Refusal; reports of stale attempts wrap run.ErrFenced.
type Plane interface {
	Ready() error
	Health() (leader bool, epoch int64)
	// Elsewhere is the URL of the process that leads, where that is another one and can be reached; "" otherwise.
	Elsewhere() string
	Stats(window time.Duration, agent, tenant string) control.Stats

	runPlane
	fleetPlane
	triggerPlane
	workerPlane
	gatePlane
	statePlane
}

type gatePlane interface {
	Gate(ctx context.Context, id string) (*run.Gate, error)
	GatesOf(ctx context.Context, runID string) ([]*run.Gate, error)
	Gates(ctx context.Context, f control.GateFilter, limit int, pageToken string) (gates []*run.Gate, next string, err error)
	// DecideGates takes decisions, each for itself; outcomes are in order.
	DecideGates(ctx context.Context, votes []control.GateVote) []control.GateOutcome
	// RequestGate keeps an attempt's question until it parks on it.
	RequestGate(ctx context.Context, runID string, n int, step string, ask run.GateAsk) (*run.Gate, runtime.Result, error)
}

type statePlane interface {
	// StateValue returns a document of shared state with its value.
	StateValue(ctx context.Context, tenant, key string) (control.StateDoc, json.RawMessage, error)
	ListState(ctx context.Context, tenant, prefix string, limit int, pageToken string) (docs []control.StateDoc, next string, err error)
	PutState(ctx context.Context, w control.StateWrite) (control.StateDoc, error)
	DeleteState(ctx context.Context, w control.StateWrite) error
}

type runPlane interface {
	Submit(ctx context.Context, asked []control.Submission) []control.Submitted
	Get(ctx context.Context, id string) (*run.Record, error)
	// Await returns the run once it is over, or as it is after the timeout.
	Await(ctx context.Context, id string, timeout time.Duration) (*run.Record, error)
	List(ctx context.Context, f control.Filter, limit int, pageToken string) (control.RunPage, error)
	History(ctx context.Context, id string, afterSeq int64, limit int) ([]control.HistoryEvent, error)
	// Follow signals after changes of one run, whichever process made them, until the returned function is called.
	Follow(id string) (<-chan struct{}, func())
	// Watch tells every change in this process until the returned function is called; a watcher that falls behind
	// finds the channel closed.
	Watch(ctx context.Context, buffer int) (<-chan control.Change, func())
	Value(ctx context.Context, v run.Payload) (json.RawMessage, error)
	Attempts(ctx context.Context, id string) ([]run.Attempt, error)
	// Spend sums up what a run and all below it have cost.
	Spend(ctx context.Context, id string) (control.FamilySpend, error)
	Tree(ctx context.Context, id string) (control.TreeNode, error)
	// Logs returns lines after a position, "" for the first; next is the position after the last of them, also when
	// there are no more lines yet.
	Logs(ctx context.Context, id, after string, limit int) (lines []runtime.LogLine, next string, err error)
	Explain(ctx context.Context, id, target string) (control.Explanation, error)

	Cancel(ctx context.Context, id string, q control.CancelRequest) (*run.Record, error)
	PreviewCancel(ctx context.Context, id string) (control.CancelPreview, error)
	Retry(ctx context.Context, id string, input json.RawMessage, actor string) (*run.Record, error)
	RetryFrom(ctx context.Context, id string, q control.RetryRequest) control.Submitted
	Suspend(ctx context.Context, id, actor string) (*run.Record, error)
	Resume(ctx context.Context, id, actor string) (*run.Record, error)
	Signal(ctx context.Context, id, name, key string, payload json.RawMessage, actor string) (*run.Record, error)
	Score(ctx context.Context, id string, score float64, by, comment string) (*run.Record, error)

	Receipts(ctx context.Context, runID string) ([]run.Receipt, error)
	UnknownReceipts(ctx context.Context, limit int, pageToken string) (receipts []run.Receipt, next string, err error)
	UndoFailedReceipts(ctx context.Context, limit int, pageToken string) (receipts []run.Receipt, next string, err error)
	Receipt(ctx context.Context, id string) (run.Receipt, error)
	Resolve(ctx context.Context, id string, happened bool, result json.RawMessage, by string) (run.Receipt, error)
}

type fleetPlane interface {
	Apply(ctx context.Context, objects []fleet.Object, o control.ApplyOptions) ([]control.Applied, error)
	Declared(ctx context.Context, kind string) ([]control.Declared, error)
	DeclaredOne(ctx context.Context, kind, name string) (control.Declared, error)
	// Delete removes a declaration of exactly the revision; 0 is any.
	Delete(ctx context.Context, kind, name string, revision int64, actor string) error
	PauseAgent(ctx context.Context, name string, paused bool, actor string) error
}

type triggerPlane interface {
	TakeMessage(ctx context.Context, a control.Arrived) (control.Taken, error)
	HookAt(ctx context.Context, path string) (control.Hook, error)
	RecordDeadLetter(ctx context.Context, l control.DeadLetter) (letter control.DeadLetter, existed bool, err error)
	DeadLetters(ctx context.Context, limit int, pageToken string) (letters []control.DeadLetter, next string, err error)
	DeadLetter(ctx context.Context, id string) (control.DeadLetter, error)
	ReplayDeadLetter(ctx context.Context, id, through, actor string) (control.Submitted, error)
}

type workerPlane interface {
	Begin(ctx context.Context, b control.Beginning) (control.Begun, error)
	Claim(ctx context.Context, c control.Claim) (runtime.Assignment, error)
	Undelivered(ctx context.Context, attempt, ticket, why string) error
	// Tick looks at what is due and reports whether this process leads.
	Tick(ctx context.Context) bool
	Lease(ctx context.Context, q control.LeaseRequest) (control.LeaseResponse, error)
	Beat(ctx context.Context, b control.WorkerBeat) (control.WorkerStanding, error)
	// Verify returns what an attempt's token allows, or an error that does not repeat the token.
	Verify(token string) (control.Grant, error)
	Children(ctx context.Context, c control.ChildCalls) ([]control.Child, error)
	ChildrenOf(ctx context.Context, id string, n int, step, pageToken string, limit int) (control.ChildPage, error)
	Report(ctx context.Context, reports []runtime.Report) []runtime.Result
	BeginEffect(ctx context.Context, b control.EffectBegin) (control.EffectAnswer, error)
	EndEffect(ctx context.Context, e control.EffectEnd) (runtime.Result, error)
}
