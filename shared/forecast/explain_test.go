package forecast_test

import (
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
)

// side plays streams for half an hour.
func side(t *testing.T, objects []fleet.Object, streams []forecast.Stream) forecast.Side {
	return forecast.Side{Name: "fleet", Objects: objects, Result: play(t, 30*time.Minute, objects, streams)}
}

func quota(n int) func(*fleet.Tenant) { return func(t *fleet.Tenant) { t.Quota.Running = n } }

// attempt lets an attempt last so long, and makes it the only one.
func attempt(d time.Duration) func(*fleet.Agent) {
	return func(a *fleet.Agent) { a.Timeouts.Attempt, a.Retry.MaxAttempts = fleet.Duration(d), 1 }
}

func TestAComparisonSaysWhyATenantWaited(t *testing.T) {
	ten, one := forecast.Constant(seconds(10)), forecast.Constant(seconds(1))
	flood := []forecast.Stream{batch("flood", 400, forecast.Uniform(seconds(20), seconds(40))), stream("acme", 720, one)}
	for name, tc := range map[string]struct {
		a, b    []fleet.Object
		streams []forecast.Stream
		want    []string // in what is said of acme
		not     string
	}{
		"its own quota": {
			a:       []fleet.Object{agentOf("a"), targetOf("t", 20), tenantOf("acme", 1, quota(2))},
			b:       []fleet.Object{agentOf("a"), targetOf("t", 20), tenantOf("acme", 1, quota(10))},
			streams: []forecast.Stream{batch("acme", 100, ten)},
			want: []string{
				"acme waited p95 ", "under A; 100 % of its waiting was behind its own quota of 2 runs at once",
				"What differs: quota.running of tenant acme is 2 under A and 10 under B.",
			},
		},
		"the flood of another, and the quota that stops it": {
			a: []fleet.Object{agentOf("a"), targetOf("t", 4)}, b: []fleet.Object{agentOf("a"), targetOf("t", 4), tenantOf("flood", 1, quota(3))},
			streams: flood,
			want: []string{
				"under A;", "for slots held by other tenants (100 % of that by flood)", "Under B it hardly waited",
				"What differs: quota.running of tenant flood is unset under A and 3 under B.",
			},
		},
		"a smaller target": {
			a: []fleet.Object{agentOf("a"), targetOf("t", 40)}, b: []fleet.Object{agentOf("a"), targetOf("t", 1)},
			streams: []forecast.Stream{batch("acme", 100, ten)},
			want:    []string{"under B; 100 % of its waiting was for slots held by its own runs", "capacity.runs of target t is 40 under A and 1 under B"},
		},
		"the agent's limit": {
			a: []fleet.Object{agentOf("a", func(a *fleet.Agent) { a.Concurrency.PerTenant = 1 }), targetOf("t", 9)}, b: []fleet.Object{agentOf("a"), targetOf("t", 9)},
			streams: []forecast.Stream{batch("acme", 100, ten)},
			want:    []string{"behind concurrency.perTenant 1 of agent a", "concurrency.perTenant of agent a is 1 under A and unset under B"},
			not:     "metadata",
		},
		"what is turned away": {
			a:       []fleet.Object{agentOf("a"), targetOf("t", 2), tenantOf("acme", 1, func(t *fleet.Tenant) { t.Quota.Queued = 10 })},
			b:       []fleet.Object{agentOf("a"), targetOf("t", 2)},
			streams: []forecast.Stream{batch("acme", 100, ten)},
			want:    []string{"90 of its 100 runs were turned away by quota.queued under A, 0 under B", "quota.queued of tenant acme is 10 under A and unset under B"},
		},
		"no target that fits": {
			a:       []fleet.Object{agentOf("a", func(a *fleet.Agent) { a.Needs.Accelerator = "l4" }), targetOf("t", 2)},
			b:       []fleet.Object{agentOf("a", func(a *fleet.Agent) { a.Needs.Accelerator = "l4" }), targetOf("t", 2, func(t *fleet.Target) { t.Accelerator = "l4" })},
			streams: []forecast.Stream{stream("acme", 60, one)},
			want:    []string{"without a target that could take it", "accelerator of target t is unset under A and l4 under B"},
		},
		"the only difference, even one that bears on it through others": {
			a:       []fleet.Object{agentOf("a", attempt(time.Second)), targetOf("t", 2)},
			b:       []fleet.Object{agentOf("a", attempt(time.Minute)), targetOf("t", 2)},
			streams: []forecast.Stream{batch("acme", 100, ten)},
			want:    []string{"acme waited p95 ", "All that differs: timeouts.attempt of agent a is 1s under A and 1m under B."},
			not:     "No field that bears on it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := forecast.Compare(side(t, tc.a, tc.streams), side(t, tc.b, tc.streams))
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, f := range c.Findings {
				if f.Tenant == "acme" {
					said = f.Text
				}
			}
			for _, want := range tc.want {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q:\n%s", want, said)
				}
			}
			if tc.not != "" && strings.Contains(said, tc.not) {
				t.Errorf("it says %q:\n%s", tc.not, said)
			}
		})
	}
}

func TestOneFleetIsExplainedByItself(t *testing.T) {
	a := side(t, []fleet.Object{agentOf("a"), targetOf("t", 20), tenantOf("acme", 1, quota(1))}, []forecast.Stream{
		batch("acme", 100, forecast.Constant(seconds(5))), stream("beta", 60, forecast.Constant(seconds(1))),
	})
	got := forecast.Explain(a)
	if len(got) != 1 || got[0].Tenant != "acme" || !strings.Contains(got[0].Text, "behind its own quota of 1 run at once") {
		t.Errorf("findings %+v, want one of acme's quota", got)
	}
}

func TestFleetsThatAreTheSameDifferInNothing(t *testing.T) {
	streams := []forecast.Stream{batch("acme", 100, forecast.Constant(seconds(5)))}
	x := side(t, []fleet.Object{agentOf("a"), targetOf("t", 2)}, streams)
	y := side(t, []fleet.Object{agentOf("a"), targetOf("t", 2), tenantOf("acme", 1)}, streams) // declared with every default
	c, err := forecast.Compare(x, y)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Findings) > 0 || len(c.Differences) > 0 {
		t.Errorf("a comparison of equal fleets: %+v", c)
	}
}
