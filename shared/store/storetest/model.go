package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/store"
)

// model is the store as a map: the plain reading of the port that drivers are compared with.
type model map[ref]store.Doc

// refusals returns every outcome that the unit may have; none when it must be written.
// parts are those of the due index that the model uses.
var parts = []store.Part{store.PartIdle, store.PartEnded}

func (m model) refusals(u store.Unit) (errs []error) {
	for _, f := range u.Fences {
		if d, ok := m[ref{kRun, f.Run}]; !ok || f.Attempt < 1 || d.Index.Attempt != f.Attempt {
			errs = append(errs, store.ErrFenced)
		}
	}
	for _, w := range u.Writes {
		stored := m[ref{w.Kind, w.ID}].Version
		if w.Expect == store.AnyVersion || w.Expect == stored {
			continue
		}
		if w.Expect == 0 {
			errs = append(errs, store.ErrExists)
		} else {
			errs = append(errs, store.ErrConflict)
		}
	}
	return errs
}

func (m model) apply(u store.Unit) {
	for _, run := range u.Purge {
		maps.DeleteFunc(m, func(r ref, d store.Doc) bool { return d.Owner == run && r != ref{kRun, run} })
	}
	for _, w := range u.Writes {
		if w.Delete {
			delete(m, ref{w.Kind, w.ID})
		} else {
			m[ref{w.Kind, w.ID}] = w.Doc
		}
	}
}

// find returns the documents that match, in order.
func (m model) find(match func(d store.Doc) bool, order func(a, b store.Doc) int) []store.Doc {
	var docs []store.Doc
	for _, d := range m {
		if match(d) {
			docs = append(docs, d)
		}
	}
	slices.SortFunc(docs, order)
	return docs
}

func byID(a, b store.Doc) int { return cmp.Compare(a.ID, b.ID) }

func (m model) list(q store.Query) []store.Doc {
	match := func(d store.Doc) bool {
		x := d.Index
		if x == nil || x.CreatedAt < q.Since || q.Until != 0 && x.CreatedAt >= q.Until {
			return false
		}
		switch q.By {
		case store.ByTenant:
			return x.Tenant == q.Tenant
		case store.ByTenantAgent:
			return x.Tenant == q.Tenant && x.Agent == q.Agent
		case store.ByParent:
			return x.Parent == q.Parent
		case store.ByRoot:
			return x.Root == q.Root
		}
		return true
	}
	return m.find(match, func(a, b store.Doc) int {
		c := cmp.Or(cmp.Compare(a.Index.CreatedAt, b.Index.CreatedAt), byID(a, b))
		if q.Oldest {
			return c
		}
		return -c
	})
}

// testModel applies random units to the store and to the model, and compares every outcome, and in the end every read.
func testModel(t *testing.T, open func(t *testing.T) store.Store) {
	s := open(t)
	rapid.Check(t, func(t *rapid.T) {
		// One store serves every case: opening a durable one costs more than emptying it.
		if err := wipe(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		m := model{}
		for range rapid.IntRange(1, 6).Draw(t, "calls") {
			units := rapid.SliceOfN(rapid.Custom(drawUnit), 1, 8).Draw(t, "units")
			outcomes := s.Commit(t.Context(), units)
			for i, u := range units {
				refusals := m.refusals(u)
				if len(refusals) == 0 {
					m.apply(u)
					wantOutcomes(t, outcomes[i:i+1], []error{nil})
				} else if !slices.ContainsFunc(refusals, func(e error) bool { return is(outcomes[i], e) }) {
					t.Fatalf("outcome of unit %d: got %v, want one of %v", i, outcomes[i], refusals)
				}
			}
		}
		compare(t, s, m)
	})
}

var modelKinds = []store.Kind{kRun, kStep, kReceipt}

func drawUnit(t *rapid.T) store.Unit {
	runs := rapid.SampledFrom([]string{"a", "ab", "b", "c"})
	key := rapid.SampledFrom([]string{"", "a", "ab", "b"})
	instant := rapid.Int64Range(0, 4)
	version := rapid.SampledFrom([]int64{store.AnyVersion, 0, 0, 1, 1, 2, 3})
	u := store.Unit{Token: rapid.StringMatching(`[a-z0-9]{12}`).Draw(t, "token")}
	seen := map[ref]bool{}
	for range rapid.IntRange(0, 4).Draw(t, "writes") {
		kind := rapid.SampledFrom(modelKinds).Draw(t, "kind")
		w := store.Write{Doc: store.Doc{Kind: kind, ID: runs.Draw(t, "id")}, Expect: version.Draw(t, "expect")}
		if r := (ref{w.Kind, w.ID}); seen[r] {
			continue
		} else {
			seen[r] = true
		}
		u.Writes = append(u.Writes, w)
		p := &u.Writes[len(u.Writes)-1]
		if p.Expect != 0 && rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
			p.Delete = true
			continue
		}
		p.Version = max(p.Expect, 0) + 1
		p.Owner, p.Tag = key.Draw(t, "owner"), key.Draw(t, "tag")
		p.Body = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "body")
		if kind == kRun {
			p.Index = &store.Index{
				Tenant: runs.Draw(t, "tenant"), Agent: runs.Draw(t, "agent"),
				Parent: key.Draw(t, "parent"), Root: key.Draw(t, "root"), Worker: key.Draw(t, "worker"),
				Attempt: instant.Draw(t, "attempt"), CreatedAt: instant.Draw(t, "createdAt"), WakeAt: instant.Draw(t, "wakeAt"),
				Part: rapid.SampledFrom(parts).Draw(t, "part"),
			}
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "fenced") == 0 {
		u.Fences = []store.Fence{{Run: runs.Draw(t, "fence"), Attempt: instant.Draw(t, "fence attempt")}}
	}
	if rapid.IntRange(0, 5).Draw(t, "purges") == 0 {
		u.Purge = rapid.SliceOfN(runs, 1, 2).Draw(t, "purge")
	}
	return u
}

