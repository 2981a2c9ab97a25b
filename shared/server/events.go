package server

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/run"
)

func (s *Server) streamDoors() {
	page := []*huma.Param{queryParam("limit", "Items on a page, 1 to 1000; 100 unless given."), queryParam("pageToken", "nextPageToken of the page before.")}
	s.plain(door{
		method: "GET", path: "/v1/runs/{id}/events", id: "listEvents", tag: "runs", need: view,
		summary: "The history of a run, oldest first. With Accept: text/event-stream it goes on live until the run is over: " +
			"each message is an event with its number as id, to resume after; \"end\" is the last.",
		answer: api.List[api.Event]{}, gives: []string{"text/event-stream"}, also: []int{204},
		params: append(page, headerParam("Last-Event-ID", "Number of the last event seen.")), errors: []int{400, 404, 503},
	}, s.getEvents)
	s.plain(door{
		method: "GET", path: "/v1/events", id: "followRuns", tag: "runs", need: view,
		summary: "Every run that changes from now on, as in lists, each as it is by then. \"lost\" tells that changes were missed.",
		gives:   []string{"text/event-stream"}, params: []*huma.Param{queryParam("tenant", ""), queryParam("agent", "")}, errors: []int{400, 404, 503},
	}, s.followRuns)
	s.plain(door{
		method: "GET", path: "/v1/runs/{id}/logs", id: "getLogs", tag: "runs", need: view,
		summary: "The log of a run, oldest first. With Accept: text/event-stream, or follow=true for a line of JSON each, it goes on until the run is over.",
		answer:  api.List[api.LogLine]{}, gives: []string{"text/event-stream", "application/x-ndjson"},
		params: append(page, queryParam("follow", "true: go on as lines come."), headerParam("Last-Event-ID", "Id of the last message seen.")),
		errors: []int{400, 404, 503},
	}, s.getLogs)
}

// page reads limit and pageToken of a plain door.
func page(r *http.Request) (limit int, token string, err error) {
	q := r.URL.Query()
	limit, token = pageSize, q.Get("pageToken")
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > api.MaxPage {
			return 0, "", invalidAt("query.limit", "%q; want 1 to %d", clip(text), api.MaxPage)
		}
	}
	if len(token) > maxTokenSize {
		return 0, "", invalidAt("query.pageToken", "%d bytes; it is no token of this server", len(token))
	}
	return limit, token, nil
}

// seqOf reads the number of an event that was seen already.
func seqOf(at, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 0 {
		return 0, invalidAt(at, "%q is no number of an event", clip(text))
	}
	return seq, nil
}

func (s *Server) getEvents(w http.ResponseWriter, r *http.Request) error {
	rec, err := s.runOf(r.Context(), pathValue(r, "id"))
	if err != nil {
		return err
	}
	// 1. Live.
	if wantsStream(r) {
		after, err := seqOf("header.Last-Event-ID", r.Header.Get("Last-Event-ID"))
		if err != nil {
			return err
		}
		if err := s.streams.enter(); err != nil {
			return err
		}
		defer s.streams.leave()
		return s.streamEvents(w, r, rec, after, false)
	}
	// 2. Or a page.
	limit, token, err := page(r)
	if err != nil {
		return err
	}
	after, err := seqOf("query.pageToken", token)
	if err != nil {
		return err
	}
	events, more, err := s.history(r.Context(), rec.ID, after, limit)
	if err != nil {
		return err
	}
	out := api.List[api.Event]{Items: events}
	if last := len(events) - 1; more && events[last].Seq < rec.Seq {
		out.NextPageToken = strconv.FormatInt(events[last].Seq, 10)
	}
	return writeJSON(w, http.StatusOK, out)
}

// streamEvents sends the events of a run after a number, until the run is over. With result, the run itself follows as
// the event "run".
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request, rec *run.Record, after int64, result bool) error {
	// 1. A stream that was read to its end must not be reopened for ever: 204 tells browsers so.
	if rec.State.Terminal() && after >= rec.Seq && !result {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	// 2. Follow before reading, so that nothing falls between.
	changed, leave := s.plane.Follow(rec.ID)
	defer leave()
	out, err := openStream(w, "text/event-stream")
	if err != nil {
		return nil
	}
	quiet := time.NewTicker(s.opts.Keepalive)
	defer quiet.Stop()
	ctx := r.Context()
	for {
		// 3. What is new in the history.
		events, more, err := s.history(ctx, rec.ID, after, api.MaxPage)
		if err != nil {
			s.cutOff(ctx, rec.ID, err)
			return nil
		}
		over := false
		for _, e := range events {
			if out.message(strconv.FormatInt(e.Seq, 10), "", e) != nil {
				return nil
			}
			after, over = e.Seq, run.State(e.State).Terminal()
		}
		if more {
			continue
		}
		if len(events) == 0 { // resumed after its last event, or an event of a finished run is still to come
			latest, err := s.plane.Get(ctx, rec.ID)
			over = err != nil || (latest.State.Terminal() && after >= latest.Seq)
		}
		// 4. The end, or a pause until something happens. A change in another process is found by the next comment.
		if over {
			s.finish(ctx, out, rec.ID, result)
			return nil
		}
		select {
		case <-changed:
		case <-quiet.C:
			if out.comment() != nil {
				return nil
			}
		case <-ctx.Done():
			return nil
		case <-s.alive.Done():
			return nil
		}
	}
}

func (s *Server) finish(ctx context.Context, out *stream, id string, result bool) {
	if result {
		rec, err := s.plane.Get(ctx, id)
		if err == nil {
			var body api.Run
			if body, err = s.whole(ctx, rec); err == nil {
				err = out.message("", "run", body)
			}
		}
		if err != nil {
			s.cutOff(ctx, id, err)
			return
		}
	}
	_ = out.end()
}

// cutOff is how a stream ends that can not go on: without an end, so that the client resumes.
func (s *Server) cutOff(ctx context.Context, id string, err error) {
	if ctx.Err() == nil {
		s.log.WarnContext(ctx, "stream cut off", "request", requestID(ctx), "run", id, "error", err)
	}
}

func (s *Server) followRuns(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	f, err := filterOf(r.Context(), &api.RunFilter{Agent: q.Get("agent"), Tenant: q.Get("tenant")}, "query")
	if err != nil {
		return err
	}
	if err := s.streams.enter(); err != nil {
		return err
	}
	defer s.streams.leave()
	p := principal(r.Context())
	changes, leave := s.hub.everything()
	defer leave()
	out, err := openStream(w, "text/event-stream")
	if err != nil {
		return nil
	}
	quiet := time.NewTicker(s.opts.Keepalive)
	defer quiet.Stop()
	for {
		select {
		case <-changes.wake:
			changed, lost := changes.take()
			if lost && out.message("", "lost", struct{}{}) != nil {
				return nil
			}
			slices.SortFunc(changed, func(a, b *run.Record) int {
				return cmp.Or(cmp.Compare(a.UpdatedAt, b.UpdatedAt), cmp.Compare(a.ID, b.ID))
			})
			for _, rec := range changed {
				if !p.sees(rec.Tenant) || (f.Agent != "" && rec.Agent != f.Agent) || (f.Tenant != "" && rec.Tenant != f.Tenant) {
					continue
				}
				if out.message("", "run", brief(rec)) != nil {
					return nil
				}
			}
		case <-quiet.C:
			if out.comment() != nil {
				return nil
			}
		case <-r.Context().Done():
			return nil
		case <-s.alive.Done():
			return nil
		}
	}
}
