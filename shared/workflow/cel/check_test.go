package cel_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/workflow"
	"github.com/errand-run/errand/shared/workflow/cel"
)

// shop is what is declared beside the workflow of a test.
type shop struct {
	agents    map[string]*fleet.Agent
	workflows map[string]*fleet.Workflow
}

func (s shop) Agent(name string) *fleet.Agent       { return s.agents[name] }
func (s shop) Workflow(name string) *fleet.Workflow { return s.workflows[name] }

const (
	closedOrder = `{"type":"object","additionalProperties":false,"required":["lines"],"properties":{"lines":{"type":"array","items":{"$ref":"#/$defs/line"}},"note":{"type":["string","null"]}},` +
		`"$defs":{"line":{"type":"object","additionalProperties":false,"properties":{"sku":{"type":"string"}}}}}`
	openOrder = `{"type":"object","properties":{"lines":{"type":"array"}}}`
)

func theShop() shop {
	agent := func(in, out string) *fleet.Agent {
		return &fleet.Agent{Input: fleet.Schema(in), Output: fleet.Schema(out)}
	}
	branch := `{"type":"object","properties":{"findings":{"type":"array"},"summary":{"type":"string"},"total":{"type":"number"}}}`
	return shop{
		agents: map[string]*fleet.Agent{
			"extract": agent("", closedOrder), "open": agent("", openOrder), "text": agent(`{"type":"string"}`, `{"type":"string"}`),
			"total": agent(`{"type":"object","required":["sum"]}`, ""), "any": agent("", ""),
			"x": agent("", branch), "y": agent("", branch), "z": agent("", branch),
		},
		workflows: map[string]*fleet.Workflow{
			"leaf": {Meta: fleet.Meta{Name: "leaf"}, Stages: []fleet.Stage{{Name: "s", Agent: "any"}}},
			"back": {Meta: fleet.Meta{Name: "back"}, Stages: []fleet.Stage{{Name: "s", Parallel: &fleet.Parallel{Branches: []fleet.FlowCall{{Workflow: "w"}}}}}},
		},
	}
}

