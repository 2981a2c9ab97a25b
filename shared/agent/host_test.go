package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
)

var quiet = slog.New(slog.DiscardHandler)

func echo(_ context.Context, a *Attempt) Result { return Result{Output: a.Input} }

func TestHostExecutesEveryRunOnceAndReportsItsStartAtMostOnceBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		stop := f.serveWith(t, HostOptions{Slots: 8, Handle: echo})
		var runs []*fakeRun
		f.mu.Lock()
		for i := range 100 {
			runs = append(runs, f.submitLocked("a", fmt.Sprint(i)))
		}
		f.mu.Unlock()
		for i, r := range runs {
			<-r.wait
			if got := string(r.output); got != fmt.Sprint(i) || r.n != 1 {
				t.Errorf("run %d: output %s after %d attempts; want %d after 1", i, got, r.n, i)
			}
			if got := strings.Join(r.reports, " "); got != "complete" && got != "start complete" {
				t.Errorf("run %d: reports %s", i, got)
			}
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestStartIsToldWhereTheEndTakesLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		stop := f.serveWith(t, HostOptions{Handle: func(ctx context.Context, a *Attempt) Result {
			_ = nap(ctx, 2*startDelay)
			return echo(ctx, a)
		}})
		f.mu.Lock()
		r := f.submitLocked("a", "1")
		f.mu.Unlock()
		<-r.wait
		if diff := cmp.Diff([]string{"start", "complete"}, r.reports); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
		_ = stop()
	})
}

func TestAnEndBringsTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.mu.Lock()
		for range 4 {
			f.submitLocked("a", "1")
		}
		last := f.submitLocked("a", "1")
		f.mu.Unlock()
		stop := f.serveWith(t, HostOptions{Handle: echo})
		<-last.wait
		synctest.Wait()
		if diff := cmp.Diff([]int{1, 1, 1, 1, 1}, f.sizes); diff != "" {
			t.Errorf("reports in each batch (-want +got):\n%s", diff)
		}
		if n := f.calls["/v1/leases"]; n != 2 {
			t.Errorf("%d requests for runs beside the batches; want the first, and the one that is open now", n)
		}
		_ = stop()
	})
}

func TestHostNeverExecutesMoreThanItsSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var now, most atomic.Int32
		stop := f.serveWith(t, HostOptions{Slots: 3, Handle: func(ctx context.Context, a *Attempt) Result {
			n := now.Add(1)
			defer now.Add(-1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			time.Sleep(time.Duration(len(a.Input)) * 7 * time.Millisecond)
			return Result{}
		}})
		var runs []*fakeRun
		for i := range 40 {
			runs = append(runs, f.submit("a", strings.Repeat("1", i%5+1)))
		}
		for _, r := range runs {
			<-r.wait
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if most.Load() != 3 {
			t.Errorf("%d handlers ran at once; want all 3 slots in use and no more", most.Load())
		}
	})
}

func TestIdleHostHoldsOneRequestOpenAndPollsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		stop := f.serveWith(t, HostOptions{Slots: 4, Handle: echo})
		time.Sleep(10*time.Minute + time.Second)
		f.mu.Lock()
		leases, batches, beats := f.calls["/v1/leases"], f.calls["/v1/attempts:batch"], f.calls["/v1/workers/w1:heartbeat"]
		f.mu.Unlock()
		if leases != 21 || batches != 0 || beats != 120 {
			t.Errorf("in ten idle minutes: %d long polls of 30s, %d batches, %d heartbeats; want 21, 0, 120", leases, batches, beats)
		}
		_ = stop()
	})
}

func TestHostSendsAStartThatIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		stop := f.serveWith(t, HostOptions{Handle: func(context.Context, *Attempt) Result {
			time.Sleep(time.Minute)
			return Result{}
		}})
		r := f.submit("a", "1")
		time.Sleep(startDelay + time.Millisecond)
		if state := look(f, func() string { return r.state }); state != "running" {
			t.Errorf("after %s the run is %s; want running", startDelay, state)
		}
		<-r.wait
		_ = stop()
	})
}

