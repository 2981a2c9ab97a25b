package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/board"
	"github.com/errand-run/errand/shared/cli/internal/inputs"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/config"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/node"
)

const (
	defaultAddr = "127.0.0.1:8080"
	// defaultData is next to what is being developed: a fleet and its runs belong together.
	defaultData = ".errand/dev.db"
	memoryData  = ":memory:"
	// runsFile in a folder of manifests is submitted once.
	runsFile = "runs.jsonl"
	// devGrace is for attempts when dev is stopped.
	devGrace = 10 * time.Second
)

// devFlags are what dev is asked for.
type devFlags struct {
	paths   []string
	addr    string
	data    string
	runs    string
	once    bool
	twin    bool
	as      string
	verbose bool
}

func (a *app) devCommand() *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:   "dev [-f FILE|FOLDER…]",
		Short: "Run a whole control plane and its agents on this machine",
		Long: "dev serves the API on a loopback address, starts agents as local processes, applies the manifests, submits the\n" +
			"runs of a folder's " + runsFile + " once, and shows what happens. What is in the data file outlives dev, however it ends.\n\n" +
			"With --twin the same fleet takes the way of the cloud: several control processes over Google's own emulators of\n" +
			"Firestore and Pub/Sub, and a container with an identity of its own for each agent, on a stand-in of Cloud Run. Java\n" +
			"and the two emulators have to be there; nothing outlives dev.",
		Example: "  errand dev -f examples/invoices\n  errand dev -f fleet/ --once --data :memory:\n  errand dev --twin -f examples/invoices",
		Args:    args(0, -1, ""),
		RunE: func(cmd *cobra.Command, words []string) error {
			f.paths = append(f.paths, words...) // of -f fleet/*.yaml
			if err := checkTwin(cmd, &f); err != nil {
				return err
			}
			return a.dev(cmd.Context(), &f)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.paths, "filename", "f", nil, "file or folder of manifests; may be repeated")
	flags.StringVar(&f.addr, "addr", defaultAddr, "loopback address to listen on; port 0 picks a free one")
	flags.StringVar(&f.data, "data", defaultData, "file that keeps everything, or "+memoryData)
	flags.StringVar(&f.runs, "runs", "", "file of runs to submit once, instead of the folder's "+runsFile)
	flags.BoolVar(&f.once, "once", false, "end when nothing moves without a person: 0, or 6 if a run failed")
	flags.BoolVar(&f.twin, "twin", false, "run everything as in the cloud, on this machine")
	flags.StringVar(&f.as, "as", "", "who everybody is, in the history (local)")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "tell what the control plane does")
	return cmd
}

// dev runs until it is interrupted or, with --once, until nothing moves.
func (a *app) dev(ctx context.Context, f *devFlags) error {
	// 1. What is asked for, checked before anything starts.
	if err := checkLoopback(f.addr); err != nil {
		return err
	}
	set := new(manifest.Set)
	var err error
	if len(f.paths) > 0 {
		if set, err = manifest.Load(f.paths); err != nil {
			return err
		}
	}
	runs, err := readAllRuns(f)
	if err != nil {
		return err
	}
	retain, err := config.ParseRetain(a.env("ERRAND_RETAIN_MAX"))
	if err != nil {
		return usagef("ERRAND_RETAIN_MAX=%.100q: %v", a.env("ERRAND_RETAIN_MAX"), err)
	}
	// 2. The port, then the data.
	listener, err := listen(ctx, f.addr)
	if err != nil {
		return err
	}
	if f.twin {
		return a.devTwin(ctx, f, set, runs, listener)
	}
	place, err := dataPlace(f.data)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	db, err := place.Open(ctx)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	// 3. Everything else.
	d := a.newDev(f, db.Describe())
	options := node.Options{
		Store: db, Listener: listener, As: f.as, Local: true, Output: d.agentOutput, Logger: d.log, RetainMax: retain,
	}
	if !place.Memory {
		options.Ledger = place.File + ".processes"
	}
	n, err := node.Start(ctx, options)
	if err != nil {
		return err
	}
	a.server = n.URL()
	result := d.serve(ctx, n, n.Plane(), set, runs)
	// 4. The end.
	if ctx.Err() != nil {
		d.note("stopping: attempts get %s and are handed back; interrupt again to end at once", devGrace)
	}
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), devGrace+10*time.Second)
	defer cancel()
	if err := n.Close(closeCtx, devGrace); err != nil && result == nil {
		return fmt.Errorf("stop: %w", err)
	}
	return result
}

