package control

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// kept writes finished runs as they are, each of which has cost a token more than the one before.
func (h *house) kept(specs ...run.Spec) {
	h.t.Helper()
	for i, spec := range specs {
		spec.Agent, spec.Tenant = "a", "default"
		r := run.New(spec, run.Event{Type: run.EvSubmitted, At: spec.CreatedAt})
		r.Usage = run.Usage{InputTokens: 1 << i, USD: 0.5}
		if err := h.store.Commit(h.t.Context(), []store.Unit{{Token: spec.ID, Writes: []store.Write{recordWrite(r, 0)}}})[0]; err != nil {
			h.t.Fatal(err)
		}
	}
}

func TestTheSpendOfARunIsThatOfItsFamily(t *testing.T) {
	h := newHouse(t)
	at := h.p.now()
	h.kept(
		run.Spec{ID: "root", CreatedAt: at},                                               // 1
		run.Spec{ID: "left", CreatedAt: at, Parent: "root", Root: "root", Depth: 1},       // 2
		run.Spec{ID: "right", CreatedAt: at + 5, Parent: "root", Root: "root", Depth: 1},  // 4
		run.Spec{ID: "early", CreatedAt: at - 3, Parent: "right", Root: "root", Depth: 2}, // 8: by a clock that is behind
		run.Spec{ID: "deep", CreatedAt: at + 9, Parent: "early", Root: "root", Depth: 3},  // 16
		run.Spec{ID: "other", CreatedAt: at},                                              // 32
		run.Spec{ID: "theirs", CreatedAt: at + 1, Parent: "other", Root: "other", Depth: 1},
	)
	for id, want := range map[string]FamilySpend{
		"root":  {Usage: run.Usage{InputTokens: 1 + 2 + 4 + 8 + 16, USD: 2.5}, Runs: 5},
		"right": {Usage: run.Usage{InputTokens: 4 + 8 + 16, USD: 1.5}, Runs: 3},
		"left":  {Usage: run.Usage{InputTokens: 2, USD: 0.5}, Runs: 1},
		"other": {Usage: run.Usage{InputTokens: 32 + 64, USD: 1}, Runs: 2},
	} {
		t.Run("of "+id, func(t *testing.T) {
			got, err := h.p.Spend(t.Context(), id)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("(-want +got), %v:\n%s", err, diff)
			}
		})
	}
	t.Run("of more than are counted", func(t *testing.T) {
		got, err := h.p.spendOf(t.Context(), "root", 3)
		if err != nil || !got.More || got.Runs > 4 {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("of exactly as many as are counted", func(t *testing.T) {
		if got, err := h.p.spendOf(t.Context(), "root", 4); err != nil || got.Runs != 5 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// reads counts what is listed, by index.
type reads struct {
	store.Store
	docs map[store.By]int
}

func (s *reads) List(ctx context.Context, q store.Query) (store.Page, error) {
	page, err := s.Store.List(ctx, q)
	s.docs[q.By] += len(page.Docs)
	return page, err
}

func TestASpendReadsItsFamilyOnceAndNobodyElse(t *testing.T) {
	h := newHouse(t)
	at := h.p.now()
	specs := []run.Spec{{ID: "root", CreatedAt: at}}
	for i := range 30 {
		specs = append(specs, run.Spec{ID: fmt.Sprintf("child%d", i), CreatedAt: at + 1, Parent: "root", Root: "root", Item: i, Depth: 1},
			run.Spec{ID: fmt.Sprintf("stranger%d", i), CreatedAt: at + 1})
	}
	h.kept(specs...)
	seen := &reads{Store: h.store, docs: make(map[store.By]int)}
	h.store = seen
	h.open()
	clear(seen.docs)
	if got, err := h.p.Spend(t.Context(), "root"); err != nil || got.Runs != 31 {
		t.Fatalf("%+v, %v", got, err)
	}
	if diff := cmp.Diff(map[store.By]int{store.ByRoot: 30}, seen.docs); diff != "" {
		t.Errorf("documents listed (-want +got):\n%s", diff)
	}
}
