package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// maxVotes bounds the decisions of one call.
const maxVotes = 1000

func (s *Server) gateDoors() {
	ordinary(s, door{
		method: "GET", path: "/v1/gates", id: "listGates", tag: "gates", need: view,
		summary: "Questions to people, the open ones unless told otherwise. A page may be short, or empty, where a filter leaves gates out, and still have a next one.", errors: []int{400},
	}, s.listGates)
	ordinary(s, door{
		method: "GET", path: "/v1/gates/{id}", id: "getGate", tag: "gates", need: view,
		summary: "A gate with all that helps to decide it.", errors: []int{404},
	}, func(ctx context.Context, in *gateInput) (*tagged[api.Gate], error) {
		g, err := s.gateFor(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		out, err := s.wholeGate(ctx, g)
		if err != nil {
			return nil, err
		}
		return &tagged[api.Gate]{ETag: quoted(out.Etag), Body: out}, nil
	})
	s.plain(door{
		method: "POST", path: "/v1/gates/{id}:decide", id: "decideGate", tag: "gates", need: approve,
		summary: "Approve or reject. 409: expired, decided (by somebody else), changed (another action is asked for by now) or selfApproval; 403 for somebody who is not asked. The same word again is answered as the first time.",
		body:    api.GateDecide{}, answer: api.Gate{}, errors: []int{400, 404, 409, 413, 415, 503},
	}, s.decideGate)
	s.plain(door{
		method: "POST", path: "/v1/gates:decide", id: "decideGates", tag: "gates", need: approve,
		summary: "Up to 1,000 decisions, each for itself; what became of each comes in order.",
		body:    api.GateDecideBatch{}, answer: api.List[api.GateDecided]{}, errors: []int{400, 413, 415, 503},
	}, s.decideGates)
	s.plain(door{
		method: "POST", path: "/v1/attempts/{id}/gates", id: "requestGate", tag: "gates", need: attempt,
		summary: "Keep a question to people until the attempt parks on it ({on: gate, step}); nobody is asked before. The same step again replaces the question.",
		body:    api.GateRequest{}, answer: api.GateRequested{}, status: 201, errors: []int{400, 401, 404, 409, 413, 415, 503},
	}, s.requestGate)
}

type gateInput struct {
	ID string `path:"id" doc:"id of the gate"`
}

type listGatesInput struct {
	Page
	State    string `query:"state" enum:"open,requested,approved,rejected,expired,canceled,all" doc:"open unless given"`
	Approver string `query:"approver" maxLength:"256" doc:"who is asked: user:NAME, group:NAME, role:NAME, a user's NAME, or me for what the caller may decide"`
	Tenant   string `query:"tenant"`
	Run      string `query:"run"`
}

func (s *Server) listGates(ctx context.Context, in *listGatesInput) (*answer[api.List[api.Gate]], error) {
	p := principal(ctx)
	f := control.GateFilter{State: run.GateOpen, Tenant: in.Tenant, Tenants: p.Tenants, Run: in.Run}
	switch {
	case in.Tenant != "" && !isName.MatchString(in.Tenant):
		return nil, invalidAt("query.tenant", "%q is no tenant's name", clip(in.Tenant))
	case in.Run != "" && !isID.MatchString(in.Run):
		return nil, invalidAt("query.run", "%q is no run's id", clip(in.Run))
	case in.State == "all":
		f.State = ""
	case in.State != "":
		f.State = run.GateState(in.State)
	}
	kind, _, of := strings.Cut(in.Approver, ":")
	switch {
	case in.Approver == "me":
		person := p.person()
		f.Decides = &person
	case in.Approver == "":
	case !of:
		f.Approver = "user:" + in.Approver
	case kind == "user" || kind == "group" || kind == "role":
		f.Approver = in.Approver
	default:
		return nil, invalidAt("query.approver", "%q; want user:NAME, group:NAME, role:NAME or me", clip(in.Approver))
	}
	gates, next, err := s.plane.Gates(ctx, f, in.limit(), in.PageToken)
	if err != nil {
		return nil, err
	}
	out := api.List[api.Gate]{Items: make([]api.Gate, 0, len(gates)), NextPageToken: next}
	for _, g := range gates {
		out.Items = append(out.Items, gateOf(ctx, g))
	}
	return &answer[api.List[api.Gate]]{Body: out}, nil
}

// gateFor reads a gate that the principal sees. Another tenant's is as if it were not there.
func (s *Server) gateFor(ctx context.Context, id string) (*run.Gate, error) {
	if !isID.MatchString(id) {
		return nil, notFound("there is no gate %q", clip(id))
	}
	g, err := s.plane.Gate(ctx, id)
	if err != nil {
		return nil, err
	}
	p := principal(ctx)
	if !p.sees(g.Tenant) {
		return nil, notFound("there is no gate %q", id)
	}
	return g, nil
}

// gateOf is a gate as lists show it.
func gateOf(ctx context.Context, g *run.Gate) api.Gate {
	p := principal(ctx)
	person := p.person()
	out := api.Gate{
		ID: g.ID, Run: g.Run, Step: g.Step, Tenant: g.Tenant, Stage: g.Stage, Requester: g.Requester,
		State: string(g.State), Title: g.Title, Action: g.Action, ActionHash: g.ActionHash, Approvers: g.Approvers,
		Quorum: g.Quorum, NotRequester: g.NotRequester, Context: g.Context, Diff: g.Diff, Cost: costOf(g.Cost),
		RequestedAt: timeOf(g.RequestedAt), Expires: optional(g.Expires), OnExpiry: string(g.OnExpiry),
		RemindAt: optional(g.RemindAt), Reminded: g.Reminded,
		EscalateAt: optional(g.EscalateAt), EscalateTo: g.EscalateTo, EscalatedAt: optional(g.EscalatedAt),
		DecidedAt: optional(g.EndedAt), Decisions: said(g.Decisions), Refused: said(g.Refused),
		MayDecide: g.State == run.GateOpen && p.may(approve) == nil && g.Asks(&person), Etag: etagOf(g.Version),
	}
	if g.Kind == run.KindWorkflow {
		out.Workflow = g.Agent
	} else {
		out.Agent = g.Agent
	}
	return out
}

func said(list []run.GateDecision) []api.GateDecision {
	out := make([]api.GateDecision, 0, len(list))
	for _, d := range list {
		out = append(out, api.GateDecision{By: d.By, Decision: string(d.Decision), Comment: d.Comment, At: timeOf(d.At), Refused: string(d.Refused)})
	}
	return out
}

// wholeGate is a gate with the input of its run.
func (s *Server) wholeGate(ctx context.Context, g *run.Gate) (api.Gate, error) {
	out := gateOf(ctx, g)
	rec, err := s.plane.Get(ctx, g.Run)
	var refusal *control.Refusal
	switch {
	case errors.As(err, &refusal): // its run is about to be removed, and the gate with it
		return out, nil
	case err != nil:
		return out, err
	case rec.Input.Empty():
		return out, nil
	}
	input, err := s.plane.Value(ctx, rec.Input)
	if err != nil && !errors.Is(err, control.ErrValueGone) {
		return out, fmt.Errorf("read the input of run %s: %w", g.Run, err)
	}
	out.Input = input
	return out, nil
}

// vote checks a decision of the wire.
func (s *Server) vote(ctx context.Context, id string, q *api.GateDecide, at string) (control.GateVote, error) {
	p := principal(ctx)
	v := control.GateVote{ID: id, Tenants: p.Tenants, GateVote: run.GateVote{
		Person: p.person(), Decision: run.Verdict(q.Decision), Comment: q.Comment, ActionHash: q.ActionHash,
	}}
	switch {
	case !isID.MatchString(id):
		return v, notFound("there is no gate %q", clip(id))
	case v.Decision != run.Approve && v.Decision != run.Reject:
		return v, invalidAt(at+".decision", "%q; want approve or reject", clip(q.Decision))
	case len(q.Comment) > run.MaxComment:
		return v, invalidAt(at+".comment", "%d bytes; the limit is %d", len(q.Comment), run.MaxComment)
	case len(q.ActionHash) > 64:
		return v, invalidAt(at+".actionHash", "%d bytes; want the actionHash of the gate that was looked at", len(q.ActionHash))
	}
	return v, nil
}

// decide takes one decision and returns the gate after it.
func (s *Server) decide(ctx context.Context, id string, q *api.GateDecide) (*run.Gate, error) {
	v, err := s.vote(ctx, id, q, "body")
	if err != nil {
		return nil, err
	}
	out := s.plane.DecideGates(ctx, []control.GateVote{v})[0]
	return out.Gate, out.Err
}

func (s *Server) decideGate(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.GateDecide](w, r, maxSmall, false)
	if err != nil {
		return err
	}
	ctx, cancel := detached(r.Context())
	defer cancel()
	g, err := s.decide(ctx, pathValue(r, "id"), &q)
	if err != nil {
		return err
	}
	out, err := s.wholeGate(ctx, g)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", quoted(out.Etag))
	return writeJSON(w, http.StatusOK, out)
}

