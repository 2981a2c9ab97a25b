package httpio

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

const eventStream = "text/event-stream"

var errNoAnswer = errors.New("the stream ended without a result")

// stream reads events up to the answer and reports what comes before it. An event over runtime.MaxAnswer bytes is errLong.
func (c *Call) stream(body io.Reader) ([]byte, error) {
	r := bufio.NewReaderSize(body, 16<<10)
	var (
		name     string
		data     []byte // of the event that is being read
		has      bool   // it has data
		answer   []byte // the last data of no name
		answered bool
	)
	for first := true; ; first = false {
		line, err := readLine(r, runtime.MaxAnswer-len(data))
		switch {
		case errors.Is(err, io.EOF) && name == "" && !has && len(line) == 0 && answered:
			return answer, nil
		case errors.Is(err, io.EOF):
			return nil, errNoAnswer
		case err != nil:
			return nil, err
		}
		if first {
			line = bytes.TrimPrefix(line, []byte("\uFEFF"))
		}
		if len(line) > 0 {
			field, value, _ := bytes.Cut(line, []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch string(field) {
			case "event":
				name = string(value)
			case "data":
				if has {
					data = append(data, '\n')
				}
				data, has = append(data, value...), true
			}
			continue
		}
		// A blank line ends the event.
		if has {
			switch name {
			case "result":
				return data, nil
			case "", "message":
				answer, answered = data, true
			case "progress":
				c.progress(data)
			case "log":
				c.log(data)
			}
		}
		name, data, has = "", nil, false
	}
}

func (c *Call) progress(data []byte) {
	var p struct {
		Progress *float64 `json:"progress"`
		Message  string   `json:"message"`
	}
	var number float64
	switch {
	case json.Unmarshal(data, &number) == nil:
		p.Progress = &number
	case json.Unmarshal(data, &p) != nil || p.Progress == nil:
		return
	}
	if c.Each != nil && *p.Progress >= 0 && *p.Progress <= 1 {
		c.Each(runtime.Report{Type: runtime.Progress, Fraction: *p.Progress, Message: run.Clip(p.Message, run.MaxMessage)})
	}
}

const maxEventLines = 1000 // of log in one event; the rest is passed over

func (c *Call) log(data []byte) {
	if c.Each == nil {
		return
	}
	var lines []runtime.LogLine
	for text := range strings.Lines(strings.ToValidUTF8(string(data), "\uFFFD")) {
		if len(lines) == maxEventLines {
			break
		}
		lines = append(lines, runtime.LogLine{
			At: run.At(c.Now()), Stream: "agent", Text: run.Clip(strings.TrimSuffix(text, "\n"), runtime.MaxLogLine),
		})
	}
	if len(lines) > 0 {
		c.Each(runtime.Report{Type: runtime.Logged, Logs: lines})
	}
}

var errLong = errors.New("an event is too long")

// readLine reads up to the end of a line, which is left out, or errLong for more than room bytes. What stands before
// io.EOF without an end of line is returned with it.
func readLine(r *bufio.Reader, room int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > room+len("\r\n")+len("data: ") {
			return nil, errLong
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return line, err
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
	}
}
