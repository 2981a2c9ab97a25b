package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/run"
)

func TestThePageOfEffectsTakesWhatPeopleFoundOut(t *testing.T) {
	for name, c := range map[string]struct {
		token, path, happened, site string
		status                      int
		location                    string
		want                        []string
	}{
		"it happened":           {"approver", "rcacme", "yes", "same-origin", 303, "/runs/runacme#effects", nil},
		"it did not":            {"approver", "rcacme", "no", "same-origin", 303, "/runs/runacme#effects", nil},
		"neither":               {"approver", "rcacme", "perhaps", "same-origin", 400, "", []string{"does not count", "want yes or no", "mail:&lt;b&gt;"}},
		"both":                  {"approver", "rcacme", "yes&happened=no", "same-origin", 400, "", []string{"form.happened", "given 2 times"}},
		"no receipt":            {"approver", "none", "yes", "same-origin", 404, "", []string{"does not count", "there is no receipt none"}},
		"from another site":     {"approver", "rcacme", "yes", "cross-site", 403, "", []string{"another origin"}},
		"by one who only looks": {"viewer", "rcacme", "yes", "same-origin", 403, "", []string{"Not allowed"}},
		"of another tenant":     {"acme", "rcother", "yes", "same-origin", 404, "", []string{"there is no receipt"}},
	} {
		t.Run(name, func(t *testing.T) {
			tokens, err := NewTokens([]Token{
				{Name: "ann", SHA256: HashToken("approver"), Role: Approver},
				{Name: "vera", SHA256: HashToken("viewer"), Role: Viewer},
				{Name: "otto", SHA256: HashToken("acme"), Role: Approver, Tenants: []string{"acme"}},
			})
			if err != nil {
				t.Fatal(err)
			}
			s := newSite(t, func(o *Options) { o.Loopback, o.Auth = false, tokens })
			s.token = c.token
			s.Client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			s.plane.receipts["rcacme"] = run.Receipt{ID: "rcacme", Tenant: "acme", Run: "runacme", Effect: "mail:<b>", State: run.ReceiptUnknown}
			s.plane.receipts["rcother"] = run.Receipt{ID: "rcother", Tenant: "other", Run: "runother", Effect: "secret", State: run.ReceiptUnknown}
			page := string(s.do("GET", "/receipts", "", "Accept", "text/html").body)
			if !strings.Contains(page, "mail:&lt;b&gt;") || !strings.Contains(page, `href="/receipts?pageToken=next"`) ||
				strings.Contains(page, "secret") == (c.token == "acme") || strings.Contains(page, "<form") == (c.token == "viewer") {
				t.Errorf("the page:\n%s", page)
			}
			r := s.do("POST", "/receipts/"+c.path, "happened="+c.happened, "Accept", "text/html", "Content-Type", formed, "Sec-Fetch-Site", c.site)
			if r.StatusCode != c.status || r.Header.Get("Location") != c.location {
				t.Errorf("status %d to %q, want %d to %q", r.StatusCode, r.Header.Get("Location"), c.status, c.location)
			}
			for _, want := range c.want {
				if !strings.Contains(string(r.body), want) {
					t.Errorf("the answer has no %q:\n%s", want, r.body)
				}
			}
			want := map[string]string{"it happened": "yes by ann", "it did not": "no by ann"}[name]
			if got := strings.Join(s.plane.resolved, ", "); got != want {
				t.Errorf("it was said %q, want %q", got, want)
			}
		})
	}
}
