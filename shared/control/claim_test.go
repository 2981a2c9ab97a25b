package control

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store/memory"
)

func TestAClaim(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	r := d.submit(Submission{Agent: "echo", Input: json.RawMessage(`{"x":1}`)})
	a := d.last()
	claim := func(p *Plane, worker, attempt, ticket string) (runtime.Assignment, error) {
		return p.Claim(t.Context(), Claim{Attempt: attempt, Worker: worker, Ticket: ticket})
	}
	t.Run("with a ticket that is none is refused", func(t *testing.T) {
		var refusal *Refusal
		if _, err := claim(d.b, "w1", a.ID(), strings.Repeat("A", len(a.Ticket))); !errors.As(err, &refusal) || refusal.Code != CodeForbidden {
			t.Errorf("%v", err)
		}
	})
	t.Run("by whom it is not for is refused", func(t *testing.T) {
		var refusal *Refusal
		_, err := d.b.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket, May: func(string) bool { return false }})
		if !errors.As(err, &refusal) || refusal.Code != CodeForbidden {
			t.Errorf("%v", err)
		}
	})
	t.Run("gives the attempt once, at any process", func(t *testing.T) {
		got, err := claim(d.b, "w1", a.ID(), a.Ticket)
		if err != nil || string(got.Input) != `{"x":1}` || got.Token == "" || got.ID() != a.ID() {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := claim(d.c, "w2", a.ID(), a.Ticket); !errors.Is(err, run.ErrFenced) {
			t.Errorf("another worker: %v", err)
		}
		if again, err := claim(d.c, "w1", a.ID(), a.Ticket); err != nil || again.ID() != a.ID() {
			t.Errorf("the same worker again: %v", err)
		}
		d.deliver()
		wantState(t, d.get(r.ID), run.Running, "")
	})
	t.Run("is known by the worker's heartbeat at any process", func(t *testing.T) {
		beat := WorkerBeat{Worker: "w1", Target: "pool", Agents: []string{"echo"}, Slots: 1, Attempts: []string{a.ID(), r.ID + ".7", "gone.1"}}
		for name, p := range map[string]*Plane{"the leader": d.p, "another": d.b} {
			if s, err := p.Beat(t.Context(), beat); err != nil || len(s.Attempts) != 1 || s.Attempts[0].ID != a.ID() || s.Attempts[0].Cancel {
				t.Errorf("%s: %+v, %v", name, s, err)
			}
		}
	})
	t.Run("holds as long as heartbeats come, by whichever process", func(t *testing.T) {
		for range 6 {
			d.passing(10 * time.Second)
			if _, err := d.c.Beat(t.Context(), WorkerBeat{Worker: "w1", Target: "pool", Agents: []string{"echo"}, Slots: 1, Attempts: []string{a.ID()}}); err != nil {
				t.Fatal(err)
			}
			d.deliver()
		}
		wantState(t, d.get(r.ID), run.Running, "")
	})
	t.Run("hears of a cancel at any process", func(t *testing.T) {
		if _, err := d.b.Cancel(t.Context(), r.ID, CancelRequest{}); err != nil {
			t.Fatal(err)
		}
		d.deliver()
		d.passing(leadRenew + 2*time.Second) // the leader tells it in its lease
		d.others()
		s, err := d.c.Beat(t.Context(), WorkerBeat{Worker: "w1", Target: "pool", Agents: []string{"echo"}, Slots: 1, Attempts: []string{a.ID()}})
		if err != nil || len(s.Attempts) != 1 || !s.Attempts[0].Cancel {
			t.Fatalf("heartbeat: %+v, %v", s, err)
		}
		res := d.c.Report(t.Context(), []runtime.Report{{Type: runtime.Beat, Run: r.ID, N: 1}})[0]
		if res.Err != nil || !res.Cancel || res.Deadline == 0 {
			t.Fatalf("report: %+v", res)
		}
		d.deliver()
		if _, told := d.x.stopped[a.ID()]; !told {
			t.Error("the leader's runtime was not told to stop it")
		}
	})
	t.Run("of an attempt that is over is fenced", func(t *testing.T) {
		d.b.Report(t.Context(), []runtime.Report{{Type: runtime.Failed, Run: r.ID, N: 1, Worker: "w1", Class: run.ClassCanceled}})
		d.deliver()
		wantState(t, d.get(r.ID), run.Canceled, run.CanceledByRequest)
		if _, err := claim(d.p, "w1", a.ID(), a.Ticket); !errors.Is(err, run.ErrFenced) {
			t.Errorf("%v", err)
		}
	})
}

