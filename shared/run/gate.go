package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of a gate.
const (
	MaxGateAction  = 64 << 10 // bytes of the action that is to be approved
	MaxGateContext = 64 << 10 // bytes of what the asker shows with it, and as many of a diff
	MaxGateTitle   = 512
	MaxApprovers   = 50
	MaxQuorum      = 20
	MaxReminders   = 100
	MaxGateRefused = 16      // decisions that were refused and are remembered
	MaxComment     = 2 << 10 // bytes of a person's comment
	maxGate        = 1 << 20 // bytes of a stored gate
	maxRounds      = 1_000   // that one gate is asked anew
	DefaultExpiry  = 7 * day // of a gate that names none
	MaxGateWait    = 366 * day
	MinRemind      = time.Second

	day = 24 * time.Hour
)

// GateState is how a question to people stands.
type GateState string

const (
	GateRequested GateState = "requested" // its run does not wait for it yet: nobody can decide, no time runs
	GateOpen      GateState = "open"
	GateApproved  GateState = "approved"
	GateRejected  GateState = "rejected"
	GateLapsed    GateState = "expired"  // nobody answered in time
	GateCanceled  GateState = "canceled" // its run ended, or does not wait for it any more
)

// OnExpiry is what follows when nobody decided in time.
type OnExpiry string

const (
	ExpiryReject   OnExpiry = "reject"
	ExpiryApprove  OnExpiry = "approve"
	ExpiryEscalate OnExpiry = "escalate" // those of Escalate are asked too, for as long again; then it is rejected
)

// GateAsk is a question to people, as whoever asks puts it.
type GateAsk struct {
	Title  string
	Action json.RawMessage // what is to be done when they approve
	// Approvers may decide: "user:NAME", "group:NAME" or "role:NAME". None: everybody with the right to approve.
	Approvers    []string
	Quorum       int  // different people who must approve; 1 when 0. One rejection rejects.
	NotRequester bool // whoever asked for the run does not decide
	Expires      time.Duration
	OnExpiry     OnExpiry      // reject when empty
	Remind       time.Duration // how often those who may decide are reminded; 0 for never
	// EscalateAfter is when those of EscalateTo may decide as well; 0 for never, or for OnExpiry to say.
	EscalateAfter time.Duration
	EscalateTo    []string
	Context       json.RawMessage // anything that helps to decide
	Diff          string          // what the action changes, as text
}

// GateDecision is what somebody said, or wanted to say.
type GateDecision struct {
	By         string   `json:"by"`
	Decision   Verdict  `json:"d"`
	Comment    string   `json:"c,omitempty"`
	ActionHash string   `json:"h,omitempty"` // of the action that they saw
	At         Instant  `json:"at"`
	Refused    GateCode `json:"r,omitempty"`
}

// Verdict is the word of a decision.
type Verdict string

const (
	Approve Verdict = "approve"
	Reject  Verdict = "reject"
)

// Gate is a question to people and how it stands. Its stored form is JSON.
type Gate struct {
	Version int64  `json:"v"`
	ID      string `json:"id"`
	Round   int    `json:"n"` // how often it was asked: anew after a change of the action, or when its run came back to it
	GateRun

	Title        string          `json:"t"`
	Action       json.RawMessage `json:"a"`
	ActionHash   string          `json:"h"`
	Approvers    []string        `json:"ap,omitempty"`
	Quorum       int             `json:"q"`
	NotRequester bool            `json:"nr,omitempty"`
	Context      json.RawMessage `json:"cx,omitempty"`
	Diff         string          `json:"df,omitempty"`

	RequestedAt Instant  `json:"ra"`
	Expires     Instant  `json:"ex"`
	OnExpiry    OnExpiry `json:"oe"`
	Remind      int64    `json:"re,omitempty"` // milliseconds
	RemindAt    Instant  `json:"rt,omitempty"`
	Reminded    int      `json:"rn,omitempty"`
	EscalateAt  Instant  `json:"ea,omitempty"`
	EscalateTo  []string `json:"et,omitempty"`
	EscalatedAt Instant  `json:"ed,omitempty"`
	Extended    bool     `json:"xt,omitempty"` // its time was given once more, by OnExpiry escalate

	State     GateState      `json:"s"`
	EndedAt   Instant        `json:"ee,omitempty"`
	ByPolicy  bool           `json:"bp,omitempty"` // approved by its expiry, by nobody
	Decisions []GateDecision `json:"ds,omitempty"` // that count, of different people
	Refused   []GateDecision `json:"rf,omitempty"`
}

