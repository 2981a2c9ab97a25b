package cost

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// typical is a run as there are many.
type typical struct {
	name  string
	shape fleet.Shape
	input any
	// by answers the submitter and the worker.
	by func(c *cloud) *process
	// handler executes it, unless it is a service's.
	handler agent.Handler[any, any]
	handles int // how often a handler ends
	// meanwhile is called when the handler has ended, each time but the last.
	meanwhile func(c *cloud, p *process, id string)
}

func leading(c *cloud) *process    { return c.leader }
func notLeading(c *cloud) *process { return c.follower }

func returns(v any) agent.Handler[any, any] {
	return func(context.Context, *agent.Run, any) (any, error) { return v, nil }
}

var large = strings.Repeat("x", 100<<10)

// typicalRuns are what docs/cost.md has figures of. The first is the plain run, which has a budget.
var typicalRuns = []typical{
	{name: "plain, in a pool", shape: fleet.Pool, by: leading, handler: returns("done"), handles: 1},
	{name: "plain, in a pool, answered by a process that does not lead", shape: fleet.Pool, by: notLeading, handler: returns("done"), handles: 1},
	{name: "plain, by a service", shape: fleet.Service, by: leading, handles: 1},
	{name: "plain, as a job's task", shape: fleet.Job, by: leading, handler: returns("done"), handles: 1},
	{name: "three steps, the last with an effect", shape: fleet.Pool, by: leading, handles: 1, handler: stepwise},
	{name: "parks for a signal, and goes on", shape: fleet.Pool, by: leading, handles: 2, handler: patient, meanwhile: signal},
	{name: "fails twice, and is retried", shape: fleet.Pool, by: leading, handles: 3, handler: clumsy, meanwhile: backoff},
	{name: "100 KiB in and out", shape: fleet.Pool, by: leading, input: large, handler: returns(large), handles: 1},
}

func stepwise(ctx context.Context, r *agent.Run, _ any) (any, error) {
	for _, name := range []string{"read", "check"} {
		if _, err := agent.Step(ctx, r, name, func(context.Context) (int, error) { return 1, nil }); err != nil {
			return nil, err
		}
	}
	return agent.Step(ctx, r, "pay", func(ctx context.Context) (string, error) {
		return agent.Once(ctx, r, "transfer", agent.Effect[string]{Do: func(context.Context, string) (string, error) { return "paid", nil }})
	})
}

func patient(ctx context.Context, r *agent.Run, _ any) (any, error) {
	return agent.Wait[any](ctx, r, "approved", 0)
}

func signal(c *cloud, p *process, id string) {
	c.await("the run to park", func() bool { return c.is(id, run.Waiting) }, time.Millisecond)
	if _, err := p.client.Signal(c.t.Context(), id, api.SignalBody{Name: "approved", Payload: json.RawMessage(`true`)}); err != nil {
		c.t.Fatal(err)
	}
}

func clumsy(_ context.Context, r *agent.Run, _ any) (any, error) {
	if r.Attempt < 3 {
		return nil, errors.New("not yet")
	}
	return "done", nil
}

func backoff(c *cloud, _ *process, id string) {
	c.await("the run to back off", func() bool { return c.is(id, run.Backoff) }, time.Millisecond)
	c.pass(backoffTime)
}

const (
	backoffTime = 5 * time.Millisecond
	retention   = time.Hour
)

// walk takes n runs from submit to result, one after the other.
func (k *typical) walk(c *cloud, n int) {
	c.t.Helper()
	p := k.by(c)
	input, err := json.Marshal(k.input)
	if err != nil {
		c.t.Fatal(err)
	}
	for range n {
		before := c.handled.Load()
		r, _, err := p.client.Submit(c.t.Context(), api.Submit{Agent: "errand", Input: input})
		if err != nil {
			c.t.Fatal(err)
		}
		for i := 1; i <= k.handles; i++ {
			c.await("the handler", func() bool { return c.handled.Load() == before+int64(i) }, time.Millisecond)
			if i < k.handles {
				k.meanwhile(c, p, r.ID)
			}
		}
		c.await("the run to succeed", func() bool { return c.is(r.ID, run.Succeeded) }, time.Millisecond)
		c.settle()
	}
}

// counted is how many runs of each kind are counted, after a few that are not.
const counted, uncounted = 20, 3

// count is the bill of counted runs, and that of removing all that there were, for each.
func (k *typical) count(c *cloud) (of bill, removal removalBill) {
	c.t.Helper()
	c.start(&fleet.Agent{
		Meta: fleet.Meta{Name: "errand"}, Shape: k.shape, Retain: fleet.Duration(retention),
		Permissions: fleet.Permissions{Effects: []string{"transfer"}},
		Retry:       fleet.Retry{MaxAttempts: 3, Backoff: fleet.Backoff{Initial: fleet.Duration(backoffTime), Factor: 1, Max: fleet.Duration(backoffTime)}},
	})
	c.serve = answers("done")
	c.handle = func(ctx context.Context, client *api.Client, a *agent.Attempt) agent.Result {
		return agent.Handle(client, k.handler)(ctx, a)
	}
	if k.shape == fleet.Pool {
		c.work(k.by(c), "errand")
	}
	k.walk(c, uncounted)
	before := c.bill()
	k.walk(c, counted)
	of = c.bill().minus(before)
	return of, c.remove(uncounted + counted)
}

// removalBill is of one run.
type removalBill struct{ reads, deletes float64 }

// remove lets the time of n finished runs be over, and counts what their removal takes beyond the looks that find
// nothing: the due index is asked whether there is something to do, and to remove.
func (c *cloud) remove(n int) removalBill {
	c.t.Helper()
	// 1. What of the looks finds something: those reads are the runs' own.
	look := c.openStore()
	finished := func() (full int) {
		docs, err := look.Due(c.t.Context(), store.PartEnded, math.MaxInt64, 0, "", 1)
		if err != nil {
			c.t.Fatal(err)
		}
		full += len(docs)
		return full
	}
	full := finished()
	// 2. Time passes.
	before := c.bill()
	c.pass(retention + time.Minute)
	c.leader.plane.Tick(c.t.Context())
	c.await("finished runs to be removed", func() bool {
		c.pass(5 * time.Millisecond)
		return c.bill().minus(before).deletes >= int64(n) && finished() == 0
	}, 50*time.Millisecond)
	var last bill
	c.await("the round to end", func() bool {
		c.pass(5 * time.Millisecond)
		now := c.bill()
		still := now == last
		last = now
		return still
	}, 50*time.Millisecond)
	// 3. What it took, without the looks: for work that nobody told of (a tick), idle and held, for work of the next minutes, for what is
	// to be removed, and for when the next is.
	b := c.bill().minus(before)
	const looks = 5
	reads := b.reads - looks + int64(full)
	return removalBill{float64(reads) / float64(n), float64(b.deletes) / float64(n)}
}
