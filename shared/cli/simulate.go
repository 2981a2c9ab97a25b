package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/arrivals"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/cli/internal/report"
	"github.com/errand-run/errand/shared/config"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/run"
)

// simulateFlags are what simulate is asked for.
type simulateFlags struct {
	paths        []string
	arrivals     string
	against      string
	page         string
	limits       []string
	seed         uint64
	window       time.Duration
	slots        int
	since, until string

	told bool // that a target was made
}

// defaultSlots is the capacity of the target that simulate makes where none is declared: that of dev on two cores.
const defaultSlots = 2 * slotsPerCore

// storePrefix names a store instead of a file of arrivals.
const storePrefix = "store:"

func (a *app) simulateCommand() *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate -f FILE|FOLDER… --arrivals FILE|store:FILE",
		Short: "Play arrivals against a fleet in simulated time: who would wait, for how long and why",
		Long: "simulate decides about each run with the product's own queue, admission, placement and retries, in simulated time.\n" +
			"It needs no server, starts nothing, and gives the same result for the same seed.\n\n" +
			"Arrivals come from a file of kind Arrivals, from recorded runs (one JSON object a line), or from the store of a\n" +
			"server that is stopped. With --against, a second fleet is given the same arrivals; a file that declares no agent\n" +
			"takes the place of objects of the first fleet, so that it needs to hold no more than what differs.\n\n" +
			"With --limit the exit code is 1 when a limit of the first fleet is broken. A limit is [TENANT:]FIGURE=MOST;\n" +
			"without a tenant it is for each of them. Figures: p50 p95 p99 mean max (of the wait for the first start),\n" +
			"starved, unschedulable, shed, failed, waiting, usd.",
		Example: "  errand simulate -f fleet/ --arrivals month-end.yaml\n" +
			"  errand simulate -f fleet/ --arrivals month-end.yaml --against quotas.yaml --html report.html\n" +
			"  errand simulate -f fleet/ --arrivals store:.errand/dev.db --limit p95=30s --limit shed=1%",
		Args: args(0, -1, ""),
		RunE: func(cmd *cobra.Command, words []string) error {
			f.paths = append(f.paths, words...) // of -f fleet/*.yaml
			return a.simulate(cmd.Context(), &f)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.paths, "filename", "f", nil, "file or folder of manifests; may be repeated")
	flags.StringVar(&f.arrivals, "arrivals", "", "file of arrivals, or "+storePrefix+"FILE for the runs of a store")
	flags.StringVar(&f.against, "against", "", "file or folder of a second fleet, or of what differs in it")
	flags.StringVar(&f.page, "html", "", "write a page with charts to this file")
	flags.StringArrayVar(&f.limits, "limit", nil, "fail when a figure is higher, such as p95=30s or acme:shed=1%; may be repeated")
	flags.Uint64Var(&f.seed, "seed", 1, "of everything that is drawn")
	flags.DurationVar(&f.window, "for", 0, "how long to play; as the arrivals say unless given")
	flags.IntVar(&f.slots, "slots", defaultSlots, "slots of the local target that is made where no target is declared")
	flags.StringVar(&f.since, "since", "", "of a store, runs created since: a time (RFC 3339) or how long ago (90m)")
	flags.StringVar(&f.until, "until", "", "of a store, runs created before: likewise")
	return cmd
}

// simulate plays one fleet or two and reports.
func (a *app) simulate(ctx context.Context, f *simulateFlags) error {
	// 1. What is asked for.
	limits, err := checkSimulate(f)
	if err != nil {
		return err
	}
	if f.page != "" {
		if err := checkPage(f); err != nil {
			return err
		}
	}
	// 2. The fleets.
	set, err := a.loadManifests(f.paths)
	if err != nil {
		return err
	}
	first := forecast.Side{Name: strings.Join(f.paths, ", "), Objects: a.complete(set, f)}
	var second *forecast.Side
	if f.against != "" {
		if second, err = a.otherFleet(set, f); err != nil {
			return err
		}
	}
	// 3. The arrivals.
	come, err := a.readArrivals(ctx, f)
	if err != nil {
		return err
	}
	if f.window > 0 {
		come.Window = f.window
	}
	// 4. The forecasts, side by side in name only: one after the other.
	out := report.Report{Arrivals: f.arrivals, Breaches: []forecast.Breach{}}
	if first.Result, err = a.play(ctx, "A", &first, come, f); err != nil {
		return err
	}
	out.A = report.Side{Name: first.Name, Findings: forecast.Explain(first), Result: first.Result}
	if second != nil {
		if second.Result, err = a.play(ctx, "B", second, come, f); err != nil {
			return err
		}
		out.B = &report.Side{Name: second.Name, Findings: forecast.Explain(*second), Result: second.Result}
		comparison, err := forecast.Compare(first, *second)
		if err != nil {
			return err
		}
		out.Comparison = &comparison
	}
	breaches, err := forecast.Check(first.Result, limits)
	if err != nil {
		return usagef("--limit: %v", err)
	}
	out.Breaches = append(out.Breaches, breaches...)
	return a.tell(&out, f)
}

