package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// fakeGates keeps gates by the kernel's own rules.
type fakeGates struct {
	gates map[string]*run.Gate
	votes []control.GateVote
	now   run.Instant
}

func (f *fakeGates) Gate(_ context.Context, id string) (*run.Gate, error) {
	if g, ok := f.gates[id]; ok {
		return g, nil
	}
	return nil, missing("gate", id)
}

func (f *fakeGates) GatesOf(_ context.Context, runID string) (all []*run.Gate, err error) {
	for _, g := range f.gates {
		if g.Run == runID {
			all = append(all, g)
		}
	}
	return all, nil
}

func (f *fakeGates) Gates(_ context.Context, q control.GateFilter, limit int, after string) (out []*run.Gate, next string, err error) {
	var ids []string
	for id := range f.gates {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		g := f.gates[id]
		if id <= after || q.State != "" && q.State != g.State || q.Tenants != nil && !slices.Contains(q.Tenants, g.Tenant) ||
			q.Decides != nil && !g.Asks(q.Decides) || q.Approver != "" && !slices.Contains(g.Approvers, q.Approver) {
			continue
		}
		if len(out) == limit {
			return out, out[limit-1].ID, nil
		}
		out = append(out, g)
	}
	return out, "", nil
}

func (f *fakeGates) DecideGates(_ context.Context, votes []control.GateVote) []control.GateOutcome {
	out := make([]control.GateOutcome, len(votes))
	for i, v := range votes {
		f.votes = append(f.votes, v)
		g := f.gates[v.ID]
		if g == nil || v.Tenants != nil && !slices.Contains(v.Tenants, g.Tenant) {
			out[i].Err = missing("gate", v.ID)
			continue
		}
		next, err := g.Decide(v.GateVote, f.now)
		var refusal *run.GateError
		if errors.As(err, &refusal) {
			code := control.Code(refusal.Code)
			if refusal.Code == run.GateCodeNotApprover {
				code = control.CodeForbidden
			}
			out[i].Err = &control.Refusal{Code: code, Detail: refusal.Message}
			continue
		}
		if next != nil {
			g = next
			f.gates[v.ID] = g
		}
		out[i].Gate = g
	}
	return out
}

func (f *fakeGates) RequestGate(_ context.Context, runID string, n int, step string, ask run.GateAsk) (*run.Gate, runtime.Result, error) {
	g, err := run.Ask(nil, run.GateRun{Run: runID, Step: step, Tenant: "acme", Agent: "echo"}, ask, instant)
	if err != nil {
		return nil, runtime.Result{}, &control.Refusal{Code: control.CodeInvalid, Detail: err.Error()}
	}
	g = g.Request()
	f.gates[g.ID] = g
	return g, runtime.Result{Deadline: instant + 60_000}, nil
}

// ask puts an open gate in place, with its run.
func (s *site) ask(id, tenant string, change ...func(*run.GateAsk)) *run.Gate {
	s.t.Helper()
	q := run.GateAsk{Title: "Pay ACME", Action: json.RawMessage(`{"amount":12.5}`), Approvers: []string{"group:finance", "user:rita"}, NotRequester: true, Diff: "-0\n+12.5"}
	for _, c := range change {
		c(&q)
	}
	if s.plane.runs[id] == nil {
		s.plane.add(id, tenant)
		s.plane.move(id, assigned, started)
	}
	g, err := run.Ask(nil, run.GateRun{Run: id, Step: "pay", Tenant: tenant, Agent: "echo", Kind: run.KindAgent, Requester: "rita", Cost: run.Usage{USD: 0.5}}, q, instant)
	if err != nil {
		s.t.Fatal(err)
	}
	s.plane.gates[g.ID] = g
	s.plane.now = instant + 1000
	s.plane.move(id, run.Event{Type: run.EvParked, Attempt: 1, Park: &run.Park{On: run.OnGate, Name: g.ID, Step: "pay", Until: g.Due()}})
	return g
}

func TestAGateIsShownWithAllThatHelpsToDecide(t *testing.T) {
	s := newSite(t)
	g := s.ask("r1", "acme")
	got := into[api.Gate](t, s.do("GET", "/v1/gates/"+g.ID, ""))
	if got.Title != "Pay ACME" || got.Requester != "rita" || string(got.Input) != `{"a":1}` || string(got.Action) != `{"amount":12.5}` ||
		got.Diff == "" || got.Cost.USD != 0.5 || got.Expires == nil || got.ActionHash != g.ActionHash || !got.MayDecide || got.Agent != "echo" {
		t.Errorf("got %+v", got)
	}
	r := into[api.Run](t, s.do("GET", "/v1/runs/r1", ""))
	if r.WaitsFor == nil || r.WaitsFor.On != "gate" || r.WaitsFor.Name != g.ID {
		t.Errorf("the run waits for %+v", r.WaitsFor)
	}
}

