package process

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Options of a Host.
type Options struct {
	// Ledger is the file that remembers what runs, so that the next host on it can end what this one left; "" for none.
	// One host at a time can use it.
	Ledger string
	// Warden starts a helper process that ends all groups as soon as this process has died. The program must call
	// [Warden] first thing in main.
	Warden bool
	// Grace is the time between SIGTERM and SIGKILL for what a dead host left; 5 s when 0.
	Grace  time.Duration
	Logger *slog.Logger // nil discards
}

// Host starts programs and answers for their end. Safe for concurrent use.
type Host struct {
	id      string // random: marks the environment of all that it starts
	log     *slog.Logger
	ledger  *ledger
	guard   *guard
	sampler sampler

	mu     sync.Mutex
	closed bool
	active sync.WaitGroup
}

// NewHost opens a host. With a ledger it first ends what a dead host left running, which takes up to Grace.
func NewHost(o Options) (*Host, error) {
	if o.Grace == 0 {
		o.Grace = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Host{id: rand.Text()[:16], log: o.Logger}
	h.sampler.log = o.Logger
	if o.Ledger != "" {
		var err error
		if h.ledger, err = openLedger(o.Ledger, o.Grace, o.Logger); err != nil {
			return nil, err
		}
	}
	if o.Warden {
		var err error
		if h.guard, err = startGuard(h.id, o.Grace, o.Logger); err != nil {
			return nil, errors.Join(err, h.ledger.close())
		}
	}
	return h, nil
}

// enter makes a group known to the nets before it gets work.
func (h *Host) enter(g group) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errors.New("the host is closed")
	}
	if err := h.ledger.add(g); err != nil {
		return err
	}
	h.guard.add(g)
	h.active.Add(1)
	return nil
}

func (h *Host) leave(pgid int) {
	h.guard.remove(pgid)
	if err := h.ledger.remove(pgid); err != nil {
		h.log.Warn("a process that ended stays in the ledger", "pid", pgid, "error", err)
	}
}

// Close waits until every program has ended, then closes the nets. The caller stops the programs first. Nothing can be
// started any more.
func (h *Host) Close() error {
	h.mu.Lock()
	closed := h.closed
	h.closed = true
	h.mu.Unlock()
	if closed {
		return nil
	}
	h.active.Wait()
	h.guard.close()
	if err := h.ledger.close(); err != nil {
		return fmt.Errorf("close the process ledger: %w", err)
	}
	return nil
}
