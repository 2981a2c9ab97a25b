package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// call is an effect that an attempt is about: begun, performed, and then committed.
type call struct {
	name, nonce string
	id          string // of the receipt
	until       run.Instant
	may         bool // it was told to proceed
	acted       bool
	landsAt     time.Duration
	value       json.RawMessage
	found       string
}

// deed is something that happened on the outside.
type deed struct {
	receipt, attempt string
	at               time.Duration
	value            json.RawMessage
	repeatable       bool
}

// outside is the rest of the world. What reaches it happens, as often as it arrives: it is not idempotent.
type outside struct {
	w      *world
	deeds  []deed // that happened
	flying []deed // sent, and not there yet
}

func newOutside(w *world) *outside { return &outside{w: w} }

// happened is the truth about an effect.
func (o *outside) happened(receipt string) (bool, json.RawMessage) {
	for _, d := range o.deeds {
		if d.receipt == receipt {
			return true, d.value
		}
	}
	return false, nil
}

// forget: with a run that is removed its key is free, and what is done under it again is another thing.
func (o *outside) forget(receipt string) {
	o.deeds = slices.DeleteFunc(o.deeds, func(d deed) bool { return d.receipt == receipt })
}

// land lets what was sent take effect when its time has come.
func (o *outside) land() {
	var flying []deed
	for _, d := range o.flying {
		if d.at > o.w.passed {
			flying = append(flying, d)
			continue
		}
		o.happens(d)
	}
	o.flying = flying
}

func (o *outside) happens(d deed) {
	before, _ := o.happened(d.receipt)
	o.w.say("OUTSIDE: %s by %s", d.receipt, d.attempt)
	o.w.mixText(d.receipt + d.attempt)
	o.w.saw("effect: performed outside")
	if before && !d.repeatable {
		o.w.fail("an effect is performed at most once", "receipt %s, again by attempt %s", d.receipt, d.attempt)
	}
	o.deeds = append(o.deeds, d)
}

func hasEffects(agent string) bool {
	return agent == "reconciles" || agent == "repeats" || agent == "asks" || agent == "fails" || agent == "undoes"
}

// opAct moves an effect of some attempt on.
func (w *world) opAct(r *rng) {
	var list []*attempt
	for _, a := range w.executing() {
		if hasEffects(a.Agent.Name()) && a.last == nil {
			list = append(list, a)
		}
	}
	if a := pick(r, list); a != nil {
		w.act(a, r)
	}
}

// opOutlive lets a worker hang that was told to proceed with an effect. Its attempt is given up, another one comes to the
// same effect, and then the first goes on where it was, for its time is not over.
func (w *world) opOutlive(r *rng) {
	for _, x := range w.alive() {
		w.lease(x, w.door(r), r)
	}
	var list, fresh []*attempt
	for _, x := range w.alive() {
		for _, a := range x.holds {
			if hasEffects(a.Agent.Name()) && a.last == nil && (a.call == nil || !a.call.acted) {
				list = append(list, a)
				if w.ledger.runs[a.Run] != nil && w.ledger.runs[a.Run].rec.State == run.Assigned {
					fresh = append(fresh, a)
				}
			}
		}
	}
	if len(fresh) > 0 {
		list = fresh
	}
	a := pick(r, list)
	if a == nil {
		return
	}
	if p := pick(r, w.procs); r.oneIn(2) && !w.temper.calm { // whoever handed it over is another process than now
		if !p.down {
			p.die()
		}
		p.boot()
	}
	for range 2 {
		if a.call == nil || !a.call.may {
			w.act(a, r)
		}
	}
	if a.call == nil || !a.call.may || a.call.acted || a.dead {
		return
	}
	a.worker.stalled = w.passed + time.Hour
	for _, d := range []time.Duration{workerLease + time.Second, 2 * time.Second, 0, 4 * time.Second, 4 * time.Second, 4 * time.Second} {
		w.advance(d)
		for _, p := range w.procs {
			p.settle()
		}
		for _, x := range w.alive() {
			w.lease(x, w.door(r), r)
		}
		for _, b := range w.executing() {
			if b.Run == a.Run && b.last == nil && (b.call != nil || b.calls == 0) {
				w.act(b, r)
				w.saw("effect: a successor came to it")
			}
		}
	}
	if a.worker.stalled = w.passed; !a.dead {
		w.act(a, r)
	}
}

func (w *world) act(a *attempt, r *rng) {
	c := a.call
	switch {
	case c == nil:
		name := a.nextEffect()
		if name == "" {
			return
		}
		a.call = &call{name: name, nonce: fmt.Sprintf("%x", r.next())}
		w.begin(a, r)
	case !c.may:
		w.begin(a, r)
	case !c.acted && r.oneIn(8):
		w.end(a, r, control.EffectEnd{Abandon: true, Nonce: c.nonce})
	case !c.acted && w.now() >= c.until:
		a.call = nil // its time is over: it performs nothing any more
	case !c.acted:
		c.acted = true
		c.value = json.RawMessage(fmt.Sprintf(`"sent by %s"`, a.ID()))
		d := deed{receipt: c.id, attempt: a.ID(), at: w.passed, value: c.value, repeatable: a.Agent.Effects.OnUnknown == fleet.UnknownRepeat}
		if r.oneIn(2) { // it takes its time, also beyond the end of who sent it
			d.at += time.Duration(r.n(int((settle-2*maxSkew)/time.Millisecond))) * time.Millisecond
		}
		c.landsAt = d.at
		w.outside.flying = append(w.outside.flying, d)
		w.outside.land()
	case c.landsAt > w.passed: // it waits for the answer
	default:
		w.end(a, r, control.EffectEnd{Value: c.value})
	}
}

