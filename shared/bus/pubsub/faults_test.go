package pubsub

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/outside"
)

// wire stands between a bus and its broker: it counts requests by their method, and makes them fail.
type wire struct {
	mu    sync.Mutex
	count map[string]int

	// before and after a short request; an error is what the bus sees instead of the outcome.
	before, after func(method string, req any) error
	// opens before a stream is opened, n-th of this bus.
	opens func(n int) error
	// comes with each response of a stream; an error breaks it, and held keeps the response back for ever.
	comes func(n int, res *pubsubpb.StreamingPullResponse) error
	// pongs: pings are answered here, on streams up to this one.
	pongs int
}

func (w *wire) saw(method string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == nil {
		w.count = map[string]int{}
	}
	w.count[method]++
	return w.count[method]
}

// requests are the counts so far, and begin anew.
func (w *wire) requests() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := maps.Clone(w.count)
	clear(w.count)
	return count
}

func (w *wire) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(w.unary), grpc.WithChainStreamInterceptor(w.stream)}
}

func (w *wire) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	method = path.Base(method)
	w.saw(method)
	if w.before != nil {
		if err := w.before(method, req); err != nil {
			return err
		}
	}
	err := invoke(ctx, "/google.pubsub.v1."+service(method)+"/"+method, req, reply, cc, opts...)
	if err == nil && w.after != nil {
		return w.after(method, req)
	}
	return err
}

func service(method string) string {
	if strings.Contains(method, "Topic") || method == "Publish" {
		return "Publisher"
	}
	return "Subscriber"
}

func (w *wire) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	n := w.saw(path.Base(method))
	if w.opens != nil {
		if err := w.opens(n); err != nil {
			return nil, err
		}
	}
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &wired{ClientStream: s, wire: w, n: n, pong: make(chan struct{}, 100)}, nil
}

// wired is a stream with a wire between.
type wired struct {
	grpc.ClientStream
	wire *wire
	n    int
	pong chan struct{}
}

func (s *wired) SendMsg(m any) error {
	if r := m.(*pubsubpb.StreamingPullRequest); r.Subscription == "" && s.wire.pongs > 0 {
		if s.n <= s.wire.pongs {
			select {
			case s.pong <- struct{}{}:
			default:
			}
		}
		return nil
	}
	return s.ClientStream.SendMsg(m)
}

func (s *wired) RecvMsg(m any) error {
	if s.wire.pongs > 0 {
		select { // one pong, then silence: what the broker sends is not read
		case <-s.pong:
			s.pong = nil
			m.(*pubsubpb.StreamingPullResponse).Reset()
			return nil
		case <-s.Context().Done():
			return status.FromContextError(s.Context().Err()).Err()
		case <-later(s.n > s.wire.pongs):
		}
	}
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	if s.wire.comes != nil {
		return s.wire.comes(s.n, m.(*pubsubpb.StreamingPullResponse))
	}
	return nil
}

// later is ready at once, or never.
func later(now bool) <-chan struct{} {
	if !now {
		return nil
	}
	c := make(chan struct{})
	close(c)
	return c
}

var (
	errAway   = status.Error(codes.Unavailable, "the service is away")
	errDenied = status.Error(codes.PermissionDenied, "not for you")
)

const topic bus.Topic = "pool-checkers"

var topics = []bus.Topic{topic}

