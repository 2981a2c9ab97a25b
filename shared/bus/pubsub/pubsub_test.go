package pubsub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/bustest"
	"github.com/errand-run/errand/shared/internal/emulator"
)

func TestMain(m *testing.M) { os.Exit(emulator.Main(m)) }

// projects makes each test's project another.
var projects atomic.Int64

// broker is a server with the topics of one test.
type broker struct {
	addr    string
	project string
	fake    *pstest.Server // nil for an emulator

	mu    sync.Mutex
	ahead time.Duration // of the fake's clock
}

func newFake(t testing.TB) *broker {
	t.Helper()
	s := pstest.NewServer()
	t.Cleanup(func() { _ = s.Close() })
	return &broker{addr: s.Addr, project: fmt.Sprintf("fake-%d", projects.Add(1)), fake: s}
}

func newEmulated(t testing.TB) *broker {
	t.Helper()
	return &broker{addr: emulator.PubSub(t), project: fmt.Sprintf("emulated-%d", projects.Add(1))}
}

// forward passes time at the fake.
func (br *broker) forward(d time.Duration) {
	br.mu.Lock()
	defer br.mu.Unlock()
	br.ahead += d
	ahead := br.ahead
	br.fake.SetTimeNowFunc(func() time.Time { return time.Now().Add(ahead) })
}

// open returns a bus, closed when its test ends. Options of the client come beside those that lead to the broker.
func (br *broker) open(t testing.TB, o Options, dial ...grpc.DialOption) *Bus {
	t.Helper()
	o.Project = br.project
	o.Client = []option.ClientOption{
		option.WithEndpoint(br.addr), option.WithoutAuthentication(), option.WithTelemetryDisabled(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
	for _, d := range dial {
		o.Client = append(o.Client, option.WithGRPCDialOption(d))
	}
	b, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// declared is open on a broker that has the topics.
func (br *broker) declared(t testing.TB, o Options, topics []bus.Topic, dial ...grpc.DialOption) *Bus {
	t.Helper()
	b := br.open(t, o, dial...)
	if err := b.Declare(t.Context(), topics...); err != nil {
		t.Fatal(err)
	}
	return b
}

// harness runs the suite over brokers, where errors do not pause.
func harness(newBroker func(testing.TB) *broker) bustest.Harness {
	return bustest.Harness{New: func(t *testing.T, topics ...bus.Topic) bustest.Broker {
		// The fakes send more than they are asked for, and what comes back counts as delivered: few may take it.
		o := Options{MaxDeliveries: 50, Pause: func(int) time.Duration { return 0 }}
		if strings.Contains(t.Name(), "dead_letter") {
			o.MaxDeliveries = 5
		}
		br := newBroker(t)
		br.declared(t, o, topics)
		suite := bustest.Broker{
			Open: func(t *testing.T) bus.Bus {
				b := br.open(t, o)
				if br.fake != nil { // it loses what it sends into a stream that ends, until the lease is over
					b.times.lease, b.times.look = 4*time.Second, 100*time.Millisecond
				}
				return b
			},
			MaxDeliveries: o.MaxDeliveries, Ignorant: true,
		}
		if br.fake != nil {
			suite.Expire = func(*testing.T) { br.forward(DefaultAckDeadline + time.Second) }
		}
		return suite
	}}
}

func TestConformance(t *testing.T) { bustest.Run(t, harness(newFake)) }

func TestConformanceEmulator(t *testing.T) { bustest.Run(t, harness(newEmulated)) }

func one(name string) []bus.Message {
	return []bus.Message{{Attributes: map[string]string{"name": name}}}
}

func publish(t testing.TB, b *Bus, topic bus.Topic, names ...string) {
	t.Helper()
	var messages []bus.Message
	for _, name := range names {
		messages = append(messages, one(name)...)
	}
	for _, err := range b.Publish(t.Context(), topic, messages) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// receive begins to receive, and ends with the test; stop ends it before.
func receive(t *testing.T, b *Bus, topic bus.Topic, slots int, handle func(context.Context, *bus.Delivery) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Receive(ctx, topic, bus.Receiver{Slots: slots, Handle: handle}) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

const patience = time.Minute // it passes only where a test fails

// next returns what comes within patience.
func next[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come within %v", what, patience)
		panic("unreachable")
	}
}

func TestReach(t *testing.T) {
	t.Run("a service without our topics answers", func(t *testing.T) {
		if err := newFake(t).open(t, Options{}).Reach(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("one that is not there does not, and says where it should be", func(t *testing.T) {
		br := newFake(t)
		b := br.open(t, Options{})
		_ = br.fake.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := b.Reach(ctx); err == nil || !strings.Contains(err.Error(), br.project) {
			t.Errorf("%v; want an error that names the project", err)
		}
	})
	t.Run("a bus that was closed says so", func(t *testing.T) {
		b := newFake(t).open(t, Options{})
		_ = b.Close()
		if err := b.Reach(t.Context()); !errors.Is(err, bus.ErrClosed) {
			t.Error(err)
		}
	})
}
