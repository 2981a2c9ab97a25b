package sqlite

import (
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/errand-run/errand/shared/store"
)

const (
	pageSize = 4096
	// writerCache holds the inner pages of every index and the leaves of the moment, in KiB. More costs time: a commit
	// that split a page goes over the whole table of the cache.
	writerCache = 16 << 10
)

// writer owns the one connection that changes the file. Its methods run on one goroutine.
type writer struct {
	store *Store
	conn  *conn // nil after a failed transaction, until the next one
	heads *heads
	args  args // reused

	logged int  // pages in the log since it was begun anew
	due    int  // length of the log at which the keeper is asked
	freed  bool // something was deleted: there may be pages to give back
	// shrinking: pages are being given back, see shrink.
	shrinking bool
}

// open connects to the file, which exists.
func (w *writer) open() (err error) {
	w.conn, err = dial(w.store.path, readWrite,
		"PRAGMA synchronous="+string(w.store.sync),
		fmt.Sprintf("PRAGMA cache_size=-%d", writerCache),
		"PRAGMA temp_store=MEMORY",
		// Checkpoints run beside the writer; see keeper.
		"PRAGMA wal_autocheckpoint=0",
		// What a page that is being read may hold up the new beginning of the log; nothing else waits for a lock.
		"PRAGMA busy_timeout=20",
		// The log file keeps its place on the disk, which makes flushes cheap, up to this size.
		fmt.Sprintf("PRAGMA journal_size_limit=%d", 4*w.store.pages*pageSize),
	)
	return err
}

// shut closes the connection, if there is one.
func (w *writer) shut() error {
	if w.conn == nil {
		return nil
	}
	c := w.conn
	w.conn = nil
	return c.close()
}

// run writes what waits until the queue is closed and empty.
func (w *writer) run() {
	defer close(w.store.written)
	defer func() { _ = w.shut() }()
	for {
		w.store.queue.gather()
		batch, over := w.store.queue.take()
		switch {
		case over:
			return
		case len(batch) > 0:
			w.write(batch)
			w.tendLog()
		case w.shrink():
		default:
			select {
			case <-w.store.queue.wake:
			case <-w.store.keeper.folded:
				w.restartLog()
			}
		}
	}
}

// write applies a batch in one transaction and answers the calls that it completes.
func (w *writer) write(batch []slice) {
	err := w.transact(batch)
	for _, s := range batch {
		if err != nil {
			// Even a refusal is void: it may rest on a unit of this batch that is not there now.
			for i := s.from; i < s.to; i++ {
				s.outcomes[i] = err
			}
		}
		if s.to == len(s.units) {
			close(s.done)
		}
	}
}

// transact writes the units of a batch that their outcomes allow. An error means that the file, as far as is known,
// is as before.
func (w *writer) transact(batch []slice) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write to store %s: %w", w.store.path, err)
			// What the connection and the cache believe may be wrong; both begin anew.
			w.heads.clear()
			if w.conn != nil {
				_, _ = w.conn.exec("ROLLBACK", nil)
				_ = w.shut()
			}
		}
	}()
	// 1. Begin.
	if w.conn == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	if _, err := w.conn.exec("BEGIN IMMEDIATE", nil); err != nil {
		return err
	}
	// 2. Judge and apply each unit.
	written := int64(0)
	for _, s := range batch {
		for i := s.from; i < s.to; i++ {
			if s.outcomes[i] != nil {
				continue // refused before it was queued
			}
			outcome, err := w.unit(&s.units[i])
			if err != nil {
				return err
			}
			if s.outcomes[i] = outcome; outcome == nil {
				written++
			}
		}
	}
	// 3. Commit: this waits for the disk.
	if _, err := w.conn.exec("COMMIT", nil); err != nil {
		return err
	}
	w.count(written)
	return nil
}

func (w *writer) count(units int64) {
	pages := w.conn.pagesWritten()
	w.logged += pages
	w.store.stats.units.Add(units)
	w.store.stats.pages.Add(int64(pages))
	if pages == 0 {
		return
	}
	w.store.stats.transactions.Add(1)
	if w.store.sync == SyncFull {
		w.store.stats.flushes.Add(1)
	}
}

// errUndone is the broken invariant of a statement that found another number of rows than the head promised.
var errUndone = errors.New("a document changed outside of the store: does another program write to the file?")

func expectOne(r driver.Result) error {
	if n, err := r.RowsAffected(); err != nil || n != 1 {
		return errors.Join(errUndone, err)
	}
	return nil
}

// head returns what is stored under a name.
func (w *writer) head(kind store.Kind, id string) (head, error) {
	n := name{kind, id}
	if h, ok := w.heads.get(n); ok {
		return h, nil
	}
	var h head
	w.args = w.args[:0].int(int64(kind)).text(id)
	err := w.conn.query(selectHead, w.args, func(v []driver.Value) error {
		h = scanHead(kind, v)
		return nil
	})
	return h, err
}
