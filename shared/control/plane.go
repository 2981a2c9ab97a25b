// Package control is the control plane: the stages through which a run goes, and the doors that submit, report and ask.
//
// Stages never call each other. Each takes what is due, asks a pure package, and writes one batch; they meet in the
// store. In flow order: intake, admission, queue, place (filter and score), bind, deliver, observe, retry, record.
//
// Two kinds of writers exist. Doors write facts about one run (a report, a cancel, a signal) by compare-and-set on that
// run alone, see record.go. The leader, of which there is one by the dispatcher lease, decides: it owns the queue, the
// World and the timers, all of them an index in memory that can be rebuilt from the store at any time.
//
// Time and randomness come in through Config. Nothing here polls: the loop sleeps until something is due or arrives.
package control

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Config is all that a Plane needs from outside. Store is required; every other field has a default.
type Config struct {
	Store store.Store
	Clock func() time.Time
	// Monotonic is the time since some fixed instant, unmoved when the clock is set: leases are judged by it.
	Monotonic func() time.Duration
	Random    func() uint64
	Logger    *slog.Logger
	// Go runs a delivery beside the loop; a goroutine by default. Whoever drives the stages by hand may run it at once.
	Go func(func())
	// Runtimes start attempts, by the runtime that a target names. Polled targets need none.
	Runtimes map[fleet.Runtime]runtime.Runtime
	// Name is this process in the dispatcher lease and in history.
	Name string
	// Bus carries facts to the process that decides, where several share the store; nil where there is one.
	Bus bus.Bus
	// Advertise is the URL under which other control processes reach this one; "" where they cannot.
	Advertise string
	// SigningKeys returns the keys of attempt tokens and tickets, of 32 random bytes or more each: the first signs, all
	// verify. It is asked at the start and, when they are used, once a minute at most; while it fails, the keys of before
	// stay. Nil: one key is made and kept in the store.
	SigningKeys func() ([][]byte, error)

	WorkerLease time.Duration // silence after which a worker is lost; 15 s
	BeatEvery   time.Duration // how often a worker sends its heartbeat; a third of WorkerLease
	Grace       time.Duration // between telling an attempt to stop and killing it; 10 s
	Ageing      time.Duration // waiting that outweighs one point of priority; 30 s
	Flush       time.Duration // how often an unschedulable run is looked at although nothing changed; 5 min
	// ConfirmAfter is how long a handed-over attempt may run before its start is written by itself. A shorter one is
	// written together with its end. 100 ms.
	ConfirmAfter time.Duration
	MaxQueue     int // runs kept in the queue's memory; the rest stay in the store; 1,000,000
	MaxCache     int // records kept in memory; 50,000
	MaxTimers    int // wake-ups kept in memory of runs that are not; 100,000

	// RetainMax is the longest that a finished run is kept, whatever its agent says; 0 for no bound.
	RetainMax time.Duration
	// KeyWindow is how long a finished run that was submitted under a key is kept at least, so that a repeat of the
	// submission meets it; 24 h.
	KeyWindow time.Duration
}

// Timings that are not policy.
const (
	horizon       = 10 * time.Minute // timers due later stay in the store
	startByPoll   = 30 * time.Second // an assigned attempt that nobody fetched
	startByLocal  = 15 * time.Minute // a local start may have to build first
	startByCloud  = 5 * time.Minute  // an instance may have to be brought up first; a hand-over may have been lost
	maxPass       = 2000             // runs placed in one pass
	maxArrivals   = 20_000           // submissions waiting for their commit
	conflictTries = 20
)

func (c *Config) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Monotonic == nil {
		start := time.Now()
		c.Monotonic = func() time.Duration { return time.Since(start) }
	}
	if c.Go == nil {
		c.Go = func(f func()) { go f() }
	}
	if c.Random == nil {
		c.Random = randomUint64
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Name == "" {
		c.Name = "control"
	}
	def(&c.WorkerLease, 15*time.Second)
	def(&c.BeatEvery, c.WorkerLease/3)
	def(&c.Grace, 10*time.Second)
	def(&c.Ageing, 30*time.Second)
	def(&c.Flush, 5*time.Minute)
	def(&c.ConfirmAfter, 100*time.Millisecond)
	def(&c.KeyWindow, keyWindow)
	if c.MaxQueue <= 0 {
		c.MaxQueue = 1_000_000
	}
	if c.MaxCache <= 0 {
		c.MaxCache = 50_000
	}
	if c.MaxTimers <= 0 {
		c.MaxTimers = 100_000
	}
}

