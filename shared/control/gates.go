package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// Gates: a run waits until people have decided. The rules are those of run.Gate; here they meet the store. A gate's
// document, the run's record and the record of the step that asked change in one unit, so that a decision counts once,
// by whichever process it came, and wakes the run once. The timers of a gate (reminder, escalation, expiry) are the
// run's own Due.

const (
	tagOpen       = "open" // gates that can be decided
	maxVotes      = 1000
	maxGateScan   = 2000 // gates looked at for one page of a list
	gateScanPage  = 200
	maxCostScan   = 2000 // runs of a tree whose cost is shown with a gate
	gateVoteTries = 3
)

// gateSpec is a question to people.
type gateSpec = run.GateAsk

// gateDraft makes the gate at which a run is about to wait in a step: what the run's EvParked carries, whose Due is
// park.Until, and the write that goes with it. The error says what is wrong with the question (it wraps run.ErrInvalid
// or run.ErrTooLarge), or is an outage of the store.
func (p *Plane) gateDraft(ctx context.Context, rec *run.Record, spec gateSpec, step string, now run.Instant) (run.Park, store.Write, error) {
	existing, err := p.gate(ctx, run.GateID(rec.ID, step))
	if err != nil && !isNotFound(err) {
		return run.Park{}, store.Write{}, err
	}
	next, err := run.Ask(existing, p.gateRun(ctx, rec, step), spec, now)
	if err != nil {
		return run.Park{}, store.Write{}, err
	}
	if next == nil {
		if _, decided := existing.Result(); decided {
			return run.Park{}, store.Write{}, refuse(CodeState, "gate %s of step %.80q is %s: the answer is among the run's steps", existing.ID, step, existing.State)
		}
		next = existing.Open(now) // its run does not wait for it: its time begins again
	}
	return p.parkAt(ctx, rec, existing, next, now)
}

// openRequested is gateDraft for a gate that the attempt has requested before.
func (p *Plane) openRequested(ctx context.Context, rec *run.Record, step string, now run.Instant) (run.Park, store.Write, error) {
	existing, err := p.gate(ctx, run.GateID(rec.ID, step))
	if isNotFound(err) || err == nil && existing.State != run.GateRequested {
		return run.Park{}, store.Write{}, fmt.Errorf("park on a gate in step %.80q: none was requested for it; put it into the park as gate, or POST it to …/gates first: %w", step, runtime.ErrInvalid)
	}
	if err != nil {
		return run.Park{}, store.Write{}, err
	}
	return p.parkAt(ctx, rec, existing, existing.Open(now), now)
}

func (p *Plane) parkAt(ctx context.Context, rec *run.Record, existing, g *run.Gate, now run.Instant) (run.Park, store.Write, error) {
	park := run.Park{On: run.OnGate, Name: g.ID, Step: g.Step, Until: g.Due()}
	park.Left = p.timeLeft(ctx, rec, now)
	w, err := gateWrite(existing, g)
	return park, w, err
}

// timeLeft is what is left of a run's time, in milliseconds, when a person whom it waits for has answered; 0 where the
// wait counts, or it has no deadline.
func (p *Plane) timeLeft(ctx context.Context, rec *run.Record, now run.Instant) int64 {
	if rec.Deadline <= now || p.countsWaiting(ctx, rec) {
		return 0
	}
	return min(int64(rec.Deadline-now), maxLeft)
}

// maxLeft bounds the time that a run may have left, in milliseconds: a hundred times more than any asks for.
const maxLeft = 1 << 40

// countsWaiting reports whether waiting for a person counts towards the run's time.
func (p *Plane) countsWaiting(ctx context.Context, rec *run.Record) bool {
	if rec.Kind != run.KindAgent {
		return p.flowCountsWaiting(ctx, rec)
	}
	a := p.agentOf(ctx, rec)
	return a != nil && a.Timeouts.CountWaiting
}

