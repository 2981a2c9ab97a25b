package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/api"
)

func TestWhatOnlyTheLeaderKnowsIsAskedOfIt(t *testing.T) {
	var asked []string
	leader := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+string(body)+" "+r.Header.Get("Authorization")+" "+r.Header.Get(forwarded))
		w.Header().Set("X-From", "leader")
		_, _ = io.WriteString(w, `{}`)
	}))
	defer leader.Close()
	s := newSite(t)
	s.plane.elsewhere = leader.URL
	s.plane.add("a", "default")
	for call, passes := range map[string]bool{
		"GET /v1/stats?window=1m":         true,
		"GET /v1/agents/echo":             true,
		"DELETE /v1/agents/echo":          true,
		"GET /v1/runs/a/placement":        true,
		"POST /v1/leases":                 true,
		"GET /v1/runs/a":                  false,
		"POST /v1/runs":                   false,
		"GET /v1/agentsandmore":           false,
		"POST /v1/attempts/a.1:heartbeat": false,
	} {
		asked = nil
		method, path, _ := strings.Cut(call, " ")
		r := s.do(method, path, `{"x":1}`, "Authorization", "Bearer t")
		if got := r.Header.Get("X-From") == "leader"; got != passes || len(asked) != len(r.Header.Values("X-From")) {
			t.Errorf("%s: passed on %t, want %t (%v)", call, got, passes, asked)
		}
		if passes && !strings.HasPrefix(asked[0], call+" ") || passes && !strings.HasSuffix(asked[0], "Bearer t 1") {
			t.Errorf("%s was passed on as %q", call, asked)
		}
	}
	t.Run("once", func(t *testing.T) {
		if r := s.do("GET", "/v1/stats", "", forwarded, "1"); r.Header.Get("X-From") != "" || r.StatusCode != 200 {
			t.Errorf("a request that was passed on was passed on again, or refused: status %d", r.StatusCode)
		}
	})
	t.Run("and answered here when it is gone", func(t *testing.T) {
		leader.Close()
		r := s.do("GET", "/v1/stats", "")
		if got := into[api.Stats](t, r); r.StatusCode != 200 || got.States["queued"] != 3 {
			t.Errorf("status %d, %+v", r.StatusCode, got)
		}
	})
}
