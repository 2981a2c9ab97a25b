package run

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var payment = GateAsk{Title: "Pay ACME", Action: json.RawMessage(`{"iban":"DE1","amount":12.50}`)}

func ask(t testing.TB, change func(*GateAsk)) *Gate {
	t.Helper()
	q := payment
	if change != nil {
		change(&q)
	}
	g, err := Ask(nil, GateRun{Run: "r1", Step: "pay", Tenant: "acme", Agent: "payer", Kind: KindAgent, Requester: "rita"}, q, t0)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func says(name string, d Verdict) GateVote { return GateVote{Person: Person{Name: name}, Decision: d} }

func TestWhoMayDecideAndWhatItMeans(t *testing.T) {
	four := func(q *GateAsk) { q.NotRequester = true }
	two := func(q *GateAsk) { q.Quorum = 2 }
	named := func(q *GateAsk) {
		q.Approvers = []string{"user:ann", "group:finance", "role:approver"}
		q.EscalateTo, q.EscalateAfter = []string{"group:cfo"}, 2*time.Hour
	}
	at := t0.Add(time.Hour)
	for name, c := range map[string]struct {
		ask    func(*GateAsk)
		before []GateVote
		vote   GateVote
		at     Instant
		code   GateCode  // of the refusal
		state  GateState // after it
	}{
		"one approval is enough":                          {vote: says("ann", Approve), state: GateApproved},
		"one rejection rejects":                           {vote: says("ann", Reject), state: GateRejected},
		"a quorum of two is not reached by one":           {ask: two, vote: says("ann", Approve), state: GateOpen},
		"a quorum of two is reached by two":               {ask: two, before: []GateVote{says("ann", Approve)}, vote: says("bob", Approve), state: GateApproved},
		"but not by one who says it twice":                {ask: two, before: []GateVote{says("ann", Approve)}, vote: says("ann", Approve), state: GateOpen},
		"one rejection rejects whatever was approved":     {ask: two, before: []GateVote{says("ann", Approve)}, vote: says("bob", Reject), state: GateRejected},
		"nobody says two things":                          {ask: two, before: []GateVote{says("ann", Approve)}, vote: says("ann", Reject), code: GateCodeDecided, state: GateOpen},
		"what is decided is not decided again":            {before: []GateVote{says("ann", Approve)}, vote: says("bob", Approve), code: GateCodeDecided, state: GateApproved},
		"nor otherwise":                                   {before: []GateVote{says("ann", Approve)}, vote: says("bob", Reject), code: GateCodeDecided, state: GateApproved},
		"who decided and says so again is told the same":  {before: []GateVote{says("ann", Approve)}, vote: says("ann", Approve), state: GateApproved},
		"also after its time":                             {before: []GateVote{says("ann", Approve)}, vote: says("ann", Approve), at: t0.Add(30 * day), state: GateApproved},
		"the requester may approve where nobody minds":    {vote: says("rita", Approve), state: GateApproved},
		"but not where four eyes are wanted":              {ask: four, vote: says("rita", Approve), code: GateCodeSelfApproval, state: GateOpen},
		"nor reject":                                      {ask: four, vote: says("rita", Reject), code: GateCodeSelfApproval, state: GateOpen},
		"another person may":                              {ask: four, vote: says("ann", Approve), state: GateApproved},
		"a named person may":                              {ask: named, vote: says("ann", Approve), state: GateApproved},
		"another may not":                                 {ask: named, vote: says("bob", Approve), code: GateCodeNotApprover, state: GateOpen},
		"one of the group may":                            {ask: named, vote: GateVote{Person: Person{Name: "bob", Groups: []string{"x", "finance"}}, Decision: Approve}, state: GateApproved},
		"one of another group may not":                    {ask: named, vote: GateVote{Person: Person{Name: "bob", Groups: []string{"cfo"}}, Decision: Approve}, code: GateCodeNotApprover, state: GateOpen},
		"one with the role may":                           {ask: named, vote: GateVote{Person: Person{Name: "bob", Roles: []string{"viewer", "approver"}}, Decision: Approve}, state: GateApproved},
		"a name is not a group":                           {ask: named, vote: GateVote{Person: Person{Name: "finance"}, Decision: Approve}, code: GateCodeNotApprover, state: GateOpen},
		"where nobody logs in everyone is in every group": {ask: named, vote: GateVote{Person: Person{Name: "bob", AnyGroup: true}, Decision: Approve}, state: GateApproved},
		"a decision about what is asked counts":           {vote: GateVote{Person: Person{Name: "ann"}, Decision: Approve, ActionHash: ask(t, nil).ActionHash}, state: GateApproved},
		"one about another action does not":               {vote: GateVote{Person: Person{Name: "ann"}, Decision: Approve, ActionHash: "5d41"}, code: GateCodeChanged, state: GateOpen},
		"a second before the end it counts":               {vote: says("ann", Approve), at: t0.Add(DefaultExpiry - time.Second), state: GateApproved},
		"a second after it does not":                      {vote: says("ann", Approve), at: t0.Add(DefaultExpiry + time.Second), code: GateCodeExpired, state: GateOpen},
		"nor at the end itself":                           {vote: says("ann", Approve), at: t0.Add(DefaultExpiry), code: GateCodeExpired, state: GateOpen},
		"nobody decides nameless":                         {vote: says("", Approve), code: GateCodeInvalid, state: GateOpen},
		"there are two words":                             {vote: says("ann", "perhaps"), code: GateCodeInvalid, state: GateOpen},
		"a comment has an end": {vote: GateVote{Person: Person{Name: "ann"}, Decision: Approve, Comment: string(make([]byte, MaxComment+1))},
			code: GateCodeInvalid, state: GateOpen},
	} {
		t.Run(name, func(t *testing.T) {
			g := ask(t, c.ask)
			for _, v := range c.before {
				next, err := g.Decide(v, t0.Add(time.Minute))
				if err != nil || next == nil {
					t.Fatal(next, err)
				}
				g = next
			}
			when := c.at
			if when == 0 {
				when = at
			}
			was := g.Version
			next, err := g.Decide(c.vote, when)
			var refusal *GateError
			switch {
			case err == nil && next != nil:
				if next.Version != was+1 || g.Version != was {
					t.Errorf("version %d became %d, the old one %d", was, next.Version, g.Version)
				}
				g = next
			case err != nil && (!errors.As(err, &refusal) || !errors.Is(err, ErrGate)):
				t.Fatalf("not a GateError: %v", err)
			}
			if refusal == nil {
				refusal = new(GateError)
			}
			if refusal.Code != c.code || g.State != c.state {
				t.Errorf("code %q, state %q; want %q, %q (%v)", refusal.Code, g.State, c.code, c.state, err)
			}
		})
	}
}

func TestTheTimersOfAGate(t *testing.T) {
	type step struct {
		at    time.Duration
		did   []string
		state GateState
		due   time.Duration // of the gate after it; 0 for none
	}
	for name, c := range map[string]struct {
		ask   func(*GateAsk)
		steps []step
	}{
		"it expires, rejected": {func(q *GateAsk) { q.Expires = 4 * time.Hour }, []step{
			{3 * time.Hour, nil, GateOpen, 4 * time.Hour},
			{4 * time.Hour, []string{GateTimedOut}, GateLapsed, 0},
			{9 * time.Hour, nil, GateLapsed, 0},
		}},
		"it expires, approved": {func(q *GateAsk) { q.Expires, q.OnExpiry = 4*time.Hour, ExpiryApprove }, []step{
			{4 * time.Hour, []string{GateTimedOut}, GateApproved, 0},
		}},
		"people are reminded until it is over": {func(q *GateAsk) { q.Expires, q.Remind = 5*time.Hour, 2*time.Hour }, []step{
			{time.Hour, nil, GateOpen, 2 * time.Hour},
			{2 * time.Hour, []string{GateReminded}, GateOpen, 4 * time.Hour},
			{4 * time.Hour, []string{GateReminded}, GateOpen, 5 * time.Hour},
			{5 * time.Hour, []string{GateTimedOut}, GateLapsed, 0},
		}},
		"a clock that stood still reminds once": {func(q *GateAsk) { q.Expires, q.Remind = 50*time.Hour, 2*time.Hour }, []step{
			{21 * time.Hour, []string{GateReminded}, GateOpen, 23 * time.Hour},
		}},
		"it escalates in time": {func(q *GateAsk) {
			q.Expires, q.EscalateAfter, q.EscalateTo = 5*time.Hour, 3*time.Hour, []string{"group:cfo"}
		}, []step{
			{3 * time.Hour, []string{GateEscalated}, GateOpen, 5 * time.Hour},
			{5 * time.Hour, []string{GateTimedOut}, GateLapsed, 0},
		}},
		"it escalates at its end, once": {func(q *GateAsk) {
			q.Expires, q.OnExpiry, q.EscalateTo = 5*time.Hour, ExpiryEscalate, []string{"group:cfo"}
		}, []step{
			{6 * time.Hour, []string{GateEscalated}, GateOpen, 11 * time.Hour},
			{11 * time.Hour, []string{GateTimedOut}, GateLapsed, 0},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := ask(t, c.ask)
			for _, s := range c.steps {
				next, did := g.Pass(t0.Add(s.at))
				if next != nil {
					g = next
				}
				want := t0.Add(s.due)
				if s.due == 0 {
					want = 0
				}
				if diff := cmp.Diff(s.did, did); diff != "" || g.State != s.state || g.Due() != want {
					t.Errorf("after %s it is %s and due %d, want %s and %d; did (-want +got):\n%s", s.at, g.State, g.Due(), s.state, want, diff)
				}
			}
		})
	}
}

func TestWhomItEscalatesToMayDecideFromThenOn(t *testing.T) {
	cfo := GateVote{Person: Person{Name: "cleo", Groups: []string{"cfo"}}, Decision: Approve}
	g := ask(t, func(q *GateAsk) {
		q.Approvers, q.EscalateTo, q.EscalateAfter = []string{"user:ann"}, []string{"group:cfo"}, time.Hour
	})
	if _, err := g.Decide(cfo, t0+1); err == nil {
		t.Fatal("before it was escalated")
	}
	g, _ = g.Pass(t0.Add(time.Hour))
	if next, err := g.Decide(cfo, t0.Add(2*time.Hour)); err != nil || next.State != GateApproved {
		t.Fatal(err)
	}
	if next, err := g.Decide(says("ann", Approve), t0.Add(2*time.Hour)); err != nil || next.State != GateApproved {
		t.Fatal("those who were asked first may no more:", err)
	}
}

func TestAskingAgain(t *testing.T) {
	of := GateRun{Run: "r1", Step: "pay", Tenant: "acme", Requester: "rita"}
	other := payment
	other.Action = json.RawMessage(`{"iban":"DE2","amount":12.50}`)
	same := payment
	same.Action = json.RawMessage(` { "amount" : 12.5 , "iban":"DE1"}`)
	approved, _ := ask(t, nil).Decide(says("ann", Approve), t0+1)
	for name, c := range map[string]struct {
		existing *Gate
		q        GateAsk
		anew     bool
		code     GateCode
	}{
		"the same action stands":                     {ask(t, nil), same, false, ""},
		"another one is asked anew":                  {ask(t, nil), other, true, ""},
		"what was approved is not asked again":       {approved, same, false, ""},
		"nor is another action taken for it":         {approved, other, false, GateCodeChanged},
		"what was closed undecided is asked again":   {ask(t, nil).Cancel(t0 + 1), same, true, ""},
		"what nobody could decide yet is asked anew": {ask(t, nil).Request(), same, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			next, err := Ask(c.existing, of, c.q, t0+2)
			var refusal *GateError
			if errors.As(err, &refusal) != (c.code != "") || refusal != nil && refusal.Code != c.code || (next != nil) != c.anew {
				t.Fatalf("anew %t, want %t: %v", next != nil, c.anew, err)
			}
			if next != nil && (next.Version != c.existing.Version+1 || next.Round != c.existing.Round+1 || len(next.Decisions) > 0 || next.State != GateOpen) {
				t.Errorf("it is %+v", next)
			}
		})
	}
	// An approval of the first action does not count for the second.
	next, err := Ask(ask(t, nil), of, other, t0+2)
	if err != nil {
		t.Fatal(err)
	}
	_, err = next.Decide(GateVote{Person: Person{Name: "ann"}, Decision: Approve, ActionHash: approved.ActionHash}, t0+3)
	var refusal *GateError
	if !errors.As(err, &refusal) || refusal.Code != GateCodeChanged {
		t.Errorf("got %v, want changed", err)
	}
}

