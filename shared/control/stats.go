package control

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Stats is what the live view shows, over a window that ends now.
type Stats struct {
	At              run.Instant
	Window          time.Duration     // shorter than asked where more happened than is remembered
	States          map[run.State]int // of the runs that the leader holds: waiting and finished ones are not in it
	Total           Figures
	Agents, Tenants []NamedFigures
	Targets         []TargetStats
	OldestQueued    time.Duration // 0 when nothing is queued
}

// Figures count over the window; Queued and Running are as of now.
type Figures struct {
	Submitted, Succeeded, Failed, Canceled, Retries, Queued, Running int
	WaitP50, WaitP95                                                 time.Duration // submit to first start
	TookP50, TookP95                                                 time.Duration // first start to end
	USD                                                              float64
	Tokens                                                           int64
}

// NamedFigures are those of one agent or tenant.
type NamedFigures struct {
	Name string
	Figures
}

// TargetStats is a target's load now.
type TargetStats struct {
	Name           string
	Capacity, Used int
	Drain          bool
}

// maxSamples bounds the memory of what happened lately.
const maxSamples = 20_000

// sample is one thing that happened to a run.
type sample struct {
	at            run.Instant
	kind          run.EventType // submitted, started, backedOff, or how it ended
	agent, tenant string
	wait, took    time.Duration
	usage         run.Usage
}

// statistics remembers what happened lately, in a ring, and how long agents take.
type statistics struct {
	mu    sync.Mutex
	ring  []sample
	next  int
	usual admission.Durations
}

func newStatistics() *statistics { return new(statistics) }

// observe takes note of what was written.
func (s *statistics) observe(after *run.Record, events []run.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range events {
		e := &events[i]
		x := sample{at: e.At, kind: e.Type, agent: after.Agent, tenant: after.Tenant}
		switch e.Type {
		case run.EvSubmitted, run.EvBackedOff:
		case run.EvStarted:
			if after.StartedAt != e.At {
				continue
			}
			x.wait = e.At.Sub(max(after.CreatedAt, after.NotBefore))
		case run.EvSucceeded, run.EvFailed, run.EvCanceled:
			x.usage = after.Usage
			if after.StartedAt != 0 {
				x.took = e.At.Sub(after.StartedAt)
			}
			if e.Type == run.EvSucceeded {
				s.learn(after)
			}
		default:
			continue
		}
		if len(s.ring) < maxSamples {
			s.ring = append(s.ring, x)
			continue
		}
		s.ring[s.next] = x
		s.next = (s.next + 1) % maxSamples
	}
}

// covered is how much of the window before now is remembered whole: all of it until the ring is full. It needs the lock.
func (s *statistics) covered(now run.Instant, window time.Duration) time.Duration {
	if len(s.ring) < maxSamples {
		return window
	}
	return min(window, now.Sub(s.ring[s.next].at))
}

// learn moves the agent's average towards its newest attempt.
func (s *statistics) learn(r *run.Record) {
	a := r.Current()
	if a == nil || a.StartedAt == 0 {
		return
	}
	s.usual.Learn(r.Agent, a.EndedAt.Sub(a.StartedAt))
}

// expected is how long a run of the agent is likely to hold its slot.
func (s *statistics) expected(a *fleet.Agent) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usual.Expected(a)
}

// startRate is how many runs started per second over the last minute.
func (s *statistics) startRate(now run.Instant) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for i := range s.ring {
		if s.ring[i].kind == run.EvStarted && now.Sub(s.ring[i].at) < time.Minute {
			n++
		}
	}
	return float64(n) / 60
}

// gathering collects the figures of one name.
type gathering struct {
	Figures
	waits, tooks []time.Duration
}

func (g *gathering) add(x *sample) {
	switch x.kind {
	case run.EvSubmitted:
		g.Submitted++
	case run.EvStarted:
		g.waits = append(g.waits, x.wait)
	case run.EvBackedOff:
		g.Retries++
	case run.EvSucceeded:
		g.Succeeded++
		g.tooks = append(g.tooks, x.took)
	case run.EvFailed:
		g.Failed++
	case run.EvCanceled:
		g.Canceled++
	}
	g.USD += x.usage.USD
	g.Tokens += x.usage.InputTokens + x.usage.OutputTokens
}

func (g *gathering) figures(queued, running int) Figures {
	g.WaitP50, g.WaitP95 = percentiles(g.waits)
	g.TookP50, g.TookP95 = percentiles(g.tooks)
	g.Queued, g.Running = queued, running
	return g.Figures
}

// percentiles are the elements that would stand in the middle and near the end if d were sorted. It changes the order.
func percentiles(d []time.Duration) (p50, p95 time.Duration) {
	if len(d) == 0 {
		return 0, 0
	}
	at := len(d) * 95 / 100
	p95 = pick(d, at)
	return pick(d[:at+1], len(d)/2), p95
}