func (s *Server) decideGates(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.GateDecideBatch](w, r, api.MaxBody, false)
	if err != nil {
		return err
	}
	if len(q.Items) > maxVotes {
		return invalidAt("body.items", "%d decisions; the limit is %d", len(q.Items), maxVotes)
	}
	ctx, cancel := detached(r.Context())
	defer cancel()
	return writeJSON(w, http.StatusOK, api.List[api.GateDecided]{Items: s.decideMany(ctx, q.Items)})
}

// decideMany takes decisions, each for itself. What is wrong with one is told in its place.
func (s *Server) decideMany(ctx context.Context, asked []api.GateDecideItem) []api.GateDecided {
	out := make([]api.GateDecided, len(asked))
	var votes []control.GateVote
	var places []int
	for i := range asked {
		v, err := s.vote(ctx, asked[i].ID, &asked[i].GateDecide, "body.items["+itoa(i)+"]")
		if err != nil {
			out[i].Error = problemOf(ctx, s.log, err)
			continue
		}
		votes, places = append(votes, v), append(places, i)
	}
	for k, o := range s.plane.DecideGates(ctx, votes) {
		at := &out[places[k]]
		if o.Err != nil {
			at.Error = problemOf(ctx, s.log, o.Err)
			continue
		}
		g := gateOf(ctx, o.Gate)
		at.Gate = &g
	}
	return out
}

