package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func goodWorkflow() *Workflow {
	return &Workflow{Meta: Meta{Name: "w"}, Stages: []Stage{
		{Name: "extract", Agent: "a", Compensate: "undo"},
		{Name: "check", Parallel: &Parallel{ForEach: "stages.extract.output.lines", Agent: "a", Max: 8, Tolerate: 0.1}},
		{Name: "both", Parallel: &Parallel{Branches: []FlowCall{{Name: "x", Agent: "a"}, {Name: "y", Workflow: "w2"}}}},
		{Name: "route", Route: &Route{On: "input.kind", Cases: map[string]string{"ok": "file", "bad": "dispute"}, Default: "dispute", MaxVisits: 3}},
		{Name: "polish", Loop: &Loop{Agent: "a", Critic: "c", Until: "last.score >= 0.9", Max: 4}},
		{Name: "approve", Gate: &Gate{Title: "Pay {{.vendor}}", Approvers: []string{"group:finance"}}},
		{Name: "file", Agent: "a", Branch: true},
		{Name: "dispute", Agent: "a", Branch: true, Next: "route"},
	}}
}

func TestWorkflowIsRefused(t *testing.T) {
	stage := func(change func(*Stage)) func(*Workflow) {
		return func(w *Workflow) { change(&w.Stages[0]) }
	}
	parallel := func(change func(*Parallel)) func(*Workflow) {
		return func(w *Workflow) { change(w.Stages[2].Parallel) }
	}
	tests := map[string]struct {
		change func(*Workflow)
		want   string // paths
		says   string
	}{
		"no stages":            {func(w *Workflow) { w.Stages = nil }, "spec.stages", "required"},
		"more stages than 100": {func(w *Workflow) { w.Stages = make([]Stage, MaxStages+1) }, "spec.stages", "at most 100"},
		"a stage without a name": {
			stage(func(s *Stage) { s.Name = "" }), "spec.stages[0].name", "required",
		},
		"two stages of one name": {
			func(w *Workflow) { w.Stages[1].Name = "extract" }, "spec.stages[1].name", "already given at spec.stages[0]",
		},
		"a stage that does nothing":     {stage(func(s *Stage) { s.Agent, s.Compensate = "", "" }), "spec.stages[0]", "needs one of"},
		"a stage that does two things":  {stage(func(s *Stage) { s.Gate = &Gate{Title: "t"} }), "spec.stages[0].gate", "agent and gate exclude"},
		"a stage with too many visits":  {stage(func(s *Stage) { s.MaxVisits = 101 }), "spec.stages[0].maxVisits", "at most 100"},
		"a next that is no stage":       {stage(func(s *Stage) { s.Next = "chek" }), "spec.stages[0].next", "there is no stage `chek`"},
		"a next that leads to a branch": {stage(func(s *Stage) { s.Next = "file" }), "spec.stages[0].next", "only routes"},
		"a compensation of what is no call": {
			func(w *Workflow) { w.Stages[4].Compensate = "undo" }, "spec.stages[4].compensate", "agent or workflow",
		},
		"a case that names no stage": {
			func(w *Workflow) { w.Stages[3].Route.Cases["ok"] = "fiel" }, "spec.stages[3].route.cases.ok", "there is no stage `fiel`; the branches are file, dispute",
		},
		"a case that names a stage that is no branch": {
			func(w *Workflow) { w.Stages[3].Route.Cases["ok"] = "polish" }, "spec.stages[3].route.cases.ok", "not a branch",
		},
		"a default that names no stage": {
			func(w *Workflow) { w.Stages[3].Route.Default = "x" }, "spec.stages[3].route.default", "there is no stage `x`",
		},
		"two cases that one answer fits": {
			func(w *Workflow) { w.Stages[3].Route.Cases[" OK"] = "dispute" }, "spec.stages[3].route.cases.ok", "without regard to case",
		},
		"a branch that no route names": {
			func(w *Workflow) { w.Stages[3].Route.Cases["ok"], w.Stages[7].Next = "dispute", "" }, "spec.stages[6]", "branch `file` is never reached",
		},
		"a stage that every other jumps over": {
			stage(func(s *Stage) { s.Next = "both" }), "spec.stages[1]", "stage `check` is never reached",
		},
		"a cycle of a route without a cap": {
			func(w *Workflow) { w.Stages[3].Route.MaxVisits = 0 }, "spec.stages[3].route", "route → dispute → route can go round for ever; give one of them route.maxVisits",
		},
		"a cycle of a next without a cap": {
			func(w *Workflow) { w.Stages[2].Next, w.Stages[2].When = "check", "true" }, "spec.stages[2]", "check → both → check can go round for ever; give one of them maxVisits",
		},
		"a next that leads to itself": {
			stage(func(s *Stage) { s.Next, s.When = "extract", "true" }), "spec.stages[0]", "extract → extract",
		},
		"branches alone":           {func(w *Workflow) { w.Stages = []Stage{{Name: "a", Agent: "a", Branch: true}} }, "spec.stages", "no beginning"},
		"a parallel of nothing":    {parallel(func(p *Parallel) { p.Branches = nil }), "spec.stages[2].parallel", "forEach and agent"},
		"branches and items":       {parallel(func(p *Parallel) { p.ForEach = "input" }), "spec.stages[2].parallel.branches", "exclude"},
		"branches with an agent":   {parallel(func(p *Parallel) { p.Agent = "a" }), "spec.stages[2].parallel", "go with forEach"},
		"a list without an agent":  {parallel(func(p *Parallel) { *p = Parallel{ForEach: "input"} }), "spec.stages[2].parallel.agent", "required"},
		"branches of one name":     {parallel(func(p *Parallel) { p.Branches[1].Name = "x" }), "spec.stages[2].parallel.branches[1].name", "already given"},
		"a branch without agent":   {parallel(func(p *Parallel) { p.Branches[0].Agent = "" }), "spec.stages[2].parallel.branches[0].agent", "required"},
		"half a failure":           {parallel(func(p *Parallel) { p.Tolerate = 1.5 }), "spec.stages[2].parallel.tolerate", "share"},
		"a fan-out above 10,000":   {parallel(func(p *Parallel) { p.Max = MaxFanOut + 1 }), "spec.stages[2].parallel.max", "at most 10000"},
		"a quorum above its group": {parallel(func(p *Parallel) { p.Merge.Quorum = 3 }), "spec.stages[2].parallel.merge.quorum", "outside 1 to 2"},
		"a quorum without number":  {parallel(func(p *Parallel) { p.Merge.Rule = MergeQuorum }), "spec.stages[2].parallel.merge.quorum", "outside 1 to 2"},
		"a rule that is none":      {parallel(func(p *Parallel) { p.Merge.Rule = "last" }), "spec.stages[2].parallel.merge.rule", "collect, first"},
		"a merge of two rules":     {parallel(func(p *Parallel) { p.Merge = Merge{Agent: "a", Quorum: 2} }), "spec.stages[2].parallel.merge.quorum", "goes with rule quorum"},
		"a rule of fields that is none": {
			parallel(func(p *Parallel) { p.Merge.Fields = map[string]FieldRule{"total": "add"} }), "spec.stages[2].parallel.merge.fields.total", "append, sum",
		},
		"fields of a list": {
			func(w *Workflow) { w.Stages[1].Parallel.Merge.Fields = map[string]FieldRule{"total": "sum"} }, "spec.stages[1].parallel.merge.fields", "collect",
		},
		"a route without question": {func(w *Workflow) { w.Stages[3].Route.On = "" }, "spec.stages[3].route", "want on"},
		"a route of two questions": {func(w *Workflow) { w.Stages[3].Route.By = &RouteBy{Agent: "a"} }, "spec.stages[3].route.by", "exclude"},
		"a route without an agent": {func(w *Workflow) { w.Stages[3].Route.On, w.Stages[3].Route.By = "", &RouteBy{} }, "spec.stages[3].route.by.agent", "required"},
		"a route with a next":      {func(w *Workflow) { w.Stages[3].Next = "polish" }, "spec.stages[3].next", "route says itself"},
		"a loop without an end":    {func(w *Workflow) { w.Stages[4].Loop.Until = "" }, "spec.stages[4].loop.until", "required"},
		"a loop without a limit":   {func(w *Workflow) { w.Stages[4].Loop.Max = 0 }, "spec.stages[4].loop.max", "outside 1 to 100"},
		"a loop of 101 rounds":     {func(w *Workflow) { w.Stages[4].Loop.Max = 101 }, "spec.stages[4].loop.max", "outside 1 to 100"},
		"a score that nobody asks": {func(w *Workflow) { w.Stages[4].Loop.Score = "last.x" }, "spec.stages[4].loop.score", "onLimit: best"},
		"a gate that nobody opens": {func(w *Workflow) { w.Stages[4].Loop.Gate = &Gate{Title: "t"} }, "spec.stages[4].loop.gate", "onLimit: gate"},
		"a gate without a title":   {func(w *Workflow) { w.Stages[5].Gate.Title = " " }, "spec.stages[5].gate.title", "required"},
		"a title with a program":   {func(w *Workflow) { w.Stages[5].Gate.Title = "{{range .}}x{{end}}" }, "spec.stages[5].gate.title", "{{.FIELD}}"},
		"a place that is not closed": {
			func(w *Workflow) { w.Stages[5].Gate.Title = "Pay {{.vendor" }, "spec.stages[5].gate.title", "{{.FIELD}}",
		},
		"an approver of no kind": {func(w *Workflow) { w.Stages[5].Gate.Approvers = []string{"finance"} }, "spec.stages[5].gate.approvers[0]", "group:NAME"},
		"an escalation to nobody": {
			func(w *Workflow) { w.Stages[5].Gate.OnExpiry = ExpiryEscalate }, "spec.stages[5].gate.onExpiry", "escalate: {after, to}",
		},
		"an escalation after the end": {
			func(w *Workflow) {
				g := w.Stages[5].Gate
				g.Expires, g.Escalate = Duration(time.Hour), &Escalate{After: Duration(time.Hour), To: []string{"group:cfo"}}
			}, "spec.stages[5].gate.escalate.after", "not before the gate expires",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := goodWorkflow()
			tt.change(w)
			w.SetDefaults()
			problems := w.Validate()
			if got := paths(problems); got != tt.want {
				t.Fatalf("problems at %q, want %q: %v", got, tt.want, problems)
			}
			if !strings.Contains(problems[0].Message, tt.says) {
				t.Errorf("it says %q, want %q in it", problems[0].Message, tt.says)
			}
		})
	}
}

