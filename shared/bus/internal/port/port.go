// Package port is what every driver of the bus must judge alike: limits and shapes of topics, messages and receivers. A
// driver checks here first, so that no driver accepts what another refuses.
package port

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/errand-run/errand/shared/bus"
)

// maxTopic bounds the name of a topic, in bytes. A broker has 255 for it and what stands before it.
const maxTopic = 200

// CheckTopic refuses a name that no broker has: a lower-case letter, then lower-case letters, digits and hyphens.
func CheckTopic(topic bus.Topic) error {
	bad := strings.IndexFunc(string(topic), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}) >= 0
	if bad || topic == "" || len(topic) > maxTopic || topic[0] < 'a' {
		return fmt.Errorf("topic %.100q: %w: want a lower-case letter, then letters, digits and hyphens, %d at most",
			topic, bus.ErrNoTopic, maxTopic)
	}
	return nil
}

// CheckReceiver refuses what could not take a message.
func CheckReceiver(r *bus.Receiver) error {
	switch {
	case r.Slots < 1 || r.Handle == nil:
		return fmt.Errorf("receiver of %d slots: %w: want a slot or more, and a handler", r.Slots, bus.ErrInvalid)
	case r.Slots > bus.MaxSlots:
		return fmt.Errorf("receiver of %d slots: %w: at most %d", r.Slots, bus.ErrTooLarge, bus.MaxSlots)
	}
	return nil
}

// Outcomes judges a call of Publish: one outcome for each message, nil for those that may go. Too large a batch is
// refused whole.
func Outcomes(messages []bus.Message) []error {
	out := make([]error, len(messages))
	if n := len(messages); n > bus.MaxBatch {
		return Fill(out, fmt.Errorf("publish %d messages: %w: at most %d in one call", n, bus.ErrTooLarge, bus.MaxBatch))
	}
	for i := range messages {
		if err := check(&messages[i]); err != nil {
			out[i] = fmt.Errorf("publish message %d of %d: %w", i+1, len(messages), err)
		}
	}
	return out
}

// Fill makes err the outcome of all that have none.
func Fill(out []error, err error) []error {
	for i := range out {
		if out[i] == nil {
			out[i] = err
		}
	}
	return out
}

func check(m *bus.Message) error {
	if n := len(m.Data); n > bus.MaxData {
		return fmt.Errorf("%d bytes of data: %w: at most %d", n, bus.ErrTooLarge, bus.MaxData)
	}
	if n := len(m.Attributes); n > bus.MaxAttributes {
		return fmt.Errorf("%d attributes: %w: at most %d", n, bus.ErrTooLarge, bus.MaxAttributes)
	}
	if len(m.Data) == 0 && len(m.Attributes) == 0 {
		return fmt.Errorf("neither data nor attributes: %w", bus.ErrInvalid)
	}
	for key, value := range m.Attributes {
		switch {
		case len(key) > bus.MaxKey:
			return fmt.Errorf("attribute %.40q…: %w: a key of %d bytes, at most %d", key, bus.ErrTooLarge, len(key), bus.MaxKey)
		case len(value) > bus.MaxAttribute:
			return fmt.Errorf("attribute %.40q: %w: a value of %d bytes, at most %d", key, bus.ErrTooLarge, len(value), bus.MaxAttribute)
		case key == "" || strings.HasPrefix(key, "goog"):
			return fmt.Errorf("attribute %.40q: %w: a key is not empty and does not begin with goog", key, bus.ErrInvalid)
		case !utf8.ValidString(key) || !utf8.ValidString(value):
			return fmt.Errorf("attribute %.40q: %w: key and value are UTF-8", key, bus.ErrInvalid)
		}
	}
	return nil
}
