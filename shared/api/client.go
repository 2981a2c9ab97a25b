package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Options of a Client. Only URL is needed.
type Options struct {
	// URL of the server, such as https://errand.example.com; http:// is put before a bare host:port.
	URL string
	// Token is the bearer token of every call that carries no attempt's token.
	Token string
	// Tokens gives the bearer token of calls that carry no attempt's token where Token is empty: identity tokens of the
	// workload that the client runs in. nil for none.
	Tokens TokenSource
	// Audience is whom tokens of Tokens are made out to; URL when empty.
	Audience string
	// Tenant is put into submissions and filters that name none.
	Tenant string
	// As and Groups say who asks, to a server without login: people on one machine have no other names.
	As     string
	Groups []string
	// HTTP sends the requests; nil for a client tuned for many small calls to one host. Its Timeout must be zero: calls
	// bound themselves, and a long poll outlasts a plain one.
	HTTP *http.Client
	// UserAgent names the program; "errand" when empty.
	UserAgent string
	// Timeout bounds one try of a call, beyond what the call asks the server to wait; 30s when 0.
	Timeout time.Duration
	// Retries is how often a call that is safe to repeat is tried again when the server cannot be reached or answers
	// 503; 4 when 0, none when negative.
	Retries int
}

// TokenSource gives bearer tokens made out to an audience. Safe for concurrent use; it keeps tokens by itself. Package
// identity has the platform's.
type TokenSource interface {
	Token(ctx context.Context, audience string) (string, error)
}

// Client calls the HTTP interface. Safe for concurrent use.
//
// Calls that are safe to repeat (reads, deletes, submissions with a key) are tried again while the server is away or
// says 503, a few times over about three seconds. Errors are [*Problem] when the server answered, and wrap
// [ErrUnreachable] when it did not; the caller's own context ending is returned as that.
type Client struct {
	base      string
	token     string
	tokens    TokenSource
	audience  string
	tenant    string
	as        string
	groups    string
	http      *http.Client
	userAgent string
	timeout   time.Duration
	retries   int
}

const (
	defaultTimeout = 30 * time.Second
	defaultRetries = 4
	firstDelay     = 100 * time.Millisecond
	longestDelay   = 10 * time.Second // of what a Retry-After may ask for
	maxAnswer      = MaxBatchBody + 1<<20
)

// NewClient checks the options and makes a client. It does not connect.
func NewClient(o Options) (*Client, error) {
	base, err := parseBase(o.URL)
	if err != nil {
		return nil, err
	}
	c := &Client{
		base: base, token: o.Token, tokens: o.Tokens, audience: cmp.Or(o.Audience, base), tenant: o.Tenant, http: o.HTTP,
		as: o.As, groups: strings.Join(o.Groups, ","),
		userAgent: o.UserAgent, timeout: o.Timeout, retries: o.Retries,
	}
	if c.http == nil {
		c.http = &http.Client{Transport: newTransport(), CheckRedirect: refuseRedirect}
	}
	if c.userAgent == "" {
		c.userAgent = "errand"
	}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}
	switch {
	case c.retries == 0:
		c.retries = defaultRetries
	case c.retries < 0:
		c.retries = 0
	}
	return c, nil
}

// URL is the server's address, without a slash at its end.
func (c *Client) URL() string { return c.base }

// Tenant is the client's own tenant, "" for none.
func (c *Client) Tenant() string { return c.tenant }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func parseBase(raw string) (string, error) {
	text := strings.TrimSpace(raw)
	if text == "" {
		return "", errors.New("server address: empty; want a URL such as http://127.0.0.1:8080")
	}
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("server address %.200q: want http:// or https://, a host, and at most a path", raw)
	}
	return strings.TrimRight(text, "/"), nil
}

// newTransport keeps connections: a worker and a bench each hold many small calls to one host.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          512,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
	}
}

// refuseRedirect keeps tokens from following a redirect to somewhere else.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// call is one request.
type call struct {
	method string
	path   string // escaped
	query  url.Values
	body   any    // encoded as JSON, unless raw is set
	raw    []byte // body as it is
	media  string // of raw
	bearer string // instead of the client's token
	match  string // If-Match
	// noneMatch: If-None-Match.
	noneMatch string
	// repeatable: doing it twice is the same as doing it once.
	repeatable bool
	wait       time.Duration // how long the server is asked to wait
	out        any           // decoded from the answer; nil to ignore it, a *json.RawMessage for the answer as it is
}

