package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Doors through which people, and programs for them, act on one run.

const maxGrace = time.Hour

// Cancel ends a run. One that is not executing ends at once; a live attempt is told to end and has the grace for it.
// Canceling what has ended changes nothing and returns it.
func (p *Plane) Cancel(ctx context.Context, id string, c CancelRequest) (*run.Record, error) {
	if c.Grace <= 0 {
		c.Grace = p.cfg.Grace
	}
	if c.Grace > maxGrace {
		return nil, refuse(CodeInvalid, "cancel run %s: grace %s, %s at most", id, c.Grace, maxGrace)
	}
	o := p.change(ctx, edit{id: id, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		return p.cancelation(ctx, r, c, run.CanceledByRequest, now)
	}})
	return o.rec, o.err
}

// cancelation ends a run for the reason, at once where nothing executes it; nothing where it has ended or is about to.
func (p *Plane) cancelation(ctx context.Context, r *run.Record, c CancelRequest, reason run.Reason, now run.Instant) (draft, error) {
	var d draft
	if r.State.Terminal() || r.State == run.Canceling || r.State == run.Compensating {
		return d, nil
	}
	// Until then a live attempt, and those of runs below, have time to end.
	asked := run.Event{Type: run.EvCancelRequested, At: now, Actor: c.Actor, Reason: reason, Message: c.Reason, Due: now.Add(c.Grace + p.cfg.WorkerLease)}
	end := run.Event{Type: run.EvCanceled, At: now, Actor: c.Actor, Reason: reason, Message: c.Reason}
	if r.Live() {
		asked.Attempt = r.Attempt
	}
	d.events = append(d.events, asked)
	if r.Live() {
		if r.State != run.Assigned || !p.isClaimed(r) {
			return d, nil
		}
		// Nobody has claimed it, and a claim that comes later is refused: there is nothing to wait for.
		end.Attempt, end.Class, end.Sure = r.Attempt, run.ClassCanceled, true
	}
	return d, p.end(ctx, &d, r, end)
}

// Suspend stops a run until it is resumed. A live attempt is told to end and is given back. The run's deadline goes on.
func (p *Plane) Suspend(ctx context.Context, id, actor string) (*run.Record, error) {
	o := p.change(ctx, edit{id: id, decide: func(_ context.Context, r *run.Record, now run.Instant) (draft, error) {
		if r.State == run.Suspended {
			return draft{}, nil
		}
		e := run.Event{Type: run.EvSuspended, At: now, Actor: actor, Reason: run.SuspendedByRequest}
		if r.Live() {
			// Until then the attempt may be alive: resuming waits for it.
			e.Due = now.Add(p.cfg.Grace + p.cfg.WorkerLease)
		}
		return draft{events: []run.Event{e}}, nil
	}})
	return o.rec, o.err
}

// Resume puts a suspended run back into the queue; one whose last attempt may still be alive is held until that is
// over.
func (p *Plane) Resume(ctx context.Context, id, actor string) (*run.Record, error) {
	o := p.change(ctx, edit{id: id, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		d := draft{events: []run.Event{{Type: run.EvResumed, At: now, Actor: actor, Due: p.queueEnd(ctx, r, now)}}}
		if r.Due > now {
			d.events = append(d.events, run.Event{Type: run.EvHeld, At: now, Reason: run.NotBefore, Due: r.Due, Message: "its last attempt may still be alive"})
		}
		return d, nil
	}})
	return o.rec, o.err
}

// Signal delivers a message to a run: it wakes a run that waits for that name, and is kept for one that does not yet.
// The same key delivers once.
func (p *Plane) Signal(ctx context.Context, id, name, key string, payload json.RawMessage, actor string) (*run.Record, error) {
	switch {
	case !validName(name):
		return nil, refuse(CodeInvalid, "signal: want a name of 1 to %d bytes", runtime.MaxName)
	case len(key) > maxKey:
		return nil, refuse(CodeInvalid, "signal %s: key has %d bytes, %d at most", name, len(key), maxKey)
	case len(payload) > run.MaxPayload:
		return nil, refuse(CodeTooLarge, "signal %s: payload has %d bytes, %d at most", name, len(payload), run.MaxPayload)
	case len(payload) > 0 && !json.Valid(payload):
		return nil, refuse(CodeInvalid, "signal %s: payload is not JSON", name)
	}
	if len(payload) == 0 {
		payload = json.RawMessage("null")
	}
	ref := "signal/" + p.newID()
	o := p.change(ctx, edit{id: id, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		var d draft
		switch {
		case key != "" && slices.Contains(r.SigKeys, key):
			return d, nil
		case r.State.Terminal():
			return d, refuse(CodeState, "run %s is %s: it takes no signals any more", id, r.State)
		case len(r.Signals) >= run.MaxSignals:
			return d, &Refusal{Code: CodeOverloaded, Detail: fmt.Sprintf("run %s has %d signals that it did not ask for yet", id, len(r.Signals)), RetryAfter: time.Minute}
		}
		inline := 1 << 10
		if used := inlineSignals(r); used+len(payload) > run.MaxSignalBytes {
			inline = 0
		}
		s := run.Signal{Name: name, Key: key}
		s.Payload, d.writes = stash(r.ID, ref, payload, inline)
		d.events = append(d.events, run.Event{Type: run.EvSignaled, At: now, Actor: actor, Signal: &s})
		if r.State == run.Waiting && r.Park != nil && r.Park.On == run.OnInput && r.Park.Name == name {
			value := s
			value.Payload = run.Payload{Inline: payload}
			if err := p.woken(ctx, &d, r, r.Park, &value, now); err != nil {
				return d, err
			}
			d.events[len(d.events)-1].Signal = &s
		}
		return d, nil
	}})
	return o.rec, stateRefusal(o.err)
}

func inlineSignals(r *run.Record) int {
	n := 0
	for _, s := range r.Signals {
		n += len(s.Payload.Inline)
	}
	return n
}

// Score records a quality score, also of a finished run.
func (p *Plane) Score(ctx context.Context, id string, score float64, by, comment string) (*run.Record, error) {
	if !(score >= 0 && score <= 1) {
		return nil, refuse(CodeInvalid, "score run %s: got %v, want 0 to 1", id, score)
	}
	o := p.change(ctx, edit{id: id, decide: func(_ context.Context, _ *run.Record, now run.Instant) (draft, error) {
		return draft{events: []run.Event{{Type: run.EvScored, At: now, Actor: by, Message: comment, Score: &score}}}, nil
	}})
	return o.rec, o.err
}

// stateRefusal words a state error as a refusal.
func stateRefusal(err error) error {
	var state *run.StateError
	if errors.As(err, &state) {
		return refuse(CodeState, "%s", state.Error())
	}
	return err
}
