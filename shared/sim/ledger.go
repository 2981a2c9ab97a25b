package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/shared/control"
	"github.com/errand-run/errand/shared/fleet"
	"github.com/errand-run/errand/shared/run"
	"github.com/errand-run/errand/shared/runtime"
	"github.com/errand-run/errand/shared/store"
)

// ledger is the reference: which runs exist, as the applied writes made them, and what was acknowledged to whom.
type ledger struct {
	w        *world
	runs     map[string]*known
	order    []string // ids, as they came
	purged   int
	receipts map[string]*run.Receipt
	keys     map[string]promise // by TENANT/KEY
	asking   map[*process]asked
	sessions map[string]*session // by key
	shares   *shares
	snapping string // the worker whose snapshots are just taken in
	logged   map[logOf]int
	family   families
	gates    map[string]*run.Gate
	votes    map[vote]run.Verdict // that were told to be taken
	unit     *store.Unit          // that is being looked at
	leader   string               // by the dispatcher lease
	led      int                  // writes when it took the lease
	writes   int
	looks    int // at what processes had settled
}

// known is a run.
type known struct {
	rec      *run.Record
	folded   *run.Record // what its history makes of it
	events   []run.Event
	usage    run.Usage // sum of what its attempts reported
	placedBy string
	placedAt int           // writes then
	boot     int           // of that process then
	liveAt   time.Duration // when it was placed
	steps    map[string]string
	clock    clock
	unheard  bool // begun at a process that had lost the lead while it hung: the one that leads has not heard of it
}

// promise is what was acknowledged under a key.
type promise struct{ run, request string }

// asked is the attempt that a process is just serving.
type asked struct {
	run string
	n   int
}

func newLedger(w *world) *ledger {
	return &ledger{
		w: w, runs: map[string]*known{}, receipts: map[string]*run.Receipt{}, keys: map[string]promise{}, asking: map[*process]asked{},
		sessions: map[string]*session{}, shares: newShares(), logged: map[logOf]int{},
		family: newFamilies(), gates: map[string]*run.Gate{}, votes: map[vote]run.Verdict{},
	}
}

// asks notes that a process serves an attempt, until the returned function is called.
func (l *ledger) asks(p *process, id string, n int) (done func()) {
	before := l.asking[p]
	l.asking[p] = asked{id, n}
	return func() { l.asking[p] = before }
}

// holds reports whether an attempt may report.
func (l *ledger) holds(id string, n int) bool {
	k := l.runs[id]
	return k != nil && holderOf(k.rec) == n
}

// fenced checks that no attempt is turned away that held its run before the call and holds it still.
func (l *ledger) fenced(id string, n int, held bool, err error) {
	if errors.Is(err, run.ErrFenced) {
		l.w.saw("report of a fenced attempt refused")
	}
	if errors.Is(err, run.ErrFenced) && held && l.holds(id, n) && !l.runs[id].unheard {
		l.w.fail("the attempt that holds a run is heard", "attempt %s: %v", runtime.AttemptID(id, n), err)
	}
}

