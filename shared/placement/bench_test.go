package placement_test

import (
	"fmt"
	"testing"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/run"
)

// workload is W7: targets, agents and queued runs of 1,000 tenants.
type workload struct {
	profile  *placement.Profile
	world    *placement.World
	requests map[string]*placement.Request
	entries  []queue.Entry
}

const (
	benchTargets = 1000
	benchTenants = 1000
)

func newWorkload(runs, agents, slots int) *workload {
	l := &workload{profile: placement.Default(), world: placement.NewWorld(), requests: map[string]*placement.Request{}}
	regions := []string{"europe-west1", "us-central1", "asia-east1"}
	for i := range benchTargets {
		t := &fleet.Target{
			Meta: fleet.Meta{Name: fmt.Sprintf("target-%04d", i)}, Runtime: fleet.RuntimeLocal, Region: regions[i%3],
			Labels: map[string]string{"tier": []string{"spot", "standard"}[i%2]},
			Cost:   fleet.Cost{PerRunSecondUSD: 0.00001 * float64(1+i%7)},
			Capacity: fleet.Capacity{
				Runs: slots, CPU: fleet.CPU(slots * 1000), Memory: fleet.Bytes(slots << 30),
			},
		}
		if i%10 == 0 {
			t.Accelerator = "nvidia-l4"
		}
		if i%20 == 0 {
			t.Taints = []string{"dedicated=batch"}
		}
		t.SetDefaults()
		l.world.SetNode(placement.Node{Target: t})
	}
	fleetAgents := make([]*fleet.Agent, agents)
	for i := range fleetAgents {
		a := &fleet.Agent{
			Meta: fleet.Meta{Name: fmt.Sprintf("agent-%03d", i)}, Shape: fleet.Pool, Run: fleet.Run{Command: []string{"agent"}},
			Needs:   fleet.Needs{CPU: 500, Memory: 256 << 20},
			Prefers: []fleet.Preference{{Labels: map[string]string{"tier": "spot"}, Weight: 20}},
		}
		if i%4 == 1 {
			a.Needs.Regions = []string{"europe-west1", "us-central1"}
		}
		a.SetDefaults()
		fleetAgents[i] = a
	}
	for i := range runs {
		tenant := i % benchTenants
		agent := fleetAgents[(tenant+i/benchTenants)%agents]
		id := fmt.Sprintf("run-%021d", i)
		r := &placement.Request{Agent: agent, Run: &run.Record{Spec: run.Spec{
			ID: id, Agent: agent.Name(), Revision: 1, Tenant: fmt.Sprintf("tenant-%03d", tenant), Priority: 50,
		}}}
		l.requests[id] = r
		l.entries = append(l.entries, queue.Entry{
			ID: id, Tenant: r.Run.Tenant, Class: queue.Class(placement.ClassKey(r)), Priority: 50,
			QueuedAt: run.Instant(1 + i*7919%runs), Slots: 1, Cost: int64(1000 + i%17*100),
		})
	}
	return l
}

func (l *workload) queue() *queue.Queue {
	q := queue.New(queue.Options{})
	for _, e := range l.entries {
		q.Push(e)
	}
	return q
}

// pass is one decision pass over at most limit runs: pop in order, place, assume.
func (l *workload) pass(q *queue.Queue, limit int) (placed, refused int) {
	p := q.Begin()
	defer p.End()
	for e, ok := p.Next(); ok && placed+refused < limit; e, ok = p.Next() {
		r := l.requests[e.ID]
		d := l.profile.Place(l.world, r)
		if d.Outcome != placement.Placed {
			p.BlockClass(e.Class)
			refused++
			continue
		}
		l.world.Assume(d.Node, r, 0)
		p.Take(e)
		placed++
	}
	return placed, refused
}

// BenchmarkPass decides over 100,000 queued runs on 1,000 targets with room for all; an operation is one decision.
func BenchmarkPass(b *testing.B) {
	for _, agents := range []int{1, 20, 500} {
		b.Run(fmt.Sprintf("agents=%d", agents), func(b *testing.B) {
			const runs = 100_000
			l := newWorkload(runs, agents, 2*runs/benchTargets)
			b.ReportAllocs()
			b.ResetTimer()
			for left := b.N; left > 0; {
				b.StopTimer()
				q := l.queue()
				for _, e := range l.entries {
					l.world.Release(e.ID)
				}
				b.StartTimer()
				placed, _ := l.pass(q, left)
				left -= placed
				if placed == 0 {
					b.Fatal("nothing was placed")
				}
			}
		})
	}
}

// BenchmarkPassCold is one whole pass of a new leader: nothing is cached yet.
func BenchmarkPassCold(b *testing.B) {
	const runs = 100_000
	for b.Loop() {
		b.StopTimer()
		l := newWorkload(runs, 20, 2*runs/benchTargets)
		q := l.queue()
		b.StartTimer()
		l.pass(q, runs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/runs, "ns/decision")
}

// BenchmarkPassSaturated decides with all slots in use and one freed before each pass; an operation is one pass over
// the classes of 1,000 tenants.
func BenchmarkPassSaturated(b *testing.B) {
	l := newWorkload(30_000, 20, 1)
	q := l.queue()
	l.pass(q, 1<<30)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		nodes := l.world.Nodes()
		l.world.Release(l.world.RunsOn(nodes[i%len(nodes)].Name())...)
		b.StopTimer()
		if q.Len() < 5_000 {
			q = l.queue()
		}
		b.StartTimer()
		l.pass(q, 1<<30)
	}
}

// BenchmarkFleetChange is what a changed target costs the next decision of each of 1,000 classes.
func BenchmarkFleetChange(b *testing.B) {
	l := newWorkload(benchTenants, 20, 10)
	b.ReportAllocs()
	for b.Loop() {
		n := *l.world.Nodes()[500]
		changed := *n.Target
		l.world.SetNode(placement.Node{Target: &changed})
		for _, e := range l.entries {
			l.profile.Place(l.world, l.requests[e.ID])
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	l := newWorkload(benchTenants, 20, 100)
	r := l.requests[l.entries[7].ID]
	b.ReportAllocs()
	for b.Loop() {
		l.profile.Place(l.world, r)
	}
}

func BenchmarkEncode(b *testing.B) {
	l := newWorkload(benchTenants, 20, 100)
	d := l.profile.Place(l.world, l.requests[l.entries[1].ID])
	b.ReportAllocs()
	for b.Loop() {
		d.Encode()
	}
}

func BenchmarkExplain(b *testing.B) {
	l := newWorkload(benchTenants, 20, 100)
	for b.Loop() {
		l.profile.Explain(l.world, l.requests[l.entries[1].ID])
	}
}