// GateRun is the run that asks.
type GateRun struct {
	Run       string `json:"r"`
	Step      string `json:"st"`
	Tenant    string `json:"te"`
	Agent     string `json:"ag"`
	Kind      Kind   `json:"k"`
	Stage     string `json:"sg,omitempty"` // of a workflow
	Requester string `json:"by,omitempty"`
	Cost      Usage  `json:"cost"` // of the run when it asked
}

// GateID is the id of the gate of a run's step, 26 letters and digits.
func GateID(run, step string) string { return hashedID("gate", run, step) }

// Check says what is wrong with a question, or nil, and puts its defaults in. requester is who asked for the run.
// Errors wrap ErrTooLarge or ErrInvalid.
func (q *GateAsk) Check(requester string) error {
	// 1. What it leaves out.
	if q.Quorum == 0 {
		q.Quorum = 1
	}
	if q.Expires == 0 {
		q.Expires = DefaultExpiry
	}
	if q.OnExpiry == "" {
		q.OnExpiry = ExpiryReject
	}
	// 2. Sizes and times.
	if strings.TrimSpace(q.Title) == "" {
		return fmt.Errorf("gate: title is missing: say in a line what is to be approved: %w", ErrInvalid)
	}
	if err := checkText("gate: title", q.Title, MaxGateTitle); err != nil {
		return err
	}
	within := func(name string, d, least time.Duration) error {
		if d < least || d > MaxGateWait {
			return fmt.Errorf("gate %q: %s is %s; want %s to %s: %w", Clip(q.Title, 64), name, d, least, MaxGateWait, ErrInvalid)
		}
		return nil
	}
	if err := within("expires", q.Expires, time.Millisecond); err != nil {
		return err
	}
	if q.Remind != 0 {
		if err := within("remind", q.Remind, MinRemind); err != nil {
			return err
		}
	}
	if q.EscalateAfter != 0 {
		if err := within("escalate.after", q.EscalateAfter, time.Millisecond); err != nil {
			return err
		}
	}
	switch {
	case len(q.Context) > MaxGateContext || len(q.Diff) > MaxGateContext:
		return fmt.Errorf("gate %q: context of %d and diff of %d bytes; the limit of each is %d: %w", Clip(q.Title, 64), len(q.Context), len(q.Diff), MaxGateContext, ErrTooLarge)
	case len(q.Context) > 0 && !json.Valid(q.Context):
		return fmt.Errorf("gate %q: context is not JSON: %w", Clip(q.Title, 64), ErrInvalid)
	case q.Quorum < 1 || q.Quorum > MaxQuorum:
		return fmt.Errorf("gate %q: quorum %d; want 1 to %d: %w", Clip(q.Title, 64), q.Quorum, MaxQuorum, ErrInvalid)
	case !slices.Contains([]OnExpiry{ExpiryReject, ExpiryApprove, ExpiryEscalate}, q.OnExpiry):
		return fmt.Errorf("gate %q: onExpiry %q; want approve, reject or escalate: %w", Clip(q.Title, 64), Clip(string(q.OnExpiry), 64), ErrInvalid)
	case len(q.EscalateTo) == 0 && (q.EscalateAfter != 0 || q.OnExpiry == ExpiryEscalate):
		return fmt.Errorf("gate %q: it escalates to nobody: name them in escalate.to: %w", Clip(q.Title, 64), ErrInvalid)
	}
	// 3. Somebody can decide it.
	for _, list := range [][]string{q.Approvers, q.EscalateTo} {
		if err := checkApprovers(list); err != nil {
			return fmt.Errorf("gate %q: %w", Clip(q.Title, 64), err)
		}
	}
	if n, bounded := q.people(requester); bounded && n < q.Quorum {
		return fmt.Errorf("gate %q: %d people may approve, %d must: name more of them in approvers, or a group: %w", Clip(q.Title, 64), n, q.Quorum, ErrInvalid)
	}
	return nil
}

