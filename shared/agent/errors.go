package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Codes that the SDK gives to failures of its own finding. All are of class user, and final unless noted.
const (
	CodeInputInvalid     = "InputInvalid"     // the input does not decode into the handler's type
	CodeOutputInvalid    = "OutputInvalid"    // output, session, request or result cannot be written as JSON
	CodePanic            = "Panic"            // the handler panicked; retried as policy says
	CodeNonDeterministic = "NonDeterministic" // the handler took another way than earlier attempts
	CodeDuplicateStep    = "DuplicateStep"    // a step's name was used twice in one attempt
	CodeNameInvalid      = "NameInvalid"      // name of a step, effect or signal
	CodeTooManySteps     = "TooManySteps"     // more than api.MaxSteps
	CodeResultTooLarge   = "ResultTooLarge"   // of a step, an effect, or the whole run
	CodeResultRefused    = "ResultRefused"    // the server refused the result; retried as policy says, unless it is an invalid question or wait
	CodeOutcomeUnknown   = "OutcomeUnknown"   // nobody knows whether an effect happened
	CodeNotUndone        = "NotUndone"        // an effect is to be undone, and the handler does not say how
	CodeEffectConflict   = "EffectConflict"   // an effect was begun before with another request
	CodePermissionDenied = "PermissionDenied" // the agent's permissions do not cover an effect
	CodeChildFailed      = "ChildFailed"      // a run that it called did not succeed, and the handler left it at that
	CodeActionChanged    = "ActionChanged"    // the action is not the one that people decided about
	CodeQuestionInvalid  = "QuestionInvalid"  // a question to people cannot be written as JSON
	CodeUnsupported      = "Unsupported"      // the attempt asks for what this build cannot do
)

// Classes of failure that an attempt reports of itself.
const (
	ClassUser           = "user"
	ClassInfrastructure = "infrastructure"
	ClassThrottled      = "throttled"
	ClassTimeout        = "timeout"
	ClassCanceled       = "canceled"
)

// Error is an error that says how the run goes on. Make one with [Retry], [Fail] or [Throttled]; wrapping keeps it.
type Error struct {
	Class string // user when empty
	Code  string
	// Final ends the run: no policy retries it.
	Final bool
	// After is how long to wait before the next attempt, as far as the policy's cap allows; 0 leaves it to the policy.
	After time.Duration
	Err   error
}

func (e *Error) Error() string {
	switch {
	case e.Err != nil && e.Code != "":
		return e.Code + ": " + e.Err.Error()
	case e.Err != nil:
		return e.Err.Error()
	case e.Code != "":
		return e.Code
	}
	return "retry later"
}

func (e *Error) Unwrap() error { return e.Err }

// Retry asks for another attempt after a while. Wrap it to say why: fmt.Errorf("fetch rates: %w", agent.Retry(time.Minute)).
func Retry(after time.Duration) error {
	return &Error{After: max(after, 0), Err: errors.New("asked to be retried")}
}

// Throttled is Retry for "others keep me waiting": the attempt is given back, within a cap.
func Throttled(after time.Duration) error {
	return &Error{Class: ClassThrottled, After: max(after, 0), Err: errors.New("throttled")}
}

// Fail ends the run with a code of the agent's own, such as BAD_PDF. It is not retried.
func Fail(code string, err error) error {
	if err == nil {
		err = errors.New("failed")
	}
	return &Error{Code: code, Final: true, Err: err}
}

func failf(code, format string, args ...any) error {
	return &Error{Code: code, Final: true, Err: fmt.Errorf(format, args...)}
}

// NotDone says that an effect certainly did not happen: the request was refused before it could, for instance. [Once]
// then forgets that it was tried.
func NotDone(err error) error {
	if err == nil {
		err = errors.New("not done")
	}
	return &notDone{err}
}

type notDone struct{ err error }

func (e *notDone) Error() string { return e.err.Error() }
func (e *notDone) Unwrap() error { return e.err }

// Errors of the SDK itself.
var (
	// ErrParked is wrapped by the errors of Wait, Sleep, Call, Parallel and Ask: the attempt ends here and the handler must return the error.
	ErrParked = errors.New("parked: the handler must return this error")
	// ErrTimeout: the signal that was waited for did not come in time.
	ErrTimeout = errors.New("signal did not come in time")
	// ErrFenced is the cause of a context, or wrapped by an error, when the attempt no longer holds its run.
	ErrFenced = errors.New("attempt no longer holds its run")
	// ErrDraining is the cause of a context when the process has to end; the run is handed back.
	ErrDraining = errors.New("process is ending")
)

// CanceledError is the cause of a context when the server asked the attempt to end.
type CanceledError struct{ Reason string }

func (e *CanceledError) Error() string {
	if e.Reason == "" {
		return "canceled"
	}
	return "canceled: " + e.Reason
}

// describe forms the failure that an error means for the run. cause is why the handler's context ended, nil if it did
// not: then the context explains the error better than the error does.
func describe(err, cause error) *api.AgentError {
	out := &api.AgentError{Message: clip(err.Error(), api.MaxMessage)}
	var typed *Error
	if errors.As(err, &typed) {
		if err == error(typed) && typed.Err != nil { //nolint:errorlint // itself, not what it wraps
			out.Message = clip(typed.Err.Error(), api.MaxMessage) // the code has its own field
		}
		out.Class, out.Code = typed.Class, typed.Code
		if typed.Final {
			out.Retryable = new(bool)
		}
		if typed.After > 0 {
			after := api.Duration(typed.After)
			out.RetryAfter = &after
		}
	}
	var child *ChildError
	if typed == nil && errors.As(err, &child) {
		// It stays as it ended: another attempt would meet the same.
		out.Code, out.Retryable = CodeChildFailed, new(bool)
	}
	var canceled *CanceledError
	switch {
	case cause == nil || (typed != nil && typed.Final):
	case errors.As(cause, &canceled):
		out.Class, out.Code = ClassCanceled, canceled.Reason
		if canceled.Reason == "AttemptTimeout" || canceled.Reason == "DeadlineExceeded" {
			out.Class = ClassTimeout
		}
	case errors.Is(cause, context.DeadlineExceeded):
		out.Class, out.Code = ClassTimeout, "AttemptTimeout"
	case errors.Is(cause, ErrDraining), errors.Is(cause, ErrFenced):
		out.Class, out.Code = ClassInfrastructure, ""
	default:
		out.Class = ClassCanceled
	}
	return out
}

// clip cuts text at a rune's border.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const mark = "…"
	return strings.ToValidUTF8(s[:limit-len(mark)], "") + mark
}
