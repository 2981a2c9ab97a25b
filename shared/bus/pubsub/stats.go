package pubsub

import (
	"context"
	"maps"
	"path"
	"sync"

	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
)

// Stats counts what the platform bills, and the requests by method, since the bus was opened.
type Stats struct {
	// Published and Delivered are messages: those that the platform took, and those that it sent here, copies included.
	Published, Delivered int64
	// Acknowledged are those of which the platform has taken that they need not come again.
	Acknowledged int64
	// Bytes is the volume that is billed for them: all of a message, and at least 1000 bytes for each request that
	// publishes or pulls, and for each message of a stream, whose batches the platform chooses.
	Bytes int64
	// Requests by method. A stream is one, however long it lives. Only those that publish or deliver are billed.
	Requests map[string]int64
}

// leastVolume is what a request is billed for that carries less.
const leastVolume = 1000

type counters struct {
	mu sync.Mutex
	n  Stats
}

// Stats returns what was counted so far.
func (b *Bus) Stats() Stats {
	b.stats.mu.Lock()
	defer b.stats.mu.Unlock()
	n := b.stats.n
	n.Requests = maps.Clone(n.Requests)
	return n
}

func (c *counters) options() []option.ClientOption {
	return []option.ClientOption{
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(c.unary)),
		option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(c.stream)),
	}
}

func (c *counters) add(f func(n *Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.n)
}

func (c *counters) request(method string) {
	c.add(func(n *Stats) {
		if n.Requests == nil {
			n.Requests = map[string]int64{}
		}
		n.Requests[path.Base(method)]++
	})
}

func (c *counters) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	c.request(method)
	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		return err
	}
	switch r := req.(type) {
	case *pb.PublishRequest:
		published, _ := reply.(*pb.PublishResponse)
		volume := 0
		for i, m := range r.GetMessages() {
			id := ""
			if i < len(published.GetMessageIds()) {
				id = published.GetMessageIds()[i]
			}
			volume += volumeOf(m, id)
		}
		c.add(func(n *Stats) {
			n.Published += int64(len(r.GetMessages()))
			n.Bytes += int64(max(volume, leastVolume))
		})
	case *pb.AcknowledgeRequest:
		c.add(func(n *Stats) { n.Acknowledged += int64(len(r.GetAckIds())) })
	case *pb.PullRequest:
		pulled, _ := reply.(*pb.PullResponse)
		c.delivered(pulled.GetReceivedMessages(), 0)
	}
	return nil
}

func (c *counters) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c.request(method)
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &counted{s, c}, nil
}

// counted counts the messages of a stream.
type counted struct {
	grpc.ClientStream
	c *counters
}

func (s *counted) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	if r, ok := m.(*pb.StreamingPullResponse); ok {
		s.c.delivered(r.GetReceivedMessages(), leastVolume)
	}
	return nil
}

// delivered counts messages that came together, each as no less than least bytes.
func (c *counters) delivered(messages []*pb.ReceivedMessage, least int) {
	if len(messages) == 0 {
		return
	}
	volume := 0
	for _, m := range messages {
		volume += max(volumeOf(m.GetMessage(), m.GetMessage().GetMessageId()), least)
	}
	c.add(func(n *Stats) {
		n.Delivered += int64(len(messages))
		n.Bytes += int64(max(volume, leastVolume))
	})
}

// volumeOf is what a message is billed as: data, attributes, id and the time of its publication.
func volumeOf(m *pb.PubsubMessage, id string) int {
	const timestamp = 20
	n := len(m.GetData()) + len(id) + timestamp
	for key, value := range m.GetAttributes() {
		n += len(key) + len(value)
	}
	return n
}
