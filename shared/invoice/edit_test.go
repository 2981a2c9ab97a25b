package invoice

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// repeated are the elements that the paths of this package number.
var repeated = map[string]bool{
	"InvoiceLine": true, "CreditNoteLine": true, "TaxTotal": true, "TaxSubtotal": true, "AllowanceCharge": true,
}

// A node is an element of a document with the bytes of its content, found by a
// plain parse that shares nothing with the code under test.
type node struct {
	path       string
	from, to   int // content, without the tags
	start, end int // with the tags
	text       string
}

func nodes(t testing.TB, doc []byte) []node {
	t.Helper()
	prefix := map[string]string{nsBasic: "cbc:", nsAggregate: "cac:"}
	type open struct {
		node
		seen map[string]int
	}
	stack := []open{{seen: map[string]int{}}}
	var all []node
	d := xml.NewDecoder(bytes.NewReader(doc))
	for {
		before := int(d.InputOffset())
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		parent := &stack[len(stack)-1]
		switch e := token.(type) {
		case xml.StartElement:
			name := prefix[e.Name.Space] + e.Name.Local
			parent.seen[name]++
			path := parent.path + "/" + name
			if repeated[e.Name.Local] {
				path += fmt.Sprintf("[%d]", parent.seen[name])
			}
			n := node{path: path, start: before, from: int(d.InputOffset())}
			stack = append(stack, open{node: n, seen: map[string]int{}})
		case xml.EndElement:
			n := parent.node
			n.to, n.end = before, int(d.InputOffset())
			n.text = string(doc[n.from:n.to])
			all = append(all, n)
			stack = stack[:len(stack)-1]
		}
	}
}

// find is the element at path.
func find(t testing.TB, doc []byte, path string) node {
	t.Helper()
	for _, n := range nodes(t, doc) {
		if n.path == path {
			return n
		}
	}
	t.Fatalf("the document has no element %s", path)
	return node{}
}

// set replaces the content of the element at path.
func set(t testing.TB, doc []byte, path, content string) []byte {
	t.Helper()
	n := find(t, doc, path)
	return []byte(string(doc[:n.from]) + content + string(doc[n.to:]))
}

// drop removes the element at path.
func drop(t testing.TB, doc []byte, path string) []byte {
	t.Helper()
	n := find(t, doc, path)
	return []byte(string(doc[:n.start]) + string(doc[n.end:]))
}

func file(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// check reads and checks a document that must be readable.
func check(t testing.TB, doc []byte) Report {
	t.Helper()
	d, err := Read(bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	return Check(d)
}

// rules lists the rules of a report, each once, in its order.
func rules(r Report) string {
	var names []string
	for _, v := range r.Violations {
		if n := string(v.Rule); len(names) == 0 || names[len(names)-1] != n {
			names = append(names, n)
		}
	}
	return strings.Join(names, " ")
}
