package run

import (
	"fmt"
	"slices"
)

// New is the record of a run that was just submitted: its spec and the first event folded.
func New(spec Spec, e Event) *Record {
	if spec.Kind == "" {
		spec.Kind = KindAgent
	}
	r := &Record{Spec: spec}
	r.apply(e)
	return r
}

// Evolve folds an event, which Decide must have admitted, into the record. It numbers the event, keeps time from
// running backwards (history time is the later of now and the event before), appends it to the tail, and returns it
// as it was written.
func Evolve(r *Record, e Event) Event {
	if e.At < r.UpdatedAt {
		e.At = r.UpdatedAt
	}
	return r.apply(e)
}

func (r *Record) apply(e Event) Event {
	e.Seq = r.Seq + 1
	e.Message = Clip(e.Message, MaxMessage)
	r.fold(&e)
	r.Tail = append(r.Tail, e)
	return e
}

// Fold rebuilds a record from its spec and whole history. It returns an error wrapping ErrCorrupt where an event is
// missing, out of order or not admitted: then history and record have parted.
func Fold(spec Spec, history []Event) (*Record, error) {
	if len(history) == 0 {
		return nil, fmt.Errorf("fold run %s: no events: %w", spec.ID, ErrCorrupt)
	}
	var r *Record
	for i := range history {
		e := history[i]
		if err := Decide(r, &e); err != nil {
			return nil, fmt.Errorf("fold run %s, event %d: %v: %w", spec.ID, e.Seq, err, ErrCorrupt)
		}
		if e.Seq != int64(i+1) || (r != nil && e.At < r.UpdatedAt) {
			return nil, fmt.Errorf("fold run %s: event %d at place %d, or time ran backwards: %w", spec.ID, e.Seq, i+1, ErrCorrupt)
		}
		if r == nil {
			r = New(spec, e)
		} else {
			r.fold(&e)
		}
	}
	r.Tail = nil
	return r, nil
}

// fold is the meaning of every event.
func (r *Record) fold(e *Event) {
	row := byEvent[e.Type]
	r.Seq, r.UpdatedAt = e.Seq, e.At
	if row.To != "" {
		r.State = row.To
		r.Reason, r.Message = e.Reason, e.Message
		r.Due = e.Due
	}
	switch e.Type {
	case EvSubmitted, EvRequeued, EvWoken, EvResumed:
		r.enqueue(e)
	case EvHeld:
	case EvUnschedulable:
		r.Detail = e.Detail
	case EvAssigned:
		r.assign(e)
	case EvStarted:
		r.start(e)
	case EvStopRequested:
		r.Stop = &Stop{Reason: e.Reason, Class: e.Class, At: e.At}
		r.Due = e.Due
	case EvStartFailed:
		r.endAttempt(e, OutcomeStartFailed)
		r.enqueue(e)
	case EvReleased:
		r.endAttempt(e, OutcomeReleased)
		r.enqueue(e)
	case EvParked:
		r.endAttempt(e, OutcomeParked)
		r.Park = e.Park
	case EvSignaled:
		r.Signals = append(r.Signals, *e.Signal)
		if e.Signal.Key != "" {
			r.SigKeys = append(r.SigKeys, e.Signal.Key)
			if n := len(r.SigKeys); n > MaxSignals {
				r.SigKeys = slices.Clone(r.SigKeys[n-MaxSignals:])
			}
		}
	case EvBackedOff:
		r.endAttempt(e, OutcomeFailed)
	case EvSucceeded:
		r.endAttempt(e, OutcomeSucceeded)
		r.end(e)
	case EvFailed:
		r.endAttempt(e, OutcomeFailed)
		r.end(e)
	case EvCanceled:
		r.endAttempt(e, OutcomeCanceled)
		r.end(e)
	case EvCancelRequested:
		if r.Target != "" {
			r.Stop = &Stop{Reason: e.Reason, Class: ClassCanceled, At: e.At}
		}
		r.Park = nil
	case EvSuspended:
		r.endAttempt(e, OutcomeReleased)
	case EvScored:
		r.Score = e.Score
	}
	if e.Type == EvWoken {
		r.takeSignal(e)
		r.Park = nil
	}
}

func (r *Record) enqueue(e *Event) { r.QueuedAt = e.At }

func (r *Record) assign(e *Event) {
	r.Attempt = e.Attempt
	r.Target, r.Worker, r.Detail, r.Stop = e.Target, e.Worker, e.Detail, nil
	r.Attempts = append(r.Attempts, Attempt{N: e.Attempt, Target: e.Target, Node: e.Node, Worker: e.Worker, AssignedAt: e.At})
	if n := len(r.Attempts); n > MaxAttempts {
		r.Attempts = slices.Clone(r.Attempts[n-MaxAttempts:])
	}
}

func (r *Record) start(e *Event) {
	r.Spent++
	if r.StartedAt == 0 {
		r.StartedAt = e.At
	}
	if e.Worker != "" {
		r.Worker = e.Worker
	}
	a := r.Current()
	a.StartedAt, a.Worker = e.At, r.Worker
}

// endAttempt closes the live attempt, if there is one, and settles what it spent.
func (r *Record) endAttempt(e *Event, outcome Outcome) {
	if r.Target == "" {
		return
	}
	a := r.Current()
	a.EndedAt, a.Outcome, a.Class, a.Code = e.At, outcome, e.Class, e.Code
	a.Message = Clip(e.Message, 256)
	if e.Usage != nil {
		a.Usage = e.Usage
		r.Usage = r.Usage.Plus(*e.Usage)
	}
	started := a.StartedAt != 0
	if started && (e.Unspent || outcome == OutcomeReleased || outcome == OutcomeParked) {
		r.Spent--
	}
	if outcome == OutcomeReleased || outcome == OutcomeStartFailed || e.Unspent || (outcome == OutcomeFailed && !started) {
		r.Returned++
	}
	r.Target, r.Worker, r.Stop = "", "", nil
}

func (r *Record) end(e *Event) {
	r.EndedAt = e.At
	r.Park, r.Signals, r.SigKeys = nil, nil, nil
	if e.Output != nil {
		r.Output = *e.Output
	}
	if e.Score != nil {
		r.Score = e.Score
	}
}

// takeSignal removes the signal that a wake-up consumed: the first of that name.
func (r *Record) takeSignal(e *Event) {
	if e.Signal == nil {
		return
	}
	i := slices.IndexFunc(r.Signals, func(s Signal) bool { return s.Name == e.Signal.Name })
	if i >= 0 {
		r.Signals = slices.Delete(slices.Clone(r.Signals), i, i+1)
	}
}

// Spill moves the older part of a tail that grew past MaxTail out of the record and returns it; nil if there is
// nothing to move. The caller stores it as a history document in the same unit as the record.
func Spill(r *Record) []Event {
	if len(r.Tail) <= MaxTail {
		return nil
	}
	keep := MaxTail / 4
	old := slices.Clone(r.Tail[:len(r.Tail)-keep])
	r.Tail = slices.Clone(r.Tail[len(r.Tail)-keep:])
	return old
}

// Clip shortens text to n bytes at a character boundary and marks the cut.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	cut := n - len("…")
	for cut > 0 && s[cut]&0xC0 == 0x80 {
		cut--
	}
	return s[:cut] + "…"
}
