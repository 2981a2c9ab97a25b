package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// The dispatcher lease: one document that names who decides. Its version is the epoch and rises with every takeover.
// Expiry is judged by the observer's own monotonic clock as "unchanged for the period", never by comparing the clocks
// of two machines. A holder stops deciding before others may think it dead. Two that both believe they lead waste
// writes and do no harm: every write is compare-and-set.
const (
	leadPeriod = 10 * time.Second
	leadRenew  = 3 * time.Second
	leadLook   = leadRenew / 3   // between two looks at a lease that is somebody else's
	leadMargin = 2 * time.Second // a holder stops this long before its lease may be taken
	leadID     = "dispatcher"
)

type leadDoc struct {
	Holder string `json:"holder"`
	Epoch  int64  `json:"epoch"`
	Beat   int64  `json:"beat"`            // rises with every renewal
	Asked  string `json:"asked,omitempty"` // a successor that wants to be handed over to
	URL    string `json:"url,omitempty"`   // where the holder answers what only it knows; "" where nobody can reach it
	Fleet  uint64 `json:"fleet,omitempty"` // what it holds declared, see fingerprint
	Load   *load  `json:"load,omitempty"`  // how much waits and runs

	Stops map[string]run.Reason `json:"stops,omitempty"` // attempts that are told to end, and why
	Given bool                  `json:"given,omitempty"` // resigned: free to take
}

// lead is this process's part in the lease. Step is called by the loop; the rest from anywhere.
type lead struct {
	store store.Store
	name  string
	url   string         // of this process, for others
	tell  func(*leadDoc) // adds what the others are told; nil for nothing

	// known is what everybody asks for all the time: nobody who asks waits while the lease is read or written.
	known atomic.Pointer[standing]

	mu sync.Mutex // held while the lease is read and written; guards the rest
	standing
	version  int64
	doc      leadDoc
	seen     int64         // version of a foreign lease
	seenFrom time.Duration // since when it is unchanged
	looked   bool          // ever, and when last
	lookedAt time.Duration
}

// standing is what this process has of the lease.
type standing struct {
	holds   bool
	epoch   int64         // of the newest lease that it held
	renewed time.Duration // own monotonic clock, at the start of the write that took or renewed
	failed  bool          // the last Step: the next one is not made at once
	leader  leadDoc       // as it was last read or written
}

func newLead(st store.Store, name string) *lead {
	l := &lead{store: st, name: name}
	l.publish()
	return l
}

// publish makes the standing known; with mu held.
func (l *lead) publish() {
	s := l.standing
	l.known.Store(&s)
}

// drop stops leading at once: before anybody can read that the lease is free. With mu held.
func (l *lead) drop() {
	l.holds = false
	l.publish()
}

// Leads reports whether this process may decide. mono is its own monotonic clock.
func (l *lead) Leads(mono time.Duration) bool {
	s := l.known.Load()
	return s.holds && (l.store.Exclusive() || mono-s.renewed < leadPeriod-leadMargin)
}

// Epoch is the number of the newest lease that this process held.
func (l *lead) Epoch() int64 { return l.known.Load().epoch }

// Next is how long until Step wants to be called again; false for never. An exclusive store has one process and so one
// leader.
func (l *lead) Next(mono time.Duration) (time.Duration, bool) {
	s := l.known.Load()
	switch {
	case s.holds && l.store.Exclusive():
		return 0, false
	case s.holds && !s.failed:
		return max(s.renewed+leadRenew-mono, 0), true
	}
	return leadLook, true
}