// checkLoopback refuses addresses that others can reach: dev knows no login.
func checkLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return usagef("--addr %q: want HOST:PORT, such as %s", render.Clean(addr), defaultAddr)
	}
	if !isLoopback(host) {
		return usagef("--addr %q: dev has no login and serves this machine alone; want a loopback address such as %s",
			render.Clean(addr), defaultAddr)
	}
	return nil
}

func listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: the port is in use; is another \"errand dev\" running? --addr 127.0.0.1:0 picks a free one", addr)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %s", addr, cause(err))
	}
	return l, nil
}

// dataPlace names the store, and keeps the default folder out of version control.
func dataPlace(data string) (config.StorePlace, error) {
	if data == memoryData {
		return config.StorePlace{Memory: true}, nil
	}
	if data == defaultData {
		dir := filepath.Dir(data)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return config.StorePlace{}, fmt.Errorf("make the folder of the data: %w", err)
		}
		ignore := filepath.Join(dir, ".gitignore")
		if err := os.WriteFile(ignore, []byte("*\n"), 0o600); err != nil {
			return config.StorePlace{}, fmt.Errorf("make the folder of the data: %w", err)
		}
	}
	return config.StorePlace{File: data}, nil
}

// readAllRuns reads the runs to submit: of the file named, or of every folder of manifests.
func readAllRuns(f *devFlags) ([]inputs.Run, error) {
	files := []string{f.runs}
	if f.runs == "" {
		files = nil
		for _, path := range f.paths {
			file := filepath.Join(path, runsFile)
			if _, err := os.Stat(file); isFolder(path) && err == nil {
				files = append(files, file)
			}
		}
	}
	var runs []inputs.Run
	var faults []error
	for _, file := range files {
		more, err := inputs.ReadRuns(file)
		runs, faults = append(runs, more...), append(faults, err)
	}
	return runs, errors.Join(faults...)
}

// slotsPerCore is the capacity of the target that dev makes where none is declared.
const slotsPerCore = 4

// localTarget is that target.
func localTarget() manifest.Object {
	t := &fleet.Target{
		Meta: fleet.Meta{Name: "local"}, Runtime: fleet.RuntimeLocal,
		Capacity: fleet.Capacity{Runs: slotsPerCore * runtime.NumCPU()},
	}
	t.SetDefaults()
	return manifest.Object{Object: t}
}

// develop is one dev under way.
type develop struct {
	*app
	f     *devFlags
	store string // as the store describes itself
	log   *slog.Logger

	screen *board.Screen // nil where standard output is no terminal
	lines  *board.Lines  // nil where it is
	chatty *board.Limit  // of what agents write
	follow *following
}

func (a *app) newDev(f *devFlags, store string) *develop {
	d := &develop{app: a, f: f, store: store, chatty: board.NewLimit(agentLines)}
	level := slog.LevelWarn
	if f.verbose {
		level = slog.LevelInfo
	}
	// Data are changes and the summary; where they are for programs, only the summary.
	switch _, _, terminal := render.Terminal(a.out); {
	case terminal && a.format.Human():
		d.screen = board.NewScreen(a.out)
	case a.format.Human():
		d.lines = board.NewLines(a.out, changeLines)
	default:
		d.lines = board.NewLines(a.err, changeLines)
	}
	d.log = slog.New(slog.NewTextHandler(noteWriter{d}, &slog.HandlerOptions{Level: level}))
	return d
}

