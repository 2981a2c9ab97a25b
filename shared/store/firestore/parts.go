package firestore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/shared/store"
)

// Large bodies. A document of the platform holds 1 MiB, a body of the port 10. A body above inlineMost, and of a unit
// that is above the size of one commit its largest bodies, is stored in parts: documents named after the document, the
// token of the unit that wrote it, and their number. They are written before the unit. Its commit then writes the
// document, which says how many there are, and removes the parts of the body that it replaces.
//
// Parts whose unit was refused are removed at once. A process may die before that, so each part is born with an expiry
// of a day (the platform's TTL policy on expireAt deletes it some time after), and the commit that writes the document
// takes the expiry away: one write more for each part, for the few bodies that are this large. Nothing else expires in
// this store, for the control plane removes by itself what it no longer needs. A commit without room for that many
// writes (above 500) has parts without expiry, which a crash at the wrong moment leaves behind.
const (
	inlineMost = 900 << 10
	partSize   = 1_000_000
	maxParts   = (store.MaxBody + partSize - 1) / partSize
)

// errPartGone: a document names a part that is not there.
var errPartGone = errors.New("a part of its body is gone")

// divide decides which bodies are stored in parts.
func (w *work) divide() {
	total := 0
	var inline []*target
	for i := range w.targets {
		t := &w.targets[i]
		if !t.deletes() && len(t.write.Body) > inlineMost {
			t.parts = partsOf(t)
		} else if !t.deletes() {
			inline = append(inline, t)
		}
		total += t.size()
	}
	if total <= batchBytes {
		return
	}
	slices.SortFunc(inline, func(a, b *target) int { return len(b.write.Body) - len(a.write.Body) })
	for _, t := range inline {
		if total <= batchBytes || len(t.write.Body) == 0 {
			return
		}
		total -= len(t.write.Body)
		t.parts = partsOf(t)
	}
}

func partsOf(t *target) int { return (len(t.write.Body) + partSize - 1) / partSize }

// writeParts writes the parts of a unit's bodies, once.
func (s *Store) writeParts(ctx context.Context, w *work) error {
	if w.placed {
		return nil
	}
	// 1. They expire unless the commit has room to take that away.
	n := len(w.targets)
	for i := range w.targets {
		n += w.targets[i].parts
	}
	w.placed, w.expires = true, n <= batchWrites
	// 2. Requests of up to 3 parts, side by side.
	var writes []*pb.Write
	for i := range w.targets {
		t := &w.targets[i]
		for part := range t.parts {
			body := t.write.Body[part*partSize : min(len(t.write.Body), (part+1)*partSize)]
			fields := map[string]*pb.Value{fieldBody: bytesOf(body)}
			if w.expires {
				at := timestamppb.New(s.clock().Add(orphanExpires))
				fields[fieldExpires] = &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: at}}
			}
			doc := &pb.Document{Name: s.partPath(t.name, w.token, part), Fields: fields}
			writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: doc}})
		}
	}
	return s.writePlain(ctx, writes)
}

// writePlain makes writes that end the same however often they are applied, in any order, and not as one.
func (s *Store) writePlain(ctx context.Context, writes []*pb.Write) error {
	var batches [][]*pb.Write
	for len(writes) > 0 {
		n, size := 0, 0
		for n < len(writes) && n < batchWrites && (n == 0 || size+proto.Size(writes[n]) <= batchBytes) {
			size += proto.Size(writes[n])
			n++
		}
		batches, writes = append(batches, writes[:n]), writes[n:]
	}
	errs := make([]error, len(batches))
	s.each(len(batches), func(i int) {
		left := batches[i]
		errs[i] = s.repeat(ctx, fmt.Sprintf("write %d documents", len(left)), func(ctx context.Context) error {
			resp, err := s.client.BatchWrite(ctx, &pb.BatchWriteRequest{Database: s.database, Writes: left})
			if err != nil {
				return err
			}
			// Those that failed go again.
			var failed []*pb.Write
			for j, st := range resp.GetStatus() {
				switch judgeCode(codes.Code(st.GetCode())) {
				case applied, unmet:
				default:
					failed, err = append(failed, left[j]), status.Error(codes.Code(st.GetCode()), st.GetMessage())
				}
			}
			left = failed
			return err
		})
	})
	return errors.Join(errs...)
}

