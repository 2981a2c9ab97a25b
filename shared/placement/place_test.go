package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

func TestChoosing(t *testing.T) {
	price := func(usd float64) func(*fleet.Target) { return func(t *fleet.Target) { t.Cost.PerRunUSD = usd } }
	tests := map[string]struct {
		targets []*fleet.Target
		agent   *fleet.Agent
		assume  map[string]int // runs of other agents, by node
		want    string
	}{
		"equal: the name that comes first": {
			targets: []*fleet.Target{testTarget("b"), testTarget("a"), testTarget("c")}, want: "a",
		},
		"the cheap one": {targets: []*fleet.Target{testTarget("a", price(1)), testTarget("b", price(0.01))}, want: "b"},
		"the emptier one": {
			targets: []*fleet.Target{testTarget("a"), testTarget("b")}, assume: map[string]int{"a": 2, "b": 1}, want: "b",
		},
		"the preferred one even if it costs more": {
			targets: []*fleet.Target{testTarget("a"), testTarget("b", price(0.01), func(t *fleet.Target) { t.Labels = map[string]string{"near": "yes"} })},
			agent: testAgent(func(a *fleet.Agent) {
				a.Prefers = []fleet.Preference{{Labels: map[string]string{"near": "yes"}, Weight: 60}}
			}),
			want: "b",
		},
		"not the preferred one when it is full": {
			targets: []*fleet.Target{testTarget("a"), testTarget("b", func(t *fleet.Target) { t.Labels = map[string]string{"near": "yes"} })},
			agent: testAgent(func(a *fleet.Agent) {
				a.Prefers = []fleet.Preference{{Labels: map[string]string{"near": "yes"}, Weight: 100}}
			}),
			assume: map[string]int{"b": 4}, want: "a",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.agent == nil {
				tt.agent = testAgent()
			}
			w := worldOf(tt.targets...)
			for node, n := range tt.assume {
				for i := range n {
					other := testAgent(func(a *fleet.Agent) { a.Meta.Name = "other" })
					w.Assume(node, testRequest(fmt.Sprint(node, i), other), 0)
				}
			}
			if d := Default().Place(w, testRequest("r", tt.agent)); d.Node != tt.want {
				t.Errorf("chosen %q, want %q; best %v", d.Node, tt.want, d.Best())
			}
		})
	}
}

func TestTheWarmNodeIsPreferredAmongEqual(t *testing.T) {
	w, p, a := worldOf(testTarget("a"), testTarget("b")), Default(), testAgent()
	w.Assume("b", testRequest("1", a), 0)
	w.Release("1")
	if d := p.Place(w, testRequest("r", a)); d.Node != "b" {
		t.Errorf("chosen %s, want b, which ran the agent", d.Node)
	}
	w.Cool("b", a.Name())
	if d := p.Place(w, testRequest("r", a)); d.Node != "a" {
		t.Errorf("chosen %s, want a once b is cold", d.Node)
	}
}

func TestMemoryOfWarmthIsBounded(t *testing.T) {
	w := worldOf(testTarget("a"))
	for i := range 3 * maxWarm {
		id := fmt.Sprint(i)
		w.Assume("a", testRequest(id, testAgent(func(a *fleet.Agent) { a.Meta.Name = "agent-" + id })), 0)
		w.Release(id)
	}
	if n, _ := w.Node("a"); len(n.warm) > maxWarm {
		t.Errorf("a node remembers %d agents, at most %d are wanted", len(n.warm), maxWarm)
	}
}

func TestAMissingAgentIsUnschedulable(t *testing.T) {
	w, p := worldOf(testTarget("a")), Default()
	r := testRequest("r", nil)
	d := p.Place(w, r)
	if d.Outcome != Unschedulable || d.Message() != "the agent gone is not declared any more" {
		t.Errorf("%s: %s", d.Outcome, d.Message())
	}
	if diff := cmp.Diff(d, p.Explain(w, r).Decision, sameDecision); diff != "" {
		t.Errorf("Explain differs: %s", diff)
	}
	if _, _, ok := p.Reserve(w, r); ok {
		t.Error("a node is kept free for it")
	}
	w.Assume("a", r, 0) // it may still be running
	if n, _ := w.Node("a"); n.Used().Slots != 1 {
		t.Errorf("its run takes %d slots, want 1", n.Used().Slots)
	}
}

