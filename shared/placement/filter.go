package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
)

// Filter refuses nodes that cannot take a request.
type Filter interface {
	Name() string
	Filter(w *World, r *Request, n *Node) Verdict
}

// NewFilter makes a filter of a function.
func NewFilter(name string, f func(*World, *Request, *Node) Verdict) Filter { return filter{name, f} }

type filter struct {
	name string
	fn   func(*World, *Request, *Node) Verdict
}

func (f filter) Name() string                                 { return f.name }
func (f filter) Filter(w *World, r *Request, n *Node) Verdict { return f.fn(w, r, n) }

// DeclaredFilters compare the agent's declaration with the node's.
func DeclaredFilters() []Filter {
	return []Filter{
		filter{"drain", drain}, filter{"shape", shape}, filter{"runnable", runnable}, filter{"identity", identity},
		filter{"region", region}, filter{"accelerator", accelerator}, filter{"labels", labels}, filter{"taints", taints},
		filter{"data", data}, filter{"fits", fits},
	}
}

// AccessFilters compare the tenant with the agent's declaration.
func AccessFilters() []Filter { return []Filter{filter{"access", access}} }

// TenantFilters compare the tenant with the node's declaration.
func TenantFilters() []Filter { return []Filter{filter{"tenant", tenants}} }

// say names a node in a sentence.
func (n *Node) say() string {
	if n.Worker != "" {
		return "worker " + n.Worker + " of target " + n.Target.Name()
	}
	return "target " + n.Target.Name()
}

// or is s, or other when s is empty.
func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func drain(_ *World, r *Request, n *Node) Verdict {
	if !n.Target.Drain && !n.Draining {
		return Verdict{}
	}
	return Refuse(r, Draining, wakeOnWorker, func() string { return n.say() + " is draining and takes no new run" })
}

func shape(_ *World, r *Request, n *Node) Verdict {
	if len(n.Target.Shapes) == 0 || slices.Contains(n.Target.Shapes, r.Agent.Shape) {
		return Verdict{}
	}
	return Refuse(r, ShapeMismatch, wakeOnTarget, func() string {
		return fmt.Sprintf("agent %s has shape %s, %s holds %s", r.Agent.Name(), r.Agent.Shape, n.say(), join(n.Target.Shapes))
	})
}

// runnable asks whether anything says how to start the agent on the node.
func runnable(_ *World, r *Request, n *Node) Verdict {
	if n.Agents != nil && !n.Agents[r.Agent.Name()] {
		return Refuse(r, NotServed, wakeOnWorker, func() string {
			return fmt.Sprintf("%s does not serve agent %s; it serves %s", n.say(), r.Agent.Name(),
				or(join(slices.Sorted(maps.Keys(n.Agents))), "none"))
		})
	}
	switch n.Target.Runtime {
	case fleet.RuntimeLocal:
		if len(r.Agent.Run.Command) > 0 || r.Agent.Run.URL != "" {
			return Verdict{}
		}
		return Refuse(r, NotRunnable, wakeOnTarget, func() string {
			return fmt.Sprintf("agent %s has neither run.command nor run.url, and %s is local: it cannot know what to start",
				r.Agent.Name(), n.say())
		})
	case fleet.RuntimeHTTP:
		if n.Target.Resource != "" || r.Agent.Run.URL != "" {
			return Verdict{}
		}
		return Refuse(r, NotRunnable, wakeOnTarget, func() string {
			return fmt.Sprintf("neither %s has a resource nor agent %s a run.url: there is no address to send the run to",
				n.say(), r.Agent.Name())
		})
	case fleet.RuntimeCloudRun:
		if n.Target.Resource != "" {
			return Verdict{}
		}
		return Refuse(r, NotRunnable, wakeOnTarget, func() string { return n.say() + " names no Cloud Run resource" })
	}
	return Verdict{}
}

// identity keeps a run from starting under an identity other than its agent's. On Cloud Run a resource runs one agent's
// program as one identity: a target that states it takes the agents that state the same, and nobody else's work; one that
// does not still has an identity, an unknown one.
func identity(_ *World, r *Request, n *Node) Verdict {
	want, has := r.Agent.Identity, n.Target.Identity
	if want == has || (want == "" || has == "") && n.Target.Runtime != fleet.RuntimeCloudRun {
		return Verdict{}
	}
	return Refuse(r, IdentityMismatch, wakeOnTarget, func() string {
		return fmt.Sprintf("agent %s runs as %s, %s runs as %s", r.Agent.Name(), or(want, "nobody in particular (it states no identity)"), n.say(),
			or(has, "an identity that it does not state"))
	})
}

func region(_ *World, r *Request, n *Node) Verdict {
	if want := r.Agent.Needs.Regions; len(want) > 0 && !slices.Contains(want, n.Target.Region) {
		return Refuse(r, RegionMismatch, wakeOnTarget, func() string {
			return fmt.Sprintf("needs region %s, %s %s", alternatives(want), n.say(), has("is in", n.Target.Region, "has none"))
		})
	}
	return Verdict{}
}

func accelerator(_ *World, r *Request, n *Node) Verdict {
	if want := r.Agent.Needs.Accelerator; want != "" && want != n.Target.Accelerator {
		return Refuse(r, AcceleratorMismatch, wakeOnTarget, func() string {
			return fmt.Sprintf("needs accelerator %s, %s %s", want, n.say(), has("has", n.Target.Accelerator, "has none"))
		})
	}
	return Verdict{}
}