func TestPublishFaults(t *testing.T) {
	t.Run("a message whose reply was lost is sent again, and there twice", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{}
		lost := 0
		w.after = func(method string, _ any) error {
			if method == "Publish" && lost == 0 {
				lost++
				return errAway
			}
			return nil
		}
		b := br.declared(t, Options{}, topics, w.options()...)
		publish(t, b, topic, "m")
		if n := len(br.fake.Messages()); n != 2 {
			t.Errorf("the broker has %d copies, want 2", n)
		}
	})
	t.Run("a message without a reply in time has an unknown outcome", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		ctx, cancel := context.WithCancel(t.Context())
		w := &wire{after: func(method string, _ any) error {
			if method == "Publish" {
				cancel()
				return errAway
			}
			return nil
		}}
		b := br.declared(t, Options{}, topics, w.options()...)
		err := b.Publish(ctx, topic, one("m"))[0]
		for _, known := range []error{bus.ErrTooLarge, bus.ErrInvalid, bus.ErrNoTopic, bus.ErrClosed} {
			if err == nil || errors.Is(err, known) {
				t.Errorf("got %v, want an error of no certain meaning", err)
			}
		}
		if n := len(br.fake.Messages()); n == 0 {
			t.Error("it did not go, though, and the test proves nothing")
		}
	})
	t.Run("an outage is waited out, and ends as an outcome when it lasts", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{}
		away := true
		w.before = func(method string, _ any) error {
			if method == "Publish" && away {
				return errAway
			}
			return nil
		}
		b := br.declared(t, Options{}, topics, w.options()...)
		b.times.publish = 300 * time.Millisecond
		if err := b.Publish(t.Context(), topic, one("m"))[0]; err == nil || w.requests()["Publish"] < 2 {
			t.Errorf("got %v, want an error after several tries", err)
		}
	})
	t.Run("messages that come together go together, and each has its outcome", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{}
		b := br.declared(t, Options{}, topics, w.options()...)
		w.requests()
		messages := make([]bus.Message, 250)
		for i := range messages {
			messages[i] = one("m")[0]
		}
		messages[100].Data = make([]byte, bus.MaxData+1)
		for i, err := range b.Publish(t.Context(), topic, messages) {
			if (i == 100) != errors.Is(err, bus.ErrTooLarge) || i != 100 && err != nil {
				t.Errorf("message %d: got %v", i, err)
			}
		}
		// 100 a request, and fewer where the machine is so busy that their time was over first.
		if n := w.requests()["Publish"]; n < 3 || n > 25 {
			t.Errorf("%d requests for 249 messages", n)
		}
	})
}

// names collects what handlers saw.
func collect() (handle func(context.Context, *bus.Delivery) error, seen chan string) {
	seen = make(chan string, 1000)
	return func(_ context.Context, d *bus.Delivery) error {
		seen <- d.Attributes["name"]
		return nil
	}, seen
}

