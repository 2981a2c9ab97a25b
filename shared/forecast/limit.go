package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limit is a bound on a figure of a result, for use where a fleet is to be checked before it is applied.
type Limit struct {
	Tenant string // "" for each tenant; of usd, for all together
	Figure string // one of Figures
	Most   float64
	text   string
}

// figure is something that can be limited.
type figure struct {
	unit  byte // s: a length of time, %: a share of the runs, $: dollars
	value func(*Row) float64
}

var limited = map[string]figure{
	"p50":           {'s', func(r *Row) float64 { return r.Wait.P50.Std().Seconds() }},
	"p95":           {'s', func(r *Row) float64 { return r.Wait.P95.Std().Seconds() }},
	"p99":           {'s', func(r *Row) float64 { return r.Wait.P99.Std().Seconds() }},
	"mean":          {'s', func(r *Row) float64 { return r.Wait.Mean.Std().Seconds() }},
	"max":           {'s', func(r *Row) float64 { return r.Wait.Max.Std().Seconds() }},
	"starved":       {'s', func(r *Row) float64 { return r.Starved.Std().Seconds() }},
	"unschedulable": {'s', func(r *Row) float64 { return r.UnschedulableTime.Std().Seconds() }},
	"shed":          {'%', func(r *Row) float64 { return 100 * share(r.Shed+r.Refused, r.Arrived) }},
	"failed":        {'%', func(r *Row) float64 { return 100 * share(r.Failed, r.Arrived) }},
	"waiting":       {'%', func(r *Row) float64 { return 100 * share(r.Waiting, r.Arrived) }},
	"usd":           {'$', (*Row).USD},
}

// Figures lists what can be limited: p50, p95, p99, mean and max are of the wait for the first start.
var Figures = []string{"p50", "p95", "p99", "mean", "max", "starved", "unschedulable", "shed", "failed", "waiting", "usd"}

// ParseLimit reads [TENANT:]FIGURE=MOST, such as p95=30s, acme:shed=1% and usd=20.
func ParseLimit(text string) (Limit, error) {
	l := Limit{text: text}
	name, most, ok := strings.Cut(text, "=")
	if !ok {
		return l, fmt.Errorf("%.80q: want [TENANT:]FIGURE=MOST, such as p95=30s", text)
	}
	if before, after, found := strings.Cut(name, ":"); found {
		l.Tenant, name = before, after
	}
	l.Figure = name
	f, known := limited[name]
	if !known {
		return l, fmt.Errorf("%.80q: %.40q is not one of %s", text, name, strings.Join(Figures, ", "))
	}
	var err error
	switch f.unit {
	case 's':
		var d time.Duration
		if d, err = time.ParseDuration(most); err != nil || d < 0 {
			return l, fmt.Errorf("%.80q: want a length of time such as 30s", text)
		}
		l.Most = d.Seconds()
	case '%':
		if l.Most, err = strconv.ParseFloat(strings.TrimSuffix(most, "%"), 64); err != nil || !(l.Most >= 0 && l.Most <= 100) {
			return l, fmt.Errorf("%.80q: want a share of the runs such as 1%%", text)
		}
	default:
		if l.Most, err = strconv.ParseFloat(most, 64); err != nil || !(l.Most >= 0) || math.IsInf(l.Most, 0) {
			return l, fmt.Errorf("%.80q: want dollars such as 20", text)
		}
	}
	return l, nil
}

// Breach is a limit that a result does not keep.
type Breach struct {
	Limit  string `json:"limit"`
	Tenant string `json:"tenant,omitempty"`
	Got    string `json:"got"`
}

// String is the breach in a sentence.
func (b Breach) String() string {
	return fmt.Sprintf("limit %s is broken: %s has %s", b.Limit, cmp.Or(b.Tenant, "the whole"), b.Got)
}

// Check lists the breaches, in the order of the limits and of the tenants' names. The error names a tenant of which
// there are no arrivals.
func Check(r *Result, limits []Limit) ([]Breach, error) {
	var list []Breach
	for _, l := range limits {
		f := limited[l.Figure]
		rows := r.Tenants
		switch {
		case l.Tenant != "":
			i := slices.IndexFunc(rows, func(row Row) bool { return row.Tenant == l.Tenant && row.Arrived > 0 })
			if i < 0 {
				return nil, fmt.Errorf("limit %.80q: no run of tenant %s arrives", l.text, l.Tenant)
			}
			rows = rows[i : i+1]
		case f.unit == '$':
			rows = []Row{r.Total}
		}
		for i := range rows {
			if got := f.value(&rows[i]); got > l.Most {
				list = append(list, Breach{l.text, rows[i].Tenant, f.text(got)})
			}
		}
	}
	return list, nil
}

func (f figure) text(v float64) string {
	switch f.unit {
	case 's':
		return spanOf(v * 1000).String()
	case '%':
		return strconv.FormatFloat(v, 'f', 1, 64) + "%"
	}
	return "$" + strconv.FormatFloat(v, 'f', 2, 64)
}
