package render

import (
	"bytes"
	"fmt"

	"github.com/errand-run/errand/shared/manifest"
)

// ToYAML renders any value that has a JSON form as one YAML document, fields in the order of that form.
func ToYAML(v any) ([]byte, error) {
	var form bytes.Buffer
	if err := writeJSON(&form, v, ""); err != nil {
		return nil, err
	}
	out, err := manifest.JSONToYAML(form.Bytes())
	if err != nil {
		return nil, fmt.Errorf("render as YAML: %w", err)
	}
	return out, nil
}
