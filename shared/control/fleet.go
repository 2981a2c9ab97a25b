package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/errand-run/errand/shared/expr"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/trigger"
	"github.com/errand-run/errand/shared/workflow"
)

// maxApply bounds the objects of one apply: they are written as one unit, two documents each.
const maxApply = store.MaxWrites / 2

// declaration is a declared object as it is stored and kept in memory.
type declaration struct {
	object    fleet.Object
	revision  int64 // the stored document's version: rises with every change, also of Paused
	updatedAt run.Instant
	paused    bool

	input, output *jsonschema.Schema // agents; nil for any
	perKey        *expr.Program      // agents; nil without concurrency.perKey
	mapper        *trigger.Mapper    // triggers
	plan          *workflow.Plan     // workflows
}

// stored is a declaration's document. A revision of an agent or a workflow is kept under its own id for the runs that
// began with it.
type stored struct {
	Object    json.RawMessage `json:"object"`
	UpdatedAt run.Instant     `json:"updatedAt"`
	Paused    bool            `json:"paused,omitempty"`
	By        string          `json:"by,omitempty"`
}

// tagCurrent lists the current declarations, as opposed to kept revisions.
const tagCurrent = "current"

func declaredID(kind, name string) string { return kind + "/" + name }

func revisionID(kind, name string, revision int64) string {
	return fmt.Sprintf("%s/%s@%d", kind, name, revision)
}

// hasRevisions reports whether runs of the kind keep the revision that they began with.
func hasRevisions(kind string) bool { return kind == fleet.KindAgent || kind == fleet.KindWorkflow }

// declarations is what is declared, in memory: read by every decision, replaced on apply.
type declarations struct {
	mu      sync.RWMutex
	current map[objectKey]*declaration
	kept    map[revisionKey]*declaration // revisions that runs still use; bounded
	tenants map[string]*fleet.Tenant     // those that were never declared, with the defaults; bounded
	changes int64                        // how often something was put into force or taken out

	doubt atomic.Bool // a write failed and may have been written
}

// changed counts the changes to what is declared, for declareSince.
func (d *declarations) changed() int64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.changes
}

// objectKey and revisionKey find what declaredID and revisionID name in the store, without making a text each time.
type objectKey struct{ kind, name string }

type revisionKey struct {
	kind, name string
	revision   int64
}

// id names the declaration's document.
func (x *declaration) id() string { return declaredID(x.object.Kind(), x.object.Name()) }

func (x *declaration) key() objectKey { return objectKey{x.object.Kind(), x.object.Name()} }

const maxKept = 1000

func newDeclarations() *declarations {
	return &declarations{current: make(map[objectKey]*declaration), kept: make(map[revisionKey]*declaration), tenants: make(map[string]*fleet.Tenant)}
}

func (d *declarations) get(kind, name string) *declaration {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.current[objectKey{kind, name}]
}

// list gives one kind, or with "" all, sorted by name.
func (d *declarations) list(kind string) []*declaration {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var all []*declaration
	for k, x := range d.current {
		if kind == "" || k.kind == kind {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b *declaration) int {
		return cmp.Or(strings.Compare(a.object.Kind(), b.object.Kind()), strings.Compare(a.object.Name(), b.object.Name()))
	})
	return all
}

// fingerprint tells two states of what is declared apart. The process that leads has its own in its lease, which every
// process reads all the time: so they learn of a change without asking for it.
func (d *declarations) fingerprint() uint64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var sum uint64
	for k, x := range d.current {
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%s/%s@%d/%d", k.kind, k.name, x.revision, x.updatedAt) // cannot fail
		sum ^= h.Sum64()
	}
	return sum
}

// loadDeclarations brings memory in line with what the store says is declared. What is declared here while it reads is not
// undone by what it has read before: it reads again.
func (p *Plane) loadDeclarations(ctx context.Context) error {
	for {
		since := p.declared.changed()
		changed, removed, err := p.readDeclarations(ctx)
		if err != nil {
			return err
		}
		if len(changed)+len(removed) == 0 || p.declareSince(since, changed, removed) {
			return nil
		}
	}
}

