package forecast

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/run"
)

// figures are counted for each pair of a tenant and an agent.
type figures struct {
	arrived, started, succeeded, failed      int64
	refused, shedQuota, shedPressure, slowed int64
	retries, expired, late, unschedulable    int64
	tokens                                   int64
	computeUSD, tokenUSD                     float64
	busy                                     float64 // ms of attempts
}

// series is what is kept of the starts between each two points.
type series struct {
	n       []int64
	sum     []float64 // of waits, in ms
	longest []int64   // in ms
}

func (s *series) add(scale *scale, now run.Instant, ms int64) {
	if s.n == nil {
		s.n, s.sum, s.longest = make([]int64, scale.n), make([]float64, scale.n), make([]int64, scale.n)
	}
	i := scale.point(now)
	s.n[i]++
	s.sum[i] += float64(ms)
	s.longest[i] = max(s.longest[i], ms)
}

// waited counts how long a run waited for its first start, or in vain.
func (e *engine) waited(p *pair, ms int64) {
	for _, h := range []*histogram{&p.waits, &p.tenant.waits, &p.agent.waits, &e.waits} {
		h.add(ms)
	}
	p.tenant.started.add(&e.scale, e.now, ms)
}

// Result is what came of a forecast. In JSON, lengths of time are seconds.
type Result struct {
	Start   time.Time `json:"start"`
	Window  Span      `json:"window"`
	Seed    uint64    `json:"seed"`
	Total   Row       `json:"total"`
	Tenants []Row     `json:"tenants"` // by name
	Agents  []Row     `json:"agents"`  // by name
	Pairs   []Row     `json:"pairs"`   // by tenant and agent
	Targets []Target  `json:"targets"` // by name
	Series  Series    `json:"series"`
}

// Row is what came of the runs of a tenant, an agent, or both.
type Row struct {
	Tenant string `json:"tenant,omitempty"`
	Agent  string `json:"agent,omitempty"`

	// Every submission is in one of these.
	Arrived   int64 `json:"arrived"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed"`
	Shed      int64 `json:"shed"`    // turned away: come again later
	Refused   int64 `json:"refused"` // turned away for good: a priority that the tenant may not ask for
	Waiting   int64 `json:"waiting"` // at the end of the window: queued, unschedulable or backing off
	Running   int64 `json:"running"` // at the end of the window

	ShedByQuota        int64 `json:"shedByQuota"`        // of Shed: by quota.queued
	ShedByBackpressure int64 `json:"shedByBackpressure"` // of Shed: by the agent's backpressure
	Slowed             int64 `json:"slowed"`             // answers kept back by the agent's backpressure
	Started            int64 `json:"started"`            // at least once
	Retries            int64 `json:"retries"`            // further starts
	Expired            int64 `json:"expired"`            // of Failed: by timeouts.queue
	Late               int64 `json:"late"`               // of Failed: at their deadline

	// Wait is from the submission to the first start; of a run that never started, to its end or that of the window.
	Wait Waits `json:"wait"`
	// Starved is the longest time during which runs were queued and none started; 0 in rows that are no tenant's.
	Starved     Span       `json:"starved"`
	StarvedFrom *time.Time `json:"starvedFrom,omitempty"`
	// Causes is what all waiting went to, in run-seconds. Waiting before another attempt is in it.
	Causes map[Cause]Sum `json:"causes"`
	// Behind is who held the slots that CauseShare counts, in run-seconds, the most first; of a row of a tenant, and
	// where there are not too many of them.
	Behind []Holder `json:"behind,omitempty"`

	Unschedulable       int64  `json:"unschedulable"`     // times that a run became so
	UnschedulableTime   Span   `json:"unschedulableTime"` // during which at least one run of an agent for a tenant was
	UnschedulableReason string `json:"unschedulableReason,omitempty"`

	PeakWaiting int     `json:"peakWaiting,omitempty"` // of a tenant
	PeakRunning int     `json:"peakRunning,omitempty"` // of a tenant
	PeakWorkers int     `json:"peakWorkers,omitempty"` // of an agent
	SlotTime    Sum     `json:"slotTime"`              // of all attempts together
	Tokens      int64   `json:"tokens"`
	ComputeUSD  float64 `json:"computeUSD"`
	TokenUSD    float64 `json:"tokenUSD"`
}

