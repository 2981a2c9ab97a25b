package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/errand-run/errand/shared/api"
)

type contextKey int

const (
	requestIDKey contextKey = iota
	principalKey
	grantKey // of an attempt, at doors that are open to attempts too
)

func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey).(string)
	return id
}

// principal is who asks; the zero Principal, which may do nothing, outside of a request that was let in.
func principal(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey).(Principal)
	return p
}

var goodRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// identify gives every request an id: the caller's, if it is one, or a new one.
func identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if id == "" || !goodRequestID.MatchString(id) {
			id = strings.ToLower(rand.Text()[:16])
		}
		w.Header()["X-Request-Id"] = []string{id}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestIDKey, id)))
	})
}

// secure sets what every response says to browsers. Pages set their own policy over it.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for name, value := range secureHeaders {
			h[name] = value
		}
		next.ServeHTTP(w, r)
	})
}

// secureHeaders have names in their canonical form; nobody changes their values in place.
var secureHeaders = http.Header{
	"Content-Security-Policy":      {"default-src 'none'; frame-ancestors 'none'"},
	"Cross-Origin-Resource-Policy": {"same-origin"},
	"Referrer-Policy":              {"no-referrer"},
	"X-Content-Type-Options":       {"nosniff"},
	"X-Frame-Options":              {"DENY"},
	"Cache-Control":                {"no-store"},
}

// observe logs each request and counts it: method, route, status, size and time; never a query, a body or a header.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		defer func() {
			route := chi.RouteContext(r.Context()).RoutePattern()
			if route == "" {
				route = "none"
			}
			status := ww.Status()
			if status == 0 {
				status = http.StatusOK
			}
			took := time.Since(begun)
			s.metrics.request(r.Method, route, status, took)
			level := slog.LevelDebug
			switch {
			case status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusNotImplemented:
				level = slog.LevelError
			case status >= 400 || strings.HasPrefix(route, "/v1/") && r.Method != http.MethodGet && !s.hot[route]:
				level = slog.LevelInfo
			}
			if !s.log.Enabled(r.Context(), level) {
				return
			}
			s.log.LogAttrs(r.Context(), level, "request",
				slog.String("request", requestID(r.Context())), slog.String("method", r.Method), slog.String("route", route),
				slog.Int("status", status), slog.Int("bytes", ww.BytesWritten()), slog.Duration("took", took))
		}()
		next.ServeHTTP(ww, r)
	})
}

// rescue turns a panic into a problem. What has been sent already is cut off, so that nobody takes it for whole.
func (s *Server) rescue(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ww, _ := w.(middleware.WrapResponseWriter)
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v)
			}
			s.log.ErrorContext(r.Context(), "request panicked", "request", requestID(r.Context()), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			if ww != nil && ww.Status() != 0 {
				panic(http.ErrAbortHandler)
			}
			writeProblem(w, problem(http.StatusInternalServerError, api.CodeInternal,
				"the server failed; its log has the reason under request id %s", requestID(r.Context())))
		}()
		next.ServeHTTP(w, r)
	})
}

// How long a request may take to arrive and its answer to leave, unless a handler extends it. A slow client costs a
// connection for no longer.
const (
	arrival    = 2 * time.Minute
	departure  = 2 * time.Minute
	perMessage = 15 * time.Second // one message of a stream
)

// patience gives a handler that waits on purpose more time than others have: the connection's deadline would cut it.
func patience(w http.ResponseWriter, wait time.Duration) {
	// An error means that the writer, a test's, has no deadlines.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wait + departure))
}

// gauge bounds how many requests wait or stream at a time: each holds a connection and a goroutine.
type gauge struct {
	name string
	most int64
	now  atomic.Int64
}

// enter takes a place; leave gives it back.
func (g *gauge) enter() error {
	if g.now.Add(1) > g.most {
		g.now.Add(-1)
		p := problem(http.StatusServiceUnavailable, api.CodeUnavailable, "%d %s are open, the limit; try again, or without waiting", g.most, g.name)
		p.RetryAfter = 2
		return p
	}
	return nil
}

func (g *gauge) leave() { g.now.Add(-1) }
