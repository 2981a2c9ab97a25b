package workflow

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Do is what an Action asks for.
type Do string

// The actions.
const (
	DoCall   Do = "call"   // start children, and settle when they are decided
	DoRecord Do = "record" // write an outcome that needs nobody
	DoAsk    Do = "ask"    // open a gate, whose decision is the outcome
	DoFinish Do = "finish" // end the run with an output
	DoFail   Do = "fail"   // end the run with a reason
)

// Action is what is to be done next. Step is the name under which its outcome is recorded.
type Action struct {
	Do    Do
	Stage string // that it is about; "" for the end
	Visit int
	Step  string

	// Group is the name under which children are started, Calls are they in the order of their items. Need of them must
	// succeed, 0 for all but Tolerate. Max have an attempt at a time, 0 for no bound.
	Group               string
	Calls               []Call
	Max, Tolerate, Need int
	settle              func([]Result) *Outcome

	Outcome *Outcome // to record

	// Gate is what is asked, Title its title with the values of Value, what is decided on.
	Gate  *fleet.Gate
	Title string
	Value json.RawMessage

	Output json.RawMessage // to finish with

	Reason  run.Reason // to fail with
	Message string
}

// Call is one child to start.
type Call struct {
	Branch          string // of a stage with branches
	Agent, Workflow string // one of them
	Input           json.RawMessage
}

// Result is a child as it stands when its group is decided.
type Result struct {
	Run     string
	State   run.State
	Reason  run.Reason
	Code    string
	Message string
	Output  json.RawMessage
}

// Decided reports whether the outcome of a group no longer hangs on who is still at work: ended of its children have
// ended, of which so many succeeded and the others failed.
func (a *Action) Decided(ended, succeeded, failed int) bool {
	return ended >= len(a.Calls) || a.Need > 0 && succeeded >= a.Need || failed > a.Tolerate
}

// Settle is the outcome of a group that is decided, from its children in the order of their items.
func (a *Action) Settle(results []Result) *Outcome {
	if len(results) != len(a.Calls) {
		return failure(run.AgentError, "ChildrenMissing", "stage %s: %d of %d children are there; the others were removed before their stage ended",
			a.Stage, len(results), len(a.Calls))
	}
	failed, stopped, first := 0, 0, -1
	for i := range results {
		if results[i].State == run.Succeeded {
			continue
		}
		failed++
		// One that was stopped because of another's failure says nothing.
		if results[i].State == run.Canceled && results[i].Reason == run.ParentEnded {
			stopped++
		}
		if first < 0 || results[first].State != run.Failed && results[i].State == run.Failed {
			first = i
		}
	}
	ok := len(results) - failed
	if failed > a.Tolerate && (a.Need == 0 || ok < a.Need) {
		o := childFailure(a, &results[first], first)
		if len(results) > 1 {
			o.Message = run.Clip(fmt.Sprintf("stage %s: %d of %d calls failed and %d may%s; %s",
				a.Stage, failed-stopped, len(results), a.Tolerate, andStopped(stopped), o.Message), run.MaxMessage)
			o.Calls, o.Failed = len(results), failed
		}
		return o
	}
	o := a.settle(results)
	if o.State == Succeeded && len(o.Output) > run.MaxPayload {
		return failure(run.ResultTooLarge, "", "stage %s gives %d bytes; the limit is %d", a.Stage, len(o.Output), run.MaxPayload)
	}
	return o
}

func andStopped(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d stopped for that)", n)
}

// kept are reasons that mean the same of a parent.
var kept = map[run.Reason]bool{
	run.BudgetExceeded: true, run.RouteUnmatched: true, run.LoopLimit: true, run.Rejected: true, run.GateExpired: true,
	run.OutcomeUnknown: true, run.PermissionDenied: true, run.CompensationFailed: true,
}

// childFailure is the outcome of a stage whose child failed.
func childFailure(a *Action, r *Result, item int) *Outcome {
	reason := run.AgentError
	if kept[r.Reason] {
		reason = r.Reason
	}
	what := a.Calls[item].Agent
	if what == "" {
		what = a.Calls[item].Workflow
	}
	if b := a.Calls[item].Branch; b != "" {
		what = b + " (" + what + ")"
	}
	said := string(r.Reason)
	if r.Message != "" {
		said += ": " + r.Message
	}
	return &Outcome{
		State: Failed, Reason: reason, Code: r.Code, Run: r.Run,
		Message: run.Clip(fmt.Sprintf("%s: run %s of %s %s, %s", a.Step, r.Run, what, r.State, said), run.MaxMessage),
	}
}

// bearable is how many of n calls may fail.
func bearable(tolerate float64, n int) int {
	if tolerate >= 1 {
		return min(int(tolerate), n)
	}
	return int(math.Floor(tolerate*float64(n) + 1e-9)) // 0.1 of 30 are 3
}
