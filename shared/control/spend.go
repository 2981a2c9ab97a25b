package control

import (
	"context"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// FamilySpend is what a run and all below it, at any depth, have cost: what their attempts that have ended reported.
type FamilySpend struct {
	Usage run.Usage
	Runs  int  // the run itself, and those below it that were counted
	More  bool // there are more of them than are counted
}

const (
	maxFamilyRuns = 100_000     // that are read for one sum
	familyMargin  = time.Minute // by how much a child may seem older than its parent, by another process's clock
)

// Spend sums up what a run and all below it have cost. It reads the family by its root, once, whatever its shape: up to
// 100,000 runs of it that are not older than the run.
func (p *Plane) Spend(ctx context.Context, id string) (FamilySpend, error) {
	return p.spendOf(ctx, id, maxFamilyRuns)
}

func (p *Plane) spendOf(ctx context.Context, id string, most int) (FamilySpend, error) {
	rec, err := p.Get(ctx, id)
	if err != nil {
		return FamilySpend{}, err
	}
	// 1. Who belongs to whom.
	type member struct {
		id    string
		usage run.Usage
	}
	q := store.Query{By: store.ByRoot, Root: rec.ID, Oldest: true}
	if rec.Root != "" {
		q.Root, q.Since = rec.Root, int64(rec.CreatedAt.Add(-familyMargin))
	}
	below := make(map[string][]member)
	out := FamilySpend{Usage: rec.Usage, Runs: 1}
	for left := most; ; {
		q.Limit = min(left, store.MaxPage)
		page, err := p.store.List(ctx, q)
		if err != nil {
			return out, fmt.Errorf("read the family of run %s: %w", id, err)
		}
		var r run.Record
		for _, d := range page.Docs {
			if err := run.DecodeBrief(d.Body, &r); err != nil {
				return out, err
			}
			below[r.Parent] = append(below[r.Parent], member{r.ID, r.Usage})
		}
		if left -= len(page.Docs); page.Next == "" {
			break
		}
		if left == 0 {
			out.More = true
			break
		}
		q.After = page.Next
	}
	// 2. Those below the run.
	for next := []string{rec.ID}; len(next) > 0; {
		members := below[next[0]]
		next = next[1:]
		for _, m := range members {
			out.Usage = out.Usage.Plus(m.usage)
			out.Runs++
			next = append(next, m.id)
		}
	}
	return out, nil
}