// partPaths names the parts of a stored body.
func (s *Store) partPaths(n name, h head) []string {
	paths := make([]string, h.parts)
	for part := range paths {
		paths[part] = s.partPath(n, h.token, part)
	}
	return paths
}

// dropParts removes the parts of a unit that was not written.
func (s *Store) dropParts(w *work) {
	if !w.placed || w.open {
		return // an open unit may still need them; if not, they expire
	}
	var paths []string
	for i := range w.targets {
		if t := &w.targets[i]; t.parts > 0 {
			paths = append(paths, s.partPaths(t.name, head{token: w.token, parts: t.parts})...)
		}
	}
	s.removeParts(paths)
}

// removeParts deletes parts that no document names. What a failure leaves takes up room, and is never read.
func (s *Store) removeParts(paths []string) {
	if len(paths) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	_ = s.writePlain(ctx, deletions(paths))
}

func deletions(paths []string) []*pb.Write {
	writes := make([]*pb.Write, len(paths))
	for i, p := range paths {
		writes[i] = &pb.Write{Operation: &pb.Write_Delete{Delete: p}}
	}
	return writes
}

// commitWrites makes the writes of a unit's commit: first its documents, in the order of its targets, then its parts.
func (s *Store) commitWrites(w *work) []*pb.Write {
	var writes []*pb.Write
	var old []string
	for i := range w.targets {
		t := &w.targets[i]
		if !t.sent() {
			continue
		}
		writes = append(writes, s.encodeTarget(w, t))
		if t.head.parts > 0 {
			old = append(old, s.partPaths(t.name, t.head)...)
		}
	}
	for i := range w.targets {
		t := &w.targets[i]
		if t.parts == 0 || !w.expires {
			continue
		}
		for _, p := range s.partPaths(t.name, head{token: w.token, parts: t.parts}) {
			writes = append(writes, &pb.Write{
				Operation:       &pb.Write_Update{Update: &pb.Document{Name: p}},
				UpdateMask:      &pb.DocumentMask{FieldPaths: []string{fieldExpires}},
				CurrentDocument: exists(true),
			})
		}
	}
	if w.later = nil; len(writes)+len(old) > batchWrites {
		w.later, old = old, nil
	}
	return append(writes, deletions(old)...)
}

// load completes a document whose body is in parts. One that was replaced meanwhile is read again.
func (s *Store) load(ctx context.Context, d stored) (store.Doc, error) {
	n := name{d.doc.Kind, d.doc.ID}
	for d.head.parts > 0 {
		// 1. Its parts.
		body, err := s.readParts(ctx, n, d)
		if err == nil {
			d.doc.Body = body
			break
		}
		if !errors.Is(err, errPartGone) {
			return store.Doc{}, err
		}
		// 2. Gone with the document, or lost?
		again, err2 := s.fetch(ctx, n.kind, []string{n.id})
		switch {
		case err2 != nil:
			return store.Doc{}, err2
		case again[0].doc.Version == 0:
			return store.Doc{}, fmt.Errorf("%s: %w", n, store.ErrNotFound)
		case again[0].head.token == d.head.token:
			return store.Doc{}, fmt.Errorf("%s: %w: %w", n, store.ErrNotFound, err)
		}
		d = again[0]
	}
	return d.doc, nil
}

func (s *Store) readParts(ctx context.Context, n name, d stored) ([]byte, error) {
	paths := s.partPaths(n, d.head)
	found, err := s.get(ctx, fmt.Sprintf("read the %d parts of %s", len(paths), n), paths, nil)
	if err != nil {
		return nil, err
	}
	body := make([]byte, 0, d.size)
	for i, p := range paths {
		part, ok := found[p]
		if !ok {
			return nil, fmt.Errorf("%w: part %d of %d", errPartGone, i+1, len(paths))
		}
		body = append(body, part.GetFields()[fieldBody].GetBytesValue()...)
	}
	if len(body) != d.size {
		return nil, fmt.Errorf("%w: its parts have %d bytes, and it had %d", errPartGone, len(body), d.size)
	}
	return body, nil
}
