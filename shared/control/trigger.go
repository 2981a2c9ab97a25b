package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/store"
	"github.com/errand-run/errand/shared/trigger"
)

// Triggers: what arrives from outside becomes a submission, and one that never will is put aside as a dead letter by the
// control plane's own count of its deliveries. A broker's count is best effort: it may start over, or not be kept.

// Arrived is a message that a trigger takes.
type Arrived struct {
	Trigger string
	Message *trigger.Message
	// Tenants is whom the caller may act for; nil for all.
	Tenants []string
	Actor   string
}

// Taken is what became of it: a run, or a dead letter by which the sender is rid of the message.
type Taken struct {
	Submitted
	DeadLetter string // id; "" for none
}

// Hook is a trigger that takes HTTP requests.
type Hook struct{ Trigger, SecretRef string }

// HookAt finds the trigger that takes requests at a path. One that was declared at another process is looked for, once a
// second at most: whoever asks for what is not there proves nothing yet.
func (p *Plane) HookAt(ctx context.Context, path string) (Hook, error) {
	h, found := p.hookAt(path)
	if !found && !p.store.Exclusive() {
		mono := p.cfg.Monotonic()
		p.mu.Lock()
		look := mono >= p.lookedForHook
		if look {
			p.lookedForHook = mono + time.Second
		}
		p.mu.Unlock()
		if look {
			if err := p.loadDeclarations(ctx); err != nil {
				return h, fmt.Errorf("look for the trigger at %.80q: %w", path, err)
			}
			h, found = p.hookAt(path)
		}
	}
	if !found {
		return h, refuse(CodeNotFound, "no trigger takes requests at %.80q", path)
	}
	return h, nil
}

func (p *Plane) hookAt(path string) (Hook, bool) {
	for _, x := range p.declared.list(fleet.KindTrigger) {
		if t := x.object.(*fleet.Trigger); t.HTTP != nil && t.HTTP.Path == path {
			return Hook{t.Name(), t.HTTP.SecretRef}, true
		}
	}
	return Hook{}, false
}

// agentsMissing finds triggers of a set whose agent or workflow is neither in the set nor stays declared beside it: each
// of their messages would fail.
func (p *Plane) agentsMissing(objects []fleet.Object, given map[string]bool, prune bool) []Fault {
	var faults []Fault
	for _, o := range objects {
		t, ok := o.(*fleet.Trigger)
		if !ok {
			continue
		}
		kind, name := fleet.KindAgent, t.Run.Agent
		if name == "" {
			kind, name = fleet.KindWorkflow, t.Run.Workflow
		}
		if name == "" || given[declaredID(kind, name)] || !prune && p.declared.get(kind, name) != nil {
			continue
		}
		word := strings.ToLower(kind)
		faults = append(faults, Fault{"Trigger " + t.Name() + ": spec.run." + word, fmt.Sprintf("there is no %s %s; declare it first, or in the same call", word, name)})
	}
	return faults
}

// pathsTaken finds triggers of a set, and of what stays declared beside it, that want the same path.
func (p *Plane) pathsTaken(objects []fleet.Object) []Fault {
	given := make(map[string]bool)
	for _, o := range objects {
		given[declaredID(o.Kind(), o.Name())] = true
	}
	all := slices.Clone(objects)
	for _, x := range p.declared.list(fleet.KindTrigger) {
		if !given[x.id()] {
			all = append([]fleet.Object{x.object}, all...)
		}
	}
	var faults []Fault
	owner := make(map[string]string)
	for _, o := range all {
		t, ok := o.(*fleet.Trigger)
		if !ok || t.HTTP == nil {
			continue
		}
		if first, taken := owner[t.HTTP.Path]; taken && first != t.Name() {
			faults = append(faults, Fault{"Trigger " + t.Name() + ": spec.http.path", fmt.Sprintf("%s is the path of trigger %s", t.HTTP.Path, first)})
			continue
		}
		owner[t.HTTP.Path] = t.Name()
	}
	return faults
}

// TakeMessage makes a run of a message, or says why not. A message that was taken before gives its run. One that no repeat will
// make better is refused until it was refused as often as its trigger says; then it is a dead letter, and taken.
func (p *Plane) TakeMessage(ctx context.Context, a Arrived) (Taken, error) {
	x := p.declaredNamed(ctx, fleet.KindTrigger, a.Trigger)
	if x == nil {
		return Taken{}, refuse(CodeNotFound, "there is no trigger %.80s; declare it with \"errand apply\"", a.Trigger)
	}
	t := x.object.(*fleet.Trigger)
	done, err := p.submitMessage(ctx, x, a, 0)
	switch {
	case err == nil:
		if t.PubSub != nil && a.Message.Attempt != 1 {
			p.forgetDeliveries(ctx, t.Name(), a.Message)
		}
		return Taken{Submitted: done}, nil
	case t.PubSub == nil || !hopeless(err) || a.Message.ID == "":
		return Taken{}, err
	}
	id, countErr := p.countDelivery(ctx, t, a.Message, err)
	if countErr != nil || id == "" {
		return Taken{}, errors.Join(err, countErr)
	}
	return Taken{DeadLetter: id}, nil
}

// hopeless reports whether an error will be the same however often the message comes.
func hopeless(err error) bool {
	var r *Refusal
	return errors.As(err, &r) && r.Code != CodeOverloaded && r.Code != CodeUnavailable
}

