package cli

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/host"
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
	client, err := a.client()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(a.err, nil))
	program, err := host.NewProgram(command, client.URL(), log)
	if err != nil {
		return fmt.Errorf("exec %s: %s; is the program installed, and its name right?", render.Clean(command[0]), cause(err))
	}
	defer program.Close()
	// 2. Serve.
	worker, err := agent.NewHost(client, agent.HostOptions{
		Worker: f.worker, Target: f.target, Agents: f.agents, Slots: f.slots, Handle: program.Handle, Grace: host.NoneIfZero(f.grace), Log: log,
	})
	if err != nil {
		return fmt.Errorf("exec %s: %w", command[0], err)
	}
	log.Info("waiting for runs", "server", client.URL(), "worker", worker.Worker(), "agents", strings.Join(f.agents, ","), "slots", f.slots)
	return worker.Run(ctx)
}
