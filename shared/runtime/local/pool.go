package local

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/process"
)

// pool executes attempts in processes that serve many: workers, which fetch them, and http processes, which are sent
// them. It has as many processes as its attempts need slots, starts those that are missing, replaces those that crash,
// and ends those that nobody needed for a while. Guarded by Runtime.mu.
type pool struct {
	u      *unit
	pulls  bool
	single bool // an instance: one process, whatever the load
	slots  int
	target string
	idle   time.Duration

	members map[*member]struct{}
	queue   []*attempt // http: not sent yet
	// served counts ends of attempts, by which a process that never did anything is known.
	served   int
	failures int         // starts in a row that came to nothing
	retry    *time.Timer // until it fires no process is started
	peak     int         // most processes needed since the idle timer was set
	rest     *time.Timer
}

// member is one process of a pool.
type member struct {
	pool     *pool
	id       string
	proc     *process.Process
	servedAt int      // pool.served when it was started
	stopping bool     // no more attempts come here
	killed   *attempt // what it was killed for
	silent   bool     // it was killed, for control heard nothing of it
	why      string   // why it was ended, if it is its own fault

	// Of http:
	port     int
	ready    bool // it listens
	calls    map[*attempt]*call
	sessions map[string]string // by what a snapshot may name them: the key to save them under; "" if it is not unique
}

const (
	firstRestart   = 100 * time.Millisecond // after a start that came to nothing; doubles
	longestRestart = 30 * time.Second
	mostSlots      = 1000 // of one process, by the worker protocol; more are spread over several
	jobIdle        = 50 * time.Millisecond
	maxFailures    = 3 // starts that came to nothing after which attempts are given back
)

func newPool(u *unit, target string) *pool {
	p := &pool{
		u: u, pulls: u.pulls, single: u.agent.Shape == fleet.Instance, slots: min(max(u.agent.Run.Slots, 1), mostSlots), target: target,
		idle: u.rt.opts.Idle, members: make(map[*member]struct{}),
	}
	if u.agent.Shape == fleet.Job && p.pulls {
		// Its process is for one run: nothing is kept for a next one.
		p.slots, p.idle = 1, min(p.idle, jobIdle)
	}
	return p
}

func (p *pool) start(x *attempt) (func() error, error) {
	if !p.pulls {
		p.enqueue(x)
	}
	if err := p.ensure(); err != nil {
		p.unqueue(x)
		return nil, err
	}
	return nil, nil
}

// needed is how many processes the attempts call for.
func (p *pool) needed() int {
	n := len(p.u.attempts) - len(p.u.queue)
	if p.single {
		return min(n, 1)
	}
	return (n + p.slots - 1) / p.slots
}

func (p *pool) live() (n int) {
	for m := range p.members {
		// An instance's successor waits until the process before it is gone.
		if !m.stopping || p.single {
			n++
		}
	}
	return n
}

// ensure starts the processes that are missing. It fails when none could be started and none is there.
func (p *pool) ensure() error {
	need := p.needed()
	p.peak = max(p.peak, need)
	if p.retry != nil || p.u.rt.closed {
		return nil
	}
	for live := p.live(); live < need; live++ {
		if err := p.spawn(); err != nil {
			if live == 0 {
				return err
			}
			p.u.rt.log.Warn("a process could not be started; others go on", "agent", p.u.agent.Name(), "error", err)
			return nil
		}
	}
	return nil
}

