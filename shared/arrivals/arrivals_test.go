package arrivals_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/arrivals"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/forecast"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
)

const head = "apiVersion: errand.dev/v1\nkind: Arrivals\nmetadata: {name: test}\n"

// good has every field.
const good = head + `spec:
  start: 2026-03-31T06:00:00Z
  window: 2h
  streams:
    - tenant: acme
      agent: check
      priority: 70
      sessions: 3
      perHour: 600
      spacing: even
      daily: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
      from: 10m
      until: 1h50m
      bursts: [{at: 20m, for: 1m, perHour: 6000}]
      batches: [{at: 30m, every: 1h, count: 50}]
      duration: {p50: 1s, p95: 4s}
      failures: [{class: user, code: E1, rate: 0.1}, {class: lost, rate: 0.05}]
      tokens: {input: {constant: 1000}, output: {min: 10, max: 20}, inputUSD: 3, outputUSD: 15}
  workers: [{target: farm, agents: [check], slots: 4, count: 2, from: 5m, until: 1h}]
`

func read(text string) (*arrivals.Set, error) {
	return arrivals.Read("a.yaml", strings.NewReader(text))
}

// all are the arrivals of a set.
func all(t testing.TB, s *arrivals.Set) []forecast.Arrival {
	t.Helper()
	var list []forecast.Arrival
	for source := s.Source(1); ; {
		a, more, err := source.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return list
		}
		list = append(list, a)
	}
}

func TestAFileIsRead(t *testing.T) {
	s, err := read(good)
	if err != nil {
		t.Fatal(err)
	}
	if s.Window != 2*time.Hour || s.Start != run.At(time.Date(2026, 3, 31, 6, 0, 0, 0, time.UTC)) {
		t.Errorf("window %s from %s", s.Window, s.Start.Time())
	}
	want := []forecast.Workers{{Target: "farm", Agents: []string{"check"}, Slots: 4, Count: 2, From: 5 * time.Minute, Until: time.Hour}}
	if diff := cmp.Diff(want, s.Workers); diff != "" {
		t.Errorf("workers (-want +got):\n%s", diff)
	}
	list := all(t, s)
	// 100 minutes of ten a minute, a minute of a hundred, two batches of fifty.
	if n := len(list); n < 1197 || n > 1201 {
		t.Errorf("%d arrivals, want 1200 or so", n)
	}
	k := list[0].Kind
	if k.Tenant != "acme" || k.Agent != "check" || *k.Priority != 70 || len(k.Sessions) != 3 || len(k.Failures) != 2 || k.InputUSD != 3 {
		t.Errorf("kind %+v", k)
	}
}

func TestAFileNeedsLittle(t *testing.T) {
	s, err := read(head + "spec: {streams: [{tenant: a, agent: b, perHour: 60, duration: {constant: 1s}}]}")
	if err != nil {
		t.Fatal(err)
	}
	if s.Window != 24*time.Hour || s.Start.Time().UTC().Weekday() != time.Monday {
		t.Errorf("window %s from %s, want a day from a Monday on", s.Window, s.Start.Time())
	}
}

