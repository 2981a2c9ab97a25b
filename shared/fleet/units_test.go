package fleet

import (
	"encoding"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDurationReadsAndPrints(t *testing.T) {
	const day = 24 * time.Hour
	tests := map[string]struct {
		text  string
		want  time.Duration
		print string
	}{
		"Go's notation":               {"1m30s", 90 * time.Second, "1m30s"},
		"seconds past a minute":       {"90s", 90 * time.Second, "1m30s"},
		"whole hours without zeros":   {"1h0m0s", time.Hour, "1h"},
		"whole minutes likewise":      {"120s", 2 * time.Minute, "2m"},
		"ten minutes keep their zero": {"10m", 10 * time.Minute, "10m"},
		"ten hours keep their zero":   {"10h", 10 * time.Hour, "10h"},
		"hours and seconds":           {"1h0m5s", time.Hour + 5*time.Second, "1h0m5s"},
		"fractions":                   {"0.25s", 250 * time.Millisecond, "250ms"},
		"days":                        {"30d", 30 * day, "720h"},
		"weeks, days and hours":       {"1w2d3h", 9*day + 3*time.Hour, "219h"},
		"zero":                        {"0", 0, "0s"},
		"zero days":                   {"0d", 0, "0s"},
		"less than nothing":           {"-1d", -day, "-24h"},
		"no end":                      {"forever", math.MaxInt64, "forever"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var d Duration
			if err := d.UnmarshalText([]byte(tt.text)); err != nil {
				t.Fatal(err)
			}
			if d.Std() != tt.want || d.String() != tt.print {
				t.Errorf("%q is %v and prints %q, want %v and %q", tt.text, d.Std(), d, tt.want, tt.print)
			}
		})
	}
}

func TestUnitsRefuse(t *testing.T) {
	tests := map[string]struct {
		into encoding.TextUnmarshaler
		text string
		want string
	}{
		"a unit in words":             {new(Duration), "5 minutes", `"5 minutes" is not a duration; try "5m"`},
		"a unit in short words":       {new(Duration), "2 hrs", `"2 hrs" is not a duration; try "2h"`},
		"no unit":                     {new(Duration), "30", `"30" is not a duration; try "30s"`},
		"no number":                   {new(Duration), "soon", `"soon" is not a duration; write a number with a unit, like 90s, 5m, 24h or 30d`},
		"nothing":                     {new(Duration), "", `"" is not a duration; write a number with a unit, like 90s, 5m, 24h or 30d`},
		"a sign alone":                {new(Duration), "-", `"-" is not a duration; write a number with a unit, like 90s, 5m, 24h or 30d`},
		"a second sign":               {new(Duration), "1d-1h", `"1d-1h" is not a duration; write a number with a unit, like 90s, 5m, 24h or 30d`},
		"days behind hours":           {new(Duration), "1h1d", `"1h1d" is not a duration; write a number with a unit, like 90s, 5m, 24h or 30d`},
		"a fraction of a day":         {new(Duration), "0.5d", `"0.5d" is not a duration; write a number with a unit, like 90s, 5m, 24h or 30d`},
		"more days than there are":    {new(Duration), "106752d", `"106752d" is longer than a duration can be (about 292 years)`},
		"more weeks than there are":   {new(Duration), "99999999999999999999w", `"99999999999999999999w" is longer than a duration can be (about 292 years)`},
		"too much in sum":             {new(Duration), "106751d24h", `"106751d24h" is longer than a duration can be (about 292 years)`},
		"an endless duration":         {new(Duration), strings.Repeat("1", 65), "a duration has at most 64 characters"},
		"CPU in words":                {new(CPU), "two", `"two" is not an amount of CPU; write cores or thousandths of one, like 2, 0.5 or 500m`},
		"CPU too fine":                {new(CPU), "0.0005", `"0.0005" is finer than a thousandth of a core; try 1m or more`},
		"CPU too fine in thousandths": {new(CPU), "1.5m", `"1.5m" is finer than a thousandth of a core; try 1m or more`},
		"CPU past 63 bits":            {new(CPU), "9223372036854776", `"9223372036854776" is not an amount of CPU; write cores or thousandths of one, like 2, 0.5 or 500m`},
		"memory in MB":                {new(Bytes), "10MB", `"10MB" is not an amount of memory; write whole bytes with a unit, like 256Mi or 2Gi`},
		"memory in part bytes":        {new(Bytes), "0.5", `"0.5" is not an amount of memory; write whole bytes with a unit, like 256Mi or 2Gi`},
		"memory past 63 bits":         {new(Bytes), "8388608Ti", `"8388608Ti" is not an amount of memory; write whole bytes with a unit, like 256Mi or 2Gi`},
		"memory with an exponent":     {new(Bytes), "1e9", `"1e9" is not an amount of memory; write whole bytes with a unit, like 256Mi or 2Gi`},
		"a unit without a number":     {new(Bytes), "Mi", `"Mi" is not an amount of memory; write whole bytes with a unit, like 256Mi or 2Gi`},
		"a point without a fraction":  {new(Bytes), "1.Mi", `"1.Mi" is not an amount of memory; write whole bytes with a unit, like 256Mi or 2Gi`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.into.UnmarshalText([]byte(tt.text))
			if err == nil || err.Error() != tt.want {
				t.Errorf("%q gave error %v\nwant %s", tt.text, err, tt.want)
			}
		})
	}
}

func TestQuantitiesReadExactly(t *testing.T) {
	for text, want := range map[string]CPU{
		"2": 2000, "0.5": 500, "500m": 500, "0.29": 290, "1.001": 1001, "0": 0, "-1": -1000, "0.50000000000000000": 500,
	} {
		var got CPU
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("CPU %q is %d with error %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]Bytes{
		"256Mi": 256 << 20, "1.5Gi": 3 << 29, "10M": 10_000_000, "1k": 1000, "7": 7, "0.0009765625Ki": 1, "9223372036854775807": math.MaxInt64,
	} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("memory %q is %d with error %v, want %d", text, got, err, want)
		}
	}
}

func TestUnitsReadWhatTheyPrint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(-math.MaxInt64, math.MaxInt64).Draw(t, "n")
		d, c, b := Duration(n), CPU(n), Bytes(n)
		for _, u := range []struct {
			out encoding.TextMarshaler
			in  encoding.TextUnmarshaler
			now func() int64
		}{
			{d, &d, func() int64 { return int64(d) }},
			{c, &c, func() int64 { return int64(c) }},
			{b, &b, func() int64 { return int64(b) }},
		} {
			text, _ := u.out.MarshalText()
			if err := u.in.UnmarshalText(text); err != nil || u.now() != n {
				t.Fatalf("%T %d prints %q, which reads as %d with error %v", u.out, n, text, u.now(), err)
			}
		}
	})
}

func FuzzUnits(f *testing.F) {
	for _, s := range []string{"1w2d3h", "5 minutes", "0.29", "256Mi", "-1.5Gi", "9223372036854775807", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, u := range []encoding.TextUnmarshaler{new(Duration), new(CPU), new(Bytes)} {
			if err := u.UnmarshalText([]byte(s)); err != nil {
				continue
			}
			text, _ := u.(encoding.TextMarshaler).MarshalText()
			if err := u.UnmarshalText(text); err != nil {
				t.Errorf("%T reads %q, prints %q and refuses that: %v", u, s, text, err)
			}
		}
	})
}
