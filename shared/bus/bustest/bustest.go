// Package bustest is the one suite that every driver of the bus passes. A driver's test describes its broker in a
// [Harness] and calls [Run].
//
// Nothing in it sleeps: it waits for what must come, at most [patience], and proves that something does not come by what
// comes after it. A duplicate that a broker may make fails no test; a broker that makes them as a rule does.
package bustest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/bus"
)

// Harness makes brokers of the driver under test.
type Harness struct {
	// New returns an empty broker on which these topics exist, and the dead letters. Errors pause there as shortly as the
	// driver allows.
	New func(t *testing.T, topics ...bus.Topic) Broker
}

// Broker is where the messages of one test are.
type Broker struct {
	// Open returns another bus on the broker, as another process would. The suite closes it.
	Open func(t *testing.T) bus.Bus
	// MaxDeliveries is after how many a message that always fails becomes a dead letter. Small, for the test's sake.
	MaxDeliveries int
	// Expire makes the broker take back, now, what was delivered and neither acknowledged nor given back; nil where that
	// takes its time.
	Expire func(t *testing.T)
	// Ignorant: the broker sends more than a receiver asks for, so that giving back what is too much counts as deliveries.
	Ignorant bool
}

// patience is how long a test waits for what must come, and then fails. It is shorter than a broker's own time-out, by
// which it would take back what a driver forgot.
const patience = 20 * time.Second

// topic of the tests that need one.
const topic bus.Topic = "pool-checkers"

// Run tests what the port promises.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"every message arrives whole, at one receiver":                        testArrives,
		"what the handler returns nil for does not come again":                testNilAcknowledges,
		"what the handler returns an error for comes again":                   testErrorRedelivers,
		"what was acknowledged early does not come again, and its slot stays": testEarlyAck,
		"no more handlers run than there are slots":                           testSlots,
		"a message waits in no full receiver while another is free":           testFree,
		"nor does one wait behind a handler that acknowledged early":          testFreeAfterAck,
		"a message that was published twice comes twice":                      testTwice,
		"receive ends when its handlers have":                                 testEnd,
		"what was not handed over is given back":                              testGivenBack,
		"a message over a limit is refused, and its neighbors go":             testLimits,
		"a topic that does not exist is refused by name":                      testNoTopic,
		"a receiver without slots or handler is refused":                      testReceiver,
		"close ends every receive, and a closed bus refuses":                  testClose,
		"a message that always fails becomes a dead letter, whole":            testPoison,
		"messages that fail do not keep others waiting":                       testFailing,
		"known messages do not keep new ones waiting":                         testKnown,
		"publish gives up with its context, and the bus goes on":              testPublishCanceled,
		"many publishers and receivers at once lose nothing":                  testCrowd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, h)
		})
	}
}

// open opens a bus that is closed when its test ends.
func (br Broker) open(t *testing.T) bus.Bus {
	t.Helper()
	b := br.Open(t)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// message is one that its name tells apart.
func message(name string) bus.Message {
	return bus.Message{Attributes: map[string]string{"name": name}}
}

func name(d *bus.Delivery) string { return d.Attributes["name"] }

// publish sends messages, all of which must go.
func publish(t *testing.T, b bus.Bus, to bus.Topic, names ...string) {
	t.Helper()
	messages := make([]bus.Message, len(names))
	for i, name := range names {
		messages[i] = message(name)
	}
	for i, err := range b.Publish(t.Context(), to, messages) {
		if err != nil {
			t.Fatalf("publish %s: %v", names[i], err)
		}
	}
}

// series is n names.
func series(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + strconv.Itoa(i)
	}
	return names
}

// receiving is a Receive that goes on.
type receiving struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// receive starts one, which ends with its test at the latest.
func receive(t *testing.T, b bus.Bus, from bus.Topic, slots int, handle func(context.Context, *bus.Delivery) error) *receiving {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &receiving{t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = b.Receive(ctx, from, bus.Receiver{Slots: slots, Handle: handle})
	}()
	t.Cleanup(func() {
		cancel()
		wait(t, r.done, "the end of a Receive")
	})
	return r
}

// stop ends it, and waits until it has.
func (r *receiving) stop() {
	r.t.Helper()
	r.cancel()
	wait(r.t, r.done, "the end of a Receive")
	if r.err != nil {
		r.t.Errorf("receive: %v", r.err)
	}
}

// wait returns when done is closed, and fails the test when that takes too long.
func wait(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s did not come within %v", what, patience)
	}
}

// ledger counts what handlers saw.
type ledger struct {
	mu      sync.Mutex
	seen    map[string]int
	total   int
	changed chan struct{} // closed and made anew with each entry
}

func newLedger() *ledger { return &ledger{seen: map[string]int{}, changed: make(chan struct{})} }

// note counts a message, and returns how often it came so far.
func (l *ledger) note(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[name]++
	l.total++
	close(l.changed)
	l.changed = make(chan struct{})
	return l.seen[name]
}

func (l *ledger) count(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[name]
}

// until waits until every name was seen.
func (l *ledger) until(t *testing.T, names ...string) {
	t.Helper()
	late := time.After(patience)
	for {
		l.mu.Lock()
		missing := ""
		for _, name := range names {
			if l.seen[name] == 0 {
				missing = name
				break
			}
		}
		changed, n := l.changed, len(l.seen)
		l.mu.Unlock()
		if missing == "" {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%s did not come within %v; %d others did", missing, patience, n)
		}
	}
}

// ack handles by counting.
func (l *ledger) ack(_ context.Context, d *bus.Delivery) error {
	l.note(name(d))
	return nil
}

// nothingLeft proves that a topic keeps nothing but a message published now: it alone comes to a new receiver.
func nothingLeft(t *testing.T, br Broker, b bus.Bus, from bus.Topic) {
	t.Helper()
	if br.Expire != nil {
		br.Expire(t)
	}
	l := newLedger()
	r := receive(t, b, from, 10, l.ack)
	publish(t, b, from, "marker")
	l.until(t, "marker")
	r.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range l.seen {
		if name != "marker" {
			t.Errorf("%s came again, %d times", name, n)
		}
	}
}

var errOften = errors.New("this message fails")
