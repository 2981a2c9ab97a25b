package cloudrun

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/runtime"
)

// Pools: an attempt is a message to whoever has room.

// MaxInstances bounds Scale.
const MaxInstances = 1000

// handOver publishes an attempt to the workers of its pool. A second message for it is harmless: a ticket is good once.
func (rt *Runtime) handOver(ctx context.Context, a *runtime.Assignment, refuse func(error) error) error {
	switch {
	case rt.opts.Bus == nil:
		return refuse(errors.New("this server has no bus; set ERRAND_BUS"))
	case a.Ticket == "":
		return refuse(errors.New("the assignment has no ticket"))
	}
	message := bus.Message{Attributes: map[string]string{
		"attempt": a.ID(), "ticket": a.Ticket, "agent": a.Agent.Name(), "url": rt.opts.URL(),
	}}
	if a.Deadline != 0 {
		message.Attributes["expires"] = a.Deadline.Time().UTC().Format(time.RFC3339)
	}
	err := rt.opts.Bus.Publish(ctx, bus.Pool(a.Target.Name()), []bus.Message{message})[0]
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bus.ErrNoTopic):
		return refuse(fmt.Errorf("hand over by topic %s: %w; create it with a subscription of its name", bus.Pool(a.Target.Name()), err))
	case errors.Is(err, bus.ErrTooLarge), errors.Is(err, bus.ErrInvalid), errors.Is(err, bus.ErrClosed):
		return refuse(fmt.Errorf("hand over by topic %s: %w", bus.Pool(a.Target.Name()), err))
	}
	return fmt.Errorf("hand over attempt %s by topic %s: %w", a.ID(), bus.Pool(a.Target.Name()), err)
}

// Scale sets how many instances a target's worker pool has. It returns when the platform has taken the number, which it
// then brings about.
func (rt *Runtime) Scale(ctx context.Context, t *fleet.Target, n int) error {
	r, err := parseResource(t.Resource)
	switch {
	case err != nil:
		return fmt.Errorf("scale target %s: %w", t.Name(), err)
	case r.kind != workerPools:
		return fmt.Errorf("scale target %s: %s is no worker pool", t.Name(), r.name)
	case n < 0 || n > MaxInstances:
		return fmt.Errorf("scale target %s to %d instances: want 0 to %d", t.Name(), n, MaxInstances)
	}
	if err := rt.platform.scalePool(ctx, r.name, int32(n)); err != nil {
		if what := advice(err); what != "" {
			err = fmt.Errorf("%w; %s", err, what)
		}
		return fmt.Errorf("scale target %s to %d instances: %w", t.Name(), n, err)
	}
	return nil
}
