package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
)

// site is a service process on synctest's clock.
type site struct {
	t      *testing.T
	f      *fake
	client *http.Client
	stop   context.CancelFunc
	served chan error
}

func newSite(t *testing.T, f *fake, vars map[string]string, h Handler[any, any]) *site {
	t.Helper()
	all := map[string]string{envService: "adder", EnvPort: "8080", EnvURL: "http://fake", EnvWorker: "w1"}
	for name, value := range vars {
		all[name] = value
	}
	e, err := readEnvironment(env(all), nil)
	if err != nil {
		t.Fatal(err)
	}
	e.connect = f.connect(t)
	l := newPipeListener()
	ctx, stop := context.WithCancel(t.Context())
	s := &site{t: t, f: f, stop: stop, served: make(chan error, 1)}
	s.client = &http.Client{Transport: &http.Transport{DialContext: l.dial, DisableKeepAlives: true}}
	go func() {
		s.served <- new(process).serveOn(ctx, l, e, quiet, Of(h).handle)
	}()
	synctest.Wait()
	return s
}

// end stops the process and waits for it.
func (s *site) end() {
	s.t.Helper()
	s.stop()
	if err := <-s.served; err != nil {
		s.t.Errorf("serve: %v", err)
	}
}

type answered struct {
	Status                int
	Kind, Run, RetryAfter string
	Body                  string
}