// tell prints the report, writes its page, and ends with the limits that are broken.
func (a *app) tell(out *report.Report, f *simulateFlags) error {
	view := render.View[*report.Report]{Name: func(*report.Report) string { return "forecast" }}
	var err error
	if a.format.Human() {
		err = out.Text(a.printer())
	} else {
		err = render.One(a.printer(), view, out)
	}
	if err != nil {
		return err
	}
	if f.page != "" {
		if err := writePage(f.page, out); err != nil {
			return err
		}
		a.say("wrote %s", f.page)
	}
	if len(out.Breaches) == 0 {
		return nil
	}
	for _, b := range out.Breaches {
		a.say("%s", render.Clean(b.String()))
	}
	return ended(ExitError)
}

// checkPage refuses a page that would take the place of something else than a page: of what is no regular file, or of
// what the forecast is made from.
func checkPage(f *simulateFlags) error {
	// 1. What is there.
	page, err := os.Lstat(f.page)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--html %s: %s", f.page, cause(err))
	case !page.Mode().IsRegular():
		return fmt.Errorf("--html %s: it exists and is no regular file; give another path", f.page)
	}
	// 2. What is read. What cannot be is told of by those who read it.
	come, stored := strings.CutPrefix(f.arrivals, storePrefix)
	inputs := []string{come}
	if stored {
		inputs = append(inputs, come+"-wal", come+"-shm")
	}
	for _, path := range append(slices.Clone(f.paths), f.against) {
		files, _ := manifest.Files(path)
		inputs = append(inputs, files...)
	}
	for _, name := range inputs {
		if input, err := os.Stat(name); err == nil && os.SameFile(page, input) {
			return fmt.Errorf("--html %s: it is %s, which the forecast reads; give another path", f.page, name)
		}
	}
	return nil
}

// writePage writes the page to a file, whole or not at all.
func writePage(name string, out *report.Report) error {
	temporary := fmt.Sprintf("%s.%d.part", name, os.Getpid())
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	err = errors.Join(out.HTML(file), file.Close())
	if err == nil {
		err = os.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the page %s: %w", name, err), os.Remove(temporary))
	}
	return nil
}

func checkSimulate(f *simulateFlags) ([]forecast.Limit, error) {
	switch {
	case len(f.paths) == 0:
		return nil, usagef("simulate: no fleet given; want -f FILE or -f FOLDER")
	case f.arrivals == "":
		return nil, usagef("simulate: no arrivals given; want --arrivals FILE or --arrivals " + storePrefix + "FILE")
	case f.window < 0 || f.window > forecast.MaxWindow || f.window > 0 && f.window < time.Second:
		return nil, usagef("--for %s: want 1s to %s", f.window, forecast.MaxWindow)
	case f.slots < 1 || f.slots > fleet.MaxRuns:
		return nil, usagef("--slots %d: want 1 to %d", f.slots, fleet.MaxRuns)
	case f.against == "-":
		return nil, usagef("--against -: standard input cannot be a second fleet; want a file or folder")
	case (f.since != "" || f.until != "") && !strings.HasPrefix(f.arrivals, storePrefix):
		return nil, usagef("--since, --until: only for --arrivals %sFILE", storePrefix)
	}
	var limits []forecast.Limit
	for _, text := range f.limits {
		l, err := forecast.ParseLimit(text)
		if err != nil {
			return nil, usagef("--limit %v", err)
		}
		limits = append(limits, l)
	}
	return limits, nil
}

