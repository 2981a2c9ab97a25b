package agent

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Pace of the queue of reports.
const (
	// startDelay keeps a start back for the end that may follow at once and makes it needless.
	startDelay = 5 * time.Millisecond
	// softDelay is how long progress, usage and logs wait for company.
	softDelay = 100 * time.Millisecond
	// holdBatch is how long a batch waits for the one before it: reports that pile up meanwhile travel together, but a
	// slow call (a large output on a thin line) does not keep the others waiting.
	holdBatch   = 2 * time.Millisecond
	maxInFlight = 4
	maxBatch    = 8 << 20 // bytes of payload in one batch, as far as single reports allow
	// lateReport is how long past its attempt's deadline a report is still worth sending: the server's clock may differ.
	lateReport = time.Minute

	maxLogLines = 2000      // of one attempt that wait to be sent
	maxLogBytes = 512 << 10 // of one attempt that wait to be sent
)

// outbox sends the reports of all attempts of a process, in batches, and knows what to do when the server is away.
// Reports of one attempt arrive in the order they were made.
type outbox struct {
	client *api.Client
	log    *slog.Logger
	host   *Host // nil outside of a worker

	mu       sync.Mutex
	queue    []*entry
	urgent   int       // entries in queue that are not soft
	softAt   time.Time // when the earliest soft entry is due
	number   uint64    // of the last batch
	inFlight int
	lastSent time.Time
	retry    backoff
	flushing bool          // soft entries do not wait any more
	idle     chan struct{} // closed when nothing waits and nothing is under way; nil if nobody asks
	wake     chan struct{}
}

// entry is one report on its way.
type entry struct {
	report  api.Report
	attempt *Attempt
	soft    bool // nobody waits for it
	last    bool // ends the attempt
	alone   bool // a batch with it was refused: send it by itself, to see whether it is the one
	refused bool // an end that the server refused and that was turned into a failure
	skip    bool // superseded
	reply   chan reply
}

type reply struct {
	result api.ReportResult
	err    error
}

func newOutbox(client *api.Client, log *slog.Logger, host *Host) *outbox {
	return &outbox{client: client, log: log, host: host, wake: make(chan struct{}, 1)}
}

func (o *outbox) kick() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// call queues a report and waits for the answer.
func (o *outbox) call(ctx context.Context, a *Attempt, r api.Report) (api.ReportResult, error) {
	e := &entry{report: r, attempt: a, reply: make(chan reply, 1)}
	if err := o.put(e); err != nil {
		return api.ReportResult{}, err
	}
	select {
	case got := <-e.reply:
		return got.result, got.err
	case <-ctx.Done():
		return api.ReportResult{}, fmt.Errorf("report %s of attempt %s: %w", r.Type, a.Attempt, context.Cause(ctx))
	}
}

// end queues an attempt's last report, as finish does, and waits for the answer.
func (o *outbox) end(ctx context.Context, a *Attempt, r api.Report) error {
	e := &entry{report: r, attempt: a, last: true, reply: make(chan reply, 1)}
	if err := o.put(e); err != nil {
		return err
	}
	select {
	case got := <-e.reply:
		return got.err
	case <-ctx.Done():
		return fmt.Errorf("report %s of attempt %s: %w", r.Type, a.Attempt, context.Cause(ctx))
	}
}

// start queues the news that an attempt has begun. Its end, if that comes first, says it too.
func (o *outbox) start(a *Attempt) {
	e := &entry{report: api.Report{Type: api.ReportStart}, attempt: a, soft: true}
	o.mu.Lock()
	a.begun = e
	o.mu.Unlock()
	_ = o.put(e)
}

// finish queues an attempt's last report. It is sent until the server takes it or the attempt is surely over, and also
// when nothing that the attempt says counts any more: a successor may be waiting for the news that it has ended.
func (o *outbox) finish(a *Attempt, r api.Report) error {
	return o.put(&entry{report: r, attempt: a, last: true})
}

