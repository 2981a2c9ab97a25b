package cost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/pubsub"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/host"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/cloudrun"
	"github.com/errand-run/errand/shared/runtime/httpio"
	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/store/firestore"
)

// bill is what the platform counts.
type bill struct {
	writes, reads, deletes int64 // documents
	calls                  int64 // of Firestore
	messages               int64 // that were published
	delivered              int64 // likewise, copies included
	acknowledged           int64
	requests               int64 // of Pub/Sub, streams included
	bytes                  int64 // of Pub/Sub, as billed
}

func (b bill) plus(c bill) bill {
	return bill{
		b.writes + c.writes, b.reads + c.reads, b.deletes + c.deletes, b.calls + c.calls,
		b.messages + c.messages, b.delivered + c.delivered, b.acknowledged + c.acknowledged, b.requests + c.requests, b.bytes + c.bytes,
	}
}

func (b bill) minus(c bill) bill {
	return b.plus(bill{
		-c.writes, -c.reads, -c.deletes, -c.calls, -c.messages, -c.delivered, -c.acknowledged, -c.requests, -c.bytes,
	})
}

// cloud is a control plane as the platform has it, on Google's emulators: a process that leads and one that does not,
// and the workers of a pool. Time of day and the clock of leases stand still unless a test moves them, so that nothing
// is counted that time alone costs.
type cloud struct {
	t         *testing.T
	project   string
	leader    *process
	follower  *process
	processes []*process // these and others
	worker    *pubsub.Bus
	serve     http.Handler // of the service
	byHand    bool         // the test drives the stages
	handled   atomic.Int64 // attempts that handlers have ended
	handle    func(ctx context.Context, client *api.Client, a *agent.Attempt) agent.Result

	mu   sync.Mutex
	now  time.Time
	mono time.Duration
	seen map[string]*run.Record // as the processes wrote them last
}

// process is one control process.
type process struct {
	store  *firestore.Store
	bus    *pubsub.Bus
	plane  *control.Plane
	client *api.Client
}

var clouds atomic.Int64

const patience = time.Minute // the emulators are slow on a busy machine

// newCloud opens a cloud of an empty project, where the environment names Pub/Sub's emulator. Its planes are not started.
func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{t: t, now: time.Now().Truncate(time.Second), seen: make(map[string]*run.Record)}
	c.project = fmt.Sprint("cost-", clouds.Add(1), "-project")
	c.worker = c.openBus()
	if err := c.worker.Declare(t.Context(), bus.Control, bus.Pool(targetOf(fleet.Pool))); err != nil {
		t.Fatal(err)
	}
	c.leader, c.follower = c.open("a"), c.open("b")
	return c
}

