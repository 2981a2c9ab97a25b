package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
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

// BenchmarkRemoval is what it costs to remove a finished run that owns a step, without the pauses.
func BenchmarkRemoval(b *testing.B) {
	st, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "bench.db"), sqlite.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	p, err := New(Config{Store: st})
	if err != nil {
		b.Fatal(err)
	}
	// 1. What there is to remove.
	at := p.now().Add(-time.Hour)
	var units []store.Unit
	for i := range b.N {
		id := p.runID(at)
		step, err := stepWrite(id, runtime.Step{Name: "read"})
		if err != nil {
			b.Fatal(err)
		}
		r := run.New(run.Spec{ID: id, Agent: "echo", Tenant: "default", CreatedAt: at}, run.Event{Type: run.EvSubmitted, At: at})
		run.Evolve(r, run.Event{Type: run.EvFailed, At: at, Reason: run.QueueTimeout, Due: at.Add(time.Minute)})
		units = append(units, store.Unit{Token: id, Writes: []store.Write{Document(r, 0), step}})
		if len(units) == 1000 || i == b.N-1 {
			for _, err := range st.Commit(b.Context(), units) {
				if err != nil {
					b.Fatal(err)
				}
			}
			units = units[:0]
		}
	}
	// 2. Bites, one after the other.
	b.ReportAllocs()
	b.ResetTimer()
	for over := false; !over; {
		if _, over, err = p.removeSome(b.Context(), p.ix.removal, p.now()); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	if page, err := st.List(b.Context(), store.Query{By: store.ByCreated, Limit: 1}); err != nil || len(page.Docs) > 0 {
		b.Fatalf("%d runs are left, %v", len(page.Docs), err)
	}
}

// BenchmarkStats is the live view of a busy plane: everything that is remembered lies in the window.
func BenchmarkStats(b *testing.B) {
	st := memory.Open()
	defer st.Close()
	p, err := New(Config{Store: st})
	if err != nil {
		b.Fatal(err)
	}
	at := p.now()
	for i := range maxSamples {
		took := time.Duration(i*7919%5000) * time.Millisecond
		p.stats.ring = append(p.stats.ring, sample{at: at, kind: run.EvSucceeded, agent: fmt.Sprint(i % 20), tenant: fmt.Sprint(i % 10), took: took})
	}
	b.ReportAllocs()
	for b.Loop() {
		p.Stats(time.Hour, "", "")
	}
}

// BenchmarkJoin is a fan-out of 10,000 and its join: children called in one step, executed by 4 workers of 64 slots that
// report in batches, and the parent's wake-up with all results.
func BenchmarkJoin(b *testing.B) {
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
			st := &written{Store: open(b)}
			defer st.Close()
			p, err := New(Config{Store: st})
			if err != nil {
				b.Fatal(err)
			}
			if err := p.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			if _, err := p.Apply(b.Context(), fleetOf(caller("boss", "hand"), agentNamed("hand")), ApplyOptions{}); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			st.docs.Store(0)
			for range b.N {
				fanOut(b, p, run.MaxChildren)
			}
			b.ReportMetric(float64(st.docs.Load())/float64(b.N)/run.MaxChildren, "writes/child")
			b.ReportMetric(float64(b.N)*run.MaxChildren/b.Elapsed().Seconds(), "children/s")
			b.StopTimer()
			if err := p.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// written counts documents that are written.
type written struct {
	store.Store
	docs atomic.Int64
}

func (w *written) Commit(ctx context.Context, units []store.Unit) []error {
	for i := range units {
		w.docs.Add(int64(len(units[i].Writes)))
	}
	return w.Store.Commit(ctx, units)
}

// fanOut is one run that calls n children and waits for them.
func fanOut(b *testing.B, p *Plane, n int) {
	// 1. The parent calls all and parks.
	out := p.Submit(b.Context(), []Submission{{Agent: "boss"}})
	if out[0].Err != nil {
		b.Fatal(out[0].Err)
	}
	parent := out[0].Run.ID
	lease := func(worker, agent string, most int) []runtime.Assignment {
		resp, err := p.Lease(b.Context(), LeaseRequest{Worker: worker, Agents: []string{agent}, Max: most, Slots: most, Wait: 100 * time.Millisecond})
		if err != nil {
			b.Fatal(err)
		}
		return resp.Leases
	}
	attempt := func() (got []runtime.Assignment) {
		for len(got) == 0 {
			got = lease("boss-worker", "boss", 1)
		}
		return got
	}
	held := attempt()[0]
	for first := 0; first < n; first += MaxCalls {
		calls := make([]runtime.Call, MaxCalls)
		for i := range calls {
			calls[i] = runtime.Call{Agent: "hand", Input: json.RawMessage(`{"n":1}`)}
		}
		if _, err := p.Children(b.Context(), ChildCalls{Run: parent, N: held.N, Step: "all", First: first, Size: n, Calls: calls}); err != nil {
			b.Fatal(err)
		}
	}
	park := &run.Park{On: run.OnChildren, Step: "all", Size: n}
	if res := p.Report(b.Context(), []runtime.Report{{Type: runtime.Parked, Run: parent, N: held.N, Park: park}})[0]; res.Err != nil {
		b.Fatal(res.Err)
	}
	// 2. The children are executed.
	var done atomic.Int64
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for done.Load() < int64(n) {
				var reports []runtime.Report
				for _, a := range lease(fmt.Sprint("w", w), "hand", 64) {
					reports = append(reports, runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N, Output: a.Input})
				}
				if len(reports) == 0 {
					continue
				}
				for _, r := range p.Report(b.Context(), reports) {
					if r.Err != nil {
						b.Error(r.Err)
					}
				}
				done.Add(int64(len(reports)))
			}
		})
	}
	group.Wait()
	// 3. The parent goes on with all results.
	held = attempt()[0]
	var x joinResult
	if err := json.Unmarshal(held.Steps[0].Result, &x); err != nil || x.Succeeded != n {
		b.Fatalf("joined %d of %d: %v", x.Succeeded, n, err)
	}
	p.Report(b.Context(), []runtime.Report{{Type: runtime.Completed, Run: parent, N: held.N, Output: json.RawMessage(`1`)}})
}

