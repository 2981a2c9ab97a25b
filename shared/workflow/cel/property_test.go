package cel_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/workflow"
)

// drawFlow draws a good workflow: some stages in order, among them routes to branches that may lead back.
func drawFlow(t *rapid.T) *fleet.Workflow {
	w := &fleet.Workflow{}
	n := rapid.IntRange(1, 5).Draw(t, "stages")
	when := func() string {
		return rapid.SampledFrom([]string{"", "", "true", "false", "input > 4"}).Draw(t, "when")
	}
	for i := range n {
		s := fleet.Stage{Name: fmt.Sprintf("s%d", i), When: when()}
		switch rapid.IntRange(0, 5).Draw(t, "pattern") {
		case 0:
			s.Agent, s.Compensate = "agent", "undo"
		case 1:
			s.Parallel = &fleet.Parallel{ForEach: "[1, 2, 3, 4]", Agent: "agent", Tolerate: rapid.SampledFrom([]float64{0, 0.5, 4}).Draw(t, "tolerate")}
			s.Parallel.Merge = rapid.SampledFrom([]fleet.Merge{{}, {Rule: "vote"}, {Agent: "agent"}, {Quorum: 2, On: "1"}}).Draw(t, "merge")
		case 2:
			s.Parallel = &fleet.Parallel{Tolerate: 2, Branches: []fleet.FlowCall{{Name: "x", Agent: "agent"}, {Name: "y", Agent: "agent", When: when()}, {Name: "z", Agent: "agent"}}}
		case 3:
			s.Loop = &fleet.Loop{Agent: "agent", Critic: rapid.SampledFrom([]string{"", "agent"}).Draw(t, "critic"), Until: "last.round >= 2 && input < 5", Max: 3, OnLimit: rapid.SampledFrom([]fleet.LimitAction{"fail", "best", "gate"}).Draw(t, "limit")}
			if s.Loop.OnLimit == fleet.LimitBest {
				s.Loop.Score = "last.round"
			}
		case 4:
			s.Gate = &fleet.Gate{Title: "t"}
		case 5:
			left, right := fmt.Sprintf("s%d-l", i), fmt.Sprintf("s%d-r", i)
			s.Route = &fleet.Route{By: &fleet.RouteBy{Agent: "router"}, Cases: map[string]string{"left": left, "right": right}, MaxVisits: 3}
			back := rapid.SampledFrom([]string{"", "s0", s.Name}).Draw(t, "back")
			w.Stages = append(w.Stages, fleet.Stage{Name: left, Agent: "agent", Branch: true, When: when(), Next: back}, fleet.Stage{Name: right, Agent: "agent", Branch: true})
		}
		w.Stages = append(w.Stages, s)
	}
	return w
}

// seeded answers are a function of what is asked, so that the order of asking cannot change them.
func seeded(seed uint64) map[string]func(string) string {
	draw := func(in string) uint64 {
		h := seed
		for _, b := range []byte(in) {
			h = (h ^ uint64(b)) * 1099511628211
		}
		return h >> 7
	}
	return map[string]func(string) string{
		"agent": func(in string) string {
			switch n := draw(in); {
			case n%11 == 0:
				return "!AgentError"
			default:
				return fmt.Sprint(n % 1000)
			}
		},
		"router": func(in string) string { return []string{`"left"`, `" RIGHT"`, `"neither"`}[draw(in)%3] },
	}
}