// gateAsk is a question of the wire. Whether it is a good one is for the kernel to say.
func gateAsk(q *api.GateAsk) run.GateAsk {
	std := func(d *api.Duration) time.Duration {
		if d == nil {
			return 0
		}
		return d.Std()
	}
	out := run.GateAsk{
		Title: q.Title, Action: q.Action, Approvers: slices.Clone(q.Approvers), Quorum: q.Quorum, NotRequester: q.NotRequester,
		Expires: std(q.Expires), OnExpiry: run.OnExpiry(q.OnExpiry), Remind: std(q.Remind), Context: q.Context, Diff: q.Diff,
	}
	if e := q.Escalate; e != nil {
		out.EscalateAfter, out.EscalateTo = std(e.After), slices.Clone(e.To)
	}
	return out
}

func (s *Server) requestGate(w http.ResponseWriter, r *http.Request) error {
	// 1. By what right.
	runID, n, _, err := s.holder(r)
	if err != nil {
		return err
	}
	// 2. What.
	q, err := decode[api.GateRequest](w, r, api.MaxBody, false)
	if err != nil {
		return err
	}
	if err := unitName("body.step", q.Step, runtime.MaxName); err != nil {
		return err
	}
	ctx, cancel := detached(r.Context())
	defer cancel()
	g, standingNow, err := s.plane.RequestGate(ctx, runID, n, q.Step, gateAsk(&q.GateAsk))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, api.GateRequested{Standing: standing(standingNow), Gate: gateOf(ctx, g)})
}
