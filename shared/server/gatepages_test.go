package server

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/run"
)

func TestThePageOfAGateDecidesByItsFormAlone(t *testing.T) {
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
		"with two words":                     {"POST", "decision=approve&decision=reject&actionHash=HASH", nil, 400, run.GateOpen},
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
			headers := append([]string{"Accept", "text/html", "Content-Type", formed}, c.headers...)
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

const formed = "application/x-www-form-urlencoded"

// send posts a form as the server's own page does.
func (s *site) send(path string, form url.Values) reply {
	s.t.Helper()
	return s.do("POST", path, form.Encode(), "Accept", "text/html", "Content-Type", formed, "Sec-Fetch-Site", "same-origin")
}

func TestThePageSaysWhyAnAnswerDoesNotCount(t *testing.T) {
	for name, c := range map[string]struct {
		form   url.Values
		before func(s *site, g *run.Gate)
		status int
		want   []string
	}{
		"an answer that is too late": {
			url.Values{"decision": {"approve"}, "as": {"bob"}, "comment": {"<b>me too</b>"}},
			func(s *site, g *run.Gate) { s.plane.now = g.Expires },
			409, []string{"does not count", "nobody decided until", "&lt;b&gt;me too&lt;/b&gt;"},
		},
		"an answer after that of another": {
			url.Values{"decision": {"approve"}, "as": {"bob"}},
			func(s *site, g *run.Gate) {
				s.send("/gates/"+g.ID, url.Values{"decision": {"reject"}, "as": {"ann"}, "actionHash": {g.ActionHash}})
			},
			409, []string{"does not count", "Rejected by ann", "0 of 1"},
		},
		"the requester's": {
			url.Values{"decision": {"approve"}, "as": {"rita"}}, nil,
			409, []string{"does not count", "whoever asks does not decide", "<form"},
		},
		"one about another action": {
			url.Values{"decision": {"approve"}, "as": {"ann"}, "actionHash": {"00"}}, nil,
			409, []string{"does not count", "has changed since it was looked at", "12.5", "<form"},
		},
		"one without a word": {
			url.Values{"as": {"ann"}}, nil, 400, []string{"does not count", "want approve or reject", "<form"},
		},
		"one as nobody that there can be": {
			url.Values{"decision": {"approve"}, "as": {"a\u202eb"}}, nil, 400, []string{"printable"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			g := s.ask("r1", "acme")
			s.Client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			if c.before != nil {
				c.before(s, g)
			}
			if !c.form.Has("actionHash") {
				c.form.Set("actionHash", g.ActionHash)
			}
			r := s.send("/gates/"+g.ID, c.form)
			if r.StatusCode != c.status {
				t.Errorf("status %d, want %d", r.StatusCode, c.status)
			}
			for _, want := range c.want {
				if !strings.Contains(string(r.body), want) {
					t.Errorf("the page has no %q:\n%s", want, r.body)
				}
			}
			if n := len(s.plane.gates[g.ID].Decisions); n > 1 {
				t.Errorf("%d answers count", n)
			}
		})
	}
}

func TestTheSameAnswerTwiceIsTheSameAnswer(t *testing.T) {
	s := newSite(t)
	g := s.ask("r1", "acme")
	for range 2 {
		r := s.send("/gates/"+g.ID, url.Values{"decision": {"approve"}, "as": {"ann"}, "actionHash": {g.ActionHash}})
		if page := string(r.body); r.StatusCode != 200 || !strings.Contains(page, "Approved by ann.") || strings.Contains(page, "does not count") {
			t.Errorf("status %d:\n%s", r.StatusCode, page)
		}
	}
}

func TestManyGatesAreDecidedByTheFormOfTheirList(t *testing.T) {
	s := newSite(t)
	a, b, late := s.ask("r1", "acme"), s.ask("r2", "acme", func(q *run.GateAsk) { q.Title, q.Quorum, q.NotRequester = "Pay <i>two</i>", 2, false }), s.ask("r3", "acme")
	other := s.ask("r4", "acme")
	s.send("/gates/"+late.ID, url.Values{"decision": {"reject"}, "as": {"bob"}, "actionHash": {late.ActionHash}})
	// 1. Those that are not decided count; of the others it is told why not.
	pick := func(gates ...*run.Gate) (out []string) {
		for _, g := range gates {
			out = append(out, g.ID+" "+g.ActionHash)
		}
		return out
	}
	r := s.send("/gates", url.Values{"decision": {"approve"}, "as": {"ann"}, "comment": {"all fine"}, "gate": append(pick(a, b, late), other.ID, "none 00", "<script> 00")})
	page := string(r.body)
	for _, want := range []string{"Pay &lt;i&gt;two&lt;/i&gt;", "1 of 2 have approved", "it is rejected since", "has changed since it was looked at", "there is no gate"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
	if r.StatusCode != 200 || strings.Contains(page, "<script> ") {
		t.Errorf("status %d:\n%s", r.StatusCode, page)
	}
	if got := s.plane.gates[a.ID]; got.State != run.GateApproved || got.Decisions[0].By != "ann" || got.Decisions[0].Comment != "all fine" {
		t.Errorf("the first is %s: %+v", got.State, got.Decisions)
	}
	if got := s.plane.gates[other.ID]; got.State != run.GateOpen || len(got.Decisions) != 0 {
		t.Errorf("one that no action was shown of is %s: %+v", got.State, got.Decisions)
	}
	if got := s.plane.gates[b.ID]; got.State != run.GateOpen || len(got.Decisions) != 1 {
		t.Errorf("the second is %s: %+v", got.State, got.Decisions)
	}
	// 2. What is no such form decides nothing.
	for name, c := range map[string]struct {
		form   url.Values
		site   string
		status int
	}{
		"nothing picked":       {url.Values{"decision": {"reject"}}, "same-origin", 400},
		"too many picked":      {url.Values{"decision": {"reject"}, "gate": make([]string, pageGates+1)}, "same-origin", 400},
		"too large":            {url.Values{"decision": {"reject"}, "comment": {strings.Repeat("x", maxForm)}}, "same-origin", 413},
		"a form of a stranger": {url.Values{"decision": {"reject"}, "gate": pick(b)}, "cross-site", 403},
	} {
		if r := s.do("POST", "/gates", c.form.Encode(), "Accept", "text/html", "Content-Type", formed, "Sec-Fetch-Site", c.site); r.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d", name, r.StatusCode, c.status)
		}
	}
	if got := s.plane.gates[b.ID]; got.State != run.GateOpen {
		t.Errorf("the second is %s", got.State)
	}
}

func TestTheListOffersToPickWhatItShowsWhole(t *testing.T) {
	s := newSite(t)
	plain := func(q *run.GateAsk) { q.Diff = "" }
	small := s.ask("r1", "acme", plain)
	large := s.ask("r2", "acme", plain, func(q *run.GateAsk) { q.Action = json.RawMessage(`"` + strings.Repeat("x", maxTicked) + `"`) })
	changes := s.ask("r3", "acme")
	page := string(s.do("GET", "/gates", "", "Accept", "text/html").body)
	for g, want := range map[*run.Gate]bool{small: true, large: false, changes: false} {
		if got := strings.Contains(page, `name="gate" value="`+g.ID+" "+g.ActionHash+`"`); got != want {
			t.Errorf("gate of %s can be picked: %t, want %t", g.Run, got, want)
		}
	}
	// Of those who may not decide, and of what is decided, there is nothing to pick.
	s.send("/gates/"+small.ID, url.Values{"decision": {"reject"}, "as": {"ann"}, "actionHash": {small.ActionHash}})
	rejected := string(s.do("GET", "/gates?state=rejected", "", "Accept", "text/html").body)
	if !strings.Contains(rejected, small.ID) || strings.Contains(rejected, large.ID) || strings.Contains(rejected, "<form") || !strings.Contains(rejected, "0 of 1") {
		t.Errorf("those that are rejected:\n%s", rejected)
	}
	for _, bad := range []string{"?state=perhaps", "?state=all&approver=me"} {
		if r := s.do("GET", "/gates"+bad, "", "Accept", "text/html"); r.StatusCode != 400 {
			t.Errorf("%s answers %d", bad, r.StatusCode)
		}
	}
}

func TestAPageOfARunWithManyChildrenStaysSmall(t *testing.T) {
	s := newSite(t)
	s.plane.add("r1", "acme")
	for range 1000 {
		s.plane.add("c"+itoa(len(s.plane.runs)), "acme").Parent = "r1"
	}
	r := s.do("GET", "/runs/r1", "", "Accept", "text/html")
	page := string(r.body)
	if n := strings.Count(page, `href="/runs/c`); n != pageRuns || len(page) > 64<<10 || !strings.Contains(page, "/?parent=r1#runs") {
		t.Errorf("%d children in %d bytes", n, len(page))
	}
	list := string(s.do("GET", "/?parent=r1", "", "Accept", "text/html").body)
	if n := strings.Count(list, `href="/runs/c`); n != pageRuns || !strings.Contains(list, "parent=r1") || !strings.Contains(list, "older") {
		t.Errorf("the list has %d of them:\n%.3000s", n, list)
	}
}
