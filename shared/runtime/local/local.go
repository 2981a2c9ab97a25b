// Package local executes attempts as processes on this machine: the four shapes, in the three protocols.
//
//	stdio           a process per run; an instance runs its turns one after the other
//	worker          processes that pull leases themselves, started when attempts wait and none has room, kept warm,
//	                ended when idle; one per run for shape job
//	http            processes that are sent a request per run, started, kept and ended likewise; an instance is one
//	                process, which is asked for its sessions before it ends
//	http with a url requests to what runs already
//
// Nothing here decides: control does, and tells by Start and Stop, and by Ended when an attempt is over in its books.
// What happens to attempts is reported; see the package runtime. Waiting holds no goroutine: there is one per running
// child process and per request under way.
//
// Locks: the runtime's mutex is never held while control is called, so control may hold its own when it calls.
//
// Imports: run, fleet, runtime and the packages below runtime.
package local

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
	"github.com/errand-run/errand/shared/runtime/process"
)

// Options of a Runtime. URL is needed.
type Options struct {
	// Reporter takes the reports; SetReporter can give it later, before the first Start.
	Reporter runtime.Reporter
	// URL is the address of the control plane for agents.
	URL func() string
	// WorkerToken is the bearer token with which workers ask for leases; "" for none.
	WorkerToken string
	// Held lists the attempts that a worker has taken, by the worker's id. Needed for protocol worker.
	Held func(worker string) []runtime.Held
	// SaveSession keeps the state of a session that a stopping instance handed over. The key is TENANT/AGENT/NAME.
	SaveSession func(ctx context.Context, key string, state json.RawMessage) error
	// Output takes the lines that processes write which serve many runs, and builds; the logger at level debug when nil.
	// process names it: a worker's id, or "build".
	Output func(agent, process, stream, text string)

	Ledger string // file of what runs, see process.Options; "" for none
	Warden bool   // see process.Options

	Idle       time.Duration // how long a process is kept warm; 60 s when 0
	Grace      time.Duration // for processes to end when no caller says how long; 10 s when 0
	Ready      time.Duration // how long an http process may take to listen; 30 s when 0
	BuildLimit time.Duration // how long a build may take; 10 minutes when 0
	// BuildRetry is how long a failed build is not tried again; it doubles up to 64 times that. 5 s when 0.
	BuildRetry time.Duration
	Now        func() time.Time // for log lines and Retry-After; time.Now when nil
	Logger     *slog.Logger     // nil discards
}

// Runtime implements runtime.Runtime. Safe for concurrent use.
type Runtime struct {
	opts   Options
	log    *slog.Logger
	host   *process.Host
	client *http.Client
	// life ends when the time that Close was given is over: reports that find no taker are given up.
	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup // requests, reports and farewells under way

	mu       sync.Mutex
	reporter runtime.Reporter
	attempts map[string]*attempt // under way, by attempt id
	units    map[string]*unit
	builds   map[string]*build
	workers  map[string]int // processes ever started, by agent: numbers their names
	ports    map[int]bool   // given to processes that live
	closed   bool
}

var _ runtime.Runtime = (*Runtime)(nil)

// New opens the runtime. With a ledger it first ends what a dead server left running.
func New(o Options) (*Runtime, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Idle, time.Minute)
	def(&o.Grace, 10*time.Second)
	def(&o.Ready, 30*time.Second)
	def(&o.BuildLimit, 10*time.Minute)
	def(&o.BuildRetry, 5*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Output == nil {
		o.Output = func(agent, process, stream, text string) {
			o.Logger.Debug(text, "agent", agent, "process", process, "stream", stream)
		}
	}
	host, err := process.NewHost(process.Options{Ledger: o.Ledger, Warden: o.Warden, Grace: min(o.Grace, 5*time.Second), Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("local runtime: %w", err)
	}
	rt := &Runtime{
		opts: o, log: o.Logger, host: host, client: httpio.NewClient(), reporter: o.Reporter,
		attempts: make(map[string]*attempt), units: make(map[string]*unit), builds: make(map[string]*build),
		workers: make(map[string]int), ports: make(map[int]bool),
	}
	rt.life, rt.end = context.WithCancel(context.Background())
	return rt, nil
}

// SetReporter gives the reporter, before the first Start: control and runtime know each other.
func (rt *Runtime) SetReporter(r runtime.Reporter) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.reporter = r
}

// attempt is an attempt under way.
type attempt struct {
	a    runtime.Assignment
	unit *unit
	// All below is guarded by Runtime.mu.
	over    bool        // its end is being reported, or control knows it
	waiting bool        // behind its unit's gate
	reason  run.Reason  // why it was told to stop
	confirm *time.Timer // reports its start
	kill    *time.Timer // ends the grace of a stop
	killAt  time.Time
	task    any // what its executor keeps of it
}

// killAfter sets the end of a stop's grace. Stopping again can shorten it, never prolong it. Needs the lock.
func (x *attempt) killAfter(grace time.Duration, kill func()) {
	at := time.Now().Add(grace)
	if x.kill != nil && (at.After(x.killAt) || !x.kill.Stop()) {
		return
	}
	x.killAt, x.kill = at, time.AfterFunc(grace, kill)
}

