package cloudrun

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
)

const (
	aService   = place + "/services/s"
	anInstance = place + "/instances/i"
)

// serve serves attempts for the time of the test and returns the address.
func serve(t *testing.T, f func(w http.ResponseWriter, r *http.Request, document string)) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f(w, r, string(body))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// hangs serves attempts that are never answered; it tells of each that came, and of each whose connection was closed.
func hangs(t *testing.T) (url string, came, left <-chan struct{}) {
	c, l := make(chan struct{}, 10), make(chan struct{}, 10)
	return serve(t, func(_ http.ResponseWriter, r *http.Request, _ string) {
		c <- struct{}{}
		<-r.Context().Done()
		l <- struct{}{}
	}), c, l
}

func start(t *testing.T, rt *Runtime, a runtime.Assignment) {
	t.Helper()
	if err := rt.Start(t.Context(), a); err != nil {
		t.Fatal(err)
	}
}

func TestRequest(t *testing.T) {
	var base string
	base = serve(t, func(w http.ResponseWriter, r *http.Request, document string) {
		switch {
		case r.Method != "POST" || r.URL.Path != "/run":
			t.Errorf("%s %s, want POST /run", r.Method, r.URL.Path)
		case r.Header.Get("Authorization") != "Bearer identity-for-"+base || r.Header.Get("X-Errand-Token") != "token-of-r1":
			t.Errorf("headers %v", r.Header)
		}
		_, _ = io.WriteString(w, `{"output":`+document+`}`)
	})
	p := newFake()
	p.services[aService] = &runpb.Service{Uri: base + "/"}
	p.instances[anInstance] = &runpb.Instance{Urls: []string{base}}
	for name, resource := range map[string]string{
		"a service is found by its name": aService, "an instance, too": anInstance, "an address is called as it is": base,
	} {
		t.Run(name, func(t *testing.T) {
			rt, c := begin(t, p)
			start(t, rt, assignment("r1", 3, resource))
			got := c.Await(t, "r1", 3)
			if got.Type != runtime.Completed || !strings.Contains(string(got.Output), `"attempt":"r1.3"`) || got.Ended {
				t.Errorf("report %+v, want the document back", got)
			}
		})
	}
	t.Run("a service is looked up once", func(t *testing.T) {
		rt, c := begin(t, p)
		before := p.count("service")
		for n := range 5 {
			start(t, rt, assignment("r1", n+1, aService))
		}
		for n := range 5 {
			c.Await(t, "r1", n+1)
		}
		if n := p.count("service") - before; n != 1 {
			t.Errorf("looked up %d times", n)
		}
	})
}

func TestStartThatCannotBeIsRefused(t *testing.T) {
	tests := map[string]struct {
		resource string
		fail     error
		want     string
	}{
		"a token never travels in the open":            {resource: "http://example.com", want: "want https"},
		"an address is no more than that":              {resource: "https://a:b@example.com", want: "want https://HOST"},
		"a name that is none":                          {resource: "services/s", want: "projects/PROJECT"},
		"a collection that is none":                    {resource: place + "/things/s", want: "projects/PROJECT"},
		"a service that is not there":                  {resource: place + "/services/none", want: "create the resource"},
		"a service that may not be looked at":          {resource: aService, fail: status.Error(codes.PermissionDenied, "no"), want: "grant the control plane"},
		"an instance that is not there":                {resource: place + "/instances/none", want: "create the resource"},
		"an instance, where the platform has none yet": {resource: anInstance, fail: status.Error(codes.Unimplemented, "no"), want: "another region"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newFake()
			if tt.fail != nil {
				p.fail["service"], p.fail["instance"] = []error{tt.fail}, []error{tt.fail}
			}
			rt, _ := begin(t, p)
			err := rt.Start(t.Context(), assignment("r1", 1, tt.resource))
			if !errors.Is(err, runtime.ErrRefused) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "r1.1 on target cloud") {
				t.Errorf("error %v, want ErrRefused with %q", err, tt.want)
			}
			rt.mu.Lock()
			defer rt.mu.Unlock()
			if len(rt.attempts) != 0 {
				t.Error("it is still on the books")
			}
		})
	}
}

