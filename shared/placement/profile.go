package placement

// Profile is how to choose. Its lists say what a plugin may look at; one that looks at more sees stale answers. A
// Profile must not change once it was used, and a World serves one Profile at a time (another starts its caches anew).
type Profile struct {
	// Access filters may look at the agent and the tenant; there is no node.
	Access []Filter
	// Filters may look at the agent and at what SetNode was given; their request has no run and no tenant.
	Filters []Filter
	// Tenant filters may look at the tenant, which Run.Tenant names, and at what SetNode was given; their request has no
	// agent. Their refusals count as TenantExcluded.
	Tenant []Filter
	// Room filters may look at the agent, the tenant and everything about the node. They are asked after the built-in
	// one for slots, processor and memory.
	Room []Filter

	// Scorers may look at the agent and at what SetNode was given; their request has no run and no tenant.
	Scorers []Weighted
	// Load scorers may look at the node and its own use; their request is nil.
	Load []Weighted
	// Agent scorers may look at the node and at its runs of the agent; their request has no run and no tenant.
	Agent []Weighted
}

// Default is the profile of the control plane: what an agent prefers, then cost and an even load, then warmth.
func Default() *Profile {
	return &Profile{
		Access:  AccessFilters(),
		Filters: DeclaredFilters(),
		Tenant:  TenantFilters(),
		Scorers: []Weighted{{Affinity(), 4}, {Cost(), 2}},
		Load:    []Weighted{{Spread(), 2}},
		Agent:   []Weighted{{Warmth(), 1}},
	}
}

func total(list []Weighted, w *World, r *Request, n *Node) int32 {
	sum := int32(0)
	for _, s := range list {
		sum += int32(s.Weight * min(max(s.Score(w, r, n), 0), 100))
	}
	return sum
}

// weight is the sum of all weights, at least 1.
func (p *Profile) weight() int {
	sum := 0
	for _, list := range [][]Weighted{p.Scorers, p.Load, p.Agent} {
		for _, s := range list {
			sum += s.Weight
		}
	}
	return max(sum, 1)
}

// first returns the first refusal.
func first(list []Filter, w *World, r *Request, n *Node) Verdict {
	for _, f := range list {
		if v := f.Filter(w, r, n); !v.Feasible() {
			return v
		}
	}
	return Verdict{}
}
