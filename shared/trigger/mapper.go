package trigger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/expr"
	"github.com/errand-run/errand/shared/fleet"
)

// MaxKey bounds what spec.run.key gives, in bytes: with the trigger's name and a generation before it the key is
// one that a submission may have.
const MaxKey = 120

const maxOrderingLabel = 200 // bytes of a label's value

// Submission is the run that a message asks for.
type Submission struct {
	Agent, Workflow string // one of them
	Tenant          string // "" where the trigger names none
	Key             string
	Labels          map[string]string
	Input           json.RawMessage
	// ByID: the key is the broker's id of the message, so that another submission under it is this message, mapped
	// otherwise: the trigger has changed since.
	ByID bool
}

// Mapper is a trigger, ready to map. Safe for concurrent use.
type Mapper struct {
	trigger            *fleet.Trigger
	input, key, tenant *expr.Program // nil for the default
}

// Compile prepares a trigger. Every expression that does not compile is a problem, with its path; the mapper is then nil.
func Compile(t *fleet.Trigger) (*Mapper, []fleet.Problem) {
	m := &Mapper{trigger: t}
	var problems []fleet.Problem
	for _, e := range []struct {
		field, source string
		into          **expr.Program
	}{{"input", t.Run.Input, &m.input}, {"key", t.Run.Key, &m.key}, {"tenant", t.Run.Tenant, &m.tenant}} {
		if e.source == "" || len(e.source) > fleet.MaxExprLength {
			continue // the length is Validate's to refuse
		}
		program, err := expr.Compile(e.source, "message")
		if err != nil {
			problems = append(problems, fleet.Problem{Path: "spec.run." + e.field, Message: err.Error()})
			continue
		}
		*e.into = program
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return m, nil
}

// Map makes the submission of a message. generation is 0 for what arrives; a deliberate repeat of what has been there
// counts on, and gets a key of its own. The error is a *Poison, or the context's.
func (m *Mapper) Map(ctx context.Context, msg *Message, generation int) (*Submission, error) {
	t := m.trigger
	s := &Submission{Agent: t.Run.Agent, Workflow: t.Run.Workflow, Labels: map[string]string{"trigger": t.Name()}, ByID: m.key == nil && t.PubSub != nil}
	if msg.OrderingKey != "" && len(msg.OrderingKey) <= maxOrderingLabel {
		s.Labels["orderingKey"] = msg.OrderingKey
	}
	// 1. What the expressions see, if there are any.
	var variables map[string]any
	if m.input != nil || m.key != nil || m.tenant != nil {
		seen, err := msg.variables()
		if err != nil {
			return nil, err
		}
		variables = map[string]any{"message": seen}
	}
	refuse := func(field string, err error) error {
		if ctx.Err() != nil {
			return fmt.Errorf("map a message of trigger %s: %w", t.Name(), ctx.Err())
		}
		return poison("spec.run."+field, "%v", err)
	}
	// 2. Input and tenant.
	var err error
	if m.input == nil {
		s.Input = msg.Value()
	} else if s.Input, err = m.input.JSON(ctx, variables); err != nil {
		return nil, refuse("input", err)
	}
	if m.tenant != nil {
		if s.Tenant, err = m.tenant.Text(ctx, variables); err != nil {
			return nil, refuse("tenant", err)
		}
		if s.Tenant != "" && !fleet.IsName(s.Tenant) {
			return nil, poison("spec.run.tenant", "gives %.80q, which is no name: want lower-case letters, digits and hyphens", s.Tenant)
		}
	}
	// 3. The key, by which a repeat meets the first.
	key := msg.ID
	if m.key != nil {
		if key, err = m.key.Text(ctx, variables); err != nil {
			return nil, refuse("key", err)
		}
	}
	switch {
	case key == "" && m.key != nil:
		return nil, poison("spec.run.key", "gives an empty text")
	case key == "":
		return nil, poison("message.messageId", "missing: a repeat of the message could not be told from a new one; let the push write metadata, or give the trigger a key")
	case len(key) > MaxKey:
		return nil, poison("spec.run.key", "gives %d bytes; the limit is %d", len(key), MaxKey)
	}
	s.Key = t.Name() + "/" + key
	if generation > 0 { // no name has the character, so no first delivery has such a key
		s.Key = fmt.Sprintf("%s#%d/%s", t.Name(), generation, key)
	}
	return s, nil
}

// variables are the message as expressions see it. What is not known is not there.
func (m *Message) variables() (map[string]any, error) {
	data, err := expr.From(m.Value())
	if err != nil {
		return nil, poison("message.data", "%v", err)
	}
	seen := map[string]any{"data": data, "attributes": m.Attributes}
	if m.Attributes == nil {
		seen["attributes"] = map[string]string{}
	}
	for name, value := range map[string]string{"id": m.ID, "subscription": m.Subscription, "orderingKey": m.OrderingKey} {
		if value != "" {
			seen[name] = value
		}
	}
	if m.Attempt > 0 {
		seen["attempt"] = int64(m.Attempt)
	}
	if !m.PublishTime.IsZero() {
		seen["publishTime"] = m.PublishTime.UTC().Truncate(time.Microsecond)
	}
	return seen, nil
}
