package bustest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/bus"
)

func testArrives(t *testing.T, h Harness) {
	const n = 100
	br := h.New(t, topic)
	first, second := br.open(t), br.open(t)
	want := map[string]bus.Message{}
	messages := make([]bus.Message, n)
	for i, name := range series("m", n) {
		messages[i] = message(name)
		messages[i].Attributes["é \n"] = "ü, \x00 and more"
		messages[i].Data = bytes.Repeat([]byte{byte(i), 0, 0xff}, i*10)
		want[name] = messages[i]
	}
	began := time.Now()
	l := newLedger()
	handle := func(_ context.Context, d *bus.Delivery) error {
		got := bus.Message{Attributes: d.Attributes, Data: d.Data}
		if diff := cmp.Diff(want[name(d)], got, cmp.Transformer("empty", func(b []byte) string { return string(b) })); diff != "" {
			t.Errorf("%s arrived changed (-sent +arrived):\n%s", name(d), diff)
		}
		if d.ID == "" || d.PublishedAt.Before(began.Add(-time.Minute)) || d.PublishedAt.After(time.Now().Add(time.Minute)) {
			t.Errorf("%s has id %q and was published at %v", name(d), d.ID, d.PublishedAt)
		}
		d.Data, d.Attributes["name"] = nil, name(d)
		l.note(name(d))
		return nil
	}
	receive(t, first, topic, 4, handle)
	receive(t, second, topic, 4, handle)
	for i, err := range first.Publish(t.Context(), topic, messages) {
		if err != nil {
			t.Fatalf("publish %d: %v", i, err)
		}
	}
	l.until(t, series("m", n)...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total > n+n/4 {
		t.Errorf("%d messages came %d times", n, l.total)
	}
}

func testNilAcknowledges(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	publish(t, b, topic, series("m", 20)...)
	l := newLedger()
	r := receive(t, b, topic, 3, l.ack)
	l.until(t, series("m", 20)...)
	r.stop()
	nothingLeft(t, br, b, topic)
}

func testErrorRedelivers(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	publish(t, b, topic, "m")
	again := make(chan struct{})
	l := newLedger()
	r := receive(t, b, topic, 1, func(_ context.Context, d *bus.Delivery) error {
		n := l.note("m")
		if d.Attempt != 0 && d.Attempt < n {
			t.Errorf("delivery %d says that it is number %d", n, d.Attempt)
		}
		if n == 1 {
			d.Attributes["name"] = "changed by its first handler"
			return errOften
		}
		if name(d) != "m" {
			t.Errorf("the second delivery is named %q", name(d))
		}
		if n == 2 {
			close(again)
		}
		return nil
	})
	wait(t, again, "the second delivery")
	r.stop()
	nothingLeft(t, br, b, topic)
}

func testEarlyAck(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	publish(t, b, topic, "m")
	acked, end := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r := receive(t, b, topic, 1, func(_ context.Context, d *bus.Delivery) error {
		if name(d) != "m" {
			t.Errorf("%s came to a receiver without a free slot", name(d))
			return nil
		}
		d.Ack()
		d.Ack()
		once.Do(func() { close(acked) })
		<-end
		return errOften // it is too late for that
	})
	wait(t, acked, "the message")
	// It keeps its slot: what comes now is for the other receiver.
	l := newLedger()
	other := receive(t, br.open(t), topic, 1, l.ack)
	publish(t, b, topic, series("n", 5)...)
	l.until(t, series("n", 5)...)
	other.stop()
	r.cancel()
	close(end)
	r.stop()
	nothingLeft(t, br, b, topic)
}

func testSlots(t *testing.T, h Harness) {
	const n, slots = 24, 3
	br := h.New(t, topic)
	b := br.open(t)
	var running, most atomic.Int64
	var gather sync.WaitGroup // all slots are busy at once, one time
	gather.Add(slots)
	var arrivals atomic.Int64
	l := newLedger()
	receive(t, b, topic, slots, func(_ context.Context, d *bus.Delivery) error {
		now := running.Add(1)
		for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
		}
		if arrivals.Add(1) <= slots {
			gather.Done()
			gather.Wait()
		}
		running.Add(-1)
		l.note(name(d))
		return nil
	})
	publish(t, b, topic, series("m", n)...)
	l.until(t, series("m", n)...)
	if got := most.Load(); got != slots {
		t.Errorf("%d handlers ran at a time, want %d", got, slots)
	}
}

// testFree: eight messages, two receivers of one slot. One takes a message and does not end; the others must all come to
// the other one.
func testFree(t *testing.T, h Harness) { free(t, h, false) }

func testFreeAfterAck(t *testing.T, h Harness) { free(t, h, true) }

