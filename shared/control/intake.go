package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/errand-run/errand/shared/admission"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
)

// Intake stage: submissions are checked where they come in, then wait for the next pass, which commits them together
// with their placement. A process that does not lead commits them itself and leaves the placement to the leader.

// Bounds on submissions.
const (
	maxKey        = 200
	maxLabelBytes = 200
	maxAhead      = 366 * 24 * time.Hour // of notBefore and deadline
)

// arrival is a submission on its way to its first commit.
type arrival struct {
	rec    *run.Record
	writes []store.Write // payloads
	delay  time.Duration // the answer is kept back for so long, to slow the submitter down
	done   func(arrival, error)
}

// arrivals collects them between passes.
type arrivals struct {
	mu   sync.Mutex
	list []arrival
}

// add takes all of them or, when too many wait, none.
func (a *arrivals) add(more []arrival) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list)+len(more) > maxArrivals {
		return false
	}
	a.list = append(a.list, more...)
	return true
}

func (a *arrivals) take(limit int) []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(limit, len(a.list))
	taken := a.list[:n:n]
	a.list = a.list[n:]
	if len(a.list) == 0 {
		a.list = nil
	}
	return taken
}

// putBack returns taken arrivals to the front.
func (a *arrivals) putBack(list []arrival) {
	if len(list) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(list, a.list...)
}

func (a *arrivals) waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.list)
}

// Submit accepts runs and returns, in order, what became of each when all are durable. A key that the tenant used
// before gives the earlier run if the request is the same, and a conflict if it is another.
func (p *Plane) Submit(ctx context.Context, subs []Submission) []Submitted {
	done := make(chan struct{})
	out, delay := p.Enter(ctx, subs, func() { close(done) })
	<-done // the next pass answers every submission, also when the loop ends
	p.slowDown(ctx, delay)
	return out
}

// Enter is Submit without waiting: the outcomes are there when then is called, which may be before Enter returns. delay
// is how long a submitter should be kept waiting for its answer.
func (p *Plane) Enter(ctx context.Context, subs []Submission, then func()) (out []Submitted, delay time.Duration) {
	out = make([]Submitted, len(subs))
	now := p.now()
	// 1. Check; what is refused leaves no record.
	var list []arrival
	var left atomic.Int64
	queuedNow := make(map[string]int) // of this call, by tenant
	for i := range subs {
		a, err := p.admit(ctx, &subs[i], now, queuedNow)
		if err != nil {
			out[i].Err = err
			continue
		}
		delay = max(delay, a.delay)
		a.done = func(x arrival, err error) {
			out[i] = p.settle(ctx, x, err)
			if left.Add(-1) == 0 {
				then()
			}
		}
		list = append(list, a)
	}
	left.Store(int64(len(list)))
	if len(list) == 0 {
		then()
		return out, delay
	}
	// 2. Commit: with the next pass where this process leads.
	p.enter(ctx, list)
	return out, delay
}

// enter hands arrivals to the next pass, or commits them where this process does not lead.
func (p *Plane) enter(ctx context.Context, list []arrival) {
	switch {
	case !p.leads() || p.Ready() != nil:
		p.commitArrivals(ctx, list)
	case !p.arrive.add(list):
		err := &Refusal{Code: CodeOverloaded, Detail: fmt.Sprintf("%d submissions wait to be written", maxArrivals), RetryAfter: time.Second}
		for _, a := range list {
			a.done(a, err)
		}
	default:
		p.wake()
	}
}

// slowDown keeps the answer back where the agent's backpressure asks for it.
func (p *Plane) slowDown(ctx context.Context, delay time.Duration) {
	if delay == 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-p.stopped:
	}
}

// commitArrivals writes submissions as queued runs, without placing them.
func (p *Plane) commitArrivals(ctx context.Context, list []arrival) {
	units := make([]store.Unit, len(list))
	for i, a := range list {
		units[i] = store.Unit{Token: p.newID(), Writes: append(slices.Clone(a.writes), recordWrite(a.rec, 0))}
	}
	for i, err := range p.store.Commit(ctx, units) {
		if err == nil {
			p.noted(ctx, list[i].rec, list[i].rec.Tail)
		} else {
			p.doubt(list[i].rec.ID) // it may have been written
		}
		list[i].done(list[i], err)
	}
}