// Step takes the lease if it is free, renews it if it is held, or watches it.
func (l *lead) Step(ctx context.Context, mono time.Duration) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		l.failed = err != nil
		l.publish()
	}()
	switch {
	case l.holds && (l.store.Exclusive() || mono-l.renewed < leadRenew):
		return nil
	case !l.holds && !l.store.Exclusive() && l.looked && mono-l.lookedAt < leadLook:
		return nil // the loop comes by far more often than a lease changes hands, and each look is billed
	}
	// 1. Look.
	l.looked, l.lookedAt = true, mono
	doc, err := l.store.Get(ctx, store.KindLease, leadID)
	var cur leadDoc
	switch {
	case errors.Is(err, store.ErrNotFound):
		return l.write(ctx, 0, leadDoc{Holder: l.name, Epoch: 1}, mono)
	case err != nil:
		return fmt.Errorf("read the dispatcher lease: %w", err)
	}
	if err := json.Unmarshal(doc.Body, &cur); err != nil {
		return fmt.Errorf("read the dispatcher lease: %w", err)
	}
	l.leader = cur
	// 2. Renew what is ours, unless a successor asked for it.
	if l.holds && doc.Version == l.version || l.holds && cur.Holder == l.name && cur.Epoch == l.epoch {
		if cur.Asked != "" && cur.Asked != l.name {
			l.drop()
			next := leadDoc{Holder: l.name, Epoch: cur.Epoch, Beat: cur.Beat, Given: true}
			return l.put(ctx, doc.Version, next, mono)
		}
		return l.write(ctx, doc.Version, leadDoc{Holder: l.name, Epoch: l.epoch, Beat: cur.Beat + 1}, mono)
	}
	// 3. Take what is free: given up, alone with the store, or unchanged for the whole period.
	l.drop()
	if doc.Version != l.seen {
		l.seen, l.seenFrom = doc.Version, mono
	}
	if cur.Given || l.store.Exclusive() || mono-l.seenFrom >= leadPeriod {
		return l.write(ctx, doc.Version, leadDoc{Holder: l.name, Epoch: cur.Epoch + 1}, mono)
	}
	return nil
}

// Ask asks the holder to hand over at its next renewal.
func (l *lead) Ask(ctx context.Context, mono time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	doc, err := l.store.Get(ctx, store.KindLease, leadID)
	if err != nil || l.holds {
		return err
	}
	var cur leadDoc
	if err := json.Unmarshal(doc.Body, &cur); err != nil {
		return fmt.Errorf("read the dispatcher lease: %w", err)
	}
	cur.Asked = l.name
	return l.put(ctx, doc.Version, cur, mono)
}

// Resign gives the lease up, so that a successor need not wait.
func (l *lead) Resign(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds {
		return nil
	}
	l.drop()
	next := l.doc
	next.Given = true
	return l.put(ctx, l.version, next, l.renewed)
}

// Leader is the lease as this process last saw it: who decides, where, and over what fleet.
func (l *lead) Leader() leadDoc { return l.known.Load().leader }

// write takes or renews.
func (l *lead) write(ctx context.Context, expect int64, doc leadDoc, mono time.Duration) error {
	if doc.URL = l.url; l.tell != nil && !l.store.Exclusive() {
		l.tell(&doc)
	}
	if err := l.put(ctx, expect, doc, mono); err != nil || l.seen != expect+1 {
		l.holds = false
		return err
	}
	l.holds, l.epoch, l.version, l.doc, l.leader, l.renewed = true, doc.Epoch, expect+1, doc, doc, mono
	return nil
}

// put writes the document; a lost race is no error, it leaves seen behind.
func (l *lead) put(ctx context.Context, expect int64, doc leadDoc, mono time.Duration) error {
	body, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("encode the dispatcher lease: %w", err)
	}
	unit := store.Unit{Token: fmt.Sprintf("%s/%s/%d/%d", leadID, l.name, doc.Epoch, doc.Beat), Writes: []store.Write{{
		Expect: expect, Doc: store.Doc{Kind: store.KindLease, ID: leadID, Version: expect + 1, Body: body},
	}}}
	err = l.store.Commit(ctx, []store.Unit{unit})[0]
	switch {
	case err == nil:
		l.seen, l.seenFrom = expect+1, mono
		return nil
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrExists):
		return nil
	}
	return fmt.Errorf("write the dispatcher lease: %w", err)
}
