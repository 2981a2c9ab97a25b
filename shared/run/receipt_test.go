package run

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const t0 = Instant(1_800_000_000_000)

// asking is the wish of a call at second s to act for at most 10 seconds, which settle within 5.
func asking(run string, attempt int, nonce string, s int) BeginRequest {
	now := t0.Add(time.Duration(s) * time.Second)
	return BeginRequest{
		Tenant: "acme", Unit: "u1", Step: "send", Effect: "mail", Run: run, Attempt: attempt, Nonce: nonce, Hash: "h1",
		Policy: UnknownAsk, Now: now, Until: now.Add(10 * time.Second), Settle: 5 * time.Second,
	}
}

func at(s int) Instant { return t0.Add(time.Duration(s) * time.Second) }

// receipt replays changes, each of which must write.
func receipt(t *testing.T, changes ...func(*Receipt) (*Receipt, error)) *Receipt {
	t.Helper()
	var r *Receipt
	for i, change := range changes {
		next, err := change(r)
		if err != nil || next == nil {
			t.Fatalf("change %d wrote %v, %v", i, next, err)
		}
		r = next
	}
	return r
}

type change = func(*Receipt) (*Receipt, error)

func begins(q BeginRequest) change {
	return func(r *Receipt) (*Receipt, error) { next, _ := BeginReceipt(r, q); return next, nil }
}

func commits(run string, attempt int, result string) change {
	return func(r *Receipt) (*Receipt, error) {
		return CommitReceipt(r, CommitRequest{Run: run, Attempt: attempt, Result: inline(result), Now: at(3)})
	}
}

func abandons(run string, attempt int) change {
	return func(r *Receipt) (*Receipt, error) {
		return AbandonReceipt(r, AbandonRequest{Run: run, Attempt: attempt})
	}
}

func marks(s int) change {
	return func(r *Receipt) (*Receipt, error) { return MarkUnknown(r, 0, at(s)), nil }
}

func resolves(happened bool) change {
	return func(r *Receipt) (*Receipt, error) {
		return ResolveReceipt(r, happened, inline(`"seen"`), "ann", at(40))
	}
}

func inline(s string) Payload { return Payload{Inline: json.RawMessage(s), Size: len(s)} }

