package invoice

import (
	"fmt"
	"strings"
)

// An Error is the fault of a document: what [Read] could not accept and where.
// Any other error of Read is that of its reader.
type Error struct {
	Line    int    // from 1; 0 when the fault has no one place
	Path    string // of the element, as in /Invoice/cac:InvoiceLine[2]/cbc:ID; empty outside the root
	Problem string // what is wrong, and what to write instead where that is known
}

// Error says where and what, in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("read UBL document")
	if e.Line > 0 {
		fmt.Fprintf(&b, ": line %d", e.Line)
	}
	if e.Path != "" {
		b.WriteString(": " + e.Path)
	}
	return b.String() + ": " + e.Problem
}
