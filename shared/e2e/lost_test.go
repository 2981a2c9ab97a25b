package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/outside"
)

// Acceptance of workers that die, hang, fall silent or are asked to end.

// quick makes the second attempt follow the first at once.
const quick = `
	shape: pool
	permissions: {effects: ["*"]}
	retry: {maxAttempts: 4, backoff: {initial: 10ms, max: 10ms}}`

// field is an agent that no server starts: workers come for it.
const field = `apiVersion: errand.dev/v1
kind: Agent
metadata: {name: field}
spec:
  shape: pool
  permissions: {effects: ["*"]}
  retry: {maxAttempts: 2, backoff: {initial: 10ms, max: 10ms}}`

// entered waits until an attempt has begun, and returns the process that it is in.
func (s *server) entered(run string, attempt int) int {
	s.t.Helper()
	pid := 0
	outside.Eventually(s.t, outside.Patience, fmt.Sprintf("attempt %s.%d begins", run, attempt), func() bool {
		for _, line := range s.notes("stage") {
			var id string
			var n int
			fields := strings.FieldsFunc(line, func(r rune) bool { return r == ':' || r == '.' })
			if len(fields) == 4 && fields[0] == "entered" {
				id = fields[1]
				_, _ = fmt.Sscan(fields[2], &n)
				if id == run && n == attempt {
					_, _ = fmt.Sscan(fields[3], &pid)
				}
			}
		}
		return pid != 0
	})
	return pid
}

// open opens a gate that actors wait at.
func (p *place) open(gate string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, gate), nil, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// idle waits until no slot is in use.
func (s *server) idle() {
	s.t.Helper()
	outside.Eventually(s.t, outside.Patience, "no slot is in use", func() bool { return s.used() == 0 })
}

// succeeds waits for the end of a run and returns its output.
func (s *server) succeeds(id string) played {
	s.t.Helper()
	r := s.ends(id)
	if r.State != "succeeded" {
		s.t.Fatalf("run %s is %s (%s: %s), want succeeded; attempts %+v", id, r.State, r.Reason, r.Message, r.Attempts)
	}
	return output[played](s.t, r)
}

// fates are the states of a run's attempts, with their failure class where there is one.
func (s *server) fates(id string) []string {
	s.t.Helper()
	var fates []string
	for _, a := range s.attempts(id) {
		fates = append(fates, strings.TrimSuffix(a.State+" "+a.Class, " "))
	}
	return fates
}

func TestKilledWorkerProcessIsReplaced(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("actor", "actor", "worker", quick))
	const twice = `{"scenes": [{"gate": "never"}, {"say": "second"}]}`
	one, two := s.submit("actor", twice), s.submit("actor", twice)
	pid := s.entered(one.ID, 1)
	if other := s.entered(two.ID, 1); other != pid {
		t.Fatalf("processes %d and %d, want both runs in one", pid, other)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*api.Run{one, two} {
		if got := s.succeeds(r.ID); got.Said != "second" || got.PID == pid {
			t.Errorf("run %s: output %+v, want that of the second attempt, in another process than %d", r.ID, got, pid)
		}
		if diff := cmp.Diff([]string{"failed lost", "succeeded"}, s.fates(r.ID)); diff != "" {
			t.Errorf("attempts of %s (-want +got):\n%s", r.ID, diff)
		}
	}
	s.idle()
}

func TestWorkerProcessThatHangsIsReplaced(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("actor", "actor", "worker", quick))
	r := s.submit("actor", `{"scenes": [{"gate": "late", "deaf": true, "say": "first"}, {"say": "second"}]}`)
	pid := s.entered(r.ID, 1)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	if got := s.succeeds(r.ID); got.Said != "second" || got.PID == pid {
		t.Errorf("output %+v, want that of the second attempt, in another process than %d", got, pid)
	}
	if diff := cmp.Diff([]string{"failed lost", "succeeded"}, s.fates(r.ID)); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	s.gone(pid)
	s.idle()
}

func TestWorkerThatHangsPastItsLeaseIsFenced(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, field)
	// 1. One worker hangs with a run, and another gets the run when the lease has passed.
	slow := p.program("actor", append(s.workerEnv("field", 1), "ERRAND_WORKER=slow")...)
	r := s.submit("field", `{"scenes": [{"gate": "late", "deaf": true, "say": "first"}, {"gate": "second", "say": "second"}]}`)
	s.entered(r.ID, 1)
	slow.Send(t, syscall.SIGSTOP)
	p.program("actor", append(s.workerEnv("field", 1), "ERRAND_WORKER=swift")...)
	s.entered(r.ID, 2)
	// 2. The first one comes back and ends its work beside its successor. It learns that the run is no longer its own.
	p.open("late")
	slow.Send(t, syscall.SIGCONT)
	outside.Eventually(t, outside.Patience, "the handler that was late ends", func() bool { return slices.ContainsFunc(p.notes("stage"), leftAttempt(r.ID, 1)) })
	// 3. It can work again: the next run can only go there.
	next := s.submit("field", `{"scenes": [{"say": "next"}]}`)
	if got := s.succeeds(next.ID); got.PID != slow.Process.Pid {
		t.Errorf("the next run was executed by %d, want the worker that hung, %d", got.PID, slow.Process.Pid)
	}
	// 4. What the first one said changed nothing.
	if state := s.get(r.ID).State; state != "running" {
		t.Errorf("the run is %s beside its second attempt, want running", state)
	}
	p.open("second")
	if got := s.succeeds(r.ID); got.Said != "second" {
		t.Errorf("output %+v, want the successor's", got)
	}
	if diff := cmp.Diff([]string{"failed lost", "succeeded"}, s.fates(r.ID)); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
}

