package server

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

func TestLeases(t *testing.T) {
	s := newSite(t)
	t.Run("a lease has all that the handler needs", func(t *testing.T) {
		s.plane.leases <- s.plane.assignment("run1", 1)
		got := s.do("POST", "/v1/leases", `{"worker":"w1","agents":["echo"],"max":2,"wait":"10s"}`)
		want := `{"leases":[{"attempt":"run1.1","n":1,"run":"run1","agent":"echo","tenant":"default","mode":"run","input":{"a":1},"key":"run1","token":"token-run1",` +
			`"deadline":"2026-01-01T00:01:00.000Z","heartbeatEvery":"5s","steps":[{"name":"parse","seq":1,"result":3},{"name":"send","seq":2,"error":{"message":"no"}}]}]}` + "\n"
		if diff := cmp.Diff(want, string(got.body)); diff != "" {
			t.Error(diff)
		}
		if q := s.plane.leased[0]; q.Slots != 2 || q.Max != 2 || q.Wait != 10*time.Second {
			t.Errorf("asked %+v", q)
		}
	})
	t.Run("a wait beyond the limit is cut to it", func(t *testing.T) {
		s.plane.leases <- s.plane.assignment("run2", 1)
		s.do("POST", "/v1/leases", `{"worker":"w1","agents":["echo"],"max":1,"wait":"5m"}`)
		if q := s.plane.leased[1]; q.Wait != maxLeaseWait {
			t.Errorf("asked %+v", q)
		}
	})
	t.Run("none is an empty list", func(t *testing.T) {
		if r := s.do("POST", "/v1/leases", `{"worker":"w1","agents":["echo"],"max":1}`); string(r.body) != `{"leases":[]}`+"\n" {
			t.Errorf("%s", r.body)
		}
	})
	t.Run("a wait ends with the server", func(t *testing.T) {
		done := make(chan reply)
		go func() { done <- s.do("POST", "/v1/leases", `{"worker":"w1","agents":["echo"],"max":1,"wait":"30s"}`) }()
		outside.Eventually(t, outside.Patience, "it waits", func() bool { return s.waits.now.Load() == 1 })
		s.Server.Close()
		select {
		case r := <-done:
			if string(r.body) != `{"leases":[]}`+"\n" {
				t.Errorf("%d %s", r.StatusCode, r.body)
			}
		case <-time.After(10 * time.Second):
			t.Error("it waits on")
			<-done
		}
	})
}

func TestWorkerHeartbeat(t *testing.T) {
	s := newSite(t)
	got := s.do("POST", "/v1/workers/"+url.PathEscape("host:1/pool a")+":heartbeat", `{"agents":["echo"],"slots":4,"attempts":["run1.1"],"sessions":{"s":{"x":1}}}`)
	want := `{"drain":false,"attempts":[{"id":"run1.1","deadline":"2026-01-01T00:00:00.000Z","cancel":true,"cancelReason":"Canceled"}]}` + "\n"
	if diff := cmp.Diff(want, string(got.body)); diff != "" {
		t.Error(diff)
	}
	if b := s.plane.beats[0]; b.Worker != "host:1/pool a" || b.Slots != 4 || string(b.Sessions["s"]) != `{"x":1}` {
		t.Errorf("beat %+v", b)
	}
}

