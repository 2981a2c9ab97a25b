package server

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
)

// maxPut is a value with what stands around it.
const maxPut = api.MaxStateValue + 4<<10

func (s *Server) stateDoors() {
	tenant := queryParam("tenant", "whose state, of those that one acts for; an attempt has its own")
	match := headerParam("If-Match", "the etag that is replaced, or * for whatever is there")
	const route = "/v1/state/*"
	s.plain(door{
		method: "GET", path: "/v1/state", id: "listState", tag: "state", need: view, attempts: true,
		summary: "Documents of shared state, by key, without values.", answer: api.List[api.State]{}, errors: []int{400},
		params: []*huma.Param{queryParam("prefix", "of the keys, such as ledger/"), tenant, queryParam("limit", "1 to 100"), queryParam("pageToken", "nextPageToken of the page before")},
	}, s.listState)
	s.plain(door{
		method: "GET", path: "/v1/state/{key}", route: route, id: "getState", tag: "state", need: view, attempts: true,
		summary: "Read a document of shared state. Its key may have slashes.", answer: api.State{}, errors: []int{400, 404}, params: []*huma.Param{tenant},
	}, s.getState)
	s.plain(door{
		method: "PUT", path: "/v1/state/{key}", route: route, id: "putState", tag: "state", need: operate, attempts: true, also: []int{http.StatusCreated},
		summary: "Write a document over exactly one version of it; a stale write is answered with the version that is there.",
		body:    api.PutState{}, answer: api.State{}, errors: []int{400, 404, 409, 412, 413, 415, 428},
		params: []*huma.Param{tenant, match, headerParam("If-None-Match", "* to create it")},
	}, s.putState)
	s.plain(door{
		method: "DELETE", path: "/v1/state/{key}", route: route, id: "deleteState", tag: "state", need: operate, attempts: true, status: http.StatusNoContent,
		summary: "Delete a document in exactly one version of it.", errors: []int{400, 404, 409, 412, 428}, params: []*huma.Param{tenant, match},
	}, s.deleteState)
}

// sharer is who reads or writes shared state, and of which tenant.
type sharer struct {
	tenant string
	by     control.StateWriter
	grant  *control.Grant // of an attempt
}

func sharerOf(r *http.Request) (sharer, error) {
	named := r.URL.Query().Get("tenant")
	if g, ok := r.Context().Value(grantKey).(control.Grant); ok {
		if named != "" && named != g.Tenant {
			return sharer{}, located(problem(http.StatusForbidden, api.CodeForbidden, "the attempt is one of tenant %s", g.Tenant), "query.tenant", "not allowed")
		}
		return sharer{g.Tenant, control.StateWriter{Run: g.Run, N: g.N, Actor: g.Agent}, &g}, nil
	}
	p := principal(r.Context())
	if named != "" && !isName.MatchString(named) {
		return sharer{}, invalidAt("query.tenant", "%q is no tenant's name", clip(named))
	}
	tenant, err := p.tenant(named, "query.tenant")
	return sharer{tenant: tenant, by: control.StateWriter{Actor: p.Name}}, err
}

// may refuses an attempt a key that its agent's permissions do not name, or keys with a prefix that no pattern of them
// covers as a whole.
func (a *sharer) may(key string, all bool) error {
	if a.grant == nil {
		return nil
	}
	for _, scope := range a.grant.Scopes {
		pattern, ok := strings.CutPrefix(scope, "state:")
		if !ok {
			continue
		}
		prefix, any := strings.CutSuffix(pattern, "*")
		if !all && key == pattern || any && strings.HasPrefix(key, prefix) {
			return nil
		}
	}
	return problem(http.StatusForbidden, api.CodeForbidden, "agent %s may not use state %q; allow it under permissions.state of the agent", a.grant.Agent, clip(key))
}

// stateOf is the document that a request is about.
func stateOf(r *http.Request) (key string, a sharer, err error) {
	if a, err = sharerOf(r); err != nil {
		return "", a, err
	}
	key = pathValue(r, "*")
	if err := control.CheckStateKey(key); err != nil {
		return "", a, invalidAt("path.key", "%v", err)
	}
	return key, a, a.may(key, false)
}

func (s *Server) getState(w http.ResponseWriter, r *http.Request) error {
	key, a, err := stateOf(r)
	if err != nil {
		return err
	}
	doc, value, err := s.plane.StateValue(r.Context(), a.tenant, key)
	if err != nil {
		return err
	}
	return writeState(w, http.StatusOK, &doc, value)
}

