package placement

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/errand-run/errand/shared/run"
)

// Outcome is what came out of a decision.
type Outcome string

// The outcomes.
const (
	Placed        Outcome = "placed"
	NoCapacity    Outcome = "noCapacity"    // nodes fit, and none is free at the moment
	Unschedulable Outcome = "unschedulable" // no node could take it even when empty
)

// MaxBest is how many scores a decision keeps, and maxNames how many names per reason.
const (
	MaxBest  = 5
	maxNames = 3
)

// Scored is a node and its weighted mean score, 0 to 100.
type Scored struct {
	Node  string `json:"node"`
	Score int    `json:"score"`
}

// Tally is how many nodes were refused for a reason: the first that refused each of them.
type Tally struct {
	Reason  Reason
	Count   int
	Names   [maxNames]string // of the first ones by name, as many as there are; none where no node is to blame
	Message string           // of the first one, where it binds: what is in use for NoCapacity, what is declared for Unschedulable
}

func (t *Tally) name(name string) {
	for i := range t.Names {
		if t.Names[i] == "" {
			t.Names[i] = name
			return
		}
	}
}

// tallies counts by reason code.
type tallies [32]Tally

func (c *tallies) add(code uint8, name string) {
	t := &c[code]
	t.Count++
	if t.Count <= maxNames {
		t.Names[t.Count-1] = name
	}
}

// list appends the counts to a copy of head, in the order of Reasons.
func (c *tallies) list(head []Tally) []Tally {
	list := slices.Clip(head)
	for code := range c {
		if t := &c[code]; t.Count > 0 {
			t.Reason = reasonOf(uint8(code))
			list = append(list, *t)
		}
	}
	return list
}

// Decision is the result of Place, in a form that is small enough to store with the run. Its lists are shared between
// decisions and must not be changed.
type Decision struct {
	Outcome Outcome
	Node    string // chosen, with Target and Worker; "" for none
	Target  string
	Worker  string
	Score   int // of the chosen node, 0 to 100
	Nodes   int // looked at
	Fit     int // of them, those that could take the request when empty

	// Refused counts the others by reason, what is declared before what is in use. For a Placed one, nodes that ranked
	// below the best and have some free slot are not asked for more, so they are not counted.
	Refused []Tally

	Final   bool        // no event will help
	RetryAt run.Instant // the earliest that a refusal named; 0: none did
	WakeOn  []Event     // what may change the outcome

	best  [MaxBest]Scored
	bests int
}

// Best lists the best scores, the chosen one first.
func (d *Decision) Best() []Scored { return d.best[:d.bests] }

// maxText bounds Message, in bytes.
const maxText = 600

// Message is the decision in a sentence: where, or why not.
func (d *Decision) Message() string {
	switch {
	case d.Outcome == Placed:
		return fmt.Sprintf("placed on %s (score %d, %d of %d targets fit)", d.Node, d.Score, d.Fit, d.Nodes)
	case d.Nodes == 0:
		return "no target is declared"
	}
	var parts []string
	for _, t := range d.Refused {
		if d.Outcome == NoCapacity && !t.Reason.dynamic() {
			continue // what binds is what is in use
		}
		parts = append(parts, t.String())
	}
	text := strings.Join(parts, "; ")
	if d.Outcome == NoCapacity {
		text = "waits: " + text
	}
	return clip(text, maxText)
}

// dynamic reports whether the reason holds at the moment only.
func (r Reason) dynamic() bool { return r.code() >= NoWorker.code() }

// String is the first node's message and how many more there are.
func (t Tally) String() string {
	text := t.Message
	if text == "" {
		text = string(t.Reason) + ": " + t.Names[0]
	}
	switch {
	case t.Names[0] == "":
	case t.Count == 2:
		text += ", likewise " + t.Names[1]
	case t.Count > 2:
		text += fmt.Sprintf(", likewise %d others", t.Count-1)
	}
	return text
}

// clip shortens a text to at most n bytes, at the border of a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n -= len("…")
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

// stored is the form in which a decision is kept.
type stored struct {
	Outcome Outcome       `json:"outcome"`
	Target  string        `json:"target,omitempty"`
	Worker  string        `json:"worker,omitempty"`
	Score   int           `json:"score,omitempty"`
	Nodes   int           `json:"nodes,omitempty"`
	Fit     int           `json:"fit,omitempty"`
	Best    []Scored      `json:"best,omitempty"`
	Refused []storedTally `json:"refused,omitempty"`
	Final   bool          `json:"final,omitempty"`
	RetryAt run.Instant   `json:"retryAt,omitempty"`
}

type storedTally struct {
	Reason  Reason   `json:"reason"`
	Count   int      `json:"count"`
	Nodes   []string `json:"nodes,omitempty"`
	Message string   `json:"message,omitempty"`
}

