package cloudrun

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

func TestABadStatusPollEndsNothing(t *testing.T) { // case F03
	bad := status.Error(codes.Unavailable, "503")
	t.Run("three answers of 503 and a time-out: the run goes on, with a note, and ends by its own word", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.fail["execution"] = []error{bad, bad, bad, status.Error(codes.DeadlineExceeded, "slow")}
			w.begin("r1")
			w.pass(5 * time.Minute)
			w.goesOn("r1")
			if notes := w.d.of("r1", runtime.Logged); len(notes) != 1 || !strings.Contains(notes[0].Logs[0].Text, "unknown for the moment") {
				t.Errorf("notes %+v, want one", notes)
			}
			w.rt.Ended("r1", 1)
			w.p.ends(w.p.order[0], 0, codes.OK, 0, "", 0)
			w.pass(time.Minute)
			w.goesOn("r1")
		})
	})
	t.Run("not found for a moment is not gone", func(t *testing.T) {
		inWorld(t, func(w *world) {
			gone := missing("it")
			w.p.fail["execution"] = []error{gone, gone, gone, nil, gone, gone, gone}
			w.begin("r1")
			w.pass(time.Hour)
			w.goesOn("r1")
		})
	})
	t.Run("not found for longer is", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.p.mu.Lock()
			clear(w.p.ran)
			w.p.mu.Unlock()
			begun := time.Now()
			got := w.end("r1")
			if got.Class != run.ClassInfrastructure || got.Code != codeGone || !got.Ended || time.Since(begun) < time.Minute {
				t.Errorf("report %+v after %s", got, time.Since(begun))
			}
			if attempts, executions := w.books(); attempts != 0 || executions != 0 {
				t.Errorf("%d attempts and %d executions are still on the books", attempts, executions)
			}
		})
	})
	t.Run("what can never be learned is given up long after the deadline", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.fail["execution"] = slices.Repeat([]error{bad}, 1000)
			w.begin("r1") // its deadline is in an hour
			w.pass(time.Hour)
			w.goesOn("r1")
			if got := w.end("r1"); got.Class != run.ClassLost || got.Ended {
				t.Errorf("report %+v, want it lost, not surely ended", got)
			}
		})
	})
}

func TestPlatformsTimeLimit(t *testing.T) { // case F04
	const words = "The configured timeout was reached."
	t.Run("where the platform was first, the attempt's time is over", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.claim(w.p.order[0], 0, "r1")
			w.pass(time.Minute)
			w.p.ends(w.p.order[0], 0, codes.DeadlineExceeded, 0, words, runpb.Condition_NON_ZERO_EXIT_CODE)
			w.pass(15 * time.Second)
			if !w.rt.Lost("j-x0000-0") {
				t.Error("its worker is unknown")
			}
			if got := w.end("r1"); got.Class != run.ClassTimeout || got.Code != string(run.AttemptTimeout) || !got.Ended {
				t.Errorf("report %+v, want its time to be over", got)
			}
		})
	})
	t.Run("where the watcher died before and came back after, too", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.claim(w.p.order[0], 0, "r1")
			w.close()
			w.p.ends(w.p.order[0], 0, codes.DeadlineExceeded, 0, words, runpb.Condition_NON_ZERO_EXIT_CODE)
			w.open()
			if !w.rt.Lost("j-x0000-0") {
				t.Error("its worker is unknown")
			}
			if got := w.end("r1"); got.Class != run.ClassTimeout || !got.Ended {
				t.Errorf("report %+v, want its time to be over", got)
			}
		})
	})
	t.Run("where control was first, its reason stands", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.rt.Stop(t.Context(), "r1", 1, run.DeadlineExceeded, time.Minute)
			w.p.ends(w.p.order[0], 0, codes.DeadlineExceeded, 0, words, runpb.Condition_NON_ZERO_EXIT_CODE)
			if got := w.end("r1"); got.Class != run.ClassTimeout || got.Code != string(run.DeadlineExceeded) || !got.Ended {
				t.Errorf("report %+v, want control's reason", got)
			}
		})
	})
}

