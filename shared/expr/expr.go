// Package expr compiles and evaluates the expressions of manifests, in CEL. An expression is checked when it is declared;
// its evaluation is bounded in steps, which bound what it makes as well, reads nothing but its variables, and gives the
// same for the same.
//
// Layer 2: it imports no package of the house.
package expr

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// Bounds. The size of a source is for whoever declares it.
const (
	maxCost   = 300_000   // steps of an evaluation, as CEL counts them: some tens of milliseconds
	maxDepth  = 100       // levels of a source, and of a result
	maxNodes  = 1_000_000 // values in a result
	maxFaults = 5         // told of one source
	checkEach = 100       // steps of a comprehension between two looks at the context
)

// Program is a compiled expression. Safe for concurrent use.
type Program struct {
	source  string
	program cel.Program
	ast     *cel.Ast
}

// environments are kept: making one takes longer than compiling with it.
var environments sync.Map

func environment(of *cel.Type, variables []string) (*cel.Env, error) {
	key := of.String() + " " + strings.Join(variables, ",")
	if env, ok := environments.Load(key); ok {
		return env.(*cel.Env), nil
	}
	options := []cel.EnvOption{
		cel.CrossTypeNumericComparisons(true), // whether JSON says 1 or 1.0 is chance
		cel.DefaultUTCTimeZone(true),
		cel.ParserRecursionLimit(maxDepth),
	}
	for _, name := range variables {
		options = append(options, cel.Variable(name, of))
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, fmt.Errorf("expressions over %s: %w", strings.Join(variables, ", "), err)
	}
	environments.Store(key, env)
	return env, nil
}

// Compile reads an expression over the variables, each of which is a map from names to anything. The error says where in
// the expression what is wrong, as line:column of it.
func Compile(source string, variables ...string) (*Program, error) {
	return compile(source, cel.MapType(cel.StringType, cel.DynType), variables)
}

// CompileAny is Compile for variables of which each may be anything.
func CompileAny(source string, variables ...string) (*Program, error) {
	return compile(source, cel.DynType, variables)
}

func compile(source string, of *cel.Type, variables []string) (*Program, error) {
	env, err := environment(of, variables)
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		var faults []string
		for i, e := range issues.Errors() {
			if i == maxFaults {
				faults = append(faults, "and more")
				break
			}
			faults = append(faults, fmt.Sprintf("%d:%d: %.200s", e.Location.Line(), e.Location.Column()+1, e.Message))
		}
		return nil, fmt.Errorf("not an expression over %s: %s", strings.Join(variables, ", "), strings.Join(faults, "; "))
	}
	program, err := env.Program(ast, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(checkEach))
	if err != nil {
		return nil, fmt.Errorf("not an expression that can be evaluated: %w", err)
	}
	return &Program{source, program, ast}, nil
}

// Value evaluates the expression and gives what it says as JSON says it: nil, bool, int64, uint64, float64, string, []any
// or map[string]any. Bytes become base64, an instant RFC 3339, a length of time text such as 1.5s. The error says why
// there is no value, and repeats nothing that the variables hold.
func (p *Program) Value(ctx context.Context, variables map[string]any) (any, error) {
	out, _, err := p.program.ContextEval(ctx, variables)
	if err != nil {
		return nil, fmt.Errorf("evaluate: %s", p.reason(err))
	}
	w := writer{}
	return w.value(out, 0)
}

// reasons are failures of an evaluation whose words are CEL's own. The words of the others hold values: the text that is
// no instant, the pattern that is none.
var reasons = []string{
	"cost limit exceeded", "memory limit exceeded", "operation interrupted", "division by zero", "modulus by zero",
	"integer overflow", "unsigned integer overflow", "no such overload", "index out of bounds", "range error",
}

// reason says why an evaluation failed, without a word of what it worked on.
func (p *Program) reason(err error) string {
	text := err.Error()
	if _, key, ok := strings.Cut(text, "no such key: "); ok {
		if key != "" && strings.Contains(p.source, key) { // the author's word, not the message's
			return fmt.Sprintf("no such key: %.100s", key)
		}
		return "no such key"
	}
	for _, r := range reasons {
		if strings.Contains(text, r) {
			return r
		}
	}
	return "a function or a conversion does not take the value that it is given"
}

// JSON is Value, encoded.
func (p *Program) JSON(ctx context.Context, variables map[string]any) (json.RawMessage, error) {
	v, err := p.Value(ctx, variables)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the value: %w", err)
	}
	return raw, nil
}

// Text evaluates an expression whose value names something: a text, or a whole number.
func (p *Program) Text(ctx context.Context, variables map[string]any) (string, error) {
	v, err := p.Value(ctx, variables)
	if err != nil {
		return "", err
	}
	switch v := v.(type) {
	case string:
		return v, nil
	case int64, uint64:
		return fmt.Sprint(v), nil
	}
	return "", fmt.Errorf("the value is %s; want a text", describe(v))
}

func describe(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "true or false"
	case float64:
		return "a number with a fraction"
	case []any:
		return "a list"
	}
	return "a map"
}

// writer turns CEL's values into JSON's.
type writer struct{ nodes int }

func (w *writer) value(v ref.Val, depth int) (any, error) {
	if w.nodes++; w.nodes > maxNodes {
		return nil, fmt.Errorf("the value has more than %d parts", maxNodes)
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("the value is nested more than %d levels deep", maxDepth)
	}
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.Int:
		return int64(v), nil
	case types.Uint:
		return uint64(v), nil
	case types.Double:
		if f := float64(v); !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f, nil
		}
		return nil, fmt.Errorf("the value holds a number that is not finite")
	case types.String:
		return string(v), nil
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(v), nil
	case types.Timestamp:
		return v.UTC().Format(time.RFC3339Nano), nil
	case types.Duration:
		return v.Duration.String(), nil
	case traits.Mapper:
		return w.object(v, depth)
	case traits.Lister:
		return w.list(v, depth)
	}
	return nil, fmt.Errorf("the value is a %s, which JSON does not have", v.Type().TypeName())
}

func (w *writer) list(v traits.Lister, depth int) (any, error) {
	out := []any{}
	for it := v.Iterator(); it.HasNext() == types.True; {
		item, err := w.value(it.Next(), depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}

func (w *writer) object(v traits.Mapper, depth int) (any, error) {
	out := make(map[string]any)
	for it := v.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, fmt.Errorf("the value is a map with a key that is a %s; want texts", key.Type().TypeName())
		}
		field, err := w.value(v.Get(key), depth+1)
		if err != nil {
			return nil, err
		}
		out[string(name)] = field
	}
	return out, nil
}

// From turns JSON into what expressions work on. A number beyond 64 bits becomes the nearest that there is.
func From(raw []byte) (any, error) {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return numbers(v)
}

func numbers(v any) (any, error) {
	var err error
	switch x := v.(type) {
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n, nil
		}
		f, err := x.Float64()
		if err != nil {
			return nil, fmt.Errorf("the number %.40s is beyond all that can be computed with", x.String())
		}
		return f, nil
	case []any:
		for i := range x {
			if x[i], err = numbers(x[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range x {
			if x[k], err = numbers(x[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
