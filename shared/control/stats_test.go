package control

import (
	"testing"
	"time"

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
