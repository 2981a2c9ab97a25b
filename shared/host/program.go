package host

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/process"
	"github.com/errand-run/errand/shared/runtime/stdio"
)

// Program executes attempts by one command, a process for each, over the stdio protocol. No process outlives the host,
// however it ends: the program that makes one calls process.Warden first of all.
type Program struct {
	processes *process.Host
	url       string
	how       fleet.Run
	log       *slog.Logger
}

// NewProgram makes a Program of a command, which must be there; url is the server that its attempts report to. It
// inherits the working folder, and the environment but for what is meant for the worker itself.
func NewProgram(command []string, url string, log *slog.Logger) (*Program, error) {
	if len(command) == 0 {
		return nil, fmt.Errorf("no command; want the program to run for each attempt")
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	processes, err := process.NewHost(process.Options{Warden: true, Logger: log})
	if err != nil {
		return nil, err
	}
	how := fleet.Run{Command: command, Dir: dir, Env: ownEnvironment(os.Environ()), Protocol: fleet.Stdio}
	return &Program{processes: processes, url: url, how: how, log: log}, nil
}

// Close ends what is left of the processes.
func (p *Program) Close() {
	if err := p.processes.Close(); err != nil {
		p.log.Warn("programs may be left", "error", err)
	}
}

// ownEnvironment is what the program inherits: everything but what tells the worker itself, its token before all, what
// to do.
func ownEnvironment(environ []string) map[string]string {
	vars := make(map[string]string)
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok && name != "" && !strings.HasPrefix(name, "ERRAND_") {
			vars[name] = value
		}
	}
	return vars
}

// Handle executes one attempt; it is HostOptions.Handle of agent.
func (p *Program) Handle(ctx context.Context, a *agent.Attempt) agent.Result {
	// 1. Start the program.
	x, err := stdio.Start(assignment(a, p.how), stdio.Options{
		Host: p.processes, URL: p.url, Grace: stopGrace, Logs: func(lines []runtime.LogLine) { log(a, lines) },
	})
	if err != nil {
		return agent.Result{Err: &api.AgentError{Class: agent.ClassInfrastructure, Code: string(run.StartFailed), Message: err.Error()}}
	}
	// 2. Wait for its end, and bring it about when the attempt is over for another reason.
	select {
	case <-x.Done():
	case <-ctx.Done():
		x.Stop(stopReason(context.Cause(ctx)))
		<-x.Done()
	}
	return result(x.Report())
}
