package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
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

// readValue reads a JSON value given as text, as @FILE, or as - for standard input. "" is no value.
func (a *app) readValue(flag, text string) (json.RawMessage, error) {
	var data []byte
	var from string
	switch {
	case text == "":
		return nil, nil
	case text == "-":
		from = "standard input"
		b, err := io.ReadAll(io.LimitReader(a.in, api.MaxPayload+1))
		if err != nil {
			return nil, fmt.Errorf("read %s from standard input: %w", flag, err)
		}
		data = b
	case text[0] == '@':
		from = text[1:]
		b, err := readBounded(from)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", flag, err)
		}
		data = b
	default:
		from = "the command line"
		data = []byte(text)
	}
	if len(data) > api.MaxPayload {
		return nil, fmt.Errorf("%s from %s: larger than %d MiB, the limit of one value", flag, from, api.MaxPayload>>20)
	}
	if err := checkJSON(data); err != nil {
		return nil, usagef("%s from %s is not one JSON document: %v; want JSON such as '{\"name\":\"x\"}', @FILE or -", flag, from, err)
	}
	return json.RawMessage(data), nil
}

// checkJSON says where the data stops being one JSON document.
func checkJSON(data []byte) error {
	var v json.RawMessage
	err := json.Unmarshal(data, &v)
	if syntax, ok := err.(*json.SyntaxError); ok {
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	return err
}

// readBounded reads a regular file of at most one payload.
func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s: is a folder; want a file", path)
	case info.Size() > api.MaxPayload:
		return nil, fmt.Errorf("%s: %d bytes; an input has at most %d MiB", path, info.Size(), api.MaxPayload>>20)
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
		return nil, fmt.Errorf("%s: grew past %d MiB while it was read", path, api.MaxPayload>>20)
	}
	return b, nil
}

// fileInput is the input of a run that is to work on a file: a JSON file as it is, any other as
// {"name", "contentType", "text"}, or "base64" where it is not UTF-8.
func fileInput(path string) (json.RawMessage, error) {
	data, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	if strings.EqualFold(filepath.Ext(name), ".json") {
		if err := checkJSON(data); err != nil {
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
		return nil, fmt.Errorf("%s: becomes an input of %d bytes; it may have %d MiB", path, len(input), api.MaxPayload>>20)
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

// expandFiles turns words into files: a word with a pattern that the shell left alone stands for what matches it. The
// order is that of the words, sorted within a pattern; a file that is named twice counts once.
func expandFiles(words []string) ([]string, error) {
	var files []string
	seen := make(map[string]bool)
	for _, word := range words {
		matches := []string{word}
		if _, err := os.Stat(word); err != nil && strings.ContainsAny(word, "*?[") {
			found, err := filepath.Glob(word)
			if err != nil {
				return nil, usagef("--for-each %q: %v", word, err)
			}
			slices.Sort(found)
			matches = slices.DeleteFunc(found, isFolder)
			if len(matches) == 0 {
				return nil, usagef("--for-each %q: no file matches", word)
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
