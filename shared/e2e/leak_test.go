package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// TestNoSlotIsLost is case F29: a thousand runs on three slots end in every way there is, and the server is killed in
// between. Afterwards all three slots are there, and never were there more.
func TestNoSlotIsLost(t *testing.T) {
	t.Parallel()
	const total, slots, seed = 1000, 3, 29
	p := newPlace(t)
	s := newServerAt(p, target("desk", slots, "region: here"), p.agent("actor", "actor", "worker", `
	shape: pool
	output: {schema: {properties: {said: {minLength: 1}}}}
	retry: {maxAttempts: 2, backoff: {initial: 1ms, max: 1ms}}`))
	// 1. Every end there is.
	chance := rand.New(rand.NewPCG(seed, 0))
	const (
		canceledEarly = "is canceled wherever it is"
		canceledLate  = "is canceled while it runs"
		passes        = "passes its deadline"
	)
	scripts := []struct{ kind, script string }{
		{"succeeds", `{"scenes": [{"say": "done"}]}`},
		{"succeeds at the second attempt", `{"scenes": [{"fail": "BUSY", "retry": true}, {"say": "done"}]}`},
		{"fails", `{"scenes": [{"fail": "BAD"}]}`},
		{"uses up its attempts", `{"scenes": [{"fail": "BUSY", "retry": true}]}`},
		{"returns what its schema refuses", `{"scenes": [{"say": ""}]}`},
		{canceledEarly, `{"scenes": [{"chat": "2s", "say": "done"}]}`},
		{canceledLate, `{"scenes": [{"chat": "2s", "say": "done"}]}`},
		{passes, `{"scenes": [{"gate": "never"}]}`},
		{"takes its process down", `{"scenes": [{"crash": true}, {"say": "done"}]}`},
	}
	kinds := make(map[string]string) // run to kind
	early, late := []string{}, make(chan string, total)
	for first := 0; first < total; first += 100 {
		batch := make([]api.Submit, 100)
		of := make([]string, len(batch))
		for i := range batch {
			pick := scripts[chance.IntN(len(scripts))]
			if slow := pick.kind == "takes its process down" || pick.kind == canceledLate; slow && chance.IntN(7) > 0 {
				pick = scripts[0]
			}
			of[i] = pick.kind
			batch[i] = api.Submit{Agent: "actor", Input: []byte(pick.script), Key: fmt.Sprintf("run-%d", first+i)}
			if pick.kind == passes {
				batch[i].Deadline = &api.Time{Time: time.Now().Add(time.Second + time.Duration(chance.IntN(3000))*time.Millisecond)}
			}
		}
		items, err := s.SubmitBatch(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		for i, item := range items {
			if item.Error != nil {
				t.Fatal(item.Error)
			}
			kinds[item.Run.ID] = of[i]
			switch of[i] {
			case canceledEarly:
				early = append(early, item.Run.ID)
			case canceledLate:
				late <- item.Run.ID
			}
		}
	}
	close(late)
	// 2. People cancel, and do not give up while the server is away.
	ctx, cancel := context.WithTimeout(t.Context(), 3*outside.Patience)
	defer cancel()
	var people sync.WaitGroup
	people.Go(func() {
		for _, id := range early {
			if err := persist(ctx, func() error { _, err := s.Cancel(ctx, id, api.Cancel{}); return err }); err != nil {
				t.Errorf("cancel %s: %v", id, err)
			}
		}
	})
	for range 2 * slots {
		people.Go(func() {
			for id := range late {
				if err := persist(ctx, func() error { return s.cancelRunning(ctx, id) }); err != nil {
					t.Errorf("cancel %s: %v", id, err)
				}
			}
		})
	}
	// 3. The server is killed when a quarter, a half and three quarters are done.
	for kills := 1; ; {
		live := 0
		if err := persist(ctx, func() error {
			stats, err := s.Stats(ctx, api.StatsFilter{})
			if err != nil {
				return err
			}
			live = 0
			for _, n := range stats.States {
				live += n
			}
			for _, x := range stats.Target {
				if x.Used < 0 || x.Used > slots {
					t.Errorf("%d slots of %s are in use, there are %d", x.Used, x.Name, slots)
				}
			}
			return nil
		}); err != nil {
			t.Fatalf("with %d runs left: %v", live, err)
		}
		if live == 0 {
			break
		}
		if kills <= 3 && live <= total-kills*total/4 {
			kills++
			s.Reboot()
		}
		time.Sleep(100 * time.Millisecond)
	}
	people.Wait()
	// 4. Every run is over, and no instant saw more than three of them hold a slot.
	states := make(map[string]int)
	ids := make([]string, 0, total)
	for r, err := range s.Runs(t.Context(), api.RunFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if !r.Terminal() {
			t.Errorf("run %s, which %s, is %s", r.ID, kinds[r.ID], r.State)
		}
		states[kinds[r.ID]+": "+r.State]++
		ids = append(ids, r.ID)
	}
	t.Log(states)
	if len(ids) != total {
		t.Errorf("%d runs are there, want %d", len(ids), total)
	}
	if most := s.mostHeld(ids); most > slots {
		t.Errorf("%d runs held a slot at a time, there are %d slots", most, slots)
	}
	s.idle()
	// 5. Three new ones start at once, and a fourth has to wait.
	var fresh []string
	for range slots {
		r := s.submit("actor", `{"scenes": [{"gate": "last", "say": "done"}]}`)
		if events := s.history(r.ID); len(events) < 2 || events[1].Type != "assigned" {
			t.Errorf("a run on a free slot begins with %+v, want that it is assigned at once", events)
		}
		fresh = append(fresh, r.ID)
	}
	for _, id := range fresh {
		s.entered(id, 1)
	}
	if used := s.used(); used != slots {
		t.Errorf("%d slots are in use by %d runs", used, slots)
	}
	fourth := s.submit("actor", `{"scenes": [{"say": "done"}]}`)
	s.reaches(fourth.ID, "queued")
	p.open("last")
	for _, id := range append(fresh, fourth.ID) {
		s.succeeds(id)
	}
	s.idle()
}

// persist repeats what the server may be away for.
func persist(ctx context.Context, call func() error) error {
	for {
		err := call()
		if !errors.Is(err, api.ErrUnreachable) && !api.HasCode(err, api.CodeUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// cancelRunning cancels a run when it runs, or leaves it when it is over.
func (s *server) cancelRunning(ctx context.Context, id string) error {
	for {
		r, err := s.Client.Run(ctx, id, 0)
		switch {
		case err != nil:
			return err
		case r.Terminal():
			return nil
		case r.State == "running":
			_, err := s.Cancel(ctx, id, api.Cancel{})
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// mostHeld is how many of the runs held a slot at a time, by their histories.
func (s *server) mostHeld(ids []string) int {
	s.t.Helper()
	type step struct {
		at   time.Time
		held int
	}
	var mu sync.Mutex
	var steps []step
	var readers sync.WaitGroup
	for part := range slices.Chunk(ids, len(ids)/4+1) {
		readers.Go(func() {
			for _, id := range part {
				holds := false
				for e, err := range s.Events(s.t.Context(), id) {
					if err != nil {
						s.t.Error(err)
						return
					}
					now := e.State == "assigned" || e.State == "running" || e.State == "canceling" && holds
					if now == holds {
						continue
					}
					holds = now
					mu.Lock()
					steps = append(steps, step{e.At.Time, map[bool]int{true: 1, false: -1}[now]})
					mu.Unlock()
				}
			}
		})
	}
	readers.Wait()
	// What ends at an instant makes room for what begins at it.
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(a.at.Compare(b.at), a.held-b.held) })
	most, held := 0, 0
	for _, x := range steps {
		held += x.held
		most = max(most, held)
	}
	return most
}

// TestHandlerThatNeverEndsKeepsNoSlot: a run is over and its handler is not. The next run gets the only slot all the
// same, in a process where nothing of the first one is left.
func TestHandlerThatNeverEndsKeepsNoSlot(t *testing.T) {
	ends := map[string]func(*server, string){
		"at its deadline": func(*server, string) {},
		"by a cancel": func(s *server, id string) {
			do(s.Cancel(s.t.Context(), id, api.Cancel{Grace: new(api.Duration(time.Second))}))(s.t)
		},
	}
	for name, end := range ends {
		for _, protocol := range []string{"worker", "http", "stdio"} {
			t.Run(name+" over "+protocol, func(t *testing.T) {
				t.Parallel()
				p := newPlace(t)
				s := newServerAt(p, target("desk", 1, "region: here"), strings.Replace(p.agent("actor", "actor", protocol, quick),
					"    protocol:", "    slots: 1\n    protocol:", 1))
				first := s.submitRun(api.Submit{
					Agent: "actor", Input: []byte(`{"scenes": [{"gate": "never", "deaf": true}]}`),
					Deadline: &api.Time{Time: time.Now().Add(6 * time.Second)},
				}).ID
				pid := s.entered(first, 1)
				end(s, first)
				s.ends(first)
				next := s.submit("actor", `{"scenes": [{"say": "next"}]}`).ID
				if got := s.succeeds(next); got.PID == pid {
					t.Errorf("the next run was executed by %d, beside the handler that never ends", got.PID)
				}
				p.gone(pid)
			})
		}
	}
}
