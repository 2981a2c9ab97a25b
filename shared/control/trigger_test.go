package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/trigger"
)

func ordersTrigger(change ...func(*fleet.Trigger)) *fleet.Trigger {
	t := &fleet.Trigger{Meta: fleet.Meta{Name: "orders"}, PubSub: &fleet.PubSubSource{Topic: "orders"}, Run: fleet.TriggerRun{Agent: "clerk"}}
	for _, c := range change {
		c(t)
	}
	return t
}

// strict wants an input {"order": N}.
func strict(a *fleet.Agent) {
	a.Input = fleet.Schema(`{"type":"object","required":["order"]}`)
}

func messageOf(id, data string) *trigger.Message {
	return &trigger.Message{ID: id, Subscription: "projects/p/subscriptions/errand-trigger-orders", PublishTime: began.Add(-time.Minute), Data: []byte(data)}
}

func (h *house) take(a Arrived) (Taken, error) {
	h.t.Helper()
	type result struct {
		t   Taken
		err error
	}
	r := await(h, func() result { t, err := h.p.TakeMessage(h.t.Context(), a); return result{t, err} })
	return r.t, r.err
}

func (h *house) replay(id, through string) (Submitted, error) {
	h.t.Helper()
	s := await(h, func() Submitted {
		s, err := h.p.ReplayDeadLetter(h.t.Context(), id, through, "ann")
		s.Err = err
		return s
	})
	return s, s.Err
}

func (h *house) letters() []DeadLetter {
	h.t.Helper()
	list, _, err := h.p.DeadLetters(h.t.Context(), 100, "")
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

func codeOf(err error) Code {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Code
	}
	return ""
}

func TestAMessageBecomesOneRun(t *testing.T) {
	h := newHouse(t, agentNamed("clerk", strict), ordersTrigger())
	a := Arrived{Trigger: "orders", Message: messageOf("1", `{"order":7}`), Actor: "pusher"}
	first, err := h.take(a)
	if err != nil {
		t.Fatal(err)
	}
	if r := h.get(first.Run.ID); first.Existed || r.Agent != "clerk" || r.Tenant != "default" || string(r.Input.Inline) != `{"order":7}` ||
		r.Labels["trigger"] != "orders" || r.Key != "orders/1" {
		t.Errorf("run %+v, existed %v", r, first.Existed)
	}
	again, err := h.take(a)
	if err != nil || !again.Existed || again.Run.ID != first.Run.ID {
		t.Errorf("the repeat gave %+v, %v; want run %s", again, err, first.Run.ID)
	}
	other, err := h.take(Arrived{Trigger: "orders", Message: messageOf("2", `{"order":7}`)})
	if err != nil || other.Run.ID == first.Run.ID {
		t.Errorf("another message gave %+v, %v", other, err)
	}
}

