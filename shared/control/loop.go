package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/retry"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// patientKey wakes the loop when the patience after a takeover is over.
const patientKey = "patience"

// backlogKey wakes the loop to try again to read queued runs that are in the store only.
const backlogKey = "backlog"

const (
	sharesID    = "shares"
	sharesEvery = 5 * time.Second
)

// printer words schema errors.
var printer = message.NewPrinter(language.English)

// loop runs the stages whenever something arrived or is due, and sleeps otherwise.
func (p *Plane) loop(ctx context.Context) {
	defer close(p.stopped)
	defer p.turnAway()
	poke, _ := p.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer func() {
		if p.deaf != nil {
			p.deaf()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-poke:
		case <-timer.C:
		}
		more := true
		for more && ctx.Err() == nil {
			more = p.Step(ctx, p.now())
			p.listen(ctx)
		}
		_, rest := p.Wait()
		timer.Reset(rest)
	}
}

// Wait is what the loop waits for when Step has nothing more to do: word on poke that something arrived, or the end of
// rest, when the next thing is due. It holds until the next Step.
func (p *Plane) Wait() (poke <-chan struct{}, rest time.Duration) { return p.poke, p.untilNext() }

// Step runs every stage once and reports whether there is more to do at once. It is the whole control loop; the loop
// above only decides when, by Wait.
func (p *Plane) Step(ctx context.Context, now run.Instant) (more bool) {
	// 1. Who decides.
	led := p.leads()
	if err := p.led.Step(ctx, p.cfg.Monotonic()); err != nil {
		p.log.WarnContext(ctx, "dispatcher lease", "error", err)
	}
	leads := p.leads()
	switch {
	case !leads && p.indexed: // also when the lead ended between two passes
		p.indexed = false
		p.mu.Lock()
		p.ix = newIndex(p.cfg)
		p.mu.Unlock()
	case leads && !led:
		if err := p.takeOver(ctx, now); err != nil {
			// With half of an index it would never look at the other half's runs: it tries again from the start.
			p.log.ErrorContext(ctx, "take over", "error", err)
			if err := p.led.Resign(ctx); err != nil {
				p.log.WarnContext(ctx, "dispatcher lease", "error", err)
			}
			leads, p.indexed = false, true // what there is of it goes with the next pass
		}
	}
	if !leads {
		p.commitArrivals(ctx, p.arrive.take(maxPass))
		p.stepTell(ctx)
		p.followFleet(ctx)
		p.stepGaze(ctx)
		return p.arrive.waiting() > 0
	}
	p.relay.clear() // whoever leads hears itself
	// 2. What is due: timers, silent workers, starts to confirm, the next stretch of the due index.
	p.stepHorizon(ctx, now)
	p.stepSweep(ctx, now)
	more = p.stepDue(ctx, now)
	more = p.stepReckon(ctx, now) || more
	p.stepConfirm(ctx, now)
	p.stepRemind(ctx, now)
	if !p.caughtUp(ctx) || !p.reread(ctx, now) {
		return more // nothing is placed while a slot may be taken, or a target gone, of which this process does not know
	}
	// 3. Runs that go on by their children.
	more = p.stepFamilies(ctx, now) || more
	// 4. Arrivals, queue and placement, bound in one commit.
	bindings, now, again := p.stepPlace(ctx, now)
	assigned := p.stepBind(ctx, bindings, now)
	// 5. Delivery.
	p.stepDeliver(ctx, assigned)
	p.stepShares(ctx, now)
	p.stepRetention(ctx, now)
	p.mu.Lock()
	defer p.mu.Unlock()
	return more || again || len(p.ix.reckonings.list) > 0 || p.ix.roomForBacklog() || p.arrive.waiting() > 0
}

// roomForBacklog reports whether queued runs that are in the store only can come into memory.
func (ix *index) roomForBacklog() bool { return ix.backlog && ix.queue.Len() <= ix.cfg.MaxQueue/2 }

