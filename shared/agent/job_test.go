package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// container is a container of a job, on synctest's clock.
type container struct {
	vars   map[string]string
	args   []string
	told   map[string]string // set by the process in its environment
	stderr outside.Log
}

func newContainer(vars map[string]string) *container {
	c := &container{vars: map[string]string{EnvURL: "http://fake", envJob: "sum", envExecution: "sum-x7", EnvTaskIndex: "0"}, told: map[string]string{}}
	for name, value := range vars {
		c.vars[name] = value
	}
	return c
}

func (c *container) run(ctx context.Context, t *testing.T, f *fake, h Handler[any, any]) int {
	t.Helper()
	p := &process{
		getenv: env(c.vars), args: c.args, connect: f.connect(t), stdin: strings.NewReader(""), stdout: io.Discard, stderr: &c.stderr, name: "sum",
		setenv: func(name, value string) error { c.told[name] = value; return nil },
	}
	return processOf(p, h)(ctx)
}

func TestAContainerClaimsItsAttemptAndEndsAsItsRunDoes(t *testing.T) {
	two := 2
	tests := map[string]struct {
		handler   Handler[any, any]
		index     *int
		want      int
		wantState string
		wantTold  map[string]string
	}{
		"a success": {
			handler:   func(context.Context, *Run, any) (any, error) { return 7, nil },
			wantState: "succeeded",
		},
		"a failure for good": {
			handler:   func(context.Context, *Run, any) (any, error) { return nil, Fail("BAD", errBoom) },
			wantState: "failed", want: 1,
		},
		"a failure that the control plane retries": {
			handler:   func(context.Context, *Run, any) (any, error) { return nil, errBoom },
			wantState: "queued", want: 1,
		},
		"a panic": {
			handler:   func(context.Context, *Run, any) (any, error) { panic("no") },
			wantState: "queued", want: 1,
		},
		"a wait": {
			handler:   func(ctx context.Context, r *Run, _ any) (any, error) { return Wait[any](ctx, r, "paid", 0) },
			wantState: "waiting",
		},
		"the end of the lease, taken over by somebody else": {
			handler: func(ctx context.Context, _ *Run, _ any) (any, error) {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), ErrFenced) {
					return nil, fmt.Errorf("cause %w", context.Cause(ctx))
				}
				return nil, ctx.Err()
			},
			wantState: "queued",
		},
		"a place in a job": {
			handler: func(_ context.Context, r *Run, _ any) (any, error) { return []int{*r.Index, *r.Completions}, nil },
			index:   &two, wantState: "succeeded",
			wantTold: map[string]string{EnvIndex: "2", EnvTaskIndex: "2", EnvTaskCount: "2"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				r := f.submit("adder", `{"x":1}`)
				r.index = tt.index
				attempt, ticket := f.offer(r)
				c := newContainer(map[string]string{EnvAttempt: attempt, EnvTicket: ticket})
				if strings.HasPrefix(name, "the end") {
					time.AfterFunc(time.Minute, func() { f.loseWorker("sum-x7-0") })
				}
				code := c.run(t.Context(), t, f, tt.handler)
				state := look(f, func() string { return r.state })
				if code != tt.want || state != tt.wantState {
					t.Errorf("exit %d, run %s; want %d and %s\n%s", code, state, tt.want, tt.wantState, c.stderr.String())
				}
				if r.worker != "sum-x7-0" {
					t.Errorf("claimed as %q; want the execution and the task's index", r.worker)
				}
				want := tt.wantTold
				if want == nil {
					want = map[string]string{}
				}
				if diff := cmp.Diff(want, c.told); diff != "" {
					t.Errorf("environment of the handler (-want +got):\n%s", diff)
				}
				if strings.Contains(c.stderr.String(), ticket) {
					t.Error("the ticket is in the log")
				}
			})
		})
	}
}