func TestBeginReceipt(t *testing.T) {
	with := func(q BeginRequest, change func(*BeginRequest)) BeginRequest { change(&q); return q }
	policy := func(p UnknownPolicy) func(*BeginRequest) { return func(q *BeginRequest) { q.Policy = p } }
	ended := func(s int) func(*BeginRequest) { return func(q *BeginRequest) { q.OwnerEnded = at(s) } }
	found := func(q *BeginRequest) { q.Policy, q.DidNotHappen = UnknownReconcile, true }
	request := func(h string) func(*BeginRequest) { return func(q *BeginRequest) { q.Hash = h } }

	first := begins(asking("r1", 1, "n1", 0)) // may act until 10, settled at 15
	reconciling := with(asking("r1", 2, "n2", 20), policy(UnknownReconcile))

	for name, c := range map[string]struct {
		given []change
		q     BeginRequest
		want  Begin
		until int          // of the answer, in seconds
		state ReceiptState // written; "" when nothing is
	}{
		"the first call proceeds, its intent written first": {nil, asking("r1", 1, "n1", 0), BeginProceed, 10, ReceiptIntent},
		"a crash before the call was begun leaves nothing":  {nil, asking("r1", 2, "n2", 20), BeginProceed, 30, ReceiptIntent},
		"a call with no time left does not begin":           {nil, with(asking("r1", 1, "n1", 0), func(q *BeginRequest) { q.Until = q.Now }), BeginFenced, 0, ""},

		"the same call asking again proceeds, its answer was lost":  {[]change{first}, asking("r1", 1, "n1", 2), BeginProceed, 10, ""},
		"another call of the same attempt waits":                    {[]change{first}, asking("r1", 1, "n9", 2), BeginWait, 15, ""},
		"even if its attempt is said to be dead":                    {[]change{first}, with(asking("r1", 1, "n9", 2), ended(1)), BeginWait, 15, ""},
		"the same call past its time cannot go on":                  {[]change{first}, asking("r1", 1, "n1", 11), BeginWait, 15, ""},
		"a lower attempt is fenced":                                 {[]change{begins(asking("r1", 2, "n2", 0))}, asking("r1", 1, "n1", 1), BeginFenced, 0, ""},
		"a lower attempt of another run of the unit is none":        {[]change{begins(asking("r1", 2, "n2", 0))}, asking("r2", 1, "n1", 1), BeginWait, 15, ""},
		"another request on the same receipt is a conflict":         {[]change{first}, with(asking("r1", 2, "n2", 20), request("h2")), BeginConflict, 0, ""},
		"even where repeats are declared harmless":                  {[]change{first}, with(asking("r1", 2, "n2", 20), func(q *BeginRequest) { q.Hash, q.Policy = "h2", UnknownRepeat }), BeginConflict, 0, ""},
		"another request after the first was abandoned is its own":  {[]change{first, abandons("r1", 1)}, with(asking("r1", 2, "n2", 2), request("h2")), BeginProceed, 12, ReceiptIntent},
		"an abandoned effect is performed at once":                  {[]change{first, abandons("r1", 1)}, asking("r1", 2, "n2", 2), BeginProceed, 12, ReceiptIntent},
		"a committed effect is not performed again":                 {[]change{first, commits("r1", 1, `"ok"`)}, asking("r1", 2, "n2", 20), BeginDone, 0, ""},
		"nor by a retried run of the same unit":                     {[]change{first, commits("r1", 1, `"ok"`)}, asking("r2", 1, "n2", 20), BeginDone, 0, ""},
		"nor where repeats are declared harmless":                   {[]change{first, commits("r1", 1, `"ok"`)}, with(asking("r1", 2, "n2", 20), policy(UnknownRepeat)), BeginDone, 0, ""},
		"a late commit leads to done, not to unknown":               {[]change{first, marks(20), commits("r1", 1, `"ok"`)}, asking("r1", 2, "n2", 20), BeginDone, 0, ""},
		"an earlier attempt's call may be acting until it settles":  {[]change{first}, asking("r1", 2, "n2", 14), BeginWait, 15, ""},
		"a known death shortens the wait":                           {[]change{first}, with(asking("r1", 2, "n2", 6), ended(2)), BeginWait, 7, ""},
		"a death after its time does not lengthen it":               {[]change{first}, with(asking("r1", 2, "n2", 14), ended(12)), BeginWait, 15, ""},
		"repeat waits like the others":                              {[]change{first}, with(asking("r1", 2, "n2", 14), policy(UnknownRepeat)), BeginWait, 15, ""},
		"an earlier run's call may be acting too":                   {[]change{first}, asking("r2", 1, "n2", 14), BeginWait, 15, ""},
		"after a crash in between, ask stops for a person":          {[]change{first}, asking("r1", 2, "n2", 15), BeginUnknown, 0, ReceiptUnknown},
		"after a known death too, once it settled":                  {[]change{first}, with(asking("r1", 2, "n2", 7), ended(2)), BeginUnknown, 0, ReceiptUnknown},
		"after a crash in between, fail stops for good":             {[]change{first}, with(asking("r1", 2, "n2", 15), policy(UnknownFail)), BeginUnknown, 0, ReceiptUnknown},
		"after a crash in between, reconcile asks the hook":         {[]change{first}, with(asking("r1", 2, "n2", 15), policy(UnknownReconcile)), BeginUnknown, 0, ReceiptUnknown},
		"after a crash in between, repeat performs it again":        {[]change{first}, with(asking("r1", 2, "n2", 15), policy(UnknownRepeat)), BeginProceed, 25, ReceiptIntent},
		"another call of the attempt finds it unknown in the end":   {[]change{first}, asking("r1", 1, "n9", 15), BeginUnknown, 0, ReceiptUnknown},
		"unknown stays unknown for whoever asks again":              {[]change{first, begins(asking("r1", 2, "n2", 20))}, asking("r1", 2, "n2", 21), BeginUnknown, 0, ""},
		"a next attempt that asks is noted":                         {[]change{first, begins(asking("r1", 2, "n2", 20))}, asking("r1", 3, "n3", 30), BeginUnknown, 0, ReceiptUnknown},
		"repeat performs what was found unknown":                    {[]change{first, marks(15)}, with(asking("r1", 2, "n2", 20), policy(UnknownRepeat)), BeginProceed, 30, ReceiptIntent},
		"a hook that found nothing lets its call perform it":        {[]change{first, begins(reconciling)}, with(asking("r1", 2, "n2", 25), found), BeginProceed, 35, ReceiptIntent},
		"its answer may be lost too":                                {[]change{first, begins(reconciling), begins(with(asking("r1", 2, "n2", 25), found))}, with(asking("r1", 2, "n2", 26), found), BeginProceed, 35, ""},
		"a hook that nobody sent knows nothing":                     {[]change{first}, with(asking("r1", 2, "n2", 20), found), BeginUnknown, 0, ReceiptUnknown},
		"a hook cannot overrule a call that may be acting":          {[]change{first, begins(reconciling), begins(with(asking("r1", 2, "n2", 25), found))}, with(asking("r1", 2, "n3", 26), found), BeginWait, 40, ""},
		"what a hook found before the newest intent is out of date": {[]change{first, begins(asking("r1", 2, "n3", 20)), begins(reconciling), begins(with(asking("r1", 2, "n2", 25), found)), marks(40)}, with(asking("r1", 2, "n3", 41), found), BeginUnknown, 0, ReceiptUnknown},
		"a person's no lets the next call perform it":               {[]change{first, marks(15), resolves(false)}, asking("r1", 2, "n2", 41), BeginProceed, 51, ReceiptIntent},
		"a person's yes is done":                                    {[]change{first, marks(15), resolves(true)}, asking("r1", 2, "n2", 41), BeginDone, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			existing := receipt(t, c.given...)
			var before Receipt
			if existing != nil {
				before = *existing
			}
			if err := c.q.Validate(); err != nil {
				t.Fatal(err)
			}
			next, answer := BeginReceipt(existing, c.q)
			if answer.Begin != c.want {
				t.Errorf("answer is %s (%s), want %s", answer.Begin, answer.Message, c.want)
			}
			if want := at(c.until); (c.until != 0 && answer.Until != want) || (c.until == 0 && answer.Until != 0) {
				t.Errorf("until is %s after the start, want %ds", answer.Until.Sub(t0), c.until)
			}
			switch {
			case (next == nil) != (c.state == ""):
				t.Errorf("wrote %+v, want state %q", next, c.state)
			case next != nil && (next.State != c.state || next.Version != before.Version+1):
				t.Errorf("wrote %s version %d over %d, want %s", next.State, next.Version, before.Version, c.state)
			case next != nil && next.State == ReceiptIntent && (next.Nonce != c.q.Nonce || next.Attempt != c.q.Attempt || next.Run != c.q.Run):
				t.Errorf("the intent belongs to %+v", next)
			}
			if existing != nil && !cmp.Equal(before, *existing) {
				t.Errorf("the stored receipt was changed in place: %s", cmp.Diff(before, *existing))
			}
			if answer.Begin == BeginDone && len(answer.Result.Inline) == 0 {
				t.Error("done without the result")
			}
			explains := answer.Begin == BeginUnknown || answer.Begin == BeginConflict || answer.Begin == BeginFenced
			if explains != (answer.Message != "") {
				t.Errorf("%s says %q", answer.Begin, answer.Message)
			}
		})
	}
}