// readDeclarations is how what the store says is declared differs from memory.
func (p *Plane) readDeclarations(ctx context.Context) (changed, removed []*declaration, err error) {
	// 1. What is there; what is known in that form is not decoded again.
	known := make(map[string]*declaration)
	for _, x := range p.declared.list("") {
		known[x.id()] = x
	}
	found := make(map[string]*declaration)
	after := ""
	for {
		docs, err := p.store.Tagged(ctx, store.KindFleet, tagCurrent, after, store.MaxPage)
		if err != nil {
			return nil, nil, fmt.Errorf("read the declared fleet: %w", err)
		}
		for _, doc := range docs {
			x, err := decodeDeclaration(doc, known[doc.ID])
			if err != nil {
				return nil, nil, err
			}
			found[doc.ID], after = x, doc.ID
		}
		if len(docs) < store.MaxPage {
			break
		}
	}
	// 2. What that changes.
	for _, id := range slices.Sorted(maps.Keys(known)) {
		cur := known[id]
		switch x := found[id]; {
		case x == nil:
			removed = append(removed, cur)
		case x == cur:
			delete(found, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		changed = append(changed, found[id])
	}
	return changed, removed, nil
}

// catchUp follows a write of declarations that failed: somebody else was faster, or it was written after all.
func (p *Plane) catchUp(ctx context.Context) {
	p.declared.doubt.Store(true)
	p.caughtUp(context.WithoutCancel(ctx))
	p.wake()
}

// caughtUp reads again what is declared, if that is in doubt, and reports whether it is known now.
func (p *Plane) caughtUp(ctx context.Context) bool {
	if !p.declared.doubt.Swap(false) {
		return true
	}
	if err := p.loadDeclarations(ctx); err != nil {
		p.declared.doubt.Store(true)
		p.log.WarnContext(ctx, "read the declared fleet again", "error", err)
		return false
	}
	return true
}

// decodeDeclaration reads a declaration's document; known is given back if that is what it says.
func decodeDeclaration(doc store.Doc, known *declaration) (*declaration, error) {
	var s stored
	if err := json.Unmarshal(doc.Body, &s); err != nil {
		return nil, fmt.Errorf("decode declared object %s: %w", doc.ID, err)
	}
	if known != nil && known.revision == doc.Version && known.updatedAt == s.UpdatedAt {
		return known, nil
	}
	obj, err := fleet.Decode(s.Object)
	if err != nil {
		return nil, fmt.Errorf("decode declared object %s: %w", doc.ID, err)
	}
	x := &declaration{object: obj, revision: doc.Version, updatedAt: s.UpdatedAt, paused: s.Paused}
	if faults := x.compile(); len(faults) > 0 {
		return nil, fmt.Errorf("declared object %s: %s: %s", doc.ID, faults[0].Location, faults[0].Message)
	}
	return x, nil
}

// compile prepares schemas and expressions.
func (x *declaration) compile() []Fault {
	var faults []Fault
	if t, ok := x.object.(*fleet.Trigger); ok {
		var problems []fleet.Problem
		x.mapper, problems = trigger.Compile(t)
		for _, p := range problems {
			faults = append(faults, Fault{p.Path, p.Message})
		}
		return faults
	}
	if w, ok := x.object.(*fleet.Workflow); ok {
		return x.compileFlow(w)
	}
	a, ok := x.object.(*fleet.Agent)
	if !ok {
		return nil
	}
	for _, s := range []struct {
		path   string
		schema fleet.Schema
		into   **jsonschema.Schema
	}{{"spec.input.schema", a.Input, &x.input}, {"spec.output.schema", a.Output, &x.output}} {
		if len(s.schema) == 0 {
			continue
		}
		compiled, err := compileSchema(s.schema)
		if err != nil {
			faults = append(faults, Fault{s.path, err.Error()})
		}
		*s.into = compiled
	}
	if k := a.Concurrency.PerKey; k != nil {
		var err error
		if x.perKey, err = expr.CompileAny(k.Key, "input", "tenant", "labels"); err != nil {
			faults = append(faults, Fault{perKeyPath, err.Error()})
		}
	}
	return faults
}

// compileSchema reads a JSON Schema (2020-12). References to files or the network are refused.
func compileSchema(raw []byte) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("not JSON: %v", err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	if err := c.AddResource("schema.json", doc); err != nil {
		return nil, fmt.Errorf("not a JSON Schema: %v", err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		return nil, fmt.Errorf("not a JSON Schema: %v", err)
	}
	return s, nil
}

type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s: a schema stands alone; put it under $defs", url)
}

// agentAt returns the agent as it was declared when a run began with it.
func (p *Plane) agentAt(ctx context.Context, name string, revision int64) (*declaration, error) {
	return p.declaredAt(ctx, fleet.KindAgent, name, revision)
}

// declaredAt returns an agent or a workflow as it was declared when a run began with it.
func (p *Plane) declaredAt(ctx context.Context, kind, name string, revision int64) (*declaration, error) {
	d := p.declared
	d.mu.RLock()
	cur := d.current[objectKey{kind, name}]
	kept := d.kept[revisionKey{kind, name, revision}]
	d.mu.RUnlock()
	switch {
	case cur != nil && (cur.revision == revision || revision == 0):
		return cur, nil
	case kept != nil:
		return kept, nil
	}
	doc, err := p.store.Get(ctx, store.KindFleet, revisionID(kind, name, revision))
	if errors.Is(err, store.ErrNotFound) {
		return nil, refuse(CodeNotFound, "%s %s is not declared in revision %d any more", strings.ToLower(kind), name, revision)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s in revision %d: %w", strings.ToLower(kind), name, revision, err)
	}
	x, err := decodeDeclaration(doc, nil)
	if err != nil {
		return nil, err
	}
	x.revision = revision
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.kept) >= maxKept {
		clear(d.kept)
	}
	d.kept[revisionKey{kind, name, revision}] = x
	return x, nil
}

// tenantOf is the declared tenant, or an undeclared one with every default.
func (p *Plane) tenantOf(name string) *fleet.Tenant {
	if x := p.declared.get(fleet.KindTenant, name); x != nil {
		return x.object.(*fleet.Tenant)
	}
	return p.declared.undeclared(name)
}

const maxUndeclared = 10_000

// undeclared is a tenant that nobody declared: what tenants are by default.
func (d *declarations) undeclared(name string) *fleet.Tenant {
	d.mu.RLock()
	t := d.tenants[name]
	d.mu.RUnlock()
	if t != nil {
		return t
	}
	t = &fleet.Tenant{Meta: fleet.Meta{Name: name}}
	t.SetDefaults()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.tenants) >= maxUndeclared {
		clear(d.tenants)
	}
	d.tenants[name] = t
	return t
}

