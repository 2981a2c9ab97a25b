// Package node is one control process: control plane, local runtime and HTTP door over a store, started and stopped in
// the order that loses nothing. The server on Cloud Run and `errand dev` are both a node.
package node

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/identity"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/cloudrun"
	"github.com/errand-run/errand/shared/runtime/local"
	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/firestore"
	"github.com/errand-run/errand/shared/store/sqlite"
	"github.com/errand-run/errand/shared/version"
)

// Options of a Node. Store and Listener are required; both are closed by Close, and by a Start that fails.
type Options struct {
	Store    store.Store
	Listener net.Listener
	// Metrics serves figures without login to a collector on this machine: a loopback address, nil for none. It is closed
	// by Close, and by a Start that fails.
	Metrics net.Listener
	// Auth tells who asks; nil serves this machine alone, without login, and everybody is As ("local" when empty).
	Auth server.Authenticator
	As   string
	// Local starts attempts on this machine.
	Local bool
	// Cloud starts attempts on Cloud Run; nil for a node that does not.
	Cloud *Cloud
	// Bus carries facts between the nodes of one store, and hand-overs to the workers of pools; nil for a node that is
	// alone. It is closed by Close, and by a Start that fails.
	Bus bus.Bus
	// Events is the name of the cell under which what happens to runs is told on the bus, as CloudEvents; "" tells nothing.
	Events string
	// Advertise is the URL under which the other nodes of the store reach this one; "" where they cannot.
	Advertise string
	// Ledger is the file that remembers local processes, so that the next node ends what a killed one left; with "" the
	// warden alone does that. Its folder is made.
	Ledger string
	// Output takes what local processes write that serve many runs, and what builds write; nil drops it.
	Output func(agent, process, stream, text string)
	// RetainMax is the longest that a finished run is kept, whatever its agent says; 0 for no bound.
	RetainMax time.Duration
	// SigningKeys returns the keys of attempt tokens, the one that signs first; nil for one that is kept in the store.
	SigningKeys func() ([][]byte, error)
	Name        string // in the dispatcher lease and in history; host name and process when empty
	Logger      *slog.Logger
}

// Cloud is where attempts are started on Cloud Run.
type Cloud struct {
	Project, Region string
	// URL is the node's address for agents, and the audience of their tokens.
	URL string
	// Endpoint is HOST:PORT of another Cloud Run Admin API, in plain gRPC; "" for Google's.
	Endpoint string
	// Tokens gives the identity tokens that agents are called with.
	Tokens identity.Source
}

// Node is a control process under way.
type Node struct {
	o      Options
	plane  *control.Plane
	local  *local.Runtime    // nil without
	cloud  *cloudrun.Runtime // nil without
	events *outbound         // nil without
	server *server.Server
	url    string
	// workerToken is what processes of this node ask for runs with; "" where there is no login.
	workerToken string
	stop        context.CancelFunc
	headroom    []byte
	serving     chan struct{}  // closed when serveErr is there
	err         error          // of serving
	beside      sync.WaitGroup // serving metrics, asking the bus
	reach       *reach         // nil for a bus that is always there
}

// headroom is memory that is never touched, and so takes none of the machine's, but counts for the collector: it lets a
// process whose own data is small make this much garbage before it looks for it..
const headroom = 32 << 20

