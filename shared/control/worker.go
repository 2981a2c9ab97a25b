package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Bounds on what workers may ask.
const (
	maxWorkers   = 10_000
	maxSlots     = 1000
	maxAgentsOf  = 200
	maxLeaseWait = 30 * time.Second
)

// openTarget is the target of workers that name none: any program that connects can take runs there.
const openTarget = "workers"

// worker is a process that pulls leases.
type worker struct {
	id       string
	target   string
	node     string // the World's node whose attempts it takes: its own, or that of a local target
	agents   []string
	slots    int // of its own for runs to be placed in; 0 for a worker that brings its runs, or is not known by more than them
	draining bool
	seen     run.Instant       // for people
	alive    run.Instant       // last sign of life, on the monotonic clock
	holds    map[string]int    // runs handed to it, with the attempt's number
	turns    map[string]string // sessions whose turns it took: name to key, "" where two tenants use the name
}

// outbox is what is assigned to a node and waits to be fetched, and who waits to fetch it.
type outbox struct {
	ready []string // runs, oldest first
	polls []*poll
}

type poll struct {
	worker *worker
	agents []string
	wake   chan struct{} // closed once
	over   bool          // the worker was lost, or drains
}

func (ix *index) box(node string) *outbox {
	b := ix.boxes[node]
	if b == nil {
		b = new(outbox)
		ix.boxes[node] = b
	}
	return b
}

func (b *outbox) remove(id string) {
	if i := slices.Index(b.ready, id); i >= 0 {
		b.ready = slices.Delete(b.ready, i, i+1)
	}
}

// asNode is the worker as a place of its own: it has its target's properties and its own slots.
func (w *worker) asNode(t *fleet.Target) placement.Node {
	agents := make(map[string]bool, len(w.agents))
	for _, a := range w.agents {
		agents[a] = true
	}
	return placement.Node{Target: t, Worker: w.id, Agents: agents, Slots: w.slots, Draining: w.draining}
}

// targetNamed is a declared target, or the one of workers that name none; nil if there is no such target.
func (p *Plane) targetNamed(name string) *fleet.Target {
	if x := p.declared.get(fleet.KindTarget, name); x != nil {
		return x.object.(*fleet.Target)
	}
	if name == openTarget {
		return p.open
	}
	return nil
}

// isHandOver reports whether attempts on the target are claimed by whoever was told of them, rather than started by a request
// that carries them or fetched from an outbox.
func isHandOver(t *fleet.Target, a *fleet.Agent) bool {
	return t.Runtime == fleet.RuntimeCloudRun && (a.Shape == fleet.Pool || a.Shape == fleet.Job)
}

// Lease hands a worker up to Max runs that are assigned to it, waiting up to Wait for the first. It registers the
// worker, which makes its slots a place where runs can go.
func (p *Plane) Lease(ctx context.Context, req LeaseRequest) (LeaseResponse, error) {
	resp := LeaseResponse{BeatEvery: p.cfg.BeatEvery}
	if err := p.checkWorker(&req); err != nil {
		return resp, err
	}
	if !p.leads() {
		return resp, notLeading("lease")
	}
	deadline := time.Now().Add(min(req.Wait, maxLeaseWait)) // of a connection, not of a run: the real clock
	for {
		// 1. Take what is there.
		now := p.now()
		p.mu.Lock()
		w, err := p.register(req.Worker, req.Target, req.Agents, req.Slots, now)
		if err != nil {
			p.mu.Unlock()
			return resp, err
		}
		resp.Drain = w.draining
		taken := p.take(w, req.Agents, req.Max, now)
		var wait *poll
		if len(taken) == 0 && !w.draining && time.Now().Before(deadline) {
			wait = &poll{worker: w, agents: req.Agents, wake: make(chan struct{})}
			b := p.ix.box(w.node)
			b.polls = append(b.polls, wait)
		}
		turn := p.ix.fleetChanged
		p.mu.Unlock()
		if turn || len(taken) > 0 {
			p.wake()
		}
		if len(taken) > 0 {
			leases, err := p.assignments(ctx, taken)
			resp.Leases = leases
			return resp, err
		}
		if wait == nil {
			return resp, nil
		}
		// 2. Or wait for it.
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-wait.wake:
		case <-timer.C:
		case <-ctx.Done():
		case <-p.stopped:
		}
		timer.Stop()
		p.mu.Lock()
		b := p.ix.box(w.node)
		b.polls = slices.DeleteFunc(b.polls, func(x *poll) bool { return x == wait })
		// A worker that was lost meanwhile may hang behind an open connection: only what it sends shows that it lives.
		over := wait.over
		p.mu.Unlock()
		if over || ctx.Err() != nil || p.Ready() != nil {
			return resp, nil
		}
	}
}

