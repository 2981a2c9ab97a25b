// Package memory keeps the store's documents in this process: for tests, simulation and `--data :memory:`. It holds
// every promise of the port but durability across processes.
package memory

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/internal/port"
)

// Store is a [store.Store] in memory.
type Store struct {
	mu     sync.RWMutex
	docs   map[name]*entry
	order  ordered
	closed bool
}

var _ store.Store = (*Store)(nil)

type name struct {
	kind store.Kind
	id   string
}

// entry is a stored document and the keys it stands under.
type entry struct {
	doc  store.Doc
	keys [indexes]string
}

// Open returns an empty store.
func Open() *Store { return &Store{docs: map[name]*entry{}} }

// Commit implements [store.Store].
func (s *Store) Commit(ctx context.Context, units []store.Unit) []error {
	if err := ctx.Err(); err != nil {
		return port.Repeat(err, len(units))
	}
	if err := port.CheckUnits(len(units)); err != nil {
		return port.Repeat(err, len(units))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return port.Repeat(fmt.Errorf("commit: %w", store.ErrClosed), len(units))
	}
	errs := make([]error, len(units))
	for i := range units {
		if errs[i] = s.judge(&units[i]); errs[i] == nil {
			s.apply(&units[i])
		}
	}
	return errs
}

// judge returns the outcome of a unit, before anything is written.
func (s *Store) judge(u *store.Unit) error {
	if err := port.CheckUnit(u); err != nil {
		return err
	}
	for _, f := range u.Fences {
		held := int64(0)
		if e := s.docs[name{store.KindRun, f.Run}]; e != nil {
			held = e.doc.Index.Attempt
		}
		if err := port.JudgeFence(f, held); err != nil {
			return err
		}
	}
	for i := range u.Writes {
		w, stored := &u.Writes[i], int64(0)
		if e := s.docs[name{w.Kind, w.ID}]; e != nil {
			stored = e.doc.Version
		}
		if err := port.JudgeWrite(w, stored); err != nil {
			return err
		}
	}
	return nil
}

// apply purges first, so that what the unit writes stays.
func (s *Store) apply(u *store.Unit) {
	for _, run := range u.Purge {
		k := keyOf(owned).string(run)
		for _, e := range slices.Collect(s.order.rising(string(k), string(k.end()))) {
			if e.doc.Kind != store.KindRun || e.doc.ID != run {
				s.delete(e)
			}
		}
	}
	for i := range u.Writes {
		w := &u.Writes[i]
		e := s.docs[name{w.Kind, w.ID}]
		switch {
		case !w.Delete:
			s.put(e, w.Doc)
		case e != nil:
			s.delete(e)
		}
	}
}

func (s *Store) put(e *entry, d store.Doc) {
	if e == nil {
		e = &entry{}
		s.docs[name{d.Kind, d.ID}] = e
	}
	if d.Index != nil {
		x := *d.Index
		d.Index = &x
	}
	keys := keysOf(&d)
	for i, k := range keys {
		if k == e.keys[i] {
			continue
		}
		if e.keys[i] != "" {
			s.order.remove(e.keys[i])
		}
		if k != "" {
			s.order.insert(k, e)
		}
	}
	e.doc, e.keys = d, keys
}

func (s *Store) delete(e *entry) {
	for _, k := range e.keys {
		if k != "" {
			s.order.remove(k)
		}
	}
	delete(s.docs, name{e.doc.Kind, e.doc.ID})
}

// copyOf returns the stored document as the caller's own.
func copyOf(e *entry) store.Doc {
	d := e.doc
	d.Body = slices.Clone(d.Body)
	if d.Index != nil {
		x := *d.Index
		d.Index = &x
	}
	return d
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, kind store.Kind, id string) (store.Doc, error) {
	docs, err := s.GetMany(ctx, kind, []string{id})
	if err != nil {
		return store.Doc{}, err
	}
	if docs[0].Version == 0 {
		return store.Doc{}, fmt.Errorf("get %s %q: %w", kind, id, store.ErrNotFound)
	}
	return docs[0], nil
}

