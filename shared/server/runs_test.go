package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/run"
)

func TestARunIsShownAsTheInterfaceSays(t *testing.T) {
	score := 0.5
	r := &run.Record{
		Spec: run.Spec{
			ID: "abc", Agent: "echo", Version: "3", Tenant: "acme", Priority: 70, Labels: map[string]string{"team": "x"}, Key: "k",
			CreatedAt: instant, Deadline: instant + 3600_000, Parent: "p", Root: "q", RetryOf: "o", Session: "s",
			Input: run.Payload{Inline: json.RawMessage(`{"a":1}`)},
		},
		Seq: 9, State: run.Waiting, Reason: "", Attempt: 2,
		Attempts: []run.Attempt{
			{N: 1, Target: "local", Worker: "w1", AssignedAt: instant, StartedAt: instant + 5, EndedAt: instant + 10, Outcome: run.OutcomeFailed,
				Class: run.ClassUser, Code: "E1", Message: "no", Usage: &run.Usage{InputTokens: 3}},
			{N: 2, Target: "far", AssignedAt: instant + 20, StartedAt: instant + 25, EndedAt: instant + 30, Outcome: run.OutcomeParked},
		},
		StartedAt: instant + 5, UpdatedAt: instant + 30, Due: instant + 9000,
		Park:  &run.Park{On: run.OnInput, Step: "ask", Name: "paid", Until: instant + 9000},
		Usage: run.Usage{InputTokens: 3, OutputTokens: 4, USD: 0.25}, Score: &score,
	}
	s := newSite(t)
	s.plane.runs["abc"] = r
	got := s.do("GET", "/v1/runs/abc", "")
	want := `{"id":"abc","agent":"echo","version":"3","tenant":"acme","state":"waiting","priority":70,"labels":{"team":"x"},"key":"k","session":"s",` +
		`"input":{"a":1},"attempt":2,"attempts":[` +
		`{"id":"abc.1","n":1,"target":"local","worker":"w1","state":"failed","class":"user","code":"E1","message":"no","startedAt":"2026-01-01T00:00:00.005Z","endedAt":"2026-01-01T00:00:00.010Z","usage":{"inputTokens":3}},` +
		`{"id":"abc.2","n":2,"target":"far","state":"parked","startedAt":"2026-01-01T00:00:00.025Z","endedAt":"2026-01-01T00:00:00.030Z"}],` +
		`"parent":"p","root":"q","item":0,"retryOf":"o","createdAt":"2026-01-01T00:00:00.000Z","startedAt":"2026-01-01T00:00:00.005Z",` +
		`"wakeAt":"2026-01-01T00:00:09.000Z","deadline":"2026-01-01T01:00:00.000Z","cost":{"usd":0.25,"tokens":7},"score":0.5,` +
		`"placement":{"target":"far"},"waitsFor":{"on":"input","name":"paid","until":"2026-01-01T00:00:09.000Z"},"etag":"9"}` + "\n"
	if diff := cmp.Diff(want, string(got.body)); diff != "" {
		t.Errorf("run (-want +got):\n%s", diff)
	}
	if got.Header.Get("ETag") != `"9"` {
		t.Errorf("ETag %q", got.Header.Get("ETag"))
	}
	if r := s.do("GET", "/v1/runs/abc", "", "If-None-Match", `"9"`); r.StatusCode != 304 {
		t.Errorf("status %d with the same etag", r.StatusCode)
	}
}

