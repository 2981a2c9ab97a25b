package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

func (a *app) letterView() render.View[api.DeadLetter] {
	type l = api.DeadLetter
	return render.View[l]{
		Name: func(l l) string { return l.ID },
		Columns: []render.Column[l]{
			{Head: "LETTER", Cell: func(l l) string { return l.ID }},
			{Head: "TRIGGER", Cell: func(l l) string { return render.Dash(l.Trigger) }},
			{Head: "MESSAGE", Cell: func(l l) string { return l.MessageID }},
			{Head: "ATTEMPTS", Cell: func(l l) string { return strconv.Itoa(l.Attempts) }},
			{Head: "AGE", Cell: func(l l) string { return render.Age(a.now(), l.At.Time) }},
			{Head: "REPLAYS", Cell: func(l l) string { return strconv.Itoa(l.Replays) }},
			{Head: "REASON", Cell: func(l l) string { return l.Reason }},
			{Head: "RUN", Wide: true, Cell: func(l l) string { return render.Dash(l.Run) }},
			{Head: "SUBSCRIPTION", Wide: true, Cell: func(l l) string { return render.Dash(l.Subscription) }},
			{Head: "BYTES", Wide: true, Cell: func(l l) string { return strconv.Itoa(l.Size) }},
		},
	}
}

func (a *app) deadLettersCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "deadletters [LETTER]",
		Short: "Show messages that became no run, or one of them with its data (-o json)",
		Args:  args(0, 1, "at most one dead letter"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if len(words) == 1 {
				l, err := c.DeadLetter(cmd.Context(), words[0])
				if err != nil {
					return fmt.Errorf("dead letter %s: %w", words[0], err)
				}
				return render.One(a.printer(), a.letterView(), *l)
			}
			var letters []api.DeadLetter
			for l, err := range c.DeadLetters(cmd.Context()) {
				if err != nil {
					return fmt.Errorf("list dead letters: %w", err)
				}
				letters = append(letters, l)
			}
			return listing(a, a.letterView(), letters, "dead letters")
		},
	}
}

func (a *app) replayCommand() *cobra.Command {
	var through string
	cmd := &cobra.Command{
		Use:   "replay LETTER",
		Short: "Submit the message of a dead letter once more: a run of its own each time",
		Args:  args(1, 1, "a dead letter"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			r, err := c.ReplayDeadLetter(cmd.Context(), words[0], api.Replay{Trigger: through})
			if err != nil {
				return fmt.Errorf("replay dead letter %s: %w", words[0], err)
			}
			return render.One(a.printer(), a.runView(), *r)
		},
	}
	cmd.Flags().StringVar(&through, "trigger", "", "map it with this trigger instead of its own")
	return cmd
}
