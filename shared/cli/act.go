package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

// eachRun does something to every run named, goes on after a failure, and shows what became of them. The error is the
// first one; the others are told at once.
func (a *app) eachRun(ids []string, what string, do func(id string) (*api.Run, error)) ([]api.Run, error) {
	runs := []api.Run{}
	var first error
	for _, id := range ids {
		r, err := do(id)
		switch {
		case err == nil:
			runs = append(runs, *r)
		case first == nil:
			first = fmt.Errorf("%s run %s: %w", what, id, err)
		default:
			a.report(fmt.Errorf("%s run %s: %w", what, id, err))
		}
	}
	return runs, first
}

// showRuns prints one run as an object and several as a list.
func (a *app) showRuns(runs []api.Run, single bool) error {
	if single && len(runs) == 1 && !a.format.Human() {
		return render.One(a.printer(), a.runView(), runs[0])
	}
	if len(runs) == 0 && a.format.Human() {
		return nil
	}
	return render.List(a.printer(), a.runView(), runs)
}

func (a *app) cancelCommand() *cobra.Command {
	var f filterFlags
	var body api.Cancel
	var grace time.Duration
	cmd := &cobra.Command{
		Use:     "cancel RUN…",
		Short:   "End runs, by name or by filter",
		Example: "  errand cancel 4u7q2m --dry-run\n  errand cancel --agent invoice-check --state queued",
		Args:    args(0, -1, "runs"),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if cmd.Flags().Changed("grace") {
				body.Grace = (*api.Duration)(&grace)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if bulk, err := a.bulk(cmd.Context(), "cancel", ids, &f, body.Reason, body.DryRun, c.CancelAll); bulk || err != nil {
				return err
			}
			if body.DryRun {
				return a.previewCancel(cmd.Context(), c, ids, body)
			}
			runs, first := a.eachRun(ids, "cancel", func(id string) (*api.Run, error) { return c.Cancel(cmd.Context(), id, body) })
			if err := a.showRuns(runs, len(ids) == 1); err != nil {
				return err
			}
			return first
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&body.Reason, "reason", "", "why, for the history")
	cmd.Flags().DurationVar(&grace, "grace", 10*time.Second, "between telling an attempt to end and killing it")
	cmd.Flags().BoolVar(&body.DryRun, "dry-run", false, "show what it would meet: effects, children, spend")
	return cmd
}

// bulk handles the form of a command that selects runs by filter. It reports whether that was the form.
func (a *app) bulk(ctx context.Context, what string, ids []string, f *filterFlags, reason string, dryRun bool,
	do func(context.Context, api.Bulk) (*api.BulkResult, error),
) (bool, error) {
	switch {
	case len(ids) == 0 && !f.given():
		return true, usagef("%s: want runs, or a filter such as --agent or --state", what)
	case len(ids) > 0 && f.given():
		return true, usagef("%s: runs and a filter cannot be mixed", what)
	case len(ids) > 0:
		return false, nil
	}
	filter, err := a.filter(f)
	if err != nil {
		return true, err
	}
	result, err := do(ctx, api.Bulk{Filter: filter, Reason: reason, DryRun: dryRun})
	if err != nil {
		return true, fmt.Errorf("%s runs by filter: %w", what, err)
	}
	for _, p := range result.Errors {
		a.report(fmt.Errorf("%s runs by filter: %w", what, p))
	}
	if a.format == render.Name {
		for _, id := range result.IDs {
			if _, err := fmt.Fprintln(a.out, render.Clean(id)); err != nil {
				return true, err
			}
		}
		return true, nil
	}
	view := render.View[api.BulkResult]{Columns: []render.Column[api.BulkResult]{
		{Head: "MATCHED", Cell: func(r api.BulkResult) string { return strconv.Itoa(r.Matched) }},
		{Head: "DONE", Cell: func(r api.BulkResult) string { return strconv.Itoa(r.Done) }},
		{Head: "FAILED", Cell: func(r api.BulkResult) string { return strconv.Itoa(len(r.Errors)) }},
	}}
	if dryRun {
		a.say("dry run: nothing was changed")
	}
	if err := render.One(a.printer(), view, *result); err != nil || len(result.Errors) == 0 {
		return true, err
	}
	return true, ended(problemCode(result.Errors[0]))
}

func (a *app) previewCancel(ctx context.Context, c *api.Client, ids []string, body api.Cancel) error {
	var previews []api.CancelPreview
	for _, id := range ids {
		p, err := c.PreviewCancel(ctx, id, body)
		if err != nil {
			return fmt.Errorf("cancel run %s --dry-run: %w", id, err)
		}
		previews = append(previews, *p)
	}
	view := render.View[api.CancelPreview]{
		Name:   func(p api.CancelPreview) string { return p.Run.ID },
		Detail: a.describePreview,
	}
	if a.format.Human() {
		for _, p := range previews {
			if err := a.describePreview(a.out, p); err != nil {
				return err
			}
		}
		a.say("dry run: nothing was changed")
		return nil
	}
	if len(previews) == 1 {
		return render.One(a.printer(), view, previews[0])
	}
	return render.List(a.printer(), view, previews)
}

// compensationView shows what a cancel would undo.
var compensationView = render.View[api.Compensation]{
	Name: func(c api.Compensation) string { return c.Run },
	Columns: []render.Column[api.Compensation]{
		{Head: "UNDO", Cell: func(c api.Compensation) string { return firstOf(c.Effect, c.Stage) }},
		{Head: "OF-RUN", Cell: func(c api.Compensation) string { return c.Run }},
		{Head: "BY-AGENT", Cell: func(c api.Compensation) string { return c.Agent }},
		{Head: "STATE", Cell: func(c api.Compensation) string { return render.Dash(c.State) }},
	},
}

func (a *app) describePreview(w io.Writer, p api.CancelPreview) error {
	d := render.NewDetail(w)
	d.Field("Run", p.Run.ID)
	d.Field("Name", p.Run.Name())
	d.Field("State", p.Run.State)
	d.Field("Spend", cost(p.Spend))
	d.Field("Committed", fmt.Sprintf("%d effects have happened", len(p.Committed)))
	d.Field("Unknown", fmt.Sprintf("%d effects of which nobody knows", len(p.Unknown)))
	if all := append(p.Committed[:len(p.Committed):len(p.Committed)], p.Unknown...); len(all) > 0 {
		if err := render.List(render.Printer{W: d.Indented(), Format: render.Table}, a.receiptView(), all); err != nil {
			return err
		}
	}
	d.Field("Undone", fmt.Sprintf("%d things would be undone, in this order; the rest stays", len(p.Compensations)))
	if len(p.Compensations) > 0 {
		if err := render.List(render.Printer{W: d.Indented(), Format: render.Table}, compensationView, p.Compensations); err != nil {
			return err
		}
	}
	d.Field("Children", fmt.Sprintf("%d runs end with it", len(p.Children)))
	if len(p.Children) > 0 {
		if err := render.List(render.Printer{W: d.Indented(), Format: render.Table}, a.runView(), p.Children); err != nil {
			return err
		}
	}
	return d.Err()
}

func (a *app) retryCommand() *cobra.Command {
	var f filterFlags
	var body api.Retry
	var input string
	var dryRun bool
	var w waitFlags
	cmd := &cobra.Command{
		Use:     "retry RUN…",
		Short:   "Make new runs of runs that are over, by name or by filter",
		Example: "  errand retry 4u7q2m --wait\n  errand retry 4u7q2m --key ticket-118\n  errand retry 4u7q2m --from check -i '{\"lines\": []}'\n  errand retry --state failed --since 1h --dry-run",
		Args:    args(0, -1, "runs"),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if err := saysSomething(cmd, "key", "from"); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if body.Input, err = a.readValue("-i", input); err != nil {
				return err
			}
			if len(ids) == 0 && (input != "" || body.From != "" || body.Key != "" || w.wait) {
				return usagef("retry: --from, -i, --key and --wait need runs by name")
			}
			if bulk, err := a.bulk(cmd.Context(), "retry", ids, &f, "", dryRun, c.RetryAll); bulk || err != nil {
				return err
			}
			if dryRun {
				return usagef("retry --dry-run: only with a filter; a run by name is retried as it is")
			}
			runs, first := a.eachRun(ids, "retry", func(id string) (*api.Run, error) { return c.Retry(cmd.Context(), id, body) })
			return a.settle(cmd.Context(), c, runs, len(ids) == 1, w, first)
		},
	}
	f.add(cmd)
	w.add(cmd)
	cmd.Flags().StringVarP(&input, "input", "i", "", "another input: JSON, @FILE or -; with --from it is that stage's")
	cmd.Flags().StringVar(&body.From, "from", "", "of a workflow: the stage from which it goes anew (STAGE, or STAGE#VISIT); what ended before it is kept.\n"+
		"Without --from and -i a workflow that failed goes on at the stage where it did")
	cmd.Flags().StringVar(&body.Key, "key", "", "retry once per key: the same again gives the same new run; the keys of each run are its own")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "with a filter: say which, change nothing")
	return cmd
}

