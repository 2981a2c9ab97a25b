package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/board"
	"github.com/errand-run/errand/shared/cli/internal/inputs"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
)

// submission is what became of the runs of a file.
type submission struct {
	ids     []string // accepted now or before
	fresh   []string // accepted now
	refused error    // the first refusal; all of them were told
}

// submitRuns submits the runs of a file, batch by batch. Runs that were submitted before are the same runs.
func (d *develop) submitRuns(ctx context.Context, c *api.Client, runs []inputs.Run) submission {
	var out submission
	refuse := func(line int, err error) {
		err = fmt.Errorf("submit line %d: %w", line, err)
		for _, text := range d.explain(err) {
			d.note("errand: %s", text)
		}
		if out.refused == nil {
			out.refused = ended(exitCode(ctx, err))
		}
	}
	for start := 0; start < len(runs) && ctx.Err() == nil; {
		// 1. As many as fit into one call.
		var batch []api.Submit
		var lines []int
		size := 0
		for start < len(runs) && len(batch) < batchRuns && size < batchBytes {
			r := &runs[start]
			start++
			s, err := r.Submit()
			if err != nil {
				refuse(r.Line, err)
				continue
			}
			size += len(s.Input)
			batch, lines = append(batch, s), append(lines, r.Line)
		}
		if len(batch) == 0 {
			continue
		}
		// 2. Submit them.
		items, err := d.submitBatch(ctx, c, batch)
		if err != nil {
			if ctx.Err() == nil {
				refuse(lines[0], err)
			}
			return out
		}
		for i, item := range items {
			switch {
			case item.Error != nil:
				refuse(lines[i], item.Error)
			case item.Run != nil:
				out.ids = append(out.ids, item.Run.ID)
				if !item.Existed {
					out.fresh = append(out.fresh, item.Run.ID)
				}
			}
		}
	}
	return out
}

// following keeps the board up to date with the control plane.
type following struct {
	d       *develop
	plane   watched
	board   *board.Board
	changes <-chan control.Change
	stop    func()
	// touched are the runs that --once answers for: all that changed or were submitted. nil without --once.
	touched map[string]bool
	// expected are runs that were accepted and whose first change has not come yet. Only with --once.
	expected map[string]bool
	head     string
}

const (
	changeBuffer = 1 << 16
	// seedScan bounds how many old runs are looked at for those that are not over. Older ones appear when they change.
	seedScan = 20_000
)

func newFollowing(d *develop, p watched) *following {
	f := &following{d: d, plane: p, board: board.New()}
	if d.f.once {
		f.touched, f.expected = make(map[string]bool), make(map[string]bool)
	}
	return f
}

// begin starts to follow, and puts the runs that are not over on the board.
func (f *following) begin(ctx context.Context) error {
	f.changes, f.stop = f.plane.Watch(ctx, changeBuffer)
	token := ""
	for range seedScan / 200 {
		page, err := f.plane.List(ctx, control.Filter{States: liveStates}, 200, token)
		if err != nil {
			return fmt.Errorf("list live runs: %w", err)
		}
		for _, r := range page.Runs {
			f.set(r, false)
		}
		if token = page.Next; token == "" {
			break
		}
	}
	return nil
}

func (f *following) end() { f.stop() }

var liveStates = slices.DeleteFunc(slices.Clone(run.States), run.State.Terminal)

// set notes a run and reports whether its state changed.
func (f *following) set(r *run.Record, fresh bool) (board.Row, bool) {
	if f.touched != nil {
		f.touched[r.ID] = true
		delete(f.expected, r.ID)
	}
	row := board.Row{
		ID: r.ID, Agent: r.Agent, State: string(r.State), Reason: string(r.Reason), Message: r.Message, Target: r.Target,
		Attempt: r.Attempt, Person: needsPerson(r),
	}
	if r.StartedAt != 0 {
		row.Started = r.StartedAt.Time()
	}
	if r.EndedAt != 0 {
		row.Ended = r.EndedAt.Time()
	}
	return row, f.board.Set(row, fresh)
}

// needsPerson reports whether a run stays where it is until a person does something.
func needsPerson(r *run.Record) bool {
	switch r.State {
	case run.Waiting:
		return r.Park != nil && (r.Park.On == run.OnInput || r.Park.On == run.OnGate)
	case run.Held:
		return r.Reason == run.AgentPaused
	case run.Suspended, run.Unschedulable:
		return true
	}
	return false
}

// resume follows again after the process could not keep up, and reads what it missed.
func (f *following) resume(ctx context.Context) error {
	f.stop()
	known := f.board.Live()
	if err := f.begin(ctx); err != nil {
		return err
	}
	for _, id := range slices.Concat(known, slices.Collect(maps.Keys(f.expected))) {
		r, err := f.plane.Get(ctx, id)
		if err != nil {
			continue // removed meanwhile
		}
		f.set(r, false)
	}
	return nil
}

// take notes one change, and writes it as a line where there is no table.
func (f *following) take(c control.Change) {
	fresh := len(c.Events) > 0 && c.Events[0].Type == run.EvSubmitted
	row, changed := f.set(c.Run, fresh)
	if changed && f.d.lines != nil {
		f.d.lines.Add(f.d.now(), row)
	}
}

// How often the table is drawn: soon after a change, and now and then while something runs.
const (
	drawSoon  = 100 * time.Millisecond
	drawTimes = time.Second
)

