package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFiguresAreMediansWithTheirRange(t *testing.T) {
	var w Workload
	for _, v := range []float64{30, 10, 20} {
		w.add([]Figure{{Name: "throughput", Unit: "runs/s", Values: []float64{v}}})
	}
	want := []Figure{{Name: "throughput", Unit: "runs/s", Median: 20, Min: 10, Max: 30, Values: []float64{30, 10, 20}}}
	if diff := cmp.Diff(want, w.Figures); diff != "" {
		t.Error(diff)
	}
	w.Figures[0].take(40)
	if got := w.Figures[0].Median; got != 25 {
		t.Errorf("median of an even number of values: %v, want 25", got)
	}
}

func TestPercentile(t *testing.T) {
	var all []time.Duration
	for n := range 100 {
		all = append(all, time.Duration(n+1))
	}
	for p, want := range map[float64]time.Duration{0.5: 51, 0.99: 100, 1: 100} {
		if got := percentile(all, p); got != want {
			t.Errorf("percentile %v = %d, want %d", p, got, want)
		}
	}
	if got := percentile(all[:1], 0.99); got != 1 {
		t.Errorf("percentile of one value = %d", got)
	}
}

func TestALineThatIsBeingWrittenIsNotReadYet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "outside.log")
	for _, text := range []string{"begun 1 5\neffect 1 7\neffect 2 ", "eff"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := readDiary(path)
		if err != nil || len(d.effects) != strings.Count(text, "\n")/2 {
			t.Errorf("%q: effects %v, %v", text, d, err)
		}
	}
}

func TestDiary(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	line := func(what string, n, ms int) string { return fmt.Sprintf("%s %d %d\n", what, n, at(ms).UnixNano()) }
	path := filepath.Join(t.TempDir(), "outside.log")
	// Two slots and pieces of 100 ms: 1 is over, 2 has 40 ms left, 3 has 70 ms left, 4 and 5 have not begun.
	text := line(noteProcess, 77, 0) + line(noteBegun, 1, 0) + line(noteBegun, 2, 40) +
		line(noteEffect, 1, 65) + line(noteDone, 1, 65) + line(noteBegun, 3, 70)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := readDiary(path)
	if err != nil {
		t.Fatal(err)
	}
	if d.process != 77 || len(d.done) != 1 || repeated(d.bodies) != 0 {
		t.Errorf("read %+v", d)
	}
	if got, want := d.left(at(100), 5, 2, 100*time.Millisecond), 170*time.Millisecond; got != want {
		t.Errorf("left %s, want %s", got, want)
	}
	if got, want := d.left(at(100), 4, 2, 100*time.Millisecond), 140*time.Millisecond; got != want {
		t.Errorf("left with one less %s, want %s", got, want)
	}
	if got, want := d.busy(at(100), 2, 100*time.Millisecond), 0.95; math.Abs(got-want) > 1e-9 {
		t.Errorf("busy %v, want %v", got, want)
	}
	h, err := newHandler(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := h.note(noteEffect, 2); err != nil {
			t.Fatal(err)
		}
	}
	if d, err = readDiary(path); err != nil || repeated(d.effects) != 2 || d.process != os.Getpid() {
		t.Errorf("after three effects of one unit %+v, %v: want 2 repeated", d, err)
	}
	if _, happened, err := h.effected(2); err != nil || !happened {
		t.Errorf("effected(2) = %v, %v", happened, err)
	}
	if _, happened, err := h.effected(3); err != nil || happened {
		t.Errorf("effected(3) = %v, %v", happened, err)
	}
	if err := os.WriteFile(path, []byte("begun x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readDiary(path); err == nil {
		t.Error("a line that is none was read")
	}
}

func TestCheckName(t *testing.T) {
	tests := map[string]string{"W1": "", "idle": "", "W4": "child runs, which this version does not have", "W99": "want some of idle, W1"}
	for name, want := range tests {
		err := CheckName(name)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
