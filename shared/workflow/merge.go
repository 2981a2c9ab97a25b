package workflow

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// fanOut calls many at once and, where an agent merges, that one after them.
func (w *walker) fanOut(s *stage, name string) *Action {
	m := &s.Parallel.Merge
	merging := m.Rule == fleet.MergeAgent
	if merging {
		switch items := w.Outcomes[name+"/items"]; {
		case items != nil && items.State == Failed:
			return record(name, items)
		case items != nil:
			return w.mergeBy(name, m.Agent, items)
		}
	}
	// 1. Who is called, and with what.
	calls, broken := w.calls(s, name)
	if broken != nil {
		return broken
	}
	a := &Action{
		Do: DoCall, Step: name, Group: name, Calls: calls, Max: s.Parallel.Max,
		Tolerate: bearable(s.Parallel.Tolerate, len(calls)),
	}
	if merging {
		a.Step = name + "/items"
		a.Group = a.Step
	}
	// 2. How many must succeed.
	need := 0
	switch {
	case m.Rule == fleet.MergeFirst:
		need = 1
	case m.Rule == fleet.MergeQuorum && m.On == "":
		need = m.Quorum
	}
	switch {
	case need > len(calls) && (m.Rule == fleet.MergeQuorum || len(s.branches) > 0):
		return record(name, failure(run.NonRetryable, "NoQuorum", "stage %s: %d successes are needed and %d are called", s.Name, need, len(calls)))
	case need > 0 && need <= len(calls):
		a.Need, a.Tolerate = need, len(calls)-need
	}
	// 3. What becomes of their outputs.
	a.settle = func(results []Result) *Outcome { return w.merge(s, calls, results) }
	if len(calls) == 0 {
		return record(a.Step, a.settle(nil))
	}
	return a
}

// calls are the calls of a fan-out in the order of its items or branches.
func (w *walker) calls(s *stage, name string) ([]Call, *Action) {
	par := s.Parallel
	var calls []Call
	size := 0
	add := func(c Call) *Action {
		if size += len(c.Input); size > MaxCallsBytes {
			return w.fail(s, run.InputInvalid, "stage %s: the inputs of its calls have more than %d bytes", s.Name, MaxCallsBytes)
		}
		calls = append(calls, c)
		return nil
	}
	// 1. Branches: those that apply.
	if par.ForEach == "" {
		for k := range s.branches {
			b := &s.branches[k]
			if b.when != nil {
				ok, err := w.truth(b.when, w.scope(b.when, nil))
				if err != nil {
					return nil, w.broken(s, b.when, err)
				}
				if !ok {
					continue
				}
			}
			input, broken := w.input(s, name, b.input, s.itemInput, s.input)
			if broken == nil {
				broken = add(Call{Branch: b.Name, Agent: b.Agent, Workflow: b.Workflow, Input: input})
			}
			if broken != nil {
				return nil, broken
			}
		}
		return calls, nil
	}
	// 2. Items of a list.
	var items any
	var err error
	if raw, ok := w.given(name); ok {
		items, err = w.language.From(raw)
	} else {
		items, err = s.forEach.Value(w.scope(s.forEach, nil))
	}
	list, ok := items.([]any)
	switch {
	case err != nil:
		return nil, w.broken(s, s.forEach, err)
	case !ok:
		return nil, w.broken(s, s.forEach, errors.New("the value is no list"))
	case len(list) > fleet.MaxFanOut:
		return nil, w.broken(s, s.forEach, fmt.Errorf("the list has %d items; the limit is %d", len(list), fleet.MaxFanOut))
	}
	f := s.itemInput
	if f == nil {
		f = s.input
	}
	var vars map[string]any
	if f != nil {
		vars = w.scope(f, nil)
	}
	for i, item := range list {
		input := encode(item)
		if f != nil {
			vars["item"], vars["index"] = item, int64(i)
			if input, err = w.json(f, vars); err != nil {
				return nil, w.broken(s, f, fmt.Errorf("item %d: %w", i, err))
			}
		}
		if broken := add(Call{Agent: par.Agent, Workflow: par.Workflow, Input: input}); broken != nil {
			return nil, broken
		}
	}
	return calls, nil
}

