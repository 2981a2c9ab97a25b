package placement

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// oneOf draws, with "" for none among the choices.
func oneOf(t *rapid.T, label string, choices ...string) string {
	return rapid.SampledFrom(append(choices, "")).Draw(t, label)
}

func drawTarget(t *rapid.T, name string) *fleet.Target {
	target := &fleet.Target{
		Meta:    fleet.Meta{Name: name},
		Runtime: rapid.SampledFrom([]fleet.Runtime{fleet.RuntimeLocal, fleet.RuntimePoll, fleet.RuntimePoll}).Draw(t, "runtime"),
		Region:  oneOf(t, "region", "eu"), Accelerator: oneOf(t, "accelerator", "l4"),
		Cost:  fleet.Cost{PerRunUSD: rapid.SampledFrom([]float64{0, 0, 0.01, 1}).Draw(t, "cost")},
		Drain: rapid.IntRange(0, 9).Draw(t, "drain") == 0,
		Capacity: fleet.Capacity{
			Runs: rapid.IntRange(0, 6).Draw(t, "runs"), CPU: fleet.CPU(rapid.SampledFrom([]int{0, 0, 3000}).Draw(t, "cpu")),
			Memory: fleet.Bytes(rapid.SampledFrom([]int{0, 0, 4096}).Draw(t, "memory")),
		},
	}
	if tenant := oneOf(t, "tenant", "a"); tenant != "" && rapid.Bool().Draw(t, "closed") {
		target.Tenants = []string{tenant}
	}
	if spot := oneOf(t, "spot", "yes"); spot != "" {
		target.Labels = map[string]string{"spot": spot}
	}
	if rapid.IntRange(0, 5).Draw(t, "taint") == 0 {
		target.Taints = []string{"team=x"}
	}
	return target
}

func drawAgent(t *rapid.T, name string) *fleet.Agent {
	agent := &fleet.Agent{
		Meta: fleet.Meta{Name: name}, Shape: fleet.Pool, Run: fleet.Run{Command: []string{"true"}},
		Needs: fleet.Needs{
			Slots: rapid.SampledFrom([]int{0, 1, 1, 1, 2, 4}).Draw(t, "slots"),
			CPU:   fleet.CPU(rapid.SampledFrom([]int{0, 0, 500, 2000}).Draw(t, "cpu")), Memory: fleet.Bytes(rapid.SampledFrom([]int{0, 1024}).Draw(t, "memory")),
			Accelerator: rapid.SampledFrom([]string{"", "", "", "l4"}).Draw(t, "accelerator"),
		},
	}
	if rapid.IntRange(0, 3).Draw(t, "regional") == 0 {
		agent.Needs.Regions = []string{"eu"}
	}
	if rapid.IntRange(0, 3).Draw(t, "only") == 0 {
		agent.Needs.TenantsOnly = []string{"a", "b"}
	}
	if rapid.Bool().Draw(t, "tolerates") {
		agent.Needs.Tolerates = []string{"team"}
	}
	if rapid.Bool().Draw(t, "prefers") {
		agent.Prefers = []fleet.Preference{{Labels: map[string]string{"spot": "yes"}, Weight: rapid.IntRange(1, 100).Draw(t, "weight")}}
	}
	return agent
}

// odd refuses by a rule of its own, on what is in use.
var odd = NewFilter("odd", func(_ *World, r *Request, n *Node) Verdict {
	if n.TenantRuns(r.Run.Tenant) < 2 {
		return Verdict{}
	}
	return Refuse(r, Refused, wakeOnSlot, func() string { return "two of the tenant's runs are on " + n.Name() })
})

func drawProfile(t *rapid.T) *Profile {
	p := Default()
	switch rapid.IntRange(0, 4).Draw(t, "profile") {
	case 0:
		p.Room = []Filter{odd}
	case 1:
		p.Scorers, p.Load, p.Agent = nil, nil, nil
	case 2:
		p.Scorers, p.Load = nil, nil
	}
	return p
}

