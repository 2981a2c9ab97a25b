// Package run is the kernel of Errand: what a run is, which states it can be in, and what each event does to it.
//
// The kernel is values and pure functions. [Decide] checks an event against the one transition table, [Evolve] folds
// it into the record, and [Fold] rebuilds a record from its history. Nothing here reads a clock, draws randomness,
// blocks or does I/O, and the standard library is all that it imports.
//
// A run has one fencing number, Attempt, which rises with every assignment and never repeats. An event that speaks for
// an attempt is refused with [ErrFenced] unless that attempt still holds the run. Spent is another count: how many
// attempts the retry policy has used up.
package run

import (
	"math"
	"time"
)

// Instant is a point in time in milliseconds since 1970 in UTC; 0 means none. Stored times have this grain and no zone.
type Instant int64

// At converts a time to its Instant. The zero time gives 0, and what lies before 1970 the first instant there is.
func At(t time.Time) Instant {
	if t.IsZero() {
		return 0
	}
	return max(Instant(t.UnixMilli()), 1)
}

// Time converts back; 0 gives the zero time.
func (i Instant) Time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(i)).UTC()
}

// Add moves an instant; the result saturates instead of overflowing. None stays none.
func (i Instant) Add(d time.Duration) Instant {
	if i == 0 {
		return 0
	}
	sum := i + Instant(d.Milliseconds())
	switch {
	case d > 0 && sum < i:
		return maxInstant
	case d < 0 && (sum > i || sum < 1):
		return 1
	}
	return sum
}

// Sub is the time from j to i; it saturates at what a Duration can hold, about 292 years.
func (i Instant) Sub(j Instant) time.Duration {
	const most = Instant(math.MaxInt64 / int64(time.Millisecond))
	switch d := i - j; {
	case i > j && (d < 0 || d > most):
		return math.MaxInt64
	case i < j && (d > 0 || d < -most):
		return math.MinInt64
	default:
		return time.Duration(d) * time.Millisecond
	}
}

const maxInstant = Instant(math.MaxInt64)

// Earliest is the smallest of the given instants, leaving out none.
func Earliest(instants ...Instant) Instant {
	var least Instant
	for _, i := range instants {
		if i != 0 && (least == 0 || i < least) {
			least = i
		}
	}
	return least
}
