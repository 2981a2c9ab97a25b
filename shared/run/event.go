package run

import "encoding/json"

// EventType names what happened, in the past tense.
type EventType string

const (
	EvSubmitted       EventType = "submitted"
	EvHeld            EventType = "held"
	EvUnschedulable   EventType = "unschedulable"
	EvRequeued        EventType = "requeued"
	EvAssigned        EventType = "assigned"
	EvStartFailed     EventType = "startFailed"
	EvStarted         EventType = "started"
	EvStopRequested   EventType = "stopRequested"
	EvReleased        EventType = "released"
	EvParked          EventType = "parked"
	EvWoken           EventType = "woken"
	EvSignaled        EventType = "signaled"
	EvBackedOff       EventType = "backedOff"
	EvSucceeded       EventType = "succeeded"
	EvFailed          EventType = "failed"
	EvCancelRequested EventType = "cancelRequested"
	EvCompensating    EventType = "compensating"
	EvCanceled        EventType = "canceled"
	EvSuspended       EventType = "suspended"
	EvResumed         EventType = "resumed"
	EvScored          EventType = "scored"
	EvBegan           EventType = "began"
	EvAdvanced        EventType = "advanced"
	EvActed           EventType = "acted"
	EvGateChanged     EventType = "gateChanged"
	EvDeadlineMoved   EventType = "deadlineMoved"
)

// Event is one entry of a run's history. Fields that a type does not use are empty; the transition table says which
// type does what.
type Event struct {
	Seq     int64 // 1 for the first; the record's version after it
	Type    EventType
	At      Instant
	Attempt int // fencing number it speaks of; 0 for none
	Actor   string

	Target  string
	Worker  string
	Stage   string // of a workflow
	Node    string // see Attempt.Node
	Reason  Reason
	Class   Class
	Code    string
	Message string
	Due     Instant // see Record.Due

	Detail json.RawMessage // decision or diagnosis
	Output *Payload
	Usage  *Usage
	Park   *Park
	Signal *Signal // arrived (signaled) or taken (woken)
	Score  *float64
	// ForPeople is in which time of a wait for others that ends, or is reckoned, the run waited for people alone. Deadline
	// is to when its deadline moves for that: 0 where waiting counts.
	ForPeople Spans
	Deadline  Instant
	// Unspent gives the attempt back: it does not count against the retry policy.
	Unspent bool
	// Sure: the executor vouches that nothing of the attempt can act any more.
	Sure bool
}
