package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

const (
	maxVotes    = 1000    // decisions in one call
	maxStdinIDs = 100_000 // gates on standard input
)

func (a *app) gateView() render.View[api.Gate] {
	type g = api.Gate
	return render.View[g]{
		Name: func(g g) string { return g.ID },
		Columns: []render.Column[g]{
			{Head: "GATE", Cell: func(g g) string { return g.ID }},
			{Head: "TITLE", Cell: func(g g) string { return g.Title }},
			{Head: "ASKS", Cell: func(g g) string { return g.Asks() }},
			{Head: "REQUESTER", Cell: func(g g) string { return render.Dash(g.Requester) }},
			{Head: "STATE", Cell: func(g g) string { return g.State }},
			{Head: "VOTES", Cell: func(g g) string { return fmt.Sprintf("%d of %d", approvals(&g), g.Quorum) }},
			{Head: "AGE", Cell: func(g g) string { return render.Age(a.now(), g.RequestedAt.Time) }},
			{Head: "LEFT", Cell: func(g g) string { return render.Dash(a.timeLeft(&g)) }},
			{Head: "RUN", Wide: true, Cell: func(g g) string { return g.Run }},
			{Head: "APPROVERS", Wide: true, Cell: func(g g) string { return render.Dash(strings.Join(g.Approvers, ",")) }},
			{Head: "COST", Wide: true, Cell: func(g g) string { return cost(g.Cost) }},
			{Head: "TENANT", Wide: true, Cell: func(g g) string { return g.Tenant }},
		},
		Detail: a.describeGate,
	}
}

func approvals(g *api.Gate) int {
	n := 0
	for _, d := range g.Decisions {
		if d.Decision == "approve" {
			n++
		}
	}
	return n
}

// timeLeft is how long an open gate can still be decided.
func (a *app) timeLeft(g *api.Gate) string {
	if !g.Open() || g.Expires == nil {
		return ""
	}
	return render.Span(max(g.Expires.Sub(a.now()), 0))
}

// describeGate shows all that helps to decide.
func (a *app) describeGate(w io.Writer, g api.Gate) error {
	d := render.NewDetail(w)
	d.Field("Gate", g.ID)
	d.Field("Title", g.Title)
	d.Field("State", g.State)
	d.Field("Asks", strings.TrimSpace(g.Asks()+" "+g.Stage))
	d.Field("Run", g.Run)
	d.Field("Step", g.Step)
	d.Field("Tenant", g.Tenant)
	d.Field("Requester", g.Requester)
	who := strings.Join(g.Approvers, ", ")
	if who == "" {
		who = "everybody who may approve"
	}
	if g.NotRequester {
		who += "; not the requester"
	}
	d.Field("Approvers", who)
	d.Field("Quorum", strconv.Itoa(g.Quorum))
	d.Field("Cost so far", cost(g.Cost))
	d.Field("Asked", instant(&g.RequestedAt))
	if left := a.timeLeft(&g); left != "" {
		d.Field("Time left", left+", then "+map[string]string{"approve": "it is approved", "escalate": "others are asked", "reject": "it is rejected"}[g.OnExpiry])
	}
	if g.EscalatedAt != nil {
		d.Field("Escalated", instant(g.EscalatedAt)+" to "+strings.Join(g.EscalateTo, ", "))
	}
	d.Field("Decided", instant(g.DecidedAt))
	for _, x := range g.Decisions {
		d.Field("Decision", strings.TrimSpace(fmt.Sprintf("%s by %s at %s %s", x.Decision, x.By, instant(&x.At), x.Comment)))
	}
	for _, x := range g.Refused {
		d.Field("Refused", fmt.Sprintf("%s by %s at %s: %s", x.Decision, x.By, instant(&x.At), x.Refused))
	}
	d.JSON("Action", g.Action)
	d.Field("Action hash", g.ActionHash)
	if g.Diff != "" {
		d.Heading("Diff")
		for line := range strings.Lines(g.Diff) {
			if _, err := fmt.Fprintln(d.Indented(), render.Clean(strings.TrimRight(line, "\r\n"))); err != nil {
				return err
			}
		}
	}
	d.JSON("Context", g.Context)
	d.JSON("Input", g.Input)
	return d.Err()
}