// The claim says that it started, and each report is a look at the store.
func TestAClaimedAttemptThatTakesLongerReportsItsEndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r := f.submit("adder", `1`)
		attempt, ticket := f.offer(r)
		newContainer(map[string]string{EnvAttempt: attempt, EnvTicket: ticket}).run(t.Context(), t, f,
			func(ctx context.Context, _ *Run, _ any) (any, error) { return 1, nap(ctx, time.Second) })
		if diff := cmp.Diff([]string{"complete"}, r.reports); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}

func TestAContainerIsAWorkerWhileItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r := f.submit("adder", `1`)
		attempt, ticket := f.offer(r)
		code := newContainer(map[string]string{EnvAttempt: attempt, EnvTicket: ticket}).run(t.Context(), t, f,
			func(ctx context.Context, r *Run, _ any) (any, error) {
				if _, err := Step(ctx, r, "a", func(context.Context) (int, error) { return 1, nil }); err != nil {
					return nil, err
				}
				_ = nap(ctx, 12*time.Second)
				return 1, nil
			})
		w := f.workers["sum-x7-0"]
		if code != 0 || w == nil || len(w.beats) < 3 || len(r.steps) != 1 {
			t.Fatalf("exit %d, worker %+v, %d steps; want three heartbeats and a step", code, w, len(r.steps))
		}
		if diff := cmp.Diff(api.WorkerBeat{Agents: []string{"adder"}, Attempts: []string{attempt}}, w.beats[1]); diff != "" {
			t.Errorf("heartbeat (-want +got):\n%s", diff)
		}
	})
}

func TestOneOfManyContainersWithATicketWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r := f.submit("adder", `1`)
		attempt, ticket := f.offer(r)
		effects := 0
		codes := make(chan int, 3)
		for i := range 3 {
			// An ambiguous error of RunJob can start several executions with the same overrides.
			c := newContainer(map[string]string{EnvAttempt: attempt, EnvTicket: ticket, envExecution: fmt.Sprint("sum-", i)})
			go func() {
				codes <- c.run(t.Context(), t, f, func(ctx context.Context, _ *Run, _ any) (any, error) {
					effects++
					_ = nap(ctx, time.Minute)
					return 1, nil
				})
			}()
		}
		for range 3 {
			if code := <-codes; code != 0 {
				t.Errorf("exit %d; want 0, also of those that had nothing to do", code)
			}
		}
		if effects != 1 || r.state != "succeeded" || r.n != 1 {
			t.Errorf("%d effects, run %s after %d attempts; want one, succeeded after 1", effects, r.state, r.n)
		}
	})
}

func TestATaskOfAPackTakesItsOwnElement(t *testing.T) {
	tests := map[string]struct {
		index string
		edit  func(attempts, tickets []string) (string, string)
		want  int
		runs  int // that the task executes; -1 for none
	}{
		"the first":            {index: "0", runs: 0},
		"the last":             {index: "1", runs: 1},
		"beyond the last":      {index: "2", runs: -1},
		"no index means first": {index: "", runs: 0},
		"an empty element": {index: "1", runs: -1, edit: func(a, k []string) (string, string) {
			return a[0] + ",", k[0] + ","
		}},
		"lists that do not match": {index: "0", runs: -1, want: 2, edit: func(a, k []string) (string, string) {
			return strings.Join(a, ","), k[0]
		}},
		"an index that is none": {index: "x", runs: -1, want: 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				runs := []*fakeRun{f.submit("adder", "0"), f.submit("adder", "1")}
				var attempts, tickets []string
				for _, r := range runs {
					a, k := f.offer(r)
					attempts, tickets = append(attempts, a), append(tickets, k)
				}
				if tt.edit == nil {
					tt.edit = func(a, k []string) (string, string) { return strings.Join(a, ","), strings.Join(k, ", ") }
				}
				a, k := tt.edit(attempts, tickets)
				c := newContainer(map[string]string{EnvAttempt: a, EnvTicket: k, EnvTaskIndex: tt.index})
				code := c.run(t.Context(), t, f, func(_ context.Context, _ *Run, in any) (any, error) { return in, nil })
				if code != tt.want {
					t.Errorf("exit %d; want %d\n%s", code, tt.want, c.stderr.String())
				}
				for i, r := range runs {
					if done := r.state == "succeeded"; done != (i == tt.runs) {
						t.Errorf("run %d is %s", i, r.state)
					}
				}
			})
		})
	}
}

