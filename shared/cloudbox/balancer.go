package cloudbox

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/server"
)

// balancer hands each request to one of the control processes in turn, as the platform's does with the instances of a
// service: it knows nothing of who leads. A process that cannot be reached gets no more until it is added again.
type balancer struct {
	listener net.Listener
	server   *http.Server
	handler  http.Handler
	served   chan struct{}

	mu   sync.Mutex
	all  []string
	next int
}

func newBalancer(l net.Listener, log *slog.Logger) *balancer {
	b := &balancer{listener: l, served: make(chan struct{})}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			target, _ := p.In.Context().Value(targetKey{}).(string)
			p.SetURL(&url.URL{Scheme: "http", Host: target})
			p.Out.Host = p.In.Host
		},
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			var dial *net.OpError
			if target, _ := r.Context().Value(targetKey{}).(string); errors.As(err, &dial) && dial.Op == "dial" {
				b.remove(target)
			}
			w.Header().Set("Retry-After", "1")
			http.Error(w, "no control process took the request", http.StatusServiceUnavailable)
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	b.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target := b.pick()
		if target == "" {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "no control process is there", http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, target)))
	})
	b.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: b.handler}
	go func() {
		defer close(b.served)
		_ = b.server.Serve(l) // it ends with close
	}()
	return b
}

type targetKey struct{}

func (b *balancer) addr() string { return b.listener.Addr().String() }

func (b *balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) == 0 {
		return ""
	}
	b.next = (b.next + 1) % len(b.all)
	return b.all[b.next]
}

func (b *balancer) add(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.all, addr) {
		b.all = append(b.all, addr)
	}
}

func (b *balancer) remove(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = slices.DeleteFunc(b.all, func(x string) bool { return x == addr })
}

// door lets requests of this machine that bring no token of their own in with one, by the rules of a server that knows no
// login: those that a page of another host makes are refused.
func (b *balancer) door(token string) http.Handler {
	return server.OnlyLoopback(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+token)
		}
		b.handler.ServeHTTP(w, r)
	}))
}

// open serves the door.
func (b *Box) open(context.Context) error {
	if b.o.Door == nil {
		return nil
	}
	s := &http.Server{Handler: b.balancer.door(b.token), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(b.o.Door) // it ends with the box
	}()
	b.onClose(func() error {
		err := s.Close()
		<-served
		return err
	})
	return nil
}

func (b *balancer) close() error {
	err := b.server.Close()
	<-b.served
	return err
}
