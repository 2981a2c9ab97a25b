package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/local"
	"github.com/errand-run/errand/shared/outside"
	"github.com/errand-run/errand/shared/run"
)

// away is a bus whose outcomes are scripted.
type away struct {
	bus.Bus
	mu       sync.Mutex
	calls    [][]string
	outcomes func(call int, ids []string) []error
}

func (b *away) Publish(ctx context.Context, topic bus.Topic, messages []bus.Message) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []string
	for i := range messages {
		ids = append(ids, messages[i].Attributes["ce-id"])
	}
	if topic != bus.Events {
		ids = append(ids, "on topic "+string(topic))
	}
	b.calls = append(b.calls, ids)
	if b.outcomes != nil {
		return b.outcomes(len(b.calls), ids)
	}
	return make([]error, len(messages))
}

func (b *away) published() [][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

func start(t *testing.T, o Options) (s *Sender, stop func()) {
	t.Helper()
	o.Cell = "main"
	s, err := NewSender(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	return s, func() { cancel(); <-done }
}

// change is a run that started.
func change(id string) (*run.Record, []run.Event) {
	return &run.Record{Spec: run.Spec{ID: id, Agent: "checker", Tenant: "acme", CreatedAt: 1}}, []run.Event{{Seq: 3, Type: run.EvStarted, At: began, Attempt: 1}}
}

var errAway = errors.New("away")

func all(n int, err error) []error {
	out := make([]error, n)
	for i := range out {
		out[i] = err
	}
	return out
}

func TestSender(t *testing.T) {
	t.Run("events arrive at who receives them", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := local.Open(local.Options{})
			s, stop := start(t, Options{Bus: b})
			ctx, cancel := context.WithCancel(t.Context())
			var types []string
			go b.Receive(ctx, bus.Events, bus.Receiver{Slots: 1, Handle: func(_ context.Context, d *bus.Delivery) error {
				types = append(types, d.Attributes["ce-type"])
				return nil
			}})
			r, happened := everything(t)
			s.Send(r, happened)
			synctest.Wait()
			want := []string{"unschedulable", "running", "waiting", "running", "succeeded"}
			for i := range want {
				want[i] = Prefix + want[i]
			}
			if diff := cmp.Diff(want, types); diff != "" {
				t.Errorf("types (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(Stats{Sent: 5}, s.Stats()); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			stop()
			cancel()
		})
	})
	t.Run("what nobody outside cares for is not told", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &away{}
			s, stop := start(t, Options{Bus: b})
			r, happened := story(t, spec(), submitted, assigned)
			s.Send(r, happened)
			s.Send(r, nil)
			stop()
			if len(b.calls) != 0 || s.Stats() != (Stats{}) {
				t.Errorf("published %v, counts %+v", b.calls, s.Stats())
			}
		})
	})
	t.Run("events that wait go together, in bounds", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &away{}
			o := Options{Bus: b, Cell: "main"}
			s, err := NewSender(o)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 250 {
				s.Send(change(fmt.Sprint("r", i)))
			}
			ctx, cancel := context.WithCancel(t.Context())
			go s.Run(ctx)
			synctest.Wait()
			var sizes []int
			for _, ids := range b.published() {
				sizes = append(sizes, len(ids))
			}
			if diff := cmp.Diff([]int{100, 100, 50}, sizes); diff != "" {
				t.Errorf("batches (-want +got):\n%s", diff)
			}
			cancel()
			synctest.Wait()
		})
	})
	t.Run("those without an outcome are told again, with the same id, and the others are not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log outside.Log
			b := &away{outcomes: func(call int, ids []string) []error {
				out := all(len(ids), nil)
				if i := slices.Index(ids, "b/3"); i >= 0 && call < 4 {
					out[i] = errAway
				}
				return out
			}}
			s, err := NewSender(Options{Bus: b, Cell: "main", Log: log.Logger()})
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"a", "b", "c"} {
				s.Send(change(id))
			}
			ctx, cancel := context.WithCancel(t.Context())
			began := time.Now()
			go s.Run(ctx)
			time.Sleep(time.Minute) // the bubble's
			synctest.Wait()
			want := [][]string{{"a/3", "b/3", "c/3"}, {"b/3"}, {"b/3"}, {"b/3"}}
			if diff := cmp.Diff(want, b.published()); diff != "" {
				t.Errorf("published (-want +got):\n%s", diff)
			}
			if got := s.Stats(); got != (Stats{Sent: 3}) || strings.Count(log.String(), "wait for the bus") != 3 {
				t.Errorf("counts %+v after %v, log:\n%s", got, time.Since(began), &log)
			}
			cancel()
			synctest.Wait()
		})
	})
	t.Run("one that the bus refuses is lost, counted and logged, and holds up no other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log outside.Log
			b := &away{outcomes: func(_ int, ids []string) []error {
				out := all(len(ids), nil)
				out[0] = fmt.Errorf("message: %w", bus.ErrTooLarge)
				return out
			}}
			s, err := NewSender(Options{Bus: b, Cell: "main", Log: log.Logger()})
			if err != nil {
				t.Fatal(err)
			}
			s.Send(change("a"))
			s.Send(change("b"))
			ctx, cancel := context.WithCancel(t.Context())
			go s.Run(ctx)
			synctest.Wait()
			if got := s.Stats(); got != (Stats{Sent: 1, Lost: 1}) || strings.Count(log.String(), "lost") == 0 {
				t.Errorf("counts %+v, log:\n%s", got, &log)
			}
			cancel()
			synctest.Wait()
		})
	})
	t.Run("what comes while the queue is full is lost, counted, and logged now and then", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log outside.Log
			b := &away{outcomes: func(_ int, ids []string) []error { return all(len(ids), errAway) }}
			s, stop := start(t, Options{Bus: b, MaxQueued: 10, LastWait: time.Second, Log: log.Logger()})
			for i := range 110 {
				s.Send(change(fmt.Sprint("r", i)))
			}
			synctest.Wait()
			if got := s.Stats(); got != (Stats{Lost: 100, Queued: 10}) {
				t.Errorf("counts %+v", got)
			}
			if n := strings.Count(log.String(), "the queue is full"); n != 7 { // 1, 2, 4, 8, 16, 32, 64
				t.Errorf("logged %d times:\n%s", n, &log)
			}
			began := time.Now()
			stop()
			if got := s.Stats(); got != (Stats{Lost: 110}) || time.Since(began) != time.Second {
				t.Errorf("after the end, %v later: counts %+v", time.Since(began), got)
			}
		})
	})
	t.Run("what waits when the process ends is told before", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &away{outcomes: func(call int, ids []string) []error {
				if call == 1 {
					return all(len(ids), errAway)
				}
				return all(len(ids), nil)
			}}
			s, stop := start(t, Options{Bus: b})
			s.Send(change("a"))
			synctest.Wait()
			stop()
			if got := s.Stats(); got != (Stats{Sent: 1}) {
				t.Errorf("counts %+v", got)
			}
			s.Send(change("b"))
			if got := s.Stats(); got != (Stats{Sent: 1, Lost: 1}) {
				t.Errorf("counts %+v: an event after the end is lost", got)
			}
		})
	})
	t.Run("a sender needs a bus and a name", func(t *testing.T) {
		if _, err := NewSender(Options{Cell: "main"}); err == nil {
			t.Error("no bus, and no error")
		}
		if _, err := NewSender(Options{Bus: &away{}, Cell: "a b"}); err == nil {
			t.Error("no name, and no error")
		}
	})
}
