package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
)

// watched is where dev sees runs: the control plane of this process, or one elsewhere.
type watched interface {
	Watch(ctx context.Context, buffer int) (<-chan control.Change, func())
	List(ctx context.Context, f control.Filter, limit int, pageToken string) (control.RunPage, error)
	Get(ctx context.Context, id string) (*run.Record, error)
}

// remote sees the runs of a control plane in other processes by asking again and again: which of them wrote a change is
// nothing that a client can know. Its records have what dev shows, and no more.
type remote struct {
	client *api.Client
	now    func() time.Time
	log    *slog.Logger
}

const (
	askSoon  = 200 * time.Millisecond // while something moves
	askLater = 500 * time.Millisecond
	// askBack is how far before the last look new runs are looked for: they are stored a while after they were named.
	askBack = 5 * time.Second
)

// Watch implements watched. States between two looks are not seen.
func (m *remote) Watch(ctx context.Context, buffer int) (<-chan control.Change, func()) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan control.Change, buffer)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w := remoteWatch{remote: m, live: make(map[string]string), over: make(map[string]time.Time), since: m.now()}
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			began := m.now()
			changes, err := w.look(ctx)
			if err != nil && ctx.Err() == nil {
				m.log.Info("look at runs", "error", err) // a control process may just have been killed
			}
			for _, c := range changes {
				select {
				case out <- c:
				case <-ctx.Done():
					return
				}
			}
			pause := askLater
			if len(changes) > 0 || len(w.live) > 0 {
				pause = askSoon
			}
			timer.Reset(max(pause, 2*m.now().Sub(began))) // never more than a third of the time
		}
	}()
	return out, func() {
		cancel()
		<-done
	}
}

// remoteWatch is what a watch knows.
type remoteWatch struct {
	*remote
	live  map[string]string    // etags of runs that are not over
	over  map[string]time.Time // when those were created that are over and may be listed again as new
	since time.Time            // of the last look
}

// look returns what has changed since the last look.
func (w *remoteWatch) look(ctx context.Context) ([]control.Change, error) {
	began := w.now()
	seen := make(map[string]*api.Run)
	// 1. What is new, and what is not over. The second list is the younger.
	since := api.Time{Time: w.since.Add(-askBack)}
	for _, f := range []api.RunFilter{{Since: &since}, {State: liveNames}} {
		for r, err := range w.client.Runs(ctx, f) {
			if err != nil {
				return nil, err
			}
			if len(seen) == seedScan {
				break
			}
			seen[r.ID] = &r
		}
	}
	// 2. What was not over and is in neither.
	for id := range w.live {
		if seen[id] != nil {
			continue
		}
		r, err := w.client.Run(ctx, id, 0)
		if err != nil {
			return nil, err
		}
		seen[id] = r
	}
	// 3. The difference.
	var changes []control.Change
	for id, r := range seen {
		etag, known := w.live[id]
		if _, over := w.over[id]; over || (known && etag == r.Etag) {
			continue
		}
		c := control.Change{Run: recordOf(r)}
		if !known {
			c.Events = []run.Event{{Type: run.EvSubmitted}}
		}
		changes = append(changes, c)
		if w.live[id] = r.Etag; r.Terminal() {
			delete(w.live, id)
			w.over[id] = r.CreatedAt.Time
		}
	}
	for id, created := range w.over {
		if created.Before(since.Time) {
			delete(w.over, id)
		}
	}
	w.since = began
	return changes, nil
}

// List implements watched, for states alone.
func (m *remote) List(ctx context.Context, f control.Filter, limit int, pageToken string) (control.RunPage, error) {
	var states []string
	for _, s := range f.States {
		states = append(states, string(s))
	}
	page, err := m.client.ListRuns(ctx, api.RunFilter{State: states}, api.Page{Limit: limit, Token: pageToken})
	if err != nil {
		return control.RunPage{}, err
	}
	out := control.RunPage{Next: page.NextPageToken}
	for i := range page.Items {
		out.Runs = append(out.Runs, recordOf(&page.Items[i]))
	}
	return out, nil
}

// Get implements watched.
func (m *remote) Get(ctx context.Context, id string) (*run.Record, error) {
	r, err := m.client.Run(ctx, id, 0)
	if err != nil {
		return nil, err
	}
	return recordOf(r), nil
}

var liveNames = func() (names []string) {
	for _, s := range liveStates {
		names = append(names, string(s))
	}
	return names
}()

// recordOf is what dev shows of a run.
func recordOf(r *api.Run) *run.Record {
	out := &run.Record{State: run.State(r.State), Reason: run.Reason(r.Reason), Message: r.Message, Attempt: r.Attempt}
	out.ID, out.Agent = r.ID, r.Agent
	if r.Placement != nil {
		out.Target = r.Placement.Target
	}
	if r.StartedAt != nil {
		out.StartedAt = run.At(r.StartedAt.Time)
	}
	if r.EndedAt != nil {
		out.EndedAt = run.At(r.EndedAt.Time)
	}
	if r.WaitsFor != nil {
		out.Park = &run.Park{On: run.ParkOn(r.WaitsFor.On), Name: r.WaitsFor.Name}
	}
	return out
}