// verify recomputes what is in use from the runs and compares it with what the World and its cache keep.
func verify(t *rapid.T, w *World) {
	nodes, sites := map[*Node]Usage{}, map[*site]Usage{}
	for id, p := range w.runs {
		if p.id != id || p.node.runs[p.at] != p {
			t.Fatalf("run %s is not where its node has it", id)
		}
		nodes[p.node] = nodes[p.node].plus(p.use)
		sites[p.node.site] = sites[p.node.site].plus(p.use)
	}
	for name, n := range w.nodes {
		if n.used != nodes[n] || n.site.used != sites[n.site] {
			t.Fatalf("%s has %v of %v in use, its runs take %v of %v", name, n.used, n.site.used, nodes[n], sites[n.site])
		}
		if n.at < 0 && len(n.runs) == 0 {
			t.Fatalf("%s left and is still kept", name)
		}
	}
	for i, n := range w.order {
		if n.at != i || w.nodes[n.name] != n || i > 0 && w.order[i-1].name >= n.name {
			t.Fatalf("node %s is out of place", n.name)
		}
	}
	held := map[*site]Usage{}
	for id, r := range w.reserved {
		if r.run != id || r.node.reserved != r || r.node.at < 0 {
			t.Fatalf("the reservation of %s is not where its node has it", id)
		}
		held[r.node.site] = held[r.node.site].plus(r.use)
	}
	for name, s := range w.sites {
		if s.held != held[s] || len(s.nodes) == 0 {
			t.Fatalf("target %s holds %v, its reservations %v", name, s.held, held[s])
		}
	}
}

var sameDecision = cmp.Options{cmp.AllowUnexported(Decision{}), cmpopts.EquateEmpty()}

