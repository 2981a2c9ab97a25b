package server

import (
	"context"
	"net/http"
	"time"

	"github.com/errand-run/errand/shared/api"
	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
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
		summary: "A handler that was called directly registers itself: the lease is of a run that already runs.",
		body:    api.Begin{}, answer: api.Lease{}, status: 201, errors: []int{400, 404, 409, 413, 415, 429, 503},
	}, s.beginRun)
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
	out := api.WorkerStanding{Drain: got.Drain, Attempts: make([]api.AttemptStanding, 0, len(got.Attempts))}
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
	if q.Execution != "" || q.Index != nil {
		return problem(http.StatusNotImplemented, api.CodeUnsupported, "executions of jobs are not registered by this version; leave execution and index out")
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
	a, err := s.plane.Begin(ctx, control.Beginning{Submission: sub, Worker: q.Worker})
	if err != nil {
		return err
	}
	out, err := s.lease(&a, s.opts.BeatEvery)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/runs/"+out.Run)
	return writeJSON(w, http.StatusCreated, out)
}
