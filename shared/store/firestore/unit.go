package firestore

import (
	"fmt"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/internal/port"
)

// knowledge is where the head of a document is from.
type knowledge int

const (
	unknown knowledge = iota
	guess             // remembered, or what the write expects: the precondition will tell
	sure              // read for this unit
)

// target is a document that a unit writes, deletes or purges.
type target struct {
	name
	write     *store.Write // nil when it is purged
	head      head         // what is stored
	knowledge knowledge
	parts     int // that its new body is stored in; 0 for inline
}

// fence is a unit's fence; target is where the unit writes the run, -1 where it does not.
type fence struct {
	store.Fence
	target int
	held   int64 // attempt, read in the transaction
}

func (f *fence) run() name { return name{store.KindRun, f.Run} }

// work is a unit on its way to its outcome.
type work struct {
	unit     *store.Unit
	out      *error
	token    string
	targets  []target // the unit's writes, then what it purges
	fences   []fence
	finished bool

	unread        bool // nothing that is known of its documents counts
	open          bool // a request of it may have been applied
	fails, stales int
	cause         error // why it is not finished

	placed  bool     // its parts are written
	expires bool     // they carry an expiry, which the commit takes away
	later   []string // parts that are removed after the commit
}

func (s *Store) newWork(u *store.Unit, out *error) *work {
	w := &work{unit: u, out: out, token: s.token(u), targets: make([]target, len(u.Writes))}
	for i := range u.Writes {
		t := &u.Writes[i]
		w.targets[i] = target{name: name{t.Kind, t.ID}, write: t}
	}
	for _, f := range u.Fences {
		at := -1
		for i := range u.Writes {
			if u.Writes[i].Kind == store.KindRun && u.Writes[i].ID == f.Run {
				at = i
			}
		}
		w.fences = append(w.fences, fence{Fence: f, target: at})
	}
	w.divide()
	return w
}

func (w *work) done(err error) { *w.out, w.finished = err, true }

// unknown is the outcome when there is none that is certain.
func (w *work) unknown(cause error) error {
	if cause == nil {
		cause = errOvertaken
	}
	if !w.open {
		return fmt.Errorf("unit %.60q was not written: %w", w.unit.Token, cause)
	}
	return fmt.Errorf("unit %.60q: whether it was written is not known: %w", w.unit.Token, cause)
}

// adds reports whether the unit puts a document.
func (w *work) adds() bool {
	for i := range w.unit.Writes {
		if !w.unit.Writes[i].Delete {
			return true
		}
	}
	return false
}

// outside reports whether the unit is conditional on a run that it does not write.
func (w *work) outside() bool {
	for i := range w.fences {
		if w.fences[i].target < 0 {
			return true
		}
	}
	return false
}

// single reports whether the unit is one plain write.
func (w *work) single() bool {
	return len(w.targets) == 1 && !w.outside() && w.targets[0].sent() && w.targets[0].parts == 0 && w.targets[0].head.parts == 0
}

// writes reports whether anything is left to write.
func (w *work) writes() bool {
	for i := range w.targets {
		if w.targets[i].knowledge == unknown || w.targets[i].sent() {
			return true
		}
	}
	return false
}

func (w *work) allSure() bool {
	for i := range w.targets {
		if w.targets[i].write != nil && w.targets[i].knowledge != sure {
			return false
		}
	}
	return true
}

// recall finds what is known of a document before the store is asked.
func (s *Store) recall(w *work, t *target) knowledge {
	switch {
	case t.write == nil && !w.open: // its head came with the query
		t.knowledge = guess
	case w.unread:
		t.knowledge = unknown
	case t.knowledge == unknown:
		t.head, t.knowledge = s.remembered(t)
	}
	return t.knowledge
}

func (s *Store) remembered(t *target) (head, knowledge) {
	h, ok := s.known.get(t.name)
	switch {
	case t.write.Expect == 0:
		return head{}, guess
	case t.write.Expect == store.AnyVersion && ok:
		return h, guess
	case t.write.Expect == store.AnyVersion && !t.write.Delete:
		return head{}, guess // most are new; another is met by the precondition
	case ok && h.version == t.write.Expect:
		return h, guess
	}
	return head{}, unknown
}

