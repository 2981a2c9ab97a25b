package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

func grantOf(id string, n int, scopes ...string) control.Grant {
	return control.Grant{Run: id, N: n, Agent: "echo", Tenant: "default", Scopes: scopes}
}

// bad is a request that must be refused.
type bad struct {
	method, path, body string
	headers            []string
	status             int
	code               string
	says               string // in the detail
	at                 string // location of the first fault
}

func (s *site) refuses(name string, b bad) {
	s.t.Run(name, func(t *testing.T) {
		p := s.do(b.method, b.path, b.body, b.headers...).problem(t)
		if p.Status != b.status || p.Code() != b.code {
			t.Errorf("status %d %s, want %d %s: %s", p.Status, p.Code(), b.status, b.code, p.Detail)
		}
		if !strings.Contains(p.Detail, b.says) {
			t.Errorf("detail %q does not say %q", p.Detail, b.says)
		}
		if b.at != "" && (len(p.Errors) == 0 || p.Errors[0].Location != b.at) {
			t.Errorf("faults %+v, want one at %s", p.Errors, b.at)
		}
	})
}

func TestBadRequestsAreRefusedWithALocatedProblem(t *testing.T) {
	s := newSite(t)
	s.plane.add("run1", "default")
	s.plane.grants["good"] = grantOf("run1", 1)
	s.plane.grants["other"] = grantOf("run2", 1)
	s.plane.grants["older"] = grantOf("run1", 2)
	auth := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	long := strings.Repeat("x", 300)
	for name, b := range map[string]bad{
		"an unknown field":                    {"POST", "/v1/runs", `{"agent":"echo","inptu":1}`, nil, 400, api.CodeInvalid, "unknown field", "body.inptu"},
		"a wrong type":                        {"POST", "/v1/runs", `{"agent":"echo","priority":"high"}`, nil, 400, api.CodeInvalid, "want a whole number", "body.priority"},
		"text after the document":             {"POST", "/v1/runs", `{"agent":"echo"}{}`, nil, 400, api.CodeInvalid, "exactly one JSON document", "body"},
		"no body":                             {"POST", "/v1/runs", ``, nil, 415, api.CodeUnsupported, "application/json", ""},
		"another content type":                {"POST", "/v1/runs", `{"agent":"echo"}`, []string{"Content-Type", "text/plain"}, 415, api.CodeUnsupported, "text/plain", ""},
		"no content type":                     {"POST", "/v1/runs", `{"agent":"echo"}`, []string{"Content-Type", ""}, 415, api.CodeUnsupported, "application/json", ""},
		"another charset":                     {"POST", "/v1/runs", `{"agent":"echo"}`, []string{"Content-Type", "application/json; charset=latin1"}, 415, api.CodeUnsupported, "latin1", ""},
		"a compressed body":                   {"POST", "/v1/runs", `{"agent":"echo"}`, []string{"Content-Encoding", "gzip"}, 415, api.CodeUnsupported, "gzip", ""},
		"no agent":                            {"POST", "/v1/runs", `{"input":1}`, nil, 400, api.CodeInvalid, "name the agent", "body.agent"},
		"an agent that is not declared":       {"POST", "/v1/runs", `{"agent":"nobody"}`, nil, 404, api.CodeNotFound, "no agent nobody", ""},
		"an agent's name that is none":        {"POST", "/v1/runs", `{"agent":"../x"}`, nil, 400, api.CodeInvalid, "no agent's name", "body.agent"},
		"a workflow and an agent":             {"POST", "/v1/runs", `{"workflow":"w","agent":"a"}`, nil, 400, api.CodeInvalid, "give one of them", "body.workflow"},
		"a workflow with a session":           {"POST", "/v1/runs", `{"workflow":"w","session":"s"}`, nil, 400, api.CodeInvalid, "no session", "body.session"},
		"a priority out of range":             {"POST", "/v1/runs", `{"agent":"echo","priority":101}`, nil, 400, api.CodeInvalid, "0 to 100", "body.priority"},
		"a key that is too long":              {"POST", "/v1/runs", `{"agent":"echo","key":"` + long + `"}`, nil, 400, api.CodeInvalid, "the limit is 200", "body.key"},
		"two keys":                            {"POST", "/v1/runs", `{"agent":"echo","key":"a"}`, []string{"Idempotency-Key", "b"}, 400, api.CodeInvalid, "differs", "header.Idempotency-Key"},
		"an unknown parameter":                {"POST", "/v1/runs?dry=1", `{"agent":"echo"}`, nil, 400, api.CodeInvalid, "unknown parameter", "query.dry"},
		"an unknown parameter of a list":      {"GET", "/v1/runs?stat=failed", "", nil, 400, api.CodeInvalid, "unknown query parameter", "query.stat"},
		"a state that is none":                {"GET", "/v1/runs?state=done", "", nil, 400, api.CodeInvalid, "queued, held", "query.state"},
		"a limit out of range":                {"GET", "/v1/runs?limit=1001", "", nil, 400, api.CodeInvalid, "<= 1000", "query.limit"},
		"a limit that is no number":           {"GET", "/v1/runs?limit=ten", "", nil, 400, api.CodeInvalid, "integer", "query.limit"},
		"a label without a value":             {"GET", "/v1/runs?label=team", "", nil, 400, api.CodeInvalid, "NAME=VALUE", "query.label"},
		"a time that is none":                 {"GET", "/v1/runs?since=yesterday", "", nil, 400, api.CodeInvalid, "", "query.since"},
		"a wait that is too long":             {"GET", "/v1/runs/run1?wait=61s", "", nil, 400, api.CodeInvalid, "0s to 60s", "query.wait"},
		"a wait that is none":                 {"GET", "/v1/runs/run1?wait=soon", "", nil, 400, api.CodeInvalid, "30s", "query.wait"},
		"a wait given twice":                  {"GET", "/v1/runs/run1?wait=1s&wait=2s", "", nil, 400, api.CodeInvalid, "given 2 times", "query.wait"},
		"a run that is not there":             {"GET", "/v1/runs/nothere", "", nil, 404, api.CodeNotFound, "nothere", ""},
		"an id with a slash":                  {"GET", "/v1/runs/a%2Fb", "", nil, 404, api.CodeNotFound, "no run", ""},
		"an id that climbs":                   {"GET", "/v1/runs/..%2F..%2Fetc%2Fpasswd", "", nil, 404, api.CodeNotFound, "no run", ""},
		"dots in the path":                    {"GET", "/v1/runs/%2e%2e/stats", "", nil, 404, api.CodeNotFound, "dots", ""},
		"an empty segment":                    {"GET", "/v1//runs", "", nil, 404, api.CodeNotFound, "empty segment", ""},
		"a NUL in the path":                   {"GET", "/v1/runs/a%00b", "", nil, 400, api.CodeInvalid, "printable", ""},
		"a path that is no UTF-8":             {"GET", "/v1/runs/%ff", "", nil, 400, api.CodeInvalid, "UTF-8", ""},
		"a very long id":                      {"GET", "/v1/runs/" + long, "", nil, 404, api.CodeNotFound, "no run", ""},
		"a very long address":                 {"GET", "/v1/runs/" + strings.Repeat("x", maxPath), "", nil, 414, api.CodeTooLarge, "8192", ""},
		"an address that is nothing":          {"GET", "/v2/runs", "", nil, 404, api.CodeNotFound, "/v2/runs", ""},
		"a method that is not taken":          {"PATCH", "/v1/runs/run1", "", nil, 405, api.CodeUnsupported, "PATCH", ""},
		"a method that is not even known":     {"BREW", "/v1/runs", "", nil, 405, api.CodeUnsupported, "BREW", ""},
		"an action that is none":              {"POST", "/v1/runs/run1:explode", `{}`, nil, 404, api.CodeNotFound, ":explode", ""},
		"an id with a colon":                  {"GET", "/v1/runs/run1:cancel", "", nil, 404, api.CodeNotFound, "no run", ""},
		"a grace out of range":                {"POST", "/v1/runs/run1:cancel", `{"grace":"2h"}`, nil, 400, api.CodeInvalid, "1h", "body.grace"},
		"a score out of range":                {"POST", "/v1/runs/run1:score", `{"score":1.5}`, nil, 400, api.CodeInvalid, "0 to 1", "body.score"},
		"a signal without a name":             {"POST", "/v1/runs/run1:signal", `{"payload":1}`, nil, 400, api.CodeInvalid, "missing", "body.name"},
		"a retry from a stage that is none":   {"POST", "/v1/runs/run1:retry", `{"from":"x"}`, nil, 400, api.CodeInvalid, "stage x", ""},
		"a retry of what is not over":         {"POST", "/v1/runs/run1:retry", `{}`, nil, 409, api.CodeState, "is queued", ""},
		"a resume of what is not suspended":   {"POST", "/v1/runs/run1:resume", ``, nil, 409, api.CodeState, "is queued", ""},
		"the output of what is not over":      {"GET", "/v1/runs/run1/output", "", nil, 409, api.CodeState, "no output yet", ""},
		"an event number that is none":        {"GET", "/v1/runs/run1/events?pageToken=x", "", nil, 400, api.CodeInvalid, "number of an event", "query.pageToken"},
		"a batch of none":                     {"POST", "/v1/runs:batch", `{"runs":[]}`, nil, 400, api.CodeInvalid, "1 to 1000", "body.runs"},
		"an invocation of another agent":      {"POST", "/v1/agents/echo:invoke", `{"agent":"other"}`, nil, 400, api.CodeInvalid, "path names", "body.agent"},
		"a target that is not there":          {"GET", "/v1/runs/run1/placement?target=mars", "", nil, 404, api.CodeNotFound, "mars", ""},
		"an object that is not there":         {"GET", "/v1/agents/nobody", "", nil, 404, api.CodeNotFound, "nobody", ""},
		"a kind that comes later":             {"GET", "/v1/schedules", "", nil, 501, api.CodeUnsupported, "not served by this version", ""},
		"a stale version":                     {"DELETE", "/v1/agents/echo", "", []string{"If-Match", `"6"`}, 412, api.CodeStale, "changed", ""},
		"a version that is none":              {"DELETE", "/v1/agents/echo", "", []string{"If-Match", `"x"`}, 400, api.CodeInvalid, "no etag", "header.If-Match"},
		"a manifest that is none":             {"POST", "/v1/apply", "kind: [", []string{"Content-Type", "application/yaml"}, 400, api.CodeInvalid, "", ""},
		"a manifest of nothing":               {"POST", "/v1/apply", "# nothing", []string{"Content-Type", "application/yaml"}, 400, api.CodeInvalid, "declares nothing", ""},
		"receipts of another state":           {"GET", "/v1/receipts?state=done", "", nil, 400, api.CodeInvalid, "unknown or undoFailed", "query.state"},
		"receipts of no state":                {"GET", "/v1/receipts", "", nil, 400, api.CodeInvalid, "unknown or undoFailed", "query.state"},
		"a window out of range":               {"GET", "/v1/stats?window=48h", "", nil, 400, api.CodeInvalid, "24h", "query.window"},
		"a lease for nobody":                  {"POST", "/v1/leases", `{"worker":"","agents":["echo"],"max":1}`, nil, 400, api.CodeInvalid, "missing", "body.worker"},
		"a lease for no agent":                {"POST", "/v1/leases", `{"worker":"w","agents":[],"max":1}`, nil, 400, api.CodeInvalid, "1 to 256", "body.agents"},
		"a lease of nothing":                  {"POST", "/v1/leases", `{"worker":"w","agents":["echo"],"max":0}`, nil, 400, api.CodeInvalid, "1 to 1000", "body.max"},
		"a lease beyond its slots":            {"POST", "/v1/leases", `{"worker":"w","agents":["echo"],"max":5,"slots":2}`, nil, 400, api.CodeInvalid, "at least max", "body.slots"},
		"a heartbeat that forgets attempts":   {"POST", "/v1/workers/w1:heartbeat", `{"agents":["echo"],"slots":1}`, nil, 400, api.CodeInvalid, "missing", "body.attempts"},
		"a heartbeat with a wrong attempt":    {"POST", "/v1/workers/w1:heartbeat", `{"agents":["echo"],"slots":1,"attempts":["run1"]}`, nil, 400, api.CodeInvalid, "RUN.NUMBER", "body.attempts[0]"},
		"no token":                            {"POST", "/v1/attempts/run1.1:start", ``, nil, 401, api.CodeUnauthorized, "no token", ""},
		"a forged token":                      {"POST", "/v1/attempts/run1.1:start", ``, auth("forged"), 401, api.CodeUnauthorized, "not signed", ""},
		"an expired token":                    {"POST", "/v1/attempts/run1.1:start", ``, auth("expired"), 401, api.CodeUnauthorized, "expired", ""},
		"a token of another run":              {"POST", "/v1/attempts/run1.1:start", ``, auth("other"), 401, api.CodeUnauthorized, "another attempt", ""},
		"a token of another attempt":          {"POST", "/v1/attempts/run1.1:start", ``, auth("older"), 401, api.CodeUnauthorized, "another attempt", ""},
		"a token that is endless":             {"POST", "/v1/attempts/run1.1:start", ``, auth(strings.Repeat("x", MaxToken+1)), 401, api.CodeUnauthorized, "longer", ""},
		"an attempt that is none":             {"POST", "/v1/attempts/run1.01:start", ``, auth("good"), 404, api.CodeNotFound, "no attempt", ""},
		"a failure's field in a completion":   {"POST", "/v1/attempts/run1.1:complete", `{"output":1,"class":"user"}`, auth("good"), 400, api.CodeInvalid, "no part of complete", "body.class"},
		"a class that is none":                {"POST", "/v1/attempts/run1.1:fail", `{"class":"bad luck"}`, auth("good"), 400, api.CodeInvalid, "throttled", "body.class"},
		"a park for nothing":                  {"POST", "/v1/attempts/run1.1:park", `{}`, auth("good"), 400, api.CodeInvalid, "missing", "body.park"},
		"a timer without a time":              {"POST", "/v1/attempts/run1.1:park", `{"park":{"on":"timer","step":"s"}}`, auth("good"), 400, api.CodeInvalid, "needs a time", "body.park.until"},
		"a park on a wall":                    {"POST", "/v1/attempts/run1.1:park", `{"park":{"on":"wall","step":"s"}}`, auth("good"), 400, api.CodeInvalid, "timer, input", "body.park.on"},
		"a park on children with a time":      {"POST", "/v1/attempts/run1.1:park", `{"park":{"on":"children","step":"s","size":1,"until":"2026-02-01T00:00:00Z"}}`, auth("good"), 400, api.CodeInvalid, "own deadlines", "body.park.until"},
		"a park on more than a step has":      {"POST", "/v1/attempts/run1.1:park", `{"park":{"on":"children","step":"s","size":10001}}`, auth("good"), 400, api.CodeInvalid, "0 to 10000", "body.park.size"},
		"a park that needs more than it has":  {"POST", "/v1/attempts/run1.1:park", `{"park":{"on":"children","step":"s","size":1,"need":2}}`, auth("good"), 400, api.CodeInvalid, "up to as many", "body.park.need"},
		"a timer with children":               {"POST", "/v1/attempts/run1.1:park", `{"park":{"on":"timer","step":"s","size":1,"until":"2026-02-01T00:00:00Z"}}`, auth("good"), 400, api.CodeInvalid, "parts of a park on children", "body.park"},
		"a call of nobody":                    {"POST", "/v1/attempts/run1.1/children", `{"step":"s","children":[{"agent":"a"},{}]}`, auth("good"), 400, api.CodeInvalid, "an agent or a workflow", "body.children[1]"},
		"no calls":                            {"POST", "/v1/attempts/run1.1/children", `{"step":"s","children":[]}`, auth("good"), 400, api.CodeInvalid, "1 to 1000", "body.children"},
		"calls without a step":                {"POST", "/v1/attempts/run1.1/children", `{"step":"","children":[{"agent":"a"}]}`, auth("good"), 400, api.CodeInvalid, "missing", "body.step"},
		"calls behind the last":               {"POST", "/v1/attempts/run1.1/children", `{"step":"s","first":10000,"children":[{"agent":"a"}]}`, auth("good"), 400, api.CodeInvalid, "0 to 9999", "body.first"},
		"calls without a token":               {"POST", "/v1/attempts/run1.1/children", `{"step":"s","children":[{"agent":"a"}]}`, nil, 401, api.CodeUnauthorized, "no token", ""},
		"children of another run":             {"GET", "/v1/attempts/run1.1/children/s", "", auth("other"), 401, api.CodeUnauthorized, "another attempt", ""},
		"a page of children out of range":     {"GET", "/v1/attempts/run1.1/children/s?limit=1001", "", auth("good"), 400, api.CodeInvalid, "1 to 1000", "query.limit"},
		"a step under another name":           {"POST", "/v1/attempts/run1.1/steps/parse", `{"step":{"name":"send"}}`, auth("good"), 400, api.CodeInvalid, "path names step", "body.step.name"},
		"negative usage":                      {"POST", "/v1/attempts/run1.1/usage", `{"usage":{"usd":-1}}`, auth("good"), 400, api.CodeInvalid, "negative", "body.usage"},
		"progress beyond its end":             {"POST", "/v1/attempts/run1.1/progress", `{"progress":2}`, auth("good"), 400, api.CodeInvalid, "0 to 1", "body.progress"},
		"a batch's fields outside of a batch": {"POST", "/v1/attempts/run1.1:start", `{"token":"x"}`, auth("good"), 400, api.CodeInvalid, "belong to reports of a batch", ""},
		"an effect that is not permitted":     {"POST", "/v1/attempts/run1.1/receipts/mail:acme:begin", `{"requestHash":"h","nonce":"n"}`, auth("good"), 403, api.CodeForbidden, "permissions.effects", ""},
	} {
		s.refuses(name, b)
	}
	if len(s.plane.reports) > 0 {
		t.Errorf("%d reports reached the control plane", len(s.plane.reports))
	}
}

