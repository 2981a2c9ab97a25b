package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
)

func flowNamed(name string, stages ...fleet.Stage) *fleet.Workflow {
	return &fleet.Workflow{Meta: fleet.Meta{Name: name}, Stages: stages}
}

// crew answers for agents: an output, or a failure by its code after "!".
type crew map[string]func(input string) string

func says(output string) func(string) string { return func(string) string { return output } }

// labor lets the crew do all that there is to do, and returns what was called, in order.
func (h *house) labor(c crew) (called []string) {
	h.t.Helper()
	names := make([]string, 0, len(c))
	for name := range c {
		names = append(names, name)
	}
	slices.Sort(names)
	for idle := 0; idle < 2; {
		leases := h.lease("crew", 10, names...)
		if len(leases) == 0 {
			idle++
			h.settle()
			continue
		}
		idle = 0
		for _, a := range leases {
			called = append(called, fmt.Sprintf("%s(%s)", a.Agent.Name(), a.Input))
			r := runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: "crew"}
			answer := c[a.Agent.Name()](string(a.Input))
			if code, bad := strings.CutPrefix(answer, "!"); bad {
				r.Type, r.Class, r.Code, r.Message, r.Final = runtime.Failed, run.ClassUser, code, "no", true
			} else {
				r.Output = json.RawMessage(answer)
			}
			_ = h.report(r) // one that is told to end meanwhile is refused
		}
	}
	return called
}

// outputOf is a finished run's output, or its reason and message.
func (h *house) outputOf(id string) string {
	h.t.Helper()
	r := h.get(id)
	if r.State != run.Succeeded {
		return strings.TrimSpace(fmt.Sprintf("%s %s %s", r.State, r.Reason, r.Message))
	}
	v, err := h.p.Value(h.t.Context(), r.Output)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(v)
}

func plus(input string) string {
	var n int
	_ = json.Unmarshal([]byte(input), &n)
	return fmt.Sprint(n + 1)
}

// everyPattern is a workflow with one stage of each kind.
func everyPattern() *fleet.Workflow {
	return flowNamed("all",
		fleet.Stage{Name: "first", Agent: "plus"},
		fleet.Stage{Name: "many", Parallel: &fleet.Parallel{ForEach: "[1, 2, 3, stages.first.output]", Agent: "plus", Max: 2}},
		fleet.Stage{Name: "none", Agent: "plus", When: "false"},
		fleet.Stage{Name: "pick", Route: &fleet.Route{On: "stages.many.output[0]", Cases: map[string]string{"2": "left", "3": "right"}}},
		fleet.Stage{Name: "left", Agent: "plus", Branch: true, Input: "10"},
		fleet.Stage{Name: "right", Agent: "plus", Branch: true},
		fleet.Stage{Name: "again", Loop: &fleet.Loop{Agent: "plus", Critic: "plus", Until: "last.critique >= 4", Max: 5}, Input: "has(last.output) ? last.output : 1"},
		fleet.Stage{Name: "sub", Workflow: "inner", Input: "7"},
		fleet.Stage{Name: "merge", Parallel: &fleet.Parallel{Merge: fleet.Merge{Agent: "echo"}, Branches: []fleet.FlowCall{{Name: "x", Agent: "plus", Input: "1"}, {Name: "y", Agent: "plus", Input: "2"}}}},
	)
}

func withOutput(w *fleet.Workflow, output string) *fleet.Workflow {
	w.Output = output
	return w
}

var everyOutput = `[stages.first.output, stages.many.output, stages.none.state, stages.pick.choice, stages.left.output, stages.again.output, stages.again.rounds, stages.sub.output, stages.merge.output]`

const everyResult = `[2,[2,3,4,3],"skipped","left",11,3,2,8,{"x":2,"y":3}]`

var everyCrew = crew{"plus": plus, "echo": func(in string) string { return in }}

func everyHouse(t *testing.T, more ...fleet.Object) *house {
	return newHouse(t, append([]fleet.Object{agentNamed("plus"), agentNamed("echo"), withOutput(everyPattern(), everyOutput), flowNamed("inner", fleet.Stage{Name: "s", Agent: "plus"})}, more...)...)
}

