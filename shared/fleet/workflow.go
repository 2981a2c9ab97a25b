package fleet

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Workflow is work in stages, each with a pattern of its own: one call, many at once, a choice, a loop, or a person.
//
// Stages run in their order. A stage that is marked as a branch stands outside of it: a route leads to it, and when it
// is over the run goes on after that route, unless the stage has a next.
//
// Input, When and their like are CEL. They see input (of the workflow), stages (what has ended: stages.NAME.output and
// more, see package workflow) and run; item, index, last and messages where the pattern has them.
type Workflow struct {
	Meta     `json:"-"`
	Input    Schema       `json:"input,omitempty"`  // nil: any input
	Output   string       `json:"output,omitempty"` // CEL; the last stage's output when empty
	Budget   Budget       `json:"budget,omitzero"`  // of the whole tree
	Timeouts FlowTimeouts `json:"timeouts"`
	// Permissions.Call bounds what its stages may name; empty: whatever they name.
	Permissions FlowPermissions `json:"permissions,omitzero"`
	Retain      Duration        `json:"retain"` // finished runs are removed after this; Forever: never
	Stages      []Stage         `json:"stages"`
}

// FlowTimeouts bound a run of a workflow: Queue its wait for a place in the tenant's quota, Run the whole from then on.
type FlowTimeouts struct {
	Queue Duration `json:"queue"`
	Run   Duration `json:"run"`
	// CountWaiting makes waiting for a person count towards Run.
	CountWaiting bool `json:"countWaiting"`
}

// FlowPermissions is all that the stages of a workflow may call.
type FlowPermissions struct {
	Call []string `json:"call,omitempty"` // agents and workflows
}

// Kind is KindWorkflow.
func (*Workflow) Kind() string { return KindWorkflow }

// Name is the workflow's name; the field is Meta.Name.
func (w *Workflow) Name() string { return w.Meta.Name }

// Stage is one step of a workflow. Exactly one of Agent, Workflow, Parallel, Route, Loop and Gate says what it does.
type Stage struct {
	Name string `json:"name"` // unique in the workflow
	When string `json:"when,omitempty"`
	// Branch takes the stage out of the order: only routes lead to it, and the next of other branches.
	Branch bool `json:"branch,omitempty"`
	// Next is the stage that follows when this one has run, instead of the one in order. It may lead back.
	Next string `json:"next,omitempty"`
	// MaxVisits bounds how often the stage is entered; one more ends the run with LoopLimit. 0 is no bound of its own,
	// which no stage of a cycle may be without.
	MaxVisits int `json:"maxVisits,omitempty"`

	Agent    string `json:"agent,omitempty"`
	Workflow string `json:"workflow,omitempty"`
	// Input is what is called with; for Parallel of each item or branch without its own, for Loop of each round. Empty:
	// the item, else the output of the stage before, else the workflow's input.
	Input string `json:"input,omitempty"`
	// Compensate is the agent that undoes the stage when the run fails or is canceled later. Its input is
	// {input, output}, of the call.
	Compensate string `json:"compensate,omitempty"`

	Parallel *Parallel `json:"parallel,omitempty"`
	Route    *Route    `json:"route,omitempty"`
	Loop     *Loop     `json:"loop,omitempty"`
	Gate     *Gate     `json:"gate,omitempty"`
}

// Parallel calls many at once: one agent or workflow for each item of a list, or branches.
type Parallel struct {
	ForEach  string     `json:"forEach,omitempty"` // CEL, a list
	Agent    string     `json:"agent,omitempty"`   // with ForEach, as Workflow
	Workflow string     `json:"workflow,omitempty"`
	Input    string     `json:"input,omitempty"` // over item and index too; the stage's Input when empty
	Branches []FlowCall `json:"branches,omitempty"`
	// Max is how many of them have an attempt at a time; 0 is no bound of its own.
	Max int `json:"max,omitempty"`
	// Tolerate is how many may fail: below 1 a share of all, else a whole number. What failed is null in the outputs.
	Tolerate float64 `json:"tolerate,omitempty"`
	Merge    Merge   `json:"merge,omitzero"`
}

