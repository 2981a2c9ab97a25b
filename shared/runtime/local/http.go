package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/runtime/httpio"
)

// The http side of a pool: sending attempts to processes that listen.

const (
	firstProbe     = 5 * time.Millisecond // between looks whether a process listens
	longestProbe   = 200 * time.Millisecond
	probeWithin    = 2 * time.Second
	snapshotWithin = 5 * time.Second
	// exitFollows is how soon after a broken connection the end of its process is seen, if that was the cause.
	exitFollows = time.Second
	maxSessions = 10_000 // that are remembered of one process
)

// call is what the pool keeps of an attempt that was sent.
type call struct {
	member *member
	cancel context.CancelCauseFunc
}

// exitError ends a request whose process has ended; it carries what that means.
type exitError struct{ fate runtime.Report }

func (*exitError) Error() string { return "the process ended" }

func (p *pool) enqueue(x *attempt) {
	p.queue = append(p.queue, x)
	p.dispatch()
}

func (p *pool) unqueue(x *attempt) {
	p.queue = slices.DeleteFunc(p.queue, func(other *attempt) bool { return other == x })
}

// dispatch sends what waits to the processes that have room, the emptiest first. Needs the lock.
func (p *pool) dispatch() {
	for len(p.queue) > 0 && !p.u.rt.closed {
		var best *member
		for m := range p.members {
			if m.ready && !m.stopping && len(m.calls) < p.slots && (best == nil || len(m.calls) < len(best.calls)) {
				best = m
			}
		}
		if best == nil {
			return
		}
		x := p.queue[0]
		p.queue = p.queue[1:]
		if !x.over {
			p.send(best, x)
		}
	}
}

func (p *pool) send(m *member, x *attempt) {
	rt := p.u.rt
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &call{member: m, cancel: cancel}
	x.task = c
	m.calls[x] = c
	m.remember(&x.a)
	rt.began(x)
	rt.wg.Go(func() {
		defer cancel(nil)
		report := p.request(ctx, m, x)
		rt.mu.Lock()
		delete(m.calls, x)
		x.over = true
		p.dispatch()
		rt.mu.Unlock()
		rt.conclude(x, report)
	})
}

// request is one run of an http process.
func (p *pool) request(ctx context.Context, m *member, x *attempt) runtime.Report {
	rt := p.u.rt
	document, err := x.a.Document(rt.opts.URL()).Encode()
	if err != nil {
		return notStarted(err.Error())
	}
	report := httpio.Do(ctx, rt.client, httpio.Call{URL: m.url("/run"), Attempt: &x.a, Document: document, Now: rt.opts.Now, Each: rt.relay(x)})
	if report.Code == httpio.CodeBroken || report.Code == httpio.CodeUnreachable {
		select {
		case <-ctx.Done():
		case <-time.After(exitFollows):
		}
	}
	var exit *exitError
	if errors.As(context.Cause(ctx), &exit) {
		return exit.fate
	}
	// A process that was told to end hands back by 503 what it could not finish.
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if (rt.closed || m.stopping) && x.reason == "" && report.Code == strconv.Itoa(http.StatusServiceUnavailable) {
		return runtime.Report{Type: runtime.Released, Message: "its process was stopped"}
	}
	return report
}

func (m *member) url(path string) string {
	return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(m.port)) + path
}

// awaitReady looks until the process listens and says that it is well, and sends it what waits. One that does not
// listen in time is ended.
func (p *pool) awaitReady(m *member) {
	rt := p.u.rt
	deadline := time.NewTimer(rt.opts.Ready)
	defer deadline.Stop()
	for wait := firstProbe; ; wait = min(2*wait, longestProbe) {
		if m.answers() {
			rt.mu.Lock()
			defer rt.mu.Unlock()
			if _, lives := p.members[m]; lives {
				m.ready = true
				p.failures = 0
				p.dispatch()
			}
			return
		}
		select {
		case <-m.proc.Done():
			return
		case <-deadline.C:
			rt.mu.Lock()
			m.why = fmt.Sprintf("it did not listen on PORT=%d within %s", m.port, rt.opts.Ready)
			rt.mu.Unlock()
			m.proc.Stop(0)
			return
		case <-time.After(wait):
		}
	}
}

// answers reports whether the process listens and, asked for /healthz, does not say that it is unwell. A program that
// knows no such path is as good as its port.
func (m *member) answers() bool {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(m.port)), probeWithin)
	if err != nil {
		return false
	}
	_ = conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), probeWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url("/healthz"), nil)
	if err != nil {
		return false
	}
	response, err := m.pool.u.rt.client.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode < 500 || response.StatusCode == http.StatusNotImplemented
}

// remember notes whose session is served, so that a snapshot can be told where it belongs and cannot reach others.
func (m *member) remember(a *runtime.Assignment) {
	if a.Session == "" || !m.pool.single || len(m.sessions) >= 2*maxSessions {
		return
	}
	key := a.Tenant + "/" + a.Agent.Name() + "/" + a.Session
	m.sessions[key] = key
	if other, known := m.sessions[a.Session]; known && other != key {
		m.sessions[a.Session] = "" // of two tenants: its name alone says nothing
	} else {
		m.sessions[a.Session] = key
	}
}

// snapshot asks an instance for its sessions and saves them. Nothing that a turn has saved is lost if it fails. Called
// without the lock.
func (p *pool) snapshot(m *member, within time.Duration) {
	rt := p.u.rt
	if rt.opts.SaveSession == nil || within <= 0 {
		return
	}
	log := rt.log.With("agent", p.u.agent.Name(), "process", m.id)
	ctx, cancel := context.WithTimeout(rt.life, within)
	defer cancel()
	sessions, err := m.ask(ctx)
	if err != nil {
		log.Warn("no snapshot of an instance's sessions; their last turns are saved", "error", err)
		return
	}
	for name, state := range sessions {
		rt.mu.Lock()
		key := m.sessions[name]
		rt.mu.Unlock()
		if key == "" {
			log.Warn("a snapshot names a session that was not served, or whose name two tenants use", "session", name)
			continue
		}
		if err := rt.opts.SaveSession(ctx, key, state); err != nil {
			log.Warn("a session's snapshot was not saved; its last turn is", "session", key, "error", err)
		}
	}
}

func (m *member) ask(ctx context.Context) (map[string]json.RawMessage, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url("/snapshot"), nil)
	if err != nil {
		return nil, err
	}
	response, err := m.pool.u.rt.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusNoContent:
		return nil, nil // it keeps nothing but what its turns save
	default:
		return nil, fmt.Errorf("POST /snapshot: status %d", response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, runtime.MaxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("POST /snapshot: %w", err)
	}
	if len(body) > runtime.MaxAnswer {
		return nil, fmt.Errorf("POST /snapshot: answer over %d MiB", runtime.MaxAnswer>>20)
	}
	var answer struct {
		Sessions map[string]json.RawMessage `json:"sessions"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf(`POST /snapshot: %w; want {"sessions": {NAME: STATE}}`, err)
	}
	return answer.Sessions, nil
}
