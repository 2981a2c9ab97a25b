package server

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/run"
)

func itoa(i int) string { return strconv.Itoa(i) }

// Bounds of what one answer gathers.
const (
	pageSize     = 100
	maxTokenSize = 1 << 10
)

// runOf reads a run that the principal sees. Another tenant's is as if it were not there.
func (s *Server) runOf(ctx context.Context, id string) (*run.Record, error) {
	if err := runID(id); err != nil {
		return nil, err
	}
	r, err := s.plane.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	p := principal(ctx)
	if !p.sees(r.Tenant) {
		return nil, notFound("there is no run %q", id)
	}
	return r, nil
}

type runInput struct {
	ID string `path:"id" doc:"id of the run"`
}

// Page is the part of a list that is asked for. Huma finds embedded parameters in exported types alone.
type Page struct {
	Limit     int    `query:"limit" minimum:"1" maximum:"1000" doc:"items on a page; 100 unless given"`
	PageToken string `query:"pageToken" maxLength:"1024" doc:"nextPageToken of the page before"`
}

func (p *Page) limit() int {
	if p.Limit == 0 {
		return pageSize
	}
	return p.Limit
}

type answer[T any] struct{ Body T }

// tagged is an answer with the version of what it shows.
type tagged[T any] struct {
	ETag string `header:"ETag"`
	Body T
}

type listRunsInput struct {
	Page
	Agent    string   `query:"agent"`
	Workflow string   `query:"workflow"`
	Job      string   `query:"job"`
	State    []string `query:"state,explode" doc:"any of these; may be repeated or separated by commas"`
	Tenant   string   `query:"tenant"`
	Parent   string   `query:"parent"`
	Label    []string `query:"label,explode" doc:"NAME=VALUE; may be repeated: all of them"`
	Since    api.Time `query:"since" doc:"created at or after"`
	Until    api.Time `query:"until" doc:"created before"`
}

func (s *Server) listRuns(ctx context.Context, in *listRunsInput) (*answer[api.List[api.Run]], error) {
	f := api.RunFilter{Agent: in.Agent, Workflow: in.Workflow, Job: in.Job, Tenant: in.Tenant, Parent: in.Parent}
	for _, states := range in.State {
		f.State = append(f.State, strings.Split(states, ",")...)
	}
	for _, l := range in.Label {
		name, value, ok := strings.Cut(l, "=")
		if !ok || name == "" {
			return nil, invalidAt("query.label", "%q; want NAME=VALUE", clip(l))
		}
		if f.Labels == nil {
			f.Labels = make(map[string]string)
		}
		if was, twice := f.Labels[name]; twice && was != value {
			return nil, invalidAt("query.label", "%s is asked to be both %q and %q", clip(name), clip(was), clip(value))
		}
		f.Labels[name] = value
	}
	if !in.Since.IsZero() {
		f.Since = &in.Since
	}
	if !in.Until.IsZero() {
		f.Until = &in.Until
	}
	filter, err := filterOf(ctx, &f, "query")
	if err != nil {
		return nil, err
	}
	page, err := s.plane.List(ctx, filter, in.limit(), in.PageToken)
	if err != nil {
		return nil, err
	}
	return &answer[api.List[api.Run]]{Body: api.List[api.Run]{Items: briefs(page.Runs), NextPageToken: page.Next}}, nil
}

