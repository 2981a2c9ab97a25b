package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

// defaultRuns is how many runs a listing shows unless told otherwise.
const defaultRuns = 100

// states that a filter takes.
var states = []string{
	"queued", "held", "unschedulable", "assigned", "running", "waiting", "backoff", "suspended", "canceling", "compensating",
	"succeeded", "failed", "canceled",
}

// filterFlags select runs.
type filterFlags struct {
	agent, workflow, parent string
	states                  []string
	labels                  []string
	since, until            string
}

func (f *filterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.agent, "agent", "", "runs of this agent")
	flags.StringVar(&f.workflow, "workflow", "", "runs of this workflow")
	flags.StringSliceVar(&f.states, "state", nil, "runs in one of these states, separated by commas")
	flags.StringVar(&f.parent, "parent", "", "children of this run")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "runs with this label, KEY=VALUE; may be repeated")
	flags.StringVar(&f.since, "since", "", "runs created since: a time (RFC 3339) or how long ago (90m)")
	flags.StringVar(&f.until, "until", "", "runs created before: a time (RFC 3339) or how long ago (90m)")
	_ = cmd.RegisterFlagCompletionFunc("state", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return states, cobra.ShellCompDirectiveNoFileComp
	})
}

// given reports whether any flag narrows the selection.
func (f *filterFlags) given() bool {
	return f.agent != "" || f.workflow != "" || f.parent != "" || len(f.states)+len(f.labels) > 0 || f.since != "" || f.until != ""
}

func (a *app) filter(f *filterFlags) (api.RunFilter, error) {
	out := api.RunFilter{Agent: f.agent, Workflow: f.workflow, Parent: f.parent, State: f.states, Tenant: a.tenantName()}
	for _, s := range f.states {
		if !slices.Contains(states, s) {
			return out, usagef("--state %q: want %s", render.Clean(s), strings.Join(states, ", "))
		}
	}
	var err error
	if out.Labels, err = pairs("--label", f.labels); err != nil {
		return out, err
	}
	if out.Since, err = a.when("--since", f.since, -1); err != nil {
		return out, err
	}
	out.Until, err = a.when("--until", f.until, -1)
	return out, err
}

// pairs reads KEY=VALUE words.
func pairs(flag string, words []string) (map[string]string, error) {
	var m map[string]string
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok || k == "" {
			return nil, usagef("%s %q: want KEY=VALUE", flag, render.Clean(w))
		}
		if m == nil {
			m = make(map[string]string)
		}
		m[k] = v
	}
	return m, nil
}

// when reads an instant: RFC 3339, or a length of time from now in the direction (1 ahead, -1 ago). "" is nil.
func (a *app) when(flag, text string, direction time.Duration) (*api.Time, error) {
	if text == "" {
		return nil, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return &api.Time{Time: t.UTC()}, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return nil, usagef("%s %q: want a time such as 2026-01-31T12:00:00Z or a length of time such as 90m", flag, render.Clean(text))
	}
	return &api.Time{Time: a.now().Add(direction * d).UTC()}, nil //nolint:durationcheck // direction is 1 or -1
}

func (a *app) runsCommand() *cobra.Command {
	var f filterFlags
	var limit int
	var watch bool
	cmd := &cobra.Command{
		Use:     "runs",
		Short:   "List runs, newest first",
		Example: "  errand runs --state failed --since 1h\n  errand runs --agent invoice-check --watch",
		Args:    args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := a.filter(&f)
			if err != nil {
				return err
			}
			if limit < 0 {
				return usagef("--limit %d: want a number of runs, or 0 for all", limit)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.listRuns(cmd.Context(), c, filter, limit, watch)
		},
	}
	f.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", defaultRuns, "how many at most; 0 for all")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on and show every run that changes")
	return cmd
}

func (a *app) listRuns(ctx context.Context, c *api.Client, f api.RunFilter, limit int, watch bool) error {
	if watch {
		return a.watchRuns(ctx, c, f, limit)
	}
	runs, cut, err := fetchRuns(ctx, c, f, limit)
	if err != nil {
		return err
	}
	if cut {
		defer a.say("the newest %d; --limit shows more", limit)
	}
	return listing(a, a.runView(), runs, "runs")
}

// fetchRuns reads up to limit runs (0 for all), newest first, and tells whether there were more.
func fetchRuns(ctx context.Context, c *api.Client, f api.RunFilter, limit int) (runs []api.Run, cut bool, err error) {
	page := api.Page{Limit: api.MaxPage}
	for {
		if limit > 0 {
			page.Limit = min(api.MaxPage, limit+1-len(runs))
		}
		list, err := c.ListRuns(ctx, f, page)
		if err != nil {
			return nil, false, fmt.Errorf("list runs: %w", err)
		}
		runs = append(runs, list.Items...)
		if limit > 0 && len(runs) > limit {
			return runs[:limit], true, nil
		}
		if list.NextPageToken == "" {
			return runs, false, nil
		}
		page.Token = list.NextPageToken
	}
}

