package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/errand-run/errand/shared/signature"
)

// Bounds of a delivery.
const (
	tries        = 3
	tryTimeout   = 8 * time.Second
	firstPause   = 500 * time.Millisecond
	longestPause = 4 * time.Second // of what a Retry-After may ask for: the broker waits longer ones out
	maxAnswer    = 64 << 10
)

// sender posts signed bodies to one address.
type sender struct {
	url   *url.URL
	keys  func() ([][]byte, error)
	http  *http.Client
	now   func() time.Time
	pause func(ctx context.Context, d time.Duration) error
}

func newSender(u *url.URL, keys func() ([][]byte, error), private bool) *sender {
	dialer := &net.Dialer{Timeout: 3 * time.Second}
	if !private {
		// On the address that is dialed, after the name is resolved: a name may lead anywhere, and elsewhere a moment later.
		dialer.Control = func(_, address string, _ syscall.RawConn) error { return public(address) }
	}
	return &sender{
		url: u, keys: keys, now: time.Now, pause: pause,
		http: &http.Client{
			Transport: &http.Transport{
				// No proxy: it would dial where we may not.
				DialContext: dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: tryTimeout,
				MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       tryTimeout,
		},
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errPrivate: the webhook's name leads into a network that outsiders have no business in.
var errPrivate = errors.New("the address is not a public one; ERRAND_NOTIFY_PRIVATE=true allows it")

// reserved are networks that netip has no word for.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("100::/64"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

// public refuses addresses of this machine, of private networks, and those that stand for others.
func public(address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return errPrivate
	}
	ip := ap.Addr().Unmap().WithZone("")
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
		return errPrivate
	}
	for _, p := range reserved {
		if p.Contains(ip) {
			return errPrivate
		}
	}
	return nil
}

// failure is a delivery that did not succeed.
type failure struct {
	hopeless bool // another try would be answered alike
	cause    error
}

func (f *failure) Error() string { return f.cause.Error() }

// send posts a body until it is taken, a few times. Every try is signed at its own time, by every key. The error is a
// *failure, and holds nothing of the address: webhooks keep their secret there.
func (s *sender) send(ctx context.Context, id string, body []byte) error {
	keys, err := s.keys()
	if err != nil {
		return &failure{cause: fmt.Errorf("read the keys of ERRAND_NOTIFY_KEYS: %w", err)}
	}
	for try := 1; ; try++ {
		wait, err := s.try(ctx, id, body, keys)
		if err == nil {
			return nil
		}
		if f := new(failure); errors.As(err, &f) && f.hopeless || try == tries {
			return err
		}
		wait = min(max(wait, firstPause<<(try-1)), longestPause)
		if s.pause(ctx, wait) != nil {
			return err
		}
	}
}

func (s *sender) try(ctx context.Context, id string, body []byte, keys [][]byte) (wait time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url.String(), bytes.NewReader(body))
	if err != nil {
		return 0, &failure{true, errors.New("ERRAND_NOTIFY_URL is no address that can be posted to")}
	}
	timestamp, signed := signature.Sign(keys, s.now(), body)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "errand-notify")
	req.Header.Set("X-Errand-Event", id) // the receiver's to tell repeats by
	req.Header.Set(signature.Timestamp, timestamp)
	req.Header.Set(signature.Header, signed)
	resp, err := s.http.Do(req)
	if err != nil {
		if u := new(url.Error); errors.As(err, &u) {
			err = u.Err
		}
		return 0, &failure{errors.Is(err, errPrivate), fmt.Errorf("post to the webhook: %w", withoutAddress(err))}
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	switch code := resp.StatusCode; {
	case code < 300:
		return 0, nil
	case code == http.StatusRequestTimeout || code == http.StatusTooEarly || code == http.StatusTooManyRequests || code >= 500 && code != http.StatusNotImplemented:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return time.Duration(min(max(seconds, 0), 3600)) * time.Second, &failure{cause: fmt.Errorf("the webhook answered %d", code)}
	case code < 400:
		return 0, &failure{true, fmt.Errorf("the webhook answered %d, a redirect, which is not followed", code)}
	default:
		return 0, &failure{true, fmt.Errorf("the webhook answered %d", code)}
	}
}

// withoutAddress drops what names a host.
func withoutAddress(err error) error {
	var dns *net.DNSError
	switch op := new(net.OpError); {
	case errors.Is(err, errPrivate):
		return errPrivate
	case errors.As(err, &dns):
		return errors.New("its host's name is not resolved")
	case errors.As(err, &op):
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}
