package cloudrun

import (
	"context"
	"errors"
	"fmt"
	"time"

	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// platform is what is used of the Cloud Run Admin API. Errors carry gRPC's status. Every call is bounded in time.
type platform interface {
	service(ctx context.Context, name string) (*runpb.Service, error)
	instance(ctx context.Context, name string) (*runpb.Instance, error)
	startInstance(ctx context.Context, name string) error
	stopInstance(ctx context.Context, name string) error
	scalePool(ctx context.Context, name string, n int32) error
	job(ctx context.Context, name string) (*runpb.Job, error)
	// runJob starts an execution, once, and returns its name; "" if the platform took the call and did not tell.
	runJob(ctx context.Context, request *runpb.RunJobRequest) (string, error)
	// executions lists those of a job, up to maxListed.
	executions(ctx context.Context, job string) ([]*runpb.Execution, error)
	execution(ctx context.Context, name string) (*runpb.Execution, error)
	cancelExecution(ctx context.Context, name string) error
	tasks(ctx context.Context, execution string) ([]*runpb.Task, error)
	close() error
}

const (
	callWithin = 10 * time.Second
	// maxListed is how many executions or tasks are read at most: the platform keeps about a thousand that have ended and
	// lets a thousand run.
	maxListed = 5000
	pageSize  = 500
)

// google is the platform, by its own client. No call is repeated.
type google struct {
	services   *run.ServicesClient
	instances  *run.InstancesClient
	pools      *run.WorkerPoolsClient
	jobs       *run.JobsClient
	executed   *run.ExecutionsClient
	tasksOf    *run.TasksClient
	closeables []interface{ Close() error }
	within     time.Duration // of a call; three times that of a listing, which may have pages
}

// dial makes the clients. They connect when they are used.
func dial(ctx context.Context, o *Options) (*google, error) {
	opts := o.ClientOptions
	if o.Endpoint != "" {
		opts = append([]option.ClientOption{
			option.WithEndpoint(o.Endpoint), option.WithoutAuthentication(), option.WithTelemetryDisabled(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		}, opts...)
	}
	// What the transport repeats by itself a server may have seen.
	opts = append(opts[:len(opts):len(opts)], option.WithGRPCDialOption(grpc.WithDisableRetry()))
	g := &google{within: callWithin}
	var err error
	keep := func(c interface{ Close() error }, failed error) {
		if failed != nil {
			err = errors.Join(err, failed)
			return
		}
		g.closeables = append(g.closeables, c)
	}
	var e error
	g.services, e = run.NewServicesClient(ctx, opts...)
	keep(g.services, e)
	g.instances, e = run.NewInstancesClient(ctx, opts...)
	keep(g.instances, e)
	g.pools, e = run.NewWorkerPoolsClient(ctx, opts...)
	keep(g.pools, e)
	g.jobs, e = run.NewJobsClient(ctx, opts...)
	keep(g.jobs, e)
	g.executed, e = run.NewExecutionsClient(ctx, opts...)
	keep(g.executed, e)
	g.tasksOf, e = run.NewTasksClient(ctx, opts...)
	keep(g.tasksOf, e)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the Admin API: %w", err), g.close())
	}
	return g, nil
}

func (g *google) service(ctx context.Context, name string) (*runpb.Service, error) {
	ctx, cancel := context.WithTimeout(ctx, g.within)
	defer cancel()
	return g.services.GetService(ctx, &runpb.GetServiceRequest{Name: name})
}

func (g *google) instance(ctx context.Context, name string) (*runpb.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, g.within)
	defer cancel()
	return g.instances.GetInstance(ctx, &runpb.GetInstanceRequest{Name: name})
}

func (g *google) startInstance(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, g.within)
	defer cancel()
	_, err := g.instances.StartInstance(ctx, &runpb.StartInstanceRequest{Name: name})
	return err
}

func (g *google) stopInstance(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, g.within)
	defer cancel()
	_, err := g.instances.StopInstance(ctx, &runpb.StopInstanceRequest{Name: name})
	return err
}

func (g *google) scalePool(ctx context.Context, name string, n int32) error {
	ctx, cancel := context.WithTimeout(ctx, g.within)
	defer cancel()
	_, err := g.pools.UpdateWorkerPool(ctx, &runpb.UpdateWorkerPoolRequest{
		WorkerPool: &runpb.WorkerPool{Name: name, Scaling: &runpb.WorkerPoolScaling{ManualInstanceCount: &n}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"scaling.manual_instance_count"}},
	})
	return err
}

func (g *google) job(ctx context.Context, name string) (*runpb.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, g.within)
	defer cancel()
	return g.jobs.GetJob(ctx, &runpb.GetJobRequest{Name: name})
}

func (g *google) runJob(ctx context.Context, request *runpb.RunJobRequest) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, g.within)
	defer cancel()
	op, err := g.jobs.RunJob(ctx, request)
	if err != nil {
		return "", err
	}
	// What was started is known even if its description cannot be read.
	if e, err := op.Metadata(); err == nil && e.GetName() != "" {
		return e.GetName(), nil
	}
	return "", nil
}

func (g *google) executions(ctx context.Context, job string) ([]*runpb.Execution, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*g.within)
	defer cancel()
	it := g.executed.ListExecutions(ctx, &runpb.ListExecutionsRequest{Parent: job, PageSize: pageSize})
	return all(it.Next)
}

func (g *google) execution(ctx context.Context, name string) (*runpb.Execution, error) {
	ctx, cancel := context.WithTimeout(ctx, g.within)
	defer cancel()
	return g.executed.GetExecution(ctx, &runpb.GetExecutionRequest{Name: name})
}

func (g *google) cancelExecution(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, g.within)
	defer cancel()
	_, err := g.executed.CancelExecution(ctx, &runpb.CancelExecutionRequest{Name: name})
	return err
}

func (g *google) tasks(ctx context.Context, execution string) ([]*runpb.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*g.within)
	defer cancel()
	it := g.tasksOf.ListTasks(ctx, &runpb.ListTasksRequest{Parent: execution, PageSize: pageSize})
	return all(it.Next)
}

func (g *google) close() error {
	var errs []error
	for _, c := range g.closeables {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func all[V any](next func() (V, error)) ([]V, error) {
	var list []V
	for len(list) < maxListed {
		v, err := next()
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// advice is what to do about an error that says that a call certainly had no effect and that the same call never will;
// "" for any other error.
func advice(err error) string {
	switch status.Code(err) {
	case codes.NotFound:
		return "create the resource, or correct spec.resource of the target"
	case codes.PermissionDenied:
		return "grant the control plane's service account the role that this needs (roles/run.developer on the resource, or a narrower one)"
	case codes.Unauthenticated:
		return "give the control plane credentials of Google Cloud"
	case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition:
		return "correct the resource as the platform says"
	case codes.Unimplemented:
		return "the platform has no such call here: use another region or shape"
	}
	return ""
}
