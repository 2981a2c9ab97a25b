package trigger

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
)

func triggerOf(r fleet.TriggerRun) *fleet.Trigger {
	r.Agent = "clerk"
	t := &fleet.Trigger{Meta: fleet.Meta{Name: "orders"}, PubSub: &fleet.PubSubSource{Topic: "orders"}, Run: r}
	t.SetDefaults()
	return t
}

func compiled(t *testing.T, tr *fleet.Trigger) *Mapper {
	t.Helper()
	m, problems := Compile(tr)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return m
}

func TestMap(t *testing.T) {
	labels := map[string]string{"trigger": "orders", "orderingKey": "acme"}
	hook := &fleet.Trigger{Meta: fleet.Meta{Name: "orders"}, HTTP: &fleet.HTTPSource{Path: "x", SecretRef: "env:K"}, Run: fleet.TriggerRun{Agent: "clerk"}}
	tests := map[string]struct {
		trigger    *fleet.Trigger
		generation int
		want       Submission
	}{
		"by default the data under the id": {triggerOf(fleet.TriggerRun{}), 0, Submission{Agent: "clerk", Key: "orders/136969346945", Input: []byte(order), Labels: labels, ByID: true}},
		"a repeat on purpose":              {triggerOf(fleet.TriggerRun{}), 2, Submission{Agent: "clerk", Key: "orders#2/136969346945", Input: []byte(order), Labels: labels, ByID: true}},
		"of a request":                     {hook, 0, Submission{Agent: "clerk", Key: "orders/136969346945", Input: []byte(order), Labels: labels}},
		"with all expressions": {triggerOf(fleet.TriggerRun{
			Input: `{"n": message.data.order, "kind": message.attributes.kind, "from": message.subscription, "try": message.attempt, "key": message.orderingKey, "at": message.publishTime, "id": message.id}`,
			Key:   `message.data.order`, Tenant: `message.orderingKey`,
		}), 0, Submission{
			Agent: "clerk", Tenant: "acme", Key: "orders/7", Labels: labels,
			Input: []byte(`{"at":"2026-02-19T11:28:34.055Z","from":"projects/p/subscriptions/errand-trigger-orders","id":"136969346945","key":"acme","kind":"order","n":7,"try":3}`),
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := compiled(t, tt.trigger).Map(t.Context(), wantMessage(nil), tt.generation)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestMapRefuses(t *testing.T) {
	tests := map[string]struct {
		run    fleet.TriggerRun
		change func(*Message)
		want   string // path
	}{
		"a missing field":              {fleet.TriggerRun{Input: "message.data.none"}, nil, "spec.run.input"},
		"data that is not as expected": {fleet.TriggerRun{Input: "message.data.order"}, func(m *Message) { m.Data = []byte("hunter2") }, "spec.run.input"},
		"a number beyond all":          {fleet.TriggerRun{Input: "message.id"}, func(m *Message) { m.Data = []byte("1e999") }, "message.data"},
		"an empty key":                 {fleet.TriggerRun{Key: `""`}, nil, "spec.run.key"},
		"a key that is no text":        {fleet.TriggerRun{Key: `message.data`}, nil, "spec.run.key"},
		"a key without end":            {fleet.TriggerRun{Key: `message.attributes.long`}, func(m *Message) { m.Attributes["long"] = strings.Repeat("x", MaxKey+1) }, "spec.run.key"},
		"no id, and no key instead":    {fleet.TriggerRun{}, func(m *Message) { m.ID = "" }, "message.messageId"},
		"a tenant that is no name":     {fleet.TriggerRun{Tenant: `"Acme Inc"`}, nil, "spec.run.tenant"},
		"a tenant that is no text":     {fleet.TriggerRun{Tenant: `null`}, nil, "spec.run.tenant"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			msg := wantMessage(tt.change)
			s, err := compiled(t, triggerOf(tt.run)).Map(t.Context(), msg, 0)
			p := IsPoison(err)
			if p == nil || p.Path != tt.want {
				t.Fatalf("mapped to %v with %v, want a refusal of %s", s, err, tt.want)
			}
			if strings.Contains(p.Error(), "hunter2") {
				t.Errorf("the refusal repeats the data: %v", p)
			}
		})
	}
}

func TestACanceledMappingIsNoPoison(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	msg := wantMessage(func(m *Message) { m.Data = []byte("[" + strings.Repeat("1,", 5000) + "1]") })
	_, err := compiled(t, triggerOf(fleet.TriggerRun{Input: "message.data.all(x, x > 0)"})).Map(ctx, msg, 0)
	if !errors.Is(err, context.Canceled) || IsPoison(err) != nil {
		t.Errorf("got %v", err)
	}
}

func TestCompileTellsEachFault(t *testing.T) {
	m, problems := Compile(triggerOf(fleet.TriggerRun{Input: "mesage.data", Key: "message.", Tenant: `"a"`}))
	if m != nil || len(problems) != 2 || problems[0].Path != "spec.run.input" || problems[1].Path != "spec.run.key" ||
		!strings.Contains(problems[0].Message, "1:1: undeclared reference to 'mesage'") {
		t.Errorf("got %v, %v", m, problems)
	}
}
