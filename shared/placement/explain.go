package placement

import (
	"fmt"
	"slices"
	"strings"
)

// Refusal is a filter's refusal.
type Refusal struct {
	Filter string `json:"filter"`
	Verdict
}

// Part is one scorer's share in a score.
type Part struct {
	Scorer string `json:"scorer"`
	Score  int    `json:"score"` // 0 to 100
	Weight int    `json:"weight"`
}

// Candidate is all that was said about one node.
type Candidate struct {
	Node     string    `json:"node"`
	Target   string    `json:"target"`
	Worker   string    `json:"worker,omitempty"`
	Refusals []Refusal `json:"refusals,omitempty"` // of every filter; what is in use is not asked where nothing fits
	Scores   []Part    `json:"scores,omitempty"`   // where it fits, even if nothing is free
	Score    int       `json:"score,omitempty"`    // weighted mean, 0 to 100
	Chosen   bool      `json:"chosen,omitempty"`

	sum      int32
	declared bool   // refused by what is declared
	counts   Reason // what a refusal counts as
}

// Explanation is a decision with every candidate, in the order of their names.
type Explanation struct {
	Decision   Decision
	Candidates []Candidate
}

// roomFilter is the name of the built-in filter over what is in use.
const roomFilter = "room"

// Explain decides as Place does, asking every plugin about every node, and keeps all that they said.
func (p *Profile) Explain(w *World, r *Request) Explanation {
	d, refused := p.access(w, r)
	if r.Agent == nil {
		return Explanation{Decision: d}
	}
	e := Explanation{Candidates: make([]Candidate, len(w.order))}
	var best ranking
	for i, n := range w.order {
		e.Candidates[i] = p.candidate(w, r, n)
		if c := &e.Candidates[i]; len(c.Refusals) == 0 {
			best.add(c.sum, i)
		}
	}
	if e.Decision = d; !refused {
		e.Decision = p.conclude(e.Candidates, best)
	}
	if best.n > 0 {
		e.Candidates[best.list[0].at].Chosen = true
	}
	return e
}

// WhyNot explains the nodes of one target: why each would be refused or what it scores. It is empty when there is no
// such target.
func (p *Profile) WhyNot(w *World, r *Request, target string) []Candidate {
	var list []Candidate
	for _, c := range p.Explain(w, r).Candidates {
		if c.Target == target {
			list = append(list, c)
		}
	}
	return list
}

// candidate asks every plugin about a node.
func (p *Profile) candidate(w *World, r *Request, n *Node) Candidate {
	c := Candidate{Node: n.name, Target: n.Target.Name(), Worker: n.Worker}
	asking := *r
	asking.explain = true
	ask := func(list []Filter, n *Node) {
		for _, f := range list {
			if v := f.Filter(w, &asking, n); !v.Feasible() {
				c.Refusals = append(c.Refusals, Refusal{f.Name(), v})
			}
		}
	}
	ask(p.Access, nil)
	ask(p.Filters, n)
	if len(c.Refusals) > 0 {
		c.counts = c.Refusals[0].Reason
	} else {
		c.counts = TenantExcluded
	}
	ask(p.Tenant, n)
	if c.declared = len(c.Refusals) > 0; c.declared {
		return c
	}
	if v := roomVerdict(&asking, n, n.heldFor(r)); !v.Feasible() {
		c.Refusals = append(c.Refusals, Refusal{roomFilter, v})
	}
	ask(p.Room, n)
	if len(c.Refusals) > 0 {
		c.counts = c.Refusals[0].Reason
	}
	agentOnly := Request{Agent: r.Agent}
	for _, group := range []struct {
		list []Weighted
		r    *Request
	}{{p.Scorers, &agentOnly}, {p.Load, nil}, {p.Agent, &agentOnly}} {
		for _, s := range group.list {
			score := min(max(s.Score(w, group.r, n), 0), 100)
			c.Scores = append(c.Scores, Part{s.Name(), score, s.Weight})
			c.sum += int32(score * s.Weight)
		}
	}
	c.Score = int(c.sum) / p.weight()
	return c
}

