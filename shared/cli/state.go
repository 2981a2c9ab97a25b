package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

func (a *app) stateView() render.View[api.State] {
	type s = api.State
	return render.View[s]{
		Name: func(s s) string { return s.Key },
		Columns: []render.Column[s]{
			{Head: "KEY", Cell: func(s s) string { return s.Key }},
			{Head: "VERSION", Cell: func(s s) string { return strconv.FormatInt(s.Version, 10) }},
			{Head: "BYTES", Cell: func(s s) string { return strconv.Itoa(s.Size) }},
			{Head: "AGE", Cell: func(s s) string { return render.Age(a.now(), s.UpdatedAt.Time) }},
			{Head: "BY", Cell: func(s s) string { return render.Dash(s.By) }},
			{Head: "RUN", Cell: func(s s) string { return render.Dash(s.Run) }},
			{Head: "ATTEMPT", Wide: true, Cell: func(s s) string { return strconv.Itoa(s.Attempt) }},
			{Head: "TENANT", Wide: true, Cell: func(s s) string { return s.Tenant }},
			{Head: "VALUE", Wide: true, Cell: func(s s) string { return render.Dash(string(s.Value)) }},
		},
	}
}

func (a *app) stateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Read and write the documents that runs of a tenant share",
		Example: "  errand state list ledger/\n" +
			"  errand state get ledger/acme -o json\n" +
			"  errand state put ledger/acme -i '{\"balance\": 12}' --version 3",
		Args: args(1, 1, "get, put, list or delete"),
		RunE: func(_ *cobra.Command, words []string) error {
			return usagef("state: no command %q; want get, put, list or delete", render.Clean(words[0]))
		},
	}
	cmd.AddCommand(a.stateGetCommand(), a.statePutCommand(), a.stateListCommand(), a.stateDeleteCommand())
	return cmd
}

func (a *app) stateGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get KEY",
		Short: "Show a document; its value with -o json, yaml or wide",
		Args:  args(1, 1, "a key"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			doc, err := c.State(cmd.Context(), "", words[0])
			if err != nil {
				return fmt.Errorf("read state %s: %w", words[0], err)
			}
			return render.One(a.printer(), a.stateView(), *doc)
		},
	}
}

func (a *app) statePutCommand() *cobra.Command {
	var version int64
	var value string
	cmd := &cobra.Command{
		Use:   "put KEY -i JSON [--version N]",
		Short: "Create a document, or write it over exactly one version of it",
		Args:  args(1, 1, "a key"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if value == "" {
				return usagef("state put: want the value with -i: JSON, @FILE or -")
			}
			if version < 0 {
				return usagef("state put: --version %d: want the version that is replaced, or none to create the document", version)
			}
			var put api.PutState
			var err error
			if put.Value, err = a.readValue("-i", value); err != nil {
				return err
			}
			if n := len(put.Value); n > api.MaxStateValue {
				return usagef("state put: the value has %d bytes, and may have %d: keep it elsewhere and write where", n, api.MaxStateValue)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			doc, err := c.PutState(cmd.Context(), "", words[0], version, put)
			if err != nil {
				return fmt.Errorf("write state %s: %w", words[0], err)
			}
			return render.One(a.printer(), a.stateView(), *doc)
		},
	}
	cmd.Flags().StringVarP(&value, "input", "i", "", "the value: JSON, @FILE or -")
	cmd.Flags().Int64Var(&version, "version", 0, "the version that is replaced; without it the document is created")
	return cmd
}

func (a *app) stateListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [PREFIX]",
		Short: "List documents, all or those whose keys begin with a prefix",
		Args:  args(0, 1, "at most one prefix"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			docs, err := a.statesOf(cmd.Context(), c, firstOf(words...))
			if err != nil {
				return err
			}
			return listing(a, a.stateView(), docs, "state")
		},
	}
}

func (a *app) statesOf(ctx context.Context, c *api.Client, prefix string) ([]api.State, error) {
	var docs []api.State
	for doc, err := range c.States(ctx, "", prefix) {
		if err != nil {
			return nil, fmt.Errorf("list state %s: %w", prefix, err)
		}
		docs = append(docs, doc)
	}
	return docs, nil
}

func (a *app) stateDeleteCommand() *cobra.Command {
	version := api.StateAny
	cmd := &cobra.Command{
		Use:   "delete KEY [--version N]",
		Short: "Delete a document; with --version, in exactly that version",
		Args:  args(1, 1, "a key"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if cmd.Flags().Changed("version") && version < 1 {
				return usagef("state delete: --version %d: want the version that is deleted", version)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if err := c.DeleteState(cmd.Context(), "", words[0], version); err != nil {
				return fmt.Errorf("delete state %s: %w", words[0], err)
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&version, "version", api.StateAny, "the version that is deleted; any without it")
	return cmd
}