func TestAWorkflowGoesThroughItsStages(t *testing.T) {
	h := everyHouse(t)
	r := h.submit(Submission{Workflow: "all", Input: json.RawMessage("1")})
	if r.Kind != run.KindWorkflow || r.Agent != "all" {
		t.Fatalf("it is a run of %s %s", r.Kind, r.Agent)
	}
	got := h.get(r.ID)
	wantState(t, got, run.Running, "")
	if got.Flow != "first" || got.Attempt != 0 || got.Live() {
		t.Errorf("it is at stage %q, in attempt %d", got.Flow, got.Attempt)
	}
	called := h.labor(everyCrew)
	if diff := cmp.Diff(everyResult, h.outputOf(r.ID)); diff != "" {
		t.Errorf("the output (-want +got):\n%s", diff)
	}
	if len(called) != 14 {
		t.Errorf("%d calls: %v", len(called), called)
	}
	// Its children tell where they belong, and share what is the parent's.
	tree, err := h.p.Tree(t.Context(), r.ID)
	if err != nil {
		t.Fatal(err)
	}
	stages := make(map[string]int)
	for _, c := range tree.Children {
		stages[c.Run.Stage]++
		if c.Run.Root != r.ID || c.Run.Tenant != r.Tenant || c.Run.Depth != 1 || !strings.HasPrefix(c.Run.WorkUnit(), r.WorkUnit()+"/") {
			t.Errorf("child %+v", c.Run.Spec)
		}
	}
	want := map[string]int{"first#1": 1, "many#1": 4, "left#1": 1, "again#1/1": 1, "again#1/1/critic": 1, "again#1/2": 1, "again#1/2/critic": 1, "sub#1": 1, "merge#1/items": 2, "merge#1/merge": 1}
	if diff := cmp.Diff(want, stages); diff != "" {
		t.Errorf("the children by stage (-want +got):\n%s", diff)
	}
	if n := len(h.p.ix.flights.of); n != 0 || h.p.ix.flights.bytes != 0 {
		t.Errorf("%d flights of %d bytes are remembered of runs that are over", n, h.p.ix.flights.bytes)
	}
}

// cutStore takes so many commits and then none: the process has ended there.
type cutStore struct {
	store.Store
	left int
}

var errCut = errors.New("the process has ended")

func (s *cutStore) Commit(ctx context.Context, units []store.Unit) []error {
	if s.left <= 0 {
		errs := make([]error, len(units))
		for i := range errs {
			errs[i] = errCut
		}
		return errs
	}
	s.left--
	return s.Store.Commit(ctx, units)
}

