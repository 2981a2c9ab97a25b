package notify

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/bus/events"
	"github.com/errand-run/errand/shared/run"
)

// What the control plane publishes is what the function understands.
func TestEventsAsTheyArePublishedAreTold(t *testing.T) {
	r := run.New(run.Spec{ID: "run1", Kind: run.KindAgent, Agent: "echo", Tenant: "acme", CreatedAt: run.At(at)}, run.Event{Type: run.EvSubmitted, At: run.At(at)})
	var happened []run.Event
	for _, e := range []run.Event{
		{Type: run.EvAssigned, Attempt: 1, Target: "pool", At: run.At(at) + 1},
		{Type: run.EvStarted, Attempt: 1, Worker: "w", At: run.At(at) + 2},
		{Type: run.EvFailed, Attempt: 1, Reason: run.AgentError, Class: run.ClassUser, Code: "BAD_PDF", At: run.At(at) + 3},
	} {
		if err := run.Decide(r, &e); err != nil {
			t.Fatal(err)
		}
		happened = append(happened, run.Evolve(r, e))
	}
	source, err := events.Source("cell-1")
	if err != nil {
		t.Fatal(err)
	}
	produced, err := events.Of(source, r, happened)
	if err != nil || len(produced) == 0 {
		t.Fatalf("%d events, %v", len(produced), err)
	}
	b := newBench(t, nil, &hook{})
	for i := range produced {
		m := events.Message(&produced[i])
		push, err := json.Marshal(map[string]any{
			"message":      map[string]any{"attributes": m.Attributes, "data": base64.StdEncoding.EncodeToString(m.Data), "messageId": "m1"},
			"subscription": "projects/p/subscriptions/errand-events-notify",
		})
		if err != nil {
			t.Fatal(err)
		}
		if w := b.post(string(push)); w.Code/100 != 2 {
			t.Fatalf("event %s: status %d: %s", produced[i].Type(), w.Code, w.Body)
		}
	}
	if len(b.bodies) != len(produced) {
		t.Fatalf("%d calls of the webhook for %d events", len(b.bodies), len(produced))
	}
	last := b.bodies[len(b.bodies)-1]
	for _, want := range []string{"run1", "AgentError", "failed", "acme"} {
		if !strings.Contains(last, want) {
			t.Errorf("the last call does not say %q: %s", want, last)
		}
	}
}
