package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
)

func TestStrictDecoding(t *testing.T) {
	deep := strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth)
	for name, c := range map[string]struct {
		into any
		body string
		want []string // LOCATION: MESSAGE of each fault; nil for none
	}{
		"a whole submission":                {&api.Submit{}, `{"agent":"a","input":{"x":[1,2.5e3,null,"\u00e9\n"]},"priority":7,"deadline":"2026-01-31T12:00:00Z","labels":{"k":"v"}}`, nil},
		"null where a pointer is":           {&api.Submit{}, `{"agent":"a","priority":null,"budget":null,"labels":null}`, nil},
		"an unknown field":                  {&api.Submit{}, `{"agent":"a","inptu":1}`, []string{"body.inptu: unknown field"}},
		"a name in another case":            {&api.Submit{}, `{"Agent":"a"}`, []string{`body.Agent: unknown field; did you mean "agent"?`}},
		"a name given twice":                {&api.Submit{}, `{"agent":"a","agent":"b"}`, []string{"body.agent: given twice"}},
		"a doubled name in a payload":       {&api.Submit{}, `{"input":{"to":"a","to":"b"}}`, []string{"body.input.to: given twice"}},
		"a doubled name by an escape":       {&api.Submit{}, `{"agent":"a","\u0061gent":"b"}`, []string{"body.agent: given twice"}},
		"an object for text":                {&api.Submit{}, `{"agent":{}}`, []string{"body.agent: want text, got an object"}},
		"text for a number":                 {&api.Submit{}, `{"priority":"7"}`, []string{"body.priority: want a whole number, got text"}},
		"a fraction for a whole number":     {&api.Submit{}, `{"priority":1.5}`, []string{"body.priority: want a whole number of at most 64 bits, got 1.5"}},
		"a number that does not fit":        {&api.Submit{}, `{"budget":{"tokens":99999999999999999999}}`, []string{"body.budget.tokens: want a whole number of at most 64 bits"}},
		"a number beyond floating point":    {&api.Score{}, `{"score":1e999}`, []string{"body.score: the number 1e999 is too large"}},
		"null for text":                     {&api.Submit{}, `{"agent":null}`, []string{"body.agent: want text, got null"}},
		"a required field that is missing":  {&api.Resolve{}, `{}`, []string{"body.happened: missing"}},
		"a wrong time":                      {&api.Submit{}, `{"deadline":"tomorrow"}`, []string{`body.deadline: time "tomorrow"`}},
		"a wrong length of time":            {&api.Cancel{}, `{"grace":"10"}`, []string{"body.grace: duration 10"}},
		"several faults at once":            {&api.BatchSubmit{}, `{"runs":[{"agent":1},{"x":2}]}`, []string{"body.runs[0].agent: want text", "body.runs[1].x: unknown field"}},
		"log lines need no more than text":  {&api.Report{}, `{"logs":[{"text":"a"}]}`, nil},
		"the depth that is allowed":         {&api.Submit{}, `{"input":` + deep[1:len(deep)-1] + `}`, nil},
		"one level too deep":                {&api.Submit{}, `{"input":` + deep + `}`, []string{"body: line 1, column 109: nested more than 100 levels deep"}},
		"a second document":                 {&api.Submit{}, `{} {}`, []string{"body: line 1, column 4: text after the end"}},
		"a trailing comma":                  {&api.Submit{}, "{\"agent\":\"a\",\n}", []string{"body: line 2, column 1: a comma before the closing brace"}},
		"a comment":                         {&api.Submit{}, `{/*x*/}`, []string{"body: line 1, column 2: want a name"}},
		"a leading zero":                    {&api.Submit{}, `{"priority":07}`, []string{"body: line 1, column 14: want a comma"}},
		"a lone minus":                      {&api.Submit{}, `{"priority":-}`, []string{"body: line 1, column 14: want a digit"}},
		"not a number":                      {&api.Score{}, `{"score":NaN}`, []string{"body: line 1, column 10: unexpected 'N'"}},
		"a wrong escape":                    {&api.Submit{}, `{"agent":"\x"}`, []string{"body: line 1, column 12: text with a wrong escape"}},
		"a short unicode escape":            {&api.Submit{}, `{"agent":"\u12"}`, []string{"body: line 1, column 15: a \\u escape needs four"}},
		"a control character in text":       {&api.Submit{}, "{\"agent\":\"a\x01\"}", []string{"body: line 1, column 12: a control character"}},
		"bytes that are no UTF-8":           {&api.Submit{}, "{\"agent\":\"a\xff\"}", []string{"body: line 1, column 12: not UTF-8"}},
		"an early end":                      {&api.Submit{}, `{"agent":"a"`, []string{"body: line 1, column 13: the document ends too early"}},
		"an array for an object":            {&api.Submit{}, `[]`, []string{"body: want an object, got an array"}},
		"white space alone":                 {&api.Submit{}, " \n", []string{"body: line 2, column 1: the body is empty"}},
		"a cut word":                        {&api.Submit{}, `{"input":tru}`, []string{"body: line 1, column 10: want a JSON value"}},
		"an embedded struct's own fields":   {&api.AttemptStanding{}, `{"id":"a.1","deadline":null,"cancel":true,"Standing":{}}`, []string{"body.Standing: unknown field"}},
		"a map with values of another kind": {&api.Submit{}, `{"labels":{"a":1}}`, []string{"body.labels.a: want text, got a number"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := unmarshal([]byte(c.body), c.into)
			if c.want == nil {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			var p *api.Problem
			if !errors.As(err, &p) {
				t.Fatalf("error is %v, want a problem", err)
			}
			if len(p.Errors) != len(c.want) {
				t.Fatalf("faults %+v, want %d", p.Errors, len(c.want))
			}
			for i, f := range p.Errors {
				if got := f.Location + ": " + f.Message; !strings.HasPrefix(got, c.want[i]) {
					t.Errorf("fault %d is %q, want %q", i, got, c.want[i])
				}
			}
		})
	}
}