func TestWhatCannotBeAsked(t *testing.T) {
	for name, c := range map[string]struct {
		q    func(*GateAsk)
		want error
	}{
		"no title":                                 {func(q *GateAsk) { q.Title = " " }, ErrInvalid},
		"a title of two lines":                     {func(q *GateAsk) { q.Title = "a\nb" }, ErrInvalid},
		"an approver of no kind":                   {func(q *GateAsk) { q.Approvers = []string{"ann"} }, ErrInvalid},
		"an approver without name":                 {func(q *GateAsk) { q.Approvers = []string{"user:"} }, ErrInvalid},
		"too many approvers":                       {func(q *GateAsk) { q.Approvers = make([]string, MaxApprovers+1) }, ErrTooLarge},
		"a quorum below one":                       {func(q *GateAsk) { q.Quorum = -1 }, ErrInvalid},
		"more than may approve":                    {func(q *GateAsk) { q.Approvers, q.Quorum = []string{"user:ann", "user:ann"}, 2 }, ErrInvalid},
		"only the requester may":                   {func(q *GateAsk) { q.Approvers, q.NotRequester = []string{"user:rita"}, true }, ErrInvalid},
		"it escalates to nobody":                   {func(q *GateAsk) { q.OnExpiry = ExpiryEscalate }, ErrInvalid},
		"an expiry of no kind":                     {func(q *GateAsk) { q.OnExpiry = "ignore" }, ErrInvalid},
		"a time below zero":                        {func(q *GateAsk) { q.Expires = -1 }, ErrInvalid},
		"a time without end":                       {func(q *GateAsk) { q.Expires = MaxGateWait + 1 }, ErrInvalid},
		"an action that is huge":                   {func(q *GateAsk) { q.Action = make([]byte, MaxGateAction+1) }, ErrTooLarge},
		"an action with a key that is there twice": {func(q *GateAsk) { q.Action = json.RawMessage(`{"to":"a","to":"b"}`) }, ErrInvalid},
		"context that is no JSON":                  {func(q *GateAsk) { q.Context = json.RawMessage(`{`) }, ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			q := payment
			c.q(&q)
			if _, err := Ask(nil, GateRun{Run: "r1", Step: "pay", Requester: "rita"}, q, t0); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestOneActionHasOneHash(t *testing.T) {
	for name, c := range map[string]struct {
		a, b string
		same bool
	}{
		"the order of keys":          {`{"a":1,"b":[1,2]}`, ` {"b":[1, 2],"a":1 }`, true},
		"the order of lists":         {`[1,2]`, `[2,1]`, false},
		"how a number is written":    {`[1,100,0.5,-0]`, `[1.0,1e2,5E-1,0]`, true},
		"its value":                  {`1`, `1.0000000000000000000001`, false},
		"beyond what floats hold":    {`9007199254740993`, `9007199254740992`, false},
		"its sign":                   {`1`, `-1`, false},
		"a large power of ten":       {`1e300`, `10e299`, true},
		"how a letter is written":    {`"\u0041\/<"`, `"A/\u003c"`, true},
		"text and number":            {`"1"`, `1`, false},
		"null and nothing":           {``, `null`, true},
		"a key and its value change": {`{"a":"b"}`, `{"b":"a"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := HashAction(json.RawMessage(c.a))
			if err != nil {
				t.Fatal(err)
			}
			b, err := HashAction(json.RawMessage(c.b))
			if err != nil {
				t.Fatal(err)
			}
			if (a == b) != c.same {
				t.Errorf("%s and %s: same %t, want %t", c.a, c.b, a == b, c.same)
			}
		})
	}
	for _, bad := range []string{`{`, `1 2`, `{"a":1,"\u0061":2}`, `"\ud800"`, "\"\xff\"", `1e99999999`, `[1,]`} {
		if _, err := HashAction(json.RawMessage(bad)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzHashAction(f *testing.F) {
	for _, s := range []string{`{"b":1,"a":[1.50,"x"]}`, `-0.0e5`, `"\ud83d\ude00"`, `{"a":{"a":{}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, action []byte) {
		form, err := canonical(action)
		if err != nil {
			return
		}
		again, err := canonical(form)
		if err != nil || string(again) != string(form) {
			t.Fatalf("%q has the form %q, which has the form %q: %v", action, form, again, err)
		}
	})
}

// Whoever says what in whichever order: a gate is decided once, by enough different people that may, and one no is no.
func TestAGateIsDecidedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := payment
		q.Quorum = rapid.IntRange(1, 3).Draw(t, "quorum")
		q.NotRequester = rapid.Bool().Draw(t, "four eyes")
		g, err := Ask(nil, GateRun{Run: "r1", Step: "pay", Requester: "rita"}, q, t0)
		if err != nil {
			t.Fatal(err)
		}
		now := t0
		for range 12 {
			now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "hours")) * time.Hour)
			was := *g
			if next, _ := g.Pass(now); next != nil {
				g = next
			}
			name := rapid.SampledFrom([]string{"ann", "bob", "cleo", "rita"}).Draw(t, "who")
			word := rapid.SampledFrom([]Verdict{Approve, Approve, Approve, Reject}).Draw(t, "word")
			if next, _ := g.Decide(says(name, word), now); next != nil {
				g = next
			}
			if was.State != GateOpen && g.Version != was.Version {
				t.Fatalf("%s, it became %s", was.State, g.State)
			}
			approved := map[string]bool{}
			for _, d := range g.Decisions {
				if approved[d.By] || d.By == "rita" && q.NotRequester {
					t.Fatalf("%s counts", d.By)
				}
				approved[d.By] = true
				if d.Decision == Reject && g.State != GateRejected {
					t.Fatalf("rejected by %s, it is %s", d.By, g.State)
				}
			}
			if g.State == GateApproved && len(approved) != q.Quorum {
				t.Fatalf("approved by %d, the quorum is %d", len(approved), q.Quorum)
			}
			body, err := EncodeGate(g)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := DecodeGate(body); err != nil || !cmp.Equal(again, g, same) {
				t.Fatalf("it does not read back: %v\n%s", err, cmp.Diff(g, again, same))
			}
		}
	})
}

