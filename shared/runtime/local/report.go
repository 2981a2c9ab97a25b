package local

import (
	"errors"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

const (
	// confirmAfter is how long an attempt runs before its start is reported by itself. The end of a shorter one says it.
	confirmAfter   = 50 * time.Millisecond
	firstRetry     = 50 * time.Millisecond // of a report that found no taker
	longestRetry   = 5 * time.Second
	codeNotStarted = string(run.StartFailed)
)

// began starts the clock after which the attempt's start is reported. Needs the lock.
func (rt *Runtime) began(x *attempt) {
	if x.confirm == nil && !x.over {
		x.confirm = time.AfterFunc(confirmAfter, func() { rt.confirm(x) })
	}
}

func (rt *Runtime) confirm(x *attempt) {
	rt.mu.Lock()
	over := x.over || rt.closed
	if !over {
		rt.wg.Add(1)
		defer rt.wg.Done()
	}
	rt.mu.Unlock()
	if over {
		return
	}
	result := rt.report(runtime.Report{Type: runtime.Started, Run: x.a.Run, N: x.a.N})
	// Fenced: another attempt may have the run. Its Stop may never come, for control knows no such attempt.
	if reason := result.CancelReason; result.Cancel || errors.Is(result.Err, run.ErrFenced) {
		if reason == "" {
			reason = run.CanceledByRequest
		}
		rt.mu.Lock()
		rt.stop(x, reason, rt.opts.Grace)
		rt.mu.Unlock()
	}
}

// finish reports the attempt's end, once, and takes it off the books when control knows. It is called without the
// lock and blocks until the report is durable.
func (rt *Runtime) finish(x *attempt, r runtime.Report) {
	rt.mu.Lock()
	if x.over {
		rt.mu.Unlock()
		return
	}
	x.over = true
	rt.mu.Unlock()
	rt.conclude(x, r)
}

// conclude is finish for an attempt that is marked as over already.
func (rt *Runtime) conclude(x *attempt, r runtime.Report) {
	r.Run, r.N = x.a.Run, x.a.N
	r.Message = run.Clip(r.Message, run.MaxMessage)
	result := rt.report(r)
	if errors.Is(result.Err, runtime.ErrInvalid) && (r.Type == runtime.Completed || r.Type == runtime.Parked) {
		// The result is not taken; the run must hear why.
		rt.report(runtime.Report{
			Type: runtime.Failed, Run: r.Run, N: r.N, Class: run.ClassUser, Code: runtime.CodeResultInvalid,
			Message: run.Clip(result.Err.Error(), run.MaxMessage), Final: true, Usage: r.Usage, Ended: r.Ended,
		})
	}
	rt.mu.Lock()
	rt.remove(x)
	rt.mu.Unlock()
}

// report delivers one report, again and again while the store is away, until it is taken, refused, or the runtime's
// life ends.
func (rt *Runtime) report(r runtime.Report) runtime.Result {
	rt.mu.Lock()
	reporter := rt.reporter
	rt.mu.Unlock()
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		result := reporter.Report(rt.life, []runtime.Report{r})[0]
		var state *run.StateError
		if result.Err == nil || errors.Is(result.Err, run.ErrFenced) || errors.Is(result.Err, runtime.ErrInvalid) || errors.As(result.Err, &state) {
			return result
		}
		rt.log.Warn("a report was not taken; trying again", "attempt", runtime.AttemptID(r.Run, r.N), "report", r.Type, "error", result.Err)
		select {
		case <-rt.life.Done():
			return result
		case <-time.After(wait):
		}
	}
}

// logged passes on an attempt's log lines.
func (rt *Runtime) logged(x *attempt, lines []runtime.LogLine) {
	rt.relay(x)(runtime.Report{Type: runtime.Logged, Logs: lines})
}

// relay passes on what an attempt says on its way, best effort: an outage must not stop the program that says it.
func (rt *Runtime) relay(x *attempt) func(runtime.Report) {
	return func(r runtime.Report) {
		rt.mu.Lock()
		reporter := rt.reporter
		rt.mu.Unlock()
		r.Run, r.N = x.a.Run, x.a.N
		if err := reporter.Report(rt.life, []runtime.Report{r})[0].Err; err != nil {
			rt.log.Debug("a report on the way was not taken", "attempt", x.a.ID(), "report", r.Type, "error", err)
		}
	}
}

// remove takes an attempt off the books. Needs the lock.
func (rt *Runtime) remove(x *attempt) {
	if rt.attempts[x.a.ID()] != x {
		return
	}
	delete(rt.attempts, x.a.ID())
	for _, timer := range []*time.Timer{x.confirm, x.kill} {
		if timer != nil {
			timer.Stop()
		}
	}
	u := x.unit
	delete(u.attempts, x)
	if x.waiting {
		u.unwait(x)
	} else {
		u.exec.left(x)
	}
	rt.tidy(u)
}

// notStarted is the report on an attempt whose agent cannot be started.
func notStarted(message string) runtime.Report {
	return runtime.Report{Type: runtime.Failed, Class: run.ClassInfrastructure, Code: codeNotStarted, Message: message, Ended: true}
}
