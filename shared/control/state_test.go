package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// keptIn runs a test over a store in memory and one in a file.
func keptIn(t *testing.T, test func(t *testing.T, h *house)) {
	t.Run("memory", func(t *testing.T) { test(t, newHouse(t, agentNamed("post"))) })
	t.Run("sqlite", func(t *testing.T) {
		st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		test(t, houseOver(t, st))
	})
}

// houseOver is a house whose records are in a store.
func houseOver(t *testing.T, st store.Store) *house {
	t.Helper()
	h := &house{t: t, store: st, now: began}
	h.open()
	if _, err := h.p.Apply(t.Context(), fleetOf(agentNamed("post")), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	return h
}

// stateOf reads a document as its version and value; "" where there is none.
func (h *house) stateOf(tenant, key string) string {
	h.t.Helper()
	doc, value, err := h.p.StateValue(h.t.Context(), tenant, key)
	var refusal *Refusal
	if errors.As(err, &refusal) && refusal.Code == CodeNotFound {
		return ""
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return fmt.Sprintf("%d %s by %s", doc.Version, value, doc.By.Actor)
}

// currentOf is the version that a stale write was told; "" for another outcome.
func currentOf(err error) string {
	var refusal *Refusal
	if errors.As(err, &refusal) && refusal.Code == CodeStale {
		return refusal.Current
	}
	return ""
}

func TestAWriteOfStateIsOverExactlyOneVersion(t *testing.T) {
	keptIn(t, func(t *testing.T, h *house) {
		put := func(expect int64, value, nonce string) error {
			_, err := h.p.PutState(t.Context(), StateWrite{Tenant: "acme", Key: "a/b", Value: json.RawMessage(value), Expect: expect, Nonce: nonce, By: StateWriter{Actor: "ann"}})
			return err
		}
		remove := func(expect int64) error {
			return h.p.DeleteState(t.Context(), StateWrite{Tenant: "acme", Key: "a/b", Expect: expect, By: StateWriter{Actor: "ann"}})
		}
		large := `"` + strings.Repeat("x", 100<<10) + `"`
		for _, c := range []struct {
			name    string
			write   func() error
			current string // told where it is stale
			want    string
		}{
			{"a write over what is not there", func() error { return put(3, `1`, "") }, "0", ""},
			{"it is created", func() error { return put(0, `{ "n": 1 }`, "n1") }, "", `1 {"n":1} by ann`},
			{"the same write again is the same write", func() error { return put(0, `{ "n": 1 }`, "n1") }, "", `1 {"n":1} by ann`},
			{"another creation", func() error { return put(0, `{"n":1}`, "n2") }, "1", `1 {"n":1} by ann`},
			{"a large value", func() error { return put(1, large, "") }, "", `2 ` + large + ` by ann`},
			{"a stale write", func() error { return put(1, `3`, "") }, "2", `2 ` + large + ` by ann`},
			{"a small one again", func() error { return put(2, `3`, "") }, "", `3 3 by ann`},
			{"a stale deletion", func() error { return remove(2) }, "3", `3 3 by ann`},
			{"a deletion", func() error { return remove(3) }, "", ""},
			{"a write over what was deleted", func() error { return put(3, `4`, "") }, "0", ""},
			{"versions go on after a deletion", func() error { return put(0, `5`, "") }, "", `5 5 by ann`},
			{"whatever is there", func() error { return put(StateAny, `6`, "") }, "", `6 6 by ann`},
		} {
			err := c.write()
			if got := currentOf(err); got != c.current || err != nil && c.current == "" {
				t.Fatalf("%s: %v, want current version %q", c.name, err, c.current)
			}
			if got := h.stateOf("acme", "a/b"); got != c.want {
				t.Fatalf("%s: there is %.60q, want %.60q", c.name, got, c.want)
			}
		}
		if got := h.stateOf("other", "a/b"); got != "" {
			t.Fatalf("another tenant sees %q", got)
		}
		// Nothing is left of the large value, and in a week nothing of deleted documents.
		docs, err := h.store.Tagged(t.Context(), store.KindPayload, "", "", 10)
		if err != nil || len(docs) != 0 {
			t.Fatalf("%d payloads are left, %v", len(docs), err)
		}
		if err := remove(6); err != nil {
			t.Fatal(err)
		}
		h.pass(keepGone + time.Hour)
		h.p.sweepState(t.Context())
		if docs, err = h.store.Tagged(t.Context(), store.KindState, "", "", 10); err != nil || len(docs) != 0 {
			t.Fatalf("%d documents are left, %v", len(docs), err)
		}
	})
}

func TestStateRefusesWhatItCannotKeep(t *testing.T) {
	h := newHouse(t, agentNamed("post"))
	for name, c := range map[string]struct {
		key, value string
		want       Code
	}{
		"no key":                    {"", `1`, CodeInvalid},
		"an empty part":             {"a//b", `1`, CodeInvalid},
		"a part of dots":            {"a/../b", `1`, CodeInvalid},
		"a blank":                   {"a b", `1`, CodeInvalid},
		"a letter of another world": {"é", `1`, CodeInvalid},
		"too long a key":            {strings.Repeat("x", MaxStateKey+1), `1`, CodeInvalid},
		"no JSON":                   {"a", `{`, CodeInvalid},
		"too large a value":         {"a", `"` + strings.Repeat("x", MaxStateValue) + `"`, CodeTooLarge},
	} {
		_, err := h.p.PutState(t.Context(), StateWrite{Tenant: "acme", Key: c.key, Value: json.RawMessage(c.value)})
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Code != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestStateIsListedByPrefixAndTenant(t *testing.T) {
	keptIn(t, func(t *testing.T, h *house) {
		for _, id := range []string{"acme/a", "acme/ledger", "acme/ledger/1", "acme/ledger/2", "acme/ledger/2/x", "acme/ledger/3", "acme/ledger.old", "acme/ledger0", "acmeco/ledger/9", "z/ledger/8"} {
			tenant, key, _ := strings.Cut(id, "/")
			if _, err := h.p.PutState(t.Context(), StateWrite{Tenant: tenant, Key: key, Value: json.RawMessage(`1`)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.p.DeleteState(t.Context(), StateWrite{Tenant: "acme", Key: "ledger/3", Expect: StateAny}); err != nil {
			t.Fatal(err)
		}
		list := func(tenant, prefix string, limit int) (keys []string) {
			for token := ""; ; {
				docs, next, err := h.p.ListState(t.Context(), tenant, prefix, limit, token)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range docs {
					keys = append(keys, d.Key)
				}
				if token = next; token == "" {
					return keys
				}
			}
		}
		for _, limit := range []int{1, 2, 100} {
			for prefix, want := range map[string][]string{
				"":          {"a", "ledger", "ledger.old", "ledger/1", "ledger/2", "ledger/2/x", "ledger0"},
				"ledger/":   {"ledger/1", "ledger/2", "ledger/2/x"},
				"ledger":    {"ledger", "ledger.old", "ledger/1", "ledger/2", "ledger/2/x", "ledger0"},
				"ledger/2/": {"ledger/2/x"},
				"none":      nil,
			} {
				if d := cmp.Diff(want, list("acme", prefix, limit)); d != "" {
					t.Errorf("prefix %q, %d a page, -want +got:\n%s", prefix, limit, d)
				}
			}
		}
		if _, _, err := h.p.ListState(t.Context(), "acme", "ledger/", 10, "z/ledger/8"); err == nil {
			t.Error("a token of another tenant's list is taken")
		}
	})
}

// raceForState lets writers add to one number, each by reading it and writing over what was read.
func raceForState(t *testing.T, h *house, writers, each int) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				var n int
				doc, value, err := h.p.StateValue(t.Context(), "acme", "sum")
				var refusal *Refusal
				switch {
				case err == nil:
					_ = json.Unmarshal(value, &n)
				case !errors.As(err, &refusal) || refusal.Code != CodeNotFound:
					t.Errorf("read: %v", err)
					return
				}
				_, err = h.p.PutState(t.Context(), StateWrite{
					Tenant: "acme", Key: "sum", Value: json.RawMessage(fmt.Sprint(n + 1)), Expect: doc.Version, By: StateWriter{Actor: fmt.Sprint("w", w)},
				})
				switch {
				case err == nil:
					done++
				case currentOf(err) == "":
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	doc, value, err := h.p.StateValue(t.Context(), "acme", "sum")
	if want := fmt.Sprint(writers * each); err != nil || string(value) != want || doc.Version != int64(writers*each) {
		t.Errorf("the sum is %s in version %d, %v; want %s: a write was lost", value, doc.Version, err, want)
	}
}

func TestWritersOfStateLoseNothing(t *testing.T) {
	keptIn(t, func(t *testing.T, h *house) { raceForState(t, h, 4, 25) })
}

// staleAttempt writes state from an attempt that was told to end, and from its successor.
func staleAttempt(t *testing.T, h *house) {
	t.Helper()
	r := h.submit(Submission{Agent: "post", Tenant: "acme"})
	h.lease("w1", 1, "post")
	write := func(n int, expect int64, value string) error {
		_, err := h.p.PutState(t.Context(), StateWrite{
			Tenant: "acme", Key: "k", Value: json.RawMessage(value), Expect: expect, By: StateWriter{Run: r.ID, N: n, Actor: "post"},
		})
		return err
	}
	if err := write(1, 0, `1`); err != nil {
		t.Fatalf("the attempt that holds the run: %v", err)
	}
	h.report(runtime.Report{Type: runtime.Released, Run: r.ID, N: 1, Worker: "w1"})
	if err := write(1, 1, `"late"`); !errors.Is(err, run.ErrFenced) {
		t.Fatalf("an attempt that was released: %v, want fenced", err)
	}
	h.pass(time.Second)
	if leases := h.lease("w1", 1, "post"); len(leases) != 1 || leases[0].N != 2 {
		t.Fatalf("no second attempt: %v", leases)
	}
	if err := write(1, 1, `"late"`); !errors.Is(err, run.ErrFenced) {
		t.Fatalf("an older attempt: %v, want fenced", err)
	}
	if err := h.p.DeleteState(t.Context(), StateWrite{Tenant: "acme", Key: "k", Expect: 1, By: StateWriter{Run: r.ID, N: 1}}); !errors.Is(err, run.ErrFenced) {
		t.Fatalf("an older attempt deletes: %v, want fenced", err)
	}
	if err := write(2, 1, `2`); err != nil {
		t.Fatalf("the newer attempt: %v", err)
	}
	doc, err := h.p.State(t.Context(), "acme", "k")
	if err != nil || doc.Version != 2 || doc.By != (StateWriter{Run: r.ID, N: 2, Actor: "post"}) {
		t.Fatalf("there is %+v, %v; want version 2 by attempt 2", doc, err)
	}
}

func TestAnOlderAttemptWritesNoState(t *testing.T) { keptIn(t, staleAttempt) }
