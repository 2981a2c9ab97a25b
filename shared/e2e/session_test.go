package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/agent"
	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// Acceptance of instances, whose sessions outlive every process.

func init() {
	programs["diary"] = func() { agent.Main(write) }
}

// entry is a turn of the diary: a line to be added. The first attempt waits at the gate, if there is one, with the line
// already in its hands.
type entry struct {
	Line string `json:"line"`
	Gate string `json:"gate,omitempty"`
}

type diary struct {
	Lines []string `json:"lines"`
}

type written struct {
	Lines []string `json:"lines"`
	PID   int      `json:"pid"`
}

func write(ctx context.Context, r *agent.Run, in entry) (written, error) {
	d, err := agent.SessionOf[diary](r)
	if err != nil {
		return written{}, err
	}
	d.Lines = append(d.Lines, in.Line)
	note("stage", fmt.Sprintf("entered:%s.%d:%d", r.ID, r.Attempt, os.Getpid()))
	if in.Gate != "" && r.Attempt == 1 {
		if err := wait(ctx, true, 0, in.Gate); err != nil {
			return written{}, err
		}
	}
	return written{slices.Clone(d.Lines), os.Getpid()}, nil
}

func TestSessionsSurviveKillsOfTheirProcessAndOfTheServer(t *testing.T) {
	for _, protocol := range []string{"worker", "http", "stdio"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			s := newServerAt(p, p.agent("diary", "diary", protocol, `
	shape: instance
	retry: {backoff: {initial: 10ms, max: 10ms}}`))
			begin := func(line, gate string) string {
				t.Helper()
				input := fmt.Sprintf(`{"line": %q, "gate": %q}`, line, gate)
				return s.submitRun(api.Submit{Agent: "diary", Session: "mine", Input: []byte(input)}).ID
			}
			end := func(id string) written {
				t.Helper()
				r := s.ends(id)
				if r.State != "succeeded" {
					t.Fatalf("turn %s is %s (%s: %s)", id, r.State, r.Reason, r.Message)
				}
				return output[written](t, r)
			}
			// 1. Killed between two turns.
			end(begin("one", ""))
			idle := end(begin("two", ""))
			_ = syscall.Kill(idle.PID, syscall.SIGKILL) // a program of stdio is gone by itself
			p.gone(idle.PID)
			after := end(begin("three", ""))
			if after.PID == idle.PID {
				t.Errorf("the turn after the kill was taken by the same process")
			}
			// 2. Killed in a turn: it is taken again, from where the last one left the session.
			four := begin("four", "never")
			if err := syscall.Kill(s.entered(four, 1), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			end(four)
			// 3. The server killed in a turn, and others waiting.
			five, six := begin("five", "never"), begin("six", "")
			s.entered(five, 1)
			s.Reboot()
			lines := end(five).Lines
			if last := end(six).Lines; len(last) > len(lines) {
				lines = last
			}
			slices.Sort(lines[4:]) // the one that was taken again may have been overtaken
			if diff := cmp.Diff([]string{"one", "two", "three", "four", "five", "six"}, lines); diff != "" {
				t.Errorf("the session's lines (-want +got):\n%s", diff)
			}
			// 4. Turns that come at once are taken one by one; another session knows nothing of them.
			var mu sync.Mutex
			var ids []string
			var writers sync.WaitGroup
			for i := range 8 {
				writers.Go(func() {
					id := begin(fmt.Sprintf("line %d", i), "")
					mu.Lock()
					defer mu.Unlock()
					ids = append(ids, id)
				})
			}
			other := s.submitRun(api.Submit{Agent: "diary", Session: "other", Input: []byte(`{"line": "alone"}`)}).ID
			writers.Wait()
			longest := 0
			for _, id := range ids {
				longest = max(longest, len(end(id).Lines))
			}
			if longest != 6+8 {
				t.Errorf("the session has %d lines after 14 turns", longest)
			}
			if lines := end(other).Lines; len(lines) != 1 {
				t.Errorf("another session has lines %q, want its own one", lines)
			}
			s.idle()
		})
	}
}

// TestSignalWakesARunAcrossKills: a run that waits for a word holds no slot and no process, whatever dies meanwhile.
func TestSignalWakesARunAcrossKills(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("actor", "actor", "worker", quick))
	id := s.submit("actor", `{"scenes": [{"await": "word", "say": "heard"}]}`).ID
	s.reaches(id, "waiting")
	s.idle()
	s.Reboot()
	if r := s.get(id); r.State != "waiting" || r.WaitsFor == nil || r.WaitsFor.Name != "word" {
		t.Errorf("after a restart the run is %s and waits for %+v", r.State, r.WaitsFor)
	}
	word := api.SignalBody{Name: "word", Payload: []byte(`{"said": true}`), Key: "k"}
	for range 2 {
		do(s.Signal(t.Context(), id, word))(t)
	}
	got := s.succeeds(id)
	if diff := cmp.Diff([]string{"parked", "succeeded"}, s.fates(id)); got.Said != "heard" || diff != "" {
		t.Errorf("output %+v; attempts (-want +got):\n%s", got, diff)
	}
}

// TestEventsAreFollowedAcrossKills follows a run whose server is killed, as the client does by itself.
func TestEventsAreFollowedAcrossKills(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("actor", "actor", "worker", quick))
	id := s.submit("actor", `{"scenes": [{"gate": "never"}, {"gate": "end", "say": "done"}]}`).ID
	s.entered(id, 1)
	ctx, cancel := context.WithTimeout(t.Context(), outside.Patience)
	defer cancel()
	var got []api.Event
	for e, err := range s.FollowEvents(ctx, id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
		switch {
		case e.Type == "started" && e.Attempt == 1:
			s.Reboot()
		case e.Type == "started" && e.Attempt == 2:
			p.open("end")
		}
	}
	want := s.history(id)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was followed is not the history (-history +followed):\n%s", diff)
	}
	if last := want[len(want)-1]; last.Type != "succeeded" {
		t.Errorf("the history ends with %+v", last)
	}
	// A stream that is taken up again begins after what was seen.
	seen := want[1].Seq
	for e, err := range s.FollowEvents(ctx, id, seen) {
		if err != nil || e.Seq != seen+1 {
			t.Fatalf("event %d follows %d, error %v", e.Seq, seen, err)
		}
		seen = e.Seq
	}
	if seen != want[len(want)-1].Seq {
		t.Errorf("the stream ended after event %d of %d", seen, len(want))
	}
}

// TestRunGoesOnWithoutItsCaller: who invokes an agent and leaves loses the answer, not the run.
func TestRunGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("actor", "actor", "http", "shape: service"))
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.Invoke(ctx, "actor", api.Submit{Input: []byte(`{"scenes": [{"gate": "end", "say": "done"}]}`)}, time.Minute)
		left <- err
	}()
	var id string
	outside.Eventually(t, outside.Patience, "the run begins", func() bool {
		for r := range s.Runs(t.Context(), api.RunFilter{Agent: "actor", State: []string{"running"}}) {
			id = r.ID
		}
		return id != ""
	})
	s.entered(id, 1)
	leave()
	if err := <-left; err == nil {
		t.Fatal("the call did not end with its context")
	}
	p.open("end")
	if got := s.succeeds(id); got.Said != "done" || got.Attempt != 1 {
		t.Errorf("output %+v, want that of the first attempt", got)
	}
}
