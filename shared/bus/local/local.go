// Package local is the bus within one process: for one control plane, or several in a test. It keeps its messages in
// memory, bounded, and loses them with the process.
package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/internal/port"
)

// ErrFull: the topic keeps as many messages, or bytes, as it may. The message was not published.
var ErrFull = errors.New("topic is full")

// maxTopics bounds how many topics a broker makes on demand.
const maxTopics = 4096

// Options of a broker. The zero value serves.
type Options struct {
	// Topics that exist. When it is nil any topic does, from its first use.
	Topics []bus.Topic
	// MaxQueued and MaxBytes bound what a topic keeps until it is acknowledged; 10,000 messages and 64 MiB when 0.
	MaxQueued int
	MaxBytes  int
	// MaxDeliveries is after how many a message that failed goes to bus.DeadLetters; 10 when 0. Failures of dead letters
	// are not counted.
	MaxDeliveries int
	// Pause is how long a message waits that failed for the n-th time; when nil, 1 s doubling up to 1 min.
	Pause func(n int) time.Duration
	// Clock tells when a message was published, and After calls f once, d from now; those of package time when nil.
	Clock func() time.Time
	After func(d time.Duration, f func())
	// Log of messages that cannot go where they should; slog.Default() when nil.
	Log *slog.Logger
}

// Broker is where the messages are. Several buses may be opened on it, as if by several processes.
type Broker struct {
	opts Options

	mu     sync.Mutex
	topics map[bus.Topic]*queue
	lastID int64
}

// NewBroker returns an empty broker.
func NewBroker(o Options) *Broker {
	o.MaxQueued = cmp.Or(o.MaxQueued, 10_000)
	o.MaxBytes = cmp.Or(o.MaxBytes, 64<<20)
	o.MaxDeliveries = cmp.Or(o.MaxDeliveries, 10)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Pause == nil {
		o.Pause = func(n int) time.Duration { return min(time.Second<<min(n-1, 10), time.Minute) }
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.After == nil {
		o.After = func(d time.Duration, f func()) { time.AfterFunc(d, f) }
	}
	return &Broker{opts: o, topics: map[bus.Topic]*queue{}}
}

// Open returns a bus on a broker of its own.
func Open(o Options) *Bus { return NewBroker(o).Open() }

// Open returns another bus on the broker.
func (br *Broker) Open() *Bus {
	b := &Bus{broker: br}
	b.closed, b.close = context.WithCancel(context.Background())
	return b
}

// queue finds a topic, and makes it where any may exist. Needs the lock.
func (br *Broker) queue(topic bus.Topic) (*queue, error) {
	if q := br.topics[topic]; q != nil {
		return q, nil
	}
	if err := port.CheckTopic(topic); err != nil {
		return nil, err
	}
	known := br.opts.Topics
	switch {
	case known != nil && topic != bus.DeadLetters && !slices.Contains(known, topic):
		return nil, fmt.Errorf("topic %q: %w", topic, bus.ErrNoTopic)
	case known == nil && len(br.topics) >= maxTopics:
		return nil, fmt.Errorf("topic %q: %w: there are %d topics already", topic, ErrFull, maxTopics)
	}
	q := &queue{topic: topic}
	br.topics[topic] = q
	return q, nil
}

// Bus is one party's hold on a broker.
type Bus struct {
	broker *Broker
	closed context.Context
	close  context.CancelFunc
}

var _ bus.Bus = (*Bus)(nil)

// Publish implements bus.Bus. It never waits: a topic that is full refuses with ErrFull.
func (b *Bus) Publish(ctx context.Context, topic bus.Topic, messages []bus.Message) []error {
	out := port.Outcomes(messages)
	if err := cmp.Or(b.ended(), ctx.Err()); err != nil {
		return port.Fill(out, fmt.Errorf("publish on topic %s: %w", topic, err))
	}
	br := b.broker
	br.mu.Lock()
	defer br.mu.Unlock()
	q, err := br.queue(topic)
	if err != nil {
		return port.Fill(out, fmt.Errorf("publish: %w", err))
	}
	for i := range messages {
		if out[i] == nil {
			out[i] = br.add(q, messages[i], br.opts.Clock())
		}
	}
	return out
}

// Receive implements bus.Bus.
func (b *Bus) Receive(ctx context.Context, topic bus.Topic, r bus.Receiver) error {
	// 1. What is asked for.
	if err := cmp.Or(port.CheckReceiver(&r), b.ended()); err != nil {
		return fmt.Errorf("receive from topic %s: %w", topic, err)
	}
	b.broker.mu.Lock()
	q, err := b.broker.queue(topic)
	b.broker.mu.Unlock()
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.closed, cancel)()

	// 2. A slot first, then a message for it: one that waits is there for others.
	slots := make(chan struct{}, r.Slots)
	var handlers sync.WaitGroup
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		m := b.broker.take(ctx, q)
		if m == nil {
			break
		}
		handlers.Go(func() {
			defer func() { <-slots }()
			b.broker.handle(ctx, q, m, r.Handle)
		})
	}

	// 3. Handlers end by themselves.
	handlers.Wait()
	if err := b.ended(); err != nil {
		return fmt.Errorf("receive from topic %s: %w", topic, err)
	}
	return nil
}

func (b *Bus) ended() error {
	if b.closed.Err() != nil {
		return bus.ErrClosed
	}
	return nil
}

// Describe implements bus.Bus.
func (b *Bus) Describe() string { return "local, in this process's memory" }

// Close implements bus.Bus. Messages stay with the broker.
func (b *Bus) Close() error {
	b.close()
	return nil
}
