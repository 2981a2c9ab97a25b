package agent

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/shared/api"
)

const (
	eventStream = "text/event-stream"
	// maxWatched is how many events wait for a slow reader; more are dropped, and told as dropped.
	maxWatched = 256
	watchBeat  = 15 * time.Second // a comment at least so often tells that the stream lives
	watchWrite = 30 * time.Second // for one write
)

// watch carries what a handler says to the caller who waits for its result, as server-sent events: progress (an object
// of progress and message), log (text), and last result (the answer) or error (a problem). A nil *watch is a caller who
// wants nothing but the answer.
type watch struct {
	events  chan event
	dropped atomic.Int64
	writer  io.Writer
	control *http.ResponseController
	broken  bool // the caller is gone
}

type event struct {
	name string
	data []byte
}

// watching is the watch that a request asks for: when it would rather have events than JSON, or takes events and they are
// the only way for what the handler says.
func watching(req *http.Request, only bool) *watch {
	stream, plain := accepts(req.Header.Values("Accept"))
	if stream == 0 || stream <= plain && !only {
		return nil
	}
	return &watch{events: make(chan event, maxWatched)}
}

// accepts reads how much a caller wants events, and how much JSON.
func accepts(header []string) (stream, plain float64) {
	for part := range strings.SplitSeq(strings.Join(header, ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil || q < 0 || q > 1 {
				continue
			}
		}
		switch kind {
		case eventStream:
			stream = max(stream, q)
		case "application/json", "application/*", "*/*":
			plain = max(plain, q)
		}
	}
	return stream, plain
}

func (w *watch) progress(fraction float64, message string) {
	if w == nil {
		return
	}
	if data, err := encode(map[string]any{"progress": fraction, "message": message}); err == nil {
		w.send(event{"progress", data})
	}
}

func (w *watch) log(text string) {
	if w == nil {
		return
	}
	w.send(event{"log", []byte(clip(strings.ToValidUTF8(strings.TrimRight(text, "\r\n"), "\uFFFD"), api.MaxLogLine))})
}

// send keeps the event if there is room: a handler does not wait for who watches it.
func (w *watch) send(e event) {
	select {
	case w.events <- e:
	default:
		w.dropped.Add(1)
	}
}

// during runs work, and meanwhile writes what it says.
func (w *watch) during(to http.ResponseWriter, work func()) {
	if w == nil {
		work()
		return
	}
	// 1. The head is sent at once: the caller knows that it was heard.
	h := to.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-store")
	w.writer, w.control = to, http.NewResponseController(to)
	to.WriteHeader(http.StatusOK)
	w.flush()
	// 2. What is said, as it is said.
	done := make(chan struct{})
	go func() {
		defer close(done)
		work()
	}()
	tick := time.NewTicker(watchBeat)
	defer tick.Stop()
	for working := true; working; {
		select {
		case e := <-w.events:
			w.write(e)
		case <-tick.C:
			w.raw([]byte(": working\n\n"))
		case <-done:
			working = false
		}
	}
	// 3. What was said last.
	for len(w.events) > 0 {
		w.write(<-w.events)
	}
	if n := w.dropped.Load(); n > 0 {
		w.write(event{"log", fmt.Appendf(nil, "%d events were dropped: they came faster than they were read", n)})
	}
}

// answer tells the result.
func (w *watch) answer(to http.ResponseWriter, body any) {
	if w == nil {
		writeJSON(to, http.StatusOK, "application/json", body)
		return
	}
	raw, err := encode(body)
	if err != nil {
		raw, _ = encode(Failed(failf(CodeOutputInvalid, "result: %w", err)).document())
	}
	w.write(event{"result", raw})
}

// problem tells why there is no result.
func (w *watch) problem(to http.ResponseWriter, p *api.Problem) {
	if w == nil {
		writeProblem(to, p)
		return
	}
	if raw, err := encode(p); err == nil {
		w.write(event{"error", raw})
	}
}

// write sends one event: a line of data for each of its lines.
func (w *watch) write(e event) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: %s\n", e.name)
	for line := range bytes.SplitSeq(bytes.ReplaceAll(e.data, []byte("\r"), nil), []byte("\n")) {
		b.WriteString("data: ")
		b.Write(line)
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	w.raw(b.Bytes())
}

func (w *watch) raw(text []byte) {
	if w.broken {
		return
	}
	_ = w.control.SetWriteDeadline(time.Now().Add(watchWrite)) // where the connection has one
	if _, err := w.writer.Write(text); err != nil {
		w.broken = true
		return
	}
	w.flush()
}

func (w *watch) flush() { _ = w.control.Flush() }