// spawn starts one process.
func (p *pool) spawn() error {
	rt, agent := p.u.rt, p.u.agent
	rt.workers[agent.Name()]++
	m := &member{pool: p, id: fmt.Sprintf("local-%s-%d", agent.Name(), rt.workers[agent.Name()]), servedAt: p.served}
	vars := rt.environment(agent)
	if p.pulls {
		vars["ERRAND_WORKER"], vars["ERRAND_TARGET"], vars["ERRAND_SLOTS"] = m.id, p.target, strconv.Itoa(p.slots)
		if rt.opts.WorkerToken != "" {
			vars["ERRAND_WORKER_TOKEN"] = rt.opts.WorkerToken
		}
	} else {
		port, err := rt.freePort()
		if err != nil {
			return err
		}
		// The pool keeps to the slots. An answer arrives before its slot is free over there, so the process needs more.
		vars["ERRAND_SLOTS"] = strconv.Itoa(min(2*p.slots, mostSlots))
		m.port, m.calls, m.sessions = port, make(map[*attempt]*call), make(map[string]string)
		vars["PORT"], vars["ERRAND_LISTEN"] = strconv.Itoa(port), "127.0.0.1"
	}
	var err error
	m.proc, err = rt.host.Start(process.Spec{
		Command: agent.Run.Command, Dir: agent.Run.Dir, Env: process.Environment(agent.Run.Env, vars), Grace: rt.opts.Grace,
		// Needs are those of one run; the process has them for each of its slots.
		Memory: int64(agent.Needs.Memory) * int64(p.slots),
		Lines:  func(stream, text string) { rt.opts.Output(agent.Name(), m.id, stream, text) },
		OnExit: func(e process.Exit) { p.exited(m, e) },
	})
	if err != nil {
		delete(rt.ports, m.port)
		return fmt.Errorf("agent %s: %w", agent.Name(), err)
	}
	p.members[m] = struct{}{}
	rt.log.Info("started a process", "agent", agent.Name(), "process", m.id, "pid", m.proc.PID())
	if !p.pulls {
		go p.awaitReady(m)
	}
	return nil
}

// freePort finds a port for an http process. Needs the lock.
func (rt *Runtime) freePort() (int, error) {
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("find a free port: %w", err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		// A process that is starting may not have taken its own yet.
		if !rt.ports[port] {
			rt.ports[port] = true
			return port, nil
		}
	}
	return 0, errors.New("find a free port: none in 20 tries")
}

// held lists what a worker has taken. Called without the lock, for control has its own.
func (rt *Runtime) held(m *member) []runtime.Held {
	if !m.pool.pulls || rt.opts.Held == nil {
		return nil
	}
	return rt.opts.Held(m.id)
}

// exited deals with the end of a process. Called without the lock, when the process and its group are gone.
func (p *pool) exited(m *member, e process.Exit) {
	rt := p.u.rt
	held := rt.held(m)
	// 1. What it was doing is over, one way or another.
	rt.mu.Lock()
	delete(p.members, m)
	delete(rt.ports, m.port)
	var lost []*attempt
	var reports []runtime.Report
	for _, h := range held {
		x := rt.attempts[runtime.AttemptID(h.Run, h.N)]
		if x == nil {
			x = &attempt{a: runtime.Assignment{Run: h.Run, N: h.N}, unit: p.u}
		} else if x.over {
			continue
		}
		x.over = true
		report := m.fate(x, e)
		report.Worker = m.id
		lost, reports = append(lost, x), append(reports, report)
	}
	for x, c := range m.calls {
		fate := m.fate(x, e)
		c.cancel(&exitError{fate})
	}
	// 2. A process that ended before it did anything will most likely do so again.
	useless := !m.stopping && m.killed == nil && len(held) == 0 && len(m.calls) == 0 && !m.ready && p.served == m.servedAt
	if useless {
		p.failures++
		p.pause()
	} else if !m.stopping && m.killed == nil {
		p.failures = 0
	}
	failures, why := p.failures, m.describe(e)
	level := rt.log.Info
	if !m.stopping {
		level = rt.log.Warn
	}
	level("a process ended", "agent", p.u.agent.Name(), "process", m.id, "how", why)
	rt.mu.Unlock()
	for i, x := range lost {
		rt.conclude(x, reports[i])
	}
	if useless && failures >= maxFailures {
		p.giveBack(fmt.Sprintf("its process ends before it takes a run (%d times): %s", failures, why))
	}
	// 3. What still waits gets another.
	rt.mu.Lock()
	p.refill()
	rt.tidy(p.u)
	rt.mu.Unlock()
}

// pause holds back starts after one that came to nothing.
func (p *pool) pause() {
	if p.retry != nil {
		return
	}
	delay := min(firstRestart<<min(p.failures-1, 10), longestRestart)
	p.retry = time.AfterFunc(delay, func() {
		p.u.rt.mu.Lock()
		defer p.u.rt.mu.Unlock()
		p.retry = nil
		p.refill()
	})
}

