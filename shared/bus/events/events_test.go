package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/errand-run/errand/shared/run"
)

const source = "//errand/main"

var began = run.At(time.Date(2026, 3, 1, 12, 0, 0, 250e6, time.UTC))

// story is a record after what happened, and all of that.
func story(t *testing.T, spec run.Spec, happened ...run.Event) (*run.Record, []run.Event) {
	t.Helper()
	var r *run.Record
	all := make([]run.Event, 0, len(happened))
	for i, e := range happened {
		e.At = began + run.Instant(i*1000)
		if err := run.Decide(r, &e); err != nil {
			t.Fatalf("event %d: %v", i+1, err)
		}
		if r == nil {
			r = run.New(spec, e)
			all = append(all, r.Tail[0])
			continue
		}
		all = append(all, run.Evolve(r, e))
	}
	return r, all
}

const secret = "4111-1111-1111-1111"

func spec(change ...func(*run.Spec)) run.Spec {
	s := run.Spec{
		ID: "r-1", Agent: "checker", Version: "v3", Tenant: "acme", Labels: map[string]string{"team": "billing"}, CreatedAt: began,
		Input: run.Payload{Inline: json.RawMessage(`"` + secret + `"`), Size: 21},
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

var (
	submitted = run.Event{Type: run.EvSubmitted}
	assigned  = run.Event{Type: run.EvAssigned, Attempt: 1, Target: "pool", Worker: "w-7"}
	started   = run.Event{Type: run.EvStarted, Attempt: 1, Worker: "w-7"}
)

// everything is a story with all that outsiders are told, save two ends.
func everything(t *testing.T) (*run.Record, []run.Event) {
	return story(t, spec(),
		submitted,
		run.Event{Type: run.EvUnschedulable, Reason: run.NoEligibleTarget, Detail: json.RawMessage(`{}`)},
		run.Event{Type: run.EvRequeued},
		assigned, started,
		run.Event{Type: run.EvParked, Attempt: 1, Park: &run.Park{On: run.OnInput, Step: "ask", Name: "approve", Until: began + 3600_000}, Usage: &run.Usage{InputTokens: 100, OutputTokens: 20, USD: 0.25}},
		run.Event{Type: run.EvWoken},
		run.Event{Type: run.EvAssigned, Attempt: 2, Target: "pool"},
		run.Event{Type: run.EvStarted, Attempt: 2},
		run.Event{Type: run.EvSucceeded, Attempt: 2, Output: &run.Payload{Inline: json.RawMessage(`"` + secret + `"`), Size: 21}, Message: secret, Usage: &run.Usage{USD: 0.5}},
	)
}

func events(t *testing.T, r *run.Record, happened []run.Event) []event.Event {
	t.Helper()
	all, err := Of(source, r, happened)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestOf(t *testing.T) {
	r, happened := everything(t)
	type row struct {
		ID, Type, Reason, Waits, Started, Ended string
		Attempt                                 int
	}
	var got []row
	for _, e := range events(t, r, happened) {
		var d struct {
			Run struct {
				State, Reason, StartedAt, EndedAt string
				Attempt                           int
				WaitsFor                          struct{ On string }
			}
		}
		if err := json.Unmarshal(e.Data(), &d); err != nil {
			t.Fatal(err)
		}
		if e.Type() != Prefix+d.Run.State || e.Source() != source || e.Subject() != "r-1" {
			t.Errorf("event %s: type %s, state %s, source %s, subject %s", e.ID(), e.Type(), d.Run.State, e.Source(), e.Subject())
		}
		got = append(got, row{e.ID(), d.Run.State, d.Run.Reason, d.Run.WaitsFor.On, d.Run.StartedAt, d.Run.EndedAt, d.Run.Attempt})
	}
	const first = "2026-03-01T12:00:04.250Z"
	want := []row{
		{"r-1/2", "unschedulable", "NoEligibleTarget", "", "", "", 0},
		{"r-1/5", "running", "", "", first, "", 1},
		{"r-1/6", "waiting", "", "input", first, "", 1},
		{"r-1/9", "running", "", "", first, "", 2},
		{"r-1/10", "succeeded", "", "", first, "2026-03-01T12:00:09.250Z", 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestTheSameChangeGivesTheSameEvents(t *testing.T) {
	r, happened := everything(t)
	first, second := events(t, r, happened), events(t, r.Clone(), happened)
	for i := range first {
		if diff := cmp.Diff(Message(&first[i]), Message(&second[i])); diff != "" {
			t.Errorf("event %d differs (-first +second):\n%s", i, diff)
		}
	}
}

func TestMessage(t *testing.T) {
	r, happened := everything(t)
	all := events(t, r, happened[len(happened)-1:])
	m := Message(&all[0])
	want := map[string]string{
		"content-type": "application/json", "ce-specversion": "1.0", "ce-id": "r-1/10", "ce-source": source,
		"ce-type": "dev.errand.run.succeeded", "ce-subject": "r-1", "ce-time": "2026-03-01T12:00:09.25Z", "ce-dataschema": Schema,
		"ce-tenant": "acme", "ce-agent": "checker",
	}
	if diff := cmp.Diff(want, m.Attributes); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	const data = `{"run":{"id":"r-1","agent":"checker","version":"v3","tenant":"acme","state":"succeeded","labels":{"team":"billing"},"attempt":2,` +
		`"createdAt":"2026-03-01T12:00:00.250Z","startedAt":"2026-03-01T12:00:04.250Z","endedAt":"2026-03-01T12:00:09.250Z","cost":{"usd":0.75,"tokens":120}},` +
		`"event":{"seq":10,"type":"succeeded","at":"2026-03-01T12:00:09.250Z","state":"succeeded","attempt":2}}`
	if got := string(m.Data); got != data {
		t.Errorf("data:\n%s\nwant:\n%s", got, data)
	}
}

func TestNothingPrivateIsTold(t *testing.T) {
	r, happened := everything(t)
	for _, e := range events(t, r, happened) {
		text := fmt.Sprint(Message(&e))
		for _, private := range []string{secret, "w-7", "approve"} {
			if strings.Contains(text, private) {
				t.Errorf("event %s tells %q", e.ID(), private)
			}
		}
	}
}

// schemas are the published ones, by their file.
func schemas(t *testing.T) (compiled map[string]*jsonschema.Schema, docs map[string]any) {
	t.Helper()
	files, err := filepath.Glob("../../../docs/events/*.json")
	if err != nil || len(files) != 2 {
		t.Fatalf("schemas: %v, %v", files, err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	compiled, docs = map[string]*jsonschema.Schema{}, map[string]any{}
	ids := map[string]string{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		ids[filepath.Base(file)] = doc.(map[string]any)["$id"].(string)
		docs[filepath.Base(file)] = doc
		if err := c.AddResource(ids[filepath.Base(file)], doc); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	for file, id := range ids {
		if compiled[file], err = c.Compile(id); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if ids["run.v1.json"] != Schema {
		t.Errorf("the schema of the data is %s, events name %s", ids["run.v1.json"], Schema)
	}
	return compiled, docs
}

// described fails the test for members that the schema does not describe.
func described(t *testing.T, at string, schema, value any) {
	t.Helper()
	object, ok := value.(map[string]any)
	if !ok {
		return
	}
	s := schema.(map[string]any)
	properties, ok := s["properties"].(map[string]any)
	if !ok {
		return // any member
	}
	for name, v := range object {
		p, ok := properties[name]
		if !ok {
			t.Errorf("%s.%s is not described", at, name)
			continue
		}
		described(t, at+"."+name, p, v)
	}
}

func TestEventsFitTheirPublishedSchemas(t *testing.T) {
	compiled, docs := schemas(t)
	gate := json.RawMessage(`{"gate":"g1","round":1,"actionHash":"h"}`)
	stories := map[string]func(*testing.T) (*run.Record, []run.Event){
		"people are asked, reminded, others are asked too, and one decides": func(t *testing.T) (*run.Record, []run.Event) {
			return story(t, spec(), submitted, assigned, started,
				run.Event{Type: run.EvParked, Attempt: 1, Park: &run.Park{On: run.OnGate, Step: "ask", Name: "g1", Until: began + 9000}},
				run.Event{Type: run.EvGateChanged, Code: run.GateReminded, Detail: gate}, run.Event{Type: run.EvGateChanged, Code: run.GateEscalated, Detail: gate},
				run.Event{Type: run.EvGateChanged, Code: "refused", Actor: "bob", Message: secret, Detail: gate},
				run.Event{Type: run.EvWoken, Code: "approved", Actor: "ann", Message: secret, Detail: gate})
		},
		"a workflow's gate expires": func(t *testing.T) (*run.Record, []run.Event) {
			return story(t, spec(func(s *run.Spec) { s.Kind = run.KindWorkflow }), submitted, run.Event{Type: run.EvBegan},
				run.Event{Type: run.EvParked, Park: &run.Park{On: run.OnGate, Step: "ask", Name: "g1"}},
				run.Event{Type: run.EvBegan, Code: "expired", Detail: gate})
		},
		"all states but two": everything,
		"an agent that fails": func(t *testing.T) (*run.Record, []run.Event) {
			return story(t, spec(), submitted, assigned, started,
				run.Event{Type: run.EvFailed, Attempt: 1, Reason: run.AgentError, Class: run.ClassUser, Code: "E1", Message: secret})
		},
		"a workflow that is canceled before anything": func(t *testing.T) (*run.Record, []run.Event) {
			s := spec(func(s *run.Spec) {
				s.Kind, s.Parent, s.Root, s.Labels, s.Version = run.KindWorkflow, "r-0", "r-0", nil, ""
			})
			return story(t, s, submitted, run.Event{Type: run.EvCancelRequested, Reason: run.ParentEnded}, run.Event{Type: run.EvCanceled, Reason: run.ParentEnded})
		},
		"a job at the limits": func(t *testing.T) (*run.Record, []run.Event) {
			s := spec(func(s *run.Spec) {
				s.Kind, s.ID, s.RetryOf = run.KindJob, strings.Repeat("r", run.MaxName), strings.Repeat("x", run.MaxName)
				s.Agent, s.Tenant, s.Labels = strings.Repeat("a", run.MaxName), strings.Repeat("t", run.MaxName), map[string]string{}
				for i := range run.MaxLabels {
					s.Labels[fmt.Sprint("k", i)] = strings.Repeat("v", 100)
				}
			})
			return story(t, s, submitted, run.Event{Type: run.EvFailed, Reason: run.QueueTimeout})
		},
	}
	seen := map[string]bool{}
	for sentence, tell := range stories {
		r, happened := tell(t)
		for _, e := range events(t, r, happened) {
			seen[e.Type()] = true
			raw, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
			if err != nil {
				t.Fatal(err)
			}
			if err := compiled["cloudevent.v1.json"].Validate(doc); err != nil {
				t.Errorf("%s: %s: %v", sentence, e.ID(), err)
			}
			described(t, "event", docs["cloudevent.v1.json"], doc)
			described(t, "data", docs["run.v1.json"], doc.(map[string]any)["data"])
		}
	}
	properties := docs["cloudevent.v1.json"].(map[string]any)["properties"].(map[string]any)
	for _, name := range properties["type"].(map[string]any)["enum"].([]any) {
		if !seen[name.(string)] {
			t.Errorf("no story tells %s", name)
		}
	}
	// The schemas refuse what is wrong.
	for sentence, text := range map[string]string{
		"no run":           `{"event": {"seq": 1, "type": "failed", "at": "2026-03-01T12:00:00Z", "state": "failed"}}`,
		"an unknown state": `{"run": {"id": "r", "agent": "a", "tenant": "t", "state": "lost", "attempt": 1, "createdAt": "2026-03-01T12:00:00Z", "cost": {"usd": 0, "tokens": 0}}, "event": {"seq": 1, "type": "failed", "at": "2026-03-01T12:00:00Z", "state": "failed"}}`,
		"no time":          `{"run": {"id": "r", "agent": "a", "tenant": "t", "state": "failed", "attempt": 1, "createdAt": "yesterday", "cost": {"usd": 0, "tokens": 0}}, "event": {"seq": 1, "type": "failed", "at": "2026-03-01T12:00:00Z", "state": "failed"}}`,
	} {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if compiled["run.v1.json"].Validate(doc) == nil {
			t.Errorf("the schema takes data with %s", sentence)
		}
	}
}

func TestSource(t *testing.T) {
	for cell, want := range map[string]string{
		"main": "//errand/main", "eu-1.acme": "//errand/eu-1.acme", "": "", "Main": "", "a/b": "", "-a": "", strings.Repeat("a", 64): "",
	} {
		if got, err := Source(cell); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", cell, got, err)
		}
	}
}

func BenchmarkOf(b *testing.B) {
	r := &run.Record{Spec: spec(), State: run.Running}
	happened := []run.Event{{Seq: 3, Type: run.EvStarted, At: began, Attempt: 1}}
	b.ReportAllocs()
	for b.Loop() {
		all, err := Of(source, r, happened)
		if err != nil {
			b.Fatal(err)
		}
		Message(&all[0])
	}
}
