package server

import (
	"cmp"
	"context"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"slices"
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
	maxForm   = 32 << 10 // bytes of a form
	maxTicked = 1 << 10  // bytes of an action that is decided in the list: it is shown there
)

func (s *Server) gatePages() {
	s.page(door{
		path: "/gates", id: "pageGates", need: view, summary: "What waits for people, as a page.",
	}, s.gatesPage, "approver", "state", "pageToken")
	s.page(door{
		path: "/gates/{id}", id: "pageGate", need: view, summary: "A gate with all that helps to decide it, as a page. Looking at it decides nothing.",
	}, s.gatePage)
	one := door{
		method: "POST", path: "/gates/{id}", id: "pageDecide", tag: "operations", need: approve, gives: []string{"text/html"}, status: http.StatusSeeOther,
		takes: "application/x-www-form-urlencoded", summary: "The form of a gate's page: decision, comment and actionHash; only from a page of this server.",
	}
	many := door{
		method: "POST", path: "/gates", id: "pageDecideMany", tag: "operations", need: approve, gives: []string{"text/html"},
		takes: "application/x-www-form-urlencoded", summary: "The form of the page of gates: decision, comment, and a gate as ID HASH for each that is decided; only from a page of this server.",
	}
	s.describe(one)
	s.describe(many)
	s.router.Post(one.path, s.decideByForm)
	s.router.Post(many.path, s.decideManyByForm)
}

// gatesShown are the states that the page lists, the first unless told otherwise.
var gatesShown = []string{string(run.GateOpen), string(run.GateApproved), string(run.GateRejected), string(run.GateLapsed), "all"}

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
	state := cmp.Or(q.Get("state"), gatesShown[0])
	if !slices.Contains(gatesShown, state) || mine && state != gatesShown[0] {
		return nil, invalidAt("query.state", "%q; want one of %s, or none with approver=me", clip(state), strings.Join(gatesShown, ", "))
	}
	p := principal(r.Context())
	f := control.GateFilter{State: run.GateState(state), Tenants: p.Tenants}
	if state == "all" {
		f.State = ""
	}
	if mine {
		person := p.person()
		f.Decides = &person
	}
	gates, next, err := s.plane.Gates(r.Context(), f, pageGates, token)
	if err != nil {
		return nil, err
	}
	// Of those on a page the ones whose time is over first come first.
	slices.SortStableFunc(gates, func(a, b *run.Gate) int { return cmp.Compare(a.Expires, b.Expires) })
	out := dashboard.Gates{
		Now: time.Now(), Version: s.version(), State: state, States: gatesShown, Mine: mine, Next: url.QueryEscape(next), Answer: s.answerOf(p),
	}
	for _, g := range gates {
		row := dashboard.GateRow{Gate: gateOf(r.Context(), g)}
		if row.Open() && s.mayDecide(row.Gate) && len(row.Action) <= maxTicked && row.Diff == "" {
			row.Tick, row.Shown = true, dashboard.ValueOf(row.Action, 0)
		}
		out.Gates = append(out.Gates, row)
	}
	return out, nil
}

func (s *Server) answerOf(p Principal) dashboard.Answer {
	return dashboard.Answer{NoLogin: s.opts.Loopback, Me: p.Name}
}

// mayDecide reports whether whoever looks is offered to decide. Without a login it may be done as somebody else.
func (s *Server) mayDecide(g api.Gate) bool { return g.MayDecide || s.opts.Loopback }

func (s *Server) gatePage(r *http.Request) (any, error) {
	g, err := s.gateFor(r.Context(), pathValue(r, "id"))
	if err != nil {
		return nil, err
	}
	whole, err := s.wholeGate(r.Context(), g)
	if err != nil {
		return nil, err
	}
	return dashboard.Gate{
		Now: time.Now(), Version: s.version(), Gate: whole, MayDecide: s.mayDecide(whole), Answer: s.answerOf(principal(r.Context())),
		Action: dashboard.ValueOf(whole.Action, 0), Context: dashboard.ValueOf(whole.Context, pageText), Input: dashboard.ValueOf(whole.Input, pageText),
	}, nil
}

// decideByForm takes the form of a gate's page. Where the answer does not count, the page says why, and shows the gate
// as it is now.
func (s *Server) decideByForm(w http.ResponseWriter, r *http.Request) {
	id := pathValue(r, "id")
	in, err := s.takeForm(w, r)
	if err == nil {
		if err = s.decideAsSaid(in, id); err == nil {
			http.Redirect(w, r, "/gates/"+url.PathEscape(id), http.StatusSeeOther)
			return
		}
	}
	p := problemOf(r.Context(), s.log, err)
	if in != nil {
		if data, err := s.gatePage(in); err == nil {
			page := data.(dashboard.Gate)
			page.Problem, page.Comment = p, in.PostForm.Get("comment")
			s.answerForm(w, r, p, page)
			return
		}
	}
	s.answerForm(w, r, p, dashboard.Failure{Version: s.version(), Problem: p})
}

