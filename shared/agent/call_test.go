package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
)

func TestCall(t *testing.T) {
	type in struct {
		N    int    `json:"n"`
		Fail string `json:"fail,omitempty"`
	}
	ask := func(fail string) in { return in{Fail: fail} }
	tests := map[string]struct {
		handler   Handler[int, any]
		paged     bool
		want      string // output
		wantCode  string // of the failure
		wantText  string
		wantCalls []string // steps
	}{
		"a child's output is the call's": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) { return Call[in](ctx, r, "b", in{N: 7}) },
			want:    `{"n":7}`, wantCalls: []string{"call:b#1"},
		},
		"one call after the other": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				x, err := Call[in](ctx, r, "b", in{N: 1})
				if err != nil {
					return nil, err
				}
				return CallWorkflow[in](ctx, r, "b", in{N: x.N + 1})
			},
			want: `{"n":2}`, wantCalls: []string{"call:b#1", "call:b#2"},
		},
		"a child that fails": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				_, err := Call[in](ctx, r, "b", ask("BAD"))
				var child *ChildError
				if !errors.As(err, &child) {
					return nil, err
				}
				return child, nil
			},
			want:      `{"Name":"b","Run":"call:b#1/0","State":"failed","Reason":"NonRetryable","Code":"BAD","Message":"no"}`,
			wantCalls: []string{"call:b#1"},
		},
		"a child that fails, and the handler with it": {
			handler:  func(ctx context.Context, r *Run, _ int) (any, error) { return Call[in](ctx, r, "b", ask("BAD")) },
			wantCode: CodeChildFailed, wantText: "child run call:b#1/0 of b: failed (NonRetryable): BAD: no",
		},
		"a callee that is not permitted": {
			handler:  func(ctx context.Context, r *Run, _ int) (any, error) { return Call[in](ctx, r, "forbidden", 1) },
			wantCode: CodePermissionDenied, wantText: "may not call",
		},
		"an output of another type": {
			handler:  func(ctx context.Context, r *Run, _ int) (any, error) { return Call[string](ctx, r, "b", in{N: 1}) },
			wantCode: CodeInputInvalid, wantText: "does not fit string",
		},
		"a group in the order of its requests": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				out, err := Parallel[in](ctx, r, []Request{To("b", in{N: 1}), ToWorkflow("c", in{N: 2}), To("d", in{N: 3})})
				if err != nil {
					return nil, err
				}
				return []int{out[0].Value.N, out[1].Value.N, out[2].Value.N}, nil
			},
			want: `[1,2,3]`, wantCalls: []string{"parallel#1"},
		},
		"a group whose results come in pages": {
			paged: true,
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				out, err := Parallel[in](ctx, r, []Request{To("b", in{N: 1}), To("b", in{N: 2}), To("b", in{N: 3})})
				if err != nil {
					return nil, err
				}
				return []int{out[0].Value.N, out[1].Value.N, out[2].Value.N}, nil
			},
			want: `[1,2,3]`, wantCalls: []string{"parallel#1"},
		},
		"a group of nobody": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				out, err := Parallel[in](ctx, r, nil)
				if err != nil {
					return nil, err
				}
				return len(out), nil
			},
			want: `0`,
		},
		"failures that are borne": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				out, err := Parallel[in](ctx, r, []Request{To("b", in{N: 1}), To("b", ask("X"))}, Tolerate(0.5), Max(1))
				if err != nil {
					return nil, err
				}
				return fmt.Sprint(out[0].Err, out[1].Err), nil
			},
			want: `"<nil> child run parallel#1/1 of b: failed (NonRetryable): X: no"`, wantCalls: []string{"parallel#1"},
		},
		"a failure that is not borne": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				return Parallel[in](ctx, r, []Request{To("b", in{N: 1}), To("b", ask("X"))})
			},
			wantCode: CodeChildFailed, wantText: "parallel#1: 1 of 2 children succeeded, 1 failed: child run",
		},
		"the first that succeeds": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				out, err := Parallel[in](ctx, r, []Request{To("b", ask("X")), To("b", in{N: 1})}, First())
				if err != nil {
					return nil, err
				}
				return out[1].Value, nil
			},
			want: `{"n":1}`, wantCalls: []string{"parallel#1"},
		},
		"more that must succeed than there are": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				return Parallel[in](ctx, r, []Request{To("b", 1)}, Need(2))
			},
			wantCode: CodeInputInvalid, wantText: "2 of 1 children",
		},
		"nobody at a time": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				return Parallel[in](ctx, r, []Request{To("b", 1)}, Max(0))
			},
			wantCode: CodeInputInvalid, wantText: "Max(0)",
		},
		"more than a step may have": {
			handler: func(ctx context.Context, r *Run, _ int) (any, error) {
				return Parallel[in](ctx, r, make([]Request, api.MaxChildren+1))
			},
			wantCode: CodeInputInvalid, wantText: "10001 children",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				stop := f.serveWith(t, HostOptions{Handle: handling(f.client(t), tt.handler)})
				f.mu.Lock()
				r := f.submitLocked("a", "1")
				r.paged = tt.paged
				f.mu.Unlock()
				select {
				case <-r.wait:
				case <-time.After(time.Hour):
				}
				_ = stop()
				if tt.wantCode != "" {
					if r.state != "failed" || r.failure.Code != tt.wantCode || !strings.Contains(r.failure.Message, tt.wantText) || r.n > 2 {
						t.Fatalf("%s in attempt %d: %s; want %s: …%s…", r.state, r.n, r.why(), tt.wantCode, tt.wantText)
					}
					return
				}
				if r.state != "succeeded" || string(r.output) != tt.want {
					t.Fatalf("%s with %s (%s), want %s", r.state, r.output, r.why(), tt.want)
				}
				var steps []string
				for _, s := range r.steps {
					if len(r.called[s.Name]) > 0 {
						steps = append(steps, s.Name)
					}
				}
				if diff := cmp.Diff(tt.wantCalls, steps); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAWaitOutOfItsTurnFailsTheRun(t *testing.T) {
	tests := map[string]struct {
		first, later func(context.Context, *Run) error
		wantText     string
	}{
		"another child": {
			first:    func(ctx context.Context, r *Run) error { _, err := Call[int](ctx, r, "b", 1); return err },
			later:    func(ctx context.Context, r *Run) error { _, err := Call[int](ctx, r, "c", 1); return err },
			wantText: `asks for "call:c#1", where an earlier attempt asked for "call:b#1"`,
		},
		"another kind": {
			first:    func(ctx context.Context, r *Run) error { return Sleep(ctx, r, time.Second) },
			later:    func(ctx context.Context, r *Run) error { _, err := Call[int](ctx, r, "c", 1); return err },
			wantText: `asks for "call:c#1", where an earlier attempt asked for "sleep#1"`,
		},
		"another number of children": {
			first: func(ctx context.Context, r *Run) error {
				_, err := Parallel[int](ctx, r, []Request{To("b", 1)})
				return err
			},
			later:    func(ctx context.Context, r *Run) error { _, err := Parallel[int](ctx, r, nil); return err },
			wantText: "0 children are asked for, and an earlier attempt called 1",
		},
		"two in another order": {
			first: func(ctx context.Context, r *Run) error {
				if _, err := Call[int](ctx, r, "b", 1); err != nil {
					return err
				}
				_, err := Call[int](ctx, r, "c", 1)
				return err
			},
			later: func(ctx context.Context, r *Run) error {
				if r.Attempt == 2 { // the second call is still to come
					_, err := Call[int](ctx, r, "b", 1)
					if err == nil {
						_, err = Call[int](ctx, r, "c", 1)
					}
					return err
				}
				_, err := Call[int](ctx, r, "c", 1)
				return err
			},
			wantText: `asks for "call:c#1", where an earlier attempt asked for "call:b#1"`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := perform(t, newFake(), `1`, func(ctx context.Context, r *Run, _ int) (int, error) {
					if r.Attempt == 1 {
						return 0, tt.first(ctx, r)
					}
					return 0, tt.later(ctx, r)
				})
				if r.state != "failed" || r.failure.Code != CodeNonDeterministic || !strings.Contains(r.failure.Message, tt.wantText) {
					t.Errorf("%s: %s; want %s", r.state, r.why(), tt.wantText)
				}
			})
		})
	}
}