// Start starts everything and returns when requests are answered.
func Start(ctx context.Context, o Options) (_ *Node, err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "control"
		}
		o.Name = fmt.Sprintf("%.40s-%d", host, os.Getpid())
	}
	n := &Node{o: o, serving: make(chan struct{}), url: loopbackURL(o.Listener.Addr()), headroom: make([]byte, headroom)}
	if o.Auth != nil && o.Local {
		n.workerToken = rand.Text()
		n.o.Auth = withWorkers{o.Auth, n.workerToken}
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start: %w", err), n.abandon())
		}
	}()
	// 1. What starts attempts, which first ends what a dead process left behind.
	runtimes := make(map[fleet.Runtime]runtime.Runtime)
	if o.Local {
		if n.local, err = n.newLocal(); err != nil {
			return nil, err
		}
		runtimes[fleet.RuntimeLocal] = n.local
	}
	if o.Cloud != nil {
		n.cloud, err = cloudrun.New(ctx, cloudrun.Options{
			Project: o.Cloud.Project, Region: o.Cloud.Region, URL: func() string { return o.Cloud.URL }, Endpoint: o.Cloud.Endpoint,
			Tokens: o.Cloud.Tokens, Bus: o.Bus, Logger: o.Logger,
			Held: func(worker string) []runtime.Held { return n.plane.Held(worker) },
			Jobs: func() []string { return n.jobs() },
		})
		if err != nil {
			return nil, err
		}
		runtimes[fleet.RuntimeCloudRun] = n.cloud
	}
	// 2. What decides. It and the runtime know each other.
	n.plane, err = control.New(control.Config{
		Store: o.Store, Logger: o.Logger, Runtimes: runtimes, Name: o.Name, RetainMax: o.RetainMax, SigningKeys: o.SigningKeys,
		Bus: o.Bus, Advertise: o.Advertise,
	})
	if err != nil {
		return nil, err
	}
	if n.local != nil {
		n.local.SetReporter(n.plane)
	}
	if n.cloud != nil {
		n.cloud.SetReporter(n.plane)
	}
	if b, ok := o.Bus.(reachable); ok {
		n.reach = &reach{bus: b, log: o.Logger}
	}
	// 3. The door, before the first decision: workers that are started report to it.
	n.server, err = server.New(server.Options{
		Plane: n.plane, Auth: n.o.Auth, Loopback: o.Auth == nil, As: o.As, Logger: o.Logger,
		Version: version.Get().Version, Store: o.Store.Describe(), Metrics: storeMetrics(o.Store), BusOut: n.reach.out,
	})
	if err != nil {
		return nil, err
	}
	if n.events, err = tellOutsiders(&n.o, n.plane); err != nil {
		return nil, err
	}
	if err := n.plane.Start(ctx); err != nil {
		return nil, err
	}
	serveCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stop = stop
	go func() {
		defer close(n.serving)
		n.err = n.server.Serve(serveCtx, o.Listener, httpGrace)
	}()
	if n.reach != nil {
		n.beside.Go(func() { n.reach.watch(serveCtx) })
	}
	if o.Metrics != nil {
		n.beside.Go(func() {
			if err := n.server.ServeMetrics(serveCtx, o.Metrics); err != nil {
				o.Logger.Error("metrics are not served", "error", err)
			}
		})
	}
	return n, nil
}

// httpGrace is for requests under way; streams and long polls end at once.
const httpGrace = 5 * time.Second

func (n *Node) newLocal() (*local.Runtime, error) {
	o := local.Options{
		URL: func() string { return n.url }, WorkerToken: n.workerToken,
		// The plane is made after the runtime and asks nothing of it before Start.
		Held: func(worker string) []runtime.Held { return n.plane.Held(worker) },
		SaveSession: func(ctx context.Context, key string, state json.RawMessage) error {
			return n.plane.SaveSession(ctx, key, state)
		},
		Output: n.o.Output, Ledger: n.o.Ledger, Warden: true, Logger: n.o.Logger,
	}
	if o.Ledger != "" {
		if err := os.MkdirAll(filepath.Dir(o.Ledger), 0o700); err != nil {
			return nil, fmt.Errorf("make the folder of the ledger: %w", err)
		}
	}
	return local.New(o)
}

// jobs are the resources of the declared targets that are jobs on Cloud Run.
func (n *Node) jobs() []string {
	targets, err := n.plane.Declared(context.Background(), fleet.KindTarget)
	if err != nil {
		n.o.Logger.Warn("list the declared targets", "error", err)
	}
	var names []string
	for _, d := range targets {
		if t, ok := d.Object.(*fleet.Target); ok && t.Runtime == fleet.RuntimeCloudRun && slices.Contains(t.Shapes, fleet.Job) {
			names = append(names, t.Resource)
		}
	}
	return names
}

// withWorkers lets processes that this node started in, besides whom the configuration does.
type withWorkers struct {
	server.Authenticator
	token string
}

