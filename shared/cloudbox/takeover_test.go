package cloudbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cloudbox"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/run"
)

const (
	envTakeoverRounds = "ERRAND_TAKEOVER_ROUNDS"
	envTakeoverRuns   = "ERRAND_TAKEOVER_RUNS"

	// takeoverBound is what is promised: the period of the lease and three seconds.
	takeoverBound = 13 * time.Second
	perWorker     = 1000
	beatEvery     = 2 * time.Second
)

// held is an agent whose runs are begun by its workers, and go on until those say so.
const held = `
apiVersion: errand.dev/v1
kind: Agent
metadata: {name: held}
spec:
  shape: job
  run: {command: [%s/checker], protocol: stdio}
  timeouts: {queue: 24h, attempt: 24h, run: 48h}
`

// holder is a worker that holds runs: it beats, and says which attempts it was told are not its own.
type holder struct {
	name     string
	client   *api.Client
	attempts []string
	lost     map[string]bool
	told     int // beats that were answered
}

func (h *holder) begin(ctx context.Context, n int) error {
	work := make(chan int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	var first error
	for range 8 {
		wg.Go(func() {
			for i := range work {
				b, err := h.client.BeginRun(ctx, api.Begin{Agent: "held", Key: fmt.Sprintf("%s/%d", h.name, i), Input: json.RawMessage(`{}`), Worker: h.name})
				mu.Lock()
				switch {
				case err == nil && b.Lease != nil:
					h.attempts = append(h.attempts, b.Lease.Attempt)
				case first == nil:
					first = fmt.Errorf("begin run %d of %s: %+v: %w", i, h.name, b, err)
				}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	return first
}

// beat tells what the worker holds until the context ends.
func (h *holder) beat(ctx context.Context) {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		standing, err := h.client.Beat(ctx, h.name, api.WorkerBeat{Agents: []string{"held"}, Slots: perWorker, Attempts: h.attempts})
		if err != nil {
			continue // nobody leads, or the process is gone: the next one is at hand
		}
		h.told++
		for _, id := range h.attempts {
			i := slices.IndexFunc(standing.Attempts, func(a api.AttemptStanding) bool { return a.ID == id })
			if i < 0 && !standing.Partial || i >= 0 && standing.Attempts[i].Cancel {
				h.lost[id] = true
			}
		}
	}
}

// TestTakeOver kills the leader over many live runs, and measures how long nobody decides.
func TestTakeOver(t *testing.T) {
	rounds, live := number(t, envTakeoverRounds, 2), number(t, envTakeoverRuns, 300)
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, func(o *cloudbox.Options) {
		o.Fleet = slices.DeleteFunc(example(t, bin), func(x fleet.Object) bool { a, ok := x.(*fleet.Agent); return !ok || a.Name() != "invoice-check" })
		o.Fleet = append(o.Fleet, declared(t, fmt.Sprintf(held, bin))...)
	})
	client, err := b.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// 1. Live runs, and the workers that hold them.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	var holders []*holder
	var beats sync.WaitGroup
	for n := 0; n < live; n += perWorker {
		c, err := b.Client()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		h := &holder{name: fmt.Sprintf("holder-%d", n/perWorker), client: c, lost: make(map[string]bool)}
		if err := h.begin(ctx, min(perWorker, live-n)); err != nil {
			t.Fatal(err)
		}
		holders = append(holders, h)
		beats.Go(func() { h.beat(ctx) })
	}
	t.Logf("%d live runs of %d workers were begun in %s", live, len(holders), time.Since(began).Round(time.Millisecond))
	// 2. Kill whoever leads, again and again.
	var leads, assigns []time.Duration
	docs := documents(t)
	input := docs[slices.Sorted(maps.Keys(docs))[0]]
	for round := range rounds {
		dead, epoch := awaitLeader(t, b)
		dead.Kill()
		killed := time.Now()
		var assigned time.Duration
		var wg sync.WaitGroup
		var failed atomic.Pointer[error]
		wg.Go(func() {
			at, err := firstAssignment(ctx, client, fmt.Sprintf("after-%d", round), input, killed)
			if err != nil {
				failed.Store(&err)
			}
			assigned = at
		})
		outside.Eventually(t, 2*time.Minute, "another process leads", func() bool { c, e := leader(ctx, b); return c != nil && e > epoch })
		leads = append(leads, time.Since(killed))
		wg.Wait()
		if err := failed.Load(); err != nil {
			t.Fatalf("round %d: %v", round+1, *err)
		}
		assigns = append(assigns, assigned)
		t.Logf("round %d: %s led after %s, assigned after %s", round+1, dead.Name(), leads[round].Round(time.Millisecond), assigned.Round(time.Millisecond))
		if err := dead.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// 3. Who beat has lost nothing.
	cancel()
	beats.Wait()
	for _, h := range holders {
		if len(h.lost) > 0 || h.told == 0 {
			t.Errorf("%s beat %d times and was told that %d of its %d attempts are not its own", h.name, h.told, len(h.lost), len(h.attempts))
		}
	}
	report(t, "another process leads", leads)
	report(t, "a new run is assigned", assigns)
	if worst := slices.Max(assigns); worst > takeoverBound {
		t.Errorf("a run was assigned %s after the leader was killed, want %s at most", worst, takeoverBound)
	}
	// 4. What is written.
	n := 0
	for _, s := range histories(t, b) {
		if s.record.Agent != "held" {
			continue
		}
		n++
		if s.record.State != run.Running || s.record.Attempt != 1 {
			t.Errorf("run %s is %s in attempt %d though its worker beats: %s %s", s.record.ID, s.record.State, s.record.Attempt, s.record.Reason, s.record.Message)
		}
	}
	if n != live {
		t.Errorf("%d runs are stored, %d were begun", n, live)
	}
}

// firstAssignment submits a run as soon as anybody takes it, and tells how long after a moment it was assigned.
func firstAssignment(ctx context.Context, c *api.Client, key string, input json.RawMessage, since time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var id string
	for id == "" {
		r, _, err := c.Submit(ctx, api.Submit{Agent: "invoice-check", Key: key, Input: input})
		switch {
		case err == nil:
			id = r.ID
		case ctx.Err() != nil:
			return 0, fmt.Errorf("submit a run: %w", err)
		default:
			time.Sleep(20 * time.Millisecond)
		}
	}
	for {
		events, err := c.ListEvents(ctx, id, api.Page{Limit: 10})
		if err == nil {
			for _, e := range events.Items {
				if e.Type == string(run.EvAssigned) {
					return e.At.Time.Sub(since), nil
				}
			}
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("run %s was not assigned: %w", id, ctx.Err())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// report logs the spread of times.
func report(t *testing.T, what string, times []time.Duration) {
	t.Helper()
	sorted := slices.Sorted(slices.Values(times))
	at := func(share float64) time.Duration {
		return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)].Round(time.Millisecond)
	}
	t.Logf("%s: p50 %s, p95 %s, max %s of %d", what, at(0.5), at(0.95), at(1), len(sorted))
}