// conclude makes the decision that the candidates lead to.
func (p *Profile) conclude(list []Candidate, best ranking) Decision {
	d := Decision{Outcome: Unschedulable, Nodes: len(list), Final: len(list) > 0, WakeOn: wakeOnWorker, bests: best.n}
	var never, now tallies
	for i := range list {
		c := &list[i]
		d.Final = d.Final && c.declared && c.Refusals[0].Final
		if len(c.Refusals) == 0 {
			d.Fit++
			continue
		}
		count := &never
		if !c.declared {
			d.Fit++
			count = &now
		} else if at := c.Refusals[0].RetryAt; at != 0 && (d.RetryAt == 0 || at < d.RetryAt) {
			d.RetryAt = at
		}
		code := c.counts.code()
		if count[code].Count == 0 {
			count[code].Message = c.Refusals[0].Message
		}
		count.add(code, c.Node)
	}
	// Messages say what binds.
	for i := range never {
		if best.n > 0 {
			now[i].Message = ""
		}
		if d.Fit > 0 {
			never[i].Message = ""
		}
	}
	d.Refused = now.list(never.list(nil))
	switch {
	case best.n > 0:
		d.Outcome, d.WakeOn, d.RetryAt = Placed, nil, 0
		chosen := list[best.list[0].at]
		d.Node, d.Target, d.Worker, d.Score = chosen.Node, chosen.Target, chosen.Worker, chosen.Score
		for i, k := range best.list[:best.n] {
			d.best[i] = Scored{list[k.at].Node, list[k.at].Score}
		}
	case d.Fit > 0:
		d.Outcome, d.WakeOn, d.RetryAt = NoCapacity, wakeOnSlot, 0
	case d.Final:
		d.WakeOn = nil
	}
	return d
}

// Lines says in plain words what became of a candidate.
func (c Candidate) Lines() []string {
	var lines []string
	for _, r := range c.Refusals {
		lines = append(lines, fmt.Sprintf("%s: %s", c.Node, or(r.Message, string(r.Reason))))
	}
	if len(c.Scores) > 0 {
		parts := make([]string, len(c.Scores))
		for i, s := range c.Scores {
			parts[i] = fmt.Sprintf("%s %d×%d", s.Scorer, s.Score, s.Weight)
		}
		lines = append(lines, fmt.Sprintf("%s: score %d (%s)", c.Node, c.Score, strings.Join(parts, ", ")))
	}
	return lines
}

// Diagnosis says why a request is nowhere.
type Diagnosis struct {
	Outcome Outcome        `json:"outcome"`
	Nodes   int            `json:"nodes"`
	Reasons []ReasonCount  `json:"reasons"` // most frequent first
	Targets []TargetReason `json:"targets"` // by name
}

// ReasonCount is how many nodes were refused for a reason.
type ReasonCount struct {
	Reason Reason `json:"reason"`
	Count  int    `json:"count"`
}

// TargetReason is why one node refuses.
type TargetReason struct {
	Node     string   `json:"node"`
	Reasons  []Reason `json:"reasons"`
	Messages []string `json:"messages"` // one for each reason
}

// Diagnose asks every filter about every node. A node that would take the request is left out.
func (p *Profile) Diagnose(w *World, r *Request) Diagnosis { return p.Explain(w, r).Diagnosis() }

// Diagnosis is the explanation's part about refusals.
func (e Explanation) Diagnosis() Diagnosis {
	d := Diagnosis{Outcome: e.Decision.Outcome, Nodes: e.Decision.Nodes}
	if len(e.Candidates) == 0 {
		for _, t := range e.Decision.Refused {
			d.Reasons = append(d.Reasons, ReasonCount{t.Reason, t.Count})
		}
		return d
	}
	var count tallies
	for _, c := range e.Candidates {
		if len(c.Refusals) == 0 {
			continue
		}
		t := TargetReason{Node: c.Node}
		for _, r := range c.Refusals {
			t.Reasons = append(t.Reasons, r.Reason)
			t.Messages = append(t.Messages, or(r.Message, string(r.Reason)))
			count.add(r.Reason.code(), c.Node)
		}
		d.Targets = append(d.Targets, t)
	}
	for _, t := range count.list(nil) {
		d.Reasons = append(d.Reasons, ReasonCount{t.Reason, t.Count})
	}
	slices.SortStableFunc(d.Reasons, func(a, b ReasonCount) int { return b.Count - a.Count })
	return d
}

// maxLines bounds the targets that Lines names.
const maxLines = 20

// Lines is the diagnosis for people: a summary, one line for each of the first targets and the totals of the rest.
func (d Diagnosis) Lines() []string {
	var lines []string
	switch {
	case d.Outcome == Placed:
		return []string{"a target can take it now"}
	case d.Nodes == 0:
		return []string{"no target is declared"}
	case d.Outcome == NoCapacity:
		lines = append(lines, fmt.Sprintf("waits for room: none of %d targets can take it now", d.Nodes))
	default:
		lines = append(lines, fmt.Sprintf("unschedulable: none of %d targets can take it, even when empty", d.Nodes))
	}
	for i, t := range d.Targets {
		if i == maxLines {
			lines = append(lines, fmt.Sprintf("  … and %d more", len(d.Targets)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("  %s: %s", t.Node, strings.Join(t.Messages, "; ")))
	}
	counts := make([]string, len(d.Reasons))
	for i, r := range d.Reasons {
		counts[i] = fmt.Sprintf("%d %s", r.Count, r.Reason)
	}
	if d.Nodes > 1 && len(counts) > 0 {
		lines = append(lines, "in all: "+strings.Join(counts, ", "))
	}
	return lines
}
