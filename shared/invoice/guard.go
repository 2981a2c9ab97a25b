package invoice

import (
	"bytes"
	"fmt"
)

// The guard looks at the bytes before an XML parser does. A parser builds a
// whole tag before its caller may judge it, and a tag of ten megabytes of empty
// attributes takes twenty times that in memory; a document type declaration is
// where entity expansion starts. Both are refused here.
//
// It need not agree with the parser on what is well-formed: where it loses the
// thread it stops, and the parser reports the fault.

// guard refuses document type declarations and tags over MaxTag bytes.
func guard(doc []byte) error {
	for at := 0; ; {
		next := bytes.IndexByte(doc[at:], '<')
		if next < 0 {
			return nil
		}
		at += next
		rest := doc[at:]
		var size int
		switch {
		case bytes.HasPrefix(rest, []byte("<!--")):
			size = sizeTo(rest, 4, "-->")
		case bytes.HasPrefix(rest, []byte("<![CDATA[")):
			size = sizeTo(rest, 9, "]]>")
		case bytes.HasPrefix(rest, []byte("<?")):
			size = sizeTo(rest, 2, "?>")
		case bytes.HasPrefix(rest, []byte("<!")):
			return &Error{Line: lineAt(doc, at), Problem: "a document type declaration (<!DOCTYPE …>) is not accepted; remove it, UBL needs none"}
		default:
			size = tagSize(rest)
			if size > MaxTag || size < 0 && len(rest) > MaxTag {
				return &Error{Line: lineAt(doc, at), Problem: fmt.Sprintf("a tag is longer than the %d bytes allowed", MaxTag)}
			}
		}
		if size < 0 {
			return nil
		}
		at += size
	}
}

// sizeTo is the size of a construct that opens with skip bytes and ends with
// the first end after them; -1 when it does not end.
func sizeTo(b []byte, skip int, end string) int {
	i := bytes.Index(b[skip:], []byte(end))
	if i < 0 {
		return -1
	}
	return skip + i + len(end)
}

// tagSize is the size of the tag that b starts with; -1 when it does not end
// within MaxTag bytes. A quoted value may hold '>'.
func tagSize(b []byte) int {
	var quote byte
	for i, c := range b[:min(len(b), MaxTag)] {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '>':
			return i + 1
		}
	}
	return -1
}

func lineAt(doc []byte, offset int) int {
	return 1 + bytes.Count(doc[:offset], []byte("\n"))
}
