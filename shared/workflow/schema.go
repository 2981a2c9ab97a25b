package workflow

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
)

// schema is what is known of a value before there is one: of a JSON Schema what can be told without a value, or a form
// that the workflow itself makes. The zero schema says nothing.
type schema struct {
	node, root any // of a JSON Schema
	made       *made
}

// made is a form that the workflow makes: a mapping of exactly these fields, or a list.
type made struct {
	fields map[string]schema
	items  *schema
}

const maxRefs = 16 // references from one schema to the next

func schemaOf(raw fleet.Schema) schema {
	if len(raw) == 0 {
		return schema{}
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var tree any
	if d.Decode(&tree) != nil {
		return schema{} // whoever compiles it says so
	}
	return schema{node: tree, root: tree}
}

// resolve follows references within the schema.
func (s schema) resolve() (map[string]any, bool) {
	node := s.node
	for range maxRefs {
		m, ok := node.(map[string]any)
		if !ok {
			return nil, false
		}
		ref, ok := m["$ref"].(string)
		if !ok {
			return m, true
		}
		path, ok := strings.CutPrefix(ref, "#/")
		if !ok {
			return nil, false
		}
		node = s.root
		for part := range strings.SplitSeq(path, "/") {
			m, ok := node.(map[string]any)
			if !ok {
				return nil, false
			}
			node = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
		}
	}
	return nil, false
}

// types are what the value can be in JSON's words; nil for anything. What has no fraction is a number here.
func (s schema) types() []string {
	if s.made != nil {
		if s.made.items != nil {
			return []string{"array"}
		}
		return []string{"object"}
	}
	m, ok := s.resolve()
	if !ok {
		return nil
	}
	var types []string
	add := func(t any) {
		if t, ok := t.(string); ok {
			if t == "integer" {
				t = "number"
			}
			types = append(types, t)
		}
	}
	switch t := m["type"].(type) {
	case string:
		add(t)
	case []any:
		for _, x := range t {
			add(x)
		}
	}
	return types
}

// is reports whether the value can be of a type.
func (s schema) is(t string) bool {
	types := s.types()
	return types == nil || slices.Contains(types, t)
}

// field is what is known of a part of the value; ok is false where the schema rules it out.
func (s schema) field(key any) (schema, bool) {
	if s.node == false {
		return schema{}, false
	}
	switch key := key.(type) {
	case string:
		return s.property(key)
	case int64:
		if !s.is("array") {
			return schema{}, false
		}
		return s.items(), true
	}
	return schema{}, true
}

func (s schema) property(name string) (schema, bool) {
	if !s.is("object") {
		return schema{}, false
	}
	if s.made != nil {
		f, ok := s.made.fields[name]
		return f, ok
	}
	m, ok := s.resolve()
	if !ok {
		return schema{}, true
	}
	properties, _ := m["properties"].(map[string]any)
	if p, ok := properties[name]; ok {
		return schema{node: p, root: s.root}, p != false
	}
	return schema{}, !s.closed()
}

// items is what is known of the items of a list.
func (s schema) items() schema {
	if s.made != nil && s.made.items != nil {
		return *s.made.items
	}
	if m, ok := s.resolve(); ok {
		if items, ok := m["items"]; ok {
			return schema{node: items, root: s.root}
		}
	}
	return schema{}
}

// closed reports whether a mapping has no fields but those that the schema names.
func (s schema) closed() bool {
	if s.made != nil {
		return s.made.items == nil
	}
	m, ok := s.resolve()
	return ok && m["additionalProperties"] == false && m["patternProperties"] == nil
}

// names are the fields that the schema names, sorted.
func (s schema) names() []string {
	if s.made != nil {
		return slices.Sorted(maps.Keys(s.made.fields))
	}
	m, ok := s.resolve()
	if !ok {
		return nil
	}
	properties, _ := m["properties"].(map[string]any)
	return slices.Sorted(maps.Keys(properties))
}

// required are the fields that must be there.
func (s schema) required() []string {
	m, ok := s.resolve()
	if !ok {
		return nil
	}
	var names []string
	list, _ := m["required"].([]any)
	for _, x := range list {
		if name, ok := x.(string); ok {
			names = append(names, name)
		}
	}
	return names
}
