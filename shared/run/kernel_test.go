package run

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Events that many stories need. Times are given by tell.
var (
	assigned  = Event{Type: EvAssigned, Attempt: 1, Target: "t1", Worker: "w1"}
	started   = Event{Type: EvStarted, Attempt: 1}
	stopped   = Event{Type: EvStopRequested, Attempt: 1, Class: ClassTimeout, Reason: AttemptTimeout}
	parked    = Event{Type: EvParked, Attempt: 1, Park: &Park{On: OnInput, Step: "s", Name: "go"}}
	woken     = Event{Type: EvWoken}
	backedOff = Event{Type: EvBackedOff, Attempt: 1, Class: ClassUser, Code: "E1", Message: "broken", Due: t0 + 9000}
	requeued  = Event{Type: EvRequeued}
	succeeded = Event{Type: EvSucceeded, Attempt: 1}
	canceling = Event{Type: EvCancelRequested, Reason: CanceledByRequest}
	signaled  = Event{Type: EvSignaled, Signal: &Signal{Name: "go", Key: "k1"}}
)

// tell folds a story, one second to each event, into a new run.
func tell(t *testing.T, kind Kind, story ...Event) *Record {
	t.Helper()
	r := New(Spec{ID: "r1", Tenant: "acme", Agent: "checker", Kind: kind}, Event{Type: EvSubmitted, At: t0})
	for i, e := range story {
		if e.At == 0 {
			e.At = t0.Add(time.Duration(i+1) * time.Second)
		}
		if err := Decide(r, &e); err != nil {
			t.Fatalf("event %d, %s: %v", i+1, e.Type, err)
		}
		Evolve(r, e)
	}
	return r
}

func as(e Event, change func(*Event)) Event { change(&e); return e }

