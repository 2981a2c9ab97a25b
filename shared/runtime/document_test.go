package runtime_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

func TestDocument(t *testing.T) {
	agent := &fleet.Agent{Meta: fleet.Meta{Name: "checker"}}
	tests := map[string]struct {
		a    runtime.Assignment
		want string
	}{
		"all there is, but not the token": {
			a: runtime.Assignment{
				Run: "r1", N: 2, Agent: agent, Tenant: "acme", Unit: "u", Mode: runtime.ModeRun, Input: json.RawMessage(`{"a":1}`),
				Token: "secret", Trace: "00-1-2-01", Labels: map[string]string{"l": "v"}, Session: "s", State: json.RawMessage(`[1]`),
				Steps:    []runtime.Step{{Name: "parse", Seq: 1, Result: json.RawMessage(`3`)}, {Name: "bad", Seq: 2, Error: json.RawMessage(`{"message":"no"}`)}},
				Deadline: run.At(time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)), Index: new(0), Completions: new(10),
			},
			want: `{"url":"http://c","run":"r1","attempt":"r1.2","agent":"checker","tenant":"acme","mode":"run","input":{"a":1},"key":"u",` +
				`"deadline":"2026-01-02T03:04:05.006Z","steps":[{"name":"parse","seq":1,"result":3},{"name":"bad","seq":2,"error":{"message":"no"}}],` +
				`"session":{"name":"s","state":[1]},"labels":{"l":"v"},"traceparent":"00-1-2-01","index":0,"completions":10}`,
		},
		"what is absent is left out, but for what every program reads": {
			a:    runtime.Assignment{Run: "r1", N: 1, Agent: agent},
			want: `{"url":"http://c","run":"r1","attempt":"r1.1","agent":"checker","tenant":"","mode":"run","input":null,"key":"","deadline":null}`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tt.a.Document("http://c").Encode()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseResult(t *testing.T) {
	output := func(v string) runtime.Report {
		return runtime.Report{Type: runtime.Completed, Output: json.RawMessage(v)}
	}
	invalid := func(message string) runtime.Report {
		return runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Code: runtime.CodeResultInvalid, Message: message, Final: true}
	}
	tests := map[string]struct {
		answer     string
		want       runtime.Report
		wantBefore string
	}{
		"nothing is null":                          {answer: " \n", want: output(`null`)},
		"a document is the output":                 {answer: "{\n \"a\": 1\n}\n", want: output("{\n \"a\": 1\n}")},
		"text is wrapped as it stands":             {answer: "all <good>\nreally\n", want: output(`{"text":"all <good>\nreally"}`)},
		"two documents are text":                   {answer: "{}\n{}", want: output(`{"text":"{}\n{}"}`)},
		"bytes that are no text are marked":        {answer: "a\xffb", want: output(`{"text":"a` + "\uFFFD" + `b"}`)},
		"an object with other keys is the output":  {answer: `{"output":1,"other":2}`, want: output(`{"output":1,"other":2}`)},
		"usage alone is an output":                 {answer: `{"usage":{"usd":1}}`, want: output(`{"usage":{"usd":1}}`)},
		"an output that looks like a frame, in it": {answer: `{"output":{"error":"x"}}`, want: output(`{"error":"x"}`)},
		"a null output in a frame":                 {answer: `{"output":null}`, want: output(`null`)},
		"a null error is none":                     {answer: `{"output":1,"error":null}`, want: output(`1`)},
		"all that comes along": {
			answer: `{"output":1,"session":{"n":2},"score":0.5,"usage":{"inputTokens":3,"outputTokens":4,"usd":0.1,"model":"m"}}`,
			want: runtime.Report{
				Type: runtime.Completed, Output: json.RawMessage(`1`), Session: json.RawMessage(`{"n":2}`), Score: new(0.5),
				Usage: &run.Usage{InputTokens: 3, OutputTokens: 4, USD: 0.1},
			},
		},
		"a frame as the last line of text": {
			answer: "working\nstill\n{\"output\":7}\n", want: output(`7`), wantBefore: "working\nstill",
		},
		"a frame over several lines": {answer: "{\n\"output\": 7\n}", want: output(`7`)},
		"an error": {
			answer: `{"error":{"code":"BAD_PDF","message":"no pages","retryable":false,"retryAfter":"1m30s","more":1}}`,
			want:   runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Code: "BAD_PDF", Message: "no pages", Final: true, RetryIn: 90 * time.Second},
		},
		"an error with numbers": {
			answer: `{"error":{"code":42,"message":"no","retryAfter":1.5}}`,
			want:   runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Code: "42", Message: "no", RetryIn: 1500 * time.Millisecond},
		},
		"an error that is text": {
			answer: `{"error":"no"}`, want: runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Message: "no"},
		},
		"an error outranks an output": {
			answer: `{"output":1,"error":{"message":"no"}}`, want: runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Message: "no"},
		},
		"an error of the wrong form is still no output": {
			answer: `{"error":{"message":{}}}`,
			want:   invalid(`result: error.message does not fit; want text, or an object of code, message, retryable and retryAfter (like "30s")`),
		},
		"a timer": {
			answer: `{"park":{"on":"timer","step":"nap","until":"2026-01-02T03:04:05Z"},"session":1}`,
			want: runtime.Report{
				Type: runtime.Parked, Session: json.RawMessage(`1`),
				Park: &run.Park{On: run.OnTimer, Step: "nap", Until: run.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))},
			},
		},
		"a signal, with the step's name by default": {
			answer: `{"park":{"on":"input","name":"paid"}}`,
			want:   runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnInput, Step: "park", Name: "paid"}},
		},
		"a timer without a time": {
			answer: `{"park":{"on":"timer"}}`, want: invalid(`result: park.until is missing; want the time to wake, like "2026-01-31T06:00:00Z"`),
		},
		"a signal without a name": {answer: `{"park":{"on":"input"}}`, want: invalid("result: park.name is missing; want the name of the signal to wait for")},
		"a park on nothing":       {answer: `{"park":{}}`, want: invalid(`result: park.on is ""; want timer, input, children or gate`)},
		"a gate": {
			answer: `{"park":{"on":"gate","step":"pay","gate":{"title":"Pay","action":{"amount":1},"approvers":["group:finance"],"expires":"2h","escalate":{"after":"1h","to":["user:ann"]}}}}`,
			want: runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnGate, Step: "pay"}, Gate: &run.GateAsk{
				Title: "Pay", Action: json.RawMessage(`{"amount":1}`), Approvers: []string{"group:finance"}, Expires: 2 * time.Hour,
				EscalateAfter: time.Hour, EscalateTo: []string{"user:ann"},
			}},
		},
		"a gate that was requested before": {answer: `{"park":{"on":"gate","step":"pay"}}`, want: runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnGate, Step: "pay"}}},
		"a gate whose limits are spelled wrong": {
			answer: `{"park":{"on":"gate","gate":{"title":"Pay","aprovers":["user:ann"]}}}`,
			want:   invalid(`result: park.gate has the unknown field "aprovers"; the fields are title, action, approvers, quorum, notRequester, expires, onExpiry, remind, escalate, context and diff`),
		},
		"a gate without a title": {answer: `{"park":{"on":"gate","gate":{}}}`, want: invalid("result: park.gate: title is missing: say in a line what is to be approved: malformed")},
		"a gate at a timer":      {answer: `{"park":{"on":"timer","until":"2026-01-02T03:04:05Z","gate":{"title":"x"}}}`, want: invalid("result: park.gate is given for a park on timer")},
		"a score that is text":   {answer: `{"output":1,"score":"high"}`, want: invalid("result: score does not fit; want a number")},
		"children": {
			answer: `{"park":{"on":"children","step":"all","children":[{"agent":"a","input":{"n":1}},{"workflow":"w"}],"max":1,"tolerate":1,"need":1}}`,
			want: runtime.Report{
				Type: runtime.Parked, Park: &run.Park{On: run.OnChildren, Step: "all", Size: 2, Tolerate: 1, Need: 1}, Max: 1,
				Calls: []runtime.Call{{Agent: "a", Input: json.RawMessage(`{"n":1}`)}, {Workflow: "w"}},
			},
		},
		"no children at all": {
			answer: `{"park":{"on":"children","children":[]}}`,
			want:   runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnChildren, Step: "park"}, Calls: []runtime.Call{}},
		},
		"children that were called before": {
			answer: `{"park":{"on":"children","step":"all","size":3}}`,
			want:   runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnChildren, Step: "all", Size: 3}},
		},
		"children without a word of them": {
			answer: `{"park":{"on":"children"}}`,
			want:   invalid("result: park.children is missing; want the calls to wait for, or the size of a step whose children were called before"),
		},
		"more successes than children": {
			answer: `{"park":{"on":"children","children":[{"agent":"a"}],"need":2}}`,
			want:   invalid("result: park on 1 children, 2 to succeed, 0 may fail, 0 at a time; want up to 10000 children, and no more than there are to succeed"),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, before := runtime.ParseResult([]byte(tt.answer))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("report (-want +got):\n%.2000s", diff)
			}
			if string(before) != tt.wantBefore {
				t.Errorf("before %q, want %q", before, tt.wantBefore)
			}
		})
	}
}

