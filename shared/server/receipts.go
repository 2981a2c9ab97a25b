package server

import (
	"context"
	"net/http"
	"slices"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/run"
)

func (s *Server) receiptDoors() {
	ordinary(s, door{
		method: "GET", path: "/v1/runs/{id}/receipts", id: "listRunReceipts", tag: "effects", need: view,
		summary: "The receipts of a run's external effects.", errors: []int{404},
	}, func(ctx context.Context, in *runInput) (*answer[api.List[api.Receipt]], error) {
		if _, err := s.runOf(ctx, in.ID); err != nil {
			return nil, err
		}
		rs, err := s.plane.Receipts(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		items, err := s.receipts(ctx, rs)
		if err != nil {
			return nil, err
		}
		return &answer[api.List[api.Receipt]]{Body: api.List[api.Receipt]{Items: items}}, nil
	})
	ordinary(s, door{
		method: "GET", path: "/v1/receipts", id: "listReceipts", tag: "effects", need: view,
		summary: "Effects of all runs that people must look at: of which nobody knows whether they happened (state=unknown), or which could not be undone (state=undoFailed). A page may be short.", errors: []int{400},
	}, s.listReceipts)
	ordinary(s, door{
		method: "GET", path: "/v1/receipts/{id}", id: "getReceipt", tag: "effects", need: view,
		summary: "Read a receipt.", errors: []int{404},
	}, func(ctx context.Context, in *receiptInput) (*answer[api.Receipt], error) {
		r, err := s.receiptFor(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return &answer[api.Receipt]{Body: r}, nil
	})
	s.plain(door{
		method: "POST", path: "/v1/receipts/{id}:resolve", id: "resolveReceipt", tag: "effects", need: approve,
		summary: "Say whether an effect of unknown outcome happened.",
		body:    api.Resolve{}, answer: api.Receipt{}, errors: []int{400, 404, 409, 413, 415},
	}, s.resolve)
}

type receiptInput struct {
	ID string `path:"id" doc:"id of the receipt"`
}

type receiptsInput struct {
	Page
	State  string `query:"state" doc:"unknown: nobody knows whether the effect happened. undoFailed: it happened, was to be undone, and could not be"`
	Tenant string `query:"tenant"`
}

func (s *Server) listReceipts(ctx context.Context, in *receiptsInput) (*answer[api.List[api.Receipt]], error) {
	var list func(ctx context.Context, limit int, pageToken string) ([]run.Receipt, string, error)
	switch in.State {
	case api.ReceiptsUnknown:
		list = s.plane.UnknownReceipts
	case api.ReceiptsUndoFailed:
		list = s.plane.UndoFailedReceipts
	default:
		return nil, invalidAt("query.state", "%q; over all runs receipts are listed by %s or %s; those of one run, in any state, by GET /v1/runs/{id}/receipts",
			clip(in.State), api.ReceiptsUnknown, api.ReceiptsUndoFailed)
	}
	rs, next, err := list(ctx, in.limit(), in.PageToken)
	if err != nil {
		return nil, err
	}
	if in.Tenant != "" {
		rs = slices.DeleteFunc(rs, func(r run.Receipt) bool { return r.Tenant != in.Tenant })
	}
	items, err := s.receipts(ctx, rs)
	if err != nil {
		return nil, err
	}
	return &answer[api.List[api.Receipt]]{Body: api.List[api.Receipt]{Items: items, NextPageToken: next}}, nil
}

// receiptFor reads a receipt that the principal sees.
func (s *Server) receiptFor(ctx context.Context, id string) (api.Receipt, error) {
	if err := receiptID(id); err != nil {
		return api.Receipt{}, err
	}
	r, err := s.plane.Receipt(ctx, id)
	if err != nil {
		return api.Receipt{}, err
	}
	p := principal(ctx)
	if !p.sees(r.Tenant) {
		return api.Receipt{}, notFound("there is no receipt %q", id)
	}
	return s.receipt(ctx, r)
}

func (s *Server) resolve(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.Resolve](w, r, api.MaxBody, false)
	switch {
	case err != nil:
		return err
	case q.Happened == nil:
		return invalidAt("body.happened", "missing; want true or false")
	case !*q.Happened && len(q.Result) > 0:
		return invalidAt("body.result", "given for an effect that did not happen")
	}
	ctx := r.Context()
	id := pathValue(r, "id")
	if _, err := s.receiptFor(ctx, id); err != nil {
		return err
	}
	p := principal(ctx)
	done, err := s.plane.Resolve(ctx, id, *q.Happened, q.Result, p.Name)
	if err != nil {
		return err
	}
	out, err := s.receipt(ctx, done)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}
