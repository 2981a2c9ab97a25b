// Package oidc tells who asks by tokens of OpenID Connect: the ID tokens of service accounts and people, and the signed
// assertions that a proxy such as Google's IAP puts into a header. API tokens work beside them.
//
// It is configured by a File. Issuers are asked for their keys when they are needed for the first time, never at the
// start: a control process starts while an issuer is down, and lets in whoever it can tell.
package oidc

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/server"
)

// Limits.
const (
	// MaxToken bounds an ID token, in bytes: some list every group of a person.
	MaxToken = 16 << 10

	skew       = time.Minute      // by which clocks may differ
	remember   = 10 * time.Minute // without another look at the keys
	maxKnown   = 4096             // tokens remembered
	maxSubject = 255              // bytes of a subject, as the standard has it
)

// Options of an Authenticator. Each has a default.
type Options struct {
	Clock func() time.Time
	// Transport reaches issuers; http.DefaultTransport.
	Transport http.RoundTripper
	// Timeout is that of asking an issuer for its keys, and so the longest that a request waits; 3 s.
	Timeout time.Duration
	Logger  *slog.Logger
}

// Authenticator is a server.Authenticator. Safe for concurrent use.
type Authenticator struct {
	o       Options
	file    *File
	tokens  *server.Tokens
	issuers []*issuer
	headers []string // where assertions come in

	mu    sync.Mutex
	known map[[sha256.Size]byte]remembered
}

// remembered is what a token said that was checked.
type remembered struct {
	who   server.Principal
	err   error // wraps server.ErrUnknown
	until time.Time
}

// New makes an Authenticator of a file, whose defaults it fills in. The file must not be changed afterwards.
func New(f *File, o Options) (*Authenticator, error) {
	if problems := f.Validate(); len(problems) > 0 {
		return nil, fmt.Errorf("configure identity: %s", problems[0])
	}
	f.SetDefaults()
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Transport == nil {
		o.Transport = http.DefaultTransport
	}
	if o.Timeout <= 0 {
		o.Timeout = 3 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	tokens, err := server.NewTokens(f.Tokens)
	if err != nil {
		return nil, fmt.Errorf("configure identity: %w", err)
	}
	a := &Authenticator{o: o, file: f, tokens: tokens, known: make(map[[sha256.Size]byte]remembered)}
	for i := range f.Issuers {
		a.issuers = append(a.issuers, newIssuer(f.Issuers[i], o))
		if h := f.Issuers[i].place(); h != "" && !slices.Contains(a.headers, h) {
			a.headers = append(a.headers, h)
		}
	}
	return a, nil
}

// Authenticate implements server.Authenticator. A request may carry several proofs, such as the bearer token of its
// caller and the assertion of a proxy before us: the first that is good counts.
func (a *Authenticator) Authenticate(r *http.Request) (server.Principal, error) {
	// 1. API tokens, which cost a hash.
	p, err := a.tokens.Authenticate(r)
	if err == nil {
		return p, nil
	}
	// 2. What issuers have signed.
	var refused error
	try := func(header, token string) bool {
		p, err = a.identify(r.Context(), header, token)
		if refused == nil || errors.Is(refused, server.ErrNoPrincipal) {
			refused = err
		}
		return err == nil
	}
	if token, ok := server.Bearer(r); ok && token != "" && try("", token) {
		return p, nil
	}
	for _, h := range a.headers {
		if token := r.Header.Get(h); token != "" && try(h, token) {
			return p, nil
		}
	}
	if refused != nil {
		return server.Principal{}, refused
	}
	if _, _, basic := r.BasicAuth(); basic {
		return server.Principal{}, err // about an API token
	}
	return server.Principal{}, fmt.Errorf("%w: the request carries no token; send Authorization: Bearer with an ID token of a configured issuer, or with an API token", server.ErrNoPrincipal)
}

// identify tells whose a token is that came in a header, "" for Authorization.
func (a *Authenticator) identify(ctx context.Context, header, token string) (server.Principal, error) {
	// 1. Most requests come with a token that was checked before.
	if len(token) > MaxToken {
		return server.Principal{}, refuse("the token is longer than %d bytes", MaxToken)
	}
	now := a.o.Clock()
	key := sha256.Sum256([]byte(header + "\x00" + token))
	a.mu.Lock()
	k, ok := a.known[key]
	a.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.who, k.err
	}
	// 2. Who says so. What is read here is believed once the signature is checked.
	name, err := peek(token)
	if err != nil {
		return server.Principal{}, err
	}
	iss := a.issuer(name, header)
	if iss == nil {
		return server.Principal{}, refuse("no issuer %q is configured%s", clip(name), inHeader(header))
	}
	// 3. Whether it is true, meant for us, and so now.
	c, err := iss.verify(ctx, token, now)
	if err != nil {
		return server.Principal{}, err
	}
	// 4. What it is allowed to do.
	k = remembered{until: now.Add(remember)}
	if end := c.expires.Add(skew); end.Before(k.until) {
		k.until = end
	}
	k.who, k.err = a.file.principal(c)
	a.keep(key, k, now)
	return k.who, k.err
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{server.ErrNoPrincipal}, args...)...)
}

func inHeader(header string) string {
	if header == "" {
		return ""
	}
	return " for the header " + header
}

// cloudRun is what the platform puts in the place of a signature that it has checked itself.
const cloudRun = "SIGNATURE_REMOVED_BY_GOOGLE"

// peek returns the issuer that a token names, unchecked.
func peek(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", refuse("the token is neither a known API token nor a JWT")
	}
	if parts[2] == cloudRun {
		return "", refuse("Cloud Run has taken the signature off the token; send the platform's own in X-Serverless-Authorization, or let it not check callers")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	var c struct {
		Issuer string `json:"iss"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil || c.Issuer == "" {
		return "", refuse("the token is neither a known API token nor a JWT that names its issuer")
	}
	return c.Issuer, nil
}

func (a *Authenticator) issuer(name, header string) *issuer {
	if name == googleBare {
		name = Google
	}
	for _, i := range a.issuers {
		if i.Issuer.Issuer == name && i.place() == header {
			return i
		}
	}
	return nil
}

// keep remembers what a token said, and forgets others when there are too many.
func (a *Authenticator) keep(key [sha256.Size]byte, k remembered, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= maxKnown {
		for t, old := range a.known { // in no order: a cheap random eviction
			if delete(a.known, t); len(a.known) < maxKnown*9/10 || old.until.Before(now) {
				break
			}
		}
	}
	a.known[key] = k
}

// clip bounds what a message repeats of a token's claims.
func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
