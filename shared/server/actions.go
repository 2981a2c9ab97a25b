package server

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

const (
	maxReason = 1 << 10 // bytes of a reason or comment
	maxGrace  = time.Hour
	maxBulk   = 10_000 // runs that one bulk operation touches
	maxErrors = 100    // told of a bulk operation
)

var actionErrors = []int{400, 404, 409, 413, 415, 503}

func (s *Server) runActionDoors() {
	s.plain(door{
		method: "POST", path: "/v1/runs/{id}:cancel", id: "cancelRun", tag: "runs", need: submit,
		summary: "End a run; with dryRun a preview (CancelPreview) of what that would meet.",
		body:    api.Cancel{}, optional: true, answer: api.Run{}, errors: actionErrors,
		params: []*huma.Param{queryParam("dryRun", "true: as in the body.")},
	}, s.cancelRun)
	s.plain(door{
		method: "POST", path: "/v1/runs/{id}:retry", id: "retryRun", tag: "runs", need: submit,
		summary: "Run what is over once more, as a new run (retryOf) that meets the old one's receipts; a workflow from where it failed, or from a stage. The same key and body give the same new run, with 200 instead of 201.",
		body:    api.Retry{}, optional: true, answer: api.Run{}, status: 201, also: []int{200}, params: []*huma.Param{idempotencyKey}, errors: append(actionErrors, 429, 501),
	}, s.retryRun)
	s.plain(door{
		method: "POST", path: "/v1/runs/{id}:signal", id: "signalRun", tag: "runs", need: submit,
		summary: "Give a run the input that it waits for, or will wait for; once per key.",
		body:    api.SignalBody{}, answer: api.Run{}, errors: actionErrors,
	}, s.signalRun)
	s.plain(door{
		method: "POST", path: "/v1/runs/{id}:score", id: "scoreRun", tag: "runs", need: submit,
		summary: "Record how good a run was, from 0 to 1.",
		body:    api.Score{}, answer: api.Run{}, errors: actionErrors,
	}, s.scoreRun)
	ordinary(s, door{
		method: "POST", path: "/v1/runs/{id}:suspend", id: "suspendRun", tag: "runs", need: operate,
		summary: "Stop a run until it is resumed; a live attempt is told to end and is given back.", errors: []int{404, 409},
	}, func(ctx context.Context, in *runInput) (*tagged[api.Run], error) {
		return s.changed(ctx, in.ID, s.plane.Suspend)
	})
	ordinary(s, door{
		method: "POST", path: "/v1/runs/{id}:resume", id: "resumeRun", tag: "runs", need: operate,
		summary: "Let a suspended run go on.", errors: []int{404, 409},
	}, func(ctx context.Context, in *runInput) (*tagged[api.Run], error) {
		return s.changed(ctx, in.ID, s.plane.Resume)
	})
	s.plain(door{
		method: "POST", path: "/v1/runs:cancel", id: "cancelRuns", tag: "runs", need: operate,
		summary: "Cancel the runs that a filter selects and that are not over, up to 10,000.",
		body:    api.Bulk{}, answer: api.BulkResult{}, errors: actionErrors,
	}, s.bulk(func(r *run.Record) bool { return !r.State.Terminal() }, func(ctx context.Context, r *run.Record, q *api.Bulk, actor string) error {
		_, err := s.plane.Cancel(ctx, r.ID, control.CancelRequest{Reason: q.Reason, Actor: actor})
		return err
	}))
	s.plain(door{
		method: "POST", path: "/v1/runs:retry", id: "retryRuns", tag: "runs", need: operate,
		summary: "Retry the runs that a filter selects and that failed or were canceled, up to 10,000.",
		body:    api.Bulk{}, answer: api.BulkResult{}, errors: actionErrors,
	}, s.bulk(func(r *run.Record) bool { return r.State == run.Failed || r.State == run.Canceled }, func(ctx context.Context, r *run.Record, _ *api.Bulk, actor string) error {
		_, err := s.plane.Retry(ctx, r.ID, nil, actor)
		return err
	}))
}

// changed makes one change of a run and shows the run after it.
func (s *Server) changed(ctx context.Context, id string, change func(ctx context.Context, id, actor string) (*run.Record, error)) (*tagged[api.Run], error) {
	if _, err := s.runOf(ctx, id); err != nil {
		return nil, err
	}
	p := principal(ctx)
	rec, err := change(ctx, id, p.Name)
	if err != nil {
		return nil, err
	}
	out, err := s.whole(ctx, rec)
	if err != nil {
		return nil, err
	}
	return &tagged[api.Run]{ETag: quoted(out.Etag), Body: out}, nil
}

// writeChanged is changed for plain doors.
func (s *Server) writeChanged(w http.ResponseWriter, r *http.Request, status int, change func(ctx context.Context, id, actor string) (*run.Record, error)) error {
	out, err := s.changed(r.Context(), pathValue(r, "id"), change)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", out.ETag)
	return writeJSON(w, status, out.Body)
}

func comment(at, s string) error {
	if len(s) > maxReason {
		return invalidAt(at, "%d bytes; the limit is %d", len(s), maxReason)
	}
	return nil
}

