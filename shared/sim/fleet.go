package sim

import (
	"strings"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
)

// declared is the fleet as the writes that were applied say, in every version that there was.
type declared struct {
	targets map[string][]*fleet.Target // nil at the end: deleted
	tenants map[string]*fleet.Tenant
	agents  map[string]*fleet.Agent // by NAME@REVISION
	paused  map[string]bool
	quotas  map[string][]quota // by tenant, in the order in which they came
}

// quota is how many runs of a tenant may run from the so-manieth write on; 0 for any number.
type quota struct{ from, most int }

// quota is what binds a process that leads since a write: the newest, or where another process may have declared it
// unheard, the widest since then.
func (d *declared) quota(tenant string, led int, two bool) int {
	list := d.quotas[tenant]
	if len(list) == 0 {
		return 0
	}
	widest := list[len(list)-1].most
	for i := len(list) - 1; two && i >= 0 && widest > 0; i-- {
		if widest = max(widest, list[i].most); list[i].most == 0 {
			return 0
		}
		if list[i].from <= led {
			break
		}
	}
	return widest
}

var pollTargets = []string{"pool-a", "pool-b"}

const localTarget = "here"

func secs(n int) fleet.Duration { return fleet.Duration(time.Duration(n) * time.Second) }

func targetOf(name string, change func(*fleet.Target)) *fleet.Target {
	t := &fleet.Target{Meta: fleet.Meta{Name: name}, Runtime: fleet.RuntimePoll, Shapes: fleet.Shapes()}
	if change != nil {
		change(t)
	}
	return t
}

func (w *world) target(name string, r *rng) *fleet.Target {
	return targetOf(name, func(t *fleet.Target) {
		if name == localTarget {
			t.Runtime, t.Capacity.Runs = fleet.RuntimeLocal, 2
		}
		if name == "pool-b" {
			t.Accelerator = "nvidia-l4"
			if !w.healing && !w.temper.fair {
				t.Tenants = []string{"t0", "t1"}
			}
		}
		if r == nil {
			return
		}
		switch r.n(4) {
		case 0:
			t.Drain = true
		case 1:
			t.Taints = []string{"spot"}
		case 2:
			t.Tenants = []string{pick(r, tenants)}
		}
		if name == localTarget {
			t.Capacity.Runs = 1 + r.n(3)
		}
	})
}

// agentToAsk is one that a client asks for: every third time at least it is the plain one.
func (w *world) agentToAsk(r *rng) string {
	switch {
	case w.temper.calls && r.oneIn(2):
		return "boss"
	case w.temper.calls && w.temper.effects && r.oneIn(2):
		return "undoes"
	case r.oneIn(3):
		return "plain"
	}
	return pick(r, w.temper.agents)
}

func (w *world) agent(name string, revision int) *fleet.Agent {
	a := &fleet.Agent{Meta: fleet.Meta{Name: name, Version: "v" + string(rune('0'+revision%10))}, Shape: fleet.Pool}
	a.Run = fleet.Run{Command: []string{name}, Protocol: fleet.Stdio}
	a.Retry.MaxAttempts = 3
	a.Retry.Backoff = fleet.Backoff{Initial: secs(1), Factor: 2, Max: secs(60), Jitter: 0.2}
	a.Effects.Settle = fleet.Duration(settle)
	a.Timeouts.Attempt = secs(120)
	switch name {
	case "gpu":
		a.Needs.Accelerator = "nvidia-l4"
	case "wide":
		a.Needs.Slots = 2
		a.Needs.Tolerates = []string{"spot"}
	case "chat":
		a.Shape = fleet.Instance
	case "capped":
		a.Concurrency.Max = 1
	case "brief":
		a.Timeouts.Attempt, a.Timeouts.Heartbeat, a.Timeouts.Queue, a.Retain = secs(20), secs(10), secs(90), secs(40)
	case "boss":
		a.Permissions.Call = []string{"mid", "leaf", "keyed", "inner", "undoes"}
	case "mid":
		a.Permissions.Call = []string{"leaf"}
	case "leaf":
		a.Retain = secs(40)
	case "keyed":
		a.Concurrency.PerKey = &fleet.PerKey{Key: `string(int(input.n))`, Max: 1}
	case "reconciles", "undoes":
		a.Effects.OnUnknown = fleet.UnknownReconcile
	case "repeats":
		a.Effects.OnUnknown = fleet.UnknownRepeat
	case "asks":
		a.Effects.OnUnknown = fleet.UnknownAsk
	case "fails":
		a.Effects.OnUnknown = fleet.UnknownFail
		a.Retry.MaxAttempts, a.Retain = 2, secs(40)
	}
	w.hurry(a)
	return a
}

