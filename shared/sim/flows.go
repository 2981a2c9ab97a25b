package sim

import (
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// workflows are those of a world with calls: one of a few, and one that others call.
func (w *world) workflows() []fleet.Object {
	if !w.temper.calls {
		return nil
	}
	n := `{"n": 1}`
	inner := &fleet.Workflow{Meta: fleet.Meta{Name: "inner"}, Retain: secs(40), Stages: []fleet.Stage{
		{Name: "one", Agent: "leaf", Input: n},
		{Name: "two", Parallel: &fleet.Parallel{ForEach: "[1, 2]", Agent: "leaf", Input: `{"n": item}`, Tolerate: 1}},
	}}
	gate := &fleet.Gate{Title: "go on?", Action: `{"of": "flow"}`, Approvers: []string{"role:approver"}, Expires: secs(200), OnExpiry: fleet.ExpiryApprove}
	flow := &fleet.Workflow{Meta: fleet.Meta{Name: "flow"}}
	if w.hurried() {
		inner.Timeouts.Run, flow.Timeouts.Run = secs(120), secs(240)
	}
	switch w.programs >> 8 % 4 {
	case 0: // one after the other, with many and a person between
		flow.Stages = []fleet.Stage{
			{Name: "first", Agent: "leaf", Input: n, Compensate: "plain"},
			{Name: "many", Parallel: &fleet.Parallel{ForEach: "[1, 2, 3, 4]", Agent: "mid", Input: `{"n": item}`, Max: 2, Tolerate: 1}},
			{Name: "ask", Gate: gate},
			{Name: "last", Agent: "leaf", Input: n, Compensate: "plain"},
		}
	case 1: // a choice, and a loop that may come to its limit
		flow.Stages = []fleet.Stage{
			{Name: "first", Agent: "leaf", Input: n},
			{Name: "pick", Route: &fleet.Route{On: `stages.first.output.matches("^[a-m]") ? "left" : "right"`, Cases: map[string]string{"left": "left", "RIGHT": "right"}, MaxVisits: 3}},
			{Name: "left", Agent: "leaf", Branch: true, Input: n, Next: "pick", MaxVisits: 2},
			{Name: "right", Agent: "mid", Branch: true, Input: n},
			{Name: "again", Loop: &fleet.Loop{Agent: "leaf", Critic: "leaf", Until: `last.output.matches("^[a-h]")`, Max: 3, OnLimit: fleet.LimitGate, Gate: gate}, Input: n},
		}
	case 2: // others' workflows, the first of some, and so many of some
		flow.Stages = []fleet.Stage{
			{Name: "sub", Workflow: "inner", Input: n, Compensate: "plain"},
			{Name: "race", Parallel: &fleet.Parallel{ForEach: "[1, 2, 3]", Workflow: "inner", Input: `{"n": item}`, Merge: fleet.Merge{Rule: fleet.MergeFirst}}},
			{Name: "some", Parallel: &fleet.Parallel{ForEach: "[1, 2, 3]", Agent: "keyed", Input: `{"n": 1}`, Merge: fleet.Merge{Quorum: 2}}},
			{Name: "none", Agent: "leaf", When: "false"},
		}
	case 3: // branches that an agent merges, and a person who is asked twice
		flow.Stages = []fleet.Stage{
			{Name: "ask", Gate: gate},
			{Name: "both", Parallel: &fleet.Parallel{Merge: fleet.Merge{Agent: "leaf"}, Branches: []fleet.FlowCall{{Name: "x", Agent: "leaf", Input: n}, {Name: "y", Agent: "boss", Input: `{"n": 3}`}}}},
			{Name: "one", Agent: "leaf", Input: n, Compensate: "plain"},
			{Name: "more", Gate: gate},
		}
	}
	return []fleet.Object{inner, flow}
}

// flows checks workflows of a process that has nothing more to do and whose store has met no fault lately: one that
// runs has children at work.
func (l *ledger) flows() {
	for _, id := range l.order {
		k := l.runs[id]
		if k == nil || k.rec.Kind != run.KindWorkflow || k.rec.State != run.Running {
			continue
		}
		open := 0
		for _, c := range l.family.of[id] {
			if x := l.runs[c]; x != nil && !x.rec.State.Terminal() {
				open++
			}
		}
		if open == 0 {
			l.w.fail("a workflow goes on", "run %s is at stage %s, and no child of it is at work", id, k.rec.Flow)
		}
	}
}
