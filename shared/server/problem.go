package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/manifest"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// statusClientGone is what the access log shows for a request whose client left; nobody receives it.
const statusClientGone = 499

var titles = map[string]string{
	api.CodeInvalid:      "Invalid request",
	api.CodeNotFound:     "Not found",
	api.CodeConflict:     "Conflict",
	api.CodeFenced:       "Attempt no longer holds its run",
	api.CodeUnauthorized: "Not authenticated",
	api.CodeForbidden:    "Not allowed",
	api.CodeTooLarge:     "Too large",
	api.CodeOverloaded:   "Overloaded",
	api.CodeUnsupported:  "Not supported",
	api.CodeState:        "Wrong state",
	api.CodeUnavailable:  "Unavailable",
	api.CodeInternal:     "Internal error",
	api.CodeStale:        "Stale version",
	api.CodeExpired:      "Gate expired",
	api.CodeDecided:      "Gate decided already",
	api.CodeChanged:      "Action changed",
	api.CodeSelfApproval: "Own request",
}

var statuses = map[control.Code]int{
	control.CodeInvalid:     http.StatusBadRequest,
	control.CodeNotFound:    http.StatusNotFound,
	control.CodeConflict:    http.StatusConflict,
	control.CodeState:       http.StatusConflict,
	control.CodeForbidden:   http.StatusForbidden,
	control.CodeTooLarge:    http.StatusRequestEntityTooLarge,
	control.CodeOverloaded:  http.StatusTooManyRequests,
	control.CodeUnsupported: http.StatusNotImplemented,
	control.CodeUnavailable: http.StatusServiceUnavailable,
	control.CodeStale:       http.StatusPreconditionFailed,

	control.CodeExpired:      http.StatusConflict,
	control.CodeDecided:      http.StatusConflict,
	control.CodeChanged:      http.StatusConflict,
	control.CodeSelfApproval: http.StatusConflict,
}

