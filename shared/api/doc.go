// Package api holds what Errand says on the wire, as Go types, and a typed client. It imports nothing else of Errand,
// so that agents written on the SDK carry no control plane with them.
//
// JSON names are fixed by the HTTP interface (see docs/api.md and /openapi.json). Times are RFC 3339 in UTC with
// milliseconds ([Time]); durations are Go text such as "1m30s" ([Duration]); ids are opaque.
package api

import (
	"bytes"
	"fmt"
	"time"
)

// Time is an instant on the wire: RFC 3339, UTC, milliseconds.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z"

// MarshalJSON writes null for the zero time.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	b := append(make([]byte, 0, len(timeLayout)+2), '"')
	return t.UTC().AppendFormat(b, timeLayout+`"`), nil
}

// UnmarshalJSON accepts any RFC 3339 time, and null.
func (t *Time) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*t = Time{}
		return nil
	}
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return fmt.Errorf("time %s: want RFC 3339 text such as \"2026-01-31T12:00:00Z\"", clip(b))
	}
	s := string(b[1 : len(b)-1]) // no character of a time needs an escape
	parsed, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return fmt.Errorf("time %q: want RFC 3339 such as 2026-01-31T12:00:00Z", clip(b[1:len(b)-1]))
	}
	t.Time = parsed.UTC().Truncate(time.Millisecond)
	return nil
}

// Duration is a length of time on the wire: Go text such as "1m30s".
type Duration time.Duration

// Std is the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// MarshalText writes "1m30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads "1m30s".
func (d *Duration) UnmarshalText(b []byte) error {
	parsed, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("duration %s: want text such as 90s, 5m or 1h30m", clip(b))
	}
	*d = Duration(parsed)
	return nil
}

func clip(b []byte) string {
	if len(b) > 40 {
		b = b[:40]
	}
	return string(b)
}

// Limits of the interface, in bytes unless said otherwise.
const (
	MaxBody      = 12 << 20 // one request
	MaxBatchBody = 64 << 20 // a request of :batch
	MaxBatch     = 1000     // runs in one :batch
	MaxReports   = 1000     // reports in one attempts:batch
	MaxPayload   = 10 << 20 // input or output of one run
	MaxPage      = 1000     // items on a page
	MaxWait      = 60       // seconds that a call may ask to wait
	MaxSlots     = 1000     // runs in one worker
	MaxCalls     = 1000     // children in one call
	MaxChildren  = 10_000   // children of one step
)

// Limits on what an attempt may report, in bytes unless said otherwise.
const (
	MaxStepResult = 1 << 20 // result of one step or effect
	MaxSteps      = 10_000  // steps of a run
	MaxName       = 200     // name of a step, effect, signal or session
	MaxMessage    = 2 << 10 // message of a failure
	MaxLogLine    = 8 << 10 // more is cut
)
