package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// Acceptance of waits, deadlines and timeouts.

// TestRetryAfterIsHonouredWithinReason is the outside of case F42: what servers ask for is kept to the cap and to the
// deadline, and nonsense is ignored.
func TestRetryAfterIsHonouredWithinReason(t *testing.T) {
	t.Parallel()
	// An agent that asks for the wait in its input, once.
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		doc, err := api.ReadDocument(r.Body)
		var header string
		if err == nil {
			err = json.Unmarshal(doc.Input, &header)
		}
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case strings.HasSuffix(doc.Attempt, ".1"):
			w.Header().Set("Retry-After", header)
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			fmt.Fprint(w, `"done"`)
		}
	}))
	t.Cleanup(service.Close)
	s := newServer(t, fmt.Sprintf(`apiVersion: errand.dev/v1
kind: Agent
metadata: {name: patient}
spec:
  shape: service
  run: {url: %q}
  retry: {backoff: {initial: 250ms, factor: 2, max: 4s, jitter: 0}}`, service.URL))
	const initial, longest = 250 * time.Millisecond, 4 * time.Second
	tests := map[string]struct {
		header  string
		wantMin time.Duration
		wantMax time.Duration
	}{
		"nothing asked for is the backoff":      {"0", initial, initial},
		"a negative wait is ignored":            {"-5", initial, initial},
		"garbage is ignored":                    {"soon", initial, initial},
		"a number beyond any type is cut":       {"99999999999999999999999", initial, longest},
		"a date in the past is ignored":         {time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), initial, initial},
		"two seconds are waited":                {"2", 2 * time.Second, 2 * time.Second},
		"days are cut at the longest backoff":   {"400000", longest, longest},
		"a date next week is cut there as well": {time.Now().Add(7 * 24 * time.Hour).UTC().Format(http.TimeFormat), longest, longest},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			input, err := json.Marshal(test.header)
			if err != nil {
				t.Fatal(err)
			}
			r := s.on(t).ends(s.on(t).submit("patient", string(input)).ID)
			if r.State != "succeeded" || r.Attempt != 2 {
				t.Fatalf("%+v, want succeeded at the second attempt", r)
			}
			for _, e := range s.on(t).history(r.ID) {
				if e.Type != "backedOff" {
					continue
				}
				if wait := e.Due.Sub(e.At.Time); wait < test.wantMin || wait > test.wantMax || e.Reason != "Throttled" {
					t.Errorf("backed off for %s (%s: %s), want %s to %s for Throttled", wait, e.Reason, e.Message, test.wantMin, test.wantMax)
				}
			}
		})
	}
	t.Run("a wait that would pass the deadline ends the run now", func(t *testing.T) {
		t.Parallel()
		deadline := time.Now().Add(3 * time.Second)
		r := s.on(t).submitRun(api.Submit{Agent: "patient", Input: []byte(`"400000"`), Deadline: &api.Time{Time: deadline}})
		r = s.on(t).ends(r.ID)
		if r.State != "failed" || r.Reason != "DeadlineExceeded" || !r.EndedAt.Before(deadline) || !strings.Contains(r.Message, "asked to wait") {
			t.Errorf("%+v, want failed with DeadlineExceeded before %s, and the wait that was asked for", r, deadline)
		}
	})
}

// on is the server with helpers that fail another test.
func (s *server) on(t *testing.T) *server {
	place := *s.place
	place.t = t
	other := *s
	other.place = &place
	return &other
}