func TestHandlersContextEndsWithTheRightCause(t *testing.T) {
	tests := map[string]struct {
		do        func(f *fake, r *fakeRun)
		wantCause func(error) bool
		wantClass string
		wantCode  string
	}{
		"canceled by the server, told in a heartbeat's answer": {
			do:        func(f *fake, r *fakeRun) { f.cancelRun(r, "Canceled") },
			wantCause: func(err error) bool { var c *CanceledError; return errors.As(err, &c) && c.Reason == "Canceled" },
			wantClass: ClassCanceled, wantCode: "Canceled",
		},
		"timed out by the server": {
			do:        func(f *fake, r *fakeRun) { f.cancelRun(r, "AttemptTimeout") },
			wantCause: func(err error) bool { var c *CanceledError; return errors.As(err, &c) },
			wantClass: ClassTimeout, wantCode: "AttemptTimeout",
		},
		"given to another worker": {
			do:        func(f *fake, r *fakeRun) { f.setDrain(); f.loseWorker("w1") },
			wantCause: func(err error) bool { return errors.Is(err, ErrFenced) },
		},
		"the attempt's deadline": {
			do:        func(f *fake, r *fakeRun) {},
			wantCause: func(err error) bool { return errors.Is(err, context.DeadlineExceeded) },
			wantClass: ClassTimeout, wantCode: "AttemptTimeout",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.attemptFor = 10 * time.Minute
				var cause error
				var took time.Duration
				first := true
				stop := f.serveWith(t, HostOptions{Handle: handling(nil, func(ctx context.Context, _ *Run, _ int) (int, error) {
					if !first {
						return 0, nil
					}
					first = false
					began := time.Now()
					<-ctx.Done()
					cause, took = context.Cause(ctx), time.Since(began)
					return 0, ctx.Err()
				})})
				r := f.submit("a", "1")
				time.Sleep(time.Second)
				tt.do(f, r)
				time.Sleep(11 * time.Minute)
				synctest.Wait()
				if !tt.wantCause(cause) {
					t.Errorf("cause %v", cause)
				}
				if tt.wantCode == "AttemptTimeout" && name == "the attempt's deadline" {
					if took != f.attemptFor {
						t.Errorf("the context lasted %s; want %s", took, f.attemptFor)
					}
				} else if took > defaultBeat+time.Second {
					t.Errorf("the context lasted %s; want it to end with the next heartbeat", took)
				}
				switch {
				case tt.wantClass == "" && r.failure != nil:
					t.Errorf("a fenced attempt reported %s", r.why())
				case tt.wantClass != "" && (r.failure == nil || r.failure.Class != tt.wantClass || r.failure.Code != tt.wantCode):
					t.Errorf("reported %s; want %s/%s", r.why(), tt.wantClass, tt.wantCode)
				}
				_ = stop()
			})
		})
	}
}

func TestResultSurvivesAnOutage(t *testing.T) {
	tests := map[string]struct{ outage time.Duration }{
		"of a moment": {100 * time.Millisecond},
		"of minutes, within the attempt's deadline":         {20 * time.Minute},
		"that swallows the answer to the completed result ": {0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				var executed int
				stop := f.serveWith(t, HostOptions{Handle: func(ctx context.Context, a *Attempt) Result {
					executed++
					if tt.outage == 0 {
						f.mu.Lock()
						f.loseAfter[":batch"] = 1
						f.mu.Unlock()
					} else {
						f.setDown(true)
						time.AfterFunc(tt.outage, func() { f.setDown(false) })
					}
					if ctx.Err() != nil {
						t.Error("the handler was canceled by the outage")
					}
					return Result{Output: json.RawMessage("42")}
				}})
				r := f.submit("a", "1")
				<-r.wait
				if string(r.output) != "42" || executed != 1 {
					t.Errorf("output %s after %d executions", r.output, executed)
				}
				// The worker goes on as before, soon.
				began := time.Now()
				tt.outage = 0
				<-f.submit("a", "2").wait
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the next run took %s", took)
				}
				_ = stop()
			})
		})
	}
}

func TestResultIsGivenUpOnlyLongAfterItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.attemptFor = time.Minute
		stop := f.serveWith(t, HostOptions{Handle: func(context.Context, *Attempt) Result {
			f.setDown(true)
			return Result{}
		}})
		f.submit("a", "1")
		time.Sleep(time.Minute + lateReport + 5*time.Second)
		f.mu.Lock()
		f.down = false
		before := f.calls["/v1/attempts:batch"]
		f.mu.Unlock()
		time.Sleep(time.Minute)
		if after := look(f, func() int { return f.calls["/v1/attempts:batch"] }); after != before {
			t.Errorf("%d batches were sent for a run that is long lost", after-before)
		}
		_ = stop()
	})
}

func TestServersRefusalOfAResultFailsTheAttempt(t *testing.T) {
	tests := map[string]struct {
		result  Result
		refusal *api.Problem
		want    string
		final   bool
	}{
		"question to people that is none": {
			result: Result{Park: &api.Park{On: "gate", Step: "pay"}}, refusal: problemOf(400, api.CodeInvalid, "gate: approvers: ann"),
			want: "ResultRefused", final: true,
		},
		"output against the schema": {
			result: Result{Output: json.RawMessage(`1`)}, refusal: problemOf(400, api.CodeInvalid, "output.total: missing"),
			want: "ResultRefused",
		},
		"result that is too large for the server": {
			result: Result{Output: json.RawMessage(`1`)}, refusal: problemOf(413, api.CodeTooLarge, "too much"),
			want: "ResultTooLarge",
		},
		"output that is no JSON":  {result: Result{Output: json.RawMessage(`{oops`)}, want: "OutputInvalid"},
		"output beyond the limit": {result: Result{Output: make(json.RawMessage, api.MaxPayload+1)}, want: "ResultTooLarge"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				if tt.refusal != nil {
					f.refuse[api.ReportComplete], f.refuse[api.ReportPark] = tt.refusal, tt.refusal
				}
				first := true
				stop := f.serveWith(t, HostOptions{Slots: 4, Handle: func(ctx context.Context, a *Attempt) Result {
					if string(a.Input) != "1" {
						return Failed(Fail("OTHER", errBoom))
					}
					if !first {
						return Failed(Fail("AGAIN", errBoom))
					}
					first = false
					return tt.result
				}})
				// Another run's report travels in the same batch and must not suffer.
				f.mu.Lock()
				r, other := f.submitLocked("a", "1"), f.submitLocked("a", "2")
				f.mu.Unlock()
				<-other.wait
				if other.failure.Code != "OTHER" {
					t.Errorf("the other run: %s", other.why())
				}
				synctest.Wait()
				time.Sleep(time.Second)
				f.mu.Lock()
				defer f.mu.Unlock()
				if r.failure == nil || (r.failure.Code != tt.want && r.failure.Code != "AGAIN") {
					t.Errorf("reported %s; want %s", r.why(), tt.want)
				}
				if tt.final && (r.failure == nil || r.failure.Retryable == nil || *r.failure.Retryable || r.n != 1) {
					t.Errorf("%s after %d attempts; want a final one after the first", r.why(), r.n)
				}
				if r.failure != nil && r.failure.Code == "AGAIN" && r.n != 2 {
					t.Errorf("%d attempts", r.n)
				}
				go stop()
			})
		})
	}
}

