// Package process runs programs of agents as process groups that never outlive their host.
//
// A [Host] starts each program in a session, and so a process group, of its own. The end of a [Process] is told only
// when its whole group is gone. Two nets catch what a killed host leaves behind: a [Warden], a helper process that ends
// the groups at once, and a ledger file, by which the next host ends them before it starts anything.
//
// A program that moves a descendant into yet another session takes it out of the group; that descendant is out of
// reach, here as with any supervisor that works with process groups.
//
// Linux and macOS. Imports: the standard library and golang.org/x/sys.
package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Spec is a program to start.
type Spec struct {
	Command []string // program and arguments; a program without a slash is looked up in the PATH of Env
	Dir     string   // where it runs and what a relative program is relative to; "" is the host's own
	Env     []string // all of its environment, see [Environment]
	Stdin   []byte   // nil: empty
	// MaxOutput is how many bytes of standard output are kept for [Exit]; a program that writes more is killed. With 0
	// nothing is kept, and its lines go to Lines.
	MaxOutput int
	// Lines takes each line that is not kept, at most [MaxLine] bytes of it, without the line break. One call at a time
	// per stream ("stdout", "stderr"); a slow one slows the program down. May be nil.
	Lines func(stream, text string)
	// Memory is the most resident memory in bytes that the group may use together, 0 for no limit. It is sampled (see
	// sampleEvery): a short peak may go unseen, and pages shared between its processes count once for each.
	Memory int64
	// Limit is how long it may run, 0 for no limit; then it is stopped with Grace.
	Limit time.Duration
	Grace time.Duration
	// OnExit is called when the group is gone, before Done is closed. May be nil.
	OnExit func(Exit)
}

// Why a host ends a program. Exit.Cause wraps one of them.
var (
	ErrStopped = errors.New("stopped")
	ErrOutput  = errors.New("too much output")
	ErrMemory  = errors.New("too much memory")
	ErrTime    = errors.New("time limit passed")
)

// ErrNotStarted is wrapped by every error of Host.Start: no process of the program exists.
var ErrNotStarted = errors.New("not started")

// Exit is how a program ended.
type Exit struct {
	Code   int            // exit code; -1 when a signal ended it
	Signal syscall.Signal // the signal that ended it, else 0
	Cause  error          // why the host ended it; nil when it ended by itself or by another's hand
	Stdout []byte         // see Spec.MaxOutput
	Tail   string         // the last of standard error, at most [MaxTail] bytes
	// Left: a process of the group was still there long after SIGKILL, as one stuck in the kernel is.
	Left bool
}

// Waits that no caller chooses.
const (
	leftoverGrace = time.Second      // between SIGTERM and SIGKILL for what a program that ended left running
	goneWithin    = 10 * time.Second // how long a killed group may take to be gone
	drainWithin   = 2 * time.Second  // how long output may still come once the group is gone
)

// Process is a started program.
type Process struct {
	host *Host
	pgid int
	spec Spec

	mu     sync.Mutex
	kill   *time.Timer // ends the grace
	killAt time.Time
	cause  error
	ended  bool // the program itself has ended
	gone   bool // its group too: the number may belong to another

	stdout *capture
	stderr *lines
	done   chan struct{}
	exit   Exit
}

// PID is the process id of the program, which is its group's id too.
func (p *Process) PID() int { return p.pgid }

// Done is closed when the whole group is gone.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is valid once Done is closed.
func (p *Process) Exit() Exit { return p.exit }

// Tail is the last of what the program wrote to standard error so far.
func (p *Process) Tail() string { return p.stderr.tail() }

// Stop sends SIGTERM to the group, and SIGKILL once grace has passed; at once when grace is 0 or less. It returns
// immediately. Stopping again can shorten the grace, never prolong it.
func (p *Process) Stop(grace time.Duration) { p.end(ErrStopped, grace) }

func (p *Process) end(cause error, grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return
	}
	if p.cause == nil && !p.ended {
		p.cause = cause
	}
	if grace <= 0 {
		p.signal(syscall.SIGKILL)
		return
	}
	at := time.Now().Add(grace)
	switch {
	case p.kill == nil:
		p.signal(syscall.SIGTERM)
		// A stopped process takes notice of SIGTERM only when it continues.
		p.signal(syscall.SIGCONT)
	case at.After(p.killAt) || !p.kill.Stop():
		return
	}
	p.killAt = at
	p.kill = time.AfterFunc(grace, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.signal(syscall.SIGKILL)
	})
}

// signal needs the lock.
func (p *Process) signal(s syscall.Signal) {
	if !p.gone {
		_ = syscall.Kill(-p.pgid, s)
	}
}

