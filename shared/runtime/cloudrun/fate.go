package cloudrun

import (
	"fmt"
	"strconv"
	"strings"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// fate is what is known here of a task that has ended without a word.
type fate struct {
	worker  string
	reason  run.Reason // why it was told to stop
	claimed bool       // it had claimed its attempt
	silent  bool       // it had, and was silent for its lease
	asked   bool       // its execution was cancelled from here
}

// report tells what became of the attempt. Its container is gone for good. t is nil where only the execution's own words
// are known.
func (f fate) report(ex *runpb.Execution, t *runpb.Task) runtime.Report {
	last := t.GetLastAttemptResult()
	c := completion(t.GetConditions())
	if t == nil {
		c = completion(ex.GetConditions())
	}
	words := strings.TrimSuffix(c.GetMessage(), ".")
	if words == "" {
		words = strings.TrimSuffix(last.GetStatus().GetMessage(), ".")
	}
	if words == "" {
		words = "the platform says no more"
	}
	cancelled := c.GetExecutionReason() == runpb.Condition_CANCELLED
	report := runtime.Report{Type: runtime.Failed, Class: run.ClassLost, Worker: f.worker, Ended: true}
	switch {
	case f.reason != "":
		report = runtime.Stopped(f.reason, fmt.Sprintf("task %s did not end within the grace after it was told to stop: %s; its execution was cancelled", f.worker, f.reason))
		if !f.asked {
			report.Message = fmt.Sprintf("task %s ended after it was told to stop: %s", f.worker, f.reason)
		}
	case codes.Code(last.GetStatus().GetCode()) == codes.DeadlineExceeded || strings.Contains(words, "timeout was reached"):
		// The platform's limit is ours and the grace: it comes first only where this side was away.
		report = runtime.Stopped(run.AttemptTimeout, fmt.Sprintf("the platform ended task %s at its time limit: %s", f.worker, words))
	case f.silent && f.asked:
		report.Message = fmt.Sprintf("worker %s was silent for its lease; its execution was cancelled", f.worker)
	case cancelled:
		report.Class, report.Code = run.ClassInfrastructure, codeStopped
		report.Message = fmt.Sprintf("task %s was cancelled on the platform: %s", f.worker, words)
	case !f.claimed && !f.silent && ranItself(t, last):
		report.Class, report.Code = run.ClassUser, codeUnclaimed
		report.Message = fmt.Sprintf("task %s ended before it claimed the attempt: its program ran and ended by itself (exit code %d), and never asked for it: "+
			"a job's container claims its attempt, as programs of the SDK do; any other program runs with shape: pool, where the worker hosts it", f.worker, last.GetExitCode())
	case !f.claimed && !f.silent:
		report = notStarted(fmt.Sprintf("task %s ended before it claimed the attempt: %s%s", f.worker, words, exit(last)))
	case last.GetExitCode() != 0:
		report.Code = strconv.Itoa(int(last.GetExitCode()))
		report.Message = fmt.Sprintf("task %s ended without a word: %s%s", f.worker, words, exit(last))
	default:
		report.Message = fmt.Sprintf("task %s ended without a word: %s%s", f.worker, words, exit(last))
	}
	report.Worker, report.Ended = f.worker, true
	return report
}

func exit(r *runpb.TaskAttemptResult) string {
	switch {
	case r.GetExitCode() != 0:
		return fmt.Sprintf(" (exit code %d)", r.GetExitCode())
	case r.GetTermSignal() != 0:
		return fmt.Sprintf(" (signal %d)", r.GetTermSignal())
	}
	return ""
}

// exitUnreachable is how a program of the SDK ends that could not reach the control plane: EX_TEMPFAIL of sysexits.h.
const exitUnreachable = 75

// ranItself reports whether the platform says of a task that its program ran, and ended for reasons of its own.
func ranItself(t *runpb.Task, last *runpb.TaskAttemptResult) bool {
	switch code := last.GetExitCode(); {
	case code != 0:
		return code != exitUnreachable
	case last.GetTermSignal() != 0:
		return false
	}
	return t != nil && completion(t.GetConditions()).GetState() == runpb.Condition_CONDITION_SUCCEEDED
}
