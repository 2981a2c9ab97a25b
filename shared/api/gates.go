package api

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
)

// GateAsk is a question to people: may this be done?
type GateAsk struct {
	Title  string          `json:"title"`
	Action json.RawMessage `json:"action,omitempty"` // what is to be done when they approve
	// Approvers may decide, each user:NAME, group:NAME or role:NAME; none for everybody with the right to approve.
	Approvers    []string      `json:"approvers,omitempty"`
	Quorum       int           `json:"quorum,omitempty"`       // different people who must approve; 1 when absent
	NotRequester bool          `json:"notRequester,omitempty"` // whoever asked for the run does not decide
	Expires      *Duration     `json:"expires,omitempty"`      // 168h when absent
	OnExpiry     string        `json:"onExpiry,omitempty"`     // reject (when absent), approve or escalate
	Remind       *Duration     `json:"remind,omitempty"`       // how often those who may decide are reminded
	Escalate     *GateEscalate `json:"escalate,omitempty"`
	// Context is anything that helps to decide, Diff what the action changes, as text.
	Context json.RawMessage `json:"context,omitempty"`
	Diff    string          `json:"diff,omitempty"`
}

// GateEscalate says who may decide as well when nobody did in time.
type GateEscalate struct {
	After *Duration `json:"after,omitempty"`
	To    []string  `json:"to"`
}

// GateRequest is the body of POST /v1/attempts/{id}/gates: it keeps the question until the attempt parks on it.
type GateRequest struct {
	Step string `json:"step"` // durable step that the answer completes
	GateAsk
}

// GateRequested answers it.
type GateRequested struct {
	Standing
	Gate Gate `json:"gate"`
}

// Gate is a question to people and how it stands.
type Gate struct {
	ID       string `json:"id"`
	Run      string `json:"run"`
	Step     string `json:"step"`
	Tenant   string `json:"tenant"`
	Agent    string `json:"agent,omitempty"`
	Workflow string `json:"workflow,omitempty"`
	Stage    string `json:"stage,omitempty"`
	// Requester is who asked for the run.
	Requester string `json:"requester,omitempty"`

	State      string          `json:"state"` // requested, open, approved, rejected, expired, canceled
	Title      string          `json:"title"`
	Action     json.RawMessage `json:"action"`
	ActionHash string          `json:"actionHash"` // SHA-256 of the action in its canonical form
	Approvers  []string        `json:"approvers,omitempty"`
	Quorum     int             `json:"quorum"`
	// NotRequester: whoever asked for the run does not decide.
	NotRequester bool            `json:"notRequester,omitempty"`
	Context      json.RawMessage `json:"context,omitempty"`
	Diff         string          `json:"diff,omitempty"`
	Input        json.RawMessage `json:"input,omitempty"` // of the run; absent in lists
	Cost         Cost            `json:"cost"`            // of the run when it asked

	RequestedAt Time     `json:"requestedAt"`
	Expires     *Time    `json:"expires,omitempty"`
	OnExpiry    string   `json:"onExpiry"`
	RemindAt    *Time    `json:"remindAt,omitempty"`
	Reminded    int      `json:"reminded,omitempty"`
	EscalateAt  *Time    `json:"escalateAt,omitempty"`
	EscalateTo  []string `json:"escalateTo,omitempty"`
	EscalatedAt *Time    `json:"escalatedAt,omitempty"`
	DecidedAt   *Time    `json:"decidedAt,omitempty"`

	Decisions []GateDecision `json:"decisions"`
	Refused   []GateDecision `json:"refused,omitempty"` // decisions that did not count, the first 16
	// MayDecide: the decision of whoever reads this would count.
	MayDecide bool   `json:"mayDecide"`
	Etag      string `json:"etag"`
}

// Open reports whether it can be decided.
func (g *Gate) Open() bool { return g.State == "open" }

// Asks names the agent or workflow that asks.
func (g *Gate) Asks() string { return g.Agent + g.Workflow }

