package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store/memory"
)

// Config of a simulation. The zero value is what a seed is normally run with.
type Config struct {
	Steps int       // choices of a generated script; 300
	Log   io.Writer // tells what happens, line by line; nil for silence
}

// Result of a simulation.
type Result struct {
	Script  Script
	Trace   uint64 // hash of everything that was written, asked and answered
	Failure *Failure
	Runs    int
	Writes  int
	Seen    map[string]int // how often what happened
}

// Failure is a promise that was broken.
type Failure struct {
	Rule   string // which, in short: shrinking keeps to failures of the same rule
	Detail string
	At     int // index of the choice; the script's length for the end
	Stack  string
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %s (at choice %d)", f.Rule, f.Detail, f.At) }

// Bounds of a world: small enough that a reader can follow it, large enough to be in each other's way.
const (
	maxRuns    = 30
	maxWorkers = 4
)

// Timings that processes are configured with or promise.
const (
	workerLease = 15 * time.Second
	grace       = 10 * time.Second
	leadPeriod  = 10 * time.Second // after which a silent leader may be replaced
	settle      = 10 * time.Second // of effects
	maxSkew     = 2 * time.Second  // of a clock in worlds with effects: well below settle
	wildSkew    = 4 * time.Minute  // of a clock elsewhere: a process reads ten minutes ahead when it takes over
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// key signs tokens in every world.
func key() ([][]byte, error) { return [][]byte{make([]byte, 32)}, nil }

// world is everything there is.
type world struct {
	ctx      context.Context
	cfg      Config
	temper   temper
	seed     rng    // of the processes' own randomness
	programs uint64 // makes the agents' programs differ from world to world
	at       int    // index of the choice under way

	passed  time.Duration // true time since began
	disk    *memory.Store
	procs   []*process
	workers []*worker
	serial  int    // of workers
	subject string // the run that people acted on last
	mail    []letter
	seen    map[string]int
	ledger  *ledger
	outside *outside
	fleet   declared
	trace   uint64
	healing bool
}

// process is a control process: a plane, its clock and its executors. A crash loses all of it.
type process struct {
	w        *world
	name     string
	plane    *control.Plane
	store    *faulty
	exec     *executor
	random   rng
	offset   time.Duration // of its clock from the true time
	bootAt   time.Duration
	upAt     time.Duration // when it was through with its start
	calmAt   time.Duration // when it was first through with all it had to do since its store met a fault
	calmMets int
	boots    int
	down     bool
	hung     bool               // in the middle of something
	heard    map[string]hearing // by worker
	waiting  []*submission

	lastWord map[string]time.Duration // of workers, about their attempts
	poke     <-chan struct{}
	sleepsTo time.Duration
	set      bool // its clock was set while it sleeps: it wakes when it would have
	hangs    int  // how often it hung
}

// Run generates the script of a seed and runs it.
func Run(seed uint64, cfg Config) Result {
	if cfg.Steps <= 0 {
		cfg.Steps = 300
	}
	return Replay(Generate(seed, cfg.Steps), cfg)
}

// Replay runs a script.
func Replay(s Script, cfg Config) (res Result) {
	w := &world{
		ctx: context.Background(), cfg: cfg, temper: temperOf(s), seed: rng(s.Seed ^ 0x9a1e),
		disk: memory.Open(), trace: fnvOffset, seen: make(map[string]int),
	}
	w.programs = s.Seed << 8
	w.ledger, w.outside = newLedger(w), newOutside(w)
	res.Script = s
	defer func() {
		res.Trace, res.Runs, res.Writes, res.Seen = w.trace, len(w.ledger.order), w.ledger.writes, w.seen
		switch r := recover().(type) {
		case nil:
		case *Failure:
			r.At = w.at
			res.Failure = r
		default:
			res.Failure = &Failure{Rule: "no panic", Detail: fmt.Sprint(r), At: w.at, Stack: string(debug.Stack())}
		}
	}()
	// 1. A world with its fleet.
	w.build()
	// 2. The script.
	for i, c := range s.Choices {
		w.at = i
		r := rng(c.Roll)
		w.say("%d %s", i, c)
		w.mix(uint64(c.Op), c.Roll)
		ops[c.Op].do(w, &r)
		w.deliverMail()
	}
	// 3. Faults stop.
	w.at = len(s.Choices)
	w.heal()
	return res
}

// fail breaks the simulation off: a promise is broken.
func (w *world) fail(rule, format string, args ...any) {
	f := &Failure{Rule: rule, Detail: fmt.Sprintf(format, args...)}
	w.say("BROKEN %s: %s", f.Rule, f.Detail)
	panic(f)
}

// saw counts what happened, so that a reader sees that nothing is asserted of what never comes.
func (w *world) saw(what string) { w.seen[what]++ }

func (w *world) say(format string, args ...any) {
	if w.cfg.Log != nil {
		fmt.Fprintf(w.cfg.Log, "%8.3fs  %s\n", w.passed.Seconds(), fmt.Sprintf(format, args...))
	}
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// mix adds to the trace.
func (w *world) mix(values ...uint64) {
	for _, v := range values {
		w.trace = (w.trace ^ v) * fnvPrime
	}
}

func (w *world) mixText(s string) {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s) // cannot fail
	w.mix(h.Sum64())
}

// now is the true time.
func (w *world) now() run.Instant { return run.At(began.Add(w.passed)) }

// build makes the processes and declares the fleet.
func (w *world) build() {
	names := []string{"a"}
	if w.temper.two {
		names = []string{"a", "b"}
	}
	for i, name := range names {
		p := &process{w: w, name: name}
		w.procs = append(w.procs, p)
		p.boot()
		if i == 0 {
			w.declareFleet() // the other reads it when it starts
		}
	}
	for range 2 {
		w.join(pollTargets[w.serial%len(pollTargets)])
	}
}

// boot starts the process over what is on disk. It may fail, for reads can.
func (p *process) boot() {
	w := p.w
	p.boots++
	p.down = false
	p.random = rng(w.seed.next())
	p.bootAt, p.calmMets = w.passed, -1
	meets := p.store // what is to befall it also befalls it at its start
	if p.store = (&faulty{Store: w.disk, p: p}); meets != nil {
		p.store.fault, p.store.times, p.store.skips, p.store.reads, p.store.out, p.store.roll = meets.fault, meets.times, meets.skips, meets.reads, meets.out, meets.roll
	}
	p.exec = &executor{p: p}
	p.heard, p.lastWord = make(map[string]hearing), make(map[string]time.Duration)
	p.waiting = nil
	if p.boots > 1 {
		w.ledger.restarted()
	}
	logger := slog.New(slog.DiscardHandler)
	if w.cfg.Log != nil {
		logger = slog.New(slog.NewTextHandler(w.cfg.Log, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	}
	plane, err := control.New(control.Config{
		Logger: logger,
		Store:  p.store, Name: p.name, SigningKeys: key, WorkerLease: workerLease, Grace: grace,
		Clock:     func() time.Time { return began.Add(w.passed + p.offset) },
		Monotonic: func() time.Duration { return w.passed - p.bootAt },
		Random:    p.random.next,
		Go:        func(f func()) { f() },
		KeyWindow: 30 * time.Second,
		Runtimes:  map[fleet.Runtime]runtime.Runtime{fleet.RuntimeLocal: p.exec},
	})
	if err != nil {
		w.fail("processes start", "%v", err)
	}
	p.plane = plane
	p.poke, p.sleepsTo = nil, w.passed
	w.say("process %s boots", p.name)
	w.on(p, func() {
		if err := plane.Prepare(w.ctx); err != nil {
			w.say("process %s cannot start: %v", p.name, err)
			w.saw("process that could not start")
			p.die()
		}
		p.upAt = w.passed
	})
}

// withoutTime keeps the real time out of the story.
func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// crash is what a fault panics with to leave a process's code at once.
type crash struct{ p *process }

// on runs f against a process and reports whether the process was there to the end.
func (w *world) on(p *process, f func()) (done bool) {
	if p.down || p.hung {
		return false
	}
	defer func() {
		if r := recover(); r != nil {
			if c, ok := r.(crash); !ok || c.p != p {
				panic(r)
			}
			p.die()
			done = false
		}
	}()
	f()
	return true
}

// die loses all that the process held: memory, open calls and the executors inside it.
func (p *process) die() {
	p.w.say("process %s dies", p.name)
	p.w.saw("process died")
	p.down, p.hung = true, false
	delete(p.w.ledger.asking, p)
	for _, a := range p.exec.list {
		a.dead = true
	}
	p.exec.list = nil
	p.waiting = nil
}

func (p *process) now() run.Instant { return run.At(began.Add(p.w.passed + p.offset)) }

// leads reports whether the process believes that it decides.
func (p *process) leads() bool {
	if p.down || p.hung {
		return false
	}
	leads, _ := p.plane.Health()
	return leads
}

// settle makes the passes that the product's loop would make now: none while it sleeps. Then it checks what there is,
// unless a fault has just left it in doubt.
func (p *process) settle() {
	w := p.w
	w.on(p, func() {
		for i := 0; p.woken(); i++ {
			more := true
			for n := i; more; n++ {
				if more = p.plane.Step(w.ctx, p.now()); n > maxPasses {
					w.fail("passes come to an end", "process %s asks for one more pass after %d", p.name, n)
				}
			}
			p.sleep()
		}
		mets := p.store.mets
		if p.store.met > 0 && w.passed-p.store.met < 2*time.Second {
			p.plane.Step(w.ctx, p.now()) // it would look again in a moment
			p.plane.Step(w.ctx, p.now())
			p.sleep()
		}
		if p.store.mets != mets {
			return
		}
		if p.calmMets != mets {
			p.calmAt, p.calmMets = w.passed, mets
		}
		w.ledger.settled(p)
	})
}

// maxPasses is how often in a row the loop may find something to do at one instant.
const maxPasses = 100

// sleep is what the loop does between two passes.
func (p *process) sleep() {
	var rest time.Duration
	p.poke, rest = p.plane.Wait()
	p.sleepsTo, p.set = p.w.passed+rest, false
}

// woken reports whether the loop makes a pass now.
func (p *process) woken() bool {
	select {
	case <-p.poke:
		return true
	default:
		return p.w.passed >= p.sleepsTo
	}
}

// door is a process to talk to: mostly the one that leads.
func (w *world) door(r *rng) *process {
	first := r.n(len(w.procs))
	if len(w.procs) > 1 && r.n(4) > 0 {
		for _, p := range w.procs {
			if p.leads() {
				return p
			}
		}
	}
	return w.procs[first]
}

// letter is a message under way.
type letter struct {
	at   time.Duration
	what string
	send func()
}

// deliverMail delivers the messages whose time has come, in the order in which they were sent.
func (w *world) deliverMail() {
	for i := 0; i < len(w.mail); i++ {
		if l := w.mail[i]; l.at <= w.passed {
			w.mail = append(w.mail[:i:i], w.mail[i+1:]...)
			w.say("late: %s", l.what)
			l.send()
			i--
		}
	}
}

// fate is what happens to a message and its answer.
type fate uint8

const (
	arrives fate = iota
	lost         // the request
	unheard      // the answer is lost
	twice
	late
)

func (w *world) fate(r *rng) fate {
	if w.healing {
		return arrives
	}
	switch r.n(20) {
	case 0:
		return lost
	case 1:
		return unheard
	case 2:
		return twice
	case 3:
		return late
	}
	return arrives
}

// post sends a message. send delivers it and tells whether its answer is heard.
func (w *world) post(r *rng, what string, send func(heard bool)) {
	f, delay := w.fate(r), time.Duration(r.n(8000))*time.Millisecond
	if f != arrives {
		w.saw("message " + [...]string{lost: "lost", unheard: "whose answer was lost", twice: "delivered twice", late: "delivered late"}[f])
	}
	switch f {
	case lost:
		w.say("lost: %s", what)
	case unheard:
		w.say("its answer will be lost: %s", what)
		send(false)
	case twice:
		w.say("twice: %s", what)
		send(true)
		send(false)
	case late:
		w.mail = append(w.mail, letter{w.passed + delay, what, func() { send(false) }})
	default:
		send(true)
	}
}
