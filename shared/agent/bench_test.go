package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// benchmarkHost measures what the worker itself costs, over real sockets, against a server that does next to nothing.
func benchmarkHost(b *testing.B, slots int, handle func(*api.Client) func(context.Context, *Attempt) Result) {
	f := newFake()
	web := httptest.NewServer(f)
	defer web.Close()
	client, err := api.NewClient(api.Options{URL: web.URL})
	if err != nil {
		b.Fatal(err)
	}
	h, err := NewHost(client, HostOptions{Worker: "w1", Agents: []string{"a"}, Slots: slots, Log: quiet, Handle: handle(client)})
	if err != nil {
		b.Fatal(err)
	}
	runs := make([]*fakeRun, b.N)
	f.mu.Lock()
	for i := range runs {
		runs[i] = f.submitLocked("a", `{"n":1}`)
	}
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() { done <- h.Run(ctx) }()
	for _, r := range runs {
		<-r.wait
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	reports := 0
	for _, n := range f.sizes {
		reports += n
	}
	b.ReportMetric(float64(reports)/float64(max(len(f.sizes), 1)), "reports/batch")
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

func BenchmarkHostNoop(b *testing.B) {
	for _, slots := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			benchmarkHost(b, slots, func(*api.Client) func(context.Context, *Attempt) Result { return echo })
		})
	}
}

func BenchmarkHandlerNoop(b *testing.B) {
	benchmarkHost(b, 64, func(c *api.Client) func(context.Context, *Attempt) Result {
		return handling(c, func(_ context.Context, _ *Run, in map[string]int) (map[string]int, error) { return in, nil })
	})
}

// BenchmarkFiveSteps is a run of five durable steps, 32 runs at a time.
func BenchmarkFiveSteps(b *testing.B) {
	benchmarkHost(b, 32, func(c *api.Client) func(context.Context, *Attempt) Result {
		return handling(c, func(ctx context.Context, r *Run, _ json.RawMessage) (int, error) {
			sum := 0
			for i := range 5 {
				n, err := Step(ctx, r, fmt.Sprintf("step-%d", i), func(context.Context) (int, error) { return i, nil })
				if err != nil {
					return 0, err
				}
				sum += n
			}
			return sum, nil
		})
	})
}

// BenchmarkLatency measures a worker that waits for one run at a time.
func BenchmarkLatency(b *testing.B) {
	f := newFake()
	web := httptest.NewServer(f)
	defer web.Close()
	client, err := api.NewClient(api.Options{URL: web.URL})
	if err != nil {
		b.Fatal(err)
	}
	started := make(chan time.Time, 1)
	h, err := NewHost(client, HostOptions{Worker: "w1", Agents: []string{"a"}, Slots: 64, Log: quiet, Handle: func(_ context.Context, a *Attempt) Result {
		started <- time.Now()
		return Result{}
	}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	time.Sleep(50 * time.Millisecond)
	var start, end time.Duration
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		r := f.submit("a", `1`)
		start += (<-started).Sub(began)
		<-r.wait
		end += time.Since(began)
	}
	b.StopTimer()
	b.ReportMetric(float64(start.Microseconds())/float64(b.N), "µs-to-start")
	b.ReportMetric(float64(end.Microseconds())/float64(b.N), "µs-to-end")
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
