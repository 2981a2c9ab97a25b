package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
)

// submission is a request that a client waits for.
type submission struct {
	control.Submission
	retryOf string
	heard   bool
}

// opStep and opSettle also bring a process back that is down. opStep makes a pass that nothing asked for; opSettle
// makes those that the product's own loop would make now, and often that is none.
func (w *world) opStep(r *rng) {
	p := w.procs[r.n(len(w.procs))]
	if p.down {
		p.bootIf(r)
		return
	}
	w.on(p, func() {
		if more := p.plane.Step(w.ctx, p.now()); more {
			p.sleepsTo = w.passed
		} else {
			p.sleep()
		}
	})
}

func (w *world) opSettle(r *rng) {
	p := w.procs[r.n(len(w.procs))]
	if p.down {
		p.bootIf(r)
	}
	p.settle()
}

// bootIf starts the process; while its store is out of reach, whoever starts it mostly waits.
func (p *process) bootIf(r *rng) {
	if p.w.passed >= p.store.out || r.oneIn(6) {
		p.boot()
	}
}

func (w *world) advance(d time.Duration) {
	w.passed += d
	w.outside.land()
	for _, p := range w.procs {
		p.exec.kill()
	}
}

func (w *world) opTick(r *rng) {
	most := 1000
	if r.oneIn(3) {
		most = 10_000
	}
	w.advance(time.Duration(1+r.n(most)) * time.Millisecond)
}

func (w *world) opWait(r *rng) { w.advance(time.Duration(10+r.n(110)) * time.Second) }
func (w *world) opLeap(r *rng) { w.advance(time.Duration(1+r.n(60)) * time.Minute) }

// opNextDue goes to the next wake-up that a record names.
func (w *world) opNextDue(*rng) {
	if at := w.ledger.nextDue(w.procs[0].now()); at != 0 {
		w.advance(min(at.Sub(w.procs[0].now()), time.Hour))
	}
}

// opSkew sets a process's clock.
func (w *world) opSkew(r *rng) {
	p, most := w.procs[r.n(len(w.procs))], maxSkew
	if !w.temper.effects && r.oneIn(2) {
		most = wildSkew
	}
	p.offset = time.Duration(r.n(int(2*most/time.Millisecond)))*time.Millisecond - most
	p.set = true
	w.saw("clock set")
	w.say("the clock of process %s is off by %s", p.name, p.offset)
}

var tenants = []string{"t0", "t1", "t2"}

func (w *world) opSubmit(r *rng) { w.submit(r, pick(r, tenants)) }

func (w *world) opFlood(r *rng) {
	tenant := "t2"
	if w.temper.fair {
		tenant = pick(r, tenants)
	}
	for range 6 {
		w.submit(r, tenant)
	}
}

func (w *world) submit(r *rng, tenant string) {
	s := &submission{Submission: control.Submission{
		Tenant: tenant, Agent: w.agentToAsk(r), Actor: "client",
	}}
	s.Input = w.inputFor(s.Agent, r)
	if w.temper.calls && r.oneIn(4) {
		s.Agent, s.Workflow = "", "flow"
	}
	if r.oneIn(3) && !w.temper.fair { // a known key takes a turn, and gives it back when it is written
		s.Key = fmt.Sprint("k", r.n(4))
	}
	p := w.door(r)
	if r.oneIn(4) {
		s.Priority = new(r.n(101))
	}
	if r.oneIn(6) {
		s.NotBefore = p.now().Add(time.Duration(1+r.n(120)) * time.Second).Time()
	}
	if r.oneIn(5) {
		s.Deadline = p.now().Add(time.Duration(150+r.n(600)) * time.Second).Time()
	}
	if s.Agent == "chat" {
		if s.Session = "s" + tenant[1:]; r.oneIn(4) {
			s.Session = "s0" // the name of another tenant's
		}
	}
	if len(w.ledger.order)+len(p.waiting) >= w.maxRuns() {
		return
	}
	w.post(r, "submit", func(heard bool) { w.enter(p, s, heard) })
}

// maxRuns bounds the runs of a world; it takes more of them to see shares.
func (w *world) maxRuns() int {
	if w.temper.fair {
		return 2 * maxRuns
	}
	return maxRuns
}

