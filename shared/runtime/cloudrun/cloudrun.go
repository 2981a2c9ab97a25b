// Package cloudrun executes attempts on Google Cloud Run, in the shape that a target's resource has:
//
//	services     a request with the attempt's document, under an identity token
//	instances    likewise; a stopped instance is started, and stopped again when its agent is gone
//	workerPools  a message with a ticket, on the pool's topic: whoever takes it claims the attempt
//	jobs         an execution whose environment carries attempts and tickets: each task claims one
//
// Nothing here decides: control does. What is told of an attempt is what the platform positively said; an unknown status
// is asked for again and ends nothing.
//
// Locks: the runtime's mutex is never held while control, the platform or the bus is called, so control may hold its own
// when it calls Stop, Ended, Lost or Forget.
//
// Imports: run, fleet, runtime, bus, identity, httpio. Google's client of the Cloud Run Admin API is imported here alone.
package cloudrun

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/api/option"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/identity"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
)

// Options of a Runtime. URL is needed; Tokens for services and instances, Bus for pools.
type Options struct {
	// Project and Region are where executions are looked for of which nothing is known any more.
	Project, Region string
	// Reporter takes the reports; SetReporter can give it later, before the first Start.
	Reporter runtime.Reporter
	// URL is the address of the control plane for agents.
	URL func() string
	// Tokens gives the identity tokens that services and instances are called with; nil calls them without.
	Tokens identity.Source
	// Bus carries hand-overs to the workers of pools.
	Bus bus.Bus
	// Held lists the attempts that a worker has claimed, by the worker's id. Without it an execution is asked about for as
	// long as it has attempts, and a task that ends without a word counts as one that never claimed.
	Held func(worker string) []runtime.Held

	// Jobs lists the jobs of the declared targets, by their full names: where executions are looked for that a process
	// before this one has started. Without it all jobs of the region are, which takes a right on the project.
	Jobs func() []string

	// Endpoint is HOST:PORT of another Admin API, in plain gRPC and without credentials; "" for Google's.
	Endpoint string
	// ClientOptions are for Google's client.
	ClientOptions []option.ClientOption

	// Starts is how many executions may be started in a minute at first; 60 when 0. It shrinks when the platform says that
	// it is too many, and grows slowly, up to MostStarts; 180 when 0.
	Starts, MostStarts int
	// StartWait is the longest that a start waits for its turn before it is given back; 5 s when 0.
	StartWait time.Duration
	// PackWindow is how long an attempt that is short by PackBelow waits for others of its job, which then are tasks of
	// one execution: 200 ms and 1 minute when 0, below 0 for one execution each. Lifetime.Expected says what is short.
	PackWindow, PackBelow time.Duration

	Grace time.Duration // for what control ended, and beyond an attempt's deadline; 10 s when 0
	// Poll is the first wait before an execution is asked about; it doubles up to LongestPoll. 2 s and 1 minute when 0.
	Poll, LongestPoll time.Duration
	// MissingFor is how long the platform must know nothing of an execution before it counts as gone; 1 minute when 0.
	MissingFor time.Duration
	// Settle is how long after an execution's end the last words of its tasks may come; 10 s when 0.
	Settle time.Duration

	Now    func() time.Time // for log lines and dates; time.Now when nil
	Logger *slog.Logger     // nil discards
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.StartWait, 5*time.Second)
	def(&o.PackWindow, 200*time.Millisecond)
	def(&o.PackBelow, time.Minute)
	def(&o.Grace, 10*time.Second)
	def(&o.Poll, 2*time.Second)
	def(&o.LongestPoll, time.Minute)
	def(&o.MissingFor, time.Minute)
	def(&o.Settle, 10*time.Second)
	if o.Starts <= 0 {
		o.Starts = 60
	}
	if o.MostStarts <= 0 {
		o.MostStarts = 180
	}
	o.MostStarts = max(o.MostStarts, o.Starts)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Runtime implements runtime.Runtime. Safe for concurrent use.
