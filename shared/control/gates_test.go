package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

var pay = run.GateAsk{
	Title: "Pay ACME", Action: json.RawMessage(`{"iban":"DE1","amount":12.5}`),
	Approvers: []string{"group:finance", "user:rita"}, NotRequester: true, Expires: 48 * time.Hour,
}

// atGate submits a run as rita and brings it to a gate.
func (h *house) atGate(ask run.GateAsk) (*run.Record, *run.Gate) {
	h.t.Helper()
	r := h.submit(Submission{Agent: "payer", Actor: "rita"})
	h.park(r.ID, 1, ask)
	return h.gateOf(r.ID)
}

func (h *house) park(id string, n int, ask run.GateAsk) {
	h.t.Helper()
	h.lease("w1", 1, "payer")
	res := h.report(runtime.Report{Type: runtime.Parked, Run: id, N: n, Worker: "w1", Park: &run.Park{On: run.OnGate, Step: "pay"}, Gate: &ask})
	if res.Err != nil {
		h.t.Fatalf("park: %v", res.Err)
	}
}

func (h *house) gateOf(id string) (*run.Record, *run.Gate) {
	h.t.Helper()
	gates, err := h.p.GatesOf(h.t.Context(), id)
	if err != nil || len(gates) != 1 {
		h.t.Fatalf("gates of %s: %v, %v", id, gates, err)
	}
	return h.get(id), gates[0]
}

func (h *house) vote(g *run.Gate, name string, d run.Verdict, hash string) error {
	h.t.Helper()
	out := h.p.DecideGates(h.t.Context(), []GateVote{finance(g.ID, name, d, hash)})[0]
	h.settle()
	return out.Err
}

func finance(id, name string, d run.Verdict, hash string) GateVote {
	return GateVote{ID: id, GateVote: run.GateVote{Person: run.Person{Name: name, Groups: []string{"finance"}}, Decision: d, ActionHash: hash, Comment: "because"}}
}

func code(err error) Code {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return ""
}

func TestARunGoesOnWhenPeopleHaveDecided(t *testing.T) {
	for name, c := range map[string]struct {
		verdict run.Verdict
		want    string
	}{
		"they approve": {run.Approve, "approved"},
		"they reject":  {run.Reject, "rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("payer"))
			r, g := h.atGate(pay)
			wantState(t, r, run.Waiting, "")
			if n := h.p.ix.world.Runs(); n != 0 || len(h.p.ix.runs) != 0 {
				t.Fatalf("%d slots in use, %d runs in memory", n, len(h.p.ix.runs))
			}
			if g.Requester != "rita" || g.State != run.GateOpen || g.Step != "pay" {
				t.Fatalf("gate = %+v", g)
			}
			if e, err := h.p.Explain(t.Context(), r.ID, ""); err != nil || !strings.Contains(strings.Join(e.Story, " "), "until people have decided gate "+g.ID) {
				t.Errorf("the story is %q, %v", e.Story, err)
			}
			if err := h.vote(g, "ann", c.verdict, g.ActionHash); err != nil {
				t.Fatal(err)
			}
			leases := h.lease("w1", 1, "payer")
			if len(leases) != 1 || leases[0].N != 2 || len(leases[0].Steps) != 1 {
				t.Fatalf("leases = %+v", leases)
			}
			var got run.GateResult
			if err := json.Unmarshal(leases[0].Steps[0].Result, &got); err != nil {
				t.Fatal(err)
			}
			want := run.GateResult{Gate: g.ID, Decision: c.want, By: []string{"ann"}, Comment: "because", ActionHash: g.ActionHash, At: "2026-03-01T12:00:00.000Z"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the step's result (-want +got):\n%s", diff)
			}
			if r, _ := h.gateOf(r.ID); r.Spent != 0 {
				t.Errorf("waiting spent %d attempts", r.Spent)
			}
		})
	}
}