// A fault that may pass must not count as a start that can never be: nothing was sent, and the attempt is given back.
func TestStartThatMayBeLater(t *testing.T) {
	for name, tt := range map[string]struct {
		fail   error
		tokens error
		uri    string
		class  run.Class
	}{
		"the platform's API is away":        {fail: status.Error(codes.Unavailable, "later"), class: run.ClassInfrastructure},
		"the platform's API has had enough": {fail: status.Error(codes.ResourceExhausted, "quota"), class: run.ClassThrottled},
		"the metadata server is away":       {uri: "http://127.0.0.1", tokens: errors.New("away"), class: run.ClassInfrastructure},
		"the service is only being made":    {class: run.ClassInfrastructure},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFake()
			p.services[aService] = &runpb.Service{Uri: tt.uri}
			p.fail["service"] = []error{tt.fail}
			rt, c := begin(t, p, func(o *Options) { o.Tokens = tokens{tt.tokens} })
			start(t, rt, assignment("r1", 1, aService))
			if got := c.Await(t, "r1", 1); got.Class != tt.class || got.Code != httpio.CodeUnreachable || !got.Ended {
				t.Errorf("report %+v, want class %s, surely ended", got, tt.class)
			}
		})
	}
}

// The platform's time limit and ours may be the same, and either may come first: the run learns that its time is over.
func TestGatewayTimeout(t *testing.T) {
	const minutes = 60 * time.Minute
	says := func(body string) *http.Response {
		return &http.Response{StatusCode: 504, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader(body))}
	}
	tests := map[string]struct {
		says     *http.Response
		limit    time.Duration
		deadline time.Duration // from now
		took     time.Duration
		class    run.Class
		code     string
		want     string
	}{
		"at the attempt's deadline, whichever was first, the attempt's time is over": {
			says("upstream request timeout"), minutes, 0, minutes, run.ClassTimeout, string(run.AttemptTimeout), "at the attempt's deadline",
		},
		"a moment before the deadline, too": {
			says("upstream request timeout"), minutes, 2 * time.Second, minutes, run.ClassTimeout, string(run.AttemptTimeout), "at the attempt's deadline",
		},
		"a service's shorter limit is told from the handler's failure": {
			says("upstream request timeout"), 5 * time.Minute, time.Hour, 5 * time.Minute, run.ClassTimeout, codeLimit, "its limit of 5m0s",
		},
		"the limit is known by its time": {
			says(""), 5 * time.Minute, time.Hour, 5*time.Minute - time.Second, run.ClassTimeout, codeLimit, "its limit of 5m0s",
		},
		"where no limit is known, by the platform's words": {
			says("upstream request timeout"), 0, time.Hour, 7 * time.Minute, run.ClassTimeout, codeLimit, "after 7m0s, at its limit",
		},
		"a gateway that the handler met itself is the handler's failure": {
			says("vendor is away"), 5 * time.Minute, time.Hour, time.Minute, run.ClassInfrastructure, "504", "vendor is away",
		},
		"what the handler says in a frame stands": {
			says(`{"error":{"code":"VENDOR","message":"m"}}`), 5 * time.Minute, time.Hour, 5 * time.Minute, run.ClassInfrastructure, "VENDOR", "m",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			rt, _ := begin(t, newFake())
			x := &attempt{a: assignment("r1", 1, aService), resource: resource{services, aService}}
			x.a.Deadline = run.At(time.Now().Add(tt.deadline))
			answered := httpio.Do(t.Context(), &http.Client{Transport: trip{tt.says}}, httpio.Call{URL: "http://x/run", Attempt: &x.a, Now: time.Now})
			got := rt.platformsWord(x, address{limit: tt.limit}, answered, tt.took)
			if got.Class != tt.class || got.Code != tt.code || !strings.Contains(got.Message, tt.want) || got.Ended {
				t.Errorf("report %+v, want class %s code %s with %q, not surely ended", got, tt.class, tt.code, tt.want)
			}
		})
	}
	t.Run("the limit is the service's own", func(t *testing.T) {
		p := newFake()
		p.services[aService] = &runpb.Service{
			Uri:      serve(t, func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(504) }),
			Template: &runpb.RevisionTemplate{Timeout: durationpb.New(time.Second)},
		}
		rt, c := begin(t, p)
		start(t, rt, assignment("r1", 1, aService))
		if got := c.Await(t, "r1", 1); got.Code != codeLimit {
			t.Errorf("report %+v, want %s", got, codeLimit)
		}
	})
}

