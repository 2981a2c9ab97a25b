package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/forecast"
)

// Geometry of a chart, in the units of its view box.
const (
	chartWidth  = 440
	chartHeight = 170
	padLeft     = 46
	padRight    = 20
	padTop      = 10
	padBottom   = 22
	plotWidth   = chartWidth - padLeft - padRight
	plotHeight  = chartHeight - padTop - padBottom
	// tableRows is into how many rows the table beside a chart gathers its points, at most.
	tableRows = 24
)

// chart is lines over time, drawn and as a table.
type chart struct {
	ID, Title, About string
	Width, Height    int
	Left, Right      float64 // of the plot
	Base             float64 // y of the axis
	Y, X             []tick
	Lines            []drawn
	Head             []string
	Rows             [][]string
}

// LabelX and LabelY are where the labels of the axes stand.
func (c chart) LabelX() float64 { return c.Left - 5 }
func (c chart) LabelY() float64 { return c.Base + 15 }

type tick struct {
	At   float64
	Text string
}

// drawn is a line as it is drawn. Class tells A from B and what is there from what is used.
type drawn struct {
	Class, Name, Path string
}

// curve is a line to draw. A point below 0 is a gap.
type curve struct {
	class, name string
	points      []float64
}

// axis says what the points of a chart mean.
type axis struct {
	text func(float64) string
	nice func(most float64) (top, step float64)
}

// spanAxis is of seconds.
var spanAxis = axis{
	text: func(v float64) string { return forecast.Span(v * float64(time.Second)).String() },
	nice: func(most float64) (float64, float64) {
		for _, step := range []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400} {
			if most <= 4*step {
				return math.Max(math.Ceil(most/step), 1) * step, step
			}
		}
		step := math.Ceil(most/4/86400) * 86400
		return math.Ceil(most/step) * step, step
	},
}

// countAxis is of things.
var countAxis = axis{
	text: func(v float64) string {
		if v == math.Trunc(v) {
			return thousands(int64(v))
		}
		return strconv.FormatFloat(v, 'f', 1, 64)
	},
	nice: func(most float64) (float64, float64) {
		for unit := 1.0; ; unit *= 10 {
			for _, m := range []float64{1, 2, 5} {
				if step := m * unit; most <= 4*step {
					return math.Max(math.Ceil(most/step), 1) * step, step
				}
			}
		}
	},
}

// newChart draws curves that begin at a time and have equal steps.
func newChart(id, title string, a axis, start time.Time, step time.Duration, curves []curve) chart {
	c := chart{
		ID: id, Title: title, Width: chartWidth, Height: chartHeight, Left: padLeft, Right: chartWidth - padRight,
		Base: padTop + plotHeight, Head: []string{"from"},
	}
	// 1. The axes.
	most, n := 0.0, 0
	for _, line := range curves {
		n = max(n, len(line.points))
		for _, v := range line.points {
			most = math.Max(most, v)
		}
	}
	top, by := a.nice(most)
	for v := 0.0; v <= top*1.0001; v += by {
		c.Y = append(c.Y, tick{c.Base - v/top*plotHeight, a.text(v)})
	}
	c.X = timeTicks(start, time.Duration(n)*step)
	// 2. The lines.
	for _, line := range curves {
		c.Lines = append(c.Lines, drawn{line.class, line.name, path(line.points, n, top, c.Base)})
		c.Head = append(c.Head, line.name)
	}
	c.About = about(curves, a, start, step)
	// 3. The same as a table.
	per := (n + tableRows - 1) / tableRows
	for from := 0; from < n; from += max(per, 1) {
		row := []string{start.Add(time.Duration(from) * step).Format("2 Jan 15:04")}
		for _, line := range curves {
			row = append(row, gathered(line.points[min(from, len(line.points)):min(from+per, len(line.points))], a))
		}
		c.Rows = append(c.Rows, row)
	}
	return c
}

// gathered is the mean of some points.
func gathered(points []float64, a axis) string {
	sum, n := 0.0, 0
	for _, v := range points {
		if v >= 0 {
			sum += v
			n++
		}
	}
	if n == 0 {
		return "–"
	}
	return a.text(math.Round(sum/float64(n)*1000) / 1000)
}

// about describes the curves to whoever does not see them.
func about(curves []curve, a axis, start time.Time, step time.Duration) string {
	var parts []string
	for _, line := range curves {
		best, at := -1.0, 0
		for i, v := range line.points {
			if v > best {
				best, at = v, i
			}
		}
		if best >= 0 {
			parts = append(parts, fmt.Sprintf("%s: highest %s at %s", line.name, a.text(math.Round(best*1000)/1000), start.Add(time.Duration(at)*step).Format("2 Jan 15:04")))
		}
	}
	return strings.Join(parts, "; ")
}

// path draws points, with gaps where there are none. A point on its own is a short stroke.
func path(points []float64, n int, top, base float64) string {
	var b strings.Builder
	x := func(i float64) float64 { return padLeft + i/float64(max(n-1, 1))*plotWidth }
	y := func(v float64) float64 { return base - v/top*plotHeight }
	open := false
	for i, v := range points {
		if v < 0 {
			open = false
			continue
		}
		if !open {
			fmt.Fprintf(&b, "M%.1f %.1f", x(float64(i)), y(v))
			open = true
			if i+1 == len(points) || points[i+1] < 0 {
				fmt.Fprintf(&b, "h1.5")
			}
			continue
		}
		fmt.Fprintf(&b, "L%.1f %.1f", x(float64(i)), y(v))
	}
	return b.String()
}

// timeTicks are up to seven round times of a window.
func timeTicks(start time.Time, window time.Duration) []tick {
	steps := []time.Duration{
		time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 4 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 48 * time.Hour, 7 * 24 * time.Hour,
		30 * 24 * time.Hour, 90 * 24 * time.Hour,
	}
	step := steps[len(steps)-1]
	for _, s := range steps {
		if window <= 6*s {
			step = s
			break
		}
	}
	layout := "15:04"
	switch {
	case step >= 24*time.Hour:
		layout = "2 Jan"
	case step < time.Minute:
		layout = "15:04:05"
	}
	var list []tick
	for at := start.Truncate(step); !at.After(start.Add(window)); at = at.Add(step) {
		if share := float64(at.Sub(start)) / float64(window); share >= 0 {
			list = append(list, tick{padLeft + share*plotWidth, at.Format(layout)})
		}
	}
	return list
}

// thousands separates groups of digits.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
