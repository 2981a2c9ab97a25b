package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/workflow"
)

// A workflow's run that repeats another from one of its stages takes over the outcomes before it. They may be many more
// than one unit of the store holds: the first write of the run names them, and they are copied in parts before it begins.
// A process that ends between two parts is followed by one that copies all of them again, to the same place. What is large
// of an outcome stays with the old run, which is kept as long as its retry is.

const (
	takeoverStep  = "takeover" // no stage's name: those have a visit
	takeoverPart  = 250        // outcomes that are read and written at a time
	takeoverBytes = 4 << 20    // of them in one unit, but for the first
)

// takeover is the document that names them.
type takeover struct {
	Outcomes []string `json:"outcomes"`
}

func takeoverWrite(id string, outcomes []string) (store.Write, error) {
	body, err := json.Marshal(takeover{outcomes})
	if err != nil {
		return store.Write{}, fmt.Errorf("name what run %s takes over: %w", id, err)
	}
	return stepWrite(id, runtime.Step{Name: takeoverStep, Result: body})
}

// inherit copies what a run that is about to begin takes over from the one that it repeats.
func (p *Plane) inherit(ctx context.Context, rec *run.Record) error {
	// 1. What that is.
	if rec.RetryOf == "" {
		return nil
	}
	doc, err := p.store.Get(ctx, store.KindStep, stepID(rec.ID, takeoverStep))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("read what run %s takes over: %w", rec.ID, err)
	}
	var s runtime.Step
	var t takeover
	if err := json.Unmarshal(doc.Body, &s); err != nil {
		return fmt.Errorf("decode what run %s takes over: %w", rec.ID, err)
	}
	if err := json.Unmarshal(s.Result, &t); err != nil {
		return fmt.Errorf("decode what run %s takes over: %w", rec.ID, err)
	}
	if len(t.Outcomes) > workflow.MaxOutcomes {
		return refuse(CodeTooLarge, "run %s takes over %d outcomes; a run has %d at most", rec.ID, len(t.Outcomes), workflow.MaxOutcomes)
	}
	// 2. Part by part.
	for first := 0; first < len(t.Outcomes); first += takeoverPart {
		if err := p.copyOutcomes(ctx, rec, first, t.Outcomes[first:min(first+takeoverPart, len(t.Outcomes))]); err != nil {
			return err
		}
	}
	return nil
}

// copyOutcomes copies some outcomes, of which the first is the run's outcome number first+1.
func (p *Plane) copyOutcomes(ctx context.Context, rec *run.Record, first int, names []string) error {
	ids := make([]string, len(names))
	for i, name := range names {
		ids[i] = stepID(rec.RetryOf, name)
	}
	docs, err := p.store.GetMany(ctx, store.KindStep, ids)
	if err != nil {
		return fmt.Errorf("read the outcomes of run %s: %w", rec.RetryOf, err)
	}
	var unit store.Unit
	bytes := 0
	write := func() error {
		if len(unit.Writes) == 0 {
			return nil
		}
		unit.Token = p.newID()
		if err := p.store.Commit(ctx, []store.Unit{unit})[0]; err != nil {
			return fmt.Errorf("take over outcomes of run %s: %w", rec.RetryOf, err)
		}
		unit, bytes = store.Unit{}, 0
		return nil
	}
	for i := range docs {
		if docs[i].Version == 0 {
			return refuse(CodeNotFound, "outcome %s of run %s, which run %s takes over, is not there any more", names[i], rec.RetryOf, rec.ID)
		}
		var s runtime.Step
		if err := json.Unmarshal(docs[i].Body, &s); err != nil {
			return fmt.Errorf("decode outcome %s of run %s: %w", names[i], rec.RetryOf, err)
		}
		s.Seq = first + i + 1
		w, err := stepWrite(rec.ID, s)
		if err != nil {
			return err
		}
		w.Expect = store.AnyVersion // an earlier try may have come so far
		if bytes += len(w.Body); bytes > takeoverBytes {
			if err := write(); err != nil {
				return err
			}
			bytes = len(w.Body)
		}
		unit.Writes = append(unit.Writes, w)
	}
	return write()
}
