package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
	"github.com/errand-run/errand/shared/run"
)

var monday = run.At(time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC))

// played is a report of a flood, and of the quota that stops it.
func played(t *testing.T, two bool) *Report {
	t.Helper()
	agent := &fleet.Agent{Meta: fleet.Meta{Name: "check"}, Shape: fleet.Pool, Run: fleet.Run{Command: []string{"x"}}}
	target := &fleet.Target{Meta: fleet.Meta{Name: "local"}, Runtime: fleet.RuntimeLocal, Capacity: fleet.Capacity{Runs: 4}}
	flood := &fleet.Tenant{Meta: fleet.Meta{Name: "flood"}, Quota: fleet.Quota{Running: 2}}
	for _, o := range []fleet.Object{agent, target, flood} {
		o.SetDefaults()
	}
	streams := []forecast.Stream{
		{Kind: &forecast.Kind{Tenant: "flood", Agent: "check", Duration: forecast.Constant(20e9)}, Batches: []forecast.Batch{{Count: 200}}},
		{Kind: &forecast.Kind{Tenant: "acme", Agent: "check", Duration: forecast.Constant(1e9)}, PerHour: 600},
	}
	side := func(objects ...fleet.Object) forecast.Side {
		r, err := forecast.Run(objects, forecast.Streams(streams, monday, time.Hour, 1), forecast.Options{Start: monday, Window: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return forecast.Side{Name: "fleet <" + objects[len(objects)-1].Name() + ">", Objects: objects, Result: r}
	}
	a := side(agent, target)
	r := &Report{Arrivals: "<b>day.yaml", A: Side{a.Name, forecast.Explain(a), a.Result}, Breaches: []forecast.Breach{{Limit: "p95=1s", Tenant: "acme", Got: "9s"}}}
	if two {
		b := side(agent, target, flood)
		c, err := forecast.Compare(a, b)
		if err != nil {
			t.Fatal(err)
		}
		r.B, r.Comparison = &Side{b.Name, forecast.Explain(b), b.Result}, &c
	}
	return r
}

func written(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestThePageStandsAlone(t *testing.T) {
	for name, two := range map[string]bool{"one fleet": false, "two fleets": true} {
		t.Run(name, func(t *testing.T) {
			text := written(t, played(t, two))
			for _, no := range []string{"<script", "http:", "https:", "<link", "@import", "url(", "ZgotmplZ", "<no value>", "<b>day"} {
				if strings.Contains(text, no) {
					t.Errorf("the page holds %q", no)
				}
			}
			for _, want := range []string{"&lt;b&gt;day.yaml", "limit p95=1s is broken: acme has 9s", "prefers-color-scheme: dark", `name="viewport"`, `<html lang="en">`} {
				if !strings.Contains(text, want) {
					t.Errorf("the page lacks %q", want)
				}
			}
			// Whoever does not see a chart has its table and its words.
			charts := strings.Count(text, `<svg class="chart"`)
			if tables := strings.Count(text, "<summary>As a table"); charts < 6 || tables != charts {
				t.Errorf("%d charts with %d tables", charts, tables)
			}
			for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1) {
				if !strings.Contains(svg, `role="img"`) || !strings.Contains(svg, "aria-label") {
					t.Errorf("a chart without words: %.200s", svg)
				}
				wellFormed(t, svg)
			}
		})
	}
}

func wellFormed(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("not well-formed: %v in %.300s", err, svg)
		}
	}
}

func TestThePageShowsBothFleetsAndSaysWhy(t *testing.T) {
	text := written(t, played(t, true))
	for _, want := range []string{
		"Who fared differently, and why", "quota.running of tenant flood is unset under A and 2 under B",
		"fleet &lt;flood&gt;", `<path class="a"`, `<path class="b"`, "its own quota", "slots held by other tenants", "Slots in use", "Workers of each agent",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if again := written(t, played(t, true)); again != text {
		t.Error("the same forecast gave another page")
	}
}

func TestTheTextSaysWhatThePageSays(t *testing.T) {
	var b strings.Builder
	if err := played(t, true).Text(render.Printer{W: &b, Format: render.Wide}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"A is fleet <local>\nB is fleet <flood>\n", "TENANT   FLEET   RUNS", "TENANT/AGENT   FLEET", "flood    B       200", "quota 100%",
		"What differs: quota.running of tenant flood is unset under A and 2 under B.",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, b.String())
		}
	}
}

func TestTheLargestCausesAreNamed(t *testing.T) {
	type sums = map[forecast.Cause]forecast.Sum
	for name, tc := range map[string]struct {
		causes sums
		want   string
	}{
		"of more time than nanoseconds hold": {sums{forecast.CauseShare: 1e11, forecast.CauseOwn: 3e11}, "own 75%, others 25%"},
		"of less than a second":              {sums{forecast.CauseShare: 0.1, forecast.CauseOwn: 0.3}, "own 75%, others 25%"},
		"of nothing":                         {sums{}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := causes(&forecast.Row{Causes: tc.causes}); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			r := &Report{A: Side{Result: &forecast.Result{Tenants: []forecast.Row{{Tenant: "acme", Causes: tc.causes}}}}}
			width := 0.0
			for _, x := range r.bars("acme", map[forecast.Cause]bool{})[0].Parts {
				width += x.Width
			}
			if whole := len(tc.causes) > 0; whole && (width < 99.9 || width > 100.1) || !whole && width != 0 {
				t.Errorf("a bar of %.1f %%", width)
			}
		})
	}
}

func TestAWriterThatFailsIsToldOf(t *testing.T) {
	full := errors.New("full")
	if err := played(t, false).Text(render.Printer{W: failing{full}, Format: render.Table}); !errors.Is(err, full) {
		t.Errorf("text: %v", err)
	}
	if err := played(t, false).HTML(failing{full}); !errors.Is(err, full) {
		t.Errorf("page: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestAxesAreRound(t *testing.T) {
	start := time.Date(2026, 3, 31, 6, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		axis   axis
		points []float64
		step   time.Duration
		y, x   string
	}{
		"seconds of a day":   {spanAxis, []float64{1, 7, -1, 3}, 6 * time.Hour, "0s 2s 4s 6s 8s", "08:00 12:00 16:00 20:00 00:00 04:00"},
		"hours of a minute":  {spanAxis, []float64{9000, 100}, 30 * time.Second, "0s 1h 2h 3h", "06:00:00 06:00:15 06:00:30 06:00:45 06:01:00"},
		"counts of ten days": {countAxis, []float64{1500, 0}, 5 * 24 * time.Hour, "0 500 1,000 1,500", "1 Apr 3 Apr 5 Apr 7 Apr 9 Apr"},
		"nothing":            {countAxis, []float64{0, 0}, time.Hour, "0 1", "06:00 06:30 07:00 07:30 08:00"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChart("x", "x", tc.axis, start, tc.step, []curve{{"a", "x", tc.points}})
			text := func(list []tick) string {
				var parts []string
				for _, k := range list {
					parts = append(parts, k.Text)
				}
				return strings.Join(parts, " ")
			}
			if diff := cmp.Diff([]string{tc.y, tc.x}, []string{text(c.Y), text(c.X)}); diff != "" {
				t.Errorf("axes (-want +got):\n%s", diff)
			}
		})
	}
}
