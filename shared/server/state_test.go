package server

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
)

// attemptToken looks like the token of an attempt. The fake plane knows it by heart.
func attemptToken(name string) string {
	return "h." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"errand","sub":"`+name+`"}`)) + ".s"
}

func TestStateIsWrittenOverExactlyOneVersion(t *testing.T) {
	s := newSite(t)
	const path = "/v1/state/ledger/acme"
	for _, c := range []struct {
		name, method, body string
		headers            []string
		status             int
		etag, code         string
	}{
		{"nothing is there", "GET", "", nil, 404, "", api.CodeNotFound},
		{"a write that says no version", "PUT", `{"value":1}`, nil, 428, "", api.CodeInvalid},
		{"a write over what is not there", "PUT", `{"value":1}`, []string{"If-Match", `"3"`}, 412, `"0"`, api.CodeStale},
		{"it is created", "PUT", `{"value":{"balance":1}}`, []string{"If-None-Match", "*"}, 201, `"1"`, ""},
		{"it is read", "GET", "", nil, 200, `"1"`, ""},
		{"it cannot be created again", "PUT", `{"value":1}`, []string{"If-None-Match", "*"}, 412, `"1"`, api.CodeStale},
		{"it is replaced", "PUT", `{"value":{"balance":2}}`, []string{"If-Match", `"1"`}, 200, `"2"`, ""},
		{"a stale write meets the version that is there", "PUT", `{"value":{"balance":9}}`, []string{"If-Match", `"1"`}, 412, `"2"`, api.CodeStale},
		{"whatever is there is replaced", "PUT", `{"value":null}`, []string{"If-Match", "*"}, 200, `"3"`, ""},
		{"no value", "PUT", `{}`, []string{"If-Match", "*"}, 400, "", api.CodeInvalid},
		{"a value without its frame", "PUT", `{"balance":2}`, []string{"If-Match", "*"}, 400, "", api.CodeInvalid},
		{"an etag that is none", "PUT", `{"value":1}`, []string{"If-Match", "x"}, 400, "", api.CodeInvalid},
		{"both", "PUT", `{"value":1}`, []string{"If-Match", "1", "If-None-Match", "*"}, 400, "", api.CodeInvalid},
		{"a value that is too large", "PUT", `{"value":"` + strings.Repeat("x", api.MaxStateValue+8<<10) + `"}`, []string{"If-Match", "*"}, 413, "", api.CodeTooLarge},
		{"a stale deletion", "DELETE", "", []string{"If-Match", `"1"`}, 412, `"3"`, api.CodeStale},
		{"a deletion that says no version", "DELETE", "", nil, 428, "", api.CodeInvalid},
		{"it is deleted", "DELETE", "", []string{"If-Match", `"3"`}, 204, "", ""},
	} {
		r := s.do(c.method, path, c.body, c.headers...)
		if r.StatusCode != c.status || c.etag != "" && r.Header.Get("ETag") != c.etag {
			t.Fatalf("%s: status %d, etag %s, want %d, %s: %s", c.name, r.StatusCode, r.Header.Get("ETag"), c.status, c.etag, r.body)
		}
		if c.code != "" {
			if p := r.problem(t); p.Code() != c.code || c.code == api.CodeStale && quoted(p.Current) != c.etag {
				t.Errorf("%s: %+v, want %s", c.name, p, c.code)
			}
		}
	}
}

func TestKeysOfState(t *testing.T) {
	s := newSite(t)
	for path, want := range map[string]int{
		"/v1/state/a":                           201,
		"/v1/state/ledger/2026/acme":            201,
		"/v1/state/ledger%2F2026%2Fother":       201,
		"/v1/state/job:7":                       201,
		"/v1/state/a%20b":                       400,
		"/v1/state/%C3%A9":                      400,
		"/v1/state/a//b":                        404,
		"/v1/state/a/../b":                      404,
		"/v1/state/" + strings.Repeat("x", 257): 400,
	} {
		if r := s.do("PUT", path, `{"value":1}`, "If-None-Match", "*"); r.StatusCode != want {
			t.Errorf("PUT %.60s: status %d, want %d: %s", path, r.StatusCode, want, r.body)
		}
	}
	list := into[api.List[api.State]](t, s.do("GET", "/v1/state?prefix=ledger/&limit=1", ""))
	if len(list.Items) != 1 || list.Items[0].Key != "ledger/2026/acme" || list.NextPageToken == "" || list.Items[0].Value != nil {
		t.Fatalf("first page: %+v", list)
	}
	list = into[api.List[api.State]](t, s.do("GET", "/v1/state?prefix=ledger/&limit=1&pageToken="+strings.ReplaceAll(list.NextPageToken, "/", "%2F"), ""))
	if len(list.Items) != 1 || list.Items[0].Key != "ledger/2026/other" {
		t.Fatalf("second page: %+v", list)
	}
}

func TestWhoMayUseState(t *testing.T) {
	tokens, err := NewTokens([]Token{
		{Name: "eye", SHA256: HashToken("eye"), Role: Viewer}, {Name: "sub", SHA256: HashToken("sub"), Role: Submitter},
		{Name: "op", SHA256: HashToken("op"), Role: Operator}, {Name: "acme", SHA256: HashToken("acme"), Role: Operator, Tenants: []string{"acme"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, func(o *Options) { o.Loopback, o.Auth = false, tokens })
	writes, reads := attemptToken("run1.2"), attemptToken("run1.1")
	for token, n := range map[string]int{writes: 2, reads: 1} {
		s.plane.grants[token] = control.Grant{Run: "run1", N: n, Agent: "post", Tenant: "acme", Scopes: []string{"state:ledger/*", "state:one"}}
	}
	put := []string{"If-None-Match", "*"}
	for _, c := range []struct {
		name, token, method, path string
		status                    int
	}{
		{"nobody", "", "GET", "/v1/state/ledger/a", 401},
		{"a viewer writes", "eye", "PUT", "/v1/state/ledger/a", 403},
		{"a submitter writes", "sub", "PUT", "/v1/state/ledger/a", 403},
		{"an operator writes", "op", "PUT", "/v1/state/ledger/a?tenant=acme", 201},
		{"a viewer reads", "eye", "GET", "/v1/state/ledger/a?tenant=acme", 200},
		{"another tenant's is not there", "eye", "GET", "/v1/state/ledger/a", 404},
		{"one of another tenant", "acme", "GET", "/v1/state/ledger/a?tenant=beta", 403},
		{"the tenant's own", "acme", "GET", "/v1/state/ledger/a", 200},
		{"an attempt reads what it may", reads, "GET", "/v1/state/ledger/a", 200},
		{"an attempt creates what it may", writes, "PUT", "/v1/state/ledger/b", 201},
		{"an attempt creates a key that is named in full", writes, "PUT", "/v1/state/one", 201},
		{"an attempt reads what it may not", writes, "GET", "/v1/state/rates", 403},
		{"an attempt writes what it may not", writes, "PUT", "/v1/state/ones", 403},
		{"an attempt of another tenant than it says", writes, "GET", "/v1/state/ledger/a?tenant=beta", 403},
		{"an attempt lists what it may", writes, "GET", "/v1/state?prefix=ledger/", 200},
		{"an attempt lists more than it may", writes, "GET", "/v1/state", 403},
		{"an attempt lists what begins with its key", writes, "GET", "/v1/state?prefix=one", 403},
		{"an attempt that is fenced", reads, "PUT", "/v1/state/ledger/c", 409},
		{"a token of an attempt that is not good", attemptToken("forged"), "GET", "/v1/state/ledger/a", 401},
		{"an attempt's token opens nothing else", writes, "GET", "/v1/runs", 401},
	} {
		headers := []string{}
		if c.token != "" {
			headers = append(headers, "Authorization", "Bearer "+c.token)
		}
		body := ""
		if c.method == "PUT" {
			body = `{"value":1}`
			headers = append(headers, put...)
		}
		if r := s.do(c.method, c.path, body, headers...); r.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.name, r.StatusCode, c.status, r.body)
		}
	}
	// A forged token is nobody's, also where this machine needs none.
	if r := newSite(t).do("GET", "/v1/state/a", "", "Authorization", "Bearer "+attemptToken("forged")); r.StatusCode != 401 {
		t.Errorf("a forged token on loopback: status %d, want 401", r.StatusCode)
	}
	d := s.plane.docs["acme/ledger/b"]
	if d.By != (control.StateWriter{Run: "run1", N: 2, Actor: "post"}) {
		t.Errorf("written by %+v, want the attempt", d.By)
	}
}
