package outside

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Patience bounds a wait for what should take milliseconds. It passes only where a test fails.
const Patience = time.Minute

const pollEvery = 10 * time.Millisecond

// Eventually polls until it is so, and ends the test if it is not within that time. It is for what happens in other
// processes and behind sockets: what can send a signal is waited for by that.
func Eventually(t testing.TB, within time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !is(); time.Sleep(pollEvery) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// Program is a process of a test.
type Program struct {
	*exec.Cmd
	Log    *Log          // what it wrote, save for a stream that the command had a place for
	Exited chan struct{} // closed when it has ended
}

// Start starts a command. It is killed at the end of the test, which shows what it wrote if it failed.
func Start(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	p := &Program{Cmd: cmd, Log: new(Log), Exited: make(chan struct{})}
	// 1. Its streams. What it starts itself may hold them open after its death.
	if cmd.Stdout == nil {
		cmd.Stdout = p.Log
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.Log
	}
	cmd.WaitDelay = time.Second
	// 2. Its life.
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %v: %v", cmd.Args, err)
	}
	go func() {
		_ = cmd.Wait() // how it ended is in its state
		close(p.Exited)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%v wrote:\n%s", cmd.Args, p.Log.Tail())
		}
	})
	return p
}

// Kill ends the process at once, and returns when it is gone.
func (p *Program) Kill() {
	_ = p.Process.Kill() // one that is gone needs none
	<-p.Exited
}

// Send sends a signal to the process. One that is gone is no failure.
func (p *Program) Send(t testing.TB, s os.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("signal %v to %v: %v", s, p.Args, err)
	}
}

// Code waits for the end of the process and returns its exit code; -1 when a signal ended it.
func (p *Program) Code(t testing.TB) int {
	t.Helper()
	select {
	case <-p.Exited:
	case <-time.After(Patience):
		t.Fatalf("%v does not end within %s:\n%s", p.Args, Patience, p.Log.Tail())
	}
	return p.ProcessState.ExitCode()
}
