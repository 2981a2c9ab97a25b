package server

import (
	"bytes"
	"context"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/manifest"
)

// collections are the declared kinds and their paths.
var collections = []struct{ kind, path string }{
	{fleet.KindAgent, "agents"}, {fleet.KindTarget, "targets"}, {fleet.KindTenant, "tenants"},
	{fleet.KindWorkflow, "workflows"}, {fleet.KindTrigger, "triggers"},
}

func (s *Server) fleetDoors() {
	s.plain(door{
		method: "POST", path: "/v1/apply", id: "apply", tag: "fleet", need: govern,
		summary: "Declare what a set of manifests says, all or nothing. YAML, with any number of documents, or JSON.",
		takes:   "application/yaml", answer: api.ApplyResult{},
		params: []*huma.Param{
			queryParam("dryRun", "true: say what would happen."),
			queryParam("prune", "true: delete what is declared and not in the set."),
		},
		errors: []int{400, 409, 413, 415},
	}, s.apply)
	for _, c := range collections {
		one := strings.ToLower(c.kind)
		ordinary(s, door{
			method: "GET", path: "/v1/" + c.path, id: "list" + c.kind + "s", tag: "fleet", need: view,
			summary: "List " + c.path + ", by name, with every default in effect and their status.", errors: []int{400},
		}, func(ctx context.Context, in *Page) (*answer[api.List[api.Object]], error) {
			return s.listDeclared(ctx, c.kind, in)
		})
		ordinary(s, door{
			method: "GET", path: "/v1/" + c.path + "/{name}", id: "get" + c.kind, tag: "fleet", need: view,
			summary: "Read " + article(one) + " " + one + ", with every default in effect and its status.", errors: []int{404},
		}, func(ctx context.Context, in *nameInput) (*tagged[api.Object], error) {
			d, err := s.declaredFor(ctx, c.kind, in.Name)
			if err != nil {
				return nil, err
			}
			out, err := declared(d)
			if err != nil {
				return nil, err
			}
			return &tagged[api.Object]{ETag: quoted(out.Etag), Body: out}, nil
		})
		ordinary(s, door{
			method: "DELETE", path: "/v1/" + c.path + "/{name}", id: "delete" + c.kind, tag: "fleet", need: govern, status: 204,
			summary: "Delete " + article(one) + " " + one + ", once nothing uses it; with If-Match, exactly that version.", errors: []int{400, 404, 409, 412},
		}, func(ctx context.Context, in *deleteInput) (*struct{}, error) {
			return nil, s.deleteDeclared(ctx, c.kind, in)
		})
	}
	for _, v := range []struct {
		verb, summary string
		paused        bool
	}{{"pause", "Stop starts of an agent; what runs goes on.", true}, {"resume", "Undo pause.", false}} {
		ordinary(s, door{
			method: "POST", path: "/v1/agents/{name}:" + v.verb, id: v.verb + "Agent", tag: "fleet", need: govern,
			summary: v.summary, errors: []int{404},
		}, func(ctx context.Context, in *nameInput) (*tagged[api.Object], error) {
			if err := objectName("agent", in.Name); err != nil {
				return nil, err
			}
			p := principal(ctx)
			if err := s.plane.PauseAgent(ctx, in.Name, v.paused, p.Name); err != nil {
				return nil, err
			}
			d, err := s.plane.DeclaredOne(ctx, fleet.KindAgent, in.Name)
			if err != nil {
				return nil, err
			}
			out, err := declared(d)
			if err != nil {
				return nil, err
			}
			return &tagged[api.Object]{ETag: quoted(out.Etag), Body: out}, nil
		})
	}
}

func article(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an"
	}
	return "a"
}

type nameInput struct {
	Name string `path:"name"`
}

type deleteInput struct {
	Name    string `path:"name"`
	IfMatch string `header:"If-Match" doc:"an etag"`
}