// listing prints a list, and says so to people when there is nothing in it.
func listing[T any](a *app, v render.View[T], items []T, what string) error {
	if len(items) == 0 && a.format.Human() {
		a.say("no %s", what)
		return nil
	}
	return render.List(a.printer(), v, items)
}

// Bounds of watching: how often to look, at how many of the newest runs, and at how many older ones that still go on.
const (
	watchRunsEvery = time.Second
	watchNewest    = 200
	watchOlder     = 200
)

// watchRuns prints the newest runs, limit of them at most, oldest first, and then each one that appears or changes, for
// ever.
func (a *app) watchRuns(ctx context.Context, c *api.Client, f api.RunFilter, limit int) error {
	w := newRunWatch(a)
	for first := true; ; first = false {
		list, err := c.ListRuns(ctx, f, api.Page{Limit: watchNewest})
		if err != nil {
			return fmt.Errorf("watch runs: %w", err)
		}
		if first && limit > 0 && len(list.Items) > limit {
			w.skip(list.Items[limit:])
		}
		if err := w.show(list.Items); err != nil {
			return err
		}
		if err := w.showOlder(ctx, c); err != nil {
			return err
		}
		if err := pause(ctx, watchRunsEvery); err != nil {
			return err
		}
	}
}

// watchNamed prints the runs given and then every change of them until all are over.
func (a *app) watchNamed(ctx context.Context, c *api.Client, runs []api.Run) error {
	slices.Reverse(runs) // as a page is: newest first
	w := newRunWatch(a)
	for {
		if err := w.show(runs); err != nil {
			return err
		}
		runs = slices.DeleteFunc(runs, func(r api.Run) bool { return r.Terminal() })
		if len(runs) == 0 {
			return nil
		}
		if err := pause(ctx, watchRunsEvery); err != nil {
			return err
		}
		for i, r := range runs {
			now, err := c.Run(ctx, r.ID, 0)
			if err != nil {
				return fmt.Errorf("watch run %s: %w", r.ID, err)
			}
			runs[i] = *now
		}
	}
}

// runWatch remembers what was shown.
type runWatch struct {
	stream *render.Stream[api.Run]
	page   map[string]shownRun // by id, of the page shown last
	older  map[string]shownRun // runs that left the page before they were over
}

type shownRun struct {
	etag string
	over bool
}

func newRunWatch(a *app) *runWatch {
	return &runWatch{
		stream: render.NewStream(a.printer(), a.runView()),
		page:   make(map[string]shownRun), older: make(map[string]shownRun),
	}
}

// skip takes runs as shown already.
func (w *runWatch) skip(runs []api.Run) {
	for _, r := range runs {
		w.page[r.ID] = shownRun{r.Etag, r.Terminal()}
	}
}

// show prints what is new in a page: newest first in it, oldest first on the screen.
func (w *runWatch) show(page []api.Run) error {
	// 1. What is new.
	now := make(map[string]shownRun, len(page))
	var news []api.Run
	for _, r := range slices.Backward(page) {
		before, seen := w.page[r.ID]
		if !seen {
			before, seen = w.older[r.ID]
		}
		if !seen || before.etag != r.Etag {
			news = append(news, r)
		}
		delete(w.older, r.ID)
		now[r.ID] = shownRun{r.Etag, r.Terminal()}
	}
	// 2. What left the page and goes on.
	for id, r := range w.page {
		if _, still := now[id]; !still && !r.over && len(w.older) < watchOlder {
			w.older[id] = r
		}
	}
	w.page = now
	// 3. Show it.
	w.stream.Fit(news)
	for _, r := range news {
		if err := w.stream.Add(r); err != nil {
			return err
		}
	}
	return nil
}

// showOlder looks at the runs that left the page, and forgets those that are over or gone.
func (w *runWatch) showOlder(ctx context.Context, c *api.Client) error {
	for id, before := range w.older {
		r, err := c.Run(ctx, id, 0)
		if api.HasCode(err, api.CodeNotFound) {
			delete(w.older, id)
			continue
		}
		if err != nil {
			return fmt.Errorf("watch run %s: %w", id, err)
		}
		if r.Etag != before.etag {
			if err := w.stream.Add(*r); err != nil {
				return err
			}
			w.older[id] = shownRun{etag: r.Etag}
		}
		if r.Terminal() {
			delete(w.older, id)
		}
	}
	return nil
}
