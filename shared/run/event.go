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
)

// Event is one entry of a run's history. Fields that a type does not use are empty; the transition table says which
// type does what.
type Event struct {
	Seq     int64     `json:"n"` // 1 for the first; the record's version after it
	Type    EventType `json:"t"`
	At      Instant   `json:"at"`
	Attempt int       `json:"a,omitempty"` // fencing number it speaks of; 0 for none
	Actor   string    `json:"by,omitempty"`

	Target  string  `json:"tg,omitempty"`
	Worker  string  `json:"w,omitempty"`
	Node    string  `json:"nd,omitempty"` // see Attempt.Node
	Reason  Reason  `json:"r,omitempty"`
	Class   Class   `json:"cl,omitempty"`
	Code    string  `json:"co,omitempty"`
	Message string  `json:"m,omitempty"`
	Due     Instant `json:"du,omitempty"` // see Record.Due

	Detail json.RawMessage `json:"pl,omitempty"` // decision or diagnosis
	Output *Payload        `json:"out,omitempty"`
	Usage  *Usage          `json:"us,omitempty"`
	Park   *Park           `json:"pk,omitempty"`
	Signal *Signal         `json:"sig,omitempty"` // arrived (signaled) or taken (woken)
	Score  *float64        `json:"sc,omitempty"`
	// Unspent gives the attempt back: it does not count against the retry policy.
	Unspent bool `json:"un,omitempty"`
	// Sure: the executor vouches that nothing of the attempt can act any more.
	Sure bool `json:"su,omitempty"`
}