// refusal judges the unit by what is known, and says where that is from.
func (w *work) refusal() (from knowledge, err error) {
	var guessed error
	note := func(err error, from knowledge) bool {
		if err != nil && guessed == nil {
			guessed = err
		}
		return err != nil && from == sure
	}
	for i := range w.fences {
		f, held, from := &w.fences[i], w.fences[i].held, sure
		if f.target >= 0 {
			held, from = w.targets[f.target].head.attempt, w.targets[f.target].knowledge
		}
		if err := port.JudgeFence(f.Fence, held); note(err, from) {
			return sure, err
		}
	}
	for i := range w.targets {
		t := &w.targets[i]
		if t.write == nil {
			continue
		}
		if err := port.JudgeWrite(t.write, t.head.version); note(err, t.knowledge) {
			return sure, err
		}
	}
	return guess, guessed
}

// found reports whether what was read shows that the unit was applied: a document that it put holds its token, also as
// that of the version before or of its creator, or, where it puts none, all that it deletes is gone. Who deleted it is
// not to be seen then; it is gone at the version that was asked for.
func (w *work) found() bool {
	puts := false
	for i := range w.targets {
		switch t := &w.targets[i]; {
		case !t.deletes():
			if puts = true; t.head.token == w.token || t.head.prior == w.token || t.head.first == w.token {
				return true
			}
		case t.head.version != 0:
			return false
		}
	}
	return !puts && len(w.targets) > 0
}

// absent reports whether what was read shows that the unit was not applied: a document stands at the version that the
// unit expects or at one that none has after the unit's own, or was created by another.
func (w *work) absent() bool {
	for i := range w.targets {
		t := &w.targets[i]
		switch {
		case t.write == nil, t.write.Expect == store.AnyVersion:
		case t.write.Expect == 0:
			return true // found would have met its creator
		case t.write.Delete && t.head.version == t.write.Expect:
			return true
		case !t.write.Delete && t.head.version != 0 && t.head.version <= t.write.Version:
			return true
		}
	}
	return false
}

func (t *target) deletes() bool { return t.write == nil || t.write.Delete }

// sent reports whether the target takes a write of the commit: what is not there need not be deleted.
func (t *target) sent() bool {
	return !t.deletes() || t.knowledge == unknown || t.head.version != 0
}

// size is at least the bytes of the write of an inline body.
func (t *target) size() int {
	const names = 700 // of the document, its fields and its token
	if t.deletes() {
		return names
	}
	d := &t.write.Doc
	n := names + len(d.ID) + len(d.Owner) + len(d.Tag)
	if t.parts == 0 {
		n += len(d.Body)
	}
	if x := d.Index; x != nil {
		n += len(x.Tenant) + len(x.Agent) + len(x.Parent) + len(x.Root) + len(x.Worker)
	}
	return n
}

// after is the head of the document once it is written.
func (t *target) after(token string, updated time.Time) head {
	h := head{version: t.write.Version, updated: updated, token: token, prior: t.head.token, first: t.head.first, parts: t.parts}
	if t.head.version == 0 {
		h.first = token
	}
	if t.write.Index != nil {
		h.attempt = t.write.Index.Attempt
	}
	return h
}

// encodeTarget makes the write of a target, conditional on what is known of it.
func (s *Store) encodeTarget(w *work, t *target) *pb.Write {
	out := &pb.Write{}
	if t.head.version == 0 {
		out.CurrentDocument = exists(false)
	} else {
		out.CurrentDocument = &pb.Precondition{ConditionType: &pb.Precondition_UpdateTime{UpdateTime: timestamppb.New(t.head.updated)}}
	}
	if t.deletes() {
		out.Operation = &pb.Write_Delete{Delete: s.path(t.name)}
		return out
	}
	out.Operation = &pb.Write_Update{Update: &pb.Document{Name: s.path(t.name), Fields: encode(&t.write.Doc, t.after(w.token, time.Time{}))}}
	return out
}

func exists(yes bool) *pb.Precondition {
	return &pb.Precondition{ConditionType: &pb.Precondition_Exists{Exists: yes}}
}
