package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/manifest"
)

// fakeServer answers as a server does, with runs that end as their input says: {"do": "fail"}, "cancel", "hang", "busy";
// anything else succeeds with the input as output.
type fakeServer struct {
	*httptest.Server
	now time.Time

	mu      sync.Mutex
	runs    []*api.Run
	bodies  map[string][]byte // by key
	objects map[string][]api.Object
	busy    int // how often what is "busy" is turned away
}

func newFakeServer() *fakeServer {
	f := &fakeServer{
		now: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), bodies: make(map[string][]byte),
		objects: make(map[string][]api.Object), busy: 1,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/apply", f.apply)
	for _, k := range kinds {
		mux.HandleFunc("GET /v1/"+k.plural, f.list(k))
		mux.HandleFunc("GET /v1/"+k.plural+"/{name}", f.object(k))
		mux.HandleFunc("DELETE /v1/"+k.plural+"/{name}", f.remove(k))
	}
	mux.HandleFunc("POST /v1/runs", f.submit)
	mux.HandleFunc("POST /v1/runs:batch", f.batch)
	mux.HandleFunc("GET /v1/runs", f.listRuns)
	mux.HandleFunc("GET /v1/runs/{id}", f.getRun)
	mux.HandleFunc("GET /v1/runs/{id}/{part}", f.part)
	mux.HandleFunc("POST /v1/runs/{id}", f.act)
	mux.HandleFunc("POST /v1/runs:cancel", f.bulk)
	mux.HandleFunc("GET /v1/receipts", func(w http.ResponseWriter, r *http.Request) {
		x := f.receipt("unknown")
		if r.URL.Query().Get("state") == api.ReceiptsUndoFailed {
			x.ID, x.State, x.UndoFailed = "rec2", "done", true
		}
		answer(w, 200, api.List[api.Receipt]{Items: []api.Receipt{x}})
	})
	mux.HandleFunc("POST /v1/receipts/{id}", f.resolve)
	mux.HandleFunc("GET /v1/gates", func(w http.ResponseWriter, r *http.Request) {
		items := []api.Gate{f.gate("gate1")}
		if r.URL.Query().Get("run") == "run2" || r.URL.Query().Get("run") == "" {
			items = append(items, f.gate("gate2"))
		}
		if r.URL.Query().Get("run") == "nope" {
			items = nil
		}
		answer(w, 200, api.List[api.Gate]{Items: items})
	})
	mux.HandleFunc("GET /v1/gates/{id}", func(w http.ResponseWriter, r *http.Request) {
		if id := r.PathValue("id"); strings.HasPrefix(id, "gate") {
			answer(w, 200, f.gate(id))
			return
		}
		refuse(w, 404, api.CodeNotFound, fmt.Sprintf("there is no gate %q", r.PathValue("id")))
	})
	mux.HandleFunc("POST /v1/gates:decide", f.decide)
	letter := api.DeadLetter{ID: "letter1", Trigger: "orders", MessageID: "136", Attempts: 5, Reason: "no such key: order", At: api.Time{Time: f.now}, Size: 11}
	mux.HandleFunc("GET /v1/deadletters", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, api.List[api.DeadLetter]{Items: []api.DeadLetter{letter}})
	})
	mux.HandleFunc("GET /v1/deadletters/{id}", func(w http.ResponseWriter, _ *http.Request) {
		letter := letter
		letter.Data = []byte(`{"order":7}`)
		answer(w, 200, letter)
	})
	mux.HandleFunc("POST /v1/deadletters/{id}", func(w http.ResponseWriter, r *http.Request) {
		var q api.Replay
		_ = json.NewDecoder(r.Body).Decode(&q)
		answer(w, 201, api.Run{ID: "again-" + q.Trigger, Agent: "greeter", State: "queued"})
	})
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, api.Version{Version: "v0.0.1-fake", Go: "go", Store: "fake", Leader: true, Epoch: 1, Started: api.Time{Time: f.now}})
	})
	mux.HandleFunc("GET /v1/stats", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, api.Stats{At: api.Time{Time: time.Now()}, States: map[string]int{"unschedulable": 2}})
	})
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer wrong" {
			refuse(w, 401, api.CodeUnauthorized, "the token is not known")
			return
		}
		mux.ServeHTTP(w, r)
	}))
	return f
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
}

func refuse(w http.ResponseWriter, status int, code, detail string, faults ...api.Fault) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(problemOf(status, code, detail, faults...))
}

func problemOf(status int, code, detail string, faults ...api.Fault) *api.Problem {
	return &api.Problem{Type: api.ProblemBase + code, Title: http.StatusText(status), Status: status, Detail: detail, Errors: faults}
}