// gateRun is what a gate says of the run that asks.
func (p *Plane) gateRun(ctx context.Context, rec *run.Record, step string) run.GateRun {
	of := run.GateRun{
		Run: rec.ID, Step: step, Tenant: rec.Tenant, Agent: rec.Agent, Kind: rec.Kind, Stage: rec.Stage,
		Requester: rec.Requester, Cost: rec.Usage,
	}
	if rec.Kind != run.KindAgent {
		of.Stage, of.Cost = rec.Flow, p.costOfTree(ctx, rec)
	}
	return of
}

// costOfTree is what a run and those below it have spent so far, as far as one page of the store tells.
func (p *Plane) costOfTree(ctx context.Context, rec *run.Record) run.Usage {
	cost := rec.Usage
	page, err := p.store.List(ctx, store.Query{By: store.ByParent, Parent: rec.ID, Oldest: true, Limit: maxCostScan})
	if err != nil {
		p.log.WarnContext(ctx, "read what a run has cost so far", "run", rec.ID, "error", err)
		return cost
	}
	r := new(run.Record)
	for _, d := range page.Docs {
		if run.DecodeBrief(d.Body, r) == nil {
			cost = cost.Plus(r.Usage)
		}
	}
	return cost
}

func gateWrite(existing, g *run.Gate) (store.Write, error) {
	body, err := run.EncodeGate(g)
	if err != nil {
		return store.Write{}, err
	}
	w := store.Write{Doc: store.Doc{Kind: store.KindGate, ID: g.ID, Version: g.Version, Owner: g.Run, Body: body}}
	if existing != nil {
		w.Expect = existing.Version
	}
	if g.State == run.GateOpen {
		w.Tag = tagOpen
	}
	return w, nil
}

// gate reads a gate; a *Refusal says that there is none.
func (p *Plane) gate(ctx context.Context, id string) (*run.Gate, error) {
	doc, err := p.store.Get(ctx, store.KindGate, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, refuse(CodeNotFound, "there is no gate %.60q", id)
	}
	if err != nil {
		return nil, fmt.Errorf("read gate %s: %w", id, err)
	}
	return run.DecodeGate(doc.Body)
}

// waitsAt reports whether a run waits for people to decide a gate.
func waitsAt(rec *run.Record, gate string) bool {
	return rec.State == run.Waiting && rec.Park != nil && rec.Park.On == run.OnGate && rec.Park.Name == gate || asksToUndo(rec)
}

// parkedAtGate completes the park of an attempt that waits for people from now on.
func (p *Plane) parkedAtGate(ctx context.Context, d *draft, rec *run.Record, r *runtime.Report, park *run.Park, now run.Instant) error {
	var at run.Park
	var w store.Write
	var err error
	if r.Gate != nil {
		at, w, err = p.gateDraft(ctx, rec, *r.Gate, park.Step, now)
	} else {
		at, w, err = p.openRequested(ctx, rec, park.Step, now)
	}
	if errors.Is(err, run.ErrInvalid) || errors.Is(err, run.ErrTooLarge) {
		err = fmt.Errorf("attempt %s: %w: %w", runtime.AttemptID(r.Run, r.N), err, runtime.ErrInvalid)
	}
	if err != nil {
		return err
	}
	at.Seq = park.Seq
	*park = at
	d.writes = append(d.writes, w)
	return nil
}

// RequestGate keeps a question of an attempt until the attempt parks on it. Nobody is asked before.
func (p *Plane) RequestGate(ctx context.Context, id string, n int, step string, spec run.GateAsk) (*run.Gate, runtime.Result, error) {
	var result runtime.Result
	if !validName(step) {
		return nil, result, refuse(CodeInvalid, "gate: want a step of 1 to %d bytes", runtime.MaxName)
	}
	rec, _, err := p.holder(ctx, id, n)
	if err != nil {
		return nil, result, err
	}
	for range conflictTries {
		existing, err := p.gate(ctx, run.GateID(id, step))
		if err != nil && !isNotFound(err) {
			return nil, result, err
		}
		next, err := run.Ask(existing, p.gateRun(ctx, rec, step), spec, p.now())
		if err != nil {
			return nil, result, gateRefusal(err)
		}
		if next == nil {
			next = existing // it is decided
		} else {
			next = next.Request()
			w, err := gateWrite(existing, next)
			if err != nil {
				return nil, result, err
			}
			err = p.store.Commit(ctx, []store.Unit{{Token: p.newID(), Fences: []store.Fence{{Run: id, Attempt: int64(n)}}, Writes: []store.Write{w}}})[0]
			switch {
			case errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists):
				continue
			case errors.Is(err, store.ErrFenced):
				return nil, result, fmt.Errorf("attempt %s: %w", runtime.AttemptID(id, n), run.ErrFenced)
			case err != nil:
				return nil, result, fmt.Errorf("write gate %s: %w", next.ID, err)
			}
		}
		p.know(ctx, []runtime.Report{{Type: runtime.Beat, Run: id, N: n}}, []*runtime.Result{&result}, map[int]*run.Record{0: rec})
		return next, result, result.Err
	}
	return nil, result, refuse(CodeConflict, "gate of step %.80q is contended; try again", step)
}