// filterOf checks a filter and narrows it to what the principal sees.
func filterOf(ctx context.Context, f *api.RunFilter, at string) (control.Filter, error) {
	p := principal(ctx)
	out := control.Filter{Agent: f.Agent, Workflow: f.Workflow, Tenant: f.Tenant, Tenants: p.Tenants, Parent: f.Parent, Labels: f.Labels}
	switch {
	case f.Job != "":
		return out, problem(http.StatusNotImplemented, api.CodeUnsupported, "jobs are not executed by this version; filter by agent or workflow")
	case f.Agent != "" && f.Workflow != "":
		return out, invalidAt(at+".workflow", "a run is of an agent or of a workflow; give one of them")
	case f.Workflow != "" && !isName.MatchString(f.Workflow):
		return out, invalidAt(at+".workflow", "%q is no workflow's name", clip(f.Workflow))
	case f.Agent != "" && !isName.MatchString(f.Agent):
		return out, invalidAt(at+".agent", "%q is no agent's name", clip(f.Agent))
	case f.Tenant != "" && !isName.MatchString(f.Tenant):
		return out, invalidAt(at+".tenant", "%q is no tenant's name", clip(f.Tenant))
	case f.Parent != "" && !isID.MatchString(f.Parent):
		return out, invalidAt(at+".parent", "%q is no run's id", clip(f.Parent))
	case len(f.Labels) > run.MaxLabels:
		return out, invalidAt(at+".labels", "%d labels; the limit is %d", len(f.Labels), run.MaxLabels)
	}
	for _, name := range f.State {
		state := run.State(name)
		if !state.Valid() {
			return out, invalidAt(at+".state", "%q is no state; the states are %s", clip(name), stateNames())
		}
		if !slices.Contains(out.States, state) {
			out.States = append(out.States, state)
		}
	}
	if f.Since != nil {
		out.Since = f.Since.Time
	}
	if f.Until != nil {
		out.Until = f.Until.Time
	}
	return out, nil
}

