package control

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/errand-run/errand/shared/expr"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/run"
)

// Groups of runs by the key that their agent's concurrency.perKey gives. What waits for a place in a group stands in a
// line of the queue: see package queue.

const (
	perKeyPath = "spec.concurrency.perKey.key"
	// maxGroupKey bounds what concurrency.perKey gives: with the agent's name before it, it is a group's key.
	maxGroupKey = run.MaxKey - fleet.MaxNameLength - 1
	// busyAgain is when a run that was begun from outside may ask again for a place in its group.
	busyAgain = 5 * time.Second
)

// groupsOf lists the groups that a run of the agent is in by its input. The error is a *Refusal that names the field.
func (x *declaration) groupsOf(ctx context.Context, s *run.Spec, input []byte) ([]run.Group, error) {
	if x.perKey == nil {
		return nil, nil
	}
	agent := x.object.(*fleet.Agent)
	refused := func(format string, args ...any) error {
		why := fmt.Sprintf(format, args...)
		return &Refusal{
			Code: CodeInvalid, Detail: fmt.Sprintf("concurrency.perKey of agent %s gives no key for this run: %s", agent.Name(), why),
			Faults: []Fault{{perKeyPath, why}},
		}
	}
	if len(input) == 0 {
		input = []byte("null")
	}
	value, err := expr.From(input)
	if err != nil {
		return nil, refused("the input is no value: %v", err)
	}
	labels := make(map[string]any, len(s.Labels))
	for k, v := range s.Labels {
		labels[k] = v
	}
	key, err := x.perKey.Text(ctx, map[string]any{"input": value, "tenant": s.Tenant, "labels": labels})
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("find the group of a run of agent %s: %w", agent.Name(), ctx.Err())
	case err != nil:
		return nil, refused("%v", err)
	case key == "" || len(key) > maxGroupKey || !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return nil, refused("the text that it gives has %d bytes; want 1 to %d, and no control characters", len(key), maxGroupKey)
	}
	return []run.Group{{Key: agent.Name() + "/" + key, Max: agent.Concurrency.PerKey.Max}}, nil
}

// groupsFree refuses a run that would begin at once while a group of it is full.
func (p *Plane) groupsFree(s *run.Spec) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w, full := p.ix.queue.Full(s.ID, s.Tenant, s.Groups); full {
		return &Refusal{Code: CodeOverloaded, Detail: waitText(&w), RetryAfter: busyAgain}
	}
	return nil
}

// waitText says what keeps a run in the line of a group.
func waitText(w *queue.Wait) string {
	s := fmt.Sprintf("group %s: %d of %d in use", w.Group.Key, w.InUse, w.Group.Max)
	if w.By != "" {
		s += " by " + w.By
	}
	if w.InUse > 1 {
		s += fmt.Sprintf(" and %d more", w.InUse-1)
	}
	if w.Ahead > 0 {
		s += fmt.Sprintf("; %d come before it", w.Ahead)
	}
	return s
}
