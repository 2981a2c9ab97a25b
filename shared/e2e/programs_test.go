package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// scene is one attempt. The actor notes "entered RUN.N PID" in the file stage when it begins, and then does what is set,
// in this order.
type scene struct {
	// Act performs the effect of this name, which is a note in the file effects, and takes that long over it.
	Act string   `json:"act,omitempty"`
	For duration `json:"for,omitempty"`
	// Gate waits until there is a file of this name in the test's folder.
	Gate string `json:"gate,omitempty"`
	// Deaf makes waiting go on when the attempt is told to end.
	Deaf bool `json:"deaf,omitempty"`
	// Fail ends with this code; Retry lets the run go on after it, after After if that is set.
	Fail  string   `json:"fail,omitempty"`
	Retry bool     `json:"retry,omitempty"`
	After duration `json:"after,omitempty"`
	// Say is what the output says; "" is refused by the schema of the actor.
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
	if s.Act != "" {
		_, err := agent.Once(ctx, r, s.Act, agent.Effect[string]{
			Do: func(ctx context.Context, key string) (string, error) {
				if err := wait(ctx, s.Deaf, time.Duration(s.For), ""); err != nil {
					return "", err
				}
				note("effects", key)
				return "done", nil
			},
		})
		if err != nil {
			return played{}, err
		}
	}
	if s.Gate != "" {
		if err := wait(ctx, s.Deaf, 0, s.Gate); err != nil {
			noteLine("ended-" + causeOf(err))
			return played{}, err
		}
	}
	switch {
	case s.Fail != "" && s.Retry:
		return played{}, &agent.Error{Code: s.Fail, After: time.Duration(s.After), Err: errors.New("the script says so")}
	case s.Fail != "":
		return played{}, agent.Fail(s.Fail, errors.New("the script says so"))
	}
	noteLine("left")
	return played{Said: s.Say, Attempt: r.Attempt, PID: os.Getpid()}, nil
}

// causeOf is why a wait was broken off, in a word.
func causeOf(err error) string {
	switch {
	case errors.Is(err, agent.ErrFenced):
		return "fenced"
	case errors.Is(err, agent.ErrDraining):
		return "draining"
	}
	return "told"
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
