package bench

import (
	"fmt"
	"runtime"
	"time"

	"github.com/errand-run/errand/shared/placement/crowd"
)

// Dimensions of W7, besides those of the crowd.
const (
	queuedRuns   = 100_000
	queuedAgents = 20
)

// queued is how many runs W7 decides over: fewer in a small measurement.
func queued(o *Options) int { return min(queuedRuns, 5*o.Runs) }

// decisions is W7: the scheduler alone, in this process, decides over a whole queue.
func (m *measurement) decisions(n int) error {
	c := crowd.New(n, queuedAgents, 2*queuedRuns/crowd.Targets)
	pass := func() (perSecond, allocations float64, err error) {
		q := c.Queue()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		placed, refused := c.Pass(q, n)
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		if placed != n {
			return 0, 0, fmt.Errorf("%d runs were placed and %d refused, of %d with room for all", placed, refused, n)
		}
		return float64(n) / took.Seconds(), float64(after.Mallocs-before.Mallocs) / float64(n), nil
	}
	// 1. A new leader, which has not seen the targets and classes.
	first, firstAllocations, err := pass()
	if err != nil {
		return err
	}
	// 2. The same one, later.
	c.Clear()
	later, allocations, err := pass()
	if err != nil {
		return err
	}
	m.figure("decisions", "per s", later)
	m.figure("decisions of a new leader", "per s", first)
	m.figure("allocations", "per decision", allocations)
	m.figure("allocations of a new leader", "per decision", firstAllocations)
	return nil
}
