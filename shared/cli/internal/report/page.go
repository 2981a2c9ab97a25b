package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/forecast"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// Bounds on what the page draws; its tables have the rest.
const (
	maxCards  = 12 // tenants
	maxPanels = 8  // targets, and agents
	maxRows   = 400
)

// page is what the template shows.
type page struct {
	Arrivals, Window, Start, Runs string
	Two                           bool
	Sides                         []pageSide
	Breaches                      []string
	Findings                      []forecast.Finding
	Differences                   []forecast.Difference
	Causes                        []cause
	Cards                         []card
	More                          int // tenants without a card
	Targets, Workers              []chart
	TenantTable, AgentTable       table
}

// table is what the terminal's table says.
type table struct {
	Head string
	Two  bool
	Rows []pageRow
}

// Nine is one for each cause, for its color.
func (*page) Nine() []forecast.Cause { return forecast.Causes }

// ClassOf is the class of a label.
func (*page) ClassOf(label string) string { return strings.ToLower(label) }

type pageSide struct {
	Label, Class, Name string
	Tiles              []tile
}

type tile struct{ Name, Value string }

// cause is an entry of the legend of the bars.
type cause struct{ Class, Name string }

// card is a tenant.
type card struct {
	Name   string
	Charts []chart
	Bars   []bar
}

// bar is what a tenant's waiting under a fleet went to.
type bar struct {
	Label, Class, Total string
	Parts               []part
	About               string
}

type part struct {
	Class, Name, Share string
	X, Width           float64 // of 100
}

// Shares are the bars as rows of a table: what was waited for, and its share in each bar.
func (c card) Shares() [][]string {
	var rows [][]string
	at := make(map[string]int)
	for i, b := range c.Bars {
		for _, x := range b.Parts {
			k, known := at[x.Name]
			if !known {
				k = len(rows)
				at[x.Name] = k
				rows = append(rows, append([]string{x.Name}, slices.Repeat([]string{"–"}, len(c.Bars))...))
			}
			rows[k][i+1] = x.Share
		}
	}
	return rows
}

// pageRow is a row of a table.
type pageRow struct {
	Name, Fleet, Class string
	Cells              []string
}

// causeText names the causes for people.
var causeText = map[forecast.Cause]string{
	forecast.CauseShare:         "slots held by other tenants",
	forecast.CauseOwn:           "slots held by its own runs",
	forecast.CauseCapacity:      "room that nobody held",
	forecast.CauseQuota:         "its own quota",
	forecast.CausePerTenant:     "the agent's limit per tenant",
	forecast.CauseConcurrency:   "the agent's limit",
	forecast.CauseSession:       "the turn before in its session",
	forecast.CauseUnschedulable: "a target that could take it",
	forecast.CauseBackoff:       "backing off after failures",
}

