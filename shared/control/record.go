package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Record stage: every change of a run goes through here. A change is a pure decision over the newest record; the
// events it yields are folded, written with compare-and-set and then told to the index and to watchers.

// draft is what a decision wants to happen to a run.
type draft struct {
	events []run.Event
	writes []store.Write // further documents of the same unit, with events only
	result runtime.Result
}

// edit is one decision about one run. decide may be called again when another process was faster; it must not change
// the record. A *Refusal or other error changes nothing and is the edit's outcome.
type edit struct {
	id     string
	decide func(ctx context.Context, r *run.Record, now run.Instant) (draft, error)
}

// outcome of an edit.
type outcome struct {
	rec    *run.Record // as it is after the edit
	result runtime.Result
	err    error
}

// change applies one edit.
func (p *Plane) change(ctx context.Context, e edit) outcome {
	return p.changeAll(ctx, []edit{e})[0]
}

// changeAll applies edits, those of one run in order and in one write, and as many runs in one commit as a read of the
// store may give.
func (p *Plane) changeAll(ctx context.Context, edits []edit) []outcome {
	outcomes := make([]outcome, len(edits))
	// 1. Group by run, in a fixed order of locking.
	byRun := make(map[string][]int, len(edits))
	for i := range edits {
		byRun[edits[i].id] = append(byRun[edits[i].id], i)
	}
	ids := make([]string, 0, len(byRun))
	for id := range byRun {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for part := range slices.Chunk(ids, store.MaxPage) {
		p.changePart(ctx, part, byRun, edits, outcomes)
	}
	return outcomes
}

func (p *Plane) changePart(ctx context.Context, ids []string, byRun map[string][]int, edits []edit, outcomes []outcome) {
	for _, id := range ids {
		p.busy.lock(id)
	}
	defer func() {
		for _, id := range ids {
			p.busy.unlock(id)
		}
	}()
	// 2. Decide and commit; whoever met a conflict reads again.
	for try := 0; len(ids) > 0 && try < conflictTries; try++ {
		again := p.changeRuns(ctx, ids, byRun, edits, outcomes, try > 0)
		ids, again = again, ids
		for _, id := range again {
			if !slices.Contains(ids, id) {
				p.busy.unlock(id)
			}
		}
	}
	for _, id := range ids {
		for _, i := range byRun[id] {
			outcomes[i].err = fmt.Errorf("change run %s: gave up after %d conflicts: %w", id, conflictTries, store.ErrConflict)
		}
	}
}

// pending is a run being changed.
type pending struct {
	id     string
	rec    *run.Record
	was    int64 // version of the record that is there; 0 for a new run
	events []run.Event
	unit   store.Unit
}

// changeRuns tries each run once and returns those that met a conflict.
func (p *Plane) changeRuns(ctx context.Context, ids []string, byRun map[string][]int, edits []edit, outcomes []outcome, fresh bool) (again []string) {
	records, errs := p.load(ctx, ids, fresh)
	now := p.now()
	var work []*pending
	var units []store.Unit
	for k, id := range ids {
		if errs[k] != nil {
			for _, i := range byRun[id] {
				outcomes[i].err = errs[k]
			}
			continue
		}
		pd := &pending{id: id, rec: records[k], was: records[k].Seq}
		for _, i := range byRun[id] {
			d, err := edits[i].decide(ctx, pd.rec, now)
			if err == nil {
				err = pd.fold(d.events, now)
			}
			outcomes[i] = outcome{rec: pd.rec, result: d.result, err: err}
			if err != nil {
				continue
			}
			pd.unit.Writes = append(pd.unit.Writes, d.writes...)
		}
		if err := p.leftGate(ctx, records[k], pd, now); err != nil {
			for _, i := range byRun[id] {
				outcomes[i].err = err
			}
			continue
		}
		switch {
		case len(pd.events) > 0:
			pd.write()
		case !fresh && !p.store.Exclusive():
			// Nothing to write, so no comparison tells whether another process has changed the run: it is read.
			again = append(again, id)
			continue
		default:
			continue
		}
		pd.unit.Token = p.newID()
		work, units = append(work, pd), append(units, pd.unit)
	}
	if len(units) == 0 {
		return again
	}
	for k, err := range p.store.Commit(ctx, units) {
		pd := work[k]
		switch {
		case err == nil:
			p.noted(ctx, pd.rec, pd.events)
			for _, i := range byRun[pd.id] {
				if outcomes[i].err == nil {
					outcomes[i].rec = pd.rec
				}
			}
		case errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists):
			p.records.drop(pd.id)
			p.doubt(pd.id)
			again = append(again, pd.id)
		default:
			if errors.Is(err, store.ErrFenced) {
				err = fmt.Errorf("run %s: %w", pd.id, run.ErrFenced)
			}
			p.records.drop(pd.id)
			p.doubt(pd.id) // it may have been written
			for _, i := range byRun[pd.id] {
				if outcomes[i].err == nil {
					outcomes[i].err = err
				}
			}
		}
	}
	return again
}

