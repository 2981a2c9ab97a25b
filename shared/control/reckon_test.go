package control

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// timeOf gives an agent's runs so much time.
func timeOf(d time.Duration) func(*fleet.Agent) {
	return func(a *fleet.Agent) {
		a.Timeouts.Run, a.Timeouts.Queue, a.Timeouts.Attempt = fleet.Duration(d), fleet.Duration(100*time.Hour), fleet.Duration(d)
	}
}

func countsPeople(a *fleet.Agent) { a.Timeouts.CountWaiting = true }

func calling(callees ...string) func(*fleet.Agent) {
	return func(a *fleet.Agent) { a.Permissions.Call = callees }
}

// start leases one attempt of an agent.
func (h *house) start(agent string) runtime.Assignment {
	h.t.Helper()
	leases := h.lease("w-"+agent, 1, agent)
	if len(leases) != 1 {
		h.t.Fatalf("%d attempts of %s, want 1", len(leases), agent)
	}
	return leases[0]
}

// asks lets an attempt wait for people.
func (h *house) asks(a runtime.Assignment) *run.Gate {
	h.t.Helper()
	ask := pay
	ask.Expires = 90 * time.Hour
	if res := h.report(runtime.Report{Type: runtime.Parked, Run: a.Run, N: a.N, Park: &run.Park{On: run.OnGate, Step: "pay"}, Gate: &ask}); res.Err != nil {
		h.t.Fatal(res.Err)
	}
	_, g := h.gateOf(a.Run)
	return g
}

// callsFor lets an attempt call agents and wait for them.
func (h *house) callsFor(a runtime.Assignment, agents ...string) {
	h.t.Helper()
	calls := make([]runtime.Call, len(agents))
	for i := range calls {
		calls[i].Agent = agents[i]
	}
	park := &run.Park{On: run.OnChildren, Step: "all", Size: len(calls)}
	if res := h.report(runtime.Report{Type: runtime.Parked, Run: a.Run, N: a.N, Park: park, Calls: calls}); res.Err != nil {
		h.t.Fatal(res.Err)
	}
}

func (h *house) completes(a runtime.Assignment) {
	h.t.Helper()
	if res := h.report(runtime.Report{Type: runtime.Completed, Run: a.Run, N: a.N}); res.Err != nil {
		h.t.Fatal(res.Err)
	}
}

func (h *house) approves(g *run.Gate) {
	h.t.Helper()
	if err := h.vote(g, "ann", run.Approve, ""); err != nil {
		h.t.Fatal(err)
	}
}

// works passes time in which an attempt is at work.
func (h *house) works(a runtime.Assignment, d time.Duration) {
	h.t.Helper()
	for step := 5 * time.Second; d > 0; d -= step {
		name := a.Agent.Name()
		if _, err := h.p.Beat(h.t.Context(), WorkerBeat{Worker: "w-" + name, Agents: []string{name}, Slots: 10, Attempts: []string{a.ID()}}); err != nil {
			h.t.Fatal(err)
		}
		h.pass(min(step, d))
	}
}

// kinOf are the agents and workflows of the tests below. A run of boss, or of the workflow outer, has an hour.
func kinOf(change ...func(*fleet.Agent)) []fleet.Object {
	outer := flowNamed("outer", fleet.Stage{Name: "sub", Workflow: "inner"}, fleet.Stage{Name: "last", Agent: "hand"})
	outer.Timeouts.Run = fleet.Duration(time.Hour)
	inner := flowNamed("inner", fleet.Stage{Name: "ask", Gate: &fleet.Gate{Title: "?", Action: "input", Approvers: []string{"group:finance"}, Expires: fleet.Duration(90 * time.Hour)}})
	calls := flowNamed("calls", fleet.Stage{Name: "ask", Agent: "payer"}, fleet.Stage{Name: "last", Agent: "hand"})
	calls.Timeouts.Run = fleet.Duration(time.Hour)
	return fleetOf(
		agentNamed("boss", append([]func(*fleet.Agent){timeOf(time.Hour), calling("payer", "hand", "mid", "hasty", "inner")}, change...)...),
		agentNamed("mid", timeOf(24*time.Hour), calling("payer", "hand")),
		agentNamed("payer", timeOf(24*time.Hour)), agentNamed("hand", timeOf(24*time.Hour)),
		agentNamed("hasty", timeOf(2*time.Hour), countsPeople),
		outer, inner, calls,
	)
}

