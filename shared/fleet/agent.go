package fleet

import (
	"encoding/json"
	"time"
)

// Shape is how an agent lives.
type Shape string

// The four shapes.
const (
	Service  Shape = "service"  // per request, without state
	Instance Shape = "instance" // always on, with sessions
	Pool     Shape = "pool"     // takes work from a queue
	Job      Shape = "job"      // runs to completion
)

// Shapes lists the shapes, in the order to show them.
func Shapes() []Shape { return []Shape{Service, Instance, Pool, Job} }

// Agent is one kind of work: how to run it, what it needs, and what happens
// when it fails.
type Agent struct {
	Meta         `json:"-"`
	Shape        Shape        `json:"shape"`
	Run          Run          `json:"run,omitzero"`
	Lifetime     Lifetime     `json:"lifetime,omitzero"`
	Input        Schema       `json:"input,omitempty"`  // nil: any input
	Output       Schema       `json:"output,omitempty"` // nil: any output
	Needs        Needs        `json:"needs"`
	Prefers      []Preference `json:"prefers,omitempty"`
	Retry        Retry        `json:"retry"`
	Timeouts     Timeouts     `json:"timeouts"`
	Concurrency  Concurrency  `json:"concurrency,omitzero"`
	Budget       Budget       `json:"budget,omitzero"`
	Model        string       `json:"model,omitempty"` // a Model's name
	Permissions  Permissions  `json:"permissions,omitzero"`
	Identity     string       `json:"identity,omitempty"` // the service account it runs as
	Session      Session      `json:"session,omitzero"`   // shape instance only
	Effects      Effects      `json:"effects"`
	Backpressure Backpressure `json:"backpressure"`
	Scale        Scale        `json:"scale,omitzero"`
	Retain       Duration     `json:"retain"` // finished runs are removed after this; Forever: never
	Evaluate     *Evaluate    `json:"evaluate,omitempty"`
	Job          *JobSpec     `json:"job,omitempty"` // shape job only
}

// Kind is KindAgent.
func (*Agent) Kind() string { return KindAgent }

// Name is the agent's name. It hides the embedded field so that Agent can be an
// Object; the field is Meta.Name.
func (a *Agent) Name() string { return a.Meta.Name }

// Protocol is how a process and its host talk.
type Protocol string

// The protocols.
const (
	Worker Protocol = "worker" // the process asks for leases itself
	Stdio  Protocol = "stdio"  // one process per run: document in, document out
	HTTP   Protocol = "http"   // the run is posted to the process or URL
)