func TestABodyBeyondItsLimitIsRefusedWithTheLimit(t *testing.T) {
	s := newSite(t)
	body := `{"agent":"echo","input":"` + strings.Repeat("x", api.MaxBody) + `"}`
	s.refuses("announced", bad{"POST", "/v1/runs", body, nil, 413, api.CodeTooLarge, "12582912 bytes (12 MiB)", ""})
	t.Run("in chunks", func(t *testing.T) {
		req, _ := http.NewRequest("POST", s.url+"/v1/runs", struct{ *strings.Reader }{strings.NewReader(body)})
		req.ContentLength = -1
		req.Header.Set("Content-Type", "application/json")
		resp, err := s.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("status %d, want 413", resp.StatusCode)
		}
	})
	s.refuses("an input beyond its own limit", bad{"POST", "/v1/runs", `{"agent":"echo","input":"` + strings.Repeat("x", api.MaxPayload) + `"}`, nil, 413, api.CodeTooLarge, "10485760", "body.input"})
	if len(s.plane.submitted) > 0 {
		t.Error("something was submitted")
	}
}

func TestRefusalsOfTheControlPlane(t *testing.T) {
	for name, c := range map[string]struct {
		err        error
		status     int
		code       string
		retryAfter string
	}{
		"shed":        {&control.Refusal{Code: control.CodeOverloaded, Detail: "the queue is full", RetryAfter: 1500_000_000}, 429, api.CodeOverloaded, "2"},
		"unavailable": {&control.Refusal{Code: control.CodeUnavailable, Detail: "no leader"}, 503, api.CodeUnavailable, "1"},
		"conflict":    {&control.Refusal{Code: control.CodeConflict, Detail: "another body"}, 409, api.CodeConflict, ""},
		"invalid":     {&control.Refusal{Code: control.CodeInvalid, Detail: "input", Faults: []control.Fault{{Location: "input.lines[2]", Message: "want a number"}}}, 400, api.CodeInvalid, ""},
		"fenced":      {run.ErrFenced, 409, api.CodeFenced, ""},
		"a report":    {runtime.ErrInvalid, 400, api.CodeInvalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.plane.refuse = c.err
			r := s.do("POST", "/v1/runs", `{"agent":"echo"}`)
			p := r.problem(t)
			if p.Status != c.status || p.Code() != c.code || r.Header.Get("Retry-After") != c.retryAfter {
				t.Errorf("%+v with Retry-After %q, want %d %s %q", p, r.Header.Get("Retry-After"), c.status, c.code, c.retryAfter)
			}
			if name == "invalid" && (len(p.Errors) != 1 || p.Errors[0].Location != "input.lines[2]") {
				t.Errorf("faults %+v", p.Errors)
			}
		})
	}
}

