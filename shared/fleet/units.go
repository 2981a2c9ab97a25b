package fleet

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that reads and prints as text: "1m30s", "24h".
type Duration time.Duration

// Forever is no end. It reads and prints as "forever"; few fields take it.
const (
	Forever = Duration(math.MaxInt64)
	forever = "forever"
)

// Std converts d for arithmetic.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String is Go's notation without trailing zero units: "1h", not "1h0m0s".
func (d Duration) String() string {
	if d == Forever {
		return forever
	}
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads Go's notation and, in front of it, whole weeks and days:
// "30d", "1w2d", "1d12h". A bare number has no unit and is refused, except 0.
func (d *Duration) UnmarshalText(text []byte) error {
	if string(text) == forever {
		*d = Forever
		return nil
	}
	v, err := parseDuration(string(text))
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}

// maxUnitText bounds the text of a duration or quantity; none needs more.
const maxUnitText = 64

// parseDuration is readDuration with an error for the author of the text.
func parseDuration(s string) (time.Duration, error) {
	d, err := readDuration(s)
	switch {
	case err == nil:
		return d, nil
	case len(s) > maxUnitText:
		return 0, fmt.Errorf("a duration has at most %d characters", maxUnitText)
	case errors.Is(err, errTooLong):
		return 0, fmt.Errorf("%q is longer than a duration can be (about 292 years)", s)
	}
	if meant := meantDuration(s); meant != "" {
		return 0, fmt.Errorf("%q is not a duration; try %q", s, meant)
	}
	return 0, fmt.Errorf("%q is not a duration; write a number with a unit, like 90s, 5m, 24h or 30d", s)
}

var (
	errNotDuration = errors.New("not a duration")
	errTooLong     = errors.New("too long for a duration")
)

// readDuration reads weeks and days, then what Go reads.
func readDuration(s string) (time.Duration, error) {
	if len(s) > maxUnitText {
		return 0, errNotDuration
	}
	rest, negative := strings.CutPrefix(s, "-")
	var total time.Duration
	found := false
	for _, u := range []struct {
		name string
		size time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		number, after, ok := strings.Cut(rest, u.name)
		if !ok || !digits(number) {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n > int64((math.MaxInt64-total)/u.size) {
			return 0, errTooLong
		}
		total += time.Duration(n) * u.size
		rest, found = after, true
	}
	if rest != "" || !found {
		if strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
			return 0, errNotDuration
		}
		v, err := time.ParseDuration(rest)
		if err != nil {
			return 0, errNotDuration
		}
		if v > math.MaxInt64-total {
			return 0, errTooLong
		}
		total += v
	}
	if negative {
		total = -total
	}
	return total, nil
}

// meantDuration guesses: "5 minutes" means "5m". It returns "" for no guess.
func meantDuration(s string) string {
	s = strings.TrimSpace(s)
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != '-' })
	if end < 0 {
		end = len(s)
	}
	number, unit := s[:end], strings.ToLower(strings.TrimSpace(s[end:]))
	short := map[string]string{
		"": "s", "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
		"m": "m", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
		"h": "h", "hr": "h", "hrs": "h", "hour": "h", "hours": "h",
		"d": "d", "day": "d", "days": "d", "w": "w", "week": "w", "weeks": "w",
		"ms": "ms", "millisecond": "ms", "milliseconds": "ms",
	}[unit]
	meant := number + short
	if _, err := readDuration(meant); err != nil || short == "" {
		return ""
	}
	return meant
}

// CPU is processor time per second in thousandths of a core: 500 is half a core.
type CPU int64

// String prints whole cores as a number and the rest in milli: "2", "500m".
func (c CPU) String() string {
	if c%1000 == 0 {
		return strconv.FormatInt(int64(c)/1000, 10)
	}
	return strconv.FormatInt(int64(c), 10) + "m"
}

// MarshalText implements encoding.TextMarshaler.
func (c CPU) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads cores ("2", "0.5") or thousandths of one ("500m").
func (c *CPU) UnmarshalText(text []byte) error {
	s := string(text)
	number, milli := strings.CutSuffix(s, "m")
	scale := int64(1000)
	if milli {
		scale = 1
	}
	v, err := scaled(number, scale)
	if errors.Is(err, errTooFine) {
		return fmt.Errorf("%q is finer than a thousandth of a core; try 1m or more", s)
	}
	if err != nil {
		return fmt.Errorf("%q is not an amount of CPU; write cores or thousandths of one, like 2, 0.5 or 500m", s)
	}
	*c = CPU(v)
	return nil
}

// Bytes is an amount of memory or data.
type Bytes int64

var byteUnits = []struct {
	suffix string
	size   int64
}{{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}}

// String uses the largest binary unit that divides b, or none: "256Mi", "1000".
func (b Bytes) String() string {
	for _, u := range byteUnits[:4] {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText implements encoding.TextMarshaler.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads a number of bytes, with a unit of 1024 (Ki, Mi, Gi, Ti)
// or of 1000 (k, M, G, T), as in "256Mi".
func (b *Bytes) UnmarshalText(text []byte) error {
	s := string(text)
	number, size := s, int64(1)
	for _, u := range byteUnits {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			number, size = n, u.size
			break
		}
	}
	v, err := scaled(number, size)
	if err != nil {
		return fmt.Errorf("%q is not an amount of memory; write whole bytes with a unit, like 256Mi or 2Gi", s)
	}
	*b = Bytes(v)
	return nil
}

var (
	errTooFine   = errors.New("not a whole number of the smallest unit")
	errNotNumber = errors.New("not a decimal number in range")
)

// scaled returns the decimal number s times scale, exactly: floating point
// would make 0.29 cores 289 thousandths.
func scaled(s string, scale int64) (int64, error) {
	if len(s) > maxUnitText {
		return 0, errNotNumber
	}
	body, negative := strings.CutPrefix(s, "-")
	whole, fraction, _ := strings.Cut(body, ".")
	if !digits(whole) || strings.Contains(body, ".") && !digits(fraction) {
		return 0, errNotNumber
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n > math.MaxInt64/scale {
		return 0, errNotNumber
	}
	total := n * scale
	// remainder holds what one unit of the current digit is worth, times ten to
	// the number of digits passed, so a digit that does not divide is seen.
	worth, divisor := scale, int64(1)
	var numerator int64
	for _, d := range strings.TrimRight(fraction, "0") {
		if divisor > math.MaxInt64/10/scale {
			return 0, errTooFine
		}
		divisor *= 10
		numerator = numerator*10 + int64(d-'0')
	}
	if numerator > math.MaxInt64/worth || numerator*worth%divisor != 0 {
		return 0, errTooFine
	}
	part := numerator * worth / divisor
	if total > math.MaxInt64-part {
		return 0, errNotNumber
	}
	total += part
	if negative {
		total = -total
	}
	return total, nil
}

func digits(s string) bool {
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return s != ""
}

// Threshold is the target of a scaling signal: a duration for queueAge ("30s"),
// a number for the others ("10").
type Threshold string

// MarshalText implements encoding.TextMarshaler.
func (t Threshold) MarshalText() ([]byte, error) { return []byte(t), nil }

// UnmarshalText takes any text; Validate judges it, knowing the signal.
func (t *Threshold) UnmarshalText(text []byte) error {
	*t = Threshold(text)
	return nil
}

// Duration is the threshold as a length of time.
func (t Threshold) Duration() (time.Duration, error) { return parseDuration(string(t)) }

// Number is the threshold as a whole number.
func (t Threshold) Number() (int, error) {
	n, err := strconv.Atoi(string(t))
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", string(t))
	}
	return n, nil
}
