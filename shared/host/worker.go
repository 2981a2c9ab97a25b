package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/bus/pubsub"
	"github.com/errand-run/errand/shared/identity"
)

// EnvForwardURL is where a worker sends documents, and EnvBus the bus that hands it attempts.
const (
	EnvForwardURL = "ERRAND_FORWARD_URL"
	EnvBus        = "ERRAND_BUS"
)

// Settings are what a worker of a pool is told.
type Settings struct {
	URL        string // of the control plane
	Bus        string // pubsub:PROJECT[/PREFIX]
	Target     string
	Agents     []string
	Slots      int
	Grace      time.Duration
	Worker     string   // "" to make an id
	ForwardURL string   // or
	Command    []string // exactly one of them

	token, audience string
	tokens          api.TokenSource
}

// ReadSettings reads a worker's settings from its environment and its arguments, which are a command after an optional
// "--". It checks everything at once.
func ReadSettings(getenv func(string) string, args []string) (*Settings, error) {
	var faults []error
	fault := func(name, format string, a ...any) {
		faults = append(faults, fmt.Errorf("%s=%.80q: "+format, append([]any{name, getenv(name)}, a...)...))
	}
	s := &Settings{
		URL: getenv(agent.EnvURL), Bus: getenv(EnvBus), Target: getenv(agent.EnvTarget), Slots: 1, Grace: agent.DefaultGrace,
		Worker: getenv(agent.EnvWorker), ForwardURL: getenv(EnvForwardURL), Command: args,
		token: getenv(agent.EnvWorkerToken), audience: getenv(agent.EnvAudience),
	}
	// 1. Where runs come from.
	if u, err := url.Parse(s.URL); err != nil || u.Host == "" {
		fault(agent.EnvURL, "want the control plane's URL, such as https://errand.example.com")
	}
	if s.Bus == "" {
		fault(EnvBus, "want the bus that hands attempts over, such as pubsub:PROJECT")
	}
	if s.Target == "" {
		fault(agent.EnvTarget, "want the target whose worker this is")
	}
	for name := range strings.SplitSeq(getenv(agent.EnvAgent), ",") {
		if name = strings.TrimSpace(name); name != "" {
			s.Agents = append(s.Agents, name)
		}
	}
	if len(s.Agents) == 0 {
		fault(agent.EnvAgent, "want the names of the agents to serve, with commas between")
	}
	// 2. How many, and what executes them.
	if text := getenv(agent.EnvSlots); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > api.MaxSlots {
			fault(agent.EnvSlots, "want a number from 1 to %d", api.MaxSlots)
		}
		s.Slots = n
	}
	if text := getenv(agent.EnvGrace); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || d > time.Hour {
			fault(agent.EnvGrace, "want a time from 0s to 1h, such as 7s")
		}
		s.Grace = d
	}
	if len(s.Command) > 0 && s.Command[0] == "--" {
		s.Command = s.Command[1:]
	}
	if (len(s.Command) == 0) == (s.ForwardURL == "") {
		fault(EnvForwardURL, "want either where to send attempts, such as http://127.0.0.1:8080/run, or a command after --")
	}
	// 3. Who it is.
	if s.token == "" && identity.OnPlatform(getenv, s.URL) {
		s.tokens = identity.Metadata(identity.Options{Host: getenv(identity.EnvHost)})
	}
	return s, errors.Join(faults...)
}

// Serve opens the bus that the settings name and runs on it. See Run.
func (s *Settings) Serve(ctx context.Context, log *slog.Logger) error {
	place, ok := strings.CutPrefix(s.Bus, "pubsub:")
	if !ok {
		return fmt.Errorf("%s=%.100q: want pubsub:PROJECT, or pubsub:PROJECT/PREFIX", EnvBus, s.Bus)
	}
	options, err := pubsub.Parse(place)
	if err != nil {
		return fmt.Errorf("%s=%.100q: %w", EnvBus, s.Bus, err)
	}
	options.Log = log
	b, err := pubsub.Open(ctx, options)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // what it still held comes again
	return s.Run(ctx, b, log)
}

// Run takes attempts from the bus and executes them until ctx ends, or the server asks the worker to drain, and then
// drains within ten seconds: no more are taken, running ones get their grace, the rest is handed back.
func (s *Settings) Run(ctx context.Context, b bus.Bus, log *slog.Logger) error {
	// 1. The way to the control plane.
	client, err := api.NewClient(api.Options{URL: s.URL, Token: s.token, Tokens: s.tokens, Audience: s.audience, UserAgent: "errand-worker"})
	if err != nil {
		return err
	}
	defer client.Close()
	pool := &Pool{Bus: b, Target: s.Target, Agents: s.Agents, Client: client, Log: log}
	o := agent.HostOptions{
		Worker: s.Worker, Target: s.Target, Agents: s.Agents, Slots: s.Slots, Grace: NoneIfZero(s.Grace), Log: log, Source: pool,
	}
	// 2. What executes attempts.
	if len(s.Command) > 0 {
		program, err := NewProgram(s.Command, client.URL(), log)
		if err != nil {
			return fmt.Errorf("run %.200q for each attempt: %w", s.Command[0], err)
		}
		defer program.Close()
		o.Handle = program.Handle
	} else {
		forward, err := NewForward(s.ForwardURL, client.URL())
		if err != nil {
			return err
		}
		if forward.WaitReady(ctx, log) != nil {
			return nil // told to end before it began
		}
		o.Handle, pool.Ready = forward.Handle, forward.Ready
	}
	// 3. Serve.
	worker, err := agent.NewHost(client, o)
	if err != nil {
		return err
	}
	pool.Worker = worker.Worker()
	log.Info("waiting for runs", "server", client.URL(), "bus", b.Describe(), "target", s.Target, "worker", worker.Worker(),
		"agents", strings.Join(s.Agents, ","), "slots", s.Slots)
	return worker.Run(ctx)
}

// NoneIfZero is a grace as agent.HostOptions takes it, where 0 means the default.
func NoneIfZero(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