// randomUint64 is the default source of jitter and ids.
func randomUint64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return binary.LittleEndian.Uint64(b[:])
}

// Plane is a control plane over one store. Safe for concurrent use.
type Plane struct {
	cfg   Config
	store store.Store
	log   *slog.Logger
	signs *signer

	declared *declarations // what is declared, see fleet.go
	records  *cache        // newest known records
	busy     *keyed        // one writer of a run at a time in this process
	watch    *watchers
	stats    *statistics

	sharesDirty   bool // guarded by mu, as is sharesAt
	sharesAt      run.Instant
	sharesVersion int64 // the loop's own
	indexed       bool  // the loop's own: ix holds what this process decides over

	// Of a process that shares its store; the loop's own.
	deaf      func()           // ends the listening to what others tell; nil when it does not
	gazeAt    time.Duration    // when to look again at runs that are followed here, on the monotonic clock
	seen      map[string]int64 // their versions by then
	fleetSeen uint64           // the leader's fleet that this process has

	mu  sync.Mutex // guards ix
	ix  *index     // the leader's memory
	led *lead
	// lookedForHook is when a path that no known trigger has may be looked for again, on the monotonic clock; guarded by mu.
	lookedForHook time.Duration
	gone          goneCursor // of shared state
	// vouched is until when a worker's heartbeats need no look at the store, on the monotonic clock; guarded by mu.
	vouched map[string]time.Duration
	// logs counts, in a process that does not lead, what attempts logged by it; guarded by mu.
	logs map[string]*logged
	// relay keeps what the process that leads is to be told.
	relay relay
	// open is the target of workers that name none.
	open *fleet.Target

	arrive arrivals
	poke   chan struct{} // wakes the loop; capacity 1

	prepared atomic.Bool
	quiet    atomic.Bool // nothing more is placed
	stop     context.CancelFunc
	stopped  chan struct{}
	starts   sync.WaitGroup // deliveries under way
	startCh  chan struct{}  // bounds them
}

// New makes a control plane. It reads and decides nothing before Start.
func New(cfg Config) (*Plane, error) {
	if cfg.Store == nil {
		return nil, errors.New("control plane: no store given")
	}
	cfg.setDefaults()
	p := &Plane{
		cfg: cfg, store: cfg.Store, log: cfg.Logger,
		declared: newDeclarations(),
		records:  newCache(cfg.MaxCache),
		busy:     newKeyed(),
		watch:    newWatchers(),
		stats:    newStatistics(),
		ix:       newIndex(cfg),
		poke:     make(chan struct{}, 1),
		stopped:  make(chan struct{}),
		startCh:  make(chan struct{}, 16),
	}
	p.led = newLead(p.store, cfg.Name)
	p.led.url, p.led.tell = cfg.Advertise, p.tellInLease
	p.open = &fleet.Target{Meta: fleet.Meta{Name: openTarget}, Runtime: fleet.RuntimePoll, Shapes: fleet.Shapes()}
	p.open.SetDefaults()
	return p, nil
}

// Start prepares the plane and runs the loop until Close.
func (p *Plane) Start(ctx context.Context) error {
	if err := p.Prepare(ctx); err != nil {
		return err
	}
	loopCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = cancel
	go p.loop(loopCtx)
	return nil
}