// pick brings the k-th smallest element to its place, everything smaller before it, and returns it. Finding two of many
// takes a tenth of the time of sorting them.
func pick(d []time.Duration, k int) time.Duration {
	for len(d) > 1 {
		// 1. Parts that are below, equal to and above the median of three.
		a, b, c := d[0], d[len(d)/2], d[len(d)-1]
		pivot := max(min(a, b), min(max(a, b), c))
		low, at, high := 0, 0, len(d)
		for at < high {
			switch x := d[at]; {
			case x < pivot:
				d[low], d[at] = x, d[low]
				low, at = low+1, at+1
			case x > pivot:
				high--
				d[at], d[high] = d[high], x
			default:
				at++
			}
		}
		// 2. The part that has it.
		switch {
		case k < low:
			d = d[:low]
		case k < high:
			return pivot
		default:
			d, k = d[high:], k-high
		}
	}
	return d[0]
}

// lately gathers what happened in the window, in all and by name; covered is how much of the window that is. The lock,
// which everything that happens needs, is given back in between.
func (s *statistics) lately(now run.Instant, window time.Duration, agent, tenant string) (total *gathering, agents, tenants gatherings, covered time.Duration) {
	const bite = 1000
	total, agents, tenants = new(gathering), make(gatherings), make(gatherings)
	s.mu.Lock()
	defer s.mu.Unlock()
	covered = s.covered(now, window)
	for i := range s.ring {
		if i%bite == bite-1 {
			s.mu.Unlock()
			s.mu.Lock()
		}
		x := &s.ring[i]
		if now.Sub(x.at) > covered || agent != "" && x.agent != agent || tenant != "" && x.tenant != tenant {
			continue
		}
		total.add(x)
		agents.of(x.agent).add(x)
		tenants.of(x.tenant).add(x)
	}
	return total, agents, tenants, covered
}

type gatherings map[string]*gathering

func (m gatherings) of(name string) *gathering {
	g := m[name]
	if g == nil {
		g = new(gathering)
		m[name] = g
	}
	return g
}

// figures are those of every name, with what is queued and running now.
func (m gatherings) figures(now tallies) []NamedFigures {
	var out []NamedFigures
	for _, name := range slices.Sorted(maps.Keys(m)) {
		n := now.of(name)
		out = append(out, NamedFigures{name, m[name].figures(n.queued, n.live)})
	}
	return out
}

// only copies the counts of one name, or of all.
func (t tallies) only(name string) tallies {
	out := make(tallies)
	for k, c := range t {
		if name == "" || k == name {
			out[k] = &tally{c.queued, c.live, c.rest}
		}
	}
	return out
}

// Stats gathers figures over the last window, of one agent or tenant if named.
func (p *Plane) Stats(window time.Duration, agent, tenant string) Stats {
	now := p.now()
	out := Stats{At: now}
	// 1. What happened.
	total, agents, tenants, covered := p.stats.lately(now, window, agent, tenant)
	out.Window = covered
	// 2. What is now.
	p.mu.Lock()
	out.States = p.ix.states()
	ofAgents, ofTenants := p.ix.agents.only(agent), p.ix.tenants.only(tenant)
	for _, n := range p.ix.world.Nodes() {
		size := n.Size()
		if size > 1<<30 {
			size = 0
		}
		out.Targets = append(out.Targets, TargetStats{Name: n.Name(), Capacity: size, Used: n.Used().Slots, Drain: n.Target.Drain || n.Draining})
	}
	for _, t := range p.ix.queue.Tenants() {
		if t.Oldest != 0 {
			out.OldestQueued = max(out.OldestQueued, now.Sub(t.Oldest))
		}
	}
	p.mu.Unlock()
	// 3. Both together, without holding anybody up.
	for name := range ofAgents {
		agents.of(name)
	}
	for name := range ofTenants {
		tenants.of(name)
	}
	out.Agents, out.Tenants = agents.figures(ofAgents), tenants.figures(ofTenants)
	queued, running := 0, 0
	for name := range agents {
		n := ofAgents.of(name)
		queued, running = queued+n.queued, running+n.live
	}
	out.Total = total.figures(queued, running)
	return out
}

// states counts the runs that are in memory, by state. Of live ones there are as many as slots; the others are counted
// as they come and go.
func (ix *index) states() map[run.State]int {
	n := make(map[run.State]int)
	add := func(s run.State, count int) {
		if count > 0 {
			n[s] += count
		}
	}
	for _, t := range ix.agents {
		add(run.Queued, t.queued)
		add(run.Unschedulable, t.rest)
	}
	for _, held := range ix.targets {
		for id := range held {
			if t := ix.runs[id]; t != nil {
				add(t.state, 1)
			}
		}
	}
	return n
}
