package twin

import (
	"context"
	"fmt"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Apply creates a service, job, worker pool or instance through the API, or makes the one that is there like it, and waits
// until it is ready. Its name says where it goes: Parent() + "/services/ID". Afterwards the resource is as the API tells
// it, with its URLs.
func (t *Twin) Apply(ctx context.Context, resource proto.Message) error {
	conn, err := grpc.NewClient(t.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	defer func() { _ = conn.Close() }()
	var op *longrunningpb.Operation
	var name string
	switch r := resource.(type) {
	case *runpb.Service:
		name = r.GetName()
		op, err = runpb.NewServicesClient(conn).UpdateService(ctx, &runpb.UpdateServiceRequest{Service: r, AllowMissing: true})
	case *runpb.Job:
		name = r.GetName()
		op, err = runpb.NewJobsClient(conn).UpdateJob(ctx, &runpb.UpdateJobRequest{Job: r, AllowMissing: true})
	case *runpb.WorkerPool:
		name = r.GetName()
		op, err = runpb.NewWorkerPoolsClient(conn).UpdateWorkerPool(ctx, &runpb.UpdateWorkerPoolRequest{WorkerPool: r, AllowMissing: true})
	case *runpb.Instance:
		name = r.GetName()
		op, err = runpb.NewInstancesClient(conn).UpdateInstance(ctx, &runpb.UpdateInstanceRequest{Instance: r, AllowMissing: true})
	default:
		return fmt.Errorf("apply a %T: want a Service, Job, WorkerPool or Instance", resource)
	}
	for err == nil && !op.GetDone() {
		if err = ctx.Err(); err == nil {
			op, err = longrunningpb.NewOperationsClient(conn).WaitOperation(ctx, &longrunningpb.WaitOperationRequest{Name: op.GetName()})
		}
	}
	switch {
	case err != nil:
	case op.GetError() != nil:
		err = status.ErrorProto(op.GetError())
	default:
		err = op.GetResponse().UnmarshalTo(resource)
	}
	if err != nil {
		return fmt.Errorf("apply %s: %w", name, err)
	}
	return nil
}
