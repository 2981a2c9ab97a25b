package inputs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
)

func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFromFile(t *testing.T) {
	dir := folder(t, map[string]string{"a.json": " {\"x\": [1]}\n", "b.XML": "<a>é</a>", "c.dat": "\x00\xff", "d.json": "{]", "noext": "plain"})
	tests := map[string]struct{ file, want, wantError string }{
		"JSON is the input as it is":                {file: "a.json", want: " {\"x\": [1]}\n"},
		"text is wrapped, its markup not escaped":   {file: "b.XML", want: `{"name":"b.XML","contentType":"application/xml","text":"<a>é</a>"}`},
		"bytes that are no text are base64":         {file: "c.dat", want: `{"name":"c.dat","contentType":"application/octet-stream","base64":"AP8="}`},
		"a name that says nothing, content that do": {file: "noext", want: `{"name":"noext","contentType":"text/plain","text":"plain"}`},
		"a JSON file that is none says where":       {file: "d.json", wantError: "not one JSON document: byte 2"},
		"a folder is no file":                       {file: ".", wantError: "is a folder"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := FromFile(filepath.Join(dir, tt.file))
			if tt.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantError) {
					t.Fatalf("error %v, want %q", err, tt.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big.txt")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(api.MaxPayload + 1); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "at most 10 MiB") {
		t.Errorf("Read of a file over the limit: %v", err)
	}
}

func TestReadRuns(t *testing.T) {
	dir := folder(t, map[string]string{
		"a.txt": "one",
		"good.jsonl": `{"agent":"check","input":{"$file":"a.txt"}}` + "\n\n" +
			`{"agent":"check","input":1}` + "\n" + `{"agent":"check","input":1}` + "\r\n" +
			`{"agent":"check","key":"mine","input":{"$files":2},"priority":70}`,
		"bad.jsonl": "{\"agnt\":\"x\"}\n{\"agent\":\"x\"} {}\nnot json\n{\"input\":1}\n{\"agent\":\"x\",\"input\":{\"$file\":\"missing\"}}\n{\"agent\":\"x\",\"input\":{\"$file\":1}}\n",
	})
	submits := func() []api.Submit {
		t.Helper()
		runs, err := ReadRuns(filepath.Join(dir, "good.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		var all []api.Submit
		for _, r := range runs {
			s, err := r.Submit()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		return all
	}
	first := submits()
	if len(first) != 4 {
		t.Fatalf("%d runs, want 4: blank lines are none", len(first))
	}
	if got := string(first[0].Input); got != `{"name":"a.txt","contentType":"text/plain","text":"one"}` {
		t.Errorf("input of a file: %s", got)
	}
	if first[1].Key == first[2].Key || first[1].Key == "" {
		t.Errorf("two equal lines have keys %q and %q, want two runs", first[1].Key, first[2].Key)
	}
	if first[3].Key != "mine" || *first[3].Priority != 70 || string(first[3].Input) != `{"$files":2}` {
		t.Errorf("a line with its own key: %+v", first[3])
	}
	if diff := cmp.Diff(first, submits()); diff != "" {
		t.Errorf("read again, the runs differ:\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if submits()[0].Key == first[0].Key {
		t.Error("a changed file keeps the key: its run would be refused as another request")
	}

	_, err := ReadRuns(filepath.Join(dir, "bad.jsonl"))
	for _, want := range []string{
		`bad.jsonl:1: unknown field "agnt"`, "bad.jsonl:2: more than one", "bad.jsonl:3: ", "bad.jsonl:4: agent: missing",
		"bad.jsonl:5: input.$file: stat", "bad.jsonl:6: input.$file: want the path",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bad file: error\n%v\nwant it to have %q", err, want)
		}
	}
}