func (s *Server) putState(w http.ResponseWriter, r *http.Request) error {
	// 1. Who writes what, over which version.
	key, a, err := stateOf(r)
	if err != nil {
		return err
	}
	expect, err := expected(r)
	if err != nil {
		return err
	}
	q, err := decode[api.PutState](w, r, maxPut, false)
	switch {
	case err != nil:
		return err
	case len(q.Value) == 0:
		return invalidAt("body.value", "missing; want any JSON")
	}
	// 2. The answer is durable before it is given.
	ctx, cancel := detached(r.Context())
	defer cancel()
	doc, err := s.plane.PutState(ctx, control.StateWrite{Tenant: a.tenant, Key: key, Value: q.Value, Expect: expect, Nonce: q.Nonce, By: a.by})
	if err != nil {
		return err
	}
	status := http.StatusOK
	if expect == control.StateAbsent {
		status = http.StatusCreated
	}
	return writeState(w, status, &doc, q.Value)
}

func (s *Server) deleteState(w http.ResponseWriter, r *http.Request) error {
	key, a, err := stateOf(r)
	if err != nil {
		return err
	}
	expect, err := expected(r)
	switch {
	case err != nil:
		return err
	case expect == control.StateAbsent:
		return invalidAt("header.If-Match", "names no version; what does not exist cannot be deleted")
	}
	ctx, cancel := detached(r.Context())
	defer cancel()
	if err := s.plane.DeleteState(ctx, control.StateWrite{Tenant: a.tenant, Key: key, Expect: expect, By: a.by}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) listState(w http.ResponseWriter, r *http.Request) error {
	a, err := sharerOf(r)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	prefix, limit := query.Get("prefix"), control.MaxStatePage
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > control.MaxStatePage {
			return invalidAt("query.limit", "%q; want 1 to %d", clip(text), control.MaxStatePage)
		}
	}
	if err := a.may(prefix, true); err != nil {
		return err
	}
	docs, next, err := s.plane.ListState(r.Context(), a.tenant, prefix, limit, query.Get("pageToken"))
	if err != nil {
		return err
	}
	out := api.List[api.State]{Items: make([]api.State, len(docs)), NextPageToken: next}
	for i := range docs {
		out.Items[i] = stateAsAPI(&docs[i], nil)
	}
	return writeJSON(w, http.StatusOK, out)
}

// expected reads the version that a write is over.
func expected(r *http.Request) (int64, error) {
	match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	switch {
	case match != "" && none != "":
		return 0, invalidAt("header.If-None-Match", "stands beside If-Match; want one of them")
	case none == "*":
		return control.StateAbsent, nil
	case none != "":
		return 0, invalidAt("header.If-None-Match", "%q; want *, to create what does not exist", clip(none))
	case match == "":
		return 0, located(problem(http.StatusPreconditionRequired, api.CodeInvalid,
			"the write does not say over which version; send If-Match with the etag that was read, or If-None-Match: * to create"), "header.If-Match", "missing")
	case match == "*":
		return control.StateAny, nil
	}
	version, err := strconv.ParseInt(strings.Trim(match, `"`), 10, 64)
	if err != nil || version < 0 {
		return 0, invalidAt("header.If-Match", "%q is no etag of this server", clip(match))
	}
	return version, nil
}

func writeState(w http.ResponseWriter, status int, doc *control.StateDoc, value json.RawMessage) error {
	out := stateAsAPI(doc, value)
	w.Header().Set("ETag", quoted(out.Etag))
	return writeJSON(w, status, out)
}

func stateAsAPI(d *control.StateDoc, value json.RawMessage) api.State {
	return api.State{
		Key: d.Key, Tenant: d.Tenant, Version: d.Version, Value: value, Size: d.Value.Size, UpdatedAt: timeOf(d.UpdatedAt),
		By: d.By.Actor, Run: d.By.Run, Attempt: d.By.N, Etag: etagOf(d.Version),
	}
}

// isAttemptToken reports whether a bearer token says that it is an attempt's. Whether it is a good one is for Verify to
// find out; it is nobody else's in any case.
func isAttemptToken(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || len(token) > MaxToken {
		return false
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	return json.Unmarshal(raw, &claims) == nil && claims.Issuer == control.TokenIssuer
}