// Lines a second that are shown of changes, and of what agents write.
const (
	changeLines = 40
	agentLines  = 100
)

// note tells people something that is not data, above the table if there is one.
func (d *develop) note(format string, args ...any) { d.above(fmt.Sprintf(format, args...)) }

func (d *develop) above(line string) {
	if d.screen != nil {
		d.screen.Above(d.err, line)
		return
	}
	_, _ = fmt.Fprintln(d.err, line)
}

// noteWriter lets the log pass above the table. Each call is one record.
type noteWriter struct{ d *develop }

func (w noteWriter) Write(p []byte) (int, error) {
	w.d.above(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

var _ io.Writer = noteWriter{}

// agentOutput shows what processes write that serve many runs, and what builds write.
func (d *develop) agentOutput(agent, process, _, text string) {
	if dropped, ok := d.chatty.Take(d.now()); ok {
		if dropped > 0 {
			d.note("… %d more lines of agents", dropped)
		}
		d.note("%s", render.Clean(fmt.Sprintf("%s | %s", firstOf(process, agent), text)))
	}
}

// served is what dev waits on.
type served interface {
	URL() string
	Failed() <-chan struct{}
	Err() error
}

// serve applies, submits and shows until the context ends, the node fails or, with --once, nothing moves.
func (d *develop) serve(ctx context.Context, n served, plane watched, set *manifest.Set, runs []inputs.Run) error {
	client, err := d.client()
	if err != nil {
		return err
	}
	d.follow = newFollowing(d, plane)
	if err := d.follow.begin(ctx); err != nil {
		return err
	}
	defer d.follow.end()
	if !d.f.twin { // the box has declared it
		if err := d.declare(ctx, client, set); err != nil {
			return err
		}
	}
	d.announce(n.URL(), len(set.Objects))
	submitCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	submitted := make(chan submission, 1)
	go func() { submitted <- d.submitRuns(submitCtx, client, runs) }()
	return d.watch(ctx, n, client, submitted)
}

func (d *develop) announce(url string, objects int) {
	line := fmt.Sprintf("serving %s  %s  %d objects applied", url, d.store, objects)
	if d.screen != nil {
		return // the table's head says it
	}
	w := d.out
	if !d.format.Human() {
		w = d.err
	}
	_, _ = fmt.Fprintln(w, line)
}

// declare applies the manifests, with a target if there is none at all.
func (d *develop) declare(ctx context.Context, c *api.Client, set *manifest.Set) error {
	all := &manifest.Set{Objects: slices.Clone(set.Objects)}
	isTarget := func(o manifest.Object) bool { return o.Kind() == fleet.KindTarget }
	if !slices.ContainsFunc(all.Objects, isTarget) {
		existing, err := c.ListObjects(ctx, api.Targets, api.Page{Limit: 1})
		if err != nil {
			return fmt.Errorf("look for targets: %w", err)
		}
		if len(existing.Items) == 0 {
			all.Objects = append(all.Objects, localTarget())
			d.note("no target is declared: made target local, for %d runs at a time", slotsPerCore*runtime.NumCPU())
		}
	}
	if len(all.Objects) == 0 {
		return nil
	}
	body, err := encodeManifests(all)
	if err != nil {
		return err
	}
	result, err := c.Apply(ctx, body, api.ApplyOptions{})
	if err != nil {
		return fmt.Errorf("apply %s: %w", strings.Join(d.f.paths, ", "), placed(err, all))
	}
	d.warnings(result)
	return nil
}

func (d *develop) warnings(result *api.ApplyResult) {
	for _, r := range result.Results {
		for _, w := range r.Warnings {
			d.note("warning: %s %s: %s", r.Kind, render.Clean(r.Name), render.Clean(w))
		}
	}
}
