package forecast

import (
	"math"
	"math/bits"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/run"
)

// Precision of a histogram: a power of two is divided into so many parts, so that a quantile is too high by less than 1.6 %.
const (
	partBits = 7
	parts    = 1 << partBits
)

// histogram counts lengths of time in milliseconds, whatever their number, in bounded memory.
type histogram struct {
	octaves [64 - partBits]*[parts]uint32
	n       int64
	sum     float64
	max     int64
}

// add counts a length of time; one below 0 counts as 0.
func (h *histogram) add(ms int64) {
	ms = max(ms, 0)
	octave, part := slot(ms)
	if h.octaves[octave] == nil {
		h.octaves[octave] = new([parts]uint32)
	}
	h.octaves[octave][part]++
	h.n++
	h.sum += float64(ms)
	h.max = max(h.max, ms)
}

// slot is where a value counts. Values below 128 have octave 0 to themselves.
func slot(ms int64) (octave, part int) {
	shift := max(bits.Len64(uint64(ms))-partBits, 0)
	return shift, int(ms>>shift) & (parts - 1)
}

// quantile is the least value that a share q of the values does not exceed.
func (h *histogram) quantile(q float64) int64 {
	if h.n == 0 {
		return 0
	}
	rank := int64(q * float64(h.n))
	if float64(rank) < q*float64(h.n) {
		rank++
	}
	rank = max(rank, 1)
	for octave, list := range h.octaves {
		if list == nil {
			continue
		}
		for part, count := range list {
			if rank -= int64(count); rank <= 0 {
				return min(upper(octave, part), h.max)
			}
		}
	}
	return h.max
}

// upper is the largest value that counts in a slot.
func upper(octave, part int) int64 { return (int64(part)+1)<<octave - 1 }

// Span is a length of time. In JSON it is seconds, with milliseconds behind the point.
type Span time.Duration

// Std converts s for arithmetic.
func (s Span) Std() time.Duration { return time.Duration(s) }

// String is the length of time with two or three digits, for people: "250ms", "3.2s", "14m", "2h10m".
func (s Span) String() string {
	d := time.Duration(s)
	switch {
	case d < 0:
		return "-" + (-s).String()
	case d == 0:
		return "0s"
	case d < time.Second:
		return strconv.FormatInt(d.Round(time.Millisecond).Milliseconds(), 10) + "ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
	case d < time.Minute:
		return strconv.FormatInt(int64(d.Round(time.Second)/time.Second), 10) + "s"
	case d < 10*time.Minute:
		return units(d.Round(time.Second), time.Minute, "m", time.Second, "s")
	case d < 48*time.Hour:
		return units(d.Round(time.Minute), time.Hour, "h", time.Minute, "m")
	}
	return units(d.Round(time.Hour), 24*time.Hour, "d", time.Hour, "h")
}

// units writes a length of time in two units, without one that would be 0.
func units(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := ""
	if n := d / large; n > 0 {
		text = strconv.FormatInt(int64(n), 10) + largeName
	}
	if n := d % large / small; n > 0 || text == "" {
		text += strconv.FormatInt(int64(n), 10) + smallName
	}
	return text
}

// MarshalJSON implements json.Marshaler.
func (s Span) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Round(time.Millisecond).Seconds(), 'f', -1, 64), nil
}

// Sum is a length of time in seconds, summed over runs: it holds what a Span cannot, which ends at 292 years. In JSON it
// has milliseconds behind the point.
type Sum float64

// String is the sum for people, as a Span is written: "3.2s", "2h10m"; "1157407d" beyond what a Span holds.
func (s Sum) String() string {
	if ns := float64(s) * float64(time.Second); math.Abs(ns) < math.MaxInt64 {
		return Span(ns).String()
	}
	return strconv.FormatFloat(float64(s)/(24*time.Hour).Seconds(), 'f', 0, 64) + "d"
}

// MarshalJSON implements json.Marshaler.
func (s Sum) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, math.Round(float64(s)*1000)/1000, 'f', -1, 64), nil
}

// sumOf is so many milliseconds.
func sumOf(ms float64) Sum { return Sum(ms / 1000) }

// spanOf is so many milliseconds.
func spanOf[T int64 | float64 | run.Instant](ms T) Span { return Span(ms) * Span(time.Millisecond) }

// Waits are what lengths of time come to.
type Waits struct {
	N    int64 `json:"n"` // counted
	Mean Span  `json:"mean"`
	P50  Span  `json:"p50"`
	P95  Span  `json:"p95"`
	P99  Span  `json:"p99"`
	Max  Span  `json:"max"`
}

func (h *histogram) waits() Waits {
	w := Waits{
		N: h.n, P50: spanOf(h.quantile(0.5)), P95: spanOf(h.quantile(0.95)), P99: spanOf(h.quantile(0.99)), Max: spanOf(h.max),
	}
	if h.n > 0 {
		w.Mean = spanOf(h.sum / float64(h.n))
	}
	return w
}
