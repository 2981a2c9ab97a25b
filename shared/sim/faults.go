package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/errand-run/errand/shared/store"
)

// errUnknown is what a driver answers that does not know whether its commit applied.
var errUnknown = errors.New("connection lost")

// commitFault is what happens to a commit.
type commitFault uint8

const (
	noFault     commitFault = iota
	failBefore              // an error, and nothing was written
	failAfter               // an error, and everything was written
	failSome                // an error for some units, of which some were written
	crashBefore             // the process ends before the commit was applied
	crashAfter              // the process ends after it was applied
	contention              // conflicts, though nobody wrote
	pauseBefore             // the process hangs before the commit for longer than its lease
	pauseAfter
	commitFaults
)

// faulty is the store as one process sees it.
type faulty struct {
	store.Store
	p     *process
	fault commitFault
	times int // commits that meet the fault
	reads int // reads that fail from now on
	roll  uint64
	met   time.Duration // when a fault was met last
	mets  int           // how many were met
}

func (s *faulty) Exclusive() bool { return !s.p.w.temper.two }

func (s *faulty) take() commitFault {
	if s.times == 0 || s.p.w.healing {
		return noFault
	}
	s.times--
	return s.fault
}

func (s *faulty) Commit(ctx context.Context, units []store.Unit) []error {
	w, f := s.p.w, s.take()
	if f != noFault {
		s.met, s.mets = max(w.passed, 1), s.mets+1
		w.say("commit of %d units by process %s meets fault %d", len(units), s.p.name, f)
	}
	errs := make([]error, len(units))
	switch f {
	case failBefore:
		for i := range errs {
			errs[i] = fmt.Errorf("commit: %w", errUnknown)
		}
		return errs
	case crashBefore:
		panic(crash{s.p})
	case contention:
		for i := range errs {
			errs[i] = contended(&units[i])
		}
	case failSome:
		for i := range errs {
			if s.unlucky(&units[i], 1) {
				errs[i] = fmt.Errorf("commit: %w", errUnknown)
			}
		}
	case pauseBefore:
		if len(units) > 0 && len(units[0].Fences) > 0 { // a write beside a run: a person is faster about the run itself
			done := w.ledger.asks(s.p, "", 0)
			w.on(s.p, func() { _, _ = s.p.plane.Suspend(ctx, units[0].Fences[0].Run, "client") }) // also a refusal is fine
			done()
		}
		s.pause()
	}
	// Those that nothing has befallen reach the disk.
	var through []store.Unit
	var at []int
	for i := range units {
		if errs[i] == nil {
			through, at = append(through, units[i]), append(at, i)
		}
	}
	if len(through) > 0 {
		for k, err := range s.Store.Commit(ctx, through) {
			errs[at[k]] = err
			if err == nil {
				w.ledger.wrote(s.p, &through[k])
			}
		}
	}
	switch f {
	case crashAfter:
		panic(crash{s.p})
	case failAfter, failSome:
		for i := range errs {
			if errs[i] == nil && (f == failAfter || s.unlucky(&units[i], 2)) {
				errs[i] = fmt.Errorf("commit: %w", errUnknown)
			}
		}
	case pauseAfter:
		s.pause()
	}
	return errs
}

// contended is a conflict for a unit that changes a run, and nothing for others.
func contended(u *store.Unit) error {
	for i := range u.Writes {
		if u.Writes[i].Kind == store.KindRun && u.Writes[i].Expect > 0 {
			return fmt.Errorf("commit: %w", store.ErrConflict)
		}
	}
	return nil
}

// unlucky chooses units by what they write, for their order may be any.
func (s *faulty) unlucky(u *store.Unit, bit uint64) bool {
	h := s.roll
	for i := range u.Writes {
		for _, b := range []byte(u.Writes[i].ID) {
			h = (h ^ uint64(b)) * fnvPrime
		}
	}
	return h>>40&bit != 0
}

// pause lets the world go on while this process hangs.
func (s *faulty) pause() {
	w := s.p.w
	s.p.hung = true
	defer func() { s.p.hung = false }()
	r := rng(s.roll)
	for range 1 + r.n(4) {
		w.passed += time.Duration(r.n(8000)) * time.Millisecond
		w.outside.land()
		for _, other := range w.procs {
			if other != s.p {
				other.settle()
				if wk := pick(&r, w.alive()); wk != nil {
					w.lease(wk, other, &r)
				}
			}
		}
	}
}

func (s *faulty) read() error {
	if s.reads == 0 || s.p.w.healing {
		return nil
	}
	s.reads--
	s.met, s.mets = max(s.p.w.passed, 1), s.mets+1
	s.p.w.say("a read by process %s fails", s.p.name)
	return fmt.Errorf("read: %w", errUnknown)
}

func (s *faulty) Get(ctx context.Context, kind store.Kind, id string) (store.Doc, error) {
	if err := s.read(); err != nil {
		return store.Doc{}, err
	}
	return s.Store.Get(ctx, kind, id)
}

func (s *faulty) GetMany(ctx context.Context, kind store.Kind, ids []string) ([]store.Doc, error) {
	if err := s.read(); err != nil {
		return nil, err
	}
	return s.Store.GetMany(ctx, kind, ids)
}

func (s *faulty) Due(ctx context.Context, shard uint8, until, afterWake int64, afterID string, limit int) ([]store.Doc, error) {
	if err := s.read(); err != nil {
		return nil, err
	}
	return s.Store.Due(ctx, shard, until, afterWake, afterID, limit)
}

func (s *faulty) List(ctx context.Context, q store.Query) (store.Page, error) {
	if err := s.read(); err != nil {
		return store.Page{}, err
	}
	return s.Store.List(ctx, q)
}

func (s *faulty) Owned(ctx context.Context, kind store.Kind, owner, afterID string, limit int) ([]store.Doc, error) {
	if err := s.read(); err != nil {
		return nil, err
	}
	return s.Store.Owned(ctx, kind, owner, afterID, limit)
}

func (s *faulty) Tagged(ctx context.Context, kind store.Kind, tag, afterID string, limit int) ([]store.Doc, error) {
	if err := s.read(); err != nil {
		return nil, err
	}
	return s.Store.Tagged(ctx, kind, tag, afterID, limit)
}

func (w *world) opCrash(r *rng) {
	if p := w.procs[r.n(len(w.procs))]; !p.down {
		p.die()
	}
}

func (w *world) opCommitFault(r *rng) {
	s := w.procs[r.n(len(w.procs))].store
	s.fault, s.times, s.roll = commitFault(1+r.n(int(commitFaults)-1)), 1, r.next()
	switch {
	case s.fault == contention:
		s.times = 1 + r.n(6)
	case s.fault == failBefore || s.fault == failAfter:
		s.times = 1 + r.n(3)
	}
}

func (w *world) opReadFault(r *rng) {
	w.procs[r.n(len(w.procs))].store.reads = 1 + r.n(3)
}

func (w *world) opStartFault(r *rng) {
	w.procs[r.n(len(w.procs))].exec.fault = startFault(1 + r.n(int(startFaults)-1))
}