func TestAClaimAtAProcessThatHasNotHeardOfTheTargetYet(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	if _, err := d.p.Apply(t.Context(), []fleet.Object{agentNamed("late", shaped(fleet.Job)), cloudTarget("other", fleet.Job)}, ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	d.submit(Submission{Agent: "late"})
	a := d.last()
	got, err := d.b.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket})
	if err != nil || got.ID() != a.ID() {
		t.Fatalf("claim: %+v, %v; want the attempt, whose target was declared at another process", got, err)
	}
}

func TestAnAttemptWhoseClaimantFallsSilentIsLost(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	r := d.submit(Submission{Agent: "echo"})
	a := d.last()
	if _, err := d.b.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket}); err != nil {
		t.Fatal(err)
	}
	d.deliver()
	d.passing(d.p.cfg.WorkerLease + 10*time.Second)
	if got := d.get(r.ID); got.Attempt != 2 || got.Attempts[0].Class != run.ClassLost {
		t.Fatalf("run is %s in attempt %d: %+v", got.State, got.Attempt, got.Attempts)
	}
	// What the first one still says changes nothing: case F07.
	res := d.b.Report(t.Context(), []runtime.Report{{Type: runtime.Completed, Run: r.ID, N: 1, Worker: "w1", Output: json.RawMessage(`1`)}})[0]
	if !errors.Is(res.Err, run.ErrFenced) {
		t.Fatalf("report of the lost attempt: %+v", res)
	}
}

func TestAHandOverThatNobodyTookComesAgain(t *testing.T) {
	for name, give := range map[string]func(d *district, a runtime.Assignment){
		"when the broker gave it up": func(d *district, a runtime.Assignment) {
			if err := d.b.Undelivered(t.Context(), a.ID(), a.Ticket, "5 deliveries failed"); err != nil {
				d.t.Fatal(err)
			}
			d.deliver()
			d.passing(3 * time.Second)
		},
		"when its time is over": func(d *district, _ runtime.Assignment) { d.passing(startByCloud + time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
			r := d.submit(Submission{Agent: "echo"})
			first := d.last()
			give(d, first)
			if next := d.last(); next.Run != r.ID || next.N != 2 || next.Ticket == first.Ticket {
				t.Fatalf("started %+v", next)
			}
			if got := d.get(r.ID); got.Spent != 0 {
				t.Errorf("%d attempts spent", got.Spent)
			}
			if _, err := d.b.Claim(t.Context(), Claim{Attempt: first.ID(), Worker: "w1", Ticket: first.Ticket}); !errors.Is(err, run.ErrFenced) {
				t.Errorf("the late copy claims: %v", err)
			}
		})
	}
}

