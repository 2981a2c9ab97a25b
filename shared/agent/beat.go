package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// beat sends the worker's sign of life until ctx is done. One that fails is soon sent again: the server may have been
// started anew, and learns from it what the worker holds.
func (h *Host) beat(ctx context.Context) {
	var again backoff
	for {
		h.mu.Lock()
		pause := h.beatEvery
		h.mu.Unlock()
		if again.failures > 0 {
			pause = min(pause, time.Until(again.until))
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-h.beatNow:
			t.Stop()
		case <-t.C:
		}
		var p *api.Problem
		switch err := h.sendBeat(ctx, nil); {
		case err == nil, errors.As(err, &p) && !passing(p):
			again = backoff{}
		default:
			again.failed(time.Now(), err)
		}
	}
}

func (h *Host) kickBeat() {
	select {
	case h.beatNow <- struct{}{}:
	default:
	}
}

// sendBeat tells the server what the worker holds, and applies what it says.
func (h *Host) sendBeat(ctx context.Context, sessions map[string]json.RawMessage) error {
	// 1. Tell.
	h.mu.Lock()
	b := api.WorkerBeat{
		Target: h.o.Target, Agents: h.o.Agents, Slots: h.o.Slots, Draining: h.draining, Sessions: sessions,
		Attempts: make([]string, 0, len(h.attempts)),
	}
	if h.o.placeless {
		b.Slots = 0
	}
	held := make([]*Attempt, 0, len(h.attempts))
	for id, a := range h.attempts {
		b.Attempts = append(b.Attempts, id)
		held = append(held, a)
	}
	h.mu.Unlock()
	if h.o.quietIdle && len(held) == 0 {
		return nil
	}
	slices.Sort(b.Attempts)
	beatCtx, cancel := context.WithTimeout(ctx, beatPatience)
	defer cancel()
	standing, err := h.client.Beat(beatCtx, h.o.Worker, b)
	if beatCtx.Err() != nil && ctx.Err() == nil && err != nil {
		err = fmt.Errorf("%w: no answer within %s: %w", api.ErrUnreachable, beatPatience, err)
	}
	h.heard(err)
	if err != nil {
		if sessions != nil {
			h.o.Log.Error("snapshots of sessions could not be saved", "sessions", len(sessions), "error", err)
		}
		return err
	}
	// 2. Whatever was named and is missing in a whole answer is no longer ours. What came meanwhile was not named.
	stand := make(map[string]*api.AttemptStanding, len(standing.Attempts))
	for i := range standing.Attempts {
		stand[standing.Attempts[i].ID] = &standing.Attempts[i]
	}
	for _, a := range held {
		h.mu.Lock()
		over := a.ended
		h.mu.Unlock()
		if over {
			continue // its end is told elsewhere
		}
		switch s := stand[a.Attempt]; {
		case s == nil && standing.Partial:
		case s == nil:
			h.box.lost(a, ErrFenced)
		case s.Cancel:
			a.stop(&CanceledError{Reason: s.CancelReason})
		}
	}
	// 3. Drain.
	h.mu.Lock()
	if standing.Drain && !h.drained {
		h.drained = true
		close(h.drain)
	}
	h.mu.Unlock()
	return nil
}

// snapshot collects the sessions' states, within bounds. A failure loses nothing that a turn has saved.
func (h *Host) snapshot(ctx context.Context) map[string]json.RawMessage {
	if h.o.Snapshot == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotTime)
	defer cancel()
	var sessions map[string]json.RawMessage
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		sessions, err = h.o.Snapshot(ctx)
	}()
	select {
	case <-done:
	case <-time.After(snapshotTime + snapshotSlack):
		h.o.Log.Error("snapshot of sessions did not heed the end of its time", "time", snapshotTime)
		return nil
	}
	if err != nil {
		h.o.Log.Error("snapshot of sessions failed", "error", err)
	}
	return sessions
}

// heard notes whether the server answers, says so in the log where that changes, and after an outage ends all waits for
// it. It reports whether the server is back: then a heartbeat must follow at once, for a server that was started anew
// does not know what is held here.
func (h *Host) heard(err error) (back bool) {
	var p *api.Problem
	answered := err == nil || errors.As(err, &p)
	switch {
	case !answered && !errors.Is(err, api.ErrUnreachable):
		return false // cut short by ourselves
	case p != nil && busy(p):
		return false // it is there, and asks for less
	}
	failed := !answered || p != nil && passing(p)
	now := time.Now()
	h.mu.Lock()
	gone := failed && !h.away
	back = !failed && h.away
	h.away = failed
	// A server that comes and goes refuses some calls and takes others: the waits that it asked for hold.
	over := back && now.Sub(h.backAt) > steady
	if back {
		h.backAt = now
	}
	if over {
		h.retry = backoff{}
	}
	h.mu.Unlock()
	switch {
	case gone:
		h.o.Log.Warn("server is away: handlers go on, results are kept", "worker", h.o.Worker, "error", err)
	case back:
		h.o.Log.Info("server is back", "worker", h.o.Worker)
	}
	if over {
		h.box.reachable()
		h.kick()
	}
	return back
}

// pace spaces the next request for runs from one that failed, or was answered with nothing too quickly. It returns an
// error when the server refuses the worker and has never answered it: whoever started it must know.
func (h *Host) pace(quick bool, err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var p *api.Problem
	switch {
	case err == nil && quick:
		h.answered = true
		h.retry.failed(time.Now(), nil)
	case err == nil:
		h.answered = true
		h.retry = backoff{}
	case errors.As(err, &p) && !passing(p):
		if !h.answered {
			return fmt.Errorf("worker %s asks for runs of %s: %w", h.o.Worker, strings.Join(h.o.Agents, ", "), err)
		}
		h.retry.until = time.Now().Add(refusedPause)
		h.o.Log.Error("request for runs was refused", "worker", h.o.Worker, "error", err)
	default:
		h.retry.failed(time.Now(), err)
	}
	return nil
}
