// Package crowd is many queued runs of many tenants before many targets, to measure decisions with. It may import what
// decides.
package crowd

import (
	"fmt"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/run"
)

// Crowd is the runs, and the World that they are placed in.
type Crowd struct {
	Profile  *placement.Profile
	World    *placement.World
	Requests map[string]*placement.Request // by run
	Entries  []queue.Entry
}

// How many there are. Targets differ in region, label, price and accelerator, and one in twenty has a taint.
const (
	Targets = 1000
	Tenants = 1000
)

// New makes so many runs, each of one of so many agents, and targets with so many slots each. The same numbers give the
// same crowd.
func New(runs, agents, slots int) *Crowd {
	c := &Crowd{Profile: placement.Default(), World: placement.NewWorld(), Requests: map[string]*placement.Request{}}
	regions := []string{"europe-west1", "us-central1", "asia-east1"}
	for i := range Targets {
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
		c.World.SetNode(placement.Node{Target: t})
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
		tenant := i % Tenants
		agent := fleetAgents[(tenant+i/Tenants)%agents]
		id := fmt.Sprintf("run-%021d", i)
		r := &placement.Request{Agent: agent, Run: &run.Record{Spec: run.Spec{
			ID: id, Agent: agent.Name(), Revision: 1, Tenant: fmt.Sprintf("tenant-%03d", tenant), Priority: 50,
		}}}
		c.Requests[id] = r
		c.Entries = append(c.Entries, queue.Entry{
			ID: id, Tenant: r.Run.Tenant, Class: queue.Class(placement.ClassKey(r)), Priority: 50,
			QueuedAt: run.Instant(1 + i*7919%runs), Slots: 1, Cost: int64(1000 + i%17*100),
		})
	}
	return c
}

// Queue has all runs in it, none placed yet.
func (c *Crowd) Queue() *queue.Queue {
	q := queue.New(queue.Options{})
	for _, e := range c.Entries {
		q.Push(e)
	}
	return q
}

// Clear takes every run off its target.
func (c *Crowd) Clear() {
	for _, e := range c.Entries {
		c.World.Release(e.ID)
	}
}

// Pass is one decision pass over at most limit runs: pop in order, place, assume.
func (c *Crowd) Pass(q *queue.Queue, limit int) (placed, refused int) {
	p := q.Begin()
	defer p.End()
	for e, ok := p.Next(); ok && placed+refused < limit; e, ok = p.Next() {
		r := c.Requests[e.ID]
		d := c.Profile.Place(c.World, r)
		if d.Outcome != placement.Placed {
			p.BlockClass(e.Class)
			refused++
			continue
		}
		c.World.Assume(d.Node, r, 0)
		p.Take(e)
		placed++
	}
	return placed, refused
}