func TestSettlingAReceipt(t *testing.T) {
	first := begins(asking("r1", 1, "n1", 0))
	second := begins(asking("r1", 2, "n2", 20))
	done := commits("r1", 1, `"ok"`)
	reconciled := func(r *Receipt) (*Receipt, error) {
		return CommitReceipt(r, CommitRequest{Run: "r1", Attempt: 2, Result: inline(`"found"`), Now: at(30), Reconciled: true})
	}
	huge := inline(strings.Repeat("1", MaxInline+1))
	for name, c := range map[string]struct {
		given  []change
		do     change
		state  ReceiptState // written; "" when nothing is
		result string
		err    error
	}{
		"the attempt that began it commits":        {[]change{first}, done, ReceiptDone, `"ok"`, nil},
		"its second commit changes nothing":        {[]change{first, done}, commits("r1", 1, `"other"`), "", "", nil},
		"a commit without an intent is refused":    {nil, done, "", "", ErrNoReceipt},
		"a lower attempt's commit is stale":        {[]change{second}, done, "", "", ErrFenced},
		"a later attempt did not perform it":       {[]change{first}, commits("r1", 2, `"ok"`), "", "", ErrFenced},
		"nor did it what another committed":        {[]change{first, done}, commits("r1", 2, `"ok"`), "", "", ErrFenced},
		"nor did a later run":                      {[]change{first}, commits("r2", 1, `"ok"`), "", "", ErrFenced},
		"a late commit settles an unknown outcome": {[]change{first, marks(15)}, done, ReceiptDone, `"ok"`, nil},
		"it happened, whatever was said before":    {[]change{first, abandons("r1", 1)}, done, ReceiptDone, `"ok"`, nil},
		"a result over the limit is refused": {[]change{first}, func(r *Receipt) (*Receipt, error) {
			return CommitReceipt(r, CommitRequest{Run: "r1", Attempt: 1, Result: huge})
		}, "", "", ErrTooLarge},
		"a hook finds that it happened":                  {[]change{first, second}, reconciled, ReceiptDone, `"found"`, nil},
		"and finds it before it was marked":              {[]change{first}, reconciled, ReceiptDone, `"found"`, nil},
		"and may say so twice":                           {[]change{first, second, reconciled}, reconciled, "", "", nil},
		"a hook of a lower attempt is stale":             {[]change{begins(asking("r1", 3, "n3", 0))}, reconciled, "", "", ErrFenced},
		"a hook cannot overrule what certainly did not":  {[]change{first, abandons("r1", 1)}, reconciled, "", "", ErrSettled},
		"the attempt that began it abandons":             {[]change{first}, abandons("r1", 1), ReceiptAbandoned, "", nil},
		"what never began is abandoned already":          {nil, abandons("r1", 1), "", "", nil},
		"abandoning twice changes nothing":               {[]change{first, abandons("r1", 1)}, abandons("r1", 1), "", "", nil},
		"what happened cannot be abandoned":              {[]change{first, done}, abandons("r1", 1), "", "", ErrSettled},
		"another attempt cannot abandon":                 {[]change{first}, abandons("r1", 2), "", "", ErrFenced},
		"another call of the attempt cannot either":      {[]change{first}, func(r *Receipt) (*Receipt, error) { return AbandonReceipt(r, AbandonRequest{"r1", 1, "n9"}) }, "", "", ErrFenced},
		"the call itself can":                            {[]change{first}, func(r *Receipt) (*Receipt, error) { return AbandonReceipt(r, AbandonRequest{"r1", 1, "n1"}) }, ReceiptAbandoned, "", nil},
		"an intent that may act is not marked unknown":   {[]change{first}, marks(14), "", "", nil},
		"one that settled is":                            {[]change{first}, marks(15), ReceiptUnknown, "", nil},
		"one whose attempt died is, once it settled":     {[]change{first}, func(r *Receipt) (*Receipt, error) { return MarkUnknown(r, at(2), at(7)), nil }, ReceiptUnknown, "", nil},
		"no receipt is not marked":                       {nil, marks(15), "", "", nil},
		"a settled receipt is not marked":                {[]change{first, done}, marks(99), "", "", nil},
		"a person says that it happened":                 {[]change{first, marks(15)}, resolves(true), ReceiptDone, `"seen"`, nil},
		"a person says that it did not":                  {[]change{first, marks(15)}, resolves(false), ReceiptAbandoned, "", nil},
		"saying it twice changes nothing":                {[]change{first, marks(15), resolves(true)}, resolves(true), "", "", nil},
		"a person cannot overrule a commit":              {[]change{first, done}, resolves(false), "", "", ErrSettled},
		"a person cannot overrule an abandon":            {[]change{first, abandons("r1", 1)}, resolves(true), "", "", ErrSettled},
		"a person cannot judge what may still be acting": {[]change{first}, resolves(true), "", "", ErrActing},
		"a person cannot resolve what never began":       {nil, resolves(true), "", "", ErrNoReceipt},
		"a person's result has the same limit":           {[]change{first, marks(15)}, func(r *Receipt) (*Receipt, error) { return ResolveReceipt(r, true, huge, "ann", at(40)) }, "", "", ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			existing := receipt(t, c.given...)
			next, err := c.do(existing)
			if !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
				t.Fatalf("error is %v, want %v", err, c.err)
			}
			if (next == nil) != (c.state == "") {
				t.Fatalf("wrote %+v, want state %q", next, c.state)
			}
			if next == nil {
				return
			}
			if next.State != c.state || string(next.Result.Inline) != c.result || next.Version != existing.Version+1 {
				t.Errorf("wrote %s %s at version %d, want %s %s", next.State, next.Result.Inline, next.Version, c.state, c.result)
			}
			if (next.State == ReceiptDone) != (next.DoneAt != 0) {
				t.Errorf("%s at %d", next.State, next.DoneAt)
			}
		})
	}
}

