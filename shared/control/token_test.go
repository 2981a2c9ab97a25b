package control

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/store/memory"
)

var signedAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func secret(seed byte) []byte { return []byte(strings.Repeat(string(rune('a'+seed)), keySize)) }

// testSigner has the keys of the seeds.
func testSigner(t testing.TB, seeds ...byte) *signer {
	t.Helper()
	return testSignerOf(t, func() (secrets [][]byte, _ error) {
		for _, seed := range seeds {
			secrets = append(secrets, secret(seed))
		}
		return secrets, nil
	})
}

func testSignerOf(t testing.TB, source func() ([][]byte, error)) *signer {
	t.Helper()
	s, err := loadSigner(context.Background(), memory.Open(), source, func() time.Time { return signedAt }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// afresh has the same keys and remembers nothing.
func (s *signer) afresh() *signer { return newSigner(s.keys, s.clock) }

func sign(t testing.TB, s *signer, g Grant) string {
	t.Helper()
	token, err := s.sign(g, signedAt, signedAt.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// part rewrites one part of a token.
func part(token string, n int, change func(map[string]any)) string {
	parts := strings.Split(token, ".")
	raw, _ := base64.RawURLEncoding.DecodeString(parts[n])
	var m map[string]any
	_ = json.Unmarshal(raw, &m)
	change(m)
	raw, _ = json.Marshal(m)
	parts[n] = base64.RawURLEncoding.EncodeToString(raw)
	return strings.Join(parts, ".")
}

func TestOnlyATokenOfThisControlPlaneIsGoodAndOnlyInItsTime(t *testing.T) {
	s := testSigner(t, 0)
	want := Grant{Run: "r", N: 3, Agent: "a", Tenant: "t", Scopes: []string{"effect:mail:*"}}
	good := sign(t, s, want)
	for name, c := range map[string]struct {
		token string
		at    time.Duration
		good  bool
	}{
		"a good one":                    {good, 0, true},
		"at the last second":            {good, time.Hour - time.Second, true},
		"when it has expired":           {good, time.Hour, false},
		"of another control plane":      {sign(t, testSigner(t, 1), want), 0, false},
		"for another attempt":           {part(good, 1, func(m map[string]any) { m["sub"] = "r.4" }), 0, false},
		"for more scopes":               {part(good, 1, func(m map[string]any) { m["scp"] = []string{"effect:*"} }), 0, false},
		"unsigned":                      {part(good, 0, func(m map[string]any) { m["alg"] = "none" }), 0, false},
		"unsigned, without a signature": {strings.Join(strings.Split(part(good, 0, func(m map[string]any) { m["alg"] = "none" }), ".")[:2], ".") + ".", 0, false},
		"signed in another way":         {part(good, 0, func(m map[string]any) { m["alg"] = "HS512" }), 0, false},
		"with a signature of nothing":   {good[:strings.LastIndexByte(good, '.')+1], 0, false},
		"cut":                           {good[:len(good)-2], 0, false},
		"empty":                         {"", 0, false},
		"longer than any of ours":       {strings.Repeat("a", maxToken+1), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, fresh := range []*signer{s, s.afresh()} { // remembered or not
				g, err := fresh.verify(c.token, signedAt.Add(c.at))
				switch {
				case c.good && (err != nil || g.Run != want.Run || g.N != want.N || g.Tenant != want.Tenant || len(g.Scopes) != 1):
					t.Errorf("got %+v, %v", g, err)
				case !c.good && !errors.Is(err, ErrToken):
					t.Errorf("got %+v, %v, want ErrToken", g, err)
				case !c.good && c.token != "" && strings.Contains(err.Error(), c.token):
					t.Error("the error repeats the token")
				}
			}
		})
	}
}

func TestTheSigningKeyIsMadeOnceAndSurvivesARestart(t *testing.T) {
	st, clock, log := memory.Open(), func() time.Time { return signedAt }, slog.New(slog.DiscardHandler)
	first, err := loadSigner(t.Context(), st, nil, clock, log)
	if err != nil {
		t.Fatal(err)
	}
	token := sign(t, first, Grant{Run: "r", N: 1})
	second, err := loadSigner(t.Context(), st, nil, clock, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.verify(token, signedAt); err != nil {
		t.Fatalf("after a restart: %v", err)
	}
}

func FuzzVerify(f *testing.F) {
	s := testSigner(f, 0)
	good := sign(f, s, Grant{Run: "r", N: 3, Agent: "a", Tenant: "t", Scopes: []string{"effect:mail:*"}})
	f.Add(good)
	f.Add(part(good, 0, func(m map[string]any) { m["alg"] = "none" }))
	f.Add(part(good, 1, func(m map[string]any) { m["exp"] = "soon" }))
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		fresh := s.afresh()
		g, err := fresh.verify(token, signedAt)
		if err == nil && token != good {
			// Base64 has more than one writing of the last bits of a signature; what is granted is the same.
			if g.Run != "r" || g.N != 3 {
				t.Fatalf("token %q grants %+v", token, g)
			}
		}
	})
}

func BenchmarkSign(b *testing.B) {
	s := testSigner(b, 0)
	g := Grant{Run: "abcdefghijklmnopqrst", N: 1, Agent: "echo", Tenant: "default"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.sign(g, signedAt, signedAt.Add(time.Hour)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	s := testSigner(b, 0)
	token := sign(b, s, Grant{Run: "abcdefghijklmnopqrst", N: 1, Agent: "echo", Tenant: "default"})
	for name, verify := range map[string]*signer{"remembered": s, "new": s.afresh()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if name == "new" {
					verify.forget()
				}
				if _, err := verify.verify(token, signedAt); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
