package cost

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/run"
)

// cloudFile has what typical runs and idle processes cost, and the prices that it is told in.
var cloudFile = filepath.Join("..", "..", "docs", "cost.md")

// Parts of the file that are read, or written by `make cost RECORD=1`.
const (
	partPrices = "prices"
	partRuns   = "runs"
	partIdle   = "idle"
)

// Budget of a plain run.
const (
	plainWrites   = 4
	plainReads    = 0
	plainRequests = 2 // of Pub/Sub
)

// TestCostInTheCloud counts, and compares with what is recorded.
func TestCostInTheCloud(t *testing.T) {
	t.Setenv("PUBSUB_EMULATOR_HOST", emulator.PubSub(t))
	text, err := os.ReadFile(cloudFile)
	if err != nil {
		t.Fatal(err)
	}
	price, err := readPrices(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	runs, idle := make([]row, len(typicalRuns)), []row(nil)
	t.Run("of", func(t *testing.T) {
		for i := range typicalRuns {
			k := &typicalRuns[i]
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				b, removal := k.count(newCloud(t))
				t.Logf("%d runs: %+v; each is removed by %+v", counted, b, removal)
				if i == 0 && (b.writes > plainWrites*counted || b.reads > plainReads*counted || b.requests > plainRequests*counted) {
					t.Errorf("a plain run may cost %d writes, %d reads and %d requests of Pub/Sub", plainWrites, plainReads, plainRequests)
				}
				mu.Lock()
				defer mu.Unlock()
				runs[i] = k.row(b, removal, price)
			})
		}
		t.Run("idle processes", func(t *testing.T) {
			t.Parallel()
			rows := idleRows(newCloud(t), price)
			mu.Lock()
			defer mu.Unlock()
			idle = rows
		})
	})
	if t.Failed() {
		return
	}
	if os.Getenv(envCost) == "record" {
		out := string(text)
		for part, rows := range map[string][]row{partRuns: runs, partIdle: idle} {
			if out, err = withPart(out, part, tableOf(part, rows)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(cloudFile, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for part, rows := range map[string][]row{partRuns: runs, partIdle: idle} {
		recorded, err := partOf(string(text), part)
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range differences(recorded, rows) {
			t.Errorf("%s: %s; if that is what you want, record it anew: make cost RECORD=1", cloudFile, what)
		}
	}
}

// prices are in dollars.
type prices struct{ write, read, remove, byte float64 }

func (p prices) of(writes, reads, deletes, bytes float64) float64 {
	return writes*p.write + reads*p.read + deletes*p.remove + bytes*p.byte
}

// readPrices reads the table of prices: a name, dollars, and for how much.
func readPrices(text string) (p prices, err error) {
	part, err := partOf(text, partPrices)
	if err != nil {
		return p, err
	}
	for name, to := range map[string]struct {
		into *float64
		per  float64
	}{
		"Firestore, documents written": {&p.write, 100_000}, "Firestore, documents read": {&p.read, 100_000},
		"Firestore, documents deleted": {&p.remove, 100_000}, "Pub/Sub, published or delivered": {&p.byte, 1 << 40},
	} {
		m := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(name) + ` \| \$([0-9.]+) \|`).FindStringSubmatch(part)
		if m == nil {
			return p, fmt.Errorf("%s has no price of %q", cloudFile, name)
		}
		dollars, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return p, fmt.Errorf("%s: price of %q: %w", cloudFile, name, err)
		}
		*to.into = dollars / to.per
	}
	return p, nil
}

// row is a line of a table: its name, and figures with what each may differ by from one count to the next.
type row struct {
	name    string
	figures []figure
}

type figure struct {
	value, within float64
	form          string
}

func (r *row) text() string {
	cells := []string{r.name}
	for _, f := range r.figures {
		cells = append(cells, f.text())
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

func (f figure) text() string {
	s := fmt.Sprintf(f.form, f.value)
	if strings.HasPrefix(f.form, "$") {
		return s
	}
	return strings.TrimSuffix(s, ".0")
}

func (k *typical) row(b bill, removal removalBill, p prices) row {
	each := func(n int64) float64 { return float64(n) / counted }
	// What processes tell each other may travel together, and a run is read again where two changes meet.
	told := 0.0
	if k.by(&cloud{leader: &process{}}) == nil {
		told = 1
	}
	const million = 1e6
	running := million * p.of(each(b.writes), each(b.reads), each(b.deletes), each(b.bytes))
	removing := million * p.of(0, removal.reads, removal.deletes, 0)
	return row{k.name, []figure{
		{each(b.writes), 0, "%.1f"}, {each(b.reads), told, "%.1f"}, {each(b.messages), told, "%.1f"}, {each(b.requests), 2 * told, "%.1f"},
		{running, 0.05 + told/2, "$%.2f"},
		{removal.reads, 0.05, "%.1f"}, {removal.deletes, 0, "%.1f"}, {removing, 0.05, "$%.2f"}, {running + removing, 0.1 + told/2, "$%.2f"},
	}}
}

var heads = map[string][]string{
	partRuns: {
		"run", "writes", "reads", "messages", "Pub/Sub requests", "$ per million runs", "removal: reads", "removal: deletes", "$ per million removed", "$ per million in all",
	},
	partIdle: {"process", "writes a day", "reads a day", "messages a day", "$ a month"},
}

func tableOf(part string, rows []row) string {
	lines := []string{"| " + strings.Join(heads[part], " | ") + " |", "|---" + strings.Repeat("|---:", len(heads[part])-1) + "|"}
	for i := range rows {
		lines = append(lines, rows[i].text())
	}
	return strings.Join(lines, "\n") + "\n"
}

// differences tells where rows are not what a recorded table says.
func differences(recorded string, rows []row) (all []string) {
	cells := make(map[string][]string)
	for line := range strings.Lines(recorded) {
		if c := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | "); len(c) > 1 {
			cells[c[0]] = c[1:]
		}
	}
	for i := range rows {
		r := &rows[i]
		was := cells[r.name]
		if len(was) != len(r.figures) {
			all = append(all, fmt.Sprintf("%q has %d figures, want %d", r.name, len(was), len(r.figures)))
			continue
		}
		for k, f := range r.figures {
			then, err := strconv.ParseFloat(strings.ReplaceAll(strings.Trim(was[k], "$ "), ",", ""), 64)
			// What is recorded is rounded, to hundredths where it is dollars.
			if rounding := 0.051; err != nil || math.Abs(f.value-then) > f.within+rounding {
				all = append(all, fmt.Sprintf("figure %d of %q is %s, recorded is %s", k+1, r.name, f.text(), was[k]))
			}
		}
	}
	return all
}

func marks(part string) (begin, end string) {
	return "<!-- " + part + " -->\n", "<!-- end of " + part + " -->"
}

// partOf is what stands between the marks of a part.
func partOf(text, part string) (string, error) {
	begin, end := marks(part)
	_, rest, ok := strings.Cut(text, begin)
	inside, _, ended := strings.Cut(rest, end)
	if !ok || !ended {
		return "", fmt.Errorf("%s has no part between %q and %q", cloudFile, strings.TrimSpace(begin), end)
	}
	return inside, nil
}

func withPart(text, part, inside string) (string, error) {
	was, err := partOf(text, part)
	if err != nil {
		return "", err
	}
	begin, end := marks(part)
	return strings.Replace(text, begin+was+end, begin+inside+end, 1), nil
}

// idleRows counts what processes cost that have nothing to do.
func idleRows(c *cloud, p prices) []row {
	const (
		watched = 20 * time.Minute
		ticks   = 10
		beats   = 10
		day     = 24 * time.Hour
		tick    = time.Minute
		beat    = 5 * time.Second
	)
	c.byHand = true
	third := c.open("c")
	for _, x := range c.processes {
		if err := x.plane.Prepare(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
	}
	step := func() {
		for _, x := range c.processes {
			for x.plane.Step(c.t.Context(), run.At(c.time())) {
			}
		}
	}
	step()
	bills := func() [3]bill { return [3]bill{c.leader.bill(), c.follower.bill(), third.bill()} }
	var rows []row
	note := func(name string, b bill, times float64) {
		daily := func(n int64) float64 { return float64(n) * times }
		dollars := 30 * p.of(daily(b.writes), daily(b.reads), daily(b.deletes), daily(2*1000*b.messages)) // published and delivered
		rows = append(rows, row{name, []figure{
			{daily(b.writes), 0, "%.0f"}, {daily(b.reads), 0, "%.0f"}, {daily(b.messages), 0, "%.0f"}, {dollars, 0, "$%.2f"},
		}})
	}
	// 1. Nothing but time.
	before := bills()
	for range int(watched / time.Second) {
		c.mu.Lock()
		c.now, c.mono = c.now.Add(time.Second), c.mono+time.Second
		c.mu.Unlock()
		step()
	}
	after := bills()
	note("one that leads", after[0].minus(before[0]), float64(day/watched))
	note("each that does not", after[1].minus(before[1]), float64(day/watched))
	if others := after[2].minus(before[2]); others != after[1].minus(before[1]) {
		c.t.Errorf("two processes that do not lead differ: %+v, %+v", others, after[1].minus(before[1]))
	}
	// 2. A tick each minute.
	before = after
	for range ticks {
		c.leader.plane.Tick(c.t.Context())
		step()
	}
	after = bills()
	note("a tick a minute", after[0].minus(before[0]), float64(day/tick)/ticks)
	// 3. Workers that say that they live.
	for _, by := range []struct {
		name string
		p    *process
	}{{"each worker, by heartbeats to the one that leads", c.leader}, {"each worker, by heartbeats to another", c.follower}} {
		before := c.bill()
		for range beats {
			_, err := by.p.plane.Beat(c.t.Context(), control.WorkerBeat{Worker: "w1", Agents: []string{"errand"}, Slots: 1})
			if err != nil {
				c.t.Error(err)
			}
			step()
		}
		b := c.bill().minus(before)
		if b.writes > 0 {
			c.t.Errorf("%d heartbeats are %d writes", beats, b.writes)
		}
		note(by.name, b, float64(day/beat)/beats)
	}
	// 4. The smallest setting that survives the loss of a process.
	sum := row{"one that leads, two that do not, a tick a minute", make([]figure, len(rows[0].figures))}
	copy(sum.figures, rows[0].figures)
	for i := range sum.figures {
		sum.figures[i].value += 2*rows[1].figures[i].value + rows[2].figures[i].value
	}
	return append(rows, sum)
}

func TestPartsOfTheCloudsBook(t *testing.T) {
	text := "x\n<!-- runs -->\n| run | writes |\n|---|---:|\n| plain | 3 | $2.70 |\n<!-- end of runs -->\ny\n"
	part, err := partOf(text, partRuns)
	if err != nil {
		t.Fatal(err)
	}
	rows := func(writes, dollars float64) []row {
		return []row{{"plain", []figure{{writes, 0, "%.1f"}, {dollars, 0.1, "$%.2f"}}}}
	}
	for sentence, c := range map[string]struct {
		rows []row
		want int
	}{
		"the same":                   {rows(3, 2.7), 0},
		"within what is allowed":     {rows(3, 2.8), 0},
		"a write more":               {rows(4, 2.7), 1},
		"both":                       {rows(4, 9), 2},
		"a run that is not recorded": {[]row{{"fancy", rows(1, 1)[0].figures}}, 1},
	} {
		if got := differences(part, c.rows); len(got) != c.want {
			t.Errorf("%s: %q, want %d", sentence, got, c.want)
		}
	}
	again, err := withPart(text, partRuns, tableOf(partRuns, rows(3.5, 1)))
	if err != nil || !strings.HasPrefix(again, "x\n") || !strings.HasSuffix(again, "\ny\n") || !strings.Contains(again, "| plain | 3.5 | $1.00 |") {
		t.Errorf("%v:\n%s", err, again)
	}
	if _, err := partOf(text, partIdle); err == nil {
		t.Error("a part that is not there is found")
	}
	for sentence, table := range map[string]string{
		"no prices at all": "", "a price is missing": "<!-- prices -->\n| Firestore, documents written | $0.09 | 100,000 |\n<!-- end of prices -->\n",
	} {
		if p, err := readPrices(table); err == nil || !strings.Contains(err.Error(), partPrices[:5]) && errors.Is(err, nil) {
			t.Errorf("%s: %+v, %v", sentence, p, err)
		}
	}
}
