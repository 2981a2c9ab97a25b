package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/api"
)

const (
	// askPatience is how long a container waits for a server that is away before it gives up: longer than a deployment of
	// it takes.
	askPatience = 2 * time.Minute
	// askTime is for one try, which is seen through even when the process is told to end: an attempt that was handed over
	// unnoticed would be missed only when its worker's lease runs out.
	askTime = 5 * time.Second
)

// exitUnreachable is how a container of a job ends that could not reach the server: the run did not fail here, and its
// start may be tried again. It is EX_TEMPFAIL of sysexits.h.
const exitUnreachable = 75

// job runs the one attempt of a job's container and returns the exit code.
func (p *process) job(ctx context.Context, env *environment, log *slog.Logger, h handle) int {
	fail := func(err error) int {
		fmt.Fprintf(p.stderr, "%s: %v\n", p.name, err)
		return 1
	}
	// 1. What to do.
	if env.task.spare {
		log.Info("nothing to do: the list of attempts ends before this task", "index", env.task.index)
		return 0
	}
	if env.task.attempt == "" && env.task.input == nil {
		var err error
		if env.task.input, err = argument(p.args); err != nil {
			fmt.Fprintf(p.stderr, "%s: %v\n", p.name, err)
			return 2
		}
	}
	client, err := env.connect(env.control())
	if err != nil {
		return fail(err)
	}
	defer client.Close()
	lease, code, err := env.lease(ctx, client, log)
	var answer *api.Problem
	if errors.Is(err, api.ErrUnreachable) || errors.As(err, &answer) && passing(answer) {
		fail(err)
		return exitUnreachable
	}
	if err != nil {
		return fail(err)
	}
	if lease == nil {
		return code
	}
	// 2. Do it, as a worker that has this one attempt.
	if err := p.tellIndex(lease); err != nil {
		return fail(err)
	}
	s := &single{lease: *lease, done: make(chan struct{})}
	host, err := NewHost(client, HostOptions{
		Worker: env.worker, Target: env.target, Agents: []string{lease.Agent}, Log: log, Grace: noneIfZero(env.grace),
		Snapshot: p.sessions(), Source: s, placeless: true,
		Handle: func(ctx context.Context, a *Attempt) Result { return h(ctx, client, a) },
	})
	if err != nil {
		return fail(err)
	}
	if err := host.Run(ctx); err != nil {
		return fail(err)
	}
	// 3. Tell the platform.
	return s.code(log)
}

// lease claims the attempt that the container was started for, or begins a run. Without a lease there is nothing to do,
// and the code says how to end.
func (e *environment) lease(ctx context.Context, client *api.Client, log *slog.Logger) (*api.Lease, int, error) {
	if e.task.attempt != "" {
		return e.claim(ctx, client, log)
	}
	return e.begin(ctx, client, log)
}

func (e *environment) claim(ctx context.Context, client *api.Client, log *slog.Logger) (*api.Lease, int, error) {
	attempt := e.task.attempt
	lease, err := asked(ctx, func(ctx context.Context) (*api.Lease, error) {
		return client.Claim(ctx, attempt, api.Claim{Worker: e.worker, Ticket: e.task.ticket})
	})
	switch {
	case api.HasCode(err, api.CodeFenced), api.HasCode(err, api.CodeConflict):
		log.Info("nothing to do: the attempt is over, or somebody else has it", "attempt", attempt, "error", err)
		return nil, 0, nil
	case err != nil && ctx.Err() != nil:
		return nil, 0, nil // told to end before anything had begun
	case err != nil:
		return nil, 0, fmt.Errorf("claim attempt %s at %s: %w", attempt, client.URL(), err)
	}
	return lease, 0, nil
}

