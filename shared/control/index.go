package control

import (
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// index is the leader's memory: the queue, the World, what is live and when to wake. It can be rebuilt from the store
// at any time and is guarded by Plane.mu. It holds queued, unschedulable and live runs; parked, suspended and finished
// ones are in the store alone, but for their wake-up if that is near.
type index struct {
	cfg     Config
	queue   *queue.Queue
	world   *placement.World
	profile *placement.Profile
	asked   run.Record // reused: the run that a pass asks about
	timers  *timers    // by run id
	leases  *timers    // by worker, on the monotonic clock
	// reminders are of attempts that were handed to a pool and that nobody has claimed, by run id.
	reminders *timers
	runs      map[string]*tracked
	classes   map[queue.Class]*class
	parked    map[queue.Class]map[string]struct{} // unschedulable runs

	agents      tallies
	tenants     tallies
	agentTenant map[[2]string]int // live runs
	sessions    map[string]string // session key to the run whose turn it is
	lastTurn    map[string]string // session key to the worker that took its last turn
	targets     map[string]map[string]struct{}

	workers  map[string]*worker
	boxes    map[string]*outbox // by node
	confirms []confirm          // attempts handed over whose start is not written, oldest first

	patient      run.Instant // until then, runs that no target could take stay queued
	horizon      run.Instant // wake-ups up to here are in timers
	lookAgain    run.Instant // when they could not be read: not before then, on the monotonic clock
	fleetChanged bool        // what could not be placed may be placeable now
	backlog      bool        // some queued runs are in the store only
	removal      *retention
	losses       []edit              // attempts whose executors are gone, and that could not be taken back yet
	left         []string            // runs of which the store may know more
	sweep        bool                // look for what became due and nobody told of
	kin          kinship             // runs that go on by their children
	standing     map[string]struct{} // runs whose wake-up is in memory whatever the horizon, see stands
	flights      flights             // runs of workflows, see flow.go
	flows        map[string]*flowLoad
	undoings     map[string]*undoing
	reckonings   reckonings

	stops map[string]run.Reason // live attempts that are told to end
}

// tracked is a run that the index holds.
type tracked struct {
	seq           int64
	state         run.State
	agent, tenant string
	parent        string
	class         queue.Class
	live          *live
}

// live is an attempt that has not ended.
type live struct {
	id       string
	n        int
	revision int64
	agent    string
	tenant   string
	session  string // session key, "" for none
	target   string
	node     string // of the World: the target, or a worker of a polled one
	worker   string
	state    run.State
	handed   run.Instant // when a worker took it; 0 until then
	fetched  bool        // its worker took it from this leader, or has named it since
	sending  bool        // it is being handed over
	reminded int         // how often it was handed over again
	unsure   bool        // after a takeover: only its worker's next heartbeat can tell whether it was handed over
	slots    int
	cost     int64 // charged in advance
	started  run.Instant
	stop     run.Reason // it was told to end
	deadline run.Instant
	silence  time.Duration
	beat     run.Instant // last sign of life of the handler

	steps int // recorded so far; -1 before they were counted
	usage run.Usage
	log   logged
}

// class is what runs with the same placement outcome share.
type class struct {
	agent   *declaration
	tenant  string
	session string
	users   int
	limit   string // what held it back in the last pass
}

type tally struct {
	queued, live int
	rest         int // tracked otherwise: unschedulable
}

func (t *tally) total() int {
	if t == nil {
		return 0
	}
	return t.queued + t.live + t.rest
}

// tallies count by name; a missing name reads as zero.
type tallies map[string]*tally

func (t tallies) add(name string, queued, live, rest int) {
	c := t[name]
	if c == nil {
		c = new(tally)
		t[name] = c
	}
	c.queued, c.live, c.rest = c.queued+queued, c.live+live, c.rest+rest
	if c.total() == 0 {
		delete(t, name)
	}
}

func (t tallies) of(name string) tally {
	if c := t[name]; c != nil {
		return *c
	}
	return tally{}
}

// confirm is an attempt whose start is to be written at an instant.
type confirm struct {
	at run.Instant
	id string
	n  int
}

func newIndex(cfg Config) *index {
	return &index{
		cfg:         cfg,
		queue:       queue.New(queue.Options{Ageing: cfg.Ageing, MaxEntries: cfg.MaxQueue}),
		world:       placement.NewWorld(),
		profile:     placement.Default(),
		timers:      newTimers(),
		leases:      newTimers(),
		reminders:   newTimers(),
		runs:        make(map[string]*tracked),
		classes:     make(map[queue.Class]*class),
		parked:      make(map[queue.Class]map[string]struct{}),
		agents:      make(tallies),
		tenants:     make(tallies),
		agentTenant: make(map[[2]string]int),
		sessions:    make(map[string]string),
		lastTurn:    make(map[string]string),
		targets:     make(map[string]map[string]struct{}),
		workers:     make(map[string]*worker),
		stops:       make(map[string]run.Reason),
		boxes:       make(map[string]*outbox),
		kin:         newKinship(),
		undoings:    make(map[string]*undoing),
		reckonings:  newReckonings(),
		standing:    make(map[string]struct{}),
		flows:       make(map[string]*flowLoad),
		removal:     &retention{next: 1}, // what is there to remove is not known yet
	}
}

// declared brings an applied object into force; with Plane.mu held.
func (ix *index) declared(p *Plane, obj fleet.Object) {
	switch o := obj.(type) {
	case *fleet.Target:
		ix.world.SetNode(placement.Node{Target: o})
		for _, w := range ix.workers {
			if w.target == o.Name() && w.node != w.target && w.slots > 0 {
				ix.world.SetNode(w.asNode(o))
			}
		}
	case *fleet.Tenant:
		ix.queue.SetWeight(o.Name(), o.Weight)
		if load := ix.flows[o.Name()]; load != nil {
			ix.wakeFlows(load)
		}
	}
	ix.fleetChanged = true
}

func (ix *index) undeclared(obj fleet.Object) {
	switch o := obj.(type) {
	case *fleet.Target:
		ix.world.RemoveNode(o.Name())
		for _, w := range ix.workers {
			if w.target == o.Name() {
				ix.world.RemoveNode(w.node)
			}
		}
	case *fleet.Tenant:
		ix.queue.SetWeight(o.Name(), 1)
	}
	ix.fleetChanged = true
}

// heldBy counts the live runs of a target.
func (ix *index) heldBy(target string) int { return len(ix.targets[target]) }

// share is a tenant's part of what is dispatched and queued now, 0..1.
func (ix *index) share(tenant string) float64 {
	total := 0
	for _, t := range ix.tenants {
		total += t.live
	}
	if total == 0 {
		return 0
	}
	return float64(ix.tenants.of(tenant).live) / float64(total)
}

// classOf is the handle of runs with equal agent revision, tenant and session.
func classOf(agent string, revision int64, tenant, session string) queue.Class {
	h := fnv.New64a()
	for _, part := range []string{agent, strconv.FormatInt(revision, 10), tenant, session} {
		_, _ = h.Write([]byte(part)) // cannot fail
		_, _ = h.Write([]byte{0})
	}
	return queue.Class(h.Sum64())
}

// sessionKey names a session of an agent within a tenant; "" when the run has none.
func sessionKey(r *run.Record) string {
	if r.Session == "" {
		return ""
	}
	return r.Tenant + "/" + r.Agent + "/" + r.Session
}

// nodeOf is the World's node that holds the record's live attempt: the worker of a polled target is a node of its own.
func nodeOf(r *run.Record) string {
	if cur := r.Current(); cur != nil && cur.Node != "" {
		return cur.Node
	}
	return r.Target
}

// effect is what must follow a change outside the index.
type effect struct {
	stop   bool // tell the attempt to end
	ended  bool // the attempt is over
	target string
	n      int
	reason run.Reason
	grace  time.Duration // between asking and killing
}

// set brings the index in line with a record that was just written and reports whether the loop has something to do.
func (ix *index) set(p *Plane, r *run.Record, gone bool) (turn bool, after effect) {
	t := ix.runs[r.ID]
	terminal := gone || r.State.Terminal()
	// 1. An attempt that ended gives its slot back.
	if t != nil && t.live != nil && (terminal || !r.Live() || r.Attempt != t.live.n) {
		after = effect{ended: true, target: t.live.target, n: t.live.n}
		ix.release(t, r)
		turn = true
	}
	// 2. What it was before is taken back.
	waits := !terminal && r.State == run.Queued && t != nil && t.live == nil && t.state == run.Queued
	if t != nil && !waits {
		ix.forget(r.ID, t, r)
	}
	// 3. What it is now.
	switch {
	case terminal:
	case waits: // in place: a tenant with nothing else in the queue was not idle in between, and keeps its claim
		t.seq = r.Seq
		if c := ix.classes[t.class]; c.agent == nil {
			c.agent = p.knownAgent(r)
		}
		ix.queue.Push(ix.entryOf(p, r, t.class))
		turn = true
	case r.State == run.Queued && r.Kind != run.KindAgent: // it waits for no slot
	case r.State == run.Queued:
		ix.enqueue(p, r)
		turn = true
	case r.State == run.Unschedulable:
		ix.park(p, r)
	case r.Live():
		l := ix.hold(p, r, t)
		if l.stop == "" && r.Stop != nil {
			l.stop = r.Stop.Reason
			ix.stops[runtime.AttemptID(l.id, l.n)] = l.stop
			after = effect{stop: true, target: l.target, n: l.n, reason: l.stop, grace: r.Due.Sub(r.UpdatedAt) - p.cfg.WorkerLease}
		}
	}
	if terminal {
		delete(ix.undoings, r.ID)
	}
	// 4. Those whom it concerns.
	ix.flowing(r, gone)
	if !gone && p.leads() && ix.related(p, r) {
		turn = true
	}
	// 5. When to look again. What is in memory anyway has its wake-up there, however far that is; the others' are read
	// from the store in time.
	when := ix.wakeOf(r)
	switch {
	case terminal:
		turn = !gone && ix.removal.ended(when) || turn
		when = 0
	case when > ix.horizon && ix.runs[r.ID] == nil && !stands(r):
		when = 0
	}
	if delete(ix.standing, r.ID); when != 0 && ix.runs[r.ID] == nil && stands(r) {
		ix.standing[r.ID] = struct{}{}
	}
	if soonest := ix.timers.next(); when != 0 && (soonest == 0 || when < soonest) {
		turn = true
	}
	ix.timers.set(r.ID, when)
	return turn || ix.queue.Due(), after
}

// stands reports whether the store's index has a run as due since its last event: no horizon that comes nearer finds the
// end of its time there, so that this is kept in memory however far it is.
func stands(r *run.Record) bool {
	if r.State == run.Queued {
		return r.Kind != run.KindAgent
	}
	return !r.State.Terminal() && r.WakeAt() == r.UpdatedAt
}

// wakeOf is when the loop must look at a run: for one that the store's index has as due since long, so that it is found,
// the end of its time.
func (ix *index) wakeOf(r *run.Record) run.Instant {
	switch {
	case r.State == run.Queued, r.State == run.Waiting, r.State == run.Compensating, r.Kind != run.KindAgent && !r.State.Terminal():
		return run.Earliest(r.Due, r.Deadline)
	case r.State == run.Suspended: // its Due is when its last attempt is dead for certain: nothing is due then
		return r.Deadline
	case r.State == run.Running && r.Stop == nil:
		if t := ix.runs[r.ID]; t != nil && t.live != nil && t.live.silence > 0 {
			return run.Earliest(r.Due, r.Deadline, max(t.live.beat, r.UpdatedAt).Add(t.live.silence))
		}
	}
	return r.WakeAt()
}

// forget removes what set entered before, but for a live attempt that goes on.
func (ix *index) forget(id string, t *tracked, r *run.Record) {
	switch {
	case t.state == run.Queued:
		ix.queue.Remove(id)
		ix.world.Unreserve(id)
		ix.count(t, -1, 0, 0)
	case t.state == run.Unschedulable:
		delete(ix.parked[t.class], id)
		if len(ix.parked[t.class]) == 0 {
			delete(ix.parked, t.class)
		}
		ix.count(t, 0, 0, -1)
	case t.live != nil:
		return
	case t.state == run.Assigned: // a pass placed it, and its record comes only now
		ix.count(t, 0, -1, 0)
		ix.queue.Vacate(id)
	}
	ix.unclass(t.class)
	delete(ix.runs, id)
}

func (ix *index) count(t *tracked, queued, live, rest int) {
	ix.agents.add(t.agent, queued, live, rest)
	ix.tenants.add(t.tenant, queued, live, rest)
	if live != 0 {
		k := [2]string{t.agent, t.tenant}
		if ix.agentTenant[k] += live; ix.agentTenant[k] == 0 {
			delete(ix.agentTenant, k)
		}
	}
}

// track makes the entry of a run and its class.
func (ix *index) track(p *Plane, r *run.Record) *tracked {
	t := &tracked{seq: r.Seq, state: r.State, agent: r.Agent, tenant: r.Tenant, parent: r.Parent}
	session := sessionKey(r)
	t.class = classOf(r.Agent, r.Revision, r.Tenant, session)
	c := ix.classes[t.class]
	if c == nil {
		c = &class{tenant: r.Tenant, session: session, agent: p.knownAgent(r)}
		ix.classes[t.class] = c
	}
	c.users++
	ix.runs[r.ID] = t
	return t
}

func (ix *index) unclass(k queue.Class) {
	if c := ix.classes[k]; c != nil {
		if c.users--; c.users <= 0 {
			delete(ix.classes, k)
		}
	}
}

// entryOf is a queued run as the queue keeps it.
func (ix *index) entryOf(p *Plane, r *run.Record, class queue.Class) queue.Entry {
	e := queue.Entry{
		ID: r.ID, Tenant: r.Tenant, Class: class, Priority: r.Priority, QueuedAt: r.QueuedAt,
		Slots: 1, Cost: time.Second.Milliseconds(), Expires: r.Due, Groups: r.Groups,
	}
	if c := ix.classes[class]; c.agent != nil {
		a := c.agent.object.(*fleet.Agent)
		e.Slots = max(a.Needs.Slots, 1)
		e.Cost = admission.Charge(a, p.stats.expected(a))
	}
	return e
}

func (ix *index) enqueue(p *Plane, r *run.Record) {
	t := ix.track(p, r)
	if !ix.queue.Push(ix.entryOf(p, r, t.class)) {
		ix.backlog = true
		ix.unclass(t.class)
		delete(ix.runs, r.ID)
		return
	}
	ix.count(t, 1, 0, 0)
}

func (ix *index) park(p *Plane, r *run.Record) {
	t := ix.track(p, r)
	if ix.parked[t.class] == nil {
		ix.parked[t.class] = make(map[string]struct{})
	}
	ix.parked[t.class][r.ID] = struct{}{}
	ix.count(t, 0, 0, 1)
}

// hold enters a live attempt, or updates the one that is there.
func (ix *index) hold(p *Plane, r *run.Record, t *tracked) *live {
	if t == nil || t.live == nil {
		t = ix.track(p, r)
		l := &live{
			id: r.ID, n: r.Attempt, revision: r.Revision, agent: r.Agent, tenant: r.Tenant, session: sessionKey(r),
			target: r.Target, node: nodeOf(r), worker: r.Worker, slots: 1, steps: -1,
		}
		if r.Attempt == 1 {
			l.steps = 0
		}
		t.live = l
		ix.count(t, 0, 1, 0)
		ix.queue.Occupy(r.ID, r.Tenant, r.Groups)
		if ix.targets[l.target] == nil {
			ix.targets[l.target] = make(map[string]struct{})
		}
		ix.targets[l.target][r.ID] = struct{}{}
		if l.session != "" {
			ix.sessions[l.session] = r.ID
			delete(ix.lastTurn, l.session) // whoever took the last turn has nothing newer to hand over
		}
		if c := ix.classes[t.class]; c.agent != nil {
			a := c.agent.object.(*fleet.Agent)
			l.silence, l.slots = a.Timeouts.Heartbeat.Std(), max(a.Needs.Slots, 1)
			ix.world.Assume(l.node, p.request(r, a), r.UpdatedAt.Add(p.stats.expected(a)))
		}
	}
	t.state, t.seq = r.State, r.Seq
	l := t.live
	l.state, l.deadline = r.State, run.Earliest(r.Due, r.Deadline)
	if r.Worker != "" {
		l.worker = r.Worker
	}
	// A run that becomes known late may be on a worker that was given up meanwhile: somebody must miss it.
	if l.worker != "" && ix.workers[l.worker] == nil && (l.node != l.target || p.isCloud(l.target)) {
		p.expect(l, p.now())
	}
	if w := ix.workers[l.worker]; w != nil && w.slots == 0 && len(w.holds) == 0 {
		w.target, w.node = l.target, l.node // its first word came before that of its claim
	}
	if w := ix.workers[l.worker]; w != nil && w.node == l.node && p.isCloud(l.target) {
		w.holds[r.ID] = l.n // it has claimed the attempt, at whichever process
	}
	if r.State == run.Running && l.started == 0 {
		ix.reminders.set(r.ID, 0)
		l.started, l.beat = r.UpdatedAt, r.UpdatedAt
		if l.handed == 0 {
			l.handed = r.UpdatedAt
		}
	}
	return l
}

// release takes a live attempt out.
func (ix *index) release(t *tracked, r *run.Record) {
	l := t.live
	delete(ix.stops, runtime.AttemptID(l.id, l.n))
	ix.reminders.set(l.id, 0)
	ix.world.Release(l.id)
	ix.box(l.node).remove(l.id)
	if set := ix.targets[l.target]; set != nil {
		if delete(set, l.id); len(set) == 0 {
			delete(ix.targets, l.target)
		}
	}
	if l.session != "" && ix.sessions[l.session] == l.id {
		delete(ix.sessions, l.session)
	}
	if w := ix.workers[l.worker]; w != nil {
		delete(w.holds, l.id)
		if l.session != "" && l.fetched && attemptOf(r, l.n).StartedAt != 0 {
			ix.turn(w, l.session)
		}
	}
	if l.cost > 0 {
		ix.queue.Correct(t.tenant, int64(l.slots)*tookOf(r, l.n).Milliseconds()-l.cost)
	}
	ix.queue.Vacate(l.id)
	ix.count(t, 0, -1, 0)
	t.live = nil
	t.state = ""
}

// tookOf is how long an attempt that has ended ran; 0 if it never started. A short one's start is written with its end.
func tookOf(r *run.Record, n int) time.Duration {
	if a := attemptOf(r, n); a.StartedAt != 0 {
		return max(a.EndedAt.Sub(a.StartedAt), 0)
	}
	return 0
}

// attemptOf is what the record says of an attempt, nothing if it is not in it.
func attemptOf(r *run.Record, n int) run.Attempt {
	for i := range r.Attempts {
		if r.Attempts[i].N == n {
			return r.Attempts[i]
		}
	}
	return run.Attempt{}
}

// workersOf lists workers for people, by id.
func (ix *index) workersOf(want func(*worker) bool) []WorkerStatus {
	var all []WorkerStatus
	for _, id := range slices.Sorted(maps.Keys(ix.workers)) {
		if w := ix.workers[id]; want(w) {
			all = append(all, WorkerStatus{
				ID: w.id, Target: w.target, Agents: w.agents, Slots: w.slots, Running: len(w.holds),
				Draining: w.draining, SeenAt: w.seen,
			})
		}
	}
	return all
}

// knownAgent is the run's agent if its declaration is in memory; nil otherwise.
func (p *Plane) knownAgent(r *run.Record) *declaration {
	if r.Kind != run.KindAgent {
		return nil
	}
	d := p.declared
	d.mu.RLock()
	defer d.mu.RUnlock()
	if kept := d.kept[revisionKey{fleet.KindAgent, r.Agent, r.Revision}]; kept != nil {
		return kept
	}
	if cur := d.current[objectKey{fleet.KindAgent, r.Agent}]; cur != nil && cur.revision == r.Revision {
		return cur
	}
	return nil
}

// request is what placement is asked for a run.
func (p *Plane) request(r *run.Record, a *fleet.Agent) *placement.Request {
	return &placement.Request{Run: r, Agent: a, Tenant: p.tenantOf(r.Tenant)}
}
