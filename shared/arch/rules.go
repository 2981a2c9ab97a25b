package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

type checker struct {
	tree     *tree
	rules    Rules
	problems []Problem
}

func (c *checker) report(at string, line int, rule, format string, args ...any) {
	c.problems = append(c.problems, Problem{Path: at, Line: line, Rule: rule, Text: fmt.Sprintf(format, args...)})
}

// mainFolders are where commands live; the top itself is the errand command.
var mainFolders = []string{"services", "jobs", "functions"}

// known wants each package to have its row in the table, and each row its package.
func (c *checker) known() {
	for _, dir := range slices.Sorted(maps.Keys(c.tree.dirs)) {
		if name, ok := shared(dir); ok {
			if _, ok := c.rules.Packages[name]; !ok {
				c.report(dir, 0, "unknown package",
					"no layer is set for %q: add a row to Packages in shared/arch/table.go, with the layer that docs/architecture.md gives it", name)
			}
			continue
		}
		// functions/ is one command, and its folders are its parts.
		if dir == "." || dir == "functions" || slices.Contains(mainFolders, path.Dir(dir)) || dir == "examples" && c.tree.dirs[dir].isTest() {
			continue
		}
		c.report(dir, 0, "unknown package",
			"Go code lives under shared/ (importable), as one folder each under services/, jobs/ and functions/ (commands), or tests examples/")
	}
	for _, name := range slices.Sorted(maps.Keys(c.rules.Packages)) {
		if c.tree.dirs["shared/"+name] == nil {
			c.report("shared/"+name, 0, "unknown package", "the table has a row for %q, which is not there: delete it from shared/arch/table.go", name)
		}
	}
}

// layers lets imports go down only, and to the side where the table says so.
func (c *checker) layers() {
	c.tree.each(func(dir *folder, f *file) {
		from, importable := shared(dir.path)
		p, known := c.rules.Packages[from]
		for _, i := range f.imports {
			to, ok := own(i.path)
			if !ok || to == dir.path {
				continue
			}
			name, ok := shared(to)
			if !ok {
				continue // commands: see mains
			}
			q, ok := c.rules.Packages[name]
			if !ok {
				continue // it is reported as unknown, if it is there
			}
			if q.Suite && !f.test && !p.Suite {
				c.report(f.path, i.line, "layers", "%s is for tests, which alone import it", name)
				continue
			}
			switch {
			case !importable || !known || q.Layer < p.Layer:
			case q.Layer > p.Layer:
				c.report(f.path, i.line, "layers", "%s (layer %d) imports %s (layer %d): imports go down only", from, p.Layer, name, q.Layer)
			case !f.test && !slices.Contains(p.Beside, name):
				c.report(f.path, i.line, "layers",
					"%s imports %s of its own layer %d: move what both need down, or add it to Beside in shared/arch/table.go with good reason",
					from, name, p.Layer)
			}
		}
	})
}

// reach follows imports to the end.
func (c *checker) reach() {
	for _, root := range slices.Sorted(maps.Keys(c.rules.Reach)) {
		for _, dir := range slices.Sorted(maps.Keys(c.tree.dirs)) {
			if name, ok := shared(dir); ok && within(name, root) {
				c.reachFrom(root, dir)
			}
		}
	}
}

func (c *checker) reachFrom(root, start string) {
	type step struct {
		dir string
		via []string
	}
	seen := map[string]bool{start: true}
	for next := []step{{dir: start}}; len(next) > 0; next = next[1:] {
		at := next[0]
		dir := c.tree.dirs[at.dir]
		if dir == nil {
			continue
		}
		for _, f := range dir.files {
			if f.test && at.dir != start {
				continue // tests of what is imported are not linked in
			}
			for _, i := range f.imports {
				to, ok := own(i.path)
				name, isShared := shared(to)
				if !ok || seen[to] || f.test && c.rules.Packages[name].Suite {
					continue
				}
				seen[to] = true
				via := append(slices.Clone(at.via), at.dir)
				allowed := isShared && (within(name, root) ||
					slices.ContainsFunc(c.rules.Reach[root], func(a string) bool { return within(name, a) }))
				if !allowed {
					c.report(f.path, i.line, "reach", "%s must not reach %s, and does: %s", root, name,
						strings.Join(append(via, to), " → "))
				}
				next = append(next, step{dir: to, via: via})
			}
		}
	}
}