// FlowCall is one branch of Parallel.
type FlowCall struct {
	Name     string `json:"name"` // unique in the stage
	Agent    string `json:"agent,omitempty"`
	Workflow string `json:"workflow,omitempty"`
	Input    string `json:"input,omitempty"` // the stage's Input when empty
	When     string `json:"when,omitempty"`
}

// MergeRule is how the outputs of many become the stage's.
type MergeRule string

// The rules of Merge.
const (
	MergeCollect MergeRule = "collect" // all: a list in the order of the items, or a mapping by branch
	MergeFirst   MergeRule = "first"   // the first success; the rest is canceled
	MergeVote    MergeRule = "vote"    // the output that most agree on; of equally many the first in order
	MergeQuorum  MergeRule = "quorum"  // so many successes, as a list; or so many that agree, see Merge.On
	MergeAgent   MergeRule = "agent"   // an agent is called with the collected outputs, and answers
	MergeFields  MergeRule = "fields"  // one mapping of the fields of all branches
)

// Merge is a rule and what belongs to it. In a manifest it is the rule alone (collect, first, vote, "quorum: 2") or a
// mapping: {quorum: 2}, {agent: NAME}, {fields: {FIELD: RULE}}, {rule: vote, on: EXPRESSION}.
type Merge struct {
	Rule   MergeRule `json:"rule,omitempty"` // what the other fields say, else collect
	Quorum int       `json:"quorum,omitempty"`
	Agent  string    `json:"agent,omitempty"`
	// On is CEL over last (an output): what votes are compared by, the whole output when empty. With quorum, so many
	// must be equal.
	On string `json:"on,omitempty"`
	// Fields says for each field that more than one branch gives what becomes of it.
	Fields map[string]FieldRule `json:"fields,omitempty"`
}

// FieldRule merges the values of one field, which are in the order of the branches.
type FieldRule string

// The rules of a field.
const (
	FieldAppend   FieldRule = "append"   // of lists; a value that is none counts as a list of itself
	FieldSum      FieldRule = "sum"      // of numbers
	FieldMax      FieldRule = "max"      // of numbers
	FieldMin      FieldRule = "min"      // of numbers
	FieldFirst    FieldRule = "first"    // of the first branch that gives it
	FieldByBranch FieldRule = "byBranch" // a mapping from branch to value
)

// UnmarshalText reads a rule that stands alone.
func (m *Merge) UnmarshalText(text []byte) error {
	rule, number, counted := strings.Cut(string(text), ":")
	if MergeRule(rule) == MergeQuorum && counted {
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil {
			return fmt.Errorf("%q is not a quorum; write \"quorum: 2\" or {quorum: 2}", clip(string(text)))
		}
		*m = Merge{Rule: MergeQuorum, Quorum: n}
		return nil
	}
	switch MergeRule(text) {
	case MergeCollect, MergeFirst, MergeVote:
		*m = Merge{Rule: MergeRule(text)}
		return nil
	}
	return fmt.Errorf("%q is not a merge rule; want collect, first, vote, {quorum: N}, {agent: NAME} or {fields: {FIELD: RULE}}", clip(string(text)))
}

// UnmarshalJSON reads either form.
func (m *Merge) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		return m.UnmarshalText([]byte(text))
	}
	type form Merge
	return unmarshal(data, (*form)(m))
}

// MarshalJSON writes a rule that stands alone as a text.
func (m Merge) MarshalJSON() ([]byte, error) {
	type form Merge
	switch m.Rule {
	case MergeCollect, MergeFirst, MergeVote:
		if m.Quorum == 0 && m.Agent == "" && m.On == "" && len(m.Fields) == 0 {
			return marshal(string(m.Rule))
		}
	case MergeQuorum, MergeAgent, MergeFields: // what they need says so
		if m.Quorum != 0 || m.Agent != "" || len(m.Fields) != 0 {
			m.Rule = ""
		}
	}
	return marshal(form(m))
}

// kind is the rule that is meant.
func (m *Merge) kind() MergeRule {
	switch {
	case m.Rule != "":
		return m.Rule
	case m.Agent != "":
		return MergeAgent
	case len(m.Fields) > 0:
		return MergeFields
	case m.Quorum != 0:
		return MergeQuorum
	}
	return MergeCollect
}