func TestResolvingNeedsAName(t *testing.T) {
	r := receipt(t, begins(asking("r1", 1, "n1", 0)), marks(15))
	for _, by := range []string{"", strings.Repeat("a", MaxReceiptMark+1)} {
		if next, err := ResolveReceipt(r, true, Payload{}, by, at(20)); err == nil || next != nil {
			t.Errorf("resolved by %.5q", by)
		}
	}
}

func TestReceiptIDTellsEveryNameApart(t *testing.T) {
	seen := map[string][4]string{}
	for _, n := range [][4]string{{"a", "b", "c", "d"}, {"ab", "", "c", "d"}, {"a", "bc", "", "d"}, {"a", "b", "cd", ""}, {"", "ab", "c", "d"}, {"a", "b", "", "cd"}} {
		id := ReceiptID(n[0], n[1], n[2], n[3])
		if other, ok := seen[id]; ok {
			t.Errorf("%v and %v share %s", n, other, id)
		}
		seen[id] = n
		if len(id) != 26 || strings.ToLower(id) != id {
			t.Errorf("id %q", id)
		}
	}
	// The id is stored and handed to outside systems: a change of the hash would perform finished effects again.
	if got := ReceiptID("acme", "r1", "send", "mail"); got != "yire24pa3qt4fp5tye4ni7tj74" {
		t.Errorf("ReceiptID changed to %s", got)
	}
}

