package cloudrun

import (
	"context"
	"errors"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

const (
	// confirmAfter is how long a request runs before its start is reported by itself. The end of a shorter one says it.
	confirmAfter = 50 * time.Millisecond
	firstRetry   = 50 * time.Millisecond // of a report that found no taker
	longestRetry = 5 * time.Second
	codeStart    = string(run.StartFailed)
	closing      = "the server is shutting down"
	stillAtWork  = "; the handler may still be at work"
)

var (
	errGivenUp = errors.New("given up")
	errClosing = errors.New(closing)
)

// attempt is an attempt under way.
type attempt struct {
	a        runtime.Assignment
	resource resource
	// All below is guarded by Runtime.mu.
	over    bool        // its end is being reported, or control knows it
	reason  run.Reason  // why it was told to stop
	confirm *time.Timer // reports its start
	kill    *time.Timer // ends the grace of a stop
	killAt  time.Time
	cancel  context.CancelCauseFunc // of its request

	execution *execution // that carries it, or is looked for
	index     int        // of its task
	doomed    bool       // it did not end within its grace: its execution is cancelled, if nobody else is in it
	stray     bool       // on the books for a stop alone: a process before this one may have started it
}

// killAfter sets the end of a stop's grace. Stopping again can shorten it, never prolong it. Needs the lock.
func (x *attempt) killAfter(grace time.Duration, kill func()) {
	at := time.Now().Add(grace)
	if x.kill != nil && (at.After(x.killAt) || !x.kill.Stop()) {
		return
	}
	x.killAt, x.kill = at, time.AfterFunc(grace, kill)
}

// giveUp ends its request, if it has one by now.
func (rt *Runtime) giveUp(x *attempt, why error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if x.cancel != nil {
		x.cancel(why)
	}
}

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
	if !over {
		rt.heed(x, rt.report(runtime.Report{Type: runtime.Started, Run: x.a.Run, N: x.a.N}))
	}
}

// heed stops an attempt whose report was answered so.
func (rt *Runtime) heed(x *attempt, result runtime.Result) {
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
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		result := rt.try(r)
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

func (rt *Runtime) try(r runtime.Report) runtime.Result {
	rt.mu.Lock()
	reporter := rt.reporter
	rt.mu.Unlock()
	return reporter.Report(rt.life, []runtime.Report{r})[0]
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
	if e := x.execution; e != nil {
		e.tasks[x.index], x.execution = nil, nil
		if len(e.live()) == 0 && rt.executions[e.name] == e {
			// It should end now; that is seen to.
			e.empty, e.wait = time.Now(), rt.opts.Poll
			rt.watch(e, rt.opts.Grace)
		}
	}
	if agents, known := rt.served[x.resource.name]; known && len(agents) == 0 {
		rt.retire(x.resource.name)
	}
}

// notStarted is the report on an attempt of which certainly nothing has begun.
func notStarted(message string) runtime.Report {
	return runtime.Report{Type: runtime.Failed, Class: run.ClassInfrastructure, Code: codeStart, Message: message, Ended: true}
}
