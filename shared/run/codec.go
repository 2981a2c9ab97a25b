package run

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// The stored form of records and history. A run is written twice at least, and every byte of it passes the log of the
// store, so the form is a compact one: each field is its number and its value, absent when zero; a struct ends with
// number 0. Instants are told from the record's creation on, and a text that occurs again, or that is one of the
// kernel's own words, is a reference to it.
//
// Numbers of fields and the order of words are part of the form: new ones go to the end.

// format is the first byte of what is stored.
const format = 1

// words are texts that need not be stored.
var words = []string{
	"agent", "workflow", "job", "default",
	"queued", "held", "unschedulable", "assigned", "running", "waiting", "backoff", "suspended", "canceling", "compensating",
	"succeeded", "failed", "canceled",
	"submitted", "requeued", "startFailed", "started", "stopRequested", "released", "parked", "woken", "signaled",
	"backedOff", "cancelRequested", "resumed", "scored",
	"start-failed", "timer", "input", "children", "gate",
	"user", "infrastructure", "throttled", "timeout", "lost", "budget",
	"InputInvalid", "OutputInvalid", "PermissionDenied", "BudgetExceeded", "NoEligibleTarget", "QueueTimeout",
	"DeadlineExceeded", "AttemptTimeout", "HeartbeatLost", "CompensationFailed", "BackoffLimitExceeded",
	"MaxFailedIndexesExceeded", "AgentError", "NonRetryable", "OutcomeUnknown", "Rejected", "GateExpired", "Canceled",
	"ParentEnded", "RouteUnmatched", "LoopLimit", "Quarantined", "Shed", "StartFailed", "ResultTooLarge", "QuotaReached",
	"ConcurrencyReached", "AgentPaused", "NotBefore", "Suspended", "ReturnLimitExceeded", "AgentDeleted", "Throttled",
	"InfrastructureFailure",
}

var wordAt = func() map[string]int {
	at := make(map[string]int, len(words))
	for i, w := range words {
		at[w] = i
	}
	return at
}()

// Bounds on what is referred to: longer texts hardly occur twice, and a search must stay short.
const (
	maxShared      = 128 // bytes of a text
	maxSharedTexts = 48  // texts of one record
)

// writer appends fields. The zero value of a field is left out.
type writer struct {
	b     []byte
	base  Instant
	seen  [maxSharedTexts]string
	texts int // of seen
}

func (w *writer) tag(n byte) { w.b = append(w.b, n) }
func (w *writer) end()       { w.b = append(w.b, 0) }

func (w *writer) count(n byte, v int) {
	if v != 0 {
		w.tag(n)
		w.b = binary.AppendUvarint(w.b, uint64(v))
	}
}

func (w *writer) num(n byte, v int64) {
	if v != 0 {
		w.tag(n)
		w.b = binary.AppendVarint(w.b, v)
	}
}

func (w *writer) at(n byte, v Instant) {
	if v != 0 {
		w.tag(n)
		w.b = binary.AppendVarint(w.b, int64(v-w.base)) // may wrap; reading wraps back
	}
}

func (w *writer) float(n byte, v float64) {
	if v != 0 {
		w.tag(n)
		w.b = binary.LittleEndian.AppendUint64(w.b, math.Float64bits(v))
	}
}

func (w *writer) flag(n byte, v bool) {
	if v {
		w.tag(n)
	}
}

func (w *writer) bytes(n byte, v []byte) {
	if len(v) != 0 {
		w.tag(n)
		w.b = append(binary.AppendUvarint(w.b, uint64(len(v))), v...)
	}
}

func (w *writer) text(n byte, s string) {
	if s != "" {
		w.tag(n)
		w.string(s)
	}
}

// string appends a text: an even number is its length, an odd one refers to a word or to a text that came before.
func (w *writer) string(s string) {
	if len(s) <= maxShared {
		i, known := wordAt[s]
		if !known {
			if i = slices.Index(w.seen[:w.texts], s); i >= 0 {
				i, known = i+len(words), true
			}
		}
		if known {
			w.b = binary.AppendUvarint(w.b, uint64(i)<<1|1)
			return
		}
		if s != "" && w.texts < maxSharedTexts {
			w.seen[w.texts] = s
			w.texts++
		}
	}
	w.b = append(binary.AppendUvarint(w.b, uint64(len(s))<<1), s...)
}

