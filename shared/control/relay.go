package control

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Relay: what the processes that do not lead tell the one that does. They write facts, and it must look at them: a run
// that was submitted, a report that ended an attempt, a worker that lives. What they tell is a hint, never the truth: the
// leader reads the store. A hint that is lost is made up for by the tick, by the next heartbeat, or by the run's own
// wake-up.

// notice is one message of the relay.
type notice struct {
	Runs  []string     `json:"runs,omitempty"`  // have a new record
	Beats []WorkerBeat `json:"beats,omitempty"` // of workers, without what they save
	Alive []string     `json:"alive,omitempty"` // attempts whose handlers gave a sign of life
	Fleet bool         `json:"fleet,omitempty"` // something was declared
	Tick  bool         `json:"tick,omitempty"`  // look at what is due
}

// Bounds of the relay.
const (
	maxTold       = 20_000 // runs, and as many signs of life, that wait to be told; over it the leader looks at everything
	noticeRuns    = 2000   // in one message, and as many signs of life
	noticeBeats   = 50
	tellAgain     = time.Second
	maxNoticeBody = bus.MaxData
	takersOfFacts = 4
	// sweepBack is how far back a tick looks for runs that nobody told of. A hint comes within seconds or not at all, and
	// clocks of two processes differ by less.
	sweepBack = 3 * time.Minute
)

// relay collects notices until the next pass sends them.
type relay struct {
	mu    sync.Mutex
	runs  map[string]struct{}
	beats map[string]WorkerBeat // the newest of each worker
	alive map[string]struct{}
	fleet bool
	tick  bool
	after time.Duration // not before then, on the monotonic clock: the bus failed
}

func (r *relay) empty() bool {
	return len(r.runs)+len(r.beats)+len(r.alive) == 0 && !r.fleet && !r.tick
}

// relays reports whether this process has somebody to tell.
func (p *Plane) relays() bool { return p.cfg.Bus != nil && !p.store.Exclusive() && !p.leads() }

// tell adds to what the leader is told next.
func (p *Plane) tell(add func(*relay)) {
	if !p.relays() {
		return
	}
	r := &p.relay
	r.mu.Lock()
	add(r)
	if len(r.runs) > maxTold || len(r.alive) > maxTold || len(r.beats) > maxWorkers {
		// The bus is away for long: the leader finds by itself what changed, and workers say again that they live.
		r.runs, r.alive, r.beats, r.tick = nil, nil, nil, true
	}
	r.mu.Unlock()
	p.wake()
}

func (p *Plane) tellRun(id string) {
	p.tell(func(r *relay) {
		if r.runs == nil {
			r.runs = make(map[string]struct{})
		}
		r.runs[id] = struct{}{}
	})
}

func (p *Plane) tellAlive(attempt string) {
	p.tell(func(r *relay) {
		if r.alive == nil {
			r.alive = make(map[string]struct{})
		}
		r.alive[attempt] = struct{}{}
	})
}

func (p *Plane) tellBeat(b WorkerBeat) {
	b.Sessions = nil
	p.tell(func(r *relay) {
		if r.beats == nil {
			r.beats = make(map[string]WorkerBeat)
		}
		r.beats[b.Worker] = b
	})
}

func (p *Plane) tellFleet() { p.tell(func(r *relay) { r.fleet = true }) }

// Tick looks at what is due and may have been missed: here where this process leads, else by the one that does. Ticks
// that come early, late or twice do no harm.
func (p *Plane) Tick(context.Context) (leads bool) {
	if p.leads() {
		p.mu.Lock()
		p.ix.sweep = true
		p.mu.Unlock()
		p.wake()
		return true
	}
	p.tell(func(r *relay) { r.tick = true })
	p.wake() // perhaps nobody leads: the loop looks
	return false
}

// stepTell sends what the leader is to be told.
func (p *Plane) stepTell(ctx context.Context) {
	if !p.relays() {
		p.relay.clear() // whoever leads reads the store itself
		return
	}
	messages, all := p.relay.take(p.cfg.Monotonic())
	if len(messages) == 0 {
		return
	}
	for i, err := range p.cfg.Bus.Publish(ctx, bus.Control, messages) {
		if err != nil {
			p.log.WarnContext(ctx, "tell the process that leads; trying again in a second", "error", err)
			p.relay.putBack(all[i], p.cfg.Monotonic()+tellAgain)
		}
	}
}

func (r *relay) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs, r.beats, r.alive, r.fleet, r.tick, r.after = nil, nil, nil, false, false, 0
}

// next is how long until there is something to send; false for nothing.
func (r *relay) next(mono time.Duration) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.after-mono, 0), !r.empty()
}

