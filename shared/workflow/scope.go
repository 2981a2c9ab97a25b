package workflow

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/run"
)

// scope is what an expression sees now: of the stages those that it names.
func (w *walker) scope(f *function, more map[string]any) map[string]any {
	vars := map[string]any{
		"input": lazy(w.language, w.Input), "stages": w.stagesFor(f),
		"run": map[string]any{"id": w.Run.ID, "workflow": w.Run.Workflow, "tenant": w.Run.Tenant, "labels": labels(w.Run.Labels)},
	}
	maps.Copy(vars, more)
	return vars
}

func labels(of map[string]string) map[string]any {
	m := make(map[string]any, len(of))
	for k, v := range of {
		m[k] = v
	}
	return m
}

// lazy is a value that cannot fail to be read: it was read before.
func lazy(l Language, raw json.RawMessage) any {
	v, err := l.From(orNull(raw))
	if err != nil {
		return nil
	}
	return v
}

func (w *walker) stagesFor(f *function) map[string]any {
	seen := make(map[string]any)
	add := func(i int) {
		if o := w.past[i].outcome; o != nil {
			seen[w.stages[i].Name] = w.record(i, o)
		}
	}
	if f.all {
		for i := range w.stages {
			add(i)
		}
		return seen
	}
	for _, name := range f.stages {
		add(w.flow.Place(name))
	}
	return seen
}

// record is what expressions see of a stage, see the package's comment.
func (w *walker) record(i int, o *Outcome) map[string]any {
	m := map[string]any{"output": lazy(w.language, o.Output), "state": string(o.State), "visits": int64(w.past[i].visits)}
	s := &w.stages[i]
	switch {
	case s.Route != nil:
		m["choice"], m["answer"] = o.Choice, o.Answer
	case s.Parallel != nil:
		m["calls"], m["failed"] = int64(o.Calls), int64(o.Failed)
	case s.Loop != nil:
		m["rounds"] = int64(o.Rounds)
	}
	return m
}

func (w *walker) truth(f *function, vars map[string]any) (bool, error) {
	v, err := f.Value(vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, errors.New("the value is neither true nor false")
	}
	return b, nil
}

func (w *walker) json(f *function, vars map[string]any) (json.RawMessage, error) {
	v, err := f.Value(vars)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, errors.New("the value cannot be written as JSON")
	}
	if len(raw) > run.MaxPayload {
		return nil, fmt.Errorf("the value has %d bytes; the limit is %d", len(raw), run.MaxPayload)
	}
	return raw, nil
}

// encode writes what is made of JSON and of texts: it cannot fail.
func encode(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return raw
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

func float(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

const (
	maxTitle = 300 // bytes of a gate's title with its values
	maxPlace = 80  // bytes of one value in it
)

// title puts values into a gate's title. What is not there stands as "?".
func title(text string, value any) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "{{")
		b.WriteString(before)
		if !found {
			break
		}
		place, rest, _ := strings.Cut(after, "}}")
		b.WriteString(run.Clip(plainText(at(value, strings.Split(strings.TrimPrefix(strings.TrimSpace(place), "."), "."))), maxPlace))
		text = rest
	}
	return strings.Join(strings.Fields(run.Clip(b.String(), maxTitle)), " ")
}

func at(v any, path []string) any {
	for _, field := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[field]
	}
	return v
}

func plainText(v any) string {
	switch v := v.(type) {
	case nil:
		return "?"
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return string(encode(v))
}
