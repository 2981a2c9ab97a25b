package sqlite

import (
	"database/sql/driver"
	"errors"
	"strings"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/internal/port"
)

// unit judges a unit and applies it. outcome is the unit's own; err is a failure of the file, which ends the
// transaction.
//
// Every check comes before the first change, so no savepoint is needed. The exception are creations: the insert
// itself finds out whether the document exists, which saves a search, and comes before every other change; on a
// refusal the inserts before it are taken back.
func (w *writer) unit(u *store.Unit) (outcome, err error) {
	// 1. Fences.
	for _, f := range u.Fences {
		h, err := w.head(store.KindRun, f.Run)
		if err != nil {
			return nil, err
		}
		if err := port.JudgeFence(f, h.attempt); err != nil {
			return err, nil
		}
	}
	// 2. Expectations. A purge may take what an insert would own, so beside one creations are judged here too.
	var few [8]head
	found := few[:0]
	for i := range u.Writes {
		wr, h := &u.Writes[i], head{}
		if wr.Expect != 0 || len(u.Purge) > 0 {
			if h, err = w.head(wr.Kind, wr.ID); err != nil {
				return nil, err
			}
			if err := port.JudgeWrite(wr, h.version); err != nil {
				return err, nil
			}
		}
		found = append(found, h)
	}
	// 3. Purge, and look again at what it may have taken.
	if len(u.Purge) > 0 {
		if err := w.purge(u.Purge); err != nil {
			return nil, err
		}
		for i := range u.Writes {
			if found[i], err = w.head(u.Writes[i].Kind, u.Writes[i].ID); err != nil {
				return nil, err
			}
		}
	}
	// 4. Creations, then the rest.
	for i := range u.Writes {
		if wr := &u.Writes[i]; wr.Expect == 0 {
			if exists, err := w.insert(&wr.Doc); err != nil {
				return nil, err
			} else if exists {
				return w.refuse(u, i)
			}
		}
	}
	for i := range u.Writes {
		switch wr, h := &u.Writes[i], found[i]; {
		case wr.Expect == 0:
		case wr.Delete && h.seq != 0:
			err = w.delete(wr.Kind, wr.ID, h.seq)
		case wr.Delete:
		case h.seq != 0:
			err = w.update(&wr.Doc, h)
		default:
			var exists bool
			if exists, err = w.insert(&wr.Doc); exists {
				err = errUndone
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// refuse takes back the creations of a unit before the i-th write, whose document exists.
func (w *writer) refuse(u *store.Unit, i int) (outcome, err error) {
	for j := range u.Writes[:i] {
		if d := &u.Writes[j].Doc; u.Writes[j].Expect == 0 {
			h, _ := w.heads.get(name{d.Kind, d.ID})
			if err := w.delete(d.Kind, d.ID, h.seq); err != nil {
				return nil, err
			}
		}
	}
	h, err := w.head(u.Writes[i].Kind, u.Writes[i].ID)
	if err != nil {
		return nil, err
	}
	outcome = port.JudgeWrite(&u.Writes[i], h.version)
	if outcome == nil {
		return nil, errUndone
	}
	return outcome, nil
}

const insertDoc = `INSERT INTO doc (` + columns + `) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (kind, id) DO NOTHING`

// insert creates a document unless it exists.
func (w *writer) insert(d *store.Doc) (exists bool, err error) {
	a := w.args[:0].int(int64(d.Kind)).text(d.ID).int(d.Version).key(d.Owner).key(d.Tag)
	if x := d.Index; x != nil {
		a = a.text(x.Tenant).text(x.Agent).key(x.Parent).key(x.Root).int(x.CreatedAt)
		a = a.key(x.Worker).int(x.Attempt).int(int64(x.Part)).wake(x.WakeAt)
	} else {
		for range 9 {
			a = a.value(nil)
		}
	}
	w.args = a.blob(d.Body)
	r, err := w.conn.exec(insertDoc, w.args)
	if err != nil {
		return false, err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return true, err
	}
	seq, err := r.LastInsertId()
	w.heads.put(name{d.Kind, strings.Clone(d.ID)}, headOf(d, seq))
	return false, err
}

// wake adds an instant that is NULL for never, which keeps it out of the index of due runs.
func (a args) wake(ms int64) args {
	if ms == 0 {
		return a.value(nil)
	}
	return a.int(ms)
}

// change is a set of columns that an update writes besides version, attempt and body.
type change uint8

const (
	changeWorker change = 1 << iota
	changeDue
	changeFixed
)

// updateDoc holds the statement for each change: an index is touched when its columns are named, equal or not.
var updateDoc = func() (sql [changeFixed * 2]string) {
	for c := range change(len(sql)) {
		b := "UPDATE doc SET version=?,attempt=?,body=?"
		if c&changeWorker != 0 {
			b += ",worker=?"
		}
		if c&changeDue != 0 {
			b += ",shard=?,wake=?"
		}
		if c&changeFixed != 0 {
			b += ",owner=?,tag=?,tenant=?,agent=?,parent=?,root=?,created=?"
		}
		sql[c] = b + " WHERE seq=?"
	}
	return sql
}()

// update replaces a stored document, whose head is was.
func (w *writer) update(d *store.Doc, was head) error {
	now := headOf(d, was.seq)
	c, x := change(0), d.Index
	if now.worker != was.worker {
		c |= changeWorker
	}
	if now.wake != was.wake || now.part != was.part {
		c |= changeDue
	}
	if now.fixed == was.fixed {
		now.fixed = was.fixed
	} else {
		c |= changeFixed
	}
	a := w.args[:0].int(d.Version)
	if x != nil {
		a = a.int(x.Attempt)
	} else {
		a = a.value(nil)
	}
	a = a.blob(d.Body)
	if c&changeWorker != 0 {
		a = a.key(now.worker)
	}
	if c&changeDue != 0 {
		a = a.int(int64(now.part)).wake(now.wake)
	}
	if c&changeFixed != 0 {
		a = a.key(d.Owner).key(d.Tag)
		if x != nil {
			a = a.text(x.Tenant).text(x.Agent).key(x.Parent).key(x.Root).int(x.CreatedAt)
		} else {
			a = a.value(nil).value(nil).value(nil).value(nil).value(nil)
		}
	}
	w.args = a.int(was.seq)
	r, err := w.conn.exec(updateDoc[c], w.args)
	if err != nil {
		return err
	}
	w.heads.put(name{d.Kind, strings.Clone(d.ID)}, now)
	return expectOne(r)
}

// delete removes a stored document.
func (w *writer) delete(kind store.Kind, id string, seq int64) error {
	w.args = w.args[:0].int(seq)
	r, err := w.conn.exec("DELETE FROM doc WHERE seq=?", w.args)
	if err != nil {
		return err
	}
	w.heads.forget(name{kind, id})
	w.freed = true
	return expectOne(r)
}

const purgeOwned = `DELETE FROM doc WHERE owner=? AND NOT (kind=? AND id=?) RETURNING kind, id`

// purge deletes what the runs own, but not the runs.
func (w *writer) purge(runs []string) error {
	for _, run := range runs {
		w.args = w.args[:0].text(run).int(int64(store.KindRun)).text(run)
		err := w.conn.query(purgeOwned, w.args, func(v []driver.Value) error {
			w.heads.forget(name{store.Kind(integer(v[0])), text(v[1])})
			return nil
		})
		if err != nil {
			return errors.Join(errors.New("purge"), err)
		}
		w.freed = true
	}
	return nil
}
