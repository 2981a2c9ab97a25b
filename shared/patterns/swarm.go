package patterns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/errand-run/errand/shared/agent"
)

// Swarm: nobody leads. Whoever has the case works on it, and hands it to a peer who knows what is still open.

// maxHandoffs ends a case that is passed around; the run's own bound on depth is further out.
const (
	maxHandoffs      = 4
	codeHandoffLimit = "HandoffLimit"
)

type careCase struct {
	Text    string   `json:"text"`
	Charges int      `json:"charges"` // how often the customer was charged
	Device  string   `json:"device"`
	Notes   []string `json:"notes,omitempty"` // what was done so far
	Done    []string `json:"done,omitempty"`  // topics that are dealt with
	Trail   []string `json:"trail,omitempty"` // who had the case, in order
}

type careResult struct {
	Answer string   `json:"answer"`
	Trail  []string `json:"trail"`
}

// careTopics says who deals with what, and what speaks for it in a text.
var careTopics = []struct{ topic, peer, words string }{
	{"charge", "care-billing", "charged twice refund invoice money"},
	{"device", "care-technical", "start broken blink charger display"},
	{"exchange", "care-billing", "exchange replacement"},
	{"address", "care-reception", "address moved name"},
}

// care is each peer of the swarm. All of them know the others, and none of them the whole way of a case.
func care(ctx context.Context, r *agent.Run, in careCase) (careResult, error) {
	in.Trail = append(in.Trail, r.Agent)
	// 1. Deal with what is ours.
	next := ""
	for _, topic := range openTopics(in) {
		note, blocked := deal(r.Agent, topic, in)
		switch {
		case note != "":
			in.Notes, in.Done = append(in.Notes, note), append(in.Done, topic)
		case next == "":
			next = blocked
		}
	}
	// 2. Nothing is open: the answer goes back along the trail.
	if next == "" {
		answer := strings.Join(in.Notes, " ")
		if answer == "" {
			answer = "We did not find what this is about; somebody will call you."
		}
		return careResult{answer, in.Trail}, nil
	}
	// 3. Hand the case on. The peer has it from here, and how it ends there is how it ends here; this run waits without a slot.
	if len(in.Trail) > maxHandoffs {
		return careResult{}, agent.Fail(codeHandoffLimit, fmt.Errorf("the case was handed on %d times (%s) and %s is still open: a person has to take it",
			len(in.Trail)-1, strings.Join(in.Trail, " → "), strings.Join(openTopics(in), ", ")))
	}
	r.Progress(float64(len(in.Trail))/(maxHandoffs+1), "handed to "+next)
	out, err := agent.Call[careResult](ctx, r, next, in)
	var peer *agent.ChildError
	if errors.As(err, &peer) && peer.Code == codeHandoffLimit {
		return out, agent.Fail(codeHandoffLimit, err)
	}
	return out, err
}

// openTopics are those that the text speaks of and nobody has dealt with.
func openTopics(in careCase) []string {
	words := wordPattern.FindAllString(strings.ToLower(in.Text), -1)
	var open []string
	for _, t := range careTopics {
		if slices.Contains(in.Done, t.topic) {
			continue
		}
		if slices.ContainsFunc(strings.Fields(t.words), func(w string) bool { return slices.Contains(words, w) }) {
			open = append(open, t.topic)
		}
	}
	return open
}

// deal says what was done about a topic, or who has to have the case first.
func deal(me, topic string, in careCase) (note, peer string) {
	for _, t := range careTopics {
		if t.topic == topic && t.peer != me && !(topic == "exchange" && me == "care-technical") {
			return "", t.peer
		}
	}
	switch topic {
	case "charge":
		if in.Charges > 1 {
			return fmt.Sprintf("You were charged %d times; %d are refunded.", in.Charges, in.Charges-1), ""
		}
		return "You were charged once, as agreed.", ""
	case "device":
		return fmt.Sprintf("Hold the button of your %s for ten seconds; it starts anew.", in.Device), ""
	case "exchange":
		// Billing wants the fault confirmed, and technical wants it paid: without the device neither can, and the case bounces.
		switch {
		case me == "care-billing" && !slices.Contains(in.Done, "device"):
			return "", "care-technical"
		case me == "care-technical":
			return "", "care-billing"
		}
		return fmt.Sprintf("A new %s is on its way.", in.Device), ""
	}
	return "Your address is changed.", ""
}
