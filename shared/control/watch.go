package control

import (
	"context"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/run"
)

// watchers tells who asked of every change in this process. Nobody can hold up the control plane: a watcher that falls
// behind is cut off and reads again.
type watchers struct {
	mu     sync.Mutex
	all    map[*watcher]struct{}
	byRun  map[string]map[chan struct{}]struct{}
	closed bool
}

type watcher struct{ ch chan Change }

func newWatchers() *watchers {
	return &watchers{all: make(map[*watcher]struct{}), byRun: make(map[string]map[chan struct{}]struct{})}
}

func (w *watchers) tell(c Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for x := range w.all {
		select {
		case x.ch <- c:
		default:
			close(x.ch)
			delete(w.all, x)
		}
	}
	if c.Run == nil {
		return
	}
	signalAll(w.byRun[c.Run.ID])
}

func (w *watchers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for x := range w.all {
		close(x.ch)
		delete(w.all, x)
	}
	for _, set := range w.byRun {
		signalAll(set)
	}
}

// Watch returns a channel with every change of a run in this process, in the order of each run's history, and a
// function that ends the watch. The channel holds buffer changes; when that is full, it is closed and the watcher must
// read what it missed.
func (p *Plane) Watch(_ context.Context, buffer int) (<-chan Change, func()) {
	x := &watcher{ch: make(chan Change, max(buffer, 1))}
	w := p.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		close(x.ch)
		return x.ch, func() {}
	}
	w.all[x] = struct{}{}
	return x.ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, on := w.all[x]; on {
			delete(w.all, x)
			close(x.ch)
		}
	}
}

// signalAll wakes each of a set that is not awake already.
func signalAll(set map[chan struct{}]struct{}) {
	for ch := range set {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// signal tells who follows a run that another process has changed it.
func (w *watchers) signal(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	signalAll(w.byRun[id])
}

// followed lists up to limit runs that somebody follows.
func (w *watchers) followed(limit int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, min(len(w.byRun), limit))
	for id := range w.byRun {
		if len(ids) == limit {
			break
		}
		ids = append(ids, id)
	}
	return ids
}

func (w *watchers) isFollowed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.byRun) > 0
}

// Follow signals on the returned channel after changes of one run, whichever process made them, until the function is
// called. Changes of other processes are seen at a pace, not one by one.
func (p *Plane) Follow(id string) (<-chan struct{}, func()) {
	ch, done := p.watch.follow(id)
	if !p.store.Exclusive() && !p.leads() {
		p.wake() // the loop looks at it from now on
	}
	return ch, done
}

// follow signals on the returned channel after each change of one run.
func (w *watchers) follow(id string) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byRun[id] == nil {
		w.byRun[id] = make(map[chan struct{}]struct{})
	}
	w.byRun[id][ch] = struct{}{}
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.byRun[id], ch)
		if len(w.byRun[id]) == 0 {
			delete(w.byRun, id)
		}
	}
}

// Await returns the run when it is terminal, or as it is when the timeout or the context ends.
func (p *Plane) Await(ctx context.Context, id string, timeout time.Duration) (*run.Record, error) {
	changed, done := p.Follow(id)
	defer done()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		r, err := p.Get(ctx, id)
		if err != nil || r.State.Terminal() {
			return r, err
		}
		select {
		case <-changed:
			if p.watch.isClosed() {
				return r, nil
			}
		case <-timer.C:
			return r, nil
		case <-ctx.Done():
			return r, nil
		}
	}
}

func (w *watchers) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}