func TestTaskThatEndsWithoutAWord(t *testing.T) {
	const worker = "j-x0000-0"
	for name, tt := range map[string]struct {
		claimed bool
		ends    func(w *world, name string)
		class   run.Class
		code    string
		want    string
	}{
		"before it has claimed: its start has failed, with the platform's words": {
			false, func(w *world, name string) {
				w.p.ends(name, 0, codes.Unknown, 0, "Image was not found.", runpb.Condition_NON_ZERO_EXIT_CODE)
			}, run.ClassInfrastructure, codeStart, "before it claimed the attempt: Image was not found",
		},
		"before it has claimed, and all is well for the platform": {
			false, func(w *world, name string) { w.p.ends(name, 0, codes.OK, 0, "", 0) }, run.ClassUser, codeUnclaimed, "shape: pool",
		},
		"before it has claimed, by an error of its program": {
			false, func(w *world, name string) { w.crash(name, 0) }, run.ClassUser, codeUnclaimed, "(exit code 7), and never asked for it",
		},
		"before it has claimed, for it did not reach the control plane": {
			false, func(w *world, name string) {
				w.p.ends(name, 0, codes.Unknown, exitUnreachable, "The container exited with an error.", runpb.Condition_NON_ZERO_EXIT_CODE)
			}, run.ClassInfrastructure, codeStart, "(exit code 75)",
		},
		"with an exit code": {true, func(w *world, name string) { w.crash(name, 0) }, run.ClassLost, "7", "(exit code 7)"},
		"with exit code 0":  {true, func(w *world, name string) { w.p.ends(name, 0, codes.OK, 0, "", 0) }, run.ClassLost, "", "without a word"},
		"because a person cancelled its execution": {
			true, func(w *world, name string) { _ = w.p.cancelExecution(context.Background(), name) }, run.ClassInfrastructure, codeStopped, "Execution was cancelled",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.begin("r1")
				name := w.p.order[0]
				if tt.claimed {
					w.claim(name, 0, "r1")
				}
				w.pass(time.Minute)
				tt.ends(w, name)
				if tt.claimed {
					w.pass(15 * time.Second)
					if !w.rt.Lost(worker) {
						t.Error("its worker is unknown")
					}
				}
				begun := time.Now()
				got := w.end("r1")
				if got.Class != tt.class || got.Code != tt.code || !strings.Contains(got.Message, tt.want) || !got.Ended || got.Worker != worker {
					t.Errorf("report %+v, want class %s code %q with %q", got, tt.class, tt.code, tt.want)
				}
				if time.Since(begun) < 10*time.Second {
					t.Errorf("judged after %s: its last words may be under way", time.Since(begun))
				}
				if attempts, executions := w.books(); attempts != 0 || executions != 0 {
					t.Errorf("%d attempts and %d executions are still on the books", attempts, executions)
				}
			})
		})
	}
	t.Run("one of several is reported while the others go on", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.pack("r1", "r2", "r3")
			name := w.p.order[0]
			failed := carried(w.p.ran[name])[1]
			w.crash(name, 1)
			got := w.end(strings.TrimSuffix(failed, ".1"))
			if got.Code != codeUnclaimed || !got.Ended || got.Worker != "j-x0000-1" {
				t.Errorf("report %+v, want NotClaimed", got)
			}
			if attempts, _ := w.books(); attempts != 2 {
				t.Errorf("%d attempts on the books, want the other two", attempts)
			}
		})
	})
	t.Run("without its tasks the execution's words must do", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.p.fail["tasks"] = []error{status.Error(codes.Unavailable, "away")}
			w.crash(w.p.order[0], 0)
			if got := w.end("r1"); got.Code != codeStart || !strings.Contains(got.Message, "exited with an error") {
				t.Errorf("report %+v", got)
			}
		})
	})
}