func TestMergeIsWrittenAsItIsRead(t *testing.T) {
	for form, want := range map[string]Merge{
		`"collect"`:                     {Rule: MergeCollect},
		`"first"`:                       {Rule: MergeFirst},
		`"vote"`:                        {Rule: MergeVote},
		`{"rule":"vote","on":"last.x"}`: {Rule: MergeVote, On: "last.x"},
		`{"quorum":2}`:                  {Rule: MergeQuorum, Quorum: 2},
		`{"agent":"a"}`:                 {Rule: MergeAgent, Agent: "a"},
		`{"fields":{"f":"append"}}`:     {Rule: MergeFields, Fields: map[string]FieldRule{"f": FieldAppend}},
	} {
		var m Merge
		if err := json.Unmarshal([]byte(form), &m); err != nil {
			t.Errorf("%s: %v", form, err)
			continue
		}
		m.Rule = m.kind()
		if diff := cmp.Diff(want, m); diff != "" {
			t.Errorf("%s (-want +got):\n%s", form, diff)
		}
		if back, err := json.Marshal(m); err != nil || string(back) != form {
			t.Errorf("%s comes back as %s, %v", form, back, err)
		}
	}
	var m Merge
	if err := json.Unmarshal([]byte(`"quorum: 2"`), &m); err != nil || m.Quorum != 2 {
		t.Errorf("quorum as a text gives %+v, %v", m, err)
	}
	for _, bad := range []string{`"last"`, `"quorum: many"`, `"quorum"`, `{"count":2}`} {
		if err := json.Unmarshal([]byte(bad), &m); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestABranchGoesOnAfterItsRoute(t *testing.T) {
	w := &Workflow{Stages: []Stage{
		{Name: "a", Agent: "x"},
		{Name: "pick", Route: &Route{On: "input", Cases: map[string]string{"1": "one", "2": "deep"}}},
		{Name: "one", Agent: "x", Branch: true},
		{Name: "b", Agent: "x"},
		{Name: "deep", Branch: true, Route: &Route{On: "input", Cases: map[string]string{"1": "far"}}},
		{Name: "far", Agent: "x", Branch: true, Next: "farther"},
		{Name: "farther", Agent: "x", Branch: true},
		{Name: "c", Agent: "x", Next: "a", When: "true"},
	}}
	walk := func(skips map[string]bool, choices ...string) string {
		var way []string
		for at := w.Start(); at.Stage < len(w.Stages) && len(way) < 20; {
			s := &w.Stages[at.Stage]
			way = append(way, s.Name)
			if s.Route != nil {
				at, choices = w.Choose(at, choices[0]), choices[1:]
			} else {
				at = w.Follow(at, skips[s.Name])
			}
		}
		return strings.Join(way, " ")
	}
	done := map[string]bool{"c": true}
	for want, got := range map[string]string{
		"a pick one b c":              walk(done, "one"),
		"a pick deep far farther b c": walk(done, "deep", "far"),
	} {
		if got != want {
			t.Errorf("the way is %q, want %q", got, want)
		}
	}
	before := w.Before()
	if !before[w.Place("a")].Has(w.Place("c")) || before[w.Place("one")].Has(w.Place("one")) != true {
		t.Errorf("what c leads back to has not been before: %v", before)
	}
}

func TestWorkflowsAtTheirBoundsAreCheckedQuickly(t *testing.T) {
	w := &Workflow{Meta: Meta{Name: "w"}}
	for i := range MaxStages / 2 {
		r := &Route{On: "input", Cases: make(map[string]string), MaxVisits: 100}
		for k := range MaxStages / 2 {
			r.Cases[fmt.Sprint(k)] = fmt.Sprintf("branch-%d", k)
		}
		w.Stages = append(w.Stages, Stage{Name: fmt.Sprintf("route-%d", i), Route: r})
	}
	for i := range MaxStages / 2 {
		w.Stages = append(w.Stages, Stage{Name: fmt.Sprintf("branch-%d", i), Agent: "a", Branch: true, When: "true"})
	}
	start := time.Now()
	if problems := w.Validate(); len(problems) > 0 {
		t.Fatal(problems)
	}
	w.Before()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}
