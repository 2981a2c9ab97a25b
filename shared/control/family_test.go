package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// caller makes an agent that may call others.
func caller(name string, callees ...string) *fleet.Agent {
	return agentNamed(name, func(a *fleet.Agent) { a.Permissions.Call = callees })
}

// callsOf makes n calls of an agent, each with its number as the input.
func callsOf(agent string, n int) []runtime.Call {
	calls := make([]runtime.Call, n)
	for i := range calls {
		calls[i] = runtime.Call{Agent: agent, Input: json.RawMessage(fmt.Sprint(i))}
	}
	return calls
}

// parkOn lets the run's attempt call children and wait for them.
func (h *house) parkOn(r *run.Record, step string, calls []runtime.Call, change ...func(*run.Park)) runtime.Result {
	h.t.Helper()
	park := &run.Park{On: run.OnChildren, Step: step, Size: len(calls)}
	for _, c := range change {
		c(park)
	}
	return h.report(runtime.Report{Type: runtime.Parked, Run: r.ID, N: h.get(r.ID).Attempt, Park: park, Calls: calls})
}

// work leases what there is of an agent and lets each attempt do as f says.
func (h *house) work(worker, agent string, f func(runtime.Assignment) runtime.Report) (n int) {
	h.t.Helper()
	for _, a := range h.lease(worker, 10, agent) {
		r := f(a)
		r.Run, r.N, r.Worker = a.Run, a.N, worker
		if res := h.report(r); res.Err != nil {
			h.t.Fatalf("%s of %s: %v", r.Type, a.ID(), res.Err)
		}
		n++
	}
	return n
}

func done(a runtime.Assignment) runtime.Report {
	return runtime.Report{Type: runtime.Completed, Output: a.Input}
}

func failedFor(code string) func(runtime.Assignment) runtime.Report {
	return func(runtime.Assignment) runtime.Report {
		return runtime.Report{Type: runtime.Failed, Class: run.ClassUser, Code: code, Message: "no", Final: true}
	}
}

// joinedOf is the result that a run's step was given.
func (h *house) joinedOf(r *run.Record, step string) joinResult {
	h.t.Helper()
	doc, err := h.store.Get(h.t.Context(), store.KindStep, stepID(r.ID, step))
	if err != nil {
		h.t.Fatalf("step %s: %v", step, err)
	}
	var s runtime.Step
	var x joinResult
	if err := json.Unmarshal(doc.Body, &s); err != nil {
		h.t.Fatal(err)
	}
	if err := json.Unmarshal(s.Result, &x); err != nil {
		h.t.Fatal(err)
	}
	return x
}

// F43
func TestAFanInFiresOnceWithItsResultsInOrder(t *testing.T) {
	for name, c := range map[string]struct{ size int }{
		"of no children": {0}, "of one child": {1}, "of many children": {150},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			if res := h.parkOn(r, "all", callsOf("hand", c.size)); res.Err != nil {
				t.Fatal(res.Err)
			}
			if c.size > 0 {
				wantState(t, h.get(r.ID), run.Waiting, "")
			}
			for left := c.size; left > 0; {
				n := h.work("w2", "hand", done)
				if left -= n; n == 0 {
					t.Fatalf("nothing to do with %d children left", left)
				}
				if got := h.get(r.ID); left > 0 && got.State != run.Waiting {
					t.Fatalf("with %d children left the parent is %s", left, got.State)
				}
			}
			got := h.get(r.ID)
			wantState(t, got, run.Assigned, "")
			if got.Attempt != 2 || got.Spent != 0 && got.Spent != 1 {
				t.Errorf("attempt %d, spent %d", got.Attempt, got.Spent)
			}
			x := h.joinedOf(r, "all")
			if x.Size != c.size || x.Succeeded != c.size || len(x.Children) != c.size {
				t.Fatalf("joined %d of %d, %d succeeded", len(x.Children), x.Size, x.Succeeded)
			}
			for i, child := range x.Children {
				if string(child.Output) != fmt.Sprint(i) || child.State != run.Succeeded || child.Run != childID(r.ID, "all", i) {
					t.Fatalf("child %d is %+v", i, child)
				}
			}
		})
	}
}

