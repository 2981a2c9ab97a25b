package host

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/runtime/process"
)

func TestMain(m *testing.M) {
	process.Warden()
	os.Exit(emulator.Main(m))
}

var quiet = slog.New(slog.DiscardHandler)

// control is a control plane in memory: it knows claims, reports and heartbeats.
type control struct {
	mu     sync.Mutex
	runs   map[string]*record
	beats  map[string]int // by worker
	claims int
	down   bool
	every  time.Duration // between heartbeats, as asked for
	lag    time.Duration // of the answer to a claim
	seen   []string      // Authorization of claims

	undelivered []string // why hand-overs came to nobody
}

type record struct {
	id, worker, state string
	n                 int
	input             string
	cancel            bool
	output            string
	failure           *api.Report
	released          int
	progress          float64
	logs              []string
	over              chan struct{}
}

func newControl() *control { return &control{runs: map[string]*record{}, beats: map[string]int{}} }

// assign makes a run whose attempt can be claimed, and the message that says so.
func (c *control) assign(input string) (*record, bus.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &record{id: "r" + strconv.Itoa(len(c.runs)+1), n: 1, state: "assigned", input: input, over: make(chan struct{})}
	c.runs[r.id] = r
	return r, c.message(r)
}

func (c *control) message(r *record) bus.Message {
	return bus.Message{Attributes: map[string]string{
		"attempt": r.attempt(), "ticket": "ticket-" + r.attempt(), "agent": "a", "url": "http://elsewhere.example",
	}}
}

// again gives a run to somebody else, as when its worker is lost.
func (c *control) again(r *record) bus.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.n++
	r.worker, r.state = "", "assigned"
	return c.message(r)
}

func (r *record) attempt() string { return r.id + "." + strconv.Itoa(r.n) }
func (r *record) live() bool      { return r.state == "assigned" || r.state == "running" }

func (c *control) find(attempt string) *record {
	id, _, _ := strings.Cut(attempt, ".")
	if r := c.runs[id]; r != nil && r.live() && r.attempt() == attempt {
		return r
	}
	return nil
}

func look[T any](c *control, read func() T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return read()
}

var fenced = &api.Problem{Type: api.ProblemBase + api.CodeFenced, Title: "Conflict", Status: http.StatusConflict}

func (c *control) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	path := req.URL.Path
	switch {
	case strings.HasSuffix(path, ":claim"):
		var q api.Claim
		_ = json.Unmarshal(body, &q)
		c.claims++
		c.seen = append(c.seen, req.Header.Get("Authorization"))
		attempt := strings.TrimSuffix(strings.TrimPrefix(path, "/v1/attempts/"), ":claim")
		r := c.find(attempt)
		if r == nil || q.Ticket != "ticket-"+attempt || r.worker != "" && r.worker != q.Worker {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(fenced.Status)
			_ = json.NewEncoder(w).Encode(fenced)
			return
		}
		r.worker = q.Worker
		_ = json.NewEncoder(w).Encode(api.Lease{
			Attempt: attempt, N: r.n, Run: r.id, Agent: "a", Tenant: "t", Mode: "run", Input: json.RawMessage(r.input), Key: r.id,
			Token: "token-" + attempt, Deadline: api.Time{Time: time.Now().Add(time.Hour)}, HeartbeatEvery: api.Duration(c.every),
		})
	case strings.HasSuffix(path, ":undelivered"):
		var q api.Undelivered
		_ = json.Unmarshal(body, &q)
		c.undelivered = append(c.undelivered, q.Reason)
		w.WriteHeader(http.StatusNoContent)
	case path == "/v1/attempts:batch":
		var b api.ReportBatch
		_ = json.Unmarshal(body, &b)
		out := api.ReportBatchResult{}
		for _, p := range b.Reports {
			out.Results = append(out.Results, c.report(p))
		}
		_ = json.NewEncoder(w).Encode(out)
	case strings.HasSuffix(path, ":heartbeat"):
		var b api.WorkerBeat
		_ = json.Unmarshal(body, &b)
		worker := strings.TrimSuffix(strings.TrimPrefix(path, "/v1/workers/"), ":heartbeat")
		c.beats[worker]++
		var out api.WorkerStanding
		for _, id := range b.Attempts {
			if r := c.find(id); r != nil && r.worker == worker {
				out.Attempts = append(out.Attempts, api.AttemptStanding{ID: id, Standing: r.standing()})
			}
		}
		_ = json.NewEncoder(w).Encode(out)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (r *record) standing() api.Standing {
	s := api.Standing{Cancel: r.cancel}
	if r.cancel {
		s.CancelReason = "CanceledByRequest"
	}
	return s
}

func (c *control) report(p api.Report) api.ReportResult {
	r := c.find(p.Attempt)
	if r == nil || p.Token != "token-"+p.Attempt {
		return api.ReportResult{Error: fenced}
	}
	r.state = "running"
	switch p.Type {
	case api.ReportProgress:
		r.progress = *p.Progress
	case api.ReportLogs:
		for _, l := range p.Logs {
			r.logs = append(r.logs, l.Text)
		}
	case api.ReportComplete:
		r.output, r.state = string(p.Output), "succeeded"
		close(r.over)
	case api.ReportFail:
		r.failure, r.state = &p, "failed"
		close(r.over)
	case api.ReportRelease:
		r.released++
		r.state = "queued"
		close(r.over)
	}
	return api.ReportResult{Standing: r.standing()}
}

// RoundTrip serves without a socket, so that tests can run on synctest's clock.
func (c *control) RoundTrip(req *http.Request) (*http.Response, error) {
	if look(c, func() bool { return c.down }) {
		return nil, syscall.ECONNREFUSED
	}
	if req.Body == nil {
		req.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, req)
	if strings.HasSuffix(req.URL.Path, ":claim") {
		time.Sleep(c.lag)
	}
	return w.Result(), nil
}

func (c *control) setDown(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

func (c *control) client(t testing.TB) *api.Client {
	t.Helper()
	client, err := api.NewClient(api.Options{URL: "http://control", HTTP: &http.Client{Transport: c}, Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}
