package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// HostOptions say what a Host serves. Agents and Handle are needed.
type HostOptions struct {
	// Worker is the worker's id, unique while it lives; host, process and chance make one when empty.
	Worker string
	// Target is the target that the worker belongs to; the server chooses when empty.
	Target string
	Agents []string
	// Slots is how many attempts are executed at a time; 1 when 0, at most api.MaxSlots.
	Slots int
	// Handle executes one attempt, in a goroutine of its own. Its context ends at the attempt's deadline, when the
	// server says so, and when the process has to end; the cause says which. A panic fails the attempt.
	Handle func(ctx context.Context, a *Attempt) Result
	// Source brings attempts instead of the long poll; nil for the long poll.
	Source Source
	// Grace is how long handlers may go on once Run's context has ended; [DefaultGrace] when 0, none when negative.
	Grace time.Duration
	// HeartbeatEvery is the worker's sign of life; 5s when 0. The server can ask for a faster one.
	HeartbeatEvery time.Duration
	// Snapshot, if set, is called before Run returns; what it returns is saved as state of the sessions, by name.
	Snapshot func(context.Context) (map[string]json.RawMessage, error)
	Log      *slog.Logger // slog.Default() when nil

	// quietIdle keeps a worker that holds nothing from sending heartbeats: the platform would bill the process for them.
	quietIdle bool
	// placeless keeps the server from placing runs in the worker's slots, which its Source alone fills.
	placeless bool
}

const (
	defaultBeat = 5 * time.Second
	pollWait    = 30 * time.Second // the longest that the server holds a request for runs
	// lingerPoll is how long a worker that just got runs waits with the next long poll: when they end at once, their
	// reports ask for more in the same call.
	lingerPoll   = time.Millisecond
	refusedPause = 5 * time.Second // after a request for runs that was refused, not failed
	// quickAnswer: a server that says "nothing" sooner than this did not wait, and asking again at once would be polling.
	quickAnswer = 50 * time.Millisecond
	// maxAsking is the largest batch, in bytes, that asks for runs: slots must not wait for a long upload.
	maxAsking    = 256 << 10
	pollFarewell = time.Second // for an open request for runs to end by itself when draining
	// feedFarewell is for a source to end, since the drain began: what it is claiming just then would be missed only when
	// the worker's lease runs out.
	feedFarewell = 6500 * time.Millisecond
	stopPatience = time.Second     // for handlers to return once their context has ended
	flushTime    = 5 * time.Second // for the last reports
	snapshotTime = 3 * time.Second // for Snapshot
	// snapshotSlack is for a Snapshot that returns what it has when its time is over.
	snapshotSlack = 250 * time.Millisecond
	beatPatience  = 4 * time.Second        // for one heartbeat
	fastestBeat   = 100 * time.Millisecond // that a server can ask for
	// steady is how long a server must have answered for its next outage to count as one of its own.
	steady = time.Second
)

// Host is a worker: it pulls attempts for its free slots, executes them, and reports. Everything that ends or records
// something travels in batches, and the same call brings the next attempts; an idle worker holds one request open and
// polls nothing.
//
// While the server is away, handlers go on and results are kept and sent again, until the server takes them or tells
// that the attempt is over, or its deadline has long passed.
type Host struct {
	client *api.Client
	o      HostOptions
	box    *outbox

	executing atomic.Int32 // handlers that have not returned

	mu        sync.Mutex
	attempts  map[string]*Attempt // not settled: executing, or their end is not delivered yet
	past      recent              // attempts that were settled last
	unsent    int                 // ended, but the end is not delivered yet
	reserved  int                 // slots that requests for runs under way may fill
	asking    int                 // batches under way that ask for runs
	leasedAt  time.Time           // when runs last came; zero when the last answer had none
	retry     backoff             // of requests for runs
	beatEvery time.Duration
	draining  bool
	drain     chan struct{} // closed when the server asks to drain
	drained   bool
	away      bool      // the last call failed
	backAt    time.Time // when the server was last found to be back
	answered  bool      // a request for runs was answered before
	changed   chan struct{}
	empty     chan struct{} // closed when no handler executes; nil if nobody waits
	quiet     chan struct{} // closed when isQuiet; nil if nobody waits
	beatNow   chan struct{}
	over      chan struct{} // closed when Run returns
}

// Handle makes of a handler what a [Host] of one's own calls, as [Main] does for its process. The client is the one that
// the host has.
func Handle[In, Out any](client *api.Client, handler Handler[In, Out]) func(ctx context.Context, a *Attempt) Result {
	return func(ctx context.Context, a *Attempt) Result { return run(ctx, client, a, handler) }
}

