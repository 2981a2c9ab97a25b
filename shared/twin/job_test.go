package twin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/shared/twin"
)

type jobShape struct {
	tasks, parallelism, retries int32
	timeout                     time.Duration
}

// job declares a job of the given containers.
func (w *world) job(id string, s jobShape, containers ...*runpb.Container) *runpb.Job {
	w.t.Helper()
	j := &runpb.Job{Template: &runpb.ExecutionTemplate{
		TaskCount: s.tasks, Parallelism: s.parallelism,
		Template: &runpb.TaskTemplate{
			Containers: containers, Retries: &runpb.TaskTemplate_MaxRetries{MaxRetries: s.retries}, ServiceAccount: "worker@twin-project.iam.gserviceaccount.com",
		},
	}}
	if s.timeout > 0 {
		j.Template.Template.Timeout = durationpb.New(s.timeout)
	}
	op := must[*run.CreateJobOperation](w.t)(w.jobs.CreateJob(w.ctx, &runpb.CreateJobRequest{Parent: w.Parent(), JobId: id, Job: j}))
	return must[*runpb.Job](w.t)(op.Wait(w.ctx))
}

func (w *world) run(job string, o *runpb.RunJobRequest_Overrides) *runpb.Execution {
	w.t.Helper()
	op := must[*run.RunJobOperation](w.t)(w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: w.Parent() + "/jobs/" + job, Overrides: o}))
	return must[*runpb.Execution](w.t)(op.Metadata())
}

// finish polls an execution until it is over, as one should.
func (w *world) finish(name string) *runpb.Execution {
	w.t.Helper()
	var e *runpb.Execution
	w.eventually("execution "+name+" completes", func() bool {
		e = must[*runpb.Execution](w.t)(w.execs.GetExecution(w.ctx, &runpb.GetExecutionRequest{Name: name}))
		return e.GetCompletionTime() != nil
	})
	return e
}

type counts struct{ Running, Succeeded, Failed, Cancelled, Retried int32 }

func countsOf(e *runpb.Execution) counts {
	return counts{e.GetRunningCount(), e.GetSucceededCount(), e.GetFailedCount(), e.GetCancelledCount(), e.GetRetriedCount()}
}

func completed(e *runpb.Execution) string {
	for _, c := range e.GetConditions() {
		if c.GetType() == "Completed" {
			return fmt.Sprint(c.GetState(), " ", c.GetExecutionReason())
		}
	}
	return ""
}

