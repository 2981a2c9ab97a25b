package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// The workloads' dimensions.
const (
	submitters  = 16
	poolSlots   = 64
	batchSize   = 500
	oneByOne    = 500
	stepRuns    = 1000
	stepsPerRun = 5
	stepSlots   = 32
	warmUp      = 200 // runs before each measurement, which it does not count
	stall       = time.Minute
)

const agentName = "bench"

// The fleet of a measurement: one agent that workers pull.
const manifests = `apiVersion: errand.dev/v1
kind: Agent
metadata: {name: ` + agentName + `}
spec: {shape: pool}
---
apiVersion: errand.dev/v1
kind: Target
metadata: {name: workers-here}
spec: {runtime: poll}
`

// measurement is one repetition of one workload, on a server and a store of its own.
type measurement struct {
	dir     string
	store   string
	server  *child
	worker  *child
	client  *api.Client
	figures []Figure
}

// start brings up the server, which writes its profile to a file unless that is "".
func start(ctx context.Context, parent, profile string) (*measurement, error) {
	dir, err := os.MkdirTemp(parent, "run-*")
	if err != nil {
		return nil, err
	}
	m := &measurement{dir: dir}
	server, w, err := spawn(ctx, "server", dir, profile)
	if err != nil {
		return nil, err
	}
	m.server, m.store = server, strings.ReplaceAll(w.Store, dir+"/", "")
	if m.client, err = api.NewClient(api.Options{URL: w.URL}); err == nil {
		_, err = m.client.Apply(ctx, []byte(manifests), api.ApplyOptions{})
	}
	if err != nil {
		return nil, errors.Join(err, m.stop())
	}
	return m, nil
}

// pool brings up the worker and warms everything up.
func (m *measurement) pool(ctx context.Context, slots int) error {
	worker, _, err := spawn(ctx, "worker", m.client.URL(), strconv.Itoa(slots))
	if err != nil {
		return err
	}
	m.worker = worker
	if err := m.submitAll(ctx, warmUp, 1, task{}); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	return m.drained(ctx, warmUp)
}

// stop ends all processes and removes the data.
func (m *measurement) stop() error {
	var faults []error
	if m.worker != nil {
		faults = append(faults, m.worker.stop())
	}
	if m.client != nil {
		m.client.Close()
	}
	return errors.Join(append(faults, m.server.stop(), os.RemoveAll(m.dir))...)
}

func (m *measurement) figure(name, unit string, value float64) {
	m.figures = append(m.figures, Figure{Name: name, Unit: unit, Values: []float64{value}})
}

// summary is the figures in a line.
func (m *measurement) summary() string {
	var parts []string
	for _, f := range m.figures {
		parts = append(parts, fmt.Sprintf("%s %s %s", f.Name, Number(f.Values[0]), f.Unit))
	}
	return strings.Join(parts, ", ")
}

// Number is a figure with three significant digits at least.
func Number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// spent is what all processes have used so far.
type spent struct {
	server, worker, client time.Duration
	flushes                int64
}

func (m *measurement) spent() (spent, error) {
	s, err := m.server.ask()
	if err != nil {
		return spent{}, err
	}
	w, err := m.worker.ask()
	if err != nil {
		return spent{}, err
	}
	return spent{s.CPU, w.CPU, ownCPU(), s.Flushes}, nil
}

// costs adds what a unit of work cost since before.
func (m *measurement) costs(before spent, n int, unit string) error {
	after, err := m.spent()
	if err != nil {
		return err
	}
	each := func(from, to time.Duration) float64 { return float64(to-from) / float64(time.Millisecond) / float64(n) }
	server, worker, client := each(before.server, after.server), each(before.worker, after.worker), each(before.client, after.client)
	m.figure("CPU", "ms per "+unit, server+worker+client)
	m.figure("CPU server", "ms per "+unit, server)
	m.figure("CPU worker", "ms per "+unit, worker)
	m.figure("CPU client", "ms per "+unit, client)
	m.figure("flushes", "per "+unit, float64(after.flushes-before.flushes)/float64(n))
	return nil
}

// submitAll submits n runs in calls of batch runs, from several clients at once.
func (m *measurement) submitAll(ctx context.Context, n, batch int, t task) error {
	input, err := json.Marshal(t)
	if err != nil {
		return err
	}
	run := api.Submit{Agent: agentName, Input: input}
	many := make([]api.Submit, batch)
	for i := range many {
		many[i] = run
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var clients sync.WaitGroup
	for range submitters {
		clients.Go(func() {
			for {
				left := n - int(next.Add(int64(batch))) + batch
				if left <= 0 || ctx.Err() != nil {
					return
				}
				if err := m.submit(ctx, run, many[:min(batch, left)]); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	clients.Wait()
	return context.Cause(ctx)
}

func (m *measurement) submit(ctx context.Context, one api.Submit, many []api.Submit) error {
	if len(many) == 1 {
		_, _, err := m.client.Submit(ctx, one)
		return err
	}
	items, err := m.client.SubmitBatch(ctx, many)
	for _, item := range items {
		if item.Error != nil {
			return item.Error
		}
	}
	return err
}

// drained waits until the worker has handled n runs in all, and then until no run of the agent is left at the server.
// It asks seldom enough not to be part of what is measured.
func (m *measurement) drained(ctx context.Context, n int64) error {
	handled, since := int64(-1), time.Now()
	stalled := func(left int) error {
		if time.Since(since) < stall {
			return nil
		}
		return fmt.Errorf("nothing has moved for %s: the worker has handled %d of %d runs, the server has %d left", stall, handled, n, left)
	}
	for {
		w, err := m.worker.ask()
		if err != nil {
			return err
		}
		if w.Handled != handled {
			handled, since = w.Handled, time.Now()
		}
		if handled >= n {
			break
		}
		if err := stalled(int(n - handled)); err != nil {
			return err
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	for {
		o, err := m.client.Object(ctx, api.Agents, agentName)
		if err != nil {
			return err
		}
		left := 0
		if o.Status != nil {
			left = o.Status.Queued + o.Status.Running
		}
		if left == 0 {
			return nil
		}
		if err := stalled(left); err != nil {
			return err
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// allSucceeded makes sure that what was measured is what was meant.
func (m *measurement) allSucceeded(ctx context.Context) error {
	list, err := m.client.ListRuns(ctx, api.RunFilter{State: []string{"failed", "canceled"}}, api.Page{Limit: 1})
	if err == nil && len(list.Items) > 0 {
		r := list.Items[0]
		err = fmt.Errorf("run %s is %s: %s %s", r.ID, r.State, r.Reason, r.Message)
	}
	return err
}

// throughput is W1 and W1b.
func (m *measurement) throughput(ctx context.Context, n, batch int) error {
	if err := m.pool(ctx, poolSlots); err != nil {
		return err
	}
	before, err := m.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := m.submitAll(ctx, n, batch, task{}); err != nil {
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
	if err := m.pool(ctx, poolSlots); err != nil {
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
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	m.figure("start p50", "ms", ms(percentile(starts, 0.50)))
	m.figure("start p99", "ms", ms(percentile(starts, 0.99)))
	m.figure("result p50", "ms", ms(percentile(results, 0.50)))
	m.figure("result p99", "ms", ms(percentile(results, 0.99)))
	return nil
}

// steps is W3.
func (m *measurement) steps(ctx context.Context, n int) error {
	if err := m.pool(ctx, stepSlots); err != nil {
		return err
	}
	before, err := m.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := m.submitAll(ctx, n, batchSize, task{Steps: stepsPerRun}); err != nil {
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
