package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/version"
)

// Verdicts of a check.
const (
	checkOK   = "ok"
	checkWarn = "warning"
	checkFail = "failure"
)

// check is one thing that doctor looked at.
type check struct {
	Check   string `json:"check"`
	Verdict string `json:"verdict"`
	Message string `json:"message"`
}

// Bounds of what counts as healthy.
const (
	clockWarn = 2 * time.Second
	clockFail = 30 * time.Second
	diskWarn  = 1 << 30
	diskFail  = 100 << 20
	queueWarn = 10 * time.Minute
)

func (a *app) doctorCommand() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the server, and say what to do about what is wrong",
		Args:  args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 30*time.Second)
			defer cancel()
			d := &doctor{app: a, c: c}
			serverErr := d.run(ctx, data)
			view := render.View[check]{
				Name: func(c check) string { return c.Check },
				Columns: []render.Column[check]{
					{Head: "CHECK", Cell: func(c check) string { return c.Check }},
					{Head: "VERDICT", Cell: func(c check) string { return c.Verdict }},
					{Head: "FINDING", Cell: func(c check) string { return c.Message }},
				},
			}
			if err := render.List(a.printer(), view, d.checks); err != nil {
				return err
			}
			switch {
			case serverErr != nil:
				return ended(exitCode(cmd.Context(), serverErr))
			case slices.ContainsFunc(d.checks, func(c check) bool { return c.Verdict == checkFail }):
				return ended(ExitError)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&data, "data", defaultData, "the data file of dev on this machine")
	return cmd
}

// doctor collects findings.
type doctor struct {
	app    *app
	c      *api.Client
	checks []check
}

func (d *doctor) add(name, verdict, format string, args ...any) {
	d.checks = append(d.checks, check{name, verdict, fmt.Sprintf(format, args...)})
}

// run makes every check. The error is that of reaching the server.
func (d *doctor) run(ctx context.Context, data string) error {
	// 1. This machine.
	d.dataFolder(data)
	// 2. The server, without which there is nothing more to see.
	v, err := d.reach(ctx)
	if err != nil {
		return err
	}
	d.skew(v)
	d.clock(ctx)
	// 3. What it runs.
	d.fleet(ctx)
	d.receipts(ctx)
	return nil
}