// Gate returns a gate.
func (p *Plane) Gate(ctx context.Context, id string) (*run.Gate, error) { return p.gate(ctx, id) }

// GatesOf lists the gates of a run.
func (p *Plane) GatesOf(ctx context.Context, id string) ([]*run.Gate, error) {
	docs, err := p.store.Owned(ctx, store.KindGate, id, "", store.MaxPage)
	if err != nil {
		return nil, fmt.Errorf("read the gates of run %s: %w", id, err)
	}
	out := make([]*run.Gate, len(docs))
	for i := range docs {
		var err error
		if out[i], err = run.DecodeGate(docs[i].Body); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// GateFilter selects gates. Zero fields select all.
type GateFilter struct {
	State    run.GateState
	Approver string      // "user:NAME", "group:NAME" or "role:NAME" that is asked
	Decides  *run.Person // who may decide it
	Tenant   string
	Tenants  []string // what the caller may see; nil for all
	Run      string
}

func (f *GateFilter) matches(g *run.Gate) bool {
	return (f.State == "" || g.State == f.State) &&
		(f.Approver == "" || len(g.Approvers) == 0 || slices.Contains(g.Approvers, f.Approver)) &&
		(f.Decides == nil || g.Asks(f.Decides)) &&
		(f.Tenant == "" || g.Tenant == f.Tenant) &&
		(f.Tenants == nil || slices.Contains(f.Tenants, g.Tenant)) &&
		(f.Run == "" || g.Run == f.Run)
}

// Gates returns a page of gates, by id, and the token of the next page. What no index serves is applied to the scan,
// which ends after 2,000 gates: a page may hold fewer than limit, none even, and still have a next one.
func (p *Plane) Gates(ctx context.Context, f GateFilter, limit int, after string) (out []*run.Gate, next string, err error) {
	for scanned := 0; scanned < maxGateScan; {
		var docs []store.Doc
		size := min(gateScanPage, maxGateScan-scanned)
		switch {
		case f.Run != "":
			docs, err = p.store.Owned(ctx, store.KindGate, f.Run, after, size)
		case f.State == run.GateOpen:
			docs, err = p.store.Tagged(ctx, store.KindGate, tagOpen, after, size)
		default:
			docs, err = p.store.Tagged(ctx, store.KindGate, "", after, size)
		}
		if err != nil {
			return nil, "", fmt.Errorf("list gates: %w", err)
		}
		for _, d := range docs {
			after = d.ID
			g, err := run.DecodeGate(d.Body)
			if err != nil {
				return nil, "", err
			}
			if !f.matches(g) {
				continue
			}
			if out = append(out, g); len(out) == limit {
				return out, after, nil
			}
		}
		if scanned += len(docs); len(docs) < size {
			return out, "", nil
		}
	}
	return out, after, nil
}

// gateRefusal words what is wrong with a question, or with a decision, as a refusal.
func gateRefusal(err error) error {
	var gate *run.GateError
	switch {
	case errors.As(err, &gate):
		code := CodeState
		switch gate.Code {
		case run.GateCodeExpired:
			code = CodeExpired
		case run.GateCodeDecided:
			code = CodeDecided
		case run.GateCodeChanged:
			code = CodeChanged
		case run.GateCodeSelfApproval:
			code = CodeSelfApproval
		case run.GateCodeNotApprover:
			code = CodeForbidden
		case run.GateCodeInvalid:
			code = CodeInvalid
		}
		return refuse(code, "%s", gate.Message)
	case errors.Is(err, run.ErrTooLarge):
		return refuse(CodeTooLarge, "%v", err)
	case errors.Is(err, run.ErrInvalid):
		return refuse(CodeInvalid, "%v", err)
	}
	return err
}

// GateVote is a decision about a gate.
type GateVote struct {
	ID      string
	Tenants []string // what whoever decides may see; nil for all
	run.GateVote
}

// GateOutcome is what became of a GateVote: the gate as it stands, and a *Refusal or an outage.
type GateOutcome struct {
	Gate *run.Gate
	Err  error
}

// errGateMoved: the gate and the record of its run were read at different times.
var errGateMoved = errors.New("the gate changed meanwhile")

// DecideGates takes decisions, up to 1,000, in order, each for itself. One is durable when this returns; what it
// decides has woken its run.
func (p *Plane) DecideGates(ctx context.Context, votes []GateVote) []GateOutcome {
	out := make([]GateOutcome, len(votes))
	if len(votes) > maxVotes {
		for i := range out {
			out[i].Err = refuse(CodeTooLarge, "%d decisions, %d at most", len(votes), maxVotes)
		}
		return out
	}
	left := make([]int, len(votes))
	for i := range left {
		left[i] = i
	}
	tries := make([]int, len(votes))
	for len(left) > 0 {
		// One vote of each gate at a time: a unit writes a document once.
		var now, later []int
		seen := make(map[string]bool, len(left))
		for _, i := range left {
			if seen[votes[i].ID] {
				later = append(later, i)
				continue
			}
			seen[votes[i].ID] = true
			now = append(now, i)
		}
		p.decideSome(ctx, votes, now, out)
		for _, i := range now {
			if errors.Is(out[i].Err, errGateMoved) {
				if tries[i]++; tries[i] < gateVoteTries {
					later = append(later, i)
				} else {
					out[i].Err = refuse(CodeConflict, "gate %s is contended; try again", votes[i].ID)
				}
			}
		}
		slices.Sort(later)
		left = later
	}
	return out
}

// decideSome takes one vote of each of some gates.
func (p *Plane) decideSome(ctx context.Context, votes []GateVote, which []int, out []GateOutcome) {
	// 1. The gates, in one read.
	ids := make([]string, len(which))
	for k, i := range which {
		ids[k] = votes[i].ID
	}
	docs, err := p.store.GetMany(ctx, store.KindGate, ids)
	var edits []edit
	var editOf []int
	for k, i := range which {
		v := &votes[i]
		out[i] = GateOutcome{}
		if err != nil {
			out[i].Err = fmt.Errorf("read gate %s: %w", v.ID, err)
			continue
		}
		g, err := gateOf(docs[k], v)
		if err != nil {
			out[i].Err = err
			continue
		}
		edits, editOf = append(edits, p.voted(v, g, &out[i])), append(editOf, i)
	}
	// 2. The decisions, with what follows for their runs.
	for k, o := range p.changeAll(ctx, edits) {
		if i := editOf[k]; o.err != nil {
			if out[i].Err = o.err; isNotFound(o.err) {
				out[i].Err = refuse(CodeNotFound, "there is no gate %.60q", votes[i].ID)
			}
		}
	}
	for _, i := range which {
		out[i].Err = gateRefusal(stateRefusal(out[i].Err))
	}
}

func gateOf(d store.Doc, v *GateVote) (*run.Gate, error) {
	if d.Version == 0 {
		return nil, refuse(CodeNotFound, "there is no gate %.60q", v.ID)
	}
	g, err := run.DecodeGate(d.Body)
	if err != nil {
		return nil, err
	}
	if v.Tenants != nil && !slices.Contains(v.Tenants, g.Tenant) {
		return nil, refuse(CodeNotFound, "there is no gate %.60q", v.ID)
	}
	return g, nil
}

// voted is the edit of the run that waits at a gate when somebody decides. read is the gate as it was before.
func (p *Plane) voted(v *GateVote, read *run.Gate, out *GateOutcome) edit {
	return edit{id: read.Run, decide: func(ctx context.Context, rec *run.Record, now run.Instant) (draft, error) {
		var d draft
		// 1. The gate: as it was read, and fresh for every further try.
		g := read
		read = nil
		if g == nil {
			var err error
			if g, err = p.gate(ctx, v.ID); err != nil {
				return d, err
			}
		}
		*out = GateOutcome{Gate: g}
		if g.State == run.GateOpen && !waitsAt(rec, g.ID) {
			return d, errGateMoved
		}
		// 2. What the vote means, after what the gate's timers have let others decide meanwhile.
		at, did := g.Pass(now)
		if at == nil || at.State != run.GateOpen {
			at, did = g, nil
		}
		next, err := at.Decide(v.GateVote, now)
		switch {
		case err != nil:
			return d, p.voteRefused(ctx, &d, rec, g, v, err, out, now)
		case next == nil:
			return d, nil // it was said before
		}
		next.Version = g.Version + 1
		out.Gate = next
		d.events = append(d.events, timersDid(next, did, now)...)
		return d, p.gateMoved(ctx, &d, rec, g, next, run.Event{Actor: v.Name, Message: run.Clip(v.Comment, run.MaxMessage), Code: string(v.Decision)}, now)
	}}
}

// voteRefused notes a decision that does not count. One that comes after the gate's time closes it.
func (p *Plane) voteRefused(ctx context.Context, d *draft, rec *run.Record, g *run.Gate, v *GateVote, why error, out *GateOutcome, now run.Instant) error {
	out.Err = why
	var refusal *run.GateError
	if !errors.As(why, &refusal) {
		return nil
	}
	next, did := g.Pass(now)
	if next == nil {
		next = g
	}
	noted := next.Remember(v.GateVote, refusal.Code, now)
	if noted != nil {
		next = noted
	}
	if next == g || refusal.Code == run.GateCodeInvalid {
		return nil
	}
	out.Gate = next
	over := rec.State.Terminal() || rec.State == run.Compensating
	if noted != nil && !over {
		d.events = append(d.events, run.Event{
			Type: run.EvGateChanged, At: now, Actor: run.Clip(v.Name, run.MaxName), Code: "refused", Due: next.Due(),
			Message: run.Clip(refusal.Message, run.MaxMessage), Detail: gateDetail(g, string(v.Decision)),
		})
	}
	if over {
		p.noteAfterwards(ctx, g, next)
		return nil
	}
	return p.gatePassed(ctx, d, rec, g, next, did, now)
}

// noteAfterwards keeps with a gate what was said of it after its run ended. Nothing depends on it.
func (p *Plane) noteAfterwards(ctx context.Context, g, next *run.Gate) {
	next.Version = g.Version + 1
	w, err := gateWrite(g, next)
	if err == nil {
		err = p.store.Commit(ctx, []store.Unit{{Token: p.newID(), Writes: []store.Write{w}}})[0]
	}
	if err != nil {
		p.log.WarnContext(ctx, "note a decision that came too late", "gate", g.ID, "error", err)
	}
}

// gateMoved writes a gate's new version and what follows for its run: it goes on once the gate is decided.
func (p *Plane) gateMoved(ctx context.Context, d *draft, rec *run.Record, was, next *run.Gate, e run.Event, now run.Instant) error {
	w, err := gateWrite(was, next)
	if err != nil {
		return err
	}
	d.writes = append(d.writes, w)
	result, decided := next.Result()
	if !decided {
		e.Type, e.At, e.Due, e.Detail = run.EvGateChanged, now, next.Due(), gateDetail(next, "")
		d.events = append(d.events, e)
		return nil
	}
	body, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("encode the result of gate %s: %w", next.ID, err)
	}
	seq := 0
	if rec.Park != nil {
		seq = rec.Park.Seq
	}
	step, err := stepWrite(rec.ID, runtime.Step{Name: next.Step, Seq: seq, Result: body})
	if err != nil {
		return err
	}
	step.Expect = store.AnyVersion
	d.writes = append(d.writes, step)
	e.Type, e.At, e.Code, e.Detail = run.EvWoken, now, result.Decision, gateDetail(next, "")
	switch {
	case rec.State == run.Compensating:
		e.Type, e.Stage = run.EvAdvanced, rec.Flow
	case rec.Kind == run.KindAgent:
		e.Due = p.queueEnd(ctx, rec, now)
	default:
		e.Type = run.EvBegan
	}
	d.events = append(d.events, e)
	return nil
}

// gateDetail is what an event of history says of a gate.
func gateDetail(g *run.Gate, wanted string) json.RawMessage {
	body, err := json.Marshal(struct {
		Gate   string `json:"gate"`
		Round  int    `json:"round"`
		Hash   string `json:"actionHash"`
		Wanted string `json:"wanted,omitempty"`
	}{g.ID, g.Round, g.ActionHash, run.Clip(wanted, 64)})
	if err != nil {
		return nil // of texts and numbers: cannot be
	}
	return body
}

// gatePassed writes what a gate's timers did, if anything, and that a decision was refused.
func (p *Plane) gatePassed(ctx context.Context, d *draft, rec *run.Record, was, next *run.Gate, did []string, now run.Instant) error {
	// Of several changes at once the stored gate has one version: that after all of them.
	next.Version = was.Version + 1
	d.events = append(d.events, timersDid(next, did, now)...)
	if next.State != was.State {
		return p.gateMoved(ctx, d, rec, was, next, run.Event{Message: "nobody decided in time"}, now)
	}
	w, err := gateWrite(was, next)
	d.writes = append(d.writes, w)
	return err
}

// timersDid are the events of what a gate's timers did short of closing it.
func timersDid(next *run.Gate, did []string, now run.Instant) (events []run.Event) {
	for _, what := range did {
		if what == run.GateTimedOut {
			break
		}
		e := run.Event{Type: run.EvGateChanged, At: now, Code: what, Due: next.Due(), Detail: gateDetail(next, "")}
		if what == run.GateEscalated {
			e.Message = run.Clip("also asked: "+strings.Join(next.EscalateTo, ", "), run.MaxMessage)
		}
		events = append(events, e)
	}
	return events
}

// gateDue does what the timers of the gate at which a run waits ask for.
func (p *Plane) gateDue(ctx context.Context, d *draft, rec *run.Record, now run.Instant) error {
	g, err := p.gate(ctx, rec.Park.Name)
	if isNotFound(err) {
		return p.end(ctx, d, rec, run.Event{Type: run.EvFailed, At: now, Reason: run.GateExpired,
			Message: fmt.Sprintf("gate %s, for which it waits, is gone from the store", rec.Park.Name)})
	}
	if err != nil {
		return err
	}
	next, did := g.Pass(now)
	if next == nil {
		return nil
	}
	return p.gatePassed(ctx, d, rec, g, next, did, now)
}

// closeGates makes the writes that close what a run still asks of people.
func (p *Plane) closeGates(ctx context.Context, id string, now run.Instant) (writes []store.Write, err error) {
	gates, err := p.GatesOf(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, g := range gates {
		if writes, err = appendClosed(writes, g, now); err != nil {
			return nil, err
		}
	}
	return writes, nil
}

// appendClosed appends the write that closes a gate, if nothing has closed it yet.
func appendClosed(writes []store.Write, g *run.Gate, now run.Instant) ([]store.Write, error) {
	next := g.Cancel(now)
	if next == nil {
		return writes, nil
	}
	w, err := gateWrite(g, next)
	if err != nil {
		return writes, err
	}
	return append(writes, w), nil
}

// leftGate closes the gate of a run that waits for it no more although nobody decided: it was canceled, say.
func (p *Plane) leftGate(ctx context.Context, before *run.Record, pd *pending, now run.Instant) error {
	if before.Park == nil || before.Park.On != run.OnGate || waitsAt(pd.rec, before.Park.Name) ||
		slices.ContainsFunc(pd.unit.Writes, func(w store.Write) bool { return w.Kind == store.KindGate && w.ID == before.Park.Name }) {
		return nil
	}
	g, err := p.gate(ctx, before.Park.Name)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	pd.unit.Writes, err = appendClosed(pd.unit.Writes, g, now)
	return err
}
