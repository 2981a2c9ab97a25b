// Package storetest is the one suite that every driver of the store passes. A driver's test opens a store and calls
// [Run]; a durable driver calls [Reopen] as well. Besides the port it imports test libraries only.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/errand-run/errand/shared/store"
)

// Run tests what the port promises. open returns an empty store of the caller's own and closes it when its test ends;
// the suite may have closed it before.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	t.Helper()
	t.Run("outcomes", func(t *testing.T) { testOutcomes(t, open) })
	t.Run("invalid", func(t *testing.T) { testInvalid(t, open) })
	t.Run("limits", func(t *testing.T) { testLimits(t, open) })
	t.Run("documents", func(t *testing.T) { testDocuments(t, open) })
	t.Run("due", func(t *testing.T) { testDue(t, open) })
	t.Run("list", func(t *testing.T) { testList(t, open) })
	t.Run("tokens", func(t *testing.T) { testTokens(t, open) })
	t.Run("owned and tagged", func(t *testing.T) { testOwnedTagged(t, open) })
	t.Run("race", func(t *testing.T) { testRace(t, open) })
	t.Run("close", func(t *testing.T) { testClose(t, open) })
	t.Run("cancel", func(t *testing.T) { testCancel(t, open) })
	t.Run("model", func(t *testing.T) { testModel(t, open) })
}

// tb is what a test and a property's case have in common.
type tb interface {
	Helper()
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// doc returns a document whose body tells kind, id and version, so that a read of a wrong one shows.
func doc(kind store.Kind, id string, version int64) store.Doc {
	d := store.Doc{Kind: kind, ID: id, Version: version, Body: fmt.Appendf(nil, "%s/%s@%d", kind, id, version)}
	if kind == store.KindRun {
		d.Index = &store.Index{Tenant: "acme", Agent: "checker", Root: id, CreatedAt: 1_700_000_000_000, Part: store.PartHeld}
	}
	return d
}

func create(kind store.Kind, id string) store.Write { return store.Write{Doc: doc(kind, id, 1)} }

// update moves a document from one version to the next.
func update(kind store.Kind, id string, from int64) store.Write {
	return store.Write{Doc: doc(kind, id, from+1), Expect: from}
}

func remove(kind store.Kind, id string, expect int64) store.Write {
	return store.Write{Doc: store.Doc{Kind: kind, ID: id}, Expect: expect, Delete: true}
}

// held is the creation of a run that an attempt holds.
func held(id string, attempt int64) store.Write {
	w := create(store.KindRun, id)
	w.Index.Attempt, w.Index.Worker = attempt, "pool-a"
	return w
}

func ownedBy(w store.Write, run string) store.Write {
	w.Owner = run
	return w
}

func unit(ws ...store.Write) store.Unit { return store.Unit{Token: tokenOf(ws), Writes: ws} }

func fenced(run string, attempt int64, ws ...store.Write) store.Unit {
	u := unit(ws...)
	u.Fences = []store.Fence{{Run: run, Attempt: attempt}}
	return u
}

// tokenOf makes a unit's token; a test commits no two units with equal writes that both succeed.
func tokenOf(ws []store.Write) string {
	t := "unit"
	for i := range ws {
		t += fmt.Sprintf(" %s/%s@%d<%d", ws[i].Kind, ws[i].ID, ws[i].Version, ws[i].Expect)
	}
	return t
}

// must commits units that have to succeed.
func must(t tb, s store.Store, units ...store.Unit) {
	t.Helper()
	for i, err := range s.Commit(t.Context(), units) {
		if err != nil {
			t.Fatalf("commit of unit %d of %d: %v", i, len(units), err)
		}
	}
}

// sentinels are the outcomes that say for certain that a unit was not written.
var sentinels = []error{
	store.ErrExists, store.ErrConflict, store.ErrFenced, store.ErrTooLarge, store.ErrInvalid, store.ErrClosed, store.ErrNotFound,
}

// is reports whether err is want, and no other sentinel.
func is(err, want error) bool {
	if want == nil || err == nil {
		return err == nil && want == nil
	}
	i := slices.IndexFunc(sentinels, func(s error) bool { return errors.Is(err, s) })
	return errors.Is(err, want) && (i < 0 || sentinels[i] == want) //nolint:errorlint // which of the sentinels it is, not what it wraps
}

func wantOutcomes(t tb, got, want []error) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d outcomes, want %d", len(got), len(want))
	}
	for i := range got {
		if !is(got[i], want[i]) {
			t.Errorf("outcome of unit %d: got %v, want %v", i, got[i], want[i])
		}
	}
}

func wantDocs(t tb, what string, got, want []store.Doc) {
	t.Helper()
	if len(got) == 0 && len(want) == 0 {
		return
	}
	// Bodies as a whole: element by element, one of 10 MiB takes minutes.
	if d := cmp.Diff(want, got, cmp.Comparer(bytes.Equal)); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func ids(docs []store.Doc) []string {
	out := []string{}
	for _, d := range docs {
		out = append(out, d.ID)
	}
	return out
}

func wantIDs(t tb, what string, got []store.Doc, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, ids(got), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}
