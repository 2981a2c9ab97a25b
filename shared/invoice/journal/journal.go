// Package journal is a file of entries, one line each, that only ever grows: the outside world of the worked examples.
// It is as unforgiving as the outside world is: what is appended twice stands there twice.
//
// It imports the standard library.
package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Bounds of a journal.
const (
	MaxEntry = 64 << 10  // bytes of one line
	MaxFile  = 256 << 20 // bytes of a file
)

// ErrNotWritten is wrapped by errors of Append that are sure not to have written anything.
var ErrNotWritten = errors.New("nothing was written to the journal")

// File is a journal, by the path of its file. The folder is made when it is missing.
type File string

// Entry is one line.
type Entry struct {
	Key   string          `json:"key"`
	At    time.Time       `json:"at"`
	Entry json.RawMessage `json:"entry"`
}

// Append adds an entry under a key and returns when it is on disk. Several processes may append at the same time: a line
// is one write. A line that a crash has torn is left behind, and no part of what follows.
func (f File) Append(key string, entry any) error {
	// 1. The line.
	body, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("%w: encode the entry: %w", ErrNotWritten, err)
	}
	line, err := json.Marshal(Entry{key, time.Now().UTC(), body})
	if err != nil {
		return fmt.Errorf("%w: encode the entry: %w", ErrNotWritten, err)
	}
	if len(line) > MaxEntry {
		return fmt.Errorf("%w: an entry of %d bytes; at most %d", ErrNotWritten, len(line), MaxEntry)
	}
	// 2. The file.
	if err := os.MkdirAll(filepath.Dir(string(f)), 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritten, err)
	}
	file, err := os.OpenFile(string(f), os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritten, err)
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil || size > MaxFile {
		return fmt.Errorf("%w: %s has %d bytes, at most %d: %w", ErrNotWritten, f, size, MaxFile, err)
	}
	line = append(line, '\n')
	last := []byte{'\n'}
	if size > 0 {
		if _, err := file.ReadAt(last, size-1); err != nil {
			return fmt.Errorf("%w: %w", ErrNotWritten, err)
		}
	}
	if last[0] != '\n' {
		line = append([]byte{'\n'}, line...)
	}
	// 3. From here on nobody knows, unless all goes well.
	if _, err := file.Write(line); err != nil {
		return fmt.Errorf("append to %s: %w", f, err)
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("append to %s: %w", f, err)
	}
	return nil
}

// All returns the entries in their order, without torn lines. A file that is not there has none.
func (f File) All() ([]Entry, error) {
	file, err := os.Open(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	defer file.Close()
	var all []Entry
	lines := bufio.NewScanner(io.LimitReader(file, MaxFile+MaxEntry))
	lines.Buffer(make([]byte, 0, 4096), MaxEntry+1)
	for lines.Scan() {
		var e Entry
		if line := bytes.TrimSpace(lines.Bytes()); len(line) > 0 && json.Unmarshal(line, &e) == nil && e.Key != "" {
			all = append(all, e)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the journal %s: %w", f, err)
	}
	return all, nil
}

// Find returns the last entry under a key.
func (f File) Find(key string) (e Entry, there bool, err error) {
	all, err := f.All()
	for _, entry := range all {
		if entry.Key == key {
			e, there = entry, true
		}
	}
	return e, there, err
}