// post sends a request and returns the answer; headers are pairs.
func (s *site) post(ctx context.Context, path, body string, headers ...string) (answered, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://pipe"+path, strings.NewReader(body))
	if err != nil {
		return answered{}, err
	}
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answered{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	h := resp.Header
	return answered{resp.StatusCode, h.Get("Content-Type"), h.Get("Errand-Run"), h.Get("Retry-After"), string(raw)}, err
}

func TestACallBeginsItsOwnRun(t *testing.T) {
	tests := map[string]struct {
		path, body string
		headers    []string
		before     func(f *fake)
		handler    Handler[any, any]
		want       answered
		wantState  string
		wantTenant string
	}{
		"and is answered with its output": {
			path: "/", body: `{"a":1}`, handler: func(_ context.Context, _ *Run, in any) (any, error) { return in, nil },
			want: answered{200, "application/json", "r1", "", `{"a":1}`}, wantState: "succeeded", wantTenant: "default",
		},
		"on any path": {
			path: "/some/where", body: `"x"`, handler: func(_ context.Context, _ *Run, in any) (any, error) { return in, nil },
			want: answered{200, "application/json", "r1", "", `"x"`}, wantState: "succeeded", wantTenant: "default",
		},
		"on the path of attempts, when it is none": {
			path: "/run", body: `{"run":"not an attempt"}`, handler: func(_ context.Context, _ *Run, in any) (any, error) { return in, nil },
			want: answered{200, "application/json", "r1", "", `{"run":"not an attempt"}`}, wantState: "succeeded", wantTenant: "default",
		},
		"with no input": {
			path: "/", handler: func(_ context.Context, _ *Run, in any) (any, error) { return in == nil, nil },
			want: answered{200, "application/json", "r1", "", `true`}, wantState: "succeeded", wantTenant: "default",
		},
		"of the tenant that it names": {
			path: "/", body: `1`, headers: []string{"Errand-Tenant", "acme"}, handler: func(_ context.Context, r *Run, _ any) (any, error) { return r.Tenant, nil },
			want: answered{200, "application/json", "r1", "", `"acme"`}, wantState: "succeeded", wantTenant: "acme",
		},
		"and is told of a failure for good": {
			path: "/", body: `1`, handler: func(context.Context, *Run, any) (any, error) { return nil, Fail("BAD", errBoom) },
			want: answered{422, "application/problem+json", "r1", "",
				`{"type":"https://errand.dev/problems/failed","title":"BAD","status":422,"detail":"boom"}`},
			wantState: "failed", wantTenant: "default",
		},
		"and is told when to try again": {
			path: "/", body: `1`, handler: func(context.Context, *Run, any) (any, error) { return nil, Throttled(1500 * time.Millisecond) },
			want: answered{429, "application/problem+json", "r1", "2",
				`{"type":"https://errand.dev/problems/failed","title":"Failed","status":429,"detail":"throttled","retryAfter":2}`},
			wantState: "queued", wantTenant: "default",
		},
		"and is told that it waits": {
			path: "/", body: `1`, handler: func(ctx context.Context, r *Run, _ any) (any, error) { return Wait[any](ctx, r, "paid", 0) },
			want: answered{202, "application/json", "r1", "", `{"on":"input","run":"r1","state":"waiting"}`}, wantState: "waiting", wantTenant: "default",
		},
		"and not twice under a key that is over": {
			path: "/", body: `null`, headers: []string{"Idempotency-Key", `"k"`}, before: func(f *fake) { f.began("k", "null", "succeeded") },
			want: answered{200, "application/json", "r1", "", `"before"`}, wantState: "succeeded", wantTenant: "default",
		},
		"and not under a key that failed": {
			path: "/", body: `null`, headers: []string{"Idempotency-Key", "k"}, before: func(f *fake) {
				f.began("k", "null", "failed")
				f.runs["r1"].failure = &api.Report{Code: "BAD", Message: "boom"}
			},
			want: answered{422, "application/problem+json", "r1", "",
				`{"type":"https://errand.dev/problems/failed","title":"BAD","status":422,"detail":"boom"}`},
			wantState: "failed", wantTenant: "default",
		},
		"and not under a key that runs elsewhere": {
			path: "/", body: `null`, headers: []string{"Idempotency-Key", "k"}, before: func(f *fake) { f.began("k", "null", "running") },
			want: answered{409, "application/problem+json", "", "2",
				`{"type":"https://errand.dev/problems/conflict","title":"Conflict","status":409,"detail":"the run of this key is executed elsewhere: the run is executed by somebody else","retryAfter":2}`},
			wantState: "running", wantTenant: "default",
		},
		"and not under a key that stands for another input": {
			path: "/", body: `8`, headers: []string{"Idempotency-Key", "k"}, before: func(f *fake) { f.began("k", "7", "running") },
			want: answered{409, "application/problem+json", "", "",
				`{"type":"https://errand.dev/problems/conflict","title":"Conflict","status":409,"detail":"the key stands for another input"}`},
			wantState: "running", wantTenant: "default",
		},
		"unless the process may not": {
			path: "/", body: `1`, before: func(f *fake) {
				f.began("k", "7", "running")
				f.setFailing("runs:begin", problemOf(403, api.CodeForbidden, "not this account"))
			},
			want: answered{502, "application/problem+json", "", "",
				`{"type":"https://errand.dev/problems/forbidden","title":"Bad Gateway","status":502,"detail":"the control plane does not let this process begin the run: not this account"}`},
			wantState: "running", wantTenant: "default",
		},
		"unless the server is away": {
			path: "/", body: `1`, before: func(f *fake) { f.began("k", "7", "running"); f.setDown(true) },
			want: answered{503, "application/problem+json", "", "1",
				`{"type":"https://errand.dev/problems/unavailable","title":"Service Unavailable","status":503,"detail":"the run could not be begun: the control plane cannot be reached","retryAfter":1}`},
			wantState: "running", wantTenant: "default",
		},
		"unless its input is none": {
			path: "/", body: `{"secret`, before: func(f *fake) { f.began("k", "7", "running") },
			want: answered{400, "application/problem+json", "", "",
				`{"type":"https://errand.dev/problems/invalid","title":"Bad Request","status":400,"detail":"the input is not JSON at byte 8 of 8; want one document such as {\"name\":\"you\"}"}`},
			wantState: "running", wantTenant: "default",
		},
		"unless the server does not take its result": {
			path: "/", body: `1`, handler: func(_ context.Context, _ *Run, in any) (any, error) { return in, nil },
			before: func(f *fake) {
				f.refuse[api.ReportComplete] = problemOf(422, api.CodeInvalid, "the output does not fit the schema")
			},
			want: answered{500, "application/problem+json", "r1", "",
				`{"type":"https://errand.dev/problems/failed","title":"ResultRefused","status":500,"detail":"the control plane did not take the result: attempt r1.1: Unprocessable Entity: the output does not fit the schema"}`},
			wantState: "queued", wantTenant: "default",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				if tt.before != nil {
					tt.before(f)
				}
				s := newSite(t, f, nil, tt.handler)
				got, err := s.post(t.Context(), tt.path, tt.body, tt.headers...)
				if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				f.setDown(false)
				r := look(f, func() *fakeRun { return f.runs["r1"] })
				if r == nil || r.state != tt.wantState || r.tenant != tt.wantTenant {
					t.Errorf("run %+v; want %s, of %s", r, tt.wantState, tt.wantTenant)
				}
				s.end()
			})
		})
	}
}

func TestASecondCallWithAKeyWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		effects := 0
		s := newSite(t, f, nil, func(ctx context.Context, _ *Run, _ any) (any, error) {
			effects++
			_ = nap(ctx, time.Minute)
			return effects, nil
		})
		first := make(chan answered, 1)
		go func() {
			got, _ := s.post(t.Context(), "/", "1", "Idempotency-Key", "k")
			first <- got
		}()
		synctest.Wait()
		if got, err := s.post(t.Context(), "/", "1", "Idempotency-Key", "k"); err != nil || got.Status != 409 || got.RetryAfter != "1" {
			t.Errorf("while it runs: %+v, %v; want 409 with Retry-After", got, err)
		}
		if got := <-first; got.Status != 200 || got.Body != "1" {
			t.Errorf("the first call: %+v", got)
		}
		if got, err := s.post(t.Context(), "/", "1", "Idempotency-Key", "k"); err != nil || got.Status != 200 || got.Body != "1" || effects != 1 {
			t.Errorf("when it is over: %+v, %v, after %d effects; want the recorded output, and one effect", got, err, effects)
		}
		sent := func() int { return len(f.workers["w1"].beats) }
		if beats := look(f, sent); beats < 10 || beats > 14 {
			t.Errorf("%d heartbeats in a minute of work; want one each 5s", beats)
		}
		time.Sleep(time.Hour)
		if beats := look(f, sent); beats > 14 {
			t.Errorf("%d heartbeats; want none while nothing is held", beats)
		}
		s.end()
	})
}

func TestACallWhoseCallerGoesAwayIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := newSite(t, f, nil, func(ctx context.Context, _ *Run, _ any) (any, error) {
			return "done", nap(ctx, time.Minute)
		})
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, err := s.post(ctx, "/", "1", "Idempotency-Key", "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		time.Sleep(time.Minute)
		if got, err := s.post(t.Context(), "/", "1", "Idempotency-Key", "k"); err != nil || got.Body != `"done"` {
			t.Errorf("asked again: %+v, %v; want the output", got, err)
		}
		s.end()
	})
}

func TestACallIsHandedBackWhenItsProcessHasToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := newSite(t, f, nil, func(ctx context.Context, _ *Run, _ any) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
		told := make(chan answered, 1)
		go func() {
			got, err := s.post(t.Context(), "/", "1")
			if err != nil {
				t.Errorf("call: %v", err)
			}
			told <- got
		}()
		synctest.Wait()
		began := time.Now()
		s.end()
		if got := <-told; got.Status != 503 || got.RetryAfter != "1" {
			t.Errorf("answered %+v; want 503 with Retry-After", got)
		}
		if r := f.runs["r1"]; r.state != "queued" || len(r.released) != 1 {
			t.Errorf("run is %s, released %v; want it back in the queue", r.state, r.released)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the process ended after %s; platforms kill after 10s", took)
		}
	})
}