func TestSlotsAreGivenBackOnce(t *testing.T) {
	// F29: in use is derived from the runs, whatever is said about them and however often.
	w, p, a := worldOf(testTarget("local", func(t *fleet.Target) { t.Capacity.Runs = 3 })), Default(), testAgent()
	for i := range 1000 {
		r := testRequest(fmt.Sprint(i), a)
		if d := p.Place(w, r); d.Outcome != Placed {
			t.Fatalf("run %d: %s", i, d.Message())
		}
		w.Assume("local", r, 0)
		w.Assume("local", r, 0) // confirmed again, as after a restart
		n, _ := w.Node("local")
		if n.Used().Slots > 3 {
			t.Fatalf("%d slots of 3 in use", n.Used().Slots)
		}
		switch i % 4 {
		case 0:
			w.Release(r.Run.ID)
		case 1:
			w.Release(r.Run.ID, r.Run.ID)
			w.Release(r.Run.ID)
		case 2:
			w.RemoveNode("local")
			w.Release(r.Run.ID)
			w.SetNode(Node{Target: n.Target})
		case 3:
			w.Release("unknown", r.Run.ID)
		}
	}
	n, _ := w.Node("local")
	if n.Used() != (Usage{}) || w.Runs() != 0 || n.AgentRuns(a.Name()) != 0 {
		t.Errorf("in use after all ended: %v, %d runs", n.Used(), w.Runs())
	}
	for i := range 3 {
		r := testRequest(fmt.Sprint("new", i), a)
		if d := p.Place(w, r); d.Outcome != Placed {
			t.Errorf("run %d of 3: %s", i, d.Message())
		}
		w.Assume("local", r, 0)
	}
}

func TestANodeThatComesBackStillHasItsRuns(t *testing.T) {
	target := testTarget("pool", func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll; t.Capacity.Runs = 0 })
	w, p, a := NewWorld(), Default(), testAgent()
	w.Assume("pool/w1", testRequest("1", a), 0) // known from the store before the worker is
	w.SetNode(Node{Target: target, Worker: "w1", Slots: 1})
	if d := p.Place(w, testRequest("r", a)); d.Outcome != NoCapacity {
		t.Errorf("placed on a worker whose slot is taken")
	}
	w.RemoveNode("pool/w1")
	w.SetNode(Node{Target: target, Worker: "w1", Slots: 1})
	if d := p.Place(w, testRequest("r", a)); d.Outcome != NoCapacity {
		t.Errorf("placed on a worker that came back with its run")
	}
	if got := w.RunsOn("pool/w1"); len(got) != 1 || got[0] != "1" {
		t.Errorf("RunsOn = %v", got)
	}
	w.Release("1")
	if d := p.Place(w, testRequest("r", a)); d.Node != "pool/w1" || d.Target != "pool" || d.Worker != "w1" {
		t.Errorf("after its run ended: %+v", d)
	}
}

