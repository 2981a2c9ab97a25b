package run

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Validate says what is wrong with a spec, or nil. Errors wrap ErrTooLarge or ErrInvalid. It is for the door: New takes
// what it is given.
func (s *Spec) Validate() error {
	for _, f := range []struct {
		name, value string
		most        int
		needed      bool
	}{
		{"id", s.ID, MaxName, true}, {"agent", s.Agent, MaxName, true}, {"tenant", s.Tenant, MaxName, true},
		{"version", s.Version, MaxName, false}, {"key", s.Key, MaxKey, false}, {"request hash", s.Hash, MaxName, false},
		{"unit", s.Unit, MaxKey, false}, {"parent", s.Parent, MaxName, false}, {"root", s.Root, MaxName, false},
		{"stage", s.Stage, MaxName, false}, {"retryOf", s.RetryOf, MaxName, false}, {"session", s.Session, MaxName, false},
		{"trace", s.Trace, MaxKey, false}, {"of", s.Of, MaxName, s.Mode != ""},
		{"requester", s.Requester, MaxName, false},
	} {
		if f.needed && f.value == "" {
			return fmt.Errorf("run %s: %s is missing: %w", s.ID, f.name, ErrInvalid)
		}
		if err := checkText(f.name, f.value, f.most); err != nil {
			return fmt.Errorf("run %s: %w", Clip(s.ID, 64), err)
		}
	}
	if len(s.Labels) > MaxLabels {
		return fmt.Errorf("run %s: %d labels, the limit is %d: %w", s.ID, len(s.Labels), MaxLabels, ErrTooLarge)
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		if size += len(k) + len(s.Labels[k]); size > MaxLabelBytes {
			return fmt.Errorf("run %s: the labels have more than %d bytes: %w", s.ID, MaxLabelBytes, ErrTooLarge)
		}
		for _, text := range []string{k, s.Labels[k]} {
			if err := checkText("label", text, MaxLabelBytes); err != nil {
				return fmt.Errorf("run %s: %w", s.ID, err)
			}
		}
	}
	if err := s.Input.check("input"); err != nil {
		return fmt.Errorf("run %s: %w", s.ID, err)
	}
	for _, g := range s.Groups {
		if err := checkText("group", g.Key, MaxKey); err != nil || g.Key == "" || g.Max < 1 {
			return fmt.Errorf("run %s: group %q of %d runs; want a name and 1 or more: %w", s.ID, Clip(g.Key, 64), g.Max, ErrInvalid)
		}
	}
	switch {
	case s.Kind != "" && s.Kind != KindAgent && s.Kind != KindWorkflow && s.Kind != KindJob:
		return fmt.Errorf("run %s: kind %q; want agent, workflow or job: %w", s.ID, Clip(string(s.Kind), 64), ErrInvalid)
	case s.Mode != "" && s.Mode != ModeCompensate:
		return fmt.Errorf("run %s: mode %q; want compensate, or none: %w", s.ID, Clip(s.Mode, 64), ErrInvalid)
	case s.Depth < 0 || s.Depth > MaxDepth:
		return fmt.Errorf("run %s: %d runs above it, the limit is %d: a run calls another that calls the first, perhaps: %w", s.ID, s.Depth, MaxDepth, ErrTooLarge)
	case s.Item < 0 || s.Item >= MaxChildren:
		return fmt.Errorf("run %s: item %d of its stage; %d may be: %w", s.ID, s.Item, MaxChildren, ErrTooLarge)
	case len(s.Groups) > MaxGroups:
		return fmt.Errorf("run %s: it is in %d groups, the limit is %d: %w", s.ID, len(s.Groups), MaxGroups, ErrTooLarge)
	case s.Priority < 0 || s.Priority > MaxPriority:
		return fmt.Errorf("run %s: priority %d; want 0 to %d: %w", s.ID, s.Priority, MaxPriority, ErrInvalid)
	case s.CreatedAt < 1 || s.NotBefore < 0 || s.Deadline < 0 || s.Latest < 0 || s.RetainFor < 0:
		return fmt.Errorf("run %s: a time is missing or negative: %w", s.ID, ErrInvalid)
	case !within(s.BudgetUSD, MaxUSD) || s.BudgetToken < 0 || s.BudgetToken > MaxTokens:
		return fmt.Errorf("run %s: budget of %v USD and %d tokens; want 0 to %v and %v: %w", s.ID, s.BudgetUSD, s.BudgetToken, MaxUSD, MaxTokens, ErrInvalid)
	}
	return nil
}