// libraries lets each library in where the table says so.
func (c *checker) libraries() {
	prefixes := slices.Sorted(maps.Keys(c.rules.Libraries))
	used := make(map[string]bool)
	c.tree.each(func(dir *folder, f *file) {
		name, importable := shared(dir.path)
		if !importable {
			name = dir.path
		}
		tests := f.test || c.rules.Packages[name].Suite
		for _, i := range f.imports {
			if _, ok := own(i.path); ok {
				continue
			}
			at := slices.IndexFunc(prefixes, func(p string) bool { return within(i.path, p) })
			if at >= 0 {
				used[prefixes[at]] = true
			}
			switch {
			case at < 0 && !isStandard(i.path):
				c.report(f.path, i.line, "libraries",
					"nothing says who may import %s: add it to Libraries in shared/arch/table.go and say in the commit why it is worth its weight", i.path)
			case at < 0 || slices.Contains(c.rules.Libraries[prefixes[at]], name):
			case len(c.rules.Libraries[prefixes[at]]) == 0:
				if !tests {
					c.report(f.path, i.line, "libraries", "%s is for tests", i.path)
				}
			case !tests:
				c.report(f.path, i.line, "libraries", "%s is for %s; go through it",
					i.path, strings.Join(c.rules.Libraries[prefixes[at]], ", "))
			}
		}
	})
	for _, p := range prefixes {
		if !used[p] {
			c.report("go.mod", 0, "libraries", "nobody imports %s any more: delete its row from shared/arch/table.go", p)
		}
	}
}

// isStandard tells the standard library from the rest: no path outside it begins with an element without a dot.
func isStandard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

// pure keeps clocks, randomness, I/O and all that blocks out of the lowest layers. Their tests may use what they like.
func (c *checker) pure() {
	c.tree.each(func(dir *folder, f *file) {
		if f.test || !c.rules.isPure(dir.path) {
			return
		}
		local := map[string]string{} // by local name, the import path
		for _, i := range f.imports {
			if isStandard(i.path) && !slices.Contains(c.rules.Pure, i.path) {
				c.report(f.path, i.line, "pure", "layers 0 to %d decide over values: %s is not among Pure in shared/arch/table.go; take what it gives as an argument",
					pureUpTo, i.path)
			}
			if i.name == "." {
				c.report(f.path, i.line, "pure", "import %s under its name, so that its use can be seen", i.path)
			}
			if i.name == "" {
				i.name = path.Base(i.path)
			}
			local[i.name] = i.path
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			line := func() int { return f.set.Position(n.Pos()).Line }
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(c.rules.Impure[local[x.Name]], n.Sel.Name) {
					c.report(f.path, line(), "pure", "%s.%s: layers 0 to %d read no clock and do no I/O; take what it gives as an argument",
						local[x.Name], n.Sel.Name, pureUpTo)
				}
			case *ast.GoStmt, *ast.SelectStmt, *ast.ChanType:
				c.report(f.path, line(), "pure", "layers 0 to %d start nothing and wait for nothing", pureUpTo)
			}
			return true
		})
	})
}

// mains keeps commands thin, apart from each other, and buildable side by side.
func (c *checker) mains() {
	byName := map[string]string{}
	for _, dir := range slices.Sorted(maps.Keys(c.tree.dirs)) {
		folder := c.tree.dirs[dir]
		if !folder.isMain() {
			continue
		}
		name := path.Base(dir)
		if other, ok := byName[name]; ok {
			c.report(dir, 0, "mains", "%s has the same name: go build -o bin/ would write one over the other", other)
		}
		byName[name] = dir
		lines := 0
		for _, f := range folder.files {
			if !f.test {
				lines += f.lines
			}
		}
		if lines > maxMainLines {
			c.report(dir, 0, "mains", "%d lines, and a command wires things in at most %d: move the rest to a package under shared/", lines, maxMainLines)
		}
	}
	c.tree.each(func(dir *folder, f *file) {
		for _, i := range f.imports {
			to, ok := own(i.path)
			if !ok || to == dir.path {
				continue
			}
			part := within(to, "functions") && within(dir.path, "functions") && c.tree.dirs[to] != nil && !c.tree.dirs[to].isMain()
			if _, ok := shared(to); !ok && !part {
				c.report(f.path, i.line, "mains", "%s is a command; what others need of it belongs under shared/", i.path)
			}
		}
	})
}