func leftAttempt(id string, n int) func(string) bool {
	return func(line string) bool { return strings.HasPrefix(line, fmt.Sprintf("left:%s.%d:", id, n)) }
}

func TestReportsOfAWorkerThatWasSilentAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t, field)
	// 1. A worker takes a run and sends no sign of life. Its successor takes the run when the lease has passed.
	lease := func(worker string) api.Lease {
		t.Helper()
		for range 4 {
			answer, err := s.Lease(t.Context(), api.LeaseRequest{
				Worker: worker, Agents: []string{"field"}, Slots: 1, Max: 1, Wait: api.Duration(20 * time.Second),
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(answer.Leases) == 1 {
				return answer.Leases[0]
			}
		}
		t.Fatalf("worker %s gets no run", worker)
		return api.Lease{}
	}
	first := make(chan api.Lease, 1)
	go func() { first <- lease("one") }()
	r := s.submit("field", `{}`)
	old := <-first
	if _, err := s.Report(t.Context(), api.Report{Type: api.ReportStart, Attempt: old.Attempt, Token: old.Token}); err != nil {
		t.Fatal(err)
	}
	held := lease("two")
	if held.Run != r.ID || held.N != 2 {
		t.Fatalf("the second worker got attempt %s, want the second of %s", held.Attempt, r.ID)
	}
	// 2. Nothing of the first one counts, whatever it says.
	s.reaches(r.ID, "running") // the last that is written of the second attempt until it ends
	before := s.history(r.ID)
	park := api.Park{On: "timer", Step: "s", Until: &api.Time{Time: time.Now()}}
	late := []api.Report{
		{Type: api.ReportStart}, {Type: api.ReportBeat}, {Type: api.ReportComplete, Output: []byte(`"late"`)},
		{Type: api.ReportFail, Message: "late"}, {Type: api.ReportRelease}, {Type: api.ReportPark, Park: &park},
		{Type: api.ReportStep, Step: &api.Step{Name: "s", Result: []byte("1")}}, {Type: api.ReportUsage, Usage: &api.Usage{USD: 1}},
		{Type: api.ReportProgress, Progress: new(0.5)}, {Type: api.ReportLogs, Logs: []api.LogLine{{Text: "late"}}},
	}
	for _, report := range late {
		report.Attempt, report.Token = old.Attempt, old.Token
		if _, err := s.Report(t.Context(), report); !api.HasCode(err, api.CodeFenced) {
			t.Errorf("report %s of the attempt that was lost: error %v, want fenced", report.Type, err)
		}
		batch, err := s.ReportBatch(t.Context(), api.ReportBatch{Reports: []api.Report{report}})
		if err != nil || batch.Results[0].Error == nil || batch.Results[0].Error.Code() != api.CodeFenced {
			t.Errorf("report %s in a batch: %+v, error %v, want fenced", report.Type, batch, err)
		}
	}
	_, err := s.BeginReceipt(t.Context(), old.Attempt, old.Token, "mail", api.ReceiptBegin{RequestHash: strings.Repeat("0", 64), Nonce: "n"})
	if !api.HasCode(err, api.CodeFenced) {
		t.Errorf("receipt of the attempt that was lost: error %v, want fenced", err)
	}
	if diff := cmp.Diff(before, s.history(r.ID)); diff != "" {
		t.Errorf("the history has changed (-before +after):\n%s", diff)
	}
	// 3. The successor's result stands.
	done := api.Report{Type: api.ReportComplete, Attempt: held.Attempt, Token: held.Token, Output: []byte(`"in time"`)}
	if _, err := s.Report(t.Context(), done); err != nil {
		t.Fatal(err)
	}
	if got := s.ends(r.ID); got.State != "succeeded" || string(got.Output) != `"in time"` || got.Cost.USD != 0 {
		t.Errorf("run %+v, want the successor's output, and no cost", got)
	}
	if _, err := s.Report(t.Context(), done); err != nil {
		t.Errorf("the same end told again: error %v, want none: its first answer may have been lost", err)
	}
	done.Output = []byte(`"otherwise"`)
	var problem *api.Problem
	if _, err := s.Report(t.Context(), done); !errors.As(err, &problem) || problem.Status != 409 {
		t.Errorf("another end of the same attempt: error %v, want 409", err)
	}
}

func TestKilledExecHostLeavesNothingAndItsRunsGoOn(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, field)
	host := func(slots string) *outside.Program {
		return p.start(p.environment(roleErrand, "ERRAND_SERVER=http://"+s.Addr), nil, "exec", "--agent", "field", "--slots", slots,
			"--", "env", envRole+"=actor", self())
	}
	// 1. Two programs under a host that is killed.
	first := host("2")
	const twice = `{"scenes": [{"gate": "never", "deaf": true}, {"say": "second"}]}`
	one, two := s.submit("field", twice), s.submit("field", twice)
	pids := []int{s.entered(one.ID, 1), s.entered(two.ID, 1)}
	first.Kill()
	for _, pid := range pids {
		p.gone(pid)
	}
	// 2. Another host gets their runs when the lease has passed.
	host("1")
	for _, r := range []*api.Run{one, two} {
		if got := s.succeeds(r.ID); got.Said != "second" {
			t.Errorf("output %+v, want that of the second attempt", got)
		}
		if diff := cmp.Diff([]string{"failed lost", "succeeded"}, s.fates(r.ID)); diff != "" {
			t.Errorf("attempts of %s (-want +got):\n%s", r.ID, diff)
		}
	}
}