// Prepare reads what is declared, takes the lead if it is free and rebuilds the index. Whoever wants to drive the
// stages by hand calls it instead of Start, and then Step.
func (p *Plane) Prepare(ctx context.Context) error {
	// 1. What every process needs: keys and declarations.
	signs, err := loadSigner(ctx, p.store, p.cfg.SigningKeys, p.cfg.Clock, p.log)
	if err != nil {
		return fmt.Errorf("start control plane: %w", err)
	}
	p.signs = signs
	if err := p.loadDeclarations(ctx); err != nil {
		return fmt.Errorf("start control plane: %w", err)
	}
	// 2. The lead and, with it, the index.
	mono := p.cfg.Monotonic()
	if err := p.led.Step(ctx, mono); err != nil {
		return fmt.Errorf("start control plane: take the dispatcher lease: %w", err)
	}
	if p.led.Leads(mono) {
		if err := p.takeOver(ctx, p.now()); err != nil {
			return fmt.Errorf("start control plane: rebuild the index: %w", err)
		}
	}
	p.prepared.Store(true)
	return nil
}

// Quiesce ends placement: what is queued stays queued. It is called before runtimes are closed, so that attempts which
// they hand back are not started again in a process that is about to end.
func (p *Plane) Quiesce() { p.quiet.Store(true) }

// Close stops deciding, waits for deliveries under way and gives up the lead. Runtimes and store are the caller's to
// close: runtimes before the Plane, so that attempts handed back are recorded, and the store after it.
func (p *Plane) Close(ctx context.Context) error {
	if p.stop == nil {
		return nil
	}
	p.stop()
	select {
	case <-p.stopped:
	case <-ctx.Done():
		return fmt.Errorf("stop the control loop: %w", ctx.Err())
	}
	p.starts.Wait()
	p.watch.close()
	return p.led.Resign(ctx)
}

// Ready reports why this process cannot serve now; nil when it can.
func (p *Plane) Ready() error {
	if !p.prepared.Load() {
		return errors.New("control plane has not started")
	}
	if p.Stopped() {
		return errors.New("control plane has stopped")
	}
	return nil
}

// Stopped reports whether the plane was closed: nothing changes here any more.
func (p *Plane) Stopped() bool {
	select {
	case <-p.stopped:
		return true
	default:
		return false
	}
}

// Health tells whether this process leads, and in which epoch.
func (p *Plane) Health() (leader bool, epoch int64) {
	return p.leads(), p.led.Epoch()
}

// Elsewhere is the URL of the process that leads, where that is another one and can be reached; "" otherwise.
func (p *Plane) Elsewhere() string {
	if p.store.Exclusive() || p.leads() {
		return ""
	}
	l := p.led.Leader()
	if l.Holder == p.cfg.Name || l.Given {
		return ""
	}
	return l.URL
}

// leads reports whether this process decides.
func (p *Plane) leads() bool { return p.led.Leads(p.cfg.Monotonic()) }

// mono is the monotonic clock as a key of timers.
func (p *Plane) mono() run.Instant { return run.Instant(p.cfg.Monotonic().Milliseconds()) + 1 }

func (p *Plane) now() run.Instant { return run.At(p.cfg.Clock()) }

// wake makes the loop look at what is due.
func (p *Plane) wake() {
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID is an opaque id of 20 characters: 100 random bits.
func (p *Plane) newID() string {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], p.cfg.Random())
	binary.LittleEndian.PutUint64(b[8:], p.cfg.Random())
	return idEncoding.EncodeToString(b[:])[:20]
}

// runID is the id of a new run. In the store of a single process the ids of a moment begin alike, so that the runs of
// the moment share the pages of its indexes: it halves what a commit writes. A store that many processes share lies
// spread over machines by key, where that would make one of them hot: there the ids are random.
func (p *Plane) runID(now run.Instant) string {
	if !p.store.Exclusive() {
		return p.newID()
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(now)<<16)
	binary.LittleEndian.PutUint64(b[6:14], p.cfg.Random())
	return idEncoding.EncodeToString(b[:])[:20]
}

// validName reports whether s can name a step, effect, signal, session or worker.
func validName(s string) bool {
	return s != "" && len(s) <= runtime.MaxName && strings.ToValidUTF8(s, "") == s && !strings.ContainsAny(s, "\x00\n\r")
}

var _ runtime.Reporter = (*Plane)(nil)
