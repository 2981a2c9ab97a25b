package seed_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/internal/seed"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// What a large store costs. ERRAND_REST_RUNS=1000000 fills the one of the acceptance, which takes a minute or two;
// ERRAND_REST_STORE names one that is there already, and is changed.

// restStore opens a store of many runs.
func restStore(b *testing.B) store.Store {
	b.Helper()
	file := os.Getenv("ERRAND_REST_STORE")
	n := 100_000
	if text := os.Getenv("ERRAND_REST_RUNS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	fresh := file == ""
	if fresh {
		file = filepath.Join(b.TempDir(), "errand.db")
	}
	st, err := sqlite.Open(b.Context(), file, sqlite.Options{Sync: sqlite.SyncOff})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	if fresh {
		if err := seed.Fill(b.Context(), st, n, time.Now(), 1); err != nil {
			b.Fatal(err)
		}
	}
	return st
}

// heap is what is reachable, in bytes.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func BenchmarkRest(b *testing.B) {
	st := restStore(b)
	var p *control.Plane
	b.Run("start", func(b *testing.B) {
		for b.Loop() {
			var err error
			p = nil
			before := heap()
			if p, err = control.New(control.Config{Store: st, Name: "bench"}); err != nil {
				b.Fatal(err)
			}
			if err := p.Prepare(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric((heap()-before)/1e6, "heap-MB")
		}
	})
	now := time.Now()
	for _, c := range []struct {
		name  string
		limit int
		f     control.Filter
	}{
		{"all", 100, control.Filter{}},
		{"page of 1000", 1000, control.Filter{}},
		{"tenant", 100, control.Filter{Tenant: "rest-1"}},
		{"tenant and agent", 100, control.Filter{Tenant: "rest-1", Agent: "rest-2"}},
		{"agent", 100, control.Filter{Agent: "rest-2"}},
		{"agent without runs", 100, control.Filter{Agent: "nobody"}},
		{"tenants seen", 100, control.Filter{Tenants: []string{"rest-1", "rest-2"}}},
		{"state of few", 100, control.Filter{States: []run.State{run.Canceling}}},
		{"state of many", 100, control.Filter{States: []run.State{run.Waiting}, Until: now.Add(-24 * time.Hour)}},
		{"label of few", 100, control.Filter{Labels: map[string]string{seed.Rare: "yes"}}},
		{"since", 100, control.Filter{Since: now.Add(-time.Hour)}},
		{"until", 100, control.Filter{Until: now.Add(-10 * 24 * time.Hour)}},
	} {
		b.Run("list/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				page, err := p.List(b.Context(), c.f, c.limit, "")
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(page.Runs)), "runs")
			}
		})
	}
	b.Run("stats", func(b *testing.B) {
		for b.Loop() {
			p.Stats(time.Hour, "", "")
		}
	})
	b.Run("due", func(b *testing.B) {
		for b.Loop() {
			if _, err := st.Due(b.Context(), 0, now.Add(10*time.Minute).UnixMilli(), 0, "", store.MaxPage); err != nil {
				b.Fatal(err)
			}
		}
	})
}
