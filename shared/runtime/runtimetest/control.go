package runtimetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// patience bounds every wait for an outside process.
const patience = 30 * time.Second

// Control is a small stand-in of a control plane: it takes reports, hands leases to workers, and tells them what is to
// end. It fails the test when an attempt ends twice.
type Control struct {
	t      *testing.T
	server *httptest.Server

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced whenever something changes
	runtime  runtime.Runtime
	outage   int // reports to refuse as an outage of the store
	refuse   func(runtime.Report) error
	reports  []runtime.Report
	pulled   []runtime.Assignment // wait for a worker
	held     map[string][]runtime.Held
	stopped  map[string]bool
	workers  map[string]http.Header // headers of each worker's last request
	sessions map[string]string
}

// NewControl starts a Control for the time of the test.
func NewControl(t *testing.T) *Control {
	c := &Control{
		t: t, changed: make(chan struct{}), held: make(map[string][]runtime.Held), stopped: make(map[string]bool),
		workers: make(map[string]http.Header), sessions: make(map[string]string),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/leases", c.lease)
	mux.HandleFunc("POST /v1/attempts/{call}", c.attempt)
	c.server = httptest.NewServer(mux)
	t.Cleanup(c.server.Close)
	return c
}

// Use gives the runtime under test.
func (c *Control) Use(rt runtime.Runtime) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runtime = rt
}

// URL is the address for agents.
func (c *Control) URL() string { return c.server.URL }

// Held lists what a worker has taken.
func (c *Control) Held(worker string) []runtime.Held {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.held[worker])
}

// Save keeps a session's state.
func (c *Control) Save(_ context.Context, key string, state json.RawMessage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[key] = string(state)
	c.change()
	return nil
}

// Session is the state that was saved under the key, or "".
func (c *Control) Session(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions[key]
}

// Workers are the ids of all workers that ever asked for leases.
func (c *Control) Workers() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	for id := range c.workers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Fail lets the next n calls of Report fail like an outage of the store.
func (c *Control) Fail(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outage = n
}

// Refuse lets Report answer a report with the error that f gives for it.
func (c *Control) Refuse(f func(runtime.Report) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = f
}

// Mark makes the next answer to an attempt tell it to end, without telling the runtime.
func (c *Control) Mark(runID string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped[runtime.AttemptID(runID, n)] = true
}

// Header is what a worker's last request carried.
func (c *Control) Header(worker string) http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.workers[worker]
}

// change needs the lock.
func (c *Control) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Start assigns the attempt and tells the runtime.
func (c *Control) Start(a runtime.Assignment) error {
	c.mu.Lock()
	if a.Agent.Run.Protocol == fleet.Worker {
		c.pulled = append(c.pulled, a)
	}
	rt := c.runtime
	c.mu.Unlock()
	return rt.Start(context.Background(), a)
}

// Stop marks the attempt as one to end and tells the runtime.
func (c *Control) Stop(runID string, n int, reason run.Reason, grace time.Duration) {
	c.mu.Lock()
	id := runtime.AttemptID(runID, n)
	c.stopped[id] = true
	c.pulled = slices.DeleteFunc(c.pulled, func(a runtime.Assignment) bool { return a.ID() == id })
	rt := c.runtime
	c.mu.Unlock()
	rt.Stop(context.Background(), runID, n, reason, grace)
}

// Report takes reports as control does.
func (c *Control) Report(_ context.Context, reports []runtime.Report) []runtime.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	results := make([]runtime.Result, len(reports))
	if c.outage > 0 {
		c.outage--
		for i := range results {
			results[i].Err = errors.New("the store is away")
		}
		return results
	}
	for i, r := range reports {
		id := runtime.AttemptID(r.Run, r.N)
		if c.refuse != nil {
			if results[i].Err = c.refuse(r); results[i].Err != nil {
				continue
			}
		}
		if ends(r) {
			for _, other := range c.reports {
				if ends(other) && runtime.AttemptID(other.Run, other.N) == id {
					c.t.Errorf("attempt %s ends twice: %+v after %+v", id, r, other)
				}
			}
			for worker := range c.held {
				c.held[worker] = slices.DeleteFunc(c.held[worker], func(h runtime.Held) bool { return h.Run == r.Run && h.N == r.N })
			}
			c.pulled = slices.DeleteFunc(c.pulled, func(a runtime.Assignment) bool { return a.ID() == id })
			if rt, ok := c.runtime.(interface{ Ended(string, int) }); ok {
				rt.Ended(r.Run, r.N)
			}
		}
		results[i].Cancel = c.stopped[id]
		c.reports = append(c.reports, r)
	}
	c.change()
	return results
}

