package run

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A run waits for people alone in exactly the moments in which one of those that it waits for does and no other does
// anything else: by a look at every moment.
func TestReckoningIsALookAtEveryMoment(t *testing.T) {
	const end = 40
	rapid.Check(t, func(t *rapid.T) {
		moment := rapid.IntRange(1, end)
		within := Span{Instant(moment.Draw(t, "from")), end}
		k := NewReckoning(within)
		var asked, busy [end + 1]bool
		for range rapid.IntRange(0, 5).Draw(t, "runs") {
			// 1. A run with its life, and what it waited for.
			r := &Record{Spec: Spec{CreatedAt: Instant(moment.Draw(t, "created"))}}
			if rapid.Bool().Draw(t, "ended") {
				r.EndedAt = max(r.CreatedAt, Instant(moment.Draw(t, "end")))
			}
			at := r.CreatedAt
			var through Spans
			for at < end && rapid.Bool().Draw(t, "asks") {
				s := Span{at + Instant(rapid.IntRange(0, 9).Draw(t, "after")), 0}
				if s.To = s.From + Instant(rapid.IntRange(1, 9).Draw(t, "for")); r.EndedAt != 0 {
					s.To = min(s.To, r.EndedAt)
				}
				if s.From >= s.To {
					break
				}
				if at = s.To; rapid.Bool().Draw(t, "through") {
					through = append(through, s)
				} else {
					r.ForPeople = append(r.ForPeople, s)
				}
			}
			// 2. The same, moment by moment.
			for i := r.CreatedAt; i < end && (r.EndedAt == 0 || i < r.EndedAt); i++ {
				people := false
				for _, s := range append(append(Spans{}, r.ForPeople...), through...) {
					people = people || s.From <= i && i < s.To
				}
				asked[i], busy[i] = asked[i] || people, busy[i] || !people
			}
			k.Add(r, through, false)
		}
		var want Spans
		all := true
		for i := within.From; i < end; i++ {
			if all = all && busy[i]; asked[i] && !busy[i] {
				want = append(want, Span{i, i + 1})
			}
		}
		if k.Busy() != (all && within.From < end) {
			t.Errorf("busy %t, want %t", k.Busy(), all)
		}
		if diff := cmp.Diff(want.Union().Total(), k.Result().Total()); diff != "" {
			t.Errorf("in all (-want +got):\n%s", diff)
		}
		if got := k.Result(); len(got)+len(want) > 0 && !cmp.Equal(want.Union(), got) {
			t.Errorf("waited for people alone %v, want %v", got, want.Union())
		}
	})
}

func TestTheLongestStretchesAreKept(t *testing.T) {
	var all Spans
	for i := range 2 * MaxSpans {
		from := Instant(1000 * (i + 1))
		all = append(all, Span{from, from + Instant(10+i)})
	}
	if diff := cmp.Diff(all[MaxSpans:], all.Longest(MaxSpans)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestARecordSaysInWhichTimeItsRunWaitedForPeople(t *testing.T) {
	second := func(n int) Instant { return t0.Add(time.Duration(n) * time.Second) }
	atGate := Event{Type: EvParked, Attempt: 1, Park: &Park{On: OnGate, Step: "s", Name: "g", Left: 5000}}
	onRuns := Event{Type: EvParked, Attempt: 1, Park: &Park{On: OnChildren, Step: "all", Size: 1}}
	spans := Spans{{second(3) + 100, second(3) + 600}}
	for name, c := range map[string]struct {
		kind  Kind
		story []Event
		want  Spans
		wait  *Wait
		moved int64
	}{
		"a question goes on":                {"", []Event{assigned, started, atGate}, Spans{{second(3), 0}}, nil, 0},
		"it is answered":                    {"", []Event{assigned, started, atGate, signaled, woken}, Spans{{second(3), second(5)}}, nil, 2000},
		"its run is canceled":               {"", []Event{assigned, started, atGate, canceling}, Spans{{second(3), second(4)}}, nil, 1000},
		"a wait for runs begins":            {"", []Event{assigned, started, onRuns}, nil, &Wait{Span{From: second(3)}, second(3), "all"}, 0},
		"it ends":                           {"", []Event{assigned, started, onRuns, as(woken, func(e *Event) { e.ForPeople, e.Deadline = spans, second(9) })}, spans, nil, 500},
		"it ends, and waiting counts":       {"", []Event{assigned, started, onRuns, as(woken, func(e *Event) { e.ForPeople = spans })}, spans, nil, 0},
		"it is broken off and not reckoned": {"", []Event{assigned, started, onRuns, {Type: EvSuspended}}, nil, &Wait{Span{second(3), second(4)}, second(3), "all"}, 0},
		"it is reckoned and goes on": {"", []Event{assigned, started, onRuns, {Type: EvDeadlineMoved, ForPeople: spans, Deadline: second(9), Due: second(3) + 700}},
			spans, &Wait{Span{From: second(3) + 700}, second(3), "all"}, 500},
		"it is reckoned when it was broken off": {"", []Event{assigned, started, onRuns, {Type: EvSuspended}, {Type: EvDeadlineMoved, ForPeople: spans, Deadline: second(9), Due: second(4)}}, spans, nil, 500},
		"a workflow waits for each stage":       {KindWorkflow, []Event{{Type: EvBegan}, {Type: EvAdvanced, Stage: "a"}, {Type: EvAdvanced, Stage: "b"}}, nil, &Wait{Span{From: second(3)}, second(3), ""}, 0},
		"a workflow goes on after it was suspended, and waits for runs that are older": {KindWorkflow, []Event{{Type: EvBegan}, {Type: EvAdvanced, Stage: "a"}, {Type: EvSuspended}, {Type: EvResumed}, {Type: EvBegan},
			{Type: EvAdvanced, At: second(5), Stage: "a"}}, nil, &Wait{Span{From: second(5)}, second(1), ""}, 0},
		"what cannot be undone is asked": {"", []Event{assigned, started, {Type: EvCompensating, Attempt: 1, Reason: CompensationFailed}, {Type: EvAdvanced, Stage: "x"}},
			Spans{{second(3), second(4)}}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := tell(t, c.kind, c.story...)
			if diff := cmp.Diff(c.want, r.ForPeople); diff != "" {
				t.Errorf("for people (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.wait, r.ForRuns); diff != "" {
				t.Errorf("for runs (-want +got):\n%s", diff)
			}
			if r.Moved != c.moved {
				t.Errorf("moved by %d ms, want %d", r.Moved, c.moved)
			}
			again, err := DecodeRecord(Encode(r))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r, again, same); diff != "" {
				t.Errorf("read back (-record +read):\n%s", diff)
			}
		})
	}
}
