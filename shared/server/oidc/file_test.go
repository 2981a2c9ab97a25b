package oidc

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/server"
)

const hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

func TestReadFillsInWhatIsKnown(t *testing.T) {
	f, err := Read("auth.yaml", strings.NewReader(`
issuers:
- issuer: https://accounts.google.com
  audiences: [https://errand.example]
- issuer: https://cloud.google.com/iap
  audiences: [/projects/1/services/errand]
principals:
- {email: robot@p.iam.gserviceaccount.com, role: worker, agents: [echo]}
- {emailDomain: example.com, issuer: https://cloud.google.com/iap, role: viewer, tenants: [acme]}
tokens:
- {name: ada, sha256: `+hash+`, role: admin}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &File{
		Issuers: []Issuer{
			{Issuer: Google, Audiences: []string{"https://errand.example"}, GroupsClaim: "groups"},
			{Issuer: IAP, Audiences: []string{"/projects/1/services/errand"}, GroupsClaim: "groups", JWKSURL: iapKeys, Header: iapHeader, EmailsVerified: true},
		},
		Principals: []Rule{
			{Email: "robot@p.iam.gserviceaccount.com", Role: server.Worker, Agents: []string{"echo"}},
			{EmailDomain: "example.com", Issuer: IAP, Role: server.Viewer, Tenants: []string{"acme"}},
		},
		Tokens: []server.Token{{Name: "ada", SHA256: hash, Role: server.Admin}},
	}
	if d := cmp.Diff(want, f); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := New(f, Options{}); err != nil {
		t.Error(err)
	}
}

func TestTheFileOfTheGuideIsGood(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/guides/identity.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(guide), "```yaml\n")
	text, _, ends := strings.Cut(rest, "```")
	if !found || !ends {
		t.Fatal("the guide shows no file")
	}
	if _, err := Read("identity.md", strings.NewReader(text)); err != nil {
		t.Error(err)
	}
}

func TestReadSaysWhatIsWrongAndWhere(t *testing.T) {
	const google = "issuers: [{issuer: https://accounts.google.com, audiences: [a]}]\n"
	const two = "issuers: [{issuer: https://accounts.google.com, audiences: [a]}, {issuer: https://id.example, audiences: [a]}]\n"
	const anybody = "principals: [{email: a@b.c, role: viewer}]\n"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                      {"# soon\n", "f: is empty"},
		"no issuer":                    {anybody, "f:1:1: issuers: required"},
		"no principals":                {google, "f:1:1: principals: required"},
		"a misspelt field":             {"isuers: []\n" + google + anybody, "f:1:1: isuers: unknown field; did you mean `issuers`"},
		"a second document":            {google + anybody + "---\n" + google, "f:4:1: a second document"},
		"an issuer without an address": {"issuers: [{audiences: [a]}]\n" + anybody, "f:1:11: issuers[0].issuer: required"},
		"an issuer of plain HTTP":      {"issuers: [{issuer: http://id.example, audiences: [a]}]\n" + anybody, `f:1:20: issuers[0].issuer: "http://id.example" is not https`},
		"an issuer that is a host":     {"issuers: [{issuer: id.example, audiences: [a]}]\n" + anybody, "is no URL"},
		"keys of plain HTTP":           {"issuers: [{issuer: https://id.example, jwksURL: http://id.example/keys, audiences: [a]}]\n" + anybody, "issuers[0].jwksURL"},
		"no audience":                  {"issuers: [{issuer: https://id.example}]\n" + anybody, "f:1:11: issuers[0].audiences: required"},
		"an empty list of audiences":   {"issuers: [{issuer: https://id.example, audiences: []}]\n" + anybody, "issuers[0].audiences: an empty list"},
		"an empty audience":            {"issuers: [{issuer: https://id.example, audiences: ['']}]\n" + anybody, "issuers[0].audiences[0]: want a text"},
		"an issuer twice":              {"issuers: [{issuer: https://id.example, audiences: [a]}, {issuer: https://id.example, audiences: [b]}]\n" + anybody, "issuers[1].issuer: already given at issuers[0]"},
		"IAP twice, by its default":    {"issuers: [{issuer: https://cloud.google.com/iap, audiences: [a]}, {issuer: https://cloud.google.com/iap, header: x-goog-iap-jwt-assertion, audiences: [b]}]\n" + anybody, "already given at issuers[0]"},
		"a header that carries more":   {"issuers: [{issuer: https://id.example, header: authorization, audiences: [a]}]\n" + anybody, "issuers[0].header"},
		"a header that is none":        {"issuers: [{issuer: https://id.example, header: 'X: y', audiences: [a]}]\n" + anybody, "issuers[0].header"},
		"a rule of nobody":             {google + "principals: [{role: viewer}]\n", "f:2:14: principals[0]: names 0 of email"},
		"a rule of two":                {google + "principals: [{email: a@b.c, subject: x, role: viewer}]\n", "names 2 of email"},
		"an email without a domain":    {google + "principals: [{email: ada, role: viewer}]\n", "principals[0].email"},
		"a domain with an @":           {google + "principals: [{emailDomain: '@b.c', role: viewer}]\n", "principals[0].emailDomain"},
		"a pattern as a domain":        {google + "principals: [{emailDomain: '*', role: viewer}]\n", "principals[0].emailDomain"},
		"a role that is none":          {google + "principals: [{email: a@b.c, role: root}]\n", `f:2:35: principals[0].role: unknown role "root"`},
		"no role":                      {google + "principals: [{email: a@b.c}]\n", "principals[0].role: unknown role"},
		"tenants that were forgotten":  {google + "principals:\n- email: a@b.c\n  role: viewer\n  tenants:\n", "f:5:11: principals[0].tenants: nothing is given"},
		"an empty list of tenants":     {google + "principals: [{email: a@b.c, role: viewer, tenants: []}]\n", "principals[0].tenants: an empty list"},
		"a worker of tenants":          {google + "principals: [{email: a@b.c, role: worker, tenants: [t]}]\n", "leave tenants out"},
		"agents of a viewer":           {google + "principals: [{email: a@b.c, role: viewer, agents: [t]}]\n", "limit the role worker"},
		"an issuer that is not there":  {google + "principals: [{email: a@b.c, issuer: https://other.example, role: viewer}]\n", "principals[0].issuer"},
		"a subject of any issuer":      {two + "principals: [{subject: '7', role: viewer}]\n", "principals[0].issuer: required"},
		"a group of any issuer":        {two + "principals: [{group: g, role: viewer}]\n", "principals[0].issuer: required"},
		"a rule that comes too late":   {google + "principals: [{email: a@b.c, role: viewer}, {email: A@b.c, role: admin}]\n", "principals[1]: names the same as principals[0]"},
		"a token without a name":       {google + anybody + "tokens: [{sha256: " + hash + ", role: viewer}]\n", "f:3:9: tokens: token 1: name is missing"},
		"a token of a wrong form":      {google + anybody + "tokens: [sesame]\n", "f:3:10: tokens[0]: of another form than is wanted"},
		"a token instead of tokens":    {google + anybody + "tokens: sesame\n", "f:3:9: tokens: of another form"},
		"a token that is not hashed":   {google + anybody + "tokens: [{name: ada, sha256: sesame, role: viewer}]\n", "sha256 must be 64 hexadecimal digits"},
		"a token under its own name":   {google + anybody + "tokens: [{name: ada, token: sesame, role: viewer}]\n", "tokens[0].token: unknown field"},
		"a hash that is a list":        {google + anybody + "tokens: [{name: ada, sha256: [sesame], role: viewer}]\n", "tokens[0].sha256: of another form"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read("f", strings.NewReader(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "sesame") {
				t.Errorf("the error repeats what is secret: %v", err)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add("issuers: [{issuer: https://accounts.google.com, audiences: [a]}]\nprincipals: [{email: a@b.c, role: viewer}]\n")
	f.Add("issuers: [{issuer: http://[::1]:1, audiences: [a]}]\nprincipals: [{group: g, role: worker, agents: [x]}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Read("f", strings.NewReader(text))
		if err != nil {
			return
		}
		if _, err := New(file, Options{}); err != nil {
			t.Errorf("read, and refused afterwards: %v", err)
		}
	})
}
