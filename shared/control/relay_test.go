package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/bus"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/memory"
)

// post is a bus that keeps what is published until the test delivers it, or loses it.
type post struct {
	bus.Bus
	sent []bus.Message
	away error
}

func (b *post) Publish(_ context.Context, topic bus.Topic, messages []bus.Message) []error {
	errs := make([]error, len(messages))
	for i := range messages {
		if errs[i] = b.away; b.away == nil && topic == bus.Control {
			b.sent = append(b.sent, messages[i])
		}
	}
	return errs
}

// district is a house whose store two more processes share. They do not lead, and tell the one that does.
type district struct {
	*house
	x    *executor
	b, c *Plane
	post post
}

func newDistrict(t *testing.T, objects ...fleet.Object) *district {
	t.Helper()
	d := &district{x: &executor{stopped: make(map[string]time.Duration), ended: make(map[string]bool)}}
	d.house = &house{t: t, store: shared{memory.Open()}, now: began, runtimes: map[fleet.Runtime]runtime.Runtime{fleet.RuntimeCloudRun: d.x}}
	d.change = func(c *Config) { c.Name, c.Bus = "a", &d.post }
	d.open()
	d.b, d.c = d.beside("b"), d.beside("c")
	if _, err := d.p.Apply(t.Context(), objects, ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	d.pass(leadRenew) // the others read of the fleet in the lease
	d.others()
	return d
}

func (d *district) beside(name string) *Plane {
	d.t.Helper()
	cfg := d.p.cfg
	cfg.Name = name
	p, err := New(cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := p.Prepare(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
	return p
}

// others lets the processes that do not lead do what they have to, without what they tell being delivered.
func (d *district) others() {
	for _, p := range []*Plane{d.b, d.c} {
		for p.Step(d.t.Context(), p.now()) {
		}
	}
}

// deliver hands over what was told, twice: a bus may do that.
func (d *district) deliver() {
	d.t.Helper()
	d.others()
	for range 2 {
		for _, m := range d.post.sent {
			if err := d.p.Take(d.t.Context(), m.Data); err != nil {
				d.t.Fatal(err)
			}
		}
	}
	d.post.sent = nil
	d.settle()
}

// passing lets time go by in steps within which a lease is renewed.
func (d *district) passing(length time.Duration) {
	for ; length > 0; length -= time.Second {
		d.pass(time.Second)
	}
}

func cloudTarget(name string, shape fleet.Shape) *fleet.Target {
	collection := map[fleet.Shape]string{fleet.Service: "services", fleet.Pool: "workerPools", fleet.Job: "jobs", fleet.Instance: "instances"}[shape]
	return &fleet.Target{
		Meta: fleet.Meta{Name: name}, Runtime: fleet.RuntimeCloudRun, Shapes: []fleet.Shape{shape}, Capacity: fleet.Capacity{Runs: 2},
		Resource: "projects/p/locations/r/" + collection + "/" + name,
	}
}

func shaped(s fleet.Shape) func(*fleet.Agent) { return func(a *fleet.Agent) { a.Shape = s } }

func submitAt(t *testing.T, p *Plane, s Submission) *run.Record {
	t.Helper()
	out := p.Submit(t.Context(), []Submission{s})[0]
	if out.Err != nil {
		t.Fatal(out.Err)
	}
	return out.Run
}

// last is the newest assignment that the runtime was given.
func (d *district) last() runtime.Assignment {
	d.t.Helper()
	d.x.mu.Lock()
	defer d.x.mu.Unlock()
	if len(d.x.started) == 0 {
		d.t.Fatal("nothing was started")
	}
	return d.x.started[len(d.x.started)-1]
}

func TestARunThatAnyProcessAcceptedIsPlaced(t *testing.T) {
	for name, find := range map[string]func(d *district){
		"as soon as the leader hears of it": func(d *district) { d.deliver() },
		"by the next tick, when the message is lost": func(d *district) {
			d.others()
			d.post.sent = nil
			d.p.Tick(d.t.Context())
			d.settle()
		},
		"by a tick at a process that does not lead": func(d *district) {
			d.others()
			d.post.sent = nil
			d.c.Tick(d.t.Context())
			d.deliver()
		},
		"after an outage of the bus": func(d *district) {
			d.post.away = errors.New("no broker")
			d.others()
			d.post.away = nil
			d.pass(tellAgain)
			d.deliver()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
			r := submitAt(t, d.b, Submission{Agent: "echo"})
			if len(d.x.started) != 0 {
				t.Fatal("placed by a process that does not lead")
			}
			find(d)
			if a := d.last(); a.Run != r.ID || a.Ticket == "" || a.Token != "" || len(a.Input) != 0 {
				t.Fatalf("started %+v, want a hand-over of %s with a ticket and nothing else", a, r.ID)
			}
		})
	}
}

// over lets process b take over from one that died.
func (d *district) over() {
	d.t.Helper()
	d.post.sent = nil
	d.p = d.b
	d.passing(leadPeriod + 2*time.Second)
	if !d.p.leads() {
		d.t.Fatal("nobody took over")
	}
}

func TestWhoTakesOverTellsAgainOfWhatNobodyClaimed(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	r := d.submit(Submission{Agent: "echo"})
	a := d.last()
	d.x.started = nil
	d.over()
	if again := d.last(); again.ID() != a.ID() {
		t.Fatalf("started %+v, want %s again", again, a.ID())
	}
	if _, err := d.p.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket}); err != nil {
		t.Fatalf("the ticket of the last leader: %v", err)
	}
	wantState(t, d.get(r.ID), run.Running, "")
}