func TestWorkflowsEndAndTheOrderOfArrivalDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawFlow(t)
		p := planOf(t, w)
		seed := rapid.Uint64().Draw(t, "seed")
		input := json.RawMessage(fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "input")))
		play := func(order func(int) []int) (string, map[string]*workflow.Outcome) {
			outcomes := make(map[string]*workflow.Outcome)
			world := &world{agents: seeded(seed), order: order}
			end := world.play(t, p, workflow.Progress{Input: input, Outcomes: outcomes})
			return fmt.Sprint(end.Do, end.Reason, string(end.Output)), outcomes
		}
		end, outcomes := play(nil)
		for range 3 {
			// Which of its children a stage that fails hears of first, its message tells; nothing else hangs on it.
			other, others := play(func(n int) []int { return rand.Perm(n) })
			if end != other {
				t.Fatalf("in another order it ends with %s, not with %s", other, end)
			}
			if diff := cmp.Diff(bare(outcomes), bare(others)); diff != "" {
				t.Fatalf("in another order (-want +got):\n%s", diff)
			}
		}
		// Whoever reads some of the outcomes again, in between, does what was done.
		for name := range outcomes {
			rest := make(map[string]*workflow.Outcome, len(outcomes))
			for k, o := range outcomes {
				if k != name {
					rest[k] = o
				}
			}
			a := p.Next(workflow.Progress{Input: input, Outcomes: rest})
			if a.Do == workflow.DoFinish || a.Do == workflow.DoFail {
				if !strings.Contains(name, "/") {
					t.Fatalf("without %s it ends with %v", name, a)
				}
			} else if rest[a.Step] != nil {
				t.Fatalf("without %s it asks again for %s", name, a.Step)
			}
		}
	})
}

// bare are outcomes without what tells of a failure whose it was.
func bare(outcomes map[string]*workflow.Outcome) map[string]workflow.Outcome {
	m := make(map[string]workflow.Outcome, len(outcomes))
	for k, o := range outcomes {
		b := *o
		if b.State == workflow.Failed {
			b.Message, b.Run, b.Failed = "", "", 0
		}
		m[k] = b
	}
	return m
}

func TestF44MergesAreTheSameInEveryOrder(t *testing.T) {
	p := planOf(t, &fleet.Workflow{Stages: []fleet.Stage{{Name: "s", Parallel: &fleet.Parallel{
		Merge:    fleet.Merge{Fields: map[string]fleet.FieldRule{"findings": "append", "summary": "byBranch", "total": "sum"}},
		Branches: []fleet.FlowCall{{Name: "x", Agent: "x"}, {Name: "y", Agent: "y"}, {Name: "z", Agent: "z"}},
	}}, agentStage("after", "echo", "")}})
	agents := map[string]func(string) string{
		"x": always(`{"findings":["a"],"summary":"one","total":0.1}`), "y": always(`{"findings":["b","c"],"summary":"two","total":0.2}`),
		"z": always(`{"findings":[],"summary":"three","total":1e0}`), "echo": func(in string) string { return in },
	}
	const want = `{"findings":["a","b","c"],"summary":{"x":"one","y":"two","z":"three"},"total":1.3}`
	for range 100 {
		outcomes := make(map[string]*workflow.Outcome)
		w := &world{agents: agents, order: rand.Perm}
		if end := w.play(t, p, workflow.Progress{Input: json.RawMessage("0"), Outcomes: outcomes}); string(end.Output) != want {
			t.Fatalf("it gives %s %s", end.Output, end.Message)
		}
		// Resumed after the merge, it is not merged again.
		if a := p.Next(workflow.Progress{Input: json.RawMessage("0"), Outcomes: map[string]*workflow.Outcome{"s#1": outcomes["s#1"]}}); a.Step != "after#1" || string(a.Calls[0].Input) != want {
			t.Fatalf("resumed, it does %+v", a)
		}
	}
}

func FuzzReadOutcome(f *testing.F) {
	for _, seed := range []string{`{"state":"succeeded","output":[1]}`, `{"decision":"approved","by":["x"]}`, `{}`, `null`, `{"state":"x"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, err := workflow.ReadOutcome(raw)
		if (o == nil) == (err == nil) {
			t.Fatalf("%v and %v", o, err)
		}
		if err == nil && o.State != workflow.Succeeded && o.State != workflow.Skipped && o.State != workflow.Failed {
			t.Fatalf("state %q", o.State)
		}
	})
}