// fold applies events to a copy of the record: whoever reads the one that is known must not see it change. The record
// of a new run is nobody's yet.
func (pd *pending) fold(events []run.Event, now run.Instant) error {
	if len(events) == 0 {
		return nil
	}
	next := pd.rec
	if pd.was != 0 {
		next = pd.rec.CloneFor(len(events))
	}
	first := len(next.Tail)
	for i := range events {
		e := &events[i]
		if e.At == 0 {
			e.At = now
		}
		if err := run.Decide(next, e); err != nil {
			return err
		}
		run.Evolve(next, *e)
	}
	pd.rec = next
	if fresh := next.Tail[first:len(next.Tail):len(next.Tail)]; len(pd.events) == 0 {
		pd.events = fresh
	} else {
		pd.events = append(pd.events, fresh...)
	}
	return nil
}

// write makes the run's own documents.
func (pd *pending) write() {
	if old := run.Spill(pd.rec); old != nil {
		pd.unit.Writes = append(pd.unit.Writes, historyWrite(pd.id, old))
	}
	pd.unit.Writes = append(pd.unit.Writes, recordWrite(pd.rec, pd.was))
}

// recordWrite is the stored form of a record; expect is the version that it replaces, 0 for a new run.
func recordWrite(r *run.Record, expect int64) store.Write {
	node := ""
	part := store.PartIdle
	switch {
	case r.Live():
		// Whoever takes over has it from the index of the workers, and would read it twice.
		node, part = nodeOf(r), store.PartHeld
	case r.State.Terminal():
		part = store.PartEnded
	}
	return store.Write{Expect: expect, Doc: store.Doc{
		Kind: store.KindRun, ID: r.ID, Version: r.Seq, Body: run.Encode(r),
		Index: &store.Index{
			Tenant: r.Tenant, Agent: r.Agent, Parent: r.Parent, Root: r.Root,
			Worker: node, Attempt: int64(r.Holder()),
			CreatedAt: int64(r.CreatedAt), WakeAt: int64(r.WakeAt()), Part: part,
		},
	}}
}

// historyID orders chunks by their first event.
func historyID(id string, first int64) string { return fmt.Sprintf("%s/%012d", id, first) }

func historyWrite(id string, events []run.Event) store.Write {
	return store.Write{Expect: 0, Doc: store.Doc{
		Kind: store.KindHistory, ID: historyID(id, events[0].Seq), Version: 1, Owner: id, Body: run.EncodeEvents(events),
	}}
}

