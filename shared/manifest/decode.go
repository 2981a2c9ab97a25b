package manifest

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/errand-run/errand/shared/fleet"
)

// mark is a position within a document.
type mark struct{ line, column int }

// decoder writes one document's tree into Go values by their json tags, and
// remembers where each value stood. It never stops at an error.
type decoder struct {
	parser *parser
	file   string
	before int // lines of the file in front of the document

	marks   map[string]mark // where the value of a path stands
	failed  map[string]bool // paths that are given and could not be read
	written []written
	deep    bool // nesting was refused
}

// written is a scalar that the author gave, as it was read.
type written struct {
	path  string
	field reflect.Value
	value any
}

// over reports whether the set has used up its nodes.
func (d *decoder) over() bool { return d.parser.nodes > MaxNodes }

// enter counts a node and reports whether to go into it.
func (d *decoder) enter(n *yaml.Node, path string, depth int) bool {
	if d.over() {
		return false
	}
	if d.parser.nodes++; d.over() {
		d.issue(n, path, "more than %d values in one set, with each alias counted as what it stands for; use fewer aliases or apply it in several", MaxNodes)
		return false
	}
	if depth > MaxDepth {
		// Once: an alias of what it is part of gets here again and again.
		if !d.deep {
			d.fail(n, path, "%s, the limit; flatten it", errTooDeep)
		}
		d.deep = true
		return false
	}
	return true
}

func (d *decoder) issue(n *yaml.Node, path, format string, args ...any) {
	d.parser.add(Issue{
		File: d.file, Line: d.before + n.Line, Column: n.Column,
		Path: path, Message: fmt.Sprintf(format, args...),
	})
}

// fail is an issue that leaves the path without its value.
func (d *decoder) fail(n *yaml.Node, path, format string, args ...any) {
	d.failed[path] = true
	d.issue(n, path, format, args...)
}

// document decodes the whole.
func (d *decoder) document(root *yaml.Node, h *header) {
	d.value(root, "", reflect.ValueOf(h).Elem(), 0)
}

// find returns the position of the path or of the nearest that it is part of.
func (d *decoder) find(path string) mark {
	m, _ := nearest(d.marks, path)
	return m
}

// places are the marks as positions in the file, of what is checked against others after it was read.
func (d *decoder) places(obj fleet.Object) map[string]mark {
	if obj.Kind() != fleet.KindWorkflow && obj.Kind() != fleet.KindTrigger {
		return nil
	}
	places := make(map[string]mark, len(d.marks))
	for path, m := range d.marks {
		places[path] = mark{d.before + m.line, m.column}
	}
	return places
}

// echo reports whether the problem only follows from a failed path.
func (d *decoder) echo(p fleet.Problem) bool {
	for _, path := range append([]string{p.Path}, p.Related...) {
		for ; path != ""; path = path[:max(strings.LastIndexAny(path, ".["), 0)] {
			if d.failed[path] {
				return true
			}
		}
	}
	return false
}

func (d *decoder) problem(p fleet.Problem) {
	m := d.find(p.Path)
	d.parser.add(Issue{File: d.file, Line: d.before + m.line, Column: m.column, Path: p.Path, Message: p.Message})
}

// replaced reports the written values that a default took the place of.
func (d *decoder) replaced() {
	for _, w := range d.written {
		if now := w.field.Interface(); now != w.value && !d.failed[w.path] {
			value := fmt.Sprint(w.value)
			if value == "" {
				value = "an empty text"
			}
			d.problem(fleet.Problem{
				Path:    w.path,
				Message: fmt.Sprintf("%s is not a value of this field; leave it out for its default, %v", value, now),
			})
		}
	}
}

// resolve follows an alias. A cycle ends at the depth limit of the walk.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// describe names what a node is, with its value where that is short.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!int", "!!float":
		return "a number (" + clip(n.Value) + ")"
	case "!!bool":
		return "a boolean (" + n.Value + ")"
	case "!!null":
		return "nothing"
	}
	return fmt.Sprintf("a text (%q)", clip(n.Value))
}

