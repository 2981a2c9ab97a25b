package server

import (
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/placement"
)

func placementOf(e control.Explanation) api.Placement {
	out := api.Placement{
		Run: e.Run.ID, State: string(e.Run.State), Chosen: e.Chosen, Worker: e.Worker, DecidedAt: optional(e.DecidedAt),
		Candidates: make([]api.Candidate, 0, len(e.Candidates)), Story: e.Story,
	}
	if out.Story == nil {
		out.Story = []string{}
	}
	for i := range e.Asks {
		out.Asks = append(out.Asks, ask(&e.Asks[i]))
	}
	for _, c := range e.Candidates {
		out.Candidates = append(out.Candidates, candidate(c))
	}
	if d := e.Stored; d != nil {
		out.Stored = decision(d)
	}
	if q := e.Queue; q != nil {
		out.Queue = &api.QueuePosition{
			Position: q.Position, Ahead: q.Ahead, Total: q.Total, Limit: q.Limit, NextLook: optional(q.NextLook), Estimate: optional(q.Estimate),
		}
	}
	return out
}

func ask(a *control.Ask) api.Ask {
	out := api.Ask{Run: a.Run, Owner: a.Owner, Commands: a.Commands()}
	if r := a.Receipt; r != nil {
		out.Receipt, out.Effect, out.EffectOf = r.ID, r.Effect, r.Run
	} else {
		out.Gate, out.Title = a.Gate.ID, a.Gate.Title
	}
	return out
}

func candidate(c placement.Candidate) api.Candidate {
	out := api.Candidate{Target: c.Target, Worker: c.Worker, Feasible: len(c.Refusals) == 0, Score: c.Score}
	for _, p := range c.Scores {
		out.Scores = append(out.Scores, api.Scored{Scorer: p.Scorer, Score: p.Score, Weight: p.Weight})
	}
	for _, r := range c.Refusals {
		out.Refusals = append(out.Refusals, api.Refusal{Filter: r.Filter, Reason: string(r.Reason), Message: r.Message, Final: r.Final})
	}
	return out
}

func decision(d *placement.Decision) *api.StoredDecision {
	out := &api.StoredDecision{Chosen: d.Node, Examined: d.Nodes}
	for _, b := range d.Best() {
		out.Best = append(out.Best, api.ScoredTarget{Target: b.Node, Score: b.Score})
	}
	for _, t := range d.Refused {
		names := []string{}
		for _, n := range t.Names {
			if n != "" {
				names = append(names, n)
			}
		}
		out.Refused = append(out.Refused, api.RefusedTargets{Reason: string(t.Reason), Count: t.Count, Names: names})
	}
	return out
}
