// Package httpio executes an attempt as one HTTP request: its document as the body, its answer in the response.
//
// What a response means:
//
//	2xx                 the answer, see runtime.ParseResult
//	429                 failed: class throttled, after Retry-After
//	408 425 502 503 504 failed: class infrastructure, after Retry-After
//	other 4xx           failed for good: class user, code the status; 409 and 423 may be tried again
//	500 and other 5xx   failed: class user, code the status; 501 and 505 for good
//	3xx                 failed for good: redirects are not followed, for the token would go along
//	no connection       failed: class infrastructure, nothing has begun
//	broken connection   failed: class lost, for nobody knows what became of it
//
// The body of a response that is no 2xx may be a frame with an error, which refines code, message and retrying.
//
// A 2xx of text/event-stream is read as it comes:
//
//	event: progress   a number from 0 to 1, or an object of progress and message: reported at once
//	event: log        text, a line of log per line: reported at once
//	event: result     the answer; nothing is read beyond it
//	data alone        the answer, if it is the last data and no result comes
//
// Other events mean nothing. A stream that ends without an answer, or within an event, is a broken connection.
//
// Imports: run, runtime.
package httpio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Codes of failures without a status.
const (
	CodeUnreachable = "Unreachable"
	CodeBroken      = "ConnectionBroken"
)

// NewClient returns a client that follows no redirect. Each request has a connection of its own: on one that was kept, a
// server's closing it cannot be told from a server that took the run and died.
func NewClient() *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:       http.ProxyFromEnvironment,
			DialContext: (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			// The handler may take its time over the answer: there is no limit but the context's.
			TLSHandshakeTimeout: 10 * time.Second, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		},
	}
}

// HeaderToken carries the attempt's token where Authorization says who calls.
const HeaderToken = "X-Errand-Token"

// Call is an attempt to be sent. URL, Attempt, Document and Now are needed.
type Call struct {
	URL      string
	Attempt  *runtime.Assignment
	Document []byte
	// Identity is the bearer token for a server that asks who calls. The attempt's token is in HeaderToken, and without an
	// Identity in Authorization too.
	Identity string
	// Each takes what a stream of events reports before its answer, without run and number; nil passes over it. Do calls
	// it in order and reads on when it returns.
	Each func(runtime.Report)
	// Now is the time of day, for log lines and for dates in Retry-After.
	Now func() time.Time
}

// Do sends the call and returns what ended it, with run and number. Ended is never set: a response does not tell whether
// the handler is gone. When ctx ends the report means nothing: the caller knows why.
func Do(ctx context.Context, client *http.Client, c Call) runtime.Report {
	report := c.do(ctx, client)
	report.Run, report.N = c.Attempt.Run, c.Attempt.N
	report.Message = run.Clip(report.Message, run.MaxMessage)
	return report
}

func (c *Call) do(ctx context.Context, client *http.Client) runtime.Report {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(c.Document))
	if err != nil {
		return failed(run.ClassInfrastructure, CodeUnreachable, fmt.Sprintf("request to %s: %v", c.URL, err))
	}
	// The answer to a request that was sent must not come from a second one.
	request.GetBody = nil
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream;q=0.9, text/plain;q=0.5")
	if token := c.Attempt.Token; token != "" {
		request.Header.Set(HeaderToken, token)
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if c.Identity != "" {
		request.Header.Set("Authorization", "Bearer "+c.Identity)
	}
	if c.Attempt.Trace != "" {
		request.Header.Set("traceparent", c.Attempt.Trace)
	}
	response, err := client.Do(request)
	if err != nil {
		return broken(c.URL, err)
	}
	defer response.Body.Close()
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	var body []byte
	if kind == eventStream && response.StatusCode/100 == 2 {
		body, err = c.stream(response.Body)
	} else {
		body, err = io.ReadAll(io.LimitReader(response.Body, runtime.MaxAnswer+1))
	}
	switch {
	case errors.Is(err, errLong) || len(body) > runtime.MaxAnswer:
		return runtime.TooLarge()
	case err != nil:
		return broken(c.URL, err)
	}
	return judge(response, body, c.Now)
}

// broken tells a connection that never came about from one that broke.
func broken(url string, err error) runtime.Report {
	var op *net.OpError
	var dns *net.DNSError
	if errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns) {
		return failed(run.ClassInfrastructure, CodeUnreachable, fmt.Sprintf("no connection: %v; is %s being served?", trim(err), url))
	}
	return failed(run.ClassLost, CodeBroken, fmt.Sprintf("the connection broke before the answer was complete: %v", trim(err)))
}

// trim leaves out the method and address, which may hold what is nobody's business.
func trim(err error) error {
	type unwrapper interface{ Unwrap() error }
	if u, ok := err.(unwrapper); ok && strings.HasPrefix(err.Error(), "Post ") {
		return u.Unwrap()
	}
	return err
}

func judge(response *http.Response, body []byte, now func() time.Time) runtime.Report {
	status := response.StatusCode
	code := strconv.Itoa(status)
	if status >= 200 && status <= 299 {
		report, _ := runtime.ParseResult(body)
		return report
	}
	// 1. The status.
	report := failed(run.ClassUser, code, "")
	switch status {
	case http.StatusTooManyRequests:
		report.Class = run.ClassThrottled
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		report.Class = run.ClassInfrastructure
	case http.StatusConflict, http.StatusLocked:
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		report.Final = true
	default:
		report.Final = status < 500
	}
	report.RetryIn = retryAfter(response.Header.Get("Retry-After"), now)
	// 2. What the body adds.
	if said, _ := runtime.ParseResult(body); said.Type == runtime.Failed && said.Code != runtime.CodeResultInvalid {
		report.Final = report.Final || said.Final
		report.RetryIn = max(report.RetryIn, said.RetryIn)
		report.Usage = said.Usage
		report.Message = said.Message
		if said.Code != "" {
			report.Code = said.Code
		}
	}
	if report.Message == "" {
		report.Message = "status " + code + " " + http.StatusText(status) + excerpt(response, body)
	}
	if status >= 300 && status < 400 {
		report.Message = "status " + code + ": redirects are not followed; give the address that it leads to"
	}
	return report
}

// excerpt is the beginning of a body that people can read.
func excerpt(response *http.Response, body []byte) string {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if len(body) == 0 || !(strings.HasPrefix(kind, "text/") && kind != "text/html" || strings.HasSuffix(kind, "json")) {
		return ""
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(body[:min(len(body), 1<<10)]), ""))
	return ": " + text
}

// maxWait bounds what a server may ask for, long before it overflows.
const maxWait = 365 * 24 * time.Hour

func retryAfter(header string, now func() time.Time) time.Duration {
	if n, err := strconv.ParseInt(header, 10, 64); err == nil {
		return min(time.Duration(max(min(n, int64(maxWait/time.Second)), 0))*time.Second, maxWait)
	}
	if at, err := http.ParseTime(header); err == nil {
		return min(max(at.Sub(now()), 0), maxWait)
	}
	return 0
}

func failed(class run.Class, code, message string) runtime.Report {
	return runtime.Report{Type: runtime.Failed, Class: class, Code: code, Message: message}
}
