package local_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/bustest"
	"github.com/errand-run/errand/shared/bus/local"
)

func TestConformance(t *testing.T) {
	const deliveries = 5
	bustest.Run(t, bustest.Harness{New: func(_ *testing.T, topics ...bus.Topic) bustest.Broker {
		broker := local.NewBroker(local.Options{
			Topics: topics, MaxDeliveries: deliveries, Pause: func(int) time.Duration { return time.Millisecond },
		})
		return bustest.Broker{
			Open:          func(*testing.T) bus.Bus { return broker.Open() },
			MaxDeliveries: deliveries,
			Expire:        func(*testing.T) {}, // there is no lease that could run out
		}
	}})
}

func one(name string) []bus.Message {
	return []bus.Message{{Attributes: map[string]string{"name": name}}}
}

// clock is a manual one.
type clock struct {
	mu   sync.Mutex
	now  time.Time
	then []alarm
}

type alarm struct {
	at time.Time
	f  func()
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) After(d time.Duration, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.then = append(c.then, alarm{c.now.Add(d), f})
}

// forward passes time, and calls what is due.
func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	var due []func()
	c.then = slices.DeleteFunc(c.then, func(a alarm) bool {
		if a.at.After(c.now) {
			return false
		}
		due = append(due, a.f)
		return true
	})
	c.mu.Unlock()
	for _, f := range due {
		f()
	}
}

func TestPause(t *testing.T) {
	t.Run("a message that fails comes again when its pause is over by the given clock, not before", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			b := local.Open(local.Options{
				Clock: c.Now, After: c.After, Pause: func(n int) time.Duration { return time.Duration(n) * time.Minute },
			})
			if err := b.Publish(t.Context(), "control", one("m"))[0]; err != nil {
				t.Fatal(err)
			}
			published := c.Now()
			var attempts []int
			go b.Receive(t.Context(), "control", bus.Receiver{Slots: 1, Handle: func(_ context.Context, d *bus.Delivery) error {
				if attempts = append(attempts, d.Attempt); !d.PublishedAt.Equal(published) {
					t.Errorf("published at %v, want %v", d.PublishedAt, published)
				}
				return errors.New("fails")
			}})
			var got [][]int
			for range 6 {
				synctest.Wait()
				got = append(got, slices.Clone(attempts))
				c.forward(30 * time.Second)
			}
			want := [][]int{{1}, {1}, {1, 2}, {1, 2}, {1, 2}, {1, 2}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("deliveries each half minute (-want +got):\n%s", diff)
			}
			_ = b.Close()
		})
	})
	t.Run("pauses double from a second to a minute where nothing else was said", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := local.Open(local.Options{MaxDeliveries: 9})
			b.Publish(t.Context(), "control", one("m"))
			began := time.Now()
			var got []float64
			go b.Receive(t.Context(), "control", bus.Receiver{Slots: 1, Handle: func(context.Context, *bus.Delivery) error {
				got = append(got, time.Since(began).Seconds())
				return errors.New("fails")
			}})
			time.Sleep(time.Hour) // the bubble's
			synctest.Wait()
			want := []float64{0, 1, 3, 7, 15, 31, 63, 123, 183}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("seconds at which it was delivered (-want +got):\n%s", diff)
			}
			_ = b.Close()
		})
	})
}

