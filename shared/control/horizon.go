package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Wake-ups are in memory up to a horizon, and no more than a bound of them: that of a run which is in memory anyway has
// its place there, and does not count. What is due later is in the store alone and is read in time. Where more is due
// soon than the bound, the horizon is nearer.

// asleep counts the wake-ups of runs that are not in memory but for them.
func (ix *index) asleep() int { return max(ix.timers.Len()-len(ix.runs)-len(ix.standing), 0) }

// roomForTimers reports whether the next stretch of wake-ups can be read.
func (ix *index) roomForTimers() bool { return ix.asleep() <= ix.cfg.MaxTimers/2 }

// cut brings the horizon nearer and drops what lies behind it.
func (ix *index) cut(to run.Instant) {
	ix.horizon = to
	ix.timers.drop(func(t timer) bool {
		_, stands := ix.standing[t.key]
		return t.when > to && ix.runs[t.key] == nil && !stands && t.key != patientKey && t.key != backlogKey && t.key != kinWakeKey
	})
}

// trim cuts to half of the bound once it is passed. What is due already stays: it is about to be handled.
func (ix *index) trim(now run.Instant) {
	if ix.asleep() <= ix.cfg.MaxTimers {
		return
	}
	whens := make([]run.Instant, 0, ix.timers.Len())
	for _, t := range ix.timers.heap {
		if _, stands := ix.standing[t.key]; ix.runs[t.key] == nil && !stands {
			whens = append(whens, t.when)
		}
	}
	slices.Sort(whens)
	if len(whens) == 0 {
		return
	}
	if to := whens[min(ix.cfg.MaxTimers/2, len(whens)-1)] - 1; to > now && to < ix.horizon {
		ix.cut(to)
	}
}

// readDue enters the runs whose wake-up lies in (from, until], or in a shorter stretch where those are too many. Of what
// lies up to known only queued runs are not in memory: where no more of them find room, the rest is passed over.
func (p *Plane) readDue(ctx context.Context, from, known, until run.Instant) error {
	p.mu.Lock()
	p.ix.horizon = until
	p.mu.Unlock()
	wake, id := begin(from)
	for more := true; more; {
		docs, err := p.store.Due(ctx, store.PartIdle, int64(until), wake, id, store.MaxPage)
		if err != nil {
			return fmt.Errorf("read what is due: %w", err)
		}
		for _, d := range docs {
			wake, id = d.Index.WakeAt, d.ID
			if r := p.records.get(d.ID); r != nil && r.Seq >= d.Version && p.knows(d.ID) {
				continue
			}
			if _, err := p.admitStored(ctx, d); err != nil {
				return err
			}
		}
		if err := p.stillLeads(ctx); err != nil {
			return err
		}
		if wake < int64(known) && p.crowded() {
			wake, id = int64(known), "\xff"
			continue
		}
		more = len(docs) == store.MaxPage
		// All that is due at one instant is read, however many they are: the next stretch begins behind it.
		p.mu.Lock()
		if last := run.Instant(wake) - 1; more && last > from && p.ix.asleep() > p.ix.cfg.MaxTimers {
			p.ix.cut(last)
			until, more = last, false
		}
		p.mu.Unlock()
	}
	return nil
}

// begin is where the reading of what is due after an instant begins.
func begin(from run.Instant) (wake int64, id string) {
	if from > 0 {
		id = "\xff"
	}
	return int64(from), id
}

// crowded reports whether a queued run found no room in memory.
func (p *Plane) crowded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ix.backlog
}

func (p *Plane) knows(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, timed := p.ix.timers.at[id]
	return timed || p.ix.runs[id] != nil
}

// stepHorizon reads the next stretch of wake-ups when half of the last one has passed.
func (p *Plane) stepHorizon(ctx context.Context, now run.Instant) {
	p.mu.Lock()
	p.ix.trim(now)
	was := p.ix.horizon
	from, room := was, p.ix.roomForTimers()
	if p.ix.roomForBacklog() {
		// There is room again for queued runs that wait in the store: they are due since they were queued.
		p.ix.backlog, from = false, 0
	}
	p.mu.Unlock()
	if from != 0 && (!room || from.Sub(now) > horizon/2 || p.mono() < p.ix.lookAgain) {
		return
	}
	if err := p.readDue(ctx, from, was, now.Add(horizon)); err != nil {
		p.log.WarnContext(ctx, "read what is due next", "error", err)
		p.mu.Lock()
		p.ix.horizon = was // what lies between is still to be read
		p.ix.lookAgain = p.mono().Add(time.Second)
		if from == 0 {
			p.ix.timers.set(backlogKey, now.Add(time.Second))
		}
		p.mu.Unlock()
	}
}