func TestAnInvalidBeginSaysWhat(t *testing.T) {
	for want, spoil := range map[string]func(*BeginRequest){
		"tenant is missing":      func(q *BeginRequest) { q.Tenant = "" },
		"effect is missing":      func(q *BeginRequest) { q.Effect = "" },
		"nonce is missing":       func(q *BeginRequest) { q.Nonce = "" },
		"requestHash is missing": func(q *BeginRequest) { q.Hash = "" },
		"step has 513 bytes":     func(q *BeginRequest) { q.Step = strings.Repeat("s", 513) },
		"nonce has 129 bytes":    func(q *BeginRequest) { q.Nonce = strings.Repeat("s", 129) },
		`onUnknown is "shrug"`:   func(q *BeginRequest) { q.Policy = "shrug" },
		"attempt 0":              func(q *BeginRequest) { q.Attempt = 0 },
		"no time to act":         func(q *BeginRequest) { q.Until = 0 },
		"settle is -1s":          func(q *BeginRequest) { q.Settle = -time.Second },
		"settle is 25h0m0s":      func(q *BeginRequest) { q.Settle = 25 * time.Hour },
	} {
		q := asking("r1", 1, "n1", 0)
		spoil(&q)
		if err := q.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want it to say %q", err, want)
		}
	}
	q := asking("r1", 1, "n1", 0)
	q.Step = ""
	if err := q.Validate(); err != nil {
		t.Errorf("an effect outside any step: %v", err)
	}
}

func FuzzDecodeReceipt(f *testing.F) {
	next, _ := BeginReceipt(nil, asking("r1", 1, "n1", 0))
	body, err := EncodeReceipt(next)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{"id":"x","v":1,"s":"done","r":"r","a":1,"res":{"v":{}}}`))
	f.Add([]byte(`{"s":"intent"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := DecodeReceipt(body)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error without ErrCorrupt: %v", err)
			}
			return
		}
		again, err := EncodeReceipt(r)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := DecodeReceipt(again)
		if err != nil {
			t.Fatal(err)
		}
		if third, _ := EncodeReceipt(twice); string(third) != string(again) {
			t.Errorf("round trip changed\n%s\nto\n%s", again, third)
		}
		BeginReceipt(r, asking("r1", 2, "n2", 50))
	})
}

