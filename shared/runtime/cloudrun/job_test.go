package cloudrun

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

func TestRetryingTheStartCallMakesNoSecondExecution(t *testing.T) { // case F01
	for name, code := range map[string]codes.Code{
		"the platform answers 503 after it has started":      codes.Unavailable,
		"the platform answers 429 after it has started":      codes.ResourceExhausted,
		"the connection is reset after the request was read": codes.Internal,
		"the time is over after it has started":              codes.DeadlineExceeded,
		"the call is abandoned after it has started":         codes.Canceled,
		"the platform answers what nobody can interpret":     codes.Unknown,
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.p.lose = []error{status.Error(code, "lost")}
				w.begin("r1")
				if len(w.p.order) != 1 || w.p.count("runJob") != 1 {
					t.Fatalf("%d executions by %d calls, want one by one", len(w.p.order), w.p.count("runJob"))
				}
				w.pass(time.Hour)
				w.goesOn("r1")
				// It is known by its execution: its crash is noticed.
				w.crash(w.p.order[0], 0)
				if got := w.end("r1"); got.Code != codeUnclaimed || !got.Ended || got.Worker != "j-x0000-0" {
					t.Errorf("report %+v, want NotClaimed of task j-x0000-0", got)
				}
			})
		})
	}
	t.Run("one that is listed late is adopted then", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.lose = []error{status.Error(codes.Unavailable, "lost")}
			w.p.hidden[aJob+"/executions/j-x0000"] = true
			if err := w.start("r1"); err == nil || errors.Is(err, runtime.ErrRefused) {
				t.Fatalf("error %v, want one that leaves it unknown", err)
			}
			if err := w.start("r1"); err != nil || w.p.count("runJob") != 1 {
				t.Errorf("the same start again: %v after %d calls, want nothing done", err, w.p.count("runJob"))
			}
			w.p.show(aJob + "/executions/j-x0000")
			w.pass(time.Hour)
			w.goesOn("r1")
			if _, executions := w.books(); executions != 1 {
				t.Errorf("%d executions on the books", executions)
			}
		})
	})
	t.Run("when none is listed for a minute, nothing was started", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.fail["runJob"] = []error{status.Error(codes.Unavailable, "away")}
			if err := w.start("r1"); err == nil || errors.Is(err, runtime.ErrRefused) {
				t.Fatalf("error %v, want one that leaves it unknown", err)
			}
			begun := time.Now()
			got := w.end("r1")
			if got.Code != codeStart || !got.Ended || !strings.Contains(got.Message, "none is listed after 1m0s") || time.Since(begun) < time.Minute {
				t.Errorf("report %+v after %s", got, time.Since(begun))
			}
		})
	})
	t.Run("while listings fail nobody knows, and nothing ends", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.lose = []error{status.Error(codes.Unavailable, "lost")}
			w.p.fail["executions"] = slices.Repeat([]error{status.Error(codes.Unavailable, "away")}, 8)
			w.p.fail["executions"][0] = nil // the look before the call
			if err := w.start("r1"); err == nil || errors.Is(err, runtime.ErrRefused) {
				t.Fatalf("error %v, want one that leaves it unknown", err)
			}
			w.pass(30 * time.Minute)
			w.goesOn("r1")
			if _, executions := w.books(); executions != 1 {
				t.Errorf("%d executions on the books", executions)
			}
		})
	})
	t.Run("what a process before this one has started is adopted", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.close()
			w.open()
			w.begin("r1", "r2")
			if w.p.count("runJob") != 2 || len(w.p.order) != 2 {
				t.Errorf("%d calls, want one for each run", w.p.count("runJob"))
			}
			w.crash(w.p.order[0], 0)
			if got := w.end("r1"); got.Code != codeUnclaimed {
				t.Errorf("report %+v, want NotClaimed", got)
			}
		})
	})
	t.Run("a surplus execution that is found later is cancelled and recorded; the one that was claimed stays", func(t *testing.T) {
		inWorld(t, func(w *world) {
			x := attemptOf("r1", 1, 0)
			request := runRequest(aJob, jobConfig{containers: []string{""}}, []*attempt{x}, "", time.Now(), 0)
			w.p.mu.Lock()
			w.p.add(request)
			w.p.mu.Unlock()
			w.pass(time.Second)
			w.p.mu.Lock()
			second := w.p.add(request)
			w.p.mu.Unlock()
			w.claim(second, 0, "r1")
			w.begin("r1")
			synctest.Wait()
			if diff := cmp.Diff([]string{aJob + "/executions/j-x0000"}, w.p.cancels()); diff != "" || w.p.count("runJob") != 0 {
				t.Errorf("%d more calls, cancelled (-want +got):\n%s", w.p.count("runJob"), diff)
			}
			if logs := w.d.of("r1", runtime.Logged); len(logs) != 1 || !strings.Contains(logs[0].Logs[0].Text, "j-x0000 was started for this attempt, too") {
				t.Errorf("logs %+v", logs)
			}
		})
	})
	t.Run("one that comes to light after its attempt was given back is cancelled", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.lose = []error{status.Error(codes.ResourceExhausted, "quota")}
			w.p.hidden[aJob+"/executions/j-x0000"] = true
			w.begin("r1")
			if got := w.end("r1"); got.Class != run.ClassThrottled || !got.Ended {
				t.Errorf("report %+v, want it throttled", got)
			}
			w.p.show(aJob + "/executions/j-x0000")
			w.pass(10 * time.Minute)
			if len(w.p.cancels()) != 1 {
				t.Errorf("%v were cancelled, want the one", w.p.cancels())
			}
		})
	})
}

func TestJobThatCannotBeStartedIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(w *world)
		want   string
	}{
		"the platform would retry by itself": {
			func(w *world) {
				w.p.jobs[aJob].Template.Template.Retries = &runpb.TaskTemplate_MaxRetries{MaxRetries: 2}
			}, "set its max retries to 0",
		},
		"the platform's default would retry by itself": {func(w *world) { w.p.jobs[aJob].Template.Template.Retries = nil }, "has 3 retries"},
		"there is no such job":                         {func(w *world) { delete(w.p.jobs, aJob) }, "create the resource"},
		"the job went since it was looked at": {
			func(w *world) { w.p.fail["runJob"] = []error{missing(aJob)} }, "create the resource",
		},
		"it may not be run": {func(w *world) { w.p.fail["runJob"] = []error{status.Error(codes.PermissionDenied, "no")} }, "grant the control plane"},
		"it may not be run with overrides": {
			func(w *world) { w.p.fail["runJob"] = []error{status.Error(codes.InvalidArgument, "no")} }, "as the platform says",
		},
		"it is not ready": {func(w *world) { w.p.fail["runJob"] = []error{status.Error(codes.FailedPrecondition, "no")} }, "as the platform says"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				tt.change(w)
				err := w.start("r1")
				if !errors.Is(err, runtime.ErrRefused) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want ErrRefused with %q", err, tt.want)
				}
				if attempts, _ := w.books(); attempts != 0 || len(w.p.order) != 0 {
					t.Errorf("%d attempts on the books, %d executions", attempts, len(w.p.order))
				}
				// Another try after the correction is not held back by what was kept.
				w.p.jobs[aJob] = &runpb.Job{Template: &runpb.ExecutionTemplate{Template: &runpb.TaskTemplate{Retries: &runpb.TaskTemplate_MaxRetries{}}}}
				w.begin("r1")
			})
		})
	}
	t.Run("without a ticket nobody could claim", func(t *testing.T) {
		inWorld(t, func(w *world) {
			if err := w.start("r1", func(a *runtime.Assignment) { a.Ticket = "" }); !errors.Is(err, runtime.ErrRefused) {
				t.Errorf("error %v, want ErrRefused", err)
			}
		})
	})
	t.Run("while the API is away the attempt is given back", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.fail["job"] = []error{status.Error(codes.Unavailable, "away")}
			w.begin("r1")
			if got := w.end("r1"); got.Class != run.ClassInfrastructure || got.Code == codeStart || !got.Ended {
				t.Errorf("report %+v", got)
			}
		})
	})
}