func TestAHandOverThatNobodyHasClaimedIsToldAgain(t *testing.T) {
	handOvers := func(d *district) int {
		d.x.mu.Lock()
		defer d.x.mu.Unlock()
		return len(d.x.started)
	}
	t.Run("within seconds, as the same attempt, and some times at most", func(t *testing.T) {
		d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
		r := d.submit(Submission{Agent: "echo"})
		first := d.last()
		d.passing(2 * time.Second)
		if again := d.last(); handOvers(d) != 2 || again.ID() != first.ID() {
			t.Fatalf("%d hand-overs, the last one of %s; want a second one of %s", handOvers(d), again.ID(), first.ID())
		}
		d.passing(startByCloud - 10*time.Second)
		if n := handOvers(d); n != 1+len(remindAfter) {
			t.Errorf("%d hand-overs, want %d", n, 1+len(remindAfter))
		}
		if got := d.get(r.ID); got.Attempt != 1 {
			t.Errorf("attempt %d: a copy is no attempt", got.Attempt)
		}
		again := d.last()
		if _, err := d.b.Claim(t.Context(), Claim{Attempt: again.ID(), Worker: "w1", Ticket: again.Ticket}); err != nil {
			t.Errorf("claim by the last copy: %v", err)
		}
		if _, err := d.c.Claim(t.Context(), Claim{Attempt: first.ID(), Worker: "w2", Ticket: first.Ticket}); !errors.Is(err, run.ErrFenced) {
			t.Errorf("claim by the first copy, after that: %v", err)
		}
	})
	t.Run("and not once it is claimed", func(t *testing.T) {
		d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
		d.submit(Submission{Agent: "echo"})
		a := d.last()
		if _, err := d.b.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket}); err != nil {
			t.Fatal(err)
		}
		d.deliver()
		d.passing(8 * time.Second)
		if n := handOvers(d); n != 1 {
			t.Errorf("%d hand-overs, want 1", n)
		}
	})
	t.Run("nor when it is a task of a job, which the platform starts", func(t *testing.T) {
		d := newDistrict(t, agentNamed("echo", shaped(fleet.Job)), cloudTarget("job", fleet.Job))
		d.submit(Submission{Agent: "echo"})
		d.passing(20 * time.Second)
		if n := handOvers(d); n != 1 {
			t.Errorf("%d starts, want 1", n)
		}
	})
	t.Run("a copy that is refused ends nothing", func(t *testing.T) {
		d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
		r := d.submit(Submission{Agent: "echo"})
		a := d.last()
		d.x.refuse = runtime.ErrRefused
		d.passing(5 * time.Second)
		if got := d.get(r.ID); got.State != run.Assigned || got.Attempt != 1 {
			t.Fatalf("run is %s in attempt %d", got.State, got.Attempt)
		}
		if _, err := d.b.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket}); err != nil {
			t.Error(err)
		}
	})
}

func TestUndeliveredIsNothingToAnAttemptThatWasClaimed(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	r := d.submit(Submission{Agent: "echo"})
	a := d.last()
	if _, err := d.p.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket}); err != nil {
		t.Fatal(err)
	}
	if err := d.p.Undelivered(t.Context(), a.ID(), a.Ticket, "late"); err != nil {
		t.Fatal(err)
	}
	wantState(t, d.get(r.ID), run.Running, "")
	var refusal *Refusal
	if err := d.p.Undelivered(t.Context(), a.ID(), "forged", "x"); !errors.As(err, &refusal) || refusal.Code != CodeForbidden {
		t.Errorf("forged: %v", err)
	}
}