func TestUndoingAnEffect(t *testing.T) {
	intent := func(change func(*Receipt)) *Receipt {
		r := &Receipt{ID: ReceiptID("t", "u", "", "e"), Tenant: "t", Unit: "u", Effect: "e", Version: 1, State: ReceiptIntent, Run: "r1", Attempt: 2, Nonce: "n", Hash: "h", BegunAt: t0, Until: t0 + 1000, Compensable: true}
		if change != nil {
			change(r)
		}
		return r
	}
	in := func(s ReceiptState) *Receipt { return intent(func(r *Receipt) { r.State = s }) }
	for name, x := range map[string]struct {
		of   *Receipt
		want ReceiptState // "" for unchanged
		err  error
	}{
		"what happened is undone":                         {in(ReceiptDone), ReceiptCompensated, nil},
		"so is what may have happened":                    {in(ReceiptUnknown), ReceiptCompensated, nil},
		"what is undone stays so":                         {in(ReceiptCompensated), "", nil},
		"of what did not happen nothing is left":          {in(ReceiptAbandoned), "", nil},
		"what may be under way cannot be undone":          {in(ReceiptIntent), "", ErrActing},
		"there is nothing to undo where nothing was done": {nil, "", ErrNoReceipt},
	} {
		t.Run(name, func(t *testing.T) {
			next, err := CompensateReceipt(x.of)
			if !errors.Is(err, x.err) {
				t.Fatalf("error %v, want %v", err, x.err)
			}
			if (next == nil) != (x.want == "") || next != nil && next.State != x.want {
				t.Fatalf("got %+v, want state %q", next, x.want)
			}
		})
	}
	t.Run("it may be performed anew, under another key, and undone by another effect", func(t *testing.T) {
		done := in(ReceiptDone)
		undone, err := CompensateReceipt(done)
		if err != nil {
			t.Fatal(err)
		}
		again, answer := BeginReceipt(undone, BeginRequest{
			Tenant: "t", Unit: "u", Effect: "e", Run: "r2", Attempt: 1, Nonce: "m", Hash: "other", Policy: UnknownAsk, Now: t0 + 9000, Until: t0 + 9500, Compensable: true,
		})
		if answer.Begin != BeginProceed || again.ID != done.ID || again.Key() == done.Key() || done.Key() != done.ID {
			t.Fatalf("answer %+v, receipt %+v", answer, again)
		}
		if a, b := done.UndoEffect(), again.UndoEffect(); a != "undo:e" || b != "undo2:e" {
			t.Fatalf("undone by %q, then by %q", a, b)
		}
	})
	t.Run("that it failed is known as long as something of the effect may be left", func(t *testing.T) {
		for state, want := range map[ReceiptState]bool{ReceiptDone: true, ReceiptUnknown: true, ReceiptIntent: false, ReceiptAbandoned: false, ReceiptCompensated: false} {
			next := FailUndo(in(state))
			if (next != nil) != want || next != nil && (next.State != state || !next.UndoFailed || FailUndo(next) != nil) {
				t.Errorf("of %s: %+v", state, next)
			}
		}
		failed := FailUndo(in(ReceiptUnknown))
		if happened, err := ResolveReceipt(failed, true, Payload{}, "ann", t0); err != nil || !happened.UndoFailed {
			t.Errorf("it happened after all: %+v, %v", happened, err)
		}
		if not, err := ResolveReceipt(failed, false, Payload{}, "ann", t0); err != nil || not.UndoFailed {
			t.Errorf("it did not happen: %+v, %v", not, err)
		}
		if undone, err := CompensateReceipt(failed); err != nil || undone.UndoFailed {
			t.Errorf("it is undone: %+v, %v", undone, err)
		}
	})
	t.Run("nobody's late word makes it happen again", func(t *testing.T) {
		undone := in(ReceiptCompensated)
		if _, err := CommitReceipt(undone, CommitRequest{Run: "r1", Attempt: 2, Now: t0}); !errors.Is(err, ErrSettled) {
			t.Errorf("commit: %v", err)
		}
		if _, err := AbandonReceipt(undone, AbandonRequest{Run: "r1", Attempt: 2}); !errors.Is(err, ErrSettled) {
			t.Errorf("abandon: %v", err)
		}
		if _, err := ResolveReceipt(undone, true, Payload{}, "ann", t0); !errors.Is(err, ErrSettled) {
			t.Errorf("resolve: %v", err)
		}
	})
	t.Run("names of effects that undo are told from others", func(t *testing.T) {
		for name, want := range map[string]string{"undo:mail": "mail", "undo12:mail:a": "mail:a", "undo": "", "undone:x": "", "mail": "", "undo:": ""} {
			got, ok := Undone(name)
			if got != want || ok != (want != "" || name == "undo:") {
				t.Errorf("%q undoes %q, %t", name, got, ok)
			}
		}
	})
	t.Run("who was told unknown last is remembered until somebody acts", func(t *testing.T) {
		told, _ := BeginReceipt(in(ReceiptUnknown), BeginRequest{Tenant: "t", Unit: "u", Effect: "e", Run: "r3", Attempt: 1, Nonce: "m", Hash: "h", Policy: UnknownAsk, Now: t0 + 9000, Until: t0 + 9500})
		if told == nil || told.Waiter != "r3" {
			t.Fatalf("%+v", told)
		}
	})
}