func TestSubmission(t *testing.T) {
	s := newSite(t)
	t.Run("a new run answers 201 with its place", func(t *testing.T) {
		r := s.do("POST", "/v1/runs", `{"agent":"echo","input":{"x":1},"priority":0,"labels":{"a":"b"},"notBefore":"2026-02-01T00:00:00Z","budget":{"usd":1.5,"tokens":9}}`,
			"Idempotency-Key", `"k1"`, "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
		got := into[api.Run](t, r)
		if r.StatusCode != 201 || r.Header.Get("Location") != "/v1/runs/"+got.ID || got.State != "queued" || got.Tenant != "default" || string(got.Input) != `{"x":1}` {
			t.Errorf("status %d, run %+v", r.StatusCode, got)
		}
		q := s.plane.submitted[0]
		if q.Key != "k1" || *q.Priority != 0 || q.Actor != "local" || q.BudgetUSD != 1.5 || q.Tokens != 9 || q.NotBefore.IsZero() || q.Trace == "" {
			t.Errorf("submission %+v", q)
		}
	})
	t.Run("the same key and body answer 200 with the same run", func(t *testing.T) {
		r := s.do("POST", "/v1/runs", `{"agent":"echo","input":{"x":1},"key":"k1"}`)
		if got := into[api.Run](t, r); r.StatusCode != 200 || got.ID != "run1" {
			t.Errorf("status %d, run %s", r.StatusCode, got.ID)
		}
	})
	s.refuses("the same key and another body answer 409", bad{"POST", "/v1/runs", `{"agent":"echo","input":{"x":2},"key":"k1"}`, nil, 409, api.CodeConflict, "another body", ""})
	t.Run("a batch answers for each, in order", func(t *testing.T) {
		got := into[api.List[api.BatchItem]](t, s.do("POST", "/v1/runs:batch", `{"runs":[{"agent":"echo"},{"input":1},{"agent":"nobody"},{"agent":"echo","input":{"x":1},"key":"k1"}]}`)).Items
		if len(got) != 4 || got[0].Run == nil || got[1].Error == nil || got[2].Error == nil || got[3].Run == nil || !got[3].Existed {
			t.Fatalf("items %+v", got)
		}
		if got[1].Error.Errors[0].Location != "body.runs[1].agent" || got[2].Error.Code() != api.CodeNotFound {
			t.Errorf("errors %+v and %+v", got[1].Error, got[2].Error)
		}
	})
}

func TestReadingRuns(t *testing.T) {
	s := newSite(t)
	for _, id := range []string{"a", "b", "c"} {
		s.plane.add(id, "default")
	}
	s.plane.finish("b")
	t.Run("a list goes from new to old, in pages, without payloads", func(t *testing.T) {
		one := into[api.List[api.Run]](t, s.do("GET", "/v1/runs?limit=2", ""))
		if len(one.Items) != 2 || one.Items[0].ID != "c" || one.NextPageToken == "" || one.Items[0].Input != nil {
			t.Fatalf("page %+v", one)
		}
		two := into[api.List[api.Run]](t, s.do("GET", "/v1/runs?limit=2&pageToken="+one.NextPageToken, ""))
		if len(two.Items) != 1 || two.Items[0].ID != "a" || two.NextPageToken != "" {
			t.Errorf("page %+v", two)
		}
	})
	t.Run("states are given by commas or one by one", func(t *testing.T) {
		for _, q := range []string{"state=succeeded,failed", "state=failed&state=succeeded"} {
			if l := into[api.List[api.Run]](t, s.do("GET", "/v1/runs?"+q, "")); len(l.Items) != 1 || l.Items[0].ID != "b" {
				t.Errorf("%s: %+v", q, l.Items)
			}
		}
	})
	t.Run("the output is given byte for byte", func(t *testing.T) {
		if r := s.do("GET", "/v1/runs/b/output", ""); string(r.body) != `{"ok":  true}` || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q as %s", r.body, r.Header.Get("Content-Type"))
		}
	})
	t.Run("attempts, tree, placement and audit", func(t *testing.T) {
		if l := into[api.List[api.Attempt]](t, s.do("GET", "/v1/runs/b/attempts", "")); len(l.Items) != 1 || l.Items[0].State != "succeeded" {
			t.Errorf("attempts %+v", l.Items)
		}
		s.plane.add("kid", "default").Parent = "b"
		if n := into[api.TreeNode](t, s.do("GET", "/v1/runs/b/tree", "")); n.Run.ID != "b" || len(n.Children) != 1 {
			t.Errorf("tree %+v", n)
		}
		p := into[api.Placement](t, s.do("GET", "/v1/runs/a/placement?target=local", ""))
		if p.Candidates[0].Refusals[0].Reason != "NoFreeSlot" || p.Candidates[0].Feasible || p.Queue.Ahead != 1 {
			t.Errorf("placement %+v", p)
		}
		if diff := cmp.Diff([]api.Ask{
			{Run: "a", Owner: "group:finance", Receipt: "rc1", Effect: "charge", EffectOf: "other", Commands: []string{"errand resolve rc1 --happened", "errand resolve rc1 --not"}},
			{Run: "a", Owner: "role:operator", Gate: "g1", Title: "Try again?", Commands: []string{"errand approve g1", "errand reject g1"}},
		}, p.Asks); diff != "" {
			t.Errorf("asks (-want +got):\n%s", diff)
		}
		s.plane.receipts["rc1"] = run.Receipt{ID: "rc1", Tenant: "default", Run: "b", Effect: "mail", State: run.ReceiptDone, Result: run.Payload{Ref: "x"}}
		a := into[api.Audit](t, s.do("GET", "/v1/runs/b/audit", ""))
		if string(a.Run.Input) != `{"a":1}` || len(a.Events) != 4 || a.Events[3].State != "succeeded" || len(a.Receipts) != 1 || a.Spend.Tokens != 107 || a.Run.Family.Runs != 3 || len(a.Children) != 1 {
			t.Errorf("audit %+v", a)
		}
		// What the family costs changes without the run: a client that knows the run is not told that nothing is new.
		etag := s.do("GET", "/v1/runs/b", "").Header.Get("ETag")
		f := s.do("GET", "/v1/runs/b?family=true", "", "If-None-Match", etag)
		if got := into[api.Run](t, f).Family; got == nil || got.Cost.Tokens != 107 || got.Runs != 3 || !got.Truncated {
			t.Errorf("family %+v", got)
		}
		if plain := s.do("GET", "/v1/runs/b", "", "If-None-Match", etag); plain.StatusCode != 304 {
			t.Errorf("the run alone: %d", plain.StatusCode)
		}
	})
}

