package manifest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse holds for any input: no panic, at most MaxIssues issues each with a
// position in the file, either a set or an error, and a set that reads back.
func FuzzParse(f *testing.F) {
	fixtures, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range fixtures {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("{\"apiVersion\":\"errand.dev/v1\",\"kind\":\"Tenant\",\"metadata\":{\"name\":\"t\",\"version\":\"\\ud83d\\ude00\"}}"))
	f.Add([]byte(agent("  budget: &b {<<: [*b, *b]}\n  needs: {labels: {<<: {a: b}, ? [x] : y}}\n")))
	f.Add([]byte("a: &a [*a]\n...\n%TAG ! x\n---\n? |\n x\n: >\n y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := Parse([]File{{Name: "m", Data: bytes.NewReader(data)}}, Options{})
		if err == nil {
			for _, o := range set.Objects {
				if problems := o.Validate(); len(problems) > 0 {
					t.Fatalf("taken with problems: %v", problems)
				}
				checkRoundTrip(t, o.Object)
			}
			return
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || set != nil || len(e.Issues) == 0 || len(e.Issues) > MaxIssues {
			t.Fatalf("got set %v and error %v", set, err)
		}
		last := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + 2
		for _, i := range e.Issues {
			if i.Message == "" || i.Line < 1 || i.Column < 1 || i.Line > last && !bytes.ContainsAny(data, "\u0085\u2028\u2029") {
				t.Errorf("issue without a place in the file: %#v", i)
			}
		}
	})
}