// take makes messages of what waits.
func (r *relay) take(mono time.Duration) (messages []bus.Message, notices []notice) {
	r.mu.Lock()
	if r.empty() || mono < r.after {
		r.mu.Unlock()
		return nil, nil
	}
	first := notice{Fleet: r.fleet, Tick: r.tick}
	runs, alive := slices.Sorted(maps.Keys(r.runs)), slices.Sorted(maps.Keys(r.alive))
	var beats []WorkerBeat
	for _, id := range slices.Sorted(maps.Keys(r.beats)) {
		beats = append(beats, r.beats[id])
	}
	r.runs, r.beats, r.alive, r.fleet, r.tick, r.after = nil, nil, nil, false, false, 0
	r.mu.Unlock()
	for n := first; len(messages) < bus.MaxBatch; n = (notice{}) {
		n.Runs, runs = cut(runs, noticeRuns)
		n.Alive, alive = cut(alive, noticeRuns)
		n.Beats, beats = cut(beats, noticeBeats)
		body, err := json.Marshal(n)
		if err != nil || len(body) > maxNoticeBody {
			n, body = notice{Tick: true}, []byte(`{"tick":true}`) // cannot be: names and numbers
		}
		messages, notices = append(messages, bus.Message{Data: body}), append(notices, n)
		if len(runs)+len(alive)+len(beats) == 0 {
			break
		}
	}
	return messages, notices
}

func cut[T any](list []T, n int) (head, rest []T) {
	n = min(n, len(list))
	return list[:n:n], list[n:]
}

// putBack keeps what was not sent; newer word of a worker stands.
func (r *relay) putBack(n notice, until time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range n.Runs {
		if r.runs == nil {
			r.runs = make(map[string]struct{})
		}
		r.runs[id] = struct{}{}
	}
	// Signs of life are old by then: workers and handlers give new ones.
	r.fleet, r.tick, r.after = r.fleet || n.Fleet, r.tick || n.Tick, until
}

// errNotLeader gives a notice back: the bus hands it to the process that leads, once that one asks.
var errNotLeader = errors.New("this process does not lead")

// Take takes a notice. Any process may be handed one; only the one that leads can use it.
func (p *Plane) Take(_ context.Context, data []byte) error {
	if !p.leads() {
		return errNotLeader
	}
	var n notice
	if err := json.Unmarshal(data, &n); err != nil {
		p.log.Warn("a notice that is none is dropped", "bytes", len(data), "error", err)
		return nil
	}
	if n.Fleet {
		p.declared.doubt.Store(true)
	}
	now := p.now()
	p.mu.Lock()
	p.ix.left = append(p.ix.left, n.Runs...)
	for i := range n.Beats {
		b := &n.Beats[i]
		if _, err := p.beatHeard(b, now); err != nil {
			p.log.Warn("a heartbeat that another process passed on", "worker", b.Worker, "error", err)
		}
	}
	for _, id := range n.Alive {
		if runID, attempt, err := runtime.ParseAttemptID(id); err == nil {
			p.ix.alive(runID, attempt, now, p.mono())
		}
	}
	p.ix.sweep = p.ix.sweep || n.Tick
	p.mu.Unlock()
	p.wake()
	return nil
}

// alive notes a handler's sign of life; with Plane.mu held.
func (ix *index) alive(runID string, n int, now, mono run.Instant) {
	t := ix.runs[runID]
	if t == nil || t.live == nil || t.live.n != n {
		return
	}
	t.live.beat = now
	if w := ix.workers[t.live.worker]; w != nil {
		w.seen, w.alive = now, mono
	}
}

// listen takes notices as long as this process leads. The loop calls it after every pass.
func (p *Plane) listen(ctx context.Context) {
	leads := p.leads() && p.cfg.Bus != nil && !p.store.Exclusive()
	switch {
	case leads && p.deaf == nil:
		heard, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		p.deaf = func() {
			cancel()
			<-done
		}
		go func() {
			defer close(done)
			receiver := bus.Receiver{Slots: takersOfFacts, Handle: func(ctx context.Context, d *bus.Delivery) error { return p.Take(ctx, d.Data) }}
			if err := p.cfg.Bus.Receive(heard, bus.Control, receiver); err != nil {
				p.log.Error("what other processes tell is not heard any more", "error", err)
			}
		}()
	case !leads && p.deaf != nil:
		p.deaf()
		p.deaf = nil
	}
}