// Whatever goes wrong at a gate has one outcome, whoever asks is told the truth, and history has it.
func TestOneTruthAtAGate(t *testing.T) {
	type said struct {
		name string
		word run.Verdict
		hash string // "" for that of the action that stands
		code Code
	}
	for name, c := range map[string]struct {
		ask    func(*run.GateAsk)
		then   func(h *house, id string) // between the request and what is said
		said   []said
		result run.GateState
		told   []string // codes in history, with who
	}{
		"two approvers: the second is told who was first": {
			said:   []said{{"ann", run.Approve, "", ""}, {"bob", run.Approve, "", CodeDecided}},
			result: run.GateApproved, told: []string{"approved ann", "refused bob"},
		},
		"a rejection after an approval": {
			said:   []said{{"ann", run.Approve, "", ""}, {"bob", run.Reject, "", CodeDecided}},
			result: run.GateApproved, told: []string{"approved ann", "refused bob"},
		},
		"the same person again": {
			said:   []said{{"ann", run.Approve, "", ""}, {"ann", run.Approve, "", ""}},
			result: run.GateApproved, told: []string{"approved ann"},
		},
		"two of two": {
			ask:    func(q *run.GateAsk) { q.Quorum = 2 },
			said:   []said{{"ann", run.Approve, "", ""}, {"ann", run.Approve, "", ""}, {"bob", run.Approve, "", ""}},
			result: run.GateApproved, told: []string{"approve ann", "approved bob"},
		},
		"the requester": {
			said:   []said{{"rita", run.Approve, "", CodeSelfApproval}},
			result: run.GateOpen, told: []string{"refused rita"},
		},
		"somebody who is not asked": {
			ask:    func(q *run.GateAsk) { q.Approvers = []string{"user:cleo"} },
			said:   []said{{"ann", run.Approve, "", CodeForbidden}},
			result: run.GateOpen, told: []string{"refused ann"},
		},
		"an action that is another by now": {
			said:   []said{{"ann", run.Approve, "0000", CodeChanged}, {"ann", run.Approve, "", ""}},
			result: run.GateApproved, told: []string{"refused ann", "approved ann"},
		},
		"a second before it expires": {
			then:   func(h *house, _ string) { h.pass(48*time.Hour - time.Second) },
			said:   []said{{"ann", run.Approve, "", ""}},
			result: run.GateApproved, told: []string{"approved ann"},
		},
		"a second after it expired": {
			then:   func(h *house, _ string) { h.pass(48*time.Hour + time.Second) },
			said:   []said{{"ann", run.Approve, "", CodeExpired}},
			result: run.GateLapsed, told: []string{"expired ", "refused ann"},
		},
		"after it expired, before anybody noticed": {
			then:   func(h *house, _ string) { h.mu.Lock(); h.now = h.now.Add(48*time.Hour + time.Second); h.mu.Unlock() },
			said:   []said{{"ann", run.Approve, "", CodeExpired}, {"ann", run.Approve, "", CodeExpired}},
			result: run.GateLapsed, told: []string{"refused ann", "expired ", "refused ann"},
		},
		"it expires, which approves": {
			ask:    func(q *run.GateAsk) { q.OnExpiry = run.ExpiryApprove },
			then:   func(h *house, _ string) { h.pass(49 * time.Hour) },
			said:   []said{{"ann", run.Reject, "", CodeExpired}},
			result: run.GateApproved, told: []string{"approved ", "refused ann"},
		},
		"the run was canceled": {
			then: func(h *house, id string) {
				if _, err := h.p.Cancel(h.t.Context(), id, CancelRequest{Actor: "rita"}); err != nil {
					h.t.Fatal(err)
				}
			},
			said:   []said{{"ann", run.Approve, "", CodeState}},
			result: run.GateCanceled,
		},
		"the run was suspended": {
			then: func(h *house, id string) {
				if _, err := h.p.Suspend(h.t.Context(), id, "rita"); err != nil {
					h.t.Fatal(err)
				}
			},
			said:   []said{{"ann", run.Approve, "", CodeState}},
			result: run.GateCanceled, told: []string{"refused ann"},
		},
		"reminders and an escalation": {
			ask: func(q *run.GateAsk) {
				q.Approvers, q.Remind = []string{"user:cleo"}, 20*time.Hour
				q.EscalateAfter, q.EscalateTo = 30*time.Hour, []string{"group:finance"}
			},
			then:   func(h *house, _ string) { h.pass(20 * time.Hour); h.pass(10 * time.Hour); h.pass(10 * time.Hour) },
			said:   []said{{"ann", run.Approve, "", ""}},
			result: run.GateApproved, told: []string{"reminded ", "escalated ", "reminded ", "approved ann"},
		},
		"somebody who may once it escalates, before its timer was looked at": {
			ask: func(q *run.GateAsk) {
				q.Approvers, q.OnExpiry, q.EscalateTo = []string{"user:cleo"}, run.ExpiryEscalate, []string{"group:finance"}
				q.Expires = 30 * time.Hour
			},
			then: func(h *house, _ string) {
				h.mu.Lock()
				h.now = h.now.Add(30 * time.Hour)
				h.mu.Unlock()
			},
			said:   []said{{"ann", run.Approve, "", ""}},
			result: run.GateApproved, told: []string{"escalated ", "approved ann"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("payer"))
			ask := pay
			if c.ask != nil {
				c.ask(&ask)
			}
			r, g := h.atGate(ask)
			first := h.get(r.ID).Seq
			if c.then != nil {
				c.then(h, r.ID)
			}
			for _, s := range c.said {
				if err := h.vote(g, s.name, s.word, s.hash); code(err) != s.code || (err != nil) != (s.code != "") {
					t.Errorf("%s says %s: got %v, want %q", s.name, s.word, err, s.code)
				}
			}
			_, g = h.gateOf(r.ID)
			if g.State != c.result {
				t.Errorf("it is %s, want %s", g.State, c.result)
			}
			events, err := h.p.History(t.Context(), r.ID, first, 100)
			if err != nil {
				t.Fatal(err)
			}
			var told []string
			for _, e := range events {
				if e.Type == run.EvGateChanged || e.Type == run.EvWoken {
					told = append(told, e.Code+" "+e.Actor)
				}
			}
			if diff := cmp.Diff(c.told, told); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
			if open, _, err := h.p.Gates(t.Context(), GateFilter{State: run.GateOpen}, 10, ""); err != nil || (len(open) == 1) != (c.result == run.GateOpen) {
				t.Errorf("%d open gates: %v", len(open), err)
			}
		})
	}
}

