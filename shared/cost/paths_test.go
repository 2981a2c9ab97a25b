package cost

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement/crowd"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/server"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// envCost is record when what is counted is to be recorded, and check when instructions are to be counted too, which takes
// a minute: `make cost` sets it.
const envCost = "ERRAND_COST"

// path is what is counted. One goroutine asks for everything, one thing after the other.
type path struct {
	name string
	n    int // how many times it is walked to be counted; a multiple of group where walks go in groups
	// open makes it ready, in a folder of its own. walk walks it so many times, and may be called again.
	open func(dir string) (walk func(n int) error, err error)
}

var paths = []path{
	{"a plain run through control and the memory store", 40 * group, func(string) (func(int) error, error) {
		return plainRuns(memory.Open())
	}},
	{"a plain run through control and the SQLite store", 20 * group, func(dir string) (func(int) error, error) {
		st, err := sqlite.Open(context.Background(), filepath.Join(dir, "cost.db"), sqlite.Options{})
		if err != nil {
			return nil, err
		}
		return plainRuns(st)
	}},
	{"a submit through the HTTP handler, control and the memory store", 1000, func(string) (func(int) error, error) {
		return submits()
	}},
	{"a placement decision", 2000, func(string) (func(int) error, error) { return decisions() }},
	{"encoding a record", 2000, func(string) (func(int) error, error) { return codec(false) }},
	{"decoding a record", 2000, func(string) (func(int) error, error) { return codec(true) }},
}

// group is how many runs go together, as many as come together under load: 16 clients submit one each.
const group = 16

// start starts a control plane with one agent that a worker pulls.
func start(st store.Store) (*control.Plane, error) {
	ctx := context.Background()
	p, err := control.New(control.Config{Store: st, Name: "cost"})
	if err != nil {
		return nil, err
	}
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	agent := &fleet.Agent{Meta: fleet.Meta{Name: "noop"}, Shape: fleet.Pool}
	target := &fleet.Target{Meta: fleet.Meta{Name: "workers"}, Runtime: fleet.RuntimePoll}
	_, err = p.Apply(ctx, []fleet.Object{agent, target}, control.ApplyOptions{})
	return p, err
}

// runs takes a group of runs from submit to result, and returns the id of one.
func runs(p *control.Plane) (id string, err error) {
	ctx := context.Background()
	subs := make([]control.Submission, group)
	for i := range subs {
		subs[i] = control.Submission{Agent: "noop", Input: json.RawMessage(`{"n":1}`)}
	}
	for _, out := range p.Submit(ctx, subs) {
		if out.Err != nil {
			return "", out.Err
		}
		id = out.Run.ID
	}
	for left := group; left > 0; {
		resp, err := p.Lease(ctx, control.LeaseRequest{Worker: "w", Agents: []string{"noop"}, Max: group, Slots: group, Wait: time.Second})
		if err != nil {
			return "", err
		}
		left -= len(resp.Leases)
		reports := make([]runtime.Report, len(resp.Leases))
		for i, l := range resp.Leases {
			reports[i] = runtime.Report{Type: runtime.Completed, Run: l.Run, N: l.N, Output: json.RawMessage(`{}`)}
		}
		for _, res := range p.Report(ctx, reports) {
			if res.Err != nil {
				return "", res.Err
			}
		}
	}
	return id, nil
}

// plainRuns walks runs from submit to result.
func plainRuns(st store.Store) (func(n int) error, error) {
	p, err := start(st)
	if err != nil {
		return nil, err
	}
	return func(n int) error {
		for range n / group {
			if _, err := runs(p); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// submits walks POST /v1/runs. The runs stay queued.
func submits() (func(n int) error, error) {
	p, err := start(memory.Open())
	if err != nil {
		return nil, err
	}
	s, err := server.New(server.Options{Plane: p, Loopback: true})
	if err != nil {
		return nil, err
	}
	return func(n int) error {
		for range n {
			r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/runs", strings.NewReader(`{"agent":"noop","input":{"n":1}}`))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			if s.ServeHTTP(w, r); w.Code != http.StatusCreated {
				return fmt.Errorf("status %d: %s", w.Code, w.Body)
			}
		}
		return nil
	}, nil
}

// decisions walks one pass over a crowd that all finds room, once what a new leader caches is there.
func decisions() (func(n int) error, error) {
	const warm = 1000
	c := crowd.New(10_000, 20, 20)
	q := c.Queue()
	if placed, _ := c.Pass(q, warm); placed != warm {
		return nil, fmt.Errorf("%d runs were placed, want %d", placed, warm)
	}
	return func(n int) error {
		if placed, refused := c.Pass(q, n); placed != n {
			return fmt.Errorf("%d runs were placed and %d refused, want %d placed", placed, refused, n)
		}
		return nil
	}, nil
}

// codec walks the form in which a record is stored: that of a plain run that is over, with all of its history.
func codec(decode bool) (func(n int) error, error) {
	p, err := start(memory.Open())
	if err != nil {
		return nil, err
	}
	id, err := runs(p)
	if err != nil {
		return nil, err
	}
	r, err := p.Get(context.Background(), id)
	if err != nil {
		return nil, err
	}
	if r.State != run.Succeeded {
		return nil, fmt.Errorf("run %s is %s", id, r.State)
	}
	body := run.Encode(r)
	return func(n int) error {
		for range n {
			if !decode {
				run.Encode(r)
			} else if _, err := run.DecodeRecord(body); err != nil {
				return err
			}
		}
		return nil
	}, nil
}
