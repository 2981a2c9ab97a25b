package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
)

// perform runs one run with a handler until it is over or waits without a wake-up in sight, on synctest's clock.
func perform[In, Out any](t *testing.T, f *fake, input string, h Handler[In, Out]) *fakeRun {
	t.Helper()
	stop := f.serveWith(t, HostOptions{Slots: 4, Handle: handling(f.client(t), h)})
	r := f.submit("a", input)
	select {
	case <-r.wait:
	case <-time.After(24 * time.Hour):
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	return r
}

func TestHandlersOutcome(t *testing.T) {
	type want struct {
		state, class, code, message string
		final                       bool
		attempts                    int
		after                       time.Duration
		output                      string
	}
	tests := map[string]struct {
		input   string
		handler Handler[map[string]int, any]
		want    want
	}{
		"an output completes the run": {
			handler: func(_ context.Context, _ *Run, in map[string]int) (any, error) {
				return map[string]any{"sum": in["a"] + in["b"], "html": "<&>"}, nil
			},
			input: `{"a":1,"b":2}`,
			want:  want{state: "succeeded", attempts: 1, output: `{"html":"<&>","sum":3}`},
		},
		"a plain error is of class user and left to the policy": {
			handler: failFirst(errBoom),
			want:    want{state: "succeeded", class: "", message: "boom", attempts: 2, output: "null"},
		},
		"Retry names the wait": {
			handler: failFirst(fmt.Errorf("rates: %w", Retry(time.Minute))),
			want:    want{state: "succeeded", message: "rates: asked to be retried", after: time.Minute, attempts: 2, output: "null"},
		},
		"Throttled is of its own class": {
			handler: failFirst(Throttled(2 * time.Second)),
			want:    want{state: "succeeded", class: ClassThrottled, message: "throttled", after: 2 * time.Second, attempts: 2, output: "null"},
		},
		"Fail ends the run with the agent's code": {
			handler: failFirst(fmt.Errorf("read: %w", Fail("BAD_PDF", errBoom))),
			want:    want{state: "failed", code: "BAD_PDF", message: "read: BAD_PDF: boom", final: true, attempts: 1},
		},
		"input that does not fit the type is final, and the error shows no value": {
			input:   `{"a":"secret-value"}`,
			handler: failFirst(nil),
			want:    want{state: "failed", code: CodeInputInvalid, message: "does not fit map[string]int: the document: want int, got string", final: true, attempts: 1},
		},
		"output that JSON cannot hold is final": {
			handler: func(context.Context, *Run, map[string]int) (any, error) { return func() {}, nil },
			want:    want{state: "failed", code: CodeOutputInvalid, message: "unsupported type", final: true, attempts: 1},
		},
		"a panic is the user's failure": {
			handler: func(_ context.Context, r *Run, _ map[string]int) (any, error) {
				if r.Attempt == 1 {
					panic("oops")
				}
				return nil, nil
			},
			want: want{state: "succeeded", class: ClassUser, code: CodePanic, message: "oops", attempts: 2, output: "null"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tt.input == "" {
					tt.input = `{}`
				}
				r := perform(t, newFake(), tt.input, tt.handler)
				if r.state != tt.want.state || r.n != tt.want.attempts || string(r.output) != tt.want.output {
					t.Errorf("%s after %d attempts with %s (%s)", r.state, r.n, r.output, r.why())
				}
				if tt.want.message == "" {
					return
				}
				x := r.failure
				if x == nil || x.Class != tt.want.class || x.Code != tt.want.code || !strings.Contains(x.Message, tt.want.message) {
					t.Fatalf("failure %s; want %s/%s: …%s", r.why(), tt.want.class, tt.want.code, tt.want.message)
				}
				if strings.Contains(x.Message, "secret-value") {
					t.Errorf("the message shows the input: %s", x.Message)
				}
				if final := x.Retryable != nil && !*x.Retryable; final != tt.want.final {
					t.Errorf("final %t", final)
				}
				if x.RetryAfter == nil && tt.want.after != 0 || x.RetryAfter != nil && x.RetryAfter.Std() != tt.want.after {
					t.Errorf("retryAfter %v; want %s", x.RetryAfter, tt.want.after)
				}
			})
		})
	}
}

func failFirst(err error) Handler[map[string]int, any] {
	return func(_ context.Context, r *Run, _ map[string]int) (any, error) {
		if r.Attempt == 1 {
			return nil, err
		}
		return nil, nil
	}
}

func TestStepRunsOnceOverAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := map[string]int{}
		f := newFake()
		r := perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (string, error) {
			out := ""
			for _, name := range []string{"a", "b", "c"} {
				part, err := Step(ctx, r, name, func(context.Context) (string, error) {
					ran[name]++
					if name == "c" && r.Attempt < 3 {
						return "", errBoom
					}
					// The record must be there before the handler goes on.
					return fmt.Sprintf("%s%d", name, r.Attempt), nil
				})
				if err != nil {
					return "", err
				}
				if n := look(f, func() int { return len(f.runs[r.ID].steps) }); n == 0 {
					t.Error("a step returned before it was recorded")
				}
				out += part
			}
			return out, nil
		})
		if string(r.output) != `"a1b1c3"` {
			t.Errorf("output %s (%s)", r.output, r.why())
		}
		if diff := cmp.Diff(map[string]int{"a": 1, "b": 1, "c": 3}, ran); diff != "" {
			t.Errorf("executions (-want +got):\n%s", diff)
		}
		for i, s := range r.steps {
			if s.Seq != i+1 {
				t.Errorf("step %q has seq %d; want %d", s.Name, s.Seq, i+1)
			}
		}
	})
}

func TestStepRecordsAFinalFailureAndNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		r := perform(t, newFake(), `1`, func(ctx context.Context, r *Run, _ int) (string, error) {
			_, err := Step(ctx, r, "a", func(context.Context) (int, error) {
				ran++
				return 0, Fail("EMPTY", errBoom)
			})
			var typed *Error
			if !errors.As(err, &typed) || typed.Code != "EMPTY" || !typed.Final {
				t.Errorf("attempt %d: %v", r.Attempt, err)
			}
			if r.Attempt == 1 {
				return "", errBoom // caught the failure, went another way, and stumbled there
			}
			return "other way", nil
		})
		if ran != 1 || string(r.output) != `"other way"` {
			t.Errorf("ran %d times, output %s (%s)", ran, r.output, r.why())
		}
	})
}

func TestStepsMayRunConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		ran := map[string]int{}
		f := newFake()
		r := perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (int, error) {
			var wg sync.WaitGroup
			errs := make([]error, 20)
			for i := range errs {
				wg.Go(func() {
					name := fmt.Sprint(i)
					_, errs[i] = Step(ctx, r, name, func(context.Context) (int, error) {
						mu.Lock()
						defer mu.Unlock()
						ran[name]++
						if i == 7 && r.Attempt == 1 {
							return 0, errBoom
						}
						return i, nil
					})
				})
			}
			wg.Wait()
			return 0, errors.Join(errs...)
		})
		if r.state != "succeeded" || r.n != 2 {
			t.Fatalf("%s after %d attempts (%s)", r.state, r.n, r.why())
		}
		for name, n := range ran {
			if want := map[bool]int{true: 2, false: 1}[name == "7"]; n != want {
				t.Errorf("step %s ran %d times; want %d", name, n, want)
			}
		}
	})
}

func TestReportsThatPileUpBehindASlowBatchTravelTogether(t *testing.T) {
	const steps = 20
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.slow = time.Second
		perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (int, error) {
			if _, err := Step(ctx, r, "first", func(context.Context) (int, error) { return 0, nil }); err != nil {
				return 0, err
			}
			var wg sync.WaitGroup
			for i := range steps {
				wg.Go(func() {
					_, err := Step(ctx, r, fmt.Sprint(i), func(ctx context.Context) (int, error) { return i, nap(ctx, time.Duration(i+1)*f.slow/(2*steps)) })
					if err != nil {
						t.Error(err)
					}
				})
			}
			_, err := Step(ctx, r, "second", func(context.Context) (int, error) { return 0, nil })
			wg.Wait()
			return 0, err
		})
		// The start and the first step, the second step, what piled up meanwhile, and the end.
		if diff := cmp.Diff([]int{2, 1, steps, 1}, f.sizes); diff != "" {
			t.Errorf("reports in each batch (-want +got):\n%s", diff)
		}
	})
}

func TestRulesOfReplay(t *testing.T) {
	step := func(ctx context.Context, r *Run, name string) error {
		_, err := Step(ctx, r, name, func(context.Context) (int, error) { return 1, nil })
		return err
	}
	tests := map[string]struct {
		handler  Handler[int, int]
		wantCode string
		wantText string
	}{
		"a step that an earlier attempt recorded is not asked for": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				if r.Attempt == 1 {
					return 0, errors.Join(step(ctx, r, "a"), step(ctx, r, "b"), errBoom)
				}
				return 0, step(ctx, r, "b")
			},
			wantCode: CodeNonDeterministic, wantText: `step "a"`,
		},
		"a name is used twice": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				_ = step(ctx, r, "a")
				_ = step(ctx, r, "a")
				return 0, nil // swallowing the error does not help
			},
			wantCode: CodeDuplicateStep, wantText: `step "a"`,
		},
		"a record does not fit the type any more": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				if r.Attempt == 1 {
					return 0, errors.Join(step(ctx, r, "a"), errBoom)
				}
				_, err := Step(ctx, r, "a", func(context.Context) (string, error) { return "", nil })
				return 0, err
			},
			wantCode: CodeNonDeterministic, wantText: "want string, got number",
		},
		"a result is too large": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				_, err := Step(ctx, r, "a", func(context.Context) (string, error) { return strings.Repeat("x", api.MaxStepResult), nil })
				return 0, err
			},
			wantCode: CodeResultTooLarge, wantText: "1048578 bytes",
		},
		"a name is empty": {
			handler:  func(ctx context.Context, r *Run, _ int) (int, error) { return 0, step(ctx, r, "") },
			wantCode: CodeNameInvalid, wantText: "empty",
		},
		"a name is too long": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				return 0, step(ctx, r, strings.Repeat("n", 201))
			},
			wantCode: CodeNameInvalid, wantText: "201 bytes",
		},
		"a park is swallowed": {
			handler: func(ctx context.Context, r *Run, _ int) (int, error) {
				_ = Sleep(ctx, r, time.Minute)
				if err := step(ctx, r, "after"); !errors.Is(err, ErrParked) {
					return 0, fmt.Errorf("a step ran after the park: %w", err)
				}
				return 0, nil
			},
			wantCode: CodeNonDeterministic, wantText: "sleep#1",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := perform(t, newFake(), `1`, tt.handler)
				if r.state != "failed" || r.failure.Code != tt.wantCode || !strings.Contains(r.failure.Message, tt.wantText) {
					t.Errorf("%s: %s; want %s: …%s…", r.state, r.why(), tt.wantCode, tt.wantText)
				}
			})
		})
	}
}

