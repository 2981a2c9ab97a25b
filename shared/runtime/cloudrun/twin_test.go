package cloudrun

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	run "cloud.google.com/go/run/apiv2"
	"cloud.google.com/go/run/apiv2/runpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/errand-run/errand/shared/identity"
	"github.com/errand-run/errand/shared/outside"
	errand "github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/twin"
)

// Google's own client against the stand-in of Cloud Run, with containers that are processes, in real time.

type cloud struct {
	*testing.T
	*twin.Twin
	rt     *Runtime
	d      *desk
	job    string // full name
	ledger string // a file to which each task appends EXECUTION ATTEMPT
}

// newCloud begins a cloud.
func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{T: t, d: &desk{held: make(map[string][]runtime.Held)}, ledger: filepath.Join(t.TempDir(), "ledger")}
	var err error
	c.Twin, err = twin.Start(context.Background(), twin.Options{
		Images: map[string][]string{"sh": {"sh", "-c"}, "agent": {os.Args[0]}}, Env: map[string]string{"GORACE": "atexit_sleep_ms=0"},
		CancelGrace: 100 * time.Millisecond, Grace: 100 * time.Millisecond, Invokers: []string{"serviceAccount:" + caller},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Twin.Close(); err != nil {
			t.Error(err)
		}
	})
	c.open()
	t.Cleanup(func() { c.close() })
	return c
}

const caller = "control@twin-project.iam.gserviceaccount.com"

// declares makes one of Google's clients for the time of the test.
func declares[C interface{ Close() error }](c *cloud, open func(context.Context, ...option.ClientOption) (C, error)) C {
	c.Helper()
	client, err := open(c.Context(), option.WithEndpoint(c.Endpoint()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = client.Close() })
	return client
}