// kill -9 between any two writes: whoever comes next goes on, and calls nobody twice.
func TestAWorkflowGoesOnAfterAnEndAnywhere(t *testing.T) {
	var commits int
	for cut := 1; ; cut++ {
		inner := memory.Open()
		h := &house{t: t, store: inner, now: began}
		h.open()
		if _, err := h.p.Apply(t.Context(), []fleet.Object{agentNamed("plus"), agentNamed("echo"), withOutput(everyPattern(), everyOutput), flowNamed("inner", fleet.Stage{Name: "s", Agent: "plus"})}, ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		r := h.submit(Submission{Workflow: "all", Input: json.RawMessage("1"), Key: "k"})
		limited := &cutStore{Store: inner, left: cut}
		h.p.store, h.p.led.store = limited, limited
		h.laborUntilCut(everyCrew, limited)
		over := limited.left > 0
		h.store = inner
		h.open()
		h.pass(20 * time.Second) // what the last process had leased is lost
		h.labor(everyCrew)
		h.pass(2 * time.Minute) // attempts that were lost are tried again
		h.labor(everyCrew)
		if diff := cmp.Diff(everyResult, h.outputOf(r.ID)); diff != "" {
			t.Fatalf("cut after %d commits: the output (-want +got):\n%s", cut, diff)
		}
		tree, err := h.p.Tree(t.Context(), r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(tree.Children); n != 14 {
			t.Fatalf("cut after %d commits: %d children, want 14", cut, n)
		}
		if over {
			commits = cut
			break
		}
	}
	if commits < 20 {
		t.Errorf("the whole took %d commits: the test cuts nothing", commits)
	}
}

// laborUntilCut is labor until the store takes nothing more.
func (h *house) laborUntilCut(c crew, s *cutStore) {
	for range 100 {
		if s.left <= 0 {
			return
		}
		var names []string
		for name := range c {
			names = append(names, name)
		}
		slices.Sort(names)
		resp, err := h.p.Lease(h.t.Context(), LeaseRequest{Worker: "crew", Agents: names, Max: 1, Slots: 10})
		for i := 0; i < 5 && h.p.Step(h.t.Context(), h.p.now()); i++ {
		}
		if err != nil || len(resp.Leases) == 0 {
			continue
		}
		a := resp.Leases[0]
		h.p.Report(h.t.Context(), []runtime.Report{{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: "crew", Output: json.RawMessage(c[a.Agent.Name()](string(a.Input)))}})
		for i := 0; i < 5 && h.p.Step(h.t.Context(), h.p.now()); i++ {
		}
	}
}

func TestWorkflowsThatFail(t *testing.T) {
	tests := map[string]struct {
		stages []fleet.Stage
		crew   crew
		want   string
	}{
		"a stage's agent fails": {
			[]fleet.Stage{{Name: "a", Agent: "plus"}, {Name: "b", Agent: "echo"}}, crew{"plus": says("1"), "echo": says("!BAD")},
			"failed AgentError b#1: run ",
		},
		"an input that the agent does not take": {
			[]fleet.Stage{{Name: "a", Agent: "strict"}}, crew{"plus": plus}, "failed InputInvalid a#1: child 0 of step a#1",
		},
		"a stage that fails early ends the others": {
			[]fleet.Stage{{Name: "a", Parallel: &fleet.Parallel{ForEach: "[1,2,3,4,5,6,7,8,9,10,11,12]", Agent: "echo", Max: 2}}}, crew{"echo": says("!BAD")},
			"failed AgentError stage a: ",
		},
		"F45: an answer that fits no branch": {
			[]fleet.Stage{{Name: "pick", Route: &fleet.Route{By: &fleet.RouteBy{Agent: "echo"}, Cases: map[string]string{"x": "b"}}}, {Name: "b", Agent: "plus", Branch: true}},
			crew{"echo": says(`"refund"`), "plus": plus}, `failed RouteUnmatched stage pick: the answer "refund" fits no case, and there is no default`,
		},
		"a loop that does not end": {
			[]fleet.Stage{{Name: "l", Loop: &fleet.Loop{Agent: "plus", Until: "false", Max: 3}}}, crew{"plus": plus}, "failed LoopLimit stage l: not done after 3 rounds",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("plus"), agentNamed("echo"), agentNamed("strict", func(a *fleet.Agent) { a.Input = fleet.Schema(`{"type":"object"}`) }), flowNamed("w", tt.stages...))
			r := h.submit(Submission{Workflow: "w", Input: json.RawMessage("1")})
			h.labor(tt.crew)
			if got := h.outputOf(r.ID); !strings.HasPrefix(got, tt.want) {
				t.Errorf("it is %s, want %s", got, tt.want)
			}
			tree, err := h.p.Tree(t.Context(), r.ID)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range tree.Children {
				if s := c.Run.State; !s.Terminal() && s != run.Canceling {
					t.Errorf("child %d of %s is %s", c.Run.Item, c.Run.Stage, s)
				}
			}
		})
	}
}