func TestAContainerOutlastsAnOutage(t *testing.T) {
	tests := map[string]struct {
		away      time.Duration
		want      int
		wantState string
	}{
		"one of a deployment":      {away: 40 * time.Second, wantState: "succeeded"},
		"not one that has no end":  {away: time.Hour, want: exitUnreachable, wantState: "assigned"},
		"one that refuses by 503s": {away: -20 * time.Second, wantState: "succeeded"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				r := f.submit("adder", "0")
				attempt, ticket := f.offer(r)
				if tt.away > 0 {
					f.setDown(true)
					time.AfterFunc(tt.away, func() { f.setDown(false) })
				} else {
					f.setFailing(":claim", problemOf(503, api.CodeUnavailable, "no leader"))
					time.AfterFunc(-tt.away, func() { f.setFailing(":claim", nil) })
				}
				c := newContainer(map[string]string{EnvAttempt: attempt, EnvTicket: ticket})
				code := c.run(t.Context(), t, f, func(context.Context, *Run, any) (any, error) { return 1, nil })
				if code != tt.want || r.state != tt.wantState {
					t.Errorf("exit %d, run %s; want %d and %s\n%s", code, r.state, tt.want, tt.wantState, c.stderr.String())
				}
			})
		})
	}
}

func TestAClaimWhoseAnswerIsLostIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r := f.submit("adder", "0")
		attempt, ticket := f.offer(r)
		f.loseAfter[":claim"] = 1
		code := newContainer(map[string]string{EnvAttempt: attempt, EnvTicket: ticket}).run(t.Context(), t, f,
			func(context.Context, *Run, any) (any, error) { return 1, nil })
		if code != 0 || r.state != "succeeded" || r.n != 1 {
			t.Errorf("exit %d, run %s after %d attempts", code, r.state, r.n)
		}
	})
}

func TestAContainerThatIsToldToEndHandsItsRunBackInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r := f.submit("adder", "0")
		attempt, ticket := f.offer(r)
		ctx, term := context.WithCancel(t.Context())
		var told time.Time
		time.AfterFunc(time.Minute, func() { told = time.Now(); term() })
		code := newContainer(map[string]string{EnvAttempt: attempt, EnvTicket: ticket}).run(ctx, t, f,
			func(ctx context.Context, _ *Run, _ any) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
		took := time.Since(told)
		if code != 0 || r.state != "queued" || len(r.released) != 1 || took < DefaultGrace || took > 10*time.Second {
			t.Errorf("exit %d, run %s, released %v, %s after SIGTERM; want it back within 7s to 10s", code, r.state, r.released, took)
		}
	})
}

func TestAContainerThatIsToldToEndWhileItWaitsForTheServerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.setDown(true)
		ctx, term := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, term)
		began := time.Now()
		code := newContainer(map[string]string{EnvAttempt: "r1.1", EnvTicket: "t"}).run(ctx, t, f, nil)
		if took := time.Since(began); code != 0 || took > 7*time.Second {
			t.Errorf("exit %d after %s; want 0 within 6s of being told", code, took)
		}
	})
}