// person is who acts, on a server without login.
type person struct {
	as     string
	groups []string
}

func (p *person) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.as, "as", "", "who you are, for a server without login")
	cmd.Flags().StringSliceVar(&p.groups, "groups", nil, "with --as: the groups you are in; all of them unless given")
}

func (a *app) gatesCommand() *cobra.Command {
	var f api.GateFilter
	var who person
	cmd := &cobra.Command{
		Use:     "gates [GATE…]",
		Short:   "Show what waits for people to decide, or all about some of it",
		Example: "  errand gates\n  errand gates --approver me\n  errand gates 7kq2…",
		Args:    args(0, -1, "gates"),
		RunE: func(cmd *cobra.Command, ids []string) error {
			c, err := a.clientFor(who)
			if err != nil {
				return err
			}
			var gates []api.Gate
			for _, id := range ids {
				g, err := a.findGate(cmd.Context(), c, id)
				if err != nil {
					return err
				}
				gates = append(gates, *g)
			}
			if len(ids) > 0 {
				return a.showGates(gates)
			}
			for g, err := range c.Gates(cmd.Context(), f) {
				if err != nil {
					return fmt.Errorf("list gates: %w", err)
				}
				gates = append(gates, g)
			}
			return listing(a, a.gateView(), gates, "gates")
		},
	}
	cmd.Flags().StringVar(&f.State, "state", "", "open (unless given), approved, rejected, expired, canceled or all")
	cmd.Flags().StringVar(&f.Approver, "approver", "", "who is asked: user:NAME, group:NAME, role:NAME, or me")
	cmd.Flags().StringVar(&f.Run, "run", "", "those of one run")
	who.add(cmd)
	return cmd
}

// showGates shows each with all there is.
func (a *app) showGates(gates []api.Gate) error {
	if !a.format.Human() {
		if len(gates) == 1 {
			return render.One(a.printer(), a.gateView(), gates[0])
		}
		return render.List(a.printer(), a.gateView(), gates)
	}
	for i, g := range gates {
		if i > 0 {
			if _, err := fmt.Fprintln(a.out); err != nil {
				return err
			}
		}
		if err := a.describeGate(a.out, g); err != nil {
			return err
		}
	}
	return nil
}

// findGate reads a gate by its own id, or by the id of a run that waits at one.
func (a *app) findGate(ctx context.Context, c *api.Client, id string) (*api.Gate, error) {
	g, err := c.Gate(ctx, id)
	if !api.HasCode(err, api.CodeNotFound) {
		if err != nil {
			err = fmt.Errorf("gate %s: %w", id, err)
		}
		return g, err
	}
	var open []api.Gate
	for one, e := range c.Gates(ctx, api.GateFilter{Run: id}) {
		if e != nil {
			return nil, fmt.Errorf("gates of run %s: %w", id, e)
		}
		open = append(open, one)
	}
	switch len(open) {
	case 0:
		return nil, fmt.Errorf("gate %s: %w; nor is it a run that waits at a gate", id, err)
	case 1:
		return c.Gate(ctx, open[0].ID)
	}
	return nil, &exitError{ExitConflict, fmt.Errorf("run %s waits at %d gates: name one of them, or use --all-of %s", id, len(open), id)}
}

func (a *app) approveCommand() *cobra.Command {
	return a.voteCommand("approve", "Approve what runs ask for, by gate or by run")
}

func (a *app) rejectCommand() *cobra.Command {
	return a.voteCommand("reject", "Reject what runs ask for, by gate or by run")
}

