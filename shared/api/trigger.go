package api

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
)

// Taken answers a message that a trigger takes: with the run that it made or made before, or with the dead letter that it
// became because it was refused as often as the trigger allows. Either way the sender is rid of it.
type Taken struct {
	Run        string `json:"run,omitempty"` // id
	Existed    bool   `json:"existed,omitempty"`
	DeadLetter string `json:"deadLetter,omitempty"` // id
}

// DeadLetter is a message that became no run, as GET shows it.
type DeadLetter struct {
	ID           string            `json:"id"`
	Trigger      string            `json:"trigger,omitempty"` // missing where nobody knows
	Subscription string            `json:"subscription,omitempty"`
	MessageID    string            `json:"messageId"`
	OrderingKey  string            `json:"orderingKey,omitempty"`
	PublishTime  *Time             `json:"publishTime,omitempty"`
	Attributes   map[string]string `json:"attributes,omitempty"`
	Attempts     int               `json:"attempts"` // deliveries that failed
	Reason       string            `json:"reason"`
	At           Time              `json:"at"`   // of the record
	Size         int               `json:"size"` // bytes of data
	// Data is the message's, as a run's input has it; left out of lists.
	Data    json.RawMessage `json:"data,omitempty"`
	Replays int             `json:"replays,omitempty"`
	Run     string          `json:"run,omitempty"` // of the last replay
}

// NewDeadLetter is the body of POST /v1/deadletters: a message that a broker has given up.
type NewDeadLetter struct {
	Trigger      string            `json:"trigger,omitempty"`
	Subscription string            `json:"subscription,omitempty"` // that it was given up by
	MessageID    string            `json:"messageId"`              // makes a repeat the same letter
	OrderingKey  string            `json:"orderingKey,omitempty"`
	PublishTime  *Time             `json:"publishTime,omitempty"`
	Attributes   map[string]string `json:"attributes,omitempty"`
	Attempts     int               `json:"attempts,omitempty"`
	Reason       string            `json:"reason,omitempty"`
	Data         []byte            `json:"data,omitempty"` // base64
}

// Replay is the body of POST /v1/deadletters/{id}:replay.
type Replay struct {
	// Trigger to map the message with, where nobody knows its own or another is to be used.
	Trigger string `json:"trigger,omitempty"`
}

// Push hands a message of Pub/Sub to a trigger: push is the JSON of a wrapped push. It is safe to repeat, by the message's
// id.
func (c *Client) Push(ctx context.Context, trigger string, push []byte) (*Taken, error) {
	out := new(Taken)
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: "/v1/triggers/pubsub/" + url.PathEscape(trigger), raw: push, repeatable: true, out: out,
	})
	return out, err
}

// Tick has the control plane look at what is due and may have been missed.
func (c *Client) Tick(ctx context.Context) (*Ticked, error) {
	return act[Ticked](ctx, c, "/v1/tick", nil, true)
}

// Undelivered tells that the hand-over that named an attempt came to nobody, so that it need not be waited for.
func (c *Client) Undelivered(ctx context.Context, attempt, ticket, reason string) error {
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: attemptPath(attempt) + ":undelivered", body: &Undelivered{ticket, reason}, repeatable: true,
	})
	return err
}

// RecordDeadLetter keeps a message that a broker has given up, once.
func (c *Client) RecordDeadLetter(ctx context.Context, l NewDeadLetter) (*DeadLetter, error) {
	return act[DeadLetter](ctx, c, "/v1/deadletters", &l, true)
}

// ListDeadLetters returns a page of dead letters, those of the oldest messages first.
func (c *Client) ListDeadLetters(ctx context.Context, p Page) (*List[DeadLetter], error) {
	out := new(List[DeadLetter])
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/deadletters", query: p.query(nil), repeatable: true, out: out})
	return out, err
}

// DeadLetters walks all of them.
func (c *Client) DeadLetters(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return pages(ctx, Page{}, c.ListDeadLetters)
}

// DeadLetter returns one, with its data.
func (c *Client) DeadLetter(ctx context.Context, id string) (*DeadLetter, error) {
	out := new(DeadLetter)
	_, err := c.do(ctx, call{method: http.MethodGet, path: letterPath(id), repeatable: true, out: out})
	return out, err
}

// ReplayDeadLetter submits the message of a dead letter once more: a run of its own each time.
func (c *Client) ReplayDeadLetter(ctx context.Context, id string, r Replay) (*Run, error) {
	return act[Run](ctx, c, letterPath(id)+":replay", &r, false)
}

func letterPath(id string) string { return "/v1/deadletters/" + url.PathEscape(id) }

// RunEventPrefix begins the type of every CloudEvent about a run; the type of the history's event follows: see Event.
const RunEventPrefix = "dev.errand.run."

// RunEvent is the data of a CloudEvent about a run. The CloudEvent's id is RUN/SEQ, its subject the run's id.
type RunEvent struct {
	Run   Run        `json:"run"` // after the event, without input and output
	Event Event      `json:"event"`
	Gate  *GateEvent `json:"gate,omitempty"` // of a CloudEvent about a gate
}

// GateEventPrefix begins the type of every CloudEvent about a question to people: requested, reminded, escalated or
// decided follows. Its id is RUN/SEQ/gate, its data a RunEvent with the gate.
const GateEventPrefix = "dev.errand.gate."

// GateEvent is a gate in a CloudEvent.
type GateEvent struct {
	ID       string `json:"id"`
	Decision string `json:"decision,omitempty"` // approved, rejected or expired
	By       string `json:"by,omitempty"`
}
