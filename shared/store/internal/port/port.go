// Package port is what every driver of the store must judge alike: the limits and shapes of units and reads, and the
// page tokens. A driver checks here first, so that no driver accepts what another refuses.
package port

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/errand-run/errand/shared/store"
)

// CheckUnits refuses a call of Commit with more units than the port allows. The error is every unit's outcome.
func CheckUnits(n int) error {
	if n > store.MaxUnits {
		return fmt.Errorf("commit of %d units: %w: at most %d in one call", n, store.ErrTooLarge, store.MaxUnits)
	}
	return nil
}

// Repeat returns n outcomes that are all err.
func Repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// CheckUnit refuses a unit that no state of the store could accept: ErrTooLarge or ErrInvalid, saying which part.
func CheckUnit(u *store.Unit) error {
	if n := len(u.Writes) + len(u.Fences) + len(u.Purge); n > store.MaxWrites {
		return fmt.Errorf("unit of %d writes, fences and purges: %w: at most %d", n, store.ErrTooLarge, store.MaxWrites)
	}
	for i := range u.Fences {
		if err := checkID("fence on run", u.Fences[i].Run); err != nil {
			return err
		}
	}
	for _, run := range u.Purge {
		if err := checkID("purge of run", run); err != nil {
			return err
		}
	}
	for i := range u.Writes {
		if err := checkWrite(&u.Writes[i]); err != nil {
			return err
		}
	}
	return checkDistinct(u.Writes)
}

func checkWrite(w *store.Write) error {
	// 1. The document's name.
	if w.Kind < store.KindRun || w.Kind > store.KindState {
		return fmt.Errorf("write of %q: %w: no kind %d", w.ID, store.ErrInvalid, w.Kind)
	}
	if err := checkID("write of "+w.Kind.String(), w.ID); err != nil {
		return err
	}
	// 2. The expectation, which a delete needs too.
	if w.Expect < store.AnyVersion {
		return refuse(w, "expects version %d", w.Expect)
	}
	if w.Delete {
		if w.Expect == 0 {
			return refuse(w, "deletes what it expects not to exist")
		}
		return nil
	}
	if w.Version < 1 || w.Version <= w.Expect {
		return refuse(w, "version %d does not follow the expected %d", w.Version, w.Expect)
	}
	// 3. Keys and body.
	if err := checkKeys(w, w.Owner, w.Tag); err != nil {
		return err
	}
	if w.Kind == store.KindState && w.Owner != "" {
		return refuse(w, "belongs to run %s; shared state belongs to none", w.Owner)
	}
	if n := len(w.Body); n > store.MaxBody {
		return fmt.Errorf("write of %s %q: %w: body of %d bytes, at most %d", w.Kind, w.ID, store.ErrTooLarge, n, store.MaxBody)
	}
	// 4. The index, which runs and only runs have.
	if w.Kind != store.KindRun {
		if w.Index != nil {
			return refuse(w, "has an index; only runs do")
		}
		return nil
	}
	x := w.Index
	if x == nil {
		return refuse(w, "has no index")
	}
	if !x.Part.Valid() {
		return refuse(w, "there is no part %d of the due index", x.Part)
	}
	if x.Attempt < 0 || x.CreatedAt < 0 || x.WakeAt < 0 {
		return refuse(w, "attempt %d, createdAt %d or wakeAt %d is negative", x.Attempt, x.CreatedAt, x.WakeAt)
	}
	return checkKeys(w, x.Tenant, x.Agent, x.Parent, x.Root, x.Worker)
}

func refuse(w *store.Write, format string, args ...any) error {
	return fmt.Errorf("write of %s %q: %w: %s", w.Kind, w.ID, store.ErrInvalid, fmt.Sprintf(format, args...))
}

func checkKeys(w *store.Write, keys ...string) error {
	for _, k := range keys {
		if len(k) > store.MaxID {
			return fmt.Errorf("write of %s %q: %w: index key of %d bytes, at most %d", w.Kind, w.ID, store.ErrTooLarge, len(k), store.MaxID)
		}
		if !clean(k) {
			return refuse(w, "index key %q is not clean UTF-8", k)
		}
	}
	return nil
}

func checkID(what, id string) error {
	switch {
	case len(id) > store.MaxID:
		return fmt.Errorf("%s: %w: id of %d bytes, at most %d", what, store.ErrTooLarge, len(id), store.MaxID)
	case id == "":
		return fmt.Errorf("%s: %w: empty id", what, store.ErrInvalid)
	case !clean(id):
		return fmt.Errorf("%s: %w: id %q is not clean UTF-8", what, store.ErrInvalid, id)
	}
	return nil
}

// clean reports whether s can be a key in every driver: some end a string at a zero byte, some refuse broken UTF-8.
func clean(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// checkDistinct refuses two writes of one document: drivers differ in which of them would win.
func checkDistinct(ws []store.Write) error {
	const few = 8 // below it, comparing every pair is cheaper than a set
	if len(ws) <= few {
		for i := range ws {
			for j := range ws[:i] {
				if ws[i].ID == ws[j].ID && ws[i].Kind == ws[j].Kind {
					return refuse(&ws[i], "is written twice by the unit")
				}
			}
		}
		return nil
	}
	type name struct {
		kind store.Kind
		id   string
	}
	seen := make(map[name]struct{}, len(ws))
	for i := range ws {
		seen[name{ws[i].Kind, ws[i].ID}] = struct{}{}
		if len(seen) <= i {
			return refuse(&ws[i], "is written twice by the unit")
		}
	}
	return nil
}

// CheckLimit refuses a page size outside 1..MaxPage.
func CheckLimit(limit int) error {
	if limit < 1 {
		return fmt.Errorf("read of %d documents: %w: at least 1", limit, store.ErrInvalid)
	}
	if limit > store.MaxPage {
		return fmt.Errorf("read of %d documents: %w: at most %d", limit, store.ErrTooLarge, store.MaxPage)
	}
	return nil
}

// JudgeFence returns the outcome of a fence on a run whose live attempt is held; 0 for no run or no live attempt.
func JudgeFence(f store.Fence, held int64) error {
	if f.Attempt > 0 && f.Attempt == held {
		return nil
	}
	return fmt.Errorf("attempt %d of run %q: %w: attempt %d does", f.Attempt, f.Run, store.ErrFenced, held)
}

// JudgeWrite returns the outcome of a write on a document that is stored with a version; 0 for none.
func JudgeWrite(w *store.Write, stored int64) error {
	switch {
	case w.Expect == store.AnyVersion || w.Expect == stored:
		return nil
	case w.Expect == 0:
		return fmt.Errorf("create %s %q: %w with version %d", w.Kind, w.ID, store.ErrExists, stored)
	}
	return fmt.Errorf("write of %s %q: %w: %d, not %d", w.Kind, w.ID, store.ErrConflict, stored, w.Expect)
}