func TestABodyThatIsAnnouncedTooLargeIsNotRead(t *testing.T) {
	r := httptest.NewRequest("POST", "/", iotest.ErrReader(errors.New("it was read")))
	r.ContentLength = 11
	_, err := readBody(httptest.NewRecorder(), r, 10)
	var p *api.Problem
	if !errors.As(err, &p) || p.Code() != api.CodeTooLarge {
		t.Errorf("error is %v", err)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"a0":0`)
	for range 1000 {
		b.WriteString(`,"a0":0`)
	}
	b.WriteString("}")
	faults, err := scan([]byte(b.String()), shapeOf(typeOf[api.Submit]()))
	if err != nil || len(faults) != maxFaults {
		t.Errorf("%d faults and error %v, want %d", len(faults), err, maxFaults)
	}
}

func TestMembersOfAnObjectAreBounded(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`{"input":{`)
	for i := range maxMembers + 1 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + itoa(i) + `":0`)
	}
	b.WriteString(`}}`)
	if _, err := scan(b.Bytes(), shapeOf(typeOf[api.Submit]())); err == nil || !strings.Contains(err.Error(), "more than 100000 names") {
		t.Errorf("error is %v", err)
	}
}

// FuzzUnmarshal: what the scan lets through is what a strict encoding/json would take, and what it calls no JSON is
// none, but for the bounds.
func FuzzUnmarshal(f *testing.F) {
	for _, seed := range []string{
		`{"agent":"a","input":{"x":[1,2.5e3,null,"\u00e9"]},"priority":7}`, `{"agent":"a","agent":"b"}`, `[]`, `{"input":`, `{"deadline":"2026-01-31T12:00:00Z"}`,
		`{"labels":{"a":"b"},"budget":{"usd":1e3}}`, "{\"agent\":\"\xff\"}", `{"input":-0.0}`, ` {} `, `{"input":"\ud800"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		faults, err := scan(body, shapeOf(typeOf[api.Submit]()))
		if err != nil {
			if json.Valid(body) && !strings.Contains(err.Error(), "UTF-8") && !strings.Contains(err.Error(), "levels deep") {
				t.Fatalf("valid JSON %q called none: %v", body, err)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("invalid JSON %q let through", body)
		}
		if len(faults) > 0 {
			return
		}
		var got api.Submit
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil {
			t.Fatalf("%q let through, but %v", body, err)
		}
		var again api.Submit
		if err := unmarshal(body, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzReports decodes what anybody may post to the worker endpoints: it must end in a report or a problem.
func FuzzReports(f *testing.F) {
	f.Add([]byte(`{"reports":[{"type":"park","park":{"on":"timer","step":"s","until":"2026-01-31T12:00:00Z"}}]}`))
	f.Add([]byte(`{"reports":[{"type":"fail","class":"user","retryAfter":"1s"},{"type":"step","step":{"name":"a","error":{"message":"b"}}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var q api.ReportBatch
		if unmarshal(body, &q) != nil {
			return
		}
		for i := range q.Reports {
			_, err := report(q.Reports[i].Type, grantOf("run1", 1), &q.Reports[i], "body")
			var p *api.Problem
			if err != nil && !errors.As(err, &p) {
				t.Fatalf("error is no problem: %v", err)
			}
		}
	})
}

func BenchmarkScan(b *testing.B) {
	body := []byte(`{"agent":"invoice-extract","input":{"document":"` + strings.Repeat("x", 1000) + `","pages":[1,2,3]},"key":"k-1","labels":{"team":"finance"}}`)
	s := shapeOf(typeOf[api.Submit]())
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := scan(body, s); err != nil {
			b.Fatal(err)
		}
	}
}