// Start begins an attempt. See runtime.Runtime.
func (rt *Runtime) Start(_ context.Context, a runtime.Assignment) error {
	refuse := func(err error) error { return fmt.Errorf("%w: %w", runtime.ErrRefused, err) }
	if a.Agent == nil || (len(a.Agent.Run.Command) == 0 && a.Agent.Run.URL == "") {
		return refuse(fmt.Errorf("attempt %s: its agent has neither run.command nor run.url, so there is nothing to start here", a.ID()))
	}
	// 1. Enter it.
	rt.mu.Lock()
	if rt.closed {
		rt.mu.Unlock()
		return refuse(fmt.Errorf("attempt %s: the local runtime is shutting down", a.ID()))
	}
	if rt.attempts[a.ID()] != nil {
		rt.mu.Unlock()
		return nil
	}
	x := &attempt{a: a, unit: rt.unitOf(&a)}
	rt.attempts[a.ID()] = x
	x.unit.attempts[x] = struct{}{}
	// 2. Begin it, unless it has to wait for its agent.
	begin, err := x.unit.admit(x)
	rt.mu.Unlock()
	if err == nil && begin != nil {
		err = begin()
	}
	if err != nil {
		rt.mu.Lock()
		x.over = true
		rt.remove(x)
		rt.mu.Unlock()
		return refuse(fmt.Errorf("attempt %s: %w", a.ID(), err))
	}
	return nil
}

// Stop tells an attempt to end. See runtime.Runtime.
func (rt *Runtime) Stop(_ context.Context, runID string, n int, reason run.Reason, grace time.Duration) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if x := rt.attempts[runtime.AttemptID(runID, n)]; x != nil {
		rt.stop(x, reason, grace)
	}
}

// stop needs the lock.
func (rt *Runtime) stop(x *attempt, reason run.Reason, grace time.Duration) {
	if x.over {
		return
	}
	if x.reason == "" {
		x.reason = reason
	}
	if x.waiting {
		x.unit.unwait(x)
		rt.finishNotBegun(x)
		return
	}
	x.unit.exec.stop(x, grace)
}

// finishNotBegun reports the end of an attempt that was told to stop before anything of it began. Needs the lock.
func (rt *Runtime) finishNotBegun(x *attempt) {
	report := runtime.Stopped(x.reason, "it was told to stop before it began: "+string(x.reason))
	report.Ended = true
	rt.wg.Go(func() { rt.finish(x, report) })
}

// Ended is how control tells that an attempt is over in its books, by whatever way. What still runs of it is stopped.
// For attempts that workers pull it is the only sign of their end: without it their workers are kept for ever. Control
// may hold its own locks. Ending what is not there does nothing.
func (rt *Runtime) Ended(runID string, n int) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	x := rt.attempts[runtime.AttemptID(runID, n)]
	switch {
	case x == nil || x.over:
	case x.unit.pulls:
		x.over = true
		rt.remove(x)
	default:
		rt.stop(x, run.CanceledByRequest, rt.opts.Grace)
	}
}

// Lost kills the process of a worker that control hears nothing of: it hangs. See runtime.Runtime. Control may hold its
// own locks.
func (rt *Runtime) Lost(worker string) bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for _, u := range rt.units {
		p, ok := u.exec.(*pool)
		if !ok || !p.pulls {
			continue
		}
		for m := range p.members {
			if m.id != worker {
				continue
			}
			if !m.silent {
				m.silent, m.stopping, m.why = true, true, "the worker was silent for its lease"
				rt.log.Warn("killing a process that shows no sign of life", "agent", u.agent.Name(), "process", m.id)
				m.proc.Stop(0)
			}
			return true
		}
	}
	return false
}

// Forget ends what is kept warm for an agent, as soon as no attempt needs it. See runtime.Runtime.
func (rt *Runtime) Forget(agent string) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for _, u := range rt.units {
		if u.agent.Name() == agent {
			u.forgotten = true
			rt.tidy(u)
		}
	}
	for key, b := range rt.builds {
		if b.agent == agent && !b.running {
			delete(rt.builds, key)
		}
	}
}

// Close stops everything. See runtime.Runtime. Workers hand back their attempts themselves, so the control plane must
// still answer them. When ctx ends before all is over, what is left is killed. No process is left when it returns.
func (rt *Runtime) Close(ctx context.Context, grace time.Duration) error {
	// 1. Ask everything to end.
	rt.mu.Lock()
	if rt.closed {
		rt.mu.Unlock()
		return nil
	}
	rt.closed = true
	for _, x := range rt.attempts {
		if x.waiting && !x.over {
			x.unit.unwait(x)
			rt.release(x)
		}
	}
	for _, u := range rt.units {
		u.exec.close(grace)
	}
	for _, b := range rt.builds {
		b.stop(grace)
	}
	rt.mu.Unlock()
	// 2. Wait, for as long as the caller does.
	done := make(chan error, 1)
	go func() {
		rt.wg.Wait()
		done <- rt.host.Close()
		rt.wg.Wait() // the reports on what the processes were doing
		close(done)
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		rt.mu.Lock()
		for _, u := range rt.units {
			u.exec.close(0)
		}
		for _, b := range rt.builds {
			b.stop(0)
		}
		rt.mu.Unlock()
		rt.end()
		err = <-done
	}
	<-done
	rt.end()
	rt.client.CloseIdleConnections()
	if err != nil {
		return fmt.Errorf("close the local runtime: %w", err)
	}
	return nil
}

// release hands an attempt back of which nothing has begun. Needs the lock.
func (rt *Runtime) release(x *attempt) {
	rt.wg.Go(func() { rt.finish(x, runtime.Report{Type: runtime.Released, Message: closing, Ended: true}) })
}

const closing = "the server is shutting down"

// environment is what every process of an agent that serves many runs gets.
func (rt *Runtime) environment(agent *fleet.Agent) map[string]string {
	// Handlers must have ended, and told so, before the processes' own grace is over.
	grace := max(rt.opts.Grace-rt.opts.Grace/4, 0).Round(time.Millisecond)
	return map[string]string{
		"ERRAND_URL": rt.opts.URL(), "ERRAND_AGENT": agent.Name(), "ERRAND_PROTOCOL": string(agent.Run.Protocol), "ERRAND_GRACE": grace.String(),
	}
}
