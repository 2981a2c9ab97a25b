package firestore

import (
	"sync"
	"time"
)

// head is what a write has to know about a stored document. The zero head is that of a document that does not exist.
type head struct {
	version int64
	attempt int64 // of a run
	updated time.Time
	token   string // of the unit that wrote it
	prior   string // of the unit that wrote the version before; "" for none
	first   string // of the unit that created the document
	parts   int    // of its body
}

// known remembers the heads of the documents that were read or written last. It holds two generations of half its size:
// what is used moves to the young one, and when that is full the old one is dropped.
type known struct {
	mu         sync.Mutex
	half       int
	young, old map[name]head
}

func newKnown(size int) *known { return &known{half: max(1, size/2), young: map[name]head{}} }

func (k *known) get(n name) (head, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, ok := k.young[n]
	if !ok {
		if h, ok = k.old[n]; ok {
			k.add(n, h)
		}
	}
	return h, ok
}

// put remembers a head, unless a later one of the document is known: a slow read must not undo a write.
func (k *known) put(n name, h head) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, gen := range []map[name]head{k.young, k.old} {
		if was, ok := gen[n]; ok && was.updated.After(h.updated) {
			return
		}
	}
	k.add(n, h)
}

func (k *known) add(n name, h head) {
	if len(k.young) >= k.half {
		k.young, k.old = make(map[name]head, k.half), k.young
	}
	k.young[n] = h
}

func (k *known) forget(n name) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.young, n)
	delete(k.old, n)
}