// Holder is a tenant that held slots for which others waited.
type Holder struct {
	Tenant string `json:"tenant"`
	For    Sum    `json:"for"`
}

// maxBehind bounds Row.Behind.
const maxBehind = 5

// Name is the tenant, the agent, or both.
func (r *Row) Name() string {
	if r.Tenant != "" && r.Agent != "" {
		return r.Tenant + "/" + r.Agent
	}
	return cmp.Or(r.Tenant, r.Agent, "all")
}

// USD is the whole cost.
func (r *Row) USD() float64 { return r.ComputeUSD + r.TokenUSD }

// Waited is all waiting together, in run-seconds.
func (r *Row) Waited() Sum {
	var sum Sum
	for _, c := range Causes { // in their order, so that it is rounded the same each time
		sum += r.Causes[c]
	}
	return sum
}

// Target is what came of a target.
type Target struct {
	Name    string    `json:"name"`
	Peak    int       `json:"peak"`    // slots in use
	Used    []float64 `json:"used"`    // slots in use, mean
	Size    []float64 `json:"size"`    // slots that there are, mean; nothing for no bound
	Workers []float64 `json:"workers"` // processes of a local target, connected workers of a polled one, mean
}

// Series are figures over time, at equal steps from the start of the window.
type Series struct {
	Step    Span         `json:"step"`
	Queued  []float64    `json:"queued"`  // of all tenants, mean
	Running []float64    `json:"running"` // of all tenants, mean
	Tenants []TenantTime `json:"tenants"` // by name
	Agents  []AgentTime  `json:"agents"`  // by name
}

// TenantTime is a tenant over time.
type TenantTime struct {
	Tenant  string    `json:"tenant"`
	Wait    []Span    `json:"wait"`    // mean of the runs that started in the step
	Longest []Span    `json:"longest"` // of the runs that started in the step
	Starts  []int64   `json:"starts"`  // first ones
	Queued  []float64 `json:"queued"`  // mean
	Running []float64 `json:"running"` // mean
}

// AgentTime is an agent over time.
type AgentTime struct {
	Agent   string    `json:"agent"`
	Workers []float64 `json:"workers"` // processes on local targets and workers of polled ones, mean
}