func problem(status int, code, format string, args ...any) *api.Problem {
	return &api.Problem{Type: api.ProblemBase + code, Title: titles[code], Status: status, Detail: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *api.Problem {
	return problem(http.StatusBadRequest, api.CodeInvalid, format, args...)
}

func notFound(format string, args ...any) *api.Problem {
	return problem(http.StatusNotFound, api.CodeNotFound, format, args...)
}

// located adds the place of a fault to a problem.
func located(p *api.Problem, location, message string) *api.Problem {
	p.Errors = append(p.Errors, api.Fault{Location: location, Message: message})
	return p
}

// invalidAt is the problem of one wrong field or parameter.
func invalidAt(location, format string, args ...any) *api.Problem {
	message := fmt.Sprintf(format, args...)
	return located(invalid("%s: %s", location, message), location, message)
}

// problemOf says an error in the words of the wire. Errors that nobody foresaw keep what they know to the log: the
// caller gets the request's id.
func problemOf(ctx context.Context, log *slog.Logger, err error) *api.Problem {
	var (
		ready   *api.Problem
		wrapped *wireProblem
		refusal *control.Refusal
		state   *run.StateError
		issues  *manifest.Error
	)
	switch {
	case errors.As(err, &ready):
		return ready
	case errors.As(err, &wrapped):
		return &wrapped.Problem
	case errors.As(err, &refusal):
		return refused(refusal)
	case errors.Is(err, run.ErrFenced):
		return problem(http.StatusConflict, api.CodeFenced, "%v", err)
	case errors.As(err, &state):
		return problem(http.StatusConflict, api.CodeState, "%v", err)
	case errors.Is(err, run.ErrNoReceipt), errors.Is(err, run.ErrSettled), errors.Is(err, run.ErrActing):
		return problem(http.StatusConflict, api.CodeState, "%v", err)
	case errors.Is(err, runtime.ErrInvalid):
		return invalid("%v", err)
	case errors.Is(err, run.ErrTooLarge):
		return problem(http.StatusRequestEntityTooLarge, api.CodeTooLarge, "%v", err)
	case errors.As(err, &issues):
		return invalidManifest(issues)
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return problem(statusClientGone, api.CodeUnavailable, "the client went away")
	case errors.Is(err, context.DeadlineExceeded):
		p := problem(http.StatusServiceUnavailable, api.CodeUnavailable, "the control plane did not answer in time; whether the request took effect is unknown, a repeat with the same key is safe")
		p.RetryAfter = 1
		return p
	}
	id := requestID(ctx)
	log.ErrorContext(ctx, "request failed", "request", id, "error", err)
	return problem(http.StatusInternalServerError, api.CodeInternal, "the server failed; its log has the reason under request id %s", id)
}

func refused(r *control.Refusal) *api.Problem {
	status, known := statuses[r.Code]
	if !known {
		status = http.StatusInternalServerError
	}
	p := problem(status, string(r.Code), "%s", r.Detail)
	for _, f := range r.Faults {
		p.Errors = append(p.Errors, api.Fault{Location: f.Location, Message: f.Message})
	}
	p.RetryAfter = seconds(r.RetryAfter)
	if p.RetryAfter == 0 && (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) {
		p.RetryAfter = 1
	}
	p.Current = r.Current
	return p
}

// seconds rounds up: an early retry is refused again.
func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

func invalidManifest(e *manifest.Error) *api.Problem {
	p := invalid("the manifests have %d errors; nothing was applied", len(e.Issues))
	if len(e.Issues) == 1 {
		p.Detail = "the manifests have an error; nothing was applied: " + e.Issues[0].String()
	}
	for _, i := range e.Issues {
		where := i.File
		if i.Line > 0 {
			where += fmt.Sprintf(":%d:%d", i.Line, i.Column)
		}
		if i.Path != "" {
			where += ": " + i.Path
		}
		p.Errors = append(p.Errors, api.Fault{Location: where, Message: i.Message})
	}
	if e.Cut {
		p.Detail += fmt.Sprintf("; there are more than %d, these are the first", len(e.Issues))
	}
	return p
}

// wireProblem is a Problem in the form that huma returns from an operation.
type wireProblem struct{ api.Problem }

func (p *wireProblem) GetStatus() int               { return p.Status }
func (p *wireProblem) ContentType(string) string    { return "application/problem+json" }
func (p *wireProblem) GetHeaders() http.Header      { return problemHeaders(&p.Problem) }
func (p *wireProblem) Error() string                { return p.Problem.Error() }
func (p *wireProblem) MarshalJSON() ([]byte, error) { return json.Marshal(&p.Problem) }

func problemHeaders(p *api.Problem) http.Header {
	h := http.Header{}
	if p.Current != "" {
		h.Set("ETag", quoted(p.Current))
	}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="errand"`)
	}
	return h
}

// writeProblem answers with a problem. The status of a client that left is only for the log.
func writeProblem(w http.ResponseWriter, p *api.Problem) {
	for name, values := range problemHeaders(p) {
		w.Header()[name] = values
	}
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte(`{"title":"Internal error","status":500}`) // only a Fault.Value that is no JSON, and none is set
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

func init() {
	// Huma's own refusals of parameters speak as ours do. They never echo values: a parameter may hold what is secret.
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		code := api.CodeInvalid
		switch {
		case status == http.StatusUnprocessableEntity:
			status = http.StatusBadRequest
		case status >= http.StatusInternalServerError:
			code = api.CodeInternal
		}
		p := problem(status, code, "the request has wrong parameters")
		if len(errs) == 0 {
			p.Detail = message
		}
		for i, err := range errs {
			fault := api.Fault{Message: err.Error()}
			if d, ok := err.(huma.ErrorDetailer); ok {
				fault = api.Fault{Location: d.ErrorDetail().Location, Message: d.ErrorDetail().Message}
			}
			if i == 0 {
				p.Detail = fmt.Sprintf("%s: %s", fault.Location, fault.Message)
			}
			p.Errors = append(p.Errors, fault)
		}
		return &wireProblem{*p}
	}
	huma.DefaultArrayNullable = false
}
