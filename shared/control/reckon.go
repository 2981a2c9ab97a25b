package control

import (
	"context"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Reckoning: a run's time stands still while it waits for people alone: while it waits at a gate, or for runs that it
// called of which one at least waits for people alone and none that has not ended does anything else. Nothing is written
// to the runs above when somebody is asked or answers. Each record says in which time its own run waited for people; how
// much of a wait for runs that was is reckoned from theirs: when the wait ends, for then they are read anyway, or when
// the run's deadline comes before. The answer follows from what is stored and the instant as of which it is asked for, so
// that whoever leads finds the same.

// Bounds of reckoning.
const (
	maxReckoned   = 2000 // runs that one pass reads for it
	reckonPage    = 500  // runs that one read gives
	maxReckonEnds = 5000 // runs that are read below children which ended in the middle of a wait of theirs
	stillLookMin  = time.Minute
	stillLookMax  = time.Hour
)

// reckonings are waits that are being reckoned because the deadline of their run has come. Guarded by Plane.mu.
type reckonings struct {
	list []*reckoning
	of   map[string]bool // by run
	// still are runs whose time stood still when that was last reckoned, or of which that is being found out: word of what
	// goes on below them has it reckoned again.
	still map[string]struct{}
}

func newReckonings() reckonings {
	return reckonings{of: make(map[string]bool), still: make(map[string]struct{})}
}

// reckoning goes through the runs that a run waits for, and where these wait for others through those, in pages.
type reckoning struct {
	id    string
	at    run.Instant
	wait  run.Wait // that is reckoned
	stack []*reckonLevel

	found  run.Spans
	goesOn bool // something below is at work
}

// reckonLevel is the runs that one run waits for.
type reckonLevel struct {
	of   *run.Record
	into *run.Reckoning
	docs []store.Doc
	next store.Query
	over bool // there is no further page
}

func newReckoning(r *run.Record, at run.Instant) *reckoning {
	k := &reckoning{id: r.ID, at: at, wait: *r.ForRuns}
	k.push(r)
	return k
}

func (k *reckoning) push(r *run.Record) {
	l := &reckonLevel{of: r, into: run.NewReckoning(r.OpenWait(k.at)), next: store.Query{By: store.ByParent, Parent: r.ID, Oldest: true, Limit: reckonPage}}
	if r.Kind != run.KindAgent { // the runs of a stage are made when it begins
		l.next.Since = max(int64(r.ForRuns.Began.Add(-kinMargin)), 0)
	}
	k.stack = append(k.stack, l)
}

// step reads up to so many runs, or one page, and reports whether all is found.
func (k *reckoning) step(ctx context.Context, st store.Store, most int) (read int, over bool, err error) {
	for len(k.stack) > 0 {
		l := k.stack[len(k.stack)-1]
		switch {
		case len(l.docs) > 0:
			// 1. One run after another; what those did that one waits for comes first.
			doc := l.docs[0]
			l.docs = l.docs[1:]
			r := new(run.Record)
			if err := run.DecodeBrief(doc.Body, r); err != nil {
				return read, false, err
			}
			if step := l.of.ForRuns.Step; step != "" && r.Stage != step {
				continue
			}
			if below(r, l.into.Within()) && len(k.stack) <= run.MaxDepth {
				k.push(r)
				continue
			}
			l.into.Add(r, nil, false)
		case l.over || l.into.Busy():
			// 2. All that one run waits for is known.
			k.stack = k.stack[:len(k.stack)-1]
			if len(k.stack) == 0 {
				k.found, k.goesOn = l.into.Result(), l.into.GoesOn()
				break
			}
			k.stack[len(k.stack)-1].into.Add(l.of, l.into.Result(), !l.into.GoesOn())
		case read >= most:
			return read, false, nil
		default:
			// 3. The next page.
			page, err := st.List(ctx, l.next)
			if err != nil {
				return read, false, fmt.Errorf("read what run %s waits for: %w", l.of.ID, err)
			}
			read += max(len(page.Docs), 1)
			l.docs, l.next.After, l.over = page.Docs, page.Next, page.Next == ""
		}
	}
	return read, true, nil
}

// below reports whether a run waited for others, in some of a stretch, and that is not reckoned.
func below(r *run.Record, within run.Span) bool {
	w := r.OpenWait(within.To)
	return w.From < w.To && w.To > within.From
}

// meeting reckons a wait whose runs are read because it ends.
type meeting struct {
	into    *run.Reckoning // nil for no wait
	waiting []*run.Record  // children that were in the middle of a wait of their own
}

func meetingOf(r *run.Record, at run.Instant) *meeting {
	m := new(meeting)
	if s := r.OpenWait(at); s.From < s.To {
		m.into = run.NewReckoning(s)
	}
	return m
}

func (m *meeting) meet(r *run.Record) {
	switch {
	case m.into == nil:
	case below(r, m.into.Within()):
		m.waiting = append(m.waiting, r)
	default:
		m.into.Add(r, nil, false)
	}
}

// found is in which time the run waited for people alone. Of what children did that ended in the middle of a wait it
// reads a bounded part, and takes the rest for work.
func (m *meeting) found(ctx context.Context, p *Plane) (run.Spans, error) {
	if m.into == nil {
		return nil, nil
	}
	left := maxReckonEnds
	for _, r := range m.waiting {
		k := newReckoning(r, m.into.Within().To)
		for over := false; !over && left > 0; {
			read, all, err := k.step(ctx, p.store, left)
			if err != nil {
				return nil, err
			}
			left, over = left-read, all
		}
		m.into.Add(r, k.found, !k.goesOn)
	}
	return m.into.Result(), nil
}

// credit lets an event that ends or reckons a run's wait say how much of that was waiting for people alone.
func (p *Plane) credit(ctx context.Context, r *run.Record, found run.Spans, e *run.Event) {
	found = found.Clip(r.OpenWait(e.At))
	if len(found) == 0 {
		return
	}
	if e.ForPeople = found.Longest(run.MaxSpans); r.Deadline != 0 && !p.countsWaiting(ctx, r) {
		e.Deadline = r.MovedDeadline(min(found.Total(), maxLeft*time.Millisecond))
	}
}

// mayMove reports whether the deadline of a run may be later than its record says, because of a wait that is not
// reckoned yet.
func (p *Plane) mayMove(ctx context.Context, r *run.Record, now run.Instant) bool {
	w := r.OpenWait(now)
	return w.From < w.To && r.Deadline != 0 && (r.Latest == 0 || r.Latest > r.Deadline && r.Latest > now) && !p.countsWaiting(ctx, r)
}

// reckonLater has a run's wait reckoned as of now.
func (p *Plane) reckonLater(r *run.Record, now run.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ks := &p.ix.reckonings
	if ks.of[r.ID] {
		return
	}
	ks.of[r.ID] = true
	ks.list = append(ks.list, newReckoning(r, now))
	if r.ForRuns.To == 0 {
		ks.still[r.ID] = struct{}{}
	}
}

// stepReckon goes on with what is being reckoned and reports whether there is more.
func (p *Plane) stepReckon(ctx context.Context, now run.Instant) (more bool) {
	for left := maxReckoned; ctx.Err() == nil; {
		p.mu.Lock()
		ks := &p.ix.reckonings
		if len(ks.list) == 0 || left <= 0 {
			more = len(ks.list) > 0
			p.mu.Unlock()
			return more
		}
		k := ks.list[0]
		p.mu.Unlock()
		// 1. So much of the first.
		read, over, err := k.step(ctx, p.store, left)
		left -= max(read, 1)
		if err == nil && !over {
			continue
		}
		// 2. What follows for its run.
		if err == nil {
			err = p.reckoned(ctx, k)
		}
		p.mu.Lock()
		ks = &p.ix.reckonings
		ks.list = ks.list[1:]
		delete(ks.of, k.id)
		if err != nil && !isNotFound(err) && ctx.Err() == nil {
			p.ix.timers.set(k.id, now.Add(lookAgainIn))
			p.log.WarnContext(ctx, "reckon how long a run waited for people; trying again in a second", "run", k.id, "error", err)
		}
		p.mu.Unlock()
	}
	return false
}

// reckoned moves the deadline of a run, or ends it.
func (p *Plane) reckoned(ctx context.Context, k *reckoning) error {
	still := false
	o := p.change(ctx, edit{id: k.id, decide: func(ctx context.Context, r *run.Record, now run.Instant) (draft, error) {
		var d draft
		still = false
		w := r.ForRuns
		if w == nil || w.From != k.wait.From || w.Began != k.wait.Began || w.To != k.wait.To || r.State == run.Canceling || r.State == run.Compensating || r.State.Terminal() {
			return d, nil // it has gone on
		}
		late := r.Deadline != 0 && r.Deadline <= now
		e := run.Event{Type: run.EvDeadlineMoved, At: now, Due: r.OpenWait(k.at).To}
		p.credit(ctx, r, k.found, &e)
		last := len(e.ForPeople) - 1
		stands := w.To == 0 && !k.goesOn && last >= 0 && e.ForPeople[last].To == k.at && (r.Latest == 0 || r.Latest > now)
		switch {
		case !late && w.To == 0: // it has moved meanwhile
		case stands && last == 0 && e.ForPeople[0].From == w.From && w.From != w.Began:
			still = true // as its record says already
		case e.Deadline != 0 && (stands || !late || e.Deadline > now):
			e.Message = movedText(&e, stands)
			d.events = append(d.events, e)
		case late:
			return p.overdue(ctx, r, now)
		}
		return d, nil
	}})
	if o.err != nil || o.rec == nil {
		return o.err
	}
	// A run whose time stands still is looked at again when something goes on below it. The net, for word that is lost, is
	// wider the longer it stands.
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, quiet := p.ix.reckonings.still[k.id]; still && quiet {
		wide := min(max(k.at.Sub(k.wait.From)/4, stillLookMin), stillLookMax)
		p.ix.timers.set(k.id, run.Earliest(k.at.Add(wide), o.rec.Latest))
		return nil
	}
	// One that is late all the same was met by something else meanwhile: it is looked at once more.
	now, r := p.now(), o.rec
	if _, set := p.ix.timers.at[r.ID]; !set && r.Deadline != 0 && r.Deadline <= now && !r.State.Terminal() && r.State != run.Canceling && r.State != run.Compensating {
		p.ix.timers.set(r.ID, now.Add(lookAgainIn))
		return nil
	}
	p.ix.rearm(r, now)
	return nil
}

func movedText(e *run.Event, stands bool) string {
	text := fmt.Sprintf("it waited for people alone for %s: its deadline moves by that time", e.ForPeople.Total())
	if stands {
		text += ", and stands still as long as nothing else goes on below it"
	}
	return text
}

// overdue is what happens to a run at its deadline. A running attempt is told to end first, and keeps its slot until it
// did.
func (p *Plane) overdue(ctx context.Context, rec *run.Record, now run.Instant) (d draft, err error) {
	if rec.State == run.Running && rec.Kind == run.KindAgent {
		p.runningDue(&d, rec, false, now)
		return d, nil
	}
	e := run.Event{
		Type: run.EvFailed, At: now, Attempt: rec.Attempt, Reason: run.DeadlineExceeded, Class: run.ClassTimeout,
		Message: fmt.Sprintf("the run was %s at its deadline", rec.State),
	}
	if rec.Live() { // what an attempt spent that has ended is on record, also where the index does not know of its end yet
		e.Usage = p.usageSoFar(rec.ID, rec.Attempt)
	}
	err = p.end(ctx, &d, rec, e)
	return d, err
}

// stirred has the wait of every run reckoned again whose time stood still and below which one goes on. With Plane.mu held.
func (ix *index) stirred(p *Plane, r *run.Record) {
	ks := &ix.reckonings
	if r.ForRuns == nil || r.ForRuns.To != 0 {
		delete(ks.still, r.ID)
	}
	if len(ks.still) == 0 || rests(r) {
		return
	}
	for id, n := r.Parent, 0; id != "" && n < run.MaxDepth; n++ {
		if _, stood := ks.still[id]; stood {
			delete(ks.still, id)
			ix.timers.set(id, r.UpdatedAt)
		}
		above := ""
		if k := ix.kin.of[id]; k != nil && k.seen {
			above = k.parent
		} else if known := p.records.get(id); known != nil {
			above = known.Parent
		}
		id = above
	}
}

// rests reports whether a run has ended, or waits for people or for runs that it called.
func rests(r *run.Record) bool {
	switch {
	case r.State == run.Waiting:
		return r.Park.On == run.OnGate || r.Park.On == run.OnChildren
	case r.Kind != run.KindAgent && r.State == run.Running:
		return true
	}
	return r.State.Terminal()
}

// clockStory tells of a deadline that has moved, or stands still.
func (p *Plane) clockStory(rec *run.Record) (s []string) {
	if rec.State.Terminal() || rec.Deadline == 0 {
		return nil
	}
	if rec.Moved > 0 {
		s = append(s, fmt.Sprintf("Its deadline has moved by %s, to %s: for so long it waited for people alone, by itself or by way of the runs that it called.",
			time.Duration(rec.Moved)*time.Millisecond, rec.Deadline.Time().Format("2006-01-02 15:04:05")))
	}
	if w := rec.ForRuns; w != nil && w.To == 0 && rec.Deadline <= p.now() {
		s = append(s, "Its time stands still: what it waits for is people alone. It goes on when one of the runs below it does.")
	}
	return s
}
