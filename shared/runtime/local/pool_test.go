package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/local"
	"github.com/errand-run/errand/shared/runtime/runtimetest"
)

type order = runtimetest.Order

func start(t *testing.T, c *runtimetest.Control, a runtime.Assignment) {
	t.Helper()
	if err := c.Start(a); err != nil {
		t.Fatal(err)
	}
}

func echo(t *testing.T, r runtime.Report) (e runtimetest.Echo) {
	t.Helper()
	if err := json.Unmarshal(r.Output, &e); err != nil {
		t.Fatalf("report %+v: %v", r, err)
	}
	return e
}

func distinct(pids []int) []int { return slices.Compact(slices.Sorted(slices.Values(pids))) }

func TestWorkersAreAsManyAsAttemptsNeed(t *testing.T) {
	c := runtimetest.NewControl(t)
	open(t, c)
	a := agent(fleet.Pool, fleet.Worker, 2)
	file := filepath.Join(t.TempDir(), "pids")
	for _, id := range []string{"r1", "r2", "r3"} {
		start(t, c, runtimetest.Attempt(a, id, 1, order{Do: "wait", File: file}))
	}
	if pids := distinct(runtimetest.Lines(t, file, 3)); len(pids) != 2 {
		t.Errorf("three attempts run in %d processes of two slots, want 2", len(pids))
	}
	if diff := cmp.Diff([]string{"local-checker-1", "local-checker-2"}, c.Workers()); diff != "" {
		t.Errorf("workers (-want +got):\n%s", diff)
	}
	if got := c.Header("local-checker-1").Get("Authorization"); got != "Bearer worker-token" {
		t.Errorf("authorization %q", got)
	}
}

func TestIdleProcessesEnd(t *testing.T) {
	for name, protocol := range map[string]fleet.Protocol{"workers": fleet.Worker, "http": fleet.HTTP} {
		t.Run(name, func(t *testing.T) {
			c := runtimetest.NewControl(t)
			open(t, c, func(o *local.Options) { o.Idle = 30 * time.Millisecond })
			a := agent(fleet.Pool, protocol, 1)
			dir := t.TempDir()
			busy, brief := filepath.Join(dir, "busy"), filepath.Join(dir, "brief")
			start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "wait", File: busy}))
			start(t, c, runtimetest.Attempt(a, "r2", 1, order{Do: "echo", File: brief}))
			c.Await(t, "r2", 1)
			runtimetest.Gone(t, runtimetest.Lines(t, brief, 1)[0])
			if pid := runtimetest.Lines(t, busy, 1)[0]; !runtimetest.Alive(pid) {
				t.Error("the busy process was ended, too")
			}
			c.Stop("r1", 1, run.CanceledByRequest, time.Minute)
			c.Await(t, "r1", 1)
			runtimetest.Gone(t, runtimetest.Lines(t, busy, 1)[0])
			start(t, c, runtimetest.Attempt(a, "r3", 1, order{Do: "echo"}))
			if got := c.Await(t, "r3", 1); got.Type != runtime.Completed {
				t.Errorf("report %+v, want another process to complete it", got)
			}
		})
	}
}

func TestProcessIsKeptWarm(t *testing.T) {
	c := runtimetest.NewControl(t)
	rt := open(t, c)
	a := agent(fleet.Service, fleet.HTTP, 1)
	pids := make(map[int]bool)
	for n := range 3 {
		start(t, c, runtimetest.Attempt(a, "r1", n+1, order{Do: "echo"}))
		pids[echo(t, c.Await(t, "r1", n+1)).PID] = true
	}
	if len(pids) != 1 {
		t.Errorf("%d processes for one attempt at a time", len(pids))
	}
	rt.Forget("checker")
	for pid := range pids {
		runtimetest.Gone(t, pid)
	}
}

