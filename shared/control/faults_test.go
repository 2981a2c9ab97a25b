package control

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// doubtful is a store whose next commits apply, or not, and are answered with an error; reads fail as often as asked.
type doubtful struct {
	store.Store
	applied, failed int
	reads           int

	mu   sync.Mutex // what is due is read shard by shard, several at a time
	dues int
}

var errLine = errors.New("line is down")

func (s *doubtful) Commit(ctx context.Context, units []store.Unit) []error {
	errs := make([]error, len(units))
	for i := range errs {
		errs[i] = errLine
	}
	switch {
	case s.applied > 0:
		s.applied--
		s.Store.Commit(ctx, units)
	case s.failed > 0:
		s.failed--
	default:
		return s.Store.Commit(ctx, units)
	}
	return errs
}

func (s *doubtful) GetMany(ctx context.Context, kind store.Kind, ids []string) ([]store.Doc, error) {
	if s.reads > 0 {
		s.reads--
		return nil, errLine
	}
	return s.Store.GetMany(ctx, kind, ids)
}

// doubt puts a doubtful store between the house's plane and its store.
func doubt(h *house) *doubtful {
	s := &doubtful{Store: h.p.store}
	h.p.store = s
	return s
}

func TestARunWhoseCommitWasAnsweredWithAnErrorIsRunAnyway(t *testing.T) {
	for name, reads := range map[string]int{"at once": 0, "after reads fail, too": 2} {
		t.Run(name, func(t *testing.T) {
			h, x := localHouse(t, 2, agentNamed("echo", withCommand))
			s := doubt(h)
			s.applied, s.reads = 1, reads
			out := await(h, func() Submitted { return h.p.Submit(t.Context(), []Submission{{Agent: "echo", Key: "k"}})[0] })
			if !errors.Is(out.Err, errLine) {
				t.Fatalf("the client was told %+v", out)
			}
			for range reads {
				h.settle()
			}
			again := h.submit(Submission{Agent: "echo", Key: "k"})
			if got := h.get(again.ID); got.State != run.Assigned || len(x.started) != 1 {
				t.Fatalf("run is %s, %d starts", got.State, len(x.started))
			}
		})
	}
}

func TestAnEndWhoseCommitWasAnsweredWithAnErrorFreesTheSlot(t *testing.T) {
	h, _ := localHouse(t, 1, agentNamed("echo", withCommand))
	first, second := h.submit(Submission{Agent: "echo"}), h.submit(Submission{Agent: "echo"})
	doubt(h).applied = 1
	if res := h.report(runtime.Report{Type: runtime.Completed, Run: first.ID, N: 1}); !errors.Is(res.Err, errLine) {
		t.Fatalf("the executor was told %v", res.Err)
	}
	wantState(t, h.get(first.ID), run.Succeeded, "")
	wantState(t, h.get(second.ID), run.Assigned, "")
}

func TestAKeySubmittedTwiceInOnePassIsOneRunThatRuns(t *testing.T) {
	h, x := localHouse(t, 2, agentNamed("echo", withCommand), agentNamed("other", withCommand))
	out := await(h, func() []Submitted {
		return h.p.Submit(t.Context(), []Submission{{Agent: "echo", Key: "k"}, {Agent: "other", Key: "k"}})
	})
	if out[0].Err != nil || out[1].Err == nil {
		t.Fatalf("answers: %+v", out)
	}
	if got := h.get(out[0].Run.ID); got.Agent != "echo" || got.State != run.Assigned || len(x.started) != 1 {
		t.Fatalf("run of %s is %s, %d starts", got.Agent, got.State, len(x.started))
	}
}

func TestAKeyOfARunThatWaitsForItsTimeTakesNoSlotWhenItComesAgainInThatPass(t *testing.T) {
	h, x := localHouse(t, 1, agentNamed("chat", withCommand, func(a *fleet.Agent) { a.Shape = fleet.Instance }))
	first := Submission{Agent: "chat", Key: "k", Session: "s", NotBefore: h.now.Add(time.Minute)}
	out := await(h, func() []Submitted {
		return h.p.Submit(t.Context(), []Submission{first, {Agent: "chat", Key: "k", Session: "s"}})
	})
	if out[0].Err != nil || out[1].Err == nil {
		t.Fatalf("answers: %+v", out)
	}
	h.pass(time.Minute)
	if got := h.get(out[0].Run.ID); got.State != run.Assigned || len(x.started) != 1 {
		t.Fatalf("run is %s, %d starts", got.State, len(x.started))
	}
}

