package control

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// ErrToken is wrapped by Verify for every token that is not good now.
var ErrToken = errors.New("attempt token is not valid")

// TokenIssuer is the iss of every attempt token.
const TokenIssuer = "errand"

const (
	maxToken     = 4 << 10
	maxKnown     = 4096
	tokenPadding = time.Minute // a token outlives its attempt by the grace and this
)

// claims of an attempt token: a JWT, HS256, that is good for one attempt of one run. Only control planes of one store
// check it, and they share the key; see docs/adr/0009-attempt-tokens-are-macs.md.
// It travels with every report, so it says nothing twice: the subject is the attempt's id.
type claims struct {
	jwt.RegisteredClaims
	Agent  string   `json:"agt"`
	Tenant string   `json:"ten"`
	Scopes []string `json:"scp,omitempty"`
}

// signer makes and checks attempt tokens and tickets. It remembers the tokens that it made or checked, so that a busy
// worker costs one signature per attempt and no verification.
type signer struct {
	keys   *keys
	clock  func() time.Time
	parser *jwt.Parser

	mu    sync.Mutex
	known map[string]knownGrant
}

type knownGrant struct {
	Grant
	expires time.Time
}

// loadSigner signs with the keys of the source or, when it is nil, with one that is kept in the store.
func loadSigner(ctx context.Context, st store.Store, source func() ([][]byte, error), clock func() time.Time, log *slog.Logger) (*signer, error) {
	keys, err := loadKeys(ctx, st, source, clock(), log)
	if err != nil {
		return nil, err
	}
	s := newSigner(keys, clock)
	keys.changed = s.forget
	return s, nil
}

func newSigner(keys *keys, clock func() time.Time) *signer {
	return &signer{keys: keys, clock: clock, known: make(map[string]knownGrant), parser: jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithoutClaimsValidation())} // verify has the time
}

// sign makes the token of an attempt that is good until expires. The library checks tokens. Making one with it took a
// seventh of all that a run costs this package; writing it down takes a tenth of that.
func (s *signer) sign(g Grant, now, expires time.Time) (string, error) {
	payload, err := json.Marshal(struct {
		Issuer  string   `json:"iss"`
		Subject string   `json:"sub"`
		Expires int64    `json:"exp"`
		Agent   string   `json:"agt"`
		Tenant  string   `json:"ten"`
		Scopes  []string `json:"scp,omitempty"`
	}{TokenIssuer, runtime.AttemptID(g.Run, g.N), expires.Unix(), g.Agent, g.Tenant, g.Scopes})
	if err != nil {
		return "", fmt.Errorf("sign the token of attempt %s: %w", runtime.AttemptID(g.Run, g.N), err)
	}
	ring := s.keys.at(now)
	k := ring.keys[0]
	b := make([]byte, 0, len(k.header)+base64.RawURLEncoding.EncodedLen(len(payload))+1+base64.RawURLEncoding.EncodedLen(keySize))
	b = base64.RawURLEncoding.AppendEncode(append(b, k.header...), payload)
	sum := k.mac(b)
	b = base64.RawURLEncoding.AppendEncode(append(b, '.'), sum[:])
	token := string(b)
	s.remember(ring, token, knownGrant{g, expires.Truncate(time.Second)}, now)
	return token, nil
}

// verify returns what a token allows, or an error wrapping ErrToken that does not repeat the token.
func (s *signer) verify(token string, now time.Time) (Grant, error) {
	ring := s.keys.at(now)
	s.mu.Lock()
	k, ok := s.known[token]
	s.mu.Unlock()
	if ok && now.Before(k.expires) {
		return k.Grant, nil
	}
	if len(token) > maxToken {
		return Grant{}, fmt.Errorf("%w: longer than %d bytes", ErrToken, maxToken)
	}
	var c claims
	_, err := s.parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) { return ring.verifies(t.Header) })
	if err != nil || c.Issuer != TokenIssuer {
		return Grant{}, fmt.Errorf("%w: not signed by this control plane", ErrToken)
	}
	id, n, err := runtime.ParseAttemptID(c.Subject)
	switch {
	case err != nil || c.ExpiresAt == nil:
		return Grant{}, fmt.Errorf("%w: it names no attempt, or no end", ErrToken)
	case !now.Before(c.ExpiresAt.Time):
		return Grant{}, fmt.Errorf("%w: it has expired", ErrToken)
	}
	g := Grant{Run: id, N: n, Agent: c.Agent, Tenant: c.Tenant, Scopes: c.Scopes}
	s.remember(ring, token, knownGrant{g, c.ExpiresAt.Time}, now)
	return g, nil
}

// verifies returns what a token of that header is checked with: the key that it names or, where it names none, each.
func (r *keyring) verifies(header map[string]any) (any, error) {
	kid, named := header["kid"]
	if !named {
		if len(r.keys) == 1 {
			return r.keys[0].secret, nil
		}
		set := jwt.VerificationKeySet{Keys: make([]jwt.VerificationKey, 0, len(r.keys))}
		for _, k := range r.keys {
			set.Keys = append(set.Keys, k.secret)
		}
		return set, nil
	}
	if id, ok := kid.(string); ok && id != "" {
		if k := r.byID(id); k != nil {
			return k.secret, nil
		}
	}
	return nil, ErrToken
}

// forget drops what was checked with keys that may be gone.
func (s *signer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
}

// remember keeps what was signed or checked with the ring, unless that is no longer in use.
func (s *signer) remember(ring *keyring, token string, k knownGrant, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys.ring.Load() != ring {
		return
	}
	if len(s.known) >= maxKnown {
		for t, old := range s.known { // Go ranges over maps in no order: a cheap random eviction
			if delete(s.known, t); len(s.known) < maxKnown*9/10 || old.expires.Before(now) {
				break
			}
		}
	}
	s.known[token] = k
}

// Verify returns what an attempt token allows. It does not say whether the attempt still holds its run: every report
// is fenced for itself.
func (p *Plane) Verify(token string) (Grant, error) { return p.signs.verify(token, p.cfg.Clock()) }

// grant is what the agent's permissions allow its attempts.
func grant(r *run.Record, a *fleet.Agent) Grant {
	g := Grant{Run: r.ID, N: r.Attempt, Agent: r.Agent, Tenant: r.Tenant}
	for _, e := range a.Permissions.Effects {
		g.Scopes = append(g.Scopes, "effect:"+e)
	}
	for _, e := range a.Permissions.State {
		g.Scopes = append(g.Scopes, "state:"+e)
	}
	for _, e := range a.Permissions.Call {
		g.Scopes = append(g.Scopes, "call:"+e)
	}
	slices.Sort(g.Scopes)
	return g
}

// tokenExpiry is when an attempt's token becomes worthless.
func (p *Plane) tokenExpiry(deadline run.Instant) time.Time {
	return deadline.Add(p.cfg.Grace + p.cfg.WorkerLease + tokenPadding).Time()
}
