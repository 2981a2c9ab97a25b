// Reconcile is the job of the worked example, the agent invoice-reconcile: it
// works through a set of documents, adds up what is payable, and ends.
//
// The set is cut into shards, each a durable step: a run whose process dies
// goes on behind the last shard that was recorded.
package main

import (
	"context"
	"fmt"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/invoice"
	"github.com/errand-run/errand/shared/invoice/tally"
)

func main() { agent.Main(reconcile) }

type request struct {
	Documents []invoice.File `json:"documents"`
	Shards    int            `json:"shards"` // tally.DefaultShards when 0
}

func reconcile(ctx context.Context, r *agent.Run, in request) (tally.Report, error) {
	ends, err := tally.Split(len(in.Documents), in.Shards)
	if err != nil {
		return tally.Report{}, agent.Fail("RequestInvalid", err)
	}
	shards := make([][]tally.Finding, len(ends))
	from := 0
	for k, end := range ends {
		files := in.Documents[from:end]
		shards[k], err = agent.Step(ctx, r, fmt.Sprintf("shard-%d", k+1), func(ctx context.Context) ([]tally.Finding, error) {
			return examine(ctx, files)
		})
		if err != nil {
			return tally.Report{}, err
		}
		from = end
		r.Progress(float64(end)/float64(len(in.Documents)), fmt.Sprintf("%d of %d shards", k+1, len(ends)))
	}
	return tally.Reconcile(shards)
}

// examine stops between documents when the attempt has to end.
func examine(ctx context.Context, files []invoice.File) ([]tally.Finding, error) {
	findings := make([]tally.Finding, 0, len(files))
	for _, file := range files {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		findings = append(findings, tally.Examine(file))
	}
	return findings, nil
}
