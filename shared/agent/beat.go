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

// beat sends the worker's sign of life until ctx is done.
func (h *Host) beat(ctx context.Context) {
	for {
		h.mu.Lock()
		every := h.beatEvery
		h.mu.Unlock()
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-h.beatNow:
			t.Stop()
		case <-t.C:
		}
		h.sendBeat(ctx, nil)
	}
}

func (h *Host) kickBeat() {
	select {
	case h.beatNow <- struct{}{}:
	default:
	}
}

// sendBeat tells the server what the worker holds, and applies what it says.
func (h *Host) sendBeat(ctx context.Context, sessions map[string]json.RawMessage) {
	// 1. Tell.
	h.mu.Lock()
	b := api.WorkerBeat{
		Target: h.o.Target, Agents: h.o.Agents, Slots: h.o.Slots, Draining: h.draining, Sessions: sessions,
		Attempts: make([]string, 0, len(h.attempts)),
	}
	for id := range h.attempts {
		b.Attempts = append(b.Attempts, id)
	}
	h.mu.Unlock()
	slices.Sort(b.Attempts)
	ctx, cancel := context.WithTimeout(ctx, beatPatience)
	defer cancel()
	standing, err := h.client.Beat(ctx, h.o.Worker, b)
	h.heard(err)
	if err != nil {
		if sessions != nil {
			h.o.Log.Error("snapshots of sessions could not be saved", "sessions", len(sessions), "error", err)
		}
		return
	}
	// 2. Whatever was named and is missing in the answer is no longer ours.
	stand := make(map[string]*api.AttemptStanding, len(standing.Attempts))
	for i := range standing.Attempts {
		stand[standing.Attempts[i].ID] = &standing.Attempts[i]
	}
	for _, id := range b.Attempts {
		h.mu.Lock()
		a := h.attempts[id]
		over := a == nil || a.ended
		h.mu.Unlock()
		if over {
			continue // its end is told elsewhere
		}
		switch s := stand[id]; {
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
}

// snapshot collects the sessions' states, within bounds. A failure loses nothing that a turn has saved.
func (h *Host) snapshot(ctx context.Context) map[string]json.RawMessage {
	if h.o.Snapshot == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotTime)
	defer cancel()
	sessions, err := h.o.Snapshot(ctx)
	if err != nil {
		h.o.Log.Error("snapshot of sessions failed", "error", err)
	}
	return sessions
}

// heard notes whether the server answers, says so in the log where that changes, and after an outage makes up for it.
func (h *Host) heard(err error) {
	var p *api.Problem
	failed := errors.Is(err, api.ErrUnreachable) || errors.As(err, &p) && passing(p)
	if err != nil && !failed && p == nil {
		return // cut short by ourselves
	}
	h.mu.Lock()
	before := h.away
	h.away = failed
	if before && !failed {
		h.retry = backoff{}
	}
	h.mu.Unlock()
	switch {
	case failed && !before:
		h.o.Log.Warn("server is away: handlers go on, results are kept", "worker", h.o.Worker, "error", err)
	case before && !failed:
		h.o.Log.Info("server is back", "worker", h.o.Worker)
		h.box.reachable()
		h.kickBeat()
		h.kick()
	}
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