// GateDecision is what somebody said.
type GateDecision struct {
	By       string `json:"by"`
	Decision string `json:"decision"` // approve or reject
	Comment  string `json:"comment,omitempty"`
	At       Time   `json:"at"`
	// Refused is why it did not count.
	Refused string `json:"refused,omitempty"`
}

// GateDecide is the body of POST /v1/gates/{id}:decide.
type GateDecide struct {
	Decision string `json:"decision"` // approve or reject
	Comment  string `json:"comment,omitempty"`
	// ActionHash is that of the action that was looked at: a decision about another one is refused. Absent takes the
	// action as it stands.
	ActionHash string `json:"actionHash,omitempty"`
}

// GateDecideItem is one decision of many.
type GateDecideItem struct {
	ID string `json:"id"`
	GateDecide
}

// GateDecideBatch is the body of POST /v1/gates:decide, of 1,000 decisions at most.
type GateDecideBatch struct {
	Items []GateDecideItem `json:"items"`
}

// GateDecided is what became of one decision, in the order asked.
type GateDecided struct {
	Gate  *Gate    `json:"gate,omitempty"`
	Error *Problem `json:"error,omitempty"`
}

// GateResult is the result of the step that asked, once people have decided.
type GateResult struct {
	Gate       string   `json:"gate"`
	Decision   string   `json:"decision"` // approved, rejected or expired
	By         []string `json:"by"`
	Comment    string   `json:"comment,omitempty"`
	ActionHash string   `json:"actionHash"`
	At         Time     `json:"at"`
}

// Headers that say, to a server without login alone, who asks: a name, and groups separated by commas.
const (
	HeaderAs     = "X-Errand-As"
	HeaderGroups = "X-Errand-Groups"
)

// GateFilter selects gates. Zero fields select all.
type GateFilter struct {
	State    string // open when empty; all for every state
	Approver string // user:NAME, group:NAME, role:NAME, or me for whoever asks
	Tenant   string
	Run      string
}

// ListGates returns a page of gates.
func (c *Client) ListGates(ctx context.Context, f GateFilter, p Page) (*List[Gate], error) {
	q := url.Values{}
	set(q, "state", f.State)
	set(q, "approver", f.Approver)
	if f.Tenant == "" {
		f.Tenant = c.tenant
	}
	set(q, "tenant", f.Tenant)
	set(q, "run", f.Run)
	return get[List[Gate]](ctx, c, "/v1/gates", p.query(q))
}

// Gates walks gates.
func (c *Client) Gates(ctx context.Context, f GateFilter) iter.Seq2[Gate, error] {
	return pages(ctx, Page{}, func(ctx context.Context, p Page) (*List[Gate], error) { return c.ListGates(ctx, f, p) })
}

// Gate returns a gate with all that helps to decide it.
func (c *Client) Gate(ctx context.Context, id string) (*Gate, error) {
	return get[Gate](ctx, c, "/v1/gates/"+url.PathEscape(id), nil)
}

// DecideGate takes a decision. Repeating it is safe: the same word of the same person again changes nothing.
func (c *Client) DecideGate(ctx context.Context, id string, body GateDecide) (*Gate, error) {
	return act[Gate](ctx, c, "/v1/gates/"+url.PathEscape(id)+":decide", &body, true)
}

// DecideGates takes up to 1,000 decisions, each for itself; what became of them comes in order.
func (c *Client) DecideGates(ctx context.Context, items []GateDecideItem) (*List[GateDecided], error) {
	return act[List[GateDecided]](ctx, c, "/v1/gates:decide", &GateDecideBatch{Items: items}, true)
}

// RequestGate keeps an attempt's question until the attempt parks on its step; token is the attempt's. A step whose
// question is decided gives that gate, and is refused with the code changed if the action is another one.
func (c *Client) RequestGate(ctx context.Context, attempt, token string, body GateRequest) (*GateRequested, error) {
	out := new(GateRequested)
	_, err := c.do(ctx, call{method: http.MethodPost, path: attemptPath(attempt) + "/gates", body: &body, bearer: token, repeatable: true, out: out})
	return out, err
}