// notLeading turns a worker away from a process whose index knows no workers.
func notLeading(what string) error {
	return &Refusal{Code: CodeUnavailable, Detail: what + ": another server decides; ask again", RetryAfter: time.Second}
}

func (p *Plane) checkWorker(req *LeaseRequest) error {
	if req.Slots == 0 {
		req.Slots = req.Max
	}
	var faults []Fault
	bad := func(where, format string, args ...any) {
		faults = append(faults, Fault{where, fmt.Sprintf(format, args...)})
	}
	if !validName(req.Worker) {
		bad("worker", "want a name of 1 to %d bytes that is unique to the process", runtime.MaxName)
	}
	if len(req.Agents) == 0 || len(req.Agents) > maxAgentsOf {
		bad("agents", "want 1 to %d names of agents that the worker serves", maxAgentsOf)
	}
	if req.Max < 1 || req.Max > maxSlots {
		bad("max", "got %d, want 1 to %d", req.Max, maxSlots)
	}
	if req.Slots < 1 || req.Slots > maxSlots {
		bad("slots", "got %d, want 1 to %d", req.Slots, maxSlots)
	}
	if req.Wait < 0 {
		bad("wait", "got %s, want 0s to %s", req.Wait, maxLeaseWait)
	}
	if len(faults) > 0 {
		return &Refusal{Code: CodeInvalid, Detail: "the lease request is not valid", Faults: faults}
	}
	return nil
}

// register enters a worker or its sign of life; with p.mu held. Without slots it makes no place for runs: a known worker keeps
// what it has, and one that is new holds what it brings and nothing else.
func (p *Plane) register(id, target string, agents []string, slots int, now run.Instant) (*worker, error) {
	ix := p.ix
	w := ix.workers[id]
	switch {
	case w != nil && slots == 0:
		w.seen, w.alive = now, p.mono()
		if w.agents == nil {
			w.agents = slices.Clone(agents)
		}
		return w, nil
	case target == "" && w != nil && p.isCloud(w.target):
		target = w.target // it is known by what it has claimed there
	case target == "":
		target = openTarget
	}
	if w != nil && w.target == target && w.slots == slots && slices.Equal(w.agents, agents) {
		w.seen, w.alive = now, p.mono()
		return w, nil
	}
	// 1. Where it belongs.
	t := p.targetNamed(target)
	if t == nil {
		return nil, refuse(CodeNotFound, "worker %s: there is no target %s; declare it with runtime: poll, or name none", id, target)
	}
	if t.Runtime == fleet.RuntimeHTTP {
		return nil, refuse(CodeInvalid, "worker %s: target %s has runtime %s, whose runs are not pulled", id, target, t.Runtime)
	}
	if w == nil && len(ix.workers) >= maxWorkers {
		return nil, &Refusal{Code: CodeOverloaded, Detail: fmt.Sprintf("%d workers are connected already", maxWorkers), RetryAfter: p.cfg.WorkerLease}
	}
	// 2. A worker of a local target takes that target's runs; any other is a place of its own.
	if w == nil {
		w = &worker{id: id, holds: make(map[string]int)}
		ix.workers[id] = w
		ix.leases.set(id, p.mono().Add(p.cfg.WorkerLease))
	}
	w.target, w.agents, w.slots, w.seen, w.alive = target, slices.Clone(agents), slots, now, p.mono()
	w.node = target
	if t.Runtime == fleet.RuntimePoll {
		w.node = placement.NodeName(target, id)
	}
	if slots > 0 && w.node != target {
		ix.world.SetNode(w.asNode(t))
		ix.fleetChanged = true
	}
	return w, nil
}

