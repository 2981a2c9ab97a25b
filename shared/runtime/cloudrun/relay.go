package cloudrun

import (
	"fmt"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// relayEvery is how often what a handler says on its way is passed on at most.
const relayEvery = 500 * time.Millisecond

// relay passes on what a handler says on its way, best effort and in batches: each is a write. Of progress the newest
// stands; log text over runtime.MaxLogBytes is counted and dropped.
type relay struct {
	rt *Runtime
	x  *attempt

	mu       sync.Mutex
	progress *runtime.Report
	logs     []runtime.LogLine
	bytes    int
	dropped  int
	timer    *time.Timer // set while a batch is due
	busy     sync.Mutex  // held while one is sent
}

func (w *relay) take(r runtime.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r.Type {
	case runtime.Progress:
		w.progress = &r
	case runtime.Logged:
		for _, line := range r.Logs {
			if w.bytes += len(line.Text) + 1; w.bytes > runtime.MaxLogBytes {
				w.dropped++
				continue
			}
			w.logs = append(w.logs, line)
		}
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(relayEvery, w.flush)
	}
}

func (w *relay) flush() {
	w.busy.Lock()
	defer w.busy.Unlock()
	w.mu.Lock()
	var reports []runtime.Report
	if len(w.logs) > 0 {
		reports = append(reports, runtime.Report{Type: runtime.Logged, Logs: w.logs})
	}
	if w.progress != nil {
		reports = append(reports, *w.progress)
	}
	w.logs, w.progress, w.timer = nil, nil, nil
	w.mu.Unlock()
	for _, r := range reports {
		r.Run, r.N = w.x.a.Run, w.x.a.N
		result := w.rt.try(r)
		w.rt.heed(w.x, result)
		if result.Err != nil {
			w.rt.log.Debug("a report on the way was not taken", "attempt", w.x.a.ID(), "report", r.Type, "error", result.Err)
		}
	}
}

// close passes on what is left.
func (w *relay) close() {
	w.mu.Lock()
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.dropped > 0 {
		w.logs = append(w.logs, runtime.LogLine{
			At: run.At(w.rt.opts.Now()), Stream: "errand",
			Text: fmt.Sprintf("… %d more lines were dropped: over %d MiB of log in one attempt", w.dropped, runtime.MaxLogBytes>>20),
		})
	}
	w.mu.Unlock()
	w.flush()
}
