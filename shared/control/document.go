package control

import (
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Document is the write that stores a record with all that the control plane finds it by; expect is the version that it
// replaces, 0 for a run that does not exist yet. Whoever makes records without the stages (a store to measure with)
// stores them in this form.
func Document(r *run.Record, expect int64) store.Write {
	return recordWrite(r, expect)
}
