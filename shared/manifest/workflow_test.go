package manifest

import (
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
)

const workflowHead = "apiVersion: errand.dev/v1\nkind: Workflow\nmetadata: {name: w}\nspec:\n  stages:\n"

func TestWorkflowsAreRefusedWithPlace(t *testing.T) {
	tests := map[string]struct{ stages, want string }{
		"an expression that does not compile": {
			"  - name: a\n    agent: x\n    input: inptu\n", "m:8:12: spec.stages[0].input: not an expression over input, stages, run: 1:1: undeclared reference to 'inptu' (did you mean 'input'?)",
		},
		"an expression over a stage that is none": {
			"  - {name: a, agent: x, when: \"stages.b.output\"}\n", "m:6:31: spec.stages[0].when: 1:1: there is no stage `b`",
		},
		"a field that there is not": {
			"  - {name: a, agnet: x}\n", "m:6:15: spec.stages[0].agnet: unknown field; did you mean `agent`",
		},
		"a case that names nothing": {
			"  - name: a\n    route: {on: input.x, cases: {ok: b}}\n  - {name: c, agent: x, branch: true}\n",
			"m:7:38: spec.stages[0].route.cases.ok: there is no stage `b`; the branches are c",
		},
		"a merge rule that is none": {
			"  - {name: a, parallel: {forEach: input, agent: x, merge: last}}\n",
			"m:6:59: spec.stages[0].parallel.merge: \"last\" is not a merge rule; want collect, first, vote, {quorum: N}, {agent: NAME} or {fields: {FIELD: RULE}}",
		},
		"a merge of a list of fields": {
			"  - {name: a, parallel: {forEach: input, agent: x, merge: {fields: [a]}}}\n",
			"m:6:68: spec.stages[0].parallel.merge.fields: a list where a mapping is needed",
		},
		"a stage twice": {
			"  - {name: a, agent: x}\n  - {name: a, agent: x}\n", "m:7:12: spec.stages[1].name: stage `a` is already given at spec.stages[0]; rename or remove one",
		},
		"a cycle": {
			"  - {name: a, agent: x, when: \"true\", next: a}\n", "m:6:5: spec.stages[0]: the stages a → a can go round for ever; give one of them maxVisits (1 to 100)",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, workflowHead+tt.stages)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got\n%v\nwant\n%s", err, tt.want)
			}
		})
	}
}

func TestMergesAsTheyAreWritten(t *testing.T) {
	for form, want := range map[string]fleet.Merge{
		"collect":                       {Rule: fleet.MergeCollect},
		"\"quorum: 2\"":                 {Rule: fleet.MergeQuorum, Quorum: 2},
		"{quorum: 2}":                   {Rule: fleet.MergeQuorum, Quorum: 2},
		"{agent: z}":                    {Rule: fleet.MergeAgent, Agent: "z"},
		"{rule: vote, on: last.x}":      {Rule: fleet.MergeVote, On: "last.x"},
		"{fields: {a: append, b: sum}}": {Rule: fleet.MergeFields, Fields: map[string]fleet.FieldRule{"a": "append", "b": "sum"}},
	} {
		set, err := parse(t, workflowHead+"  - {name: a, parallel: {branches: [{name: p, agent: x}, {name: q, workflow: y}], merge: "+form+"}}\n")
		if err != nil {
			t.Errorf("%s: %v", form, err)
			continue
		}
		got := set.Objects[0].Object.(*fleet.Workflow).Stages[0].Parallel.Merge
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", form, diff)
		}
		checkRoundTrip(t, set.Objects[0].Object)
	}
}

func TestLocate(t *testing.T) {
	set, err := parse(t, "# first\n---\n"+workflowHead+"  - {name: a, agent: nobody}\n")
	if err != nil {
		t.Fatal(err)
	}
	for where, want := range map[string]string{
		"Workflow w: spec.stages[0].agent":            "m:8:22: Workflow w: spec.stages[0].agent",
		"body:2:77: Workflow w: spec.stages[0].agent": "m:8:22: Workflow w: spec.stages[0].agent",
		"Workflow w: spec.stages[0].parallel.merge":   "m:8:5: Workflow w: spec.stages[0].parallel.merge",
		"Workflow other: spec.stages[0].agent":        "Workflow other: spec.stages[0].agent",
		"pageToken":                                   "pageToken",
	} {
		if got := set.Locate(where); got != want {
			t.Errorf("%s is at %s, want %s", where, got, want)
		}
	}
}

func TestEveryPatternKeepsItsFields(t *testing.T) {
	set, err := parse(t, `apiVersion: errand.dev/v1
kind: Workflow
metadata: {name: invoice-intake, version: "2"}
spec:
  input: {schema: {type: object}}
  output: stages.check.output
  budget: {usd: 5, tokens: 100}
  timeouts: {run: 24h, queue: 1h, countWaiting: true}
  permissions: {call: [invoice-extract, invoice-unfile, line-check, writer, reviewer, ledger-post, triage]}
  retain: 30d
  stages:
    - {name: extract, agent: invoice-extract, input: input, when: "true", compensate: invoice-unfile}
    - {name: check, parallel: {forEach: stages.extract.output.lines, agent: line-check, input: item, max: 8, tolerate: 0.1, merge: collect}}
    - {name: both, input: input, parallel: {branches: [{name: a, agent: line-check, input: "1", when: "true"}, {name: b, workflow: other}], merge: "quorum: 2"}}
    - {name: route, route: {on: stages.extract.output.verdict, cases: {ok: file, bad: dispute}, default: dispute, maxVisits: 3}}
    - {name: ask, route: {by: {agent: triage, input: input}, maxVisits: 2}}
    - {name: polish, loop: {agent: writer, critic: reviewer, criticInput: last.output, until: "last.score >= 0.9", max: 4, onLimit: best, score: last.score}}
    - {name: again, loop: {agent: writer, until: "false", max: 2, onLimit: gate, gate: {title: "Go on?", expires: 1h}}}
    - name: approve
      gate: {title: "Pay {{.vendor}}", action: stages.extract.output, approvers: ["group:finance"], quorum: 1,
             notRequester: true, expires: 48h, onExpiry: escalate, remind: 12h, escalate: {after: 24h, to: ["group:cfo"]}}
    - {name: file, agent: ledger-post, branch: true}
    - {name: dispute, agent: ledger-post, branch: true, next: route, maxVisits: 9}
`)
	if err != nil {
		t.Fatal(err)
	}
	checkRoundTrip(t, set.Objects[0].Object)
	w := set.Objects[0].Object.(*fleet.Workflow)
	if m := w.Stages[2].Parallel.Merge; m.Quorum != 2 || w.Stages[1].Parallel.Merge.Rule != fleet.MergeCollect || w.Stages[8].Gate != nil && w.Stages[7].Gate == nil {
		t.Errorf("it is read as %+v", w)
	}
}
