package control

import (
	"testing"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// TestAnAttemptIsSurelyOverOnlyWhenSomebodySaysSo: the handler of a service lives on when its request is given up, so an
// effect that it began waits for its own end, not for the attempt's.
func TestAnAttemptIsSurelyOverOnlyWhenSomebodySaysSo(t *testing.T) {
	failed := func(c run.Class, ended bool) runtime.Report {
		return runtime.Report{Type: runtime.Failed, Class: c, Ended: ended}
	}
	for name, c := range map[string]struct {
		report runtime.Report
		sure   bool
	}{
		"the handler tells a failure":                       {failed(run.ClassUser, false), true},
		"it was not let in":                                 {failed(run.ClassThrottled, false), true},
		"the request ran into the limit of the service":     {failed(run.ClassTimeout, false), false},
		"the process was killed at the deadline":            {failed(run.ClassTimeout, true), true},
		"the platform gave up the request":                  {failed(run.ClassInfrastructure, false), false},
		"nothing was sent":                                  {failed(run.ClassInfrastructure, true), true},
		"the connection broke":                              {failed(run.ClassLost, false), false},
		"the process is gone":                               {failed(run.ClassLost, true), true},
		"its connection was closed by a server that ends":   {runtime.Report{Type: runtime.Released}, false},
		"it was given back before anything of it was begun": {runtime.Report{Type: runtime.Released, Ended: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := localHouse(t, 1, agentNamed("echo", withCommand, func(a *fleet.Agent) { a.Retry.MaxAttempts = 5 }))
			r := h.submit(Submission{Agent: "echo"})
			h.pass(0)
			c.report.Run, c.report.N = r.ID, 1
			if res := h.p.Report(t.Context(), []runtime.Report{c.report}); res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
			if got := h.get(r.ID); len(got.Attempts) == 0 || got.Attempts[0].Sure != c.sure {
				t.Errorf("attempts %+v, want sure %t", got.Attempts, c.sure)
			}
		})
	}
	t.Run("a handler that was told to stop and is left", func(t *testing.T) {
		h, _ := localHouse(t, 1, agentNamed("echo", withCommand))
		r := h.submit(Submission{Agent: "echo"})
		h.pass(0)
		if _, err := h.p.Cancel(t.Context(), r.ID, CancelRequest{}); err != nil {
			t.Fatal(err)
		}
		stopped := runtime.Stopped(run.CanceledByRequest, "no answer within the grace")
		stopped.Run, stopped.N = r.ID, 1
		_ = h.p.Report(t.Context(), []runtime.Report{stopped})
		if got := h.get(r.ID); got.State != run.Canceled || got.Attempts[0].Sure {
			t.Errorf("run is %s, attempts %+v", got.State, got.Attempts)
		}
	})
}
