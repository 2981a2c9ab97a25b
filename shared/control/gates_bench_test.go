package control

import (
	"path/filepath"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// BenchmarkParkedAtGates brings runs to gates, measures what each costs while it waits, and decides them in bulk: W5,
// with -benchtime 20000x.
func BenchmarkParkedAtGates(b *testing.B) {
	st, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "bench.db"), sqlite.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	p, err := New(Config{Store: st})
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	if _, err := p.Apply(b.Context(), fleetOf(agentNamed("payer")), ApplyOptions{}); err != nil {
		b.Fatal(err)
	}
	settled := func() (heap, goroutines int) {
		var m goruntime.MemStats
		goruntime.GC()
		goruntime.GC()
		goruntime.ReadMemStats(&m)
		return int(m.HeapAlloc), goruntime.NumGoroutine()
	}
	heapBefore, goroutinesBefore := settled()
	// 1. They park.
	began := time.Now()
	const batch = 500
	for at := 0; at < b.N; at += batch {
		n := min(batch, b.N-at)
		subs := make([]Submission, n)
		for i := range subs {
			subs[i] = Submission{Agent: "payer", Actor: "rita"}
		}
		for _, out := range p.Submit(b.Context(), subs) {
			if out.Err != nil {
				b.Fatal(out.Err)
			}
		}
		for left := n; left > 0; {
			resp, err := p.Lease(b.Context(), LeaseRequest{Worker: "w", Agents: []string{"payer"}, Max: batch, Slots: batch, Wait: time.Second})
			if err != nil {
				b.Fatal(err)
			}
			reports := make([]runtime.Report, len(resp.Leases))
			for i, l := range resp.Leases {
				ask := pay
				reports[i] = runtime.Report{Type: runtime.Parked, Run: l.Run, N: l.N, Worker: "w", Park: &run.Park{On: run.OnGate, Step: "pay"}, Gate: &ask}
			}
			for _, r := range p.Report(b.Context(), reports) {
				if r.Err != nil {
					b.Fatal(r.Err)
				}
			}
			left -= len(resp.Leases)
		}
	}
	parked := time.Since(began)
	heap, goroutines := settled()
	// 2. They are listed and decided.
	began = time.Now()
	var votes []GateVote
	for after := ""; ; {
		page, next, err := p.Gates(b.Context(), GateFilter{State: run.GateOpen}, 1000, after)
		if err != nil {
			b.Fatal(err)
		}
		for _, g := range page {
			votes = append(votes, finance(g.ID, "ann", run.Approve, g.ActionHash))
		}
		if after = next; next == "" {
			break
		}
	}
	listed := time.Since(began)
	if len(votes) != b.N {
		b.Fatalf("%d open gates of %d", len(votes), b.N)
	}
	b.ResetTimer()
	for at := 0; at < len(votes); at += maxVotes {
		for _, o := range p.DecideGates(b.Context(), votes[at:min(at+maxVotes, len(votes))]) {
			if o.Err != nil {
				b.Fatal(o.Err)
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/parked.Seconds(), "parked/s")
	b.ReportMetric(float64(heap-heapBefore)/float64(b.N), "heapB/parked")
	b.ReportMetric(float64(goroutines-goroutinesBefore), "goroutines")
	b.ReportMetric(float64(listed.Milliseconds()), "ms/list")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decided/s")
	// 3. Each goes on once.
	seen := make(map[string]bool)
	for len(seen) < b.N {
		resp, err := p.Lease(b.Context(), LeaseRequest{Worker: "w", Agents: []string{"payer"}, Max: batch, Slots: batch, Wait: time.Second})
		if err != nil {
			b.Fatal(err)
		}
		reports := make([]runtime.Report, len(resp.Leases))
		for i, l := range resp.Leases {
			if seen[l.Run] || l.N < 2 || len(l.Steps) != 1 { // a worker that is silent while all is decided loses what it was given
				b.Fatalf("run %s: attempt %d, %d steps, seen %t", l.Run, l.N, len(l.Steps), seen[l.Run])
			}
			seen[l.Run] = true
			reports[i] = runtime.Report{Type: runtime.Completed, Run: l.Run, N: l.N, Worker: "w"}
		}
		p.Report(b.Context(), reports)
	}
	if err := p.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}
