package render

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Terminal reports whether w is a terminal, and how many columns and rows it has (80 × 24 where it does not say).
func Terminal(w io.Writer) (columns, rows int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, 0, false
	}
	columns, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		return 80, 24, true
	}
	return columns, rows, true
}

// Progress shows how far long work has come: a bar that is redrawn on a terminal, a line now and then elsewhere.
// Safe for concurrent use; a nil Progress shows nothing.
type Progress struct {
	w     io.Writer
	what  string
	now   func() time.Time
	tty   bool
	width int

	mu    sync.Mutex
	last  time.Time
	shown string
}

// How often a bar and a plain line may be written at most.
const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 2 * time.Second
)

// NewProgress shows progress of what (a plural: "runs") on w.
func NewProgress(w io.Writer, what string, now func() time.Time) *Progress {
	columns, _, tty := Terminal(w)
	return &Progress{w: w, what: what, now: now, tty: tty, width: columns, last: now()}
}

// Set tells that done of total are over; note may add a word. It writes no more often than people can read.
func (p *Progress) Set(done, total int, note string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	every := lineEvery
	if p.tty {
		every = barEvery
	}
	if now := p.now(); now.Sub(p.last) >= every {
		p.last = now
		p.draw(done, total, note)
	}
}

// Done shows the last state and ends the line.
func (p *Progress) Done(done, total int, note string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draw(done, total, note)
	if p.tty {
		fmt.Fprintln(p.w)
	}
}

func (p *Progress) draw(done, total int, note string) {
	line := fmt.Sprintf("%d/%d %s", done, total, p.what)
	if note != "" {
		line += ", " + note
	}
	if !p.tty {
		if line != p.shown {
			fmt.Fprintln(p.w, line)
		}
		p.shown = line
		return
	}
	const bar = 24
	filled := 0
	if total > 0 {
		filled = min(bar, bar*done/total)
	}
	line = "[" + strings.Repeat("#", filled) + strings.Repeat(".", bar-filled) + "] " + line
	fmt.Fprintf(p.w, "\r\x1b[K%s", Clip(line, max(10, p.width-1)))
}