func TestWaitingForARun(t *testing.T) {
	s := newSite(t)
	s.plane.awaiting = make(chan struct{}, 10)
	s.plane.add("a", "default")
	t.Run("it answers when the run is over", func(t *testing.T) {
		go func() {
			<-s.plane.awaiting
			s.plane.finish("a")
		}()
		if r := into[api.Run](t, s.do("GET", "/v1/runs/a?wait=60s", "")); r.State != "succeeded" || string(r.Output) != `{"ok":true}` {
			t.Errorf("run %+v", r)
		}
	})
	t.Run("it answers as it is when the wait is over", func(t *testing.T) {
		s.plane.add("b", "default")
		if r := into[api.Run](t, s.do("GET", "/v1/runs/b?wait=1ms", "")); r.State != "queued" {
			t.Errorf("run %+v", r)
		}
		<-s.plane.awaiting
	})
	t.Run("it answers when the server closes", func(t *testing.T) {
		go func() {
			<-s.plane.awaiting
			s.Server.Close()
		}()
		if r := into[api.Run](t, s.do("GET", "/v1/runs/b?wait=60s", "")); r.State != "queued" {
			t.Errorf("run %+v", r)
		}
	})
}

func TestWaitsAreBounded(t *testing.T) {
	s := newSite(t, func(o *Options) { o.MaxWaits = 1 })
	s.plane.awaiting = make(chan struct{}, 1)
	s.plane.add("a", "default")
	done := make(chan reply)
	go func() { done <- s.do("GET", "/v1/runs/a?wait=60s", "") }()
	<-s.plane.awaiting
	s.refuses("the second", bad{"GET", "/v1/runs/a?wait=60s", "", nil, 503, api.CodeUnavailable, "the limit", ""})
	s.plane.finish("a")
	if r := <-done; r.StatusCode != 200 {
		t.Errorf("the first got %d", r.StatusCode)
	}
}