// do sends a call, again where that is safe and helps, and decodes the answer. It returns the status.
func (c *Client) do(ctx context.Context, k call) (int, error) {
	// 1. Encode once for all tries.
	body, err := k.encode()
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", k.method, k.path, err)
	}
	for try := 0; ; try++ {
		// 2. One try.
		status, err := c.try(ctx, &k, body)
		if err == nil || !k.repeatable || try >= c.retries || ctx.Err() != nil {
			return status, err
		}
		// 3. Wait, if another may do better.
		delay, again := retryDelay(err, try)
		if !again || sleep(ctx, delay) != nil {
			return status, err
		}
	}
}

func (k *call) encode() ([]byte, error) {
	if k.raw != nil || k.body == nil {
		return k.raw, nil
	}
	b := bytes.NewBuffer(make([]byte, 0, 512))
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(k.body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEncode, err)
	}
	return b.Bytes(), nil
}

func (c *Client) try(ctx context.Context, k *call, body []byte) (int, error) {
	tryCtx, cancel := context.WithTimeout(ctx, c.timeout+k.wait)
	defer cancel()
	req, err := c.request(tryCtx, k, body, "application/json")
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", k.method, k.path, err)
	}
	resp, err := c.http.Do(req) //nolint:bodyclose // drain closes it
	if err != nil {
		return 0, c.unreachable(ctx, k, err)
	}
	defer drain(resp.Body)
	if resp.StatusCode >= 300 {
		return resp.StatusCode, readProblem(resp, k)
	}
	if k.out == nil || resp.StatusCode == http.StatusNoContent {
		return resp.StatusCode, nil
	}
	answer, err := readAll(resp, maxAnswer)
	if err != nil {
		return resp.StatusCode, c.unreachable(ctx, k, err)
	}
	if raw, ok := k.out.(*json.RawMessage); ok {
		*raw = answer
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(answer, k.out); err != nil {
		return resp.StatusCode, fmt.Errorf("%s %s: answer of the server: %w", k.method, k.path, located(err))
	}
	return resp.StatusCode, nil
}

// request forms the request of a call.
func (c *Client) request(ctx context.Context, k *call, body []byte, accept string) (*http.Request, error) {
	target := c.base + k.path
	if len(k.query) > 0 {
		target += "?" + k.query.Encode()
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, k.method, target, reader)
	if err != nil {
		return nil, err
	}
	h := req.Header
	h["User-Agent"] = []string{c.userAgent}
	h["Accept"] = []string{accept}
	if body != nil {
		media := k.media
		if media == "" {
			media = "application/json"
		}
		h["Content-Type"] = []string{media}
	}
	if k.match != "" {
		h["If-Match"] = []string{k.match}
	}
	if c.as != "" {
		h.Set(HeaderAs, c.as)
	}
	if c.groups != "" {
		h.Set(HeaderGroups, c.groups)
	}
	if k.noneMatch != "" {
		h["If-None-Match"] = []string{k.noneMatch}
	}
	bearer := cmp.Or(k.bearer, c.token)
	if bearer == "" && c.tokens != nil {
		// A token that cannot be had now is as good as a server that cannot be reached: the call was not made.
		if bearer, err = c.tokens.Token(ctx, c.audience); err != nil {
			return nil, fmt.Errorf("%w at %s: no token to call it with: %w", ErrUnreachable, c.base, err)
		}
	}
	if bearer != "" {
		h["Authorization"] = []string{"Bearer " + bearer}
	}
	return req, nil
}

// readAll reads an answer of at most limit bytes.
func readAll(resp *http.Response, limit int64) ([]byte, error) {
	if resp.ContentLength > limit {
		return nil, fmt.Errorf("answer of %d bytes, at most %d are read", resp.ContentLength, limit)
	}
	var b bytes.Buffer
	if resp.ContentLength > 0 {
		b.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("answer longer than %d bytes", limit)
	}
	return b.Bytes(), nil
}

// drain reads what little may be left, so that the connection can be used again, and closes.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 4<<10)
	_ = body.Close()
}

// retryDelay says whether another try may do better than the error, and when.
func retryDelay(err error, try int) (time.Duration, bool) {
	delay := firstDelay << try
	delay = delay/2 + rand.N(delay/2+1)
	if errors.Is(err, ErrUnreachable) {
		return delay, true
	}
	var p *Problem
	if errors.As(err, &p) && p.Status == http.StatusServiceUnavailable {
		asked := time.Duration(p.RetryAfter) * time.Second
		return min(max(delay, asked), longestDelay), true
	}
	return 0, false
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
