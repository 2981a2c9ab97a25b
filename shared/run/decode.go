package run

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// reader takes fields apart. After a fault every further read gives zero values.
type reader struct {
	b     []byte
	base  Instant
	seen  [maxSharedTexts]string
	texts int // of seen
	err   error
}

var (
	errShort   = errors.New("it ends too early")
	errUnknown = errors.New("a field that this program does not know; a later version may have written it")
	errLong    = errors.New("a list, a text or the whole is longer than it gets")
	errNumber  = errors.New("a number that is none")
)

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err, r.b = err, nil
	}
}

// tag returns the next field's number, 0 at the end of a struct.
func (r *reader) tag() byte {
	if len(r.b) == 0 {
		r.fail(errShort)
		return 0
	}
	n := r.b[0]
	r.b = r.b[1:]
	return n
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) num() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads the length of a list of at most limit.
func (r *reader) count(limit int) int {
	n := r.uvarint()
	if n > uint64(limit) {
		r.fail(errLong)
		return 0
	}
	return int(n)
}

func (r *reader) at() Instant { return Instant(r.num()) + r.base }

func (r *reader) float() float64 {
	if len(r.b) < 8 {
		r.fail(errShort)
		return 0
	}
	v := math.Float64frombits(binary.LittleEndian.Uint64(r.b))
	r.b = r.b[8:]
	if math.IsNaN(v) || math.IsInf(v, 0) {
		r.fail(errNumber) // scores and money are finite; what is not equal to itself would not read back
		return 0
	}
	return v
}

// bytes returns the next bytes; they are part of what is read.
func (r *reader) bytes() []byte { return r.take(r.uvarint()) }

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail(errShort)
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) text() string {
	n := r.uvarint()
	if n&1 == 0 {
		s := string(r.take(n >> 1))
		if s != "" && len(s) <= maxShared && r.texts < maxSharedTexts {
			r.seen[r.texts] = s
			r.texts++
		}
		return s
	}
	switch i := n >> 1; {
	case i < uint64(len(words)):
		return words[i]
	case i-uint64(len(words)) < uint64(r.texts):
		return r.seen[i-uint64(len(words))]
	}
	r.fail(errShort)
	return ""
}

// each calls field for every field of a struct, until its end.
func (r *reader) each(field func(n byte) bool) {
	for n := r.tag(); n != 0; n = r.tag() {
		if !field(n) {
			r.fail(errUnknown)
		}
	}
}

// maxChunk bounds the events that are read from one document.
const maxChunk = 4096

// open checks the head of what was stored.
func (r *reader) open() {
	if len(r.b) == 0 || r.b[0] != format {
		r.fail(errors.New("it has another format"))
		return
	}
	r.b = r.b[1:]
	r.base = Instant(r.num())
}

// close refuses what follows the end.
func (r *reader) close() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail(errLong)
	}
	return r.err
}

// DecodeRecord reads the stored form. A record that it returns is coherent: every event either is refused by Decide or
// folds. Its values are parts of body.
func DecodeRecord(body []byte) (*Record, error) {
	if len(body) > MaxRecord {
		return nil, fmt.Errorf("decode run: %d bytes: %w", len(body), ErrCorrupt)
	}
	in := reader{b: body}
	in.open()
	rec := &Record{Spec: Spec{CreatedAt: in.base}}
	in.record(rec)
	if err := in.close(); err != nil {
		return nil, fmt.Errorf("decode run %q: %w: %w", Clip(rec.ID, MaxName), ErrCorrupt, err)
	}
	if what := rec.incoherent(); what != "" {
		return nil, fmt.Errorf("decode run %q in state %q at event %d: %s: %w", Clip(rec.ID, MaxName), Clip(string(rec.State), 64), rec.Seq, what, ErrCorrupt)
	}
	return rec, nil
}

// DecodeEvents reads the stored form of a part of a history.
func DecodeEvents(body []byte) ([]Event, error) {
	in := reader{b: body}
	in.open()
	var events []Event
	in.each(func(n byte) bool {
		if n == 1 {
			events = in.events()
		}
		return n == 1
	})
	if err := in.close(); err != nil {
		return nil, fmt.Errorf("decode history: %w: %w", ErrCorrupt, err)
	}
	return events, nil
}

func (r *reader) record(x *Record) {
	for n := r.tag(); n != 0; n = r.tag() {
		if !r.recordField(x, n) {
			r.fail(errUnknown)
		}
	}
}

