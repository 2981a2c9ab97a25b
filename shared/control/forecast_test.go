package control

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// played is one submission and what its attempts come to.
type played struct {
	at            time.Duration
	agent, tenant string
	priority      int
	attempts      []forecast.RecordedAttempt
}

// playedFleet has every limit that holds runs back.
func playedFleet(slots int) []fleet.Object {
	list := []fleet.Object{
		agentNamed("plain"),
		agentNamed("narrow", func(a *fleet.Agent) { a.Concurrency.PerTenant = 2 }),
		agentNamed("large", func(a *fleet.Agent) { a.Needs.Slots = 3; a.Concurrency.Max = 2 }),
		agentNamed("turns", func(a *fleet.Agent) { a.Shape = fleet.Instance }),
		&fleet.Target{Meta: fleet.Meta{Name: "farm"}, Runtime: fleet.RuntimePoll, Capacity: fleet.Capacity{Runs: slots}},
		&fleet.Tenant{Meta: fleet.Meta{Name: "acme"}, Weight: 3},
		&fleet.Tenant{Meta: fleet.Meta{Name: "beta"}, Weight: 1, Quota: fleet.Quota{Running: 3}},
	}
	for _, o := range list {
		o.SetDefaults()
	}
	return list
}

func drawPlayed(seed uint64, n int) []played {
	r := rand.New(rand.NewPCG(seed, seed))
	list := make([]played, n)
	agents, tenants := []string{"plain", "plain", "narrow", "large", "turns"}, []string{"acme", "acme", "beta", "gamma"}
	for i := range list {
		p := &list[i]
		p.at = time.Duration(r.IntN(60*n)) * 10 * time.Millisecond
		p.agent, p.tenant, p.priority = agents[r.IntN(len(agents))], tenants[r.IntN(len(tenants))], r.IntN(101)
		for failed := true; failed; {
			took := time.Duration(1+r.IntN(7000)) * time.Millisecond
			failed = r.IntN(5) == 0 && len(p.attempts) < 3
			x := forecast.RecordedAttempt{Took: took}
			if failed {
				x.Class, x.Code = run.ClassUser, "E1"
			}
			p.attempts = append(p.attempts, x)
		}
	}
	slices.SortFunc(list, func(a, b played) int { return cmp.Compare(a.at, b.at) })
	return list
}

// waits are what a tenant and agent waited.
type waits struct {
	n            int64
	longest, sum time.Duration
}

const playedWorker = "w0-0"

// playControl plays submissions against the control plane itself: a worker leases, and reports what each attempt comes
// to when its time is over.
func playControl(t *testing.T, objects []fleet.Object, list []played, slots int, window time.Duration) map[string]waits {
	h := newHouse(t, objects...)
	names := []string{"plain", "narrow", "large", "turns"}
	start := h.now
	type ending struct {
		at  time.Time
		a   runtime.Assignment
		out forecast.RecordedAttempt
	}
	var endings []ending
	var wakes []time.Time
	source := make(map[string]*played)
	first := make(map[string]bool)
	got := make(map[string]waits)
	lease := func() {
		h.settle()
		resp, err := h.p.Lease(t.Context(), LeaseRequest{Worker: playedWorker, Target: "farm", Agents: names, Max: slots, Slots: slots})
		if err != nil {
			t.Fatalf("lease: %v", err)
		}
		for _, a := range resp.Leases {
			p := source[a.Run]
			if !first[a.Run] {
				first[a.Run] = true
				w := got[p.tenant+"/"+p.agent]
				wait := h.now.Sub(start.Add(p.at))
				got[p.tenant+"/"+p.agent] = waits{w.n + 1, max(w.longest, wait), w.sum + wait}
			}
			out := p.attempts[a.N-1]
			endings = append(endings, ending{h.now.Add(out.Took), a, out})
		}
	}
	lease()
	for next := 0; ; {
		// 1. The next thing that happens, or a sign of life of the worker.
		at := h.now.Add(14 * time.Second)
		if next < len(list) && start.Add(list[next].at).Before(at) {
			at = start.Add(list[next].at)
		}
		for _, e := range endings {
			if e.at.Before(at) {
				at = e.at
			}
		}
		for _, w := range wakes {
			if w.Before(at) {
				at = w
			}
		}
		if !at.Before(start.Add(window)) {
			return got
		}
		h.mu.Lock()
		h.now = at
		h.mu.Unlock()
		// 2. It happens.
		wakes = slices.DeleteFunc(wakes, func(w time.Time) bool { return !w.After(at) })
		for _, e := range endings {
			if e.at.After(at) {
				continue
			}
			report := runtime.Report{Type: runtime.Completed, Run: e.a.Run, N: e.a.N, Worker: playedWorker}
			if e.out.Class != "" {
				report.Type, report.Class, report.Code = runtime.Failed, e.out.Class, e.out.Code
			}
			if res := h.report(report); res.Err != nil {
				t.Fatalf("report: %v", res.Err)
			}
			if r := h.get(e.a.Run); r.State == run.Backoff {
				wakes = append(wakes, r.Due.Time())
			}
		}
		endings = slices.DeleteFunc(endings, func(e ending) bool { return !e.at.After(at) })
		for ; next < len(list) && !start.Add(list[next].at).After(at); next++ {
			p := &list[next]
			r := h.submit(Submission{Agent: p.agent, Tenant: p.tenant, Priority: &p.priority})
			source[r.ID] = p
		}
		lease()
	}
}

// replayed gives submissions to a forecast.
type replayed struct{ list []played }

func (s *replayed) Next() (forecast.Arrival, bool, error) {
	if len(s.list) == 0 {
		return forecast.Arrival{}, false, nil
	}
	p := s.list[0]
	s.list = s.list[1:]
	kind := &forecast.Kind{Tenant: p.tenant, Agent: p.agent, Priority: &p.priority}
	return forecast.Arrival{At: run.At(began.Add(p.at)), Kind: kind, Recorded: &forecast.Recorded{Attempts: p.attempts}}, true, nil
}

// A forecast starts runs when the control plane does: tenant by tenant and agent by agent, the same waits.
func TestAForecastWaitsAsTheControlPlaneDoes(t *testing.T) {
	const slots, n, window = 4, 150, 1000 * time.Second
	for seed := range uint64(4) {
		list := drawPlayed(seed+1, n)
		want := playControl(t, playedFleet(slots), list, slots, window)
		r, err := forecast.Run(playedFleet(slots), &replayed{list: list}, forecast.Options{
			Start: run.At(began), Window: window,
			Workers: []forecast.Workers{{Target: "farm", Agents: []string{"plain", "narrow", "large", "turns"}, Slots: slots, Count: 1}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Total.Succeeded != n {
			t.Fatalf("seed %d: %d of %d runs succeeded", seed, r.Total.Succeeded, n)
		}
		got := make(map[string]waits)
		for _, p := range r.Pairs {
			w := want[p.Name()]
			// The mean is in milliseconds, so that a sum of it is exact to a millisecond for each run.
			got[p.Name()] = waits{p.Started, p.Wait.Max.Std(), p.Wait.Mean.Std()}
			w.sum = (w.sum / time.Duration(max(w.n, 1))).Truncate(time.Millisecond)
			want[p.Name()] = w
		}
		if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(waits{})); diff != "" {
			t.Errorf("seed %d: waits (-control plane +forecast):\n%s", seed, diff)
		}
	}
}
