package local

import (
	"slices"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/runtime"
)

// unit is one revision of an agent here: its attempts, and how they are executed. All of it is guarded by Runtime.mu.
type unit struct {
	rt    *Runtime
	key   string
	agent *fleet.Agent
	// pulls: workers fetch the attempts and report them themselves.
	pulls     bool
	exec      executor
	attempts  map[*attempt]struct{}
	queue     []*attempt // behind the gate: what may begin only once the agent is built and no other revision is in the way
	forgotten bool
}

// executor is a way to execute the attempts of a unit. All methods are called with the lock and do not block.
type executor interface {
	// start takes an attempt on. What it returns is to be called without the lock. An error of either means that
	// nothing of the attempt has begun.
	start(x *attempt) (begin func() error, err error)
	// stop tells an attempt that start has taken to end, and kills it after grace.
	stop(x *attempt, grace time.Duration)
	// left tells that an attempt is over.
	left(x *attempt)
	// warm reports whether processes are kept.
	warm() bool
	// retire ends them; no attempt is there.
	retire()
	// close ends everything: attempts are handed back, what has not ended after grace is killed.
	close(grace time.Duration)
}

// unitOf finds or makes the attempt's unit. Needs the lock.
func (rt *Runtime) unitOf(a *runtime.Assignment) *unit {
	agent := a.Agent
	pulls := agent.Run.URL == "" && agent.Run.Protocol == fleet.Worker
	// Not the agent's address: control may decode the same revision again.
	key := agent.Name() + "\x00" + agent.Hash()
	if pulls && a.Target != nil {
		key += "\x00" + a.Target.Name() // a worker belongs to one target
	}
	if u := rt.units[key]; u != nil {
		return u
	}
	u := &unit{rt: rt, key: key, agent: agent, pulls: pulls, attempts: make(map[*attempt]struct{})}
	switch {
	case agent.Run.URL != "":
		u.exec = &endpoint{rt: rt, url: agent.Run.URL}
	case pulls:
		target := ""
		if a.Target != nil {
			target = a.Target.Name()
		}
		u.exec = newPool(u, target)
	case agent.Run.Protocol == fleet.HTTP:
		u.exec = newPool(u, "")
	default:
		u.exec = &programs{rt: rt, serial: agent.Shape == fleet.Instance}
	}
	rt.units[key] = u
	return u
}

// admit begins an attempt, or lets it wait behind the gate. Needs the lock.
func (u *unit) admit(x *attempt) (begin func() error, err error) {
	open, err := u.gate()
	switch {
	case err != nil:
		return nil, err
	case !open || len(u.queue) > 0:
		x.waiting = true
		u.queue = append(u.queue, x)
		return nil, nil
	}
	return u.exec.start(x)
}

// gate reports whether attempts may begin, and sees to it that they may later. An error refuses them.
func (u *unit) gate() (open bool, err error) {
	// 1. Instances have one process for each agent: another revision's must be gone.
	if u.agent.Shape == fleet.Instance {
		for _, other := range u.rt.units {
			if other != u && other.agent.Name() == u.agent.Name() && (other.exec.warm() || len(other.attempts) > len(other.queue)) {
				other.forgotten = true
				u.rt.tidy(other)
				return false, nil
			}
		}
	}
	// 2. The build.
	return u.rt.built(u)
}

// proceed begins what waits behind the gate, if it is open now. Needs the lock.
func (u *unit) proceed() {
	if len(u.queue) == 0 || u.rt.closed {
		return
	}
	open, err := u.gate()
	if !open && err == nil {
		return
	}
	queue := u.queue
	u.queue = nil
	for _, x := range queue {
		x.waiting = false
		if x.over {
			continue
		}
		begin := func() error { return err }
		if err == nil {
			var failed error
			if begin, failed = u.exec.start(x); failed != nil {
				begin = func() error { return failed }
			}
		}
		if begin == nil {
			continue
		}
		u.rt.wg.Go(func() {
			if err := begin(); err != nil {
				u.rt.finish(x, notStarted(err.Error()))
			}
		})
	}
}

func (u *unit) unwait(x *attempt) {
	x.waiting = false
	u.queue = slices.DeleteFunc(u.queue, func(other *attempt) bool { return other == x })
}

// tidy ends what is not needed any more and drops a unit of which nothing is left. Needs the lock.
func (rt *Runtime) tidy(u *unit) {
	if len(u.attempts) > 0 {
		return
	}
	if u.forgotten && u.exec.warm() {
		u.exec.retire()
	}
	if u.exec.warm() || rt.units[u.key] != u {
		return
	}
	delete(rt.units, u.key)
	if u.agent.Shape == fleet.Instance {
		for _, other := range rt.units {
			if other.agent.Name() == u.agent.Name() {
				other.proceed()
			}
		}
	}
}
