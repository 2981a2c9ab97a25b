package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Handler is an agent: it works on one input and returns one output.
type Handler[In, Out any] func(ctx context.Context, r *Run, in In) (Out, error)

// Usage is what an agent consumed. USD is computed from the model's price unless given.
type Usage = api.Usage

// Run is the run that a handler works on, as its attempt sees it. Safe for concurrent use.
type Run struct {
	ID      string
	Attempt int // rises with each attempt
	Agent   string
	Tenant  string
	// Key is the unit of work: the same for every attempt and retry of the run.
	Key      string
	Labels   map[string]string
	Deadline time.Time // when the attempt must have ended
	// Session names whose turn this is, "" outside of sessions. [SessionOf] has its state.
	Session string
	// Index and Completions place the run in a job; nil outside of jobs.
	Index, Completions *int

	a      *Attempt
	client *api.Client // nil where no server is known

	mu     sync.Mutex
	steps  map[string]api.Step // recorded by earlier attempts; asked for ones are removed
	asked  map[string]bool     // names of this attempt's steps, waits, sleeps and calls
	ended  int                 // steps recorded so far, over all attempts
	counts map[string]int      // of waits by signal, of calls by name, of sleeps and of groups
	broken error               // what was found wrong with the handler: no result of it counts
	parked *api.Park
	spent  Usage // all of this attempt
	models int   // different models in spent
	score  *float64
	undo   *undoing // of an attempt that undoes a run; nil otherwise
	turn   any      // pointer to the session's state
	log    *slog.Logger
}

// modeCompensate is the mode of attempts that undo a run.
const modeCompensate = "compensate"

func newRun(a *Attempt, client *api.Client) *Run {
	r := &Run{
		ID: a.Run, Attempt: a.N, Agent: a.Agent, Tenant: a.Tenant, Key: a.Key, Labels: a.Labels, Deadline: a.Deadline.Time,
		Session: a.Session, Index: a.Index, Completions: a.Completions, a: a, client: client, ended: len(a.Steps),
	}
	if len(a.Steps) > 0 {
		r.steps = make(map[string]api.Step, len(a.Steps))
		for _, s := range a.Steps {
			r.steps[s.Name] = s
		}
		r.counts = make(map[string]int)
		withoutAsked(r.steps, r.counts)
	}
	if a.Mode == modeCompensate {
		r.undo = newUndoing(a.Receipts)
	}
	return r
}

// Usage adds to what the attempt consumed. It is reported as it grows, so that a budget can stop the run in time.
func (r *Run) Usage(u Usage) {
	r.mu.Lock()
	if u.Model != "" && u.Model != r.spent.Model {
		r.models++
		r.spent.Model = u.Model
	}
	r.spent.InputTokens += u.InputTokens
	r.spent.OutputTokens += u.OutputTokens
	r.spent.USD += u.USD
	r.mu.Unlock()
	r.a.Usage(u)
}

// Progress tells how far the run is, from 0 to 1, and what it is doing. The newest stands.
func (r *Run) Progress(fraction float64, message string) { r.a.Progress(fraction, message) }

// Score judges the run's own output, from 0 to 1. The last one counts.
func (r *Run) Score(score float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	score = min(max(score, 0), 1)
	r.score = &score
}

