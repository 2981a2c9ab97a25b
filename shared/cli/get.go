package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

// kindArgs completes a KIND.
func kindArgs(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return kindWords(), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) getCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "get KIND [NAME…]",
		Short: "List what is declared, or show it by name; -o yaml gives manifests with every default in effect",
		Example: "  errand get agents\n  errand get agent invoice-check -o yaml\n" +
			"  errand get run 4u7q2m --watch",
		Args:              args(1, -1, "a kind and names"),
		ValidArgsFunction: kindArgs,
		RunE: func(cmd *cobra.Command, words []string) error {
			k, err := findKind(words[0])
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if k.name == kindRun.name {
				return a.getRuns(cmd.Context(), c, words[1:], watch)
			}
			if watch {
				return a.watchObjects(cmd.Context(), c, k, words[1:])
			}
			objects, err := a.objects(cmd.Context(), c, k, words[1:])
			if err != nil {
				return err
			}
			if len(words) == 2 {
				return render.One(a.printer(), a.objectView(k), objects[0])
			}
			return listing(a, a.objectView(k), objects, k.plural)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show changes as they happen")
	return cmd
}

// objects reads the named objects of a kind, or all of them.
func (a *app) objects(ctx context.Context, c *api.Client, k kind, names []string) ([]api.Object, error) {
	var list []api.Object
	for _, name := range names {
		o, err := c.Object(ctx, k.plural, name)
		if err != nil {
			return nil, fmt.Errorf("get %s %s: %w", strings.ToLower(k.name), name, err)
		}
		list = append(list, *o)
	}
	if len(names) > 0 {
		return list, nil
	}
	for o, err := range c.Objects(ctx, k.plural) {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", k.plural, err)
		}
		list = append(list, o)
	}
	return list, nil
}

// watchEvery is how often watched declarations are read: they change by hand, and their counts are for people.
const watchEvery = 2 * time.Second

// watchObjects prints each object once, and again whenever it or its status has changed.
func (a *app) watchObjects(ctx context.Context, c *api.Client, k kind, names []string) error {
	stream := render.NewStream(a.printer(), a.objectView(k))
	shown := make(map[string][]byte)
	for {
		objects, err := a.objects(ctx, c, k, names)
		if err != nil {
			return err
		}
		stream.Fit(objects)
		for _, o := range objects {
			form, err := json.Marshal(o)
			if err != nil {
				return fmt.Errorf("watch %s: %w", k.plural, err)
			}
			if !bytes.Equal(shown[objectName(o)], form) {
				shown[objectName(o)] = form
				if err := stream.Add(o); err != nil {
					return err
				}
			}
		}
		if err := pause(ctx, watchEvery); err != nil {
			return err
		}
	}
}

// pause waits, or returns the context's cause when that ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *app) getRuns(ctx context.Context, c *api.Client, ids []string, watch bool) error {
	if len(ids) == 0 {
		return a.listRuns(ctx, c, api.RunFilter{Tenant: a.tenantName()}, defaultRuns, watch)
	}
	read := c.RunWithFamily
	if a.format == render.Table || a.format == render.Name { // what a family costs is not shown, and its runs may be many
		read = func(ctx context.Context, id string) (*api.Run, error) { return c.Run(ctx, id, 0) }
	}
	var runs []api.Run
	for _, id := range ids {
		r, err := read(ctx, id)
		if err != nil {
			return fmt.Errorf("get run %s: %w", id, err)
		}
		runs = append(runs, *r)
	}
	if watch {
		return a.watchNamed(ctx, c, runs)
	}
	if len(ids) == 1 && !a.format.Human() {
		return render.One(a.printer(), a.runView(), runs[0])
	}
	return render.List(a.printer(), a.runView(), runs)
}

