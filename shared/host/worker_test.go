package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/local"
	"github.com/errand-run/errand/shared/outside"
)

// environment of a worker, with what a test sets.
func environment(vars map[string]string) func(string) string {
	all := map[string]string{
		agent.EnvURL: "http://127.0.0.1:1", EnvBus: "pubsub:acme-prod", agent.EnvTarget: "lake", agent.EnvAgent: "a",
	}
	for name, value := range vars {
		all[name] = value
	}
	return func(name string) string { return all[name] }
}

func TestReadSettings(t *testing.T) {
	tests := map[string]struct {
		vars      map[string]string
		args      []string
		want      Settings
		identity  bool
		wantError []string
	}{
		"a command": {
			args: []string{"--", "python3", "x.py"},
			want: Settings{URL: "http://127.0.0.1:1", Bus: "pubsub:acme-prod", Target: "lake", Agents: []string{"a"}, Slots: 1, Grace: agent.DefaultGrace, Command: []string{"python3", "x.py"}},
		},
		"an agent beside it, on the platform": {
			vars: map[string]string{
				EnvForwardURL: "http://127.0.0.1:8080/run", agent.EnvAgent: "a, b", agent.EnvSlots: "4", agent.EnvGrace: "0s", "CLOUD_RUN_WORKER_POOL": "p",
			},
			want:     Settings{URL: "http://127.0.0.1:1", Bus: "pubsub:acme-prod", Target: "lake", Agents: []string{"a", "b"}, Slots: 4, ForwardURL: "http://127.0.0.1:8080/run"},
			identity: true,
		},
		"everything that is wrong at once": {
			vars: map[string]string{agent.EnvURL: "x", EnvBus: "", agent.EnvTarget: "", agent.EnvAgent: ",", agent.EnvSlots: "0", agent.EnvGrace: "soon"},
			wantError: []string{
				`ERRAND_URL="x"`, `ERRAND_BUS=""`, `ERRAND_TARGET=""`, `ERRAND_AGENT=","`, `ERRAND_SLOTS="0": want a number from 1 to 1000`,
				`ERRAND_GRACE="soon"`, `ERRAND_FORWARD_URL="": want either`,
			},
		},
		"both ways to execute": {
			vars: map[string]string{EnvForwardURL: "http://127.0.0.1:8080/run"}, args: []string{"cat"}, wantError: []string{"ERRAND_FORWARD_URL"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ReadSettings(environment(tt.vars), tt.args)
			for _, want := range tt.wantError {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v; want …%s…", err, want)
				}
			}
			if tt.wantError != nil {
				return
			}
			if err != nil || (got.tokens != nil) != tt.identity {
				t.Fatalf("%v, identity %v; want %v", err, got.tokens != nil, tt.identity)
			}
			got.tokens = nil
			if len(got.Command) == 0 {
				got.Command = nil
			}
			if diff := cmp.Diff(tt.want, *got, cmp.AllowUnexported(Settings{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhereAttemptsMayBeForwarded(t *testing.T) {
	for url, ok := range map[string]bool{
		"http://127.0.0.1:8080/run": true, "http://localhost/run": true, "http://[::1]:1/": true, "https://agent.example/run": true,
		"http://agent.example/run": false, "http://10.0.0.1/run": false, "127.0.0.1:8080": false, "": false, "https://u:p@agent.example": false,
	} {
		if _, err := NewForward(url, "http://control"); (err == nil) != ok {
			t.Errorf("%q: error %v; want allowed %v", url, err, ok)
		}
	}
}

// running is a worker with a real server, and a bus of its own.
type running struct {
	c    *control
	bus  bus.Bus
	log  outside.Log
	stop func() error
}

func launch(t *testing.T, vars map[string]string, command ...string) *running {
	t.Helper()
	return launchOn(t, local.Open(local.Options{Log: quiet}), vars, command...)
}

// launchOn runs a worker on a bus, which it closes.
func launchOn(t *testing.T, b bus.Bus, vars map[string]string, command ...string) *running {
	t.Helper()
	r := &running{c: newControl(), bus: b}
	r.c.every = 100 * time.Millisecond
	web := httptest.NewServer(r.c)
	all := map[string]string{agent.EnvURL: web.URL, agent.EnvWorker: "w1", agent.EnvGrace: "10ms", agent.EnvWorkerToken: "mine"}
	for name, value := range vars {
		all[name] = value
	}
	s, err := ReadSettings(environment(all), command)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r.bus, r.log.Logger()) }()
	r.stop = func() error { cancel(); return <-done }
	t.Cleanup(func() {
		cancel()
		_ = r.bus.Close()
		web.Close()
	})
	return r
}

// hand gives the worker a run and waits for its end.
func (r *running) hand(t *testing.T, input string) *record {
	t.Helper()
	x, m := r.c.assign(input)
	if err := r.bus.Publish(t.Context(), bus.Pool("lake"), []bus.Message{m})[0]; err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *record) end(t *testing.T) {
	t.Helper()
	select {
	case <-x.over:
	case <-time.After(20 * time.Second):
		t.Fatal("the run has not ended after 20s")
	}
}

func TestAWorkerExecutesByACommand(t *testing.T) {
	t.Setenv("ERRAND_WORKER_TOKEN", "hush")
	r := launch(t, nil, "sh", "-c", `cat > /dev/null; echo "worker has ${ERRAND_WORKER_TOKEN-no} token" >&2; printf '{"output":{"attempt":"%s"}}' "$ERRAND_ATTEMPT"`)
	x := r.hand(t, `{"a":1}`)
	x.end(t)
	if x.state != "succeeded" || x.output != `{"attempt":"r1.1"}` {
		t.Errorf("run is %s, output %s, failure %+v", x.state, x.output, x.failure)
	}
	if diff := cmp.Diff([]string{"worker has no token"}, x.logs); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Bearer mine"}, r.c.seen); diff != "" {
		t.Errorf("claimed as (-want +got):\n%s", diff)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

func TestACommandThatIsMissingIsToldAtOnce(t *testing.T) {
	r := launch(t, nil, "no-such-program")
	if err := r.stop(); err == nil || !strings.Contains(err.Error(), `run "no-such-program" for each attempt`) {
		t.Errorf("error %v", err)
	}
}

// sidecar is the agent beside a worker, which comes up when it is told to.
func sidecar(t *testing.T, h http.HandlerFunc) (url string, up func()) {
	t.Helper()
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := reserved.Addr().String()
	_ = reserved.Close()
	return "http://" + address + "/run", func() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		web := &http.Server{Handler: h}
		go func() { _ = web.Serve(l) }()
		t.Cleanup(func() { _ = web.Close() })
	}
}

func TestAWorkerForwardsToTheAgentBesideIt(t *testing.T) {
	type seen struct{ Authorization, Attempt, Input, URL string }
	got := make(chan seen, 1)
	url, up := sidecar(t, func(w http.ResponseWriter, req *http.Request) {
		d, err := api.ReadDocument(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		got <- seen{req.Header.Get("Authorization"), d.Attempt, string(d.Input), d.URL}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: progress\ndata: 0.5\n\nevent: log\ndata: half way\n\nevent: result\ndata: {\"output\":7}\n\n")
	})
	r := launch(t, map[string]string{EnvForwardURL: url})
	x := r.hand(t, `{"a":1}`)
	if claims := look(r.c, func() int { return r.c.claims }); claims != 0 {
		t.Error("a run was claimed before the agent was there")
	}
	up()
	x.end(t)
	if x.state != "succeeded" || x.output != "7" {
		t.Errorf("run is %s, output %s, failure %+v", x.state, x.output, x.failure)
	}
	if diff := cmp.Diff([]string{"half way"}, x.logs); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	want := seen{"Bearer token-r1.1", "r1.1", `{"a":1}`, r.server()}
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Errorf("the agent was sent (-want +got):\n%s", diff)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// server is the control plane's address, as the worker's log has it.
func (r *running) server() string {
	_, rest, _ := strings.Cut(r.log.String(), "server=")
	server, _, _ := strings.Cut(rest, " ")
	return server
}

func TestAnEndOfAForwardedAttemptClosesItsConnection(t *testing.T) {
	tests := map[string]struct {
		end       func(r *running, x *record)
		wantState string
		wantCode  string
	}{
		"when it is canceled": {
			end: func(r *running, x *record) {
				look(r.c, func() bool { x.cancel = true; return true })
			},
			wantState: "failed", wantCode: "CanceledByRequest",
		},
		"when the worker drains": {end: func(r *running, _ *record) { go func() { _ = r.stop() }() }, wantState: "queued"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			began, closed := make(chan struct{}), make(chan struct{})
			url, up := sidecar(t, func(_ http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				close(began)
				<-req.Context().Done()
				close(closed)
			})
			up()
			r := launch(t, map[string]string{EnvForwardURL: url})
			x := r.hand(t, `1`)
			<-began
			tt.end(r, x)
			x.end(t)
			<-closed
			if x.state != tt.wantState || tt.wantCode != "" && (x.failure == nil || x.failure.Code != tt.wantCode) {
				t.Errorf("run is %s, failure %+v; want %s with code %q", x.state, x.failure, tt.wantState, tt.wantCode)
			}
		})
	}
}
