// Package cli is the errand command: it talks to a server through the typed client, hosts programs as agents, and runs a
// whole control plane on a laptop.
//
// Data goes to standard output and everything else to standard error. What a command ends with is one of the Exit
// codes. Each group of commands has its file; how values look is the business of the render package.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/version"
)

// DefaultServer is where commands look for a server unless told otherwise; it is where dev listens.
const DefaultServer = "http://127.0.0.1:8080"

// app is one call of the command.
type app struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) string
	now      func() time.Time

	server, token, tenant, output string

	format render.Format
}

// Main runs the command with the process's own streams and signals, and returns the exit code.
func Main(args []string) int {
	ctx, stop := interruptible(context.Background())
	defer stop()
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv, now: time.Now}
	return a.run(ctx, args)
}

// interruptible ends the context with errInterrupted at the first SIGINT, SIGTERM or SIGHUP. The second one kills the process,
// as if nothing had been caught.
func interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // the terminal is closed, and nohup was not asked to make nothing of it
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		select {
		case <-signals:
			signal.Stop(signals)
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// run executes one command line.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	// A reader that has seen enough, such as head, is no failure of ours.
	if errors.Is(err, syscall.EPIPE) {
		return ExitOK
	}
	code := exitCode(ctx, err)
	if err != nil && code != ExitInterrupted {
		a.report(err)
	}
	return code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "errand",
		Short: "Run each execution of an AI agent as a managed workload",
		Long: "errand decides when and where each execution of an agent runs and what happens when it fails.\n\n" +
			"Start with \"errand dev -f FOLDER\": a whole control plane on this machine.",
		SilenceErrors: true,

		SuggestionsMinimumDistance: 2,

		SilenceUsage: true,
		Args:         cobra.ArbitraryArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			var err error
			if a.format, err = render.ParseFormat(a.output); err != nil {
				return usagef("-o: %v", err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			hint := `see "errand --help"`
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = "did you mean " + strings.Join(near, " or ") + "?"
			}
			return usagef("no command %q; %s", render.Clean(args[0]), hint)
		},
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%s: %v; see \"%s --help\"", cmd.CommandPath(), err, cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.server, "server", "", "address of the server (ERRAND_SERVER; "+DefaultServer+")")
	flags.StringVar(&a.token, "token", "", "bearer token (ERRAND_TOKEN)")
	flags.StringVar(&a.tenant, "tenant", "", "tenant to act for (ERRAND_TENANT)")
	flags.StringVarP(&a.output, "output", "o", string(render.Table), "table, wide, json, yaml or name")
	_ = root.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"table", "wide", "json", "yaml", "name"}, cobra.ShellCompDirectiveNoFileComp
	})
	groups := []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run a fleet:", []*cobra.Command{a.devCommand(), a.applyCommand(), a.runCommand(), a.execCommand()}},
		{"See:", []*cobra.Command{
			a.getCommand(), a.describeCommand(), a.runsCommand(), a.logsCommand(), a.eventsCommand(), a.treeCommand(),
			a.explainCommand(), a.gatesCommand(), a.receiptsCommand(), a.auditCommand(), a.deadLettersCommand(), a.stateCommand(),
		}},
		{"Act:", []*cobra.Command{
			a.cancelCommand(), a.retryCommand(), a.suspendCommand(), a.resumeCommand(), a.signalCommand(),
			a.approveCommand(), a.rejectCommand(), a.scoreCommand(), a.resolveCommand(), a.replayCommand(), a.deleteCommand(),
		}},
		{"Check:", []*cobra.Command{a.simulateCommand(), a.doctorCommand(), a.benchCommand(), a.versionCommand()}},
	}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(a.benchProcessCommand(), a.devProcessCommand())
	return root
}

// args checks the number of arguments; most below 0 is no limit. names describes them, as in the usage line.
func args(least, most int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		switch {
		case len(given) < least:
			return usagef("%s: want %s; see \"%s --help\"", cmd.CommandPath(), names, cmd.CommandPath())
		case most >= 0 && len(given) > most:
			return usagef("%s: unexpected %q; want %s", cmd.CommandPath(), render.Clean(given[most]), orNothing(names))
		}
		return nil
	}
}

// saysSomething refuses flags that are given and empty. A script whose variable is unset would otherwise lose what they are
// for, as a key is for being asked twice.
func saysSomething(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return usagef("--%s is empty; give it a value or leave it out", name)
		}
	}
	return nil
}

func orNothing(names string) string {
	if names == "" {
		return "no arguments"
	}
	return names
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func (a *app) serverURL() string { return firstOf(a.server, a.env("ERRAND_SERVER"), DefaultServer) }

// tenantName is the tenant asked for, "" for the server's own default.
func (a *app) tenantName() string { return firstOf(a.tenant, a.env("ERRAND_TENANT")) }

// client talks to the server. It gives up on one that is away within half a second: who waits longer does so by itself.
func (a *app) client() (*api.Client, error) { return a.clientFor(person{}) }

// clientFor is a client that says who asks.
func (a *app) clientFor(who person) (*api.Client, error) {
	if len(who.groups) > 0 && who.as == "" {
		return nil, usagef("--groups: of whom? say it with --as NAME")
	}
	c, err := api.NewClient(api.Options{
		As: who.as, Groups: who.groups,
		URL:       a.serverURL(),
		Token:     firstOf(a.token, a.env("ERRAND_TOKEN")),
		Tenant:    a.tenantName(),
		UserAgent: "errand/" + version.Get().Version,
		Retries:   2,
	})
	if err != nil {
		return nil, usagef("--server: %v", err)
	}
	return c, nil
}

// printer writes data in the format asked for.
func (a *app) printer() render.Printer { return render.Printer{W: a.out, Format: a.format} }

// say tells people something that is not data.
func (a *app) say(format string, args ...any) { fmt.Fprintf(a.err, format+"\n", args...) }

// within bounds a context by the --timeout of a command, where 0 is no bound.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
