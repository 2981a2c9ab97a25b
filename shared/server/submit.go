package server

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

const (
	maxKey    = 200 // bytes of an idempotency key
	maxSmall  = 256 << 10
	maxBatchP = "1,000"
)

var (
	idempotencyKey = headerParam("Idempotency-Key", "The same as key in the body.")
	traceparent    = headerParam("traceparent", "W3C trace context that the run continues.")
	waitParam      = queryParam("wait", "How long to wait for the run to end, such as 30s; 60s at most.")
	goodTrace      = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)
)

var submitErrors = []int{400, 404, 409, 413, 415, 429, 501, 503}

func (s *Server) runDoors() {
	s.plain(door{
		method: "POST", path: "/v1/runs", id: "submitRun", tag: "runs", need: submit, hot: true,
		summary: "Submit a run. The same key and body give the same run, with 200 instead of 201.",
		body:    api.Submit{}, answer: api.Run{}, status: 201, also: []int{200},
		params: []*huma.Param{idempotencyKey, traceparent}, errors: submitErrors,
	}, s.submitRun)
	s.plain(door{
		method: "POST", path: "/v1/runs:batch", id: "submitRuns", tag: "runs", need: submit, hot: true,
		summary: "Submit up to " + maxBatchP + " runs; the outcomes come in order, each for itself.",
		body:    api.BatchSubmit{}, answer: api.List[api.BatchItem]{},
		params: []*huma.Param{traceparent}, errors: []int{400, 413, 415},
	}, s.submitRuns)
	s.plain(door{
		method: "POST", path: "/v1/agents/{name}:invoke", id: "invokeAgent", tag: "runs", need: submit,
		summary: "Submit a run and wait for its end: 200 with the run, however it ended, or 202 when it goes on. A client that leaves does not end the run.",
		body:    api.Submit{}, optional: true, answer: api.Run{}, gives: []string{"text/event-stream"}, also: []int{202},
		params: []*huma.Param{queryParam("wait", "60s unless given."), idempotencyKey, traceparent}, errors: submitErrors,
	}, s.invokeAgent)

	ordinary(s, door{
		method: "GET", path: "/v1/runs", id: "listRuns", tag: "runs", need: view,
		summary: "List runs, newest first, without their inputs and outputs.", errors: []int{400},
	}, s.listRuns)
	s.plain(door{
		method: "GET", path: "/v1/runs/{id}", id: "getRun", tag: "runs", need: view,
		summary: "Read a run; with wait, once it is over or the wait is.",
		answer:  api.Run{}, also: []int{304}, params: []*huma.Param{waitParam, queryParam("family", "true: with what it and all below it have cost."), headerParam("If-None-Match", "An etag; 304 when it is the run's.")},
		errors: []int{400, 404},
	}, s.getRun)
	s.plain(door{
		method: "GET", path: "/v1/runs/{id}/output", id: "getOutput", tag: "runs", need: view,
		summary: "The output alone, as the agent gave it.", answer: map[string]any{}, errors: []int{404, 409},
	}, s.getOutput)
	ordinary(s, door{
		method: "GET", path: "/v1/runs/{id}/tree", id: "getTree", tag: "runs", need: view,
		summary: "A run with its descendants, cut at 1,000.", errors: []int{400, 404},
	}, s.getTree)
	ordinary(s, door{
		method: "GET", path: "/v1/runs/{id}/attempts", id: "listAttempts", tag: "runs", need: view,
		summary: "Every attempt of a run, oldest first.", errors: []int{400, 404},
	}, s.listAttempts)
	ordinary(s, door{
		method: "GET", path: "/v1/runs/{id}/placement", id: "explainPlacement", tag: "runs", need: view,
		summary: "Where a run was placed and why; with target, why not there; while it waits, what binds.", errors: []int{400, 404},
	}, s.explainPlacement)
	ordinary(s, door{
		method: "GET", path: "/v1/runs/{id}/audit", id: "auditRun", tag: "runs", need: view,
		summary: "Input, decisions, attempts, effects and spend of a run in one document.", errors: []int{400, 404},
	}, s.auditRun)
}