func TestGenerations(t *testing.T) {
	w, a := worldOf(testTarget("a")), testAgent()
	step := func(what string, fleet, capacity bool, change func()) {
		t.Helper()
		before := w.Generation()
		change()
		after := w.Generation()
		if (after.Fleet > before.Fleet) != fleet || (after.Capacity > before.Capacity) != capacity {
			t.Errorf("%s: %+v, then %+v", what, before, after)
		}
	}
	b := testTarget("b")
	step("a target is added", true, false, func() { w.SetNode(Node{Target: b}) })
	step("the same again", false, false, func() { w.SetNode(Node{Target: b}) })
	step("it changes", true, false, func() { w.SetNode(Node{Target: testTarget("b")}) })
	step("a worker serves other agents", true, false, func() { w.SetNode(Node{Target: b, Agents: map[string]bool{"x": true}}) })
	step("a run comes", false, false, func() { w.Assume("a", testRequest("1", a), 0) })
	step("it ends", false, true, func() { w.Release("1") })
	step("it ends again", false, false, func() { w.Release("1") })
	step("a reservation", false, false, func() { Default().Reserve(w, testRequest("1", a)) })
	step("it is given up", false, true, func() { w.Unreserve("1") })
	step("a target leaves", true, false, func() { w.RemoveNode("b") })
	step("it leaves again", false, false, func() { w.RemoveNode("b") })
}

func TestARunIsInOnePlace(t *testing.T) {
	w, a := worldOf(testTarget("a"), testTarget("b")), testAgent()
	w.Assume("a", testRequest("1", a), 0)
	w.Assume("b", testRequest("1", a), 0)
	na, _ := w.Node("a")
	if node, _ := w.NodeOf("1"); node != "b" || na.Used().Slots != 0 || w.Runs() != 1 {
		t.Errorf("the run is on %s, a has %v in use", node, na.Used())
	}
}

func big(slots int) *fleet.Agent {
	return testAgent(func(a *fleet.Agent) { a.Meta.Name, a.Needs.Slots = "big", slots })
}

