// Package inputs turns files into the inputs of runs. Everything it reads is bounded.
package inputs

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/errand-run/errand/shared/api"
)

// CheckJSON says where the data stops being one JSON document.
func CheckJSON(data []byte) error {
	var v json.RawMessage
	err := json.Unmarshal(data, &v)
	if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	return err
}

// ErrTooLarge is wrapped by errors about what is over the size of one input.
var ErrTooLarge = errors.New("too large")

// Read reads a regular file of at most one payload. The error of a larger one wraps ErrTooLarge.
func Read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s: is a folder; want a file", path)
	case info.Size() > api.MaxPayload:
		return nil, fmt.Errorf("%s: %w: %d bytes; an input has at most %d MiB", path, ErrTooLarge, info.Size(), api.MaxPayload>>20)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, api.MaxPayload+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(b) > api.MaxPayload {
		return nil, fmt.Errorf("%s: %w: it grew past %d MiB while it was read", path, ErrTooLarge, api.MaxPayload>>20)
	}
	return b, nil
}

// FromFile is the input of a run that is to work on a file: a JSON file as it is, any other as
// {"name", "contentType", "text"}, or "base64" where it is not UTF-8.
func FromFile(path string) (json.RawMessage, error) {
	data, err := Read(path)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	if strings.EqualFold(filepath.Ext(name), ".json") {
		if err := CheckJSON(data); err != nil {
			return nil, fmt.Errorf("%s: not one JSON document: %w", path, err)
		}
		return json.RawMessage(data), nil
	}
	doc := struct {
		Name        string  `json:"name"`
		ContentType string  `json:"contentType"`
		Text        *string `json:"text,omitempty"`
		Base64      string  `json:"base64,omitempty"`
	}{Name: name, ContentType: contentType(name, data)}
	if utf8.Valid(data) {
		text := string(data)
		doc.Text = &text
	} else {
		doc.Base64 = base64.StdEncoding.EncodeToString(data)
	}
	// Without the escapes for <, > and &, which would swell markup.
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(doc); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	input := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	if len(input) > api.MaxPayload {
		return nil, fmt.Errorf("%s: %w: it becomes an input of %d bytes; it may have %d MiB", path, ErrTooLarge, len(input), api.MaxPayload>>20)
	}
	return input, nil
}

// contentTypes are fixed for what agents usually read: the system's own table differs from machine to machine, and the
// input of a run, with its key, must not.
var contentTypes = map[string]string{
	".xml": "application/xml", ".txt": "text/plain", ".md": "text/markdown", ".csv": "text/csv", ".html": "text/html",
	".yaml": "application/yaml", ".yml": "application/yaml", ".pdf": "application/pdf", ".png": "image/png",
	".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp", ".eml": "message/rfc822",
	".zip": "application/zip", ".jsonl": "application/jsonl", ".ndjson": "application/x-ndjson",
}

func contentType(name string, data []byte) string {
	if t := contentTypes[strings.ToLower(filepath.Ext(name))]; t != "" {
		return t
	}
	t, _, err := mime.ParseMediaType(http.DetectContentType(data))
	if err != nil {
		return "application/octet-stream"
	}
	return t
}

// Expand turns words into files: a word with a pattern that the shell left alone stands for what matches it. The
// order is that of the words, sorted within a pattern; a file that is named twice counts once.
func Expand(words []string) ([]string, error) {
	var files []string
	seen := make(map[string]bool)
	for _, word := range words {
		matches := []string{word}
		if _, err := os.Stat(word); err != nil && strings.ContainsAny(word, "*?[") {
			found, err := filepath.Glob(word)
			if err != nil {
				return nil, fmt.Errorf("--for-each %q: %v", word, err)
			}
			slices.Sort(found)
			matches = slices.DeleteFunc(found, isFolder)
			if len(matches) == 0 {
				return nil, fmt.Errorf("--for-each %q: no file matches", word)
			}
		}
		for _, m := range matches {
			if clean := filepath.Clean(m); !seen[clean] {
				seen[clean] = true
				files = append(files, m)
			}
		}
	}
	return files, nil
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