func (e *environment) begin(ctx context.Context, client *api.Client, log *slog.Logger) (*api.Lease, int, error) {
	t := &e.task
	b := api.Begin{
		Agent: e.agents[0], Input: orNull(t.input), Execution: t.execution, Index: &t.index, Restarts: t.restarts, Worker: e.worker,
	}
	if t.completions > 0 {
		b.Completions = &t.completions
	}
	if t.execution == "" {
		b.Key, b.Index, b.Completions = "by-hand/"+rand.Text(), nil, nil
	} else {
		b.Key = t.execution + "/" + strconv.Itoa(t.index)
	}
	begun, err := asked(ctx, func(ctx context.Context) (*api.Begun, error) { return client.BeginRun(ctx, b) })
	switch {
	case takenElsewhere(err):
		log.Info("nothing to do: the run of this task is executed by somebody else, or waits", "key", b.Key, "error", err)
		return nil, 0, nil
	case err != nil && ctx.Err() != nil:
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("begin a run of agent %s at %s: %w", b.Agent, client.URL(), err)
	case begun.Lease != nil:
		// A server that knows nothing of jobs leaves the index out.
		begun.Lease.Index = cmp.Or(begun.Lease.Index, b.Index)
		begun.Lease.Completions = cmp.Or(begun.Lease.Completions, b.Completions)
		return begun.Lease, 0, nil
	}
	f := begun.Finished
	log.Info("nothing to do: the run of this task is over", "key", b.Key, "run", f.Run, "state", f.State)
	if f.State != "succeeded" {
		return nil, 1, nil
	}
	return nil, 0, nil
}

// takenElsewhere reports whether a run could not be begun because it is under way: then waiting helps, unlike where its
// key stands for something else.
func takenElsewhere(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && (p.Code() == api.CodeFenced || p.Code() == api.CodeConflict && p.RetryAfter > 0)
}

// asked calls until the server answers, it has been away for too long, or ctx ends.
func asked[T any](ctx context.Context, call func(context.Context) (*T, error)) (*T, error) {
	patience, cancel := context.WithTimeoutCause(ctx, askPatience, fmt.Errorf("gave up after %s", askPatience))
	defer cancel()
	var b backoff
	for {
		try, end := context.WithTimeoutCause(context.WithoutCancel(ctx), askTime, fmt.Errorf("%w: no answer within %s", api.ErrUnreachable, askTime))
		out, err := call(try)
		end()
		var p *api.Problem
		if err == nil || !errors.Is(err, api.ErrUnreachable) && (!errors.As(err, &p) || !passing(p)) {
			return out, err
		}
		b.failed(time.Now(), err)
		t := time.NewTimer(time.Until(b.until))
		select {
		case <-t.C:
		case <-patience.Done():
			t.Stop()
			return nil, fmt.Errorf("%w (%w)", err, context.Cause(patience))
		}
	}
}

// tellIndex puts the run's place in a job where handlers look for it. In an execution that carries several runs the
// platform's own variables count tasks, not completions.
func (p *process) tellIndex(l *api.Lease) error {
	set := func(name string, n *int) error {
		if n == nil || p.setenv == nil {
			return nil
		}
		return p.setenv(name, strconv.Itoa(*n))
	}
	return errors.Join(set(EnvIndex, l.Index), set(EnvTaskIndex, l.Index), set(EnvTaskCount, l.Completions))
}

// single is the source of one attempt.
type single struct {
	lease  api.Lease
	done   chan struct{} // closed when the rest is known
	result Result
	err    error
}

// Feed implements Source.
func (s *single) Feed(_ context.Context, _ int, execute Execute) error {
	defer close(s.done)
	s.result, s.err = execute(s.lease)
	return nil
}

// code is how the process ends once its host has: 0 unless the run failed here. Who lost the attempt, or handed it back, has not failed:
// the platform must not start it again, for the control plane does.
func (s *single) code(log *slog.Logger) int {
	<-s.done
	attempt := slog.String("attempt", s.lease.Attempt)
	switch {
	case errors.Is(s.err, ErrFenced):
		log.Info("the attempt was given to somebody else", attempt)
		return 0
	case s.err != nil:
		log.Error("the server did not take the result", attempt, "error", s.err)
		return 1
	case s.result.Release != "":
		log.Info("handed back", attempt, "reason", s.result.Release)
		return 0
	case s.result.Err != nil:
		log.Error("failed", attempt, "class", cmp.Or(s.result.Err.Class, ClassUser), "code", s.result.Err.Code)
		return 1
	}
	return 0
}
