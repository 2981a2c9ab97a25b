package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// woken is what the server records as the result of a wait or a sleep.
type woken struct {
	Signal  json.RawMessage `json:"signal"`
	Timeout bool            `json:"timeout"`
}

// Wait waits for a signal of this name and returns its payload. The attempt ends meanwhile and its slot is free: Wait
// returns an error that wraps [ErrParked], which the handler must return, and the handler is run again when the signal
// is there. Then Wait returns the payload, or [ErrTimeout] if the signal did not come within the timeout; 0 waits
// without end. A signal that came before is taken at once.
//
// Several waits for the same name take signals one by one, in the order they are reached.
func Wait[T any](ctx context.Context, r *Run, name string, timeout time.Duration) (T, error) {
	var payload T
	if err := checkName("signal", name); err != nil {
		return payload, r.fault(err)
	}
	step := r.next("wait:" + name)
	recorded, found, err := r.enter(ctx, step)
	if err != nil {
		return payload, err
	}
	if !found {
		park := &api.Park{On: "input", Step: step, Name: name}
		if timeout > 0 {
			park.Until = &api.Time{Time: time.Now().Add(timeout)}
		}
		return payload, r.park(park)
	}
	var w woken
	if err := json.Unmarshal(orNull(recorded.Result), &w); err != nil {
		return payload, r.fault(failf(CodeNonDeterministic, "wait for signal %q: its record is not one of a wait: %w", name, decoding(err)))
	}
	if w.Timeout {
		return payload, fmt.Errorf("wait for signal %q: %w", name, ErrTimeout)
	}
	if err := json.Unmarshal(orNull(w.Signal), &payload); err != nil {
		return payload, failf(CodeInputInvalid, "signal %q: its payload does not fit %s: %w", name, typeName[T](), decoding(err))
	}
	return payload, nil
}

// Sleep ends the attempt until d has passed: it returns an error that wraps [ErrParked], which the handler must return.
// When the time has come the handler is run again and Sleep returns nil. Times of less than a second are better spent
// with a timer.
func Sleep(ctx context.Context, r *Run, d time.Duration) error {
	step := r.next("sleep")
	_, found, err := r.enter(ctx, step)
	if err != nil || found {
		return err
	}
	return r.park(&api.Park{On: "timer", Step: step, Until: &api.Time{Time: time.Now().Add(max(d, 0))}})
}

// next numbers a wait or a sleep: NAME#1, NAME#2, …
func (r *Run) next(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = make(map[string]int)
	}
	r.counts[name]++
	return fmt.Sprintf("%s#%d", name, r.counts[name])
}

// park ends what the attempt may do.
func (r *Run) park(p *api.Park) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parked = p
	return fmt.Errorf("%s: %w", p.Step, ErrParked)
}