// settle turns the outcome of an arrival's commit into an answer.
func (p *Plane) settle(ctx context.Context, a arrival, err error) Submitted {
	switch {
	case err == nil:
		return Submitted{Run: a.rec}
	case errors.Is(err, store.ErrExists) && a.rec.Key != "":
		earlier, err := p.Get(context.WithoutCancel(ctx), a.rec.ID)
		if err != nil {
			return Submitted{Err: err}
		}
		if earlier.Hash != a.rec.Hash {
			return Submitted{Run: earlier, Err: refuse(CodeConflict, "key %q was used before for another request: run %s", a.rec.Key, earlier.ID)}
		}
		return Submitted{Run: earlier, Existed: true}
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return Submitted{Err: err}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Submitted{Err: fmt.Errorf("submit a run of %s: %w", a.rec.Agent, err)}
	}
	// An outage of the store: a disk that is full, say. Whoever asked can come back.
	return Submitted{Err: &Refusal{
		Code: CodeUnavailable, RetryAfter: time.Second, Cause: err,
		Detail: fmt.Sprintf("the store answered the write of the run with an error (%v); under a key it is safe to submit it again", err),
	}}
}

// admit checks a submission and makes its record.
func (p *Plane) admit(ctx context.Context, s *Submission, now run.Instant, queuedNow map[string]int) (arrival, error) {
	// 1. Form.
	if s.Tenant == "" {
		s.Tenant = fleet.DefaultTenant
	}
	if s.Workflow != "" {
		return p.admitFlow(ctx, s, now, queuedNow)
	}
	x := p.agentNamed(ctx, s.Agent)
	if err := checkSubmission(s, x, now); err != nil {
		return arrival{}, err
	}
	agent, tenant := x.object.(*fleet.Agent), p.tenantOf(s.Tenant)
	if x.input != nil {
		if faults := validate(x.input, s.Input, "input"); len(faults) > 0 {
			return arrival{}, &Refusal{Code: CodeInvalid, Detail: fmt.Sprintf("input does not match the schema of agent %s", s.Agent), Faults: faults}
		}
	}
	// 2. Admission at the door.
	priority := admission.Priority(s.Priority, tenant)
	ofTenant, ofAgent := p.loadOf(s.Tenant, s.Agent)
	v := admission.Submit(agent, tenant, admission.View{
		TenantQueued: ofTenant.queued + queuedNow[s.Tenant], TenantRunning: ofTenant.live,
		AgentQueued: ofAgent.queued, AgentRunning: ofAgent.live, Paused: x.paused,
		FreeSlots: ofAgent.queued == 0 && !x.paused, Expected: p.stats.expected(agent),
	}, priority)
	switch v.Action {
	case admission.Shed:
		return arrival{}, &Refusal{Code: CodeOverloaded, Detail: v.Message, RetryAfter: v.RetryAfter}
	case admission.Refuse:
		return arrival{}, refuse(CodeInvalid, "%s", v.Message)
	}
	queuedNow[s.Tenant]++
	// 3. The record.
	spec := run.Spec{
		Kind: run.KindAgent, Agent: s.Agent, Version: agent.Version, Revision: x.revision, Tenant: s.Tenant,
		Priority: priority, Labels: s.Labels, Key: s.Key, CreatedAt: now, NotBefore: run.At(s.NotBefore), Deadline: run.At(s.Deadline),
		RetainFor: retainFor(agent.Retain), Session: s.Session, Trace: s.Trace, BudgetUSD: s.BudgetUSD, BudgetToken: s.Tokens,
	}
	if spec.Session == "" && agent.Shape == fleet.Instance {
		spec.Session = "default"
	}
	p.identify(&spec, s)
	var err error
	if spec.Groups, err = x.groupsOf(ctx, &spec, s.Input); err != nil {
		return arrival{}, err
	}
	a, err := p.arrivalOf(spec, s.Input, &agent.Timeouts, s.Actor, now)
	a.delay = v.Delay
	return a, err
}

// identify gives the run its id: from the key, so that a repeat meets the first, or a random one.
func (p *Plane) identify(spec *run.Spec, s *Submission) {
	spec.ID = p.runID(spec.CreatedAt)
	if s.Key == "" {
		return
	}
	sum := sha256.Sum256([]byte("key\x00" + s.Tenant + "\x00" + s.Key))
	spec.ID = idEncoding.EncodeToString(sum[:])[:20]
	spec.Unit = s.Key
	spec.Hash = requestHash(s)
}

// requestHash tells a repeat of a request from another one under the same key.
func requestHash(s *Submission) string {
	body, err := json.Marshal(struct {
		Agent, Tenant, Session string
		Input                  json.RawMessage
		Labels                 map[string]string
		Priority               *int
		Deadline, NotBefore    int64
		USD                    float64
		Tokens                 int64
		Workflow               string `json:",omitempty"`
	}{s.Agent, s.Tenant, s.Session, compact(s.Input), s.Labels, s.Priority, int64(run.At(s.Deadline)), int64(run.At(s.NotBefore)), s.BudgetUSD, s.Tokens, s.Workflow})
	if err != nil {
		body = s.Input // not JSON: cannot happen after the checks
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16])
}

// compact writes JSON in one form: keys sorted, no white space.
func compact(v json.RawMessage) json.RawMessage {
	var x any
	d := json.NewDecoder(strings.NewReader(string(v)))
	d.UseNumber()
	if d.Decode(&x) != nil {
		return v
	}
	out, err := json.Marshal(x)
	if err != nil {
		return v
	}
	return out
}

