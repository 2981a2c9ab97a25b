package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

func TestLoopbackAnswersOnlyThisMachine(t *testing.T) {
	s := newSite(t)
	port := s.url[strings.LastIndexByte(s.url, ':'):]
	for name, c := range map[string]struct {
		headers []string
		want    int
	}{
		"by address":                            {nil, 200},
		"by name":                               {[]string{"Host", "localhost" + port}, 200},
		"by IPv6":                               {[]string{"Host", "[::1]" + port}, 200},
		"by another loopback address":           {[]string{"Host", "127.8.9.1"}, 200},
		"by a name that leads here":             {[]string{"Host", "evil.example" + port}, 403},
		"by a name that only looks like it":     {[]string{"Host", "localhost.evil.example"}, 403},
		"by an address of the network":          {[]string{"Host", "192.168.1.5"}, 403},
		"by any address":                        {[]string{"Host", "0.0.0.0"}, 403},
		"from a page of this machine":           {[]string{"Origin", "http://localhost:3000"}, 200},
		"from a page of another host":           {[]string{"Origin", "https://evil.example"}, 403},
		"from a page without an origin":         {[]string{"Origin", "null"}, 403},
		"from a page that hides behind a login": {[]string{"Origin", "http://localhost@evil.example"}, 403},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.do("GET", "/v1/version", "", c.headers...)
			if r.StatusCode != c.want {
				t.Errorf("status %d, want %d: %s", r.StatusCode, c.want, r.body)
			}
			if c.want == 403 {
				r.problem(t)
			}
		})
	}
	for _, path := range []string{"/", "/health/live", "/openapi.json", "/nothing", "/v1/runs"} {
		if r := s.do("GET", path, "", "Host", "evil.example"); r.StatusCode != 403 {
			t.Errorf("%s answers %d to another host", path, r.StatusCode)
		}
	}
}

