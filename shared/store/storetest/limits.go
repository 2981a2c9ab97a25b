package storetest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/store"
)

// many are n creations, of m-0, m-1, ….
func many(kind store.Kind, n int) []store.Write {
	ws := make([]store.Write, n)
	for i := range ws {
		ws[i] = create(kind, fmt.Sprintf("m-%d", i))
	}
	return ws
}

func testLimits(t *testing.T, open func(t *testing.T) store.Store) {
	long := strings.Repeat("x", store.MaxID)
	body := func(n int) store.Unit {
		w := create(store.KindPayload, "p")
		w.Body = bytes.Repeat([]byte{0xfe, 0}, n/2+1)[:n]
		return unit(w)
	}
	index := func(change func(x *store.Index)) store.Unit {
		w := create(kRun, long)
		change(w.Index)
		return unit(w)
	}
	purges := func(n int) store.Unit {
		u := store.Unit{Token: "purges"}
		for i := range n {
			u.Purge = append(u.Purge, fmt.Sprint("r-", i))
		}
		return u
	}
	cases := map[string]struct {
		unit store.Unit
		want error
	}{
		"the longest body is stored":         {body(store.MaxBody), nil},
		"a longer body is refused":           {body(store.MaxBody + 1), store.ErrTooLarge},
		"the longest id is stored":           {unit(create(kStep, long)), nil},
		"a longer id is refused":             {unit(create(kStep, long+"x")), store.ErrTooLarge},
		"the longest keys are stored":        {index(func(x *store.Index) { x.Tenant, x.Agent, x.Parent, x.Root, x.Worker = long, long, long, long, long }), nil},
		"a longer tenant is refused":         {index(func(x *store.Index) { x.Tenant = long + "x" }), store.ErrTooLarge},
		"a longer worker is refused":         {index(func(x *store.Index) { x.Worker = long + "x" }), store.ErrTooLarge},
		"a longer owner is refused":          {unit(ownedBy(create(kStep, "s"), long+"x")), store.ErrTooLarge},
		"a longer fence is refused":          {fenced(long+"x", 1), store.ErrTooLarge},
		"the most writes are stored":         {unit(many(kStep, store.MaxWrites)...), nil},
		"one more write is refused":          {unit(many(kStep, store.MaxWrites+1)...), store.ErrTooLarge},
		"one more purge is refused":          {purges(store.MaxWrites + 1), store.ErrTooLarge},
		"writes and fences count as one sum": {fenced("a", 1, many(kStep, store.MaxWrites)...), store.ErrTooLarge},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			got := s.Commit(t.Context(), []store.Unit{c.unit, unit(create(kMisc, "good"))})
			wantOutcomes(t, got, []error{c.want, nil})
			for _, w := range c.unit.Writes {
				d, err := s.Get(t.Context(), w.Kind, w.ID)
				if c.want == nil {
					if err != nil {
						t.Fatalf("get %s: %v", w.Kind, err)
					}
					wantDocs(t, "stored document", []store.Doc{d}, []store.Doc{w.Doc})
				} else if !is(err, store.ErrNotFound) && len(w.ID) <= store.MaxID {
					t.Fatalf("get %s: got %v, want ErrNotFound", w.Kind, err)
				}
			}
		})
	}
	t.Run("a call of too many units is refused whole", func(t *testing.T) {
		s := open(t)
		units := make([]store.Unit, store.MaxUnits+1)
		for i := range units {
			units[i] = unit(create(kStep, fmt.Sprint("s-", i)))
		}
		for i, err := range s.Commit(t.Context(), units) {
			if !is(err, store.ErrTooLarge) {
				t.Fatalf("outcome of unit %d: got %v, want ErrTooLarge", i, err)
			}
		}
		if d, err := s.Tagged(t.Context(), kStep, "", "", 1); err != nil || len(d) > 0 {
			t.Errorf("got %d documents, %v; want none", len(d), err)
		}
	})
	t.Run("reads have a page size", func(t *testing.T) {
		s := open(t)
		for limit, want := range map[int]error{-1: store.ErrInvalid, 0: store.ErrInvalid, 1: nil, store.MaxPage: nil, store.MaxPage + 1: store.ErrTooLarge} {
			_, due := s.Due(t.Context(), 0, 9, 0, "", limit)
			_, list := s.List(t.Context(), store.Query{By: store.ByCreated, Limit: limit})
			_, owned := s.Owned(t.Context(), kStep, "a", "", limit)
			_, tagged := s.Tagged(t.Context(), kStep, "", "", limit)
			for what, err := range map[string]error{"due": due, "list": list, "owned": owned, "tagged": tagged} {
				if !is(err, want) {
					t.Errorf("%s of %d documents: got %v, want %v", what, limit, err, want)
				}
			}
		}
		if _, err := s.GetMany(t.Context(), kStep, make([]string, store.MaxPage+1)); !is(err, store.ErrTooLarge) {
			t.Errorf("get of %d documents: got %v, want ErrTooLarge", store.MaxPage+1, err)
		}
	})
}