func TestDrain(t *testing.T) {
	type outcome struct {
		State    string
		Released []string
	}
	tests := map[string]struct {
		works time.Duration // how long the handler takes
		deaf  bool          // it does not heed its context
		want  outcome
	}{
		"lets a handler finish within its grace":     {works: 5 * time.Second, want: outcome{State: "succeeded"}},
		"hands back a handler that heeds its end":    {works: time.Hour, want: outcome{State: "queued", Released: []string{"worker is ending"}}},
		"hands back over the head of a deaf handler": {works: time.Hour, deaf: true, want: outcome{State: "queued", Released: []string{"worker is ending"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				stop := f.serveWith(t, HostOptions{Slots: 2, Handle: func(ctx context.Context, a *Attempt) Result {
					done := ctx.Done()
					if tt.deaf {
						done = nil
					}
					select {
					case <-time.After(tt.works):
						return Result{}
					case <-done:
						return Failed(ctx.Err())
					}
				}})
				r := f.submit("a", "1")
				time.Sleep(time.Second)
				began := time.Now()
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
				if took := time.Since(began); took > DefaultGrace+2*stopPatience {
					t.Errorf("draining took %s", took)
				}
				if diff := cmp.Diff(tt.want, outcome{r.state, r.released}); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				late := f.submit("a", "2")
				time.Sleep(time.Minute)
				if late.n != 0 {
					t.Error("a drained worker took a run")
				}
				beats := f.workers["w1"].beats
				if !beats[len(beats)-1].Draining {
					t.Error("the last heartbeat does not say draining")
				}
				time.Sleep(tt.works) // until the deaf one is gone as well
			})
		})
	}
}

func TestDrainAskedByTheServerCutsNothingShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h, err := NewHost(f.client(t), HostOptions{Worker: "w1", Agents: []string{"a"}, Log: quiet, Handle: func(ctx context.Context, a *Attempt) Result {
			time.Sleep(20 * time.Minute)
			return Result{}
		}})
		if err != nil {
			t.Fatal(err)
		}
		r := f.submit("a", "1")
		done := make(chan error, 1)
		go func() { done <- h.Run(context.Background()) }()
		time.Sleep(time.Minute)
		f.setDrain()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if r.state != "succeeded" {
			t.Errorf("the run is %s", r.state)
		}
	})
}

func TestDrainWaitsForAnEndThatIsAboutToBeQueued(t *testing.T) {
	tests := map[string]struct{ before, after func(h *Host) }{
		"of a handler that has just returned": {
			before: func(h *Host) {
				h.attempts["r1.1"], h.unsent = &Attempt{Lease: api.Lease{Attempt: "r1.1"}, ended: true}, 1
			},
			after: func(h *Host) { h.settled(h.attempts["r1.1"]) },
		},
		"of an attempt that a batch brings": {
			before: func(h *Host) { h.asking, h.reserved = 1, 1 },
			after:  func(h *Host) { h.leased(1, nil, false, fromBatch) },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, err := NewHost(newFake().client(t), HostOptions{Agents: []string{"a"}, Handle: echo, Log: quiet})
				if err != nil {
					t.Fatal(err)
				}
				tt.before(h)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- h.Run(ctx) }()
				cancel()
				time.Sleep(pollFarewell + time.Second)
				select {
				case err := <-done:
					t.Fatalf("Run returned %v while an end was on its way", err)
				default:
				}
				tt.after(h)
				if err := <-done; err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		})
	}
}

func TestDrainSavesSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		stop := f.serveWith(t, HostOptions{Handle: echo, Snapshot: func(context.Context) (map[string]json.RawMessage, error) {
			return map[string]json.RawMessage{"s1": json.RawMessage(`{"n":1}`)}, nil
		}})
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
		beats := f.workers["w1"].beats
		last := beats[len(beats)-1]
		if got := string(last.Sessions["s1"]); got != `{"n":1}` || !last.Draining {
			t.Errorf("last heartbeat: draining %t, session %q", last.Draining, got)
		}
	})
}

func TestHostThatIsRefusedFromTheStartSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusing := newFake()
		c := refusing.client(t)
		h, err := NewHost(c, HostOptions{Worker: "w1", Agents: []string{"nobody"}, Handle: echo, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		h.client = refusedClient(t)
		err = h.Run(context.Background())
		if !api.HasCode(err, api.CodeForbidden) || !strings.Contains(err.Error(), "nobody") {
			t.Errorf("Run: %v; want the refusal, and for whom", err)
		}
	})
}

