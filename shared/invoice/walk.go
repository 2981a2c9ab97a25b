package invoice

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// The namespaces of UBL 2; the minor version is not part of them.
const (
	nsInvoice    = "urn:oasis:names:specification:ubl:schema:xsd:Invoice-2"
	nsCreditNote = "urn:oasis:names:specification:ubl:schema:xsd:CreditNote-2"
	nsBasic      = "urn:oasis:names:specification:ubl:schema:xsd:CommonBasicComponents-2"
	nsAggregate  = "urn:oasis:names:specification:ubl:schema:xsd:CommonAggregateComponents-2"
)

// A walker goes through the elements of a document once, in order, and knows
// where it is, so that every fault can say so.
type walker struct {
	tokens *xml.Decoder
	start  xml.StartElement // the element entered last
	path   []step           // from the root to the current element
}

type step struct {
	name  string // "cbc:ID"; the root has no prefix
	index int    // from 1 among its like; 0 where only one may be
	line  int
}

// newWalker prepares a walk over doc, which is UTF-8 unless it declares
// ISO-8859-1 or US-ASCII. Other encodings are refused.
func newWalker(doc []byte) (*walker, error) {
	if bytes.HasPrefix(doc, []byte{0xFE, 0xFF}) || bytes.HasPrefix(doc, []byte{0xFF, 0xFE}) {
		return nil, &Error{Line: 1, Problem: "the document is UTF-16; convert it to UTF-8"}
	}
	rest, marked := bytes.CutPrefix(doc, []byte("\xEF\xBB\xBF"))
	w := &walker{tokens: xml.NewDecoder(bytes.NewReader(rest))}
	declared := false
	w.tokens.CharsetReader = func(label string, input io.Reader) (io.Reader, error) {
		// The parser takes a declaration wherever it stands, and each one would
		// double what follows: a few of them are a bomb.
		if declared || len(w.path) > 0 {
			return nil, &Error{Line: w.lineNow(), Problem: "an XML declaration is not at the start of the document; remove it"}
		}
		declared = true
		if marked {
			return nil, &Error{Line: 1, Problem: fmt.Sprintf("the byte order mark says UTF-8, the XML declaration %q; make them agree", clip(label, 40))}
		}
		switch strings.ToLower(label) {
		case "iso-8859-1", "latin1":
			return latin1(input)
		case "us-ascii", "ascii": // a subset of UTF-8, and the parser refuses what is not UTF-8
			return input, nil
		}
		return nil, &Error{Line: 1, Problem: fmt.Sprintf("encoding %q is not supported; convert the document to UTF-8 (ISO-8859-1 and US-ASCII are read too)", clip(label, 40))}
	}
	return w, nil
}

// latin1 converts ISO-8859-1, whose bytes are the first 256 code points.
func latin1(input io.Reader) (io.Reader, error) {
	raw, err := io.ReadAll(input)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(raw)+len(raw)/8)
	for _, c := range raw {
		out = utf8.AppendRune(out, rune(c))
	}
	return bytes.NewReader(out), nil
}

// root goes to the root element and enters it.
func (w *walker) root() error {
	for {
		token, err := w.next()
		if errors.Is(err, io.EOF) {
			return &Error{Line: w.lineNow(), Problem: "there is no XML element; send a UBL Invoice or CreditNote"}
		}
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.StartElement:
			return w.enter(t, t.Name.Local)
		case xml.CharData:
			if len(bytes.Trim(t, xmlSpace)) > 0 {
				return &Error{Line: w.lineNow(), Problem: "there is text before the root element; send a UBL Invoice or CreditNote as XML"}
			}
		}
	}
}

// finish makes sure that nothing follows the root element.
func (w *walker) finish() error {
	for {
		token, err := w.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.StartElement:
			return &Error{Line: w.lineNow(), Problem: "a second root element follows the document; send one document at a time"}
		case xml.CharData:
			if len(bytes.Trim(t, xmlSpace)) > 0 {
				return &Error{Line: w.lineNow(), Problem: "text follows the root element; remove it"}
			}
		}
	}
}