func TestBounds(t *testing.T) {
	ctx := context.Background()
	t.Run("a topic that keeps as many messages as it may refuses more until one is acknowledged", func(t *testing.T) {
		b := local.Open(local.Options{MaxQueued: 2})
		out := b.Publish(ctx, "control", append(append(one("a"), one("b")...), one("c")...))
		if out[0] != nil || out[1] != nil || !errors.Is(out[2], local.ErrFull) {
			t.Fatalf("got %v, want the third refused", out)
		}
		got, end := make(chan struct{}), make(chan struct{})
		var once sync.Once
		done := make(chan struct{})
		rctx, cancel := context.WithCancel(ctx)
		go func() {
			defer close(done)
			_ = b.Receive(rctx, "control", bus.Receiver{Slots: 1, Handle: func(_ context.Context, d *bus.Delivery) error {
				once.Do(func() { close(got) })
				<-end
				return nil
			}})
		}()
		<-got
		if err := b.Publish(ctx, "control", one("c"))[0]; !errors.Is(err, local.ErrFull) {
			t.Errorf("what is in hand does not count: %v", err)
		}
		cancel()
		close(end)
		<-done
		if err := b.Publish(ctx, "control", one("c"))[0]; err != nil {
			t.Errorf("there is room again: %v", err)
		}
	})
	t.Run("bytes count as messages do", func(t *testing.T) {
		b := local.Open(local.Options{MaxBytes: 100})
		out := b.Publish(ctx, "control", []bus.Message{{Data: make([]byte, 60)}, {Data: make([]byte, 60)}, {Data: make([]byte, 40)}})
		if out[0] != nil || !errors.Is(out[1], local.ErrFull) || out[2] != nil {
			t.Errorf("got %v, want the second refused", out)
		}
	})
	t.Run("topics come with their first use, in bounds", func(t *testing.T) {
		b := local.Open(local.Options{})
		var last error
		for i := 0; i < 5000 && last == nil; i++ {
			last = b.Publish(ctx, bus.Pool(strings.Repeat("x", i%190)+"-"+string(rune('a'+i/190))), one("m"))[0]
		}
		if !errors.Is(last, local.ErrFull) {
			t.Errorf("got %v", last)
		}
	})
}

func TestDeadLetters(t *testing.T) {
	t.Run("a message that cannot become a dead letter is kept, tried after its pause, and complained of", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			b := local.Open(local.Options{
				MaxDeliveries: 2, MaxQueued: 1, Pause: func(int) time.Duration { return time.Minute },
				Log: slog.New(slog.NewTextHandler(&log, nil)),
			})
			b.Publish(t.Context(), bus.DeadLetters, one("takes the room"))
			b.Publish(t.Context(), "control", one("m"))
			deliveries := 0
			go b.Receive(t.Context(), "control", bus.Receiver{Slots: 1, Handle: func(context.Context, *bus.Delivery) error {
				deliveries++
				return errors.New("fails")
			}})
			time.Sleep(9*time.Minute + time.Second) // the bubble's
			synctest.Wait()
			if deliveries != 10 {
				t.Errorf("delivered %d times in nine minutes, want one a minute", deliveries)
			}
			if n := strings.Count(log.String(), "cannot become a dead letter"); n != 9 {
				t.Errorf("%d complaints, want one for each try after the first:\n%s", n, &log)
			}
			// With room it goes, whole, with what a broker adds.
			ctx, cancel := context.WithCancel(t.Context())
			var letters []map[string]string
			go b.Receive(ctx, bus.DeadLetters, bus.Receiver{Slots: 1, Handle: func(_ context.Context, d *bus.Delivery) error {
				letters = append(letters, d.Attributes)
				return nil
			}})
			time.Sleep(time.Hour)
			synctest.Wait()
			want := []map[string]string{{"name": "takes the room"}, {"name": "m", bus.Source: "control", bus.Deliveries: "11"}}
			if diff := cmp.Diff(want, letters); diff != "" {
				t.Errorf("dead letters (-want +got):\n%s", diff)
			}
			cancel()
			_ = b.Close()
		})
	})
	t.Run("a dead letter that fails stays one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := local.Open(local.Options{MaxDeliveries: 2, Pause: func(int) time.Duration { return time.Minute }})
			b.Publish(t.Context(), bus.DeadLetters, one("m"))
			var attempts []int
			go b.Receive(t.Context(), bus.DeadLetters, bus.Receiver{Slots: 1, Handle: func(_ context.Context, d *bus.Delivery) error {
				attempts = append(attempts, d.Attempt)
				return errors.New("fails")
			}})
			time.Sleep(4*time.Minute + time.Second)
			synctest.Wait()
			if diff := cmp.Diff([]int{1, 2, 3, 4, 5}, attempts); diff != "" {
				t.Errorf("deliveries (-want +got):\n%s", diff)
			}
			_ = b.Close()
		})
	})
}

func BenchmarkPublishReceive(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	broker := local.Open(local.Options{})
	handled := make(chan struct{}, 1)
	go broker.Receive(ctx, "control", bus.Receiver{Slots: 1, Handle: func(context.Context, *bus.Delivery) error {
		handled <- struct{}{}
		return nil
	}})
	m := one("m")
	for b.Loop() {
		broker.Publish(ctx, "control", m)
		<-handled
	}
}