func TestATaskThatWasStartedByHand(t *testing.T) {
	d := newDistrict(t, agentNamed("echo", shaped(fleet.Job)), cloudTarget("job", fleet.Job))
	begin := func(p *Plane, restarts int) (Begun, error) {
		return p.Begin(t.Context(), Beginning{
			Worker: "exec-1-0", Execution: "exec-1", Restarts: restarts, Submission: Submission{Agent: "echo", Input: json.RawMessage(`{}`)},
		})
	}
	first, err := begin(d.b, 0)
	if err != nil || first.Assignment == nil || first.Assignment.Index == nil {
		t.Fatalf("%+v, %v", first, err)
	}
	d.deliver()
	id := first.Run.ID
	wantState(t, d.get(id), run.Running, "")
	if again, err := begin(d.c, 0); err != nil || again.Assignment.ID() != first.Assignment.ID() {
		t.Fatalf("a repeated call: %+v, %v", again, err)
	}
	second, err := begin(d.c, 1)
	if err != nil || second.Run.ID != id || second.Assignment.N != 2 {
		t.Fatalf("the platform's retry: %+v, %v", second, err)
	}
	d.deliver()
	res := d.b.Report(t.Context(), []runtime.Report{
		{Type: runtime.Completed, Run: id, N: 1, Worker: "exec-1-0"},
		{Type: runtime.Completed, Run: id, N: 2, Worker: "exec-1-0", Output: json.RawMessage(`7`)},
	})
	if !errors.Is(res[0].Err, run.ErrFenced) || res[1].Err != nil {
		t.Fatalf("reports: %+v", res)
	}
	d.deliver()
	if over, err := begin(d.b, 2); err != nil || over.Assignment != nil || over.Run.State != run.Succeeded {
		t.Fatalf("a retry of what has succeeded: %+v, %v", over, err)
	}
}

func TestAHandlerThatIsCalledTwiceUnderOneKeyBeginsOnce(t *testing.T) {
	d := newDistrict(t, agentNamed("echo", shaped(fleet.Service)), cloudTarget("svc", fleet.Service))
	begin := func(p *Plane, worker string) (Begun, error) {
		return p.Begin(t.Context(), Beginning{Worker: worker, Submission: Submission{Agent: "echo", Key: "order-1"}})
	}
	first, err := begin(d.b, "svc-1")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := begin(d.c, "svc-1"); err != nil || again.Assignment.ID() != first.Assignment.ID() {
		t.Errorf("the same process again, whose answer was lost: %+v, %v", again, err)
	}
	var refusal *Refusal
	if _, err := begin(d.c, "svc-2"); !errors.As(err, &refusal) || refusal.Code != CodeConflict || refusal.RetryAfter == 0 {
		t.Errorf("while it runs: %v", err)
	}
	d.c.Report(t.Context(), []runtime.Report{{Type: runtime.Completed, Run: first.Run.ID, N: 1, Worker: "svc-1", Output: json.RawMessage(`1`)}})
	if over, err := begin(d.p, "svc-2"); err != nil || over.Assignment != nil || over.Run.State != run.Succeeded {
		t.Errorf("afterwards: %+v, %v", over, err)
	}
}