// gate is an open gate; one whose number is above 2 cannot be decided.
func (f *fakeServer) gate(id string) api.Gate {
	expires := api.Time{Time: time.Now().Add(49 * time.Hour)}
	return api.Gate{
		ID: id, Run: "run1", Step: "pay", Tenant: "default", Agent: "greeter", Requester: "rita", State: "open", Title: "Pay \aACME",
		Action: json.RawMessage(`{"amount":12.5}`), ActionHash: "hash-" + id, Approvers: []string{"group:finance"}, Quorum: 2, Diff: "-0\n+12.5",
		Input: json.RawMessage(`{"vendor":"ACME"}`), Cost: api.Cost{USD: 0.5, Tokens: 7}, RequestedAt: api.Time{Time: f.now}, Expires: &expires,
		OnExpiry: "reject", Decisions: []api.GateDecision{},
	}
}

func (f *fakeServer) decide(w http.ResponseWriter, r *http.Request) {
	var q api.GateDecideBatch
	_ = json.NewDecoder(r.Body).Decode(&q)
	out := api.List[api.GateDecided]{}
	for _, item := range q.Items {
		g := f.gate(item.ID)
		g.State = item.Decision + "d"
		g.Decisions = []api.GateDecision{{By: r.Header.Get(api.HeaderAs) + "/" + r.Header.Get(api.HeaderGroups), Decision: item.Decision, Comment: item.Comment + "/" + item.ActionHash, At: api.Time{Time: f.now}}}
		switch item.ID {
		case "gate1", "gate2":
			out.Items = append(out.Items, api.GateDecided{Gate: &g})
		default:
			out.Items = append(out.Items, api.GateDecided{Error: problemOf(409, api.CodeDecided, "gate "+item.ID+": it is approved, by ann")})
		}
	}
	answer(w, 200, out)
}

func (f *fakeServer) apply(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	set, err := manifest.Parse([]manifest.File{{Name: "body", Data: bytes.NewReader(body)}}, manifest.Options{})
	if err != nil {
		refuse(w, 400, api.CodeInvalid, "the manifests are not valid", api.Fault{Message: err.Error()})
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var result api.ApplyResult
	for _, o := range set.Objects {
		form, _ := fleet.Encode(o.Object)
		object := api.Object{Etag: `"1"`, Status: &api.Status{Revision: 1}}
		_ = json.Unmarshal(form, &object)
		if r.URL.Query().Get("dryRun") == "" {
			f.objects[o.Kind()] = append(f.objects[o.Kind()], object)
		}
		applied := api.Applied{Kind: o.Kind(), Name: o.Name(), Action: "created"}
		if o.Name() == "odd" {
			applied.Warnings = []string{"odd agents are odd"}
		}
		result.Results = append(result.Results, applied)
	}
	answer(w, 200, result)
}

func (f *fakeServer) list(k kind) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		answer(w, 200, api.List[api.Object]{Items: f.objects[k.name]})
	}
}

func (f *fakeServer) object(k kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, o := range f.objects[k.name] {
			if objectName(o) == r.PathValue("name") {
				answer(w, 200, o)
				return
			}
		}
		refuse(w, 404, api.CodeNotFound, fmt.Sprintf("no %s %q", strings.ToLower(k.name), r.PathValue("name")))
	}
}

func (f *fakeServer) remove(k kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if m := r.Header.Get("If-Match"); m != "" && m != `"1"` {
			p := problemOf(412, api.CodeStale, "it has changed")
			p.Current = `"1"`
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(412)
			_ = json.NewEncoder(w).Encode(p)
			return
		}
		w.WriteHeader(204)
	}
}

// create makes a run, or returns the problem.
func (f *fakeServer) create(s api.Submit) (*api.Run, bool, *api.Problem) {
	if s.Agent == "nobody" {
		return nil, false, problemOf(404, api.CodeNotFound, `no agent "nobody"`)
	}
	if s.Agent == "strict" {
		return nil, false, problemOf(422, api.CodeInvalid, "the input does not fit the agent's schema",
			api.Fault{Location: "body.input.document", Message: "missing"},
			api.Fault{Location: "body.input.total", Message: "want a number"})
	}
	body, _ := json.Marshal(s)
	if before, ok := f.bodies[s.Key]; ok && s.Key != "" {
		if !bytes.Equal(before, body) {
			return nil, false, problemOf(409, api.CodeConflict, fmt.Sprintf("key %q was used for another request", s.Key))
		}
		for _, r := range f.runs {
			if r.Key == s.Key {
				return r, true, nil
			}
		}
	}
	if textAt(s.Input, "do") == "busy" && f.busy > 0 {
		f.busy--
		p := problemOf(429, api.CodeOverloaded, "the queue is full")
		p.RetryAfter = 1
		return nil, false, p
	}
	f.bodies[s.Key] = body
	r := &api.Run{
		ID: fmt.Sprintf("run%d", len(f.runs)+1), Agent: s.Agent, Tenant: firstOf(s.Tenant, "default"), State: "queued",
		Key: s.Key, Labels: s.Labels, Input: s.Input, CreatedAt: api.Time{Time: f.now}, Etag: "1", Priority: 50,
	}
	if s.Priority != nil {
		r.Priority = *s.Priority
	}
	f.runs = append(f.runs, r)
	return r, false, nil
}

