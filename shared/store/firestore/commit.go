package firestore

import (
	"context"
	"errors"
	"fmt"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/internal/port"
)

// Commit implements [store.Store].
func (s *Store) Commit(ctx context.Context, units []store.Unit) []error {
	if err := ctx.Err(); err != nil {
		return port.Repeat(err, len(units))
	}
	if err := port.CheckUnits(len(units)); err != nil {
		return port.Repeat(err, len(units))
	}
	end, err := s.begin("commit")
	if err != nil {
		return port.Repeat(err, len(units))
	}
	defer end()

	// 1. What can be judged without the store.
	errs := make([]error, len(units))
	works := make([]*work, 0, len(units))
	for i := range units {
		if errs[i] = port.CheckUnit(&units[i]); errs[i] == nil {
			works = append(works, s.newWork(&units[i], &errs[i]))
		}
	}
	// 2. The rest in the order of the call, as far as it matters.
	for _, segment := range segments(works) {
		if err := s.expand(ctx, segment); err != nil {
			for _, w := range segment {
				w.done(fmt.Errorf("read what is to be purged: %w", err))
			}
			continue
		}
		for _, wave := range waves(segment) {
			s.settle(ctx, wave)
		}
	}
	// 3. A caller that has gone learns nothing.
	if err := ctx.Err(); err != nil {
		return port.Repeat(err, len(units))
	}
	return errs
}

// segments parts a call so that what a purge takes is known before it: units that only remove stand together, for
// nothing that one purges is made by another; a unit that writes and purges stands alone.
func segments(works []*work) (all [][]*work) {
	var now []*work
	var adds, purges bool
	cut := func() {
		if len(now) > 0 {
			all = append(all, now)
		}
		now, adds, purges = nil, false, false
	}
	for _, w := range works {
		a, p := w.adds(), len(w.unit.Purge) > 0
		if a && (p || purges) || p && adds {
			cut()
		}
		now, adds, purges = append(now, w), adds || a, purges || p
		if a && p {
			cut()
		}
	}
	cut()
	return all
}

// waves orders units that touch the same documents, and leaves all others side by side: a unit stands in the first
// wave after those of the units before it that write what it writes or looks at, or look at what it writes.
func waves(works []*work) (all [][]*work) {
	written, fenced := make(map[name]int, len(works)), map[name]int{}
	for _, w := range works {
		at := 0
		for i := range w.targets {
			n := w.targets[i].name
			at = max(at, written[n], fenced[n])
		}
		for _, f := range w.unit.Fences {
			at = max(at, written[name{store.KindRun, f.Run}])
		}
		for len(all) <= at {
			all = append(all, nil)
		}
		all[at] = append(all[at], w)
		for i := range w.targets {
			written[w.targets[i].name] = at + 1
		}
		for _, f := range w.unit.Fences {
			n := name{store.KindRun, f.Run}
			fenced[n] = max(fenced[n], at+1)
		}
	}
	return all
}

// settle brings units that do not touch each other to their outcomes, or returns early when ctx ends.
func (s *Store) settle(ctx context.Context, pending []*work) {
	for round := 0; ; round++ {
		// 1. What their documents are, so far as it is not known: one read for all.
		s.learn(ctx, pending)
		// 2. Those that are decided by it.
		var ready, next []*work
		for _, w := range pending {
			switch {
			case w.finished:
			case s.decide(w):
				ready = append(ready, w)
			case !w.finished:
				next = append(next, w)
			}
		}
		// 3. The writes.
		s.send(ctx, ready)
		tries := 0
		for _, w := range ready {
			if !w.finished {
				next = append(next, w)
				tries = max(tries, w.fails, w.stales/8)
			}
		}
		if len(next) == 0 || ctx.Err() != nil {
			return
		}
		if tries > 0 && pause(ctx, tries) != nil {
			return
		}
		pending = next
	}
}

