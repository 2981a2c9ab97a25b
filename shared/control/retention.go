package control

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Retention stage: what has ended is removed when its time is over. Nothing waits for that, so it is done in the
// background, in bites: each reads a few finished runs that are due, removes those that nobody needs any more, and
// pauses. Finished runs stand in a part of the due index of their own; work that is due is found without reading over
// them, and they are never in memory.
//
// A run goes after all that came of it. It stays while its parent has not ended, while a child or a retry of it is
// there (a retry meets the receipts of the runs before it), and while it owns a receipt that nobody has settled.

const (
	removeRuns   = 32                   // finished runs in a bite
	removePause  = 5 * time.Millisecond // between two bites, at least: see pauseAfter
	removeLag    = time.Hour            // overdue by more, and it hurries
	removeRound  = time.Second          // between two rounds, at least
	removeNeeded = time.Minute          // after a round that found only what is needed still
	removeRetry  = time.Second          // after a failure
	removeReread = 10 * time.Minute     // where other processes end runs as well: how long that may go unnoticed
	retryMargin  = 5 * time.Second      // before the removal of a run: it is not retried any more
	keyWindow    = 24 * time.Hour
)

// retainFor is how long finished runs are kept, as a record has it.
func retainFor(retain fleet.Duration) int64 {
	if retain == fleet.Forever {
		return 0
	}
	return retain.Std().Milliseconds()
}

// removeAt is when a run that ends now may be removed; 0 for never. The server's bound comes before the agent's wish,
// and the promise of the key before both.
func (p *Plane) removeAt(r *run.Record, now run.Instant) run.Instant {
	keep := time.Duration(r.RetainFor) * time.Millisecond
	if most := p.cfg.RetainMax; most > 0 && (keep == 0 || keep > most) {
		keep = most
	}
	if keep == 0 {
		return 0
	}
	if r.Key != "" {
		keep = max(keep, p.cfg.KeyWindow)
	}
	return now.Add(keep)
}

// kept tells until when a finished run is there.
func kept(r *run.Record) string {
	if r.Due == 0 {
		return "It is kept for ever: so its agent's retain says."
	}
	return fmt.Sprintf("It is kept until %s, and then removed with its history, steps, logs, values and receipts as soon as "+
		"no run that came of it is left and no effect of it is unsettled.", r.Due.Time().Format(time.RFC3339))
}

// retryLink is the document by which the run that was retried is known to be needed; it belongs to that run.
func retryLink(of, id string) store.Write {
	return store.Write{Expect: store.AnyVersion, Doc: store.Doc{Kind: store.KindMisc, ID: retryPrefix + id, Version: 1, Owner: of}}
}

const retryPrefix = "retry/"

// retention is where the stage is. next, before and busy are guarded by Plane.mu; the rest belongs to the bite under way.
type retention struct {
	next   run.Instant // when the next bite may begin; 0 for never
	before run.Instant // no bite begins before this
	busy   bool

	wake    int64 // where the round has come to
	id      string
	kept    int // what this round found to be needed still
	removed int
	behind  time.Duration
	spent   time.Duration
}

// pauseAfter is how long nothing is removed after a bite that took a time and found what was overdue by behind.
func pauseAfter(took, behind time.Duration) time.Duration {
	share := 3 * took
	if behind > removeLag {
		share = took
	}
	return max(share, removePause)
}

// ended takes note of when a finished run is to be removed, and reports whether that is sooner than what was known.
func (t *retention) ended(at run.Instant) bool {
	if at == 0 || t.next != 0 && t.next <= at {
		return false
	}
	t.next = max(at, t.before)
	return true
}