func (a *app) voteCommand(verb, short string) *cobra.Command {
	var who person
	var comment, allOf string
	cmd := &cobra.Command{
		Use:   verb + " GATE…",
		Short: short,
		Long: short + ".\n\nEach decision is about the action as it was read: one that has changed by then is refused. With - for the gates they are\n" +
			"read from standard input, as ids one a line or as JSON of \"errand gates -o json\", whose actions then count.",
		Example: "  errand " + verb + " 7kq2…\n  errand gates --approver me -o json | errand " + verb + " -",
		Args:    args(0, -1, "gates, runs or -"),
		RunE: func(cmd *cobra.Command, ids []string) error {
			ctx := cmd.Context()
			c, err := a.clientFor(who)
			if err != nil {
				return err
			}
			// 1. Which, and what is decided about.
			var items []api.GateDecideItem
			var first error
			failed := func(err error) {
				if first == nil {
					first = err
					return
				}
				a.report(err)
			}
			switch {
			case len(ids) == 1 && ids[0] == "-" && allOf == "":
				if items, err = readGates(a.in); err != nil {
					return err
				}
			case (len(ids) == 0) == (allOf == ""), slices.Contains(ids, "-"):
				return usagef("%s: want gates or runs, or - for standard input, or --all-of RUN", verb)
			case allOf != "":
				for g, err := range c.Gates(ctx, api.GateFilter{Run: allOf}) {
					if err != nil {
						return fmt.Errorf("gates of run %s: %w", allOf, err)
					}
					items = append(items, itemOf(&g))
				}
			}
			for _, id := range ids {
				if id == "-" {
					continue
				}
				g, err := a.findGate(ctx, c, id)
				if err != nil {
					failed(fmt.Errorf("%s %w", verb, err))
					continue
				}
				items = append(items, itemOf(g))
			}
			// 2. The decisions.
			var decided []api.Gate
			for part := range slices.Chunk(items, maxVotes) {
				for i := range part {
					part[i].Decision, part[i].Comment = verb, comment
				}
				out, err := c.DecideGates(ctx, part)
				if err != nil {
					return fmt.Errorf("%s %d gates: %w", verb, len(part), err)
				}
				if len(out.Items) != len(part) {
					return fmt.Errorf("%s %d gates: the server answered for %d", verb, len(part), len(out.Items))
				}
				for i, o := range out.Items {
					if o.Error != nil {
						failed(fmt.Errorf("%s gate %s: %w", verb, part[i].ID, o.Error))
						continue
					}
					decided = append(decided, *o.Gate)
				}
			}
			// 3. What became of it.
			if len(decided) == 1 && len(items) == 1 {
				err = render.One(a.printer(), a.gateView(), decided[0])
			} else if len(decided) > 0 || !a.format.Human() {
				err = render.List(a.printer(), a.gateView(), decided)
			}
			if err != nil {
				return err
			}
			return first
		},
	}
	cmd.Flags().StringVar(&comment, "comment", "", "why, for the history")
	cmd.Flags().StringVar(&allOf, "all-of", "", "every open gate of this run")
	who.add(cmd)
	return cmd
}

func itemOf(g *api.Gate) api.GateDecideItem {
	return api.GateDecideItem{ID: g.ID, GateDecide: api.GateDecide{ActionHash: g.ActionHash}}
}

// readGates reads gates to decide: JSON objects with id and actionHash, one after another or in a list, or ids one a line.
func readGates(in io.Reader) ([]api.GateDecideItem, error) {
	text := bufio.NewReader(io.LimitReader(in, api.MaxBatchBody))
	begin, _ := text.Peek(512)
	var items []api.GateDecideItem
	add := func(id, hash string) error {
		if len(items) == maxStdinIDs {
			return usagef("more than %d gates on standard input", maxStdinIDs)
		}
		items = append(items, api.GateDecideItem{ID: id, GateDecide: api.GateDecide{ActionHash: hash}})
		return nil
	}
	if begin = bytes.TrimSpace(begin); len(begin) == 0 || begin[0] != '[' && begin[0] != '{' {
		lines := bufio.NewScanner(text)
		for lines.Scan() {
			if id := strings.TrimSpace(lines.Text()); id != "" {
				if err := add(id, ""); err != nil {
					return nil, err
				}
			}
		}
		return items, lines.Err()
	}
	type gate struct {
		ID         string `json:"id"`
		ActionHash string `json:"actionHash"`
	}
	d := json.NewDecoder(text)
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return items, nil
		}
		list := []gate{{}}
		if err == nil && raw[0] == '[' {
			err = json.Unmarshal(raw, &list)
		} else if err == nil {
			err = json.Unmarshal(raw, &list[0])
		}
		if err != nil {
			return nil, usagef("standard input is no JSON of gates: %v", err)
		}
		for _, g := range list {
			if g.ID == "" {
				return nil, usagef("standard input has a gate without an id")
			}
			if err := add(g.ID, g.ActionHash); err != nil {
				return nil, err
			}
		}
	}
}