func TestExecution(t *testing.T) {
	tests := map[string]struct {
		shape     jobShape
		script    string
		overrides *runpb.RunJobRequest_Overrides
		want      counts
		completed string
		message   string
		lines     []string
	}{
		"All tasks of an execution succeed, each with its index": {
			shape:  jobShape{tasks: 3},
			script: `echo $CLOUD_RUN_JOB $CLOUD_RUN_TASK_INDEX/$CLOUD_RUN_TASK_COUNT attempt $CLOUD_RUN_TASK_ATTEMPT; case $CLOUD_RUN_EXECUTION in j-?????) ;; *) exit 1;; esac`,
			want:   counts{Succeeded: 3}, completed: "CONDITION_SUCCEEDED EXECUTION_REASON_UNDEFINED", message: "Execution completed successfully",
			lines: []string{"j 0/3 attempt 0", "j 1/3 attempt 0", "j 2/3 attempt 0"},
		},
		"A task that fails is tried again until its retries are used up": {
			shape: jobShape{retries: 2}, script: `echo attempt $CLOUD_RUN_TASK_ATTEMPT; exit 7`,
			want: counts{Failed: 1, Retried: 2}, completed: "CONDITION_FAILED NON_ZERO_EXIT_CODE",
			message: "-task0 failed with message: The container exited with an error.",
			lines:   []string{"attempt 0", "attempt 1", "attempt 2"},
		},
		"A task that succeeds on its second attempt has succeeded": {
			shape: jobShape{tasks: 2, retries: 3}, script: `[ $CLOUD_RUN_TASK_ATTEMPT = 1 ]`,
			want: counts{Succeeded: 2, Retried: 2}, completed: "CONDITION_SUCCEEDED EXECUTION_REASON_UNDEFINED",
		},
		"With no retries a failure is final, and the other tasks go on": {
			shape: jobShape{tasks: 2, parallelism: 1}, script: `echo ran $CLOUD_RUN_TASK_INDEX; [ $CLOUD_RUN_TASK_INDEX = 1 ]`,
			want: counts{Succeeded: 1, Failed: 1}, completed: "CONDITION_FAILED NON_ZERO_EXIT_CODE", lines: []string{"ran 0", "ran 1"},
		},
		"An attempt that passes the timeout is ended by SIGTERM, and each has the full time": {
			shape: jobShape{retries: 1, timeout: 200 * time.Millisecond}, script: `trap 'echo term; exit 0' TERM; sleep 60 & wait`,
			want: counts{Failed: 1, Retried: 1}, completed: "CONDITION_FAILED NON_ZERO_EXIT_CODE", message: "The configured timeout was reached.",
			lines: []string{"term", "term"},
		},
		"Overrides change arguments, variables, the number of tasks and the timeout of one execution": {
			script: `echo wrong`,
			overrides: &runpb.RunJobRequest_Overrides{
				TaskCount: 2, Timeout: durationpb.New(300 * time.Millisecond),
				ContainerOverrides: []*runpb.RunJobRequest_Overrides_ContainerOverride{{
					Args: []string{`echo $A $B $C; [ $CLOUD_RUN_TASK_INDEX = 0 ] || sleep 60`}, Env: []*runpb.EnvVar{envVar("B", "new"), envVar("C", "3")},
				}},
			},
			want: counts{Succeeded: 1, Failed: 1}, completed: "CONDITION_FAILED NON_ZERO_EXIT_CODE", lines: []string{"1 new 3", "1 new 3"},
		},
	}
	w := start(t, twin.Options{Grace: time.Second})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.lines.mu.Lock()
			w.lines.all = nil
			w.lines.mu.Unlock()
			j := w.job("j", test.shape, shell(test.script, "A=1", "B=old"))
			defer func() {
				op := must[*run.DeleteJobOperation](t)(w.jobs.DeleteJob(w.ctx, &runpb.DeleteJobRequest{Name: j.GetName()}))
				must[*runpb.Job](t)(op.Wait(w.ctx))
			}()
			e := w.finish(w.run("j", test.overrides).GetName())
			if diff := cmp.Diff(test.want, countsOf(e)); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			if got := completed(e); got != test.completed {
				t.Errorf("the condition Completed is %s, want %s", got, test.completed)
			}
			if got := e.GetConditions()[0].GetMessage(); !strings.Contains(got, test.message) {
				t.Errorf("the message is %q, want one with %q", got, test.message)
			}
			if got := w.lines.texts(); test.lines != nil && !cmp.Equal(got, test.lines) {
				t.Errorf("the tasks printed %q, want %q", got, test.lines)
			}
		})
	}
}

