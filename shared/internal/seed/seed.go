// Package seed fills a store with runs at rest, as years of use would leave them, so that what a store's size costs can
// be measured: start-up, lists, timers, removal. It writes what the control plane would have written, without the
// stages.
package seed

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// What a filled store holds. Names end in a number from 0.
const (
	Tenants = 10
	Agents  = 20
	Tenant  = "rest-"
	Agent   = "rest-"
	// Rare is a label that one finished run in a hundred thousand carries, with the value "yes".
	Rare = "rare"

	retain    = 30 * 24 * time.Hour
	past      = 20 * 24 * time.Hour // the oldest run was created so long ago
	batch     = 1000                // units in a commit
	perWorker = 64                  // live runs
	target    = "workers"           // of workers that name none
)

// Fill adds n runs, created over the twenty days before now, to a store that no control plane has open: one half
// finished, one in a hundred live (a third each queued, assigned and running), the others parked for a signal or a time,
// or backing off. One run in twenty is a child; some of the finished ones own a step, a log and a large input. The same
// seed gives the same runs. Agents and tenants are declared.
func Fill(ctx context.Context, st store.Store, n int, now time.Time, seed uint64) error {
	if err := declare(ctx, st, now); err != nil {
		return fmt.Errorf("fill a store: %w", err)
	}
	f := &filler{st: st, r: rand.New(rand.NewPCG(seed, seed)), now: run.At(now), n: n}
	for made := 0; made < n; {
		units := make([]store.Unit, 0, batch)
		for len(units) < batch && made < n {
			u, err := f.unit(made)
			if err != nil {
				return fmt.Errorf("fill a store: %w", err)
			}
			units = append(units, u)
			made++
		}
		for _, err := range st.Commit(ctx, units) {
			if err != nil {
				return fmt.Errorf("fill a store: %w", err)
			}
		}
	}
	return nil
}

// declare applies the agents and tenants.
func declare(ctx context.Context, st store.Store, now time.Time) error {
	p, err := control.New(control.Config{Store: st, Name: "seed", Clock: func() time.Time { return now }})
	if err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return err
	}
	var objects []fleet.Object
	for i := range Agents {
		objects = append(objects, &fleet.Agent{
			Meta: fleet.Meta{Name: fmt.Sprint(Agent, i)}, Shape: fleet.Pool, Retain: fleet.Duration(retain),
			Timeouts: fleet.Timeouts{Queue: fleet.Duration(2 * past), Run: fleet.Duration(4 * past)},
		})
	}
	for i := range Tenants {
		objects = append(objects, &fleet.Tenant{Meta: fleet.Meta{Name: fmt.Sprint(Tenant, i)}})
	}
	_, err = p.Apply(ctx, objects, control.ApplyOptions{Actor: "seed"})
	if e := p.Close(ctx); err == nil {
		err = e
	}
	return err
}

// filler makes the runs, one after the other.
type filler struct {
	st   store.Store
	r    *rand.Rand
	now  run.Instant
	n    int
	live int
	last [Tenants]string // the run that the next child of a tenant belongs to
}

// id is like those of the control plane: in the store of a single process the ids of a moment begin alike.
func (f *filler) id(created run.Instant) string {
	var b [16]byte
	for i := range b {
		b[i] = byte(f.r.Uint32())
	}
	if f.st.Exclusive() {
		binary.BigEndian.PutUint64(b[:8], uint64(created)<<16|f.r.Uint64()&0xffff)
	}
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding).EncodeToString(b[:])[:20]
}

// between is an instant in a span of time that begins at from.
func (f *filler) between(from run.Instant, span time.Duration) run.Instant {
	return from.Add(time.Duration(f.r.Int64N(int64(span))))
}

