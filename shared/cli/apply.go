package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/manifest"
)

func (a *app) applyCommand() *cobra.Command {
	var paths []string
	var options api.ApplyOptions
	cmd := &cobra.Command{
		Use:     "apply -f FILE|FOLDER|-…",
		Short:   "Declare agents, targets and tenants: all of them or, if anything is wrong, none",
		Example: "  errand apply -f fleet/\n  errand apply -f fleet/ --dry-run\n  generate | errand apply -f -",
		Args:    args(0, -1, ""),
		RunE: func(cmd *cobra.Command, words []string) error {
			// The shell turns -f fleet/*.yaml into one flag value and further words.
			paths = append(paths, words...)
			if len(paths) == 0 {
				return usagef("apply: no manifest given; want -f FILE, -f FOLDER or -f -")
			}
			set, err := a.loadManifests(paths)
			if err != nil {
				return err
			}
			if len(set.Objects) == 0 && !options.Prune {
				a.say("no documents in %s; nothing to apply", strings.Join(paths, ", "))
				return render.List(a.printer(), appliedView, nil)
			}
			body, err := encodeManifests(set)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			result, err := c.Apply(cmd.Context(), body, options)
			if err != nil {
				return fmt.Errorf("apply %s: %w", strings.Join(paths, ", "), placed(err, set))
			}
			a.warn(result.Results)
			if options.DryRun {
				a.say("dry run: nothing was changed")
			}
			return render.List(a.printer(), appliedView, result.Results)
		},
	}
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "file, folder or - for standard input; may be repeated")
	cmd.Flags().BoolVar(&options.DryRun, "dry-run", false, "say what would happen, change nothing")
	cmd.Flags().BoolVar(&options.Prune, "prune", false, "delete what is declared but not in the manifests")
	return cmd
}

// loadManifests reads files and folders, or standard input.
func (a *app) loadManifests(paths []string) (*manifest.Set, error) {
	if !slices.Contains(paths, "-") {
		return manifest.Load(paths)
	}
	if len(paths) > 1 {
		return nil, usagef("-f -: standard input cannot be mixed with files")
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("apply from standard input: %w", err)
	}
	return manifest.Parse([]manifest.File{{Name: "<stdin>", Data: a.in}}, manifest.Options{Dir: dir})
}

// placed says of a set that the server refused where in its files the faults are.
func placed(err error, set *manifest.Set) error {
	var p *api.Problem
	if errors.As(err, &p) {
		for i := range p.Errors {
			p.Errors[i].Location = set.Locate(p.Errors[i].Location)
		}
	}
	return err
}

// encodeManifests writes a set as the server takes it: checked, with defaults filled in and folders made absolute.
func encodeManifests(set *manifest.Set) ([]byte, error) {
	var b bytes.Buffer
	for _, o := range set.Objects {
		form, err := fleet.Encode(o.Object)
		if err != nil {
			return nil, err
		}
		b.WriteString("---\n")
		b.Write(form)
		b.WriteByte('\n')
	}
	if b.Len() > api.MaxBody {
		return nil, fmt.Errorf("the manifests are %d bytes together, one apply takes %d MiB; apply them in several", b.Len(), api.MaxBody>>20)
	}
	return b.Bytes(), nil
}

func (a *app) warn(results []api.Applied) {
	for _, r := range results {
		for _, w := range r.Warnings {
			a.say("warning: %s %s: %s", r.Kind, render.Clean(r.Name), render.Clean(w))
		}
	}
}

var appliedView = render.View[api.Applied]{
	Name: func(r api.Applied) string { return strings.ToLower(r.Kind) + "/" + r.Name },
	Columns: []render.Column[api.Applied]{
		{Head: "KIND", Cell: func(r api.Applied) string { return r.Kind }},
		{Head: "NAME", Cell: func(r api.Applied) string { return r.Name }},
		{Head: "ACTION", Cell: func(r api.Applied) string { return r.Action }},
	},
}