// From tagTail to tagDetail are the fields that lists have no need of, at the end of a record; see DecodeBrief.
const tagTail, tagDetail = 53, 55

func (r *reader) recordField(x *Record, n byte) bool {
	switch n {
	case 29:
		x.Undoable = true
	case 30:
		x.Flow = r.text()
	case 31:
		x.Seq = r.num()
	case 32:
		x.State = State(r.text())
	case 33:
		x.Reason = Reason(r.text())
	case 34:
		x.Message = r.text()
	case 35:
		x.Attempt = int(r.num())
	case 36:
		x.Spent = int(r.num())
	case 37:
		x.Returned = int(r.num())
	case 38:
		x.Target = r.text()
	case 39:
		x.Worker = r.text()
	case 40:
		x.QueuedAt = r.at()
	case 41:
		x.StartedAt = r.at()
	case 42:
		x.EndedAt = r.at()
	case 43:
		x.UpdatedAt = r.at()
	case 44:
		x.Due = r.at()
	case 45:
		x.Output = r.payload()
	case 46:
		x.Park = r.park()
	case 47:
		x.Stop = r.stop()
	case 48:
		x.Signals = make([]Signal, r.count(MaxSignals))
		for i := range x.Signals {
			x.Signals[i] = r.signal()
		}
	case 49:
		x.SigKeys = make([]string, r.count(MaxSignals))
		for i := range x.SigKeys {
			x.SigKeys[i] = r.text()
		}
	case 50:
		x.Usage = r.usage()
	case 58:
		x.ForPeople = r.spans()
	case 59:
		x.ForRuns = r.wait()
	case 60:
		x.Moved = r.num()
	case 51:
		x.Score = new(r.float())
	case 52:
		x.Attempts = make([]Attempt, r.count(MaxAttempts))
		for i := range x.Attempts {
			x.Attempts[i] = r.attempt()
		}
	case tagTail:
		x.Tail = r.events()
	case 54:
		x.Detail = r.bytes()
	case 55:
		if i := r.count(len(x.Tail)) - 1; i >= 0 {
			x.Detail = x.Tail[i].Detail
		}
	default:
		return r.spec(&x.Spec, n)
	}
	return true
}

func (r *reader) spec(s *Spec, n byte) bool {
	switch n {
	case 1:
		s.ID = r.text()
	case 2:
		s.Kind = Kind(r.text())
	case 3:
		s.Agent = r.text()
	case 4:
		s.Version = r.text()
	case 5:
		s.Revision = r.num()
	case 6:
		s.Tenant = r.text()
	case 7:
		s.Priority = int(r.num())
	case 8:
		count := r.count(MaxLabels)
		s.Labels = make(map[string]string, count)
		for range count {
			k := r.text()
			s.Labels[k] = r.text()
		}
	case 9:
		s.Key = r.text()
	case 10:
		s.Hash = r.text()
	case 11:
		s.Unit = r.text()
	case 12:
		s.Input = r.payload()
	case 13:
		s.NotBefore = r.at()
	case 14:
		s.Deadline = r.at()
	case 15:
		s.RetainFor = r.num()
	case 16:
		s.Parent = r.text()
	case 17:
		s.Root = r.text()
	case 18:
		s.Stage = r.text()
	case 19:
		s.RetryOf = r.text()
	case 20:
		s.Session = r.text()
	case 21:
		s.Trace = r.text()
	case 22:
		s.BudgetUSD = r.float()
	case 23:
		s.BudgetToken = r.num()
	case 24:
		s.Item = int(r.num())
	case 25:
		s.Depth = int(r.num())
	case 26:
		for range r.count(MaxGroups) {
			s.Groups = append(s.Groups, Group{Key: r.text(), Max: int(r.num())})
		}
	case 27:
		s.Mode = r.text()
	case 28:
		s.Of = r.text()
	case 56:
		s.Latest = r.at()
	case 57:
		s.Requester = r.text()
	default:
		return false
	}
	return true
}

func (r *reader) payload() (p Payload) {
	sized := false
	r.each(func(n byte) bool {
		switch n {
		case 1:
			p.Inline = r.bytes()
		case 2:
			p.Ref = r.text()
		case 3:
			p.Size, sized = int(r.num()), true
		default:
			return false
		}
		return true
	})
	if !sized {
		p.Size = len(p.Inline)
	}
	return p
}

func (r *reader) usage() (u Usage) {
	r.each(func(n byte) bool {
		switch n {
		case 1:
			u.InputTokens = r.num()
		case 2:
			u.OutputTokens = r.num()
		case 3:
			u.USD = r.float()
		default:
			return false
		}
		return true
	})
	return u
}

