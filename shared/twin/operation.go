package twin

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// operation is a long-running one. While it runs its metadata is the resource as it is.
type operation struct {
	seq     int64
	name    string
	current func() proto.Message // needs the lock; nil when done
	result  *longrunningpb.Operation
	done    chan struct{}
}

// newOperation opens an operation; current tells the resource that it is about and is called with the lock. It needs
// the lock.
func (t *Twin) newOperation(about string, current func() proto.Message) *operation {
	op := &operation{
		seq: t.next(), name: locationOf(about) + "/operations/" + newUUID(),
		current: current, done: make(chan struct{}),
	}
	t.operations[op.name] = op
	if len(t.operations) > maxOperations+maxOperations/10 {
		t.forgetOperations()
	}
	return op
}

// forgetOperations drops the oldest finished ones, many at a time, for looking through them is not free. It needs the
// lock.
func (t *Twin) forgetOperations() {
	var over []*operation
	for _, op := range t.operations {
		if op.result != nil {
			over = append(over, op)
		}
	}
	slices.SortFunc(over, func(a, b *operation) int { return cmp.Compare(a.seq, b.seq) })
	for _, op := range over[:min(len(over), len(t.operations)-maxOperations)] {
		delete(t.operations, op.name)
	}
}

// finish ends an operation with the resource as it is now, or with an error. It needs the lock.
func (op *operation) finish(err error) {
	if op == nil || op.result != nil {
		return
	}
	m := pack(op.current())
	op.result = &longrunningpb.Operation{Name: op.name, Metadata: m, Done: true}
	if err != nil {
		op.result.Result = &longrunningpb.Operation_Error{Error: status.Convert(err).Proto()}
	} else {
		op.result.Result = &longrunningpb.Operation_Response{Response: m}
	}
	op.current = nil
	close(op.done)
}

// message is the operation as the API tells it. It needs the lock.
func (op *operation) message() *longrunningpb.Operation {
	if op.result != nil {
		return op.result
	}
	return &longrunningpb.Operation{Name: op.name, Metadata: pack(op.current())}
}

// finished is an operation that has ended at once. It needs the lock.
func (t *Twin) finished(about proto.Message, name string, err error) *longrunningpb.Operation {
	op := t.newOperation(name, func() proto.Message { return about })
	op.finish(err)
	return op.message()
}

// preview answers a request that only validates: nothing is kept, and the operation has no name.
func preview(m proto.Message) *longrunningpb.Operation {
	a := pack(m)
	return &longrunningpb.Operation{Metadata: a, Done: true, Result: &longrunningpb.Operation_Response{Response: a}}
}

func pack(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic("twin: a message of the API does not marshal: " + err.Error())
	}
	return a
}

type operationsServer struct {
	longrunningpb.UnimplementedOperationsServer
	t *Twin
}

func (s *operationsServer) find(name string) (*operation, error) {
	if err := s.t.checkOperation(name); err != nil {
		return nil, err
	}
	op, ok := s.t.operations[name]
	if !ok {
		return nil, notFound("Operation", name)
	}
	return op, nil
}

func (t *Twin) checkOperation(name string) error {
	location, id, ok := strings.Cut(name, "/operations/")
	if !ok || id == "" {
		return status.Errorf(codes.InvalidArgument, "name %.200q: want projects/PROJECT/locations/REGION/operations/OPERATION", name)
	}
	return t.checkParent(location)
}

// GetOperation is the state of an operation.
func (s *operationsServer) GetOperation(_ context.Context, r *longrunningpb.GetOperationRequest) (*longrunningpb.Operation, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	op, err := s.find(r.GetName())
	if err != nil {
		return nil, err
	}
	return op.message(), nil
}

// ListOperations is a page of a location's operations; filters are not supported.
func (s *operationsServer) ListOperations(_ context.Context, r *longrunningpb.ListOperationsRequest) (*longrunningpb.ListOperationsResponse, error) {
	parent := strings.TrimSuffix(r.GetName(), "/operations")
	if err := s.t.checkParent(parent); err != nil {
		return nil, err
	}
	if r.GetFilter() != "" {
		return nil, status.Error(codes.Unimplemented, "list operations: the twin knows no filters")
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	var all []*operation
	for name, op := range s.t.operations {
		if below(name, parent) {
			all = append(all, op)
		}
	}
	page, next, err := paginate(all, func(op *operation) int64 { return op.seq }, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	answer := &longrunningpb.ListOperationsResponse{NextPageToken: next}
	for _, op := range page {
		answer.Operations = append(answer.Operations, op.message())
	}
	return answer, nil
}

// DeleteOperation forgets an operation; what it is about goes on.
func (s *operationsServer) DeleteOperation(_ context.Context, r *longrunningpb.DeleteOperationRequest) (*emptypb.Empty, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if _, err := s.find(r.GetName()); err != nil {
		return nil, err
	}
	delete(s.t.operations, r.GetName())
	return new(emptypb.Empty), nil
}

// WaitOperation answers when the operation is done or its timeout has passed.
func (s *operationsServer) WaitOperation(ctx context.Context, r *longrunningpb.WaitOperationRequest) (*longrunningpb.Operation, error) {
	s.t.mu.Lock()
	op, err := s.find(r.GetName())
	s.t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if d := r.GetTimeout(); d != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(d.AsDuration(), time.Millisecond))
		defer cancel()
	}
	select {
	case <-op.done:
	case <-ctx.Done():
	case <-s.t.ctx.Done():
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	return op.message(), nil
}
