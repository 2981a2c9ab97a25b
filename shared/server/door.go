package server

import (
	"cmp"
	"context"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/errand-run/errand/shared/api"
)

// door is one operation: who may pass, what comes in, what goes out. The OpenAPI document is made of it.
type door struct {
	method, path string
	id, summary  string
	tag          string
	need         right
	hot          bool   // called all the time
	route        string // of the router, where it is not the path
	attempts     bool   // the token of an attempt opens it as well

	// Of plain doors; huma takes them from the handler's types.
	body     any    // a value of the request's type
	takes    string // content type of a body that is not JSON; body is then nil
	optional bool   // the body may be missing
	answer   any    // a value of the response's type
	gives    []string
	params   []*huma.Param

	status int   // of success; 200 when 0
	also   []int // other successes with the same body
	errors []int
}

// plain registers a handler that reads and writes by itself. An error that it returns becomes a problem, as long as
// nothing was written.
func (s *Server) plain(d door, h func(w http.ResponseWriter, r *http.Request) error) {
	s.describe(d)
	var query []string
	for _, p := range d.params {
		if p.In == "query" {
			query = append(query, p.Name)
		}
	}
	s.router.MethodFunc(d.method, cmp.Or(d.route, d.path), func(w http.ResponseWriter, r *http.Request) {
		r, err := s.admitTo(&d, r)
		if err == nil {
			err = onlyQuery(r, query)
		}
		if err == nil {
			err = h(w, r)
		}
		if err != nil {
			writeProblem(w, problemOf(r.Context(), s.log, err))
		}
	})
}

// describe puts a plain door into the OpenAPI document.
func (s *Server) describe(d door) {
	op := s.operation(d)
	if d.body != nil || d.takes != "" {
		media := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
		takes := d.takes
		if d.body != nil {
			takes, media = "application/json", &huma.MediaType{Schema: s.schema(d.body, d.id+"Request")}
		}
		op.RequestBody = &huma.RequestBody{Required: !d.optional, Content: map[string]*huma.MediaType{takes: media}}
	}
	var content map[string]*huma.MediaType
	if d.answer != nil {
		content = map[string]*huma.MediaType{"application/json": {Schema: s.schema(d.answer, d.id+"Response")}}
	}
	for _, media := range d.gives {
		if content == nil {
			content = make(map[string]*huma.MediaType)
		}
		content[media] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}
	for _, status := range append(d.also, op.DefaultStatus) {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: content}
	}
	op.Parameters = append(pathParams(d.path), d.params...)
	s.documentErrors(&op)
	s.api.OpenAPI().AddOperation(&op)
}

// ordinary registers an operation without a request body; its input's tagged fields are the parameters. An error that
// the handler returns becomes a problem.
func ordinary[I, O any](s *Server, d door, h func(ctx context.Context, in *I) (*O, error)) {
	op := s.operation(d)
	op.Middlewares = huma.Middlewares{func(c huma.Context, next func(huma.Context)) {
		r, w := humachi.Unwrap(c)
		r, err := s.admit(d.need, r)
		if err != nil {
			writeProblem(w, problemOf(c.Context(), s.log, err))
			return
		}
		next(huma.WithContext(c, r.Context()))
	}}
	s.documentErrors(&op)
	op.Errors = nil // documented above
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := h(ctx, in)
		if err != nil {
			return nil, &wireProblem{*problemOf(ctx, s.log, err)}
		}
		return out, nil
	})
}

// admit returns the request with its principal, or the problem of one that may not pass. What an attempt may do is
// for the handler to say: it knows which attempt is meant.
func (s *Server) admit(need right, r *http.Request) (*http.Request, error) {
	if need == public || need == attempt {
		return r, nil
	}
	if !s.opts.Loopback && pretends(r) {
		return r, problem(http.StatusForbidden, api.CodeForbidden, "a request says who asks by its token here; %s and %s are for a server without login", api.HeaderAs, api.HeaderGroups)
	}
	p, err := s.auth.Authenticate(r)
	if err != nil {
		return r, unidentified(err)
	}
	r = r.WithContext(context.WithValue(r.Context(), principalKey, p))
	return r, p.may(need)
}

// admitTo is admit for a door that may be open to attempts.
func (s *Server) admitTo(d *door, r *http.Request) (*http.Request, error) {
	if token, ok := Bearer(r); d.attempts && ok && isAttemptToken(token) {
		g, err := s.plane.Verify(token)
		if err != nil {
			return r, problem(http.StatusUnauthorized, api.CodeUnauthorized, "%v", err)
		}
		return r.WithContext(context.WithValue(r.Context(), grantKey, g)), nil
	}
	return s.admit(d.need, r)
}

func (s *Server) operation(d door) huma.Operation {
	if d.hot {
		s.hot[d.path] = true
	}
	status := d.status
	if status == 0 {
		status = http.StatusOK
	}
	op := huma.Operation{
		Method: d.method, Path: d.path, OperationID: d.id, Summary: d.summary, Tags: []string{d.tag},
		DefaultStatus: status, Errors: d.errors, Responses: make(map[string]*huma.Response),
	}
	switch d.need {
	case public:
		op.Security = []map[string][]string{}
	case attempt:
		op.Security = []map[string][]string{{"attempt": {}}}
	default:
		op.Errors = append(op.Errors, http.StatusUnauthorized, http.StatusForbidden)
		op.Security = []map[string][]string{{"token": {}}, {}}
		if d.attempts {
			op.Security = append(op.Security, map[string][]string{"attempt": {}})
		}
	}
	return op
}

func (s *Server) documentErrors(op *huma.Operation) {
	schema := s.schema(api.Problem{}, "Problem")
	content := map[string]*huma.MediaType{"application/problem+json": {Schema: schema}}
	for _, status := range op.Errors {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: content}
	}
	op.Responses["default"] = &huma.Response{Description: "Any other error", Content: content}
}

func (s *Server) schema(v any, hint string) *huma.Schema {
	return s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(v), true, hint)
}

// pathParams documents the placeholders of a path.
func pathParams(path string) []*huma.Param {
	var params []*huma.Param
	for _, m := range placeholder.FindAllStringSubmatch(path, -1) {
		params = append(params, &huma.Param{Name: m[1], In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
	}
	return params
}

func queryParam(name, description string) *huma.Param {
	return &huma.Param{Name: name, In: "query", Description: description, Schema: &huma.Schema{Type: huma.TypeString}}
}

func headerParam(name, description string) *huma.Param {
	return &huma.Param{Name: name, In: "header", Description: description, Schema: &huma.Schema{Type: huma.TypeString}}
}

// onlyQuery refuses query parameters that a plain door does not know, and doubled ones.
func onlyQuery(r *http.Request, known []string) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	for name, values := range r.URL.Query() {
		switch {
		case !slices.Contains(known, name):
			return invalidAt("query."+clip(name), "unknown parameter")
		case len(values) > 1:
			return invalidAt("query."+name, "given %d times", len(values))
		}
	}
	return nil
}

// waitOf reads how long a call asks to wait.
func waitOf(value, byDefault string) (time.Duration, error) {
	if value == "" {
		value = byDefault
	}
	if value == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > api.MaxWait*time.Second {
		return 0, invalidAt("query.wait", "%q; want a length of time from 0s to %ds, such as 30s", clip(value), api.MaxWait)
	}
	return d, nil
}
