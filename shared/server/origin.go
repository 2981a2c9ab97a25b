package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/errand-run/errand/shared/api"
)

// OnlyLoopback refuses requests that name another host or come from a page of another host. Without it any web page
// that the user opens could reach a server without login: directly, or by a name that it makes resolve to 127.0.0.1.
func OnlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.Host) {
			writeProblem(w, problem(http.StatusForbidden, api.CodeForbidden,
				"the request is for host %q, and this server answers for localhost alone; it runs without login", clip(r.Host)))
			return
		}
		for _, origin := range r.Header.Values("Origin") {
			u, err := url.Parse(origin)
			if err != nil || !isLoopback(u.Host) {
				writeProblem(w, problem(http.StatusForbidden, api.CodeForbidden,
					"the request comes from a page of %q, and this server answers pages of localhost alone; it runs without login", clip(origin)))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback reports whether a host, with or without a port, is this machine.
func isLoopback(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() && addr.Zone() == ""
}

// onlySameOrigin refuses changes that a page of another origin makes: browsers send the credentials of basic
// authentication by themselves.
func onlySameOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := protection.Check(r); err != nil {
			writeProblem(w, problem(http.StatusForbidden, api.CodeForbidden, "a page of another origin cannot make changes here"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
