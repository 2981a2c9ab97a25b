package oidc

import (
	"fmt"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/server"
)

// principal is what the file makes of an identity, or an error that wraps server.ErrUnknown.
func (f *File) principal(c *claims) (server.Principal, error) {
	for i := range f.Principals {
		if r := &f.Principals[i]; r.fits(c) {
			return server.Principal{Name: c.name(), Role: r.Role, Tenants: r.Tenants, Agents: r.Agents, Groups: f.groupsOf(c, r)}, nil
		}
	}
	hint := ""
	if c.doubtful != "" {
		hint = fmt.Sprintf("; its email %s does not count, as the issuer does not say that it is verified", clip(c.doubtful))
	}
	return server.Principal{}, fmt.Errorf("%w: %s of %s has no entry among the principals of this server%s", server.ErrUnknown, clip(c.name()), c.issuer, hint)
}

// maxGroups bounds the groups of a token that gates may name.
const maxGroups = 1000

// groupsOf are the groups of an identity, as gates may name them.
func (f *File) groupsOf(c *claims, r *Rule) []string {
	groups := slices.Clone(r.Groups)
	prefix, counts := "", len(f.Issuers) == 1
	for i := range f.Issuers {
		if f.Issuers[i].Issuer == c.issuer && f.Issuers[i].GroupPrefix != "" {
			prefix, counts = f.Issuers[i].GroupPrefix, true
		}
	}
	if !counts {
		return groups
	}
	for _, g := range c.groups[:min(len(c.groups), maxGroups)] {
		groups = append(groups, prefix+g)
	}
	return groups
}

// name is what history shows: the email or, without a verified one, the subject.
func (c *claims) name() string {
	if c.email != "" {
		return c.email
	}
	return c.subject
}

func (r *Rule) fits(c *claims) bool {
	switch {
	case r.Issuer != "" && r.Issuer != c.issuer:
		return false
	case r.Email != "":
		return c.email != "" && strings.EqualFold(r.Email, c.email)
	case r.EmailDomain != "":
		return c.within(strings.ToLower(r.EmailDomain))
	case r.Subject != "":
		return r.Subject == c.subject
	default:
		return slices.Contains(c.groups, r.Group)
	}
}

// serviceAccounts is the end of the domains of service accounts, which Google alone gives out.
const serviceAccounts = ".gserviceaccount.com"

// within reports whether the email belongs to a domain. For a person's account Google verifies an address once, and
// keeps it after its owner has left the domain; what it says of today is the Workspace domain in hd.
func (c *claims) within(domain string) bool {
	_, of, _ := strings.Cut(c.email, "@")
	if c.email == "" || of != domain {
		return false
	}
	return c.issuer != Google || strings.HasSuffix(domain, serviceAccounts) || strings.EqualFold(c.hosted, domain)
}
