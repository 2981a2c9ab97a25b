package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestChaos lets two workers serve runs while the server goes away and comes back, answers are lost, runs are taken from
// their workers, and workers are drained and replaced. Whatever happens: each run succeeds, its effect happens once, its
// recorded steps are those of one straight execution, and no worker exceeds its slots.
func TestChaos(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func chaos(t *testing.T, rnd *rand.Rand) {
	const slots, workers, runs = 5, 2, 60
	f := newFake()
	f.settle = time.Second
	var mu sync.Mutex
	effects := map[string]int{} // by key
	busy := map[string]int{}    // handlers by worker
	handler := func(worker string) Handler[int, string] {
		return func(ctx context.Context, r *Run, in int) (string, error) {
			mu.Lock()
			if busy[worker]++; busy[worker] > slots {
				t.Errorf("worker %s executes %d at once", worker, busy[worker])
			}
			mu.Unlock()
			defer func() {
				mu.Lock()
				busy[worker]--
				mu.Unlock()
			}()
			for i := range 3 {
				if _, err := Step(ctx, r, fmt.Sprint("step-", i), func(ctx context.Context) (int, error) {
					return i, nap(ctx, time.Duration(in)*time.Millisecond)
				}); err != nil {
					return "", err
				}
				r.Progress(float64(i)/3, "")
				r.Log().Info("step", "i", i)
			}
			happened := func(_ context.Context, key string) (string, bool, error) {
				mu.Lock()
				defer mu.Unlock()
				return "done " + key, effects[key] > 0, nil
			}
			return Once(ctx, r, "effect", Effect[string]{OnUnknown: Reconcile, Reconcile: happened, Timeout: 2 * time.Second, Do: func(ctx context.Context, key string) (string, error) {
				if err := nap(ctx, time.Duration(in)*time.Millisecond); err != nil {
					return "", NotDone(err)
				}
				mu.Lock()
				defer mu.Unlock()
				effects[key]++
				return "done " + key, nil
			}})
		}
	}
	// 1. Workers and runs.
	stops := make([]func() error, workers)
	names := make([]string, workers)
	n := 0
	start := func(i int) {
		n++
		names[i] = fmt.Sprint("w", n)
		stops[i] = f.serveWith(t, HostOptions{Worker: names[i], Slots: slots, Grace: 50 * time.Millisecond, Handle: handling(f.client(t), handler(names[i]))})
	}
	for i := range stops {
		start(i)
	}
	var all []*fakeRun
	f.mu.Lock()
	for range runs {
		all = append(all, f.submitLocked("a", fmt.Sprint(rnd.IntN(300))))
	}
	f.mu.Unlock()
	// 2. Faults.
	for range 40 {
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		switch rnd.IntN(5) {
		case 0:
			f.setDown(true)
			time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
			f.setDown(false)
		case 1:
			f.loseWorker(names[rnd.IntN(workers)])
		case 2:
			i := rnd.IntN(workers)
			if err := stops[i](); err != nil {
				t.Errorf("worker ended with %v", err)
			}
			f.loseWorker(names[i])
			start(i)
		default:
			f.mu.Lock()
			f.loseAfter[[]string{":batch", "/leases", ":heartbeat", ":begin", ":commit"}[rnd.IntN(5)]]++
			f.mu.Unlock()
		}
	}
	// 3. When faults stop, everything ends. Attempts whose lease was lost on the way are found by their silence.
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for _, r := range all {
		for over := false; !over; {
			select {
			case <-r.wait:
				over = true
			case <-ticker.C:
				f.loseUnclaimed()
			}
		}
	}
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Errorf("worker ended with %v", err)
		}
	}
	// 4. What must hold.
	for _, r := range all {
		if r.state != "succeeded" {
			t.Errorf("run %s is %s: %s", r.id, r.state, r.why())
		}
		if len(r.steps) != 3 {
			t.Errorf("run %s has %d steps", r.id, len(r.steps))
		}
		for i, s := range r.steps {
			if s.Name != fmt.Sprint("step-", i) || s.Seq != i+1 {
				t.Errorf("run %s: step %d is %s with seq %d", r.id, i, s.Name, s.Seq)
			}
		}
		if got := effects["receipt-"+r.id+"-/effect"]; got != 1 {
			t.Errorf("run %s: its effect happened %d times", r.id, got)
		}
	}
}

// loseUnclaimed requeues what no worker executes: the answer with the lease was lost.
func (f *fake) loseUnclaimed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	held := map[string]bool{}
	for _, w := range f.workers {
		if len(w.beats) > 0 {
			for _, id := range w.beats[len(w.beats)-1].Attempts {
				held[id] = true
			}
		}
	}
	for _, r := range f.runs {
		if r.state == "assigned" && !held[r.attempt()] {
			f.requeue(r)
		}
	}
}

func nap(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return errors.Join(ctx.Err(), context.Cause(ctx))
	case <-time.After(d):
		return nil
	}
}