func TestParallelismBoundsTasksAndZeroMeansAll(t *testing.T) {
	for parallelism, want := range map[int32]int{0: 4, 2: 2} {
		t.Run(fmt.Sprint(parallelism), func(t *testing.T) {
			w := start(t, twin.Options{CancelGrace: time.Second})
			w.job("wide", jobShape{tasks: 4, parallelism: parallelism}, shell("echo up; exec sleep 60"))
			e := w.run("wide", nil)
			w.eventually("tasks run", func() bool { return len(w.lines.texts()) >= want })
			got := must[*runpb.Execution](t)(w.execs.GetExecution(w.ctx, &runpb.GetExecutionRequest{Name: e.GetName()}))
			if got.GetRunningCount() != int32(want) || len(w.Containers(e.GetName())) != want {
				t.Errorf("%d tasks run in %d containers, want %d", got.GetRunningCount(), len(w.Containers(e.GetName())), want)
			}
			// The rest never starts.
			op := must[*run.CancelExecutionOperation](t)(w.execs.CancelExecution(w.ctx, &runpb.CancelExecutionRequest{Name: e.GetName()}))
			done := must[*runpb.Execution](t)(op.Wait(w.ctx))
			if diff := cmp.Diff(counts{Cancelled: 4}, countsOf(done)); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			if got := completed(done); got != "CONDITION_FAILED CANCELLED" {
				t.Errorf("the condition Completed is %s, want CONDITION_FAILED CANCELLED", got)
			}
			if got := len(w.lines.texts()); got != want {
				t.Errorf("%d tasks started, want %d", got, want)
			}
			_, err := w.execs.CancelExecution(w.ctx, &runpb.CancelExecutionRequest{Name: e.GetName()})
			wantCode(t, "cancel what has completed", err, codes.FailedPrecondition)
		})
	}
}