func TestParseResultLimit(t *testing.T) {
	tests := map[string]struct {
		answer string
		want   runtime.ReportType
	}{
		"an output of the limit":                          {`"` + strings.Repeat("x", runtime.MaxResult-2) + `"`, runtime.Completed},
		"an output over the limit, in a frame":            {`{"output":"` + strings.Repeat("x", runtime.MaxResult) + `"}`, runtime.Failed},
		"an output over the limit":                        {`"` + strings.Repeat("x", runtime.MaxResult-1) + `"`, runtime.Failed},
		"an output over the limit, by the wrapping alone": {strings.Repeat(`"`, runtime.MaxResult/2+1), runtime.Failed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, _ := runtime.ParseResult([]byte(tt.answer))
			if got.Type != tt.want || (tt.want == runtime.Failed && got.Code != string(run.ResultTooLarge)) {
				t.Errorf("%s %s, want %s", got.Type, got.Code, tt.want)
			}
		})
	}
}

// Whatever a program writes makes one report with a valid output, or a failure that says something.
func FuzzParseResult(f *testing.F) {
	for _, seed := range []string{"", "x", `{"output":1}`, `{"error":{"code":1e999}}`, `{"park":{"on":"timer","until":"x"}}`, "a\n{\"error\":\"b\"}", `{"error":{"retryAfter":-1}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		r, _ := runtime.ParseResult(answer)
		switch r.Type {
		case runtime.Completed:
			if !json.Valid(r.Output) {
				t.Errorf("output %q is no JSON", r.Output)
			}
		case runtime.Parked:
			if r.Park == nil || r.Park.Step == "" {
				t.Errorf("park %+v", r.Park)
			}
		case runtime.Failed:
			if r.Class == "" || r.RetryIn < 0 {
				t.Errorf("failure %+v", r)
			}
		default:
			t.Errorf("report of type %q", r.Type)
		}
	})
}
