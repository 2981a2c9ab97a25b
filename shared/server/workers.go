package server

import (
	"context"
	"net/http"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
)

const (
	maxLeaseWait = 30 * time.Second
	maxBeat      = 64 << 20 // sessions that a stopping instance saves travel with its last heartbeat
)

func (s *Server) workerDoors() {
	s.plain(door{
		method: "POST", path: "/v1/leases", id: "lease", tag: "workers", need: work, hot: true,
		summary: "Wait for runs to execute, 30s at most.",
		body:    api.LeaseRequest{}, answer: api.LeaseResponse{}, errors: []int{400, 413, 415, 503},
	}, s.leaseRuns)
	s.plain(door{
		method: "POST", path: "/v1/workers/{id}:heartbeat", id: "workerHeartbeat", tag: "workers", need: work, hot: true,
		summary: "A worker's sign of life with all that it holds. An attempt that is missing in the answer is no longer the worker's.",
		body:    api.WorkerBeat{}, answer: api.WorkerStanding{}, errors: []int{400, 413, 415, 503},
	}, s.workerBeat)
	s.plain(door{
		method: "POST", path: "/v1/runs:begin", id: "beginRun", tag: "workers", need: work,
		summary: "A handler that was called directly, or a task of a job that was started by hand, registers itself: the lease is of a run that already runs. With status 200 and a Finished where the run of that key is over.",
		body:    api.Begin{}, answer: api.Lease{}, status: 201, also: []int{200}, errors: []int{400, 404, 409, 413, 415, 429, 503},
	}, s.beginRun)
	s.plain(door{
		method: "POST", path: "/v1/attempts/{id}:claim", id: "claimAttempt", tag: "workers", need: work, hot: true,
		summary: "The executor that a hand-over named takes the attempt, with its one-use ticket. The same worker may ask again.",
		body:    api.Claim{}, answer: api.Lease{}, errors: []int{400, 403, 404, 409, 413, 415, 503},
	}, s.claimAttempt)
	s.plain(door{
		method: "POST", path: "/v1/attempts/{id}:undelivered", id: "attemptUndelivered", tag: "workers", need: handBack,
		summary: "An attempt's hand-over came to nobody and will not: the attempt is given back, unless it was claimed.",
		body:    api.Undelivered{}, status: 204, errors: []int{400, 403, 404, 413, 415, 503},
	}, s.attemptUndelivered)
	s.plain(door{
		method: "POST", path: "/v1/tick", id: "tick", tag: "workers", need: tend,
		summary: "Look at what is due and may have been missed. Early, late and doubled ticks do no harm.",
		answer:  api.Ticked{}, errors: []int{503},
	}, s.tick)
}

// leaseRequest checks what a worker asks for, and whether it may.
func leaseRequest(ctx context.Context, q *api.LeaseRequest, at string) (control.LeaseRequest, error) {
	if err := unitName(at+".worker", q.Worker, runtime.MaxName); err != nil {
		return control.LeaseRequest{}, err
	}
	if err := agentNames(at+".agents", q.Agents); err != nil {
		return control.LeaseRequest{}, err
	}
	switch {
	case q.Target != "" && !isName.MatchString(q.Target):
		return control.LeaseRequest{}, invalidAt(at+".target", "%q is no target's name", clip(q.Target))
	case q.Max < 1 || q.Max > api.MaxSlots:
		return control.LeaseRequest{}, invalidAt(at+".max", "%d; want 1 to %d", q.Max, api.MaxSlots)
	case q.Slots != 0 && (q.Slots < q.Max || q.Slots > api.MaxSlots):
		return control.LeaseRequest{}, invalidAt(at+".slots", "%d; want at least max, which is %d, and at most %d", q.Slots, q.Max, api.MaxSlots)
	case q.Wait < 0:
		return control.LeaseRequest{}, invalidAt(at+".wait", "%s; want 0s to %s", q.Wait.Std(), maxLeaseWait)
	}
	p := principal(ctx)
	if err := p.mayExecute(q.Agents...); err != nil {
		return control.LeaseRequest{}, err
	}
	slots := q.Slots
	if slots == 0 {
		slots = q.Max
	}
	return control.LeaseRequest{
		Worker: q.Worker, Target: q.Target, Agents: q.Agents, Slots: slots, Max: q.Max, Wait: min(q.Wait.Std(), maxLeaseWait),
	}, nil
}