func TestAnAttemptThatWasFetchedBeforeARestartIsNotTakenForOneThatNeverWas(t *testing.T) {
	h := newHouse(t, agentNamed("mails", func(a *fleet.Agent) { a.Effects.Settle = fleet.Duration(time.Second) }))
	h.lease("w1", 1, "mails")
	r := h.submit(Submission{Agent: "mails"})
	h.lease("w1", 1, "mails")
	h.open() // before its start was written
	mail := EffectBegin{Run: r.ID, N: 1, Effect: "mail", RequestHash: "h", Nonce: "n1", Timeout: time.Minute}
	if ans, err := h.p.BeginEffect(t.Context(), mail); err != nil || ans.Answer != string(run.BeginProceed) {
		t.Fatalf("the first attempt is told %q, %v", ans.Answer, err)
	}
	h.pass(16 * time.Second) // its worker hangs
	h.lease("w2", 1, "mails")
	h.pass(5 * time.Second)
	h.lease("w2", 1, "mails")
	mail.N, mail.Nonce = 2, "n2"
	if ans, err := h.p.BeginEffect(t.Context(), mail); err != nil || ans.Answer != string(run.BeginWait) {
		t.Fatalf("the second attempt is told %q, %v, and the first may act for half a minute more", ans.Answer, err)
	}
}

func TestDeclarationsGoOnAfterAnApplyWithAnUnknownOutcome(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	s := doubt(h)
	s.applied = 1
	changed := func(n int) *fleet.Agent { return agentNamed("echo", func(a *fleet.Agent) { a.Retry.MaxAttempts = n }) }
	if _, err := h.p.Apply(t.Context(), fleetOf(changed(2)), ApplyOptions{}); !errors.Is(err, errLine) {
		t.Fatalf("apply: %v", err)
	}
	if _, err := h.p.Apply(t.Context(), fleetOf(changed(3)), ApplyOptions{}); err != nil {
		t.Fatalf("apply again: %v", err)
	}
	if got, err := h.p.DeclaredOne(t.Context(), fleet.KindAgent, "echo"); err != nil || got.Revision != 3 {
		t.Fatalf("declared in revision %d, %v", got.Revision, err)
	}
}

