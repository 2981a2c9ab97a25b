package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

// waitFlags let a command wait for runs.
type waitFlags struct {
	wait    bool
	timeout time.Duration
}

func (w *waitFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.wait, "wait", false, "wait until all runs are over")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 0, "with --wait: give up waiting after this long (exit 124); the runs go on")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if w.timeout < 0 || (cmd.Flags().Changed("timeout") && !w.wait) {
			return usagef("--timeout: want a length of time, together with --wait")
		}
		return nil
	}
}

// Bounds of waiting.
const (
	waitPolls  = 16               // requests that wait at a time, however many runs there are
	waitLong   = 30 * time.Second // for a run that has a request of its own
	waitShort  = time.Second      // for one of more runs than requests, so that each gets its turn
	waitOutage = 30 * time.Second // a server that restarts is back by then
)

// waitRuns replaces each run by what it is once it is over. It uses a fixed number of long polls, survives a restart of
// the server, and shows how far it is. After an error the runs are as far as they were seen.
func (a *app) waitRuns(ctx context.Context, c *api.Client, runs []api.Run) error {
	w := &waiting{c: c, runs: runs, turns: make(chan int, len(runs)), left: len(runs), now: a.now}
	if len(runs) > 1 {
		w.progress = render.NewProgress(a.err, "runs over", a.now)
	}
	// A run without outputs to show need not keep them in memory.
	w.brief = len(runs) > 1 && (a.format.Human() || a.format == render.Name)
	for i := range runs {
		w.turns <- i
	}
	ctx, w.stop = context.WithCancelCause(ctx)
	var polls sync.WaitGroup
	for range min(waitPolls, len(runs)) {
		polls.Go(func() { w.poll(ctx) })
	}
	polls.Wait()
	err := context.Cause(ctx)
	w.stop(nil)
	if errors.Is(err, errAllOver) {
		err = nil
	}
	w.progress.Done(len(runs)-w.left, len(runs), w.note())
	return err
}

// waiting is one waitRuns under way.
type waiting struct {
	c        *api.Client
	runs     []api.Run
	turns    chan int // runs that nobody asks for now
	brief    bool
	progress *render.Progress
	stop     context.CancelCauseFunc
	now      func() time.Time

	mu     sync.Mutex
	left   int
	failed int
	away   time.Time // since when the server does not answer; zero while it does
}

var errAllOver = errors.New("all runs are over")

// poll asks for one run after the other until all are over or one cannot be had.
func (w *waiting) poll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case i := <-w.turns:
			r, err := w.c.Run(ctx, w.runs[i].ID, w.patience())
			over, delay := w.take(i, r, err)
			if over || ctx.Err() != nil {
				continue
			}
			if delay > 0 && pause(ctx, delay) != nil {
				return
			}
			w.turns <- i
		}
	}
}

func (w *waiting) patience() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left <= waitPolls {
		return waitLong
	}
	return waitShort
}

// take notes an answer. It reports whether the run is over, or else how long to wait before the next question.
func (w *waiting) take(i int, r *api.Run, err error) (over bool, delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil && (errors.Is(err, api.ErrUnreachable) || api.HasCode(err, api.CodeUnavailable)):
		if w.away.IsZero() {
			w.away = w.now()
		}
		if w.now().Sub(w.away) > waitOutage {
			w.stop(err)
		}
		return false, 300 * time.Millisecond
	case err != nil:
		w.stop(err)
		return false, 0
	}
	w.away = time.Time{}
	if w.brief {
		r.Input, r.Output = nil, nil
	}
	w.runs[i] = *r
	if !r.Terminal() {
		return false, 0
	}
	w.left--
	if r.State == "failed" {
		w.failed++
	}
	w.progress.Set(len(w.runs)-w.left, len(w.runs), w.note())
	if w.left == 0 {
		w.stop(errAllOver)
	}
	return true, 0
}

func (w *waiting) note() string {
	if w.failed == 0 {
		return ""
	}
	return fmt.Sprintf("%d failed", w.failed)
}
