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

func (f commitFault) String() string {
	return [...]string{
		noFault: "none", failBefore: "failed, not written", failAfter: "failed, written", failSome: "failed, some written",
		crashBefore: "crash before", crashAfter: "crash after", contention: "conflict", pauseBefore: "hang before", pauseAfter: "hang after",
	}[f]
}

// faulty is the store as one process sees it.
type faulty struct {
	store.Store
	p     *process
	fault commitFault
	times int           // commits that meet the fault
	skips int           // reads that come through before reads fail
	reads int           // reads that fail then
	out   time.Duration // until then nothing is answered
	roll  uint64
	met   time.Duration // when a fault was met last
	mets  int           // how many were met
}

func (s *faulty) Exclusive() bool { return !s.p.w.temper.two }

func (s *faulty) take() commitFault {
	switch {
	case s.p.w.healing:
		return noFault
	case s.p.w.passed < s.out:
		return failBefore
	case s.times == 0:
		return noFault
	}
	s.times--
	return s.fault
}

func (s *faulty) Commit(ctx context.Context, units []store.Unit) []error {
	w, f := s.p.w, s.take()
	if f != noFault {
		s.met, s.mets = max(w.passed, 1), s.mets+1
		w.say("commit of %d units by process %s meets a fault: %s", len(units), s.p.name, f)
		w.saw("commit that met a fault: " + f.String())
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
		if a := w.ledger.asking[s.p]; a.run != "" && !writesRun(&units[0]) {
			// An attempt writes beside its run: a person is faster about the run itself.
			done := w.ledger.asks(s.p, "", 0)
			w.on(s.p, func() { _, _ = s.p.plane.Suspend(ctx, a.run, "client") }) // also a refusal is fine
			done()
			w.saw("person who was faster than a write beside a run")
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

func writesRun(u *store.Unit) bool {
	for i := range u.Writes {
		if u.Writes[i].Kind == store.KindRun {
			return true
		}
	}
	return false
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
	s.p.hangs++
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
				if w.temper.calls {
					w.decide(other, &r)
				}
			}
		}
	}
}

func (s *faulty) read() error {
	w := s.p.w
	switch {
	case w.healing:
		return nil
	case w.passed < s.out:
	case s.reads == 0:
		return nil
	case s.skips > 0:
		s.skips--
		return nil
	default:
		s.reads--
	}
	s.met, s.mets = max(w.passed, 1), s.mets+1
	w.say("a read by process %s fails", s.p.name)
	w.saw("read that failed")
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

func (s *faulty) Due(ctx context.Context, part store.Part, until, afterWake int64, afterID string, limit int) ([]store.Doc, error) {
	if err := s.read(); err != nil {
		return nil, err
	}
	return s.Store.Due(ctx, part, until, afterWake, afterID, limit)
}

func (s *faulty) Held(ctx context.Context, each func(store.Doc) error) error {
	if err := s.read(); err != nil {
		return err
	}
	return s.Store.Held(ctx, each)
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
	s := w.procs[r.n(len(w.procs))].store
	s.skips, s.reads = r.n(6), 1+r.n(3)
}

// opOutage: what a process asks its store fails until it is over, and that takes up to a minute.
func (w *world) opOutage(r *rng) {
	p := w.procs[r.n(len(w.procs))]
	p.store.out = w.passed + time.Duration(1+r.n(60))*time.Second
	w.say("process %s cannot reach its store until %s", p.name, p.store.out)
	w.saw("outage")
}

func (w *world) opStartFault(r *rng) {
	w.procs[r.n(len(w.procs))].exec.fault = startFault(1 + r.n(int(startFaults)-1))
}
