package sqlite

import (
	"database/sql/driver"
	"encoding/binary"
	"strings"

	"github.com/errand-run/errand/shared/store"
)

// maxHeads bounds each of the two generations of remembered heads: about 5 MB in all.
const maxHeads = 8192

// head is what the writer must know of a stored document: whether it may be written, and which indexes that touches.
type head struct {
	seq     int64 // 0: there is no such document
	version int64
	attempt int64
	wake    int64
	part    store.Part
	worker  string
	fixed   string // the keys that hardly ever change, packed
}

type name struct {
	kind store.Kind
	id   string
}

// heads remembers the documents written last, so that an update needs no read. Only the writer changes the file, so
// what it remembers is true until a transaction fails. Two generations: when the young one is full, the old is dropped.
type heads struct {
	max        int
	young, old map[name]head
}

func newHeads(limit int) *heads { return &heads{max: limit, young: map[name]head{}} }

func (h *heads) get(n name) (head, bool) {
	if d, ok := h.young[n]; ok {
		return d, true
	}
	d, ok := h.old[n]
	return d, ok
}

func (h *heads) put(n name, d head) {
	if len(h.young) >= h.max {
		h.young, h.old = make(map[name]head, h.max), h.young
	}
	h.young[n] = d
}

func (h *heads) forget(n name) {
	delete(h.young, n)
	delete(h.old, n)
}

func (h *heads) clear() { h.young, h.old = map[name]head{}, nil }

// headOf returns the head that a document has once it is stored.
func headOf(d *store.Doc, seq int64) head {
	h := head{seq: seq, version: d.Version}
	if x := d.Index; x != nil {
		h.attempt, h.wake, h.part, h.worker = x.Attempt, x.WakeAt, x.Part, strings.Clone(x.Worker)
		h.fixed = pack(x.CreatedAt, d.Owner, d.Tag, x.Tenant, x.Agent, x.Parent, x.Root)
	} else {
		h.fixed = pack(0, d.Owner, d.Tag)
	}
	return h
}

// pack joins keys so that two packs are equal when all their parts are: the port keeps zero bytes out of keys.
func pack(n int64, keys ...string) string {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 160), uint64(n))
	for _, k := range keys {
		b = append(append(b, k...), 0)
	}
	return string(b)
}

const selectHead = `SELECT seq,version,attempt,wake,shard,worker,created,owner,tag,tenant,agent,parent,root FROM doc WHERE kind=? AND id=?`

func scanHead(kind store.Kind, v []driver.Value) head {
	h := head{
		seq: integer(v[0]), version: integer(v[1]), attempt: integer(v[2]),
		wake: integer(v[3]), part: store.Part(integer(v[4])), worker: text(v[5]),
	}
	if kind == store.KindRun {
		h.fixed = pack(integer(v[6]), text(v[7]), text(v[8]), text(v[9]), text(v[10]), text(v[11]), text(v[12]))
	} else {
		h.fixed = pack(0, text(v[7]), text(v[8]))
	}
	return h
}
