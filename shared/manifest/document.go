package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/trigger"
	"github.com/errand-run/errand/shared/workflow/cel"
)

// chunk is the text of one document and the lines before it in its file.
type chunk struct {
	data   []byte
	before int
}

// split cuts the text where a line starts with the marker "---". YAML allows
// that at the start of a line for nothing else, not even inside quotes.
func split(data []byte) []chunk {
	var chunks []chunk
	start, before, line := 0, 0, 0
	for pos := 0; pos < len(data); line++ {
		if pos > start && isMarker(data[pos:]) {
			chunks = append(chunks, chunk{data[start:pos], before})
			start, before = pos, line
		}
		next := bytes.IndexByte(data[pos:], '\n')
		if next < 0 {
			break
		}
		pos += next + 1
	}
	return append(chunks, chunk{data[start:], before})
}

func isMarker(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0)
}

// document reads one document and reports whether to go on with the file.
func (p *parser) document(file, dir string, doc chunk) bool {
	at := func(line, column int) Issue { return Issue{File: file, Line: doc.before + line, Column: column} }
	refuse := func(i Issue, format string, args ...any) {
		i.Message = fmt.Sprintf(format, args...)
		p.add(i)
	}

	// 1. Limits first: the parser's memory grows with the number of elements.
	if len(doc.data) > MaxDocumentBytes {
		refuse(at(1, 1), "the document is larger than %d MiB, the limit of a document; split it", MaxDocumentBytes>>20)
		return true
	}
	if p.elements += elements(doc.data); p.elements > MaxElements {
		refuse(at(1, 1), "more than %d elements in one set; apply it in several", MaxElements)
		return false
	}
	if line, column := directive(doc.data); line > 0 {
		refuse(at(line, column), "a YAML directive (%%) is not supported; remove the line")
		return true
	}

	// 2. The tree.
	doc.data = joinSurrogates(doc.data)
	roots, err := compose(doc.data)
	if err != nil {
		line, column, message := syntax(doc, err)
		refuse(at(line, column), "%s", message)
	}

	// 3. Its objects. One chunk holds more than one after the marker "...".
	for _, root := range roots {
		if p.documents++; p.documents > MaxDocuments {
			refuse(at(root.Line, root.Column), "more than %d documents in one set; apply it in several", MaxDocuments)
			return false
		}
		d := &decoder{parser: p, file: file, before: doc.before, marks: make(map[string]mark), failed: make(map[string]bool)}
		d.object(root, dir)
		if p.nodes > MaxNodes {
			return false
		}
	}
	return true
}

// elements counts separators. The nodes that the text can turn into are at most
// a small multiple of them.
func elements(data []byte) int {
	n := 0
	for i, b := range data {
		switch b {
		case '\n', ',', '[', '{':
			n++
		case ':', '-', '?':
			if i+1 == len(data) || strings.IndexByte(" \t\r\n", data[i+1]) >= 0 {
				n++
			}
		}
	}
	return n
}

// directive finds a line such as %YAML in front of the document.
func directive(data []byte) (line, column int) {
	for l := range bytes.Lines(data) {
		line++
		switch l = bytes.TrimSpace(l); {
		case len(l) == 0 || l[0] == '#':
		case l[0] == '%':
			return line, 1
		default:
			return 0, 0
		}
	}
	return 0, 0
}

// joinSurrogates writes the pairs of escapes with which JSON spells characters
// beyond the basic plane as those characters. YAML has no such pairs.
func joinSurrogates(data []byte) []byte {
	if !bytes.Contains(data, []byte(`\u`)) || !json.Valid(data) {
		return data
	}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); {
		if data[i] != '\\' {
			out = append(out, data[i])
			i++
			continue
		}
		// In valid JSON a backslash begins an escape, of two bytes or of six.
		high, low := escaped(data[i:]), rune(-1)
		if high >= 0 {
			low = escaped(data[i+6:])
		}
		if r := utf16.DecodeRune(high, low); r != utf8.RuneError {
			out = utf8.AppendRune(out, r)
			i += 12
			continue
		}
		out = append(out, data[i], data[i+1])
		i += 2
	}
	return out
}