// HTML writes the report as a page that stands alone: no script, nothing from elsewhere.
func (r *Report) HTML(w io.Writer) error {
	if err := pageTemplate.Execute(w, r.page()); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func (r *Report) page() *page {
	first := r.A.Result
	p := &page{
		Arrivals: r.Arrivals, Window: first.Window.String(), Start: first.Start.Format("Monday 2 January 2006, 15:04 MST"),
		Runs: thousands(first.Total.Arrived), Two: r.B != nil, Findings: r.A.Findings,
	}
	// 1. What was played, and what came of it as a whole.
	for i, s := range r.sides() {
		t := &s.Result.Total
		p.Sides = append(p.Sides, pageSide{
			Label: r.label(i), Class: class(i), Name: s.Name,
			Tiles: []tile{
				{"wait p50", t.Wait.P50.String()}, {"wait p95", t.Wait.P95.String()}, {"longest wait", t.Wait.Max.String()},
				{"turned away", thousands(t.Shed + t.Refused)}, {"failed", thousands(t.Failed)},
				{"still waiting", thousands(t.Waiting)}, {"cost", "$" + cmp.Or(dollarsOrNone(t.USD()), "0")},
			},
		})
	}
	if r.Comparison != nil {
		p.Findings, p.Differences = r.Comparison.Findings, r.Comparison.Differences
	}
	for _, b := range r.Breaches {
		p.Breaches = append(p.Breaches, b.String())
	}
	// 2. Tenants, those that waited longest first.
	r.cards(p)
	// 3. Targets and workers.
	p.Targets = r.panels("slots", func(x *forecast.Result) []panel {
		var list []panel
		for _, t := range x.Targets {
			list = append(list, panel{t.Name, t.Used, t.Size})
		}
		return list
	})
	p.Workers = r.panels("workers", func(x *forecast.Result) []panel {
		var list []panel
		for _, a := range x.Series.Agents {
			list = append(list, panel{a.Agent, a.Workers, nil})
		}
		return list
	})
	// 4. The tables of the terminal.
	p.TenantTable = table{"tenant", p.Two, r.rows(func(x *forecast.Result) []forecast.Row { return x.Tenants })}
	p.AgentTable = table{"agent", p.Two, r.rows(func(x *forecast.Result) []forecast.Row { return x.Agents })}
	return p
}

// class tells the two fleets apart.
func class(i int) string { return [...]string{"a", "b"}[i] }

func dollarsOrNone(v float64) string {
	if v == 0 {
		return ""
	}
	return dollars(v)
}

func (r *Report) rows(of func(*forecast.Result) []forecast.Row) []pageRow {
	var list []pageRow
	for _, l := range r.lines(of) {
		x := l.row
		row := pageRow{Name: x.Name(), Fleet: l.fleet, Class: "a", Cells: []string{
			thousands(x.Arrived), span(x.Wait.P50), span(x.Wait.P95), span(x.Wait.Max), span(x.Starved), span(x.UnschedulableTime),
			count(x.Shed + x.Refused), count(x.Failed), count(x.Waiting), dollars(x.USD()),
		}}
		if l.fleet == "B" {
			row.Class = "b"
		}
		if list = append(list, row); len(list) == maxRows {
			break
		}
	}
	return list
}

// name is a curve's name, with the fleet where there are two.
func (r *Report) name(i int, text string) string {
	if r.B == nil {
		return text
	}
	return r.label(i) + " " + text
}

// cards draws the tenants.
func (r *Report) cards(p *page) {
	// 1. Which.
	worst := make(map[string]forecast.Span)
	var names []string
	for _, s := range r.sides() {
		for i := range s.Result.Tenants {
			t := &s.Result.Tenants[i]
			if t.Arrived == 0 {
				continue
			}
			if _, known := worst[t.Tenant]; !known {
				names = append(names, t.Tenant)
			}
			worst[t.Tenant] = max(worst[t.Tenant], t.Wait.P95, t.Wait.Max/100)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(worst[b], worst[a]) })
	p.More = max(len(names)-maxCards, 0)
	// 2. Each with its waits, its queue, and what it waited for.
	first := r.A.Result
	step := first.Series.Step.Std()
	used := make(map[forecast.Cause]bool)
	for k, name := range names[:min(len(names), maxCards)] {
		var waits, queue []curve
		for i, s := range r.sides() {
			at := slices.IndexFunc(s.Result.Series.Tenants, func(t forecast.TenantTime) bool { return t.Tenant == name })
			if at < 0 {
				continue
			}
			t := &s.Result.Series.Tenants[at]
			seconds := make([]float64, len(t.Wait))
			for j, w := range t.Wait {
				if seconds[j] = w.Std().Seconds(); t.Starts[j] == 0 {
					seconds[j] = -1
				}
			}
			waits = append(waits, curve{class(i), r.name(i, "mean wait"), seconds})
			queue = append(queue, curve{class(i), r.name(i, "queued"), t.Queued})
		}
		p.Cards = append(p.Cards, card{
			Name: name,
			Charts: []chart{
				newChart(fmt.Sprintf("wait-%d", k), "Wait of the runs that started", spanAxis, first.Start, step, waits),
				newChart(fmt.Sprintf("queue-%d", k), "Runs in the queue", countAxis, first.Start, step, queue),
			},
			Bars: r.bars(name, used),
		})
	}
	for i, c := range forecast.Causes {
		if used[c] {
			p.Causes = append(p.Causes, cause{fmt.Sprintf("c%d", i), causeText[c]})
		}
	}
}

// bars are what a tenant waited for, under each fleet, as long as it waited in all.
func (r *Report) bars(tenant string, used map[forecast.Cause]bool) []bar {
	var rows []*forecast.Row
	longest := forecast.Sum(0)
	for _, s := range r.sides() {
		i := slices.IndexFunc(s.Result.Tenants, func(x forecast.Row) bool { return x.Tenant == tenant })
		if i < 0 {
			rows = append(rows, new(forecast.Row))
			continue
		}
		rows = append(rows, &s.Result.Tenants[i])
		longest = max(longest, rows[len(rows)-1].Waited())
	}
	var list []bar
	for i, row := range rows {
		all := row.Waited()
		b := bar{Label: r.label(i), Class: class(i), Total: all.String()}
		x := 0.0
		for k, c := range forecast.Causes {
			if row.Causes[c] <= 0 {
				continue
			}
			width := 100 * float64(row.Causes[c]/longest)
			used[c] = true
			share := fmt.Sprintf("%.0f %%", 100*float64(row.Causes[c]/all))
			b.Parts = append(b.Parts, part{fmt.Sprintf("c%d", k), causeText[c], share, x, width})
			b.About += fmt.Sprintf("%s for %s. ", share, causeText[c])
			x += width
		}
		list = append(list, b)
	}
	return list
}

// panel is a thing over time, with how much there is of it where that has a bound.
type panel struct {
	name       string
	used, size []float64
}

// panels draws the busiest things.
func (r *Report) panels(what string, of func(*forecast.Result) []panel) []chart {
	peaks := make(map[string]float64)
	var names []string
	all := make([]map[string]panel, 0, 2)
	for _, s := range r.sides() {
		byName := make(map[string]panel)
		for _, x := range of(s.Result) {
			byName[x.name] = x
			if _, known := peaks[x.name]; !known {
				names = append(names, x.name)
			}
			peaks[x.name] = max(peaks[x.name], slices.Max(append(x.used, 0)))
		}
		all = append(all, byName)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return peaks[n] == 0 })
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(peaks[b], peaks[a]) })
	first := r.A.Result
	var list []chart
	for k, name := range names[:min(len(names), maxPanels)] {
		var curves []curve
		for i, byName := range all {
			x, ok := byName[name]
			if !ok {
				continue
			}
			curves = append(curves, curve{class(i), r.name(i, what), x.used})
			if len(x.size) > 0 && slices.Max(x.size) > 0 {
				curves = append(curves, curve{class(i) + " size", r.name(i, "there are"), x.size})
			}
		}
		list = append(list, newChart(fmt.Sprintf("%s-%d", what, k), name, countAxis, first.Start, time.Duration(first.Series.Step), curves))
	}
	return list
}
