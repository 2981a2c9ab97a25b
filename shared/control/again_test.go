package control

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// again repeats a run by whichever way the request says.
func (h *house) again(id string, q RetryRequest) Submitted {
	h.t.Helper()
	return await(h, func() Submitted { return h.p.RetryFrom(h.t.Context(), id, q) })
}

// failedRun is a run of the agent that is over.
func (h *house) failedRun(agent string) *run.Record {
	h.t.Helper()
	r := h.started(agent)
	h.report(runtime.Report{Type: runtime.Failed, Run: r.ID, N: 1, Final: true, Message: "broken"})
	return r
}

func TestARetryUnderAKeyIsMadeOnce(t *testing.T) {
	q := RetryRequest{Key: "k", Input: json.RawMessage(`{"a":1,"b":2}`)}
	for name, x := range map[string]struct {
		between func(h *house, first *run.Record) // the first retry and the second
		second  RetryRequest
		same    bool
		refused Code
	}{
		"the same again":                         {nil, q, true, ""},
		"the same in another form":               {nil, RetryRequest{Key: "k", Input: json.RawMessage(`{"b":2, "a":1}`), Actor: "bob"}, true, ""},
		"after a restart":                        {func(h *house, _ *run.Record) { h.open() }, q, true, ""},
		"once the new run is over":               {func(h *house, r *run.Record) { h.endNow(r.ID) }, q, true, ""},
		"another key":                            {nil, RetryRequest{Key: "l", Input: q.Input}, false, ""},
		"no key":                                 {nil, RetryRequest{Input: q.Input}, false, ""},
		"the same key with another input":        {nil, RetryRequest{Key: "k", Input: json.RawMessage(`1`)}, false, CodeConflict},
		"the same key without the input":         {nil, RetryRequest{Key: "k"}, false, CodeConflict},
		"a key that is too long":                 {nil, RetryRequest{Key: strings.Repeat("k", maxKey+1)}, false, CodeInvalid},
		"the same although its agent is no more": {func(h *house, r *run.Record) { h.endNow(r.ID); h.forget("echo") }, q, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("echo"))
			old := h.failedRun("echo")
			first := h.again(old.ID, q)
			if first.Err != nil || first.Existed || first.Run.RetryOf != old.ID || first.Run.Key != "k" || first.Run.WorkUnit() != old.WorkUnit() {
				t.Fatalf("the first retry gave %+v", first)
			}
			if x.between != nil {
				x.between(h, first.Run)
			}
			second := h.again(old.ID, x.second)
			var refusal *Refusal
			switch {
			case x.refused != "":
				if !errors.As(second.Err, &refusal) || refusal.Code != x.refused {
					t.Errorf("it gave %+v, want %s", second, x.refused)
				}
			case second.Err != nil:
				t.Error(second.Err)
			case (second.Run.ID == first.Run.ID) != x.same || second.Existed != x.same:
				t.Errorf("it gave run %s (existed: %t) after %s", second.Run.ID, second.Existed, first.Run.ID)
			}
		})
	}
}

func (h *house) endNow(id string) {
	h.t.Helper()
	if _, err := h.p.Cancel(h.t.Context(), id, CancelRequest{}); err != nil {
		h.t.Fatal(err)
	}
	h.pass(time.Minute) // an attempt that does not confirm it is over, too
}

func (h *house) forget(agent string) {
	h.t.Helper()
	if err := h.p.Delete(h.t.Context(), fleet.KindAgent, agent, 0, "ann"); err != nil {
		h.t.Fatal(err)
	}
}

func TestTheKeysOfEachRetriedRunAreItsOwn(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	a, b := h.failedRun("echo"), h.failedRun("echo")
	x, y := h.again(a.ID, RetryRequest{Key: "k"}), h.again(b.ID, RetryRequest{Key: "k"})
	if x.Err != nil || y.Err != nil || x.Run.ID == y.Run.ID || y.Existed {
		t.Fatalf("%+v and %+v", x, y)
	}
	// Nor does a submission under that key meet them.
	if r := h.submit(Submission{Agent: "echo", Key: "k"}); r.ID == x.Run.ID || r.RetryOf != "" {
		t.Errorf("a submission gave %+v", r.Spec)
	}
}

func TestTwoRetriesUnderAKeyAtOnceAreOne(t *testing.T) {
	for name, old := range map[string]func(h *house) *run.Record{
		"of an agent": func(h *house) *run.Record { return h.failedRun("echo") },
		"of a workflow": func(h *house) *run.Record {
			r := h.submit(Submission{Workflow: "w", Input: json.RawMessage("1")})
			h.labor(crew{"plus": plus, "echo": says("!BAD")})
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("plus"), agentNamed("echo"),
				flowNamed("w", fleet.Stage{Name: "a", Agent: "plus"}, fleet.Stage{Name: "b", Agent: "echo"}))
			of := old(h)
			var got []Submitted
			for range 2 { // both are checked before either is written
				h.p.enterRetry(t.Context(), of.ID, RetryRequest{Key: "k"}, func(s Submitted) { got = append(got, s) })
			}
			h.settle()
			if len(got) != 2 || got[0].Err != nil || got[1].Err != nil || got[0].Run.ID != got[1].Run.ID || got[0].Existed == got[1].Existed {
				t.Fatalf("they gave %+v", got)
			}
			page, err := h.p.store.List(t.Context(), store.Query{By: store.ByCreated, Limit: 100})
			if err != nil {
				t.Fatal(err)
			}
			retries := 0
			for _, d := range page.Docs {
				if r, err := run.DecodeRecord(d.Body); err == nil && r.RetryOf == of.ID {
					retries++
				}
			}
			if retries != 1 {
				t.Errorf("%d runs repeat it", retries)
			}
		})
	}
}
