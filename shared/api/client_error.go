package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// ErrUnreachable is wrapped by the error of a call that got no answer: the server is down, the network is, or the
// answer was cut short. Whether the server did what was asked is then unknown.
var ErrUnreachable = errors.New("server cannot be reached")

// ErrEncode is wrapped by the error of a call whose body is not valid JSON: nothing was sent.
var ErrEncode = errors.New("request cannot be encoded")

// HasCode reports whether err is, or wraps, a Problem with this code.
func HasCode(err error, code string) bool {
	var p *Problem
	return errors.As(err, &p) && p.Code() == code
}

const (
	maxProblem = 1 << 20
	maxExcerpt = 300
)

// unreachable tells the caller's own end of patience from a server that does not answer.
func (c *Client) unreachable(ctx context.Context, k *call, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", k.method, k.path, context.Cause(ctx))
	}
	// *url.Error repeats method and address, with the query.
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s", c.timeout+k.wait)
	}
	return fmt.Errorf("%s %s: %w at %s: %w", k.method, k.path, ErrUnreachable, c.base, err)
}

// readProblem makes a Problem of any answer that is not a success.
func readProblem(resp *http.Response, k *call) *Problem {
	body, err := readAll(resp, maxProblem)
	if err != nil {
		body = nil
	}
	p := new(Problem)
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if !strings.HasSuffix(media, "json") || json.Unmarshal(body, p) != nil || (p.Title == "" && p.Detail == "") {
		p = &Problem{Detail: fmt.Sprintf("%s %s: %s", k.method, k.path, excerpt(body))}
	}
	p.Status = resp.StatusCode
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	if p.Title == "" {
		p.Title = "status " + strconv.Itoa(p.Status)
	}
	if p.Type == "" || p.Type == "about:blank" {
		p.Type = ProblemBase + codeOf(p.Status)
	}
	if p.RetryAfter <= 0 {
		p.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), resp.Header.Get("Date"))
	}
	return p
}

// codeOf is the word for a status that came without one, from a proxy for instance.
func codeOf(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return CodeUnauthorized
	case http.StatusForbidden:
		return CodeForbidden
	case http.StatusNotFound:
		return CodeNotFound
	case http.StatusConflict:
		return CodeConflict
	case http.StatusPreconditionFailed:
		return CodeStale
	case http.StatusRequestEntityTooLarge:
		return CodeTooLarge
	case http.StatusTooManyRequests:
		return CodeOverloaded
	case http.StatusNotImplemented, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType:
		return CodeUnsupported
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return CodeUnavailable
	}
	if status >= 500 {
		return CodeInternal
	}
	return CodeInvalid
}

// retryAfter reads the header in whole seconds: a number, or a date measured against the answer's own.
func retryAfter(text, date string) int {
	if text == "" {
		return 0
	}
	if n, err := strconv.Atoi(text); err == nil {
		return min(max(n, 0), 24*3600)
	}
	until, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(date)
	if err != nil {
		return 0
	}
	return int(min(max(until.Sub(now), 0), 24*time.Hour) / time.Second)
}

// excerpt is the beginning of a body that is no problem document, on one line.
func excerpt(body []byte) string {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return "empty answer"
	}
	cut := body
	if len(cut) > maxExcerpt {
		cut = cut[:maxExcerpt]
	}
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(cut), "")), " ")
	if !utf8.ValidString(text) || text == "" {
		return fmt.Sprintf("answer of %d bytes that is not text", len(body))
	}
	return text
}
