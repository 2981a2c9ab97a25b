package seed_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/internal/seed"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// all lists the runs of a store as its documents.
func all(t *testing.T, st store.Store) (docs []store.Doc) {
	t.Helper()
	for q := (store.Query{By: store.ByCreated, Limit: store.MaxPage}); ; {
		page, err := st.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, page.Docs...)
		if q.After = page.Next; q.After == "" {
			return docs
		}
	}
}

func TestAFilledStoreIsOneThatTheControlPlaneWouldHaveWritten(t *testing.T) {
	const n = 4000
	st := memory.Open()
	if err := seed.Fill(t.Context(), st, n, now, 1); err != nil {
		t.Fatal(err)
	}
	// 1. The mix is what it says.
	docs, states := all(t, st), map[run.State]int{}
	children := 0
	for _, d := range docs {
		r, err := run.DecodeRecord(d.Body)
		if err != nil {
			t.Fatal(err)
		}
		states[r.State]++
		if r.Parent != "" {
			children++
		}
	}
	live := states[run.Queued] + states[run.Assigned] + states[run.Running]
	over := states[run.Succeeded] + states[run.Failed]
	if len(docs) != n || live != n/100 || over < n*48/100 || over > n/2 || states[run.Waiting] < n/3 || states[run.Backoff] < n/50 || children < n/40 {
		t.Errorf("%d runs, %d children, by state %v", len(docs), children, states)
	}
	// 2. A control plane takes it over, and every history folds to its record.
	p, err := control.New(control.Config{Store: st, Clock: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, d := range docs[:200] {
		rec, events, err := p.Audit(t.Context(), d.ID)
		if err != nil {
			t.Fatal(err)
		}
		folded, err := run.Fold(rec.Spec, events)
		if err != nil {
			t.Fatal(err)
		}
		want := rec.Clone()
		want.Tail = nil
		if diff := cmp.Diff(want, folded); diff != "" {
			t.Errorf("run %s in state %s (- record, + history):\n%s", d.ID, rec.State, diff)
		}
	}
}

func TestTheSameSeedGivesTheSameRuns(t *testing.T) {
	var filled [3][]store.Doc
	for i, s := range []uint64{7, 7, 8} {
		st := memory.Open()
		if err := seed.Fill(t.Context(), st, 500, now, s); err != nil {
			t.Fatal(err)
		}
		filled[i] = all(t, st)
	}
	if diff := cmp.Diff(filled[0], filled[1]); diff != "" {
		t.Error(diff)
	}
	if filled[0][0].ID == filled[2][0].ID {
		t.Error("another seed gave the same runs")
	}
}
