package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
)

// metrics are what /metrics serves. Counters of runs count what this process saw; gauges are as of the scrape.
type metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	latency   *prometheus.HistogramVec
	submitted *prometheus.CounterVec
	finished  *prometheus.CounterVec
	retries   *prometheus.CounterVec
	waited    *prometheus.HistogramVec
	took      *prometheus.HistogramVec
}

func newMetrics(s *Server) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	long := prometheus.ExponentialBuckets(0.01, 4, 11) // 10 ms to 3 h
	m.requests = counter("errand_http_requests_total", "Requests answered.", "method", "route", "status")
	m.latency = histogram("errand_http_request_seconds", "Time to answer, with what the caller asked to wait.", prometheus.DefBuckets, "route")
	m.submitted = counter("errand_runs_submitted_total", "Runs accepted.", "agent")
	m.finished = counter("errand_runs_finished_total", "Runs that ended, by state and reason.", "agent", "outcome", "reason")
	m.retries = counter("errand_run_retries_total", "Failed attempts that are followed by another.", "agent")
	m.waited = histogram("errand_run_wait_seconds", "From submission, or the time not to start before, to the first start.", long, "agent")
	m.took = histogram("errand_run_duration_seconds", "From the first start to the end.", long, "agent")
	m.registry.MustRegister(
		m.requests, m.latency, m.submitted, m.finished, m.retries, m.waited, m.took,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&fleetCollector{s},
	)
	for _, c := range s.opts.Metrics {
		m.registry.MustRegister(c)
	}
	s.hub.counts = m.change
	return m
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}

func (m *metrics) request(method, route string, status int, took time.Duration) {
	if !slices.Contains(methods, method) {
		method = "other" // a client may send any word
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	m.latency.WithLabelValues(route).Observe(took.Seconds())
}

// change counts what happened to a run.
func (m *metrics) change(c control.Change) {
	r := c.Run
	for i := range c.Events {
		switch e := &c.Events[i]; e.Type {
		case run.EvSubmitted:
			m.submitted.WithLabelValues(r.Agent).Inc()
		case run.EvBackedOff:
			m.retries.WithLabelValues(r.Agent).Inc()
		case run.EvStarted:
			if r.StartedAt == e.At {
				m.waited.WithLabelValues(r.Agent).Observe(e.At.Sub(max(r.CreatedAt, r.NotBefore)).Seconds())
			}
		case run.EvSucceeded, run.EvFailed, run.EvCanceled:
			m.finished.WithLabelValues(r.Agent, string(r.State), string(e.Reason)).Inc()
			if r.StartedAt != 0 {
				m.took.WithLabelValues(r.Agent).Observe(e.At.Sub(r.StartedAt).Seconds())
			}
		}
	}
}

// fleetCollector reads the control plane's figures when they are asked for.
type fleetCollector struct{ s *Server }

var (
	descRuns     = prometheus.NewDesc("errand_runs", "Runs that are not over, by state.", []string{"state"}, nil)
	descQueued   = prometheus.NewDesc("errand_queue_depth", "Runs that wait for a slot.", []string{"agent"}, nil)
	descRunning  = prometheus.NewDesc("errand_running", "Runs that hold a slot.", []string{"agent"}, nil)
	descOldest   = prometheus.NewDesc("errand_queue_oldest_seconds", "Age of the run that waits longest for a slot.", nil, nil)
	descCapacity = prometheus.NewDesc("errand_target_slots", "Slots of a target; 0 for no bound.", []string{"target"}, nil)
	descUsed     = prometheus.NewDesc("errand_target_slots_used", "Slots in use.", []string{"target"}, nil)
	descLeader   = prometheus.NewDesc("errand_leader", "1 when this process decides.", nil, nil)
	descReady    = prometheus.NewDesc("errand_ready", "1 when this process can serve.", nil, nil)
	descUnknown  = prometheus.NewDesc("errand_receipts_unknown", "Effects of which nobody knows whether they happened, 1000 at most. The process that decides has it.", nil, nil)
	descWaits    = prometheus.NewDesc("errand_http_open", "Requests that wait or stream.", []string{"kind"}, nil)
)

func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descRuns, descQueued, descRunning, descOldest, descCapacity, descUsed, descLeader, descReady, descUnknown, descWaits} {
		ch <- d
	}
}

func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	figures := c.s.plane.Stats(time.Minute, "", "")
	for _, state := range run.States {
		if !state.Terminal() {
			gauge(descRuns, float64(figures.States[state]), string(state))
		}
	}
	for _, a := range figures.Agents {
		gauge(descQueued, float64(a.Queued), a.Name)
		gauge(descRunning, float64(a.Running), a.Name)
	}
	gauge(descOldest, figures.OldestQueued.Seconds())
	for _, t := range figures.Targets {
		gauge(descCapacity, float64(t.Capacity), t.Name)
		gauge(descUsed, float64(t.Used), t.Name)
	}
	leader, _ := c.s.plane.Health()
	gauge(descLeader, oneIf(leader))
	if leader { // one process reads the store for it, not all of them
		ctx, cancel := context.WithTimeout(c.s.alive, scrapeTimeout)
		defer cancel()
		receipts, _, err := c.s.plane.UnknownReceipts(ctx, maxUnknown, "")
		if err != nil {
			c.s.log.WarnContext(ctx, "count unknown receipts", "error", err)
		} else {
			gauge(descUnknown, float64(len(receipts)))
		}
	}
	gauge(descReady, oneIf(c.s.plane.Ready() == nil))
	gauge(descWaits, float64(c.s.waits.now.Load()), "wait")
	gauge(descWaits, float64(c.s.streams.now.Load()), "stream")
}

// What a scrape may take of the store.
const (
	scrapeTimeout = 5 * time.Second
	maxUnknown    = 1000
)

// ServeMetrics answers GET /metrics without login, and nothing else, until the context ends; then it closes the listener,
// which must be of a loopback address: a collector on this machine has no identity to show.
func (s *Server) ServeMetrics(ctx context.Context, l net.Listener) error {
	if !isLoopback(l.Addr().String()) {
		_ = l.Close()
		return fmt.Errorf("serve metrics on %s: they need no login there, so only a loopback address is served", l.Addr())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics.handler(s.log))
	hs := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: arrival, WriteTimeout: departure, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	defer context.AfterFunc(ctx, func() { _ = hs.Close() })()
	if err := hs.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve metrics on %s: %w", l.Addr(), err)
	}
	return nil
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
	})
}
