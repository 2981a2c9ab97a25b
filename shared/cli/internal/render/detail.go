package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Detail writes the fields of one object for people, one a line. Errors of the writer are kept until Err.
type Detail struct {
	w   io.Writer
	err error
}

// NewDetail starts one.
func NewDetail(w io.Writer) *Detail { return &Detail{w: w} }

// Field writes a label and its value, and nothing where there is no value.
func (d *Detail) Field(label, value string) {
	if value != "" {
		d.printf("%-12s %s\n", label+":", Clean(value))
	}
}

// Heading starts an indented part.
func (d *Detail) Heading(label string) { d.printf("%s:\n", label) }

// JSON writes a value indented under its label, and nothing where there is none.
func (d *Detail) JSON(label string, value json.RawMessage) {
	if len(value) == 0 {
		return
	}
	var b bytes.Buffer
	if err := json.Indent(&b, value, "  ", "  "); err != nil {
		b.Reset()
		b.Write(value)
	}
	d.Heading(label)
	for line := range strings.Lines("  " + b.String()) {
		d.printf("%s\n", Clean(strings.TrimSuffix(line, "\n")))
	}
}

// Indented returns a writer that puts two blanks before each line.
func (d *Detail) Indented() io.Writer { return &indenter{d} }

// Err is the first error of the writer.
func (d *Detail) Err() error { return d.err }

func (d *Detail) printf(format string, args ...any) {
	if d.err == nil {
		_, d.err = fmt.Fprintf(d.w, format, args...)
	}
}

type indenter struct{ d *Detail }

func (i *indenter) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		i.d.printf("  %s", line)
	}
	return len(p), i.d.err
}
