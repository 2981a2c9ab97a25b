package memory_test

import (
	"testing"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
	"github.com/errand-run/errand/shared/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s := memory.Open()
		t.Cleanup(func() { _ = s.Close() })
		return s
	})
}
