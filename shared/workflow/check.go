package workflow

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Declared is what is declared beside a workflow; nil for what is not.
type Declared interface {
	Agent(name string) *fleet.Agent
	Workflow(name string) *fleet.Workflow
}

// Check returns what is wrong with a plan among what is declared: what it calls is not there or must not be called, a
// workflow calls itself, an expression reads what a schema rules out, branches give the same field and no rule says
// what becomes of it.
func (p *Plan) Check(d Declared) []fleet.Problem {
	c := &checker{plan: p, declared: d}
	for i := range p.stages {
		s, path := &p.stages[i], fleet.At("spec.stages", i)
		c.callees(s, path)
		c.expressions(s, path)
		if s.Parallel != nil && s.Parallel.Merge.Rule == fleet.MergeFields {
			c.conflicts(s, path+".parallel.merge.fields")
		}
	}
	c.reads(p.output, nil)
	return c.problems
}

type checker struct {
	plan     *Plan
	declared Declared
	problems []fleet.Problem
}

func (c *checker) add(path, format string, args ...any) {
	c.problems = append(c.problems, fleet.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// callees checks all that a stage calls.
func (c *checker) callees(s *stage, path string) {
	c.agent(path+".agent", s.Agent)
	c.workflow(path+".workflow", s.Workflow)
	c.agent(path+".compensate", s.Compensate)
	if par := s.Parallel; par != nil {
		c.agent(path+".parallel.agent", par.Agent)
		c.workflow(path+".parallel.workflow", par.Workflow)
		c.agent(path+".parallel.merge.agent", par.Merge.Agent)
		for k, b := range par.Branches {
			c.agent(fleet.At(path, "parallel", "branches", k, "agent"), b.Agent)
			c.workflow(fleet.At(path, "parallel", "branches", k, "workflow"), b.Workflow)
		}
	}
	if s.Route != nil && s.Route.By != nil {
		c.agent(path+".route.by.agent", s.Route.By.Agent)
	}
	if l := s.Loop; l != nil {
		c.agent(path+".loop.agent", l.Agent)
		c.workflow(path+".loop.workflow", l.Workflow)
		c.agent(path+".loop.critic", l.Critic)
	}
}

func (c *checker) allowed(path, kind, name string) {
	if call := c.plan.flow.Permissions.Call; len(call) > 0 && !slices.Contains(call, name) {
		c.add(path, "%s `%s` is not in spec.permissions.call, which are %s", kind, name, strings.Join(call, ", "))
	}
}

func (c *checker) agent(path, name string) {
	if name == "" {
		return
	}
	c.allowed(path, "agent", name)
	if c.declared.Agent(name) == nil {
		c.add(path, "there is no agent `%s`: it is neither declared nor among what is applied", name)
	}
}

func (c *checker) workflow(path, name string) {
	if name == "" {
		return
	}
	c.allowed(path, "workflow", name)
	self := c.plan.flow.Name()
	if name != self && c.declared.Workflow(name) == nil {
		c.add(path, "there is no workflow `%s`: it is neither declared nor among what is applied", name)
		return
	}
	if way := c.back(name, self); way != nil {
		c.add(path, "workflow `%s` would call itself: %s", self, strings.Join(append([]string{self}, way...), " → "))
	} else if depth := c.depth(name, make(map[string]int)); depth+1 > run.MaxDepth {
		c.add(path, "workflows within workflows are %d levels deep here; the limit is %d", depth+1, run.MaxDepth)
	}
}

// back is the way from one workflow to another by what they call; nil if there is none.
func (c *checker) back(from, to string) []string {
	seen := make(map[string]bool)
	var look func(name string) []string
	look = func(name string) []string {
		if name == to {
			return []string{name}
		}
		w := c.declared.Workflow(name)
		if seen[name] || w == nil {
			return nil
		}
		seen[name] = true
		for _, next := range Calls(w) {
			if way := look(next); way != nil {
				return append([]string{name}, way...)
			}
		}
		return nil
	}
	return look(from)
}

// depth counts the levels of workflows within one. One of a cycle that does not lead here counts once: its own check
// refuses it.
func (c *checker) depth(name string, known map[string]int) int {
	if n, ok := known[name]; ok {
		return n
	}
	known[name] = 1
	deepest := 0
	if w := c.declared.Workflow(name); w != nil {
		for _, next := range Calls(w) {
			deepest = max(deepest, c.depth(next, known))
		}
	}
	known[name] = deepest + 1
	return known[name]
}

// Calls are the workflows that a workflow's stages name, sorted.
func Calls(w *fleet.Workflow) []string {
	names := make(map[string]bool)
	for i := range w.Stages {
		s := &w.Stages[i]
		names[s.Workflow] = true
		if s.Parallel != nil {
			names[s.Parallel.Workflow] = true
			for _, b := range s.Parallel.Branches {
				names[b.Workflow] = true
			}
		}
		if s.Loop != nil {
			names[s.Loop.Workflow] = true
		}
	}
	delete(names, "")
	return slices.Sorted(maps.Keys(names))
}

// Agents are the agents that a workflow's stages name, sorted.
func Agents(w *fleet.Workflow) []string {
	names := make(map[string]bool)
	for i := range w.Stages {
		s := &w.Stages[i]
		names[s.Agent], names[s.Compensate] = true, true
		if par := s.Parallel; par != nil {
			names[par.Agent], names[par.Merge.Agent] = true, true
			for _, b := range par.Branches {
				names[b.Agent] = true
			}
		}
		if s.Route != nil && s.Route.By != nil {
			names[s.Route.By.Agent] = true
		}
		if s.Loop != nil {
			names[s.Loop.Agent], names[s.Loop.Critic] = true, true
		}
	}
	delete(names, "")
	return slices.Sorted(maps.Keys(names))
}

// expressions checks what the expressions of a stage read, and what they hand to whom.
func (c *checker) expressions(s *stage, path string) {
	more := make(map[string]schema)
	if s.forEach != nil {
		if r, ok := s.forEach.Whole(); ok {
			list, _ := c.reached(r, nil)
			more["item"] = list.items()
		}
	}
	for _, f := range []*function{s.when, s.forEach, s.on, s.byInput, s.action, s.until, s.score, s.criticInput, s.limitAction} {
		c.reads(f, nil)
	}
	c.reads(s.input, more)
	c.reads(s.itemInput, more)
	switch par := s.Parallel; {
	case par != nil && par.ForEach != "":
		f := s.itemInput
		if f == nil {
			f = s.input
		}
		c.hands(path+".parallel.forEach", f, more["item"], c.inputOf(par.Agent, par.Workflow), par.Agent+par.Workflow, more)
	case par != nil:
		for k := range s.branches {
			b := &s.branches[k]
			c.reads(b.when, nil)
			c.reads(b.input, nil)
			f := b.input
			for _, other := range []*function{s.itemInput, s.input} {
				if f == nil {
					f = other
				}
			}
			c.hands(fleet.At(path, "parallel", "branches", k), f, schema{}, c.inputOf(b.Agent, b.Workflow), b.Agent+b.Workflow, nil)
		}
	case s.Agent != "" || s.Workflow != "":
		given := schema{}
		if s.input == nil && c.plan.flow.Start().Stage == c.plan.flow.Place(s.Name) && !c.plan.before[c.plan.flow.Place(s.Name)].Has(c.plan.flow.Place(s.Name)) {
			given = schemaOf(c.plan.flow.Input) // what the first stage gets without an expression
		}
		c.hands(path, s.input, given, c.inputOf(s.Agent, s.Workflow), s.Agent+s.Workflow, nil)
	case s.Loop != nil:
		c.hands(path, s.input, schema{}, c.inputOf(s.Loop.Agent, s.Loop.Workflow), s.Loop.Agent+s.Loop.Workflow, nil)
	}
}

// reads checks every reference of an expression against the schemas that are known.
func (c *checker) reads(f *function, more map[string]schema) {
	if f == nil {
		return
	}
	for _, r := range f.References() {
		if _, bad := c.reached(r, more); bad != "" {
			c.add(f.path, "%d:%d: %s", r.Line, r.Column, bad)
		}
	}
}

// reached is what is known of the value that a reference reads, and what rules it out.
func (c *checker) reached(r Reference, more map[string]schema) (schema, string) {
	var at schema
	from := 1
	name, _ := r.Path[0].(string)
	switch known, ok := more[name]; {
	case ok:
		at = known
	case name == "input":
		at = schemaOf(c.plan.flow.Input)
	case name == "stages" && len(r.Path) >= 3 && r.Path[2] == "output":
		stage, _ := r.Path[1].(string)
		i := c.plan.flow.Place(stage)
		if i < 0 {
			return schema{}, ""
		}
		at, from = c.outputOf(&c.plan.stages[i]), 3
	default:
		return schema{}, ""
	}
	for k := from; k < len(r.Path); k++ {
		next, ok := at.field(r.Path[k])
		if !ok {
			if r.Tested && k == len(r.Path)-1 {
				return schema{}, ""
			}
			return schema{}, ruledOut(r.Path[:k], r.Path[k], at)
		}
		at = next
	}
	return at, ""
}

func ruledOut(path []any, key any, at schema) string {
	var b strings.Builder
	for i, part := range path {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(run.Clip(fmt.Sprint(part), 60))
	}
	if types := at.types(); types != nil && !slices.Contains(types, "object") {
		return fmt.Sprintf("%s is %s by its schema, so it has no %s", b.String(), alternatives(types), run.Clip(fmt.Sprint(key), 60))
	}
	text := fmt.Sprintf("%s has no %s by its schema", b.String(), run.Clip(fmt.Sprint(key), 60))
	if names := at.names(); len(names) > 0 && len(names) <= 20 {
		text += "; it has " + strings.Join(names, ", ")
	}
	return text
}

func (c *checker) inputOf(agent, workflow string) schema {
	if a := c.declared.Agent(agent); agent != "" && a != nil {
		return schemaOf(a.Input)
	}
	if w := c.declared.Workflow(workflow); workflow != "" && w != nil {
		return schemaOf(w.Input)
	}
	return schema{}
}

func (c *checker) agentOutput(name string) schema {
	if a := c.declared.Agent(name); name != "" && a != nil {
		return schemaOf(a.Output)
	}
	return schema{}
}

// outputOf is what is known of a stage's output.
func (c *checker) outputOf(s *stage) schema {
	switch {
	case s.Route != nil:
		return schema{made: &made{fields: map[string]schema{"choice": {}, "answer": {}}}}
	case s.Loop != nil:
		return c.agentOutput(s.Loop.Agent)
	case s.Parallel == nil:
		return c.agentOutput(s.Agent)
	}
	par := s.Parallel
	switch par.Merge.Rule {
	case fleet.MergeAgent:
		return c.agentOutput(par.Merge.Agent)
	case fleet.MergeFields:
		return schema{}
	case fleet.MergeFirst, fleet.MergeVote:
		return c.agentOutput(par.Agent)
	case fleet.MergeQuorum:
		if par.Merge.On != "" {
			return c.agentOutput(par.Agent)
		}
		return schema{made: &made{items: new(c.agentOutput(par.Agent))}}
	}
	if par.ForEach != "" {
		return schema{made: &made{items: new(c.agentOutput(par.Agent))}}
	}
	fields := make(map[string]schema, len(par.Branches))
	for _, b := range par.Branches {
		fields[b.Name] = c.agentOutput(b.Agent)
	}
	return schema{made: &made{fields: fields}}
}

// hands checks that what an expression gives can be what a callee takes.
func (c *checker) hands(path string, f *function, given, taken schema, callee string, more map[string]schema) {
	if f != nil {
		path = f.path
		if r, ok := f.Whole(); ok {
			given, _ = c.reached(r, more)
		} else if t := f.Type(); t != "" {
			given = schema{node: map[string]any{"type": t}}
		}
	}
	types, want := given.types(), taken.types()
	if types != nil && want != nil && !slices.ContainsFunc(types, func(t string) bool { return slices.Contains(want, t) }) {
		c.add(path, "the value is %s %s, and `%s` takes %s", article(types[0]), alternatives(types), callee, alternatives(want))
		return
	}
	if !given.closed() {
		return
	}
	for _, name := range taken.required() {
		if _, ok := given.property(name); !ok {
			c.add(path, "`%s` needs `%s` in its input, which this value cannot have by its schema", callee, run.Clip(name, 60))
		}
	}
}

// conflicts checks that every field which more than one branch gives has a rule, and one that fits it.
func (c *checker) conflicts(s *stage, path string) {
	rules := s.Parallel.Merge.Fields
	givers := make(map[string][]string)
	for _, b := range s.Parallel.Branches {
		out := c.agentOutput(b.Agent)
		if !out.is("object") {
			c.add(path, "branch `%s` gives %s, which has no fields to merge", b.Name, alternatives(out.types()))
			continue
		}
		for _, name := range out.names() {
			givers[name] = append(givers[name], b.Name)
			rule := rules[name]
			if field, _ := out.property(name); (rule == fleet.FieldSum || rule == fleet.FieldMax || rule == fleet.FieldMin) && !field.is("number") {
				c.add(path+"."+fleet.Key(name), "rule %s is of numbers, and branch `%s` gives %s", rule, b.Name, alternatives(field.types()))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(givers)) {
		if _, ok := rules[name]; !ok && len(givers[name]) > 1 {
			c.add(path, "branches %s all give `%s`, and no rule says what becomes of it; add %s: append, sum, max, min, first or byBranch",
				strings.Join(givers[name], ", "), fleet.Key(name), fleet.Key(name))
		}
	}
}
