// Package pubsub is the bus over Google Cloud Pub/Sub, or its emulator where PUBSUB_EMULATOR_HOST names one.
//
// A topic of the port is a topic and a subscription, both named PREFIX-TOPIC. In the cloud Terraform makes them; [Bus.Declare]
// makes them for emulators and tests.
//
// # Requests
//
// A plain message costs two requests: one that publishes it and one that acknowledges it, and less than that when several
// go together. Messages come by one long-lived stream, which is asked for as many as there are free slots. It is opened
// anew when that number no longer fits: a receiver all of whose slots are taken, by handlers that acknowledged early, has
// no stream at all, and one more request when a slot is free again. An acknowledgement is sent at once; those that come
// while four requests are under way share the next.
//
// A message that comes without a free slot, from a broker that counts otherwise, is given back at once, and what is left
// is then pulled by number until nothing is. Giving back counts as a delivery, so MaxDeliveries should not be small.
//
// # Leases
//
// A message is leased to the receiver that has it, for AckDeadline, and the lease is renewed while its handler runs and
// has not acknowledged. A copy that the broker sends to the same receiver meanwhile renews the lease, and calls no second
// handler. After MaxHold, an hour, the lease is renewed no more: at most AckDeadline later the broker delivers the message
// again, to any receiver, while the first handler still runs in its slot. What that handler returns then may or may not
// settle the message. Who works longer acknowledges early.
//
// # Failures
//
// A message whose handler failed comes again after a pause that grows with the broker's count of its deliveries. The
// pause is a lease that is left to run out, so the subscription needs no retry policy, and should have none: it would
// delay what is given back for want of a slot as well. Where there is no dead-letter policy the broker does not count,
// and each pause is the first. A message that is delivered more often than MaxDeliveries, because the broker may not write
// to the dead letters, is kept, tried at the longest pause, and complained of in the log each time.
package pubsub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/bus"
)

// Defaults of the options.
const (
	DefaultPrefix        = "errand"
	DefaultAckDeadline   = 10 * time.Second
	DefaultMaxHold       = time.Hour
	DefaultMaxDeliveries = 20
)

// Options of a bus. Project is needed; zero values of the others serve.
type Options struct {
	// Project is the id of the Google Cloud project.
	Project string
	// Prefix stands before the name of each topic, with a hyphen; DefaultPrefix when empty.
	Prefix string
	// AckDeadline is how long a lease lasts that is not renewed: by then a message of a process that died comes again.
	// Whole seconds, 10 s to 10 min; DefaultAckDeadline when 0.
	AckDeadline time.Duration
	// MaxHold is how long a lease is renewed; DefaultMaxHold when 0.
	MaxHold time.Duration
	// MaxDeliveries is after how many a message becomes a dead letter, 5 to 100: what Declare writes and what the log goes
	// by; DefaultMaxDeliveries when 0.
	MaxDeliveries int
	// Pause is how long a message waits whose n-th delivery failed, in whole seconds (rounded up), 10 min at most; when
	// nil, 1 s doubling up to 1 min.
	Pause func(n int) time.Duration
	// Log of outages and of messages that cannot go where they should; slog.Default() when nil.
	Log *slog.Logger
	// Client are options of the client beside those that the environment gives, such as an endpoint.
	Client []option.ClientOption
}

var (
	projectID = regexp.MustCompile(`^[a-z][a-z0-9.:-]{4,62}[a-z0-9]$`)
	prefixID  = regexp.MustCompile(`^[a-z][a-z0-9-]{0,38}[a-z0-9]$`)
)

// Parse reads where a bus is, as configuration names it behind pubsub: PROJECT, or PROJECT/PREFIX.
func Parse(place string) (Options, error) {
	project, prefix, named := strings.Cut(place, "/")
	o := Options{Project: project, Prefix: prefix}
	if named && prefix == "" {
		return o, errors.New("an empty prefix: want PROJECT, or PROJECT/PREFIX")
	}
	return o, o.Check()
}

// Check refuses options that no bus can have.
func (o Options) Check() error {
	switch {
	case !projectID.MatchString(o.Project):
		return fmt.Errorf("project %.100q: want the id of a Google Cloud project, such as acme-prod", o.Project)
	case o.Prefix != "" && !prefixID.MatchString(o.Prefix):
		return fmt.Errorf("prefix %.100q: want 2 to 40 lower-case letters, digits and hyphens, a letter first", o.Prefix)
	case o.AckDeadline != 0 && (o.AckDeadline < 10*time.Second || o.AckDeadline > 10*time.Minute || o.AckDeadline%time.Second != 0):
		return fmt.Errorf("acknowledgement deadline %v: want whole seconds, 10s to 10m", o.AckDeadline)
	case o.MaxHold < 0:
		return fmt.Errorf("longest hold %v: want a positive duration", o.MaxHold)
	case o.MaxDeliveries != 0 && (o.MaxDeliveries < 5 || o.MaxDeliveries > 100):
		return fmt.Errorf("%d deliveries at most: Pub/Sub takes 5 to 100", o.MaxDeliveries)
	}
	return nil
}

// Bus is a bus over Pub/Sub.
type Bus struct {
	opts   Options
	log    *slog.Logger
	client *pubsub.Client
	times  times
	stats  counters

	closed context.Context // ends with Close
	close  context.CancelFunc

	mu         sync.Mutex
	users      int // calls under way; the last one releases a closed bus
	released   bool
	publishers map[bus.Topic]*pubsub.Publisher
}