func (a *app) suspendCommand() *cobra.Command {
	return a.plainAction("suspend", "Stop runs until they are resumed; a live attempt is given back",
		func(c *api.Client) func(context.Context, string) (*api.Run, error) { return c.Suspend })
}

func (a *app) resumeCommand() *cobra.Command {
	return a.plainAction("resume", "Let suspended runs go on",
		func(c *api.Client) func(context.Context, string) (*api.Run, error) { return c.Resume })
}

// plainAction is a command that does one thing to runs by name.
func (a *app) plainAction(verb, short string, pick func(*api.Client) func(context.Context, string) (*api.Run, error)) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   verb + " RUN…",
		Short: short,
		Args:  args(1, -1, "runs"),
		RunE: func(cmd *cobra.Command, ids []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			do := pick(c)
			if dryRun {
				do = func(ctx context.Context, id string) (*api.Run, error) { return c.Run(ctx, id, 0) }
				defer a.say("dry run: these runs would be asked to %s; nothing was changed", verb)
			}
			runs, first := a.eachRun(ids, verb, func(id string) (*api.Run, error) { return do(cmd.Context(), id) })
			if err := a.showRuns(runs, len(ids) == 1); err != nil {
				return err
			}
			return first
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the runs, change nothing")
	return cmd
}

func (a *app) signalCommand() *cobra.Command {
	var body api.SignalBody
	var input string
	cmd := &cobra.Command{
		Use:     "signal RUN NAME",
		Short:   "Tell a run that waits for NAME to go on; kept if it does not wait yet",
		Example: "  errand signal 4u7q2m payment-cleared -i '{\"amount\": 12}'",
		Args:    args(2, 2, "a run and the name of a signal"),
		RunE: func(cmd *cobra.Command, words []string) error {
			err := saysSomething(cmd, "key")
			if err != nil {
				return err
			}
			if body.Payload, err = a.readValue("-i", input); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			body.Name = words[1]
			r, err := c.Signal(cmd.Context(), words[0], body)
			if err != nil {
				return fmt.Errorf("signal %s to run %s: %w", words[1], words[0], err)
			}
			return a.showRuns([]api.Run{*r}, true)
		},
	}
	cmd.Flags().StringVarP(&input, "input", "i", "", "what the run is told: JSON, @FILE or -")
	cmd.Flags().StringVar(&body.Key, "key", "", "deliver once per key")
	return cmd
}

func (a *app) scoreCommand() *cobra.Command {
	var body api.Score
	cmd := &cobra.Command{
		Use:   "score RUN SCORE",
		Short: "Judge the quality of a run, from 0 to 1",
		Args:  args(2, 2, "a run and a score from 0 to 1"),
		RunE: func(cmd *cobra.Command, words []string) error {
			var err error
			if body.Score, err = strconv.ParseFloat(words[1], 64); err != nil || !(body.Score >= 0 && body.Score <= 1) {
				return usagef("score %q: want a number from 0 to 1", render.Clean(words[1]))
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			r, err := c.ScoreRun(cmd.Context(), words[0], body)
			if err != nil {
				return fmt.Errorf("score run %s: %w", words[0], err)
			}
			return a.showRuns([]api.Run{*r}, true)
		},
	}
	cmd.Flags().StringVar(&body.By, "by", "", "who judges")
	cmd.Flags().StringVar(&body.Comment, "comment", "", "why")
	return cmd
}
