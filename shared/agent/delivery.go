package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// send sends a batch, with a request for runs where the host has room, and deals with the answers.
func (o *outbox) send(ctx context.Context, batch []*entry) {
	// 1. One call.
	body := api.ReportBatch{Reports: make([]api.Report, len(batch))}
	size := 0
	for i, e := range batch {
		body.Reports[i] = e.report
		size += sizeOf(&e.report)
	}
	if o.host != nil {
		body.Lease = o.host.ask(size)
	}
	answer, err := o.client.ReportBatch(ctx, body)
	// 2. Its outcome: for each report, or for the call as a whole.
	var ended []*entry
	o.mu.Lock()
	o.inFlight--
	for _, e := range batch {
		e.attempt.batch = 0
	}
	if err == nil {
		o.retry = backoff{}
		ended = o.settle(batch, answer.Results)
	} else {
		ended = o.failed(ctx, batch, err)
	}
	o.checkIdle()
	o.mu.Unlock()
	o.kick()
	if o.host == nil {
		return
	}
	// 3. Slots that came free, and the runs to fill them.
	for _, e := range ended {
		o.host.settled(e.attempt)
	}
	if o.host.heard(err) {
		o.host.kickBeat()
	}
	if body.Lease == nil {
		return
	}
	if err != nil {
		answer = &api.ReportBatchResult{}
	}
	o.host.leased(body.Lease.Max, answer.Leases, answer.Drain, fromBatch)
}

// settle applies the answers to a batch and returns the ends that the server took. The caller holds mu.
func (o *outbox) settle(batch []*entry, results []api.ReportResult) (ended []*entry) {
	var again []*entry
	for i, e := range batch {
		r := results[i]
		a := e.attempt
		if r.Cancel && a.cancel != nil {
			a.cancel(&CanceledError{Reason: r.CancelReason})
		}
		switch {
		case r.Error == nil:
			e.answer(r, nil)
			if e.last {
				ended = append(ended, e)
			}
		case r.Error.Code() == api.CodeFenced, r.Error.Code() == api.CodeUnauthorized:
			o.lose(a, fmt.Errorf("%w: %w", ErrFenced, r.Error))
			e.answer(r, a.gone)
			if e.last {
				a.refusal = a.gone
				ended = append(ended, e)
			}
		case passing(r.Error):
			again = append(again, e)
			o.retry.failed(time.Now(), r.Error)
		case o.refuse(e, r.Error):
			again = append(again, e)
		case e.last:
			ended = append(ended, e)
		}
	}
	o.requeue(again)
	return ended
}

// failed deals with a call that failed as a whole. The caller holds mu.
func (o *outbox) failed(ctx context.Context, batch []*entry, err error) (ended []*entry) {
	var p *api.Problem
	refused := errors.Is(err, api.ErrEncode) ||
		errors.As(err, &p) && !passing(p) && p.Status != http.StatusUnauthorized && p.Status != http.StatusForbidden
	switch {
	case refused && len(batch) == 1:
		if o.refuse(batch[0], err) {
			o.requeue(batch)
		} else if batch[0].last {
			ended = batch
		}
		return ended
	case refused:
		for _, e := range batch {
			e.alone = true
		}
	default:
		o.retry.failed(time.Now(), err)
	}
	// An attempt whose deadline has long passed has lost its run whatever the server would say.
	now := time.Now()
	keep := batch[:0:0]
	for _, e := range batch {
		if deadline := e.attempt.Deadline; !deadline.IsZero() && now.After(deadline.Add(lateReport)) {
			late := fmt.Errorf("%w: its deadline has passed: %w", ErrFenced, err)
			e.answer(api.ReportResult{}, late)
			if e.last {
				e.attempt.refusal = late
				o.log.LogAttrs(ctx, slog.LevelError, "result could not be delivered before the attempt's deadline",
					slog.String("attempt", e.attempt.Attempt), slog.String("error", err.Error()))
				ended = append(ended, e)
			}
			continue
		}
		keep = append(keep, e)
	}
	o.requeue(keep)
	return ended
}

// passing reports whether a problem may be gone on another try.
func passing(p *api.Problem) bool {
	switch p.Code() {
	case api.CodeUnavailable, api.CodeOverloaded, api.CodeInternal:
		return true
	}
	return p.Status >= 500 || p.Status == http.StatusTooManyRequests || p.Status == http.StatusRequestTimeout
}

// busy reports whether a problem says that there is too much to do, by a server that is there.
func busy(p *api.Problem) bool {
	return p.Status == http.StatusTooManyRequests || p.Code() == api.CodeOverloaded
}

