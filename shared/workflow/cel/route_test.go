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
)

func desk(def string) *fleet.Workflow {
	return &fleet.Workflow{Stages: []fleet.Stage{
		{Name: "pick", Route: &fleet.Route{By: &fleet.RouteBy{Agent: "router"}, Cases: map[string]string{"billing": "bill", "Support": "help"}, Default: def, MaxVisits: 5}},
		{Name: "bill", Agent: "clerk", Branch: true, Next: "pick", When: "input == 'again'"},
		{Name: "help", Agent: "helper", Branch: true},
		{Name: "close", Agent: "closer"},
	}}
}

func TestF45RoutesLeadToOneBranchOrEndTheRun(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	tests := map[string]struct {
		answer, def, input string
		want               string
		way                string
	}{
		"with blanks around it":     {answer: `" Billing"`, want: `"closed"`, way: "pick#1 bill#1 close#1"},
		"in another case":           {answer: `"SUPPORT\n"`, want: `"closed"`, way: "pick#1 help#1 close#1"},
		"in a field":                {answer: `{"next":"billing","why":"money"}`, want: `"closed"`, way: "pick#1 bill#1 close#1"},
		"that fits no case":         {answer: `"refund"`, want: `RouteUnmatched stage pick: the answer "refund" fits no case, and there is no default`, way: "pick#1"},
		"that fits no case, but":    {answer: `"refund"`, def: "help", want: `"closed"`, way: "pick#1 help#1 close#1"},
		"that is empty":             {answer: `""`, want: `RouteUnmatched stage pick: the answer "" fits no case, and there is no default`, way: "pick#1"},
		"of two labels":             {answer: `"billing, support"`, want: `RouteUnmatched stage pick: the answer "billing, support" fits no case, and there is no default`, way: "pick#1"},
		"that is a list of both":    {answer: `["billing","support"]`, want: `RouteUnmatched stage pick: the answer "[\"billing\",\"support\"]" fits no case, and there is no default`, way: "pick#1"},
		"that is nothing":           {answer: `null`, want: `RouteUnmatched stage pick: the answer "" fits no case, and there is no default`, way: "pick#1"},
		"of ten thousand letters":   {answer: `"` + long + `"`, want: `RouteUnmatched stage pick: the answer "` + long[:197] + `…" fits no case, and there is no default`, way: "pick#1"},
		"that leads back for ever":  {answer: `"billing"`, input: `"again"`, want: "LoopLimit stage pick was to be entered once more after 5 visits, which are its maxVisits", way: "pick#1 bill#1 pick#2 bill#2 pick#3 bill#3 pick#4 bill#4 pick#5 bill#5 pick#6"},
		"that is a branch, no case": {answer: `"bill"`, want: `RouteUnmatched stage pick: the answer "bill" fits no case, and there is no default`, way: "pick#1"},
	}
	for name, tt := range tests {
		t.Run("an answer "+name, func(t *testing.T) {
			p := planOf(t, desk(tt.def))
			if tt.input == "" {
				tt.input = `"once"`
			}
			w := &world{agents: map[string]func(string) string{
				"router": always(tt.answer), "clerk": always(`"billed"`), "helper": always(`"helped"`), "closer": always(`"closed"`),
			}}
			progress := workflow.Progress{Input: json.RawMessage(tt.input), Outcomes: map[string]*workflow.Outcome{}}
			end := w.play(t, p, progress)
			got := string(end.Output)
			if end.Do == workflow.DoFail {
				got = string(end.Reason) + " " + end.Message
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("the end (-want +got):\n%s", diff)
			}
			var way []string
			for _, v := range p.Visits(progress) {
				way = append(way, v.Name)
			}
			if diff := cmp.Diff(tt.way, strings.Join(way, " ")); diff != "" {
				t.Errorf("the way (-want +got):\n%s", diff)
			}
			// The choice and the answer are on record, and a replay goes the same way without asking anybody.
			o := progress.Outcomes["pick#1"]
			if o == nil || o.State == workflow.Succeeded && o.Choice == "" || len(o.Answer) > 200 {
				t.Errorf("on record is %+v", o)
			}
			if again := p.Next(progress); again.Do != end.Do || again.Message != end.Message {
				t.Errorf("a replay ends with %v, not %v", again, end)
			}
		})
	}
}

