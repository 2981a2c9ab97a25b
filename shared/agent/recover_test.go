package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

func TestLeaseOfAnAttemptThatIsKnownIsIgnored(t *testing.T) {
	tests := map[string]struct {
		offer func(f *fake, r *fakeRun) // a second after the start; the handler takes two
	}{
		"while its handler runs": {func(f *fake, r *fakeRun) { f.offerAgain(r) }},
		"twice in one answer": {func(f *fake, r *fakeRun) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.again = []*fakeRun{r, r}
			f.touch()
		}},
		"while its end waits to be delivered": {func(f *fake, r *fakeRun) {
			f.setFailing(":batch", problemOf(503, api.CodeUnavailable, "the store is away"))
			time.Sleep(3 * time.Second)
			f.offerAgain(r)
			time.Sleep(time.Second)
			f.setFailing(":batch", nil)
		}},
		"by an answer that comes when its end is delivered": {func(f *fake, r *fakeRun) {
			<-r.wait
			synctest.Wait()
			f.offerAgain(r)
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				executed := map[string]int{}
				stop := f.serveWith(t, HostOptions{Slots: 2, Handle: func(ctx context.Context, a *Attempt) Result {
					f.mu.Lock()
					executed[a.Attempt]++
					f.mu.Unlock()
					if nap(ctx, 2*time.Second) != nil {
						t.Errorf("attempt %s was canceled: %v", a.Attempt, context.Cause(ctx))
					}
					return Result{}
				}})
				r := f.submit("a", "1")
				time.Sleep(time.Second)
				tt.offer(f, r)
				over(t, r)
				time.Sleep(5 * time.Second)
				if diff := cmp.Diff(map[string]int{r.id + ".1": 1}, executed); diff != "" {
					t.Errorf("executions (-want +got):\n%s", diff)
				}
				if r.state != "succeeded" || len(r.released) > 0 {
					t.Errorf("the run is %s, handed back %q", r.state, r.released)
				}
				// Both slots are free.
				began := time.Now()
				one, two := f.submit("a", "1"), f.submit("a", "1")
				over(t, one)
				over(t, two)
				if took := time.Since(began); took >= 4*time.Second {
					t.Errorf("two runs of two seconds took %s on two slots", took)
				}
				_ = stop()
			})
		})
	}
}

// over waits until a run has ended, and not for ever.
func over(t *testing.T, r *fakeRun) {
	t.Helper()
	select {
	case <-r.wait:
	case <-time.After(time.Hour):
		t.Errorf("run %s has not ended", r.id)
	}
}

func TestRecentForgetsTheOldest(t *testing.T) {
	var r recent
	for i := range 3*maxRecent + 1 {
		r.add(fmt.Sprint(i))
	}
	if r.has(fmt.Sprint(2*maxRecent)) || !r.has(fmt.Sprint(2*maxRecent+1)) || !r.has(fmt.Sprint(3*maxRecent)) || len(r.known) != maxRecent {
		t.Errorf("%d are known; want the newest %d", len(r.known), maxRecent)
	}
}

// TestServerThatIsBackHearsAtOnceWhatIsHeld has outages that begin a second after a regular heartbeat, or a second
// before one, and end well before the next: the heartbeat that follows is one of the return.
func TestServerThatIsBackHearsAtOnceWhatIsHeld(t *testing.T) {
	refused := func(f *fake, on bool) { f.setDown(on) }
	away := func(f *fake, on bool) {
		var p *api.Problem
		if on {
			p = problemOf(503, api.CodeUnavailable, "not leading yet")
			f.setDown(true) // the open connections break
			synctest.Wait()
			f.setDown(false)
		}
		for _, call := range []string{":batch", "/leases", ":heartbeat"} {
			f.setFailing(call, p)
		}
	}
	tests := map[string]struct {
		outage       func(f *fake, on bool)
		runs         int           // that are held, of two slots
		after, lasts time.Duration // of the outage
	}{
		"an idle worker of one that was down":                {refused, 0, 6 * time.Second, 2 * time.Second},
		"a worker with room of one that was down":            {refused, 1, 6 * time.Second, 2 * time.Second},
		"a full worker of one that was down":                 {refused, 2, 9 * time.Second, 2500 * time.Millisecond},
		"an idle worker of one that said 503":                {away, 0, 6 * time.Second, 2 * time.Second},
		"a worker with room of one that said 503":            {away, 1, 6 * time.Second, 2 * time.Second},
		"a full worker of one that said 503":                 {away, 2, 9 * time.Second, 2500 * time.Millisecond},
		"a worker with room of one that was down for long":   {refused, 1, 6 * time.Second, 2 * time.Hour},
		"a full worker of one that was down for a long time": {refused, 2, 6 * time.Second, 2 * time.Hour},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.attemptFor = 24 * time.Hour
				stop := f.serveWith(t, HostOptions{Slots: 2, Grace: -1, Handle: func(ctx context.Context, a *Attempt) Result {
					<-ctx.Done()
					return Failed(ctx.Err())
				}})
				held := []string{}
				for range tt.runs {
					held = append(held, f.submit("a", "1").id+".1")
				}
				time.Sleep(tt.after)
				tt.outage(f, true)
				time.Sleep(tt.lasts)
				before := look(f, func() int { return len(f.workers["w1"].beats) })
				tt.outage(f, false)
				time.Sleep(maxBackoff + time.Millisecond)
				beats := look(f, func() []api.WorkerBeat { return slices.Clone(f.workers["w1"].beats[before:]) })
				if len(beats) == 0 || len(beats) > 2 {
					t.Errorf("%d heartbeats within %s of the server's return; want 1, or 2 that crossed", len(beats), maxBackoff)
				}
				for _, b := range beats {
					if diff := cmp.Diff(held, b.Attempts); diff != "" {
						t.Errorf("attempts (-want +got):\n%s", diff)
					}
				}
				_ = stop()
			})
		})
	}
}