func (a withWorkers) Authenticate(r *http.Request) (server.Principal, error) {
	given := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if subtle.ConstantTimeCompare([]byte(given), []byte(a.token)) == 1 {
		return server.Principal{Name: "local worker", Role: server.Worker}, nil
	}
	return a.Authenticator.Authenticate(r)
}

// abandon undoes a Start that failed.
func (n *Node) abandon() error {
	var faults []error
	if n.server != nil {
		n.server.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if n.local != nil {
		faults = append(faults, n.local.Close(ctx, 0))
	}
	if n.cloud != nil {
		faults = append(faults, n.cloud.Close(ctx, 0))
	}
	n.events.close()
	if n.o.Bus != nil {
		faults = append(faults, n.o.Bus.Close())
	}
	if n.o.Metrics != nil {
		faults = append(faults, n.o.Metrics.Close())
	}
	return errors.Join(append(faults, n.o.Listener.Close(), n.o.Store.Close())...)
}

// URL is the address of the node on this machine.
func (n *Node) URL() string { return n.url }

// Plane is the control plane.
func (n *Node) Plane() *control.Plane { return n.plane }

// Failed is closed when the node has stopped serving, by itself or by Close; Err says why.
func (n *Node) Failed() <-chan struct{} { return n.serving }

// Err is why serving ended; valid once Failed is closed.
func (n *Node) Err() error { return n.err }

// Close stops the node: attempts on this machine get the grace to end and are handed back, requests are finished, the
// lead is given up, and the store is closed. ctx bounds what has no bound of its own.
func (n *Node) Close(ctx context.Context, grace time.Duration) error {
	var faults []error
	note := func(what string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", what, err))
		}
	}
	// 1. Attempts first: what they still report has to be taken, and what they hand back is for the next node.
	n.plane.Quiesce()
	if n.local != nil {
		note("stop local processes", n.local.Close(ctx, grace))
	}
	if n.cloud != nil {
		note("hand back what runs on Cloud Run", n.cloud.Close(ctx, grace))
	}
	// 2. Nobody asks any more.
	n.stop()
	<-n.serving
	n.beside.Wait()
	note("serve", n.err)
	// 3. Nobody decides any more, and nothing is written.
	note("stop the control plane", n.plane.Close(ctx))
	n.events.close()
	if n.o.Bus != nil {
		note("close the bus", n.o.Bus.Close())
	}
	note("close the store", n.o.Store.Close())
	return errors.Join(faults...)
}

// loopbackURL is how processes of this machine reach a listener.
func loopbackURL(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "http://" + addr.String()
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// storeMetrics counts what the store does to the disk or is billed for, where it knows.
func storeMetrics(s store.Store) []prometheus.Collector {
	counter := func(name, help string, labels prometheus.Labels, value func() int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value()) })
	}
	switch db := s.(type) {
	case *sqlite.Store:
		return []prometheus.Collector{
			counter("errand_store_units_total", "Atomic changes written.", nil, func() int64 { return db.Stats().Units }),
			counter("errand_store_transactions_total", "Transactions that wrote them.", nil, func() int64 { return db.Stats().Transactions }),
			counter("errand_store_log_pages_total", "Pages of 4 KiB written to the log.", nil, func() int64 { return db.Stats().Pages }),
			counter("errand_store_flushes_total", "Waits for the disk.", nil, func() int64 { return db.Stats().Flushes }),
		}
	case *firestore.Store:
		all := []prometheus.Collector{
			counter("errand_store_document_writes_total", "Documents written, as billed.", nil, func() int64 { return db.Stats().Writes }),
			counter("errand_store_document_reads_total", "Documents read, as billed.", nil, func() int64 { return db.Stats().Reads }),
			counter("errand_store_document_deletes_total", "Documents deleted, as billed.", nil, func() int64 { return db.Stats().Deletes }),
		}
		for _, m := range firestore.Methods {
			all = append(all, counter("errand_store_requests_total", "Requests to the database.", prometheus.Labels{"method": m},
				func() int64 { return db.Stats().Requests[m] }))
		}
		return all
	}
	return nil
}