// learn reads the heads that units need and nobody remembers, and those of every document of a unit that was overtaken
// or whose outcome is open.
func (s *Store) learn(ctx context.Context, works []*work) {
	// 1. A purge that was overtaken finds out anew what there is to purge.
	for _, w := range works {
		if w.unread && len(w.unit.Purge) > 0 && !w.open {
			if err := s.expand(ctx, []*work{w}); err != nil {
				w.done(w.unknown(fmt.Errorf("read what is to be purged: %w", err)))
			}
		}
	}
	// 2. The names to read, each once.
	var names []name
	seen := map[name]bool{}
	for _, w := range works {
		if w.finished || w.outside() {
			continue // in its transaction
		}
		for i := range w.targets {
			if t := &w.targets[i]; s.recall(w, t) == unknown && !seen[t.name] {
				seen[t.name] = true
				names = append(names, t.name)
			}
		}
	}
	// 3. The read.
	heads, err := s.readHeads(ctx, names, nil)
	for _, w := range works {
		if w.finished || w.outside() {
			continue
		}
		for i := range w.targets {
			t := &w.targets[i]
			if t.knowledge != unknown {
				continue
			}
			if err != nil {
				w.done(w.unknown(fmt.Errorf("read what is stored: %w", err)))
				break
			}
			t.head, t.knowledge = heads[t.name], sure
		}
		w.unread = false
	}
}

// decide reports whether a unit is to be sent. Otherwise it has its outcome, or has to read first.
func (s *Store) decide(w *work) bool {
	if w.outside() {
		return true // its transaction decides
	}
	return s.decideOn(w)
}

func (s *Store) decideOn(w *work) bool {
	// 1. An earlier request of it was applied after all.
	if w.open && w.found() {
		s.finish(w, nil)
		return false
	}
	if w.fails >= failTries || w.stales >= staleTries {
		w.done(w.unknown(w.cause))
		return false
	}
	// 2. What is stored refuses it.
	switch from, refusal := w.refusal(); {
	case refusal == nil:
	case from != sure:
		w.unread = true // what is remembered may be of the past
		return false
	case w.open && !w.absent():
		w.done(w.unknown(w.cause))
		return false
	default:
		w.done(refusal)
		s.dropParts(w)
		return false
	}
	// 3. More than one commit takes is removed ahead, and that only after a look at what is stored.
	if w.tooMany() && !w.allSure() {
		w.unread = true
		return false
	}
	return true
}

// send writes units that may be written. What fails stays unfinished.
func (s *Store) send(ctx context.Context, ready []*work) {
	// 1. Those of one write fill requests together.
	var batches [][]*work
	var others []*work
	var now []*work
	size := 0
	for _, w := range ready {
		if !w.single() {
			others = append(others, w)
			continue
		}
		n := w.targets[0].size()
		if len(now) > 0 && (len(now) == batchWrites || size+n > batchBytes) {
			batches, now, size = append(batches, now), nil, 0
		}
		now, size = append(now, w), size+n
	}
	if len(now) > 0 {
		batches = append(batches, now)
	}
	// 2. All requests side by side.
	s.each(len(batches)+len(others), func(i int) {
		if i < len(batches) {
			s.sendBatch(ctx, batches[i])
			return
		}
		switch w := others[i-len(batches)]; {
		case w.outside():
			s.transact(ctx, w)
		default:
			_ = s.sendUnit(ctx, w, nil)
		}
	})
}

// sendBatch writes units of one write each.
func (s *Store) sendBatch(ctx context.Context, works []*work) {
	req := &pb.BatchWriteRequest{Database: s.database, Writes: make([]*pb.Write, len(works))}
	for i, w := range works {
		req.Writes[i] = s.encodeTarget(w, &w.targets[0])
	}
	var resp *pb.BatchWriteResponse
	err := s.request(ctx, func(ctx context.Context) (err error) {
		resp, err = s.client.BatchWrite(ctx, req)
		return err
	})
	if err == nil && (len(resp.GetStatus()) != len(works) || len(resp.GetWriteResults()) != len(works)) {
		err = status.Errorf(codes.Internal, "%d outcomes for %d writes", len(resp.GetStatus()), len(works))
	}
	for i, w := range works {
		if err != nil {
			s.react(w, judge(err), err, nil)
			continue
		}
		st := resp.GetStatus()[i]
		c := codes.Code(st.GetCode())
		v := judgeCode(c)
		if c == codes.Aborted {
			v = throttled // the platform's own answer about this one write: it lost, and was not applied
		}
		s.react(w, v, status.Error(c, st.GetMessage()), resp.GetWriteResults()[i:i+1])
	}
}

