package render

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Clean makes text safe for one line of a terminal: what is not printable is escaped.
func Clean(s string) string {
	if !strings.ContainsFunc(s, unsafe) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteByte(' ')
		case unsafe(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// unsafe: control characters, and the invisible ones that reorder what stands around them.
func unsafe(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }

// Clip shortens text to at most n characters, with a sign that it was.
func Clip(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:max(0, n-1)]) + "…"
}

// Age renders how long ago an instant was: 12s, 5m, 3h, 2d. It is "-" for the zero time.
func Age(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Span(now.Sub(t))
}

// Span renders a length of time in two figures at most: 480ms, 12s, 5m10s, 3h, 2d.
func Span(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 10*time.Minute:
		if s := int(d.Seconds()) % 60; s > 0 {
			return fmt.Sprintf("%dm%ds", int(d.Minutes()), s)
		}
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 10*time.Hour:
		if m := int(d.Minutes()) % 60; m > 0 {
			return fmt.Sprintf("%dh%dm", int(d.Hours()), m)
		}
		return fmt.Sprintf("%dh", int(d.Hours()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Dash stands for what is not there.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
