package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/server/dashboard"
)

// Bounds of what a page shows.
const (
	pageRuns   = 50
	pageEvents = 200
	pageLogs   = 500
	pageText   = 64 << 10 // bytes of an input or output
)

func (s *Server) pages() {
	s.page(door{
		path: "/", id: "pageFleet", need: view, summary: "The fleet and its runs, as a page.",
	}, s.overviewPage, "state", "agent", "workflow", "parent", "pageToken")
	s.page(door{
		path: "/runs/{id}", id: "pageRun", need: view, summary: "A run and its story, as a page.",
	}, s.runPage)
	s.gatePages()
	s.receiptPages()
	s.page(door{
		path: "/docs", id: "pageDocs", need: public, summary: "This description, as a page.",
	}, func(*http.Request) (any, error) { return s.docs(), nil })
	s.router.Get("/static/{name}", func(w http.ResponseWriter, r *http.Request) {
		if !dashboard.ServeStatic(w, r, pathValue(r, "name")) {
			writeProblem(w, notFound("there is no file %q", clip(pathValue(r, "name"))))
		}
	})
}

// page registers a page. A failure is a page as well, unless the caller wants no HTML.
func (s *Server) page(d door, content func(r *http.Request) (any, error), query ...string) {
	d.method, d.tag, d.gives = "GET", "operations", []string{"text/html"}
	for _, name := range query {
		d.params = append(d.params, queryParam(name, ""))
	}
	s.describe(d)
	s.router.Get(d.path, func(w http.ResponseWriter, r *http.Request) {
		r, err := s.admit(d.need, r)
		var data any
		if err == nil {
			data, err = content(r)
		}
		status := http.StatusOK
		if err != nil {
			p := problemOf(r.Context(), s.log, err)
			if !accepts(r, "text/html") {
				writeProblem(w, p)
				return
			}
			status, data = p.Status, dashboard.Failure{Version: s.version(), Problem: p}
			if status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", challenge)
			}
		}
		s.writePage(w, r, status, data)
	})
}

// challenge is how a browser asks who somebody is.
const challenge = `Basic realm="errand: any name, and an API token as password", charset="UTF-8"`

