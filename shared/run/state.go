package run

import "slices"

// State is where a run is in its life. A run is in exactly one.
type State string

const (
	Queued        State = "queued"        // eligible, waiting for a slot
	Held          State = "held"          // not eligible yet: a quota, a budget, a pause, a start time
	Unschedulable State = "unschedulable" // no target could take it even when empty
	Assigned      State = "assigned"      // placed durably, its start not confirmed
	Running       State = "running"       // an attempt confirmed its start
	Waiting       State = "waiting"       // parked: holds no slot and no attempt
	Backoff       State = "backoff"       // an attempt failed, the next is due later
	Suspended     State = "suspended"     // stopped by a person until resumed
	Canceling     State = "canceling"     // told to stop, the end not confirmed
	Compensating  State = "compensating"  // undoing committed effects
	Succeeded     State = "succeeded"     // done, with an output
	Failed        State = "failed"        // over, with a reason
	Canceled      State = "canceled"      // ended on request
)

// States lists every state in the order in which people meet them.
var States = []State{
	Queued, Held, Unschedulable, Assigned, Running, Waiting, Backoff, Suspended, Canceling, Compensating,
	Succeeded, Failed, Canceled,
}

// Terminal reports whether the state has no exit.
func (s State) Terminal() bool { return s == Succeeded || s == Failed || s == Canceled }

// Valid reports whether s is one of States.
func (s State) Valid() bool { return slices.Contains(States, s) }

// Reason is why a run ended, or why it is where it is. The set is closed.
type Reason string

const (
	InputInvalid          Reason = "InputInvalid"             // the input does not fit the agent's schema
	OutputInvalid         Reason = "OutputInvalid"            // the output does not fit the agent's schema
	PermissionDenied      Reason = "PermissionDenied"         // the run asked for what its agent may not do
	BudgetExceeded        Reason = "BudgetExceeded"           // the budget of money or tokens is used up
	NoEligibleTarget      Reason = "NoEligibleTarget"         // unschedulable: no target could take it even when empty
	QueueTimeout          Reason = "QueueTimeout"             // it was not started within its time in the queue
	DeadlineExceeded      Reason = "DeadlineExceeded"         // the run's time is over, or the next attempt would be due after it
	AttemptTimeout        Reason = "AttemptTimeout"           // an attempt took longer than it may
	HeartbeatLost         Reason = "HeartbeatLost"            // the worker vanished, or the handler was silent for too long
	CompensationFailed    Reason = "CompensationFailed"       // committed effects could not be undone
	BackoffLimitExceeded  Reason = "BackoffLimitExceeded"     // every attempt that the policy gives has failed
	MaxFailedIndexes      Reason = "MaxFailedIndexesExceeded" // more indexes of a job failed than it allows
	AgentError            Reason = "AgentError"               // the agent reported an error
	NonRetryable          Reason = "NonRetryable"             // the agent or a rule of the policy said not to try again
	OutcomeUnknown        Reason = "OutcomeUnknown"           // nobody knows whether an effect happened, and the policy is to fail
	Rejected              Reason = "Rejected"                 // a person said no at a gate
	GateExpired           Reason = "GateExpired"              // nobody answered a gate in time
	CanceledByRequest     Reason = "Canceled"                 // a person or a program ended it
	ParentEnded           Reason = "ParentEnded"              // the run that started it is over
	RouteUnmatched        Reason = "RouteUnmatched"           // a router's answer fits no branch
	LoopLimit             Reason = "LoopLimit"                // a loop did not end within its rounds
	Quarantined           Reason = "Quarantined"              // the agent's quality fell, and its runs are kept apart
	Shed                  Reason = "Shed"                     // refused at the door, or dropped, because capacity is saturated
	StartFailed           Reason = "StartFailed"              // the target could not start the attempt
	ResultTooLarge        Reason = "ResultTooLarge"           // the output is over the limit
	QuotaReached          Reason = "QuotaReached"             // the tenant's quota of runs is used
	ConcurrencyReached    Reason = "ConcurrencyReached"       // held: the agent's own limit
	AgentPaused           Reason = "AgentPaused"              // held: a person paused the agent
	NotBefore             Reason = "NotBefore"                // held: its start time has not come
	SuspendedByRequest    Reason = "Suspended"                // suspended by a person
	ReturnLimit           Reason = "ReturnLimitExceeded"      // more attempts were given back than a run may have
	AgentDeleted          Reason = "AgentDeleted"             // the agent's declaration is gone
	Throttled             Reason = "Throttled"                // backoff: a model or service asked to slow down
	InfrastructureFailure Reason = "InfrastructureFailure"    // backoff: the platform failed the attempt
)

// Reasons is the closed set.
var Reasons = []Reason{
	InputInvalid, OutputInvalid, PermissionDenied, BudgetExceeded, NoEligibleTarget, QueueTimeout, DeadlineExceeded,
	AttemptTimeout, HeartbeatLost, CompensationFailed, BackoffLimitExceeded, MaxFailedIndexes, AgentError, NonRetryable,
	OutcomeUnknown, Rejected, GateExpired, CanceledByRequest, ParentEnded, RouteUnmatched, LoopLimit, Quarantined, Shed,
	StartFailed, ResultTooLarge, QuotaReached, ConcurrencyReached, AgentPaused, NotBefore, SuspendedByRequest,
	ReturnLimit, AgentDeleted, Throttled, InfrastructureFailure,
}

// Valid reports whether r is one of Reasons.
func (r Reason) Valid() bool { return slices.Contains(Reasons, r) }

// Class is the kind of an attempt's failure. Retry policy maps classes to actions.
type Class string

const (
	ClassUser           Class = "user"           // the agent said so
	ClassInfrastructure Class = "infrastructure" // the platform's doing; not counted as spent
	ClassThrottled      Class = "throttled"      // a model or service asked to slow down; not counted as spent
	ClassTimeout        Class = "timeout"        // it took longer than it may
	ClassLost           Class = "lost"           // its worker vanished, or its handler fell silent
	ClassCanceled       Class = "canceled"       // it was told to end
	ClassBudget         Class = "budget"         // the budget was used up
)

// Classes is the closed set.
var Classes = []Class{ClassUser, ClassInfrastructure, ClassThrottled, ClassTimeout, ClassLost, ClassCanceled, ClassBudget}

// Valid reports whether c is one of Classes.
func (c Class) Valid() bool { return slices.Contains(Classes, c) }
