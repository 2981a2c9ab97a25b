package placement

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

func testAgent(change ...func(*fleet.Agent)) *fleet.Agent {
	a := &fleet.Agent{Meta: fleet.Meta{Name: "extract"}, Shape: fleet.Pool, Run: fleet.Run{Command: []string{"extract"}}}
	a.SetDefaults()
	for _, f := range change {
		f(a)
	}
	return a
}

func testTarget(name string, change ...func(*fleet.Target)) *fleet.Target {
	t := &fleet.Target{Meta: fleet.Meta{Name: name}, Runtime: fleet.RuntimeLocal, Capacity: fleet.Capacity{Runs: 4}}
	t.SetDefaults()
	for _, f := range change {
		f(t)
	}
	return t
}

func testRequest(id string, a *fleet.Agent) *Request {
	r := &Request{Run: &run.Record{Spec: run.Spec{ID: id, Agent: "gone", Tenant: "acme"}}, Agent: a}
	if a != nil {
		r.Run.Agent = a.Name()
	}
	return r
}

func worldOf(targets ...*fleet.Target) *World {
	w := NewWorld()
	for _, t := range targets {
		w.SetNode(Node{Target: t})
	}
	return w
}

func TestFilters(t *testing.T) {
	type target = func(*fleet.Target)
	type agent = func(*fleet.Agent)
	cloud := func(t *fleet.Target) {
		t.Runtime, t.Resource = fleet.RuntimeCloudRun, "projects/p/locations/europe-west1/workerPools/x"
	}
	tests := map[string]struct {
		agent  agent
		target target
		node   Node // Worker, Agents, Slots, Draining
		want   Reason
		says   string
	}{
		"nothing asked, nothing refused": {},
		"a draining target takes no new run": {
			target: func(t *fleet.Target) { t.Drain = true },
			want:   Draining, says: "target local is draining and takes no new run",
		},
		"a draining worker takes no new run": {
			target: func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll }, node: Node{Worker: "w1", Draining: true},
			want: Draining, says: "worker w1 of target local is draining and takes no new run",
		},
		"a target holds its shapes only": {
			target: func(t *fleet.Target) { t.Shapes = []fleet.Shape{fleet.Service, fleet.Job} },
			want:   ShapeMismatch, says: "agent extract has shape pool, target local holds service, job",
		},
		"a local target needs to know what to start": {
			agent: func(a *fleet.Agent) { a.Run = fleet.Run{} },
			want:  NotRunnable, says: "agent extract has neither run.command nor run.url, and target local is local: it cannot know what to start",
		},
		"a local target can use what is already served": {
			agent: func(a *fleet.Agent) { a.Run = fleet.Run{URL: "http://127.0.0.1:9000"} },
		},
		"a cloud target names its own resource": {
			agent: func(a *fleet.Agent) { a.Run = fleet.Run{} }, target: cloud,
		},
		"a cloud target without a resource starts nothing": {
			target: func(t *fleet.Target) { t.Runtime = fleet.RuntimeCloudRun },
			want:   NotRunnable, says: "target local names no Cloud Run resource",
		},
		"an http target needs an address": {
			target: func(t *fleet.Target) { t.Runtime = fleet.RuntimeHTTP },
			want:   NotRunnable, says: "neither target local has a resource nor agent extract a run.url: there is no address to send the run to",
		},
		"an http target has its address": {
			agent:  func(a *fleet.Agent) { a.Run = fleet.Run{} },
			target: func(t *fleet.Target) { t.Runtime, t.Resource = fleet.RuntimeHTTP, "https://x.example/run" },
		},
		"a worker takes the agents that it serves": {
			target: func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll },
			node:   Node{Worker: "w1", Agents: map[string]bool{"sort": true, "file": true}},
			want:   NotServed, says: "worker w1 of target local does not serve agent extract; it serves file, sort",
		},
		"a worker needs no command": {
			agent: func(a *fleet.Agent) { a.Run = fleet.Run{} }, target: func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll },
			node: Node{Worker: "w1", Agents: map[string]bool{"extract": true}},
		},
		"a pool runs as one identity and takes no other": {
			agent: func(a *fleet.Agent) { a.Identity = "extract@p.iam" }, target: func(t *fleet.Target) { t.Identity = "other@p.iam" },
			want: IdentityMismatch, says: "agent extract runs as extract@p.iam, target local runs as other@p.iam",
		},
		"an agent with an identity starts nowhere in the cloud where none is stated": {
			agent: func(a *fleet.Agent) { a.Identity = "extract@p.iam" }, target: cloud,
			want: IdentityMismatch, says: "agent extract runs as extract@p.iam, target local runs as an identity that it does not state",
		},
		"whoever states no identity takes no slot of a workload that runs as somebody": {
			target: func(t *fleet.Target) { cloud(t); t.Identity = "other@p.iam" },
			want:   IdentityMismatch, says: "agent extract runs as nobody in particular (it states no identity), target local runs as other@p.iam",
		},
		"a laptop has no service accounts": {agent: func(a *fleet.Agent) { a.Identity = "extract@p.iam" }},
		"the same identity is fine": {
			agent: func(a *fleet.Agent) { a.Identity = "x@p.iam" }, target: func(t *fleet.Target) { t.Identity = "x@p.iam" },
		},
		"another region": {
			agent:  func(a *fleet.Agent) { a.Needs.Regions = []string{"europe-west1", "europe-west4"} },
			target: func(t *fleet.Target) { t.Region = "us-central1" },
			want:   RegionMismatch, says: "needs region europe-west1 or europe-west4, target local is in us-central1",
		},
		"no region": {
			agent: func(a *fleet.Agent) { a.Needs.Regions = []string{"europe-west1"} },
			want:  RegionMismatch, says: "needs region europe-west1, target local has none",
		},
		"one of the regions": {
			agent:  func(a *fleet.Agent) { a.Needs.Regions = []string{"europe-west1", "europe-west4"} },
			target: func(t *fleet.Target) { t.Region = "europe-west4" },
		},
		"no accelerator": {
			agent: func(a *fleet.Agent) { a.Needs.Accelerator = "nvidia-l4" },
			want:  AcceleratorMismatch, says: "needs accelerator nvidia-l4, target local has none",
		},
		"another accelerator": {
			agent: func(a *fleet.Agent) { a.Needs.Accelerator = "nvidia-l4" }, target: func(t *fleet.Target) { t.Accelerator = "tpu-v5" },
			want: AcceleratorMismatch, says: "needs accelerator nvidia-l4, target local has tpu-v5",
		},
		"an agent without need of one may use a target with one": {target: func(t *fleet.Target) { t.Accelerator = "tpu-v5" }},
		"labels missing and different": {
			agent: func(a *fleet.Agent) { a.Needs.Labels = map[string]string{"tier": "spot", "zone": "a"} }, target: func(t *fleet.Target) { t.Labels = map[string]string{"zone": "b"} },
			want: LabelMismatch, says: "needs label tier=spot, target local has no tier; needs label zone=a, target local has zone=b",
		},
		"labels of the metadata count": {
			agent: func(a *fleet.Agent) { a.Needs.Labels = map[string]string{"tier": "spot"} }, target: func(t *fleet.Target) { t.Meta.Labels = map[string]string{"tier": "spot"} },
		},
		"a taint keeps away": {
			target: func(t *fleet.Target) { t.Taints = []string{"dedicated=batch"} },
			want:   Tainted, says: "target local has taint dedicated=batch, which agent extract does not tolerate",
		},
		"a taint of another value keeps away": {
			agent: func(a *fleet.Agent) { a.Needs.Tolerates = []string{"dedicated=web"} }, target: func(t *fleet.Target) { t.Taints = []string{"dedicated=batch"} },
			want: Tainted, says: "target local has taint dedicated=batch, which agent extract does not tolerate",
		},
		"a taint tolerated by value": {
			agent: func(a *fleet.Agent) { a.Needs.Tolerates = []string{"dedicated=batch"} }, target: func(t *fleet.Target) { t.Taints = []string{"dedicated=batch"} },
		},
		"a taint tolerated by key": {
			agent: func(a *fleet.Agent) { a.Needs.Tolerates = []string{"dedicated"} }, target: func(t *fleet.Target) { t.Taints = []string{"dedicated=batch"} },
		},
		"every taint must be tolerated": {
			agent: func(a *fleet.Agent) { a.Needs.Tolerates = []string{"dedicated"} }, target: func(t *fleet.Target) { t.Taints = []string{"dedicated=batch", "slow"} },
			want: Tainted, says: "target local has taint slow, which agent extract does not tolerate",
		},
		"data elsewhere": {
			agent: func(a *fleet.Agent) { a.Needs.DataIn = "eu-archive" }, target: func(t *fleet.Target) { t.Data = []string{"us-archive"} },
			want: DataElsewhere, says: "needs data in eu-archive, target local has us-archive",
		},
		"data nowhere": {
			agent: func(a *fleet.Agent) { a.Needs.DataIn = "eu-archive" },
			want:  DataElsewhere, says: "needs data in eu-archive, target local lists none",
		},
		"data at hand": {
			agent: func(a *fleet.Agent) { a.Needs.DataIn = "eu-archive" }, target: func(t *fleet.Target) { t.Data = []string{"eu-archive"} },
		},
		"more slots than there are": {
			agent: func(a *fleet.Agent) { a.Needs.Slots = 8 },
			want:  TooBig, says: "needs 8 slots, limit of target local is 4",
		},
		"more slots than the worker has": {
			agent: func(a *fleet.Agent) { a.Needs.Slots = 3 }, target: func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll },
			node: Node{Worker: "w1", Slots: 2}, want: TooBig, says: "needs 3 slots, limit of worker w1 of target local is 2",
		},
		"more processor than there is": {
			agent: func(a *fleet.Agent) { a.Needs.CPU = 2500 }, target: func(t *fleet.Target) { t.Capacity.CPU = 2000 },
			want: TooBig, says: "needs cpu 2500m, limit of target local is 2",
		},
		"more memory than there is": {
			agent: func(a *fleet.Agent) { a.Needs.Memory = 4 << 30 }, target: func(t *fleet.Target) { t.Capacity.Memory = 1 << 30 },
			want: TooBig, says: "needs memory 4Gi, limit of target local is 1Gi",
		},
		"no bound, nothing too big": {agent: func(a *fleet.Agent) { a.Needs.CPU, a.Needs.Memory = 64_000, 1<<40 }},
		"a target serves its tenants only": {
			target: func(t *fleet.Target) { t.Tenants = []string{"globex", "initech"} },
			want:   TenantExcluded, says: "target local serves tenant globex or initech, not acme",
		},
		"a target serves the tenant": {target: func(t *fleet.Target) { t.Tenants = []string{"acme"} }},
		"an agent runs for its tenants only": {
			agent: func(a *fleet.Agent) { a.Needs.TenantsOnly = []string{"globex"} },
			want:  TenantForbidden, says: "agent extract runs for tenant globex only, not for acme",
		},
		"an agent runs for the tenant": {agent: func(a *fleet.Agent) { a.Needs.TenantsOnly = []string{"acme"} }},
		"no worker yet": {
			target: func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll },
			want:   NoWorker, says: "no worker of target local that serves agent extract is connected",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, target := testAgent(), testTarget("local")
			if tt.agent != nil {
				tt.agent(a)
			}
			if tt.target != nil {
				tt.target(target)
			}
			tt.node.Target = target
			w, r, p := NewWorld(), testRequest("r", a), Default()
			w.SetNode(tt.node)
			d := p.Place(w, r)
			if tt.want == "" {
				if d.Outcome != Placed {
					t.Fatalf("outcome %s: %s", d.Outcome, d.Message())
				}
				return
			}
			want := Unschedulable
			if tt.want.dynamic() {
				want = NoCapacity
			}
			if d.Outcome != want || len(d.Refused) != 1 || d.Refused[0].Reason != tt.want || d.Refused[0].Message != tt.says {
				t.Errorf("%s: %+v; want %s: %s, %q", d.Outcome, d.Refused, want, tt.want, tt.says)
			}
			if final := tt.want == TenantForbidden; d.Final != final || (len(d.WakeOn) == 0) != final {
				t.Errorf("Final = %v, WakeOn = %v", d.Final, d.WakeOn)
			}
			if diff := cmp.Diff(p.Explain(w, r).Decision, d, sameDecision); diff != "" {
				t.Errorf("Explain and Place differ (-explain +place):\n%s", diff)
			}
		})
	}
}