func (s *Server) writePage(w http.ResponseWriter, r *http.Request, status int, data any) {
	body, err := dashboard.Render(data)
	if err != nil {
		writeProblem(w, problemOf(r.Context(), s.log, err))
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", dashboard.Policy)
	// With no-referrer, which other answers have, a browser sends a form from nowhere (Origin: null), as a page of
	// somebody else's would.
	w.Header().Set("Referrer-Policy", "same-origin")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func (s *Server) version() api.Version {
	leader, epoch := s.plane.Health()
	return api.Version{
		Version: s.opts.Version, Go: goruntime.Version(), Store: s.opts.Store, Leader: leader, Epoch: epoch, Started: api.Time{Time: s.started},
	}
}

func (s *Server) overviewPage(r *http.Request) (any, error) {
	ctx := r.Context()
	q := r.URL.Query()
	// 1. The filters, which people may have edited.
	f := api.RunFilter{Agent: q.Get("agent"), Workflow: q.Get("workflow"), Parent: q.Get("parent")}
	if state := q.Get("state"); state != "" {
		f.State = []string{state}
	}
	filter, err := filterOf(ctx, &f, "query")
	if err != nil {
		return nil, err
	}
	token := q.Get("pageToken")
	if len(token) > maxTokenSize {
		return nil, invalidAt("query.pageToken", "it is no token of this server")
	}
	// 2. What there is.
	out := dashboard.Overview{
		Now: time.Now(), Version: s.version(), Paged: token != "",
		Filter: dashboard.Filter{State: q.Get("state"), Agent: f.Agent, Workflow: f.Workflow, Parent: f.Parent},
	}
	for _, state := range run.States {
		out.States = append(out.States, string(state))
	}
	p := principal(ctx)
	if p.everywhere() || len(p.Tenants) == 1 { // figures of several tenants cannot be told apart
		if out.Stats, err = s.statsFor(ctx, defaultWindow, "", ""); err != nil {
			return nil, err
		}
	}
	for _, part := range []struct {
		kind string
		into *[]api.Object
	}{{fleet.KindAgent, &out.Agents}, {fleet.KindTarget, &out.Targets}} {
		list, err := s.listDeclared(ctx, part.kind, &Page{Limit: api.MaxPage})
		if err != nil {
			return nil, err
		}
		*part.into = list.Body.Items
	}
	page, err := s.plane.List(ctx, filter, pageRuns, token)
	if err != nil {
		return nil, err
	}
	out.Runs, out.Next = briefs(page.Runs), page.Next
	return out, nil
}

func (s *Server) runPage(r *http.Request) (any, error) {
	ctx := r.Context()
	rec, err := s.runOf(ctx, pathValue(r, "id"))
	if err != nil {
		return nil, err
	}
	out := dashboard.Run{Now: time.Now(), Version: s.version(), Run: brief(rec)}
	// 1. What went in and came out.
	if out.Input, err = s.shown(ctx, rec.Input); err != nil {
		return nil, err
	}
	if out.Output, err = s.shown(ctx, rec.Output); err != nil {
		return nil, err
	}
	// 2. Its story. The newest events matter most.
	as, err := s.plane.Attempts(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	out.Attempts = attempts(rec.ID, as)
	after := max(rec.Seq-pageEvents, 0)
	out.MoreEvents = after > 0
	if out.Events, _, err = s.history(ctx, rec.ID, after, pageEvents); err != nil {
		return nil, err
	}
	e, err := s.plane.Explain(ctx, rec.ID, "")
	var refusal *control.Refusal
	switch {
	case err == nil:
		placed := placementOf(e)
		out.Story, out.Candidates = placed.Story, placed.Candidates
	case !errors.As(err, &refusal): // one that cannot be explained is still worth a page
		return nil, err
	}
	// 3. What it did and said.
	rs, err := s.plane.Receipts(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	if out.Receipts, err = s.receipts(ctx, rs); err != nil {
		return nil, err
	}
	lines, next, err := s.plane.Logs(ctx, rec.ID, "", pageLogs)
	if err != nil {
		return nil, err
	}
	out.MoreLogs = len(lines) >= pageLogs && next != ""
	out.Logs = logLines(lines[:min(len(lines), pageLogs)])
	// 4. What it called, and whom it asked. The newest matter most.
	children, err := s.plane.List(ctx, control.Filter{Parent: rec.ID}, pageRuns, "")
	if err != nil {
		return nil, err
	}
	out.Children, out.MoreChildren = briefs(children.Runs), children.Next != ""
	gates, err := s.plane.GatesOf(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	for _, g := range gates[max(len(gates)-pageRuns, 0):] {
		out.Gates = append(out.Gates, gateOf(ctx, g))
	}
	return out, nil
}

// shown is a payload for people.
func (s *Server) shown(ctx context.Context, p run.Payload) (dashboard.Value, error) {
	if p.Empty() {
		return dashboard.Value{}, nil
	}
	raw, err := s.plane.Value(ctx, p)
	switch {
	case errors.Is(err, control.ErrValueGone): // what else is known is what people need then
		return dashboard.Value{JSON: err.Error()}, nil
	case err != nil:
		return dashboard.Value{}, fmt.Errorf("read a payload: %w", err)
	}
	return dashboard.ValueOf(raw, pageText), nil
}

// docs is the OpenAPI document as a page.
func (s *Server) docs() dashboard.Docs {
	spec := s.api.OpenAPI()
	out := dashboard.Docs{Version: s.version(), Title: spec.Info.Title, Description: spec.Info.Description}
	for _, tag := range spec.Tags {
		group := dashboard.DocGroup{Name: tag.Name, Description: tag.Description}
		for _, op := range s.operations {
			if slices.Contains(op.Tags, tag.Name) {
				group.Operations = append(group.Operations, docOperation(op))
			}
		}
		slices.SortStableFunc(group.Operations, func(a, b dashboard.DocOperation) int {
			return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Method, b.Method))
		})
		out.Groups = append(out.Groups, group)
	}
	out.Schemas = docSchemas(spec.Components.Schemas.Map())
	return out
}
