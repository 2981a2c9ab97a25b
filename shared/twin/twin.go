// Package twin is Cloud Run on one machine: its Admin API (services, revisions, jobs, executions, tasks, worker pools,
// instances, operations) in gRPC, the part of the REST API that gcloud needs to execute jobs, a metadata server per
// container instance, and an issuer of identity tokens. Containers are local processes.
//
// It is for tests, demonstrations and measurements: Google's own clients work against it unchanged, and faults that
// the cloud shows rarely come on demand, see [Rule]. State is in memory only. docs/guides/twin.md says what is faithful
// and what is not.
//
// Linux and macOS. Imports: runtime/process and Google's API definitions.
package twin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc"

	"github.com/errand-run/errand/shared/runtime/process"
)

// Options are the settings of a twin. Zero values mean what Cloud Run does, or the default that is given.
type Options struct {
	Project string // default "twin-project"
	Number  int64  // of the project; default 123456789012
	Region  string // default "europe-west1"; the API takes any other too

	// Addr is where the gRPC server listens, HTTP where the REST API and the issuer do. Default 127.0.0.1:0.
	Addr, HTTPAddr string

	// Images says which command an image stands for: program and arguments, as ENTRYPOINT of the image. An image that
	// is not listed with its tag or digest is looked up without.
	Images map[string][]string
	// Image is asked for images that Images does not have. It may be nil.
	Image func(image string) ([]string, error)
	// Env is set in each container beneath what the platform and the declaration set: addresses of emulators.
	Env map[string]string
	// Through names environment variables whose value is an URL that containers reach through a port of the twin's, so
	// that [Twin.Cut] can part a container from it. The containers see the port's URL in its place.
	Through []string
	// Secrets are the values of secrets that environment variables refer to, by SECRET or SECRET/VERSION.
	Secrets map[string]string
	// Dir is where containers run; default the twin's own directory. A declared working directory counts from here.
	Dir string
	// Lines takes what containers print. Calls are concurrent. nil drops it.
	Lines func(Line)
	// Logger takes the twin's own words. nil drops them.
	Logger *slog.Logger

	// Invokers may call every service and instance, as do those that the policies of services name: members such as
	// "serviceAccount:EMAIL", "allAuthenticatedUsers", "allUsers".
	Invokers []string

	Grace          time.Duration // between SIGTERM and SIGKILL; default 10 s
	CancelGrace    time.Duration // the same for tasks of a cancelled execution; default 3 s
	Startup        time.Duration // within which a container listens on its port; default 240 s
	Idle           time.Duration // after which an instance without requests is stopped; default 15 min
	Pending        time.Duration // for which a request waits for room when nothing starts; default 10 s
	RequestTimeout time.Duration // of services that declare none; default 5 min
	RestartDelay   time.Duration // before what ended is started again, more after failures in a row; default 1 s
	TokenLife      time.Duration // of identity tokens; default 1 h

	// Quota is how many RunJob calls a project has per region and Per; the default is 180 per minute.
	Quota Quota
	// MaxRunning is how many executions run at a time per region; default 1,000.
	MaxRunning int
	// MaxFinished is how many finished executions of a job are kept; default 1,000.
	MaxFinished int
	// MaxContainers is how many container instances run at a time; more wait. Default 256, at most 4,096.
	MaxContainers int
}

// Quota is a bucket of Limit calls that fills evenly within Per.
type Quota struct {
	Limit int
	Per   time.Duration
}

// Line is what a container printed.
type Line struct {
	Resource  string // full name of the service, task, pool or instance
	Instance  string // id of the container instance
	Container string // name of the container; the index where it has none
	Stream    string // "stdout" or "stderr"
	Text      string
}

// Bounds on what a twin holds.
const (
	maxResources  = 1000    // of one kind
	maxOperations = 10_000  // finished ones beyond that are forgotten
	maxTasks      = 200_000 // of finished executions together
	maxTaskCount  = 10_000  // of one execution
)

