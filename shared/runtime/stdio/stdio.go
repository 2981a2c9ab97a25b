// Package stdio executes an attempt as one process: its document on standard input, its answer on standard output.
//
// What the end of the process means:
//
//	exit 0              the answer, see runtime.ParseResult
//	exit N              failed: class user, code N, message from the end of standard error; a frame with an error as the
//	                    last line of standard output refines all three
//	SIGKILL by another  failed: class lost, code 137; most often the system was out of memory. It counts as an attempt,
//	                    so that a run that eats the machine ends
//	other signals       failed: class user, code 128 + signal, as shells have it: the program crashed
//	over needs.memory   failed: class user, code 137
//	over its time       failed: class timeout
//	too much output     failed: class user, code ResultTooLarge
//	told to stop        the answer if it exits 0 with one all the same, else failed with the reason to stop as code
//
// Imports: run, fleet, runtime and runtime/process. The local runtime and the host of containers share it.
package stdio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/process"
)

// Options say how attempts are executed here.
type Options struct {
	Host *process.Host
	URL  string // of the control plane
	// Limit is how long the process may run, 0 for no limit: then it is stopped with Grace.
	Limit time.Duration
	Grace time.Duration
	Now   func() time.Time // time.Now when nil; for log lines
	// Logs takes lines of standard error, and of standard output in front of a frame, in batches of at most 100. One
	// call at a time, none after the end is told. May be nil.
	Logs func([]runtime.LogLine)
	// OnEnd is called once, with the report that ends the attempt, before Done is closed. May be nil.
	OnEnd func(runtime.Report)
}

// Attempt is an attempt under way.
type Attempt struct {
	a    runtime.Assignment
	opts Options
	proc *process.Process
	logs *batcher

	mu     sync.Mutex
	reason run.Reason // why it was told to stop

	done   chan struct{}
	report runtime.Report
}

// Start begins the attempt. Its errors wrap runtime.ErrRefused: nothing has begun.
func Start(a runtime.Assignment, o Options) (*Attempt, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	document, err := a.Document(o.URL).Encode()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", runtime.ErrRefused, err)
	}
	x := &Attempt{a: a, opts: o, done: make(chan struct{}), logs: newBatcher(o.Logs)}
	started := make(chan struct{})
	x.proc, err = o.Host.Start(process.Spec{
		Command: a.Agent.Run.Command, Dir: a.Agent.Run.Dir, Env: Environment(&a, o.URL), Stdin: document,
		MaxOutput: runtime.MaxAnswer, Memory: int64(a.Agent.Needs.Memory), Limit: o.Limit, Grace: o.Grace,
		Lines: func(stream, text string) { x.logs.add(x.line(stream, text)) },
		OnExit: func(e process.Exit) {
			<-started
			x.end(e)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: agent %s: %w", runtime.ErrRefused, a.Agent.Name(), err)
	}
	close(started)
	return x, nil
}

// Run executes the attempt and returns the report that ends it. When ctx ends, the attempt is stopped with the grace of
// the options. Its errors wrap runtime.ErrRefused.
func Run(ctx context.Context, a runtime.Assignment, o Options) (runtime.Report, error) {
	x, err := Start(a, o)
	if err != nil {
		return runtime.Report{}, err
	}
	defer context.AfterFunc(ctx, func() { x.Stop(run.CanceledByRequest, o.Grace) })()
	<-x.Done()
	return x.Report(), nil
}

// Stop asks the attempt to end with SIGTERM, and kills its process group once grace has passed. The first reason given
// is the one reported.
func (x *Attempt) Stop(reason run.Reason, grace time.Duration) {
	x.mu.Lock()
	if x.reason == "" {
		x.reason = reason
	}
	x.mu.Unlock()
	x.proc.Stop(grace)
}

// PID is the process id of the program.
func (x *Attempt) PID() int { return x.proc.PID() }

// Done is closed when the process and all of its group are gone and the report is there.
func (x *Attempt) Done() <-chan struct{} { return x.done }

// Report is the report that ends the attempt, valid once Done is closed. Its Ended is set unless some process of the
// group could not be seen to end.
func (x *Attempt) Report() runtime.Report { return x.report }

func (x *Attempt) end(e process.Exit) {
	x.mu.Lock()
	reason := x.reason
	x.mu.Unlock()
	report, before := verdict(e, reason)
	for line := range strings.Lines(string(before)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			x.logs.add(x.line("stdout", run.Clip(strings.ToValidUTF8(line, "\uFFFD"), runtime.MaxLogLine)))
		}
	}
	x.logs.close(x.line)
	report.Run, report.N, report.Ended = x.a.Run, x.a.N, !e.Left
	report.Message = run.Clip(report.Message, run.MaxMessage)
	x.report = report
	if x.opts.OnEnd != nil {
		x.opts.OnEnd(report)
	}
	close(x.done)
}