// take hands over what waits for the worker; with p.mu held.
func (p *Plane) take(w *worker, agents []string, limit int, now run.Instant) []string {
	b := p.ix.box(w.node)
	var taken []string
	kept := b.ready[:0]
	for _, id := range b.ready {
		t := p.ix.runs[id]
		switch {
		case t == nil || t.live == nil:
		case len(taken) < limit && slices.Contains(agents, t.agent):
			t.live.handed, t.live.worker, t.live.fetched = now, w.id, true
			w.holds[id] = t.live.n
			p.ix.confirms = append(p.ix.confirms, confirm{now.Add(p.cfg.ConfirmAfter), id, t.live.n})
			taken = append(taken, id)
		default:
			kept = append(kept, id)
		}
	}
	clear(b.ready[len(kept):])
	b.ready = kept
	return taken
}

// offer puts assigned runs where their workers fetch them and wakes those that wait; with p.mu held.
func (ix *index) offer(node string, ids []string) {
	b := ix.box(node)
	b.ready = append(b.ready, ids...)
	// Wake one poll per run at most: each takes as many as it has slots for, and one that finds nothing waits again.
	need := len(ids)
	kept := b.polls[:0]
	for _, x := range b.polls {
		if need > 0 && ix.serves(x.agents, b.ready) {
			close(x.wake)
			need--
			continue
		}
		kept = append(kept, x)
	}
	clear(b.polls[len(kept):])
	b.polls = kept
}

func (ix *index) serves(agents, ids []string) bool {
	for _, id := range ids {
		if t := ix.runs[id]; t != nil && slices.Contains(agents, t.agent) {
			return true
		}
	}
	return false
}

// Beat is a worker's sign of life. It answers what each of its attempts must know; one that is not in the answer is no
// longer the worker's and must be stopped.
func (p *Plane) Beat(ctx context.Context, b WorkerBeat) (WorkerStanding, error) {
	var standing WorkerStanding
	req := LeaseRequest{Worker: b.Worker, Target: b.Target, Agents: b.Agents, Slots: b.Slots, Max: 1}
	if err := p.checkWorker(&req); err != nil {
		return standing, err
	}
	if len(b.Attempts) > maxSlots {
		return standing, refuse(CodeTooLarge, "worker %s: %d attempts, %d at most", b.Worker, len(b.Attempts), maxSlots)
	}
	if !p.leads() {
		if p.cfg.Bus == nil {
			return standing, notLeading("heartbeat") // an answer from here would tell the worker that nothing is its own
		}
		p.tellBeat(b)
		if p.vouchedFor(b.Worker) {
			return p.standingTold(b.Attempts), nil
		}
		standing, err := p.standingOf(ctx, b.Worker, b.Attempts)
		if err == nil {
			p.vouch(b.Worker)
		}
		return standing, err
	}
	for key, state := range p.snapshotsOf(&b) {
		if err := p.saveSession(ctx, key, state); err != nil {
			return standing, err
		}
	}
	now := p.now()
	p.mu.Lock()
	w, err := p.beatHeard(&b, now)
	if err != nil {
		p.mu.Unlock()
		return standing, err
	}
	standing.Drain = w.draining
	// 1. What it holds is answered if it is so. Where others write facts, the index may not have heard of a claim yet: then
	//    the store tells.
	named := make(map[string]bool, len(b.Attempts))
	var ask []string
	for _, attempt := range b.Attempts {
		id, n, err := runtime.ParseAttemptID(attempt)
		if err != nil {
			continue
		}
		named[id] = true
		if t := p.ix.runs[id]; t != nil && t.live != nil && t.live.n == n && t.live.worker == w.id {
			standing.Attempts = append(standing.Attempts, AttemptStanding{
				ID: attempt, Deadline: t.live.deadline, Cancel: t.live.stop != "", CancelReason: t.live.stop,
			})
			continue
		}
		ask = append(ask, attempt)
		p.ix.left = append(p.ix.left, id)
	}
	// 2. What it should hold and does not name: the lease never reached it, or it dropped the attempt.
	var dropped []edit
	for id, n := range w.holds {
		t := p.ix.runs[id]
		if named[id] || t == nil || t.live == nil || t.live.n != n || now.Sub(t.live.handed) < 2*p.cfg.BeatEvery {
			continue
		}
		dropped = append(dropped, p.lost(id, n, "its worker no longer has it", true))
	}
	p.mu.Unlock()
	p.wake()
	for _, o := range p.changeAll(ctx, dropped) {
		if o.err != nil {
			p.log.WarnContext(ctx, "take a dropped attempt back", "worker", b.Worker, "error", o.err)
		}
	}
	if len(ask) > 0 && !p.store.Exclusive() {
		more, err := p.standingOf(ctx, b.Worker, ask)
		if err != nil {
			return standing, err
		}
		standing.Attempts = append(standing.Attempts, more.Attempts...)
	}
	return standing, nil
}