func stateNames() string {
	names := make([]string, len(run.States))
	for i, s := range run.States {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

func (s *Server) getRun(w http.ResponseWriter, r *http.Request) error {
	wait, err := waitOf(r.URL.Query().Get("wait"), "")
	if err != nil {
		return err
	}
	family, err := flag(r, "family")
	if err != nil {
		return err
	}
	rec, err := s.runOf(r.Context(), pathValue(r, "id"))
	if err != nil {
		return err
	}
	if wait > 0 && !rec.State.Terminal() {
		if err := s.waits.enter(); err != nil {
			return err
		}
		defer s.waits.leave()
		if rec, err = s.await(w, r, rec.ID, wait); err != nil {
			return err
		}
	}
	w.Header().Set("ETag", quoted(etagOf(rec.Seq)))
	if !family && r.Header.Get("If-None-Match") == quoted(etagOf(rec.Seq)) { // a family changes without the run
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	out, err := s.whole(r.Context(), rec)
	if err == nil && family {
		out.Family, err = s.familyOf(r.Context(), rec.ID)
	}
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}

func (s *Server) getOutput(w http.ResponseWriter, r *http.Request) error {
	rec, err := s.runOf(r.Context(), pathValue(r, "id"))
	switch {
	case err != nil:
		return err
	case !rec.State.Terminal():
		return problem(http.StatusConflict, api.CodeState, "run %s is %s: it has no output yet", rec.ID, rec.State)
	case rec.Output.Empty():
		return notFound("run %s is %s and gave no output", rec.ID, rec.State)
	}
	body, err := s.plane.Value(r.Context(), rec.Output)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", itoa(len(body)))
	_, _ = w.Write(body)
	return nil
}

func (s *Server) getTree(ctx context.Context, in *runInput) (*answer[api.TreeNode], error) {
	if _, err := s.runOf(ctx, in.ID); err != nil {
		return nil, err
	}
	n, err := s.plane.Tree(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &answer[api.TreeNode]{Body: tree(n)}, nil
}

func (s *Server) listAttempts(ctx context.Context, in *runInput) (*answer[api.List[api.Attempt]], error) {
	if _, err := s.runOf(ctx, in.ID); err != nil {
		return nil, err
	}
	as, err := s.plane.Attempts(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &answer[api.List[api.Attempt]]{Body: api.List[api.Attempt]{Items: attempts(in.ID, as)}}, nil
}

type explainInput struct {
	ID     string `path:"id" doc:"id of the run"`
	Target string `query:"target" doc:"why not there"`
}

func (s *Server) explainPlacement(ctx context.Context, in *explainInput) (*answer[api.Placement], error) {
	if _, err := s.runOf(ctx, in.ID); err != nil {
		return nil, err
	}
	if in.Target != "" && !isName.MatchString(in.Target) {
		return nil, notFound("there is no target %q", clip(in.Target))
	}
	e, err := s.plane.Explain(ctx, in.ID, in.Target)
	if err != nil {
		return nil, err
	}
	return &answer[api.Placement]{Body: placementOf(e)}, nil
}

type auditInput struct {
	ID string `path:"id" doc:"id of the run"`
	Page
}

// auditEvents is how many events a page of an audit has that asks for no number.
const auditEvents = 1000

func (s *Server) auditRun(ctx context.Context, in *auditInput) (*tagged[api.Audit], error) {
	// 1. The run as it is.
	rec, err := s.runOf(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	a := api.Audit{
		Attempts: []api.Attempt{}, Decisions: []api.AuditDecision{}, Approvals: []api.Gate{}, Receipts: []api.Receipt{}, Children: []api.Run{},
	}
	if a.Run, err = s.whole(ctx, rec); err != nil {
		return nil, err
	}
	// 2. What happened to it.
	after, err := seqOf("query.pageToken", in.PageToken)
	if err != nil {
		return nil, err
	}
	limit := auditEvents
	if in.Limit != 0 {
		limit = in.Limit
	}
	page, err := s.plane.History(ctx, in.ID, after, limit)
	if err != nil {
		return nil, err
	}
	a.Events = make([]api.Event, 0, len(page))
	for i := range page {
		e := &page[i]
		a.Events = append(a.Events, event(*e))
		if e.Type == run.EvAssigned {
			a.Decisions = append(a.Decisions, decisionOf(&e.Event))
		}
	}
	if len(page) == limit {
		a.NextPageToken = strconv.FormatInt(page[len(page)-1].Seq, 10)
	}
	if after == 0 {
		err = s.auditRest(ctx, rec, &a)
	}
	return &tagged[api.Audit]{ETag: quoted(a.Run.Etag), Body: a}, err
}

// auditRest adds what is not paged.
func (s *Server) auditRest(ctx context.Context, rec *run.Record, a *api.Audit) error {
	as, err := s.plane.Attempts(ctx, rec.ID)
	if err != nil {
		return err
	}
	a.Attempts = attempts(rec.ID, as)
	// 1. What people said.
	gates, err := s.plane.GatesOf(ctx, rec.ID)
	if err != nil {
		return err
	}
	for _, g := range gates {
		a.Approvals = append(a.Approvals, gateOf(ctx, g))
	}
	// 2. What it did outside, and what of that was undone.
	rs, err := s.plane.Receipts(ctx, rec.ID)
	if err != nil {
		return err
	}
	if a.Receipts, err = s.receipts(ctx, rs); err != nil {
		return err
	}
	// 3. What it and those below it cost.
	n, err := s.plane.Tree(ctx, rec.ID)
	if err != nil {
		return err
	}
	if a.Run.Family, err = s.familyOf(ctx, rec.ID); err != nil {
		return err
	}
	a.Spend = a.Run.Family.Cost
	var walk func(n control.TreeNode)
	walk = func(n control.TreeNode) {
		a.Truncated = a.Truncated || n.More
		for _, c := range n.Children {
			a.Children = append(a.Children, brief(c.Run))
			walk(c)
		}
	}
	walk(n)
	a.Truncated = a.Truncated || len(rs) >= maxAuditReceipts
	return nil
}

// familyOf is what a run and all below it have cost.
func (s *Server) familyOf(ctx context.Context, id string) (*api.Family, error) {
	f, err := s.plane.Spend(ctx, id)
	if err != nil {
		return nil, err
	}
	return &api.Family{Cost: costOf(f.Usage), Runs: f.Runs, Truncated: f.More}, nil
}

// maxAuditReceipts is how many receipts of one run are listed.
const maxAuditReceipts = 2000

// decisionOf is a placement as its event has it.
func decisionOf(e *run.Event) api.AuditDecision {
	d := api.AuditDecision{At: timeOf(e.At), Attempt: e.Attempt, Target: e.Target, Worker: e.Worker}
	if stored, err := placement.DecodeDecision(e.Detail); err == nil && len(e.Detail) > 0 {
		d.Why = stored.Message()
	}
	return d
}

// history reads events after a place in the history, most of them at most, in pages.
func (s *Server) history(ctx context.Context, id string, after int64, most int) (events []api.Event, more bool, err error) {
	events = []api.Event{}
	for len(events) < most {
		want := min(api.MaxPage, most-len(events))
		page, err := s.plane.History(ctx, id, after, want)
		if err != nil {
			return nil, false, err
		}
		for _, e := range page {
			events, after = append(events, event(e)), e.Seq
		}
		if len(page) < want {
			return events, false, nil
		}
	}
	return events, true, nil
}