// stepRetention begins a bite if one is due and none is under way.
func (p *Plane) stepRetention(ctx context.Context, now run.Instant) {
	p.mu.Lock()
	t := p.ix.removal
	if t.busy || t.next == 0 || t.next > now {
		p.mu.Unlock()
		return
	}
	t.busy, t.next = true, 0
	p.mu.Unlock()
	p.starts.Add(1)
	p.cfg.Go(func() {
		defer p.starts.Done()
		began := p.cfg.Monotonic()
		next, over, err := p.removeSome(ctx, t, now)
		took := p.cfg.Monotonic() - began
		t.spent += took
		pause := pauseAfter(took, t.behind)
		switch {
		case ctx.Err() != nil || errors.Is(err, store.ErrClosed):
			return
		case err != nil:
			p.log.WarnContext(ctx, "remove finished runs; trying again in a moment", "error", err)
			next, pause = now, removeRetry
		case over:
			// What is needed still is looked at in every round: that may cost a twentieth of a core and no more.
			pause = max(removeRound, 20*t.spent)
			t.spent = 0
			if !p.store.Exclusive() {
				next = run.Earliest(next, now.Add(removeReread))
			}
		default:
			next = now
		}
		p.mu.Lock()
		t.busy, t.before = false, now.Add(pause)
		if t.next != 0 {
			t.next = max(t.next, t.before)
		}
		t.ended(next)
		p.mu.Unlock()
		p.wake()
	})
}

// removeSome takes one bite. When a round is over, next is when something is due again; 0 for never.
func (p *Plane) removeSome(ctx context.Context, t *retention, now run.Instant) (next run.Instant, over bool, err error) {
	// 1. A few that are due.
	docs, err := p.store.Due(ctx, store.PartEnded, int64(now), t.wake, t.id, removeRuns)
	if err != nil {
		return 0, false, fmt.Errorf("read finished runs: %w", err)
	}
	t.behind = 0
	if len(docs) > 0 {
		last := docs[len(docs)-1]
		t.wake, t.id = last.Index.WakeAt, last.ID
		t.behind = now.Sub(run.Instant(t.wake))
	}
	// 2. Those that nobody needs are removed.
	if err := p.remove(ctx, t, docs, now); err != nil {
		return 0, false, err
	}
	// 3. The end of a round: what is needed still is looked at in the next.
	if len(docs) == removeRuns {
		return 0, false, nil
	}
	later, err := p.store.Due(ctx, store.PartEnded, math.MaxInt64, int64(now), "\U0010ffff", 1)
	if err != nil {
		return 0, false, fmt.Errorf("read finished runs: %w", err)
	}
	if len(later) > 0 {
		next = run.Instant(later[0].Index.WakeAt)
	}
	switch {
	case t.kept > 0 && t.removed > 0: // which may have been what needed them
		next = now
	case t.kept > 0:
		next = run.Earliest(next, now.Add(removeNeeded))
	}
	t.wake, t.id, t.kept, t.removed = 0, "", 0, 0
	return next, true, nil
}

// remove removes finished runs with all that they own, each at once, but for those that are needed.
func (p *Plane) remove(ctx context.Context, t *retention, docs []store.Doc, now run.Instant) error {
	var ids []string
	var units []store.Unit
	for i := range docs {
		d := &docs[i]
		needed, err := p.needed(ctx, d, now)
		if err != nil {
			return err
		}
		if needed {
			t.kept++
			continue
		}
		if p.store.Exclusive() { // else the driver parts it, and looks for all runs of the bite at once
			if err := p.clearOut(ctx, d.ID); err != nil {
				return err
			}
		}
		ids = append(ids, d.ID)
		units = append(units, store.Unit{
			Token: p.newID(), Purge: []string{d.ID},
			Writes: []store.Write{{Doc: store.Doc{Kind: store.KindRun, ID: d.ID}, Expect: d.Version, Delete: true}},
		})
	}
	if len(units) == 0 {
		return nil
	}
	for i, err := range p.store.Commit(ctx, units) {
		switch {
		case errors.Is(err, store.ErrConflict): // it was scored just now, or is gone
			t.kept++
		case err != nil:
			return fmt.Errorf("remove run %s: %w", ids[i], err)
		default:
			t.removed++
		}
		p.records.forget(ids[i])
	}
	return nil
}

