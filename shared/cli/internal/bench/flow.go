package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Dimensions of W1 to W3.
const (
	oneByOne    = 500
	stepRuns    = 1000
	stepsPerRun = 5
	stepSlots   = 32
)

// throughput is W1 and W1b.
func (m *measurement) throughput(ctx context.Context, n, batch int) error {
	if err := m.polled(ctx, poolSlots); err != nil {
		return err
	}
	before, err := m.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := m.submitSame(ctx, n, batch, task{}); err != nil {
		return err
	}
	submitted := time.Since(began)
	if err := m.drained(ctx, int64(n+warmUp)); err != nil {
		return err
	}
	took := time.Since(began)
	m.figure("throughput", "runs/s", float64(n)/took.Seconds())
	m.figure("intake", "runs/s", float64(n)/submitted.Seconds())
	if err := m.costs(before, n, "run"); err != nil {
		return err
	}
	return m.allSucceeded(ctx)
}

// latency is W2.
func (m *measurement) latency(ctx context.Context, n int) error {
	if err := m.polled(ctx, poolSlots); err != nil {
		return err
	}
	var starts, results []time.Duration
	for range n {
		began := time.Now()
		r, err := m.client.Invoke(ctx, agentName, api.Submit{Input: json.RawMessage("{}")}, api.MaxWait*time.Second)
		if err != nil {
			return err
		}
		results = append(results, time.Since(began))
		var out answer
		if err := json.Unmarshal(r.Output, &out); err != nil {
			return fmt.Errorf("run %s is %s with output %s: %w", r.ID, r.State, r.Output, err)
		}
		starts = append(starts, time.Duration(out.Began-began.UnixNano()))
	}
	slices.Sort(starts)
	slices.Sort(results)
	m.figure("start p50", "ms", ms(percentile(starts, 0.50)))
	m.figure("start p99", "ms", ms(percentile(starts, 0.99)))
	m.figure("result p50", "ms", ms(percentile(results, 0.50)))
	m.figure("result p99", "ms", ms(percentile(results, 0.99)))
	return nil
}

// steps is W3.
func (m *measurement) steps(ctx context.Context, n int) error {
	if err := m.polled(ctx, stepSlots); err != nil {
		return err
	}
	before, err := m.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := m.submitSame(ctx, n, batchSize, task{Steps: stepsPerRun}); err != nil {
		return err
	}
	if err := m.drained(ctx, int64(n+warmUp)); err != nil {
		return err
	}
	took := time.Since(began)
	all := n * stepsPerRun
	m.figure("throughput", "steps/s", float64(all)/took.Seconds())
	m.figure("step", "ms", float64(took)/float64(time.Millisecond)/float64(all)*stepSlots)
	if err := m.costs(before, all, "step"); err != nil {
		return err
	}
	return m.allSucceeded(ctx)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