// inCloud begins a cloud whose job notes itself in the ledger and then does what the script says.
func inCloud(t *testing.T, script string) *cloud {
	t.Helper()
	c := newCloud(t)
	c.job = c.Parent() + "/jobs/j"
	client := declares(c, run.NewJobsClient)
	const note = `i=$((CLOUD_RUN_TASK_INDEX+1)); echo $CLOUD_RUN_EXECUTION $(echo $ERRAND_ATTEMPT | cut -d, -f$i) $(echo $ERRAND_TICKET | cut -d, -f$i) $ERRAND_URL >>$LEDGER; `
	op, err := client.CreateJob(t.Context(), &runpb.CreateJobRequest{Parent: c.Parent(), JobId: "j", Job: &runpb.Job{Template: &runpb.ExecutionTemplate{
		Template: &runpb.TaskTemplate{
			Retries:    &runpb.TaskTemplate_MaxRetries{},
			Containers: []*runpb.Container{{Image: "sh", Args: []string{note + script}, Env: []*runpb.EnvVar{variable("LEDGER", c.ledger)}}},
		},
	}}})
	if err == nil {
		_, err = op.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open begins a process of the control plane. Its waits are short.
func (c *cloud) open() {
	c.Helper()
	_, project, _ := strings.Cut(c.Parent(), "projects/")
	project, region, _ := strings.Cut(project, "/locations/")
	o := Options{
		Project: project, Region: region, Reporter: c.d, URL: func() string { return "http://control" }, Endpoint: c.Endpoint(),
		Poll: 20 * time.Millisecond, LongestPoll: 100 * time.Millisecond, Settle: 50 * time.Millisecond, MissingFor: 500 * time.Millisecond,
		Grace: 300 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(c.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	host, err := c.Identity(caller)
	if err != nil {
		c.Fatal(err)
	}
	o.Tokens = identity.Metadata(identity.Options{Host: host})
	p, err := dial(c.Context(), &o)
	if err != nil {
		c.Fatal(err)
	}
	p.within = time.Second
	c.rt = open(o, p)
}

func (c *cloud) close() {
	if err := c.rt.Close(context.Background(), 0); err != nil {
		c.Error(err)
	}
}

func (c *cloud) start(id string, change ...func(*runtime.Assignment)) error {
	a := assignment(id, 1, c.job)
	a.Ticket, a.Token, a.Input = "ticket-of-"+id, "", nil
	for _, f := range change {
		f(&a)
	}
	return c.rt.Start(c.Context(), a)
}

func (c *cloud) begin(id string, change ...func(*runtime.Assignment)) {
	c.Helper()
	if err := c.start(id, change...); err != nil {
		c.Fatal(err)
	}
}

func (c *cloud) lines() []string {
	text, _ := os.ReadFile(c.ledger)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func (c *cloud) runs(n int) {
	c.Helper()
	outside.Eventually(c.T, outside.Patience, "as many containers run as were begun", func() bool { return len(c.lines()) == n && c.lines()[0] != "" })
}

// end waits for the report that ends a run's attempt.
func (c *cloud) end(id string) (r runtime.Report) {
	c.Helper()
	outside.Eventually(c.T, outside.Patience, "the attempt ends", func() bool {
		ends := c.d.of(id, runtime.Completed, runtime.Failed, runtime.Released)
		if len(ends) > 0 {
			r = ends[0]
		}
		return len(ends) > 0
	})
	return r
}

func TestOneExecutionOnThePlatform(t *testing.T) { // case F01
	for name, effect := range map[string]twin.Effect{
		"it answers 503 after the start":     twin.Lose(codes.Unavailable),
		"it answers 429 after the start":     twin.Lose(codes.ResourceExhausted),
		"it resets the connection after it":  twin.Reset(true),
		"it does not answer within the time": twin.Hang(true),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := inCloud(t, "sleep 60")
			c.Fault(twin.Rule{On: "Jobs.RunJob", Do: effect})
			c.begin("r1")
			c.runs(1)
			executions := c.Executions("j")
			if len(executions) != 1 {
				t.Fatalf("%d executions, want one", len(executions))
			}
			name := shortName(executions[0].GetName())
			if diff := cmp.Diff([]string{name + " r1.1 ticket-of-r1 http://control"}, c.lines()); diff != "" {
				t.Errorf("ledger (-want +got):\n%s", diff)
			}
			// It is known by its name: its end is noticed.
			c.rt.Stop(t.Context(), "r1", 1, errand.CanceledByRequest, 0)
			if got := c.end("r1"); got.Worker != name+"-0" || !got.Ended {
				t.Errorf("report %+v, want the end of %s-0", got, name)
			}
		})
	}
	t.Run("a call that had no effect started nothing, and that is found out", func(t *testing.T) {
		t.Parallel()
		c := inCloud(t, "sleep 60")
		c.Fault(twin.Rule{On: "Jobs.RunJob", Do: twin.Refuse(codes.Unavailable)})
		if err := c.start("r1"); err == nil {
			t.Error("want an error that leaves it unknown")
		}
		if got := c.end("r1"); got.Code != codeStart || !got.Ended {
			t.Errorf("report %+v, want StartFailed", got)
		}
		if n := len(c.Executions("j")); n != 0 {
			t.Errorf("%d executions", n)
		}
	})
}

func TestAStartOutlivesALookThatFails(t *testing.T) {
	t.Parallel()
	c := inCloud(t, "sleep 60")
	bad := c.Fault(twin.Rule{On: "Executions.ListExecutions", Times: 3, Do: twin.Refuse(codes.Unavailable)})
	c.begin("r1")
	c.runs(1)
	if bad.Hits() != 3 {
		t.Errorf("%d looks failed, want 3", bad.Hits())
	}
}

func TestBadPollsOfAHealthyRun(t *testing.T) { // case F03
	t.Parallel()
	c := inCloud(t, "sleep 60")
	bad := c.Fault(twin.Rule{On: "Executions.GetExecution", Times: 3, Do: twin.Refuse(codes.Unavailable)})
	slow := c.Fault(twin.Rule{On: "Executions.GetExecution", Do: twin.Hang(false)})
	c.begin("r1")
	c.runs(1)
	outside.Eventually(t, outside.Patience, "the calls fail", func() bool { return bad.Hits() == 3 && slow.Hits() == 1 })
	look := c.Fault(twin.Rule{On: "Executions.GetExecution", Do: twin.Slow(0)})
	outside.Eventually(t, outside.Patience, "it is asked for again", func() bool { return look.Hits() == 1 })
	if ends := c.d.of("r1", runtime.Failed); len(ends) > 0 {
		t.Errorf("it has ended: %+v", ends[0])
	}
	if e := c.Executions("j"); len(e) != 1 || over(e[0]) {
		t.Errorf("executions %v, want the one that runs", e)
	}
}

func TestPlatformEndsATaskAtItsLimit(t *testing.T) { // case F04
	t.Parallel()
	c := inCloud(t, "sleep 60")
	begun := time.Now()
	c.begin("r1", func(a *runtime.Assignment) { a.Deadline = errand.At(begun.Add(500 * time.Millisecond)) })
	got := c.end("r1")
	if got.Class != errand.ClassTimeout || got.Code != string(errand.AttemptTimeout) || !got.Ended {
		t.Errorf("report %+v, want its time to be over", got)
	}
	if took := time.Since(begun); took < 800*time.Millisecond {
		t.Errorf("the platform's limit came after %s, before the deadline and the grace", took)
	}
}

func TestTasksOfOneExecution(t *testing.T) {
	t.Parallel()
	c := inCloud(t, `[ $CLOUD_RUN_TASK_INDEX = 0 ] && exit 7; sleep 60`)
	var all sync.WaitGroup
	for _, id := range []string{"r1", "r2", "r3", "r4", "r5"} {
		all.Go(func() { c.begin(id, short) })
	}
	all.Wait()
	c.runs(5)
	executions := c.Executions("j")
	if len(executions) != 1 {
		t.Fatalf("%d executions, want one", len(executions))
	}
	var attempts []string
	for _, line := range c.lines() {
		fields := strings.Fields(line)
		attempts = append(attempts, fields[1]+" "+fields[2])
	}
	slices.Sort(attempts)
	if diff := cmp.Diff([]string{"r1.1 ticket-of-r1", "r2.1 ticket-of-r2", "r3.1 ticket-of-r3", "r4.1 ticket-of-r4", "r5.1 ticket-of-r5"}, attempts); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	// The task that ends without a word is reported while the others go on.
	first := strings.TrimSuffix(carried(executions[0])[0], ".1")
	if got := c.end(first); got.Code != codeUnclaimed || !strings.Contains(got.Message, "exit code 7") {
		t.Errorf("report %+v, want NotClaimed with exit code 7", got)
	}
	if e := c.Executions("j")[0]; over(e) || e.GetRunningCount() != 4 {
		t.Errorf("execution %v, want four tasks to run", e)
	}
}

func TestCancelledOnThePlatform(t *testing.T) {
	t.Run("after the grace of a stop", func(t *testing.T) {
		t.Parallel()
		c := inCloud(t, "trap '' TERM; sleep 60")
		c.begin("r1")
		c.runs(1)
		c.rt.Stop(t.Context(), "r1", 1, errand.CanceledByRequest, 50*time.Millisecond)
		if got := c.end("r1"); got.Class != errand.ClassCanceled || !got.Ended {
			t.Errorf("report %+v, want it cancelled for sure", got)
		}
		if n := len(c.Containers(c.job)); n != 0 {
			t.Errorf("%d containers run", n)
		}
	})
	t.Run("by another process than the one that has started it", func(t *testing.T) {
		t.Parallel()
		c := inCloud(t, "sleep 60")
		c.begin("r1")
		c.begin("r2")
		c.runs(2)
		c.close()
		c.open()
		c.rt.Stop(t.Context(), "r1", 1, errand.CanceledByRequest, 0)
		if got := c.end("r1"); got.Class != errand.ClassCanceled || !got.Ended {
			t.Errorf("report %+v, want it cancelled for sure", got)
		}
		outside.Eventually(t, outside.Patience, "one container is left", func() bool { return len(c.Containers(c.job)) == 1 })
	})
	t.Run("when its worker is silent for its lease", func(t *testing.T) {
		t.Parallel()
		c := inCloud(t, "sleep 60")
		c.begin("r1")
		c.runs(1)
		worker := strings.Fields(c.lines()[0])[0] + "-0"
		c.d.mu.Lock()
		c.d.held[worker] = []runtime.Held{{Run: "r1", N: 1}}
		c.d.mu.Unlock()
		if !c.rt.Lost(worker) {
			t.Error("its worker is unknown")
		}
		if got := c.end("r1"); got.Class != errand.ClassLost || !got.Ended || got.Worker != worker {
			t.Errorf("report %+v, want it lost for sure", got)
		}
	})
	t.Run("when it goes on although control has ended it", func(t *testing.T) {
		t.Parallel()
		c := inCloud(t, "sleep 60")
		c.begin("r1")
		c.runs(1)
		c.rt.Ended("r1", 1)
		outside.Eventually(t, outside.Patience, "no container is left", func() bool { return len(c.Containers(c.job)) == 0 })
	})
}

func TestTwinsQuotaIsLearned(t *testing.T) {
	t.Parallel()
	c := inCloud(t, "exit 0")
	c.Fault(twin.Rule{On: "Jobs.RunJob", Do: twin.Refuse(codes.ResourceExhausted)})
	c.begin("r1")
	if got := c.end("r1"); got.Class != errand.ClassThrottled || !got.Ended || got.RetryIn <= 0 {
		t.Errorf("report %+v, want it throttled", got)
	}
}