func (f *fakeServer) submit(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var s api.Submit
	_ = json.NewDecoder(r.Body).Decode(&s)
	run, existed, p := f.create(s)
	switch {
	case p != nil:
		refuse(w, p.Status, p.Code(), p.Detail, p.Errors...)
	case existed:
		answer(w, 200, run)
	default:
		answer(w, 201, run)
	}
}

func (f *fakeServer) batch(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b api.BatchSubmit
	_ = json.NewDecoder(r.Body).Decode(&b)
	var out api.List[api.BatchItem]
	for _, s := range b.Runs {
		run, existed, p := f.create(s)
		out.Items = append(out.Items, api.BatchItem{Run: run, Existed: existed, Error: p})
	}
	answer(w, 200, out)
}

func (f *fakeServer) find(id string) *api.Run {
	for _, r := range f.runs {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// end gives a run the end that its input asks for.
func (f *fakeServer) end(r *api.Run) {
	at := api.Time{Time: f.now.Add(1500 * time.Millisecond)}
	switch textAt(r.Input, "do") {
	case "hang":
		return
	case "fail":
		r.State, r.Reason, r.Message = "failed", "NonRetryable", "the document\x1b[2J is broken"
	case "cancel":
		r.State, r.Reason = "canceled", "Canceled"
	default:
		r.State, r.Output = "succeeded", r.Input
	}
	r.StartedAt, r.EndedAt, r.Attempt, r.Etag = &api.Time{Time: f.now}, &at, 1, "2"
	r.Attempts = []api.Attempt{{ID: r.ID + ".1", N: 1, Target: "local", State: r.State, StartedAt: r.StartedAt, EndedAt: r.EndedAt}}
}

func (f *fakeServer) listRuns(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := api.List[api.Run]{Items: []api.Run{}}
	q := r.URL.Query()
	for i := len(f.runs) - 1; i >= 0; i-- {
		run := *f.runs[i]
		if (q.Get("agent") != "" && q.Get("agent") != run.Agent) || (q.Get("workflow") != "" && q.Get("workflow") != run.Workflow) || (q.Get("state") != "" && !strings.Contains(q.Get("state"), run.State)) ||
			(q.Get("label") != "" && labels(run.Labels) != q.Get("label")) {
			continue
		}
		run.Input, run.Output = nil, nil
		list.Items = append(list.Items, run)
	}
	answer(w, 200, list)
}

func (f *fakeServer) getRun(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	run := f.find(r.PathValue("id"))
	if run == nil {
		f.mu.Unlock()
		refuse(w, 404, api.CodeNotFound, fmt.Sprintf("no run %q", r.PathValue("id")))
		return
	}
	hangs := false
	if r.URL.Query().Get("wait") != "" {
		f.end(run)
		hangs = !run.Terminal()
	}
	shown := *run
	if r.URL.Query().Get("family") == "true" {
		shown.Family = &api.Family{Cost: api.Cost{USD: 1.5, Tokens: 70}, Runs: 3}
	}
	f.mu.Unlock()
	if hangs {
		<-r.Context().Done() // until the client's own timeout ends the call
		return
	}
	answer(w, 200, shown)
}

func (f *fakeServer) part(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	run := f.find(r.PathValue("id"))
	if run == nil {
		refuse(w, 404, api.CodeNotFound, fmt.Sprintf("no run %q", r.PathValue("id")))
		return
	}
	at := api.Time{Time: f.now}
	events := []any{
		api.Event{Seq: 1, Type: "submitted", At: at, State: "queued", Actor: "ada"},
		api.Event{Seq: 2, Type: "assigned", At: at, State: "assigned", Attempt: 1, Target: "local"},
		api.Event{Seq: 3, Type: "failed", At: at, State: "failed", Attempt: 1, Reason: "NonRetryable", Message: "broken"},
	}
	lines := []any{api.LogLine{At: at, Attempt: 1, Stream: "stderr", Text: "reading <a> & b"}, api.LogLine{At: at, Attempt: 2, Stream: "stderr", Text: "bell\a"}}
	switch r.PathValue("part") {
	case "events":
		sequence(w, r, events)
	case "logs":
		sequence(w, r, lines)
	case "tree":
		leaf := api.TreeNode{Run: api.Run{ID: "child2", Agent: "leaf", State: "running"}}
		answer(w, 200, api.TreeNode{Run: *run, Children: []api.TreeNode{
			{Run: api.Run{ID: "child1", Agent: "mid", State: "failed", Reason: "AgentError"}, Children: []api.TreeNode{leaf}},
			{Run: api.Run{ID: "child3", Agent: "mid", State: "queued"}},
		}})
	case "placement":
		p := api.Placement{Run: run.ID, State: "unschedulable", Story: []string{"It waits: no target has nvidia-l4."}, Candidates: []api.Candidate{
			{Target: "local", Refusals: []api.Refusal{{Filter: "accelerator", Reason: "NoAccelerator", Message: "has no accelerator, nvidia-l4 is needed"}}},
		}}
		if t := r.URL.Query().Get("target"); t != "" {
			p.Story = []string{"Not on " + t + ": it drains."}
		}
		answer(w, 200, p)
	case "receipts":
		answer(w, 200, api.List[api.Receipt]{Items: []api.Receipt{f.receipt("done")}})
	case "audit":
		if r.URL.Query().Get("pageToken") != "" {
			answer(w, 200, api.Audit{Run: *run, Events: []api.Event{{Seq: 2, Type: "succeeded"}}})
			return
		}
		answer(w, 200, api.Audit{
			Run: *run, Decisions: []api.AuditDecision{{Attempt: 1, Target: "local", Why: "the only one"}}, Receipts: []api.Receipt{f.receipt("done")},
			Approvals: []api.Gate{{ID: "gate1", State: "approved", Title: "Pay", Decisions: []api.GateDecision{{By: "ann"}}}},
			Events:    []api.Event{{Seq: 1, Type: "submitted"}}, NextPageToken: "1",
		})
	}
}

// sequence answers with a list, or with a stream where one was asked for.
func sequence(w http.ResponseWriter, r *http.Request, items []any) {
	if !strings.Contains(r.Header.Get("Accept"), "event-stream") {
		answer(w, 200, api.List[any]{Items: items})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i, item := range items {
		if fmt.Sprint(i+1) <= r.Header.Get("Last-Event-ID") {
			continue
		}
		data, _ := json.Marshal(item)
		fmt.Fprintf(w, "id: %d\ndata: %s\n\n", i+1, data)
	}
	fmt.Fprint(w, "event: end\n\n")
}

func (f *fakeServer) act(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, verb, _ := strings.Cut(r.PathValue("id"), ":")
	run := f.find(id)
	if run == nil {
		refuse(w, 404, api.CodeNotFound, fmt.Sprintf("no run %q", id))
		return
	}
	body, _ := io.ReadAll(r.Body)
	switch verb {
	case "cancel":
		if textAt(body, "dryRun") == "true" {
			answer(w, 200, api.CancelPreview{Run: *run, Committed: []api.Receipt{f.receipt("done")}, Unknown: []api.Receipt{}, Children: []api.Run{}, Spend: api.Cost{USD: 0.5}})
			return
		}
		if run.Terminal() {
			refuse(w, 409, api.CodeState, fmt.Sprintf("run %s is %s already", id, run.State))
			return
		}
		run.State, run.Reason, run.Message = "canceled", "Canceled", textAt(body, "reason")
	case "retry":
		key := textAt(body, "key")
		if key != "" {
			key = id + "/" + key
		}
		again, _, _ := f.create(api.Submit{Agent: run.Agent, Input: run.Input, Key: key})
		again.RetryOf = id
		run = again
	case "suspend":
		run.State, run.Reason = "suspended", "Suspended"
	case "resume":
		run.State, run.Reason = "queued", ""
	case "signal", "score":
		run.Message = verb + " " + string(bytes.TrimSpace(body))
	}
	answer(w, 200, run)
}

func (f *fakeServer) bulk(w http.ResponseWriter, r *http.Request) {
	var b api.Bulk
	_ = json.NewDecoder(r.Body).Decode(&b)
	if b.Filter.Agent == "partly" {
		answer(w, 200, api.BulkResult{Matched: 2, Done: 1, IDs: []string{"run1"}, Errors: []*api.Problem{problemOf(409, api.CodeState, "run2 is over")}})
		return
	}
	answer(w, 200, api.BulkResult{Matched: 2, Done: 2, IDs: []string{"run1", "run2"}})
}

func (f *fakeServer) receipt(state string) api.Receipt {
	return api.Receipt{ID: "rec1", Tenant: "default", Run: "run1", Unit: "run1", Effect: "mail:ada", State: state, Attempt: 1, OnUnknown: "ask", BegunAt: api.Time{Time: f.now}}
}

func (f *fakeServer) resolve(w http.ResponseWriter, r *http.Request) {
	var b api.Resolve
	_ = json.NewDecoder(r.Body).Decode(&b)
	rec := f.receipt("abandoned")
	if b.Happened != nil && *b.Happened {
		rec.State, rec.Result = "done", b.Result
	}
	answer(w, 200, rec)
}