func TestAWorkerThatBringsItsRunsIsNoPlaceForOthers(t *testing.T) {
	places := func(d *district) (n int) {
		for range 4 {
			if r := d.submit(Submission{Agent: "echo"}); d.get(r.ID).State != run.Queued {
				n++
			}
		}
		return n
	}
	begun := func(t *testing.T) (*district, *run.Record) {
		d := newDistrict(t, agentNamed("echo", shaped(fleet.Service)), cloudTarget("svc", fleet.Service)) // which has two slots
		b, err := d.p.Begin(t.Context(), Beginning{Worker: "svc-1", Submission: Submission{Agent: "echo", Key: "order-1"}})
		if err != nil {
			t.Fatal(err)
		}
		return d, b.Run
	}
	beat := func(d *district, slots int, attempts ...string) {
		d.t.Helper()
		s, err := d.p.Beat(d.t.Context(), WorkerBeat{Worker: "svc-1", Agents: []string{"echo"}, Slots: slots, Attempts: attempts})
		if err != nil || len(s.Attempts) != len(attempts) {
			d.t.Fatalf("heartbeat: %+v, %v", s, err)
		}
	}
	t.Run("once it has begun one", func(t *testing.T) {
		d, _ := begun(t)
		if n := places(d); n != 2 {
			t.Errorf("%d of 4 runs were placed, want the 2 that the target has room for", n)
		}
	})
	t.Run("and by its heartbeats", func(t *testing.T) {
		d, r := begun(t)
		beat(d, 0, r.ID+".1")
		if n := places(d); n != 2 {
			t.Errorf("%d of 4 runs were placed, want the 2 that the target has room for", n)
		}
	})
	t.Run("unless it also asks for runs", func(t *testing.T) {
		d, _ := begun(t)
		if _, err := d.p.Lease(t.Context(), LeaseRequest{Worker: "svc-1", Agents: []string{"echo"}, Max: 1, Slots: 2}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.p.Begin(t.Context(), Beginning{Worker: "svc-1", Submission: Submission{Agent: "echo", Key: "order-2"}}); err != nil {
			t.Fatal(err)
		}
		if w := d.p.ix.workers["svc-1"]; w.slots != 2 {
			t.Errorf("it has %d slots, want the 2 that it asked for", w.slots)
		}
	})
	t.Run("and what it has begun is lost when it falls silent", func(t *testing.T) {
		d, r := begun(t)
		beat(d, 0, r.ID+".1")
		d.passing(d.p.cfg.WorkerLease + 2*time.Second)
		if got := d.get(r.ID); got.Attempts[0].Class != run.ClassLost {
			t.Errorf("run is %s: %+v", got.State, got.Attempts)
		}
	})
	t.Run("and so is what a container of a job has claimed, though its heartbeat came first", func(t *testing.T) {
		d := newDistrict(t, agentNamed("echo", shaped(fleet.Job)), cloudTarget("job", fleet.Job))
		r := d.submit(Submission{Agent: "echo"})
		a := d.last()
		if _, err := d.b.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "exec-0", Ticket: a.Ticket}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.p.Beat(t.Context(), WorkerBeat{Worker: "exec-0", Agents: []string{"echo"}, Attempts: []string{a.ID()}}); err != nil {
			t.Fatal(err)
		}
		d.deliver()
		if held := d.p.Held("exec-0"); len(held) != 1 {
			t.Fatalf("it holds %+v, want its attempt", held)
		}
		d.passing(d.p.cfg.WorkerLease + 2*time.Second)
		if got := d.get(r.ID); got.Attempts[0].Class != run.ClassLost {
			t.Errorf("run is %s: %+v", got.State, got.Attempts)
		}
	})
}

func TestACancelOfWhatNobodyHasClaimedIsDoneAtOnce(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	r := d.submit(Submission{Agent: "echo"})
	a := d.last()
	if _, err := d.b.Cancel(t.Context(), r.ID, CancelRequest{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	d.deliver()
	wantState(t, d.get(r.ID), run.Canceled, run.CanceledByRequest)
	if _, err := d.c.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket}); !errors.Is(err, run.ErrFenced) {
		t.Errorf("a claim afterwards: %v", err)
	}
	if n := d.p.ix.heldBy("pool"); n != 0 {
		t.Errorf("%d slots are taken still", n)
	}
}