// watch shows changes until the end. Nothing wakes it while nothing happens.
func (d *develop) watch(ctx context.Context, n served, c *api.Client, submitted <-chan submission) error {
	f := d.follow
	place, _, _ := strings.Cut(d.store, " (")
	f.head = fmt.Sprintf("errand dev   %s   %s", n.URL(), place)
	var jobs *submission
	draw := time.NewTimer(0)
	defer draw.Stop()
	for {
		select {
		case <-ctx.Done():
			d.drawLast()
			return nil
		case <-n.Failed():
			return fmt.Errorf("serving ended: %w", n.Err())
		case s := <-submitted:
			jobs, submitted = &s, nil
			f.expect(s)
			draw.Reset(drawSoon)
		case change, open := <-f.changes:
			if !open {
				if err := f.resume(ctx); err != nil && ctx.Err() == nil {
					return err
				}
				continue
			}
			f.take(change)
			if len(f.changes) == 0 {
				draw.Reset(drawSoon)
			}
		case <-draw.C:
			d.draw()
			if f.board.Moving() > 0 || (d.lines != nil && d.lines.Pending()) {
				draw.Reset(drawTimes)
			}
		}
		if d.f.once && jobs != nil && len(f.expected) == 0 && f.board.Moving() == 0 && len(f.changes) == 0 {
			d.drawLast()
			return d.summary(ctx, c, *jobs)
		}
	}
}

// expect notes accepted runs whose first change has yet to come.
func (f *following) expect(s submission) {
	if f.touched == nil {
		return
	}
	for _, id := range s.fresh {
		if !f.touched[id] {
			f.expected[id] = true
		}
	}
	for _, id := range s.ids {
		f.touched[id] = true
	}
}

func (d *develop) draw() {
	if d.lines != nil {
		d.lines.Flush(d.now())
		return
	}
	columns, rows, _ := render.Terminal(d.out)
	d.screen.Draw(d.follow.board.Frame(d.now(), d.follow.head, max(20, columns-1), max(3, rows)))
}

// drawLast leaves nothing unsaid.
func (d *develop) drawLast() {
	d.draw()
	if d.lines != nil {
		d.lines.Flush(d.now().Add(time.Second))
	}
}

// summary ends --once: it shows what became of every run that was there, and returns the exit code.
func (d *develop) summary(ctx context.Context, c *api.Client, jobs submission) error {
	// 1. What became of them, as everybody sees it.
	ids := slices.Sorted(maps.Keys(d.follow.touched))
	order := make(map[string]int, len(jobs.ids))
	for i, id := range jobs.ids {
		order[id] = i + 1
	}
	slices.SortStableFunc(ids, func(x, y string) int { return order[x] - order[y] })
	runs := []api.Run{}
	for _, id := range ids {
		r, err := c.Run(ctx, id, 0)
		if api.HasCode(err, api.CodeNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("sum up: %w", err)
		}
		if d.format.Human() {
			r.Input, r.Output = nil, nil
		}
		runs = append(runs, *r)
	}
	// 2. Show it.
	if d.format.Human() {
		if err := d.sumUp(runs); err != nil {
			return err
		}
	} else if err := render.List(d.printer(), d.runView(), runs); err != nil {
		return err
	}
	// A run that another called is that one's affair: what it failed at may be borne.
	code := d.tellEnds(slices.DeleteFunc(slices.Clone(runs), func(r api.Run) bool { return r.Parent != "" }))
	stuck := 0
	for _, r := range runs {
		switch {
		case r.Terminal():
		case r.State == "waiting":
			d.say("errand: run %s waits for %s", r.ID, waitsFor(r))
		default:
			stuck++
			d.say("errand: run %s is %s: %s; see \"errand explain %s\" while dev runs", r.ID, r.State, render.Clean(reasonOf(r)), r.ID)
		}
	}
	switch {
	case jobs.refused != nil:
		return jobs.refused
	case code == ExitOK && stuck > 0:
		return ended(ExitError)
	}
	return ended(code)
}

func waitsFor(r api.Run) string {
	if r.WaitsFor == nil {
		return "a person"
	}
	return render.Clean(firstOf(r.WaitsFor.Name, r.WaitsFor.On))
}

// agentSum is one line of the summary.
type agentSum struct {
	agent                                string
	succeeded, failed, canceled, waiting int
	attempts                             int
}

func (d *develop) sumUp(runs []api.Run) error {
	if len(runs) == 0 {
		d.say("no runs")
		return nil
	}
	sums := make(map[string]*agentSum)
	for _, r := range runs {
		s := sums[r.Name()]
		if s == nil {
			s = &agentSum{agent: r.Name()}
			sums[r.Name()] = s
		}
		s.attempts += r.Attempt
		switch r.State {
		case "succeeded":
			s.succeeded++
		case "failed":
			s.failed++
		case "canceled":
			s.canceled++
		default:
			s.waiting++
		}
	}
	count := func(f func(*agentSum) int) func(*agentSum) string {
		return func(s *agentSum) string { return strconv.Itoa(f(s)) }
	}
	view := render.View[*agentSum]{Columns: []render.Column[*agentSum]{
		{Head: "AGENT", Cell: func(s *agentSum) string { return s.agent }},
		{Head: "SUCCEEDED", Cell: count(func(s *agentSum) int { return s.succeeded })},
		{Head: "FAILED", Cell: count(func(s *agentSum) int { return s.failed })},
		{Head: "CANCELED", Cell: count(func(s *agentSum) int { return s.canceled })},
		{Head: "WAITING", Cell: count(func(s *agentSum) int { return s.waiting })},
		{Head: "ATTEMPTS", Cell: count(func(s *agentSum) int { return s.attempts })},
	}}
	var rows []*agentSum
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		rows = append(rows, sums[name])
	}
	if d.screen != nil {
		if _, err := fmt.Fprintln(d.out); err != nil {
			return err
		}
	}
	return render.List(d.printer(), view, rows)
}
