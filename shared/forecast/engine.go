package forecast

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/run"
)

// Options say what is played, beside the arrivals. Window is required.
type Options struct {
	Start    run.Instant   // of the window; that of the first arrival when 0
	Window   time.Duration // arrivals beyond are not taken; what waits or runs at the end is reported as such
	Seed     uint64        // of the jitter of backoffs
	Workers  []Workers     // of polled targets
	Points   int           // of each series; 240 when 0
	MaxQueue int           // runs kept in the queue's memory, as in the control plane; 1,000,000 when 0
	Ageing   time.Duration // as in the control plane; 30 s when 0
	// Progress is called now and then with the share of the window that is over. An error ends the forecast with it.
	Progress func(share float64) error
}

// Bounds of a forecast.
const (
	MaxWindow = 366 * 24 * time.Hour
	MaxPoints = 2_000
	MaxHeld   = 3_000_000 // runs that wait or run at a time
)

const (
	defaultPoints   = 240
	defaultMaxQueue = 1_000_000
	defaultAgeing   = 30 * time.Second
	// maxPass is how many runs a pass takes in, and places, at most.
	maxPass = 2000
	// progressEvery is after how many steps Progress is called.
	progressEvery = 20_000
)

// walkAlways makes every pass a walk over the whole queue, to compare with.
var walkAlways = false

// engine is a forecast under way.
type engine struct {
	*policy
	opts    Options
	scale   scale
	now     run.Instant
	end     run.Instant
	source  Source
	next    Arrival // the next one, unless drained
	drained bool
	kinds   map[*Kind]*pair

	queue     *queue.Queue
	world     *placement.World
	profile   *placement.Profile
	durations admission.Durations
	events    events
	tasks     tasks
	backlog   []outside // outside of the queue's memory, first come first

	places   map[string]*place
	nodes    map[string]*node
	nodeList []*node
	groups   map[string]*group

	fresh   []*class // with runs that came since the last pass
	over    []*class // of which a run ended since the last pass
	chosen  []*class // memory of candidates
	freed   bool     // something ended since the last complete pass
	partial bool     // the last walk did not come to its end
	atWorld int      // classes with waiting runs that were refused for want of room
	looked  uint64   // stamp at which the last pass began
	changed bool     // workers came or left
	large   int      // runs that wait and need more than one slot
	holds   []hold   // not settled
	touched []*pair  // whose counts changed since the last pass

	waits   histogram
	queued  level
	running level
}

// outside is a run that waits outside of the queue's memory, unless its task has moved on since.
type outside struct {
	task *task
	gen  uint32
}

// Run plays the arrivals against the objects of a fleet, which are valid and have their defaults. The error says what
// about the arrivals does not fit the fleet, or is that of the source or of Progress.
func Run(objects []fleet.Object, source Source, o Options) (*Result, error) {
	e, err := newEngine(objects, source, o)
	if err != nil {
		return nil, err
	}
	if err := e.play(); err != nil {
		return nil, err
	}
	return e.result(), nil
}

func newEngine(objects []fleet.Object, source Source, o Options) (*engine, error) {
	if o.Points == 0 {
		o.Points = defaultPoints
	}
	if o.MaxQueue == 0 {
		o.MaxQueue = defaultMaxQueue
	}
	if o.Ageing == 0 {
		o.Ageing = defaultAgeing
	}
	switch {
	case o.Window < time.Second || o.Window > MaxWindow:
		return nil, fmt.Errorf("a window of %s: want 1 s to %s", o.Window, MaxWindow)
	case o.Points < 1 || o.Points > MaxPoints:
		return nil, fmt.Errorf("%d points: want 1 to %d", o.Points, MaxPoints)
	}
	e := &engine{
		policy: newPolicy(objects), opts: o, source: source, kinds: make(map[*Kind]*pair),
		queue: queue.New(queue.Options{Ageing: o.Ageing, MaxEntries: o.MaxQueue}), world: placement.NewWorld(),
		profile: placement.Default(), places: make(map[string]*place), nodes: make(map[string]*node), groups: make(map[string]*group),
	}
	// 1. The first arrival says when it all begins, unless that is given.
	if err := e.advance(); err != nil {
		return nil, err
	}
	if o.Start == 0 {
		if e.drained {
			return nil, errors.New("there are no arrivals")
		}
		o.Start = e.next.At
	}
	e.opts, e.now, e.end = o, o.Start, o.Start.Add(o.Window)
	step := max((o.Window.Milliseconds()+int64(o.Points)-1)/int64(o.Points), 1)
	e.scale = scale{o.Start, step, int((o.Window.Milliseconds() + step - 1) / step)}
	// 2. The fleet.
	for _, t := range e.targets {
		p := &place{Target: t}
		e.places[t.Name()] = p
		e.join(p, "", nil)
		if t.Runtime != fleet.RuntimePoll {
			p.size.add(&e.scale, e.now, t.Capacity.Runs)
		}
	}
	for _, t := range e.tenantList {
		e.queue.SetWeight(t.Name(), t.Weight)
	}
	// 3. Its workers.
	if err := e.checkWorkers(o.Workers); err != nil {
		return nil, err
	}
	for i, w := range o.Workers {
		e.events.push(event{at: e.now.Add(w.From), kind: workersJoin, n: int32(i)})
		if w.Until > 0 {
			e.events.push(event{at: e.now.Add(w.Until), kind: workersLeave, n: int32(i)})
		}
	}
	return e, nil
}

