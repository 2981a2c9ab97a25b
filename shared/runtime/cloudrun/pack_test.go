package cloudrun

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/shared/run"
)

const aJob = place + "/jobs/j"

func attemptOf(id string, n int, deadline run.Instant) *attempt {
	x := &attempt{a: assignment(id, n, aJob), resource: resource{jobs, aJob}}
	x.a.Ticket, x.a.Deadline = "ticket-of-"+id, deadline
	return x
}

func TestRunRequest(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	in := func(d time.Duration) run.Instant { return run.At(now.Add(d)) }
	env := func(ids, tickets string) []*runpb.EnvVar {
		return []*runpb.EnvVar{variable("ERRAND_ATTEMPT", ids), variable("ERRAND_TICKET", tickets), variable("ERRAND_URL", "http://control")}
	}
	tests := map[string]struct {
		attempts []*attempt
		config   jobConfig
		want     *runpb.RunJobRequest_Overrides
	}{
		"one attempt is one task; the platform's limit comes after the attempt's deadline": {
			attempts: []*attempt{attemptOf("r1", 1, in(90*time.Second))}, config: jobConfig{containers: []string{""}},
			want: &runpb.RunJobRequest_Overrides{
				TaskCount: 1, Timeout: durationpb.New(100 * time.Second),
				ContainerOverrides: []*runpb.RunJobRequest_Overrides_ContainerOverride{{Env: env("r1.1", "ticket-of-r1")}},
			},
		},
		"several are one task each, and the latest deadline counts": {
			attempts: []*attempt{attemptOf("r1", 1, in(time.Second)), attemptOf("r2", 3, in(time.Minute))}, config: jobConfig{containers: []string{"main"}},
			want: &runpb.RunJobRequest_Overrides{
				TaskCount: 2, Timeout: durationpb.New(70 * time.Second),
				ContainerOverrides: []*runpb.RunJobRequest_Overrides_ContainerOverride{{Name: "main", Env: env("r1.1,r2.3", "ticket-of-r1,ticket-of-r2")}},
			},
		},
		"without a deadline, and beyond it, the longest that the platform has": {
			attempts: []*attempt{attemptOf("r1", 1, 0)}, config: jobConfig{containers: []string{""}},
			want: &runpb.RunJobRequest_Overrides{
				TaskCount: 1, Timeout: durationpb.New(168 * time.Hour),
				ContainerOverrides: []*runpb.RunJobRequest_Overrides_ContainerOverride{{Env: env("r1.1", "ticket-of-r1")}},
			},
		},
		"of a deadline that is over, at least a second": {
			attempts: []*attempt{attemptOf("r1", 1, in(-time.Hour))}, config: jobConfig{containers: []string{""}},
			want: &runpb.RunJobRequest_Overrides{
				TaskCount: 1, Timeout: durationpb.New(time.Second),
				ContainerOverrides: []*runpb.RunJobRequest_Overrides_ContainerOverride{{Env: env("r1.1", "ticket-of-r1")}},
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := runRequest(aJob, tt.config, tt.attempts, "http://control", now, 10*time.Second)
			if diff := cmp.Diff(&runpb.RunJobRequest{Name: aJob, Overrides: tt.want}, got, protocmp.Transform()); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBatchIsBounded(t *testing.T) {
	long := strings.Repeat("t", 10<<10)
	for name, tt := range map[string]struct {
		config jobConfig
		ticket string
		want   int
	}{
		"by the number of attempts":                             {jobConfig{}, "t", 100},
		"by the tasks that the job runs at a time":              {jobConfig{parallelism: 7}, "t", 7},
		"by the size of an environment variable":                {jobConfig{}, long, 3},
		"by one attempt, where a job runs its tasks one by one": {jobConfig{parallelism: 1}, "t", 1},
	} {
		t.Run(name, func(t *testing.T) {
			next := func(i int) *attempt {
				x := attemptOf(fmt.Sprintf("r%d", i), 1, 0)
				x.a.Ticket = tt.ticket
				return x
			}
			b := newBatch(next(0), tt.config)
			for i := 1; b.fits(next(i)); i++ {
				b.add(next(i))
			}
			if len(b.attempts) != tt.want {
				t.Errorf("%d attempts, want %d", len(b.attempts), tt.want)
			}
			for _, v := range runRequest(aJob, jobConfig{containers: []string{""}}, b.attempts, "", time.Now(), 0).GetOverrides().GetContainerOverrides()[0].GetEnv() {
				if len(v.GetValue()) > maxEnv {
					t.Errorf("%s has %d bytes", v.GetName(), len(v.GetValue()))
				}
			}
		})
	}
}

func TestConfigOf(t *testing.T) {
	job := func(retries *runpb.TaskTemplate_MaxRetries) *runpb.Job {
		t := &runpb.TaskTemplate{Containers: []*runpb.Container{{Name: "main"}}}
		if retries != nil {
			t.Retries = retries
		}
		return &runpb.Job{Template: &runpb.ExecutionTemplate{Parallelism: 2, Template: t}}
	}
	for name, tt := range map[string]struct {
		job     *runpb.Job
		retries int32
	}{
		"a job that says nothing of retries has the platform's default": {job(nil), 3},
		"none are none": {job(&runpb.TaskTemplate_MaxRetries{}), 0},
		"some are some": {job(&runpb.TaskTemplate_MaxRetries{MaxRetries: 1}), 1},
	} {
		t.Run(name, func(t *testing.T) {
			got := configOf(tt.job)
			if got.retries != tt.retries || got.parallelism != 2 || !cmp.Equal(got.containers, []string{"main"}) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestMatches(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ex := func(name, ids string, age time.Duration, ended bool) *runpb.Execution {
		e := &runpb.Execution{Name: name, CreateTime: timestamppb.New(begin.Add(-age)), Template: &runpb.TaskTemplate{
			Containers: []*runpb.Container{{Env: []*runpb.EnvVar{variable("OTHER", "r1.1"), variable("ERRAND_ATTEMPT", ids)}}},
		}}
		if ended {
			e.CompletionTime = timestamppb.New(begin)
		}
		return e
	}
	list := []*runpb.Execution{
		ex("newer", "r1.1", time.Minute, false),
		ex("older", "r1.1", time.Hour, false),
		ex("over", "r1.1", 2*time.Hour, true),
		ex("packed", "r9.1,r1.1,r8.2", 30*time.Minute, false),
		ex("another attempt", "r1.10", time.Hour, false),
		ex("none", "", time.Hour, false),
	}
	var got []string
	for _, m := range matches(list, map[string]bool{"r1.1": true}) {
		got = append(got, m.execution.GetName())
	}
	if diff := cmp.Diff([]string{"older", "packed", "newer", "over"}, got); diff != "" {
		t.Errorf("matches (-want +got):\n%s", diff)
	}
}

func TestParseWorker(t *testing.T) {
	for worker, want := range map[string]bool{
		"job-abcde-0": true, "my-long-job-x1y2z-99": true,
		"": false, "job": false, "job-abcde": false, "job-abcd-0": false, "job-abcde-01": false, "job-abcde--1": false, "-abcde-1": false, "local-checker-1": false,
	} {
		job, execution, index, ok := parseWorker(worker)
		if ok != want {
			t.Errorf("%q: %v, want %v", worker, ok, want)
		}
		if ok && (workerID("projects/p/x/"+execution, index) != worker || !strings.HasPrefix(execution, job+"-")) {
			t.Errorf("%q: job %q, execution %q, index %d", worker, job, execution, index)
		}
	}
}
