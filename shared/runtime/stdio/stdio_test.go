package stdio_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/runtime/stdio"
)

func host(t *testing.T) *process.Host {
	t.Helper()
	h, err := process.NewHost(process.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func assignment(script string) runtime.Assignment {
	return runtime.Assignment{
		Run: "r1", N: 3, Tenant: "acme", Unit: "unit", Token: "token", Input: json.RawMessage(`{"n":1}`),
		Agent: &fleet.Agent{Meta: fleet.Meta{Name: "a"}, Run: fleet.Run{Command: []string{"sh", "-c", script}, Env: map[string]string{"MINE": "yes"}}},
	}
}

// The meaning of every way to end.
func TestReport(t *testing.T) {
	fail := func(class run.Class, code, message string) runtime.Report {
		return runtime.Report{Type: runtime.Failed, Class: class, Code: code, Message: message}
	}
	tests := map[string]struct {
		script string
		limit  time.Duration
		memory fleet.Bytes
		want   runtime.Report
	}{
		"exit 0 with a document": {script: `echo '{"ok":true}'`, want: runtime.Report{Type: runtime.Completed, Output: json.RawMessage(`{"ok":true}`)}},
		"exit 0 with text":       {script: `echo fine`, want: runtime.Report{Type: runtime.Completed, Output: json.RawMessage(`{"text":"fine"}`)}},
		"exit 0 in silence":      {script: `exit 0`, want: runtime.Report{Type: runtime.Completed, Output: json.RawMessage(`null`)}},
		"exit 0 with an error":   {script: `echo '{"error":{"code":"X","message":"m"}}'`, want: fail(run.ClassUser, "X", "m")},
		"exit 3": {
			script: `echo '{"ok":true}'; echo "cannot open file" >&2; exit 3`, want: fail(run.ClassUser, "3", "exit code 3: cannot open file"),
		},
		"exit 3 in silence": {script: `exit 3`, want: fail(run.ClassUser, "3", "exit code 3; nothing on standard error")},
		"exit 3 with an error that refines it": {
			script: `echo working; echo '{"error":{"code":"BAD","message":"m","retryable":false,"retryAfter":"2s"}}'; exit 3`,
			want:   runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Code: "BAD", Message: "m", Final: true, RetryIn: 2 * time.Second},
		},
		"exit 3 with an error without a code": {script: `echo '{"error":{"message":"m"}}'; exit 3`, want: fail(run.ClassUser, "3", "m")},
		"a park": {
			script: `echo '{"park":{"on":"input","name":"paid","step":"s"},"session":{"n":1}}'`,
			want:   runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnInput, Name: "paid", Step: "s"}, Session: json.RawMessage(`{"n":1}`)},
		},
		"killed by another": {
			script: `kill -KILL $$`, want: fail(run.ClassLost, "137", "ended by SIGKILL, not by errand; the machine may be out of memory; nothing on standard error"),
		},
		"a crash":               {script: `kill -SEGV $$`, want: fail(run.ClassUser, "139", "ended by SIGSEGV; nothing on standard error")},
		"over its time":         {script: `sleep 300`, limit: 20 * time.Millisecond, want: fail(run.ClassTimeout, "AttemptTimeout", "ended by SIGTERM after it was told to stop: AttemptTimeout; nothing on standard error")},
		"output without an end": {script: `yes`, want: runtime.TooLarge()},
		"memory without an end": {
			script: `a=x; while :; do a=$a$a; [ ${#a} -gt 33554432 ] && break; done; sleep 300`, memory: 16 << 20,
			want: runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Code: "137"},
		},
	}
	h := host(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := assignment(tt.script)
			a.Agent.Needs.Memory = tt.memory
			got, err := stdio.Run(t.Context(), a, stdio.Options{Host: h, Limit: tt.limit, Grace: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Run, tt.want.N, tt.want.Ended = "r1", 3, true
			var opts []cmp.Option
			if tt.memory != 0 {
				opts = append(opts, cmpopts.IgnoreFields(runtime.Report{}, "Message"))
				if !strings.Contains(got.Message, "16 MiB allowed by needs.memory") {
					t.Errorf("message %q", got.Message)
				}
			}
			if diff := cmp.Diff(tt.want, got, opts...); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProgramSeesItsAttempt(t *testing.T) {
	t.Setenv("SERVER_SECRET", "hunter2")
	a := assignment(`cat; echo; env | grep -E '^(ERRAND_[^H]|MINE|TRACE|JOB|CLOUD|SERVER)' | sort >&2`)
	a.Trace, a.Index, a.Completions = "00-1-2-01", new(4), new(9)
	var lines []string
	got, err := stdio.Run(t.Context(), a, stdio.Options{Host: host(t), URL: "http://c", Logs: func(batch []runtime.LogLine) {
		for _, l := range batch {
			lines = append(lines, l.Text)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := a.Document("http://c").Encode()
	if !bytes.Equal(got.Output, want) {
		t.Errorf("document %s, want %s", got.Output, want)
	}
	wantEnv := []string{
		"CLOUD_RUN_TASK_COUNT=9", "CLOUD_RUN_TASK_INDEX=4", "ERRAND_AGENT=a", "ERRAND_ATTEMPT=r1.3", "ERRAND_KEY=unit", "ERRAND_PROTOCOL=stdio",
		"ERRAND_RUN=r1", "ERRAND_TENANT=acme", "ERRAND_TOKEN=token", "ERRAND_URL=http://c", "JOB_COMPLETION_INDEX=4", "MINE=yes", "TRACEPARENT=00-1-2-01",
	}
	if diff := cmp.Diff(wantEnv, lines); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestLogs(t *testing.T) {
	var mu sync.Mutex
	var lines []runtime.LogLine
	over := runtime.MaxLogBytes/100 + 1000
	at := time.UnixMilli(5000)
	a := assignment(`echo first; i=0; line=$(printf '%099d' 0); while [ $i -lt ` + strconv.Itoa(over) + ` ]; do echo $line; i=$((i+1)); done >&2; echo '{"output":1}'`)
	ended := false
	x, err := stdio.Start(a, stdio.Options{
		Host: host(t), Now: func() time.Time { return at },
		Logs: func(batch []runtime.LogLine) {
			mu.Lock()
			defer mu.Unlock()
			if ended || len(batch) > 100 {
				t.Errorf("batch of %d lines, after the end: %v", len(batch), ended)
			}
			lines = append(lines, batch...)
		},
		OnEnd: func(runtime.Report) { mu.Lock(); ended = true; mu.Unlock() },
	})
	if err != nil {
		t.Fatal(err)
	}
	<-x.Done()
	mu.Lock()
	defer mu.Unlock()
	last := lines[len(lines)-1].Text
	if !strings.Contains(last, "more lines were dropped: over 1 MiB of log in one attempt") || len(lines) > runtime.MaxLogBytes/100+2 {
		t.Errorf("%d lines, the last %q", len(lines), last)
	}
	want := runtime.LogLine{At: run.At(at), N: 3, Stream: "stderr", Text: strings.Repeat("0", 99)}
	if diff := cmp.Diff(want, lines[0]); diff != "" {
		t.Errorf("first line (-want +got):\n%s", diff)
	}
}

func TestTextBeforeAFrameIsLogged(t *testing.T) {
	var lines []string
	_, err := stdio.Run(t.Context(), assignment(`echo one; echo; echo two; echo '{"output":1}'`), stdio.Options{
		Host: host(t), Logs: func(batch []runtime.LogLine) {
			for _, l := range batch {
				lines = append(lines, l.Stream+" "+l.Text)
			}
		},
	})
	if diff := cmp.Diff([]string{"stdout one", "stdout two"}, lines); err != nil || diff != "" {
		t.Errorf("error %v, lines (-want +got):\n%s", err, diff)
	}
}

func TestStop(t *testing.T) {
	tests := map[string]struct {
		script string
		reason run.Reason
		grace  time.Duration
		want   runtime.Report
	}{
		"a program that ends when asked": {
			script: `echo ready >&2; sleep 300`, reason: run.CanceledByRequest, grace: time.Minute,
			want: runtime.Report{Type: runtime.Failed, Class: run.ClassCanceled, Code: "Canceled", Message: "ended by SIGTERM after it was told to stop: Canceled: ready"},
		},
		"a program that ignores SIGTERM, with its child": {
			script: `trap "" TERM; sleep 300 & echo ready >&2; wait`, reason: run.AttemptTimeout, grace: 20 * time.Millisecond,
			want: runtime.Report{Type: runtime.Failed, Class: run.ClassTimeout, Code: "AttemptTimeout", Message: "ended by SIGKILL after it was told to stop: AttemptTimeout: ready"},
		},
		"a program that hands over its answer all the same": {
			script: `trap 'echo 42; exit 0' TERM; echo ready >&2; while :; do sleep 0.01; done`, reason: run.CanceledByRequest, grace: time.Minute,
			want: runtime.Report{Type: runtime.Completed, Output: json.RawMessage(`42`)},
		},
		"a clean exit in silence is no answer": {
			script: `trap 'exit 0' TERM; echo ready >&2; while :; do sleep 0.01; done`, reason: run.BudgetExceeded, grace: time.Minute,
			want: runtime.Report{Type: runtime.Failed, Class: run.ClassBudget, Code: "BudgetExceeded"},
		},
	}
	h := host(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ready := make(chan struct{})
			var once sync.Once
			x, err := stdio.Start(assignment(tt.script), stdio.Options{Host: h, Logs: func([]runtime.LogLine) { once.Do(func() { close(ready) }) }})
			if err != nil {
				t.Fatal(err)
			}
			<-ready
			x.Stop(tt.reason, tt.grace)
			x.Stop("Other", time.Hour)
			<-x.Done()
			tt.want.Run, tt.want.N, tt.want.Ended = "r1", 3, true
			got := x.Report()
			if tt.want.Message == "" {
				got.Message = ""
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	got, err := stdio.Run(ctx, assignment(`echo ready >&2; sleep 300`), stdio.Options{
		Host: host(t), Grace: time.Minute, Logs: func([]runtime.LogLine) { cancel() },
	})
	if err != nil || got.Class != run.ClassCanceled || !got.Ended {
		t.Errorf("%+v, %v; want canceled and ended", got, err)
	}
}

func TestStartRefuses(t *testing.T) {
	h := host(t)
	missing, noJSON := assignment(""), assignment("true")
	missing.Agent.Run.Command = []string{"no-such-program"}
	noJSON.Input = json.RawMessage(`{`)
	for name, tt := range map[string]struct {
		a    runtime.Assignment
		want string
	}{
		"a command that is not there": {missing, "start refused: agent a: not started: command no-such-program: not found in PATH"},
		"an input that is no JSON":    {noJSON, "document of attempt r1.3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := stdio.Start(tt.a, stdio.Options{Host: h})
			if !errors.Is(err, runtime.ErrRefused) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want ErrRefused with %q", err, tt.want)
			}
		})
	}
}