// NewHost makes a Host. It does not connect.
func NewHost(client *api.Client, o HostOptions) (*Host, error) {
	switch {
	case client == nil:
		return nil, errors.New("worker: no client")
	case o.Handle == nil:
		return nil, errors.New("worker: no Handle")
	case len(o.Agents) == 0:
		return nil, errors.New("worker: no agents to serve")
	case o.Slots < 0 || o.Slots > api.MaxSlots:
		return nil, fmt.Errorf("worker: %d slots; want 1 to %d", o.Slots, api.MaxSlots)
	}
	o.Agents = slices.Clone(o.Agents)
	if o.Worker == "" {
		o.Worker = newWorkerID()
	}
	o.Slots = max(o.Slots, 1)
	switch {
	case o.Grace == 0:
		o.Grace = DefaultGrace
	case o.Grace < 0:
		o.Grace = 0
	}
	if o.HeartbeatEvery <= 0 {
		o.HeartbeatEvery = defaultBeat
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	h := &Host{
		client: client, o: o, attempts: make(map[string]*Attempt, o.Slots), beatEvery: o.HeartbeatEvery,
		drain: make(chan struct{}), changed: make(chan struct{}, 1), beatNow: make(chan struct{}, 1), over: make(chan struct{}),
	}
	h.box = newOutbox(client, o.Log, h)
	return h, nil
}

// Worker is the worker's id.
func (h *Host) Worker() string { return h.o.Worker }

// Run serves until ctx ends, the server asks the worker to drain or its source ends, and then drains: it takes no more attempts, gives
// the running ones their grace (none is cut short when the server asked), hands back what is left, saves snapshots,
// and returns nil. An error means that the server refuses this worker for good, or that results could not be delivered.
// A Host runs once.
func (h *Host) Run(ctx context.Context) error {
	defer close(h.over)
	// 1. Start. The loops outlive ctx, for draining needs them.
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	pollCtx, stopPoll := context.WithCancel(base)
	var loops sync.WaitGroup
	var refusal error
	polled := make(chan struct{})
	loops.Go(func() { h.box.run(base) })
	loops.Go(func() { h.beat(base) })
	go func() {
		defer close(polled)
		if h.o.Source != nil {
			refusal = h.o.Source.Feed(pollCtx, h.o.Slots, h.take)
			return
		}
		refusal = h.poll(pollCtx)
	}()
	// 2. Serve.
	var failed bool
	select {
	case <-ctx.Done():
	case <-h.drain:
	case <-polled:
		failed = true
	}
	// 3. Drain.
	err := h.wind(ctx, stopPoll, polled)
	stop()
	stopPoll()
	loops.Wait()
	if failed && refusal != nil {
		return refusal
	}
	return err
}

// wind brings the worker to its end. Platforms kill ten seconds after SIGTERM: nothing here waits in line for something
// that can go on beside it.
func (h *Host) wind(ctx context.Context, stopPoll context.CancelFunc, polled <-chan struct{}) error {
	life, began := context.WithoutCancel(ctx), time.Now()
	// 1. No more attempts. The heartbeat tells the server, which ends an open request for runs.
	h.mu.Lock()
	h.draining = true
	h.mu.Unlock()
	h.kick()
	told := make(chan struct{}) // closed when the server knows, or cannot be told
	var farewell sync.WaitGroup
	go func() {
		defer close(told)
		_ = h.sendBeat(life, nil)
	}()
	farewell.Go(func() {
		if h.o.Source == nil {
			wait(polled, pollFarewell)
		}
		stopPoll()
	})
	// 2. Grace, from when the process was told to end.
	idle := h.whenEmpty()
	select {
	case <-idle:
	case <-ctx.Done():
		wait(idle, h.o.Grace)
	}
	// 3. What still runs is told to end, and handed back whether or not it listens.
	if h.executing.Load() > 0 {
		wait(told, stopPatience) // or what is handed back may be placed here again
		h.cancelAll()
		wait(h.whenEmpty(), stopPatience)
		h.releaseAll()
	}
	farewell.Wait()
	wait(polled, max(feedFarewell-time.Since(began), stopPatience/10)) // what a source is about to bring is handed back, too
	// 4. Everything that is known reaches the server: first the ends, for one may be about to be queued.
	sessions := make(chan map[string]json.RawMessage, 1)
	go func() { sessions <- h.snapshot(life) }()
	flushCtx, cancel := context.WithTimeoutCause(life, flushTime, errors.New("the server did not take them in time"))
	defer cancel()
	select {
	case <-h.whenQuiet():
	case <-flushCtx.Done():
	}
	err := h.box.flush(flushCtx)
	<-told
	_ = h.sendBeat(life, <-sessions)
	if err != nil {
		return fmt.Errorf("worker %s ends: %w", h.o.Worker, err)
	}
	return nil
}

func wait(c <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
	case <-t.C:
	}
}