func TestStartsKeepToTheQuota(t *testing.T) {
	t.Run("a start waits for its turn for a while; what is over that is given back with the time to come again", func(t *testing.T) {
		inWorld(t, func(w *world) {
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					if err := w.start(fmt.Sprintf("r%d", i)); err != nil {
						t.Error(err)
					}
				})
			}
			begun := time.Now()
			all.Wait()
			w.pass(0)
			back := 0
			for i := range 20 {
				for _, r := range w.d.of(fmt.Sprintf("r%d", i), runtime.Failed) {
					back++
					if r.Class != run.ClassThrottled || r.RetryIn < 5*time.Second || !r.Ended {
						t.Errorf("report %+v, want it throttled, to come again", r)
					}
				}
			}
			// Ten at once, one a second for five seconds.
			if back != 5 || len(w.p.order) != 15 || time.Since(begun) != 5*time.Second {
				t.Errorf("%d started and %d given back in %s", len(w.p.order), back, time.Since(begun))
			}
		})
	})
	t.Run("how many are allowed is known", func(t *testing.T) {
		inWorld(t, func(w *world) {
			before := w.rt.StartsAllowed()
			w.begin("r1", "r2")
			if before != 10 || w.rt.StartsAllowed() != 8 {
				t.Errorf("%d and, after two, %d", before, w.rt.StartsAllowed())
			}
		})
	})
	t.Run("when the platform has enough, nothing was started, and fewer are allowed", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.pass(time.Minute)
			w.p.fail["runJob"] = []error{status.Error(codes.ResourceExhausted, "quota of starts")}
			w.begin("r1")
			if got := w.end("r1"); got.Class != run.ClassThrottled || got.RetryIn != 2*time.Second || !strings.Contains(got.Message, "quota of starts") {
				t.Errorf("report %+v, want it throttled for 2s", got)
			}
			if n := w.rt.StartsAllowed(); n > 1 {
				t.Errorf("%d are allowed", n)
			}
		})
	})
}

func TestPacking(t *testing.T) {
	tasks := func(w *world) (counts []int) {
		for _, name := range w.p.order {
			counts = append(counts, int(w.p.ran[name].GetTaskCount()))
		}
		slices.Sort(counts)
		return counts
	}
	t.Run("short attempts of one job that start together are tasks of one execution", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.pack("r1", "r2", "r3", "r4", "r5")
			if diff := cmp.Diff([]int{5}, tasks(w)); diff != "" {
				t.Errorf("tasks (-want +got):\n%s", diff)
			}
			ids := carried(w.p.ran[w.p.order[0]])
			slices.Sort(ids)
			if diff := cmp.Diff([]string{"r1.1", "r2.1", "r3.1", "r4.1", "r5.1"}, ids); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("a full one does not wait", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.jobs[aJob].Template.Parallelism = 2
			begun := time.Now()
			w.pack("r1", "r2")
			if diff := cmp.Diff([]int{2}, tasks(w)); diff != "" || time.Since(begun) != 0 {
				t.Errorf("after %s, tasks (-want +got):\n%s", time.Since(begun), diff)
			}
			w.pack("r3", "r4", "r5")
			if diff := cmp.Diff([]int{1, 2, 2}, tasks(w)); diff != "" {
				t.Errorf("tasks (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("long ones, and those of another job or moment, have one each", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1", "r2")
			w.pack("r3")
			w.pack("r4")
			if err := w.start("r5", short, func(a *runtime.Assignment) { a.Target.Resource = place + "/jobs/k" }); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]int{1, 1, 1, 1, 1}, tasks(w)); diff != "" {
				t.Errorf("tasks (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("one that is told to stop while it waits is not started", func(t *testing.T) {
		inWorld(t, func(w *world) {
			var all sync.WaitGroup
			all.Go(func() { w.pack("r1", "r2") })
			w.pass(50 * time.Millisecond)
			w.rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, time.Minute)
			all.Wait()
			if got := w.end("r1"); got.Class != run.ClassCanceled || !got.Ended {
				t.Errorf("report %+v, want it cancelled before it began", got)
			}
			if diff := cmp.Diff([]string{"r2.1"}, carried(w.p.ran[w.p.order[0]])); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("the end of the server hands back what waits", func(t *testing.T) {
		inWorld(t, func(w *world) {
			var all sync.WaitGroup
			all.Go(func() { w.pack("r1") })
			w.pass(50 * time.Millisecond)
			w.close()
			all.Wait()
			if got := w.end("r1"); got.Type != runtime.Released || !got.Ended || len(w.p.order) != 0 {
				t.Errorf("report %+v, %d executions", got, len(w.p.order))
			}
		})
	})
}
