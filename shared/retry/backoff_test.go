package retry

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/shared/fleet"
)

const (
	second = fleet.Duration(time.Second)
	minute = fleet.Duration(time.Minute)
)

func TestBackoffWithoutJitter(t *testing.T) {
	doubling := fleet.Backoff{Initial: second, Factor: 2, Max: 5 * minute}
	for name, c := range map[string]struct {
		b    fleet.Backoff
		n    int
		want time.Duration
	}{
		"the first failure waits the initial time":    {doubling, 1, time.Second},
		"the second waits the factor times that":      {doubling, 2, 2 * time.Second},
		"the ninth is the last below the cap":         {doubling, 9, 256 * time.Second},
		"the tenth meets the cap":                     {doubling, 10, 5 * time.Minute},
		"the two hundredth is still the cap":          {doubling, 200, 5 * time.Minute},
		"the largest number is still the cap":         {doubling, math.MaxInt, 5 * time.Minute},
		"a number below one counts as the first":      {doubling, math.MinInt, time.Second},
		"a fractional factor is exact where it can":   {fleet.Backoff{Initial: second, Factor: 1.5, Max: minute}, 4, 3375 * time.Millisecond},
		"a factor of one waits the same always":       {fleet.Backoff{Initial: second, Factor: 1, Max: minute}, 1000, time.Second},
		"a factor below one never shortens the wait":  {fleet.Backoff{Initial: second, Factor: 0.5, Max: minute}, 3, time.Second},
		"a factor that is no number counts as one":    {fleet.Backoff{Initial: second, Factor: math.NaN(), Max: minute}, 3, time.Second},
		"an infinite factor leads to the cap":         {fleet.Backoff{Initial: 59 * second, Factor: math.Inf(1), Max: minute}, 2, time.Minute},
		"an initial above the cap is cut":             {fleet.Backoff{Initial: 2 * minute, Factor: 2, Max: minute}, 1, time.Minute},
		"a negative initial waits nothing":            {fleet.Backoff{Initial: -second, Factor: 2, Max: minute}, 5, 0},
		"the longest durations there are do not wrap": {fleet.Backoff{Initial: math.MaxInt64, Factor: 100, Max: math.MaxInt64}, 7, math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Backoff(c.b, c.n, 12345); got != c.want {
				t.Errorf("Backoff(%+v, %d) = %s, want %s", c.b, c.n, got, c.want)
			}
		})
	}
}

func TestJitterReachesBothEndsAndNoFurther(t *testing.T) {
	b := fleet.Backoff{Initial: 10 * second, Factor: 2, Max: minute, Jitter: 0.2}
	span := uint64(2 * time.Second)
	for roll, want := range map[uint64]time.Duration{0: 8 * time.Second, span: 10 * time.Second, 2 * span: 12 * time.Second, 2*span + 1: 8 * time.Second} {
		if got := Backoff(b, 1, roll); got != want {
			t.Errorf("roll %d: %s, want %s", roll, got, want)
		}
	}
	huge := fleet.Backoff{Initial: math.MaxInt64, Factor: 2, Max: math.MaxInt64, Jitter: 1}
	if got := Backoff(huge, 1, math.MaxUint64-1); got != math.MaxInt64 {
		t.Errorf("jitter on the longest wait gives %d", got)
	}
}

func TestBackoffStaysWithinItsBoundsAndNeverFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.OneOf(rapid.Int64Range(0, int64(time.Hour)), rapid.Int64())
		b := fleet.Backoff{
			Initial: fleet.Duration(length.Draw(t, "initial")), Max: fleet.Duration(length.Draw(t, "max")),
			Factor: rapid.Float64().Draw(t, "factor"), Jitter: rapid.Float64().Draw(t, "jitter"),
		}
		n := rapid.OneOf(rapid.IntRange(1, 300), rapid.Int()).Draw(t, "n")
		top := max(float64(b.Max), 0)
		got := Backoff(b, n, rapid.Uint64().Draw(t, "roll"))
		if most := top + top*math.Min(math.Max(b.Jitter, 0), 1); got < 0 || float64(got) > most {
			t.Fatalf("Backoff(%+v, %d) = %d, want within [0, %g]", b, n, got, most)
		}
		if n < math.MaxInt && base(b, n+1) < base(b, n) {
			t.Fatalf("base(%+v) falls from %s at %d to %s", b, base(b, n), n, base(b, n+1))
		}
		b.Jitter = 0
		if want := math.Min(float64(b.Initial)*math.Pow(b.Factor, float64(n-1)), top); b.Factor >= 1 && b.Factor <= 100 &&
			b.Initial > fleet.Duration(time.Millisecond) && n > 0 && n < 300 {
			if diff := math.Abs(float64(Backoff(b, n, 0)) - want); diff > want/1000 {
				t.Fatalf("Backoff(%+v, %d) = %s, floating point gives %g", b, n, Backoff(b, n, 0), want)
			}
		}
	})
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		header string
		want   time.Duration
		ok     bool
	}{
		"zero seconds":                   {"0", 0, true},
		"three seconds":                  {"3", 3 * time.Second, true},
		"days of seconds":                {"400000", 400000 * time.Second, true},
		"spaces around":                  {"  7 ", 7 * time.Second, true},
		"more seconds than a duration":   {"99999999999", math.MaxInt64, true},
		"more seconds than an integer":   {"99999999999999999999999", math.MaxInt64, true},
		"a date next week":               {"Sun, 08 Mar 2026 12:00:00 GMT", 7 * 24 * time.Hour, true},
		"a date in the old form":         {"Sunday, 01-Mar-26 12:00:09 GMT", 9 * time.Second, true},
		"a date as C prints it":          {"Sun Mar  1 12:01:00 2026", time.Minute, true},
		"this very second":               {"Sun, 01 Mar 2026 12:00:00 GMT", 0, true},
		"the last year that can be said": {"Fri, 31 Dec 9999 23:59:59 GMT", math.MaxInt64, true},
		"a date in the past":             {"Sun, 22 Feb 2026 12:00:00 GMT", 0, false},
		"a negative number":              {"-5", 0, false},
		"a signed number":                {"+5", 0, false},
		"a fraction":                     {"1.5", 0, false},
		"garbage":                        {"soon", 0, false},
		"nothing":                        {"", 0, false},
		"a number and a unit":            {"5s", 0, false},
		"a header of a kilobyte":         {string(make([]byte, 1024)), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := ParseRetryAfter(c.header, now); got != c.want || ok != c.ok {
				t.Errorf("ParseRetryAfter(%q) = %s, %t; want %s, %t", c.header, got, ok, c.want, c.ok)
			}
		})
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, seed := range []string{"0", "-5", "400000", "Sun, 08 Mar 2026 12:00:00 GMT", "Sun Mar  1 12:01:00 2026", "x"} {
		f.Add(seed)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, header string) {
		if wait, ok := ParseRetryAfter(header, now); wait < 0 || (!ok && wait != 0) {
			t.Errorf("ParseRetryAfter(%q) = %s, %t", header, wait, ok)
		}
	})
}