// vouchEvery is how long a process that does not lead answers a worker's heartbeats by what the leader tells in its
// lease, before it reads of each attempt again whether it is still the worker's: a read of each with every heartbeat would
// cost more than the runs. Until then a fence refuses what an attempt says that has lost its run.
const vouchEvery = 30 * time.Second

func (p *Plane) vouchedFor(worker string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, known := p.vouched[worker]
	return known && p.cfg.Monotonic() < until
}

func (p *Plane) vouch(worker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.vouched == nil || len(p.vouched) >= maxWorkers {
		p.vouched = make(map[string]time.Duration)
	}
	p.vouched[worker] = p.cfg.Monotonic() + vouchEvery
}

// standingTold answers a worker by what the leader has told: which attempts are to end.
func (p *Plane) standingTold(attempts []string) WorkerStanding {
	standing := WorkerStanding{Partial: true}
	stops := p.led.Leader().Stops
	for _, id := range attempts {
		if reason, told := stops[id]; told {
			standing.Attempts = append(standing.Attempts, AttemptStanding{ID: id, Cancel: true, CancelReason: reason})
		}
	}
	return standing
}

// standingOf answers a worker from the store.
func (p *Plane) standingOf(ctx context.Context, workerID string, attempts []string) (WorkerStanding, error) {
	var standing WorkerStanding
	numbers := make(map[string]int, len(attempts))
	ids := make([]string, 0, len(attempts))
	for _, attempt := range attempts {
		if id, n, err := runtime.ParseAttemptID(attempt); err == nil && numbers[id] == 0 {
			numbers[id] = n
			ids = append(ids, id)
		}
	}
	records, errs := p.load(ctx, ids, true)
	for i, r := range records {
		var refusal *Refusal
		switch {
		case errs[i] != nil && !errors.As(errs[i], &refusal):
			// It must not take an outage for word that its attempts are over.
			return standing, &Refusal{Code: CodeUnavailable, Detail: "heartbeat: the store cannot be read now", RetryAfter: time.Second, Cause: errs[i]}
		case errs[i] != nil || !r.Live() || r.Attempt != numbers[ids[i]] || r.Worker != "" && r.Worker != workerID:
			continue
		}
		x := AttemptStanding{ID: runtime.AttemptID(r.ID, r.Attempt), Deadline: run.Earliest(r.Due, r.Deadline)}
		if r.Stop != nil {
			x.Cancel, x.CancelReason = true, r.Stop.Reason
		}
		standing.Attempts = append(standing.Attempts, x)
	}
	return standing, nil
}

// beatHeard enters a worker's sign of life: what it serves, whether it drains, and what it holds that this process did
// not know of; with p.mu held.
func (p *Plane) beatHeard(b *WorkerBeat, now run.Instant) (*worker, error) {
	w, err := p.register(b.Worker, b.Target, b.Agents, b.Slots, now)
	if err != nil {
		return nil, err
	}
	// 1. Draining: no more runs come here.
	if w.draining != b.Draining {
		if w.draining = b.Draining; w.draining {
			p.ix.hangUp(w)
		}
		if t := p.targetNamed(w.target); t != nil && w.node != w.target && w.slots > 0 {
			p.ix.world.SetNode(w.asNode(t))
		}
	}
	// 2. What it holds is adopted if this process did not know (it has restarted).
	named := make(map[string]bool, len(b.Attempts))
	for _, attempt := range b.Attempts {
		id, n, err := runtime.ParseAttemptID(attempt)
		if err != nil {
			continue
		}
		named[id] = true
		t := p.ix.runs[id]
		if t == nil || t.live == nil || t.live.n != n || t.live.node != w.node || t.live.worker != "" && t.live.worker != w.id {
			continue
		}
		l := t.live
		l.worker, l.fetched = w.id, true
		if l.handed == 0 {
			l.handed = now
			p.ix.box(l.node).remove(id)
			p.ix.confirms = append(p.ix.confirms, confirm{now, id, n})
		}
		w.holds[id] = n
	}
	// 3. What was assigned to it before this process led, and that it never got.
	if w.node != w.target {
		var offers []string
		for _, id := range p.ix.world.RunsOn(w.node) {
			if t := p.ix.runs[id]; t != nil && t.live != nil && t.live.unsure {
				t.live.unsure = false
				if !named[id] {
					offers = append(offers, id)
				}
			}
		}
		if len(offers) > 0 {
			p.ix.offer(w.node, offers)
		}
	}
	return w, nil
}