type Runtime struct {
	opts     Options
	log      *slog.Logger
	platform platform
	client   *http.Client
	// life ends when the time that Close was given is over: reports that find no taker are given up.
	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup // requests, starts, looks and reports under way

	born      time.Time
	addresses cache[address]
	jobs      cache[jobConfig]
	listings  cache[[]*runpb.Execution]
	quota     *quota
	stir      chan struct{} // the watch list has changed
	quit      chan struct{} // closed by Close

	mu         sync.Mutex
	reporter   runtime.Reporter
	attempts   map[string]*attempt        // under way, by attempt id
	served     map[string]map[string]bool // agents that were sent to an instance, by its name
	batches    map[string]*batch          // that wait for more, by job
	executions map[string]*execution      // by name
	shorts     map[string]*execution      // by the last part of their names
	due        dueList                    // executions to be looked at
	strange    map[string]bool            // workers that were looked for in vain
	watching   bool
	closed     bool
}

var _ runtime.Runtime = (*Runtime)(nil)

// New opens the runtime. It needs no answer of the platform.
func New(ctx context.Context, o Options) (*Runtime, error) {
	p, err := dial(ctx, &o)
	if err != nil {
		return nil, fmt.Errorf("cloud run in project %s, region %s: %w", o.Project, o.Region, err)
	}
	return open(o, p), nil
}

func open(o Options, p platform) *Runtime {
	o.setDefaults()
	rt := &Runtime{
		opts: o, log: o.Logger, platform: p, client: httpio.NewClient(), reporter: o.Reporter,
		born: time.Now(), addresses: cache[address]{ttl: addressTTL}, jobs: cache[jobConfig]{ttl: jobTTL},
		listings: cache[[]*runpb.Execution]{ttl: listingTTL}, quota: newQuota(o.Starts, o.MostStarts, time.Now()),
		stir: make(chan struct{}, 1), quit: make(chan struct{}),
		attempts: make(map[string]*attempt), served: make(map[string]map[string]bool), batches: make(map[string]*batch),
		executions: make(map[string]*execution), shorts: make(map[string]*execution), strange: make(map[string]bool),
	}
	rt.life, rt.end = context.WithCancel(context.Background())
	return rt
}

// SetReporter gives the reporter, before the first Start: control and runtime know each other.
func (rt *Runtime) SetReporter(r runtime.Reporter) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.reporter = r
}

// Start begins an attempt. See runtime.Runtime.
func (rt *Runtime) Start(ctx context.Context, a runtime.Assignment) error {
	refuse := func(err error) error {
		return fmt.Errorf("%w: attempt %s on target %s: %w", runtime.ErrRefused, a.ID(), nameOf(&a), err)
	}
	// 1. What it is.
	if a.Agent == nil || a.Target == nil {
		return refuse(errors.New("the assignment has no agent or no target"))
	}
	r, err := parseResource(a.Target.Resource)
	if err != nil {
		return refuse(err)
	}
	if r.kind == workerPools {
		return rt.handOver(ctx, &a, refuse)
	}
	// 2. Enter it.
	rt.mu.Lock()
	if rt.closed {
		rt.mu.Unlock()
		return refuse(errors.New("this server is shutting down"))
	}
	if rt.attempts[a.ID()] != nil {
		rt.mu.Unlock()
		return nil
	}
	x := &attempt{a: a, resource: r}
	rt.attempts[a.ID()] = x
	rt.wg.Add(1)
	rt.mu.Unlock()
	defer rt.wg.Done()
	// 3. Begin it.
	err = rt.send(ctx, x)
	if errors.Is(err, runtime.ErrRefused) {
		rt.mu.Lock()
		x.over = true
		rt.remove(x)
		rt.mu.Unlock()
		return refuse(err)
	}
	return err
}

func nameOf(a *runtime.Assignment) string {
	if a.Target == nil {
		return "none"
	}
	return a.Target.Name()
}

// Stop tells an attempt to end. See runtime.Runtime. Workers of pools and tasks of jobs are told by their heartbeats. A
// task's execution is cancelled after grace if no other attempt is in it, whoever started it.
func (rt *Runtime) Stop(_ context.Context, runID string, n int, reason run.Reason, grace time.Duration) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	id := runtime.AttemptID(runID, n)
	x := rt.attempts[id]
	if x == nil {
		if rt.closed || rt.opts.Project == "" || rt.opts.Region == "" || len(rt.attempts) >= maxStrays {
			return
		}
		anywhere := fmt.Sprintf("projects/%s/locations/%s/jobs/-", rt.opts.Project, rt.opts.Region)
		x = &attempt{a: runtime.Assignment{Run: runID, N: n}, resource: resource{jobs, anywhere}, stray: true}
		rt.attempts[id] = x
	}
	rt.stop(x, reason, grace)
}

