package twin

import (
	"context"
	"errors"
	"net"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Rule is a fault on demand: of all that matches On and Of, the first Skip pass, and Times are hit. Rules are asked in
// the order in which they were given; the first that hits decides.
type Rule struct {
	// On is a pattern as of [path.Match] for what happens: a method of the API in gRPC or REST as SERVICE.METHOD
	// ("Jobs.RunJob", "Executions.*", "Operations.GetOperation"); "start", a container instance that is about to start;
	// "metadata.identity" and "metadata.token", a request to a metadata server.
	On string
	// Of is a pattern for the id of what the request is about, the last element of its name; of the parent, in lists; of
	// the service, task, pool or instance, for "start" and "metadata.*". "" matches all.
	Of    string
	Skip  int
	Times int // 0 means 1; negative, all
	Do    Effect
}

// Effect is what a fault does. Make one with a function of this package.
type Effect struct {
	code   codes.Code
	after  bool // the call takes effect first
	reset  bool
	hang   bool
	delay  time.Duration
	kill   syscall.Signal
	calls  bool // it makes sense for calls
	starts bool // it makes sense for starts
}

// Refuse answers with a code, without effect.
func Refuse(code codes.Code) Effect { return Effect{code: code, calls: true} }

// Lose lets the call take effect and answers with a code all the same.
func Lose(code codes.Code) Effect { return Effect{code: code, after: true, calls: true} }

// Reset closes the caller's connection instead of answering, after the effect with after, else without effect.
func Reset(after bool) Effect {
	return Effect{code: codes.Unavailable, reset: true, after: after, calls: true}
}

// Hang never answers: the call ends by its caller's deadline, after the effect with after, else without effect.
func Hang(after bool) Effect {
	return Effect{code: codes.DeadlineExceeded, hang: true, after: after, calls: true}
}

// Slow delays a call or a start.
func Slow(by time.Duration) Effect { return Effect{delay: by, calls: true, starts: true} }

// Kill ends a container instance some time after its start, by SIGKILL as a crash, a lost machine and too much memory
// do, or by SIGTERM with the grace as a preemption does.
func Kill(after time.Duration, by syscall.Signal) Effect {
	return Effect{delay: after, kill: by, starts: true}
}

// Fault is a rule that was given to a twin.
type Fault struct {
	rule Rule
	set  *faults
	seen int
	hits int
	off  bool
}

// Hits is how often it struck.
func (f *Fault) Hits() int {
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	return f.hits
}

// Clear ends it.
func (f *Fault) Clear() {
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	f.off = true
}

type faults struct {
	mu    sync.Mutex
	rules []*Fault
}

const (
	maxRules = 1000
	onStart  = "start"
)

// Fault adds a rule. A rule that can never do anything panics: a test that counts on it would prove nothing.
func (t *Twin) Fault(r Rule) *Fault {
	if _, err := path.Match(r.On, ""); err != nil || r.On == "" {
		panic("twin: a fault on the pattern " + r.On + ": want SERVICE.METHOD, start, metadata.identity or metadata.token")
	}
	if _, err := path.Match(r.Of, ""); err != nil {
		panic("twin: a fault of the pattern " + r.Of + ": it is malformed")
	}
	if starts, _ := path.Match(r.On, onStart); !(starts && r.Do.starts) && !(r.On != onStart && r.Do.calls) {
		panic("twin: a fault on " + r.On + " that cannot have this effect")
	}
	if r.Times == 0 {
		r.Times = 1
	}
	f := &Fault{rule: r, set: &t.faults}
	t.faults.mu.Lock()
	defer t.faults.mu.Unlock()
	kept := t.faults.rules[:0]
	for _, old := range t.faults.rules {
		if !old.over() {
			kept = append(kept, old)
		}
	}
	if len(kept) >= maxRules {
		panic("twin: more than 1000 faults at a time")
	}
	t.faults.rules = append(kept, f)
	return f
}

func (f *Fault) over() bool { return f.off || f.rule.Times > 0 && f.hits >= f.rule.Times }

// take tells what is to be done about something that happens to a resource.
func (fs *faults) take(what, name string) (Effect, bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.rules {
		if f.over() || what == onStart && !f.rule.Do.starts || what != onStart && !f.rule.Do.calls {
			continue
		}
		if ok, _ := path.Match(f.rule.On, what); !ok {
			continue
		}
		if ok, _ := path.Match(f.rule.Of, lastID(name)); !ok && f.rule.Of != "" {
			continue
		}
		f.seen++
		if f.seen <= f.rule.Skip {
			continue
		}
		f.hits++
		return f.rule.Do, true
	}
	return Effect{}, false
}

// wait delays as told and returns the error to answer with, nil if the call goes on.
func (e Effect) wait(ctx context.Context) error {
	if e.hang {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	if e.delay > 0 {
		timer := time.NewTimer(e.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if e.code != codes.OK {
		return status.Errorf(e.code, "%s, as a fault on demand wants", e.code)
	}
	return nil
}

// intercept puts the faults between callers and the API.
func (t *Twin) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return t.faulty(ctx, methodOf(info.FullMethod), nameIn(request), func() {
		if p, ok := peer.FromContext(ctx); ok {
			t.conns.reset(p.Addr.String())
		}
	}, func() (any, error) { return handle(ctx, request) })
}

// faulty makes a call, or does what the faults say.
func (t *Twin) faulty(ctx context.Context, method, name string, reset func(), call func() (any, error)) (any, error) {
	// The twin's end is everybody's deadline.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	e, hit := t.faults.take(method, name)
	if hit && !e.after {
		if e.reset {
			reset()
		}
		if err := e.wait(ctx); err != nil {
			return nil, err
		}
	}
	answer, err := call()
	if hit && e.after && err == nil {
		if e.reset {
			reset()
		}
		return nil, e.wait(ctx)
	}
	return answer, err
}

// methodOf is SERVICE.METHOD of /PACKAGE.SERVICE/METHOD.
func methodOf(full string) string {
	service, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return service[strings.LastIndexByte(service, '.')+1:] + "." + method
}

// nameIn is the name, or else the id or the parent, that a request is about.
func nameIn(request any) string {
	switch r := request.(type) {
	case interface{ GetName() string }:
		return r.GetName()
	case *runpb.CreateJobRequest:
		return r.GetJobId()
	case *runpb.CreateServiceRequest:
		return r.GetServiceId()
	case *runpb.CreateWorkerPoolRequest:
		return r.GetWorkerPoolId()
	case *runpb.CreateInstanceRequest:
		return r.GetInstanceId()
	case interface{ GetJob() *runpb.Job }: // an update
		return r.GetJob().GetName()
	case interface{ GetService() *runpb.Service }:
		return r.GetService().GetName()
	case interface{ GetWorkerPool() *runpb.WorkerPool }:
		return r.GetWorkerPool().GetName()
	case interface{ GetInstance() *runpb.Instance }:
		return r.GetInstance().GetName()
	case interface{ GetParent() string }:
		return r.GetParent()
	case interface{ GetResource() string }:
		return r.GetResource()
	}
	return ""
}

// connections knows the open connections of a server by the other end's address, to cut one.
type connections struct {
	mu   sync.Mutex
	open map[string]net.Conn
}

func newConnections() *connections { return &connections{open: make(map[string]net.Conn)} }

func (c *connections) watch(l net.Listener) net.Listener { return watched{l, c} }

func (c *connections) reset(addr string) {
	c.mu.Lock()
	conn, ok := c.open[addr]
	c.mu.Unlock()
	if ok {
		_ = conn.Close()
	}
}

type watched struct {
	net.Listener
	set *connections
}

// Accept is net.Listener's.
func (w watched) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &watchedConn{Conn: conn, set: w.set}
	w.set.mu.Lock()
	w.set.open[conn.RemoteAddr().String()] = c
	w.set.mu.Unlock()
	return c, nil
}

type watchedConn struct {
	net.Conn
	set *connections
}

// Close is net.Conn's.
func (c *watchedConn) Close() error {
	err := c.Conn.Close()
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	addr := c.RemoteAddr().String()
	if c.set.open[addr] == net.Conn(c) {
		delete(c.set.open, addr)
	}
	return err
}

var errClosed = errors.New("the twin of Cloud Run is closed")