// people counts who may approve, where all of them are named.
func (q *GateAsk) people(requester string) (n int, bounded bool) {
	if len(q.Approvers) == 0 {
		return 0, false
	}
	seen := make(map[string]bool)
	for _, who := range slices.Concat(q.Approvers, q.EscalateTo) {
		name, user := strings.CutPrefix(who, "user:")
		if !user {
			return 0, false
		}
		if !q.NotRequester || name != requester {
			seen[name] = true
		}
	}
	return len(seen), true
}

func checkApprovers(list []string) error {
	if len(list) > MaxApprovers {
		return fmt.Errorf("%d approvers, the limit is %d; name a group: %w", len(list), MaxApprovers, ErrTooLarge)
	}
	for _, who := range list {
		if err := checkText("approver", who, MaxName); err != nil {
			return err
		}
		kind, name, _ := strings.Cut(who, ":")
		if name == "" || kind != "user" && kind != "group" && kind != "role" {
			return fmt.Errorf("approver %q; want user:NAME, group:NAME or role:NAME: %w", Clip(who, 64), ErrInvalid)
		}
	}
	return nil
}

// Ask opens a gate for a run's step. existing is the gate of that step from before, or nil. next is what must be stored
// over it; it is nil when the same action stands already, open or decided, and existing is the answer. A question
// about another action, or one that comes back after its gate was closed undecided, is asked anew: what was said before
// counts no more. Once it is decided the action is fixed: another one is refused with a *GateError, so that nothing is
// done but what was approved.
func Ask(existing *Gate, of GateRun, q GateAsk, now Instant) (next *Gate, err error) {
	if err := q.Check(of.Requester); err != nil {
		return nil, err
	}
	hash, err := HashAction(q.Action)
	if err != nil {
		return nil, fmt.Errorf("gate %q: %w", Clip(q.Title, 64), err)
	}
	if len(q.Action) == 0 {
		q.Action = json.RawMessage("null")
	}
	g := &Gate{
		Version: 1, ID: GateID(of.Run, of.Step), Round: 1, GateRun: of,
		Title: q.Title, Action: q.Action, ActionHash: hash, Approvers: slices.Clone(q.Approvers), Quorum: q.Quorum,
		NotRequester: q.NotRequester, Context: q.Context, Diff: q.Diff,
		RequestedAt: now, Expires: now.Add(q.Expires), OnExpiry: q.OnExpiry, Remind: q.Remind.Milliseconds(),
		EscalateTo: slices.Clone(q.EscalateTo), State: GateOpen,
	}
	if q.Remind > 0 {
		g.RemindAt = now.Add(q.Remind)
	}
	if q.EscalateAfter > 0 {
		g.EscalateAt = now.Add(q.EscalateAfter)
	}
	if existing == nil {
		return g, nil
	}
	switch same := existing.ActionHash == hash; {
	case existing.State.decided() && !same:
		return nil, existing.refuse(GateCodeChanged, "it is %s since %s for the action %s, and now %s is asked for: an action must come out the same each time it is made, so make it in a step",
			existing.State, stamp(existing.EndedAt), existing.ActionHash, hash)
	case same && (existing.State == GateOpen || existing.State.decided()):
		return nil, nil
	}
	if existing.Round >= maxRounds {
		return nil, fmt.Errorf("gate %s of step %q was asked %d times, which is the limit: an action must come out the same each time it is made; record it as a step: %w", g.ID, of.Step, existing.Round, ErrTooLarge)
	}
	g.Version, g.Round, g.Refused = existing.Version+1, existing.Round+1, slices.Clone(existing.Refused)
	return g, nil
}

// Request is the gate before its run waits for it.
func (g *Gate) Request() *Gate {
	next := *g
	next.State = GateRequested
	return &next
}

