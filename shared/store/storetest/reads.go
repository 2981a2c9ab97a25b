package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/errand-run/errand/shared/store"
)

func testDocuments(t *testing.T, open func(t *testing.T) store.Store) {
	full := store.Doc{
		Kind: kRun, ID: "run/ä 1", Version: 1 << 60, Owner: "owner", Tag: "tag",
		Index: &store.Index{
			Tenant: "acme", Agent: "checker", Parent: "parent", Root: "root", Worker: "pool-a",
			Attempt: 1 << 50, CreatedAt: 1_700_000_000_001, WakeAt: math.MaxInt64, Part: store.PartHeld,
		},
		Body: []byte{0, 1, 0xff, 0, '\'', '\n'},
	}
	bare := store.Doc{Kind: kRun, ID: "bare", Version: 1, Index: &store.Index{}}
	s := open(t)
	must(t, s, unit(store.Write{Doc: full}), unit(store.Write{Doc: bare}), unit(create(kStep, "s")))

	t.Run("a document comes back as it was written", func(t *testing.T) {
		for _, want := range []store.Doc{full, bare, doc(kStep, "s", 1)} {
			got, err := s.Get(t.Context(), want.Kind, want.ID)
			if err != nil {
				t.Fatal(err)
			}
			wantDocs(t, "got", []store.Doc{got}, []store.Doc{want})
		}
	})
	t.Run("what does not exist is not found", func(t *testing.T) {
		for _, k := range []store.Kind{kStep, store.KindMisc, 0} {
			if d, err := s.Get(t.Context(), k, "bare"); !is(err, store.ErrNotFound) {
				t.Errorf("get of kind %d: got %+v, %v; want ErrNotFound", k, d, err)
			}
		}
	})
	t.Run("many come in the order asked for, with gaps and repeats", func(t *testing.T) {
		got, err := s.GetMany(t.Context(), kRun, []string{"bare", "none", full.ID, "s", "bare"})
		if err != nil {
			t.Fatal(err)
		}
		wantDocs(t, "got", got, []store.Doc{bare, {}, full, {}, bare})
	})
	t.Run("many of none is none", func(t *testing.T) {
		if got, err := s.GetMany(t.Context(), kRun, nil); err != nil || len(got) > 0 {
			t.Errorf("got %v, %v; want none", got, err)
		}
	})
	t.Run("a returned document is the caller's own", func(t *testing.T) {
		got, err := s.Get(t.Context(), kRun, full.ID)
		if err != nil {
			t.Fatal(err)
		}
		got.Body[0], got.Index.Tenant = 'X', "changed"
		again, err := s.Get(t.Context(), kRun, full.ID)
		if err != nil {
			t.Fatal(err)
		}
		wantDocs(t, "after a change of the copy", []store.Doc{again}, []store.Doc{full})
	})
	t.Run("the store tells what it is", func(t *testing.T) {
		if s.Describe() == "" {
			t.Error("empty description")
		}
	})
}

// run is the creation of a run with an index; Root is the run itself unless set.
func run(id string, x store.Index) store.Unit {
	w := create(kRun, id)
	if x.Tenant == "" {
		x.Tenant = "acme"
	}
	w.Index = &x
	return unit(w)
}

