package retry

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
)

const now = run.Instant(1_800_000_000_000)

var policy = fleet.Retry{
	MaxAttempts: 4,
	Backoff:     fleet.Backoff{Initial: second, Factor: 2, Max: 5 * minute},
}

// running is a run in its nth started attempt, with nothing given back.
func running(n int) *run.Record {
	return &run.Record{
		Spec: run.Spec{ID: "r1"}, State: run.Running, Attempt: n, Spent: n, Target: "t1",
		Attempts: []run.Attempt{{N: n, Target: "t1", AssignedAt: now - 2000, StartedAt: now - 1000}},
	}
}

func with(r *run.Record, change func(*run.Record)) *run.Record {
	change(r)
	return r
}

func rules(on ...fleet.RetryRule) fleet.Retry {
	p := policy
	p.On = on
	return p
}

func TestDecide(t *testing.T) {
	notStarted := func(r *run.Record) { r.State, r.Attempts[0].StartedAt, r.Spent = run.Assigned, 0, r.Spent-1 }
	returned := func(n int) func(*run.Record) { return func(r *run.Record) { r.Returned = n } }
	badPDF := fleet.RetryRule{Code: "BAD_PDF", Action: fleet.ActionFail}
	user := Failure{Class: run.ClassUser, Code: "E1", Message: "broken"}

	again := func(wait time.Duration, why run.Reason) Verdict {
		return Verdict{Action: Retry, Due: now.Add(wait), Reason: why}
	}
	givenBack := func(wait time.Duration, why run.Reason) Verdict {
		v := again(wait, why)
		v.Unspent = true
		return v
	}
	ends := func(why run.Reason) Verdict { return Verdict{Action: Fail, Reason: why} }

	for name, c := range map[string]struct {
		p    fleet.Retry
		r    *run.Record
		f    Failure
		want Verdict
		says string // part of the message
	}{
		"an agent's error is retried after the backoff": {policy, running(1), user, again(time.Second, run.AgentError), "E1: broken"},
		"the third error waits longer":                  {policy, running(3), user, again(4*time.Second, run.AgentError), ""},
		"the last attempt's error ends the run":         {policy, running(4), user, ends(run.BackoffLimitExceeded), "E1: broken (4 of 4"},
		"a policy without a number allows one attempt":  {fleet.Retry{}, running(1), user, ends(run.BackoffLimitExceeded), "1 of 1"},
		"an unknown class counts as the agent's":        {policy, running(1), Failure{Class: "odd"}, again(time.Second, run.AgentError), ""},

		"a time-out spends":           {policy, running(2), Failure{Class: run.ClassTimeout}, again(2*time.Second, run.AttemptTimeout), ""},
		"the last time-out is named":  {policy, running(4), Failure{Class: run.ClassTimeout}, ends(run.AttemptTimeout), "class timeout"},
		"a lost worker spends":        {policy, running(1), Failure{Class: run.ClassLost}, again(time.Second, run.HeartbeatLost), ""},
		"the last lost one is named":  {policy, running(4), Failure{Class: run.ClassLost}, ends(run.HeartbeatLost), ""},
		"a platform failure is free":  {policy, running(4), Failure{Class: run.ClassInfrastructure}, givenBack(time.Second, run.InfrastructureFailure), ""},
		"a throttle is free":          {policy, running(4), Failure{Class: run.ClassThrottled}, givenBack(time.Second, run.Throttled), ""},
		"free ones back off together": {policy, with(running(1), returned(3)), Failure{Class: run.ClassThrottled}, givenBack(8*time.Second, run.Throttled), ""},
		"the last free one":           {policy, with(running(1), returned(run.MaxReturned-1)), Failure{Class: run.ClassThrottled}, givenBack(5*time.Minute, run.Throttled), ""},
		"free ones have an end":       {policy, with(running(1), returned(run.MaxReturned)), Failure{Class: run.ClassThrottled, Message: "429"}, ends(run.ReturnLimit), "429 (50 attempts were given back"},
		"returned ones spend nothing": {policy, with(running(1), returned(run.MaxReturned)), user, again(time.Second, run.AgentError), ""},
		"an attempt that never started is free": {
			policy, with(running(1), notStarted), Failure{Class: run.ClassLost}, givenBack(time.Second, run.HeartbeatLost), ""},
		"a canceled attempt is not retried":      {policy, running(1), Failure{Class: run.ClassCanceled}, ends(run.CanceledByRequest), ""},
		"unless the agent says it may be":        {policy, running(1), Failure{Class: run.ClassCanceled, Retryable: true}, again(time.Second, run.AgentError), ""},
		"a used-up budget is final":              {rules(fleet.RetryRule{Class: "budget", Action: fleet.ActionRetry}), running(1), Failure{Class: run.ClassBudget}, ends(run.BudgetExceeded), ""},
		"an outcome that nobody knows":           {policy, running(1), Failure{Code: "OutcomeUnknown", Final: true}, ends(run.OutcomeUnknown), "the agent says"},
		"the agent's word ends it":               {policy, running(1), Failure{Code: "E9", Final: true}, ends(run.NonRetryable), "the agent says"},
		"a canceled run is not tried again":      {policy, with(running(1), func(r *run.Record) { r.State = run.Canceling }), user, ends(run.CanceledByRequest), ""},
		"nor one that is told to stop":           {policy, with(running(1), func(r *run.Record) { r.Stop = &run.Stop{Class: run.ClassCanceled} }), user, ends(run.CanceledByRequest), ""},
		"a time-out's stop does not forbid more": {policy, with(running(1), func(r *run.Record) { r.Stop = &run.Stop{Class: run.ClassTimeout} }), Failure{Class: run.ClassTimeout}, again(time.Second, run.AttemptTimeout), ""},

		"a rule by code ends the run":            {rules(badPDF), running(1), Failure{Code: "BAD_PDF", Message: "page 3"}, ends(run.NonRetryable), "BAD_PDF: page 3 (retry.on[0] says fail)"},
		"a rule for another code says nothing":   {rules(badPDF), running(1), user, again(time.Second, run.AgentError), ""},
		"a rule by class ends the run":           {rules(fleet.RetryRule{Class: "timeout", Action: fleet.ActionFail}), running(1), Failure{Class: run.ClassTimeout}, ends(run.NonRetryable), ""},
		"a rule with both needs both":            {rules(fleet.RetryRule{Class: "user", Code: "E2", Action: fleet.ActionFail}), running(1), user, again(time.Second, run.AgentError), ""},
		"an exit code is a code":                 {rules(fleet.RetryRule{Code: "42", Action: fleet.ActionIgnore}), running(4), Failure{Code: "42"}, givenBack(time.Second, run.AgentError), ""},
		"ignored ones have an end too":           {rules(fleet.RetryRule{Code: "42", Action: fleet.ActionIgnore}), with(running(1), returned(run.MaxReturned)), Failure{Code: "42"}, ends(run.ReturnLimit), ""},
		"the first rule that matches decides":    {rules(fleet.RetryRule{Code: "E1", Action: fleet.ActionRetry}, fleet.RetryRule{Class: "user", Action: fleet.ActionFail}), running(1), user, again(time.Second, run.AgentError), ""},
		"a rule outranks the agent":              {rules(fleet.RetryRule{Code: "E1", Action: fleet.ActionRetry}), running(1), Failure{Code: "E1", Final: true}, again(time.Second, run.AgentError), ""},
		"a rule with no field matches nothing":   {rules(fleet.RetryRule{Action: fleet.ActionFail}), running(1), user, again(time.Second, run.AgentError), ""},
		"a retry rule leaves a throttle unspent": {rules(fleet.RetryRule{Class: "throttled", Action: fleet.ActionRetry}), running(4), Failure{Class: run.ClassThrottled}, givenBack(time.Second, run.Throttled), ""},

		"a Retry-After above the backoff is kept": {policy, running(1), Failure{RetryAfter: 3 * time.Second}, again(3*time.Second, run.AgentError), ""},
		"one below the backoff is already met":    {policy, running(3), Failure{RetryAfter: time.Second}, again(4*time.Second, run.AgentError), ""},
		"one of nothing leaves the backoff":       {policy, running(1), Failure{RetryAfter: 0}, again(time.Second, run.AgentError), ""},
		"a negative one is ignored":               {policy, running(1), Failure{RetryAfter: -5 * time.Second}, again(time.Second, run.AgentError), ""},
		"a part of a millisecond is rounded up":   {policy, running(1), Failure{RetryAfter: 2*time.Second + 1}, again(2001*time.Millisecond, run.AgentError), ""},
		"one of days is cut at the cap and shown": {policy, running(1), Failure{Class: run.ClassThrottled, RetryAfter: 400000 * time.Second}, givenBack(5*time.Minute, run.Throttled), "asked to wait 111h6m40s, the policy waits at most 5m0s"},
		"the longest one is cut at the cap":       {policy, running(1), Failure{RetryAfter: 1<<63 - 1}, again(5*time.Minute, run.AgentError), "at most 5m0s"},

		"a wait that ends before the deadline is kept": {policy, with(running(1), func(r *run.Record) { r.Deadline = now + 1001 }), user, again(time.Second, run.AgentError), ""},
		"a wait that reaches it ends the run now":      {policy, with(running(1), func(r *run.Record) { r.Deadline = now + 1000 }), user, ends(run.DeadlineExceeded), "deadline is 2027-01-15T08:00:01Z"},
		"so does a Retry-After beyond it": {
			policy, with(running(1), func(r *run.Record) { r.Deadline = now.Add(time.Minute) }), Failure{RetryAfter: 7 * 24 * time.Hour}, ends(run.DeadlineExceeded), "asked to wait 168h0m0s"},
		"used-up attempts are told before the deadline": {policy, with(running(4), func(r *run.Record) { r.Deadline = now }), user, ends(run.BackoffLimitExceeded), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Decide(c.p, c.r, c.f, now, 0)
			if !strings.Contains(got.Message, c.says) || got.Message == "" {
				t.Errorf("message %q does not say %q", got.Message, c.says)
			}
			got.Message = ""
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

func TestALongErrorLeavesRoomForTheDecision(t *testing.T) {
	v := Decide(policy, running(4), Failure{Message: strings.Repeat("é", run.MaxMessage)}, now, 0)
	if len(v.Message) > run.MaxMessage || !strings.HasSuffix(v.Message, "(4 of 4 attempts are used)") {
		t.Errorf("message of %d bytes ends %q", len(v.Message), v.Message[len(v.Message)-40:])
	}
}

// Whatever fails, however often and in whatever order, a run ends within its attempts and those given back, and no
// verdict waits outside the bounds.
func TestEveryRunOfFailuresEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := fleet.Retry{
			MaxAttempts: rapid.IntRange(1, 20).Draw(t, "maxAttempts"),
			Backoff:     fleet.Backoff{Initial: second, Factor: 2, Max: 5 * minute, Jitter: 0.2},
		}
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			p.On = append(p.On, fleet.RetryRule{
				Class:  rapid.SampledFrom(append(fleet.Classes(), "")).Draw(t, "ruleClass"),
				Code:   rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "ruleCode"),
				Action: rapid.SampledFrom([]fleet.RetryAction{fleet.ActionRetry, fleet.ActionIgnore}).Draw(t, "ruleAction"),
			})
		}
		most := p.MaxAttempts + run.MaxReturned
		r := run.New(run.Spec{ID: "r"}, run.Event{Type: run.EvSubmitted, At: now})
		for attempts := 1; ; attempts++ {
			if attempts > most {
				t.Fatalf("still going after %d attempts", most)
			}
			step(t, r, run.Event{Type: run.EvAssigned, Attempt: r.Attempt + 1, Target: "t"})
			if rapid.Bool().Draw(t, "starts") {
				step(t, r, run.Event{Type: run.EvStarted, Attempt: r.Attempt})
			}
			f := Failure{
				Class:      rapid.SampledFrom(run.Classes).Draw(t, "class"),
				Code:       rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "code"),
				RetryAfter: time.Duration(rapid.Int64().Draw(t, "retryAfter")),
			}
			v := Decide(p, r, f, r.UpdatedAt, rapid.Uint64().Draw(t, "roll"))
			if v.Action == Fail {
				if v.Reason == "" || v.Message == "" {
					t.Fatalf("ended without a word: %+v", v)
				}
				return
			}
			if wait := v.Due.Sub(r.UpdatedAt); wait < 0 || wait > 6*time.Minute {
				t.Fatalf("waits %s after %+v", wait, f)
			}
			step(t, r, run.Event{Type: run.EvBackedOff, Attempt: r.Attempt, Due: v.Due, Reason: v.Reason, Unspent: v.Unspent})
			step(t, r, run.Event{Type: run.EvRequeued, At: v.Due})
		}
	})
}

func step(t *rapid.T, r *run.Record, e run.Event) {
	if err := run.Decide(r, &e); err != nil {
		t.Fatal(err)
	}
	run.Evolve(r, e)
}
