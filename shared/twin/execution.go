package twin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// execution is one run of a job. What changes is guarded by the twin's lock.
type execution struct {
	t        *Twin
	seq      int64
	name     string
	job      string // full name
	uid      string
	template *runpb.ExecutionTemplate
	creator  string
	created  time.Time
	ctx      context.Context // ends when it is cancelled
	cancel   context.CancelFunc

	op        *operation   // of the call that started it
	cancels   []*operation // of calls that cancel it
	cancelled bool
	version   int
	updated   time.Time
	started   time.Time
	completed time.Time
	tasks     []*task
	next      int // the first task that nobody has taken
	running   int32
	succeeded int32
	failed    int32
	gone      int32 // cancelled
	retried   int32
	problem   string // of the first task that failed
}

// newExecution is an execution that nobody knows yet. It needs the lock.
func (t *Twin) newExecution(j *runpb.Job, template *runpb.ExecutionTemplate) *execution {
	now := time.Now()
	e := &execution{
		t: t, seq: t.next(), name: j.GetName() + "/executions/" + lastID(j.GetName()) + "-" + letters(5), job: j.GetName(),
		uid: newUUID(), template: template, creator: creator, created: now, updated: now,
	}
	e.ctx, e.cancel = context.WithCancel(t.ctx)
	e.tasks = make([]*task, template.GetTaskCount())
	for i := range e.tasks {
		e.tasks[i] = &task{e: e, index: i}
	}
	return e
}

// roomFor refuses one execution more than may run, and forgets old ones. It needs the lock.
func (t *Twin) roomFor(location string) error {
	running, kept := 0, 0
	finished := make(map[string][]*execution)
	for _, e := range t.executions {
		switch {
		case e.completed.IsZero() && locationOf(e.name) == location:
			running++
		case !e.completed.IsZero():
			finished[e.job] = append(finished[e.job], e)
			kept += len(e.tasks)
		}
	}
	if running >= t.opts.MaxRunning {
		return status.Errorf(codes.ResourceExhausted, "run a job in %s: %d executions run already, which is the most", location, running)
	}
	var over []*execution
	for _, es := range finished {
		slices.SortFunc(es, func(a, b *execution) int { return cmp.Compare(a.seq, b.seq) })
		n := max(len(es)-t.opts.MaxFinished, 0)
		for _, e := range es[:n] {
			delete(t.executions, e.name)
			kept -= len(e.tasks)
		}
		over = append(over, es[n:]...)
	}
	slices.SortFunc(over, func(a, b *execution) int { return cmp.Compare(a.seq, b.seq) })
	for _, e := range over {
		if kept <= maxTasks {
			break
		}
		delete(t.executions, e.name)
		kept -= len(e.tasks)
	}
	return nil
}

// run takes an execution from its start to its end.
func (e *execution) run() {
	defer e.cancel()
	// 1. As many hands as tasks may run at a time; each takes the next task, through all of its attempts.
	hands := len(e.tasks)
	if p := int(e.template.GetParallelism()); p > 0 {
		hands = min(hands, p)
	}
	var work sync.WaitGroup
	for range hands {
		work.Go(func() {
			for t := e.take(); t != nil; t = e.take() {
				t.run()
			}
		})
	}
	work.Wait()
	// 2. The end, with what is left as cancelled.
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	for _, t := range e.tasks {
		if t.completed.IsZero() {
			t.end(taskCancelled)
		}
	}
	e.completed = time.Now()
	e.touch()
	var err error
	if e.failed > 0 || e.gone > 0 {
		err = status.Error(codes.Aborted, e.verdict())
	}
	e.op.finish(err)
	for _, op := range e.cancels {
		op.finish(nil)
	}
	e.t.referTo(e, false)
}

// take is the next task that nobody has, nil when there is none or the execution is cancelled.
func (e *execution) take() *task {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if e.ctx.Err() != nil || e.next == len(e.tasks) {
		return nil
	}
	e.next++
	return e.tasks[e.next-1]
}

// touch notes a change. It needs the lock.
func (e *execution) touch() {
	e.version++
	e.updated = time.Now()
}

func (e *execution) etag() string { return fmt.Sprintf(`"%s-%d"`, e.uid[:8], e.version) }

// GetName and GetEtag make it something that a request's etag is checked against.
func (e *execution) GetName() string { return e.name }

