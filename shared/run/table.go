package run

import (
	"errors"
	"fmt"
	"slices"
)

// Transition is a row of the table: in which states an event may happen and which state it leads to.
type Transition struct {
	Event EventType
	From  []State // empty for "before the first event"
	To    State   // empty for "stays"
	// Fenced: the event speaks for a live attempt and must carry its number. Another event may carry one too, and then
	// it must be that of the newest attempt.
	Fenced bool
	Doc    string
}

var (
	live      = []State{Assigned, Running}
	open      = []State{Queued, Held, Unschedulable, Assigned, Running, Waiting, Backoff, Suspended, Canceling, Compensating}
	stoppable = []State{Queued, Held, Unschedulable, Assigned, Running, Waiting, Backoff, Suspended}
)

//go:generate go test -run TestStatesDoc . -update

// Table is every transition that there is. docs/states.md is generated from it.
var Table = []Transition{
	{Event: EvSubmitted, To: Queued, Doc: "A run was accepted. Due: when its time in the queue is over."},
	{Event: EvHeld, From: []State{Queued, Held}, To: Held, Doc: "Not eligible yet; reason says what binds, due when it is looked at again."},
	{Event: EvUnschedulable, From: []State{Queued, Unschedulable}, To: Unschedulable, Doc: "No target could take it even when empty; detail has a reason for each."},
	{Event: EvRequeued, From: []State{Held, Unschedulable, Backoff}, To: Queued, Doc: "Eligible again: the binding limit, the diagnosis or the backoff is over."},
	{Event: EvAssigned, From: []State{Queued}, To: Assigned, Doc: "Placed on a target; the next attempt number is given out. Due: when its start must be confirmed."},
	{Event: EvStartFailed, From: []State{Assigned}, To: Queued, Fenced: true, Doc: "The start did not come about. The decision stays in history, the attempt is given back."},
	{Event: EvStarted, From: []State{Assigned}, To: Running, Fenced: true, Doc: "The attempt confirmed its start and is spent. Due: the attempt's deadline."},
	{Event: EvStopRequested, From: live, Fenced: true, Doc: "The attempt is told to end and may report nothing more. Due: when it counts as dead."},
	{Event: EvReleased, From: live, To: Queued, Fenced: true, Doc: "The worker handed the run back (drain); the attempt is given back."},
	{Event: EvBegan, From: []State{Queued, Waiting}, To: Running, Doc: "A workflow was admitted, or goes on: its children execute, it holds no slot and has no attempt."},
	{Event: EvAdvanced, From: []State{Running, Waiting, Canceling, Compensating}, Doc: "A stage of the workflow, or of its undoing, began or ended."},
	{Event: EvActed, From: []State{Running, Canceling}, Fenced: true, Doc: "The attempt is about to perform an effect that can be undone, or found that one has happened: from now on an end without success undoes it."},
	{Event: EvParked, From: []State{Running}, To: Waiting, Fenced: true, Doc: "The attempt ended to wait for children, a gate, a timer or a signal; nothing is spent. A workflow waits for a gate or a timer."},
	{Event: EvGateChanged, From: open, Doc: "Something happened at a gate of the run that does not decide it; code says what: a vote, a refused decision, a reminder, an escalation. Due: the gate's next time."},
	{Event: EvDeadlineMoved, From: stoppable, Doc: "The run has waited for people alone, by way of runs that it called: its deadline moves by that time. Due: up to when that is reckoned."},
	{Event: EvWoken, From: []State{Waiting}, To: Queued, Doc: "What it waited for came, or its limit did."},
	{Event: EvSignaled, From: stoppable, Doc: "A signal arrived and is kept until the run asks for it."},
	{Event: EvBackedOff, From: live, To: Backoff, Fenced: true, Doc: "The attempt failed and the policy gives another. Due: when."},
	{Event: EvSucceeded, From: []State{Running, Waiting}, To: Succeeded, Fenced: true, Doc: "Done. Due: when the record is removed."},
	{Event: EvFailed, From: open, To: Failed, Doc: "Over, with a reason of the closed set. Due: when the record is removed."},
	{Event: EvCancelRequested, From: stoppable, To: Canceling, Doc: "A person or a parent ends it. Due: when a live attempt counts as dead."},
	{Event: EvCompensating, From: open, To: Compensating, Doc: "Committed effects are being undone; a live attempt ends with it. Reason says what follows."},
	{Event: EvCanceled, From: []State{Canceling, Compensating}, To: Canceled, Doc: "Ended on request. Due: when the record is removed."},
	{Event: EvSuspended, From: stoppable, To: Suspended, Doc: "Stopped by a person; a live attempt is told to end and given back."},
	{Event: EvResumed, From: []State{Suspended}, To: Queued, Doc: "Released by a person."},
	{Event: EvScored, From: States, Doc: "A quality score was given; the only event that a finished run takes."},
}

