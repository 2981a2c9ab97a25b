package inputs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/errand-run/errand/shared/api"
)

// Limits of a file of runs.
const (
	MaxRunsFile = 64 << 20
	MaxRuns     = 100_000
)

// Run is one line of a file of runs: a submission whose input may still be in a file.
type Run struct {
	Line   int
	submit api.Submit
	file   string // of {"$file": …}, or ""
	key    string // of the line; "" when the submission has its own
}

// ReadRuns reads a file with one submission a line, {"agent": …, "input": …}. An input {"$file": PATH} stands for that
// file, relative to this one, as FromFile reads it. A line without a key gets one made of its content, so that the same
// line is submitted once, however often the file is read. Every fault is reported, with its line.
func ReadRuns(path string) ([]Run, error) {
	data, err := readRunsFile(path)
	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	var runs []Run
	var faults []error
	same := make(map[string]int) // lines with the same content so far
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(runs) == MaxRuns {
			faults = append(faults, fmt.Errorf("%s:%d: more than %d runs; use several files", path, number, MaxRuns))
			break
		}
		r, err := parseRun(line, filepath.Dir(path))
		if err != nil {
			faults = append(faults, fmt.Errorf("%s:%d: %w", path, number, err))
			if len(faults) == 20 {
				faults = append(faults, fmt.Errorf("%s: more errors; fix these first", path))
				break
			}
			continue
		}
		r.Line = number
		if r.submit.Key == "" {
			sum := sha256.Sum256(line)
			r.key = filepath.Base(path) + "/" + hex.EncodeToString(sum[:8])
			// Two equal lines are two runs.
			if same[r.key]++; same[r.key] > 1 {
				r.key += fmt.Sprintf("-%d", same[r.key])
			}
		}
		runs = append(runs, r)
	}
	return runs, errors.Join(faults...)
}

func readRunsFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxRunsFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxRunsFile {
		return nil, fmt.Errorf("%s: larger than %d MiB", path, MaxRunsFile>>20)
	}
	return data, nil
}

func parseRun(line []byte, dir string) (Run, error) {
	var r Run
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r.submit); err != nil {
		return r, fmt.Errorf("%s; want one run a line, such as {\"agent\": \"NAME\", \"input\": {…}}", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return r, errors.New("more than one JSON document; want one run a line")
	}
	if n := len(r.submit.Agent) + len(r.submit.Workflow) + len(r.submit.Job); n == 0 {
		return r, errors.New("agent: missing; want the name of an agent")
	}
	file, ok, err := fileReference(r.submit.Input)
	if !ok || err != nil {
		return r, err
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	r.file = file
	// The file is read when the run is submitted; that it can be is worth knowing before anything starts.
	switch info, err := os.Stat(file); {
	case err != nil:
		return r, fmt.Errorf("input.$file: %w", err)
	case !info.Mode().IsRegular():
		return r, fmt.Errorf("input.$file: %s: is no regular file", file)
	}
	return r, nil
}

// fileReference reads {"$file": PATH}.
func fileReference(input json.RawMessage) (path string, ok bool, err error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(input, &fields) != nil || fields["$file"] == nil {
		return "", false, nil
	}
	if json.Unmarshal(fields["$file"], &path) != nil || path == "" || len(fields) > 1 {
		return "", false, errors.New(`input.$file: want the path of a file and nothing beside it: {"$file": "data/x.xml"}`)
	}
	return path, true, nil
}

// Submit is the submission with its input read. A changed file makes another key: it is another run.
func (r *Run) Submit() (api.Submit, error) {
	s := r.submit
	if r.file != "" {
		input, err := FromFile(r.file)
		if err != nil {
			return s, fmt.Errorf("input.$file: %w", err)
		}
		s.Input = input
	}
	if r.key != "" {
		s.Key = r.key
		if r.file != "" {
			sum := sha256.Sum256(s.Input)
			s.Key += "/" + hex.EncodeToString(sum[:8])
		}
	}
	return s, nil
}