func (x *Attempt) line(stream, text string) runtime.LogLine {
	return runtime.LogLine{At: run.At(x.opts.Now()), N: x.a.N, Stream: stream, Text: text}
}

// verdict says what the end of a process means, and gives the text that stood before a frame.
func verdict(e process.Exit, reason run.Reason) (runtime.Report, []byte) {
	answer, before := runtime.ParseResult(e.Stdout)
	silent := len(e.Stdout) == 0
	switch {
	case errors.Is(e.Cause, process.ErrOutput):
		return runtime.TooLarge(), nil
	case errors.Is(e.Cause, process.ErrMemory):
		return failed(run.ClassUser, exitCode(e), e.Cause.Error()+" by needs.memory", e.Tail), nil
	case e.Cause != nil && (e.Code != 0 || silent):
		if reason == "" {
			reason = run.AttemptTimeout
		}
		r := runtime.Stopped(reason, detail(how(e)+" after it was told to stop: "+string(reason), e.Tail))
		if answer.Type == runtime.Failed {
			r.Usage = answer.Usage
		}
		return r, before
	case e.Code == 0:
		return answer, before
	case e.Signal == syscall.SIGKILL:
		return failed(run.ClassLost, exitCode(e), how(e)+", not by errand; the machine may be out of memory", e.Tail), before
	}
	if answer.Type == runtime.Failed && answer.Code != runtime.CodeResultInvalid {
		if answer.Code == "" {
			answer.Code = exitCode(e)
		}
		if answer.Message == "" {
			answer.Message = detail(how(e), e.Tail)
		}
		return answer, before
	}
	r := failed(run.ClassUser, exitCode(e), how(e), e.Tail)
	r.Usage = answer.Usage
	return r, before
}

func failed(class run.Class, code, what, tail string) runtime.Report {
	return runtime.Report{Type: runtime.Failed, Class: class, Code: code, Message: detail(what, tail)}
}

// detail is what happened and the end of standard error, which most often says why.
func detail(what, tail string) string {
	if tail == "" {
		return what + "; nothing on standard error"
	}
	const room = run.MaxMessage - 256
	if len(tail) > room {
		tail = "…" + strings.ToValidUTF8(tail[len(tail)-room:], "")
	}
	return what + ": " + tail
}

func how(e process.Exit) string {
	if e.Signal != 0 {
		return "ended by " + signalName(e.Signal)
	}
	return "exit code " + strconv.Itoa(e.Code)
}

func exitCode(e process.Exit) string {
	if e.Signal != 0 {
		return strconv.Itoa(128 + int(e.Signal))
	}
	return strconv.Itoa(e.Code)
}

// signalName is for people: "SIGKILL (killed)".
func signalName(s syscall.Signal) string {
	names := map[syscall.Signal]string{
		syscall.SIGKILL: "SIGKILL", syscall.SIGTERM: "SIGTERM", syscall.SIGSEGV: "SIGSEGV", syscall.SIGABRT: "SIGABRT",
		syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE", syscall.SIGILL: "SIGILL", syscall.SIGINT: "SIGINT",
		syscall.SIGHUP: "SIGHUP", syscall.SIGPIPE: "SIGPIPE", syscall.SIGQUIT: "SIGQUIT", syscall.SIGTRAP: "SIGTRAP",
	}
	if name, ok := names[s]; ok {
		return name
	}
	return fmt.Sprintf("signal %d", int(s))
}

// Environment is what the process of an attempt gets: the host's few, the agent's own, and the attempt's.
func Environment(a *runtime.Assignment, url string) []string {
	vars := map[string]string{
		"ERRAND_PROTOCOL": string(fleet.Stdio), "ERRAND_URL": url, "ERRAND_TOKEN": a.Token, "ERRAND_RUN": a.Run,
		"ERRAND_ATTEMPT": a.ID(), "ERRAND_KEY": a.Unit, "ERRAND_AGENT": a.Agent.Name(), "ERRAND_TENANT": a.Tenant,
	}
	if a.Trace != "" {
		vars["TRACEPARENT"] = a.Trace
	}
	maps.Copy(vars, IndexEnvironment(a.Index, a.Completions))
	return process.Environment(a.Agent.Run.Env, vars)
}

// IndexEnvironment tells a program its place in a job, by the names that Kubernetes and Cloud Run have for it.
func IndexEnvironment(index, completions *int) map[string]string {
	vars := make(map[string]string)
	if index != nil {
		vars["JOB_COMPLETION_INDEX"] = strconv.Itoa(*index)
		vars["CLOUD_RUN_TASK_INDEX"] = strconv.Itoa(*index)
	}
	if completions != nil {
		vars["CLOUD_RUN_TASK_COUNT"] = strconv.Itoa(*completions)
	}
	return vars
}