// value decodes a node into v. The null value leaves v as it is.
func (d *decoder) value(n *yaml.Node, path string, v reflect.Value, depth int) {
	n = resolve(n)
	if !d.enter(n, path, depth) {
		return
	}
	d.marks[path] = mark{n.Line, n.Column}
	if n.Style&yaml.TaggedStyle != 0 && !strings.HasPrefix(n.Tag, "!!") || n.Tag == "!!binary" {
		d.fail(n, path, "the tag %s has no meaning here; remove it", clip(n.Tag))
		return
	}
	if isNull(n) {
		if d.parser.plain != nil {
			d.fail(n, path, "nothing is given; give a value, or leave the field out")
		}
		return
	}

	if s, ok := v.Addr().Interface().(*fleet.Schema); ok {
		d.schema(n, path, s, depth)
		return
	}
	// What has a short form as a text may have a long one, a mapping.
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok && !(v.Kind() == reflect.Struct && n.Kind == yaml.MappingNode) {
		d.unit(n, path, v, u)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.value(n, path, v.Elem(), depth)
	case reflect.Interface: // header.Spec, which holds a pointer
		d.value(n, path, v.Elem().Elem(), depth)
	case reflect.Struct:
		d.fields(n, path, v, depth)
	case reflect.Slice:
		d.items(n, path, v, depth)
	case reflect.Map:
		d.texts(n, path, v, depth)
	default:
		d.scalar(n, path, v)
	}
}

// pair is one entry of a mapping.
type pair struct{ key, value *yaml.Node }

// pairs returns a mapping's entries, each key once: its own first, then those
// that merge keys bring in. All keys are texts.
func (d *decoder) pairs(n *yaml.Node, path string, depth int) []pair {
	var own, merges []pair
	first := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]), n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode:
			d.issue(key, path, "%s where a key is needed; a key is a text", describe(key))
			continue
		case key.Tag != "!!str" && key.Tag != "!!merge" && key.Tag != "!!timestamp":
			d.issue(key, path, "%s where a key is needed; quote it: %q", describe(key), clip(key.Value))
			continue
		}
		if before, ok := first[key.Value]; ok {
			d.issue(key, fleet.At(path, fleet.Key(key.Value)), "key `%s` is given twice, first at line %d; remove one", clip(key.Value), d.before+before.Line)
			continue
		}
		first[key.Value] = key
		if key.Tag == "!!merge" {
			merges = append(merges, pair{key, value})
		} else {
			own = append(own, pair{key, value})
		}
	}
	for _, m := range merges {
		for _, p := range d.merged(m.value, path, depth+1) {
			if _, ok := first[p.key.Value]; !ok {
				first[p.key.Value] = p.key
				own = append(own, p)
			}
		}
	}
	return own
}

// merged returns the entries behind a merge key: of one mapping or of several,
// the first of which goes before the others.
func (d *decoder) merged(n *yaml.Node, path string, depth int) []pair {
	n = resolve(n)
	if !d.enter(n, path, depth) {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		return d.pairs(n, path, depth)
	case yaml.SequenceNode:
		var all []pair
		for _, item := range n.Content {
			if item = resolve(item); item.Kind != yaml.MappingNode {
				d.issue(item, path, "%s in the list of a merge (<<); want mappings alone", describe(item))
				continue
			}
			all = append(all, d.merged(item, path, depth+1)...)
		}
		return all
	}
	d.issue(n, path, "%s in a merge (<<); want a mapping or a list of them", describe(n))
	return nil
}

// fields decodes a mapping into a struct.
func (d *decoder) fields(n *yaml.Node, path string, v reflect.Value, depth int) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "%s where a mapping is needed", describe(n))
		return
	}
	known := fieldsOf(v.Type())
	for _, p := range d.pairs(n, path, depth) {
		index, ok := known[p.key.Value]
		if ok {
			d.value(p.value, fleet.At(path, p.key.Value), v.Field(index), depth+1)
			continue
		}
		names := slices.Sorted(maps.Keys(known))
		d.issue(p.key, fleet.At(path, fleet.Key(p.key.Value)), "unknown field; %s", didYouMean(p.key.Value, names))
		// What the right field would have said is not missing, only misspelt.
		if meant := suggest(p.key.Value, names); meant != "" {
			d.failed[fleet.At(path, meant)] = true
		}
	}
}

// fieldsOf maps the names of a struct's json tags to its fields.
func fieldsOf(t reflect.Type) map[string]int {
	known := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			known[name] = i
		}
	}
	return known
}