// Without a server, whoever takes the result makes the children.
func TestCallsTravelWithTheParkWhereNoServerIsKnown(t *testing.T) {
	a := &Attempt{Lease: api.Lease{Attempt: "r.1", Input: json.RawMessage(`1`)}}
	result := run(t.Context(), nil, a, func(ctx context.Context, r *Run, _ int) (any, error) {
		return Parallel[int](ctx, r, []Request{To("b", 1), ToWorkflow("c", 2)}, Max(1), Tolerate(1))
	})
	want := &api.Park{
		On: "children", Step: "parallel#1", Size: 2, Tolerate: 1, Max: 1,
		Children: []api.Call{{Agent: "b", Input: json.RawMessage(`1`)}, {Workflow: "c", Input: json.RawMessage(`2`)}},
	}
	if diff := cmp.Diff(want, result.Park); diff != "" {
		t.Errorf("park (-want +got):\n%s", diff)
	}
}

func TestALargeGroupIsCalledInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r := perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (int, error) {
			requests := make([]Request, 2500)
			for i := range requests {
				requests[i] = To("b", i)
			}
			out, err := Parallel[int](ctx, r, requests)
			if err != nil {
				return 0, err
			}
			for i := range out {
				if out[i].Value != i {
					return 0, fmt.Errorf("item %d gave %d", i, out[i].Value)
				}
			}
			return len(out), nil
		})
		if string(r.output) != "2500" {
			t.Errorf("output %s (%s)", r.output, r.why())
		}
		if n := f.calls["/v1/attempts/"+r.id+".1/children"]; n != 3 {
			t.Errorf("%d requests, want 3", n)
		}
	})
}

func TestAChildsEndIsToldWithoutSayingItsCodeTwice(t *testing.T) {
	for name, c := range map[string]struct {
		err  ChildError
		want string
	}{
		"a message that begins with the code": {
			ChildError{Name: "a", Run: "r", State: "failed", Reason: "NonRetryable", Code: "BAD", Message: "BAD: no lines"},
			"child run r of a: failed (NonRetryable): BAD: no lines",
		},
		"one that does not":     {ChildError{Name: "a", Run: "r", State: "failed", Code: "BAD", Message: "no lines"}, "child run r of a: failed: BAD: no lines"},
		"a code alone":          {ChildError{Name: "a", Run: "r", State: "failed", Code: "BAD"}, "child run r of a: failed: BAD"},
		"a reason of the state": {ChildError{Name: "a", Run: "r", State: "canceled", Reason: "Canceled"}, "child run r of a: canceled"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%s: %q; want %q", name, got, c.want)
		}
	}
}