// arrivalOf makes the first record of a run.
func (p *Plane) arrivalOf(spec run.Spec, input json.RawMessage, within *fleet.Timeouts, actor string, now run.Instant) (arrival, error) {
	var a arrival
	if err := spec.Validate(); err != nil {
		return a, refuse(CodeInvalid, "%v", err)
	}
	if len(input) == 0 {
		input = json.RawMessage("null")
	}
	spec.Input, a.writes = stash(spec.ID, "in", input, run.MaxInline)
	if spec.Requester == "" {
		spec.Requester = actor
	}
	spec.Latest = run.Earliest(spec.Latest, spec.Deadline)
	if within.Run > 0 {
		spec.Deadline = run.Earliest(spec.Deadline, max(now, spec.NotBefore).Add(within.Run.Std()))
	}
	var due run.Instant
	if within.Queue > 0 {
		due = max(now, spec.NotBefore).Add(within.Queue.Std())
	}
	a.rec = run.New(spec, run.Event{Type: run.EvSubmitted, At: now, Actor: actor, Due: due})
	if spec.NotBefore > now {
		run.Evolve(a.rec, run.Event{Type: run.EvHeld, At: now, Reason: run.NotBefore, Due: spec.NotBefore})
	}
	return a, nil
}

func checkSubmission(s *Submission, x *declaration, now run.Instant) error {
	var faults []Fault
	bad := func(where, format string, args ...any) {
		faults = append(faults, Fault{where, fmt.Sprintf(format, args...)})
	}
	switch {
	case s.Workflow != "": // it is there
	case s.Agent == "":
		bad("agent", "name the agent that is to run")
	case x == nil:
		return &Refusal{Code: CodeNotFound, Detail: fmt.Sprintf("there is no agent %.80q; declare it with \"errand apply\", or see \"errand get agents\"", s.Agent)}
	}
	if !fleet.IsName(s.Tenant) {
		bad("tenant", "%.80q is not a name: lower-case letters, digits and hyphens, %d at most", s.Tenant, fleet.MaxNameLength)
	}
	if s.Priority != nil && (*s.Priority < 0 || *s.Priority > 100) {
		bad("priority", "got %d, want 0 to 100", *s.Priority)
	}
	if len(s.Input) > run.MaxPayload {
		return refuse(CodeTooLarge, "the input has %d bytes, %d at most", len(s.Input), run.MaxPayload)
	}
	if len(s.Input) > 0 && !json.Valid(s.Input) {
		bad("input", "not JSON")
	}
	if len(s.Key) > maxKey || strings.ToValidUTF8(s.Key, "") != s.Key {
		bad("key", "want up to %d bytes of UTF-8 text", maxKey)
	}
	if s.Session != "" && (!validName(s.Session) || strings.Contains(s.Session, "/")) {
		bad("session", "want a name without slashes")
	}
	if len(s.Labels) > run.MaxLabels {
		bad("labels", "%d labels, %d at most", len(s.Labels), run.MaxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		if k == "" || len(k) > maxLabelBytes || len(s.Labels[k]) > maxLabelBytes {
			bad("labels", "key and value of %.40q: 1 to %d bytes", k, maxLabelBytes)
		}
	}
	if at := run.At(s.Deadline); at != 0 && at <= now {
		bad("deadline", "%s has passed", s.Deadline.UTC().Format(time.RFC3339))
	}
	for where, at := range map[string]time.Time{"deadline": s.Deadline, "notBefore": s.NotBefore} {
		if run.At(at) > now.Add(maxAhead) {
			bad(where, "more than a year ahead")
		}
	}
	if !(s.BudgetUSD >= 0) || s.Tokens < 0 {
		bad("budget", "below zero")
	}
	if len(faults) > 0 {
		return &Refusal{Code: CodeInvalid, Detail: "the run was not accepted", Faults: faults}
	}
	return nil
}

// maxFaults bounds what a schema mismatch reports.
const maxFaults = 20

// validate reports where a value does not match its schema.
func validate(s *jsonschema.Schema, value json.RawMessage, root string) []Fault {
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(value)))
	if err != nil {
		return []Fault{{root, "not JSON"}}
	}
	err = s.Validate(v)
	var mismatch *jsonschema.ValidationError
	if !errors.As(err, &mismatch) {
		return nil
	}
	var faults []Fault
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 && len(faults) < maxFaults {
			where := root
			for _, part := range e.InstanceLocation {
				where += "." + part
			}
			faults = append(faults, Fault{where, strings.TrimSpace(e.ErrorKind.LocalizedString(printer))})
		}
		for _, c := range e.Causes {
			walk(c)
		}
	}
	walk(mismatch)
	return faults
}
