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

func percentiles(d []time.Duration) (p50, p95 time.Duration) {
	if len(d) == 0 {
		return 0, 0
	}
	slices.Sort(d)
	return d[len(d)/2], d[len(d)*95/100]
}

// Stats gathers figures over the last window, of one agent or tenant if named.
func (p *Plane) Stats(window time.Duration, agent, tenant string) Stats {
	now := p.now()
	out := Stats{At: now, States: p.states()}
	var total gathering
	agents, tenants := make(map[string]*gathering), make(map[string]*gathering)
	of := func(m map[string]*gathering, name string) *gathering {
		if m[name] == nil {
			m[name] = new(gathering)
		}
		return m[name]
	}
	p.stats.mu.Lock()
	window = p.stats.covered(now, window)
	out.Window = window
	for i := range p.stats.ring {
		x := &p.stats.ring[i]
		if now.Sub(x.at) > window || agent != "" && x.agent != agent || tenant != "" && x.tenant != tenant {
			continue
		}
		total.add(x)
		of(agents, x.agent).add(x)
		of(tenants, x.tenant).add(x)
	}
	p.stats.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.ix.agents {
		if agent == "" || name == agent {
			of(agents, name)
		}
	}
	for name := range p.ix.tenants {
		if tenant == "" || name == tenant {
			of(tenants, name)
		}
	}
	queued, running := 0, 0
	for _, name := range slices.Sorted(maps.Keys(agents)) {
		n := p.ix.agents.of(name)
		queued, running = queued+n.queued, running+n.live
		out.Agents = append(out.Agents, NamedFigures{name, agents[name].figures(n.queued, n.live)})
	}
	for _, name := range slices.Sorted(maps.Keys(tenants)) {
		n := p.ix.tenants.of(name)
		out.Tenants = append(out.Tenants, NamedFigures{name, tenants[name].figures(n.queued, n.live)})
	}
	out.Total = total.figures(queued, running)
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
	return out
}