func TestARequestWhoseLeaderDied(t *testing.T) {
	serve := func(t *testing.T) (*district, *run.Record) {
		d := newDistrict(t, agentNamed("echo", shaped(fleet.Service)), cloudTarget("svc", fleet.Service))
		r := d.submit(Submission{Agent: "echo"})
		if a := d.last(); a.Token == "" || a.Ticket != "" {
			t.Fatalf("started %+v, want the whole attempt", a)
		}
		d.report(runtime.Report{Type: runtime.Started, Run: r.ID, N: 1})
		d.over()
		return d, r
	}
	t.Run("goes on while its handler says that it lives, and ends by itself", func(t *testing.T) {
		d, r := serve(t)
		for range 5 {
			d.report(runtime.Report{Type: runtime.Beat, Run: r.ID, N: 1})
			d.pass(5 * time.Second)
		}
		wantState(t, d.get(r.ID), run.Running, "")
		if res := d.report(runtime.Report{Type: runtime.Completed, Run: r.ID, N: 1, Output: json.RawMessage(`1`)}); res.Err != nil {
			t.Fatal(res.Err)
		}
		wantState(t, d.get(r.ID), run.Succeeded, "")
	})
	t.Run("is lost when its handler is silent for a worker's lease", func(t *testing.T) {
		d, r := serve(t)
		d.passing(d.p.cfg.WorkerLease + 10*time.Second)
		if got := d.get(r.ID); got.Attempt != 2 || got.Attempts[0].Class != run.ClassLost {
			t.Fatalf("run is %s in attempt %d: %+v", got.State, got.Attempt, got.Attempts)
		}
	})
}

