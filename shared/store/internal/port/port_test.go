package port_test

import (
	"errors"
	"testing"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/internal/port"
)

func FuzzPageTokenIsDecodedOrRefused(f *testing.F) {
	q := store.Query{By: store.ByTenant, Tenant: "t", Limit: 1}
	f.Add(uint8(q.By), false, port.Next(q, []store.Doc{{ID: "r", Index: &store.Index{CreatedAt: 1 << 40}}}))
	f.Add(uint8(q.By), true, "")
	f.Fuzz(func(t *testing.T, by uint8, oldest bool, token string) {
		q := store.Query{By: store.By(by), Tenant: "t", Agent: "a", Parent: "p", Root: "r", Oldest: oldest, Limit: 1, After: token}
		s, err := port.CheckQuery(q)
		if err != nil {
			if !errors.Is(err, store.ErrInvalid) {
				t.Fatalf("refused with %v, want ErrInvalid", err)
			}
			return
		}
		if token == "" {
			return
		}
		// A token that is accepted names a place, and that place's token is accepted as the same place.
		doc := store.Doc{ID: s.After.ID, Index: &store.Index{CreatedAt: s.After.CreatedAt}}
		q.After = port.Next(q, []store.Doc{doc})
		again, err := port.CheckQuery(q)
		if err != nil || *again.After != *s.After {
			t.Fatalf("token %q of %+v came back as %+v, %v", q.After, *s.After, again.After, err)
		}
	})
}