func TestOfManyWhoDecideAtOnceOneDoes(t *testing.T) {
	h := newHouse(t, agentNamed("payer"))
	r, g := h.atGate(pay)
	const people = 16
	errs := make([]error, people)
	var all sync.WaitGroup
	for i := range people {
		all.Go(func() {
			word := run.Approve
			if i%2 == 1 {
				word = run.Reject
			}
			errs[i] = h.p.DecideGates(t.Context(), []GateVote{finance(g.ID, fmt.Sprint("p", i), word, g.ActionHash)})[0].Err
		})
	}
	all.Wait()
	h.settle()
	won := 0
	for i, err := range errs {
		switch {
		case err == nil:
			won++
		case code(err) != CodeDecided:
			t.Errorf("person %d is told %v", i, err)
		}
	}
	rec, g := h.gateOf(r.ID)
	woken := 0
	for _, e := range rec.Tail {
		if e.Type == run.EvWoken {
			woken++
		}
	}
	if won != 1 || len(g.Decisions) != 1 || woken != 1 || rec.State == run.Waiting {
		t.Errorf("%d decided, %d decisions count, the run was woken %d times and is %s", won, len(g.Decisions), woken, rec.State)
	}
	if len(g.Refused) != people-1 {
		t.Errorf("%d of %d who came too late are on record", len(g.Refused), people-1)
	}
}

func TestManyGatesAreDecidedInOneCall(t *testing.T) {
	h := newHouse(t, agentNamed("payer"))
	var votes []GateVote
	var runs []string
	for range 30 {
		r, g := h.atGate(pay)
		votes, runs = append(votes, finance(g.ID, "ann", run.Approve, g.ActionHash)), append(runs, r.ID)
	}
	votes = append(votes, finance(votes[0].ID, "ann", run.Approve, ""), finance(votes[0].ID, "bob", run.Reject, ""), finance("none", "ann", run.Approve, ""),
		GateVote{ID: votes[1].ID, Tenants: []string{"other"}, GateVote: votes[1].GateVote})
	out := h.p.DecideGates(t.Context(), votes)
	h.settle()
	want := map[int]Code{31: CodeDecided, 32: CodeNotFound, 33: CodeNotFound}
	for i, o := range out {
		if code(o.Err) != want[i] {
			t.Errorf("vote %d: %v, want %q", i, o.Err, want[i])
		}
	}
	for _, id := range runs {
		if r := h.get(id); r.State == run.Waiting || r.Park != nil {
			t.Errorf("run %s is %s", id, r.State)
		}
	}
	if open, _, err := h.p.Gates(t.Context(), GateFilter{State: run.GateOpen}, 100, ""); err != nil || len(open) != 0 {
		t.Errorf("%d gates are open: %v", len(open), err)
	}
}

