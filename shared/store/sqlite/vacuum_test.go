package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/store"
)

func TestPagesAreGivenBackWhenManyAreFree(t *testing.T) {
	for name, c := range map[string]struct {
		free, pages int64
		going       bool
		want        int64
	}{
		"nothing is free":                               {0, 10_000, false, 0},
		"few are free":                                  {2500, 10_000, false, 0},
		"more than a quarter is free":                   {2600, 10_000, false, 2600 - 7400/7},
		"having begun, it goes on to an eighth":         {2000, 10_000, true, 2000 - 8000/7},
		"and ends there":                                {1250, 10_000, true, 0},
		"a small file keeps what it will want soon":     {200, 300, false, 0},
		"of a file where all is free, a little is kept": {10_000, 10_000, false, 10_000 - keptPages},
	} {
		t.Run(name, func(t *testing.T) {
			if got := wanted(c.free, c.pages, c.going); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// number reads a figure of the file.
func (s *Store) number(t *testing.T, what string) (n int64) {
	t.Helper()
	err := s.read(t.Context(), what, 1, func(c *conn) (err error) {
		n, err = c.number("PRAGMA " + what)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAFileThatIsFilledAndClearedDoesNotGrow(t *testing.T) {
	s := open1(t, Options{Sync: SyncOff})
	const runs = 400
	round := func(n int) {
		var units []store.Unit
		for i := range runs {
			id := fmt.Sprintf("%d-%d", n, i)
			d := store.Doc{Kind: store.KindRun, ID: id, Version: 1, Body: make([]byte, 1000), Index: &store.Index{Tenant: "t", Agent: "a", CreatedAt: int64(n)}}
			u := store.Unit{Token: id, Writes: []store.Write{{Doc: d}, payload(id+"/p", id, 2000).Writes[0]}}
			if n > 0 {
				old := fmt.Sprintf("%d-%d", n-1, i)
				gone := store.Unit{Token: "-" + id, Purge: []string{old}, Writes: []store.Write{{Doc: store.Doc{Kind: store.KindRun, ID: old}, Expect: 1, Delete: true}}}
				units = append(units, gone)
			}
			units = append(units, u)
		}
		for _, err := range s.Commit(t.Context(), units) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	round(0)
	round(1)
	two := s.number(t, "page_count")
	for n := 2; n < 12; n++ {
		round(n)
	}
	if now := s.number(t, "page_count"); now > two*3/2 {
		t.Errorf("%d pages after two rounds, %d after twelve", two, now)
	}
}

func TestPagesThatWereFreeWhenTheStoreWasClosedAreGivenBackLater(t *testing.T) {
	s := open1(t, Options{Sync: SyncOff})
	for i := range 8 {
		if err := s.Commit(t.Context(), []store.Unit{payload(fmt.Sprint("p", i), "run", 1<<20)})[0]; err != nil {
			t.Fatal(err)
		}
	}
	path, before := s.path, s.number(t, "page_count")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Another program leaves free pages behind, as a server does that is killed right after a removal.
	c, err := dial(path, readWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.run("DELETE FROM doc"); err != nil {
		t.Fatal(err)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), path, Options{Sync: SyncOff}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for deadline := time.Now().Add(20 * time.Second); s.number(t, "page_count") > before/4; {
		if time.Now().After(deadline) {
			t.Fatalf("%d pages, %d before", s.number(t, "page_count"), before)
		}
	}
}