type trip struct{ answer *http.Response }

func (t trip) RoundTrip(*http.Request) (*http.Response, error) { return t.answer, nil }

func TestWhatAHandlerSaysOnItsWay(t *testing.T) {
	done := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: progress\ndata: 0.25\n\nevent: progress\ndata: 0.5\n\nevent: log\ndata: page 2\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-done:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "event: result\ndata: {\"output\":7}\n\n")
	})
	rt, c := begin(t, newFake())
	start(t, rt, assignment("r1", 1, url))
	c.AwaitReport(t, func(r runtime.Report) bool { return r.Type == runtime.Progress && r.Fraction == 0.5 && r.Run == "r1" })
	c.AwaitReport(t, func(r runtime.Report) bool { return r.Type == runtime.Logged && r.Logs[0].Text == "page 2" })
	close(done)
	if got := c.Await(t, "r1", 1); got.Type != runtime.Completed || string(got.Output) != "7" {
		t.Errorf("report %+v, want it completed", got)
	}
	for _, r := range c.Reports() {
		if r.Type == runtime.Progress && r.Fraction == 0.25 {
			t.Error("a progress was reported that a newer one had overtaken")
		}
	}
}

func TestBrokenConnectionIsLost(t *testing.T) {
	url := serve(t, func(http.ResponseWriter, *http.Request, string) { panic(http.ErrAbortHandler) })
	rt, c := begin(t, newFake())
	start(t, rt, assignment("r1", 1, url))
	if got := c.Await(t, "r1", 1); got.Class != run.ClassLost || got.Ended {
		t.Errorf("report %+v, want it lost, not surely ended", got)
	}
}

func TestStopOfARequest(t *testing.T) {
	t.Run("its connection is closed after the grace, and nobody can say that the handler is gone", func(t *testing.T) {
		url, came, left := hangs(t)
		rt, c := begin(t, newFake())
		start(t, rt, assignment("r1", 1, url))
		<-came
		rt.Stop(t.Context(), "r1", 1, run.AttemptTimeout, 5*time.Millisecond)
		<-left
		if got := c.Await(t, "r1", 1); got.Class != run.ClassTimeout || got.Ended {
			t.Errorf("report %+v, want it timed out, not surely ended", got)
		}
	})
	t.Run("one that control knows as over ends without being asked for", func(t *testing.T) {
		url, came, left := hangs(t)
		rt, _ := begin(t, newFake(), func(o *Options) { o.Grace = 5 * time.Millisecond })
		start(t, rt, assignment("r1", 1, url))
		<-came
		rt.Ended("r1", 1)
		<-left
	})
	t.Run("one that control calls fenced is stopped", func(t *testing.T) {
		url, _, left := hangs(t)
		rt, c := begin(t, newFake(), func(o *Options) { o.Grace = 5 * time.Millisecond })
		c.Refuse(func(r runtime.Report) error {
			if r.Type == runtime.Started {
				return run.ErrFenced
			}
			return nil
		})
		start(t, rt, assignment("r1", 1, url))
		<-left
		c.Await(t, "r1", 1)
	})
	t.Run("starting what is under way does nothing", func(t *testing.T) {
		url, came, _ := hangs(t)
		rt, c := begin(t, newFake())
		a := assignment("r1", 1, url)
		start(t, rt, a)
		<-came
		start(t, rt, a)
		// Another that came later shows that the second start came to nothing.
		start(t, rt, assignment("r2", 1, url))
		<-came
		rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, 0)
		rt.Stop(t.Context(), "r2", 1, run.CanceledByRequest, 0)
		c.Await(t, "r1", 1)
		c.Await(t, "r2", 1)
		if len(came) != 0 {
			t.Error("it was sent twice")
		}
	})
}

