package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/server/dashboard"
)

const (
	pageGates = 100
	maxForm   = 16 << 10 // bytes of a form
)

func (s *Server) gatePages() {
	s.page(door{
		path: "/gates", id: "pageGates", need: view, summary: "What waits for people, as a page.",
	}, s.gatesPage, "approver", "pageToken")
	s.page(door{
		path: "/gates/{id}", id: "pageGate", need: view, summary: "A gate with all that helps to decide it, as a page. Looking at it decides nothing.",
	}, s.gatePage)
	d := door{
		method: "POST", path: "/gates/{id}", id: "pageDecide", tag: "operations", need: approve, gives: []string{"text/html"}, status: http.StatusSeeOther,
		takes: "application/x-www-form-urlencoded", summary: "The form of a gate's page: decision, comment and actionHash; only from a page of this server.",
	}
	s.describe(d)
	s.router.Post(d.path, s.decideByForm)
}

func (s *Server) gatesPage(r *http.Request) (any, error) {
	q := r.URL.Query()
	mine := false
	switch v := q.Get("approver"); v {
	case "":
	case "me":
		mine = true
	default:
		return nil, invalidAt("query.approver", "%q; want me, or nothing", clip(v))
	}
	token := q.Get("pageToken")
	if len(token) > maxTokenSize {
		return nil, invalidAt("query.pageToken", "it is no token of this server")
	}
	p := principal(r.Context())
	f := control.GateFilter{State: run.GateOpen, Tenants: p.Tenants}
	if mine {
		person := p.person()
		f.Decides = &person
	}
	gates, next, err := s.plane.Gates(r.Context(), f, pageGates, token)
	if err != nil {
		return nil, err
	}
	out := dashboard.Gates{Now: time.Now(), Version: s.version(), Mine: mine, Next: url.QueryEscape(next)}
	for _, g := range gates {
		out.Gates = append(out.Gates, gateOf(r.Context(), g))
	}
	return out, nil
}

func (s *Server) gatePage(r *http.Request) (any, error) {
	g, err := s.gateFor(r.Context(), pathValue(r, "id"))
	if err != nil {
		return nil, err
	}
	whole, err := s.wholeGate(r.Context(), g)
	if err != nil {
		return nil, err
	}
	p := principal(r.Context())
	return dashboard.Gate{
		Now: time.Now(), Version: s.version(), Gate: whole,
		Action: forPeople(whole.Action, 0), Context: forPeople(whole.Context, pageText), Input: forPeople(whole.Input, pageText),
		// Without a login it may be decided as somebody else than the one who looks at it.
		MayDecide: whole.MayDecide || s.opts.Loopback, NoLogin: s.opts.Loopback, Me: p.Name,
	}, nil
}

// forPeople is a value indented, and cut after so many bytes; 0 shows all of it, for nobody approves what was cut.
func forPeople(v json.RawMessage, most int) string {
	if len(v) == 0 {
		return ""
	}
	var b bytes.Buffer
	if len(v) > 4*pageText || json.Indent(&b, v, "", "  ") != nil {
		b.Reset()
		b.Write(v)
	}
	if most > 0 && b.Len() > most {
		return strings.ToValidUTF8(string(b.Bytes()[:most]), "") + fmt.Sprintf("\n… %d bytes in all", len(v))
	}
	return b.String()
}

// decideByForm takes the form of a gate's page. Browsers send credentials by themselves, and reach a server without a
// login from anywhere: a form of a page that is not this server's own is refused.
func (s *Server) decideByForm(w http.ResponseWriter, r *http.Request) {
	id := pathValue(r, "id")
	err := s.takeForm(w, r, id)
	if err == nil {
		http.Redirect(w, r, "/gates/"+url.PathEscape(id), http.StatusSeeOther)
		return
	}
	p := problemOf(r.Context(), s.log, err)
	if !accepts(r, "text/html") {
		writeProblem(w, p)
		return
	}
	body, err := dashboard.Render(dashboard.Failure{Version: s.version(), Problem: p})
	if err != nil {
		writeProblem(w, problemOf(r.Context(), s.log, err))
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", dashboard.Policy)
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="errand: any name, and an API token as password", charset="UTF-8"`)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}

var ownPages = http.NewCrossOriginProtection()

func (s *Server) takeForm(w http.ResponseWriter, r *http.Request, id string) error {
	// 1. Who, and from where.
	if err := ownPages.Check(r); err != nil {
		return problem(http.StatusForbidden, api.CodeForbidden, "the form is of a page of another origin, and only this server's own pages decide")
	}
	r, err := s.admit(approve, r)
	if err != nil {
		return err
	}
	// 2. What.
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/x-www-form-urlencoded" {
		return problem(http.StatusUnsupportedMediaType, api.CodeUnsupported, "want the form of the gate's page; programs decide by POST /v1/gates/{id}:decide")
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return problem(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "the form has more than %d bytes", maxForm)
		}
		return invalid("the form cannot be read")
	}
	q := api.GateDecide{Decision: r.PostForm.Get("decision"), Comment: r.PostForm.Get("comment"), ActionHash: r.PostForm.Get("actionHash")}
	if q.ActionHash == "" {
		return invalidAt("form.actionHash", "missing: a form decides about the action that it shows")
	}
	ctx := r.Context()
	if as := strings.TrimSpace(r.PostForm.Get("as")); as != "" {
		if !s.opts.Loopback {
			return invalidAt("form.as", "who decides is told by the login here")
		}
		if len(as) > run.MaxName || strings.ContainsFunc(as, func(c rune) bool { return !unicode.IsPrint(c) }) {
			return invalidAt("form.as", "want a name of up to %d printable characters", run.MaxName)
		}
		p := principal(ctx)
		p.Name = as
		ctx = context.WithValue(ctx, principalKey, p)
	}
	// 3. It is recorded when this returns, also if the browser has left.
	ctx, cancel := detached(ctx)
	defer cancel()
	_, err = s.decide(ctx, id, &q)
	return err
}
