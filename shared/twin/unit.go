package twin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"

	"github.com/errand-run/errand/shared/runtime/process"
)

// plan is a container instance to start.
type plan struct {
	resource   string // full name of the service, task, pool or instance
	account    string
	containers []*runpb.Container
	env        map[string]string // the platform's
	ingress    bool              // one container takes requests on PORT
	task       bool              // it ends when all containers have ended, instead of when one has
	limit      time.Duration     // 0 for none
}

// unit is a container instance: its containers start, run and end together.
type unit struct {
	t     *Twin
	plan  plan
	id    string
	port  int
	began time.Time
	up    time.Time // when its last container was up
	meta  *metadata
	order []int // which container each of procs is

	mu    sync.Mutex
	links []*link
	procs []*process.Process
	stops bool // it was told to end

	done chan struct{}
	exit exit // valid once done is closed
}

// exit is how a container instance ended.
type exit struct {
	code    int32
	signal  int32
	timeout bool
	stopped bool // it was told to
	problem error
}

func (e exit) ok() bool { return e.problem == nil && e.code == 0 && e.signal == 0 && !e.timeout }

// instanceID has the shape of Cloud Run's.
func instanceID() string {
	b := make([]byte, 64)
	_, _ = rand.Read(b)
	return fmt.Sprintf("00%x", b)
}

// launch starts a container instance and returns when all of its containers are up. When the error is nil, the caller
// waits for done. ctx ends the wait; it does not end what has started.
func (t *Twin) launch(ctx context.Context, p plan) (_ *unit, err error) {
	// 1. Room.
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-t.ctx.Done():
		return nil, errClosed
	}
	u := &unit{t: t, plan: p, id: instanceID(), began: time.Now(), done: make(chan struct{})}
	ok := false
	defer func() {
		if !ok {
			u.release()
		}
	}()
	// 2. Faults that are due.
	fault, hit := t.faults.take(onStart, p.resource)
	if hit && fault.kill == 0 {
		if err := fault.wait(ctx); err != nil {
			return nil, err
		}
	}
	// 3. Its surroundings: identity, port, ways out.
	region := strings.Split(p.resource, "/")[3]
	if u.meta, err = t.newMetadata(p.resource, region, p.account, u.id); err != nil {
		return nil, err
	}
	if p.ingress {
		if u.port, err = t.ports.take(); err != nil {
			return nil, err
		}
	}
	if u.order, err = startOrder(p.containers); err != nil {
		return nil, err
	}
	// 4. It counts from here: Close waits for it, and Containers shows it.
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, errClosed
	}
	t.units[u.id] = u
	t.active.Add(1)
	t.mu.Unlock()
	ok = true
	// 5. Its containers, each after those it depends on.
	for _, i := range u.order {
		if err = u.start(ctx, i); err != nil {
			break
		}
	}
	go u.watch()
	if err == nil && p.ingress {
		err = u.listening(ctx)
	}
	if err != nil {
		u.stop(0)
		<-u.done
		return nil, err
	}
	u.mu.Lock()
	u.up = time.Now()
	u.mu.Unlock()
	if hit && fault.kill != 0 {
		t.active.Go(func() { u.killAfter(fault.delay, fault.kill) })
	}
	return u, nil
}

// start starts container i and waits for its startup probe, if it has one.
func (u *unit) start(ctx context.Context, i int) error {
	c := u.plan.containers[i]
	name := c.GetName()
	if name == "" {
		name = strconv.Itoa(i)
	}
	fail := func(err error) error { return fmt.Errorf("container %s: %w", name, err) }
	// 1. What it runs, with which environment.
	command, err := u.t.commandOf(c)
	if err != nil {
		return fail(err)
	}
	declared, err := u.t.declaredEnv(c)
	if err != nil {
		return fail(err)
	}
	platform := map[string]string{"GCE_METADATA_HOST": u.meta.host()}
	for k, v := range u.plan.env {
		platform[k] = v
	}
	if u.plan.ingress && i == ingressOf(u.plan.containers) {
		platform["PORT"] = strconv.Itoa(u.port)
	}
	env := map[string]string{}
	for _, from := range []map[string]string{u.t.opts.Env, declared} {
		for k, v := range from {
			env[k] = v
		}
	}
	for _, key := range u.t.opts.Through {
		if env[key] == "" {
			continue
		}
		l, through, err := u.t.newLink(env[key])
		if err != nil {
			return fail(fmt.Errorf("variable %s: %w", key, err))
		}
		u.mu.Lock()
		u.links = append(u.links, l)
		u.mu.Unlock()
		env[key] = through
	}
	memory := int64(0)
	if m := c.GetResources().GetLimits()["memory"]; m != "" {
		memory, _ = parseBytes(m)
	}
	// 2. The process. A stop that came meanwhile comes first.
	u.mu.Lock()
	if u.stops {
		u.mu.Unlock()
		return fail(errors.New("it was stopped before it had started"))
	}
	spec := process.Spec{
		Command: command, Dir: u.t.dirOf(c), Env: process.Environment(env, platform),
		Memory: memory, Limit: u.plan.limit, Grace: u.t.opts.Grace,
	}
	if lines := u.t.opts.Lines; lines != nil {
		spec.Lines = func(stream, text string) {
			lines(Line{Resource: u.plan.resource, Instance: u.id, Container: name, Stream: stream, Text: text})
		}
	}
	p, err := u.t.host.Start(spec)
	if err != nil {
		u.mu.Unlock()
		return fail(err)
	}
	u.procs = append(u.procs, p)
	u.mu.Unlock()
	// 3. Its own word that it is up.
	if probe := c.GetStartupProbe(); probe != nil && !(u.plan.ingress && i == ingressOf(u.plan.containers)) {
		if err := u.probe(ctx, p, probe); err != nil {
			return fail(err)
		}
	}
	return nil
}