func TestWhoDecidesWhat(t *testing.T) {
	decide := func(more string) string { return `{"decision":"approve"` + more + `}` }
	for name, c := range map[string]struct {
		token  string
		body   string
		status int
		code   string
	}{
		"one of the group":                    {"ann", decide(""), 200, ""},
		"with the hash of what was seen":      {"ann", decide(`,"actionHash":"HASH","comment":"fine"`), 200, ""},
		"of another action":                   {"ann", decide(`,"actionHash":"0000"`), 409, "changed"},
		"the requester":                       {"rita", decide(""), 409, "selfApproval"},
		"an operator who is not of the group": {"olga", decide(""), 403, "forbidden"},
		"a submitter":                         {"sam", decide(""), 403, "forbidden"},
		"a viewer":                            {"vera", decide(""), 403, "forbidden"},
		"another tenant's approver":           {"otto", decide(""), 404, "not-found"},
		"nobody":                              {"", decide(""), 401, "unauthorized"},
		"no word":                             {"ann", `{}`, 400, "invalid"},
		"another word":                        {"ann", `{"decision":"perhaps"}`, 400, "invalid"},
		"a field that is none":                {"ann", decide(`,"force":true`), 400, "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			tokens, err := NewTokens([]Token{
				{Name: "ann", SHA256: HashToken("ann"), Role: Approver, Groups: []string{"finance"}},
				{Name: "rita", SHA256: HashToken("rita"), Role: Approver},
				{Name: "olga", SHA256: HashToken("olga"), Role: Operator},
				{Name: "sam", SHA256: HashToken("sam"), Role: Submitter, Groups: []string{"finance"}},
				{Name: "vera", SHA256: HashToken("vera"), Role: Viewer, Groups: []string{"finance"}},
				{Name: "otto", SHA256: HashToken("otto"), Role: Approver, Tenants: []string{"globex"}, Groups: []string{"finance"}},
			})
			if err != nil {
				t.Fatal(err)
			}
			s := newSite(t, func(o *Options) { o.Loopback, o.Auth = false, tokens })
			s.token = c.token
			g := s.ask("r1", "acme")
			r := s.do("POST", "/v1/gates/"+g.ID+":decide", strings.ReplaceAll(c.body, "HASH", g.ActionHash))
			if r.StatusCode != c.status {
				t.Fatalf("status %d, want %d: %s", r.StatusCode, c.status, r.body)
			}
			if c.code == "" {
				if got := into[api.Gate](t, r); got.State != "approved" || got.Decisions[0].By != "ann" {
					t.Errorf("got %+v", got)
				}
				return
			}
			if p := r.problem(t); p.Code() != c.code {
				t.Errorf("code %q, want %q", p.Code(), c.code)
			}
			if s.plane.gates[g.ID].State != run.GateOpen {
				t.Error("it is decided")
			}
		})
	}
}

func TestOnThisMachinePeopleSayWhoTheyAre(t *testing.T) {
	s := newSite(t)
	for name, c := range map[string]struct {
		headers []string
		status  int
	}{
		"nobody says":                 {nil, 200},
		"a name is of every group":    {[]string{api.HeaderAs, "bob"}, 200},
		"but not of groups it denies": {[]string{api.HeaderAs, "bob", api.HeaderGroups, "it,hr"}, 403},
		"it says the group":           {[]string{api.HeaderAs, "bob", api.HeaderGroups, "it,finance"}, 200},
		"it is the requester":         {[]string{api.HeaderAs, "rita"}, 409},
		"it is no name":               {[]string{api.HeaderAs, strings.Repeat("x", 300)}, 401},
	} {
		t.Run(name, func(t *testing.T) {
			g := s.ask("r"+fmt.Sprint(len(s.plane.runs)), "acme")
			if r := s.do("POST", "/v1/gates/"+g.ID+":decide", `{"decision":"approve"}`, c.headers...); r.StatusCode != c.status {
				t.Errorf("status %d, want %d: %s", r.StatusCode, c.status, r.body)
			}
		})
	}
	guarded := newGuarded(t)
	guarded.token = "operator"
	if r := guarded.do("GET", "/v1/gates", "", api.HeaderAs, "ann"); r.StatusCode != 403 {
		t.Errorf("a server with a login answers %d to who says by itself who it is", r.StatusCode)
	}
}