// children calls visit for each child of the current element that is UBL's,
// with its usual prefix ("cbc:ID", "cac:Party"), and leaves the element. What
// visit does not consume is skipped, and so are elements of other namespaces.
func (w *walker) children(visit func(name string) error) error {
	for {
		token, err := w.next()
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.EndElement:
			w.leave()
			return nil
		case xml.StartElement:
			depth := len(w.path)
			name := prefixed(t.Name)
			if err := w.enter(t, name); err != nil {
				return err
			}
			if name != "" {
				if err := visit(name); err != nil {
					return err
				}
			}
			if len(w.path) > depth {
				if err := w.skip(); err != nil {
					return err
				}
			}
		}
	}
}

// skip leaves the current element with all that is in it.
func (w *walker) skip() error {
	for depth := len(w.path); ; {
		token, err := w.next()
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.StartElement:
			if err := w.enter(t, prefixed(t.Name)); err != nil {
				return err
			}
		case xml.EndElement:
			w.leave()
			if len(w.path) < depth {
				return nil
			}
		}
	}
}

// value reads the text of the current element, gives it to use with white space
// trimmed, and leaves the element. An error of use is told with its place.
func (w *walker) value(use func(text string) error) error {
	var text []byte
	for {
		token, err := w.next()
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.StartElement:
			return w.fail("the element %q is within a value; a value is text alone", clip(t.Name.Local, 40))
		case xml.CharData:
			if len(text)+len(t) > MaxText {
				return w.fail("the value is longer than the %d bytes allowed", MaxText)
			}
			text = append(text, t...)
		case xml.EndElement:
			if err := use(strings.Trim(string(text), xmlSpace)); err != nil {
				return w.fail("%s", err)
			}
			w.leave()
			return nil
		}
	}
}

// attribute is the value of an attribute of the element entered last.
func (w *walker) attribute(name string) string {
	for _, a := range w.start.Attr {
		if a.Name.Space == "" && a.Name.Local == name {
			return strings.Trim(a.Value, xmlSpace)
		}
	}
	return ""
}

// enter makes an element the current one.
func (w *walker) enter(start xml.StartElement, name string) error {
	if len(w.path) == MaxDepth {
		return w.fail("elements are nested more than %d deep", MaxDepth)
	}
	w.start = start
	w.path = append(w.path, step{name: name, line: w.lineNow()})
	return nil
}

func (w *walker) leave() { w.path = w.path[:len(w.path)-1] }

// number says that the current element is the nth of its kind, and refuses it
// when there may not be so many.
func (w *walker) number(nth, most int) error {
	w.path[len(w.path)-1].index = nth
	if nth > most {
		return w.fail("there are more than %d of these; split the document", most)
	}
	return nil
}

// missing is an Error at the element of that depth in the path, which has been
// left just now, without a child that it needs.
func (w *walker) missing(depth int, child string) error {
	w.path = w.path[:depth]
	return w.fail("there is no %s; the element needs one", child)
}

// fail is an Error at the current element.
func (w *walker) fail(format string, args ...any) error {
	at := w.path[len(w.path)-1]
	return &Error{Line: at.line, Path: w.where(), Problem: fmt.Sprintf(format, args...)}
}

// where is the path to the current element.
func (w *walker) where() string {
	var b strings.Builder
	for _, s := range w.path {
		name := s.name
		if name == "" {
			name = "*"
		}
		b.WriteString("/" + name)
		if s.index > 0 {
			fmt.Fprintf(&b, "[%d]", s.index)
		}
	}
	return b.String()
}

func (w *walker) lineNow() int {
	line, _ := w.tokens.InputPos()
	return line
}

// next is the next token; the parser's complaints get a place.
func (w *walker) next() (xml.Token, error) {
	token, err := w.tokens.Token()
	var fault *Error
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return token, err
	case errors.As(err, &fault): // of CharsetReader, which the parser wraps
		return nil, fault
	}
	problem := err.Error()
	line := w.lineNow()
	var syntax *xml.SyntaxError
	if errors.As(err, &syntax) {
		problem, line = syntax.Msg, syntax.Line
	}
	return nil, &Error{Line: line, Path: w.where(), Problem: "not well-formed XML: " + clip(problem, 200)}
}

// prefixed names an element with UBL's usual prefix, whatever the document
// binds; it is empty for an element of another namespace.
func prefixed(name xml.Name) string {
	switch name.Space {
	case nsBasic:
		return "cbc:" + name.Local
	case nsAggregate:
		return "cac:" + name.Local
	}
	return ""
}
