package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs RUN",
		Short: "Show what a run's attempts wrote",
		Args:  args(1, 1, "a run"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			lines := c.Logs(cmd.Context(), words[0])
			if follow {
				lines = c.FollowLogs(cmd.Context(), words[0])
			}
			var all []api.LogLine
			stream := render.NewStream(a.printer(), logView)
			for line, err := range lines {
				if err != nil {
					return fmt.Errorf("logs of run %s: %w", words[0], err)
				}
				switch {
				case a.format.Human():
					err = a.logLine(line)
				case follow || a.format != render.JSON:
					err = stream.Add(line)
				default:
					all = append(all, line)
				}
				if err != nil {
					return err
				}
			}
			if a.format == render.JSON && !follow {
				return render.List(a.printer(), logView, all)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run is over")
	return cmd
}

// logLine prints the text alone, as the agent wrote it, or with -o wide what is known about it too.
func (a *app) logLine(l api.LogLine) error {
	prefix := ""
	if a.format == render.Wide {
		prefix = fmt.Sprintf("%s %d %-6s ", l.At.UTC().Format("15:04:05.000"), l.Attempt, render.Clean(l.Stream))
	}
	_, err := fmt.Fprintf(a.out, "%s%s\n", prefix, render.Clean(l.Text))
	return err
}

var logView = render.View[api.LogLine]{Name: func(l api.LogLine) string { return l.Text }}

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var after int64
	cmd := &cobra.Command{
		Use:   "events RUN",
		Short: "Show a run's history",
		Args:  args(1, 1, "a run"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			events := c.Events(cmd.Context(), words[0])
			if follow {
				events = c.FollowEvents(cmd.Context(), words[0], after)
			}
			var all []api.Event
			stream := render.NewStream(a.printer(), eventView)
			for e, err := range events {
				if err != nil {
					return fmt.Errorf("events of run %s: %w", words[0], err)
				}
				switch {
				case e.Seq <= after:
				case !follow:
					all = append(all, e)
				default:
					if err := stream.Add(e); err != nil {
						return err
					}
				}
			}
			if follow {
				return nil
			}
			return listing(a, eventView, all, "events")
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run is over")
	cmd.Flags().Int64Var(&after, "after", 0, "only events after this number")
	return cmd
}

var eventView = render.View[api.Event]{
	Name: func(e api.Event) string { return strconv.FormatInt(e.Seq, 10) },
	Columns: []render.Column[api.Event]{
		{Head: "SEQ", Cell: func(e api.Event) string { return strconv.FormatInt(e.Seq, 10) }},
		{Head: "AT", Cell: func(e api.Event) string { return e.At.UTC().Format("15:04:05.000") }},
		{Head: "EVENT", Cell: func(e api.Event) string { return e.Type }},
		{Head: "STATE", Cell: func(e api.Event) string { return e.State }},
		{Head: "ATTEMPT", Cell: func(e api.Event) string {
			if e.Attempt == 0 {
				return "-"
			}
			return strconv.Itoa(e.Attempt)
		}},
		{Head: "ACTOR", Wide: true, Cell: func(e api.Event) string { return render.Dash(e.Actor) }},
		{Head: "TARGET", Wide: true, Cell: func(e api.Event) string { return render.Dash(e.Target) }},
		{Head: "DUE", Wide: true, Cell: func(e api.Event) string { return render.Dash(instant(e.Due)) }},
		{Head: "DETAIL", Cell: func(e api.Event) string { return render.Dash(eventDetail(e)) }},
	},
}

func eventDetail(e api.Event) string {
	var parts []string
	for _, s := range []string{e.Reason, e.Class, e.Code, e.Message} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if len(parts) == 0 && e.Target != "" {
		parts = append(parts, "on "+e.Target)
	}
	return strings.Join(parts, " · ")
}

func (a *app) treeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tree RUN",
		Short: "Show a run with its descendants",
		Args:  args(1, 1, "a run"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			root, err := c.Tree(cmd.Context(), words[0])
			if err != nil {
				return fmt.Errorf("tree of run %s: %w", words[0], err)
			}
			if a.format == render.Name {
				return render.List(a.printer(), a.runView(), flatten(nil, *root))
			}
			view := render.View[api.TreeNode]{Detail: func(w io.Writer, n api.TreeNode) error { return a.writeTree(w, n, "", "") }}
			return render.One(a.printer(), view, *root)
		},
	}
}

func flatten(runs []api.Run, n api.TreeNode) []api.Run {
	runs = append(runs, n.Run)
	for _, c := range n.Children {
		runs = flatten(runs, c)
	}
	return runs
}

// limb is how a branch of a tree begins, and what stands before that which is below it.
func limb(last bool) (branch, below string) {
	if last {
		return "└─ ", "   "
	}
	return "├─ ", "│  "
}

