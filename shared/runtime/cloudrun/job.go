package cloudrun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// Jobs: an attempt is a task of an execution.

const (
	jobTTL = time.Minute
	// takeover is for how long after its begin a process looks, before a start, whether the process before it has made
	// it: what the other did not get to know is nowhere else.
	takeover = 5 * time.Minute
	// lookTries is how often it looks while the platform does not answer, with lookPause, twice that and so on between.
	lookTries = 4
	lookPause = 250 * time.Millisecond
	// listingTTL is how long a listing serves such looks.
	listingTTL    = time.Second
	searchPauses  = 3 // looks for an execution after a call whose outcome is unknown
	codeThrottled = "StartQuota"
)

// StartsAllowed is how many executions of jobs could be started now without waiting. More than that is given back with
// class throttled, so whoever places runs may count.
func (rt *Runtime) StartsAllowed() int { return rt.quota.allowed(time.Now()) }

// runTask starts an attempt as a task and waits for the outcome.
func (rt *Runtime) runTask(ctx context.Context, x *attempt) error {
	if x.a.Ticket == "" {
		return fmt.Errorf("%w: the assignment has no ticket", runtime.ErrRefused)
	}
	// 1. The platform must leave retrying to control, else attempts multiply.
	name := x.resource.name
	config, err := rt.jobs.get(ctx, name, func(ctx context.Context) (jobConfig, error) {
		j, err := rt.platform.job(ctx, name)
		if err != nil {
			return jobConfig{}, fmt.Errorf("look up job %s: %w", name, err)
		}
		return configOf(j), nil
	})
	switch {
	case err != nil:
		return rt.notNow(x, err)
	case config.retries != 0:
		rt.jobs.drop(name)
		return fmt.Errorf("%w: job %s has %d retries of its own, which would multiply with retry.maxAttempts; set its max retries to 0", runtime.ErrRefused, name, config.retries)
	}
	// 2. With others, if it is short.
	b := rt.join(x, config)
	<-b.done // within seconds, or the time-outs of its calls
	return b.outcomes[x]
}

// join puts an attempt into a batch that waits, or into a new one.
func (rt *Runtime) join(x *attempt, config jobConfig) *batch {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	name := x.resource.name
	if !rt.packs(&x.a) {
		b := newBatch(x, config)
		rt.launch(b)
		return b
	}
	b := rt.batches[name]
	if b != nil && !b.fits(x) {
		rt.launch(b)
		b = nil
	}
	if b == nil {
		b = newBatch(x, config)
		rt.batches[name] = b
		b.timer = time.AfterFunc(rt.opts.PackWindow, func() {
			rt.mu.Lock()
			defer rt.mu.Unlock()
			rt.launch(b)
		})
	} else {
		b.add(x)
	}
	if b.full() || rt.closed {
		rt.launch(b)
	}
	return b
}

// launch starts a batch, once. Needs the lock. Those who wait for a batch keep the runtime's end waiting.
func (rt *Runtime) launch(b *batch) {
	if b.launched {
		return
	}
	b.launched = true
	if b.timer != nil {
		b.timer.Stop()
	}
	if rt.batches[b.job.name] == b {
		delete(rt.batches, b.job.name)
	}
	rt.wg.Add(1)
	go func() {
		defer rt.wg.Done()
		defer close(b.done)
		rt.run(b)
	}()
}

// run starts a batch by one call, unless it was started before.
func (rt *Runtime) run(b *batch) {
	ctx := rt.life
	// 1. Its turn. What cannot have it in time is given back, with the time to come again.
	wait, ok := rt.quota.reserve(time.Now(), rt.opts.StartWait)
	if !ok {
		rt.throttle(b, b.attempts, wait, "this server's rate of starts")
		return
	}
	rt.pause(wait)
	// 2. What is still wanted.
	attempts := rt.wanted(b)
	// 3. What the process before this one may have started.
	if time.Since(rt.born) < takeover && len(attempts) > 0 {
		var list []*runpb.Execution
		var err error
		for try := range lookTries {
			rt.pause(time.Duration(try) * lookPause) // to look does no harm, and who cannot look does not know what to start
			list, err = rt.listings.get(ctx, b.job.name, func(ctx context.Context) ([]*runpb.Execution, error) {
				return rt.platform.executions(ctx, b.job.name)
			})
			if err == nil || advice(err) != "" || ctx.Err() != nil {
				break
			}
		}
		if err != nil && advice(err) == "" {
			rt.unsure(b, attempts, fmt.Errorf("look whether it was started before: %w", err))
			return
		}
		attempts = rt.adopt(b.job, attempts, list)
	}
	if len(attempts) == 0 {
		return
	}
	// 4. The call. It is made once: an error may hide that an execution was started.
	request := runRequest(b.job.name, b.config, attempts, rt.opts.URL(), rt.opts.Now(), rt.opts.Grace)
	name, err := rt.platform.runJob(ctx, request)
	if err == nil && name != "" {
		rt.quota.taken(time.Now())
		rt.mu.Lock()
		rt.enter(&execution{job: b.job, name: name, known: true}, attempts)
		rt.mu.Unlock()
		return
	}
	if what := advice(err); what != "" {
		for _, x := range attempts {
			b.outcomes[x] = fmt.Errorf("%w: run job %s: %w; %s", runtime.ErrRefused, b.job.name, err, what)
		}
		return
	}
	if err == nil {
		err = errors.New("the platform did not tell what it started")
	}
	exhausted := status.Code(err) == codes.ResourceExhausted
	var later time.Duration
	if exhausted {
		later = rt.quota.exhausted(time.Now())
	}
	rt.log.Warn("a start whose outcome is unknown; looking for its execution", "job", b.job.name, "attempts", len(attempts), "error", err)
	// 5. Look for what it may have started.
	seen := false
	for i := range searchPauses {
		rt.pause(time.Duration(i) * rt.opts.Poll / 2)
		list, failed := rt.platform.executions(ctx, b.job.name)
		if failed != nil {
			rt.log.Warn("executions were not listed", "job", b.job.name, "error", failed)
			continue
		}
		seen = true
		if attempts = rt.adopt(b.job, attempts, list); len(attempts) == 0 {
			return
		}
	}
	if exhausted && seen {
		rt.watchFor(b.job, attempts) // one that comes to light later is surplus
		rt.throttle(b, attempts, later, "the platform's quota of starts: "+status.Convert(err).Message())
		return
	}
	rt.unsure(b, attempts, fmt.Errorf("run job %s: %w", b.job.name, err))
}

