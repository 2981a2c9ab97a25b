package firestore

import (
	"context"
	"errors"
	"fmt"
	"io"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/errand-run/errand/shared/store"
)

// search is a query of the closed set: documents of a kind under equalities, in an order, within bounds of the first
// field of the order, after a place. Each shape is served by one index of [Indexes].
type search struct {
	kind   store.Kind
	equal  []condition
	bounds []bound
	order  []order
	after  []*pb.Value // of the fields of the order; nil from the start
	limit  int
	heads  bool // heads and owners alone
}

// condition holds when the field has one of the values.
type condition struct {
	field  string
	values []*pb.Value
}

type bound struct {
	field string
	op    pb.StructuredQuery_FieldFilter_Operator
	value *pb.Value
}

type order struct {
	field string
	dir   pb.StructuredQuery_Direction
}

const (
	rising  = pb.StructuredQuery_ASCENDING
	falling = pb.StructuredQuery_DESCENDING
)

func fieldRef(f string) *pb.StructuredQuery_FieldReference {
	return &pb.StructuredQuery_FieldReference{FieldPath: f}
}

func (q search) structured() *pb.StructuredQuery {
	out := &pb.StructuredQuery{
		From:  []*pb.StructuredQuery_CollectionSelector{{CollectionId: collections[q.kind]}},
		Limit: wrapperspb.Int32(int32(q.limit)),
	}
	var filters []*pb.StructuredQuery_Filter
	filter := func(field string, op pb.StructuredQuery_FieldFilter_Operator, v *pb.Value) {
		f := &pb.StructuredQuery_FieldFilter{Field: fieldRef(field), Op: op, Value: v}
		filters = append(filters, &pb.StructuredQuery_Filter{FilterType: &pb.StructuredQuery_Filter_FieldFilter{FieldFilter: f}})
	}
	for _, c := range q.equal {
		if len(c.values) == 1 {
			filter(c.field, pb.StructuredQuery_FieldFilter_EQUAL, c.values[0])
			continue
		}
		list := &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: c.values}}
		filter(c.field, pb.StructuredQuery_FieldFilter_IN, &pb.Value{ValueType: list})
	}
	for _, b := range q.bounds {
		filter(b.field, b.op, b.value)
	}
	switch len(filters) {
	case 0:
	case 1:
		out.Where = filters[0]
	default:
		all := &pb.StructuredQuery_CompositeFilter{Op: pb.StructuredQuery_CompositeFilter_AND, Filters: filters}
		out.Where = &pb.StructuredQuery_Filter{FilterType: &pb.StructuredQuery_Filter_CompositeFilter{CompositeFilter: all}}
	}
	for _, o := range q.order {
		out.OrderBy = append(out.OrderBy, &pb.StructuredQuery_Order{Field: fieldRef(o.field), Direction: o.dir})
	}
	if q.after != nil {
		out.StartAt = &pb.Cursor{Values: q.after, Before: false}
	}
	if q.heads {
		paths := append(headMask().GetFieldPaths(), fieldOwner)
		out.Select = &pb.StructuredQuery_Projection{}
		for _, p := range paths {
			out.Select.Fields = append(out.Select.Fields, fieldRef(p))
		}
	}
	return out
}

// query runs a search once, and again from its start when it fails.
func (s *Store) query(ctx context.Context, q search) ([]stored, error) {
	var out []stored
	err := s.repeat(ctx, q.what(), func(ctx context.Context) error {
		out = out[:0]
		return s.stream(ctx, q, func(d stored) error {
			out = append(out, d)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (q search) what() string { return "query of " + collections[q.kind] }

// stream runs a search once, and calls each for every document as it comes.
func (s *Store) stream(ctx context.Context, q search, each func(stored) error) error {
	stream, err := s.client.RunQuery(ctx, &pb.RunQueryRequest{
		Parent:    s.database + "/documents",
		QueryType: &pb.RunQueryRequest_StructuredQuery{StructuredQuery: q.structured()},
	})
	if err != nil {
		return err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		d := resp.GetDocument()
		if d == nil {
			continue
		}
		found, err := decode(q.kind, d)
		if err != nil {
			return fmt.Errorf("%s: %w", q.what(), err)
		}
		s.known.put(name{q.kind, found.doc.ID}, found.head)
		if err := each(found); err != nil {
			return err
		}
	}
}

// page runs a search and completes the documents that it finds. One of whose body parts are gone stands without it: a
// page that left it out would look like the last one, and whoever wants the body is told by Get.
func (s *Store) page(ctx context.Context, q search) ([]store.Doc, error) {
	found, err := s.query(ctx, q)
	if err != nil {
		return nil, err
	}
	docs := make([]store.Doc, len(found))
	for i := range found {
		switch docs[i], err = s.load(ctx, found[i]); {
		case errors.Is(err, store.ErrNotFound):
			docs[i] = found[i].doc
		case err != nil:
			return nil, err
		}
	}
	return docs, nil
}