// stepSweep looks at what became due lately and is not known here: runs of which nobody told.
func (p *Plane) stepSweep(ctx context.Context, now run.Instant) {
	p.mu.Lock()
	due := p.ix.sweep
	p.ix.sweep = false
	until := min(now, p.ix.horizon)
	p.mu.Unlock()
	if !due {
		return
	}
	from := now.Add(-sweepBack)
	for _, part := range []store.Part{store.PartIdle, store.PartHeld} { // a run that was begun elsewhere is held from the start
		wake, id := int64(from), "\xff"
		for {
			docs, err := p.store.Due(ctx, part, int64(until), wake, id, store.MaxPage)
			if err != nil {
				p.log.WarnContext(ctx, "look for what is due; the next tick does again", "error", err)
				return
			}
			p.mu.Lock()
			for _, d := range docs {
				wake, id = d.Index.WakeAt, d.ID
				if t := p.ix.runs[d.ID]; t == nil || t.seq < d.Version {
					p.ix.left = append(p.ix.left, d.ID)
				}
			}
			p.mu.Unlock()
			if len(docs) < store.MaxPage {
				break
			}
		}
	}
	p.sweepFamilies(ctx)
	p.wake()
}

// stepGaze looks, in a process that does not lead, at the runs that somebody follows here: what others write to them is
// told to nobody. One read for all of them, at a pace.
func (p *Plane) stepGaze(ctx context.Context) {
	mono := p.cfg.Monotonic()
	if p.leads() || p.store.Exclusive() || mono < p.gazeAt {
		return
	}
	p.gazeAt = mono + gazeEvery
	p.watch.tell(Change{}) // whoever follows all runs reads them again
	ids := p.watch.followed(store.MaxPage)
	if len(ids) == 0 {
		p.seen = nil
		return
	}
	docs, err := p.store.GetMany(ctx, store.KindRun, ids)
	if err != nil {
		p.log.WarnContext(ctx, "look at runs that are followed", "runs", len(ids), "error", err)
		return
	}
	seen := make(map[string]int64, len(docs))
	for i, d := range docs {
		seen[ids[i]] = d.Version
		if was, known := p.seen[ids[i]]; !known || was != d.Version {
			p.watch.signal(ids[i])
		}
	}
	p.seen = seen
}

// gazeEvery is the pace of looking at what others write.
const gazeEvery = time.Second

// followFleet brings what is declared in line with what the leader has, where this process does not lead.
func (p *Plane) followFleet(ctx context.Context) {
	theirs := p.led.Leader().Fleet
	if p.leads() || theirs == 0 || theirs == p.fleetSeen {
		return
	}
	if theirs == p.declared.fingerprint() {
		p.fleetSeen = theirs
		return
	}
	if err := p.loadDeclarations(ctx); err != nil {
		p.log.WarnContext(ctx, "read what is declared", "error", err)
		return
	}
	p.fleetSeen = theirs // whatever is there now is newer: the leader hears of it
}

// meetAll lets the leader meet the attempts of which it is told before it has heard that another process has begun them:
// to its index they would be over.
func (p *Plane) meetAll(ctx context.Context, reports []runtime.Report) {
	if p.store.Exclusive() || !p.leads() {
		return
	}
	var ids []string
	p.mu.Lock()
	for i := range reports {
		if r := &reports[i]; !p.ix.hasMet(r.Run, r.N) && !slices.Contains(ids, r.Run) {
			ids = append(ids, r.Run)
		}
	}
	p.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	records, errs := p.load(ctx, ids, true)
	for i, r := range records {
		if errs[i] == nil {
			p.meet(ctx, r)
		}
	}
}

// hasMet reports whether the index knows of a run's attempt, or of a later one.
func (ix *index) hasMet(id string, n int) bool {
	t := ix.runs[id]
	return t != nil && t.live != nil && t.live.n >= n
}

// meet takes a record that was just read into the leader's index, if an attempt is executed of which the index does not
// know. What was only assigned is the loop's to hand over.
func (p *Plane) meet(ctx context.Context, r *run.Record) {
	if p.store.Exclusive() || !p.leads() || !r.Live() || r.State == run.Assigned {
		return
	}
	p.mu.Lock()
	met := p.ix.hasMet(r.ID, r.Attempt)
	p.mu.Unlock()
	if met {
		return
	}
	if _, err := p.agentAt(ctx, r.Agent, r.Revision); err != nil {
		return // the loop meets it, and says what is wrong
	}
	known := p.knownOf([]string{r.ID})
	p.mu.Lock()
	_, next := p.ix.set(p, r, false)
	p.mu.Unlock()
	p.follow(ctx, r.ID, next)
	p.heard(r, known[r.ID])
}
