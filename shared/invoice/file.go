package invoice

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// A File is a document as a run's input carries it: a name, and either Text or,
// for bytes that are no UTF-8 text, Base64 (which JSON holds as base64).
type File struct {
	Name        string `json:"name"`
	ContentType string `json:"contentType,omitempty"`
	Text        string `json:"text,omitempty"`
	Base64      []byte `json:"base64,omitempty"`
}

// Read reads the document in the file as the function [Read] does. Its errors
// name the file; all of them are faults of the input.
func (f File) Read() (*Document, error) {
	var content io.Reader = strings.NewReader(f.Text)
	switch {
	case f.Text != "" && len(f.Base64) > 0:
		return nil, fmt.Errorf("file %q: both text and base64 are given; give one", clip(f.Name, 100))
	case f.Text == "" && len(f.Base64) == 0:
		return nil, fmt.Errorf("file %q: it is empty; give a UBL document as text or base64", clip(f.Name, 100))
	case len(f.Base64) > 0:
		content = bytes.NewReader(f.Base64)
	}
	d, err := Read(content)
	if err != nil {
		return nil, fmt.Errorf("file %q: %w", clip(f.Name, 100), err)
	}
	return d, nil
}
