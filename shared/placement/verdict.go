package placement

import "github.com/errand-run/errand/shared/run"

// Reason is why a node was refused. The set is closed.
type Reason string

// The reasons that hold even for an empty node, and then those that hold at the moment.
const (
	AgentMissing        Reason = "AgentMissing"    // the run's agent is not known
	TenantForbidden     Reason = "TenantForbidden" // by the agent
	Draining            Reason = "Draining"
	ShapeMismatch       Reason = "ShapeMismatch"
	NotRunnable         Reason = "NotRunnable" // nothing says how to start the agent there
	NotServed           Reason = "NotServed"   // the worker or target serves other agents
	IdentityMismatch    Reason = "IdentityMismatch"
	RegionMismatch      Reason = "RegionMismatch"
	AcceleratorMismatch Reason = "AcceleratorMismatch"
	LabelMismatch       Reason = "LabelMismatch"
	Tainted             Reason = "Tainted"
	DataElsewhere       Reason = "DataElsewhere"
	TooBig              Reason = "TooBig"         // needs more than the node has
	Refused             Reason = "Refused"        // by a plugin, with a reason of its own
	TenantExcluded      Reason = "TenantExcluded" // by the target

	NoWorker     Reason = "NoWorker"
	Reserved     Reason = "Reserved"
	NoFreeSlot   Reason = "NoFreeSlot"
	NoFreeCPU    Reason = "NoFreeCPU"
	NoFreeMemory Reason = "NoFreeMemory"
)

// Reasons is the closed set, in the order to show it.
var Reasons = []Reason{
	AgentMissing, TenantForbidden, Draining, ShapeMismatch, NotRunnable, NotServed, IdentityMismatch, RegionMismatch,
	AcceleratorMismatch, LabelMismatch, Tainted, DataElsewhere, TooBig, Refused, TenantExcluded, NoWorker, Reserved,
	NoFreeSlot, NoFreeCPU, NoFreeMemory,
}

var codes = func() map[Reason]uint8 {
	m := make(map[Reason]uint8, len(Reasons))
	for i, r := range Reasons {
		m[r] = uint8(i + 1)
	}
	return m
}()

// code is a reason's index in Reasons plus one; 0 is none.
func (r Reason) code() uint8 {
	if r == "" {
		return 0
	}
	if code, ok := codes[r]; ok {
		return code
	}
	return codes[Refused]
}

func reasonOf(code uint8) Reason {
	if code == 0 {
		return ""
	}
	return Reasons[code-1]
}

// Event is something after which a refusal may no longer hold.
type Event string

// The events.
const (
	TargetAdded   Event = "targetAdded"
	TargetChanged Event = "targetChanged"
	WorkerJoined  Event = "workerJoined"
	SlotFreed     Event = "slotFreed"
)

var (
	wakeOnTarget = []Event{TargetAdded, TargetChanged}
	wakeOnWorker = []Event{TargetAdded, TargetChanged, WorkerJoined}
	wakeOnSlot   = []Event{SlotFreed, TargetAdded, TargetChanged, WorkerJoined}
)

// Verdict is a filter's answer. The zero Verdict is: feasible.
type Verdict struct {
	Reason  Reason      `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"` // plain words; only made when asked, see Refuse
	Final   bool        `json:"final,omitempty"`   // no event will help
	RetryAt run.Instant `json:"retryAt,omitempty"` // when to look again without an event; 0: no such time
	WakeOn  []Event     `json:"wakeOn,omitempty"`  // what voids it; shared, not to be changed
}

// Feasible reports whether nothing was refused.
func (v Verdict) Feasible() bool { return v.Reason == "" }

// Refuse makes a verdict. The message is built only when somebody will read it: most refusals are counted.
func Refuse(r *Request, reason Reason, wakeOn []Event, message func() string) Verdict {
	v := Verdict{Reason: reason, WakeOn: wakeOn}
	if r.explain {
		v.Message = message()
	}
	return v
}