var byEvent = func() map[EventType]*Transition {
	m := make(map[EventType]*Transition, len(Table))
	for i := range Table {
		m[Table[i].Event] = &Table[i]
	}
	return m
}()

// ErrFenced: the event speaks for an attempt that no longer holds the run.
var ErrFenced = errors.New("attempt no longer holds the run")

// ErrState: the run's state does not admit the event. Errors of this kind are *StateError.
var ErrState = errors.New("run is not in a state for this")

// StateError says which event met which state.
type StateError struct {
	Run   string
	State State
	Event EventType
}

func (e *StateError) Error() string {
	return fmt.Sprintf("run %s is %s, where %s cannot happen", e.Run, e.State, e.Event)
}

func (e *StateError) Unwrap() error { return ErrState }

// Decide reports whether an event may happen to a run now. It changes nothing. A nil record is a run that does not
// exist yet. The error wraps [ErrFenced] when the event speaks for an attempt that no longer holds the run, is a
// [*StateError] when the state does not admit it, and otherwise says what is wrong with the event itself: it wraps
// [ErrTooLarge], [ErrInvalid] or, for a signal whose key was seen, [ErrSignalSeen].
func Decide(r *Record, e *Event) error {
	row := byEvent[e.Type]
	// 1. The event is known. It speaks for the attempt that holds the run: fencing is told before state, for that is
	//    what a late worker must learn.
	switch {
	case row == nil:
		return fmt.Errorf("event %q is none of the table: %w", Clip(string(e.Type), 64), ErrInvalid)
	case r == nil && len(row.From) > 0:
		return &StateError{Run: "(none)", State: "not submitted", Event: e.Type}
	case r != nil && !r.admits(row, e):
		return fmt.Errorf("run %s: attempt %d reports %s, but %s: %w", r.ID, e.Attempt, e.Type, r.holder(), ErrFenced)
	case r != nil && (!slices.Contains(row.From, r.State) || e.Type == EvAssigned && !r.executes()):
		return &StateError{Run: r.ID, State: r.State, Event: e.Type}
	}
	// 2. Fencing numbers rise by one.
	if e.Type == EvAssigned && e.Attempt != r.Attempt+1 {
		return fmt.Errorf("run %s: attempt %d was to be assigned after %d: %w", r.ID, e.Attempt, r.Attempt, ErrFenced)
	}
	// 3. What it carries is well formed, and has room in the record.
	if err := e.check(); err != nil {
		return fmt.Errorf("event %s: %w", e.Type, err)
	}
	if e.Type == EvSignaled {
		return r.admitSignal(e.Signal)
	}
	return nil
}

// admits reports whether the attempt that the event speaks for, if it speaks for one, may say this.
func (r *Record) admits(row *Transition, e *Event) bool {
	switch e.Type {
	case EvAssigned: // it names the attempt that it makes
		return true
	case EvBegan, EvAdvanced: // of workflows, and of what is being undone
		return e.Attempt == 0 && (!r.executes() || e.Type == EvAdvanced && r.State == Compensating)
	case EvParked, EvSucceeded:
		if e.Attempt == 0 { // a workflow has no attempt
			return !r.executes()
		}
		return e.Attempt == r.Holder()
	case EvStarted, EvReleased: // reports: see Holder
		return e.Attempt != 0 && e.Attempt == r.Holder()
	}
	if !row.Fenced { // it may name the newest attempt, also when that has ended
		return e.Attempt == 0 || e.Attempt == r.Attempt
	}
	return r.Live() && e.Attempt == r.Attempt
}

// executes reports whether the run executes by attempts of its own; a workflow does by its children.
func (r *Record) executes() bool { return r.Kind == KindAgent }

func (r *Record) holder() string {
	switch {
	case !r.Live():
		return fmt.Sprintf("the run is %s", r.State)
	case r.Holder() == 0:
		return fmt.Sprintf("attempt %d was told to end (%s) and may report nothing more", r.Attempt, r.Stop.Reason)
	}
	return fmt.Sprintf("attempt %d holds it", r.Attempt)
}
