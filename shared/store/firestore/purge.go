package firestore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"

	"github.com/errand-run/errand/shared/store"
)

// expand makes targets of what the units purge. Reading is by kind, and for up to 30 runs in one query.
func (s *Store) expand(ctx context.Context, works []*work) error {
	// 1. The runs.
	runs := map[string]bool{}
	for _, w := range works {
		for _, r := range w.unit.Purge {
			runs[r] = true
		}
	}
	if len(runs) == 0 {
		return nil
	}
	// 2. What they own.
	owned, err := s.ownedBy(ctx, slices.Sorted(maps.Keys(runs)))
	if err != nil {
		return err
	}
	// 3. Each unit takes it, save what the unit writes itself.
	for _, w := range works {
		if len(w.unit.Purge) == 0 {
			continue
		}
		w.targets = w.targets[:len(w.unit.Writes)]
		mine := map[name]bool{}
		for i := range w.targets {
			mine[w.targets[i].name] = true
		}
		for _, r := range w.unit.Purge {
			for _, t := range owned[r] {
				if !mine[t.name] && t.name != (name{store.KindRun, r}) {
					mine[t.name] = true
					w.targets = append(w.targets, t)
				}
			}
		}
	}
	return nil
}

// ownedBy reads the heads of what runs own, of every kind that they can own.
func (s *Store) ownedBy(ctx context.Context, runs []string) (map[string][]target, error) {
	type query struct {
		kind store.Kind
		runs []string
	}
	var queries []query
	for chunk := range slices.Chunk(runs, disjuncts) {
		for kind := range collections {
			if kind != store.KindState {
				queries = append(queries, query{kind, chunk})
			}
		}
	}
	var mu sync.Mutex
	owned, errs := map[string][]target{}, make([]error, len(queries))
	s.each(len(queries), func(i int) {
		q := queries[i]
		errs[i] = s.eachOwned(ctx, q.kind, q.runs, func(d stored) {
			mu.Lock()
			defer mu.Unlock()
			t := target{name: name{q.kind, d.doc.ID}, head: d.head, knowledge: guess}
			owned[d.doc.Owner] = append(owned[d.doc.Owner], t)
		})
	})
	return owned, errors.Join(errs...)
}

func (s *Store) eachOwned(ctx context.Context, kind store.Kind, owners []string, f func(stored)) error {
	values := make([]*pb.Value, len(owners))
	for i, o := range owners {
		values[i] = text(o)
	}
	q := search{kind: kind, equal: []condition{{fieldOwner, values}}, order: []order{{fieldID, rising}}, heads: true, limit: store.MaxPage}
	for {
		docs, err := s.query(ctx, q)
		if err != nil {
			return err
		}
		for _, d := range docs {
			f(d)
		}
		if len(docs) < q.limit {
			return nil
		}
		q.after = []*pb.Value{text(docs[len(docs)-1].doc.ID)}
	}
}

// weight is how many writes of a commit a purged document takes.
func (t *target) weight() int { return 1 + t.head.parts }

// tooMany reports whether a unit purges more than its own commit takes.
func (w *work) tooMany() bool {
	n := len(w.unit.Writes)
	for i := range w.targets {
		t := &w.targets[i]
		if n += t.parts; t.write == nil {
			n += t.weight()
		}
	}
	return len(w.targets) > len(w.unit.Writes) && n > batchWrites
}

// removeAhead deletes of what a unit purges all that does not fit into the unit's commit.
func (s *Store) removeAhead(ctx context.Context, w *work) error {
	if !w.tooMany() {
		return nil
	}
	purged := w.targets[len(w.unit.Writes):]
	var writes []*pb.Write
	for i := range purged {
		writes = append(writes, s.encodeTarget(w, &purged[i]))
		writes = append(writes, deletions(s.partPaths(purged[i].name, purged[i].head))...)
		s.known.forget(purged[i].name)
	}
	w.targets = w.targets[:len(w.unit.Writes)]
	if err := s.writePlain(ctx, writes); err != nil {
		return fmt.Errorf("%d documents: %w", len(purged), err)
	}
	return nil
}
