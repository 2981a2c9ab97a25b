package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/errand-run/errand/shared/store"
)

func testRace(t *testing.T, open func(t *testing.T) store.Store) {
	const writers = 16
	// together runs f once for each writer and returns how many succeeded; the others must end in want.
	together := func(t *testing.T, want error, f func(writer int) error) int64 {
		var won atomic.Int64
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for w := range writers {
			wg.Go(func() {
				<-begin
				switch err := f(w); {
				case err == nil:
					won.Add(1)
				case !is(err, want):
					t.Errorf("writer %d: got %v, want %v", w, err, want)
				}
			})
		}
		close(begin)
		wg.Wait()
		return won.Load()
	}

	t.Run("of many that create a document one wins", func(t *testing.T) {
		s := open(t)
		for round := range 10 {
			id := fmt.Sprint("r-", round)
			won := together(t, store.ErrExists, func(int) error {
				return s.Commit(t.Context(), []store.Unit{unit(create(kRun, id))})[0]
			})
			if won != 1 {
				t.Errorf("round %d: %d won, want 1", round, won)
			}
		}
	})
	t.Run("of many that update a version one wins", func(t *testing.T) {
		s := open(t)
		must(t, s, unit(create(kRun, "a"), create(kMisc, "side")))
		for v := int64(1); v <= 10; v++ {
			won := together(t, store.ErrConflict, func(w int) error {
				return s.Commit(t.Context(), []store.Unit{unit(update(kMisc, "side", v), update(kRun, "a", v))})[0]
			})
			if won != 1 {
				t.Errorf("version %d: %d won, want 1", v, won)
			}
		}
	})
	t.Run("what only removes is done while others write without a pause", func(t *testing.T) {
		s := open(t)
		must(t, s, unit(create(kRun, "old")))
		for i := range 40 {
			d := create(kStep, fmt.Sprint("old/", i))
			d.Owner = "old"
			must(t, s, unit(d))
		}
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for w := range 4 {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
						if err := s.Commit(t.Context(), []store.Unit{unit(create(kMisc, fmt.Sprintf("m-%d-%d", w, n)))})[0]; err != nil {
							t.Errorf("write beside a removal: %v", err)
							return
						}
					}
				}
			})
		}
		for i := range 20 {
			del := store.Write{Doc: store.Doc{Kind: kStep, ID: fmt.Sprint("old/", i)}, Expect: store.AnyVersion, Delete: true}
			must(t, s, unit(del))
		}
		must(t, s, store.Unit{Token: "gone", Purge: []string{"old"}, Writes: []store.Write{{Doc: store.Doc{Kind: kRun, ID: "old"}, Expect: 1, Delete: true}}})
		close(stop)
		wg.Wait()
		docs, err := s.Owned(t.Context(), kStep, "old", "", 100)
		if err != nil || len(docs) != 0 {
			t.Errorf("%d documents are left, %v", len(docs), err)
		}
	})
	t.Run("acknowledged updates add up, and each is seen by the next read", func(t *testing.T) {
		const each = 10
		s := open(t)
		must(t, s, unit(create(kRun, "sum")))
		var conflicts atomic.Int64
		together(t, nil, func(w int) error {
			for n := 0; n < each; {
				d, err := s.Get(t.Context(), kRun, "sum")
				if err != nil {
					return err
				}
				mine := create(kStep, fmt.Sprintf("s-%d-%d-%d", w, n, d.Version))
				switch err := s.Commit(t.Context(), []store.Unit{unit(update(kRun, "sum", d.Version), mine)})[0]; {
				case errors.Is(err, store.ErrConflict):
					conflicts.Add(1)
					continue
				case err != nil:
					return err
				}
				n++
				if after, err := s.Get(t.Context(), kRun, "sum"); err != nil || after.Version <= d.Version {
					return fmt.Errorf("read version %d, %v after version %d was acknowledged", after.Version, err, d.Version+1)
				}
			}
			return nil
		})
		d, err := s.Get(t.Context(), kRun, "sum")
		if err != nil || d.Version != 1+writers*each {
			t.Errorf("got version %d, %v; want %d", d.Version, err, 1+writers*each)
		}
		steps, err := s.Tagged(t.Context(), kStep, "", "", store.MaxPage)
		if err != nil || len(steps) != writers*each {
			t.Errorf("got %d steps, %v; want %d (%d conflicts must leave none)", len(steps), err, writers*each, conflicts.Load())
		}
	})
}

func testClose(t *testing.T, open func(t *testing.T) store.Store) {
	t.Run("a closed store refuses everything", func(t *testing.T) {
		s := open(t)
		must(t, s, unit(create(kRun, "a")))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		wantOutcomes(t, s.Commit(ctx, []store.Unit{unit(create(kRun, "b")), unit(create(kRun, "c"))}), []error{store.ErrClosed, store.ErrClosed})
		_, get := s.Get(ctx, kRun, "a")
		_, getMany := s.GetMany(ctx, kRun, []string{"a"})
		_, due := s.Due(ctx, 0, 1, 0, "", 1)
		held := s.Held(ctx, func(store.Doc) error { return nil })
		_, list := s.List(ctx, store.Query{By: store.ByCreated, Limit: 1})
		_, owned := s.Owned(ctx, kStep, "a", "", 1)
		_, tagged := s.Tagged(ctx, kStep, "", "", 1)
		for what, err := range map[string]error{"get": get, "get many": getMany, "due": due, "held": held, "list": list, "owned": owned, "tagged": tagged} {
			if !is(err, store.ErrClosed) {
				t.Errorf("%s: got %v, want ErrClosed", what, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	})
	t.Run("closing under load ends every call, written or refused", func(t *testing.T) {
		s := open(t)
		var wg sync.WaitGroup
		var acknowledged atomic.Int64
		reached := make(chan struct{})
		for w := range 8 {
			wg.Go(func() {
				for n := 0; ; n++ {
					id := fmt.Sprintf("r-%d-%d", w, n)
					if err := s.Commit(t.Context(), []store.Unit{unit(create(kRun, id))})[0]; err != nil {
						if !is(err, store.ErrClosed) {
							t.Errorf("commit: got %v, want ErrClosed", err)
						}
						return
					}
					if acknowledged.Add(1) == 50 {
						close(reached)
					}
					if _, err := s.Get(t.Context(), kRun, id); err != nil {
						if !is(err, store.ErrClosed) {
							t.Errorf("get: got %v, want ErrClosed", err)
						}
						return
					}
				}
			})
		}
		<-reached
		for range 3 {
			wg.Go(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

func testCancel(t *testing.T, open func(t *testing.T) store.Store) {
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	t.Run("a canceled caller gets its own error for every unit", func(t *testing.T) {
		for i, err := range s.Commit(ctx, []store.Unit{unit(create(kRun, "a")), unit(create(kRun, "b"))}) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("outcome of unit %d: got %v, want context.Canceled", i, err)
			}
		}
	})
	t.Run("a canceled read ends", func(t *testing.T) {
		if _, err := s.Get(ctx, kRun, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	})
}
