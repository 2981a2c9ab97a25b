package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/errand-run/errand/shared/api"
)

// Bounds on the JSON that a request may carry, besides its size.
const (
	maxDepth   = 100     // levels of nesting
	maxMembers = 100_000 // names in one object
	maxFaults  = 20      // reported at once
)

// syntaxError is JSON that cannot be read on.
type syntaxError struct {
	line, column int
	message      string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.line, e.column, e.message)
}

// scanner checks a document against a shape in one pass, before anything is decoded.
type scanner struct {
	data   []byte
	at     int
	depth  int
	path   []step
	faults []api.Fault
}

// step leads from a value to one inside of it: an index, or a name when that is negative.
type step struct {
	name  string
	index int
}

// scan returns every fault of the document, up to maxFaults, or the one error that makes it no JSON.
func scan(data []byte, s *shape) (faults []api.Fault, err error) {
	defer func() {
		if r := recover(); r != nil {
			bad, ok := r.(*syntaxError)
			if !ok {
				panic(r)
			}
			faults, err = nil, bad
		}
	}()
	sc := &scanner{data: data}
	if !utf8.Valid(data) {
		for sc.at < len(data) {
			r, size := utf8.DecodeRune(data[sc.at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			sc.at += size
		}
		sc.fail("not UTF-8")
	}
	sc.space()
	if sc.at == len(data) {
		sc.fail("the body is empty; want %s", s.wants())
	}
	sc.value(s)
	sc.space()
	if sc.at < len(data) {
		sc.fail("text after the end of the document; want exactly one JSON document")
	}
	return sc.faults, nil
}

// fail ends the scan; scan recovers it.
func (sc *scanner) fail(format string, args ...any) {
	before := sc.data[:min(sc.at, len(sc.data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):])
	panic(&syntaxError{line, column, fmt.Sprintf(format, args...)})
}

func (sc *scanner) fault(format string, args ...any) {
	if len(sc.faults) < maxFaults {
		sc.faults = append(sc.faults, api.Fault{Location: sc.location(), Message: fmt.Sprintf(format, args...)})
	}
}

// location is where the scanner is, as body.runs[2].agent.
func (sc *scanner) location() string {
	var b strings.Builder
	b.WriteString("body")
	for _, st := range sc.path {
		if st.index < 0 {
			b.WriteString("." + clip(st.name))
		} else {
			b.WriteString("[" + strconv.Itoa(st.index) + "]")
		}
	}
	return b.String()
}

func (sc *scanner) push(st step) { sc.path = append(sc.path, st) }
func (sc *scanner) pop()         { sc.path = sc.path[:len(sc.path)-1] }

func (sc *scanner) space() {
	for sc.at < len(sc.data) {
		switch sc.data[sc.at] {
		case ' ', '\t', '\n', '\r':
			sc.at++
		default:
			return
		}
	}
}

func (sc *scanner) peek() byte {
	if sc.at == len(sc.data) {
		sc.fail("the document ends too early")
	}
	return sc.data[sc.at]
}

// value reads one value. What does not fit the shape is a fault, and is read on as any value.
func (sc *scanner) value(s *shape) {
	switch c := sc.peek(); {
	case c == '{':
		if !sc.fits(s, object, mapping) {
			s = free
		}
		sc.object(s)
	case c == '[':
		if !sc.fits(s, array) {
			s = free
		}
		sc.array(s)
	case c == '"':
		start := sc.at
		sc.string()
		if sc.fits(s, text) && s.parses != nil {
			if err := s.parses(sc.data[start:sc.at]); err != nil {
				sc.fault("%v", err)
			}
		}
	case c == '-' || (c >= '0' && c <= '9'):
		sc.number(s)
	case c == 't':
		sc.word("true")
		sc.fits(s, boolean)
	case c == 'f':
		sc.word("false")
		sc.fits(s, boolean)
	case c == 'n':
		sc.word("null")
		if !s.nullable {
			sc.fault("want %s, got null; leave the field out for its default", s.wants())
		}
	default:
		sc.fail("unexpected %q; want a JSON value", rune(c))
	}
}

// free is the shape of payloads.
var free = &shape{nullable: true}

func (sc *scanner) fits(s *shape, kinds ...kind) bool {
	if s.kind == anyValue {
		return true
	}
	if slices.Contains(kinds, s.kind) {
		return true
	}
	sc.fault("want %s, got %s", s.wants(), (&shape{kind: kinds[0]}).wants())
	return false
}

func (sc *scanner) enter() {
	if sc.depth++; sc.depth > maxDepth {
		sc.fail("nested more than %d levels deep", maxDepth)
	}
	sc.at++
	sc.space()
}

func (sc *scanner) object(s *shape) {
	sc.enter()
	var names nameSet
	for first := true; ; first = false {
		if sc.peek() == '}' {
			if first {
				break
			}
			sc.fail("a comma before the closing brace")
		}
		if sc.peek() != '"' {
			sc.fail("want a name in double quotes")
		}
		name := sc.name()
		sc.space()
		if sc.peek() != ':' {
			sc.fail("want a colon after the name %q", clip(name))
		}
		sc.at++
		sc.space()
		sc.member(s, name, &names)
		sc.space()
		if c := sc.peek(); c == '}' {
			break
		} else if c != ',' {
			sc.fail("want a comma or a closing brace after the value of %q", clip(name))
		}
		sc.at++
		sc.space()
	}
	sc.at++
	sc.depth--
	if s.kind == object {
		for _, name := range s.required {
			if !names.has(name) {
				sc.push(step{name, -1})
				sc.fault("missing")
				sc.pop()
			}
		}
	}
}

func (sc *scanner) member(s *shape, name string, names *nameSet) {
	sc.push(step{name, -1})
	defer sc.pop()
	if !names.add(name) {
		sc.fault("given twice")
	}
	if names.size() > maxMembers {
		sc.fail("an object with more than %d names", maxMembers)
	}
	inner := free
	switch s.kind {
	case mapping:
		inner = s.element
	case object:
		f, ok := s.fields[name]
		if !ok {
			sc.fault("unknown field; %s", s.suggest(name))
			break
		}
		inner = f.shape
	}
	sc.value(inner)
}

func (sc *scanner) array(s *shape) {
	sc.enter()
	inner := free
	if s.kind == array {
		inner = s.element
	}
	for i := 0; ; i++ {
		if sc.peek() == ']' {
			if i == 0 {
				break
			}
			sc.fail("a comma before the closing bracket")
		}
		sc.push(step{index: i})
		sc.value(inner)
		sc.pop()
		sc.space()
		if c := sc.peek(); c == ']' {
			break
		} else if c != ',' {
			sc.fail("want a comma or a closing bracket")
		}
		sc.at++
		sc.space()
	}
	sc.at++
	sc.depth--
}

// name reads a string that names a member and returns its value.
func (sc *scanner) name() string {
	start := sc.at
	escaped := sc.string()
	token := sc.data[start:sc.at]
	if !escaped {
		return string(token[1 : len(token)-1])
	}
	var s string
	if err := json.Unmarshal(token, &s); err != nil {
		sc.at = start
		sc.fail("text with a wrong escape")
	}
	return s
}

// string reads a string and reports whether it has escapes.
func (sc *scanner) string() (escaped bool) {
	for i := sc.at + 1; i < len(sc.data); i++ {
		switch c := sc.data[i]; {
		case c == '"':
			sc.at = i + 1
			return escaped
		case c == '\\':
			escaped = true
			sc.at = i + 1
			sc.escape()
			i = sc.at
		case c < ' ':
			sc.at = i
			sc.fail("a control character in text; write it as \\u%04x", c)
		}
	}
	sc.at = len(sc.data)
	sc.peek() // fails
	return false
}

// escape checks what follows a backslash and leaves the scanner on its last byte.
func (sc *scanner) escape() {
	switch sc.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
	case 'u':
		for range 4 {
			sc.at++
			switch c := sc.peek(); {
			case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
			default:
				sc.fail("a \\u escape needs four hexadecimal digits")
			}
		}
	default:
		sc.fail("text with a wrong escape")
	}
}

func (sc *scanner) digits() {
	if c := sc.peek(); c < '0' || c > '9' {
		sc.fail("want a digit")
	}
	for sc.at < len(sc.data) && sc.data[sc.at] >= '0' && sc.data[sc.at] <= '9' {
		sc.at++
	}
}

func (sc *scanner) number(s *shape) {
	start := sc.at
	if sc.data[sc.at] == '-' {
		sc.at++
	}
	if sc.peek() == '0' {
		sc.at++
	} else {
		sc.digits()
	}
	if sc.at < len(sc.data) && sc.data[sc.at] == '.' {
		sc.at++
		sc.digits()
	}
	if sc.at < len(sc.data) && (sc.data[sc.at] == 'e' || sc.data[sc.at] == 'E') {
		sc.at++
		if c := sc.peek(); c == '+' || c == '-' {
			sc.at++
		}
		sc.digits()
	}
	literal := sc.data[start:sc.at]
	switch s.kind {
	case anyValue:
	case number:
		if f, err := strconv.ParseFloat(string(literal), 64); err != nil || math.IsInf(f, 0) {
			sc.fault("the number %s is too large", clip(string(literal)))
		}
	case integer:
		var err error
		if s.signed {
			_, err = strconv.ParseInt(string(literal), 10, s.bits)
		} else {
			_, err = strconv.ParseUint(string(literal), 10, s.bits)
		}
		if err != nil {
			sc.fault("want a whole number of at most %d bits, got %s", s.bits, clip(string(literal)))
		}
	default:
		sc.fault("want %s, got a number", s.wants())
	}
}

func (sc *scanner) word(w string) {
	if len(sc.data)-sc.at < len(w) || string(sc.data[sc.at:sc.at+len(w)]) != w {
		sc.fail("want a JSON value")
	}
	sc.at += len(w)
}

// suggest helps with an unknown name.
func (s *shape) suggest(name string) string {
	for _, known := range s.names {
		if strings.EqualFold(known, name) {
			return fmt.Sprintf("did you mean %q?", known)
		}
	}
	return "the fields are " + strings.Join(s.names, ", ")
}

// nameSet holds the names of one object; most have few.
type nameSet struct {
	few  [12]string
	n    int
	many map[string]struct{}
}

func (s *nameSet) size() int { return s.n }

func (s *nameSet) has(name string) bool {
	if s.many != nil {
		_, ok := s.many[name]
		return ok
	}
	return slices.Contains(s.few[:s.n], name)
}

// add reports whether the name was new.
func (s *nameSet) add(name string) bool {
	if s.has(name) {
		return false
	}
	switch {
	case s.many != nil:
		s.many[name] = struct{}{}
	case s.n < len(s.few):
		s.few[s.n] = name
	default:
		s.many = make(map[string]struct{}, 2*len(s.few))
		for _, n := range s.few {
			s.many[n] = struct{}{}
		}
		s.many[name] = struct{}{}
	}
	s.n++
	return true
}

// clip bounds what a message quotes.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