// open opens one process more.
func (c *cloud) open(name string) *process {
	t := c.t
	t.Helper()
	p := &process{bus: c.openBus(), store: c.openStore()}
	c.processes = append(c.processes, p)
	rt, err := cloudrun.New(t.Context(), cloudrun.Options{
		Project: "p", Region: "r", Bus: p.bus, URL: func() string { return p.client.URL() }, Endpoint: "127.0.0.1:1", // nobody there
	})
	if err != nil {
		t.Fatal(err)
	}
	starts := &platform{Runtime: rt, c: c, p: p}
	p.plane, err = control.New(control.Config{
		Store: p.store, Bus: p.bus, Name: name, WorkerLease: time.Hour, Logger: c.log(),
		Runtimes: map[fleet.Runtime]runtime.Runtime{fleet.RuntimeCloudRun: starts},
		Clock:    c.time,
		Go: func(f func()) {
			if c.byHand {
				f()
			} else {
				go f()
			}
		},
		Monotonic: func() time.Duration { c.mu.Lock(); defer c.mu.Unlock(); return c.mono },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		starts.executing.Wait()
		if err := errors.Join(p.plane.Close(ctx), rt.Close(ctx, 0)); err != nil {
			t.Error(err)
		}
	})
	s, err := server.New(server.Options{Plane: p.plane, Loopback: true, BeatEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	at := httptest.NewServer(s)
	t.Cleanup(at.Close)
	if p.client, err = api.NewClient(api.Options{URL: at.URL}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.client.Close)
	return p
}

func (c *cloud) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(c.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (c *cloud) openStore() *firestore.Store {
	c.t.Helper()
	s, err := firestore.Open(c.t.Context(), firestore.Options{Project: c.project, Endpoint: emulator.Firestore(c.t)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = s.Close() })
	return s
}

func (c *cloud) openBus() *pubsub.Bus {
	c.t.Helper()
	b, err := pubsub.Open(c.t.Context(), pubsub.Options{Project: c.project, MaxDeliveries: 100, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = b.Close() })
	return b
}

// start lets the first process lead, with an agent and the target that executes it, and the second one serve.
func (c *cloud) start(a *fleet.Agent) {
	c.t.Helper()
	objects := []fleet.Object{a}
	for shape, collection := range collections {
		objects = append(objects, &fleet.Target{
			Meta: fleet.Meta{Name: targetOf(shape)}, Runtime: fleet.RuntimeCloudRun, Shapes: []fleet.Shape{shape},
			Capacity: fleet.Capacity{Runs: 4}, Resource: "projects/p/locations/r/" + collection + "/" + targetOf(shape),
		})
	}
	for _, p := range []*process{c.leader, c.follower} {
		if err := p.plane.Start(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
		c.watch(p)
		if p == c.leader {
			if _, err := p.plane.Apply(c.t.Context(), objects, control.ApplyOptions{}); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	if leads, _ := c.leader.plane.Health(); !leads {
		c.t.Fatal("the first process does not lead")
	}
	// Who takes over reads what is declared, twice, what is live, and what is due; beside the runs it looks for what is to
	// be removed.
	c.await("the first looks to end", func() bool { return c.leader.store.Stats().Requests["RunQuery"] >= 2+1+3 }, 20*time.Millisecond)
}

var collections = map[fleet.Shape]string{fleet.Pool: "workerPools", fleet.Service: "services", fleet.Job: "jobs"}

func targetOf(s fleet.Shape) string { return "cloud-" + string(s) }

// bill is what was counted so far, in all processes.
func (c *cloud) bill() (b bill) {
	for _, p := range c.processes {
		b = b.plus(p.bill())
	}
	return b.plus((&process{bus: c.worker}).bill())
}

// bill is what was counted so far in one process.
func (p *process) bill() (b bill) {
	n := p.bus.Stats()
	b.messages, b.delivered, b.acknowledged, b.bytes = n.Published, n.Delivered, n.Acknowledged, n.Bytes
	for _, count := range n.Requests {
		b.requests += count
	}
	if p.store != nil {
		n := p.store.Stats()
		b.writes, b.reads, b.deletes = n.Writes, n.Reads, n.Deletes
		for _, count := range n.Requests {
			b.calls += count
		}
	}
	return b
}

// settle waits until nothing is under way: no run, no message, no request.
func (c *cloud) settle() {
	c.t.Helper()
	var last bill
	c.await("what is under way to end", func() bool {
		now := c.bill()
		still := now == last && now.messages == now.acknowledged && len(c.leader.plane.Stats(0, "", "").States) == 0
		last = now
		return still
	}, 20*time.Millisecond)
}

// await looks until it is so.
func (c *cloud) await(what string, so func() bool, every time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("waited %s for %s; runs in memory: %v, bill: %+v", patience, what, c.leader.plane.Stats(0, "", "").States, c.bill())
		}
	}
}

// pass moves the time of day.
func (c *cloud) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *cloud) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// work executes attempts that the pool's topic hands over, as the worker's image does, until the test ends.
func (c *cloud) work(p *process, name string) {
	c.t.Helper()
	const id = "pool-1"
	pool := &host.Pool{Bus: c.worker, Target: targetOf(fleet.Pool), Client: p.client, Worker: id, Log: c.log(), Now: c.time}
	h := c.host(p, id, targetOf(fleet.Pool), name, pool)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	c.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
	})
}

func (c *cloud) host(p *process, id, target, name string, source agent.Source) *agent.Host {
	h, err := agent.NewHost(p.client, agent.HostOptions{
		Worker: id, Target: target, Agents: []string{name}, Slots: 4, Source: source, HeartbeatEvery: time.Hour,
		Log: c.log(),
		Handle: func(ctx context.Context, a *agent.Attempt) agent.Result {
			defer c.handled.Add(1)
			return c.handle(ctx, p.client, a)
		},
	})
	if err != nil {
		c.t.Error(err)
	}
	return h
}

// platform stands for what Cloud Run does with a start: requests and tasks cost nothing of what is counted here. Hand-overs
// to a pool are the runtime's own.
type platform struct {
	*cloudrun.Runtime
	c         *cloud
	p         *process
	executing sync.WaitGroup
}

func (x *platform) Start(ctx context.Context, a runtime.Assignment) error {
	switch {
	case strings.Contains(a.Target.Resource, "/services/"):
		x.executing.Go(func() { x.request(&a) })
	case strings.Contains(a.Target.Resource, "/jobs/"):
		x.executing.Go(func() { x.task(&a) })
	default:
		return x.Runtime.Start(ctx, a)
	}
	return nil
}

// request hands an attempt to the service.
func (x *platform) request(a *runtime.Assignment) {
	document, err := a.Document(x.p.client.URL()).Encode()
	if err != nil {
		x.c.t.Error(err)
		return
	}
	at := httptest.NewServer(x.c.serve)
	defer at.Close()
	client := httpio.NewClient()
	report := httpio.Do(context.Background(), client, httpio.Call{URL: at.URL + "/run", Attempt: a, Document: document, Now: x.c.time})
	if res := x.p.plane.Report(context.Background(), []runtime.Report{report})[0]; res.Err != nil {
		x.c.t.Error(res.Err)
	}
	x.c.handled.Add(1)
}

// task is a container of a job.
func (x *platform) task(a *runtime.Assignment) {
	id := strings.ReplaceAll(a.ID(), ".", "-")
	lease, err := x.p.client.Claim(context.Background(), a.ID(), api.Claim{Worker: id, Ticket: a.Ticket})
	if err != nil {
		x.c.t.Error(err)
		return
	}
	if h := x.c.host(x.p, id, a.Target.Name(), a.Agent.Name(), one(*lease)); h != nil {
		if err := h.Run(context.Background()); err != nil {
			x.c.t.Error(err)
		}
	}
}

// one is the source of one attempt.
type one api.Lease

func (o one) Feed(_ context.Context, _ int, execute agent.Execute) error {
	_, err := execute(api.Lease(o))
	return err
}

// answers is a service that gives the same answer to every run.
func answers(output any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"output": output})
	})
}

// watch notes every change that a process makes of a run, for whoever asks the store costs a read.
func (c *cloud) watch(p *process) {
	changes, done := p.plane.Watch(c.t.Context(), 1000)
	c.t.Cleanup(done)
	go func() {
		for change := range changes {
			if r := change.Run; r != nil {
				c.mu.Lock()
				if was := c.seen[r.ID]; was == nil || was.Seq < r.Seq {
					c.seen[r.ID] = r
				}
				c.mu.Unlock()
			}
		}
	}()
}

// is reports whether a run was last seen in a state.
func (c *cloud) is(id string, s run.State) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[id] != nil && c.seen[id].State == s
}