func TestAWorkflowWaitsForPeople(t *testing.T) {
	stages := []fleet.Stage{
		{Name: "a", Agent: "plus"},
		{Name: "ok", Gate: &fleet.Gate{Title: "Pay {{.sum}}", Action: `{"sum": stages.a.output}`, Approvers: []string{"user:ann"}, Expires: fleet.Duration(48 * time.Hour)}},
		{Name: "b", Agent: "plus"},
	}
	for name, tt := range map[string]struct {
		decide run.Verdict
		wait   time.Duration
		want   string
	}{
		"who approve":                  {run.Approve, 0, "3"},
		"longer than the run may take": {run.Approve, 30 * time.Hour, "3"},
		"who reject":                   {run.Reject, 0, "failed Rejected ok#1: rejected by ann"},
		"who do not answer":            {"", 49 * time.Hour, "failed GateExpired ok#1: nobody decided in time"},
	} {
		t.Run(name, func(t *testing.T) {
			w := flowNamed("w", stages...)
			w.Timeouts.Run = fleet.Duration(24 * time.Hour) // waiting does not count
			h := newHouse(t, agentNamed("plus"), w)
			r := h.submit(Submission{Workflow: "w", Input: json.RawMessage("1"), Actor: "bob"})
			h.labor(crew{"plus": plus})
			got := h.get(r.ID)
			wantState(t, got, run.Waiting, "")
			gates, err := h.p.GatesOf(t.Context(), r.ID)
			if err != nil || len(gates) != 1 {
				t.Fatalf("gates %v, %v", gates, err)
			}
			g := gates[0]
			if g.Title != "Pay 2" || string(g.Action) != `{"sum":2}` || g.Stage != "ok" || g.Requester != "bob" {
				t.Errorf("the gate is %+v", g)
			}
			h.open() // a restart in between
			for left := tt.wait; left > 0; left -= time.Hour {
				h.pass(min(left, time.Hour))
			}
			if tt.decide != "" {
				out := h.p.DecideGates(t.Context(), []GateVote{{ID: g.ID, GateVote: run.GateVote{Person: run.Person{Name: "ann"}, Decision: tt.decide, ActionHash: g.ActionHash}}})
				if out[0].Err != nil {
					t.Fatal(out[0].Err)
				}
			}
			h.settle()
			h.labor(crew{"plus": plus})
			if got := h.outputOf(r.ID); !strings.HasPrefix(got, tt.want) {
				t.Errorf("it is %s, want %s", got, tt.want)
			}
		})
	}
}

