package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/run"
)

// Options of a sender. Bus and Cell are needed.
type Options struct {
	Bus  bus.Bus
	Cell string // see Source
	// MaxQueued bounds how many events wait to be told; 10,000 when 0, which is some 20 MB of memory.
	MaxQueued int
	// LastWait bounds how long Run goes on when its context has ended, to tell what waits; 3 s when 0.
	LastWait time.Duration
	Log      *slog.Logger // slog.Default() when nil
}

// batch is how many events are told at a time.
const batch = 100

// Pauses between tries: doubling.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Sender tells events on the bus, in the background. Nobody waits for it: while the bus is away events queue, and when
// the queue is full those that come then are lost, counted and logged.
type Sender struct {
	opts   Options
	source string
	wake   chan struct{} // holds one when there is something to tell

	mu    sync.Mutex
	queue []bus.Message
	ended bool // nothing is queued any more
	stats Stats
}

// Stats counts events since the sender was made.
type Stats struct {
	Sent   int64 // told; more than once, where it was unknown whether they were
	Lost   int64 // not told: the queue was full, the bus refused them, or the sender ended
	Queued int   // that wait now
}

// NewSender returns a sender that does nothing until Run.
func NewSender(o Options) (*Sender, error) {
	source, err := Source(o.Cell)
	if err == nil && o.Bus == nil {
		err = errors.New("no bus")
	}
	if err != nil {
		return nil, fmt.Errorf("sender of events: %w", err)
	}
	o.MaxQueued = cmp.Or(o.MaxQueued, 10_000)
	o.LastWait = cmp.Or(o.LastWait, 3*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Sender{opts: o, source: source, wake: make(chan struct{}, 1)}, nil
}

// Stats returns the counts so far.
func (s *Sender) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Queued = len(s.queue)
	return st
}

// Send queues what happened to a run. r is the record after it, which Send only reads, and only until it returns. It
// never waits.
func (s *Sender) Send(r *run.Record, happened []run.Event) {
	all, err := Of(s.source, r, happened)
	if err != nil {
		s.lose(1, "it cannot be written", err)
		return
	}
	if len(all) == 0 {
		return
	}
	messages := make([]bus.Message, len(all))
	for i := range all {
		messages[i] = Message(&all[i])
	}
	s.mu.Lock()
	room, why := min(max(s.opts.MaxQueued-len(s.queue), 0), len(messages)), "the queue is full"
	if s.ended {
		room, why = 0, "the sender has ended"
	}
	s.queue = append(s.queue, messages[:room]...)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	if n := len(messages) - room; n > 0 {
		s.lose(n, why, nil)
	}
}

// lose counts events that are not told, and logs the 1st, 2nd, 4th, 8th… time.
func (s *Sender) lose(n int, why string, err error) {
	s.mu.Lock()
	before := s.stats.Lost
	s.stats.Lost += int64(n)
	after := s.stats.Lost
	s.mu.Unlock()
	for p := int64(1); p <= after; p *= 2 {
		if p > before {
			s.opts.Log.Error("events of runs are lost: "+why, "lost", after, "error", err)
			return
		}
	}
}

// Run tells events until ctx ends, then what still waits, for LastWait at most.
func (s *Sender) Run(ctx context.Context) {
	last, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(s.opts.LastWait, stop) })()
	for s.next(ctx) {
		s.tell(last)
	}
}

// next waits for something to tell; false when ctx has ended and there is nothing.
func (s *Sender) next(ctx context.Context) bool {
	for {
		s.mu.Lock()
		n := len(s.queue)
		s.ended = n == 0 && ctx.Err() != nil
		ended := s.ended
		s.mu.Unlock()
		if n > 0 || ended {
			return n > 0
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		}
	}
}

// tell publishes the oldest events until each is told or refused, or last ends, when they are lost.
func (s *Sender) tell(last context.Context) {
	// 1. They stay in the queue until it is known what became of them.
	s.mu.Lock()
	part := s.queue[:min(batch, len(s.queue))]
	s.mu.Unlock()
	size := len(part)
	sent := 0
	for pause := firstPause; len(part) > 0; pause = min(2*pause, lastPause) {
		// 2. Those whose outcome is unknown are told again: the same id says that it is the same event.
		var again []bus.Message
		var trouble error
		for i, err := range s.opts.Bus.Publish(last, bus.Events, part) {
			switch {
			case err == nil:
				sent++
			case errors.Is(err, bus.ErrTooLarge), errors.Is(err, bus.ErrInvalid), errors.Is(err, bus.ErrClosed):
				s.lose(1, "the bus refuses them", err)
			default:
				again, trouble = append(again, part[i]), err
			}
		}
		part = again
		if len(part) == 0 {
			break
		}
		if last.Err() != nil {
			s.lose(len(part), "the process ends while the bus does not take them", trouble)
			break
		}
		s.opts.Log.Warn("events of runs wait for the bus", "waiting", s.Stats().Queued, "again", pause, "error", trouble)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-last.Done():
			t.Stop()
		}
	}
	// 3. Now they may go.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Sent += int64(sent)
	clear(s.queue[:size])
	s.queue = s.queue[size:]
}
