package firestore

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/errand-run/errand/shared/store"
)

// since is what a store counted after an earlier look.
func since(s *Store, before Stats) Stats {
	n := s.Stats()
	n.Reads, n.Writes, n.Deletes = n.Reads-before.Reads, n.Writes-before.Writes, n.Deletes-before.Deletes
	for m, c := range before.Requests {
		if n.Requests[m] -= c; n.Requests[m] == 0 {
			delete(n.Requests, m)
		}
	}
	return n
}

func TestWhatUnitsCost(t *testing.T) {
	t.Parallel()
	const run, step, misc = store.KindRun, store.KindStep, store.KindMisc
	creations := func(n, size int) (us []store.Unit) {
		for i := range n {
			us = append(us, unitOf(put(step, fmt.Sprint("s-", i), 0, make([]byte, size))))
		}
		return us
	}
	fenced := func(run string, ws ...store.Write) store.Unit {
		u := unitOf(ws...)
		u.Fences = []store.Fence{{Run: run, Attempt: 1}}
		return u
	}
	var purges, chain []store.Unit
	for i := range 30 {
		id := fmt.Sprint("r-", i)
		u := unitOf(remove(run, id, 1))
		u.Purge = []string{id}
		purges = append(purges, u)
		chain = append(chain, unitOf(put(misc, "x", int64(i)+1, nil)))
	}
	var owned []store.Unit
	for i := range 30 {
		owned = append(owned, unitOf(put(run, fmt.Sprint("r-", i), 0, nil), ownedBy(put(step, fmt.Sprint("o-", i), 0, nil), fmt.Sprint("r-", i))))
	}
	cases := map[string]struct {
		given   []store.Unit
		units   []store.Unit
		cold    bool // by a process that remembers nothing
		refused bool
		want    Stats
	}{
		"a creation is one write": {
			units: creations(1, 10), want: Stats{Writes: 1, Requests: map[string]int64{"BatchWrite": 1}},
		},
		"a thousand creations go in two requests": {
			units: creations(1000, 10), want: Stats{Writes: 1000, Requests: map[string]int64{"BatchWrite": 2}},
		},
		"large ones go in requests of 3.5 MiB": {
			units: creations(9, 900_000), want: Stats{Writes: 9, Requests: map[string]int64{"BatchWrite": 3}},
		},
		"an update of what was written here reads nothing": {
			given: creations(1, 10), units: []store.Unit{unitOf(put(step, "s-0", 1, nil))},
			want: Stats{Writes: 1, Requests: map[string]int64{"BatchWrite": 1}},
		},
		"an update of what another wrote reads its version": {
			given: creations(1, 10), units: []store.Unit{unitOf(put(step, "s-0", 1, nil))}, cold: true,
			want: Stats{Reads: 1, Writes: 1, Requests: map[string]int64{"BatchWrite": 1, "BatchGetDocuments": 1}},
		},
		"a unit of several writes is one commit": {
			units: []store.Unit{unitOf(put(run, "a", 0, nil), put(step, "s", 0, nil), put(misc, "m", 0, nil))},
			want:  Stats{Writes: 3, Requests: map[string]int64{"Commit": 1}},
		},
		"a fence on a run that the unit writes costs nothing": {
			given: []store.Unit{unitOf(put(run, "a", 0, nil))},
			units: []store.Unit{fenced("a", put(run, "a", 1, nil))},
			want:  Stats{Writes: 1, Requests: map[string]int64{"BatchWrite": 1}},
		},
		"a fence on another run is a read in a transaction": {
			given: []store.Unit{unitOf(put(run, "a", 0, nil))},
			units: []store.Unit{fenced("a", put(step, "s", 0, nil))},
			want:  Stats{Reads: 1, Writes: 1, Requests: map[string]int64{"BatchGetDocuments": 1, "Commit": 1}},
		},
		"a fence that refuses gives its transaction back": {
			given: []store.Unit{unitOf(put(run, "a", 0, nil))}, refused: true,
			units: []store.Unit{{Token: "late", Fences: []store.Fence{{Run: "a", Attempt: 7}}, Writes: []store.Write{put(step, "s", 0, nil)}}},
			want:  Stats{Reads: 1, Requests: map[string]int64{"BatchGetDocuments": 1, "Rollback": 1}},
		},
		"a fenced deletion of nothing gives its transaction back": {
			given: []store.Unit{unitOf(put(run, "a", 0, nil))},
			units: []store.Unit{fenced("a", remove(step, "none", store.AnyVersion))},
			want:  Stats{Reads: 2, Requests: map[string]int64{"BatchGetDocuments": 1, "Rollback": 1}},
		},
		"a fence alone is a read": {
			given: []store.Unit{unitOf(put(run, "a", 0, nil))}, units: []store.Unit{fenced("a")},
			want: Stats{Reads: 1, Requests: map[string]int64{"BatchGetDocuments": 1}},
		},
		"units of one document go one after the other": {
			given: []store.Unit{unitOf(put(misc, "x", 0, nil))}, units: chain,
			want: Stats{Writes: 30, Requests: map[string]int64{"BatchWrite": 30}},
		},
		"thirty purges ask once for each kind": {
			given: owned, units: purges,
			want: Stats{Reads: 30 + 10, Deletes: 60, Requests: map[string]int64{"RunQuery": 11, "Commit": 30}},
		},
	}
	for title, c := range cases {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			must(t, s, c.given...)
			if c.cold {
				s = again(t, s)
			}
			before := s.Stats()
			for i, err := range s.Commit(t.Context(), c.units) {
				if (err != nil) != c.refused {
					t.Fatalf("unit %d: %v, want a refusal: %v", i, err, c.refused)
				}
			}
			if diff := cmp.Diff(c.want, since(s, before), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("cost (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatReadsCost(t *testing.T) {
	t.Parallel()
	s := open(t)
	for i := range 5 {
		w := put(store.KindRun, fmt.Sprint("r-", i), 0, nil)
		w.Index.WakeAt = 1
		must(t, s, unitOf(w))
	}
	ctx := t.Context()
	cases := map[string]struct {
		read  func() error
		reads int64
	}{
		"a document":                    {func() error { _, err := s.Get(ctx, store.KindRun, "r-1"); return err }, 1},
		"a document that is not there":  {func() error { _, err := s.GetMany(ctx, store.KindRun, []string{"none"}); return err }, 1},
		"a page":                        {func() error { _, err := s.Due(ctx, 0, 5, 0, "", 3); return err }, 3},
		"a page that nothing is on":     {func() error { _, err := s.Due(ctx, store.PartHeld, 5, 0, "", 3); return err }, 1},
		"a listing over all lanes":      {func() error { _, err := s.List(ctx, store.Query{By: store.ByCreated, Limit: 4}); return err }, 4},
		"nothing, where nothing can be": {func() error { _, err := s.Due(ctx, 0, 0, 0, "", 3); return err }, 0},
	}
	for title, c := range cases {
		before := s.Stats()
		if err := c.read(); err != nil {
			t.Errorf("%s: %v", title, err)
		}
		if n := since(s, before).Reads; n != c.reads {
			t.Errorf("%s costs %d reads, want %d", title, n, c.reads)
		}
	}
}

func TestAPurgeOfMoreThanOneCommitTakesAllOrNothing(t *testing.T) {
	t.Parallel()
	const owned = 1_200
	for title, c := range map[string]struct {
		expect int64
		want   error
		left   int
	}{
		"the unit is written": {1, nil, 0},
		"the unit is refused": {7, store.ErrConflict, owned},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			us := []store.Unit{unitOf(put(store.KindRun, "a", 0, nil))}
			for i := range owned {
				us = append(us, unitOf(ownedBy(put(store.KindLog, fmt.Sprint("l-", i), 0, nil), "a")))
			}
			must(t, s, us...)
			purge := unitOf(remove(store.KindRun, "a", c.expect))
			purge.Purge = []string{"a"}
			if err := s.Commit(t.Context(), []store.Unit{purge})[0]; !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("got %v, want %v", err, c.want)
			}
			docs, err := s.Owned(t.Context(), store.KindLog, "a", "", store.MaxPage)
			if err != nil || len(docs) != c.left {
				t.Errorf("%d documents are left, %v; want %d", len(docs), err, c.left)
			}
		})
	}
}