// Another process can start anew what this one handed back.
func TestCloseHandsBackRequests(t *testing.T) {
	url, came, left := hangs(t)
	rt, c := begin(t, newFake())
	start(t, rt, assignment("r1", 1, url))
	<-came
	if err := rt.Close(context.Background(), 5*time.Millisecond); err != nil {
		t.Error(err)
	}
	<-left
	if got := c.Await(t, "r1", 1); got.Type != runtime.Released || got.Ended {
		t.Errorf("report %+v, want it released, not surely ended", got)
	}
	if err := rt.Start(t.Context(), assignment("r2", 1, url)); !errors.Is(err, runtime.ErrRefused) {
		t.Errorf("start after close: %v, want ErrRefused", err)
	}
}

func TestCloseKeepsToItsContext(t *testing.T) {
	url, came, _ := hangs(t)
	rt, c := begin(t, newFake())
	start(t, rt, assignment("r1", 1, url))
	<-came
	c.Fail(1 << 30)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := rt.Close(ctx, time.Hour); err != nil {
		t.Error(err)
	}
}

func TestInstance(t *testing.T) {
	t.Run("a stopped one is started", func(t *testing.T) {
		p := newFake()
		p.instances[anInstance] = &runpb.Instance{
			Urls:              []string{serve(t, func(http.ResponseWriter, *http.Request, string) {})},
			TerminalCondition: &runpb.Condition{Reasons: &runpb.Condition_InstanceReason_{InstanceReason: runpb.Condition_INSTANCE_STOPPED}},
		}
		rt, c := begin(t, p)
		start(t, rt, assignment("r1", 1, anInstance))
		if got := c.Await(t, "r1", 1); got.Type != runtime.Completed || p.count("startInstance") != 1 {
			t.Errorf("report %+v after %d starts of the instance", got, p.count("startInstance"))
		}
	})
	t.Run("its weekly restart is survived: the attempt is given back, and it is looked up anew", func(t *testing.T) {
		for name, gone := range map[string]string{
			"nobody listens": "http://127.0.0.1:1",
			"it answers 503": serve(t, func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(503) }),
		} {
			t.Run(name, func(t *testing.T) {
				p := newFake()
				p.instances[anInstance] = &runpb.Instance{Urls: []string{gone}}
				rt, c := begin(t, p)
				start(t, rt, assignment("r1", 1, anInstance))
				if got := c.Await(t, "r1", 1); got.Class != run.ClassInfrastructure || got.RetryIn != restartWait {
					t.Errorf("report %+v, want class infrastructure, later", got)
				}
				p.mu.Lock()
				p.instances[anInstance] = &runpb.Instance{Urls: []string{serve(t, func(http.ResponseWriter, *http.Request, string) {})}}
				p.mu.Unlock()
				start(t, rt, assignment("r1", 2, anInstance))
				if got := c.Await(t, "r1", 2); got.Type != runtime.Completed {
					t.Errorf("report %+v, want it completed", got)
				}
			})
		}
	})
	t.Run("it is stopped when its last agent is gone, after its last attempt", func(t *testing.T) {
		url, came, _ := hangs(t)
		p := newFake()
		p.instances[anInstance] = &runpb.Instance{Urls: []string{url}}
		rt, c := begin(t, p)
		start(t, rt, assignment("r1", 1, anInstance))
		<-came
		rt.Forget("another")
		rt.Forget("checker")
		if n := p.count("stopInstance"); n != 0 {
			t.Errorf("stopped %d times while an attempt is there", n)
		}
		rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, 0)
		c.Await(t, "r1", 1)
		outside.Eventually(t, outside.Patience, "the instance is stopped", func() bool { return p.count("stopInstance") == 1 })
	})
}