func TestWaitAndSleep(t *testing.T) {
	type msg struct{ Amount int }
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		began := time.Now()
		h := func(ctx context.Context, r *Run, _ int) (any, error) {
			if err := Sleep(ctx, r, time.Hour); err != nil {
				return nil, err
			}
			slept := time.Since(began).Round(time.Second)
			first, err := Wait[msg](ctx, r, "paid", 24*time.Hour)
			if err != nil {
				return nil, fmt.Errorf("first: %w", err)
			}
			second, err := Wait[msg](ctx, r, "paid", 0)
			if err != nil {
				return nil, err
			}
			_, err = Wait[msg](ctx, r, "never", 10*time.Minute)
			if !errors.Is(err, ErrTimeout) {
				return nil, err
			}
			return []any{slept >= time.Hour, first.Amount, second.Amount, "timeout"}, nil
		}
		stop := f.serveWith(t, HostOptions{Handle: handling(f.client(t), h)})
		r := f.submit("a", "1")
		f.signal(r, "paid", `{"Amount":1}`) // before it is waited for: kept
		time.Sleep(2 * time.Hour)
		if state := look(f, func() string { return r.state }); state != "waiting" {
			t.Fatalf("state %s (%s)", state, r.why())
		}
		if park := r.park; park.Step != "wait:paid#2" || park.Name != "paid" || park.On != "input" || park.Until != nil {
			t.Errorf("parked on %+v", park)
		}
		f.signal(r, "paid", `{"Amount":2}`)
		<-r.wait
		if string(r.output) != `[true,1,2,"timeout"]` {
			t.Errorf("output %s (%s)", r.output, r.why())
		}
		if r.failure != nil {
			t.Errorf("a park counted as %s", r.why())
		}
		_ = stop()
	})
}

func TestSessionCarriesItsStateFromTurnToTurn(t *testing.T) {
	type talk struct{ Turns []string }
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		stop := f.serveWith(t, HostOptions{Handle: handling(f.client(t), func(_ context.Context, r *Run, in string) (int, error) {
			s, err := SessionOf[talk](r)
			if err != nil {
				return 0, err
			}
			s.Turns = append(s.Turns, in)
			if in == "fail" && r.Attempt == 1 {
				return 0, errBoom
			}
			return len(s.Turns), nil
		})})
		name := t.Name()
		turn := func(in string) *fakeRun {
			f.mu.Lock()
			r := f.submitLocked("a", in)
			r.session = name
			f.mu.Unlock()
			<-r.wait
			return r
		}
		turn(`"one"`)
		turn(`"fail"`) // the failed attempt's state is not saved
		if r := turn(`"three"`); string(r.output) != "3" {
			t.Errorf("the third turn saw %s turns", r.output)
		}
		_ = stop()
	})
}

func TestUsageOfSeveralModelsIsReportedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := perform(t, newFake(), `1`, func(ctx context.Context, r *Run, _ int) (int, error) {
			r.Usage(Usage{InputTokens: 10, Model: "small"})
			r.Usage(Usage{InputTokens: 5, Model: "large"})
			return 0, nil
		})
		if r.usage.InputTokens != 15 || r.usage.Model != "" {
			t.Errorf("usage %+v: want both increments and no total", r.usage)
		}
	})
}

func TestLogReachesTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := perform(t, newFake(), `1`, func(ctx context.Context, r *Run, _ int) (int, error) {
			r.Log().With("invoice", 7).Info("read", "lines", 3)
			return 0, nil
		})
		if len(r.logs) != 1 || r.logs[0].Text != "level=INFO msg=read invoice=7 lines=3" || r.logs[0].Attempt != 1 || r.logs[0].Stream != "agent" {
			t.Errorf("logs %+v", r.logs)
		}
	})
}

func TestAttemptOfAnotherModeIsRefused(t *testing.T) {
	a := &Attempt{Lease: api.Lease{Attempt: "r.1", Mode: "settle", Input: json.RawMessage(`1`)}}
	result := run(t.Context(), nil, a, func(context.Context, *Run, int) (int, error) { t.Error("the handler ran"); return 0, nil })
	if result.Err == nil || result.Err.Code != CodeUnsupported {
		t.Errorf("%+v", result)
	}
}