// mergeBy calls the agent that merges.
func (w *walker) mergeBy(name, agent string, items *Outcome) *Action {
	group := name + "/merge"
	a := &Action{Do: DoCall, Step: name, Group: group, Calls: []Call{{Agent: agent, Input: orNull(items.Output)}}}
	a.settle = func(results []Result) *Outcome {
		return &Outcome{State: Succeeded, Output: results[0].Output, Run: results[0].Run, Calls: items.Calls, Failed: items.Failed}
	}
	return a
}

// merge makes one output of many. The order of the items decides, never that in which they ended.
func (w *walker) merge(s *stage, calls []Call, results []Result) *Outcome {
	m := &s.Parallel.Merge
	o := &Outcome{State: Succeeded, Calls: len(calls)}
	var good []int
	for i := range results {
		if results[i].State == run.Succeeded {
			good = append(good, i)
		}
	}
	o.Failed = len(calls) - len(good)
	switch m.Rule {
	case fleet.MergeFirst:
		o.Failed = 0 // who was late has not failed
		if len(good) > 0 {
			o.Output, o.Run = results[good[0]].Output, results[good[0]].Run
		}
	case fleet.MergeVote, fleet.MergeQuorum:
		if m.Rule == fleet.MergeQuorum && m.On == "" {
			o.Failed = 0
			outputs := make([]json.RawMessage, 0, m.Quorum)
			for _, i := range good[:min(m.Quorum, len(good))] {
				outputs = append(outputs, orNull(results[i].Output))
			}
			o.Output = encode(outputs)
			break
		}
		return w.vote(s, o, results, good)
	case fleet.MergeFields:
		return mergeFields(s, o, calls, results, good)
	default: // collect, also for an agent that merges
		o.Output = collect(s, calls, results)
	}
	return o
}

// collect is a list in the order of the items, or a mapping by branch; null for what failed.
func collect(s *stage, calls []Call, results []Result) json.RawMessage {
	if s.Parallel.ForEach != "" {
		outputs := make([]json.RawMessage, len(results))
		for i := range results {
			outputs[i] = output(&results[i])
		}
		return encode(outputs)
	}
	outputs := make(map[string]json.RawMessage, len(results))
	for i := range results {
		outputs[calls[i].Branch] = output(&results[i])
	}
	return encode(outputs)
}

func output(r *Result) json.RawMessage {
	if r.State != run.Succeeded {
		return json.RawMessage("null")
	}
	return orNull(r.Output)
}

// vote takes the output that most agree on, or that a quorum agrees on.
func (w *walker) vote(s *stage, o *Outcome, results []Result, good []int) *Outcome {
	m := &s.Parallel.Merge
	votes, first := make(map[string]int), make(map[string]int)
	winner, most := "", 0
	for _, i := range good {
		v, err := w.language.From(orNull(results[i].Output))
		if err == nil && s.mergeOn != nil {
			v, err = s.mergeOn.Value(map[string]any{"last": v})
		}
		if err != nil {
			return failure(run.NonRetryable, "NoVote", "%s: the output of call %d (run %s) has no vote: %v", fleet.At("spec.stages", w.flow.Place(s.Name), "parallel.merge.on"), i, results[i].Run, err)
		}
		key := string(encode(v))
		if votes[key]++; votes[key] == 1 {
			first[key] = i
		}
		if n := votes[key]; n > most || n == most && first[key] < first[winner] {
			winner, most = key, n
		}
	}
	if m.Rule == fleet.MergeQuorum && most < m.Quorum {
		return failure(run.NonRetryable, "NoQuorum", "stage %s: %d of %d agree at most, and %d must", s.Name, most, len(results), m.Quorum)
	}
	if most > 0 {
		o.Output, o.Run = results[first[winner]].Output, results[first[winner]].Run
	}
	return o
}

