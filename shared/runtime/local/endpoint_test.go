package local_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/runtimetest"
)

// served is an agent whose url is already served: it answers, or hangs until its client is gone.
func served(t *testing.T) (*fleet.Agent, <-chan struct{}) {
	hung := make(chan struct{}, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case strings.Contains(string(body), "hang"):
			hung <- struct{}{}
			<-r.Context().Done()
		case r.Header.Get("Authorization") != "Bearer token-of-r1":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = io.WriteString(w, `{"output":`+string(body)+`}`)
		}
	}))
	t.Cleanup(s.Close)
	a := &fleet.Agent{Meta: fleet.Meta{Name: "served"}, Shape: fleet.Service, Run: fleet.Run{URL: s.URL + "/run"}}
	a.SetDefaults()
	return a, hung
}

func TestEndpoint(t *testing.T) {
	c := runtimetest.NewControl(t)
	open(t, c)
	a, hung := served(t)
	// 1. An answer.
	start(t, c, runtimetest.Attempt(a, "r1", 3, order{Do: "echo"}))
	if got := c.Await(t, "r1", 3); got.Type != runtime.Completed || !strings.Contains(string(got.Output), `"attempt":"r1.3"`) {
		t.Errorf("report %+v, want the document back", got)
	}
	// 2. A stop: nobody can say that the handler is gone.
	start(t, c, runtimetest.Attempt(a, "r2", 1, order{Do: "hang"}))
	<-hung
	c.Stop("r2", 1, run.AttemptTimeout, 10*time.Millisecond)
	if got := c.Await(t, "r2", 1); got.Class != run.ClassTimeout || got.Ended {
		t.Errorf("report %+v, want it timed out, not surely ended", got)
	}
}

func TestEndpointAtClose(t *testing.T) {
	c := runtimetest.NewControl(t)
	rt := open(t, c)
	a, hung := served(t)
	start(t, c, runtimetest.Attempt(a, "r1", 1, order{Do: "hang"}))
	<-hung
	if err := rt.Close(context.Background(), 10*time.Millisecond); err != nil {
		t.Error(err)
	}
	if got := c.Await(t, "r1", 1); got.Class != run.ClassLost || got.Ended {
		t.Errorf("report %+v, want it lost, not surely ended", got)
	}
}

func TestNothingToStart(t *testing.T) {
	c := runtimetest.NewControl(t)
	open(t, c)
	err := c.Start(runtimetest.Attempt(&fleet.Agent{Meta: fleet.Meta{Name: "cloud-only"}}, "r1", 1, order{}))
	if !errors.Is(err, runtime.ErrRefused) || !strings.Contains(err.Error(), "neither run.command nor run.url") {
		t.Errorf("error %v, want ErrRefused", err)
	}
}

// Close keeps to its caller's time even when the store is away and a process does not listen.
func TestCloseWithinItsContext(t *testing.T) {
	c := runtimetest.NewControl(t)
	rt := open(t, c)
	file := t.TempDir() + "/pids"
	start(t, c, runtimetest.Attempt(agent(fleet.Pool, fleet.Stdio, 1), "r1", 1, order{Do: "stubborn", File: file}))
	pid := runtimetest.Lines(t, file, 1)[0]
	c.Fail(1 << 30)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := rt.Close(ctx, time.Hour); err != nil {
		t.Error(err)
	}
	if runtimetest.Alive(pid) {
		t.Error("a process lives after Close")
	}
}
