package run

// State is where a run is in its life. A run is in exactly one.
type State string

const (
	Queued        State = "queued"        // eligible, waiting for a slot
	Held          State = "held"          // not eligible yet: a quota, a budget, a pause, a start time
	Unschedulable State = "unschedulable" // no target could take it even when empty
	Assigned      State = "assigned"      // placed durably, its start not confirmed
	Running       State = "running"       // an attempt confirmed its start
	Waiting       State = "waiting"       // parked: holds no slot and no attempt
	Backoff       State = "backoff"       // waits for its next attempt
	Suspended     State = "suspended"     // stopped by a person until resumed
	Canceling     State = "canceling"     // told to stop, the end not confirmed
	Compensating  State = "compensating"  // undoing committed effects
	Succeeded     State = "succeeded"
	Failed        State = "failed"
	Canceled      State = "canceled"
)

// States lists every state in the order in which people meet them.
var States = []State{
	Queued, Held, Unschedulable, Assigned, Running, Waiting, Backoff, Suspended, Canceling, Compensating,
	Succeeded, Failed, Canceled,
}

// Terminal reports whether the state has no exit.
func (s State) Terminal() bool { return s == Succeeded || s == Failed || s == Canceled }

// Valid reports whether s is one of States.
func (s State) Valid() bool {
	for _, known := range States {
		if s == known {
			return true
		}
	}
	return false
}

// Reason is why a run ended, or why it is where it is. The set is closed.
type Reason string

const (
	InputInvalid          Reason = "InputInvalid"
	OutputInvalid         Reason = "OutputInvalid"
	PermissionDenied      Reason = "PermissionDenied"
	BudgetExceeded        Reason = "BudgetExceeded"
	NoEligibleTarget      Reason = "NoEligibleTarget"
	QueueTimeout          Reason = "QueueTimeout"
	DeadlineExceeded      Reason = "DeadlineExceeded"
	AttemptTimeout        Reason = "AttemptTimeout"
	HeartbeatLost         Reason = "HeartbeatLost"
	CompensationFailed    Reason = "CompensationFailed"
	BackoffLimitExceeded  Reason = "BackoffLimitExceeded"
	MaxFailedIndexes      Reason = "MaxFailedIndexesExceeded"
	AgentError            Reason = "AgentError"
	NonRetryable          Reason = "NonRetryable"
	OutcomeUnknown        Reason = "OutcomeUnknown"
	Rejected              Reason = "Rejected"
	GateExpired           Reason = "GateExpired"
	CanceledByRequest     Reason = "Canceled"
	ParentEnded           Reason = "ParentEnded"
	RouteUnmatched        Reason = "RouteUnmatched"
	LoopLimit             Reason = "LoopLimit"
	Quarantined           Reason = "Quarantined"
	Shed                  Reason = "Shed"
	StartFailed           Reason = "StartFailed"
	ResultTooLarge        Reason = "ResultTooLarge"
	QuotaReached          Reason = "QuotaReached"          // held: the tenant's quota of running runs
	ConcurrencyReached    Reason = "ConcurrencyReached"    // held: the agent's own limit
	AgentPaused           Reason = "AgentPaused"           // held: a person paused the agent
	NotBefore             Reason = "NotBefore"             // held: its start time has not come
	SuspendedByRequest    Reason = "Suspended"             // suspended by a person
	ReturnLimit           Reason = "ReturnLimitExceeded"   // too many attempts given back: see MaxReturned
	AgentDeleted          Reason = "AgentDeleted"          // the agent's declaration is gone
	Throttled             Reason = "Throttled"             // backoff: a model or service asked to slow down
	InfrastructureFailure Reason = "InfrastructureFailure" // backoff: the platform failed the attempt
)

// Reasons is the closed set.
var Reasons = []Reason{
	InputInvalid, OutputInvalid, PermissionDenied, BudgetExceeded, NoEligibleTarget, QueueTimeout, DeadlineExceeded,
	AttemptTimeout, HeartbeatLost, CompensationFailed, BackoffLimitExceeded, MaxFailedIndexes, AgentError, NonRetryable,
	OutcomeUnknown, Rejected, GateExpired, CanceledByRequest, ParentEnded, RouteUnmatched, LoopLimit, Quarantined, Shed,
	StartFailed, ResultTooLarge, QuotaReached, ConcurrencyReached, AgentPaused, NotBefore, SuspendedByRequest,
	ReturnLimit, AgentDeleted, Throttled, InfrastructureFailure,
}

// Class is the kind of an attempt's failure. Retry policy maps classes to actions.
type Class string

const (
	ClassUser           Class = "user"           // the agent said so
	ClassInfrastructure Class = "infrastructure" // the platform's doing; not counted as spent
	ClassThrottled      Class = "throttled"      // a model or service asked to slow down; not counted as spent
	ClassTimeout        Class = "timeout"
	ClassLost           Class = "lost" // its worker vanished
	ClassCanceled       Class = "canceled"
	ClassBudget         Class = "budget"
)

// Classes is the closed set.
var Classes = []Class{ClassUser, ClassInfrastructure, ClassThrottled, ClassTimeout, ClassLost, ClassCanceled, ClassBudget}

// Valid reports whether c is one of Classes.
func (c Class) Valid() bool {
	for _, known := range Classes {
		if c == known {
			return true
		}
	}
	return false
}
