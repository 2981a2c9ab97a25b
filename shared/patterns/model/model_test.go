package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func script(t *testing.T, rules string) *Script {
	t.Helper()
	s, err := ReadScript([]byte(`{"rules":` + rules + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func talk(system, user string) []Message {
	return []Message{{"system", system}, {"user", user}}
}

const rules = `[
	{"system":"^poet","user":"about (?P<what>\\w+)","answer":"O ${what}!"},
	{"system":"^poet","answer":"Hm."},
	{"user":"long","answer":"x"}
]`

// TestAScriptAnswersByItsFirstRuleThatFits asks directly and over HTTP, which must be the same.
func TestAScriptAnswersByItsFirstRuleThatFits(t *testing.T) {
	s := script(t, rules)
	server := httptest.NewServer(Handler(s))
	defer server.Close()
	remote, err := FromEnvironment(func(name string) string { return map[string]string{EnvURL: server.URL + "/"}[name] })
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		conversation []Message
		want         string
		status       int
	}{
		"with what was captured":           {talk("poet", "write about rain"), "O rain!", 0},
		"the next where the first is none": {talk("poet", "write"), "Hm.", 0},
		"the last user message counts":     {append(talk("poet", "about rain"), Message{"assistant", "O rain!"}, Message{"user", "about snow\nplease"}), "O snow!", 0},
		"nothing fits":                     {talk("painter", "paint"), "", 422},
		"nothing is asked":                 {nil, "", 400},
		"a role that there is not":         {[]Message{{"robot", "x"}}, "", 400},
		"a message without an end":         {talk("poet", strings.Repeat("x", MaxText+1)), "", 400},
	} {
		t.Run(name, func(t *testing.T) {
			for from, m := range map[string]Model{"script": s, "server": remote} {
				got, err := m.Answer(t.Context(), c.conversation)
				var refused *Error
				if c.status != 0 {
					if !errors.As(err, &refused) || refused.Passing || refused.Status != c.status && refused.Status != 0 {
						t.Errorf("%s: error %v, want status %d for good", from, err, c.status)
					}
					continue
				}
				if err != nil || got.Text != c.want || got.Model != "script" || got.InputTokens == 0 || got.OutputTokens == 0 {
					t.Errorf("%s: %+v, error %v, want %q", from, got, err, c.want)
				}
			}
		})
	}
}

func TestAScriptIsReadStrictly(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no rules":           {`{"rules":[]}`, "0 rules"},
		"an unknown field":   {`{"rules":[{"answers":"x"}]}`, "unknown field"},
		"no answer":          {`{"rules":[{"answer":"x"},{"user":"x"}]}`, "rules[1].answer"},
		"a pattern":          {`{"rules":[{"user":"(","answer":"x"}]}`, "rules[0].user"},
		"a pattern too long": {`{"rules":[{"system":"` + strings.Repeat("x", maxPattern+1) + `","answer":"x"}]}`, "rules[0].system"},
		"too many":           {`{"rules":[` + strings.Repeat(`{"answer":"x"},`, maxRules) + `{"answer":"x"}]}`, "1001 rules"},
	} {
		if _, err := ReadScript([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	if _, err := BuiltIn(); err != nil {
		t.Error(err)
	}
}

func TestWhatAServerAnswers(t *testing.T) {
	ok := func(content string) string {
		text, _ := json.Marshal(completionResponse{Choices: []choice{{Message: Message{"assistant", content}}}})
		return string(text)
	}
	for name, c := range map[string]struct {
		status  int
		after   string
		body    string
		passing bool
		wait    time.Duration
		want    string
	}{
		"too many requests":     {429, "7", "", true, 7 * time.Second, "429"},
		"a wait without an end": {503, "99999999", "", true, maxAfter, "503"},
		"a key that is wrong":   {401, "", "", false, 0, "401"},
		"no JSON":               {200, "", "<html>", true, 0, "no JSON"},
		"no choice":             {200, "", `{"choices":[]}`, true, 0, "no choice"},
		"an empty text":         {200, "", ok(""), true, 0, "no choice"},
		"a text without an end": {200, "", ok(strings.Repeat("x", MaxText+1)), false, 0, "at most"},
		"more than a body":      {200, "", strings.Repeat(" ", maxBody+1), false, 0, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			}))
			defer server.Close()
			_, err := newClient(server.URL, "m", "").Answer(t.Context(), talk("a", "b"))
			var refused *Error
			if !errors.As(err, &refused) || refused.Passing != c.passing || refused.After != c.wait || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %+v, want passing %t after %s with %q", err, c.passing, c.wait, c.want)
			}
		})
	}
}

func TestTheKeyIsSentAndNeverTold(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		http.Error(w, got, http.StatusForbidden)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{EnvURL: server.URL, EnvKeyFile: file}
	m, err := FromEnvironment(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Answer(t.Context(), talk("a", "b"))
	if got != "Bearer s3cret" || err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("sent %q, error %v", got, err)
	}
	for name, text := range map[string]string{"two lines": "s3cret\ns3cret", "nothing": "\n", "too much": strings.Repeat("s3cret", maxKey)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := FromEnvironment(func(name string) string { return env[name] }); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: error %v; want one that does not tell the key", name, err)
		}
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	asked := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // before that a server does not notice that the client has gone
		close(asked)
		<-r.Context().Done()
	}))
	defer server.Close()
	reason := errors.New("told to end")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-asked; cancel(reason) }()
	if _, err := newClient(server.URL, "m", "").Answer(ctx, talk("a", "b")); !errors.Is(err, reason) {
		t.Errorf("error %v, want why the context ended", err)
	}
}

func TestTheEnvironmentNamesTheModel(t *testing.T) {
	for name, c := range map[string]struct {
		url  string
		want string // "": refused
	}{
		"nothing":        {"", "*model.Script"},
		"an address":     {"https://models.example/base", "*model.client"},
		"no address":     {"models.example", ""},
		"another scheme": {"file:///etc/passwd", ""},
		"a password":     {"https://u:p@models.example", ""},
	} {
		m, err := FromEnvironment(func(n string) string { return map[string]string{EnvURL: c.url}[n] })
		if got := fmt.Sprintf("%T", m); err == nil && got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %s, error %v", name, got, err)
		} else if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s: the error tells the password: %v", name, err)
		}
	}
}
