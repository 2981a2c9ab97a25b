package admission

import (
	"time"

	"github.com/errand-run/errand/shared/fleet"
)

// maxLearned bounds how many agents are remembered.
const maxLearned = 10_000

// Durations learns how long runs of each agent hold their slots. The zero value is ready.
type Durations struct {
	usual map[string]time.Duration // agent to its moving average
}

// Learn moves the agent's average an eighth of the way towards its newest attempt that succeeded.
func (d *Durations) Learn(agent string, took time.Duration) {
	if d.usual == nil {
		d.usual = make(map[string]time.Duration)
	}
	old, known := d.usual[agent]
	switch {
	case known:
		d.usual[agent] = old + (took-old)/8
	case len(d.usual) < maxLearned:
		d.usual[agent] = took
	}
}

// Expected is how long a run of the agent is likely to hold its slot, at least 1 ms: what was learned, else what the
// agent declares, else a second.
func (d *Durations) Expected(a *fleet.Agent) time.Duration {
	if usual, known := d.usual[a.Name()]; known {
		return max(usual, time.Millisecond)
	}
	if declared := a.Lifetime.Expected.Std(); declared > 0 {
		return max(declared, time.Millisecond)
	}
	return time.Second
}

// Charge is what a run of the agent that holds its slots for so long costs its tenant in the queue.
func Charge(a *fleet.Agent, held time.Duration) int64 {
	return int64(max(a.Needs.Slots, 1)) * held.Milliseconds()
}
