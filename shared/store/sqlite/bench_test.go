package sqlite_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/sqlite"
)

var runBody = bytes.Repeat([]byte("0123456789abcdef"), 700/16)

// plainRun are the units that store one plain run: submitted, assigned, ended.
func plainRun(n int64) [3]store.Unit {
	id := uuid.NewString()
	x := store.Index{
		Tenant: fmt.Sprint("tenant-", n%10), Agent: fmt.Sprint("agent-", n%50), Root: id,
		CreatedAt: 1_700_000_000_000 + n/4, Part: []store.Part{store.PartIdle, store.PartEnded, store.PartHeld}[n%3],
	}
	d := store.Doc{Kind: store.KindRun, ID: id, Body: runBody}
	at := func(version int64, change func(x *store.Index)) store.Unit {
		d, x := d, x
		change(&x)
		d.Version, d.Index = version, &x
		return store.Unit{Token: id, Writes: []store.Write{{Doc: d, Expect: version - 1}}}
	}
	return [3]store.Unit{
		at(1, func(*store.Index) {}),
		at(2, func(x *store.Index) { x.Worker, x.Attempt, x.WakeAt = "pool-a", 1, x.CreatedAt+60_000 }),
		at(3, func(*store.Index) {}),
	}
}

// commitAll commits b.N units from committers at once, in calls of size; next makes the n-th unit.
func commitAll(b *testing.B, s *sqlite.Store, committers, size int, next func(n int64) store.Unit) {
	before, cpu := s.Stats(), cpuTime(b)
	var n atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	b.ReportAllocs()
	for range committers {
		wg.Go(func() {
			units := make([]store.Unit, 0, size)
			for {
				last := n.Add(int64(size))
				units = units[:0]
				for i := last - int64(size); i < min(last, int64(b.N)); i++ {
					units = append(units, next(i))
				}
				if len(units) == 0 {
					return
				}
				for _, err := range s.Commit(context.Background(), units) {
					if err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	after := s.Stats()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/float64(b.N), "cpu-µs/unit")
	b.ReportMetric(float64(after.Flushes-before.Flushes)/float64(b.N), "flushes/unit")
}

func BenchmarkCommit(b *testing.B) {
	for _, c := range []struct{ committers, size int }{{1, 1}, {16, 1}, {256, 1}, {2, 250}} {
		name := fmt.Sprintf("%dx%d", c.committers, c.size)
		b.Run("insert/"+name, func(b *testing.B) {
			s := openAt(b, filepath.Join(b.TempDir(), "errand.db"), sqlite.Options{})
			commitAll(b, s, c.committers, c.size, func(n int64) store.Unit { return plainRun(n)[0] })
		})
		b.Run("update/"+name, func(b *testing.B) {
			s := openAt(b, filepath.Join(b.TempDir(), "errand.db"), sqlite.Options{})
			var first []store.Unit
			var second []store.Unit
			for n := range int64(b.N) {
				r := plainRun(n)
				first, second = append(first, r[0]), append(second, r[1])
			}
			for i := 0; i < len(first); i += store.MaxUnits {
				s.Commit(context.Background(), first[i:min(i+store.MaxUnits, len(first))])
			}
			commitAll(b, s, c.committers, c.size, func(n int64) store.Unit { return second[n] })
		})
		// A plain run from one end to the other, on a store that holds many already.
		b.Run("plain/"+name, func(b *testing.B) {
			s := openAt(b, filepath.Join(b.TempDir(), "errand.db"), sqlite.Options{})
			fill(b, s, 50_000)
			runs := make([][3]store.Unit, b.N/3+1)
			for n := range runs {
				runs[n] = plainRun(int64(n) + 50_000)
			}
			// Rounds of submits, assignments and ends, long enough that no unit waits for one of another committer.
			const round = 3000
			ordered := make([]store.Unit, 0, 3*len(runs))
			for i := 0; i < len(runs); i += round {
				for v := range 3 {
					for _, r := range runs[i:min(i+round, len(runs))] {
						ordered = append(ordered, r[v])
					}
				}
			}
			commitAll(b, s, c.committers, c.size, func(n int64) store.Unit { return ordered[n] })
		})
	}
}

// cpuTime is the processor time of this process; unlike the clock it holds still beside other work.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func fill(b *testing.B, s store.Store, n int64) {
	units := make([]store.Unit, 0, 5000)
	for i := range n {
		u := plainRun(i)[0]
		u.Writes[0].Version = 3
		units = append(units, u)
		if len(units) == cap(units) || i == n-1 {
			for _, err := range s.Commit(context.Background(), units) {
				if err != nil {
					b.Fatal(err)
				}
			}
			units = units[:0]
		}
	}
}

func BenchmarkRead(b *testing.B) {
	ctx := context.Background()
	s := openAt(b, filepath.Join(b.TempDir(), "errand.db"), sqlite.Options{})
	fill(b, s, 20_000)
	page, err := s.List(ctx, store.Query{By: store.ByCreated, Limit: store.MaxPage})
	if err != nil {
		b.Fatal(err)
	}
	ids := make([]string, len(page.Docs))
	for i, d := range page.Docs {
		ids[i] = d.ID
	}
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := s.Get(ctx, store.KindRun, ids[i%len(ids)]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get many of 100", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.GetMany(ctx, store.KindRun, ids[:100]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("list a page of 50", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.List(ctx, store.Query{By: store.ByTenant, Tenant: "tenant-3", Limit: 50}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("due of an idle shard", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Due(ctx, store.PartHeld, 1<<60, 0, "", 100); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkCommitBesideRemoval is the latency of a small commit on a store of many runs: alone, and while finished runs
// are removed as fast as they can be.
func BenchmarkCommitBesideRemoval(b *testing.B) {
	const runs = 60_000
	for name, removing := range map[string]bool{"alone": false, "removing": true} {
		b.Run(name, func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "errand.db"), sqlite.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			commit := func(units []store.Unit) {
				for _, err := range s.Commit(b.Context(), units) {
					if err != nil {
						b.Error(err)
					}
				}
			}
			// 1. What there is to remove.
			var ids []string
			for n := int64(0); n < runs; n += 1000 {
				units := make([]store.Unit, 1000)
				for i := range units {
					units[i] = plainRun(n + int64(i))[0]
					ids = append(ids, units[i].Token)
				}
				commit(units)
			}
			// 2. Removal in bites.
			stop, stopped, removed := make(chan struct{}), make(chan struct{}), 0
			go func() {
				defer close(stopped)
				for removing && removed+32 <= len(ids) {
					select {
					case <-stop:
						return
					default:
					}
					units := make([]store.Unit, 32)
					for i := range units {
						id := ids[removed+i]
						units[i] = store.Unit{Token: "-" + id, Purge: []string{id}, Writes: []store.Write{{Doc: store.Doc{Kind: store.KindRun, ID: id}, Expect: 1, Delete: true}}}
					}
					commit(units)
					removed += 32
				}
			}()
			// 3. Commits, one at a time.
			took := make([]time.Duration, 0, b.N)
			b.ResetTimer()
			for i := range b.N {
				began := time.Now()
				commit([]store.Unit{plainRun(runs + int64(i))[0]})
				took = append(took, time.Since(began))
			}
			b.StopTimer()
			close(stop)
			<-stopped
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			if removing {
				b.ReportMetric(float64(removed)/b.Elapsed().Seconds(), "removed/s")
			}
		})
	}
}
