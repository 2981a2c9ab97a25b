package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a value that is shown by its fields. One with more is shown as JSON.
const (
	maxFields = 100
	maxIndent = 256 << 10 // bytes of JSON that are taken apart
	longText  = 200       // bytes of a text that has a line of its own
)

// Value is a JSON value as a page shows it.
type Value struct {
	Fields []Field // of an object that is small enough, in its order
	JSON   string  // the whole, indented; cut where it is long
}

// Field is one field of an object.
type Field struct {
	Name string
	Text string   // of a text; of anything else but a list of texts its JSON
	List []string // of a list of texts
	// Plain: Text is the text itself. Long: it takes lines of its own.
	Plain, Long bool
}

// ValueOf prepares a value, of which at most so many bytes are shown; 0 shows all of it, for nobody approves what was
// cut. What was cut has no fields.
func ValueOf(raw json.RawMessage, most int) Value {
	if len(raw) == 0 {
		return Value{}
	}
	var b bytes.Buffer
	if len(raw) > maxIndent || json.Indent(&b, raw, "", "  ") != nil {
		b.Reset()
		b.Write(raw)
	}
	if most > 0 && b.Len() > most {
		return Value{JSON: strings.ToValidUTF8(string(b.Bytes()[:most]), "") + fmt.Sprintf("\n… %d bytes in all", len(raw))}
	}
	return Value{Fields: fieldsOf(raw), JSON: b.String()}
}

// fieldsOf takes an object apart, in its order; nil for anything else, and for one with too many fields.
func fieldsOf(raw json.RawMessage) []Field {
	if len(raw) > maxIndent {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	var out []Field
	for d.More() {
		name, err := d.Token()
		if err != nil || len(out) == maxFields {
			return nil
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return nil
		}
		out = append(out, fieldOf(name.(string), value))
	}
	return out
}

func fieldOf(name string, raw json.RawMessage) Field {
	f := Field{Name: name}
	switch raw[0] {
	case '"':
		f.Plain = true
		_ = json.Unmarshal(raw, &f.Text) // it was decoded once
		f.Long = len(f.Text) > longText || strings.ContainsAny(f.Text, "\n")
		return f
	case '[':
		if json.Unmarshal(raw, &f.List) == nil && len(f.List) > 0 && !bytes.Contains(raw, []byte("null")) {
			return f
		}
		f.List = nil
	}
	var b bytes.Buffer
	_ = json.Indent(&b, raw, "", "  ") // it was decoded once
	f.Text = b.String()
	f.Long = strings.Contains(f.Text, "\n")
	return f
}

// visible replaces characters that show nothing, and those that turn the order of what stands around them, by their
// codes: what people read is what is there.
func visible(page []byte) []byte {
	if bytes.IndexFunc(page, hides) < 0 {
		return page
	}
	out := make([]byte, 0, len(page)+64)
	for len(page) > 0 {
		r, n := utf8.DecodeRune(page)
		if hides(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = append(out, page[:n]...)
		}
		page = page[n:]
	}
	return out
}

// hides reports whether a character is one of those. The joiners are not: names and pictures are written with them.
func hides(r rune) bool {
	switch {
	case r == '\n' || r == '\t' || r == '\u200c' || r == '\u200d':
		return false
	case r == '\u2028' || r == '\u2029':
		return true
	}
	return r < ' ' || r >= 0x7f && unicode.In(r, unicode.Cc, unicode.Cf)
}