// TestDeadlinesSurviveAKillOfTheServer is case F39: nothing happens to these runs but that the server is killed and
// started again.
func TestDeadlinesSurviveAKillOfTheServer(t *testing.T) {
	t.Parallel()
	const limit = 8 * time.Second
	p := newPlace(t)
	s := newServerAt(p, target("desk", 4, "region: here"), p.agent("actor", "actor", "worker", fmt.Sprintf(`
	shape: pool
	timeouts: {run: %s}`, limit)), p.agent("paused", "actor", "worker", "shape: pool"), p.agent("stranded", "actor", "worker", `
	shape: pool
	needs: {accelerator: nvidia-l4}`))
	if err := s.PauseAgent(t.Context(), "paused"); err != nil {
		t.Fatal(err)
	}
	submit := func(agent, script string) string {
		t.Helper()
		r := api.Submit{Agent: agent, Input: []byte(script)}
		if agent != "actor" {
			r.Deadline = &api.Time{Time: time.Now().Add(limit)}
		}
		return s.submitRun(r).ID
	}
	runs := map[string]string{
		"running":       submit("actor", `{"scenes": [{"gate": "never"}]}`),
		"queued":        submit("paused", `{}`),
		"waiting":       submit("actor", `{"scenes": [{"await": "godot"}]}`),
		"unschedulable": submit("stranded", `{}`),
		"suspended":     submit("paused", `{}`),
	}
	do(s.Suspend(t.Context(), runs["suspended"]))(t)
	for state, id := range runs {
		s.reaches(id, state)
	}
	s.Reboot()
	served := time.Now()
	for state, id := range runs {
		ctx, cancel := context.WithTimeout(t.Context(), outside.Patience)
		r, err := s.WaitRun(ctx, id)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if r.State != "failed" || r.Reason != "DeadlineExceeded" {
			t.Errorf("the one that was %s is %s (%s: %s), want failed with DeadlineExceeded", state, r.State, r.Reason, r.Message)
			continue
		}
		// The bound is for a machine that has other things to do.
		late := r.EndedAt.Sub(r.Deadline.Time)
		t.Logf("the one that was %s ended %s after its deadline", state, late)
		if late < 0 || late > max(served.Sub(r.Deadline.Time), 0)+3*time.Second {
			t.Errorf("the one that was %s ended %s after its deadline", state, late)
		}
	}
	s.idle()
}

// TestTimedOutAttemptNeverRunsBesideItsSuccessor is case F16.
func TestTimedOutAttemptNeverRunsBesideItsSuccessor(t *testing.T) {
	const timeouts = quick + `
	effects: {settle: 200ms}
	timeouts: {attempt: 2s}`
	tests := map[string]struct {
		protocol, script string
		wantEffects      int
		wantKilled       bool
	}{
		"one that ends late, and acts only then": {
			"worker", `{"scenes": [{"spend": 1, "deaf": true, "pause": "4s", "act": "mail"}, {"spend": 1, "act": "mail"}]}`, 1, false,
		},
		"one that is acting when its time is over": {
			"worker", `{"scenes": [{"spend": 1, "deaf": true, "act": "mail", "for": "4s"}, {"spend": 1, "act": "mail"}]}`, 1, false,
		},
		"a handler that never ends":        {"worker", `{"scenes": [{"spend": 1, "deaf": true, "gate": "never"}, {"spend": 1}]}`, 0, true},
		"a program that never ends":        {"stdio", `{"scenes": [{"spend": 1, "deaf": true, "gate": "never"}, {"spend": 1}]}`, 0, true},
		"a request that is never answered": {"http", `{"scenes": [{"spend": 1, "deaf": true, "gate": "never"}, {"spend": 1}]}`, 0, true},
		"a program that acts after its timeout": {
			"stdio", `{"scenes": [{"spend": 1, "deaf": true, "pause": "4s", "act": "mail"}, {"spend": 1, "act": "mail"}]}`, 1, false,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			s := newServerAt(p, p.agent("actor", "actor", test.protocol, timeouts))
			id := s.submit("actor", test.script).ID
			first := s.entered(id, 1)
			s.entered(id, 2)
			// 1. When the second begins, the first has ended for good.
			if test.wantKilled && alive(first) {
				t.Errorf("the second attempt has begun while process %d of the first one is there", first)
			}
			s.succeeds(id)
			attempts := s.attempts(id)
			if attempts[1].StartedAt.Before(attempts[0].EndedAt.Time) {
				t.Errorf("the second attempt started at %s, before the first ended at %s", attempts[1].StartedAt, attempts[0].EndedAt)
			}
			if diff := cmp.Diff([]string{"failed timeout", "succeeded"}, s.fates(id)); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
			// 2. What it did happened once, and what it cost counts.
			if effects := p.notes("effects"); len(effects) != test.wantEffects {
				t.Errorf("effects %q, want %d", effects, test.wantEffects)
			}
			if cost := s.get(id).Cost.USD; cost != 2 {
				t.Errorf("the run cost $%v, want the $1 of each attempt", cost)
			}
			s.idle()
		})
	}
}
