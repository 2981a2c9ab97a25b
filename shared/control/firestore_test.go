package control

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/internal/emulator"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/store/firestore"
)

var projects atomic.Int64

// firestoreHouse is a house over a database of its own.
func firestoreHouse(t *testing.T, objects ...fleet.Object) (*house, *firestore.Store) {
	t.Helper()
	s, err := firestore.Open(t.Context(), firestore.Options{Project: fmt.Sprint("control-", projects.Add(1)), Endpoint: emulator.Firestore(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	h := &house{t: t, store: s, now: began}
	h.open()
	if _, err := h.p.Apply(t.Context(), objects, ApplyOptions{}); err != nil {
		t.Fatalf("apply: %v", err)
	}
	return h, s
}

func TestAPlainRunCostsFourWritesAndNoRead(t *testing.T) {
	t.Parallel()
	h, s := firestoreHouse(t, agentNamed("echo"))
	h.lease("w1", 5, "echo") // the worker is known
	h.settle()
	before := s.Stats()
	const runs = 20
	for range runs {
		r := h.submit(Submission{Agent: "echo", Input: json.RawMessage(`{"a":1}`)})
		leases := h.lease("w1", 5, "echo")
		if len(leases) != 1 {
			t.Fatalf("leases = %+v", leases)
		}
		for _, what := range []runtime.ReportType{runtime.Started, runtime.Completed} {
			if res := h.report(runtime.Report{Type: what, Run: r.ID, N: 1, Worker: "w1"}); res.Err != nil {
				t.Fatal(res.Err)
			}
		}
	}
	after := s.Stats()
	writes, reads := after.Writes-before.Writes, after.Reads-before.Reads
	t.Logf("%d runs: %d writes, %d reads, %d deletes; requests %v, before %v", runs, writes, reads, after.Deletes-before.Deletes, after.Requests, before.Requests)
	if writes > 4*runs || reads != 0 {
		t.Errorf("%d runs cost %d writes and %d reads, want at most %d and 0", runs, writes, reads, 4*runs)
	}
}

func TestAFanOutNeverWritesItsParent(t *testing.T) { // case F13
	const children = 500
	t.Parallel()
	h, s := firestoreHouse(t, agentNamed("echo"))
	h.put("parent", "", run.Suspended)
	echo, err := h.p.DeclaredOne(t.Context(), fleet.KindAgent, "echo")
	if err != nil {
		t.Fatal(err)
	}
	var units []store.Unit
	for i := range children {
		r := run.New(run.Spec{
			ID: fmt.Sprint("child-", i), Agent: "echo", Revision: echo.Revision, Tenant: "default", CreatedAt: run.At(h.now), Parent: "parent",
		}, run.Event{Type: run.EvSubmitted, At: run.At(h.now)})
		units = append(units, store.Unit{Token: r.ID, Writes: []store.Write{Document(r, 0)}})
	}
	for i, err := range h.store.Commit(t.Context(), units) {
		if err != nil {
			t.Fatalf("child %d: %v", i, err)
		}
	}
	h.open() // a plane that finds them, once it decides
	for range 20 {
		if h.p.leads() {
			break
		}
		h.pass(time.Second)
	}
	parent, err := s.Get(t.Context(), store.KindRun, "parent")
	if err != nil {
		t.Fatal(err)
	}
	// 1. All are handed out.
	var leases []runtime.Assignment
	for range 20 {
		resp, err := h.p.Lease(t.Context(), LeaseRequest{Worker: "w1", Agents: []string{"echo"}, Max: children, Slots: children})
		if err != nil {
			t.Fatal(err)
		}
		if leases = append(leases, resp.Leases...); len(leases) == children {
			break
		}
		h.settle()
	}
	if len(leases) != children {
		t.Fatalf("%d children are handed out, want %d", len(leases), children)
	}
	// 2. They end at once, each told by itself.
	before, at := s.Stats(), time.Now()
	var wg sync.WaitGroup
	for _, l := range leases {
		wg.Go(func() {
			if res := h.p.Report(t.Context(), []runtime.Report{{Type: runtime.Completed, Run: l.Run, N: l.N, Worker: "w1"}})[0]; res.Err != nil {
				t.Errorf("child %s: %v", l.Run, res.Err)
			}
		})
	}
	wg.Wait()
	took, after := time.Since(at), s.Stats()
	h.settle()
	// 3. Each is counted once, and the parent is as it was.
	ended := 0
	for q := (store.Query{By: store.ByParent, Parent: "parent", Limit: 200}); ; {
		page, err := s.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Docs {
			if r, err := run.DecodeRecord(page.Docs[i].Body); err == nil && r.State == run.Succeeded && r.Spent == 1 {
				ended++
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	writes := after.Writes - before.Writes
	t.Logf("%d children ended in %s with %d writes in %d requests", ended, took, writes, after.Requests["BatchWrite"]-before.Requests["BatchWrite"]+after.Requests["Commit"]-before.Requests["Commit"])
	if ended != children || writes != children {
		t.Errorf("%d children have ended once, by %d writes; want %d of both", ended, writes, children)
	}
	if now, err := s.Get(t.Context(), store.KindRun, "parent"); err != nil || now.Version != parent.Version {
		t.Errorf("the parent moved from version %d to %d, %v", parent.Version, now.Version, err)
	}
}

func TestARecordStaysSmallHoweverMuchHappens(t *testing.T) { // case F14
	const events = 5000
	t.Parallel()
	h, s := firestoreHouse(t, agentNamed("chatty"))
	id := h.finish(Submission{Agent: "chatty"}).ID
	comment := strings.Repeat("x", 400)
	largest := 0
	for i := range events {
		r, err := h.p.Score(t.Context(), id, float64(i%2), "ada", comment)
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
		largest = max(largest, len(run.Encode(r)))
	}
	d, err := s.Get(t.Context(), store.KindRun, id)
	if err != nil || largest > 64<<10 || len(d.Body) > largest {
		t.Errorf("the record has %d bytes, had up to %d, %v; want at most 64 KiB", len(d.Body), largest, err)
	}
	history, _, err := h.p.history(t.Context(), id)
	if err != nil || len(history) <= events {
		t.Errorf("%d events are in its history, %v; want more than %d", len(history), err, events)
	}
	t.Logf("%d events: the record had up to %d bytes", len(history), largest)
}

func TestStateOverFirestore(t *testing.T) {
	t.Parallel()
	h, _ := firestoreHouse(t, agentNamed("post"))
	raceForState(t, h, 3, 8)
	staleAttempt(t, h)
}
