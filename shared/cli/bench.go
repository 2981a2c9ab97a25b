package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/cli/internal/bench"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

func (a *app) benchCommand() *cobra.Command {
	var o bench.Options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine: runs a second, latency, cost of a run",
		Long: "bench starts a server on an empty SQLite store that waits for the disk, a worker and clients as processes of their\n" +
			"own, and prints medians with their range. Compare ratios of one sitting, never figures of different days: the disk\n" +
			"and a core are probed beside.",
		Example: "  errand bench\n  errand bench --only W1,W2 --runs 5000 --repeat 1 -o json",
		Args:    args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.Runs < 1 || o.Runs > bench.MaxRuns:
				return usagef("--runs %d: want 1 to %d", o.Runs, bench.MaxRuns)
			case o.Rest < bench.MinRest || o.Rest > bench.MaxRest:
				return usagef("--rest %d: want %d to %d", o.Rest, bench.MinRest, bench.MaxRest)
			case o.Idle < bench.MinIdle || o.Idle > bench.MaxIdle:
				return usagef("--idle %s: want %s to %s", o.Idle, bench.MinIdle, bench.MaxIdle)
			case o.Repeat < 1 || o.Repeat > bench.MaxRepeat:
				return usagef("--repeat %d: want 1 to %d", o.Repeat, bench.MaxRepeat)
			}
			for _, name := range o.Only {
				if err := bench.CheckName(name); err != nil {
					return usagef("--only: %v", err)
				}
			}
			o.Tell = a.say
			report, err := bench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			view := render.View[bench.Report]{Detail: describeBench, Name: func(bench.Report) string { return "bench" }}
			return render.One(a.printer(), view, *report)
		},
	}
	cmd.Flags().IntVar(&o.Runs, "runs", 20_000, "runs of W1, W1b and W5, and at most as many of the others")
	cmd.Flags().IntVar(&o.Rest, "rest", 1_000_000, "runs that W8 has stored")
	cmd.Flags().DurationVar(&o.Idle, "idle", 10*time.Second, "how long idling is measured")
	cmd.Flags().IntVar(&o.Repeat, "repeat", 3, "repetitions of each workload")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "some of "+strings.Join(bench.Names(), ", ")+"; all unless given")
	cmd.Flags().StringVar(&o.Dir, "dir", "", "folder on the disk to measure; the system's for temporary files unless given")
	cmd.Flags().StringVar(&o.Profile, "profile", "", "folder for CPU profiles of the server")
	return cmd
}

// benchProcessCommand is what bench starts.
func (a *app) benchProcessCommand() *cobra.Command {
	return &cobra.Command{
		Use:    bench.Command,
		Hidden: true,
		RunE: func(cmd *cobra.Command, words []string) error {
			return bench.Process(cmd.Context(), words, a.in, a.out)
		},
	}
}

// benchLine is one figure of one workload.
type benchLine struct {
	workload string
	bench.Figure
}

func describeBench(w io.Writer, r bench.Report) error {
	d := render.NewDetail(w)
	d.Field("Machine", fmt.Sprintf("%s, %d cores, %s/%s", firstOf(r.Machine.CPU, "unknown CPU"), r.Machine.Cores, r.Machine.OS, r.Machine.Arch))
	d.Field("Probes", fmt.Sprintf("%s flushes/s of 4 KiB, SHA-256 %s MB/s on a core", bench.Number(r.Machine.Syncs), bench.Number(r.Machine.Hash)))
	d.Field("Version", r.Version+", "+r.Go)
	d.Field("Store", r.Store)
	d.Field("Repeat", fmt.Sprintf("%d; medians, with the range", r.Repeat))
	var lines []benchLine
	for _, x := range r.Workloads {
		d.Field(x.Name, x.What)
		for _, f := range x.Figures {
			lines = append(lines, benchLine{x.Name, f})
		}
	}
	if d.Err() != nil {
		return d.Err()
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	view := render.View[benchLine]{Columns: []render.Column[benchLine]{
		{Head: "WORKLOAD", Cell: func(l benchLine) string { return l.workload }},
		{Head: "FIGURE", Cell: func(l benchLine) string { return l.Name }},
		{Head: "MEDIAN", Cell: func(l benchLine) string { return bench.Number(l.Median) }},
		{Head: "RANGE", Cell: func(l benchLine) string { return bench.Number(l.Min) + " to " + bench.Number(l.Max) }},
		{Head: "UNIT", Cell: func(l benchLine) string { return l.Unit }},
	}}
	return render.List(render.Printer{W: w, Format: render.Table}, view, lines)
}
