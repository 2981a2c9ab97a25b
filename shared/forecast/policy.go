package forecast

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/run"
)

// agent is a declared agent and how many of its runs are where.
type agent struct {
	*fleet.Agent
	index        int
	queued, live int
	freed        uint64 // how often a run of it ended
	full         bool   // its concurrency was used up after the last pass
	pairs        []*pair
	waits        histogram
	workers      level
}

// tenant is a tenant, declared or not, and how many of its runs are where.
type tenant struct {
	*fleet.Tenant
	index        int
	queued, live int
	freed        uint64
	full         bool // its quota was used up after the last pass
	pairs        []*pair
	waits        histogram
	gap          gap
	backlog      level
	running      level
	started      series
}

// pair is an agent's runs for a tenant.
type pair struct {
	agent  *agent
	tenant *tenant
	plain  *class            // of runs without a session
	turns  map[string]*class // by session, while there are runs of it

	queued, live int
	freed        uint64
	full         bool // concurrency.perTenant was used up after the last pass
	touched      bool // its counts change in this instant
	figures
	waits histogram
	meter meter
	group *group // of the nodes that fit
	fleet uint64 // generation of the World at which group was found
}

// class is runs with the same outcome: of an agent, for a tenant, in a session.
type class struct {
	key     queue.Class
	pair    *pair
	session string
	runs    int  // that have not ended
	busy    bool // the session has a run in progress
	queued  int
	parked  []*task // unschedulable
	record  run.Record
	request placement.Request
	refused refusal // by the last decision
	chosen  bool    // is among the candidates of this pass
}

// refusal is why the last decision left a class where it is, and what it stands on.
type refusal struct {
	scope scope
	stamp uint64 // of whatever frees it
}

type scope uint8

const (
	notRefused scope = iota
	byTenant
	byAgent
	byPair
	bySession
	byWorld
)

// policy finds what is declared by name.
type policy struct {
	agents  map[string]*agent
	tenants map[string]*tenant
	targets []*fleet.Target
	pairs   map[[2]string]*pair

	agentList  []*agent
	tenantList []*tenant
	pairList   []*pair
}

// Bounds on what a forecast tells apart.
const (
	MaxTenants = 5_000
	MaxPairs   = 20_000 // of a tenant and an agent
)

func newPolicy(objects []fleet.Object) *policy {
	p := &policy{agents: make(map[string]*agent), tenants: make(map[string]*tenant), pairs: make(map[[2]string]*pair)}
	for _, o := range objects {
		switch o := o.(type) {
		case *fleet.Agent:
			a := &agent{Agent: o, index: len(p.agentList)}
			p.agents[o.Name()], p.agentList = a, append(p.agentList, a)
		case *fleet.Target:
			p.targets = append(p.targets, o)
		case *fleet.Tenant:
			p.addTenant(o)
		}
	}
	return p
}

func (p *policy) addTenant(o *fleet.Tenant) *tenant {
	t := &tenant{Tenant: o, index: len(p.tenantList)}
	p.tenants[o.Name()], p.tenantList = t, append(p.tenantList, t)
	return t
}

// pair is that of a submission. A tenant that is not declared gets every default, as in the control plane.
func (p *policy) pair(k *Kind) (*pair, error) {
	key := [2]string{k.Tenant, k.Agent}
	if known := p.pairs[key]; known != nil {
		return known, nil
	}
	a := p.agents[k.Agent]
	if a == nil {
		return nil, fmt.Errorf("an arrival names agent %q, which the fleet does not declare; it declares %s",
			k.Agent, listed(slices.Sorted(maps.Keys(p.agents))))
	}
	if len(p.pairs) >= MaxPairs {
		return nil, fmt.Errorf("the arrivals are of more than %d pairs of a tenant and an agent", MaxPairs)
	}
	t := p.tenants[k.Tenant]
	if t == nil {
		if len(p.tenants) >= MaxTenants {
			return nil, fmt.Errorf("the arrivals are of more than %d tenants", MaxTenants)
		}
		o := &fleet.Tenant{Meta: fleet.Meta{Name: k.Tenant}}
		o.SetDefaults()
		t = p.addTenant(o)
	}
	made := &pair{agent: a, tenant: t}
	made.plain = made.newClass("")
	a.pairs, t.pairs = append(a.pairs, made), append(t.pairs, made)
	p.pairs[key], p.pairList = made, append(p.pairList, made)
	return made, nil
}

func (p *pair) newClass(session string) *class {
	c := &class{pair: p, session: session}
	c.record.Spec = run.Spec{Agent: p.agent.Name(), Revision: 1, Tenant: p.tenant.Name()}
	c.request = placement.Request{Run: &c.record, Agent: p.agent.Agent, Tenant: p.tenant.Tenant}
	c.key = queue.Class(placement.ClassKey(&c.request))
	if session != "" {
		c.key = c.key.With(session)
	}
	return c
}

// class is the pair's class of a session, "" for none.
func (p *pair) class(session string) *class {
	if session == "" {
		return p.plain
	}
	c := p.turns[session]
	if c == nil {
		if p.turns == nil {
			p.turns = make(map[string]*class)
		}
		c = p.newClass(session)
		p.turns[session] = c
	}
	return c
}

// inOrder lists the pair's classes, those of sessions by name.
func (p *pair) inOrder() []*class {
	list := []*class{p.plain}
	for _, session := range slices.Sorted(maps.Keys(p.turns)) {
		list = append(list, p.turns[session])
	}
	return list
}

// view is what admission asks about.
func (p *pair) view() admission.View {
	return admission.View{
		TenantQueued: p.tenant.queued, TenantRunning: p.tenant.live, AgentQueued: p.agent.queued, AgentRunning: p.agent.live,
		AgentTenantRunning: p.live,
	}
}

// count follows runs of the pair that come to or leave the queue, or start or end.
func (p *pair) count(queued, live int) {
	p.queued, p.live = p.queued+queued, p.live+live
	p.tenant.queued, p.tenant.live = p.tenant.queued+queued, p.tenant.live+live
	p.agent.queued, p.agent.live = p.agent.queued+queued, p.agent.live+live
	if live < 0 {
		p.freed++
		p.tenant.freed++
		p.agent.freed++
	}
}

// processes is how many processes of the agent a local target has for so many runs: as the local runtime starts them.
func (a *agent) processes(runs int) int {
	switch {
	case len(a.Run.Command) == 0: // served elsewhere
		return 0
	case a.Shape == fleet.Instance:
		return min(runs, 1)
	case a.Shape == fleet.Job:
		return runs
	}
	slots := max(a.Run.Slots, 1)
	return (runs + slots - 1) / slots
}

// listed names a few.
func listed(names []string) string {
	const most = 8
	if len(names) == 0 {
		return "none"
	}
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