func TestWhatNobodyForesawIsNotTold(t *testing.T) {
	s := newSite(t)
	s.plane.panics = true
	r := s.do("POST", "/v1/runs", `{"agent":"echo"}`, "X-Request-Id", "req-7")
	p := r.problem(t)
	if p.Status != 500 || !strings.Contains(p.Detail, "req-7") || strings.Contains(string(r.body), "secret") {
		t.Errorf("problem %+v", p)
	}
	s.plane.panics = false
	s.plane.refuse = http.ErrAbortHandler // any error that is no refusal
	r = s.do("POST", "/v1/runs", `{"agent":"echo"}`)
	if p := r.problem(t); p.Status != 500 || strings.Contains(p.Detail, "abort") {
		t.Errorf("problem %+v", p)
	}
	if r.Header.Get("X-Request-Id") == "" {
		t.Error("no request id")
	}
}

func TestAWrongMethodIsToldTheRightOnes(t *testing.T) {
	s := newSite(t)
	r := s.do("PUT", "/v1/agents/echo", "{}")
	if got := r.Header.Values("Allow"); r.StatusCode != 405 || strings.Join(got, " ") != "GET DELETE" {
		t.Errorf("status %d, Allow %v", r.StatusCode, got)
	}
}

func TestOnlyAWorkerSendsLargeBatches(t *testing.T) {
	s := newGuarded(t)
	body := `{"reports":[],"lease":null` + strings.Repeat(" ", api.MaxBody) + `}`
	s.refuses("without a right", bad{"POST", "/v1/attempts:batch", body, nil, 413, api.CodeTooLarge, "12 MiB", ""})
	s.token = "worker"
	if r := s.do("POST", "/v1/attempts:batch", body); r.StatusCode != 200 {
		t.Errorf("a worker got %d: %s", r.StatusCode, r.body)
	}
}
