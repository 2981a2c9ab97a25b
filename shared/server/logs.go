package server

import (
	"context"
	"net/http"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// logChunk is how many lines a follower reads at a time.
const logChunk = 200

func (s *Server) getLogs(w http.ResponseWriter, r *http.Request) error {
	// 1. What is asked.
	rec, err := s.runOf(r.Context(), pathValue(r, "id"))
	if err != nil {
		return err
	}
	limit, after, err := page(r)
	if err != nil {
		return err
	}
	follow, err := flag(r, "follow")
	if err != nil {
		return err
	}
	// 2. A page.
	if !follow && !wantsStream(r) {
		lines, next, err := s.plane.Logs(r.Context(), rec.ID, after, limit)
		if err != nil {
			return err
		}
		out := api.List[api.LogLine]{Items: logLines(lines)}
		if len(lines) >= limit {
			out.NextPageToken = next
		}
		return writeJSON(w, http.StatusOK, out)
	}
	// 3. Or all of it, as it comes.
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if after = last; len(after) > maxTokenSize {
			return invalidAt("header.Last-Event-ID", "%d bytes; it is no id of this server", len(after))
		}
	}
	first, next, err := s.plane.Logs(r.Context(), rec.ID, after, logChunk) // a wrong position is told before the stream opens
	if err != nil {
		return err
	}
	if err := s.streams.enter(); err != nil {
		return err
	}
	defer s.streams.leave()
	s.followLogs(w, r, rec, first, next)
	return nil
}

// followLogs sends lines until the run is over and its log is read. The log is no part of the run's history, so it is
// looked at from time to time.
func (s *Server) followLogs(w http.ResponseWriter, r *http.Request, rec *run.Record, lines []runtime.LogLine, position string) {
	ctx := r.Context()
	send := s.sendLines(w, r)
	if send == nil {
		return
	}
	changed, leave := s.plane.Follow(rec.ID)
	defer leave()
	look := time.NewTicker(s.opts.LogPoll)
	defer look.Stop()
	spoke := time.Now()
	over := false
	for {
		// 1. What there is.
		if len(lines) > 0 || time.Since(spoke) >= s.opts.Keepalive {
			if send(lines, position, false) != nil {
				return
			}
			spoke = time.Now()
		}
		// 2. A pause, unless there is more. When the run is over there is one last look.
		switch {
		case len(lines) >= logChunk:
		case over:
			_ = send(nil, "", true)
			return
		default:
			select {
			case <-changed:
			case <-look.C:
			case <-ctx.Done():
				return
			case <-s.alive.Done():
				return
			}
			var err error
			if over, err = s.isOver(ctx, rec.ID); err != nil {
				s.cutOff(ctx, rec.ID, err)
				return
			}
		}
		// 3. What is new.
		var err error
		var next string
		if lines, next, err = s.plane.Logs(ctx, rec.ID, position, logChunk); err != nil {
			s.cutOff(ctx, rec.ID, err)
			return
		}
		if next != "" {
			position = next
		}
	}
}

func (s *Server) isOver(ctx context.Context, id string) (bool, error) {
	rec, err := s.plane.Get(ctx, id)
	if err != nil {
		return false, err
	}
	return rec.State.Terminal(), nil
}

// sendLines opens the stream in the form that the client takes. No lines are a sign of life; last ends the stream. It
// returns nil when the client is gone already.
func (s *Server) sendLines(w http.ResponseWriter, r *http.Request) func(lines []runtime.LogLine, position string, last bool) error {
	if wantsStream(r) {
		out, err := openStream(w, "text/event-stream")
		if err != nil {
			return nil
		}
		return func(lines []runtime.LogLine, position string, last bool) error {
			if last {
				return out.end()
			}
			if len(lines) == 0 {
				return out.comment()
			}
			for i, line := range logLines(lines) {
				id := ""
				if i == len(lines)-1 {
					id = position
				}
				if err := out.message(id, "", line); err != nil {
					return err
				}
			}
			return nil
		}
	}
	out, err := openStream(w, "application/x-ndjson")
	if err != nil {
		return nil
	}
	return func(lines []runtime.LogLine, _ string, _ bool) error {
		for _, line := range logLines(lines) {
			body, err := encode(line)
			if err != nil {
				return err
			}
			if err := out.write(string(body)); err != nil {
				return err
			}
		}
		return nil
	}
}