// Apply declares objects, all or none. Objects that are declared already in the same form stay as they are. A changed
// agent or target holds for new runs only. The error is a *Refusal with every fault, or an outage.
func (p *Plane) Apply(ctx context.Context, objects []fleet.Object, opts ApplyOptions) ([]Applied, error) {
	now := p.now()
	// 1. Everything is valid, or nothing is applied.
	if len(objects) > maxApply {
		return nil, refuse(CodeTooLarge, "apply %d objects: %d at most in one call", len(objects), maxApply)
	}
	faults, seen := []Fault(nil), make(map[string]bool)
	next := make([]*declaration, len(objects))
	for i, obj := range objects {
		obj.SetDefaults()
		where := obj.Kind() + " " + obj.Name() + ": "
		for _, problem := range obj.Validate() {
			faults = append(faults, Fault{where + problem.Path, problem.Message})
		}
		if id := declaredID(obj.Kind(), obj.Name()); seen[id] {
			faults = append(faults, Fault{where + "metadata.name", "given twice"})
		} else {
			seen[id] = true
		}
		next[i] = &declaration{object: obj, updatedAt: now}
		for _, f := range next[i].compile() {
			faults = append(faults, Fault{where + f.Location, f.Message})
		}
	}
	faults = append(faults, p.pathsTaken(objects)...)
	if len(faults) > 0 {
		return nil, &Refusal{Code: CodeInvalid, Detail: "nothing was applied", Faults: faults}
	}
	// 2. What changes.
	if err := p.refresh(ctx); err != nil {
		return nil, fmt.Errorf("apply: %w", err)
	}
	if faults := append(p.agentsMissing(objects, seen, opts.Prune), p.checkFlows(next, opts.Prune)...); len(faults) > 0 {
		return nil, &Refusal{Code: CodeInvalid, Detail: "nothing was applied", Faults: faults}
	}
	results := make([]Applied, 0, len(objects))
	unit := store.Unit{Token: p.newID()}
	var changed []*declaration
	for _, x := range next {
		a := Applied{Kind: x.object.Kind(), Name: x.object.Name(), Action: "created", Warnings: p.warnings(x.object)}
		if cur := p.declared.get(a.Kind, a.Name); cur != nil {
			a.Action = "configured"
			x.revision, x.paused = cur.revision, cur.paused
			if cur.object.Hash() == x.object.Hash() {
				a.Action = "unchanged"
			}
		}
		results = append(results, a)
		if a.Action == "unchanged" {
			continue
		}
		x.revision++
		changed = append(changed, x)
		writes, err := declarationWrites(x, opts.Actor)
		if err != nil {
			return nil, err
		}
		unit.Writes = append(unit.Writes, writes...)
	}
	var removed []*declaration
	if opts.Prune {
		for _, x := range p.declared.list("") {
			if seen[x.id()] {
				continue
			}
			if err := p.deletable(x, seen); err != nil {
				return nil, err
			}
			removed = append(removed, x)
			results = append(results, Applied{Kind: x.object.Kind(), Name: x.object.Name(), Action: "deleted"})
			unit.Writes = append(unit.Writes, deletion(x))
		}
	}
	if opts.DryRun || len(unit.Writes) == 0 {
		return results, nil
	}
	// 3. One unit for all.
	if len(unit.Writes) > store.MaxWrites {
		return nil, refuse(CodeTooLarge, "apply with %d changes: %d at most in one call", len(unit.Writes), store.MaxWrites)
	}
	err := p.store.Commit(ctx, []store.Unit{unit})[0]
	if err != nil {
		p.catchUp(ctx)
	}
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists) {
		return nil, refuse(CodeConflict, "somebody else changed the fleet at the same time; nothing was applied, try again")
	}
	if err != nil {
		return nil, fmt.Errorf("apply: %w", err)
	}
	// 4. Memory follows.
	p.declare(changed, removed)
	return results, nil
}

