package placement_test

import (
	"fmt"
	"testing"

	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/placement/crowd"
)

// BenchmarkPass decides over 100,000 queued runs on 1,000 targets with room for all; an operation is one decision.
func BenchmarkPass(b *testing.B) {
	for _, agents := range []int{1, 20, 500} {
		b.Run(fmt.Sprintf("agents=%d", agents), func(b *testing.B) {
			const runs = 100_000
			c := crowd.New(runs, agents, 2*runs/crowd.Targets)
			b.ReportAllocs()
			b.ResetTimer()
			for left := b.N; left > 0; {
				b.StopTimer()
				q := c.Queue()
				c.Clear()
				b.StartTimer()
				placed, _ := c.Pass(q, left)
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
		c := crowd.New(runs, 20, 2*runs/crowd.Targets)
		q := c.Queue()
		b.StartTimer()
		c.Pass(q, runs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/runs, "ns/decision")
}

// BenchmarkPassSaturated decides with all slots in use and one freed before each pass; an operation is one pass over
// the classes of 1,000 tenants.
func BenchmarkPassSaturated(b *testing.B) {
	c := crowd.New(30_000, 20, 1)
	q := c.Queue()
	c.Pass(q, 1<<30)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		nodes := c.World.Nodes()
		c.World.Release(c.World.RunsOn(nodes[i%len(nodes)].Name())...)
		b.StopTimer()
		if q.Len() < 5_000 {
			q = c.Queue()
		}
		b.StartTimer()
		c.Pass(q, 1<<30)
	}
}

// BenchmarkFleetChange is what a changed target costs the next decision of each of 1,000 classes.
func BenchmarkFleetChange(b *testing.B) {
	c := crowd.New(crowd.Tenants, 20, 10)
	b.ReportAllocs()
	for b.Loop() {
		n := *c.World.Nodes()[500]
		changed := *n.Target
		c.World.SetNode(placement.Node{Target: &changed})
		for _, e := range c.Entries {
			c.Profile.Place(c.World, c.Requests[e.ID])
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	c := crowd.New(crowd.Tenants, 20, 100)
	r := c.Requests[c.Entries[7].ID]
	b.ReportAllocs()
	for b.Loop() {
		c.Profile.Place(c.World, r)
	}
}

func BenchmarkEncode(b *testing.B) {
	c := crowd.New(crowd.Tenants, 20, 100)
	d := c.Profile.Place(c.World, c.Requests[c.Entries[1].ID])
	b.ReportAllocs()
	for b.Loop() {
		d.Encode()
	}
}

func BenchmarkExplain(b *testing.B) {
	c := crowd.New(crowd.Tenants, 20, 100)
	for b.Loop() {
		c.Profile.Explain(c.World, c.Requests[c.Entries[1].ID])
	}
}
