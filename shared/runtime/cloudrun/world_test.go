package cloudrun

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/runtime"
)

// desk takes reports in place of control.
type desk struct {
	mu      sync.Mutex
	reports []runtime.Report
	held    map[string][]runtime.Held
}

func (d *desk) Report(_ context.Context, reports []runtime.Report) []runtime.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reports = append(d.reports, reports...)
	return make([]runtime.Result, len(reports))
}

func (d *desk) of(runID string, types ...runtime.ReportType) (found []runtime.Report) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.reports {
		if r.Run == runID && slices.Contains(types, r.Type) {
			found = append(found, r)
		}
	}
	return found
}

// world is a runtime for jobs over a platform, in simulated time.
type world struct {
	*testing.T
	p  *fake
	rt *Runtime
	d  *desk
}

func inWorld(t *testing.T, f func(w *world), change ...func(*Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, p: newFake(), d: &desk{held: make(map[string][]runtime.Held)}}
		for _, name := range []string{aJob, place + "/jobs/k"} {
			w.p.jobs[name] = &runpb.Job{Template: &runpb.ExecutionTemplate{Template: &runpb.TaskTemplate{Retries: &runpb.TaskTemplate_MaxRetries{}}}}
		}
		w.open(change...)
		f(w)
		w.close()
	})
}

// open begins a process, which knows nothing of one before.
func (w *world) open(change ...func(*Options)) {
	o := Options{
		Project: "p", Region: "r", Reporter: w.d, URL: func() string { return "http://control" },
		Held: func(worker string) []runtime.Held {
			w.d.mu.Lock()
			defer w.d.mu.Unlock()
			return slices.Clone(w.d.held[worker])
		},
		Logger: slog.New(slog.NewTextHandler(w.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&o)
	}
	w.rt = open(o, w.p)
}

func (w *world) close() {
	if err := w.rt.Close(context.Background(), 0); err != nil {
		w.Error(err)
	}
}

func (w *world) start(id string, change ...func(*runtime.Assignment)) error {
	a := assignment(id, 1, aJob)
	a.Ticket, a.Token, a.Input = "ticket-of-"+id, "", nil
	for _, f := range change {
		f(&a)
	}
	return w.rt.Start(w.Context(), a)
}

func short(a *runtime.Assignment) { a.Agent.Lifetime.Expected = fleet.Duration(10 * time.Second) }

func (w *world) begin(ids ...string) {
	w.Helper()
	for _, id := range ids {
		if err := w.start(id); err != nil {
			w.Fatal(err)
		}
	}
}

// pack starts attempts that share an execution.
func (w *world) pack(ids ...string) {
	w.Helper()
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() {
			if err := w.start(id, short); err != nil {
				w.Error(err)
			}
		})
	}
	all.Wait()
}

func (w *world) claim(execution string, index int, id string) {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	worker := workerID(execution, index)
	w.d.held[worker] = append(w.d.held[worker], runtime.Held{Run: id, N: 1})
}

// crash ends a task with exit code 7.
func (w *world) crash(execution string, index int) {
	w.p.ends(execution, index, codes.Unknown, 7, "The container exited with an error.", runpb.Condition_NON_ZERO_EXIT_CODE)
}

// pass lets time go by.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// end waits for the report that ends a run's attempt.
func (w *world) end(id string) runtime.Report {
	w.Helper()
	for range 7200 {
		synctest.Wait()
		if ends := w.d.of(id, runtime.Completed, runtime.Failed, runtime.Released); len(ends) > 0 {
			return ends[0]
		}
		time.Sleep(time.Second)
	}
	w.Fatalf("run %s does not end in two hours", id)
	return runtime.Report{}
}

// goesOn fails the test if anything has ended, or anything was cancelled.
func (w *world) goesOn(ids ...string) {
	w.Helper()
	synctest.Wait()
	for _, id := range ids {
		if ends := w.d.of(id, runtime.Completed, runtime.Failed, runtime.Released); len(ends) > 0 {
			w.Errorf("run %s has ended: %+v", id, ends[0])
		}
	}
	if len(w.p.cancels()) > 0 {
		w.Errorf("%v were cancelled", w.p.cancels())
	}
}

func (w *world) books() (attempts, executions int) {
	synctest.Wait()
	w.rt.mu.Lock()
	defer w.rt.mu.Unlock()
	return len(w.rt.attempts), len(w.rt.executions)
}
