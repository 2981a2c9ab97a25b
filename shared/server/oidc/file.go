package oidc

import (
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/server"
)

// Issuers that are known by name.
const (
	Google = "https://accounts.google.com"
	// IAP signs for Google's Identity-Aware Proxy. It has no discovery, a header of its own, and only emails that it has
	// verified without saying so: all three are defaults of its entry.
	IAP = "https://cloud.google.com/iap"

	googleBare = "accounts.google.com" // how Google writes itself in some tokens
	iapKeys    = "https://www.gstatic.com/iap/verify/public_key-jwk"
	iapHeader  = "X-Goog-Iap-Jwt-Assertion" // in the canonical form
)

// Limits of a File.
const (
	MaxIssuers    = 32
	MaxAudiences  = 64     // of an issuer
	MaxPrincipals = 10_000 // entries
	maxText       = 1024
)

// File says which issuers are believed and who may do what.
type File struct {
	Issuers    []Issuer       `json:"issuers"`
	Principals []Rule         `json:"principals"`
	Tokens     []server.Token `json:"tokens,omitempty"`
}

// Issuer signs tokens.
type Issuer struct {
	Issuer    string   `json:"issuer"`    // its URL, as tokens have it in iss
	Audiences []string `json:"audiences"` // aud of tokens that are meant for us: one of these
	// JWKSURL is where its keys are; asked of the issuer itself when empty.
	JWKSURL string `json:"jwksURL,omitempty"`
	// Header is where its tokens come in, instead of Authorization: Bearer.
	Header string `json:"header,omitempty"`
	// AuthorizedParties are the azp that are accepted; any when empty, and then of tokens for one audience only.
	AuthorizedParties []string `json:"authorizedParties,omitempty"`
	GroupsClaim       string   `json:"groupsClaim,omitempty"` // "groups"
	// GroupPrefix goes before its groups where gates name them. Where there are several issuers, those without one name
	// no groups to gates: what one calls finance is not what another does.
	GroupPrefix string `json:"groupPrefix,omitempty"`
	// EmailsVerified says that it signs only emails that it has verified, where it does not say so in email_verified.
	EmailsVerified bool `json:"emailsVerified,omitempty"`
}

// Rule gives an identity a role. It has exactly one of Email, EmailDomain, Subject and Group. The first that fits counts.
type Rule struct {
	Email       string      `json:"email,omitempty"`       // verified by the issuer
	EmailDomain string      `json:"emailDomain,omitempty"` // of a verified email
	Subject     string      `json:"subject,omitempty"`
	Group       string      `json:"group,omitempty"`
	Issuer      string      `json:"issuer,omitempty"` // any when empty
	Role        server.Role `json:"role"`
	Tenants     []string    `json:"tenants,omitempty"` // nil for all
	Agents      []string    `json:"agents,omitempty"`  // of a worker; nil for all
	Groups      []string    `json:"groups,omitempty"`  // that gates may name, besides those which its token lists
}