func TestInvocation(t *testing.T) {
	s := newSite(t)
	s.plane.awaiting = make(chan struct{}, 10)
	t.Run("it answers 200 with the output", func(t *testing.T) {
		go func() {
			<-s.plane.awaiting
			s.plane.finish("run1")
		}()
		r := s.do("POST", "/v1/agents/echo:invoke", `{"input":1}`)
		if got := into[api.Run](t, r); r.StatusCode != 200 || got.State != "succeeded" || string(got.Output) != `{"ok":true}` {
			t.Errorf("status %d, run %+v", r.StatusCode, got)
		}
	})
	t.Run("it answers 200 with a run that failed", func(t *testing.T) {
		go func() {
			<-s.plane.awaiting
			s.plane.move("run2", run.Event{Type: run.EvFailed, Reason: run.QueueTimeout, Message: "too late"})
		}()
		r := s.do("POST", "/v1/agents/echo:invoke", ``)
		if got := into[api.Run](t, r); r.StatusCode != 200 || got.State != "failed" || got.Reason != "QueueTimeout" {
			t.Errorf("status %d, run %+v", r.StatusCode, got)
		}
	})
	t.Run("it answers 202 with a run that goes on", func(t *testing.T) {
		r := s.do("POST", "/v1/agents/echo:invoke?wait=1ms", `{}`)
		if got := into[api.Run](t, r); r.StatusCode != 202 || r.Header.Get("Location") != "/v1/runs/"+got.ID {
			t.Errorf("status %d, run %+v", r.StatusCode, got)
		}
		<-s.plane.awaiting
	})
	t.Run("a client that leaves does not end the run", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "POST", s.url+"/v1/agents/echo:invoke", strings.NewReader(`{"key":"left"}`))
		req.Header.Set("Content-Type", "application/json")
		gone := make(chan error, 1)
		go func() {
			_, err := s.Client.Do(req)
			gone <- err
		}()
		<-s.plane.awaiting
		leave()
		if err := <-gone; err == nil {
			t.Fatal("the client got an answer")
		}
		r := s.do("POST", "/v1/runs", `{"agent":"echo","key":"left"}`)
		got := into[api.Run](t, r)
		if r.StatusCode != 200 || got.State != "queued" || len(s.plane.cancels) > 0 {
			t.Errorf("status %d, run %+v", r.StatusCode, got)
		}
		outside.Eventually(t, outside.Patience, "its place is free again", func() bool { return s.waits.now.Load() == 0 })
	})
}

func TestActions(t *testing.T) {
	s := newSite(t)
	for _, id := range []string{"a", "b", "c", "d"} {
		s.plane.add(id, "default")
	}
	t.Run("suspend and resume", func(t *testing.T) {
		if r := into[api.Run](t, s.do("POST", "/v1/runs/a:suspend", `{}`)); r.State != "suspended" {
			t.Errorf("state %s", r.State)
		}
		if r := into[api.Run](t, s.do("POST", "/v1/runs/a:resume", ``)); r.State != "queued" {
			t.Errorf("state %s", r.State)
		}
	})
	t.Run("signal and score", func(t *testing.T) {
		if r := s.do("POST", "/v1/runs/a:signal", `{"name":"paid","payload":{"x":1},"key":"1"}`); r.StatusCode != 200 {
			t.Errorf("signal: %s", r.body)
		}
		if r := into[api.Run](t, s.do("POST", "/v1/runs/a:score", `{"score":0}`)); r.Score == nil || *r.Score != 0 {
			t.Errorf("score %v", r.Score)
		}
	})
	t.Run("a dry cancel shows, a real one cancels", func(t *testing.T) {
		s.plane.receipts["rc1"] = run.Receipt{ID: "rc1", Tenant: "default", Run: "a", State: run.ReceiptUnknown}
		p := into[api.CancelPreview](t, s.do("POST", "/v1/runs/a:cancel", `{"dryRun":true}`))
		if len(p.Unknown) != 1 || p.Committed == nil || p.Children == nil || len(s.plane.cancels) != 0 {
			t.Errorf("preview %+v", p)
		}
		if r := into[api.Run](t, s.do("POST", "/v1/runs/a:cancel", `{"reason":"enough","grace":"3s"}`)); r.State != "canceling" {
			t.Errorf("state %s", r.State)
		}
		if q := s.plane.cancels[0]; q.Reason != "enough" || q.Grace != 3*time.Second || q.Actor != "local" {
			t.Errorf("cancel %+v", q)
		}
	})
	t.Run("a retry is a new run", func(t *testing.T) {
		s.plane.finish("b")
		r := s.do("POST", "/v1/runs/b:retry", ``)
		if got := into[api.Run](t, r); r.StatusCode != 201 || got.RetryOf != "b" || r.Header.Get("Location") != "/v1/runs/"+got.ID {
			t.Errorf("status %d, run %+v", r.StatusCode, got)
		}
	})
	t.Run("bulk cancel first shows and then does", func(t *testing.T) {
		dry := into[api.BulkResult](t, s.do("POST", "/v1/runs:cancel", `{"filter":{"agent":"echo","state":["queued"]},"dryRun":true}`))
		if dry.Matched != 3 || dry.Done != 0 || len(dry.IDs) != 3 {
			t.Errorf("dry %+v", dry)
		}
		done := into[api.BulkResult](t, s.do("POST", "/v1/runs:cancel", `{"filter":{"agent":"echo"}}`))
		if done.Matched != 4 || done.Done != 3 || len(done.Errors) != 1 || !strings.Contains(done.Errors[0].Errors[0].Location, "a") {
			t.Errorf("done %+v", done) // the one that is canceling already refuses
		}
	})
	t.Run("receipts are listed and resolved", func(t *testing.T) {
		l := into[api.List[api.Receipt]](t, s.do("GET", "/v1/receipts?state=unknown&limit=5&tenant=default", ""))
		if len(l.Items) != 1 || l.NextPageToken != "next" {
			t.Errorf("list %+v", l)
		}
		failed := into[api.List[api.Receipt]](t, s.do("GET", "/v1/receipts?state=undoFailed", ""))
		if len(failed.Items) != 1 || failed.Items[0].State != "done" || !failed.Items[0].UndoFailed {
			t.Errorf("what could not be undone: %+v", failed)
		}
		r := into[api.Receipt](t, s.do("POST", "/v1/receipts/rc1:resolve", `{"happened":true,"result":{"id":7}}`))
		if r.State != "done" || r.ResolvedBy != "local" || string(r.Result) != `{"id":7}` {
			t.Errorf("receipt %+v", r)
		}
	})
}

