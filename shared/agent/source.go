package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/errand-run/errand/shared/api"
)

// Execute runs one attempt that a [Source] brings and returns when its end is settled: the server has taken it, or will
// not. The slot is free then. The result is what was told as the attempt's end; it counts only without an error, which
// wraps ErrFenced when another attempt holds the run, ErrHeld when this worker executes the attempt already, and
// otherwise says why the server did not take the result.
type Execute func(lease api.Lease) (Result, error)

// Source brings attempts to a [Host], which remains the one place for slots, heartbeats, reports and the drain.
type Source interface {
	// Feed calls execute for each attempt, at most slots at a time, until ctx ends or there are no more, and returns when
	// its calls have. Once ctx has ended, an attempt that was claimed meanwhile is still given to execute, which hands
	// it back. An error ends the worker.
	Feed(ctx context.Context, slots int, execute Execute) error
}

// ErrHeld: the attempt is executed by this worker already, and nothing was begun a second time.
var ErrHeld = errors.New("attempt is held by this worker already")

// errUnsettled: the process ends before the server has answered.
var errUnsettled = errors.New("the process ended before the server took the attempt's end")

// take is Execute.
func (h *Host) take(lease api.Lease) (Result, error) {
	// 1. Book it.
	a := &Attempt{Lease: lease, box: h.box, settled: make(chan struct{})}
	h.mu.Lock()
	if h.attempts[a.Attempt] != nil || h.past.has(a.Attempt) {
		h.mu.Unlock()
		return Result{}, fmt.Errorf("attempt %s: %w", a.Attempt, ErrHeld)
	}
	h.attempts[a.Attempt] = a
	why := ""
	switch {
	case h.draining:
		why = endingReason
	case int(h.executing.Load())+h.unsent >= h.o.Slots:
		why = "worker has no free slot"
	}
	if why == "" {
		h.begin(a)
		h.executing.Add(1)
	} else {
		a.ended = true
		h.unsent++
	}
	h.mu.Unlock()
	// 2. Run it, or hand it back.
	if why == "" {
		go h.execute(a) // whoever claims or begins an attempt has told that it started
	} else {
		h.report(a, Result{Release: why})
	}
	// 3. Wait for its end to be settled.
	select {
	case <-a.settled:
	case <-h.over:
		select {
		case <-a.settled:
		default:
			return Result{}, fmt.Errorf("attempt %s: %w", a.Attempt, errUnsettled)
		}
	}
	h.box.mu.Lock()
	err := a.refusal
	h.box.mu.Unlock()
	if err != nil {
		return a.result, fmt.Errorf("attempt %s: %w", a.Attempt, err)
	}
	return a.result, nil
}
