package sqlite

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/internal/port"
)

// What one transaction takes. The bounds are what a small commit may wait for; a batch of this size already costs a
// hundredth of a flush per unit.
const (
	batchUnits = 1000
	batchBytes = 4 << 20
	// A call beyond either of these is large: it is written in slices, one slice beside the small calls.
	largeUnits = 250
	largeBytes = 256 << 10
	// A call that only removes waits for all others, but for no more transactions than this; then some of its units go
	// along. A removal touches a page of every index, so few of them cost as much as many small writes.
	removalWaits = 8
	removalUnits = 8
)

// call is one Commit on its way.
type call struct {
	units    []store.Unit
	outcomes []error
	next     int           // the first unit that no transaction has taken
	done     chan struct{} // closed when every outcome is there
}

// slice is the part of a call that one transaction takes: units[from:to].
type slice struct {
	*call
	from, to int
}

// queue holds the calls that wait for the writer. Small calls go first, in order of arrival; of the large ones, one
// after the other adds a slice to each transaction, so that neither starves the other. Calls that only remove come when
// nothing else waits, or when they were passed over often enough.
type queue struct {
	mu           sync.Mutex
	small, large []*call
	removals     []*call
	passed       int // transactions that went before the first of the removals
	closed       bool
	wake         chan struct{} // holds one signal: something changed
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

// commit queues units and waits for their outcomes.
func (q *queue) commit(ctx context.Context, units []store.Unit) []error {
	if err := ctx.Err(); err != nil {
		return port.Repeat(err, len(units))
	}
	if err := port.CheckUnits(len(units)); err != nil {
		return port.Repeat(err, len(units))
	}
	if len(units) == 0 {
		return nil
	}
	// 1. What no store could accept is refused here, beside the writer and not on it.
	c := &call{units: units, outcomes: make([]error, len(units)), done: make(chan struct{})}
	size := 0
	for i := range units {
		c.outcomes[i] = port.CheckUnit(&units[i])
		size += bytesOf(&units[i])
	}
	// 2. Queue it.
	if !q.add(c, size) {
		return port.Repeat(fmt.Errorf("commit: %w", store.ErrClosed), len(units))
	}
	// 3. Wait for it.
	select {
	case <-c.done:
		return c.outcomes
	case <-ctx.Done():
		return port.Repeat(ctx.Err(), len(units))
	}
}

func (q *queue) add(c *call, size int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	switch {
	case c.removes():
		q.removals = append(q.removals, c)
	case len(c.units) > largeUnits || size > largeBytes:
		q.large = append(q.large, c)
	default:
		q.small = append(q.small, c)
	}
	q.signal()
	return true
}

// removes reports whether nothing is written by the call, only removed.
func (c *call) removes() bool {
	for i := range c.units {
		u := &c.units[i]
		for k := range u.Writes {
			if !u.Writes[k].Delete {
				return false
			}
		}
		if len(u.Writes)+len(u.Purge) == 0 {
			return false
		}
	}
	return true
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close lets no further call in.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

// gather lets those come along that are about to commit: it gives way as long as calls keep coming. Their work has to be
// done anyway, and one flush for many is what keeps a busy store cheap; where nobody else has work it costs nothing.
func (q *queue) gather() {
	for before, n := 0, q.waiting(); n > before; before, n = n, q.waiting() {
		runtime.Gosched()
	}
}

func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.small)
}

// take returns what the next transaction writes, none when nothing waits; over reports that nothing will come.
func (q *queue) take() (batch []slice, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	units, bytes, n := 0, 0, 0
	for ; n < len(q.small) && units < batchUnits && bytes < batchBytes; n++ {
		c := q.small[n]
		batch = append(batch, slice{c, 0, len(c.units)})
		units += len(c.units)
		for i := range c.units {
			bytes += bytesOf(&c.units[i])
		}
	}
	q.small = slices.Delete(q.small, 0, n)
	if len(q.large) > 0 {
		c := q.large[0]
		q.large = slices.Delete(q.large, 0, 1)
		s := c.slice(largeUnits)
		batch = append(batch, s)
		if s.to < len(c.units) {
			q.large = append(q.large, c)
		}
	}
	switch {
	case len(q.removals) == 0:
		q.passed = 0
	case len(batch) > 0 && q.passed < removalWaits:
		q.passed++
	default:
		c := q.removals[0]
		s := c.slice(removalUnits)
		batch, q.passed = append(batch, s), 0
		if s.to == len(c.units) {
			q.removals = slices.Delete(q.removals, 0, 1)
		}
	}
	return batch, q.closed && len(batch) == 0
}

// slice takes the next units of a large call: at least one, then as many as stay within its share.
func (c *call) slice(most int) slice {
	s := slice{c, c.next, c.next}
	for bytes := 0; s.to < len(c.units) && s.to-s.from < most && (s.to == s.from || bytes < largeBytes); s.to++ {
		bytes += bytesOf(&c.units[s.to])
	}
	c.next = s.to
	return s
}

func bytesOf(u *store.Unit) (n int) {
	for i := range u.Writes {
		n += len(u.Writes[i].Body)
	}
	return n
}
