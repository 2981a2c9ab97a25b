// Package firestore keeps the store's documents in a Firestore database in Native mode, for any number of control
// processes at once.
//
// How a unit becomes requests:
//
//   - A unit of one write goes with others into one BatchWrite, up to 500 documents and 3.5 MiB: one write, no read.
//   - A unit of several writes, or with a large body, is one Commit.
//   - A unit with a fence on a run that it does not write needs a transaction, since the platform has no write that
//     only verifies: BatchGetDocuments, which reads the run, then Commit. A fence on a run that the unit writes costs
//     nothing more: the attempt is known of the version that the write expects.
//
// Every write carries a precondition: that the document does not exist, or the time of its last update. The store
// remembers the update time of what it read or wrote last (Options.Known documents); a version that it does not
// remember costs one read. Units of one call that touch the same documents are applied one after the other, all others
// side by side.
//
// An error may come after a commit was applied. So each written document holds a token of its unit and call; after an
// answer that leaves it open the store reads back before it repeats the request, and tells what is true. What stays
// open after all repeats is an error that wraps no outcome of the port.
//
// A body above 900 KiB is stored in parts of 1 MB, in documents of their own (see parts.go). Documents that a unit
// purges are deleted in the unit's own commit if all of it is within 500 writes. Beyond that, what is owned goes first,
// in commits of 500, and the unit last: a crash between them leaves the run without some of what it owned, and the
// next purge takes the rest.
//
// The platform's client library is in this package and in no other.
package firestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	api "cloud.google.com/go/firestore/apiv1"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/errand-run/errand/shared/store"
)

// EmulatorEnv names the host and port of an emulator to use instead of the platform, as Google's clients have it.
const EmulatorEnv = "FIRESTORE_EMULATOR_HOST"

// DefaultDatabase is the name of a project's first database.
const DefaultDatabase = "(default)"

// Options of [Open].
type Options struct {
	Project  string // required
	Database string // DefaultDatabase when empty
	// Endpoint is the host and port of an emulator, without TLS or credentials; when empty the environment's
	// FIRESTORE_EMULATOR_HOST, and without that the platform.
	Endpoint string
	// Concurrency bounds the requests under way, 1..1000; 64 when 0.
	Concurrency int
	// Known bounds the documents whose last update is remembered, 1..10,000,000; 100,000 when 0, at about 500 bytes each.
	Known int
	// Clock tells the time, for the expiry of parts that lost their document; time.Now when nil.
	Clock func() time.Time
	// ClientOptions go to the client after the store's own.
	ClientOptions []option.ClientOption
}

// Bounds of requests. Those of size are the platform's, with room for what surrounds the documents.
const (
	batchWrites   = 500
	batchBytes    = 7 << 19 // 3.5 MiB: the platform takes 10, its emulator 4
	readBatch     = 300     // documents of one read
	disjuncts     = 30      // values of one "in"
	callTimeout   = 15 * time.Second
	failTries     = 6  // of a request that fails
	staleTries    = 50 // of a unit that others overtake
	firstPause    = 25 * time.Millisecond
	longestPause  = 2 * time.Second
	openTimeout   = 15 * time.Second
	cleanTimeout  = 5 * time.Second
	orphanExpires = 24 * time.Hour
)

// Store is a [store.Store] in Firestore.
type Store struct {
	database string // projects/P/databases/D
	place    string // for people
	client   *api.Client
	clock    func() time.Time
	nonce    string // of this opening: part of every token
	calls    tokens
	slots    chan struct{} // one for each request under way
	known    *known
	stats    counters

	mu     sync.RWMutex // held for reading by every operation, for writing by Close
	closed bool
}

var _ store.Store = (*Store)(nil)

func (o *Options) check() error {
	if o.Project == "" || strings.ContainsAny(o.Project, "/ ") {
		return fmt.Errorf("project %q: want the id of a Google Cloud project", o.Project)
	}
	if o.Database == "" {
		o.Database = DefaultDatabase
	}
	if strings.ContainsAny(o.Database, "/ ") {
		return fmt.Errorf("database %q: want the id of a database of project %s", o.Database, o.Project)
	}
	if o.Endpoint == "" {
		o.Endpoint = os.Getenv(EmulatorEnv)
	}
	if o.Concurrency == 0 {
		o.Concurrency = 64
	}
	if o.Concurrency < 1 || o.Concurrency > 1000 {
		return fmt.Errorf("%d requests at once: want 1 to 1000", o.Concurrency)
	}
	if o.Known == 0 {
		o.Known = 100_000
	}
	if o.Known < 1 || o.Known > 10_000_000 {
		return fmt.Errorf("%d documents to remember: want 1 to 10000000", o.Known)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return nil
}

// Open connects to a database, which must exist, and reads one document to see that it answers. ctx bounds the opening
// alone, which takes 15 s at most.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("open Firestore store: %w", err)
	}
	s := &Store{
		database: "projects/" + o.Project + "/databases/" + o.Database,
		place:    "firestore:" + o.Project + "/" + o.Database,
		clock:    o.Clock, nonce: rand.Text(),
		slots: make(chan struct{}, o.Concurrency),
		known: newKnown(o.Known),
	}
	client, err := api.NewClient(ctx, s.clientOptions(o)...)
	if err != nil {
		return nil, fmt.Errorf("open store %s: connect: %w", s.place, err)
	}
	// The library repeats a commit that may have been applied. This package repeats what it can judge, and nothing else.
	client.CallOptions = &api.CallOptions{}
	s.client = client
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if _, err := s.readHeads(ctx, []name{{store.KindMisc, "open"}}, nil); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("open store %s: %w", s.place, err)
	}
	return s, nil
}

func (s *Store) clientOptions(o Options) []option.ClientOption {
	var opts []option.ClientOption
	if o.Endpoint != "" {
		s.place += " in the emulator on " + o.Endpoint
		opts = append(opts, option.WithEndpoint(o.Endpoint), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
			option.WithGRPCDialOption(grpc.WithPerRPCCredentials(emulatorOwner{})))
	}
	opts = append(opts, o.ClientOptions...)
	// The counters are next to the wire: they count what the platform answered.
	return append(opts,
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(s.stats.unary)),
		option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(s.stats.stream)))
}

// emulatorOwner is what the emulator takes for a caller with all rights; it refuses batches to others.
type emulatorOwner struct{}

func (emulatorOwner) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer owner"}, nil
}

func (emulatorOwner) RequireTransportSecurity() bool { return false }

// begin admits an operation, or refuses it after Close. The caller calls end when it is done.
func (s *Store) begin(what string) (end func(), err error) {
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return nil, fmt.Errorf("%s: %w", what, store.ErrClosed)
	}
	return s.mu.RUnlock, nil
}

// Exclusive implements [store.Store]: any number of processes share a database.
func (s *Store) Exclusive() bool { return false }

// Describe implements [store.Store].
func (s *Store) Describe() string {
	return s.place + ", shared by all processes that name it, durable when acknowledged"
}

// Close implements [store.Store]. It waits for operations under way. Closing again does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close store %s: %w", s.place, err)
	}
	return nil
}
