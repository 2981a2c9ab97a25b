package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func said(words ...string) (out []api.GateDecision) {
	for _, w := range words {
		by, word, _ := strings.Cut(w, " ")
		out = append(out, api.GateDecision{By: by, Decision: word})
	}
	return out
}

func TestAGateSaysHowItStands(t *testing.T) {
	until := api.Time{Time: noon.Add(25 * time.Hour)}
	for want, g := range map[string]api.Gate{
		"Nobody has approved yet. It is open until 2026-01-02 13:00 UTC, for 25h.":           {State: "open", Quorum: 1, Expires: &until},
		"None of the 2 who must approve has.":                                                {State: "open", Quorum: 2},
		"1 of 2 have approved: ann.":                                                         {State: "open", Quorum: 2, Decisions: said("ann approve")},
		"Approved by ann, bob.":                                                              {State: "approved", Quorum: 2, Decisions: said("ann approve", "bob approve")},
		"Nobody decided in time, and so it is approved, as its onExpiry says.":               {State: "approved", Quorum: 2, Decisions: said("ann approve")},
		"Rejected by bob.":                                                                   {State: "rejected", Quorum: 2, Decisions: said("ann approve", "bob reject")},
		"Nobody decided in time, and so it is not approved.":                                 {State: "expired", Quorum: 1},
		"Its run does not wait for it yet, so nobody can decide it.":                         {State: "requested", Quorum: 1},
		"Its run has ended or does not wait for it any more, so there is nothing to decide.": {State: "canceled", Quorum: 1},
	} {
		if got := verdict(noon, g); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	if n := approvals(api.Gate{Decisions: said("ann approve", "bob reject")}); n != 1 {
		t.Errorf("%d approvals, want 1: a rejection is none", n)
	}
}

func TestAGateSaysWhatFollowsEachAnswer(t *testing.T) {
	until := &api.Time{Time: noon}
	for name, c := range map[string]struct {
		gate                   api.Gate
		approve, reject, never string
	}{
		"a workflow": {api.Gate{Workflow: "w", Quorum: 1, Expires: until, OnExpiry: "reject"},
			"The run goes on, with exactly this action.", "The run ends as failed", "It counts as rejected."},
		"an agent": {api.Gate{Agent: "a", Quorum: 1, Expires: until, OnExpiry: "approve"},
			"The run goes on", "The agent is told, and goes on without this action.", "It is approved."},
		"two must, and nobody has": {api.Gate{Workflow: "w", Quorum: 2, Expires: until, OnExpiry: "escalate"},
			"Your approval is noted, and one more person must approve too. Then: the run goes on", "One rejection is enough.", "may decide as well"},
		"three must, and nobody has": {api.Gate{Workflow: "w", Quorum: 3}, "2 more people", "", ""},
		"two must, and one has": {api.Gate{Workflow: "w", Quorum: 2, Decisions: said("ann approve")},
			"The run goes on", "One rejection is enough.", ""},
		"what could not be undone": {api.Gate{Workflow: "w", Step: "undo/book#11", Quorum: 1}, "It is tried again.", "It is left as it is", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := consequences(c.gate)
			for i, want := range []string{c.approve, c.reject, c.never} {
				switch {
				case i == len(got):
					if want != "" {
						t.Errorf("nothing is said of no answer, want %q", want)
					}
				case !strings.Contains(got[i].Then, want):
					t.Errorf("%s: %q, want %q", got[i].If, got[i].Then, want)
				}
			}
		})
	}
}
