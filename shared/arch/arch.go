// Package arch keeps the rules of the house: which package may import what, what the pure core leaves alone, how long
// a file may grow, what things are called. Its test runs them over the tree.
//
// Imports are parsed in process: a test that asks the go command about the tree can pass from its cache after the
// tree has changed, for the cache sees only files that the test itself opens.
//
// It imports the standard library alone.
package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Problem is one breach of one rule.
type Problem struct {
	Path string // of the file or folder, from the top of the tree
	Line int    // 0 where it is about the whole
	Rule string // its name, in a word or two
	Text string // what is wrong, and what to do
}

func (p Problem) String() string {
	at := p.Path
	if p.Line > 0 {
		at += ":" + strconv.Itoa(p.Line)
	}
	return fmt.Sprintf("%s: %s: %s", at, p.Rule, p.Text)
}

// Check holds a tree against rules. The tree's root is the folder of go.mod. Problems come in the order of their
// paths; an error means that the tree could not be read.
func Check(tree fs.FS, rules Rules) ([]Problem, error) {
	t, err := read(tree, rules)
	if err != nil {
		return nil, err
	}
	c := &checker{tree: t, rules: rules}
	for _, rule := range []func(){
		c.known, c.layers, c.reach, c.libraries, c.pure, c.mains, c.names, c.sizes, c.words, c.docs,
	} {
		rule()
	}
	slices.SortStableFunc(c.problems, func(a, b Problem) int {
		if n := strings.Compare(a.Path, b.Path); n != 0 {
			return n
		}
		return a.Line - b.Line
	})
	return c.problems, nil
}

// tree is what the rules look at.
type tree struct {
	there map[string]bool    // every file and folder by path
	text  map[string][]byte  // every text file by path
	dirs  map[string]*folder // every folder with Go files by path; the top is "."
	rules Rules
}

type folder struct {
	path  string
	files []*file
}

type file struct {
	path    string
	test    bool
	lines   int
	syntax  *ast.File // with its declarations only in layers that must be pure
	set     *token.FileSet
	imports []imported
}

type imported struct {
	path string
	name string // the local name, where one is given
	line int
}

// skipped folders hold what nobody wrote: version control, builds, data of a running fleet.
var skipped = []string{".git", ".errand", "bin", "node_modules"}

// maxText is the size up to which a file is looked into; what is larger is data.
const maxText = 4 << 20

// read parses a tree. A folder with a go.mod of its own is another module, with rules of its own.
func read(root fs.FS, rules Rules) (*tree, error) {
	t := &tree{there: map[string]bool{".": true}, text: map[string][]byte{}, dirs: map[string]*folder{}, rules: rules}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if slices.Contains(skipped, entry.Name()) {
				return fs.SkipDir
			}
			t.there[name] = true
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil && name != "." {
				return fs.SkipDir
			}
			return nil
		case !entry.Type().IsRegular() || name == ".git": // in a second work tree it is a file
			return nil
		}
		return t.add(root, name, entry)
	})
	if err != nil {
		return nil, fmt.Errorf("read the tree: %w", err)
	}
	return t, nil
}

func (t *tree) add(root fs.FS, name string, entry fs.DirEntry) error {
	t.there[name] = true
	info, err := entry.Info()
	if err != nil {
		return err
	}
	if info.Size() > maxText {
		return nil
	}
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	if bytes.IndexByte(text, 0) >= 0 {
		return nil
	}
	t.text[name] = text
	if path.Ext(name) != ".go" || slices.Contains(strings.Split(name, "/"), "testdata") {
		return nil
	}
	f := &file{
		path: name, test: strings.HasSuffix(name, "_test.go"), set: token.NewFileSet(),
		lines: bytes.Count(text, []byte("\n")),
	}
	// Imports are enough for most rules; the layers that must be pure are read whole.
	mode := parser.ImportsOnly
	if t.rules.isPure(path.Dir(name)) && !f.test {
		mode = parser.SkipObjectResolution
	}
	if f.syntax, err = parser.ParseFile(f.set, name, text, mode); err != nil {
		return err
	}
	for _, spec := range f.syntax.Imports {
		i := imported{line: f.set.Position(spec.Pos()).Line}
		if i.path, err = strconv.Unquote(spec.Path.Value); err != nil {
			return fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
		}
		if spec.Name != nil {
			i.name = spec.Name.Name
		}
		f.imports = append(f.imports, i)
	}
	dir := path.Dir(name)
	if t.dirs[dir] == nil {
		t.dirs[dir] = &folder{path: dir}
	}
	t.dirs[dir].files = append(t.dirs[dir].files, f)
	return nil
}

// isPure tells whether a folder is one of the layers that are functions of their arguments.
func (r Rules) isPure(dir string) bool {
	name, ok := shared(dir)
	p, known := r.Packages[name]
	return ok && known && p.Layer <= pureUpTo
}

// each calls do for every Go file, in the order of their paths.
func (t *tree) each(do func(*folder, *file)) {
	for _, dir := range slices.Sorted(maps.Keys(t.dirs)) {
		for _, f := range t.dirs[dir].files {
			do(t.dirs[dir], f)
		}
	}
}

// isMain tells whether the folder is a command.
func (f *folder) isMain() bool {
	return slices.ContainsFunc(f.files, func(f *file) bool { return !f.test && f.syntax.Name.Name == "main" })
}

// isTest tells whether the folder has test files alone.
func (f *folder) isTest() bool {
	return !slices.ContainsFunc(f.files, func(f *file) bool { return !f.test })
}

// shared is the path below shared/, and whether the folder is there at all.
func shared(dir string) (string, bool) { return strings.CutPrefix(dir, "shared/") }

// own is the folder that an import path means, if it means one of this module.
func own(imp string) (string, bool) {
	if imp == Module {
		return ".", true
	}
	return strings.CutPrefix(imp, Module+"/")
}

// within tells whether path is root or lies below it.
func within(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }
