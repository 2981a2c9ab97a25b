package twin

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// group is the container instances of one revision of a service, of a worker pool or of an instance. All of it is
// guarded by the twin's lock.
type group struct {
	t           *Twin
	plan        plan
	min, max    int
	concurrency int  // requests in one container instance at a time
	exclusive   bool // at most one at a time, even while one ends
	retired     bool // nothing starts any more; what is idle ends
	// again tells whether one that ended by itself is replaced; nil: always.
	again func(exit) bool

	members  []*member
	starting int
	failures int // starts that failed, or ended soon, in a row
	waiting  []*waiter
	onUp     []func(error) // called once, when the next start has succeeded or failed
	onEmpty  []func()      // called once, when none is left
}

type member struct {
	u       *unit
	busy    int
	leaving bool
	idle    *time.Timer
}

// waiter is a request that waits for a container instance.
type waiter struct {
	ready chan struct{}
	m     *member // set before ready is closed; nil with err
	err   error
}

const (
	maxWaiting    = 1000
	maxBackoff    = 10 // times Options.RestartDelay
	maxInstances  = 1000
	defaultMax    = 100
	defaultRooms  = 80   // requests at a time in a service's container instance
	maxRooms      = 1000 // and the most
	instanceRooms = 1000
)

// adjust starts and ends container instances until there are as many as there should be.
func (g *group) adjust() {
	if g.retired {
		for _, m := range g.members {
			if m.busy == 0 {
				g.leave(m)
			}
		}
		g.settle()
		return
	}
	live := g.live()
	// 1. Too many: the platform picks whom it takes.
	for ; live > g.max; live-- {
		m := g.victim()
		if m == nil {
			break // they start still, and are ended when they are up
		}
		g.leave(m)
	}
	// 2. Too few.
	if g.exclusive && len(g.members)+g.starting > 0 {
		return
	}
	for ; live < g.min; live++ {
		g.start()
	}
	g.settle()
}

// live is how many run or start, without those that end.
func (g *group) live() int {
	n := g.starting
	for _, m := range g.members {
		if !m.leaving {
			n++
		}
	}
	return n
}

// settle tells those who wait for the end.
func (g *group) settle() {
	if len(g.members)+g.starting == 0 {
		for _, call := range g.onEmpty {
			call()
		}
		g.onEmpty = nil
	}
}

// victim is the member that scale-in takes: whom the test names, else any, busy or not, for the platform does not look
// into a worker.
func (g *group) victim() *member {
	var all []*member
	for _, m := range g.members {
		if !m.leaving {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *member) int { return byAge(a.u.began, a.u.id, b.u.began, b.u.id) })
	if choose := g.t.victim; choose != nil {
		views := make([]Container, len(all))
		for i, m := range all {
			views[i] = m.u.view()
		}
		if i := choose(views); i >= 0 && i < len(all) {
			return all[i]
		}
	}
	return all[rand.IntN(len(all))]
}

func (g *group) leave(m *member) {
	if m.leaving {
		return
	}
	m.leaving = true
	if m.idle != nil {
		m.idle.Stop()
	}
	m.u.stop(g.t.opts.Grace)
}

// retire ends the group: what is idle at once, the rest with its last request.
func (g *group) retire() {
	g.retired, g.min, g.max = true, 0, 0
	g.failWaiting(errRetired)
	g.adjust()
}

// end ends the group without regard to requests.
func (g *group) end() {
	g.retire()
	for _, m := range g.members {
		g.leave(m)
	}
}

// start starts one more.
func (g *group) start() {
	if g.t.closed {
		return
	}
	g.starting++
	g.t.active.Go(func() {
		p := g.plan
		u, err := g.t.launch(g.t.ctx, p)
		g.t.mu.Lock()
		defer g.t.mu.Unlock()
		g.starting--
		calls := g.onUp
		g.onUp = nil
		if err != nil {
			g.t.log.Warn("a container instance does not start", "resource", p.resource, "error", err)
			g.failures++
			if g.live() == 0 {
				g.failWaiting(err)
			}
		} else {
			g.join(u)
		}
		for _, call := range calls {
			call(err)
		}
		if err != nil {
			g.later()
		}
	})
}

// join takes a container instance that is up.
func (g *group) join(u *unit) {
	m := &member{u: u}
	g.members = append(g.members, m)
	g.t.active.Go(func() {
		<-u.done
		g.t.mu.Lock()
		defer g.t.mu.Unlock()
		g.gone(m)
	})
	if g.retired || g.live() > g.max {
		g.leave(m)
		return
	}
	for m.busy < g.concurrency && len(g.waiting) > 0 {
		g.hand(m)
	}
	g.rest(m)
}

