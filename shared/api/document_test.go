package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadDocument(t *testing.T) {
	tests := map[string]struct{ in, wantErr string }{
		"least":              {in: `{"run":"r","attempt":"r.1"}`},
		"a newer field":      {in: `{"run":"r","attempt":"r.1","tomorrow":1}` + "\n"},
		"nothing":            {in: ``, wantErr: "want one JSON object"},
		"no object":          {in: `[]`, wantErr: "array does not fit"},
		"a wrong type":       {in: `{"run":"r","attempt":"r.1","session":"s"}`, wantErr: "session: string does not fit"},
		"broken":             {in: `{"run":`, wantErr: "byte 7"},
		"two documents":      {in: `{"run":"r","attempt":"r.1"}{}`, wantErr: "byte 28"},
		"no run":             {in: `{"attempt":"r.1"}`, wantErr: "run: missing"},
		"no attempt":         {in: `{"run":"r"}`, wantErr: "attempt: missing"},
		"a time that is not": {in: `{"run":"r","attempt":"r.1","deadline":"soon"}`, wantErr: `time "soon"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d, err := ReadDocument(strings.NewReader(tt.in))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("%v; want …%s…", err, tt.wantErr)
				}
				return
			}
			if err != nil || d.Mode != "run" || string(d.Input) != "null" {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

func TestParseResult(t *testing.T) {
	tests := map[string]struct{ in, want string }{
		"nothing":                            {"", `{"output":null}`},
		"a document":                         {"{\"a\": 1}\n", `{"output":{"a":1}}`},
		"a document over lines":              {"{\n\"a\": 1\n}\n", `{"output":{"a":1}}`},
		"text":                               {"hello\nworld\n", `{"output":{"text":"hello\nworld"}}`},
		"text that is not UTF-8":             {"caf\xe9", `{"output":{"text":"caf\ufffd"}}`},
		"a result":                           {`{"output":1,"session":{"n":1},"usage":{"inputTokens":2}}`, `{"output":1,"usage":{"inputTokens":2},"session":{"n":1}}`},
		"a result after chatter":             {"working…\n{\"output\":null}", `{"output":null}`},
		"an error":                           {`x` + "\n" + `{"error":{"code":"C","message":"m","retryable":false,"retryAfter":"5s"}}`, `{"error":{"code":"C","message":"m","retryable":false,"retryAfter":"5s"}}`},
		"a park":                             {`{"park":{"on":"timer","step":"s"}}`, `{"park":{"on":"timer","step":"s"}}`},
		"an output that looks like a result": {`{"output":1,"more":2}`, `{"output":{"output":1,"more":2}}`},
		"an output with an error of its own": {`{"error":"none"}`, `{"output":{"error":"none"}}`},
		"a session alone is an output":       {`{"session":1}`, `{"output":{"session":1}}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(ParseResult([]byte(tt.in)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzReadDocument(f *testing.F) {
	f.Add([]byte(`{"run":"r","attempt":"r.1","agent":"a","tenant":"t","mode":"run","input":{},"key":"k","deadline":"2026-01-31T12:00:00Z","steps":[{"name":"s","seq":1,"result":1}],"session":{"name":"s","state":[]},"index":1,"completions":2}`))
	f.Add([]byte(`{"run":"r","attempt":"r.1","deadline":null,"steps":[{"error":{"retryAfter":"1s"}}]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		d, err := ReadDocument(bytes.NewReader(in))
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		// What was read can be written, and reads the same.
		out, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ReadDocument(bytes.NewReader(out))
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		second, err := json.Marshal(again)
		if err != nil || !bytes.Equal(out, second) {
			t.Errorf("%s\n%s\n%v", out, second, err)
		}
	})
}

func FuzzParseResult(f *testing.F) {
	f.Add([]byte("log\n{\"error\":{\"code\":\"C\",\"message\":\"m\"}}\n"))
	f.Add([]byte(`{"output":{}}`))
	f.Add([]byte("\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := ParseResult(in)
		if r.Output == nil && r.Error == nil && r.Park == nil {
			t.Error("no result at all")
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	})
}

func FuzzEventStream(f *testing.F) {
	f.Add([]byte("id: 1\nevent: x\ndata: {}\ndata: y\n\n: c\n\nevent: end\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newEventReader(bytes.NewReader(in))
		for n := 0; ; n++ {
			m, err := r.next(func() {})
			if err != nil {
				return
			}
			if n > len(in) || bytes.Contains(m.data, []byte("\r\n")) {
				t.Fatalf("message %d: %+v", n, m)
			}
		}
	})
}
