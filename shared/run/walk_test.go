package run

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// eventTypes are those of the table.
var eventTypes = func() []EventType {
	var all []EventType
	for _, row := range Table {
		all = append(all, row.Event)
	}
	return all
}()

// anyEvent draws an event with anything in its fields: mostly one that the state admits, mostly one that does not lead
// to an end.
func anyEvent(t *rapid.T, r *Record, huge bool) Event {
	types := eventTypes
	if rapid.IntRange(0, 3).Draw(t, "fitting") > 0 {
		types = nil
		onward := rapid.IntRange(0, 3).Draw(t, "onward") > 0 && !r.State.Terminal()
		for _, row := range Table {
			ends := row.To.Terminal() || row.To == Canceling || row.To == Compensating
			if slices.Contains(row.From, r.State) && !(onward && ends && len(row.From) > 2) {
				types = append(types, row.Event)
			}
		}
	}
	text := func(label string, most int) string {
		switch n := rapid.IntRange(0, 9).Draw(t, label); {
		case huge && n > 3:
			return strings.Repeat(`"`, most)
		case n == 0:
			return ""
		default:
			return label
		}
	}
	value := func(label string, most int) Payload {
		if huge {
			return Payload{Inline: json.RawMessage(`"` + strings.Repeat("x", most-2) + `"`), Size: most}
		}
		return Payload{Inline: json.RawMessage(`{"<v>":1}`), Size: 9}
	}
	some := func(label string) bool { return rapid.IntRange(0, 2).Draw(t, label) > 0 }

	e := Event{
		Type:    rapid.SampledFrom(types).Draw(t, "type"),
		At:      r.UpdatedAt.Add(time.Duration(rapid.IntRange(-2000, 5000).Draw(t, "at")) * time.Millisecond),
		Attempt: rapid.SampledFrom([]int{r.Attempt, r.Attempt, r.Attempt, r.Attempt + 1, r.Attempt - 1, 0}).Draw(t, "attempt"),
		Reason:  rapid.SampledFrom([]Reason{"", AgentError, AttemptTimeout}).Draw(t, "reason"),
		Class:   rapid.SampledFrom(append(Classes, "")).Draw(t, "class"),
		Actor:   text("actor", MaxName), Target: text("target", MaxName), Worker: text("worker", MaxName),
		Node: text("node", MaxName), Code: text("code", MaxName), Message: text("message", 3*MaxMessage),
		Due:     Instant(rapid.Int64Range(0, int64(t0)).Draw(t, "due")),
		Unspent: rapid.Bool().Draw(t, "unspent"), Sure: rapid.Bool().Draw(t, "sure"),
	}
	if e.Type == EvAssigned && some("next") {
		e.Attempt = r.Attempt + 1
	}
	if some("hasDetail") {
		e.Detail = value("detail", MaxDetail).Inline
	}
	if some("hasOutput") {
		output := value("output", MaxInline)
		e.Output = &output
	}
	if some("hasUsage") {
		e.Usage = &Usage{rapid.Int64Range(0, MaxTokens).Draw(t, "tokens"), 7, rapid.Float64Range(0, MaxUSD).Draw(t, "usd")}
	}
	if some("hasPark") {
		e.Park = &Park{On: OnInput, Step: text("step", MaxName), Name: text("name", MaxName)}
		if rapid.Bool().Draw(t, "atGate") {
			e.Park.On, e.Park.Left = OnGate, 5000
		}
	}
	if some("hasForPeople") {
		for i := range rapid.IntRange(1, MaxSpans).Draw(t, "spans") {
			from := r.UpdatedAt + Instant(10*i)
			e.ForPeople = append(e.ForPeople, Span{from, from + 7})
		}
		e.Deadline = r.UpdatedAt + 99
	}
	if some("hasSignal") {
		e.Signal = &Signal{Name: "go" + text("signal", MaxName-2), Key: text("key", MaxName), Payload: value("payload", 2000)}
		if rapid.Bool().Draw(t, "freshKey") {
			e.Signal.Key = rapid.StringMatching(`[a-z]{12}`).Draw(t, "keyText")
		}
	}
	if some("hasScore") {
		score := rapid.Float64Range(0, 1).Draw(t, "score")
		e.Score = &score
	}
	return e
}

