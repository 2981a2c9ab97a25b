package control

import (
	"container/heap"

	"github.com/errand-run/errand/shared/run"
)

// timers holds one wake-up per key, soonest first. Setting a key again moves it.
type timers struct {
	heap []timer
	at   map[string]int // key to place in heap
}

type timer struct {
	when run.Instant
	key  string
}

func newTimers() *timers { return &timers{at: make(map[string]int)} }

// set moves the key's wake-up; 0 removes it.
func (t *timers) set(key string, when run.Instant) {
	i, known := t.at[key]
	switch {
	case when == 0 && known:
		heap.Remove(t, i)
	case when == 0:
	case !known:
		heap.Push(t, timer{when, key})
	case t.heap[i].when != when:
		t.heap[i].when = when
		heap.Fix(t, i)
	}
}

// drop removes many at once.
func (t *timers) drop(which func(timer) bool) {
	kept := t.heap[:0]
	for _, x := range t.heap {
		if which(x) {
			delete(t.at, x.key)
			continue
		}
		t.at[x.key] = len(kept)
		kept = append(kept, x)
	}
	clear(t.heap[len(kept):])
	t.heap = kept
	heap.Init(t)
}

// next is the soonest wake-up; 0 for none.
func (t *timers) next() run.Instant {
	if len(t.heap) == 0 {
		return 0
	}
	return t.heap[0].when
}

// due removes and returns up to limit keys whose time has come, soonest first.
func (t *timers) due(now run.Instant, limit int) []string {
	var keys []string
	for len(t.heap) > 0 && len(keys) < limit && t.heap[0].when <= now {
		keys = append(keys, heap.Pop(t).(timer).key)
	}
	return keys
}

func (t *timers) Len() int           { return len(t.heap) }
func (t *timers) Less(i, j int) bool { return t.heap[i].when < t.heap[j].when }
func (t *timers) Swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.at[t.heap[i].key], t.at[t.heap[j].key] = i, j
}

func (t *timers) Push(x any) {
	e := x.(timer)
	t.at[e.key] = len(t.heap)
	t.heap = append(t.heap, e)
}

func (t *timers) Pop() any {
	e := t.heap[len(t.heap)-1]
	t.heap = t.heap[:len(t.heap)-1]
	delete(t.at, e.key)
	return e
}