// untilNext is how long nothing is due.
func (p *Plane) untilNext() time.Duration {
	now, mono := p.now(), p.mono()
	wait := time.Hour
	sooner := func(d time.Duration) { wait = min(wait, max(d, 0)) }
	if d, ok := p.led.Next(p.cfg.Monotonic()); ok {
		sooner(d)
	}
	if !p.leads() { // what is due is the leader's to do
		if d, ok := p.relay.next(p.cfg.Monotonic()); ok {
			sooner(d)
		}
		if p.watch.isFollowed() {
			sooner(p.gazeAt - p.cfg.Monotonic())
		}
		return wait
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if next := p.ix.timers.next(); next != 0 {
		sooner(next.Sub(now))
	}
	if len(p.ix.reckonings.list) > 0 {
		sooner(0)
	}
	if next := p.ix.leases.next(); next != 0 {
		sooner(next.Sub(mono))
	}
	if next := p.ix.reminders.next(); next != 0 {
		sooner(next.Sub(now))
	}
	if len(p.ix.confirms) > 0 {
		sooner(p.ix.confirms[0].at.Sub(now))
	}
	if p.ix.horizon != 0 && p.ix.roomForTimers() {
		sooner(max(p.ix.horizon.Add(-horizon/2).Sub(now), p.ix.lookAgain.Sub(mono)))
	}
	if len(p.ix.left) > 0 || p.declared.doubt.Load() {
		sooner(time.Second)
		return wait // a pass goes no further before these are read
	}
	if p.sharesDirty {
		sooner(sharesEvery - now.Sub(p.sharesAt))
	}
	if next := p.ix.removal.next; next != 0 {
		sooner(next.Sub(now))
	}
	return wait
}

// turnAway answers arrivals that no pass will take any more.
func (p *Plane) turnAway() {
	for _, a := range p.arrive.take(maxArrivals) {
		a.done(a, &Refusal{Code: CodeUnavailable, Detail: "the server is stopping", RetryAfter: time.Second})
	}
}

// takeOver rebuilds the index from the store: what is live, what is due, and the shares.
func (p *Plane) takeOver(ctx context.Context, now run.Instant) error {
	began, live := p.cfg.Monotonic(), 0
	// 0. What is declared: another process may have changed it.
	if err := p.loadDeclarations(ctx); err != nil {
		return err
	}
	p.records.clear()
	ix := newIndex(p.cfg)
	ix.horizon = now.Add(horizon)
	ix.kin.since = now
	if !p.store.Exclusive() {
		ix.kin.since = now.Add(kinMargin)
	}
	p.mu.Lock()
	p.ix = ix
	for _, x := range p.declared.list("") {
		ix.declared(p, x.object)
	}
	p.mu.Unlock()
	// 1. Shares first: nobody's spent share is forgotten in its favour.
	doc, err := p.store.Get(ctx, store.KindMisc, sharesID)
	switch {
	case err == nil:
		var s queue.Shares
		if err := json.Unmarshal(doc.Body, &s); err == nil {
			ix.queue.Restore(s)
		}
		p.sharesVersion = doc.Version
	case !errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("read the fair shares: %w", err)
	}
	// 2. Live attempts, by the index of their workers.
	var orphans []edit
	var untold []*run.Record
	err = p.store.Held(ctx, func(d store.Doc) error {
		r, err := p.admitStored(ctx, d)
		if err != nil {
			return err
		}
		if e, ok := p.orphan(r, now); ok {
			orphans = append(orphans, e)
		}
		if r.State == run.Assigned && p.isClaimed(r) {
			untold = append(untold, r) // perhaps nobody was told of it: doing so twice does no harm
		}
		if live++; live%store.MaxPage == 0 {
			return p.stillLeads(ctx)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read live runs: %w", err)
	}
	if err := p.stillLeads(ctx); err != nil {
		return err
	}
	listed := p.cfg.Monotonic()
	// 3. Everything that is due up to the horizon: queued runs are due since they were queued.
	if err := p.readDue(ctx, 0, 0, now.Add(horizon)); err != nil {
		return err
	}
	p.mu.Lock()
	if len(ix.runs) > 0 {
		ix.patient = now.Add(p.cfg.WorkerLease)
		ix.timers.set(patientKey, ix.patient)
	}
	p.mu.Unlock()
	// 4. Attempts whose executor died with the last server.
	for i, o := range p.changeAll(ctx, orphans) {
		if o.err != nil {
			p.log.WarnContext(ctx, "take an orphaned attempt back; trying again in a second", "run", orphans[i].id, "error", o.err)
			p.mu.Lock()
			ix.loseAgain(orphans[i], now)
			p.mu.Unlock()
		}
	}
	p.indexed = true
	p.log.InfoContext(ctx, "leading", "epoch", p.led.Epoch(), "live", live, "read live", (listed - began).String(), "took", (p.cfg.Monotonic() - began).String())
	p.stepDeliver(ctx, untold)
	p.wake()
	return nil
}

// stillLeads renews the lease in the middle of long work, when it is time: whoever reads for longer than a lease must not
// lose it by that. The error says that it is gone.
func (p *Plane) stillLeads(ctx context.Context) error {
	if err := p.led.Step(ctx, p.cfg.Monotonic()); err != nil {
		p.log.WarnContext(ctx, "dispatcher lease", "error", err)
	}
	if !p.leads() {
		return errors.New("the dispatcher lease was lost while the store was read")
	}
	return nil
}

// isCloud reports whether a target is a resource of Cloud Run.
func (p *Plane) isCloud(target string) bool {
	t := p.targetNamed(target)
	return t != nil && t.Runtime == fleet.RuntimeCloudRun
}

// isClaimed reports whether the run's live attempt is one that an executor claims.
func (p *Plane) isClaimed(r *run.Record) bool {
	t, x := p.targetNamed(r.Target), p.knownAgent(r)
	if t == nil || x == nil {
		return false
	}
	return isHandOver(t, x.object.(*fleet.Agent))
}

// admitStored puts a stored run into the index.
func (p *Plane) admitStored(ctx context.Context, d store.Doc) (*run.Record, error) {
	r, err := run.DecodeRecord(d.Body)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", d.ID, err)
	}
	if r.Kind == run.KindAgent {
		var refusal *Refusal
		if _, err := p.agentAt(ctx, r.Agent, r.Revision); err != nil && !errors.As(err, &refusal) {
			return nil, err
		}
	}
	p.records.put(r)
	p.mu.Lock()
	p.ix.set(p, r, false)
	if t := p.ix.runs[r.ID]; t != nil && t.live != nil {
		t.live.steps = -1 // who led before may have recorded some
	}
	p.mu.Unlock()
	return r, nil
}

// expect enters a worker that is known only by what it holds. It has the time of a lease to show itself; with p.mu held.
func (p *Plane) expect(l *live, now run.Instant) {
	w := &worker{id: l.worker, target: l.target, node: l.node, seen: now, alive: p.mono(), holds: make(map[string]int)}
	p.ix.workers[w.id] = w
	p.ix.leases.set(w.id, w.alive.Add(p.cfg.WorkerLease))
}

// orphan is the edit for an attempt whose executor lived inside the last server: a process of a local target, which
// that server's end has ended too. Attempts of other workers go on; their heartbeats say so.
func (p *Plane) orphan(r *run.Record, now run.Instant) (edit, bool) {
	t := p.targetNamed(r.Target)
	if t != nil && (t.Runtime == fleet.RuntimePoll || t.Runtime == fleet.RuntimeCloudRun) {
		p.mu.Lock()
		defer p.mu.Unlock()
		t := p.ix.runs[r.ID]
		if t == nil || t.live == nil {
			return edit{}, false
		}
		l := t.live
		if l.worker == "" && p.isCloud(l.target) && !p.isClaimed(r) {
			// A request of the last server carried it, and its connection is gone. A handler that goes on without one says
			// that it lives, as a worker would of which it is all that there is.
			l.worker = runtime.AttemptID(r.ID, r.Attempt)
		}
		if l.worker == "" {
			return edit{}, false
		}
		if p.ix.workers[l.worker] == nil { // its target is not declared as one that is polled any more
			p.expect(l, now)
		}
		if l.unsure = l.started == 0; !l.unsure {
			p.ix.workers[l.worker].holds[r.ID] = r.Attempt
		}
		return edit{}, false
	}
	return edit{id: r.ID, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		var d draft
		if !rec.Live() || rec.Attempt != r.Attempt {
			return d, nil
		}
		const why = "the server that executed it ended"
		switch {
		case rec.State == run.Canceling:
			return d, p.end(ctx, &d, rec, run.Event{Type: run.EvCanceled, At: now, Attempt: rec.Attempt, Reason: rec.Reason, Class: run.ClassCanceled, Message: why, Sure: true})
		case rec.Stop != nil:
			return d, p.failed(ctx, &d, rec, retry.Failure{Class: rec.Stop.Class, Message: why}, nil, true, now)
		}
		return d, p.released(ctx, &d, rec, why, nil, true, now)
	}}, true
}

// stepShares keeps the fair shares, at most every five seconds and only after dispatches.
func (p *Plane) stepShares(ctx context.Context, now run.Instant) {
	p.mu.Lock()
	if !p.sharesDirty || now.Sub(p.sharesAt) < sharesEvery {
		p.mu.Unlock()
		return
	}
	shares := p.ix.queue.Shares()
	p.sharesDirty, p.sharesAt = false, now
	p.mu.Unlock()
	body, err := json.Marshal(shares)
	if err != nil {
		p.log.WarnContext(ctx, "encode the fair shares", "error", err)
		return
	}
	p.sharesVersion++
	err = p.store.Commit(ctx, []store.Unit{{Token: p.newID(), Writes: []store.Write{{
		Expect: store.AnyVersion, Doc: store.Doc{Kind: store.KindMisc, ID: sharesID, Version: p.sharesVersion, Body: body},
	}}}})[0]
	if err != nil && !errors.Is(err, store.ErrClosed) {
		p.log.WarnContext(ctx, "keep the fair shares", "error", err)
	}
}

func sortSteps(steps []runtime.Step) {
	slices.SortFunc(steps, func(a, b runtime.Step) int {
		if a.Seq != b.Seq {
			return a.Seq - b.Seq
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// startFailure is a start that did not come about.
func startFailure(why string) retry.Failure {
	return retry.Failure{Class: run.ClassInfrastructure, Code: string(run.StartFailed), Message: why}
}