// load reads records from the cache or the store; fresh skips the cache.
func (p *Plane) load(ctx context.Context, ids []string, fresh bool) ([]*run.Record, []error) {
	records, errs := make([]*run.Record, len(ids)), make([]error, len(ids))
	var missing []string
	var at []int
	// What a process that does not lead remembers may be of a run that the leader has removed since, and whose key made
	// a new one: the versions of both begin at 1.
	fresh = fresh || !p.store.Exclusive() && !p.leads()
	for i, id := range ids {
		if !fresh {
			records[i] = p.records.get(id)
		}
		if records[i] == nil {
			missing, at = append(missing, id), append(at, i)
		}
	}
	if len(missing) == 0 {
		return records, errs
	}
	before := p.records.forgotten()
	docs, err := p.store.GetMany(ctx, store.KindRun, missing)
	for k, i := range at {
		switch {
		case err != nil:
			errs[i] = fmt.Errorf("read run %s: %w", ids[i], err)
		case docs[k].Version == 0:
			errs[i] = refuse(CodeNotFound, "there is no run %s: none of this id was submitted, or it ended longer ago than its agent's retain keeps it", ids[i])
		default:
			records[i], errs[i] = run.DecodeRecord(docs[k].Body)
			if errs[i] == nil {
				p.records.read(records[i], before)
			}
		}
	}
	return records, errs
}

// noted tells everyone in this process what was just written.
func (p *Plane) noted(ctx context.Context, after *run.Record, events []run.Event) {
	p.records.put(after)
	p.tellRun(after.ID)
	p.mu.Lock()
	turn, next := p.ix.set(p, after, false)
	p.mu.Unlock()
	p.follow(ctx, after.ID, next)
	p.stats.observe(after, events)
	p.watch.tell(Change{Run: after, Events: events})
	if turn {
		p.wake()
	}
}

// follow tells the attempt's runtime what a change means for it: also where whoever asked for the change has given up.
func (p *Plane) follow(ctx context.Context, id string, e effect) {
	if !e.stop && !e.ended {
		return
	}
	t := p.targetNamed(e.target)
	if t == nil || p.cfg.Runtimes[t.Runtime] == nil {
		return
	}
	rt := p.cfg.Runtimes[t.Runtime]
	if e.stop {
		rt.Stop(context.WithoutCancel(ctx), id, e.n, e.reason, max(e.grace, 0))
		return
	}
	rt.Ended(id, e.n)
}

// stash keeps a value: inline in the record when small, else as a payload document of its own.
func stash(owner, name string, value json.RawMessage, inline int) (run.Payload, []store.Write) {
	payload := run.Payload{Size: len(value)}
	if len(value) <= inline {
		payload.Inline = value
		return payload, nil
	}
	payload.Ref = owner + "/" + name
	return payload, []store.Write{{Expect: store.AnyVersion, Doc: store.Doc{
		Kind: store.KindPayload, ID: payload.Ref, Version: 1, Owner: owner, Body: value,
	}}}
}

// ErrValueGone is of a value that a record names and the store has not, or not all of. Trying again is of no use.
var ErrValueGone = errors.New("its object is gone from the store")

// Value returns a stored value, wherever it is. No value gives null. Errors wrap ErrValueGone, or are the store's.
func (p *Plane) Value(ctx context.Context, v run.Payload) (json.RawMessage, error) {
	switch {
	case v.Empty():
		return json.RawMessage("null"), nil
	case v.Ref == "":
		return v.Inline, nil
	}
	doc, err := p.store.Get(ctx, store.KindPayload, v.Ref)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", refuse(CodeState, "value %s of %d bytes cannot be read: %v", v.Ref, v.Size, ErrValueGone), ErrValueGone)
	}
	if err != nil {
		return nil, fmt.Errorf("read value %s (%d bytes): %w", v.Ref, v.Size, err)
	}
	return doc.Body, nil
}

// cache holds the newest known records, bounded; which record goes first does not matter for correctness. Of runs at
// rest, which are finished or parked, it keeps only the last few: whoever waited for one asks at once, waiting holds no
// memory, and memory that is full of them costs every garbage collection.
type cache struct {
	mu   sync.RWMutex
	max  int
	m    map[string]*run.Record
	rest [lastAtRest]string // ring of runs at rest
	next int
	size int    // bytes of the values that the records hold
	gone uint64 // rises when runs were removed from the store
}

const (
	lastAtRest    = 512
	maxCacheBytes = 64 << 20
)