// check says what is wrong with an event itself, whatever run it happens to.
func (e *Event) check() error {
	// 1. Every field that it has is within its bounds.
	for _, f := range []struct{ name, value string }{
		{"actor", e.Actor}, {"target", e.Target}, {"stage", e.Stage}, {"worker", e.Worker}, {"node", e.Node}, {"code", e.Code},
	} {
		if err := checkText(f.name, f.value, MaxName); err != nil {
			return err
		}
	}
	switch {
	case e.Reason != "" && !e.Reason.Valid():
		return fmt.Errorf("reason %q is none of the closed set: %w", Clip(string(e.Reason), 64), ErrInvalid)
	case e.Class != "" && !e.Class.Valid():
		return fmt.Errorf("class %q; want one of %v: %w", Clip(string(e.Class), 64), Classes, ErrInvalid)
	case e.Due < 0 || e.At < 0 || e.Attempt < 0:
		return fmt.Errorf("time %d, due %d or attempt %d is negative: %w", e.At, e.Due, e.Attempt, ErrInvalid)
	case len(e.Detail) > MaxDetail:
		return fmt.Errorf("detail has %d bytes, the limit is %d: %w", len(e.Detail), MaxDetail, ErrTooLarge)
	case len(e.Detail) > 0 && !json.Valid(e.Detail):
		return fmt.Errorf("detail is not JSON: %w", ErrInvalid)
	case e.Score != nil && !within(*e.Score, 1):
		return fmt.Errorf("score %v; want 0 to 1: %w", *e.Score, ErrInvalid)
	}
	if e.Output != nil {
		if err := e.Output.check("output"); err != nil {
			return err
		}
	}
	if u := e.Usage; u != nil {
		if !within(u.USD, MaxUSD) || u.InputTokens < 0 || u.InputTokens > MaxTokens || u.OutputTokens < 0 || u.OutputTokens > MaxTokens {
			return fmt.Errorf("usage of %v USD, %d and %d tokens; want 0 to %v and %v: %w", u.USD, u.InputTokens, u.OutputTokens, MaxUSD, MaxTokens, ErrInvalid)
		}
	}
	if len(e.ForPeople) > MaxSpans || e.Deadline < 0 {
		return fmt.Errorf("it waited for people in %d stretches, which move its deadline to %d; %d stretches may be: %w", len(e.ForPeople), e.Deadline, MaxSpans, ErrInvalid)
	}
	for i, s := range e.ForPeople {
		if s.From < 0 || s.To <= s.From || i > 0 && s.From <= e.ForPeople[i-1].To {
			return fmt.Errorf("it waited for people from %d to %d: stretches are in order and apart: %w", s.From, s.To, ErrInvalid)
		}
	}
	if e.Park != nil {
		if err := e.Park.check(); err != nil {
			return err
		}
	}
	if e.Signal != nil {
		if err := e.Signal.check(); err != nil {
			return err
		}
	}
	// 2. It has the fields without which it means nothing.
	missing := ""
	switch {
	case e.Type == EvSubmitted && e.At == 0:
		missing = "a time"
	case e.Type == EvAssigned && e.Target == "":
		missing = "a target"
	case e.Type == EvParked && e.Park == nil:
		missing = "what it waits for"
	case e.Type == EvGateChanged && e.Code == "":
		missing = "the code that says what"
	case e.Type == EvSignaled && e.Signal == nil:
		missing = "a signal"
	case e.Type == EvDeadlineMoved && e.Due == 0:
		missing = "up to when that is reckoned"
	case e.Type == EvScored && e.Score == nil:
		missing = "a score"
	case (e.Type == EvFailed || e.Type == EvHeld) && e.Reason == "":
		missing = "a reason"
	}
	if missing != "" {
		return fmt.Errorf("%s is missing: %w", missing, ErrInvalid)
	}
	return nil
}

func (p *Payload) check(name string) error {
	switch {
	case len(p.Inline) > MaxInline:
		return fmt.Errorf("%s has %d bytes inline, the limit is %d; larger ones go by reference: %w", name, len(p.Inline), MaxInline, ErrTooLarge)
	case p.Size > MaxPayload:
		return fmt.Errorf("%s has %d bytes, the limit is %d: %w", name, p.Size, MaxPayload, ErrTooLarge)
	case p.Size < 0:
		return fmt.Errorf("%s has %d bytes: %w", name, p.Size, ErrInvalid)
	case len(p.Inline) > 0 && !json.Valid(p.Inline):
		return fmt.Errorf("%s is not JSON: %w", name, ErrInvalid)
	}
	return checkText("reference of "+name, p.Ref, MaxKey)
}