// Open begins the time of a requested gate, now that its run waits for it.
func (g *Gate) Open(now Instant) (next *Gate) {
	next = g.change()
	next.State = GateOpen
	for _, at := range []*Instant{&next.RemindAt, &next.EscalateAt, &next.Expires} {
		*at = at.Add(now.Sub(g.RequestedAt))
	}
	next.RequestedAt = now
	return next
}

// decided reports whether there is an answer.
func (s GateState) decided() bool { return s == GateApproved || s == GateRejected || s == GateLapsed }

// Due is when a timer of the gate comes next; 0 once it is closed.
func (g *Gate) Due() Instant {
	if g.State != GateOpen {
		return 0
	}
	return Earliest(g.RemindAt, g.EscalateAt, g.Expires)
}

// Person is somebody who wants to decide.
type Person struct {
	Name   string
	Roles  []string
	Groups []string
	// AnyGroup: nobody says which groups the person is in, and so it is in all: on a machine without a login.
	AnyGroup bool
}

// isOne reports whether a list of approvers has the person in it.
func (p *Person) isOne(list []string) bool {
	return slices.ContainsFunc(list, func(who string) bool {
		kind, name, _ := strings.Cut(who, ":")
		switch kind {
		case "user":
			return name == p.Name
		case "group":
			return p.AnyGroup || slices.Contains(p.Groups, name)
		}
		return slices.Contains(p.Roles, name)
	})
}

// Asks reports whether the person's decision would count, as far as who it is goes.
func (g *Gate) Asks(p *Person) bool {
	return (len(g.Approvers) == 0 || p.isOne(g.Approvers)) && !g.isOwn(p)
}

func (g *Gate) isOwn(p *Person) bool { return g.NotRequester && g.Requester == p.Name }

// GateCode is why a decision was refused.
type GateCode string

const (
	GateCodeExpired      GateCode = "expired"
	GateCodeDecided      GateCode = "decided" // also by this very person, otherwise
	GateCodeChanged      GateCode = "changed" // the decision is about another action than the one that is asked for
	GateCodeSelfApproval GateCode = "selfApproval"
	GateCodeNotApprover  GateCode = "notApprover"
	GateCodeCanceled     GateCode = "canceled"
	GateCodeInvalid      GateCode = "invalid"
)

// ErrGate is wrapped by every GateError.
var ErrGate = errors.New("the decision does not count")

// GateError says why a decision does not count.
type GateError struct {
	Code    GateCode
	Message string
}

func (e *GateError) Error() string { return e.Message }
func (e *GateError) Unwrap() error { return ErrGate }

func (g *Gate) refuse(code GateCode, format string, args ...any) *GateError {
	return &GateError{code, fmt.Sprintf("gate %s: ", g.ID) + fmt.Sprintf(format, args...)}
}

// GateVote is a person's decision. ActionHash is that of the action that the person saw; "" takes the one that stands.
type GateVote struct {
	Person
	Decision   Verdict
	Comment    string
	ActionHash string
}

