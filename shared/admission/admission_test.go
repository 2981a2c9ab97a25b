package admission

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

const now = run.Instant(1_800_000_000_000)

func agent(change func(*fleet.Agent)) *fleet.Agent {
	a := &fleet.Agent{Meta: fleet.Meta{Name: "checker"}, Shape: fleet.Pool}
	a.SetDefaults()
	if change != nil {
		change(a)
	}
	return a
}

func tenant(change func(*fleet.Tenant)) *fleet.Tenant {
	t := &fleet.Tenant{Meta: fleet.Meta{Name: "acme"}}
	t.SetDefaults()
	if change != nil {
		change(t)
	}
	return t
}

// compare leaves the message to what it must say.
func compare(t *testing.T, want, got Verdict, says string) {
	t.Helper()
	if (got.Message == "") != (got.Action == Admit) || !strings.Contains(got.Message, says) {
		t.Errorf("message %q of %s does not say %q", got.Message, got.Action, says)
	}
	got.Message = ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdict (-want +got):\n%s", diff)
	}
}

func TestSubmit(t *testing.T) {
	backpressure := func(b fleet.Backpressure) *fleet.Agent {
		return agent(func(a *fleet.Agent) { a.Backpressure = b })
	}
	queue10 := tenant(func(t *fleet.Tenant) { t.Quota.Queued = 10 })
	upTo40 := tenant(func(t *fleet.Tenant) { t.PriorityMax = 40 })
	full := View{AgentQueued: 3, AgentRunning: 2, Expected: 4 * time.Second}
	admit := Verdict{Action: Admit}
	shed := func(reason run.Reason, after time.Duration) Verdict {
		return Verdict{Action: Shed, Reason: reason, RetryAfter: after}
	}

	for name, c := range map[string]struct {
		a        *fleet.Agent
		t        *fleet.Tenant
		v        View
		priority int
		want     Verdict
		says     string
	}{
		"a run is taken in":                             {agent(nil), tenant(nil), View{}, 50, admit, ""},
		"a zero quota bounds nothing":                   {agent(nil), tenant(nil), View{TenantQueued: 1e6}, 50, admit, ""},
		"the last place in the quota is given":          {agent(nil), queue10, View{TenantQueued: 9}, 50, admit, ""},
		"a full quota sheds until one run has ended":    {agent(nil), queue10, View{TenantQueued: 10, TenantRunning: 2, Expected: 6 * time.Second}, 50, shed(run.QuotaReached, 3*time.Second), "tenant acme has 10 runs queued, its quota is 10"},
		"an overfull quota takes longer":                {agent(nil), queue10, View{TenantQueued: 13, TenantRunning: 2, Expected: 6 * time.Second}, 50, shed(run.QuotaReached, 12*time.Second), ""},
		"with nothing running it takes one run's time":  {agent(nil), queue10, View{TenantQueued: 10, Expected: 6 * time.Second}, 50, shed(run.QuotaReached, 6*time.Second), ""},
		"an unknown length is assumed to be 10 seconds": {agent(nil), queue10, View{TenantQueued: 10, TenantRunning: 1}, 50, shed(run.QuotaReached, 10*time.Second), ""},
		"nobody is sent away for less than a second":    {agent(nil), queue10, View{TenantQueued: 10, TenantRunning: 1000, Expected: time.Millisecond}, 50, shed(run.QuotaReached, time.Second), ""},
		"nor for more than five minutes":                {agent(nil), queue10, View{TenantQueued: math.MaxInt, TenantRunning: 1, Expected: math.MaxInt64}, 50, shed(run.QuotaReached, 5*time.Minute), ""},

		"a priority at the tenant's highest is taken": {agent(nil), upTo40, View{}, 40, admit, ""},
		"one above it is refused":                     {agent(nil), upTo40, View{}, 41, Verdict{Action: Refuse}, "priority 41 is outside 0 to 40, the range of tenant acme"},
		"a negative one is refused":                   {agent(nil), tenant(nil), View{}, -1, Verdict{Action: Refuse}, "0 to 100"},
		"it is refused even when the queue is full":   {agent(nil), tenant(func(t *fleet.Tenant) { t.PriorityMax, t.Quota.Queued = 40, 1 }), View{TenantQueued: 1}, 41, Verdict{Action: Refuse}, ""},

		"without a free slot it queues by default":    {agent(nil), tenant(nil), full, 50, admit, ""},
		"shed turns it away":                          {backpressure(fleet.BackpressureShed), tenant(nil), full, 50, shed(run.Shed, 8*time.Second), "no slot for agent checker is free (2 running, 3 queued)"},
		"shed takes it while a slot is free":          {backpressure(fleet.BackpressureShed), tenant(nil), View{FreeSlots: true}, 50, admit, ""},
		"shed turns it away from a paused agent":      {backpressure(fleet.BackpressureShed), tenant(nil), View{FreeSlots: true, Paused: true}, 50, shed(run.Shed, 10*time.Second), "agent checker is paused"},
		"a paused agent's queue fills by default":     {agent(nil), tenant(nil), View{Paused: true}, 50, admit, ""},
		"slow delays the answer at the pace of work":  {backpressure(fleet.BackpressureSlow), tenant(nil), full, 50, Verdict{Action: Admit, Delay: 2 * time.Second}, ""},
		"slow delays it by no more than ten seconds":  {backpressure(fleet.BackpressureSlow), tenant(nil), View{Expected: time.Hour}, 50, Verdict{Action: Admit, Delay: 10 * time.Second}, ""},
		"slow answers at once while a slot is free":   {backpressure(fleet.BackpressureSlow), tenant(nil), View{FreeSlots: true}, 50, admit, ""},
		"the quota binds also while a slot is free":   {agent(nil), queue10, View{TenantQueued: 10, TenantRunning: 10, FreeSlots: true}, 50, shed(run.QuotaReached, time.Second), ""},
		"a tenant without defaults has no highest":    {agent(nil), &fleet.Tenant{}, View{}, 100, admit, ""},
		"above the highest that there is, it has one": {agent(nil), &fleet.Tenant{}, View{}, 101, Verdict{Action: Refuse}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			compare(t, c.want, Submit(c.a, c.t, c.v, c.priority), c.says)
		})
	}
}