func TestRoom(t *testing.T) {
	poll := func(t *fleet.Target) { t.Runtime = fleet.RuntimePoll }
	tests := map[string]struct {
		needs    fleet.Needs // of the runs that are there, and of the one that is placed
		capacity fleet.Capacity
		there    int
		want     Reason
		says     string
	}{
		"a free slot":              {fleet.Needs{}, fleet.Capacity{Runs: 2}, 1, "", ""},
		"no free slot":             {fleet.Needs{}, fleet.Capacity{Runs: 2}, 2, NoFreeSlot, "no free slot on target local: all 2 in use"},
		"too few free slots":       {fleet.Needs{Slots: 3}, fleet.Capacity{Runs: 4}, 1, NoFreeSlot, "needs 3 slots, 1 of 4 free on target local"},
		"no free processor":        {fleet.Needs{CPU: 1500}, fleet.Capacity{Runs: 4, CPU: 2000}, 1, NoFreeCPU, "needs cpu 1500m, 1500m of 2 in use on target local"},
		"no free memory":           {fleet.Needs{Memory: 600 << 20}, fleet.Capacity{Runs: 4, Memory: 1 << 30}, 1, NoFreeMemory, "needs memory 600Mi, 600Mi of 1Gi in use on target local"},
		"exactly what is left":     {fleet.Needs{CPU: 1000}, fleet.Capacity{Runs: 4, CPU: 2000}, 1, "", ""},
		"no bound but on slots":    {fleet.Needs{CPU: 1000, Memory: 1 << 40}, fleet.Capacity{Runs: 4}, 3, "", ""},
		"one slot unless declared": {fleet.Needs{Slots: 0}, fleet.Capacity{Runs: 1}, 1, NoFreeSlot, "no free slot on target local: all 1 in use"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := testAgent(func(a *fleet.Agent) { a.Needs = tt.needs })
			w := worldOf(testTarget("local", func(t *fleet.Target) { t.Capacity = tt.capacity }))
			for i := range tt.there {
				w.Assume("local", testRequest(string(rune('a'+i)), a), 0)
			}
			d := Default().Place(w, testRequest("r", a))
			if tt.want == "" {
				if d.Outcome != Placed {
					t.Errorf("%s: %s", d.Outcome, d.Message())
				}
				return
			}
			if d.Outcome != NoCapacity || len(d.Refused) != 1 || d.Refused[0].Reason != tt.want || d.Refused[0].Message != tt.says {
				t.Errorf("%s: %+v, want %s: %q", d.Outcome, d.Refused, tt.want, tt.says)
			}
		})
	}
	t.Run("a target's capacity bounds its workers together", func(t *testing.T) {
		target := testTarget("pool", poll, func(t *fleet.Target) { t.Capacity.Runs = 3 })
		w, p, a := NewWorld(), Default(), testAgent()
		for _, worker := range []string{"w1", "w2"} {
			w.SetNode(Node{Target: target, Worker: worker, Slots: 2})
		}
		placed := 0
		for i := range 5 {
			r := testRequest(string(rune('a'+i)), a)
			if d := p.Place(w, r); d.Outcome == Placed {
				w.Assume(d.Node, r, 0)
				placed++
			}
		}
		if placed != 3 {
			t.Errorf("%d runs on a target of 3", placed)
		}
		w.Release("a")
		if d := p.Place(w, testRequest("r", a)); d.Outcome != Placed {
			t.Errorf("after one ended: %s", d.Message())
		}
	})
}

