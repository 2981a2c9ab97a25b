package oidc

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/server"
)

// clock is set by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newAuth(t testing.TB, f *File, c *clock) *Authenticator {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	a, err := New(f, Options{Clock: c.Now, Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// request carries headers, by pairs of name and value.
func request(headers ...string) *http.Request {
	r, _ := http.NewRequest(http.MethodGet, "/v1/runs", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func bearer(token string) *http.Request { return request("Authorization", "Bearer "+token) }

const robot = "robot@project.iam.gserviceaccount.com"

func TestWhoIsLetIn(t *testing.T) {
	p := newProvider(t, named("rsa", rsaKey()), named("ec", ecKey()))
	second := newProvider(t, named("rsa", otherRSA()))
	front := newProvider(t, named("ec", ecKey()))
	a := newAuth(t, &File{
		Issuers: []Issuer{
			{Issuer: p.url, Audiences: []string{"https://errand.example", "errand"}},
			{Issuer: second.url, Audiences: []string{"second"}, AuthorizedParties: []string{"app"}, GroupsClaim: "roles"},
			{Issuer: front.url, Audiences: []string{"/projects/1/services/errand"}, Header: "X-Goog-IAP-JWT-Assertion", EmailsVerified: true},
		},
		Principals: []Rule{
			{Email: "Robot@Project.iam.gserviceaccount.com", Issuer: p.url, Role: server.Worker, Agents: []string{"echo"}},
			{Subject: "push", Issuer: p.url, Role: server.Submitter, Tenants: []string{"acme"}},
			{Group: "operators", Issuer: second.url, Role: server.Operator},
			{EmailDomain: "example.com", Role: server.Viewer},
		},
		Tokens: []server.Token{{Name: "ada", SHA256: server.HashToken("sesame"), Role: server.Admin}},
	}, &clock{now: at})

	rs := func(changes map[string]any) string {
		return jwt(t, jose.RS256, named("rsa", rsaKey()), claimsOf(p.url, changes))
	}
	of2 := func(changes map[string]any) string {
		c := claimsOf(second.url, map[string]any{"aud": "second", "azp": "app", "sub": "eve", "email": nil, "email_verified": nil})
		for name, v := range changes {
			c[name] = v
		}
		return jwt(t, jose.RS256, named("rsa", otherRSA()), c)
	}
	assertion := func(changes map[string]any) string {
		c := claimsOf(front.url, map[string]any{"aud": "/projects/1/services/errand", "sub": "accounts.google.com:7", "email": "vera@example.com", "email_verified": nil, "azp": nil})
		for name, v := range changes {
			c[name] = v
		}
		return jwt(t, jose.ES256, named("ec", ecKey()), c)
	}
	good := rs(nil)
	parts := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + "."
	der, err := x509.MarshalPKIXPublicKey(rsaKey().Public())
	if err != nil {
		t.Fatal(err)
	}
	asPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	confused := jwt(t, jose.HS256, named("rsa", asPEM), claimsOf(p.url, nil))
	worker := server.Principal{Name: robot, Role: server.Worker, Agents: []string{"echo"}}
	viewer := server.Principal{Name: "vera@example.com", Role: server.Viewer}

	for name, c := range map[string]struct {
		request *http.Request
		want    server.Principal
		err     error
		says    string
	}{
		"a service account by its email, in any case":   {bearer(good), worker, nil, ""},
		"the same again, remembered":                    {bearer(good), worker, nil, ""},
		"a token signed with ES256":                     {bearer(jwt(t, jose.ES256, named("ec", ecKey()), claimsOf(p.url, nil))), worker, nil, ""},
		"a token that names no key":                     {bearer(jwt(t, jose.RS256, rsaKey(), claimsOf(p.url, nil))), worker, nil, ""},
		"the other audience":                            {bearer(rs(map[string]any{"aud": []string{"errand"}})), worker, nil, ""},
		"a subject, whose email is of nobody":           {bearer(rs(map[string]any{"sub": "push", "email": "push@elsewhere.test"})), server.Principal{Name: "push@elsewhere.test", Role: server.Submitter, Tenants: []string{"acme"}}, nil, ""},
		"a subject without an email is named by itself": {bearer(rs(map[string]any{"sub": "push", "email": nil})), server.Principal{Name: "push", Role: server.Submitter, Tenants: []string{"acme"}}, nil, ""},
		"a domain":                                            {bearer(rs(map[string]any{"email": "vera@Example.com"})), viewer, nil, ""},
		"a domain below it is another":                        {bearer(rs(map[string]any{"email": "vera@sub.example.com"})), server.Principal{}, server.ErrUnknown, "vera@sub.example.com"},
		"a domain that ends alike is another":                 {bearer(rs(map[string]any{"email": "vera@notexample.com"})), server.Principal{}, server.ErrUnknown, "no entry among the principals"},
		"a group of another issuer's claim":                   {bearer(of2(map[string]any{"roles": []string{"staff", "operators"}})), server.Principal{Name: "eve", Role: server.Operator}, nil, ""},
		"a group that is one text":                            {bearer(of2(map[string]any{"roles": "operators"})), server.Principal{Name: "eve", Role: server.Operator}, nil, ""},
		"a group in a claim that is not the configured one":   {bearer(of2(map[string]any{"groups": []string{"operators"}})), server.Principal{}, server.ErrUnknown, "eve"},
		"a group in a claim of another form":                  {bearer(of2(map[string]any{"roles": map[string]any{"operators": true}})), server.Principal{}, server.ErrUnknown, "eve"},
		"a group of an issuer whose groups mean nothing":      {bearer(rs(map[string]any{"email": "x@y.test", "groups": []string{"operators"}})), server.Principal{}, server.ErrUnknown, ""},
		"several audiences, for an authorized party":          {bearer(of2(map[string]any{"aud": []string{"second", "third"}, "roles": "operators"})), server.Principal{Name: "eve", Role: server.Operator}, nil, ""},
		"several audiences, when none is said to be":          {bearer(rs(map[string]any{"aud": []string{"errand", "third"}})), server.Principal{}, server.ErrNoPrincipal, "authorizedParties"},
		"another party than the authorized one":               {bearer(of2(map[string]any{"azp": "spy"})), server.Principal{}, server.ErrNoPrincipal, `"spy"`},
		"no party where one must be authorized":               {bearer(of2(map[string]any{"azp": ""})), server.Principal{}, server.ErrNoPrincipal, "azp"},
		"an API token":                                        {bearer("sesame"), server.Principal{Name: "ada", Role: server.Admin}, nil, ""},
		"an API token as the password of a browser":           {request("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("x:sesame"))), server.Principal{Name: "ada", Role: server.Admin}, nil, ""},
		"a wrong password of a browser":                       {request("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("x:guess"))), server.Principal{}, server.ErrNoPrincipal, "not known"},
		"an ID token as the password of a browser":            {request("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("x:"+good))), server.Principal{}, server.ErrNoPrincipal, "not known"},
		"an assertion in the header of a proxy":               {request("X-Goog-IAP-JWT-Assertion", assertion(nil)), viewer, nil, ""},
		"an assertion beside a bearer token of somebody":      {request("X-Goog-IAP-JWT-Assertion", assertion(nil), "Authorization", "Bearer "+good), worker, nil, ""},
		"an assertion beside a bearer token for the proxy":    {request("X-Goog-IAP-JWT-Assertion", assertion(nil), "Authorization", "Bearer "+rs(map[string]any{"aud": "the proxy"})), viewer, nil, ""},
		"an assertion as a bearer token":                      {bearer(assertion(nil)), server.Principal{}, server.ErrNoPrincipal, "no issuer"},
		"a bearer token as an assertion":                      {request("X-Goog-IAP-JWT-Assertion", good), server.Principal{}, server.ErrNoPrincipal, "for the header X-Goog-Iap-Jwt-Assertion"},
		"an assertion of an email that is expressly unproven": {request("X-Goog-IAP-JWT-Assertion", assertion(map[string]any{"email_verified": false})), server.Principal{}, server.ErrUnknown, "does not count"},
		"an assertion for another service":                    {request("X-Goog-IAP-JWT-Assertion", assertion(map[string]any{"aud": "/projects/1/services/other"})), server.Principal{}, server.ErrNoPrincipal, "other"},
		"an unknown identity beside a broken bearer token":    {request("X-Goog-IAP-JWT-Assertion", assertion(map[string]any{"email": "eve@y.test"}), "Authorization", "Bearer x"), server.Principal{}, server.ErrUnknown, "eve@y.test"},
		"an email that is not verified":                       {bearer(rs(map[string]any{"email_verified": false})), server.Principal{}, server.ErrUnknown, "not say that it is verified"},
		"an email of which nothing is said":                   {bearer(rs(map[string]any{"email_verified": nil})), server.Principal{}, server.ErrUnknown, "not say that it is verified"},
		"an email that is verified in words":                  {bearer(rs(map[string]any{"email_verified": "true"})), worker, nil, ""},
		"a rule of one issuer does not fit another's email":   {bearer(of2(map[string]any{"email": robot, "email_verified": true})), server.Principal{}, server.ErrUnknown, robot},
		"nobody":                               {request(), server.Principal{}, server.ErrNoPrincipal, "carries no token"},
		"an unknown API token":                 {bearer("guess"), server.Principal{}, server.ErrNoPrincipal, "neither a known API token nor a JWT"},
		"for another audience":                 {bearer(rs(map[string]any{"aud": "https://other.example"})), server.Principal{}, server.ErrNoPrincipal, `for the audience ["https://other.example"]; want https://errand.example or errand`},
		"for no audience":                      {bearer(rs(map[string]any{"aud": nil})), server.Principal{}, server.ErrNoPrincipal, "audience"},
		"for an audience that begins alike":    {bearer(rs(map[string]any{"aud": "https://errand.example/"})), server.Principal{}, server.ErrNoPrincipal, "audience"},
		"of an issuer that is not configured":  {bearer(jwt(t, jose.RS256, named("rsa", rsaKey()), claimsOf("https://evil.example", nil))), server.Principal{}, server.ErrNoPrincipal, `no issuer "https://evil.example"`},
		"of one issuer in the name of another": {bearer(jwt(t, jose.RS256, named("rsa", rsaKey()), claimsOf(second.url, map[string]any{"aud": "second"}))), server.Principal{}, server.ErrNoPrincipal, "not by a key of " + second.url},
		"without an issuer":                    {bearer(rs(map[string]any{"iss": nil})), server.Principal{}, server.ErrNoPrincipal, "names its issuer"},
		"expired":                              {bearer(rs(map[string]any{"exp": at.Add(-skew).Unix()})), server.Principal{}, server.ErrNoPrincipal, "expired at"},
		"expired within the skew of clocks":    {bearer(rs(map[string]any{"exp": at.Add(1 - skew).Add(time.Second).Unix()})), worker, nil, ""},
		"never expiring":                       {bearer(rs(map[string]any{"exp": nil})), server.Principal{}, server.ErrNoPrincipal, "never expires"},
		"not yet valid":                        {bearer(rs(map[string]any{"nbf": at.Add(skew + time.Second).Unix()})), server.Principal{}, server.ErrNoPrincipal, "not valid yet"},
		"valid in a moment":                    {bearer(rs(map[string]any{"nbf": at.Add(skew).Unix()})), worker, nil, ""},
		"issued in the future":                 {bearer(rs(map[string]any{"iat": at.Add(skew + time.Second).Unix()})), server.Principal{}, server.ErrNoPrincipal, "not valid yet"},
		"without a subject":                    {bearer(rs(map[string]any{"sub": ""})), server.Principal{}, server.ErrNoPrincipal, "subject"},
		"with a subject that breaks lines":     {bearer(rs(map[string]any{"sub": "a\nb"})), server.Principal{}, server.ErrNoPrincipal, "cannot be a name"},
		"with claims of another form":          {bearer(rs(map[string]any{"hd": 7})), server.Principal{}, server.ErrNoPrincipal, "wrong form"},
		"unsigned":                             {bearer(none), server.Principal{}, server.ErrNoPrincipal, "another algorithm"},
		"signed with the public key as secret": {bearer(confused), server.Principal{}, server.ErrNoPrincipal, "another algorithm"},
		"signed with another key of that name": {bearer(jwt(t, jose.RS256, named("rsa", otherRSA()), claimsOf(p.url, nil))), server.Principal{}, server.ErrNoPrincipal, "not by a key of"},
		"signed with a key without a name":     {bearer(jwt(t, jose.RS256, otherRSA(), claimsOf(p.url, nil))), server.Principal{}, server.ErrNoPrincipal, "not by a key of"},
		"signed with the key of another kind":  {bearer(jwt(t, jose.ES256, named("rsa", ecKey()), claimsOf(p.url, nil))), server.Principal{}, server.ErrNoPrincipal, "not by a key of"},
		"with another payload":                 {bearer(parts[0] + "." + strings.Split(rs(map[string]any{"sub": "push"}), ".")[1] + "." + parts[2]), server.Principal{}, server.ErrNoPrincipal, "not by a key of"},
		"with its signature taken off":         {bearer(parts[0] + "." + parts[1] + "." + cloudRun), server.Principal{}, server.ErrNoPrincipal, "X-Serverless-Authorization"},
		"cut":                                  {bearer(good[:len(good)-4]), server.Principal{}, server.ErrNoPrincipal, ""},
		"of an unreadable payload":             {bearer(parts[0] + ".!." + parts[2]), server.Principal{}, server.ErrNoPrincipal, "nor a JWT"},
		"longer than any":                      {bearer(rs(map[string]any{"x": strings.Repeat("a", MaxToken)})), server.Principal{}, server.ErrNoPrincipal, "longer than"},
		"a large one that is good":             {bearer(rs(map[string]any{"x": strings.Repeat("a", 8<<10)})), worker, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := a.Authenticate(c.request)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("principal (-want +got):\n%s", d)
			}
			if !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.err, c.says)
			}
			for _, h := range c.request.Header {
				_, token, _ := strings.Cut(h[0], " ")
				if err != nil && len(token) > 4 && strings.Contains(err.Error(), token) {
					t.Error("the error repeats the token")
				}
			}
		})
	}
}

// one is an authenticator of one issuer, and a good token.
func one(t *testing.T, p *provider) (*Authenticator, *clock, func(key jose.JSONWebKey, changes map[string]any) string) {
	c := &clock{now: at}
	a := newAuth(t, &File{
		Issuers:    []Issuer{{Issuer: p.url, Audiences: []string{"https://errand.example"}}},
		Principals: []Rule{{Email: robot, Role: server.Worker}},
	}, c)
	return a, c, func(key jose.JSONWebKey, changes map[string]any) string {
		return jwt(t, jose.RS256, key, claimsOf(p.url, changes))
	}
}

func TestAKeyIsFetchedOnceAndATokenCheckedOnce(t *testing.T) {
	p := newProvider(t, named("1", rsaKey()))
	a, c, token := one(t, p)
	if n := p.discovered.Load(); n != 0 {
		t.Fatalf("asked %d times before anybody came", n)
	}
	first := token(named("1", rsaKey()), nil)
	for i := range 5 {
		for _, tok := range []string{first, token(named("1", rsaKey()), map[string]any{"n": i})} {
			if _, err := a.Authenticate(bearer(tok)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if d, f := p.discovered.Load(), p.fetched.Load(); d != 1 || f != 1 {
		t.Errorf("discovered %d times and fetched %d, want once each", d, f)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = a.identify(context.Background(), "", first) }); n > 4 {
		t.Errorf("a token that was checked costs %v allocations", n)
	}
	// What is remembered ends with the token.
	c.advance(time.Hour + skew)
	if _, err := a.Authenticate(bearer(first)); !errors.Is(err, server.ErrNoPrincipal) {
		t.Errorf("after its time: %v", err)
	}
}

func TestRotation(t *testing.T) {
	p := newProvider(t, named("1", rsaKey()))
	a, c, token := one(t, p)
	with := func(key jose.JSONWebKey, n int) error {
		_, err := a.Authenticate(bearer(token(key, map[string]any{"n": n})))
		return err
	}
	before, after := named("1", rsaKey()), named("2", otherRSA())
	if err := with(before, 0); err != nil {
		t.Fatal(err)
	}
	c.advance(againUnknown)
	p.publish(before, after)
	if err := with(after, 1); err != nil || p.fetched.Load() != 2 {
		t.Fatalf("a new key: %v after %d fetches, want good after 2", err, p.fetched.Load())
	}
	// Names that anybody makes up do not make us ask again and again.
	for i := range 20 {
		if err := with(named(fmt.Sprint("made-up-", i), otherRSA()), i); !errors.Is(err, server.ErrNoPrincipal) {
			t.Fatal(err)
		}
	}
	if n := p.fetched.Load(); n != 2 {
		t.Errorf("%d fetches for made-up keys, want none", n-2)
	}
	c.advance(againUnknown)
	for i := range 20 {
		_ = with(named(fmt.Sprint("made-up-", i), otherRSA()), i)
	}
	if n := p.fetched.Load(); n != 3 {
		t.Errorf("%d fetches for made-up keys, want one", n-2)
	}
	// A token that names no key is tried with new ones too.
	p.publish(named("", otherRSA()))
	c.advance(againUnknown)
	if err := with(jose.JSONWebKey{Key: otherRSA()}, 3); err != nil {
		t.Errorf("a token that names no key, after the keys changed: %v", err)
	}
}

func TestAKeyThatIsTakenAwayEndsWithinAnHour(t *testing.T) {
	p := newProvider(t, named("1", rsaKey()))
	a, c, token := one(t, p)
	tok := token(named("1", rsaKey()), map[string]any{"exp": at.Add(48 * time.Hour).Unix()})
	if _, err := a.Authenticate(bearer(tok)); err != nil {
		t.Fatal(err)
	}
	p.publish(named("2", otherRSA()))
	c.advance(keysFresh)
	// This one is still let in with the old key, and has the keys fetched beside it.
	if _, err := a.Authenticate(bearer(tok)); err != nil {
		t.Fatal(err)
	}
	a.issuers[0].keys.mu.Lock()
	landed := a.issuers[0].keys.flight
	a.issuers[0].keys.mu.Unlock()
	if landed != nil {
		<-landed
	}
	c.advance(remember)
	if _, err := a.Authenticate(bearer(tok)); !errors.Is(err, server.ErrNoPrincipal) {
		t.Errorf("got %v, want it refused", err)
	}
}

func TestAnIssuerThatIsDown(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"that fails":               func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) },
		"that speaks of something": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"that never ends": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"keys":["` + strings.Repeat("a", 2*maxDocument)))
		},
		"that leads elsewhere": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"that has too many": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"keys":[` + strings.Repeat("{},", maxKeys) + `{}]}`))
		},
		"that has only secrets": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"keys":[{"kty":"oct","kid":"1","k":"c2VjcmV0"}]}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t, named("1", rsaKey()))
			c := &clock{now: at}
			a := newAuth(t, &File{ // its keys have a place, so that it is they that fail
				Issuers:    []Issuer{{Issuer: p.url, JWKSURL: p.url + "/keys", Audiences: []string{"https://errand.example"}}},
				Principals: []Rule{{Email: robot, Role: server.Worker}},
			}, c)
			tok := jwt(t, jose.RS256, named("1", rsaKey()), claimsOf(p.url, nil))
			p.fail(answer)
			for range 10 {
				if _, err := a.Authenticate(bearer(tok)); !errors.Is(err, server.ErrUndecided) {
					t.Fatalf("got %v, want ErrUndecided", err)
				}
			}
			if n := p.fetched.Load(); n != 1 {
				t.Errorf("asked %d times within a moment, want once", n)
			}
			p.fail(nil)
			c.advance(firstBackoff)
			if _, err := a.Authenticate(bearer(tok)); err != nil {
				t.Errorf("when it is up again: %v", err)
			}
		})
	}
}

func TestWhatIsKnownIsGoodWhileTheIssuerIsDown(t *testing.T) {
	p := newProvider(t, named("1", rsaKey()))
	a, c, token := one(t, p)
	try := func(key string, n int) error {
		_, err := a.Authenticate(bearer(token(named(key, rsaKey()), map[string]any{"n": n, "exp": at.Add(48 * time.Hour).Unix()})))
		return err
	}
	if err := try("1", 0); err != nil {
		t.Fatal(err)
	}
	p.fail(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) })
	c.advance(keysUsable - time.Second)
	if err := try("1", 1); err != nil {
		t.Errorf("another token of a known key: %v", err)
	}
	if err := try("2", 2); !errors.Is(err, server.ErrUndecided) {
		t.Errorf("a key that may be new: %v, want ErrUndecided", err)
	}
	c.advance(2 * time.Second)
	if err := try("1", 3); !errors.Is(err, server.ErrUndecided) {
		t.Errorf("with keys of yesterday: %v, want ErrUndecided", err)
	}
}

func TestAnIssuerThatDoesNotAnswerHoldsNobody(t *testing.T) {
	p := newProvider(t, named("1", rsaKey()))
	hung := make(chan struct{})
	t.Cleanup(func() { close(hung) })
	p.fail(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	})
	a, _, token := one(t, p)
	a.issuers[0].keys.o.Timeout = 50 * time.Millisecond
	tok := token(named("1", rsaKey()), nil)
	// A client that leaves is not kept.
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := a.Authenticate(bearer(tok).WithContext(gone)); !errors.Is(err, server.ErrUndecided) {
		t.Errorf("a client that left: %v", err)
	}
	// Nor one that stays, beyond the timeout.
	if _, err := a.Authenticate(bearer(tok)); !errors.Is(err, server.ErrUndecided) {
		t.Errorf("a client that stayed: %v", err)
	}
}

func TestDiscoveryLeadsToNoUnsafePlace(t *testing.T) {
	p := newProvider(t, named("1", rsaKey()))
	p.fail(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": p.url, "jwks_uri": "http://10.0.0.1/keys"})
	})
	a, _, token := one(t, p)
	if _, err := a.Authenticate(bearer(token(named("1", rsaKey()), nil))); !errors.Is(err, server.ErrUndecided) {
		t.Errorf("got %v, want ErrUndecided", err)
	}
}

func TestTokensRememberedAreBounded(t *testing.T) {
	a := newAuth(t, &File{
		Issuers:    []Issuer{{Issuer: Google, Audiences: []string{"a"}}},
		Principals: []Rule{{Email: robot, Role: server.Worker}},
	}, &clock{now: at})
	for i := range 3 * maxKnown {
		a.keep([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, remembered{until: at.Add(time.Hour)}, at)
	}
	if n := len(a.known); n > maxKnown || n < maxKnown/2 {
		t.Errorf("%d tokens are remembered, want %d at most", n, maxKnown)
	}
}

func TestGooglePeopleBelongToADomainWhileTheirWorkspaceSaysSo(t *testing.T) {
	domain := func(issuer, domain, email, hosted string) bool {
		r := Rule{EmailDomain: domain}
		return r.fits(&claims{issuer: issuer, email: email, hosted: hosted})
	}
	for name, c := range map[string]struct{ got, want bool }{
		"a person of the workspace":           {domain(Google, "example.com", "vera@example.com", "example.com"), true},
		"a private account with that address": {domain(Google, "example.com", "vera@example.com", ""), false},
		"a service account, which has none":   {domain(Google, "p.iam.gserviceaccount.com", "robot@p.iam.gserviceaccount.com", ""), true},
		"a person of another issuer":          {domain("https://id.example", "example.com", "vera@example.com", ""), true},
		"nobody's email":                      {domain("https://id.example", "example.com", "", ""), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}

func FuzzPeek(f *testing.F) {
	f.Add("a.b.c")
	f.Add("e30.eyJpc3MiOiJ4In0.c")
	f.Fuzz(func(t *testing.T, token string) {
		if name, err := peek(token); err == nil && name == "" {
			t.Errorf("no issuer and no error")
		}
	})
}

func FuzzDecodeKeys(f *testing.F) {
	key, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{named("1", ecKey().Public())}})
	f.Add(string(key))
	f.Add(`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		set, err := decodeKeys(strings.NewReader(body))
		if err == nil && (len(set) == 0 || len(set) > maxKeys) {
			t.Errorf("%d keys without an error", len(set))
		}
	})
}
