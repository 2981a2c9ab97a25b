// Package report writes what a forecast found: as tables and sentences for a terminal, and as a page with charts that
// stands alone in one file.
package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/forecast"
)

// Report is a forecast, or two of the same arrivals. In JSON, lengths of time are seconds.
type Report struct {
	Arrivals   string               `json:"arrivals"` // where they come from
	A          Side                 `json:"a"`
	B          *Side                `json:"b,omitempty"`
	Comparison *forecast.Comparison `json:"comparison,omitempty"`
	Breaches   []forecast.Breach    `json:"breaches"` // of limits, by A
}

// Side is one fleet and what came of it.
type Side struct {
	Name     string             `json:"name"` // where the fleet was read from
	Findings []forecast.Finding `json:"findings"`
	Result   *forecast.Result   `json:"result"`
}

func (r *Report) sides() []*Side {
	if r.B == nil {
		return []*Side{&r.A}
	}
	return []*Side{&r.A, r.B}
}

// line is a row of a table.
type line struct {
	fleet string // A or B; "" where there is one only
	row   *forecast.Row
}

// label is A or B, where there are two.
func (r *Report) label(i int) string {
	if r.B == nil {
		return ""
	}
	return string(rune('A' + i))
}

// lines pairs the rows of both fleets by name. Rows without runs are left out.
func (r *Report) lines(rows func(*forecast.Result) []forecast.Row) []line {
	var list []line
	for i, s := range r.sides() {
		all := rows(s.Result)
		for k := range all {
			if all[k].Arrived > 0 {
				list = append(list, line{r.label(i), &all[k]})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b line) int { return strings.Compare(a.row.Name(), b.row.Name()) })
	return list
}

func column(head string, cell func(*forecast.Row) string) render.Column[line] {
	return render.Column[line]{Head: head, Cell: func(l line) string { return cell(l.row) }}
}

func wide(c render.Column[line]) render.Column[line] {
	c.Wide = true
	return c
}

func span(s forecast.Span) string {
	if s == 0 {
		return "-"
	}
	return s.String()
}

func count(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

func dollars(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v < 0.01:
		return "<0.01"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// view is the table of rows whose first column is head.
func (r *Report) view(head string, workers bool) render.View[line] {
	v := render.View[line]{Name: func(l line) string { return l.row.Name() }}
	v.Columns = append(v.Columns, column(head, (*forecast.Row).Name))
	if r.B != nil {
		v.Columns = append(v.Columns, render.Column[line]{Head: "FLEET", Cell: func(l line) string { return l.fleet }})
	}
	v.Columns = append(v.Columns,
		column("RUNS", func(x *forecast.Row) string { return count(x.Arrived) }),
		column("P50", func(x *forecast.Row) string { return span(x.Wait.P50) }),
		column("P95", func(x *forecast.Row) string { return span(x.Wait.P95) }),
		wide(column("P99", func(x *forecast.Row) string { return span(x.Wait.P99) })),
		column("MAX", func(x *forecast.Row) string { return span(x.Wait.Max) }),
	)
	if !workers {
		v.Columns = append(v.Columns, column("STARVED", func(x *forecast.Row) string { return span(x.Starved) }))
	}
	v.Columns = append(v.Columns,
		column("UNSCHED", func(x *forecast.Row) string { return span(x.UnschedulableTime) }),
		column("SHED", func(x *forecast.Row) string { return count(x.Shed + x.Refused) }),
		column("FAILED", func(x *forecast.Row) string { return count(x.Failed) }),
		wide(column("RETRIES", func(x *forecast.Row) string { return count(x.Retries) })),
		column("WAITING", func(x *forecast.Row) string { return count(x.Waiting) }),
		column("USD", func(x *forecast.Row) string { return dollars(x.USD()) }),
		wide(column("TOKENS", func(x *forecast.Row) string { return count(x.Tokens) })),
	)
	if workers {
		v.Columns = append(v.Columns, column("WORKERS", func(x *forecast.Row) string { return count(int64(x.PeakWorkers)) }))
	} else {
		v.Columns = append(v.Columns, column("WAITS FOR", causes))
	}
	return v
}

// causes are the largest parts of a row's waiting.
func causes(r *forecast.Row) string {
	all := r.Waited()
	if all == 0 {
		return "-"
	}
	list := slices.Clone(forecast.Causes)
	slices.SortStableFunc(list, func(a, b forecast.Cause) int { return cmp.Compare(r.Causes[b], r.Causes[a]) })
	var parts []string
	for _, c := range list[:2] {
		if share := 100 * float64(r.Causes[c]/all); share >= 1 {
			parts = append(parts, fmt.Sprintf("%s %.0f%%", c, share))
		}
	}
	return strings.Join(parts, ", ")
}

// Text writes tables and sentences.
func (r *Report) Text(p render.Printer) error {
	w := &sticky{w: p.W}
	// 1. What was played.
	first := r.A.Result
	w.printf("%s from %s, %d runs of %s\n", first.Window, first.Start.Format("Mon 2 Jan 2006 15:04 MST"), first.Total.Arrived, render.Clean(r.Arrivals))
	for i, s := range r.sides() {
		if r.B != nil {
			w.printf("%s is %s\n", r.label(i), render.Clean(s.Name))
		}
	}
	// 2. The tables.
	w.printf("\n")
	tables := []struct {
		head    string
		workers bool
		rows    func(*forecast.Result) []forecast.Row
	}{
		{"TENANT", false, func(x *forecast.Result) []forecast.Row { return x.Tenants }},
		{"AGENT", true, func(x *forecast.Result) []forecast.Row { return x.Agents }},
	}
	if p.Format == render.Wide {
		tables = append(tables, tables[0])
		tables[2].head, tables[2].rows = "TENANT/AGENT", func(x *forecast.Result) []forecast.Row { return x.Pairs }
	}
	for _, t := range tables {
		w.keep(render.List(render.Printer{W: w, Format: p.Format}, r.view(t.head, t.workers), r.lines(t.rows)))
		w.printf("\n")
	}
	// 3. Why.
	findings := r.A.Findings
	if r.Comparison != nil {
		findings = r.Comparison.Findings
		if len(findings) == 0 {
			w.printf("All tenants fared about the same under both.\n")
		}
	} else if len(findings) == 0 {
		w.printf("Nobody waited noticeably.\n")
	}
	for _, f := range findings {
		w.printf("* %s\n", render.Clean(f.Text))
	}
	return w.err
}

// sticky keeps the first error of a writer.
type sticky struct {
	w   io.Writer
	err error
}

func (s *sticky) keep(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *sticky) Write(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(b)
	s.err = err
	return n, err
}

func (s *sticky) printf(format string, args ...any) { _, _ = fmt.Fprintf(s, format, args...) } // the error is kept
