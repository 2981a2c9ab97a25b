package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/internal/port"
)

// readerCache is each read connection's cache, in KiB.
const readerCache = 4 << 10

// reader is a connection that cannot write.
type reader struct{ conn *conn }

func newReader(path string) (*reader, error) {
	c, err := dial(path, readOnly, fmt.Sprintf("PRAGMA cache_size=-%d", readerCache), "PRAGMA temp_store=MEMORY")
	if err != nil {
		return nil, err
	}
	return &reader{c}, nil
}

// read runs f on a free reader, waiting for one. A read that has begun is not interrupted: it is one bounded page.
func (s *Store) read(ctx context.Context, what string, limit int, f func(c *conn) error) error {
	if err := port.CheckLimit(limit); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	var r *reader
	select {
	case <-s.closing:
		return fmt.Errorf("%s: %w", what, store.ErrClosed)
	default:
	}
	select {
	case r = <-s.readers:
	case <-s.closing:
		return fmt.Errorf("%s: %w", what, store.ErrClosed)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	defer func() { s.readers <- r }()
	if err := f(r.conn); err != nil {
		return fmt.Errorf("%s in store %s: %w", what, s.path, err)
	}
	return nil
}

// page reads the documents that a statement yields; its last argument is the limit.
func (s *Store) page(ctx context.Context, what, sql string, a args, limit int) ([]store.Doc, error) {
	docs := []store.Doc{}
	err := s.read(ctx, what, limit, func(c *conn) error {
		return c.query(sql, a.int(int64(limit)), func(v []driver.Value) error {
			docs = append(docs, scanDoc(v))
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return docs, nil
}

const selectDoc = `SELECT ` + columns + ` FROM doc `

const getDoc = selectDoc + `WHERE kind=? AND id=?`

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, kind store.Kind, id string) (d store.Doc, err error) {
	err = s.read(ctx, "get "+kind.String(), 1, func(c *conn) error {
		return c.query(getDoc, args{}.int(int64(kind)).text(id), func(v []driver.Value) error {
			d = scanDoc(v)
			return nil
		})
	})
	if err == nil && d.Version == 0 {
		err = fmt.Errorf("get %s %q: %w", kind, id, store.ErrNotFound)
	}
	return d, err
}

// GetMany implements [store.Store]; the documents are of one moment.
func (s *Store) GetMany(ctx context.Context, kind store.Kind, ids []string) ([]store.Doc, error) {
	docs := make([]store.Doc, len(ids))
	err := s.read(ctx, "get many "+kind.String(), max(len(ids), 1), func(c *conn) error {
		if _, err := c.exec("BEGIN", nil); err != nil {
			return err
		}
		defer func() { _, _ = c.exec("COMMIT", nil) }()
		a := make(args, 0, 2)
		for i, id := range ids {
			a = a[:0].int(int64(kind)).text(id)
			err := c.query(getDoc, a, func(v []driver.Value) error {
				docs[i] = scanDoc(v)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return docs, nil
}

const selectDue = selectDoc + `INDEXED BY run_due
	WHERE shard=? AND wake IS NOT NULL AND (wake,id)>(?,?) AND wake<=? ORDER BY wake,id LIMIT ?`

// Due implements [store.Store].
func (s *Store) Due(ctx context.Context, part store.Part, until, afterWake int64, afterID string, limit int) ([]store.Doc, error) {
	return s.page(ctx, "read due runs", selectDue, args{}.int(int64(part)).int(afterWake).text(afterID).int(until), limit)
}

const selectOwned = selectDoc + `INDEXED BY doc_owner WHERE owner=? AND kind=? AND id>? ORDER BY id LIMIT ?`

// Owned implements [store.Store].
func (s *Store) Owned(ctx context.Context, kind store.Kind, owner, afterID string, limit int) ([]store.Doc, error) {
	return s.page(ctx, "read owned "+kind.String(), selectOwned, args{}.text(owner).int(int64(kind)).text(afterID), limit)
}

const (
	selectTagged = selectDoc + `INDEXED BY doc_tag WHERE kind=? AND tag=? AND id>? ORDER BY id LIMIT ?`
	selectKind   = selectDoc + `INDEXED BY doc_id WHERE kind=? AND id>? ORDER BY id LIMIT ?`
)

// Tagged implements [store.Store].
func (s *Store) Tagged(ctx context.Context, kind store.Kind, tag, afterID string, limit int) ([]store.Doc, error) {
	sql, a := selectTagged, args{}.int(int64(kind)).text(tag)
	if tag == "" {
		sql, a = selectKind, args{}.int(int64(kind))
	}
	return s.page(ctx, "read tagged "+kind.String(), sql, a.text(afterID), limit)
}

// listing is the condition and the index of a query by creation.
type listing struct{ index, where string }

var listings = map[store.By]listing{
	store.ByCreated:     {"run_created", "tenant IS NOT NULL"},
	store.ByTenant:      {"run_tenant", "tenant=?"},
	store.ByTenantAgent: {"run_agent", "tenant=? AND agent=?"},
	store.ByParent:      {"run_parent", "parent=?"},
}

// The bound that a page goes on from is one comparison of (created, id), which the index answers by one search; the
// far bound is of the instant alone.
const (
	rising  = ` AND (created,id)>(?,?) AND created<? ORDER BY created,id LIMIT ?`
	falling = ` AND (created,id)<(?,?) AND created>=? ORDER BY created DESC,id DESC LIMIT ?`

	selectHeld = selectDoc + `INDEXED BY run_worker WHERE worker IS NOT NULL AND (worker,id)>(?,?) ORDER BY worker,id LIMIT ?`
)

// listSQL holds the statements of every listing by creation, falling then rising.
var listSQL = func() map[store.By][2]string {
	all := map[store.By][2]string{}
	for by, l := range listings {
		head := selectDoc + "INDEXED BY " + l.index + " WHERE " + l.where
		all[by] = [2]string{head + falling, head + rising}
	}
	all[store.ByRoot] = [2]string{
		treeSQL("(created,id)<(?2,?3) AND created>=?4", "created DESC,id DESC"),
		treeSQL("(created,id)>(?2,?3) AND created<?4", "created,id"),
	}
	return all
}()

// treeSQL merges a root, found by its id, into the listing of the runs below it; see the schema.
func treeSQL(bounds, order string) string {
	return selectDoc + "INDEXED BY run_root WHERE root=?1 AND root<>id AND " + bounds +
		" UNION ALL " + selectDoc + "INDEXED BY doc_id WHERE kind=1 AND id=?1 AND root=id AND " + bounds +
		" ORDER BY " + order + " LIMIT ?5"
}

// Held implements [store.Store].
func (s *Store) Held(ctx context.Context, each func(store.Doc) error) error {
	worker, id := "", ""
	for {
		docs, err := s.page(ctx, "read held runs", selectHeld, args{}.text(worker).text(id), store.MaxPage)
		if err != nil {
			return err
		}
		for _, d := range docs {
			if err := each(d); err != nil {
				return err
			}
			worker, id = d.Index.Worker, d.ID
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
	sql, a := statement(q, scan)
	docs, err := s.page(ctx, "list runs", sql, a, q.Limit)
	if err != nil {
		return store.Page{}, err
	}
	return store.Page{Docs: docs, Next: port.Next(q, docs)}, nil
}

// statement chooses the statement of a query and its arguments but the limit.
func statement(q store.Query, scan port.Scan) (string, args) {
	var a args
	for _, k := range scan.Key {
		a = a.text(k)
	}
	after := port.Place{}
	if scan.After != nil {
		after = *scan.After
	}
	switch {
	case scan.Rising:
		if after.CreatedAt < scan.Since {
			after = port.Place{CreatedAt: scan.Since}
		}
		return listSQL[q.By][1], a.int(after.CreatedAt).text(after.ID).int(scan.Until)
	}
	// An id is never empty, so (until, "") is just before the first run of that instant.
	if scan.After == nil || after.CreatedAt >= scan.Until {
		after = port.Place{CreatedAt: scan.Until}
	}
	return listSQL[q.By][0], a.int(after.CreatedAt).text(after.ID).int(scan.Since)
}
