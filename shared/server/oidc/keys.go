package oidc

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/errand-run/errand/shared/server"
)

// How keys are kept.
const (
	keysFresh    = time.Hour        // then they are fetched again, beside the requests
	keysUsable   = 24 * time.Hour   // while the issuer is down
	againUnknown = 10 * time.Second // between fetches for the sake of keys that are not there
	firstBackoff = time.Second      // after a failed fetch, doubled by each further one
	longBackoff  = 30 * time.Second
	maxDocument  = 1 << 20 // bytes of what an issuer answers
	maxKeys      = 64
	minRSA       = 2048 // bits
	maxRSA       = 8192 // a check costs time with their square
)

// keys are the public keys of an issuer, fetched when they are needed.
type keys struct {
	issuer string
	client *http.Client
	o      Options

	mu      sync.Mutex
	url     string // of the keys; "" until it is discovered
	told    bool   // url is configured
	set     []jose.JSONWebKey
	fetched time.Time // zero before the first
	failed  int       // fetches in a row
	tryAt   time.Time // no fetch before
	flight  chan struct{}
}

func newKeys(issuer, jwksURL string, o Options) *keys {
	return &keys{issuer: issuer, url: jwksURL, told: jwksURL != "", o: o, client: &http.Client{
		Transport:     bounded{o.Transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("redirects are not followed") },
	}}
}

var (
	errNoKey     = errors.New("no key of the issuer")
	errSignature = errors.New("wrong signature")
)

// check returns a token's payload if one of the keys has signed it. An error that wraps server.ErrUndecided says that
// the keys are out of reach.
func (k *keys) check(ctx context.Context, token string) ([]byte, error) {
	jws, err := jose.ParseSignedCompact(token, signatureAlgorithms())
	if err != nil {
		return nil, err
	}
	header := jws.Signatures[0].Header
	for _, again := range []bool{false, true} {
		keys, err := k.find(ctx, header, again)
		if err != nil {
			return nil, err
		}
		for i := range keys {
			if payload, err := jws.Verify(keys[i].Key); err == nil {
				return payload, nil
			}
		}
		if header.KeyID != "" {
			break
		}
		// It names no key, so none is missing: it may be signed with a new one.
	}
	return nil, errSignature
}

var signatureAlgorithms = sync.OnceValue(func() (all []jose.SignatureAlgorithm) {
	for _, a := range algorithms {
		all = append(all, jose.SignatureAlgorithm(a))
	}
	return all
})

