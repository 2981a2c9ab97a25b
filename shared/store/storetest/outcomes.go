package storetest

import (
	"testing"

	"github.com/errand-run/errand/shared/store"
)

const (
	kRun     = store.KindRun
	kHistory = store.KindHistory
	kStep    = store.KindStep
	kReceipt = store.KindReceipt
	kMisc    = store.KindMisc
	kState   = store.KindState
)

// ref names a document in a wanted state.
type ref struct {
	kind store.Kind
	id   string
}

func testOutcomes(t *testing.T, open func(t *testing.T) store.Store) {
	type state map[ref]int64 // versions; 0 for a document that must not exist
	cases := map[string]struct {
		given []store.Unit
		units []store.Unit
		want  []error
		state state
	}{
		"a call without units has no outcomes": {},
		"a document is created": {
			units: []store.Unit{unit(create(kRun, "a"))},
			want:  []error{nil},
			state: state{{kRun, "a"}: 1},
		},
		"a document that exists is not created again": {
			given: []store.Unit{unit(create(kRun, "a")), unit(update(kRun, "a", 1))},
			units: []store.Unit{unit(create(kRun, "a"))},
			want:  []error{store.ErrExists},
			state: state{{kRun, "a"}: 2},
		},
		"ids are unique within a kind only": {
			given: []store.Unit{unit(create(kRun, "a"))},
			units: []store.Unit{unit(create(kStep, "a"))},
			want:  []error{nil},
			state: state{{kRun, "a"}: 1, {kStep, "a"}: 1},
		},
		"a document moves from the version that the write expects": {
			given: []store.Unit{unit(create(kRun, "a"))},
			units: []store.Unit{unit(update(kRun, "a", 1))},
			want:  []error{nil},
			state: state{{kRun, "a"}: 2},
		},
		"versions may skip": {
			given: []store.Unit{unit(create(kRun, "a"))},
			units: []store.Unit{unit(store.Write{Doc: doc(kRun, "a", 9), Expect: 1})},
			want:  []error{nil},
			state: state{{kRun, "a"}: 9},
		},
		"an older version than the expected one is a conflict": {
			given: []store.Unit{unit(create(kRun, "a"))},
			units: []store.Unit{unit(update(kRun, "a", 2))},
			want:  []error{store.ErrConflict},
			state: state{{kRun, "a"}: 1},
		},
		"a newer version than the expected one is a conflict": {
			given: []store.Unit{unit(create(kRun, "a")), unit(update(kRun, "a", 1))},
			units: []store.Unit{unit(update(kRun, "a", 1))},
			want:  []error{store.ErrConflict},
			state: state{{kRun, "a"}: 2},
		},
		"an update of nothing is a conflict": {
			units: []store.Unit{unit(update(kRun, "a", 1))},
			want:  []error{store.ErrConflict},
			state: state{{kRun, "a"}: 0},
		},
		"any version creates": {
			units: []store.Unit{unit(store.Write{Doc: doc(kMisc, "a", 3), Expect: store.AnyVersion})},
			want:  []error{nil},
			state: state{{kMisc, "a"}: 3},
		},
		"any version replaces": {
			given: []store.Unit{unit(create(kMisc, "a"))},
			units: []store.Unit{unit(store.Write{Doc: doc(kMisc, "a", 3), Expect: store.AnyVersion})},
			want:  []error{nil},
			state: state{{kMisc, "a"}: 3},
		},
		"a document is deleted at the version that the write expects": {
			given: []store.Unit{unit(create(kStep, "a"))},
			units: []store.Unit{unit(remove(kStep, "a", 1))},
			want:  []error{nil},
			state: state{{kStep, "a"}: 0},
		},
		"a delete at another version is a conflict": {
			given: []store.Unit{unit(create(kStep, "a"))},
			units: []store.Unit{unit(remove(kStep, "a", 2))},
			want:  []error{store.ErrConflict},
			state: state{{kStep, "a"}: 1},
		},
		"a delete of nothing at a version is a conflict": {
			units: []store.Unit{unit(remove(kStep, "a", 1))},
			want:  []error{store.ErrConflict},
		},
		"a delete at any version needs no document": {
			given: []store.Unit{unit(create(kStep, "a"))},
			units: []store.Unit{unit(remove(kStep, "a", store.AnyVersion), remove(kStep, "b", store.AnyVersion))},
			want:  []error{nil},
			state: state{{kStep, "a"}: 0},
		},
		"a deleted document is created anew": {
			given: []store.Unit{unit(create(kRun, "a")), unit(remove(kRun, "a", 1))},
			units: []store.Unit{unit(create(kRun, "a"))},
			want:  []error{nil},
			state: state{{kRun, "a"}: 1},
		},
		"a fence on the attempt that holds the run lets the unit through": {
			given: []store.Unit{unit(held("a", 3))},
			units: []store.Unit{fenced("a", 3, create(kStep, "s"))},
			want:  []error{nil},
			state: state{{kStep, "s"}: 1},
		},
		"a fence on an earlier attempt refuses the unit": {
			given: []store.Unit{unit(held("a", 3))},
			units: []store.Unit{fenced("a", 2, create(kStep, "s"))},
			want:  []error{store.ErrFenced},
			state: state{{kStep, "s"}: 0},
		},
		"a fence on a later attempt refuses the unit": {
			given: []store.Unit{unit(held("a", 3))},
			units: []store.Unit{fenced("a", 4, create(kStep, "s"))},
			want:  []error{store.ErrFenced},
			state: state{{kStep, "s"}: 0},
		},
		"a fence on a run that no attempt holds refuses the unit": {
			given: []store.Unit{unit(create(kRun, "a"))},
			units: []store.Unit{fenced("a", 0, create(kStep, "s"))},
			want:  []error{store.ErrFenced},
			state: state{{kStep, "s"}: 0},
		},
		"a fence on no run refuses the unit": {
			units: []store.Unit{fenced("a", 1, create(kStep, "s")), fenced("a", 0, create(kStep, "s"))},
			want:  []error{store.ErrFenced, store.ErrFenced},
			state: state{{kStep, "s"}: 0},
		},
		"a fence is judged before the unit's own writes": {
			given: []store.Unit{unit(held("a", 3))},
			units: []store.Unit{fenced("a", 3, update(kRun, "a", 1)), fenced("a", 3, create(kStep, "s"))},
			want:  []error{nil, store.ErrFenced},
			state: state{{kRun, "a"}: 2, {kStep, "s"}: 0},
		},
		"a unit of fences alone tells whether they hold": {
			given: []store.Unit{unit(held("a", 3))},
			units: []store.Unit{fenced("a", 3), fenced("a", 4)},
			want:  []error{nil, store.ErrFenced},
		},
		"every fence of a unit must hold": {
			given: []store.Unit{unit(held("a", 3)), unit(held("b", 1))},
			units: []store.Unit{{Fences: []store.Fence{{Run: "a", Attempt: 3}, {Run: "b", Attempt: 2}}, Writes: []store.Write{create(kStep, "s")}}},
			want:  []error{store.ErrFenced},
			state: state{{kStep, "s"}: 0},
		},
		"a unit's last write failing leaves nothing of the unit": {
			given: []store.Unit{unit(create(kRun, "a"), create(kRun, "c"), create(kStep, "d"))},
			units: []store.Unit{unit(create(kRun, "b"), update(kRun, "a", 1), remove(kStep, "d", 1), update(kRun, "c", 5))},
			want:  []error{store.ErrConflict},
			state: state{{kRun, "a"}: 1, {kRun, "b"}: 0, {kRun, "c"}: 1, {kStep, "d"}: 1},
		},
		"a unit's last write existing leaves nothing of the unit": {
			given: []store.Unit{unit(create(kRun, "a"), create(kRun, "c"))},
			units: []store.Unit{unit(create(kRun, "b"), update(kRun, "a", 1), create(kRun, "c"))},
			want:  []error{store.ErrExists},
			state: state{{kRun, "a"}: 1, {kRun, "b"}: 0, {kRun, "c"}: 1},
		},
		"a failed unit leaves the others of its call": {
			given: []store.Unit{unit(create(kRun, "a"))},
			units: []store.Unit{unit(create(kRun, "b")), unit(create(kRun, "a")), unit(create(kRun, "c"), update(kRun, "a", 4)), unit(update(kRun, "a", 1))},
			want:  []error{nil, store.ErrExists, store.ErrConflict, nil},
			state: state{{kRun, "a"}: 2, {kRun, "b"}: 1, {kRun, "c"}: 0},
		},
		"a unit sees the units before it in its call": {
			units: []store.Unit{
				unit(create(kRun, "a")), unit(create(kRun, "a")), unit(update(kRun, "a", 1)),
				unit(update(kRun, "a", 1)), unit(update(kRun, "a", 2)), unit(remove(kRun, "a", 3)), unit(create(kRun, "a")),
			},
			want:  []error{nil, store.ErrExists, nil, store.ErrConflict, nil, nil, nil},
			state: state{{kRun, "a"}: 1},
		},
		"a purge takes what the run owns of every kind and leaves the run": {
			given: []store.Unit{unit(create(kRun, "a"), ownedBy(create(kHistory, "h"), "a"), ownedBy(create(kStep, "s"), "a"), ownedBy(create(kReceipt, "r"), "b"))},
			units: []store.Unit{{Token: "purge", Purge: []string{"a"}}},
			want:  []error{nil},
			state: state{{kRun, "a"}: 1, {kHistory, "h"}: 0, {kStep, "s"}: 0, {kReceipt, "r"}: 1},
		},
		"a purge takes several runs beside the deletion of one": {
			given: []store.Unit{unit(create(kRun, "a"), ownedBy(create(kHistory, "h"), "a"), ownedBy(create(kHistory, "i"), "b"), ownedBy(create(kHistory, "j"), "c"))},
			units: []store.Unit{{Token: "purge", Writes: []store.Write{remove(kRun, "a", 1)}, Purge: []string{"a", "b", "nobody"}}},
			want:  []error{nil},
			state: state{{kRun, "a"}: 0, {kHistory, "h"}: 0, {kHistory, "i"}: 0, {kHistory, "j"}: 1},
		},
		"a refused unit purges nothing": {
			given: []store.Unit{unit(create(kRun, "a"), ownedBy(create(kHistory, "h"), "a"))},
			units: []store.Unit{{Token: "purge", Writes: []store.Write{remove(kRun, "a", 2)}, Purge: []string{"a"}}},
			want:  []error{store.ErrConflict},
			state: state{{kRun, "a"}: 1, {kHistory, "h"}: 1},
		},
		"a purge leaves what its own unit writes": {
			given: []store.Unit{unit(ownedBy(create(kHistory, "h"), "a"), ownedBy(create(kHistory, "i"), "a"))},
			units: []store.Unit{{Token: "purge", Writes: []store.Write{ownedBy(update(kHistory, "h", 1), "a"), ownedBy(create(kHistory, "j"), "a")}, Purge: []string{"a"}}},
			want:  []error{nil},
			state: state{{kHistory, "h"}: 2, {kHistory, "i"}: 0, {kHistory, "j"}: 1},
		},
		"a purge follows the present owner": {
			given: []store.Unit{unit(ownedBy(create(kReceipt, "r"), "a")), unit(ownedBy(update(kReceipt, "r", 1), "b"))},
			units: []store.Unit{{Token: "purge", Purge: []string{"a"}}},
			want:  []error{nil},
			state: state{{kReceipt, "r"}: 2},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			must(t, s, c.given...)
			wantOutcomes(t, s.Commit(t.Context(), c.units), c.want)
			for r, version := range c.state {
				got, err := s.Get(t.Context(), r.kind, r.id)
				if version == 0 {
					if !is(err, store.ErrNotFound) {
						t.Errorf("get %s %s: got version %d, %v; want ErrNotFound", r.kind, r.id, got.Version, err)
					}
					continue
				}
				if err != nil || got.Version != version || string(got.Body) != string(doc(r.kind, r.id, version).Body) {
					t.Errorf("get %s %s: got version %d with %q, %v; want version %d", r.kind, r.id, got.Version, got.Body, err, version)
				}
			}
		})
	}
}