func (h *Host) kick() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// leaseSource says which request brought attempts.
type leaseSource bool

const (
	fromPoll  leaseSource = false
	fromBatch leaseSource = true
)

// poll asks for attempts whenever there is room and no batch of reports is asking already.
func (h *Host) poll(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		// 1. Wait for room.
		n, delay := h.room(time.Now())
		if n == 0 {
			var fire <-chan time.Time
			if delay > 0 {
				timer.Reset(delay)
				fire = timer.C
			}
			select {
			case <-ctx.Done():
				return nil
			case <-h.changed:
			case <-fire:
			}
			if h.isDraining() {
				return nil
			}
			continue
		}
		// 2. Ask; at first without waiting where the server was away, for the answer shows that it is back.
		began := time.Now()
		patience := h.patience()
		answer, err := h.client.Lease(ctx, h.request(n, patience))
		// 3. Take what came.
		if err != nil {
			answer = &api.LeaseResponse{}
		}
		h.leased(n, answer.Leases, answer.Drain, fromPoll)
		if ctx.Err() != nil || h.isDraining() {
			return nil
		}
		if h.heard(err) {
			h.kickBeat()
		}
		quick := patience > 0 && len(answer.Leases) == 0 && time.Since(began) < quickAnswer
		if err := h.pace(quick, err); err != nil {
			return err
		}
	}
}

// patience is how long the server is to hold the next request for runs.
func (h *Host) patience() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.away {
		return 0
	}
	return pollWait
}

// room returns how many runs to ask for and reserves their slots, or how long to wait: negative for "until something
// changes".
func (h *Host) room(now time.Time) (n int, delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	free := h.o.Slots - int(h.executing.Load()) - h.unsent - h.reserved
	if h.draining || free <= 0 || h.asking > 0 {
		return 0, -1
	}
	if wait := h.retry.until.Sub(now); wait > 0 {
		return 0, wait
	}
	if wait := h.leasedAt.Add(lingerPoll).Sub(now); wait > 0 {
		return 0, wait
	}
	h.reserved += free
	return free, 0
}

// ask returns the request for runs that a batch of reports of this size carries, or nil when there is no room.
func (h *Host) ask(size int) *api.LeaseRequest {
	if size > maxAsking || h.o.Source != nil {
		return nil
	}
	h.mu.Lock()
	free := h.o.Slots - int(h.executing.Load()) - h.reserved
	if h.draining || free <= 0 {
		h.mu.Unlock()
		return nil
	}
	h.reserved += free
	h.asking++
	h.mu.Unlock()
	r := h.request(free, 0)
	return &r
}

func (h *Host) request(n int, wait time.Duration) api.LeaseRequest {
	return api.LeaseRequest{
		Worker: h.o.Worker, Target: h.o.Target, Agents: h.o.Agents, Slots: h.o.Slots, Max: n, Wait: api.Duration(wait),
	}
}

// leased starts the attempts that an answer brought and gives back the slots that it left free.
func (h *Host) leased(asked int, leases []api.Lease, drain bool, source leaseSource) {
	// 1. Book.
	attempts := make([]*Attempt, 0, len(leases))
	var surplus []*Attempt
	h.mu.Lock()
	h.reserved -= asked
	if source == fromBatch {
		h.asking--
	}
	h.leasedAt = time.Time{}
	for i := range leases {
		a := &Attempt{Lease: leases[i], box: h.box}
		if h.attempts[a.Attempt] != nil || h.past.has(a.Attempt) {
			continue // a server that was started anew does not know what it, or this answer, told before
		}
		h.attempts[a.Attempt] = a
		if h.draining || len(attempts) >= asked {
			h.unsent++
			a.ended = true
			surplus = append(surplus, a)
			continue
		}
		h.begin(a)
		attempts = append(attempts, a)
	}
	if len(attempts) > 0 {
		h.leasedAt = time.Now()
	}
	h.checkQuiet()
	h.executing.Add(int32(len(attempts)))
	if drain && !h.drained {
		h.drained = true
		close(h.drain)
	}
	h.mu.Unlock()
	// 2. Run.
	for _, a := range attempts {
		h.box.start(a)
		go h.execute(a)
	}
	for _, a := range surplus {
		h.report(a, Result{Release: "worker has no free slot"})
	}
	h.kick()
}