// refill is ensure where nobody waits for the outcome: attempts whose process cannot be started are given back.
func (p *pool) refill() {
	if err := p.ensure(); err != nil {
		p.u.rt.wg.Go(func() { p.giveBack(err.Error()) })
	}
}

// giveBack reports that the attempts which no process has cannot be started. Called without the lock.
func (p *pool) giveBack(why string) {
	rt := p.u.rt
	taken := p.taken()
	rt.mu.Lock()
	var waiting []*attempt
	for x := range p.u.attempts {
		if !x.over && !x.waiting && !taken[x.a.ID()] && x.task == nil {
			waiting = append(waiting, x)
		}
	}
	for _, x := range waiting {
		p.unqueue(x)
	}
	rt.mu.Unlock()
	for _, x := range waiting {
		rt.finish(x, notStarted(why))
	}
}

// taken is what the workers have. Called without the lock.
func (p *pool) taken() map[string]bool {
	taken := make(map[string]bool)
	for _, m := range p.list() {
		for _, h := range p.u.rt.held(m) {
			taken[runtime.AttemptID(h.Run, h.N)] = true
		}
	}
	return taken
}

func (p *pool) list() []*member {
	p.u.rt.mu.Lock()
	defer p.u.rt.mu.Unlock()
	list := make([]*member, 0, len(p.members))
	for m := range p.members {
		list = append(list, m)
	}
	return list
}

// describe says how the process ended and what it said last.
func (m *member) describe(e process.Exit) string {
	how := "exit code " + strconv.Itoa(e.Code)
	if e.Signal != 0 {
		how = fmt.Sprintf("ended by signal %d", int(e.Signal))
	}
	if errors.Is(e.Cause, process.ErrMemory) {
		how = e.Cause.Error() + " (needs.memory for each slot)"
	}
	if m.why != "" {
		how = m.why
	}
	if e.Tail != "" {
		how += ": " + e.Tail
	}
	return how
}

// fate is what the end of the process means for one of its attempts. Needs the lock.
func (m *member) fate(x *attempt, e process.Exit) runtime.Report {
	var r runtime.Report
	switch {
	case x.reason != "":
		r = runtime.Stopped(x.reason, "its process was killed after it was told to stop: "+string(x.reason))
	case m.killed != nil && e.Cause != nil:
		r = runtime.Report{
			Type: runtime.Failed, Class: run.ClassInfrastructure, Code: "ProcessStopped",
			Message: "its process was killed, for another attempt in it did not end when told to stop: " + m.killed.a.ID(),
		}
	case m.silent:
		r = runtime.Report{Type: runtime.Failed, Class: run.ClassLost, Code: string(run.HeartbeatLost), Message: "its process was killed: " + m.why}
	case m.pool.u.rt.closed || m.stopping:
		r = runtime.Report{Type: runtime.Released, Message: "its process was stopped"}
	default:
		r = runtime.Report{Type: runtime.Failed, Class: run.ClassLost, Code: strconv.Itoa(e.Code), Message: "its process ended: " + m.describe(e)}
		if e.Signal != 0 {
			r.Code = strconv.Itoa(128 + int(e.Signal))
		}
	}
	r.Ended = !e.Left
	return r
}

// stop asks nothing of the process: attempts learn of their cancellation when they talk to control. One that has not
// ended by the end of its grace is killed with all of its process.
func (p *pool) stop(x *attempt, grace time.Duration) {
	if !p.pulls && x.task == nil {
		p.unqueue(x)
		p.u.rt.finishNotBegun(x)
		return
	}
	x.killAfter(grace, func() { p.kill(x) })
	if p.pulls && !p.u.rt.closed {
		p.u.rt.wg.Go(func() { p.endUntaken(x) })
	}
}

// endUntaken ends an attempt that no worker has: control hands out none that was told to stop. Called without the lock.
func (p *pool) endUntaken(x *attempt) {
	if p.taken()[x.a.ID()] {
		return
	}
	p.u.rt.finish(x, p.notBegun(x))
}

func (p *pool) notBegun(x *attempt) runtime.Report {
	p.u.rt.mu.Lock()
	defer p.u.rt.mu.Unlock()
	r := runtime.Stopped(x.reason, "it was told to stop before it began: "+string(x.reason))
	r.Ended = true
	return r
}