// Run is how a local runtime starts the agent. A target in the cloud names its
// own resource and needs none of it.
type Run struct {
	Command []string `json:"command,omitempty"` // program and arguments; excludes URL
	URL     string   `json:"url,omitempty"`     // an http(s) address that is already served
	Build   []string `json:"build,omitempty"`   // runs once before the first start
	// Dir is where Command and Build run. In a manifest it is relative to the
	// manifest's file; reading the file makes it absolute.
	Dir      string            `json:"dir,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Slots    int               `json:"slots,omitempty"` // concurrent runs per process
	Protocol Protocol          `json:"protocol,omitempty"`
}

// Lifetime describes the work to the lifetime adviser. It limits nothing.
type Lifetime struct {
	Expected Duration `json:"expected,omitempty"`
	Max      Duration `json:"max,omitempty"`
	State    string   `json:"state,omitempty"`   // none | session
	Trigger  string   `json:"trigger,omitempty"` // request | queue | schedule | parent
}

// Schema is a JSON Schema as compact JSON with sorted keys, or nil for none. It
// is assignable to []byte. In a manifest it stands under the key schema.
type Schema json.RawMessage

// Needs is what a target must offer.
type Needs struct {
	Slots       int               `json:"slots"`
	CPU         CPU               `json:"cpu,omitempty"`
	Memory      Bytes             `json:"memory,omitempty"`
	Accelerator string            `json:"accelerator,omitempty"`
	Regions     []string          `json:"regions,omitempty"` // any of; empty: any
	Labels      map[string]string `json:"labels,omitempty"`  // all of, see Target.Label
	// TenantsOnly are the tenants that may run this agent; empty: all.
	TenantsOnly []string `json:"tenantsOnly,omitempty"`
	// DataIn is a place that the target must list under data; empty: any.
	DataIn string `json:"dataIn,omitempty"`
	// Tolerates lists the target taints that do not keep this agent away. A
	// taint is KEY or KEY=VALUE; KEY alone tolerates it with any value.
	Tolerates []string `json:"tolerates,omitempty"`
}

// Preference adds Weight (1 to 100) to the score of targets with all Labels.
type Preference struct {
	Labels map[string]string `json:"labels"`
	Weight int               `json:"weight"`
}

// Retry says what happens to a failed attempt.
type Retry struct {
	MaxAttempts int         `json:"maxAttempts"` // the first one counts
	Backoff     Backoff     `json:"backoff"`
	On          []RetryRule `json:"on,omitempty"` // the first that matches decides
}

// Backoff is the wait before attempt n+1: min(Max, Initial·Factor^(n-1)), moved
// by up to the share Jitter (0 to 1) either way.
type Backoff struct {
	Initial Duration `json:"initial"`
	Factor  float64  `json:"factor"`
	Max     Duration `json:"max"`
	Jitter  float64  `json:"jitter"`
}

var defaultBackoff = Backoff{
	Initial: Duration(time.Second), Factor: 2, Max: Duration(5 * time.Minute), Jitter: 0.2,
}

// RetryAction is what a rule does with a failure.
type RetryAction string

// The actions of a rule.
const (
	ActionRetry  RetryAction = "retry"  // try again, spending an attempt
	ActionFail   RetryAction = "fail"   // end the run now
	ActionIgnore RetryAction = "ignore" // try again, spending none
)

// RetryRule matches a failure by Class, Code or both.
type RetryRule struct {
	// Class is user, infrastructure, throttled, timeout, lost, canceled or budget.
	Class string `json:"class,omitempty"`
	// Code is the agent's own error code, an HTTP status or an exit code.
	Code   string      `json:"code,omitempty"`
	Action RetryAction `json:"action"`
}

// Classes lists the failure classes that a rule can name.
func Classes() []string {
	return []string{"user", "infrastructure", "throttled", "timeout", "lost", "canceled", "budget"}
}

// Timeouts bound a run. Queue is the longest wait for a first start, Attempt
// one attempt, Run the whole with all retries.
type Timeouts struct {
	Queue   Duration `json:"queue"`
	Attempt Duration `json:"attempt"`
	Run     Duration `json:"run"`
	// Heartbeat is the longest silence of a handler; 0 asks for no sign of life.
	Heartbeat Duration `json:"heartbeat"`
	// CountWaiting makes waiting for a person count towards Run.
	CountWaiting bool `json:"countWaiting"`
}

// Concurrency bounds the runs in progress; 0 is no bound.
type Concurrency struct {
	Max       int     `json:"max,omitempty"`
	PerTenant int     `json:"perTenant,omitempty"`
	PerKey    *PerKey `json:"perKey,omitempty"`
}

// PerKey bounds the runs in progress that share a key.
type PerKey struct {
	Key string `json:"key"` // a CEL expression over input, tenant and labels
	Max int    `json:"max"`
}

// Breach is what happens when a budget is used up.
type Breach string

// The answers to a breach.
const (
	BreachFail Breach = "fail"
	BreachAsk  Breach = "ask"
)

// Budget bounds what one run tree may spend; 0 is no bound.
type Budget struct {
	USD      float64 `json:"usd,omitempty"`
	Tokens   int64   `json:"tokens,omitempty"`
	OnBreach Breach  `json:"onBreach,omitempty"` // fail unless set, once a bound is given
}

// Permissions is all that the agent's token allows.
type Permissions struct {
	Call    []string `json:"call,omitempty"`    // agents it may call
	Effects []string `json:"effects,omitempty"` // effect names; a final * matches any rest
	State   []string `json:"state,omitempty"`   // keys of shared state; likewise
	Secrets []string `json:"secrets,omitempty"` // names of secrets
}

// Session bounds the state that an instance keeps between turns.
type Session struct {
	MaxBytes Bytes    `json:"maxBytes"`
	Idle     Duration `json:"idle"` // the session ends after this long without a turn
}

// UnknownPolicy is what happens to an effect of which nobody knows whether it
// took place.
type UnknownPolicy string

// The policies for unknown outcomes.
const (
	UnknownAsk       UnknownPolicy = "ask"
	UnknownReconcile UnknownPolicy = "reconcile"
	UnknownRepeat    UnknownPolicy = "repeat"
	UnknownFail      UnknownPolicy = "fail"
)

// Effects are the defaults for effects that set none.
type Effects struct {
	OnUnknown UnknownPolicy `json:"onUnknown"`
	// Settle is how long past its end an attempt may still act on the outside.
	Settle Duration `json:"settle"`
}

// Backpressure is what intake does when capacity is saturated.
type Backpressure string

// The backpressure policies.
const (
	BackpressureQueue Backpressure = "queue"
	BackpressureSlow  Backpressure = "slow"
	BackpressureShed  Backpressure = "shed"
)

// Scale sets the number of workers from a signal. The zero Scale is none.
type Scale struct {
	Signal string    `json:"signal"` // queueDepth | queueAge | inFlight
	Target Threshold `json:"target"`
	Min    int       `json:"min"`
	Max    int       `json:"max"`
}

// Evaluate scores a share of the finished runs, and acts when quality drops.
type Evaluate struct {
	Sample     float64   `json:"sample"` // 0 to 1
	By         Evaluator `json:"by"`
	Baseline   int       `json:"baseline"`   // scores that make up the baseline
	AlarmBelow float64   `json:"alarmBelow"` // 0 to 1
	Action     string    `json:"action"`     // alarm | canary | quarantine
}

// Evaluator gives a score from 0 to 1: an expression or an agent, not both.
type Evaluator struct {
	CEL   string `json:"cel,omitempty"` // over input and output
	Agent string `json:"agent,omitempty"`
}

// JobSpec has the names and the meaning of a batch/v1 Job. Completions unset
// with Parallelism set means a work queue, as there.
type JobSpec struct {
	Completions    *int   `json:"completions,omitempty"`
	Parallelism    *int   `json:"parallelism,omitempty"`
	BackoffLimit   *int   `json:"backoffLimit,omitempty"`
	CompletionMode string `json:"completionMode,omitempty"` // NonIndexed | Indexed
}