func TestHeartbeatsAtAProcessThatDoesNotLeadReadLittle(t *testing.T) {
	d := newDistrict(t, agentNamed("echo"), cloudTarget("pool", fleet.Pool))
	r := d.submit(Submission{Agent: "echo"})
	a := d.last()
	if _, err := d.b.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "w1", Ticket: a.Ticket}); err != nil {
		t.Fatal(err)
	}
	d.deliver()
	beat := func() WorkerStanding {
		t.Helper()
		s, err := d.c.Beat(t.Context(), WorkerBeat{Worker: "w1", Target: "pool", Agents: []string{"echo"}, Slots: 1, Attempts: []string{a.ID(), r.ID + ".9"}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := beat(); s.Partial || len(s.Attempts) != 1 {
		t.Errorf("the first answer is %+v, want a whole one of the attempt that is its own", s)
	}
	for d.passing(5 * time.Second); ; d.passing(5 * time.Second) {
		s := beat()
		d.deliver()
		if !s.Partial {
			break
		}
		if len(s.Attempts) != 0 {
			t.Errorf("answer %+v, want nothing said of attempts that go on", s)
		}
	}
	wantState(t, d.get(r.ID), run.Running, "") // the leader has heard that it lives
}

// The platform's limit for a task is the run's own: whichever side is first, and whether anybody watches then or not, the
// run ends for its deadline.
func TestTheDeadlineEndsATaskWhoeverSeesItFirst(t *testing.T) { // case F04
	const limit = time.Minute
	timedOut := func(h *house, r *run.Record) {
		h.report(runtime.Report{
			Type: runtime.Failed, Run: r.ID, N: 1, Worker: "exec-0", Class: run.ClassTimeout, Code: string(run.AttemptTimeout), Ended: true,
		})
	}
	for name, tt := range map[string]struct {
		after func(h *house, r *run.Record, alive func(time.Duration))
		slack time.Duration // beyond the limit
	}{
		"the platform": {func(h *house, r *run.Record, alive func(time.Duration)) {
			alive(limit)
			timedOut(h, r)
		}, time.Second},
		"the control plane, and the task ends": {func(h *house, r *run.Record, alive func(time.Duration)) {
			alive(limit + time.Second)
			timedOut(h, r)
		}, 2 * time.Second},
		"the control plane, and the task is never heard of": {func(h *house, _ *run.Record, alive func(time.Duration)) {
			alive(limit)
			for range 40 {
				h.pass(time.Second)
			}
		}, 40 * time.Second},
		"nobody, for who watches dies before and is back after": {func(h *house, r *run.Record, alive func(time.Duration)) {
			alive(limit - time.Second)
			h.mu.Lock()
			h.now = h.now.Add(11 * time.Second)
			h.mu.Unlock()
			h.open()
			timedOut(h, r)
		}, 12 * time.Second},
		"nobody, and the task is never heard of again": {func(h *house, _ *run.Record, alive func(time.Duration)) {
			alive(limit - time.Second)
			h.mu.Lock()
			h.now = h.now.Add(11 * time.Second)
			h.mu.Unlock()
			h.open()
			for range 40 {
				h.pass(time.Second)
			}
		}, 52 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			x := &executor{stopped: make(map[string]time.Duration), ended: make(map[string]bool)}
			h := &house{t: t, store: memory.Open(), now: began, runtimes: map[fleet.Runtime]runtime.Runtime{fleet.RuntimeCloudRun: x}}
			h.open()
			agent := agentNamed("echo", shaped(fleet.Job), func(a *fleet.Agent) {
				a.Timeouts.Attempt, a.Timeouts.Run = fleet.Duration(limit), fleet.Duration(limit)
				a.Retry.MaxAttempts = 3
			})
			if _, err := h.p.Apply(t.Context(), fleetOf(agent, cloudTarget("job", fleet.Job)), ApplyOptions{}); err != nil {
				t.Fatal(err)
			}
			r := h.submit(Submission{Agent: "echo"})
			a := x.started[0]
			if _, err := h.p.Claim(t.Context(), Claim{Attempt: a.ID(), Worker: "exec-0", Ticket: a.Ticket}); err != nil {
				t.Fatal(err)
			}
			tt.after(h, r, func(length time.Duration) {
				for ; length > 0; length -= time.Second {
					if _, err := h.p.Beat(t.Context(), WorkerBeat{Worker: "exec-0", Agents: []string{"echo"}, Attempts: []string{a.ID()}}); err != nil {
						t.Fatal(err)
					}
					h.pass(time.Second)
				}
			})
			got := h.get(r.ID)
			wantState(t, got, run.Failed, run.DeadlineExceeded)
			if took := got.EndedAt.Sub(got.CreatedAt); took > limit+tt.slack {
				t.Errorf("it ended after %s", took)
			}
			if len(x.started) != 1 {
				t.Errorf("%d starts, want one", len(x.started))
			}
			h.pass(time.Hour)
			if later := h.get(r.ID); later.Seq != got.Seq {
				t.Error("it went on")
			}
		})
	}
}