// Encode gives the stored form of a record. The same record gives the same bytes.
func Encode(r *Record) []byte {
	size := 192 + 40*len(r.Tail) + len(r.Input.Inline) + 2*len(r.Output.Inline) + len(r.Detail)
	w := writer{b: make([]byte, 0, size), base: r.CreatedAt}
	w.b = append(w.b, format)
	w.b = binary.AppendVarint(w.b, int64(r.CreatedAt))
	w.record(r)
	return w.b
}

// EncodeEvents gives the stored form of a part of a history.
func EncodeEvents(events []Event) []byte {
	var base Instant
	if len(events) > 0 {
		base = events[0].At
	}
	w := writer{b: binary.AppendVarint([]byte{format}, int64(base)), base: base}
	w.events(1, events)
	w.end()
	return w.b
}

func (w *writer) record(r *Record) {
	w.spec(&r.Spec)
	w.num(31, r.Seq)
	w.text(32, string(r.State))
	w.text(33, string(r.Reason))
	w.text(34, r.Message)
	w.num(35, int64(r.Attempt))
	w.num(36, int64(r.Spent))
	w.num(37, int64(r.Returned))
	w.text(38, r.Target)
	w.text(39, r.Worker)
	w.at(40, r.QueuedAt)
	w.at(41, r.StartedAt)
	w.at(42, r.EndedAt)
	w.at(43, r.UpdatedAt)
	w.at(44, r.Due)
	w.payload(45, r.Output)
	w.park(46, r.Park)
	if s := r.Stop; s != nil {
		w.tag(47)
		w.text(1, string(s.Reason))
		w.text(2, string(s.Class))
		w.at(3, s.At)
		w.end()
	}
	w.count(48, len(r.Signals))
	for i := range r.Signals {
		w.signal(&r.Signals[i])
	}
	w.count(49, len(r.SigKeys))
	for _, k := range r.SigKeys {
		w.string(k)
	}
	w.usage(50, r.Usage)
	if r.Score != nil {
		w.tag(51)
		w.b = binary.LittleEndian.AppendUint64(w.b, math.Float64bits(*r.Score))
	}
	w.count(52, len(r.Attempts))
	for i := range r.Attempts {
		w.attempt(&r.Attempts[i])
	}
	w.events(53, r.Tail)
	// The decision stands in the event that made it, too: there it is read from where the tail has it.
	if at := slices.IndexFunc(r.Tail, func(e Event) bool { return sameBytes(e.Detail, r.Detail) }); at >= 0 && len(r.Detail) > 0 {
		w.count(55, at+1)
	} else {
		w.bytes(54, r.Detail)
	}
	w.end()
}

// sameBytes reports whether two values are one and the same memory, which spares the comparison where that matters.
func sameBytes(a, b []byte) bool {
	return len(a) == len(b) && len(a) > 0 && (&a[0] == &b[0] || string(a) == string(b))
}

func (w *writer) spec(s *Spec) {
	w.text(1, s.ID)
	w.text(2, string(s.Kind))
	w.text(3, s.Agent)
	w.text(4, s.Version)
	w.num(5, s.Revision)
	w.text(6, s.Tenant)
	w.num(7, int64(s.Priority))
	w.count(8, len(s.Labels))
	if len(s.Labels) > 0 {
		for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
			w.string(k)
			w.string(s.Labels[k])
		}
	}
	w.text(9, s.Key)
	w.text(10, s.Hash)
	w.text(11, s.Unit)
	w.payload(12, s.Input)
	w.at(13, s.NotBefore)
	w.at(14, s.Deadline)
	w.num(15, s.RetainFor)
	w.text(16, s.Parent)
	w.text(17, s.Root)
	w.text(18, s.Stage)
	w.text(19, s.RetryOf)
	w.text(20, s.Session)
	w.text(21, s.Trace)
	w.float(22, s.BudgetUSD)
	w.num(23, s.BudgetToken)
}