// complete is the objects of a fleet, with a target if it has none at all.
func (a *app) complete(set *manifest.Set, f *simulateFlags) []fleet.Object {
	objects := make([]fleet.Object, 0, len(set.Objects)+1)
	targets := false
	for _, o := range set.Objects {
		objects = append(objects, o.Object)
		targets = targets || o.Kind() == fleet.KindTarget
	}
	if !targets {
		t := &fleet.Target{Meta: fleet.Meta{Name: "local"}, Runtime: fleet.RuntimeLocal, Capacity: fleet.Capacity{Runs: f.slots}}
		t.SetDefaults()
		objects = append(objects, t)
		if !f.told {
			a.say("no target is declared: made target local, for %d runs at a time (--slots)", f.slots)
		}
		f.told = true
	}
	return objects
}

// otherFleet is the second fleet. A fleet without agents could run nothing, so what declares none is taken for the part
// in which the second differs from the first.
func (a *app) otherFleet(set *manifest.Set, f *simulateFlags) (*forecast.Side, error) {
	other, err := manifest.Load([]string{f.against})
	if err != nil {
		return nil, err
	}
	isAgent := func(o manifest.Object) bool { return o.Kind() == fleet.KindAgent }
	if slices.ContainsFunc(other.Objects, isAgent) {
		return &forecast.Side{Name: f.against, Objects: a.complete(other, f)}, nil
	}
	if len(other.Objects) == 0 {
		return nil, fmt.Errorf("--against %s: it declares nothing", f.against)
	}
	same := func(x manifest.Object) func(manifest.Object) bool {
		return func(o manifest.Object) bool { return o.Kind() == x.Kind() && o.Name() == x.Name() }
	}
	merged := &manifest.Set{Objects: slices.Clone(set.Objects)}
	for _, o := range other.Objects {
		if i := slices.IndexFunc(merged.Objects, same(o)); i >= 0 {
			merged.Objects[i] = o
		} else {
			merged.Objects = append(merged.Objects, o)
		}
	}
	name := strings.Join(f.paths, ", ") + " with " + f.against
	return &forecast.Side{Name: name, Objects: a.complete(merged, f)}, nil
}

// readArrivals reads a file, or the runs of a store that nobody has open.
func (a *app) readArrivals(ctx context.Context, f *simulateFlags) (*arrivals.Set, error) {
	name, stored := strings.CutPrefix(f.arrivals, storePrefix)
	if _, err := os.Stat(name); err != nil {
		return nil, fmt.Errorf("--arrivals %s: %s", f.arrivals, cause(err))
	}
	if !stored {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("--arrivals: %w", err)
		}
		defer file.Close()
		return arrivals.Read(name, file)
	}
	var bounds [2]run.Instant
	for i, text := range []string{f.since, f.until} {
		at, err := a.when([]string{"--since", "--until"}[i], text, -1)
		if err != nil {
			return nil, err
		}
		if at != nil {
			bounds[i] = run.At(at.Time)
		}
	}
	db, err := config.StorePlace{File: name}.Open(ctx)
	if err != nil {
		return nil, fmt.Errorf("--arrivals %s: %w", f.arrivals, err)
	}
	set, err := arrivals.Stored(ctx, db, bounds[0], bounds[1])
	if err := errors.Join(err, db.Close()); err != nil {
		return nil, fmt.Errorf("--arrivals %s: %w", f.arrivals, err)
	}
	return set, nil
}

// tellEvery is how often people hear of a forecast that takes long.
const tellEvery = 2 * time.Second

// play runs one forecast and says from time to time how far it is.
func (a *app) play(ctx context.Context, label string, s *forecast.Side, come *arrivals.Set, f *simulateFlags) (*forecast.Result, error) {
	told := a.now()
	result, err := forecast.Run(s.Objects, come.Source(f.seed), forecast.Options{
		Start: come.Start, Window: come.Window, Seed: f.seed, Workers: come.Workers,
		Progress: func(share float64) error {
			if now := a.now(); now.Sub(told) >= tellEvery {
				told = now
				a.say("%s: %.0f %% of about %.0f runs", label, 100*share, come.Expected)
			}
			return context.Cause(ctx)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("simulate %s: %w", s.Name, err)
	}
	return result, nil
}
