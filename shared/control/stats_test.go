package control

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/run"
)

// A window over more than is remembered would count the ends of runs whose beginnings are forgotten.
func TestTheWindowOfStatsIsNoLongerThanWhatIsRemembered(t *testing.T) {
	s, start := newStatistics(), run.Instant(1_000_000)
	at := func(i int) run.Instant { return start.Add(time.Duration(i) * time.Second) }
	for i := range maxSamples {
		if i == maxSamples-1 {
			if got := s.covered(at(i), 24*time.Hour); got != 24*time.Hour {
				t.Errorf("before the ring is full the window is %v, want all of it", got)
			}
		}
		s.observe(new(run.Record), []run.Event{{Type: run.EvSubmitted, At: at(i)}})
	}
	for i := range 3 {
		s.observe(new(run.Record), []run.Event{{Type: run.EvSubmitted, At: at(maxSamples + i)}})
	}
	now := at(maxSamples + 3)
	if got, want := s.covered(now, 24*time.Hour), maxSamples*time.Second; got != want {
		t.Errorf("covered %v, want %v: the three oldest are forgotten", got, want)
	}
	if got := s.covered(now, time.Minute); got != time.Minute {
		t.Errorf("a short window became %v", got)
	}
}

func TestPercentilesAreThoseOfTheSortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 20), func(i int) time.Duration { return time.Duration(i) }), 1, 200).Draw(t, "durations")
		sorted := slices.Sorted(slices.Values(d))
		p50, p95 := percentiles(d)
		if p50 != sorted[len(d)/2] || p95 != sorted[len(d)*95/100] {
			t.Fatalf("%d and %d of %v", p50, p95, sorted)
		}
	})
}
