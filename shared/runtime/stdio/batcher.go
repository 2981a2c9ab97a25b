package stdio

import (
	"fmt"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/runtime"
)

const (
	batchLines = 100
	batchWait  = 250 * time.Millisecond // how long a line may wait for others
)

// batcher hands log lines on in batches, up to runtime.MaxLogBytes in all; what is more is counted and dropped.
type batcher struct {
	sink func([]runtime.LogLine)

	send sync.Mutex // held during sink: keeps batches in order

	mu      sync.Mutex
	lines   []runtime.LogLine
	timer   *time.Timer
	bytes   int
	dropped int
	closed  bool
}

func newBatcher(sink func([]runtime.LogLine)) *batcher { return &batcher{sink: sink} }

func (b *batcher) add(line runtime.LogLine) {
	if b.sink == nil {
		return
	}
	b.mu.Lock()
	if b.bytes += len(line.Text) + 1; b.bytes > runtime.MaxLogBytes || b.closed {
		b.dropped++
		b.mu.Unlock()
		return
	}
	b.lines = append(b.lines, line)
	full := len(b.lines) >= batchLines
	if len(b.lines) == 1 {
		b.timer = time.AfterFunc(batchWait, b.flush)
	}
	b.mu.Unlock()
	if full {
		b.flush()
	}
}

func (b *batcher) flush() {
	b.send.Lock()
	defer b.send.Unlock()
	b.mu.Lock()
	lines := b.lines
	b.lines = nil
	if b.timer != nil {
		b.timer.Stop()
	}
	b.mu.Unlock()
	for len(lines) > 0 {
		n := min(len(lines), batchLines)
		b.sink(lines[:n:n])
		lines = lines[n:]
	}
}

// close hands on what is left and, if lines were dropped, one that says so.
func (b *batcher) close(line func(stream, text string) runtime.LogLine) {
	if b.sink == nil {
		return
	}
	b.mu.Lock()
	b.closed = true
	if b.dropped > 0 {
		b.lines = append(b.lines, line("stderr", fmt.Sprintf("… %d more lines were dropped: over %d MiB of log in one attempt", b.dropped, runtime.MaxLogBytes>>20)))
	}
	b.mu.Unlock()
	b.flush()
}
