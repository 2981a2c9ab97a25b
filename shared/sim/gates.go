package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// people are those who decide. The client asks for runs, too.
var people = []run.Person{
	{Name: "ann", Roles: []string{"approver", "operator"}, Groups: []string{"leads"}},
	{Name: "bob", Roles: []string{"approver"}, Groups: []string{"ops", "leads"}},
	{Name: "cat", Roles: []string{"viewer"}},
	{Name: "client", Roles: []string{"approver"}, Groups: []string{"ops"}},
}

// question makes what people are asked.
func question(r *rng) run.GateAsk {
	q := run.GateAsk{
		Title: "may it?", Action: json.RawMessage(fmt.Sprintf(`{"a":%d}`, -1-r.n(3))), Quorum: 1 + r.n(2),
		Approvers: pick(r, [][]string{nil, {"group:leads"}, {"user:ann", "user:bob"}, {"role:approver"}, {"group:ops"}}),
		Expires:   time.Duration(15+r.n(600)) * time.Second, OnExpiry: pick(r, []run.OnExpiry{"", run.ExpiryReject, run.ExpiryApprove}),
		NotRequester: r.oneIn(2),
	}
	if r.oneIn(3) {
		q.Remind = time.Duration(10+r.n(60)) * time.Second
	}
	if r.oneIn(3) {
		q.EscalateTo = []string{"user:cat"}
		if q.OnExpiry = run.ExpiryEscalate; r.oneIn(2) {
			q.OnExpiry, q.EscalateAfter = run.ExpiryReject, time.Duration(5+r.n(60))*time.Second
		}
	}
	return q
}

// vote is what somebody said at a gate, in one round of it.
type vote struct {
	gate  string
	round int
	by    string
}

// may says why a person may not decide a gate, in plain words; "" if it may.
func may(g *run.Gate, p *run.Person) string {
	if g.NotRequester && g.Requester == p.Name {
		return "asked for the run"
	}
	if len(g.Approvers) == 0 {
		return ""
	}
	for _, who := range g.Approvers {
		kind, name, _ := strings.Cut(who, ":")
		if kind == "user" && name == p.Name || kind == "role" && contains(p.Roles, name) || kind == "group" && contains(p.Groups, name) {
			return ""
		}
	}
	return "is not asked"
}

func personNamed(name string) *run.Person {
	for i := range people {
		if people[i].Name == name {
			return &people[i]
		}
	}
	return nil
}

// wroteGate checks a written gate against the one before it.
func (l *ledger) wroteGate(u *store.Unit, d *store.Write) {
	w := l.w
	if d.Delete {
		delete(l.gates, d.ID)
		return
	}
	g, err := run.DecodeGate(d.Body)
	if err != nil {
		w.fail("gates can be read", "%s: %v", d.ID, err)
	}
	before := l.gates[d.ID]
	l.gates[d.ID] = g
	w.saw("gate " + string(g.State))
	var said []run.GateDecision
	// 1. What was said before stands.
	switch {
	case before == nil && (d.Expect != 0 || g.Round != 1):
		w.fail("a gate is written over the one before", "gate %s is new in version %d, round %d", g.ID, g.Version, g.Round)
	case before == nil:
	case d.Expect != before.Version, g.Version != before.Version+1, g.Run != before.Run, g.Step != before.Step:
		w.fail("a gate is written over the one before", "gate %s: version %d over %d, was %d", g.ID, g.Version, d.Expect, before.Version)
	case g.Round == before.Round+1:
		if answered(before.State) && before.ActionHash == g.ActionHash {
			w.fail("a gate is decided once", "gate %s is asked again, after it was %s", g.ID, before.State)
		}
		w.saw("gate asked anew")
	case g.Round != before.Round, g.ActionHash != before.ActionHash, g.Requester != before.Requester, g.Quorum != before.Quorum:
		w.fail("a gate is written over the one before", "gate %s: round %d after %d", g.ID, g.Round, before.Round)
	case before.State != run.GateOpen && before.State != run.GateRequested && g.State != before.State:
		w.fail("a gate is decided once", "gate %s was %s, then %s", g.ID, before.State, g.State)
	default:
		said = before.Decisions
	}
	if len(g.Decisions) < len(said) || len(g.Decisions) > len(said)+1 {
		w.fail("a gate keeps what was said", "gate %s has %d decisions after %d", g.ID, len(g.Decisions), len(said))
	}
	for i := range said {
		if g.Decisions[i] != said[i] {
			w.fail("a gate keeps what was said", "gate %s: %+v, was %+v", g.ID, g.Decisions[i], said[i])
		}
	}
	// 2. Who says something now may, and for the first time.
	for _, x := range g.Decisions[len(said):] {
		who := personNamed(x.By)
		if who == nil {
			w.fail("nobody decides who may not", "gate %s by %s", g.ID, x.By)
		}
		if why := may(g, who); why != "" {
			w.fail("nobody decides who may not", "gate %s by %s, who %s", g.ID, x.By, why)
		}
		for _, other := range said {
			if other.By == x.By {
				w.fail("everybody has one voice", "gate %s: %s twice", g.ID, x.By)
			}
		}
		if before == nil || before.State != run.GateOpen || x.At >= g.Expires || x.ActionHash != g.ActionHash {
			w.fail("a decision is about an open gate", "gate %s until %d: %+v", g.ID, g.Expires, x)
		}
	}
	// 3. Its state is what was said, or that nobody did.
	yes, no := 0, 0
	for _, x := range g.Decisions {
		if x.Decision == run.Approve {
			yes++
		} else {
			no++
		}
	}
	lapsed := g.State != run.GateOpen && g.EndedAt >= g.Expires
	switch {
	case g.State == run.GateApproved && !(no == 0 && yes >= g.Quorum) && !(g.ByPolicy && g.OnExpiry == run.ExpiryApprove && lapsed),
		g.State == run.GateRejected && no == 0,
		g.State == run.GateLapsed && !lapsed,
		g.State == run.GateOpen && (no > 0 || yes >= g.Quorum):
		w.fail("a gate is what was said at it", "gate %s is %s, %d yes of %d, %d no", g.ID, g.State, yes, g.Quorum, no)
	}
	// 4. What is decided reaches the run by the same write.
	if answered(g.State) && (before == nil || before.State != g.State) {
		l.decidedFor(u, g)
	}
}

