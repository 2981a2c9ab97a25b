package retry

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/fleet"
)

const (
	// fractionBits are the binary places of a factor in fixed point.
	fractionBits = 32
	// maxSteps bounds the multiplications for one backoff; no policy allows as many attempts.
	maxSteps = 10_000
	million  = 1_000_000
)

// Backoff is the wait after the nth failure, n from 1: min(Max, Initial·Factor^(n-1)), moved by up to the share Jitter
// either way as roll decides. It is within [0, Max+Jitter·Max] and, before the jitter, never falls as n rises. Values
// that a declaration cannot have are read as the nearest that it can: lengths from 0, a factor from 1, a jitter of 0
// to 1, n from 1.
func Backoff(b fleet.Backoff, n int, roll uint64) time.Duration {
	return jittered(base(b, n), b.Jitter, roll)
}

// base is the backoff before jitter. Powers are taken step by step in fixed point and stop at the cap, so nothing can
// overflow or round to infinity.
func base(b fleet.Backoff, n int) time.Duration {
	top := uint64(max(b.Max.Std(), 0))
	wait := min(uint64(max(b.Initial.Std(), 0)), top)
	factor := fixed(b.Factor)
	for range min(max(n, 1)-1, maxSteps) {
		next := scale(wait, factor, top)
		if next == wait {
			break
		}
		wait = next
	}
	return time.Duration(wait)
}

// fixed is a factor, held within 1 to fleet.MaxBackoffFactor, times 2^fractionBits.
func fixed(factor float64) uint64 {
	if !(factor > 1) { // also not a number
		factor = 1
	}
	return uint64(min(factor, fleet.MaxBackoffFactor) * (1 << fractionBits))
}

// scale is min(top, wait·factor).
func scale(wait, factor, top uint64) uint64 {
	hi, lo := bits.Mul64(wait, factor)
	if hi>>fractionBits != 0 {
		return top
	}
	return min(hi<<(64-fractionBits)|lo>>fractionBits, top)
}

// jittered moves wait by up to share of itself either way.
func jittered(wait time.Duration, share float64, roll uint64) time.Duration {
	if !(share > 0) {
		return wait
	}
	hi, lo := bits.Mul64(uint64(wait), uint64(min(share, 1)*million))
	span, _ := bits.Div64(hi, lo, million) // at most wait, so below 2^63
	moved := uint64(wait) - span + roll%(2*span+1)
	return time.Duration(min(moved, math.MaxInt64))
}

// delay is the backoff or the wait that was asked for, whichever is longer, and a note for people when the answer is
// not the one asked for. What was asked is honoured up to the policy's longest backoff.
func delay(b fleet.Backoff, n int, asked time.Duration, roll uint64) (time.Duration, string) {
	wait := Backoff(b, n, roll)
	longest := max(b.Max.Std(), 0)
	if asked > longest {
		return max(wait, longest), fmt.Sprintf("; asked to wait %s, the policy waits at most %s", asked, longest)
	}
	// Stored instants have whole milliseconds: rounding up never comes back before the time that was asked for.
	asked = (asked + time.Millisecond - 1).Truncate(time.Millisecond)
	return max(wait, asked), ""
}

// httpDates are the three forms of a date in HTTP, the newest first.
var httpDates = []string{"Mon, 02 Jan 2006 15:04:05 GMT", "Monday, 02-Jan-06 15:04:05 GMT", time.ANSIC}

// maxHeader bounds a Retry-After; no date or number needs more.
const maxHeader = 64

// ParseRetryAfter reads the value of a Retry-After header: whole seconds, or an HTTP date, from which now is taken. It
// reports false for everything else, among it negative numbers and dates that have passed; a wait too long for a
// Duration becomes the longest Duration.
func ParseRetryAfter(header string, now time.Time) (time.Duration, bool) {
	header = strings.TrimSpace(header)
	if header == "" || len(header) > maxHeader {
		return 0, false
	}
	if strings.Trim(header, "0123456789") == "" {
		seconds, err := strconv.ParseInt(header, 10, 64)
		if err != nil || seconds > int64(math.MaxInt64/time.Second) {
			return math.MaxInt64, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	for _, layout := range httpDates {
		if date, err := time.Parse(layout, header); err == nil {
			wait := date.Sub(now)
			return max(wait, 0), wait >= 0
		}
	}
	return 0, false
}
