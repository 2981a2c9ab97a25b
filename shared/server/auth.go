package server

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/run"
)

// Role is what a principal may do.
type Role string

// The roles. Each may read; the rest is in the table of rights.
const (
	Viewer    Role = "viewer"
	Submitter Role = "submitter" // submits, cancels, retries and signals runs
	Approver  Role = "approver"  // decides what waits for a person
	Operator  Role = "operator"  // all of these, and the fleet
	Admin     Role = "admin"
	Worker    Role = "worker" // executes attempts, and reads nothing
	Edge      Role = "edge"   // ticks and hands in dead letters, as the functions of an installation do, and reads nothing
)

// Roles lists every role.
func Roles() []Role { return []Role{Viewer, Submitter, Approver, Operator, Admin, Worker, Edge} }

// right is what an operation asks for.
type right int

const (
	public   right = iota // nothing: health and the description of the interface
	view                  // read what belongs to one's tenants
	submit                // start, end and continue runs of one's tenants
	approve               // decide for one's tenants
	operate               // hold and release runs of one's tenants
	govern                // change the fleet, which all tenants share: needs all tenants
	work                  // lease and execute runs of any tenant: needs all tenants
	tend                  // tick, and hand in what a broker has given up, of any tenant: needs all tenants
	handBack              // give back an attempt whose hand-over came to nobody; its ticket says which
	attempt               // the token of the attempt itself
)

var rights = map[Role][]right{
	Viewer:    {view},
	Submitter: {view, submit},
	Approver:  {view, approve},
	Operator:  {view, submit, approve, operate, govern, work, tend, handBack},
	Admin:     {view, submit, approve, operate, govern, work, tend, handBack},
	Worker:    {work, handBack},
	Edge:      {tend, handBack},
}

// Principal is who asks.
type Principal struct {
	Name    string // in history and logs
	Role    Role
	Tenants []string // whose objects exist for it; nil for all
	Agents  []string // whose runs it may execute, of the right to execute any; nil for all
	Groups  []string // of people, as gates name them
	// EveryGroup: nobody says which groups it is in, and it counts as one of each.
	EveryGroup bool
}

// person is the principal as gates know it: in a higher role it is in those below as well.
func (p *Principal) person() run.Person {
	out := run.Person{Name: p.Name, Groups: p.Groups, AnyGroup: p.EveryGroup}
	for _, r := range Roles() {
		if !slices.ContainsFunc(rights[r], func(need right) bool { return !slices.Contains(rights[p.Role], need) }) && (r != Admin || p.Role == Admin) {
			out.Roles = append(out.Roles, string(r))
		}
	}
	return out
}

func (p *Principal) everywhere() bool { return p.Tenants == nil }

// sees reports whether a tenant's objects exist for the principal.
func (p *Principal) sees(tenant string) bool {
	return p.everywhere() || slices.Contains(p.Tenants, tenant)
}

// may returns nil, or the problem of a principal that lacks a right.
func (p *Principal) may(r right) error {
	if !slices.Contains(rights[p.Role], r) {
		return problem(http.StatusForbidden, api.CodeForbidden, "%s has the role %s, which does not allow this", p.Name, p.Role)
	}
	if (r == govern || r == work || r == tend || r == handBack) && !p.everywhere() {
		return problem(http.StatusForbidden, api.CodeForbidden, "%s is limited to tenants %s; this concerns all of them", p.Name, strings.Join(p.Tenants, ", "))
	}
	return nil
}

// mayExecute returns nil, or the problem of a principal that executes only runs of other agents. Whether it may execute
// at all is for may to say.
func (p *Principal) mayExecute(agents ...string) error {
	if p.Agents == nil {
		return nil
	}
	for _, a := range agents {
		if !slices.Contains(p.Agents, a) {
			return problem(http.StatusForbidden, api.CodeForbidden, "%s executes runs of %s alone, not of %s; its entry in the configuration lists its agents",
				p.Name, strings.Join(p.Agents, ", "), clip(a))
		}
	}
	return nil
}

// Check returns why the principal could not be what its configuration means, or nil.
func (p *Principal) Check() error {
	switch {
	case !slices.Contains(Roles(), p.Role):
		return fmt.Errorf("unknown role %q; want one of %v", p.Role, Roles())
	case p.Tenants != nil && len(p.Tenants) == 0:
		return errors.New("an empty list of tenants allows nothing; leave it out for all")
	case p.Role == Worker && p.Tenants != nil:
		return errors.New("a worker executes runs of all tenants; leave tenants out, and limit it by agents")
	case p.Role == Edge && p.Tenants != nil:
		return errors.New("what ticks and hands in dead letters is of all tenants; leave tenants out")
	case p.Agents != nil && len(p.Agents) == 0:
		return errors.New("an empty list of agents allows nothing; leave it out for all")
	case len(p.Groups) > maxGroups:
		return fmt.Errorf("%d groups; the limit is %d", len(p.Groups), maxGroups)
	case p.Agents != nil && p.Role != Worker:
		return fmt.Errorf("agents limit the role worker; the role %s takes none", p.Role)
	}
	for i, a := range p.Agents {
		if !isName.MatchString(a) {
			return fmt.Errorf("agents[%d]: %q is no agent's name", i, clip(a))
		}
	}
	return nil
}

// maxGroups bounds the groups that configuration gives a principal.
const maxGroups = 200