// dataFolder checks that dev could keep its data here: the folder takes a file, and the disk has room.
func (d *doctor) dataFolder(data string) {
	if data == memoryData {
		d.add("data", checkOK, "in memory; nothing is kept")
		return
	}
	dir := existingParent(filepath.Dir(data))
	probe, err := os.CreateTemp(dir, ".errand-doctor-*")
	if err != nil {
		d.add("data", checkFail, "cannot write to %s: %v; use --data FILE with dev", dir, cause(err))
		return
	}
	_, err = probe.WriteString("probe")
	err = errors.Join(err, probe.Sync(), probe.Close(), os.Remove(probe.Name()))
	if err != nil {
		d.add("data", checkFail, "cannot write and flush a file in %s: %v", dir, err)
		return
	}
	free, err := freeBytes(dir)
	switch {
	case err != nil:
		d.add("disk", checkWarn, "free space of %s: %v", dir, err)
	case free < diskFail:
		d.add("disk", checkFail, "%s has %d MiB left; make room, a full disk stops every run", dir, free>>20)
	case free < diskWarn:
		d.add("disk", checkWarn, "%s has %d MiB left", dir, free>>20)
	default:
		d.add("disk", checkOK, "%s has %d GiB left", dir, free>>30)
	}
	d.add("data", checkOK, "%s can be written and flushed", dir)
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// existingParent is the folder, or the nearest one above it that exists.
func existingParent(dir string) string {
	for {
		if isFolder(dir) {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return dir
		}
		dir = up
	}
}

func (d *doctor) reach(ctx context.Context) (*api.Version, error) {
	began := d.app.now()
	v, err := d.c.Version(ctx)
	if err != nil {
		d.add("server", checkFail, "%s", strings.Join(d.app.explain(err), "; "))
		return nil, err
	}
	d.add("server", checkOK, "%s answers in %s", d.c.URL(), render.Span(d.app.now().Sub(began)))
	d.add("store", checkOK, "%s", v.Store)
	if !v.Leader {
		d.add("leader", checkWarn, "another process decides; this one serves and waits to take over")
	}
	return v, nil
}

func (d *doctor) skew(v *api.Version) {
	if own := version.Get().Version; own != v.Version {
		d.add("version", checkWarn, "this program is %s, the server is %s; use the same version", own, v.Version)
		return
	}
	d.add("version", checkOK, "%s on both sides", v.Version)
}

// clock compares the server's time with ours in the middle of a call.
func (d *doctor) clock(ctx context.Context) {
	before := d.app.now()
	stats, err := d.c.Stats(ctx, api.StatsFilter{})
	if err != nil {
		d.add("clock", checkWarn, "the server does not tell its time: %s", strings.Join(d.app.explain(err), "; "))
		return
	}
	after := d.app.now()
	off := stats.At.Sub(before.Add(after.Sub(before) / 2)).Abs()
	verdict := checkOK
	switch {
	case off > clockFail:
		verdict = checkFail
	case off > clockWarn:
		verdict = checkWarn
	}
	d.add("clock", verdict, "%s apart from the server's", render.Span(off))
	if stats.Oldest != nil && stats.Oldest.Std() > queueWarn {
		d.add("queue", checkWarn, "the oldest queued run has waited %s; see \"errand runs --state queued\" and \"errand explain RUN\"",
			render.Span(stats.Oldest.Std()))
	}
	if n := stats.States["unschedulable"]; n > 0 {
		d.add("placement", checkWarn, "%d runs fit no target; see \"errand explain RUN\"", n)
	}
}

// fleet checks that each agent has a target of its shape and, on this machine, a program that can be started.
func (d *doctor) fleet(ctx context.Context) {
	agents, err := d.app.objects(ctx, d.c, kinds[0], nil)
	if err != nil {
		d.add("fleet", checkWarn, "%v", err)
		return
	}
	targets, err := d.app.objects(ctx, d.c, kinds[1], nil)
	if err != nil {
		d.add("fleet", checkWarn, "%v", err)
		return
	}
	var shapes []string
	for _, t := range targets {
		var spec struct {
			Shapes []string `json:"shapes"`
		}
		_ = json.Unmarshal(t.Spec, &spec)
		shapes = append(shapes, spec.Shapes...)
	}
	u, err := url.Parse(d.c.URL())
	here := err == nil && isLoopback(u.Hostname())
	for _, o := range agents {
		name := "agent " + objectName(o)
		var spec struct {
			Shape string    `json:"shape"`
			Run   fleet.Run `json:"run"`
		}
		if err := json.Unmarshal(o.Spec, &spec); err != nil {
			d.add(name, checkWarn, "cannot read its spec: %v", err)
			continue
		}
		switch missing := missingProgram(spec.Run); {
		case !slices.Contains(shapes, spec.Shape):
			d.add(name, checkFail, "no target holds shape %s; declare one, or its runs are unschedulable", spec.Shape)
		case here && missing != "":
			d.add(name, checkFail, "%s", missing)
		default:
			d.add(name, checkOK, "shape %s has a target", spec.Shape)
		}
		if o.Status != nil && o.Status.Paused {
			d.add(name, checkWarn, "paused: its runs wait until it is resumed")
		}
	}
	if len(agents) == 0 {
		d.add("fleet", checkWarn, "no agent is declared; see \"errand apply -f\"")
	}
}

// missingProgram says which program of an agent cannot be found on this machine; "" when all can.
func missingProgram(r fleet.Run) string {
	find := func(program, role string) string {
		path := program
		if strings.ContainsRune(program, filepath.Separator) && !filepath.IsAbs(program) {
			path = filepath.Join(r.Dir, program)
		}
		if _, err := exec.LookPath(path); err != nil {
			return fmt.Sprintf("%s %s: %v; install it or correct spec.run", role, program, cause(err))
		}
		return ""
	}
	if len(r.Build) > 0 {
		// What is built need not be there yet.
		return find(r.Build[0], "build program")
	}
	if len(r.Command) > 0 {
		return find(r.Command[0], "program")
	}
	return ""
}

func (d *doctor) receipts(ctx context.Context) {
	list, err := d.c.ListReceipts(ctx, api.ReceiptsUnknown, api.Page{Limit: 100})
	switch {
	case err != nil:
		d.add("receipts", checkWarn, "%s", strings.Join(d.app.explain(err), "; "))
	case len(list.Items) > 0:
		more := ""
		if list.NextPageToken != "" {
			more = " or more"
		}
		d.add("receipts", checkWarn, "%d%s effects of which nobody knows whether they happened; see \"errand receipts\"", len(list.Items), more)
	default:
		d.add("receipts", checkOK, "no effect is in doubt")
	}
}
