package twin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// front is the URL of a service or an instance: it checks who calls, finds a container instance, and hands the request
// on.
type front struct {
	t        *Twin
	name     string // full name of the resource
	listener net.Listener
	server   *http.Server
	// target is where requests go now, and what holds for them. It is called with the lock; nil when the resource takes
	// none.
	target func() *target
}

type target struct {
	group     *group
	timeout   time.Duration
	audiences []string // besides the URL
	open      bool     // nobody is checked
}

const (
	maxRequestBytes       = 32 << 20
	defaultRequestTimeout = 5 * time.Minute
	maxRequestTimeout     = time.Hour
	maxMoves              = 5 // of a request whose revision is retired while it waits
)

func (t *Twin) newFront(name string, target func() *target) (*front, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the URL of %s: %w", name, err)
	}
	f := &front{t: t, name: name, listener: l, target: target}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(t.log.Handler(), slog.LevelWarn)}
	t.active.Go(func() { _ = f.server.Serve(l) })
	return f, nil
}

func (f *front) url() string { return "http://" + f.listener.Addr().String() }

func (f *front) close() {
	if f != nil {
		_ = f.server.Close()
	}
}

// now is where a request goes that comes now, nil for nowhere.
func (f *front) now() *target {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	return f.target()
}

// ServeHTTP takes a request from its check to its answer.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// 1. Where it goes.
	to := f.now()
	if to == nil {
		http.Error(w, "The service you requested is not available yet.", http.StatusServiceUnavailable)
		return
	}
	// 2. Whether the caller may.
	if code, why := f.admit(r, to); code != 0 {
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token" error_description="The access token could not be verified"`)
		}
		http.Error(w, why, code)
		return
	}
	// 3. A container instance.
	ctx, cancel := context.WithTimeoutCause(r.Context(), to.timeout, errRequestTimeout)
	defer cancel()
	m, err := to.group.acquire(ctx)
	for range maxMoves {
		if !errors.Is(err, errRetired) {
			break
		}
		if next := f.now(); next != nil {
			to = next
			m, err = to.group.acquire(ctx)
		}
	}
	switch {
	case errors.Is(err, errNoInstance):
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	case errors.Is(err, errRequestTimeout):
		http.Error(w, "upstream request timeout", http.StatusGatewayTimeout)
		return
	case err != nil:
		http.Error(w, "The request failed because the instance could not start successfully.", http.StatusServiceUnavailable)
		return
	}
	defer to.group.release(m)
	// 4. The answer. When the time is up the caller gets 504, and the container lives on.
	r.Body = http.MaxBytesReader(w, r.Body, maxRequestBytes)
	proxy := &httputil.ReverseProxy{
		Transport: f.t.forward,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(m.u.port))})
			p.Out.Host = p.In.Host
			p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
			p.SetXForwarded()
			p.Out.Header.Set("X-Forwarded-Proto", "https")
			unsign(p.Out.Header)
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			var tooLarge *http.MaxBytesError
			switch {
			case errors.Is(context.Cause(ctx), errRequestTimeout):
				http.Error(w, "upstream request timeout", http.StatusGatewayTimeout)
			case errors.As(err, &tooLarge):
				http.Error(w, "Request Entity Too Large", http.StatusRequestEntityTooLarge)
			default:
				http.Error(w, "The request failed because either the HTTP response was malformed or connection to the instance had an error.", http.StatusServiceUnavailable)
			}
		},
		ErrorLog: slog.NewLogLogger(f.t.log.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

var errRequestTimeout = errors.New("the request's time is up")

// headers with the caller's identity token; the first is looked at first and never reaches the container.
const (
	serverlessAuthorization = "X-Serverless-Authorization"
	authorization           = "Authorization"
)

// admit checks the identity token. A status code other than 0 refuses the request.
func (f *front) admit(r *http.Request, to *target) (int, string) {
	f.t.mu.Lock()
	anyone := to.open || f.t.mayInvoke(f.name, "")
	f.t.mu.Unlock()
	if anyone {
		return 0, ""
	}
	value := r.Header.Get(serverlessAuthorization)
	if value == "" {
		value = r.Header.Get(authorization)
	}
	scheme, token, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusForbidden, "Your client does not have permission to get URL " + r.URL.Path + " from this server."
	}
	who, err := f.t.issuer.verify(token, append([]string{f.url()}, to.audiences...))
	if err != nil {
		f.t.log.Info("a request has a bad identity token", "resource", f.name, "error", err)
		return http.StatusUnauthorized, "Your client does not have permission to the requested URL: the identity token is invalid."
	}
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	// A token without the address is of somebody, yet no policy can mean it by name.
	if !who.EmailVerified || !f.t.mayInvoke(f.name, who.Email) {
		return http.StatusForbidden, "Your client does not have permission to get URL " + r.URL.Path + " from this server."
	}
	return 0, ""
}

// unsign takes the signature out of the caller's token, so that the container cannot pass for the caller.
func unsign(h http.Header) {
	h.Del(serverlessAuthorization)
	scheme, token, _ := strings.Cut(h.Get(authorization), " ")
	if parts := strings.Split(token, "."); strings.EqualFold(scheme, "Bearer") && len(parts) == 3 {
		h.Set(authorization, scheme+" "+parts[0]+"."+parts[1]+".SIGNATURE_REMOVED_BY_GOOGLE")
	}
}
