package firestore

import (
	"context"
	"errors"
	"io"
	"maps"
	"path"
	"sync"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// Stats counts what the platform bills, and the requests by method, since the store was opened.
type Stats struct {
	// Reads, Writes and Deletes of documents. A query that finds nothing counts as one read, as does a document that is
	// asked for and does not exist. A write that is refused counts for nothing.
	Reads, Writes, Deletes int64
	// Requests by method: of [Methods].
	Requests map[string]int64
}

// Methods of the platform that the store calls.
var Methods = []string{"BatchGetDocuments", "BatchWrite", "Commit", "Rollback", "RunQuery"}

type counters struct {
	mu sync.Mutex
	n  Stats
}

// Stats returns what was counted so far.
func (s *Store) Stats() Stats {
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	n := s.stats.n
	n.Requests = maps.Clone(n.Requests)
	return n
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
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err != nil {
		return err
	}
	c.add(func(n *Stats) {
		switch r := req.(type) {
		case *pb.CommitRequest:
			n.writes(r.GetWrites(), nil)
		case *pb.BatchWriteRequest:
			if resp, ok := reply.(*pb.BatchWriteResponse); ok {
				n.writes(r.GetWrites(), resp)
			}
		}
	})
	return nil
}

func (n *Stats) writes(writes []*pb.Write, resp *pb.BatchWriteResponse) {
	for i, w := range writes {
		if resp != nil && (i >= len(resp.GetStatus()) || codes.Code(resp.GetStatus()[i].GetCode()) != codes.OK) {
			continue
		}
		if w.GetDelete() != "" {
			n.Deletes++
		} else {
			n.Writes++
		}
	}
}

func (c *counters) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c.request(method)
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &counted{ClientStream: s, c: c}, nil
}

// counted counts the documents of a stream.
type counted struct {
	grpc.ClientStream
	c    *counters
	docs int64
}

func (s *counted) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	read := int64(0)
	switch {
	case errors.Is(err, io.EOF) && s.docs == 0:
		read = 1
	case err != nil:
		return err
	default:
		switch r := m.(type) {
		case *pb.RunQueryResponse:
			if r.GetDocument() != nil {
				read = 1
			}
		case *pb.BatchGetDocumentsResponse:
			if r.GetFound() != nil || r.GetMissing() != "" {
				read = 1
			}
		}
	}
	if read > 0 {
		s.docs += read
		s.c.add(func(n *Stats) { n.Reads += read })
	}
	return err
}
