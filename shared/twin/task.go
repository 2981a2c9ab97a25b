package twin

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

type taskState int

const (
	taskWaits taskState = iota
	taskRuns
	taskSucceeded
	taskFailed
	taskCancelled
)

// task is one of an execution. What changes is guarded by the twin's lock.
type task struct {
	e     *execution
	index int

	uid       string // made when it is first told
	state     taskState
	attempt   int
	started   time.Time
	completed time.Time
	updated   time.Time
	last      *runpb.TaskAttemptResult
	problem   string
}

func (t *task) name() string {
	return t.e.name + "/tasks/" + lastID(t.e.name) + "-task" + strconv.Itoa(t.index)
}

// run takes a task through its attempts.
func (t *task) run() {
	template := t.e.template.GetTemplate()
	for attempt := 0; ; attempt++ {
		// 1. One attempt.
		u, err := t.e.t.launch(t.e.ctx, plan{
			resource: t.name(), account: template.GetServiceAccount(), containers: template.GetContainers(),
			env: t.e.taskEnv(t.index, attempt), task: true, limit: template.GetTimeout().AsDuration(),
		})
		if err == nil {
			t.begins(attempt)
			stop := context.AfterFunc(t.e.ctx, func() { u.stop(t.e.t.opts.CancelGrace) })
			<-u.done
			stop()
			err = taskError(u.exit)
		}
		// 2. What follows from its end.
		if t.ends(u, err, attempt >= int(template.GetMaxRetries())) {
			return
		}
	}
}

// taskError is why an attempt failed, nil if it did not.
func taskError(e exit) error {
	switch {
	case e.timeout:
		return status.Error(codes.DeadlineExceeded, "The configured timeout was reached.")
	case e.problem != nil:
		return status.Error(codes.ResourceExhausted, "The container was ended: "+e.problem.Error()+".")
	case e.signal != 0:
		return status.Errorf(codes.Unknown, "The container was terminated by signal %d.", e.signal)
	case e.code != 0:
		return status.Error(codes.Unknown, "The container exited with an error.")
	}
	return nil
}

// begins notes that an attempt runs.
func (t *task) begins(attempt int) {
	t.e.t.mu.Lock()
	defer t.e.t.mu.Unlock()
	t.attempt, t.updated = attempt, time.Now()
	if t.state != taskRuns {
		t.e.running++
	}
	t.state = taskRuns
	if t.started.IsZero() {
		t.started = t.updated
	}
	if t.e.started.IsZero() {
		t.e.started = t.updated
		t.e.t.referTo(t.e, false)
	}
	t.e.touch()
}

// ends notes the end of an attempt and reports whether it was the last.
func (t *task) ends(u *unit, err error, last bool) bool {
	t.e.t.mu.Lock()
	defer t.e.t.mu.Unlock()
	t.updated = time.Now()
	if t.e.ctx.Err() != nil && (err != nil || u == nil) {
		t.end(taskCancelled)
		return true
	}
	t.last = &runpb.TaskAttemptResult{Status: &rpcstatus.Status{Code: int32(codes.OK)}}
	if err != nil {
		t.last.Status = status.Convert(err).Proto()
	}
	if u != nil {
		t.last.ExitCode, t.last.TermSignal = u.exit.code, u.exit.signal
	}
	switch {
	case err == nil:
		t.end(taskSucceeded)
	case last:
		t.problem = status.Convert(err).Message()
		t.end(taskFailed)
	default:
		t.e.retried++
		t.attempt++
		t.e.touch()
		return false
	}
	return true
}

// end notes the end of a task. It needs the lock.
func (t *task) end(state taskState) {
	if t.state == taskRuns {
		t.e.running--
	}
	t.state, t.completed, t.updated = state, time.Now(), time.Now()
	switch state {
	case taskSucceeded:
		t.e.succeeded++
	case taskFailed:
		if t.e.failed == 0 {
			t.e.problem = fmt.Sprintf("Task %s failed with message: %s", lastID(t.name()), t.problem)
		}
		t.e.failed++
	case taskCancelled:
		t.e.gone++
	}
	t.e.touch()
}