func (a *app) describeCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "describe KIND NAME",
		Short:             "Show everything about one object",
		Example:           "  errand describe agent invoice-check\n  errand describe run 4u7q2m",
		Args:              args(2, 2, "a kind and a name"),
		ValidArgsFunction: kindArgs,
		RunE: func(cmd *cobra.Command, words []string) error {
			k, err := findKind(words[0])
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if k.name == kindRun.name {
				r, err := c.RunWithFamily(cmd.Context(), words[1])
				if err != nil {
					return fmt.Errorf("describe run %s: %w", words[1], err)
				}
				return render.One(a.printer(), a.runView(), *r)
			}
			objects, err := a.objects(cmd.Context(), c, k, words[1:])
			if err != nil {
				return err
			}
			view := a.objectView(k)
			view.Detail = a.describeObject
			return render.One(a.printer(), view, objects[0])
		},
	}
}

// describeObject shows an object's status and its manifest.
func (a *app) describeObject(w io.Writer, o api.Object) error {
	d := render.NewDetail(w)
	d.Field(o.Kind, objectName(o))
	if s := o.Status; s != nil {
		d.Field("Revision", strconv.FormatInt(s.Revision, 10))
		d.Field("Changed", instant(s.UpdatedAt))
		if s.Paused {
			d.Field("Paused", "yes; runs are accepted and wait")
		}
		d.Field("Queued", strconv.Itoa(s.Queued))
		running := strconv.Itoa(s.Running)
		if s.Capacity > 0 {
			running += " of " + strconv.Itoa(s.Capacity)
		}
		d.Field("Running", running)
		if len(s.Workers) > 0 {
			d.Heading("Workers")
			if err := render.List(render.Printer{W: d.Indented(), Format: render.Table}, a.workerView(), s.Workers); err != nil {
				return err
			}
		}
	}
	manifest, err := render.ToYAML(a.objectView(kind{}).YAML(o))
	if err != nil {
		return err
	}
	d.Heading("Manifest")
	if _, err := d.Indented().Write(manifest); err != nil {
		return err
	}
	return d.Err()
}

func (a *app) workerView() render.View[api.WorkerStatus] {
	type s = api.WorkerStatus
	return render.View[s]{
		Name: func(x s) string { return x.ID },
		Columns: []render.Column[s]{
			{Head: "WORKER", Cell: func(x s) string { return x.ID }},
			{Head: "TARGET", Cell: func(x s) string { return x.Target }},
			{Head: "AGENTS", Cell: func(x s) string { return strings.Join(x.Agents, ",") }},
			{Head: "RUNNING", Cell: func(x s) string { return fmt.Sprintf("%d/%d", x.Running, x.Slots) }},
			{Head: "DRAINING", Cell: func(x s) string { return yesNo(x.Draining) }},
			{Head: "SEEN", Cell: func(x s) string {
				if x.SeenAt == nil {
					return "-"
				}
				return render.Age(a.now(), x.SeenAt.Time)
			}},
		},
	}
}

func (a *app) deleteCommand() *cobra.Command {
	var etag string
	cmd := &cobra.Command{
		Use:               "delete KIND NAME…",
		Short:             "Remove declarations; runs that are under way end first",
		Example:           "  errand delete agent invoice-check",
		Args:              args(2, -1, "a kind and names"),
		ValidArgsFunction: kindArgs,
		RunE: func(cmd *cobra.Command, words []string) error {
			k, err := findKind(words[0])
			if err != nil {
				return err
			}
			if k.name == kindRun.name {
				return usagef("delete run: runs are not deleted by hand, an agent's retain does that; to end one use \"errand cancel\"")
			}
			if etag != "" && len(words) > 2 {
				return usagef("delete --etag: takes one name")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			deleted := []api.Applied{}
			for _, name := range words[1:] {
				if err := c.DeleteObject(cmd.Context(), k.plural, name, etag); err != nil {
					return fmt.Errorf("delete %s %s: %w", strings.ToLower(k.name), name, err)
				}
				deleted = append(deleted, api.Applied{Kind: k.name, Name: name, Action: "deleted"})
			}
			return render.List(a.printer(), appliedView, deleted)
		},
	}
	cmd.Flags().StringVar(&etag, "etag", "", "delete only this version, as get -o json shows it")
	return cmd
}
