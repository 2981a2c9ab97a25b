package pubsub

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

// maxIDs is how many messages one request settles: their ids are up to about 200 bytes, and a request has 512 KiB.
const maxIDs = 1000

// maxSettling bounds the requests of one kind that are under way; what comes meanwhile shares the next.
const maxSettling = 4

// settler tells the broker what became of messages.
type settler struct {
	b    *Bus
	sub  string
	log  *slog.Logger
	work sync.WaitGroup

	mu    sync.Mutex
	lanes map[time.Duration]*lane // by how long a message is to stay away
}

// lane is what one kind of request tells.
type lane struct {
	ids  []string
	busy int // requests under way
}

func newSettler(b *Bus, sub string) *settler {
	return &settler{b: b, sub: sub, log: b.log.With("subscription", sub), lanes: map[time.Duration]*lane{}}
}

// done, for a time to stay away, is for ever: the message is acknowledged.
const done time.Duration = -1

// tell tells that a message is done, or that it is to come again after some whole seconds, at once for 0.
func (s *settler) tell(ackID string, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[after]
	if l == nil {
		l = new(lane)
		s.lanes[after] = l // no more than there are lengths of pauses
	}
	l.ids = append(l.ids, ackID)
	if l.busy < maxSettling {
		l.busy++
		s.work.Go(func() { s.flush(l, after) })
	}
}

// flush sends what a lane has until it has nothing more.
func (s *settler) flush(l *lane, after time.Duration) {
	for {
		s.mu.Lock()
		ids := l.ids[:min(len(l.ids), maxIDs)]
		l.ids = l.ids[len(ids):]
		if len(ids) == 0 {
			l.ids = nil
			l.busy--
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		// Later than a lease lasts it is of no use.
		ctx, cancel := context.WithTimeout(context.Background(), s.b.times.lease)
		if err := s.send(ctx, ids, after); err != nil {
			s.log.Warn("the broker was not told what became of messages; they will come again", "messages", len(ids), "error", err)
		}
		cancel()
	}
}

// renew renews leases once more.
func (s *settler) renew(ctx context.Context, ids []string) {
	ctx, cancel := context.WithTimeout(ctx, s.b.times.lease)
	defer cancel()
	if err := s.send(ctx, ids, s.b.times.lease); err != nil && ctx.Err() == nil {
		s.log.Warn("leases were not renewed; their messages may come again while they are worked on", "messages", len(ids), "error", err)
	}
}

// send tries until ctx ends: a try that gets no answer is not the last.
func (s *settler) send(ctx context.Context, ids []string, after time.Duration) error {
	for failures := 1; ; failures++ {
		err := s.try(ctx, ids, after)
		if err == nil || ctx.Err() != nil || !passes(err) {
			return err
		}
		if !sleep(ctx, s.b.pauseAfter(failures)) {
			return err
		}
	}
}

func (s *settler) try(ctx context.Context, ids []string, after time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, s.b.times.call)
	defer cancel()
	admin := s.b.client.SubscriptionAdminClient
	if after == done {
		return admin.Acknowledge(ctx, &pubsubpb.AcknowledgeRequest{Subscription: s.sub, AckIds: ids})
	}
	return admin.ModifyAckDeadline(ctx, &pubsubpb.ModifyAckDeadlineRequest{
		Subscription: s.sub, AckIds: ids, AckDeadlineSeconds: int32(after / time.Second),
	})
}

// wait returns when all is told. Nothing more is added meanwhile.
func (s *settler) wait() { s.work.Wait() }
