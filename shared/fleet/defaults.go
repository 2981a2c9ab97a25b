package fleet

import "time"

// Defaults of an agent.
const (
	DefaultMaxAttempts  = 4
	DefaultSlots        = 8 // of a process that takes many runs
	DefaultQueue        = Duration(24 * time.Hour)
	DefaultAttempt      = Duration(5 * time.Minute)
	DefaultRun          = Duration(24 * time.Hour)
	DefaultSettle       = Duration(30 * time.Second)
	DefaultSessionBytes = Bytes(1 << 20)
	DefaultSessionIdle  = Duration(24 * time.Hour)
	DefaultRetain       = Duration(30 * 24 * time.Hour)
	DefaultBackoffLimit = 6 // of a job, as batch/v1 has it
	DefaultBaseline     = 50
)

// SetDefaults fills every unset field that has a default.
func (a *Agent) SetDefaults() {
	a.Run.setDefaults()
	set(&a.Needs.Slots, 1)
	set(&a.Retry.MaxAttempts, DefaultMaxAttempts)
	a.Retry.Backoff.setDefaults()
	a.Timeouts.setDefaults()
	if a.Budget.USD != 0 || a.Budget.Tokens != 0 {
		set(&a.Budget.OnBreach, BreachFail)
	}
	if a.Lifetime != (Lifetime{}) {
		set(&a.Lifetime.State, "none")
	}
	if a.Shape == Instance {
		set(&a.Session.MaxBytes, DefaultSessionBytes)
		set(&a.Session.Idle, DefaultSessionIdle)
	}
	set(&a.Effects.OnUnknown, UnknownAsk)
	set(&a.Effects.Settle, DefaultSettle)
	set(&a.Backpressure, BackpressureQueue)
	set(&a.Retain, DefaultRetain)
	if a.Evaluate != nil {
		set(&a.Evaluate.Sample, 1)
		set(&a.Evaluate.Baseline, DefaultBaseline)
		set(&a.Evaluate.Action, "alarm")
	}
	if a.Shape == Job {
		if a.Job == nil {
			a.Job = new(JobSpec)
		}
		a.Job.setDefaults()
	}
}

func (r *Run) setDefaults() {
	switch {
	case r.URL != "":
		set(&r.Protocol, HTTP)
	case len(r.Command) > 0:
		set(&r.Protocol, Stdio)
	}
	switch r.Protocol {
	case Stdio:
		set(&r.Slots, 1)
	case Worker, HTTP:
		set(&r.Slots, DefaultSlots)
	}
}

// setDefaults leaves a jitter of 0 alone unless nothing at all is set: no
// jitter is a choice.
func (b *Backoff) setDefaults() {
	if *b == (Backoff{}) {
		*b = defaultBackoff
		return
	}
	set(&b.Initial, defaultBackoff.Initial)
	set(&b.Factor, defaultBackoff.Factor)
	set(&b.Max, max(b.Initial, defaultBackoff.Max))
}

// setDefaults keeps an attempt within the run, whichever of them is given.
func (t *Timeouts) setDefaults() {
	set(&t.Queue, DefaultQueue)
	if t.Attempt == 0 {
		t.Attempt = DefaultAttempt
		if t.Run > 0 {
			t.Attempt = min(t.Attempt, t.Run)
		}
	}
	set(&t.Run, max(DefaultRun, t.Attempt))
}

func (j *JobSpec) setDefaults() {
	if j.Completions == nil && j.Parallelism == nil {
		j.Completions = new(1)
	}
	if j.Parallelism == nil {
		j.Parallelism = new(1)
	}
	if j.BackoffLimit == nil {
		j.BackoffLimit = new(DefaultBackoffLimit)
	}
	set(&j.CompletionMode, "NonIndexed")
}

// SetDefaults fills every unset field that has a default.
func (t *Target) SetDefaults() {
	if len(t.Shapes) == 0 && (t.Runtime == RuntimeLocal || t.Runtime == RuntimePoll) {
		t.Shapes = Shapes()
	}
}

// SetDefaults fills every unset field that has a default.
func (t *Tenant) SetDefaults() {
	set(&t.Weight, 1)
	set(&t.PriorityMax, MaxPriority)
	if t.Budget.USD != 0 || t.Budget.Tokens != 0 {
		set(&t.Budget.Per, "day")
	}
}

// set gives *p the value v if it is unset.
func set[T comparable](p *T, v T) {
	var unset T
	if *p == unset {
		*p = v
	}
}
