package forecast

import "github.com/errand-run/errand/shared/run"

// Cause is what a run waits for.
type Cause string

// The causes, in the order to show them.
const (
	CauseShare         Cause = "others"        // the slots that it could use are held by other tenants
	CauseOwn           Cause = "own"           // they are held by runs of its own tenant
	CauseCapacity      Cause = "capacity"      // nobody holds them: there is no worker, or what is free is too small
	CauseQuota         Cause = "quota"         // quota.running of its tenant
	CausePerTenant     Cause = "perTenant"     // concurrency.perTenant of its agent
	CauseConcurrency   Cause = "concurrency"   // concurrency.max of its agent
	CauseSession       Cause = "session"       // the turn before it in its session
	CauseUnschedulable Cause = "unschedulable" // no target could take it even when empty
	CauseBackoff       Cause = "backoff"       // its last attempt failed
)

// Causes lists all of them.
var Causes = []Cause{
	CauseShare, CauseOwn, CauseCapacity, CauseQuota, CausePerTenant, CauseConcurrency, CauseSession, CauseUnschedulable,
	CauseBackoff,
}

const (
	atShare = iota
	atOwn
	atCapacity
	atQuota
	atPerTenant
	atConcurrency
	atSession
	atUnschedulable
	atBackoff
	causes
)

// meter integrates what the waiting runs of a pair wait for, in runs × milliseconds.
type meter struct {
	since   run.Instant
	turn    int // queued behind another run of their session
	parked  int // unschedulable
	backoff int
	spent   [causes]float64

	held          []float64 // of atShare, by the tenant that holds the slots; nil where there are too many tenants
	unschedulable float64   // ms during which at least one was
	reason        string    // of the last that was
}

// settle accounts for the time since the last call. It must precede every change of what the pair's runs wait for.
func (p *pair) settle(now run.Instant) {
	m := &p.meter
	dt := float64(now - m.since)
	m.since = now
	if dt <= 0 {
		return
	}
	if m.parked > 0 {
		m.spent[atUnschedulable] += float64(m.parked) * dt
		m.unschedulable += dt
	}
	m.spent[atBackoff] += float64(m.backoff) * dt
	m.spent[atSession] += float64(m.turn) * dt
	waits := float64(p.queued-m.turn) * dt
	if waits <= 0 {
		return
	}
	switch {
	case p.tenant.full:
		m.spent[atQuota] += waits
	case p.agent.full:
		m.spent[atConcurrency] += waits
	case p.full:
		m.spent[atPerTenant] += waits
	case p.group == nil || p.group.used == 0:
		m.spent[atCapacity] += waits
	default:
		own := float64(p.group.by[p.tenant.index]) / float64(p.group.used)
		m.spent[atOwn] += own * waits
		m.spent[atShare] += (1 - own) * waits
		if own < 1 && len(p.group.by) <= maxHolders {
			m.blame(p, waits)
		}
	}
}

// maxHolders is with how many tenants at most it is told apart who holds the slots that others wait for.
const maxHolders = 64

func (m *meter) blame(p *pair, waits float64) {
	for len(m.held) < len(p.group.by) {
		m.held = append(m.held, 0)
	}
	for i, slots := range p.group.by {
		if i != p.tenant.index {
			m.held[i] += waits * float64(slots) / float64(p.group.used)
		}
	}
}

// scale is the times to which a forecast's series belong.
type scale struct {
	from run.Instant
	step int64 // milliseconds between two points
	n    int
}

func (s *scale) point(at run.Instant) int { return min(int(int64(at-s.from)/s.step), s.n-1) }

// level is a number over time, as its mean between each two points.
type level struct {
	value int
	peak  int
	since run.Instant
	sums  []float64 // value × ms
}

func (l *level) add(s *scale, now run.Instant, delta int) {
	l.settle(s, now)
	l.value += delta
	l.peak = max(l.peak, l.value)
}

func (l *level) settle(s *scale, now run.Instant) {
	if l.since == 0 {
		l.since = s.from
	}
	if l.value == 0 {
		l.since = now
		return
	}
	if l.sums == nil {
		l.sums = make([]float64, s.n)
	}
	for l.since < now {
		i := s.point(l.since)
		end := now
		if i < s.n-1 {
			end = min(now, s.from+run.Instant(int64(i+1)*s.step))
		}
		l.sums[i] += float64(l.value) * float64(end-l.since)
		l.since = end
	}
}

// means are the points of the series.
func (l *level) means(s *scale, end run.Instant) []float64 {
	l.settle(s, end)
	out := make([]float64, s.n)
	for i := range l.sums {
		width := min(s.step, int64(end-s.from)-int64(i)*s.step)
		if width > 0 {
			out[i] = l.sums[i] / float64(width)
		}
	}
	return out
}

// gap is the longest time during which something waited and nothing started.
type gap struct {
	since   run.Instant // 0: nothing waits
	longest int64
	from    run.Instant // of the longest
}

func (g *gap) waits(now run.Instant) {
	if g.since == 0 {
		g.since = now
	}
}

// moved says that one started or left, and whether more wait.
func (g *gap) moved(now run.Instant, more bool) {
	if g.since == 0 {
		return
	}
	if d := int64(now - g.since); d > g.longest {
		g.longest, g.from = d, g.since
	}
	g.since = 0
	if more {
		g.since = now
	}
}