func newGuarded(t *testing.T) *site {
	tokens, err := NewTokens([]Token{
		{Name: "vera", SHA256: HashToken("viewer"), Role: Viewer},
		{Name: "sam", SHA256: HashToken("submitter"), Role: Submitter, Tenants: []string{"acme"}},
		{Name: "ann", SHA256: HashToken("approver"), Role: Approver},
		{Name: "olga", SHA256: HashToken("operator"), Role: Operator},
		{Name: "otto", SHA256: HashToken("acme-operator"), Role: Operator, Tenants: []string{"acme", "globex"}},
		{Name: "functions", SHA256: HashToken("edge"), Role: Edge},
		{Name: "pool-1", SHA256: HashToken("worker"), Role: Worker},
		{Name: "echo-only", SHA256: HashToken("echo-worker"), Role: Worker, Agents: []string{"echo"}},
		{Name: "mail-only", SHA256: HashToken("mail-worker"), Role: Worker, Agents: []string{"mail"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, func(o *Options) { o.Loopback, o.Auth = false, tokens })
	s.plane.add("runacme", "acme")
	s.plane.add("runother", "other")
	s.plane.receipts["rcacme"] = run.Receipt{ID: "rcacme", Tenant: "acme", Run: "runacme", State: run.ReceiptUnknown}
	s.plane.receipts["rcother"] = run.Receipt{ID: "rcother", Tenant: "other", Run: "runother", State: run.ReceiptUnknown}
	s.plane.declare(&fleet.Agent{Meta: fleet.Meta{Name: "private"}, Shape: fleet.Pool, Needs: fleet.Needs{TenantsOnly: []string{"other"}}})
	s.plane.declare(&fleet.Tenant{Meta: fleet.Meta{Name: "acme"}})
	s.plane.declare(&fleet.Tenant{Meta: fleet.Meta{Name: "other"}})
	return s
}

func TestRolesAndTenants(t *testing.T) {
	s := newGuarded(t)
	yaml := []string{"Content-Type", "application/yaml"}
	for name, c := range map[string]struct {
		token, method, path, body string
		headers                   []string
		want                      int
	}{
		"nobody reads":                              {"", "GET", "/v1/runs", "", nil, 401},
		"an unknown token reads nothing":            {"guess", "GET", "/v1/runs", "", nil, 401},
		"nobody sees whether a path exists":         {"", "GET", "/v1/runs/runacme", "", nil, 401},
		"health needs no token":                     {"", "GET", "/health/live", "", nil, 200},
		"the description needs no token":            {"", "GET", "/openapi.json", "", nil, 200},
		"a viewer reads":                            {"viewer", "GET", "/v1/runs", "", nil, 200},
		"a viewer reads metrics":                    {"viewer", "GET", "/metrics", "", nil, 200},
		"a viewer submits nothing":                  {"viewer", "POST", "/v1/runs", `{"agent":"echo"}`, nil, 403},
		"a viewer cancels nothing":                  {"viewer", "POST", "/v1/runs/runacme:cancel", "", nil, 403},
		"a viewer leases nothing":                   {"viewer", "POST", "/v1/leases", `{"worker":"w","agents":["echo"],"max":1}`, nil, 403},
		"a submitter submits for its tenant":        {"submitter", "POST", "/v1/runs", `{"agent":"echo"}`, nil, 201},
		"a submitter submits for no other":          {"submitter", "POST", "/v1/runs", `{"agent":"echo","tenant":"other"}`, nil, 403},
		"a submitter cancels its tenant's run":      {"submitter", "POST", "/v1/runs/runacme:cancel", "", nil, 200},
		"another tenant's run is not there":         {"submitter", "GET", "/v1/runs/runother", "", nil, 404},
		"nor is its output":                         {"submitter", "GET", "/v1/runs/runother/output", "", nil, 404},
		"nor are its events":                        {"submitter", "GET", "/v1/runs/runother/events", "", nil, 404},
		"nor is its log":                            {"submitter", "GET", "/v1/runs/runother/logs", "", nil, 404},
		"nor its tree":                              {"submitter", "GET", "/v1/runs/runother/tree", "", nil, 404},
		"nor its attempts":                          {"submitter", "GET", "/v1/runs/runother/attempts", "", nil, 404},
		"nor its placement":                         {"submitter", "GET", "/v1/runs/runother/placement", "", nil, 404},
		"nor its audit":                             {"submitter", "GET", "/v1/runs/runother/audit", "", nil, 404},
		"nor its receipts":                          {"submitter", "GET", "/v1/runs/runother/receipts", "", nil, 404},
		"nor its receipt":                           {"submitter", "GET", "/v1/receipts/rcother", "", nil, 404},
		"nor can it be canceled":                    {"submitter", "POST", "/v1/runs/runother:cancel", "", nil, 404},
		"nor signaled":                              {"submitter", "POST", "/v1/runs/runother:signal", `{"name":"x"}`, nil, 404},
		"nor retried":                               {"submitter", "POST", "/v1/runs/runother:retry", "", nil, 404},
		"another tenant is not there":               {"submitter", "GET", "/v1/tenants/other", "", nil, 404},
		"an agent of another tenant is not there":   {"submitter", "GET", "/v1/agents/private", "", nil, 404},
		"another tenant's figures are not there":    {"submitter", "GET", "/v1/stats?tenant=other", "", nil, 404},
		"metrics of all are not for one tenant":     {"submitter", "GET", "/metrics", "", nil, 403},
		"a submitter suspends nothing":              {"submitter", "POST", "/v1/runs/runacme:suspend", "", nil, 403},
		"an approver resolves":                      {"approver", "POST", "/v1/receipts/rcacme:resolve", `{"happened":true}`, nil, 200},
		"a submitter resolves nothing":              {"submitter", "POST", "/v1/receipts/rcacme:resolve", `{"happened":true}`, nil, 403},
		"an approver submits nothing":               {"approver", "POST", "/v1/runs", `{"agent":"echo"}`, nil, 403},
		"an operator applies":                       {"operator", "POST", "/v1/apply", "apiVersion: errand.dev/v1\nkind: Tenant\nmetadata: {name: new}\nspec: {weight: 2}\n", yaml, 200},
		"an operator of some tenants does not":      {"acme-operator", "POST", "/v1/apply", "", yaml, 403},
		"nor does it lease":                         {"acme-operator", "POST", "/v1/leases", `{"worker":"w","agents":["echo"],"max":1}`, nil, 403},
		"of several tenants one must be named":      {"acme-operator", "POST", "/v1/runs", `{"agent":"echo"}`, nil, 400},
		"and then it is that one":                   {"acme-operator", "POST", "/v1/runs", `{"agent":"echo","tenant":"globex"}`, nil, 201},
		"a worker leases":                           {"worker", "POST", "/v1/leases", `{"worker":"w","agents":["echo"],"max":1}`, nil, 200},
		"a worker reads nothing":                    {"worker", "GET", "/v1/runs", "", nil, 403},
		"a lease in a batch needs a worker's right": {"viewer", "POST", "/v1/attempts:batch", `{"reports":[],"lease":{"worker":"w","agents":["echo"],"max":1}}`, nil, 403},
		"a worker of some agents leases theirs":     {"echo-worker", "POST", "/v1/leases", `{"worker":"w","agents":["echo"],"max":1}`, nil, 200},
		"and no others, not even beside its own":    {"echo-worker", "POST", "/v1/leases", `{"worker":"w","agents":["echo","mail"],"max":1}`, nil, 403},
		"nor with a batch":                          {"echo-worker", "POST", "/v1/attempts:batch", `{"reports":[],"lease":{"worker":"w","agents":["mail"],"max":1}}`, nil, 403},
		"it beats for its own":                      {"echo-worker", "POST", "/v1/workers/w:heartbeat", `{"agents":["echo"],"slots":1,"attempts":[]}`, nil, 200},
		"and for no others":                         {"echo-worker", "POST", "/v1/workers/w:heartbeat", `{"agents":["mail"],"slots":1,"attempts":[]}`, nil, 403},
		"it begins runs of its own":                 {"echo-worker", "POST", "/v1/runs:begin", `{"agent":"echo","worker":"w"}`, nil, 201},
		"and of no others":                          {"echo-worker", "POST", "/v1/runs:begin", `{"agent":"mail","worker":"w"}`, nil, 403},
		"it claims an attempt of its own":           {"echo-worker", "POST", "/v1/attempts/claimed1.1:claim", `{"worker":"w","ticket":"good"}`, nil, 200},
		"a worker of others does not":               {"mail-worker", "POST", "/v1/attempts/claimed1.1:claim", `{"worker":"w","ticket":"good"}`, nil, 403},
		"a worker of any agent begins any run":      {"worker", "POST", "/v1/runs:begin", `{"agent":"mail","worker":"w"}`, nil, 201},
		"it ticks not":                              {"worker", "POST", "/v1/tick", "", nil, 403},
		"it hands back what is not for it":          {"echo-worker", "POST", "/v1/attempts/claimed1.1:undelivered", `{"ticket":"good"}`, nil, 204},
		"the tick function ticks":                   {"edge", "POST", "/v1/tick", "", nil, 200},
		"and hands back what was given up":          {"edge", "POST", "/v1/attempts/claimed1.1:undelivered", `{"ticket":"good"}`, nil, 204},
		"it leases nothing":                         {"edge", "POST", "/v1/leases", `{"worker":"w","agents":["echo"],"max":1}`, nil, 403},
		"and claims nothing":                        {"edge", "POST", "/v1/attempts/claimed1.1:claim", `{"worker":"w","ticket":"good"}`, nil, 403},
		"and reads nothing":                         {"edge", "GET", "/v1/runs", "", nil, 403},
		"a worker's token is no attempt's":          {"worker", "POST", "/v1/attempts/runacme.1:start", "", nil, 401},
		"a page of another site changes nothing":    {"operator", "POST", "/v1/runs/runacme:suspend", "", []string{"Sec-Fetch-Site", "cross-site"}, 403},
	} {
		t.Run(name, func(t *testing.T) {
			s := *s
			s.token, s.t = c.token, t
			r := s.do(c.method, c.path, c.body, c.headers...)
			if r.StatusCode != c.want {
				t.Errorf("status %d, want %d: %s", r.StatusCode, c.want, r.body)
			}
			if c.want >= 400 {
				r.problem(t)
			}
			if c.want == 401 && r.Header.Get("WWW-Authenticate") == "" {
				t.Error("no WWW-Authenticate")
			}
		})
	}
}

func TestListsHideOtherTenants(t *testing.T) {
	s := newGuarded(t)
	s.token = "submitter"
	if l := into[api.List[api.Run]](t, s.do("GET", "/v1/runs", "")); len(l.Items) != 1 || l.Items[0].Tenant != "acme" {
		t.Errorf("runs %+v", l.Items)
	}
	if l := into[api.List[api.Receipt]](t, s.do("GET", "/v1/receipts?state=unknown", "")); len(l.Items) != 1 || l.Items[0].Tenant != "acme" {
		t.Errorf("receipts %+v", l.Items)
	}
	if l := into[api.List[api.Object]](t, s.do("GET", "/v1/tenants", "")); len(l.Items) != 1 {
		t.Errorf("tenants %+v", l.Items)
	}
	if l := into[api.List[api.Object]](t, s.do("GET", "/v1/agents", "")); len(l.Items) != 1 {
		t.Errorf("agents %+v", l.Items)
	}
}

func TestPagesTakeATokenAsPassword(t *testing.T) {
	s := newGuarded(t)
	r := s.do("GET", "/", "", "Accept", "text/html")
	if r.StatusCode != 401 || !strings.HasPrefix(r.Header.Get("WWW-Authenticate"), "Basic ") {
		t.Errorf("status %d, %q", r.StatusCode, r.Header.Get("WWW-Authenticate"))
	}
	req, _ := http.NewRequest("GET", s.url+"/", nil)
	req.SetBasicAuth("x", "viewer")
	resp, err := s.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("status %d with the token as password", resp.StatusCode)
	}
}

func TestTokensAreChecked(t *testing.T) {
	good := HashToken("x")
	for name, c := range map[string]struct {
		tokens []Token
		want   string
	}{
		"no name":                 {[]Token{{SHA256: good, Role: Viewer}}, "name is missing"},
		"a plain token":           {[]Token{{Name: "a", SHA256: "hunter2", Role: Viewer}}, "64 hexadecimal digits"},
		"an unknown role":         {[]Token{{Name: "a", SHA256: good, Role: "root"}}, "unknown role"},
		"no tenant at all":        {[]Token{{Name: "a", SHA256: good, Role: Viewer, Tenants: []string{}}}, "empty list"},
		"a worker of tenants":     {[]Token{{Name: "a", SHA256: good, Role: Worker, Tenants: []string{"t"}}}, "all tenants"},
		"an edge of tenants":      {[]Token{{Name: "a", SHA256: good, Role: Edge, Tenants: []string{"t"}}}, "all tenants"},
		"agents of no worker":     {[]Token{{Name: "a", SHA256: good, Role: Viewer, Agents: []string{"echo"}}}, "limit the role worker"},
		"no agent at all":         {[]Token{{Name: "a", SHA256: good, Role: Worker, Agents: []string{}}}, "empty list of agents"},
		"an agent without a name": {[]Token{{Name: "a", SHA256: good, Role: Worker, Agents: []string{"Mail!"}}}, "agents[0]"},
		"the same token over":     {[]Token{{Name: "a", SHA256: good, Role: Viewer}, {Name: "b", SHA256: good, Role: Admin}}, "the same token as a"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := NewTokens(c.tokens); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"no plane":    {Loopback: true},
		"no way in":   {Plane: newFake()},
		"two ways in": {Plane: newFake(), Loopback: true, Auth: loopback{"x"}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

type noAuth struct{ err error }

func (a noAuth) Authenticate(*http.Request) (Principal, error) { return Principal{}, a.err }

func TestWhyThereIsNoPrincipalDecidesTheStatus(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
		again  string
	}{
		"not proven":          {fmt.Errorf("%w: no token", ErrNoPrincipal), 401, ""},
		"proven, not allowed": {fmt.Errorf("%w: eve", ErrUnknown), 403, ""},
		"not to be decided":   {fmt.Errorf("%w: the issuer is down", ErrUndecided), 503, "2"},
		"unforeseen":          {errors.New("broken"), 401, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, func(o *Options) { o.Loopback, o.Auth = false, noAuth{c.err} })
			r := s.do("GET", "/v1/runs", "")
			if r.StatusCode != c.status || r.Header.Get("Retry-After") != c.again {
				t.Errorf("status %d, Retry-After %q; want %d, %q", r.StatusCode, r.Header.Get("Retry-After"), c.status, c.again)
			}
			if p := r.problem(t); !strings.Contains(p.Detail, c.err.Error()) {
				t.Errorf("detail %q, want %q", p.Detail, c.err)
			}
		})
	}
}