// tally counts runs by state, in the order in which the states come.
func tally(nodes []api.TreeNode) string {
	var states []string
	count := make(map[string]int)
	for _, n := range nodes {
		if count[n.Run.State]++; count[n.Run.State] == 1 {
			states = append(states, n.Run.State)
		}
	}
	for i, s := range states {
		states[i] = fmt.Sprintf("%d %s", count[s], s)
	}
	return strings.Join(states, ", ")
}

// writeTree prints a node after first, and what is below it after rest.
func (a *app) writeTree(w io.Writer, n api.TreeNode, first, rest string) error {
	r := n.Run
	line := fmt.Sprintf("%s  %s  %s", r.ID, r.Name(), r.State)
	if r.Reason != "" {
		line += " (" + r.Reason + ")"
	}
	switch {
	case r.Workflow != "" && r.CurrentStage != "":
		line += "  at stage " + r.CurrentStage
		if r.Parent != "" && r.Stage != "" {
			line += "  of stage " + r.Stage
		}
	case r.Stage != "":
		line += "  stage " + r.Stage
	}
	if t := took(a.now(), r); t != "-" {
		line += "  " + t
	}
	if _, err := fmt.Fprintf(w, "%s%s\n", first, render.Clean(line)); err != nil {
		return err
	}
	// The runs of one stage stand together below it, where there are several.
	for i := 0; i < len(n.Children); {
		end := i + 1
		for end < len(n.Children) && n.Children[end].Run.Stage == n.Children[i].Run.Stage {
			end++
		}
		group := n.Children[i:end]
		last := end == len(n.Children) && !n.More
		i = end
		if len(group) > 1 && group[0].Run.Stage != "" {
			branch, below := limb(last)
			if _, err := fmt.Fprintf(w, "%s%sstage %s  %s\n", rest, branch, render.Clean(group[0].Run.Stage), tally(group)); err != nil {
				return err
			}
			for k, c := range group {
				c.Run.Stage = ""
				inner, lower := limb(k == len(group)-1)
				if err := a.writeTree(w, c, rest+below+inner, rest+below+lower); err != nil {
					return err
				}
			}
			continue
		}
		for k, c := range group {
			branch, below := limb(last && k == len(group)-1)
			if err := a.writeTree(w, c, rest+branch, rest+below); err != nil {
				return err
			}
		}
	}
	if n.More {
		_, err := fmt.Fprintf(w, "%s└─ … more; a tree shows 1,000 runs\n", rest)
		return err
	}
	return nil
}

func (a *app) explainCommand() *cobra.Command {
	var target string
	cmd := &cobra.Command{
		Use:     "explain RUN",
		Short:   "Say where a run is and why, or why it waits and what it waits for",
		Example: "  errand explain 4u7q2m\n  errand explain 4u7q2m --why-not gpu-west",
		Args:    args(1, 1, "a run"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			p, err := c.Placement(cmd.Context(), words[0], target)
			if err != nil {
				return fmt.Errorf("explain run %s: %w", words[0], err)
			}
			view := render.View[api.Placement]{
				Name:   func(p api.Placement) string { return p.Chosen },
				Detail: a.describePlacement,
			}
			return render.One(a.printer(), view, *p)
		},
	}
	cmd.Flags().StringVar(&target, "why-not", "", "say why this target was not chosen")
	return cmd
}

// describePlacement tells the story and, with -o wide, shows every candidate.
func (a *app) describePlacement(w io.Writer, p api.Placement) error {
	for _, line := range p.Story {
		if _, err := fmt.Fprintln(w, render.Clean(line)); err != nil {
			return err
		}
	}
	if len(p.Candidates) == 0 || a.format != render.Wide {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return render.List(render.Printer{W: w, Format: render.Wide}, candidateView, p.Candidates)
}

var candidateView = render.View[api.Candidate]{
	Name: func(c api.Candidate) string { return c.Target },
	Columns: []render.Column[api.Candidate]{
		{Head: "TARGET", Cell: func(c api.Candidate) string { return c.Target }},
		{Head: "FITS", Cell: func(c api.Candidate) string { return yesNo(c.Feasible) }},
		{Head: "SCORE", Cell: func(c api.Candidate) string {
			if !c.Feasible {
				return "-"
			}
			return strconv.Itoa(c.Score)
		}},
		{Head: "WHY", Cell: func(c api.Candidate) string {
			var parts []string
			for _, r := range c.Refusals {
				parts = append(parts, firstOf(r.Message, r.Reason))
			}
			for _, s := range c.Scores {
				parts = append(parts, fmt.Sprintf("%s %d×%d", s.Scorer, s.Score, s.Weight))
			}
			return strings.Join(parts, "; ")
		}},
	},
}
