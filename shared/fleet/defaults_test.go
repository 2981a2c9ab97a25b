package fleet

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultsFillWhatIsUnset(t *testing.T) {
	const minute = Duration(time.Minute)
	tests := map[string]struct {
		agent Agent
		got   func(*Agent) any
		want  any
	}{
		"a command is spoken to by pipe, one run at a time": {
			Agent{Run: Run{Command: []string{"x"}}}, func(a *Agent) any { return a.Run }, Run{Command: []string{"x"}, Protocol: Stdio, Slots: 1},
		},
		"a worker takes eight runs": {
			Agent{Run: Run{Command: []string{"x"}, Protocol: Worker}}, func(a *Agent) any { return a.Run.Slots }, 8,
		},
		"a url is spoken to with http": {
			Agent{Run: Run{URL: "http://h"}}, func(a *Agent) any { return a.Run }, Run{URL: "http://h", Protocol: HTTP, Slots: 8},
		},
		"what others start has no protocol": {
			Agent{}, func(a *Agent) any { return a.Run }, Run{},
		},
		"an attempt fits a short run": {
			Agent{Timeouts: Timeouts{Run: minute}}, func(a *Agent) any { return a.Timeouts.Attempt }, minute,
		},
		"a run fits a long attempt": {
			Agent{Timeouts: Timeouts{Attempt: 60 * 48 * minute}}, func(a *Agent) any { return a.Timeouts.Run }, 60 * 48 * minute,
		},
		"a longer first wait raises the longest": {
			Agent{Retry: Retry{Backoff: Backoff{Initial: 10 * minute}}}, func(a *Agent) any { return a.Retry.Backoff },
			Backoff{Initial: 10 * minute, Factor: 2, Max: 10 * minute},
		},
		"only an instance has sessions": {
			Agent{Shape: Service}, func(a *Agent) any { return a.Session }, Session{},
		},
		"an instance has sessions": {
			Agent{Shape: Instance}, func(a *Agent) any { return a.Session }, Session{MaxBytes: 1 << 20, Idle: Duration(24 * time.Hour)},
		},
		"a budget fails at its breach": {
			Agent{Budget: Budget{USD: 1}}, func(a *Agent) any { return a.Budget.OnBreach }, BreachFail,
		},
		"a job is one run at a time, as in batch/v1": {
			Agent{Shape: Job}, func(a *Agent) any { return *a.Job },
			JobSpec{Completions: new(1), Parallelism: new(1), BackoffLimit: new(6), CompletionMode: "NonIndexed"},
		},
		"parallelism without completions is a work queue": {
			Agent{Shape: Job, Job: &JobSpec{Parallelism: new(0)}}, func(a *Agent) any { return *a.Job },
			JobSpec{Parallelism: new(0), BackoffLimit: new(6), CompletionMode: "NonIndexed"},
		},
		"an evaluation looks at every run": {
			Agent{Evaluate: &Evaluate{}}, func(a *Agent) any { return *a.Evaluate }, Evaluate{Sample: 1, Baseline: 50, Action: "alarm"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := tt.agent
			a.SetDefaults()
			if diff := cmp.Diff(tt.want, tt.got(&a)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			once := a.Hash()
			if a.SetDefaults(); a.Hash() != once {
				t.Error("doing it twice changed something")
			}
		})
	}
}

func TestDefaultsOfTargetAndTenant(t *testing.T) {
	local := &Target{Runtime: RuntimeLocal}
	local.SetDefaults()
	if diff := cmp.Diff(Shapes(), local.Shapes); diff != "" {
		t.Errorf("shapes of a local target (-want +got):\n%s", diff)
	}
	cloud := &Target{Runtime: RuntimeCloudRun}
	if cloud.SetDefaults(); cloud.Shapes != nil {
		t.Errorf("a Cloud Run target was given shapes %v", cloud.Shapes)
	}
	tenant := &Tenant{Budget: TenantBudget{USD: 1}}
	tenant.SetDefaults()
	if diff := cmp.Diff(&Tenant{Weight: 1, PriorityMax: 100, Budget: TenantBudget{USD: 1, Per: "day"}}, tenant); diff != "" {
		t.Errorf("tenant (-want +got):\n%s", diff)
	}
}

func TestLabelOfATarget(t *testing.T) {
	target := &Target{
		Meta:   Meta{Labels: map[string]string{"tier": "metadata", "zone": "a"}},
		Labels: map[string]string{"tier": "spec"},
	}
	for key, want := range map[string]string{"tier": "spec", "zone": "a"} {
		if got, ok := target.Label(key); !ok || got != want {
			t.Errorf("label %s is %q, want %q", key, got, want)
		}
	}
	if _, ok := target.Label("none"); ok {
		t.Error("a label that is not there was found")
	}
}
