package render

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v4"
)

// ToYAML renders any value that has a JSON form as one YAML document, fields in the order of that form.
func ToYAML(v any) ([]byte, error) {
	var form bytes.Buffer
	if err := writeJSON(&form, v, ""); err != nil {
		return nil, err
	}
	d := json.NewDecoder(&form)
	d.UseNumber()
	node, err := nextNode(d)
	if err != nil {
		return nil, fmt.Errorf("render as YAML: %w", err)
	}
	out, err := yaml.Dump(node, yaml.WithIndent(2), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("render as YAML: %w", err)
	}
	return out, nil
}

// nextNode reads the next JSON value as a tree that keeps the order of keys, which a map would lose.
func nextNode(d *json.Decoder) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		if t == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for d.More() {
			child, err := nextNode(d)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
		_, err := d.Token()
		return n, err
	case string:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: t}, nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: t.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(t)}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: "null"}, nil
}
