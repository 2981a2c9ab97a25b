package expr

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// Reference is a place where an expression reads a variable, or a part of one.
type Reference struct {
	// Path is the variable's name, then fields (string) and places in lists (int64), as far as they are written down:
	// stages.check.output[i].total gives stages, check, output.
	Path []any
	// Tested: only asked whether it is there, by has(…).
	Tested bool
	// Line and Column are where it begins, from 1.
	Line, Column int
}

// References are the places where the expression reads its variables, from left to right.
func (p *Program) References() []Reference {
	native := p.ast.NativeRep()
	w := &referrer{info: native.SourceInfo(), local: make(map[string]int)}
	w.walk(native.Expr())
	return w.found
}

// Whole is the reference that the expression is, if it is nothing else.
func (p *Program) Whole() (Reference, bool) {
	native := p.ast.NativeRep()
	w := &referrer{info: native.SourceInfo(), local: make(map[string]int)}
	path, ok := w.path(native.Expr())
	if !ok || native.Expr().Kind() == ast.SelectKind && native.Expr().AsSelect().IsTestOnly() {
		return Reference{}, false
	}
	return w.at(native.Expr(), path), true
}

// Type is what the expression's value will be, in JSON's words: null, boolean, number, string, array or object; "" where
// only its evaluation tells.
func (p *Program) Type() string {
	switch t := p.ast.OutputType(); t.Kind() {
	case cel.NullTypeKind:
		return "null"
	case cel.BoolKind:
		return "boolean"
	case cel.IntKind, cel.UintKind, cel.DoubleKind:
		return "number"
	case cel.StringKind, cel.BytesKind, cel.TimestampKind, cel.DurationKind:
		return "string"
	case cel.ListKind:
		return "array"
	case cel.MapKind:
		return "object"
	}
	return ""
}

// referrer gathers references. What a comprehension names for itself is none.
type referrer struct {
	info  *ast.SourceInfo
	local map[string]int
	found []Reference
}

func (w *referrer) at(e ast.Expr, path []any) Reference {
	for e.Kind() != ast.IdentKind {
		if e.Kind() == ast.SelectKind {
			e = e.AsSelect().Operand()
		} else {
			e = e.AsCall().Args()[0]
		}
	}
	where := w.info.GetStartLocation(e.ID())
	return Reference{Path: path, Line: where.Line(), Column: where.Column() + 1}
}

func (w *referrer) walk(e ast.Expr) {
	// 1. A chain of fields from a variable is one reference; has() of one as well.
	if path, ok := w.path(e); ok {
		r := w.at(e, path)
		r.Tested = e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly()
		w.found = append(w.found, r)
		return
	}
	// 2. Else what it is made of.
	switch e.Kind() {
	case ast.SelectKind:
		w.walk(e.AsSelect().Operand())
	case ast.CallKind:
		if c := e.AsCall(); c.IsMemberFunction() {
			w.walk(c.Target())
		}
		for _, arg := range e.AsCall().Args() {
			w.walk(arg)
		}
	case ast.ListKind:
		for _, x := range e.AsList().Elements() {
			w.walk(x)
		}
	case ast.MapKind:
		for _, x := range e.AsMap().Entries() {
			w.walk(x.AsMapEntry().Key())
			w.walk(x.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, x := range e.AsStruct().Fields() {
			w.walk(x.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		w.walk(c.IterRange())
		w.walk(c.AccuInit())
		w.within(c.LoopCondition(), c.AccuVar(), c.IterVar(), c.IterVar2())
		w.within(c.LoopStep(), c.AccuVar(), c.IterVar(), c.IterVar2())
		w.within(c.Result(), c.AccuVar())
	}
}

// within walks where names mean something else.
func (w *referrer) within(e ast.Expr, names ...string) {
	for _, n := range names {
		w.local[n]++
	}
	w.walk(e)
	for _, n := range names {
		w.local[n]--
	}
}

// path is the chain of fields and written places that leads from a variable to e.
func (w *referrer) path(e ast.Expr) ([]any, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		if name := e.AsIdent(); w.local[name] == 0 {
			return []any{name}, true
		}
	case ast.SelectKind:
		if path, ok := w.path(e.AsSelect().Operand()); ok {
			return append(path, e.AsSelect().FieldName()), true
		}
	case ast.CallKind:
		c := e.AsCall()
		if c.FunctionName() != operators.Index || len(c.Args()) != 2 || c.Args()[1].Kind() != ast.LiteralKind {
			return nil, false
		}
		path, ok := w.path(c.Args()[0])
		if !ok {
			return nil, false
		}
		switch key := c.Args()[1].AsLiteral().(type) {
		case types.String:
			return append(path, string(key)), true
		case types.Int:
			return append(path, int64(key)), true
		}
	}
	return nil, false
}
