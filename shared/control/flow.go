package control

import (
	"context"

	"github.com/errand-run/errand/shared/run"
)

// advance takes a workflow's run its next step.
func (p *Plane) advance(context.Context, *run.Record) error { return nil }

// workflowChild makes the first record of a workflow that a run calls; spec is what it takes from its parent.
func (p *Plane) workflowChild(_ context.Context, _ run.Spec, c *call, _ run.Instant) (arrival, error) {
	return arrival{}, refuse(CodeNotFound, "there is no workflow %.80q; declare it with \"errand apply\"", c.Workflow)
}
