// Package intake is the function that hands messages of Pub/Sub to triggers of the control plane, in whichever form they
// are posted. It keeps nothing: the run's key makes a repeat the same run.
package intake

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/errand-run/errand/functions/edge"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/trigger"
)

// New makes the function. ERRAND_TRIGGER names the trigger of messages that do not tell theirs: by ?trigger=NAME of the
// address that they are posted to, or by the subscription's name, which then ends in trigger-NAME.
func New(env edge.Env, log *slog.Logger) (http.HandlerFunc, error) {
	c, err := edge.Client(env, "intake")
	if err != nil {
		return nil, err
	}
	otherwise := env.Get("ERRAND_TRIGGER", "")
	if otherwise != "" && !fleet.IsName(otherwise) {
		return nil, errors.New("ERRAND_TRIGGER: no name of a trigger")
	}
	return func(w http.ResponseWriter, r *http.Request) {
		// 1. What came.
		body := edge.Body(w, r, trigger.MaxBody)
		if body == nil {
			return
		}
		m, err := trigger.Read(r.Header, body)
		if err != nil {
			edge.Fail(w, r, log, err)
			return
		}
		// 2. Whose it is.
		name := r.URL.Query().Get("trigger")
		if name == "" {
			name = trigger.OfTrigger(m.Subscription)
		}
		if name == "" {
			name = otherwise
		}
		if !fleet.IsName(name) {
			edge.Fail(w, r, log, &trigger.Poison{Path: "trigger", Message: "the message tells no trigger: post it to ?trigger=NAME, name the subscription …-trigger-NAME, or set ERRAND_TRIGGER"})
			return
		}
		// 3. Hand it on.
		push, err := m.Push()
		if err != nil {
			edge.Fail(w, r, log, err)
			return
		}
		taken, err := c.Push(r.Context(), name, push)
		if err != nil {
			edge.Fail(w, r, log, err)
			return
		}
		if taken.DeadLetter != "" {
			log.WarnContext(r.Context(), "dead letter", "trigger", name, "message", m.ID, "letter", taken.DeadLetter)
		}
		edge.Answer(w, http.StatusOK, taken)
	}, nil
}