func (s *Server) decideAsSaid(r *http.Request, id string) error {
	q := api.GateDecide{Decision: r.PostForm.Get("decision"), Comment: r.PostForm.Get("comment"), ActionHash: r.PostForm.Get("actionHash")}
	if q.ActionHash == "" {
		return invalidAt("form.actionHash", "missing: a form decides about the action that it shows")
	}
	// It is recorded when this returns, also if the browser has left.
	ctx, cancel := detached(r.Context())
	defer cancel()
	_, err := s.decide(ctx, id, &q)
	return err
}

// decideManyByForm takes the form of the page of gates. Each decision is for itself, and so is what the page says of it.
func (s *Server) decideManyByForm(w http.ResponseWriter, r *http.Request) {
	in, err := s.takeForm(w, r)
	if err == nil && (len(in.PostForm["gate"]) == 0 || len(in.PostForm["gate"]) > pageGates) {
		err = invalidAt("form.gate", "%d gates are picked; pick 1 to %d", len(in.PostForm["gate"]), pageGates)
	}
	if err != nil {
		p := problemOf(r.Context(), s.log, err)
		s.answerForm(w, r, p, dashboard.Failure{Version: s.version(), Problem: p})
		return
	}
	ctx, cancel := detached(in.Context())
	defer cancel()
	var asked []api.GateDecideItem
	for _, picked := range in.PostForm["gate"] {
		id, hash, _ := strings.Cut(picked, " ")
		asked = append(asked, api.GateDecideItem{ID: id, GateDecide: api.GateDecide{
			Decision: in.PostForm.Get("decision"), Comment: in.PostForm.Get("comment"), ActionHash: cmp.Or(hash, "none"), // about the action that was shown
		}})
	}
	out := dashboard.Decided{Version: s.version()}
	for i, d := range s.decideMany(ctx, asked) {
		item := dashboard.DecidedItem{ID: clip(asked[i].ID), Title: clip(asked[i].ID), Gate: d.Gate, Problem: d.Error}
		if g, err := s.gateFor(ctx, asked[i].ID); d.Gate == nil && err == nil {
			now := gateOf(ctx, g)
			item.Gate = &now
		}
		if item.Gate != nil {
			item.Title = item.Gate.Title
		}
		out.Items = append(out.Items, item)
	}
	s.answerForm(w, r, nil, out)
}

// answerForm answers a form with a page; with a problem also for those who want no page.
func (s *Server) answerForm(w http.ResponseWriter, r *http.Request, p *api.Problem, data any) {
	status := http.StatusOK
	if p != nil {
		if !accepts(r, "text/html") {
			writeProblem(w, p)
			return
		}
		if status = p.Status; status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", challenge)
		}
	}
	s.writePage(w, r, status, data)
}

var ownPages = http.NewCrossOriginProtection()

// takeForm reads a form, and returns its request as whoever sent it: in.PostForm is what it says. Browsers send
// credentials by themselves, and reach a server without a login from anywhere: a form of a page that is not this
// server's own is refused.
func (s *Server) takeForm(w http.ResponseWriter, r *http.Request) (in *http.Request, err error) {
	// 1. Who, and from where.
	if err := ownPages.Check(r); err != nil {
		return nil, problem(http.StatusForbidden, api.CodeForbidden, "the form is of a page of another origin, and only this server's own pages decide")
	}
	if r, err = s.admit(approve, r); err != nil {
		return nil, err
	}
	// 2. What.
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/x-www-form-urlencoded" {
		return nil, problem(http.StatusUnsupportedMediaType, api.CodeUnsupported, "want a form of this server's pages; programs decide by POST /v1/gates/{id}:decide and /v1/receipts/{id}:resolve")
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, problem(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "the form has more than %d bytes", maxForm)
		}
		return nil, invalid("the form cannot be read")
	}
	// One that says two things has said nothing; only gates are picked many at a time.
	for field, said := range r.PostForm {
		if len(said) > 1 && field != "gate" {
			return nil, invalidAt("form."+clip(field), "given %d times; want it once", len(said))
		}
	}
	// 3. As whom.
	as := strings.TrimSpace(r.PostForm.Get("as"))
	switch {
	case as == "":
		return r, nil
	case !s.opts.Loopback:
		return nil, invalidAt("form.as", "who decides is told by the login here")
	case len(as) > run.MaxName || strings.ContainsFunc(as, func(c rune) bool { return !unicode.IsPrint(c) }):
		return nil, invalidAt("form.as", "want a name of up to %d printable characters", run.MaxName)
	}
	p := principal(r.Context())
	p.Name = as
	return r.WithContext(context.WithValue(r.Context(), principalKey, p)), nil
}