// items decodes a list. The empty list is as good as none.
func (d *decoder) items(n *yaml.Node, path string, v reflect.Value, depth int) {
	switch {
	case n.Kind == yaml.ScalarNode:
		d.fail(n, path, "%s where a list is needed; write [%s]", describe(n), clip(n.Value))
		return
	case n.Kind != yaml.SequenceNode:
		d.fail(n, path, "%s where a list is needed; begin each item with -", describe(n))
		return
	}
	if len(n.Content) == 0 && d.parser.plain != nil {
		d.fail(n, path, "an empty list; list something, or leave the field out")
	}
	v.SetZero()
	for i, item := range n.Content {
		element := reflect.New(v.Type().Elem()).Elem()
		if item := resolve(item); isNull(item) {
			d.fail(item, fleet.At(path, i), "nothing where a value is needed; remove the item")
		} else {
			d.value(item, fleet.At(path, i), element, depth+1)
		}
		v.Set(reflect.Append(v, element))
		if d.over() {
			return
		}
	}
}

// texts decodes a mapping of texts. The empty one is as good as none.
func (d *decoder) texts(n *yaml.Node, path string, v reflect.Value, depth int) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "%s where a mapping is needed; write {KEY: VALUE}", describe(n))
		return
	}
	v.SetZero()
	for _, p := range d.pairs(n, path, depth) {
		at := fleet.At(path, fleet.Key(p.key.Value))
		element := reflect.New(v.Type().Elem()).Elem()
		if value := resolve(p.value); isNull(value) {
			d.fail(value, at, "nothing where a text is needed; write \"\" for the empty text")
		} else {
			d.value(value, at, element, depth+1)
		}
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		v.SetMapIndex(reflect.ValueOf(p.key.Value), element)
	}
}

// unit decodes a scalar that reads its own notation.
func (d *decoder) unit(n *yaml.Node, path string, v reflect.Value, u encoding.TextUnmarshaler) {
	if n.Kind != yaml.ScalarNode {
		d.fail(n, path, "%s where one value is needed", describe(n))
		return
	}
	if err := u.UnmarshalText([]byte(n.Value)); err != nil {
		d.fail(n, path, "%v", err)
		return
	}
	if v.Comparable() {
		d.written = append(d.written, written{path, v, v.Interface()})
	}
}

// scalar decodes a text, a number or a boolean.
func (d *decoder) scalar(n *yaml.Node, path string, v reflect.Value) {
	var problem string
	switch v.Kind() {
	case reflect.String:
		problem = setText(n, v)
	case reflect.Int, reflect.Int64:
		problem = setInt(n, v)
	case reflect.Float64:
		problem = setFloat(n, v)
	case reflect.Bool:
		problem = setBool(n, v)
	default:
		panic(fmt.Sprintf("manifest: no decoding into %s at %s", v.Type(), path))
	}
	if problem != "" {
		d.fail(n, path, "%s", problem)
		return
	}
	d.written = append(d.written, written{path, v, v.Interface()})
}

func isText(n *yaml.Node) bool {
	// A date is a text: JSON knows no other.
	return n.Kind == yaml.ScalarNode && (n.Tag == "!!str" || n.Tag == "!!timestamp" || n.Tag == "!!merge")
}

func setText(n *yaml.Node, v reflect.Value) string {
	switch {
	case isText(n):
		v.SetString(n.Value)
		return ""
	case n.Kind == yaml.ScalarNode:
		return fmt.Sprintf("%s where a text is needed; quote it: %q", describe(n), clip(n.Value))
	}
	return describe(n) + " where a text is needed"
}

func setInt(n *yaml.Node, v reflect.Value) string {
	i, problem := parseInt(n)
	if problem != "" {
		return problem
	}
	v.SetInt(i)
	return ""
}

func parseInt(n *yaml.Node) (int64, string) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!float" && strings.ContainsAny(n.Value, ".eE"):
		return 0, describe(n) + " where a whole number is needed"
	case n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float":
		problem := describe(n) + " where a whole number is needed"
		if _, err := strconv.Atoi(n.Value); err == nil && isText(n) {
			problem += "; remove the quotes: " + n.Value
		}
		return 0, problem
	}
	digits := strings.TrimLeft(n.Value, "+-")
	if len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
		// Octal to some readers of YAML and decimal to others.
		return 0, fmt.Sprintf("%s begins with 0; write %s, or 0o%s if it is octal", clip(n.Value), clip(strings.TrimLeft(digits, "0")), clip(digits[1:]))
	}
	i, err := strconv.ParseInt(n.Value, 0, 64)
	if err != nil {
		return 0, clip(n.Value) + " is not a whole number of up to 63 bits"
	}
	return i, ""
}

