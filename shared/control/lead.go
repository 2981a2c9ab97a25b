package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/store"
)

// The dispatcher lease: one document that names who decides. Its version is the epoch and rises with every takeover.
// Expiry is judged by the observer's own monotonic clock as "unchanged for the period", never by comparing the clocks
// of two machines. A holder stops deciding before others may think it dead. Two that both believe they lead waste
// writes and do no harm: every write is compare-and-set.
const (
	leadPeriod = 10 * time.Second
	leadRenew  = 3 * time.Second
	leadMargin = 2 * time.Second // a holder stops this long before its lease may be taken
	leadID     = "dispatcher"
)

type leadDoc struct {
	Holder string `json:"holder"`
	Epoch  int64  `json:"epoch"`
	Beat   int64  `json:"beat"`            // rises with every renewal
	Asked  string `json:"asked,omitempty"` // a successor that wants to be handed over to
	Given  bool   `json:"given,omitempty"` // resigned: free to take
}

// lead is this process's part in the lease. Step is called by the loop; the rest from anywhere.
type lead struct {
	store store.Store
	name  string

	mu       sync.Mutex
	holds    bool
	epoch    int64
	version  int64
	doc      leadDoc
	renewed  time.Time // own clock, at the start of the write that took or renewed
	seen     int64     // version of a foreign lease
	seenFrom time.Time // since when it is unchanged
}

func newLead(st store.Store, name string) *lead { return &lead{store: st, name: name} }

// Leads reports whether this process may decide at now.
func (l *lead) Leads(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leads(now)
}

func (l *lead) leads(now time.Time) bool {
	return l.holds && (l.store.Exclusive() || now.Sub(l.renewed) < leadPeriod-leadMargin)
}

// Epoch is the number of the newest lease that this process held.
func (l *lead) Epoch() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// Next is when Step wants to be called again; zero for never. An exclusive store has one process and so one leader.
func (l *lead) Next(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.holds && l.store.Exclusive():
		return time.Time{}
	case l.holds:
		return l.renewed.Add(leadRenew)
	}
	return now.Add(leadRenew / 3)
}

// Step takes the lease if it is free, renews it if it is held, or watches it.
func (l *lead) Step(ctx context.Context, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds && (l.store.Exclusive() || now.Sub(l.renewed) < leadRenew) {
		return nil
	}
	// 1. Look.
	doc, err := l.store.Get(ctx, store.KindLease, leadID)
	var cur leadDoc
	switch {
	case errors.Is(err, store.ErrNotFound):
		return l.write(ctx, 0, leadDoc{Holder: l.name, Epoch: 1}, now)
	case err != nil:
		return fmt.Errorf("read the dispatcher lease: %w", err)
	}
	if err := json.Unmarshal(doc.Body, &cur); err != nil {
		return fmt.Errorf("read the dispatcher lease: %w", err)
	}
	// 2. Renew what is ours, unless a successor asked for it.
	if l.holds && doc.Version == l.version || l.holds && cur.Holder == l.name && cur.Epoch == l.epoch {
		if cur.Asked != "" && cur.Asked != l.name {
			l.holds = false
			next := leadDoc{Holder: l.name, Epoch: cur.Epoch, Beat: cur.Beat, Given: true}
			return l.put(ctx, doc.Version, next, now)
		}
		return l.write(ctx, doc.Version, leadDoc{Holder: l.name, Epoch: l.epoch, Beat: cur.Beat + 1}, now)
	}
	// 3. Take what is free: given up, alone with the store, or unchanged for the whole period.
	l.holds = false
	if doc.Version != l.seen {
		l.seen, l.seenFrom = doc.Version, now
	}
	if cur.Given || l.store.Exclusive() || now.Sub(l.seenFrom) >= leadPeriod {
		return l.write(ctx, doc.Version, leadDoc{Holder: l.name, Epoch: cur.Epoch + 1}, now)
	}
	return nil
}

// Ask asks the holder to hand over at its next renewal.
func (l *lead) Ask(ctx context.Context, now time.Time) error {
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
	return l.put(ctx, doc.Version, cur, now)
}

// Resign gives the lease up, so that a successor need not wait.
func (l *lead) Resign(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds {
		return nil
	}
	l.holds = false
	next := l.doc
	next.Given = true
	return l.put(ctx, l.version, next, l.renewed)
}

// write takes or renews.
func (l *lead) write(ctx context.Context, expect int64, doc leadDoc, now time.Time) error {
	if err := l.put(ctx, expect, doc, now); err != nil || l.seen != expect+1 {
		l.holds = false
		return err
	}
	l.holds, l.epoch, l.version, l.doc, l.renewed = true, doc.Epoch, expect+1, doc, now
	return nil
}

// put writes the document; a lost race is no error, it leaves seen behind.
func (l *lead) put(ctx context.Context, expect int64, doc leadDoc, now time.Time) error {
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
		l.seen, l.seenFrom = expect+1, now
		return nil
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrExists):
		return nil
	}
	return fmt.Errorf("write the dispatcher lease: %w", err)
}