var _ bus.Bus = (*Bus)(nil)

// Open returns a bus. It reaches for the service with its first message, not before.
func Open(ctx context.Context, o Options) (*Bus, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("open Pub/Sub bus: %w", err)
	}
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	o.AckDeadline = cmp.Or(o.AckDeadline, DefaultAckDeadline)
	o.MaxHold = cmp.Or(o.MaxHold, DefaultMaxHold)
	o.MaxDeliveries = cmp.Or(o.MaxDeliveries, DefaultMaxDeliveries)
	if o.Pause == nil {
		o.Pause = func(n int) time.Duration { return min(time.Second<<min(n-1, 10), time.Minute) }
	}
	b := &Bus{
		opts: o, log: cmp.Or(o.Log, slog.Default()), times: defaultTimes(o), publishers: map[bus.Topic]*pubsub.Publisher{},
	}
	// The counters are next to the wire: they count what the platform answered.
	client, err := pubsub.NewClient(ctx, o.Project, append(slices.Clone(o.Client), b.stats.options()...)...)
	if err != nil {
		return nil, fmt.Errorf("open Pub/Sub bus of project %s: %w", o.Project, err)
	}
	b.client = client
	b.closed, b.close = context.WithCancel(context.Background())
	return b, nil
}

// times are the periods that the driver goes by.
type times struct {
	lease   time.Duration // see Options.AckDeadline
	pulled  time.Duration // the shortest lease that a subscription gives
	look    time.Duration // between looks for leases to renew
	call    time.Duration // bounds a try of a short request
	publish time.Duration // bounds a publish with its tries
	drain   time.Duration // bounds the end of a stream
	stop    time.Duration // bounds the wait for what publishers gave up on
	ping    time.Duration // between pings on a stream
	silence time.Duration // after a ping, until a stream of a server that answers them counts as broken
	settled time.Duration // a stream that lived as long ends an outage
	backoff [2]time.Duration
}

func defaultTimes(o Options) times {
	return times{
		lease: o.AckDeadline, pulled: 10 * time.Second, look: time.Second, call: 10 * time.Second, publish: 30 * time.Second,
		drain: 5 * time.Second, stop: time.Second, ping: 30 * time.Second, silence: 15 * time.Second, settled: 10 * time.Second,
		backoff: [2]time.Duration{100 * time.Millisecond, 15 * time.Second},
	}
}

func (b *Bus) id(topic bus.Topic) string { return b.opts.Prefix + "-" + string(topic) }

func (b *Bus) topicName(topic bus.Topic) string {
	return "projects/" + b.opts.Project + "/topics/" + b.id(topic)
}

func (b *Bus) subscriptionName(topic bus.Topic) string {
	return "projects/" + b.opts.Project + "/subscriptions/" + b.id(topic)
}

// Describe implements bus.Bus.
func (b *Bus) Describe() string {
	where := ""
	if host := os.Getenv("PUBSUB_EMULATOR_HOST"); host != "" {
		where = " at the emulator " + host
	}
	return fmt.Sprintf("Pub/Sub of project %s, topics %s-*%s", b.opts.Project, b.opts.Prefix, where)
}

// reachTime bounds the wait of Reach.
const reachTime = 5 * time.Second

// Reach asks whether the service answers, by one request, and waits five seconds at most. That it answers is all that
// counts: whether a topic is there, and who may use it, shows when it is used.
func (b *Bus) Reach(ctx context.Context) error {
	if err := b.enter(); err != nil {
		return fmt.Errorf("reach %s: %w", b.Describe(), err)
	}
	defer b.leave()
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	_, err := b.client.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: b.topicName(bus.Control)})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil, status.Code(err) == codes.Unavailable, status.Code(err) == codes.DeadlineExceeded:
		return fmt.Errorf("%s does not answer: %w", b.Describe(), err)
	}
	if _, answered := status.FromError(err); !answered {
		return fmt.Errorf("%s cannot be asked: %w", b.Describe(), err)
	}
	return nil
}

// enter keeps the client for the time of a call; leave gives it back.
func (b *Bus) enter() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Err() != nil {
		return bus.ErrClosed
	}
	b.users++
	return nil
}

func (b *Bus) leave() {
	b.mu.Lock()
	b.users--
	b.mu.Unlock()
	if err := b.release(); err != nil {
		b.log.Warn("closing the Pub/Sub client", "error", err)
	}
}

// release frees the client of a closed bus that nobody uses any more.
func (b *Bus) release() error {
	b.mu.Lock()
	due := b.closed.Err() != nil && b.users == 0 && !b.released
	b.released = b.released || due
	b.mu.Unlock()
	if !due {
		return nil
	}
	// Only messages whose publishers gave up can be under way. They end with the client, and those between two tries when
	// they would have tried again.
	err := b.client.Close()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for _, p := range b.publishers { // nobody adds any more
			p.Stop()
		}
	}()
	select {
	case <-stopped:
	case <-time.After(b.times.stop):
	}
	return err
}

// Close implements bus.Bus. It does not wait for handlers: the last call that is under way releases the client.
func (b *Bus) Close() error {
	b.mu.Lock()
	b.close()
	b.mu.Unlock()
	if err := b.release(); err != nil {
		return fmt.Errorf("close Pub/Sub bus: %w", err)
	}
	return nil
}

// sleep returns whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

var errSilent = errors.New("the server does not answer on the stream")
