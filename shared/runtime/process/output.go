package process

import (
	"bytes"
	"strings"
	"sync"
)

const (
	MaxLine = 8 << 10 // bytes of a line that are passed on; the rest of it is dropped
	MaxTail = 2 << 10 // bytes of standard error kept for Exit
)

// capture keeps what is written up to max bytes, then calls over once and drops the rest.
type capture struct {
	max    int
	over   func()
	buf    []byte
	passed bool
}

func (c *capture) Write(b []byte) (int, error) {
	switch {
	case c.passed:
	case len(c.buf)+len(b) > c.max:
		c.passed, c.buf = true, nil
		c.over()
	default:
		c.buf = append(c.buf, b...)
	}
	return len(b), nil
}

// lines cuts a stream into lines for a sink, and keeps its end.
type lines struct {
	stream string
	sink   func(stream, text string)
	line   []byte
	cut    bool // the rest of the line is dropped

	mu   sync.Mutex
	last []byte // of the stream: up to 2·MaxTail, so that it is not moved for every write
}

func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	l.keep(b)
	if l.sink == nil {
		return n, nil
	}
	for len(b) > 0 {
		part, rest, found := bytes.Cut(b, []byte{'\n'})
		l.add(part)
		if found {
			l.emit()
		}
		b = rest
	}
	return n, nil
}

func (l *lines) add(part []byte) {
	if room := MaxLine - len(l.line); len(part) > room {
		part, l.cut = part[:room], true
	}
	l.line = append(l.line, part...)
}

func (l *lines) emit() {
	text := strings.ToValidUTF8(string(bytes.TrimSuffix(l.line, []byte{'\r'})), "\uFFFD")
	const mark = "…"
	for l.cut && len(text) > MaxLine-len(mark) {
		_, size := lastRune(text)
		text = text[:len(text)-size]
	}
	if l.cut {
		text += mark
	}
	l.line, l.cut = l.line[:0], false
	l.sink(l.stream, text)
}

// flush passes on a last line without a line break.
func (l *lines) flush() {
	if len(l.line) > 0 && l.sink != nil {
		l.emit()
	}
}

func (l *lines) keep(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(b) > MaxTail {
		b = b[len(b)-MaxTail:]
	}
	if len(l.last)+len(b) > 2*MaxTail {
		l.last = append(l.last[:0], l.last[len(l.last)-(MaxTail-min(len(b), MaxTail)):]...)
	}
	l.last = append(l.last, b...)
}

func (l *lines) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.last
	if len(b) > MaxTail {
		b = b[len(b)-MaxTail:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "\uFFFD"))
}
