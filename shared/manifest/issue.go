package manifest

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Issue is one thing that is wrong with the input.
type Issue struct {
	File string
	// Line and Column count from 1, columns in characters. Both are 0 for a file
	// as a whole.
	Line, Column int
	Path         string // from the top of the document; "" for the document itself
	Message      string // what is wrong; what would be right

	order int // of the file
}

// String renders "file:line:col: path: message", without the parts that are
// unknown.
func (i Issue) String() string {
	var b strings.Builder
	b.WriteString(printable(i.File))
	if i.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", i.Line, i.Column)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if i.Path != "" {
		b.WriteString(i.Path)
		b.WriteString(": ")
	}
	b.WriteString(printable(i.Message))
	return b.String()
}

// printable quotes what would break the line or the terminal.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// Error is every issue of the input: by file in the order given, then by
// position.
type Error struct {
	Issues []Issue
	Cut    bool // there are more than MaxIssues
}

// Error renders one issue per line.
func (e *Error) Error() string {
	var b strings.Builder
	for i, issue := range e.Issues {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(issue.String())
	}
	if e.Cut {
		fmt.Fprintf(&b, "\nmore than %d errors; fix these first", MaxIssues)
	}
	return b.String()
}

// clip bounds a value that a message quotes.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	s = s[:most]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}

// suggest returns the candidate that the word was probably meant to be, or "".
func suggest(word string, candidates []string) string {
	const longest = 64 // distance is quadratic
	if len(word) > longest {
		return ""
	}
	best, least := "", max(1, len(word)/3)
	for _, c := range candidates {
		if strings.EqualFold(word, c) {
			return c
		}
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d <= least && (d < least || best == "") {
			best, least = c, d
		}
	}
	return best
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func distance(a, b string) int {
	row := func() []int { return make([]int, len(b)+1) }
	before, last, this := row(), row(), row()
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		this[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			this[j+1] = min(last[j]+cost, last[j+1]+1, this[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				this[j+1] = min(this[j+1], before[j-1]+1)
			}
		}
		before, last, this = last, this, before
	}
	return last[len(b)]
}

// didYouMean renders a suggestion, or the alternatives when there is none.
func didYouMean(word string, candidates []string) string {
	if s := suggest(word, candidates); s != "" {
		return "did you mean `" + s + "`"
	}
	return "want one of " + strings.Join(candidates, ", ")
}