func TestARunKeepsTheWorkflowThatItBeganWith(t *testing.T) {
	h := newHouse(t, agentNamed("plus"), flowNamed("w", fleet.Stage{Name: "a", Agent: "plus"}, fleet.Stage{Name: "b", Agent: "plus"}))
	old := h.submit(Submission{Workflow: "w", Input: json.RawMessage("1")})
	if _, err := h.p.Apply(t.Context(), []fleet.Object{flowNamed("w", fleet.Stage{Name: "z", Agent: "plus"})}, ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	h.open()
	next := h.submit(Submission{Workflow: "w", Input: json.RawMessage("1")})
	h.labor(crew{"plus": plus})
	if a, b := h.outputOf(old.ID), h.outputOf(next.ID); a != "3" || b != "2" {
		t.Errorf("the old one gives %s, the new one %s; want 3 and 2", a, b)
	}
}

func TestTheEndOfAWorkflowEndsItsChildren(t *testing.T) {
	h := everyHouse(t)
	r := h.submit(Submission{Workflow: "all", Input: json.RawMessage("1")})
	if _, err := h.p.Cancel(t.Context(), r.ID, CancelRequest{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	h.pass(time.Minute)
	if got := h.get(r.ID); got.State != run.Canceled {
		t.Fatalf("it is %s", got.State)
	}
	if called := h.labor(everyCrew); len(called) != 0 {
		t.Errorf("afterwards it calls %v", called)
	}
}

func TestAWorkflowTakesNoLongerThanItMay(t *testing.T) {
	w := flowNamed("w", fleet.Stage{Name: "a", Agent: "plus"})
	w.Timeouts.Run = fleet.Duration(time.Hour)
	h := newHouse(t, agentNamed("plus"), w)
	r := h.submit(Submission{Workflow: "w"})
	h.pass(30 * time.Minute)
	h.open()
	h.pass(29 * time.Minute)
	wantState(t, h.get(r.ID), run.Running, "")
	h.pass(2 * time.Minute)
	if got := h.get(r.ID); got.Reason != run.DeadlineExceeded {
		t.Errorf("it is %s (%s)", got.State, got.Reason)
	}
}

func TestATenantsQuotaBoundsItsWorkflows(t *testing.T) {
	h := newHouse(t, agentNamed("plus"), &fleet.Tenant{Meta: fleet.Meta{Name: "acme"}, Quota: fleet.Quota{Running: 2}},
		flowNamed("inner", fleet.Stage{Name: "s", Agent: "plus"}), flowNamed("w", fleet.Stage{Name: "a", Workflow: "inner"}))
	var ids []string
	for range 5 {
		ids = append(ids, h.submit(Submission{Workflow: "w", Tenant: "acme", Input: json.RawMessage("1")}).ID)
	}
	count := func() (n int) {
		for _, id := range ids {
			if h.get(id).State == run.Running {
				n++
			}
		}
		return n
	}
	if n := count(); n != 2 {
		t.Fatalf("%d of 5 go on, want 2", n)
	}
	h.open()
	if n := count(); n != 2 {
		t.Fatalf("after a restart %d of 5 go on, want 2", n)
	}
	h.labor(crew{"plus": plus})
	for i, id := range ids {
		if got := h.outputOf(id); got != "2" {
			t.Errorf("run %d is %s", i, got)
		}
	}
}

func TestAWorkflowIsRetriedFromAStage(t *testing.T) {
	stages := []fleet.Stage{
		{Name: "a", Agent: "plus"},
		{Name: "many", Parallel: &fleet.Parallel{ForEach: "[stages.a.output, 5]", Agent: "plus"}},
		{Name: "b", Agent: "echo", Input: "stages.many.output"},
	}
	echo := func(in string) string { return in }
	for name, tt := range map[string]struct {
		b           func(string) string // the first time
		from, input string
		want        string
		called      []string
	}{
		"that failed":               {says("!BAD"), "", "", "[3,6]", []string{"echo([3,6])"}},
		"that is named":             {echo, "many", "", "[3,6]", []string{"plus(2)", "plus(5)", "echo([3,6])"}},
		"with another input":        {echo, "many", "[7]", "[8]", []string{"plus(7)", "echo([8])"}},
		"by its visit":              {echo, "b#1", `"x"`, `"x"`, []string{`echo("x")`}},
		"the whole, after success":  {echo, "", "", "[3,6]", []string{"plus(1)", "plus(2)", "plus(5)", "echo([3,6])"}},
		"the whole, by a new input": {says("!BAD"), "", "10", "[12,6]", []string{"plus(10)", "plus(11)", "plus(5)", "echo([12,6])"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("plus"), agentNamed("echo"), flowNamed("w", stages...))
			first := h.submit(Submission{Workflow: "w", Input: json.RawMessage("1"), Key: "k"})
			h.labor(crew{"plus": plus, "echo": tt.b})
			q := RetryRequest{From: tt.from}
			if tt.input != "" {
				q.Input = json.RawMessage(tt.input)
			}
			type answer struct {
				r   *run.Record
				err error
			}
			out := await(h, func() answer { x := h.p.RetryFrom(t.Context(), first.ID, q); return answer{x.Run, x.Err} })
			if out.err != nil {
				t.Fatal(out.err)
			}
			if out.r.RetryOf != first.ID || out.r.WorkUnit() != "k" {
				t.Errorf("it is a retry of %q for unit %q", out.r.RetryOf, out.r.WorkUnit())
			}
			called := h.labor(crew{"plus": plus, "echo": echo})
			slices.Sort(called)
			slices.Sort(tt.called)
			if diff := cmp.Diff(tt.called, called); diff != "" {
				t.Errorf("what it calls (-want +got):\n%s", diff)
			}
			if got := h.outputOf(out.r.ID); got != tt.want {
				t.Errorf("it gives %s, want %s", got, tt.want)
			}
		})
	}
}

func TestRetriesThatAreRefused(t *testing.T) {
	h := newHouse(t, agentNamed("plus"), flowNamed("w", fleet.Stage{Name: "a", Agent: "plus"}))
	agentRun := h.submit(Submission{Agent: "plus", Input: json.RawMessage("1")})
	flowRun := h.submit(Submission{Workflow: "w", Input: json.RawMessage("1")})
	if err := h.p.RetryFrom(t.Context(), flowRun.ID, RetryRequest{}).Err; err == nil || !strings.Contains(err.Error(), "only a finished run") {
		t.Errorf("a run that goes on: %v", err)
	}
	h.labor(crew{"plus": plus})
	for _, tt := range []struct{ id, from, want string }{
		{flowRun.ID, "b", "has not been at stage \"b\" by the workflow as it is declared now; it was at a#1"},
		{agentRun.ID, "a", "which has no stages"},
	} {
		if err := h.p.RetryFrom(t.Context(), tt.id, RetryRequest{From: tt.from}).Err; err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("from %q: %v, want %q", tt.from, err, tt.want)
		}
	}
}

func TestApplyRefusesWorkflowsThatCannotGo(t *testing.T) {
	h := newHouse(t, agentNamed("plus"), flowNamed("leaf", fleet.Stage{Name: "s", Agent: "plus"}))
	for name, tt := range map[string]struct {
		objects []fleet.Object
		prune   bool
		want    string
	}{
		"an agent that is nowhere":     {[]fleet.Object{flowNamed("w", fleet.Stage{Name: "a", Agent: "none"})}, false, "Workflow w: spec.stages[0].agent: there is no agent `none`"},
		"an agent that is deleted":     {[]fleet.Object{flowNamed("w", fleet.Stage{Name: "a", Agent: "plus"})}, true, "there is no agent `plus`"},
		"a workflow of the same set":   {[]fleet.Object{flowNamed("w", fleet.Stage{Name: "a", Workflow: "v"}), flowNamed("v", fleet.Stage{Name: "a", Agent: "plus"})}, false, ""},
		"workflows that call in turns": {[]fleet.Object{flowNamed("w", fleet.Stage{Name: "a", Workflow: "v"}), flowNamed("v", fleet.Stage{Name: "a", Workflow: "w"})}, false, "workflow `w` would call itself: w → v → w"},
		"one that a declared one calls": {[]fleet.Object{flowNamed("leaf", fleet.Stage{Name: "a", Workflow: "leaf"})}, false,
			"workflow `leaf` would call itself: leaf → leaf"},
		"an expression that is none": {[]fleet.Object{flowNamed("w", fleet.Stage{Name: "a", Agent: "plus", Input: "1 +"})}, false, "Workflow w: spec.stages[0].input: not an expression"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.p.Apply(t.Context(), tt.objects, ApplyOptions{DryRun: true, Prune: tt.prune})
			if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) {
				t.Errorf("%s, want %q in it", got, tt.want)
			}
		})
	}
	if err := h.p.Delete(t.Context(), fleet.KindAgent, "plus", 0, ""); err == nil || !strings.Contains(err.Error(), "called by workflow leaf") {
		t.Errorf("an agent that a workflow names is deleted: %v", err)
	}
}