func TestFleet(t *testing.T) {
	s := newSite(t)
	t.Run("an object comes with its defaults, status and etag", func(t *testing.T) {
		r := s.do("GET", "/v1/agents/echo", "")
		o := into[api.Object](t, r)
		var spec map[string]any
		if err := json.Unmarshal(o.Spec, &spec); err != nil {
			t.Fatal(err)
		}
		if o.Kind != "Agent" || spec["backpressure"] != "queue" || o.Status.Queued != 2 || o.Etag != "7" || r.Header.Get("ETag") != `"7"` {
			t.Errorf("object %+v with spec %v", o, spec)
		}
	})
	t.Run("lists go by name, in pages", func(t *testing.T) {
		for _, n := range []string{"zulu", "alpha"} {
			s.plane.declare(&fleet.Target{Meta: fleet.Meta{Name: n}, Runtime: fleet.RuntimeLocal})
		}
		one := into[api.List[api.Object]](t, s.do("GET", "/v1/targets?limit=1", ""))
		if len(one.Items) != 1 || one.NextPageToken != "alpha" {
			t.Fatalf("page %+v", one)
		}
		two := into[api.List[api.Object]](t, s.do("GET", "/v1/targets?limit=1&pageToken=alpha", ""))
		if len(two.Items) != 1 || !strings.Contains(string(two.Items[0].Metadata), "zulu") || two.NextPageToken != "" {
			t.Errorf("page %+v", two)
		}
	})
	t.Run("apply says what it did", func(t *testing.T) {
		body := "apiVersion: errand.dev/v1\nkind: Tenant\nmetadata: {name: acme}\nspec: {weight: 2}\n"
		got := into[api.ApplyResult](t, s.do("POST", "/v1/apply?dryRun=true&prune=true", body, "Content-Type", "application/yaml"))
		if len(got.Results) != 1 || got.Results[0].Action != "created" || !s.plane.applied[0].DryRun || !s.plane.applied[0].Prune {
			t.Errorf("%+v with %+v", got, s.plane.applied)
		}
		got = into[api.ApplyResult](t, s.do("POST", "/v1/apply", `{"apiVersion":"errand.dev/v1","kind":"Tenant","metadata":{"name":"acme"},"spec":{"weight":2}}`))
		if len(got.Results) != 1 {
			t.Errorf("as JSON: %+v", got)
		}
	})
	t.Run("an error in a manifest is located by line and column", func(t *testing.T) {
		p := s.do("POST", "/v1/apply", "apiVersion: errand.dev/v1\nkind: Tenant\nmetadata: {name: acme}\nspec: {wieght: 2}\n", "Content-Type", "application/yaml").problem(t)
		if p.Status != 400 || !strings.HasPrefix(p.Errors[0].Location, "body:4:8: spec.wieght") {
			t.Errorf("problem %+v", p)
		}
	})
	t.Run("delete takes the etag bare, quoted or not at all", func(t *testing.T) {
		for _, match := range []string{"7", `"7"`, "*", ""} {
			if r := s.do("DELETE", "/v1/agents/echo", "", "If-Match", match); r.StatusCode != 204 {
				t.Errorf("If-Match %q: %d %s", match, r.StatusCode, r.body)
			}
		}
		if diff := cmp.Diff([]int64{7, 7, 0, 0}, s.plane.deleted); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("pause and resume an agent", func(t *testing.T) {
		if o := into[api.Object](t, s.do("POST", "/v1/agents/echo:pause", `{}`)); !o.Status.Paused {
			t.Error("not paused")
		}
		if o := into[api.Object](t, s.do("POST", "/v1/agents/echo:resume", ``)); o.Status.Paused {
			t.Error("still paused")
		}
	})
}

func TestWhatWasBegunIsCarriedThroughWithoutTheClient(t *testing.T) {
	s := newSite(t)
	s.plane.grants["good"] = grantOf("run1", 1)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for path, body := range map[string]string{
		"/v1/runs": `{"agent":"echo"}`, "/v1/runs:batch": `{"runs":[{"agent":"echo"}]}`, "/v1/agents/echo:invoke": `{}`,
		"/v1/attempts/run1.1:complete": `{"output":1}`, "/v1/attempts:batch": `{"reports":[{"type":"start","attempt":"run1.1","token":"good"}]}`,
	} {
		s.plane.contexts = nil
		r := httptest.NewRequestWithContext(gone, "POST", "http://localhost"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer good")
		s.ServeHTTP(httptest.NewRecorder(), r)
		if len(s.plane.contexts) != 1 || s.plane.contexts[0] != nil {
			t.Errorf("%s reached the control plane with %v", path, s.plane.contexts)
		}
	}
}

func TestAWorkflowsRunSaysWhereItStands(t *testing.T) {
	s := newSite(t)
	s.plane.runs["flow"] = &run.Record{
		Spec: run.Spec{ID: "flow", Kind: run.KindWorkflow, Agent: "intake", Tenant: "default", CreatedAt: instant},
		Seq:  3, State: run.Running, Flow: "check", UpdatedAt: instant,
	}
	got := s.do("GET", "/v1/runs/flow", "")
	for _, part := range []string{`"workflow":"intake"`, `"stage":"check"`, `"currentStage":"check"`} {
		if body := string(got.body); !strings.Contains(body, part) || strings.Contains(body, `"agent"`) {
			t.Errorf("%s is not in %s, or an agent is", part, body)
		}
	}
	s.plane.runs["flow"].State = run.Failed
	if got := s.do("POST", "/v1/runs/flow:retry", `{"from":"check","input":[1]}`); got.StatusCode != http.StatusCreated || !strings.Contains(string(got.body), `"retryOf":"flow"`) {
		t.Errorf("a retry from a stage: %d %s", got.StatusCode, string(got.body))
	}
}

func TestARetryUnderAKeyIsTheSameRunAgain(t *testing.T) {
	s := newSite(t)
	s.plane.add("b", "default")
	s.plane.finish("b")
	first := s.do("POST", "/v1/runs/b:retry", `{"key":"k"}`)
	for what, again := range map[string]reply{
		"in the body":   s.do("POST", "/v1/runs/b:retry", `{"key":"k"}`),
		"in the header": s.do("POST", "/v1/runs/b:retry", ``, "Idempotency-Key", "k"),
	} {
		if got := into[api.Run](t, again); first.StatusCode != 201 || again.StatusCode != 200 || again.Header.Get("Location") != first.Header.Get("Location") {
			t.Errorf("%s: status %d, run %+v after %s", what, again.StatusCode, got, first.Header.Get("Location"))
		}
	}
	if r := s.do("POST", "/v1/runs/b:retry", `{"key":"`+strings.Repeat("k", 201)+`"}`); r.StatusCode != 400 || !strings.Contains(string(r.body), "body.key") {
		t.Errorf("a key that is too long: %d %s", r.StatusCode, r.body)
	}
}
