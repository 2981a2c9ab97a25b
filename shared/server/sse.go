package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// stream is an open text/event-stream. Each message must leave within perMessage: a client that does not read is cut
// off, and can resume after the last id.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func wantsStream(r *http.Request) bool { return accepts(r, "text/event-stream") }

func accepts(r *http.Request, media string) bool {
	return slices.ContainsFunc(r.Header.Values("Accept"), func(v string) bool {
		for part := range strings.SplitSeq(v, ",") {
			name, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(name), media) {
				return true
			}
		}
		return false
	})
}

// openStream begins the answer. From here on errors can only cut it off.
func openStream(w http.ResponseWriter, media string) (*stream, error) {
	s := &stream{w: w, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", media)
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	return s, s.flush()
}

// message sends one message; id and name may be empty.
func (s *stream) message(id, name string, v any) error {
	body, err := encode(v) // one line
	if err != nil {
		return err
	}
	var b strings.Builder
	if id != "" {
		fmt.Fprintf(&b, "id: %s\n", id)
	}
	if name != "" {
		fmt.Fprintf(&b, "event: %s\n", name)
	}
	b.WriteString("data: ")
	b.Write(body)
	b.WriteString("\n")
	return s.write(b.String())
}

// comment tells that the stream lives, and finds out whether the client does.
func (s *stream) comment() error { return s.write(": \n\n") }

// end tells that nothing follows.
func (s *stream) end() error { return s.message("", "end", struct{}{}) }

func (s *stream) write(text string) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(perMessage)) // an error: the writer is a test's and has no deadlines
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.flush()
}

func (s *stream) flush() error { return s.control.Flush() }
