package fleet

import (
	"maps"
	"slices"
	"strings"
)

// Targets are the branches that the route of a stage can choose, sorted; of a route by name, every branch.
func (w *Workflow) Targets(s *Stage) []string {
	r := s.Route
	if r == nil {
		return nil
	}
	names := slices.Collect(maps.Values(r.Cases))
	if len(r.Cases) == 0 && r.By != nil {
		for i := range w.Stages {
			if w.Stages[i].Branch && w.Stages[i].Name != s.Name {
				names = append(names, w.Stages[i].Name)
			}
		}
	}
	if r.Default != "" {
		names = append(names, r.Default)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Visits is how often a stage may be entered at most; 0 for no bound of its own.
func (s *Stage) Visits() int {
	if s.Route != nil {
		return s.Route.MaxVisits
	}
	return s.MaxVisits
}

// After is the place of the stage that is next in order, or len(Stages).
func (w *Workflow) After(i int) int {
	for i++; i < len(w.Stages) && w.Stages[i].Branch; i++ {
	}
	return i
}

// Place is the position of a stage; -1 if there is none of the name.
func (w *Workflow) Place(name string) int {
	return slices.IndexFunc(w.Stages, func(s Stage) bool { return s.Name == name })
}

// leads checks the stages that a stage names.
func (c *check) leads(w *Workflow, at map[string]int, i int) {
	s, path := &w.Stages[i], At("spec.stages", i)
	if s.Next != "" {
		switch j, ok := at[s.Next]; {
		case !ok:
			c.add(path+".next", "there is no stage `%s`; the stages are %s", clip(s.Next), w.names(nil))
		case w.Stages[j].Branch && !s.Branch:
			c.add(path+".next", "stage `%s` is a branch, to which only routes and other branches lead", clip(s.Next))
		}
	}
	r := s.Route
	if r == nil {
		return
	}
	branch := func(path, name string) {
		switch j, ok := at[name]; {
		case !ok:
			c.add(path, "there is no stage `%s`; the branches are %s", clip(name), w.names(func(s *Stage) bool { return s.Branch }))
		case !w.Stages[j].Branch:
			c.add(path, "stage `%s` is not a branch; write branch: true there", clip(name))
			c.relate(At("spec.stages", j, "branch"))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(r.Cases)) {
		branch(At(path, "route", "cases", Key(k)), r.Cases[k])
	}
	if r.Default != "" {
		branch(path+".route.default", r.Default)
	}
	if r.By != nil && len(r.Cases) == 0 && len(w.Targets(s)) == 0 {
		c.add(path+".route", "there is no branch to choose; mark stages with branch: true, or give cases")
	}
}

// names lists stages for people.
func (w *Workflow) names(which func(*Stage) bool) string {
	var names []string
	for i := range w.Stages {
		if which == nil || which(&w.Stages[i]) {
			names = append(names, clip(w.Stages[i].Name))
		}
	}
	if len(names) == 0 {
		return "none"
	}
	if len(names) > 20 {
		names = append(names[:20], "and more")
	}
	return strings.Join(names, ", ")
}

// Position is where a run of a workflow stands: at a stage, and at where the stages in order go on after a branch. Both
// are len(Stages) at the end.
type Position struct{ Stage, Back int }

// Start is the position of a run that begins.
func (w *Workflow) Start() Position {
	first := w.After(-1)
	return Position{first, w.After(first)}
}

// Follow is the position after a stage that ran or was skipped. A route that chose goes to the chosen branch.
func (w *Workflow) Follow(at Position, skipped bool) Position {
	s := &w.Stages[at.Stage]
	if s.Next != "" && !skipped {
		return w.enter(at, w.Place(s.Next))
	}
	if s.Branch {
		return Position{at.Back, w.After(at.Back)}
	}
	return Position{w.After(at.Stage), w.After(w.After(at.Stage))}
}

// Choose is the position after a route that chose a branch.
func (w *Workflow) Choose(at Position, branch string) Position { return w.enter(at, w.Place(branch)) }

func (w *Workflow) enter(at Position, stage int) Position {
	if stage < len(w.Stages) && w.Stages[stage].Branch {
		if w.Stages[at.Stage].Branch {
			return Position{stage, at.Back}
		}
		return Position{stage, w.After(at.Stage)}
	}
	return Position{stage, w.After(stage)}
}

// positions are all that can follow one.
func (w *Workflow) positions(at Position) []Position {
	s := &w.Stages[at.Stage]
	var next []Position
	if s.Route == nil {
		next = append(next, w.Follow(at, false))
	}
	for _, name := range w.Targets(s) {
		next = append(next, w.Choose(at, name))
	}
	if s.When != "" {
		next = append(next, w.Follow(at, true))
	}
	return next
}

// Stages is a set of stages by their places.
type Stages [(MaxStages + 63) / 64]uint64

// Has reports whether a stage is in the set.
func (s *Stages) Has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

func (s *Stages) add(i int) { s[i/64] |= 1 << (i % 64) }

// join adds another set and reports whether that was news.
func (s *Stages) join(other Stages) (news bool) {
	for i := range s {
		news = news || other[i]&^s[i] != 0
		s[i] |= other[i]
	}
	return news
}

// Before tells for every stage which stages can have been entered before it, itself included where it can come again.
func (w *Workflow) Before() []Stages {
	before := make([]Stages, len(w.Stages)+1)
	at := make(map[Position]*Stages)
	queue := w.reachable()
	for _, p := range queue {
		at[p] = new(Stages)
	}
	for len(queue) > 0 {
		p := queue[0]
		queue = queue[1:]
		sum := *at[p]
		sum.add(p.Stage)
		for _, next := range w.positions(p) {
			before[next.Stage].join(sum)
			if next.Stage < len(w.Stages) && at[next].join(sum) {
				queue = append(queue, next)
			}
		}
	}
	return before
}

// reachable are the positions that a run can come to, the end left out.
func (w *Workflow) reachable() []Position {
	seen, queue := make(map[Position]bool), []Position{w.Start()}
	var all []Position
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if at.Stage >= len(w.Stages) || seen[at] {
			continue
		}
		seen[at] = true
		all = append(all, at)
		queue = append(queue, w.positions(at)...)
	}
	return all
}

// flow checks that every stage can be reached, and that every cycle has a stage with a bound.
func (c *check) flow(w *Workflow) {
	all := w.reachable()
	reached := make(map[int]bool)
	for _, at := range all {
		reached[at.Stage] = true
	}
	for i := range w.Stages {
		switch s, path := &w.Stages[i], At("spec.stages", i); {
		case reached[i]:
		case s.Branch:
			c.add(path, "branch `%s` is never reached: no route names it", clip(s.Name))
		default:
			c.add(path, "stage `%s` is never reached: every stage before it goes elsewhere", clip(s.Name))
		}
	}
	if cycle := w.uncapped(all); cycle != nil {
		names := make([]string, len(cycle))
		for k, i := range cycle {
			names[k] = clip(w.Stages[i].Name)
		}
		last := cycle[len(cycle)-1]
		path, field := At("spec.stages", last), "maxVisits"
		for _, i := range cycle {
			if w.Stages[i].Route != nil {
				path, field = At("spec.stages", i, "route"), "route.maxVisits"
			}
		}
		c.add(path, "the stages %s → %s can go round for ever; give one of them %s (1 to %d)",
			strings.Join(names, " → "), names[0], field, MaxVisits)
	}
}

// uncapped finds a cycle of stages none of which has a bound of visits; nil if there is none.
func (w *Workflow) uncapped(all []Position) []int {
	const (
		under = 1 // on the way that is being looked at
		done  = 2
	)
	state := make(map[Position]int)
	var way []Position
	var look func(at Position) []int
	look = func(at Position) []int {
		if at.Stage >= len(w.Stages) || w.Stages[at.Stage].Visits() > 0 || state[at] == done {
			return nil
		}
		if state[at] == under {
			var cycle []int
			for _, p := range way[slices.Index(way, at):] {
				cycle = append(cycle, p.Stage)
			}
			return cycle
		}
		state[at] = under
		way = append(way, at)
		for _, next := range w.positions(at) {
			if cycle := look(next); cycle != nil {
				return cycle
			}
		}
		way = way[:len(way)-1]
		state[at] = done
		return nil
	}
	for _, at := range all {
		if cycle := look(at); cycle != nil {
			return cycle
		}
	}
	return nil
}
