package pubsub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/outside"
)

// A plain message, alone, costs two requests. Both brokers must agree.
func TestRequests(t *testing.T) {
	for where, newBroker := range map[string]func(testing.TB) *broker{"the fake": newFake, "the emulator": newEmulated} {
		const n = 20
		for sentence, c := range map[string]struct {
			slots int
			early bool
			want  map[string]int
		}{
			"a message costs a publish and an acknowledgement": {
				slots: 1, want: map[string]int{"Publish": n, "Acknowledge": n},
			},
			"one that is acknowledged early costs no more while a slot is left": {
				slots: 2, early: true, want: map[string]int{"Publish": n, "Acknowledge": n},
			},
			"one that is acknowledged early and takes the last slot costs a stream": {
				slots: 1, early: true, want: map[string]int{"Publish": n, "Acknowledge": n, "StreamingPull": n},
			},
		} {
			t.Run(sentence+", at "+where, func(t *testing.T) {
				t.Parallel()
				br := newBroker(t)
				w := &wire{}
				b := br.declared(t, Options{}, topics, w.options()...)
				began, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
				stop := receive(t, b, topic, c.slots, func(_ context.Context, d *bus.Delivery) error {
					if c.early {
						d.Ack()
					}
					began <- struct{}{}
					<-end
					ended <- struct{}{}
					return nil
				})
				pass := func(name string) {
					publish(t, b, topic, name)
					next(t, began, "a message")
					if c.early { // it goes at once
						outside.Eventually(t, patience, "the acknowledgement", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.count["Acknowledge"] >= 1 })
					}
					end <- struct{}{}
					next(t, ended, "its end")
				}
				pass("the first, which opens a stream")
				outside.Eventually(t, patience, "the acknowledgement", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.count["Acknowledge"] == 1 })
				if c.want["StreamingPull"] > 0 {
					outside.Eventually(t, patience, "the second stream", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.count["StreamingPull"] == 2 })
				}
				outside.Eventually(t, patience, "its answer", func() bool { return b.Stats().Acknowledged == 1 })
				w.requests()
				before := b.Stats()
				for i := range n {
					pass(fmt.Sprint(i))
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				sum := b.Stats()
				counts := []int64{sum.Published - before.Published, sum.Delivered - before.Delivered, sum.Acknowledged - before.Acknowledged, sum.Bytes - before.Bytes}
				if diff := cmp.Diff([]int64{n, n, n, 2 * 1000 * n}, counts); diff != "" {
					t.Errorf("published, delivered, acknowledged and billed (-want +got):\n%s", diff)
				}
				if got := sum.Requests["Publish"] - before.Requests["Publish"]; got != n {
					t.Errorf("%d requests to publish are counted, want %d", got, n)
				}
				got := w.requests()
				for method, most := range c.want {
					if got[method] > most {
						t.Errorf("%d of %s for %d messages, want at most %d", got[method], method, n, most)
					}
					delete(got, method)
				}
				if got["StreamingPull"] <= 2 { // a broker may end a stream when it likes
					delete(got, "StreamingPull")
				}
				if len(got) > 0 {
					t.Errorf("requests that nothing needs: %v", got)
				}
			})
		}
	}
}

