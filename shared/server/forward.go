package server

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"
)

// What only the process that leads knows (its queue, its workers, its statistics) is asked of that one, where it has
// said under which address the others reach it. A request is passed on once: if the lead has moved on meanwhile, the
// second process answers as well as it can.

// forwarded marks a request that was passed on.
const forwarded = "Errand-Forwarded"

// forwardTo passes requests that the leader answers better on to it.
func (s *Server) forwardToLeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(forwarded) != "" || !leadersOwn(r) {
			next.ServeHTTP(w, r)
			return
		}
		leader, err := url.Parse(s.plane.Elsewhere())
		if err != nil || leader.Host == "" {
			next.ServeHTTP(w, r)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the leader's own bound holds
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.alive, cancel)()
		proxy := httputil.ReverseProxy{
			Rewrite: func(p *httputil.ProxyRequest) {
				p.SetURL(leader)
				p.Out.Host = leader.Host
				p.Out.Header.Set(forwarded, "1")
			},
			FlushInterval: -1,
			ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
			ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
				s.log.WarnContext(r.Context(), "ask the process that leads", "leader", leader.Host, "error", err)
				next.ServeHTTP(w, r) // as well as this one can
			},
		}
		proxy.ServeHTTP(w, r.WithContext(ctx))
	})
}

// leadersOwn reports whether the leader answers a request better than any other process. Bodies that it may have read
// are not sent twice, so of those with a body only the request for runs is here, whose own repeat is harmless.
func leadersOwn(r *http.Request) bool {
	path := r.URL.Path
	switch r.Method {
	case http.MethodPost:
		return path == "/v1/leases"
	case http.MethodDelete:
		return strings.HasPrefix(path, "/v1/")
	case http.MethodGet:
	default:
		return false
	}
	for _, own := range []string{"/v1/stats", "/v1/events", "/v1/agents", "/v1/targets", "/v1/tenants"} {
		if path == own || strings.HasPrefix(path, own+"/") {
			return true
		}
	}
	return strings.HasPrefix(path, "/v1/runs/") && strings.HasSuffix(path, "/placement")
}