func TestSilentWorker(t *testing.T) {
	t.Run("whose task runs is out of reach: it is cancelled, and lost once it is gone", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.claim(w.p.order[0], 0, "r1")
			w.pass(time.Minute)
			for range 2 { // it may be told twice
				if !w.rt.Lost("j-x0000-0") {
					t.Error("its worker is unknown")
				}
			}
			got := w.end("r1")
			if got.Class != run.ClassLost || !got.Ended || !strings.Contains(got.Message, "was cancelled") || len(w.p.cancels()) != 1 {
				t.Errorf("report %+v after cancelling %v", got, w.p.cancels())
			}
		})
	})
	t.Run("whose cancellation fails at first is cancelled all the same", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.fail["cancelExecution"] = []error{status.Error(codes.Unavailable, "away"), status.Error(codes.Unavailable, "away")}
			w.begin("r1")
			w.claim(w.p.order[0], 0, "r1")
			w.rt.Lost("j-x0000-0")
			if got := w.end("r1"); got.Class != run.ClassLost || !got.Ended {
				t.Errorf("report %+v", got)
			}
		})
	})
	t.Run("whose execution does not end although it is cancelled is lost, not surely ended", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.stubborn = true
			w.begin("r1")
			w.claim(w.p.order[0], 0, "r1")
			w.rt.Lost("j-x0000-0")
			if got := w.end("r1"); got.Class != run.ClassLost || got.Ended || len(w.p.cancels()) != 1 {
				t.Errorf("report %+v after cancelling %v", got, w.p.cancels())
			}
		})
	})
	t.Run("that shares its execution is lost, and the others are not hit", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.pack("r1", "r2")
			ids := carried(w.p.ran[w.p.order[0]])
			first, second := strings.TrimSuffix(ids[0], ".1"), strings.TrimSuffix(ids[1], ".1")
			w.claim(w.p.order[0], 0, first)
			w.claim(w.p.order[0], 1, second)
			w.rt.Lost("j-x0000-0")
			if got := w.end(first); got.Class != run.ClassLost || got.Ended {
				t.Errorf("report %+v, want it lost, not surely ended", got)
			}
			w.pass(time.Hour)
			w.goesOn(second)
			// When all of them are silent there is nobody to spare.
			w.rt.Lost("j-x0000-1")
			if got := w.end(second); got.Class != run.ClassLost || !got.Ended || len(w.p.cancels()) != 1 {
				t.Errorf("report %+v after cancelling %v", got, w.p.cancels())
			}
		})
	})
	t.Run("that a process before this one has started is found by its name", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.claim(w.p.order[0], 0, "r1")
			w.close()
			w.open()
			if !w.rt.Lost("j-x0000-0") {
				t.Error("its worker is unknown")
			}
			if got := w.end("r1"); got.Class != run.ClassLost || !got.Ended || len(w.p.cancels()) != 1 {
				t.Errorf("report %+v after cancelling %v", got, w.p.cancels())
			}
		})
	})
	t.Run("of a process before this one, among others in its execution, is lost, and the others are not hit", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.pack("r1", "r2", "r3")
			ids := carried(w.p.ran[w.p.order[0]])
			for i, id := range ids {
				w.claim(w.p.order[0], i, strings.TrimSuffix(id, ".1"))
			}
			w.close()
			w.open()
			for i, id := range ids[:2] {
				if !w.rt.Lost(workerID(w.p.order[0], i)) {
					t.Error("its worker is unknown")
				}
				if got := w.end(strings.TrimSuffix(id, ".1")); got.Class != run.ClassLost || got.Ended {
					t.Errorf("report %+v, want it lost, not surely ended", got)
				}
			}
			w.pass(time.Hour)
			w.goesOn(strings.TrimSuffix(ids[2], ".1"))
		})
	})
	t.Run("that the platform has never heard of is nobody's", func(t *testing.T) {
		inWorld(t, func(w *world) {
			if w.rt.Lost("pool-worker") {
				t.Error("the worker of a pool is taken for a task")
			}
			if !w.rt.Lost("pool-abcde-7") {
				t.Error("what may be a task is not looked for")
			}
			w.pass(5 * time.Minute)
			if w.rt.Lost("pool-abcde-7") {
				t.Error("it is still taken for a task")
			}
			if _, executions := w.books(); executions != 0 {
				t.Errorf("%d executions on the books", executions)
			}
		})
	})
	t.Run("whose attempt is over is nobody's", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.rt.Ended("r1", 1)
			if w.rt.Lost("j-x0000-0") {
				t.Error("it is looked after")
			}
		})
	})
}

