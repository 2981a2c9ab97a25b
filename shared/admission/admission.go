// Package admission holds the preconditions of a run: whether a submission is taken in at all, and whether a queued run
// may be placed now.
//
// Both are answered from counts that the caller keeps. Nothing here blocks, reads a clock or remembers.
package admission

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// DefaultPriority is the priority of a run for which none was asked.
const DefaultPriority = 50

// View is what the caller knows when it asks. Running counts are of runs assigned or running.
type View struct {
	TenantQueued, TenantRunning int
	AgentQueued, AgentRunning   int
	AgentTenantRunning          int // of this agent for this tenant
	// Borrowable is how much of the quota of the pool named in Tenant.Borrow nobody uses.
	Borrowable int
	Paused     bool // a person paused the agent
	// FreeSlots: a run of the agent could start now, as far as is known.
	FreeSlots bool
	// Expected is how long a run of the agent takes; 0 when nobody knows.
	Expected time.Duration
}

// Action is the answer to a submission or a queued run.
type Action string

const (
	Admit  Action = "admit"
	Hold   Action = "hold"   // Start: not now; see Until and Scope
	Shed   Action = "shed"   // Submit: too much is waiting; come again after RetryAfter
	Refuse Action = "refuse" // Submit: it will never be taken in like this
)

// Scope is whom a Hold holds beside the run itself. As long as the counts stay, the same answer awaits every run of
// that scope, so a pass need not ask again.
type Scope string

const (
	ScopeRun         Scope = "run" // this one alone
	ScopeTenant      Scope = "tenant"
	ScopeAgent       Scope = "agent"
	ScopeAgentTenant Scope = "agent-tenant" // the tenant's runs of the agent
)

// Verdict is an answer. Fields that do not belong to its Action are empty.
type Verdict struct {
	Action  Action
	Reason  run.Reason // Hold, Shed
	Message string     // all but Admit, for people: what binds, with its numbers
	Scope   Scope      // Hold
	// Until is when a Hold ends by itself; 0 when a change of the counts ends it.
	Until run.Instant
	// RetryAfter is when, by the rate at which runs end, a place should be free: 1 s to 5 min.
	RetryAfter time.Duration
	// Delay, with Admit, is how long the door keeps its answer back so that the submitter slows down: up to 10 s.
	Delay time.Duration
}

// Priority is the one that a run gets: what was asked for, else DefaultPriority or the tenant's highest if that is less.
func Priority(asked *int, t *fleet.Tenant) int {
	if asked != nil {
		return *asked
	}
	return min(DefaultPriority, priorityMax(t))
}

// priorityMax leaves a tenant without defaults unbounded, as its other limits are.
func priorityMax(t *fleet.Tenant) int {
	if t.PriorityMax == 0 {
		return fleet.MaxPriority
	}
	return t.PriorityMax
}

// Submit says whether a run of the agent for the tenant may enter the queue: Admit, Shed or Refuse.
//
// Refused is a priority outside what the tenant may ask for. Shed is what passes the tenant's quota of queued runs, and
// all that could not start now where the agent's backpressure is shed; where it is slow, the answer is delayed by about
// the time that one run needs to leave the queue.
func Submit(a *fleet.Agent, t *fleet.Tenant, v View, priority int) Verdict {
	if most := priorityMax(t); priority < 0 || priority > most {
		return Verdict{Action: Refuse, Message: fmt.Sprintf(
			"priority %d is outside 0 to %d, the range of tenant %s", priority, most, t.Name())}
	}
	if most := t.Quota.Queued; most > 0 && v.TenantQueued >= most {
		return Verdict{
			Action: Shed, Reason: run.QuotaReached, RetryAfter: retryAfter(v.TenantQueued-most+1, v.TenantRunning, v.Expected),
			Message: fmt.Sprintf("tenant %s has %d runs queued, its quota is %d", t.Name(), v.TenantQueued, most),
		}
	}
	if v.FreeSlots && !v.Paused {
		return Verdict{Action: Admit}
	}
	switch a.Backpressure {
	case fleet.BackpressureShed:
		saturated := fmt.Sprintf("no slot for agent %s is free (%d running, %d queued)", a.Name(), v.AgentRunning, v.AgentQueued)
		if v.Paused {
			saturated = fmt.Sprintf("agent %s is paused", a.Name())
		}
		return Verdict{
			Action: Shed, Reason: run.Shed, RetryAfter: retryAfter(v.AgentQueued+1, v.AgentRunning, v.Expected),
			Message: saturated + ", and its backpressure is shed",
		}
	case fleet.BackpressureSlow:
		return Verdict{Action: Admit, Delay: min(interval(v.AgentRunning, v.Expected), maxDelay)}
	}
	return Verdict{Action: Admit}
}