// Twin is a running Cloud Run. See [Start].
type Twin struct {
	opts   Options
	log    *slog.Logger
	host   *process.Host
	issuer *issuer
	faults faults
	quota  quotas
	slots  chan struct{} // one element per container instance that runs
	ports  ports

	grpc     *grpc.Server
	grpcAddr net.Addr
	conns    *connections
	forward  *http.Transport // from fronts to containers
	http     *http.Server
	httpAddr net.Addr

	ctx      context.Context // ends when the twin closes
	cancel   context.CancelFunc
	active   sync.WaitGroup // whatever must have ended before Close returns
	closing  sync.Once
	closeErr error

	mu         sync.Mutex // guards all below; resources in tables are replaced, never changed
	closed     bool
	seq        int64
	jobs       table[*runpb.Job]
	services   table[*runpb.Service]
	revisions  table[*runpb.Revision]
	pools      table[*runpb.WorkerPool]
	instances  table[*runpb.Instance]
	servings   map[string]*serving // by the name of the service, pool or instance
	victim     func([]Container) int
	executions map[string]*execution
	operations map[string]*operation
	policies   policies
	units      map[string]*unit
	metadata   []*metadata // of callers outside, see Identity
}

var projectID = regexp.MustCompile(`^[a-z][a-z0-9-]{4,28}[a-z0-9]$`)

func (o *Options) defaults() error {
	or(&o.Project, "twin-project")
	or(&o.Number, 123456789012)
	or(&o.Region, "europe-west1")
	or(&o.Addr, "127.0.0.1:0")
	or(&o.HTTPAddr, "127.0.0.1:0")
	or(&o.Grace, 10*time.Second)
	or(&o.CancelGrace, 3*time.Second)
	or(&o.Startup, 240*time.Second)
	or(&o.Idle, 15*time.Minute)
	or(&o.Pending, 10*time.Second)
	or(&o.RequestTimeout, defaultRequestTimeout)
	or(&o.RestartDelay, time.Second)
	or(&o.TokenLife, time.Hour)
	or(&o.Quota, Quota{Limit: 180, Per: time.Minute})
	or(&o.MaxRunning, 1000)
	or(&o.MaxFinished, 1000)
	or(&o.MaxContainers, 256)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if !projectID.MatchString(o.Project) {
		errs = append(errs, fmt.Errorf("project %q: want 6 to 30 lower-case letters, digits and hyphens", o.Project))
	}
	if !regionID.MatchString(o.Region) {
		errs = append(errs, fmt.Errorf("region %q: want one like europe-west1", o.Region))
	}
	if o.MaxContainers < 1 || o.MaxContainers > 4096 {
		errs = append(errs, fmt.Errorf("MaxContainers %d: want 1 to 4096", o.MaxContainers))
	}
	if o.Quota.Limit < 1 || o.Quota.Per <= 0 {
		errs = append(errs, fmt.Errorf("quota of %d per %s: want at least 1 in a positive time", o.Quota.Limit, o.Quota.Per))
	}
	for image, command := range o.Images {
		if len(command) == 0 || command[0] == "" {
			errs = append(errs, fmt.Errorf("image %q: it stands for no command", image))
		}
	}
	return errors.Join(errs...)
}

func or[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

// Start starts a twin, which runs until Close or the end of ctx. The program has to call process.Warden first thing in
// its main (a test binary in TestMain): that is how no container outlives a twin whose process is killed.
func Start(ctx context.Context, o Options) (_ *Twin, err error) {
	fail := func(err error) (*Twin, error) { return nil, fmt.Errorf("start the twin of Cloud Run: %w", err) }
	// 1. Check the settings.
	if err := o.defaults(); err != nil {
		return fail(err)
	}
	// 2. What containers need: a host for their processes, keys for their identity.
	t := &Twin{
		opts: o, log: o.Logger, conns: newConnections(), slots: make(chan struct{}, o.MaxContainers),
		jobs:       table[*runpb.Job]{kind: "Job"},
		services:   table[*runpb.Service]{kind: "Service"},
		revisions:  table[*runpb.Revision]{kind: "Revision"},
		pools:      table[*runpb.WorkerPool]{kind: "WorkerPool"},
		instances:  table[*runpb.Instance]{kind: "Instance"},
		servings:   make(map[string]*serving),
		forward:    &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, DisableCompression: true},
		executions: make(map[string]*execution),
		operations: make(map[string]*operation),
		policies:   make(policies),
		units:      make(map[string]*unit),
	}
	t.quota.quota = o.Quota
	t.ctx, t.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if t.host, err = process.NewHost(process.Options{Grace: o.Grace, Warden: true, Logger: o.Logger}); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			t.cancel()
			err = errors.Join(err, t.host.Close())
		}
	}()
	if t.issuer, err = newIssuer(o.TokenLife); err != nil {
		return fail(err)
	}
	// 3. The doors.
	grpcListener, err := net.Listen("tcp", o.Addr)
	if err != nil {
		return fail(fmt.Errorf("listen for gRPC: %w", err))
	}
	httpListener, err := net.Listen("tcp", o.HTTPAddr)
	if err != nil {
		_ = grpcListener.Close()
		return fail(fmt.Errorf("listen for HTTP: %w", err))
	}
	t.grpcAddr, t.httpAddr = grpcListener.Addr(), httpListener.Addr()
	t.issuer.url = "http://" + t.httpAddr.String()
	t.grpc = grpc.NewServer(grpc.UnaryInterceptor(t.intercept))
	t.register()
	t.http = &http.Server{Handler: t.routes(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn)}
	t.active.Go(func() { _ = t.grpc.Serve(t.conns.watch(grpcListener)) })
	t.active.Go(func() { _ = t.http.Serve(httpListener) })
	context.AfterFunc(ctx, func() { _ = t.Close() })
	return t, nil
}