func TestAGateThatWasRequestedOpensWhenItsRunWaits(t *testing.T) {
	h := newHouse(t, agentNamed("payer"))
	r := h.submit(Submission{Agent: "payer", Actor: "rita"})
	h.lease("w1", 1, "payer")
	request := func(n int, ask run.GateAsk) (*run.Gate, error) {
		g, _, err := h.p.RequestGate(t.Context(), r.ID, n, "pay", ask)
		return g, err
	}
	first, err := request(1, pay)
	if err != nil || first.State != run.GateRequested {
		t.Fatal(first, err)
	}
	if err := h.vote(first, "ann", run.Approve, ""); code(err) != CodeInvalid && code(err) != CodeState {
		t.Errorf("before the run waits a decision gave %v", err)
	}
	// The action changes before the run waits: an approval of the first one is about something else.
	other := pay
	other.Action = json.RawMessage(`{"iban":"DE2","amount":12.5}`)
	h.pass(5 * time.Second)
	second, err := request(1, other)
	if err != nil || second.ID != first.ID || second.ActionHash == first.ActionHash {
		t.Fatal(second, err)
	}
	if _, err := request(2, pay); !errors.Is(err, run.ErrFenced) {
		t.Errorf("another attempt asked: %v", err)
	}
	h.pass(5 * time.Second)
	if res := h.report(runtime.Report{Type: runtime.Parked, Run: r.ID, N: 1, Park: &run.Park{On: run.OnGate, Step: "pay"}}); res.Err != nil {
		t.Fatal(res.Err)
	}
	_, g := h.gateOf(r.ID)
	if want := h.p.now().Add(48 * time.Hour); g.Expires != want {
		t.Errorf("its time ends %s, want 48h after the run waits", g.Expires.Time())
	}
	if err := h.vote(g, "ann", run.Approve, first.ActionHash); code(err) != CodeChanged {
		t.Errorf("the approval of what was asked first gave %v", err)
	}
	if err := h.vote(g, "ann", run.Approve, second.ActionHash); err != nil {
		t.Error(err)
	}
	// Its step has ended: it is not asked for again.
	h.lease("w1", 1, "payer")
	if g, err = request(2, other); err != nil || g.State != run.GateApproved {
		t.Errorf("asked again it is %+v, %v", g, err)
	}
	if _, err := request(2, pay); code(err) != CodeChanged {
		t.Errorf("another action than the approved one gave %v", err)
	}
	h.report(runtime.Report{Type: runtime.Parked, Run: r.ID, N: 2, Park: &run.Park{On: run.OnGate, Step: "pay"}})
	if r := h.get(r.ID); r.State != run.Failed {
		t.Errorf("parked again in a step that has ended it is %s", r.State)
	}
}

func TestAQuestionThatCannotBeIsRefused(t *testing.T) {
	h := newHouse(t, agentNamed("payer"))
	r := h.submit(Submission{Agent: "payer", Actor: "rita"})
	h.lease("w1", 1, "payer")
	bad := pay
	bad.Approvers = []string{"user:rita"}
	for name, rep := range map[string]runtime.Report{
		"nobody may decide it":         {Gate: &bad},
		"there is none":                {},
		"a timer with a gate":          {Park: &run.Park{On: run.OnTimer, Step: "pay", Until: 1}, Gate: &pay},
		"an action that has two means": {Gate: &run.GateAsk{Title: "x", Action: json.RawMessage(`{"a":1,"a":2}`)}},
	} {
		rep.Type, rep.Run, rep.N = runtime.Parked, r.ID, 1
		if rep.Park == nil {
			rep.Park = &run.Park{On: run.OnGate, Step: "pay"}
		}
		if res := h.report(rep); !errors.Is(res.Err, runtime.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, res.Err)
		}
	}
	if r := h.get(r.ID); !r.Live() {
		t.Errorf("the run is %s", r.State)
	}
}

// Waiting for a person does not use up the time of the run, unless its agent says so; what the submitter wants does not
// move.
func TestWaitingForAPersonDoesNotCount(t *testing.T) {
	hour := fleet.Duration(time.Hour)
	for name, c := range map[string]struct {
		counts   bool
		deadline time.Duration // of the submitter
		state    run.State     // after 40 hours
		left     time.Duration // after the decision
	}{
		"it does not count":              {false, 0, run.Waiting, time.Hour},
		"it counts":                      {true, 0, run.Failed, 0},
		"the submitter's deadline holds": {false, 30 * time.Hour, run.Failed, 0},
		"as long as it is not reached":   {false, 41 * time.Hour, run.Waiting, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("payer", func(a *fleet.Agent) { a.Timeouts.Run, a.Timeouts.CountWaiting = hour, c.counts }))
			s := Submission{Agent: "payer", Actor: "rita"}
			if c.deadline != 0 {
				s.Deadline = began.Add(c.deadline)
			}
			r := h.submit(s)
			h.park(r.ID, 1, pay)
			h.pass(40 * time.Hour)
			r, g := h.gateOf(r.ID)
			if r.State != c.state {
				t.Fatalf("after 40 hours it is %s (%s)", r.State, r.Reason)
			}
			if c.state == run.Failed {
				if g.State != run.GateCanceled || r.Reason != run.DeadlineExceeded {
					t.Errorf("gate %s, reason %s", g.State, r.Reason)
				}
				return
			}
			if err := h.vote(g, "ann", run.Approve, ""); err != nil {
				t.Fatal(err)
			}
			if got := h.get(r.ID); got.Deadline != h.p.now().Add(c.left) {
				t.Errorf("it has %s left, want %s", got.Deadline.Sub(h.p.now()), c.left)
			}
			h.pass(time.Hour + time.Second)
			if got := h.get(r.ID); got.State != run.Failed || got.Reason != run.DeadlineExceeded {
				t.Errorf("when the time is over it is %s (%s)", got.State, got.Reason)
			}
		})
	}
}

