package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/store"
)

func open1(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "errand.db"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func payload(id, owner string, size int) store.Unit {
	d := store.Doc{Kind: store.KindPayload, ID: id, Version: 1, Owner: owner, Body: make([]byte, size)}
	return store.Unit{Token: id, Writes: []store.Write{{Doc: d}}}
}

func payloads(prefix string, n, size int) []store.Unit {
	units := make([]store.Unit, n)
	for i := range units {
		units[i] = payload(fmt.Sprint(prefix, i), "", size)
	}
	return units
}

// Every read is one search of an index that is in the order of the answer.
func TestReadsNeitherScanNorSort(t *testing.T) {
	s := open1(t, Options{Sync: SyncOff})
	reads := []string{getDoc, selectDue, selectOwned, selectTagged, selectKind, selectHeld, selectHead, purgeOwned}
	for _, both := range listSQL {
		reads = append(reads, both[:]...)
	}
	r := <-s.readers
	defer func() { s.readers <- r }()
	for _, sql := range reads {
		var plan []string
		n := strings.Count(sql, "?")
		if strings.Contains(sql, "?5") {
			n = 5
		}
		a := args{}
		for range n {
			a = a.text("1")
		}
		err := r.conn.query("EXPLAIN QUERY PLAN "+sql, a, func(v []driver.Value) error {
			plan = append(plan, text(v[3]))
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		for _, line := range plan {
			if strings.HasPrefix(line, "SCAN") || strings.Contains(line, "TEMP B-TREE") {
				t.Errorf("%s:\n%s", sql, strings.Join(plan, "\n"))
			}
		}
	}
}

func TestABatchIsBoundedAndFair(t *testing.T) {
	type taken struct {
		First string
		Units int
	}
	cases := map[string]struct {
		calls [][]store.Unit
		want  [][]taken // per transaction
	}{
		"what waits goes into one transaction": {
			[][]store.Unit{payloads("a", 1, 10), payloads("b", 3, 10)},
			[][]taken{{{"a0", 1}, {"b0", 3}}},
		},
		"a transaction is bounded in units": {
			[][]store.Unit{payloads("a", 250, 1), payloads("b", 250, 1), payloads("c", 250, 1), payloads("d", 250, 1), payloads("e", 1, 1)},
			[][]taken{{{"a0", 250}, {"b0", 250}, {"c0", 250}, {"d0", 250}}, {{"e0", 1}}},
		},
		"a large payload takes one turn and the small calls do not wait for the next": {
			[][]store.Unit{payloads("big", 3, 1<<20), payloads("huge", 1, 2<<20), payloads("a", 1, 10)},
			[][]taken{{{"a0", 1}, {"big0", 1}}, {{"huge0", 1}}, {{"big1", 1}}, {{"big2", 1}}},
		},
		"a call of many units is written in slices": {
			[][]store.Unit{payloads("many", 600, 10), payloads("a", 2, 10)},
			[][]taken{{{"a0", 2}, {"many0", 250}}, {{"many250", 250}}, {{"many500", 100}}},
		},
		"small calls are bounded in bytes": {
			slices.Collect(func(yield func([]store.Unit) bool) {
				for i := range 20 {
					yield(payloads(fmt.Sprint("c", i, "-"), 1, 250<<10))
				}
			}),
			[][]taken{
				slices.Collect(func(yield func(taken) bool) {
					for i := range 17 {
						yield(taken{fmt.Sprint("c", i, "-0"), 1})
					}
				}),
				{{"c17-0", 1}, {"c18-0", 1}, {"c19-0", 1}},
			},
		},
	}
	remove := func(prefix string, n int) []store.Unit {
		units := payloads(prefix, n, 0)
		for i := range units {
			units[i].Writes[0].Expect, units[i].Writes[0].Delete = store.AnyVersion, true
		}
		return units
	}
	cases["what only removes comes last, a few at a time"] = struct {
		calls [][]store.Unit
		want  [][]taken
	}{
		[][]store.Unit{remove("gone", removalUnits+1), payloads("a", 1, 10)},
		[][]taken{{{"a0", 1}}, {{"gone0", removalUnits}}, {{fmt.Sprint("gone", removalUnits), 1}}},
	}
	passing := struct {
		calls [][]store.Unit
		want  [][]taken
	}{calls: [][]store.Unit{remove("gone", 1)}}
	for i := range removalWaits + 2 {
		passing.calls = append(passing.calls, payloads(fmt.Sprint("big", i, "-"), 1, 1<<20))
		passing.want = append(passing.want, []taken{{fmt.Sprint("big", i, "-0"), 1}})
	}
	passing.want[removalWaits] = append(passing.want[removalWaits], taken{"gone0", 1})
	cases["what only removes is passed over by a few transactions and then goes along"] = passing
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			q := newQueue()
			for i, units := range c.calls {
				go q.commit(t.Context(), units)
				// Calls queue in the order in which they are made here.
				for queued := 0; queued <= i; {
					q.mu.Lock()
					queued = len(q.small) + len(q.large) + len(q.removals)
					q.mu.Unlock()
				}
			}
			var got [][]taken
			for {
				batch, _ := q.take()
				if len(batch) == 0 {
					break
				}
				var tx []taken
				for _, s := range batch {
					tx = append(tx, taken{s.units[s.from].Writes[0].ID, s.to - s.from})
				}
				got = append(got, tx)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestACallerThatGivesUpLeavesItsUnitsInTheQueue(t *testing.T) {
	q := newQueue()
	ctx, cancel := context.WithCancel(t.Context())
	outcomes := make(chan []error)
	go func() { outcomes <- q.commit(ctx, payloads("a", 2, 1)) }()
	<-q.wake
	cancel()
	for _, err := range <-outcomes {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	}
	if batch, _ := q.take(); len(batch) != 1 || batch[0].to != 2 {
		t.Errorf("the queue holds %+v, want the call", batch)
	}
}

func TestHeadsAreBounded(t *testing.T) {
	h := newHeads(10)
	for i := range 100 {
		n := name{store.KindRun, fmt.Sprint(i)}
		h.put(n, head{seq: int64(i)})
		if got, ok := h.get(n); !ok || got.seq != int64(i) {
			t.Fatalf("head %d is forgotten at once", i)
		}
	}
	if n := len(h.young) + len(h.old); n > 20 || n < 10 {
		t.Errorf("%d heads are held, want 10 to 20", n)
	}
}

// A document whose head is forgotten is judged and written as one that is remembered: the rest of the suite runs on
// remembered ones.
func TestUpdatesOfForgottenDocuments(t *testing.T) {
	s := open1(t, Options{Sync: SyncOff})
	path := s.path
	index := store.Index{Tenant: "t", Agent: "a", Parent: "p", Root: "r", Worker: "w", Attempt: 1, CreatedAt: 5, WakeAt: 9, Part: store.PartEnded}
	at := func(version int64, x store.Index) store.Unit {
		return store.Unit{Writes: []store.Write{{Doc: store.Doc{Kind: store.KindRun, ID: "a", Version: version, Index: &x}, Expect: version - 1}}}
	}
	commit := func(u store.Unit, want error) {
		t.Helper()
		if err := s.Commit(t.Context(), []store.Unit{u})[0]; !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
	reopen := func() {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		if s, err = Open(t.Context(), path, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = s.Close() }()
	commit(at(1, index), nil)
	for version, change := range []func(x *store.Index){
		func(*store.Index) {},
		func(x *store.Index) { x.Worker = "v" },
		func(x *store.Index) { x.WakeAt = 0 },
		func(x *store.Index) { x.Tenant, x.Root = "u", "a" },
		func(x *store.Index) { x.Worker, x.WakeAt, x.Parent = "", 3, "" },
	} {
		reopen()
		commit(at(int64(version+7), index), store.ErrConflict)
		change(&index)
		commit(at(int64(version+2), index), nil)
		d, err := s.Get(t.Context(), store.KindRun, "a")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&index, d.Index); diff != "" {
			t.Errorf("change %d (-want +got):\n%s", version, diff)
		}
		if err := check(s); err != nil {
			t.Errorf("change %d: %v", version, err)
		}
	}
}

// check runs SQLite's own check of every page and index.
func check(s *Store) error {
	return s.read(context.Background(), "check", 1, func(c *conn) error {
		return c.query("PRAGMA integrity_check", nil, func(v []driver.Value) error {
			if text(v[0]) != "ok" {
				return errors.New(text(v[0]))
			}
			return nil
		})
	})
}

func TestTheLogStaysBoundedBesideReads(t *testing.T) {
	s := open1(t, Options{Sync: SyncOff, logPages: 128})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = s.Tagged(context.Background(), store.KindPayload, "", "", 2)
			}
		}
	}()
	largest := int64(0)
	for i := range 200 {
		if err := s.Commit(t.Context(), []store.Unit{payload(fmt.Sprint("p-", i), "", 64<<10)})[0]; err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(s.path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, info.Size())
	}
	close(stop)
	<-stopped
	// Without a bound it would hold 3,200 pages. A read that has to wait for the processor delays what bounds it.
	if bound := int64(12 * 128 * pageSize); largest > bound {
		t.Errorf("the log grew to %d KiB, want at most %d", largest>>10, bound>>10)
	}
	if err := check(s); err != nil {
		t.Error(err)
	}
}

func TestPurgedPagesAreGivenBack(t *testing.T) {
	s := open1(t, Options{Sync: SyncOff})
	for i := range 20 {
		if err := s.Commit(t.Context(), []store.Unit{payload(fmt.Sprint("p-", i), "run", 1<<20)})[0]; err != nil {
			t.Fatal(err)
		}
	}
	pages := func(what string) (n int64) {
		err := s.read(t.Context(), what, 1, func(c *conn) (err error) {
			n, err = c.number("PRAGMA " + what)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := pages("page_count")
	if err := s.Commit(t.Context(), []store.Unit{{Token: "purge", Purge: []string{"run"}}})[0]; err != nil {
		t.Fatal(err)
	}
	// The writer gives pages back whenever nothing waits for it; that is in its own time.
	deadline := time.Now().Add(20 * time.Second)
	for pages("freelist_count") > keptPages {
		if time.Now().After(deadline) {
			t.Fatalf("%d free pages are left of %d", pages("freelist_count"), before)
		}
	}
	if err := s.Commit(t.Context(), payloads("after", 3, 10))[2]; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.path); err != nil || info.Size() > before*pageSize/4 {
		t.Errorf("the file holds %d bytes, %v; it was %d", info.Size(), err, before*pageSize)
	}
}

func TestStatsCountGroups(t *testing.T) {
	s := open1(t, Options{})
	if err := s.Commit(t.Context(), append(payloads("a", 100, 1), payload("a0", "", 1)))[100]; !errors.Is(err, store.ErrExists) {
		t.Fatalf("got %v, want ErrExists", err)
	}
	want := Stats{Units: 100, Transactions: 1, Flushes: 1, Pages: s.Stats().Pages}
	if d := cmp.Diff(want, s.Stats()); d != "" || want.Pages < 2 {
		t.Errorf("%d pages (-want +got):\n%s", want.Pages, d)
	}
	// A transaction that writes nothing waits for nothing.
	s.Commit(t.Context(), []store.Unit{payload("a0", "", 1)})
	if d := cmp.Diff(want, s.Stats()); d != "" {
		t.Errorf("after a refused unit (-want +got):\n%s", d)
	}
}

func TestEveryListingHasItsStatement(t *testing.T) {
	got := slices.Sorted(maps.Keys(listSQL))
	want := []store.By{store.ByCreated, store.ByTenant, store.ByTenantAgent, store.ByParent, store.ByRoot}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