// gone notes the end of a member, and sees to another where one is due.
func (g *group) gone(m *member) {
	g.members = slices.DeleteFunc(g.members, func(each *member) bool { return each == m })
	if m.idle != nil {
		m.idle.Stop()
	}
	if !m.leaving {
		if g.again != nil && !g.again(m.u.exit) {
			g.min, g.max = 0, 0
		}
		if time.Since(m.u.began) < 2*maxBackoff*g.t.opts.RestartDelay {
			g.failures++
		} else {
			g.failures = 0
		}
		g.later()
		return
	}
	g.adjust()
}

// later adjusts after a while, longer with each failure in a row.
func (g *group) later() {
	if g.live() >= g.min && len(g.waiting) == 0 || g.retired {
		g.adjust()
		return
	}
	delay := g.t.opts.RestartDelay * time.Duration(min(max(g.failures, 1), maxBackoff))
	g.t.active.Go(func() {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-g.t.ctx.Done():
			return
		}
		g.t.mu.Lock()
		defer g.t.mu.Unlock()
		g.adjust()
		g.grow()
	})
}

// acquire finds room for a request, in a new container instance if need be.
func (g *group) acquire(ctx context.Context) (*member, error) {
	g.t.mu.Lock()
	// 1. Room where one is up: in the fullest, so that the others can go.
	if m := g.room(); m != nil {
		g.enter(m)
		g.t.mu.Unlock()
		return m, nil
	}
	// 2. A place in the queue.
	if g.retired {
		g.t.mu.Unlock()
		return nil, errRetired
	}
	if len(g.waiting) >= maxWaiting {
		g.t.mu.Unlock()
		return nil, errNoInstance
	}
	w := &waiter{ready: make(chan struct{})}
	g.waiting = append(g.waiting, w)
	g.grow()
	g.t.mu.Unlock()
	// 3. Patience ends only when nothing starts that could take it.
	patience := time.NewTicker(g.t.opts.Pending)
	defer patience.Stop()
	for {
		select {
		case <-w.ready:
			return w.m, w.err
		case <-patience.C:
			if g.giveUp(w, false) {
				return nil, errNoInstance
			}
		case <-ctx.Done():
			if g.giveUp(w, true) {
				return nil, context.Cause(ctx)
			}
		case <-g.t.ctx.Done():
			if g.giveUp(w, true) {
				return nil, errClosed
			}
		}
	}
}

// errRetired says that another group serves now.
var errRetired = errors.New("the revision is retired")

var errNoInstance = errors.New("The request was aborted because there was no available instance.")

// giveUp takes a waiter out of the queue. Without force it stays while something starts. It reports whether it is out; if
// not, it is served.
func (g *group) giveUp(w *waiter, force bool) bool {
	g.t.mu.Lock()
	defer g.t.mu.Unlock()
	if !force && g.starting > 0 {
		return false
	}
	i := slices.Index(g.waiting, w)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}

// room is the fullest member that takes one more request, nil when all are full.
func (g *group) room() *member {
	var all []*member
	for _, m := range g.members {
		if !m.leaving && m.busy < g.concurrency {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return slices.MaxFunc(all, func(a, b *member) int { return cmp.Compare(a.busy, b.busy) })
}

// grow starts what those who wait need.
func (g *group) grow() {
	if g.exclusive {
		return // it runs or it does not; requests start nothing
	}
	for g.starting*g.concurrency < len(g.waiting) && g.live() < g.max && !g.retired {
		before := g.starting
		if g.start(); g.starting == before {
			return
		}
	}
}

func (g *group) enter(m *member) {
	m.busy++
	if m.idle != nil {
		m.idle.Stop()
		m.idle = nil
	}
}

// hand gives a member to the first who waits.
func (g *group) hand(m *member) {
	w := g.waiting[0]
	g.waiting = g.waiting[1:]
	g.enter(m)
	w.m = m
	close(w.ready)
}

// release ends a request.
func (g *group) release(m *member) {
	g.t.mu.Lock()
	defer g.t.mu.Unlock()
	m.busy--
	switch {
	case m.leaving:
	case len(g.waiting) > 0 && !g.retired:
		g.hand(m)
	case m.busy == 0 && g.retired:
		g.leave(m)
	default:
		g.rest(m)
	}
}

// rest ends a member that has no requests for long enough, unless it is one of those that always run.
func (g *group) rest(m *member) {
	if m.busy > 0 || g.min == g.max {
		return
	}
	m.idle = time.AfterFunc(g.t.opts.Idle, func() {
		g.t.mu.Lock()
		defer g.t.mu.Unlock()
		if m.busy == 0 && !m.leaving && g.live() > g.min {
			g.leave(m)
		}
	})
}

func (g *group) failWaiting(err error) {
	for _, w := range g.waiting {
		w.err = err
		close(w.ready)
	}
	g.waiting = nil
}

// ChooseVictim sets who decides which container instance a scale-in ends: choose gets them as [Twin.Containers] tells
// them, the oldest first, and returns an index. nil leaves it to chance. choose must not call the twin.
func (t *Twin) ChooseVictim(choose func([]Container) int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.victim = choose
}
