package twin

import (
	"context"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Defaults of a task, as Cloud Run's.
const (
	defaultRetries     = 3
	defaultTaskTimeout = 10 * time.Minute
	maxTaskTimeout     = 168 * time.Hour
	maxJobID           = 63
)

type jobsServer struct {
	jobsRest
	policyServer
	t *Twin
}

// jobsRest is what the server has from the generated code, a level below policyServer, which has the same methods.
type jobsRest struct{ runpb.UnimplementedJobsServer }

// prepareJob checks a declaration and fills in the defaults.
func (t *Twin) prepareJob(where string, j *runpb.Job) error {
	bad := func(format string, args ...any) error {
		return status.Errorf(codes.InvalidArgument, where+": "+format, args...)
	}
	e := j.GetTemplate()
	task := e.GetTemplate()
	switch {
	case task == nil:
		return bad("template.template is missing: it declares the containers of a task")
	case e.GetTaskCount() < 0 || e.GetTaskCount() > maxTaskCount:
		return bad("task count %d, want 1 to %d", e.GetTaskCount(), maxTaskCount)
	case e.GetParallelism() < 0:
		return bad("parallelism %d, want 0 (no limit) or more", e.GetParallelism())
	case task.GetMaxRetries() < 0 || task.GetMaxRetries() > maxAttempts:
		return bad("max retries %d, want 0 to %d", task.GetMaxRetries(), maxAttempts)
	}
	if err := checkTimeout(where, task.GetTimeout()); err != nil {
		return err
	}
	if err := checkContainers(where, task.GetContainers(), len(task.GetVolumes()), false); err != nil {
		return err
	}
	if e.GetTaskCount() == 0 {
		e.TaskCount = 1
	}
	if task.GetRetries() == nil {
		task.Retries = &runpb.TaskTemplate_MaxRetries{MaxRetries: defaultRetries}
	}
	if task.GetTimeout() == nil {
		task.Timeout = durationpb.New(defaultTaskTimeout)
	}
	if task.GetServiceAccount() == "" {
		task.ServiceAccount = t.DefaultAccount()
	}
	return nil
}

func checkTimeout(where string, d *durationpb.Duration) error {
	if d != nil && (d.AsDuration() <= 0 || d.AsDuration() > maxTaskTimeout) {
		return status.Errorf(codes.InvalidArgument, "%s: timeout %s, want more than 0 and at most %s", where, d.AsDuration(), maxTaskTimeout)
	}
	return nil
}

// CreateJob makes a job.
func (s *jobsServer) CreateJob(_ context.Context, r *runpb.CreateJobRequest) (*longrunningpb.Operation, error) {
	name := r.GetParent() + "/jobs/" + r.GetJobId()
	if err := s.t.checkParent(r.GetParent()); err != nil {
		return nil, err
	}
	if err := checkID("job", r.GetJobId(), maxJobID); err != nil {
		return nil, err
	}
	return s.t.putJob(change[*runpb.Job]{name: name, declared: r.GetJob(), create: true}, r.GetValidateOnly())
}

// putJob creates or changes a job.
func (t *Twin) putJob(c change[*runpb.Job], validateOnly bool) (*longrunningpb.Operation, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j, exists, err := declare(t, &t.jobs, c, t.prepareJob)
	if err != nil {
		return nil, err
	}
	if validateOnly {
		return preview(j), nil
	}
	ready := t.haveImages(j.GetTemplate().GetTemplate().GetContainers())
	j.TerminalCondition = readyCondition(ready)
	if err := keep(t, &t.jobs, j, exists); err != nil {
		return nil, err
	}
	return t.finished(j, c.name, ready), nil
}

// readyCondition is the condition of a resource that is ready, or whose image is missing.
func readyCondition(err error) *runpb.Condition {
	c := &runpb.Condition{Type: "Ready", State: runpb.Condition_CONDITION_SUCCEEDED, LastTransitionTime: timestamppb.Now()}
	if err != nil {
		c.State, c.Severity, c.Message = runpb.Condition_CONDITION_FAILED, runpb.Condition_ERROR, status.Convert(err).Message()
		c.Reasons = &runpb.Condition_Reason{Reason: runpb.Condition_CONTAINER_MISSING}
	}
	return c
}

// GetJob is a job.
func (s *jobsServer) GetJob(_ context.Context, r *runpb.GetJobRequest) (*runpb.Job, error) {
	if err := s.t.checkName(r.GetName(), false, "jobs"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	return s.t.jobs.get(r.GetName())
}

// ListJobs is a page of a location's jobs, the newest first.
func (s *jobsServer) ListJobs(_ context.Context, r *runpb.ListJobsRequest) (*runpb.ListJobsResponse, error) {
	if err := s.t.checkParent(r.GetParent()); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	jobs, next, err := s.t.jobs.list(r.GetParent(), r.GetPageSize(), r.GetPageToken())
	return &runpb.ListJobsResponse{Jobs: jobs, NextPageToken: next}, err
}

// UpdateJob replaces a job's declaration.
func (s *jobsServer) UpdateJob(_ context.Context, r *runpb.UpdateJobRequest) (*longrunningpb.Operation, error) {
	name := r.GetJob().GetName()
	if err := s.t.checkName(name, false, "jobs"); err != nil {
		return nil, err
	}
	if err := checkID("job", lastID(name), maxJobID); err != nil {
		return nil, err
	}
	return s.t.putJob(change[*runpb.Job]{name: name, declared: r.GetJob(), missing: r.GetAllowMissing()}, r.GetValidateOnly())
}

// DeleteJob removes a job and its executions. Those that run are cancelled.
func (s *jobsServer) DeleteJob(_ context.Context, r *runpb.DeleteJobRequest) (*longrunningpb.Operation, error) {
	if err := s.t.checkName(r.GetName(), false, "jobs"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	j, err := discard(s.t, &s.t.jobs, r.GetName(), r.GetEtag(), r.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	if r.GetValidateOnly() {
		return preview(j), nil
	}
	for name, e := range s.t.executions {
		if below(name, r.GetName()) {
			e.cancelled = true
			e.cancel()
			delete(s.t.executions, name)
		}
	}
	return s.t.finished(j, r.GetName(), nil), nil
}

// RunJob starts an execution. It is not idempotent, and has no request id: two calls are two executions.
func (s *jobsServer) RunJob(_ context.Context, r *runpb.RunJobRequest) (*longrunningpb.Operation, error) {
	if err := s.t.checkName(r.GetName(), false, "jobs"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	e, m, err := s.t.runJob(r)
	if err != nil {
		return nil, err
	}
	if e == nil {
		return preview(m), nil
	}
	return e.op.message(), nil
}

// runJob starts an execution, or only says what it would be where the request only validates. It needs the lock.
func (t *Twin) runJob(r *runpb.RunJobRequest) (*execution, *runpb.Execution, error) {
	// 1. What is to run.
	j, err := t.jobs.get(r.GetName())
	if err != nil {
		return nil, nil, err
	}
	if err := checkEtag("Job", j, r.GetEtag()); err != nil {
		return nil, nil, err
	}
	template, err := override(j.GetTemplate(), r.GetOverrides())
	if err != nil {
		return nil, nil, err
	}
	if err := t.haveImages(template.GetTemplate().GetContainers()); err != nil {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "run Job %q: it is not ready: %s", r.GetName(), status.Convert(err).Message())
	}
	e := t.newExecution(j, template)
	if r.GetValidateOnly() {
		return nil, e.message(), nil
	}
	// 2. Whether it may.
	location := locationOf(r.GetName())
	if err := t.quota.take(location); err != nil {
		return nil, nil, err
	}
	if err := t.roomFor(location); err != nil {
		return nil, nil, err
	}
	if t.closed {
		return nil, nil, status.Error(codes.Unavailable, errClosed.Error())
	}
	// 3. Start it.
	t.executions[e.name] = e
	e.op = t.newOperation(e.name, func() proto.Message { return e.message() })
	t.referTo(e, true)
	t.active.Go(e.run)
	return e, nil, nil
}

// override is a template with the overrides of a call.
func override(template *runpb.ExecutionTemplate, o *runpb.RunJobRequest_Overrides) (*runpb.ExecutionTemplate, error) {
	bad := func(format string, args ...any) error {
		return status.Errorf(codes.InvalidArgument, "overrides: "+format, args...)
	}
	e := clone(template)
	if o.GetTaskCount() < 0 || o.GetTaskCount() > maxTaskCount {
		return nil, bad("task count %d, want 1 to %d", o.GetTaskCount(), maxTaskCount)
	}
	if o.GetTaskCount() > 0 {
		e.TaskCount = o.GetTaskCount()
	}
	if err := checkTimeout("overrides", o.GetTimeout()); err != nil {
		return nil, err
	}
	if o.GetTimeout() != nil {
		e.Template.Timeout = o.GetTimeout()
	}
	containers := e.GetTemplate().GetContainers()
	for _, change := range o.GetContainerOverrides() {
		var c *runpb.Container
		for i, each := range containers {
			if change.GetName() == "" && i == ingressOf(containers) || change.GetName() != "" && each.GetName() == change.GetName() {
				c = each
			}
		}
		if c == nil {
			return nil, bad("the job has no container %.80q", change.GetName())
		}
		if change.GetClearArgs() && len(change.GetArgs()) > 0 {
			return nil, bad("container %q: arguments are given and cleared at once", c.GetName())
		}
		if change.GetClearArgs() || len(change.GetArgs()) > 0 {
			c.Args = change.GetArgs()
		}
		if err := checkArgs(c.GetArgs()); err != nil {
			return nil, bad("container %q: %s", c.GetName(), err)
		}
		if err := checkEnv(change.GetEnv()); err != nil {
			return nil, bad("container %q: %s", c.GetName(), err)
		}
		for _, v := range change.GetEnv() {
			c.Env = withEnv(c.Env, v)
		}
		if err := checkEnv(c.Env); err != nil {
			return nil, bad("container %q: %s", c.GetName(), err)
		}
	}
	return e, nil
}

// withEnv adds a variable, or replaces the one of its name.
func withEnv(env []*runpb.EnvVar, v *runpb.EnvVar) []*runpb.EnvVar {
	for i, old := range env {
		if old.GetName() == v.GetName() {
			env[i] = v
			return env
		}
	}
	return append(env, v)
}

// referTo tells the job of a new execution, or how its newest is now; older ones it does not tell of. It needs the lock.
func (t *Twin) referTo(e *execution, fresh bool) {
	j, err := t.jobs.get(e.job)
	if err != nil || !fresh && j.GetLatestCreatedExecution().GetName() != lastID(e.name) {
		return
	}
	j = clone(j)
	if fresh {
		j.ExecutionCount++
	}
	j.LatestCreatedExecution = &runpb.ExecutionReference{
		Name: lastID(e.name), CreateTime: timestamppb.New(e.created), CompletionTime: stamp(e.completed), CompletionStatus: e.completion(),
	}
	t.jobs.put(j)
}
