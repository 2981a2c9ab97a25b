package agent

import (
	"context"
	"errors"
	"time"

	"github.com/errand-run/errand/shared/api"
)

const (
	// orphanBeat is how often an attempt whose caller went away asks whether it is still wanted.
	orphanBeat = 5 * time.Second
	// orphanPatience bounds how long the end of an attempt without a deadline is offered to a server that is away.
	orphanPatience = 10 * time.Minute
)

// tend waits for the caller of an attempt to go away, and then keeps the attempt alive until over is closed. A caller
// that died and one that wants the attempt to end look the same: the server knows which it was, and its answer ends the
// attempt's context where it does not want it any more.
func tend(caller context.Context, a *Attempt, over <-chan struct{}) {
	select {
	case <-over:
		return
	case <-caller.Done():
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(caller))
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	tick := time.NewTicker(orphanBeat)
	defer tick.Stop()
	for {
		// 1. Ask, for as long as the attempt lasts.
		asked := make(chan error, 1)
		go func() {
			_, err := a.Report(ctx, api.Report{Type: api.ReportBeat})
			asked <- err
		}()
		select {
		case <-over:
			return
		case err := <-asked:
			var p *api.Problem
			if errors.As(err, &p) && (p.Code() == api.CodeNotFound || p.Code() == api.CodeState) {
				a.stop(ErrFenced) // the run is gone, or over
			}
		}
		// 2. Wait for the next time.
		select {
		case <-over:
			return
		case <-tick.C:
		}
	}
}

// conclude reports the end of an attempt whose caller went away, and returns when the server has taken it, or will not,
// or the process has to end.
func (s *server) conclude(a *Attempt, result Result, cause error) {
	if result.Err != nil && errors.Is(cause, ErrDraining) {
		result = Result{Release: endingReason, Usage: result.Usage}
	}
	until := time.Now().Add(orphanPatience)
	if !a.Deadline.IsZero() {
		until = a.Deadline.Add(lateReport)
	}
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	// What is queued when the process ends is sent with the last that it sends.
	defer context.AfterFunc(s.life, cancel)()
	switch err := a.box.end(ctx, a, result.report()); {
	case err == nil:
		s.log.Info("the caller of an attempt went away: its end was reported", "attempt", a.Attempt)
	case errors.Is(err, ErrFenced):
		s.log.Info("the caller of an attempt went away, and the attempt was no longer wanted", "attempt", a.Attempt)
	default:
		s.log.Warn("the caller of an attempt went away, and its end is not delivered", "attempt", a.Attempt, "error", err)
	}
}