// listening waits until the container that takes requests listens on its port.
func (u *unit) listening(ctx context.Context) error {
	at := ingressOf(u.plan.containers)
	for k, i := range u.order {
		if i != at {
			continue
		}
		if probe := u.plan.containers[i].GetStartupProbe(); probe.GetHttpGet() != nil {
			return u.probe(ctx, u.procs[k], probe)
		}
		return u.probe(ctx, u.procs[k], &runpb.Probe{ProbeType: &runpb.Probe_TcpSocket{TcpSocket: &runpb.TCPSocketAction{Port: int32(u.port)}}})
	}
	return nil
}

const probeEvery = 10 * time.Millisecond // a twin's user waits for it: it is quicker than a declared period

// probe asks until the answer is good, the process ends, or Options.Startup has passed.
func (u *unit) probe(ctx context.Context, p *process.Process, probe *runpb.Probe) error {
	var ask func() bool
	address := func(port int32) string {
		if port == 0 || u.plan.ingress && p == u.ingressProc() {
			port = int32(u.port)
		}
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
	}
	switch {
	case probe.GetTcpSocket() != nil:
		at := address(probe.GetTcpSocket().GetPort())
		ask = func() bool {
			c, err := net.DialTimeout("tcp", at, time.Second)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		}
	case probe.GetHttpGet() != nil:
		url := "http://" + address(probe.GetHttpGet().GetPort()) + "/" + strings.TrimPrefix(probe.GetHttpGet().GetPath(), "/")
		client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		request, err := http.NewRequestWithContext(u.t.ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		ask = func() bool {
			r, err := client.Do(request)
			if err != nil {
				return false
			}
			_ = r.Body.Close()
			return r.StatusCode >= 200 && r.StatusCode < 400
		}
	default:
		return nil // a gRPC probe: that the process runs has to do
	}
	limit := time.NewTimer(u.t.opts.Startup)
	defer limit.Stop()
	for every := time.NewTicker(probeEvery); ; {
		if ask() {
			every.Stop()
			return nil
		}
		select {
		case <-every.C:
			continue
		case <-p.Done():
			every.Stop()
			return fmt.Errorf("it ended with exit code %d before it was up", p.Exit().Code)
		case <-limit.C:
			every.Stop()
			return fmt.Errorf("it failed to start and listen on the port within %s", u.t.opts.Startup)
		case <-ctx.Done():
			every.Stop()
			return context.Cause(ctx)
		}
	}
}

func (u *unit) ingressProc() *process.Process {
	at := ingressOf(u.plan.containers)
	for k, p := range u.procs {
		if u.order[k] == at {
			return p
		}
	}
	return nil
}

// watch follows the containers until all have ended, and ends the others with the first that ends it for all.
func (u *unit) watch() {
	defer u.t.active.Done()
	type ended struct {
		k int
		e process.Exit
	}
	ends := make(chan ended, len(u.procs))
	for k, p := range u.procs {
		go func() {
			<-p.Done()
			ends <- ended{k, p.Exit()}
		}()
	}
	first := true
	for range u.procs {
		end := <-ends
		bad := end.e.Code != 0 || end.e.Signal != 0 || errors.Is(end.e.Cause, process.ErrTime)
		if !first || u.plan.task && !bad {
			continue
		}
		first = false
		u.mu.Lock()
		u.exit.stopped = u.stops
		u.mu.Unlock()
		u.exit.timeout = errors.Is(end.e.Cause, process.ErrTime)
		u.exit.signal = int32(end.e.Signal)
		if end.e.Signal == 0 {
			u.exit.code = int32(end.e.Code)
		}
		if errors.Is(end.e.Cause, process.ErrMemory) {
			u.exit.problem = errors.New("the memory limit was exceeded")
		}
		u.stop(u.t.opts.Grace)
	}
	u.mu.Lock()
	u.exit.stopped = u.exit.stopped || u.stops && first
	u.mu.Unlock()
	u.release()
	u.t.mu.Lock()
	delete(u.t.units, u.id)
	u.t.mu.Unlock()
	close(u.done)
}

// stop sends SIGTERM to all containers, and SIGKILL to what is there after the grace; at once with 0.
func (u *unit) stop(grace time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stops = true
	for _, p := range u.procs {
		p.Stop(grace)
	}
}

// kill ends the containers as no wish of the platform's API does: SIGKILL is a crash, anything else a preemption.
func (u *unit) kill(by syscall.Signal) {
	grace := u.t.opts.Grace
	if by == syscall.SIGKILL {
		grace = 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.procs {
		p.Stop(grace)
	}
}

func (u *unit) killAfter(d time.Duration, by syscall.Signal) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		u.kill(by)
	case <-u.done:
	}
}

// release gives back what the unit held.
func (u *unit) release() {
	if u.meta != nil {
		u.meta.close()
	}
	u.mu.Lock()
	for _, l := range u.links {
		l.close()
	}
	u.mu.Unlock()
	if u.port != 0 {
		u.t.ports.free(u.port)
	}
	<-u.t.slots
}
