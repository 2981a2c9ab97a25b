package httpio_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func clock() time.Time { return now }

func do(t *testing.T, url string) runtime.Report {
	t.Helper()
	a := &runtime.Assignment{Run: "r1", N: 2, Agent: &fleet.Agent{}, Token: "token", Trace: "00-1-2-01"}
	return httpio.Do(t.Context(), httpio.NewClient(), httpio.Call{
		URL: url, Attempt: a, Document: []byte(`{"run":"r1"}`), Now: clock,
	})
}

func TestReport(t *testing.T) {
	fail := func(class run.Class, code, message string) runtime.Report {
		return runtime.Report{Type: runtime.Failed, Class: class, Code: code, Message: message}
	}
	final := func(code, message string) runtime.Report {
		r := fail(run.ClassUser, code, message)
		r.Final = true
		return r
	}
	after := func(r runtime.Report, d time.Duration) runtime.Report { r.RetryIn = d; return r }
	tests := map[string]struct {
		status int
		header http.Header
		body   string
		want   runtime.Report
	}{
		"200 with a document": {status: 200, body: `{"ok":true}`, want: runtime.Report{Type: runtime.Completed, Output: json.RawMessage(`{"ok":true}`)}},
		"200 with a frame":    {status: 200, body: `{"output":1,"session":{"n":1}}`, want: runtime.Report{Type: runtime.Completed, Output: json.RawMessage(`1`), Session: json.RawMessage(`{"n":1}`)}},
		"200 with an error":   {status: 200, body: `{"error":{"code":"X","message":"m"}}`, want: fail(run.ClassUser, "X", "m")},
		"200 with text":       {status: 200, body: `fine`, want: runtime.Report{Type: runtime.Completed, Output: json.RawMessage(`{"text":"fine"}`)}},
		"204":                 {status: 204, want: runtime.Report{Type: runtime.Completed, Output: json.RawMessage(`null`)}},
		"an answer over the limit": {
			status: 200, body: strings.Repeat("x", runtime.MaxAnswer+1), want: runtime.TooLarge(),
		},
		"429 in seconds":     {status: 429, header: http.Header{"Retry-After": {"7"}}, want: after(fail(run.ClassThrottled, "429", "status 429 Too Many Requests"), 7*time.Second)},
		"429 until a date":   {status: 429, header: http.Header{"Retry-After": {"Fri, 02 Jan 2026 03:05:05 GMT"}}, want: after(fail(run.ClassThrottled, "429", "status 429 Too Many Requests"), time.Minute)},
		"429 until long ago": {status: 429, header: http.Header{"Retry-After": {"Fri, 02 Jan 2025 03:05:05 GMT"}}, want: fail(run.ClassThrottled, "429", "status 429 Too Many Requests")},
		"503 for ever": {
			status: 503, header: http.Header{"Retry-After": {"9223372036854775807"}},
			want: after(fail(run.ClassInfrastructure, "503", "status 503 Service Unavailable"), 365*24*time.Hour),
		},
		"502":         {status: 502, want: fail(run.ClassInfrastructure, "502", "status 502 Bad Gateway")},
		"400 in text": {status: 400, header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, body: "no vendor\n", want: final("400", "status 400 Bad Request: no vendor")},
		"404 as a page for browsers": {
			status: 404, header: http.Header{"Content-Type": {"text/html"}}, body: "<html>", want: final("404", "status 404 Not Found"),
		},
		"409 may pass": {status: 409, want: fail(run.ClassUser, "409", "status 409 Conflict")},
		"422 with an error that refines it": {
			status: 422, body: `{"error":{"code":"BAD","message":"m"},"usage":{"usd":0.5}}`,
			want: runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Code: "BAD", Message: "m", Final: true, Usage: &run.Usage{USD: 0.5}},
		},
		"500":                                    {status: 500, want: fail(run.ClassUser, "500", "status 500 Internal Server Error")},
		"500 that will never be better":          {status: 500, body: `{"error":{"message":"m","retryable":false}}`, want: final("500", "m")},
		"501":                                    {status: 501, want: final("501", "status 501 Not Implemented")},
		"a redirect, which takes no token along": {status: 307, header: http.Header{"Location": {"/elsewhere"}}, want: final("307", "status 307: redirects are not followed; give the address that it leads to")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			requests := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				body, _ := io.ReadAll(r.Body)
				if r.Method != "POST" || string(body) != `{"run":"r1"}` || r.Header.Get("Authorization") != "Bearer token" || r.Header.Get("traceparent") != "00-1-2-01" {
					t.Errorf("request %s %s %v", r.Method, body, r.Header)
				}
				for key, values := range tt.header {
					w.Header()[key] = values
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}))
			defer s.Close()
			got := do(t, s.URL)
			tt.want.Run, tt.want.N = "r1", 2
			if diff := cmp.Diff(tt.want, got); diff != "" || requests != 1 {
				t.Errorf("%d requests, report (-want +got):\n%s", requests, diff)
			}
		})
	}
}

func TestConnection(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	breaks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }))
	defer breaks.Close()
	half := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"half":`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer half.Close()
	tests := map[string]struct {
		url   string
		class run.Class
		code  string
	}{
		"nobody listens: nothing has begun":       {"http://" + closed.Addr().String(), run.ClassInfrastructure, httpio.CodeUnreachable},
		"it breaks before the answer":             {breaks.URL, run.ClassLost, httpio.CodeBroken},
		"it breaks within the answer":             {half.URL, run.ClassLost, httpio.CodeBroken},
		"the address is none":                     {"http://%zz/", run.ClassInfrastructure, httpio.CodeUnreachable},
		"a host that does not exist, by its name": {"http://no-such-host.invalid/", run.ClassInfrastructure, httpio.CodeUnreachable},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := do(t, tt.url)
			if got.Type != runtime.Failed || got.Class != tt.class || got.Code != tt.code || got.Message == "" || got.Ended {
				t.Errorf("report %+v, want class %s code %s", got, tt.class, tt.code)
			}
		})
	}
}
