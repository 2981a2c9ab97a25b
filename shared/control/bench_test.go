package control

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// BenchmarkPlainRun is a run from submit to result by 16 submitters, one run a call, and one worker of 64 slots that
// reports in batches: W1 without HTTP.
func BenchmarkPlainRun(b *testing.B) {
	for name, open := range map[string]func(b *testing.B) store.Store{
		"memory": func(*testing.B) store.Store { return memory.Open() },
		"sqlite": func(b *testing.B) store.Store {
			s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "bench.db"), sqlite.Options{})
			if err != nil {
				b.Fatal(err)
			}
			return s
		},
	} {
		b.Run(name, func(b *testing.B) {
			st := open(b)
			defer st.Close()
			p, err := New(Config{Store: st})
			if err != nil {
				b.Fatal(err)
			}
			if err := p.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			if _, err := p.Apply(b.Context(), fleetOf(agentNamed("noop")), ApplyOptions{}); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			plainRuns(b, p, b.N)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
			b.StopTimer()
			if err := p.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func plainRuns(b *testing.B, p *Plane, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for left.Add(-1) >= 0 {
				if out := p.Submit(b.Context(), []Submission{{Agent: "noop", Input: json.RawMessage(`{"n":1}`)}}); out[0].Err != nil {
					b.Error(out[0].Err)
					return
				}
			}
		})
	}
	var done atomic.Int64
	for w := range 4 {
		group.Go(func() {
			for done.Load() < int64(n) {
				resp, err := p.Lease(b.Context(), LeaseRequest{Worker: fmt.Sprint("w", w), Agents: []string{"noop"}, Max: 16, Slots: 16, Wait: 100 * time.Millisecond})
				if err != nil {
					b.Error(err)
					return
				}
				reports := make([]runtime.Report, len(resp.Leases))
				for i, l := range resp.Leases {
					reports[i] = runtime.Report{Type: runtime.Completed, Run: l.Run, N: l.N, Output: json.RawMessage(`{}`)}
				}
				for _, res := range p.Report(b.Context(), reports) {
					if res.Err != nil {
						b.Error(res.Err)
					}
				}
				done.Add(int64(len(reports)))
			}
		})
	}
	group.Wait()
}