func TestWhatIsDeclaredAtOneProcessIsKnownByAll(t *testing.T) {
	d := newDistrict(t, cloudTarget("pool", fleet.Pool))
	if _, err := d.b.Apply(t.Context(), fleetOf(agentNamed("late")), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	submitAt(t, d.c, Submission{Agent: "late"}) // it looks once more before it says that there is none
	d.deliver()
	if a := d.last(); a.Agent.Name() != "late" {
		t.Fatalf("started %+v", a)
	}
	if _, err := d.b.Apply(t.Context(), fleetOf(agentNamed("late", func(a *fleet.Agent) { a.Version = "2" })), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	d.deliver()
	d.pass(leadRenew)
	d.pass(time.Second)
	d.others()
	for name, p := range map[string]*Plane{"a": d.p, "c": d.c} {
		if got, err := p.DeclaredOne(t.Context(), fleet.KindAgent, "late"); err != nil || got.Revision != 2 {
			t.Errorf("process %s has revision %d, %v", name, got.Revision, err)
		}
	}
}

func TestWhoFollowsARunSeesWhatOtherProcessesWrite(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"))
	r := d.submit(Submission{Agent: "echo"})
	changed, done := d.c.Follow(r.ID)
	defer done()
	all, end := d.c.Watch(t.Context(), 100)
	defer end()
	d.pass(gazeEvery)
	d.others()
	<-changed // it looks for the first time
	<-all
	if _, err := d.p.Suspend(t.Context(), r.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	d.pass(gazeEvery)
	d.others()
	select {
	case <-changed:
	default:
		t.Error("nothing was signaled")
	}
	if c := <-all; c.Run != nil {
		t.Errorf("change %+v, want word that others may have changed any", c)
	}
	d.pass(gazeEvery)
	d.others()
	select {
	case <-changed:
		t.Error("signaled without a change")
	default:
	}
}

func TestLogsComeByAnyProcessWithinTheirBound(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	r := d.submit(Submission{Agent: "echo"})
	a := d.last()
	if _, err := d.b.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket}); err != nil {
		t.Fatal(err)
	}
	line := runtime.LogLine{Stream: "agent", Text: strings.Repeat("x", runtime.MaxLogLine)}
	for range runtime.MaxLogBytes/runtime.MaxLogLine + 10 {
		if res := d.b.Report(t.Context(), []runtime.Report{{Type: runtime.Logged, Run: r.ID, N: 1, Logs: []runtime.LogLine{line}}})[0]; res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	lines, _, err := d.c.Logs(t.Context(), r.ID, "", 1000)
	if err != nil || len(lines) > runtime.MaxLogBytes/runtime.MaxLogLine+1 || !strings.Contains(lines[len(lines)-1].Text, "log cut here") {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	if res := d.b.Report(t.Context(), []runtime.Report{{Type: runtime.Logged, Run: r.ID, N: 9, Logs: []runtime.LogLine{line}}})[0]; !errors.Is(res.Err, run.ErrFenced) {
		t.Errorf("of a stale attempt: %v", res.Err)
	}
}

func TestWhatCannotBeToldIsBounded(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"))
	d.post.away = errors.New("no broker")
	for i := range maxTold + 2 {
		d.b.tellRun(fmt.Sprint("run", i))
	}
	d.b.relay.mu.Lock()
	defer d.b.relay.mu.Unlock()
	if n := len(d.b.relay.runs); n > 2 || !d.b.relay.tick {
		t.Errorf("%d runs are kept to be told, and a tick: %t", n, d.b.relay.tick)
	}
}

func TestANoticeThatIsNoneIsDroppedAndOneForAnotherIsGivenBack(t *testing.T) {
	d := newDistrict(t)
	if err := d.p.Take(t.Context(), []byte(`{"runs":`)); err != nil {
		t.Errorf("%v: it would come again without end", err)
	}
	if err := d.b.Take(t.Context(), []byte(`{"tick":true}`)); err == nil {
		t.Error("a process that does not lead took it")
	}
}

func TestWhoWaitsAtTheLeaderHearsOfAnEndThatCameByAnotherProcess(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	r := d.submit(Submission{Agent: "echo"})
	a := d.last()
	changed, done := d.p.Follow(r.ID)
	defer done()
	all, end := d.p.Watch(t.Context(), 100)
	defer end()
	if _, err := d.b.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket}); err != nil {
		t.Fatal(err)
	}
	d.b.Report(t.Context(), []runtime.Report{{Type: runtime.Completed, Run: r.ID, N: 1, Worker: "w1", Output: json.RawMessage(`1`)}})
	d.deliver()
	select {
	case <-changed:
	default:
		t.Error("nothing was signaled")
	}
	if c := <-all; c.Run == nil || c.Run.State != run.Succeeded || len(c.Events) != 0 {
		t.Errorf("change %+v, want the run as it is, without events that another process wrote", c)
	}
	if got := d.p.Stats(time.Minute, "", "").Total; got.Succeeded != 1 {
		t.Errorf("%d successes are counted, want 1 however often it was told", got.Succeeded)
	}
}

func TestEveryProcessHoldsSubmissionsAgainstTheQuota(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool), &fleet.Tenant{Meta: fleet.Meta{Name: "acme"}, Quota: fleet.Quota{Queued: 3}})
	for range 2 + 3 { // two of them run
		d.submit(Submission{Agent: "echo", Tenant: "acme"})
	}
	d.passing(leadRenew + time.Second)
	d.others()
	var refusal *Refusal
	out := d.b.Submit(t.Context(), []Submission{{Agent: "echo", Tenant: "acme"}})[0]
	if !errors.As(out.Err, &refusal) || refusal.Code != CodeOverloaded {
		t.Errorf("the next one, at another process: %v", out.Err)
	}
	submitAt(t, d.b, Submission{Agent: "echo", Tenant: "other"})
}