func TestAnAttemptOutlivesItsCaller(t *testing.T) {
	tests := map[string]struct {
		meanwhile func(f *fake, r *fakeRun) // a minute after the caller left
		wantCause error                     // of the handler's context; nil for none
		wantState string
		wantCalls bool // the server is asked while it goes on
	}{
		"and reports its end itself": {wantState: "succeeded", wantCalls: true},
		"and learns that it is canceled": {
			meanwhile: func(f *fake, r *fakeRun) { f.cancelRun(r, "CanceledByRequest") },
			wantCause: &CanceledError{Reason: "CanceledByRequest"}, wantState: "failed", wantCalls: true,
		},
		"and learns that somebody else has its run": {
			meanwhile: func(f *fake, _ *fakeRun) { f.loseWorker("") }, wantCause: ErrFenced, wantState: "queued", wantCalls: true,
		},
		"and an outage of the server": {
			meanwhile: func(f *fake, _ *fakeRun) {
				f.setDown(true)
				time.AfterFunc(5*time.Minute, func() { f.setDown(false) })
			},
			wantState: "succeeded", wantCalls: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				r, document, token := f.document("adder", "1")
				batches := func() int { return f.calls["/v1/attempts:batch"] }
				cause := make(chan error, 1)
				s := newSite(t, f, nil, func(ctx context.Context, _ *Run, in any) (any, error) {
					err := nap(ctx, 3*time.Minute)
					cause <- context.Cause(ctx)
					return in, err
				})
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				defer leave()
				// The platform takes Authorization for itself.
				_, err := s.post(ctx, "/run", document, "X-Errand-Token", token, "Authorization", "Bearer identity")
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v", err)
				}
				synctest.Wait()
				if asked := look(f, batches); asked == 0 {
					t.Error("the server was not asked when the caller went away")
				}
				time.Sleep(time.Minute)
				if n := look(f, batches); n < 10 {
					t.Errorf("the server was asked %d times in a minute; want a sign of life each 5s", n)
				}
				if tt.meanwhile != nil {
					tt.meanwhile(f, r)
				}
				got := <-cause
				var canceled, want *CanceledError
				switch {
				case errors.As(tt.wantCause, &want):
					if !errors.As(got, &canceled) || canceled.Reason != want.Reason {
						t.Errorf("cause %v; want %v", got, want)
					}
				case tt.wantCause == nil && got != nil, !errors.Is(got, tt.wantCause):
					t.Errorf("cause %v; want %v", got, tt.wantCause)
				}
				time.Sleep(10 * time.Minute)
				if state := look(f, func() string { return r.state }); state != tt.wantState {
					t.Errorf("run is %s (%s); want %s", state, r.why(), tt.wantState)
				}
				s.end()
			})
		})
	}
}

func TestAnAttemptThatCannotBeRecordedIsNotExecuted(t *testing.T) {
	for name, headers := range map[string][]string{
		"without a token":                    nil,
		"with the caller's identity instead": {"Authorization", "Bearer identity"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, newFake(), nil, func(context.Context, *Run, any) (any, error) {
					t.Error("it is executed")
					return nil, nil
				})
				got, err := s.post(t.Context(), "/run", `{"run":"r1","attempt":"made-up.1","input":1}`, headers...)
				if err != nil || got.Status != http.StatusUnauthorized || !strings.Contains(got.Body, "X-Errand-Token") || !strings.Contains(got.Body, "made-up.1") {
					t.Errorf("answered %+v, %v; want 401, and what is missing", got, err)
				}
				s.end()
			})
		})
	}
}

func TestAnAttemptWithoutAServerEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := make(chan error, 1)
		s := newSite(t, newFake(), map[string]string{EnvURL: ""}, func(ctx context.Context, _ *Run, _ any) (any, error) {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return nil, ctx.Err()
		})
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		_, _ = s.post(ctx, "/run", `{"run":"r1","attempt":"r1.1"}`)
		if got := <-cause; !errors.Is(got, context.Canceled) {
			t.Errorf("cause %v", got)
		}
		s.end()
	})
}

func TestAnOrphanIsHandedBackWhenItsProcessHasToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r, document, token := f.document("adder", "1")
		s := newSite(t, f, nil, func(ctx context.Context, _ *Run, _ any) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		_, _ = s.post(ctx, "/run", document, "X-Errand-Token", token)
		began := time.Now()
		s.end()
		if r.state != "queued" || len(r.released) != 1 || time.Since(began) > 10*time.Second {
			t.Errorf("run is %s, released %v, after %s; want it back within 10s", r.state, r.released, time.Since(began))
		}
	})
}