func TestStart(t *testing.T) {
	quota := func(running, borrow int) *fleet.Tenant {
		return tenant(func(t *fleet.Tenant) {
			t.Quota.Running = running
			t.Borrow = fleet.Borrow{From: "spare", Limit: borrow}
		})
	}
	limits := agent(func(a *fleet.Agent) { a.Concurrency = fleet.Concurrency{Max: 5, PerTenant: 2} })
	admit := Verdict{Action: Admit}
	hold := func(reason run.Reason, scope Scope) Verdict {
		return Verdict{Action: Hold, Reason: reason, Scope: scope}
	}
	later := hold(run.NotBefore, ScopeRun)
	later.Until = now + 1

	for name, c := range map[string]struct {
		a         *fleet.Agent
		t         *fleet.Tenant
		v         View
		notBefore run.Instant
		want      Verdict
		says      string
	}{
		"nothing binds":                             {agent(nil), tenant(nil), View{TenantRunning: 1e6, AgentRunning: 1e6, AgentTenantRunning: 1e6}, 0, admit, ""},
		"its start time has not come":               {agent(nil), tenant(nil), View{}, now + 1, later, "not to start before 2027-01-15T08:00:00Z"},
		"its start time has come":                   {agent(nil), tenant(nil), View{}, now, admit, ""},
		"the agent is paused":                       {agent(nil), tenant(nil), View{Paused: true}, 0, hold(run.AgentPaused, ScopeAgent), "agent checker is paused"},
		"its own start time is told before a pause": {agent(nil), tenant(nil), View{Paused: true}, now + 1, later, ""},
		"the quota has one place left":              {agent(nil), quota(3, 0), View{TenantRunning: 2}, 0, admit, ""},
		"the quota is used":                         {agent(nil), quota(3, 0), View{TenantRunning: 3}, 0, hold(run.QuotaReached, ScopeTenant), "tenant acme has 3 runs in progress, its quota is 3"},
		"what it does not borrow helps nobody":      {agent(nil), quota(3, 0), View{TenantRunning: 3, Borrowable: 9}, 0, hold(run.QuotaReached, ScopeTenant), ""},
		"it borrows what a pool has left":           {agent(nil), quota(3, 4), View{TenantRunning: 4, Borrowable: 2}, 0, admit, ""},
		"it borrows no more than is left":           {agent(nil), quota(3, 4), View{TenantRunning: 5, Borrowable: 2}, 0, hold(run.QuotaReached, ScopeTenant), "pool spare lends it 2 of at most 4"},
		"it borrows no more than it may":            {agent(nil), quota(3, 4), View{TenantRunning: 7, Borrowable: 9}, 0, hold(run.QuotaReached, ScopeTenant), "4 of at most 4"},
		"a pool in debt takes nothing away":         {agent(nil), quota(3, 4), View{TenantRunning: 2, Borrowable: -5}, 0, admit, ""},
		"the agent has one place left":              {limits, tenant(nil), View{AgentRunning: 4}, 0, admit, ""},
		"the agent is full":                         {limits, tenant(nil), View{AgentRunning: 5}, 0, hold(run.ConcurrencyReached, ScopeAgent), "concurrency.max is 5"},
		"the agent is full for this tenant":         {limits, tenant(nil), View{AgentRunning: 4, AgentTenantRunning: 2}, 0, hold(run.ConcurrencyReached, ScopeAgentTenant), "for tenant acme, its concurrency.perTenant is 2"},
		"the widest scope is told first":            {limits, quota(3, 0), View{TenantRunning: 3, AgentRunning: 5, AgentTenantRunning: 2}, 0, hold(run.QuotaReached, ScopeTenant), ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := &run.Record{Spec: run.Spec{ID: "r1", NotBefore: c.notBefore}}
			compare(t, c.want, Start(c.a, c.t, c.v, r, now), c.says)
		})
	}
}

func TestPriorityOfWhoAskedForNone(t *testing.T) {
	asked := 70
	for _, c := range []struct {
		asked *int
		most  int
		want  int
	}{{nil, 100, 50}, {nil, 40, 40}, {nil, 0, 50}, {&asked, 100, 70}, {&asked, 40, 70}} {
		if got := Priority(c.asked, &fleet.Tenant{PriorityMax: c.most}); got != c.want {
			t.Errorf("Priority(%v) up to %d is %d, want %d", c.asked, c.most, got, c.want)
		}
	}
}
