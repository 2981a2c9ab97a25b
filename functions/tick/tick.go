// Package tick is the function that wakes the control plane: what is due is then looked at, also when nobody has called
// it for a while. Early, late and doubled ticks do no harm.
package tick

import (
	"log/slog"
	"net/http"

	"github.com/errand-run/errand/functions/edge"
)

const maxBody = 64 << 10 // Scheduler may send one; nothing is read from it

// New makes the function.
func New(env edge.Env, log *slog.Logger) (http.HandlerFunc, error) {
	c, err := edge.Client(env, "tick")
	if err != nil {
		return nil, err
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if edge.Body(w, r, maxBody) == nil {
			return
		}
		ticked, err := c.Tick(r.Context())
		if err != nil {
			edge.Fail(w, r, log, err)
			return
		}
		edge.Answer(w, http.StatusOK, ticked)
	}, nil
}