func (w *world) tenant(name string, r *rng) *fleet.Tenant {
	t := &fleet.Tenant{Meta: fleet.Meta{Name: name}}
	switch {
	case w.temper.fair:
		t.Weight = map[string]int{"t0": 1, "t1": 3, "t2": 2}[name]
	case name == "t1":
		t.Weight, t.Quota.Running = 3, 2
	case name == "t2":
		t.Quota.Queued = 6
	}
	if r != nil {
		t.Weight, t.Quota.Running = 1+r.n(4), r.n(4)
	}
	return t
}

// declareFleet applies what every world begins with, or is healed with.
func (w *world) declareFleet() {
	w.fleet = declared{map[string][]*fleet.Target{}, map[string]*fleet.Tenant{}, map[string]*fleet.Agent{}, map[string]bool{}, map[string][]quota{}}
	objects := w.wholeFleet()
	if _, err := w.procs[0].plane.Apply(w.ctx, objects, control.ApplyOptions{Actor: "operator"}); err != nil {
		w.fail("the fleet is accepted", "%v", err)
	}
}

func (w *world) wholeFleet() []fleet.Object {
	var objects []fleet.Object
	for _, name := range pollTargets {
		objects = append(objects, w.target(name, nil))
	}
	if !w.temper.two { // processes of a local target belong to the one server of an exclusive store
		objects = append(objects, w.target(localTarget, nil))
	}
	for _, name := range w.temper.agents {
		objects = append(objects, w.agent(name, 0))
	}
	objects = append(objects, w.workflows()...)
	for _, name := range tenants {
		objects = append(objects, w.tenant(name, nil))
	}
	return objects
}

func (w *world) apply(p *process, objects ...fleet.Object) {
	w.on(p, func() {
		applied, err := p.plane.Apply(w.ctx, objects, control.ApplyOptions{Actor: "operator"})
		w.say("apply %s %s: %v, %v", objects[0].Kind(), objects[0].Name(), applied, err)
		w.ledger.checkAnswer("apply", err)
	})
}

func (w *world) anyTarget(r *rng) string {
	if w.temper.two {
		return pick(r, pollTargets)
	}
	return pick(r, append([]string{localTarget}, pollTargets...))
}

func (w *world) opChangeTarget(r *rng) {
	p, name := w.door(r), w.anyTarget(r)
	if r.oneIn(2) {
		w.apply(p, w.target(name, nil)) // as it was, or back again
		return
	}
	w.apply(p, w.target(name, r))
}

func (w *world) opDropTarget(r *rng) {
	p, name := w.door(r), w.anyTarget(r)
	w.on(p, func() {
		err := p.plane.Delete(w.ctx, fleet.KindTarget, name, 0, "operator")
		w.say("delete target %s: %v", name, err)
		w.ledger.checkAnswer("delete", err)
	})
}

func (w *world) opChangeTenant(r *rng) {
	name := pick(r, tenants)
	w.apply(w.door(r), w.tenant(name, r))
}

func (w *world) opChangeAgent(r *rng) {
	w.apply(w.door(r), w.agent(pick(r, w.temper.agents), r.n(10)))
}

func (w *world) opPauseAgent(r *rng) {
	p, name, paused := w.door(r), pick(r, w.temper.agents), r.oneIn(3)
	w.on(p, func() {
		err := p.plane.PauseAgent(w.ctx, name, paused, "operator")
		w.say("pause %s (%t): %v", name, paused, err)
		w.ledger.checkAnswer("pause", err)
	})
}

// fits is what a target must be for an agent and a tenant, in plain words. The product says it in filters and bitmaps.
func fits(a *fleet.Agent, tenant string, t *fleet.Target) string {
	switch {
	case t == nil:
		return "is not declared"
	case t.Drain:
		return "is draining"
	case a.Needs.Accelerator != "" && a.Needs.Accelerator != t.Accelerator:
		return "has no " + a.Needs.Accelerator
	case len(t.Tenants) > 0 && !contains(t.Tenants, tenant):
		return "does not serve tenant " + tenant
	case len(t.Taints) > 0 && !contains(a.Needs.Tolerates, t.Taints[0]):
		return "is tainted " + t.Taints[0]
	}
	return ""
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// targetOfNode cuts the worker off.
func targetOfNode(node string) (target, worker string) {
	target, worker, _ = strings.Cut(node, "/")
	return target, worker
}
