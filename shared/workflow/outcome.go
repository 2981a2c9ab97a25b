package workflow

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/errand-run/errand/shared/run"
)

// Outcome is the end of a stage, or of a part of one. It is written once.
type Outcome struct {
	// State is Succeeded, Skipped or Failed.
	State State `json:"state"`
	// Output is what it gave: null or nothing when it was skipped or failed.
	Output json.RawMessage `json:"output,omitempty"`
	// Input is what it was called with, kept where that has to be undone.
	Input  json.RawMessage `json:"input,omitempty"`
	Run    string          `json:"run,omitempty"`    // the child, where it was one
	Calls  int             `json:"calls,omitempty"`  // of a fan-out
	Failed int             `json:"failed,omitempty"` // of them
	Rounds int             `json:"rounds,omitempty"` // of a loop
	Best   int             `json:"best,omitempty"`   // of a loop: the round that was taken
	// Answer is a route's, shortened; Choice is the branch that it led to.
	Answer string `json:"answer,omitempty"`
	Choice string `json:"choice,omitempty"`
	// Of a failure.
	Reason  run.Reason `json:"reason,omitempty"`
	Code    string     `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
	// At is when it was recorded.
	At run.Instant `json:"at,omitempty"`
}

// State is how something ended.
type State string

// The states of an outcome.
const (
	Succeeded State = "succeeded"
	Skipped   State = "skipped"
	Failed    State = "failed"
)

// Decision is the outcome of a gate, as it is recorded.
type Decision struct {
	Decision string `json:"decision"`
}

// The decisions of a gate.
const (
	Approved = "approved"
	Rejected = "rejected"
	Expired  = "expired"
)

// ReadOutcome reads what was recorded under a name: an outcome, or the decision of a gate.
func ReadOutcome(raw json.RawMessage) (*Outcome, error) {
	var d Decision
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, fmt.Errorf("read an outcome: %w", err)
	}
	if d.Decision != "" {
		return &Outcome{State: Succeeded, Output: raw, Choice: d.Decision}, nil
	}
	o := new(Outcome)
	if err := json.Unmarshal(raw, o); err != nil {
		return nil, fmt.Errorf("read an outcome: %w", err)
	}
	switch o.State {
	case Succeeded, Skipped, Failed:
		return o, nil
	}
	return nil, fmt.Errorf("read an outcome: its state %q is none", run.Clip(string(o.State), 40))
}

// Name is that of a stage's visit, from 1.
func Name(stage string, visit int) string { return fmt.Sprintf("%s#%d", stage, visit) }

// StageOf is the stage that an outcome, or a group of children, belongs to.
func StageOf(name string) string {
	stage, _, _ := strings.Cut(name, "#")
	return stage
}

func failure(reason run.Reason, code, format string, args ...any) *Outcome {
	return &Outcome{State: Failed, Reason: reason, Code: code, Message: run.Clip(fmt.Sprintf(format, args...), run.MaxMessage)}
}
