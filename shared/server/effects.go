package server

import (
	"net/http"
	"strings"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
)

// mayPerform checks the scopes of an attempt's token: effect:NAME, where a final * stands for any rest.
func mayPerform(g control.Grant, effect string) error {
	if name, undoes := run.Undone(effect); undoes { // whoever may do it may undo it
		effect = name
	}
	for _, scope := range g.Scopes {
		pattern, ok := strings.CutPrefix(scope, "effect:")
		if !ok {
			continue
		}
		prefix, any := strings.CutSuffix(pattern, "*")
		if effect == pattern || (any && strings.HasPrefix(effect, prefix)) {
			return nil
		}
	}
	return problem(http.StatusForbidden, api.CodeForbidden,
		"agent %s may not perform effect %q; allow it under permissions.effects of the agent", g.Agent, clip(effect))
}

func (s *Server) beginEffect(w http.ResponseWriter, r *http.Request) error {
	// 1. By what right.
	runID, n, g, err := s.holder(r)
	if err != nil {
		return err
	}
	effect := pathValue(r, "effect")
	if err := unitName("path.effect", effect, maxEffect); err != nil {
		return err
	}
	if err := mayPerform(g, effect); err != nil {
		return err
	}
	// 2. What.
	q, err := decode[api.ReceiptBegin](w, r, maxSmall, false)
	if err != nil {
		return err
	}
	if err := unitName("body.requestHash", q.RequestHash, run.MaxReceiptMark); err != nil {
		return err
	}
	if err := unitName("body.nonce", q.Nonce, run.MaxReceiptMark); err != nil {
		return err
	}
	b := control.EffectBegin{
		Run: runID, N: n, Step: q.Step, Effect: effect, RequestHash: q.RequestHash, Nonce: q.Nonce, OnUnknown: q.OnUnknown, Reconciled: q.Reconciled, Compensable: q.Compensable,
	}
	switch {
	case len(q.Step) > run.MaxReceiptName:
		return invalidAt("body.step", "%d bytes; the limit is %d", len(q.Step), run.MaxReceiptName)
	case q.OnUnknown != "" && q.OnUnknown != string(run.UnknownAsk) && q.OnUnknown != string(run.UnknownReconcile) &&
		q.OnUnknown != string(run.UnknownRepeat) && q.OnUnknown != string(run.UnknownFail):
		return invalidAt("body.onUnknown", "%q; want ask, reconcile, repeat or fail", clip(q.OnUnknown))
	case q.Reconciled != "" && q.Reconciled != "didNotHappen":
		return invalidAt("body.reconciled", "%q; want didNotHappen, or commit what happened", clip(q.Reconciled))
	case q.Timeout != nil && *q.Timeout <= 0:
		return invalidAt("body.timeout", "%s; want more than 0s", q.Timeout.Std())
	case q.Timeout != nil:
		b.Timeout = q.Timeout.Std()
	}
	// 3. The answer is durable before it is given.
	ctx, cancel := detached(r.Context())
	defer cancel()
	a, err := s.plane.BeginEffect(ctx, b)
	if err == nil {
		err = a.Err
	}
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.ReceiptAnswer{
		Standing: standing(a.Result), Answer: a.Answer, ID: a.ID, Key: a.Key, Until: optional(a.Until), Result: a.Value, OnUnknown: a.OnUnknown,
	})
}

func (s *Server) endEffect(abandon bool) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		runID, n, g, err := s.holder(r)
		if err != nil {
			return err
		}
		effect := pathValue(r, "effect")
		if err := unitName("path.effect", effect, maxEffect); err != nil {
			return err
		}
		if err := mayPerform(g, effect); err != nil {
			return err
		}
		q, err := decode[api.ReceiptCommit](w, r, api.MaxBody, abandon)
		switch {
		case err != nil:
			return err
		case abandon && len(q.Result) > 0:
			return invalidAt("body.result", "given for an effect that did not happen")
		case abandon && q.Reconciled != "" && q.Reconciled != "didNotHappen":
			return invalidAt("body.reconciled", "%q; want didNotHappen, or commit what happened", clip(q.Reconciled))
		case !abandon && q.Reconciled != "" && q.Reconciled != "happened":
			return invalidAt("body.reconciled", "%q; want happened", clip(q.Reconciled))
		case len(q.Step) > run.MaxReceiptName:
			return invalidAt("body.step", "%d bytes; the limit is %d", len(q.Step), run.MaxReceiptName)
		}
		ctx, cancel := detached(r.Context())
		defer cancel()
		res, err := s.plane.EndEffect(ctx, control.EffectEnd{
			Run: runID, N: n, Step: q.Step, Effect: effect, Value: q.Result, Abandon: abandon, Reconciled: q.Reconciled == "happened",
		})
		if err == nil {
			err = res.Err
		}
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, standing(res))
	}
}
