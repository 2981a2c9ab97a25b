package pubsub

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/internal/port"
)

// retention is how long a subscription keeps what nobody takes.
const retention = 7 * 24 * time.Hour

// Declare makes topics with their subscriptions, and the dead letters. What is there already stays as it is. For
// emulators and tests: it does in the cloud what Terraform does there, save the right of the service's agent to write to
// the dead letters.
func (b *Bus) Declare(ctx context.Context, topics ...bus.Topic) error {
	if err := b.enter(); err != nil {
		return fmt.Errorf("declare topics: %w", err)
	}
	defer b.leave()
	for _, topic := range append([]bus.Topic{bus.DeadLetters}, topics...) {
		if err := b.declare(ctx, topic); err != nil {
			return fmt.Errorf("declare topic %s: %w", topic, err)
		}
	}
	return nil
}

func (b *Bus) declare(ctx context.Context, topic bus.Topic) error {
	if err := port.CheckTopic(topic); err != nil {
		return err
	}
	_, err := b.client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: b.topicName(topic)})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return err
	}
	sub := &pubsubpb.Subscription{
		Name: b.subscriptionName(topic), Topic: b.topicName(topic),
		AckDeadlineSeconds:       int32(b.opts.AckDeadline / time.Second),
		MessageRetentionDuration: durationpb.New(retention),
		ExpirationPolicy:         &pubsubpb.ExpirationPolicy{}, // never, however long nobody receives
	}
	if topic != bus.DeadLetters {
		sub.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{
			DeadLetterTopic: b.topicName(bus.DeadLetters), MaxDeliveryAttempts: int32(b.opts.MaxDeliveries),
		}
	}
	_, err = b.client.SubscriptionAdminClient.CreateSubscription(ctx, sub)
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return err
	}
	return nil
}
