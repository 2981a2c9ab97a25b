package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/cli/internal/inputs"
	"github.com/errand-run/errand/shared/cli/internal/render"
	"github.com/errand-run/errand/shared/manifest"
)

// Exit codes of the command.
const (
	ExitOK          = 0
	ExitError       = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitAuth        = 4
	ExitConflict    = 5
	ExitRunFailed   = 6
	ExitCanceled    = 7
	ExitUnreachable = 8
	ExitTimeout     = 124
	ExitInterrupted = 130
)

// exitError ends the command with a code. Without an error in it there is nothing left to say.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef is a mistake in how the command was called.
func usagef(format string, args ...any) error {
	return &exitError{ExitUsage, fmt.Errorf(format, args...)}
}

// ended is the outcome of a command that has already told everything.
func ended(code int) error {
	if code == ExitOK {
		return nil
	}
	return &exitError{code: code}
}

// errInterrupted is the cause of the context that a signal ends.
var errInterrupted = errors.New("interrupted")

// exitCode is the code for what a command returned.
func exitCode(ctx context.Context, err error) int {
	var exit *exitError
	var problem *api.Problem
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(context.Cause(ctx), errInterrupted):
		return ExitInterrupted
	case errors.As(err, &problem):
		return problemCode(problem)
	case errors.Is(err, inputs.ErrTooLarge):
		return ExitUsage
	case errors.Is(err, context.DeadlineExceeded):
		return ExitTimeout
	case unreachable(err):
		return ExitUnreachable
	}
	return ExitError
}

func problemCode(p *api.Problem) int {
	switch p.Status {
	case http.StatusNotFound:
		return ExitNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return ExitAuth
	case http.StatusConflict, http.StatusPreconditionFailed:
		return ExitConflict
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return ExitTimeout
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return ExitUnreachable
	}
	return ExitError
}

// unreachable reports whether no answer came from a server at all.
func unreachable(err error) bool {
	return errors.Is(err, api.ErrUnreachable)
}

// report writes what went wrong: one line per fault, what was attempted, what to do.
func (a *app) report(err error) {
	for _, line := range a.explain(err) {
		fmt.Fprintf(a.err, "errand: %s\n", line)
	}
}

func (a *app) explain(err error) []string {
	var exit *exitError
	if errors.As(err, &exit) && exit.err == nil {
		return nil
	}
	var bad *manifest.Error
	if errors.As(err, &bad) {
		return strings.Split(bad.Error(), "\n")
	}
	var problem *api.Problem
	if errors.As(err, &problem) {
		return problemLines(attempted(err, problem), problem)
	}
	if unreachable(err) {
		return []string{fmt.Sprintf("cannot reach %s: %s; %s", a.serverURL(), render.Clean(cause(err)), a.startHint())}
	}
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, render.Clean(line))
		}
	}
	return lines
}

// attempted is what stands before the problem in a wrapped error.
func attempted(err error, p *api.Problem) string {
	if before, ok := strings.CutSuffix(err.Error(), p.Error()); ok {
		return strings.TrimSuffix(before, ": ")
	}
	return ""
}

func problemLines(what string, p *api.Problem) []string {
	head := p.Title
	if p.Detail != "" {
		head = p.Detail
	}
	if what != "" {
		head = what + ": " + head
	}
	switch p.Status {
	case http.StatusUnauthorized:
		head += "; give a token with --token or ERRAND_TOKEN"
	case http.StatusForbidden:
		if p.Detail == "" {
			head += "; the token's role does not allow it"
		}
	}
	if p.RetryAfter > 0 {
		head += fmt.Sprintf("; try again in %d s", p.RetryAfter)
	}
	if p.Current != "" {
		head += "; the current version is " + p.Current
	}
	lines := []string{render.Clean(head)}
	for _, f := range p.Errors {
		line := f.Message
		if f.Location != "" {
			line = f.Location + ": " + f.Message
		}
		if strings.HasSuffix(p.Detail, line) {
			continue // said already, with what was attempted
		}
		lines = append(lines, render.Clean(line))
	}
	return lines
}

// cause is the innermost reason why a connection failed, without the addresses that the message already names.
func cause(err error) string {
	var errno syscall.Errno
	var dns *net.DNSError
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &dns):
		return dns.Err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	_, inner, ok := strings.Cut(err.Error(), api.ErrUnreachable.Error()+" at ")
	if _, reason, found := strings.Cut(inner, ": "); ok && found {
		return reason
	}
	return err.Error()
}

// startHint says how to get a server where none answers.
func (a *app) startHint() string {
	if u, err := url.Parse(a.serverURL()); err == nil && isLoopback(u.Hostname()) {
		return `start a server with "errand dev"`
	}
	return "check --server or ERRAND_SERVER, and that the server runs"
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