func TestAFailedTakeoverIsTriedAgain(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	r := h.submit(Submission{Agent: "echo"})
	p, err := New(Config{
		Store: &shareable{doubtful: doubtful{Store: h.store}}, Name: "second",
		Clock: h.p.cfg.Clock, Monotonic: h.p.cfg.Monotonic, Random: h.p.cfg.Random,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.store.(*shareable).lists = 1
	for i := 0; !p.leads(); i++ {
		if i > 30 {
			t.Fatal("nobody took over")
		}
		h.mu.Lock()
		h.now = h.now.Add(time.Second)
		h.mu.Unlock()
		p.Step(t.Context(), p.now())
	}
	p.Step(t.Context(), p.now())
	if n := p.ix.tenants.of("default"); n.total() != 1 {
		t.Fatalf("run %s is not known to the new leader", r.ID)
	}
}

// shareable is a store that several processes have open, whose next readings of what is held fail.
type shareable struct {
	doubtful
	lists int // of held runs
}

func (s *shareable) Exclusive() bool { return false }

func (s *shareable) Held(ctx context.Context, each func(store.Doc) error) error {
	if s.lists > 0 {
		s.lists--
		return errLine
	}
	return s.Store.Held(ctx, each)
}

func TestWakeUpsBeyondTheHorizonComeInTime(t *testing.T) {
	h, _ := localHouse(t, 1, agentNamed("echo", withCommand, func(a *fleet.Agent) {
		a.Timeouts.Attempt, a.Timeouts.Queue = fleet.Duration(time.Hour), fleet.Duration(2*time.Hour)
	}))
	first, second := h.submit(Submission{Agent: "echo"}), h.submit(Submission{Agent: "echo"})
	if err := h.p.PauseAgent(t.Context(), "echo", true, "ann"); err != nil {
		t.Fatal(err)
	}
	h.report(runtime.Report{Type: runtime.Started, Run: first.ID, N: 1})
	for range 13 {
		h.pass(5 * time.Minute)
	}
	if got := h.get(first.ID); got.Stop == nil && got.State == run.Running {
		t.Fatalf("the attempt runs on after %s", h.now.Sub(began))
	}
	for range 12 {
		h.pass(5 * time.Minute)
	}
	wantState(t, h.get(second.ID), run.Failed, run.QueueTimeout)
}

func TestNoSlotIsGivenTwiceWhileAPlacementIsInDoubt(t *testing.T) {
	h, x := localHouse(t, 1, agentNamed("echo", withCommand))
	s := doubt(h)
	s.applied, s.reads = 1, 1
	for range 2 {
		h.p.Enter(t.Context(), []Submission{{Agent: "echo"}}, func() {})
		h.settle()
	}
	if len(x.started) > 1 {
		t.Fatalf("%d starts on one slot", len(x.started))
	}
	h.settle()
	if len(x.started) != 1 {
		t.Fatalf("%d starts when all is known, want 1", len(x.started))
	}
}

func TestWorkersOfADeletedTargetGetNoRuns(t *testing.T) {
	pool := func() *fleet.Target { return &fleet.Target{Meta: fleet.Meta{Name: "pool"}, Runtime: fleet.RuntimePoll} }
	h := newHouse(t, agentNamed("echo"), pool())
	lease := func() int {
		resp, err := h.p.Lease(t.Context(), LeaseRequest{Worker: "w1", Target: "pool", Agents: []string{"echo"}, Max: 5, Slots: 5})
		if err != nil {
			t.Fatal(err)
		}
		h.settle()
		return len(resp.Leases)
	}
	lease()
	if err := h.p.Delete(t.Context(), fleet.KindTarget, "pool", 0, "ann"); err != nil {
		t.Fatal(err)
	}
	r := h.submit(Submission{Agent: "echo"})
	wantState(t, h.get(r.ID), run.Unschedulable, run.NoEligibleTarget)
	if _, err := h.p.Apply(t.Context(), fleetOf(pool()), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	if n := lease(); n != 1 {
		t.Fatalf("%d leases when the target is back, want 1", n)
	}
}

func TestWhatAnotherProcessWroteIsNotAnsweredFromMemory(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	plane := func(name string) *Plane {
		p, err := New(Config{Store: &shareable{doubtful: doubtful{Store: h.store}}, Name: name, Clock: h.p.cfg.Clock, Monotonic: h.p.cfg.Monotonic})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := plane("a"), plane("b")
	r := h.submit(Submission{Agent: "echo"})
	if _, err := a.Suspend(t.Context(), r.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Resume(t.Context(), r.ID, "bob"); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Suspend(t.Context(), r.ID, "ann"); err != nil || got.Seq != 5 {
		t.Fatalf("suspending again gave event %d, %v, want the fifth", got.Seq, err)
	}
}

// second is another process over the house's store. It does not lead.
func (h *house) second() *Plane {
	h.t.Helper()
	p, err := New(Config{Store: &shareable{doubtful: doubtful{Store: h.store}}, Name: "second", Clock: h.p.cfg.Clock, Monotonic: h.p.cfg.Monotonic})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := p.Prepare(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	return p
}

func TestAnAttemptIsHeardByAProcessThatDoesNotLead(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	p := h.second()
	r := h.submit(Submission{Agent: "echo"})
	h.lease("w1", 5, "echo")
	if ans, err := p.BeginEffect(t.Context(), EffectBegin{Run: r.ID, N: 1, Effect: "mail", RequestHash: "h", Nonce: "n"}); err != nil || ans.Answer != "proceed" {
		t.Fatalf("begin: %+v, %v", ans, err)
	}
	for i, name := range []string{"z", "a"} {
		res := p.Report(t.Context(), []runtime.Report{{Type: runtime.StepDone, Run: r.ID, N: 1, Step: &runtime.Step{Name: name}}})[0]
		if steps, err := p.stepsOf(t.Context(), r.ID); res.Err != nil || err != nil || len(steps) != i+1 || steps[i].Name != name {
			t.Fatalf("step %s: %v; recorded are %+v, %v", name, res.Err, steps, err)
		}
	}
}

func TestACancelEndsAlsoWhenTheDeadlinePassesMeanwhile(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	r := h.submit(Submission{Agent: "echo", Deadline: h.now.Add(time.Minute)})
	h.lease("w1", 5, "echo")
	beat := func() {
		h.pass(5 * time.Second)
		if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "w1", Agents: []string{"echo"}, Slots: 10, Attempts: []string{r.ID + ".1"}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		beat()
	}
	if _, err := h.p.Cancel(t.Context(), r.ID, CancelRequest{}); err != nil {
		t.Fatal(err)
	}
	for range 7 {
		beat()
	}
	wantState(t, h.get(r.ID), run.Canceled, run.CanceledByRequest)
}

func TestAnUnschedulableRunEndsAtItsDeadlineAndNotAtTheNextLook(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	r := h.submit(Submission{Agent: "echo", Deadline: h.now.Add(7 * time.Minute)})
	h.pass(5 * time.Minute)
	wantState(t, h.get(r.ID), run.Unschedulable, run.NoEligibleTarget)
	h.pass(2*time.Minute + time.Second)
	wantState(t, h.get(r.ID), run.Failed, run.DeadlineExceeded)
}

func TestAProcessThatDoesNotLeadTurnsWorkersAway(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	p := h.second()
	var refusal *Refusal
	if _, err := p.Lease(t.Context(), LeaseRequest{Worker: "w", Agents: []string{"echo"}, Max: 1}); !errors.As(err, &refusal) || refusal.Code != CodeUnavailable {
		t.Errorf("lease: %v", err)
	}
	if _, err := p.Beat(t.Context(), WorkerBeat{Worker: "w", Agents: []string{"echo"}, Slots: 1}); !errors.As(err, &refusal) || refusal.Code != CodeUnavailable {
		t.Errorf("beat: %v", err)
	}
	if _, err := p.Begin(t.Context(), Beginning{Worker: "w", Submission: Submission{Agent: "echo"}}); !errors.As(err, &refusal) || refusal.Code != CodeUnavailable {
		t.Errorf("begin: %v", err)
	}
}

func TestWakeUpsThatCouldNotBeReadAreReadLater(t *testing.T) {
	h := newHouse(t, agentNamed("echo"))
	r := h.submit(Submission{Agent: "echo", Deadline: h.now.Add(10*time.Minute + 5*time.Second)})
	if _, err := h.p.Suspend(t.Context(), r.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	h.settle()
	s := doubt(h)
	s.failDues(2)
	h.pass(10*time.Minute + 6*time.Second)
	s.failDues(0)
	h.pass(2 * time.Second)
	wantState(t, h.get(r.ID), run.Failed, run.DeadlineExceeded)
}

func (s *doubtful) failDues(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dues = n
}

func (s *doubtful) Due(ctx context.Context, part store.Part, until, afterWake int64, afterID string, limit int) ([]store.Doc, error) {
	s.mu.Lock()
	fails := s.dues > 0
	if fails {
		s.dues--
	}
	s.mu.Unlock()
	if fails {
		return nil, errLine
	}
	return s.Store.Due(ctx, part, until, afterWake, afterID, limit)
}

func TestAKeyThatIsUsedAgainAfterRemovalIsNotTakenForTheOldRun(t *testing.T) {
	h := newHouse(t, agentNamed("echo", func(a *fleet.Agent) { a.Retain = fleet.Duration(time.Second) }))
	p := h.second()
	old := h.submit(Submission{Agent: "echo", Key: "k", Input: json.RawMessage(`1`)})
	if _, err := p.Score(t.Context(), old.ID, 1, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := h.p.Cancel(t.Context(), old.ID, CancelRequest{}); err != nil {
		t.Fatal(err)
	}
	h.pass(2 * keyWindow)
	h.submit(Submission{Agent: "echo", Key: "k", Input: json.RawMessage(`2`)})
	if _, err := h.p.Signal(t.Context(), old.ID, "go", "", nil, "ann"); err != nil { // its third event, too
		t.Fatal(err)
	}
	got, err := p.Signal(t.Context(), old.ID, "go", "", nil, "ann")
	if err != nil || string(got.Input.Inline) != `2` || len(got.Signals) != 2 {
		t.Fatalf("the new run is %+v, %v", got, err)
	}
}
