package server

import (
	"net/http"
	"net/url"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/server/dashboard"
)

const pageReceipts = 100

func (s *Server) receiptPages() {
	s.page(door{
		path: "/receipts", id: "pageReceipts", need: view, summary: "Effects of which nobody knows whether they happened, as a page.",
	}, s.receiptsPage, "pageToken")
	d := door{
		method: "POST", path: "/receipts/{id}", id: "pageResolve", tag: "operations", need: approve, gives: []string{"text/html"}, status: http.StatusSeeOther,
		takes: "application/x-www-form-urlencoded", summary: "The form of that page: happened, yes or no; only from a page of this server.",
	}
	s.describe(d)
	s.router.Post(d.path, s.resolveByForm)
}

func (s *Server) receiptsPage(r *http.Request) (any, error) {
	token := r.URL.Query().Get("pageToken")
	if len(token) > maxTokenSize {
		return nil, invalidAt("query.pageToken", "it is no token of this server")
	}
	rs, next, err := s.plane.UnknownReceipts(r.Context(), pageReceipts, token)
	if err != nil {
		return nil, err
	}
	p := principal(r.Context())
	out := dashboard.Receipts{Now: time.Now(), Version: s.version(), Next: url.QueryEscape(next), MayResolve: p.may(approve) == nil}
	out.Receipts, err = s.receipts(r.Context(), rs)
	return out, err
}

// resolveByForm takes the form of the page. What it leads to is the run, which shows the effect as it is then; where
// the answer does not count, the page says why.
func (s *Server) resolveByForm(w http.ResponseWriter, r *http.Request) {
	in, err := s.takeForm(w, r)
	if err == nil {
		var done api.Receipt
		if done, err = s.resolveAsSaid(in, pathValue(r, "id")); err == nil {
			http.Redirect(w, r, "/runs/"+url.PathEscape(done.Run)+"#effects", http.StatusSeeOther)
			return
		}
	}
	p := problemOf(r.Context(), s.log, err)
	if in != nil {
		if data, err := s.receiptsPage(in); err == nil {
			page := data.(dashboard.Receipts)
			page.Problem = p
			s.answerForm(w, r, p, page)
			return
		}
	}
	s.answerForm(w, r, p, dashboard.Failure{Version: s.version(), Problem: p})
}

func (s *Server) resolveAsSaid(r *http.Request, id string) (api.Receipt, error) {
	happened := r.PostForm.Get("happened")
	if happened != "yes" && happened != "no" {
		return api.Receipt{}, invalidAt("form.happened", "%q; want yes or no", clip(happened))
	}
	ctx, cancel := detached(r.Context())
	defer cancel()
	if _, err := s.receiptFor(ctx, id); err != nil {
		return api.Receipt{}, err
	}
	done, err := s.plane.Resolve(ctx, id, happened == "yes", nil, principal(ctx).Name)
	if err != nil {
		return api.Receipt{}, err
	}
	return s.receipt(ctx, done)
}