func TestDecide(t *testing.T) {
	second := as(assigned, func(e *Event) { e.Attempt = 2 })
	ended := Event{Type: EvFailed, Reason: DeadlineExceeded}
	score := 0.5
	for name, c := range map[string]struct {
		kind  Kind
		story []Event
		e     Event
		want  error // nil: it is admitted
	}{
		"a run is placed from the queue":                       {"", nil, assigned, nil},
		"attempt numbers begin at one":                         {"", nil, second, ErrFenced},
		"attempt numbers rise by one":                          {"", []Event{assigned, started, backedOff, requeued}, second, nil},
		"attempt numbers never repeat":                         {"", []Event{assigned, started, backedOff, requeued}, assigned, ErrFenced},
		"a run is not placed twice":                            {"", []Event{assigned}, second, ErrState},
		"a run is not submitted twice":                         {"", nil, Event{Type: EvSubmitted, At: t0}, ErrState},
		"the live attempt starts":                              {"", []Event{assigned}, started, nil},
		"another does not":                                     {"", []Event{assigned}, as(started, func(e *Event) { e.Attempt = 2 }), ErrFenced},
		"an attempt does not succeed before it starts":         {"", []Event{assigned}, succeeded, ErrState},
		"the live attempt succeeds":                            {"", []Event{assigned, started}, succeeded, nil},
		"a report without a number is nobody's":                {"", []Event{assigned, started}, Event{Type: EvSucceeded}, ErrFenced},
		"a late report of the attempt before is fenced":        {"", []Event{assigned, started, backedOff, requeued, second}, succeeded, ErrFenced},
		"a late failure of it is fenced too":                   {"", []Event{assigned, started, backedOff, requeued, second}, as(ended, func(e *Event) { e.Attempt = 1 }), ErrFenced},
		"a failure that speaks for no attempt needs no number": {"", []Event{assigned, started}, ended, nil},
		"a failure may speak for the live attempt":             {"", []Event{assigned, started}, as(ended, func(e *Event) { e.Attempt = 1 }), nil},
		"or for the newest one after it ended":                 {"", []Event{assigned, started, parked}, as(ended, func(e *Event) { e.Attempt = 1 }), nil},
		"a parked attempt cannot succeed any more":             {"", []Event{assigned, started, parked}, succeeded, ErrFenced},
		"an agent's run does not succeed while it waits":       {"", []Event{assigned, started, parked}, Event{Type: EvSucceeded}, ErrFenced},
		"a workflow does":                                      {KindWorkflow, []Event{{Type: EvBegan}}, Event{Type: EvSucceeded}, nil},
		"a workflow is never assigned":                         {KindWorkflow, nil, assigned, ErrState},
		"a workflow waits without an attempt":                  {KindWorkflow, []Event{{Type: EvBegan}, {Type: EvParked, Park: &Park{On: OnGate, Name: "g"}}}, Event{Type: EvBegan}, nil},
		"an agent's run does not begin as a workflow does":     {KindAgent, nil, Event{Type: EvBegan}, ErrFenced},
		"an attempt that is told to end cannot succeed":        {"", []Event{assigned, started, stopped}, succeeded, ErrFenced},
		"nor start":             {"", []Event{assigned, stopped}, started, ErrFenced},
		"nor park":              {"", []Event{assigned, started, stopped}, parked, ErrFenced},
		"nor hand the run back": {"", []Event{assigned, started, stopped}, Event{Type: EvReleased, Attempt: 1}, ErrFenced},
		"it can be given up":    {"", []Event{assigned, started, stopped}, backedOff, nil},
		"a start that failed goes back to the queue":            {"", []Event{assigned}, Event{Type: EvStartFailed, Attempt: 1}, nil},
		"after the start it cannot fail to start":               {"", []Event{assigned, started}, Event{Type: EvStartFailed, Attempt: 1}, ErrState},
		"a queued run has no attempt to report":                 {"", nil, succeeded, ErrFenced},
		"a run that is being canceled does not succeed":         {"", []Event{assigned, started, canceling}, succeeded, ErrState},
		"its attempt may say that it ended":                     {"", []Event{assigned, started, canceling}, Event{Type: EvCanceled, Attempt: 1}, nil},
		"it is not canceled twice":                              {"", []Event{canceling}, canceling, ErrState},
		"a finished run takes no event":                         {"", []Event{ended}, requeued, ErrState},
		"but a score":                                           {"", []Event{ended}, Event{Type: EvScored, Score: &score}, nil},
		"an unknown event is none":                              {"", nil, Event{Type: "exploded"}, ErrInvalid},
		"a signal with a seen key is told from a new one":       {"", []Event{signaled}, signaled, ErrSignalSeen},
		"also after it was taken":                               {"", []Event{signaled, assigned, started, parked, as(woken, func(e *Event) { e.Signal = &Signal{Name: "go"} })}, signaled, ErrSignalSeen},
		"a signal without a key is always new":                  {"", []Event{{Type: EvSignaled, Signal: &Signal{Name: "go"}}}, Event{Type: EvSignaled, Signal: &Signal{Name: "go"}}, nil},
		"a signal larger than the record has room for":          {"", nil, Event{Type: EvSignaled, Signal: &Signal{Name: "go", Payload: inline(`"` + strings.Repeat("x", MaxSignalBytes) + `"`)}}, ErrTooLarge},
		"a finished run takes no signal":                        {"", []Event{ended}, signaled, ErrState},
		"a signal without a name":                               {"", nil, Event{Type: EvSignaled, Signal: &Signal{}}, ErrInvalid},
		"a signal event without a signal":                       {"", nil, Event{Type: EvSignaled}, ErrInvalid},
		"an assignment without a target":                        {"", nil, Event{Type: EvAssigned, Attempt: 1}, ErrInvalid},
		"a park without what it waits for":                      {"", []Event{assigned, started}, Event{Type: EvParked, Attempt: 1}, ErrInvalid},
		"a park on nothing known":                               {"", []Event{assigned, started}, Event{Type: EvParked, Attempt: 1, Park: &Park{On: "luck"}}, ErrInvalid},
		"a score without a number":                              {"", nil, Event{Type: EvScored}, ErrInvalid},
		"a score that is no number":                             {"", nil, Event{Type: EvScored, Score: new(math.NaN())}, ErrInvalid},
		"a score above one":                                     {"", nil, Event{Type: EvScored, Score: new(1.01)}, ErrInvalid},
		"a failure without a reason":                            {"", nil, Event{Type: EvFailed}, ErrInvalid},
		"a hold without a reason":                               {"", nil, Event{Type: EvHeld}, ErrInvalid},
		"a reason outside the closed set":                       {"", nil, Event{Type: EvFailed, Reason: "BadLuck"}, ErrInvalid},
		"a class outside the closed set":                        {"", nil, as(ended, func(e *Event) { e.Class = "odd" }), ErrInvalid},
		"a code over the limit":                                 {"", nil, as(ended, func(e *Event) { e.Code = strings.Repeat("c", MaxName+1) }), ErrTooLarge},
		"a code with a control character":                       {"", nil, as(ended, func(e *Event) { e.Code = "E\x1b[31m" }), ErrInvalid},
		"an actor that is no text":                              {"", nil, as(ended, func(e *Event) { e.Actor = "\xff" }), ErrInvalid},
		"a detail over the limit":                               {"", nil, as(assigned, func(e *Event) { e.Detail = json.RawMessage(strings.Repeat("1", MaxDetail+1)) }), ErrTooLarge},
		"a detail that is not JSON":                             {"", nil, as(assigned, func(e *Event) { e.Detail = json.RawMessage("{") }), ErrInvalid},
		"an output over the limit":                              {"", []Event{assigned, started}, as(succeeded, func(e *Event) { e.Output = &Payload{Inline: json.RawMessage(strings.Repeat("1", MaxInline+1))} }), ErrTooLarge},
		"an output that is not JSON":                            {"", []Event{assigned, started}, as(succeeded, func(e *Event) { e.Output = &Payload{Inline: json.RawMessage("nope")} }), ErrInvalid},
		"an output that is larger than a payload may be":        {"", []Event{assigned, started}, as(succeeded, func(e *Event) { e.Output = &Payload{Ref: "p", Size: MaxPayload + 1} }), ErrTooLarge},
		"negative tokens":                                       {"", []Event{assigned, started}, as(succeeded, func(e *Event) { e.Usage = &Usage{InputTokens: -1} }), ErrInvalid},
		"infinite costs":                                        {"", []Event{assigned, started}, as(succeeded, func(e *Event) { e.Usage = &Usage{USD: math.Inf(1)} }), ErrInvalid},
		"a message over the limit is cut instead":               {"", nil, as(ended, func(e *Event) { e.Message = strings.Repeat("m", 10*MaxMessage) }), nil},
		"a fenced report is told so before its faults are":      {"", nil, as(succeeded, func(e *Event) { e.Code = strings.Repeat("c", MaxName+1) }), ErrFenced},
		"a state that does not admit it is told before as well": {"", []Event{ended}, as(signaled, func(e *Event) { e.Signal = nil }), ErrState},
	} {
		t.Run(name, func(t *testing.T) {
			r := tell(t, c.kind, c.story...)
			err := Decide(r, &c.e)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("error is %v, want %v", err, c.want)
			}
			if err != nil && (len(err.Error()) > 500 || !utf8.ValidString(err.Error())) {
				t.Errorf("error of %d bytes: %q", len(err.Error()), err)
			}
		})
	}
}

