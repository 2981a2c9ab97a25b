package control

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
)

// house is a control plane whose stages the test drives by hand, on a clock that the test moves.
type house struct {
	t     *testing.T
	p     *Plane
	store store.Store
	mu    sync.Mutex
	now   time.Time
	set   time.Duration // by how much somebody set the clock
	rolls uint64

	runtimes map[fleet.Runtime]runtime.Runtime
	maxQueue int
	change   func(*Config)
}

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newHouse(t *testing.T, objects ...fleet.Object) *house {
	t.Helper()
	h := &house{t: t, store: memory.Open(), now: began}
	h.open()
	if len(objects) > 0 {
		if _, err := h.p.Apply(t.Context(), objects, ApplyOptions{}); err != nil {
			t.Fatalf("apply: %v", err)
		}
	}
	return h
}

// open starts a control plane over the house's store; a second one stands for a restart.
func (h *house) open() {
	h.t.Helper()
	cfg := Config{
		Store: h.store, Runtimes: h.runtimes, MaxQueue: h.maxQueue,
		Clock: func() time.Time { h.mu.Lock(); defer h.mu.Unlock(); return h.now },
		Monotonic: func() time.Duration {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.now.Sub(began) - h.set
		},
		Random: func() uint64 {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.rolls += 0x9e3779b97f4a7c15
			return h.rolls
		},
	}
	if h.change != nil {
		h.change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := p.Prepare(h.t.Context()); err != nil {
		h.t.Fatalf("prepare: %v", err)
	}
	h.p = p
	h.settle()
}

func (h *house) settle() {
	for h.p.Step(h.t.Context(), h.p.now()) {
	}
	h.p.starts.Wait()
	h.derive()
}

// derive asserts that every count of the index is what its runs say: nothing is counted twice or left behind.
func (h *house) derive() {
	h.t.Helper()
	ix := h.p.ix
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	agents, tenants, pairs := make(tallies), make(tallies), make(map[[2]string]int)
	lives, grouped := 0, 0
	for id, t := range ix.runs {
		q, l, rest := 0, 0, 0
		switch {
		case t.live != nil:
			l = 1
			lives++
			if r := h.p.records.get(id); r != nil && len(r.Groups) > 0 {
				grouped++
			}
			pairs[[2]string{t.agent, t.tenant}]++
			if node, ok := ix.world.NodeOf(id); !ok || node != t.live.node {
				h.t.Errorf("run %s is live on %s, in the World on %q", id, t.live.node, node)
			}
		case t.state == run.Queued:
			q = 1
		case t.state == run.Unschedulable:
			rest = 1
		default:
			h.t.Errorf("the index tracks run %s in state %q", id, t.state)
		}
		agents.add(t.agent, q, l, rest)
		tenants.add(t.tenant, q, l, rest)
	}
	if diff := cmp.Diff(agents, ix.agents, cmp.AllowUnexported(tally{})); diff != "" {
		h.t.Errorf("counts by agent (-derived +counted):\n%s", diff)
	}
	if diff := cmp.Diff(tenants, ix.tenants, cmp.AllowUnexported(tally{})); diff != "" {
		h.t.Errorf("counts by tenant (-derived +counted):\n%s", diff)
	}
	if diff := cmp.Diff(pairs, ix.agentTenant); diff != "" {
		h.t.Errorf("counts by agent and tenant (-derived +counted):\n%s", diff)
	}
	if n := ix.queue.Occupied(); n != grouped {
		h.t.Errorf("%d runs have places in groups, %d live ones are in any", n, grouped)
	}
	if n := ix.world.Runs(); n != lives {
		h.t.Errorf("%d slots in use, %d runs are live", n, lives)
	}
}

func (h *house) pass(d time.Duration) {
	h.mu.Lock()
	h.now = h.now.Add(d)
	h.mu.Unlock()
	h.settle()
}

// await runs a door that waits for a pass.
func await[T any](h *house, door func() T) T {
	h.t.Helper()
	done := make(chan T, 1)
	go func() { done <- door() }()
	for {
		select {
		case v := <-done:
			h.settle()
			return v
		case <-h.p.poke:
			h.settle()
		}
	}
}

func (h *house) submit(s Submission) *run.Record {
	h.t.Helper()
	out := await(h, func() Submitted { return h.p.Submit(h.t.Context(), []Submission{s})[0] })
	if out.Err != nil {
		h.t.Fatalf("submit: %v", out.Err)
	}
	return out.Run
}

func (h *house) lease(worker string, limit int, agents ...string) []runtime.Assignment {
	h.t.Helper()
	resp, err := h.p.Lease(h.t.Context(), LeaseRequest{Worker: worker, Agents: agents, Max: limit, Slots: 10})
	if err != nil {
		h.t.Fatalf("lease: %v", err)
	}
	if len(resp.Leases) == 0 { // the first call of a worker only makes its slots known
		h.settle()
		if resp, err = h.p.Lease(h.t.Context(), LeaseRequest{Worker: worker, Agents: agents, Max: limit, Slots: 10}); err != nil {
			h.t.Fatalf("lease: %v", err)
		}
	}
	return resp.Leases
}

func (h *house) report(r runtime.Report) runtime.Result {
	h.t.Helper()
	res := h.p.Report(h.t.Context(), []runtime.Report{r})[0]
	h.settle()
	return res
}

func (h *house) get(id string) *run.Record {
	h.t.Helper()
	r, err := h.p.Get(h.t.Context(), id)
	if err != nil {
		h.t.Fatalf("get %s: %v", id, err)
	}
	events, _, err := h.p.history(h.t.Context(), id)
	if err != nil {
		h.t.Fatalf("history of %s: %v", id, err)
	}
	folded, err := run.Fold(r.Spec, events)
	if err != nil {
		h.t.Fatalf("history of %s does not fold: %v", id, err)
	}
	got := r.Clone()
	got.Tail = nil
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(folded)
	if string(a) != string(b) {
		h.t.Fatalf("history of %s does not fold to its record:\n%s\n%s", id, a, b)
	}
	return r
}

func agentNamed(name string, change ...func(*fleet.Agent)) *fleet.Agent {
	a := &fleet.Agent{Meta: fleet.Meta{Name: name}, Shape: fleet.Pool}
	a.Retry.Backoff = fleet.Backoff{Initial: fleet.Duration(time.Second), Factor: 2, Max: fleet.Duration(time.Minute)}
	for _, c := range change {
		c(a)
	}
	return a
}

func wantState(t *testing.T, r *run.Record, state run.State, reason run.Reason) {
	t.Helper()
	if r.State != state || r.Reason != reason {
		t.Fatalf("run is %s (%s: %s), want %s (%s)", r.State, r.Reason, r.Message, state, reason)
	}
}

func fleetOf(objects ...fleet.Object) []fleet.Object { return objects }