// The others of a crashed process are lost; the others of a killed one are the platform's doing and cost no attempt.
func TestOthersInTheProcess(t *testing.T) {
	for name, protocol := range map[string]fleet.Protocol{"worker": fleet.Worker, "http": fleet.HTTP} {
		for how, want := range map[string]struct {
			order string
			class run.Class
			code  string
		}{
			"crashes":   {"crash", run.ClassLost, "7"},
			"is killed": {"stubborn", run.ClassInfrastructure, "ProcessStopped"},
		} {
			t.Run(name+" that "+how, func(t *testing.T) {
				c := runtimetest.NewControl(t)
				open(t, c)
				a := agent(fleet.Pool, protocol, 2)
				file := filepath.Join(t.TempDir(), "pids")
				start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "wait", File: file}))
				runtimetest.Lines(t, file, 1)
				culprit := file + ".culprit"
				start(t, c, runtimetest.Attempt(a, "r2", 1, order{Do: want.order, File: culprit}))
				runtimetest.Lines(t, culprit, 1)
				if want.order == "stubborn" {
					c.Stop("r2", 1, run.AttemptTimeout, 10*time.Millisecond)
				}
				got := c.Await(t, "r1", 1)
				if got.Class != want.class || got.Code != want.code || !got.Ended {
					t.Errorf("report on the other attempt %+v, want class %s code %s", got, want.class, want.code)
				}
				if got := c.Await(t, "r2", 1); got.Class != run.ClassTimeout && want.order == "stubborn" || !got.Ended {
					t.Errorf("report %+v, want it timed out", got)
				}
			})
		}
	}
}

func TestProgramThatCannotServe(t *testing.T) {
	tests := map[string]struct {
		protocol fleet.Protocol
		kind     string
		want     string
	}{
		"a worker that ends before it takes a run":    {fleet.Worker, "broken", "its process ends before it takes a run (3 times): exit code 3: cannot read configuration"},
		"an http process that ends before it listens": {fleet.HTTP, "broken", "its process ends before it takes a run (3 times): exit code 3: cannot read configuration"},
		"an http process that never listens":          {fleet.HTTP, "deaf", "within 20ms"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := runtimetest.NewControl(t)
			open(t, c, func(o *local.Options) {
				if tt.kind == "deaf" {
					o.Ready = 20 * time.Millisecond
				}
			})
			a := runtimetest.Command(agent(fleet.Pool, tt.protocol, 1), tt.kind)
			start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "echo"}))
			got := c.Await(t, "r1", 1)
			if got.Class != run.ClassInfrastructure || got.Code != "StartFailed" || !got.Ended || !strings.Contains(got.Message, tt.want) {
				t.Errorf("report %+v, want StartFailed with %q", got, tt.want)
			}
		})
	}
}

func TestStopBeforeItBegan(t *testing.T) {
	for name, protocol := range map[string]fleet.Protocol{"worker": fleet.Worker, "http": fleet.HTTP} {
		t.Run(name, func(t *testing.T) {
			c := runtimetest.NewControl(t)
			open(t, c)
			a := runtimetest.Command(agent(fleet.Pool, protocol, 1), "deaf")
			start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "echo"}))
			c.Stop("r1", 1, run.CanceledByRequest, time.Hour)
			got := c.Await(t, "r1", 1)
			if got.Class != run.ClassCanceled || !got.Ended || !strings.Contains(got.Message, "before it began") {
				t.Errorf("report %+v, want it canceled before it began", got)
			}
		})
	}
}

func TestInstanceIsOneProcessAndSavesItsSessions(t *testing.T) {
	c := runtimetest.NewControl(t)
	rt := open(t, c, func(o *local.Options) { o.Idle = 20 * time.Millisecond })
	a := agent(fleet.Instance, fleet.HTTP, 4)
	turn := func(id, tenant, session, text string) runtime.Assignment {
		x := runtimetest.Attempt(a, id, 1, order{Do: "echo", Text: text})
		x.Tenant, x.Session, x.State = tenant, session, json.RawMessage(`"before"`)
		return x
	}
	pids := make(map[int]bool)
	start(t, c, turn("r1", "acme", "s1", "one"))
	start(t, c, turn("r2", "acme", "s2", "two"))
	start(t, c, turn("r3", "zeta", "s2", "three"))
	for _, id := range []string{"r1", "r2", "r3"} {
		got := c.Await(t, id, 1)
		e := echo(t, got)
		pids[e.PID] = true
		if string(e.State) != `"before"` || len(got.Session) == 0 {
			t.Errorf("turn %s saw state %s and gave %s", id, e.State, got.Session)
		}
	}
	if len(pids) != 1 {
		t.Errorf("%d processes, want one", len(pids))
	}
	for pid := range pids {
		runtimetest.Gone(t, pid)
	}
	if got := c.Session("acme/checker/s1"); got != `"snapshot of one"` {
		t.Errorf("saved %q", got)
	}
	// The name alone says nothing about whose session it is.
	if a, z := c.Session("acme/checker/s2"), c.Session("zeta/checker/s2"); a != "" || z != "" {
		t.Errorf("a session whose name two tenants use was saved as %q and %q", a, z)
	}
	if err := rt.Close(context.Background(), time.Second); err != nil {
		t.Error(err)
	}
}