func agentNames(at string, names []string) error {
	if len(names) == 0 || len(names) > fleet.MaxListLength {
		return invalidAt(at, "%d agents; want 1 to %d", len(names), fleet.MaxListLength)
	}
	for i, name := range names {
		if !isName.MatchString(name) {
			return invalidAt(at+"["+itoa(i)+"]", "%q is no agent's name", clip(name))
		}
	}
	return nil
}

func (s *Server) leaseRuns(w http.ResponseWriter, r *http.Request) error {
	body, err := decode[api.LeaseRequest](w, r, maxSmall, false)
	if err != nil {
		return err
	}
	q, err := leaseRequest(r.Context(), &body, "body")
	if err != nil {
		return err
	}
	ctx := r.Context()
	if q.Wait > 0 {
		if err := s.waits.enter(); err != nil {
			return err
		}
		defer s.waits.leave()
		patience(w, q.Wait)
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.alive, cancel)()
	}
	got, err := s.plane.Lease(ctx, q)
	if err != nil {
		if ctx.Err() != nil && r.Context().Err() == nil { // the server closes while the worker waits: nothing came
			return writeJSON(w, http.StatusOK, api.LeaseResponse{Leases: []api.Lease{}})
		}
		return err
	}
	out := api.LeaseResponse{Drain: got.Drain}
	if out.Leases, err = s.leases(got); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}