// GetEtag is its version.
func (e *execution) GetEtag() string { return e.etag() }

func (e *execution) completion() runpb.ExecutionReference_CompletionStatus {
	switch {
	case e.completed.IsZero() && e.started.IsZero():
		return runpb.ExecutionReference_EXECUTION_PENDING
	case e.completed.IsZero():
		return runpb.ExecutionReference_EXECUTION_RUNNING
	case e.cancelled:
		return runpb.ExecutionReference_EXECUTION_CANCELLED
	case e.failed > 0 || e.gone > 0:
		return runpb.ExecutionReference_EXECUTION_FAILED
	}
	return runpb.ExecutionReference_EXECUTION_SUCCEEDED
}

// verdict is the message of a finished execution.
func (e *execution) verdict() string {
	switch {
	case e.failed > 0 && !e.cancelled:
		return e.problem
	case e.gone > 0 || e.cancelled:
		return "Execution was cancelled."
	}
	return "Execution completed successfully in " + seconds(e.completed.Sub(e.created)) + "."
}

// conditions are ordered as the API has them. They need the lock.
func (e *execution) conditions() []*runpb.Condition {
	at := func(kind string, state runpb.Condition_State, when time.Time, message string) *runpb.Condition {
		return &runpb.Condition{Type: kind, State: state, LastTransitionTime: stamp(when), Message: message}
	}
	const good, waits = runpb.Condition_CONDITION_SUCCEEDED, runpb.Condition_CONDITION_PENDING
	completed := at("Completed", runpb.Condition_CONDITION_RECONCILING, e.created, "")
	switch {
	case e.completed.IsZero() && e.cancelled:
		completed.Message = "Execution is being cancelled."
		completed.Reasons = &runpb.Condition_ExecutionReason_{ExecutionReason: runpb.Condition_CANCELLING}
	case e.completed.IsZero():
		if e.started.IsZero() {
			completed.State = waits
		}
	case e.completion() == runpb.ExecutionReference_EXECUTION_SUCCEEDED:
		completed = at("Completed", good, e.completed, e.verdict())
	default:
		completed = at("Completed", runpb.Condition_CONDITION_FAILED, e.completed, e.verdict())
		reason := runpb.Condition_CANCELLED
		if e.failed > 0 && !e.cancelled {
			reason = runpb.Condition_NON_ZERO_EXIT_CODE
		}
		completed.Reasons = &runpb.Condition_ExecutionReason_{ExecutionReason: reason}
	}
	cs := []*runpb.Condition{completed, at("ResourcesAvailable", good, e.created, "Provisioned imported containers.")}
	if e.started.IsZero() {
		return append(cs, at("Started", waits, e.created, "Waiting for a task to start."))
	}
	return append(cs, at("Started", good, e.started, "Started deployed execution in "+seconds(e.started.Sub(e.created))+"."))
}

// message is the execution as the API tells it. It needs the lock.
func (e *execution) message() *runpb.Execution {
	return &runpb.Execution{
		Name: e.name, Uid: e.uid, Creator: e.creator, Generation: 1, Job: lastID(e.job),
		Labels: e.template.GetLabels(), Annotations: e.template.GetAnnotations(),
		CreateTime: timestamppb.New(e.created), StartTime: stamp(e.started), CompletionTime: stamp(e.completed), UpdateTime: timestamppb.New(e.updated),
		Parallelism: e.template.GetParallelism(), TaskCount: int32(len(e.tasks)), Template: e.template.GetTemplate(),
		Reconciling: e.completed.IsZero(), Conditions: e.conditions(), ObservedGeneration: 1,
		RunningCount: e.running, SucceededCount: e.succeeded, FailedCount: e.failed, CancelledCount: e.gone, RetriedCount: e.retried,
		LogUri: "https://console.cloud.google.com/logs/viewer?project=" + e.t.opts.Project, Etag: e.etag(),
		Client: e.template.GetClient(), ClientVersion: e.template.GetClientVersion(),
	}
}

