package pubsub

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/internal/port"
)

// Receive implements bus.Bus.
func (b *Bus) Receive(ctx context.Context, topic bus.Topic, r bus.Receiver) error {
	// 1. What is asked for.
	if err := cmp.Or(port.CheckTopic(topic), port.CheckReceiver(&r)); err != nil {
		return fmt.Errorf("receive from topic %s: %w", topic, err)
	}
	if err := b.enter(); err != nil {
		return fmt.Errorf("receive from topic %s: %w", topic, err)
	}
	defer b.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.closed, cancel)()
	rc := &receiving{
		b: b, ctx: ctx, topic: topic, sub: b.subscriptionName(topic), r: r, log: b.log.With("topic", topic),
		free: r.Slots, leases: map[string]*lease{}, changed: make(chan struct{}, 1),
		settler: newSettler(b, b.subscriptionName(topic)),
	}

	// 2. Messages come until ctx ends or nothing more can.
	over, stopRenewing := context.WithCancel(context.Background())
	defer stopRenewing()
	var renewing sync.WaitGroup
	renewing.Go(func() { rc.renew(over) })
	err := rc.run()
	cancel()

	// 3. What still comes is given back; handlers end by themselves, under leases that are renewed; their outcomes reach
	// the broker.
	rc.end()
	rc.streams.Wait()
	rc.handlers.Wait()
	stopRenewing()
	renewing.Wait()
	rc.settler.wait()

	switch {
	case b.closed.Err() != nil:
		return fmt.Errorf("receive from topic %s: %w", topic, bus.ErrClosed)
	case status.Code(err) == codes.NotFound:
		return fmt.Errorf("receive from topic %s: %w: %s", topic, bus.ErrNoTopic, rc.sub)
	case err != nil:
		return fmt.Errorf("receive from %s: %w", rc.sub, err)
	}
	return nil
}

// receiving is one call of Receive.
type receiving struct {
	b       *Bus
	ctx     context.Context // of handlers, and until when messages are taken
	topic   bus.Topic
	sub     string
	r       bus.Receiver
	log     *slog.Logger
	settler *settler

	handlers sync.WaitGroup
	streams  sync.WaitGroup
	changed  chan struct{} // holds one when what follows changed and the loop may have to act

	mu      sync.Mutex
	free    int               // slots without a handler
	leases  map[string]*lease // by message: what handlers have and have not settled
	crowded bool              // a stream brought more than there was room for: pull by number
	ended   bool              // nothing more is handed over
}

// lease is the broker's leave to work on a message.
type lease struct {
	ackID   string // of its newest delivery
	since   time.Time
	renewAt time.Time
	stream  *stream // whose server counts the message as on its way; nil when it was pulled
}

func (rc *receiving) signal() {
	select {
	case rc.changed <- struct{}{}:
	default:
	}
}

func (rc *receiving) end() {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.ended = true
}

// run takes messages until ctx ends, nil, or until it cannot go on.
func (rc *receiving) run() error {
	failures := 0
	for {
		free, crowded := rc.awaitFree()
		if free == 0 {
			return nil // ctx has ended
		}
		began := time.Now()
		var heard bool
		var err error
		if crowded {
			heard, err = rc.pull(free)
		} else {
			heard, err = rc.stream(free)
		}
		worked := heard || time.Since(began) > rc.b.times.settled
		if worked && failures > 0 {
			rc.log.Info("receiving again", "failures", failures)
			failures = 0
		}
		switch {
		case err == nil || rc.ctx.Err() != nil:
			continue
		case !passes(err):
			return err
		}
		failures++
		// A stream that worked may end: servers close them now and then. The 1st, 2nd, 4th, 8th… failure in a row is told.
		if !worked && failures&(failures-1) == 0 {
			rc.log.Warn("cannot receive, will try again", "failures", failures, "error", err)
		}
		sleep(rc.ctx, rc.b.pauseAfter(failures))
	}
}

// passes reports whether trying again may help.
func passes(err error) bool {
	switch status.Code(err) {
	case codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition,
		codes.Unimplemented, codes.OutOfRange:
		return false
	}
	return true
}

// pauseAfter is how long an outage waits for its next try: doubling, and half of it by chance.
func (b *Bus) pauseAfter(failures int) time.Duration {
	least, most := b.times.backoff[0], b.times.backoff[1]
	d := min(least<<min(failures-1, 20), most)
	return d/2 + rand.N(d/2+1)
}

// awaitFree waits for a free slot, and returns how many there are; 0 when ctx ends first.
func (rc *receiving) awaitFree() (free int, crowded bool) {
	for rc.ctx.Err() == nil {
		rc.mu.Lock()
		free, crowded = rc.free, rc.crowded
		rc.mu.Unlock()
		if free > 0 {
			return free, crowded
		}
		select {
		case <-rc.changed:
		case <-rc.ctx.Done():
		}
	}
	return 0, false
}