// banned are names under which everything fits.
var banned = []string{"util", "utils", "common", "helper", "helpers", "types", "models", "misc", "base", "lib"}

// names looks at folders and at package clauses.
func (c *checker) names() {
	c.tree.each(func(dir *folder, f *file) {
		name := strings.TrimSuffix(f.syntax.Name.Name, "_test")
		for _, n := range []string{name, path.Base(dir.path)} {
			if slices.Contains(banned, n) {
				c.report(f.path, 0, "names", "a package named %q can hold anything: name it for what it does", n)
				break
			}
		}
		if name != strings.ToLower(name) || strings.Contains(name, "_") {
			c.report(f.path, 0, "names", "package %s: one lower-case word", name)
		}
	})
}

// sizes ends a file where it has become two ideas.
func (c *checker) sizes() {
	c.tree.each(func(_ *folder, f *file) {
		if f.lines > maxFileLines {
			c.report(f.path, 0, "sizes", "%d lines, and %d are the most: it is two ideas", f.lines, maxFileLines)
		}
	})
}

// outward is a path to a folder of packages from somewhere below it.
var outward = regexp.MustCompile(`(?:\.\./)+shared/`)

// words finds what is about one machine, and paths that lead out of the repository.
func (c *checker) words() {
	words := make(map[string]*regexp.Regexp, len(c.rules.Words))
	for word := range c.rules.Words {
		words[word] = regexp.MustCompile(word)
	}
	for name, text := range c.tree.text {
		for _, at := range outward.FindAllIndex(text, -1) {
			if to := path.Join(path.Dir(name), string(text[at[0]:at[1]])); strings.HasPrefix(to, "../") {
				c.report(name, 1+bytes.Count(text[:at[0]], []byte("\n")), "words", "%s is outside the repository", text[at[0]:at[1]])
			}
		}
		for word, why := range c.rules.Words {
			if at := words[word].FindIndex(text); at != nil {
				c.report(name, 1+bytes.Count(text[:at[1]], []byte("\n")), "words", "%q is %s", text[at[0]:at[1]], why)
			}
		}
	}
}

var (
	code     = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	link     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	testName = regexp.MustCompile("`(?:Test|Fuzz)[A-Z][A-Za-z0-9_]*`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)\(`)
)

// docs wants what a document points at to be there: files and folders of the tree, and tests that prove a promise.
func (c *checker) docs() {
	tests := make(map[string]bool)
	for name, text := range c.tree.text {
		if strings.HasSuffix(name, "_test.go") {
			for _, f := range testFunc.FindAllSubmatch(text, -1) {
				tests[string(f[1])] = true
			}
		}
	}
	for name, text := range c.tree.text {
		if path.Ext(name) != ".md" {
			continue
		}
		line := func(text []byte, at int) int { return 1 + bytes.Count(text[:at], []byte("\n")) }
		prose := code.ReplaceAllFunc(text, func(b []byte) []byte {
			return bytes.Map(func(r rune) rune {
				if r == '\n' {
					return r
				}
				return ' '
			}, b)
		})
		for _, at := range link.FindAllSubmatchIndex(prose, -1) {
			to, _, _ := strings.Cut(string(prose[at[2]:at[3]]), "#")
			if to == "" || strings.Contains(to, ":") {
				continue // this page, or an address
			}
			if !c.tree.there[path.Join(path.Dir(name), to)] {
				c.report(name, line(prose, at[0]), "docs", "%s is not there", to)
			}
		}
		for _, at := range testName.FindAllIndex(text, -1) {
			test := string(text[at[0]+1 : at[1]-1])
			if !tests[test] {
				c.report(name, line(text, at[0]), "docs", "there is no test %s", test)
			}
		}
	}
}