func TestRoutesByExpressionAndByName(t *testing.T) {
	stages := func(r fleet.Route) []fleet.Stage {
		return []fleet.Stage{{Name: "pick", Route: &r}, {Name: "yes", Agent: "yes", Branch: true}, {Name: "no", Agent: "no", Branch: true}}
	}
	agents := map[string]func(string) string{"yes": always(`"y"`), "no": always(`"n"`), "who": always(`{"next":"NO "}`)}
	for name, tt := range map[string]struct {
		route       fleet.Route
		input, want string
	}{
		"true and false":         {fleet.Route{On: "input > 1", Cases: map[string]string{"true": "yes", "false": "no"}}, "2", `"y"`},
		"a number":               {fleet.Route{On: "input", Cases: map[string]string{"1": "yes", "2": "no"}}, "2", `"n"`},
		"nothing, by default":    {fleet.Route{On: "input", Cases: map[string]string{"1": "yes"}, Default: "no"}, "null", `"n"`},
		"an agent that names it": {fleet.Route{By: &fleet.RouteBy{Agent: "who"}}, "0", `"n"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{agents: agents}
			end := w.play(t, planOf(t, &fleet.Workflow{Stages: stages(tt.route)}), workflow.Progress{Input: json.RawMessage(tt.input)})
			if string(end.Output) != tt.want {
				t.Errorf("the end is %+v, want %s", end, tt.want)
			}
		})
	}
}

func TestUndoGoesBackwards(t *testing.T) {
	p := planOf(t, &fleet.Workflow{Stages: []fleet.Stage{
		{Name: "a", Agent: "plus", Compensate: "minus"},
		{Name: "b", Agent: "plus", Compensate: "minus", When: "false"},
		{Name: "c", Agent: "plus", Compensate: "less", Next: "a", MaxVisits: 2, When: "input == 1"},
		{Name: "d", Agent: "plus"},
		{Name: "e", Agent: "plus", Compensate: "minus"},
	}})
	n := 0
	w := &world{agents: map[string]func(string) string{"plus": func(string) string {
		if n++; n == 5 {
			return "!AgentError"
		}
		return fmt.Sprint(n)
	}}}
	progress := workflow.Progress{Input: json.RawMessage("1"), Outcomes: map[string]*workflow.Outcome{}}
	if end := w.play(t, p, progress); end.Do != workflow.DoFail || end.Reason != run.AgentError {
		t.Fatalf("it ends with %+v", end)
	}
	var got []string
	for _, u := range p.Undo(progress) {
		got = append(got, fmt.Sprintf("%s by %s: %s", u.Step, u.Agent, u.Input))
	}
	want := []string{
		`c#2 by less: {"input":3,"output":4}`, `a#2 by minus: {"input":2,"output":3}`,
		`c#1 by less: {"input":1,"output":2}`, `a#1 by minus: {"input":1,"output":1}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAStageCanBeGivenSomethingElse(t *testing.T) {
	p := planOf(t, &fleet.Workflow{Stages: []fleet.Stage{
		agentStage("a", "plus", ""),
		{Name: "b", Parallel: &fleet.Parallel{ForEach: "[stages.a.output]", Agent: "echo"}},
		{Name: "pick", Route: &fleet.Route{On: "'left'", Cases: map[string]string{"left": "l", "right": "r"}}},
		{Name: "l", Agent: "echo", Branch: true}, {Name: "r", Agent: "echo", Branch: true},
		{Name: "g", Gate: &fleet.Gate{Title: "{{.x}}"}},
	}, Output: "[stages.a.output, stages.b.output, stages.pick.choice]"})
	given := func(raw string) *workflow.Outcome {
		return &workflow.Outcome{State: workflow.Succeeded, Output: json.RawMessage(raw)}
	}
	w := &world{agents: map[string]func(string) string{"plus": func(in string) string { return "[" + in + "]" }, "echo": func(in string) string { return in }}}
	end := w.play(t, p, workflow.Progress{Input: json.RawMessage("1"), Outcomes: map[string]*workflow.Outcome{
		"a#1/input": given("5"), "b#1/input": given("[7,8]"), "pick#1/input": given(`" RIGHT"`), "g#1/input": given(`{"x":"this"}`),
	}})
	if want := `[[5],[7,8],"r"]`; string(end.Output) != want {
		t.Errorf("the end is %s %s, want %s", end.Output, end.Message, want)
	}
	if way := strings.Join(w.seen, "; "); !strings.Contains(way, `g#1 ask "this"`) {
		t.Errorf("the way is %s", way)
	}
}
