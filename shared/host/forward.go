package host

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
)

// Forward executes attempts by sending their documents to a service beside the worker, over the http protocol. The
// attempt's token is the request's bearer token, and closing the connection ends the attempt.
type Forward struct {
	url     string
	address string // host:port
	server  string
	client  *http.Client
}

const (
	dialTime   = time.Second
	firstPause = 20 * time.Millisecond
	longPause  = time.Second
	// tellAfter is when a service that is not there yet is worth a line in the log.
	tellAfter = 10 * time.Second
	// endingSlack is how much sooner than the worker's the agent's grace may be over.
	endingSlack = 500 * time.Millisecond
)

// NewForward makes a Forward to a URL, such as http://127.0.0.1:8080/run; server is the one that attempts report to.
// Tokens travel in the clear where it is not https, so then it must be on this machine.
func NewForward(rawURL, server string) (*Forward, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("forward to %.200q: want a URL such as http://127.0.0.1:8080/run", rawURL)
	}
	if u.Scheme == "http" && !loopback(u.Hostname()) {
		return nil, fmt.Errorf("forward to %.200q: attempts carry tokens: want https, or a loopback address", rawURL)
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme
	}
	return &Forward{url: u.String(), address: net.JoinHostPort(u.Hostname(), port), server: server, client: httpio.NewClient()}, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Ready reports whether the service accepts connections.
func (f *Forward) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", f.address)
	if err != nil {
		return fmt.Errorf("no connection to %s: %w; is the agent up, and does it listen there?", f.address, err)
	}
	return c.Close()
}

// WaitReady returns when the service accepts connections, or ctx ends: containers of one instance start in any order.
func (f *Forward) WaitReady(ctx context.Context, log *slog.Logger) error {
	began, told := time.Now(), false
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		err := f.Ready(ctx)
		if err == nil || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !told && time.Since(began) > tellAfter {
			told = true
			log.Warn("the agent is not there yet: no runs are taken", "error", err)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// Handle executes one attempt; it is HostOptions.Handle of agent.
func (f *Forward) Handle(ctx context.Context, a *agent.Attempt) agent.Result {
	x := assignment(a, fleet.Run{Protocol: fleet.HTTP})
	document, err := x.Document(f.server).Encode()
	if err != nil {
		return agent.Failed(err)
	}
	report := httpio.Do(ctx, f.client, httpio.Call{
		URL: f.url, Attempt: &x, Document: document, Now: time.Now,
		Each: func(r runtime.Report) {
			switch r.Type {
			case runtime.Progress:
				a.Progress(r.Fraction, r.Message)
			case runtime.Logged:
				log(a, r.Logs)
			}
		},
	})
	if report.Class == run.ClassInfrastructure || report.Class == run.ClassLost {
		// Both containers of an instance are told to end at once: the agent's word may come before our own.
		t := time.NewTimer(endingSlack)
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	if ctx.Err() != nil {
		reason, _ := stopReason(context.Cause(ctx))
		return result(runtime.Stopped(reason, "the attempt was told to stop, and its connection closed"))
	}
	return result(report)
}
