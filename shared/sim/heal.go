package sim

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func isConflict(err error) bool { return errors.Is(err, store.ErrConflict) }

const maxRounds = 400

// heal stops the faults, gives the world healthy workers and a fleet that can take every run, and asserts that every
// run comes to its end. A process that is alive is not started again: what it holds in memory must be enough.
func (w *world) heal() {
	w.say("faults stop")
	r := rng(w.seed.next())
	if w.temper.two {
		w.survive(&r)
	}
	w.healing = true
	for _, l := range w.mail {
		l.send()
	}
	w.mail = nil
	// 1. One process.
	p := w.procs[0]
	if p.down {
		p.boot()
	}
	for i := 0; !p.leads(); i++ {
		if i > 30 {
			w.fail("somebody leads", "process %s does not after %d s", p.name, i)
		}
		w.advance(time.Second)
		p.settle()
	}
	p.settle() // it catches up with what it was in doubt about
	// 2. A fleet that can take everything, and workers that work.
	for _, name := range w.temper.agents {
		w.on(p, func() {
			if err := p.plane.PauseAgent(w.ctx, name, false, "operator"); err != nil {
				w.fail("an agent can be resumed", "%s: %v", name, err)
			}
		})
	}
	w.on(p, func() {
		if _, err := p.plane.Apply(w.ctx, w.wholeFleet(), control.ApplyOptions{Actor: "operator"}); err != nil {
			w.fail("the fleet is accepted", "%v", err)
		}
	})
	for _, x := range w.workers {
		x.vanished = x.vanished || x.draining || x.stalled > w.passed
	}
	for _, target := range []string{"pool-a", "pool-b", ""} {
		w.join(target).slots = 4
	}
	// 3. Rounds, until everything has ended.
	for round := 0; ; round++ {
		p.settle()
		open := w.open()
		if len(open) == 0 {
			break
		}
		if round == maxRounds {
			w.fail("every run comes to its end", "after %s without faults: %s", w.passed, strings.Join(open, ", "))
		}
		w.help(p, &r)
		w.round(p, &r)
	}
	w.advance(20 * time.Second)
	p.settle()
	w.ledger.closed(p)
	if len(p.waiting) > 0 {
		w.fail("every submission is answered", "%d are not", len(p.waiting))
	}
}

// survive leaves one process of two. They do not hear of each other's writes, so its lead ends before it goes on, and it
// takes over once more, not without trouble.
func (w *world) survive(r *rng) {
	for _, x := range w.procs[1:] {
		if !x.down {
			x.die()
		}
	}
	w.advance(leadPeriod)
	if p := w.procs[0]; !p.down {
		p.store.times, p.store.reads, p.store.out = 0, 0, 0
		w.on(p, func() { p.plane.Step(w.ctx, p.now()) })
		w.advance(leadPeriod)
		p.store.skips, p.store.reads = r.n(6), r.n(4)
		w.on(p, func() { p.plane.Step(w.ctx, p.now()) })
		p.sleep()
	}
}

// open lists the runs that have not ended, with their states.
func (w *world) open() []string {
	var list []string
	for _, id := range w.ledger.order {
		if k := w.ledger.runs[id]; k != nil && !k.rec.State.Terminal() {
			list = append(list, id+" of "+k.rec.Agent+" is "+string(k.rec.State)+" ("+k.rec.Message+")")
		}
	}
	return list
}

// help gives each run what it waits for.
func (w *world) help(p *process, r *rng) {
	for _, id := range w.ledger.order {
		k := w.ledger.runs[id]
		if k == nil {
			continue
		}
		w.on(p, func() {
			var err error
			switch {
			case k.rec.State == run.Suspended:
				_, err = p.plane.Resume(w.ctx, id, "client")
			case k.rec.State == run.Waiting && k.rec.Park.On == run.OnInput:
				_, err = p.plane.Signal(w.ctx, id, "go", "", json.RawMessage(`1`), "client")
			}
			if err != nil {
				w.fail("a waiting run takes what it waits for", "run %s: %v", id, err)
			}
		})
	}
	w.resolve(p)
	w.decideAll(p)
}

// round lets every worker and executor do its part, then time go on.
func (w *world) round(p *process, r *rng) {
	for _, x := range w.alive() {
		w.beat(x, p, r)
		w.lease(x, p, r)
	}
	p.settle()
	for _, a := range w.executing() {
		for range 6 {
			if a.dead || a.last != nil || a.stop || !hasEffects(a.Agent.Name()) || a.call == nil {
				break
			}
			w.act(a, r)
		}
		switch {
		case a.dead:
		case a.stop:
			w.report(a, runtime.Report{Type: runtime.Failed, Run: a.Run, N: a.N, Worker: a.who(), Class: run.ClassCanceled, Ended: true}, true, r)
		case a.last != nil: // nobody has told it yet that it was heard
			w.report(a, *a.last, true, r)
		case a.call == nil && a.undoesMore():
			w.act(a, r)
		case a.call == nil && hasProgram(a.Agent.Name()):
			w.goOn(a, r)
		case a.call == nil:
			w.report(a, runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Worker: a.who(), Output: json.RawMessage(`"at last"`)}, true, r)
		}
	}
	p.settle()
	d := 3 * time.Second
	if len(w.executing()) == 0 && w.idle() {
		if at := w.ledger.nextDue(p.now()); at != 0 {
			d = max(min(at.Sub(p.now()), time.Hour), d)
		}
	}
	w.advance(d)
}

// idle reports whether no run is queued or live.
func (w *world) idle() bool {
	for _, k := range w.ledger.runs {
		if k.rec.State == run.Queued || k.rec.State == run.Unschedulable || k.rec.Live() {
			return false
		}
	}
	return true
}

// closed checks the whole story of every run as it is on disk.
func (l *ledger) closed(p *process) {
	w := l.w
	for _, id := range l.order {
		k := l.runs[id]
		if k == nil {
			continue
		}
		w.on(p, func() {
			events, err := p.plane.History(w.ctx, id, 0, 1<<20)
			if err != nil || len(events) != len(k.events) {
				w.fail("a history is whole", "run %s: %d events of %d, %v", id, len(events), len(k.events), err)
			}
		})
	}
	l.undone()
	for id, g := range l.gates {
		if g.State == run.GateOpen {
			w.fail("a gate closes with its run", "gate %s of run %s is %s", id, g.Run, g.State)
		}
	}
}
