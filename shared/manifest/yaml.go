package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/errand-run/errand/shared/fleet"
)

// ToYAML renders an object as one YAML document that Parse reads back as an
// equal one: fields in a fixed order, every default in effect visible.
func ToYAML(obj fleet.Object) ([]byte, error) {
	form, err := fleet.Encode(obj)
	if err != nil {
		return nil, err
	}
	out, err := JSONToYAML(form)
	if err != nil {
		return nil, fmt.Errorf("manifest: render %s %q: %w", obj.Kind(), obj.Name(), err)
	}
	return out, nil
}

// JSONToYAML renders one JSON value as one YAML document, fields in the order
// of the JSON and numbers with all their digits.
func JSONToYAML(form []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(form))
	d.UseNumber()
	node, err := nodeFrom(d)
	if err != nil {
		return nil, err
	}
	return yaml.Dump(node, yaml.WithIndent(2), yaml.WithLineWidth(-1))
}

// nodeFrom reads the next JSON value as a tree that keeps the order of keys,
// which a map would lose.
func nodeFrom(d *json.Decoder) (*yaml.Node, error) {
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
			child, err := nodeFrom(d)
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
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: t}
		switch strings.ToLower(t) {
		case "y", "yes", "on", "n", "no", "off":
			n.Style = yaml.DoubleQuotedStyle // true or false to readers of YAML 1.1
		}
		return n, nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: t.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(t)}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: "null"}, nil
}
