package cel_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/workflow"
	"github.com/errand-run/errand/shared/workflow/cel"
)

// planOf compiles stages, which must be good.
func planOf(t tb, w *fleet.Workflow) *workflow.Plan {
	t.Helper()
	w.Meta.Name = "w"
	w.SetDefaults()
	if problems := w.Validate(); len(problems) > 0 {
		t.Fatal(problems)
	}
	p, problems := cel.Compile(w)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return p
}

// world answers calls and gates of a run, and plays it to its end.
type world struct {
	// agents answer by name: an output as JSON, or "!REASON message" for a failure.
	agents map[string]func(input string) string
	gates  map[string]string // decisions by step
	order  func(n int) []int // in which children end; as they stand when nil
	seen   []string          // what was done, in order
	once   map[string]bool
}

func always(output string) func(string) string { return func(string) string { return output } }

// play asks and does until the run ends, and gives its end.
func (w *world) play(t tb, p *workflow.Plan, progress workflow.Progress) workflow.Action {
	t.Helper()
	if progress.Outcomes == nil {
		progress.Outcomes = make(map[string]*workflow.Outcome)
	}
	w.once = make(map[string]bool)
	for range 2 * workflow.MaxOutcomes {
		a := p.Next(progress)
		if again := p.Next(progress); again.Do != a.Do || again.Step != a.Step || again.Message != a.Message || !cmp.Equal(again.Calls, a.Calls) {
			t.Fatalf("asked twice with the same it says %v, then %v", a, again)
		}
		if a.Do == workflow.DoFinish || a.Do == workflow.DoFail {
			w.seen = append(w.seen, string(a.Do))
			return a
		}
		if w.once[a.Step] {
			t.Fatalf("%s is asked for although it has ended", a.Step)
		}
		w.once[a.Step] = true
		progress.Outcomes[a.Step] = w.do(t, a)
	}
	t.Fatal("it does not end")
	return workflow.Action{}
}