func declarationWrites(x *declaration, by string) ([]store.Write, error) {
	object, err := fleet.Encode(x.object)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", x.object.Kind(), x.object.Name(), err)
	}
	body, err := json.Marshal(stored{Object: object, UpdatedAt: x.updatedAt, Paused: x.paused, By: by})
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", x.object.Kind(), x.object.Name(), err)
	}
	writes := []store.Write{{Expect: x.revision - 1, Doc: store.Doc{
		Kind: store.KindFleet, ID: x.id(), Version: x.revision, Tag: tagCurrent, Body: body,
	}}}
	if kind := x.object.Kind(); hasRevisions(kind) {
		writes = append(writes, store.Write{Expect: store.AnyVersion, Doc: store.Doc{
			Kind: store.KindFleet, ID: revisionID(kind, x.object.Name(), x.revision), Version: 1, Body: body,
		}})
	}
	return writes, nil
}

func deletion(x *declaration) store.Write {
	return store.Write{Expect: x.revision, Delete: true, Doc: store.Doc{Kind: store.KindFleet, ID: x.id()}}
}

// declare puts changed declarations into force and takes removed ones out.
func (p *Plane) declare(changed, removed []*declaration) { p.declareSince(-1, changed, removed) }

// declareSince does so unless something was declared meanwhile; since is what changed told, -1 for anything.
func (p *Plane) declareSince(since int64, changed, removed []*declaration) bool {
	d := p.declared
	d.mu.Lock()
	if since >= 0 && since != d.changes {
		d.mu.Unlock()
		return false
	}
	d.changes++
	for _, x := range changed {
		if old := d.current[x.key()]; old != nil && hasRevisions(x.object.Kind()) {
			d.kept[revisionKey{x.object.Kind(), x.object.Name(), old.revision}] = old
		}
		d.current[x.key()] = x
	}
	for _, x := range removed {
		delete(d.current, x.key())
	}
	d.mu.Unlock()
	p.mu.Lock()
	for _, x := range changed {
		p.ix.declared(p, x.object)
	}
	for _, x := range removed {
		p.ix.undeclared(x.object)
	}
	p.mu.Unlock()
	p.tellFleet()
	for _, x := range append(changed, removed...) {
		if x.object.Kind() == fleet.KindAgent {
			for _, rt := range p.cfg.Runtimes {
				rt.Forget(x.object.Name())
			}
		}
	}
	p.wake()
	return true
}