// Read reads a file in YAML or JSON; name appears in messages. A failure has every problem with file, line and column,
// and repeats nothing that stands under tokens.
func Read(name string, data io.Reader) (*File, error) {
	f := new(File)
	err := manifest.ReadPlain(manifest.File{Name: name, Data: data}, f)
	if issues, ok := errors.AsType[*manifest.Error](err); ok {
		for i := range issues.Issues {
			if n := &issues.Issues[i]; strings.HasPrefix(n.Path, "tokens") && strings.Contains(n.Message, " where ") {
				n.Message = "of another form than is wanted; want a list of {name: …, sha256: …, role: …, tenants: […]}"
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// SetDefaults fills in what is known of issuers.
func (f *File) SetDefaults() {
	for i := range f.Issuers {
		f.Issuers[i].setDefaults()
	}
}

func (i *Issuer) setDefaults() {
	if i.Issuer == IAP {
		if i.JWKSURL == "" {
			i.JWKSURL = iapKeys
		}
		if i.Header == "" {
			i.Header = iapHeader
		}
		i.EmailsVerified = true
	}
	if i.GroupsClaim == "" {
		i.GroupsClaim = "groups"
	}
}

// Validate returns every problem of the file.
func (f *File) Validate() []fleet.Problem {
	var problems []fleet.Problem
	add := func(path, format string, args ...any) {
		problems = append(problems, fleet.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	// 1. Who is believed.
	switch n := len(f.Issuers); {
	case n == 0:
		add("issuers", "required; say at least of one issuer for which audiences its tokens are")
	case n > MaxIssuers:
		add("issuers", "%d issuers; want at most %d", n, MaxIssuers)
	}
	seen := make(map[[2]string]int)
	var names []string
	for i := range f.Issuers {
		iss, at := &f.Issuers[i], fleet.At("issuers", i)
		iss.problems(at, add)
		place := [2]string{iss.Issuer, iss.place()}
		if first, taken := seen[place]; taken {
			add(fleet.At(at, "issuer"), "already given at issuers[%d]; list all audiences there, or say another header", first)
		} else {
			seen[place] = i
		}
		if !slices.Contains(names, iss.Issuer) {
			names = append(names, iss.Issuer)
		}
	}
	// 2. Who may do what.
	switch n := len(f.Principals); {
	case n == 0 && len(f.Issuers) > 0:
		add("principals", "required; without an entry nobody whom an issuer vouches for may do anything")
	case n > MaxPrincipals:
		add("principals", "%d entries; want at most %d", n, MaxPrincipals)
	}
	first := make(map[[5]string]int)
	for i := range f.Principals {
		r, at := &f.Principals[i], fleet.At("principals", i)
		r.problems(at, names, add)
		key := [5]string{strings.ToLower(r.Email), strings.ToLower(r.EmailDomain), r.Subject, r.Group, r.Issuer}
		if j, taken := first[key]; taken {
			add(at, "names the same as principals[%d], which comes first and counts; remove one", j)
		} else {
			first[key] = i
		}
	}
	// 3. API tokens beside.
	if _, err := server.NewTokens(f.Tokens); err != nil {
		add("tokens", "%v", err)
	}
	return problems
}

// place is the header in which tokens come in, "" for Authorization.
func (i *Issuer) place() string {
	if i.Header == "" && i.Issuer == IAP {
		return iapHeader
	}
	return textproto.CanonicalMIMEHeaderKey(i.Header)
}

type adder func(path, format string, args ...any)

func (i *Issuer) problems(at string, add adder) {
	if i.Issuer == "" {
		add(fleet.At(at, "issuer"), "required; write the URL that its tokens have in iss, such as %s", Google)
	} else if err := safeURL(i.Issuer); err != nil {
		add(fleet.At(at, "issuer"), "%v", err)
	}
	if i.JWKSURL != "" {
		if err := safeURL(i.JWKSURL); err != nil {
			add(fleet.At(at, "jwksURL"), "%v", err)
		}
	}
	switch n := len(i.Audiences); {
	case n == 0:
		add(fleet.At(at, "audiences"), "required; without it a token that was made for anybody else would be good here")
	case n > MaxAudiences:
		add(fleet.At(at, "audiences"), "%d audiences; want at most %d", n, MaxAudiences)
	}
	texts(fleet.At(at, "audiences"), i.Audiences, add)
	texts(fleet.At(at, "authorizedParties"), i.AuthorizedParties, add)
	if h := i.Header; h != "" && !isHeader(h) {
		add(fleet.At(at, "header"), "%q is no header that can carry a token; want one such as X-Goog-IAP-JWT-Assertion, or leave it out for Authorization: Bearer", clip(h))
	}
}

// isHeader reports whether a header can carry nothing but a token.
func isHeader(h string) bool {
	if len(h) > 64 || strings.ContainsFunc(h, func(r rune) bool {
		return !(r == '-' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z')
	}) {
		return false
	}
	switch textproto.CanonicalMIMEHeaderKey(h) {
	case "Authorization", "Cookie", "Host", "Origin", "Content-Type", "Content-Length":
		return false
	}
	return true
}

func texts(at string, all []string, add adder) {
	for i, text := range all {
		if text == "" || len(text) > maxText || !printable(text) {
			add(fleet.At(at, i), "want a text of 1 to %d printable characters", maxText)
		}
	}
}

func (r *Rule) problems(at string, issuers []string, add adder) {
	// 1. Whom it names: one way of four.
	given := 0
	for _, w := range []struct{ field, value string }{
		{"email", r.Email}, {"emailDomain", r.EmailDomain}, {"subject", r.Subject}, {"group", r.Group},
	} {
		if w.value == "" {
			continue
		}
		given++
		texts(fleet.At(at, w.field), []string{w.value}, func(_, format string, args ...any) { add(fleet.At(at, w.field), format, args...) })
	}
	user, domain, isEmail := strings.Cut(r.Email, "@")
	switch {
	case given != 1:
		add(at, "names %d of email, emailDomain, subject and group; want exactly one", given)
	case r.Email != "" && (!isEmail || user == "" || domain == ""):
		add(fleet.At(at, "email"), "%q is no email address", clip(r.Email))
	case strings.Contains(r.EmailDomain, "@") || strings.HasPrefix(r.EmailDomain, ".") || strings.Contains(r.EmailDomain, "*"):
		add(fleet.At(at, "emailDomain"), "%q is no domain; write it like example.com, without its subdomains", clip(r.EmailDomain))
	}
	// 2. Who vouches for it.
	switch {
	case r.Issuer != "" && !slices.Contains(issuers, r.Issuer):
		add(fleet.At(at, "issuer"), "%q is none of the issuers", clip(r.Issuer))
	case r.Issuer == "" && len(issuers) > 1 && (r.Subject != "" || r.Group != ""):
		add(fleet.At(at, "issuer"), "required: subjects and groups mean something within their issuer alone, and there are %d", len(issuers))
	}
	// 3. What it may do.
	p := server.Principal{Role: r.Role, Tenants: r.Tenants, Agents: r.Agents, Groups: r.Groups}
	if err := p.Check(); err != nil {
		add(fleet.At(at, "role"), "%v", err)
	}
	texts(fleet.At(at, "tenants"), r.Tenants, add)
	texts(fleet.At(at, "groups"), r.Groups, add)
}
