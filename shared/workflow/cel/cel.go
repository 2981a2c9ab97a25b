// Package cel gives workflows their expressions, which are CEL.
//
// Layer 3: it joins package workflow, which is pure, with package expr.
package cel

import (
	"context"

	"github.com/errand-run/errand/shared/expr"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/workflow"
)

// Compile prepares a workflow; see workflow.Compile.
func Compile(w *fleet.Workflow) (*workflow.Plan, []fleet.Problem) {
	return workflow.Compile(w, language{})
}

type language struct{}

func (language) Compile(source string, variables ...string) (workflow.Expression, error) {
	p, err := expr.CompileAny(source, variables...)
	if err != nil {
		return nil, err
	}
	return program{p}, nil
}

func (language) From(raw []byte) (any, error) { return expr.From(raw) }

type program struct{ *expr.Program }

// Value ends by itself: an evaluation is bounded in steps.
func (p program) Value(variables map[string]any) (any, error) {
	return p.Program.Value(context.Background(), variables)
}

func (p program) References() []workflow.Reference {
	found := p.Program.References()
	all := make([]workflow.Reference, len(found))
	for i, r := range found {
		all[i] = workflow.Reference(r)
	}
	return all
}

func (p program) Whole() (workflow.Reference, bool) {
	r, ok := p.Program.Whole()
	return workflow.Reference(r), ok
}