func setFloat(n *yaml.Node, v reflect.Value) string {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" {
		problem := describe(n) + " where a number is needed"
		if _, err := strconv.ParseFloat(n.Value, 64); err == nil && isText(n) {
			problem += "; remove the quotes: " + clip(n.Value)
		}
		return problem
	}
	if n.Tag == "!!int" {
		i, problem := parseInt(n)
		v.SetFloat(float64(i))
		return problem
	}
	f, err := strconv.ParseFloat(n.Value, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return clip(n.Value) + " is not a finite number"
	}
	v.SetFloat(f)
	return ""
}

func setBool(n *yaml.Node, v reflect.Value) string {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!bool" {
		if b, err := strconv.ParseBool(strings.ToLower(n.Value)); err == nil {
			v.SetBool(b)
			return ""
		}
	}
	return describe(n) + " where true or false is needed"
}

// schema decodes {schema: …}, in which anything can stand that JSON can say.
func (d *decoder) schema(n *yaml.Node, path string, s *fleet.Schema, depth int) {
	var form struct {
		Schema json.RawMessage `json:"schema"`
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "%s where a mapping is needed; write {schema: …}", describe(n))
		return
	}
	known := fieldsOf(reflect.TypeOf(form))
	for _, p := range d.pairs(n, path, depth) {
		at := fleet.At(path, fleet.Key(p.key.Value))
		if _, ok := known[p.key.Value]; !ok {
			d.issue(p.key, at, "unknown field; a JSON Schema stands under the field `schema`")
			continue
		}
		if isNull(resolve(p.value)) {
			continue
		}
		top := resolve(p.value)
		d.marks[at] = mark{top.Line, top.Column}
		var b bytes.Buffer
		if d.json(&b, p.value, at, depth+1) {
			*s = fleet.Schema(b.Bytes())
		}
	}
}

// json writes a tree as compact JSON with sorted keys, and reports whether all
// of it has a form in JSON.
func (d *decoder) json(b *bytes.Buffer, n *yaml.Node, path string, depth int) bool {
	n = resolve(n)
	if !d.enter(n, path, depth) {
		return false
	}
	good := true
	switch n.Kind {
	case yaml.MappingNode:
		pairs := d.pairs(n, path, depth)
		slices.SortFunc(pairs, func(x, y pair) int { return strings.Compare(x.key.Value, y.key.Value) })
		b.WriteByte('{')
		for i, p := range pairs {
			if i > 0 {
				b.WriteByte(',')
			}
			writeText(b, p.key.Value)
			b.WriteByte(':')
			good = d.json(b, p.value, fleet.At(path, fleet.Key(p.key.Value)), depth+1) && good
		}
		b.WriteByte('}')
		return good
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			good = d.json(b, item, fleet.At(path, i), depth+1) && good
		}
		b.WriteByte(']')
		return good
	}
	return d.jsonScalar(b, n, path)
}

func (d *decoder) jsonScalar(b *bytes.Buffer, n *yaml.Node, path string) bool {
	var problem string
	switch n.Tag {
	case "!!str", "!!timestamp", "!!merge":
		if n.Style == 0 && json.Valid([]byte(n.Value)) {
			problem = clip(n.Value) + " is not a number within 64 bits of floating point; quote it if it is a text"
		}
		writeText(b, n.Value)
	case "!!null":
		b.WriteString("null")
	case "!!bool":
		var v bool
		problem = setBool(n, reflect.ValueOf(&v).Elem())
		b.WriteString(strconv.FormatBool(v))
	case "!!int", "!!float":
		// Most numbers are JSON as they stand; keeping them keeps their digits.
		if json.Valid([]byte(n.Value)) {
			b.WriteString(n.Value)
			break
		}
		var v float64
		problem = setFloat(n, reflect.ValueOf(&v).Elem())
		text, _ := json.Marshal(v) // finite, as setFloat saw to it
		b.Write(text)
	default:
		problem = fmt.Sprintf("the tag %s has no meaning here; remove it", clip(n.Tag))
	}
	if problem != "" {
		d.fail(n, path, "%s", problem)
		return false
	}
	return true
}

// writeText writes a JSON string, with <, > and & as they are.
func writeText(b *bytes.Buffer, s string) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string into a buffer cannot fail
	b.Truncate(b.Len() - 1)
}