// waiting is a house in which, if it restarts, every long wait sees a new process in its middle.
type waiting struct {
	*house
	restarts bool
}

func (h *waiting) pass(d time.Duration) {
	if h.house.pass(d / 2); h.restarts {
		h.open()
	}
	h.house.pass(d - d/2)
}

// The rule of docs/guides/workflows.md: while a run waits for people alone, at any depth, its time stands still.
func TestTimeInWhichARunWaitsForPeopleAloneDoesNotCount(t *testing.T) {
	boss := func(h *waiting, agents ...string) string {
		r := h.submit(Submission{Agent: "boss", Actor: "rita"})
		a := h.start("boss")
		h.works(a, 10*time.Minute)
		h.callsFor(a, agents...)
		return r.ID
	}
	for name, c := range map[string]struct {
		do   func(h *waiting) (id string) // of a run that goes on in the end
		left time.Duration                // of its hour, in the end
	}{
		"of a child": {do: func(h *waiting) string {
			id := boss(h, "payer")
			g := h.asks(h.start("payer"))
			h.pass(40 * time.Hour)
			h.approves(g)
			a := h.start("payer")
			h.works(a, 5*time.Minute)
			h.completes(a)
			return id
		}, left: 45 * time.Minute},
		"of a child that answers before the deadline": {do: func(h *waiting) string {
			id := boss(h, "payer")
			g := h.asks(h.start("payer"))
			h.pass(30 * time.Minute)
			h.approves(g)
			h.completes(h.start("payer"))
			return id
		}, left: 50 * time.Minute},
		"of a grandchild": {do: func(h *waiting) string {
			id := boss(h, "mid")
			h.callsFor(h.start("mid"), "payer")
			g := h.asks(h.start("payer"))
			h.pass(40 * time.Hour)
			h.approves(g)
			h.completes(h.start("payer"))
			a := h.start("mid")
			h.works(a, 5*time.Minute)
			h.completes(a)
			return id
		}, left: 45 * time.Minute},
		"of all children": {do: func(h *waiting) string {
			id := boss(h, "payer", "payer")
			first := h.asks(h.start("payer"))
			second := h.asks(h.start("payer"))
			h.pass(20 * time.Hour)
			h.approves(first)
			h.completes(h.start("payer"))
			h.pass(20 * time.Hour)
			h.approves(second)
			h.completes(h.start("payer"))
			return id
		}, left: 50 * time.Minute},
		"not of one child while another works": {do: func(h *waiting) string {
			id := boss(h, "payer", "hand")
			g := h.asks(h.start("payer"))
			a := h.start("hand")
			h.works(a, 20*time.Minute)
			h.completes(a)
			h.pass(40 * time.Hour)
			h.approves(g)
			h.completes(h.start("payer"))
			return id
		}, left: 30 * time.Minute},
		"not of one child while another waits for a slot": {do: func(h *waiting) string {
			id := boss(h, "payer", "hand")
			g := h.asks(h.start("payer"))
			h.pass(20 * time.Minute)
			h.completes(h.start("hand"))
			h.pass(40 * time.Hour)
			h.approves(g)
			h.completes(h.start("payer"))
			return id
		}, left: 30 * time.Minute},
		"its own, and of a child": {do: func(h *waiting) string {
			r := h.submit(Submission{Agent: "boss", Actor: "rita"})
			g := h.asks(h.start("boss"))
			h.pass(40 * time.Hour)
			h.approves(g)
			a := h.start("boss")
			h.works(a, 10*time.Minute)
			h.callsFor(a, "payer")
			g = h.asks(h.start("payer"))
			h.pass(40 * time.Hour)
			h.approves(g)
			h.completes(h.start("payer"))
			return r.ID
		}, left: 50 * time.Minute},
		"of a child that is asked twice": {do: func(h *waiting) string {
			id := boss(h, "mid")
			a := h.start("mid")
			g := h.asks(a)
			h.pass(40 * time.Hour)
			h.approves(g)
			h.callsFor(h.start("mid"), "payer")
			g = h.asks(h.start("payer"))
			h.pass(40 * time.Hour)
			h.approves(g)
			h.completes(h.start("payer"))
			h.completes(h.start("mid"))
			return id
		}, left: 50 * time.Minute},
		"of a child for which waiting counts": {do: func(h *waiting) string {
			id := boss(h, "hasty")
			h.asks(h.start("hasty"))
			h.pass(2*time.Hour - time.Second) // its own time is over then, not the other's
			h.pass(time.Second)
			return id
		}, left: 50 * time.Minute},
		"of a child that is canceled meanwhile": {do: func(h *waiting) string {
			id := boss(h, "mid")
			h.callsFor(h.start("mid"), "payer")
			h.asks(h.start("payer"))
			h.pass(40 * time.Hour)
			if _, err := h.p.Cancel(h.t.Context(), childID(id, "all", 0), CancelRequest{}); err != nil {
				h.t.Fatal(err)
			}
			h.settle()
			h.pass(2 * time.Second) // what it did is undone
			return id
		}, left: 50*time.Minute - 2*time.Second},
		"by way of a workflow's workflow": {do: func(h *waiting) string {
			r := h.submit(Submission{Workflow: "outer", Actor: "rita"})
			h.pass(40 * time.Hour)
			_, g := h.gateOf(h.descendants(r.ID)[0].ID)
			h.approves(g)
			return r.ID
		}, left: time.Hour},
		"by way of a workflow's agent": {do: func(h *waiting) string {
			r := h.submit(Submission{Workflow: "calls", Actor: "rita"})
			a := h.start("payer")
			h.works(a, 10*time.Minute)
			g := h.asks(a)
			h.pass(40 * time.Hour)
			h.approves(g)
			h.completes(h.start("payer"))
			return r.ID
		}, left: 50 * time.Minute},
	} {
		for _, restarts := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", with restarts"}[restarts], func(t *testing.T) {
				h := &waiting{newHouse(t, kinOf()...), restarts}
				r := h.get(c.do(h))
				if r.State.Terminal() {
					t.Fatalf("it is %s (%s: %s)", r.State, r.Reason, r.Message)
				}
				if got := r.Deadline.Sub(h.p.now()); got != c.left {
					t.Errorf("it has %s left, want %s", got, c.left)
				}
			})
		}
	}
}

