package server

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/signature"
	"github.com/errand-run/errand/shared/trigger"
)

// fakeTriggers is the part of the control plane that takes messages.
type fakeTriggers struct {
	arrived []control.Arrived
	taken   control.Taken
	err     error
	hook    control.Hook
	letters map[string]control.DeadLetter
	through []string
}

func (f *fakePlane) TakeMessage(_ context.Context, a control.Arrived) (control.Taken, error) {
	f.triggers.arrived = append(f.triggers.arrived, a)
	return f.triggers.taken, f.triggers.err
}

func (f *fakePlane) HookAt(_ context.Context, path string) (control.Hook, error) {
	if path != "paid" {
		return control.Hook{}, missing("trigger", path)
	}
	return f.triggers.hook, nil
}

func (f *fakePlane) RecordDeadLetter(_ context.Context, l control.DeadLetter) (control.DeadLetter, bool, error) {
	l.ID, l.At, l.Size = "l"+l.Message.ID, instant, len(l.Message.Data)
	if earlier, ok := f.triggers.letters[l.ID]; ok {
		return earlier, true, nil
	}
	f.triggers.letters[l.ID] = l
	return l, false, nil
}

func (f *fakePlane) DeadLetters(_ context.Context, limit int, after string) ([]control.DeadLetter, string, error) {
	for _, l := range f.triggers.letters {
		return []control.DeadLetter{l}, "", nil
	}
	return nil, "", nil
}

func (f *fakePlane) DeadLetter(_ context.Context, id string) (control.DeadLetter, error) {
	l, ok := f.triggers.letters[id]
	if !ok {
		return l, missing("dead letter", id)
	}
	return l, nil
}

func (f *fakePlane) ReplayDeadLetter(_ context.Context, id, through, _ string) (control.Submitted, error) {
	if _, ok := f.triggers.letters[id]; !ok {
		return control.Submitted{}, missing("dead letter", id)
	}
	f.triggers.through = append(f.triggers.through, through)
	return control.Submitted{Run: f.add("replayed", "default")}, nil
}

const pushedOrder = `{"message":{"data":"eyJvcmRlciI6N30=","messageId":"136","orderingKey":"acme"},"subscription":"projects/p/subscriptions/s","deliveryAttempt":2}`