// Held lists the attempts that a worker has taken, for the runtime that started it.
func (p *Plane) Held(workerID string) []runtime.Held {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.ix.workers[workerID]
	if w == nil {
		return nil
	}
	held := make([]runtime.Held, 0, len(w.holds))
	for id, n := range w.holds {
		held = append(held, runtime.Held{Run: id, N: n})
	}
	slices.SortFunc(held, func(a, b runtime.Held) int { return strings.Compare(a.Run, b.Run) })
	return held
}

// hangUp ends the open polls of a worker that gets no more runs; with Plane.mu held.
func (ix *index) hangUp(w *worker) {
	b := ix.box(w.node)
	b.polls = slices.DeleteFunc(b.polls, func(x *poll) bool {
		if x.worker != w {
			return false
		}
		x.over = true
		close(x.wake)
		return true
	})
}

// workerDue looks at a worker whose lease may have ended and returns what it lost; with p.mu held.
func (p *Plane) workerDue(id string, mono run.Instant) []edit {
	w := p.ix.workers[id]
	if w == nil {
		return nil
	}
	if ends := w.alive.Add(p.cfg.WorkerLease); ends > mono {
		p.ix.leases.set(id, ends)
		return nil
	}
	p.ix.hangUp(w)
	// A runtime that started it can end it, and reports what it held once nothing of it can act any more.
	if t := p.targetNamed(w.target); t != nil && p.cfg.Runtimes[t.Runtime] != nil && p.cfg.Runtimes[t.Runtime].Lost(id) {
		p.ix.leases.set(id, mono.Add(p.cfg.WorkerLease))
		return nil
	}
	// All that is on its node, fetched or not; of a local target only what it fetched.
	gone := p.ix.world.RunsOn(w.node)
	delete(p.ix.workers, id)
	if w.node != w.target {
		p.ix.world.RemoveNode(w.node)
		delete(p.ix.boxes, w.node)
	}
	if w.node == w.target {
		gone = slices.Collect(maps.Keys(w.holds))
	}
	var lost []edit
	for _, rid := range gone {
		if t := p.ix.runs[rid]; t != nil && t.live != nil && (w.node != w.target || t.live.worker == id && w.holds[rid] == t.live.n) {
			lost = append(lost, p.lost(rid, t.live.n, fmt.Sprintf("worker %s was silent for %s", id, p.cfg.WorkerLease), false))
		}
	}
	slices.SortFunc(lost, func(a, b edit) int { return strings.Compare(a.id, b.id) })
	return lost
}

// maxTurns bounds what is remembered of whose turns were taken where.
const maxTurns = 100_000

// turn notes that a worker has taken a turn of a session; with Plane.mu held. One that was only offered it has nothing newer
// than what is kept.
func (ix *index) turn(w *worker, key string) {
	if len(ix.lastTurn) >= maxTurns {
		clear(ix.lastTurn) // snapshots of these sessions are passed over: their last turns are saved
	}
	ix.lastTurn[key] = w.id
	if w.turns == nil || len(w.turns) >= maxTurns {
		w.turns = make(map[string]string)
	}
	name := key[strings.LastIndex(key, "/")+1:]
	if other, known := w.turns[name]; known && other != key {
		key = ""
	}
	w.turns[name] = key
}

// snapshotsOf are the snapshots that a stopping worker hands over, by session key: of the sessions whose last turn it
// took and that have no turn under way. Anything else would undo what a later turn has saved.
func (p *Plane) snapshotsOf(b *WorkerBeat) map[string]json.RawMessage {
	if len(b.Sessions) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.ix.workers[b.Worker]
	if w == nil {
		return nil
	}
	mine := make(map[string]json.RawMessage, len(b.Sessions))
	for name, state := range b.Sessions {
		if key := w.turns[name]; key != "" && p.ix.lastTurn[key] == w.id && p.ix.sessions[key] == "" {
			mine[key] = state
		}
	}
	return mine
}