// overHour brings a run of boss with a child at a gate so far that its hour is over, ten minutes of which it has spent.
func overHour(t *testing.T, s Submission, change ...func(*fleet.Agent)) (h *house, id string, g *run.Gate) {
	h = newHouse(t, kinOf(change...)...)
	s.Agent, s.Actor = "boss", "rita"
	r := h.submit(s)
	a := h.start("boss")
	h.works(a, 10*time.Minute)
	h.callsFor(a, "payer")
	g = h.asks(h.start("payer"))
	h.pass(2 * time.Hour)
	return h, r.ID, g
}

func (h *house) wantEnd(id string, state run.State, reason run.Reason) {
	h.t.Helper()
	wantState(h.t, h.get(id), state, reason)
}

func TestTheTimeOfARunGoesOnWhenOneBelowItDoes(t *testing.T) {
	for name, c := range map[string]struct {
		lost, restarts bool
		late           time.Duration // by which it ends after its time
	}{
		"of which word comes":                    {late: time.Second},
		"after a restart":                        {lost: true, restarts: true, late: time.Second},
		"of which no word comes, within the net": {lost: true, late: 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			h, id, g := overHour(t, Submission{})
			h.pass(30 * time.Hour)
			if c.lost {
				h.p.mu.Lock()
				delete(h.p.ix.reckonings.still, id)
				h.p.mu.Unlock()
			}
			h.approves(g)
			if c.restarts {
				h.open()
			}
			if left := h.get(id).Deadline.Sub(h.p.now()); (left != 50*time.Minute) != (c.late > time.Second) {
				t.Errorf("%s of its time is left, of which ten minutes were spent", left)
			}
			h.pass(50*time.Minute - time.Second) // nobody takes the child
			h.wantEnd(id, run.Waiting, "")
			h.pass(time.Second + c.late)
			h.wantEnd(id, run.Failed, run.DeadlineExceeded)
			h.wantEnd(childID(id, "all", 0), run.Canceled, run.ParentEnded)
		})
	}
}