// same compares records: a list is equal to the list read back, values byte by byte.
var same = cmp.Options{
	cmp.FilterValues(func(a, b json.RawMessage) bool { return len(a)+len(b) > 0 }, cmp.Comparer(func(a, b json.RawMessage) bool { return string(a) == string(b) })),
	cmpopts.EquateEmpty(),
}

func encoded(t *rapid.T, r *Record) string {
	t.Helper()
	body := Encode(r)
	return string(body)
}

// checkStep holds one folded event against what must be true of every one.
func checkStep(t *rapid.T, before, after *Record, e Event) {
	t.Helper()
	row := byEvent[e.Type]
	switch {
	case e.Seq != before.Seq+1 || after.Seq != e.Seq:
		t.Fatalf("event %d follows %d", e.Seq, before.Seq)
	case e.At < before.UpdatedAt || after.UpdatedAt != e.At:
		t.Fatalf("time ran from %d to %d", before.UpdatedAt, e.At)
	case before.State.Terminal() && (e.Type != EvScored || after.State != before.State):
		t.Fatalf("%s left %s", e.Type, before.State)
	case row.To != "" && after.State != row.To, row.To == "" && after.State != before.State:
		t.Fatalf("%s led from %s to %s", e.Type, before.State, after.State)
	case e.Type == EvAssigned && after.Attempt != before.Attempt+1, e.Type != EvAssigned && after.Attempt != before.Attempt:
		t.Fatalf("%s took the attempt from %d to %d", e.Type, before.Attempt, after.Attempt)
	case after.Spent < 0 || after.Returned < before.Returned:
		t.Fatalf("%s: spent %d, returned %d after %d", e.Type, after.Spent, after.Returned, before.Returned)
	case row.Fenced && e.Attempt != before.Attempt && (e.Type != EvSucceeded || e.Attempt != 0 || before.Kind == KindAgent || before.Live()):
		t.Fatalf("%s of attempt %d happened to attempt %d", e.Type, e.Attempt, before.Attempt)
	case e.Attempt != 0 && e.Type != EvAssigned && e.Attempt != before.Attempt:
		t.Fatalf("%s spoke for attempt %d at attempt %d", e.Type, e.Attempt, before.Attempt)
	}
	if what := after.incoherent(); what != "" {
		t.Fatalf("after %s in %s: %s", e.Type, before.State, what)
	}
	if h := after.Holder(); h != 0 && (h != after.Attempt || after.Target == "") {
		t.Fatalf("attempt %d holds a run whose attempt is %d on %q", h, after.Attempt, after.Target)
	}
	if body := EncodeEvents([]Event{e}); len(body) > e.weight() {
		t.Fatalf("%s takes %d bytes, its weight is %d", e.Type, len(body), e.weight())
	}
}