func TestACancelledTaskThatIgnoresSIGTERMIsKilledAfterTheGrace(t *testing.T) {
	w := start(t, twin.Options{CancelGrace: 200 * time.Millisecond})
	w.job("deaf", jobShape{retries: 3}, shell(`trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done`))
	e := w.run("deaf", nil)
	w.await("up")
	must[*run.CancelExecutionOperation](t)(w.execs.CancelExecution(w.ctx, &runpb.CancelExecutionRequest{Name: e.GetName()}))
	done := w.finish(e.GetName())
	w.await("asked")
	if diff := cmp.Diff(counts{Cancelled: 1}, countsOf(done)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if left := w.Containers(""); len(left) != 0 {
		t.Errorf("%d containers run still", len(left))
	}
}

func TestACrashedTaskIsTriedAgainAndTellsItsSignal(t *testing.T) {
	w := start(t, twin.Options{})
	w.Fault(twin.Rule{On: "start", Of: "*-task0", Do: twin.Kill(0, syscall.SIGKILL)})
	w.job("crash", jobShape{retries: 1}, shell(`echo $CLOUD_RUN_TASK_ATTEMPT; [ $CLOUD_RUN_TASK_ATTEMPT = 1 ] || exec sleep 60`))
	e := w.finish(w.run("crash", nil).GetName())
	if diff := cmp.Diff(counts{Succeeded: 1, Retried: 1}, countsOf(e)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	w.job("dies", jobShape{}, shell(`kill -9 $$`))
	e = w.finish(w.run("dies", nil).GetName())
	task := must[*runpb.Task](t)(w.tasks.GetTask(w.ctx, &runpb.GetTaskRequest{Name: e.GetName() + "/tasks/" + last(e.GetName()) + "-task0"}))
	if r := task.GetLastAttemptResult(); r.GetTermSignal() != 9 || r.GetExitCode() != 0 || r.GetStatus().GetCode() == 0 {
		t.Errorf("the last attempt is told as %v, want signal 9 and a failure", r)
	}
}

func last(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

func TestSeveralContainersOfATask(t *testing.T) {
	w := start(t, twin.Options{Grace: 300 * time.Millisecond})
	sidecar := shell(`echo sidecar; exec sleep 60`)
	sidecar.Name = "side"
	main := shell(`echo main; exit 4`)
	main.Name, main.DependsOn = "main", []string{"side"}
	w.job("two", jobShape{}, main, sidecar)
	if e := w.finish(w.run("two", nil).GetName()); e.GetFailedCount() != 1 {
		t.Errorf("%d tasks failed, want 1: one container of it failed", e.GetFailedCount())
	}
	w.await("sidecar")
	sidecar.DependsOn = []string{"main"}
	_, err := w.jobs.CreateJob(w.ctx, &runpb.CreateJobRequest{Parent: w.Parent(), JobId: "circle", Job: &runpb.Job{
		Template: &runpb.ExecutionTemplate{Template: &runpb.TaskTemplate{Containers: []*runpb.Container{main, sidecar}}},
	}})
	wantCode(t, "containers that depend on each other", err, codes.InvalidArgument)
}

func TestJobsLifecycle(t *testing.T) {
	w := start(t, twin.Options{})
	// 1. Names.
	for _, id := range []string{"", "Upper", "-x", "x-", strings.Repeat("a", 64)} {
		_, err := w.jobs.CreateJob(w.ctx, &runpb.CreateJobRequest{Parent: w.Parent(), JobId: id, Job: &runpb.Job{}})
		wantCode(t, fmt.Sprintf("create a job named %q", id), err, codes.InvalidArgument)
	}
	_, err := w.jobs.CreateJob(w.ctx, &runpb.CreateJobRequest{Parent: "projects/another-one/locations/europe-west1", JobId: "a", Job: &runpb.Job{}})
	wantCode(t, "create a job in another project", err, codes.PermissionDenied)
	_, err = w.jobs.GetJob(w.ctx, &runpb.GetJobRequest{Name: "jobs/a"})
	wantCode(t, "get by a malformed name", err, codes.InvalidArgument)
	_, err = w.jobs.GetJob(w.ctx, &runpb.GetJobRequest{Name: w.Parent() + "/jobs/none"})
	wantCode(t, "get what does not exist", err, codes.NotFound)
	// 2. Create, once. Defaults are filled in.
	j := w.job("a", jobShape{}, shell("true"))
	if got := j.GetTemplate(); got.GetTaskCount() != 1 || got.GetTemplate().GetTimeout().AsDuration() != 10*time.Minute {
		t.Errorf("the defaults are %d tasks and %s, want 1 and 10m", got.GetTaskCount(), got.GetTemplate().GetTimeout().AsDuration())
	}
	_, err = w.jobs.CreateJob(w.ctx, &runpb.CreateJobRequest{Parent: w.Parent(), JobId: "a", Job: j})
	wantCode(t, "create it again", err, codes.AlreadyExists)
	// 3. Update with the etag that was read; another's is refused. What only the server sets stays.
	stale := j.GetEtag()
	j.Template.TaskCount, j.Uid = 5, "mine"
	op := must[*run.UpdateJobOperation](t)(w.jobs.UpdateJob(w.ctx, &runpb.UpdateJobRequest{Job: j}))
	changed := must[*runpb.Job](t)(op.Wait(w.ctx))
	if changed.GetTemplate().GetTaskCount() != 5 || changed.GetGeneration() != 2 || changed.GetUid() == "mine" {
		t.Errorf("the update gave %d tasks, generation %d, uid %s", changed.GetTemplate().GetTaskCount(), changed.GetGeneration(), changed.GetUid())
	}
	j.Etag = stale
	_, err = w.jobs.UpdateJob(w.ctx, &runpb.UpdateJobRequest{Job: j})
	wantCode(t, "update from an old version", err, codes.Aborted)
	_, err = w.jobs.DeleteJob(w.ctx, &runpb.DeleteJobRequest{Name: j.GetName(), Etag: stale})
	wantCode(t, "delete an old version", err, codes.Aborted)
	// 4. Pages, the newest first.
	for _, id := range []string{"b", "c", "d", "e"} {
		w.job(id, jobShape{}, shell("true"))
	}
	var ids []string
	pages := iterator.NewPager(w.jobs.ListJobs(w.ctx, &runpb.ListJobsRequest{Parent: w.Parent()}), 2, "")
	for {
		var page []*runpb.Job
		next := must[string](t)(pages.NextPage(&page))
		if len(page) > 2 {
			t.Errorf("a page has %d jobs, want at most 2", len(page))
		}
		for _, each := range page {
			ids = append(ids, last(each.GetName()))
		}
		if next == "" {
			break
		}
	}
	if want := []string{"e", "d", "c", "b", "a"}; !cmp.Equal(ids, want) {
		t.Errorf("the list is %q, want %q", ids, want)
	}
	_, err = w.jobs.ListJobs(w.ctx, &runpb.ListJobsRequest{Parent: w.Parent(), PageToken: "nonsense"}).Next()
	wantCode(t, "list with a made-up page token", err, codes.InvalidArgument)
	// 5. Delete.
	del := must[*run.DeleteJobOperation](t)(w.jobs.DeleteJob(w.ctx, &runpb.DeleteJobRequest{Name: j.GetName()}))
	must[*runpb.Job](t)(del.Wait(w.ctx))
	_, err = w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: j.GetName()})
	wantCode(t, "run what was deleted", err, codes.NotFound)
}

func TestAJobWhoseImageIsMissingIsNotReady(t *testing.T) {
	w := start(t, twin.Options{})
	op := must[*run.CreateJobOperation](t)(w.jobs.CreateJob(w.ctx, &runpb.CreateJobRequest{Parent: w.Parent(), JobId: "a", Job: &runpb.Job{
		Template: &runpb.ExecutionTemplate{Template: &runpb.TaskTemplate{Containers: []*runpb.Container{{Image: "nowhere/none:1"}}}},
	}}))
	_, err := op.Wait(w.ctx)
	wantCode(t, "wait for the creation", err, codes.NotFound)
	_, err = w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: w.Parent() + "/jobs/a"})
	wantCode(t, "run it", err, codes.FailedPrecondition)
}

