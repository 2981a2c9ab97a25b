package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/sqlite"
	"github.com/errand-run/errand/shared/store/storetest"
)

func openAt(t testing.TB, path string, o sqlite.Options) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	// Hundreds of stores are opened here; what waiting for the disk adds is tested on fewer, below and after a kill.
	storetest.Run(t, func(t *testing.T) store.Store {
		return openAt(t, filepath.Join(t.TempDir(), "errand.db"), sqlite.Options{Sync: sqlite.SyncOff})
	})
	storetest.Reopen(t, func(t *testing.T, dir string) store.Store {
		return openAt(t, filepath.Join(dir, "errand.db"), sqlite.Options{})
	})
}

func TestSizeIsThatOfTheFileWithItsLogFolded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "errand.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	empty, err := s.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), []store.Unit{step("large", 1<<20)})[0]; err != nil {
		t.Fatal(err)
	}
	full, err := s.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if full < empty+1<<20 {
		t.Errorf("%d bytes when empty, %d with a document of 1 MiB", empty, full)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if file.Size() != full {
		t.Errorf("Size %d, the closed file has %d bytes", full, file.Size())
	}
	if _, err := s.Size(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Size of a closed store: %v", err)
	}
}