// Whatever happens to a run in whatever order: the kernel never panics, refuses without changing anything, and what it
// admits keeps the promises of the record.
func TestAnyWalkKeepsTheRecordWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		huge := rapid.IntRange(0, 9).Draw(t, "huge") == 0
		spec := Spec{ID: "r1", Tenant: "acme", Agent: "checker", CreatedAt: t0, Latest: t0 + 99_000, Requester: "rita", Input: Payload{Inline: json.RawMessage(`1`), Size: 1}}
		spec.Kind = rapid.SampledFrom([]Kind{KindAgent, KindAgent, KindWorkflow}).Draw(t, "kind")
		r := New(spec, Event{Type: EvSubmitted, At: t0, Due: t0 + 1000})
		var history []Event
		for i := range 30 {
			e := anyEvent(t, r, huge)
			if err := Decide(r, &e); err != nil {
				var state *StateError
				if !errors.Is(err, ErrFenced) && !errors.As(err, &state) && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrSignalSeen) {
					t.Fatalf("refused for no known kind of reason: %v", err)
				}
				continue
			}
			before := r.Clone()
			deep := i%10 == 0 // what takes long is not done at every step
			twin, snapshot := r.Clone(), ""
			if deep {
				score := 1.0
				Evolve(twin, Event{Type: EvScored, Score: &score})
				snapshot = encoded(t, twin)
			}
			written := Evolve(r, e)
			checkStep(t, before, r, written)
			if deep && encoded(t, twin) != snapshot {
				t.Fatalf("%s on a record changed its clone", e.Type)
			}
			if spilled := Spill(r); spilled != nil {
				history = append(history, spilled...)
			}
			body := encoded(t, r)
			if len(body) > MaxRecord || len(r.Tail) > MaxTail {
				t.Fatalf("record of %d bytes with %d events", len(body), len(r.Tail))
			}
			if !deep {
				continue
			}
			again, err := DecodeRecord([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r, again, same); diff != "" {
				t.Fatalf("the stored form lost something (-before +after):\n%s", diff)
			}
		}
		folded, err := Fold(spec, append(history, r.Tail...))
		if err != nil {
			t.Fatal(err)
		}
		r.Tail = nil
		if diff := cmp.Diff(r, folded, same); diff != "" {
			t.Fatalf("history does not fold to the record (-record +folded):\n%s", diff)
		}
	})
}

// An attempt that lost the run, or was told to end, changes nothing by anything that it can report.
func TestAFencedAttemptChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := New(Spec{ID: "r1", Tenant: "acme", Agent: "checker"}, Event{Type: EvSubmitted, At: t0})
		for range 20 {
			e := anyEvent(t, r, false)
			for _, report := range []EventType{EvStarted, EvParked, EvReleased, EvSucceeded, EvBackedOff, EvFailed, EvStartFailed, EvCanceled, EvCompensating} {
				late := e
				late.Type = report
				late.Attempt = rapid.IntRange(1, r.Attempt+2).Draw(t, "late")
				lost := late.Attempt != r.Attempt || (byEvent[report].Fenced && !r.Live())
				word := report == EvStarted || report == EvParked || report == EvReleased || report == EvSucceeded
				stopped := word && r.Stop != nil && r.State != Canceling
				if err := Decide(r, &late); (lost || stopped) && !errors.Is(err, ErrFenced) {
					t.Fatalf("attempt %d reports %s to a run that is %s in attempt %d: %v", late.Attempt, report, r.State, r.Attempt, err)
				}
			}
			if Decide(r, &e) == nil {
				Evolve(r, e)
			}
		}
	})
}