// escaped is the code of a leading \uXXXX, or -1.
func escaped(data []byte) rune {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return -1
	}
	v, err := strconv.ParseUint(string(data[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(v)
}

// limits stops the parser at the depth that the decoder would refuse.
type limits struct{}

var errTooDeep = fmt.Errorf("nested more than %d levels deep", MaxDepth)

func (limits) CheckDepth(depth int, _ *yaml.DepthContext) error {
	if depth > MaxDepth {
		return errTooDeep
	}
	return nil
}

// CheckAlias has nothing to check: the decoder counts what it visits.
func (limits) CheckAlias(int, int) error { return nil }

// compose returns the documents of the text that hold anything, up to the first
// error.
func compose(data []byte) (roots []*yaml.Node, err error) {
	// The parser panics where it believes that it contradicts itself. Input must
	// not be able to end the process, so that is a refusal like others.
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the parser gave up: %v", v)
		}
	}()
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithPlugin(limits{}))
	if err != nil {
		return nil, err
	}
	for {
		var doc yaml.Node
		if err := loader.Load(&doc); errors.Is(err, io.EOF) {
			return roots, nil
		} else if err != nil {
			return roots, err
		}
		if len(doc.Content) == 0 || isNull(doc.Content[0]) {
			continue
		}
		roots = append(roots, doc.Content[0])
	}
}

// syntax says where in the document and why the text is not YAML, in words for
// its author.
func syntax(doc chunk, err error) (line, column int, message string) {
	line, column, message = 1, 1, err.Error()
	if le, ok := errors.AsType[*yaml.LoadError](err); ok {
		message = le.Message
		mark := le.Mark
		if mark.Line == 0 {
			mark = le.ContextMark
		}
		if mark.Line > 0 {
			line, column = mark.Line, max(mark.Column, 1)
		}
		// Where a quote or bracket was opened says more than the end of the file.
		if le.ContextMsg != "" && le.ContextMark.Line > 0 && le.ContextMark.Line < line {
			message = fmt.Sprintf("%s, %s that began at line %d", message, le.ContextMsg, doc.before+le.ContextMark.Line)
		}
	}
	if strings.Contains(err.Error(), errTooDeep.Error()) {
		return line, column, errTooDeep.Error() + ", the limit; flatten it"
	}

	text := nth(doc.data, line)
	indent := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]
	if tab := bytes.IndexByte(indent, '\t'); tab >= 0 && column <= len(indent) {
		return line, tab + 1, "a tab indents the line; YAML is indented with spaces, so replace the tab"
	}
	if _, value, ok := bytes.Cut(text, []byte(": ")); ok {
		value = bytes.TrimLeft(value, " ")
		if len(value) > 0 && strings.IndexByte("*&!@%`|>", value[0]) >= 0 {
			return line, column, fmt.Sprintf("not YAML: %s; a value that begins with %c must stand in quotes", message, value[0])
		}
	}
	return line, column, "not YAML: " + message
}

// nth returns a line without its end, counted from 1.
func nth(data []byte, line int) []byte {
	for l := range bytes.Lines(data) {
		if line--; line == 0 {
			return bytes.TrimRight(l, "\r\n")
		}
	}
	return nil
}

// later are kinds that are not there yet, by apiVersion.
var later = map[string][]string{
	fleet.APIVersion:         {"Model", "Schedule"},
	"batch/v1":               {"Job", "CronJob"},
	"run.googleapis.com/v1":  {"Job", "Service", "WorkerPool", "Instance"},
	"serving.knative.dev/v1": {"Service"},
	"v1":                     {"List"},
}

// header is the outer form of an object. Spec points to the object itself.
type header struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Metadata   *fleet.Meta `json:"metadata"`
	Spec       any         `json:"spec"`
}

// object decodes one document, and takes it if it is good.
func (d *decoder) object(root *yaml.Node, dir string) {
	if want := d.parser.want; want != nil {
		d.only(root, want)
		return
	}
	if form := d.parser.plain; form != nil {
		if d.alone(root) {
			d.judge(form, func() { d.value(root, "", reflect.ValueOf(form).Elem(), 0) })
		}
		return
	}
	before := len(d.parser.issues)
	// 1. The kind decides what the rest means.
	obj := d.kind(root)
	if obj == nil || !d.fill(root, obj) {
		return
	}
	// 2. Where it lies, and whether its name is free.
	if a, ok := obj.(*fleet.Agent); ok {
		place(a, dir)
	}
	name := d.find("metadata.name")
	at := Issue{File: d.file, Line: d.before + name.line, Column: name.column}
	if len(d.parser.issues) == before || obj.Name() != "" {
		d.parser.take(obj, at, d.places(obj))
	}
}

// only decodes the one document that is wanted.
func (d *decoder) only(root *yaml.Node, want Document) {
	version, kind := d.identity(root, fmt.Sprintf("want %s of %s", want.Kind(), fleet.APIVersion), want.Kind())
	switch {
	case kind == nil:
	case version.Value != fleet.APIVersion:
		d.issue(version, "apiVersion", "unknown apiVersion %q; write apiVersion: %s", clip(version.Value), fleet.APIVersion)
	case kind.Value != want.Kind():
		d.issue(kind, "kind", "%s where %s is needed", clip(kind.Value), want.Kind())
	case d.alone(root):
		d.fill(root, want)
	}
}

