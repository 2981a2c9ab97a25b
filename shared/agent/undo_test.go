package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// shop is an outside world in which effects are undone.
type shop struct {
	log  []string
	fail func(what string) error // before it does something
}

func (s *shop) do(what string) error {
	if s.fail != nil {
		if err := s.fail(what); err != nil {
			return err
		}
	}
	s.log = append(s.log, what)
	return nil
}

// buy is an effect that can be undone.
func (s *shop) buy(name string, change ...func(*Effect[string])) Effect[string] {
	e := Effect[string]{
		Request: name, Timeout: time.Second,
		Do:         func(_ context.Context, _ string) (string, error) { return name + " bought", s.do("buy " + name) },
		Compensate: func(_ context.Context, key, result string) error { return s.do("undo " + key + ": " + result) },
	}
	for _, c := range change {
		c(&e)
	}
	return e
}

func TestUndoingFindsTheHooksWhereTheRunGot(t *testing.T) {
	reconciled := func(happened bool) func(*Effect[string]) {
		return func(e *Effect[string]) {
			e.Reconcile = func(context.Context, string) (string, bool, error) { return "found", happened, nil }
		}
	}
	lost := func(what string) func(string) error {
		return func(x string) error {
			if x == what {
				return errBoom
			}
			return nil
		}
	}
	tests := map[string]struct {
		handler func(s *shop) Handler[int, string]
		fail    func(string) error // of the shop, while the run runs
		want    []string           // what is done to undo it
		state   string             // of the run that undoes; succeeded when empty
		code    string
	}{
		"effects outside of steps, newest first": {handler: func(s *shop) Handler[int, string] {
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				for _, name := range []string{"a", "b", "c"} {
					if _, err := Once(ctx, r, name, s.buy(name)); err != nil {
						return "", err
					}
				}
				return "", Fail("BROKEN", nil)
			}
		}, want: []string{"undo key-c: c bought", "undo key-b: b bought", "undo key-a: a bought"}},
		"effects within steps that ended, and what follows them is left out": {handler: func(s *shop) Handler[int, string] {
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				got, err := Step(ctx, r, "order", func(ctx context.Context) (string, error) {
					got, err := Once(ctx, r, "a", s.buy("a"))
					if err == nil {
						err = s.do("think")
					}
					return got, err
				})
				if err != nil {
					return "", err
				}
				if _, err := Once(ctx, r, "b", s.buy("b of "+got)); err != nil {
					return "", err
				}
				if err := Sleep(ctx, r, time.Hour); err != nil {
					return "", err
				}
				return "", Fail("BROKEN", nil)
			}
		}, want: []string{"undo key-b: b of a bought bought", "undo key-a: a bought"}},
		"an effect of a step that never ended": {handler: func(s *shop) Handler[int, string] {
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				if r.Attempt == 2 {
					return "", Fail("BROKEN", nil)
				}
				return Step(ctx, r, "order", func(ctx context.Context) (string, error) {
					if _, err := Once(ctx, r, "a", s.buy("a")); err != nil {
						return "", err
					}
					return "", errors.Join(s.do("more"), errBoom)
				})
			}
		}, want: []string{"more", "undo key-a: a bought"}},
		"an effect without a hook between others": {handler: func(s *shop) Handler[int, string] {
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				if _, err := Once(ctx, r, "a", s.buy("a")); err != nil {
					return "", err
				}
				said, err := Once(ctx, r, "say", s.buy("b", func(e *Effect[string]) { e.Compensate = nil }))
				if err != nil {
					return "", err
				}
				if _, err := Once(ctx, r, "c", s.buy("c after "+said)); err != nil {
					return "", err
				}
				return "", Fail("BROKEN", nil)
			}
		}, want: []string{"undo key-c: c after b bought bought", "undo key-a: a bought"}},
		"what may have happened, and did": {handler: func(s *shop) Handler[int, string] {
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				_, err := Once(ctx, r, "a", s.buy("a", reconciled(true)))
				return "", fmt.Errorf("final: %w", &Error{Final: true, Err: err})
			}
		}, fail: lost("buy a"), want: []string{"undo key-a: found"}},
		"what may have happened, and did not": {handler: func(s *shop) Handler[int, string] {
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				_, err := Once(ctx, r, "a", s.buy("a", reconciled(false)))
				return "", fmt.Errorf("final: %w", &Error{Final: true, Err: err})
			}
		}, fail: lost("buy a")},
		"a person is asked what nobody else knows": {handler: func(s *shop) Handler[int, string] {
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				_, err := Once(ctx, r, "a", s.buy("a"))
				return "", fmt.Errorf("final: %w", &Error{Final: true, Err: err})
			}
		}, fail: lost("buy a"), state: "waiting"},
		"a handler that takes another way says so": {handler: func(s *shop) Handler[int, string] {
			ran := false
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				if ran {
					return "", nil
				}
				ran = true
				if _, err := Once(ctx, r, "a", s.buy("a")); err != nil {
					return "", err
				}
				return "", Fail("BROKEN", nil)
			}
		}, state: "failed", code: CodeNotUndone},
		"so does one that has lost its hook": {handler: func(s *shop) Handler[int, string] {
			ran := false
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				e := s.buy("a")
				if ran {
					e.Compensate = nil
				}
				ran = true
				if _, err := Once(ctx, r, "a", e); err != nil {
					return "", err
				}
				return "", Fail("BROKEN", nil)
			}
		}, state: "failed", code: CodeNotUndone},
		"a handler that waits is told that every hook is found": {handler: func(s *shop) Handler[int, string] {
			ran := false
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				if _, err := Once(ctx, r, "a", s.buy("a")); err != nil {
					return "", err
				}
				if ran {
					<-ctx.Done()
				}
				ran = true
				return "", Fail("BROKEN", nil)
			}
		}, want: []string{"undo key-a: a bought"}},
		"a panic over what is missing does not matter": {handler: func(s *shop) Handler[int, string] {
			return func(ctx context.Context, r *Run, _ int) (string, error) {
				if _, err := Once(ctx, r, "a", s.buy("a")); err != nil {
					return "", err
				}
				x, err := Step(ctx, r, "count", func(context.Context) ([]int, error) { return []int{1}, nil })
				_ = x[0]
				if err == nil {
					err = Fail("BROKEN", nil)
				}
				return "", err
			}
		}, want: []string{"undo key-a: a bought"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shop{fail: tt.fail}
				f := newFake()
				stop := f.serveWith(t, HostOptions{Slots: 1, Handle: handling(f.client(t), tt.handler(s))})
				defer func() { _ = stop() }()
				await := func(r *fakeRun) {
					select {
					case <-r.wait:
					case <-time.After(24 * time.Hour):
					}
				}
				r := f.submit("a", `1`)
				await(r)
				s.log, s.fail = nil, nil
				undo := f.compensate(r)
				await(undo)
				if want := map[bool]string{true: "succeeded", false: tt.state}[tt.state == ""]; undo.state != want {
					t.Fatalf("it is %s (%s), want %s", undo.state, undo.why(), want)
				}
				if tt.code != "" && undo.failure.Code != tt.code {
					t.Errorf("%s, want %s", undo.why(), tt.code)
				}
				if diff := cmp.Diff(tt.want, s.log); diff != "" {
					t.Errorf("done to undo it (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestWhatWasUndoneIsNotUndoneAgain(t *testing.T) {
	for name, x := range map[string]struct {
		policy OnUnknown
		fault  func(f *fake) error // of the second undoing, at its first try
		want   []string
		state  string
	}{
		"after an error it is tried again": {Ask, func(*fake) error { return errBoom },
			[]string{"undo key-c: c bought", "undo key-b: b bought", "undo key-a: a bought"}, "succeeded"},
		"after a final error no more": {Ask, func(*fake) error { return Fail("STUCK", errBoom) }, []string{"undo key-c: c bought"}, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newFake(), new(shop)
				stop := f.serveWith(t, HostOptions{Slots: 1, Handle: handling(f.client(t), func(ctx context.Context, r *Run, _ int) (string, error) {
					for _, name := range []string{"a", "b", "c"} {
						if _, err := Once(ctx, r, name, s.buy(name)); err != nil {
							return "", err
						}
					}
					return "", Fail("BROKEN", nil)
				})})
				defer func() { _ = stop() }()
				r := f.submit("a", `1`)
				<-r.wait
				s.log = nil
				failures := 0
				s.fail = func(what string) error {
					if strings.HasPrefix(what, "undo key-b") && failures < 2 {
						failures++
						return x.fault(f)
					}
					return nil
				}
				undo := f.compensate(r)
				<-undo.wait
				if diff := cmp.Diff(x.want, s.log); diff != "" || undo.state != x.state {
					t.Errorf("%s (%s), want %s; done (-want +got):\n%s", undo.state, undo.why(), x.state, diff)
				}
			})
		})
	}
}

