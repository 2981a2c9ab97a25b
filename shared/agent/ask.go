package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Question asks people whether something may be done.
type Question struct {
	// Name tells the questions of a run apart where there are several; they are numbered otherwise, in the order in which
	// they are reached.
	Name  string
	Title string // one line, needed
	// Action is what is to be done when they approve, as it is shown to them: any value that encodes as JSON, 64 KiB at
	// most. It is fixed when it is asked: see Ask.
	Action any
	// Approvers may decide, each "user:NAME", "group:NAME" or "role:NAME"; none for everybody with the right to approve.
	Approvers    []string
	Quorum       int           // different people who must approve; 1 when 0. One rejection rejects.
	NotRequester bool          // whoever asked for the run does not decide
	Expires      time.Duration // 7 days when 0
	OnExpiry     string        // "reject" (when empty), "approve" or "escalate"
	Remind       time.Duration // how often those who may decide are reminded; 0 for never
	Escalate     *Escalate
	Context      any    // anything that helps to decide
	Diff         string // what the action changes, as text
}

// Escalate says who may decide as well when nobody did for so long.
type Escalate struct {
	After time.Duration
	To    []string
}

// Decision is the answer to a Question.
type Decision struct {
	Approved   bool
	Expired    bool // nobody decided in time; Approved is what OnExpiry made of that
	By         []string
	Comment    string
	ActionHash string // SHA-256 of the action that was decided about, in its canonical form
	At         time.Time
}

// Ask asks people and reports whether they approved. The attempt ends meanwhile, its slot is free and the time of the run
// stands still, unless its agent counts waiting: Ask returns an error that wraps [ErrParked], which the handler must
// return, and the handler is run again once they have decided. Then, and on every later attempt, Ask returns the
// decision.
//
// Each time, the server holds the question's Action against the one that was decided about, by the hash of its canonical
// form. An attempt that makes another one fails for good, with CodeActionChanged: nothing may be done but what people
// saw. Make the action in a [Step] where it does not come out the same each time.
//
// Ask is also what an [Effect] may name as its OnUnknown.
var Ask asking = func(ctx context.Context, r *Run, q Question) (bool, error) {
	d, err := Decide(ctx, r, q)
	return d.Approved, err
}

type asking func(ctx context.Context, r *Run, q Question) (bool, error)

func (asking) policy() unknown { return askPerson }

// Decide is Ask with all that is known of the decision.
func Decide(ctx context.Context, r *Run, q Question) (Decision, error) {
	// 1. The question.
	name := "ask"
	if q.Name != "" {
		if err := checkName("question", q.Name); err != nil {
			return Decision{}, r.fault(err)
		}
		name += ":" + q.Name
	}
	ask, err := q.wire()
	if err != nil {
		return Decision{}, r.fault(err)
	}
	// 2. The answer, if there is one.
	step := r.next(name)
	recorded, found, err := r.enter(ctx, step)
	if err != nil {
		return Decision{}, err
	}
	if !found {
		return Decision{}, r.park(&api.Park{On: "gate", Step: step, Gate: ask})
	}
	var said api.GateResult
	if err := json.Unmarshal(orNull(recorded.Result), &said); err != nil || said.Decision == "" {
		return Decision{}, r.fault(failf(CodeNonDeterministic, "question %q: the record of %s is not one of a question", q.Title, step))
	}
	// 3. It is about this very action.
	if err := r.sameAction(ctx, step, ask); err != nil {
		return Decision{}, err
	}
	return Decision{
		Approved: said.Decision == "approved", Expired: len(said.By) == 0, By: said.By, Comment: said.Comment,
		ActionHash: said.ActionHash, At: said.At.Time,
	}, nil
}

// sameAction asks the server whether the question is the one that was decided.
func (r *Run) sameAction(ctx context.Context, step string, ask *api.GateAsk) error {
	if r.client == nil {
		return r.fault(failf(CodeUnsupported, "question %q: without the server nobody can tell whether its action is the one that was decided about", ask.Title))
	}
	_, err := r.client.RequestGate(ctx, r.a.Attempt, r.a.Token, api.GateRequest{Step: step, GateAsk: *ask})
	if api.HasCode(err, api.CodeChanged) {
		return r.fault(&Error{Class: ClassUser, Code: CodeActionChanged, Final: true, Err: fmt.Errorf("question %q: %w", ask.Title, err)})
	}
	if err != nil {
		return fmt.Errorf("question %q: hold its action against the one that was decided about: %w", ask.Title, err)
	}
	return nil
}

// wire is the question as the server takes it, which says what is wrong with it.
func (q *Question) wire() (*api.GateAsk, error) {
	out := &api.GateAsk{
		Title: q.Title, Approvers: q.Approvers, Quorum: q.Quorum, NotRequester: q.NotRequester, OnExpiry: q.OnExpiry, Diff: q.Diff,
	}
	var err error
	if out.Action, err = encode(q.Action); err != nil {
		return nil, failf(CodeQuestionInvalid, "question %q: its action: %w", q.Title, err)
	}
	if q.Context != nil {
		if out.Context, err = encode(q.Context); err != nil {
			return nil, failf(CodeQuestionInvalid, "question %q: its context: %w", q.Title, err)
		}
	}
	length := func(d time.Duration) *api.Duration {
		if d == 0 {
			return nil
		}
		return (*api.Duration)(&d)
	}
	out.Expires, out.Remind = length(q.Expires), length(q.Remind)
	if e := q.Escalate; e != nil {
		out.Escalate = &api.GateEscalate{After: length(e.After), To: e.To}
	}
	return out, nil
}