// submission checks what the interface promises of a request for a run; the control plane checks the rest.
func submission(ctx context.Context, q *api.Submit, at string) (control.Submission, error) {
	p := principal(ctx)
	switch {
	case q.Job != "":
		return control.Submission{}, problem(http.StatusNotImplemented, api.CodeUnsupported, "jobs are not executed by this version; submit to an agent or a workflow")
	case q.Agent != "" && q.Workflow != "":
		return control.Submission{}, invalidAt(at+".workflow", "the run names agent %q too; give one of them", clip(q.Agent))
	case q.Workflow != "" && !isName.MatchString(q.Workflow):
		return control.Submission{}, invalidAt(at+".workflow", "%q is no workflow's name", clip(q.Workflow))
	case q.Workflow != "" && q.Session != "":
		return control.Submission{}, invalidAt(at+".session", "a workflow has no session; the agents that it calls may have one")
	case q.Agent == "" && q.Workflow == "":
		return control.Submission{}, invalidAt(at+".agent", "missing: name the agent that executes the run, or in its place a workflow")
	case q.Agent != "" && !isName.MatchString(q.Agent):
		return control.Submission{}, invalidAt(at+".agent", "%q is no agent's name", clip(q.Agent))
	case q.Tenant != "" && !isName.MatchString(q.Tenant):
		return control.Submission{}, invalidAt(at+".tenant", "%q is no tenant's name", clip(q.Tenant))
	case q.Priority != nil && (*q.Priority < 0 || *q.Priority > fleet.MaxPriority):
		return control.Submission{}, invalidAt(at+".priority", "%d; want 0 to %d", *q.Priority, fleet.MaxPriority)
	case len(q.Labels) > run.MaxLabels:
		return control.Submission{}, invalidAt(at+".labels", "%d labels; the limit is %d", len(q.Labels), run.MaxLabels)
	case len(q.Key) > maxKey:
		return control.Submission{}, invalidAt(at+".key", "%d bytes; the limit is %d", len(q.Key), maxKey)
	case len(q.Input) > api.MaxPayload:
		return control.Submission{}, located(problem(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "the input has %d bytes; the limit is %d", len(q.Input), api.MaxPayload), at+".input", "too large")
	case q.Budget != nil && (q.Budget.USD < 0 || q.Budget.Tokens < 0):
		return control.Submission{}, invalidAt(at+".budget", "negative; want 0 or more")
	}
	tenant, err := p.tenant(q.Tenant, at+".tenant")
	if err != nil {
		return control.Submission{}, err
	}
	sub := control.Submission{
		Agent: q.Agent, Workflow: q.Workflow, Input: q.Input, Tenant: tenant, Priority: q.Priority, Labels: q.Labels, Key: q.Key,
		Session: q.Session, Actor: p.Name,
	}
	if q.Deadline != nil {
		sub.Deadline = q.Deadline.Time
	}
	if q.NotBefore != nil {
		sub.NotBefore = q.NotBefore.Time
	}
	if q.Budget != nil {
		sub.BudgetUSD, sub.Tokens = q.Budget.USD, q.Budget.Tokens
	}
	return sub, nil
}

// tenant is whom a request of the principal is for: the one that it names, or the only one that it may.
func (p *Principal) tenant(named, at string) (string, error) {
	switch {
	case named == "" && p.sees(fleet.DefaultTenant):
		return fleet.DefaultTenant, nil
	case named == "" && len(p.Tenants) == 1:
		return p.Tenants[0], nil
	case named == "":
		return "", invalidAt(at, "missing: %s acts for %s; name one", p.Name, strings.Join(p.Tenants, ", "))
	case !p.sees(named):
		return "", located(problem(http.StatusForbidden, api.CodeForbidden, "%s may not act for tenant %q", p.Name, clip(named)), at, "not allowed")
	}
	return named, nil
}

// key merges the header with the body's key.
func key(r *http.Request, body string) (string, error) {
	header := r.Header.Get("Idempotency-Key")
	if len(header) > 1 && header[0] == '"' && header[len(header)-1] == '"' {
		header = header[1 : len(header)-1]
	}
	switch {
	case header == "":
		return body, nil
	case body != "" && body != header:
		return "", invalidAt("header.Idempotency-Key", "differs from key in the body; give one of them")
	case len(header) > maxKey:
		return "", invalidAt("header.Idempotency-Key", "%d bytes; the limit is %d", len(header), maxKey)
	}
	return header, nil
}

// trace is the caller's trace context, if it is well formed: what is not is ignored, as W3C asks.
func trace(r *http.Request) string {
	if t := r.Header.Get("traceparent"); goodTrace.MatchString(t) {
		return t
	}
	return ""
}

