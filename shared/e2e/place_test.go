package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// Acceptance of runs that no target can take, and of those behind them.

// target is a manifest of a local target with room for so many slots.
func target(name string, runs int, more string) string {
	return fmt.Sprintf("apiVersion: errand.dev/v1\nkind: Target\nmetadata: {name: %s}\nspec:\n  runtime: local\n  capacity: {runs: %d}\n%s",
		name, runs, indent(more))
}

// when is the time of a run's n-th event of a type, from 1.
func (s *server) when(id, event string, n int) time.Time {
	s.t.Helper()
	history := s.history(id)
	for _, e := range history {
		if e.Type == event {
			if n--; n == 0 {
				return e.At.Time
			}
		}
	}
	s.t.Fatalf("run %s has too few events %q: %+v", id, event, history)
	return time.Time{}
}

func TestUnschedulableRunIsExplainedAndWokenByATarget(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, target("desk", 2, "region: europe-west1"), target("shelf", 2, "accelerator: nvidia-t4"),
		p.agent("painter", "actor", "worker", `
	shape: pool
	needs: {accelerator: nvidia-l4}`))
	// 1. Nothing has the accelerator: that is told at once, for each target.
	id := s.submit("painter", `{"scenes": [{"say": "painted"}]}`).ID
	r := s.reaches(id, "unschedulable")
	if r.Reason != "NoEligibleTarget" || r.Attempt != 0 || !strings.Contains(r.Message, "desk") || !strings.Contains(r.Message, "shelf") {
		t.Errorf("the run: %+v, want NoEligibleTarget that names both targets", r)
	}
	placed, err := s.Placement(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range placed.Candidates {
		if c.Feasible || len(c.Refusals) == 0 || !strings.Contains(c.Refusals[0].Message, "nvidia-l4") {
			t.Errorf("candidate %+v, want a refusal that names what is missing", c)
		}
	}
	if len(placed.Candidates) != 2 || r.WakeAt == nil || !r.WakeAt.After(time.Now()) {
		t.Errorf("placement %+v and next look at %s, want both targets, and a time to come", placed, r.WakeAt)
	}
	s.tells("explain "+id, "unschedulable", "desk", "shelf", "nvidia-l4", "nvidia-t4", "looked at again")
	s.tells("explain "+id+" --why-not desk", "desk", "nvidia-l4")
	if _, stderr, code := s.errand("explain", id, "--why-not", "attic"); code != 3 || !strings.Contains(stderr, "attic") {
		t.Errorf("why not on a target that is not there: exit %d, %q, want 3 and its name", code, stderr)
	}
	// 2. A target that does not help wakes nothing.
	s.apply(target("cellar", 2, "accelerator: nvidia-a100"))
	s.tells("explain "+id, "cellar", "nvidia-a100")
	if r := s.get(id); r.State != "unschedulable" {
		t.Fatalf("the run is %s after a target that does not fit was applied", r.State)
	}
	// 3. One that fits does, without waiting for the next look.
	s.apply(target("studio", 1, "accelerator: nvidia-l4"))
	if got := s.succeeds(id); got.Said != "painted" {
		t.Errorf("output %+v", got)
	}
	object, err := s.Object(t.Context(), api.Targets, "studio")
	if err != nil {
		t.Fatal(err)
	}
	applied, assigned := object.Status.UpdatedAt.Time, s.when(id, "assigned", 1)
	t.Logf("the target was applied at %s, the run assigned %s later", applied.Format(time.StampMilli), assigned.Sub(applied))
	if assigned.Before(applied) || !assigned.Before(r.WakeAt.Time) {
		t.Errorf("assigned at %s, want between the target's %s and the next look at %s", assigned, applied, r.WakeAt)
	}
	s.tells("explain "+id, "studio")
	s.tells("explain "+id+" --why-not shelf", "shelf", "nvidia-t4")
}

// tells runs a command that must say all of these words.
func (s *server) tells(command string, words ...string) {
	s.t.Helper()
	stdout, stderr, code := s.errand(strings.Fields(command)...)
	for _, word := range words {
		if !strings.Contains(stdout, word) {
			s.t.Errorf("errand %s: want %q in what it says:\n%s", command, word, stdout)
		}
	}
	if code != 0 || stderr != "" {
		s.t.Errorf("errand %s: exit %d, %s", command, code, stderr)
	}
}

