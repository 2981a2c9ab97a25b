package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/errand-run/errand/shared/api"
)

type sent struct{ ID string }

// world counts what happens to the outside world.
type world struct {
	done  []string // keys
	fail  func(try int) error
	tries int
}

func (o *world) do(_ context.Context, key string) (sent, error) {
	o.tries++
	if o.fail != nil {
		if err := o.fail(o.tries); err != nil {
			return sent{}, err
		}
	}
	o.done = append(o.done, key)
	return sent{ID: "m" + key}, nil
}

func TestOnce(t *testing.T) {
	lost := func(try int) error { // the request went out, the answer was lost
		if try == 1 {
			return errors.New("connection reset")
		}
		return nil
	}
	tests := map[string]struct {
		effect    Effect[sent]
		outside   world
		break1    bool // the first attempt fails after the effect
		wantState string
		wantCode  string
		wantTries int
		wantDone  int
	}{
		"an effect that succeeded is not performed again by the next attempt": {
			break1: true, wantState: "succeeded", wantTries: 1, wantDone: 1,
		},
		"an effect that certainly did not happen is performed by the next attempt": {
			outside:   world{fail: func(try int) error { return map[bool]error{true: NotDone(errBoom)}[try == 1] }},
			wantState: "succeeded", wantTries: 2, wantDone: 1,
		},
		"an unknown outcome is left to a person by default": {
			outside: world{fail: lost}, wantState: "waiting", wantTries: 1,
		},
		"an unknown outcome fails the run where asked to": {
			effect: Effect[sent]{OnUnknown: FailRun}, outside: world{fail: lost}, wantState: "failed", wantCode: CodeOutcomeUnknown, wantTries: 1,
		},
		"an unknown outcome is repeated where that is harmless": {
			effect: Effect[sent]{OnUnknown: Repeat}, outside: world{fail: lost}, wantState: "succeeded", wantTries: 2, wantDone: 1,
		},
		"the hook finds that it happened": {
			effect: Effect[sent]{OnUnknown: Reconcile, Reconcile: func(_ context.Context, key string) (sent, bool, error) {
				return sent{ID: "m" + key}, true, nil
			}},
			outside: world{fail: lost}, wantState: "succeeded", wantTries: 1,
		},
		"a hook is asked without being told to": {
			effect:  Effect[sent]{Reconcile: func(_ context.Context, key string) (sent, bool, error) { return sent{ID: "m" + key}, true, nil }},
			outside: world{fail: lost}, wantState: "succeeded", wantTries: 1,
		},
		"the hook finds that it did not happen": {
			effect:  Effect[sent]{OnUnknown: Reconcile, Reconcile: func(context.Context, string) (sent, bool, error) { return sent{}, false, nil }},
			outside: world{fail: lost}, wantState: "succeeded", wantTries: 2, wantDone: 1,
		},
		"the hook does not know at first": {
			effect: Effect[sent]{OnUnknown: Reconcile, Reconcile: func() func(context.Context, string) (sent, bool, error) {
				asked := 0
				return func(_ context.Context, key string) (sent, bool, error) {
					if asked++; asked == 1 {
						return sent{}, false, errBoom
					}
					return sent{ID: "m" + key}, true, nil
				}
			}()},
			outside: world{fail: lost}, wantState: "succeeded", wantTries: 1,
		},
		"reconcile without a hook is left to a person": {
			effect: Effect[sent]{OnUnknown: Reconcile}, outside: world{fail: lost}, wantState: "waiting", wantTries: 1,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.effect.Do = tt.outside.do
				tt.effect.Request = map[string]any{"to": "x", "amount": 1}
				r := perform(t, newFake(), `1`, func(ctx context.Context, r *Run, _ int) (string, error) {
					got, err := Once(ctx, r, "mail:x", tt.effect)
					if err != nil {
						return "", err
					}
					if r.Attempt == 1 && tt.break1 {
						return "", errBoom
					}
					return got.ID, nil
				})
				if r.state != tt.wantState || tt.outside.tries != tt.wantTries || len(tt.outside.done) != tt.wantDone {
					t.Errorf("%s (%s) after %d tries, done %d times; want %s, %d, %d",
						r.state, r.why(), tt.outside.tries, len(tt.outside.done), tt.wantState, tt.wantTries, tt.wantDone)
				}
				if tt.wantState == "succeeded" && string(r.output) != `"mreceipt-r1-/mail:x"` {
					t.Errorf("output %s: want the effect's result, made with the receipt's id as key", r.output)
				}
				if tt.wantCode != "" && r.failure.Code != tt.wantCode {
					t.Errorf("%s; want %s", r.why(), tt.wantCode)
				}
			})
		})
	}
}

func TestWhatTheHookFoundIsToldByTheCallThatWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		tries := 0
		r := perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (sent, error) {
			if r.Attempt > 2 {
				return sent{}, Fail("NEVER_BELIEVED", errBoom)
			}
			return Once(ctx, r, "mail", Effect[sent]{
				OnUnknown: Reconcile,
				Do: func(context.Context, string) (sent, error) {
					if tries++; tries == 1 {
						return sent{}, errBoom // the answer was lost
					}
					return sent{}, nil
				},
				Reconcile: func(context.Context, string) (sent, bool, error) { return sent{}, false, nil },
			})
		})
		if r.state != "succeeded" || r.n != 2 || tries != 2 {
			t.Errorf("%s after %d attempts and %d tries (%s)", r.state, r.n, tries, r.why())
		}
		if len(f.begins) != 4 {
			t.Fatalf("%d begins; want the first, and of the second call one that waits, one that is told unknown, and what it found", len(f.begins))
		}
		first, told, found := f.begins[0], f.begins[2], f.begins[3]
		if first.Nonce == told.Nonce || found.Nonce != told.Nonce || told.Reconciled != "" || found.Reconciled != "didNotHappen" {
			t.Errorf("nonces %s, %s, %s, with %q", first.Nonce, told.Nonce, found.Nonce, found.Reconciled)
		}
	})
}

func TestOnceRefusesAnotherRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o world
		r := perform(t, newFake(), `1`, func(ctx context.Context, r *Run, _ int) (int, error) {
			_, err := Once(ctx, r, "mail", Effect[sent]{Request: r.Attempt, Do: o.do})
			if r.Attempt == 1 {
				return 0, errBoom
			}
			return 0, err
		})
		if r.failure.Code != CodeEffectConflict || len(o.done) != 1 {
			t.Errorf("%s, done %d times", r.why(), len(o.done))
		}
	})
}

func TestOnceWaitsForAnAttemptThatMayStillAct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var did []time.Time
		first := make(chan struct{})
		h := func(ctx context.Context, r *Run, _ int) (int, error) {
			_, err := Once(ctx, r, "mail", Effect[sent]{OnUnknown: Repeat, Timeout: time.Minute, Do: func(ctx context.Context, _ string) (sent, error) {
				did = append(did, time.Now())
				if r.Attempt == 1 {
					close(first)
					<-ctx.Done()
					return sent{}, ctx.Err()
				}
				return sent{}, nil
			}})
			return 0, err
		}
		stop := f.serveWith(t, HostOptions{Slots: 2, Handle: handling(f.client(t), h)})
		r := f.submit("a", "1")
		<-first
		f.loseWorker("w1") // the run is given out again while the first attempt acts
		<-r.wait
		if gap := did[1].Sub(did[0]); len(did) != 2 || gap < time.Minute+f.settle {
			t.Errorf("%d tries, %s apart; want the second after the first's time and settling, %s", len(did), gap, time.Minute+f.settle)
		}
		_ = stop()
	})
}

func TestOnceBoundsDoByItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took time.Duration
		perform(t, newFake(), `1`, func(ctx context.Context, r *Run, _ int) (int, error) {
			_, err := Once(ctx, r, "slow", Effect[sent]{Timeout: 3 * time.Second, OnUnknown: FailRun, Do: func(ctx context.Context, _ string) (sent, error) {
				began := time.Now()
				<-ctx.Done()
				took = time.Since(began)
				return sent{}, ctx.Err()
			}})
			return 0, err
		})
		if took != 3*time.Second {
			t.Errorf("Do had %s; want 3s", took)
		}
	})
}

func TestOnceRecordsWhatHappenedThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var o world
		r := perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (string, error) {
			got, err := Once(ctx, r, "mail", Effect[sent]{Do: func(ctx context.Context, key string) (sent, error) {
				f.setDown(true)
				time.AfterFunc(5*time.Second, func() { f.setDown(false) })
				return o.do(ctx, key)
			}})
			return got.ID, err
		})
		if r.state != "succeeded" || len(o.done) != 1 || r.n != 1 {
			t.Errorf("%s (%s), done %d times", r.state, r.why(), len(o.done))
		}
	})
}

func TestOnceWithALostAnswerIsTheSameCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.loseAfter[":begin"], f.loseAfter[":commit"] = 1, 1
		var o world
		r := perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (string, error) {
			got, err := Once(ctx, r, "mail", Effect[sent]{Do: o.do})
			return got.ID, err
		})
		if r.state != "succeeded" || len(o.done) != 1 || r.n != 1 {
			t.Errorf("%s (%s), done %d times", r.state, r.why(), len(o.done))
		}
	})
}

func TestEffectsOfDifferentStepsAreDifferent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o world
		r := perform(t, newFake(), `1`, func(ctx context.Context, r *Run, _ int) (int, error) {
			for _, step := range []string{"first", "second"} {
				if _, err := Step(ctx, r, step, func(ctx context.Context) (sent, error) {
					return Once(ctx, r, "mail", Effect[sent]{Request: step, Do: o.do})
				}); err != nil {
					return 0, err
				}
			}
			return 0, nil
		})
		if r.state != "succeeded" || strings.Join(o.done, " ") != "receipt-r1-first/mail receipt-r1-second/mail" {
			t.Errorf("%s (%s): %v", r.state, r.why(), o.done)
		}
	})
}

func TestForbiddenEffectIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.refuse["begin"] = problemOf(403, api.CodeForbidden, "effects: mail:* is not among the agent's permissions")
		var o world
		r := perform(t, f, `1`, func(ctx context.Context, r *Run, _ int) (sent, error) {
			return Once(ctx, r, "mail:x", Effect[sent]{Do: o.do})
		})
		if r.state != "failed" || r.failure.Code != CodePermissionDenied || o.tries != 0 {
			t.Errorf("%s (%s) after %d tries", r.state, r.why(), o.tries)
		}
	})
}

func TestRequestHashIsOfTheMeaning(t *testing.T) {
	type a struct {
		X int    `json:"x"`
		Y string `json:"y"`
	}
	type b struct {
		Y string `json:"y"`
		X int    `json:"x"`
	}
	one, err1 := requestHash(a{X: 12345678901234567, Y: "<é>"})
	two, err2 := requestHash(b{X: 12345678901234567, Y: "<é>"})
	three, err3 := requestHash(b{X: 12345678901234568, Y: "<é>"})
	none, err4 := requestHash(nil)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if one != two || one == three || len(one) != 64 || none == one {
		t.Errorf("%s %s %s %s", one, two, three, none)
	}
}
