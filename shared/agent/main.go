package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/errand-run/errand/shared/api"
)

// Option changes how Main runs a handler.
type Option func(*options)

type options struct {
	snapshot func(context.Context) (map[string]any, error)
}

// WithSnapshot sets what an instance does before it stops: hook returns the state of every session that the process
// holds, by name, and it is saved as if a turn had ended with it. It has three seconds.
func WithSnapshot(hook func(context.Context) (map[string]any, error)) Option {
	return func(o *options) { o.snapshot = hook }
}

// Main runs a handler the way the environment says (see [EnvProtocol]): as a worker that pulls runs, behind HTTP for
// services and instances, for the one run of a job's container, or for one run on standard input and output. It ends the
// process: with 0 when the work is done, is somebody else's, or the process was told to end (SIGTERM, SIGINT: running
// handlers get their grace, what is left is handed back), 1 on an error or when the one run failed, 75 when a job's
// container could not reach the server to ask for its run, 2 when the environment does not say what to do.
func Main[In, Out any](handler Handler[In, Out], opts ...Option) {
	start(Of(handler).handle, nil, opts)
}

// start runs h as this process, which ends with it. The names are those of the agents that h is; none for any.
func start(h handle, names []string, opts []Option) {
	p := process{
		getenv: os.Getenv, setenv: os.Setenv, args: os.Args[1:], stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		name: filepath.Base(os.Args[0]), agents: names,
	}
	for _, opt := range opts {
		opt(&p.options)
	}
	// What a handler prints must not get between a stdio run and its result: it becomes log.
	os.Stdout = os.Stderr
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(p.run(ctx, h))
}

// handle executes one attempt, with the server to reach for what it records; nil where there is none.
type handle func(ctx context.Context, client *api.Client, a *Attempt) Result

// connect makes a client of a server.
type connect func(api.Options) (*api.Client, error)

// process is what Main needs of its process.
type process struct {
	options
	getenv         func(string) string
	setenv         func(name, value string) error
	args           []string
	connect        connect // newClient when nil
	stdin          io.Reader
	stdout, stderr io.Writer
	name           string
	agents         []string // that the program is; none where it is whatever it is asked to be
}

// run does what the environment says and returns the exit code.
func (p *process) run(ctx context.Context, h handle) int {
	env, err := readEnvironment(p.getenv, p.agents)
	if errors.Is(err, errNoProtocol) {
		fmt.Fprintf(p.stderr, usage, p.name)
		return 2
	}
	if err != nil {
		fmt.Fprintf(p.stderr, "%s: environment:\n%v\n", p.name, err)
		return 2
	}
	if env.connect = p.connect; env.connect == nil {
		env.connect = newClient
	}
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	switch env.protocol {
	case ProtocolStdio:
		return p.stdio(ctx, env, log, h)
	case ProtocolJob:
		return p.job(ctx, env, log, h)
	case ProtocolHTTP:
		err = p.serve(ctx, env, log, h)
	default:
		err = p.work(ctx, env, log, h)
	}
	if err != nil {
		fmt.Fprintf(p.stderr, "%s: %v\n", p.name, err)
		return 1
	}
	return 0
}

// work runs the worker protocol.
func (p *process) work(ctx context.Context, env *environment, log *slog.Logger, h handle) error {
	client, err := env.connect(env.control())
	if err != nil {
		return err
	}
	defer client.Close()
	host, err := NewHost(client, HostOptions{
		Worker: env.worker, Target: env.target, Agents: env.agents, Slots: env.slots, Log: log,
		Grace: noneIfZero(env.grace), Snapshot: p.sessions(),
		Handle: func(ctx context.Context, a *Attempt) Result { return h(ctx, client, a) },
	})
	if err != nil {
		return err
	}
	return host.Run(ctx)
}

// noneIfZero keeps "no grace" from meaning "the default".
func noneIfZero[T ~int64](d T) T {
	if d == 0 {
		return -1
	}
	return d
}

func newClient(o api.Options) (*api.Client, error) {
	o.UserAgent = "errand-agent-go"
	return api.NewClient(o)
}

// sessions is the snapshot hook with its states encoded; nil without a hook.
func (p *process) sessions() func(context.Context) (map[string]json.RawMessage, error) {
	if p.snapshot == nil {
		return nil
	}
	return func(ctx context.Context) (map[string]json.RawMessage, error) {
		states, err := p.snapshot(ctx)
		encoded := make(map[string]json.RawMessage, len(states))
		for name, state := range states {
			raw, encodeErr := encode(state)
			if encodeErr != nil {
				err = errors.Join(err, fmt.Errorf("snapshot of session %q: %w", clip(name, 40), encodeErr))
				continue
			}
			encoded[name] = raw
		}
		return encoded, err
	}
}

// stdio runs one attempt: its document comes on standard input, its result goes to standard output as the last line.
func (p *process) stdio(ctx context.Context, env *environment, log *slog.Logger, h handle) int {
	// 1. What to do.
	doc, err := api.ReadDocument(p.stdin)
	if err != nil {
		fmt.Fprintf(p.stderr, "%s: %v\n", p.name, err)
		return 2
	}
	reporter, err := newReporter(env, doc.URL, log)
	if err != nil {
		fmt.Fprintf(p.stderr, "%s: %v\n", p.name, err)
		return 2
	}
	defer reporter.close()
	// 2. Do it.
	a := reporter.attempt(doc, env.token)
	a.local = p.stderr
	a.open(ctx)
	result := reporter.execute(ctx, a, h)
	// 3. Tell.
	line, err := encode(result.document())
	if err != nil {
		line, _ = encode(Failed(failf(CodeOutputInvalid, "result: %w", err)).document())
		result.Err = &api.AgentError{}
	}
	if _, err := fmt.Fprintf(p.stdout, "%s\n", line); err != nil {
		fmt.Fprintf(p.stderr, "%s: write result: %v\n", p.name, err)
		return 1
	}
	if result.Err != nil {
		return 1
	}
	return 0
}