func TestRevisionsOfAnInstanceFollowEachOther(t *testing.T) {
	c := runtimetest.NewControl(t)
	open(t, c)
	first, second := agent(fleet.Instance, fleet.HTTP, 4), agent(fleet.Instance, fleet.HTTP, 4)
	second.Meta.Version = "2"
	dir := t.TempDir()
	start(t, c, runtimetest.Attempt(first, "r1", 1, order{Do: "wait", File: filepath.Join(dir, "1")}))
	pid := runtimetest.Lines(t, filepath.Join(dir, "1"), 1)[0]
	start(t, c, runtimetest.Attempt(second, "r2", 1, order{Do: "echo"}))
	if n := len(c.Reports()); n != 0 && slices.ContainsFunc(c.Reports(), func(r runtime.Report) bool { return r.Run == "r2" }) {
		t.Error("the second revision began beside the first")
	}
	c.Stop("r1", 1, run.CanceledByRequest, time.Minute)
	c.Await(t, "r1", 1)
	if got := echo(t, c.Await(t, "r2", 1)); got.PID == pid || runtimetest.Alive(pid) {
		t.Error("the first revision's process served the second, or lives beside it")
	}
}

func TestInstanceOfProgramsTakesTurns(t *testing.T) {
	c := runtimetest.NewControl(t)
	open(t, c)
	a := agent(fleet.Instance, fleet.Stdio, 1)
	file := filepath.Join(t.TempDir(), "pids")
	start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "wait", File: file}))
	start(t, c, runtimetest.Attempt(a, "r2", 1, order{Do: "echo", File: file}))
	start(t, c, runtimetest.Attempt(a, "r3", 1, order{Do: "wait", File: file}))
	start(t, c, runtimetest.Attempt(a, "r4", 1, order{Do: "echo", File: file}))
	runtimetest.Lines(t, file, 1)
	c.Stop("r3", 1, run.CanceledByRequest, time.Hour) // waits for its turn: over at once
	if got := c.Await(t, "r3", 1); !got.Ended || !strings.Contains(got.Message, "before it began") {
		t.Errorf("report %+v, want it canceled before it began", got)
	}
	c.Stop("r1", 1, run.CanceledByRequest, time.Minute)
	c.Await(t, "r2", 1)
	c.Await(t, "r4", 1)
	var order []string
	for _, r := range c.Reports() {
		if r.Type == runtime.Completed || r.Type == runtime.Failed {
			order = append(order, r.Run)
		}
	}
	if diff := cmp.Diff([]string{"r3", "r1", "r2", "r4"}, order); diff != "" {
		t.Errorf("ends (-want +got):\n%s", diff)
	}
}