func TestBadOverridesAreRefused(t *testing.T) {
	w := start(t, twin.Options{})
	w.job("a", jobShape{}, shell("true"))
	type container = runpb.RunJobRequest_Overrides_ContainerOverride
	for name, o := range map[string]*runpb.RunJobRequest_Overrides{
		"more tasks than there may be": {TaskCount: 10001},
		"a negative timeout":           {Timeout: durationpb.New(-time.Second)},
		"an unknown container":         {ContainerOverrides: []*container{{Name: "other"}}},
		"a variable of the platform's": {ContainerOverrides: []*container{{Env: []*runpb.EnvVar{envVar("CLOUD_RUN_TASK_INDEX", "7")}}}},
		"arguments given and cleared":  {ContainerOverrides: []*container{{Args: []string{"x"}, ClearArgs: true}}},
	} {
		_, err := w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: w.Parent() + "/jobs/a", Overrides: o})
		wantCode(t, name, err, codes.InvalidArgument)
	}
	if n := len(w.Executions("a")); n != 0 {
		t.Errorf("%d executions were made", n)
	}
}

func TestTheOperationOfRunJobIsFoundAgainByName(t *testing.T) {
	w := start(t, twin.Options{})
	w.job("a", jobShape{}, shell("exit $CODE", "CODE=0"))
	op := must[*run.RunJobOperation](t)(w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: w.Parent() + "/jobs/a"}))
	// Another process knows the name alone.
	again := client(w, run.NewJobsClient).RunJobOperation(op.Name())
	e := must[*runpb.Execution](t)(again.Wait(w.ctx))
	if e.GetSucceededCount() != 1 {
		t.Errorf("%d tasks succeeded, want 1", e.GetSucceededCount())
	}
	// A failed execution is an error of the operation.
	op = must[*run.RunJobOperation](t)(w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: w.Parent() + "/jobs/a", Overrides: &runpb.RunJobRequest_Overrides{
		ContainerOverrides: []*runpb.RunJobRequest_Overrides_ContainerOverride{{Env: []*runpb.EnvVar{envVar("CODE", "1")}}},
	}}))
	_, err := op.Wait(w.ctx)
	wantCode(t, "wait for an execution that fails", err, codes.Aborted)
	_, err = w.jobs.RunJobOperation(w.Parent() + "/operations/none").Poll(w.ctx)
	wantCode(t, "poll an operation that does not exist", err, codes.NotFound)
}