func TestScorers(t *testing.T) {
	usd := func(perRun, perSecond float64) func(*fleet.Target) {
		return func(t *fleet.Target) { t.Cost = fleet.Cost{PerRunUSD: perRun, PerRunSecondUSD: perSecond} }
	}
	spot := func(t *fleet.Target) { t.Labels = map[string]string{"tier": "spot"} }
	prefers := testAgent(func(a *fleet.Agent) {
		a.Prefers = []fleet.Preference{{Labels: map[string]string{"tier": "spot"}, Weight: 20}, {Labels: map[string]string{"tier": "spot", "zone": "a"}, Weight: 90}}
	})
	tests := map[string]struct {
		scorer Scorer
		agent  *fleet.Agent
		target func(*fleet.Target)
		there  int
		want   int
	}{
		"free is best":                       {Cost(), testAgent(), usd(0, 0), 0, 100},
		"a thousandth of a dollar a run":     {Cost(), testAgent(), usd(0.001, 0), 0, 61},
		"twice of it is four less":           {Cost(), testAgent(), usd(0.002, 0), 0, 57},
		"a second counts as long as it runs": {Cost(), testAgent(func(a *fleet.Agent) { a.Lifetime.Expected = fleet.Duration(20e9) }), usd(0, 0.0001), 0, 57},
		"a minute when the agent is silent":  {Cost(), testAgent(), usd(0, 0.0001), 0, 51},
		"any fortune is worst":               {Cost(), testAgent(), usd(1e9, 1e9), 0, 0},
		"what is preferred":                  {Affinity(), prefers, spot, 0, 20},
		"preferences add up to at most 100":  {Affinity(), prefers, func(t *fleet.Target) { t.Labels = map[string]string{"tier": "spot", "zone": "a"} }, 0, 100},
		"nothing preferred":                  {Affinity(), prefers, usd(0, 0), 0, 0},
		"an empty node":                      {Spread(), testAgent(), spot, 0, 100},
		"a quarter used":                     {Spread(), testAgent(), spot, 1, 75},
		"a full node":                        {Spread(), testAgent(), spot, 4, 0},
		"more than full":                     {Spread(), testAgent(), spot, 6, 0},
		"cold":                               {Warmth(), testAgent(), spot, 0, 0},
		"warm":                               {Warmth(), testAgent(), spot, 1, 100},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := worldOf(testTarget("local", tt.target))
			for i := range tt.there {
				w.Assume("local", testRequest(string(rune('a'+i)), tt.agent), 0)
			}
			n, _ := w.Node("local")
			score := total([]Weighted{{tt.scorer, 1}}, w, testRequest("r", tt.agent), n)
			if int(score) != tt.want {
				t.Errorf("score %d, want %d", score, tt.want)
			}
		})
	}
}

func TestTheLogarithmGrowsEvenly(t *testing.T) {
	for x := uint64(1); x < 1<<63; x += x/5 + 1 {
		if a, b := logarithm(x, 1000), logarithm(x+x/5+1, 1000); b < a || b > a+1200 {
			t.Fatalf("1000·log2 of %d is %d, a little further %d", x, a, b)
		}
	}
	for k := range 63 {
		if got := logarithm(1<<k, 4); got != 4*k {
			t.Errorf("4·log2(2^%d) = %d", k, got)
		}
	}
}
