package expr

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReferences(t *testing.T) {
	tests := map[string]struct{ source, want string }{
		"a variable":                        {`input`, "input@1:1"},
		"a field of a field":                {`stages.extract.output.total > 1`, "stages/extract/output/total@1:1"},
		"a name in brackets":                {`stages["line-check"].output`, "stages/line-check/output@1:1"},
		"a place in a list":                 {`input.lines[0].total`, "input/lines/0/total@1:1"},
		"a place that only evaluation says": {`input.lines[input.n].total`, "input/lines@1:1 input/n@1:13"},
		"a question whether it is there":    {`has(input.total) ? 1 : 0`, "input/total?@1:5"},
		"what a comprehension names":        {`input.lines.all(l, l.total > input.least)`, "input/lines@1:1 input/least@1:30"},
		"a name that a comprehension hides": {`input.lines.map(input, input.total)`, "input/lines@1:1"},
		"a map and a list":                  {`{"a": [input.a], item.key: 1}`, "input/a@1:8 item/key@1:18"},
		"none":                              {`1 + 1`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := CompileAny(tt.source, "input", "stages", "item")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range p.References() {
				var path []string
				for _, x := range r.Path {
					path = append(path, fmt.Sprint(x))
				}
				mark := ""
				if r.Tested {
					mark = "?"
				}
				got = append(got, fmt.Sprintf("%s%s@%d:%d", strings.Join(path, "/"), mark, r.Line, r.Column))
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTypeAndWhole(t *testing.T) {
	for source, want := range map[string]string{
		`input.a`:        " whole",
		`input`:          " whole",
		`has(input.a)`:   "boolean",
		`input.a > 1`:    "boolean",
		`"a" + "b"`:      "string",
		`[input]`:        "array",
		`{"a": input}`:   "object",
		`1.5`:            "number",
		`null`:           "null",
		`input.a + 1`:    "number",
		`size(input)`:    "number",
		`input.map(x,x)`: "array",
	} {
		p, err := CompileAny(source, "input")
		if err != nil {
			t.Fatal(err)
		}
		got := p.Type()
		if _, ok := p.Whole(); ok {
			got += " whole"
		}
		if got != want {
			t.Errorf("%s is %q, want %q", source, got, want)
		}
	}
}