// begin readies an attempt to be executed. The caller holds mu.
func (h *Host) begin(a *Attempt) {
	a.open(context.Background())
	if every := a.HeartbeatEvery.Std(); every > 0 && every < h.beatEvery {
		h.beatEvery = max(every, fastestBeat)
		h.kickBeat()
	}
}

// execute runs one attempt to its end.
func (h *Host) execute(a *Attempt) {
	defer a.close()
	result := h.call(a)
	cause := context.Cause(a.ctx)
	// 1. The slot is free.
	h.mu.Lock()
	h.executing.Add(-1)
	over := a.ended // handed back over the handler's head
	if !over {
		a.ended = true
		h.unsent++
	}
	if h.empty != nil && h.executing.Load() == 0 {
		close(h.empty)
		h.empty = nil
	}
	h.mu.Unlock()
	// 2. The result is on its way. A handler that was cut short by the end of the process has not failed.
	if over {
		h.kick()
		return
	}
	if result.Err != nil && errors.Is(cause, ErrDraining) {
		result = Result{Release: endingReason, Usage: result.Usage}
	}
	h.report(a, result)
}

const endingReason = "worker is ending"

// call keeps a panic of the handler from ending the process.
func (h *Host) call(a *Attempt) (result Result) {
	defer func() {
		if p := recover(); p != nil {
			result = panicked(a, p, debug.Stack())
		}
	}()
	return h.o.Handle(a.ctx, a)
}

func (h *Host) report(a *Attempt, result Result) {
	if len(result.Output) > api.MaxPayload {
		result = Result{Usage: result.Usage, Err: tooLarge("output", len(result.Output), api.MaxPayload)}
	}
	a.result = result
	if h.box.finish(a, result.report()) != nil {
		h.settled(a) // fenced: nobody listens
	}
}

// settled: the server knows of the attempt's end, or nobody wants to. It is called with box.mu held, too: it must not
// call the outbox.
func (h *Host) settled(a *Attempt) {
	h.mu.Lock()
	if h.attempts[a.Attempt] == a && a.ended {
		delete(h.attempts, a.Attempt)
		h.past.add(a.Attempt)
		h.unsent--
		if a.settled != nil {
			close(a.settled)
		}
		h.checkQuiet()
	}
	h.mu.Unlock()
	h.kick()
}

// expects reports whether handlers have just begun that may be at their end any moment.
func (h *Host) expects() bool {
	if h.executing.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.leasedAt) < lingerPoll
}

func (h *Host) isDraining() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

// whenEmpty returns a channel that is closed once no handler executes.
func (h *Host) whenEmpty() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.executing.Load() == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if h.empty == nil {
		h.empty = make(chan struct{})
	}
	return h.empty
}

// isQuiet reports whether every end is delivered and no batch under way can bring an attempt. The caller holds mu.
func (h *Host) isQuiet() bool { return h.unsent == 0 && h.asking == 0 }

// checkQuiet tells who waits for it. The caller holds mu.
func (h *Host) checkQuiet() {
	if h.quiet != nil && h.isQuiet() {
		close(h.quiet)
		h.quiet = nil
	}
}

// whenQuiet returns a channel that is closed once isQuiet.
func (h *Host) whenQuiet() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.quiet == nil {
		h.quiet = make(chan struct{})
	}
	quiet := h.quiet
	h.checkQuiet()
	return quiet
}

// recent remembers the newest of what was added, up to a bound.
type recent struct {
	known map[string]struct{}
	ring  []string
	next  int
}

const maxRecent = 2048

func (r *recent) has(id string) bool {
	_, found := r.known[id]
	return found
}

func (r *recent) add(id string) {
	if r.known == nil {
		r.known = make(map[string]struct{})
	}
	if len(r.ring) < maxRecent {
		r.ring = append(r.ring, id)
	} else {
		delete(r.known, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % maxRecent
	}
	r.known[id] = struct{}{}
}

func (h *Host) cancelAll() {
	for _, a := range h.running() {
		a.stop(ErrDraining)
	}
}

func (h *Host) releaseAll() {
	for _, a := range h.running() {
		h.mu.Lock()
		already := a.ended
		if !already {
			a.ended = true
			h.unsent++
		}
		h.mu.Unlock()
		if !already {
			h.report(a, Result{Release: endingReason})
		}
	}
}

// running returns the attempts whose handler has not returned.
func (h *Host) running() []*Attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*Attempt
	for _, a := range h.attempts {
		if !a.ended {
			list = append(list, a)
		}
	}
	return list
}
