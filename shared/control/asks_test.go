package control

import (
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

func (h *house) explain(id string) Explanation {
	h.t.Helper()
	e, err := h.p.Explain(h.t.Context(), id, "")
	if err != nil {
		h.t.Fatal(err)
	}
	return e
}

// asksWord leaves a run in its undoing, by a run that waits for a person's word on the effect of the first.
func (h *house) asksWord() (r *run.Record, a runtime.Assignment, receipt string) {
	h.t.Helper()
	r = h.started("payer")
	h.begin(EffectBegin{Run: r.ID, N: 1, Effect: "charge", Compensable: true, Timeout: 5 * time.Second})
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Message: "no answer"})
	h.pass(time.Minute)
	leases := h.lease("w1", 1, "payer")
	if len(leases) != 1 || len(leases[0].Receipts) != 1 {
		h.t.Fatalf("leases %+v", leases)
	}
	a = leases[0]
	receipt = a.Receipts[0].ID
	h.report(runtime.Report{Type: runtime.Parked, Run: a.Run, N: a.N, Worker: "w1",
		Park: &run.Park{On: run.OnInput, Step: "receipt:" + receipt + "#1", Name: "receipt:" + receipt}})
	wantState(h.t, h.get(r.ID), run.Compensating, run.NonRetryable)
	return r, a, receipt
}

func TestAnExplanationSaysWhatAPersonHasToSay(t *testing.T) {
	owned := payer(func(a *fleet.Agent) {
		a.Retry.MaxAttempts = 1
		a.Effects.Settle = fleet.Duration(time.Second)
		a.Meta.Labels = map[string]string{"owner": "finance"}
	})
	for name, x := range map[string]struct {
		stands func(h *house) (explained string, want []string)
	}{
		"of the run that is undone": {func(h *house) (string, []string) {
			r, _, receipt := h.asksWord()
			return r.ID, []string{"is undone now", "effect charge of run " + r.ID, "receipt " + receipt, "owner group:finance", "errand resolve " + receipt + " --happened", "errand resolve " + receipt + " --not"}
		}},
		"of the run that undoes it": {func(h *house) (string, []string) {
			r, a, receipt := h.asksWord()
			return a.Run, []string{"until a person answers", "effect charge of run " + r.ID, "errand resolve " + receipt + " --not"}
		}},
		"after a restart": {func(h *house) (string, []string) {
			r, _, receipt := h.asksWord()
			h.open()
			return r.ID, []string{"errand resolve " + receipt + " --happened"}
		}},
		"of what could not be undone": {func(h *house) (string, []string) {
			r := h.started("payer")
			h.does(r.ID, 1, "charge")
			h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Message: "broken"})
			h.undoes("w1", "payer", func(string) bool { return true })
			h.settle()
			wantState(h.t, h.get(r.ID), run.Compensating, run.CompensationFailed)
			return r.ID, []string{"Not all that it did could be undone", "asks group:finance", "errand approve ", "errand reject "}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, owned)
			id, want := x.stands(h)
			e := h.explain(id)
			story := strings.Join(e.Story, "\n")
			for _, w := range want {
				if !strings.Contains(story, w) {
					t.Errorf("it does not say %q:\n%s", w, story)
				}
			}
			if len(e.Asks) != 1 || e.Asks[0].Owner != "group:finance" {
				t.Errorf("asks %+v", e.Asks)
			}
		})
	}
	t.Run("of a gate that asks nobody by name", func(t *testing.T) {
		h := newHouse(t, owned)
		r, g := h.atGate(run.GateAsk{Title: "Pay?", Action: []byte("1")})
		if story, want := strings.Join(h.explain(r.ID).Story, "\n"), "Gate "+g.ID+` asks everybody who may approve: "Pay?". Decide`; !strings.Contains(story, want) {
			t.Errorf("it does not say %q:\n%s", want, story)
		}
	})
	t.Run("no more once it is said", func(t *testing.T) {
		h := newHouse(t, owned)
		r, _, receipt := h.asksWord()
		if _, err := h.p.Resolve(t.Context(), receipt, false, nil, "ann"); err != nil {
			t.Fatal(err)
		}
		h.settle()
		if e := h.explain(r.ID); len(e.Asks) != 0 || strings.Contains(strings.Join(e.Story, "\n"), "errand resolve") {
			t.Errorf("it still asks: %+v\n%s", e.Asks, strings.Join(e.Story, "\n"))
		}
	})
}
