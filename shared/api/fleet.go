package api

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Problem is an error on the wire (RFC 9457, application/problem+json).
type Problem struct {
	Type   string `json:"type"` // stable word after the last slash: see Problem.Code
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Errors locates each single fault.
	Errors []Fault `json:"errors,omitempty"`
	// RetryAfter in seconds, where waiting helps; also in the header.
	RetryAfter int `json:"retryAfter,omitempty"`
	// Current is the version that a stale write met.
	Current string `json:"current,omitempty"`
}

// ProblemBase starts every Problem.Type.
const ProblemBase = "https://errand.dev/problems/"

// Problem codes: the last part of Problem.Type.
const (
	CodeInvalid      = "invalid"
	CodeNotFound     = "not-found"
	CodeConflict     = "conflict"
	CodeFenced       = "fenced"
	CodeUnauthorized = "unauthorized"
	CodeForbidden    = "forbidden"
	CodeTooLarge     = "too-large"
	CodeOverloaded   = "overloaded"
	CodeUnsupported  = "unsupported"
	CodeState        = "state"
	CodeUnavailable  = "unavailable"
	CodeInternal     = "internal"
	CodeStale        = "stale"

	// Of decisions at gates, each with 409.
	CodeExpired      = "expired"
	CodeDecided      = "decided"
	CodeChanged      = "changed"
	CodeSelfApproval = "selfApproval"
)

// Fault locates one error of a request or a manifest.
type Fault struct {
	Message  string `json:"message"`
	Location string `json:"location,omitempty"` // body.input.x, query.limit, or file:line:column: path
	Value    any    `json:"value,omitempty"`
}

// Code is the stable word of the problem's type.
func (p *Problem) Code() string { return strings.TrimPrefix(p.Type, ProblemBase) }

// Error is one line with every fault.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Title)
	if p.Detail != "" {
		fmt.Fprintf(&b, ": %s", p.Detail)
	}
	for _, f := range p.Errors {
		if f.Location != "" {
			fmt.Fprintf(&b, "; %s: %s", f.Location, f.Message)
		} else {
			fmt.Fprintf(&b, "; %s", f.Message)
		}
	}
	return b.String()
}

// ApplyResult answers POST /v1/apply.
type ApplyResult struct {
	Results []Applied `json:"results"`
}

// Applied is what happened to one object.
type Applied struct {
	Kind     string   `json:"kind"`
	Name     string   `json:"name"`
	Action   string   `json:"action"` // created, configured, unchanged, deleted
	Warnings []string `json:"warnings,omitempty"`
}

// Object is a declared object as GET shows it: the manifest with every default in effect, and its status.
type Object struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   json.RawMessage `json:"metadata"`
	Spec       json.RawMessage `json:"spec"`
	Status     *Status         `json:"status,omitempty"`
	Etag       string          `json:"etag,omitempty"`
}

// Status is what is known of a declared object now; fields that a kind does not have are left out.
type Status struct {
	Revision  int64          `json:"revision,omitempty"`
	Paused    bool           `json:"paused,omitempty"`
	Queued    int            `json:"queued"`
	Running   int            `json:"running"` // runs that hold a slot
	Capacity  int            `json:"capacity,omitempty"`
	Workers   []WorkerStatus `json:"workers,omitempty"`
	Share     float64        `json:"share,omitempty"` // of the dispatched cost lately
	UpdatedAt *Time          `json:"updatedAt,omitempty"`
}

// WorkerStatus is a worker that is known now.
type WorkerStatus struct {
	ID       string   `json:"id"`
	Target   string   `json:"target"`
	Agents   []string `json:"agents"`
	Slots    int      `json:"slots"`
	Running  int      `json:"running"`
	Draining bool     `json:"draining,omitempty"`
	SeenAt   *Time    `json:"seenAt,omitempty"`
}

// Stats answers GET /v1/stats.
type Stats struct {
	At     Time           `json:"at"`
	Window Duration       `json:"window"`
	States map[string]int `json:"states"` // live runs by state, now
	Total  Figures        `json:"total"`
	Agents []NamedFigures `json:"agents"`
	Tenant []NamedFigures `json:"tenants"`
	Target []TargetStats  `json:"targets"`
	Oldest *Duration      `json:"oldestQueued,omitempty"`
}

// Figures count over the window.
type Figures struct {
	Submitted int      `json:"submitted"`
	Succeeded int      `json:"succeeded"`
	Failed    int      `json:"failed"`
	Canceled  int      `json:"canceled"`
	Retries   int      `json:"retries"`
	Queued    int      `json:"queued"`  // now
	Running   int      `json:"running"` // now
	WaitP50   Duration `json:"waitP50"` // queue to start
	WaitP95   Duration `json:"waitP95"`
	TookP50   Duration `json:"tookP50"` // start to end
	TookP95   Duration `json:"tookP95"`
	Cost      Cost     `json:"cost"`
}

// NamedFigures are the figures of one agent or tenant.
type NamedFigures struct {
	Name string `json:"name"`
	Figures
}

// TargetStats is a target's load now.
type TargetStats struct {
	Name     string `json:"name"`
	Capacity int    `json:"capacity"`
	Used     int    `json:"used"`
	Drain    bool   `json:"drain,omitempty"`
}

// Version answers GET /v1/version.
type Version struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Store   string `json:"store"` // driver, place and sync policy
	Leader  bool   `json:"leader"`
	Epoch   int64  `json:"epoch"`
	Started Time   `json:"started"`
}
