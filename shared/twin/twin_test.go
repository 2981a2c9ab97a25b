package twin_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/twin"
)

// As a container the test binary is what its first argument says.
func TestMain(m *testing.M) {
	process.Warden()
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "container:") {
		container(strings.TrimPrefix(os.Args[1], "container:"))
		return
	}
	// Idle connections of the tests' own HTTP client are no concern of a twin.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

func container(kind string) {
	switch kind {
	case "web":
		web()
		return
	case "twin":
		lonelyTwin()
		return
	}
	fmt.Fprintln(os.Stderr, "no container of kind", kind)
	os.Exit(3)
}

// world is a twin with Google's clients.
type world struct {
	*twin.Twin
	t         *testing.T
	ctx       context.Context
	jobs      *run.JobsClient
	services  *run.ServicesClient
	revisions *run.RevisionsClient
	pools     *run.WorkerPoolsClient
	instances *run.InstancesClient
	execs     *run.ExecutionsClient
	tasks     *run.TasksClient
	lines     *lines
}

// lines collects what containers print.
type lines struct {
	mu      sync.Mutex
	all     []twin.Line
	changed chan struct{}
}

func (l *lines) add(line twin.Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, line)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *lines) texts() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := make([]string, len(l.all))
	for i, line := range l.all {
		found[i] = line.Text
	}
	slices.Sort(found)
	return found
}

// await waits for a line with a prefix and returns it.
func (w *world) await(prefix string) twin.Line {
	w.t.Helper()
	for {
		w.lines.mu.Lock()
		for _, line := range w.lines.all {
			if strings.HasPrefix(line.Text, prefix) {
				w.lines.mu.Unlock()
				return line
			}
		}
		changed := w.lines.changed
		w.lines.mu.Unlock()
		select {
		case <-changed:
		case <-w.ctx.Done():
			w.t.Fatalf("no container printed %q; they printed %q", prefix, w.lines.texts())
		}
	}
}

func start(t *testing.T, o twin.Options) *world {
	t.Helper()
	t.Parallel() // they wait for processes, most of the time
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, lines: &lines{changed: make(chan struct{})}}
	o.Lines = w.lines.add
	if o.Images == nil {
		o.Images = map[string][]string{}
	}
	o.Images["sh"] = []string{"sh", "-c"}
	o.Images["registry.test/self"] = []string{os.Args[0]}
	if o.Grace == 0 {
		o.Grace = 5 * time.Second
	}
	var err error
	if w.Twin, err = twin.Start(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	w.jobs = client(w, run.NewJobsClient)
	w.execs = client(w, run.NewExecutionsClient)
	w.tasks = client(w, run.NewTasksClient)
	w.services = client(w, run.NewServicesClient)
	w.revisions = client(w, run.NewRevisionsClient)
	w.pools = client(w, run.NewWorkerPoolsClient)
	w.instances = client(w, run.NewInstancesClient)
	return w
}

func client[C interface{ Close() error }](w *world, open func(context.Context, ...option.ClientOption) (C, error)) C {
	w.t.Helper()
	c, err := open(w.ctx, option.WithEndpoint(w.Endpoint()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// shell is a container that runs a script.
func shell(script string, env ...string) *runpb.Container {
	c := &runpb.Container{Image: "sh", Args: []string{script}}
	for _, each := range env {
		name, value, _ := strings.Cut(each, "=")
		c.Env = append(c.Env, envVar(name, value))
	}
	return c
}

func envVar(name, value string) *runpb.EnvVar {
	return &runpb.EnvVar{Name: name, Values: &runpb.EnvVar_Value{Value: value}}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: got %v (%v), want code %v", what, got, err, want)
	}
}

// eventually polls what only a process or the platform's own time can change.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.t.Fatalf("in the end not: %s", what)
		}
	}
}
