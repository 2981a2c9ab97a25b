// Package manifest reads what people declare in YAML or JSON into package
// fleet, strictly: an unknown field, a wrong type, a bad value or a duplicate
// is an error with file, line, column and path, and says what would be right.
// Every problem of every document is reported in one go, and one problem is
// enough for nothing to be taken.
//
// Layer 3: it imports fleet, compiles the expressions of triggers and workflows, and reads files. All sizes and depths are bounded
// before the parser sees the input; see the Max constants.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/errand-run/errand/shared/fleet"
)

// Limits of the input. All but the first three hold for a whole set.
const (
	MaxFileBytes     = 8 << 20
	MaxDocumentBytes = 1 << 20
	MaxDepth         = 64 // levels of nesting in a document
	MaxFiles         = 1_000
	MaxDocuments     = 5_000
	MaxElements      = 250_000 // separators, before anything is parsed
	MaxNodes         = 250_000 // values, each alias counted with all it stands for
	MaxIssues        = 100     // the rest is cut off
)

// File is one input. Its name appears in messages and is not opened.
type File struct {
	Name string
	Data io.Reader // read up to MaxFileBytes
}

// Options change how a set is read.
type Options struct {
	// Dir is the absolute folder that a relative spec.run.dir starts from. With
	// "" relative ones stay as they are.
	Dir string
}

// Form is what a file's fields are decoded into, by their json tags.
type Form interface {
	SetDefaults()
	// Validate returns every problem, each with its path from the top of the file.
	Validate() []fleet.Problem
}

// Document is what Read reads: something in the form of a manifest that is no
// part of a fleet. Its fields are those of the spec.
type Document interface {
	Form
	Kind() string
	Metadata() *fleet.Meta
}

// KindArrivals is the kind of a file of arrivals, which package arrivals reads.
const KindArrivals = "Arrivals"

// Read decodes a file that holds one document, as strictly as a fleet, and fills
// its defaults in. A failure is an *Error with all issues; the document is then
// not to be used.
func Read(f File, into Document) error {
	p := newParser()
	p.want = into
	p.file(f, "")
	if p.documents == 0 && len(p.issues) == 0 {
		p.fileIssue(f.Name, "holds no document; want %s of %s", into.Kind(), fleet.APIVersion)
	}
	_, err := p.result()
	return err
}

// ReadPlain decodes a file that holds the fields of a form and nothing around
// them, as strictly as a fleet, and fills its defaults in. Nothing and the empty
// list are refused where a field is given: what is left out often means all,
// which a value that was forgotten must not. A failure is an *Error with all
// issues; the form is then not to be used.
func ReadPlain(f File, into Form) error {
	p := newParser()
	p.plain = into
	p.file(f, "")
	if p.documents == 0 && len(p.issues) == 0 {
		p.fileIssue(f.Name, "is empty")
	}
	_, err := p.result()
	return err
}

// Object is a declared object and where its name stands.
type Object struct {
	fleet.Object
	File string
	Line int

	places map[string]mark // of its values, by path; of kinds that are checked against others, nil otherwise
}

// Locate puts before what the control plane says of an object, "KIND NAME: PATH", where that stands: "FILE:LINE:COLUMN: ".
// What is said of no object of the set stays as it is. A place in another rendering of the set, FILE being body, is
// replaced.
func (s *Set) Locate(where string) string {
	if rest, ok := strings.CutPrefix(where, "body:"); ok {
		if _, rest, ok = strings.Cut(rest, ": "); ok {
			where = rest
		}
	}
	object, path, ok := strings.Cut(where, ": ")
	kind, name, named := strings.Cut(object, " ")
	if !ok || !named {
		return where
	}
	for i := range s.Objects {
		o := &s.Objects[i]
		if o.Kind() != kind || o.Name() != name {
			continue
		}
		if m, ok := nearest(o.places, path); ok {
			return fmt.Sprintf("%s:%d:%d: %s", o.File, m.line, m.column, where)
		}
		return fmt.Sprintf("%s:%d: %s", o.File, o.Line, where)
	}
	return where
}