// Log writes to the run's log.
func (r *Run) Log() *slog.Logger {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log == nil {
		r.log = slog.New(slog.NewTextHandler(logWriter{r.a}, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	}
	return r.log
}

type logWriter struct{ a *Attempt }

func (w logWriter) Write(p []byte) (int, error) {
	w.a.Log("agent", string(p))
	return len(p), nil
}

// withoutTime leaves the time out: each line of the run's log has one.
func withoutTime(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) == 0 && attr.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return attr
}

// SessionOf returns the state of the session whose turn the run is, as the last turn left it; on the first turn the
// zero value. What it points to when the handler returns, or parks, is saved as the session's state. Outside of a
// session it is a value that ends with the run. T must be the same on every call.
func SessionOf[T any](r *Run) (*T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turn != nil {
		state, ok := r.turn.(*T)
		if !ok {
			return nil, failf(CodeInputInvalid, "session %q: asked for as %T before, and now as %T", r.Session, r.turn, state)
		}
		return state, nil
	}
	state := new(T)
	if len(r.a.State) > 0 {
		if err := json.Unmarshal(r.a.State, state); err != nil {
			return nil, failf(CodeInputInvalid, "session %q: its state does not fit %T: %w", r.Session, state, decoding(err))
		}
	}
	r.turn = state
	return state, nil
}

// breakWith notes what makes the attempt fail whatever the handler returns. The caller holds mu.
func (r *Run) breakWith(err error) error {
	if r.broken == nil {
		r.broken = err
	}
	return err
}

// run executes a handler for one attempt.
func run[In, Out any](ctx context.Context, client *api.Client, a *Attempt, handler Handler[In, Out]) (result Result) {
	r := newRun(a, client)
	defer func() {
		if p := recover(); p != nil {
			result = panicked(a, p, debug.Stack())
			result.Usage = r.total()
		}
	}()
	// 1. What is asked for.
	if a.Mode != "" && a.Mode != "run" && a.Mode != modeCompensate {
		return Failed(failf(CodeUnsupported, "mode %q: this agent's SDK knows only run and compensate", clip(a.Mode, 40)))
	}
	var in In
	if len(a.Input) > 0 {
		if err := json.Unmarshal(a.Input, &in); err != nil {
			return Failed(failf(CodeInputInvalid, "input of agent %s does not fit %s: %w", a.Agent, typeName[In](), decoding(err)))
		}
	}
	// 2. Work.
	if r.undo != nil {
		return r.compensate(ctx, func(ctx context.Context) error { _, err := handler(ctx, r, in); return err })
	}
	out, err := handler(ctx, r, in)
	// 3. What became of it.
	return r.result(ctx, out, err)
}

// result forms the attempt's result from what the handler returned.
func (r *Run) result(ctx context.Context, out any, err error) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := Result{Usage: r.totalLocked()}
	fail := func(err error) Result {
		result.Err = describe(err, context.Cause(ctx))
		return result
	}
	// 1. A handler that broke the rules of replay has no result, whatever it says.
	switch {
	case r.broken != nil:
		result.Err = describe(r.broken, nil)
		return result
	case err != nil && r.parked != nil && errors.Is(err, ErrParked):
		result.Park = r.parked
		if err := r.saveTurn(&result); err != nil {
			result.Park = nil
			return fail(err)
		}
		return result
	case err != nil:
		return fail(err)
	case r.parked != nil:
		return fail(failf(CodeNonDeterministic, "the handler went on after %s had parked it: it must return the error", r.parked.Step))
	case len(r.steps) > 0:
		return fail(failf(CodeNonDeterministic, "the handler ended without asking for %s, which an earlier attempt recorded: "+
			"it must take the same way on each attempt", r.missing()))
	}
	// 2. A success.
	output, err := encode(out)
	if err != nil {
		return fail(failf(CodeOutputInvalid, "output of agent %s: %w", r.Agent, err))
	}
	if len(output) > api.MaxPayload {
		result.Err = tooLarge("output", len(output), api.MaxPayload)
		return result
	}
	if err := r.saveTurn(&result); err != nil {
		return fail(err)
	}
	result.Output, result.Score = output, r.score
	return result
}

func (r *Run) saveTurn(result *Result) error {
	if r.turn == nil || r.Session == "" {
		return nil
	}
	state, err := encode(r.turn)
	if err != nil {
		return failf(CodeOutputInvalid, "state of session %q: %w", r.Session, err)
	}
	result.Session = state
	return nil
}

// missing names some of the steps that were not asked for.
func (r *Run) missing() string {
	first, more := "", 0
	for name, s := range r.steps {
		if first == "" || s.Seq < r.steps[first].Seq {
			first = name
		}
		more++
	}
	if more > 1 {
		return fmt.Sprintf("step %q and %d more", first, more-1)
	}
	return fmt.Sprintf("step %q", first)
}

func (r *Run) total() *Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.totalLocked()
}

// totalLocked is all that the attempt consumed, or nil: for nothing, and for several models, whose shares were reported one by
// one and would all be given the last one's price.
func (r *Run) totalLocked() *Usage {
	if r.spent == (Usage{}) || (r.models > 1 && r.client != nil) {
		return nil
	}
	total := r.spent
	return &total
}

// panicked reports a panic: where it happened goes to the run's log, what it said does not, for it may hold anything.
func panicked(a *Attempt, value any, stack []byte) Result {
	const maxStack = 8 << 10
	a.Log("agent", "panic\n"+clip(string(stack), maxStack))
	return Result{Err: &api.AgentError{
		Class: ClassUser, Code: CodePanic, Message: clip(fmt.Sprintf("the handler panicked: %v", value), api.MaxMessage),
	}}
}

func tooLarge(what string, size, limit int) *api.AgentError {
	return describe(failf(CodeResultTooLarge, "%s of %d bytes: at most %d; keep it elsewhere and return where", what, size, limit), nil)
}

// encode is JSON without the escapes that only HTML needs.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// decoding says where a document does not fit, without what it holds.
func decoding(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		at := wrongType.Field
		if at == "" {
			at = "the document"
		}
		return fmt.Errorf("%s: want %s, got %s", at, wrongType.Type, kindOf(wrongType.Value))
	}
	return err
}

// kindOf keeps the kind of JSON value of an error's text and drops the value.
func kindOf(value string) string {
	kind, _, _ := strings.Cut(value, " ")
	return kind
}

func typeName[T any]() string { return reflect.TypeFor[T]().String() }
