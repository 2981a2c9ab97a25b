package server

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
)

const (
	defaultWindow = 15 * time.Minute
	maxWindow     = 24 * time.Hour
)

func (s *Server) opsDoors() {
	ordinary(s, door{
		method: "GET", path: "/v1/stats", id: "getStats", tag: "operations", need: view,
		summary: "Counts, waits and durations over a window that ends now, and the load now.", errors: []int{400, 404},
	}, s.getStats)
	ordinary(s, door{
		method: "GET", path: "/v1/version", id: "getVersion", tag: "operations", need: view, summary: "What this server is.",
	}, func(context.Context, *struct{}) (*answer[api.Version], error) {
		return &answer[api.Version]{Body: s.version()}, nil
	})
	for _, h := range []struct {
		name, summary string
		check         func() error
	}{
		{"startup", "200 once the process has started.", s.plane.Ready},
		{"live", "200 as long as the process answers.", func() error { return nil }},
		{"ready", "200 when the process can serve.", s.ready},
	} {
		s.plain(door{
			method: "GET", path: "/health/" + h.name, id: "health" + h.name, tag: "operations", need: public, summary: h.summary,
			answer: Health{}, errors: []int{503},
		}, func(w http.ResponseWriter, r *http.Request) error {
			if err := h.check(); err != nil {
				s.log.WarnContext(r.Context(), "not healthy", "check", h.name, "error", err)
				p := problem(http.StatusServiceUnavailable, api.CodeUnavailable, "not %s: the log has the reason", h.name)
				p.RetryAfter = 1
				return p
			}
			health := Health{Status: "ok"}
			if h.name == "ready" {
				health.Leader, health.Epoch = s.plane.Health()
				if s.opts.BusOut != nil && s.opts.BusOut() {
					health.Bus = "unreachable"
				}
			}
			return writeJSON(w, http.StatusOK, health)
		})
	}
	s.plain(door{
		method: "GET", path: "/metrics", id: "getMetrics", tag: "operations", need: view, summary: "Figures for Prometheus.", gives: []string{"text/plain"},
	}, func(w http.ResponseWriter, r *http.Request) error {
		p := principal(r.Context())
		if !p.everywhere() {
			return problem(http.StatusForbidden, api.CodeForbidden, "%s is limited to some tenants; metrics are of all of them", p.Name)
		}
		s.metrics.handler(s.log).ServeHTTP(w, r)
		return nil
	})
	s.plain(door{
		method: "GET", path: "/openapi.json", id: "getOpenAPI", tag: "operations", need: public, summary: "This description, OpenAPI 3.1.", answer: map[string]any{},
	}, func(w http.ResponseWriter, r *http.Request) error {
		s.serveSpec(w, r)
		return nil
	})
}

// Health answers the health checks.
type Health struct {
	Status string `json:"status"`
	// Of /health/ready: whether this process decides, and the number of the newest lease that it held.
	Leader bool  `json:"leader,omitempty"`
	Epoch  int64 `json:"epoch,omitempty"`
	// Bus is "unreachable" while the bus does not answer. The process is ready all the same: what it takes is in the store.
	Bus string `json:"bus,omitempty"`
}

func (s *Server) ready() error {
	if err := s.alive.Err(); err != nil {
		return err
	}
	return s.plane.Ready()
}

type statsInput struct {
	Agent  string `query:"agent"`
	Tenant string `query:"tenant"`
	Window string `query:"window" doc:"a length of time up to 24h; 15m unless given"`
}

func (s *Server) getStats(ctx context.Context, in *statsInput) (*answer[api.Stats], error) {
	window := defaultWindow
	if in.Window != "" {
		var err error
		if window, err = time.ParseDuration(in.Window); err != nil || window < time.Second || window > maxWindow {
			return nil, invalidAt("query.window", "%q; want a length of time from 1s to 24h, such as 15m", clip(in.Window))
		}
	}
	out, err := s.statsFor(ctx, window, in.Agent, in.Tenant)
	if err != nil {
		return nil, err
	}
	return &answer[api.Stats]{Body: out}, nil
}

// statsFor gives the figures that the principal may see. Those that cannot be told apart by tenant are left out for
// one that is limited to some.
func (s *Server) statsFor(ctx context.Context, window time.Duration, agent, tenant string) (api.Stats, error) {
	p := principal(ctx)
	switch {
	case agent != "" && !isName.MatchString(agent):
		return api.Stats{}, invalidAt("query.agent", "%q is no agent's name", clip(agent))
	case tenant != "" && (!isName.MatchString(tenant) || !p.sees(tenant)):
		return api.Stats{}, notFound("there is no tenant %q", clip(tenant))
	case p.everywhere():
		return stats(s.plane.Stats(window, agent, tenant)), nil
	case tenant == "" && len(p.Tenants) == 1:
		tenant = p.Tenants[0]
	case tenant == "":
		return api.Stats{}, invalidAt("query.tenant", "missing: %s sees several tenants; name one", p.Name)
	}
	all := s.plane.Stats(window, agent, tenant)
	own := control.Stats{At: all.At, Window: all.Window}
	own.Tenants = slices.DeleteFunc(all.Tenants, func(f control.NamedFigures) bool { return f.Name != tenant })
	if len(own.Tenants) > 0 {
		own.Total = own.Tenants[0].Figures
	}
	for _, a := range all.Agents {
		a.Queued, a.Running = 0, 0
		if a.Submitted+a.Succeeded+a.Failed+a.Canceled > 0 {
			own.Agents = append(own.Agents, a)
		}
	}
	return stats(own), nil
}