// advance reads the next arrival.
func (e *engine) advance() error {
	before := e.next.At
	next, more, err := e.source.Next()
	switch {
	case err != nil:
		return err
	case !more:
		e.drained = true
		return nil
	case next.At < before:
		return fmt.Errorf("an arrival of %s/%s at %s comes after one at %s: arrivals must be in the order of time",
			next.Kind.Tenant, next.Kind.Agent, next.At.Time().Format(time.RFC3339), before.Time().Format(time.RFC3339))
	}
	e.next = next
	return nil
}

// play goes from instant to instant: what is due, who comes, then passes until nothing more can be placed.
func (e *engine) play() error {
	for steps := 0; ; steps++ {
		if steps%progressEvery == 0 && e.opts.Progress != nil {
			if err := e.opts.Progress(float64(e.now-e.opts.Start) / float64(e.end-e.opts.Start)); err != nil {
				return err
			}
		}
		// 1. The next instant at which anything happens.
		at := e.end
		if len(e.events.list) > 0 {
			at = min(at, e.events.list[0].at)
		}
		if !e.drained {
			at = min(at, max(e.next.At, e.now))
		}
		if at >= e.end {
			return nil
		}
		e.now = at
		// 2. What is due.
		for len(e.events.list) > 0 && e.events.list[0].at <= at {
			e.due(e.events.pop())
		}
		// 3. Who comes, as many as a pass takes in; the rest of this instant comes with the next.
		for n := 0; n < maxPass && !e.drained && e.next.At <= at; n++ {
			if err := e.arrive(&e.next); err != nil {
				return err
			}
			if err := e.advance(); err != nil {
				return err
			}
		}
		e.refill()
		// 4. The queue.
		for e.pass() {
		}
		e.settle()
	}
}

// arrive submits a run: it is refused, shed or queued.
func (e *engine) arrive(a *Arrival) error {
	p := e.kinds[a.Kind]
	if p == nil {
		var err error
		if p, err = e.pair(a.Kind); err != nil {
			return err
		}
		if len(e.kinds) > MaxPairs {
			clear(e.kinds)
		}
		e.kinds[a.Kind] = p
	}
	p.settle(e.now)
	p.arrived++
	agent := p.agent
	// 1. At the door.
	priority := admission.Priority(a.Kind.Priority, p.tenant.Tenant)
	view := p.view()
	view.FreeSlots, view.Expected = agent.queued == 0, e.durations.Expected(agent.Agent)
	switch v := admission.Submit(agent.Agent, p.tenant.Tenant, view, priority); {
	case v.Action == admission.Refuse:
		p.refused++
		return nil
	case v.Action == admission.Shed && v.Reason == run.QuotaReached:
		p.shedQuota++
		return nil
	case v.Action == admission.Shed:
		p.shedPressure++
		return nil
	case v.Delay > 0:
		p.slowed++
	}
	if e.tasks.alive >= MaxHeld {
		return fmt.Errorf("more than %d runs wait at %s: no forecast is needed to see that the fleet is too small for its arrivals",
			MaxHeld, e.now.Time().Format(time.RFC3339))
	}
	// 2. In the queue.
	t := e.tasks.take()
	t.arrival, t.priority = *a, int8(priority)
	t.class = p.class(e.sessionOf(a, agent))
	t.class.runs++
	if agent.Timeouts.Run > 0 {
		t.deadline = e.now.Add(agent.Timeouts.Run.Std())
	}
	e.enqueue(t)
	return nil
}

// sessionOf is the session that an arrival belongs to. An instance serves one even if none is named.
func (e *engine) sessionOf(a *Arrival, agent *agent) string {
	switch n := len(a.Kind.Sessions); {
	case n > 0:
		return a.Kind.Sessions[int(unit(a.Seed, 0, drawSession)*float64(n))]
	case agent.Shape == fleet.Instance:
		return "default"
	}
	return ""
}