func TestBeginningARun(t *testing.T) {
	s := newSite(t)
	r := s.do("POST", "/v1/runs:begin", `{"agent":"echo","worker":"svc-1","input":{"x":1}}`)
	if l := into[api.Lease](t, r); r.StatusCode != 201 || l.Attempt != "begun1.1" || l.HeartbeatEvery.Std() != 5*time.Second {
		t.Errorf("status %d, lease %+v", r.StatusCode, l)
	}
	r = s.do("POST", "/v1/runs:begin", `{"agent":"echo","worker":"e-2","execution":"e","index":2,"completions":5,"restarts":1}`)
	if l := into[api.Lease](t, r); r.StatusCode != 201 || l.Index == nil || *l.Index != 2 || l.Completions == nil || *l.Completions != 5 {
		t.Errorf("a task of a job: status %d, lease %+v", r.StatusCode, l)
	}
	s.plane.add("over", "default")
	s.plane.finish("over")
	r = s.do("POST", "/v1/runs:begin", `{"agent":"echo","worker":"svc-1","key":"over"}`)
	if f := into[api.Finished](t, r); r.StatusCode != 200 || f.Run != "over" || f.State != "succeeded" || string(f.Output) != `{"ok":true}` {
		t.Errorf("a run that is over: status %d, %+v", r.StatusCode, f)
	}
	for name, body := range map[string]string{
		"an execution without an index": `{"agent":"echo","worker":"w","execution":"e"}`,
		"an index without an execution": `{"agent":"echo","worker":"w","index":1}`,
		"an index below zero":           `{"agent":"echo","worker":"w","execution":"e","index":-1}`,
		"an index beyond the last":      `{"agent":"echo","worker":"w","execution":"e","index":5,"completions":5}`,
		"completions of no task":        `{"agent":"echo","worker":"w","completions":5}`,
		"no completions":                `{"agent":"echo","worker":"w","execution":"e","index":0,"completions":0}`,
		"restarts without end":          `{"agent":"echo","worker":"w","execution":"e","index":0,"restarts":100000}`,
	} {
		s.refuses(name, bad{"POST", "/v1/runs:begin", body, nil, 400, api.CodeInvalid, "body.", ""})
	}
}

func TestClaimingAnAttempt(t *testing.T) {
	s := newSite(t)
	r := s.do("POST", "/v1/attempts/claimed1.1:claim", `{"worker":"w1","ticket":"good"}`)
	if l := into[api.Lease](t, r); r.StatusCode != 200 || l.Attempt != "claimed1.1" || l.Token == "" {
		t.Errorf("status %d, lease %+v", r.StatusCode, l)
	}
	s.refuses("a ticket that is none", bad{"POST", "/v1/attempts/claimed1.1:claim", `{"worker":"w1","ticket":"x"}`, nil, 403, api.CodeForbidden, "ticket", ""})
	s.refuses("an attempt that is over", bad{"POST", "/v1/attempts/claimed1.2:claim", `{"worker":"w1","ticket":"good"}`, nil, 409, api.CodeFenced, "", ""})
	s.refuses("no worker", bad{"POST", "/v1/attempts/claimed1.1:claim", `{"ticket":"good"}`, nil, 400, api.CodeInvalid, "body.worker", ""})
	if r := s.do("POST", "/v1/attempts/claimed1.1:undelivered", `{"ticket":"good","reason":"nobody pulls"}`); r.StatusCode != 204 {
		t.Errorf("undelivered: status %d", r.StatusCode)
	}
	if diff := cmp.Diff([]string{"claimed1.1 nobody pulls"}, s.plane.undelivered); diff != "" {
		t.Error(diff)
	}
	if got := into[api.Ticked](t, s.do("POST", "/v1/tick", "")); !got.Leader {
		t.Errorf("tick: %+v", got)
	}
}

