package control

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/errand-run/errand/shared/expr"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Groups of runs by the key that their agent's concurrency.perKey gives. What waits for a place in a group stands in a
// line of the queue: see package queue.

const (
	perKeyPath = "spec.concurrency.perKey.key"
	// maxGroupKey bounds what concurrency.perKey gives: with the agent's name before it, it is a group's key.
	maxGroupKey = run.MaxKey - fleet.MaxNameLength - 1
	// busyAgain is when a run that was begun from outside may ask again for a place in its group.
	busyAgain = 5 * time.Second
	// beginTurns is how many turns there are to begin runs in groups: those of one turn begin one after another.
	beginTurns = 64
	turnPrefix = "begin/"
	// maxBegunBeside bounds the runs in progress among which those of a group are looked for.
	maxBegunBeside = 50_000
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

// placesFree refuses a run that would begin at once while a group of it is full. The writes belong into the unit that
// begins it: of two runs that begin at the same time at different processes one is a conflict, and has to ask again.
//
// The leader knows who is in a group; another process reads from the store who is in progress, and so does the leader for
// what was begun elsewhere. A run that the leader places before it hears of one begun elsewhere may still come on top: it
// hears within a second where a bus tells it, else by its next tick.
func (p *Plane) placesFree(ctx context.Context, s *run.Spec) ([]store.Write, error) {
	// 1. What is known here, which is everything where nobody else begins runs.
	if err := p.groupsFree(s); err != nil || len(s.Groups) == 0 || p.store.Exclusive() {
		return nil, err
	}
	// 2. A turn for each group, taken before the look.
	var ids []string
	for i := range s.Groups {
		h := fnv.New32a()
		_, _ = h.Write([]byte(s.Tenant + "\x00" + s.Groups[i].Key)) // cannot fail
		ids = append(ids, fmt.Sprintf("%s%02d", turnPrefix, h.Sum32()%beginTurns))
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	docs, err := p.store.GetMany(ctx, store.KindMisc, ids)
	if err != nil {
		return nil, fmt.Errorf("take a turn to begin run %s: %w", s.ID, err)
	}
	writes := make([]store.Write, len(ids))
	for i := range ids {
		v := docs[i].Version
		writes[i] = store.Write{Expect: v, Doc: store.Doc{Kind: store.KindMisc, ID: ids[i], Version: v + 1}}
	}
	// 3. Who is in progress.
	return writes, p.groupsFreeInStore(ctx, s)
}

// errFound ends a look.
var errFound = errors.New("found")

// groupsFreeInStore is groupsFree by what the store says of runs in progress.
func (p *Plane) groupsFreeInStore(ctx context.Context, s *run.Spec) error {
	waits := make([]queue.Wait, len(s.Groups))
	for i := range waits {
		waits[i].Group = s.Groups[i]
	}
	full, looked := -1, 0
	var r run.Record
	err := p.store.Held(ctx, func(d store.Doc) error {
		if looked++; looked > maxBegunBeside {
			return &Refusal{
				Code: CodeUnavailable, RetryAfter: busyAgain,
				Detail: fmt.Sprintf("begin run %s: more than %d runs are in progress, too many to see whether its group has a place; ask again, or submit it", s.ID, maxBegunBeside),
			}
		}
		if d.Index != nil && d.Index.Tenant != s.Tenant {
			return nil
		}
		if err := run.DecodeBrief(d.Body, &r); err != nil {
			return err
		}
		if r.ID == s.ID || r.Tenant != s.Tenant {
			return nil
		}
		for i := range waits {
			w := &waits[i]
			if !slices.ContainsFunc(r.Groups, func(g run.Group) bool { return g.Key == w.Group.Key }) {
				continue
			}
			if w.InUse++; w.By == "" || r.ID < w.By {
				w.By = strings.Clone(r.ID)
			}
			if w.InUse >= w.Group.Max {
				full = i
				return errFound
			}
		}
		return nil
	})
	switch {
	case full >= 0:
		return &Refusal{Code: CodeOverloaded, Detail: waitText(&waits[full]), RetryAfter: busyAgain}
	case err != nil:
		return fmt.Errorf("look whether the groups of run %s are full: %w", s.ID, err)
	}
	return nil
}

// groupsFree refuses a run that would begin at once while a group of it is full, as far as this process knows.
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
