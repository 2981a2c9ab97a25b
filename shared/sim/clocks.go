package sim

import (
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Time that stands still: a run that waits for people alone, by itself or by way of those that it called, spends none.

// clock is how a run's time goes, in true time.
type clock struct {
	ends  run.Instant   // its time, if it never stands still
	stood time.Duration // it stood still for so long, up to asOf
	asOf  time.Duration
	still bool // since then
}

// stoodBy is for how long the time has stood still.
func (c *clock) stoodBy(passed time.Duration) time.Duration {
	if c.still {
		return c.stood + passed - c.asOf
	}
	return c.stood
}

// clocks brings the clocks in line with the runs that a unit has written, and with those above them.
func (l *ledger) clocks(u *store.Unit) {
	for i := range u.Writes {
		d := &u.Writes[i]
		if d.Kind != store.KindRun || d.Delete {
			continue
		}
		for k := l.runs[d.ID]; k != nil; k = l.runs[k.rec.Parent] {
			c := &k.clock
			if c.ends == 0 {
				c.ends = k.rec.Deadline
			}
			// What is written was decided before: a process may have hung since.
			at := max(l.w.passed-max(l.w.now().Sub(l.runs[d.ID].rec.UpdatedAt), 0), c.asOf)
			c.stood, c.asOf = c.stoodBy(at), at
			if c.still = l.isForPeople(k.rec); c.still {
				l.w.saw("wait for people alone")
			}
		}
	}
}

// isForPeople reports whether a run waits for people alone, in plain words. The clocks of those below it are right.
func (l *ledger) isForPeople(r *run.Record) bool {
	step := ""
	switch {
	case r.State == run.Compensating: // until it is said whether to try again what could not be undone
		for _, g := range l.gates {
			if g.Run == r.ID && g.State == run.GateOpen {
				return true
			}
		}
		return false
	case r.Kind != run.KindAgent && r.State == run.Running:
	case r.State != run.Waiting:
		return false
	case r.Park.On == run.OnGate, r.Park.On == run.OnInput && r.Park.Left > 0: // the latter: what came of an effect
		return true
	case r.Park.On != run.OnChildren:
		return false
	default:
		step = r.Park.Step
	}
	asked := false
	for _, id := range l.family.of[r.ID] {
		k := l.runs[id]
		if k == nil || k.rec.State.Terminal() || step != "" && k.rec.Stage != step {
			continue
		}
		if !k.clock.still {
			return false
		}
		asked = true
	}
	return asked
}

// counts reports whether waiting for people counts for a run.
func (l *ledger) counts(r *run.Record) bool {
	a := l.w.fleet.agents[revisionOf(r)]
	return r.Kind == run.KindAgent && a != nil && a.Timeouts.CountWaiting
}

// endsAt is when a run's time is over, as far as is known now; 0 for never.
func (l *ledger) endsAt(k *known) run.Instant {
	r := k.rec
	switch {
	case k.clock.ends == 0 || l.counts(r):
		return r.Deadline
	case k.clock.still:
		return r.Latest
	}
	return run.Earliest(k.clock.ends.Add(k.clock.stoodBy(l.w.passed)), r.Latest)
}

// clockSlack is by how much instants on record may differ from the true time.
const clockSlack = time.Second

// timeIsOver: a run ended because its time is over.
func (l *ledger) timeIsOver(k *known, before *run.Record, e *run.Event) {
	w := l.w
	if e.Reason != run.DeadlineExceeded || e.Type != run.EvFailed && e.Type != run.EvCompensating || before.Live() || w.seen["clock set"] > 0 {
		return // one with an attempt ends also when there is no time for the next
	}
	w.saw("run whose time was over while it had no attempt")
	if l.counts(before) || before.Latest != 0 && e.At >= before.Latest {
		return
	}
	if k.clock.stoodBy(w.passed) > 0 {
		w.saw("run whose time was over though it had stood still")
	}
	late := w.now().Sub(e.At) // a process may have hung since it decided
	if need := k.clock.ends.Add(k.clock.stoodBy(w.passed) - late - clockSlack); e.At < need {
		w.fail("time in which a run waits for people alone does not count", "run %s of %s ended %s before its time, which stood still for %s",
			before.ID, before.Agent, need.Sub(e.At), k.clock.stoodBy(w.passed))
	}
}

// hurried are worlds in which runs that call others have little time.
func (w *world) hurried() bool { return w.programs>>10&1 == 1 }

// hurry gives an agent's runs little time.
func (w *world) hurry(a *fleet.Agent) {
	switch {
	case !w.hurried():
	case a.Name() == "boss":
		a.Timeouts.Run, a.Timeouts.CountWaiting = secs(200), w.programs>>11&3 == 3
	case a.Name() == "mid":
		a.Timeouts.Run = secs(150)
	}
}
