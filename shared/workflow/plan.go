package workflow

import (
	"fmt"
	"maps"
	"slices"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// Plan is a workflow, ready to be executed. Safe for concurrent use.
type Plan struct {
	flow     *fleet.Workflow
	language Language
	stages   []stage
	output   *function // nil: the last output
	before   []fleet.Stages
}

// stage is one with its expressions; those that are not given are nil.
type stage struct {
	*fleet.Stage
	when, input, action       *function
	forEach, itemInput        *function // of parallel
	mergeOn                   *function
	branches                  []branch
	on, byInput               *function // of route
	until, score, criticInput *function // of loop
	limitAction               *function // of loop's gate
}

type branch struct {
	*fleet.FlowCall
	input, when *function
}

// function is a compiled expression and where it stands.
type function struct {
	Expression
	path   string // in the manifest
	at     int    // stage; len(stages) for the workflow's output
	stages []string
	all    bool // it reads stages otherwise than by their names
}

// Flow is what the plan was made of.
func (p *Plan) Flow() *fleet.Workflow { return p.flow }

// The variables of expressions.
var (
	plain  = []string{"input", "stages", "run"}
	perRun = slices.Concat(plain, []string{"item", "index"})
	rounds = slices.Concat(plain, []string{"last", "messages"})
)

// Compile prepares a workflow that Validate has passed. Every expression that does not compile, that gives what cannot
// be used where it stands, or that reads a stage which cannot have run by then, is a problem with its path; the plan is
// then nil.
func Compile(w *fleet.Workflow, language Language) (*Plan, []fleet.Problem) {
	p := &Plan{flow: w, language: language, stages: make([]stage, len(w.Stages)), before: w.Before()}
	c := &compiler{plan: p}
	for i := range w.Stages {
		c.at = i
		c.stage(&p.stages[i], &w.Stages[i], fleet.At("spec.stages", i))
	}
	c.at = len(w.Stages)
	p.output = c.compile("spec.output", w.Output, nil, plain)
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	return p, nil
}

type compiler struct {
	plan     *Plan
	at       int
	problems []fleet.Problem
}

func (c *compiler) add(path, format string, args ...any) {
	c.problems = append(c.problems, fleet.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// Types of value that a place takes; nil for any.
var (
	truth  = []string{"boolean"}
	list   = []string{"array"}
	answer = []string{"string", "number", "boolean", "null"}
	number = []string{"number"}
)

func (c *compiler) stage(s *stage, decl *fleet.Stage, path string) {
	s.Stage = decl
	s.when = c.compile(path+".when", decl.When, truth, plain)
	switch {
	case decl.Parallel != nil:
		par := decl.Parallel
		vars := plain
		if par.ForEach != "" {
			vars = perRun
		}
		s.forEach = c.compile(path+".parallel.forEach", par.ForEach, list, plain)
		s.input = c.compile(path+".input", decl.Input, nil, vars)
		s.itemInput = c.compile(path+".parallel.input", par.Input, nil, vars)
		s.mergeOn = c.compile(path+".parallel.merge.on", par.Merge.On, nil, []string{"last"})
		s.branches = make([]branch, len(par.Branches))
		for k := range par.Branches {
			b := &par.Branches[k]
			at := fleet.At(path, "parallel", "branches", k)
			s.branches[k] = branch{b, c.compile(at+".input", b.Input, nil, plain), c.compile(at+".when", b.When, truth, plain)}
		}
	case decl.Loop != nil:
		l := decl.Loop
		s.input = c.compile(path+".input", decl.Input, nil, rounds)
		s.until = c.compile(path+".loop.until", l.Until, truth, rounds)
		s.criticInput = c.compile(path+".loop.criticInput", l.CriticInput, nil, rounds)
		score := l.Score
		if score == "" && l.OnLimit == fleet.LimitBest {
			score = "last.score"
		}
		s.score = c.compile(path+".loop.score", score, number, rounds)
		if l.Gate != nil {
			s.limitAction = c.compile(path+".loop.gate.action", l.Gate.Action, nil, rounds)
		}
	default:
		s.input = c.compile(path+".input", decl.Input, nil, plain)
	}
	if r := decl.Route; r != nil {
		s.on = c.compile(path+".route.on", r.On, answer, plain)
		if r.By != nil {
			s.byInput = c.compile(path+".route.by.input", r.By.Input, nil, plain)
		}
	}
	if decl.Gate != nil {
		s.action = c.compile(path+".gate.action", decl.Gate.Action, nil, plain)
	}
}

// compile reads an expression whose value must be of one of the types; nil for one that is not given or no good.
func (c *compiler) compile(path, source string, types, variables []string) *function {
	if source == "" || len(source) > fleet.MaxExprLength {
		return nil // the length is Validate's to refuse
	}
	e, err := c.plan.language.Compile(source, variables...)
	if err != nil {
		c.add(path, "%v", err)
		return nil
	}
	if got := e.Type(); got != "" && types != nil && !slices.Contains(types, got) {
		c.add(path, "the value is %s %s; want %s", article(got), got, alternatives(types))
		return nil
	}
	f := &function{Expression: e, path: path, at: c.at}
	names := make(map[string]bool)
	for _, r := range e.References() {
		if r.Path[0] != "stages" {
			continue
		}
		if len(r.Path) == 1 {
			f.all = true
			continue
		}
		name, ok := r.Path[1].(string)
		if !ok || !c.ran(path, r, name) {
			continue
		}
		names[name] = true
	}
	f.stages = slices.Sorted(maps.Keys(names))
	return f
}

// ran checks that a stage that an expression reads can have run by then.
func (c *compiler) ran(path string, r Reference, name string) bool {
	w := c.plan.flow
	i := w.Place(name)
	switch {
	case i < 0:
		c.add(path, "%d:%d: there is no stage `%s`", r.Line, r.Column, fleet.Key(name))
		return false
	case !c.plan.before[c.at].Has(i):
		c.add(path, "%d:%d: stage `%s` cannot have run by then", r.Line, r.Column, fleet.Key(name))
		return false
	}
	return c.field(path, r, &w.Stages[i])
}

// field checks the part of a stage's record that is read.
func (c *compiler) field(path string, r Reference, s *fleet.Stage) bool {
	if len(r.Path) < 3 {
		return true
	}
	known := recordFields(s)
	if name, ok := r.Path[2].(string); !ok || !slices.Contains(known, name) {
		c.add(path, "%d:%d: stage `%s` has no %s; it has %s", r.Line, r.Column, s.Name, run.Clip(fmt.Sprint(r.Path[2]), 60), alternatives(known))
		return false
	}
	return true
}

// recordFields are what expressions see of a stage.
func recordFields(s *fleet.Stage) []string {
	fields := []string{"output", "state", "visits"}
	switch {
	case s.Route != nil:
		fields = append(fields, "choice", "answer")
	case s.Parallel != nil:
		fields = append(fields, "calls", "failed")
	case s.Loop != nil:
		fields = append(fields, "rounds")
	}
	return fields
}

func article(noun string) string {
	switch noun {
	case "array", "object":
		return "an"
	case "null":
		return "nothing but"
	}
	return "a"
}

func alternatives(words []string) string {
	text := ""
	for i, w := range words {
		switch {
		case i == 0:
		case i == len(words)-1:
			text += " or "
		default:
			text += ", "
		}
		text += w
	}
	return text
}