// unit is the i-th run as it is now, with what belongs to it.
func (f *filler) unit(i int) (store.Unit, error) {
	// 1. What was asked for: older runs first, as a store would have them.
	tenant := f.r.IntN(Tenants)
	created := f.now.Add(-past + time.Duration(i)*(past/time.Duration(f.n)))
	live := i >= f.n-f.n/100
	spec := run.Spec{
		ID: f.id(created), Kind: run.KindAgent, Agent: fmt.Sprint(Agent, f.r.IntN(Agents)), Version: "1", Revision: 1,
		Tenant: fmt.Sprint(Tenant, tenant), Priority: 50, CreatedAt: created, RetainFor: retain.Milliseconds(),
		Deadline: created.Add(4 * past), Labels: map[string]string{"batch": fmt.Sprint(i / 1000)},
		Input: run.Payload{Inline: json.RawMessage(fmt.Sprintf(`{"invoice":"INV-%07d","lines":%d}`, i, f.r.IntN(40)))},
	}
	spec.Input.Size = len(spec.Input.Inline)
	switch {
	case f.r.IntN(20) != 0 || f.last[tenant] == "":
		f.last[tenant] = spec.ID
	default:
		spec.Parent, spec.Root = f.last[tenant], f.last[tenant]
	}
	if i%100_000 == 0 {
		spec.Labels[Rare] = "yes"
	}
	u := store.Unit{Token: spec.ID}
	finished := !live && i%2 == 0
	if finished && f.r.IntN(64) == 0 {
		body := make([]byte, 40<<10)
		for k := range body {
			body[k] = 'x'
		}
		body[0], body[len(body)-1] = '"', '"'
		spec.Input = run.Payload{Ref: spec.ID + "/in", Size: len(body)}
		u.Writes = append(u.Writes, owned(store.KindPayload, spec.Input.Ref, spec.ID, body))
	}
	// 2. What happened to it.
	rec := run.New(spec, run.Event{Type: run.EvSubmitted, At: created, Due: created.Add(2 * past), Actor: "seed"})
	err := f.happened(rec, live, finished)
	if err != nil {
		return u, err
	}
	if finished && f.r.IntN(16) == 0 {
		step, err := json.Marshal(runtime.Step{Name: "read", Seq: 1})
		if err != nil {
			return u, err
		}
		log, err := json.Marshal([]runtime.LogLine{{N: 1, At: rec.EndedAt, Stream: "agent", Text: "read the invoice"}})
		if err != nil {
			return u, err
		}
		u.Writes = append(u.Writes,
			owned(store.KindStep, rec.ID+"/read", rec.ID, step), owned(store.KindLog, rec.ID+"/0001/000001", rec.ID, log))
	}
	// 3. Its document.
	u.Writes = append(u.Writes, control.Document(rec, 0))
	return u, nil
}

func owned(kind store.Kind, id, owner string, body []byte) store.Write {
	return store.Write{Doc: store.Doc{Kind: kind, ID: id, Version: 1, Owner: owner, Body: body}}
}

// happened leads a run to where it is now.
func (f *filler) happened(r *run.Record, live, finished bool) error {
	at := r.CreatedAt
	next := func(e run.Event) error {
		e.At = at
		if err := run.Decide(r, &e); err != nil {
			return err
		}
		run.Evolve(r, e)
		return nil
	}
	// 1. Live ones stop on the way.
	stop := 0
	worker := fmt.Sprint("rest-", f.live/perWorker)
	if live {
		f.live++
		if stop = f.live%3 + 1; stop == 1 {
			return nil
		}
	}
	at = at.Add(2 * time.Millisecond)
	err := next(run.Event{Type: run.EvAssigned, Attempt: 1, Target: target, Worker: worker, Node: target + "/" + worker, Due: at.Add(time.Hour)})
	if err != nil || stop == 2 {
		return err
	}
	at = at.Add(time.Millisecond)
	if err := next(run.Event{Type: run.EvStarted, Attempt: 1, Worker: worker, Due: f.now.Add(time.Hour)}); err != nil || stop == 3 {
		return err
	}
	at = at.Add(time.Duration(1+f.r.IntN(2000)) * time.Millisecond)
	// 2. The ends.
	if finished {
		e := run.Event{Type: run.EvSucceeded, Attempt: 1, Due: at.Add(retain), Sure: true}
		switch f.r.IntN(10) {
		case 0:
			e.Type, e.Reason, e.Class, e.Message = run.EvFailed, run.NonRetryable, run.ClassUser, "the invoice has no total"
		default:
			out := json.RawMessage(fmt.Sprintf(`{"ok":true,"total":%d}`, f.r.IntN(1_000_000)))
			e.Output = &run.Payload{Inline: out, Size: len(out)}
		}
		return next(e)
	}
	// 3. Those that wait.
	switch k := f.r.IntN(100); {
	case k < 10:
		return next(run.Event{
			Type: run.EvBackedOff, Attempt: 1, Class: run.ClassUser, Reason: run.AgentError, Message: "no answer",
			Due: f.between(f.now.Add(time.Minute), 6*time.Hour), Sure: true,
		})
	case k < 60:
		until := f.between(f.now.Add(time.Hour), past)
		if k < 11 {
			until = f.between(f.now.Add(time.Minute), 10*time.Minute)
		}
		return next(run.Event{Type: run.EvParked, Attempt: 1, Due: until, Park: &run.Park{On: run.OnTimer, Step: "later", Until: until, Seq: 1}})
	}
	return next(run.Event{Type: run.EvParked, Attempt: 1, Park: &run.Park{On: run.OnInput, Step: "approved", Name: "approved", Seq: 1}})
}
