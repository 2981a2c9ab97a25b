package pubsub

import (
	"context"
	"errors"
	"io"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/metadata"
)

// stream is one StreamingPull. Its server keeps at most limit messages on their way: sent, and neither acknowledged nor
// given back.
type stream struct {
	limit int
	out   int // how many the server counts as on their way. Guarded by receiving.mu
}

// count adds to what is on its way. A message that was pulled has no stream.
func (s *stream) count(n int) {
	if s != nil {
		s.out += n
	}
}

// fits reports whether a stream asks for about what there is room for. Needs receiving.mu.
func (s *stream) fits(free int) bool {
	room := s.limit - s.out
	switch {
	case free == 0:
		return room <= 0 // else it would bring what nobody can begin with
	default:
		return room*2 > free // else slots are idle while messages wait
	}
}

// protocol is the version of StreamingPull in which the server answers pings.
const protocol = 1

// stream takes messages by a stream that asks for as many as there are free slots, until that no longer fits, ctx ends,
// both nil, or the stream breaks. heard: the server said something.
func (rc *receiving) stream(free int) (heard bool, err error) {
	// 1. Open. The stream outlives ctx for as long as it takes to end it in order.
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(),
		"x-goog-request-params", "subscription="+rc.sub))
	st := &stream{limit: free}
	opened := context.AfterFunc(rc.ctx, cancel) // nothing can have come before that
	pull, err := rc.b.client.SubscriptionAdminClient.StreamingPull(ctx)
	if err == nil {
		err = pull.Send(&pubsubpb.StreamingPullRequest{
			Subscription: rc.sub, StreamAckDeadlineSeconds: int32(rc.b.times.lease / time.Second),
			MaxOutstandingMessages: int64(free), ProtocolVersion: protocol,
		})
		if errors.Is(err, io.EOF) {
			_, err = pull.Recv() // why
		}
	}
	opened()
	if err != nil {
		cancel()
		return false, err
	}

	// 2. Read it to its end.
	type news struct {
		pong bool
		err  error
	}
	said := make(chan news, 1) // the newest unread
	rc.streams.Go(func() {
		defer cancel()
		for {
			res, err := pull.Recv()
			for _, m := range res.GetReceivedMessages() {
				rc.admit(m, st)
			}
			n := news{pong: err == nil && len(res.ReceivedMessages) == 0, err: err}
			select {
			case <-said:
			default:
			}
			said <- n
			if err != nil {
				return
			}
		}
	})

	// 3. Watch it.
	ping := time.NewTicker(rc.b.times.ping)
	defer ping.Stop()
	var silence <-chan time.Time
	pongs := false // this server answers pings
	for {
		rc.mu.Lock()
		fits := st.fits(rc.free) && !rc.crowded
		rc.mu.Unlock()
		if rc.ctx.Err() != nil || !fits {
			rc.retire(pull, cancel)
			return true, nil
		}
		select {
		case <-rc.ctx.Done():
		case <-rc.changed:
		case n := <-said:
			if n.err != nil {
				return heard, n.err
			}
			heard, pongs, silence = true, pongs || n.pong, nil
		case <-ping.C:
			// An error shows at the reader.
			if pull.Send(&pubsubpb.StreamingPullRequest{}) == nil && pongs && silence == nil {
				silence = time.After(rc.b.times.silence)
			}
		case <-silence:
			cancel()
			return heard, errSilent
		}
	}
}

// retire ends a stream in order: what is under way already still comes, and is handed over or given back.
func (rc *receiving) retire(pull pubsubpb.Subscriber_StreamingPullClient, cancel context.CancelFunc) {
	_ = pull.CloseSend() // an error shows at the reader
	time.AfterFunc(rc.b.times.drain, cancel)
}
