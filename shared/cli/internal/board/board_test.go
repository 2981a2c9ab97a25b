package board

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

func TestBoardCounts(t *testing.T) {
	b := New()
	steps := []struct {
		what        string
		row         Row
		fresh       bool
		wantChanged bool
		wantMoving  int
	}{
		{"a new run counts", Row{ID: "a", Agent: "x", State: "queued"}, true, true, 1},
		{"the same state again is no change", Row{ID: "a", Agent: "x", State: "queued"}, false, false, 1},
		{"it moves on", Row{ID: "a", Agent: "x", State: "running"}, false, true, 1},
		{"one that waits for a person does not move", Row{ID: "b", Agent: "x", State: "waiting", Person: true}, true, true, 1},
		{"it ends once", Row{ID: "a", Agent: "x", State: "succeeded"}, false, true, 0},
		{"a score after its end does not count it again", Row{ID: "a", Agent: "x", State: "succeeded"}, false, false, 0},
		{"one that ended before the board was there does not count", Row{ID: "c", Agent: "x", State: "failed"}, false, false, 0},
		{"one that is born failed counts", Row{ID: "d", Agent: "x", State: "failed"}, true, true, 0},
	}
	for _, s := range steps {
		if got := b.Set(s.row, s.fresh); got != s.wantChanged {
			t.Errorf("%s: changed %v, want %v", s.what, got, s.wantChanged)
		}
		if b.Moving() != s.wantMoving {
			t.Errorf("%s: %d moving, want %d", s.what, b.Moving(), s.wantMoving)
		}
	}
	want := []string{
		"http://127.0.0.1:8080",
		"",
		"AGENT  QUEUED  RUNNING  WAITING  STUCK  SUCCEEDED  FAILED  CANCELED",
		"x      0       0        1        0      1          1       0",
		"",
		"RUN  AGENT  STATE      ATTEMPT  TOOK  WHY",
		"d    x      failed     0        -",
		"a    x      succeeded  0        -",
		"b    x      waiting    0        -",
	}
	for i := range want {
		want[i] = strings.Join(strings.Fields(want[i]), " ")
	}
	got := b.Frame(noon, "http://127.0.0.1:8080", 100, 24)
	for i := range got {
		got[i] = strings.Join(strings.Fields(got[i]), " ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"b"}, b.Live()); diff != "" {
		t.Error(diff)
	}
}

func TestFrameFitsTheTerminalAndEscapesWhatRunsSay(t *testing.T) {
	b := New()
	for i := range 100 {
		b.Set(Row{ID: fmt.Sprint("run", i), Agent: fmt.Sprint("agent", i), State: "failed", Message: "\x1b[31m" + strings.Repeat("x", 300)}, true)
	}
	for _, height := range []int{1, 2, 5, 10, 24, 200} {
		frame := b.Frame(noon, "head", 60, height)
		if len(frame) > max(1, height-1) {
			t.Errorf("height %d: %d lines", height, len(frame))
		}
		for _, line := range frame {
			if n := len([]rune(line)); n > 60 || strings.Contains(line, "\x1b") {
				t.Errorf("height %d: line %q", height, line)
			}
		}
	}
}

func TestScreenRedrawsInPlaceAndLetsLinesPassAbove(t *testing.T) {
	var out, log bytes.Buffer
	s := NewScreen(&out)
	s.Draw([]string{"a", "b"})
	s.Draw([]string{"a", "b"}) // nothing new
	s.Draw([]string{"c"})
	s.Above(&log, "note")
	want := "a\nb\n" + "\x1b[2A\r\x1b[J" + "c\n" + "\x1b[1A\r\x1b[J" + "c\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if log.String() != "note\n" {
		t.Errorf("above: %q", log.String())
	}
}

func TestLinesAreBoundedAndNothingIsDroppedSilently(t *testing.T) {
	var out bytes.Buffer
	l := NewLines(&out, 2)
	for i := range 5 {
		l.Add(noon, Row{ID: fmt.Sprint(i), Agent: "x", State: map[bool]string{true: "queued", false: "running"}[i%2 == 0]})
	}
	if !l.Pending() {
		t.Error("nothing pending after five changes at two lines a second")
	}
	l.Flush(noon.Add(500 * time.Millisecond))
	l.Flush(noon.Add(time.Second))
	want := "12:00:00.000  0  x  queued\n12:00:00.000  1  x  running\n12:00:01.000  and 3 more changes: 2 queued, 1 running\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if l.Pending() {
		t.Error("still pending after the flush")
	}
}

func TestLimitTellsHowMuchItHeldBack(t *testing.T) {
	l := NewLimit(2)
	passed := 0
	for range 5 {
		if _, ok := l.Take(noon); ok {
			passed++
		}
	}
	dropped, ok := l.Take(noon.Add(time.Second))
	if passed != 2 || !ok || dropped != 3 {
		t.Errorf("passed %d, then %v with %d dropped; want 2, true, 3", passed, ok, dropped)
	}
}
