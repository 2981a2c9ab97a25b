package board

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/cli/internal/render"
)

// Screen redraws a few lines at the bottom of a terminal in place, and lets other lines pass above them. Safe for
// concurrent use.
type Screen struct {
	mu    sync.Mutex
	w     io.Writer
	drawn []string
}

// NewScreen draws on a terminal.
func NewScreen(w io.Writer) *Screen { return &Screen{w: w} }

// Draw replaces what was drawn.
func (s *Screen) Draw(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(lines, s.drawn) {
		return
	}
	var b strings.Builder
	b.WriteString(erase(len(s.drawn)))
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	s.drawn = slices.Clone(lines)
	_, _ = io.WriteString(s.w, b.String())
}

// Above writes a line to w, above what is drawn.
func (s *Screen) Above(w io.Writer, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.w, erase(len(s.drawn)))
	_, _ = fmt.Fprintln(w, line)
	for _, line := range s.drawn {
		_, _ = io.WriteString(s.w, line+"\n")
	}
}

// erase moves up over n lines and clears what follows.
func erase(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", n)
}

// Lines writes changes as lines, no more of them than people can follow: the rest of a second is summed up in one.
type Lines struct {
	w      io.Writer
	most   int // lines a second
	second time.Time
	used   int
	rest   map[string]int // changes not written, by state
}

// NewLines writes at most most lines a second.
func NewLines(w io.Writer, most int) *Lines {
	return &Lines{w: w, most: most, rest: make(map[string]int)}
}

// Add writes a change, or counts it.
func (l *Lines) Add(at time.Time, r Row) {
	l.Flush(at)
	if l.used >= l.most {
		l.rest[r.State]++
		return
	}
	l.used++
	_, _ = fmt.Fprintln(l.w, r.Line(at))
}

// Flush sums up what was only counted, once its second is over.
func (l *Lines) Flush(at time.Time) {
	if at.Sub(l.second) < time.Second {
		return
	}
	if len(l.rest) > 0 {
		total := 0
		var parts []string
		for _, state := range slices.Sorted(maps.Keys(l.rest)) {
			total += l.rest[state]
			parts = append(parts, fmt.Sprintf("%d %s", l.rest[state], render.Clean(state)))
		}
		_, _ = fmt.Fprintf(l.w, "%s  and %d more changes: %s\n", at.Format("15:04:05.000"), total, strings.Join(parts, ", "))
		clear(l.rest)
	}
	l.second, l.used = at, 0
}

// Pending reports whether something is counted and not written.
func (l *Lines) Pending() bool { return len(l.rest) > 0 }

// Limit lets through so many things a second, and counts the others. Safe for concurrent use.
type Limit struct {
	mu      sync.Mutex
	most    int
	second  time.Time
	used    int
	dropped int
}

// NewLimit lets most things a second through.
func NewLimit(most int) *Limit { return &Limit{most: most} }

// Take reports whether one more thing may pass, and how many did not since the last that did.
func (l *Limit) Take(at time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.Sub(l.second) >= time.Second {
		l.second, l.used = at, 0
	}
	if l.used >= l.most {
		l.dropped++
		return 0, false
	}
	l.used++
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