func TestWhatIsKnownIsBoundedAndNeverOlder(t *testing.T) {
	k, at := newKnown(100), time.Unix(1_700_000_000, 0)
	often := name{store.KindRun, "often"}
	k.put(often, head{version: 1, updated: at})
	for i := range 10_000 {
		k.put(name{store.KindRun, fmt.Sprint(i)}, head{version: 1, updated: at})
		if _, ok := k.get(often); !ok {
			t.Fatalf("what is used is forgotten after %d others", i)
		}
		if n := len(k.young) + len(k.old); n > 101 {
			t.Fatalf("%d documents are remembered, want 100", n)
		}
	}
	if _, ok := k.get(name{store.KindRun, "1"}); ok {
		t.Error("what nobody used is remembered")
	}
	k.put(often, head{version: 3, updated: at.Add(time.Second)})
	k.put(often, head{version: 2, updated: at})
	if h, _ := k.get(often); h.version != 3 {
		t.Errorf("a late read of version 2 hides version %d", h.version)
	}
	k.forget(often)
	if h, ok := k.get(often); ok {
		t.Errorf("what was forgotten is %+v", h)
	}
	all := maps.Clone(k.young)
	maps.Copy(all, k.old)
	if len(all) > 100 {
		t.Errorf("%d documents are remembered", len(all))
	}
}