func TestAnAttemptThatAPartialAnswerDoesNotNameGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.partial = true
		stop := f.serveWith(t, HostOptions{Handle: func(ctx context.Context, a *Attempt) Result {
			select {
			case <-ctx.Done():
				return Failed(ctx.Err())
			case <-time.After(3 * defaultBeat):
				return Result{Output: json.RawMessage(`1`)}
			}
		}})
		r := f.submit("a", "1")
		<-r.wait
		if diff := cmp.Diff([]string{"start", "complete"}, look(f, func() []string { return slices.Clone(r.reports) })); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
		_ = stop()
	})
}

func TestServerThatDoesNotAnswerHeartbeatsIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.beatLag = time.Minute
		var log outside.Log
		stop := f.serveWith(t, HostOptions{Handle: echo, Log: log.Logger()})
		time.Sleep(defaultBeat + beatPatience + time.Second)
		if got := log.String(); !strings.Contains(got, "server is away") || !strings.Contains(got, "no answer within 4s") {
			t.Errorf("the log does not say it: %q", got)
		}
		time.Sleep(time.Minute)
		_ = stop()
		time.Sleep(2 * time.Minute) // until the fake's last answer is out
	})
}

// A server that refuses requests for runs and takes reports is no outage each time: what it asks for holds.
func TestWaitsThatTheServerAsksForHoldWhileOtherCallsSucceed(t *testing.T) {
	tests := map[string]struct {
		problem   *api.Problem
		most      int // requests for runs in a minute
		wantBeats int
	}{
		"too much to do":      {problemOf(429, api.CodeOverloaded, "too many workers"), 13, 11},
		"too many long polls": {problemOf(503, api.CodeUnavailable, "too many requests wait"), 62, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				tt.problem.RetryAfter = 5
				stop := f.serveWith(t, HostOptions{Slots: 2, Handle: handling(f.client(t), func(ctx context.Context, r *Run, _ int) (int, error) {
					f.setFailing("/leases", tt.problem)
					for i := range 595 {
						if _, err := Step(ctx, r, fmt.Sprint(i), func(ctx context.Context) (int, error) { return i, nap(ctx, 100*time.Millisecond) }); err != nil {
							return 0, err
						}
					}
					return 0, nil
				})})
				r := f.submit("a", "1")
				<-r.wait
				polls, beats := look(f, func() int { return f.calls["/v1/leases"] }), look(f, func() int { return f.calls["/v1/workers/w1:heartbeat"] })
				if polls > tt.most {
					t.Errorf("%d requests for runs in a minute, by a worker that was asked to wait 5s each time; want %d at most", polls, tt.most)
				}
				if tt.wantBeats > 0 && beats != tt.wantBeats {
					t.Errorf("%d heartbeats in a minute; want %d", beats, tt.wantBeats)
				}
				f.setFailing("/leases", nil)
				_ = stop()
			})
		})
	}
}

func TestAnswerToAHeartbeatConcernsWhatTheHeartbeatNamed(t *testing.T) {
	tests := map[string]struct {
		submitted time.Duration // the heartbeat is sent after 5s and answered after 7s
		lost      bool          // the server gives its run away before the heartbeat
		want      error
	}{
		"an attempt that came between heartbeat and answer goes on":  {submitted: 6 * time.Second},
		"an attempt that the heartbeat named and the answer goes on": {submitted: time.Second},
		"an attempt that the heartbeat named and the answer does not is over": {
			submitted: time.Second, lost: true, want: ErrFenced,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.beatLag = 2 * time.Second
				var cause error
				stop := f.serveWith(t, HostOptions{Handle: func(ctx context.Context, a *Attempt) Result {
					if a.N == 1 {
						_ = nap(ctx, 3*time.Second+7*time.Second-tt.submitted) // beyond the answer, and before the next
						cause = context.Cause(ctx)
					}
					return Result{}
				}})
				time.Sleep(tt.submitted)
				r := f.submit("a", "1")
				if tt.lost {
					time.Sleep(time.Second)
					f.loseWorker("w1")
				}
				<-r.wait
				if !errors.Is(cause, tt.want) {
					t.Errorf("the attempt's context ended with %v; want %v", cause, tt.want)
				}
				_ = stop()
				time.Sleep(time.Minute)
			})
		})
	}
}

func TestSnapshotThatDoesNotHeedItsContextHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		release := make(chan struct{})
		stop := f.serveWith(t, HostOptions{Handle: echo, Snapshot: func(context.Context) (map[string]json.RawMessage, error) {
			<-release
			return nil, nil
		}})
		time.Sleep(time.Second)
		began := time.Now()
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if took := time.Since(began); took > snapshotTime+time.Second {
			t.Errorf("the worker took %s to end", took)
		}
		close(release)
	})
}