// enter hands a submission in; the answer comes now or with a later pass.
func (w *world) enter(p *process, s *submission, heard bool) {
	s = &submission{s.Submission, s.retryOf, heard}
	var out []control.Submitted
	answered, returned := false, false
	answer := func() {
		for i, x := range p.waiting {
			if x == s {
				p.waiting = append(p.waiting[:i:i], p.waiting[i+1:]...)
				break
			}
		}
		if s.heard {
			w.ledger.answered(p, s, out[0])
		}
	}
	w.on(p, func() {
		p.waiting = append(p.waiting, s)
		out, _ = p.plane.Enter(w.ctx, []control.Submission{s.Submission}, func() {
			if answered = true; returned {
				answer()
			}
		})
		if returned = true; answered {
			answer()
		}
	})
}

// anyRun is the id of some run that exists: every other time the one that it was before, for much goes wrong only when
// people act on one run again and again.
func (w *world) anyRun(r *rng) (string, bool) {
	if len(w.ledger.order) == 0 {
		return "", false
	}
	if again := r.oneIn(2); !again || w.subject == "" {
		w.subject = w.ledger.order[r.n(len(w.ledger.order))]
	}
	if w.temper.calls && r.oneIn(3) { // best one that waits for others, or has done what can be undone
		for _, id := range w.ledger.order {
			if k := w.ledger.runs[id]; k != nil && (k.rec.State == run.Waiting || k.rec.Undoable && !k.rec.State.Terminal()) && r.oneIn(3) {
				w.subject = id
			}
		}
	}
	_, there := w.ledger.runs[w.subject]
	return w.subject, there
}

// onRun lets a person act on some run. Refusals are answers as good as any other.
func (w *world) onRun(r *rng, what string, act func(p *process, id string) (*run.Record, error)) {
	id, ok := w.anyRun(r)
	if !ok {
		return
	}
	p := w.door(r)
	if r.oneIn(3) {
		p = pick(r, w.procs)
	}
	w.post(r, what+" "+id, func(heard bool) {
		w.on(p, func() {
			hangs, before := p.hangs, run.State("")
			if k := w.ledger.runs[id]; k != nil {
				before = k.rec.State
			}
			rec, err := act(p, id)
			w.say("%s %s: %s", what, id, outcomeOf(rec, err))
			w.ledger.checkAnswer(what, err)
			var refusal *control.Refusal
			if errors.As(err, &refusal) && refusal.Code == control.CodeState && p.hangs == hangs && possible(what, before) {
				w.fail("what can be done is done", "%s %s, which is %s: %v", what, id, before, err)
			}
			if err != nil {
				return
			}
			w.saw(what + " that was acknowledged")
			k := w.ledger.runs[id]
			switch {
			case rec == nil:
				w.fail("answers are whole", "%s %s gave neither a run nor an error", what, id)
			case k != nil && rec.Seq != k.rec.Seq && p.hangs == hangs:
				w.fail("answers are of now", "%s %s is answered with version %d of %d, %s", what, id, rec.Seq, k.rec.Seq, rec.State)
			}
		})
	})
}

// possible reports whether people can do this to a run in a state.
func possible(what string, s run.State) bool {
	switch what {
	case "resume":
		return s == run.Suspended
	case "cancel":
		return s != "" && !s.Terminal()
	case "suspend":
		return s != "" && !s.Terminal() && s != run.Canceling && s != run.Compensating
	}
	return false
}

func outcomeOf(rec *run.Record, err error) string {
	if err != nil {
		return err.Error()
	}
	if rec == nil {
		return "nothing"
	}
	return string(rec.State)
}

func (w *world) opCancel(r *rng) {
	g := time.Duration(r.n(20)) * time.Second
	w.onRun(r, "cancel", func(p *process, id string) (*run.Record, error) {
		rec, err := p.plane.Cancel(w.ctx, id, control.CancelRequest{Actor: "client", Grace: g})
		if k := w.ledger.runs[id]; err == nil && k != nil && !k.rec.State.Terminal() && k.rec.State != run.Canceling && k.rec.State != run.Compensating {
			w.fail("a cancel that was acknowledged holds", "run %s is %s afterwards", id, k.rec.State)
		}
		return rec, err
	})
}

func (w *world) opSuspend(r *rng) {
	w.onRun(r, "suspend", func(p *process, id string) (*run.Record, error) { return p.plane.Suspend(w.ctx, id, "client") })
}

func (w *world) opResume(r *rng) {
	w.onRun(r, "resume", func(p *process, id string) (*run.Record, error) { return p.plane.Resume(w.ctx, id, "client") })
}

func (w *world) opSignal(r *rng) {
	key := ""
	if r.oneIn(2) {
		key = fmt.Sprint("s", r.n(3))
	}
	w.onRun(r, "signal", func(p *process, id string) (*run.Record, error) {
		return p.plane.Signal(w.ctx, id, "go", key, json.RawMessage(`true`), "client")
	})
}