func TestWhatLivesIsNotDeletedByAProcessThatCannotKnow(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	d.submit(Submission{Agent: "echo"})
	var refusal *Refusal
	if err := d.b.Delete(t.Context(), fleet.KindTarget, "pool", 0, "ann"); !errors.As(err, &refusal) || refusal.Code != CodeUnavailable {
		t.Errorf("at another process: %v", err)
	}
	if err := d.p.Delete(t.Context(), fleet.KindTarget, "pool", 0, "ann"); !errors.As(err, &refusal) || refusal.Code != CodeConflict {
		t.Errorf("at the leader: %v", err)
	}
}

func TestTheLeaderMeetsAnAttemptOfWhichItHasNotHeardYet(t *testing.T) {
	for name, hear := range map[string]func(d *district, a *runtime.Assignment) error{
		"by an effect": func(d *district, a *runtime.Assignment) error {
			answer, err := d.p.BeginEffect(d.t.Context(), EffectBegin{Run: a.Run, N: a.N, Effect: "buy", RequestHash: "h", Nonce: "n"})
			if want := []string{"proceed", "wait"}[a.N-1]; err == nil && answer.Answer != want { // the first may still act
				err = errors.New(answer.Answer)
			}
			return err
		},
		"by a beat": func(d *district, a *runtime.Assignment) error {
			return d.p.Report(d.t.Context(), []runtime.Report{{Type: runtime.Beat, Run: a.Run, N: a.N}})[0].Err
		},
		"by its log": func(d *district, a *runtime.Assignment) error {
			return d.p.Report(d.t.Context(), []runtime.Report{{Type: runtime.Logged, Run: a.Run, N: a.N, Logs: []runtime.LogLine{{Text: "hello"}}}})[0].Err
		},
		"by its usage": func(d *district, a *runtime.Assignment) error {
			return d.p.Report(d.t.Context(), []runtime.Report{{Type: runtime.Used, Run: a.Run, N: a.N, Usage: &run.Usage{InputTokens: 3}}})[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDistrict(t, agentNamed("echo", shaped(fleet.Job)), cloudTarget("job", fleet.Job))
			for restarts := range 2 { // also of a later attempt than it knows
				begun, err := d.b.Begin(t.Context(), Beginning{
					Worker: "exec-1-0", Execution: "exec-1", Restarts: restarts, Submission: Submission{Agent: "echo", Input: json.RawMessage(`{}`)},
				})
				if err != nil || begun.Assignment == nil {
					t.Fatalf("%+v, %v", begun, err)
				}
				if err := hear(d, begun.Assignment); err != nil {
					t.Fatalf("attempt %s: %v", begun.Assignment.ID(), err)
				}
			}
			d.deliver()
		})
	}
}