func (t *Twin) register() {
	longrunningpb.RegisterOperationsServer(t.grpc, &operationsServer{t: t})
	runpb.RegisterJobsServer(t.grpc, &jobsServer{policyServer: policyServer{t}, t: t})
	runpb.RegisterExecutionsServer(t.grpc, &executionsServer{t: t})
	runpb.RegisterTasksServer(t.grpc, &tasksServer{t: t})
	runpb.RegisterServicesServer(t.grpc, &servicesServer{policyServer: policyServer{t}, t: t})
	runpb.RegisterRevisionsServer(t.grpc, &revisionsServer{t: t})
	runpb.RegisterWorkerPoolsServer(t.grpc, &poolsServer{policyServer: policyServer{t}, t: t})
	runpb.RegisterInstancesServer(t.grpc, &instancesServer{policyServer: policyServer{t}, t: t})
}

// Close stops all containers, with Options.Grace, and the servers. It returns when nothing is left.
func (t *Twin) Close() error {
	t.closing.Do(func() { t.closeErr = t.close() })
	return t.closeErr
}

func (t *Twin) close() error {
	// 1. Nothing starts any more.
	t.mu.Lock()
	t.closed = true
	units := make([]*unit, 0, len(t.units))
	for _, u := range t.units {
		units = append(units, u)
	}
	outside := t.metadata
	t.metadata = nil
	for _, s := range t.servings {
		s.front.close()
	}
	t.mu.Unlock()
	t.cancel()
	// 2. What runs is told to end.
	for _, u := range units {
		u.stop(t.opts.Grace)
	}
	t.grpc.Stop()
	_ = t.http.Close()
	t.forward.CloseIdleConnections()
	for _, m := range outside {
		m.close()
	}
	// 3. And ends.
	t.active.Wait()
	return t.host.Close()
}

// Endpoint is the address of the Admin API in plain gRPC, HOST:PORT.
func (t *Twin) Endpoint() string { return t.grpcAddr.String() }

// HTTP is the address of the REST API, HOST:PORT, which is also the HTTP proxy to give to gcloud.
func (t *Twin) HTTP() string { return t.httpAddr.String() }

// Issuer is the URL of the issuer of identity tokens.
func (t *Twin) Issuer() string { return t.issuer.url }

// Parent is what resources of the twin's own project and region are below: projects/PROJECT/locations/REGION.
func (t *Twin) Parent() string { return "projects/" + t.opts.Project + "/locations/" + t.opts.Region }

// DefaultAccount is the e-mail address of the service account of what declares none.
func (t *Twin) DefaultAccount() string {
	return fmt.Sprintf("%d-compute@developer.gserviceaccount.com", t.opts.Number)
}

// next is the next number of creation. It needs the lock.
func (t *Twin) next() int64 {
	t.seq++
	return t.seq
}

// letters is a random suffix in the alphabet of resource names.
func letters(n int) string {
	return strings.ToLower(rand.Text())[:n]
}

// newUUID is a random UUID, version 4.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
