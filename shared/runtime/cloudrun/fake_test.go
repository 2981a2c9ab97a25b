package cloudrun

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/runtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
}

func newFake() *fake {
	return &fake{
		calls: make(map[string]int), fail: make(map[string][]error), services: make(map[string]*runpb.Service),
		instances: make(map[string]*runpb.Instance), pools: make(map[string]int32), jobs: make(map[string]*runpb.Job),
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

func (f *fake) runJob(context.Context, *runpb.RunJobRequest) (string, error) { return "", nil }

func (f *fake) executions(context.Context, string) ([]*runpb.Execution, error) { return nil, nil }

func (f *fake) execution(_ context.Context, name string) (*runpb.Execution, error) {
	return nil, missing(name)
}

func (f *fake) cancelExecution(context.Context, string) error { return nil }

func (f *fake) tasks(context.Context, string) ([]*runpb.Task, error) { return nil, nil }

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