func TestBuild(t *testing.T) {
	t.Run("it runs once, before all that waits for it", func(t *testing.T) {
		c := runtimetest.NewControl(t)
		open(t, c)
		a := agent(fleet.Pool, fleet.Stdio, 1)
		a.Run.Dir = t.TempDir()
		a.Run.Build = []string{"sh", "-c", "ln -s \"$PROGRAM\" ./program && echo built >> builds"}
		a.Run.Env["PROGRAM"] = a.Run.Command[0]
		a.Run.Command = []string{"./program"}
		for _, id := range []string{"r1", "r2", "r3"} {
			start(t, c, runtimetest.Attempt(a, id, 1, order{Do: "echo"}))
		}
		for _, id := range []string{"r1", "r2", "r3"} {
			if got := c.Await(t, id, 1); got.Type != runtime.Completed {
				t.Errorf("report %+v, want it completed", got)
			}
		}
		start(t, c, runtimetest.Attempt(a, "r4", 1, order{Do: "echo"})) // a second build would fail: the link is there
		if got := c.Await(t, "r4", 1); got.Type != runtime.Completed {
			t.Errorf("report %+v, want it completed", got)
		}
	})
	t.Run("agents that are made by the same build take turns", func(t *testing.T) {
		c := runtimetest.NewControl(t)
		open(t, c, func(o *local.Options) { o.BuildRetry = time.Hour })
		dir := t.TempDir()
		for i := range 3 {
			a := agent(fleet.Pool, fleet.Stdio, 1)
			a.Meta.Name = fmt.Sprintf("made-%d", i)
			a.Run.Dir = dir
			a.Run.Build = []string{"sh", "-c", "mkdir one && sleep 0.05 && rmdir one"} // fails beside another
			start(t, c, runtimetest.Attempt(a, fmt.Sprintf("r%d", i), 1, order{Do: "echo"}))
		}
		for _, id := range []string{"r0", "r1", "r2"} {
			if got := c.Await(t, id, 1); got.Type != runtime.Completed {
				t.Errorf("report %+v, want it completed", got)
			}
		}
	})
	t.Run("its failure tells why, refuses for a while, and is tried again", func(t *testing.T) {
		c := runtimetest.NewControl(t)
		open(t, c, func(o *local.Options) { o.BuildRetry = 100 * time.Millisecond })
		a := agent(fleet.Pool, fleet.Stdio, 1)
		a.Run.Dir = t.TempDir()
		a.Run.Build = []string{"sh", "-c", "[ -e tried ] && exit 0; touch tried; echo main.go:3: oops; exit 2"}
		start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "echo"}))
		const want = "run.build failed with exit code 2: main.go:3: oops"
		if got := c.Await(t, "r1", 1); got.Code != "StartFailed" || !strings.Contains(got.Message, want) {
			t.Errorf("report %+v, want StartFailed with %q", got, want)
		}
		for deadline := time.Now().Add(20 * time.Second); ; {
			err := c.Start(runtimetest.Attempt(a, "r2", 1, order{Do: "echo"}))
			if err == nil {
				break
			}
			if !errors.Is(err, runtime.ErrRefused) || !strings.Contains(err.Error(), want) || time.Now().After(deadline) {
				t.Fatalf("error %v, want ErrRefused with the build's last words", err)
			}
		}
		if got := c.Await(t, "r2", 1); got.Type != runtime.Completed {
			t.Errorf("report %+v, want it completed after the second build", got)
		}
	})
	t.Run("an attempt that waits for it can be stopped", func(t *testing.T) {
		c := runtimetest.NewControl(t)
		open(t, c)
		a := agent(fleet.Pool, fleet.Worker, 1)
		a.Run.Build = []string{"sleep", "300"}
		start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "echo"}))
		c.Stop("r1", 1, run.CanceledByRequest, time.Hour)
		if got := c.Await(t, "r1", 1); got.Class != run.ClassCanceled || !got.Ended {
			t.Errorf("report %+v, want it canceled", got)
		}
	})
	t.Run("one that takes too long is ended", func(t *testing.T) {
		c := runtimetest.NewControl(t)
		open(t, c, func(o *local.Options) { o.BuildLimit = 20 * time.Millisecond })
		a := agent(fleet.Pool, fleet.Stdio, 1)
		a.Run.Build = []string{"sleep", "300"}
		start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "echo"}))
		if got := c.Await(t, "r1", 1); got.Code != "StartFailed" || !strings.Contains(got.Message, "took longer than 20ms") {
			t.Errorf("report %+v, want StartFailed", got)
		}
	})
}

func TestStartIsConfirmedAndItsAnswerObeyed(t *testing.T) {
	c := runtimetest.NewControl(t)
	open(t, c)
	a := agent(fleet.Pool, fleet.Stdio, 1)
	dir := t.TempDir()
	start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "wait", File: filepath.Join(dir, "1")}))
	c.AwaitReport(t, func(r runtime.Report) bool { return r.Type == runtime.Started && r.Run == "r1" && r.N == 1 })
	c.Mark("r2", 1)
	start(t, c, runtimetest.Attempt(a, "r2", 1, order{Do: "wait", File: filepath.Join(dir, "2")}))
	if got := c.Await(t, "r2", 1); got.Type != runtime.Failed || !got.Ended {
		t.Errorf("report %+v, want the canceled attempt ended", got)
	}
	c.Refuse(func(r runtime.Report) error {
		if r.Run == "r3" && r.Type == runtime.Started {
			return run.ErrFenced
		}
		return nil
	})
	start(t, c, runtimetest.Attempt(a, "r3", 1, order{Do: "wait", File: filepath.Join(dir, "3")}))
	if got := c.Await(t, "r3", 1); got.Type != runtime.Failed || !got.Ended {
		t.Errorf("report %+v, want the fenced attempt ended", got)
	}
}

