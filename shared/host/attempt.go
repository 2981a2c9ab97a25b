package host

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Graces between SIGTERM and SIGKILL. One for a process that drains is shorter than the time the worker then waits
// before it hands the run back: the program must be gone by then.
const (
	stopGrace  = 10 * time.Second
	drainGrace = 700 * time.Millisecond
)

// assignment is an attempt as the runtime's drivers take it.
func assignment(a *agent.Attempt, how fleet.Run) runtime.Assignment {
	kind := &fleet.Agent{Run: how}
	kind.Meta.Name = a.Agent
	out := runtime.Assignment{
		Run: a.Run, N: a.N, Agent: kind, Tenant: a.Tenant, Unit: a.Key, Mode: a.Mode, Input: a.Input, Token: a.Token,
		Labels: a.Labels, Trace: a.Traceparent, Session: a.Session, State: a.State, Index: a.Index, Completions: a.Completions,
	}
	if !a.Deadline.IsZero() {
		out.Deadline = run.At(a.Deadline.Time)
	}
	for _, s := range a.Steps {
		step := runtime.Step{Name: s.Name, Seq: s.Seq, Result: s.Result}
		if s.Error != nil {
			step.Error, _ = json.Marshal(s.Error) // of plain fields: cannot fail
		}
		out.Steps = append(out.Steps, step)
	}
	return out
}

// stopReason says why an attempt is stopped, from the cause of its context, and how long the program gets.
func stopReason(cause error) (run.Reason, time.Duration) {
	var canceled *agent.CanceledError
	switch {
	case errors.As(cause, &canceled) && canceled.Reason != "":
		return run.Reason(canceled.Reason), stopGrace
	case errors.Is(cause, context.DeadlineExceeded):
		return run.AttemptTimeout, stopGrace
	case errors.Is(cause, agent.ErrDraining):
		return run.CanceledByRequest, drainGrace
	}
	return run.CanceledByRequest, stopGrace
}

// result is a report as the worker protocol's host takes it.
func result(r runtime.Report) agent.Result {
	out := agent.Result{Output: r.Output, Score: r.Score, Session: r.Session}
	if r.Usage != nil {
		out.Usage = &api.Usage{InputTokens: r.Usage.InputTokens, OutputTokens: r.Usage.OutputTokens, USD: r.Usage.USD}
	}
	switch r.Type {
	case runtime.Parked:
		out.Park = &api.Park{On: string(r.Park.On), Step: r.Park.Step, Name: r.Park.Name}
		if r.Park.Until != 0 {
			out.Park.Until = &api.Time{Time: r.Park.Until.Time()}
		}
	case runtime.Failed:
		out.Err = &api.AgentError{Class: string(r.Class), Code: r.Code, Message: r.Message}
		if r.Final {
			final := false
			out.Err.Retryable = &final
		}
		if r.RetryIn > 0 {
			out.Err.RetryAfter = (*api.Duration)(&r.RetryIn)
		}
	}
	return out
}

// log passes lines on to the run's log.
func log(a *agent.Attempt, lines []runtime.LogLine) {
	for _, l := range lines {
		a.Log(l.Stream, l.Text)
	}
}
