package run

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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
	if p := r.Park; p != nil && p.Left > 0 && row.To != "" { // its time goes on
		r.Deadline = Earliest(e.At.Add(time.Duration(p.Left)*time.Millisecond), r.Latest)
	}
	r.waits(e, row.To != "")
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
	case EvActed:
		r.Undoable = true
	case EvParked:
		r.endAttempt(e, OutcomeParked)
		r.Park = e.Park
		r.Undoable = r.Undoable || e.Park.On == OnChildren // what they did
		if e.Park.Left > 0 {
			r.Deadline = r.Latest
		}
	case EvGateChanged:
		if r.State == Waiting && e.Due != 0 {
			r.Due = e.Due
		}
	case EvSignaled:
		r.Signals = append(r.Signals, *e.Signal)
		r.remember(e.Signal.Key)
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
	case EvCompensating:
		outcome := OutcomeFailed
		if r.Stop != nil && r.Stop.Class == ClassCanceled {
			outcome = OutcomeCanceled
		}
		r.endAttempt(e, outcome)
		r.Park = nil
	case EvSuspended:
		r.endAttempt(e, OutcomeReleased)
		r.Park = nil // the next attempt asks for it again
	case EvScored:
		r.Score = e.Score
	case EvBegan:
		r.Park = nil
		if r.StartedAt == 0 {
			r.StartedAt = e.At
		}
	case EvAdvanced:
		r.Flow, r.Message = e.Stage, e.Message
	}
	if e.Type == EvWoken {
		r.takeSignal(e)
		r.Park = nil
	}
	r.begins(e)
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
	a.EndedAt, a.Outcome, a.Class, a.Code, a.Sure = e.At, outcome, e.Class, e.Code, e.Sure
	a.Message = Clip(e.Message, 256)
	if e.Usage != nil {
		a.Usage = e.Usage
		r.Usage = r.Usage.Plus(*e.Usage)
	}
	started := a.StartedAt != 0
	returned := outcome == OutcomeReleased || outcome == OutcomeStartFailed ||
		(outcome == OutcomeFailed && (e.Unspent || !started))
	if returned {
		r.Returned++
	}
	if started && (returned || outcome == OutcomeParked) {
		r.Spent--
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

// remember keeps a signal's key, as many of the newest as there is room for.
func (r *Record) remember(key string) {
	if key == "" {
		return
	}
	keys := append(slices.Clone(r.SigKeys), key)
	size := 0
	for i := len(keys) - 1; i >= 0; i-- {
		if size += len(keys[i]); size > MaxKeyBytes || len(keys)-i > MaxSignals {
			keys = slices.Clone(keys[i+1:])
			break
		}
	}
	r.SigKeys = keys
}

// Spill moves the older part of a tail that grew past MaxTail events or MaxTailBytes out of the record and returns it;
// nil if there is nothing to move. The caller stores it as a history document in the same unit as the record, before
// the record is encoded.
func Spill(r *Record) []Event {
	size := 0
	for i := range r.Tail {
		size += r.Tail[i].weight()
	}
	if len(r.Tail) <= MaxTail && size <= MaxTailBytes {
		return nil
	}
	// A quarter stays, so that not every further event spills.
	keep, size := 0, 0
	for keep < MaxTail/4 {
		if size += r.Tail[len(r.Tail)-1-keep].weight(); size > MaxTailBytes/4 {
			break
		}
		keep++
	}
	cut := len(r.Tail) - keep
	old := slices.Clone(r.Tail[:cut])
	r.Tail = slices.Clone(r.Tail[cut:])
	return old
}

// Clip makes text fit to be kept and shown: valid UTF-8 without control characters but newlines and tabs, shortened to
// n bytes at a character boundary with a mark where it was cut.
func Clip(s string, n int) string {
	const mark = "…"
	if n < len(mark) {
		return ""
	}
	cut := len(s) > 8*n // never look through all of a huge text
	if cut {
		s = s[:8*n]
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unprintable) {
		s = strings.Map(func(c rune) rune {
			if unprintable(c) {
				return -1
			}
			return c
		}, strings.ToValidUTF8(s, "\uFFFD"))
	}
	if len(s) <= n && !cut {
		return s
	}
	end := min(n-len(mark), len(s))
	for end > 0 && end < len(s) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// unprintable reports whether a character has no place in text for people.
func unprintable(c rune) bool { return unicode.IsControl(c) && c != '\n' && c != '\t' }

// StateAfter is the state that an event leads to, from the state before it.
func StateAfter(before State, e EventType) State {
	if row := byEvent[e]; row != nil && row.To != "" {
		return row.To
	}
	return before
}

// AttemptsOf lists every attempt in a history, also those that the record no longer lists.
func AttemptsOf(spec Spec, history []Event) []Attempt {
	var all []Attempt
	var r *Record
	for _, e := range history {
		if r == nil {
			r = New(spec, e)
		} else {
			r.fold(&e)
		}
		cur := r.Current()
		switch {
		case cur == nil:
		case len(all) == 0 || all[len(all)-1].N != cur.N:
			all = append(all, *cur)
		default:
			all[len(all)-1] = *cur
		}
	}
	return all
}
