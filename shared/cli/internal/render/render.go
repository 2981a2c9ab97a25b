// Package render writes what commands found out: as a table for people, and as JSON, YAML or bare names for programs.
// It is the one place that knows about columns, terminals and progress bars.
//
// Text that came over the wire is never trusted in a table: what could move the cursor or break a line is escaped.
package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Format is one of the values of -o.
type Format string

// The formats.
const (
	Table Format = "table"
	Wide  Format = "wide"
	JSON  Format = "json"
	YAML  Format = "yaml"
	Name  Format = "name"
)

// Formats lists all of them, in the order to show them.
var Formats = []Format{Table, Wide, JSON, YAML, Name}

// ParseFormat reads the value of -o.
func ParseFormat(s string) (Format, error) {
	names := make([]string, len(Formats))
	for i, f := range Formats {
		if string(f) == s {
			return f, nil
		}
		names[i] = string(f)
	}
	return "", fmt.Errorf("output format %q: want one of %s", Clean(s), strings.Join(names, ", "))
}

// Human reports whether the format is for people: such output may be shortened and explained.
func (f Format) Human() bool { return f == Table || f == Wide }

// Column is one column of a table.
type Column[T any] struct {
	Head string
	Wide bool // shown by -o wide only
	Cell func(T) string
}

// View says how values of one type are shown.
type View[T any] struct {
	Columns []Column[T]
	Name    func(T) string // what -o name prints
	// Detail is the table form of a single object where a row would hide too much; nil shows a row.
	Detail func(io.Writer, T) error
	// YAML replaces the value in -o yaml; nil shows what JSON shows.
	YAML func(T) any
}

// Printer writes values in one format.
type Printer struct {
	W      io.Writer
	Format Format
}

// List prints all items: one array, one list of YAML documents, a name a line, or one table, which is nothing at all
// for no items.
func List[T any](p Printer, v View[T], items []T) error {
	switch p.Format {
	case JSON:
		if items == nil {
			items = []T{}
		}
		return writeJSON(p.W, items, "  ")
	case Table, Wide:
		s := NewStream(p, v)
		s.Fit(items)
		for _, item := range items {
			s.header()
			s.row(item)
		}
		return s.flush()
	}
	s := NewStream(p, v)
	for _, item := range items {
		if err := s.Add(item); err != nil {
			return err
		}
	}
	return nil
}

// One prints a single object.
func One[T any](p Printer, v View[T], item T) error {
	switch {
	case p.Format == JSON:
		return writeJSON(p.W, item, "  ")
	case p.Format.Human() && v.Detail != nil:
		return v.Detail(p.W, item)
	}
	return List(p, v, []T{item})
}

// Stream prints items as they come: NDJSON, YAML documents, names, or rows whose columns grow with their content.
type Stream[T any] struct {
	p       Printer
	v       View[T]
	columns []Column[T]
	widths  []int
	started bool
	buf     bytes.Buffer
}

// NewStream starts a stream. Nothing is written before the first item.
func NewStream[T any](p Printer, v View[T]) *Stream[T] {
	s := &Stream[T]{p: p, v: v}
	for _, c := range v.Columns {
		if !c.Wide || p.Format == Wide {
			s.columns = append(s.columns, c)
			s.widths = append(s.widths, utf8.RuneCountInString(c.Head))
		}
	}
	return s
}

// Add prints one more item.
func (s *Stream[T]) Add(item T) error {
	switch s.p.Format {
	case JSON:
		return writeJSON(s.p.W, item, "")
	case YAML:
		var value any = item
		if s.v.YAML != nil {
			value = s.v.YAML(item)
		}
		text, err := ToYAML(value)
		if err != nil {
			return err
		}
		if s.started {
			text = append([]byte("---\n"), text...)
		}
		s.started = true
		_, err = s.p.W.Write(text)
		return err
	case Name:
		_, err := fmt.Fprintln(s.p.W, Clean(s.v.Name(item)))
		return err
	}
	s.measure(item)
	s.header()
	s.row(item)
	return s.flush()
}

// Fit widens the columns for items that are about to be added.
func (s *Stream[T]) Fit(items []T) {
	for _, item := range items {
		s.measure(item)
	}
}

func (s *Stream[T]) measure(item T) {
	for i, c := range s.columns {
		s.widths[i] = max(s.widths[i], min(utf8.RuneCountInString(Clean(c.Cell(item))), maxCell))
	}
}

func (s *Stream[T]) header() {
	if s.started {
		return
	}
	s.started = true
	s.cells(func(c Column[T]) string { return c.Head })
}

func (s *Stream[T]) row(item T) {
	s.cells(func(c Column[T]) string { return Clean(c.Cell(item)) })
}

// maxCell bounds what one value may widen its column by; longer ones overhang.
const maxCell = 60

func (s *Stream[T]) cells(text func(Column[T]) string) {
	for i, c := range s.columns {
		cell := text(c)
		s.buf.WriteString(cell)
		if i < len(s.columns)-1 {
			s.buf.WriteString(strings.Repeat(" ", max(0, s.widths[i]-utf8.RuneCountInString(cell))+3))
		}
	}
	// Blanks at the end of a row are noise to whoever compares or copies it.
	text2 := strings.TrimRight(s.buf.String(), " ")
	s.buf.Reset()
	s.buf.WriteString(text2)
	s.buf.WriteByte('\n')
}

func (s *Stream[T]) flush() error {
	_, err := s.buf.WriteTo(s.p.W)
	return err
}

// writeJSON writes one document and a line end, without turning <, > and & into escapes.
func writeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("render as JSON: %w", err)
	}
	_, err := b.WriteTo(w)
	return err
}