// enqueue puts a run into the queue, or behind it when its memory is full.
func (e *engine) enqueue(t *task) {
	c := t.class
	p := c.pair
	p.settle(e.now)
	e.touch(p)
	e.regroup(p)
	t.queuedAt, t.state = e.now, queued
	t.expires = 0
	if timeout := p.agent.Timeouts.Queue.Std(); timeout > 0 {
		t.expires = e.now.Add(timeout)
	}
	if at := run.Earliest(t.expires, t.deadline); at != 0 && at < e.end {
		e.events.push(event{at: at, task: t, gen: t.gen, kind: waitEnds})
	}
	p.count(1, 0)
	c.queued++
	if c.busy {
		p.meter.turn++
	}
	p.tenant.backlog.add(&e.scale, e.now, 1)
	p.tenant.gap.waits(e.now)
	e.queued.add(&e.scale, e.now, 1)
	if !e.push(t) {
		t.state = stored
		e.backlog = append(e.backlog, outside{t, t.gen})
	}
}

func (e *engine) push(t *task) bool {
	c := t.class
	a := c.pair.agent
	slots := max(a.Needs.Slots, 1)
	entry := queue.Entry{
		ID: t.id, Tenant: c.pair.tenant.Name(), Class: c.key, Priority: int(t.priority), QueuedAt: t.queuedAt, Slots: slots,
		Cost: admission.Charge(a.Agent, e.durations.Expected(a.Agent)), Expires: t.expires,
	}
	if !e.queue.Push(entry) {
		return false
	}
	t.state = queued
	e.fresh = append(e.fresh, c)
	if slots > 1 {
		e.large++
	}
	return true
}

// refill takes runs into the queue's memory when half of it is free.
func (e *engine) refill() {
	if len(e.backlog) == 0 || e.queue.Len() > e.opts.MaxQueue/2 {
		return
	}
	n := 0
	for n < len(e.backlog) {
		x := e.backlog[n]
		if x.task.gen == x.gen && x.task.state == stored && !e.push(x.task) {
			break
		}
		n++
	}
	e.backlog = slices.Delete(e.backlog, 0, n)
}

// leave takes a waiting run out of the queue, or from where it waits to get in.
func (e *engine) leave(t *task) {
	c := t.class
	p := c.pair
	p.settle(e.now)
	e.touch(p)
	p.count(-1, 0)
	if c.queued--; c.queued == 0 {
		e.refuse(c, refusal{})
	}
	if c.busy {
		p.meter.turn--
	}
	if t.state == queued && p.agent.Needs.Slots > 1 {
		e.large--
	}
	p.tenant.backlog.add(&e.scale, e.now, -1)
	e.queued.add(&e.scale, e.now, -1)
}

// gone is the end of a run, and of its session if no other run belongs to it.
func (e *engine) gone(t *task) {
	c := t.class
	if c.runs--; c.runs == 0 && c.session != "" {
		delete(c.pair.turns, c.session)
	}
	e.tasks.put(t)
}

// touch notes that a pair's counts change in this instant.
func (e *engine) touch(p *pair) {
	if !p.touched {
		p.touched = true
		e.touched = append(e.touched, p)
	}
}

// workers connect or leave.
func (e *engine) workersChange(i int, join bool) {
	w := &e.opts.Workers[i]
	t := e.places[w.Target]
	delta := 1
	if !join {
		delta = -1
	}
	for k := range w.Count {
		worker := "w" + strconv.Itoa(i) + "-" + strconv.Itoa(k)
		name := placement.NodeName(w.Target, worker)
		if join {
			e.join(t, worker, w)
		} else if n := e.nodes[name]; n.runs > 0 {
			placed, _ := e.world.Node(name)
			e.world.SetNode(placement.Node{Target: placed.Target, Worker: worker, Agents: placed.Agents, Slots: placed.Slots, Draining: true})
			n.leaves = true
		} else {
			e.world.RemoveNode(name)
		}
		t.size.add(&e.scale, e.now, delta*w.Slots)
		t.workers.add(&e.scale, e.now, delta)
	}
	for _, name := range w.Agents {
		e.agents[name].workers.add(&e.scale, e.now, delta*w.Count)
	}
	e.changed, e.freed = true, true
}

// stamp rises when room in the World becomes free.
func (e *engine) stamp() uint64 {
	gen := e.world.Generation()
	return gen.Fleet + gen.Capacity
}
