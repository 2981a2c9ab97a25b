package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/internal/seed"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// readPause is between two reads: who looks at pages leaves the server time for runs.
const readPause = 10 * time.Millisecond

// reads is how often W8 reads each thing: seldom enough for a small measurement to be quick.
func reads(rest int) int { return min(max(rest/1000, 10), 200) }

// filled makes a store with so many runs at rest, or copies the one that an earlier repetition made.
func filled(ctx context.Context, parent, path string, rest int) error {
	first := filepath.Join(parent, "rest.db")
	if _, err := os.Stat(first); errors.Is(err, os.ErrNotExist) {
		db, err := sqlite.Open(ctx, first, sqlite.Options{Sync: sqlite.SyncOff})
		if err != nil {
			return err
		}
		if err := errors.Join(seed.Fill(ctx, db, rest, time.Now(), 1), db.Close()); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	in, err := os.Open(first)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync() // what is written later is measured
	}
	return errors.Join(err, out.Close())
}

// stored is W8: a large store is opened, and read while W1 goes on.
func (m *measurement) stored(ctx context.Context, rest int) error {
	// 1. What a server without any run takes.
	if err := m.serve(ctx, false); err != nil {
		return err
	}
	idle, err := m.server.settle()
	if err != nil {
		return err
	}
	if err := errors.Join(m.server.stop(), os.Remove(filepath.Join(m.dir, storeFile))); err != nil {
		m.server = nil
		return err
	}
	m.server = nil
	// 2. Start-up.
	if err := filled(ctx, filepath.Dir(m.dir), filepath.Join(m.dir, storeFile), rest); err != nil {
		return err
	}
	began := time.Now()
	if err := m.serve(ctx, false); err != nil {
		return err
	}
	if _, err := m.client.ListRuns(ctx, api.RunFilter{}, api.Page{Limit: 1}); err != nil {
		return err
	}
	m.figure("start-up", "s", time.Since(began).Seconds())
	full, err := m.server.settle()
	if err != nil {
		return err
	}
	m.figure("disk", "B per run", float64(full.Bytes)/float64(rest))
	if full.Resident > 0 {
		m.memory("memory above idle", full.Resident-idle.Resident)
	}
	// 3. Reads under load.
	if _, err := m.client.Apply(ctx, manifests("", "{runtime: poll}"), api.ApplyOptions{}); err != nil {
		return err
	}
	if err := m.work(ctx, poolSlots, ""); err != nil {
		return err
	}
	if err := m.readUnderLoad(ctx, rest); err != nil {
		return err
	}
	after, err := m.server.ask()
	if err != nil {
		return err
	}
	if after.Resident > 0 {
		m.memory("memory above idle, under load", after.Resident-idle.Resident)
	}
	return nil
}

// readUnderLoad reads each kind of thing again and again, one after the other, while no-op runs are submitted as in W1.
func (m *measurement) readUnderLoad(ctx context.Context, rest int) error {
	things, err := m.things(ctx)
	if err != nil {
		return err
	}
	loadCtx, stop := context.WithCancel(ctx)
	defer stop()
	load := make(chan error, 1)
	enough := errors.New("enough")
	go func() {
		load <- fromAll(loadCtx, 1<<40, func(ctx context.Context, _ int) error {
			_, _, err := m.client.Submit(ctx, api.Submit{Agent: agentName, Input: []byte("{}")})
			if loadCtx.Err() != nil {
				return enough
			}
			return err
		})
	}()
	before, err := m.worker.ask()
	began := time.Now()
	took := make([][]time.Duration, len(things))
	for n := 0; n < reads(rest) && err == nil; n++ {
		for i, thing := range things {
			asked := time.Now()
			if err = thing.read(ctx, n); err != nil {
				err = fmt.Errorf("%s: %w", thing.name, err)
				break
			}
			took[i] = append(took[i], time.Since(asked))
			if err = pause(ctx, readPause); err != nil {
				break
			}
		}
	}
	var after word
	if err == nil {
		after, err = m.worker.ask()
	}
	elapsed := time.Since(began)
	stop()
	if loadErr := <-load; err == nil && !errors.Is(loadErr, enough) && !errors.Is(loadErr, context.Canceled) {
		err = loadErr
	}
	if err != nil {
		return err
	}
	for i, thing := range things {
		slices.Sort(took[i])
		m.figure(thing.name+" p50", "ms", ms(percentile(took[i], 0.50)))
		m.figure(thing.name+" p99", "ms", ms(percentile(took[i], 0.99)))
	}
	m.figure("throughput meanwhile", "runs/s", float64(after.Handled-before.Handled)/elapsed.Seconds())
	return nil
}

// thing is what is read, the n-th time.
type thing struct {
	name string
	read func(ctx context.Context, n int) error
}

// things are a run, the fleet's page, and lists by each filter.
func (m *measurement) things(ctx context.Context) ([]thing, error) {
	tenant := func(n int) string { return fmt.Sprint(seed.Tenant, n%seed.Tenants) }
	agent := func(n int) string { return fmt.Sprint(seed.Agent, n%seed.Agents) }
	// Ids and parents of runs of every tenant.
	var ids, parents []string
	for n := range seed.Tenants {
		list, err := m.client.ListRuns(ctx, api.RunFilter{Tenant: tenant(n)}, api.Page{Limit: api.MaxPage})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			ids = append(ids, list.Items[i].ID)
			if list.Items[i].Parent != "" {
				parents = append(parents, list.Items[i].Parent)
			}
		}
	}
	if len(ids) == 0 || len(parents) == 0 {
		return nil, fmt.Errorf("%d runs are stored, %d of them children: too few to read", len(ids), len(parents))
	}
	now := time.Now()
	list := func(name string, filter func(n int) api.RunFilter) thing {
		return thing{"list " + name, func(ctx context.Context, n int) error {
			_, err := m.client.ListRuns(ctx, filter(n), api.Page{Limit: 50})
			return err
		}}
	}
	states := []string{"queued", "waiting", "backoff", "succeeded", "failed", "canceled"}
	return []thing{
		{"get", func(ctx context.Context, n int) error {
			_, err := m.client.Run(ctx, ids[n*7919%len(ids)], 0)
			return err
		}},
		{"fleet page", func(ctx context.Context, _ int) error { return m.page(ctx, "/") }},
		list("all", func(int) api.RunFilter { return api.RunFilter{} }),
		list("by tenant", func(n int) api.RunFilter { return api.RunFilter{Tenant: tenant(n)} }),
		list("by agent", func(n int) api.RunFilter { return api.RunFilter{Agent: agent(n)} }),
		list("by agent and tenant", func(n int) api.RunFilter { return api.RunFilter{Agent: agent(n), Tenant: tenant(n)} }),
		list("by state", func(n int) api.RunFilter { return api.RunFilter{State: states[n%len(states) : n%len(states)+1]} }),
		list("by a rare label", func(int) api.RunFilter { return api.RunFilter{Labels: map[string]string{seed.Rare: "yes"}} }),
		list("by parent", func(n int) api.RunFilter { return api.RunFilter{Parent: parents[n*7919%len(parents)]} }),
		list("by time", func(n int) api.RunFilter {
			until := api.Time{Time: now.Add(-time.Duration(n%400) * time.Hour)}
			since := api.Time{Time: until.Add(-24 * time.Hour)}
			return api.RunFilter{Since: &since, Until: &until}
		}),
	}, nil
}

// page reads a page as a browser does.
func (m *measurement) page(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.client.URL()+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d", path, resp.StatusCode)
	}
	return nil
}
