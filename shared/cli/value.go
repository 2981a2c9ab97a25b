package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/inputs"
)

// readValue reads a JSON value given as text, as @FILE, or as - for standard input. "" is no value.
func (a *app) readValue(flag, text string) (json.RawMessage, error) {
	var data []byte
	var from string
	switch {
	case text == "":
		return nil, nil
	case text == "-":
		from = "standard input"
		b, err := io.ReadAll(io.LimitReader(a.in, api.MaxPayload+1))
		if err != nil {
			return nil, fmt.Errorf("read %s from standard input: %w", flag, err)
		}
		data = b
	case text[0] == '@':
		from = text[1:]
		b, err := inputs.Read(from)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", flag, err)
		}
		data = b
	default:
		from = "the command line"
		data = []byte(text)
	}
	if len(data) > api.MaxPayload {
		return nil, usagef("%s from %s: larger than %d MiB, the limit of one value", flag, from, api.MaxPayload>>20)
	}
	if err := inputs.CheckJSON(data); err != nil {
		return nil, usagef("%s from %s is not one JSON document: %v; want JSON such as '{\"name\":\"x\"}', @FILE or -", flag, from, err)
	}
	return json.RawMessage(data), nil
}
