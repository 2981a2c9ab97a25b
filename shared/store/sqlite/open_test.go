package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/sqlite"
)

// script makes a database by statements, as another program would.
func script(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenRefusesAndLeavesTheFile(t *testing.T) {
	write := func(body string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	cases := map[string]struct {
		make func(t *testing.T, path string)
		o    sqlite.Options
		want string
	}{
		"a text":                        {write("kind: Agent\nmetadata: {name: checker}\n"), sqlite.Options{}, "is no database"},
		"a text shorter than a header":  {write("hi"), sqlite.Options{}, "is no database"},
		"a file that only begins right": {write("SQLite format 3\x00" + strings.Repeat("x", 5000)), sqlite.Options{}, "open store"},
		"a database of another program": {func(t *testing.T, path string) { script(t, path, "CREATE TABLE invoices (id)") }, sqlite.Options{}, "another program"},
		"a store of a newer program": {func(t *testing.T, path string) {
			s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			script(t, path, "PRAGMA user_version=99", "PRAGMA wal_checkpoint(TRUNCATE)")
		}, sqlite.Options{}, "schema version 99"},
		"a folder": {func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, sqlite.Options{}, "is a directory"},
		"an unknown sync policy": {func(*testing.T, string) {}, sqlite.Options{Sync: "EXTRA"}, "FULL, NORMAL or OFF"},
		"too many readers":       {func(*testing.T, string) {}, sqlite.Options{Readers: 65}, "1 to 64"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "errand.db")
			c.make(t, path)
			before, _ := os.ReadFile(path)
			_, err := sqlite.Open(t.Context(), path, c.o)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want an error about %s with %q", err, path, c.want)
			}
			if after, _ := os.ReadFile(path); string(after) != string(before) {
				t.Error("the refused file was changed")
			}
			if _, err := os.Stat(path + ".lock"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a lock was left: %v", err)
			}
		})
	}
	t.Run("a folder that does not exist", func(t *testing.T) {
		_, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "none", "errand.db"), sqlite.Options{})
		if err == nil || !strings.Contains(err.Error(), "create it first") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a file that may not be written", func(t *testing.T) {
		if os.Getuid() == 0 {
			t.Skip("root may write every file")
		}
		path := filepath.Join(t.TempDir(), "errand.db")
		if err := os.WriteFile(path, nil, 0o400); err != nil {
			t.Fatal(err)
		}
		_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "let this user") {
			t.Errorf("got %v, want a permission error that says what to do", err)
		}
	})
}

func TestOpenTakesAnyPath(t *testing.T) {
	for _, name := range []string{"errand.db", "a b.db", "100%25?mode=ro#x.db", "file:x.db", "ümlaut'.db"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			s := openAt(t, path, sqlite.Options{})
			if err := s.Commit(t.Context(), []store.Unit{step("s", 1)})[0]; err != nil {
				t.Fatal(err)
			}
			if err := s.Backup(t.Context(), path+".copy"); err != nil {
				t.Error(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v, want 0600: runs hold private data", info.Mode())
			}
		})
	}
}

func TestAStoreIsOpenOnce(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "errand.db"), filepath.Join(dir, "other.db")
	s := openAt(t, path, sqlite.Options{})
	if err := os.Symlink(path, other); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, other} {
		_, err := sqlite.Open(t.Context(), p, sqlite.Options{})
		if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("this process (pid %d)", os.Getpid())) {
			t.Errorf("second open of %s: got %v, want ErrLocked naming this process", p, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := openAt(t, path, sqlite.Options{}).Close(); err != nil {
		t.Errorf("open after close: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("after the close there are %v, %v; want the file and its link alone", left, err)
	}
}

// Of many that open one file at once exactly one may have it, however the lock's file comes and goes.
func TestOpeningsRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "errand.db")
	var wg sync.WaitGroup
	var mu sync.Mutex
	holders := 0
	for range 8 {
		wg.Go(func() {
			for range 5 {
				s, err := sqlite.Open(t.Context(), path, sqlite.Options{Readers: 1})
				if errors.Is(err, store.ErrLocked) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if holders++; holders > 1 {
					t.Errorf("%d hold the store", holders)
				}
				mu.Unlock()
				s.Commit(t.Context(), []store.Unit{step("s", 1)})
				mu.Lock()
				holders--
				mu.Unlock()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestDescribeTellsTheSyncPolicy(t *testing.T) {
	for sync, want := range map[sqlite.Sync]string{"": "synchronous=FULL", sqlite.SyncNormal: "synchronous=NORMAL", sqlite.SyncOff: "synchronous=OFF"} {
		s := openAt(t, filepath.Join(t.TempDir(), "errand.db"), sqlite.Options{Sync: sync})
		if got := s.Describe(); !strings.Contains(got, want) {
			t.Errorf("got %q, want it to tell %s", got, want)
		}
		if !s.Exclusive() {
			t.Error("the store is not exclusive")
		}
	}
}

func TestBackup(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, filepath.Join(dir, "errand.db"), sqlite.Options{})
	// Each unit writes a pair; a copy of one moment holds both or none.
	stop, stopped := make(chan struct{}), make(chan struct{})
	acknowledged := make(chan string, 1)
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			a, b := step(fmt.Sprint("a-", n), 300), step(fmt.Sprint("b-", n), 300)
			a.Writes = append(a.Writes, b.Writes...)
			if err := s.Commit(context.Background(), []store.Unit{a})[0]; err != nil {
				t.Errorf("commit beside a backup: %v", err)
				return
			}
			if n == 100 {
				acknowledged <- fmt.Sprint("a-", n)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	last := <-acknowledged
	path := filepath.Join(dir, "copy.db")
	if err := s.Backup(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	close(stop)
	<-stopped

	t.Run("the copy is a store of one moment", func(t *testing.T) {
		c := openAt(t, path, sqlite.Options{})
		if _, err := c.Get(t.Context(), store.KindStep, last); err != nil {
			t.Errorf("acknowledged before the backup: %v", err)
		}
		docs, err := c.Tagged(t.Context(), store.KindStep, "", "", store.MaxPage)
		if err != nil {
			t.Fatal(err)
		}
		pairs := map[string]int{}
		for _, d := range docs {
			pairs[d.ID[2:]]++
		}
		for n, count := range pairs {
			if count != 2 && len(docs) < store.MaxPage {
				t.Errorf("unit %s is there by half", n)
			}
		}
		if err := c.Commit(t.Context(), []store.Unit{step("new", 1)})[0]; err != nil {
			t.Errorf("commit to the copy: %v", err)
		}
	})
	t.Run("an existing file is refused and left", func(t *testing.T) {
		there := filepath.Join(dir, "there")
		if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Backup(t.Context(), there); err == nil || !strings.Contains(err.Error(), "exists") {
			t.Errorf("got %v", err)
		}
		if b, _ := os.ReadFile(there); string(b) != "mine" {
			t.Errorf("the file now holds %q", b)
		}
	})
	t.Run("a canceled backup leaves nothing", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		none := filepath.Join(dir, "none.db")
		if err := s.Backup(ctx, none); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		if left, _ := filepath.Glob(none + "*"); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	})
	t.Run("a closed store has no backup", func(t *testing.T) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Backup(t.Context(), filepath.Join(dir, "late.db")); !errors.Is(err, store.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}