func TestFaultsOfRunJob(t *testing.T) {
	tests := map[string]struct {
		do   twin.Effect
		made int // executions after the call that was hit
		code codes.Code
	}{
		"Refused before its effect, nothing is started":              {do: twin.Refuse(codes.Unavailable), code: codes.Unavailable},
		"Over quota, nothing is started":                             {do: twin.Refuse(codes.ResourceExhausted), code: codes.ResourceExhausted},
		"The answer lost as 503, the execution is there":             {do: twin.Lose(codes.Unavailable), made: 1, code: codes.Unavailable},
		"The connection reset after the effect, it is there":         {do: twin.Reset(true), made: 1, code: codes.Unavailable},
		"The connection reset before the effect, nothing is started": {do: twin.Reset(false), code: codes.Unavailable},
		"The deadline passed after the effect, it is there":          {do: twin.Hang(true), made: 1, code: codes.DeadlineExceeded},
		"The deadline passed before the effect, nothing is started":  {do: twin.Hang(false), code: codes.DeadlineExceeded},
	}
	w := start(t, twin.Options{})
	n := 0
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w.t = t
			n++
			id := fmt.Sprint("j", n)
			j := w.job(id, jobShape{}, shell("true"))
			f := w.Fault(twin.Rule{On: "Jobs.RunJob", Of: id, Do: test.do})
			ctx, cancel := context.WithTimeout(w.ctx, 300*time.Millisecond)
			defer cancel()
			if test.code != codes.DeadlineExceeded {
				ctx = w.ctx
			}
			_, err := w.jobs.RunJob(ctx, &runpb.RunJobRequest{Name: j.GetName()})
			wantCode(t, "the call that is hit", err, test.code)
			if got := len(w.Executions(id)); got != test.made {
				t.Errorf("%d executions were made, want %d", got, test.made)
			}
			if f.Hits() != 1 {
				t.Errorf("the fault struck %d times, want once", f.Hits())
			}
			// It struck as often as it should: the next call passes.
			w.finish(w.run(id, nil).GetName())
		})
	}
}

func TestFaultsSkipAndEnd(t *testing.T) {
	w := start(t, twin.Options{})
	w.job("a", jobShape{}, shell("true"))
	f := w.Fault(twin.Rule{On: "Jobs.Get*", Skip: 1, Times: -1, Do: twin.Refuse(codes.Internal)})
	var got []codes.Code
	for i := range 4 {
		if i == 3 {
			f.Clear()
		}
		_, err := w.jobs.GetJob(w.ctx, &runpb.GetJobRequest{Name: w.Parent() + "/jobs/a"})
		got = append(got, status.Code(err))
	}
	if want := []codes.Code{codes.OK, codes.Internal, codes.Internal, codes.OK}; !cmp.Equal(got, want) {
		t.Errorf("the calls gave %v, want %v", got, want)
	}
}

func TestTheQuotaOfRunJobIsPerRegion(t *testing.T) {
	w := start(t, twin.Options{Quota: twin.Quota{Limit: 2, Per: time.Hour}})
	w.job("a", jobShape{}, shell("true"))
	elsewhere := strings.Replace(w.Parent(), "europe-west1", "us-central1", 1)
	op := must[*run.CreateJobOperation](t)(w.jobs.CreateJob(w.ctx, &runpb.CreateJobRequest{Parent: elsewhere, JobId: "a", Job: &runpb.Job{
		Template: &runpb.ExecutionTemplate{Template: &runpb.TaskTemplate{Containers: []*runpb.Container{shell("true")}}},
	}}))
	must[*runpb.Job](t)(op.Wait(w.ctx))
	w.run("a", nil)
	w.run("a", nil)
	_, err := w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: w.Parent() + "/jobs/a"})
	wantCode(t, "one call too many", err, codes.ResourceExhausted)
	_, err = w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: elsewhere + "/jobs/a"})
	wantCode(t, "a call in another region", err, codes.OK)
}