// wrote takes an applied unit of a process and checks it against what was there before.
func (l *ledger) wrote(p *process, u *store.Unit) {
	w := l.w
	l.unit = u
	if a := l.asking[p]; a.run != "" && !callsFor(u, a.run) {
		k := l.runs[a.run]
		if k == nil || !k.rec.Live() || k.rec.Attempt != a.n {
			w.fail("what a fenced attempt sends changes nothing", "attempt %s wrote %s %s", runtime.AttemptID(a.run, a.n), u.Writes[0].Kind, u.Writes[0].ID)
		}
	}
	for _, id := range u.Purge {
		l.needed(id)
		for rid, r := range l.receipts {
			if r.Run == id {
				delete(l.receipts, rid)
				w.outside.forget(rid)
			}
		}
		for gid, g := range l.gates {
			if g.Run == id {
				delete(l.gates, gid)
			}
		}
	}
	for i := range u.Writes {
		d := &u.Writes[i]
		l.writes++
		w.mixText(string(d.Kind) + d.ID)
		w.mix(uint64(d.Version))
		switch d.Kind {
		case store.KindRun:
			if d.Delete {
				l.deleted(p, d.ID)
				continue
			}
			w.mixText(string(d.Body))
			l.wroteRun(p, d)
		case store.KindReceipt:
			l.wroteReceipt(d)
		case store.KindFleet:
			l.wroteFleet(d)
		case store.KindLease:
			l.wroteLease(d)
		case store.KindGate:
			l.wroteGate(u, d)
		case store.KindSession:
			l.wroteSession(p, u, d)
		case store.KindLog:
			l.wroteLog(p, d)
		case store.KindMisc:
			if d.ID == "shares" {
				l.shares.saved = l.shares.clone()
				w.saw("shares kept")
			}
		}
	}
	for i := range u.Writes { // a run that is retried from a stage comes with the steps before it
		if u.Writes[i].Kind == store.KindStep {
			l.wroteStep(&u.Writes[i])
		}
	}
	l.gatesAndRuns(u)
	l.clocks(u)
}

// needed checks that nobody needs a run that is about to be removed, or its receipts.
func (l *ledger) needed(id string) {
	for _, r := range l.receipts {
		if r.Run == id && (r.State == run.ReceiptIntent || r.State == run.ReceiptUnknown) {
			l.w.fail("a run stays until its effects are settled", "run %s with receipt %s, which is %s", id, r.ID, r.State)
		}
	}
	for _, k := range l.runs {
		if k.rec.RetryOf == id || k.rec.Parent == id {
			l.w.fail("a run stays while one that came of it is there", "run %s before %s", id, k.rec.ID)
		}
	}
}

func (l *ledger) deleted(p *process, id string) {
	k := l.runs[id]
	if k == nil || !k.rec.State.Terminal() || k.rec.Due == 0 || k.rec.Due > p.now() {
		l.w.fail("only what has ended and is not kept any longer is removed", "run %s", id)
	}
	delete(l.runs, id)
	l.purged++
	l.w.saw("run removed at its end of keeping")
	for key, x := range l.keys {
		if x.run == id {
			delete(l.keys, key)
		}
	}
}

func (l *ledger) wroteFleet(d *store.Write) {
	f := &l.w.fleet
	kind, name, _ := strings.Cut(d.ID, "/")
	if d.Delete {
		if kind == fleet.KindTarget {
			f.targets[name] = append(f.targets[name], nil)
		}
		return
	}
	x, err := declaredIn(d.Body)
	if err != nil {
		l.w.fail("the declared fleet can be read", "%s: %v", d.ID, err)
	}
	switch o := x.object.(type) {
	case *fleet.Target:
		f.targets[name] = append(f.targets[name], o)
	case *fleet.Tenant:
		f.tenants[name] = o
		f.quotas[name] = append(f.quotas[name], quota{l.writes, o.Quota.Running})
	case *fleet.Agent:
		f.agents[name] = o
		if !strings.Contains(name, "@") {
			f.paused[name] = x.paused
		}
	}
}

// declaration is what a document of the fleet says. All worlds share what was decoded: they declare the same few things.
type declaration struct {
	object fleet.Object
	paused bool
}

var decoded sync.Map // of declaration, by the object's text and whether it is paused

