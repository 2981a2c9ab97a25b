package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/run"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestHealth(t *testing.T) {
	s := newSite(t)
	for path, want := range map[string]string{
		"startup": `{"status":"ok"}`, "live": `{"status":"ok"}`, "ready": `{"status":"ok","leader":true,"epoch":3}`,
	} {
		if r := s.do("GET", "/health/"+path, ""); r.StatusCode != 200 || string(r.body) != want+"\n" {
			t.Errorf("%s: %d %s", path, r.StatusCode, r.body)
		}
	}
	s.plane.ready = errors.New("the store at secret-host is away")
	for path, want := range map[string]int{"startup": 503, "live": 200, "ready": 503} {
		if r := s.do("GET", "/health/"+path, ""); r.StatusCode != want || strings.Contains(string(r.body), "secret") {
			t.Errorf("%s without a store: %d %s", path, r.StatusCode, r.body)
		}
	}
	s.plane.ready = nil
	s.Server.Close()
	if r := s.do("GET", "/health/ready", ""); r.StatusCode != 503 {
		t.Errorf("ready while it closes: %d", r.StatusCode)
	}
}

func TestReadinessTellsOfABusThatIsOut(t *testing.T) {
	s := newSite(t, func(o *Options) { o.BusOut = func() bool { return true } })
	if r := s.do("GET", "/health/ready", ""); r.StatusCode != 200 || string(r.body) != `{"status":"ok","leader":true,"epoch":3,"bus":"unreachable"}`+"\n" {
		t.Errorf("%d %s; want it to serve, and to say so", r.StatusCode, r.body)
	}
}

func TestVersionAndStats(t *testing.T) {
	s := newSite(t)
	if v := into[api.Version](t, s.do("GET", "/v1/version", "")); v.Version != "v0" || v.Store != "memory" || !v.Leader || v.Epoch != 3 || v.Started.IsZero() {
		t.Errorf("version %+v", v)
	}
	s.plane.stats.OldestQueued = time.Minute
	if x := into[api.Stats](t, s.do("GET", "/v1/stats?window=1h", "")); x.States["queued"] != 3 || x.Window.Std() != time.Hour || x.Oldest.Std() != time.Minute {
		t.Errorf("stats %+v", x)
	}
}

func TestFiguresOfOneTenantTellNothingOfOthers(t *testing.T) {
	s := newGuarded(t)
	s.plane.stats = control.Stats{
		At: instant, States: map[run.State]int{run.Queued: 9},
		Total:        control.Figures{Submitted: 9},
		Agents:       []control.NamedFigures{{Name: "echo", Figures: control.Figures{Submitted: 1, Queued: 8}}, {Name: "private", Figures: control.Figures{Queued: 1}}},
		Tenants:      []control.NamedFigures{{Name: "acme", Figures: control.Figures{Submitted: 1}}, {Name: "other", Figures: control.Figures{Submitted: 8}}},
		Targets:      []control.TargetStats{{Name: "local", Used: 5}},
		OldestQueued: time.Hour,
	}
	s.token = "submitter"
	x := into[api.Stats](t, s.do("GET", "/v1/stats", ""))
	if len(x.States) != 0 || x.Total.Submitted != 1 || len(x.Agents) != 1 || x.Agents[0].Queued != 0 || len(x.Tenant) != 1 || len(x.Target) != 0 || x.Oldest != nil {
		t.Errorf("stats %+v", x)
	}
	s.token = "acme-operator"
	s.refuses("of two tenants one must be named", bad{"GET", "/v1/stats", "", nil, 400, api.CodeInvalid, "several tenants", "query.tenant"})
}

func TestMetrics(t *testing.T) {
	s := newSite(t)
	s.plane.add("a", "default")
	s.plane.stats.Agents = []control.NamedFigures{{Name: "echo", Figures: control.Figures{Queued: 4, Running: 2}}}
	outside.Eventually(t, outside.Patience, "the server watches", func() bool {
		s.plane.mu.Lock()
		defer s.plane.mu.Unlock()
		return len(s.plane.watchers) == 1
	})
	s.plane.finish("a")
	s.do("BREW", "/v1/runs", "")
	wants := []string{
		`errand_runs{state="queued"} 3`, `errand_queue_depth{agent="echo"} 4`, `errand_running{agent="echo"} 2`, "errand_leader 1", "errand_ready 1", "errand_receipts_unknown 0",
		`errand_runs_finished_total{agent="echo",outcome="succeeded",reason=""} 1`, `errand_run_wait_seconds_count{agent="echo"} 1`,
		`errand_run_duration_seconds_sum{agent="echo"} 1`, `errand_http_requests_total{method="other",route="none",status="405"} 1`, "go_goroutines",
	}
	var missing string
	outside.Eventually(t, outside.Patience, "all figures are there", func() bool {
		body := string(s.do("GET", "/metrics", "").body)
		for _, want := range wants {
			if !strings.Contains(body, want) {
				missing = want
				return false
			}
		}
		missing = ""
		return true
	})
	if missing != "" {
		t.Errorf("missing %s", missing)
	}
}

func TestACollectorOnTheMachineReadsFiguresAndNothingElse(t *testing.T) {
	auth, err := NewTokens([]Token{{Name: "ada", SHA256: HashToken("sesame"), Role: Admin}})
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, func(o *Options) { o.Loopback, o.Auth = false, auth })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.ServeMetrics(ctx, l) }()
	for path, want := range map[string]int{"/metrics": 200, "/v1/stats": 404, "/v1/runs": 404, "/": 404} {
		resp, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s without login: %s, want %d", path, resp.Status, want)
		}
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("ServeMetrics: %v", err)
	}
	everywhere, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ServeMetrics(t.Context(), everywhere); err == nil || !strings.Contains(err.Error(), "only a loopback address") {
		t.Errorf("figures for everybody: %v, want a refusal", err)
	}
}