func TestReports(t *testing.T) {
	until := run.At(time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC))
	score := 0.9
	s := newSite(t)
	s.plane.grants["good"] = grantOf("run1", 1)
	s.plane.reportTo = func(runtime.Report) runtime.Result {
		return runtime.Result{Deadline: instant, Cancel: true, CancelReason: run.DeadlineExceeded}
	}
	for name, c := range map[string]struct {
		path, body string
		want       runtime.Report
	}{
		"start without a body": {":start", ``, runtime.Report{Type: runtime.Started}},
		"heartbeat":            {":heartbeat", `{}`, runtime.Report{Type: runtime.Beat}},
		"complete": {":complete", `{"output":{"a":1},"usage":{"inputTokens":3,"usd":0.5},"score":0.9,"session":{"s":1}}`, runtime.Report{
			Type: runtime.Completed, Output: json.RawMessage(`{"a":1}`), Usage: &run.Usage{InputTokens: 3, USD: 0.5}, Score: &score, Session: json.RawMessage(`{"s":1}`)}},
		"complete with nothing": {":complete", `{}`, runtime.Report{Type: runtime.Completed, Output: json.RawMessage(`null`)}},
		"fail": {":fail", `{"class":"throttled","code":"429","message":"slow down","retryAfter":"7s"}`, runtime.Report{
			Type: runtime.Failed, Class: run.ClassThrottled, Code: "429", Message: "slow down", RetryIn: 7 * time.Second}},
		"fail for good":    {":fail", `{"retryable":false}`, runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Final: true}},
		"release":          {":release", `{"reason":"drain"}`, runtime.Report{Type: runtime.Released, Message: "drain"}},
		"park on a signal": {":park", `{"park":{"on":"input","step":"ask","name":"paid"}}`, runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnInput, Step: "ask", Name: "paid"}}},
		"park on time":     {":park", `{"park":{"on":"timer","step":"nap","until":"2026-02-01T00:00:00Z"}}`, runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnTimer, Step: "nap", Until: until}}},
		"park on children that were called": {":park", `{"park":{"on":"children","step":"all","size":3,"tolerate":1}}`, runtime.Report{
			Type: runtime.Parked, Park: &run.Park{On: run.OnChildren, Step: "all", Size: 3, Tolerate: 1}}},
		"park on children that are called with it": {":park", `{"park":{"on":"children","step":"all","need":1,"max":2,"children":[{"agent":"a","input":[1]},{"workflow":"w"}]}}`, runtime.Report{
			Type: runtime.Parked, Park: &run.Park{On: run.OnChildren, Step: "all", Size: 2, Need: 1}, Max: 2,
			Calls: []runtime.Call{{Agent: "a", Input: json.RawMessage(`[1]`)}, {Workflow: "w"}}}},
		"a step whose name has colons": {"/steps/parse:1:begin", `{"step":{"seq":4,"result":[1]}}`, runtime.Report{Type: runtime.StepDone, Step: &runtime.Step{Name: "parse:1:begin", Seq: 4, Result: json.RawMessage(`[1]`)}}},
		"a step whose name has slashes": {"/steps/" + url.PathEscape("a/b ü"), `{"step":{"name":"a/b ü","seq":1,"error":{"message":"no"}}}`, runtime.Report{
			Type: runtime.StepDone, Step: &runtime.Step{Name: "a/b ü", Seq: 1, Error: json.RawMessage(`{"message":"no"}`)}}},
		"usage":    {"/usage", `{"usage":{"outputTokens":2}}`, runtime.Report{Type: runtime.Used, Usage: &run.Usage{OutputTokens: 2}}},
		"progress": {"/progress", `{"progress":0.4,"message":"page 2"}`, runtime.Report{Type: runtime.Progress, Fraction: 0.4, Message: "page 2"}},
		"logs": {"/logs", `{"logs":[{"text":"hello"},{"at":"2026-02-01T00:00:00Z","attempt":9,"stream":"stdout","text":"x"}]}`, runtime.Report{
			Type: runtime.Logged, Logs: []runtime.LogLine{{N: 1, Stream: "agent", Text: "hello"}, {At: until, N: 1, Stream: "stdout", Text: "x"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			s.plane.reports = nil
			r := s.do("POST", "/v1/attempts/run1.1"+c.path, c.body, "Authorization", "Bearer good")
			if got := string(r.body); got != `{"deadline":"2026-01-01T00:00:00.000Z","cancel":true,"cancelReason":"DeadlineExceeded"}`+"\n" {
				t.Fatalf("%d %s", r.StatusCode, got)
			}
			c.want.Run, c.want.N = "run1", 1
			if diff := cmp.Diff([]runtime.Report{c.want}, s.plane.reports); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAStaleAttemptIsFenced(t *testing.T) {
	s := newSite(t)
	s.plane.grants["good"] = grantOf("run1", 1)
	s.plane.reportTo = func(runtime.Report) runtime.Result { return runtime.Result{Err: run.ErrFenced} }
	s.refuses("alone", bad{"POST", "/v1/attempts/run1.1:complete", `{"output":1}`, []string{"Authorization", "Bearer good"}, 409, api.CodeFenced, "no longer holds", ""})
	got := into[api.ReportBatchResult](t, s.do("POST", "/v1/attempts:batch", `{"reports":[{"type":"complete","attempt":"run1.1","token":"good","output":1}]}`))
	if len(got.Results) != 1 || got.Results[0].Error == nil || got.Results[0].Error.Code() != api.CodeFenced {
		t.Errorf("in a batch: %+v", got)
	}
}

func TestABatchOfReports(t *testing.T) {
	s := newSite(t)
	s.plane.grants["t1"], s.plane.grants["t2"] = grantOf("run1", 1), grantOf("run2", 3)
	s.plane.reportTo = func(r runtime.Report) runtime.Result {
		return runtime.Result{Deadline: instant, Resumed: r.Run == "run2"}
	}
	s.plane.leases <- s.plane.assignment("run9", 1)
	got := into[api.ReportBatchResult](t, s.do("POST", "/v1/attempts:batch", `{"reports":[
		{"type":"complete","attempt":"run1.1","token":"t1","output":1},
		{"type":"complete","attempt":"run1.1","token":"t2","output":1},
		{"type":"dance","attempt":"run1.1","token":"t1"},
		{"type":"park","attempt":"run2.3","token":"t2","park":{"on":"input","step":"s","name":"n"}},
		{"type":"start","attempt":"run1.1","token":"expired"}
	],"lease":{"worker":"w","agents":["echo"],"max":1,"wait":"30s"}}`))
	if len(got.Results) != 5 || got.Results[0].Error != nil || !got.Results[3].Resumed {
		t.Fatalf("results %+v", got.Results)
	}
	for i, want := range map[int]string{1: api.CodeUnauthorized, 2: api.CodeInvalid, 4: api.CodeUnauthorized} {
		if e := got.Results[i].Error; e == nil || e.Code() != want {
			t.Errorf("result %d is %+v, want %s", i, e, want)
		}
	}
	if len(s.plane.reports) != 2 || len(got.Leases) != 1 || got.Leases[0].Run != "run9" || s.plane.leased[0].Wait != 0 {
		t.Errorf("%d reports, leases %+v, asked %+v", len(s.plane.reports), got.Leases, s.plane.leased)
	}
}

func TestEffects(t *testing.T) {
	s := newSite(t)
	s.plane.grants["good"] = grantOf("run1", 1, "call:x", "effect:mail:*", "effect:ledger/post")
	auth := []string{"Authorization", "Bearer good"}
	t.Run("begin under a pattern, with colons in the name", func(t *testing.T) {
		r := s.do("POST", "/v1/attempts/run1.1/receipts/mail:acme:42:begin", `{"step":"send","requestHash":"h","nonce":"n","timeout":"5s","onUnknown":"ask"}`, auth...)
		if got := into[api.ReceiptAnswer](t, r); got.Answer != "proceed" || got.ID != "rc9" || got.Until == nil {
			t.Errorf("answer %+v", got)
		}
		want := control.EffectBegin{Run: "run1", N: 1, Step: "send", Effect: "mail:acme:42", RequestHash: "h", Nonce: "n", Timeout: 5 * time.Second, OnUnknown: "ask"}
		if diff := cmp.Diff([]control.EffectBegin{want}, s.plane.begun); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("commit and abandon, with a slash in the name", func(t *testing.T) {
		path := "/v1/attempts/run1.1/receipts/" + url.PathEscape("ledger/post")
		if r := s.do("POST", path+":commit", `{"result":{"id":1},"reconciled":"happened"}`, auth...); r.StatusCode != 200 {
			t.Errorf("commit: %s", r.body)
		}
		if r := s.do("POST", path+":abandon", ``, auth...); r.StatusCode != 200 {
			t.Errorf("abandon: %s", r.body)
		}
		want := []control.EffectEnd{
			{Run: "run1", N: 1, Effect: "ledger/post", Value: json.RawMessage(`{"id":1}`), Reconciled: true},
			{Run: "run1", N: 1, Effect: "ledger/post", Abandon: true},
		}
		if diff := cmp.Diff(want, s.plane.ended); diff != "" {
			t.Error(diff)
		}
	})
	for name, b := range map[string]bad{
		"another prefix":             {"POST", "/v1/attempts/run1.1/receipts/mailbox:begin", `{"requestHash":"h","nonce":"n"}`, auth, 403, api.CodeForbidden, "mailbox", ""},
		"more than the exact name":   {"POST", "/v1/attempts/run1.1/receipts/ledger%2Fpost2:commit", `{}`, auth, 403, api.CodeForbidden, "", ""},
		"a scope of another kind":    {"POST", "/v1/attempts/run1.1/receipts/x:begin", `{"requestHash":"h","nonce":"n"}`, auth, 403, api.CodeForbidden, "", ""},
		"no verb":                    {"POST", "/v1/attempts/run1.1/receipts/mail:acme", `{}`, auth, 404, api.CodeNotFound, "", ""},
		"a policy that is none":      {"POST", "/v1/attempts/run1.1/receipts/mail:a:begin", `{"requestHash":"h","nonce":"n","onUnknown":"hope"}`, auth, 400, api.CodeInvalid, "reconcile", "body.onUnknown"},
		"no nonce":                   {"POST", "/v1/attempts/run1.1/receipts/mail:a:begin", `{"requestHash":"h","nonce":""}`, auth, 400, api.CodeInvalid, "missing", "body.nonce"},
		"a result of what was not":   {"POST", "/v1/attempts/run1.1/receipts/mail:a:abandon", `{"result":1}`, auth, 400, api.CodeInvalid, "did not happen", "body.result"},
		"a name beyond the limit":    {"POST", "/v1/attempts/run1.1/receipts/mail:" + strings.Repeat("x", maxEffect) + ":begin", `{}`, auth, 400, api.CodeInvalid, "512", "path.effect"},
		"by the token of another":    {"POST", "/v1/attempts/run2.1/receipts/mail:a:begin", `{"requestHash":"h","nonce":"n"}`, auth, 401, api.CodeUnauthorized, "another attempt", ""},
		"a hook's find that is none": {"POST", "/v1/attempts/run1.1/receipts/mail:a:commit", `{"reconciled":"maybe"}`, auth, 400, api.CodeInvalid, "happened", "body.reconciled"},
	} {
		s.refuses(name, b)
	}
}

func BenchmarkBatchOfReports(b *testing.B) {
	f := newFake()
	f.grants["t"] = grantOf("run1", 1)
	s, err := New(Options{Plane: f, Loopback: true})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	one := `{"type":"complete","attempt":"run1.1","token":"t","output":{"total":12.5,"lines":[1,2,3]},"usage":{"inputTokens":5}}`
	body := `{"reports":[` + strings.Repeat(one+",", 31) + one + `]}`
	b.ReportAllocs()
	for b.Loop() {
		f.reports, f.contexts = f.reports[:0], f.contexts[:0]
		r := httptest.NewRequest("POST", "http://localhost/v1/attempts:batch", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != 200 {
			b.Fatal(w.Body)
		}
	}
}