// warnings are what a person should know about a valid object.
func (p *Plane) warnings(obj fleet.Object) []string {
	a, ok := obj.(*fleet.Agent)
	if !ok {
		return nil
	}
	var w []string
	if a.Lifetime.Max > 0 && a.Timeouts.Attempt > 0 && a.Lifetime.Max > a.Timeouts.Attempt {
		w = append(w, fmt.Sprintf("lifetime.max %s is longer than timeouts.attempt %s: an attempt would be stopped first", a.Lifetime.Max, a.Timeouts.Attempt))
	}
	if a.Model != "" {
		w = append(w, fmt.Sprintf("model %s is recorded and not yet scheduled: its capacity does not hold runs back", a.Model))
	}
	if a.Budget.USD > 0 || a.Budget.Tokens > 0 {
		w = append(w, "budget is recorded and not yet enforced")
	}
	if asksForMore(a) {
		w = append(w, "job is recorded and not yet followed: a submission makes one run, with the attempts that retry gives it")
	}
	if a.Scale != (fleet.Scale{}) {
		w = append(w, "scale is recorded and not yet followed")
	}
	if a.Evaluate != nil {
		w = append(w, "evaluate is recorded and not yet followed: no run is scored by itself")
	}
	return w
}

// asksForMore reports whether an agent's job differs from that of every agent of its shape that says nothing of it.
func asksForMore(a *fleet.Agent) bool {
	plain := fleet.Agent{Shape: a.Shape}
	plain.SetDefaults()
	return a.Job != nil && !reflect.DeepEqual(a.Job, plain.Job)
}

