package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/placement"
	"github.com/errand-run/errand/shared/placement/crowd"
	"github.com/errand-run/errand/shared/queue"
	"github.com/errand-run/errand/shared/run"
)

// scheduler is the smallest control loop over a queue and a world: it plays a scenario in simulated seconds.
type scheduler struct {
	t         *testing.T
	now       run.Instant
	ageing    run.Instant // after which one that needs several slots reserves
	profile   *placement.Profile
	world     *placement.World
	queue     *queue.Queue
	requests  map[string]*placement.Request
	ends      map[string]run.Instant
	lasts     run.Instant
	started   []string
	startedAt map[string]run.Instant
	nowhere   map[string]string // why unschedulable
}

func newScheduler(t *testing.T, capacity int) *scheduler {
	s := &scheduler{
		t: t, now: 1_000_000, ageing: 30_000, lasts: 1000, profile: placement.Default(), world: placement.NewWorld(),
		queue: queue.New(queue.Options{}), requests: map[string]*placement.Request{}, ends: map[string]run.Instant{},
		startedAt: map[string]run.Instant{}, nowhere: map[string]string{},
	}
	target := &fleet.Target{
		Meta: fleet.Meta{Name: "local"}, Runtime: fleet.RuntimeLocal, Capacity: fleet.Capacity{Runs: capacity},
	}
	target.SetDefaults()
	s.world.SetNode(placement.Node{Target: target})
	return s
}

func (s *scheduler) submit(id, tenant string, slots, priority int) {
	a := &fleet.Agent{
		Meta: fleet.Meta{Name: fmt.Sprint("slots-", slots)}, Shape: fleet.Job, Run: fleet.Run{Command: []string{"x"}},
		Needs: fleet.Needs{Slots: slots},
	}
	r := &placement.Request{Agent: a, Run: &run.Record{Spec: run.Spec{
		ID: id, Agent: a.Name(), Tenant: tenant, Priority: priority,
	}}}
	s.requests[id] = r
	s.queue.Push(queue.Entry{
		ID: id, Tenant: tenant, Class: queue.Class(placement.ClassKey(r)), Priority: priority, QueuedAt: s.now, Slots: slots,
		Cost: int64(slots) * int64(s.lasts),
	})
}

// second lets runs end, and makes one pass.
func (s *scheduler) second() {
	s.now += 1000
	for id, at := range s.ends {
		if at <= s.now {
			s.world.Release(id)
			delete(s.ends, id)
		}
	}
	p := s.queue.Begin()
	defer p.End()
	for e, ok := p.Next(); ok; e, ok = p.Next() {
		r := s.requests[e.ID]
		d := s.profile.Place(s.world, r)
		switch d.Outcome {
		case placement.Unschedulable:
			s.nowhere[e.ID] = d.Message()
			p.Remove(e)
		case placement.NoCapacity:
			if e.Slots > 1 && s.now-e.QueuedAt >= s.ageing {
				s.profile.Reserve(s.world, r)
			}
			p.BlockClass(e.Class)
		case placement.Placed:
			s.ends[e.ID] = s.now + s.lasts
			s.world.Assume(d.Node, r, s.ends[e.ID])
			p.Take(e)
			s.started = append(s.started, e.ID)
			s.startedAt[e.ID] = s.now
		}
	}
	if n, _ := s.world.Node("local"); n.Used().Slots > n.Size() {
		s.t.Fatalf("%d slots of %d in use", n.Used().Slots, n.Size())
	}
}

func TestAHeadThatCannotBePlacedBlocksNobodyAndIsNotStarved(t *testing.T) {
	// F26, with small runs that never stop coming, so that three slots are never free at once by themselves.
	s := newScheduler(t, 4)
	s.lasts = 7000
	small := 0
	more := func(n int) {
		for range n {
			s.submit(fmt.Sprintf("s%04d", small), "t", 1, 50)
			small++
		}
	}
	more(2)
	s.second()
	s.submit("A", "t", 8, 50)
	s.submit("B", "t", 3, 10)
	more(20)
	s.submit("C", "t", 1, 90)
	submitted := s.now
	s.second()
	want := "needs 8 slots, limit of target local is 4"
	if s.nowhere["A"] != want {
		t.Errorf("A: %q, want %q at once", s.nowhere["A"], want)
	}
	if diff := cmp.Diff([]string{"C", "s0002"}, s.started[2:]); diff != "" {
		t.Errorf("first starts (-want +got):\n%s", diff)
	}
	for s.startedAt["B"] == 0 {
		if s.now-submitted > 60_000 {
			t.Fatalf("B still waits after %d s", (s.now-submitted)/1000)
		}
		more(1)
		s.second()
	}
	if waited := s.startedAt["B"] - submitted; waited < s.ageing || waited > s.ageing+s.lasts+1000 {
		t.Errorf("B waited %d ms, want its ageing of %d ms and at most one run's length more", waited, s.ageing)
	}
	s.lasts = 1000
	for range 60 {
		s.second()
	}
	if s.queue.Len() != 0 {
		t.Errorf("%d runs still wait", s.queue.Len())
	}
}

func TestABurstStarvesNobodyOnRealSlots(t *testing.T) {
	// F27: ten slots, runs of one second.
	s := newScheduler(t, 10)
	for i := range 10_000 {
		s.submit(fmt.Sprintf("a%05d", i), "A", 1, 50)
	}
	for range 10 {
		s.second()
	}
	if len(s.started) != 100 {
		t.Errorf("alone, A started %d runs in 10 s on 10 slots", len(s.started))
	}
	for i := range 5 {
		s.submit(fmt.Sprint("b", i), "B", 1, 50)
		s.submit(fmt.Sprint("c", i), "C", 1, 50)
	}
	came := s.now
	for range 4 {
		s.second()
	}
	for _, id := range []string{"b0", "b4", "c0", "c4"} {
		if waited := s.startedAt[id] - came; s.startedAt[id] == 0 || waited > 3000 {
			t.Errorf("%s waited %d ms, want at most 3 s", id, waited)
		}
	}
	if len(s.started) != 140 {
		t.Errorf("%d starts in 14 s on 10 slots", len(s.started))
	}
}

func TestAPassIsDeterministic(t *testing.T) {
	var runs [2][]string
	for i := range runs {
		c := crowd.New(3000, 20, 2)
		q := c.Queue()
		p := q.Begin()
		for e, ok := p.Next(); ok; e, ok = p.Next() {
			d := c.Profile.Place(c.World, c.Requests[e.ID])
			if d.Outcome != placement.Placed {
				p.BlockClass(e.Class)
				continue
			}
			c.World.Assume(d.Node, c.Requests[e.ID], 0)
			p.Take(e)
			runs[i] = append(runs[i], e.ID+" on "+d.Node)
		}
		p.End()
	}
	if len(runs[0]) != 1900 || !slices.Equal(runs[0], runs[1]) {
		t.Errorf("%d and %d placements, want the same 1900: two on each target without a taint", len(runs[0]), len(runs[1]))
	}
}

func TestADecisionAllocatesLittle(t *testing.T) {
	c := crowd.New(20_000, 20, 40)
	q := c.Queue()
	c.Pass(q, 5000) // views and masks are made
	if per := testing.AllocsPerRun(5, func() { c.Pass(q, 1000) }) / 1000; per > 5 {
		t.Errorf("%.1f allocations for each decision, at most 5 are wanted", per)
	}
}
