package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestReadEnvironment(t *testing.T) {
	tests := map[string]struct {
		vars      map[string]string
		want      string // protocol
		wantError []string
	}{
		"a terminal":                        {vars: map[string]string{}, wantError: []string{"no protocol"}},
		"a worker by its variables":         {vars: map[string]string{EnvURL: "http://x", EnvAgent: "a, b"}, want: ProtocolWorker},
		"one attempt means stdio":           {vars: map[string]string{EnvAttempt: "r.1", EnvURL: "http://x", EnvAgent: "a"}, want: ProtocolStdio},
		"http as asked":                     {vars: map[string]string{EnvProtocol: "http", EnvPort: "9001"}, want: ProtocolHTTP},
		"a port alone says nothing":         {vars: map[string]string{EnvPort: "9001"}, wantError: []string{"no protocol"}},
		"a worker without anything":         {vars: map[string]string{EnvProtocol: "worker"}, wantError: []string{EnvURL, EnvAgent}},
		"all faults at once":                {vars: map[string]string{EnvProtocol: "http", EnvPort: "x", EnvSlots: "0", EnvGrace: "soon"}, wantError: []string{`PORT="x"`, `ERRAND_SLOTS="0": want a number from 1 to 1000`, `ERRAND_GRACE="soon"`}},
		"a protocol that nobody has spoken": {vars: map[string]string{EnvProtocol: "smoke"}, wantError: []string{"worker, http, stdio or job"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := readEnvironment(env(tt.vars), nil)
			for _, want := range tt.wantError {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v; want …%s…", err, want)
				}
			}
			if len(tt.wantError) == 0 && (err != nil || got.protocol != tt.want) {
				t.Errorf("%+v, %v; want %s", got, err, tt.want)
			}
		})
	}
}

// processOf runs a process with a handler, as Main does.
func processOf[In, Out any](p *process, h Handler[In, Out]) func(context.Context) int {
	return func(ctx context.Context) int { return p.run(ctx, Of(h).handle) }
}