func TestTheDeadlineStandsStillWhileAPersonIsWaitedFor(t *testing.T) {
	at := func(s int) Instant { return t0.Add(time.Duration(s) * time.Second) }
	waits := func(left int64) Event {
		return Event{Type: EvParked, Attempt: 1, Park: &Park{On: OnGate, Step: "s", Name: "g", Left: left}}
	}
	for name, c := range map[string]struct {
		left        int64
		latest      Instant
		leave       Event
		while, then Instant
	}{
		"it goes on where it stood":              {50_000, 0, woken, 0, at(1000 + 50)},
		"where waiting counts it does not stand": {0, 0, woken, at(100), at(100)},
		"what the submitter wants stays":         {50_000, at(1020), woken, at(1020), at(1020)},
		"a cancel makes it go on too":            {50_000, 0, canceling, 0, at(1000 + 50)},
		"so does a person who stops it":          {50_000, 0, Event{Type: EvSuspended}, 0, at(1000 + 50)},
	} {
		t.Run(name, func(t *testing.T) {
			spec := Spec{ID: "r1", Tenant: "acme", Agent: "payer", Deadline: at(100), Latest: c.latest}
			r := New(spec, Event{Type: EvSubmitted, At: t0})
			do := func(e Event, s int) {
				e.At = at(s)
				if err := Decide(r, &e); err != nil {
					t.Fatal(err)
				}
				Evolve(r, e)
			}
			do(assigned, 1)
			do(started, 2)
			do(waits(c.left), 50)
			if r.Deadline != c.while {
				t.Errorf("while it waits the deadline is %d, want %d", r.Deadline, c.while)
			}
			do(signaled, 60) // something else happens
			do(Event{Type: EvGateChanged, Code: GateReminded, Due: at(2000)}, 70)
			if r.Due != at(2000) {
				t.Errorf("due %d", r.Due)
			}
			do(c.leave, 1000)
			if r.Deadline != c.then {
				t.Errorf("after it the deadline is %d, want %d", r.Deadline, c.then)
			}
			for _, from := range []Spec{spec, r.Spec} {
				folded, err := Fold(from, r.Tail)
				if err != nil || folded.Deadline != r.Deadline {
					t.Errorf("history gives %d: %v", folded.Deadline, err)
				}
			}
			again, err := DecodeRecord(Encode(r))
			if err != nil || !cmp.Equal(again, r, same) {
				t.Errorf("it does not read back: %v\n%s", err, cmp.Diff(r, again, same))
			}
		})
	}
}