func TestHeartbeatNamesWhatIsHeldAndFollowsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.beatEvery = time.Second
		stop := f.serveWith(t, HostOptions{Slots: 2, Handle: func(context.Context, *Attempt) Result {
			time.Sleep(10 * time.Second)
			return Result{}
		}})
		a, b := f.submit("a", "1"), f.submit("a", "2")
		time.Sleep(5 * time.Second)
		f.mu.Lock()
		beats := f.workers["w1"].beats
		f.mu.Unlock()
		if len(beats) < 4 {
			t.Fatalf("%d heartbeats in five seconds; the lease asks for one each second", len(beats))
		}
		got := beats[len(beats)-1].Attempts
		if diff := cmp.Diff([]string{a.id + ".1", b.id + ".1"}, got); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		<-b.wait
		_ = stop()
	})
}

func TestPanicOfAHandlerFailsItsAttemptAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		tries := 0
		stop := f.serveWith(t, HostOptions{Handle: func(_ context.Context, a *Attempt) Result {
			if tries++; tries == 1 {
				panic("oops")
			}
			return Result{}
		}})
		r := f.submit("a", "1")
		<-r.wait
		if r.state != "succeeded" || r.failure.Code != CodePanic || r.failure.Class != ClassUser {
			t.Errorf("%s after %s", r.state, r.why())
		}
		found := slices.ContainsFunc(r.logs, func(l api.LogLine) bool { return strings.Contains(l.Text, "host_test.go") })
		if !found {
			t.Error("the run's log does not say where it panicked")
		}
		_ = stop()
	})
}

func TestSoftReportsAreMergedAndNeverOvertakenByTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		stop := f.serveWith(t, HostOptions{Handle: func(_ context.Context, a *Attempt) Result {
			for i := range 1000 {
				a.Usage(api.Usage{InputTokens: 1, Model: "m"})
				a.Progress(float64(i)/1000, "")
				a.Log("stdout", fmt.Sprintf("line %d\n", i))
			}
			time.Sleep(time.Second)
			a.Usage(api.Usage{InputTokens: 1, Model: "m"})
			a.Log("stdout", "last")
			return Result{}
		}})
		r := f.submit("a", "1")
		<-r.wait
		if r.usage.InputTokens != 1001 || r.progress != 0.999 || len(r.logs) != 1001 || r.logs[1000].Text != "last" {
			t.Errorf("usage %d, progress %v, %d lines", r.usage.InputTokens, r.progress, len(r.logs))
		}
		if r.reports[len(r.reports)-1] != api.ReportComplete || len(r.reports) > 8 {
			t.Errorf("reports %v; want few, and the end last", r.reports)
		}
		_ = stop()
	})
}

func TestLogsOfALongOutageAreBoundedAndTheLossIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		stop := f.serveWith(t, HostOptions{Handle: func(_ context.Context, a *Attempt) Result {
			time.Sleep(time.Second)
			f.setDown(true)
			for i := range 3 * maxLogLines {
				a.Log("stdout", fmt.Sprintf("line %d", i))
				if i%1000 == 0 {
					time.Sleep(time.Second)
				}
			}
			f.setDown(false)
			time.Sleep(time.Minute)
			return Result{}
		}})
		r := f.submit("a", "1")
		<-r.wait
		told := 0
		for _, l := range r.logs {
			if strings.Contains(l.Text, "were dropped") {
				told++
			}
		}
		if len(r.logs) > 2*maxLogLines || told == 0 {
			t.Errorf("%d lines arrived, and %d told of a loss", len(r.logs), told)
		}
		_ = stop()
	})
}

func TestNoGoroutineIsLeftBehind(t *testing.T) {
	// synctest.Test fails when goroutines of its bubble are left.
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		stop := f.serveWith(t, HostOptions{Slots: 4, Handle: echo})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { <-f.submit("a", "1").wait })
		}
		wg.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