// F28
func TestParentsThatWaitHoldNoSlot(t *testing.T) {
	limited := func(a *fleet.Agent) { a.Concurrency.Max = 2; a.Permissions.Call = []string{"node"} }
	h := newHouse(t, agentNamed("node", limited))
	var roots []*run.Record
	for range 2 {
		roots = append(roots, h.submit(Submission{Agent: "node", Input: json.RawMessage(`0`)}))
	}
	ended := 0
	for range 400 {
		if n := h.p.ix.agents.of("node").live; n > 2 {
			t.Fatalf("%d execute at a time", n)
		}
		h.work("w", "node", func(a runtime.Assignment) runtime.Report {
			var depth int
			if err := json.Unmarshal(a.Input, &depth); err != nil {
				t.Fatal(err)
			}
			if depth == 3 || len(a.Steps) > 0 {
				ended++
				return done(a)
			}
			calls := make([]runtime.Call, 3)
			for i := range calls {
				calls[i] = runtime.Call{Agent: "node", Input: json.RawMessage(fmt.Sprint(depth + 1))}
			}
			return runtime.Report{Type: runtime.Parked, Park: &run.Park{On: run.OnChildren, Step: "kids", Size: 3}, Calls: calls}
		})
	}
	for _, r := range roots {
		wantState(t, h.get(r.ID), run.Succeeded, "")
	}
	if want := 2 * (1 + 3 + 9 + 27); ended != want {
		t.Errorf("%d runs ended, want %d", ended, want)
	}
}

func TestADecidedGroupEndsTheRest(t *testing.T) {
	type end struct {
		item int
		ok   bool
	}
	for name, c := range map[string]struct {
		size      int
		change    func(*run.Park)
		ends      []end
		succeeded int
		failed    int
		open      bool // the group is not decided by these
	}{
		"a failure that is not borne":            {size: 3, ends: []end{{1, false}}, failed: 1},
		"failures that are borne":                {size: 3, change: func(p *run.Park) { p.Tolerate = 1 }, ends: []end{{1, false}, {0, true}}, open: true},
		"one failure more than is borne":         {size: 4, change: func(p *run.Park) { p.Tolerate = 1 }, ends: []end{{1, false}, {0, false}}, failed: 2},
		"all ended with failures that are borne": {size: 2, change: func(p *run.Park) { p.Tolerate = 2 }, ends: []end{{1, false}, {0, false}}, failed: 2},
		"the first success suffices":             {size: 3, change: func(p *run.Park) { p.Need = 1 }, ends: []end{{2, false}, {1, true}}, succeeded: 1, failed: 1},
		"a quorum that cannot be reached":        {size: 3, change: func(p *run.Park) { p.Need = 2 }, ends: []end{{2, false}, {1, false}}, failed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			change := c.change
			if change == nil {
				change = func(*run.Park) {}
			}
			h.parkOn(r, "all", callsOf("hand", c.size), change)
			h.lease("w2", 10, "hand")
			for _, e := range c.ends {
				rep := failedFor("X")(runtime.Assignment{})
				if e.ok {
					rep = done(runtime.Assignment{Input: json.RawMessage(`1`)})
				}
				rep.Run, rep.N = childID(r.ID, "all", e.item), 1
				h.report(rep)
			}
			if c.open {
				wantState(t, h.get(r.ID), run.Waiting, "")
				return
			}
			wantState(t, h.get(r.ID), run.Assigned, "")
			x := h.joinedOf(r, "all")
			if x.Succeeded != c.succeeded || x.Failed != c.failed {
				t.Errorf("joined %+v", x)
			}
			for i := range c.size {
				child := h.get(childID(r.ID, "all", i))
				ended := false
				for _, e := range c.ends {
					ended = ended || e.item == i
				}
				if !ended && (child.State != run.Canceling || child.Reason != run.ParentEnded) {
					t.Errorf("child %d is %s (%s)", i, child.State, child.Reason)
				}
			}
		})
	}
}

func TestCallsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		calls  ChildCalls
		before *ChildCalls
		want   Code
	}{
		"an agent that may not be called": {calls: ChildCalls{Step: "s", Calls: callsOf("other", 1)}, want: CodeForbidden},
		"an agent that is not there":      {calls: ChildCalls{Step: "s", Calls: callsOf("gone", 1)}, want: CodeNotFound},
		"no calls":                        {calls: ChildCalls{Step: "s"}, want: CodeInvalid},
		"too many at once":                {calls: ChildCalls{Step: "s", Calls: callsOf("hand", MaxCalls+1)}, want: CodeInvalid},
		"items behind the last":           {calls: ChildCalls{Step: "s", First: run.MaxChildren, Calls: callsOf("hand", 1)}, want: CodeInvalid},
		"no step":                         {calls: ChildCalls{Calls: callsOf("hand", 1)}, want: CodeInvalid},
		"an input that is no JSON":        {calls: ChildCalls{Step: "s", Calls: []runtime.Call{{Agent: "hand", Input: json.RawMessage(`{`)}}}, want: CodeInvalid},
		"an input of another form":        {calls: ChildCalls{Step: "s", Calls: []runtime.Call{{Agent: "strict", Input: json.RawMessage(`1`)}}}, want: CodeInvalid},
		"neither agent nor workflow":      {calls: ChildCalls{Step: "s", Calls: []runtime.Call{{}}}, want: CodeInvalid},
		"another input in the same place": {
			before: &ChildCalls{Step: "s", Calls: callsOf("hand", 2)},
			calls:  ChildCalls{Step: "s", First: 1, Calls: callsOf("hand", 1)}, want: CodeConflict,
		},
		"the same once more": {
			before: &ChildCalls{Step: "s", Calls: callsOf("hand", 2)},
			calls:  ChildCalls{Step: "s", Calls: callsOf("hand", 3)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, caller("boss", "hand", "gone", "strict"), agentNamed("hand"), agentNamed("other"),
				agentNamed("strict", func(a *fleet.Agent) { a.Input = fleet.Schema(`{"type":"object"}`) }))
			r := h.submit(Submission{Agent: "boss"})
			h.lease("w", 1, "boss")
			ask := func(c ChildCalls) ([]Child, error) {
				c.Run, c.N = r.ID, 1
				type answer struct {
					kids []Child
					err  error
				}
				a := await(h, func() answer { kids, err := h.p.Children(t.Context(), c); return answer{kids, err} })
				return a.kids, a.err
			}
			if c.before != nil {
				if _, err := ask(*c.before); err != nil {
					t.Fatal(err)
				}
			}
			kids, err := ask(c.calls)
			var refusal *Refusal
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want == "":
				for i, k := range kids {
					if got := h.get(k.Run); got.Parent != r.ID || got.Root != r.ID || got.Item != i || got.Stage != "s" || got.Depth != 1 || got.WorkUnit() != fmt.Sprintf("%s/s/%d", r.ID, i) {
						t.Errorf("child %d is %+v", i, got.Spec)
					}
				}
			case !errors.As(err, &refusal) || refusal.Code != c.want:
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestAStaleAttemptCallsNobody(t *testing.T) {
	h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.report(runtime.Report{Type: runtime.Released, Run: r.ID, N: 1})
	_, err := h.p.Children(t.Context(), ChildCalls{Run: r.ID, N: 1, Step: "s", Calls: callsOf("hand", 1)})
	if !errors.Is(err, run.ErrFenced) {
		t.Errorf("got %v, want fenced", err)
	}
}

func TestAParkOnCallsThatAreRefusedFailsTheRun(t *testing.T) {
	h := newHouse(t, caller("boss"), agentNamed("hand"))
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.parkOn(r, "s", callsOf("hand", 1))
	got := h.get(r.ID)
	wantState(t, got, run.Failed, run.NonRetryable)
	if got.Current().Code != childrenRefused {
		t.Errorf("code %s, %s", got.Current().Code, got.Message)
	}
}

func TestAParkOnChildrenThatWereNeverCalledFailsTheRun(t *testing.T) {
	h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.report(runtime.Report{Type: runtime.Parked, Run: r.ID, N: 1, Park: &run.Park{On: run.OnChildren, Step: "s", Size: 2}})
	wantState(t, h.get(r.ID), run.Failed, run.NonRetryable)
}

func TestChildrenArePagedInOrder(t *testing.T) {
	h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	await(h, func() error {
		_, err := h.p.Children(t.Context(), ChildCalls{Run: r.ID, N: 1, Step: "s", Calls: callsOf("hand", 7)})
		return err
	})
	h.work("w2", "hand", done)
	var items []int
	for token := ""; ; {
		page, err := h.p.ChildrenOf(t.Context(), r.ID, 1, "s", token, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Children {
			items = append(items, c.Item)
			if string(c.Output) != fmt.Sprint(c.Item) {
				t.Errorf("child %d gave %s", c.Item, c.Output)
			}
		}
		if token = page.Next; token == "" {
			break
		}
	}
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6}, items); diff != "" {
		t.Errorf("items (-want +got):\n%s", diff)
	}
	if _, err := h.p.ChildrenOf(t.Context(), r.ID, 1, "s", "x", 3); err == nil {
		t.Error("a page token that is none is taken")
	}
}

func TestLargeResultsAreLeftOutOfTheStep(t *testing.T) {
	h := newHouse(t, caller("boss", "hand"), agentNamed("hand"))
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.parkOn(r, "s", callsOf("hand", 3))
	big := json.RawMessage(fmt.Sprintf("\"%0*d\"", 500<<10, 7))
	h.work("w2", "hand", func(runtime.Assignment) runtime.Report {
		return runtime.Report{Type: runtime.Completed, Output: big}
	})
	x := h.joinedOf(r, "s")
	if !x.Paged || len(x.Children) != 3 || x.Children[0].Output != nil || x.Children[0].State != run.Succeeded {
		t.Fatalf("joined paged %t with %d children", x.Paged, len(x.Children))
	}
	page, err := h.p.ChildrenOf(t.Context(), r.ID, 2, "s", "", 10)
	if err != nil || len(page.Children) != 3 || string(page.Children[2].Output) != string(big) {
		t.Fatalf("a page of %d: %v", len(page.Children), err)
	}
}

// F38
func TestACancelReachesAllDescendants(t *testing.T) {
	stubborn := func(a *fleet.Agent) { a.Retry.MaxAttempts = 5 }
	h := newHouse(t, caller("boss", "mid"), caller("mid", "leaf", "waiter", "rare"), agentNamed("leaf", stubborn), agentNamed("waiter"), agentNamed("rare"))
	root := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.parkOn(root, "mids", callsOf("mid", 3))
	mids := h.lease("w", 10, "mid")
	grand := [][]string{{"leaf", "rare"}, {"waiter", "leaf"}, {"rare", "leaf"}}
	for i, m := range mids {
		h.parkOn(&run.Record{Spec: run.Spec{ID: m.Run}}, "leaves", []runtime.Call{{Agent: grand[i][0]}, {Agent: grand[i][1]}})
	}
	leaves := h.lease("w2", 10, "leaf")
	waiters := h.lease("w2", 10, "waiter")
	if len(leaves) != 3 || len(waiters) != 1 {
		t.Fatalf("%d leaves, %d waiters", len(leaves), len(waiters))
	}
	h.report(runtime.Report{Type: runtime.Parked, Run: waiters[0].Run, N: 1, Park: &run.Park{On: run.OnInput, Step: "ask", Name: "word"}})
	if _, err := h.p.Cancel(t.Context(), root.ID, CancelRequest{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	all := h.descendants(root.ID)
	if len(all) != 9 {
		t.Fatalf("%d descendants", len(all))
	}
	live := 0
	for _, r := range all {
		if r.Live() {
			live++
			continue
		}
		wantState(t, h.get(r.ID), run.Canceled, run.ParentEnded)
	}
	if live != 3 {
		t.Errorf("%d are told to end, want 3", live)
	}
	if got := h.lease("w3", 10, "leaf", "rare", "mid", "waiter"); len(got) != 0 {
		t.Errorf("%d started after the cancel", len(got))
	}
	if _, err := h.p.Signal(t.Context(), waiters[0].Run, "word", "", nil, ""); err == nil {
		t.Error("a signal after the cancel was taken")
	}
	// Those that do not listen count as dead when the grace and their worker's lease are over.
	for range 4 {
		h.pass(7 * time.Second)
		h.lease("w2", 1, "nobody")
	}
	for _, r := range h.descendants(root.ID) {
		if r.State != run.Canceled || r.Reason != run.ParentEnded || r.Attempt > 1 {
			t.Errorf("run %s is %s (%s) in attempt %d", r.ID, r.State, r.Reason, r.Attempt)
		}
	}
	if n := len(h.p.ix.kin.of); n != 0 {
		t.Errorf("%d families are remembered", n)
	}
}

func (h *house) descendants(id string) []*run.Record {
	h.t.Helper()
	tree, err := h.p.Tree(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	var all []*run.Record
	var walk func(n TreeNode)
	walk = func(n TreeNode) {
		for _, c := range n.Children {
			all = append(all, h.get(c.Run.ID))
			walk(c)
		}
	}
	walk(tree)
	return all
}

func TestACanceledChildIsNotTriedAgainAndItsParentIsTold(t *testing.T) {
	h := newHouse(t, caller("boss", "hand"), agentNamed("hand", func(a *fleet.Agent) { a.Retry.MaxAttempts = 5 }))
	r := h.submit(Submission{Agent: "boss"})
	h.lease("w", 1, "boss")
	h.parkOn(r, "s", callsOf("hand", 2), func(p *run.Park) { p.Tolerate = 1 })
	h.lease("w2", 1, "hand")
	first, second := childID(r.ID, "s", 0), childID(r.ID, "s", 1)
	if _, err := h.p.Cancel(t.Context(), second, CancelRequest{Reason: "not this one"}); err != nil {
		t.Fatal(err)
	}
	h.report(runtime.Report{Type: runtime.Failed, Run: second, N: 1, Class: run.ClassCanceled})
	h.report(runtime.Report{Type: runtime.Completed, Run: first, N: 1, Output: json.RawMessage(`1`)})
	wantState(t, h.get(second), run.Canceled, run.CanceledByRequest)
	x := h.joinedOf(r, "s")
	want := []childResult{
		{Run: first, State: run.Succeeded, Output: json.RawMessage(`1`)},
		{Run: second, State: run.Canceled, Reason: run.CanceledByRequest, Message: "not this one"},
	}
	if diff := cmp.Diff(want, x.Children); diff != "" {
		t.Errorf("children (-want +got):\n%s", diff)
	}
}