func TestAFanOutOfTenThousandItemsBearsTheShareThatMayFail(t *testing.T) {
	const items = 10_000
	h := newHouse(t, agentNamed("plus"), flowNamed("w", fleet.Stage{Name: "a", Parallel: &fleet.Parallel{ForEach: "input", Agent: "plus", Tolerate: 0.1}}))
	in, want := make([]int, items), make([]any, items)
	for i := range in {
		in[i], want[i] = i, i+1
		if i%20 == 7 {
			want[i] = nil // 5 in 100 fail
		}
	}
	input, _ := json.Marshal(in)
	r := h.submit(Submission{Workflow: "w", Input: input})
	reads := &countingStore{Store: h.store}
	h.p.store = reads
	called, idle := make(map[string]int), 0
	for idle < 2 {
		resp, err := h.p.Lease(t.Context(), LeaseRequest{Worker: "crew", Agents: []string{"plus"}, Max: 500, Slots: 500})
		if err != nil {
			t.Fatal(err)
		}
		idle++
		reports := make([]runtime.Report, len(resp.Leases))
		for i, a := range resp.Leases {
			idle = 0
			called[string(a.Input)]++
			n, _ := strconv.Atoi(string(a.Input))
			reports[i] = runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: "crew", Output: json.RawMessage(strconv.Itoa(n + 1))}
			if want[n] == nil {
				reports[i] = runtime.Report{Type: runtime.Failed, Run: a.Run, N: a.N, Worker: "crew", Final: true, Message: "no"}
			}
		}
		for _, res := range h.p.Report(t.Context(), reports) {
			if res.Err != nil {
				t.Fatal(res.Err)
			}
		}
		h.settle()
	}
	output, _ := json.Marshal(want)
	if got := h.outputOf(r.ID); got != string(output) {
		t.Fatalf("it gives %.200s", got)
	}
	for item, n := range called {
		if n != 1 {
			t.Errorf("item %s was called %d times", item, n)
		}
	}
	if len(called) != items {
		t.Errorf("%d of %d items were called", len(called), items)
	}
	if reads.owned > 10 {
		t.Errorf("its outcomes were read %d times", reads.owned)
	}
	if got := h.get(r.ID); got.Seq > 10 {
		t.Errorf("the parent was written %d times", got.Seq)
	}
}