func TestMainOnATerminalSaysHowToRunIt(t *testing.T) {
	var stderr bytes.Buffer
	p := &process{getenv: env(nil), stderr: &stderr, name: "checker"}
	code := processOf(p, func(context.Context, *Run, int) (int, error) { return 0, nil })(t.Context())
	if code != 2 || !strings.Contains(stderr.String(), "errand dev") || !strings.Contains(stderr.String(), "checker") {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}

func TestStdio(t *testing.T) {
	tests := map[string]struct {
		document string
		handler  Handler[map[string]int, any]
		wantCode int
		want     string // on standard output
		wantErr  string // on standard error
	}{
		"an output": {
			document: `{"run":"r1","attempt":"r1.3","agent":"a","tenant":"t","input":{"x":2},"key":"k"}`,
			handler: func(_ context.Context, r *Run, in map[string]int) (any, error) {
				r.Log().Info("hello")
				r.Usage(Usage{InputTokens: 4})
				r.Score(0.5)
				return []any{in["x"], r.Attempt, r.Tenant, r.Key}, nil
			},
			want:    `{"output":[2,3,"t","k"],"usage":{"inputTokens":4},"score":0.5}`,
			wantErr: "hello",
		},
		"a failure": {
			document: `{"run":"r1","attempt":"r1.1","input":{}}`,
			handler:  func(context.Context, *Run, map[string]int) (any, error) { return nil, Fail("BAD", errBoom) },
			wantCode: 1, want: `{"error":{"code":"BAD","message":"boom","retryable":false}}`,
		},
		"a park": {
			document: `{"run":"r1","attempt":"r1.1","input":{}}`,
			handler: func(ctx context.Context, r *Run, _ map[string]int) (any, error) {
				return Wait[any](ctx, r, "paid", 0)
			},
			want: `{"park":{"on":"input","step":"wait:paid#1","name":"paid"}}`,
		},
		"a park that was woken": {
			document: `{"run":"r1","attempt":"r1.2","input":{},"steps":[{"name":"wait:paid#1","seq":1,"result":{"signal":7}}]}`,
			handler: func(ctx context.Context, r *Run, _ map[string]int) (any, error) {
				return Wait[any](ctx, r, "paid", 0)
			},
			want: `{"output":7}`,
		},
		"a turn of a session": {
			document: `{"run":"r1","attempt":"r1.2","input":{},"session":{"name":"s","state":{"n":1}}}`,
			handler: func(ctx context.Context, r *Run, _ map[string]int) (any, error) {
				s, err := SessionOf[struct {
					N int `json:"n"`
				}](r)
				s.N++
				return r.Session, err
			},
			want: `{"output":"s","session":{"n":2}}`,
		},
		"a step without a server": {
			document: `{"run":"r1","attempt":"r1.1","input":{}}`,
			handler: func(ctx context.Context, r *Run, _ map[string]int) (any, error) {
				return Step(ctx, r, "a", func(context.Context) (int, error) { return 1, nil })
			},
			wantCode: 1, want: `{"error":{"code":"Unsupported","message":"record step \"a\": Unsupported: no server to record this at: set ERRAND_URL","retryable":false}}`,
		},
		"a document that is none": {
			document: `{"run":7}`,
			handler:  func(context.Context, *Run, map[string]int) (any, error) { return nil, nil },
			wantCode: 2, wantErr: "run document: run: number does not fit",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout bytes.Buffer
			var stderr outside.Log
			p := &process{getenv: env(map[string]string{EnvProtocol: ProtocolStdio}), stdin: strings.NewReader(tt.document), stdout: &stdout, stderr: &stderr, name: "x"}
			code := processOf(p, tt.handler)(t.Context())
			if code != tt.wantCode || strings.TrimSpace(stdout.String()) != tt.want {
				t.Errorf("exit %d\n got %s\nwant %s", code, stdout.String(), tt.want)
			}
			if !strings.Contains(stderr.String(), tt.wantErr) {
				t.Errorf("standard error %q; want …%s…", stderr.String(), tt.wantErr)
			}
			if code != 2 && code == 0 != (api.ParseResult(stdout.Bytes()).Error == nil) {
				t.Error("the exit code and the result do not agree")
			}
		})
	}
}

func TestStdioRecordsAtTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r := f.submit("a", `{}`)
		l := f.lease(&api.LeaseRequest{Agents: []string{"a"}, Max: 1})[0]
		f.report(api.Report{Type: api.ReportStart, Attempt: l.Attempt, Token: l.Token})
		doc, _ := json.Marshal(api.Document{Run: l.Run, Attempt: l.Attempt, Agent: "a", Input: l.Input})
		var stdout bytes.Buffer
		var o world
		p := &process{
			getenv:  env(map[string]string{EnvAttempt: l.Attempt, EnvToken: l.Token, EnvURL: "http://fake"}),
			connect: f.connect(t), stdin: bytes.NewReader(doc), stdout: &stdout, stderr: io.Discard, name: "x",
		}
		code := processOf(p, func(ctx context.Context, r *Run, _ any) (string, error) {
			if _, err := Step(ctx, r, "a", func(context.Context) (int, error) { return 1, nil }); err != nil {
				return "", err
			}
			r.Progress(0.5, "half")
			got, err := Once(ctx, r, "mail", Effect[sent]{Do: o.do})
			return got.ID, err
		})(t.Context())
		if code != 0 || len(r.steps) != 1 || len(o.done) != 1 || r.progress != 0.5 {
			t.Errorf("exit %d, %d steps, %d effects, progress %v: %s", code, len(r.steps), len(o.done), r.progress, stdout.String())
		}
	})
}