// Decide takes a decision. next is what must be stored, over this version of the gate, for it to count; it is nil when
// the person has said the same before: then the answer is the same too. The error is a *GateError.
func (g *Gate) Decide(v GateVote, now Instant) (next *Gate, err error) {
	// 1. Form.
	switch {
	case v.Name == "" || len(v.Name) > MaxName:
		return nil, g.refuse(GateCodeInvalid, "a decision needs the name of who decides, of 1 to %d bytes", MaxName)
	case v.Decision != Approve && v.Decision != Reject:
		return nil, g.refuse(GateCodeInvalid, "decision %q; want approve or reject", Clip(string(v.Decision), 64))
	case len(v.Comment) > MaxComment:
		return nil, g.refuse(GateCodeInvalid, "the comment has %d bytes, the limit is %d", len(v.Comment), MaxComment)
	}
	// 2. The same word of the same person again changes nothing, whatever came of it.
	mine := slices.IndexFunc(g.Decisions, func(d GateDecision) bool { return d.By == v.Name })
	if mine >= 0 && g.Decisions[mine].Decision == v.Decision && (v.ActionHash == "" || v.ActionHash == g.ActionHash) {
		return nil, nil
	}
	// 3. It is open, the person may decide, and means what is asked.
	switch {
	case g.State != GateOpen:
		return nil, g.closed()
	case now >= g.Expires:
		return nil, g.refuse(GateCodeExpired, "nobody decided until %s", stamp(g.Expires))
	case g.isOwn(&v.Person):
		return nil, g.refuse(GateCodeSelfApproval, "%s asked for run %s, and whoever asks does not decide here", v.Name, g.Run)
	case !g.Asks(&v.Person):
		return nil, g.refuse(GateCodeNotApprover, "%s is none of those who may decide: %s", v.Name, strings.Join(g.Approvers, ", "))
	case v.ActionHash != "" && v.ActionHash != g.ActionHash:
		return nil, g.refuse(GateCodeChanged, "the action has changed since it was looked at: the decision is about %s, now %s is asked; look again", Clip(v.ActionHash, 64), g.ActionHash)
	case mine >= 0:
		return nil, g.refuse(GateCodeDecided, "%s has said %s at %s", v.Name, g.Decisions[mine].Decision, stamp(g.Decisions[mine].At))
	}
	// 4. It counts.
	next = g.change()
	next.Decisions = append(next.Decisions, GateDecision{By: v.Name, Decision: v.Decision, Comment: Clip(v.Comment, MaxComment), ActionHash: g.ActionHash, At: now})
	switch {
	case v.Decision == Reject:
		next.end(GateRejected, now)
	case len(next.Decisions) >= g.Quorum: // one rejection would have closed it
		next.end(GateApproved, now)
	}
	return next, nil
}

// closed is why a gate that is not open takes no decision.
func (g *Gate) closed() *GateError {
	last := "nobody"
	if n := len(g.Decisions); n > 0 {
		last = g.Decisions[n-1].By
	}
	switch {
	case g.State == GateLapsed || g.ByPolicy:
		return g.refuse(GateCodeExpired, "nobody decided until %s; it is %s", stamp(g.Expires), g.State)
	case g.State == GateCanceled:
		return g.refuse(GateCodeCanceled, "run %s waits for it no more since %s", g.Run, stamp(g.EndedAt))
	case g.State == GateRequested:
		return g.refuse(GateCodeInvalid, "run %s does not wait for it yet", g.Run)
	}
	return g.refuse(GateCodeDecided, "it is %s since %s, by %s", g.State, stamp(g.EndedAt), last)
}

// Remember notes a decision that was refused; nil when there is no room for more.
func (g *Gate) Remember(v GateVote, code GateCode, now Instant) (next *Gate) {
	if len(g.Refused) >= MaxGateRefused {
		return nil
	}
	next = g.change()
	next.Refused = append(next.Refused, GateDecision{
		By: v.Name, Decision: v.Decision, Comment: Clip(v.Comment, 256), ActionHash: Clip(v.ActionHash, 64), At: now, Refused: code,
	})
	return next
}

// What a timer of a gate did.
const (
	GateReminded  = "reminded"
	GateEscalated = "escalated"
	GateTimedOut  = "expired"
)

// Pass does what the gate's timers ask for by now: next is what must be stored, nil when nothing is due, and did says
// what came about, in order.
func (g *Gate) Pass(now Instant) (next *Gate, did []string) {
	if g.State != GateOpen || g.Due() > now {
		return nil, nil
	}
	next = g.change()
	if next.EscalateAt != 0 && next.EscalateAt <= now {
		next.escalate(now)
		did = append(did, GateEscalated)
	}
	if g.Expires <= now {
		if g.OnExpiry == ExpiryEscalate && !g.Extended {
			if next.EscalatedAt == 0 {
				next.escalate(now)
				did = append(did, GateEscalated)
			}
			next.Extended = true
			next.Expires = now.Add(g.Expires.Sub(g.RequestedAt))
		} else {
			next.end(GateLapsed, now)
			if g.OnExpiry == ExpiryApprove {
				next.end(GateApproved, now)
				next.ByPolicy = true
			}
			return next, append(did, GateTimedOut)
		}
	}
	if next.RemindAt != 0 && next.RemindAt <= now {
		next.Reminded++
		next.RemindAt = now.Add(time.Duration(g.Remind) * time.Millisecond)
		if next.Reminded >= MaxReminders {
			next.RemindAt = 0
		}
		did = append(did, GateReminded)
	}
	return next, did
}