func ends(r runtime.Report) bool {
	switch r.Type {
	case runtime.Completed, runtime.Failed, runtime.Released, runtime.Parked:
		return true
	}
	return false
}

// Await waits for the report that ends an attempt.
func (c *Control) Await(t *testing.T, runID string, n int) runtime.Report {
	t.Helper()
	return c.AwaitReport(t, func(r runtime.Report) bool { return r.Run == runID && r.N == n && ends(r) })
}

// AwaitReport waits for a report, one that came before included.
func (c *Control) AwaitReport(t *testing.T, is func(runtime.Report) bool) runtime.Report {
	t.Helper()
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		i := slices.IndexFunc(c.reports, is)
		changed := c.changed
		var found runtime.Report
		if i >= 0 {
			found = c.reports[i]
		}
		c.mu.Unlock()
		if i >= 0 {
			return found
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("the report that is waited for does not come; there are %d others", len(c.Reports()))
		}
	}
}

// Reports are all reports so far.
func (c *Control) Reports() []runtime.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.reports)
}

// lease serves a worker: leases, and which of its attempts are to end.
func (c *Control) lease(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Worker, Target string
		Agents         []string
		Max            int
		Attempts       []string
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Agents) != 1 {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.workers[body.Worker] = r.Header.Clone()
	type lease struct {
		Attempt string          `json:"attempt"`
		Input   json.RawMessage `json:"input"`
	}
	answer := struct {
		Leases []lease  `json:"leases"`
		Cancel []string `json:"cancel"`
	}{}
	c.pulled = slices.DeleteFunc(c.pulled, func(a runtime.Assignment) bool {
		if len(answer.Leases) >= body.Max || a.Agent.Name() != body.Agents[0] || a.Target.Name() != body.Target {
			return false
		}
		answer.Leases = append(answer.Leases, lease{a.ID(), a.Input})
		c.held[body.Worker] = append(c.held[body.Worker], runtime.Held{Run: a.Run, N: a.N})
		return true
	})
	for _, id := range body.Attempts {
		if c.stopped[id] {
			answer.Cancel = append(answer.Cancel, id)
		}
	}
	c.change()
	_ = json.NewEncoder(w).Encode(answer)
}

// attempt serves an attempt's heartbeat and, for workers, its end.
func (c *Control) attempt(w http.ResponseWriter, r *http.Request) {
	id, verb, _ := strings.Cut(r.PathValue("call"), ":")
	runID, n, err := runtime.ParseAttemptID(id)
	body, readErr := io.ReadAll(r.Body)
	if err = errors.Join(err, readErr); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if verb == "end" {
		report, _ := runtime.ParseResult(body)
		if strings.Contains(string(body), `"release"`) {
			report = runtime.Report{Type: runtime.Released}
		}
		report.Run, report.N, report.Worker = runID, n, r.URL.Query().Get("worker")
		if result := c.Report(r.Context(), []runtime.Report{report})[0]; result.Err != nil {
			http.Error(w, result.Err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"cancel": c.stopped[id]})
}

// Lines waits until the file has at least n lines, each a process id, and returns them.
func Lines(t *testing.T, file string, n int) []int {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		pids := lines(file)
		if len(pids) >= n {
			return pids
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has %d lines, want %d", file, len(pids), n)
		}
	}
}

func lines(file string) (pids []int) {
	content, _ := os.ReadFile(file)
	for _, field := range strings.Fields(string(content)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Alive reports whether a process exists and is more than a zombie.
func Alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

// Gone waits until a process is gone.
func Gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(patience); Alive(pid); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d does not end", pid)
		}
	}
}
