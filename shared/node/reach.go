package node

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// reachable is a bus that may be out of reach.
type reachable interface {
	// Reach returns nil when the bus answers. It takes some seconds at most.
	Reach(ctx context.Context) error
}

// How often the bus is asked whether it is there: now and then, and sooner while it is not.
const (
	reachEvery = 30 * time.Second
	reachAgain = 5 * time.Second
)

// reach knows whether the bus answers. A node serves without one: what it takes is in the store, and whoever decides
// finds it by the tick. But hand-overs wait, and other nodes hear late of what this one takes.
type reach struct {
	bus reachable
	log *slog.Logger
	bad atomic.Bool
}

// out reports whether the bus was out of reach when it was asked last.
func (r *reach) out() bool { return r != nil && r.bad.Load() }

// watch asks until ctx ends.
func (r *reach) watch(ctx context.Context) {
	for {
		err := r.bus.Reach(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := reachEvery
		switch was := r.bad.Swap(err != nil); {
		case err != nil && !was:
			r.log.Warn("the bus is out of reach: hand-overs to pools wait, and other processes hear late of what is taken here", "error", err)
		case err == nil && was:
			r.log.Info("the bus is within reach again")
		}
		if err != nil {
			pause = reachAgain
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}