func TestPlaceEqualsAskingEverybody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, p := NewWorld(), drawProfile(t)
		agents := map[string]*fleet.Agent{}
		for _, name := range []string{"x", "y", "z"} {
			agents[name] = drawAgent(t, name)
		}
		targets := map[string]*fleet.Target{}
		lowered := map[string]bool{} // targets whose capacity may have gone below what is in use
		next := 0
		request := func(id string) *Request {
			agent := agents[rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "agent")]
			return &Request{
				Run: &run.Record{Spec: run.Spec{
					ID: id, Agent: agent.Name(), Tenant: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"),
				}},
				Agent: agent,
			}
		}
		place := func(r *Request) Decision {
			naive := p.Explain(w, r)
			got, want := p.Place(w, r), naive.Decision
			if got.Outcome == Placed {
				// Nodes below the best are not asked for room.
				got.Refused, want.Refused = fixed(got.Refused), fixed(want.Refused)
			}
			if diff := cmp.Diff(want, got, sameDecision); diff != "" {
				t.Fatalf("Place differs from Explain for %s of %s (-want +got):\n%s", r.Run.Agent, r.Run.Tenant, diff)
			}
			if diff := cmp.Diff(p.Place(w, r), p.Place(w, r), sameDecision); diff != "" {
				t.Fatalf("the same decision twice:\n%s", diff)
			}
			if n := got.Outcome == Placed; n != (got.Node != "") {
				t.Fatalf("outcome %s with node %q", got.Outcome, got.Node)
			}
			return got
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { verify(t, w) },
			"declare a target": func(t *rapid.T) {
				name := fmt.Sprint("t", rapid.IntRange(0, 4).Draw(t, "target"))
				targets[name] = drawTarget(t, name)
				lowered[name] = true
				for _, n := range w.Nodes() {
					if n.Target.Name() == name {
						w.SetNode(Node{Target: targets[name], Worker: n.Worker, Agents: n.Agents, Slots: n.Slots})
					}
				}
				w.SetNode(Node{Target: targets[name]})
			},
			"a worker joins": func(t *rapid.T) {
				for name, target := range sortedMap(targets) {
					if target.Runtime == fleet.RuntimePoll {
						node := Node{Target: target, Worker: fmt.Sprint("w", rapid.IntRange(0, 150).Draw(t, "worker"))}
						node.Slots = rapid.IntRange(0, 4).Draw(t, "slots")
						if rapid.IntRange(0, 2).Draw(t, "serves") == 0 {
							node.Agents = map[string]bool{"x": true}
						}
						w.SetNode(node)
						lowered[name] = true
					}
				}
			},
			"many workers join": func(t *rapid.T) {
				for _, target := range sortedMap(targets) {
					if target.Runtime == fleet.RuntimePoll {
						for i := range rapid.IntRange(0, 150).Draw(t, "workers") {
							w.SetNode(Node{Target: target, Worker: fmt.Sprint("w", i), Slots: 1 + i%3})
						}
						lowered[target.Name()] = true
					}
				}
			},
			"a node leaves": func(t *rapid.T) {
				if nodes := w.Nodes(); len(nodes) > 0 {
					w.RemoveNode(rapid.SampledFrom(nodes).Draw(t, "node").Name())
				}
			},
			"runs are placed": func(t *rapid.T) {
				for range rapid.IntRange(1, 12).Draw(t, "runs") {
					next++
					r := request(fmt.Sprint(next))
					d := place(r)
					if d.Outcome != Placed {
						continue
					}
					w.Assume(d.Node, r, run.Instant(rapid.IntRange(0, 5).Draw(t, "ends")))
					n, _ := w.Node(d.Node)
					c := n.Target.Capacity
					if u := n.site.used; c.Runs > 0 && u.Slots > c.Runs || c.CPU > 0 && u.CPU > c.CPU || c.Memory > 0 && u.Memory > c.Memory {
						t.Fatalf("%v in use on target %s with capacity %v", u, d.Target, c)
					}
					if n.Worker != "" && n.Slots > 0 && n.used.Slots > n.Slots {
						t.Fatalf("%v in use on worker %s of %d slots", n.used, d.Node, n.Slots)
					}
				}
			},
			"a run is found somewhere": func(t *rapid.T) {
				next++
				w.Assume(fmt.Sprintf("t%d/w%d", rapid.IntRange(0, 5).Draw(t, "target"), rapid.IntRange(0, 9).Draw(t, "worker")),
					request(fmt.Sprint(next)), 0)
			},
			"runs end": func(t *rapid.T) {
				for range rapid.IntRange(1, 10).Draw(t, "runs") {
					id := fmt.Sprint(rapid.IntRange(1, next+1).Draw(t, "run"))
					_, there := w.NodeOf(id)
					if n := w.Release(id, id); (n == 1) != there || n > 1 {
						t.Fatalf("Release of a run twice gave %d", n)
					}
				}
			},
			"a node is reserved": func(t *rapid.T) {
				next++
				r := request(fmt.Sprint(next))
				node, _, ok := p.Reserve(w, r)
				if again, _, okAgain := p.Reserve(w, r); again != node || okAgain != ok {
					t.Fatalf("Reserve gave %q and then %q", node, again)
				}
				place(r)
				another := request("another")
				if d := place(another); ok && d.Node == node && ClassKey(another) != ClassKey(r) {
					t.Fatalf("%s is reserved, and a run of another class is placed there", node)
				}
				if rapid.Bool().Draw(t, "give up") {
					w.Unreserve(r.Run.ID)
				}
			},
			"an agent changes": func(t *rapid.T) {
				name := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "agent")
				agents[name] = drawAgent(t, name)
			},
			"an agent is decoded anew": func(t *rapid.T) {
				again := *agents["x"]
				agents["x"] = &again
			},
			"a node cools": func(t *rapid.T) {
				for _, n := range w.Nodes() {
					w.Cool(n.Name(), "x")
				}
			},
		})
	})
}

func fixed(list []Tally) []Tally {
	var out []Tally
	for _, t := range list {
		if !t.Reason.dynamic() && t.Reason != Refused {
			out = append(out, t)
		}
	}
	return out
}

// sortedMap ranges over a map in the order of its keys.
func sortedMap[V any](m map[string]V) func(func(string, V) bool) {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