func TestStopOfATask(t *testing.T) {
	t.Run("after its grace its execution is cancelled, and its end is sure", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.claim(w.p.order[0], 0, "r1")
			w.rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, time.Minute)
			w.pass(time.Minute - time.Second)
			w.goesOn("r1")
			got := w.end("r1")
			if got.Class != run.ClassCanceled || !got.Ended || len(w.p.cancels()) != 1 {
				t.Errorf("report %+v after cancelling %v", got, w.p.cancels())
			}
		})
	})
	t.Run("one that ends within its grace is not cancelled", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, time.Minute)
			w.pass(time.Second)
			w.p.ends(w.p.order[0], 0, codes.OK, 0, "", 0)
			w.rt.Ended("r1", 1)
			w.pass(time.Hour)
			w.goesOn("r1")
		})
	})
	t.Run("the others of its execution are not hit; when they are over it can be cancelled", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.pack("r1", "r2")
			w.claim(w.p.order[0], 0, "r1")
			w.claim(w.p.order[0], 1, "r2")
			w.rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, time.Second)
			w.pass(10 * time.Minute)
			w.goesOn("r1", "r2")
			w.rt.Ended("r2", 1)
			if got := w.end("r1"); got.Class != run.ClassCanceled || !got.Ended || len(w.p.cancels()) != 1 {
				t.Errorf("report %+v after cancelling %v", got, w.p.cancels())
			}
		})
	})
	t.Run("one that a process before this one has started is found by its attempt", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1", "r2")
			w.close()
			w.open()
			w.rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, time.Second)
			if got := w.end("r1"); got.Class != run.ClassCanceled || !got.Ended || !slices.Equal(w.p.cancels(), w.p.order[:1]) {
				t.Errorf("report %+v after cancelling %v", got, w.p.cancels())
			}
			if ends := w.d.of("r2", runtime.Failed); len(ends) > 0 {
				t.Errorf("the other has ended: %+v", ends[0])
			}
		})
	})
	t.Run("it is looked for in the jobs that are declared, where they are known", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.close()
			w.open(func(o *Options) {
				o.Jobs = func() []string { return []string{place + "/jobs/gone", place + "/jobs/k", aJob} }
			})
			w.p.fail["executions"] = []error{missing("gone")}
			w.rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, time.Second)
			if got := w.end("r1"); got.Class != run.ClassCanceled || !got.Ended || !slices.Equal(w.p.cancels(), w.p.order) {
				t.Errorf("report %+v after cancelling %v", got, w.p.cancels())
			}
		})
	})
	t.Run("one that may not be looked for is left alone", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.p.fail["executions"] = slices.Repeat([]error{status.Error(codes.PermissionDenied, "no")}, 100)
			w.rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, time.Second)
			w.pass(time.Hour)
			w.goesOn("r1")
			if attempts, _ := w.books(); attempts != 0 || w.p.count("executions") != 1 {
				t.Errorf("%d attempts on the books after %d looks", attempts, w.p.count("executions"))
			}
		})
	})
	t.Run("what is no task, or nowhere, is left alone", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r2")
			w.rt.Stop(t.Context(), "r1", 1, run.CanceledByRequest, time.Second)
			w.pass(time.Hour)
			w.goesOn("r1", "r2")
			if attempts, _ := w.books(); attempts != 1 {
				t.Errorf("%d attempts on the books, want the one that runs", attempts)
			}
		})
	})
}

func TestEndedCleansUp(t *testing.T) {
	t.Run("an execution that ends by itself is forgotten", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.rt.Ended("r1", 1)
			w.p.ends(w.p.order[0], 0, codes.OK, 0, "", 0)
			w.pass(time.Minute)
			w.goesOn("r1")
			if attempts, executions := w.books(); attempts != 0 || executions != 0 {
				t.Errorf("%d attempts and %d executions are still on the books", attempts, executions)
			}
		})
	})
	t.Run("one that goes on is cancelled after the grace", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.rt.Ended("r1", 1)
			w.pass(9 * time.Second)
			w.goesOn("r1")
			w.pass(time.Minute)
			if len(w.p.cancels()) != 1 {
				t.Errorf("%v were cancelled, want the one", w.p.cancels())
			}
			if attempts, executions := w.books(); attempts != 0 || executions != 0 {
				t.Errorf("%d attempts and %d executions are still on the books", attempts, executions)
			}
		})
	})
	t.Run("while a worker holds its attempt the platform is not asked", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.claim(w.p.order[0], 0, "r1")
			w.pass(time.Hour)
			if n := w.p.count("execution"); n > 0 {
				t.Errorf("asked %d times", n)
			}
		})
	})
	t.Run("the end of the server leaves executions to the next", func(t *testing.T) {
		inWorld(t, func(w *world) {
			w.begin("r1")
			w.close()
			w.pass(time.Hour)
			w.goesOn("r1")
		})
	})
}