// wipe deletes every document of the model's kinds.
func wipe(ctx context.Context, s store.Store) error {
	var u store.Unit
	for _, k := range modelKinds {
		docs, err := s.Tagged(ctx, k, "", "", store.MaxWrites)
		if err != nil {
			return err
		}
		for _, d := range docs {
			u.Writes = append(u.Writes, remove(k, d.ID, store.AnyVersion))
		}
	}
	return errors.Join(s.Commit(ctx, []store.Unit{u})...)
}

// compare checks every read against the model.
func compare(t tb, s store.Store, m model) {
	t.Helper()
	ctx := t.Context()
	read := func(what string, docs []store.Doc, err error, want []store.Doc) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		wantDocs(t, what, docs, want)
	}
	for _, k := range modelKinds {
		names := []string{"a", "ab", "b", "c", "d"}
		var many []store.Doc
		for _, id := range names {
			many = append(many, m[ref{k, id}])
		}
		docs, err := s.GetMany(ctx, k, names)
		read(fmt.Sprint("get many of kind ", k), docs, err, many)

		docs, err = s.Tagged(ctx, k, "", "", 100)
		read(fmt.Sprint("all of kind ", k), docs, err, m.find(func(d store.Doc) bool { return d.Kind == k }, byID))
		for _, x := range names[:3] {
			docs, err = s.Tagged(ctx, k, x, "a", 100)
			read(fmt.Sprint(k, " tagged ", x), docs, err, m.find(func(d store.Doc) bool { return d.Kind == k && d.Tag == x && d.ID > "a" }, byID))
			docs, err = s.Owned(ctx, k, x, "a", 100)
			read(fmt.Sprint(k, " owned by ", x), docs, err, m.find(func(d store.Doc) bool { return d.Kind == k && d.Owner == x && d.ID > "a" }, byID))
		}
	}
	for _, part := range parts {
		docs, err := s.Due(ctx, part, 3, 1, "a", 100)
		want := m.find(func(d store.Doc) bool {
			x := d.Index
			return x != nil && x.Part == part && x.WakeAt <= 3 && (x.WakeAt > 1 || x.WakeAt == 1 && d.ID > "a")
		}, func(a, b store.Doc) int { return cmp.Or(cmp.Compare(a.Index.WakeAt, b.Index.WakeAt), byID(a, b)) })
		read(fmt.Sprint("due of part ", part), docs, err, want)
	}
	held, err := heldBy(ctx, s)
	read("held", held, err, m.find(func(d store.Doc) bool { return d.Index != nil && d.Index.Worker != "" }, byID))
	for by := store.ByCreated; by <= store.ByRoot; by++ {
		for _, key := range []string{"a", "ab"} {
			q := store.Query{By: by, Tenant: key, Agent: key, Parent: key, Root: key, Limit: 2}
			for _, q.Oldest = range []bool{false, true} {
				docs, err := walk(ctx, s, q)
				read(fmt.Sprintf("list %+v", q), docs, err, m.list(q))
			}
			q.Since, q.Until = 1, 3
			docs, err := walk(ctx, s, q)
			read(fmt.Sprintf("list %+v", q), docs, err, m.list(q))
		}
	}
}
