package control

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/errand-run/errand/shared/store/memory"
)

func TestWhichKeysVerify(t *testing.T) {
	g := Grant{Run: "r", N: 1, Agent: "a", Tenant: "t"}
	// What a control plane of before wrote, whose tokens named no key.
	unnamed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims{Agent: "a", Tenant: "t", RegisteredClaims: jwt.RegisteredClaims{
		Issuer: TokenIssuer, Subject: "r.1", ExpiresAt: jwt.NewNumericDate(signedAt.Add(time.Hour)),
	}}).SignedString(secret(2))
	if err != nil {
		t.Fatal(err)
	}
	ofFirst := sign(t, testSigner(t, 0), g)
	for name, c := range map[string]struct {
		seeds []byte
		token string
		good  bool
	}{
		"the key that signs":                                 {[]byte{0}, ofFirst, true},
		"a new key signs, that of before still verifies":     {[]byte{1, 0}, ofFirst, true},
		"the next key is known before it signs":              {[]byte{0, 1}, sign(t, testSigner(t, 1, 0), g), true},
		"a key that was taken away verifies nothing":         {[]byte{1}, ofFirst, false},
		"a token that names no key is tried with all":        {[]byte{0, 1, 2}, unnamed, true},
		"and refused when none of them made it":              {[]byte{0, 1}, unnamed, false},
		"a token that names another key than it was made of": {[]byte{0, 1}, part(ofFirst, 0, func(m map[string]any) { m["kid"] = testSigner(t, 1).keys.ring.Load().keys[0].id }), false},
		"a token that names no text as its key":              {[]byte{0}, part(ofFirst, 0, func(m map[string]any) { m["kid"] = 7 }), false},
		"the same key twice is one":                          {[]byte{0, 0}, ofFirst, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := testSigner(t, c.seeds...).verify(c.token, signedAt)
			if c.good != (err == nil) || err != nil && !errors.Is(err, ErrToken) {
				t.Errorf("got %v, want good %v", err, c.good)
			}
		})
	}
}

func TestKeysAreReadAgainOnUseOnceAMinute(t *testing.T) {
	secrets, fails, asked := [][]byte{secret(0)}, error(nil), 0
	s := testSignerOf(t, func() ([][]byte, error) { asked++; return secrets, fails })
	g := Grant{Run: "r", N: 1}
	old := sign(t, s, g)
	at := signedAt
	verify := func(token string) error { _, err := s.verify(token, at); return err }

	secrets = [][]byte{secret(1), secret(0)}
	for range 3 {
		at = at.Add(19 * time.Second)
		if err := verify(old); err != nil || asked != 1 {
			t.Fatalf("after %v: %v, asked %d times, want once", at.Sub(signedAt), err, asked)
		}
	}
	at = signedAt.Add(rereadKeys)
	if err := verify(old); err != nil || asked != 2 {
		t.Fatalf("after a minute: %v, asked %d times, want twice", err, asked)
	}
	next, err := s.sign(g, at, at.Add(time.Hour))
	if err != nil || strings.Split(next, ".")[0] == strings.Split(old, ".")[0] {
		t.Fatalf("the new key does not sign: %v", err)
	}

	fails = errors.New("not mounted")
	at = at.Add(rereadKeys)
	if err := verify(next); err != nil || asked != 3 {
		t.Fatalf("while the source fails: %v, asked %d times", err, asked)
	}
	fails, secrets = nil, [][]byte{[]byte("short")}
	at = at.Add(rereadKeys)
	if err := verify(next); err != nil {
		t.Fatalf("while a key is too short: %v", err)
	}
	secrets = [][]byte{secret(1)}
	at = at.Add(rereadKeys)
	if err := verify(next); err != nil {
		t.Fatal(err)
	}
	if err := verify(old); !errors.Is(err, ErrToken) {
		t.Errorf("a remembered token of a key that is gone: %v, want ErrToken", err)
	}
	at = signedAt // the clock was set back
	if verify(next); asked != 6 {
		t.Errorf("asked %d times, want another time after the clock was set back", asked)
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		secrets [][]byte
		err     error
		want    string
	}{
		"too short, and not repeated": {[][]byte{secret(0), []byte("sesame")}, nil, "signing key 2 has 6 bytes"},
		"none":                        {nil, nil, "no signing key"},
		"too many":                    {make([][]byte, maxKeys+1), nil, "9 signing keys"},
		"not to be had":               {nil, errors.New("no such file"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadSigner(t.Context(), memory.Open(), func() ([][]byte, error) { return c.secrets, c.err }, time.Now, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "sesame") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestTickets(t *testing.T) {
	s := testSigner(t, 0)
	good := s.Ticket("r.1", signedAt.Add(time.Minute))
	change := func(i int) string {
		b := []byte(good)
		if b[i]++; b[i] == 'z'+1 || b[i] == 'Z'+1 || b[i] == '9'+1 {
			b[i] = 'a'
		}
		return string(b)
	}
	for name, c := range map[string]struct {
		by      *signer
		attempt string
		ticket  string
		after   time.Duration
		good    bool
	}{
		"a good one":                           {s, "r.1", good, 0, true},
		"in its last second":                   {s, "r.1", good, time.Minute - time.Second, true},
		"when it has expired":                  {s, "r.1", good, time.Minute, false},
		"for another attempt":                  {s, "r.2", good, 0, false},
		"for an attempt whose id goes on":      {s, "r.11", good, 0, false},
		"with a later end":                     {s, "r.1", change(9), 0, false},
		"with another MAC":                     {s, "r.1", change(20), 0, false},
		"cut":                                  {s, "r.1", good[:31], 0, false},
		"with more behind it":                  {s, "r.1", good + "A", 0, false},
		"not base64url":                        {s, "r.1", "+" + good[1:], 0, false},
		"empty":                                {s, "r.1", "", 0, false},
		"a token instead":                      {s, "r.1", sign(t, s, Grant{Run: "r", N: 1}), 0, false},
		"of another control plane":             {testSigner(t, 1), "r.1", good, 0, false},
		"of the key before, which still holds": {testSigner(t, 1, 0), "r.1", good, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.by.checkTicket(c.attempt, c.ticket, signedAt.Add(c.after))
			if c.good != (err == nil) || err != nil && !errors.Is(err, ErrTicket) {
				t.Errorf("got %v, want good %v", err, c.good)
			}
			if err != nil && c.ticket != "" && strings.Contains(err.Error(), c.ticket) {
				t.Error("the error repeats the ticket")
			}
		})
	}
}