// deletable refuses the deletion of what live runs still need, and of what a workflow names that stays declared: of all
// of them, or of those that stay when a set is applied and all others are deleted.
func (p *Plane) deletable(x *declaration, stay map[string]bool) error {
	if user := p.usedBy(x, stay); user != "" {
		return refuse(CodeConflict, "%s %s is called by workflow %s: change or delete that one first", strings.ToLower(x.object.Kind()), x.object.Name(), user)
	}
	if !p.leads() && !p.store.Exclusive() {
		return notLeading("delete") // who decides knows what lives
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	kind, name := x.object.Kind(), x.object.Name()
	var n int
	switch kind {
	case fleet.KindAgent:
		n = p.ix.agents[name].total()
	case fleet.KindTarget:
		n = p.ix.heldBy(name)
	}
	if n > 0 {
		return refuse(CodeConflict, "%s %s has %d live runs: pause or drain it, wait for them or cancel them, then delete it", strings.ToLower(kind), name, n)
	}
	return nil
}

// Delete takes an object out of the fleet. revision, if not 0, must be the current one.
func (p *Plane) Delete(ctx context.Context, kind, name string, revision int64, _ string) error {
	if err := p.refresh(ctx); err != nil {
		return fmt.Errorf("delete %s %s: %w", strings.ToLower(kind), name, err)
	}
	x := p.declared.get(kind, name)
	switch {
	case x == nil:
		return refuse(CodeNotFound, "there is no %s %s", strings.ToLower(kind), name)
	case revision != 0 && revision != x.revision:
		return &Refusal{Code: CodeStale, Detail: fmt.Sprintf("%s %s has changed", strings.ToLower(kind), name), Current: fmt.Sprint(x.revision)}
	}
	if err := p.deletable(x, nil); err != nil {
		return err
	}
	err := p.store.Commit(ctx, []store.Unit{{Token: p.newID(), Writes: []store.Write{deletion(x)}}})[0]
	if err != nil {
		p.catchUp(ctx)
	}
	if errors.Is(err, store.ErrConflict) {
		return refuse(CodeConflict, "%s %s was changed at the same time; try again", strings.ToLower(kind), name)
	}
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", strings.ToLower(kind), name, err)
	}
	p.declare(nil, []*declaration{x})
	return nil
}

// PauseAgent stops or allows starts of an agent's runs. Runs that have started go on.
func (p *Plane) PauseAgent(ctx context.Context, name string, paused bool, actor string) error {
	if err := p.refresh(ctx); err != nil {
		return fmt.Errorf("pause agent %s: %w", name, err)
	}
	x := p.declared.get(fleet.KindAgent, name)
	if x == nil {
		return refuse(CodeNotFound, "there is no agent %s", name)
	}
	if x.paused == paused {
		return nil
	}
	next := *x
	next.paused, next.revision, next.updatedAt = paused, x.revision+1, p.now()
	writes, err := declarationWrites(&next, actor)
	if err != nil {
		return err
	}
	err = p.store.Commit(ctx, []store.Unit{{Token: p.newID(), Writes: writes}})[0]
	if err != nil {
		p.catchUp(ctx)
	}
	if errors.Is(err, store.ErrConflict) {
		return refuse(CodeConflict, "agent %s was changed at the same time; try again", name)
	}
	if err != nil {
		return fmt.Errorf("pause agent %s: %w", name, err)
	}
	p.declare([]*declaration{&next}, nil)
	return nil
}

// Declared lists one kind with its status, by name.
func (p *Plane) Declared(_ context.Context, kind string) ([]Declared, error) {
	all := p.declared.list(kind)
	out := make([]Declared, len(all))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range all {
		out[i] = p.status(x)
	}
	return out, nil
}

// DeclaredOne returns one object with its status.
func (p *Plane) DeclaredOne(ctx context.Context, kind, name string) (Declared, error) {
	x := p.declaredNamed(ctx, kind, name)
	if x == nil {
		return Declared{}, refuse(CodeNotFound, "there is no %s %s", strings.ToLower(kind), name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status(x), nil
}

// status is called with p.mu held.
func (p *Plane) status(x *declaration) Declared {
	d := Declared{Object: x.object, Revision: x.revision, UpdatedAt: x.updatedAt, Paused: x.paused}
	name := x.object.Name()
	switch o := x.object.(type) {
	case *fleet.Agent:
		n := p.ix.agents.of(name)
		d.Queued, d.Running = n.queued, n.live
		d.Workers = p.ix.workersOf(func(w *worker) bool { return slices.Contains(w.agents, name) })
	case *fleet.Tenant:
		n := p.ix.tenants.of(name)
		d.Queued, d.Running = n.queued, n.live
		d.Share = p.ix.share(name)
	case *fleet.Target:
		d.Running, d.Capacity = p.ix.heldBy(name), o.Capacity.Runs
		d.Workers = p.ix.workersOf(func(w *worker) bool { return w.target == name })
	}
	return d
}