// answered reports whether a gate has an answer.
func answered(s run.GateState) bool {
	return s == run.GateApproved || s == run.GateRejected || s == run.GateLapsed
}

// decidedFor checks that the run goes on with the answer.
func (l *ledger) decidedFor(u *store.Unit, g *run.Gate) {
	body, there := resultIn(u, g.Run, g.Step)
	var x struct{ Gate, Decision, ActionHash string }
	if !there || json.Unmarshal(body, &x) != nil || x.Gate != g.ID || x.Decision != string(g.State) || x.ActionHash != g.ActionHash {
		l.w.fail("a run gets the answer that was given", "gate %s is %s: %s", g.ID, g.State, body)
	}
	for i := range u.Writes {
		if u.Writes[i].Kind == store.KindRun && u.Writes[i].ID == g.Run {
			return
		}
	}
	l.w.fail("a decision wakes its run", "gate %s is %s, run %s is not written", g.ID, g.State, g.Run)
}

// gatesAndRuns checks, of what a unit has written, that a gate is open if and only if its run waits at it.
func (l *ledger) gatesAndRuns(u *store.Unit) {
	for i := range u.Writes {
		switch d := &u.Writes[i]; d.Kind {
		case store.KindGate:
			if g := l.gates[d.ID]; g != nil && l.runs[g.Run] != nil {
				l.gateOf(g, l.runs[g.Run].rec)
			}
		case store.KindRun:
			k := l.runs[d.ID]
			if k == nil {
				continue
			}
			if p := k.rec.Park; p != nil && p.On == run.OnGate && l.gates[p.Name] == nil {
				l.w.fail("a run waits at an open gate", "run %s at %s, which is not there", d.ID, p.Name)
			}
			for _, g := range l.gates {
				if g.Run == d.ID {
					l.gateOf(g, k.rec)
				}
			}
		}
	}
}

func (l *ledger) gateOf(g *run.Gate, r *run.Record) {
	waits := r.State == run.Waiting && r.Park.On == run.OnGate && r.Park.Name == g.ID
	switch asks := r.State == run.Compensating && r.Reason == run.CompensationFailed; {
	case asks: // whether to try again what could not be undone
	case waits && (g.State != run.GateOpen || g.Step != r.Park.Step):
		l.w.fail("a run waits at an open gate", "run %s at %s, which is %s", r.ID, g.ID, g.State)
	case !waits && g.State == run.GateOpen:
		l.w.fail("a gate closes with its run", "gate %s is open, run %s is %s", g.ID, r.ID, r.State)
	}
}

// gaveDecision: an attempt looks at the answer to its question.
func (l *ledger) gaveDecision(a *attempt, p *part, result json.RawMessage) {
	var x struct{ Gate, Decision, ActionHash string }
	err := json.Unmarshal(result, &x)
	if g := l.gates[run.GateID(a.Run, p.step)]; err != nil || g == nil || x.Decision != string(g.State) || x.ActionHash != g.ActionHash {
		l.w.fail("a run gets the answer that was given", "attempt %s, step %s: %s; the gate: %+v", a.ID(), p.step, result, g)
	}
}

// gatesIn lists the gates that are open, or those that are not.
func (l *ledger) gatesIn(open bool) []*run.Gate {
	var list []*run.Gate
	for _, id := range slices.Sorted(maps.Keys(l.gates)) {
		if g := l.gates[id]; (g.State == run.GateOpen) == open {
			list = append(list, g)
		}
	}
	return list
}