func TestGatesAndTheirTimersSurviveARestart(t *testing.T) { // case F22
	h := newHouse(t, agentNamed("payer"))
	ask := pay
	ask.Remind = 10 * time.Hour
	r, _ := h.atGate(ask)
	other, _ := h.atGate(ask)
	h.restart()
	h.pass(10 * time.Hour)
	_, g := h.gateOf(r.ID)
	if g.Reminded != 1 {
		t.Errorf("reminded %d times after 10 hours and a restart", g.Reminded)
	}
	h.restart()
	if err := h.vote(g, "ann", run.Approve, g.ActionHash); err != nil {
		t.Fatal(err)
	}
	if leases := h.lease("w1", 2, "payer"); len(leases) != 1 || leases[0].Run != r.ID || leases[0].N != 2 {
		t.Errorf("leases = %+v", leases)
	}
	// The other one's time runs out while no process is there.
	h.mu.Lock()
	h.now = h.now.Add(40 * time.Hour)
	h.mu.Unlock()
	h.restart()
	if got, g := h.gateOf(other.ID); got.State == run.Waiting || g.State != run.GateLapsed {
		t.Errorf("run %s, gate %s", got.State, g.State)
	}
}

// restart opens a new control plane over the store, once the lease of the one before is over.
func (h *house) restart() {
	h.t.Helper()
	h.mu.Lock()
	h.now = h.now.Add(15 * time.Second)
	h.mu.Unlock()
	h.open()
}

func TestGatesAreListed(t *testing.T) {
	h := newHouse(t, agentNamed("payer"))
	any := pay
	any.Approvers = nil
	_, a := h.atGate(pay)
	_, b := h.atGate(any)
	if err := h.vote(b, "ann", run.Reject, ""); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		f    GateFilter
		want int
	}{
		"all":                       {GateFilter{}, 2},
		"open ones":                 {GateFilter{State: run.GateOpen}, 1},
		"rejected ones":             {GateFilter{State: run.GateRejected}, 1},
		"of a run":                  {GateFilter{Run: a.Run}, 1},
		"of a tenant":               {GateFilter{Tenant: "default"}, 2},
		"of another":                {GateFilter{Tenants: []string{"acme"}}, 0},
		"whom a group is asked for": {GateFilter{Approver: "group:finance"}, 2},
		"whom another is asked for": {GateFilter{Approver: "group:it"}, 1},
		"that somebody can decide":  {GateFilter{Decides: &run.Person{Name: "ann", Groups: []string{"finance"}}}, 2},
		"that the requester cannot": {GateFilter{Decides: &run.Person{Name: "rita", Groups: []string{"finance"}}}, 0},
		"that a stranger cannot":    {GateFilter{Decides: &run.Person{Name: "bob"}, State: run.GateOpen}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := 0
			for after := ""; ; {
				page, next, err := h.p.Gates(t.Context(), c.f, 1, after)
				if err != nil {
					t.Fatal(err)
				}
				if got += len(page); next == "" {
					break
				}
				after = next
			}
			if got != c.want {
				t.Errorf("%d gates, want %d", got, c.want)
			}
		})
	}
}

func TestAGateGoesWithItsRun(t *testing.T) {
	h := newHouse(t, agentNamed("payer", func(a *fleet.Agent) { a.Retain = fleet.Duration(time.Hour) }))
	r, g := h.atGate(pay)
	if _, err := h.p.Cancel(t.Context(), r.ID, CancelRequest{}); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		h.pass(30 * time.Minute)
	}
	if _, err := h.p.Gate(t.Context(), g.ID); !isNotFound(err) {
		t.Errorf("got %v, want none", err)
	}
	if _, err := h.store.Get(t.Context(), store.KindRun, r.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("its run: %v", err)
	}
}
