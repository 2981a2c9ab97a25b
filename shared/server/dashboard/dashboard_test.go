package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
)

func TestLengthsOfTimeAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                        "0s",
		0:                                   "0ms",
		12 * time.Millisecond:               "12ms",
		1500 * time.Millisecond:             "1.5s",
		59 * time.Second:                    "59s",
		15 * time.Minute:                    "15m",
		time.Minute + 5*time.Second:         "1m 5s",
		25*time.Hour + 30*time.Minute:       "25h 30m",
		72*time.Hour + 59*time.Minute:       "3d",
		100*time.Hour + 59*time.Millisecond: "4d 4h",
	} {
		if got := short(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}

func TestEndedRunsAreCountedOverTheWindow(t *testing.T) {
	stats := api.Stats{States: map[string]int{"queued": 3}, Total: api.Figures{Succeeded: 5}}
	got := tiles(stats, []string{"queued", "succeeded", "running", "waiting"})
	if got[0] != (tile{State: "queued", Count: 3}) || got[1] != (tile{State: "succeeded", Count: 5, Lately: true}) || got[2] != (tile{State: "running"}) || got[3] != (tile{State: "waiting", Unknown: true}) {
		t.Errorf("tiles %+v", got)
	}
}

func TestARunWithAllThatItCanHave(t *testing.T) {
	at := api.Time{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	score := 0.75
	usage := &api.Usage{InputTokens: 1}
	body, err := Render(Run{
		Now: at.Add(time.Hour),
		Run: api.Run{
			ID: "r1", Agent: "echo", Version: "3", Tenant: "t", State: "waiting", Key: "k", Session: "s", Parent: "p1", RetryOf: "o1", Labels: map[string]string{"team": "x"},
			CreatedAt: at, StartedAt: &at, WakeAt: &at, Deadline: &at, Cost: api.Cost{USD: 0.002, Tokens: 7}, Score: &score,
			Placement: &api.PlacementBrief{Target: "local", Worker: "w"}, WaitsFor: &api.WaitsFor{On: "input", Name: "paid"},
		},
		Input: ValueOf([]byte(`{}`), 0), Output: ValueOf([]byte(`"<x>"`), 0), Story: []string{"one"}, MoreEvents: true, MoreLogs: true,
		Attempts:   []api.Attempt{{N: 1, State: "parked", StartedAt: &at, Usage: usage}},
		Events:     []api.Event{{Seq: 1, Type: "submitted", State: "queued", At: at}},
		Receipts:   []api.Receipt{{ID: "rc", Effect: "mail", State: "unknown", BegunAt: at}},
		Logs:       []api.LogLine{{At: at, Text: "hello"}},
		Children:   []api.Run{{ID: "c1", Agent: "kid", State: "running", CreatedAt: at}},
		Candidates: []api.Candidate{{Target: "far", Refusals: []api.Refusal{{Reason: "Tainted", Message: "no"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"waits for", "paid", "$0.002000", "0.75", "/runs/p1", "/runs/o1", "/runs/c1", "team", "mail", "hello", "Tainted", "&lt;x&gt;", "There are more", "There is more", `data-stream="/v1/runs/r1/events"`,
	} {
		if !strings.Contains(strings.ToLower(string(body)), strings.ToLower(want)) {
			t.Errorf("%q is missing", want)
		}
	}
}

func TestNothingElseIsAPage(t *testing.T) {
	if _, err := Render("x"); err == nil {
		t.Error("text was rendered")
	}
}
