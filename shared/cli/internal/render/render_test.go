package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type item struct {
	ID   string          `json:"id"`
	Note string          `json:"note,omitempty"`
	Raw  json.RawMessage `json:"raw,omitempty"`
}

var view = View[item]{
	Name: func(i item) string { return i.ID },
	Columns: []Column[item]{
		{Head: "ID", Cell: func(i item) string { return i.ID }},
		{Head: "NOTE", Cell: func(i item) string { return i.Note }},
		{Head: "MORE", Wide: true, Cell: func(i item) string { return "more" }},
	},
	YAML: func(i item) any { i.Note = ""; return i },
}

func TestList(t *testing.T) {
	items := []item{{ID: "a", Note: "<x> & y", Raw: json.RawMessage(`{"n":1}`)}, {ID: "longer", Note: "évil\x1b[2J\n"}}
	tests := map[string]struct {
		format Format
		items  []item
		want   string
	}{
		"a table is aligned, and nothing in it moves the cursor": {Table, items, "ID       NOTE\na        <x> & y\nlonger   évil\\u001b[2J\\n\n"},
		"wide shows more columns":                                {Wide, items[:1], "ID   NOTE      MORE\na    <x> & y   more\n"},
		"JSON is one array, markup not escaped":                  {JSON, items[:1], "[\n  {\n    \"id\": \"a\",\n    \"note\": \"<x> & y\",\n    \"raw\": {\n      \"n\": 1\n    }\n  }\n]\n"},
		"JSON of nothing is an array":                            {JSON, nil, "[]\n"},
		"a table of nothing is nothing":                          {Table, nil, ""},
		"YAML is a document each":                                {YAML, []item{{ID: "true"}, {ID: "b"}}, "id: 'true'\n---\nid: b\n"},
		"names are one a line":                                   {Name, items, "a\nlonger\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := List(Printer{&b, tt.format}, view, tt.items); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, b.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStream(t *testing.T) {
	tests := map[Format]string{
		JSON:  "{\"id\":\"a\"}\n{\"id\":\"wider\"}\n{\"id\":\"b\"}\n",
		Table: "ID   NOTE\na\nwider\nb\n",
		YAML:  "id: a\n---\nid: wider\n---\nid: b\n",
	}
	for format, want := range tests {
		var b bytes.Buffer
		s := NewStream(Printer{&b, format}, view)
		for _, id := range []string{"a", "wider", "b"} {
			if err := s.Add(item{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("%s:\n%s", format, diff)
		}
	}
}

func TestOneIsAnObjectNotAnArray(t *testing.T) {
	var b bytes.Buffer
	if err := One(Printer{&b, JSON}, view, item{ID: "a"}); err != nil || b.String() != "{\n  \"id\": \"a\"\n}\n" {
		t.Errorf("One: %q, %v", b.String(), err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestErrorsOfTheWriterAreReturned(t *testing.T) {
	for _, format := range Formats {
		if err := List(Printer{full{}, format}, view, []item{{ID: "a"}}); err == nil {
			t.Errorf("%s: a failed write is no error", format)
		}
	}
	d := NewDetail(full{})
	d.Field("A", "b")
	d.JSON("C", json.RawMessage("1"))
	if d.Err() == nil {
		t.Error("Detail: a failed write is no error")
	}
}

func TestSpan(t *testing.T) {
	tests := map[time.Duration]string{
		-time.Second: "0ms", 1500 * time.Microsecond: "1ms", 1500 * time.Millisecond: "1.5s", 59*time.Second + 900*time.Millisecond: "59s",
		90 * time.Second: "1m30s", 2 * time.Minute: "2m", 59 * time.Minute: "59m", 90 * time.Minute: "1h30m", 26 * time.Hour: "26h", 72 * time.Hour: "3d",
	}
	for d, want := range tests {
		if got := Span(d); got != want {
			t.Errorf("Span(%s) = %s, want %s", d, got, want)
		}
	}
}

func TestProgressElsewhereThanOnATerminalIsAFewPlainLines(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	var b bytes.Buffer
	p := NewProgress(&b, "runs over", func() time.Time { return now })
	for n := range 1000 {
		p.Set(n, 1000, "")
		now = now.Add(10 * time.Millisecond)
	}
	p.Done(1000, 1000, "2 failed")
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) < 4 || len(lines) > 6 || lines[len(lines)-1] != "1000/1000 runs over, 2 failed" || strings.Contains(b.String(), "\x1b") {
		t.Errorf("ten seconds gave %d lines:\n%s", len(lines), b.String())
	}
	var none *Progress
	none.Set(1, 2, "")
	none.Done(1, 2, "")
}