func (p *Park) check() error {
	switch p.On {
	case OnTimer, OnInput, OnChildren, OnGate:
	default:
		return fmt.Errorf("a run waits for timer, input, children or gate, not %q: %w", Clip(string(p.On), 64), ErrInvalid)
	}
	if p.Size < 0 || p.Size > MaxChildren || p.Need < 0 || p.Need > p.Size || p.Tolerate < 0 {
		return fmt.Errorf("a run waits for %d children, %d of them to succeed and %d at most to fail; %d children may be: %w", p.Size, p.Need, p.Tolerate, MaxChildren, ErrTooLarge)
	}
	if p.Until < 0 || p.Seq < 0 || p.Left < 0 || p.Left > maxCount || p.Left > 0 && p.On != OnGate && p.On != OnInput {
		return fmt.Errorf("a run waits until %d at step %d with %d ms left: %w", p.Until, p.Seq, p.Left, ErrInvalid)
	}
	if err := checkText("step", p.Step, MaxName); err != nil {
		return err
	}
	return checkText("name of the signal", p.Name, MaxName)
}

func (s *Signal) check() error {
	if s.Name == "" {
		return fmt.Errorf("the signal's name is missing: %w", ErrInvalid)
	}
	if err := checkText("name of the signal", s.Name, MaxName); err != nil {
		return err
	}
	if err := checkText("key of the signal", s.Key, MaxName); err != nil {
		return err
	}
	return s.Payload.check("payload of the signal")
}

func (s *Signal) size() int {
	return len(s.Name) + len(s.Key) + len(s.Payload.Inline) + len(s.Payload.Ref)
}

// admitSignal says why a signal cannot be kept, or nil.
func (r *Record) admitSignal(s *Signal) error {
	if s.Key != "" && slices.Contains(r.SigKeys, s.Key) {
		return fmt.Errorf("run %s, key %q: %w", r.ID, s.Key, ErrSignalSeen)
	}
	size := s.size()
	for i := range r.Signals {
		size += r.Signals[i].size()
	}
	if len(r.Signals) >= MaxSignals || size > MaxSignalBytes {
		return fmt.Errorf("run %s: %d signals of %d bytes would wait for it, the limits are %d and %d bytes; larger payloads go by reference: %w",
			r.ID, len(r.Signals)+1, size, MaxSignals, MaxSignalBytes, ErrTooLarge)
	}
	return nil
}

// checkText bounds a string that an outside party gave. Such names are never cut: a cut name is another name.
func checkText(name, s string, most int) error {
	switch {
	case len(s) > most:
		return fmt.Errorf("%s has %d bytes, the limit is %d: %w", name, len(s), most, ErrTooLarge)
	case isPlain(s):
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("%s %q is not text without control characters: %w", name, Clip(s, 64), ErrInvalid)
	}
	return nil
}

// isPlain reports whether a string is printable ASCII, as nearly all are.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// within reports whether v is a number from 0 to most.
func within(v, most float64) bool { return v >= 0 && v <= most && !math.IsNaN(v) }

// weight is a bound of the bytes that an event takes in an encoded record.
func (e *Event) weight() int {
	text := func(s string) int { return 3 + len(s) }
	payload := func(p *Payload) int { return 16 + len(p.Inline) + text(p.Ref) }
	n := 160 + len(e.Type) + len(e.Reason) + len(e.Class) + len(e.Detail) + text(e.Actor) + text(e.Target) +
		text(e.Worker) + text(e.Stage) + text(e.Node) + text(e.Code) + text(e.Message)
	if e.Output != nil {
		n += payload(e.Output)
	}
	if e.Usage != nil {
		n += 112
	}
	if e.Park != nil {
		n += 124 + text(e.Park.Step) + text(e.Park.Name)
	}
	if e.Signal != nil {
		n += 32 + text(e.Signal.Name) + text(e.Signal.Key) + payload(&e.Signal.Payload)
	}
	if e.Score != nil {
		n += 32
	}
	if len(e.ForPeople) > 0 || e.Deadline != 0 {
		n += 16 + 24*len(e.ForPeople)
	}
	return n
}
