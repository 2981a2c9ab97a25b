// Package board keeps the picture that `errand dev` shows: how many runs of each agent are where, and which changed
// last. It knows nothing of servers; whoever follows the runs tells it of every change.
package board

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/cli/internal/render"
)

// Row is a run as the board needs it.
type Row struct {
	ID, Agent, State        string
	Reason, Message, Target string
	Attempt                 int
	Started, Ended          time.Time
	// Person: it goes on only when a person does something.
	Person bool
}

func (r *Row) terminal() bool {
	return r.State == "succeeded" || r.State == "failed" || r.State == "canceled"
}

// maxRecent is how many of the runs that changed last are kept.
const maxRecent = 20

// Board is the picture. It is not safe for concurrent use. Its memory grows with the runs that are not over.
type Board struct {
	agents map[string]*Counts
	live   map[string]Row
	moving int   // live runs that go on by themselves
	recent []Row // newest first
}

// Counts are runs of one agent: the live ones by state, and those that ended while the board was there.
type Counts struct {
	Live                        map[string]int
	Succeeded, Failed, Canceled int
}

// New makes an empty board.
func New() *Board { return &Board{agents: make(map[string]*Counts), live: make(map[string]Row)} }

// Set notes a run as it is now. fresh tells that the run did not exist before. It returns whether its state is another
// than the board had. A run that is over and unknown counts only if it is fresh: it ended before the board was there.
func (b *Board) Set(r Row, fresh bool) bool {
	before, known := b.live[r.ID]
	if r.terminal() && !known && !fresh {
		return false
	}
	c := b.agents[r.Agent]
	if c == nil {
		c = &Counts{Live: make(map[string]int)}
		b.agents[r.Agent] = c
	}
	if known {
		c.Live[before.State]--
		b.move(before, -1)
	}
	if r.terminal() {
		delete(b.live, r.ID)
		switch r.State {
		case "succeeded":
			c.Succeeded++
		case "failed":
			c.Failed++
		default:
			c.Canceled++
		}
	} else {
		r.Message = render.Clip(r.Message, 200)
		b.live[r.ID] = r
		c.Live[r.State]++
		b.move(r, 1)
	}
	b.remember(r)
	return !known || before.State != r.State
}

func (b *Board) move(r Row, n int) {
	if !r.Person {
		b.moving += n
	}
}

func (b *Board) remember(r Row) {
	b.recent = slices.DeleteFunc(b.recent, func(x Row) bool { return x.ID == r.ID })
	b.recent = slices.Insert(b.recent, 0, r)
	b.recent = b.recent[:min(len(b.recent), maxRecent)]
}

// Moving is how many runs go on without a person.
func (b *Board) Moving() int { return b.moving }

// Live lists the runs that are not over.
func (b *Board) Live() []string { return slices.Sorted(maps.Keys(b.live)) }

// columns of the table of agents, and the states that each counts.
var columns = []struct {
	head  string
	count func(*Counts) int
}{
	{"QUEUED", sum("queued", "held", "backoff")},
	{"RUNNING", sum("assigned", "running", "canceling", "compensating")},
	{"WAITING", sum("waiting", "suspended")},
	{"STUCK", sum("unschedulable")},
	{"SUCCEEDED", func(c *Counts) int { return c.Succeeded }},
	{"FAILED", func(c *Counts) int { return c.Failed }},
	{"CANCELED", func(c *Counts) int { return c.Canceled }},
}

func sum(states ...string) func(*Counts) int {
	return func(c *Counts) int {
		n := 0
		for _, s := range states {
			n += c.Live[s]
		}
		return n
	}
}

// Frame draws the board in at most height lines of at most width characters: the head, the agents, the runs that
// changed last.
func (b *Board) Frame(now time.Time, head string, width, height int) []string {
	lines := []string{head, ""}
	// 1. Agents, those with most to do first where there is no room for all.
	names := slices.Sorted(maps.Keys(b.agents))
	room := max(1, height/2-3)
	if len(names) > room {
		slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(b.busy(y), b.busy(x)) })
		names = names[:room]
		slices.Sort(names)
	}
	table := [][]string{{"AGENT"}}
	for _, c := range columns {
		table[0] = append(table[0], c.head)
	}
	for _, name := range names {
		row := []string{name}
		for _, c := range columns {
			row = append(row, strconv.Itoa(c.count(b.agents[name])))
		}
		table = append(table, row)
	}
	lines = append(lines, align(table)...)
	if left := len(b.agents) - len(names); left > 0 {
		lines = append(lines, fmt.Sprintf("and %d more agents", left))
	}
	// 2. Runs.
	if room := height - len(lines) - 3; len(b.recent) > 0 && room > 0 {
		lines = append(lines, "")
		table := [][]string{{"RUN", "AGENT", "STATE", "ATTEMPT", "TOOK", "WHY"}}
		for _, r := range b.recent[:min(room, len(b.recent))] {
			table = append(table, []string{r.ID, r.Agent, r.State, strconv.Itoa(r.Attempt), took(now, r), why(r)})
		}
		lines = append(lines, align(table)...)
	}
	lines = lines[:min(len(lines), max(1, height-1))]
	for i, line := range lines {
		lines[i] = render.Clip(render.Clean(line), width)
	}
	return lines
}

func (b *Board) busy(name string) int {
	c, n := b.agents[name], 0
	for _, live := range c.Live {
		n += live
	}
	return n
}

func took(now time.Time, r Row) string {
	switch {
	case r.Started.IsZero():
		return "-"
	case !r.Ended.IsZero():
		return render.Span(r.Ended.Sub(r.Started))
	}
	return render.Span(now.Sub(r.Started))
}

func why(r Row) string {
	switch {
	case r.Message != "" && r.Reason != "":
		return r.Reason + ": " + r.Message
	case r.Message != "":
		return r.Message
	case r.Reason != "":
		return r.Reason
	case r.Target != "" && !r.terminal():
		return "on " + r.Target
	}
	return ""
}

// align pads cells to columns, numbers to the right.
func align(table [][]string) []string {
	widths := make([]int, len(table[0]))
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	lines := make([]string, len(table))
	for n, row := range table {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-len([]rune(cell)))
			if _, err := strconv.Atoi(cell); err == nil {
				cell, pad = pad+cell, ""
			}
			b.WriteString(cell + pad + "  ")
		}
		lines[n] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// Line is a change as one line of a log.
func (r Row) Line(at time.Time) string {
	line := fmt.Sprintf("%s  %s  %s  %s", at.Format("15:04:05.000"), r.ID, r.Agent, r.State)
	if r.Attempt > 1 {
		line += fmt.Sprintf("  attempt %d", r.Attempt)
	}
	if w := why(r); w != "" {
		line += "  " + w
	}
	return render.Clean(line)
}
