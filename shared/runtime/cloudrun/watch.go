package cloudrun

import (
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/run/apiv2/runpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

// execution is one that carries attempts of ours, or that may. All of it is guarded by Runtime.mu.
type execution struct {
	job   resource
	name  string     // "" while it is looked for
	ids   []string   // of the attempts that it was entered with
	tasks []*attempt // by index; nil for one that is over or unknown
	stray bool       // looked for because of a stop of what is not on the books
	known bool       // tasks are all that it has: nobody else's work is hit when it is cancelled

	due     time.Time
	place   int               // in the watch list; -1 when out
	wait    time.Duration     // before the look after the next
	missed  time.Time         // since when the platform knows nothing of it
	ended   time.Time         // when its end was first seen
	ends    map[int]time.Time // of tasks, likewise
	silent  map[int]bool      // tasks whose worker was silent for its lease
	asked   time.Time         // when its cancellation was taken; zero for not
	empty   time.Time         // since when nothing of ours is in it
	looks   int               // since then
	faults  int               // looks in a row that told nothing
	workers map[string]bool   // that it was looked up for, of a process before this one; nil for one that is known
	turn    sync.Mutex        // one look at a time
}

const (
	lookers = 8 // looks under way at a time
	// patience is how long after its last deadline an execution whose state cannot be learned is watched.
	patience    = 10 * time.Minute
	lastLooks   = 10 // at an execution that nothing of ours is in any more
	maxStrange  = 1000
	maxIndex    = 10_000 // of a task
	codeGone    = "ExecutionGone"
	codeStopped = "ExecutionCancelled"
	// codeUnclaimed: the container's program knows nothing of attempts. Another try meets the same, and counts as one.
	codeUnclaimed = "NotClaimed"
)

// workerID is how a task calls itself: EXECUTION-INDEX.
func workerID(execution string, index int) string {
	return shortName(execution) + "-" + strconv.Itoa(index)
}

func shortName(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// parseWorker takes a task's id apart: its execution, the job that it must be of, its index. The platform names an
// execution by its job and five letters or digits.
func parseWorker(worker string) (job, execution string, index int, ok bool) {
	i := strings.LastIndexByte(worker, '-')
	if i < 0 {
		return "", "", 0, false
	}
	execution = worker[:i]
	index, err := strconv.Atoi(worker[i+1:])
	j := strings.LastIndexByte(execution, '-')
	if err != nil || index < 0 || strconv.Itoa(index) != worker[i+1:] || index > maxIndex || j < 1 || len(execution)-j-1 != 5 {
		return "", "", 0, false
	}
	return execution[:j], execution, index, true
}

func (rt *Runtime) holds(worker, runID string, n int) bool {
	return rt.opts.Held != nil && slices.Contains(rt.opts.Held(worker), runtime.Held{Run: runID, N: n})
}

// live are the tasks whose attempts are not over, by index. Needs the lock.
func (e *execution) live() map[int]*attempt {
	tasks := make(map[int]*attempt)
	for i, x := range e.tasks {
		if x != nil && !x.over {
			tasks[i] = x
		}
	}
	return tasks
}

// enter puts an execution on the books and watches it. Needs the lock.
func (rt *Runtime) enter(e *execution, tasks []*attempt) {
	e.place, e.wait, e.tasks = -1, rt.opts.Poll, slices.Clone(tasks)
	e.silent, e.ends = make(map[int]bool), make(map[int]time.Time)
	first := rt.opts.Poll
	for i, x := range tasks {
		if x == nil {
			continue
		}
		e.ids = append(e.ids, x.a.ID())
		if x.over {
			e.tasks[i] = nil
			continue
		}
		x.execution, x.index = e, i
		if x.doomed {
			first = 0
		}
	}
	if e.name != "" {
		rt.executions[e.name] = e
		rt.shorts[shortName(e.name)] = e
	}
	rt.watch(e, first)
}

// leave takes an execution off the books. Needs the lock.
func (rt *Runtime) leave(e *execution) {
	if e.place >= 0 {
		heap.Remove(&rt.due, e.place)
	}
	if rt.executions[e.name] == e {
		delete(rt.executions, e.name)
		delete(rt.shorts, shortName(e.name))
	}
	for _, x := range e.tasks {
		if x != nil && x.execution == e {
			x.execution = nil
		}
	}
}

// watch has an execution looked at in a while, or sooner if that was asked for. Needs the lock.
func (rt *Runtime) watch(e *execution, in time.Duration) {
	if rt.closed {
		return
	}
	at := time.Now().Add(in)
	switch {
	case e.place < 0:
		e.due = at
		heap.Push(&rt.due, e)
	case at.Before(e.due):
		e.due = at
		heap.Fix(&rt.due, e.place)
	}
	if !rt.watching {
		rt.watching = true
		rt.wg.Go(rt.watchAll)
	}
	select {
	case rt.stir <- struct{}{}:
	default:
	}
}

// again has it looked at after a wait that grows. Needs the lock.
func (rt *Runtime) again(e *execution) {
	rt.watch(e, e.wait)
	e.wait = min(2*e.wait, rt.opts.LongestPoll)
}

// watchAll looks at what is due. It ends with the runtime.
func (rt *Runtime) watchAll() {
	slots := make(chan struct{}, lookers)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		// 1. Wait.
		select {
		case <-rt.quit:
			return
		case <-timer.C:
		case <-rt.stir:
		}
		// 2. Look.
		for {
			rt.mu.Lock()
			if rt.closed {
				rt.mu.Unlock()
				return
			}
			if len(rt.due) == 0 {
				rt.mu.Unlock()
				break
			}
			e := rt.due[0]
			if in := time.Until(e.due); in > 0 {
				timer.Reset(in)
				rt.mu.Unlock()
				break
			}
			heap.Pop(&rt.due)
			rt.mu.Unlock()
			select {
			case slots <- struct{}{}:
			case <-rt.quit:
				return
			}
			rt.wg.Go(func() {
				defer func() { <-slots }()
				rt.look(e)
			})
		}
	}
}

// look learns what the platform says of an execution, and acts on what is certain.
func (rt *Runtime) look(e *execution) {
	e.turn.Lock()
	defer e.turn.Unlock()
	if e.name == "" {
		rt.search(e)
		return
	}
	rt.introduce(e)
	// 1. While all its tasks have claimed, and none was silent since, their leases tell how they are.
	rt.mu.Lock()
	live := e.live()
	quiet := len(live) > 0
	for i, x := range live {
		quiet = quiet && !e.silent[i] && !x.doomed
	}
	rt.mu.Unlock()
	if quiet && rt.opts.Held != nil {
		for i, x := range live {
			quiet = quiet && rt.holds(workerID(e.name, i), x.a.Run, x.a.N)
		}
		if quiet {
			return
		}
	}
	// 2. Ask.
	ex, err := rt.platform.execution(rt.life, e.name)
	switch {
	case err == nil:
		rt.mu.Lock()
		e.missed, e.faults = time.Time{}, 0
		rt.mu.Unlock()
	case status.Code(err) == codes.NotFound:
		rt.missing(e, fmt.Sprintf("the platform has known nothing of execution %s for %s", shortName(e.name), rt.opts.MissingFor))
		return
	default:
		rt.unknown(e, live, fmt.Errorf("ask about execution %s: %w", shortName(e.name), err))
		return
	}
	if int(ex.GetTaskCount()) <= 1 {
		rt.mu.Lock()
		e.known = true
		rt.mu.Unlock()
	}
	// 3. What it says.
	switch {
	case len(live) == 0:
		rt.clear(e, ex)
	case over(ex):
		rt.over(e, ex)
	default:
		rt.runs(e, ex)
	}
}

// search looks for the execution that may have been started for attempts.
func (rt *Runtime) search(e *execution) {
	// 1. Ask.
	list, err := rt.listFor(e)
	rt.mu.Lock()
	live := e.live()
	rt.mu.Unlock()
	if what := advice(err); e.stray && what != "" {
		rt.log.Warn("what another process has started cannot be looked for, and is not cancelled", "attempts", e.ids, "error", err, "remedy", what)
		list, err = nil, nil
	}
	if err != nil {
		rt.unknown(e, live, fmt.Errorf("look for an execution of %s: %w", shortName(e.job.name), err))
		return
	}
	// 2. What carries attempts that are not over is theirs; the rest is surplus.
	wanted := make(map[string]bool)
	for _, id := range e.ids {
		wanted[id] = true
	}
	attempts := slices.Collect(maps.Values(live))
	for _, m := range matches(list, wanted) {
		if len(attempts) == 0 || !slices.ContainsFunc(attempts, func(x *attempt) bool { return slices.Contains(m.ids, x.a.ID()) }) {
			rt.surplus(m.execution.GetName(), m, wanted)
		}
	}
	left := rt.adopt(e.job, attempts, list)
	rt.mu.Lock()
	for _, x := range attempts {
		i := slices.Index(e.tasks, x)
		switch {
		case i < 0:
		case !slices.Contains(left, x):
			e.tasks[i] = nil
		case x.stray: // of a pool or a service, or over: there is nothing to stop here
			x.over = true
			rt.remove(x)
		}
	}
	if e.stray {
		rt.leave(e)
		rt.mu.Unlock()
		return
	}
	rt.mu.Unlock()
	rt.missing(e, fmt.Sprintf("no execution of job %s was started for it: none is listed after %s", shortName(e.job.name), rt.opts.MissingFor))
}

// listFor lists the executions among which one may be.
func (rt *Runtime) listFor(e *execution) ([]*runpb.Execution, error) {
	if !e.stray || rt.opts.Jobs == nil {
		return rt.platform.executions(rt.life, e.job.name)
	}
	var all []*runpb.Execution
	for _, job := range rt.opts.Jobs() {
		list, err := rt.platform.executions(rt.life, job)
		if err != nil && advice(err) == "" { // a job that is gone, or none of ours, has nothing of ours
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// missing ends the attempts of an execution that the platform has not known for long enough: positively it is not there.
func (rt *Runtime) missing(e *execution, why string) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	now := time.Now()
	if e.missed.IsZero() {
		e.missed, e.wait = now, rt.opts.Poll
	}
	live := e.live()
	if now.Sub(e.missed) < rt.opts.MissingFor {
		rt.again(e)
		return
	}
	for _, x := range live {
		report := notStarted(why)
		switch {
		case x.reason != "":
			report = runtime.Stopped(x.reason, why)
			report.Ended = true
		case e.name != "":
			report.Code = codeGone
		}
		rt.wg.Go(func() { rt.finish(x, report) })
	}
	if len(live) == 0 {
		rt.forgetWorkers(e)
	}
	rt.leave(e)
}

// forgetWorkers notes that the workers of an execution are none of ours, for when they are asked for again. Needs the
// lock.
func (rt *Runtime) forgetWorkers(e *execution) {
	for worker := range e.workers {
		if len(rt.strange) >= maxStrange {
			clear(rt.strange)
		}
		rt.strange[worker] = true
	}
}

// unknown notes that nothing could be learned. Nothing ends and nothing is deleted on that.
func (rt *Runtime) unknown(e *execution, live map[int]*attempt, err error) {
	rt.mu.Lock()
	e.faults++
	faults := e.faults
	var last run.Instant
	for _, x := range live {
		last = max(last, x.a.Deadline)
	}
	tired := last != 0 && rt.opts.Now().After(last.Time().Add(rt.opts.Grace+patience))
	rt.mu.Unlock()
	rt.log.Warn("the state of an execution is unknown; asking again", "execution", e.name, "job", e.job.name, "times", faults, "error", err)
	if faults == 1 {
		for _, x := range live {
			rt.note(x.a.Run, x.a.N, fmt.Sprintf("its state is unknown for the moment: %v; asking again", err))
		}
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if !tired {
		rt.again(e)
		return
	}
	for _, x := range live {
		rt.wg.Go(func() {
			rt.finish(x, runtime.Report{
				Type: runtime.Failed, Class: run.ClassLost, Message: fmt.Sprintf("its state could not be learned until %s after its deadline: %v", patience, err),
			})
		})
	}
	rt.leave(e)
}

// clear ends what runs although all of its attempts are over.
func (rt *Runtime) clear(e *execution, ex *runpb.Execution) {
	rt.mu.Lock()
	if left := rt.opts.Grace - time.Since(e.empty); left > 0 && !over(ex) {
		rt.watch(e, left)
		rt.mu.Unlock()
		return
	}
	e.looks++
	gone := over(ex) || !e.known || len(e.ids) == 0 || e.looks > lastLooks
	if gone && len(e.ids) == 0 {
		rt.forgetWorkers(e)
	}
	if gone {
		rt.leave(e)
	} else {
		rt.again(e)
	}
	ask := !gone && e.asked.IsZero()
	rt.mu.Unlock()
	if ask {
		rt.log.Warn("cancelling an execution that goes on although its attempts are over", "execution", e.name, "attempts", e.ids)
		rt.cancel(e)
	}
}

func (rt *Runtime) cancel(e *execution) {
	if err := rt.platform.cancelExecution(rt.life, e.name); err != nil {
		rt.log.Warn("an execution was not cancelled; trying again", "execution", e.name, "error", err)
		return
	}
	rt.mu.Lock()
	e.asked = time.Now()
	rt.mu.Unlock()
}

// over judges an execution that has ended, once the last words of its tasks had time to come.
func (rt *Runtime) over(e *execution, ex *runpb.Execution) {
	rt.mu.Lock()
	if e.ended.IsZero() {
		e.ended = time.Now()
	}
	if left := rt.opts.Settle - time.Since(e.ended); left > 0 && e.asked.IsZero() {
		rt.watch(e, left)
		rt.mu.Unlock()
		return
	}
	rt.mu.Unlock()
	// What is known of each task tells more; without it the execution's own words must do.
	tasks, err := rt.platform.tasks(rt.life, e.name)
	if err != nil {
		rt.log.Warn("the tasks of an execution were not listed", "execution", e.name, "error", err)
	}
	byIndex := make(map[int]*runpb.Task)
	for _, t := range tasks {
		byIndex[int(t.GetIndex())] = t
	}
	rt.mu.Lock()
	live := e.live()
	rt.mu.Unlock()
	for i := range live {
		rt.judge(e, i, ex, byIndex[i])
	}
	rt.mu.Lock()
	rt.leave(e)
	rt.mu.Unlock()
}

// runs deals with an execution that goes on: with tasks of it that have ended, are silent, or are to be killed.
func (rt *Runtime) runs(e *execution, ex *runpb.Execution) {
	// 1. Tasks that have ended by themselves.
	rt.mu.Lock()
	live := e.live()
	done := int(ex.GetSucceededCount() + ex.GetFailedCount() + ex.GetCancelledCount())
	look := len(e.tasks) > 1 && done > len(e.tasks)-len(live)
	rt.mu.Unlock()
	if look {
		rt.taskEnds(e, ex)
	}
	// 2. Those that are to go: all that is in it, or nothing can be done.
	rt.mu.Lock()
	live = e.live()
	var doomed []int
	for i, x := range live {
		if e.silent[i] || x.doomed {
			doomed = append(doomed, i)
		}
	}
	all := len(doomed) == len(live) && e.known
	switch {
	case len(doomed) > 0 && all:
		e.wait = rt.opts.Poll
	case len(doomed) > 0:
		for _, i := range doomed {
			x := live[i]
			if !e.silent[i] {
				continue // its worker is told by its heartbeats
			}
			rt.wg.Go(func() {
				rt.finish(x, runtime.Report{
					Type: runtime.Failed, Class: run.ClassLost, Worker: workerID(e.name, i),
					Message: fmt.Sprintf("worker %s is silent; its execution has other tasks and was not cancelled", workerID(e.name, i)),
				})
			})
		}
	}
	ask := len(doomed) > 0 && all && e.asked.IsZero()
	if tired := !e.asked.IsZero() && time.Since(e.asked) > patience; tired {
		for i, x := range live {
			rt.wg.Go(func() {
				rt.finish(x, runtime.Report{
					Type: runtime.Failed, Class: run.ClassLost, Worker: workerID(e.name, i),
					Message: fmt.Sprintf("its execution was cancelled %s ago and has not ended", patience),
				})
			})
		}
		rt.leave(e)
	} else {
		rt.again(e)
	}
	rt.mu.Unlock()
	if ask {
		rt.log.Warn("cancelling an execution", "execution", e.name, "attempts", e.ids)
		rt.cancel(e)
	}
}

// taskEnds judges the tasks of an execution that have ended before it.
func (rt *Runtime) taskEnds(e *execution, ex *runpb.Execution) {
	tasks, err := rt.platform.tasks(rt.life, e.name)
	if err != nil {
		rt.log.Warn("the tasks of an execution were not listed", "execution", e.name, "error", err)
		return
	}
	for _, t := range tasks {
		i := int(t.GetIndex())
		rt.mu.Lock()
		lives := e.live()[i] != nil
		if lives && t.GetCompletionTime() != nil && e.ends[i].IsZero() {
			e.ends[i] = time.Now()
		}
		settled := lives && !e.ends[i].IsZero() && time.Since(e.ends[i]) >= rt.opts.Settle
		rt.mu.Unlock()
		if settled {
			rt.judge(e, i, ex, t)
		}
	}
}

// judge reports what became of a task.
func (rt *Runtime) judge(e *execution, i int, ex *runpb.Execution, t *runpb.Task) {
	rt.mu.Lock()
	x := e.live()[i]
	if x == nil {
		rt.mu.Unlock()
		return
	}
	how := fate{worker: workerID(e.name, i), reason: x.reason, silent: e.silent[i], asked: !e.asked.IsZero()}
	rt.mu.Unlock()
	how.claimed = rt.holds(how.worker, x.a.Run, x.a.N)
	report := how.report(ex, t)
	rt.wg.Go(func() { rt.finish(x, report) })
}

// introduce finds out which attempts are in an execution that a process before this one has started: those that its
// workers hold.
func (rt *Runtime) introduce(e *execution) {
	rt.mu.Lock()
	workers := slices.Collect(maps.Keys(e.workers))
	rt.mu.Unlock()
	for _, worker := range workers {
		_, _, index, _ := parseWorker(worker)
		for _, h := range rt.opts.Held(worker) {
			rt.introduceTask(e, index, h)
		}
	}
}

func (rt *Runtime) introduceTask(e *execution, index int, h runtime.Held) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for len(e.tasks) <= index {
		e.tasks = append(e.tasks, nil)
	}
	x := rt.attempts[runtime.AttemptID(h.Run, h.N)]
	if e.tasks[index] != nil || x != nil && (x.execution != nil || x.over) {
		return
	}
	if x == nil {
		x = &attempt{a: runtime.Assignment{Run: h.Run, N: h.N}, resource: e.job}
		rt.attempts[x.a.ID()] = x
	}
	e.tasks[index], x.execution, x.index = x, e, index
	e.ids = append(e.ids, x.a.ID())
}

// dueList orders executions by when they are looked at. It implements heap.Interface.
type dueList []*execution

func (l dueList) Len() int           { return len(l) }
func (l dueList) Less(i, j int) bool { return l[i].due.Before(l[j].due) }
func (l dueList) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i, j
}

func (l *dueList) Push(e any) {
	e.(*execution).place = len(*l)
	*l = append(*l, e.(*execution))
}

func (l *dueList) Pop() any {
	old := *l
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*l = old[:len(old)-1]
	e.place = -1
	return e
}
