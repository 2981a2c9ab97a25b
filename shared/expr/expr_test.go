package expr

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompileSaysWhere(t *testing.T) {
	tests := map[string]struct{ source, want string }{
		"an unknown variable":         {`order.id`, "1:1: undeclared reference to 'order'"},
		"an unknown variable below":   {"[1,\n  order]", "2:3: undeclared reference"},
		"a bracket left open":         {`message.data[`, "1:14: Syntax error"},
		"nothing":                     {``, "Syntax error"},
		"an operand of a wrong type":  {`message.data + 1 == "a" + 1`, "1:25: found no matching overload"},
		"a function of another world": {`now()`, "1:4: undeclared reference to 'now'"},
		"depth without end":           {strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000), "recursion limit"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(tt.source, "message")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("compiled with %v, want an error with %q", err, tt.want)
			}
			if err != nil && len(err.Error()) > 2000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestValues(t *testing.T) {
	data, err := From([]byte(`{"n":1,"big":12345678901234567890,"f":1.5,"list":[1,"a",null],"s":"x<y"}`))
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{"message": map[string]any{"data": data, "attributes": map[string]string{"kind": "order"}}}
	tests := map[string]struct{ source, want string }{
		"a field":                     {`message.data.n`, `1`},
		"a number beyond 64 bits":     {`message.data.big`, `12345678901234567000`},
		"an object made of others":    {`{"kind": message.attributes.kind, "first": message.data.list[0], "all": message.data.list}`, `{"all":[1,"a",null],"first":1,"kind":"order"}`},
		"what JSON has no word for":   {`[b"ab", timestamp("2026-01-02T03:04:05Z"), duration("90s"), 1u]`, `["YWI=","2026-01-02T03:04:05Z","1m30s",1]`},
		"a whole and a broken number": {`message.data.n < 1.5 && message.data.f > 1`, `true`},
		"a field that may be missing": {`has(message.data.none) ? message.data.none : "-"`, `"-"`},
		"a list that is filtered":     {`message.data.list.filter(x, x != null).map(x, string(x))`, `["1","a"]`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := Compile(tt.source, "message")
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.JSON(t.Context(), variables)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoValue(t *testing.T) {
	many := make([]any, 2000)
	for i := range many {
		many[i] = int64(i)
	}
	variables := map[string]any{"message": map[string]any{"many": many, "secret": "hunter2"}}
	tests := map[string]struct{ source, want string }{
		"a missing field":             {`message.none`, "no such key: none"},
		"a division by zero":          {`1/(size(message.many)-2000)`, "division by zero"},
		"steps without end":           {`message.many.all(x, message.many.all(y, message.many.all(z, x+y+z >= 0)))`, "cost limit exceeded"},
		"memory without end":          {`message.many.map(x, message.many.map(y, message.many))`, "limit exceeded"},
		"a number that is not finite": {`1.0/0.0`, "not finite"},
		"a key that is no text":       {`{1: 2}`, "want texts"},
		"a type":                      {`type(1)`, "JSON does not have"},
		"a text that is no number":    {`int(message.secret)`, "evaluate"},
		"a text that is no instant":   {`timestamp(message.secret)`, "evaluate"},
		"a key that is not there":     {`{"a":1}[message.secret]`, "no such key"},
		"a text that is no pattern":   {`"a".matches(message.secret+"(")`, "evaluate"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := Compile(tt.source, "message")
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.JSON(t.Context(), variables)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error repeats a value: %v", err)
			}
		})
	}
}

func TestText(t *testing.T) {
	for source, want := range map[string]string{`"a"`: "a", `7`: "7", `1.5`: "", `null`: "", `[1]`: "", `true`: "", `{"a":1}`: ""} {
		p, err := Compile(source, "message")
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Text(t.Context(), map[string]any{"message": map[string]any{}})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s gives %q, %v; want %q", source, got, err, want)
		}
	}
}

func TestEvaluationEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p, err := Compile(`message.many.all(x, x >= 0)`, "message")
	if err != nil {
		t.Fatal(err)
	}
	many := make([]any, 10_000)
	for i := range many {
		many[i] = int64(1)
	}
	if _, err := p.Value(ctx, map[string]any{"message": map[string]any{"many": many}}); err == nil {
		t.Error("it went on")
	}
}
