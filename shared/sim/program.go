package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Agents with programs: they call others, ask people and sleep, in durable steps, and look at what they were given.
// What a program does follows from the run's input alone, so that every attempt of the run goes the same way.

// part is one durable step of a program.
type part struct {
	step  string
	on    run.ParkOn
	calls []runtime.Call
	apart bool // the children are called before the attempt parks on them
	none  bool // they are never called
	max   int
	fail  int // how many may fail
	need  int
	ask   run.GateAsk
	early bool // the gate is requested before the attempt parks on it
	sleep time.Duration
}

func hasProgram(agent string) bool { return agent == "boss" || agent == "mid" }

// inputFor is what an agent is asked for.
func (w *world) inputFor(agent string, r *rng) json.RawMessage {
	n := 2
	if hasProgram(agent) {
		n = 64
	}
	return json.RawMessage(fmt.Sprintf(`{"n":%d}`, r.n(n)))
}

// numberIn is the number in an input.
func numberIn(input json.RawMessage) int {
	var x struct {
		N int `json:"n"`
	}
	_ = json.Unmarshal(input, &x) // without one it is the program 0
	return x.N
}

// program is what the attempt goes through.
func (w *world) program(a *attempt) []part {
	n := numberIn(a.Input)
	r := rng(uint64(n) ^ w.programs ^ uint64(len(a.Agent.Name())))
	var parts []part
	for i := range 1 + r.n(2) {
		p := part{step: fmt.Sprint("part", i)}
		switch k := r.n(8); {
		case k < 4 || k < 6 && a.Agent.Name() == "mid":
			p.on = run.OnChildren
			p.calls = w.calls(a, &r)
			p.fan(&r)
		case k < 7:
			p.on = run.OnGate
			p.ask = question(&r)
			p.early = r.oneIn(3)
		default:
			p.on, p.sleep = run.OnTimer, time.Duration(r.n(60))*time.Second
		}
		parts = append(parts, p)
	}
	switch n { // programs that are wrong
	case 5, 10, 11, 12: // it asks for other children in every attempt
		if p := &parts[0]; p.on == run.OnChildren && len(p.calls) > 0 {
			p.apart = true
			p.calls[0].Input = json.RawMessage(fmt.Sprintf(`{"n":%d}`, 100+a.N))
		}
	case 6:
		parts[0] = part{step: "part0", on: run.OnChildren, calls: []runtime.Call{{Agent: "boss"}}, apart: r.oneIn(2)}
	case 7:
		parts[0] = part{step: "part0", on: run.OnChildren, calls: []runtime.Call{{Agent: "leaf"}}, none: true}
	case 8, 9: // it asks about another action in every attempt
		if p := &parts[0]; p.on == run.OnGate {
			p.ask.Action = json.RawMessage(fmt.Sprintf(`{"a":%d}`, a.N))
		}
	}
	return parts
}

// calls are those of one step: none, one or a few.
func (w *world) calls(a *attempt, r *rng) []runtime.Call {
	calls := make([]runtime.Call, pick(r, []int{0, 1, 1, 2, 3, 3, 4, 6}))
	for i := range calls {
		calls[i] = runtime.Call{Agent: "leaf", Input: json.RawMessage(fmt.Sprintf(`{"n":%d}`, r.n(2)))}
		if a.Agent.Name() == "boss" && r.oneIn(4) {
			calls[i].Agent = "keyed"
		}
		if a.Agent.Name() == "boss" && w.temper.effects && r.oneIn(2) {
			calls[i].Agent = "undoes"
		}
		if a.Agent.Name() == "boss" && r.oneIn(6) {
			calls[i] = runtime.Call{Workflow: "inner", Input: calls[i].Input}
		}
		if a.Agent.Name() == "boss" && r.oneIn(3) {
			calls[i] = runtime.Call{Agent: "mid", Input: json.RawMessage(fmt.Sprintf(`{"n":%d}`, r.n(64)))}
		}
	}
	return calls
}

// fan chooses how the children are waited for.
func (p *part) fan(r *rng) {
	n := len(p.calls)
	p.apart = r.oneIn(3)
	switch r.n(4) {
	case 0:
		p.fail = r.n(n + 1)
	case 1:
		if n > 0 {
			p.need = 1 + r.n(n)
		}
	}
	if r.oneIn(3) {
		p.max = 1 + r.n(2)
	}
}

