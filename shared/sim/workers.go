package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// worker is a process elsewhere that pulls runs of a target.
type worker struct {
	id, target string
	agents     []string
	slots      int
	draining   bool
	vanished   bool
	stalled    time.Duration // it does nothing until then
	holds      []*attempt
}

// hearing is what a control process was last told by a worker.
type hearing struct {
	target   string
	agents   []string
	slots    int
	draining bool
	at       time.Duration // when it last said so, or reported something
}

// attempt is an attempt as its executor has it.
type attempt struct {
	runtime.Assignment
	worker *worker
	exec   *executor
	steps  int
	stop   bool // told to end
	killAt time.Duration
	dead   bool // its process is gone
	call   *call
	calls  int             // effects that it is through with
	called int             // children of the step that it is at, called before it parks
	last   *runtime.Report // it has said its last word, and says it until it is answered
}

func (a *attempt) who() string {
	if a.worker != nil {
		return a.worker.id
	}
	return ""
}

// alive are the workers that do something now.
func (w *world) alive() []*worker {
	var list []*worker
	for _, x := range w.workers {
		if !x.vanished && x.stalled <= w.passed {
			list = append(list, x)
		}
	}
	return list
}

func (w *world) join(target string) *worker {
	x := &worker{id: fmt.Sprint("w", w.serial), target: target, agents: w.temper.agents, slots: 1 + w.serial%3}
	w.serial++
	w.workers = append(w.workers, x)
	return x
}

func (w *world) opJoin(r *rng) {
	there := 0
	for _, x := range w.workers {
		if !x.vanished {
			there++
		}
	}
	if there >= maxWorkers {
		return
	}
	x := w.join(pick(r, append([]string{""}, pollTargets...)))
	if r.oneIn(3) {
		x.agents = some(r, (1+len(x.agents))/2, slices.Clone(x.agents))
	}
	w.lease(x, w.door(r), r)
}

func (w *world) opLease(r *rng) {
	if x := pick(r, w.alive()); x != nil {
		w.lease(x, w.door(r), r)
	}
}

func (w *world) lease(x *worker, p *process, r *rng) {
	free := x.slots - len(x.holds)
	if free <= 0 || x.draining {
		return
	}
	req := control.LeaseRequest{Worker: x.id, Target: x.target, Agents: x.agents, Slots: x.slots, Max: free}
	w.post(r, "lease of "+x.id, func(heard bool) {
		w.on(p, func() {
			resp, err := p.plane.Lease(w.ctx, req)
			w.ledger.checkAnswer("lease", err)
			if err != nil {
				return
			}
			was := p.heard[x.id]
			drains := was.draining && w.passed-was.at < workerLease // one that was lost comes back as a new one
			p.heard[x.id] = hearing{x.target, req.Agents, req.Slots, drains, w.passed}
			for _, a := range resp.Leases {
				w.say("%s gets %s (%s)", x.id, a.ID(), a.Agent.Name())
				w.ledger.handed(p, x, &a)
				if heard {
					x.holds = append(x.holds, &attempt{Assignment: a, worker: x})
				}
			}
		})
	})
}

func (w *world) opBeat(r *rng) {
	x := pick(r, w.alive())
	for _, other := range w.alive() { // one that drains has more to say
		if other.draining && r.oneIn(3) {
			x = other
		}
	}
	if x != nil {
		w.beat(x, w.door(r), r)
	}
}

func (w *world) beat(x *worker, p *process, r *rng) {
	b := control.WorkerBeat{Worker: x.id, Target: x.target, Agents: x.agents, Slots: x.slots, Draining: x.draining}
	for _, a := range x.holds {
		b.Attempts = append(b.Attempts, a.ID())
	}
	if x.draining && contains(x.agents, "chat") { // a snapshot, also of what is not its
		state := json.RawMessage(fmt.Sprintf(`{"kept":"%s at %s"}`, x.id, w.passed))
		b.Sessions = map[string]json.RawMessage{"s0": state, "s1": state, "s2": state}
	}
	w.post(r, "beat of "+x.id, func(heard bool) {
		w.on(p, func() {
			w.ledger.snapping = x.id
			standing, err := p.plane.Beat(w.ctx, b)
			w.ledger.snapping = ""
			w.ledger.checkAnswer("beat", err)
			var refusal *control.Refusal
			if errors.As(err, &refusal) && refusal.Cause == nil || err != nil && b.Sessions != nil {
				return
			}
			// In an outage it was heard all the same: what failed is to answer it.
			p.heard[x.id] = hearing{x.target, b.Agents, b.Slots, b.Draining, w.passed}
			if err != nil || !heard || !p.leads() {
				return
			}
			known := make(map[string]control.AttemptStanding)
			for _, s := range standing.Attempts {
				known[s.ID] = s
			}
			for _, a := range append([]*attempt(nil), x.holds...) {
				if !contains(b.Attempts, a.ID()) {
					continue // it came while the beat was under way
				}
				s, mine := known[a.ID()]
				if !mine {
					a.drop("its worker is told that it is not its any more")
				}
				a.stop = a.stop || s.Cancel
			}
		})
	})
}