// Authenticator tells who a request comes from. Safe for concurrent use.
type Authenticator interface {
	// Authenticate returns the principal, or an error that repeats no secret and wraps ErrNoPrincipal, ErrUnknown or
	// ErrUndecided.
	Authenticate(r *http.Request) (Principal, error)
}

// Why there is no principal.
var (
	ErrNoPrincipal = errors.New("not authenticated")              // the request does not prove whose it is: 401
	ErrUnknown     = errors.New("not known here")                 // it does, and nothing is allowed to it: 403
	ErrUndecided   = errors.New("identity cannot be checked now") // what would prove it is out of reach: 503
)

// undecidedAgain is when a request that could not be decided is worth another try, in seconds.
const undecidedAgain = 2

// unidentified is the problem of a request without a principal.
func unidentified(err error) *api.Problem {
	switch {
	case errors.Is(err, ErrUnknown):
		return problem(http.StatusForbidden, api.CodeForbidden, "%v", err)
	case errors.Is(err, ErrUndecided):
		p := problem(http.StatusServiceUnavailable, api.CodeUnavailable, "%v", err)
		p.RetryAfter = undecidedAgain
		return p
	}
	return problem(http.StatusUnauthorized, api.CodeUnauthorized, "%v", err)
}

// Token is an API token as configuration holds it: hashed, so that whoever reads the configuration cannot use it.
type Token struct {
	Name    string   `json:"name"`   // of the principal
	SHA256  string   `json:"sha256"` // 64 hexadecimal digits; see HashToken
	Role    Role     `json:"role"`
	Tenants []string `json:"tenants,omitempty"` // nil for all
	Agents  []string `json:"agents,omitempty"`  // of a worker; nil for all
	Groups  []string `json:"groups,omitempty"`  // that gates may name
}

// MaxToken bounds a bearer token, in bytes.
const MaxToken = 4 << 10

// HashToken is the form in which a token is configured. Tokens must be random, of 128 bits or more: the hash is fast.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Tokens authenticates API tokens, sent as a bearer or, by browsers, as the password of basic authentication.
type Tokens struct {
	byHash map[[sha256.Size]byte]Principal
}

// NewTokens checks the configured tokens and makes an Authenticator of them.
func NewTokens(tokens []Token) (*Tokens, error) {
	t := &Tokens{byHash: make(map[[sha256.Size]byte]Principal, len(tokens))}
	for i, token := range tokens {
		var hash [sha256.Size]byte
		p := Principal{Name: token.Name, Role: token.Role, Tenants: slices.Clone(token.Tenants), Agents: slices.Clone(token.Agents), Groups: slices.Clone(token.Groups)}
		raw, err := hex.DecodeString(token.SHA256)
		switch {
		case token.Name == "":
			return nil, fmt.Errorf("token %d: name is missing", i+1)
		case err != nil || len(raw) != len(hash):
			return nil, fmt.Errorf("token %d (%s): sha256 must be 64 hexadecimal digits", i+1, token.Name)
		}
		if err := p.Check(); err != nil {
			return nil, fmt.Errorf("token %d (%s): %w", i+1, token.Name, err)
		}
		copy(hash[:], raw)
		if other, taken := t.byHash[hash]; taken {
			return nil, fmt.Errorf("token %d (%s): the same token as %s", i+1, token.Name, other.Name)
		}
		t.byHash[hash] = p
	}
	return t, nil
}

// Authenticate implements Authenticator. Tokens are compared by their hash, so time tells nothing of them.
func (t *Tokens) Authenticate(r *http.Request) (Principal, error) {
	token, ok := Bearer(r)
	if !ok {
		_, token, ok = r.BasicAuth()
	}
	if !ok || token == "" {
		return Principal{}, fmt.Errorf("%w: the request carries no token; send Authorization: Bearer TOKEN", ErrNoPrincipal)
	}
	if len(token) > MaxToken {
		return Principal{}, fmt.Errorf("%w: the token is longer than %d bytes", ErrNoPrincipal, MaxToken)
	}
	p, known := t.byHash[sha256.Sum256([]byte(token))]
	if !known {
		return Principal{}, fmt.Errorf("%w: the token is not known", ErrNoPrincipal)
	}
	return p, nil
}

// Bearer returns the bearer token of a request.
func Bearer(r *http.Request) (string, bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}

// loopback is everybody who reaches a server that listens on this machine alone.
type loopback struct{ name string }

// Authenticate takes a request's word for who asks, and in which groups: there is nobody else's.
func (l loopback) Authenticate(r *http.Request) (Principal, error) {
	p := Principal{Name: l.name, Role: Admin, EveryGroup: true}
	for _, h := range []struct {
		header string
		take   func(string)
	}{
		{api.HeaderAs, func(v string) { p.Name = v }},
		{api.HeaderGroups, func(v string) { p.Groups, p.EveryGroup = strings.Split(v, ","), false }},
	} {
		v := r.Header.Get(h.header)
		switch {
		case v == "":
		case len(v) > run.MaxName || strings.ContainsFunc(v, func(c rune) bool { return !unicode.IsPrint(c) }):
			return Principal{}, fmt.Errorf("%w: the header %s has no name of up to %d printable characters", ErrNoPrincipal, h.header, run.MaxName)
		default:
			h.take(v)
		}
	}
	return p, nil
}

// pretends reports whether a request says by itself who asks.
func pretends(r *http.Request) bool {
	return r.Header.Get(api.HeaderAs) != "" || r.Header.Get(api.HeaderGroups) != ""
}
