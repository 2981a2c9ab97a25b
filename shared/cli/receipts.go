package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

func (a *app) receiptView() render.View[api.Receipt] {
	type r = api.Receipt
	return render.View[r]{
		Name: func(r r) string { return r.ID },
		Columns: []render.Column[r]{
			{Head: "RECEIPT", Cell: func(r r) string { return r.ID }},
			{Head: "RUN", Cell: func(r r) string { return r.Run }},
			{Head: "EFFECT", Cell: func(r r) string { return r.Effect }},
			{Head: "STATE", Cell: func(r r) string {
				if r.UndoFailed {
					return r.State + ", undo failed"
				}
				return r.State
			}},
			{Head: "ATTEMPT", Cell: func(r r) string { return strconv.Itoa(r.Attempt) }},
			{Head: "BEGUN", Cell: func(r r) string { return render.Age(a.now(), r.BegunAt.Time) }},
			{Head: "ON-UNKNOWN", Cell: func(r r) string { return render.Dash(r.OnUnknown) }},
			{Head: "UNIT", Wide: true, Cell: func(r r) string { return r.Unit }},
			{Head: "STEP", Wide: true, Cell: func(r r) string { return render.Dash(r.Step) }},
			{Head: "TENANT", Wide: true, Cell: func(r r) string { return r.Tenant }},
			{Head: "RESOLVED-BY", Wide: true, Cell: func(r r) string { return render.Dash(r.ResolvedBy) }},
		},
	}
}

func (a *app) receiptsCommand() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "receipts [RUN]",
		Short: "Show the effects of a run, or of all runs those that people must look at",
		Long: "Without a run: the effects of all runs of which nobody knows whether they happened (settle them with \"errand resolve\"),\n" +
			"then those that could not be undone (\"errand explain RUN\" says who is asked).",
		Example: "  errand receipts\n  errand receipts --state undoFailed\n  errand receipts 4u7q2m",
		Args:    args(0, 1, "at most one run"),
		RunE: func(cmd *cobra.Command, words []string) error {
			states := []string{api.ReceiptsUnknown, api.ReceiptsUndoFailed}
			switch {
			case state != "" && !slices.Contains(states, state):
				return usagef("receipts: --state %q: want %s", render.Clean(state), strings.Join(states, " or "))
			case state != "" && len(words) == 1:
				return usagef("receipts: --state selects among all runs; of a run all are shown")
			case state != "":
				states = []string{state}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if len(words) == 1 {
				list, err := c.Receipts(cmd.Context(), words[0])
				if err != nil {
					return fmt.Errorf("receipts of run %s: %w", words[0], err)
				}
				return listing(a, a.receiptView(), list.Items, "receipts")
			}
			var open []api.Receipt
			for _, s := range states {
				for r, err := range c.OpenReceipts(cmd.Context(), s) {
					if err != nil {
						return fmt.Errorf("list receipts with state %s: %w", s, err)
					}
					open = append(open, r)
				}
			}
			return listing(a, a.receiptView(), open, "receipts that are unknown or could not be undone")
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "of all runs: unknown or undoFailed; both without it")
	return cmd
}

func (a *app) resolveCommand() *cobra.Command {
	var happened, didNot bool
	var result string
	cmd := &cobra.Command{
		Use:   "resolve RECEIPT --happened|--not",
		Short: "Settle an effect of which nobody knows whether it happened",
		Example: "  errand resolve 9f3c… --happened -i '{\"messageId\": \"42\"}'\n" +
			"  errand resolve 9f3c… --not",
		Args: args(1, 1, "a receipt"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if happened == didNot {
				return usagef("resolve: want either --happened or --not: look at the outside system first")
			}
			if didNot && result != "" {
				return usagef("resolve --not: what did not happen has no result; leave -i out")
			}
			body := api.Resolve{Happened: &happened}
			var err error
			if body.Result, err = a.readValue("-i", result); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			r, err := c.Resolve(cmd.Context(), words[0], body)
			if err != nil {
				return fmt.Errorf("resolve receipt %s: %w", words[0], err)
			}
			return render.One(a.printer(), a.receiptView(), *r)
		},
	}
	cmd.Flags().BoolVar(&happened, "happened", false, "it took place")
	cmd.Flags().BoolVar(&didNot, "not", false, "it did not take place; the run may do it now")
	cmd.Flags().BoolVar(&didNot, "did-not-happen", false, "")
	_ = cmd.Flags().MarkHidden("did-not-happen") // is there: cannot fail
	cmd.Flags().StringVarP(&result, "input", "i", "", "with --happened: its result, JSON, @FILE or -")
	return cmd
}