// escalate lets further people decide. A gate that everybody may decide stays so.
func (g *Gate) escalate(now Instant) {
	g.EscalateAt, g.EscalatedAt = 0, now
	for _, who := range g.EscalateTo {
		if len(g.Approvers) > 0 && !slices.Contains(g.Approvers, who) {
			g.Approvers = append(g.Approvers, who)
		}
	}
}

// Cancel is the gate of a run that waits for it no more; nil when it is closed already.
func (g *Gate) Cancel(now Instant) (next *Gate) {
	if g.State != GateOpen && g.State != GateRequested {
		return nil
	}
	next = g.change()
	next.end(GateCanceled, now)
	return next
}

// GateResult is what a decided gate gives to the step that asked: the step's result, in this form.
type GateResult struct {
	Gate       string   `json:"gate"`
	Decision   string   `json:"decision"` // approved, rejected or expired
	By         []string `json:"by"`       // those whose word it was; nobody where it is the policy's
	Comment    string   `json:"comment,omitempty"`
	ActionHash string   `json:"actionHash"`
	At         string   `json:"at"`
}

// Result is the answer of a decided gate; false while there is none.
func (g *Gate) Result() (GateResult, bool) {
	if !g.State.decided() {
		return GateResult{}, false
	}
	r := GateResult{Gate: g.ID, Decision: string(g.State), By: []string{}, ActionHash: g.ActionHash, At: stamp(g.EndedAt)}
	for _, d := range g.Decisions {
		if (d.Decision == Approve) == (g.State == GateApproved) {
			r.By = append(r.By, d.By)
			r.Comment = d.Comment
		}
	}
	if g.State == GateLapsed || g.ByPolicy {
		r.By, r.Comment = []string{}, "nobody decided in time"
	}
	return r, true
}

func (g *Gate) end(s GateState, now Instant) {
	g.State, g.EndedAt = s, now
	g.RemindAt, g.EscalateAt = 0, 0
}

// change is a copy of the gate, one version on.
func (g *Gate) change() *Gate {
	next := *g
	next.Version++
	next.Approvers = slices.Clone(g.Approvers)
	next.Decisions = slices.Clone(g.Decisions)
	next.Refused = slices.Clone(g.Refused)
	return &next
}

func stamp(i Instant) string { return i.Time().Format("2006-01-02T15:04:05.000Z") }

// EncodeGate gives the stored form of a gate.
func EncodeGate(g *Gate) ([]byte, error) {
	body, err := json.Marshal(g)
	if err != nil {
		return nil, fmt.Errorf("encode gate %s: %w", g.ID, err)
	}
	return body, nil
}

// DecodeGate reads the stored form. Bytes that make no gate give an error wrapping ErrCorrupt.
func DecodeGate(body []byte) (*Gate, error) {
	if len(body) > maxGate {
		return nil, fmt.Errorf("decode gate: %d bytes: %w", len(body), ErrCorrupt)
	}
	g := new(Gate)
	if err := json.Unmarshal(body, g); err != nil {
		return nil, fmt.Errorf("decode gate: %w: %v", ErrCorrupt, err)
	}
	switch g.State {
	case GateRequested, GateOpen, GateApproved, GateRejected, GateLapsed, GateCanceled:
	default:
		return nil, fmt.Errorf("decode gate %q in state %q: %w", Clip(g.ID, 64), Clip(string(g.State), 64), ErrCorrupt)
	}
	if g.ID == "" || g.Version < 1 || g.Run == "" || g.Step == "" || g.Quorum < 1 || g.Expires < 1 || g.Remind < 0 || g.Round < 1 {
		return nil, fmt.Errorf("decode gate %q, version %d of run %q: %w", Clip(g.ID, 64), g.Version, Clip(g.Run, 64), ErrCorrupt)
	}
	return g, nil
}