// BenchmarkFanOut is a workflow that calls an agent for each of b.N items, of which 5 in 100 fail and 10 in 100 may, and
// merges what came of them: with -benchtime 10000x the largest that there may be.
func BenchmarkFanOut(b *testing.B) {
	path := filepath.Join(b.TempDir(), "bench.db")
	st, err := sqlite.Open(b.Context(), path, sqlite.Options{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := New(Config{Store: st})
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	each := flowNamed("w", fleet.Stage{Name: "a", Parallel: &fleet.Parallel{ForEach: "input", Agent: "plus", Tolerate: 0.1}})
	if _, err := p.Apply(b.Context(), fleetOf(agentNamed("plus"), each), ApplyOptions{}); err != nil {
		b.Fatal(err)
	}
	items := make([]int, b.N)
	for i := range items {
		items[i] = i
	}
	input, _ := json.Marshal(items)
	before := st.Stats()
	b.ResetTimer()
	out := p.Submit(b.Context(), []Submission{{Workflow: "w", Input: input}})
	if out[0].Err != nil {
		b.Fatal(out[0].Err)
	}
	for done := 0; done < b.N; {
		resp, err := p.Lease(b.Context(), LeaseRequest{Worker: "w", Agents: []string{"plus"}, Max: 64, Slots: 64, Wait: 100 * time.Millisecond})
		if err != nil {
			b.Fatal(err)
		}
		reports := make([]runtime.Report, len(resp.Leases))
		for i, l := range resp.Leases {
			reports[i] = runtime.Report{Type: runtime.Completed, Run: l.Run, N: l.N, Worker: "w", Output: l.Input}
			if n, _ := strconv.Atoi(string(l.Input)); n%20 == 7 {
				reports[i] = runtime.Report{Type: runtime.Failed, Run: l.Run, N: l.N, Worker: "w", Final: true, Message: "no"}
			}
		}
		for _, res := range p.Report(b.Context(), reports) {
			if res.Err != nil {
				b.Fatal(res.Err)
			}
		}
		done += len(reports)
	}
	// It ends once the last of them has.
	for r := out[0].Run; !r.State.Terminal(); {
		if r, err = p.Await(b.Context(), r.ID, time.Second); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	after := st.Stats()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "children/s")
	b.ReportMetric(float64(after.Units-before.Units)/float64(b.N), "units/child")
	b.ReportMetric(float64(after.Flushes-before.Flushes)/float64(b.N), "flushes/child")
	if err := errors.Join(p.Close(b.Context()), st.Close()); err != nil { // what was logged is in the file then
		b.Fatal(err)
	}
	file, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(file.Size())/float64(b.N), "diskB/child")
}
