package cli

import (
	"fmt"
	"strconv"

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
			{Head: "STATE", Cell: func(r r) string { return r.State }},
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
	return &cobra.Command{
		Use:   "receipts [RUN]",
		Short: "Show the effects of a run, or all of which nobody knows whether they happened",
		Args:  args(0, 1, "at most one run"),
		RunE: func(cmd *cobra.Command, words []string) error {
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
			var unknown []api.Receipt
			for r, err := range c.UnknownReceipts(cmd.Context()) {
				if err != nil {
					return fmt.Errorf("list unknown receipts: %w", err)
				}
				unknown = append(unknown, r)
			}
			return listing(a, a.receiptView(), unknown, "unknown receipts")
		},
	}
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
