package server

import (
	"context"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
)

// hub watches the control plane once for all streams of all runs.
type hub struct {
	plane  Plane
	counts func(control.Change) // sees every change; set before start

	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	all map[*follower]struct{}
}

// follower receives the runs that change. What it has not fetched yet is kept once per run, as it is by then.
type follower struct {
	wake    chan struct{} // capacity 1
	mu      sync.Mutex
	pending map[string]*run.Record
	lost    bool // changes were missed: read everything again
}

// maxPending bounds the runs that a follower of all runs may lag behind.
const maxPending = 10_000

const (
	watchBuffer = 4096
	watchAgain  = 100 * time.Millisecond // before a watch that was cut is taken up again
)

func newHub(p Plane) *hub {
	return &hub{
		plane: p, counts: func(control.Change) {}, done: make(chan struct{}),
		all: make(map[*follower]struct{}),
	}
}

func (h *hub) start() {
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	go h.loop(ctx)
}

func (h *hub) stop() {
	h.cancel()
	<-h.done
}

func (h *hub) loop(ctx context.Context) {
	defer close(h.done)
	for {
		changes, end := h.plane.Watch(ctx, watchBuffer)
		h.follow(ctx, changes)
		end()
		// Cut off for being slow, or the control plane stops. Either way something was missed.
		h.lost()
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchAgain):
		}
	}
}

func (h *hub) follow(ctx context.Context, changes <-chan control.Change) {
	for {
		select {
		case <-ctx.Done():
			return
		case c, ok := <-changes:
			if !ok {
				return
			}
			h.tell(c)
		}
	}
}

func (h *hub) tell(c control.Change) {
	if c.Run == nil { // of another process
		h.lost()
		return
	}
	h.counts(c)
	h.mu.Lock()
	defer h.mu.Unlock()
	for f := range h.all {
		f.put(c.Run)
	}
}

// lost wakes everybody to read again.
func (h *hub) lost() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for f := range h.all {
		f.mu.Lock()
		f.lost = true
		f.mu.Unlock()
		signal(f.wake)
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// everything collects changes of all runs, until the function is called.
func (h *hub) everything() (*follower, func()) {
	f := &follower{wake: make(chan struct{}, 1), pending: make(map[string]*run.Record)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[f] = struct{}{}
	return f, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.all, f)
	}
}

func (f *follower) put(r *run.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.pending) >= maxPending {
		f.lost = true
		clear(f.pending)
	}
	f.pending[r.ID] = r
	signal(f.wake)
}

// take returns what has changed since the last call, and whether more was missed.
func (f *follower) take() (changed []*run.Record, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.pending {
		changed = append(changed, r)
	}
	clear(f.pending)
	lost, f.lost = f.lost, false
	return changed, lost
}
