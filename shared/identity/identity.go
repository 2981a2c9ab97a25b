// Package identity proves who a workload is: it fetches the identity tokens that the platform gives a workload of its own
// service account, and keeps them for as long as they are good.
//
// Nothing here is configured with a secret, and tokens occur in no error and no log. The package imports the standard
// library only.
package identity

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// Source gives identity tokens. Safe for concurrent use.
type Source interface {
	// Token returns a token for an audience, by custom the URL of who is called. It is a bearer token, good for at least
	// some minutes more.
	Token(ctx context.Context, audience string) (string, error)
}

// EnvHost names the metadata server where it is not the platform's own: a host with an optional port.
const EnvHost = "GCE_METADATA_HOST"

// DefaultHost is the metadata server's address on the platform. Its name needs no DNS.
const DefaultHost = "169.254.169.254"

const (
	path = "/computeMetadata/v1/instance/service-accounts/default/identity"

	maxAudience  = 2 << 10
	maxToken     = 16 << 10
	maxAudiences = 1000 // kept at a time
	defaultFetch = 10 * time.Second
	maxTries     = 4
	firstPause   = 100 * time.Millisecond
	headerFlavor = "Metadata-Flavor"
	flavor       = "Google"
	// renewBefore is how long before its end a token is no longer handed out: a request may travel, and clocks differ.
	renewBefore = 5 * time.Minute
	// leastLeft is what a token must be good for when no new one can be had.
	leastLeft = time.Minute
)

// Errors that a caller may want to tell apart.
var (
	// ErrUnavailable: the metadata server was not reached, or answered as one that is not up yet. Trying later may help.
	ErrUnavailable = errors.New("metadata server is not available")
	// ErrRefused: the metadata server answered that there is no such token. Trying again does not help.
	ErrRefused = errors.New("metadata server gives no identity token")
)

// Options of Metadata. The zero value is right on the platform.
type Options struct {
	// Host is the metadata server, a host with an optional port; that of GCE_METADATA_HOST when empty, else DefaultHost.
	Host string
	// Now tells the time; time.Now when nil.
	Now func() time.Time
	// Timeout bounds a fetch with all its tries; 10s when 0.
	Timeout time.Duration
}

// Metadata is the platform's metadata server as a Source. A token is fetched when it is first asked for, kept until five
// minutes before it expires, and fetched once however many callers wait for it. Fetches are tried again, within their
// bound, while the server is unavailable, as it can be when a container has just started.
func Metadata(o Options) Source {
	host := o.Host
	if host == "" {
		host = os.Getenv(EnvHost)
	}
	if host == "" {
		host = DefaultHost
	}
	m := &metadata{host: host, now: o.Now, timeout: o.Timeout, audiences: make(map[string]*entry)}
	if m.now == nil {
		m.now = time.Now
	}
	if m.timeout <= 0 {
		m.timeout = defaultFetch
	}
	m.client = &http.Client{
		// No proxy: the server is on this machine, and a proxy must not see tokens.
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			ResponseHeaderTimeout:  5 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableKeepAlives:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return m
}

type metadata struct {
	host    string
	now     func() time.Time
	timeout time.Duration
	client  *http.Client

	mu        sync.Mutex
	audiences map[string]*entry
}

// entry is what is known for one audience.
type entry struct {
	token   string
	expires time.Time
	fetch   *fetch // under way; nil when none is
}

// fetch is one fetch that any number of callers wait for.
type fetch struct {
	done  chan struct{}
	token string
	err   error
}

func (m *metadata) Token(ctx context.Context, audience string) (string, error) {
	// 1. Refuse what the server would.
	if err := checkAudience(audience); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("identity token for %q: %w", audience, context.Cause(ctx))
	}
	// 2. A token that is good for a while, or the fetch under way, or a new one.
	m.mu.Lock()
	e := m.audiences[audience]
	if e != nil && e.token != "" && e.expires.Sub(m.now()) > renewBefore {
		m.mu.Unlock()
		return e.token, nil
	}
	if e == nil {
		if len(m.audiences) >= maxAudiences {
			m.evict()
		}
		e = &entry{}
		m.audiences[audience] = e
	}
	f := e.fetch
	if f == nil {
		f = &fetch{done: make(chan struct{})}
		e.fetch = f
		// On its own time: the caller that happened to be first must not end it for the others.
		go m.run(context.WithoutCancel(ctx), audience, e, f)
	}
	m.mu.Unlock()
	// 3. Wait.
	select {
	case <-f.done:
		return f.token, f.err
	case <-ctx.Done():
		return "", fmt.Errorf("identity token for %q: %w", audience, context.Cause(ctx))
	}
}

// evict makes room, of the tokens nobody fetches those first that end soonest. It is called with mu held.
func (m *metadata) evict() {
	var victim string
	var first time.Time
	for audience, e := range m.audiences {
		if e.fetch == nil && (victim == "" || e.expires.Before(first)) {
			victim, first = audience, e.expires
		}
	}
	delete(m.audiences, victim)
}

