package agent

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAHandlerAsksPeople(t *testing.T) {
	type payment struct {
		IBAN   string  `json:"iban"`
		Amount float64 `json:"amount"`
	}
	for name, c := range map[string]struct {
		decision string
		amount   func(attempt int) float64
		output   string
		code     string
	}{
		"they approve":                  {"approved", nil, `{"ok":true,"by":["ann"]}`, ""},
		"they reject":                   {"rejected", nil, `{"ok":false,"by":["ann"]}`, ""},
		"nobody answers":                {"expired", nil, `{"ok":false,"by":[]}`, ""},
		"the action is another by then": {"approved", func(n int) float64 { return float64(n) }, "", CodeActionChanged},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.decision = c.decision
				var parked error
				r := perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (map[string]any, error) {
					p := payment{"DE1", 12.5}
					if c.amount != nil {
						p.Amount = c.amount(r.Attempt)
					}
					d, err := Decide(ctx, r, Question{
						Title: "Pay ACME", Action: p, Approvers: []string{"group:finance"}, Quorum: 1, NotRequester: true, Expires: 48 * time.Hour,
						Remind: time.Hour, Escalate: &Escalate{After: time.Hour, To: []string{"group:cfo"}}, Context: map[string]int{"lines": 3}, Diff: "+1",
					})
					if err != nil {
						if r.Attempt == 1 {
							parked = err
						}
						return nil, err
					}
					return map[string]any{"ok": d.Approved, "by": d.By}, nil
				})
				if !errors.Is(parked, ErrParked) || r.n != 2 {
					t.Fatalf("%d attempts, the first ended with %v", r.n, parked)
				}
				if c.code != "" {
					if r.failure == nil || r.failure.Code != c.code || r.failure.Retryable == nil || *r.failure.Retryable {
						t.Errorf("failed with %+v", r.failure)
					}
					return
				}
				var got, want any
				_ = json.Unmarshal(r.output, &got)
				_ = json.Unmarshal([]byte(c.output), &want)
				if a, _ := json.Marshal(got); string(a) != func() string { b, _ := json.Marshal(want); return string(b) }() {
					t.Errorf("output %s, want %s (%s)", r.output, c.output, r.why())
				}
				q := r.question
				if q.Title != "Pay ACME" || string(q.Action) != `{"iban":"DE1","amount":12.5}` || q.Expires.Std() != 48*time.Hour ||
					q.Escalate.To[0] != "group:cfo" || string(q.Context) != `{"lines":3}` {
					t.Errorf("asked %+v", q)
				}
			})
		})
	}
}

func TestAskSaysYesOrNo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.decision = "approved"
		r := perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (bool, error) {
			first, err := Ask(ctx, r, Question{Title: "one", Action: 1})
			if err != nil || !first {
				return false, err
			}
			return first, nil
		})
		if string(r.output) != "true" {
			t.Errorf("output %s (%s)", r.output, r.why())
		}
		r = perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (bool, error) {
			return Ask(ctx, r, Question{Title: "no JSON", Action: func() {}})
		})
		if r.failure == nil || r.failure.Code != CodeQuestionInvalid {
			t.Errorf("failed with %+v", r.failure)
		}
	})
}