// maxStrays bounds the books for attempts that are there for a stop alone.
const maxStrays = 100_000

// stop needs the lock.
func (rt *Runtime) stop(x *attempt, reason run.Reason, grace time.Duration) {
	if x.over {
		return
	}
	if x.reason == "" {
		x.reason = reason
	}
	if x.resource.kind == jobs {
		x.killAfter(grace, func() { rt.doom(x) })
		return
	}
	x.killAfter(grace, func() { rt.giveUp(x, errGivenUp) })
}

// doom has the execution of an attempt cancelled.
func (rt *Runtime) doom(x *attempt) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if x.over || rt.closed {
		return
	}
	x.doomed = true
	switch {
	case x.execution != nil:
		x.execution.wait = rt.opts.Poll
		rt.watch(x.execution, 0)
	case x.stray:
		rt.enter(&execution{job: x.resource, stray: true}, []*attempt{x})
	}
}

// Ended tells that an attempt is over for control. See runtime.Runtime. The execution of a task should end by itself
// then; one that does not within the grace is cancelled.
func (rt *Runtime) Ended(runID string, n int) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	x := rt.attempts[runtime.AttemptID(runID, n)]
	switch {
	case x == nil || x.over:
	case x.resource.kind == jobs:
		x.over = true
		rt.remove(x)
	default:
		rt.stop(x, run.CanceledByRequest, rt.opts.Grace)
	}
}

// Lost tells that a worker was silent for its lease. See runtime.Runtime. For a task of a job the platform is asked; what
// becomes of its attempt is reported when the platform has said so. The workers of pools are unknown here.
func (rt *Runtime) Lost(worker string) bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	job, short, index, ok := parseWorker(worker)
	if !ok || rt.closed {
		return false
	}
	// 1. One that was started from here.
	if e := rt.shorts[short]; e != nil {
		switch {
		case e.workers != nil:
			e.workers[worker] = true
		case e.live()[index] == nil:
			return false
		}
		e.silent[index], e.wait = true, rt.opts.Poll
		rt.watch(e, 0)
		return true
	}
	// 2. Or by a process before this one.
	if rt.strange[worker] || rt.opts.Held == nil || rt.opts.Project == "" || rt.opts.Region == "" {
		delete(rt.strange, worker)
		return false
	}
	name := fmt.Sprintf("projects/%s/locations/%s/jobs/%s", rt.opts.Project, rt.opts.Region, job)
	e := &execution{job: resource{jobs, name}, name: name + "/executions/" + short, workers: map[string]bool{worker: true}}
	rt.enter(e, nil)
	e.silent[index] = true
	rt.watch(e, 0)
	return true
}

// Forget stops the instance that served an agent which is gone, if it serves no other. See runtime.Runtime.
func (rt *Runtime) Forget(agent string) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for name, agents := range rt.served {
		if !agents[agent] {
			continue
		}
		if delete(agents, agent); len(agents) == 0 {
			rt.retire(name)
		}
	}
}

// Close hands back the requests under way that are not answered within grace, and tells their handlers by closing the
// connections. Executions go on: their tasks deal with control, and another process finds them. See runtime.Runtime.
func (rt *Runtime) Close(ctx context.Context, grace time.Duration) error {
	rt.mu.Lock()
	if rt.closed {
		rt.mu.Unlock()
		return nil
	}
	rt.closed = true
	close(rt.quit)
	for _, x := range rt.attempts {
		if !x.over && x.resource.kind != jobs {
			x.killAfter(grace, func() { rt.giveUp(x, errClosing) })
		}
	}
	for _, b := range rt.batches {
		rt.launch(b)
	}
	rt.mu.Unlock()
	done := make(chan struct{})
	go func() {
		rt.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		rt.mu.Lock()
		for _, x := range rt.attempts {
			if x.cancel != nil {
				x.cancel(errClosing)
			}
		}
		rt.mu.Unlock()
		rt.end()
		<-done
	}
	rt.end()
	rt.mu.Lock()
	for _, x := range rt.attempts {
		rt.remove(x)
	}
	rt.mu.Unlock()
	rt.client.CloseIdleConnections()
	if err := rt.platform.close(); err != nil {
		return fmt.Errorf("close the client of Cloud Run: %w", err)
	}
	return nil
}