func TestProblemsAmongWhatIsDeclared(t *testing.T) {
	first := func(agent string, rest ...fleet.Stage) []fleet.Stage {
		return append([]fleet.Stage{{Name: "a", Agent: agent}}, rest...)
	}
	one := func(source string) []fleet.Stage { return first("extract", agentStage("b", "any", source)) }
	fan := func(merge fleet.Merge) []fleet.Stage {
		return []fleet.Stage{{Name: "s", Parallel: &fleet.Parallel{Merge: merge, Branches: []fleet.FlowCall{{Name: "p", Agent: "x"}, {Name: "q", Agent: "y"}, {Name: "r", Agent: "z"}}}}}
	}
	tests := map[string]struct {
		stages []fleet.Stage
		change func(*fleet.Workflow)
		want   []string // "path: part of the message", all of them
	}{
		"a good one":                          {stages: one("stages.a.output.lines")},
		"an agent that is not there":          {stages: first("nobody"), want: []string{"spec.stages[0].agent: there is no agent `nobody`"}},
		"a workflow that is not there":        {stages: []fleet.Stage{{Name: "a", Workflow: "none"}}, want: []string{"spec.stages[0].workflow: there is no workflow `none`"}},
		"a workflow of workflows":             {stages: []fleet.Stage{{Name: "a", Workflow: "leaf"}}},
		"a workflow that calls itself":        {stages: []fleet.Stage{{Name: "a", Workflow: "w"}}, want: []string{"spec.stages[0].workflow: workflow `w` would call itself: w → w"}},
		"a workflow that calls itself below":  {stages: []fleet.Stage{{Name: "a", Workflow: "back"}}, want: []string{"spec.stages[0].workflow: workflow `w` would call itself: w → back → w"}},
		"an agent that it may not call":       {stages: first("any"), change: func(w *fleet.Workflow) { w.Permissions.Call = []string{"extract"} }, want: []string{"spec.stages[0].agent: agent `any` is not in spec.permissions.call"}},
		"a compensation that is not there":    {stages: []fleet.Stage{{Name: "a", Agent: "any", Compensate: "gone"}}, want: []string{"spec.stages[0].compensate: there is no agent `gone`"}},
		"a critic and a router that are none": {stages: []fleet.Stage{{Name: "a", Loop: &fleet.Loop{Agent: "any", Critic: "gone", Until: "true", Max: 1}}, {Name: "b", Route: &fleet.Route{By: &fleet.RouteBy{Agent: "gone"}}}, {Name: "c", Agent: "any", Branch: true}}, want: []string{"spec.stages[0].loop.critic: there is no agent `gone`", "spec.stages[1].route.by.agent: there is no agent `gone`"}},

		"a part that the schema rules out":       {stages: one("stages.a.output.line"), want: []string{"spec.stages[1].input: 1:1: stages.a.output has no line by its schema; it has lines, note"}},
		"a part of a part, by a reference":       {stages: one("stages.a.output.lines[0].price"), want: []string{"spec.stages[1].input: 1:1: stages.a.output.lines.0 has no price by its schema; it has sku"}},
		"a field of a list":                      {stages: one("stages.a.output.lines.sku"), want: []string{"spec.stages[1].input: 1:1: stages.a.output.lines is array by its schema, so it has no sku"}},
		"a part that is only asked for":          {stages: one("has(stages.a.output.total) ? 1 : 2")},
		"a part of an open mapping":              {stages: first("open", agentStage("b", "any", "stages.a.output.total"))},
		"a part of the input":                    {stages: first("any", agentStage("b", "any", "input.total")), change: func(w *fleet.Workflow) { w.Input = fleet.Schema(closedOrder) }, want: []string{"spec.stages[1].input: 1:1: input has no total by its schema"}},
		"a part of an item":                      {stages: first("extract", fleet.Stage{Name: "b", Parallel: &fleet.Parallel{ForEach: "stages.a.output.lines", Agent: "any", Input: "item.price"}}), want: []string{"spec.stages[1].parallel.input: 1:1: item has no price by its schema"}},
		"a branch that is none of a fan-out":     {stages: append(fan(fleet.Merge{}), agentStage("b", "any", "stages.s.output.t")), want: []string{"spec.stages[1].input: 1:1: stages.s.output has no t by its schema; it has p, q, r"}},
		"a part of the output of the workflow":   {stages: first("extract"), change: func(w *fleet.Workflow) { w.Output = "stages.a.output.x" }, want: []string{"spec.output: 1:1: stages.a.output has no x"}},
		"a value of a wrong type":                {stages: first("extract", agentStage("b", "text", "stages.a.output.lines")), want: []string{"spec.stages[1].input: the value is an array, and `text` takes string"}},
		"a value of a wrong type by its writing": {stages: first("text", agentStage("b", "text", "{'a': 1}")), want: []string{"spec.stages[1].input: the value is an object, and `text` takes string"}},
		"a value without what is needed":         {stages: first("extract", agentStage("b", "total", "stages.a.output")), want: []string{"spec.stages[1].input: `total` needs `sum` in its input"}},
		"items of a wrong type":                  {stages: first("extract", fleet.Stage{Name: "b", Parallel: &fleet.Parallel{ForEach: "stages.a.output.lines", Agent: "text"}}), want: []string{"spec.stages[1].parallel.forEach: the value is an object, and `text` takes string"}},

		"F44: fields of many branches, by rules": {stages: fan(fleet.Merge{Fields: map[string]fleet.FieldRule{"findings": "append", "total": "sum", "summary": "byBranch"}})},
		"F44: a field of many branches without a rule": {
			stages: fan(fleet.Merge{Fields: map[string]fleet.FieldRule{"findings": "append", "total": "sum"}}),
			want:   []string{"spec.stages[0].parallel.merge.fields: branches p, q, r all give `summary`, and no rule says what becomes of it; add summary:"},
		},
		"F44: a sum of texts": {
			stages: fan(fleet.Merge{Fields: map[string]fleet.FieldRule{"findings": "append", "total": "sum", "summary": "max"}}),
			want:   []string{"spec.stages[0].parallel.merge.fields.summary: rule max is of numbers, and branch `p` gives string", "spec.stages[0].parallel.merge.fields.summary:", "spec.stages[0].parallel.merge.fields.summary:"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := &fleet.Workflow{Stages: tt.stages}
			if tt.change != nil {
				tt.change(w)
			}
			expect(t, planOf(t, w).Check(theShop()), tt.want)
		})
	}
}

func expect(t *testing.T, problems []fleet.Problem, want []string) {
	t.Helper()
	good := len(problems) == len(want)
	for i := 0; good && i < len(want); i++ {
		good = strings.HasPrefix(problems[i].String(), want[i])
	}
	if !good {
		t.Errorf("the problems are\n%v\nwant\n%v", problems, want)
	}
}