func TestAPushIsAnswered(t *testing.T) {
	tests := map[string]struct {
		body   string
		taken  control.Taken
		err    error
		status int
		want   string // code of the problem
		retry  string
	}{
		"with a new run":                     {pushedOrder, control.Taken{Submitted: control.Submitted{}}, nil, 201, "", ""},
		"with the run that is there":         {pushedOrder, control.Taken{Submitted: control.Submitted{Existed: true}}, nil, 200, "", ""},
		"with a dead letter":                 {pushedOrder, control.Taken{DeadLetter: "letter1"}, nil, 200, "", ""},
		"as poison":                          {pushedOrder, control.Taken{}, &control.Refusal{Code: control.CodeInvalid, Detail: "no"}, 400, api.CodeInvalid, ""},
		"that there is no such trigger":      {pushedOrder, control.Taken{}, &control.Refusal{Code: control.CodeNotFound, Detail: "no"}, 404, api.CodeNotFound, ""},
		"when to come back, by overload":     {pushedOrder, control.Taken{}, &control.Refusal{Code: control.CodeOverloaded, Detail: "no", RetryAfter: 3 * time.Second}, 429, api.CodeOverloaded, "3"},
		"when to come back, by outage":       {pushedOrder, control.Taken{}, &control.Refusal{Code: control.CodeUnavailable, Detail: "no"}, 503, api.CodeUnavailable, "1"},
		"that it is no push":                 {`{"a":1}`, control.Taken{}, nil, 400, api.CodeInvalid, ""},
		"that it is larger than any message": {strings.Repeat("x", trigger.MaxBody+1), control.Taken{}, nil, 413, api.CodeTooLarge, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.plane.triggers.taken, s.plane.triggers.err = tt.taken, tt.err
			if tt.err == nil && tt.taken.DeadLetter == "" {
				s.plane.triggers.taken.Run = s.plane.add("run1", "default")
			}
			got := s.do("POST", "/v1/triggers/pubsub/orders", tt.body)
			if got.StatusCode != tt.status || got.Header.Get("Retry-After") != tt.retry {
				t.Fatalf("status %d and Retry-After %q, want %d and %q: %s", got.StatusCode, got.Header.Get("Retry-After"), tt.status, tt.retry, got.body)
			}
			if tt.want != "" {
				if p := got.problem(t); p.Code() != tt.want {
					t.Errorf("problem %q, want %q", p.Code(), tt.want)
				}
				return
			}
			want := api.Taken{Run: "run1", Existed: tt.taken.Existed}
			if tt.taken.DeadLetter != "" {
				want = api.Taken{DeadLetter: "letter1"}
			}
			if diff := cmp.Diff(want, into[api.Taken](t, got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			wantArrived := []control.Arrived{{Trigger: "orders", Actor: "local", Message: &trigger.Message{
				ID: "136", Subscription: "projects/p/subscriptions/s", OrderingKey: "acme", Attempt: 2, Data: []byte(`{"order":7}`),
			}}}
			if diff := cmp.Diff(wantArrived, s.plane.triggers.arrived); diff != "" {
				t.Errorf("handed on (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPushesAreForWhoeverMaySubmit(t *testing.T) {
	for role, status := range map[Role]int{Viewer: 403, Approver: 403, Worker: 403, Submitter: 201, Operator: 201} {
		s := newSite(t, withTokens(t, Token{Name: "pusher", SHA256: HashToken("secret"), Role: role}))
		s.plane.triggers.taken.Run = s.plane.add("run1", "default")
		if got := s.doAs("secret", "POST", "/v1/triggers/pubsub/orders", pushedOrder); got.StatusCode != status {
			t.Errorf("role %s: status %d, want %d: %s", role, got.StatusCode, status, got.body)
		}
		if got := s.do("POST", "/v1/triggers/pubsub/orders", pushedOrder); got.StatusCode != 401 {
			t.Errorf("without a token: status %d", got.StatusCode)
		}
	}
}

func TestASignedRequestIsTaken(t *testing.T) {
	key := []byte("0123456789abcdef")
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, append(key, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	const body = `{"paid":1}`
	signed := func(key []byte, at time.Time, body string) []string {
		timestamp, sig := signature.Sign([][]byte{key}, at, []byte(body))
		return []string{signature.Timestamp, timestamp, signature.Header, sig}
	}
	tests := map[string]struct {
		path   string
		header []string
		refs   string
		status int
	}{
		"by the key":                 {"paid", signed(key, time.Now(), body), "file:" + file, 201},
		"by the old key of two":      {"paid", signed(key, time.Now(), body), "env:ERRAND_TEST_HOOK,file:" + file, 201},
		"by another key":             {"paid", signed([]byte("fedcba9876543210"), time.Now(), body), "file:" + file, 401},
		"for another body":           {"paid", signed(key, time.Now(), body+" "), "file:" + file, 401},
		"an hour ago":                {"paid", signed(key, time.Now().Add(-time.Hour), body), "file:" + file, 401},
		"without a signature":        {"paid", nil, "file:" + file, 401},
		"at no trigger":              {"none", signed(key, time.Now(), body), "file:" + file, 404},
		"where the key is not there": {"paid", signed(key, time.Now(), body), "file:" + file + ".none", 503},
	}
	t.Setenv("ERRAND_TEST_HOOK", "another-key-of-some-length")
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, withTokens(t, Token{Name: "nobody", SHA256: HashToken("secret"), Role: Viewer})) // a login is not asked for
			s.plane.triggers.hook = control.Hook{Trigger: "paid", SecretRef: tt.refs}
			s.plane.triggers.taken.Run = s.plane.add("run1", "default")
			got := s.do("POST", "/v1/triggers/http/"+tt.path, body, tt.header...)
			if got.StatusCode != tt.status {
				t.Fatalf("status %d, want %d: %s", got.StatusCode, tt.status, got.body)
			}
			if tt.status != 201 {
				if len(s.plane.triggers.arrived) > 0 {
					t.Error("it was handed on")
				}
				if strings.Contains(string(got.body), file) {
					t.Errorf("the answer tells where the key is: %s", got.body)
				}
				return
			}
			again := s.do("POST", "/v1/triggers/http/"+tt.path, body, tt.header...)
			a := s.plane.triggers.arrived
			if again.StatusCode != 201 || len(a) != 2 || a[0].Message.ID == "" || a[0].Message.ID != a[1].Message.ID || string(a[0].Message.Data) != body ||
				a[0].Tenants != nil || a[0].Actor != "trigger paid" || a[0].Message.Attributes["x-errand-signature"] != "" {
				t.Errorf("handed on as %+v", a)
			}
			other := s.do("POST", "/v1/triggers/http/"+tt.path, body, append(tt.header, "Idempotency-Key", "k-1")...)
			if a = s.plane.triggers.arrived; other.StatusCode != 201 || a[2].Message.ID != "k-1" {
				t.Errorf("with a key of its own as %+v", a[2].Message)
			}
		})
	}
}

func TestDeadLettersOverHTTP(t *testing.T) {
	s := newSite(t)
	body := `{"trigger":"orders","subscription":"projects/p/subscriptions/s","messageId":"9","attempts":5,"publishTime":"2026-01-01T00:00:00Z","data":"` +
		base64.StdEncoding.EncodeToString([]byte(`{"order":7}`)) + `"}`
	if got := s.do("POST", "/v1/deadletters", body); got.StatusCode != 201 || into[api.DeadLetter](t, got).ID != "l9" {
		t.Fatalf("recorded with %d: %s", got.StatusCode, got.body)
	}
	if got := s.do("POST", "/v1/deadletters", body); got.StatusCode != 200 {
		t.Errorf("recorded again with %d: %s", got.StatusCode, got.body)
	}
	list := into[api.List[api.DeadLetter]](t, s.do("GET", "/v1/deadletters", ""))
	if len(list.Items) != 1 || list.Items[0].MessageID != "9" || list.Items[0].Data != nil || list.Items[0].Size != 11 || list.Items[0].Attempts != 5 {
		t.Errorf("listed as %+v", list)
	}
	if one := into[api.DeadLetter](t, s.do("GET", "/v1/deadletters/l9", "")); string(one.Data) != `{"order":7}` || one.PublishTime == nil {
		t.Errorf("read as %+v", one)
	}
	if got := s.do("POST", "/v1/deadletters/l9:replay", ""); got.StatusCode != 201 || into[api.Run](t, got).ID != "replayed" {
		t.Errorf("replayed with %d: %s", got.StatusCode, got.body)
	}
	if got := s.do("POST", "/v1/deadletters/l9:replay", `{"trigger":"other"}`); got.StatusCode != 201 || s.plane.triggers.through[1] != "other" {
		t.Errorf("replayed with %d through %v: %s", got.StatusCode, s.plane.triggers.through, got.body)
	}
	for call, status := range map[string]int{
		"GET /v1/deadletters/none": 404, "GET /v1/deadletters/a.b": 404, "POST /v1/deadletters/none:replay": 404, "GET /v1/deadletters?pageToken=../x": 404,
	} {
		method, path, _ := strings.Cut(call, " ")
		if got := s.do(method, path, ""); got.StatusCode != status {
			t.Errorf("%s: %d: %s", call, got.StatusCode, got.body)
		}
	}
	for name, bad := range map[string]string{
		"data that is no base64": `{"messageId":"9","data":"?"}`, "fewer than no attempts": `{"messageId":"9","attempts":-1}`, "an unknown field": `{"message":"9"}`,
	} {
		if got := s.do("POST", "/v1/deadletters", bad); got.StatusCode != 400 {
			t.Errorf("%s: %d: %s", name, got.StatusCode, got.body)
		}
	}
}

func TestDeadLettersAreForWhoeverSeesAllTenants(t *testing.T) {
	tests := map[string]struct {
		token                Token
		list, record, replay int
	}{
		"a viewer":                {Token{Role: Viewer}, 200, 403, 403},
		"a viewer of one tenant":  {Token{Role: Viewer, Tenants: []string{"acme"}}, 403, 403, 403},
		"a worker":                {Token{Role: Worker}, 403, 403, 403},
		"a worker of one agent":   {Token{Role: Worker, Agents: []string{"echo"}}, 403, 403, 403},
		"the deadletter function": {Token{Role: Edge}, 403, 201, 403},
		"an operator":             {Token{Role: Operator}, 200, 201, 201},
		"an operator of one":      {Token{Role: Operator, Tenants: []string{"acme"}}, 403, 403, 403},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.token.Name, tt.token.SHA256 = "x", HashToken("secret")
			s := newSite(t, withTokens(t, tt.token))
			s.plane.triggers.letters["l1"] = control.DeadLetter{ID: "l1", Message: &trigger.Message{ID: "1"}}
			for call, want := range map[*reply]int{
				new(s.doAs("secret", "GET", "/v1/deadletters", "")):                   tt.list,
				new(s.doAs("secret", "POST", "/v1/deadletters", `{"messageId":"2"}`)): tt.record,
				new(s.doAs("secret", "POST", "/v1/deadletters/l1:replay", "")):        tt.replay,
			} {
				if call.StatusCode != want {
					t.Errorf("%s %s: status %d, want %d: %s", call.Request.Method, call.Request.URL.Path, call.StatusCode, want, call.body)
				}
			}
		})
	}
}

func withTokens(t *testing.T, tokens ...Token) func(*Options) {
	auth, err := NewTokens(tokens)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *Options) { o.Loopback, o.Auth = false, auth }
}

func (s *site) doAs(token, method, path, body string) reply {
	s.t.Helper()
	return s.do(method, path, body, "Authorization", "Bearer "+token)
}