// opDecide lets somebody decide a gate that is open, or was; every other time two do, at once.
func (w *world) opDecide(r *rng) { w.decide(w.door(r), r) }

func (w *world) decide(p *process, r *rng) {
	list := w.ledger.gatesIn(!r.oneIn(6))
	if len(list) == 0 {
		return
	}
	g := pick(r, list)
	var votes []control.GateVote
	for range 1 + r.n(2) {
		v := control.GateVote{ID: g.ID, GateVote: run.GateVote{Person: pick(r, people), Decision: run.Approve}}
		if r.oneIn(3) {
			v.Decision = run.Reject
		}
		if len(votes) > 0 && r.oneIn(3) { // who has thought better of it
			v.Person = votes[0].Person
		}
		switch r.n(6) {
		case 0:
			v.ActionHash = "another"
		case 1, 2:
			v.ActionHash = g.ActionHash
		}
		votes = append(votes, v)
	}
	w.post(r, "decision at "+g.ID, func(heard bool) {
		w.on(p, func() { w.voted(p, votes) })
	})
}

// voted hands decisions in and compares the answers with what is known.
func (w *world) voted(p *process, votes []control.GateVote) {
	l := w.ledger
	before := l.gates[votes[0].ID]
	var rec *run.Record
	if before != nil && l.runs[before.Run] != nil {
		rec = l.runs[before.Run].rec
	}
	hangs, mets := p.hangs, p.store.mets
	out := p.plane.DecideGates(w.ctx, votes)
	for i, o := range out {
		v := &votes[i]
		w.say("%s says %s at gate %s: %v", v.Name, v.Decision, v.ID, o.Err)
		l.checkAnswer("decide a gate", o.Err)
		if o.Err == nil {
			w.saw("decision that was taken")
			l.votes[vote{v.ID, o.Gate.Round, v.Name}] = v.Decision
			l.stands(vote{v.ID, o.Gate.Round, v.Name}, v.Decision)
			continue
		}
		var refusal *control.Refusal
		if !errors.As(o.Err, &refusal) {
			continue
		}
		w.saw("decision refused: " + string(refusal.Code))
		now := l.gates[v.ID]
		spoke := false
		if now != nil {
			for _, x := range now.Decisions {
				spoke = spoke || x.By == v.Name
			}
		}
		// Why it is refused is true.
		truth := true
		switch {
		case now == nil || before == nil:
		case refusal.Code == control.CodeSelfApproval:
			truth = now.NotRequester && now.Requester == v.Name
		case refusal.Code == control.CodeForbidden:
			truth = may(now, &v.Person) != "" || may(before, &v.Person) != ""
		case refusal.Code == control.CodeDecided:
			truth = answered(now.State) || spoke
		case refusal.Code == control.CodeExpired:
			truth = now.State == run.GateLapsed || now.ByPolicy || p.now() >= now.Expires || p.hangs != hangs
		case refusal.Code == control.CodeChanged:
			truth = v.ActionHash != "" && v.ActionHash != now.ActionHash
		case refusal.Code == control.CodeConflict, refusal.Code == control.CodeUnavailable:
		case refusal.Code == control.CodeNotFound:
			truth = false
		case refusal.Code == control.CodeState, refusal.Code == control.CodeInvalid:
			truth = now.State == run.GateCanceled || now.State == run.GateRequested
		}
		if !truth {
			w.fail("a refused decision is told why", "gate %s is %s, %s is told: %v", v.ID, now.State, v.Name, o.Err)
		}
		// Who may decide is heard.
		if i == 0 && before != nil && before.State == run.GateOpen && may(before, &v.Person) == "" && now == before && !spoke && p.now() < before.Expires &&
			(v.ActionHash == "" || v.ActionHash == before.ActionHash) && rec.State == run.Waiting && p.hangs == hangs && p.store.mets == mets {
			w.fail("who may decide is heard", "gate %s is open, %s is told: %v", v.ID, v.Name, o.Err)
		}
	}
}

// stands checks that what somebody was told to have said is on record.
func (l *ledger) stands(at vote, said run.Verdict) {
	g := l.gates[at.gate]
	if g == nil || g.Round != at.round {
		return // its run was removed, or it asks about something else
	}
	for _, x := range g.Decisions {
		if x.By == at.by && x.Decision == said {
			return
		}
	}
	l.w.fail("a decision that was taken stands", "gate %s: %s was told that %s is taken; it has %+v", at.gate, at.by, said, g.Decisions)
}

// decideAll lets everybody who may approve what is open, so that no run waits for people.
func (w *world) decideAll(p *process) {
	for _, g := range w.ledger.gatesIn(true) {
		for _, who := range people {
			if w.ledger.gates[g.ID].State != run.GateOpen {
				break
			}
			w.on(p, func() {
				w.voted(p, []control.GateVote{{ID: g.ID, GateVote: run.GateVote{Person: who, Decision: run.Approve}}})
			})
		}
	}
	for at, said := range w.ledger.votes {
		w.ledger.stands(at, said)
	}
}