// drop ends the attempt where it runs, without a word.
func (a *attempt) drop(why string) {
	if a.dead {
		return
	}
	a.dead = true
	if a.worker != nil {
		a.worker.holds = without(a.worker.holds, a)
		return
	}
	a.exec.list = without(a.exec.list, a)
	a.exec.p.w.say("%s ends: %s", a.ID(), why)
}

func without(list []*attempt, a *attempt) []*attempt {
	for i, x := range list {
		if x == a {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}

func (w *world) opVanish(r *rng) {
	if x := pick(r, w.alive()); x != nil {
		w.say("%s vanishes", x.id)
		x.vanished = true
		for _, a := range x.holds {
			a.dead = true
		}
	}
}

func (w *world) opStall(r *rng) {
	x := pick(r, w.alive())
	for _, other := range w.alive() { // best in the middle of an effect
		for _, a := range other.holds {
			if a.call != nil && a.call.may && !a.call.acted && r.oneIn(2) {
				x = other
			}
		}
	}
	if x != nil {
		x.stalled = w.passed + time.Duration(15+r.n(50))*time.Second
		w.say("%s hangs until %s", x.id, x.stalled)
	}
}

func (w *world) opDrain(r *rng) {
	x := pick(r, w.alive())
	for _, other := range w.alive() { // best one that has a session to hand over
		for _, s := range w.ledger.sessions {
			if s.last == other.id && s.state != nil && !other.draining {
				x = other
			}
		}
	}
	if x == nil {
		return
	}
	x.draining = !x.draining
	w.say("%s drains: %t", x.id, x.draining)
	w.beat(x, w.door(r), r)
}

// hears notes a sign of life.
func (p *process) hears(x *worker) {
	if x != nil {
		p.lastWord[x.id] = p.w.passed
	}
}

// executing are the attempts that can do something now.
func (w *world) executing() []*attempt {
	var list []*attempt
	for _, x := range w.alive() {
		list = append(list, x.holds...)
	}
	for _, p := range w.procs {
		list = append(list, p.exec.list...)
	}
	return list
}

// opWork lets an attempt say something. One with an effect under way finishes that first.
func (w *world) opWork(r *rng) {
	a := pick(r, w.executing())
	switch {
	case a == nil:
	case a.last != nil:
		w.report(a, *a.last, true, r)
	case hasProgram(a.Agent.Name()) && r.n(4) > 0:
		w.goOn(a, r)
	case a.call != nil && r.n(4) > 0, a.call == nil && (a.calls < 2 || a.undoesMore()) && hasEffects(a.Agent.Name()) && r.n(3) > 0:
		w.act(a, r)
	default:
		w.work(a, r)
	}
}

var muchText = strings.Repeat("!", runtime.MaxLogLine+100)

func (w *world) work(a *attempt, r *rng) {
	rep := runtime.Report{Run: a.Run, N: a.N, Worker: a.who()}
	ends := true
	choice := r.n(20)
	if a.stop && r.n(4) > 0 {
		choice = 100
	}
	switch choice {
	case 0, 1:
		rep.Type, ends = runtime.Started, false
	case 2:
		rep.Type, ends = runtime.Beat, false
	case 3, 4:
		a.steps++
		rep.Type, ends = runtime.StepDone, false
		rep.Step = &runtime.Step{Name: fmt.Sprint("step", r.n(3)), Result: []byte(fmt.Sprint(a.N))}
	case 5:
		rep.Type, ends = runtime.Used, false
		rep.Usage = &run.Usage{InputTokens: int64(1 + r.n(9)), USD: 0.25}
	case 6:
		rep.Type, ends = runtime.Logged, false
		rep.Logs = []runtime.LogLine{{At: w.now(), Stream: "stderr", Text: "hm"}}
		if r.oneIn(40) {
			rep.Logs = nil
			for range runtime.MaxLogBytes/runtime.MaxLogLine + r.n(20) {
				rep.Logs = append(rep.Logs, runtime.LogLine{At: w.now(), Stream: "stderr", Text: muchText})
			}
		}
	case 7:
		rep.Type, ends = runtime.Progress, false
		rep.Fraction = 0.5
	case 8:
		rep.Type, rep.Message = runtime.Released, "draining"
	case 9:
		rep.Type = runtime.Parked
		rep.Park = &run.Park{On: run.OnTimer, Step: fmt.Sprint("sleep", r.n(3)), Until: w.now().Add(time.Duration(r.n(300)) * time.Second)}
	case 10:
		rep.Type = runtime.Parked
		rep.Park = &run.Park{On: run.OnInput, Name: "go", Step: fmt.Sprint("wait", r.n(3))}
		if r.oneIn(2) {
			rep.Park.Until = w.now().Add(time.Duration(10+r.n(300)) * time.Second)
		}
	case 11, 12, 13:
		rep.Type, rep.Message = runtime.Failed, "no"
		rep.Class = pick(r, []run.Class{run.ClassUser, run.ClassUser, run.ClassInfrastructure, run.ClassThrottled, run.ClassTimeout, run.ClassLost})
		rep.Final, rep.Ended = r.oneIn(6), r.oneIn(2)
		rep.RetryIn = time.Duration(r.n(3)*r.n(20)) * time.Second
	case 100:
		rep.Type, rep.Class, rep.Message, rep.Ended = runtime.Failed, run.ClassCanceled, "told to stop", true
	default:
		if a.undoesMore() { // it is honest: it succeeds when all is undone
			w.act(a, r)
			return
		}
		rep.Type, rep.Output = runtime.Completed, []byte(fmt.Sprintf(`"%s"`, a.ID()))
		if r.oneIn(2) {
			rep.Usage = &run.Usage{OutputTokens: int64(r.n(50)), USD: 0.5}
		}
	}
	if ends && a.Session != "" && rep.Type != runtime.Failed && rep.Type != runtime.Released {
		rep.Session = []byte(fmt.Sprintf(`{"last":"%s"}`, a.ID()))
	}
	if ends && a.call != nil && a.call.acted && a.call.landsAt > w.passed {
		rep.Ended = false // what it sent is still under way
	}
	w.report(a, rep, ends, r)
}

// report sends a report. A worker forgets an attempt when the end that it reported is acknowledged or refused; one that
// hears nothing says it again another time.
func (w *world) report(a *attempt, rep runtime.Report, ends bool, r *rng) {
	p := w.doorOf(a, r)
	if ends {
		a.last = &rep
	}
	send := func(heard bool) {
		w.on(p, func() {
			if _, err := p.plane.Verify(a.Token); err != nil {
				if heard {
					a.drop("its token is not good any more")
				}
				return
			}
			p.hears(a.worker)
			held := w.ledger.holds(rep.Run, rep.N)
			done := w.ledger.asks(p, rep.Run, rep.N)
			hangs := p.hangs
			res := p.plane.Report(w.ctx, []runtime.Report{rep})[0]
			done()
			w.say("%s reports %s: cancel %t, %v", a.ID(), rep.Type, res.Cancel, res.Err)
			if !errors.Is(res.Err, runtime.ErrInvalid) || rep.Type != runtime.StepDone && rep.Type != runtime.Parked {
				w.ledger.checkAnswer("report "+string(rep.Type), res.Err)
			}
			if res.Err == nil {
				w.ledger.reported(&rep, p.hangs == hangs)
			}
			w.ledger.fenced(rep.Run, rep.N, held, res.Err)
			if !heard {
				return
			}
			a.stop = a.stop || res.Cancel
			var state *run.StateError
			if errors.Is(res.Err, run.ErrFenced) || errors.As(res.Err, &state) || ends && res.Err == nil {
				a.drop("its report was answered")
			}
		})
	}
	if a.exec != nil { // inside the server: no message can be lost
		send(true)
		return
	}
	w.post(r, fmt.Sprintf("report %s of %s", rep.Type, a.ID()), send)
}

// executor is the runtime of the local target: its attempts live and die with their control process.
type executor struct {
	p     *process
	list  []*attempt
	fault startFault
}

type startFault uint8

const (
	startRefused startFault = iota + 1
	startUnknownDown
	startUnknownUp
	startFaults
)

func (x *executor) Start(_ context.Context, a runtime.Assignment) error {
	w := x.p.w
	fault := x.fault
	x.fault = 0
	if w.healing {
		fault = 0
	}
	w.ledger.handed(x.p, nil, &a)
	w.say("start %s on %s, fault %d", a.ID(), a.Target.Name(), fault)
	switch fault {
	case startRefused:
		return fmt.Errorf("no such program: %w", runtime.ErrRefused)
	case startUnknownDown:
		return errUnknown
	}
	for _, other := range x.list {
		if other.ID() == a.ID() {
			return nil
		}
	}
	x.list = append(x.list, &attempt{Assignment: a, exec: x})
	if fault == startUnknownUp {
		return errUnknown
	}
	return nil
}

func (x *executor) find(id string, n int) *attempt {
	for _, a := range x.list {
		if a.Run == id && a.N == n {
			return a
		}
	}
	return nil
}

func (x *executor) Stop(_ context.Context, id string, n int, _ run.Reason, g time.Duration) {
	if a := x.find(id, n); a != nil && !a.stop {
		a.stop, a.killAt = true, x.p.w.passed+g
	}
}

func (x *executor) Ended(id string, n int) {
	if a := x.find(id, n); a != nil {
		a.drop("the control plane says that it is over")
	}
}

func (x *executor) Lost(string) bool                           { return false }
func (x *executor) Forget(string)                              {}
func (x *executor) Close(context.Context, time.Duration) error { return nil }

// kill ends the attempts whose grace is over, and reports that.
func (x *executor) kill() {
	for _, a := range append([]*attempt(nil), x.list...) {
		if a.stop && a.killAt <= x.p.w.passed && !a.dead {
			a.drop("its grace is over")
			x.p.w.on(x.p, func() {
				done := x.p.w.ledger.asks(x.p, a.Run, a.N)
				x.p.plane.Report(x.p.w.ctx, []runtime.Report{{Type: runtime.Failed, Class: run.ClassCanceled, Run: a.Run, N: a.N, Ended: true, Message: "killed"}})
				done()
			})
		}
	}
}