// Start starts a program. Its errors wrap ErrNotStarted.
func (h *Host) Start(spec Spec) (*Process, error) {
	p, err := h.start(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	return p, nil
}

func (h *Host) start(spec Spec) (_ *Process, err error) {
	// 1. Find the program, so that the most common mistakes get a clear message.
	path, err := resolve(spec)
	if err != nil {
		return nil, err
	}
	// 2. Pipes. The child's ends are closed here once it has its own.
	pipes, err := newPipes()
	if err != nil {
		return nil, err
	}
	defer pipes.closeChild()
	defer func() {
		if err != nil {
			pipes.closeHost()
		}
	}()
	// 3. Start it, and write it down before it is given anything to do: a program that reads its work from standard
	// input cannot act before both nets know it.
	cmd := &exec.Cmd{
		Path: path, Args: spec.Command, Dir: spec.Dir, Env: append(spec.Env[:len(spec.Env):len(spec.Env)], envHost+"="+h.id),
		Stdin: pipes.in.r, Stdout: pipes.out.w, Stderr: pipes.err.w,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err = cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", path, orHere(spec.Dir), err)
	}
	g := group{pgid: cmd.Process.Pid, host: h.id}
	g.start, _ = startOf(g.pgid)
	if err = h.enter(g); err != nil {
		_ = syscall.Kill(-g.pgid, syscall.SIGKILL)
		_, _ = cmd.Process.Wait()
		return nil, err
	}
	// 4. Watch it.
	p := &Process{
		host: h, pgid: g.pgid, spec: spec, done: make(chan struct{}),
		stderr: &lines{stream: "stderr", sink: spec.Lines},
	}
	p.stdout = &capture{max: spec.MaxOutput, over: func() {
		p.end(fmt.Errorf("%w: over %s on standard output", ErrOutput, size(int64(spec.MaxOutput))), 0)
	}}
	if spec.Memory > 0 {
		h.sampler.watch(p)
	}
	go p.watch(cmd, pipes)
	return p, nil
}

// watch follows the program from its start until nothing of it is left.
func (p *Process) watch(cmd *exec.Cmd, pipes *pipes) {
	// 1. Its streams.
	var output sync.WaitGroup
	var out io.Writer = p.stdout
	if p.spec.MaxOutput <= 0 {
		out = &lines{stream: "stdout", sink: p.spec.Lines}
	}
	output.Go(func() { pump(out, pipes.out.r) })
	output.Go(func() { pump(p.stderr, pipes.err.r) })
	go feed(pipes.in.w, p.spec.Stdin)
	if p.spec.Limit > 0 {
		limit := time.AfterFunc(p.spec.Limit, func() {
			p.end(fmt.Errorf("%w: it ran for %s", ErrTime, p.spec.Limit), p.spec.Grace)
		})
		defer limit.Stop()
	}
	// 2. Its own end.
	state, err := cmd.Process.Wait()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	if err == nil {
		p.exit.Code = state.ExitCode()
		if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			p.exit.Signal = ws.Signal()
		}
	} else {
		p.exit.Code = -1
	}
	// 3. The end of all that it started.
	if !gone(p.pgid) {
		p.end(nil, leftoverGrace)
		p.exit.Left = !waitGone([]int{p.pgid}, leftoverGrace+goneWithin)
	}
	p.mu.Lock()
	p.gone = true
	if p.kill != nil {
		p.kill.Stop()
	}
	p.exit.Cause = p.cause
	p.mu.Unlock()
	p.host.sampler.forget(p)
	p.host.leave(p.pgid)
	// 4. Its last words. A process that left the group may hold the pipes open for ever.
	closer := time.AfterFunc(drainWithin, pipes.closeHost)
	output.Wait()
	if closer.Stop() {
		pipes.closeHost()
	}
	p.exit.Stdout, p.exit.Tail = p.stdout.buf, p.stderr.tail()
	if p.spec.OnExit != nil {
		p.spec.OnExit(p.exit)
	}
	close(p.done)
	p.host.active.Done()
}

type pipe struct{ r, w *os.File }

type pipes struct {
	in, out, err pipe
	closeOnce    sync.Once
}

func newPipes() (*pipes, error) {
	p := new(pipes)
	for _, each := range []*pipe{&p.in, &p.out, &p.err} {
		r, w, err := os.Pipe()
		if err != nil {
			p.closeChild()
			p.closeHost()
			return nil, fmt.Errorf("open pipes: %w", err)
		}
		each.r, each.w = r, w
	}
	return p, nil
}

// closeChild and closeHost may meet files that were never opened: Close of a nil file is an error without effect.
func (p *pipes) closeChild() {
	_ = p.in.r.Close()
	_ = p.out.w.Close()
	_ = p.err.w.Close()
}

func (p *pipes) closeHost() {
	p.closeOnce.Do(func() {
		_ = p.in.w.Close()
		_ = p.out.r.Close()
		_ = p.err.r.Close()
	})
}

func feed(w *os.File, data []byte) {
	// A program need not read its input: a broken pipe says nothing about its work.
	_, _ = w.Write(data)
	_ = w.Close()
}

func pump(w io.Writer, r *os.File) {
	_, _ = io.Copy(w, r)
	if l, ok := w.(*lines); ok {
		l.flush()
	}
}

func orHere(dir string) string {
	if dir == "" {
		return "the current directory"
	}
	return dir
}

func size(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