// Route chooses one branch. The answer is trimmed and matched to the cases without regard to case.
type Route struct {
	On string   `json:"on,omitempty"` // CEL: the answer
	By *RouteBy `json:"by,omitempty"` // who answers, instead of On
	// Cases are branches by answer. Empty, with By: each branch by its own name.
	Cases map[string]string `json:"cases,omitempty"`
	// Default is the branch of an answer that fits no case; without it the run fails with RouteUnmatched.
	Default   string `json:"default,omitempty"`
	MaxVisits int    `json:"maxVisits,omitempty"` // see Stage.MaxVisits
}

// RouteBy is an agent that answers {next: NAME}, or with a text.
type RouteBy struct {
	Agent string `json:"agent"`
	Input string `json:"input,omitempty"` // the stage's Input when empty
}

// LimitAction is what happens to a loop that is not done when its rounds are over.
type LimitAction string

// The answers to a limit.
const (
	LimitFail LimitAction = "fail" // the run fails with LoopLimit
	LimitBest LimitAction = "best" // the output with the highest score is taken
	LimitGate LimitAction = "gate" // a person accepts the last output, or the run fails
)

// Loop calls an agent, then its critic, again and again. Its expressions see last, which is what the critic said (the
// agent, without a critic) with output, critique and round beside it, and messages, the list of those of all rounds.
type Loop struct {
	Agent    string `json:"agent,omitempty"`
	Workflow string `json:"workflow,omitempty"`
	Critic   string `json:"critic,omitempty"` // an agent
	// CriticInput is what the critic is called with; the agent's output when empty.
	CriticInput string      `json:"criticInput,omitempty"`
	Until       string      `json:"until"`
	Max         int         `json:"max"` // rounds
	OnLimit     LimitAction `json:"onLimit,omitempty"`
	Score       string      `json:"score,omitempty"` // a number; last.score when empty
	Gate        *Gate       `json:"gate,omitempty"`  // with onLimit gate: who is asked and how
}

// ExpiryAction is what happens to a gate that nobody answered in time.
type ExpiryAction string

// The answers to an expiry.
const (
	ExpiryReject   ExpiryAction = "reject"
	ExpiryApprove  ExpiryAction = "approve"
	ExpiryEscalate ExpiryAction = "escalate"
)

// Gate asks a person.
type Gate struct {
	// Title is a text in which {{.FIELD}} and {{.FIELD.FIELD}} stand for values of the action.
	Title  string `json:"title"`
	Action string `json:"action,omitempty"` // CEL: what is decided on; the stage's input when empty
	// Approvers are group:NAME, user:NAME or role:NAME; empty: whoever may approve in the tenant.
	Approvers    []string     `json:"approvers,omitempty"`
	Quorum       int          `json:"quorum"` // approvals needed
	NotRequester bool         `json:"notRequester,omitempty"`
	Expires      Duration     `json:"expires"`
	OnExpiry     ExpiryAction `json:"onExpiry"`
	Remind       Duration     `json:"remind,omitempty"` // again after each such length of time
	Escalate     *Escalate    `json:"escalate,omitempty"`
}

// Escalate asks others too, after a time.
type Escalate struct {
	After Duration `json:"after"`
	To    []string `json:"to"`
}

// Defaults of a workflow.
const (
	DefaultFlowRun     = 7 * DefaultRun
	DefaultGateExpires = 7 * DefaultRun
)

// SetDefaults fills every unset field that has a default.
func (w *Workflow) SetDefaults() {
	if w.Budget.USD != 0 || w.Budget.Tokens != 0 {
		set(&w.Budget.OnBreach, BreachFail)
	}
	set(&w.Timeouts.Queue, DefaultQueue)
	set(&w.Timeouts.Run, DefaultFlowRun)
	set(&w.Retain, DefaultRetain)
	for i := range w.Stages {
		s := &w.Stages[i]
		if s.Parallel != nil {
			s.Parallel.Merge.Rule = s.Parallel.Merge.kind()
		}
		if s.Loop != nil {
			set(&s.Loop.OnLimit, LimitFail)
			s.Loop.Gate.setDefaults()
		}
		s.Gate.setDefaults()
	}
}

func (g *Gate) setDefaults() {
	if g == nil {
		return
	}
	set(&g.Quorum, 1)
	set(&g.Expires, DefaultGateExpires)
	set(&g.OnExpiry, ExpiryReject)
}