// begin asks to perform the effect.
func (w *world) begin(a *attempt, r *rng) {
	c, p := a.call, w.doorOf(a, r)
	b := control.EffectBegin{
		Run: a.Run, N: a.N, Step: "s", Effect: c.name, RequestHash: "h", Nonce: c.nonce,
		Timeout: time.Duration(10+r.n(80)) * time.Second, Reconciled: c.found, Compensable: a.Agent.Name() == "undoes" && !a.isUndoing(),
	}
	w.tell(a, r, "begin", func(heard bool) {
		w.on(p, func() {
			held := w.ledger.holds(a.Run, a.N)
			p.hears(a.worker)
			done := w.ledger.asks(p, a.Run, a.N)
			ans, err := p.plane.BeginEffect(w.ctx, b)
			done()
			if run.Begin(ans.Answer) != run.BeginFenced {
				w.ledger.fenced(a.Run, a.N, held, err)
			}
			w.say("%s begins %s: %s %v", a.ID(), c.name, ans.Answer, err)
			w.ledger.checkAnswer("begin", err)
			w.saw("effect: begin is answered " + ans.Answer)
			if err == nil {
				w.ledger.begun(a, &ans)
			}
			if a.call != c || c.may || !heard {
				return
			}
			if err != nil {
				w.givesUp(a, err)
				return
			}
			a.stop = a.stop || ans.Cancel
			c.id = ans.ID
			switch run.Begin(ans.Answer) {
			case run.BeginProceed:
				c.may, c.until = true, ans.Until
			case run.BeginDone:
				if _, value := w.outside.happened(ans.ID); string(value) != string(ans.Value) && a.Agent.Effects.OnUnknown != fleet.UnknownRepeat && !a.isUndoing() {
					w.fail("a done effect gives its result", "%s is told %s, the outside said %s", a.ID(), ans.Value, value)
				}
				a.call, a.calls = nil, a.calls+1
			case run.BeginUnknown:
				w.unknown(a, c, r)
			}
		})
	})
}

// unknown follows the policy of the agent.
func (w *world) unknown(a *attempt, c *call, r *rng) {
	switch a.Agent.Effects.OnUnknown {
	case fleet.UnknownReconcile:
		happened, value := w.outside.happened(c.id)
		if !happened {
			c.found = "didNotHappen" // the next begin says so
			return
		}
		w.end(a, r, control.EffectEnd{Value: value, Reconciled: true})
	case fleet.UnknownAsk:
		a.call = nil // a person will say; it asks again
	case fleet.UnknownFail:
		a.call = nil
		w.report(a, runtime.Report{
			Type: runtime.Failed, Run: a.Run, N: a.N, Worker: a.who(), Class: run.ClassUser, Code: string(run.OutcomeUnknown), Final: true, Ended: true,
		}, true, r)
	case fleet.UnknownRepeat:
		w.fail("an unknown effect is repeated where that is the policy", "%s is told unknown", a.ID())
	}
}

// end commits or abandons the effect.
func (w *world) end(a *attempt, r *rng, e control.EffectEnd) {
	c, p := a.call, w.doorOf(a, r)
	e.Run, e.N, e.Step, e.Effect = a.Run, a.N, "s", c.name
	if e.Abandon {
		c.may = false
		c.nonce = fmt.Sprintf("%x", r.next())
	}
	w.tell(a, r, "end of effect", func(heard bool) {
		w.on(p, func() {
			p.hears(a.worker)
			done := w.ledger.asks(p, a.Run, a.N)
			res, err := p.plane.EndEffect(w.ctx, e)
			done()
			w.say("%s ends %s (abandon %t): %v", a.ID(), c.name, e.Abandon, err)
			w.ledger.checkAnswer("end effect", err)
			if errors.Is(err, run.ErrFenced) {
				w.saw("effect: end of a fenced attempt refused")
			}
			if err == nil && !e.Abandon && w.ledger.receipts[c.id].State != run.ReceiptDone {
				w.fail("a committed effect is on record", "receipt %s is %s", c.id, w.ledger.receipts[c.id].State)
			}
			if !heard || a.call != c {
				return
			}
			if err != nil {
				w.givesUp(a, err)
				return
			}
			a.stop = a.stop || res.Cancel
			if a.call = nil; !e.Abandon {
				a.calls++
			}
		})
	})
}

// givesUp: a fenced attempt ends where it is; after an outage it tries again.
func (w *world) givesUp(a *attempt, err error) {
	if errors.Is(err, run.ErrFenced) {
		a.drop("it is fenced")
	}
}

// doorOf is where the attempt's calls go.
func (w *world) doorOf(a *attempt, r *rng) *process {
	if a.exec != nil {
		return a.exec.p
	}
	return w.door(r)
}

func (w *world) tell(a *attempt, r *rng, what string, send func(heard bool)) {
	if a.exec != nil {
		send(true)
		return
	}
	w.post(r, what+" of "+a.ID(), send)
}
