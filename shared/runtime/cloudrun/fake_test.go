package cloudrun

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	process.Warden()
	container()
	goleak.VerifyTestMain(m)
}

const place = "projects/p/locations/r"

// fake is a platform in this process, of which a test may have any call fail.
type fake struct {
	mu        sync.Mutex
	calls     map[string]int
	fail      map[string][]error // by call: what the next ones answer; nil lets one through
	services  map[string]*runpb.Service
	instances map[string]*runpb.Instance
	pools     map[string]int32
	jobs      map[string]*runpb.Job
	lose      []error // what the next calls of runJob answer after they have taken effect
	ran       map[string]*runpb.Execution
	of        map[string][]*runpb.Task // by execution
	order     []string                 // executions, the oldest first
	hidden    map[string]bool          // executions that listings do not have yet
	cancelled []string
	stubborn  bool // what is cancelled goes on
}

func newFake() *fake {
	return &fake{
		calls: make(map[string]int), fail: make(map[string][]error), services: make(map[string]*runpb.Service),
		instances: make(map[string]*runpb.Instance), pools: make(map[string]int32), jobs: make(map[string]*runpb.Job),
		ran: make(map[string]*runpb.Execution), of: make(map[string][]*runpb.Task), hidden: make(map[string]bool),
	}
}

// called counts a call and gives the error that a test ordered for it. Needs the lock.
func (f *fake) called(call string) error {
	f.calls[call]++
	if ordered := f.fail[call]; len(ordered) > 0 {
		f.fail[call] = ordered[1:]
		return ordered[0]
	}
	return nil
}

func (f *fake) count(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[call]
}

// cancels are the executions that were cancelled.
func (f *fake) cancels() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.cancelled)
}

// show lets listings have an execution that was hidden.
func (f *fake) show(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.hidden, name)
}

func missing(name string) error { return status.Errorf(codes.NotFound, "%s does not exist", name) }

func get[V any](f *fake, call, name string, from map[string]V) (v V, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called(call); err != nil {
		return v, err
	}
	v, ok := from[name]
	if !ok {
		return v, missing(name)
	}
	return v, nil
}

func (f *fake) service(_ context.Context, name string) (*runpb.Service, error) {
	return get(f, "service", name, f.services)
}

func (f *fake) instance(_ context.Context, name string) (*runpb.Instance, error) {
	return get(f, "instance", name, f.instances)
}

func (f *fake) startInstance(_ context.Context, name string) error {
	_, err := get(f, "startInstance", name, f.instances)
	return err
}

func (f *fake) stopInstance(_ context.Context, name string) error {
	_, err := get(f, "stopInstance", name, f.instances)
	return err
}

func (f *fake) scalePool(_ context.Context, name string, n int32) error {
	if _, err := get(f, "scalePool", name, f.pools); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pools[name] = n
	return nil
}

func (f *fake) job(_ context.Context, name string) (*runpb.Job, error) {
	return get(f, "job", name, f.jobs)
}

func (f *fake) runJob(_ context.Context, r *runpb.RunJobRequest) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("runJob"); err != nil {
		return "", err
	}
	if f.jobs[r.GetName()] == nil {
		return "", missing(r.GetName())
	}
	name := f.add(r)
	if lost := f.lose; len(lost) > 0 {
		f.lose = lost[1:]
		if lost[0] != nil {
			return "", lost[0]
		}
	}
	return name, nil
}

// add makes an execution. Needs the lock.
func (f *fake) add(r *runpb.RunJobRequest) string {
	name := fmt.Sprintf("%s/executions/%s-x%04d", r.GetName(), shortName(r.GetName()), len(f.order))
	o := r.GetOverrides()
	e := &runpb.Execution{
		Name: name, CreateTime: timestamppb.New(time.Now()), TaskCount: o.GetTaskCount(), RunningCount: o.GetTaskCount(),
		Template: &runpb.TaskTemplate{Timeout: o.GetTimeout()},
	}
	for _, c := range o.GetContainerOverrides() {
		e.Template.Containers = append(e.Template.Containers, &runpb.Container{Name: c.GetName(), Env: c.GetEnv()})
	}
	f.order = append(f.order, name)
	f.ran[name] = e
	for i := range o.GetTaskCount() {
		f.of[name] = append(f.of[name], &runpb.Task{Name: fmt.Sprintf("%s/tasks/%d", name, i), Index: i})
	}
	return name
}