// countingStore counts the reads of steps.
type countingStore struct {
	store.Store
	owned int
}

func (s *countingStore) Owned(ctx context.Context, kind store.Kind, owner, after string, limit int) ([]store.Doc, error) {
	if kind == store.KindStep {
		s.owned++
	}
	return s.Store.Owned(ctx, kind, owner, after, limit)
}

func TestWhatAWorkflowDidIsUndoneBackwards(t *testing.T) {
	stages := []fleet.Stage{
		{Name: "a", Agent: "plus", Compensate: "minus"},
		{Name: "b", Agent: "plus", Compensate: "minus"},
		{Name: "c", Agent: "echo"},
	}
	h := newHouse(t, agentNamed("plus"), agentNamed("echo"), agentNamed("minus"), flowNamed("w", stages...))
	r := h.submit(Submission{Workflow: "w", Input: json.RawMessage("1")})
	called := h.labor(crew{"plus": plus, "echo": says("!BAD")})
	wantState(t, h.get(r.ID), run.Compensating, run.AgentError)
	h.open() // a restart in between
	called = append(called, h.labor(crew{"minus": says("null")})...)
	want := []string{"plus(1)", "plus(2)", "echo(3)", `minus({"input":2,"output":3})`, `minus({"input":1,"output":2})`}
	if diff := cmp.Diff(want, called); diff != "" {
		t.Errorf("what it calls (-want +got):\n%s", diff)
	}
	wantState(t, h.get(r.ID), run.Failed, run.AgentError)
	if err := h.p.RetryFrom(t.Context(), r.ID, RetryRequest{From: "c"}).Err; err == nil || !strings.Contains(err.Error(), "was undone") {
		t.Errorf("a retry from a stage after what was undone: %v", err)
	}
	again := await(h, func() *run.Record { return h.p.RetryFrom(t.Context(), r.ID, RetryRequest{}).Run })
	if called := h.labor(crew{"plus": plus, "echo": says("0")}); len(called) != 3 || h.outputOf(again.ID) != "0" {
		t.Errorf("retried, it calls %v and is %s", called, h.outputOf(again.ID))
	}
}

func TestACanceledWorkflowIsUndone(t *testing.T) {
	h := newHouse(t, agentNamed("plus"), agentNamed("echo"), agentNamed("minus"),
		flowNamed("w", fleet.Stage{Name: "a", Agent: "plus", Compensate: "minus"}, fleet.Stage{Name: "b", Agent: "echo"}))
	r := h.submit(Submission{Workflow: "w", Input: json.RawMessage("1")})
	h.labor(crew{"plus": plus})
	if _, err := h.p.Cancel(t.Context(), r.ID, CancelRequest{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	h.pass(2 * time.Second)
	if called := h.labor(crew{"minus": says("null"), "echo": says("0")}); len(called) != 1 || called[0] != `minus({"input":1,"output":2})` {
		t.Errorf("it calls %v", called)
	}
	wantState(t, h.get(r.ID), run.Canceled, run.CanceledByRequest)
}