func TestARecordAtAllItsLimitsCanBeWritten(t *testing.T) {
	quotes := func(n int) string { return strings.Repeat(`"`, n) }
	number := func(i, n int) string { return string(rune('a'+i%26)) + string(rune('a'+i/26)) + quotes(n-2) }
	largest := json.RawMessage(`"` + strings.Repeat("<", MaxInline-2) + `"`)
	spec := Spec{
		ID: quotes(MaxName), Agent: quotes(MaxName), Tenant: quotes(MaxName), Version: quotes(MaxName), Key: quotes(MaxKey),
		Hash: quotes(MaxName), Unit: quotes(MaxKey), Parent: quotes(MaxName), Root: quotes(MaxName), Stage: quotes(MaxName),
		RetryOf: quotes(MaxName), Session: quotes(MaxName), Trace: quotes(MaxKey), Input: Payload{Inline: largest, Size: MaxInline},
		Priority: 100, CreatedAt: t0, NotBefore: maxInstant, Deadline: maxInstant, RetainFor: 1<<63 - 1, BudgetUSD: MaxUSD, BudgetToken: MaxTokens,
		Labels: map[string]string{},
	}
	for i := range MaxLabels {
		spec.Labels[number(i, 64)] = quotes(MaxLabelBytes/MaxLabels - 64)
	}
	if err := spec.Validate(); err != nil {
		t.Fatal(err)
	}
	r := New(spec, Event{Type: EvSubmitted, At: t0})
	do := func(e Event) {
		t.Helper()
		e.At, e.Due, e.Reason, e.Class = t0+1, maxInstant, BackoffLimitExceeded, ClassInfrastructure
		e.Actor, e.Node, e.Worker, e.Code, e.Message = quotes(MaxName), quotes(MaxName), quotes(MaxName), quotes(MaxName), quotes(MaxMessage)
		if err := Decide(r, &e); err != nil {
			t.Fatal(err)
		}
		Evolve(r, e)
		Spill(r)
		body := Encode(r)
		if len(body) > MaxRecord {
			t.Fatalf("after %s the record has %d bytes, the limit is %d", e.Type, len(body), MaxRecord)
		}
	}
	detail := json.RawMessage(`"` + strings.Repeat(" ", MaxDetail-2) + `"`)
	usage := &Usage{MaxTokens, MaxTokens, MaxUSD / 3}
	// 1. As many signals, and keys of them, as it can remember.
	for i := 0; ; i++ {
		e := Event{Type: EvSignaled, At: t0, Signal: &Signal{Name: number(i, 40), Key: number(i, 41)}}
		if err := Decide(r, &e); errors.Is(err, ErrTooLarge) {
			break
		}
		do(e)
	}
	// 2. As many attempts as it lists.
	for n := 1; n <= MaxAttempts+1; n++ {
		do(Event{Type: EvAssigned, Attempt: n, Target: quotes(MaxName), Detail: detail})
		do(Event{Type: EvStarted, Attempt: n})
		if n <= MaxAttempts {
			do(Event{Type: EvBackedOff, Attempt: n, Usage: usage})
			do(Event{Type: EvRequeued})
		}
	}
	// 3. The largest output.
	score := 1.0 / 3
	do(Event{Type: EvSucceeded, Attempt: MaxAttempts + 1, Usage: usage, Score: &score, Output: &Payload{Inline: largest, Size: MaxInline}})
	if again, err := DecodeRecord(Encode(r)); err != nil || len(again.Output.Inline) != MaxInline {
		t.Errorf("read back: %v", err)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	r := New(Spec{ID: "r1", Tenant: "acme", Agent: "checker"}, Event{Type: EvSubmitted, At: t0})
	add := func() {
		f.Add(Encode(r))
	}
	add()
	for _, e := range []Event{
		{Type: EvAssigned, Attempt: 1, Target: "t"}, {Type: EvStarted, Attempt: 1},
		{Type: EvParked, Attempt: 1, Park: &Park{On: OnInput, Step: "s", Name: "go"}},
		{Type: EvSignaled, Signal: &Signal{Name: "go", Key: "k"}}, {Type: EvWoken, Signal: &Signal{Name: "go"}},
		{Type: EvAssigned, Attempt: 2, Target: "t"}, {Type: EvStarted, Attempt: 2}, {Type: EvStopRequested, Attempt: 2, Class: ClassTimeout},
		{Type: EvCancelRequested}, {Type: EvCompensating}, {Type: EvCanceled},
	} {
		if err := Decide(r, &e); err != nil {
			f.Fatal(err)
		}
		Evolve(r, e)
		add()
	}
	f.Add([]byte{format, 2, 1, 2, 'x', 32, 17, 31, 2, 43, 2, 0})
	score := 0.5
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := DecodeRecord(body)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error without ErrCorrupt: %v", err)
			}
			return
		}
		// What was read is coherent: whatever happens to it next leaves a record that can be read again.
		for _, et := range eventTypes {
			next := r.Clone()
			e := Event{
				Type: et, Attempt: r.Attempt, Target: "t", Reason: AgentError, Score: &score,
				Signal: &Signal{Name: "s"}, Park: &Park{On: OnTimer}, Usage: &Usage{1, 2, 3}, Output: &Payload{},
			}
			if et == EvAssigned {
				e.Attempt++
			}
			if Decide(next, &e) != nil {
				continue
			}
			Evolve(next, e)
			Spill(next)
			if _, err := DecodeRecord(Encode(next)); err != nil {
				t.Fatalf("%s made of %s a record that cannot be read: %v", et, body, err)
			}
		}
		r.WakeAt()
		r.Holder()
	})
}
