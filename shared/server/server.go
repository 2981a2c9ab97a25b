package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/shared/api"
)

// Options of a Server. Plane is required, and exactly one of Auth and Loopback.
type Options struct {
	Plane Plane
	// Auth tells who asks.
	Auth Authenticator
	// Loopback serves this machine alone, without login: a request whose Host or Origin is another is refused, and so
	// is a listener that others can reach. Everybody is an admin named As ("local" when empty).
	Loopback bool
	As       string

	Logger *slog.Logger
	// Version and Store describe the process in /v1/version: Store is the driver, its place and its sync policy.
	Version, Store string
	// BusOut reports whether the bus is out of reach, for /health/ready to say; nil where there is none.
	BusOut func() bool
	// Metrics are served besides the server's own.
	Metrics []prometheus.Collector

	BeatEvery  time.Duration // how often a handler that registered itself sends heartbeats; 5 s
	Keepalive  time.Duration // between comments on a quiet stream; 15 s
	LogPoll    time.Duration // between looks for new log lines while following; 500 ms
	MaxWaits   int           // requests that wait at a time; 20,000
	MaxStreams int           // streams at a time; 1,000
}

func (o *Options) setDefaults() error {
	switch {
	case o.Plane == nil:
		return errors.New("server: no control plane given")
	case o.Loopback == (o.Auth != nil):
		return errors.New("server: give either an Authenticator or Loopback")
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.BeatEvery, 5*time.Second)
	def(&o.Keepalive, 15*time.Second)
	def(&o.LogPoll, 500*time.Millisecond)
	if o.As == "" {
		o.As = "local"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Version == "" {
		o.Version = "devel"
	}
	if o.MaxWaits <= 0 {
		o.MaxWaits = 20_000
	}
	if o.MaxStreams <= 0 {
		o.MaxStreams = 1000
	}
	return nil
}

// Server is the HTTP door. It is a http.Handler; Close it when done.
type Server struct {
	opts       Options
	plane      Plane
	auth       Authenticator
	log        *slog.Logger
	router     chi.Router
	api        huma.API
	hub        *hub
	metrics    *metrics
	started    time.Time
	hot        map[string]bool   // routes that are called all the time: not worth a line in the log
	spec       func() []byte     // the OpenAPI document
	operations []*huma.Operation // of it, in the order of registration

	waits, streams gauge

	alive context.Context // ends when streams and waits must end
	end   context.CancelFunc
}

// New makes a Server. It follows the control plane's changes until Close.
func New(o Options) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: o, plane: o.Plane, auth: o.Auth, log: o.Logger,
		router: chi.NewRouter(), started: time.Now(), hot: make(map[string]bool),
		waits:   gauge{name: "waiting requests", most: int64(o.MaxWaits)},
		streams: gauge{name: "streams", most: int64(o.MaxStreams)},
	}
	s.alive, s.end = context.WithCancel(context.Background())
	if o.Loopback {
		s.auth = loopback{o.As}
	}
	s.hub = newHub(s.plane)
	s.metrics = newMetrics(s)

	// 1. What every request passes, outermost first.
	s.router.Use(identify, s.observe, s.rescue, secure)
	if o.Loopback {
		s.router.Use(OnlyLoopback)
	} else {
		s.router.Use(onlySameOrigin)
	}
	s.router.Use(canonicalPath, s.forwardToLeader)
	s.router.NotFound(func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, notFound("there is nothing at %s; /openapi.json lists what there is", clip(r.URL.Path)))
	})
	s.router.MethodNotAllowed(s.wrongMethod)

	// 2. The doors.
	s.api = humachi.New(s.router, s.frame(o.Version))
	s.runDoors()
	s.runActionDoors()
	s.receiptDoors()
	s.gateDoors()
	s.stateDoors()
	s.streamDoors()
	s.fleetDoors()
	s.triggerDoors()
	s.workerDoors()
	s.attemptDoors()
	s.opsDoors()
	s.comingDoors()
	s.pages()

	// 3. From here on the description is fixed.
	s.spec = sync.OnceValue(s.encodeSpec)
	s.hub.start()
	return s, nil
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.router.ServeHTTP(w, r) }

// Close ends streams and waiting requests, and stops following the control plane. Requests under way are served.
func (s *Server) Close() {
	s.end()
	s.hub.stop()
}

// Serve answers on the listener until the context ends; then it ends streams, lets requests finish for up to grace,
// and closes the listener and the Server.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	defer s.Close()
	if s.opts.Loopback && !isLoopback(l.Addr().String()) {
		_ = l.Close()
		return fmt.Errorf("serve on %s: without login only a loopback address is served; listen on 127.0.0.1, or configure authentication", l.Addr())
	}
	hs := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       arrival,
		WriteTimeout:      departure,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	s.Close()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := hs.Shutdown(stop); err != nil {
		_ = hs.Close()
	}
	<-served
	return nil
}

// wrongMethod tells an unknown verb from a known path that takes another method.
func (s *Server) wrongMethod(w http.ResponseWriter, r *http.Request) {
	if _, verb := cutVerb(r.Method, []string{r.URL.Path}); verb != "" {
		writeProblem(w, notFound("there is nothing at %s: %s is no action here; /openapi.json lists those there are", clip(r.URL.Path), verb))
		return
	}
	p := problem(http.StatusMethodNotAllowed, api.CodeUnsupported, "%s does not take %s; see /openapi.json", clip(r.URL.Path), clip(r.Method))
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		path := r.URL.EscapedPath()
		if s.router.Match(chi.NewRouteContext(), m, path) {
			w.Header().Add("Allow", m)
		}
	}
	writeProblem(w, p)
}

// detached is a context for what must be carried through although the client leaves: a submission that was begun.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
}
