package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/workflow"
)

// mortal is a store whose process ends when it has copied so many parts of what a run takes over.
type mortal struct {
	store.Store
	parts int // that are left
	dead  bool
}

func (s *mortal) Commit(ctx context.Context, units []store.Unit) []error {
	for _, u := range units {
		copies := 0
		for _, w := range u.Writes {
			if w.Kind == store.KindStep && w.Expect == store.AnyVersion {
				copies++
			}
		}
		if copies > 1 && copies == len(u.Writes) {
			s.dead = s.dead || s.parts == 0
			s.parts--
		}
	}
	if !s.dead {
		return s.Store.Commit(ctx, units)
	}
	errs := make([]error, len(units))
	for i := range errs {
		errs[i] = errors.New("the process has ended")
	}
	return errs
}

// record writes an outcome to a run as if it had come to it.
func (h *house) record(id, name string, o *workflow.Outcome) {
	h.t.Helper()
	writes, err := outcomeWrites(id, name, 1, o)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range writes {
		writes[i].Expect = store.AnyVersion
	}
	if err := h.store.Commit(h.t.Context(), []store.Unit{{Token: id + name, Writes: writes}})[0]; err != nil {
		h.t.Fatal(err)
	}
}

const manyOutcomes = 3*takeoverPart - 50 // more than a unit of the store holds

// failsAtB is a run of a workflow that failed at its last stage, after so many outcomes.
func (h *house) failsAtB(more int) *run.Record {
	h.t.Helper()
	r := h.submit(Submission{Workflow: "w", Input: json.RawMessage("[1]")})
	h.labor(crew{"plus": plus, "echo": says("!BAD")})
	wantState(h.t, h.get(r.ID), run.Failed, run.AgentError)
	for i := range more {
		h.record(r.ID, fmt.Sprintf("a#1/more%04d", i), &workflow.Outcome{State: workflow.Succeeded, Output: json.RawMessage("0")})
	}
	return r
}

func takesOver(t *testing.T) *house {
	return newHouse(t, agentNamed("plus"), agentNamed("echo"), flowNamed("w",
		fleet.Stage{Name: "a", Parallel: &fleet.Parallel{ForEach: "input", Agent: "plus"}},
		fleet.Stage{Name: "b", Agent: "echo", Input: "size(stages.a.output)"}))
}

func TestARetryTakesOverMoreThanOneWriteHolds(t *testing.T) {
	for name, ends := range map[string]int{
		"at once":                            -1,
		"after an end before the first part": 0,
		"after an end between the parts":     1,
		"after an end before the last part":  2,
	} {
		t.Run(name, func(t *testing.T) {
			h := takesOver(t)
			old := h.failsAtB(manyOutcomes)
			inner := h.store
			if ends >= 0 {
				h.store = &mortal{Store: inner, parts: ends}
				h.open()
			}
			done := h.again(old.ID, RetryRequest{From: "b"})
			if done.Err != nil {
				t.Fatal(done.Err)
			}
			if ends >= 0 {
				if got := h.get(done.Run.ID); !h.store.(*mortal).dead || got.State != run.Queued {
					t.Fatalf("before it has all of them it is %s", got.State)
				}
				h.store = inner
				h.open()
			}
			if diff := cmp.Diff([]string{"echo(1)"}, h.labor(crew{"plus": plus, "echo": says("7")})); diff != "" {
				t.Errorf("what it calls (-want +got):\n%s", diff)
			}
			if got := h.outputOf(done.Run.ID); got != "7" {
				t.Errorf("it gives %s", got)
			}
			outcomes, err := h.p.outcomesOf(t.Context(), done.Run.ID)
			if err != nil || len(outcomes) != manyOutcomes+2 {
				t.Errorf("it has %d outcomes, %v; want those %d, that of a and that of b", len(outcomes), err, manyOutcomes)
			}
		})
	}
}

func TestARetryAfterAFanOutOfTenThousandTakesOverItsOutcome(t *testing.T) {
	h := takesOver(t)
	old := h.failsAtB(0)
	h.record(old.ID, "a#1", &workflow.Outcome{
		State: workflow.Succeeded, Calls: 10_000, Output: json.RawMessage("[" + strings.Repeat(`"item of the first",`, 9_999) + `"last"]`),
	})
	done := h.again(old.ID, RetryRequest{})
	goesOn := func(s Submitted) {
		t.Helper()
		if s.Err != nil {
			t.Fatal(s.Err)
		}
		if diff := cmp.Diff([]string{"echo(10000)"}, h.labor(crew{"plus": plus, "echo": says("7")})); diff != "" || h.outputOf(s.Run.ID) != "7" {
			t.Errorf("what it calls, giving %s (-want +got):\n%s", h.outputOf(s.Run.ID), diff)
		}
	}
	goesOn(done)
	goesOn(h.again(done.Run.ID, RetryRequest{From: "b"}))
}
