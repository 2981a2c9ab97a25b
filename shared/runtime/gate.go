package runtime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

// gateForm is the wire's GateAsk.
type gateForm struct {
	Title        string          `json:"title"`
	Action       json.RawMessage `json:"action"`
	Approvers    []string        `json:"approvers"`
	Quorum       int             `json:"quorum"`
	NotRequester bool            `json:"notRequester"`
	Expires      fleet.Duration  `json:"expires"`
	OnExpiry     run.OnExpiry    `json:"onExpiry"`
	Remind       fleet.Duration  `json:"remind"`
	Escalate     *struct {
		After fleet.Duration `json:"after"`
		To    []string       `json:"to"`
	} `json:"escalate"`
	Context json.RawMessage `json:"context"`
	Diff    string          `json:"diff"`
}

// parseGate reads the question of a park on a gate. It is stricter than other parts of an answer: a limit on who may
// decide that is spelled wrong must not come to mean everybody.
func parseGate(raw json.RawMessage) (*run.GateAsk, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var g gateForm
	if err := d.Decode(&g); err != nil {
		var wrong *json.UnmarshalTypeError
		switch {
		case errors.As(err, &wrong) && wrong.Field != "":
			return nil, fmt.Errorf("result: park.gate.%s does not fit; it is %s", wrong.Field, wrong.Value)
		case strings.HasPrefix(err.Error(), "json: unknown field "):
			return nil, fmt.Errorf("result: park.gate has the unknown field %s; the fields are title, action, approvers, quorum, notRequester, expires, onExpiry, remind, escalate, context and diff", strings.TrimPrefix(err.Error(), "json: unknown field "))
		}
		return nil, errors.New("result: park.gate does not fit; want an object with title, action and, perhaps, approvers, quorum, notRequester, expires, onExpiry, remind, escalate, context, diff")
	}
	ask := &run.GateAsk{
		Title: g.Title, Action: g.Action, Approvers: g.Approvers, Quorum: g.Quorum, NotRequester: g.NotRequester,
		Expires: g.Expires.Std(), OnExpiry: g.OnExpiry, Remind: g.Remind.Std(), Context: g.Context, Diff: g.Diff,
	}
	if e := g.Escalate; e != nil {
		ask.EscalateAfter, ask.EscalateTo = e.After.Std(), e.To
	}
	// What the run's requester has to do with it is for the control plane to say.
	checked := *ask
	if err := checked.Check(""); err != nil {
		return nil, fmt.Errorf("result: park.%w", err)
	}
	if _, err := run.HashAction(g.Action); err != nil {
		return nil, fmt.Errorf("result: park.gate: %w", err)
	}
	return ask, nil
}