func (s *Server) apply(w http.ResponseWriter, r *http.Request) error {
	// 1. What is asked.
	dry, err := flag(r, "dryRun")
	if err != nil {
		return err
	}
	prune, err := flag(r, "prune")
	if err != nil {
		return err
	}
	name, err := manifestName(r.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	body, err := readBody(w, r, manifest.MaxFileBytes)
	if err != nil {
		return err
	}
	// 2. Read it strictly. Places are told as body:LINE:COLUMN.
	set, err := manifest.Parse([]manifest.File{{Name: name, Data: bytes.NewReader(body)}}, manifest.Options{})
	if err != nil {
		return err
	}
	if len(set.Objects) == 0 && !prune {
		return invalid("the body declares nothing; send one or more manifests")
	}
	objects := make([]fleet.Object, len(set.Objects))
	for i, o := range set.Objects {
		objects[i] = o.Object
	}
	// 3. All or nothing.
	p := principal(r.Context())
	applied, err := s.plane.Apply(r.Context(), objects, control.ApplyOptions{DryRun: dry, Prune: prune, Actor: p.Name})
	if err != nil {
		return placed(err, set)
	}
	out := api.ApplyResult{Results: make([]api.Applied, 0, len(applied))}
	for _, a := range applied {
		out.Results = append(out.Results, api.Applied{Kind: a.Kind, Name: a.Name, Action: a.Action, Warnings: a.Warnings})
	}
	return writeJSON(w, http.StatusOK, out)
}

// placed says of a refused set where what is wrong stands.
func placed(err error, set *manifest.Set) error {
	var refusal *control.Refusal
	if !errors.As(err, &refusal) || len(refusal.Faults) == 0 {
		return err
	}
	at := *refusal
	at.Faults = slices.Clone(refusal.Faults)
	for i := range at.Faults {
		at.Faults[i].Location = set.Locate(at.Faults[i].Location)
	}
	return &at
}

// manifestName is what messages call the body; JSON is YAML to the reader.
func manifestName(contentType string) (string, error) {
	media, _, err := mime.ParseMediaType(contentType)
	switch media {
	case "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "application/json":
		if err == nil {
			return "body", nil
		}
	}
	return "", problem(http.StatusUnsupportedMediaType, api.CodeUnsupported, "the body has Content-Type %q; want application/yaml or application/json", clip(contentType))
}

// visible reports whether a declaration concerns any tenant that the principal sees.
func (p *Principal) visible(o fleet.Object) bool {
	var only []string
	switch o := o.(type) {
	case *fleet.Tenant:
		return p.sees(o.Name())
	case *fleet.Agent:
		only = o.Needs.TenantsOnly
	case *fleet.Target:
		only = o.Tenants
	}
	return len(only) == 0 || slices.ContainsFunc(only, p.sees)
}

func (s *Server) listDeclared(ctx context.Context, kind string, in *Page) (*answer[api.List[api.Object]], error) {
	all, err := s.plane.Declared(ctx, kind)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b control.Declared) int { return strings.Compare(a.Object.Name(), b.Object.Name()) })
	p := principal(ctx)
	out := api.List[api.Object]{Items: []api.Object{}}
	last := ""
	for _, d := range all {
		if d.Object.Name() <= in.PageToken || !p.visible(d.Object) {
			continue
		}
		if len(out.Items) == in.limit() {
			out.NextPageToken = last
			break
		}
		last = d.Object.Name()
		o, err := declared(d)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, o)
	}
	return &answer[api.List[api.Object]]{Body: out}, nil
}

func (s *Server) declaredFor(ctx context.Context, kind, name string) (control.Declared, error) {
	if err := objectName(kind, name); err != nil {
		return control.Declared{}, err
	}
	d, err := s.plane.DeclaredOne(ctx, kind, name)
	if err != nil {
		return control.Declared{}, err
	}
	p := principal(ctx)
	if !p.visible(d.Object) {
		return control.Declared{}, notFound("there is no %s %q", strings.ToLower(kind), name)
	}
	return d, nil
}

func (s *Server) deleteDeclared(ctx context.Context, kind string, in *deleteInput) error {
	if err := objectName(kind, in.Name); err != nil {
		return err
	}
	var revision int64
	if match := in.IfMatch; match != "" && match != "*" {
		n, err := strconv.ParseInt(strings.Trim(match, `"`), 10, 64)
		if err != nil || n < 1 {
			return invalidAt("header.If-Match", "%q is no etag of this server", clip(match))
		}
		revision = n
	}
	p := principal(ctx)
	return s.plane.Delete(ctx, kind, in.Name, revision, p.Name)
}

// comingDoors answer for names that are reserved and not served yet, so that a caller learns that rather than to
// doubt the address.
func (s *Server) comingDoors() {
	for _, c := range []struct{ path, what string }{
		{"models", "Models are"}, {"schedules", "Schedules are"}, {"jobs", "Jobs are"},
	} {
		for _, path := range []string{"/v1/" + c.path, "/v1/" + c.path + "/{name}"} {
			id := "list" + strings.ToUpper(c.path[:1]) + c.path[1:]
			if strings.HasSuffix(path, "}") {
				id = "get" + strings.ToUpper(c.path[:1]) + c.path[1:]
			}
			s.plain(door{
				method: "GET", path: path, id: id, tag: "coming", need: view, status: 501, summary: c.what + " not served by this version.",
			}, func(http.ResponseWriter, *http.Request) error {
				return problem(http.StatusNotImplemented, api.CodeUnsupported, "%s not served by this version; agents, targets, tenants, workflows, triggers and runs are", strings.ToLower(c.what))
			})
		}
	}
}