func TestStreamFaults(t *testing.T) {
	t.Run("streams that do not open are tried again, and told of", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		// The client itself tries again on this code, the driver on the next.
		w := &wire{opens: func(n int) error {
			return map[int]error{1: errAway, 2: status.Error(codes.Unknown, "strange"), 3: status.Error(codes.Canceled, "stranger")}[n]
		}}
		l := new(outside.Log)
		b := br.declared(t, Options{Log: l.Logger()}, topics, w.options()...)
		handle, seen := collect()
		stop := receive(t, b, topic, 1, handle)
		publish(t, b, topic, "m")
		next(t, seen, "the message")
		if err := stop(); err != nil {
			t.Error(err)
		}
		if l.Count("cannot receive") == 0 || l.Count("receiving again") != 1 {
			t.Errorf("the log says:\n%s", l)
		}
	})
	t.Run("a stream that breaks is opened again, and what it took with it comes after its lease", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		broke := make(chan struct{})
		w := &wire{comes: func(n int, res *pubsubpb.StreamingPullResponse) error {
			if n == 1 && len(res.ReceivedMessages) > 0 {
				close(broke)
				return errAway
			}
			return nil
		}}
		b := br.declared(t, Options{}, topics, w.options()...)
		handle, seen := collect()
		receive(t, b, topic, 1, handle)
		publish(t, b, topic, "lost on its way")
		next(t, broke, "the break")
		publish(t, b, topic, "new")
		if got := next(t, seen, "a new message"); got != "new" {
			t.Errorf("got %q", got)
		}
		br.forward(DefaultAckDeadline + time.Second)
		if got := next(t, seen, "the old message"); got != "lost on its way" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("streams that the server closes are opened again", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		br.fake.SetStreamTimeout(50 * time.Millisecond)
		w := &wire{}
		b := br.declared(t, Options{}, topics, w.options()...)
		handle, seen := collect()
		receive(t, b, topic, 4, handle)
		outside.Eventually(t, patience, "the third stream", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.count["StreamingPull"] >= 3
		})
		br.fake.SetStreamTimeout(0)
		publish(t, b, topic, "m")
		// One that was sent into a closing stream comes after its lease.
		br.forward(DefaultAckDeadline + time.Second)
		next(t, seen, "a message")
	})
	t.Run("a stream on which the server does not answer any more is opened again", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{pongs: 1}
		l := new(outside.Log)
		b := br.declared(t, Options{Log: l.Logger()}, topics, w.options()...)
		b.times.ping, b.times.silence = 20*time.Millisecond, 50*time.Millisecond
		handle, seen := collect()
		receive(t, b, topic, 1, handle)
		outside.Eventually(t, patience, "the second stream", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.count["StreamingPull"] >= 2
		})
		publish(t, b, topic, "m")
		br.forward(DefaultAckDeadline + time.Second)
		next(t, seen, "a message")
	})
	t.Run("who may not receive is told so", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{opens: func(int) error { return errDenied }}
		b := br.declared(t, Options{}, topics, w.options()...)
		handle, _ := collect()
		err := b.Receive(t.Context(), topic, bus.Receiver{Slots: 1, Handle: handle})
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "subscriptions/errand-pool-checkers") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a subscription that is deleted ends its receivers", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{opens: func(n int) error {
			if n > 1 {
				return status.Error(codes.NotFound, "gone")
			}
			return nil
		}, comes: func(int, *pubsubpb.StreamingPullResponse) error { return errAway }}
		b := br.declared(t, Options{}, topics, w.options()...)
		publish(t, b, topic, "m")
		handle, _ := collect()
		if err := b.Receive(t.Context(), topic, bus.Receiver{Slots: 1, Handle: handle}); !errors.Is(err, bus.ErrNoTopic) {
			t.Errorf("got %v", err)
		}
	})
}