func TestHandlerThatFallsSilentIsReplaced(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("actor", "actor", "worker", quick+`
	timeouts: {heartbeat: 1s}`))
	silent := s.submit("actor", `{"scenes": [{"gate": "never"}, {"say": "second"}]}`)
	chatty := s.submit("actor", `{"scenes": [{"chat": "2500ms", "say": "first"}, {"say": "second"}]}`)
	if got := s.succeeds(silent.ID); got.Said != "second" {
		t.Errorf("the silent one: output %+v, want that of the second attempt", got)
	}
	first := s.attempts(silent.ID)[0]
	if first.State != "failed" || !strings.Contains(first.Code+first.Message, "HeartbeatLost") {
		t.Errorf("the silent one's first attempt: %+v, want failed with HeartbeatLost", first)
	}
	if got := s.succeeds(chatty.ID); got.Said != "first" {
		t.Errorf("the one that makes progress: output %+v, want that of the first attempt", got)
	}
	s.idle()
}

// TestSIGTERMHandsRunsBack asks workers to end three times with the same run, which may be tried twice: being handed
// back must not count.
func TestSIGTERMHandsRunsBack(t *testing.T) {
	const script = `{"scenes": [{"gate": "never"}, {"gate": "never"}, {"gate": "never"}, {"fail": "NO", "retry": true}]}`
	tests := map[string]func(*server) *outside.Program{
		"of a worker on the SDK": func(s *server) *outside.Program {
			return s.program("actor", append(s.workerEnv("field", 1), "ERRAND_GRACE=0s")...)
		},
		"of errand exec": func(s *server) *outside.Program {
			return s.start(s.environment(roleErrand, "ERRAND_SERVER=http://"+s.Addr), nil,
				"exec", "--agent", "field", "--grace", "0s", "--", "env", envRole+"=actor", self())
		},
	}
	for name, start := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			s := newServerAt(p, field)
			r := s.submit("field", script)
			for n := 1; n <= 3; n++ {
				worker := start(s)
				pid := s.entered(r.ID, n)
				worker.Send(t, syscall.SIGTERM)
				if code := worker.Code(t); code != 0 && code != 130 {
					t.Errorf("the worker ended with code %d:\n%s", code, worker.Log.Tail())
				}
				p.gone(pid)
				s.until(r.ID, fmt.Sprintf("attempt %d is handed back", n), func(r *api.Run) bool {
					return r.Attempts[len(r.Attempts)-1].State == "released"
				})
			}
			start(s)
			if got := s.ends(r.ID); got.State != "failed" || got.Reason != "BackoffLimitExceeded" {
				t.Errorf("the run is %s (%s: %s), want failed for it was tried twice", got.State, got.Reason, got.Message)
			}
			if diff := cmp.Diff([]string{"released", "released", "released", "failed user", "failed user"}, s.fates(r.ID)); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSIGTERMOfTheServerHandsRunsBack(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServerAt(p, p.agent("puller", "actor", "worker", quick), p.agent("program", "actor", "stdio", quick),
		p.agent("listener", "actor", "http", quick))
	const script = `{"scenes": [{"gate": "never"}, {"say": "second"}]}`
	var ids []string
	for _, agent := range []string{"puller", "program", "listener"} {
		ids = append(ids, s.submit(agent, script).ID)
	}
	for _, id := range ids {
		s.entered(id, 1)
	}
	s.Send(t, syscall.SIGTERM)
	if code := s.Code(t); code != 0 {
		t.Errorf("the server ended with code %d, want 0", code)
	}
	for _, pid := range p.pids() {
		p.gone(pid)
	}
	s.Boot()
	for _, id := range ids {
		if got := s.succeeds(id); got.Said != "second" {
			t.Errorf("output %+v, want that of the second attempt", got)
		}
		if diff := cmp.Diff([]string{"released", "succeeded"}, s.fates(id)); diff != "" {
			t.Errorf("attempts of %s's %s (-want +got):\n%s", id, s.get(id).Agent, diff)
		}
	}
	s.idle()
}