func TestNothingIsWrittenWhileTimeStandsStill(t *testing.T) {
	h, id, _ := overHour(t, Submission{})
	was := h.get(id)
	for range 80 {
		h.pass(30 * time.Minute)
	}
	r := h.get(id)
	if moved := r.Seq - was.Seq; r.State != run.Waiting || moved != 0 {
		t.Errorf("it is %s, %d events in 40 hours", r.State, moved)
	}
	events, _, err := h.p.history(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if last := events[len(events)-1]; last.Type != run.EvDeadlineMoved || last.Message == "" {
		t.Errorf("the last event is %s (%s)", last.Type, last.Message)
	}
	x, err := h.p.Explain(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	story := strings.Join(x.Story, "\n")
	for _, want := range []string{"Its deadline has moved by 2h0m0s", "Its time stands still"} {
		if !strings.Contains(story, want) {
			t.Errorf("%q is not said:\n%s", want, story)
		}
	}
}

func TestWhatBoundsARunThatWaitsForPeople(t *testing.T) {
	for name, c := range map[string]struct {
		change   []func(*fleet.Agent)
		deadline time.Duration // of the submitter
		state    run.State
	}{
		"nothing":                            {nil, 0, run.Waiting},
		"its hour, where waiting counts":     {[]func(*fleet.Agent){countsPeople}, 0, run.Failed},
		"the submitter's deadline":           {nil, 90 * time.Minute, run.Failed},
		"not a submitter's that lies behind": {nil, 20 * time.Hour, run.Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			s := Submission{}
			if c.deadline != 0 {
				s.Deadline = began.Add(c.deadline)
			}
			h, id, _ := overHour(t, s, c.change...)
			r := h.get(id)
			if r.State != c.state || c.state == run.Failed && r.Reason != run.DeadlineExceeded {
				t.Errorf("after two hours it is %s (%s)", r.State, r.Reason)
			}
			if child := h.get(childID(id, "all", 0)); child.State.Terminal() != (c.state == run.Failed) || child.Latest != r.Latest {
				t.Errorf("its child is %s, to be over by %d at the latest, itself by %d", child.State, child.Latest, r.Latest)
			}
		})
	}
}

func TestAWaitThatIsBrokenOffIsReckoned(t *testing.T) {
	h, id, _ := overHour(t, Submission{})
	h.pass(10 * time.Hour)
	if _, err := h.p.Suspend(t.Context(), id, "ann"); err != nil {
		t.Fatal(err)
	}
	h.settle()
	h.pass(20 * time.Minute) // counts
	if _, err := h.p.Resume(t.Context(), id, "ann"); err != nil {
		t.Fatal(err)
	}
	h.settle()
	r := h.get(id)
	if left := r.Deadline.Sub(h.p.now()); r.ForRuns != nil || left != 30*time.Minute {
		t.Errorf("it has %s left, want 30m (%+v)", left, r.ForRuns)
	}
}

// A fan-out of ten thousand is read in pages, of which one pass takes a bounded number.
func TestAPassReadsABoundedPartOfWhatARunWaitsFor(t *testing.T) {
	h := newHouse(t, kinOf()...)
	boss := &run.Record{Spec: run.Spec{ID: "boss", CreatedAt: 1000}, ForRuns: &run.Wait{Span: run.Span{From: 2000}, Began: 2000, Step: "all"}}
	var units []store.Unit
	for i := range run.MaxChildren {
		c := run.New(run.Spec{ID: childID("boss", "all", i), Agent: "payer", Tenant: "default", CreatedAt: 1500, Parent: "boss", Root: "boss", Stage: "all", Item: i}, run.Event{Type: run.EvSubmitted, At: 1500})
		for _, e := range []run.Event{
			{Type: run.EvAssigned, Attempt: 1, Target: "t"}, {Type: run.EvStarted, Attempt: 1},
			{Type: run.EvParked, Attempt: 1, Park: &run.Park{On: run.OnGate, Step: "s", Name: "g"}},
		} {
			e.At = run.Instant(3000 + i)
			if err := run.Decide(c, &e); err != nil {
				t.Fatal(err)
			}
			run.Evolve(c, e)
		}
		units = append(units, store.Unit{Token: c.ID, Writes: []store.Write{recordWrite(c, 0)}})
	}
	for _, err := range h.store.Commit(t.Context(), units) {
		if err != nil {
			t.Fatal(err)
		}
	}
	k := newReckoning(boss, 50_000)
	for passes := 1; ; passes++ {
		read, over, err := k.step(t.Context(), h.store, maxReckoned)
		if err != nil || read > maxReckoned+reckonPage {
			t.Fatalf("pass %d read %d runs: %v", passes, read, err)
		}
		if !over {
			continue
		}
		want := run.Spans{{From: 3000 + run.MaxChildren - 1, To: 50_000}} // from when the last one asked
		if diff := cmp.Diff(want, k.found); diff != "" || passes < run.MaxChildren/(maxReckoned+reckonPage) {
			t.Errorf("in %d passes (-want +found):\n%s", passes, diff)
		}
		break
	}
}
