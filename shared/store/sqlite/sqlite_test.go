package sqlite_test

import (
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