func TestWhatAHandlerSaysIsStreamed(t *testing.T) {
	h := func(_ context.Context, r *Run, in any) (any, error) {
		r.Progress(0.5, "half")
		r.a.Log("agent", "one\ntwo")
		if in == "fail" {
			return nil, Fail("BAD", errBoom)
		}
		return map[string]any{"in": in}, nil
	}
	const said = "event: progress\ndata: {\"message\":\"half\",\"progress\":0.5}\n\nevent: log\ndata: one\ndata: two\n\n"
	tests := map[string]struct {
		body, accept string
		document     bool
		want         string // "" for no stream
	}{
		"to a caller who asks for it": {
			body: `7`, accept: "text/event-stream", want: said + "event: result\ndata: {\"in\":7}\n\n",
		},
		"with the reason of a failure": {
			body: `"fail"`, accept: "text/event-stream",
			want: said + "event: error\ndata: {\"type\":\"https://errand.dev/problems/failed\",\"title\":\"BAD\",\"status\":422,\"detail\":\"boom\"}\n\n",
		},
		"for an attempt that is sent": {
			body: `7`, accept: "text/event-stream, application/json;q=0.5", document: true, want: said + "event: result\ndata: {\"output\":{\"in\":7}}\n\n",
		},
		"not to one who would rather have JSON": {body: `7`, accept: "application/json, text/event-stream;q=0.9"},
		"not to one who takes anything":         {body: `7`, accept: "*/*"},
		"not to one who refuses it":             {body: `7`, accept: "text/event-stream;q=0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				headers := []string{"Accept", tt.accept}
				path, body := "/", tt.body
				if tt.document {
					_, document, token := f.document("adder", tt.body)
					path, body, headers = "/run", document, append(headers, "X-Errand-Token", token)
				}
				s := newSite(t, f, nil, h)
				got, err := s.post(t.Context(), path, body, headers...)
				if tt.want == "" {
					if err != nil || got.Kind != "application/json" || got.Body != `{"in":7}` {
						t.Errorf("%+v, %v; want the bare output", got, err)
					}
				} else if diff := cmp.Diff(answered{200, "text/event-stream", got.Run, "", tt.want}, got); diff != "" || err != nil {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				r := look(f, func() *fakeRun { return f.runs["r1"] })
				if len(r.logs) != 2 {
					t.Errorf("%d lines of log at the server; want both, whoever listens", len(r.logs))
				}
				s.end()
			})
		})
	}
}

func TestAStreamIsWrittenAsThingsHappen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		next := make(chan struct{})
		s := newSite(t, f, nil, func(_ context.Context, r *Run, _ any) (any, error) {
			r.Progress(0.1, "")
			<-next
			return 1, nil
		})
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://pipe/", strings.NewReader("1"))
		req.Header.Set("Accept", "text/event-stream")
		resp, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		if line, err := lines.ReadString('\n'); err != nil || line != "event: progress\n" {
			t.Errorf("%q, %v; want the progress while the handler works", line, err)
		}
		time.AfterFunc(time.Minute+time.Second, func() { close(next) }) // comments keep the stream alive meanwhile
		rest, err := io.ReadAll(lines)
		if err != nil || strings.Count(string(rest), ": working\n\n") != 4 || !strings.HasSuffix(string(rest), "event: result\ndata: 1\n\n") {
			t.Errorf("%v: %q; want four signs of life and the result", err, rest)
		}
		s.end()
	})
}

func TestAStreamThatNobodyReadsHoldsNoHandlerUp(t *testing.T) {
	w := &watch{events: make(chan event, maxWatched)}
	for range maxWatched + 5 {
		w.log("x")
	}
	if n := w.dropped.Load(); n != 5 {
		t.Errorf("%d events dropped; want 5", n)
	}
}

func TestOnlyTheOwnServerIsShownWhoTheProcessIs(t *testing.T) {
	var seen []api.Options
	e := &environment{url: "https://control.example/", workerToken: "mine", connect: func(o api.Options) (*api.Client, error) {
		seen = append(seen, o)
		return api.NewClient(o)
	}}
	for _, url := range []string{"", "https://control.example", "https://elsewhere.example"} {
		p, err := newReporter(e, url, quiet)
		if err != nil {
			t.Fatal(err)
		}
		p.close()
	}
	var tokens []string
	for _, o := range seen {
		tokens = append(tokens, o.Token)
	}
	if diff := cmp.Diff([]string{"mine", "mine", ""}, tokens); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
}