// ends ends a task as the platform would tell it. The execution ends with its last task.
func (f *fake) ends(name string, index int, code codes.Code, exit int32, message string, reason runpb.Condition_ExecutionReason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, t := f.ran[name], f.of[name][index]
	now := timestamppb.New(time.Now())
	c := &runpb.Condition{Type: "Completed", State: runpb.Condition_CONDITION_SUCCEEDED}
	if code != codes.OK {
		c = &runpb.Condition{Type: "Completed", State: runpb.Condition_CONDITION_FAILED, Message: message, Reasons: &runpb.Condition_ExecutionReason_{ExecutionReason: reason}}
	}
	t.CompletionTime, t.Conditions = now, []*runpb.Condition{c}
	t.LastAttemptResult = &runpb.TaskAttemptResult{Status: &rpcstatus.Status{Code: int32(code), Message: message}, ExitCode: exit}
	e.RunningCount--
	if code == codes.OK {
		e.SucceededCount++
	} else {
		e.FailedCount++
	}
	if e.RunningCount == 0 {
		e.CompletionTime, e.Conditions = now, []*runpb.Condition{c}
	}
}

func clone[M proto.Message](m M) M { return proto.Clone(m).(M) }

func (f *fake) executions(_ context.Context, job string) ([]*runpb.Execution, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called("executions"); err != nil {
		return nil, err
	}
	var list []*runpb.Execution
	for _, name := range slices.Backward(f.order) {
		if e := f.ran[name]; e != nil && (strings.HasPrefix(name, job+"/") || strings.HasSuffix(job, "/-")) && !f.hidden[name] {
			list = append(list, clone(e))
		}
	}
	return list, nil
}

func (f *fake) execution(_ context.Context, name string) (*runpb.Execution, error) {
	e, err := get(f, "execution", name, f.ran)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return clone(e), nil
}

func (f *fake) cancelExecution(_ context.Context, name string) error {
	if _, err := get(f, "cancelExecution", name, f.ran); err != nil {
		return err
	}
	f.mu.Lock()
	f.cancelled = append(f.cancelled, name)
	stubborn := f.stubborn
	tasks := f.of[name]
	f.mu.Unlock()
	for i, t := range tasks {
		if t.GetCompletionTime() == nil && !stubborn {
			f.ends(name, i, codes.Canceled, 0, "Execution was cancelled.", runpb.Condition_CANCELLED)
		}
	}
	return nil
}

func (f *fake) tasks(_ context.Context, execution string) ([]*runpb.Task, error) {
	_, err := get(f, "tasks", execution, f.ran)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*runpb.Task
	for _, t := range f.of[execution] {
		list = append(list, clone(t))
	}
	return list, nil
}

func (f *fake) close() error { return nil }

// tokens is a source of identity tokens that says in them whom they are for.
type tokens struct{ err error }

func (s tokens) Token(_ context.Context, audience string) (string, error) {
	return "identity-for-" + audience, s.err
}

// mail is a bus that keeps what is published, or fails.
type mail struct {
	bus.Bus
	err  error
	sent map[bus.Topic][]bus.Message
}

func (m *mail) Publish(_ context.Context, topic bus.Topic, messages []bus.Message) []error {
	if m.sent == nil {
		m.sent = make(map[bus.Topic][]bus.Message)
	}
	if m.err == nil {
		m.sent[topic] = append(m.sent[topic], messages...)
	}
	return []error{m.err}
}

// begin opens a runtime over a platform, which closes with the test.
func begin(t *testing.T, p platform, change ...func(*Options)) (*Runtime, *runtimetest.Control) {
	t.Helper()
	c := runtimetest.NewControl(t)
	o := Options{
		Project: "p", Region: "r", Reporter: c, URL: c.URL, Tokens: tokens{}, Grace: time.Second,
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&o)
	}
	rt := open(o, p)
	c.Use(rt)
	t.Cleanup(func() {
		if err := rt.Close(context.Background(), 0); err != nil {
			t.Error(err)
		}
	})
	return rt, c
}

// assignment is an attempt for a resource.
func assignment(id string, n int, resource string) runtime.Assignment {
	a := &fleet.Agent{Meta: fleet.Meta{Name: "checker"}}
	a.SetDefaults()
	return runtime.Assignment{
		Run: id, N: n, Agent: a, Target: &fleet.Target{Meta: fleet.Meta{Name: "cloud"}, Runtime: fleet.RuntimeCloudRun, Resource: resource},
		Tenant: "acme", Unit: id, Mode: runtime.ModeRun, Input: []byte(`{"n":1}`), Token: "token-of-" + id,
		Deadline: run.At(time.Now().Add(time.Hour)),
	}
}
