package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// idle measures what it costs to have nothing to do.
func (m *measurement) idle(ctx context.Context, d time.Duration) error {
	if err := m.polled(ctx, poolSlots); err != nil {
		return err
	}
	before, err := m.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pause(ctx, d); err != nil {
		return err
	}
	after, err := m.spent()
	if err != nil {
		return err
	}
	took := time.Since(began)
	share := func(from, to time.Duration) float64 { return 100 * float64(to-from) / float64(took) }
	m.figure("CPU server", "% of a core", share(before.server, after.server))
	m.figure("CPU worker", "% of a core", share(before.worker, after.worker))
	m.figure("flushes", "per s", float64(after.flushes-before.flushes)/took.Seconds())
	m.memory("memory server", after.resident)
	settled, err := m.server.settle()
	if err != nil {
		return err
	}
	m.memory("memory server, settled", settled.Resident)
	return nil
}

// memory adds a figure of bytes in RAM, where they are known.
func (m *measurement) memory(name string, resident int64) {
	if resident > 0 {
		m.figure(name, "MB", float64(resident)/(1<<20))
	}
}

const signalName = "go"

// parked is W5. As many plain runs go first, so that what the server remembers of the past, which is bounded, is not
// taken for what a parked run needs.
func (m *measurement) parked(ctx context.Context, n int) error {
	// 1. A server that has seen this many runs.
	if err := m.polled(ctx, poolSlots); err != nil {
		return err
	}
	handled := int64(warmUp)
	pass := func(t task) ([]string, error) {
		ids, err := m.submitAll(ctx, n, batchSize, func(int) task { return t })
		if err != nil {
			return nil, err
		}
		handled += int64(n)
		return ids, m.drained(ctx, handled)
	}
	if _, err := pass(task{}); err != nil {
		return err
	}
	// 2. What as many parked ones add.
	empty, err := m.server.settle()
	if err != nil {
		return err
	}
	ids, err := pass(task{Wait: signalName})
	if err != nil {
		return err
	}
	if err := m.allIn(ctx, ids, "waiting"); err != nil {
		return err
	}
	full, err := m.server.settle()
	if err != nil {
		return err
	}
	if full.Resident > 0 {
		m.figure("memory server", "B per parked run", float64(full.Resident-empty.Resident)/float64(n))
	}
	m.figure("disk", "B per parked run", float64(full.Bytes-empty.Bytes)/float64(n))
	// 3. All go on.
	before, err := m.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	err = fromAll(ctx, n, func(ctx context.Context, i int) error {
		_, err := m.client.Signal(ctx, ids[i], api.SignalBody{Name: signalName, Payload: json.RawMessage("true")})
		return err
	})
	if err != nil {
		return err
	}
	if err := m.drained(ctx, handled+int64(n)); err != nil {
		return err
	}
	m.figure("resumed", "runs/s", float64(n)/time.Since(began).Seconds())
	if err := m.costs(before, n, "run"); err != nil {
		return err
	}
	if err := m.allIn(ctx, ids, "succeeded"); err != nil {
		return err
	}
	return m.allSucceeded(ctx)
}

// allIn makes sure of the state of some of many runs: the first, the last, and some between.
func (m *measurement) allIn(ctx context.Context, ids []string, state string) error {
	for i := 0; i < len(ids); i += max(1, min(len(ids)/10, len(ids)-1-i)) {
		r, err := m.client.Run(ctx, ids[i], 0)
		if err != nil {
			return err
		}
		if r.State != state {
			return fmt.Errorf("run %s is %s and not %s: %s %s", r.ID, r.State, state, r.Reason, r.Message)
		}
	}
	return nil
}