func labels(_ *World, r *Request, n *Node) Verdict {
	if len(r.Agent.Needs.Labels) == 0 || hasLabels(n.Target, r.Agent.Needs.Labels) {
		return Verdict{}
	}
	return Refuse(r, LabelMismatch, wakeOnTarget, func() string {
		var misses []string
		for _, key := range slices.Sorted(maps.Keys(r.Agent.Needs.Labels)) {
			want := r.Agent.Needs.Labels[key]
			if got, ok := n.Target.Label(key); !ok {
				misses = append(misses, fmt.Sprintf("needs label %s=%s, %s has no %s", key, want, n.say(), key))
			} else if got != want {
				misses = append(misses, fmt.Sprintf("needs label %s=%s, %s has %s=%s", key, want, n.say(), key, got))
			}
		}
		return strings.Join(misses, "; ")
	})
}

func hasLabels(t *fleet.Target, want map[string]string) bool {
	for key, value := range want {
		if got, ok := t.Label(key); !ok || got != value {
			return false
		}
	}
	return true
}

func taints(_ *World, r *Request, n *Node) Verdict {
	for _, taint := range n.Target.Taints {
		if !tolerated(r.Agent.Needs.Tolerates, taint) {
			return Refuse(r, Tainted, wakeOnTarget, func() string {
				return fmt.Sprintf("%s has taint %s, which agent %s does not tolerate", n.say(), taint, r.Agent.Name())
			})
		}
	}
	return Verdict{}
}

func tolerated(tolerates []string, taint string) bool {
	if len(tolerates) == 0 {
		return false
	}
	key, _, _ := strings.Cut(taint, "=")
	return slices.Contains(tolerates, taint) || slices.Contains(tolerates, key)
}

func data(_ *World, r *Request, n *Node) Verdict {
	if want := r.Agent.Needs.DataIn; want != "" && !slices.Contains(n.Target.Data, want) {
		return Refuse(r, DataElsewhere, wakeOnTarget, func() string {
			return fmt.Sprintf("needs data in %s, %s %s", want, n.say(), has("has", join(n.Target.Data), "lists none"))
		})
	}
	return Verdict{}
}

// fits asks whether the node could take the request if it were empty.
func fits(_ *World, r *Request, n *Node) Verdict {
	use, c := needs(r), &n.Target.Capacity
	switch size := n.Size(); {
	case use.Slots > size:
		return Refuse(r, TooBig, wakeOnWorker, func() string {
			return fmt.Sprintf("needs %d slots, limit of %s is %d", use.Slots, n.say(), size)
		})
	case c.CPU > 0 && use.CPU > c.CPU:
		return Refuse(r, TooBig, wakeOnTarget, func() string {
			return fmt.Sprintf("needs cpu %v, limit of %s is %v", use.CPU, n.say(), c.CPU)
		})
	case c.Memory > 0 && use.Memory > c.Memory:
		return Refuse(r, TooBig, wakeOnTarget, func() string {
			return fmt.Sprintf("needs memory %v, limit of %s is %v", use.Memory, n.say(), c.Memory)
		})
	}
	return Verdict{}
}

func access(_ *World, r *Request, _ *Node) Verdict {
	only := r.Agent.Needs.TenantsOnly
	if len(only) == 0 || slices.Contains(only, r.Run.Tenant) {
		return Verdict{}
	}
	v := Refuse(r, TenantForbidden, nil, func() string {
		return fmt.Sprintf("agent %s runs for tenant %s only, not for %s", r.Agent.Name(), alternatives(only), r.Run.Tenant)
	})
	v.Final = true // the run keeps this revision of its agent
	return v
}

func tenants(_ *World, r *Request, n *Node) Verdict {
	if only := n.Target.Tenants; len(only) > 0 && !slices.Contains(only, r.Run.Tenant) {
		return Refuse(r, TenantExcluded, wakeOnTarget, func() string {
			return fmt.Sprintf("%s serves tenant %s, not %s", n.say(), alternatives(only), r.Run.Tenant)
		})
	}
	return Verdict{}
}

// roomVerdict is the filter over what is in use, which every profile has.
func roomVerdict(r *Request, n *Node, holder bool) Verdict {
	use := needs(r)
	reason := n.room(use, holder)
	switch reason {
	case "":
		return Verdict{}
	case NoWorker:
		return Refuse(r, reason, wakeOnWorker, func() string {
			return fmt.Sprintf("no worker of %s that serves agent %s is connected", n.say(), r.Agent.Name())
		})
	}
	return Refuse(r, reason, wakeOnSlot, func() string {
		c, used := &n.site.target.Capacity, n.site.used
		switch reason {
		case Reserved:
			return n.say() + " is kept free for a larger run that waited long"
		case NoFreeCPU:
			return fmt.Sprintf("needs cpu %v, %v of %v in use on target %s", use.CPU, used.CPU, c.CPU, n.Target.Name())
		case NoFreeMemory:
			return fmt.Sprintf("needs memory %v, %v of %v in use on target %s", use.Memory, used.Memory, c.Memory, n.Target.Name())
		}
		free := max(n.Free(), 0)
		if use.Slots == 1 {
			return fmt.Sprintf("no free slot on %s: all %d in use", n.say(), n.Size())
		}
		return fmt.Sprintf("needs %d slots, %d of %d free on %s", use.Slots, free, n.Size(), n.say())
	})
}

func has(verb, what, none string) string {
	if what == "" {
		return none
	}
	return verb + " " + what
}

const maxShown = 5

func join[S ~string](list []S) string { return listed(list, ", ") }

func alternatives[S ~string](list []S) string { return listed(list, " or ") }

func listed[S ~string](list []S, between string) string {
	var b strings.Builder
	for i, s := range list {
		if i == maxShown {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			b.WriteString(between)
		}
		b.WriteString(string(s))
	}
	return b.String()
}