func (s *Server) submitRun(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.Submit](w, r, api.MaxBody, false)
	if err != nil {
		return err
	}
	done, err := s.submitOne(r, q)
	if err != nil {
		return err
	}
	out, err := s.whole(r.Context(), done.Run)
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if done.Existed {
		status = http.StatusOK
	}
	w.Header().Set("Location", "/v1/runs/"+out.ID)
	w.Header().Set("ETag", quoted(out.Etag))
	return writeJSON(w, status, out)
}

// submitOne submits and carries it through although the client may leave: the run exists or it does not.
func (s *Server) submitOne(r *http.Request, q api.Submit) (control.Submitted, error) {
	var err error
	if q.Key, err = key(r, q.Key); err != nil {
		return control.Submitted{}, err
	}
	sub, err := submission(r.Context(), &q, "body")
	if err != nil {
		return control.Submitted{}, err
	}
	sub.Trace = trace(r)
	ctx, cancel := detached(r.Context())
	defer cancel()
	done := s.plane.Submit(ctx, []control.Submission{sub})[0]
	return done, done.Err
}

func (s *Server) submitRuns(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.BatchSubmit](w, r, api.MaxBatchBody, false)
	if err != nil {
		return err
	}
	if n := len(q.Runs); n == 0 || n > api.MaxBatch {
		return invalidAt("body.runs", "%d runs; want 1 to %d", n, api.MaxBatch)
	}
	// 1. What cannot be submitted keeps its place in the answer.
	items := make([]api.BatchItem, len(q.Runs))
	subs := make([]control.Submission, 0, len(q.Runs))
	places := make([]int, 0, len(q.Runs))
	t := trace(r)
	for i := range q.Runs {
		sub, err := submission(r.Context(), &q.Runs[i], "body.runs["+itoa(i)+"]")
		if err != nil {
			items[i].Error = problemOf(r.Context(), s.log, err)
			continue
		}
		sub.Trace = t
		subs, places = append(subs, sub), append(places, i)
	}
	// 2. The rest goes in one call.
	if len(subs) > 0 {
		ctx, cancel := detached(r.Context())
		defer cancel()
		for j, done := range s.plane.Submit(ctx, subs) {
			item := &items[places[j]]
			if done.Err != nil {
				item.Error = problemOf(r.Context(), s.log, done.Err)
				continue
			}
			out := brief(done.Run)
			item.Run, item.Existed = &out, done.Existed
		}
	}
	return writeJSON(w, http.StatusOK, api.List[api.BatchItem]{Items: items})
}

func (s *Server) invokeAgent(w http.ResponseWriter, r *http.Request) error {
	// 1. What is asked.
	name := pathValue(r, "name")
	if err := objectName("agent", name); err != nil {
		return err
	}
	wait, err := waitOf(r.URL.Query().Get("wait"), "60s")
	if err != nil {
		return err
	}
	q, err := decode[api.Submit](w, r, api.MaxBody, true)
	if err != nil {
		return err
	}
	if q.Agent != "" && q.Agent != name {
		return invalidAt("body.agent", "%q, but the path names agent %q", clip(q.Agent), name)
	}
	q.Agent = name
	// 2. The run exists from here on, whatever becomes of this request.
	place := &s.waits
	if wantsStream(r) {
		place = &s.streams
	}
	if err := place.enter(); err != nil {
		return err
	}
	defer place.leave()
	done, err := s.submitOne(r, q)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/runs/"+done.Run.ID)
	if place == &s.streams {
		return s.streamEvents(w, r, done.Run, 0, true)
	}
	// 3. Wait for its end.
	rec := done.Run
	if !rec.State.Terminal() && wait > 0 {
		if rec, err = s.await(w, r, rec.ID, wait); err != nil {
			return err
		}
	}
	out, err := s.whole(r.Context(), rec)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if !out.Terminal() {
		status = http.StatusAccepted
	}
	w.Header().Set("ETag", quoted(out.Etag))
	return writeJSON(w, status, out)
}

// await waits for the end of a run: until the wait is over, the client leaves, or the server closes.
func (s *Server) await(w http.ResponseWriter, r *http.Request, id string, wait time.Duration) (*run.Record, error) {
	patience(w, wait)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.alive, cancel)()
	rec, err := s.plane.Await(ctx, id, wait)
	if err != nil && r.Context().Err() == nil && ctx.Err() != nil {
		return s.plane.Get(r.Context(), id) // the server closes: what is known now
	}
	return rec, err
}
