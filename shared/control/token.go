package control

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
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

const (
	tokenIssuer  = "errand"
	keyID        = "signing-key"
	maxToken     = 4 << 10
	maxKnown     = 4096
	tokenPadding = time.Minute // a token outlives its attempt by the grace and this
)

// keySize is that of the key and of what HMAC-SHA256 makes with it, in bytes.
const keySize = 32

// claims of an attempt token: a JWT, HS256, that is good for one attempt of one run. Only control planes of one store
// check it, and they share the key; see docs/adr/0009-attempt-tokens-are-macs.md.
// It travels with every report, so it says nothing twice: the subject is the attempt's id.
type claims struct {
	jwt.RegisteredClaims
	Agent  string   `json:"agt"`
	Tenant string   `json:"ten"`
	Scopes []string `json:"scp,omitempty"`
}

// signer makes and checks attempt tokens. It remembers those that it made or checked, so that a busy worker costs one
// signature per attempt and no verification.
type signer struct {
	key    []byte
	macs   sync.Pool // of hash.Hash under the key
	parser *jwt.Parser

	mu    sync.Mutex
	known map[string]knownGrant
}

type knownGrant struct {
	Grant
	expires time.Time
}

// loadSigner uses the given key, or the one in the store, or makes one and keeps it there.
func loadSigner(ctx context.Context, st store.Store, key []byte) (*signer, error) {
	s := &signer{key: key, known: make(map[string]knownGrant), parser: jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithoutClaimsValidation())} // verify has the time
	for len(s.key) == 0 {
		doc, err := st.Get(ctx, store.KindMisc, keyID)
		switch {
		case err == nil:
			s.key = doc.Body
		case !errors.Is(err, store.ErrNotFound):
			return nil, fmt.Errorf("read the signing key: %w", err)
		default:
			fresh := make([]byte, keySize)
			_, _ = rand.Read(fresh)
			unit := store.Unit{Token: keyID, Writes: []store.Write{{Doc: store.Doc{Kind: store.KindMisc, ID: keyID, Version: 1, Body: fresh}}}}
			if err := st.Commit(ctx, []store.Unit{unit})[0]; err != nil && !errors.Is(err, store.ErrExists) {
				return nil, fmt.Errorf("keep a new signing key: %w", err)
			}
		}
	}
	if len(s.key) < keySize {
		return nil, fmt.Errorf("signing key has %d bytes, want %d at least", len(s.key), keySize)
	}
	s.macs.New = func() any { return hmac.New(sha256.New, s.key) }
	return s, nil
}

// header is that of every token of ours.
var header = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "."

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
	}{tokenIssuer, runtime.AttemptID(g.Run, g.N), expires.Unix(), g.Agent, g.Tenant, g.Scopes})
	if err != nil {
		return "", fmt.Errorf("sign the token of attempt %s: %w", runtime.AttemptID(g.Run, g.N), err)
	}
	b := make([]byte, 0, len(header)+base64.RawURLEncoding.EncodedLen(len(payload))+1+base64.RawURLEncoding.EncodedLen(keySize))
	b = base64.RawURLEncoding.AppendEncode(append(b, header...), payload)
	mac := s.macs.Get().(hash.Hash)
	mac.Reset()
	_, _ = mac.Write(b) // cannot fail
	var sum [keySize]byte
	b = base64.RawURLEncoding.AppendEncode(append(b, '.'), mac.Sum(sum[:0]))
	s.macs.Put(mac)
	token := string(b)
	s.remember(token, knownGrant{g, expires.Truncate(time.Second)}, now)
	return token, nil
}

// verify returns what a token allows, or an error wrapping ErrToken that does not repeat the token.
func (s *signer) verify(token string, now time.Time) (Grant, error) {
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
	_, err := s.parser.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return s.key, nil })
	if err != nil || c.Issuer != tokenIssuer {
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
	s.remember(token, knownGrant{g, c.ExpiresAt.Time}, now)
	return g, nil
}

func (s *signer) remember(token string, k knownGrant, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
