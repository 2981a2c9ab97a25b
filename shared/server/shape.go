package server

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/errand-run/errand/shared/api"
)

// kind is what a JSON value must be.
type kind int

const (
	anyValue kind = iota // a payload of somebody else's: only its syntax is checked
	object
	mapping
	array
	text
	boolean
	integer
	number
)

// shape is what a Go type asks of the JSON that is decoded into it: encoding/json alone takes unknown fields, names in
// another case, doubled names and numbers that do not fit without a word, or names none of them by its place.
type shape struct {
	kind     kind
	nullable bool
	bits     int                      // integer
	signed   bool                     // integer
	element  *shape                   // array, mapping
	parses   func(token []byte) error // text that stands for something: a time, a duration
	fields   map[string]*field
	names    []string // of fields, in declared order
	required []string
}

type field struct {
	shape *shape
	index int // among names
}

var (
	rawMessage      = reflect.TypeFor[json.RawMessage]()
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	wireTime        = reflect.TypeFor[api.Time]()
	bytesInText     = reflect.TypeFor[[]byte]() // base64
)

// implied are fields that a response always has and a request may leave out, because the server fills them in
// or asks for them where nothing else says them.
var implied = map[reflect.Type][]string{
	reflect.TypeFor[api.LogLine](): {"at", "attempt", "stream"},
	reflect.TypeFor[api.Step]():    {"name", "seq"},
}

var shapes sync.Map // reflect.Type → *shape

// shapeOf derives the shape of a type, once.
func shapeOf(t reflect.Type) *shape {
	if known, ok := shapes.Load(t); ok {
		return known.(*shape)
	}
	s := derive(t, make(map[reflect.Type]bool))
	shapes.Store(t, s)
	return s
}

func derive(t reflect.Type, under map[reflect.Type]bool) *shape {
	if under[t] {
		panic(fmt.Sprintf("server: request type %s contains itself", t))
	}
	s := new(shape)
	switch {
	case t == rawMessage:
		s.nullable = true
		return s
	case t == bytesInText:
		s.kind, s.nullable, s.parses = text, true, parserOf(t)
		return s
	case t == wireTime:
		s.kind, s.nullable, s.parses = text, true, parserOf(t)
		return s
	case t.Kind() == reflect.Pointer:
		*s = *derive(t.Elem(), under)
		s.nullable = true
		return s
	case reflect.PointerTo(t).Implements(unmarshaler):
		s.nullable = true
		return s
	case reflect.PointerTo(t).Implements(textUnmarshaler):
		s.kind, s.parses = text, parserOf(t)
		return s
	}
	under[t] = true
	defer delete(under, t)
	switch t.Kind() {
	case reflect.Struct:
		s.kind, s.fields = object, make(map[string]*field)
		s.addFields(t, under)
	case reflect.Map:
		s.kind, s.nullable, s.element = mapping, true, derive(t.Elem(), under)
	case reflect.Slice, reflect.Array:
		s.kind, s.nullable, s.element = array, true, derive(t.Elem(), under)
	case reflect.String:
		s.kind = text
	case reflect.Bool:
		s.kind = boolean
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		s.kind, s.bits, s.signed = integer, t.Bits(), true
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		s.kind, s.bits = integer, t.Bits()
	case reflect.Float32, reflect.Float64:
		s.kind = number
	default:
		s.nullable = true
	}
	return s
}

func parserOf(t reflect.Type) func([]byte) error {
	return func(token []byte) error { return json.Unmarshal(token, reflect.New(t).Interface()) }
}

func (s *shape) addFields(t reflect.Type, under map[reflect.Type]bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
			continue
		case f.Anonymous && name == "":
			s.addFields(f.Type, under)
			continue
		case !f.IsExported():
			continue
		case name == "":
			name = f.Name
		}
		s.fields[name] = &field{shape: derive(f.Type, under), index: len(s.names)}
		s.names = append(s.names, name)
		if !strings.Contains(options, "omit") && !fillsIn(t, name) {
			s.required = append(s.required, name)
		}
	}
}

func fillsIn(t reflect.Type, name string) bool {
	for _, n := range implied[t] {
		if n == name {
			return true
		}
	}
	return false
}

// wants names the shape in a message.
func (s *shape) wants() string {
	switch s.kind {
	case object, mapping:
		return "an object"
	case array:
		return "an array"
	case text:
		return "text"
	case boolean:
		return "true or false"
	case integer:
		return "a whole number"
	case number:
		return "a number"
	}
	return "any value"
}