// GetMany implements [store.Store].
func (s *Store) GetMany(ctx context.Context, kind store.Kind, ids []string) ([]store.Doc, error) {
	if len(ids) == 0 {
		return nil, s.read(ctx, 1, func() {})
	}
	docs := make([]store.Doc, len(ids))
	err := s.read(ctx, len(ids), func() {
		for i, id := range ids {
			if e := s.docs[name{kind, id}]; e != nil {
				docs[i] = copyOf(e)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return docs, nil
}

// Due implements [store.Store].
func (s *Store) Due(ctx context.Context, part store.Part, until, afterWake int64, afterID string, limit int) ([]store.Doc, error) {
	if afterWake < 0 {
		afterWake, afterID = 0, ""
	}
	lo := keyOf(due).byte(byte(part)).instant(afterWake)
	if afterID != "" {
		lo = lo.string(afterID).byte(0)
	}
	if until < 0 {
		until = 0
	}
	hi := keyOf(due).byte(byte(part)).instant(until).end()
	return s.page(ctx, lo, hi, true, limit)
}

// Held implements [store.Store].
func (s *Store) Held(ctx context.Context, each func(store.Doc) error) error {
	lo, hi := keyOf(workers), keyOf(workers).end()
	for {
		docs, err := s.page(ctx, lo, hi, true, store.MaxPage)
		if err != nil {
			return err
		}
		for _, d := range docs {
			if err := each(d); err != nil {
				return err
			}
			lo = keyOf(workers).string(d.Index.Worker).string(d.ID).byte(0)
		}
		if len(docs) < store.MaxPage {
			return nil
		}
	}
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, q store.Query) (store.Page, error) {
	scan, err := port.CheckQuery(q)
	if err != nil {
		return store.Page{}, err
	}
	prefix := keyOf(map[store.By]index{
		store.ByCreated: created, store.ByTenant: tenants, store.ByTenantAgent: agents,
		store.ByParent: parents, store.ByRoot: roots,
	}[q.By])
	for _, k := range scan.Key {
		prefix = prefix.string(k)
	}
	// The bounds of the whole listing, then narrowed to what lies beyond the page before.
	lo, hi := slices.Clone(prefix), slices.Clone(prefix).end()
	lo = lo.instant(max(scan.Since, 0))
	if scan.Until != math.MaxInt64 {
		hi = slices.Clone(prefix).instant(max(scan.Until, 0))
	}
	if p := scan.After; p != nil {
		at := slices.Clone(prefix).instant(p.CreatedAt).string(p.ID)
		if scan.Rising {
			lo = slices.MaxFunc([]key{lo, at.byte(0)}, slices.Compare)
		} else {
			hi = slices.MinFunc([]key{hi, at}, slices.Compare)
		}
	}
	docs, err := s.page(ctx, lo, hi, scan.Rising, q.Limit)
	if err != nil {
		return store.Page{}, err
	}
	return store.Page{Docs: docs, Next: port.Next(q, docs)}, nil
}

// Owned implements [store.Store].
func (s *Store) Owned(ctx context.Context, kind store.Kind, owner, afterID string, limit int) ([]store.Doc, error) {
	return s.byID(ctx, keyOf(owned).string(owner).kind(kind), afterID, limit)
}

// Tagged implements [store.Store].
func (s *Store) Tagged(ctx context.Context, kind store.Kind, tag, afterID string, limit int) ([]store.Doc, error) {
	if tag == "" {
		return s.byID(ctx, keyOf(names).kind(kind), afterID, limit)
	}
	return s.byID(ctx, keyOf(tagged).kind(kind).string(tag), afterID, limit)
}

func (s *Store) byID(ctx context.Context, prefix key, afterID string, limit int) ([]store.Doc, error) {
	lo, hi := slices.Clone(prefix), slices.Clone(prefix).end()
	if afterID != "" {
		lo = lo.string(afterID).byte(0)
	}
	return s.page(ctx, lo, hi, true, limit)
}

// page reads up to limit documents with lo <= key < hi.
func (s *Store) page(ctx context.Context, lo, hi key, rising bool, limit int) ([]store.Doc, error) {
	docs := []store.Doc{}
	err := s.read(ctx, limit, func() {
		scan := s.order.rising
		if !rising {
			scan = s.order.falling
		}
		for e := range scan(string(lo), string(hi)) {
			docs = append(docs, copyOf(e))
			if len(docs) == limit {
				return
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return docs, nil
}

// read runs f, which reads n documents at most, while nothing changes.
func (s *Store) read(ctx context.Context, n int, f func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := port.CheckLimit(n); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return fmt.Errorf("read: %w", store.ErrClosed)
	}
	f()
	return nil
}

// Exclusive implements [store.Store]: no other process can reach this memory.
func (s *Store) Exclusive() bool { return true }

// Describe implements [store.Store].
func (s *Store) Describe() string { return "memory, gone when the process ends" }

// Close implements [store.Store] and frees the documents. Closing again does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.docs, s.order = true, nil, ordered{}
	return nil
}
