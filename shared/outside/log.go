// Package outside is what tests need of what happens outside of them: a log that others write while it is read, a process
// that is started, told and killed, and a bounded wait for what tells nobody that it is so.
//
// It is for tests alone. It imports the standard library.
package outside

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// tailBytes of a process's output are enough to see why it ended.
const tailBytes = 8 << 10

// Log keeps all that is written to it. The zero value is empty. Safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer. It never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is all that was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count is how often the text was written so far.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Tail is the end of what was written so far, at most 8 KiB.
func (l *Log) Tail() string {
	text := l.String()
	return text[max(0, len(text)-tailBytes):]
}

// Logger writes to the log, as text, from level info on.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