func TestTheLogHoldsNoPayloadAndNoToken(t *testing.T) {
	var log bytes.Buffer
	s := newSite(t, func(o *Options) {
		o.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	s.do("POST", "/v1/runs", `{"agent":"echo","input":"hush-payload","key":"hush-key"}`, "Authorization", "Bearer hush-token")
	s.do("POST", "/v1/attempts/run1.1:start", ``, "Authorization", "Bearer hush-token")
	s.do("GET", "/v1/runs?agent=hush-query", "")
	s.Server.Close()
	if got := log.String(); strings.Contains(got, "hush") || !strings.Contains(got, `"route":"/v1/runs"`) || !strings.Contains(got, `"status":201`) {
		t.Errorf("log:\n%s", got)
	}
}

func TestEveryAnswerIsGuardedInBrowsers(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/v1/runs", "/nothing", "/openapi.json", "/", "/static/live.js"} {
		h := s.do("GET", path, "").Header
		if h.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: %v", path, h)
		}
	}
}

func TestServe(t *testing.T) {
	t.Run("it ends with its context, and ends what waits", func(t *testing.T) {
		f := newFake()
		f.awaiting = make(chan struct{}, 1)
		f.add("a", "default")
		s, err := New(Options{Plane: f, Loopback: true})
		if err != nil {
			t.Fatal(err)
		}
		l := listen(t)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, l, 10*time.Second) }()
		got := make(chan int, 1)
		go func() {
			resp, err := http.Get("http://" + l.Addr().String() + "/v1/runs/a?wait=60s")
			if err != nil {
				got <- 0
				return
			}
			resp.Body.Close()
			got <- resp.StatusCode
		}()
		<-f.awaiting
		stop()
		if status := <-got; status != 200 {
			t.Errorf("the one that waited got %d", status)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("without login it refuses to listen to others", func(t *testing.T) {
		s, err := New(Options{Plane: newFake(), Loopback: true})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Skip("no other address to listen on")
		}
		if err := s.Serve(t.Context(), l, time.Second); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("error is %v", err)
		}
	})
}

func TestPages(t *testing.T) {
	s := newSite(t)
	s.plane.declare(&fleet.Target{Meta: fleet.Meta{Name: "local"}, Runtime: fleet.RuntimeLocal, Capacity: fleet.Capacity{Runs: 4}})
	r := s.plane.add("a", "default")
	r.Input.Inline = []byte(`{"x":"</pre><script>alert(1)</script>"}`)
	s.plane.log("a", `<img src=x onerror=alert(2)>`)
	s.plane.move("a", run.Event{Type: run.EvFailed, Reason: run.AgentError, Message: `<script>alert(3)</script>`})
	for path, wants := range map[string][]string{
		"/":                    {"<title>Fleet", "/runs/a", "failed", "AgentError", `data-stream="/v1/events"`, "echo", "local", "3</b> queued"},
		"/?state=failed":       {"/runs/a", "show all"},
		"/?state=queued":       {"No run is like that"},
		"/runs/a":              {"<title>echo a", "History", "&lt;script&gt;alert(1)", "&lt;img src=x", "it &lt;b&gt;waits&lt;/b&gt; for a slot", "NoFreeSlot"},
		"/docs":                {"/v1/runs/{id}:cancel", "submitRun", `id="schema-Submit"`, `href="#schema-Run"`},
		"/runs/nothere":        {"Not found", "nothere"},
		"/?state=%3Cscript%3E": {"Invalid request", "&lt;script&gt;"},
	} {
		t.Run(path, func(t *testing.T) {
			got := s.do("GET", path, "", "Accept", "text/html")
			page := string(got.body)
			for _, want := range wants {
				if !strings.Contains(page, want) {
					t.Errorf("%q is missing in\n%s", want, page)
				}
			}
			if strings.Contains(page, "<script>") || strings.Contains(page, "onerror=alert(2)>") && !strings.Contains(page, "&lt;img") || strings.Contains(page, " style=") {
				t.Errorf("something is not escaped, or inline:\n%s", page)
			}
			if csp := got.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "script-src 'self';") || strings.Contains(csp, "unsafe") {
				t.Errorf("policy %q", csp)
			}
		})
	}
	t.Run("a page that failed is a problem to programs", func(t *testing.T) { s.do("GET", "/runs/nothere", "").problem(t) })
	t.Run("a static file is kept by browsers", func(t *testing.T) {
		r := s.do("GET", "/static/style.css", "")
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != "text/css; charset=utf-8" {
			t.Fatalf("%d %v", r.StatusCode, r.Header)
		}
		if r := s.do("GET", "/static/style.css", "", "If-None-Match", r.Header.Get("ETag")); r.StatusCode != 304 {
			t.Errorf("status %d with the same etag", r.StatusCode)
		}
		s.do("GET", "/static/nothing.js", "").problem(t)
	})
}

func TestARequestIsServedWithoutAConnection(t *testing.T) {
	s := newSite(t) // deadlines and flushes that the writer cannot do must not matter
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://localhost/v1/runs", nil)
	s.ServeHTTP(w, r)
	if w.Code != 200 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}
