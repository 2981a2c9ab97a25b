package pubsub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/internal/port"
)

// Bounds of what is on its way out.
const (
	gatherFor     = 10 * time.Millisecond // how long a message waits for others to go with
	gatherCount   = 100                   // or until there are as many
	gatherBytes   = 1 << 20               // or as many bytes
	outstanding   = 10_000                // messages of a topic without an outcome; more wait for room
	outstandBytes = 64 << 20
	maxPublishers = 4096 // topics published on
)

// Publish implements bus.Bus. It waits about 10 ms for messages to go together, and gives up with ctx or after half a
// minute of tries, when it is unknown whether they went.
func (b *Bus) Publish(ctx context.Context, topic bus.Topic, messages []bus.Message) []error {
	// 1. What cannot go.
	out := port.Outcomes(messages)
	if err := port.CheckTopic(topic); err != nil {
		return port.Fill(out, fmt.Errorf("publish: %w", err))
	}
	if err := b.enter(); err != nil {
		return port.Fill(out, fmt.Errorf("publish on topic %s: %w", topic, err))
	}
	defer b.leave()
	p, err := b.publisher(topic)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return port.Fill(out, fmt.Errorf("publish on topic %s: %w", topic, err))
	}
	// 2. The others go together.
	results := make([]*pubsub.PublishResult, len(messages))
	for i := range messages {
		if out[i] == nil {
			m := &messages[i]
			results[i] = p.Publish(ctx, &pubsub.Message{Data: m.Data, Attributes: maps.Clone(m.Attributes)})
		}
	}
	// 3. Each has its outcome.
	for i, r := range results {
		if r == nil {
			continue
		}
		switch _, err := r.Get(ctx); {
		case err == nil:
		case status.Code(err) == codes.NotFound:
			out[i] = fmt.Errorf("publish on topic %s: %w: %s", topic, bus.ErrNoTopic, b.topicName(topic))
		default:
			out[i] = fmt.Errorf("publish message %d of %d on topic %s: %w", i+1, len(messages), topic, err)
		}
	}
	return out
}

// publisher returns the one of a topic.
func (b *Bus) publisher(topic bus.Topic) (*pubsub.Publisher, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.publishers[topic]
	if p != nil {
		return p, nil
	}
	if len(b.publishers) >= maxPublishers {
		return nil, errors.New("this process publishes on 4096 other topics already")
	}
	p = b.client.Publisher(b.id(topic))
	p.PublishSettings = pubsub.PublishSettings{
		DelayThreshold: gatherFor, CountThreshold: gatherCount, ByteThreshold: gatherBytes, Timeout: b.times.publish,
		FlowControlSettings: pubsub.FlowControlSettings{
			MaxOutstandingMessages: outstanding, MaxOutstandingBytes: outstandBytes, LimitExceededBehavior: pubsub.FlowControlBlock,
		},
	}
	b.publishers[topic] = p
	return p, nil
}