// submitMessage maps a message and submits it.
func (p *Plane) submitMessage(ctx context.Context, x *declaration, a Arrived, generation int) (Submitted, error) {
	// 1. What the trigger makes of it.
	s, err := x.mapper.Map(ctx, a.Message, generation)
	if poison := trigger.IsPoison(err); poison != nil {
		return Submitted{}, &Refusal{
			Code: CodeInvalid, Detail: fmt.Sprintf("trigger %s makes no run of the message: %v", a.Trigger, poison),
			Faults: []Fault{{poison.Path, poison.Message}},
		}
	}
	if err != nil {
		return Submitted{}, err
	}
	// 2. Whom it is for.
	tenant := s.Tenant
	switch {
	case tenant == "" && (a.Tenants == nil || slices.Contains(a.Tenants, fleet.DefaultTenant) || len(a.Tenants) != 1):
		tenant = fleet.DefaultTenant
	case tenant == "":
		tenant = a.Tenants[0]
	}
	if a.Tenants != nil && !slices.Contains(a.Tenants, tenant) {
		return Submitted{}, refuse(CodeForbidden, "%s may not act for tenant %.80q, which trigger %s names", a.Actor, tenant, a.Trigger)
	}
	// 3. The run, or the one that is there.
	done := p.Submit(ctx, []Submission{{
		Agent: s.Agent, Workflow: s.Workflow, Input: s.Input, Tenant: tenant, Labels: s.Labels, Key: s.Key, Actor: a.Actor,
	}})[0]
	var refusal *Refusal
	if s.ByID && done.Run != nil && errors.As(done.Err, &refusal) && refusal.Code == CodeConflict {
		done.Err, done.Existed = nil, true // this very message, before the trigger was changed
	}
	return done, done.Err
}

// deliveries is the count of failed deliveries of one message.
type deliveries struct {
	N  int         `json:"n"`
	At run.Instant `json:"at"` // of the first
}

const (
	deliveryPrefix = "delivery/"
	tagDelivery    = "delivery"
	// keepDeliveries is for how long a count is kept: no broker delivers a message for longer.
	keepDeliveries = 32 * 24 * time.Hour
	sweepAtOnce    = 64
)

// countDelivery counts a failed delivery, and makes a dead letter of the message when it was one too many.
func (p *Plane) countDelivery(ctx context.Context, t *fleet.Trigger, m *trigger.Message, cause error) (id string, err error) {
	ctx = context.WithoutCancel(ctx)
	doc, err := p.store.Get(ctx, store.KindMisc, deliveryID(t.Name(), m))
	var n deliveries
	switch {
	case errors.Is(err, store.ErrNotFound):
		doc, n.At = store.Doc{Kind: store.KindMisc, ID: deliveryID(t.Name(), m), Tag: tagDelivery}, p.now()
		p.sweep(ctx, tagDelivery, keepDeliveries)
	case err != nil:
		return "", fmt.Errorf("count a delivery: %w", err)
	default:
		if err := decodeMisc(doc, &n); err != nil {
			return "", err
		}
	}
	if n.N++; n.N < t.PubSub.MaxAttempts {
		next, err := encodeMisc(doc, n)
		if err != nil {
			return "", err
		}
		err = p.store.Commit(ctx, []store.Unit{{Token: p.newID(), Writes: []store.Write{{Expect: doc.Version, Doc: next}}}})[0]
		if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists) {
			return "", nil // two deliveries at a time: one of them counts
		}
		return "", err
	}
	var more []store.Write
	if doc.Version > 0 {
		more = []store.Write{{Expect: store.AnyVersion, Delete: true, Doc: store.Doc{Kind: store.KindMisc, ID: doc.ID}}}
	}
	letter, _, err := p.recordDeadLetter(ctx, DeadLetter{Trigger: t.Name(), Message: m, Attempts: n.N, Reason: reasonOf(cause)}, more)
	return letter.ID, err
}

// forgetDeliveries drops the count of a message that was taken after all.
func (p *Plane) forgetDeliveries(ctx context.Context, name string, m *trigger.Message) {
	id := deliveryID(name, m)
	if _, err := p.store.Get(ctx, store.KindMisc, id); err != nil {
		return // nearly always: there is none
	}
	err := p.store.Commit(context.WithoutCancel(ctx), []store.Unit{{Token: p.newID(), Writes: []store.Write{
		{Expect: store.AnyVersion, Delete: true, Doc: store.Doc{Kind: store.KindMisc, ID: id}},
	}}})[0]
	if err != nil {
		p.log.WarnContext(ctx, "forget the failed deliveries of a message that was taken", "trigger", name, "error", err)
	}
}

// sweep removes documents of a tag that are older than keep, some at a time: those of the oldest messages stand first.
func (p *Plane) sweep(ctx context.Context, tag string, keep time.Duration) {
	docs, err := p.store.Tagged(ctx, store.KindMisc, tag, "", sweepAtOnce)
	if err != nil {
		return // the next one does it
	}
	var units []store.Unit
	for _, doc := range docs {
		var made struct {
			At run.Instant `json:"at"`
		}
		if decodeMisc(doc, &made) != nil || made.At.Add(keep) > p.now() {
			continue
		}
		units = append(units, store.Unit{Token: p.newID(), Writes: []store.Write{
			{Expect: store.AnyVersion, Delete: true, Doc: store.Doc{Kind: store.KindMisc, ID: doc.ID}},
			{Expect: store.AnyVersion, Delete: true, Doc: store.Doc{Kind: store.KindPayload, ID: doc.ID}},
		}})
	}
	if len(units) == 0 {
		return
	}
	for _, err := range p.store.Commit(ctx, units) {
		if err != nil {
			p.log.WarnContext(ctx, "remove what is too old", "what", tag, "error", err)
			return
		}
	}
}