func TestGatesAreListed(t *testing.T) {
	s := newSite(t)
	a := s.ask("r1", "acme")
	b := s.ask("r2", "globex", func(q *run.GateAsk) { q.Approvers = []string{"user:ann"} })
	s.do("POST", "/v1/gates/"+b.ID+":decide", `{"decision":"reject"}`, api.HeaderAs, "ann")
	for query, want := range map[string]int{
		"": 1, "?state=open": 1, "?state=rejected": 1, "?state=all": 2, "?approver=group:finance": 1, "?approver=bob": 0,
		"?state=all&approver=ann": 1, "?approver=me": 1,
	} {
		if got := into[api.List[api.Gate]](t, s.do("GET", "/v1/gates"+query, "")); len(got.Items) != want {
			t.Errorf("%q lists %d, want %d", query, len(got.Items), want)
		}
	}
	page := into[api.List[api.Gate]](t, s.do("GET", "/v1/gates?state=all&limit=1", ""))
	if next := into[api.List[api.Gate]](t, s.do("GET", "/v1/gates?state=all&limit=1&pageToken="+page.NextPageToken, "")); len(next.Items) != 1 || next.Items[0].ID == page.Items[0].ID {
		t.Errorf("the second page has %+v", next.Items)
	}
	for _, bad := range []string{"?state=perhaps", "?approver=team:x", "?run=..", "?tenant=A+B", "?limit=0", "?x=1"} {
		if r := s.do("GET", "/v1/gates"+bad, ""); r.StatusCode != 400 {
			t.Errorf("%s answers %d", bad, r.StatusCode)
		}
	}
	if r := s.do("GET", "/v1/gates/"+a.ID+"x", ""); r.StatusCode != 404 {
		t.Errorf("a gate that is not there answers %d", r.StatusCode)
	}
}

func TestManyDecisionsInOneCall(t *testing.T) {
	s := newSite(t)
	a, b := s.ask("r1", "acme"), s.ask("r2", "acme")
	body := fmt.Sprintf(`{"items":[{"id":%q,"decision":"approve","actionHash":%q},{"id":"none","decision":"approve"},{"id":%q,"decision":"maybe"},{"id":%q,"decision":"reject","actionHash":"00"}]}`, a.ID, a.ActionHash, b.ID, b.ID)
	got := into[api.List[api.GateDecided]](t, s.do("POST", "/v1/gates:decide", body))
	want := []string{"", "not-found", "invalid", "changed"}
	for i, item := range got.Items {
		code := ""
		if item.Error != nil {
			code = item.Error.Code()
		}
		if code != want[i] || (item.Gate != nil) != (want[i] == "") {
			t.Errorf("item %d: %+v, want %q", i, item, want[i])
		}
	}
	many := `{"items":[` + strings.TrimSuffix(strings.Repeat(`{"id":"x","decision":"approve"},`, maxVotes+1), ",") + `]}`
	if r := s.do("POST", "/v1/gates:decide", many); r.StatusCode != 400 {
		t.Errorf("%d decisions answer %d", maxVotes+1, r.StatusCode)
	}
}

func TestAnAttemptAsksPeople(t *testing.T) {
	s := newSite(t)
	s.plane.add("r1", "acme")
	s.plane.grants["tok"] = control.Grant{Run: "r1", N: 1, Agent: "echo", Tenant: "acme"}
	auth := []string{"Authorization", "Bearer tok"}
	r := s.do("POST", "/v1/attempts/r1.1/gates", `{"step":"pay","title":"Pay","action":{"a":1},"quorum":2,"expires":"48h","remind":"12h","escalate":{"after":"24h","to":["group:cfo"]}}`, auth...)
	got := into[api.GateRequested](t, r)
	if r.StatusCode != 201 || got.Gate.State != "requested" || got.Gate.Quorum != 2 || got.Gate.ActionHash == "" || got.Deadline.IsZero() ||
		got.Gate.Expires.Sub(got.Gate.RequestedAt.Time) != 48*time.Hour {
		t.Errorf("got %+v", got)
	}
	for name, body := range map[string]string{
		"no step": `{"title":"Pay"}`, "no title": `{"step":"pay"}`, "a wrong field": `{"step":"pay","title":"Pay","aprovers":["user:x"]}`,
		"a wrong time": `{"step":"pay","title":"Pay","expires":"soon"}`,
	} {
		if r := s.do("POST", "/v1/attempts/r1.1/gates", body, auth...); r.StatusCode != 400 {
			t.Errorf("%s answers %d: %s", name, r.StatusCode, r.body)
		}
	}
	if r := s.do("POST", "/v1/attempts/r1.1:park", `{"park":{"on":"gate","step":"pay","gate":{"title":"Pay","approvers":["user:ann"]}}}`, auth...); r.StatusCode != 200 {
		t.Fatalf("park answers %d: %s", r.StatusCode, r.body)
	}
	last := s.plane.reports[len(s.plane.reports)-1]
	if last.Park.On != run.OnGate || last.Gate == nil || last.Gate.Title != "Pay" || last.Gate.Approvers[0] != "user:ann" {
		t.Errorf("the report is %+v", last)
	}
	if r := s.do("POST", "/v1/attempts/r1.1:park", `{"park":{"on":"input","name":"x","step":"pay","gate":{"title":"Pay"}}}`, auth...); r.StatusCode != 400 {
		t.Errorf("a gate at a park on input answers %d", r.StatusCode)
	}
}
