package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/runtime/stdio"
)

// execFlags are what exec is asked for. Each has a variable of the environment for use as a container's entrypoint.
type execFlags struct {
	agents         []string
	slots          int
	target, worker string
	shape          string
	grace          time.Duration
}

func (a *app) execCommand() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec --agent NAME -- COMMAND [ARGUMENT…]",
		Short: "Host any program as an agent of a server: one process per run, by the stdio protocol",
		Long: "exec pulls runs of an agent and starts COMMAND for each: the run is one JSON document on standard input, its\n" +
			"output what the program prints. SIGTERM drains: no new runs, what runs may go on for the grace, and what is left\n" +
			"is handed back without spending an attempt. No process outlives exec, however it ends.",
		Example: "  errand exec --agent summarize -- python3 agent.py\n" +
			"  errand exec --server https://errand.example.com --agent summarize --slots 4 -- ./agent",
		Args: args(1, -1, "a command after --"),
		RunE: func(cmd *cobra.Command, command []string) error {
			if err := a.execDefaults(cmd, &f); err != nil {
				return err
			}
			return a.host(cmd.Context(), command, &f)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command is the command's
	flags.StringSliceVar(&f.agents, "agent", nil, "agents to serve, separated by commas ("+agent.EnvAgent+")")
	flags.IntVar(&f.slots, "slots", 1, "programs at a time ("+agent.EnvSlots+")")
	flags.StringVar(&f.target, "target", "", "target that this worker belongs to; the server chooses when empty ("+agent.EnvTarget+")")
	flags.StringVar(&f.worker, "worker", "", "name of this worker, unique while it lives; one is made when empty ("+agent.EnvWorker+")")
	flags.StringVar(&f.shape, "shape", string(fleet.Pool), "how runs come; pool: exec pulls them")
	flags.DurationVar(&f.grace, "grace", agent.DefaultGrace, "how long programs may go on after SIGTERM ("+agent.EnvGrace+")")
	return cmd
}

// execDefaults fills from the environment what no flag gave, and checks all of it.
func (a *app) execDefaults(cmd *cobra.Command, f *execFlags) error {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	var err error
	if text := a.env(agent.EnvSlots); text != "" && !given("slots") {
		if f.slots, err = strconv.Atoi(text); err != nil {
			return usagef("%s=%q: want a number", agent.EnvSlots, render.Clean(text))
		}
	}
	if text := a.env(agent.EnvGrace); text != "" && !given("grace") {
		if f.grace, err = time.ParseDuration(text); err != nil {
			return usagef("%s=%q: want a time such as 8s", agent.EnvGrace, render.Clean(text))
		}
	}
	if !given("agent") {
		for name := range strings.SplitSeq(a.env(agent.EnvAgent), ",") {
			if name = strings.TrimSpace(name); name != "" {
				f.agents = append(f.agents, name)
			}
		}
	}
	f.target = firstOf(f.target, a.env(agent.EnvTarget))
	f.worker = firstOf(f.worker, a.env(agent.EnvWorker))
	a.server = firstOf(a.server, a.env("ERRAND_SERVER"), a.env(agent.EnvURL))
	a.token = firstOf(a.token, a.env(agent.EnvWorkerToken))
	switch {
	case len(f.agents) == 0:
		return usagef("exec: which agent? want --agent NAME or %s", agent.EnvAgent)
	case f.slots < 1 || f.slots > api.MaxSlots:
		return usagef("--slots %d: want 1 to %d", f.slots, api.MaxSlots)
	case f.grace < 0 || f.grace > time.Hour:
		return usagef("--grace %s: want 0s to 1h", f.grace)
	case f.shape != string(fleet.Pool):
		return usagef("--shape %q: exec hosts shape pool; a local server starts service, instance and job by itself", render.Clean(f.shape))
	}
	return nil
}

// host serves runs until the context ends or the server asks to drain, and then drains.
func (a *app) host(ctx context.Context, command []string, f *execFlags) error {
	// 1. What every run needs must be there before the first one is taken.
	if _, err := exec.LookPath(command[0]); err != nil {
		return fmt.Errorf("exec %s: %s; is the program installed, and its name right?", render.Clean(command[0]), cause(err))
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("exec %s: %w", command[0], err)
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(a.err, nil))
	programs, err := process.NewHost(process.Options{Warden: true, Logger: log})
	if err != nil {
		return fmt.Errorf("exec %s: %w", command[0], err)
	}
	defer func() {
		if err := programs.Close(); err != nil {
			log.Warn("programs may be left", "error", err)
		}
	}()
	// 2. Serve.
	e := &executor{
		programs: programs, url: client.URL(),
		run: fleet.Run{Command: command, Dir: dir, Env: ownEnvironment(os.Environ()), Protocol: fleet.Stdio},
	}
	worker, err := agent.NewHost(client, agent.HostOptions{
		Worker: f.worker, Target: f.target, Agents: f.agents, Slots: f.slots, Handle: e.handle, Grace: noneIfZero(f.grace), Log: log,
	})
	if err != nil {
		return fmt.Errorf("exec %s: %w", command[0], err)
	}
	log.Info("waiting for runs", "server", client.URL(), "worker", worker.Worker(), "agents", strings.Join(f.agents, ","), "slots", f.slots)
	return worker.Run(ctx)
}