// Control's word that an attempt is over ends what still runs of it.
func TestEndedStopsWhatRuns(t *testing.T) {
	c := runtimetest.NewControl(t)
	rt := open(t, c)
	file := filepath.Join(t.TempDir(), "pids")
	start(t, c, runtimetest.Attempt(agent(fleet.Pool, fleet.Stdio, 1), "r1", 1, order{Do: "wait", File: file}))
	pid := runtimetest.Lines(t, file, 1)[0]
	rt.Ended("r1", 1)
	rt.Ended("r1", 2)
	runtimetest.Gone(t, pid)
}

func TestResultThatIsNotTakenFailsTheRun(t *testing.T) {
	c := runtimetest.NewControl(t)
	open(t, c)
	c.Refuse(func(r runtime.Report) error {
		if r.Type == runtime.Completed {
			return errors.Join(errors.New("the session's state has 9 bytes, 3 at most"), runtime.ErrInvalid)
		}
		return nil
	})
	start(t, c, runtimetest.Attempt(agent(fleet.Pool, fleet.Stdio, 1), "r1", 1, order{Do: "echo"}))
	got := c.Await(t, "r1", 1)
	if got.Class != run.ClassUser || got.Code != runtime.CodeResultInvalid || !got.Final || !strings.Contains(got.Message, "9 bytes, 3 at most") {
		t.Errorf("report %+v, want it failed for good, saying why", got)
	}
}

func TestProcessThatIsToldToEndHandsBack(t *testing.T) {
	c := runtimetest.NewControl(t)
	rt := open(t, c)
	file := filepath.Join(t.TempDir(), "pids")
	start(t, c, runtimetest.Attempt(agent(fleet.Service, fleet.HTTP, 4), "r1", 1, order{Do: "giveBack", File: file}))
	runtimetest.Lines(t, file, 1)
	if err := rt.Close(context.Background(), time.Minute); err != nil {
		t.Error(err)
	}
	if got := c.Await(t, "r1", 1); got.Type != runtime.Released {
		t.Errorf("report %+v, want it released", got)
	}
}

func TestOutputOfSharedProcesses(t *testing.T) {
	c := runtimetest.NewControl(t)
	var mu sync.Mutex
	var got []string
	open(t, c, func(o *local.Options) {
		o.Output = func(agent, process, stream, text string) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, agent+" "+process+" "+stream+" "+text)
		}
	})
	start(t, c, runtimetest.Attempt(agent(fleet.Pool, fleet.Worker, 1), "r1", 1, order{Do: "crash"}))
	c.Await(t, "r1", 1)
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(got, "checker local-checker-1 stderr about to crash") {
		t.Errorf("output %q", got)
	}
}

func TestWorkerThatHangsIsKilledAndReplaced(t *testing.T) {
	c := runtimetest.NewControl(t)
	rt := open(t, c)
	a := agent(fleet.Pool, fleet.Worker, 2)
	file := filepath.Join(t.TempDir(), "pids")
	start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "wait", File: file}))
	pid := runtimetest.Lines(t, file, 1)[0]
	if rt.Lost("stranger") {
		t.Error("the runtime says that it started a worker which it does not know")
	}
	if !rt.Lost("local-checker-1") {
		t.Error("the runtime does not know its own worker")
	}
	if got := c.Await(t, "r1", 1); got.Type != runtime.Failed || got.Class != run.ClassLost || !got.Ended {
		t.Errorf("report %+v, want that the attempt is lost, and nothing of it left", got)
	}
	runtimetest.Gone(t, pid)
	start(t, c, runtimetest.Attempt(a, "r2", 1, order{Do: "echo"}))
	if got := c.Await(t, "r2", 1); got.Type != runtime.Completed {
		t.Errorf("report %+v, want another process to complete the next one", got)
	}
}