func TestReservations(t *testing.T) {
	small := testAgent()
	t.Run("the node that is free first is kept, and nobody else gets it", func(t *testing.T) {
		w, p := worldOf(testTarget("a"), testTarget("b"), testTarget("c")), Default()
		for i, node := range []string{"a", "b", "c"} {
			for k := range 4 {
				// On b two runs end at 30 and 40; the others take longer.
				ends := [...][4]run.Instant{{10, 70, 80, 90}, {30, 40, 80, 90}, {20, 0, 0, 0}}[i][k]
				w.Assume(node, testRequest(fmt.Sprint(node, k), small), ends)
			}
		}
		node, at, ok := p.Reserve(w, testRequest("B", big(2)))
		if node != "b" || at != 40 || !ok {
			t.Fatalf("Reserve = %s, %d, %v; want b at 40", node, at, ok)
		}
		if diff := cmp.Diff([]Reservation{{"b", "B"}}, w.Reservations()); diff != "" {
			t.Errorf("Reservations (-want +got):\n%s", diff)
		}
		w.Release("b0")
		if d := p.Place(w, testRequest("s", small)); d.Outcome != NoCapacity {
			t.Errorf("a small run is placed on %s", d.Node)
		} else if want := "waits: target b is kept free for a larger run that waited long; no free slot on target a: all 4 in use, likewise c"; d.Message() != want {
			t.Errorf("message %q, want %q", d.Message(), want)
		}
		if d := p.Place(w, testRequest("B", big(2))); d.Outcome != NoCapacity || d.Refused[0].Reason != NoFreeSlot {
			t.Errorf("with one slot free: %s, %v", d.Outcome, d.Refused)
		}
		w.Release("b1")
		d := p.Place(w, testRequest("B", big(2)))
		if d.Node != "b" {
			t.Fatalf("with two slots free: %s, %s", d.Outcome, d.Message())
		}
		w.Assume(d.Node, testRequest("B", big(2)), 0)
		if len(w.Reservations()) != 0 {
			t.Errorf("after it was placed: %v", w.Reservations())
		}
	})
	t.Run("it is for whichever run of the class comes first", func(t *testing.T) {
		w, p := worldOf(testTarget("a")), Default()
		w.Assume("a", testRequest("1", small), 10)
		p.Reserve(w, testRequest("B", big(4)))
		w.Release("1")
		first := testRequest("first", big(4)) // submitted later, with a higher priority
		d := p.Place(w, first)
		if d.Node != "a" {
			t.Fatalf("a run of the same class: %s, %s", d.Outcome, d.Message())
		}
		w.Assume(d.Node, first, 0)
		if len(w.Reservations()) != 0 {
			t.Errorf("after it was placed: %v", w.Reservations())
		}
		if node, _, ok := p.Reserve(w, testRequest("B", big(4))); node != "a" || !ok {
			t.Errorf("the run behind it gets %q reserved, want a again", node)
		}
		w.Assume("a", first, 20) // known to be there: that takes nothing from the run behind it
		if len(w.Reservations()) != 1 {
			t.Errorf("after the first was assumed again: %v", w.Reservations())
		}
		w.GiveUp(testRequest("other", big(4)))
		if len(w.Reservations()) != 0 {
			t.Errorf("after the class gave up: %v", w.Reservations())
		}
	})
	t.Run("at most half of the nodes, but one", func(t *testing.T) {
		for nodes, want := range map[int]int{1: 1, 2: 1, 3: 1, 7: 3} {
			w, p := NewWorld(), Default()
			for i := range nodes {
				w.SetNode(Node{Target: testTarget(fmt.Sprint("t", i))})
			}
			got := 0
			for i := range nodes {
				if _, _, ok := p.Reserve(w, testRequest(fmt.Sprint(i), big(2))); ok {
					got++
				}
			}
			if got != want {
				t.Errorf("%d of %d nodes are reserved, want %d", got, nodes, want)
			}
		}
	})
	t.Run("only a node that fits", func(t *testing.T) {
		w, p := worldOf(testTarget("a", func(t *fleet.Target) { t.Capacity.Runs = 1 }), testTarget("b")), Default()
		if node, _, _ := p.Reserve(w, testRequest("B", big(2))); node != "b" {
			t.Errorf("reserved %q, want b", node)
		}
		// b changes, so that it does not fit any more.
		w.SetNode(Node{Target: testTarget("b", func(t *fleet.Target) { t.Drain = true })})
		if node, _, ok := p.Reserve(w, testRequest("B", big(2))); ok || len(w.Reservations()) != 0 {
			t.Errorf("still reserved: %q", node)
		}
	})
	t.Run("a node that leaves is not reserved", func(t *testing.T) {
		w, p := worldOf(testTarget("a"), testTarget("b")), Default()
		p.Reserve(w, testRequest("B", big(2)))
		w.RemoveNode("a")
		if len(w.Reservations()) != 0 {
			t.Errorf("%v", w.Reservations())
		}
		if node, _, _ := p.Reserve(w, testRequest("B", big(2))); node != "b" {
			t.Errorf("reserved %q, want b", node)
		}
	})
	t.Run("other workers leave it the capacity of the target", func(t *testing.T) {
		target := testTarget("pool", func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll; t.Capacity.Runs = 4 })
		w, p := NewWorld(), Default()
		for _, worker := range []string{"w1", "w2", "w3"} {
			w.SetNode(Node{Target: target, Worker: worker, Slots: 4})
		}
		w.Assume("pool/w2", testRequest("1", small), 5)
		w.Assume("pool/w3", testRequest("2", small), 6)
		if node, _, ok := p.Reserve(w, testRequest("B", big(3))); !ok || node != "pool/w1" {
			t.Fatalf("reserved %q", node)
		}
		if d := p.Place(w, testRequest("s", small)); d.Outcome != NoCapacity {
			t.Errorf("a small run takes the last slots of the target on %s", d.Node)
		}
		w.Release("1")
		if d := p.Place(w, testRequest("s", small)); d.Outcome != NoCapacity {
			t.Errorf("with three free, a small run takes one of them on %s", d.Node)
		}
		if d := p.Place(w, testRequest("B", big(3))); d.Node != "pool/w1" {
			t.Errorf("B: %s", d.Message())
		}
	})
}