// noneIfZero is a grace as HostOptions takes it, where 0 means the default.
func noneIfZero(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// ownEnvironment is what the program inherits: everything but what tells exec itself, its token before all, what to do.
func ownEnvironment(environ []string) map[string]string {
	vars := make(map[string]string)
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok && name != "" && !strings.HasPrefix(name, "ERRAND_") {
			vars[name] = value
		}
	}
	return vars
}

// executor runs attempts as processes.
type executor struct {
	programs *process.Host
	url      string
	run      fleet.Run
}

// Graces between SIGTERM and SIGKILL. One for a process that drains is shorter than the time the worker then waits
// before it hands the run back: the program must be gone by then.
const (
	stopGrace  = 10 * time.Second
	drainGrace = 700 * time.Millisecond
)

// handle executes one attempt.
func (e *executor) handle(ctx context.Context, a *agent.Attempt) agent.Result {
	// 1. Start the program.
	x, err := stdio.Start(e.assignment(a), stdio.Options{
		Host: e.programs, URL: e.url, Grace: stopGrace,
		Logs: func(lines []runtime.LogLine) {
			for _, l := range lines {
				a.Log(l.Stream, l.Text)
			}
		},
	})
	if err != nil {
		return agent.Result{Err: &api.AgentError{Class: agent.ClassInfrastructure, Code: string(run.StartFailed), Message: err.Error()}}
	}
	// 2. Wait for its end, and bring it about when the attempt is over for another reason.
	select {
	case <-x.Done():
	case <-ctx.Done():
		x.Stop(stopReason(context.Cause(ctx)))
		<-x.Done()
	}
	return result(x.Report())
}

func (e *executor) assignment(a *agent.Attempt) runtime.Assignment {
	kind := &fleet.Agent{Run: e.run}
	kind.Meta.Name = a.Agent
	out := runtime.Assignment{
		Run: a.Run, N: a.N, Agent: kind, Tenant: a.Tenant, Unit: a.Key, Mode: a.Mode, Input: a.Input, Token: a.Token,
		Labels: a.Labels, Trace: a.Traceparent, Session: a.Session, State: a.State, Index: a.Index, Completions: a.Completions,
	}
	if !a.Deadline.IsZero() {
		out.Deadline = run.At(a.Deadline.Time)
	}
	for _, s := range a.Steps {
		step := runtime.Step{Name: s.Name, Seq: s.Seq, Result: s.Result}
		if s.Error != nil {
			step.Error, _ = json.Marshal(s.Error) // of plain fields: cannot fail
		}
		out.Steps = append(out.Steps, step)
	}
	return out
}

// stopReason says why an attempt is stopped, from the cause of its context, and how long the program gets.
func stopReason(cause error) (run.Reason, time.Duration) {
	var canceled *agent.CanceledError
	switch {
	case errors.As(cause, &canceled) && canceled.Reason != "":
		return run.Reason(canceled.Reason), stopGrace
	case errors.Is(cause, context.DeadlineExceeded):
		return run.AttemptTimeout, stopGrace
	case errors.Is(cause, agent.ErrDraining):
		return run.CanceledByRequest, drainGrace
	}
	return run.CanceledByRequest, stopGrace
}

// result is a report as the worker protocol's host takes it.
func result(r runtime.Report) agent.Result {
	out := agent.Result{Output: r.Output, Score: r.Score, Session: r.Session}
	if r.Usage != nil {
		out.Usage = &api.Usage{InputTokens: r.Usage.InputTokens, OutputTokens: r.Usage.OutputTokens, USD: r.Usage.USD}
	}
	switch r.Type {
	case runtime.Parked:
		out.Park = &api.Park{On: string(r.Park.On), Step: r.Park.Step, Name: r.Park.Name}
		if r.Park.Until != 0 {
			out.Park.Until = &api.Time{Time: r.Park.Until.Time()}
		}
	case runtime.Failed:
		out.Err = &api.AgentError{Class: string(r.Class), Code: r.Code, Message: r.Message}
		if r.Final {
			final := false
			out.Err.Retryable = &final
		}
		if r.RetryIn > 0 {
			out.Err.RetryAfter = (*api.Duration)(&r.RetryIn)
		}
	}
	return out
}