func (w *world) opScore(r *rng) {
	v := float64(r.n(100)) / 100
	w.onRun(r, "score", func(p *process, id string) (*run.Record, error) {
		return p.plane.Score(w.ctx, id, v, "judge", "")
	})
}

// opBegin: a program was called directly and registers its run under its own name.
func (w *world) opBegin(r *rng) {
	if len(w.ledger.order) >= maxRuns {
		return
	}
	p := w.door(r)
	b := control.Beginning{Worker: fmt.Sprint("direct", w.serial), Submission: control.Submission{
		Tenant: pick(r, tenants), Agent: w.agentToAsk(r), Actor: "client",
	}}
	b.Input = w.inputFor(b.Agent, r)
	if r.oneIn(3) {
		b.Key = fmt.Sprint("k", r.n(4))
	}
	w.serial++
	x := &worker{id: b.Worker, agents: []string{b.Agent}, slots: 1}
	w.workers = append(w.workers, x)
	w.post(r, "begin of "+b.Worker, func(heard bool) {
		w.on(p, func() {
			p.heard[x.id] = hearing{agents: x.agents, slots: 1, at: w.passed}
			led := p.leads()
			begun, err := p.plane.Begin(w.ctx, b)
			w.say("%s begins a run of %s: %v", b.Worker, b.Agent, err)
			w.ledger.checkAnswer("begin a run", err)
			if err != nil || begun.Assignment == nil { // its run of that key has ended
				return
			}
			a := *begun.Assignment
			if !led {
				w.fail("who registers a handler decides", "process %s does not, and began %s", p.name, a.ID())
			}
			w.saw("run begun directly")
			w.ledger.handed(p, x, &a)
			if k := w.ledger.runs[a.Run]; k.rec.Tenant != b.Tenant || k.rec.Agent != b.Agent || !bytes.Equal(k.rec.Input.Inline, b.Input) {
				w.fail("what is acknowledged is what was asked", "run %s is of %s for %s", a.Run, k.rec.Agent, k.rec.Tenant)
			}
			if heard && !x.vanished {
				x.holds = append(x.holds, &attempt{Assignment: a, worker: x})
			}
		})
	})
}

func (w *world) opRetry(r *rng) {
	id, ok := w.anyRun(r)
	if w.temper.calls && r.oneIn(2) { // best one that was undone
		for _, other := range w.ledger.order {
			if k := w.ledger.runs[other]; k != nil && k.rec.Agent == "undoes" && k.rec.Undoable && k.rec.State.Terminal() && k.rec.State != run.Succeeded {
				id, ok = other, true
			}
		}
	}
	if !ok || len(w.ledger.order) >= maxRuns {
		return
	}
	p := w.door(r)
	w.post(r, "retry "+id, func(heard bool) {
		w.on(p, func() {
			p.plane.EnterRetry(w.ctx, id, nil, "client", func(out control.Submitted) {
				w.say("retry %s: %s", id, outcomeOf(out.Run, out.Err))
				w.ledger.checkAnswer("retry", out.Err)
				if out.Err == nil && heard {
					w.ledger.retried(id, out.Run)
				}
			})
		})
	})
}

// opResolve: a person looks outside what became of an unknown effect, and says so.
func (w *world) opResolve(r *rng) { w.resolve(w.door(r)) }

func (w *world) resolve(p *process) {
	w.on(p, func() {
		list, _, err := p.plane.UnknownReceipts(w.ctx, 10, "")
		if err != nil {
			w.ledger.checkAnswer("list unknown receipts", err)
			return
		}
		for _, x := range list {
			happened, value := w.outside.happened(x.ID)
			got, err := p.plane.Resolve(w.ctx, x.ID, happened, value, "ann")
			w.say("resolve %s (happened: %t): %s, %v", x.ID, happened, got.State, err)
			w.ledger.checkAnswer("resolve", err)
		}
	})
}

// checkAnswer: an error is a refusal, a word of the kernel, or the outage that was simulated. Anything else is a bug.
func (l *ledger) checkAnswer(what string, err error) {
	var refusal *control.Refusal
	switch {
	case err == nil:
		l.w.mix(1)
	case errors.As(err, &refusal):
		l.w.mixText(string(refusal.Code))
	case errors.Is(err, errUnknown), errors.Is(err, run.ErrFenced), errors.Is(err, run.ErrState), errors.Is(err, run.ErrSettled),
		errors.Is(err, run.ErrActing), isConflict(err):
		l.w.mix(2)
	default:
		l.w.fail("errors are expected ones", "%s: %v", what, err)
	}
}