// stamp is a time as the API has it, nil when it has not come.
func stamp(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

type executionsServer struct {
	runpb.UnimplementedExecutionsServer
	t *Twin
}

// find needs the lock.
func (t *Twin) findExecution(name string) (*execution, error) {
	if err := t.checkName(name, false, "jobs", "executions"); err != nil {
		return nil, err
	}
	e, ok := t.executions[name]
	if !ok {
		return nil, notFound("Execution", name)
	}
	return e, nil
}

// GetExecution is an execution.
func (s *executionsServer) GetExecution(_ context.Context, r *runpb.GetExecutionRequest) (*runpb.Execution, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	e, err := s.t.findExecution(r.GetName())
	if err != nil {
		return nil, err
	}
	return e.message(), nil
}

// ListExecutions is a page of a job's executions, or of all jobs' with "-" for the job, the newest first.
func (s *executionsServer) ListExecutions(_ context.Context, r *runpb.ListExecutionsRequest) (*runpb.ListExecutionsResponse, error) {
	if err := s.t.checkName(r.GetParent(), true, "jobs"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	page, next, err := s.t.listExecutions(r.GetParent(), r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	answer := &runpb.ListExecutionsResponse{NextPageToken: next}
	for _, e := range page {
		answer.Executions = append(answer.Executions, e.message())
	}
	return answer, nil
}

// listExecutions needs the lock.
func (t *Twin) listExecutions(parent string, size int32, token string) ([]*execution, string, error) {
	var all []*execution
	for name, e := range t.executions {
		if below(name, parent) {
			all = append(all, e)
		}
	}
	return paginate(all, func(e *execution) int64 { return e.seq }, size, token)
}

// CancelExecution ends an execution: no task starts any more, and those that run are stopped.
func (s *executionsServer) CancelExecution(_ context.Context, r *runpb.CancelExecutionRequest) (*longrunningpb.Operation, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	e, err := s.t.findExecution(r.GetName())
	if err != nil {
		return nil, err
	}
	if err := checkEtag("Execution", e, r.GetEtag()); err != nil {
		return nil, err
	}
	if r.GetValidateOnly() {
		return preview(e.message()), nil
	}
	op, err := s.t.cancelExecution(e)
	if err != nil {
		return nil, err
	}
	return op.message(), nil
}

// cancelExecution needs the lock.
func (t *Twin) cancelExecution(e *execution) (*operation, error) {
	if !e.completed.IsZero() {
		return nil, status.Errorf(codes.FailedPrecondition, "cancel Execution %q: it has completed: %s", e.name, e.verdict())
	}
	op := t.newOperation(e.name, func() proto.Message { return e.message() })
	e.cancels = append(e.cancels, op)
	if !e.cancelled {
		e.cancelled = true
		e.touch()
		e.cancel()
	}
	return op, nil
}

// DeleteExecution removes an execution. One that runs is cancelled.
func (s *executionsServer) DeleteExecution(_ context.Context, r *runpb.DeleteExecutionRequest) (*longrunningpb.Operation, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	e, err := s.t.findExecution(r.GetName())
	if err != nil {
		return nil, err
	}
	if err := checkEtag("Execution", e, r.GetEtag()); err != nil {
		return nil, err
	}
	m := e.message()
	if r.GetValidateOnly() {
		return preview(m), nil
	}
	if e.completed.IsZero() {
		e.cancelled = true
		e.cancel()
	}
	delete(s.t.executions, e.name)
	m.DeleteTime = timestamppb.Now()
	return s.t.finished(m, e.name, nil), nil
}

// Executions are the executions of a job, by its id, that the twin still has, the oldest first: also those of calls
// whose answer was lost.
func (t *Twin) Executions(job string) []*runpb.Execution {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*execution
	for name, e := range t.executions {
		if strings.Split(name, "/")[5] == job {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *execution) int { return cmp.Compare(a.seq, b.seq) })
	found := make([]*runpb.Execution, len(all))
	for i, e := range all {
		found[i] = e.message()
	}
	return found
}

// taskEnv is what the platform sets in a task's containers.
func (e *execution) taskEnv(index, attempt int) map[string]string {
	return map[string]string{
		"CLOUD_RUN_JOB": lastID(e.job), "CLOUD_RUN_EXECUTION": lastID(e.name), "CLOUD_RUN_TASK_INDEX": strconv.Itoa(index),
		"CLOUD_RUN_TASK_ATTEMPT": strconv.Itoa(attempt), "CLOUD_RUN_TASK_COUNT": strconv.Itoa(len(e.tasks)),
	}
}