func (w *world) do(t tb, a workflow.Action) *workflow.Outcome {
	t.Helper()
	switch a.Do {
	case workflow.DoRecord:
		w.seen = append(w.seen, fmt.Sprintf("%s %s", a.Step, a.Outcome.State))
		return reread(t, a.Outcome)
	case workflow.DoAsk:
		decision := w.gates[a.Step]
		if decision == "" {
			decision = workflow.Approved
		}
		w.seen = append(w.seen, fmt.Sprintf("%s ask %q", a.Step, a.Title))
		raw, _ := json.Marshal(map[string]any{"decision": decision, "by": []string{"user:ann"}, "comment": "well"})
		o, err := workflow.ReadOutcome(raw)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	results := make([]workflow.Result, len(a.Calls))
	ended, ok, failed := 0, 0, 0
	for i := range results {
		results[i] = workflow.Result{Run: fmt.Sprintf("r%d", i), State: run.Canceled, Reason: run.ParentEnded}
	}
	order := make([]int, len(a.Calls))
	for i := range order {
		order[i] = i
	}
	if w.order != nil {
		order = w.order(len(order))
	}
	var called []string
	for _, i := range order {
		if a.Decided(ended, ok, failed) {
			break
		}
		c := a.Calls[i]
		answer := w.agents[c.Agent+c.Workflow]
		if answer == nil {
			t.Fatalf("nobody is %s", c.Agent)
		}
		called = append(called, fmt.Sprintf("%s%s(%s)", c.Agent, c.Workflow, c.Input))
		said := answer(string(c.Input))
		ended++
		if reason, isBad := strings.CutPrefix(said, "!"); isBad {
			failed++
			results[i].State, results[i].Reason, results[i].Message = run.Failed, run.Reason(reason), "no"
			continue
		}
		ok++
		results[i] = workflow.Result{Run: results[i].Run, State: run.Succeeded, Output: json.RawMessage(said)}
	}
	if !a.Decided(ended, ok, failed) {
		t.Fatalf("%s is not decided when all have ended", a.Step)
	}
	w.seen = append(w.seen, a.Step+" "+strings.Join(called, " "))
	return reread(t, a.Settle(results))
}

// reread is an outcome as it comes back from where it is kept.
func reread(t tb, o *workflow.Outcome) *workflow.Outcome {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	back, err := workflow.ReadOutcome(raw)
	if err != nil {
		t.Fatal(err)
	}
	return back
}

func agentStage(name, agent, input string) fleet.Stage {
	return fleet.Stage{Name: name, Agent: agent, Input: input}
}

func TestRunsOfWorkflows(t *testing.T) {
	echo := func(input string) string { return input }
	plus := func(input string) string {
		var n int
		_ = json.Unmarshal([]byte(input), &n)
		return fmt.Sprint(n + 1)
	}
	agents := map[string]func(string) string{
		"echo": echo, "plus": plus, "bad": always("!AgentError"), "poor": always("!BudgetExceeded"), "one": always("1"), "two": always("2"), "child": always(`"sub"`),
		"a": always(`{"findings":[1],"summary":"a","total":0.1}`), "b": always(`{"findings":[2,3],"summary":"b","total":0.2}`),
		"c": always(`{"findings":4,"total":7}`),
	}
	merge := func(m fleet.Merge, agents ...string) []fleet.Stage {
		p := &fleet.Parallel{Merge: m}
		for i, a := range agents {
			p.Branches = append(p.Branches, fleet.FlowCall{Name: fmt.Sprintf("b%d", i), Agent: a})
		}
		return []fleet.Stage{{Name: "s", Parallel: p}}
	}
	each := func(p fleet.Parallel) []fleet.Stage {
		p.ForEach = "input"
		return []fleet.Stage{{Name: "s", Parallel: &p}}
	}
	growing := func(max int, l fleet.Loop) []fleet.Stage {
		l.Agent, l.Max = "plus", max
		if l.Until == "" {
			l.Until = "last.output >= 3"
		}
		return []fleet.Stage{{Name: "s", Loop: &l, Input: "has(last.output) ? last.output : input"}}
	}
	tests := map[string]struct {
		stages []fleet.Stage
		output string
		input  string
		gates  map[string]string
		want   string // the end: an output, or REASON message
		way    string // what was done; "" for any
	}{
		"stages hand on what they made": {
			stages: []fleet.Stage{agentStage("a", "plus", ""), agentStage("b", "plus", ""), agentStage("c", "plus", "stages.a.output")},
			input:  "1", want: "3", way: "a#1 plus(1); b#1 plus(2); c#1 plus(2); finish",
		},
		"the output is what the workflow says": {
			stages: []fleet.Stage{agentStage("a", "plus", "")}, output: `{"in": input, "out": stages.a.output, "who": run.tenant}`,
			input: "1", want: `{"in":1,"out":2,"who":"acme"}`,
		},
		"a stage whose condition does not hold is skipped": {
			stages: []fleet.Stage{agentStage("a", "plus", ""), {Name: "b", Agent: "plus", When: "stages.a.output > 5"}}, output: "stages.b.state",
			input: "1", want: `"skipped"`, way: "a#1 plus(1); b#1 skipped; finish",
		},
		"a workflow within a workflow": {
			stages: []fleet.Stage{{Name: "s", Workflow: "child"}}, input: "1", want: `"sub"`, way: "s#1 child(1); finish",
		},
		"a stage that fails ends the run": {
			stages: []fleet.Stage{agentStage("a", "bad", ""), agentStage("b", "plus", "")}, input: "1",
			want: "AgentError a#1: run r0 of bad failed, AgentError: no",
		},
		"a budget that is used up below is used up above": {
			stages: []fleet.Stage{agentStage("a", "poor", "")}, input: "1", want: "BudgetExceeded a#1: run r0 of poor failed, BudgetExceeded: no",
		},
		"an expression without a value ends the run and says where": {
			stages: []fleet.Stage{agentStage("a", "plus", "input.n")}, input: "{}", want: "NonRetryable spec.stages[0].input: evaluate: no such key: n",
		},
		"a condition that is neither true nor false ends the run": {
			stages: []fleet.Stage{{Name: "a", Agent: "plus", When: "input"}}, input: "1", want: "NonRetryable spec.stages[0].when: the value is neither true nor false",
		},

		"a list is gone through in its order": {
			stages: each(fleet.Parallel{Agent: "plus"}), input: "[3,1,2]", want: "[4,2,3]", way: "s#1 plus(3) plus(1) plus(2); finish",
		},
		"an item is given what the input says": {
			stages: each(fleet.Parallel{Agent: "echo", Input: `{"i": index, "x": item, "n": size(input)}`}), input: `["a"]`, want: `[{"i":0,"n":1,"x":"a"}]`,
		},
		"an empty list is an empty list": {stages: each(fleet.Parallel{Agent: "plus"}), input: "[]", want: "[]", way: "s#1 succeeded; finish"},
		"what is no list ends the run": {
			stages: each(fleet.Parallel{Agent: "plus"}), input: `{"a":1}`, want: "NonRetryable spec.stages[0].parallel.forEach: the value is no list",
		},
		"a failed item fails the stage": {
			stages: each(fleet.Parallel{Agent: "bad"}), input: "[1,2]", way: "s#1 bad(1); fail",
			want: "AgentError stage s: 1 of 2 calls failed and 0 may (1 stopped for that); s#1: run r0 of bad failed, AgentError: no",
		},
		"branches by their names": {stages: merge(fleet.Merge{}, "one", "two"), input: "0", want: `{"b0":1,"b1":2}`},
		"as many failures as may be are null": {
			stages: []fleet.Stage{{Name: "s", Parallel: &fleet.Parallel{Tolerate: 1, Branches: []fleet.FlowCall{{Name: "x", Agent: "bad"}, {Name: "y", Agent: "one"}}}}},
			output: "[stages.s.output, stages.s.failed, stages.s.calls]", input: "0", want: `[{"x":null,"y":1},1,2]`,
		},
		"a share of failures": {
			stages: []fleet.Stage{{Name: "s", Parallel: &fleet.Parallel{Tolerate: 0.5, Branches: []fleet.FlowCall{{Name: "x", Agent: "bad"}, {Name: "y", Agent: "one"}}}}},
			input:  "0", want: `{"x":null,"y":1}`,
		},
		"a branch that does not apply is not called": {
			stages: []fleet.Stage{{Name: "s", Parallel: &fleet.Parallel{Branches: []fleet.FlowCall{{Name: "x", Agent: "bad", When: "input > 0"}, {Name: "y", Agent: "one"}}}}},
			input:  "0", want: `{"y":1}`, way: "s#1 one(0); finish",
		},
		"the first success": {stages: merge(fleet.Merge{Rule: "first"}, "bad", "one", "two"), input: "0", want: "1", way: "s#1 bad(0) one(0); finish"},
		"no success at all": {
			stages: merge(fleet.Merge{Rule: "first"}, "bad", "bad"), input: "0",
			want: "AgentError stage s: 2 of 2 calls failed and 1 may; s#1: run r0 of b0 (bad) failed, AgentError: no",
		},
		"most votes":                        {stages: merge(fleet.Merge{Rule: "vote"}, "two", "one", "one"), input: "0", want: "1"},
		"as many votes: the first in order": {stages: merge(fleet.Merge{Rule: "vote"}, "two", "one"), input: "0", want: "2"},
		"votes by a part":                   {stages: merge(fleet.Merge{Rule: "vote", On: "size(last.findings)"}, "b", "a", "a"), input: "0", want: `{"findings":[1],"summary":"a","total":0.1}`},
		"a quorum of successes":             {stages: merge(fleet.Merge{Quorum: 2}, "bad", "one", "two", "two"), input: "0", want: "[1,2]", way: "s#1 bad(0) one(0) two(0); finish"},
		"a quorum that agrees":              {stages: merge(fleet.Merge{Quorum: 2, On: "last"}, "two", "one", "one"), input: "0", want: "1"},
		"a quorum that does not agree":      {stages: merge(fleet.Merge{Quorum: 2, On: "last"}, "two", "one"), input: "0", want: "NonRetryable stage s: 1 of 2 agree at most, and 2 must"},
		"an agent that merges": {
			stages: merge(fleet.Merge{Agent: "echo"}, "one", "two"), input: "0", want: `{"b0":1,"b1":2}`,
			way: `s#1/items one(0) two(0); s#1 echo({"b0":1,"b1":2}); finish`,
		},
		"F44: fields are merged by their rules, tenths exactly": {
			stages: merge(fleet.Merge{Fields: map[string]fleet.FieldRule{"findings": "append", "total": "sum", "summary": "byBranch"}}, "a", "b", "c"),
			input:  "0", want: `{"findings":[1,2,3,4],"summary":{"b0":"a","b1":"b"},"total":7.3}`,
		},
		"fields by first, greatest and least": {
			stages: merge(fleet.Merge{Fields: map[string]fleet.FieldRule{"findings": "first", "total": "max", "summary": "first"}}, "b", "a"),
			input:  "0", want: `{"findings":[2,3],"summary":"b","total":0.2}`,
		},
		"F44: a field without a rule is told with who gives it": {
			stages: merge(fleet.Merge{Fields: map[string]fleet.FieldRule{"findings": "append", "total": "min"}}, "a", "b"), input: "0",
			want: "NonRetryable stage s: branches b0, b1 all give `summary`, and no rule says what becomes of it; add it to merge.fields",
		},

		"a loop ends when it is done":      {stages: growing(9, fleet.Loop{}), input: "0", want: "3", way: "s#1/1 plus(0); s#1/2 plus(1); s#1/3 plus(2); s#1 succeeded; finish"},
		"a loop that does not end":         {stages: growing(2, fleet.Loop{}), input: "0", want: "LoopLimit stage s: not done after 2 rounds, the most that it may have"},
		"the best of a loop":               {stages: growing(2, fleet.Loop{OnLimit: "best", Score: "-last.output"}), input: "0", want: "1"},
		"a loop without a score":           {stages: growing(2, fleet.Loop{OnLimit: "best"}), input: "0", want: "NonRetryable spec.stages[0].loop.score: round 1: evaluate: no such key: score"},
		"a person lets a loop go on":       {stages: growing(2, fleet.Loop{OnLimit: "gate"}), input: "0", want: "2", way: `s#1/1 plus(0); s#1/2 plus(1); s#1/gate ask "Stage s is not done after 2 rounds. Go on with what it has?"; s#1 succeeded; finish`},
		"a person does not let a loop on":  {stages: growing(2, fleet.Loop{OnLimit: "gate"}), input: "0", gates: map[string]string{"s#1/gate": "rejected"}, want: "Rejected s#1/gate: rejected by user:ann: well"},
		"a critic is given what was made":  {stages: growing(9, fleet.Loop{Critic: "echo", Until: "last.critique == 2"}), input: "0", want: "2", way: "s#1/1 plus(0); s#1/1/critic echo(1); s#1/2 plus(1); s#1/2/critic echo(2); s#1 succeeded; finish"},
		"a critic's words are in last":     {stages: growing(9, fleet.Loop{Critic: "a", Until: "last.summary == 'a' && last.round == 2 && size(messages) == 2"}), input: "0", want: "2"},
		"an agent of a loop that fails":    {stages: []fleet.Stage{{Name: "s", Loop: &fleet.Loop{Agent: "bad", Until: "true", Max: 2}}}, input: "0", want: "AgentError s#1/1: run r0 of bad failed, AgentError: no"},
		"rounds without an input are told": {stages: []fleet.Stage{{Name: "s", Loop: &fleet.Loop{Agent: "echo", Until: "last.round == 2", Max: 2}}}, input: "0", want: `{"critique":null,"input":0,"output":0}`},

		"a gate that is approved hands on what was there before it": {
			stages: []fleet.Stage{agentStage("a", "plus", ""), {Name: "g", Gate: &fleet.Gate{Title: "Pay {{.sum}} to {{.who.name}} ({{.none}})", Action: `{"sum": stages.a.output, "who": {"name": "Ann"}}`}}, agentStage("b", "plus", "")},
			input:  "1", want: "3", way: `a#1 plus(1); g#1 ask "Pay 2 to Ann (?)"; b#1 plus(2); finish`,
		},
		"a gate that is rejected": {
			stages: []fleet.Stage{{Name: "g", Gate: &fleet.Gate{Title: "t"}}}, input: "1", gates: map[string]string{"g#1": "rejected"}, want: "Rejected g#1: rejected by user:ann: well",
		},
		"a gate that nobody answers": {
			stages: []fleet.Stage{{Name: "g", Gate: &fleet.Gate{Title: "t"}}}, input: "1", gates: map[string]string{"g#1": "expired"}, want: "GateExpired g#1: nobody decided in time",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := &world{agents: agents, gates: tt.gates}
			p := planOf(t, &fleet.Workflow{Stages: tt.stages, Output: tt.output})
			end := w.play(t, p, workflow.Progress{Input: json.RawMessage(tt.input), Run: workflow.Run{ID: "id", Tenant: "acme"}})
			got := string(end.Output)
			if end.Do == workflow.DoFail {
				got = string(end.Reason) + " " + end.Message
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("the end (-want +got):\n%s", diff)
			}
			if way := strings.Join(w.seen, "; "); tt.way != "" && way != tt.way {
				t.Errorf("the way is\n%s\nwant\n%s", way, tt.way)
			}
		})
	}
}

// tb is what tests and drawn examples have in common.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}