func TestWhatIsWrongWithAFileIsSaidWithItsPlace(t *testing.T) {
	stream := func(fields string) string {
		return head + "spec:\n  streams:\n    - {tenant: a, agent: b, duration: {constant: 1s}, " + fields + "}\n"
	}
	for name, tc := range map[string]struct{ text, want string }{
		"another kind":               {"apiVersion: errand.dev/v1\nkind: Agent\nmetadata: {name: x}\nspec: {}\n", "a.yaml:2:7: kind: Agent where Arrivals is needed"},
		"no kind":                    {"apiVersion: errand.dev/v1\n", "a.yaml:1:1: kind: required; want Arrivals of errand.dev/v1"},
		"nothing":                    {"# nothing\n", "a.yaml: holds no document; want Arrivals"},
		"two documents":              {good + "---\n" + good, "a second document; this file has one"},
		"an unknown field":           {stream("perHuor: 3"), "a.yaml:6:55: spec.streams[0].perHuor: unknown field; did you mean `perHour`"},
		"no streams":                 {head + "spec: {window: 1h}\n", "a.yaml:4:7: spec.streams: required"},
		"no rate":                    {stream("priority: 1"), "spec.streams[0].perHour: required, unless there are bursts or batches"},
		"a text for a number":        {stream("perHour: many"), "a.yaml:6:64: spec.streams[0].perHour: a text (\"many\") where a number is needed"},
		"a negative rate":            {stream("perHour: -1"), "spec.streams[0].perHour: -1 is outside 0 to"},
		"a spacing that is none":     {stream("perHour: 1, spacing: poisson"), "\"poisson\" is not one of random, even"},
		"half a day":                 {stream("perHour: 1, daily: [1, 2]"), "spec.streams[0].daily: 2 factors; want 24"},
		"an end before the start":    {stream("perHour: 1, from: 2h, until: 1h"), "spec.streams[0].until: 1h is not after from, 2h"},
		"a priority beyond":          {stream("perHour: 1, priority: 101"), "spec.streams[0].priority: 101 is outside 0 to 100"},
		"a burst without length":     {stream("bursts: [{at: 1h, perHour: 5}]"), "spec.streams[0].bursts[0].for: required"},
		"a batch of nothing":         {stream("batches: [{at: 1h}]"), "spec.streams[0].batches[0].count: 0 is outside 1 to"},
		"a class that is none":       {stream("perHour: 1, failures: [{class: bad, rate: 0.1}]"), "spec.streams[0].failures[0].class: \"bad\" is not a class"},
		"more failures than runs":    {stream("perHour: 1, failures: [{class: user, rate: 0.9}, {class: lost, rate: 0.9}]"), "the rates add up to 1.8"},
		"a name that is none":        {strings.Replace(stream("perHour: 1"), "tenant: a", "tenant: A!", 1), "spec.streams[0].tenant: \"A!\" is not a name"},
		"two forms of a length":      {strings.Replace(stream("perHour: 1"), "constant: 1s", "constant: 1s, mean: 2s", 1), "spec.streams[0].duration: give one of"},
		"a p95 below its p50":        {strings.Replace(stream("perHour: 1"), "constant: 1s", "p50: 3s, p95: 2s", 1), "p95 is to be given with p50 and not to be below it"},
		"a start that is none":       {strings.Replace(good, "2026-03-31T06:00:00Z", "tomorrow", 1), "a.yaml:5:10: spec.start: \"tomorrow\" is not an instant"},
		"a window beyond":            {strings.Replace(good, "window: 2h", "window: 400d", 1), "spec.window: 9600h is too long; want at most 744h"},
		"more runs than can be":      {stream("perHour: 900000000"), "want at most 100000000"},
		"workers without agents":     {strings.Replace(good, "agents: [check], ", "", 1), "spec.workers[0].agents: want 1 to"},
		"something that is not YAML": {"a: [\n", "not YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(tc.text)
			var bad *manifest.Error
			if err == nil || !errors.As(err, &bad) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestRecordedLinesAreReplayed(t *testing.T) {
	s, err := read(`{"at": "2026-03-31T08:00:05Z", "tenant": "acme", "agent": "check", "attempts": [{"took": "3s", "class": "user", "code": "E1"}, {"took": "2s"}], "inputTokens": 10, "usd": 0.5}

{"at": "2026-03-31T08:00:00Z", "agent": "check", "attempts": [{"took": "250ms"}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	list := all(t, s)
	if len(list) != 2 || list[0].Kind.Tenant != "default" || list[1].Kind.Tenant != "acme" || s.Start != list[0].At {
		t.Fatalf("arrivals %+v", list)
	}
	agent := &fleet.Agent{Meta: fleet.Meta{Name: "check"}, Shape: fleet.Pool, Run: fleet.Run{Command: []string{"x"}}}
	agent.SetDefaults()
	target := &fleet.Target{Meta: fleet.Meta{Name: "t"}, Runtime: fleet.RuntimeLocal, Capacity: fleet.Capacity{Runs: 1}}
	target.SetDefaults()
	r, err := forecast.Run([]fleet.Object{agent, target}, s.Source(1), forecast.Options{Start: s.Start, Window: s.Window})
	if err != nil {
		t.Fatal(err)
	}
	if r.Total.Succeeded != 2 || r.Total.Retries != 1 || r.Total.SlotTime != 5.25 || r.Total.Tokens != 10 || r.Total.TokenUSD != 0.5 {
		t.Errorf("total %+v", r.Total)
	}
}

func TestTheWindowOfRecordedLinesHasTheLastOfThem(t *testing.T) {
	for name, tc := range map[string]struct {
		last string
		want time.Duration
	}{
		"a minute longer at least":       {"2026-03-31T08:00:00Z", time.Minute},
		"an hour longer at most":         {"2026-04-01T08:00:00Z", 25 * time.Hour},
		"a year at most, of almost that": {"2027-04-01T07:59:59Z", forecast.MaxWindow},
	} {
		t.Run(name, func(t *testing.T) {
			line := `{"at": "%s", "agent": "c", "attempts": [{"took": "1s"}]}` + "\n"
			s, err := read(fmt.Sprintf(line+line, "2026-03-31T08:00:00Z", tc.last))
			if err != nil || s.Window != tc.want {
				t.Errorf("a window %v (%v), want %s", s, err, tc.want)
			}
		})
	}
}

func TestWhatIsWrongWithALineIsSaidWithItsPlace(t *testing.T) {
	line := func(fields string) string {
		return `{"at": "2026-03-31T08:00:05Z", "agent": "check", "attempts": [{"took": "1s"}]}` + "\n" + fields + "\n"
	}
	for name, tc := range map[string]struct{ text, want string }{
		"not JSON":             {line("{"), "a.yaml:2:1: not a recorded run"},
		"an unknown field":     {line(`{"when": 1}`), `unknown field "when"`},
		"more than one object": {line(`{"at": "2026-03-31T08:00:05Z", "agent": "c", "attempts": [{"took": "1s"}]} 7`), "something follows"},
		"no time":              {line(`{"agent": "c"}`), "at: required"},
		"no agent":             {line(`{"at": "2026-03-31T08:00:05Z"}`), `agent: "" is not a name`},
		"no attempt":           {line(`{"at": "2026-03-31T08:00:05Z", "agent": "c"}`), "attempts: want 1 to 100"},
		"a class that is none": {line(`{"at": "2026-03-31T08:00:05Z", "agent": "c", "attempts": [{"took": "1s", "class": "x"}]}`), `attempts[0].class: "x"`},
		"a time below zero":    {line(`{"at": "2026-03-31T08:00:05Z", "agent": "c", "attempts": [{"took": "-1s"}]}`), "attempts[0].took: -1s is outside"},
		"runs of 2026 and 9999": {line(`{"at": "9999-12-31T23:59:59Z", "agent": "c", "attempts": [{"took": "1s"}]}`),
			"a.yaml: runs come from 2026-03-31T08:00:05Z to 9999-12-31T23:59:59Z; want less than 366 days"},
		"runs of 366 days":        {line(`{"at": "2027-04-01T08:00:05Z", "agent": "c", "attempts": [{"took": "1s"}]}`), "want less than 366 days"},
		"a line that is too long": {line(`{"at": "` + strings.Repeat("x", arrivals.MaxLine)), "has more than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := read(tc.text); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestTheRunsOfAStoreAreReplayed(t *testing.T) {
	s := memory.Open()
	at := func(seconds int) run.Instant {
		return run.At(time.Date(2026, 3, 31, 8, 0, seconds, 0, time.UTC))
	}
	put := func(id string, created run.Instant, events ...run.Event) {
		spec := run.Spec{ID: id, Agent: "check", Tenant: "acme", Priority: 50, CreatedAt: created}
		r := run.New(spec, run.Event{Type: run.EvSubmitted, At: created})
		for _, e := range events {
			run.Evolve(r, e)
		}
		doc := store.Doc{Kind: store.KindRun, ID: id, Version: r.Seq, Body: run.Encode(r), Index: &store.Index{Tenant: "acme", Agent: "check", CreatedAt: int64(created)}}
		if err := s.Commit(context.Background(), []store.Unit{{Token: id, Writes: []store.Write{{Expect: 0, Doc: doc}}}})[0]; err != nil {
			t.Fatal(err)
		}
	}
	put("late", at(30))
	put("early", at(0),
		run.Event{Type: run.EvAssigned, At: at(1), Attempt: 1, Target: "t"}, run.Event{Type: run.EvStarted, At: at(2), Attempt: 1},
		run.Event{Type: run.EvBackedOff, At: at(5), Attempt: 1, Class: run.ClassUser, Code: "E1", Due: at(6)}, run.Event{Type: run.EvRequeued, At: at(6)},
		run.Event{Type: run.EvAssigned, At: at(7), Attempt: 2, Target: "t"}, run.Event{Type: run.EvStarted, At: at(8), Attempt: 2},
		run.Event{Type: run.EvSucceeded, At: at(12), Attempt: 2, Usage: &run.Usage{InputTokens: 7}})
	set, err := arrivals.Stored(t.Context(), s, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	list := all(t, set)
	if len(list) != 2 || list[0].At != at(0) || list[1].At != at(30) {
		t.Fatalf("arrivals %+v", list)
	}
	want := []forecast.RecordedAttempt{{Took: 3 * time.Second, Class: run.ClassUser, Code: "E1"}, {Took: 4 * time.Second}}
	if diff := cmp.Diff(want, list[0].Recorded.Attempts); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if set, err = arrivals.Stored(t.Context(), s, at(10), 0); err != nil || len(all(t, set)) != 1 {
		t.Errorf("since a later time: %v", err)
	}
	if _, err = arrivals.Stored(t.Context(), s, at(50), 0); err == nil {
		t.Error("a stretch without runs is no error")
	}
}

// FuzzRead holds for any input: no panic, and either arrivals in the order of time or an error that says something.
func FuzzRead(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(`{"at": "2026-03-31T08:00:05Z", "agent": "c", "attempts": [{"took": "1s"}]}`))
	f.Add([]byte(head + "spec: {streams: [{tenant: a, agent: b, batches: [{count: 3, every: 1s}], duration: {mean: 1s}}]}"))
	f.Add([]byte(head + "spec: {streams: [{tenant: a, agent: b, perHour: 1e9, daily: [.inf], duration: {p50: 1ns, p95: 99999h}}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := arrivals.Read("f", strings.NewReader(string(data)))
		if err != nil {
			if err.Error() == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		last := run.Instant(0)
		source := s.Source(1)
		for range 1000 {
			a, more, err := source.Next()
			if err != nil || !more {
				break
			}
			if a.At < last || a.At > s.Start.Add(s.Window) || a.Kind == nil {
				t.Fatalf("arrival at %d after one at %d, in a window from %d for %s", a.At, last, s.Start, s.Window)
			}
			last = a.At
		}
	})
}

func ExampleRead() {
	set, err := arrivals.Read("day.yaml", strings.NewReader(head+
		"spec: {window: 1h, streams: [{tenant: acme, agent: check, perHour: 120, spacing: even, duration: {constant: 2s}}]}"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("about %.0f runs in %s\n", set.Expected, set.Window)
	// Output: about 120 runs in 1h0m0s
}