// Start says whether a queued run may be placed now: Admit or Hold.
func Start(a *fleet.Agent, t *fleet.Tenant, v View, r *run.Record, now run.Instant) Verdict {
	hold := func(reason run.Reason, scope Scope, format string, args ...any) Verdict {
		return Verdict{Action: Hold, Reason: reason, Scope: scope, Message: fmt.Sprintf(format, args...)}
	}
	if r.NotBefore > now {
		held := hold(run.NotBefore, ScopeRun, "it is not to start before %s", r.NotBefore.Time().Format(time.RFC3339))
		held.Until = r.NotBefore
		return held
	}
	if v.Paused {
		return hold(run.AgentPaused, ScopeAgent, "agent %s is paused", a.Name())
	}
	if own := t.Quota.Running; own > 0 {
		borrowed := max(min(t.Borrow.Limit, v.Borrowable), 0)
		if v.TenantRunning >= own+borrowed {
			return hold(run.QuotaReached, ScopeTenant, "tenant %s has %d runs in progress, its quota is %d%s",
				t.Name(), v.TenantRunning, own, lent(t.Borrow, borrowed))
		}
	}
	if most := a.Concurrency.Max; most > 0 && v.AgentRunning >= most {
		return hold(run.ConcurrencyReached, ScopeAgent, "agent %s has %d runs in progress, its concurrency.max is %d",
			a.Name(), v.AgentRunning, most)
	}
	if most := a.Concurrency.PerTenant; most > 0 && v.AgentTenantRunning >= most {
		return hold(run.ConcurrencyReached, ScopeAgentTenant,
			"agent %s has %d runs in progress for tenant %s, its concurrency.perTenant is %d", a.Name(), v.AgentTenantRunning, t.Name(), most)
	}
	return Verdict{Action: Admit}
}

// lent says what a tenant with a right to borrow gets beside its quota.
func lent(b fleet.Borrow, borrowed int) string {
	if b.Limit <= 0 {
		return ""
	}
	return fmt.Sprintf(" and pool %s lends it %d of at most %d", b.From, borrowed, b.Limit)
}

const (
	minRetry      = time.Second
	maxRetry      = 5 * time.Minute
	maxDelay      = 10 * time.Second
	assumedLength = 10 * time.Second // of a run that nobody has seen end
	maxLength     = 24 * time.Hour
)

// interval is the mean time between two ends when so many runs are in progress. Where none is, one will be.
func interval(running int, expected time.Duration) time.Duration {
	if expected <= 0 {
		expected = assumedLength
	}
	return min(expected, maxLength) / time.Duration(max(running, 1))
}

// retryAfter is when so many places should have become free, in whole seconds.
func retryAfter(places, running int, expected time.Duration) time.Duration {
	each := max(interval(running, expected), time.Microsecond)
	if places > int(maxRetry/each) {
		return maxRetry
	}
	wait := (time.Duration(max(places, 1))*each + time.Second - 1).Truncate(time.Second)
	return min(max(wait, minRetry), maxRetry)
}