func TestSaturated(t *testing.T) {
	w, p, a := worldOf(testTarget("a", func(t *fleet.Target) { t.Capacity.Runs = 1 })), Default(), testAgent()
	if p.Saturated(w) {
		t.Error("an empty node is saturated")
	}
	w.Assume("a", testRequest("1", a), 0)
	if !p.Saturated(w) {
		t.Error("a full node is not")
	}
	w.Release("1")
	if p.Saturated(w) {
		t.Error("a node is still saturated after its run ended")
	}
}

func TestEqualRequestsHaveEqualClasses(t *testing.T) {
	base := func() *Request { return testRequest("1", testAgent()) }
	tests := map[string]struct {
		change func(*Request)
		same   bool
	}{
		"another run":      {func(r *Request) { r.Run.ID = "2" }, true},
		"another priority": {func(r *Request) { r.Run.Priority = 90 }, true},
		"another tenant":   {func(r *Request) { r.Run.Tenant = "globex" }, false},
		"another agent":    {func(r *Request) { r.Run.Agent = "sort" }, false},
		"another revision": {func(r *Request) { r.Run.Revision = 7 }, false},
		"more slots":       {func(r *Request) { r.Agent.Needs.Slots = 2 }, false},
		"more processor":   {func(r *Request) { r.Agent.Needs.CPU = 2 }, false},
		"more memory":      {func(r *Request) { r.Agent.Needs.Memory = 2 }, false},
		"an accelerator":   {func(r *Request) { r.Agent.Needs.Accelerator = "l4" }, false},
		"texts that meet":  {func(r *Request) { r.Run.Agent, r.Run.Tenant = r.Run.Agent+"a", "cme" }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := base()
			tt.change(r)
			if got := ClassKey(r) == ClassKey(base()); got != tt.same {
				t.Errorf("the class is the same: %v, want %v", got, tt.same)
			}
		})
	}
}

func TestDiagnosis(t *testing.T) {
	w, p := worldOf(
		testTarget("local"),
		testTarget("eu", func(t *fleet.Target) { t.Accelerator, t.Region, t.Drain = "nvidia-l4", "europe-west1", true }),
		testTarget("us", func(t *fleet.Target) { t.Accelerator, t.Region = "nvidia-l4", "us-central1" }),
	), Default()
	r := testRequest("r", testAgent(func(a *fleet.Agent) {
		a.Needs.Accelerator, a.Needs.Regions = "nvidia-l4", []string{"europe-west1"}
	}))
	want := []string{
		"unschedulable: none of 3 targets can take it, even when empty",
		"  eu: target eu is draining and takes no new run",
		"  local: needs region europe-west1, target local has none; needs accelerator nvidia-l4, target local has none",
		"  us: needs region europe-west1, target us is in us-central1",
		"in all: 2 RegionMismatch, 1 Draining, 1 AcceleratorMismatch",
	}
	if diff := cmp.Diff(want, p.Diagnose(w, r).Lines()); diff != "" {
		t.Errorf("Lines (-want +got):\n%s", diff)
	}
	whyNot := p.WhyNot(w, r, "local")
	if len(whyNot) != 1 {
		t.Fatalf("WhyNot = %v", whyNot)
	}
	if diff := cmp.Diff([]string{
		"local: needs region europe-west1, target local has none", "local: needs accelerator nvidia-l4, target local has none",
	}, whyNot[0].Lines()); diff != "" {
		t.Errorf("WhyNot (-want +got):\n%s", diff)
	}
	if list := p.WhyNot(w, r, "nowhere"); len(list) != 0 {
		t.Errorf("WhyNot of an unknown target = %v", list)
	}
	d := p.Place(w, r)
	if want := "target eu is draining and takes no new run; needs region europe-west1, target local has none, likewise us"; d.Message() != want {
		t.Errorf("Message = %q, want %q", d.Message(), want)
	}
}

