package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/render"
)

// maxAuditPages bounds the history that one audit shows: 100,000 events.
const maxAuditPages = 100

func (a *app) auditCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "audit RUN",
		Short: "Show inputs, decisions, approvals, effects, children, spend and history of a run",
		Args:  args(1, 1, "a run"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			doc, err := wholeAudit(cmd.Context(), c, words[0])
			if err != nil {
				return fmt.Errorf("audit run %s: %w", words[0], err)
			}
			if a.format.Human() {
				return a.describeAudit(a.out, doc)
			}
			return render.One(a.printer(), render.View[api.Audit]{Name: func(d api.Audit) string { return d.Run.ID }}, *doc)
		},
	}
}

// wholeAudit is an audit with all of its pages.
func wholeAudit(ctx context.Context, c *api.Client, run string) (*api.Audit, error) {
	doc, err := c.Audit(ctx, run, api.Page{})
	if err != nil {
		return nil, err
	}
	for n := 1; doc.NextPageToken != "" && n < maxAuditPages; n++ {
		more, err := c.Audit(ctx, run, api.Page{Token: doc.NextPageToken})
		if err != nil {
			return nil, err
		}
		doc.Events = append(doc.Events, more.Events...)
		doc.Decisions = append(doc.Decisions, more.Decisions...)
		doc.NextPageToken = more.NextPageToken
	}
	return doc, nil
}

func (a *app) describeAudit(w io.Writer, doc *api.Audit) error {
	if err := a.describeRun(w, doc.Run); err != nil {
		return err
	}
	d := render.NewDetail(w)
	d.Field("Spend", firstOf(familyCost(doc.Run), cost(doc.Spend))+", with all below it")
	part := func(label string, n int, table func(render.Printer) error) error {
		if n == 0 {
			return nil
		}
		d.Heading(fmt.Sprintf("%s (%d)", label, n))
		return table(render.Printer{W: d.Indented(), Format: render.Table})
	}
	type decision = api.AuditDecision
	decisions := render.View[decision]{Columns: []render.Column[decision]{
		{Head: "AT", Cell: func(x decision) string { return instant(&x.At) }},
		{Head: "ATTEMPT", Cell: func(x decision) string { return strconv.Itoa(x.Attempt) }},
		{Head: "TARGET", Cell: func(x decision) string { return x.Target }},
		{Head: "WHY", Cell: func(x decision) string { return render.Dash(x.Why) }},
	}}
	type gate = api.Gate
	approvals := render.View[gate]{Columns: []render.Column[gate]{
		{Head: "GATE", Cell: func(x gate) string { return x.ID }},
		{Head: "STATE", Cell: func(x gate) string { return x.State }},
		{Head: "BY", Cell: func(x gate) string { return render.Dash(decidedBy(x)) }},
		{Head: "TITLE", Cell: func(x gate) string { return x.Title }},
	}}
	for _, err := range []error{
		part("Decisions", len(doc.Decisions), func(p render.Printer) error { return render.List(p, decisions, doc.Decisions) }),
		part("Approvals", len(doc.Approvals), func(p render.Printer) error { return render.List(p, approvals, doc.Approvals) }),
		part("Effects", len(doc.Receipts), func(p render.Printer) error { return render.List(p, a.receiptView(), doc.Receipts) }),
		part("Children", len(doc.Children), func(p render.Printer) error { return render.List(p, a.runView(), doc.Children) }),
		part("History", len(doc.Events), func(p render.Printer) error { return render.List(p, eventView, doc.Events) }),
	} {
		if err != nil {
			return err
		}
	}
	if doc.Truncated || doc.NextPageToken != "" {
		a.say("not all of it is shown: there is more than an audit holds")
	}
	return d.Err()
}

// decidedBy names who decided a gate.
func decidedBy(g api.Gate) string {
	names := make([]string, 0, len(g.Decisions))
	for _, d := range g.Decisions {
		names = append(names, d.By)
	}
	return strings.Join(names, ", ")
}