func free(t *testing.T, h Harness, early bool) {
	br := h.New(t, topic)
	b := br.open(t)
	names := series("m", 8)
	publish(t, b, topic, names...)
	l := newLedger()
	held, release := make(chan string, 100), make(chan struct{})
	var inFull atomic.Int64
	full := receive(t, b, topic, 1, func(_ context.Context, d *bus.Delivery) error {
		if n := inFull.Add(1); n > 1 {
			select {
			case <-release:
			default:
				t.Errorf("%d handlers in a receiver of one slot", n)
			}
		}
		defer inFull.Add(-1)
		l.note(name(d))
		if early {
			d.Ack()
		}
		held <- name(d)
		<-release
		return nil
	})
	select {
	case <-held:
	case <-time.After(patience):
		t.Fatal("no message came")
	}
	receive(t, br.open(t), topic, 1, l.ack)
	l.until(t, names...)
	close(release)
	full.stop()
}

func testTwice(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	publish(t, b, topic, "m", "m")
	l := newLedger()
	twice := make(chan struct{})
	receive(t, b, topic, 2, func(_ context.Context, d *bus.Delivery) error {
		if l.note(name(d)) == 2 {
			close(twice)
		}
		return nil
	})
	wait(t, twice, "the second copy")
}

func testEnd(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	publish(t, b, topic, "m")
	began, ended, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	r := receive(t, b, topic, 2, func(ctx context.Context, d *bus.Delivery) error {
		if name(d) != "m" {
			return nil
		}
		close(began)
		<-ctx.Done() // tells that it is over, and no more
		close(ended)
		<-release
		return nil
	})
	wait(t, began, "the message")
	r.cancel()
	wait(t, ended, "the end of the handler's context")
	select {
	case <-r.done:
		t.Error("receive ended before its handler")
	default:
	}
	close(release)
	r.stop()
	nothingLeft(t, br, b, topic) // nil acknowledged it, late as it was
}

func testGivenBack(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	names := series("m", 6)
	publish(t, b, topic, names...)
	l := newLedger()
	began, release := make(chan struct{}, 100), make(chan struct{})
	r := receive(t, b, topic, 1, func(_ context.Context, d *bus.Delivery) error {
		l.note(name(d))
		began <- struct{}{}
		<-release
		return nil
	})
	select {
	case <-began:
	case <-time.After(patience):
		t.Fatal("no message came")
	}
	r.cancel()
	close(release)
	r.stop()
	receive(t, br.open(t), topic, 3, l.ack)
	l.until(t, names...)
}

func testFailing(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	publish(t, b, topic, series("bad", 10)...)
	l := newLedger()
	receive(t, b, topic, 2, func(_ context.Context, d *bus.Delivery) error {
		l.note(name(d))
		if name(d)[0] == 'b' {
			return errOften
		}
		return nil
	})
	l.until(t, series("bad", 10)...)
	publish(t, b, topic, series("good", 10)...)
	l.until(t, series("good", 10)...)
}

func testKnown(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	for range 20 { // the same five, over and over
		publish(t, b, topic, series("known", 5)...)
	}
	publish(t, b, topic, series("new", 50)...)
	l := newLedger()
	receive(t, b, topic, 10, l.ack)
	l.until(t, series("new", 50)...)
}

func testPoison(t *testing.T, h Harness) {
	br := h.New(t, topic)
	b := br.open(t)
	bad := bus.Message{Attributes: map[string]string{"name": "bad", "run": "r-1"}, Data: []byte("as it was")}
	if err := b.Publish(t.Context(), topic, []bus.Message{bad})[0]; err != nil {
		t.Fatal(err)
	}
	publish(t, b, topic, "good")
	l, letters := newLedger(), make(chan *bus.Delivery, 100)
	r := receive(t, b, topic, 2, func(_ context.Context, d *bus.Delivery) error {
		l.note(name(d))
		if name(d) == "bad" {
			return errOften
		}
		return nil
	})
	dead := receive(t, b, bus.DeadLetters, 1, func(_ context.Context, d *bus.Delivery) error {
		letters <- d
		return nil
	})
	select {
	case d := <-letters:
		if string(d.Data) != string(bad.Data) || d.Attributes["name"] != "bad" || d.Attributes["run"] != "r-1" {
			t.Errorf("the dead letter has attributes %v, data %q", d.Attributes, d.Data)
		}
	case <-time.After(2 * patience): // after as many pauses as there are deliveries
		t.Fatalf("no dead letter came; the message failed %d times", l.count("bad"))
	}
	l.until(t, "good")
	// The broker's count is not exact.
	if n := l.count("bad"); n < 1 || n > br.MaxDeliveries+1 || (!br.Ignorant && n < br.MaxDeliveries-1) {
		t.Errorf("it was delivered %d times, want about %d", n, br.MaxDeliveries)
	}
	dead.stop()
	r.stop()
	nothingLeft(t, br, b, topic)
}

func testCrowd(t *testing.T, h Harness) {
	const parties, each = 4, 50
	br := h.New(t, topic)
	l := newLedger()
	var all []string
	var publishers sync.WaitGroup
	for p := range parties {
		b := br.open(t)
		receive(t, b, topic, 2, l.ack)
		names := series(fmt.Sprintf("p%d-", p), each)
		all = append(all, names...)
		publishers.Go(func() {
			for _, name := range names {
				if err := b.Publish(t.Context(), topic, []bus.Message{message(name)})[0]; err != nil {
					t.Errorf("publish %s: %v", name, err)
				}
			}
		})
	}
	publishers.Wait()
	l.until(t, all...)
}