// result closes all accounts at the end of the window.
func (e *engine) result() *Result {
	e.now = e.end
	r := &Result{Start: e.opts.Start.Time().UTC(), Window: Span(e.opts.Window), Seed: e.opts.Seed}
	// 1. What waits at the end has waited so long at least.
	for _, slab := range e.tasks.slabs {
		for i := range slab {
			if t := &slab[i]; t.state != 0 && t.started == 0 {
				e.waited(t.class.pair, int64(e.now-t.arrival.At))
			}
		}
	}
	// 2. The rows.
	tenants, agents := make([]Row, len(e.tenantList)), make([]Row, len(e.agentList))
	r.Total.Causes = map[Cause]Sum{}
	for i, t := range e.tenantList {
		tenants[i] = Row{Tenant: t.Name(), Causes: map[Cause]Sum{}, Wait: t.waits.waits(), PeakWaiting: t.backlog.peak, PeakRunning: t.running.peak}
		t.gap.moved(e.now, false)
		if t.gap.longest > 0 {
			from := t.gap.from.Time().UTC()
			tenants[i].Starved, tenants[i].StarvedFrom = spanOf(t.gap.longest), &from
			if tenants[i].Starved > r.Total.Starved {
				r.Total.Starved, r.Total.StarvedFrom = tenants[i].Starved, &from
			}
		}
	}
	for i, a := range e.agentList {
		agents[i] = Row{Agent: a.Name(), Causes: map[Cause]Sum{}, Wait: a.waits.waits()}
	}
	behind := make([][]float64, len(e.tenantList))
	for _, p := range e.pairList {
		p.settle(e.now)
		for i, ms := range p.meter.held {
			if behind[p.tenant.index] == nil {
				behind[p.tenant.index] = make([]float64, len(e.tenantList))
			}
			behind[p.tenant.index][i] += ms
		}
		row := Row{Tenant: p.tenant.Name(), Agent: p.agent.Name(), Causes: map[Cause]Sum{}, Wait: p.waits.waits()}
		for _, to := range []*Row{&row, &tenants[p.tenant.index], &agents[p.agent.index], &r.Total} {
			to.add(p)
		}
		r.Pairs = append(r.Pairs, row)
	}
	for i, held := range behind {
		tenants[i].Behind = e.holders(held)
	}
	r.Total.Wait = e.waits.waits()
	// 3. The series.
	r.Series = Series{Step: spanOf(e.scale.step), Queued: e.queued.means(&e.scale, e.end), Running: e.running.means(&e.scale, e.end)}
	r.Total.PeakWaiting, r.Total.PeakRunning = e.queued.peak, e.running.peak
	for _, t := range e.tenantList {
		r.Series.Tenants = append(r.Series.Tenants, e.tenantTime(t))
	}
	for i, a := range e.agentList {
		r.Series.Agents = append(r.Series.Agents, AgentTime{a.Name(), a.workers.means(&e.scale, e.end)})
		agents[i].PeakWorkers = a.workers.peak
	}
	for _, t := range e.targets {
		p := e.places[t.Name()]
		r.Targets = append(r.Targets, Target{
			Name: t.Name(), Peak: p.slots.peak, Used: p.slots.means(&e.scale, e.end), Size: p.size.means(&e.scale, e.end),
			Workers: p.workers.means(&e.scale, e.end),
		})
	}
	// 4. In the order of names.
	r.Tenants, r.Agents = tenants, agents
	byName := func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Agent, b.Agent))
	}
	for _, rows := range [][]Row{r.Tenants, r.Agents, r.Pairs} {
		slices.SortFunc(rows, byName)
	}
	slices.SortFunc(r.Series.Tenants, func(a, b TenantTime) int { return strings.Compare(a.Tenant, b.Tenant) })
	slices.SortFunc(r.Series.Agents, func(a, b AgentTime) int { return strings.Compare(a.Agent, b.Agent) })
	slices.SortFunc(r.Targets, func(a, b Target) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// holders are the largest of what tenants held.
func (e *engine) holders(held []float64) []Holder {
	var list []Holder
	for i, ms := range held {
		if ms > 0 {
			list = append(list, Holder{e.tenantList[i].Name(), sumOf(ms)})
		}
	}
	slices.SortFunc(list, func(a, b Holder) int { return cmp.Or(cmp.Compare(b.For, a.For), strings.Compare(a.Tenant, b.Tenant)) })
	return list[:min(len(list), maxBehind)]
}

func (e *engine) tenantTime(t *tenant) TenantTime {
	x := TenantTime{
		Tenant: t.Name(), Wait: make([]Span, e.scale.n), Longest: make([]Span, e.scale.n), Starts: make([]int64, e.scale.n),
		Queued: t.backlog.means(&e.scale, e.end), Running: t.running.means(&e.scale, e.end),
	}
	for i, n := range t.started.n {
		if n > 0 {
			x.Wait[i], x.Longest[i], x.Starts[i] = spanOf(t.started.sum[i]/float64(n)), spanOf(t.started.longest[i]), n
		}
	}
	return x
}

// add counts a pair's figures in.
func (r *Row) add(p *pair) {
	r.Arrived += p.arrived
	r.Succeeded += p.succeeded
	r.Failed += p.failed
	r.Shed += p.shedQuota + p.shedPressure
	r.ShedByQuota += p.shedQuota
	r.ShedByBackpressure += p.shedPressure
	r.Slowed += p.slowed
	r.Refused += p.refused
	r.Waiting += int64(p.queued + p.meter.parked + p.meter.backoff)
	r.Running += int64(p.live)
	r.Started += p.started
	r.Retries += p.retries
	r.Expired += p.expired
	r.Late += p.late
	r.Unschedulable += p.unschedulable
	r.UnschedulableTime = max(r.UnschedulableTime, spanOf(p.meter.unschedulable))
	if p.meter.reason != "" {
		r.UnschedulableReason = p.meter.reason
	}
	for i, c := range Causes {
		if p.meter.spent[i] > 0 {
			r.Causes[c] += sumOf(p.meter.spent[i])
		}
	}
	r.SlotTime += sumOf(p.busy * float64(max(p.agent.Needs.Slots, 1)))
	r.Tokens = saturated(r.Tokens, p.tokens)
	r.ComputeUSD += p.computeUSD
	r.TokenUSD += p.tokenUSD
}

// saturated adds two counts that are not negative, and ends at the largest there is.
func saturated(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxInt64
}
