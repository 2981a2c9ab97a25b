package firestore_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/firestore"
	"github.com/errand-run/errand/shared/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(emulator.Main(m)) }

var projects atomic.Int64

// open opens an empty store: a project of its own in the emulator.
func open(t *testing.T, change ...func(o *firestore.Options)) *firestore.Store {
	t.Helper()
	o := firestore.Options{Project: fmt.Sprint("test-", projects.Add(1)), Endpoint: emulator.Firestore(t)}
	for _, c := range change {
		c(&o)
	}
	s, err := firestore.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t) })
}