// message is the task as the API tells it. It needs the lock.
func (t *task) message() *runpb.Task {
	if t.uid == "" {
		t.uid = newUUID()
	}
	template := t.e.template.GetTemplate()
	c := &runpb.Condition{Type: "Completed", State: runpb.Condition_CONDITION_PENDING, LastTransitionTime: timestamppb.New(t.e.created)}
	switch t.state {
	case taskRuns:
		c.State, c.LastTransitionTime = runpb.Condition_CONDITION_RECONCILING, stamp(t.started)
	case taskSucceeded:
		c.State, c.LastTransitionTime = runpb.Condition_CONDITION_SUCCEEDED, stamp(t.completed)
	case taskFailed, taskCancelled:
		c.State, c.LastTransitionTime, c.Message = runpb.Condition_CONDITION_FAILED, stamp(t.completed), t.problem
		reason := runpb.Condition_NON_ZERO_EXIT_CODE
		if t.state == taskCancelled {
			reason, c.Message = runpb.Condition_CANCELLED, "Execution was cancelled."
		}
		c.Reasons = &runpb.Condition_ExecutionReason_{ExecutionReason: reason}
	}
	updated := t.updated
	if updated.IsZero() {
		updated = t.e.created
	}
	return &runpb.Task{
		Name: t.name(), Uid: t.uid, Generation: 1, ObservedGeneration: 1, Job: lastID(t.e.job), Execution: lastID(t.e.name),
		CreateTime: timestamppb.New(t.e.created), ScheduledTime: stamp(t.started), StartTime: stamp(t.started), CompletionTime: stamp(t.completed),
		UpdateTime: timestamppb.New(updated), Containers: template.GetContainers(), MaxRetries: template.GetMaxRetries(),
		Timeout: template.GetTimeout(), ServiceAccount: template.GetServiceAccount(), Reconciling: t.completed.IsZero(),
		Conditions: []*runpb.Condition{c}, Index: int32(t.index), Retried: int32(t.attempt), LastAttemptResult: t.last,
		Etag: fmt.Sprintf(`"%s-%d-%d"`, t.uid[:8], t.attempt, t.state),
	}
}

type tasksServer struct {
	runpb.UnimplementedTasksServer
	t *Twin
}

// GetTask is a task.
func (s *tasksServer) GetTask(_ context.Context, r *runpb.GetTaskRequest) (*runpb.Task, error) {
	if err := s.t.checkName(r.GetName(), false, "jobs", "executions", "tasks"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	execution, id, _ := strings.Cut(r.GetName(), "/tasks/")
	if e, ok := s.t.executions[execution]; ok {
		digits, ok := strings.CutPrefix(id, lastID(execution)+"-task")
		if i, err := strconv.Atoi(digits); ok && err == nil && i < len(e.tasks) && strconv.Itoa(i) == digits {
			return e.tasks[i].message(), nil
		}
	}
	return nil, notFound("Task", r.GetName())
}

// ListTasks is a page of an execution's tasks, or of all executions' with "-" for the execution, by falling index.
func (s *tasksServer) ListTasks(_ context.Context, r *runpb.ListTasksRequest) (*runpb.ListTasksResponse, error) {
	if err := s.t.checkName(r.GetParent(), true, "jobs", "executions"); err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	var all []*task
	for name, e := range s.t.executions {
		if below(name+"/tasks/-", r.GetParent()) {
			all = append(all, e.tasks...)
		}
	}
	// Executions and indexes in one number: no execution has as many tasks.
	number := func(t *task) int64 { return t.e.seq*(2*maxTaskCount) + int64(t.index) + 1 }
	page, next, err := paginate(all, number, r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	answer := &runpb.ListTasksResponse{NextPageToken: next}
	for _, t := range page {
		answer.Tasks = append(answer.Tasks, t.message())
	}
	return answer, nil
}