// mergeFields makes one mapping of the fields of all branches.
func mergeFields(s *stage, o *Outcome, calls []Call, results []Result, good []int) *Outcome {
	rules := s.Parallel.Merge.Fields
	given := make(map[string][]int) // by field: who gives it, in the order of the branches
	values := make([]map[string]json.RawMessage, len(results))
	for _, i := range good {
		if err := json.Unmarshal(orNull(results[i].Output), &values[i]); err != nil || values[i] == nil {
			return failure(run.NonRetryable, "MergeConflict", "stage %s: branch %s gives no mapping (run %s), so its fields cannot be merged", s.Name, calls[i].Branch, results[i].Run)
		}
		for k := range values[i] {
			given[k] = append(given[k], i)
		}
	}
	merged := make(map[string]json.RawMessage, len(given))
	for _, k := range slices.Sorted(maps.Keys(given)) {
		var parts []json.RawMessage
		var names []string
		for _, i := range given[k] {
			parts, names = append(parts, values[i][k]), append(names, calls[i].Branch)
		}
		rule, ruled := rules[k]
		switch {
		case !ruled && len(parts) > 1:
			return failure(run.NonRetryable, "MergeConflict", "stage %s: branches %s all give `%s`, and no rule says what becomes of it; add it to merge.fields",
				s.Name, strings.Join(names, ", "), run.Clip(k, 100))
		case !ruled:
			merged[k] = parts[0]
			continue
		}
		v, err := mergeField(rule, parts, names)
		if err != nil {
			return failure(run.NonRetryable, "MergeConflict", "stage %s: `%s` by rule %s: %v", s.Name, run.Clip(k, 100), rule, err)
		}
		merged[k] = v
	}
	o.Output = encode(merged)
	return o
}

func mergeField(rule fleet.FieldRule, parts []json.RawMessage, names []string) (json.RawMessage, error) {
	switch rule {
	case fleet.FieldFirst:
		return parts[0], nil
	case fleet.FieldByBranch:
		m := make(map[string]json.RawMessage, len(parts))
		for i, name := range names {
			m[name] = parts[i]
		}
		return encode(m), nil
	case fleet.FieldAppend:
		all := []json.RawMessage{}
		for _, part := range parts {
			var list []json.RawMessage
			if json.Unmarshal(part, &list) != nil {
				list = []json.RawMessage{part}
			}
			all = append(all, list...)
		}
		return encode(all), nil
	}
	// Of numbers, exactly: tenths stay tenths.
	var sum, best *big.Rat
	var taken json.RawMessage
	scale := 0
	for i, part := range parts {
		n, digits, err := exact(part)
		if err != nil {
			return nil, fmt.Errorf("branch %s: %w", names[i], err)
		}
		scale = max(scale, digits)
		if sum == nil {
			sum, best, taken = new(big.Rat).Set(n), n, part
			continue
		}
		sum.Add(sum, n)
		if c := n.Cmp(best); c > 0 && rule == fleet.FieldMax || c < 0 && rule == fleet.FieldMin {
			best, taken = n, part
		}
	}
	if rule == fleet.FieldSum {
		text := sum.FloatString(scale)
		if scale > 0 {
			text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
		}
		return json.RawMessage(text), nil
	}
	return taken, nil
}

// maxDigits bounds a number that is computed with, in characters and in its exponent.
const maxDigits = 400

// exact is a JSON number and how many digits it has behind the point.
func exact(raw json.RawMessage) (*big.Rat, int, error) {
	var n json.Number
	if len(raw) == 0 || raw[0] == '"' || json.Unmarshal(raw, &n) != nil || n == "" {
		return nil, 0, errors.New("the value is no number")
	}
	text := n.String()
	if f, err := n.Float64(); err != nil || len(text) > maxDigits || f != 0 && (f < 1e-100 && f > -1e-100) {
		return nil, 0, errors.New("the number is beyond what can be computed with")
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, 0, errors.New("the value is no number")
	}
	for digits, scaled := 0, new(big.Rat).Set(r); digits <= maxDigits; digits++ {
		if scaled.IsInt() {
			return r, digits, nil
		}
		scaled.Mul(scaled, big.NewRat(10, 1))
	}
	return nil, 0, errors.New("the number is beyond what can be computed with")
}
