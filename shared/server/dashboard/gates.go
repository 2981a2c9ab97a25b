package dashboard

import (
	"fmt"
	"strings"
	"time"

	"github.com/errand-run/errand/shared/api"
)

// Gates is the page of questions to people.
type Gates struct {
	Now     time.Time
	Version api.Version
	Gates   []GateRow
	State   string // of all that are listed; "all" for any
	States  []string
	Mine    bool   // only those that whoever looks may decide
	Next    string // token of more, ready for an address
	Answer
}

// Answer is the part of a form in which somebody decides.
type Answer struct {
	NoLogin bool   // whoever looks may decide under any name
	Me      string // who looks
	Comment string // that was given before
}

// GateRow is a gate in the list.
type GateRow struct {
	api.Gate
	Shown Value // the action
	Tick  bool  // it can be decided together with others
}

// Ticks reports whether any can be decided together with others.
func (g *Gates) Ticks() bool {
	for _, row := range g.Gates {
		if row.Tick {
			return true
		}
	}
	return false
}

// Gate is the page of one gate.
type Gate struct {
	Now                    time.Time
	Version                api.Version
	Gate                   api.Gate
	Action, Context, Input Value
	MayDecide              bool
	Problem                *api.Problem // why the answer that was just given does not count
	Answer
}

// Decided is the page after many decisions.
type Decided struct {
	Version api.Version
	Items   []DecidedItem
}

// DecidedItem is what became of one decision: the gate after it, or why it does not count.
type DecidedItem struct {
	ID, Title string
	Gate      *api.Gate
	Problem   *api.Problem
}

// Receipts is the page of effects of unknown outcome.
type Receipts struct {
	Now        time.Time
	Version    api.Version
	Receipts   []api.Receipt
	Next       string       // token of more, ready for an address
	MayResolve bool         // whoever looks may say what happened
	Problem    *api.Problem // why the answer that was just given does not count
}

// approvals counts those who have approved.
func approvals(g api.Gate) int {
	n := 0
	for _, d := range g.Decisions {
		if d.Decision == "approve" {
			n++
		}
	}
	return n
}

// verdict says how a gate stands.
func verdict(now time.Time, g api.Gate) string {
	said := func(word string) string {
		var names []string
		for _, d := range g.Decisions {
			if d.Decision == word {
				names = append(names, d.By)
			}
		}
		return strings.Join(names, ", ")
	}
	switch g.State {
	case "open":
		s := "Nobody has approved yet."
		if by := said("approve"); by != "" {
			s = fmt.Sprintf("%d of %d have approved: %s.", approvals(g), g.Quorum, by)
		} else if g.Quorum > 1 {
			s = fmt.Sprintf("None of the %d who must approve has.", g.Quorum)
		}
		if g.Expires != nil {
			s += fmt.Sprintf(" It is open until %s, for %s.", minute(*g.Expires), left(now, *g.Expires))
		}
		return s
	case "approved":
		if by := said("approve"); by != "" && approvals(g) >= g.Quorum {
			return "Approved by " + by + "."
		}
		return "Nobody decided in time, and so it is approved, as its onExpiry says."
	case "rejected":
		return "Rejected by " + said("reject") + "."
	case "expired":
		return "Nobody decided in time, and so it is not approved."
	case "requested":
		return "Its run does not wait for it yet, so nobody can decide it."
	}
	return "Its run has ended or does not wait for it any more, so there is nothing to decide."
}

// consequence is what follows when something is said.
type consequence struct{ If, Then string }

// consequences say what follows each answer to an open gate, and no answer.
func consequences(g api.Gate) []consequence {
	// 1. Approved.
	approved, rejected := "The run goes on, with exactly this action.", "The run ends as failed, and what it did is undone where its stages and effects say how."
	if g.Agent != "" {
		rejected = "The agent is told, and goes on without this action."
	}
	if undoes(g) {
		approved, rejected = "It is tried again.", "It is left as it is, and the run ends."
	}
	if missing := g.Quorum - approvals(g); missing > 1 {
		approved = fmt.Sprintf("Your approval is noted, and %s must approve too. Then: %s", people(missing-1), lowerFirst(approved))
	}
	// 2. Rejected.
	if g.Quorum > 1 {
		rejected = "One rejection is enough. " + rejected
	}
	out := []consequence{{"Approve", approved}, {"Reject", rejected}}
	if g.Expires == nil {
		return out
	}
	// 3. Neither.
	late := map[string]string{
		"approve":  "It is approved.",
		"escalate": "Those whom it escalates to may decide as well, for as long again. After that it counts as rejected.",
	}[g.OnExpiry]
	if late == "" {
		late = "It counts as rejected."
	}
	return append(out, consequence{"Nobody decides until " + minute(*g.Expires), late})
}

// undoes reports whether people are asked about what could not be undone.
func undoes(g api.Gate) bool { return strings.HasPrefix(g.Step, "undo/") }

func people(n int) string {
	if n == 1 {
		return "one more person"
	}
	return fmt.Sprintf("%d more people", n)
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// minute is a time as people agree on it.
func minute(t api.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// why is a reason for which a decision did not count, in words.
func why(refused string) string {
	words := map[string]string{
		"selfApproval": "asked for the run",
		"notApprover":  "may not decide",
		"expired":      "too late",
		"decided":      "it was decided",
		"changed":      "about another action",
		"canceled":     "the run waited no more",
	}
	if s, ok := words[refused]; ok {
		return s
	}
	return refused
}