// refuse deals with a report that the server will not take. An end is turned into a failure that says so, once, and is
// to be sent again; anything else is over. The caller holds mu.
func (o *outbox) refuse(e *entry, err error) (again bool) {
	e.alone = false
	r := &e.report
	if e.last && !e.refused {
		e.attempt.refusal = err
	}
	if e.last && !e.refused && (r.Type == api.ReportComplete || r.Type == api.ReportPark) && !api.HasCode(err, api.CodeState) && !api.HasCode(err, api.CodeNotFound) {
		e.refused = true
		failure := &api.AgentError{Code: CodeResultRefused, Message: "the server refused the result: " + err.Error()}
		if api.HasCode(err, api.CodeTooLarge) || errors.Is(err, api.ErrEncode) {
			failure.Code, failure.Retryable = CodeResultTooLarge, new(bool)
			if errors.Is(err, api.ErrEncode) {
				failure.Code, failure.Message = CodeOutputInvalid, "the result is not valid JSON: "+err.Error()
			}
		}
		if r.Type == api.ReportPark && api.HasCode(err, api.CodeInvalid) { // what it waits for is its program's word: the next attempt says the same
			failure.Retryable = new(bool)
		}
		end := Result{Err: failure, Usage: r.Usage}.report()
		end.Attempt, end.Token = r.Attempt, r.Token
		e.report = end
		return true
	}
	if e.last {
		o.log.Error("the end of an attempt was refused", "attempt", e.attempt.Attempt, "report", r.Type, "error", err)
	} else if e.soft {
		o.log.Debug("a report was refused", "attempt", e.attempt.Attempt, "report", r.Type, "error", err)
	}
	e.answer(api.ReportResult{}, fmt.Errorf("report %s of attempt %s: %w", r.Type, e.attempt.Attempt, err))
	return false
}

// requeue puts entries back before all others, and soft ones together with what came since. The caller holds mu.
func (o *outbox) requeue(entries []*entry) {
	if len(entries) == 0 {
		return
	}
	front := make([]*entry, 0, len(entries)+len(o.queue))
	for _, e := range entries {
		if e.merge() {
			continue
		}
		front = append(front, e)
		if !e.soft {
			o.urgent++
		} else if o.softAt.IsZero() {
			o.softAt = time.Now()
		}
	}
	o.queue = append(front, o.queue...)
}

// merge adds a soft report that comes back to the newer one of its kind that waits already, so that an outage does not
// pile them up; without one it becomes the one that waits. It reports whether the entry is done with. The caller holds mu.
func (e *entry) merge() bool {
	a, r := e.attempt, &e.report
	switch r.Type {
	case api.ReportUsage:
		if a.usage == nil {
			a.usage = e
			return false
		}
		newer := a.usage.report.Usage
		if newer.Model != r.Usage.Model || e.reply != nil {
			return false
		}
		newer.InputTokens += r.Usage.InputTokens
		newer.OutputTokens += r.Usage.OutputTokens
		newer.USD += r.Usage.USD
		return true
	case api.ReportProgress:
		if a.progress == nil {
			a.progress = e
			return false
		}
		return e.reply == nil
	case api.ReportLogs:
		if a.logs == nil {
			a.logs, a.logBytes = e, 0
			for i := range r.Logs {
				a.logBytes += len(r.Logs[i].Text)
			}
			return false
		}
		if e.reply != nil {
			return false
		}
		newer := &a.logs.report
		room := max(maxLogLines-len(newer.Logs), 0)
		if len(r.Logs) > room {
			a.dropped += len(r.Logs) - room
			r.Logs = r.Logs[:room]
		}
		for i := range r.Logs {
			a.logBytes += len(r.Logs[i].Text)
		}
		newer.Logs = append(r.Logs, newer.Logs...)
		return true
	}
	return false
}

// lose marks an attempt as one that nobody listens to any more. The caller holds mu.
func (o *outbox) lose(a *Attempt, why error) {
	if a.gone == nil {
		a.gone = why
	}
	if a.cancel != nil {
		a.cancel(a.gone)
	}
}

// backoff spaces calls to a server that is away: a restart is over in less than a second, and many workers must not
// come back in step.
type backoff struct {
	failures int
	until    time.Time
}

const (
	firstBackoff = 20 * time.Millisecond
	maxBackoff   = time.Second
	maxAsked     = 10 * time.Second // of what a Retry-After may ask for
)

func (b *backoff) failed(now time.Time, err error) {
	delay := firstBackoff
	for range min(b.failures, 10) {
		delay += delay / 2
	}
	delay = min(delay, maxBackoff)
	delay = delay/2 + rand.N(delay/2+1)
	var p *api.Problem
	if errors.As(err, &p) && p.RetryAfter > 0 {
		delay = max(delay, min(time.Duration(p.RetryAfter)*time.Second, maxAsked))
	}
	if at := now.Add(delay); at.After(b.until) {
		b.until = at
	}
	b.failures++
}
