package dashboard

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestValuesAreShownByTheirFields(t *testing.T) {
	for name, c := range map[string]struct {
		raw  string
		want []Field
	}{
		"texts, in their order": {`{"b":"1","a":""}`, []Field{{Name: "b", Text: "1", Plain: true}, {Name: "a", Plain: true}}},
		"figures as they are written": {`{"n":1.50,"t":true,"x":null,"big":12345678901234567890}`,
			[]Field{{Name: "n", Text: "1.50"}, {Name: "t", Text: "true"}, {Name: "x", Text: "null"}, {Name: "big", Text: "12345678901234567890"}}},
		"a field that is there twice":        {`{"pay":"1","pay":"9"}`, []Field{{Name: "pay", Text: "1", Plain: true}, {Name: "pay", Text: "9", Plain: true}}},
		"a list of texts":                    {`{"l":["x","y"]}`, []Field{{Name: "l", List: []string{"x", "y"}}}},
		"a list with nothing among texts":    {`{"l":["x",null]}`, []Field{{Name: "l", Text: "[\n  \"x\",\n  null\n]", Long: true}}},
		"what is in it as JSON":              {`{"o":{"a":[]}}`, []Field{{Name: "o", Text: "{\n  \"a\": []\n}", Long: true}}},
		"a text of lines":                    {`{"t":"a\nb"}`, []Field{{Name: "t", Text: "a\nb", Plain: true, Long: true}}},
		"no object":                          {`["a"]`, nil},
		"an object with too many fields":     {"{" + strings.Repeat(`"a":1,`, maxFields) + `"a":1}`, nil},
		"an object that is too large for it": {`{"a":"` + strings.Repeat("x", maxIndent) + `"}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := ValueOf([]byte(c.raw), 0)
			if diff := cmp.Diff(c.want, got.Fields); diff != "" {
				t.Error(diff)
			}
			if strings.ReplaceAll(strings.ReplaceAll(got.JSON, " ", ""), "\n", "") != strings.ReplaceAll(c.raw, " ", "") {
				t.Errorf("its JSON is %.200s", got.JSON)
			}
		})
	}
}

func TestOfALongValueTheBeginningIsShown(t *testing.T) {
	got := ValueOf([]byte(`{"a":"`+strings.Repeat("é", 1<<20)+`"}`), 1001)
	if got.Fields != nil || len(got.JSON) > 1100 || !strings.HasSuffix(got.JSON, "… 2097160 bytes in all") || strings.Contains(got.JSON, "\ufffd") {
		t.Errorf("%d bytes and %d fields: …%s", len(got.JSON), len(got.Fields), got.JSON[len(got.JSON)-60:])
	}
	if got := ValueOf(nil, 10); got.JSON != "" || got.Fields != nil {
		t.Errorf("nothing is %+v", got)
	}
}

func TestWhatHidesOrTurnsTextIsShown(t *testing.T) {
	for in, want := range map[string]string{
		"Pay \u202e0005 RUE\u202c": `Pay \u202e0005 RUE\u202c`,
		"a\u200bb\ufeffc\u00add":   `a\u200bb\ufeffc\u00add`,
		"\u2066x\u2069\u061c":      `\u2066x\u2069\u061c`,
		"a\x1b[31m\x7f\u0085":      `a\u001b[31m\u007f\u0085`,
		"line\u2028line":           `line\u2028line`,
		"a\tb\nc":                  "a\tb\nc",
		"שלום, Büro, 木":            "שלום, Büro, 木",
		"می\u200cخواهم 👩\u200d🚀":   "می\u200cخواهم 👩\u200d🚀",
		"tag \U000e0041":           `tag \ue0041`,
		"broken \xff":              "broken \xff",
	} {
		if got := string(visible([]byte(in))); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

func FuzzValuesAreShownWhole(f *testing.F) {
	f.Add([]byte(`{"a":["x",1,{"b":null}],"c":"\u202e"}`), 64)
	f.Fuzz(func(t *testing.T, raw []byte, most int) {
		got := ValueOf(raw, most)
		if most > 0 && len(got.JSON) > most+64 {
			t.Errorf("%d bytes are shown of at most %d", len(got.JSON), most)
		}
		if _, err := Render(Gate{Action: got}); err != nil {
			t.Error(err)
		}
	})
}