func TestWhatIsUnderWayAlreadyKeepsNothingBehindItWaiting(t *testing.T) { // case F12
	const due, known = 150, 100
	target := cloudTarget("pool", fleet.Pool)
	target.Capacity.Runs = 2 * due
	d := newDistrict(t, agentNamed("echo"), target)
	submissions := func(n int) []Submission {
		out := make([]Submission, n)
		for i := range out {
			out[i] = Submission{Agent: "echo", Key: fmt.Sprint("item-", i)}
		}
		return out
	}
	// 1. The oldest are handed over; the others are accepted together with them, by keys, at another process.
	for _, s := range submissions(known) {
		d.submit(s)
	}
	existed := 0
	for i, out := range d.b.Submit(t.Context(), submissions(due)) {
		if out.Err != nil || out.Existed != (i < known) {
			t.Fatalf("item %d: existed %t, %v", i, out.Existed, out.Err)
		}
		if out.Existed {
			existed++
		}
	}
	// 2. Who takes over meets all of them at once.
	d.x.started = nil
	d.over()
	handed := make(map[string]string)
	d.x.mu.Lock()
	for _, a := range d.x.started {
		if other := handed[a.Run]; other != "" && other != a.ID() {
			t.Errorf("run %s is handed over as %s and as %s", a.Run, other, a.ID())
		}
		handed[a.Run] = a.ID()
	}
	d.x.mu.Unlock()
	if existed != known || len(handed) != due {
		t.Fatalf("%d keys existed and %d runs are handed over, want %d and %d", existed, len(handed), known, due)
	}
	// 3. One that is done is run again on purpose: under a name of its own.
	first := d.last()
	if _, err := d.p.Claim(t.Context(), Claim{Attempt: first.ID(), Worker: "w1", Ticket: first.Ticket}); err != nil {
		t.Fatal(err)
	}
	if res := d.report(runtime.Report{Type: runtime.Completed, Run: first.Run, N: first.N, Worker: "w1", Output: json.RawMessage(`1`)}); res.Err != nil {
		t.Fatal(res.Err)
	}
	again := await(d.house, func() *run.Record {
		r, err := d.p.Retry(t.Context(), first.Run, nil, "ann")
		if err != nil {
			t.Error(err)
		}
		return r
	})
	if a := d.last(); again == nil || a.Run != again.ID || a.Run == first.Run || a.Ticket == first.Ticket {
		t.Errorf("started %+v, want a new run", a)
	}
}

// unhurried is a store of which each look at what is due takes a while.
type unhurried struct {
	store.Store
	looked func()
}

func (s unhurried) Due(ctx context.Context, part store.Part, until, afterWake int64, afterID string, limit int) ([]store.Doc, error) {
	if part != store.PartEnded { // which is looked for beside
		s.looked()
	}
	return s.Store.Due(ctx, part, until, afterWake, afterID, limit)
}

func TestWhoTakesOverAStoreThatIsSlowKeepsTheLead(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	r := d.submit(Submission{Agent: "echo"})
	cfg := d.p.cfg
	cfg.Name, cfg.Go = "slow", func(f func()) { f() }
	cfg.Store = unhurried{d.store, func() {
		d.mu.Lock()
		d.now = d.now.Add(500 * time.Millisecond) // 16 s for all shards
		d.mu.Unlock()
	}}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 * int(leadPeriod/time.Second) { // the others are silent
		d.mu.Lock()
		d.now = d.now.Add(time.Second)
		d.mu.Unlock()
		if p.Step(t.Context(), p.now()); p.indexed {
			break
		}
	}
	if !p.leads() || !p.indexed {
		t.Fatalf("it leads: %t, over an index: %t", p.leads(), p.indexed)
	}
	if p.led.Epoch() != d.p.led.Epoch()+1 {
		t.Errorf("it took the lead in epoch %d after %d: not once", p.led.Epoch(), d.p.led.Epoch())
	}
	if _, live := p.ix.runs[r.ID]; !live {
		t.Error("it does not know what lives")
	}
}

func TestWhatWasDeclaredAMomentAgoAtAnotherProcessIsFound(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	trigger := func(name, path string) *fleet.Trigger {
		tr := &fleet.Trigger{Meta: fleet.Meta{Name: name}, Run: fleet.TriggerRun{Agent: "echo"}}
		tr.HTTP = &fleet.HTTPSource{Path: path, SecretRef: "env:SECRET"}
		return tr
	}
	if _, err := d.b.Apply(t.Context(), fleetOf(trigger("orders", "orders")), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if h, err := d.c.HookAt(t.Context(), "orders"); err != nil || h.Trigger != "orders" {
		t.Errorf("its path: %+v, %v", h, err)
	}
	if _, err := d.p.DeclaredOne(t.Context(), fleet.KindTrigger, "orders"); err != nil {
		t.Errorf("its name, at the leader: %v", err)
	}
	// Somebody else applies at another process what was applied here a moment ago, changed.
	for i, p := range []*Plane{d.c, d.b, d.c} {
		if _, err := p.Apply(t.Context(), fleetOf(agentNamed("echo", func(a *fleet.Agent) { a.Version = fmt.Sprint(i) })), ApplyOptions{}); err != nil {
			t.Errorf("apply %d: %v", i, err)
		}
	}
	if err := d.p.Delete(t.Context(), fleet.KindTrigger, "orders", 0, "ann"); err != nil {
		t.Errorf("delete: %v", err)
	}
}