// run fetches a token and tells whoever waits. When that fails while an older token is still good, that one is given.
func (m *metadata) run(ctx context.Context, audience string, e *entry, f *fetch) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	token, expires, err := m.fetch(ctx, audience)
	m.mu.Lock()
	defer m.mu.Unlock()
	e.fetch = nil
	switch {
	case err == nil:
		e.token, e.expires = token, expires
		f.token = token
	case e.token != "" && e.expires.Sub(m.now()) > leastLeft:
		f.token = e.token
	default:
		e.token = ""
		f.err = fmt.Errorf("identity token for %q from %s: %w", audience, m.host, err)
	}
	close(f.done)
}

// fetch tries until there is a token, the server refuses for good, or ctx ends.
func (m *metadata) fetch(ctx context.Context, audience string) (string, time.Time, error) {
	pause := firstPause
	for try := 1; ; try++ {
		token, err := m.get(ctx, audience)
		if err == nil {
			expires, err := expiry(token)
			if err == nil && !expires.After(m.now()) {
				err = fmt.Errorf("%w: the token that it gave expired at %s", ErrRefused, expires.UTC().Format(time.RFC3339))
			}
			return token, expires, err
		}
		if !errors.Is(err, ErrUnavailable) || try == maxTries {
			return "", time.Time{}, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return "", time.Time{}, err
		}
		pause *= 3
	}
}

// get asks once.
func (m *metadata) get(ctx context.Context, audience string) (string, error) {
	target := url.URL{
		Scheme: "http", Host: m.host, Path: path,
		RawQuery: url.Values{"audience": {audience}, "format": {"full"}}.Encode(),
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return "", fmt.Errorf("%w: its address: want a host with an optional port (%s)", ErrRefused, EnvHost)
	}
	request.Header.Set(headerFlavor, flavor)
	response, err := m.client.Do(request)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, cause(err))
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxToken+1))
	switch status := response.StatusCode; {
	case status == http.StatusTooManyRequests || status >= 500:
		return "", fmt.Errorf("%w: status %d", ErrUnavailable, status)
	case status >= 300 && status < 400:
		return "", fmt.Errorf("%w: status %d: redirects are not followed, for they would take the request to somebody else", ErrRefused, status)
	case status == http.StatusNotFound:
		return "", fmt.Errorf("%w: status 404: has the workload a service account?", ErrRefused)
	case status != http.StatusOK:
		return "", fmt.Errorf("%w: status %d", ErrRefused, status)
	case response.Header.Get(headerFlavor) != flavor:
		// What answers in its place, such as the login page of a network, says something else or nothing.
		return "", fmt.Errorf("%w: the answer has no %s: %s: something else answers at this address", ErrRefused, headerFlavor, flavor)
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrUnavailable, cause(err))
	case len(body) > maxToken:
		return "", fmt.Errorf("%w: its answer is over %d bytes", ErrRefused, maxToken)
	}
	return strings.TrimSpace(string(body)), nil
}

// expiry reads when a token ends. Whether it is genuine is for whom it is shown to.
func expiry(token string) (time.Time, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}, fmt.Errorf("%w: its answer is no JSON web token: %d parts, want 3", ErrRefused, len(parts))
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: its answer is no JSON web token: the claims are not base64url", ErrRefused)
	}
	var claims struct {
		Expires float64 `json:"exp"`
	}
	// A number beyond what a time can hold is no time, and float64 would carry it into one that wraps.
	const latest = 253402300799 // 9999-12-31
	if err := json.Unmarshal(raw, &claims); err != nil || claims.Expires < 1 || claims.Expires > latest {
		return time.Time{}, fmt.Errorf("%w: its answer is no identity token: claim exp is missing, or no time in seconds", ErrRefused)
	}
	return time.Unix(int64(claims.Expires), 0), nil
}

// checkAudience refuses what no audience is.
func checkAudience(audience string) error {
	switch {
	case audience == "":
		return errors.New("identity token: the audience is empty; want the URL of who is called")
	case len(audience) > maxAudience:
		return fmt.Errorf("identity token: an audience of %d bytes; at most %d", len(audience), maxAudience)
	}
	for _, c := range []byte(audience) {
		if c <= ' ' || c >= 0x7f {
			return fmt.Errorf("identity token: audience %.80q has a blank or a character outside ASCII; want a URL", audience)
		}
	}
	return nil
}

// cause is an error of the HTTP client without the request's URL, which has been told already.
func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// OnPlatform reports whether the process runs where a metadata server vouches for it. A service, a job and a worker pool of
// Cloud Run are told by their variables, and GCE_METADATA_HOST names a server outright. An instance of Cloud Run has no
// variable of its own: there it is told by serverURL, whom the process calls. One that is https on another machine wants
// proof of who calls, and a process that was given none can have it from a metadata server alone.
func OnPlatform(getenv func(string) string, serverURL string) bool {
	for _, name := range []string{"K_SERVICE", "CLOUD_RUN_JOB", "CLOUD_RUN_WORKER_POOL", EnvHost} {
		if getenv(name) != "" {
			return true
		}
	}
	u, err := url.Parse(serverURL)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Hostname() == "localhost" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return ip == nil || !ip.IsLoopback()
}