func (s *Server) leases(got control.LeaseResponse) ([]api.Lease, error) {
	out := make([]api.Lease, 0, len(got.Leases))
	for i := range got.Leases {
		l, err := s.lease(&got.Leases[i], got.BeatEvery)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

func (s *Server) workerBeat(w http.ResponseWriter, r *http.Request) error {
	// 1. What is asked.
	id := pathValue(r, "id")
	if err := unitName("path.id", id, runtime.MaxName); err != nil {
		return err
	}
	q, err := decode[api.WorkerBeat](w, r, maxBeat, false)
	if err != nil {
		return err
	}
	if err := agentNames("body.agents", q.Agents); err != nil {
		return err
	}
	p := principal(r.Context())
	if err := p.mayExecute(q.Agents...); err != nil {
		return err
	}
	switch {
	case q.Target != "" && !isName.MatchString(q.Target):
		return invalidAt("body.target", "%q is no target's name", clip(q.Target))
	case q.Slots < 0 || q.Slots > api.MaxSlots:
		return invalidAt("body.slots", "%d; want 0 to %d", q.Slots, api.MaxSlots)
	case len(q.Attempts) > api.MaxSlots:
		return invalidAt("body.attempts", "%d attempts; the limit is %d", len(q.Attempts), api.MaxSlots)
	case len(q.Sessions) > api.MaxSlots:
		return invalidAt("body.sessions", "%d sessions; the limit is %d", len(q.Sessions), api.MaxSlots)
	}
	for i, a := range q.Attempts {
		if _, _, err := runtime.ParseAttemptID(a); err != nil {
			return invalidAt("body.attempts["+itoa(i)+"]", "%v", err)
		}
	}
	// 2. What the worker must know.
	got, err := s.plane.Beat(r.Context(), control.WorkerBeat{
		Worker: id, Target: q.Target, Agents: q.Agents, Slots: q.Slots, Draining: q.Draining, Attempts: q.Attempts, Sessions: q.Sessions,
	})
	if err != nil {
		return err
	}
	out := api.WorkerStanding{Drain: got.Drain, Partial: got.Partial, Attempts: make([]api.AttemptStanding, 0, len(got.Attempts))}
	for _, a := range got.Attempts {
		out.Attempts = append(out.Attempts, api.AttemptStanding{
			ID: a.ID, Standing: api.Standing{Deadline: timeOf(a.Deadline), Cancel: a.Cancel, CancelReason: string(a.CancelReason)},
		})
	}
	return writeJSON(w, http.StatusOK, out)
}

func (s *Server) beginRun(w http.ResponseWriter, r *http.Request) error {
	q, err := decode[api.Begin](w, r, api.MaxBody, false)
	if err != nil {
		return err
	}
	if err := unitName("body.worker", q.Worker, runtime.MaxName); err != nil {
		return err
	}
	switch {
	case (q.Execution == "") != (q.Index == nil):
		return invalidAt("body.execution", "execution and index belong together: give both for a task of a job, or neither")
	case q.Execution != "" && unitName("body.execution", q.Execution, runtime.MaxName) != nil:
		return unitName("body.execution", q.Execution, runtime.MaxName)
	case q.Index != nil && (*q.Index < 0 || *q.Index >= maxTasks):
		return invalidAt("body.index", "%d; want 0 to %d", *q.Index, maxTasks-1)
	case q.Completions != nil && (*q.Completions < 1 || *q.Completions > maxTasks):
		return invalidAt("body.completions", "%d; want 1 to %d", *q.Completions, maxTasks)
	case q.Completions != nil && q.Index == nil:
		return invalidAt("body.completions", "%d completions without an index: give both for a task of a job", *q.Completions)
	case q.Completions != nil && *q.Index >= *q.Completions:
		return invalidAt("body.index", "%d of %d completions; indexes count from 0, so the last one is %d", *q.Index, *q.Completions, *q.Completions-1)
	case q.Restarts < 0 || q.Restarts > maxRestarts:
		return invalidAt("body.restarts", "%d; want 0 to %d", q.Restarts, maxRestarts)
	}
	asked := api.Submit{Agent: q.Agent, Input: q.Input, Tenant: q.Tenant, Key: q.Key, Session: q.Session}
	if asked.Key, err = key(r, q.Key); err != nil {
		return err
	}
	sub, err := submission(r.Context(), &asked, "body")
	if err != nil {
		return err
	}
	p := principal(r.Context())
	if err := p.mayExecute(sub.Agent); err != nil {
		return err
	}
	sub.Trace = trace(r)
	ctx, cancel := detached(r.Context())
	defer cancel()
	beginning := control.Beginning{Submission: sub, Worker: q.Worker, Execution: q.Execution, Completions: q.Completions, Restarts: q.Restarts}
	if q.Index != nil {
		beginning.Index = *q.Index
	}
	begun, err := s.plane.Begin(ctx, beginning)
	if err != nil {
		return err
	}
	if begun.Assignment == nil {
		return s.writeFinished(ctx, w, begun.Run)
	}
	out, err := s.lease(begun.Assignment, s.opts.BeatEvery)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/runs/"+out.Run)
	return writeJSON(w, http.StatusCreated, out)
}

// Bounds of what a platform says of its tasks.
const (
	maxTasks    = 10_000
	maxRestarts = 1000
)

// writeFinished answers with a run that is over.
func (s *Server) writeFinished(ctx context.Context, w http.ResponseWriter, r *run.Record) error {
	out := api.Finished{Run: r.ID, State: string(r.State), Reason: string(r.Reason), Message: r.Message}
	if last := r.Current(); last != nil {
		out.Code = last.Code
	}
	if r.State == run.Succeeded {
		var err error
		if out.Output, err = s.plane.Value(ctx, r.Output); err != nil {
			return err
		}
	}
	return writeJSON(w, http.StatusOK, out)
}

func (s *Server) claimAttempt(w http.ResponseWriter, r *http.Request) error {
	id := pathValue(r, "id")
	if _, _, err := attemptID(id); err != nil {
		return err
	}
	q, err := decode[api.Claim](w, r, maxSmall, false)
	if err != nil {
		return err
	}
	if err := unitName("body.worker", q.Worker, runtime.MaxName); err != nil {
		return err
	}
	ctx, cancel := detached(r.Context())
	defer cancel()
	p := principal(r.Context())
	a, err := s.plane.Claim(ctx, control.Claim{
		Attempt: id, Worker: q.Worker, Ticket: q.Ticket, May: func(agent string) bool { return p.mayExecute(agent) == nil },
	})
	if err != nil {
		return err
	}
	out, err := s.lease(&a, s.opts.BeatEvery)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}

func (s *Server) attemptUndelivered(w http.ResponseWriter, r *http.Request) error {
	id := pathValue(r, "id")
	if _, _, err := attemptID(id); err != nil {
		return err
	}
	q, err := decode[api.Undelivered](w, r, maxSmall, false)
	if err != nil {
		return err
	}
	if err := s.plane.Undelivered(r.Context(), id, q.Ticket, q.Reason); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) tick(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, http.StatusOK, api.Ticked{Leader: s.plane.Tick(r.Context())})
}