// TestHeadThatCannotBePlacedDelaysNobody is case F26: of four slots two are taken, and before those that fit stand one
// that never will and one that does not yet.
func TestHeadThatCannotBePlacedDelaysNobody(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	sized := func(name string, slots int) string {
		return p.agent(name, "actor", "worker", fmt.Sprintf(`
	shape: pool
	needs: {slots: %d}`, slots))
	}
	s := newServerAt(p, target("desk", 4, "region: here"), sized("small", 1), sized("wide", 3), sized("giant", 8))
	submit := func(agent string, priority int, script string) string {
		t.Helper()
		return s.submitRun(api.Submit{Agent: agent, Priority: &priority, Input: []byte(script)}).ID
	}
	for range 2 {
		s.entered(submit("small", 50, `{"scenes": [{"gate": "holders"}]}`), 1)
	}
	giant := submit("giant", 50, `{}`)
	wide := submit("wide", 10, `{}`)
	var smalls []string
	for range 20 {
		smalls = append(smalls, submit("small", 50, `{"scenes": [{"gate": "smalls"}]}`))
	}
	first := submit("small", 90, `{}`)
	// 1. What never fits is told so at once and leaves the line.
	if r := s.reaches(giant, "unschedulable"); !strings.Contains(r.Message, "8") || !strings.Contains(r.Message, "4") {
		t.Errorf("the giant: %s, want what it needs and the limit", r.Message)
	}
	// 2. Everybody behind goes on while the wide one waits.
	p.open("smalls")
	var assigned []time.Time
	for _, id := range smalls {
		s.succeeds(id)
		assigned = append(assigned, s.when(id, "assigned", 1))
	}
	s.succeeds(first)
	if r := s.get(wide); r.State != "queued" {
		t.Errorf("the wide one is %s while only two slots are free, want queued", r.State)
	}
	s.tells("explain "+wide, "3", "desk")
	// 3. The urgent one was next, before all that had not started when it came.
	slices.SortFunc(assigned, time.Time.Compare)
	if urgent := s.when(first, "assigned", 1); urgent.After(assigned[2]) {
		t.Errorf("the urgent run was assigned at %s, want it before all but the two that had slots: %s", urgent, assigned)
	}
	// 4. The wide one starts as soon as it fits.
	p.open("holders")
	s.succeeds(wide)
	s.idle()
}

// TestWideRunIsNotStarvedBySmallOnes: a run that needs more than is ever free at a time gets its room by being waited
// for, however many small ones come.
func TestWideRunIsNotStarvedBySmallOnes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, target("desk", 4, "region: here"),
		p.agent("small", "actor", "worker", "shape: pool"), p.agent("wide", "actor", "worker", `
	shape: pool
	needs: {slots: 4}`))
	// Small runs end one after the other, so that never are all slots free by chance.
	count := 0
	smalls := func(n int) {
		t.Helper()
		batch := make([]api.Submit, n)
		for i := range batch {
			pause := 400*time.Millisecond + time.Duration(count*130%500)*time.Millisecond
			batch[i] = api.Submit{Agent: "small", Input: fmt.Appendf(nil, `{"scenes": [{"pause": %q}]}`, pause)}
			count++
		}
		do(s.SubmitBatch(t.Context(), batch))(t)
	}
	smalls(8)
	outside.Eventually(t, outside.Patience, "the small ones fill the target", func() bool { return s.used() == 4 })
	wide := s.submit("wide", `{}`).ID
	for started := false; !started; {
		// There are always small ones that wait.
		if s.queued("small") < 40 {
			smalls(40)
		}
		r := do(s.Client.Run(t.Context(), wide, time.Second))(t)
		started = r.Terminal()
		if waited := time.Since(r.CreatedAt.Time); waited > time.Minute {
			t.Fatalf("the wide run is %s after %s and %d small ones", r.State, waited, count)
		}
	}
	t.Logf("the wide run waited for %s", s.when(wide, "assigned", 1).Sub(s.when(wide, "submitted", 1)))
}

// queued counts the runs of an agent that wait.
func (s *server) queued(agent string) int {
	s.t.Helper()
	object, err := s.Object(s.t.Context(), api.Agents, agent)
	if err != nil {
		s.t.Fatal(err)
	}
	return object.Status.Queued
}
