package httpio_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
)

func TestStream(t *testing.T) {
	completed := func(output string) runtime.Report {
		return runtime.Report{Type: runtime.Completed, Output: json.RawMessage(output)}
	}
	progress := func(f float64, message string) runtime.Report {
		return runtime.Report{Type: runtime.Progress, Fraction: f, Message: message}
	}
	logged := func(texts ...string) runtime.Report {
		r := runtime.Report{Type: runtime.Logged}
		for _, text := range texts {
			r.Logs = append(r.Logs, runtime.LogLine{At: run.At(now), Stream: "agent", Text: text})
		}
		return r
	}
	lost := runtime.Report{
		Type: runtime.Failed, Class: run.ClassLost, Code: httpio.CodeBroken,
		Message: "the connection broke before the answer was complete: the stream ended without a result",
	}
	tests := map[string]struct {
		body string
		want runtime.Report
		way  []runtime.Report
	}{
		"the result is the answer, what came before it is reported": {
			body: "event: progress\ndata: 0.5\n\nevent: log\ndata: one\ndata: two\n\nevent: progress\ndata: {\"progress\":0.75,\"message\":\"page 2\"}\n\nevent: result\ndata: {\"output\":\ndata: 1}\n\n",
			want: completed("1"), way: []runtime.Report{progress(0.5, ""), logged("one", "two"), progress(0.75, "page 2")},
		},
		"nothing is read beyond the result":                {body: "event: result\ndata: 1\n\nevent: result\ndata: 2\n\n", want: completed("1")},
		"without a result the last data is the answer":     {body: "data: 1\n\ndata: 2\n\n", want: completed("2")},
		"lines may end as on other systems":                {body: "\uFEFF: a comment\r\nevent: result\r\ndata:1\r\n\r\n", want: completed("1")},
		"an event of another name means nothing":           {body: "event: tick\ndata: 7\n\nid: 4\nretry: 5\n\ndata: 1\n\n", want: completed("1")},
		"a progress that is none means nothing":            {body: "event: progress\ndata: most\n\nevent: progress\ndata: 7\n\nevent: progress\ndata: {}\n\ndata: 1\n\n", want: completed("1")},
		"a result may be a failure":                        {body: "event: result\ndata: {\"error\":{\"code\":\"X\",\"message\":\"m\"}}\n\n", want: runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Code: "X", Message: "m"}},
		"a stream that ends without an answer is lost":     {body: "event: progress\ndata: 0.5\n\n", want: lost, way: []runtime.Report{progress(0.5, "")}},
		"a stream that ends within its last event is lost": {body: "data: 1\n\ndata: 2", want: lost},
		"an empty stream is lost":                          {want: lost},
		"a line over the limit":                            {body: "data: " + strings.Repeat("x", runtime.MaxAnswer+100), want: runtime.TooLarge()},
		"many lines that are over the limit together":      {body: strings.Repeat("data: "+strings.Repeat("x", 1<<20)+"\n", runtime.MaxAnswer>>20+1), want: runtime.TooLarge()},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				_, _ = io.WriteString(w, tt.body)
			}))
			defer s.Close()
			got, way := stream(t, s.URL)
			tt.want.Run, tt.want.N = "r1", 2
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.way, way); diff != "" {
				t.Errorf("on the way (-want +got):\n%s", diff)
			}
		})
	}
}

func stream(t *testing.T, url string) (runtime.Report, []runtime.Report) {
	t.Helper()
	var way []runtime.Report
	return httpio.Do(t.Context(), httpio.NewClient(), httpio.Call{
		URL: url, Attempt: &runtime.Assignment{Run: "r1", N: 2, Agent: &fleet.Agent{}}, Now: clock,
		Each: func(r runtime.Report) { way = append(way, r) },
	}), way
}

// What a handler says is there before its answer: the server waits for it.
func TestStreamIsReadAsItComes(t *testing.T) {
	seen := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: progress\ndata: 1\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-seen:
			_, _ = io.WriteString(w, "data: true\n\n")
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	got := httpio.Do(t.Context(), httpio.NewClient(), httpio.Call{
		URL: s.URL, Attempt: &runtime.Assignment{Run: "r1", N: 2}, Now: clock, Each: func(runtime.Report) { close(seen) },
	})
	if got.Type != runtime.Completed {
		t.Errorf("report %+v, want it completed", got)
	}
}

func TestIdentityAndAttempt(t *testing.T) {
	for name, tt := range map[string]struct{ identity, authorization, token string }{
		"a caller without identity authorizes with the attempt's token too":  {"", "Bearer of-attempt", "of-attempt"},
		"a caller with identity sends the attempt's token in its own header": {"of-caller", "Bearer of-caller", "of-attempt"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if a, x := r.Header.Get("Authorization"), r.Header.Get(httpio.HeaderToken); a != tt.authorization || x != tt.token {
					t.Errorf("Authorization %q, %s %q", a, httpio.HeaderToken, x)
				}
			}))
			defer s.Close()
			httpio.Do(t.Context(), httpio.NewClient(), httpio.Call{
				URL: s.URL, Attempt: &runtime.Assignment{Run: "r1", N: 1, Token: "of-attempt"}, Identity: tt.identity, Now: clock,
			})
		})
	}
}

func FuzzStream(f *testing.F) {
	f.Add("event: progress\ndata: 0.5\n\nevent: log\ndata: x\n\nevent: result\ndata: 1\n\n")
	f.Add("data\n\ndata:\r\n\r\n:\n\uFEFF")
	f.Fuzz(func(t *testing.T, body string) {
		// Every way ends in a report of one of the three ends.
		client := &http.Client{Transport: answers(body)}
		got := httpio.Do(t.Context(), client, httpio.Call{
			URL: "http://x/", Attempt: &runtime.Assignment{Run: "r1", N: 1}, Now: clock,
			Each: func(r runtime.Report) {
				if r.Type != runtime.Logged && (r.Type != runtime.Progress || !(r.Fraction >= 0 && r.Fraction <= 1)) {
					t.Errorf("on the way %+v", r)
				}
			},
		})
		switch got.Type {
		case runtime.Completed, runtime.Failed, runtime.Parked:
		default:
			t.Errorf("report %+v", got)
		}
	})
}

type answers string

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader(string(a))),
	}, nil
}
