package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/run"
)

func TestThePageOfAGateDecidesByItsFormAlone(t *testing.T) {
	form := "application/x-www-form-urlencoded"
	for name, c := range map[string]struct {
		method, body string
		headers      []string
		status       int
		state        run.GateState
	}{
		"looking decides nothing":            {"GET", "", nil, 200, run.GateOpen},
		"nor does looking with an answer":    {"GET?decision=approve&actionHash=HASH", "", nil, 200, run.GateOpen},
		"the form approves":                  {"POST", "decision=approve&actionHash=HASH&comment=fine", []string{"Sec-Fetch-Site", "same-origin"}, 303, run.GateApproved},
		"the form rejects":                   {"POST", "decision=reject&actionHash=HASH", []string{"Origin", "SELF"}, 303, run.GateRejected},
		"a form of another site":             {"POST", "decision=approve&actionHash=HASH", []string{"Sec-Fetch-Site", "cross-site"}, 403, run.GateOpen},
		"a form of another port":             {"POST", "decision=approve&actionHash=HASH", []string{"Origin", "http://localhost:3000"}, 403, run.GateOpen},
		"a form of another site by its name": {"POST", "decision=approve&actionHash=HASH", []string{"Origin", "https://evil.example"}, 403, run.GateOpen},
		"about another action":               {"POST", "decision=approve&actionHash=0000", nil, 409, run.GateOpen},
		"about no action":                    {"POST", "decision=approve", nil, 400, run.GateOpen},
		"with another word":                  {"POST", "decision=perhaps&actionHash=HASH", nil, 400, run.GateOpen},
		"as the requester":                   {"POST", "decision=approve&actionHash=HASH&as=rita", nil, 409, run.GateOpen},
		"as somebody else":                   {"POST", "decision=approve&actionHash=HASH&as=ann", nil, 303, run.GateApproved},
		"as nobody":                          {"POST", "decision=approve&actionHash=HASH&as=%00", nil, 400, run.GateOpen},
		"as JSON":                            {"POST", `{"decision":"approve"}`, []string{"Content-Type", "application/json"}, 415, run.GateOpen},
		"too much":                           {"POST", "decision=approve&comment=" + strings.Repeat("x", maxForm), nil, 413, run.GateOpen},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.Client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			g := s.ask("r1", "acme")
			for i := range c.headers {
				c.headers[i] = strings.ReplaceAll(c.headers[i], "SELF", s.url)
			}
			method, query, _ := strings.Cut(c.method, "?")
			path := "/gates/" + g.ID
			if query != "" {
				path += "?" + strings.ReplaceAll(query, "HASH", g.ActionHash)
			}
			headers := append([]string{"Accept", "text/html", "Content-Type", form}, c.headers...)
			r := s.do(method, path, strings.ReplaceAll(c.body, "HASH", g.ActionHash), headers...)
			// Whatever the page says, what counts is the gate.
			if r.StatusCode != c.status {
				t.Errorf("status %d, want %d: %.300s", r.StatusCode, c.status, r.body)
			}
			if got := s.plane.gates[g.ID].State; got != c.state {
				t.Errorf("the gate is %s, want %s", got, c.state)
			}
			if c.status == 303 && r.Header.Get("Location") != "/gates/"+g.ID {
				t.Errorf("it leads to %q", r.Header.Get("Location"))
			}
			if c.status != 303 && !strings.Contains(name, "by its name") && !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") {
				t.Errorf("it answers %s", r.Header.Get("Content-Type"))
			}
		})
	}
}

func TestPagesOfGatesShowWhatIsAsked(t *testing.T) {
	s := newSite(t)
	g := s.ask("r1", "acme", func(q *run.GateAsk) { q.Title = "Pay <b>ACME</b>" })
	list := s.do("GET", "/gates", "", "Accept", "text/html")
	page := s.do("GET", "/gates/"+g.ID, "", "Accept", "text/html")
	for _, want := range []string{"Pay &lt;b&gt;ACME&lt;/b&gt;", "echo", "rita", "0 of 1"} {
		if !strings.Contains(string(list.body), want) {
			t.Errorf("the list has no %q", want)
		}
	}
	for _, want := range []string{"Pay &lt;b&gt;ACME&lt;/b&gt;", "rita", "group:finance", "12.5", g.ActionHash, `name="decision" value="approve"`, "$0.5", "Input of the run"} {
		if !strings.Contains(string(page.body), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if r := s.do("GET", "/runs/r1", "", "Accept", "text/html"); !strings.Contains(string(r.body), "/gates/"+g.ID) {
		t.Error("the page of the run does not lead to the gate")
	}
	s.do("POST", "/v1/gates/"+g.ID+":decide", `{"decision":"reject","comment":"no <i>"}`, api.HeaderAs, "ann")
	page = s.do("GET", "/gates/"+g.ID, "", "Accept", "text/html")
	if strings.Contains(string(page.body), "<form") || !strings.Contains(string(page.body), "no &lt;i&gt;") {
		t.Error("a decided gate has a form, or not what was said")
	}
	if r := s.do("GET", "/gates/none", "", "Accept", "text/html"); r.StatusCode != 404 {
		t.Errorf("no gate: %d", r.StatusCode)
	}
}