func TestSettleFaults(t *testing.T) {
	t.Run("an acknowledgement is sent until it is answered", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{}
		tries := 0
		w.before = func(method string, _ any) error {
			if method == "Acknowledge" {
				if tries++; tries < 4 {
					return map[int]error{1: errAway, 2: status.Error(codes.Internal, "oops"), 3: status.Error(codes.DeadlineExceeded, "late")}[tries]
				}
			}
			return nil
		}
		b := br.declared(t, Options{}, topics, w.options()...)
		publish(t, b, topic, "m")
		handle, seen := collect()
		stop := receive(t, b, topic, 1, handle)
		next(t, seen, "the message")
		if err := stop(); err != nil {
			t.Error(err)
		}
		if m := br.fake.Messages()[0]; m.Acks != 1 {
			t.Errorf("acknowledged %d times, want 1", m.Acks)
		}
	})
	t.Run("one that is refused is told of, and its message comes again", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{}
		refused := make(chan struct{})
		var once sync.Once
		w.before = func(method string, _ any) error {
			if method == "Acknowledge" {
				select {
				case <-refused:
				default:
					once.Do(func() { close(refused) })
					return errDenied
				}
			}
			return nil
		}
		l := new(outside.Log)
		b := br.declared(t, Options{Log: l.Logger()}, topics, w.options()...)
		publish(t, b, topic, "m")
		handle, seen := collect()
		receive(t, b, topic, 1, handle)
		next(t, seen, "the message")
		next(t, refused, "the refusal")
		outside.Eventually(t, patience, "the complaint", func() bool { return l.Count("not told") == 1 })
		br.forward(DefaultAckDeadline + time.Second)
		next(t, seen, "the message, again")
	})
	t.Run("a handler that is slow keeps its message by renewals, and one copy is acknowledged once", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{}
		renewed := make(chan *pubsubpb.ModifyAckDeadlineRequest, 100)
		w.before = func(_ string, req any) error {
			if r, ok := req.(*pubsubpb.ModifyAckDeadlineRequest); ok {
				renewed <- r
			}
			return nil
		}
		b := br.declared(t, Options{}, topics, w.options()...)
		b.times.lease, b.times.look = 2*time.Second, 20*time.Millisecond
		publish(t, b, topic, "m")
		calls := make(chan struct{}, 10)
		release := make(chan struct{})
		stop := receive(t, b, topic, 1, func(context.Context, *bus.Delivery) error {
			calls <- struct{}{}
			<-release
			return nil
		})
		for range 3 { // three halves of a lease
			r := next(t, renewed, "a renewal")
			if r.AckDeadlineSeconds != 2 || len(r.AckIds) != 1 {
				t.Errorf("renewed %d messages for %d s", len(r.AckIds), r.AckDeadlineSeconds)
			}
		}
		close(release)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if m := br.fake.Messages()[0]; m.Acks != 1 || m.Deliveries != 1 || len(calls) != 1 {
			t.Errorf("acknowledged %d times, delivered %d times, handled %d times; want 1 each", m.Acks, m.Deliveries, len(calls))
		}
	})
	t.Run("while renewals stall, copies of what handlers have call no second one: eight messages, eight calls, eight acknowledgements", func(t *testing.T) { // case F08
		t.Parallel()
		br := newFake(t)
		w := &wire{}
		stalled, recovered := make(chan struct{}, 100), make(chan struct{})
		w.before = func(_ string, req any) error {
			if r, ok := req.(*pubsubpb.ModifyAckDeadlineRequest); ok && r.AckDeadlineSeconds > 0 {
				stalled <- struct{}{}
				<-recovered
			}
			return nil
		}
		copies := make(chan struct{}, 100)
		first := map[string]bool{}
		w.comes = func(_ int, res *pubsubpb.StreamingPullResponse) error {
			for _, m := range res.ReceivedMessages {
				if name := m.Message.Attributes["name"]; first[name] {
					copies <- struct{}{}
				} else {
					first[name] = true
				}
			}
			return nil
		}
		b := br.declared(t, Options{MaxDeliveries: 100}, topics, w.options()...)
		b.times.lease, b.times.look = 2*time.Second, 20*time.Millisecond
		names := []string{"0", "1", "2", "3", "4", "5", "6", "7"}
		var mu sync.Mutex
		calls := map[string]int{}
		began, release := make(chan struct{}, 100), make(chan struct{})
		stop := receive(t, b, topic, 8, func(_ context.Context, d *bus.Delivery) error {
			mu.Lock()
			calls[d.Attributes["name"]]++
			mu.Unlock()
			began <- struct{}{}
			<-release
			return nil
		})
		publish(t, b, topic, names...)
		for range names {
			next(t, began, "a message")
		}
		next(t, stalled, "a renewal")
		br.forward(12 * time.Second)
		for range names {
			next(t, copies, "a copy")
		}
		close(recovered)
		close(release)
		if err := stop(); err != nil {
			t.Error(err)
		}
		want := map[string]int{}
		for _, name := range names {
			want[name] = 1
		}
		if diff := cmp.Diff(want, calls); diff != "" {
			t.Errorf("calls of the handler (-want +got):\n%s", diff)
		}
		for _, m := range br.fake.Messages() {
			if m.Acks != 1 {
				t.Errorf("message %s was acknowledged %d times", m.Attributes["name"], m.Acks)
			}
		}
	})
	t.Run("what is held for too long comes again, and is told of", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		l := new(outside.Log)
		b := br.declared(t, Options{Log: l.Logger(), MaxHold: 50 * time.Millisecond}, topics)
		b.times.look = 10 * time.Millisecond
		publish(t, b, topic, "m")
		calls, release := make(chan int, 10), make(chan struct{})
		stop := receive(t, b, topic, 2, func(_ context.Context, d *bus.Delivery) error {
			calls <- d.Attempt
			<-release
			return nil
		})
		next(t, calls, "the message")
		outside.Eventually(t, patience, "the complaint", func() bool { return l.Count("too long") >= 1 })
		br.forward(DefaultAckDeadline + time.Second)
		if n := next(t, calls, "the message, again"); n != 2 {
			t.Errorf("it says that it is delivery %d", n)
		}
		close(release)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// pauses returns for how long failed messages were put away, in order.
func pauses(w *wire) (get func() []int32) {
	var mu sync.Mutex
	var all []int32
	w.after = func(_ string, req any) error { // when the broker knows
		if r, ok := req.(*pubsubpb.ModifyAckDeadlineRequest); ok {
			mu.Lock()
			all = append(all, r.AckDeadlineSeconds)
			mu.Unlock()
		}
		return nil
	}
	return func() []int32 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

func TestDeadLetters(t *testing.T) { // case F09
	t.Run("a message that cannot become a dead letter is kept, paced, and complained of", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		// The broker is far from giving up, as one that may not write to the dead letters never gets there.
		br.declared(t, Options{MaxDeliveries: 100}, topics)
		w, l := &wire{}, new(outside.Log)
		get := pauses(w)
		b := br.open(t, Options{MaxDeliveries: 5, Log: l.Logger()}, w.options()...)
		publish(t, b, topic, "m")
		attempts := make(chan int, 100)
		receive(t, b, topic, 4, func(_ context.Context, d *bus.Delivery) error {
			attempts <- d.Attempt
			return errors.New("fails")
		})
		want := []int32{1, 2, 4, 8, 16, 32, 60, 60}
		for i := range want {
			if n := next(t, attempts, "a delivery"); n != i+1 {
				t.Errorf("delivery %d says that it is number %d", i+1, n)
			}
			outside.Eventually(t, patience, "its pause", func() bool { return len(get()) == i+1 })
			br.forward(time.Duration(want[i]-1) * time.Second)
			if len(attempts) > 0 {
				t.Errorf("delivery %d came before its pause was over", i+2)
			}
			br.forward(2 * time.Second)
		}
		if diff := cmp.Diff(want, get()[:len(want)]); diff != "" {
			t.Errorf("pauses in seconds (-want +got):\n%s", diff)
		}
		if n := l.Count("has not become a dead letter"); n < 3 || n > 4 {
			t.Errorf("%d complaints, want one for each delivery after the fifth:\n%s", n, l)
		}
	})
	t.Run("a broker whose count starts over gets its message handled all the same", func(t *testing.T) {
		t.Parallel()
		br := newFake(t)
		w := &wire{comes: func(_ int, res *pubsubpb.StreamingPullResponse) error {
			for _, m := range res.ReceivedMessages {
				m.DeliveryAttempt = (m.DeliveryAttempt-1)%3 + 1
			}
			return nil
		}}
		get := pauses(w)
		b := br.declared(t, Options{MaxDeliveries: 100}, topics, w.options()...)
		publish(t, b, topic, "m")
		deliveries := make(chan int, 100)
		n := 0
		receive(t, b, topic, 4, func(_ context.Context, d *bus.Delivery) error {
			n++
			deliveries <- d.Attempt
			if n < 6 {
				return errors.New("fails")
			}
			return nil
		})
		for i, want := range []int{1, 2, 3, 1, 2, 3} {
			if got := next(t, deliveries, "a delivery"); got != want {
				t.Errorf("delivery %d says that it is number %d, want %d", i+1, got, want)
			}
			if i < 5 {
				outside.Eventually(t, patience, "its pause", func() bool { return len(get()) == i+1 })
				br.forward(5 * time.Second)
			}
		}
		if diff := cmp.Diff([]int32{1, 2, 4, 1, 2}, get()); diff != "" {
			t.Errorf("pauses in seconds (-want +got):\n%s", diff)
		}
	})
}