// alone reports whether no document of the file came before.
func (d *decoder) alone(root *yaml.Node) bool {
	if d.parser.documents > 1 {
		d.issue(root, "", "a second document; this file has one")
		return false
	}
	return true
}

// fill decodes a document and reports whether it was read to its end.
func (d *decoder) fill(root *yaml.Node, doc Document) bool {
	h := header{Metadata: doc.Metadata(), Spec: doc}
	return d.judge(doc, func() { d.document(root, &h) })
}

// judge decodes into a form and reports whether it was read to its end.
func (d *decoder) judge(doc Form, decode func()) bool {
	// 1. Decode all of it over the defaults, then judge the values. What a field
	// that could not be read leads to is no news.
	decode()
	if d.over() {
		return false
	}
	for _, problem := range problems(doc) {
		if !d.echo(problem) {
			d.problem(problem)
		}
	}
	// 2. Defaults fill gaps; where one would replace what is written, the author
	// wrote a zero that the field does not have.
	doc.SetDefaults()
	d.replaced()
	return true
}

// problems are what is wrong with the values of a form, its expressions included.
func problems(doc Form) []fleet.Problem {
	list := doc.Validate()
	switch o := doc.(type) {
	case *fleet.Trigger:
		_, faults := trigger.Compile(o)
		list = append(list, faults...)
	case *fleet.Workflow:
		if len(list) == 0 { // where its stages lead must be known before what they may read
			_, list = cel.Compile(o)
		}
	}
	return list
}

// place makes the agent's working folder absolute.
func place(a *fleet.Agent, dir string) {
	if dir != "" && len(a.Run.Command) > 0 && !filepath.IsAbs(a.Run.Dir) {
		a.Run.Dir = filepath.Join(dir, a.Run.Dir)
	}
}

// identity returns the nodes of the document's version and kind, or reports why
// it cannot and returns nil for both.
func (d *decoder) identity(root *yaml.Node, supported, example string) (version, kind *yaml.Node) {
	root = resolve(root)
	if root.Kind != yaml.MappingNode {
		d.issue(root, "", "%s where an object is needed; begin with apiVersion: %s and kind: %s", describe(root), fleet.APIVersion, example)
		return nil, nil
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch value := resolve(root.Content[i+1]); root.Content[i].Value {
		case "apiVersion":
			version = value
		case "kind":
			kind = value
		}
	}
	switch {
	case version == nil || isNull(version):
		d.issue(root, "apiVersion", "required; write apiVersion: %s", fleet.APIVersion)
	case version.Kind != yaml.ScalarNode:
		d.issue(version, "apiVersion", "%s where a text is needed; write apiVersion: %s", describe(version), fleet.APIVersion)
	case kind == nil || isNull(kind):
		d.issue(root, "kind", "required; %s", supported)
	case kind.Kind != yaml.ScalarNode:
		d.issue(kind, "kind", "%s where a text is needed; %s", describe(kind), supported)
	default:
		return version, kind
	}
	return nil, nil
}

// kind makes the object that the document declares, or reports why it cannot.
func (d *decoder) kind(root *yaml.Node) fleet.Object {
	supported := fmt.Sprintf("supported are %s of %s", strings.Join(fleet.Kinds(), ", "), fleet.APIVersion)
	version, kind := d.identity(root, supported, fleet.KindAgent)
	if kind == nil {
		return nil
	}
	known, ok := later[version.Value]
	if !ok {
		hint := suggest(version.Value, []string{fleet.APIVersion, "batch/v1", "run.googleapis.com/v1"})
		if hint != "" {
			hint = "did you mean `" + hint + "`; "
		}
		d.issue(version, "apiVersion", "unknown apiVersion %q; %s%s", clip(version.Value), hint, supported)
		return nil
	}
	if version.Value == fleet.APIVersion && kind.Value == KindArrivals {
		d.issue(kind, "kind", "%s are no part of a fleet; keep the file apart and give it to \"errand simulate --arrivals\"", KindArrivals)
		return nil
	}
	if slices.Contains(known, kind.Value) {
		d.issue(kind, "kind", "%s of %s is not supported yet; %s", kind.Value, version.Value, supported)
		return nil
	}
	if version.Value == fleet.APIVersion {
		if obj, err := fleet.New(kind.Value); err == nil {
			return obj
		}
		known = append(fleet.Kinds(), known...)
	}
	hint := supported
	if meant := suggest(kind.Value, known); meant != "" {
		hint = "did you mean `" + meant + "`; " + supported
	}
	d.issue(kind, "kind", "unknown kind %q of %s; %s", clip(kind.Value), version.Value, hint)
	return nil
}