// nearest is the position of a path, or of the nearest that it is part of.
func nearest(places map[string]mark, path string) (mark, bool) {
	for path != "" {
		if m, ok := places[path]; ok {
			return m, true
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	m, ok := places[""]
	return m, ok
}

// Set is what the files declare, in their order, with defaults filled in. The
// empty set is valid: files may hold nothing but comments.
type Set struct{ Objects []Object }

// Parse reads the files. A failure is an *Error with all issues, and no set.
func Parse(files []File, opts Options) (*Set, error) {
	p := newParser()
	for _, f := range files {
		p.file(f, opts.Dir)
	}
	return p.result()
}

// Load reads files and folders. A folder stands for its *.yaml, *.yml and
// *.json files by name, without those of its own folders. A relative
// spec.run.dir starts from the folder of its file, and so does an agent's
// command without one. A failure is an *Error with all issues, and no set.
func Load(paths []string) (*Set, error) {
	p := newParser()
	for _, path := range paths {
		names, err := Files(path)
		if err != nil {
			p.fileIssue(path, "%v", err)
		}
		for _, name := range names {
			p.open(name)
		}
	}
	return p.result()
}

// Files returns the files that a path stands for, as Load reads it.
func Files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", reason(err))
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", reason(err))
	}
	var names []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		name := filepath.Join(path, e.Name())
		// Follows links: a linked manifest counts, a pipe would block for ever.
		if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
			continue
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, errors.New("the folder holds no manifest; it needs a file *.yaml, *.yml or *.json")
	}
	return names, nil
}

// reason drops the operation and path from an error that gets its own file.
func reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// parser gathers objects and issues over all files.
type parser struct {
	want      Document // instead of objects of a fleet
	plain     Form     // instead of documents at all
	set       Set
	issues    []Issue
	cut       bool // there were more than MaxIssues
	files     int
	documents int
	elements  int
	nodes     int
	seen      map[string]Object // by kind and name
}

func newParser() *parser { return &parser{seen: make(map[string]Object)} }

func (p *parser) open(name string) {
	f, err := os.Open(name)
	if err != nil {
		p.fileIssue(name, "cannot be read: %v", reason(err))
		return
	}
	defer f.Close()
	dir, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		p.fileIssue(name, "its folder has no absolute path: %v", reason(err))
		return
	}
	p.file(File{Name: name, Data: f}, dir)
}

// file reads one file: all of it or, past a limit, none.
func (p *parser) file(f File, dir string) {
	// 1. Bound the number of files and the size before anything looks inside.
	if p.files++; p.files > MaxFiles {
		if p.files == MaxFiles+1 {
			p.fileIssue(f.Name, "more than %d files in one set; apply them in several", MaxFiles)
		}
		return
	}
	data, err := io.ReadAll(io.LimitReader(f.Data, MaxFileBytes+1))
	if err != nil {
		p.fileIssue(f.Name, "cannot be read: %v", reason(err))
		return
	}
	if len(data) > MaxFileBytes {
		p.fileIssue(f.Name, "larger than %d MiB, the limit of a file; split it", MaxFileBytes>>20)
		return
	}

	// 2. Only UTF-8, with or without a byte-order mark.
	data, line, column := text(data)
	if line > 0 {
		p.add(Issue{File: f.Name, Line: line, Column: column, Message: "not UTF-8 text; save the file as UTF-8"})
		return
	}

	// 3. Document by document, so that one with an error hides no other.
	for _, doc := range split(data) {
		if !p.document(f.Name, dir, doc) {
			return
		}
	}
}

// text drops a byte-order mark, and returns the position of the first byte that
// is not UTF-8, or zeros.
func text(data []byte) (rest []byte, line, column int) {
	if len(data) >= 3 && string(data[:3]) == "\uFEFF" {
		data = data[3:]
	}
	if utf8.Valid(data) {
		return data, 0, 0
	}
	line, column = 1, 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		i += size
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
	}
	return data, line, column
}

// add notes an issue, up to the limit.
func (p *parser) add(i Issue) {
	if len(p.issues) >= MaxIssues {
		p.cut = true
		return
	}
	i.order = p.files
	p.issues = append(p.issues, i)
}

func (p *parser) fileIssue(name, format string, args ...any) {
	p.add(Issue{File: name, Message: fmt.Sprintf(format, args...)})
}

// take adds an object to the set unless its name is taken.
func (p *parser) take(obj fleet.Object, at Issue, places map[string]mark) {
	key := obj.Kind() + "/" + obj.Name()
	if obj.Name() != "" {
		if first, ok := p.seen[key]; ok {
			where := fmt.Sprintf("line %d", first.Line)
			if first.File != at.File {
				where += " of " + first.File
			}
			at.Path = "metadata.name"
			at.Message = fmt.Sprintf("%s `%s` is already given at %s; rename or remove one", obj.Kind(), clip(obj.Name()), where)
			p.add(at)
			return
		}
	}
	o := Object{Object: obj, File: at.File, Line: at.Line, places: places}
	p.seen[key] = o
	p.set.Objects = append(p.set.Objects, o)
}

// result is the set, or the error when there was any issue.
func (p *parser) result() (*Set, error) {
	if len(p.issues) == 0 {
		return &p.set, nil
	}
	slices.SortStableFunc(p.issues, func(a, b Issue) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return nil, &Error{Issues: p.issues, Cut: p.cut}
}
