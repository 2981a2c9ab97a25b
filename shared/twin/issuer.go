package twin

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// issuer makes and checks identity tokens as Google's does: RS256, keys at an address that discovery tells.
type issuer struct {
	url  string // set before the first use
	life time.Duration
	key  *rsa.PrivateKey
	kid  string
	skew atomic.Int64 // nanoseconds by which the issuer's clock is ahead
}

func newIssuer(life time.Duration) (*issuer, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("make the issuer's key: %w", err)
	}
	sum := sha256.Sum256(key.N.Bytes())
	return &issuer{life: life, key: key, kid: fmt.Sprintf("%x", sum[:20])}, nil
}

// claims of an identity token of a service account.
type claims struct {
	jwt.RegisteredClaims
	AuthorizedParty string `json:"azp"`
	Email           string `json:"email"`
	EmailVerified   bool   `json:"email_verified"`
}

// subject is the number that stands for an account.
func subject(email string) string {
	sum := sha256.Sum256([]byte(email))
	return "1" + fmt.Sprintf("%020s", strconv.FormatUint(binary.BigEndian.Uint64(sum[:8]), 10))
}

const maxAudience = 2048

// mint makes a token of an account. Only with full does it tell the account's address.
func (i *issuer) mint(email, audience string, full bool) (string, error) {
	if audience == "" || len(audience) > maxAudience {
		return "", fmt.Errorf("make an identity token: an audience of %d bytes, want 1 to %d", len(audience), maxAudience)
	}
	now := time.Now().Add(time.Duration(i.skew.Load()))
	c := claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: i.url, Subject: subject(email), Audience: jwt.ClaimStrings{audience},
			IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(i.life)),
		},
		AuthorizedParty: subject(email),
	}
	if full {
		c.Email, c.EmailVerified = email, true
	}
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, singleAudience{c})
	token.Header["kid"] = i.kid
	return token.SignedString(i.key)
}

// singleAudience writes aud as a string, as Google's tokens have it.
type singleAudience struct{ claims }

func (s singleAudience) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		claims
		Audience string `json:"aud"`
	}{s.claims, s.Audience[0]})
}

// verify checks signature, issuer and time of a token, and that its audience is one of those given.
func (i *issuer) verify(token string, audiences []string) (claims, error) {
	var c claims
	_, err := jwt.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		if t.Header["kid"] != i.kid {
			return nil, fmt.Errorf("no key has the id %.80q", fmt.Sprint(t.Header["kid"]))
		}
		return &i.key.PublicKey, nil
	}, jwt.WithValidMethods([]string{"RS256"}), jwt.WithIssuer(i.url), jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
		jwt.WithAudience(audiences...))
	return c, err
}

// discovery answers /.well-known/openid-configuration.
func (i *issuer) discovery(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"issuer":                                i.url,
		"jwks_uri":                              i.url + "/oauth2/v3/certs",
		"response_types_supported":              []string{"id_token"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
		"claims_supported":                      []string{"aud", "azp", "email", "email_verified", "exp", "iat", "iss", "sub"},
	})
}

// keys answers with the public keys as a JSON Web Key Set.
func (i *issuer) keys(w http.ResponseWriter, _ *http.Request) {
	number := base64.RawURLEncoding.EncodeToString
	w.Header().Set("Cache-Control", "public, max-age=3600")
	writeJSON(w, http.StatusOK, map[string]any{"keys": []map[string]string{{
		"kty": "RSA", "alg": "RS256", "use": "sig", "kid": i.kid,
		"n": number(i.key.N.Bytes()), "e": number(big.NewInt(int64(i.key.E)).Bytes()),
	}}})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// Token is an identity token of an account for an audience, for callers that run outside the twin.
func (t *Twin) Token(account, audience string) (string, error) {
	return t.issuer.mint(account, audience, true)
}

// SkewTokens sets by how much the issuer's clock is ahead of this machine's (behind, when negative): iat and exp of all
// tokens from now on are shifted.
func (t *Twin) SkewTokens(by time.Duration) { t.issuer.skew.Store(int64(by)) }