func (w *writer) payload(n byte, p Payload) {
	if p.Empty() && p.Size == 0 {
		return
	}
	w.tag(n)
	w.bytes(1, p.Inline)
	w.text(2, p.Ref)
	if p.Size != len(p.Inline) {
		w.num(3, int64(p.Size))
	}
	w.end()
}

func (w *writer) usage(n byte, u Usage) {
	if u == (Usage{}) {
		return
	}
	w.tag(n)
	w.num(1, u.InputTokens)
	w.num(2, u.OutputTokens)
	w.float(3, u.USD)
	w.end()
}

func (w *writer) park(n byte, p *Park) {
	if p == nil {
		return
	}
	w.tag(n)
	w.text(1, string(p.On))
	w.text(2, p.Step)
	w.text(3, p.Name)
	w.at(4, p.Until)
	w.num(5, int64(p.Seq))
	w.end()
}

func (w *writer) signal(s *Signal) {
	w.text(1, s.Name)
	w.text(2, s.Key)
	w.payload(3, s.Payload)
	w.end()
}

func (w *writer) attempt(a *Attempt) {
	w.num(1, int64(a.N))
	w.text(2, a.Target)
	w.node(3, 15, a.Node, a.Target, a.Worker)
	w.text(4, a.Worker)
	w.at(5, a.AssignedAt)
	w.at(6, a.StartedAt)
	w.at(7, a.EndedAt)
	w.text(8, string(a.Outcome))
	w.text(9, string(a.Class))
	w.text(10, a.Code)
	w.text(11, a.Message)
	if a.Usage != nil {
		w.flag(12, true) // a usage of zero was told, too
		w.usage(13, *a.Usage)
	}
	w.flag(14, a.Sure)
	w.end()
}

// node appends a name that is nearly always made of the two others, which a flag says.
func (w *writer) node(n, made byte, node, target, worker string) {
	if len(node) == len(target)+1+len(worker) && node == nodeOf(target, worker) {
		w.tag(made)
		return
	}
	w.text(n, node)
}

func nodeOf(target, worker string) string { return target + "/" + worker }

// events appends a list of events whose numbers follow each other.
func (w *writer) events(n byte, list []Event) {
	w.count(n, len(list))
	for i := range list {
		w.event(&list[i])
	}
}

func (w *writer) event(e *Event) {
	w.num(1, e.Seq)
	w.text(2, string(e.Type))
	w.at(3, e.At)
	w.num(4, int64(e.Attempt))
	w.text(5, e.Actor)
	w.text(6, e.Target)
	w.text(7, e.Worker)
	w.node(8, 24, e.Node, e.Target, e.Worker)
	w.text(9, string(e.Reason))
	w.text(10, string(e.Class))
	w.text(11, e.Code)
	w.text(12, e.Message)
	w.at(13, e.Due)
	w.bytes(14, e.Detail)
	if e.Output != nil {
		w.flag(15, true)
		w.payload(16, *e.Output)
	}
	if e.Usage != nil {
		w.flag(17, true)
		w.usage(18, *e.Usage)
	}
	w.park(19, e.Park)
	if e.Signal != nil {
		w.tag(20)
		w.signal(e.Signal)
	}
	if e.Score != nil {
		w.tag(21)
		w.b = binary.LittleEndian.AppendUint64(w.b, math.Float64bits(*e.Score))
	}
	w.flag(22, e.Unspent)
	w.flag(23, e.Sure)
	w.end()
}

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
	errUnknown = errors.New("a field that this program does not know")
	errLong    = errors.New("a list, a text or the whole is longer than it gets")
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

// tagTail is the first field that lists have no need of; see DecodeBrief.
const tagTail = 53

func (r *reader) recordField(x *Record, n byte) bool {
	switch n {
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
		default:
			return false
		}
		return true
	})
	return p
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
		default:
			return false
		}
		return true
	})
	if made {
		e.Node = nodeOf(e.Target, e.Worker)
	}
}