func TestProblemsOfExpressions(t *testing.T) {
	tests := map[string]struct {
		stages []fleet.Stage
		output string
		want   []string
	}{
		"a variable that there is not":    {[]fleet.Stage{agentStage("a", "x", "inptu.a")}, "", []string{"spec.stages[0].input: not an expression over input, stages, run: 1:1: undeclared reference to 'inptu'"}},
		"an item outside of a list":       {[]fleet.Stage{agentStage("a", "x", "item")}, "", []string{"spec.stages[0].input: not an expression over input, stages, run: 1:1: undeclared reference to 'item'"}},
		"a stage that there is not":       {[]fleet.Stage{agentStage("a", "x", "input"), agentStage("b", "x", "stages.c.output")}, "", []string{"spec.stages[1].input: 1:1: there is no stage `c`"}},
		"a stage that comes later":        {[]fleet.Stage{agentStage("a", "x", "stages.b.output"), agentStage("b", "x", "")}, "", []string{"spec.stages[0].input: 1:1: stage `b` cannot have run by then"}},
		"the stage itself":                {[]fleet.Stage{agentStage("a", "x", "stages.a.output")}, "", []string{"spec.stages[0].input: 1:1: stage `a` cannot have run by then"}},
		"a stage of a branch not taken":   {[]fleet.Stage{{Name: "p", Route: &fleet.Route{On: "input", Cases: map[string]string{"1": "l", "2": "r"}}}, {Name: "l", Agent: "x", Branch: true}, {Name: "r", Agent: "x", Branch: true, Input: "stages.l.output"}}, "", []string{"spec.stages[2].input: 1:1: stage `l` cannot have run by then"}},
		"a part that stages do not have":  {[]fleet.Stage{agentStage("a", "x", "")}, "stages.a.result", []string{"spec.output: 1:1: stage `a` has no result; it has output, state or visits"}},
		"a condition that is a text":      {[]fleet.Stage{{Name: "a", Agent: "x", When: "'yes'"}}, "", []string{"spec.stages[0].when: the value is a string; want boolean"}},
		"a list that is a mapping":        {[]fleet.Stage{{Name: "a", Parallel: &fleet.Parallel{ForEach: "{'a': 1}", Agent: "x"}}}, "", []string{"spec.stages[0].parallel.forEach: the value is an object; want array"}},
		"an answer that is a list":        {[]fleet.Stage{{Name: "a", Route: &fleet.Route{On: "[1]", Cases: map[string]string{"1": "b"}}}, {Name: "b", Agent: "x", Branch: true}}, "", []string{"spec.stages[0].route.on: the value is an array; want string, number, boolean or null"}},
		"a score that is a text":          {[]fleet.Stage{{Name: "a", Loop: &fleet.Loop{Agent: "x", Until: "true", Max: 1, OnLimit: "best", Score: "'high'"}}}, "", []string{"spec.stages[0].loop.score: the value is a string; want number"}},
		"what adds a text to a number":    {[]fleet.Stage{agentStage("a", "x", "1 + 'a'")}, "", []string{"spec.stages[0].input: not an expression over input, stages, run: 1:3: found no matching overload"}},
		"every expression of every stage": {[]fleet.Stage{{Name: "a", When: "(", Input: "(", Loop: &fleet.Loop{Agent: "x", Critic: "y", Until: "(", CriticInput: "(", Max: 1, OnLimit: "gate", Gate: &fleet.Gate{Title: "t", Action: "("}}}}, "(", []string{"spec.stages[0].when", "spec.stages[0].input", "spec.stages[0].loop.until", "spec.stages[0].loop.criticInput", "spec.stages[0].loop.gate.action", "spec.output"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := &fleet.Workflow{Meta: fleet.Meta{Name: "w"}, Stages: tt.stages, Output: tt.output}
			w.SetDefaults()
			if problems := w.Validate(); len(problems) > 0 {
				t.Fatal(problems)
			}
			_, problems := cel.Compile(w)
			expect(t, problems, tt.want)
		})
	}
}

func TestWorkflowsInWorkflowsHaveAnEnd(t *testing.T) {
	s := theShop()
	for i := range 40 {
		s.workflows[fmt.Sprint("n", i)] = &fleet.Workflow{Meta: fleet.Meta{Name: fmt.Sprint("n", i)}, Stages: []fleet.Stage{{Name: "s", Workflow: fmt.Sprint("n", i+1)}}}
	}
	expect(t, planOf(t, &fleet.Workflow{Stages: []fleet.Stage{{Name: "a", Workflow: "n0"}}}).Check(s), []string{"spec.stages[0].workflow: workflows within workflows are 42 levels deep here; the limit is 16"})
}

var _ workflow.Declared = shop{}