// atRest reports whether nothing happens to a run until something comes from outside or its time comes.
func atRest(s run.State) bool {
	switch s {
	case run.Waiting, run.Backoff, run.Held, run.Suspended:
		return true
	}
	return s.Terminal()
}

// forgotten is a mark in time for read.
func (c *cache) forgotten() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.gone
}

// read is put for what was read from the store since the mark: it is not kept if runs were removed meanwhile.
func (c *cache) read(r *run.Record, mark uint64) {
	if c.forgotten() == mark {
		c.put(r)
	}
}

// forget drops a run that was removed from the store.
func (c *cache) forget(id string) {
	c.mu.Lock()
	c.gone++
	c.remove(id)
	c.mu.Unlock()
}

// bytesOf is about what a record costs.
func bytesOf(r *run.Record) int {
	n := 1<<10 + len(r.Input.Inline) + len(r.Output.Inline) + len(r.Detail) + 400*len(r.Tail)
	for i := range r.Signals {
		n += len(r.Signals[i].Payload.Inline)
	}
	return n
}

func newCache(limit int) *cache { return &cache{max: limit, m: make(map[string]*run.Record)} }

func (c *cache) get(id string) *run.Record {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.m[id]
}

func (c *cache) clear() {
	c.mu.Lock()
	clear(c.m)
	c.size = 0
	c.mu.Unlock()
}

// put keeps the newer of the known and the given record.
func (c *cache) put(r *run.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.m[r.ID]; known != nil && known.Seq > r.Seq {
		return
	}
	if atRest(r.State) {
		if old := c.rest[c.next]; old != r.ID {
			if gone := c.m[old]; gone != nil && atRest(gone.State) {
				c.remove(old)
			}
		}
		c.rest[c.next] = r.ID
		c.next = (c.next + 1) % lastAtRest
	}
	c.remove(r.ID)
	for id := range c.m { // any entry: Go starts a range over a map at random
		if len(c.m) < c.max && c.size+bytesOf(r) <= maxCacheBytes {
			break
		}
		c.remove(id)
	}
	c.m[r.ID] = r
	c.size += bytesOf(r)
}

func (c *cache) remove(id string) {
	if r := c.m[id]; r != nil {
		c.size -= bytesOf(r)
		delete(c.m, id)
	}
}

func (c *cache) drop(id string) {
	c.mu.Lock()
	c.remove(id)
	c.mu.Unlock()
}

// keyed is a mutex per key that costs nothing for keys that nobody holds.
type keyed struct {
	mu sync.Mutex
	m  map[string]*keyLock
}

type keyLock struct {
	sync.Mutex
	users int
}

func newKeyed() *keyed { return &keyed{m: make(map[string]*keyLock)} }

func (k *keyed) lock(id string) {
	k.mu.Lock()
	l := k.m[id]
	if l == nil {
		l = new(keyLock)
		k.m[id] = l
	}
	l.users++
	k.mu.Unlock()
	l.Lock()
}

// tryLock takes the key if nobody has it.
func (k *keyed) tryLock(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.m[id] != nil {
		return false
	}
	l := &keyLock{users: 1}
	l.Lock()
	k.m[id] = l
	return true
}

func (k *keyed) unlock(id string) {
	k.mu.Lock()
	l := k.m[id]
	if l.users--; l.users == 0 {
		delete(k.m, id)
	}
	k.mu.Unlock()
	l.Unlock()
}

// stepID names a step's document: one per run and name, so that a step ends once.
func stepID(runID, name string) string { return runID + "/" + name }

// stepWrite records the end of a step. It is refused with ErrExists if that step has ended before.
func stepWrite(runID string, s runtime.Step) (store.Write, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return store.Write{}, fmt.Errorf("encode step %s of run %s: %w", strconv.Quote(s.Name), runID, err)
	}
	return store.Write{Expect: 0, Doc: store.Doc{Kind: store.KindStep, ID: stepID(runID, s.Name), Version: 1, Owner: runID, Body: body}}, nil
}