// serving runs the http protocol on a free port.
func serving(t *testing.T, vars map[string]string, h handle, opts ...Option) (url string, stop func() int) {
	t.Helper()
	var log outside.Log
	listening := make(chan string, 1)
	p := &process{getenv: env(vars), stderr: io.MultiWriter(&log, findPort(listening)), name: "x"}
	for _, o := range opts {
		o(&p.options)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() { done <- p.run(ctx, h) }()
	t.Cleanup(cancel)
	select {
	case port := <-listening:
		return "http://127.0.0.1:" + port, func() int { cancel(); return <-done }
	case code := <-done:
		t.Fatalf("exit %d: %s", code, log.String())
		return "", nil
	}
}

// findPort finds the port in the log line that tells it.
func findPort(port chan<- string) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		if _, rest, ok := strings.Cut(string(p), "address=[::]:"); ok {
			number, _, _ := strings.Cut(rest, " ")
			port <- number
		}
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

func post(t *testing.T, url, token, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

func TestHTTP(t *testing.T) {
	f := newFake()
	web := httptest.NewServer(f)
	defer web.Close()
	r := f.submit("a", `{}`)
	l := f.lease(&api.LeaseRequest{Agents: []string{"a"}, Max: 1})[0]
	f.report(api.Report{Type: api.ReportStart, Attempt: l.Attempt, Token: l.Token})

	hold, held := make(chan struct{}), make(chan struct{})
	h := func(ctx context.Context, r *Run, in map[string]string) (any, error) {
		switch in["do"] {
		case "step":
			return Step(ctx, r, "a", func(context.Context) (int, error) { return 7, nil })
		case "fail":
			return nil, fmt.Errorf("no: %w", Retry(time.Minute))
		case "hold":
			close(held)
			<-hold
		}
		return in["do"], nil
	}
	url, stop := serving(t, map[string]string{EnvProtocol: ProtocolHTTP, EnvPort: "0", EnvSlots: "1"},
		Of(h).handle,
		WithSnapshot(func(context.Context) (map[string]any, error) { return map[string]any{"s": []int{1}}, nil }))

	document := func(attempt, do string) string {
		b, _ := json.Marshal(api.Document{URL: web.URL, Run: "r1", Attempt: attempt, Input: json.RawMessage(`{"do":"` + do + `"}`)})
		return string(b)
	}
	type answer struct {
		Status int
		Body   string
	}
	check := func(what string, want answer, status int, body string) {
		t.Helper()
		if diff := cmp.Diff(want, answer{status, body}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	status, body := post(t, url+"/run", l.Token, document(l.Attempt, "step"))
	check("a step is recorded under the request's token", answer{200, `{"output":7}`}, status, body)
	if len(r.steps) != 1 {
		t.Errorf("%d steps recorded", len(r.steps))
	}
	status, body = post(t, url+"/run", l.Token, document("r1.2", "fail"))
	check("a failure", answer{200, `{"error":{"message":"no: asked to be retried","retryAfter":"1m0s"}}`}, status, body)
	status, body = post(t, url+"/snapshot", "", "")
	check("a snapshot", answer{200, `{"sessions":{"s":[1]}}`}, status, body)
	if status, _ = post(t, url+"/run", "", `{`); status != 400 {
		t.Errorf("a broken document: %d", status)
	}

	first := make(chan answer, 1)
	go func() {
		status, body := post(t, url+"/run", l.Token, document("r1.3", "hold"))
		first <- answer{status, body}
	}()
	select {
	case <-held:
	case a := <-first:
		t.Fatalf("a run for the only slot, which is free: %d %s", a.Status, a.Body)
	}
	if status, _ = post(t, url+"/run", l.Token, document("r1.3", "")); status != 409 {
		t.Errorf("the same attempt again: %d; want 409", status)
	}
	if status, _ = post(t, url+"/run", l.Token, document("r1.4", "")); status != 503 {
		t.Errorf("beyond the slots: %d; want 503", status)
	}
	close(hold)
	a := <-first
	check("the one that was held", answer{200, `{"output":"hold"}`}, a.Status, a.Body)
	resp, err := http.Get(url + "/healthz")
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("health: %v %v", resp, err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestHTTPDrainHandsBackWhatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		h := func(ctx context.Context, _ *api.Client, _ *Attempt) Result {
			close(held)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrDraining) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			return Failed(ctx.Err())
		}
		l := newPipeListener()
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() {
			served <- new(process).serveOn(ctx, l, &environment{slots: 1, grace: DefaultGrace}, quiet, h)
		}()
		client := &http.Client{Transport: &http.Transport{DialContext: l.dial, DisableKeepAlives: true}}
		answered := make(chan int, 1)
		go func() {
			resp, err := client.Post("http://pipe/run", "application/json", strings.NewReader(`{"run":"r","attempt":"r.1"}`))
			if err != nil {
				t.Errorf("POST /run: %v", err)
				answered <- 0
				return
			}
			resp.Body.Close()
			answered <- resp.StatusCode
		}()
		<-held
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if status := <-answered; status != 503 {
			t.Errorf("the run was answered %d; want 503, for it was handed back", status)
		}
	})
}

// pipeListener serves connections without sockets, so that tests can run on synctest's clock.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipeListener() *pipeListener {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.close(); return nil }
func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// nextOnWrite asks for another attempt the moment that the answer to the one before is written.
type nextOnWrite struct {
	*httptest.ResponseRecorder
	next func()
}

func (w *nextOnWrite) WriteHeader(status int) {
	w.ResponseRecorder.WriteHeader(status)
	w.next()
}

func TestHTTPSlotIsFreeBeforeItsRunIsAnswered(t *testing.T) {
	h := func(context.Context, *api.Client, *Attempt) Result { return Result{} }
	s := &server{env: &environment{slots: 1}, log: quiet, handle: h, life: t.Context(), running: map[string]bool{}}
	s.reporters.env, s.reporters.log = s.env, quiet
	defer s.reporters.close()
	run := func(w http.ResponseWriter, attempt string) {
		s.routes().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/run", strings.NewReader(`{"run":"r","attempt":"`+attempt+`"}`)))
	}
	second := httptest.NewRecorder()
	first := &nextOnWrite{ResponseRecorder: httptest.NewRecorder(), next: func() { run(second, "r.2") }}
	run(first, "r.1")
	if first.Code != 200 || second.Code != 200 {
		t.Errorf("answered %d, and the next that was sent on this answer %d %s; want 200 for both", first.Code, second.Code, second.Body)
	}
}

func TestWorkerProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p := &process{
			getenv:  env(map[string]string{EnvURL: "http://fake", EnvAgent: "a,b", EnvSlots: "2", EnvWorker: "w9"}),
			connect: f.connect(t), stderr: io.Discard, name: "x",
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan int, 1)
		go func() {
			done <- processOf(p, func(_ context.Context, r *Run, in int) (string, error) { return fmt.Sprint(r.Agent, in), nil })(ctx)
		}()
		one, two := f.submit("a", "1"), f.submit("b", "2")
		<-one.wait
		<-two.wait
		cancel()
		if code := <-done; code != 0 || string(one.output) != `"a1"` || string(two.output) != `"b2"` || one.worker != "w9" {
			t.Errorf("exit %d, outputs %s and %s, worker %s", code, one.output, two.output, one.worker)
		}
	})
}

func TestDescribeClipsAtARune(t *testing.T) {
	e := describe(errors.New(strings.Repeat("ä", api.MaxMessage)), nil)
	if len(e.Message) > api.MaxMessage || !strings.HasSuffix(e.Message, "ä…") {
		t.Errorf("%d bytes, ends in %q", len(e.Message), e.Message[len(e.Message)-6:])
	}
}

func TestDocumentCarriesTheWholeLease(t *testing.T) {
	two := 2
	l := api.Lease{
		Attempt: "r1.3", N: 3, Run: "r1", Agent: "a", Tenant: "t", Mode: "run", Input: json.RawMessage(`1`), Key: "k", Token: "secret",
		Deadline: api.Time{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}, Traceparent: "00-1", Labels: map[string]string{"l": "v"},
		Steps: []api.Step{{Name: "s", Seq: 1}}, Session: "chat", State: json.RawMessage(`{}`), Index: &two, Completions: &two,
	}
	raw, err := json.Marshal(l.Document("http://x"))
	if err != nil || strings.Contains(string(raw), "secret") {
		t.Fatalf("%s %v: the token has no place in it", raw, err)
	}
	d, err := api.ReadDocument(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(l, fromDocument(d, "secret", nil).Lease); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
