package server

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/server/dashboard"
)

func docOperation(op *huma.Operation) dashboard.DocOperation {
	out := dashboard.DocOperation{ID: op.OperationID, Method: op.Method, Path: op.Path, Summary: op.Summary}
	for _, p := range op.Parameters {
		f := docField(p.Name, p.Schema)
		f.In, f.Required, f.Description = p.In, p.Required, cmp.Or(p.Description, f.Description)
		out.Params = append(out.Params, f)
	}
	if op.RequestBody != nil {
		for media, m := range op.RequestBody.Content {
			if out.Body, out.BodySchema = refName(m.Schema), true; out.Body == "" {
				out.Body, out.BodySchema = media, false
			}
		}
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		a := dashboard.DocAnswer{Status: status}
		for _, media := range slices.Sorted(maps.Keys(op.Responses[status].Content)) {
			if name := refName(op.Responses[status].Content[media].Schema); name != "" {
				a.Schema = name
			} else {
				a.Media = append(a.Media, media)
			}
		}
		out.Answers = append(out.Answers, a)
	}
	return out
}

func docSchemas(all map[string]*huma.Schema) []dashboard.DocSchema {
	var out []dashboard.DocSchema
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := dashboard.DocSchema{Name: name}
		for _, field := range slices.Sorted(maps.Keys(all[name].Properties)) {
			f := docField(field, all[name].Properties[field])
			f.Required = slices.Contains(all[name].Required, field)
			s.Fields = append(s.Fields, f)
		}
		out = append(out, s)
	}
	return out
}

func docField(name string, s *huma.Schema) dashboard.DocField {
	f := dashboard.DocField{Name: name, Description: s.Description, Ref: refName(s)}
	switch {
	case f.Ref != "":
		f.Type = f.Ref
	case s.Type == huma.TypeArray && s.Items != nil:
		f.Ref = refName(s.Items)
		f.Type = "array of " + cmp.Or(f.Ref, s.Items.Type, "any")
	case s.Type == "":
		f.Type = "any"
	case s.Format != "" && s.Type == huma.TypeString:
		f.Type = s.Format
	default:
		f.Type = s.Type
	}
	return f
}

// refName is the name of the schema that s refers to, or "".
func refName(s *huma.Schema) string {
	if s == nil {
		return ""
	}
	return strings.TrimPrefix(s.Ref, "#/components/schemas/")
}
