package server

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/shared/api"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

// site is a server over a fake plane, with a client of it.
type site struct {
	t     *testing.T
	plane *fakePlane
	*Server
	url   string
	token string
	*http.Client
}

func newSite(t *testing.T, change ...func(*Options)) *site {
	t.Helper()
	f := newFake()
	o := Options{Plane: f, Loopback: true, Keepalive: 20 * time.Millisecond, LogPoll: 5 * time.Millisecond, Version: "v0", Store: "memory"}
	for _, c := range change {
		c(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Close()
		hs.Close()
	})
	return &site{t: t, plane: f, Server: s, url: hs.URL, Client: hs.Client()}
}

// reply is an answer that was read.
type reply struct {
	*http.Response
	body []byte
}

func (r reply) problem(t *testing.T) api.Problem {
	t.Helper()
	var p api.Problem
	if got := r.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("Content-Type is %q with status %d, want a problem; body %.300s", got, r.StatusCode, r.body)
	}
	if err := json.Unmarshal(r.body, &p); err != nil {
		t.Fatalf("problem does not decode: %v", err)
	}
	if p.Status != r.StatusCode || p.Title == "" || !strings.HasPrefix(p.Type, api.ProblemBase) || p.Detail == "" {
		t.Errorf("problem is not whole: %+v with status %d", p, r.StatusCode)
	}
	return p
}

func into[T any](t *testing.T, r reply) T {
	t.Helper()
	var v T
	if r.StatusCode >= 300 {
		t.Fatalf("status %d: %s", r.StatusCode, r.body)
	}
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatalf("answer does not decode: %v: %.300s", err, r.body)
	}
	return v
}

// do sends a request; headers are name and value in turn. A body is sent as JSON unless they say otherwise.
func (s *site) do(method, path, body string, headers ...string) reply {
	s.t.Helper()
	resp := s.open(method, path, body, headers...)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{resp, raw}
}

func (s *site) open(method, path, body string, headers ...string) *http.Response {
	s.t.Helper()
	var in io.Reader
	if body != "" {
		in = bytes.NewReader([]byte(body))
	}
	req, err := http.NewRequest(method, s.url+path, in)
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		} else if headers[i+1] == "" {
			req.Header.Del(headers[i])
		} else {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	resp, err := s.Client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