// An attempt dies in the middle of undoing: what follows is as the effect says for itself.
func TestAnUndoingThatWasCutOff(t *testing.T) {
	finds := func(answers ...any) func(context.Context, string) (string, bool, error) {
		n := 0
		return func(_ context.Context, key string) (string, bool, error) {
			x := answers[min(n, len(answers)-1)]
			if n++; key != "key-a" {
				return "", false, fmt.Errorf("asked for %q", key)
			}
			if err, failed := x.(error); failed {
				return "", false, err
			}
			return "found", x.(bool), nil
		}
	}
	for name, x := range map[string]struct {
		policy    OnUnknown
		reconcile func(context.Context, string) (string, bool, error)
		calls     int // of the hook
		state     string
		code      string
	}{
		"of an effect that is there no more, it is undone":           {nil, finds(false), 1, "succeeded", ""},
		"of an effect that is there, a person is asked":              {nil, finds(true), 1, "waiting", ""},
		"of one that cannot be looked up yet, it is looked up again": {Reconcile, finds(errBoom, false), 1, "succeeded", ""},
		"of one that nobody can look up, a person is asked":          {nil, nil, 1, "waiting", ""},
		"of one that a person is to be asked about, one is":          {Ask, finds(false), 1, "waiting", ""},
		"of one that can be repeated, it is":                         {Repeat, nil, 2, "succeeded", ""},
		"of one that fails its run, it fails":                        {FailRun, nil, 1, "failed", CodeOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newFake(), new(shop)
				calls, cut := 0, make(chan struct{})
				handler := func(ctx context.Context, r *Run, _ int) (string, error) {
					if _, err := Once(ctx, r, "a", s.buy("a", func(e *Effect[string]) {
						e.OnUnknown, e.Reconcile = x.policy, x.reconcile
						e.Compensate = func(ctx context.Context, _, _ string) error {
							if calls++; calls == 1 {
								close(cut)
								<-ctx.Done()
								return ctx.Err()
							}
							return nil
						}
					})); err != nil {
						return "", err
					}
					return "", Fail("BROKEN", nil)
				}
				stop := f.serveWith(t, HostOptions{Slots: 2, Handle: handling(f.client(t), handler)})
				defer func() { _ = stop() }()
				r := f.submit("a", `1`)
				<-r.wait
				undo := f.compensate(r)
				<-cut
				f.loseWorker("w1")
				select {
				case <-undo.wait:
				case <-time.After(24 * time.Hour):
				}
				if undo.state != x.state || calls != x.calls {
					t.Errorf("it is %s (%s) after %d calls of its hook, want %s after %d", undo.state, undo.why(), calls, x.state, x.calls)
				}
				if x.code != "" && undo.failure.Code != x.code {
					t.Errorf("%s, want %s", undo.why(), x.code)
				}
			})
		})
	}
}