func TestBeforeTheFirstEvent(t *testing.T) {
	if err := Decide(nil, &Event{Type: EvSubmitted, At: t0}); err != nil {
		t.Errorf("submitted: %v", err)
	}
	if err := Decide(nil, &Event{Type: EvSubmitted}); !errors.Is(err, ErrInvalid) {
		t.Errorf("submitted at no time: %v", err)
	}
	if err := Decide(nil, &assigned); !errors.Is(err, ErrState) {
		t.Errorf("assigned: %v", err)
	}
}

// counts is what a story leaves of a run's attempts.
type counts struct {
	Attempt, Spent, Returned int
	Holder                   int
	Live                     bool
	Outcome                  Outcome // of the newest attempt
}

func TestWhatAttemptsCost(t *testing.T) {
	unspent := as(backedOff, func(e *Event) { e.Unspent = true })
	for name, c := range map[string]struct {
		story []Event
		want  counts
	}{
		"an assigned attempt holds the run and spent nothing":   {[]Event{assigned}, counts{1, 0, 0, 1, true, ""}},
		"it is spent when it starts":                            {[]Event{assigned, started}, counts{1, 1, 0, 1, true, ""}},
		"one that is told to end lives and holds nothing":       {[]Event{assigned, started, stopped}, counts{1, 1, 0, 0, true, ""}},
		"one that failed stays spent":                           {[]Event{assigned, started, backedOff}, counts{1, 1, 0, 0, false, OutcomeFailed}},
		"one that failed through no fault of its own does not":  {[]Event{assigned, started, unspent}, counts{1, 0, 1, 0, false, OutcomeFailed}},
		"one that failed before its start is given back":        {[]Event{assigned, backedOff}, counts{1, 0, 1, 0, false, OutcomeFailed}},
		"once, also when it was to be anyway":                   {[]Event{assigned, unspent}, counts{1, 0, 1, 0, false, OutcomeFailed}},
		"one whose start failed is given back":                  {[]Event{assigned, {Type: EvStartFailed, Attempt: 1}}, counts{1, 0, 1, 0, false, OutcomeStartFailed}},
		"one that is handed back is given back":                 {[]Event{assigned, started, {Type: EvReleased, Attempt: 1}}, counts{1, 0, 1, 0, false, OutcomeReleased}},
		"one that parks costs nothing and is not counted":       {[]Event{assigned, started, parked}, counts{1, 0, 0, 0, false, OutcomeParked}},
		"one that succeeds is spent":                            {[]Event{assigned, started, succeeded}, counts{1, 1, 0, 0, false, OutcomeSucceeded}},
		"one that is canceled holds the run until it ended":     {[]Event{assigned, started, canceling}, counts{1, 1, 0, 1, true, ""}},
		"and then no more":                                      {[]Event{assigned, started, canceling, {Type: EvCanceled}}, counts{1, 1, 0, 0, false, OutcomeCanceled}},
		"one that is suspended is given back":                   {[]Event{assigned, started, {Type: EvSuspended}}, counts{1, 0, 1, 0, false, OutcomeReleased}},
		"suspending a queued run costs nothing":                 {[]Event{{Type: EvSuspended}}, counts{0, 0, 0, 0, false, ""}},
		"compensation ends the attempt that it follows":         {[]Event{assigned, started, {Type: EvCompensating, Reason: NonRetryable}}, counts{1, 1, 0, 0, false, OutcomeFailed}},
		"as canceled if the run is":                             {[]Event{assigned, started, canceling, {Type: EvCompensating}}, counts{1, 1, 0, 0, false, OutcomeCanceled}},
		"a run that was queued again lives on without attempts": {[]Event{assigned, started, backedOff, requeued}, counts{1, 1, 0, 0, false, OutcomeFailed}},
	} {
		t.Run(name, func(t *testing.T) {
			r := tell(t, "", c.story...)
			got := counts{r.Attempt, r.Spent, r.Returned, r.Holder(), r.Live(), ""}
			if cur := r.Current(); cur != nil {
				got.Outcome = cur.Outcome
				if (cur.EndedAt != 0) == r.Live() {
					t.Errorf("attempt %+v of a run that is %s", cur, r.State)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatTheRecordKeeps(t *testing.T) {
	t.Run("an attempt that failed, with all that is known of it", func(t *testing.T) {
		r := tell(t, "", assigned, as(started, func(e *Event) { e.Worker = "w2" }),
			as(backedOff, func(e *Event) { e.Usage, e.Sure = &Usage{10, 5, 0.5}, true }))
		want := Attempt{
			N: 1, Target: "t1", Worker: "w2", AssignedAt: t0 + 1000, StartedAt: t0 + 2000, EndedAt: t0 + 3000,
			Outcome: OutcomeFailed, Class: ClassUser, Code: "E1", Message: "broken", Usage: &Usage{10, 5, 0.5}, Sure: true,
		}
		if diff := cmp.Diff(want, *r.Current()); diff != "" {
			t.Errorf("attempt (-want +got):\n%s", diff)
		}
		if r.Usage != (Usage{10, 5, 0.5}) || r.Target != "" || r.Worker != "" || r.StartedAt != t0+2000 {
			t.Errorf("record %+v", r)
		}
	})
	t.Run("that it acted, also in its stored form", func(t *testing.T) {
		for name, x := range map[string]struct {
			story []Event
			want  bool
		}{
			"an attempt that did nothing to undo":   {[]Event{assigned, started}, false},
			"one that did":                          {[]Event{assigned, started, {Type: EvActed, Attempt: 1}, backedOff}, true},
			"one that waited for a person":          {[]Event{assigned, started, parked}, false},
			"one whose children may have done some": {[]Event{assigned, started, {Type: EvParked, Attempt: 1, Park: &Park{On: OnChildren, Size: 1}}}, true},
		} {
			r := tell(t, "", x.story...)
			again, err := DecodeRecord(Encode(r))
			if err != nil || r.Undoable != x.want || again.Undoable != x.want {
				t.Errorf("%s: undoable %t, read back %+v (%v), want %t", name, r.Undoable, again, err, x.want)
			}
		}
		r := tell(t, KindWorkflow, Event{Type: EvBegan}, Event{Type: EvAdvanced, Stage: "check"})
		if again, err := DecodeRecord(Encode(r)); err != nil || again.Flow != "check" {
			t.Errorf("stage %q is read back as %+v, %v", r.Flow, again, err)
		}
	})
	t.Run("the newest attempts", func(t *testing.T) {
		var story []Event
		for n := 1; n <= MaxAttempts+3; n++ {
			number := func(e *Event) { e.Attempt = n }
			story = append(story, as(assigned, number), as(started, number), as(backedOff, number), requeued)
		}
		r := tell(t, "", story...)
		if len(r.Attempts) != MaxAttempts || r.Attempts[0].N != 4 || r.Current().N != MaxAttempts+3 || r.Spent != MaxAttempts+3 {
			t.Errorf("%d attempts from %d to %d, %d spent", len(r.Attempts), r.Attempts[0].N, r.Current().N, r.Spent)
		}
	})
	t.Run("what it waits for, only while it waits", func(t *testing.T) {
		for _, leave := range []Event{woken, {Type: EvSuspended}, canceling, {Type: EvCompensating}, {Type: EvFailed, Reason: GateExpired}} {
			if r := tell(t, "", assigned, started, parked, leave); r.Park != nil {
				t.Errorf("after %s it waits for %+v", leave.Type, r.Park)
			}
		}
		if r := tell(t, "", assigned, started, parked); r.Park == nil || r.Park.Name != "go" {
			t.Errorf("it waits for %+v", r.Park)
		}
	})
	t.Run("signals until they are taken, one at a time", func(t *testing.T) {
		other := Event{Type: EvSignaled, Signal: &Signal{Name: "other"}}
		again := Event{Type: EvSignaled, Signal: &Signal{Name: "go", Key: "k2"}}
		r := tell(t, "", signaled, other, again, assigned, started, parked, as(woken, func(e *Event) { e.Signal = &Signal{Name: "go", Key: "k1"} }))
		if len(r.Signals) != 2 || r.Signals[0].Name != "other" || r.Signals[1].Key != "k2" || len(r.SigKeys) != 2 {
			t.Errorf("signals %+v, keys %v", r.Signals, r.SigKeys)
		}
	})
	t.Run("as many keys of signals as there is room for, the newest", func(t *testing.T) {
		r := tell(t, "")
		for i := range 3 * MaxSignals {
			r.remember(strings.Repeat("k", 50) + string(rune('a'+i%26)))
		}
		size := len(strings.Join(r.SigKeys, ""))
		if size > MaxKeyBytes || size < MaxKeyBytes-51 || r.SigKeys[len(r.SigKeys)-1][50] != byte('a'+(3*MaxSignals-1)%26) {
			t.Errorf("%d keys of %d bytes", len(r.SigKeys), size)
		}
		for range 3 * MaxSignals {
			r.remember("k")
		}
		if len(r.SigKeys) != MaxSignals {
			t.Errorf("%d short keys", len(r.SigKeys))
		}
	})
	t.Run("the output and the score of its end", func(t *testing.T) {
		output := inline(`{"ok":true}`)
		r := tell(t, "", assigned, started, as(succeeded, func(e *Event) { e.Output, e.Score, e.Due = &output, new(0.75), t0+99 }))
		if r.State != Succeeded || string(r.Output.Inline) != `{"ok":true}` || *r.Score != 0.75 || r.EndedAt != t0+3000 || r.WakeAt() != t0+99 {
			t.Errorf("record %+v", r)
		}
	})
	t.Run("time that does not run backwards", func(t *testing.T) {
		r := tell(t, "", assigned)
		e := Evolve(r, as(started, func(e *Event) { e.At = t0 - 5000 }))
		if e.At != t0+1000 || r.UpdatedAt != t0+1000 || r.Current().StartedAt != t0+1000 {
			t.Errorf("event at %d after %d", e.At, t0+1000)
		}
	})
}

func TestWakeAt(t *testing.T) {
	due := func(e Event) Event { return as(e, func(e *Event) { e.Due = t0 + 500_000 }) }
	for name, c := range map[string]struct {
		story    []Event
		deadline Instant
		want     Instant
	}{
		"a queued run is due since it was queued":        {nil, t0 + 60_000, t0},
		"also when it was queued again":                  {[]Event{assigned, started, backedOff, requeued}, 0, t0 + 4000},
		"a running one at its attempt's end":             {[]Event{assigned, due(started)}, 0, t0 + 500_000},
		"or at the run's deadline":                       {[]Event{assigned, due(started)}, t0 + 60_000, t0 + 60_000},
		"one told to end when it counts as dead":         {[]Event{assigned, started, due(stopped)}, 0, t0 + 500_000},
		"a parked one without a limit never":             {[]Event{assigned, started, parked}, 0, 0},
		"a suspended one at its deadline":                {[]Event{due(Event{Type: EvSuspended})}, t0 + 60_000, t0 + 60_000},
		"a finished one at its removal, not its end":     {[]Event{due(Event{Type: EvFailed, Reason: AgentError})}, t0 + 60_000, t0 + 500_000},
		"a finished one that is kept for ever never":     {[]Event{{Type: EvFailed, Reason: AgentError}}, t0 + 60_000, 0},
		"a signal leaves the time that it is looked for": {[]Event{assigned, due(started), signaled}, 0, t0 + 500_000},
	} {
		t.Run(name, func(t *testing.T) {
			r := tell(t, "", c.story...)
			r.Deadline = c.deadline
			if got := r.WakeAt(); got != c.want {
				t.Errorf("wakes %s after the start, want %s", got.Sub(t0), c.want.Sub(t0))
			}
		})
	}
}

func TestFoldRefusesAHistoryThatPartedFromItsRecord(t *testing.T) {
	r := tell(t, "", assigned, started, succeeded)
	whole := r.Tail
	swapped := []Event{whole[0], whole[2], whole[1], whole[3]}
	back := append([]Event(nil), whole...)
	back[2].At = t0 - 1
	late := append([]Event(nil), whole...)
	late[0].Seq = 2
	for name, history := range map[string][]Event{
		"no events": nil, "its first event is missing": whole[1:], "one in the middle is missing": {whole[0], whole[1], whole[3]},
		"two are swapped": swapped, "one is told twice": append(whole[:2:2], whole[1:]...), "time runs backwards": back,
		"it does not begin at one": late,
	} {
		if folded, err := Fold(r.Spec, history); !errors.Is(err, ErrCorrupt) || folded != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Fold(r.Spec, whole); err != nil {
		t.Errorf("the whole history: %v", err)
	}
}

func TestSpillKeepsTheNewest(t *testing.T) {
	r := tell(t, "")
	score := 0.5
	for range MaxTail - 1 {
		Evolve(r, Event{Type: EvScored, Score: &score})
	}
	if old := Spill(r); old != nil {
		t.Errorf("%d events spilled at the limit", len(old))
	}
	Evolve(r, Event{Type: EvScored, Score: &score})
	old := Spill(r)
	if len(old)+len(r.Tail) != MaxTail+1 || len(r.Tail) != MaxTail/4 || old[0].Seq != 1 || r.Tail[0].Seq != int64(len(old))+1 {
		t.Errorf("%d spilled, %d kept from %d", len(old), len(r.Tail), r.Tail[0].Seq)
	}
	Evolve(r, Event{Type: EvFailed, Reason: AgentError, Output: &Payload{Inline: json.RawMessage(`"` + strings.Repeat("x", MaxTailBytes) + `"`)}})
	if old := Spill(r); len(old) != MaxTail/4+1 || len(r.Tail) != 0 {
		t.Errorf("an event that is too large to stay: %d spilled, %d kept", len(old), len(r.Tail))
	}
}

func TestDecodeRecordRefusesWhatContradictsItself(t *testing.T) {
	for name, spoil := range map[string]func(*Record){
		"no id":                         func(r *Record) { r.ID = "" },
		"an unknown state":              func(r *Record) { r.State = "asleep" },
		"no events":                     func(r *Record) { r.Seq = 0 },
		"negative counts":               func(r *Record) { r.Spent = -1 },
		"more spent than given":         func(r *Record) { r.Spent = 2 },
		"counts near an overflow":       func(r *Record) { r.Attempt, r.Current().N = math.MaxInt64, math.MaxInt64 },
		"a live attempt of no number":   func(r *Record) { r.Attempt = 2 },
		"a live attempt that ended":     func(r *Record) { r.Current().EndedAt = 1 },
		"a live attempt without target": func(r *Record) { r.Target = "" },
		"no attempts":                   func(r *Record) { r.Attempts = nil },
		"a target of a finished run":    func(r *Record) { r.State = Succeeded },
		"a wait for nothing":            func(r *Record) { r.State, r.Target = Waiting, "" },
		"a start that spent nothing":    func(r *Record) { r.Spent = 0 },
		"more attempts than are listed": func(r *Record) { r.Attempts = append(make([]Attempt, MaxAttempts), r.Attempts...) },
	} {
		r := tell(t, "", assigned, started)
		spoil(r)
		body := Encode(r)
		if _, err := DecodeRecord(body); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, body := range []string{"", "null", "\x01", "\x01\x02", "\x01\x02\x00", "\x01\x02\x01\xff\xff\xff\xff\xff\x0f", "\x02\x02\x00"} {
		if _, err := DecodeRecord([]byte(body)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func TestInstants(t *testing.T) {
	if At(time.Time{}) != 0 || !Instant(0).Time().IsZero() {
		t.Error("none is not none")
	}
	if got := At(time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC)); got != 1 {
		t.Errorf("before 1970 is %d", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		i := Instant(rapid.Int64Range(0, math.MaxInt64).Draw(t, "i"))
		j := Instant(rapid.Int64Range(0, math.MaxInt64).Draw(t, "j"))
		d := time.Duration(rapid.Int64().Draw(t, "d"))
		sum := i.Add(d)
		switch {
		case (sum == 0) != (i == 0):
			t.Fatalf("%d + %s is %d", i, d, sum)
		case i != 0 && d >= 0 && sum < i, d <= 0 && sum > i, sum < 0:
			t.Fatalf("%d + %s went the wrong way: %d", i, d, sum)
		}
		diff := i.Sub(j)
		if (i > j && diff <= 0) || (i < j && diff >= 0) || (i == j && diff != 0) {
			t.Fatalf("%d - %d is %d", i, j, diff)
		}
		if exact := i - j; exact > -1e12 && exact < 1e12 && diff != time.Duration(exact)*time.Millisecond {
			t.Fatalf("%d - %d is %s", i, j, diff)
		}
		if e := Earliest(i, 0, j); i > 0 && j > 0 && e != min(i, j) {
			t.Fatalf("the earliest of %d and %d is %d", i, j, e)
		}
	})
	for _, days := range []int{24, 25, 100} { // around 2^31 milliseconds
		if d := time.Duration(days) * 24 * time.Hour; t0.Add(d).Sub(t0) != d {
			t.Errorf("%d days become %s", days, t0.Add(d).Sub(t0))
		}
	}
}

func TestUsageSaturates(t *testing.T) {
	most := Usage{math.MaxInt64, math.MaxInt64, math.MaxFloat64}
	if got := most.Plus(most); got != most {
		t.Errorf("the largest twice is %+v", got)
	}
	if got := (Usage{1, 2, 0.5}).Plus(Usage{3, 4, 0.25}); got != (Usage{4, 6, 0.75}) {
		t.Errorf("sum is %+v", got)
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{
		{"short", 10, "short"}, {"exactly10!", 10, "exactly10!"}, {"eleven bytes", 11, "eleven b…"},
		{"ééééé", 8, "éé…"}, {"two\nlines\tand a tab", 50, "two\nlines\tand a tab"}, {"a\x1b[31mred\x00\r", 50, "a[31mred"},
		{"bad\xffbyte", 50, "bad\uFFFDbyte"}, {"", 5, ""}, {"any", 2, ""}, {strings.Repeat("\x00", 100), 10, "…"},
	} {
		if got := Clip(c.s, c.n); got != c.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", c.s, c.n, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "bytes"))
		n := rapid.IntRange(-1, 60).Draw(t, "n")
		got := Clip(s, n)
		if len(got) > max(n, 0) || !utf8.ValidString(got) || Clip(got, n) != got {
			t.Fatalf("Clip(%q, %d) = %q", s, n, got)
		}
	})
}

func TestAnInvalidSpecSaysWhat(t *testing.T) {
	good := Spec{ID: "r1", Agent: "checker", Tenant: "acme", CreatedAt: t0, Labels: map[string]string{"a/b": "c"}}
	if err := good.Validate(); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for want, spoil := range map[string]func(*Spec){
		"id is missing":            func(s *Spec) { s.ID = "" },
		"tenant is missing":        func(s *Spec) { s.Tenant = "" },
		"agent has 257 bytes":      func(s *Spec) { s.Agent = strings.Repeat("a", MaxName+1) },
		"key has 513 bytes":        func(s *Spec) { s.Key = strings.Repeat("a", MaxKey+1) },
		`session "a\nb" is not`:    func(s *Spec) { s.Session = "a\nb" },
		`kind "cron"`:              func(s *Spec) { s.Kind = "cron" },
		"priority 101":             func(s *Spec) { s.Priority = 101 },
		"a time is missing":        func(s *Spec) { s.CreatedAt = 0 },
		"budget of -1 USD":         func(s *Spec) { s.BudgetUSD = -1 },
		"budget of NaN USD":        func(s *Spec) { s.BudgetUSD = math.NaN() },
		"33 labels":                func(s *Spec) { s.Labels = labels(33, 1) },
		"more than 4096 bytes":     func(s *Spec) { s.Labels = labels(32, 200) },
		"input has 32769 bytes":    func(s *Spec) { s.Input.Inline = json.RawMessage(strings.Repeat("1", MaxInline+1)) },
		"input is not JSON":        func(s *Spec) { s.Input.Inline = json.RawMessage("{") },
		"input has 10485761 bytes": func(s *Spec) { s.Input.Size = MaxPayload + 1 },
	} {
		s := good
		spoil(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want it to say %q", err, want)
		}
	}
}

func labels(n, size int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[strings.Repeat("k", i+1)] = strings.Repeat("v", size)
	}
	return m
}
