// Package runtimetest is the conformance suite of the runtime port: what every driver of runtime.Runtime must do,
// whatever executes its attempts.
//
// The agents are the test binary itself, which calls Program first thing in TestMain. Nothing sleeps for an outcome:
// reports are waited for, and outside processes are looked at until a bound.
package runtimetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Harness is a driver under test.
type Harness struct {
	// Open makes a runtime that reports to c, tells agents c's address, and closes with the test.
	Open func(t *testing.T, c *Control) runtime.Runtime
	// Agent is an agent whose command is Program, to be varied by a test.
	Agent func(t *testing.T) *fleet.Agent
}

// Attempt makes an assignment with an order.
func Attempt(agent *fleet.Agent, id string, n int, o Order) runtime.Assignment {
	input, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return runtime.Assignment{
		Run: id, N: n, Agent: agent, Target: &fleet.Target{Meta: fleet.Meta{Name: "local"}, Runtime: fleet.RuntimeLocal},
		Tenant: "acme", Unit: id, Mode: runtime.ModeRun, Input: input, Token: "token-of-" + id,
	}
}

// Command makes an agent run Program as the given kind: see Program.
func Command(agent *fleet.Agent, kind string) *fleet.Agent {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	agent.Run.Command = []string{self}
	// The race detector has a program wait for a second before it ends.
	agent.Run.Env = map[string]string{EnvProgram: kind, "GORACE": "atexit_sleep_ms=0"}
	return agent
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	type suite struct {
		c     *Control
		rt    runtime.Runtime
		agent *fleet.Agent
	}
	cases := map[string]func(t *testing.T, s suite){
		"an attempt completes with its output, under its number": func(t *testing.T, s suite) {
			start(t, s.c, Attempt(s.agent, "r1", 7, Order{Do: "echo", Text: "hello"}))
			got := s.c.Await(t, "r1", 7)
			var echo Echo
			if err := json.Unmarshal(got.Output, &echo); err != nil || got.Type != runtime.Completed || echo.Text != "hello" || echo.Attempt != "r1.7" {
				t.Errorf("report %+v with output %s, %v; want it completed with an echo", got, got.Output, err)
			}
		},
		"a failure keeps its code and that it is final": func(t *testing.T, s suite) {
			start(t, s.c, Attempt(s.agent, "r1", 1, Order{Do: "fail"}))
			got := s.c.Await(t, "r1", 1)
			if got.Type != runtime.Failed || got.Class != run.ClassUser || got.Code != "BAD" || got.Message != "ordered to fail" || !got.Final {
				t.Errorf("report %+v, want it failed for good with BAD", got)
			}
		},
		"a park says what it waits for": func(t *testing.T, s suite) {
			start(t, s.c, Attempt(s.agent, "r1", 1, Order{Do: "park"}))
			got := s.c.Await(t, "r1", 1)
			if got.Type != runtime.Parked || got.Park == nil || *got.Park != (run.Park{On: run.OnInput, Name: "paid", Step: "payment"}) {
				t.Errorf("report %+v, want it parked on input", got)
			}
		},
		"an output over the limit fails": func(t *testing.T, s suite) {
			start(t, s.c, Attempt(s.agent, "r1", 1, Order{Do: "large"}))
			if got := s.c.Await(t, "r1", 1); got.Type != runtime.Failed || got.Code != string(run.ResultTooLarge) {
				t.Errorf("report %s %s %s, want ResultTooLarge", got.Type, got.Code, got.Message)
			}
		},
		"a start that cannot be is refused": func(t *testing.T, s suite) {
			s.agent.Run.Command = []string{"no-such-program"}
			err := s.c.Start(Attempt(s.agent, "r1", 1, Order{Do: "echo"}))
			if !errors.Is(err, runtime.ErrRefused) {
				t.Errorf("error %v, want ErrRefused", err)
			}
		},
		"starting what is under way does nothing": func(t *testing.T, s suite) {
			file := filepath.Join(t.TempDir(), "pids")
			a := Attempt(s.agent, "r1", 1, Order{Do: "wait", File: file})
			start(t, s.c, a)
			Lines(t, file, 1)
			if err := s.rt.Start(context.Background(), a); err != nil {
				t.Error(err)
			}
			// Another attempt that has begun later shows that the second start came to nothing.
			start(t, s.c, Attempt(s.agent, "r2", 1, Order{Do: "echo"}))
			s.c.Await(t, "r2", 1)
			s.c.Stop("r1", 1, run.CanceledByRequest, time.Minute)
			s.c.Await(t, "r1", 1)
			if n := len(lines(file)); n != 1 {
				t.Errorf("executed %d times", n)
			}
		},
		"an attempt that is told to stop and listens ends within its grace": func(t *testing.T, s suite) {
			file := filepath.Join(t.TempDir(), "pids")
			start(t, s.c, Attempt(s.agent, "r1", 1, Order{Do: "wait", File: file}))
			Lines(t, file, 1)
			s.c.Stop("r1", 1, run.CanceledByRequest, time.Hour)
			if got := s.c.Await(t, "r1", 1); got.Type != runtime.Failed {
				t.Errorf("report %+v, want it failed", got)
			}
		},
		"an attempt that does not listen is killed with all that it started": func(t *testing.T, s suite) {
			file := filepath.Join(t.TempDir(), "pids")
			start(t, s.c, Attempt(s.agent, "r1", 1, Order{Do: "stubborn", File: file}))
			pids := Lines(t, file, 20)
			for len(slices.Compact(slices.Sorted(slices.Values(pids)))) < 2 {
				pids = Lines(t, file, len(pids)+1)
			}
			s.c.Stop("r1", 1, run.AttemptTimeout, 20*time.Millisecond)
			got := s.c.Await(t, "r1", 1)
			if got.Type != runtime.Failed || got.Class != run.ClassTimeout || !got.Ended {
				t.Errorf("report %+v, want it timed out and ended", got)
			}
			// From the report on nothing of it may act.
			acted := len(lines(file))
			for _, pid := range slices.Compact(slices.Sorted(slices.Values(lines(file)))) {
				if Alive(pid) {
					t.Errorf("process %d lives", pid)
				}
			}
			if now := len(lines(file)); now != acted {
				t.Errorf("%d signs of life after the end was reported", now-acted)
			}
		},
		"stopping what is not there does nothing": func(t *testing.T, s suite) {
			s.rt.Stop(context.Background(), "r9", 1, run.CanceledByRequest, 0)
			start(t, s.c, Attempt(s.agent, "r1", 2, Order{Do: "echo"}))
			s.rt.Stop(context.Background(), "r1", 1, run.CanceledByRequest, 0)
			if got := s.c.Await(t, "r1", 2); got.Type != runtime.Completed {
				t.Errorf("report %+v, want it completed", got)
			}
		},
		"a process that crashes loses its attempt, certainly ended": func(t *testing.T, s suite) {
			start(t, s.c, Attempt(s.agent, "r1", 1, Order{Do: "crash"}))
			got := s.c.Await(t, "r1", 1)
			if got.Type != runtime.Failed || got.Code != "7" || !got.Ended || !strings.Contains(got.Message, "about to crash") {
				t.Errorf("report %+v, want it failed with code 7", got)
			}
			start(t, s.c, Attempt(s.agent, "r1", 2, Order{Do: "echo"}))
			if got := s.c.Await(t, "r1", 2); got.Type != runtime.Completed {
				t.Errorf("report %+v, want the next attempt completed", got)
			}
		},
		"an outage of the store loses no end": func(t *testing.T, s suite) {
			s.agent.Run.Slots = 1
			file := filepath.Join(t.TempDir(), "pids")
			start(t, s.c, Attempt(s.agent, "r1", 1, Order{Do: "wait", File: file}))
			Lines(t, file, 1)
			if s.agent.Run.Protocol != fleet.Worker { // workers deliver themselves
				s.c.Fail(3)
			}
			s.c.Stop("r1", 1, run.CanceledByRequest, time.Hour)
			s.c.Await(t, "r1", 1)
		},
		"many at once end once each": func(t *testing.T, s suite) {
			const n = 40
			for i := range n {
				start(t, s.c, Attempt(s.agent, fmt.Sprintf("r%d", i), 1, Order{Do: "echo", Text: fmt.Sprint(i)}))
			}
			for i := range n {
				id := fmt.Sprintf("r%d", i)
				got := s.c.Await(t, id, 1)
				// A worker that is ended for having nothing to do may be handed an attempt at that moment: it gives it back.
				for n := 2; got.Type == runtime.Released && n < 6; n++ {
					start(t, s.c, Attempt(s.agent, id, n, Order{Do: "echo", Text: fmt.Sprint(i)}))
					got = s.c.Await(t, id, n)
				}
				var echo Echo
				if err := json.Unmarshal(got.Output, &echo); err != nil || echo.Text != fmt.Sprint(i) {
					t.Errorf("report %+v, want the echo of %d", got, i)
				}
			}
		},
		"closing hands back what runs and leaves no process": func(t *testing.T, s suite) {
			file := filepath.Join(t.TempDir(), "pids")
			start(t, s.c, Attempt(s.agent, "r1", 1, Order{Do: "wait", File: file}))
			pids := Lines(t, file, 1)
			if err := s.rt.Close(context.Background(), 10*time.Second); err != nil {
				t.Error(err)
			}
			for _, pid := range pids {
				if Alive(pid) {
					t.Errorf("process %d lives after Close", pid)
				}
			}
			got := s.c.Await(t, "r1", 1)
			// A request that was answered in the grace ends by its answer.
			if got.Type != runtime.Released && got.Code != "TOLD" {
				t.Errorf("report %+v, want it released", got)
			}
			if err := s.c.Start(Attempt(s.agent, "r2", 1, Order{Do: "echo"})); !errors.Is(err, runtime.ErrRefused) {
				t.Errorf("start after close: %v, want ErrRefused", err)
			}
		},
		"closing kills what does not listen": func(t *testing.T, s suite) {
			file := filepath.Join(t.TempDir(), "pids")
			start(t, s.c, Attempt(s.agent, "r1", 1, Order{Do: "stubborn", File: file}))
			Lines(t, file, 1)
			if err := s.rt.Close(context.Background(), 20*time.Millisecond); err != nil {
				t.Error(err)
			}
			for _, pid := range slices.Compact(slices.Sorted(slices.Values(lines(file)))) {
				if Alive(pid) {
					t.Errorf("process %d lives after Close", pid)
				}
			}
			if got := s.c.Await(t, "r1", 1); got.Type != runtime.Released || !got.Ended {
				t.Errorf("report %+v, want it released and ended", got)
			}
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			c := NewControl(t)
			rt := h.Open(t, c)
			c.Use(rt)
			test(t, suite{c, rt, h.Agent(t)})
		})
	}
}

func start(t *testing.T, c *Control, a runtime.Assignment) {
	t.Helper()
	if err := c.Start(a); err != nil {
		t.Fatal(err)
	}
}
