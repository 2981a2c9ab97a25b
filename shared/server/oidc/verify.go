package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/errand-run/errand/shared/server"
)

// algorithms that sign with a key whose public half checks. There is no way to say "none", nor to make a public key a
// shared secret.
var algorithms = []string{
	oidc.RS256, oidc.ES256, oidc.RS384, oidc.RS512, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// issuer is a configured issuer at work.
type issuer struct {
	Issuer
	keys *keys
}

func newIssuer(i Issuer, o Options) *issuer {
	return &issuer{Issuer: i, keys: newKeys(i.Issuer, i.JWKSURL, o)}
}

// claims are what a token says, checked.
type claims struct {
	issuer   string
	subject  string
	email    string // "" unless the issuer has verified it
	doubtful string // an email that it has not verified
	hosted   string // the Workspace domain of a Google account
	groups   []string
	expires  time.Time
}

// verify checks a token's signature, audience and time. It fails with an error that wraps server.ErrNoPrincipal or
// server.ErrUndecided, and that repeats nothing of the token but names.
func (i *issuer) verify(ctx context.Context, token string, now time.Time) (*claims, error) {
	// 1. The signature, by a key of the issuer.
	check := &signature{keys: i.keys}
	verifier := oidc.NewVerifier(i.Issuer.Issuer, check, &oidc.Config{
		SupportedSigningAlgs: algorithms,
		SkipClientIDCheck:    true, // there may be several; below
		SkipExpiryCheck:      true, // without leeway; below
	})
	t, err := verifier.Verify(ctx, token)
	switch {
	case check.err != nil:
		return nil, check.err
	case err != nil:
		return nil, refuse("the token is not one that %s can have signed: malformed, or of another algorithm", i.Issuer.Issuer)
	}
	// 2. For whom.
	var said struct {
		Email     string          `json:"email"`
		Verified  json.RawMessage `json:"email_verified"`
		Party     string          `json:"azp"`
		Hosted    string          `json:"hd"`
		NotBefore float64         `json:"nbf"`
	}
	if err := t.Claims(&said); err != nil {
		return nil, refuse("the claims of the token have a wrong form")
	}
	if !slices.ContainsFunc(t.Audience, func(aud string) bool { return slices.Contains(i.Audiences, aud) }) {
		return nil, refuse("the token is for the audience %s; want %s", clip(fmt.Sprintf("%q", t.Audience)), strings.Join(i.Audiences, " or "))
	}
	switch parties := i.AuthorizedParties; {
	case parties != nil && !slices.Contains(parties, said.Party):
		return nil, refuse("the token was issued to %q (azp), which is none of the authorized parties", clip(said.Party))
	case parties == nil && len(t.Audience) > 1:
		return nil, refuse("the token is for several audiences, each of which could use it here; configure authorizedParties to say who may")
	}
	// 3. When.
	switch {
	case t.Expiry.IsZero():
		return nil, refuse("the token never expires")
	case !now.Before(t.Expiry.Add(skew)):
		return nil, refuse("the token expired at %s", t.Expiry.UTC().Format(time.RFC3339))
	case seconds(now.Add(skew)) < said.NotBefore, t.IssuedAt.After(now.Add(skew)):
		return nil, refuse("the token is not valid yet; does the clock of the issuer or of this server go wrong?")
	}
	// 4. Whose.
	if t.Subject == "" || len(t.Subject) > maxSubject || !printable(t.Subject) || !printable(said.Email) || len(said.Email) > maxSubject {
		return nil, refuse("the token has no subject, or one that cannot be a name")
	}
	c := &claims{issuer: i.Issuer.Issuer, subject: t.Subject, hosted: said.Hosted, expires: t.Expiry, groups: i.groups(t)}
	switch v := string(said.Verified); {
	case v == "true", v == `"true"`, v == "" && i.EmailsVerified:
		c.email = strings.ToLower(said.Email)
	default:
		c.doubtful = said.Email
	}
	return c, nil
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// groups are those that a token lists: a list of texts, or one.
func (i *issuer) groups(t *oidc.IDToken) []string {
	var all map[string]json.RawMessage
	if t.Claims(&all) != nil {
		return nil
	}
	raw := all[i.GroupsClaim]
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var several []string
	if json.Unmarshal(raw, &several) != nil {
		return nil
	}
	return several
}

// signature checks one token's and keeps why it failed: the library turns errors into texts.
type signature struct {
	keys *keys
	err  error
}

// VerifySignature implements the library's KeySet.
func (s *signature) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := s.keys.check(ctx, token)
	switch {
	case errors.Is(err, server.ErrUndecided):
		s.err = err
	case err != nil:
		s.err = refuse("the signature of the token is not by a key of %s", s.keys.issuer)
	}
	return payload, err
}
