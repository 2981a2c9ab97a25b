// Package bus is the port to what carries messages between processes: hand-overs to the workers of a pool, facts for the
// process that decides, and events for outsiders.
//
// A message is a hint or a hand-over, never the truth: that is in the store. A bus may deliver a message twice, late, out
// of order or, when its broker gives up, not at all; whoever takes one asks the store what it is worth. Nothing relies on
// order.
//
// Drivers live below this folder (local, pubsub) and pass the one suite in bustest. This package imports the standard
// library only.
package bus

import (
	"context"
	"errors"
	"time"
)

// Topic names a stream of messages. Every topic has one subscription of the same name, whose receivers share its
// messages: each goes to one of them.
type Topic string

const (
	// Control carries what the process that decides should look at: see the control package.
	Control Topic = "control"
	// Events carries what happened to runs, as CloudEvents.
	Events Topic = "events"
	// DeadLetters takes a message of another topic that failed as often as its broker allows: whole, with the attributes
	// Source and Deliveries beside its own. While it cannot take one, the message stays where it was.
	DeadLetters Topic = "deadletter"
)

// Attributes that a broker adds to a dead letter, by the names that Pub/Sub gives them.
const (
	Source     = "CloudPubSubDeadLetterSourceSubscription"  // the subscription that it comes from; its end is the topic
	Deliveries = "CloudPubSubDeadLetterSourceDeliveryCount" // how often it was delivered, as well as the broker knows
)

// Pool is the topic of hand-overs to the workers of a target.
func Pool(target string) Topic { return Topic("pool-" + target) }

// Limits of the port. A driver refuses more with ErrTooLarge.
const (
	MaxData       = 256 << 10 // bytes of data in a message
	MaxAttributes = 50        // attributes of a message
	MaxAttribute  = 1 << 10   // bytes in the value of an attribute
	MaxKey        = 256       // bytes in the key of one
	MaxBatch      = 1000      // messages in one call of Publish
	MaxSlots      = 1000      // handlers of one receiver at a time
)

// Message is what travels.
type Message struct {
	// Attributes are readable by whoever may read the subscription: neither they nor Data carry payloads or secrets that
	// outlive their first use.
	Attributes map[string]string
	Data       []byte
}

// Delivery is a message as it arrives.
type Delivery struct {
	Message
	ID          string    // the broker's
	PublishedAt time.Time // by the broker's clock
	// Attempt counts deliveries of this message as well as the broker knows, from 1; 0 where it does not count.
	Attempt int

	// Ack acknowledges the message before the handler returns, so that it does not come again; the handler keeps its slot.
	// Drivers set it; calling it twice does nothing.
	Ack func()
}

// Receiver takes the messages of a topic.
type Receiver struct {
	// Slots is how many handlers run at a time, 1..MaxSlots. A message is fetched only when a handler can begin with it
	// at once, so that one that waits is there for other receivers.
	Slots int
	// Handle takes one delivery. nil acknowledges it; an error gives it back, to be delivered again after a pause. Its
	// context ends with Receive's, and does not by itself end the handler.
	Handle func(ctx context.Context, d *Delivery) error
}

// Errors. Drivers wrap them.
var (
	// ErrTooLarge: over a limit of the port. The message was not published.
	ErrTooLarge = errors.New("over a limit of the bus")
	// ErrInvalid: no broker takes it: an empty message, a key that is empty or begins with goog, text that is not UTF-8, a
	// receiver without slots or handler. The message was not published.
	ErrInvalid = errors.New("malformed")
	// ErrNoTopic: the topic, or its subscription, does not exist.
	ErrNoTopic = errors.New("no such topic")
	// ErrClosed: the bus was closed.
	ErrClosed = errors.New("bus is closed")
)

// Bus carries messages. All methods are safe for concurrent use.
type Bus interface {
	// Publish sends messages and returns one outcome for each, in order, once the broker has them. An error other than
	// those above leaves it unknown whether the message was sent.
	Publish(ctx context.Context, topic Topic, messages []Message) []error
	// Receive hands messages to r until ctx ends, then waits for its handlers and returns nil. Messages that it fetched
	// and did not hand over are given back. An error means that it cannot go on; an outage is waited out. ErrClosed when
	// the bus was closed meanwhile.
	Receive(ctx context.Context, topic Topic, r Receiver) error
	// Describe names driver and place in one line, for people.
	Describe() string
	// Close ends every Receive and releases the bus.
	Close() error
}
