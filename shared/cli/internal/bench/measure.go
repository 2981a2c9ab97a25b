package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Dimensions that workloads share.
const (
	submitters = 16 // clients that call at the same time
	poolSlots  = 64
	batchSize  = 500
	warmUp     = 200 // runs before each measurement, which it does not count
	stall      = time.Minute
)

const agentName = "bench"

// storeFile is the name of a measurement's store in its folder.
const storeFile = "bench.db"

// manifests is the fleet of a measurement: one agent that workers pull, or that the server starts itself.
func manifests(run, target string) []byte {
	return []byte(`apiVersion: errand.dev/v1
kind: Agent
metadata: {name: ` + agentName + `}
spec:
  shape: pool` + run + `
  retry: {maxAttempts: 100, backoff: {initial: 10ms, max: 200ms}}
  effects: {settle: 20ms}
  permissions: {effects: [` + effectName + `]}
---
apiVersion: errand.dev/v1
kind: Target
metadata: {name: here}
spec: ` + target + `
`)
}

// measurement is one repetition of one workload, on a store of its own.
type measurement struct {
	dir     string
	profile string // file for the server's CPU profile, "" for none
	store   string
	addr    string // of the server; "" before the first
	servers int    // started so far
	server  *child
	worker  *child
	client  *api.Client
	figures []Figure
}

// serve brings up a server: the first one where it likes, and each further one in the place of the last.
func (m *measurement) serve(ctx context.Context, local bool) error {
	s := spec{Role: roleServer, Dir: m.dir, Addr: m.addr, Local: local, Profile: m.profile}
	if m.servers++; m.servers > 1 && s.Profile != "" {
		s.Profile = strings.TrimSuffix(s.Profile, profileEnding) + fmt.Sprintf("-server%d", m.servers) + profileEnding
	}
	server, w, err := spawn(ctx, s)
	if err != nil {
		return err
	}
	m.server, m.store = server, strings.ReplaceAll(w.Store, m.dir+"/", "")
	if m.client == nil {
		m.addr = strings.TrimPrefix(w.URL, "http://")
		m.client, err = api.NewClient(api.Options{URL: w.URL})
	}
	return err
}

// polled brings up the server and its fleet, a worker that pulls, and warms everything up.
func (m *measurement) polled(ctx context.Context, slots int) error {
	if err := m.serve(ctx, false); err != nil {
		return err
	}
	if _, err := m.client.Apply(ctx, manifests("", "{runtime: poll}"), api.ApplyOptions{}); err != nil {
		return err
	}
	if err := m.work(ctx, slots, ""); err != nil {
		return err
	}
	if err := m.submitSame(ctx, warmUp, 1, task{}); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	return m.drained(ctx, warmUp)
}

// work brings up a worker; log is for what its handlers do outside, "" where they do nothing.
func (m *measurement) work(ctx context.Context, slots int, log string) (err error) {
	m.worker, _, err = spawn(ctx, spec{Role: roleWorker, URL: m.client.URL(), Slots: slots, Log: log})
	return err
}

// stop ends all processes.
func (m *measurement) stop() error {
	var faults []error
	if m.worker != nil {
		faults = append(faults, m.worker.stop())
	}
	if m.client != nil {
		m.client.Close()
	}
	if m.server != nil {
		faults = append(faults, m.server.stop())
	}
	return errors.Join(faults...)
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
	flushes, pages         int64 // of the store's log
	resident               int64 // of the server now
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
	return spent{s.CPU, w.CPU, ownCPU(), s.Flushes, s.Pages, s.Resident}, nil
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
	m.figure("log", "pages per "+unit, float64(after.pages-before.pages)/float64(n))
	return nil
}

// fromAll calls for each of n, from several clients at the same time, until one fails.
func fromAll(ctx context.Context, n int, call func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var clients sync.WaitGroup
	for range submitters {
		clients.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := call(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	clients.Wait()
	return context.Cause(ctx)
}

// submitSame submits n runs of the same task, in calls of batch runs.
func (m *measurement) submitSame(ctx context.Context, n, batch int, t task) error {
	_, err := m.submitAll(ctx, n, batch, func(int) task { return t })
	return err
}

// submitAll submits n runs in calls of batch runs, and returns their ids.
func (m *measurement) submitAll(ctx context.Context, n, batch int, task func(i int) task) ([]string, error) {
	ids := make([]string, n)
	err := fromAll(ctx, (n+batch-1)/batch, func(ctx context.Context, call int) error {
		first := call * batch
		runs := make([]api.Submit, min(batch, n-first))
		for i := range runs {
			input, err := json.Marshal(task(first + i))
			if err != nil {
				return err
			}
			runs[i] = api.Submit{Agent: agentName, Input: input}
		}
		return m.submit(ctx, runs, ids[first:])
	})
	return ids, err
}

func (m *measurement) submit(ctx context.Context, runs []api.Submit, ids []string) error {
	if len(runs) == 1 {
		r, _, err := m.client.Submit(ctx, runs[0])
		if err == nil {
			ids[0] = r.ID
		}
		return err
	}
	items, err := m.client.SubmitBatch(ctx, runs)
	for i, item := range items {
		if item.Error != nil {
			return item.Error
		}
		ids[i] = item.Run.ID
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
		left, err := m.held(ctx)
		if err != nil {
			return err
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

// held is how many runs wait for a slot or have one.
func (m *measurement) held(ctx context.Context) (int, error) {
	o, err := m.client.Object(ctx, api.Agents, agentName)
	if err != nil || o.Status == nil {
		return 0, err
	}
	return o.Status.Queued + o.Status.Running, nil
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
	for r, err := range m.client.Runs(ctx, api.RunFilter{State: []string{"failed", "canceled"}}) {
		if err != nil {
			return err
		}
		return fmt.Errorf("run %s is %s: %s %s", r.ID, r.State, r.Reason, r.Message)
	}
	return nil
}
