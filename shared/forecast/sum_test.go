package forecast_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
)

// TestSumsOverRunsOutgrowNanoseconds plays 300 days of 800 runs: 2e10 run-seconds, more than int64 nanoseconds hold.
func TestSumsOverRunsOutgrowNanoseconds(t *testing.T) {
	const day = 24 * time.Hour
	long := forecast.Constant(float64(299 * day))
	objects := []fleet.Object{agentOf("a", func(a *fleet.Agent) {
		a.Timeouts.Attempt, a.Timeouts.Queue = fleet.Duration(300*day), fleet.Duration(300*day)
	}), targetOf("t", 400)}
	s := forecast.Side{Objects: objects, Result: play(t, 300*day, objects, []forecast.Stream{batch("flood", 400, long), batch("acme", 800, long)})}
	acme := s.Result.Tenants[0]
	near := func(what string, got float64, want float64) {
		t.Helper()
		if math.Abs(got-want) > want/100 {
			t.Errorf("%s: %g, want %g", what, got, want)
		}
	}
	for name, check := range map[string]func(){
		"causes add up to what the queue held": func() { near("waited", float64(s.Result.Total.Waited()), (800*299+400)*day.Seconds()) },
		"a tenant's causes are its own": func() {
			want := 0.0
			for _, n := range s.Result.Series.Tenants[0].Queued {
				want += n * s.Result.Series.Step.Std().Seconds()
			}
			near("waited", float64(acme.Waited()), want)
		},
		"who held the slots is told": func() {
			if len(acme.Behind) != 1 {
				t.Fatalf("behind %+v", acme.Behind)
			}
			near("behind", float64(acme.Behind[0].For), float64(acme.Causes[forecast.CauseShare]))
		},
		"the time in slots is that of all attempts": func() { near("slot time", float64(s.Result.Total.SlotTime), 400*299*day.Seconds()) },
		"JSON has the seconds": func() {
			text, err := json.Marshal(s.Result.Total)
			var read struct {
				Causes map[string]float64
			}
			if err == nil {
				err = json.Unmarshal(text, &read)
			}
			if err != nil {
				t.Fatal(err)
			}
			near("own and others", read.Causes["own"]+read.Causes["others"], float64(s.Result.Total.Waited()))
		},
		"shares are of the whole": func() {
			said := forecast.Explain(s)[0].Text
			if !strings.Contains(said, " % of its waiting was for slots held by ") || strings.Contains(said, "-") {
				t.Errorf("it says %s", said)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { check() })
	}
}

func TestTokensEndAtTheLargestCount(t *testing.T) {
	acme := forecast.Kind{Tenant: "acme", Agent: "a", Duration: forecast.Constant(seconds(1)), InputTokens: forecast.Constant(1e18), OutputTokens: forecast.Constant(1e18)}
	beta := acme
	beta.Tenant = "beta"
	r := play(t, time.Hour, []fleet.Object{agentOf("a"), targetOf("t", 9)}, []forecast.Stream{
		{Kind: &acme, Batches: []forecast.Batch{{Count: 20}}}, {Kind: &beta, Batches: []forecast.Batch{{Count: 4}}},
	})
	if r.Total.Tokens != math.MaxInt64 {
		t.Errorf("%d tokens, want the largest count", r.Total.Tokens)
	}
}

func TestSumsAreWrittenWhateverTheirSize(t *testing.T) {
	for name, tc := range map[string]struct {
		sum        forecast.Sum
		text, json string
	}{
		"nothing":                       {0, "0s", "0"},
		"as a span is":                  {7800.0004, "2h10m", "7800"},
		"milliseconds behind the point": {0.0625, "63ms", "0.063"},
		"more than a span holds":        {1e11, "1157407d", "100000000000"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(tc.sum)
			if err != nil || string(got) != tc.json || tc.sum.String() != tc.text {
				t.Errorf("%s and %s (%v), want %s and %s", tc.sum, got, err, tc.text, tc.json)
			}
		})
	}
}
