package agent

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// The part of the fake that a cloud needs: attempts that are claimed with a ticket, and runs that begin themselves.

// offer assigns a queued run to whoever shows its ticket first.
func (f *fake) offer(r *fakeRun) (attempt, ticket string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = slices.DeleteFunc(f.queue, func(id string) bool { return id == r.id })
	r.n++
	r.state, r.worker, r.claimed, r.deadline = "assigned", "", false, time.Now().Add(f.attemptFor)
	r.ticket = "ticket-" + r.attempt()
	return r.attempt(), r.ticket
}

// document is an attempt that is sent, as a service is sent it, with its token.
func (f *fake) document(agent, input string) (r *fakeRun, document, token string) {
	r = f.submit(agent, input)
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.lease(&api.LeaseRequest{Agents: []string{agent}, Max: 1})[0]
	raw, _ := json.Marshal(l.Document(""))
	return r, string(raw), l.Token
}

func (f *fake) serveClaim(w http.ResponseWriter, path string, body []byte) {
	attempt := strings.TrimSuffix(strings.TrimPrefix(path, "/v1/attempts/"), ":claim")
	var c api.Claim
	_ = json.Unmarshal(body, &c)
	f.mu.Lock()
	defer f.mu.Unlock()
	id, _, _ := strings.Cut(attempt, ".")
	r := f.runs[id]
	if r == nil || !r.live() || r.attempt() != attempt || r.ticket != c.Ticket || r.claimed && r.worker != c.Worker {
		f.answer(w, nil, problemOf(409, api.CodeFenced, "the ticket is used, or its attempt over"))
		return
	}
	r.worker, r.claimed = c.Worker, true
	f.touch()
	l := f.leaseOf(r)
	f.answer(w, &l, nil)
}

func (f *fake) serveBegin(w http.ResponseWriter, body []byte) {
	var b api.Begin
	_ = json.Unmarshal(body, &b)
	f.mu.Lock()
	defer f.mu.Unlock()
	var r *fakeRun
	for _, known := range f.runs {
		if b.Key != "" && known.key == b.Key {
			r = known
		}
	}
	lease := func() {
		l := f.leaseOf(r)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(&l)
	}
	switch {
	case r == nil:
		r = f.submitLocked(b.Agent, string(b.Input))
		f.queue = f.queue[:len(f.queue)-1]
		r.key, r.restarts, r.worker, r.state, r.n, r.deadline = b.Key, b.Restarts, b.Worker, "running", 1, time.Now().Add(f.attemptFor)
		if b.Tenant != "" {
			r.tenant = b.Tenant
		}
		lease()
	case !bytes.Equal(r.input, b.Input):
		f.answer(w, nil, problemOf(409, api.CodeConflict, "the key stands for another input"))
	case r.state == "succeeded" || r.state == "failed":
		out := &api.Finished{Run: r.id, State: r.state, Output: r.output}
		if r.failure != nil {
			out.Code, out.Message = r.failure.Code, r.failure.Message
		}
		f.answer(w, out, nil)
	case r.live() && r.worker == b.Worker:
		if b.Restarts > r.restarts {
			r.restarts = b.Restarts
			r.n++
		}
		lease()
	default:
		p := problemOf(409, api.CodeConflict, "the run is executed by somebody else")
		p.RetryAfter = 2
		f.answer(w, nil, p)
	}
}