// testInvalid hands over units that no driver may write, each beside one that it must.
func testInvalid(t *testing.T, open func(t *testing.T) store.Store) {
	with := func(w store.Write, change func(w *store.Write)) store.Unit {
		change(&w)
		return unit(w)
	}
	cases := map[string]store.Unit{
		"a kind that there is not":            unit(create(0, "a")),
		"a kind after the last":               unit(create(store.KindState+1, "a")),
		"an empty id":                         unit(create(kStep, "")),
		"an id with a zero byte":              unit(create(kStep, "a\x00b")),
		"an id that is not UTF-8":             unit(create(kStep, "a\xff")),
		"an owner with a zero byte":           unit(ownedBy(create(kStep, "a"), "a\x00")),
		"shared state that belongs to a run":  unit(ownedBy(create(kState, "a"), "run-1")),
		"a version of 0":                      unit(store.Write{Doc: doc(kStep, "a", 0)}),
		"a version that does not rise":        unit(store.Write{Doc: doc(kStep, "a", 4), Expect: 4}),
		"an expectation below any":            unit(store.Write{Doc: doc(kStep, "a", 1), Expect: -2}),
		"a delete of what must not exist":     unit(remove(kStep, "a", 0)),
		"a document written twice":            unit(create(kStep, "a"), update(kStep, "a", 1)),
		"a document written twice among many": unit(append(many(kStep, 30), create(kStep, "m-3"))...),
		"a run without an index":              with(create(kRun, "a"), func(w *store.Write) { w.Index = nil }),
		"a step with an index":                with(create(kStep, "a"), func(w *store.Write) { w.Index = &store.Index{} }),
		"a part that there is not":            with(create(kRun, "a"), func(w *store.Write) { w.Index.Part = store.PartHeld + 1 }),
		"a negative wake time":                with(create(kRun, "a"), func(w *store.Write) { w.Index.WakeAt = -1 }),
		"a negative creation time":            with(create(kRun, "a"), func(w *store.Write) { w.Index.CreatedAt = -1 }),
		"a negative attempt":                  with(create(kRun, "a"), func(w *store.Write) { w.Index.Attempt = -1 }),
		"a worker that is not UTF-8":          with(create(kRun, "a"), func(w *store.Write) { w.Index.Worker = "\xc0" }),
		"a fence on an empty run":             fenced("", 1),
		"a purge of an empty run":             {Token: "purge", Purge: []string{""}},
	}
	s := open(t)
	for name, bad := range cases {
		t.Run(name, func(t *testing.T) {
			got := s.Commit(t.Context(), []store.Unit{bad, unit(store.Write{Doc: doc(kMisc, "good", 1), Expect: store.AnyVersion})})
			wantOutcomes(t, got, []error{store.ErrInvalid, nil})
			if d, err := s.Get(t.Context(), kStep, "a"); !is(err, store.ErrNotFound) {
				t.Errorf("something of the unit was written: %+v, %v", d, err)
			}
		})
	}
}