func (o *outbox) put(e *entry) error {
	e.report.Attempt, e.report.Token = e.attempt.Attempt, e.attempt.Token
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := e.attempt.gone; err != nil && !e.last {
		return err
	}
	if e.attempt.final {
		return fmt.Errorf("report %s of attempt %s after its end: %w", e.report.Type, e.attempt.Attempt, ErrFenced)
	}
	if e.last {
		e.attempt.final = true
		supersede(e.attempt, e.report.Usage != nil)
	}
	o.queue = append(o.queue, e)
	e.attempt.told = e.attempt.told || e.soft
	if !e.soft {
		o.urgent++
		o.kick()
		return nil
	}
	delay := softDelay
	if e.report.Type == api.ReportStart {
		delay = startDelay
	}
	if at := time.Now().Add(delay); o.softAt.IsZero() || at.Before(o.softAt) {
		o.softAt = at
		o.kick()
	}
	return nil
}

// supersede drops what an attempt's end says better. The caller holds mu.
func supersede(a *Attempt, total bool) {
	if a.begun != nil {
		a.begun.skip = true
	}
	if a.progress != nil {
		a.progress.skip = true
	}
	if a.usage != nil && total {
		a.usage.skip = true
	}
}

// addUsage merges with what waits already, model by model.
func (o *outbox) addUsage(a *Attempt, u api.Usage) {
	o.mu.Lock()
	if e := a.usage; e != nil && e.report.Usage.Model == u.Model {
		e.report.Usage.InputTokens += u.InputTokens
		e.report.Usage.OutputTokens += u.OutputTokens
		e.report.Usage.USD += u.USD
		o.mu.Unlock()
		return
	}
	e := &entry{report: api.Report{Type: api.ReportUsage, Usage: &u}, attempt: a, soft: true}
	a.usage = e
	o.mu.Unlock()
	_ = o.put(e)
}

// setProgress replaces what waits already.
func (o *outbox) setProgress(a *Attempt, fraction float64, message string) {
	o.mu.Lock()
	if e := a.progress; e != nil {
		e.report.Progress, e.report.Message = &fraction, message
		o.mu.Unlock()
		return
	}
	e := &entry{report: api.Report{Type: api.ReportProgress, Progress: &fraction, Message: message}, attempt: a, soft: true}
	a.progress = e
	o.mu.Unlock()
	_ = o.put(e)
}

func (o *outbox) addLog(a *Attempt, line api.LogLine) {
	o.mu.Lock()
	if e := a.logs; e != nil {
		if len(e.report.Logs) >= maxLogLines || a.logBytes+len(line.Text) > maxLogBytes {
			a.dropped++
		} else {
			e.report.Logs = append(e.report.Logs, line)
			a.logBytes += len(line.Text)
		}
		o.mu.Unlock()
		return
	}
	e := &entry{report: api.Report{Type: api.ReportLogs, Logs: []api.LogLine{line}}, attempt: a, soft: true}
	a.logs, a.logBytes = e, len(line.Text)
	o.mu.Unlock()
	_ = o.put(e)
}

// run sends until ctx is done.
func (o *outbox) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	for {
		// 1. Sleep until something is due.
		wait := o.due(time.Now())
		if wait != 0 {
			var fire <-chan time.Time
			if wait > 0 {
				timer.Reset(wait)
				fire = timer.C
			}
			select {
			case <-ctx.Done():
				return
			case <-o.wake:
			case <-fire:
			}
			continue
		}
		// 2. Let handlers that are about to end come along: one call for many is what keeps a busy worker cheap.
		for i := 0; i < 64 && o.host != nil && o.host.expects(); i++ {
			runtime.Gosched()
		}
		// 3. Send.
		batch := o.take()
		if len(batch) == 0 {
			continue
		}
		sending.Go(func() { o.send(ctx, batch) })
	}
}

// due is how long until a batch should go: 0 for now, negative for "not before something happens".
func (o *outbox) due(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 || o.inFlight >= maxInFlight {
		return -1
	}
	var at time.Time
	switch {
	case o.urgent > 0 || o.flushing:
	case !o.softAt.IsZero():
		at = o.softAt
	default:
		return -1
	}
	if o.retry.until.After(at) {
		at = o.retry.until
	}
	if hold := o.lastSent.Add(holdBatch); o.inFlight > 0 && hold.After(at) {
		at = hold
	}
	if wait := at.Sub(now); wait > 0 {
		return wait
	}
	if !o.sendable() {
		return -1
	}
	return 0
}