// pull takes as many messages as there are free slots. When there are none, the next ones come by stream again.
func (rc *receiving) pull(free int) (heard bool, err error) {
	// It does not wait at the server, and runs to its end whatever becomes of ctx: an answer that nobody reads leaves its
	// messages leased to nobody.
	ctx, cancel := context.WithTimeout(context.Background(), rc.b.times.call)
	defer cancel()
	res, err := rc.b.client.SubscriptionAdminClient.Pull(ctx, &pubsubpb.PullRequest{
		Subscription: rc.sub, MaxMessages: int32(free), ReturnImmediately: true, //nolint:staticcheck // see above
	})
	if err != nil {
		return false, err
	}
	for _, m := range res.ReceivedMessages {
		rc.admit(m, nil)
	}
	if len(res.ReceivedMessages) == 0 {
		rc.mu.Lock()
		rc.crowded = false
		rc.mu.Unlock()
	}
	return true, nil
}

// admit hands a message to a handler in a free slot, or gives it back.
func (rc *receiving) admit(m *pubsubpb.ReceivedMessage, from *stream) {
	if m.GetMessage() == nil {
		return
	}
	now := time.Now()
	renewAt := now.Add(rc.b.times.lease / 2)
	if from == nil {
		renewAt = now.Add(min(rc.b.times.pulled, rc.b.times.lease) / 2)
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	defer rc.signal()
	// 1. A copy of what a handler has: its lease ran out by the broker's clock, and goes on with the copy.
	if l := rc.leases[m.Message.MessageId]; l != nil {
		l.stream.count(-1)
		l.ackID, l.renewAt, l.stream = m.AckId, renewAt, from
		l.stream.count(1)
		return
	}
	// 2. No slot: it is there for others at once.
	if rc.ended || rc.free == 0 {
		rc.crowded = rc.crowded || !rc.ended
		rc.settler.tell(m.AckId, 0)
		return
	}
	// 3. A handler.
	if n := int(m.DeliveryAttempt); n > rc.b.opts.MaxDeliveries && rc.topic != bus.DeadLetters {
		rc.log.Error("a message that keeps failing has not become a dead letter; check that the service's agent may publish on "+
			rc.b.topicName(bus.DeadLetters)+" and subscribe to "+rc.sub+"; it is kept and tried again",
			"message", m.Message.MessageId, "deliveries", n)
	}
	rc.free--
	l := &lease{ackID: m.AckId, since: now, renewAt: renewAt, stream: from}
	l.stream.count(1)
	rc.leases[m.Message.MessageId] = l
	rc.handlers.Go(func() { rc.handle(m, l) })
}

// handle runs the handler of a message, in a slot that it gives back.
func (rc *receiving) handle(m *pubsubpb.ReceivedMessage, l *lease) {
	id := m.Message.MessageId
	defer func() {
		rc.mu.Lock()
		defer rc.mu.Unlock()
		rc.free++
		rc.signal()
	}()
	var once sync.Once
	d := &bus.Delivery{
		Message: bus.Message{Attributes: m.Message.Attributes, Data: m.Message.Data},
		ID:      id, PublishedAt: m.Message.PublishTime.AsTime(), Attempt: int(m.DeliveryAttempt),
		Ack: func() { once.Do(func() { rc.settle(id, l, done) }) },
	}
	if err := rc.r.Handle(rc.ctx, d); err != nil {
		once.Do(func() { rc.settle(id, l, rc.b.pause(int(m.DeliveryAttempt))) })
		return
	}
	d.Ack()
}

// pause is how long a message waits whose n-th delivery failed, in whole seconds.
func (b *Bus) pause(n int) time.Duration {
	d := b.opts.Pause(max(n, 1))
	return min(max(d+time.Second-1, 0).Truncate(time.Second), 10*time.Minute)
}

// settle ends a lease: done, or to come again after a pause.
func (rc *receiving) settle(id string, l *lease, after time.Duration) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	defer rc.signal()
	from := l.stream
	if rc.leases[id] != l { // it has been let go of
		from = nil
	} else {
		delete(rc.leases, id)
	}
	rc.settler.tell(l.ackID, after)
	if after <= 0 {
		from.count(-1)
		return
	}
	// Until the pause is over the server counts the message as on its way.
	time.AfterFunc(after, func() {
		rc.mu.Lock()
		defer rc.mu.Unlock()
		from.count(-1)
		rc.signal()
	})
}

// maxRenewing bounds how many renewals are under way, so that one which does not return holds up no others.
const maxRenewing = 4

// renew renews leases in time until ctx ends.
func (rc *receiving) renew(ctx context.Context) {
	t := time.NewTicker(rc.b.times.look)
	defer t.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make(chan struct{}, maxRenewing)
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		ids := rc.due(time.Now())
		for len(ids) > 0 {
			part := ids[:min(len(ids), maxIDs)]
			ids = ids[len(part):]
			select {
			case slots <- struct{}{}:
				calls.Go(func() {
					defer func() { <-slots }()
					rc.settler.renew(ctx, part)
				})
			default:
				rc.log.Warn("leases are not renewed in time: the server does not answer", "messages", len(part))
			}
		}
	}
}

// due returns what to renew now, and lets go of what was held as long as anything is.
func (rc *receiving) due(now time.Time) []string {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	var ids []string
	for id, l := range rc.leases {
		switch {
		case now.Sub(l.since) >= rc.b.opts.MaxHold:
			rc.log.Warn("a handler has had its message for too long without acknowledging it; the message will come again",
				"message", id, "held", now.Sub(l.since).Round(time.Second))
			delete(rc.leases, id)
			l.stream.count(-1)
		case !now.Before(l.renewAt):
			l.renewAt = now.Add(rc.b.times.lease / 2)
			ids = append(ids, l.ackID)
		}
	}
	return ids
}
