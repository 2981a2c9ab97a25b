package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/agent"
)

func init() {
	programs["actor"] = func() { agent.Main(act) }
}

// script says what the actor does in each attempt, the last scene also in all that follow.
type script struct {
	Scenes []scene `json:"scenes,omitempty"`
}

// scene is one attempt. The actor notes "entered:RUN.N:PID" in the file stage when it begins, and "left:RUN.N:PID" when
// nothing kept it from coming to its end, and in between does what is set, in this order.
type scene struct {
	// Spend uses so many dollars.
	Spend float64 `json:"spend,omitempty"`
	// Pause waits that long.
	Pause duration `json:"pause,omitempty"`
	// Act performs the effect of this name, which is a line with its key in the file effects, and takes that long over it.
	Act string   `json:"act,omitempty"`
	For duration `json:"for,omitempty"`
	// Chat makes progress now and then for that long.
	Chat duration `json:"chat,omitempty"`
	// Gate waits until there is a file of this name in the test's folder.
	Gate string `json:"gate,omitempty"`
	// Deaf makes pauses and waits go on when the attempt is told to end.
	Deaf bool `json:"deaf,omitempty"`
	// Await parks until the signal of this name comes.
	Await string `json:"await,omitempty"`
	// Crash ends the process.
	Crash bool `json:"crash,omitempty"`
	// Fail ends with this code; Retry lets the run go on after it, after After if that is set.
	Fail  string   `json:"fail,omitempty"`
	Retry bool     `json:"retry,omitempty"`
	After duration `json:"after,omitempty"`
	// Say is what the output says.
	Say string `json:"say,omitempty"`
}

type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = duration(v)
	return err
}

// played is the actor's output.
type played struct {
	Said    string `json:"said"`
	Attempt int    `json:"attempt"`
	PID     int    `json:"pid"`
}

func act(ctx context.Context, r *agent.Run, in script) (played, error) {
	var s scene
	if n := len(in.Scenes); n > 0 {
		s = in.Scenes[min(r.Attempt, n)-1]
	}
	noteLine := func(what string) { note("stage", fmt.Sprintf("%s:%s.%d:%d", what, r.ID, r.Attempt, os.Getpid())) }
	noteLine("entered")
	if err := play(ctx, r, &s); err != nil {
		return played{}, err
	}
	noteLine("left")
	return played{Said: s.Say, Attempt: r.Attempt, PID: os.Getpid()}, nil
}

func play(ctx context.Context, r *agent.Run, s *scene) error {
	if s.Spend > 0 {
		r.Usage(agent.Usage{USD: s.Spend})
	}
	if err := wait(ctx, s.Deaf, time.Duration(s.Pause), ""); err != nil {
		return err
	}
	if s.Act != "" {
		if err := effect(ctx, r, s); err != nil {
			return err
		}
	}
	for end := time.Now().Add(time.Duration(s.Chat)); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ctx.Err() != nil && !s.Deaf {
			return context.Cause(ctx)
		}
		r.Progress(0.5, "talking")
	}
	if s.Gate != "" {
		if err := wait(ctx, s.Deaf, 0, s.Gate); err != nil {
			return err
		}
	}
	if s.Await != "" {
		if _, err := agent.Wait[any](ctx, r, s.Await, 0); err != nil {
			return err
		}
	}
	switch {
	case s.Crash:
		os.Exit(3)
	case s.Fail != "" && s.Retry:
		return &agent.Error{Code: s.Fail, After: time.Duration(s.After), Err: errors.New("the script says so")}
	case s.Fail != "":
		return agent.Fail(s.Fail, errors.New("the script says so"))
	}
	return nil
}

// effect leaves its key in the file effects, which is where it is looked for when nobody knows whether it happened.
func effect(ctx context.Context, r *agent.Run, s *scene) error {
	_, err := agent.Once(ctx, r, s.Act, agent.Effect[string]{
		Do: func(ctx context.Context, key string) (string, error) {
			if err := wait(ctx, s.Deaf, time.Duration(s.For), ""); err != nil {
				return "", err
			}
			note("effects", key)
			return "done", nil
		},
		Reconcile: func(_ context.Context, key string) (string, bool, error) {
			text, err := os.ReadFile(filepath.Join(os.Getenv(envDir), "effects"))
			if errors.Is(err, os.ErrNotExist) {
				return "", false, nil
			}
			return "done", slices.Contains(strings.Fields(string(text)), key), err
		},
		OnUnknown: agent.Reconcile,
	})
	return err
}

// wait lasts for a while, or until a file is there; unless it is deaf it ends with the context, and with its cause.
func wait(ctx context.Context, deaf bool, d time.Duration, file string) error {
	for end := time.Now().Add(d); ; {
		if file == "" && time.Now().After(end) {
			return nil
		}
		if _, err := os.Stat(filepath.Join(os.Getenv(envDir), file)); file != "" && err == nil {
			return nil
		}
		if !deaf && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