// find returns the keys that a token of that header can be checked with; again, when those there are did not.
func (k *keys) find(ctx context.Context, h jose.Header, again bool) ([]jose.JSONWebKey, error) {
	now := k.o.Clock()
	k.mu.Lock()
	// 1. What is known.
	found, age := k.matching(h), now.Sub(k.fetched)
	known := !k.fetched.IsZero() && age < keysUsable
	switch {
	case known && len(found) > 0 && !again:
		if age >= keysFresh && !k.backsOff(now) {
			k.fetch()
		}
		k.mu.Unlock()
		return found, nil
	// 2. A key that is not there may be new; that is asked once in a while, for anybody can make up its name.
	case known && k.failed == 0 && age >= 0 && age < againUnknown:
		k.mu.Unlock()
		return nil, errNoKey
	// 3. While the issuer fails, nobody waits for it except who tries again.
	case k.flight == nil && k.backsOff(now):
		k.mu.Unlock()
		return nil, k.outOfReach()
	}
	landed := k.fetch()
	k.mu.Unlock()
	select {
	case <-landed:
	case <-ctx.Done():
		return nil, k.outOfReach()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch found := k.matching(h); {
	case k.failed > 0:
		return nil, k.outOfReach()
	case len(found) == 0:
		return nil, errNoKey
	default:
		return found, nil
	}
}

// backsOff reports whether it is too early for another fetch after those that failed. A clock that was set back cannot
// make that longer than it ever is. mu is held.
func (k *keys) backsOff(now time.Time) bool {
	left := k.tryAt.Sub(now)
	return k.failed > 0 && left > 0 && left <= longBackoff
}

func (k *keys) outOfReach() error {
	return fmt.Errorf("%w: the keys of %s are out of reach; try again", server.ErrUndecided, k.issuer)
}

// matching are the keys that fit a header; all of the right kind when it names none.
func (k *keys) matching(h jose.Header) (found []jose.JSONWebKey) {
	for i := range k.set {
		key := &k.set[i]
		if (h.KeyID == "" || key.KeyID == h.KeyID) && (key.Algorithm == "" || key.Algorithm == h.Algorithm) {
			found = append(found, *key)
		}
	}
	return found
}

// fetch begins to fetch the keys unless that is under way, and returns what is closed when it has ended. mu is held.
func (k *keys) fetch() <-chan struct{} {
	if k.flight != nil {
		return k.flight
	}
	landed := make(chan struct{})
	k.flight = landed
	from := k.url
	go func() {
		// The request that caused it may leave; the others need the keys as much.
		ctx, cancel := context.WithTimeout(context.Background(), k.o.Timeout)
		defer cancel()
		set, from, err := k.download(ctx, from)
		now := k.o.Clock()
		k.mu.Lock()
		if err != nil {
			k.failed++
			k.tryAt = now.Add(min(firstBackoff<<min(k.failed-1, 10), longBackoff))
			if !k.told {
				k.url = "" // it may have moved
			}
		} else {
			k.set, k.url, k.fetched, k.failed = set, from, now, 0
		}
		failed := k.failed
		k.flight = nil
		k.mu.Unlock()
		close(landed)
		if err != nil {
			k.o.Logger.Warn("keys of an issuer cannot be fetched", slog.String("issuer", k.issuer), slog.Int("failures", failed), slog.String("error", clip(err.Error())))
		}
	}()
	return landed
}

// download asks the issuer where its keys are, unless that is known, and for the keys.
func (k *keys) download(ctx context.Context, from string) ([]jose.JSONWebKey, string, error) {
	if from == "" {
		provider, err := oidc.NewProvider(oidc.ClientContext(ctx, k.client), k.issuer)
		if err != nil {
			return nil, "", fmt.Errorf("discover: %w", err)
		}
		var document struct {
			Keys string `json:"jwks_uri"`
		}
		if err := provider.Claims(&document); err != nil {
			return nil, "", fmt.Errorf("discover: %w", err)
		}
		if err := safeURL(document.Keys); err != nil {
			return nil, "", fmt.Errorf("discover: jwks_uri: %w", err)
		}
		from = document.Keys
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, "", err
	}
	response, err := k.client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("GET %s answers %s", from, response.Status)
	}
	set, err := decodeKeys(response.Body)
	if err != nil {
		return nil, "", fmt.Errorf("GET %s: %w", from, err)
	}
	return set, from, nil
}

// decodeKeys reads a JSON Web Key Set. Keys that are of no use here are left out, as the standard has it.
func decodeKeys(body io.Reader) ([]jose.JSONWebKey, error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.NewDecoder(body).Decode(&document); err != nil {
		return nil, fmt.Errorf("no JSON Web Key Set: %w", err)
	}
	if len(document.Keys) > maxKeys {
		return nil, fmt.Errorf("%d keys; want %d at most", len(document.Keys), maxKeys)
	}
	var set []jose.JSONWebKey
	for _, raw := range document.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) == nil && key.Valid() && usable(&key) {
			set = append(set, key)
		}
	}
	if len(set) == 0 {
		return nil, errors.New("no public key to check signatures with")
	}
	return set, nil
}

func usable(k *jose.JSONWebKey) bool {
	if k.Use != "" && k.Use != "sig" {
		return false
	}
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		return key.N.BitLen() >= minRSA && key.N.BitLen() <= maxRSA
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// safeURL refuses what others could answer in the issuer's place: plain HTTP is for this machine alone.
func safeURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Fragment != "":
		return fmt.Errorf("%q is no URL like https://issuer.example", clip(text))
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()):
		return nil
	}
	return fmt.Errorf("%q is not https", clip(text))
}

// bounded cuts long answers off.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, maxDocument), response.Body}
	}
	return response, err
}
