package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/errand-run/errand/shared/api"
)

// team is a program that is two agents of different types.
func team() map[string]Agent {
	return map[string]Agent{
		"add":   Of(func(_ context.Context, _ *Run, in []int) (int, error) { return in[0] + in[1], nil }),
		"greet": Of(func(_ context.Context, r *Run, in string) (string, error) { return r.Agent + " " + in, nil }),
	}
}

func TestARunGoesToTheAgentThatItIsOf(t *testing.T) {
	for name, c := range map[string]struct {
		agent, input string
		want         string // output, or code
		message      string
	}{
		"one":                        {"add", `[1,2]`, "3", ""},
		"another, of its own types":  {"greet", `"Ada"`, `"greet Ada"`, ""},
		"an input of the other's":    {"add", `"Ada"`, CodeInputInvalid, "input of agent add does not fit []int"},
		"one that the program isn't": {"sing", `{}`, CodeUnsupported, `this program is no agent "sing", it is add, greet`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				r := f.submit(c.agent, c.input)
				p := &process{
					getenv:  env(map[string]string{EnvURL: "http://fake", EnvAgent: c.agent}),
					connect: f.connect(t), stderr: io.Discard, name: "team",
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan int, 1)
				go func() { done <- p.run(ctx, dispatch(team())) }()
				<-r.wait
				cancel()
				<-done
				switch {
				case c.message == "" && string(r.output) != c.want:
					t.Errorf("output %s, %s; want %s", r.output, r.why(), c.want)
				case c.message != "" && (r.failure == nil || r.failure.Code != c.want || r.failure.Retryable == nil || *r.failure.Retryable || !strings.Contains(r.failure.Message, c.message)):
					t.Errorf("%s; want a final %s: …%s…", r.why(), c.want, c.message)
				}
			})
		})
	}
}

func TestAProgramDoesNotBeginAsAnAgentThatItIsNot(t *testing.T) {
	for _, vars := range []map[string]string{
		{EnvURL: "http://fake", EnvAgent: "add, sing"},
		{EnvProtocol: ProtocolStdio, EnvAgent: "sing"},
		{EnvProtocol: ProtocolHTTP, EnvPort: "0", EnvAgent: "sing"},
	} {
		var stderr bytes.Buffer
		p := &process{getenv: env(vars), stdin: strings.NewReader(""), stderr: &stderr, name: "team", agents: []string{"add", "greet"}}
		code := p.run(t.Context(), func(context.Context, *api.Client, *Attempt) Result { panic("a run was taken") })
		if text := stderr.String(); code != 2 || !strings.Contains(text, `no agent "sing", it is add, greet`) || strings.Contains(text, `no agent "add"`) {
			t.Errorf("%v: exit %d: %s", vars, code, text)
		}
	}
}

func TestAProgramThatIsNoAgentIsAMistake(t *testing.T) {
	for name, c := range map[string]struct {
		agents map[string]Agent
		want   string
	}{
		"none":                 {nil, "want one agent or more"},
		"one without handlers": {map[string]Agent{"add": {}}, `agent "add" has no handler`},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if v := recover(); !strings.Contains(fmt.Sprint(v), c.want) {
					t.Errorf("panic %v; want …%s…", v, c.want)
				}
			}()
			MainOf(c.agents)
		})
	}
}