func (r *reader) park() *Park {
	p := new(Park)
	r.each(func(n byte) bool {
		switch n {
		case 1:
			p.On = ParkOn(r.text())
		case 2:
			p.Step = r.text()
		case 3:
			p.Name = r.text()
		case 4:
			p.Until = r.at()
		case 5:
			p.Seq = int(r.num())
		case 6:
			p.Size = int(r.num())
		case 7:
			p.Tolerate = int(r.num())
		case 8:
			p.Need = int(r.num())
		case 9:
			p.Left = r.num()
		default:
			return false
		}
		return true
	})
	return p
}

func (r *reader) spans() Spans {
	list := make(Spans, r.count(MaxSpans))
	for i := range list {
		list[i] = Span{r.at(), r.at()}
	}
	return list
}

func (r *reader) wait() *Wait {
	x := new(Wait)
	r.each(func(n byte) bool {
		switch n {
		case 1:
			x.From = r.at()
		case 2:
			x.To = r.at()
		case 3:
			x.Step = r.text()
		case 4:
			x.Began = r.at()
		default:
			return false
		}
		return true
	})
	if x.Began == 0 {
		x.Began = x.From
	}
	return x
}

func (r *reader) stop() *Stop {
	s := new(Stop)
	r.each(func(n byte) bool {
		switch n {
		case 1:
			s.Reason = Reason(r.text())
		case 2:
			s.Class = Class(r.text())
		case 3:
			s.At = r.at()
		default:
			return false
		}
		return true
	})
	return s
}

func (r *reader) signal() (s Signal) {
	r.each(func(n byte) bool {
		switch n {
		case 1:
			s.Name = r.text()
		case 2:
			s.Key = r.text()
		case 3:
			s.Payload = r.payload()
		default:
			return false
		}
		return true
	})
	return s
}

func (r *reader) attempt() (a Attempt) {
	made := false
	r.each(func(n byte) bool {
		switch n {
		case 1:
			a.N = int(r.num())
		case 2:
			a.Target = r.text()
		case 3:
			a.Node = r.text()
		case 4:
			a.Worker = r.text()
		case 5:
			a.AssignedAt = r.at()
		case 6:
			a.StartedAt = r.at()
		case 7:
			a.EndedAt = r.at()
		case 8:
			a.Outcome = Outcome(r.text())
		case 9:
			a.Class = Class(r.text())
		case 10:
			a.Code = r.text()
		case 11:
			a.Message = r.text()
		case 12:
			a.Usage = new(Usage)
		case 13:
			a.Usage = new(r.usage())
		case 14:
			a.Sure = true
		case 15:
			made = true
		default:
			return false
		}
		return true
	})
	if made {
		a.Node = nodeOf(a.Target, a.Worker)
	}
	return a
}

func (r *reader) events() []Event {
	n := r.count(min(maxChunk, len(r.b)))
	list := make([]Event, n)
	for i := range list {
		r.event(&list[i])
	}
	return list
}

func (r *reader) event(e *Event) {
	made := false
	r.each(func(n byte) bool {
		switch n {
		case 1:
			e.Seq = r.num()
		case 2:
			e.Type = EventType(r.text())
		case 3:
			e.At = r.at()
		case 4:
			e.Attempt = int(r.num())
		case 5:
			e.Actor = r.text()
		case 6:
			e.Target = r.text()
		case 7:
			e.Worker = r.text()
		case 8:
			e.Node = r.text()
		case 9:
			e.Reason = Reason(r.text())
		case 10:
			e.Class = Class(r.text())
		case 11:
			e.Code = r.text()
		case 12:
			e.Message = r.text()
		case 13:
			e.Due = r.at()
		case 14:
			e.Detail = r.bytes()
		case 15:
			e.Output = new(Payload)
		case 16:
			e.Output = new(r.payload())
		case 17:
			e.Usage = new(Usage)
		case 18:
			e.Usage = new(r.usage())
		case 19:
			e.Park = r.park()
		case 20:
			e.Signal = new(r.signal())
		case 21:
			e.Score = new(r.float())
		case 22:
			e.Unspent = true
		case 23:
			e.Sure = true
		case 24:
			made = true
		case 25:
			e.Stage = r.text()
		case 26:
			e.ForPeople = r.spans()
		case 27:
			e.Deadline = r.at()
		default:
			return false
		}
		return true
	})
	if made {
		e.Node = nodeOf(e.Target, e.Worker)
	}
}
