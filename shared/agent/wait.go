package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
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
	if err := r.mayPark(p.Step); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parked = p
	return fmt.Errorf("%s: %w", p.Step, ErrParked)
}

// mayPark refuses to wait for something new while the attempts before have waited for something that this one has not
// asked for: waits come one after another, so it took another way.
func (r *Run) mayPark(step string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inOrder(step, r.ended+1)
}

// inOrder checks that no wait is skipped by one that is recorded as number seq. The caller holds mu.
func (r *Run) inOrder(step string, seq int) error {
	var skipped *api.Step
	for name, s := range r.steps {
		if isWait(name) && s.Seq < seq && (skipped == nil || s.Seq < skipped.Seq) {
			skipped = &s
		}
	}
	if skipped == nil {
		return nil
	}
	return r.breakWith(failf(CodeNonDeterministic, "the handler asks for %q, where an earlier attempt asked for %q: it must take the same way on each attempt; "+
		"let what it decides by (time, chance, what others answer) be the result of a step", step, skipped.Name))
}

// isWait reports whether a step is one in which the attempt parks, by the name that the SDK gives to it.
func isWait(step string) bool {
	name, number, ok := strings.Cut(step, "#")
	if !ok || number == "" {
		return false
	}
	kind, _, _ := strings.Cut(name, ":")
	switch kind {
	case "wait", "call", "ask":
		return kind != name
	case "sleep", "parallel":
		return kind == name
	}
	return false
}