// goOn takes an attempt the next step of its program.
func (w *world) goOn(a *attempt, r *rng) {
	rep := runtime.Report{Run: a.Run, N: a.N, Worker: a.who()}
	if a.stop {
		rep.Type, rep.Class, rep.Message, rep.Ended = runtime.Failed, run.ClassCanceled, "told to stop", true
		w.report(a, rep, true, r)
		return
	}
	for _, p := range w.program(a) {
		if result, ended := a.resultOf(p.step); ended {
			w.ledger.given(a, &p, result)
			continue
		}
		switch {
		case p.on == run.OnChildren && p.apart && a.called < len(p.calls):
			w.callChildren(a, &p, r)
			return
		case p.on == run.OnGate && p.early && a.called == 0:
			w.requestGate(a, &p, r)
			return
		}
		rep.Type = runtime.Parked
		rep.Park = &run.Park{On: p.on, Step: p.step}
		switch p.on {
		case run.OnChildren:
			rep.Park.Size, rep.Park.Tolerate, rep.Park.Need = len(p.calls), p.fail, p.need
			if rep.Max = p.max; !p.apart && !p.none {
				rep.Calls = p.calls
			}
		case run.OnGate:
			if !p.early {
				rep.Gate = &p.ask
			}
		case run.OnTimer:
			rep.Park.Until = w.now().Add(p.sleep)
		}
		w.report(a, rep, true, r)
		return
	}
	rep.Type, rep.Output = runtime.Completed, []byte(fmt.Sprintf(`"%s"`, a.ID()))
	w.saw("program that came to its end")
	w.report(a, rep, true, r)
}

// resultOf is what the attempt was given of a step.
func (a *attempt) resultOf(step string) (json.RawMessage, bool) {
	for _, s := range a.Steps {
		if s.Name == step {
			return s.Result, true
		}
	}
	return nil, false
}

// callChildren asks for the next few children of a step.
func (w *world) callChildren(a *attempt, of *part, r *rng) {
	p := w.doorOf(a, r)
	first := a.called
	c := control.ChildCalls{
		Run: a.Run, N: a.N, Step: of.step, First: first, Size: len(of.calls), Max: of.max,
		Calls: of.calls[first:min(first+1+r.n(3), len(of.calls))],
	}
	w.tell(a, r, "call of children", func(heard bool) {
		w.on(p, func() {
			if _, err := p.plane.Verify(a.Token); err != nil {
				return
			}
			p.hears(a.worker)
			var out []control.Child
			var failure error
			answered, returned := false, false
			answer := func() {
				w.say("%s calls %d children of %s from %d on: %v", a.ID(), len(c.Calls), c.Step, c.First, failure)
				w.ledger.checkAnswer("call children", failure)
				var refusal *control.Refusal
				switch {
				case failure != nil && !heard:
					return
				case errors.As(failure, &refusal) && refusal.RetryAfter == 0:
					w.report(a, runtime.Report{
						Type: runtime.Failed, Run: a.Run, N: a.N, Worker: a.who(), Class: run.ClassUser, Code: string(refusal.Code), Final: true, Ended: true,
					}, true, r)
					return
				case failure != nil:
					w.givesUp(a, failure)
					return
				}
				w.ledger.acknowledged(&c, out)
				if heard && a.called == c.First {
					a.called += len(c.Calls)
				}
			}
			out = p.plane.EnterChildren(w.ctx, c, func(err error) {
				if failure, answered = err, true; returned {
					answer()
				}
			})
			if returned = true; answered {
				answer()
			}
		})
	})
	if a.called == first && r.oneIn(8) { // it does not wait for the answer, and finds out when it parks
		a.called = len(of.calls)
	}
}

// requestGate puts a question before the attempt parks on it.
func (w *world) requestGate(a *attempt, of *part, r *rng) {
	p := w.doorOf(a, r)
	w.tell(a, r, "request of a gate", func(heard bool) {
		w.on(p, func() {
			if _, err := p.plane.Verify(a.Token); err != nil {
				return
			}
			held := w.ledger.holds(a.Run, a.N)
			p.hears(a.worker)
			done := w.ledger.asks(p, a.Run, a.N)
			g, _, err := p.plane.RequestGate(w.ctx, a.Run, a.N, of.step, of.ask)
			done()
			w.ledger.fenced(a.Run, a.N, held, err)
			w.ledger.checkAnswer("request a gate", err)
			w.say("%s requests the gate of %s: %v", a.ID(), of.step, err)
			if err == nil && w.ledger.gates[g.ID] == nil {
				w.fail("what is acknowledged is durable", "gate %s, requested by %s, does not exist", g.ID, a.ID())
			}
			switch {
			case !heard:
			case errors.Is(err, run.ErrFenced):
				w.givesUp(a, err)
			case err == nil:
				a.called = 1
			}
		})
	})
}

// opGoOn takes some attempt with a program a step on.
func (w *world) opGoOn(r *rng) {
	var list []*attempt
	for _, a := range w.executing() {
		if hasProgram(a.Agent.Name()) {
			list = append(list, a)
		}
	}
	switch a := pick(r, list); {
	case a == nil:
	case a.last != nil:
		w.report(a, *a.last, true, r)
	default:
		w.goOn(a, r)
	}
}