func TestDiagnosisOfWaitingAndNothing(t *testing.T) {
	w, p, a := worldOf(testTarget("local", func(t *fleet.Target) { t.Capacity.Runs = 1 })), Default(), testAgent()
	w.Assume("local", testRequest("1", a), 0)
	if diff := cmp.Diff([]string{
		"waits for room: none of 1 targets can take it now", "  local: no free slot on target local: all 1 in use",
	}, p.Diagnose(w, testRequest("r", a)).Lines()); diff != "" {
		t.Errorf("Lines (-want +got):\n%s", diff)
	}
	w.Release("1")
	if got := p.Diagnose(w, testRequest("r", a)).Lines(); len(got) != 1 || got[0] != "a target can take it now" {
		t.Errorf("Lines = %q", got)
	}
	none := p.Place(NewWorld(), testRequest("r", a))
	if none.Outcome != Unschedulable || none.Message() != "no target is declared" || none.Final {
		t.Errorf("in an empty world: %s, %q, final %v", none.Outcome, none.Message(), none.Final)
	}
}

func TestDiagnosisIsBounded(t *testing.T) {
	w, p := NewWorld(), Default()
	for i := range 500 {
		w.SetNode(Node{Target: testTarget(fmt.Sprint("t", i))})
	}
	r := testRequest("r", testAgent(func(a *fleet.Agent) { a.Needs.Accelerator = "l4" }))
	lines := p.Diagnose(w, r).Lines()
	if len(lines) != maxLines+3 || !strings.Contains(lines[maxLines+1], "480 more") {
		t.Errorf("%d lines, the last but one %q", len(lines), lines[len(lines)-2])
	}
	if d := p.Place(w, r); d.Message() != "needs accelerator l4, target t0 has none, likewise 499 others" {
		t.Errorf("Message = %q", d.Message())
	}
}

func TestScoresAreExplained(t *testing.T) {
	w, p := worldOf(testTarget("a", func(t *fleet.Target) { t.Cost.PerRunUSD = 0.001 })), Default()
	e := p.Explain(w, testRequest("r", testAgent()))
	want := []string{"a: score 35 (affinity 0×4, cost 61×2, spread 100×2, warmth 0×1)"}
	if diff := cmp.Diff(want, e.Candidates[0].Lines()); diff != "" || !e.Candidates[0].Chosen {
		t.Errorf("chosen %v, Lines (-want +got):\n%s", e.Candidates[0].Chosen, diff)
	}
	if d := e.Decision; d.Message() != "placed on a (score 35, 1 of 1 targets fit)" {
		t.Errorf("Message = %q", d.Message())
	}
}

// What is cached is bounded, and a decision right, however many agents, tenants and changes come by.
func TestCachesAreBounded(t *testing.T) {
	w, p := worldOf(testTarget("a", func(t *fleet.Target) { t.Tenants = []string{"t1"} }), testTarget("b")), Default()
	for i := range 17_000 {
		agent := &fleet.Agent{Meta: fleet.Meta{Name: fmt.Sprint("agent", i%1500)}, Shape: fleet.Pool, Run: fleet.Run{Command: []string{"x"}}}
		r := &Request{Agent: agent, Run: &run.Record{Spec: run.Spec{ID: "r", Agent: agent.Name(), Tenant: fmt.Sprint("t", i)}}}
		if i%6000 == 1 {
			for k := range 5000 { // more than the history of changes holds
				w.SetNode(Node{Target: testTarget([]string{"b", "c"}[k%2])})
			}
			w.RemoveNode("c")
		}
		got := p.Place(w, r)
		if i%97 != 0 && i%6000 > 3 {
			continue
		}
		if diff := cmp.Diff(p.Explain(w, r).Decision, got, sameDecision); diff != "" {
			t.Fatalf("decision %d (-explain +place):\n%s", i, diff)
		}
	}
	if c := &w.cache; len(c.views) > maxViews || len(c.masks) > maxMasks || len(c.noways) > maxNoways || len(w.log) > maxLog {
		t.Errorf("%d views, %d masks, %d refusals, %d changes are kept", len(c.views), len(c.masks), len(c.noways), len(w.log))
	}
}

