package firestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/internal/port"
)

// reads admits a read of up to n documents.
func (s *Store) reads(ctx context.Context, n int) (end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := port.CheckLimit(n); err != nil {
		return nil, err
	}
	return s.begin("read")
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, kind store.Kind, id string) (store.Doc, error) {
	docs, err := s.GetMany(ctx, kind, []string{id})
	if err != nil {
		return store.Doc{}, fmt.Errorf("get %s: %w", name{kind, id}, err)
	}
	if docs[0].Version == 0 {
		return store.Doc{}, fmt.Errorf("get %s: %w", name{kind, id}, store.ErrNotFound)
	}
	return docs[0], nil
}

// GetMany implements [store.Store]. A document of whose body a part is missing is an error wrapping ErrNotFound that
// names it: it does not come back by itself.
func (s *Store) GetMany(ctx context.Context, kind store.Kind, ids []string) ([]store.Doc, error) {
	end, err := s.reads(ctx, max(1, len(ids)))
	if err != nil {
		return nil, err
	}
	defer end()
	if len(ids) == 0 {
		return nil, nil
	}
	found, err := s.fetch(ctx, kind, ids)
	if err != nil {
		return nil, err
	}
	docs, seen := make([]store.Doc, len(ids)), make(map[string]bool, len(ids))
	for i := range found {
		if found[i].doc.Version == 0 {
			continue
		}
		if docs[i], err = s.load(ctx, found[i]); err != nil {
			return nil, err
		}
		if seen[ids[i]] { // asked for twice: each is the caller's own
			docs[i] = copyOf(docs[i])
		}
		seen[ids[i]] = true
	}
	return docs, nil
}

func copyOf(d store.Doc) store.Doc {
	d.Body = slices.Clone(d.Body)
	if d.Index != nil {
		x := *d.Index
		d.Index = &x
	}
	return d
}

// fetch reads documents, without the parts of their bodies, in the order of ids.
func (s *Store) fetch(ctx context.Context, kind store.Kind, ids []string) ([]stored, error) {
	out := make([]stored, len(ids))
	if collections[kind] == "" {
		return out, nil // nothing is of a kind that there is not
	}
	paths := make([]string, len(ids))
	for i, id := range ids {
		paths[i] = s.path(name{kind, id})
	}
	found, err := s.get(ctx, fmt.Sprintf("read %d documents of kind %s", len(ids), kind), paths, nil)
	if err != nil {
		return nil, err
	}
	for i, p := range paths {
		d, ok := found[p]
		if !ok {
			continue
		}
		if out[i], err = decode(kind, d); err != nil {
			return nil, err
		}
		s.known.put(name{kind, out[i].doc.ID}, out[i].head)
	}
	return out, nil
}

// readHeads reads what writes have to know, in a new transaction when begin is set, which receives it.
func (s *Store) readHeads(ctx context.Context, names []name, begin *[]byte) (map[name]head, error) {
	paths := make([]string, len(names))
	for i, n := range names {
		paths[i] = s.path(n)
	}
	found, err := s.get(ctx, fmt.Sprintf("read the versions of %d documents", len(names)), paths, &glance{transaction: begin})
	if err != nil {
		return nil, err
	}
	heads := make(map[name]head, len(names))
	for i, n := range names {
		d, ok := found[paths[i]]
		if !ok {
			s.known.forget(n)
			continue
		}
		doc, err := decode(n.kind, d)
		if err != nil {
			return nil, err
		}
		heads[n] = doc.head
		s.known.put(n, doc.head)
	}
	return heads, nil
}

// glance is a read of heads alone.
type glance struct {
	transaction *[]byte // receives the transaction that the read begins; nil for none
}

// inTransaction puts a read into a transaction, or into a new one when there is none.
func inTransaction(req *pb.BatchGetDocumentsRequest, id []byte) {
	if id != nil {
		req.ConsistencySelector = &pb.BatchGetDocumentsRequest_Transaction{Transaction: id}
		return
	}
	write := &pb.TransactionOptions_ReadWrite_{ReadWrite: &pb.TransactionOptions_ReadWrite{}}
	req.ConsistencySelector = &pb.BatchGetDocumentsRequest_NewTransaction{NewTransaction: &pb.TransactionOptions{Mode: write}}
}