func declaredIn(body []byte) (declaration, error) {
	var doc struct {
		Object json.RawMessage `json:"object"`
		Paused bool            `json:"paused"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return declaration{}, err
	}
	if x, known := decoded.Load(string(doc.Object)); known {
		return declaration{x.(fleet.Object), doc.Paused}, nil
	}
	obj, err := fleet.Decode(doc.Object)
	if err == nil {
		decoded.Store(string(doc.Object), obj)
	}
	return declaration{obj, doc.Paused}, err
}

func (l *ledger) wroteStep(d *store.Write) {
	k := l.runs[d.Owner]
	if k == nil {
		l.w.fail("steps belong to runs", "step %s", d.ID)
	}
	if k.steps == nil {
		k.steps = map[string]string{}
	}
	if d.Expect == 0 && k.steps[d.ID] != "" {
		l.w.fail("a step ends once", "step %s", d.ID)
	}
	k.steps[d.ID] = string(d.Body)
}

func (l *ledger) wroteLease(d *store.Write) {
	var x struct {
		Holder string `json:"holder"`
		Epoch  int64  `json:"epoch"`
		Beat   int64  `json:"beat"`
	}
	if err := json.Unmarshal(d.Body, &x); err != nil {
		l.w.fail("the dispatcher lease can be read", "%v", err)
	}
	if x.Beat == 0 || x.Holder != l.leader {
		if l.leader != "" && l.leader != x.Holder {
			l.w.saw("lead taken over from another process")
		}
		l.leader, l.led = x.Holder, l.writes
	}
}

func (l *ledger) wroteReceipt(d *store.Write) {
	r, err := run.DecodeReceipt(d.Body)
	if err != nil {
		l.w.fail("receipts can be read", "%v", err)
	}
	before := l.receipts[d.ID]
	switch {
	case before != nil && reflect.DeepEqual(r, run.FailUndo(before)):
		l.w.saw("effect that could not be undone")
	case before != nil && before.State == run.ReceiptDone && r.State != run.ReceiptCompensated:
		l.w.fail("a committed receipt is final", "receipt %s became %s", d.ID, r.State)
	case before != nil && r.State == run.ReceiptCompensated:
		l.compensated(before)
	case before != nil && before.State == run.ReceiptCompensated:
		l.w.outside.forget(d.ID) // it is undone: what is done under it again is another thing
	}
	l.receipts[d.ID] = r
}

// handed: an attempt is given to its executor only when that is durable.
func (l *ledger) handed(p *process, x *worker, a *runtime.Assignment) {
	k := l.runs[a.Run]
	switch {
	case k == nil:
		l.w.fail("commit before start", "%s is handed over and does not exist", a.ID())
	case k.rec.Attempt < a.N:
		l.w.fail("commit before start", "%s is handed over, the record is at attempt %d", a.ID(), k.rec.Attempt)
	case k.rec.Attempt == a.N && k.rec.Live() && x != nil && k.rec.Current().Node != p.nodeOf(x):
		l.w.fail("an attempt goes where it was placed", "%s is handed to %s, it is on %s", a.ID(), x.id, k.rec.Current().Node)
	}
	l.handedToUndo(a)
	for _, s := range a.Steps {
		if of := l.runs[k.rec.Of]; s.Name != "" && k.steps[a.Run+"/"+s.Name] == "" && (of == nil || of.steps[of.rec.ID+"/"+s.Name] == "") {
			l.w.fail("recorded steps are handed on", "%s gets step %s, which nobody recorded", a.ID(), s.Name)
		}
	}
	if k.rec.Attempt == a.N && k.rec.Live() {
		l.turn(p, x, a, k.rec)
	}
	if len(a.Steps) != len(k.steps) && a.Mode != run.ModeCompensate && k.rec.Attempt == a.N && x != nil {
		l.w.fail("recorded steps are handed on", "%s gets %d steps of %d", a.ID(), len(a.Steps), len(k.steps))
	}
}

func (p *process) nodeOf(x *worker) string {
	target := x.target
	if target == "" {
		target = "workers"
	}
	return target + "/" + x.id
}

// answered: a client heard what became of its submission.
func (l *ledger) answered(p *process, s *submission, out control.Submitted) {
	w := l.w
	name, request := s.Tenant+"/"+s.Key, requestOf(s)
	w.say("submit of %s by %s, key %q: %s", s.Agent+s.Workflow, s.Tenant, s.Key, outcomeOf(out.Run, out.Err))
	l.checkAnswer("submit", out.Err)
	var refusal *control.Refusal
	earlier, promised := l.keys[name]
	switch {
	case errors.As(out.Err, &refusal) && refusal.Code == control.CodeConflict && s.Key != "":
		if promised && earlier.request == request {
			w.fail("the same request under a key gives the same run", "key %s: %v", name, out.Err)
		}
		return
	case out.Err != nil:
		return
	}
	k := l.runs[out.Run.ID]
	switch {
	case k == nil:
		w.fail("what is acknowledged is durable", "run %s does not exist", out.Run.ID)
	case k.rec.Tenant != s.Tenant || k.rec.Agent != s.Agent+s.Workflow || !bytes.Equal(k.rec.Input.Inline, s.Input):
		w.fail("what is acknowledged is what was asked", "run %s is of %s for %s", out.Run.ID, k.rec.Agent, k.rec.Tenant)
	case s.Priority != nil && k.rec.Priority != *s.Priority:
		w.fail("what is acknowledged is what was asked", "run %s has priority %d, not %d", out.Run.ID, k.rec.Priority, *s.Priority)
	case s.Key == "" && out.Existed:
		w.fail("a run without a key is a new one", "run %s", out.Run.ID)
	}
	if s.Key == "" {
		return
	}
	if out.Existed {
		w.saw("key answered with the run that it has")
	}
	if promised && (earlier.run != out.Run.ID || earlier.request != request) {
		w.fail("a key means one run", "key %s: run %s before, run %s now", name, earlier.run, out.Run.ID)
	}
	l.keys[name] = promise{out.Run.ID, request}
}

func requestOf(s *submission) string {
	body, err := json.Marshal(s.Submission)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func (l *ledger) retried(id string, r *run.Record) {
	k := l.runs[r.ID]
	if k == nil || k.rec.RetryOf != id {
		l.w.fail("what is acknowledged is durable", "run %s, a retry of %s", r.ID, id)
	}
	if old := l.runs[id]; old != nil && old.rec.WorkUnit() != k.rec.WorkUnit() {
		l.w.fail("a retry is of the same unit of work", "run %s, a retry of %s", r.ID, id)
	}
}

// reported: an executor heard that its report was taken.
func (l *ledger) reported(rep *runtime.Report, atOnce bool) {
	k := l.runs[rep.Run]
	if rep.Type != runtime.Completed || k == nil {
		return
	}
	a, key := k.rec.Current(), sessionOf(k.rec)
	if s := l.sessions[key]; atOnce && key != "" && k.rec.State == run.Succeeded && len(rep.Session) > 0 && s.turn == runtime.AttemptID(rep.Run, rep.N) && !bytes.Equal(s.state, rep.Session) {
		l.w.fail("what a turn leaves is kept", "attempt %s left %s in session %s, which is %s", s.turn, rep.Session, key, s.state)
	}
	switch {
	case k.rec.State == run.Canceled, k.rec.State == run.Compensating, k.rec.Reason == run.CompensationFailed: // it was canceled
	case k.rec.State != run.Succeeded, a.N != rep.N, !bytes.Equal(k.rec.Output.Inline, rep.Output):
		l.w.fail("a result that was acknowledged is kept", "run %s is %s with %s, attempt %d reported %s", rep.Run, k.rec.State, k.rec.Output.Inline, rep.N, rep.Output)
	}
}

// begun: an attempt was answered about an effect.
func (l *ledger) begun(a *attempt, ans *control.EffectAnswer) {
	r := l.receipts[ans.ID]
	switch run.Begin(ans.Answer) {
	case run.BeginProceed:
		if r == nil || r.State != run.ReceiptIntent || r.Run != a.Run || r.Attempt != a.N {
			l.w.fail("intent before action", "%s may proceed with receipt %s, which is %+v", a.ID(), ans.ID, r)
		}
	case run.BeginDone:
		if r == nil || r.State != run.ReceiptDone {
			l.w.fail("done means committed", "receipt %s is %+v", ans.ID, r)
		}
	}
}

// nextDue is the soonest wake-up after now; 0 for none.
func (l *ledger) nextDue(now run.Instant) run.Instant {
	var soonest run.Instant
	for _, k := range l.runs {
		at := dueOf(k.rec)
		if at > now && (soonest == 0 || at < soonest) {
			soonest = at
		}
	}
	return soonest
}