// sendable reports whether any entry may go now: attempts with a report on its way wait for the answer.
func (o *outbox) sendable() bool {
	for _, e := range o.queue {
		if e.attempt.batch == 0 {
			return true
		}
	}
	return false
}

// take removes the next batch from the queue.
func (o *outbox) take() []*entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.number++
	batch := make([]*entry, 0, min(len(o.queue), api.MaxReports))
	rest := o.queue[:0]
	size, full := 0, false
	o.softAt = time.Time{}
	for _, e := range o.queue {
		a := e.attempt
		n := sizeOf(&e.report)
		full = full || len(batch) == api.MaxReports || len(batch) > 0 && (size+n > maxBatch || e.alone)
		switch {
		case e.skip:
			o.untie(e)
			continue
		case a.gone != nil && !e.last:
			o.untie(e)
			o.drop(e, a.gone)
			continue
		case full, a.batch != 0 && a.batch != o.number, a.held == o.number:
			a.held = o.number // what follows of this attempt stays too, or it would overtake
			if e.soft {
				o.softAt = time.Now()
			}
			rest = append(rest, e)
			continue
		}
		full = e.alone
		size += n
		a.batch = o.number
		o.untie(e)
		if !e.soft {
			o.urgent--
		}
		batch = append(batch, e)
	}
	clear(o.queue[len(rest):])
	o.queue = rest
	if len(batch) > 0 {
		o.inFlight++
		o.lastSent = time.Now()
	}
	o.checkIdle()
	return batch
}

// sizeOf estimates a report's bytes on the wire.
func sizeOf(r *api.Report) int {
	n := 512 + len(r.Output) + len(r.Session) + len(r.Message)
	if r.Step != nil {
		n += len(r.Step.Result)
	}
	for i := range r.Logs {
		n += 80 + len(r.Logs[i].Text)
	}
	return n
}

// untie makes later soft reports of the attempt form entries of their own. The caller holds mu.
func (o *outbox) untie(e *entry) {
	a := e.attempt
	switch e {
	case a.begun:
		a.begun = nil
	case a.usage:
		a.usage = nil
	case a.progress:
		a.progress = nil
	case a.logs:
		a.logs = nil
		if a.dropped > 0 {
			text := fmt.Sprintf("%d lines were dropped: they came faster than the server took them", a.dropped)
			e.report.Logs = append(e.report.Logs, api.LogLine{At: api.Time{Time: time.Now()}, Attempt: a.N, Stream: "agent", Text: text})
			a.dropped = 0
		}
	}
}

// drop gives an entry up. The caller holds mu.
func (o *outbox) drop(e *entry, err error) {
	if !e.soft {
		o.urgent--
	}
	e.answer(api.ReportResult{}, err)
	if e.last && o.host != nil {
		o.host.settled(e.attempt)
	}
}

func (e *entry) answer(result api.ReportResult, err error) {
	if e.reply != nil {
		e.reply <- reply{result, err}
	}
}

// lost tells that the server counts an attempt as ended.
func (o *outbox) lost(a *Attempt, why error) {
	o.mu.Lock()
	o.lose(a, why)
	o.mu.Unlock()
	o.kick()
}

// reachable ends any wait for the server to come back.
func (o *outbox) reachable() {
	o.mu.Lock()
	waiting := o.retry.failures > 0
	o.retry = backoff{}
	o.mu.Unlock()
	if waiting {
		o.kick()
	}
}

// checkIdle tells who waits for the queue to be empty. The caller holds mu.
func (o *outbox) checkIdle() {
	if o.idle != nil && len(o.queue) == 0 && o.inFlight == 0 {
		close(o.idle)
		o.idle = nil
	}
}

// flush sends everything that waits, soft reports too, and returns when the queue is empty or ctx is done.
func (o *outbox) flush(ctx context.Context) error {
	o.mu.Lock()
	o.flushing = true
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		o.flushing = false
		o.mu.Unlock()
	}()
	o.kick()
	for {
		o.mu.Lock()
		left, sending := len(o.queue), o.inFlight
		empty := left == 0 && sending == 0
		idle := o.idle
		if !empty && idle == nil {
			idle = make(chan struct{})
			o.idle = idle
		}
		o.mu.Unlock()
		if empty {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("%d reports could not be sent, and %d batches were not answered: %w", left, sending, context.Cause(ctx))
		}
	}
}