// get reads documents by path, each once, in requests of bounded size that go side by side; in a transaction one after
// the other.
func (s *Store) get(ctx context.Context, what string, paths []string, g *glance) (map[string]*pb.Document, error) {
	paths = slices.Compact(slices.Sorted(slices.Values(paths)))
	chunks := slices.Collect(slices.Chunk(paths, readBatch))
	var mu sync.Mutex
	found, errs := make(map[string]*pb.Document, len(paths)), make([]error, len(chunks))
	one := func(i int) {
		errs[i] = s.repeat(ctx, what, func(ctx context.Context) error {
			req := &pb.BatchGetDocumentsRequest{Database: s.database, Documents: chunks[i]}
			if g != nil {
				req.Mask = headMask()
			}
			if g != nil && g.transaction != nil {
				if i == 0 && *g.transaction != nil { // of the same read, which failed
					_ = s.client.Rollback(ctx, &pb.RollbackRequest{Database: s.database, Transaction: *g.transaction})
					*g.transaction = nil
				}
				inTransaction(req, *g.transaction)
			}
			stream, err := s.client.BatchGetDocuments(ctx, req)
			if err != nil {
				return err
			}
			for {
				resp, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				mu.Lock()
				if d := resp.GetFound(); d != nil {
					found[d.GetName()] = d
				}
				if t := resp.GetTransaction(); len(t) > 0 && g != nil && g.transaction != nil {
					*g.transaction = t
				}
				mu.Unlock()
			}
		})
	}
	if g != nil && g.transaction != nil {
		for i := range chunks {
			if one(i); errs[i] != nil {
				break
			}
		}
	} else {
		s.each(len(chunks), one)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return found, nil
}

// Due implements [store.Store].
func (s *Store) Due(ctx context.Context, part store.Part, until, afterWake int64, afterID string, limit int) ([]store.Doc, error) {
	end, err := s.reads(ctx, limit)
	if err != nil {
		return nil, err
	}
	defer end()
	if until <= 0 || !part.Valid() {
		return nil, nil
	}
	if afterWake < 0 {
		afterWake, afterID = 0, ""
	}
	return s.page(ctx, search{
		kind:  store.KindRun,
		equal: []condition{{fieldShard, numbers(shardOf(part, 0), shards)}},
		bounds: []bound{
			{fieldWake, pb.StructuredQuery_FieldFilter_GREATER_THAN, number(0)},
			{fieldWake, pb.StructuredQuery_FieldFilter_LESS_THAN_OR_EQUAL, number(until)},
		},
		order: []order{{fieldWake, rising}, {fieldID, rising}},
		after: []*pb.Value{number(afterWake), text(valid(afterID))},
		limit: limit,
	})
}

// heldPage bounds what one query reads, so that its time is bounded too.
const heldPage = 10_000

// Held implements [store.Store]. A query that breaks off goes on behind the last run that it gave.
func (s *Store) Held(ctx context.Context, each func(store.Doc) error) error {
	end, err := s.reads(ctx, 1)
	if err != nil {
		return err
	}
	defer end()
	q := search{
		kind:   store.KindRun,
		bounds: []bound{{fieldWorker, pb.StructuredQuery_FieldFilter_GREATER_THAN, text("")}},
		order:  []order{{fieldWorker, rising}, {fieldID, rising}},
		limit:  heldPage,
	}
	for got := heldPage; got == heldPage; {
		// 1. A stretch, each run as it comes.
		var whole []stored // bodies in parts are requests of their own
		var stop error
		got = 0
		err := s.repeat(ctx, q.what(), func(ctx context.Context) error {
			q.limit = heldPage - got
			err := s.stream(ctx, q, func(d stored) error {
				if d.head.parts > 0 {
					whole = append(whole, d)
				} else if stop = each(d.doc); stop != nil {
					return stop
				}
				got++
				q.after = []*pb.Value{text(d.doc.Index.Worker), text(d.doc.ID)}
				return nil
			})
			if stop != nil {
				return nil
			}
			return err
		})
		if stop != nil {
			return stop
		}
		if err != nil {
			return err
		}
		// 2. Those of it whose bodies are to be put together.
		for _, d := range whole {
			doc, err := s.load(ctx, d)
			if errors.Is(err, store.ErrNotFound) {
				doc, err = d.doc, nil
			}
			if err == nil {
				err = each(doc)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, q store.Query) (store.Page, error) {
	scan, err := port.CheckQuery(q)
	if err != nil {
		return store.Page{}, err
	}
	end, err := s.reads(ctx, q.Limit)
	if err != nil {
		return store.Page{}, err
	}
	defer end()
	r, any := listing(q, scan)
	if !any {
		return store.Page{}, nil
	}
	docs, err := s.page(ctx, r)
	if err != nil {
		return store.Page{}, err
	}
	return store.Page{Docs: docs, Next: port.Next(q, docs)}, nil
}

// listing is the search for a page of runs; false when there can be none.
func listing(q store.Query, scan port.Scan) (search, bool) {
	for _, k := range scan.Key {
		if !utf8.ValidString(k) {
			return search{}, false
		}
	}
	r := search{kind: store.KindRun, limit: q.Limit}
	dir := falling
	if scan.Rising {
		dir = rising
	}
	fields := map[store.By][]string{
		store.ByTenant: {fieldTenant}, store.ByTenantAgent: {fieldTenant, fieldAgent},
		store.ByParent: {fieldParent}, store.ByRoot: {fieldRoot},
	}[q.By]
	for i, f := range fields {
		r.equal = append(r.equal, condition{f, []*pb.Value{text(scan.Key[i])}})
	}
	if q.By == store.ByCreated || q.By == store.ByTenant || q.By == store.ByTenantAgent {
		r.equal = append(r.equal, condition{fieldLane, numbers(0, lanes)})
	}
	r.order = []order{{fieldMade, dir}, {fieldID, dir}}
	if scan.Since > 0 {
		r.bounds = append(r.bounds, bound{fieldMade, pb.StructuredQuery_FieldFilter_GREATER_THAN_OR_EQUAL, number(scan.Since)})
	}
	if scan.Until != math.MaxInt64 {
		r.bounds = append(r.bounds, bound{fieldMade, pb.StructuredQuery_FieldFilter_LESS_THAN, number(scan.Until)})
	}
	if p := scan.After; p != nil {
		r.after = []*pb.Value{number(p.CreatedAt), text(p.ID)}
	}
	return r, true
}

// numbers are n of them, from first on.
func numbers(first, n int) []*pb.Value {
	values := make([]*pb.Value, n)
	for i := range values {
		values[i] = number(int64(first + i))
	}
	return values
}

// Owned implements [store.Store].
func (s *Store) Owned(ctx context.Context, kind store.Kind, owner, afterID string, limit int) ([]store.Doc, error) {
	return s.byID(ctx, kind, fieldOwner, owner, afterID, limit)
}

// Tagged implements [store.Store].
func (s *Store) Tagged(ctx context.Context, kind store.Kind, tag, afterID string, limit int) ([]store.Doc, error) {
	if tag == "" {
		return s.byID(ctx, kind, "", "", afterID, limit)
	}
	return s.byID(ctx, kind, fieldTag, tag, afterID, limit)
}

// byID lists a kind by id, of those whose field has a value; of all when field is "".
func (s *Store) byID(ctx context.Context, kind store.Kind, field, value, afterID string, limit int) ([]store.Doc, error) {
	end, err := s.reads(ctx, limit)
	if err != nil {
		return nil, err
	}
	defer end()
	if collections[kind] == "" || !utf8.ValidString(value) || field != "" && value == "" {
		return nil, nil
	}
	q := search{kind: kind, order: []order{{fieldID, rising}}, limit: limit}
	if field != "" {
		q.equal = []condition{{field, []*pb.Value{text(value)}}}
	}
	if afterID != "" {
		q.after = []*pb.Value{text(valid(afterID))}
	}
	return s.page(ctx, q)
}

// valid is the last clean id that a place in a listing can stand for: no stored id has other bytes.
func valid(id string) string {
	for i, r := range id {
		if r == utf8.RuneError && !strings.HasPrefix(id[i:], string(utf8.RuneError)) {
			return id[:i] + string(utf8.MaxRune) // every broken byte sorts behind what may begin an encoded letter
		}
	}
	return id
}
