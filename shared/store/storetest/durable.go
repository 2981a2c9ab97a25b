package storetest

import (
	"fmt"
	"testing"

	"github.com/errand-run/errand/shared/store"
)

// Reopen tests that what was acknowledged outlives the open store. open opens the store that is kept under dir, anew
// each time, and closes it when its test ends; the suite closes it before.
func Reopen(t *testing.T, open func(t *testing.T, dir string) store.Store) {
	t.Helper()
	t.Run("every document and index is there again", func(t *testing.T) {
		dir, m := t.TempDir(), model{}
		write := func(s store.Store, u store.Unit) {
			t.Helper()
			must(t, s, u)
			m.apply(u)
		}
		for round := range 3 {
			s := open(t, dir)
			compare(t, s, m)
			if round == 0 {
				write(s, run("a", store.Index{Tenant: "a", Agent: "a", Root: "a", WakeAt: 2, CreatedAt: 1}))
				write(s, run("b", store.Index{Tenant: "a", Agent: "ab", Root: "a", Parent: "a", CreatedAt: 2, Worker: "a", Attempt: 2, Part: store.PartEnded}))
				write(s, unit(ownedBy(create(kStep, "a"), "a"), ownedBy(create(kStep, "b"), "a"), create(kReceipt, "c")))
			}
			if round == 1 {
				moved := update(kRun, "a", 1)
				moved.Index = &store.Index{Tenant: "a", Agent: "a", Root: "a", CreatedAt: 1, Worker: "ab", Attempt: 1}
				write(s, fenced("b", 2, moved, remove(kReceipt, "c", 1)))
				write(s, store.Unit{Token: "purge", Purge: []string{"a"}})
			}
			compare(t, s, m)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("a refused unit is not there either", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		must(t, s, unit(create(kRun, "a")))
		got := s.Commit(t.Context(), []store.Unit{unit(create(kStep, "s"), update(kRun, "a", 4)), unit(update(kRun, "a", 1))})
		wantOutcomes(t, got, []error{store.ErrConflict, nil})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		if d, err := s.Get(t.Context(), kRun, "a"); err != nil || d.Version != 2 {
			t.Errorf("got version %d, %v; want 2", d.Version, err)
		}
		if _, err := s.Get(t.Context(), kStep, "s"); !is(err, store.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	})
	t.Run("what commits under way at a close acknowledged is there again", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		acknowledged := 0
		for {
			if acknowledged == 100 {
				go func() { _ = s.Close() }()
			}
			if err := s.Commit(t.Context(), []store.Unit{unit(create(kStep, fmt.Sprint("s-", acknowledged)))})[0]; err != nil {
				break
			}
			acknowledged++
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		for n := range acknowledged {
			if _, err := s.Get(t.Context(), kStep, fmt.Sprint("s-", n)); err != nil {
				t.Fatalf("step %d of %d acknowledged: %v", n, acknowledged, err)
			}
		}
	})
}
