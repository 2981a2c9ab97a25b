// Package retry decides what follows a failed attempt: another one and when, or the end of the run and why.
//
// It is arithmetic over values: time and randomness are arguments, nothing blocks, nothing is kept.
package retry

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Failure is how an attempt failed.
type Failure struct {
	Class   run.Class // user when empty or unknown
	Code    string    // the agent's own error code, an HTTP status or an exit code, as text
	Message string
	// RetryAfter is how long the other side asked to wait; zero and less is nothing asked.
	RetryAfter time.Duration
	// Final: the agent said that another attempt is of no use. A rule of the policy outranks it.
	Final bool
	// Retryable: the agent said that another attempt may succeed. It matters for class canceled, which is retried
	// neither by default nor when the run itself is being canceled.
	Retryable bool
}

// Action is what follows a failed attempt.
type Action string

const (
	// Retry gives the run another attempt at Verdict.Due.
	Retry Action = "retry"
	// Fail ends the run.
	Fail Action = "fail"
)

// Verdict is the answer of [Decide].
type Verdict struct {
	Action Action
	// Due is when the next attempt may be queued; 0 with Fail. It is always before the run's deadline.
	Due run.Instant
	// Reason is why the run ends, or what it backs off from.
	Reason run.Reason
	// Message is the last error with what was decided about it, for people.
	Message string
	// Unspent: the attempt is given back and does not count against MaxAttempts. It counts against run.MaxReturned.
	Unspent bool
}

// Decide says what follows when the live attempt of r fails with f. It changes nothing. The policy has its defaults
// set; roll is 64 random bits for the jitter.
//
// What to do is said by the first of these that has something to say:
//
//  1. The run is being canceled, or its budget is used up: it fails.
//  2. The first rule of the policy that matches. A rule matches when every field it has (class, code) is equal.
//     "fail" ends the run. "retry" gives another attempt. "ignore" does too and gives the failed one back, as Ignore
//     does in a batch/v1 podFailurePolicy: the failure is not counted and a replacement is made, after the backoff.
//  3. The agent: Final ends the run.
//  4. The class: all are retried but canceled.
//
// Infrastructure and throttled failures, ignored ones, and those of an attempt that never started are given back,
// run.MaxReturned times in the life of a run: then it fails with ReturnLimitExceeded. Others are spent, and the run
// fails when MaxAttempts of them are: AttemptTimeout or HeartbeatLost after those classes, BackoffLimitExceeded after
// others.
//
// The wait is the backoff for as many failures of that sort as there were, or the RetryAfter cut at the longest
// backoff if that is more. A wait that would reach the run's deadline fails the run now, with DeadlineExceeded.
func Decide(p fleet.Retry, r *run.Record, f Failure, now run.Instant, roll uint64) Verdict {
	if !f.Class.Valid() {
		f.Class = run.ClassUser
	}
	// 1. What no policy can change.
	switch {
	case f.Class == run.ClassBudget:
		return fail(run.BudgetExceeded, f, "the budget is used up")
	case canceling(r):
		return fail(run.CanceledByRequest, f, "the run is being canceled")
	}
	// 2. The policy, the agent, the class, in this order.
	action, by := choose(p.On, f)
	if action == fleet.ActionFail {
		return fail(endReason(f), f, by)
	}
	// 3. The attempt is given back or spent; either account has an end.
	attempt := r.Current()
	started := attempt != nil && attempt.StartedAt != 0
	unspent := action == fleet.ActionIgnore || !started ||
		f.Class == run.ClassInfrastructure || f.Class == run.ClassThrottled
	n, most := r.Spent, max(p.MaxAttempts, 1)
	if unspent {
		n, most = r.Returned+1, run.MaxReturned
	}
	switch {
	case unspent && n > most:
		return fail(run.ReturnLimit, f, fmt.Sprintf("%d attempts were given back, which is the limit", most))
	case !unspent && n >= most:
		return fail(exhaustedReason(f.Class), f, fmt.Sprintf("%d of %d attempts are used", n, most))
	}
	// 4. The wait, which never reaches the deadline.
	wait, note := delay(p.Backoff, n, f.RetryAfter, roll)
	due := now.Add(wait)
	if r.Deadline != 0 && due >= r.Deadline {
		return fail(run.DeadlineExceeded, f, fmt.Sprintf("the next attempt would be due at %s%s, the run's deadline is %s",
			stamp(due), note, stamp(r.Deadline)))
	}
	return Verdict{
		Action: Retry, Due: due, Reason: backoffReason(f.Class), Unspent: unspent,
		Message: message(f, "next attempt at "+stamp(due)+note),
	}
}

// canceling reports whether the run was told to end by a person or a parent.
func canceling(r *run.Record) bool {
	return r.State == run.Canceling || r.State == run.Compensating || (r.Stop != nil && r.Stop.Class == run.ClassCanceled)
}

// choose gives the action and whose word it is.
func choose(rules []fleet.RetryRule, f Failure) (fleet.RetryAction, string) {
	for i, rule := range rules {
		if matches(rule, f) {
			return rule.Action, fmt.Sprintf("retry.on[%d] says %s", i, rule.Action)
		}
	}
	switch {
	case f.Final:
		return fleet.ActionFail, "the agent says that it is not retryable"
	case f.Class == run.ClassCanceled && !f.Retryable:
		return fleet.ActionFail, "a canceled attempt is not retried"
	}
	return fleet.ActionRetry, ""
}

func matches(rule fleet.RetryRule, f Failure) bool {
	if rule.Class == "" && rule.Code == "" {
		return false
	}
	return (rule.Class == "" || rule.Class == string(f.Class)) && (rule.Code == "" || rule.Code == f.Code)
}

// endReason is why a run ends when someone said not to retry.
func endReason(f Failure) run.Reason {
	if f.Class == run.ClassCanceled && !f.Final {
		return run.CanceledByRequest
	}
	if f.Final && f.Code == string(run.OutcomeUnknown) {
		return run.OutcomeUnknown
	}
	return run.NonRetryable
}

func exhaustedReason(c run.Class) run.Reason {
	switch c {
	case run.ClassTimeout:
		return run.AttemptTimeout
	case run.ClassLost:
		return run.HeartbeatLost
	}
	return run.BackoffLimitExceeded
}

func backoffReason(c run.Class) run.Reason {
	switch c {
	case run.ClassTimeout:
		return run.AttemptTimeout
	case run.ClassLost:
		return run.HeartbeatLost
	case run.ClassInfrastructure:
		return run.InfrastructureFailure
	case run.ClassThrottled:
		return run.Throttled
	}
	return run.AgentError
}

func fail(reason run.Reason, f Failure, why string) Verdict {
	return Verdict{Action: Fail, Reason: reason, Message: message(f, why)}
}

// maxError is how much of the agent's own text a message keeps, so that what was decided is never cut off.
const maxError = run.MaxMessage - 512

// message is "CODE: text (why)".
func message(f Failure, why string) string {
	text := f.Message
	switch {
	case text == "" && f.Code == "":
		text = "class " + string(f.Class)
	case text == "":
		text = f.Code
	case f.Code != "":
		text = f.Code + ": " + text
	}
	return run.Clip(text, maxError) + " (" + why + ")"
}

// stamp prints an instant; 0 has no time to print.
func stamp(i run.Instant) string { return i.Time().Format(time.RFC3339) }