// needed reports whether a finished run must stay although its time is over.
func (p *Plane) needed(ctx context.Context, d *store.Doc, now run.Instant) (bool, error) {
	rec, err := run.DecodeRecord(d.Body)
	if err != nil {
		p.log.WarnContext(ctx, "a finished run cannot be read, and stays", "run", d.ID, "error", err)
		return true, nil
	}
	if !rec.State.Terminal() || rec.Due == 0 || rec.Due > now {
		return true, nil // only its record says so
	}
	// 1. By the run that it is a part of.
	if rec.Parent != "" {
		switch parent, err := p.load(ctx, []string{rec.Parent}, true); {
		case err[0] == nil && !parent[0].State.Terminal():
			return true, nil
		case err[0] != nil && !isNotFound(err[0]):
			return true, err[0]
		}
	}
	// 2. By those that came of it.
	page, err := p.store.List(ctx, store.Query{By: store.ByParent, Parent: d.ID, Limit: 1})
	if err != nil || len(page.Docs) > 0 {
		return true, err
	}
	retried, err := p.ownedUntil(ctx, store.KindMisc, d.ID, func(links []store.Doc) (bool, error) {
		ids := make([]string, len(links))
		for i := range links {
			ids[i] = strings.TrimPrefix(links[i].ID, retryPrefix)
		}
		found, err := p.store.GetMany(ctx, store.KindRun, ids)
		for i := range found {
			if found[i].Version != 0 {
				return true, nil
			}
		}
		return false, err
	})
	if err != nil || retried {
		return true, err
	}
	// 3. By whoever has to find out what became of its effects.
	return p.ownedUntil(ctx, store.KindReceipt, d.ID, func(receipts []store.Doc) (bool, error) {
		for i := range receipts {
			if receipts[i].Tag == tagUnknown {
				return true, nil
			}
		}
		return false, nil
	})
}

// ownedUntil shows what a run owns of a kind, in pages, until f has found what it looks for.
func (p *Plane) ownedUntil(ctx context.Context, kind store.Kind, id string, f func([]store.Doc) (bool, error)) (bool, error) {
	const page = 32
	for after := ""; ; {
		docs, err := p.store.Owned(ctx, kind, id, after, page)
		if err != nil {
			return false, fmt.Errorf("read what run %s owns: %w", id, err)
		}
		if len(docs) == 0 {
			return false, nil
		}
		if found, err := f(docs); found || err != nil {
			return found, err
		}
		if len(docs) < page {
			return false, nil
		}
		after = docs[len(docs)-1].ID
	}
}

// clearOut deletes what a run owns beyond what one small write takes, before the run itself goes. Its history and its
// receipts go with it.
func (p *Plane) clearOut(ctx context.Context, id string) error {
	for _, k := range []struct {
		kind store.Kind
		most int // of the largest documents of the kind that one write deletes
	}{{store.KindLog, 32}, {store.KindStep, 16}, {store.KindPayload, 2}} {
		for {
			docs, err := p.store.Owned(ctx, k.kind, id, "", k.most)
			if err != nil {
				return fmt.Errorf("read what run %s owns: %w", id, err)
			}
			if len(docs) < k.most {
				break
			}
			u := store.Unit{Token: p.newID()}
			for i := range docs {
				u.Writes = append(u.Writes, store.Write{Doc: store.Doc{Kind: k.kind, ID: docs[i].ID}, Expect: store.AnyVersion, Delete: true})
			}
			if err := p.store.Commit(ctx, []store.Unit{u})[0]; err != nil {
				return fmt.Errorf("remove what run %s owns: %w", id, err)
			}
		}
	}
	return nil
}

func isNotFound(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) && refusal.Code == CodeNotFound
}