func TestAContainerThatWasStartedByHandBeginsItsRun(t *testing.T) {
	ok := func(_ context.Context, r *Run, in any) (any, error) { return []any{in, *r.Index}, nil }
	bad := func(context.Context, *Run, any) (any, error) { return nil, Fail("BAD", errBoom) }
	tests := map[string]struct {
		vars       map[string]string
		args       []string
		before     func(f *fake) // what became of the key
		handler    Handler[any, any]
		want       int
		wantOutput string
		wantErr    string
	}{
		"with its input in the environment":       {vars: map[string]string{EnvInput: `{"a":1}`}, handler: ok, wantOutput: `[{"a":1},3]`},
		"with its input as argument":              {args: []string{`"x"`}, handler: ok, wantOutput: `["x",3]`},
		"with an argument that gcloud took apart": {args: []string{`{"a":1`, `"b":[2`, `3]}`}, handler: ok, wantOutput: `[{"a":1,"b":[2,3]},3]`},
		"without an input":                        {handler: ok, wantOutput: `[null,3]`},
		"and fails":                               {handler: bad, want: 1},
		"whose run has succeeded before": {
			before: func(f *fake) { f.began("sum-x7/3", "null", "succeeded") }, handler: bad,
		},
		"whose run has failed before": {
			before: func(f *fake) { f.began("sum-x7/3", "null", "failed") }, handler: ok, want: 1,
		},
		"whose run somebody else executes": {
			before: func(f *fake) { f.began("sum-x7/3", "null", "running") }, handler: bad,
		},
		"under a key that stands for another input": {
			before: func(f *fake) { f.began("sum-x7/3", "7", "running") }, handler: bad, want: 1, wantErr: "stands for another input",
		},
		"with an argument that is no JSON": {args: []string{`{"secret`}, handler: bad, want: 2, wantErr: "argument: the input is not JSON at byte 8 of 8"},
		"with too many arguments":          {args: []string{`1`, `2`}, handler: bad, want: 2, wantErr: "2 arguments; want one"},
		"with a variable that is no JSON":  {vars: map[string]string{EnvInput: "secret"}, handler: bad, want: 2, wantErr: "ERRAND_INPUT: the input is not JSON at byte 1"},
		"for one of two agents":            {vars: map[string]string{EnvAgent: "a,b"}, handler: bad, want: 2, wantErr: "want the name of the one agent"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				if tt.before != nil {
					tt.before(f)
				}
				c := newContainer(tt.vars)
				c.vars[EnvTaskIndex], c.vars[EnvTaskCount], c.args = "3", "4", tt.args
				code := c.run(t.Context(), t, f, tt.handler)
				stderr := c.stderr.String()
				if code != tt.want || !strings.Contains(stderr, tt.wantErr) || strings.Contains(stderr, "secret") {
					t.Errorf("exit %d, said %s; want %d and …%s…, without what the input holds", code, stderr, tt.want, tt.wantErr)
				}
				if tt.wantOutput == "" {
					return
				}
				r := f.runs["r1"]
				if r == nil || r.agent != "sum" || r.key != "sum-x7/3" || r.worker != "sum-x7-3" || string(r.output) != tt.wantOutput {
					t.Errorf("run %+v; want one of agent sum, key sum-x7/3, worker sum-x7-3 and output %s", r, tt.wantOutput)
				}
				if diff := cmp.Diff(map[string]string{EnvIndex: "3", EnvTaskIndex: "3", EnvTaskCount: "4"}, c.told); diff != "" {
					t.Errorf("environment of the handler (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestATaskThatThePlatformStartsAgainFencesItsPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		first := make(chan int, 1)
		hung := make(chan error, 1)
		go func() {
			first <- newContainer(nil).run(t.Context(), t, f, func(ctx context.Context, _ *Run, _ any) (any, error) {
				<-ctx.Done()
				hung <- context.Cause(ctx)
				return "late", nil
			})
		}()
		synctest.Wait()
		second := newContainer(map[string]string{envTaskRestarts: "1"})
		code := second.run(t.Context(), t, f, func(_ context.Context, r *Run, _ any) (any, error) { return r.Attempt, nil })
		if code != 0 || string(f.runs["r1"].output) != "2" || len(f.runs) != 1 {
			t.Errorf("exit %d, %d runs, output %s; want the second attempt of one run", code, len(f.runs), f.runs["r1"].output)
		}
		if cause := <-hung; !errors.Is(cause, ErrFenced) {
			t.Errorf("the first attempt ended with %v; want %v", cause, ErrFenced)
		}
		if code := <-first; code != 0 || string(f.runs["r1"].output) != "2" {
			t.Errorf("the first container ended with %d, output %s; want 0, and nothing changed", code, f.runs["r1"].output)
		}
	})
}

// began makes a run that another worker began.
func (f *fake) began(key, input, state string) {
	r := f.submit("sum", input)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = nil
	r.key, r.worker, r.state, r.n, r.output = key, "other", state, 1, []byte(`"before"`)
}

func TestTheEnvironmentOfThePlatform(t *testing.T) {
	tests := map[string]struct {
		vars      map[string]string
		want      string // protocol
		slots     int
		agent     string
		identity  bool
		wantError string
	}{
		"a service listens, as many requests at a time as the platform sends by default": {
			vars: map[string]string{envService: "s", EnvPort: "8080"}, want: ProtocolHTTP, slots: 80, agent: "s", identity: true,
		},
		"a service with another agent and fewer slots": {
			vars: map[string]string{envService: "s", EnvPort: "8080", EnvAgent: "a", EnvSlots: "3"}, want: ProtocolHTTP, slots: 3, agent: "a", identity: true,
		},
		"a token that is given comes before identity": {
			vars: map[string]string{envService: "s", EnvPort: "8080", EnvWorkerToken: "t"}, want: ProtocolHTTP, slots: 80, agent: "s",
		},
		"a job": {vars: map[string]string{envJob: "j", EnvURL: "http://x"}, want: ProtocolJob, slots: 1, agent: "j", identity: true},
		"a ticket makes a job anywhere": {
			vars: map[string]string{EnvAttempt: "r.1", EnvTicket: "t", EnvURL: "http://x"}, want: ProtocolJob, slots: 1,
		},
		"a job without a server": {vars: map[string]string{envJob: "j"}, wantError: EnvURL},
		"a program that a job's container starts for one run": {
			vars: map[string]string{envJob: "j", EnvProtocol: ProtocolStdio, EnvAttempt: "r.1"}, want: ProtocolStdio, slots: 1, agent: "j", identity: true,
		},
		"a pool's container beside its worker listens": {
			vars: map[string]string{envPool: "p", EnvPort: "9001", EnvURL: "http://x", EnvAgent: "a"}, want: ProtocolHTTP, slots: 1, agent: "a", identity: true,
		},
		"a pool's container alone polls": {
			vars: map[string]string{envPool: "p", EnvURL: "http://x", EnvAgent: "a"}, want: ProtocolWorker, slots: 1, agent: "a", identity: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e, err := readEnvironment(env(tt.vars), nil)
			if tt.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantError) {
					t.Errorf("error %v; want …%s…", err, tt.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if e.protocol != tt.want || e.slots != tt.slots || strings.Join(e.agents, ",") != tt.agent || (e.tokens != nil) != tt.identity {
				t.Errorf("%s, %d slots, agents %v, identity %v; want %s, %d, %s, %v",
					e.protocol, e.slots, e.agents, e.tokens != nil, tt.want, tt.slots, tt.agent, tt.identity)
			}
		})
	}
}

func TestSecretsOfTheEnvironmentAreNotShown(t *testing.T) {
	var stderr bytes.Buffer
	p := &process{stderr: &stderr, name: "x", getenv: env(map[string]string{
		envJob: "j", EnvURL: "http://x", EnvAttempt: "r.1,r.2", EnvTicket: "hush", EnvWorkerToken: "hush", EnvSlots: "x",
	})}
	if code := p.run(t.Context(), nil); code != 2 || strings.Contains(stderr.String(), "hush") {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}