func TestFinishedExecutionsAreKeptUpToABound(t *testing.T) {
	w := start(t, twin.Options{MaxFinished: 2, MaxRunning: 1})
	w.job("a", jobShape{}, shell(`eval "$DO"`, "DO=true"))
	var names []string
	for range 4 {
		e := w.run("a", nil)
		w.finish(e.GetName())
		names = append(names, e.GetName())
	}
	var got []string
	for _, e := range w.Executions("a") {
		got = append(got, e.GetName())
	}
	// The newest came after the last look at the bound.
	if !cmp.Equal(got, names[1:]) {
		t.Errorf("kept are %q, want %q", got, names[1:])
	}
	w.run("a", &runpb.RunJobRequest_Overrides{ContainerOverrides: []*runpb.RunJobRequest_Overrides_ContainerOverride{{Env: []*runpb.EnvVar{envVar("DO", "exec sleep 60")}}}})
	_, err := w.jobs.RunJob(w.ctx, &runpb.RunJobRequest{Name: w.Parent() + "/jobs/a"})
	wantCode(t, "one running execution too many", err, codes.ResourceExhausted)
}

func TestExecutionsAndTasksAreListed(t *testing.T) {
	w := start(t, twin.Options{})
	w.job("a", jobShape{tasks: 3}, shell("true"))
	w.job("b", jobShape{}, shell("true"))
	first, second, other := w.run("a", nil), w.run("a", nil), w.run("b", nil)
	list := func(parent string) (names []string) {
		for e, err := range w.execs.ListExecutions(w.ctx, &runpb.ListExecutionsRequest{Parent: w.Parent() + "/jobs/" + parent, PageSize: 1}).All() {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, e.GetName())
		}
		return names
	}
	if got, want := list("a"), []string{second.GetName(), first.GetName()}; !cmp.Equal(got, want) {
		t.Errorf("the executions of a job are %q, want %q", got, want)
	}
	if got, want := list("-"), []string{other.GetName(), second.GetName(), first.GetName()}; !cmp.Equal(got, want) {
		t.Errorf("the executions of all jobs are %q, want %q", got, want)
	}
	w.finish(first.GetName())
	var indexes []int32
	for task, err := range w.tasks.ListTasks(w.ctx, &runpb.ListTasksRequest{Parent: first.GetName(), PageSize: 2}).All() {
		if err != nil {
			t.Fatal(err)
		}
		if task.GetCompletionTime() == nil || task.GetLastAttemptResult().GetStatus().GetCode() != 0 {
			t.Errorf("task %d is told as %v", task.GetIndex(), task)
		}
		indexes = append(indexes, task.GetIndex())
	}
	slices.Sort(indexes)
	if want := []int32{0, 1, 2}; !cmp.Equal(indexes, want) {
		t.Errorf("the tasks are %v, want %v", indexes, want)
	}
	j := must[*runpb.Job](t)(w.jobs.GetJob(w.ctx, &runpb.GetJobRequest{Name: w.Parent() + "/jobs/a"}))
	if j.GetExecutionCount() != 2 || j.GetLatestCreatedExecution().GetName() != last(second.GetName()) {
		t.Errorf("the job tells of %d executions, the last %s", j.GetExecutionCount(), j.GetLatestCreatedExecution().GetName())
	}
	del := must[*run.DeleteExecutionOperation](t)(w.execs.DeleteExecution(w.ctx, &runpb.DeleteExecutionRequest{Name: first.GetName()}))
	must[*runpb.Execution](t)(del.Wait(w.ctx))
	_, err := w.execs.GetExecution(w.ctx, &runpb.GetExecutionRequest{Name: first.GetName()})
	wantCode(t, "get a deleted execution", err, codes.NotFound)
}