// What was known about the last of many equal nodes is forgotten when it becomes the best.
func TestANodeThatBecomesTheBestIsFound(t *testing.T) {
	tests := map[string]struct{ before, after func(*World, *Node) }{
		"it becomes warm": {
			before: func(*World, *Node) {},
			after:  func(w *World, n *Node) { w.Assume(n.Name(), testRequest("1", testAgent()), 0) },
		},
		"its reservation ends": {
			before: func(w *World, n *Node) {
				n.heat("extract") // which makes it the best
				w.reserve(n, &reservation{run: "B", use: Usage{Slots: 2}, node: n})
			},
			after: func(w *World, _ *Node) { w.Unreserve("B") },
		},
		"its runs end": {
			before: func(w *World, n *Node) {
				w.Assume(n.Name(), testRequest("1", testAgent()), 0)
				w.Assume(n.Name(), testRequest("2", big(3)), 0)
			},
			after: func(w *World, _ *Node) { w.Release("2") },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w, p := NewWorld(), Default()
			for i := range 70 {
				w.SetNode(Node{Target: testTarget(fmt.Sprintf("t%02d", i))})
			}
			last, _ := w.Node("t69")
			tt.before(w, last)
			if d := p.Place(w, testRequest("r", testAgent())); d.Node == "t69" {
				t.Fatal("it is the best before")
			}
			tt.after(w, last)
			if d := p.Place(w, testRequest("r", testAgent())); d.Node != "t69" {
				t.Errorf("chosen %s, best %v", d.Node, d.Best())
			}
		})
	}
}

// Bounds over blocks never hide the best node, however runs come and go on many nodes.
func TestPlaceFindsTheBestOfManyNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, p := NewWorld(), Default()
		agents := []*fleet.Agent{testAgent(), testAgent(func(a *fleet.Agent) { a.Meta.Name, a.Needs.CPU = "other", 700 })}
		nodes := rapid.IntRange(65, 220).Draw(t, "nodes")
		for i := range nodes {
			w.SetNode(Node{Target: testTarget(fmt.Sprintf("t%03d", i), func(t *fleet.Target) {
				t.Cost.PerRunUSD, t.Capacity.CPU = float64(i*7%5), 2000
			})})
		}
		next := 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			agent := agents[rapid.IntRange(0, 1).Draw(t, "agent")]
			for range rapid.SampledFrom([]int{1, 5, 5, 100, 400}).Draw(t, "come") {
				next++
				r := testRequest(fmt.Sprint(next), agent)
				d := p.Place(w, r)
				if d.Outcome != Placed {
					break
				}
				w.Assume(d.Node, r, 0)
			}
			if rapid.IntRange(0, 3).Draw(t, "declare") == 0 {
				w.SetNode(Node{Target: testTarget("t000")}) // all bounds are made anew
				p.Saturated(w)
			}
			if rapid.IntRange(0, 3).Draw(t, "reserve") == 0 {
				id := fmt.Sprint("reserver", rapid.IntRange(0, 3).Draw(t, "reserver"))
				p.Reserve(w, testRequest(id, agents[0]))
				p.Place(w, testRequest("r", agents[0])) // the node counts as closed
				if rapid.Bool().Draw(t, "give up") {
					w.Unreserve(id)
				}
			}
			from := rapid.IntRange(0, next).Draw(t, "from")
			for i := range rapid.SampledFrom([]int{0, 1, 10, 200}).Draw(t, "go") {
				w.Release(fmt.Sprint(from + i))
			}
			for _, a := range agents {
				r := testRequest("r", a)
				got, want := p.Place(w, r), p.Explain(w, r).Decision
				if diff := cmp.Diff(want.Best(), got.Best()); got.Outcome != want.Outcome || diff != "" {
					t.Fatalf("%s, want %s; best (-want +got):\n%s", got.Outcome, want.Outcome, diff)
				}
			}
		}
	})
}
