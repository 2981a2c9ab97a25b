package server

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/runtime"
)

func (s *Server) childDoors(errs []int) {
	s.plain(door{
		method: "POST", path: "/v1/attempts/{id}/children", id: "callChildren", tag: "workers", need: attempt,
		summary: "Call children of the run: up to 1,000 in a request, up to 10,000 in a step. The same call meets the same child.",
		body:    api.Children{}, answer: api.Spawned{}, errors: append(errs, 403),
	}, s.callChildren)
	page := []*huma.Param{queryParam("limit", "Items on a page, 1 to 1000; 100 unless given."), queryParam("pageToken", "nextPageToken of the page before.")}
	s.plain(door{
		method: "GET", path: "/v1/attempts/{id}/children/{step}", id: "listChildrenOfStep", tag: "workers", need: attempt,
		summary: "How the children of a step stand, in the order of their items, with the outputs of those that succeeded.",
		answer:  api.List[api.ChildResult]{}, params: page, errors: []int{400, 401, 404, 409, 503},
	}, s.childrenOf)
}

func (s *Server) callChildren(w http.ResponseWriter, r *http.Request) error {
	// 1. By what right.
	runID, n, _, err := s.holder(r)
	if err != nil {
		return err
	}
	// 2. What.
	q, err := decode[api.Children](w, r, 2*api.MaxBody, false)
	if err != nil {
		return err
	}
	if err := unitName("body.step", q.Step, runtime.MaxName); err != nil {
		return err
	}
	switch {
	case len(q.Children) == 0 || len(q.Children) > api.MaxCalls:
		return invalidAt("body.children", "%d calls; want 1 to %d in a request", len(q.Children), api.MaxCalls)
	case q.First < 0 || q.First >= api.MaxChildren:
		return invalidAt("body.first", "%d; want 0 to %d", q.First, api.MaxChildren-1)
	case q.Size < 0 || q.Size > api.MaxChildren:
		return invalidAt("body.size", "%d; want 1 to %d, or none", q.Size, api.MaxChildren)
	case q.Max < 0:
		return invalidAt("body.max", "%d; want 1 or more, or none", q.Max)
	}
	calls, err := callsOf(q.Children, "body.children")
	if err != nil {
		return err
	}
	// 3. They are durable when this returns. The client's leaving does not undo what it asked for.
	ctx, cancel := detached(r.Context())
	defer cancel()
	children, err := s.plane.Children(ctx, control.ChildCalls{Run: runID, N: n, Step: q.Step, First: q.First, Size: q.Size, Max: q.Max, Calls: calls})
	if err != nil {
		return err
	}
	out := api.Spawned{Children: make([]api.Child, 0, len(children))}
	for _, c := range children {
		out.Children = append(out.Children, api.Child(c))
	}
	return writeJSON(w, http.StatusOK, out)
}

func (s *Server) childrenOf(w http.ResponseWriter, r *http.Request) error {
	runID, n, _, err := s.holder(r)
	if err != nil {
		return err
	}
	step := pathValue(r, "step")
	if err := unitName("path.step", step, runtime.MaxName); err != nil {
		return err
	}
	limit, token, err := page(r)
	if err != nil {
		return err
	}
	p, err := s.plane.ChildrenOf(r.Context(), runID, n, step, token, limit)
	if err != nil {
		return err
	}
	out := api.List[api.ChildResult]{Items: make([]api.ChildResult, 0, len(p.Children)), NextPageToken: p.Next}
	for _, c := range p.Children {
		out.Items = append(out.Items, api.ChildResult{
			Item: c.Item, Run: c.Run, State: string(c.State), Reason: string(c.Reason), Code: c.Code, Message: c.Message, Output: c.Output,
		})
	}
	return writeJSON(w, http.StatusOK, out)
}

// callsOf checks calls of the wire.
func callsOf(calls []api.Call, at string) ([]runtime.Call, error) {
	out := make([]runtime.Call, len(calls))
	for i, c := range calls {
		where := at + "[" + itoa(i) + "]"
		switch {
		case (c.Agent == "") == (c.Workflow == ""):
			return nil, invalidAt(where, "want an agent or a workflow")
		case len(c.Input) > api.MaxPayload:
			return nil, located(problem(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "the input has %d bytes; the limit is %d", len(c.Input), api.MaxPayload), where+".input", "too large")
		}
		out[i] = runtime.Call(c)
	}
	return out, nil
}

// parkOnChildren checks what a park on children says.
func parkOnChildren(out *runtime.Report, p *api.Park, at string) error {
	if len(p.Children) > 0 && p.Size == 0 {
		p.Size = len(p.Children)
	}
	switch {
	case p.Until != nil:
		return invalidAt(at+".until", "is no part of a park on children: they end by their own deadlines")
	case p.Size < 0 || p.Size > api.MaxChildren:
		return invalidAt(at+".size", "%d; want 0 to %d", p.Size, api.MaxChildren)
	case len(p.Children) > 0 && p.Size != len(p.Children):
		return invalidAt(at+".size", "%d, with %d children; want all of them, or none that were called before", p.Size, len(p.Children))
	case p.Tolerate < 0:
		return invalidAt(at+".tolerate", "%d; want 0 or more", p.Tolerate)
	case p.Need < 0 || p.Need > p.Size:
		return invalidAt(at+".need", "%d of %d children; want up to as many", p.Need, p.Size)
	case p.Max < 0:
		return invalidAt(at+".max", "%d; want 1 or more, or none", p.Max)
	case p.Max > 0 && len(p.Children) == 0:
		return invalidAt(at+".max", "given without children; say it when they are called")
	}
	calls, err := callsOf(p.Children, at+".children")
	if err != nil {
		return err
	}
	if len(calls) > 0 {
		out.Calls, out.Max = calls, p.Max
	}
	out.Park.Size, out.Park.Tolerate, out.Park.Need = p.Size, p.Tolerate, p.Need
	return nil
}