// Encode returns the stored form, at most run.MaxDetail bytes. What does not fit is left out in this order: names
// beyond the first of each reason, messages, scores beyond the chosen one, all names, reasons from the last on, and at
// the very end, which no declared name leads to, the score and the worker. WakeOn is not stored.
func (d *Decision) Encode() json.RawMessage {
	b := make([]byte, 0, 640)
	for cut := range 5 + len(d.Refused) {
		if b = d.append(b[:0], cut); len(b) <= run.MaxDetail {
			return b
		}
	}
	least := *d
	least.Refused, least.bests, least.Worker = nil, 0, ""
	return least.append(b[:0], 0)
}

// chosen is the node that a placed decision chose, with its score.
func (d *Decision) chosen() Scored { return Scored{Node: NodeName(d.Target, d.Worker), Score: d.Score} }

func (d *Decision) append(b []byte, cut int) []byte {
	b = append(b, `{"outcome":`...)
	b = appendString(b, string(d.Outcome))
	if d.Target != "" {
		b = appendString(append(b, `,"target":`...), d.Target)
	}
	if d.Worker != "" {
		b = appendString(append(b, `,"worker":`...), d.Worker)
	}
	b = appendInt(b, `,"score":`, int64(d.Score))
	b = appendInt(b, `,"nodes":`, int64(d.Nodes))
	b = appendInt(b, `,"fit":`, int64(d.Fit))
	best := d.Best()
	if cut >= 3 {
		best = best[:min(1, len(best))]
	}
	if len(best) == 1 && best[0] == d.chosen() { // it is said above
		best = nil
	}
	for i, s := range best {
		b = append(b, [...]string{`,"best":[{"node":`, `,{"node":`}[min(i, 1)]...)
		b = appendString(b, s.Node)
		b = append(b, `,"score":`...)
		b = strconv.AppendInt(b, int64(s.Score), 10)
		b = append(b, '}')
	}
	if len(best) > 0 {
		b = append(b, ']')
	}
	refused := d.Refused[:len(d.Refused)-max(cut-4, 0)]
	for i := range refused {
		t := &refused[i]
		b = append(b, [...]string{`,"refused":[{"reason":`, `,{"reason":`}[min(i, 1)]...)
		b = appendString(b, string(t.Reason))
		b = append(b, `,"count":`...)
		b = strconv.AppendInt(b, int64(t.Count), 10)
		b = t.append(b, cut)
		b = append(b, '}')
	}
	if len(refused) > 0 {
		b = append(b, ']')
	}
	if d.Final {
		b = append(b, `,"final":true`...)
	}
	b = appendInt(b, `,"retryAt":`, int64(d.RetryAt))
	return append(b, '}')
}

func (t *Tally) append(b []byte, cut int) []byte {
	names := [...]int{maxNames, 1, 1, 1, 0}[min(cut, 4)]
	for i, name := range t.Names[:names] {
		if name == "" {
			break
		}
		b = appendString(append(b, [...]string{`,"nodes":[`, `,`}[min(i, 1)]...), name)
	}
	if names > 0 && t.Names[0] != "" {
		b = append(b, ']')
	}
	if cut < 2 && t.Message != "" {
		b = appendString(append(b, `,"message":`...), clip(t.Message, maxText/2))
	}
	return b
}

func appendInt(b []byte, key string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(b, key...), n, 10)
}

// appendString quotes plain text itself and leaves the rest to encoding/json.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(s) // a string always encodes
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// DecodeDecision reads what Encode wrote. It accepts reasons and outcomes that this version does not know.
func DecodeDecision(raw json.RawMessage) (Decision, error) {
	if len(raw) > run.MaxDetail {
		return Decision{}, fmt.Errorf("decode decision: %d bytes, at most %d are stored", len(raw), run.MaxDetail)
	}
	var s stored
	if err := json.Unmarshal(raw, &s); err != nil {
		return Decision{}, fmt.Errorf("decode decision: %w", err)
	}
	d := Decision{
		Outcome: s.Outcome, Target: s.Target, Worker: s.Worker, Score: s.Score, Nodes: s.Nodes, Fit: s.Fit, Final: s.Final,
		RetryAt: s.RetryAt,
	}
	if d.Target != "" {
		d.Node = NodeName(d.Target, d.Worker)
	}
	if d.bests = copy(d.best[:], s.Best); d.bests == 0 && d.Outcome == Placed {
		d.best[0], d.bests = d.chosen(), 1
	}
	for _, t := range s.Refused {
		tally := Tally{Reason: t.Reason, Count: t.Count, Message: t.Message}
		copy(tally.Names[:], t.Nodes)
		d.Refused = append(d.Refused, tally)
	}
	return d, nil
}