func TestARepeatMeetsItsRunAlsoWhenTheTriggerChanged(t *testing.T) {
	h := newHouse(t, agentNamed("clerk"), ordersTrigger())
	a := Arrived{Trigger: "orders", Message: messageOf("1", `{"order":7}`)}
	first, err := h.take(a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.p.Apply(t.Context(), fleetOf(ordersTrigger(func(t *fleet.Trigger) { t.Run.Input = "message.data.order" })), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	again, err := h.take(a)
	if err != nil || !again.Existed || again.Run.ID != first.Run.ID {
		t.Errorf("the repeat gave %+v, %v; want run %s", again, err, first.Run.ID)
	}
}

func TestTwoMessagesUnderOneKeyOfTheirOwn(t *testing.T) {
	h := newHouse(t, agentNamed("clerk"), ordersTrigger(func(t *fleet.Trigger) { t.Run.Key = "message.data.order" }))
	first, err := h.take(Arrived{Trigger: "orders", Message: messageOf("1", `{"order":7}`)})
	if err != nil {
		t.Fatal(err)
	}
	again, err := h.take(Arrived{Trigger: "orders", Message: messageOf("2", `{"order":7}`)})
	if err != nil || again.Run.ID != first.Run.ID {
		t.Errorf("the same order gave %+v, %v", again, err)
	}
	if _, err := h.take(Arrived{Trigger: "orders", Message: messageOf("3", `{"order":7,"more":1}`)}); codeOf(err) != CodeConflict {
		t.Errorf("another body under the key gave %v, want a conflict", err)
	}
}

func TestTenantsOfMessages(t *testing.T) {
	named := func(t *fleet.Trigger) { t.Run.Tenant = "message.data.tenant" }
	tests := map[string]struct {
		trigger *fleet.Trigger
		tenants []string
		want    string // "" for a refusal
	}{
		"nobody names one":              {ordersTrigger(), nil, "default"},
		"the caller has but one":        {ordersTrigger(), []string{"acme"}, "acme"},
		"the trigger names one":         {ordersTrigger(named), nil, "acme"},
		"the caller may act for it":     {ordersTrigger(named), []string{"beta", "acme"}, "acme"},
		"the caller may not act for it": {ordersTrigger(named), []string{"beta"}, ""},
		"the caller has more than one":  {ordersTrigger(), []string{"acme", "beta"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, agentNamed("clerk"), tt.trigger)
			got, err := h.take(Arrived{Trigger: "orders", Message: messageOf("1", `{"tenant":"acme"}`), Tenants: tt.tenants})
			switch {
			case tt.want == "" && codeOf(err) != CodeForbidden:
				t.Errorf("taken as %+v with %v, want a refusal", got.Run, err)
			case tt.want != "" && (err != nil || got.Run.Tenant != tt.want):
				t.Errorf("taken as %+v with %v, want tenant %s", got.Run, err, tt.want)
			}
		})
	}
}

// A broker's count may start over: the control plane's own decides.
func TestPoisonIsADeadLetterAfterItsAttemptsWhateverTheBrokerCounts(t *testing.T) { // case F09
	h := newHouse(t, agentNamed("clerk", strict), ordersTrigger())
	for i, brokers := range []int{1, 2, 3, 1} {
		m := messageOf("1", `{"hunter2":1}`)
		m.Attempt = brokers
		if _, err := h.take(Arrived{Trigger: "orders", Message: m}); codeOf(err) != CodeInvalid {
			t.Fatalf("delivery %d: %v, want a refusal", i+1, err)
		}
		if n := len(h.letters()); n != 0 {
			t.Fatalf("%d dead letters after %d deliveries", n, i+1)
		}
		if i == 1 {
			h.open() // a restart forgets nothing
		}
	}
	last, err := h.take(Arrived{Trigger: "orders", Message: messageOf("1", `{"hunter2":1}`)})
	if err != nil || last.DeadLetter == "" || last.Run != nil {
		t.Fatalf("the fifth gave %+v, %v; want a dead letter", last, err)
	}
	letter, err := h.p.DeadLetter(t.Context(), last.DeadLetter)
	if err != nil || letter.Trigger != "orders" || letter.Attempts != 5 || letter.Message.ID != "1" || string(letter.Message.Data) != `{"hunter2":1}` ||
		!strings.Contains(letter.Reason, "schema") || letter.At != run.At(began) {
		t.Errorf("letter %+v, %v", letter, err)
	}
	if strings.Contains(letter.Reason, "hunter2") {
		t.Errorf("the reason repeats the data: %s", letter.Reason)
	}
	// One more delivery of it: counted anew, and the same letter in the end.
	for range 5 {
		last, err = h.take(Arrived{Trigger: "orders", Message: messageOf("1", `{"hunter2":1}`)})
	}
	if err != nil || last.DeadLetter != letter.ID || len(h.letters()) != 1 {
		t.Errorf("delivered again: %+v, %v, %d letters", last, err, len(h.letters()))
	}
	if left, err := h.store.Tagged(t.Context(), store.KindMisc, tagDelivery, "", 10); err != nil || len(left) != 0 {
		t.Errorf("%d counts are left, %v", len(left), err)
	}
}

func TestOverloadIsNoPoison(t *testing.T) {
	h := newHouse(t, agentNamed("clerk", func(a *fleet.Agent) { a.Backpressure = fleet.BackpressureShed }),
		ordersTrigger(func(t *fleet.Trigger) { t.PubSub.MaxAttempts = 1 }))
	if err := h.p.PauseAgent(t.Context(), "clerk", true, "ann"); err != nil {
		t.Fatal(err)
	}
	_, err := h.take(Arrived{Trigger: "orders", Message: messageOf("1", `{}`)})
	var r *Refusal
	if !errors.As(err, &r) || r.Code != CodeOverloaded || r.RetryAfter <= 0 {
		t.Errorf("got %v, want overload with a time to come back", err)
	}
	if n := len(h.letters()); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func TestCountIsForgottenWhenTheMessageIsTaken(t *testing.T) {
	h := newHouse(t, agentNamed("clerk"), ordersTrigger())
	a := Arrived{Trigger: "orders", Message: messageOf("1", `{}`)}
	if err := h.p.Delete(t.Context(), fleet.KindAgent, "clerk", 0, "ann"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.take(a); codeOf(err) != CodeNotFound {
		t.Fatalf("without its agent: %v", err)
	}
	if _, err := h.p.Apply(t.Context(), fleetOf(agentNamed("clerk")), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.take(a); err != nil {
		t.Fatal(err)
	}
	if left, err := h.store.Tagged(t.Context(), store.KindMisc, tagDelivery, "", 10); err != nil || len(left) != 0 {
		t.Errorf("%d counts are left, %v", len(left), err)
	}
}

func TestDeadLetterIsRecordedOnce(t *testing.T) { // case F09
	h := newHouse(t)
	record := func(l DeadLetter) (DeadLetter, bool) {
		t.Helper()
		got, existed, err := h.p.RecordDeadLetter(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		return got, existed
	}
	first, existed := record(DeadLetter{Trigger: "orders", Message: messageOf("1", "x"), Attempts: 5})
	again, existedThen := record(DeadLetter{Trigger: "orders", Message: messageOf("1", "x"), Attempts: 7, Reason: "another"})
	if existed || !existedThen || first.ID != again.ID || again.Attempts != 5 || first.Reason == "" {
		t.Errorf("first %+v %v, then %+v %v", first, existed, again, existedThen)
	}
	if other, _ := record(DeadLetter{Message: messageOf("1", "x")}); other.ID == first.ID {
		t.Error("the message of no trigger is taken for the other's")
	}
	for name, bad := range map[string]DeadLetter{
		"no message id":        {Message: messageOf("", "x")},
		"a trigger of no name": {Trigger: "A b", Message: messageOf("2", "x")},
		"data over the limit":  {Message: messageOf("3", strings.Repeat("x", trigger.MaxData+1))},
	} {
		if _, _, err := h.p.RecordDeadLetter(t.Context(), bad); codeOf(err) == "" {
			t.Errorf("%s: recorded with %v", name, err)
		}
	}
}

func TestDeadLettersAreListedByAge(t *testing.T) {
	h := newHouse(t)
	for i := range 5 {
		m := messageOf(fmt.Sprint(i), "x")
		m.PublishTime = began.Add(time.Duration(-i) * time.Hour)
		if _, _, err := h.p.RecordDeadLetter(t.Context(), DeadLetter{Trigger: "orders", Message: m}); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for token := ""; ; {
		page, next, err := h.p.DeadLetters(t.Context(), 2, token)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page {
			got = append(got, l.Message.ID)
		}
		if token = next; token == "" {
			break
		}
	}
	if strings.Join(got, "") != "43210" {
		t.Errorf("listed as %v", got)
	}
	// The next one takes the old ones away, with their data.
	old := h.letters()[0]
	h.pass(KeepDeadLetters + time.Second)
	if _, _, err := h.p.RecordDeadLetter(t.Context(), DeadLetter{Message: messageOf("new", "x")}); err != nil {
		t.Fatal(err)
	}
	if list := h.letters(); len(list) != 1 || list[0].Message.ID != "new" {
		t.Errorf("left are %+v", list)
	}
	if _, err := h.store.Get(t.Context(), store.KindPayload, letterPrefix+old.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("its data: %v", err)
	}
}

func TestReplayStartsEachTime(t *testing.T) {
	h := newHouse(t, agentNamed("clerk"), ordersTrigger())
	m := messageOf("1", `{"order":7}`)
	before, err := h.take(Arrived{Trigger: "orders", Message: m})
	if err != nil {
		t.Fatal(err)
	}
	letter, _, err := h.p.RecordDeadLetter(t.Context(), DeadLetter{Trigger: "orders", Message: m})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{before.Run.ID: true}
	for i := 1; i <= 3; i++ {
		done, err := h.replay(letter.ID, "")
		if err != nil || done.Existed || seen[done.Run.ID] || string(h.get(done.Run.ID).Input.Inline) != `{"order":7}` {
			t.Fatalf("replay %d: %+v, %v", i, done, err)
		}
		seen[done.Run.ID] = true
		now, err := h.p.DeadLetter(t.Context(), letter.ID)
		if err != nil || now.Replays != i || now.Run != done.Run.ID {
			t.Errorf("after replay %d: %+v, %v", i, now, err)
		}
	}
}

// A submission that was made and not counted is met again, not made twice.
func TestReplayThatWasNotCountedIsMetAgain(t *testing.T) {
	h := newHouse(t, agentNamed("clerk"), ordersTrigger())
	letter, _, err := h.p.RecordDeadLetter(t.Context(), DeadLetter{Trigger: "orders", Message: messageOf("1", `1`)})
	if err != nil {
		t.Fatal(err)
	}
	x := h.p.declared.get(fleet.KindTrigger, "orders")
	lost := await(h, func() Submitted {
		s, _ := h.p.submitMessage(context.Background(), x, Arrived{Trigger: "orders", Message: messageOf("1", `1`), Actor: "ann"}, 1)
		return s
	})
	done, err := h.replay(letter.ID, "")
	if err != nil || done.Run.ID != lost.Run.ID || !done.Existed {
		t.Errorf("replay gave %+v, %v; want run %s", done, err, lost.Run.ID)
	}
}

func TestReplayThroughAnotherTrigger(t *testing.T) {
	h := newHouse(t, agentNamed("clerk"), ordersTrigger())
	letter, _, err := h.p.RecordDeadLetter(t.Context(), DeadLetter{Message: messageOf("1", `1`)})
	if err != nil {
		t.Fatal(err)
	}
	for through, want := range map[string]Code{"": CodeInvalid, "none": CodeNotFound} {
		if _, err := h.replay(letter.ID, through); codeOf(err) != want {
			t.Errorf("through %q: %v", through, err)
		}
	}
	if _, err := h.replay("none", "orders"); codeOf(err) != CodeNotFound {
		t.Errorf("a letter that is not there: %v", err)
	}
	if done, err := h.replay(letter.ID, "orders"); err != nil || done.Run.Labels["trigger"] != "orders" {
		t.Errorf("got %+v, %v", done, err)
	}
}

func TestOnePathOneTrigger(t *testing.T) {
	hook := func(name, path string) *fleet.Trigger {
		return &fleet.Trigger{Meta: fleet.Meta{Name: name}, HTTP: &fleet.HTTPSource{Path: path, SecretRef: "env:KEY"}, Run: fleet.TriggerRun{Agent: "clerk"}}
	}
	h := newHouse(t, agentNamed("clerk"), hook("a", "paid"))
	for name, set := range map[string][]fleet.Object{
		"taken by one that is declared": fleetOf(hook("b", "paid")),
		"twice in a set":                fleetOf(hook("b", "other"), hook("c", "other")),
	} {
		if _, err := h.p.Apply(t.Context(), set, ApplyOptions{}); codeOf(err) != CodeInvalid || !strings.Contains(err.Error(), "spec.http.path") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One that gives its path up leaves it to another, in one call.
	if _, err := h.p.Apply(t.Context(), fleetOf(hook("a", "other"), hook("b", "paid")), ApplyOptions{}); err != nil {
		t.Error(err)
	}
	if got, err := h.p.HookAt(t.Context(), "paid"); err != nil || got.Trigger != "b" || got.SecretRef != "env:KEY" {
		t.Errorf("at paid is %+v, %v", got, err)
	}
	if _, err := h.p.HookAt(t.Context(), "none"); codeOf(err) != CodeNotFound {
		t.Errorf("at none: %v", err)
	}
}

func TestATriggerWithoutItsAgentIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		there, set []fleet.Object
		prune      bool
		refused    bool
	}{
		"when there is none":               {set: fleetOf(ordersTrigger()), refused: true},
		"not when it is declared":          {there: fleetOf(agentNamed("clerk")), set: fleetOf(ordersTrigger())},
		"not when it comes with it":        {set: fleetOf(ordersTrigger(), agentNamed("clerk"))},
		"when the call also takes it out":  {there: fleetOf(agentNamed("clerk")), set: fleetOf(ordersTrigger()), prune: true, refused: true},
		"when it is another that is there": {there: fleetOf(agentNamed("other")), set: fleetOf(ordersTrigger()), refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, tt.there...)
			_, err := h.p.Apply(t.Context(), tt.set, ApplyOptions{Prune: tt.prune})
			switch {
			case !tt.refused && err != nil:
				t.Error(err)
			case tt.refused && (codeOf(err) != CodeInvalid || !strings.Contains(err.Error(), "Trigger orders: spec.run.agent") || !strings.Contains(err.Error(), "clerk")):
				t.Errorf("%v; want it refused, and where", err)
			case tt.refused && h.p.declared.get(fleet.KindTrigger, "orders") != nil:
				t.Error("it was applied")
			}
		})
	}
}