// wanted are the attempts of a batch that were not told to end meanwhile.
func (rt *Runtime) wanted(b *batch) []*attempt {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.attempts), func(x *attempt) bool {
		if x.reason != "" || rt.closed {
			_ = rt.tooLate(x)
		}
		return x.over || x.reason != "" || rt.closed
	})
}

// throttle gives attempts back that nothing has begun of.
func (rt *Runtime) throttle(b *batch, attempts []*attempt, wait time.Duration, by string) {
	for _, x := range attempts {
		report := runtime.Report{
			Type: runtime.Failed, Class: run.ClassThrottled, Code: codeThrottled, RetryIn: wait, Ended: true,
			Message: fmt.Sprintf("job %s was not started: %s is used up; the next start may come in %s", b.job.name, by, wait.Round(time.Second)),
		}
		rt.wg.Go(func() { rt.finish(x, report) })
	}
}

// unsure leaves attempts of which nobody knows whether they began; their execution is looked for.
func (rt *Runtime) unsure(b *batch, attempts []*attempt, err error) {
	for _, x := range attempts {
		b.outcomes[x] = fmt.Errorf("attempt %s: whether it began is unknown: %w", x.a.ID(), err)
	}
	rt.watchFor(b.job, attempts)
}

// watchFor looks for an execution that may have been started for attempts.
func (rt *Runtime) watchFor(job resource, attempts []*attempt) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.enter(&execution{job: job}, attempts)
}

// adopt enters the executions that carry some of the attempts, and returns the attempts that none carries. Of several for
// one attempt the one that its claim came from stays, else the oldest that runs; the others are surplus.
func (rt *Runtime) adopt(job resource, attempts []*attempt, list []*runpb.Execution) []*attempt {
	wanted := make(map[string]bool, len(attempts))
	byID := make(map[string]*attempt, len(attempts))
	for _, x := range attempts {
		wanted[x.a.ID()], byID[x.a.ID()] = true, x
	}
	found := matches(list, wanted)
	slices.SortStableFunc(found, func(a, b match) int {
		switch x, y := rt.claimedFrom(a, byID), rt.claimedFrom(b, byID); {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
	for _, m := range found {
		var tasks []*attempt
		some := false
		for _, id := range m.ids {
			x := byID[id]
			tasks, some = append(tasks, x), some || x != nil
			delete(byID, id)
		}
		name := m.execution.GetName()
		if !some {
			rt.surplus(name, m, wanted)
			continue
		}
		rt.log.Info("adopting an execution that was started before", "execution", name, "attempts", len(tasks))
		rt.mu.Lock()
		rt.enter(&execution{job: jobOf(name, job), name: name, known: len(tasks) == 1}, tasks)
		rt.mu.Unlock()
	}
	return slices.DeleteFunc(slices.Clone(attempts), func(x *attempt) bool { return byID[x.a.ID()] == nil })
}

// jobOf is the job of an execution's name.
func jobOf(execution string, otherwise resource) resource {
	if name, _, ok := strings.Cut(execution, "/executions/"); ok {
		return resource{jobs, name}
	}
	return otherwise
}

// claimedFrom reports whether a task of the execution has claimed one of the attempts.
func (rt *Runtime) claimedFrom(m match, attempts map[string]*attempt) bool {
	for i, id := range m.ids {
		if x := attempts[id]; x != nil && rt.holds(workerID(m.execution.GetName(), i), x.a.Run, x.a.N) {
			return true
		}
	}
	return false
}

// surplus ends an execution all of whose attempts are carried by another, and records it.
func (rt *Runtime) surplus(name string, m match, ours map[string]bool) {
	rt.mu.Lock()
	mine := rt.executions[name] != nil
	rt.mu.Unlock()
	if mine || over(m.execution) || slices.ContainsFunc(m.ids, func(id string) bool { return !ours[id] }) {
		return
	}
	rt.log.Warn("cancelling a surplus execution", "execution", name, "attempts", m.ids)
	err := rt.platform.cancelExecution(rt.life, name)
	text := fmt.Sprintf("execution %s was started for this attempt, too; it was cancelled", name)
	if err != nil {
		rt.log.Warn("a surplus execution was not cancelled; its claim will be refused", "execution", name, "error", err)
		text = fmt.Sprintf("execution %s was started for this attempt, too, and could not be cancelled: %v", name, err)
	}
	for _, id := range m.ids {
		if runID, n, err := runtime.ParseAttemptID(id); err == nil {
			rt.note(runID, n, text)
		}
	}
}

// note adds a line to an attempt's log, best effort.
func (rt *Runtime) note(runID string, n int, text string) {
	rt.try(runtime.Report{Type: runtime.Logged, Run: runID, N: n, Logs: []runtime.LogLine{{
		At: run.At(rt.opts.Now()), Stream: "errand", Text: run.Clip(text, runtime.MaxLogLine),
	}}})
}

// pause waits, but not at the runtime's end.
func (rt *Runtime) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-rt.quit:
	}
}