// kill ends the process that has the attempt. Called without the lock.
func (p *pool) kill(x *attempt) {
	rt := p.u.rt
	var holder *member
	for _, m := range p.list() {
		for _, h := range rt.held(m) {
			if h.Run == x.a.Run && h.N == x.a.N {
				holder = m
			}
		}
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if x.over {
		return
	}
	if c, ok := x.task.(*call); ok {
		holder = c.member
	}
	if holder == nil {
		return
	}
	rt.log.Warn("killing a process for an attempt that does not stop", "attempt", x.a.ID(), "process", holder.id)
	holder.killed = x
	holder.stopping = true
	holder.proc.Stop(0)
}

func (p *pool) left(x *attempt) {
	p.served++
	p.unqueue(x)
	p.settle()
}

// settle sets the idle timer when there is more than is needed.
func (p *pool) settle() {
	if p.rest != nil || p.live() <= p.needed() || p.u.rt.closed {
		return
	}
	p.peak = p.needed()
	p.rest = time.AfterFunc(p.idle, p.look)
}

// look ends the processes that were not needed since the idle timer was set. Called without the lock.
func (p *pool) look() {
	rt := p.u.rt
	busy := make(map[*member]bool)
	taken := make(map[string]bool)
	for _, m := range p.list() {
		for _, h := range rt.held(m) {
			busy[m], taken[runtime.AttemptID(h.Run, h.N)] = true, true
		}
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	p.rest = nil
	if rt.closed {
		return
	}
	surplus := p.live() - max(p.peak, p.needed())
	// While an attempt waits to be fetched, the worker that seems to have nothing may be about to fetch it.
	if p.pulls && !p.allIn(taken) {
		surplus = 0
	}
	for m := range p.members {
		if surplus > 0 && !m.stopping && !busy[m] && len(m.calls) == 0 {
			p.dismiss(m, rt.opts.Grace)
			surplus--
		}
	}
	p.settle()
}

func (p *pool) allIn(taken map[string]bool) bool {
	for x := range p.u.attempts {
		if !x.over && !x.waiting && !taken[x.a.ID()] {
			return false
		}
	}
	return true
}

// dismiss ends a process that has nothing to do.
func (p *pool) dismiss(m *member, grace time.Duration) {
	if m.stopping {
		return
	}
	m.stopping = true
	if p.single && m.ready {
		// What it keeps is asked for first; the process is busy with that, so it is no longer there for turns.
		p.u.rt.wg.Go(func() {
			end := time.Now().Add(grace)
			p.snapshot(m, min(grace, snapshotWithin))
			m.proc.Stop(time.Until(end))
		})
		return
	}
	m.proc.Stop(grace)
}

func (p *pool) warm() bool { return len(p.members) > 0 }

func (p *pool) retire() {
	for m := range p.members {
		p.dismiss(m, p.u.rt.opts.Grace)
	}
}

func (p *pool) close(grace time.Duration) {
	// 1. What no process has is handed back.
	for x := range p.u.attempts {
		if !p.pulls && x.task == nil && !x.over && !x.waiting {
			p.u.rt.release(x)
		}
	}
	p.queue = nil
	for _, timer := range []*time.Timer{p.retry, p.rest} {
		if timer != nil {
			timer.Stop()
		}
	}
	// 2. Processes finish what they can.
	for m := range p.members {
		if grace <= 0 {
			m.stopping = true
			m.proc.Stop(0)
		} else {
			p.dismiss(m, grace)
		}
	}
	if p.pulls && grace > 0 {
		p.u.rt.wg.Go(p.releaseUntaken)
	}
}

// releaseUntaken hands back what no worker has taken. Called without the lock.
func (p *pool) releaseUntaken() {
	rt := p.u.rt
	taken := p.taken()
	rt.mu.Lock()
	var untaken []*attempt
	for x := range p.u.attempts {
		if !x.over && !taken[x.a.ID()] {
			untaken = append(untaken, x)
		}
	}
	rt.mu.Unlock()
	for _, x := range untaken {
		rt.finish(x, runtime.Report{Type: runtime.Released, Message: closing, Ended: true})
	}
}
