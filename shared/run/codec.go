package run

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
)

// The stored form of records and history. A run is written twice at least, and every byte of it passes the log of the
// store, so the form is a compact one: each field is its number and its value, absent when zero; a struct ends with
// number 0. Instants are told from the record's creation on, and a text that occurs again, or that is one of the
// kernel's own words, is a reference to it.
//
// Numbers of fields and the words are part of the form: new fields get new numbers, and there are no new words, for texts
// that came before are numbered behind them.

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
	w.flag(29, r.Undoable)
	w.text(30, r.Flow)
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
	w.spans(58, r.ForPeople)
	if x := r.ForRuns; x != nil {
		w.tag(59)
		w.at(1, x.From)
		w.at(2, x.To)
		w.text(3, x.Step)
		if x.Began != x.From {
			w.at(4, x.Began)
		}
		w.end()
	}
	w.num(60, r.Moved)
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
	w.num(24, int64(s.Item))
	w.num(25, int64(s.Depth))
	w.count(26, len(s.Groups))
	for _, g := range s.Groups {
		w.string(g.Key)
		w.b = binary.AppendVarint(w.b, int64(g.Max))
	}
	w.text(27, s.Mode)
	w.text(28, s.Of)
	w.at(56, s.Latest)
	w.text(57, s.Requester)
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
	w.num(6, int64(p.Size))
	w.num(7, int64(p.Tolerate))
	w.num(8, int64(p.Need))
	w.num(9, p.Left)
	w.end()
}

func (w *writer) spans(n byte, list Spans) {
	w.count(n, len(list))
	for _, s := range list {
		w.b = binary.AppendVarint(w.b, int64(s.From-w.base)) // may wrap, as every instant
		w.b = binary.AppendVarint(w.b, int64(s.To-w.base))
	}
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
	w.text(25, e.Stage)
	w.spans(26, e.ForPeople)
	w.at(27, e.Deadline)
	w.end()
}