// sendUnit writes a unit in one commit, of a transaction if there is one, and reports whether the commit is known to
// have ended it.
func (s *Store) sendUnit(ctx context.Context, w *work, transaction []byte) (committed bool) {
	// 1. Large bodies, and what one commit does not take.
	if err := s.writeParts(ctx, w); err != nil {
		w.done(w.unknown(fmt.Errorf("write the parts of a large body: %w", err)))
		return false
	}
	if err := s.removeAhead(ctx, w); err != nil {
		w.done(w.unknown(fmt.Errorf("remove what is purged: %w", err)))
		return false
	}
	// 2. The commit.
	writes := s.commitWrites(w)
	if len(writes) == 0 {
		s.finish(w, nil)
		return false
	}
	var resp *pb.CommitResponse
	err := s.request(ctx, func(ctx context.Context) (err error) {
		resp, err = s.client.Commit(ctx, &pb.CommitRequest{Database: s.database, Writes: writes, Transaction: transaction})
		return err
	})
	s.react(w, judge(err), err, resp.GetWriteResults())
	return err == nil
}

// transact writes a unit that is conditional on runs which it does not write: read in a transaction, judge, commit.
func (s *Store) transact(ctx context.Context, w *work) {
	// 1. Everything that is not remembered, and the runs.
	var names []name
	for i := range w.targets {
		if s.recall(w, &w.targets[i]) == unknown {
			names = append(names, w.targets[i].name)
		}
	}
	for i := range w.fences {
		if w.fences[i].target < 0 {
			names = append(names, w.fences[i].run())
		}
	}
	var transaction []byte
	begin := &transaction
	if !w.writes() {
		begin = nil // a look is enough
	}
	heads, err := s.readHeads(ctx, names, begin)
	if err != nil {
		w.done(w.unknown(fmt.Errorf("read the runs that the unit is fenced by: %w", err)))
		if transaction != nil {
			s.rollback(ctx, transaction)
		}
		return
	}
	w.unread = false
	for i := range w.targets {
		if t := &w.targets[i]; t.knowledge == unknown {
			t.head, t.knowledge = heads[t.name], sure
		}
	}
	for i := range w.fences {
		if w.fences[i].target < 0 {
			w.fences[i].held = heads[w.fences[i].run()].attempt
		}
	}
	// 2. The outcome, or the commit. A transaction that is given up, or found nothing to write, holds its locks no longer.
	committed := s.decideOn(w) && s.sendUnit(ctx, w, transaction)
	if transaction != nil && !committed {
		s.rollback(ctx, transaction)
	}
}

func (s *Store) rollback(ctx context.Context, transaction []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	_ = s.request(ctx, func(ctx context.Context) error { // at worst the platform ends it, some seconds later
		return s.client.Rollback(ctx, &pb.RollbackRequest{Database: s.database, Transaction: transaction})
	})
}

// react takes the answer to a request that wrote a unit.
func (s *Store) react(w *work, v verdict, err error, results []*pb.WriteResult) {
	w.cause = err
	switch v {
	case applied:
		s.finish(w, results)
	case unmet:
		w.unread = true
		w.stales++
	case unclear:
		w.open, w.unread = true, true
		w.fails++
	case throttled:
		w.fails++
	case refused:
		if c := status.Code(err); !w.open && (c == codes.InvalidArgument || c == codes.OutOfRange) {
			err = fmt.Errorf("%w: the platform refuses it: %w", store.ErrInvalid, err)
		}
		w.done(w.unknown(err))
		s.dropParts(w)
	}
}

// finish is the success of a unit: what it wrote is remembered, what it replaced is gone.
func (s *Store) finish(w *work, results []*pb.WriteResult) {
	next := 0
	for i := range w.targets {
		t := &w.targets[i]
		if !t.sent() {
			continue
		}
		var result *pb.WriteResult
		if next < len(results) {
			result = results[next]
		}
		next++
		switch updated := result.GetUpdateTime(); {
		case t.deletes() || updated == nil:
			s.known.forget(t.name)
		default:
			s.known.put(t.name, t.after(w.token, updated.AsTime()))
		}
	}
	s.removeParts(w.later)
	w.done(nil)
}

var errOvertaken = errors.New("other writers changed its documents again and again")