func testDue(t *testing.T, open func(t *testing.T) store.Store) {
	s := open(t)
	must(t, s,
		run("never", store.Index{Part: store.PartHeld}),
		run("c", store.Index{Part: store.PartHeld, WakeAt: 10}),
		run("a", store.Index{Part: store.PartHeld, WakeAt: 20}),
		run("b", store.Index{Part: store.PartHeld, WakeAt: 20}),
		run("d", store.Index{Part: store.PartHeld, WakeAt: 30}),
		run("e", store.Index{Part: store.PartEnded, WakeAt: 10}),
		run("gone", store.Index{Part: store.PartHeld, WakeAt: 10}),
		run("moved", store.Index{Part: store.PartHeld, WakeAt: 10}),
	)
	moved := update(kRun, "moved", 1)
	moved.Index.WakeAt, moved.Index.Part = 0, store.PartHeld
	must(t, s, unit(remove(kRun, "gone", 1), moved))

	cases := map[string]struct {
		part      store.Part
		until     int64
		afterWake int64
		afterID   string
		limit     int
		want      []string
	}{
		"due runs come by wake time, then id":                {store.PartHeld, 100, 0, "", 10, []string{"c", "a", "b", "d"}},
		"a wake time at the bound is due":                    {store.PartHeld, 20, 0, "", 10, []string{"c", "a", "b"}},
		"a wake time after the bound is not":                 {store.PartHeld, 19, 0, "", 10, []string{"c"}},
		"nothing is due before the first":                    {store.PartHeld, 9, 0, "", 10, nil},
		"nothing is due at 0":                                {store.PartHeld, 0, 0, "", 10, nil},
		"each part has its own":                              {store.PartEnded, 100, 0, "", 10, []string{"e"}},
		"a part without runs has none due":                   {store.PartIdle, 100, 0, "", 10, nil},
		"a page holds no more than asked for":                {store.PartHeld, 100, 0, "", 2, []string{"c", "a"}},
		"a cursor within equal times goes on by id":          {store.PartHeld, 100, 20, "a", 10, []string{"b", "d"}},
		"a cursor need not be a stored run":                  {store.PartHeld, 100, 20, "aa", 1, []string{"b"}},
		"a cursor without id begins at its time":             {store.PartHeld, 100, 20, "", 10, []string{"a", "b", "d"}},
		"a cursor at the last run is the end":                {store.PartHeld, 100, 30, "d", 10, nil},
		"the farthest bound is a bound like another":         {store.PartHeld, math.MaxInt64, 0, "", 10, []string{"c", "a", "b", "d"}},
		"the cursor still ends at the bound of wake times":   {store.PartHeld, 20, 10, "c", 10, []string{"a", "b"}},
		"a cursor beyond the bound of wake times finds none": {store.PartHeld, 20, 25, "", 10, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := s.Due(t.Context(), c.part, c.until, c.afterWake, c.afterID, c.limit)
			if err != nil {
				t.Fatal(err)
			}
			wantIDs(t, "due", got, c.want...)
		})
	}
}

// heldBy reads what workers hold, by id.
func heldBy(ctx context.Context, s store.Store) ([]store.Doc, error) {
	docs := []store.Doc{}
	err := s.Held(ctx, func(d store.Doc) error {
		docs = append(docs, d)
		return nil
	})
	slices.SortFunc(docs, func(a, b store.Doc) int { return cmp.Compare(a.ID, b.ID) })
	return docs, err
}

// walk reads a listing page by page.
func walk(ctx context.Context, s store.Store, q store.Query) ([]store.Doc, error) {
	var all []store.Doc
	for {
		p, err := s.List(ctx, q)
		if err != nil {
			return all, err
		}
		if len(p.Docs) > q.Limit {
			return all, fmt.Errorf("a page of %d documents, %d asked for", len(p.Docs), q.Limit)
		}
		all = append(all, p.Docs...)
		if p.Next == "" {
			return all, nil
		}
		if len(p.Docs) < q.Limit {
			return all, errors.New("a page that is not full names a next one")
		}
		q.After = p.Next
	}
}

