package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Attempt is one attempt that this process executes: its lease, and the way to report on it. Safe for concurrent use.
//
// Reports of all attempts of a process share one queue and travel in batches. Progress, usage and log lines are sent
// soon, or with whatever is sent first; the end of an attempt is never overtaken by them.
type Attempt struct {
	api.Lease
	box    *outbox   // nil where no server is known
	local  io.Writer // takes log lines instead of the server; nil for the server
	watch  *watch    // takes progress and log lines as well; nil for none
	ctx    context.Context
	cancel context.CancelCauseFunc // nil for an attempt that is handed back at once
	timer  context.CancelFunc      // of the deadline; nil without one

	// Guarded by box.mu.
	batch    uint64 // the batch under way that carries reports of it: later ones wait, to keep their order; 0 for none
	held     uint64 // the last batch that left reports of it behind
	gone     error  // why nothing it says counts any more
	final    bool   // the last report is queued: nothing follows
	told     bool   // something was reported that nobody waited for
	begun    *entry
	usage    *entry
	progress *entry
	logs     *entry
	logBytes int
	dropped  int   // log lines
	refusal  error // why the server did not take its end as it was told

	// result is what was reported as its end, and settled closed when that is settled; nil if nobody waits for it.
	result  Result
	settled chan struct{}

	// ended is set by the Host when the handler returned, or the attempt was handed back over its head. Guarded by the
	// Host's mu.
	ended bool
}

// Result is what became of an attempt. Release counts before Err, Err before Park, Park before Output; an empty Result
// is the output null.
type Result struct {
	Output json.RawMessage
	Err    *api.AgentError
	Park   *api.Park
	// Release hands the run back, for this reason: another attempt will run it, and nothing is spent.
	Release string
	// Usage is all of the attempt; nil keeps what was reported on the way.
	Usage *api.Usage
	Score *float64
	// Session is the state of the session after this turn; nil leaves it as it was.
	Session json.RawMessage
}

// Failed is the Result of an error: what [Retry], [Fail] and [Throttled] say counts, however deep it is wrapped.
func Failed(err error) Result { return Result{Err: describe(err, nil)} }

// ResultOf is the Result of what a program or a service answered.
func ResultOf(d api.DocumentResult) Result {
	return Result{Output: d.Output, Err: d.Error, Park: d.Park, Usage: d.Usage, Score: d.Score, Session: d.Session}
}

// document is the result as the stdio and http protocols carry it.
func (r Result) document() *api.DocumentResult {
	d := &api.DocumentResult{Usage: r.Usage, Score: r.Score, Session: r.Session}
	switch {
	case r.Err != nil:
		d.Error = r.Err
	case r.Park != nil:
		d.Park = r.Park
	default:
		d.Output = orNull(r.Output)
	}
	return d
}

// report is the result as the worker protocol carries it.
func (r Result) report() api.Report {
	out := api.Report{Usage: r.Usage}
	switch {
	case r.Release != "":
		out.Type, out.Reason = api.ReportRelease, clip(r.Release, api.MaxMessage)
	case r.Err != nil:
		out.Type, out.Class, out.Code = api.ReportFail, r.Err.Class, r.Err.Code
		out.Message = clip(r.Err.Message, api.MaxMessage)
		out.Retryable, out.RetryAfter = r.Err.Retryable, r.Err.RetryAfter
	case r.Park != nil:
		out.Type, out.Park, out.Session = api.ReportPark, r.Park, r.Session
	default:
		out.Type, out.Output, out.Score, out.Session = api.ReportComplete, orNull(r.Output), r.Score, r.Session
	}
	return out
}

var null = json.RawMessage("null")

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return null
	}
	return raw
}

// fromDocument forms the attempt that a document describes.
func fromDocument(d *api.Document, token string, box *outbox) *Attempt {
	a := &Attempt{box: box, Lease: api.Lease{
		Attempt: d.Attempt, Run: d.Run, Agent: d.Agent, Tenant: d.Tenant, Mode: d.Mode, Input: d.Input, Key: d.Key,
		Token: token, Deadline: d.Deadline, Traceparent: d.Traceparent, Steps: d.Steps, Labels: d.Labels,
		Receipts: d.Receipts, Index: d.Index, Completions: d.Completions,
	}}
	if _, n, ok := strings.Cut(d.Attempt, "."); ok {
		_, _ = fmt.Sscanf(n, "%d", &a.N)
	}
	if d.Session != nil {
		a.Session, a.State = d.Session.Name, d.Session.State
	}
	return a
}

// open derives the context that the attempt runs under: it ends at the attempt's deadline, and when the server says
// so. It must be called before anything is reported; close frees the context.
func (a *Attempt) open(parent context.Context) {
	a.ctx, a.cancel = context.WithCancelCause(parent)
	if !a.Deadline.IsZero() {
		a.ctx, a.timer = context.WithDeadline(a.ctx, a.Deadline.Time)
	}
}

func (a *Attempt) close() {
	if a.timer != nil {
		a.timer()
	}
	a.cancel(nil)
}

// Report sends a report and returns when the server has taken it: what it tells is then durable. It is sent again
// while the server is away, for as long as ctx lasts. An error that wraps ErrFenced means that the attempt is over;
// a *api.Problem that the server refused this report.
func (a *Attempt) Report(ctx context.Context, r api.Report) (api.ReportResult, error) {
	if a.box == nil {
		return api.ReportResult{}, errNoServer
	}
	return a.box.call(ctx, a, r)
}

// settle returns when everything that was reported without waiting has reached the server, or ctx is done: reports of an
// attempt are taken in order.
func (a *Attempt) settle(ctx context.Context) {
	if a.box == nil {
		return
	}
	a.box.mu.Lock()
	told := a.told
	a.box.mu.Unlock()
	if told {
		_, _ = a.box.call(ctx, a, api.Report{Type: api.ReportBeat})
	}
}

// Usage reports tokens or money that the attempt consumed in addition.
func (a *Attempt) Usage(u api.Usage) {
	if a.box != nil && u != (api.Usage{}) {
		a.box.addUsage(a, u)
	}
}

// Progress reports how far the attempt is, from 0 to 1; the newest report stands.
func (a *Attempt) Progress(fraction float64, message string) {
	fraction, message = min(max(fraction, 0), 1), clip(message, api.MaxMessage)
	a.watch.progress(fraction, message)
	if a.box != nil {
		a.box.setProgress(a, fraction, message)
	}
}

// Log adds text to the run's log, line by line. Stream is agent, stdout or stderr. Lines beyond what can wait for the
// server are dropped and counted.
func (a *Attempt) Log(stream, text string) {
	if a.local != nil {
		_, _ = io.WriteString(a.local, strings.TrimRight(text, "\n")+"\n")
		return
	}
	a.watch.log(text)
	if a.box == nil {
		return
	}
	at := api.Time{Time: time.Now()}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\r\n"), "\n") {
		a.box.addLog(a, api.LogLine{At: at, Attempt: a.N, Stream: stream, Text: clip(strings.ToValidUTF8(strings.TrimRight(line, "\r"), "�"), api.MaxLogLine)})
	}
}

var errNoServer = failf(CodeUnsupported, "no server to record this at: set %s", EnvURL)

// stop ends the attempt's context.
func (a *Attempt) stop(cause error) {
	if a.cancel != nil {
		a.cancel(cause)
	}
}
