package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Keys are made once: RSA takes its time.
var (
	rsaKey   = sync.OnceValue(func() crypto.Signer { k, _ := rsa.GenerateKey(rand.Reader, 2048); return k })
	otherRSA = sync.OnceValue(func() crypto.Signer { k, _ := rsa.GenerateKey(rand.Reader, 2048); return k })
	ecKey    = sync.OnceValue(func() crypto.Signer { k, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader); return k })
)

// provider is an issuer on this machine.
type provider struct {
	t   *testing.T
	url string

	mu     sync.Mutex
	public []jose.JSONWebKey
	down   func(w http.ResponseWriter, r *http.Request) // answers instead

	discovered, fetched atomic.Int32
}

func newProvider(t *testing.T, keys ...jose.JSONWebKey) *provider {
	p := &provider{t: t}
	p.publish(keys...)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		p.discovered.Add(1)
		p.answer(w, r, map[string]any{"issuer": p.url, "jwks_uri": p.url + "/keys"})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, r *http.Request) {
		p.fetched.Add(1)
		p.mu.Lock()
		set := jose.JSONWebKeySet{Keys: p.public}
		p.mu.Unlock()
		p.answer(w, r, set)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}

func (p *provider) answer(w http.ResponseWriter, r *http.Request, v any) {
	p.mu.Lock()
	down := p.down
	p.mu.Unlock()
	if down != nil {
		down(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// publish replaces the keys that the issuer says are its own.
func (p *provider) publish(keys ...jose.JSONWebKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.public = nil
	for _, k := range keys {
		p.public = append(p.public, k.Public())
	}
}

// fail makes the issuer answer that; nil heals it.
func (p *provider) fail(answer func(http.ResponseWriter, *http.Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = answer
}

func named(kid string, key any) jose.JSONWebKey { return jose.JSONWebKey{KeyID: kid, Key: key} }

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// claimsOf are those of a good token of the issuer, changed.
func claimsOf(issuer string, changes map[string]any) map[string]any {
	c := map[string]any{
		"iss": issuer, "aud": "https://errand.example", "sub": "1234", "azp": "1234", "email": "robot@project.iam.gserviceaccount.com",
		"email_verified": true, "iat": at.Unix(), "exp": at.Add(time.Hour).Unix(),
	}
	for name, value := range changes {
		if c[name] = value; value == nil {
			delete(c, name)
		}
	}
	return c
}

// jwt signs claims.
func jwt(t testing.TB, alg jose.SignatureAlgorithm, key any, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}
