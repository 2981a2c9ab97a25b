package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"time"
)

// The server's side of a stream (text/event-stream): each message has an id to resume after, an event name, and data
// of one JSON document; a comment at least every 20 seconds tells that it lives; the event "end" tells that nothing
// follows. A stream that breaks off without "end" is resumed with Last-Event-ID.

const (
	maxStreamMessage = 4 << 20
	streamSilence    = 60 * time.Second // after which a stream counts as broken
	streamEnd        = "end"
)

// FollowEvents yields the events of a run after seq (0 for all), and then each as it happens, until the run is over.
// It resumes by itself where the connection breaks, for as long as ctx lasts; an error that resuming cannot help ends
// it and is yielded.
func (c *Client) FollowEvents(ctx context.Context, id string, seq int64) iter.Seq2[Event, error] {
	last := ""
	if seq > 0 {
		last = strconv.FormatInt(seq, 10)
	}
	return func(yield func(Event, error) bool) {
		follow(ctx, c, runPath(id)+"/events", last, yield)
	}
}

// FollowLogs yields the log of a run, and then each line as it comes, until the run is over. It resumes as
// FollowEvents does.
func (c *Client) FollowLogs(ctx context.Context, id string) iter.Seq2[LogLine, error] {
	return func(yield func(LogLine, error) bool) {
		follow(ctx, c, runPath(id)+"/logs", "", yield)
	}
}

// follow reads a stream to its end over as many connections as that takes.
func follow[T any](ctx context.Context, c *Client, path, last string, yield func(T, error) bool) {
	var none T
	at := position{last: last}
	for failures := 0; ; {
		// 1. Read one connection until it breaks or ends.
		before := at
		over, err := c.stream(ctx, path, &at, func(data []byte) (bool, error) {
			var item T
			if err := json.Unmarshal(data, &item); err != nil {
				return false, fmt.Errorf("GET %s: message of the stream: %w", path, located(err))
			}
			return yield(item, nil), nil
		})
		if over {
			return
		}
		if at != before {
			failures = 0
		}
		// 2. Give up where another connection would not do better, or a first one never came about.
		if ctx.Err() != nil {
			yield(none, fmt.Errorf("GET %s: %w", path, context.Cause(ctx)))
			return
		}
		var p *Problem
		away := errors.Is(err, ErrUnreachable) || (errors.As(err, &p) && p.Code() == CodeUnavailable)
		if !away || (!at.connected && failures >= c.retries) {
			yield(none, err)
			return
		}
		// 3. Wait, longer with each failure: a restart of the server is over in seconds.
		delay := min(firstDelay<<min(failures, 5), 2*time.Second)
		if p != nil {
			delay = min(max(delay, time.Duration(p.RetryAfter)*time.Second), longestDelay)
		}
		failures++
		if sleep(ctx, delay/2+rand.N(delay/2+1)) != nil {
			yield(none, fmt.Errorf("GET %s: %w", path, context.Cause(ctx)))
			return
		}
	}
}

// position is how far a stream was read: the id of the last message handed over, and whether it was ever open.
type position struct {
	last      string
	connected bool
}

// stream reads one connection and moves the position. over: nothing follows, or the receiver wants no more.
func (c *Client) stream(ctx context.Context, path string, at *position, take func([]byte) (bool, error)) (over bool, err error) {
	k := call{method: http.MethodGet, path: path}
	connCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	// 1. Connect, bounded like any call until the header is there, and by silence from then on.
	watchdog := time.AfterFunc(c.timeout, cancel)
	defer watchdog.Stop()
	resp, err := c.sendStream(connCtx, &k, at.last)
	if err != nil {
		return false, c.unreachable(ctx, &k, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent {
		return true, nil
	}
	if resp.StatusCode != http.StatusOK {
		return false, readProblem(resp, &k)
	}
	if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media != "text/event-stream" {
		return false, fmt.Errorf("GET %s: want text/event-stream, the server answered %.60q", path, media)
	}
	at.connected = true
	// 2. Read message by message.
	r := newEventReader(resp.Body)
	for {
		watchdog.Reset(streamSilence)
		m, err := r.next(func() { watchdog.Reset(streamSilence) })
		switch {
		case errors.Is(err, io.EOF) || (err != nil && !errors.Is(err, errStreamTooLong)):
			return false, c.unreachable(ctx, &k, fmt.Errorf("stream broke off: %w", err))
		case err != nil:
			return false, fmt.Errorf("GET %s: %w", path, err)
		case m.event == streamEnd:
			return true, nil
		}
		more, err := take(m.data)
		if err != nil {
			return false, err
		}
		if m.id != "" {
			at.last = m.id
		}
		if !more {
			return true, nil
		}
	}
}

func (c *Client) sendStream(ctx context.Context, k *call, last string) (*http.Response, error) {
	req, err := c.request(ctx, k, nil, "text/event-stream")
	if err != nil {
		return nil, err
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	return c.http.Do(req)
}

// message is one message of an event stream.
type message struct {
	id, event string
	data      []byte
}

var errStreamTooLong = fmt.Errorf("message of the stream is longer than %d bytes", maxStreamMessage)

// eventReader takes an event stream apart.
type eventReader struct{ r *bufio.Reader }

func newEventReader(r io.Reader) *eventReader { return &eventReader{bufio.NewReaderSize(r, 16<<10)} }

// next returns the next message that has data or is an end. alive is called for every line, comments too.
func (e *eventReader) next(alive func()) (message, error) {
	var m message
	size, hasData := 0, false
	for {
		line, err := e.line(maxStreamMessage - size)
		if err != nil {
			return message{}, err
		}
		size += len(line)
		alive()
		if len(line) == 0 {
			if hasData || m.event == streamEnd {
				return m, nil
			}
			m, size = message{}, 0
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			m.id = string(value)
		case "event":
			m.event = string(value)
		case "data":
			if hasData {
				m.data = append(m.data, '\n')
			}
			m.data, hasData = append(m.data, value...), true
		}
	}
}

// line reads a line of at most limit bytes, without its end.
func (e *eventReader) line(limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := e.r.ReadSlice('\n')
		if len(line)+len(part) > limit+2 {
			return nil, errStreamTooLong
		}
		if err == nil && line == nil {
			return bytes.TrimRight(part, "\r\n"), nil
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			return nil, err
		}
	}
}