func (s *Server) cancelRun(w http.ResponseWriter, r *http.Request) error {
	// 1. What is asked.
	q, err := decode[api.Cancel](w, r, maxSmall, true)
	if err != nil {
		return err
	}
	if err := comment("body.reason", q.Reason); err != nil {
		return err
	}
	var grace time.Duration
	if q.Grace != nil {
		if grace = q.Grace.Std(); grace < 0 || grace > maxGrace {
			return invalidAt("body.grace", "%s; want 0s to %s", grace, maxGrace)
		}
	}
	dry, err := flag(r, "dryRun")
	if err != nil {
		return err
	}
	// 2. Only show, or do it.
	if !q.DryRun && !dry {
		return s.writeChanged(w, r, http.StatusOK, func(ctx context.Context, id, actor string) (*run.Record, error) {
			return s.plane.Cancel(ctx, id, control.CancelRequest{Reason: q.Reason, Grace: grace, Actor: actor})
		})
	}
	rec, err := s.runOf(r.Context(), pathValue(r, "id"))
	if err != nil {
		return err
	}
	p, err := s.plane.PreviewCancel(r.Context(), rec.ID)
	if err != nil {
		return err
	}
	out := api.CancelPreview{Run: brief(p.Run), Children: briefs(p.Children)}
	if out.Committed, err = s.receipts(r.Context(), p.Committed); err != nil {
		return err
	}
	if out.Unknown, err = s.receipts(r.Context(), p.Unknown); err != nil {
		return err
	}
	out.Spend, out.Truncated, out.Compensations = costOf(p.Spend), p.More, compensations(p.Compensations)
	return writeJSON(w, http.StatusOK, out)
}

// flag reads a query parameter that is true or false.
func flag(r *http.Request, name string) (bool, error) {
	switch v := r.URL.Query().Get(name); v {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, invalidAt("query."+name, "%q; want true or false", clip(v))
	}
}

func (s *Server) retryRun(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.Retry](w, r, api.MaxBody, true)
	if err != nil {
		return err
	}
	if len(q.From) > run.MaxName {
		return invalidAt("body.from", "%d bytes; want a stage's name", len(q.From))
	}
	if q.Key, err = key(r, q.Key); err != nil {
		return err
	}
	if len(q.Key) > maxKey {
		return invalidAt("body.key", "%d bytes; the limit is %d", len(q.Key), maxKey)
	}
	// The run exists or it does not, although the client may leave.
	ctx, cancel := detached(r.Context())
	defer cancel()
	status := http.StatusCreated
	out, err := s.changed(ctx, pathValue(r, "id"), func(ctx context.Context, id, actor string) (*run.Record, error) {
		done := s.plane.RetryFrom(ctx, id, control.RetryRequest{Input: q.Input, From: q.From, Key: q.Key, Actor: actor})
		if done.Existed {
			status = http.StatusOK
		}
		return done.Run, done.Err
	})
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/runs/"+out.Body.ID)
	w.Header().Set("ETag", out.ETag)
	return writeJSON(w, status, out.Body)
}

func (s *Server) signalRun(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.SignalBody](w, r, api.MaxBody, false)
	if err != nil {
		return err
	}
	if err := unitName("body.name", q.Name, runtime.MaxName); err != nil {
		return err
	}
	if len(q.Key) > maxKey {
		return invalidAt("body.key", "%d bytes; the limit is %d", len(q.Key), maxKey)
	}
	return s.writeChanged(w, r, http.StatusOK, func(ctx context.Context, id, actor string) (*run.Record, error) {
		return s.plane.Signal(ctx, id, q.Name, q.Key, q.Payload, actor)
	})
}

func (s *Server) scoreRun(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.Score](w, r, maxSmall, false)
	if err != nil {
		return err
	}
	if q.Score < 0 || q.Score > 1 {
		return invalidAt("body.score", "%v; want 0 to 1", q.Score)
	}
	if err := comment("body.comment", q.Comment); err != nil {
		return err
	}
	if err := comment("body.by", q.By); err != nil {
		return err
	}
	return s.writeChanged(w, r, http.StatusOK, func(ctx context.Context, id, actor string) (*run.Record, error) {
		if q.By == "" {
			q.By = actor
		}
		return s.plane.Score(ctx, id, q.Score, q.By, q.Comment)
	})
}

// bulk applies an action to the runs that a filter selects. It goes on after an error and tells the first of them.
func (s *Server) bulk(applies func(*run.Record) bool, act func(ctx context.Context, r *run.Record, q *api.Bulk, actor string) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		// 1. What is asked.
		q, err := decode[api.Bulk](w, r, maxSmall, false)
		if err != nil {
			return err
		}
		if err := comment("body.reason", q.Reason); err != nil {
			return err
		}
		ctx := r.Context()
		f, err := filterOf(ctx, &q.Filter, "body.filter")
		if err != nil {
			return err
		}
		// 2. Everything is selected before anything is changed: a change moves runs between pages.
		patience(w, departure)
		var selected []*run.Record
		for token, more := "", true; more && len(selected) < maxBulk; more = token != "" {
			page, err := s.plane.List(ctx, f, api.MaxPage, token)
			if err != nil {
				return err
			}
			for _, rec := range page.Runs {
				if applies(rec) && len(selected) < maxBulk {
					selected = append(selected, rec)
				}
			}
			token = page.Next
		}
		// 3. One by one.
		out := api.BulkResult{Matched: len(selected), IDs: []string{}}
		p := principal(ctx)
		for _, rec := range selected {
			if !q.DryRun {
				if err := act(ctx, rec, &q, p.Name); err != nil {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					if len(out.Errors) < maxErrors {
						out.Errors = append(out.Errors, located(problemOf(ctx, s.log, err), "run "+rec.ID, "not done"))
					}
					continue
				}
				out.Done++
			}
			if len(out.IDs) < api.MaxPage {
				out.IDs = append(out.IDs, rec.ID)
			}
		}
		return writeJSON(w, http.StatusOK, out)
	}
}