// A broker that sends more than it is asked for, as Google's emulator does, makes a message go round once or twice, not
// once for each slot that comes free.
func TestOverfullBroker(t *testing.T) {
	t.Parallel()
	const n = 200
	w := &wire{}
	b := newEmulated(t).declared(t, Options{MaxDeliveries: 100}, topics, w.options()...)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	publish(t, b, topic, names...)
	seen := make(chan int, 2*n)
	stop := receive(t, b, topic, 2, func(_ context.Context, d *bus.Delivery) error {
		seen <- d.Attempt
		return nil
	})
	for range names {
		if attempt := next(t, seen, "a message"); attempt > 4 {
			t.Errorf("a message came with its delivery %d", attempt)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if got := w.requests(); got["StreamingPull"] > 10 || got["Pull"] == 0 {
		t.Errorf("requests: %v; want the backlog pulled by number", got)
	}
}

func TestFits(t *testing.T) {
	for sentence, c := range map[string]struct {
		limit, out, free int
		want             bool
	}{
		"a new stream fits": {10, 0, 10, true},
		"handlers that have not acknowledged change nothing":            {10, 7, 3, true},
		"nor when all slots are taken":                                  {10, 10, 0, true},
		"all slots taken, and the server would send more":               {10, 9, 0, false},
		"one slot is left, and the server would send more":              {10, 0, 1, true},
		"a slot is free, and pausing messages take the stream's room":   {1, 1, 1, false},
		"slots came free since, and the stream asks for half of them":   {2, 0, 4, false},
		"slots came free since, and the stream asks for more than half": {3, 0, 5, true},
	} {
		if got := (&stream{limit: c.limit, out: c.out}).fits(c.free); got != c.want {
			t.Errorf("%s: got %v", sentence, got)
		}
	}
}

func TestPause(t *testing.T) {
	b := &Bus{opts: Options{Pause: func(n int) time.Duration { return time.Duration(n) * 700 * time.Millisecond }}}
	var got []time.Duration
	for _, n := range []int{0, 1, 2, 10, 1e6} {
		got = append(got, b.pause(n))
	}
	want := []time.Duration{time.Second, time.Second, 2 * time.Second, 7 * time.Second, 10 * time.Minute}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
}

func TestOptions(t *testing.T) {
	for sentence, c := range map[string]struct {
		o    Options
		want string // in the error
	}{
		"a project is enough":           {Options{Project: "acme-prod"}, ""},
		"a project of a domain":         {Options{Project: "example.com:acme"}, ""},
		"no project":                    {Options{}, "project"},
		"a project with a slash":        {Options{Project: "acme/prod"}, "project"},
		"a prefix":                      {Options{Project: "acme-prod", Prefix: "cell-7"}, ""},
		"a prefix of capitals":          {Options{Project: "acme-prod", Prefix: "Cell"}, "prefix"},
		"a prefix that ends in -":       {Options{Project: "acme-prod", Prefix: "cell-"}, "prefix"},
		"too short a deadline":          {Options{Project: "acme-prod", AckDeadline: time.Second}, "10s to 10m"},
		"too long a deadline":           {Options{Project: "acme-prod", AckDeadline: time.Hour}, "10s to 10m"},
		"a deadline of broken seconds":  {Options{Project: "acme-prod", AckDeadline: 10500 * time.Millisecond}, "whole seconds"},
		"fewer deliveries than allowed": {Options{Project: "acme-prod", MaxDeliveries: 4}, "5 to 100"},
		"more deliveries than allowed":  {Options{Project: "acme-prod", MaxDeliveries: 101}, "5 to 100"},
		"a hold before it begins":       {Options{Project: "acme-prod", MaxHold: -1}, "hold"},
	} {
		err := c.o.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", sentence, err, c.want)
		}
		if c.want != "" {
			if _, err := Open(t.Context(), c.o); err == nil {
				t.Errorf("%s: opened all the same", sentence)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for place, want := range map[string]Options{
		"acme-prod":               {Project: "acme-prod"},
		"acme-prod/cell-7":        {Project: "acme-prod", Prefix: "cell-7"},
		"example.com:acme/cell-7": {Project: "example.com:acme", Prefix: "cell-7"},
	} {
		got, err := Parse(place)
		if err != nil || got.Project != want.Project || got.Prefix != want.Prefix {
			t.Errorf("%q: got project %q, prefix %q, %v", place, got.Project, got.Prefix, err)
		}
	}
	for _, place := range []string{"", "acme-prod/", "/cell-7", "acme-prod/cell-7/topic", "acme prod"} {
		if o, err := Parse(place); err == nil {
			t.Errorf("%q: taken as project %q, prefix %q", place, o.Project, o.Prefix)
		}
	}
}

// Not parallel: the environment is the process's.
func TestEnvironment(t *testing.T) {
	br := newFake(t)
	t.Setenv("PUBSUB_EMULATOR_HOST", br.addr)
	b, err := Open(t.Context(), Options{Project: "acme-prod", Prefix: "cell-7"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Declare(t.Context(), topics...); err != nil {
		t.Fatal(err)
	}
	if err := b.Declare(t.Context(), topics...); err != nil {
		t.Errorf("declare again: %v", err)
	}
	publish(t, b, topic, "m")
	if m := br.fake.Messages(); len(m) != 1 || m[0].Topic != "projects/acme-prod/topics/cell-7-pool-checkers" {
		t.Errorf("the emulator has %v", m)
	}
	for _, part := range []string{"acme-prod", "cell-7", br.addr} {
		if !strings.Contains(b.Describe(), part) {
			t.Errorf("%q does not name %s", b.Describe(), part)
		}
	}
}

// Not parallel: it counts the goroutines of the process.
func TestCloseLeavesNothing(t *testing.T) {
	br := newFake(t)
	br.declared(t, Options{}, topics)
	before := goleak.IgnoreCurrent()
	b := br.open(t, Options{})
	publish(t, b, topic, "m", "n")
	handle, seen := collect()
	ended := make(chan error, 1)
	go func() { ended <- b.Receive(t.Context(), topic, bus.Receiver{Slots: 2, Handle: handle}) }()
	next(t, seen, "a message")
	next(t, seen, "the other")
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := next(t, ended, "the end"); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("got %v", err)
	}
	// The server's side of the connection ends a little later.
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// Throughput through Google's emulator, one process publishing and receiving.
func BenchmarkEmulator(b *testing.B) {
	const batch = 1000
	w := &wire{}
	bb := newEmulated(b).declared(b, Options{MaxDeliveries: 100}, topics, w.options()...)
	var handled atomic.Int64
	all := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	var target atomic.Int64
	go func() {
		ended <- bb.Receive(ctx, topic, bus.Receiver{Slots: bus.MaxSlots, Handle: func(context.Context, *bus.Delivery) error {
			if handled.Add(1) == target.Load() {
				all <- struct{}{}
			}
			return nil
		}})
	}()
	messages := make([]bus.Message, batch)
	for i := range messages {
		messages[i] = bus.Message{Attributes: map[string]string{"attempt": "r-0123456789abcdef.1", "agent": "checker"}}
	}
	w.requests()
	for b.Loop() {
		target.Add(batch)
		for _, err := range bb.Publish(ctx, topic, messages) {
			if err != nil {
				b.Fatal(err)
			}
		}
		<-all
	}
	cancel()
	<-ended
	requests := 0
	for _, n := range w.requests() {
		requests += n
	}
	b.ReportMetric(float64(handled.Load())/b.Elapsed().Seconds(), "messages/s")
	b.ReportMetric(float64(requests)/float64(handled.Load()), "requests/message")
}
