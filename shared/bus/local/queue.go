package local

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/bus"
)

// queue is a topic and its subscription. Guarded by the broker's lock.
type queue struct {
	topic   bus.Topic
	ready   []*message      // in order of arrival
	waiting []chan *message // receivers with a free slot, each with room for one message; none while ready has any
	kept    int             // messages that are not acknowledged: ready, in hand, or pausing
	bytes   int             // of those
}

// message is what a queue keeps until it is acknowledged.
type message struct {
	bus.Message
	id          string
	publishedAt time.Time
	attempt     int // deliveries so far
	size        int
}

// add takes a message in. Needs the lock.
func (br *Broker) add(q *queue, from bus.Message, publishedAt time.Time) error {
	m := &message{Message: clone(from), publishedAt: publishedAt, size: len(from.Data)}
	for key, value := range from.Attributes {
		m.size += len(key) + len(value)
	}
	if q.kept >= br.opts.MaxQueued || q.bytes+m.size > br.opts.MaxBytes {
		return fmt.Errorf("publish on topic %s: %w: it keeps %d messages, %d bytes", q.topic, ErrFull, q.kept, q.bytes)
	}
	br.lastID++
	m.id = strconv.FormatInt(br.lastID, 10)
	q.kept++
	q.bytes += m.size
	q.offer(m)
	return nil
}

// offer hands a message to a receiver that waits, or queues it. Needs the lock.
func (q *queue) offer(m *message) {
	if len(q.waiting) == 0 {
		q.ready = append(q.ready, m)
		return
	}
	q.waiting[0] <- m
	q.waiting = slices.Delete(q.waiting, 0, 1)
}

// drop forgets a message. Needs the lock.
func (q *queue) drop(m *message) {
	q.kept--
	q.bytes -= m.size
}

// take waits for a message; nil when ctx ends first.
func (br *Broker) take(ctx context.Context, q *queue) *message {
	br.mu.Lock()
	if len(q.ready) > 0 {
		m := q.ready[0]
		q.ready[0] = nil
		q.ready = q.ready[1:]
		br.mu.Unlock()
		return m
	}
	mine := make(chan *message, 1)
	q.waiting = append(q.waiting, mine)
	br.mu.Unlock()

	select {
	case m := <-mine:
		return m
	case <-ctx.Done():
	}
	br.mu.Lock()
	defer br.mu.Unlock()
	if i := slices.Index(q.waiting, mine); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		return nil
	}
	q.offer(<-mine) // it came at the same moment: for somebody else
	return nil
}

// handle delivers a message once.
func (br *Broker) handle(ctx context.Context, q *queue, m *message, handler func(context.Context, *bus.Delivery) error) {
	br.mu.Lock()
	m.attempt++
	d := &bus.Delivery{Message: clone(m.Message), ID: m.id, PublishedAt: m.publishedAt, Attempt: m.attempt}
	br.mu.Unlock()
	settled := false // guarded by the lock: the first to settle a delivery counts
	settle := func(err error) {
		br.mu.Lock()
		defer br.mu.Unlock()
		if !settled {
			settled = true
			br.settle(q, m, err)
		}
	}
	d.Ack = func() { settle(nil) }
	settle(handler(ctx, d))
}

// settle ends a delivery: nil acknowledges the message, an error lets it pause, or makes it a dead letter. Needs the
// lock.
func (br *Broker) settle(q *queue, m *message, err error) {
	switch {
	case err == nil:
		q.drop(m)
		return
	case q.topic != bus.DeadLetters && m.attempt >= br.opts.MaxDeliveries && br.bury(q, m):
		return
	}
	br.opts.After(br.opts.Pause(m.attempt), func() {
		br.mu.Lock()
		defer br.mu.Unlock()
		q.offer(m)
	})
}

// bury moves a message to the dead letters, and reports whether they took it. Needs the lock.
func (br *Broker) bury(q *queue, m *message) bool {
	letters, err := br.queue(bus.DeadLetters)
	if err == nil {
		letter := clone(m.Message)
		if letter.Attributes == nil {
			letter.Attributes = map[string]string{}
		}
		letter.Attributes[bus.Source] = string(q.topic)
		letter.Attributes[bus.Deliveries] = strconv.Itoa(m.attempt)
		err = br.add(letters, letter, m.publishedAt)
	}
	if err != nil {
		br.opts.Log.Error("a message that keeps failing cannot become a dead letter; it is kept and tried again",
			"topic", q.topic, "message", m.id, "deliveries", m.attempt, "error", err)
		return false
	}
	q.drop(m)
	return true
}

// clone keeps what a caller may change apart from what is kept.
func clone(m bus.Message) bus.Message {
	return bus.Message{Attributes: maps.Clone(m.Attributes), Data: bytes.Clone(m.Data)}
}