func testList(t *testing.T, open func(t *testing.T) store.Store) {
	s := open(t)
	must(t, s,
		run("r1", store.Index{Tenant: "acme", Agent: "x", Root: "r1", CreatedAt: 10, Worker: "w2"}),
		run("r3", store.Index{Tenant: "acme", Agent: "y", Root: "r1", Parent: "r1", CreatedAt: 20, Worker: "w1"}),
		run("r2", store.Index{Tenant: "acme", Agent: "x", Root: "r1", Parent: "r1", CreatedAt: 20, Worker: "w2"}),
		run("r4", store.Index{Tenant: "acme", Agent: "x", Root: "r1", Parent: "r3", CreatedAt: 30}),
		run("r5", store.Index{Tenant: "acm", Agent: "ex", Root: "r5", CreatedAt: 40, Worker: "w"}),
		run("r6", store.Index{Tenant: "other", Agent: "x", Root: "r6", Parent: "r1", CreatedAt: 15}),
		run("r7", store.Index{Tenant: "other", Agent: "x", CreatedAt: 0}),
		run("moved", store.Index{Tenant: "acme", Agent: "x", Root: "r1", Parent: "r1", CreatedAt: 20, Worker: "w1"}),
		run("gone", store.Index{Tenant: "acme", Agent: "x", Root: "r1", Parent: "r1", CreatedAt: 20, Worker: "w1"}),
	)
	moved := update(kRun, "moved", 1)
	moved.Index = &store.Index{Tenant: "away", Agent: "z", CreatedAt: 20}
	must(t, s, unit(remove(kRun, "gone", 1), moved), unit(create(kStep, "not-a-run")))

	// Wanted with Oldest; the other order is the reverse, save by worker.
	cases := map[string]struct {
		q    store.Query
		want []string
	}{
		"every run":                                        {store.Query{By: store.ByCreated}, []string{"r7", "r1", "r6", "moved", "r2", "r3", "r4", "r5"}},
		"every run since an instant":                       {store.Query{By: store.ByCreated, Since: 20}, []string{"moved", "r2", "r3", "r4", "r5"}},
		"every run until before an instant":                {store.Query{By: store.ByCreated, Until: 20}, []string{"r7", "r1", "r6"}},
		"every run of a span":                              {store.Query{By: store.ByCreated, Since: 15, Until: 30}, []string{"r6", "moved", "r2", "r3"}},
		"no run of an empty span":                          {store.Query{By: store.ByCreated, Since: 20, Until: 20}, nil},
		"a tenant's runs":                                  {store.Query{By: store.ByTenant, Tenant: "acme"}, []string{"r1", "r2", "r3", "r4"}},
		"the runs of a tenant whose name begins another's": {store.Query{By: store.ByTenant, Tenant: "acm"}, []string{"r5"}},
		"no run of a tenant that has none":                 {store.Query{By: store.ByTenant, Tenant: "nobody"}, nil},
		"a tenant's runs of a span":                        {store.Query{By: store.ByTenant, Tenant: "acme", Since: 20, Until: 30}, []string{"r2", "r3"}},
		"the runs of a tenant's agent":                     {store.Query{By: store.ByTenantAgent, Tenant: "acme", Agent: "x"}, []string{"r1", "r2", "r4"}},
		"agent and tenant do not run together":             {store.Query{By: store.ByTenantAgent, Tenant: "acm", Agent: "ex"}, []string{"r5"}},
		"the runs of a tenant's agent in a span":           {store.Query{By: store.ByTenantAgent, Tenant: "acme", Agent: "x", Since: 11, Until: 30}, []string{"r2"}},
		"a run's children":                                 {store.Query{By: store.ByParent, Parent: "r1"}, []string{"r6", "r2", "r3"}},
		"a run's children in a span":                       {store.Query{By: store.ByParent, Parent: "r1", Since: 16}, []string{"r2", "r3"}},
		"a run's tree":                                     {store.Query{By: store.ByRoot, Root: "r1"}, []string{"r1", "r2", "r3", "r4"}},
		"a run's tree in a span":                           {store.Query{By: store.ByRoot, Root: "r1", Until: 30}, []string{"r1", "r2", "r3"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for _, limit := range []int{1, 2, 3, 100} {
				for _, oldest := range []bool{true, false} {
					q := c.q
					q.Limit, q.Oldest = limit, oldest
					got, err := walk(t.Context(), s, q)
					if err != nil {
						t.Fatal(err)
					}
					want := append([]string{}, c.want...)
					if !oldest {
						for i := range len(want) / 2 {
							want[i], want[len(want)-1-i] = want[len(want)-1-i], want[i]
						}
					}
					wantIDs(t, fmt.Sprintf("pages of %d, oldest %v", limit, oldest), got, want...)
				}
			}
		})
	}
	t.Run("what is held is every run that some worker holds", func(t *testing.T) {
		got, err := heldBy(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		wantIDs(t, "held", got, "r1", "r2", "r3", "r5")
	})
	t.Run("an error of who reads what is held ends it", func(t *testing.T) {
		stop, n := errors.New("enough"), 0
		err := s.Held(t.Context(), func(store.Doc) error {
			n++
			return stop
		})
		if !errors.Is(err, stop) || n != 1 {
			t.Errorf("%d runs were read, and it ended with %v; want 1, and the reader's own error", n, err)
		}
	})
	t.Run("a listing holds whole documents", func(t *testing.T) {
		p, err := s.List(t.Context(), store.Query{By: store.ByTenant, Tenant: "away", Limit: 5})
		if err != nil {
			t.Fatal(err)
		}
		wantDocs(t, "list", p.Docs, []store.Doc{moved.Doc})
	})
	t.Run("a page stays in place while runs come before it", func(t *testing.T) {
		q := store.Query{By: store.ByTenant, Tenant: "acme", Limit: 2}
		p, err := s.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		must(t, s, run("new", store.Index{Tenant: "acme", Agent: "x", CreatedAt: 50}), unit(remove(kRun, "r3", 1)))
		q.After = p.Next
		if p, err = s.List(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, "second page", p.Docs, "r2", "r1")
	})
}

func testTokens(t *testing.T, open func(t *testing.T) store.Store) {
	s := open(t)
	must(t, s, run("r1", store.Index{Tenant: "acme", Agent: "x", Worker: "w"}), run("r2", store.Index{Tenant: "acme", Agent: "x", Worker: "w"}))
	q := store.Query{By: store.ByTenant, Tenant: "acme", Agent: "x", Limit: 1}
	p, err := s.List(t.Context(), q)
	if err != nil || p.Next == "" {
		t.Fatalf("got page %+v, %v; want one with a next", p, err)
	}
	cases := map[string]func(q *store.Query){
		"a token that is garbage":          func(q *store.Query) { q.After = "!!garbage!!" },
		"a token that is short":            func(q *store.Query) { q.After = "AA" },
		"a token cut off":                  func(q *store.Query) { q.After = p.Next[:3] },
		"a token of another listing":       func(q *store.Query) { q.After, q.By = p.Next, store.ByTenantAgent },
		"a token of the other direction":   func(q *store.Query) { q.After, q.Oldest = p.Next, true },
		"an index that there is not":       func(q *store.Query) { q.By = 0 },
		"an index after the last":          func(q *store.Query) { q.By = store.ByRoot + 1 },
		"a listing by no tenant":           func(q *store.Query) { q.Tenant = "" },
		"a listing by tenant and no agent": func(q *store.Query) { q.By, q.Agent = store.ByTenantAgent, "" },
		"a listing by no parent":           func(q *store.Query) { q.By = store.ByParent },
		"a listing by no root":             func(q *store.Query) { q.By = store.ByRoot },
	}
	for name, change := range cases {
		t.Run(name+" is invalid", func(t *testing.T) {
			q := q
			change(&q)
			if p, err := s.List(t.Context(), q); !is(err, store.ErrInvalid) {
				t.Errorf("got %v, %v; want ErrInvalid", ids(p.Docs), err)
			}
		})
	}
}

func testOwnedTagged(t *testing.T, open func(t *testing.T) store.Store) {
	s := open(t)
	tagged := func(kind store.Kind, id, owner, tag string) store.Unit {
		w := ownedBy(create(kind, id), owner)
		w.Tag = tag
		return unit(w)
	}
	must(t, s,
		tagged(kReceipt, "c", "run-1", "unknown"),
		tagged(kReceipt, "a", "run-1", "unknown"),
		tagged(kReceipt, "b", "run-2", "unknown"),
		tagged(kReceipt, "d", "run-1", "unknow"),
		tagged(kReceipt, "e", "run-1", ""),
		tagged(kReceipt, "f", "", ""),
		tagged(kStep, "a", "run-1", "unknown"),
		tagged(kReceipt, "g", "run-1", "unknown"),
		tagged(kState, "acme/a", "", "held/acme"),
		tagged(kState, "acme/a/1", "", "held/acme"),
		tagged(kState, "acme/a/2", "", "gone"),
		tagged(kState, "acme/a0", "", "held/acme"),
	)
	moved := ownedBy(update(kReceipt, "g", 1), "run-2")
	moved.Tag = "settled"
	must(t, s, unit(moved))

	cases := map[string]struct {
		read func(ctx context.Context) ([]store.Doc, error)
		want []string
	}{
		"what a run owns comes by id": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Owned(ctx, kReceipt, "run-1", "", 10) },
			[]string{"a", "c", "d", "e"},
		},
		"what has a tag is found from a place at which nothing is": {
			func(ctx context.Context) ([]store.Doc, error) {
				return s.Tagged(ctx, kState, "held/acme", "acme/a.\U0010ffff", 10)
			},
			[]string{"acme/a/1", "acme/a0"},
		},
		"what a run owns goes on after an id": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Owned(ctx, kReceipt, "run-1", "a", 2) },
			[]string{"c", "d"},
		},
		"what a run owns is of the kind asked for": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Owned(ctx, kStep, "run-1", "", 10) },
			[]string{"a"},
		},
		"a document follows its new owner": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Owned(ctx, kReceipt, "run-2", "", 10) },
			[]string{"b", "g"},
		},
		"a run that owns nothing has nothing": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Owned(ctx, kReceipt, "run", "", 10) },
			nil,
		},
		"what has a tag comes by id": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Tagged(ctx, kReceipt, "unknown", "", 10) },
			[]string{"a", "b", "c"},
		},
		"what has a tag goes on after an id": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Tagged(ctx, kReceipt, "unknown", "aa", 1) },
			[]string{"b"},
		},
		"a document follows its new tag": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Tagged(ctx, kReceipt, "settled", "", 10) },
			[]string{"g"},
		},
		"no tag lists the whole kind": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Tagged(ctx, kReceipt, "", "", 10) },
			[]string{"a", "b", "c", "d", "e", "f", "g"},
		},
		"the whole kind goes on after an id": {
			func(ctx context.Context) ([]store.Doc, error) { return s.Tagged(ctx, kReceipt, "", "e", 10) },
			[]string{"f", "g"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			wantIDs(t, "read", got, c.want...)
		})
	}
}
