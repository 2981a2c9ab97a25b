// Package sqlite keeps the store's documents in one SQLite file of this machine.
//
// One goroutine writes. It takes what waits, applies the units in one transaction, and acknowledges them after the
// disk has it (group commit); reads run beside it on connections of their own and never block it. A file has one
// owner: a second opening, in this process or another, is refused.
//
// SQL is in this package and nowhere else.
package sqlite

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/errand-run/errand/shared/store"
)

// Sync says when a commit is acknowledged.
type Sync string

const (
	// SyncFull acknowledges after the disk has the commit: nothing acknowledged is lost with the machine.
	SyncFull Sync = "FULL"
	// SyncNormal acknowledges after the operating system has the commit: nothing is lost with the process, the last
	// commits may be with the machine.
	SyncNormal Sync = "NORMAL"
	// SyncOff never waits for the disk: the file itself may be lost with the machine.
	SyncOff Sync = "OFF"
)

// Options of [Open]; the zero value is right for production.
type Options struct {
	Sync    Sync // SyncFull when empty
	Readers int  // connections for reads, 1..64; 4 when 0

	logPages int // length of the log at which it is folded; checkpointPages when 0
}

const (
	defaultReaders = 4
	maxReaders     = 64
)

// Store is a [store.Store] in one SQLite file.
type Store struct {
	path    string
	sync    Sync
	pages   int // length of the log at which it is folded
	lock    *fileLock
	queue   *queue
	readers chan *reader
	keeper  *keeper
	stats   counters

	closing chan struct{}  // closed when Close begins
	written chan struct{}  // closed when the writer has ended
	backups sync.WaitGroup // backups under way
	mu      sync.Mutex     // orders the start of a backup with Close
	close   func() error
}

var _ store.Store = (*Store)(nil)

// Stats counts what the store did since it was opened.
type Stats struct {
	// Units that were written and acknowledged.
	Units int64
	// Transactions that wrote them.
	Transactions int64
	// Flushes are waits for the disk: one for each writing transaction under SyncFull, and two for each checkpoint
	// unless the policy is SyncOff.
	Flushes int64
	// Pages of 4 KiB that were written to the log.
	Pages int64
}

type counters struct{ units, transactions, flushes, pages atomic.Int64 }

// Open opens or creates the store at path. The folder must exist. It fails with an error wrapping [store.ErrLocked]
// when the file is open already, and says so when the file is something else, is newer than this program, or may not
// be written; it changes no file that it refuses. ctx bounds the opening alone.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	s, err := open(path, o)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	return s, nil
}

func (o *Options) check() error {
	switch o.Sync {
	case "":
		o.Sync = SyncFull
	case SyncFull, SyncNormal, SyncOff:
	default:
		return fmt.Errorf("sync policy %q: use FULL, NORMAL or OFF", o.Sync)
	}
	if o.Readers == 0 {
		o.Readers = defaultReaders
	}
	if o.logPages == 0 {
		o.logPages = checkpointPages
	}
	if o.Readers < 1 || o.Readers > maxReaders {
		return fmt.Errorf("%d readers: use 1 to %d", o.Readers, maxReaders)
	}
	return nil
}

func open(path string, o Options) (_ *Store, err error) {
	// 1. Own the file, under its real name: two names of one file are one store.
	path, err = realPath(path)
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = lock.release()
		}
	}()

	// 2. Refuse what is not ours before anything is changed, then bring the file into shape.
	if err := inspect(path); err != nil {
		return nil, err
	}
	s := &Store{
		path: path, sync: o.Sync, pages: o.logPages, lock: lock, queue: newQueue(), readers: make(chan *reader, o.Readers),
		closing: make(chan struct{}), written: make(chan struct{}),
	}
	s.close = sync.OnceValue(s.shut)
	w := &writer{store: s, heads: newHeads(maxHeads), due: o.logPages, freed: true}
	if err := w.open(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = w.shut()
		}
	}()
	if err := prepareFile(w.conn); err != nil {
		return nil, err
	}

	// 3. Connections for reads, and the two goroutines.
	for range o.Readers {
		r, err := newReader(path)
		if err != nil {
			s.dropReaders(len(s.readers))
			return nil, err
		}
		s.readers <- r
	}
	if s.keeper, err = startKeeper(s); err != nil {
		s.dropReaders(o.Readers)
		return nil, err
	}
	go w.run()
	return s, nil
}

// Commit implements [store.Store]. A caller whose ctx ends gets ctx.Err() for every unit while the units stay in the
// queue: they may be written later.
func (s *Store) Commit(ctx context.Context, units []store.Unit) []error {
	return s.queue.commit(ctx, units)
}

// Size returns how many bytes the file has once its log is folded into it, free pages included.
func (s *Store) Size(ctx context.Context) (bytes int64, err error) {
	err = s.read(ctx, "size", 1, func(c *conn) error {
		pages, err := c.number("PRAGMA page_count")
		if err != nil {
			return err
		}
		size, err := c.number("PRAGMA page_size")
		bytes = pages * size
		return err
	})
	return bytes, err
}

// Stats returns what the store did since it was opened.
func (s *Store) Stats() Stats {
	return Stats{Units: s.stats.units.Load(), Transactions: s.stats.transactions.Load(), Flushes: s.stats.flushes.Load(), Pages: s.stats.pages.Load()}
}

// Exclusive implements [store.Store]: the lock keeps every other process out.
func (s *Store) Exclusive() bool { return true }

// Describe implements [store.Store].
func (s *Store) Describe() string {
	loss := map[Sync]string{
		SyncFull:   "acknowledged after the disk has it",
		SyncNormal: "the last commits may be lost with the machine",
		SyncOff:    "the whole file may be lost with the machine",
	}[s.sync]
	return fmt.Sprintf("sqlite %s, WAL, synchronous=%s (%s)", s.path, s.sync, loss)
}

// Close implements [store.Store]. What was handed to Commit before is written first; a backup under way is given up.
func (s *Store) Close() error { return s.close() }

func (s *Store) shut() error {
	// 1. Let nothing new in, and wait for what is inside.
	s.mu.Lock()
	close(s.closing)
	s.mu.Unlock()
	s.queue.close()
	<-s.written
	s.backups.Wait()
	// 2. The writer's connection closed first, so the last one to close folds the log into the file.
	s.dropReaders(cap(s.readers))
	err := s.keeper.stop()
	// 3. Give the file up.
	if e := s.lock.release(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("close store %s: %w", s.path, err)
	}
	return nil
}

// dropReaders waits for n readers and closes them.
func (s *Store) dropReaders(n int) {
	for range n {
		r := <-s.readers
		_ = r.conn.close()
	}
}
