package sqlite

import (
	"database/sql/driver"
	"errors"
)

// checkpointPages is the length of the log at which it is folded into the file: 16 MiB. Longer, and each page that is
// written often is folded less often; shorter, and reads search less and a start after a crash has less to recover.
const checkpointPages = 4096

// keeper folds the log into the file on a connection of its own, beside the writer. It never waits for a lock and no
// commit waits for it. While it works the log grows on; so when it is done the writer, between two transactions, folds
// the little that came meanwhile and begins the log anew at its start.
type keeper struct {
	store  *Store
	conn   *conn
	asked  chan struct{} // holds one request
	folded chan struct{} // holds one report
	ended  chan error
}

func startKeeper(s *Store) (*keeper, error) {
	c, err := dial(s.path, readWrite, "PRAGMA synchronous="+string(s.sync), "PRAGMA wal_autocheckpoint=0")
	if err != nil {
		return nil, err
	}
	k := &keeper{store: s, conn: c, asked: make(chan struct{}, 1), folded: make(chan struct{}, 1), ended: make(chan error, 1)}
	go k.run()
	return k, nil
}

func (k *keeper) run() {
	for range k.asked {
		// A failure (a full disk) leaves the log as it is; the next growth asks again.
		if _, err := k.store.checkpoint(k.conn, "PASSIVE"); err == nil {
			select {
			case k.folded <- struct{}{}:
			default: // the writer has not seen the report before
			}
		}
	}
	k.ended <- k.conn.close()
}

// stop ends the keeper, after the writer has ended.
func (k *keeper) stop() error {
	close(k.asked)
	return <-k.ended
}

// checkpoint folds the log and returns whether all of it was, under the rules of the mode.
func (s *Store) checkpoint(c *conn, mode string) (whole bool, err error) {
	err = c.query("PRAGMA wal_checkpoint("+mode+")", nil, func(v []driver.Value) error {
		if integer(v[0]) == 0 && integer(v[1]) < 0 {
			return errors.New("the file has no log")
		}
		whole = integer(v[0]) == 0 && integer(v[1]) == integer(v[2])
		return nil
	})
	if s.sync != SyncOff {
		s.stats.flushes.Add(2)
	}
	return whole, err
}

// tendLog asks for a checkpoint when the log is long, and begins it anew when one is done. Where the keeper cannot keep
// up, the writer folds the log itself and commits wait for that: the log must end somewhere.
func (w *writer) tendLog() {
	select {
	case <-w.store.keeper.folded:
		w.restartLog()
		return
	default:
	}
	if w.logged < w.due || w.logged >= 3*w.store.pages && w.restartLog() {
		return
	}
	select {
	case w.store.keeper.asked <- struct{}{}:
	default: // it is at work
	}
	w.due = w.logged + w.store.pages/4
}

// restartLog folds what the keeper left and begins the log anew. Where a read is still at the log this changes
// nothing, and the next growth of the log tries again.
func (w *writer) restartLog() bool {
	if w.conn == nil {
		return false
	}
	if whole, err := w.store.checkpoint(w.conn, "RESTART"); err != nil || !whole {
		return false
	}
	w.logged, w.due = 0, w.store.pages
	return true
}
